package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
	"github.com/cascade-gitops/cascade/remote/report"
)

// groups are the clusters below this tier, counted by what they have in common.
type groups struct {
	By    string `json:"by"`
	Total int    `json:"total"`
	// Groups of clusters, the largest first. Those without what is asked for are a group
	// with an empty name.
	Groups []group `json:"groups"`
	// Others are counted, and nobody told here what they have.
	Others int `json:"others,omitempty"`
	// doubt is why it is not known whether all of this is up to date, nil if it is known.
	doubt error
}

type group struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

const (
	byReason   = "reason"
	byRevision = "revision"
)

// groupings are what clusters can be grouped by.
func groupings() []string {
	return append([]string{byReason, byRevision}, sortedColumns()...)
}

func sortedColumns() []string { return slices.Sorted(maps.Keys(columns())) }

// columns are what is only in the rows of reports.
func columns() map[string]func(v1alpha1.TierRow) string {
	return map[string]func(v1alpha1.TierRow) string{
		"cause":    func(row v1alpha1.TierRow) string { return row.Cause.String() },
		"owner":    func(row v1alpha1.TierRow) string { return row.Owner },
		"provider": func(row v1alpha1.TierRow) string { return row.Provider },
		"region":   func(row v1alpha1.TierRow) string { return row.Region },
		"version":  func(row v1alpha1.TierRow) string { return row.Version },
	}
}

// loadGroups counts the clusters below this tier. Reasons and revisions are counted in
// the report of the tier, unless it is as old as an agent that is gone; for the rest the rows of all
// Children are read.
func loadGroups(ctx context.Context, cl client.Client, namespace, by string, now time.Time) (*groups, error) {
	column := columns()[by]
	if column == nil && by != byReason && by != byRevision {
		return nil, fmt.Errorf("cannot group by %q: use %s", by, strings.Join(groupings(), ", "))
	}
	beat, doubt, err := heartbeat(ctx, cl, namespace)
	if err != nil {
		return nil, err
	}
	found, err := countGroups(ctx, cl, namespace, by, beat, now)
	if err == nil && found.Total > 0 {
		found.doubt = doubt
	}
	return found, err
}

func countGroups(ctx context.Context, cl client.Client, namespace, by string, beat *cause.Heartbeat, now time.Time) (*groups, error) {
	column := columns()[by]
	if column == nil && !beat.Silent(now) {
		own, err := ownReport(ctx, cl, namespace)
		if err != nil {
			return nil, err
		}
		if own != nil && own.Children != nil && len(own.Children.ByReason) > 0 {
			return ofCounts(by, own.Children), nil
		}
	}
	children := &v1alpha1.ChildList{}
	if err := cl.List(ctx, children); err != nil {
		return nil, fmt.Errorf("cannot list Children: %w", err)
	}
	known := beat.Dated(children.Items, now)
	if column != nil {
		return ofRows(by, column, known), nil
	}
	// The report of this tier is missing, of an older agent, or too old.
	var below report.Below
	for i := range known {
		below.Put(&known[i])
	}
	return ofCounts(by, below.Counts()), nil
}

// ofCounts groups by what is counted in reports.
func ofCounts(by string, counts *v1alpha1.ReportCounts) *groups {
	g := &groups{By: by, Groups: []group{}}
	if counts == nil {
		return g
	}
	g.Total = int(counts.Total)
	list := counts.ByReason
	if by == byRevision {
		list = counts.ByRevision
	}
	g.Others = g.Total
	for _, n := range list {
		if n.Name != "" {
			g.Groups = append(g.Groups, group{n.Name, int(n.Count)})
			g.Others -= int(n.Count)
		}
	}
	return g
}

// ofRows groups by what is in rows.
func ofRows(by string, column func(v1alpha1.TierRow) string, children []v1alpha1.Child) *groups {
	g := &groups{By: by, Groups: []group{}}
	found := map[string]int{}
	for i := range children {
		rows := append(report.RowsBelow(&children[i]), report.Row(&children[i]))
		for _, row := range rows {
			found[column(row)]++
		}
		total := len(rows)
		if c := report.CountsBelow(&children[i]); c != nil {
			total = max(total, int(c.Total)+1)
		}
		g.Total += total
		g.Others += total - len(rows)
	}
	for name, count := range found {
		g.Groups = append(g.Groups, group{name, count})
	}
	slices.SortFunc(g.Groups, func(a, b group) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name)) })
	return g
}

func printGroups(out io.Writer, g *groups) error {
	var rows [][]string
	for _, of := range g.Groups {
		rows = append(rows, []string{orDash(shortRevision(of.Name)), strconv.Itoa(of.Count)})
	}
	if g.Others > 0 {
		rows = append(rows, []string{"(others)", strconv.Itoa(g.Others)})
	}
	rows = append(rows, []string{"(all)", strconv.Itoa(g.Total)})
	return table(out, []string{strings.ToUpper(g.By), "CLUSTERS"}, rows)
}
