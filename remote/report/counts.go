package report

import (
	"cmp"
	"slices"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// sums are counts over many children, which their parts are added to and taken from.
type sums struct {
	total, ready, suspended, stale, updating int64
	reasons, revisions                       names
	faults                                   faults
}

// names counts by name. The empty name is all others.
type names map[string]*named

// named counts one name. children is how many children have it in their counts.
type named struct{ count, children int64 }

// add counts a list, or takes it back if sign is negative. What the list lacks of the
// total is among the others.
func (n names) add(list []v1alpha1.NamedCount, total, sign int64) {
	for i := range list {
		total -= int64(list[i].Count)
		n.put(list[i].Name, sign*int64(list[i].Count), sign)
	}
	if total > 0 {
		n.put("", sign*total, sign)
	}
}

func (n names) put(name string, count, children int64) {
	if n[name] == nil {
		n[name] = &named{}
	}
	n[name].count += count
	n[name].children += children
	if n[name].children == 0 {
		delete(n, name)
	}
}

// list has the most common names, in order of their counts, and one entry for all
// others. What many children have comes before what only one has: a child that invents
// names displaces none that two have.
func (n names) list(total int64) []v1alpha1.NamedCount {
	type entry struct {
		name string
		named
	}
	var kept []entry
	order := func(a, b entry) int {
		return cmp.Or(
			cmp.Compare(min(b.children, 2), min(a.children, 2)), cmp.Compare(b.count, a.count), cmp.Compare(a.name, b.name))
	}
	most := maxNames
	if n[""] != nil || len(n) > maxNames {
		most--
	}
	for name, of := range n {
		if name == "" {
			continue
		}
		e := entry{name, *of}
		if len(kept) == most {
			if order(e, kept[most-1]) > 0 {
				continue
			}
			kept = kept[:most-1]
		}
		at, _ := slices.BinarySearchFunc(kept, e, order)
		kept = slices.Insert(kept, at, e)
	}
	slices.SortFunc(kept, func(a, b entry) int { return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.name, b.name)) })
	var out []v1alpha1.NamedCount
	for _, e := range kept {
		if count := min(e.count, total); count > 0 {
			out = append(out, v1alpha1.NamedCount{Name: e.name, Count: int32(count)})
			total -= count
		}
	}
	if total > 0 {
		out = append(out, v1alpha1.NamedCount{Count: int32(total)})
	}
	return out
}

// counts are the sums as a report has them.
func (s *sums) counts() *v1alpha1.ReportCounts {
	c := &v1alpha1.ReportCounts{Total: int32(min(s.total, maxClusters))}
	c.Ready = int32(min(s.ready, int64(c.Total)))
	c.Suspended = int32(min(s.suspended, int64(c.Total-c.Ready)))
	c.Stale = int32(min(s.stale, int64(c.Total-c.Ready-c.Suspended)))
	c.Updating = int32(min(s.updating, maxClusters))
	c.ByReason, c.ByRevision = s.reasons.list(int64(c.Total)), s.revisions.list(int64(c.Total))
	c.Faults = s.faults.told()
	return c
}

// add counts a part, or takes it back if sign is negative.
func (s *sums) add(p *part, sign int64) {
	s.total += sign * int64(p.counts.Total)
	s.ready += sign * int64(p.counts.Ready)
	s.suspended += sign * int64(p.counts.Suspended)
	s.stale += sign * int64(p.counts.Stale)
	s.updating += sign * int64(p.counts.Updating)
	s.reasons.add(p.counts.ByReason, int64(p.counts.Total), sign)
	s.revisions.add(p.counts.ByRevision, int64(p.counts.Total), sign)
	s.faults.add(p.counts.Faults, sign)
}
