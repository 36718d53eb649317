package forecast

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
	"github.com/cascade-gitops/cascade/remote"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/remote/selection"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// built is the build of a layer, or why there is none.
type built struct {
	template *render.Template[*unstructured.Unstructured]
	err      error
}

// below is a child before and after the commit.
type below struct {
	child     *v1alpha1.Child
	now, next capibridge.Cluster
	// had and has are the labels by which the child is selected: those of the Cluster, and more.
	had, has map[string]string
	// unknown is why nothing is known of it.
	unknown error
}

// inChild is what a layer is in one child.
type inChild struct {
	*below
	renderings difference.Renderings
	from       string
	err        error
}

// layers reports what changes in the children.
func (f *forecast) layers(ctx context.Context) {
	all := map[client.ObjectKey][]*inChild{}
	ofChild := map[client.ObjectKey][]*inChild{}
	known := map[client.ObjectKey]*below{}
	keys := slices.SortedFunc(maps.Keys(f.tier.layers), compareKeys)
	for _, key := range keys {
		l := f.tier.layers[key]
		of, will := f.ofLayer(l.now), f.ofLayer(l.next)
		if of != will && l.now != nil && l.next != nil {
			f.problem("Layer/"+key.String(), "", errOtherSource)
			continue
		}
		if !of && !will {
			continue
		}
		f.use(false)
		if l.next != nil {
			if _, err := remote.Selects(l.next, nil); err != nil {
				f.problem("Layer/"+key.String(), "", err)
				continue
			}
		}
		for i := range f.tier.children {
			child := &f.tier.children[i]
			at := client.ObjectKeyFromObject(child)
			if child.Namespace != key.Namespace || !child.DeletionTimestamp.IsZero() {
				continue
			}
			if meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ManagedElsewhereCondition) {
				f.use(f.Child == at.String())
				continue // nothing new is pushed to it, and its Cluster is not here to tell what that would be
			}
			if known[at] == nil {
				known[at] = f.below(ctx, child)
			}
			in := &inChild{below: known[at]}
			in.err = f.inChild(ctx, l, in)
			all[key], ofChild[at] = append(all[key], in), append(ofChild[at], in)
		}
	}
	for _, key := range keys {
		f.layer(key, f.tier.layers[key], all[key], ofChild)
	}
}

// layer reports a layer, of which it is known what it is in each child.
func (f *forecast) layer(key client.ObjectKey, l *layer, children []*inChild, ofChild map[client.ObjectKey][]*inChild) {
	var results []difference.Result
	rollouts := f.inNamespace(key.Namespace)
	clusters := waysOf(rollouts)
	for _, in := range children {
		if in.err != nil {
			f.problem("Layer/"+key.String(), in.child.Name, in.err)
			continue
		}
		in.renderings.Elsewhere = others(in, ofChild[client.ObjectKeyFromObject(in.child)])
		result := difference.Result{Cluster: in.child.Name, From: in.from}
		if result.Changes, result.Guard = difference.Compare(in.renderings); len(result.Changes) == 0 {
			continue
		}
		results = append(results, result)
		clusters.take(rollout.Of(rollouts, in.has).Layer(key.Name), in.has)
	}
	if len(results) == 0 {
		return
	}
	present := l.next
	if present == nil {
		present = l.now
	}
	owner := difference.Owner{
		Kind: "Layer", Namespace: key.Namespace, Name: key.Name, New: l.now == nil, Gone: l.next == nil,
		Groups: difference.Grouped(results), Suspended: present.Spec.Suspend,
	}
	clusters.into(&owner)
	f.report.Owners = append(f.report.Owners, owner)
}

// others is what the other layers declare in a child.
func others(of *inChild, all []*inChild) difference.Declared {
	d := difference.Declared{Before: map[difference.Identity]*unstructured.Unstructured{}, After: map[difference.Identity]*unstructured.Unstructured{}}
	for _, in := range all {
		if in != of {
			maps.Copy(d.Before, difference.ByIdentity(in.renderings.Before))
			maps.Copy(d.After, difference.ByIdentity(in.renderings.After))
		}
	}
	return d
}

// inNamespace are the Rollouts of a namespace after the commit.
func (f *forecast) inNamespace(namespace string) []v1alpha1.Rollout {
	var all []v1alpha1.Rollout
	for _, r := range f.tier.nextRollouts {
		if r.Namespace == namespace {
			all = append(all, r)
		}
	}
	return all
}

// inChild renders a layer for one child, now and at the commit.
func (f *forecast) inChild(ctx context.Context, l *layer, in *inChild) (err error) {
	if in.unknown != nil {
		return in.unknown
	}
	had := l.now != nil && remote.Concerns(l.now, in.child, in.had)
	gets := l.next != nil && remote.Concerns(l.next, in.child, in.has)
	if !had && !gets {
		return nil
	}
	f.use(f.Child == client.ObjectKeyFromObject(in.child).String())
	r := &in.renderings
	r.Child = true
	if in.from = appliedRevision(in.child, l.now); had && in.from != "" {
		snapshot, err := f.revision(ctx, in.from)
		if err == nil {
			r.Before, err = f.renderLayer(ctx, l.now, snapshot, f.cluster, in.now, in.child)
		}
		if err != nil {
			return fmt.Errorf("cannot tell what it has applied: %w", err)
		}
	}
	if gets {
		r.Prune = l.next.Spec.Prune
		r.After, err = f.renderLayer(ctx, l.next, f.next, &declaring{f.cluster, f.tier.before, f.tier.after}, in.next, in.child)
		return err
	}
	policy := l.now.Spec.DeletionPolicy
	if l.next != nil {
		policy = l.next.Spec.DeletionPolicy
	}
	r.Prune, r.Asked = policy == v1alpha1.DeletionDelete, true
	return nil
}

// appliedRevision is the revision of a layer that a child has, empty if it has none.
func appliedRevision(child *v1alpha1.Child, l *v1alpha1.Layer) string {
	if l == nil {
		return ""
	}
	for i := range child.Status.Layers {
		if e := &child.Status.Layers[i]; e.Name == l.Name {
			return e.Revision
		}
	}
	return ""
}

// renderLayer renders what Git declares for a layer in a child. The agent and what it needs
// are not of a commit.
func (f *forecast) renderLayer(ctx context.Context, l *v1alpha1.Layer, snapshot *source.Snapshot, reader client.Reader, cluster capibridge.Cluster, child *v1alpha1.Child) ([]*unstructured.Unstructured, error) {
	key := fmt.Sprintf("%s/%s %s %s", l.Namespace, l.Name, l.Spec.Path, snapshot.Digest)
	t, ok := f.templates[key]
	if !ok {
		t.template, t.err = render.Prepare(ctx, snapshot, render.Build{Path: l.Spec.Path, Workers: worker.For(f.Workers, "Layer/"+l.Namespace+"/"+l.Name)},
			func(u *unstructured.Unstructured) (*unstructured.Unstructured, int, error) { return u, 1 << 10, nil })
		f.templates[key] = t
	}
	if t.err != nil {
		return nil, t.err
	}
	vars, sensitive, err := remote.Variables(ctx, reader, l, cluster, child)
	if err != nil {
		return nil, err
	}
	return t.template.Render(vars, sensitive)
}

// below finds out what the tier says of a child and its Cluster, and will say after the commit.
func (f *forecast) below(ctx context.Context, child *v1alpha1.Child) *below {
	b := &below{child: child}
	b.unknown = f.describe(ctx, b)
	return b
}

func (f *forecast) describe(ctx context.Context, b *below) error {
	next, err := changed(b.child, v1alpha1.Group, "Child", f.tier)
	if err != nil {
		return err
	}
	if b.child.Spec.ClusterRef == nil {
		if next == nil {
			next = b.child // what was pushed stays
		}
		b.now, b.next = byHand(b.child), byHand(next)
		b.had, b.has = b.now.Labels, b.next.Labels
		return nil
	}
	u, after, err := f.labels(ctx, b, next)
	if err != nil {
		return err
	}
	providers := &capibridge.Providers{}
	b.now = capibridge.FromObject(u)
	facts, err := providers.Describe(ctx, f.cluster, b.now)
	if err != nil {
		return fmt.Errorf("cannot describe Cluster %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	b.now, b.next = facts.Into(b.now), facts.Into(capibridge.FromObject(after))
	return nil
}

// labels finds out by which labels a Child of a Cluster is selected, now and after the commit, when it is next. It
// returns the Cluster at both times.
func (f *forecast) labels(ctx context.Context, b *below, next *v1alpha1.Child) (now, after *unstructured.Unstructured, err error) {
	if now, err = f.clusterObject(ctx, client.ObjectKey{Namespace: b.child.Namespace, Name: b.child.Spec.ClusterRef.Name}); err != nil {
		return nil, nil, err
	}
	if after, err = changedObject(now, f.tier); err != nil {
		return nil, nil, err
	}
	if b.had, err = selection.Of(b.child, now.GetLabels()); err != nil {
		return nil, nil, err
	}
	b.has, err = f.labelsAfter(next, after.GetLabels())
	return now, after, err
}

// labelsOf are the labels by which a Child of a Cluster is selected after the commit. One that is declared ahead of its
// Cluster has its own alone; and one that the tier made has what it has of its Cluster, which another tier manages.
func (f *forecast) labelsOf(ctx context.Context, child *v1alpha1.Child) (map[string]string, error) {
	next, err := changed(child, v1alpha1.Group, "Child", f.tier)
	if err != nil {
		return nil, err
	}
	b := &below{child: child}
	if _, _, err = f.labels(ctx, b, next); apierrors.IsNotFound(err) {
		if next != nil && selection.DeclaredBy(next.Labels) == "" {
			return next.Labels, nil
		}
		return f.labelsAfter(next, nil)
	}
	return b.has, err
}

// byHand is a Child without a Cluster, as layers are rendered for it.
func byHand(child *v1alpha1.Child) capibridge.Cluster {
	return capibridge.Cluster{Namespace: child.Namespace, Name: child.Name, Labels: child.Labels, Annotations: child.Annotations}
}

// labelsAfter are the labels by which a Child is selected after the commit, by those of its Cluster
// then. One that the commit deletes, the agent makes again: next is nil.
func (f *forecast) labelsAfter(next *v1alpha1.Child, cluster map[string]string) (map[string]string, error) {
	if next == nil {
		return cluster, nil
	}
	labels, err := selection.Of(next, cluster)
	if declared := f.tier.after[difference.Identity{Group: v1alpha1.Group, Kind: "Child", Namespace: next.Namespace, Name: next.Name}]; declared != nil {
		maps.Copy(labels, declared.GetLabels()) // the managed fields do not tell of the commit
	}
	return labels, err
}

// changedObject is a live Cluster after the commit. One that is to go is as it is: it is
// deleted with all that it has.
func changedObject(live *unstructured.Unstructured, t *tier) (*unstructured.Unstructured, error) {
	id := difference.IdentityOf(live)
	before, after := t.before[id], t.after[id]
	if after == nil {
		return live, nil
	}
	var old map[string]any
	if before != nil {
		old = before.Object
	}
	if before != nil && before.GetAPIVersion() == live.GetAPIVersion() && after.GetAPIVersion() == live.GetAPIVersion() {
		return &unstructured.Unstructured{Object: merged(live.Object, old, after.Object)}, nil
	}
	// Declared in another version than is read: labels and annotations are the same in all.
	out := live.DeepCopy()
	if old == nil {
		before = &unstructured.Unstructured{Object: map[string]any{}}
	}
	out.SetLabels(mergedText(live.GetLabels(), before.GetLabels(), after.GetLabels()))
	out.SetAnnotations(mergedText(live.GetAnnotations(), before.GetAnnotations(), after.GetAnnotations()))
	return out, nil
}

func mergedText(live, before, after map[string]string) map[string]string {
	out := maps.Clone(live)
	if out == nil {
		out = map[string]string{}
	}
	for key := range before {
		delete(out, key)
	}
	maps.Copy(out, after)
	return out
}

// clusterObject reads a Cluster in the version that is served.
func (f *forecast) clusterObject(ctx context.Context, key client.ObjectKey) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	err := f.cluster.InServed(clusterapi.ClusterKind, func(served *meta.RESTMapping) error {
		u.SetGroupVersionKind(served.GroupVersionKind)
		return f.cluster.Get(ctx, key, u)
	})
	if meta.IsNoMatchError(err) {
		err = errors.New("this tier has no Cluster API")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read Cluster %s: %w", key, err)
	}
	return u, nil
}
