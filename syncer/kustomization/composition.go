package kustomization

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/compose"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// lookTimeout bounds a look at a cluster. runningHolds is how long the version that it showed
// is taken to hold, and outstandingHolds how long something that it waits for.
const (
	lookTimeout      = 10 * time.Second
	runningHolds     = 15 * time.Second
	outstandingHolds = 5 * time.Second
)

// Composition is what a governed Kustomization declares of Clusters, and what of it is in
// place, for who decides which revisions these may have. It is as of the last reconcile of
// this process.
type Composition struct {
	reconciler *Reconciler
	progress   *progress
	state      *composition
	idle       string
}

// composition is what is known of one Kustomization. It is replaced, and not changed.
type composition struct {
	source source.Key
	paths  []string
	// declares are the Clusters that any rendering or the inventory has, and those that may have a revision which was not
	// rendered.
	declares map[types.NamespacedName]bool
	// newest is the revision that is composed with what Clusters may have.
	newest string
	// versions of Kubernetes that renderings declare of their Clusters, by revision, empty of one that tells none; of the
	// last good one, and of what a run brings, as long as it is that.
	versions map[string]map[types.NamespacedName]rollout.Versions
	// missing are revisions of which that is not known, each with the reason, and inputs what all was built with.
	missing map[string]string
	inputs  string
	// applied is the revision that all of a Cluster was applied at last.
	applied map[types.NamespacedName]string
	// at is the revision that each Cluster is composed at, and came since when, if nothing was composed for a while before,
	// or this process did not find it in place at first.
	at   map[types.NamespacedName]string
	came map[types.NamespacedName]time.Time
	// unpinned Clusters have what was applied past their Rollout, with its revision.
	unpinned map[types.NamespacedName]string
	// unapplied Clusters have objects that could not be applied, or wait for a person, with their names.
	unapplied map[types.NamespacedName][]string
	// untold Clusters waited for their first revision while all else was applied, and nothing says what they have.
	untold map[types.NamespacedName]bool
	// unread Clusters keep what is in place, each for the reason, as their control planes cannot be read.
	unread map[types.NamespacedName]string
	// releases are the HelmReleases that make a Cluster, at the revision that it may have.
	releases map[types.NamespacedName][]types.NamespacedName
}

// asked is a question for the version of Kubernetes that a cluster has, for the sake of a
// revision. For another revision it is asked anew: a control plane may have come to another
// version since, and a revision that is refused by mistake halts its run.
type asked struct {
	cluster  types.NamespacedName
	revision string
}

// running is what a cluster had of Kubernetes at a time.
type running struct {
	is rollout.Running
	at time.Time
}

// outstanding is what a cluster waited for, or why it would wait in vain. look says of what
// that was found, at when.
type outstanding struct {
	why string
	// held is the reason where a release does not take what was applied for no fault of that, or refuses it.
	held string
	at   time.Time
}

// look is at the releases that make a cluster, or at the cluster itself.
type look struct {
	cluster  types.NamespacedName
	releases bool
}

// Composed is what a Kustomization declares of Clusters; nil while no Rollout governs it, or
// until it was built.
func (r *Reconciler) Composed(name types.NamespacedName) *Composition {
	p := r.known.sofar(name)
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.composition == nil {
		return nil
	}
	return &Composition{reconciler: r, progress: p, state: p.composition, idle: p.idle}
}

// OnComposed registers a function that is called, without locks held, when something of a
// Composition changed. It must not block.
func (r *Reconciler) OnComposed(f func(types.NamespacedName)) {
	r.known.mu.Lock()
	defer r.known.mu.Unlock()
	r.known.onComposed = append(r.known.onComposed, f)
}

// Source of the Kustomization.
func (c *Composition) Source() source.Key { return c.state.source }

// Paths of the source that are read.
func (c *Composition) Paths() []string { return c.state.paths }

// Declares reports whether the Kustomization declares a Cluster, at whichever revision.
func (c *Composition) Declares(cluster types.NamespacedName) bool { return c.state.declares[cluster] }

// Applied is the revision that all of a Cluster was applied at last; empty if that is not
// known.
func (c *Composition) Applied(cluster types.NamespacedName) string { return c.state.applied[cluster] }

// Untold reports whether nobody knows what a Cluster has: it waited for its first revision while all else was
// applied, and nothing says what it was made from. One that was created meanwhile is told of by the next run.
func (c *Composition) Untold(cluster types.NamespacedName) bool { return c.state.untold[cluster] }

// Idle is why nothing is applied of what Clusters may have, as where neither the newest revision nor one that stands in for it
// can be built, a dependency is not ready, or the Kustomization is suspended; empty if it is.
func (c *Composition) Idle() string { return c.idle }

// Reached reports whether a Cluster is composed at a revision, and since when if nothing was composed for a while before
// that.
func (c *Composition) Reached(cluster types.NamespacedName, revision string) (is bool, since time.Time) {
	if is = c.state.at[cluster] == revision; is {
		since = c.state.came[cluster]
	}
	return is, since
}

// idles keeps why a run came to no composition, and tells who listens if that is news.
func (r *Reconciler) idles(run *run) {
	why := ""
	ready := apimeta.FindStatusCondition(run.Obj.Status.Conditions, meta.ReadyCondition)
	switch {
	case run.composes:
	case run.Obj.Spec.Suspend:
		why = "it is suspended"
	case ready != nil && ready.Status != metav1.ConditionTrue:
		why = ready.Reason + ": " + ready.Message
	default:
		why = "it was not reconciled to the end"
	}
	if run.known.idles(why) {
		r.known.composed(run.name())
	}
}

// idles keeps why nothing is composed, where something was before, and reports whether that is news.
func (p *progress) idles(why string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.composition == nil || p.idle == why {
		return false
	}
	p.idle = why
	return true
}

// Unapplied is why not all of a Cluster is applied as it is declared, as a clause for people; empty if it is, or if that
// is not known.
func (c *Composition) Unapplied(cluster types.NamespacedName) string {
	if names := c.state.unapplied[cluster]; len(names) > 0 {
		return "the Kustomization could not apply " + some(names) + ", see its status"
	}
	return ""
}

// Unread is why a Cluster keeps what is in place where its control plane cannot be read, as while its provider is down, as a
// clause for people; empty if nothing was to be read, or it was.
func (c *Composition) Unread(cluster types.NamespacedName) string {
	if why := c.state.unread[cluster]; why != "" {
		return "the Kustomization keeps what is in place: " + why
	}
	return ""
}

// Unpinned reports whether that was applied past the Cluster's pin, as by a version that knows no Rollouts.
func (c *Composition) Unpinned(cluster types.NamespacedName) bool {
	return c.state.unpinned[cluster] != ""
}

// Built reports whether it is known what a revision declares: the newest one, one that a
// Cluster may have, or the last good one.
func (c *Composition) Built(revision string) bool {
	_, built := c.state.versions[revision]
	return built
}

// Awaited reports whether a revision is being fetched, so that it will be known in a moment what it declares.
func (c *Composition) Awaited(revision string) bool {
	return c.state.missing[revision] == v1alpha1.ReasonSourceNotReady
}

// Lacks reports whether a revision is known not to have a Cluster that the newest one has.
func (c *Composition) Lacks(cluster types.NamespacedName, revision string) bool {
	at, built := c.state.versions[revision]
	_, has := at[cluster]
	_, newest := c.state.versions[c.state.newest][cluster]
	return built && !has && newest
}

// Removes reports whether a revision is known not to have a Cluster that the newest one does not have either: it takes it
// away, where another one has it yet, or the inventory.
func (c *Composition) Removes(cluster types.NamespacedName, revision string) bool {
	at, built := c.state.versions[revision]
	_, has := at[cluster]
	_, newest := c.state.versions[c.state.newest][cluster]
	return built && !has && !newest
}

// Refused is why a Cluster cannot have what a revision declares of it; nil if it can, or if
// that is not known.
func (c *Composition) Refused(ctx context.Context, cluster types.NamespacedName, revision string) error {
	declared := c.state.versions[revision][cluster]
	if declared.ControlPlane == "" {
		return nil
	}
	is, err := c.running(ctx, asked{cluster, revision})
	if err != nil {
		return nil
	}
	return ofCluster(is.Step(declared), cluster)
}

// running is what a cluster has of Kubernetes now, or had a moment ago.
func (c *Composition) running(ctx context.Context, of asked) (rollout.Running, error) {
	now := c.reconciler.Now()
	c.progress.mu.Lock()
	known, ok := c.progress.running[of]
	c.progress.mu.Unlock()
	if ok && now.Sub(known.at) < runningHolds {
		return known.is, nil
	}
	there, controlPlane, err := c.reconciler.controlPlaneOf(ctx, of.cluster, map[schema.GroupKind]error{})
	if err != nil {
		return rollout.Running{}, err
	}
	is := rollout.RunningOf(there, controlPlane)
	c.progress.mu.Lock()
	defer c.progress.mu.Unlock()
	if c.progress.running == nil {
		c.progress.running = map[asked]running{}
	}
	c.progress.running[of] = running{is: is, at: now}
	return is, nil
}

// noteComposition keeps what a reconcile found out about Clusters. complete: all that was
// composed has been applied. Otherwise each Cluster has its revision of which all was: what is wrong with others says
// nothing of it.
func (r *Reconciler) noteComposition(run *run, complete bool) {
	if run.composed == nil {
		return
	}
	run.composes = true
	f := run.composed.facts
	next := composition{
		at: map[types.NamespacedName]string{}, came: map[types.NamespacedName]time.Time{},
		missing: run.composed.missing, inputs: run.inputs.Key(), newest: f.Newest.Revision, source: sourceKey(run.Obj), paths: pathsOf(run.Obj.Spec.Path, run.rendering.Reads.Paths()),
		declares: map[types.NamespacedName]bool{}, versions: map[string]map[types.NamespacedName]rollout.Versions{}, applied: map[types.NamespacedName]string{},
		unpinned: run.governed.unpinned, unapplied: map[types.NamespacedName][]string{}, untold: map[types.NamespacedName]bool{}, releases: map[types.NamespacedName][]types.NamespacedName{},
		unread: map[types.NamespacedName]string{},
	}
	for _, from := range append(slices.Collect(maps.Values(f.Older)), f.Newest) {
		next.versions[from.Revision] = versionsOf(from)
		for cluster := range next.versions[from.Revision] {
			next.declares[cluster] = true
		}
	}
	for _, from := range run.composed.beside {
		next.versions[from.Revision] = versionsOf(from)
	}
	for _, cluster := range run.governed.inPlace(f.Owned) {
		next.declares[cluster] = true
	}
	for cluster := range f.Pins {
		if run.composed.held[cluster].unrendered() {
			next.declares[cluster] = true // it was when it got that
		}
	}
	for cluster := range next.declares {
		if from, _ := f.At(cluster); from != nil {
			next.at[cluster], next.releases[cluster] = from.Revision, releasesOf(from.Of(cluster))
		}
		if held := run.composed.held[cluster]; held.reason == v1alpha1.ReasonControlPlaneUnreadable {
			next.unread[cluster] = held.why
		}
	}
	unapplied, changed, going := run.unapplied(complete), setOf(run.changed()), run.going(complete)
	run.known.mu.Lock()
	before := run.known.composition
	for cluster := range next.unread {
		// What reached it before that stands, as of one whose workers wait for its control plane.
		if revision := f.Pins[cluster].Revision; before != nil && before.at[cluster] == revision {
			next.at[cluster] = revision
		}
	}
	for cluster, revision := range next.at {
		switch {
		case before != nil && before.at[cluster] == revision:
			next.came[cluster] = before.came[cluster]
		case run.known.idle != "", before != nil && before.unread[cluster] != "":
			next.came[cluster] = r.Now()
		case before == nil || before.at[cluster] == "":
			// The process before this one may have composed nothing for a while: what is not found in place comes only now.
			from, _ := f.At(cluster)
			if objects := from.Of(cluster); amongst(objects, changed) != nil || amongst(objects, unapplied) != nil {
				next.came[cluster] = r.Now()
			}
		}
	}
	if before != nil {
		maps.Copy(next.applied, before.applied)
		// What many would go back to is judged also when no Cluster has it any more, and what they are about to get
		// while none has it yet. What was applied last of all tells which Clusters came since.
		for _, revision := range append(slices.Collect(maps.Values(f.Good)), append(run.governed.brought, run.governed.whole)...) {
			if is, known := before.versions[revision]; known && next.versions[revision] == nil {
				next.versions[revision] = is
			}
		}
	}
	for cluster := range next.declares {
		applied := ""
		switch reason := run.composed.held[cluster].reason; {
		case reason == v1alpha1.ReasonRolloutPending, reason == v1alpha1.ReasonRolloutConflict:
			// Nothing of it was touched: it has what a Rollout let it have last, or what was applied before one came.
			mark, _ := r.markOf(cluster, run.governed)
			had, awaited := cmp.Or(next.applied[cluster], run.governed.whole), false
			if newest := f.Newest.Of(cluster); amongst(newest, setOf(f.Owned)) != nil {
				switch c := (&Composition{state: &next}); {
				case c.Lacks(cluster, had): // a HelmRelease, which was not known to make it, came after that
					had = f.Newest.Revision
				case c.Awaited(had) && len(releasesOf(newest)) > 0: // which is not known before that revision is
					had, awaited = "", true
				}
			}
			applied = cmp.Or(run.governed.unpinned[cluster], mark, had)
			next.untold[cluster] = complete && applied == "" && !awaited
		default:
			from, _ := f.At(cluster)
			if applied = run.composed.appliedAt(cluster); complete && applied != "" || from == nil {
				break
			}
			objects := from.Of(cluster)
			next.unapplied[cluster] = amongst(objects, unapplied)
			for _, of := range append(slices.Collect(maps.Values(f.Older)), f.Newest) {
				next.unapplied[cluster] = append(next.unapplied[cluster], amongst(of.Of(cluster), going)...)
			}
			if len(objects) == 0 || next.unapplied[cluster] != nil {
				applied = ""
			}
			if applied == "" && next.applied[cluster] != from.Revision && amongst(objects, changed) != nil {
				delete(next.applied, cluster) // a part of it is at another revision by now
			}
		}
		if applied != "" {
			next.applied[cluster] = applied
		}
	}
	maps.DeleteFunc(next.applied, func(cluster types.NamespacedName, _ string) bool { return !next.declares[cluster] })
	maps.DeleteFunc(run.known.withheld, func(cluster types.NamespacedName, _ time.Time) bool { return !next.declares[cluster] })
	maps.DeleteFunc(run.known.running, func(of asked, _ running) bool { return next.versions[of.revision] == nil })
	run.known.outstanding = nil // something was applied since
	run.known.composition = &next
	run.known.mu.Unlock()
	r.known.composed(run.name())
}

// versionsOf are the versions of Kubernetes that a rendering declares of its Clusters.
func versionsOf(from *compose.Rendering) map[types.NamespacedName]rollout.Versions {
	versions := map[types.NamespacedName]rollout.Versions{}
	for _, cluster := range from.Clusters() {
		of := rollout.DeclaredVersions(cluster, from.Of(cluster))
		of.Workers = nil // which nobody asks a composition for
		versions[cluster] = of
	}
	return versions
}

// unapplied are objects of the composition that are not in place.
func (run *run) unapplied(complete bool) map[inventory.Entry]bool {
	if complete {
		return nil
	}
	left := setOf(inventory.OfAll(run.rendering.Objects))
	for _, e := range run.touched(ssa.CreatedAction, ssa.ConfiguredAction, ssa.UnchangedAction, ssa.SkippedAction) {
		delete(left, anyVersion(e))
	}
	return left
}

// going are objects of the inventory that are in nothing which is applied, and are not deleted yet: nothing is while not all
// else is in place.
func (run *run) going(complete bool) map[inventory.Entry]bool {
	if complete {
		return nil
	}
	left := setOf(run.composed.facts.Owned)
	for _, e := range append(inventory.OfAll(run.rendering.Objects), run.composed.kept...) {
		delete(left, anyVersion(e))
	}
	maps.DeleteFunc(left, func(e inventory.Entry, _ bool) bool { return slices.Contains(run.composed.moved, e.ID()) })
	return left
}

func setOf(entries []inventory.Entry) map[inventory.Entry]bool {
	set := make(map[inventory.Entry]bool, len(entries))
	for _, e := range entries {
		set[anyVersion(e)] = true
	}
	return set
}

// amongst names those of objects that a set of what was sent has. What has no namespace was sent without one.
func amongst(objects []*unstructured.Unstructured, sent map[inventory.Entry]bool) []string {
	var names []string
	for _, u := range objects {
		e := anyVersion(inventory.Of(u))
		root := e
		if root.Namespace = ""; sent[e] || sent[root] {
			names = append(names, e.Kind+" "+e.Name)
		}
	}
	return names
}

// appliedAt is the revision at which all of a Cluster is in place after its composition was
// applied; empty if that is what it was before.
func (c *composed) appliedAt(cluster types.NamespacedName) string {
	if _, held := c.held[cluster]; held {
		return ""
	}
	if c.late[cluster] {
		return ""
	}
	if pin, pinned := c.facts.Pins[cluster]; pinned {
		return pin.Revision
	}
	return c.facts.Newest.Revision
}

// pathsOf are the paths of a source that a build reads: its directory, and what it reads
// outside of that.
func pathsOf(dir string, reads []string) []string {
	dir = strings.Trim(strings.TrimPrefix(dir, "."), "/")
	paths := []string{dir}
	if dir == "" {
		return nil
	}
	for _, at := range reads {
		at = strings.Trim(at, "/")
		if at != "" && at != dir && !strings.HasPrefix(at, dir+"/") && !strings.HasPrefix(dir+"/", at+"/") {
			paths = append(paths, at)
		}
	}
	return paths
}

// composed tells who listens that something of a Composition changed.
func (k *known) composed(name types.NamespacedName) {
	k.mu.Lock()
	listeners := k.onComposed
	k.mu.Unlock()
	for _, f := range listeners {
		f(name)
	}
}
