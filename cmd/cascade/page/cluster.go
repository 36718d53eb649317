package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// clusterPage is about one cluster.
type clusterPage struct {
	clusterView
	// Found is false if there is none of that path.
	Found bool
	Path  string
	// Below says that it is below a child: only its row is known here.
	Below     bool
	Parents   []linkView
	Commands  []string
	Holds     []heldView
	Facts     []pair
	Condition []conditionView
	Layers    []layerView
	// MoreLayers and the like are left out.
	MoreLayers      int
	Report          *reportView
	Credentials     []credentialView
	MoreCredentials int
	Pins            []pinView
	Clusters        []clusterView
	MoreClusters    int
	Events          []eventView
	MoreEvents      int
}

type pair struct{ Name, Value string }

type conditionView struct {
	Type, Status, Reason, Message string
	Since                         moment
}

type layerView struct {
	Name, Revision, Tried string
	State                 state
	Reason, Message       string
	Since                 moment
	Objects               int32
	Why                   linkView
}

type reportView struct {
	State                            state
	Reason, Message, Agent, Revision string
	Since                            moment
	Heard                            *moment
	Objects                          int32
	Failing                          []failureView
	Total, Ready                     int32
	// Faults of its credentials and backups, and of those below, empty for none.
	Faults, FaultsBelow string
}

type credentialView struct {
	Name             string
	Expires, Renewal moment
	State            string
	Bad              bool
}

type pinView struct {
	Name, Revision, Result, Reason, Behind string
	Since                                  moment
}

type eventView struct {
	Type, Reason, Message string
	Count                 int32
	Last                  moment
}

func clusterPageOf(f Facts, q Query, now time.Time) *clusterPage {
	v := &clusterPage{Path: pathText(q.Cluster)}
	all, _ := clusters(&f, now)
	at := slices.IndexFunc(all, func(c cluster) bool { return c.Path == q.Cluster })
	if at < 0 {
		return v
	}
	c := &all[at]
	v.Found, v.Below, v.clusterView = true, c.below(), clusterOf(c, q, now)
	for i := range c.Path {
		if c.Path[i] == '>' {
			up := c.Path[:i]
			v.Parents = append(v.Parents, linkView{pathText(up), link(Cluster, Query{Namespace: q.Namespace, Cluster: up})})
		}
	}
	child := c.child
	v.Facts = pairs(
		"Environment", c.environment, "Owner", c.Owner, "Provider", c.Provider, "Region", c.Region, "Kubernetes", c.Version, "Revision", revision(c.Revision))
	for i := range all {
		if below := &all[i]; strings.HasPrefix(below.Path, c.Path+">") {
			if len(v.Clusters) == maxRows {
				v.MoreClusters++
				continue
			}
			v.Clusters = append(v.Clusters, clusterOf(below, q, now))
		}
	}
	v.Commands = []string{describe("child", child.Namespace, child.Name)}
	if c.below() {
		return v
	}
	v.Holds = append(v.Holds, heldOf(Facts{Children: []v1alpha1.Child{*child}}, Query{Namespace: q.Namespace}, now).Items...)
	v.ofChild(child, f, q, now)
	return v
}

// ofChild is what this tier knows of its own child.
func (v *clusterPage) ofChild(child *v1alpha1.Child, f Facts, q Query, now time.Time) {
	if child.Spec.ClusterRef != nil {
		v.Commands = append(v.Commands, describe("cluster.cluster.x-k8s.io", child.Namespace, child.Spec.ClusterRef.Name))
	}
	if id := child.Status.Identity; id != nil {
		v.Facts = append(v.Facts, pairs("UID of kube-system", id.KubeSystemUID, "UID of the Cluster", id.ClusterUID)...)
	}
	for i := range child.Status.Conditions[:min(len(child.Status.Conditions), maxRows/4)] {
		c := &child.Status.Conditions[i]
		v.Condition = append(v.Condition, conditionView{name(c.Type), name(string(c.Status)), name(c.Reason), message(c.Message), momentOf(c.LastTransitionTime, now)})
	}
	layers := slices.Clone(child.Status.Layers)
	slices.SortStableFunc(layers, func(a, b v1alpha1.ChildLayer) int { return cmp.Compare(rank(a.Ready), rank(b.Ready)) })
	v.MoreLayers = max(0, len(layers)-maxRows/2)
	for i := range layers[:len(layers)-v.MoreLayers] {
		l := layerOf(&layers[i], now)
		if l.State != stateReady {
			l.Why = linkView{"layer " + l.Name, link(Why, Query{Namespace: q.Namespace, Cluster: child.Namespace + "/" + child.Name})}
		}
		v.Layers = append(v.Layers, l)
	}
	if r := child.Status.Report; r != nil {
		v.Report = reportOf(child, r, q, now)
	}
	v.MoreCredentials = max(0, len(child.Status.Credentials)-maxRows/2)
	for i := range child.Status.Credentials[:len(child.Status.Credentials)-v.MoreCredentials] {
		v.Credentials = append(v.Credentials, credentialOf(&child.Status.Credentials[i], now))
	}
	for i := range child.Status.Rollouts[:min(len(child.Status.Rollouts), maxRows/2)] {
		v.Pins = append(v.Pins, pinOf(child, &child.Status.Rollouts[i], f.Rollouts, now))
	}
	v.events(f.Events, now)
}

func rank(ready bool) int {
	if ready {
		return 1
	}
	return 0
}

func pairs(words ...string) []pair {
	var all []pair
	for i := 0; i+1 < len(words); i += 2 {
		if words[i+1] != "" {
			all = append(all, pair{words[i], name(words[i+1])})
		}
	}
	return all
}

func layerOf(l *v1alpha1.ChildLayer, now time.Time) layerView {
	v := layerView{
		Name: name(l.Name), Revision: revision(l.Revision), State: stateNotReady, Reason: name(l.Reason), Message: message(l.Message),
		Since: momentOf(l.Since, now), Objects: l.Objects,
	}
	switch {
	case l.Suspended:
		v.State = stateSuspended
	case l.Ready:
		v.State = stateReady
	}
	if l.LastAttemptedRevision != "" && l.LastAttemptedRevision != l.Revision {
		v.Tried = revision(l.LastAttemptedRevision)
	}
	return v
}

func reportOf(child *v1alpha1.Child, r *v1alpha1.Report, q Query, now time.Time) *reportView {
	v := &reportView{
		State: stateNotReady, Reason: name(r.Reason), Message: message(r.Message), Agent: name(r.Agent), Revision: revision(r.Revision),
		Since: momentOf(r.Since, now), Objects: r.Objects, Faults: r.Faults.String(),
	}
	if r.Ready {
		v.State = stateReady
	}
	if v.Heard = staleReport(child, now); v.Heard != nil {
		v.State = stateStale
	}
	for i := range r.Failing[:min(len(r.Failing), maxRows/10)] {
		f := failureOf(r.Failing[i], child.Namespace+"/"+child.Name, q)
		v.Failing = append(v.Failing, f)
	}
	if r.Children != nil {
		v.Total, v.Ready, v.FaultsBelow = r.Children.Total, r.Children.Ready, r.Children.Faults.String()
	}
	return v
}

func credentialOf(c *v1alpha1.ChildCredential, now time.Time) credentialView {
	v := credentialView{Name: name(c.Name), Expires: until(c.ExpiresAt, now), Renewal: until(c.RenewAt, now), State: "No expiry known"}
	switch {
	case c.ExpiresAt == nil:
	case !c.ExpiresAt.After(now):
		v.State, v.Bad = "Lapsed", true
	case c.RenewAt != nil && !c.RenewAt.After(now):
		v.State, v.Bad = "To be renewed", true
	default:
		v.State = "Valid"
	}
	return v
}

func pinOf(child *v1alpha1.Child, at *v1alpha1.ChildRollout, rollouts []v1alpha1.Rollout, now time.Time) pinView {
	v := pinView{Name: name(at.Name), Revision: revision(at.Revision), Result: name(string(at.Result)), Reason: name(at.Reason), Since: momentOf(at.Since, now)}
	for i := range rollouts {
		r := &rollouts[i]
		if r.Namespace != child.Namespace || r.Name != at.Name {
			continue
		}
		if wanted := rollout.Wanted(r); wanted != nil && *wanted != at.RolloutRevision {
			v.Behind = revision(wanted.Revision)
		}
	}
	return v
}

func (v *clusterPage) events(events []corev1.Event, now time.Time) {
	last := func(e *corev1.Event) metav1.Time {
		for _, t := range []metav1.Time{e.LastTimestamp, metav1.NewTime(e.EventTime.Time), e.FirstTimestamp} {
			if !t.IsZero() {
				return t
			}
		}
		return e.CreationTimestamp
	}
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return last(&b).Compare(last(&a).Time) })
	v.MoreEvents = max(0, len(events)-maxRows/2)
	for i := range events[:len(events)-v.MoreEvents] {
		e := &events[i]
		v.Events = append(v.Events, eventView{name(e.Type), name(e.Reason), message(e.Message), max(1, e.Count), momentOf(last(e), now)})
	}
}

// rollouts is where revisions are on their way.
type rollouts struct {
	Items  []rolloutView
	Paging paging
}

type rolloutView struct {
	ID, Name, Namespace    string
	State                  state
	Phase, Reason, Message string
	Revision, Image        string
	Newest, LastGood       string
	Since                  moment
	// WaitsFor is told where no command goes on.
	WaitsFor   string
	Commands   []string
	Waves      []waveView
	All        countsView
	Unassigned int32
	Failing    []failureView
	History    []historyView
	Why        linkView
	Approvals  []approvalView
}

type waveView struct {
	Name, State string
	Current     bool
	Counts      countsView
}

// countsView has the bar of a wave.
type countsView struct {
	v1alpha1.RolloutCounts
	Bar []barView
}

// barView is a part of a bar, in thousandths of its width.
type barView struct {
	Class    string
	X, Width int
}

type historyView struct {
	Number   int64
	Revision string
	Phase    string
	Failed   int32
	Began    moment
	Took     string
}

type approvalView struct {
	Wave, By string
	At       moment
}

func rolloutsOf(f Facts, q Query, now time.Time) *rollouts {
	all := slices.Clone(f.Rollouts)
	order := func(r *v1alpha1.Rollout) int {
		switch {
		case r.Status.Run != nil && r.Status.Run.Phase == v1alpha1.RolloutHalted:
			return 0
		case rollout.Pending(r):
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b v1alpha1.Rollout) int {
		return cmp.Or(cmp.Compare(order(&a), order(&b)), strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	v := &rollouts{}
	shown, p := part(all, q.Page, maxRows/20, q.at(Rollouts))
	v.Paging = p
	for i := range shown {
		v.Items = append(v.Items, rolloutOf(i+1, &shown[i], q, now))
	}
	return v
}

func rolloutOf(number int, r *v1alpha1.Rollout, q Query, now time.Time) rolloutView {
	v := rolloutView{
		ID: fmt.Sprint("rollout-", number), Name: name(r.Name), Namespace: name(r.Namespace), State: stateNotReady, Phase: "no run yet",
		All: countsOf(r.Status.Clusters), Unassigned: r.Status.Unassigned,
	}
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == v1alpha1.ReadyCondition {
			v.Reason, v.Message = name(c.Reason), message(c.Message)
			if c.Status == metav1.ConditionTrue {
				v.State = stateReady
			}
		}
	}
	if r.Spec.Suspend {
		v.State = stateSuspended
	}
	run := r.Status.Run
	if run != nil {
		v.Phase, v.Revision, v.Image, v.Since = name(string(run.Phase)), revision(run.Revision), name(run.Image), momentOf(run.Since, now)
		for _, a := range run.Approvals[:min(len(run.Approvals), maxRows/4)] {
			v.Approvals = append(v.Approvals, approvalView{name(a.Wave), cmp.Or(name(a.By), "somebody"), momentOf(a.At, now)})
		}
	}
	if next := r.Status.Candidate; next != nil && (run == nil || *next != run.RolloutRevision) {
		v.Newest = revision(next.Revision)
	}
	if good := r.Status.LastGood; good != nil {
		v.LastGood = revision(good.Revision)
	}
	if v.State != stateReady {
		v.Why = whyObject("", "Rollout/"+r.Namespace+"/"+r.Name, q)
	}
	commands := []string{held.StatusCommand(r)}
	if items := held.Rollouts([]v1alpha1.Rollout{*r}); len(items) > 0 {
		commands = items[0].Commands
	} else {
		v.WaitsFor = message(held.WaitsFor(r))
	}
	for _, command := range commands {
		v.Commands = append(v.Commands, exact(command, ""))
	}
	for i := range r.Status.Waves {
		w := &r.Status.Waves[i]
		state := held.WaveState(r, i)
		v.Waves = append(v.Waves, waveView{
			Name: name(w.Name), State: state, Counts: countsOf(w.RolloutCounts),
			Current: run != nil && rollout.Active(run) && i == int(run.Wave),
		})
	}
	for i := range r.Status.Failing[:min(len(r.Status.Failing), maxRows/5)] {
		f := r.Status.Failing[i]
		v.Failing = append(v.Failing, failureView{Name: name(f.Name), Reason: name(f.Reason), Message: message(f.Message), Command: describe("child", r.Namespace, f.Name), Why: whyObject("", "Child/"+r.Namespace+"/"+f.Name, q)})
	}
	for i := range r.Status.History[:min(len(r.Status.History), maxRows/10)] {
		h := &r.Status.History[i]
		v.History = append(v.History, historyView{h.Number, revision(h.Revision), name(string(h.Phase)), h.Failed, momentOf(h.Began, now), momentOf(h.Began, h.Ended.Time).Age})
	}
	return v
}

func countsOf(c v1alpha1.RolloutCounts) countsView {
	v := countsView{RolloutCounts: c}
	if c.Total <= 0 {
		return v
	}
	x := 0
	for _, p := range []struct {
		class string
		count int32
	}{{"updated", c.Updated}, {"updating", c.Updating}, {"failed", c.Failed}, {"deferred", c.Deferred}, {"pending", c.Pending}} {
		if p.count <= 0 {
			continue
		}
		width := min(int(int64(p.count)*1000/int64(c.Total)), 1000-x)
		width = max(width, min(6, 1000-x)) // what is there is seen
		v.Bar = append(v.Bar, barView{p.class, x, width})
		x += width
	}
	return v
}
