package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/memo"
)

// oneByOne is how long the tear-down of one Cluster delays the next. A
// tear-down that the cloud refuses must not block all others for ever.
const oneByOne = 15 * time.Minute

// Fence sets the function that is called before each delete. Its error says
// that this process may not delete. It is called before the first use.
func (c *Cluster) Fence(may func() error) { c.fence = may }

// MayDelete returns an error if this process lost the right to delete. It may
// have been paused while another process took over.
func (c *Cluster) MayDelete() error {
	if c.fence == nil {
		return nil
	}
	return c.fence()
}

// prune makes a plan and carries it out. provided are the providers of Cluster
// API of which the rendering has components.
func (a *Applier) prune(ctx context.Context, facts inventory.Facts, o Options, provided map[string]bool, res *Result) error {
	known := &lookups{owned: facts.Owned, claimed: o.Claimed, tier: o.Claimed != nil && !facts.LowerTier, asked: facts.Asked}
	if known.tier {
		known.rendered = make(map[string]bool, len(facts.Rendered))
		for _, e := range facts.Rendered {
			known.rendered[e.ID()] = true
		}
	}
	facts.Now = a.now()
	looked := slices.Concat(inventory.Candidates(facts.Owned, facts.Rendered), inventory.Beside(facts.Owned, facts.Rendered))
	facts.Live = a.read(ctx, looked, facts.Owned, known)
	a.needed(ctx, facts.Live, provided)
	var err error
	if gone := inventory.Candidates(facts.Owned, facts.Rendered); o.Ignored != nil && len(gone) > 0 {
		if facts.Ignored, err = o.Ignored(gone); err != nil {
			return err
		}
	}
	if facts.InFlight, err = a.inFlight(ctx, facts.Live); err != nil {
		return err
	}
	res.Plan = inventory.PlanPrune(facts)
	keep := res.Plan.Keep
	var failures []error
	if !res.Plan.Held {
		if o.Slow != nil && len(res.Plan.Deletes) > 0 {
			o.Slow(ctx) // ahead, as nothing tells how long the deletes take
		}
		var queued []inventory.Entry
		res.Deleted, queued, failures = a.deleteAll(ctx, res.Plan.Deletes)
		res.Plan.Queued = append(res.Plan.Queued, queued...)
		// An object leaves the inventory when it is confirmed gone; one with a
		// finalizer stays until then.
		gone := a.gone(ctx, res.Deleted)
		keep = slices.DeleteFunc(keep, func(k inventory.Entry) bool { return gone[k] })
		res.Pending = res.Pending || len(gone) < len(res.Deleted)
	}
	res.HandOver, res.Decided = facts.Record(res.Plan), facts.Decisions(res.Plan, keep)
	res.Pending = res.Pending || res.Plan.Superseded || len(res.Plan.HandOver) > 0 || len(res.Plan.Waiting) > 0 || len(res.Plan.Queued) > 0 || len(res.Plan.Last) > 0 || len(res.Plan.Claimed) > 0 ||
		len(res.Deleted) > 0 && len(res.Plan.OfCluster) > 0 // whose Cluster may be gone by now
	res.Inventory = inventory.Union(facts.Rendered, keep)
	if len(res.Plan.Unknown) > 0 {
		failures = append(failures, fmt.Errorf("cannot tell whether %d objects still exist, the first is %s: %s",
			len(res.Plan.Unknown), res.Plan.Unknown[0], res.Plan.Problem))
	}
	return errors.Join(failures...)
}

// inFlight names a Cluster that is being torn down, if there is one and another
// is to be deleted. Where not all may be seen, only their own namespaces count.
func (a *Applier) inFlight(ctx context.Context, live map[inventory.Entry]inventory.Live) (string, error) {
	var next []inventory.Entry
	for e, l := range live {
		if isCluster(e) && l.State == inventory.Present && l.Confirmed && !l.Deleting {
			next = append(next, e)
		}
	}
	if len(next) == 0 {
		return "", nil
	}
	return a.facts.inFlight(ctx, next[0], a.now())
}

// TearDown calls remove, which deletes the Cluster e, unless another one is being torn down:
// that is told then, by its name if it is in the same namespace. Whoever owns them, Clusters go
// one after the other. It reads with the agent's own rights.
func (c *Cluster) TearDown(ctx context.Context, e inventory.Entry, now time.Time, remove func() error) (inFlight string, err error) {
	own := c.own()
	if !own.tearDown.TryLock() {
		return anotherCluster, nil // which is about to be deleted
	}
	defer own.tearDown.Unlock()
	if inFlight, err = own.inFlight(ctx, e, now); err != nil || inFlight != "" {
		return inFlight, err
	}
	return "", remove()
}

// inFlight tells of a Cluster other than e that is being torn down, if there is one.
func (c *Cluster) inFlight(ctx context.Context, e inventory.Entry, now time.Time) (string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(clusterapi.ClusterKind.WithVersion(e.Version).GroupVersion().WithKind("ClusterList"))
	if mapping, err := c.served(e); err == nil {
		list.SetGroupVersionKind(mapping.GroupVersionKind.GroupVersion().WithKind("ClusterList"))
	}
	err := c.List(ctx, list)
	if apierrors.IsForbidden(err) {
		err = c.List(ctx, list, client.InNamespace(e.Namespace))
	}
	if err != nil {
		return "", fmt.Errorf("cannot list Clusters to tell whether one is being torn down: %w", err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		if o.DeletionTimestamp != nil && now.Sub(o.DeletionTimestamp.Time) < oneByOne && (o.Name != e.Name || o.Namespace != e.Namespace) {
			if o.Namespace != e.Namespace {
				return anotherCluster, nil // which is not for all who own e to see
			}
			return "Cluster/" + o.Namespace + "/" + o.Name, nil
		}
	}
	return "", nil
}

// anotherCluster is one in flight that is not named.
const anotherCluster = "another Cluster"

// errQueued: another Cluster is being torn down since the plan was made.
var errQueued = errors.New("another Cluster is being torn down")

// deleteAll carries out the deletes of a plan: kind after kind in its order, and some of
// one kind at a time. It returns those that have begun, and Clusters that have to wait.
func (a *Applier) deleteAll(ctx context.Context, deletes []inventory.Delete) (begun, queued []inventory.Entry, failures []error) {
	for len(deletes) > 0 {
		kind := deletes[0].Entry.GroupKind()
		n := slices.IndexFunc(deletes, func(d inventory.Delete) bool { return d.Entry.GroupKind() != kind })
		if n < 0 {
			n = len(deletes)
		}
		errs := make([]error, n)
		// A cluster that does not answer is not asked for each object anew.
		var silent atomic.Bool
		inParallel(a.client.parallel, n, func(i int) {
			d := deletes[i]
			if silent.Load() {
				errs[i] = fmt.Errorf("cannot delete %s: the API server does not answer", d.Entry)
				return
			}
			a.memo.Drop(memo.Object{Kind: kind, Name: types.NamespacedName{Namespace: d.Entry.Namespace, Name: d.Entry.Name}}, a.owner.key())
			if errs[i] = a.delete(ctx, d); Unanswered(errs[i]) {
				silent.Store(true)
			}
		})
		for i, err := range errs {
			switch {
			case errors.Is(err, errQueued):
				queued = append(queued, deletes[i].Entry)
			case err != nil:
				failures = append(failures, err)
			default:
				begun = append(begun, deletes[i].Entry)
			}
		}
		if silent.Load() {
			for _, d := range deletes[n:] {
				failures = append(failures, fmt.Errorf("cannot delete %s: the API server does not answer", d.Entry))
			}
			break
		}
		deletes = deletes[n:]
	}
	return begun, queued, failures
}

// gone tells which of the objects that were deleted are not there any more.
func (a *Applier) gone(ctx context.Context, deleted []inventory.Entry) map[inventory.Entry]bool {
	k := &lookups{}
	a.gather(ctx, deleted, k)
	gone := map[inventory.Entry]bool{}
	for _, e := range deleted {
		u, known := k.found[e]
		if known && u == nil || !known && a.exists(ctx, e, k).State == inventory.Absent {
			gone[e] = true
		}
	}
	return gone
}

// delete deletes one object of a plan. A Cluster is queued if another one is being torn down
// by now.
func (a *Applier) delete(ctx context.Context, d inventory.Delete) error {
	if !isCluster(d.Entry) {
		return a.deleteUnchanged(ctx, d)
	}
	inFlight, err := a.client.TearDown(ctx, d.Entry, a.now(), func() error { return a.deleteUnchanged(ctx, d) })
	if inFlight != "" {
		return errQueued
	}
	return err
}

// deleteUnchanged deletes one object of a plan if it is still what the plan saw. Another
// owner may have taken it over since, or a person may have withdrawn a confirmation: the
// precondition on the resource version rules out that either happens between the look
// and the delete. An object that changed since the plan is looked at again.
func (a *Applier) deleteUnchanged(ctx context.Context, d inventory.Delete) error {
	resource, err := a.client.resourceOf(d.Entry)
	if err != nil {
		return fmt.Errorf("cannot delete %s: %w", d.Entry, err)
	}
	err = a.client.DeleteAt(ctx, d.Entry, d.UID, d.Version, metav1.DeletePropagationBackground)
	if apierrors.IsConflict(err) {
		live, gerr := resource.Get(ctx, d.Entry.Name, metav1.GetOptions{})
		switch {
		case confirmsAbsence(gerr):
			return nil
		case gerr != nil:
			return fmt.Errorf("cannot delete %s: %w", d.Entry, gerr)
		case string(live.UID) != d.UID:
			return fmt.Errorf("cannot delete %s: it was re-created meanwhile", d.Entry)
		case !a.owner.owns(live.Labels):
			return nil // the next reading finds another owner
		case d.Confirmed && live.Annotations[v1alpha1.DeletionAnnotation] != v1alpha1.DeletionConfirmed:
			return fmt.Errorf("cannot delete %s: its confirmation was taken back meanwhile", d.Entry)
		case directive.Keeps(live.Labels, live.Annotations):
			return nil // the next reading finds it exempt
		}
		err = a.client.DeleteAt(ctx, d.Entry, d.UID, live.ResourceVersion, metav1.DeletePropagationBackground)
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("cannot delete %s: it was changed meanwhile", d.Entry)
	}
	return fmt.Errorf("cannot delete %s: %w", d.Entry, err)
}

// resourceOf is where an object is read and deleted, in the version that is served.
func (c *Cluster) resourceOf(e inventory.Entry) (metadata.ResourceInterface, error) {
	mapping, err := c.served(e)
	if err != nil {
		return nil, err
	}
	return c.metadata.Resource(mapping.Resource).Namespace(namespaceOf(mapping, e)), nil
}

// DeleteAt deletes an object as it was in a version, unless this process lost the right. It
// is in the version of its kind that is served, whichever the entry has. There is no error
// if it is gone, and a conflict if it has changed.
func (c *Cluster) DeleteAt(ctx context.Context, e inventory.Entry, uid, version string, policy metav1.DeletionPropagation) error {
	if err := c.MayDelete(); err != nil {
		return err
	}
	resource, err := c.resourceOf(e)
	if err != nil {
		return err
	}
	err = resource.Delete(ctx, e.Name, metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: new(types.UID(uid)), ResourceVersion: &version},
	})
	if confirmsAbsence(err) {
		return nil
	}
	return err
}

// Confirm confirms the deletion of an object as it was in a version, unless this process lost
// the right to delete, and returns the version of now. There is no error if it is gone, and a
// conflict if it has changed.
func (c *Cluster) Confirm(ctx context.Context, e inventory.Entry, version, manager string) (string, error) {
	if err := c.MayDelete(); err != nil {
		return version, err
	}
	resource, err := c.resourceOf(e)
	if err != nil {
		return version, err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"annotations":{%q:%q}}}`, version, v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed)
	live, err := resource.Patch(ctx, e.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	switch {
	case confirmsAbsence(err):
		return version, nil
	case err != nil:
		return version, fmt.Errorf("cannot confirm deletion of %s: %w", e, err)
	}
	return live.ResourceVersion, nil
}

// applied reports whether the owner's field manager ever wrote the object. An
// object that was brought back from a backup has the owner's labels only.
func (a *Applier) applied(u *unstructured.Unstructured) bool {
	return slices.ContainsFunc(u.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool { return f.Manager == a.owner.FieldManager })
}

// isOwner reports whether an object is the one that prunes. flux bootstrap
// creates a Kustomization that declares itself.
func (a *Applier) isOwner(e inventory.Entry) bool {
	return isSync(e) && e.Group == a.owner.LabelGroup && e.Namespace == a.owner.Namespace && e.Name == a.owner.Name
}

// others names an owner of another sort that put its labels on the object. Of the
// Kustomizations and HelmReleases of our own tier k knows more than the labels say:
// these stay when their owner drops the object and the other one goes on to apply it.
func (a *Applier) others(labels map[string]string, k *lookups) string {
	if !k.tier {
		if by := Marked(labels, a.owner.LabelGroup); by != "" {
			return by
		}
	}
	for _, g := range []struct{ group, kind string }{{v1alpha1.LayerLabelGroup, "Layer"}, {v1alpha1.InstallLabelGroup, "installation"}} {
		if by := owner(labels, g.group, g.kind); by != "" && g.group != a.owner.LabelGroup {
			return by
		}
	}
	return ""
}

// Marked names the Kustomization or HelmRelease that put its labels on an object, if
// its labels are not those of except.
func Marked(labels map[string]string, except string) string {
	for _, g := range []struct{ group, kind string }{{group, "Kustomization"}, {releaseGroup, "HelmRelease"}} {
		if by := owner(labels, g.group, g.kind); by != "" && g.group != except {
			return by
		}
	}
	return ""
}

// owner of a kind that the labels of a group name.
func owner(labels map[string]string, group, kind string) string {
	if labels[group+"/name"] == "" {
		return ""
	}
	return kind + "/" + labels[group+"/namespace"] + "/" + labels[group+"/name"]
}
