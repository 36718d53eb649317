package page

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// commits says which revision runs where: in columns the environments, in rows revisions.
type commits struct {
	// Layers are what this tier pushes, exactly; Reported is what clusters say of
	// themselves, at any depth; Pins is what Rollouts let them have.
	Layers, Reported, Pins matrix
	Unlisted               int
}

type matrix struct {
	Columns []string
	Rows    []matrixRow
	// Others are rows that are left out.
	Others int
}

type matrixRow struct {
	// What has the revision: a layer, a source, a Rollout. First is true where it begins.
	What  string
	First bool
	// Revision, its link to the clusters that have it, and what is to be said of it.
	Revision, Link string
	Newest         bool
	// Behind is since when a newer one is there; nil if none is, or it is not known.
	Behind *moment
	Cells  []matrixCell
	Total  int
}

// matrixCell counts clusters.
type matrixCell struct{ Count, NotReady int }

// tally counts clusters by what, revision and environment.
type tally struct {
	counts  map[tallied]map[string]*matrixCell
	columns map[string]int
}

type tallied struct{ what, revision string }

func newTally() *tally {
	return &tally{counts: map[tallied]map[string]*matrixCell{}, columns: map[string]int{}}
}

func (t *tally) add(what, revision, environment string, ready bool) {
	key := tallied{what, revision}
	if t.counts[key] == nil {
		t.counts[key] = map[string]*matrixCell{}
	}
	cell := t.counts[key][environment]
	if cell == nil {
		cell = &matrixCell{}
		t.counts[key][environment] = cell
	}
	cell.Count++
	if !ready {
		cell.NotReady++
	}
	t.columns[environment]++
}

// matrix has a column for each of the largest environments, and one for the rest. about
// completes a row.
func (t *tally) matrix(about func(key tallied, row *matrixRow)) matrix {
	names, others := mostOf(t.columns, maxColumns)
	m := matrix{}
	for _, n := range names {
		m.Columns = append(m.Columns, cmp.Or(name(n), "(none)"))
	}
	if others > 0 {
		m.Columns = append(m.Columns, "(others)")
	}
	for key, cells := range t.counts {
		row := matrixRow{What: key.what, Revision: key.revision, Cells: make([]matrixCell, len(m.Columns))}
		for environment, cell := range cells {
			at := slices.Index(names, environment)
			if at < 0 {
				at = len(m.Columns) - 1
			}
			row.Cells[at].Count += cell.Count
			row.Cells[at].NotReady += cell.NotReady
			row.Total += cell.Count
		}
		if about != nil {
			about(key, &row)
		}
		m.Rows = append(m.Rows, row)
	}
	slices.SortFunc(m.Rows, func(a, b matrixRow) int {
		newest := func(r matrixRow) int {
			if r.Newest {
				return 0
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.What, b.What), cmp.Compare(newest(a), newest(b)), cmp.Compare(b.Total, a.Total), strings.Compare(a.Revision, b.Revision))
	})
	if len(m.Rows) > maxRows {
		m.Others, m.Rows = len(m.Rows)-maxRows, m.Rows[:maxRows]
	}
	before := ""
	for i := range m.Rows {
		row := &m.Rows[i]
		row.First = i == 0 || row.What != before
		before = row.What
		row.What, row.Revision = name(row.What), cmp.Or(revision(row.Revision), "none yet")
	}
	return m
}

func commitsOf(f Facts, q Query, now time.Time) *commits {
	all, unlisted := clusters(&f, now)
	v := &commits{Unlisted: unlisted}
	environments := map[string]string{}
	reported := newTally()
	for i := range all {
		c := &all[i]
		if !c.below() {
			environments[c.Path] = c.environment
		}
		for _, part := range strings.Split(c.Revision, ",") {
			source, at, several := strings.Cut(part, "=")
			if !several {
				source, at = "", part
			}
			reported.add(source, at, c.environment, c.state == stateReady)
		}
	}
	v.Reported = reported.matrix(func(key tallied, row *matrixRow) {
		if key.revision != "" {
			row.Link = link(Fleet, Query{Namespace: q.Namespace, Revision: key.revision})
		}
		row.What = cmp.Or(key.what, "(its only source)")
	})
	v.Layers = layersOf(f, environments, now)
	v.Pins = pinsOf(f, environments, now)
	return v
}

func layersOf(f Facts, environments map[string]string, now time.Time) matrix {
	layers := map[string]*v1alpha1.Layer{}
	for i := range f.Layers {
		layers[f.Layers[i].Namespace+"/"+f.Layers[i].Name] = &f.Layers[i]
	}
	t := newTally()
	for i := range f.Children {
		child := &f.Children[i]
		for j := range child.Status.Layers {
			l := &child.Status.Layers[j]
			t.add(child.Namespace+"/"+l.Name, l.Revision, environments[child.Namespace+"/"+child.Name], l.Ready)
		}
	}
	return t.matrix(func(key tallied, row *matrixRow) {
		l := layers[key.what]
		if l == nil || l.Status.Revision == "" {
			return
		}
		if row.Newest = l.Status.Revision == key.revision; row.Newest {
			return
		}
		if c := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ReadyCondition); c != nil && c.Status != metav1.ConditionTrue {
			m := momentOf(c.LastTransitionTime, now)
			row.Behind = &m
		}
	})
}

func pinsOf(f Facts, environments map[string]string, now time.Time) matrix {
	rollouts := map[string]*v1alpha1.Rollout{}
	for i := range f.Rollouts {
		rollouts[f.Rollouts[i].Namespace+"/"+f.Rollouts[i].Name] = &f.Rollouts[i]
	}
	t := newTally()
	for i := range f.Children {
		child := &f.Children[i]
		for _, at := range child.Status.Rollouts {
			t.add(child.Namespace+"/"+at.Name, at.Revision, environments[child.Namespace+"/"+child.Name], at.Result == v1alpha1.ResultSucceeded)
		}
	}
	return t.matrix(func(key tallied, row *matrixRow) {
		r := rollouts[key.what]
		if r == nil {
			return
		}
		wanted := rollout.Wanted(r)
		if wanted == nil {
			return
		}
		if row.Newest = wanted.Revision == key.revision; !row.Newest && r.Status.Run != nil {
			m := momentOf(r.Status.Run.Began, now)
			row.Behind = &m
		}
	})
}
