package page

import (
	"cmp"
	"slices"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
	"github.com/cascade-gitops/cascade/cmd/cascade/wording"
	"github.com/cascade-gitops/cascade/remote/report"
)

// EnvironmentLabel on a Child says which environment the cluster, and all below it, is of.
const EnvironmentLabel = "environment"

// Bounds of what is shown.
const (
	maxRows     = 100 // of a table, on one page
	maxGroups   = 20
	maxExamples = 5
	maxColumns  = 10
	maxName     = 120 // characters
	maxPath     = 300
	maxMessage  = 240
	maxCommand  = 3000
	maxRevision = 120
)

// Facts are what was read of the tier. A page needs the kinds that Needs names.
type Facts struct {
	// At is when the oldest of them was read.
	At time.Time
	// Namespace that they are of; empty for all.
	Namespace string
	// Own is the tier's report of itself, nil if there is none or it could not be read.
	Own            *v1alpha1.Report
	Children       []v1alpha1.Child
	Layers         []v1alpha1.Layer
	Rollouts       []v1alpha1.Rollout
	Kustomizations []kustomizev1.Kustomization
	HelmReleases   []helmv2.HelmRelease
	Credentials    []v1alpha1.Credential
	Backups        []v1alpha1.StateBackup
	// Sources of any kind of Flux, others that neither apply nor are applied, Clusters of
	// Cluster API if a child is not connected to its own, and the heartbeat of the agent: what
	// chains of causes need besides.
	Sources   []client.Object
	Others    []client.Object
	Clusters  []cause.Cluster
	Heartbeat *cause.Heartbeat
	// Notifications are Alerts and Providers.
	Notifications []client.Object
	// Unread is why kinds of these were not read.
	Unread map[string]string
	// Events of the one Child that page Cluster is about.
	Events []corev1.Event
	// Missing names what could not be read, for people.
	Missing []string
}

// state of a cluster.
type state string

const (
	stateReady     state = "Ready"
	stateNotReady  state = "Not ready"
	stateStale     state = "Stale"
	stateSuspended state = "Suspended"
)

// Class is what the style sheet calls it.
func (s state) Class() string { return strings.ToLower(strings.ReplaceAll(string(s), " ", "")) }

// Sign is there for those who do not see the colour.
func (s state) Sign() string {
	switch s {
	case stateReady:
		return "✔"
	case stateStale:
		return "?"
	case stateSuspended:
		return "‖"
	}
	return "✖"
}

// states in the order in which a person looks for them.
func states() []state { return []state{stateNotReady, stateStale, stateSuspended, stateReady} }

// cluster is one below the tier, at any depth.
type cluster struct {
	v1alpha1.TierRow
	state state
	// environment is that of the Child of this tier that it is, or is below.
	environment string
	// child of this tier that it is, or is below.
	child *v1alpha1.Child
}

func (c *cluster) below() bool { return strings.Contains(c.Path, ">") }

// clusters are all that have a row. unlisted is how many have none.
func clusters(f *Facts, now time.Time) (all []cluster, unlisted int) {
	children := f.Heartbeat.Dated(f.Children, now)
	for i := range children {
		child := &children[i]
		own := cluster{TierRow: report.Row(child), environment: child.Labels[EnvironmentLabel], child: child}
		rows := report.RowsBelow(child)
		if own.environment == "" && len(rows) > 0 {
			own.environment = child.Name // a tier of its own
		}
		own.state = stateOf(&own.TierRow)
		all = append(all, own)
		for _, row := range rows {
			row.Path = own.Path + ">" + row.Path
			all = append(all, cluster{TierRow: row, state: stateOf(&row), environment: own.environment, child: child})
		}
		if c := report.CountsBelow(child); c != nil {
			unlisted += max(0, int(c.Total)-len(rows))
		}
	}
	slices.SortStableFunc(all, func(a, b cluster) int { return strings.Compare(a.Path, b.Path) })
	return all, unlisted
}

func stateOf(row *v1alpha1.TierRow) state {
	switch {
	case row.Heard != nil, row.Reason == v1alpha1.ReasonStale:
		return stateStale
	case row.Ready:
		return stateReady
	case row.Suspended:
		return stateSuspended
	}
	return stateNotReady
}

// moment is a time with its age.
type moment struct {
	// Exact is for machines and empty if the time is unknown, Age for people.
	Exact, Age string
}

func momentOf(t metav1.Time, now time.Time) moment {
	if t.IsZero() {
		return moment{Age: "–"}
	}
	return moment{Exact: t.UTC().Format(time.RFC3339), Age: wording.Age(t, now)}
}

// until is a time that is to come, or has passed.
func until(t *metav1.Time, now time.Time) moment {
	switch {
	case t == nil || t.IsZero():
		return moment{Age: "not known"}
	case t.After(now):
		return moment{Exact: t.UTC().Format(time.RFC3339), Age: "in " + wording.Age(metav1.NewTime(now), t.Time)}
	}
	return moment{Exact: t.UTC().Format(time.RFC3339), Age: wording.Age(*t, now) + " ago"}
}

// Texts of others, bounded.
func name(s string) string     { return wording.Plain(s, maxName) }
func message(s string) string  { return wording.Plain(wording.Short(s), maxMessage) }
func revision(s string) string { return wording.Plain(wording.Short(s), maxRevision) }

// describe is a command about an object, of the program that everybody has; empty where its
// words would read otherwise than they are.
func describe(kind, namespace, name string) string {
	return exact("kubectl describe "+wording.Argument(kind)+" "+wording.Argument(name)+" -n "+wording.Argument(namespace), "")
}

// paging is a part of a list.
type paging struct {
	Page, Pages, Total, First, Last int
	// Previous and Next are links, empty where there is none.
	Previous, Next string
}

// part is one page of a list: items are those from first to last.
func part[T any](all []T, page, most int, link func(page int) string) ([]T, paging) {
	pages := max(1, (len(all)+most-1)/most)
	page = min(max(page, 1), pages)
	first := (page - 1) * most
	last := min(first+most, len(all))
	p := paging{Page: page, Pages: pages, Total: len(all), First: min(first+1, len(all)), Last: last}
	if page > 1 {
		p.Previous = link(page - 1)
	}
	if page < pages {
		p.Next = link(page + 1)
	}
	return all[first:last], p
}

// most are the names with the largest counts, in order of the names; others is what is left.
func mostOf(counts map[string]int, most int) (names []string, others int) {
	for n := range counts {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b)) })
	if len(names) > most {
		for _, n := range names[most:] {
			others += counts[n]
		}
		names = names[:most]
	}
	slices.Sort(names)
	return names, others
}
