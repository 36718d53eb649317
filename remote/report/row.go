package report

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Row of one child.
func Row(child *v1alpha1.Child) v1alpha1.TierRow {
	row := v1alpha1.TierRow{
		Path: pathOf(child), Reason: v1alpha1.ReasonProgressing, Since: child.CreationTimestamp,
		Version: bounded(child.Status.Version, maxWord), Owner: bounded(child.Labels[v1alpha1.OwnerLabel], maxWord),
		Provider: bounded(child.Status.Provider, maxWord), Region: bounded(child.Status.Region, maxWord),
		Heard: child.Status.HeardAt,
	}
	if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ReadyCondition); c != nil {
		row.Ready, row.Reason, row.Message, row.Since = c.Status == metav1.ConditionTrue, c.Reason, c.Message, c.LastTransitionTime
	}
	row.Suspended = row.Reason == v1alpha1.ReasonSuspended
	for i := range child.Status.Layers {
		layer := &child.Status.Layers[i]
		if !layer.Suspended {
			continue
		}
		row.Suspended = true
		if row.Ready {
			row.Ready, row.Reason, row.Message = false, v1alpha1.ReasonSuspended, "layer "+layer.Name+" is suspended"
		}
	}
	if !row.Ready {
		row.Cause = causeOfRow(child, row.Reason)
	}
	if row.Ready && row.Heard != nil {
		row.Ready, row.Reason, row.Since = false, v1alpha1.ReasonStale, *row.Heard
	}
	if row.Ready {
		row.Message = ""
	}
	row.Message = bounded(row.Message, maxRowMessage)
	if child.Status.Report != nil {
		row.Revision, row.Faults = shortened(child.Status.Report.Revision), confineFaults(child.Status.Report.Faults)
	}
	return row
}

func pathOf(child *v1alpha1.Child) string { return child.Namespace + "/" + child.Name }

// RowsBelow are the rows of a child's report, with paths from the child down. What an
// older agent recorded of a child is not confined yet.
func RowsBelow(child *v1alpha1.Child) []v1alpha1.TierRow {
	if child.Status.Report == nil {
		return nil
	}
	var rows []v1alpha1.TierRow
	for i := range child.Status.Report.Tiers {
		if row := below(child, i); confineRow(&row) {
			rows = append(rows, row)
		}
	}
	return rows
}

// below is a row of a child's report as it is now: stale if the child has not been heard
// of for long.
func below(child *v1alpha1.Child, at int) v1alpha1.TierRow {
	row := child.Status.Report.Tiers[at]
	heard := child.Status.HeardAt
	if heard == nil || row.Reason == v1alpha1.ReasonStale {
		return row
	}
	row.Message = "was " + row.Reason
	row.Ready, row.Suspended, row.Reason, row.Cause = false, false, v1alpha1.ReasonStale, nil
	// A tier between may have heard of it last even earlier.
	if row.Heard == nil || row.Heard.After(heard.Time) {
		row.Heard = heard
	}
	row.Since = *row.Heard
	return row
}

// CountsBelow are the counts of a child's report as they are now, and nil if it has none.
func CountsBelow(child *v1alpha1.Child) *v1alpha1.ReportCounts {
	if child.Status.Report == nil || child.Status.Report.Children == nil {
		return nil
	}
	c := confineCounts(*child.Status.Report.Children)
	if child.Status.HeardAt != nil && c.Total > 0 {
		c.Ready, c.Suspended, c.Stale = 0, 0, c.Total
		c.ByReason = []v1alpha1.NamedCount{{Name: v1alpha1.ReasonStale, Count: c.Total}}
	}
	return &c
}

// part is what one Child gives to the report of its tier.
type part struct {
	// child is only read: others have the same object.
	child *v1alpha1.Child
	own   v1alpha1.TierRow
	// order are the places of the rows below in the child's report, by their paths: first
	// those that are not ready, of which failed has the number, then those with faults.
	order          []uint8
	failed, faulty int
	counts         v1alpha1.ReportCounts
}

func newPart(child *v1alpha1.Child) *part {
	p := &part{child: child, own: Row(child)}
	if c := CountsBelow(child); c != nil {
		p.counts = *c
	}
	p.counts.Total++
	switch {
	case p.own.Ready:
		p.counts.Ready++
	case p.own.Reason == v1alpha1.ReasonStale:
		p.counts.Stale++
	case p.own.Suspended:
		p.counts.Suspended++
	}
	p.counts.ByReason = oneMore(p.counts.ByReason, p.own.Reason)
	p.counts.ByRevision = oneMore(p.counts.ByRevision, p.own.Revision)
	if p.own.Faults != nil {
		var all faults
		all.add(p.counts.Faults, 1)
		all.add(p.own.Faults, 1)
		p.counts.Faults = all.told()
	}
	p.sort()
	return p
}

// oneMore counts one more of a name.
func oneMore(list []v1alpha1.NamedCount, name string) []v1alpha1.NamedCount {
	for i := range list {
		if list[i].Name == name {
			list[i].Count++
			return list
		}
	}
	return append(list, v1alpha1.NamedCount{Name: name, Count: 1})
}

// sort finds the order of the rows below.
func (p *part) sort() {
	if p.child.Status.Report == nil {
		return
	}
	tiers := p.child.Status.Report.Tiers
	var needs [maxTierRows]need
	for i := range tiers[:min(len(tiers), maxTierRows)] {
		row := below(p.child, i)
		if row.Path = p.own.Path + ">" + row.Path; !confineRow(&row) {
			continue
		}
		p.order = append(p.order, uint8(i))
		switch needs[i] = needOf(&row); needs[i] {
		case isNotReady:
			p.failed++
		case hasFaults:
			p.faulty++
		case hasNone:
		}
	}
	slices.SortFunc(p.order, func(a, b uint8) int {
		return cmp.Or(cmp.Compare(needs[a], needs[b]), strings.Compare(tiers[a].Path, tiers[b].Path))
	})
}

// need of a row to be told, the greatest first.
type need uint8

const (
	isNotReady need = iota
	hasFaults
	hasNone
)

func needOf(row *v1alpha1.TierRow) need {
	switch {
	case !row.Ready:
		return isNotReady
	case row.Faults != nil:
		return hasFaults
	}
	return hasNone
}

// row is the row of a rank: the child's own, or one of those below.
func (p *part) row(rank int) v1alpha1.TierRow {
	if rank == 0 {
		return p.own
	}
	row := below(p.child, int(p.order[rank-1]))
	row.Path = p.own.Path + ">" + row.Path
	confineRow(&row)
	return row
}

// boolean orders false before true.
func boolean(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
