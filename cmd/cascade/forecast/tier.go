package forecast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/decrypt"
	"github.com/cascade-gitops/cascade/syncer/kustomization"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// deepest bounds how many Kustomizations may declare each other in a row.
const deepest = 16

// settle renders the Kustomizations of the source now and at the commit. What the commit
// changes of the Kustomizations themselves, and of what their variables come from, counts:
// it is rendered until nothing of that is another.
func (f *forecast) settle(ctx context.Context) error {
	t := f.tier
	t.before = map[difference.Identity]*unstructured.Unstructured{}
	for _, key := range f.keys() {
		if k := t.kustomizations[key]; f.ofKustomization(k.now) {
			f.use(false)
			k.before, k.unknown = f.renderNow(ctx, k.now)
			if here(k.now) {
				maps.Copy(t.before, difference.ByIdentity(k.before))
			}
		}
	}
	t.after = maps.Clone(t.before)
	f.carry()
	for range deepest {
		after := map[difference.Identity]*unstructured.Unstructured{}
		for _, key := range f.keys() {
			k := t.kustomizations[key]
			k.after, k.failed = nil, nil
			if !f.ofKustomization(k.next) {
				continue
			}
			f.use(false)
			if k.after, k.failed = f.render(ctx, k.next, f.next, &declaring{f.cluster, t.before, t.after}); k.failed != nil {
				k.after = k.before // what it declares stays what it is, so that nothing seems to go
			}
			if here(k.next) {
				maps.Copy(after, difference.ByIdentity(k.after))
			}
		}
		if reflect.DeepEqual(after, t.after) {
			return nil
		}
		t.after = after
		if err := f.declare(); err != nil {
			return err
		}
	}
	return fmt.Errorf("cannot plan: Kustomizations declare each other more than %d deep", deepest)
}

// keys are the Kustomizations in order.
func (f *forecast) keys() []client.ObjectKey {
	return slices.SortedFunc(maps.Keys(f.tier.kustomizations), compareKeys)
}

func compareKeys(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) }

// renderNow renders what a Kustomization has applied.
func (f *forecast) renderNow(ctx context.Context, k *kustomizev1.Kustomization) ([]*unstructured.Unstructured, error) {
	if k.Status.LastAppliedRevision == "" {
		return nil, nil
	}
	snapshot, err := f.revision(ctx, k.Status.LastAppliedRevision)
	if err != nil {
		return nil, fmt.Errorf("cannot tell what it has applied: %w", err)
	}
	objects, err := f.render(ctx, k, snapshot, f.cluster)
	if err == nil {
		objects, err = f.composed(ctx, k, objects)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot tell what it has applied: %w", err)
	}
	return objects, nil
}

func (f *forecast) render(ctx context.Context, k *kustomizev1.Kustomization, snapshot *source.Snapshot, reader client.Reader) ([]*unstructured.Unstructured, error) {
	inputs, err := kustomization.Inputs(ctx, reader, k, decrypt.Options{}, f.Lenient)
	if err != nil {
		return nil, err
	}
	inputs.Workers, inputs.NoDigest = worker.For(f.Workers, "Kustomization/"+k.Namespace+"/"+k.Name), true
	rendering, err := render.Render(ctx, snapshot, inputs)
	if err != nil {
		return nil, err
	}
	return rendering.Objects, nil
}

// declare makes of the live objects what they are after the commit.
func (f *forecast) declare() error {
	t := f.tier
	for key, l := range t.layers {
		if l.now == nil {
			delete(t.layers, key)
		}
	}
	t.going = map[difference.Identity]bool{}
	for _, key := range f.keys() {
		k := t.kustomizations[key]
		if k.now != nil && !here(k.now) {
			continue
		}
		changes, _ := difference.Compare(f.renderings(k))
		for _, c := range changes {
			if c.Action == difference.Deleted {
				t.going[c.Identity()] = true
			}
		}
	}
	for key, k := range t.kustomizations {
		if k.now == nil {
			delete(t.kustomizations, key) // declared again below, or not
		}
	}
	var problems []error
	for _, k := range t.kustomizations {
		next, err := changed(k.now, kustomizev1.GroupVersion.Group, kustomizev1.KustomizationKind, t)
		k.next = next
		problems = append(problems, err)
	}
	for _, l := range t.layers {
		next, err := changed(l.now, v1alpha1.Group, "Layer", t)
		l.next = next
		problems = append(problems, err)
	}
	t.nextRollouts = nil
	for i := range t.rollouts {
		next, err := changed(&t.rollouts[i], v1alpha1.Group, "Rollout", t)
		if problems = append(problems, err); next != nil {
			t.nextRollouts = append(t.nextRollouts, *next)
		}
	}
	for id, u := range t.after {
		problems = append(problems, f.declareNew(id, u))
	}
	return errors.Join(problems...)
}

// declareNew adds what syncs and does not exist yet.
func (f *forecast) declareNew(id difference.Identity, u *unstructured.Unstructured) error {
	t, key := f.tier, client.ObjectKey{Namespace: id.Namespace, Name: id.Name}
	switch {
	case id.Group == kustomizev1.GroupVersion.Group && id.Kind == kustomizev1.KustomizationKind && t.kustomizations[key] == nil:
		next := &kustomizev1.Kustomization{}
		t.kustomizations[key] = &declaredBy{next: next}
		return into(u, next)
	case id.Group == v1alpha1.Group && id.Kind == "Layer" && t.layers[key] == nil:
		next := &v1alpha1.Layer{}
		next.Spec.Prune = true
		t.layers[key] = &layer{next: next}
		return into(u, next)
	case id.Group == v1alpha1.Group && id.Kind == "Rollout" && !slices.ContainsFunc(t.rollouts, func(r v1alpha1.Rollout) bool { return client.ObjectKeyFromObject(&r) == key }):
		next := v1alpha1.Rollout{}
		err := into(u, &next)
		t.nextRollouts = append(t.nextRollouts, next)
		return err
	}
	return nil
}

// changed is a live object after the commit: nil if what declared it does not any more, and
// itself if nothing declares it.
func changed[T client.Object](live T, group, kind string, t *tier) (next T, err error) {
	id := difference.Identity{Group: group, Kind: kind, Namespace: live.GetNamespace(), Name: live.GetName()}
	before, was := t.before[id]
	after, is := t.after[id]
	switch {
	case !was && !is:
		return live, nil
	case !is && t.going[id]:
		return next, nil
	case !is:
		return live, nil // a guard holds it, or nothing deletes it
	case was && reflect.DeepEqual(before.Object, after.Object):
		return live, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
	if err != nil {
		return live, fmt.Errorf("cannot read %s %s/%s: %w", kind, id.Namespace, id.Name, err)
	}
	var old map[string]any
	if was {
		old = before.Object
	}
	next = reflect.New(reflect.TypeOf(live).Elem()).Interface().(T)
	return next, into(&unstructured.Unstructured{Object: merged(content, old, after.Object)}, next)
}

func into(u *unstructured.Unstructured, typed any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed); err != nil {
		return fmt.Errorf("cannot read %s %s/%s at the commit: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	return nil
}

// merged is what is there after what declared one thing of it declares another. Nothing of
// the arguments is changed.
func merged(live, before, after map[string]any) map[string]any {
	out := make(map[string]any, len(live)+len(after))
	for key, value := range live {
		_, was := before[key]
		if _, is := after[key]; is || !was {
			out[key] = value
		}
	}
	for key, value := range after {
		a, isMap := value.(map[string]any)
		l, _ := out[key].(map[string]any)
		if isMap && l != nil {
			b, _ := before[key].(map[string]any)
			out[key] = merged(l, b, a)
			continue
		}
		out[key] = value
	}
	return out
}

// kustomizations reports what changes in the tier itself.
func (f *forecast) kustomizations(ctx context.Context) {
	for _, key := range f.keys() {
		f.kustomization(ctx, key, f.tier.kustomizations[key])
	}
}

// carry finds out what would go with each Kustomization, with those that it declares itself
// as well.
func (f *forecast) carry() {
	f.tier.along = f.tier.installed
	for range deepest {
		along := maps.Clone(f.tier.installed)
		for key, k := range f.tier.kustomizations {
			if len(k.before) == 0 {
				continue
			}
			changes, _ := difference.Compare(difference.Renderings{Before: k.before, Prune: mirrors(k.now), Asked: true, Along: f.along(k.now)})
			along[kustomizationID(key)] = goingAlong(changes)
		}
		if reflect.DeepEqual(along, f.tier.along) {
			return
		}
		f.tier.along = along
	}
}

// along is what goes with objects where a Kustomization applies to: what is known of is here.
func (f *forecast) along(k *kustomizev1.Kustomization) map[difference.Identity]difference.Along {
	if here(k) {
		return f.tier.along
	}
	return nil
}

func kustomizationID(key client.ObjectKey) difference.Identity {
	return difference.Identity{Group: kustomizev1.GroupVersion.Group, Kind: kustomizev1.KustomizationKind, Namespace: key.Namespace, Name: key.Name}
}

// mirrors reports whether what a Kustomization applied is deleted with it.
func mirrors(k *kustomizev1.Kustomization) bool {
	switch k.GetDeletionPolicy() {
	case kustomizev1.DeletionPolicyDelete, kustomizev1.DeletionPolicyWaitForTermination:
		return true
	case kustomizev1.DeletionPolicyMirrorPrune:
		return k.Spec.Prune
	}
	return false
}

// renderings are those of a Kustomization.
func (f *forecast) renderings(k *declaredBy) difference.Renderings {
	r := difference.Renderings{Before: k.before, After: k.after, Elsewhere: f.elsewhere(k), Along: f.along(cmp.Or(k.now, k.next))}
	if k.next == nil {
		r.Prune, r.Asked = mirrors(k.now), true
	} else {
		r.Prune = k.next.Spec.Prune
	}
	return r
}

func (f *forecast) kustomization(ctx context.Context, key client.ObjectKey, k *declaredBy) {
	of, will := f.ofKustomization(k.now), f.ofKustomization(k.next)
	name := kustomizev1.KustomizationKind + "/" + key.String()
	switch {
	case !of && !will:
		return
	case k.unknown != nil || k.failed != nil:
		f.problem(name, "", cmp.Or(k.unknown, k.failed))
		return
	case of != will && k.now != nil && k.next != nil:
		f.problem(name, "", errOtherSource)
		return
	case k.now != nil && k.next != nil && !f.sameCluster(k.now, k.next):
		f.problem(name, "", errOtherCluster)
		return
	}
	present := k.next
	if present == nil {
		present = k.now
	}
	result := difference.Result{}
	result.Changes, result.Guard = difference.Compare(f.renderings(k))
	if len(result.Changes) == 0 {
		return
	}
	if k.now != nil {
		result.From = k.now.Status.LastAppliedRevision
	}
	if !here(present) {
		f.note("%s applies to the cluster that its spec.kubeConfig names", name)
	}
	owner := difference.Owner{
		Kind: kustomizev1.KustomizationKind, Namespace: key.Namespace, Name: key.Name, New: k.now == nil, Gone: k.next == nil,
		Groups: difference.Grouped([]difference.Result{result}), Suspended: present.Spec.Suspend,
	}
	rollouts := f.inNamespace(key.Namespace)
	clusters := waysOf(rollouts)
	var changing []types.NamespacedName
	if here(present) && len(rollouts) > 0 {
		changing = f.clustersOf(k, result.Changes)
	}
	for _, cluster := range changing {
		child := f.child(cluster.Namespace, cluster.Name)
		if child == nil {
			continue
		}
		labels, err := f.labelsOf(ctx, child)
		if err != nil {
			f.problem(name, cluster.Name, err)
			continue
		}
		clusters.take(rollout.Of(rollouts, labels).Kustomization(key.Name), labels)
	}
	clusters.into(&owner)
	f.report.Owners = append(f.report.Owners, owner)
}

func goingAlong(changes []difference.Change) difference.Along {
	var a difference.Along
	for _, c := range changes {
		switch c.Action {
		case difference.Deleted, difference.Held:
			a.Objects++
		case difference.Protected:
			a.Protected = append(a.Protected, c.String())
		}
	}
	return a
}

// elsewhere is what the other Kustomizations declare in the same cluster: now where the objects
// come to, and by the commit where they are now.
func (f *forecast) elsewhere(of *declaredBy) difference.Declared {
	d := difference.Declared{Before: map[difference.Identity]*unstructured.Unstructured{}, After: map[difference.Identity]*unstructured.Unstructured{}}
	for _, k := range f.tier.kustomizations {
		if k == of {
			continue
		}
		if f.sameCluster(cmp.Or(of.next, of.now), k.now) {
			maps.Copy(d.Before, difference.ByIdentity(k.before))
		}
		if f.sameCluster(cmp.Or(of.now, of.next), k.next) {
			maps.Copy(d.After, difference.ByIdentity(k.after))
		}
	}
	return d
}

// here reports whether a Kustomization applies to the tier itself.
func here(k *kustomizev1.Kustomization) bool { return k.Spec.KubeConfig == nil }

// sameCluster reports whether two Kustomizations apply to one cluster, as far as is known. One
// that does not exist applies to none.
func (f *forecast) sameCluster(a, b *kustomizev1.Kustomization) bool {
	return a != nil && b != nil && f.placeOf(a).SameCluster(a.Namespace, f.placeOf(b), b.Namespace)
}

// placeOf is where a Kustomization applies to, with the identity of the cluster that is on
// record unless another one is meant by now, or of the tier.
func (f *forecast) placeOf(k *kustomizev1.Kustomization) target.Ref {
	wanted := target.Of(k, "")
	if wanted.Local() {
		wanted.Cluster = f.tier.home
		return wanted
	}
	if recorded, err := target.Decode(k.Annotations[target.Annotation]); err == nil {
		return wanted.Record(&recorded)
	}
	return wanted
}

func (f *forecast) child(namespace, cluster string) *v1alpha1.Child {
	for i := range f.tier.children {
		c := &f.tier.children[i]
		if c.Namespace == namespace && c.Spec.ClusterRef != nil && c.Spec.ClusterRef.Name == cluster {
			return c
		}
	}
	return nil
}
