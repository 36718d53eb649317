package kustomization

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/compose"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

const (
	// rolloutPoll is the pause between two looks at Clusters that are held although they
	// have a pin, or whose workers wait, where no event comes before.
	rolloutPoll = 15 * time.Second
	// mostNamed bounds the Clusters in a message, for each reason.
	mostNamed = 5
)

// composed is what became of the Clusters of a governed Kustomization in one reconcile.
type composed struct {
	// kept are entries of the inventory that are neither applied nor pruned.
	kept []inventory.Entry
	// held Clusters keep what is in place.
	held map[types.NamespacedName]hold
	// waiting says which workers wait for their control planes, late of which Clusters.
	waiting []string
	late    map[types.NamespacedName]bool
	// moved are the ids of what another owner took over.
	moved []string
	// beside are renderings of revisions that no Cluster has and that are looked at all the same, missing those of
	// them that are not there, each with the reason.
	beside  []*compose.Rendering
	missing map[string]string
	// facts that it was composed of.
	facts compose.Facts
}

// waits reports whether something is waited for that no event tells of.
func (c *composed) waits() bool {
	if c == nil {
		return false
	}
	for _, h := range c.held {
		if h.reason != v1alpha1.ReasonRolloutPending {
			return true
		}
	}
	return len(c.waiting) > 0
}

// pins finds out what Rollouts let the Clusters have, before it is decided whether there is
// anything to do.
func (r *Reconciler) pins(ctx context.Context, run *run) *end {
	var err error
	run.governed, err = r.govern(ctx, run.Obj)
	switch {
	case errors.Is(err, errClustersUnknown):
		return again(time.Second)
	case err != nil:
		return &end{err: err}
	}
	last := run.known.newest(sourceKey(run.Obj), run.inputs.Key())
	if isUnbuilt(run.Obj) { // else what a process before this one built is not fetched for nothing
		last = run.builtLast()
	}
	r.retains(run, last)
	if run.governed == nil {
		run.known.ungoverned()
		return nil
	}
	if run.Obj.Spec.KubeConfig != nil {
		return r.misconfigured(run, v1alpha1.ReasonInvalidSpec, errors.New("a Rollout moves this Kustomization, and spec.kubeConfig applies it to another cluster, "+
			"of whose Clusters this tier has no Children; delete the Rollout, or declare it in that cluster"))
	}
	if run.governed.past() && run.governed.cutOff {
		// What becomes of this reconcile says that no more.
		of := run.Obj.Status.LastAttemptedRevision
		status.RecordAttempt(&run.Obj.Status.History, status.Attempt{Digest: digest.Of(of).String(), Status: meta.ProgressingReason, At: run.start, Revision: of})
	}
	run.key += " " + run.governed.version()
	return nil
}

// compose replaces what the newest revision declares of each governed Cluster by what the
// revision declares that it may have.
func (r *Reconciler) compose(ctx context.Context, run *run) *end {
	if run.governed == nil || run.rendering == nil {
		return nil
	}
	f, held, err := r.facts(ctx, run.Obj, run.governed, revisions{snapshot: run.snapshot, rendering: run.rendering, inputs: run.inputs, known: run.known})
	if err != nil {
		return r.failed(ctx, run, meta.BuildFailedReason, mask.Error(err, run.sensitive()))
	}
	if err := r.own(&f, run.Obj); err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	run.governed.disown(&f, held)
	run.composed = &composed{held: held, late: map[types.NamespacedName]bool{}}
	if err := r.judgeVersions(ctx, run, &f); err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	for name := range held {
		f.Held[name] = true
	}
	composition := compose.Compose(f)
	if run.composed.moved, err = r.moved(ctx, run, composition.Former); err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	composition.Objects = slices.DeleteFunc(composition.Objects, func(u *unstructured.Unstructured) bool {
		return slices.Contains(run.composed.moved, inventory.Of(u).ID())
	})
	mark(composition, f, r.created(run, f))
	run.composed.kept, run.composed.facts = composition.Kept, f
	run.composed.beside, run.composed.missing = r.beside(ctx, run)
	as := *run.rendering
	as.Objects = composition.Objects
	if run.governed.holdsBack(run.snapshot.Revision) {
		as.Digest = digest.Of(as.Digest, run.inputs.Key(), run.governed.version()).String()
	}
	run.rendering = &as
	if out := run.leftOut(f.Waiting); len(out) > 0 && !(len(run.Obj.Status.History) > 0 && run.renderedBefore()) {
		// What is left out now is news once it is let go. Where all was applied before, as it was
		// before a restart that has no older revision yet, nothing is news.
		as.Digest = digest.Of(append([]string{as.Digest}, out...)...).String()
	}
	return nil
}

// leftOut is what a composition does not apply, besides what governed holds, which version
// identifies. Why does not count: another reason is no news.
func (run *run) leftOut(waiting map[string]bool) []string {
	var out []string
	for _, name := range slices.SortedFunc(maps.Keys(run.composed.held), byName) {
		if _, known := run.governed.held[name]; !known {
			out = append(out, "held", name.String())
		}
	}
	for _, id := range slices.Sorted(maps.Keys(waiting)) {
		out = append(out, "waiting", id)
	}
	for _, id := range run.composed.moved {
		out = append(out, "moved", id)
	}
	return out
}

// revisions is what the renderings of other revisions are made with.
type revisions struct {
	snapshot  *source.Snapshot
	rendering *render.Rendering
	inputs    render.Build
	// known keeps renderings; nil keeps none.
	known *progress
}

// facts renders what the Clusters may have, and returns the facts of the composition, but
// for the inventory. held are those that keep what is in place, and why.
func (r *Reconciler) facts(ctx context.Context, obj *kustomizev1.Kustomization, g *governed, of revisions) (f compose.Facts, held map[types.NamespacedName]hold, err error) {
	f = compose.Facts{
		Newest: compose.Read(of.snapshot.Revision, of.rendering.Objects, g.releases), Older: map[string]*compose.Rendering{},
		Pins: map[types.NamespacedName]compose.Pin{}, Held: map[types.NamespacedName]bool{}, Waiting: map[string]bool{}, Good: g.good,
	}
	held = maps.Clone(g.held)
	problems := map[string]hold{}
	for _, name := range slices.SortedFunc(maps.Keys(g.pins), byName) {
		pin := g.pins[name]
		if sameRevision(pin.Revision, of.snapshot.Revision) {
			pin.Revision = of.snapshot.Revision
		}
		f.Pins[name] = pin
		if pin.Revision == of.snapshot.Revision || f.Older[pin.Revision] != nil {
			continue
		}
		problem, tried := problems[pin.Revision]
		if !tried {
			if f.Older[pin.Revision], problem, err = r.older(ctx, obj, pin.Revision, f.Newest, g, of); err != nil {
				return f, held, err
			}
			problems[pin.Revision] = problem
		}
		if problem.reason != "" {
			delete(f.Older, pin.Revision)
			held[name] = problem
		}
	}
	of.known.keepOlder(f.Older)
	return f, held, nil
}

// disown lets go what is held of Clusters that the Kustomization has nothing of: a Rollout that selects them gives a pin
// only to who is declared, so that nobody would ever be done waiting for them. As long as not all renderings are known,
// each may be declared.
func (g *governed) disown(f *compose.Facts, held map[types.NamespacedName]hold) {
	ours := map[types.NamespacedName]bool{}
	for _, h := range held {
		if h.unrendered() {
			return
		}
	}
	for _, from := range append(slices.Collect(maps.Values(f.Older)), f.Newest) {
		for _, name := range from.Clusters() {
			ours[name] = true
		}
	}
	for _, name := range g.inPlace(f.Owned) {
		ours[name] = true
	}
	for name, h := range held {
		if h.reason == v1alpha1.ReasonRolloutPending && !ours[name] && g.unpinned[name] == "" {
			delete(held, name)
			delete(g.held, name)
		}
	}
}

// inPlace are the Clusters that an inventory has: those in it, and those that HelmReleases in it make.
func (g *governed) inPlace(owned []inventory.Entry) []types.NamespacedName {
	all := inventory.ClustersAmong(owned)
	for _, e := range owned {
		name := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
		switch made := g.releases.Made[name]; {
		case !compose.IsRelease(e.GroupKind()):
		case len(made) > 0:
			all = append(all, made...)
		case g.releases.Known[name]:
			all = append(all, name)
		}
	}
	return all
}

// own adds the inventory to the facts of a composition, and which of its kinds have no namespaces. Those that
// nobody knows keep what their entries say.
func (r *Reconciler) own(f *compose.Facts, obj *kustomizev1.Kustomization) (err error) {
	if f.Owned, err = entries(obj.Status.Inventory); err != nil {
		return err
	}
	f.Roots = map[schema.GroupKind]bool{}
	for _, e := range f.Owned {
		kind := e.GroupKind()
		if _, known := f.Roots[kind]; known || e.Namespace != "" {
			continue
		}
		mapping, err := r.Targets.Local.RESTMapper().RESTMapping(kind)
		if err != nil && !apimeta.IsNoMatchError(err) {
			return fmt.Errorf("cannot look up whether %s has a namespace: %w", kind, err)
		}
		f.Roots[kind] = err == nil && mapping.Scope.Name() == apimeta.RESTScopeNameRoot
	}
	return nil
}

// sameRevision reports whether two revisions are of one content: a commit is the same by
// whatever branch or tag.
func sameRevision(a, b string) bool {
	if a == b {
		return true
	}
	_, of, ok := strings.Cut(a, "@")
	_, than, too := strings.Cut(b, "@")
	return ok && too && of == than
}

// older is what another revision declares, or why that cannot be told for now.
func (r *Reconciler) older(
	ctx context.Context, obj *kustomizev1.Kustomization, revision string, newest *compose.Rendering, g *governed, of revisions,
) (*compose.Rendering, hold, error) {
	from := sourceKey(obj)
	snapshot := r.Sources.Snapshots.At(from, revision)
	if snapshot == nil {
		return nil, r.missing(from, revision), nil
	}
	if same, err := of.rendering.Reads.Unchanged(snapshot); err != nil {
		return nil, hold{}, err
	} else if same {
		return newest.As(revision), hold{}, nil
	}
	key := of.inputs.Key()
	objects := of.known.olderObjects(key, revision, snapshot)
	if objects == nil {
		inputs := of.inputs
		inputs.NoDigest = true
		rendering, err := render.Render(ctx, snapshot, inputs)
		var lasting *render.Error
		switch {
		case errors.As(err, &lasting), errors.Is(err, render.ErrPathNotFound):
			return nil, hold{meta.BuildFailedReason, fmt.Sprintf("revision %s cannot be built: %s", revision, mask.Error(err, inputs.Sensitive))}, nil
		case err != nil:
			return nil, hold{}, fmt.Errorf("cannot build revision %s: %w", revision, err)
		}
		of.known.rememberOlder(inputs, key, revision, rendering)
		objects = rendering.Objects
	}
	return compose.Read(revision, objects, g.releases), hold{}, nil
}

// missing is why a revision is not there.
func (r *Reconciler) missing(key source.Key, revision string) hold {
	what := "its Rollout lets it have revision " + revision + ", "
	if err := r.Sources.Snapshots.Failure(key, revision); err != nil {
		if r.Sources.Snapshots.Silent(key) {
			return hold{v1alpha1.ReasonSourceNotReady, what + err.Error()} // nobody knows whether it is gone
		}
		return hold{v1alpha1.ReasonRevisionMissing, what + err.Error()}
	}
	if !r.Sources.Fetched[key.Kind] {
		return hold{v1alpha1.ReasonRevisionMissing, what + "and another process fetches " + key.Kind + "s; let the one that reconciles Kustomizations do it (--controllers)"}
	}
	return hold{v1alpha1.ReasonSourceNotReady, what + "which has not been fetched yet"}
}

// created are Clusters that are declared and do not exist yet: the newest revision makes them. Whether a Rollout
// governs them is not known before they are there.
func (r *Reconciler) created(run *run, f compose.Facts) []types.NamespacedName {
	if r.Clusters == nil {
		return nil
	}
	return slices.DeleteFunc(f.Newest.Clusters(), func(name types.NamespacedName) bool {
		return name.Namespace != run.Obj.Namespace || run.governed.releases.Known[name]
	})
}

// mark writes the revision that it may have on each pinned Cluster, on each that is created, and on each HelmRelease
// that makes one.
func mark(composition compose.Composition, f compose.Facts, created []types.NamespacedName) {
	revisions := map[string]string{}
	for _, name := range slices.AppendSeq(created, maps.Keys(f.Pins)) {
		from, _ := f.At(name)
		if from == nil {
			continue
		}
		for _, u := range from.Of(name) {
			id, kind := inventory.Of(u).ID(), u.GroupVersionKind().GroupKind()
			if !clusterapi.IsCluster(kind) && !compose.IsRelease(kind) {
				continue
			}
			if before, shared := revisions[id]; shared && before != from.Revision {
				revisions[id] = "" // of several Clusters: there is no one revision
				continue
			}
			revisions[id] = from.Revision
		}
	}
	for _, u := range composition.Objects {
		if revision := revisions[inventory.Of(u).ID()]; revision != "" {
			annotations := maps.Clone(u.GetAnnotations())
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[v1alpha1.RolloutRevisionAnnotation] = revision
			u.SetAnnotations(annotations)
		}
	}
}

// tellRollout records which Clusters keep what is in place, and why. It ends the reconcile
// if a person has to see to it: the rest has been applied.
func (r *Reconciler) tellRollout(run *run) *end {
	obj, c := run.Obj, run.composed
	if c == nil || len(c.held)+len(c.waiting) == 0 {
		status.RemoveCondition(obj, v1alpha1.RolloutPendingCondition)
		return nil
	}
	reason, message := c.says()
	was := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.RolloutPendingCondition)
	isNew := was == nil || was.Message != message
	status.SetCondition(obj, v1alpha1.RolloutPendingCondition, metav1.ConditionTrue, reason, "%s", message)
	switch reason {
	case v1alpha1.ReasonRolloutPending, v1alpha1.ReasonSourceNotReady, v1alpha1.ReasonRollingOut:
		return nil // it passes
	}
	status.MarkFailing(obj, reason, errors.New(message))
	if isNew {
		r.event(run, corev1.EventTypeWarning, nil, "%s", message)
	}
	return again(min(obj.GetRetryInterval(), rolloutPoll))
}

// reasons of holds, those first that a person has to see to.
func holdReasons() []string {
	return []string{
		v1alpha1.ReasonRolloutConflict, v1alpha1.ReasonUnsupportedVersionStep, meta.BuildFailedReason, v1alpha1.ReasonRevisionMissing,
		v1alpha1.ReasonControlPlaneUnreadable, v1alpha1.ReasonSourceNotReady, v1alpha1.ReasonRolloutPending,
	}
}

// says is the first reason, and which Clusters are held for which.
func (c *composed) says() (reason, message string) {
	var parts []string
	for _, of := range holdReasons() {
		var names []types.NamespacedName
		for name, h := range c.held {
			if h.reason == of {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			continue
		}
		if reason == "" {
			reason = of
		}
		slices.SortFunc(names, byName)
		why := map[string][]string{}
		var order []string
		for _, name := range names {
			text := c.held[name].why
			if why[text] == nil {
				order = append(order, text)
			}
			why[text] = append(why[text], name.Name)
		}
		for _, text := range order[:min(len(order), mostNamed)] {
			parts = append(parts, "Cluster "+some(why[text])+" keeps what is in place: "+text)
		}
		if more := len(order) - mostNamed; more > 0 {
			parts = append(parts, fmt.Sprintf("and %d more", more))
		}
	}
	if len(c.waiting) > 0 {
		if reason == "" {
			reason = v1alpha1.ReasonRollingOut
		}
		parts = append(parts, some(c.waiting))
	}
	return reason, strings.Join(parts, "; ")
}

// some names the first of a list.
func some(names []string) string {
	text := strings.Join(names[:min(len(names), mostNamed)], ", ")
	if more := len(names) - mostNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
