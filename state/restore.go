package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/graph"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// manager is the field manager of what a restore makes.
const manager = "cascade-restore"

var (
	// ErrRefused: nothing was restored. The error is a *RefusedError.
	ErrRefused = errors.New("the state cannot be restored into this tier")
	// ErrForeign: the state has an object of a kind that no state has.
	ErrForeign = errors.New("it has an object that no state has, so it is not one that was saved of a tier")
	// ErrNotServed: a kind of the state is not served.
	ErrNotServed = errors.New("the tier does not serve a kind of the state; install Cluster API and its providers first")
)

// RefusedError says because of which objects.
type RefusedError struct {
	Steps []Step
}

func (e *RefusedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cannot restore the state, and nothing was changed: ")
	for i, s := range e.Steps {
		if i == 5 {
			fmt.Fprintf(&b, "; and %d more", len(e.Steps)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s: %s: %s", s.Object, s.Reason, s.Why)
	}
	return b.String()
}

// Is makes it an ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// Options of Restore.
type Options struct {
	// Namespace of the agent; empty is v1alpha1.AgentNamespace.
	Namespace string
	// DryRun plans, and changes nothing.
	DryRun bool
	// Older adopts a state that the tier, or its record, went on from: Clusters that are not
	// there are not made. Without it such a restore is refused.
	Older bool
	// NotRemoved: a person says that Clusters which are not there were not removed, as those that a rollback
	// of etcd has the tier forget, or a deleted definition took with it. They are made, whatever the lineage
	// or Newer says.
	NotRemoved bool
	// Newer is the newest saved state that may follow it, nil if none does. Clusters that it does not
	// have were removed since, and are not made.
	Newer *archive.Snapshot
	// Inside asks a Cluster whether it manages itself by now, before it goes on here, as function Inside does;
	// nil asks none.
	Inside func(ctx context.Context, kubeconfig []byte, name types.NamespacedName) (*unstructured.Unstructured, error)
	// Progress is told of each step once it is done; nil is not told.
	Progress func(Step)
}

// Report of a restore.
type Report struct {
	// ID identifies the state.
	ID string `json:"id"`
	// Steps in order.
	Steps []Step `json:"steps"`
	// Resumed are the Clusters that go on now.
	Resumed []string `json:"resumed,omitempty"`
}

// Count is how many objects have an action.
func (r Report) Count(a Action) int {
	n := 0
	for _, s := range r.Steps {
		if s.Action == a {
			n++
		}
	}
	return n
}

// Restore makes what a saved state has and a tier does not. c reads from the API server, not
// from a cache. It may be called again with the same state, whatever became of it before.
func Restore(ctx context.Context, c kube.Client, s *archive.Snapshot, o Options) (Report, error) {
	if o.Namespace == "" {
		o.Namespace = v1alpha1.AgentNamespace
	}
	if o.Progress == nil {
		o.Progress = func(Step) {}
	}
	f, err := learn(ctx, c, s, o)
	if err != nil {
		return Report{}, err
	}
	p, err := planOf(s, f, o)
	if err != nil {
		return Report{}, err
	}
	report := Report{ID: p.id}
	for _, step := range p.steps {
		report.Steps = append(report.Steps, *step)
	}
	if refused := p.refused(); len(refused) > 0 {
		e := &RefusedError{}
		for _, step := range refused {
			e.Steps = append(e.Steps, *step)
		}
		return report, e
	}
	if o.DryRun {
		return report, nil
	}
	r := &restorer{client: c, plan: p, facts: f, options: o, uids: map[types.UID]types.UID{}}
	for i, step := range p.steps {
		if err := r.do(ctx, step); err != nil {
			return report, err
		}
		report.Steps[i] = *step
		o.Progress(*step)
	}
	r.ask(ctx)
	if err := r.bind(ctx); err != nil {
		return report, err
	}
	for i, step := range p.steps {
		report.Steps[i] = *step
	}
	for _, name := range p.resume {
		var resumed bool
		// Controllers write to a Cluster that is paused: that it is.
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
			resumed, err = r.resume(ctx, name)
			return err
		})
		if err != nil {
			return report, err
		}
		if resumed {
			report.Resumed = append(report.Resumed, name.String())
		}
	}
	return report, nil
}

// learn reads the facts of a tier.
func learn(ctx context.Context, c kube.Client, s *archive.Snapshot, o Options) (facts, error) {
	f := facts{there: map[key]*unstructured.Unstructured{}}
	wanted, kinds := map[key]bool{}, map[schema.GroupVersionKind]map[string]bool{}
	for i := range s.Objects {
		u := &s.Objects[i]
		wanted[keyOf(u)] = true
		if kinds[u.GroupVersionKind()] == nil {
			kinds[u.GroupVersionKind()] = map[string]bool{}
		}
		kinds[u.GroupVersionKind()][u.GetNamespace()] = true
	}
	var lacking []string
	for gvk, in := range kinds {
		for namespace := range in {
			served, err := list(ctx, c, gvk, namespace, func(u *unstructured.Unstructured) {
				if wanted[keyOf(u)] {
					f.there[keyOf(u)] = u
				}
			})
			if err != nil {
				return f, err
			}
			if !served {
				lacking = append(lacking, gvk.GroupVersion().String()+" "+gvk.Kind)
				break
			}
		}
	}
	if len(lacking) > 0 {
		slices.Sort(lacking)
		return f, fmt.Errorf("cannot restore: %w: %s", ErrNotServed, strings.Join(lacking[:min(len(lacking), 20)], ", "))
	}
	// The state may have no record of its own where the tier has one.
	for _, name := range []string{v1alpha1.FirstSyncConfigMap, v1alpha1.EpochConfigMap} {
		cm := &corev1.ConfigMap{}
		err := c.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: name}, cm)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return f, fmt.Errorf("cannot read ConfigMap %s/%s: %w", o.Namespace, name, err)
		}
		if name == v1alpha1.FirstSyncConfigMap {
			f.firstSync = cm
		} else if f.lineage, err = epoch.MarksOf(cm); err != nil {
			return f, err
		}
	}
	if err := f.learnGiven(ctx, c, kinds[rollouts]); err != nil {
		return f, err
	}
	return f, f.learnAway(ctx, c, s, o)
}

// learnGiven reads what Rollouts of some namespaces let Children have, also such as the state does not have.
func (f *facts) learnGiven(ctx context.Context, c kube.Client, namespaces map[string]bool) error {
	f.given = map[runKey]bool{}
	for namespace := range namespaces {
		var unread error
		_, err := list(ctx, c, children, namespace, func(u *unstructured.Unstructured) {
			child := &v1alpha1.Child{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, child); err != nil {
				unread = fmt.Errorf("cannot read Child %s/%s: %w", namespace, u.GetName(), err)
			}
			for _, pin := range child.Status.Rollouts {
				f.given[runKey{namespace, pin.Name, pin.Run}] = true
			}
		})
		if err := errors.Join(err, unread); err != nil {
			return err
		}
	}
	return nil
}

// learnAway looks for the Clusters that the state has on record as moved away: they may be here again.
func (f *facts) learnAway(ctx context.Context, c kube.Client, s *archive.Snapshot, o Options) error {
	record, err := recordOf(s, o.Namespace, v1alpha1.FirstSyncConfigMap)
	if err != nil {
		return err
	}
	_, away := firstsync.Says(record)
	if len(away) == 0 {
		return nil
	}
	gvk, err := clusters.Served(ctx, c)
	if err != nil || gvk.Empty() {
		return err
	}
	f.clusters = map[types.NamespacedName]bool{}
	for name := range away {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		switch err := c.Get(ctx, name, u); {
		case err == nil:
			f.clusters[name] = true
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("cannot read Cluster %s: %w", name, err)
		}
	}
	return nil
}

// list calls f with the objects of a kind in a namespace. served is false if the kind is not.
func list(ctx context.Context, c kube.Reader, gvk schema.GroupVersionKind, namespace string, f func(*unstructured.Unstructured)) (served bool, err error) {
	next := ""
	for {
		l := &unstructured.UnstructuredList{}
		l.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		err := c.List(ctx, l, kube.InNamespace(namespace), kube.Limit(page), kube.Continue(next))
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return true, fmt.Errorf("cannot list objects of kind %s: %w", gvk.Kind, err)
		}
		for i := range l.Items {
			f(&l.Items[i])
		}
		if next = l.GetContinue(); next == "" {
			return true, nil
		}
	}
}

// restorer carries a plan out.
type restorer struct {
	client  kube.Client
	plan    *plan
	facts   facts
	options Options
	// uids are those of here for those of the state.
	uids map[types.UID]types.UID
}

func (r *restorer) do(ctx context.Context, s *Step) error {
	switch s.Action {
	case Keep, Differ:
		r.uids[s.saved.GetUID()] = s.there.GetUID()
		return nil
	case Create:
		return r.create(ctx, s)
	case Update:
		r.uids[s.saved.GetUID()] = s.there.GetUID()
		return r.update(ctx, s)
	}
	return nil
}

func (r *restorer) create(ctx context.Context, s *Step) error {
	u := graph.Portable(s.saved)
	// What owns a record of the tier may be something that is not saved.
	owners := slices.DeleteFunc(u.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return s.node == nil && r.uids[ref.UID] == "" })
	u.SetOwnerReferences(owners)
	if err := graph.Rebase(u, r.uids); err != nil {
		return err
	}
	if isCluster(u) {
		r.pause(u, s.saved)
	}
	err := r.client.Create(ctx, u, kube.FieldOwner(manager))
	switch {
	case apierrors.IsAlreadyExists(err):
		if err := r.met(ctx, s); err != nil {
			return err
		}
		return r.do(ctx, s)
	case err != nil:
		return fmt.Errorf("cannot make %s: %w", s.Object, err)
	default:
		s.there = u
	}
	r.uids[s.saved.GetUID()] = s.there.GetUID()
	if s.saved.Object["status"] == nil {
		return nil
	}
	// An API server makes an object without it.
	err = r.update(ctx, s)
	s.Action, s.Why = Create, ""
	return err
}

// met looks at an object that somebody made since the plan was made.
func (r *restorer) met(ctx context.Context, s *Step) error {
	there := &unstructured.Unstructured{}
	there.SetGroupVersionKind(s.saved.GroupVersionKind())
	if err := r.client.Get(ctx, s.key.NamespacedName, there); err != nil {
		return fmt.Errorf("cannot read %s: %w", s.Object, err)
	}
	if isCluster(there) && there.GetAnnotations()[v1alpha1.RestoringAnnotation] != r.plan.id {
		return fmt.Errorf("cannot restore %s: somebody made it meanwhile; nothing is done about it, look at it and begin again", s.Object)
	}
	s.there, s.Action = there, Keep
	if s.node == nil {
		return r.plan.meets(s)
	}
	if !same(s.saved, there) {
		s.Action = Differ
	}
	return nil
}

// pause makes a Cluster one that nobody works on until all is restored.
func (r *restorer) pause(u, saved *unstructured.Unstructured) {
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.RestoringAnnotation] = r.plan.id
	if wasPaused(saved) || saved.GetDeletionTimestamp() != nil || isMoving(saved) {
		annotations[v1alpha1.RestoredPausedAnnotation] = "true"
	}
	u.SetAnnotations(annotations)
	_ = unstructured.SetNestedField(u.Object, true, "spec", "paused")
}

// wasPaused reports whether somebody had paused a Cluster when the state was saved. In a state that an
// earlier version saved while another restore was under way, the pause is that one's.
func wasPaused(u *unstructured.Unstructured) bool {
	annotations := u.GetAnnotations()
	_, stays := annotations[v1alpha1.RestoredPausedAnnotation]
	return clusterapi.IsPausedBySpec(u) && (stays || annotations[v1alpha1.RestoringAnnotation] == "")
}

// isMoving reports whether a pivot had a Cluster when the state was saved. Which management
// cluster has it by now, the state does not know.
func isMoving(u *unstructured.Unstructured) bool {
	return u.GetAnnotations()[v1alpha1.PivotAnnotation] != ""
}

// update adds to a record what it lacks by now. It is held to what was read of it: the agent
// writes it as well.
func (r *restorer) update(ctx context.Context, s *Step) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		there := &unstructured.Unstructured{}
		there.SetGroupVersionKind(s.saved.GroupVersionKind())
		if err := r.client.Get(ctx, s.key.NamespacedName, there); err != nil {
			return fmt.Errorf("cannot read %s: %w", s.Object, err)
		}
		s.there = there
		if err := r.plan.meets(s); err != nil || s.Action != Update {
			return err
		}
		var err error
		switch {
		case isKept(s.key):
			var cm *corev1.ConfigMap
			if cm, _, err = merged(s.saved, there); err != nil {
				return err
			}
			err = r.client.Update(ctx, cm, kube.FieldOwner(manager))
		case s.key.GroupKind == children.GroupKind():
			before := there.DeepCopy()
			if err := unstructured.SetNestedField(there.Object, true, "spec", "suspend"); err != nil {
				return fmt.Errorf("cannot suspend %s: %w", s.Object, err)
			}
			err = r.client.Patch(ctx, there, kube.MergeFromWithOptions(before, kube.MergeFromWithOptimisticLock{}), kube.FieldOwner(manager))
		default:
			there.Object["status"] = runtime.DeepCopyJSONValue(s.saved.Object["status"])
			err = r.client.Status().Update(ctx, there, kube.FieldOwner(manager))
		}
		if err != nil {
			return fmt.Errorf("cannot write %s: %w", s.Object, err)
		}
		return nil
	})
}

// resume lets the controllers go on with a Cluster that is whole.
func (r *restorer) resume(ctx context.Context, name types.NamespacedName) (resumed bool, err error) {
	u, movedAway := &unstructured.Unstructured{}, false
	for _, step := range r.plan.steps {
		if step.key == clusterKey(name) {
			u.SetGroupVersionKind(step.saved.GroupVersionKind())
			movedAway = step.Reason == ReasonMovedAway
		}
	}
	if err := r.client.Get(ctx, name, u); err != nil {
		return false, fmt.Errorf("cannot read Cluster %s: %w", name, err)
	}
	annotations := u.GetAnnotations()
	if annotations[v1alpha1.RestoringAnnotation] != r.plan.id {
		return false, nil
	}
	_, stays := annotations[v1alpha1.RestoredPausedAnnotation]
	stays = stays || movedAway
	change := map[string]any{"metadata": map[string]any{
		"resourceVersion": u.GetResourceVersion(),
		"annotations":     map[string]any{v1alpha1.RestoringAnnotation: nil, v1alpha1.RestoredPausedAnnotation: nil},
	}}
	if !stays {
		change["spec"] = map[string]any{"paused": nil}
		if saved := r.saved(name); saved != nil && hasPaused(saved) {
			change["spec"] = map[string]any{"paused": false}
		}
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return false, fmt.Errorf("cannot encode patch: %w", err)
	}
	if err := r.client.Patch(ctx, u, kube.RawPatch(types.MergePatchType, patch), kube.FieldOwner(manager)); err != nil {
		return false, fmt.Errorf("cannot resume Cluster %s: %w", name, err)
	}
	return !stays, nil
}

func (r *restorer) saved(name types.NamespacedName) *unstructured.Unstructured {
	for _, step := range r.plan.steps {
		if step.key == clusterKey(name) {
			return step.saved
		}
	}
	return nil
}

// hasPaused reports whether the field is written out, though Clusters are not paused.
func hasPaused(u *unstructured.Unstructured) bool {
	_, found, _ := unstructured.NestedBool(u.Object, "spec", "paused")
	return found
}
