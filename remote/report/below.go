package report

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Below is what is known of the clusters below a tier. It keeps what was worked out of
// each Child, and the sums of all: a Child that changes costs about one Child, however
// many there are. It is safe for concurrent use. The zero value has no children.
type Below struct {
	mu    sync.Mutex
	parts map[types.NamespacedName]*part
	sums  sums
}

// Put adds a Child, or replaces what was known of it, and reports whether that is
// another version. The Child is kept, and must not be changed any more.
func (b *Below) Put(child *v1alpha1.Child) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := types.NamespacedName{Namespace: child.Namespace, Name: child.Name}
	before := b.parts[key]
	if before != nil && child.ResourceVersion != "" && before.child.UID == child.UID && before.child.ResourceVersion == child.ResourceVersion {
		return false
	}
	if b.parts == nil {
		b.parts = map[types.NamespacedName]*part{}
		b.sums = sums{reasons: names{}, revisions: names{}}
	}
	if before != nil {
		b.sums.add(before, -1)
	}
	p := newPart(child)
	b.parts[key] = p
	b.sums.add(p, 1)
	return true
}

// Remove drops a Child, and reports whether it was there.
func (b *Below) Remove(key types.NamespacedName) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.parts[key]
	if p == nil {
		return false
	}
	b.sums.add(p, -1)
	delete(b.parts, key)
	return true
}

// Counts of all clusters below; nil if there are none.
func (b *Below) Counts() *v1alpha1.ReportCounts {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.parts) == 0 {
		return nil
	}
	return b.sums.counts()
}

// behind counts the children that have a layer in place, and not at the revision and generation
// that they are to have. A child that cannot be reached, or that is not ready, is counted as
// that.
func (b *Below) behind(l *v1alpha1.Layer, revision string) (n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.parts {
		if !p.own.Ready || p.child.Namespace != l.Namespace {
			continue
		}
		for i := range p.child.Status.Layers {
			e := &p.child.Status.Layers[i]
			if e.Name == l.Name && e.Ready && (revision != "" && e.Revision != revision || e.ObservedGeneration != l.Generation) {
				n++
			}
		}
	}
	return n
}

// rollUp counts the clusters below and gives the most important of them a row, those
// that are not ready first.
func (b *Below) rollUp(r *v1alpha1.Report) {
	if b == nil {
		return
	}
	if r.Children = b.Counts(); r.Children == nil {
		return
	}
	for _, c := range b.chosen() {
		r.Tiers = append(r.Tiers, c.part.row(c.rank))
	}
	slices.SortFunc(r.Tiers, func(a, b v1alpha1.TierRow) int {
		return cmp.Or(boolean(a.Ready, b.Ready), strings.Compare(a.Path, b.Path))
	})
}

// candidate for a row: a place in the order of one child's rows, of which that of the
// child itself has rank 0.
type candidate struct {
	part *part
	rank int
	need need
}

func (p *part) candidate(rank int) candidate {
	if rank == 0 {
		return candidate{part: p, need: needOf(&p.own)}
	}
	c := candidate{part: p, rank: rank, need: hasNone}
	switch {
	case rank <= p.failed:
		c.need = isNotReady
	case rank <= p.failed+p.faulty:
		c.need = hasFaults
	}
	return c
}

// before orders candidates: those that are not ready first, then those with faults, then the
// children of the tier, which it knows itself, then the first rows of each child's report
// before the second ones. A child whose report is full of rows that are not ready takes the places
// of no other child.
func (c candidate) before(o candidate) int {
	return cmp.Or(
		cmp.Compare(c.need, o.need), cmp.Compare(c.rank, o.rank), strings.Compare(c.part.own.Path, o.part.own.Path))
}

// chosen are those that get a row. Each child's candidates come in order, so that the
// first of them that is too late ends that child's turn.
func (b *Below) chosen() []candidate {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := make([]candidate, 0, maxTierRows+1)
	offer := func(c candidate) (taken bool) {
		if len(kept) == maxTierRows {
			if c.before(kept[maxTierRows-1]) > 0 {
				return false
			}
			kept = kept[:maxTierRows-1]
		}
		at, _ := slices.BinarySearchFunc(kept, c, candidate.before)
		kept = slices.Insert(kept, at, c)
		return true
	}
	for _, p := range b.parts {
		offer(p.candidate(0))
		for rank := 1; rank <= len(p.order); rank++ {
			if !offer(p.candidate(rank)) {
				break
			}
		}
	}
	return kept
}
