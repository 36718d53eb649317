package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/cmd/cascade/wording"
	"github.com/cascade-gitops/cascade/remote/report"
)

// fleet is the page that says what is not ready, since when, and what to do.
type fleet struct {
	Tier   tierView
	Counts []countView
	// Total of all clusters below, those without a row among them.
	Total, Unlisted int
	// NotReady are the first root causes of what is not ready.
	NotReady []groupView
	// OtherGroups are on page Why only, which has them all.
	OtherGroups int
	WhyLink     string
	Held        int
	HeldLink    string
	// Failing objects of this tier itself.
	Failing []failureView
	Filters filterView
	Rows    []clusterView
	Paging  paging
}

// tierView is the tier itself.
type tierView struct {
	State                              state
	Reason, Message, Revision, Version string
	Since                              moment
	Known                              bool
	// Faults of its credentials and backups, empty for none.
	Faults string
}

type countView struct {
	State state
	Count int
	Link  string
}

type linkView struct{ Text, Link string }

type failureView struct {
	Name, Reason, Message, Command string
	Why                            linkView
}

type clusterView struct {
	Name, Parent, Link               string
	Depth                            int
	State                            state
	Reason, Message, Revision        string
	Since                            moment
	Heard                            *moment
	Version, Owner, Provider, Region string
	Environment                      string
	// Faults of its credentials and backups, empty for none.
	Faults string
	Why    linkView
}

// filterView is the form.
type filterView struct {
	Query Query
	// Options of each select, with the one that is chosen.
	Selects []selectView
	Active  bool
	Clear   string
}

type selectView struct {
	Label, Name string
	Options     []optionView
}

type optionView struct {
	Value, Text string
	Chosen      bool
}

func fleetOf(f Facts, q Query, now time.Time) *fleet {
	all, unlisted := clusters(&f, now)
	v := &fleet{Tier: tierOf(&f, now), Total: len(all) + unlisted, Unlisted: unlisted}
	v.Held = len(held.Of(heldFacts(f)))
	v.HeldLink = link(Held, Query{Namespace: q.Namespace})
	if f.Own != nil {
		for _, failing := range f.Own.Failing {
			v.Failing = append(v.Failing, failureOf(failing, "", q))
		}
	}
	counts := map[state]int{}
	for i := range all {
		counts[all[i].state]++
	}
	for _, s := range states() {
		v.Counts = append(v.Counts, countView{State: s, Count: counts[s], Link: link(Fleet, Query{Namespace: q.Namespace, State: string(s)})})
	}
	v.causes(f, q, now)
	v.Filters = filtersOf(all, q)
	var chosen []*cluster
	for i := range all {
		if q.selects(&all[i]) {
			chosen = append(chosen, &all[i])
		}
	}
	shown, p := part(chosen, q.Page, maxRows, q.at(Fleet))
	v.Paging = p
	for _, c := range shown {
		v.Rows = append(v.Rows, clusterOf(c, q, now))
	}
	return v
}

func tierOf(f *Facts, now time.Time) tierView {
	own := f.Own
	if f.Heartbeat.Silent(now) {
		v := tierView{State: stateStale, Reason: cause.ReasonAgentSilent, Message: f.Heartbeat.Message(), Since: momentOf(metav1.NewTime(f.Heartbeat.Renewed), now), Known: true}
		if own != nil {
			v.Revision, v.Version = revision(own.Revision), name(own.Agent)
		}
		return v
	}
	if own == nil {
		return tierView{State: stateStale, Reason: v1alpha1.ReasonReportMissing, Message: "the agent of this tier has not reported yet, or its report may not be read"}
	}
	row := v1alpha1.TierRow{Ready: own.Ready, Reason: own.Reason, Suspended: own.Reason == v1alpha1.ReasonSuspended}
	return tierView{
		State: stateOf(&row), Reason: name(own.Reason), Message: message(own.Message), Revision: revision(own.Revision),
		Version: name(own.Agent), Since: momentOf(own.Since, now), Known: true, Faults: own.Faults.String(),
	}
}

// failureOf is an object of this tier that is not ready. Its name is <kind>/<namespace>/<name>.
// It is in the tier of a path, empty for this one.
func failureOf(f v1alpha1.Failure, tier string, q Query) failureView {
	v := failureView{Name: name(f.Name), Reason: name(f.Reason), Message: message(f.Message), Why: whyObject(tier, f.Name, q)}
	if parts := strings.Split(f.Name, "/"); len(parts) == 3 && tier == "" {
		v.Command = describe(strings.ToLower(parts[0]), parts[1], parts[2])
	}
	return v
}

func pathText(path string) string {
	parts := strings.Split(path, ">")
	for i := range parts {
		parts[i] = name(parts[i])
	}
	text := strings.Join(parts, " › ")
	if r := []rune(text); len(r) > maxPath {
		return "…" + string(r[len(r)-maxPath:])
	}
	return text
}

func clusterOf(c *cluster, q Query, now time.Time) clusterView {
	at := strings.LastIndex(c.Path, ">")
	v := clusterView{
		Name: name(c.Path[at+1:]), Link: link(Cluster, Query{Namespace: q.Namespace, Cluster: c.Path}), Depth: min(strings.Count(c.Path, ">"), 4),
		State: c.state, Reason: name(c.Reason), Message: message(c.Message), Revision: revision(c.Revision), Since: momentOf(c.Since, now),
		Version: name(c.Version), Owner: name(c.Owner), Provider: name(c.Provider), Region: name(c.Region), Environment: name(c.environment), Faults: c.Faults.String(),
	}
	if at > 0 {
		v.Parent = pathText(c.Path[:at])
	}
	if c.state != stateReady || c.Faults != nil {
		v.Why = linkView{v.Name, link(Why, Query{Namespace: q.Namespace, Cluster: c.Path})}
	}
	if c.Heard != nil {
		m := momentOf(*c.Heard, now)
		v.Heard = &m
	}
	return v
}

// selects reports whether a cluster is among those that a query asks for.
func (q Query) selects(c *cluster) bool {
	for _, pair := range [][2]string{
		{q.State, string(c.state)}, {q.Owner, c.Owner}, {q.Provider, c.Provider}, {q.Region, c.Region}, {q.Environment, c.environment}, {q.Reason, c.Reason},
	} {
		if pair[0] != "" && pair[0] != pair[1] {
			return false
		}
	}
	if q.Revision != "" && !strings.Contains(c.Revision, q.Revision) {
		return false
	}
	if q.Search == "" {
		return true
	}
	for _, text := range []string{c.Path, c.Owner, c.Reason, c.Message, c.Revision} {
		if strings.Contains(strings.ToLower(text), strings.ToLower(q.Search)) {
			return true
		}
	}
	return false
}

func filtersOf(all []cluster, q Query) filterView {
	v := filterView{Query: q, Clear: link(Fleet, Query{Namespace: q.Namespace})}
	v.Active = q.Search != "" || q.Revision != ""
	column := func(label, key, chosen string, of func(c *cluster) string) {
		counts := map[string]int{}
		for i := range all {
			// A choice of others that cannot be shown as it is would not be what it says.
			if text := of(&all[i]); text != "" && !strings.ContainsFunc(text, wording.Commands) {
				counts[text]++
			}
		}
		names, _ := mostOf(counts, 50)
		if chosen != "" {
			v.Active = true
			if !slices.Contains(names, chosen) {
				names = append(names, chosen)
			}
		}
		if len(names) == 0 {
			return
		}
		s := selectView{Label: label, Name: key, Options: []optionView{{Text: "any"}}}
		for _, n := range names {
			s.Options = append(s.Options, optionView{Value: n, Text: fmt.Sprintf("%s (%d)", name(n), counts[n]), Chosen: n == chosen})
		}
		v.Selects = append(v.Selects, s)
	}
	column("State", "state", q.State, func(c *cluster) string { return string(c.state) })
	column("Reason", "reason", q.Reason, func(c *cluster) string { return c.Reason })
	column("Environment", "environment", q.Environment, func(c *cluster) string { return c.environment })
	column("Owner", "owner", q.Owner, func(c *cluster) string { return c.Owner })
	column("Provider", "provider", q.Provider, func(c *cluster) string { return c.Provider })
	column("Region", "region", q.Region, func(c *cluster) string { return c.Region })
	return v
}

func heldFacts(f Facts) held.Facts {
	return held.Facts{Kustomizations: f.Kustomizations, HelmReleases: f.HelmReleases, Layers: f.Layers, Children: f.Children, Rollouts: f.Rollouts}
}

// staleReport is when the report of a child is as of, nil if it is fresh.
func staleReport(child *v1alpha1.Child, now time.Time) *moment {
	row := report.Row(child)
	if row.Heard == nil {
		return nil
	}
	m := momentOf(*row.Heard, now)
	return &m
}
