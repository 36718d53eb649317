package installation

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	automationv1 "github.com/fluxcd/image-automation-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/lease"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/inventory"
)

// Parts are what an uninstallation takes out, in the order in which it goes.
type Parts struct {
	// Workload stops first: an agent that runs prunes what the end of its objects tells it to.
	Workload []*unstructured.Unstructured
	// Rights are its account and roles.
	Rights []*unstructured.Unstructured
	// Definitions go only on demand, while the walls stand.
	Definitions []*unstructured.Unstructured
	// Walls are the admission policies. They go last.
	Walls []*unstructured.Unstructured
}

// PartsOf finds the parts of an agent, by the labels that all manifests have: whoever
// applied them, an installation, kubectl or Helm. What has no namespace is another agent's as
// well, if there is one beside it; only who is bound to a role may be this one alone.
func PartsOf(ctx context.Context, c client.Client, namespace string, beside, definitions bool) (Parts, error) {
	var parts Parts
	admission := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	for _, of := range []struct {
		kinds []schema.GroupVersionKind
		into  *[]*unstructured.Unstructured
	}{
		{[]schema.GroupVersionKind{deployments()}, &parts.Workload},
		{rights(), &parts.Rights},
		{[]schema.GroupVersionKind{admission.WithKind("ValidatingAdmissionPolicyBinding"), admission.WithKind("ValidatingAdmissionPolicy")}, &parts.Walls},
	} {
		for _, gvk := range of.kinds {
			list, err := labelled(ctx, c, gvk, partLabels())
			if err != nil {
				return Parts{}, err
			}
			for i := range list {
				if ns := list[i].GetNamespace(); ns == namespace || ns == "" && (!beside || bindsOnly(&list[i], namespace)) {
					*of.into = append(*of.into, &list[i])
				}
			}
		}
	}
	if !definitions {
		return parts, nil
	}
	crds, err := deploy.CRDs()
	if err != nil {
		return Parts{}, err
	}
	for _, crd := range crds {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(crd.GroupVersionKind())
		err := c.Get(ctx, client.ObjectKeyFromObject(crd), live)
		if client.IgnoreNotFound(err) != nil {
			return Parts{}, fmt.Errorf("cannot read %s: %w", inventory.Of(crd), err)
		}
		if err == nil {
			parts.Definitions = append(parts.Definitions, live)
		}
	}
	return parts, nil
}

// bindsOnly reports whether an object gives rights to accounts of a namespace and to nobody else. Left
// behind, it would give them to whoever may make an account of that name there.
func bindsOnly(u *unstructured.Unstructured, namespace string) bool {
	subjects, _, _ := unstructured.NestedSlice(u.Object, "subjects")
	return len(subjects) > 0 && !slices.ContainsFunc(subjects, func(s any) bool {
		subject, ok := s.(map[string]any)
		return !ok || subject["kind"] != "ServiceAccount" || subject["namespace"] != namespace
	})
}

// partLabels are on all parts of an agent.
func partLabels() map[string]string {
	return map[string]string{nameLabel: v1alpha1.AgentName, "app.kubernetes.io/part-of": "flux"}
}

// Running names the pods of an agent that have not ended.
func Running(ctx context.Context, c client.Client, namespace string) ([]string, error) {
	list := &corev1.PodList{}
	if err := c.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{nameLabel: v1alpha1.AgentName}); err != nil {
		return nil, fmt.Errorf("cannot list the pods of the agent: %w", err)
	}
	var names []string
	for i := range list.Items {
		if p := list.Items[i].Status.Phase; p != corev1.PodSucceeded && p != corev1.PodFailed {
			names = append(names, list.Items[i].Name)
		}
	}
	return names, nil
}

// Holder names a lease by which an agent of any namespace, or a controller of Flux, works on
// the objects of these kinds; empty if none does. It would act on the end of each of them.
func Holder(ctx context.Context, c client.Client, now time.Time) (string, error) {
	return holder(ctx, c, now, slices.Concat(lease.OfFlux(), lease.BesideAgents(), []string{v1alpha1.LeaderLease}))
}

// SyncHolder names a lease by which an agent of any namespace, or a controller of Flux whose work
// an agent does, works in a cluster; empty if none does.
func SyncHolder(ctx context.Context, c client.Client, now time.Time) (string, error) {
	return holder(ctx, c, now, append(lease.OfFlux(), v1alpha1.LeaderLease))
}

// FluxHolder names a lease by which a controller of Flux whose work an agent does works in a
// cluster; empty if none does.
func FluxHolder(ctx context.Context, c client.Client, now time.Time) (string, error) {
	return holder(ctx, c, now, lease.OfFlux())
}

// FluxWorks are the kinds on whose objects a controller of Flux works now, each with the lease by
// which it does.
func FluxWorks(ctx context.Context, c client.Client, now time.Time) (map[schema.GroupKind]client.ObjectKey, error) {
	l, err := lookAtLeases(ctx, c, now, slices.Concat(lease.OfFlux(), lease.BesideAgents()))
	if err != nil {
		return nil, err
	}
	renewed, err := l.renewed(ctx, c)
	if err != nil {
		return nil, err
	}
	kinds, err := reconciled()
	if err != nil {
		return nil, err
	}
	works, held := map[schema.GroupKind]client.ObjectKey{}, slices.Concat(l.held, renewed)
	for _, gvk := range kinds {
		controller := controllerOf(gvk.GroupKind())
		if i := slices.IndexFunc(held, func(key client.ObjectKey) bool { return controller != "" && lease.Of(key.Name, controller) }); i >= 0 {
			works[gvk.GroupKind()] = held[i]
		}
	}
	return works, nil
}

// controllerOf is the Lease of the controller of Flux that works on a kind; empty for kinds of ours.
func controllerOf(kind schema.GroupKind) string {
	switch kind.Group {
	case sourcev1.GroupVersion.Group:
		if kind.Kind == sourcev1.ExternalArtifactKind {
			return lease.SourceWatcher
		}
		return lease.SourceController
	case kustomizev1.GroupVersion.Group:
		return lease.KustomizeController
	case helmv2.GroupVersion.Group:
		return lease.HelmController
	case notificationv1.GroupVersion.Group:
		return lease.NotificationController
	case automationv1.GroupVersion.Group:
		if kind.Kind == automationv1.ImageUpdateAutomationKind {
			return lease.ImageAutomationController
		}
		return lease.ImageReflectorController
	case generatorv1.GroupVersion.Group:
		return lease.SourceWatcher
	}
	return ""
}

func holder(ctx context.Context, c client.Client, now time.Time, controllers []string) (string, error) {
	l, err := lookAtLeases(ctx, c, now, controllers)
	if err != nil {
		return "", err
	}
	held := l.held
	if len(held) == 0 {
		held, err = l.renewed(ctx, c)
	}
	if err != nil || len(held) == 0 {
		return "", err
	}
	return held[0].String(), nil
}

// leases are those of some controllers, as they were at a time.
type leases struct {
	controllers []string
	held        []client.ObjectKey
	// lapsed are those that have a holder and were renewed too long ago, with when that was.
	lapsed map[client.ObjectKey]time.Time
	// hold is how long a renewal of those holds, at most.
	hold time.Duration
}

func lookAtLeases(ctx context.Context, c client.Client, now time.Time, controllers []string) (leases, error) {
	l := leases{controllers: controllers, lapsed: map[client.ObjectKey]time.Time{}}
	list, err := leasesOf(ctx, c, controllers)
	for i := range list {
		found, key := &list[i], client.ObjectKeyFromObject(&list[i])
		switch s := found.Spec; {
		case lease.Held(found, now):
			l.held = append(l.held, key)
		case s.RenewTime != nil && lease.Held(found, s.RenewTime.Time):
			l.lapsed[key] = s.RenewTime.Time
			l.hold = max(l.hold, time.Duration(*s.LeaseDurationSeconds)*time.Second)
		}
	}
	return l, err
}

// renewed are those of the lapsed that are renewed while a renewal holds: the clock by which
// they lapsed may be wrong, and what is renewed is held.
func (l leases) renewed(ctx context.Context, c client.Client) ([]client.ObjectKey, error) {
	if len(l.lapsed) == 0 {
		return nil, nil
	}
	timer := time.NewTimer(l.hold)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot tell whether Leases are renewed that lapsed: %w", ctx.Err())
	case <-timer.C:
	}
	list, err := leasesOf(ctx, c, l.controllers)
	var found []client.ObjectKey
	for i := range list {
		key, renewed := client.ObjectKeyFromObject(&list[i]), list[i].Spec.RenewTime
		if before, ok := l.lapsed[key]; ok && renewed != nil && !renewed.Time.Equal(before) && lease.Held(&list[i], renewed.Time) {
			found = append(found, key)
		}
	}
	return found, err
}

// leasesOf are the Leases of some controllers, in all namespaces.
func leasesOf(ctx context.Context, c client.Client, controllers []string) ([]coordinationv1.Lease, error) {
	list := &coordinationv1.LeaseList{}
	if err := c.List(ctx, list); err != nil {
		return nil, fmt.Errorf("cannot list Leases to tell whether somebody works on the same objects: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(l coordinationv1.Lease) bool { return !lease.Of(l.Name, controllers...) }), nil
}

// reconciled are the kinds whose objects have finalizers of an agent.
func reconciled() ([]schema.GroupVersionKind, error) {
	crds, err := deploy.CRDs()
	if err != nil {
		return nil, err
	}
	var kinds []schema.GroupVersionKind
	for _, crd := range crds {
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
		kinds = append(kinds, schema.GroupVersionKind{Group: group, Kind: kind})
	}
	slices.SortFunc(kinds, func(a, b schema.GroupVersionKind) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind))
	})
	return kinds, nil
}

// finalizers are those that an agent sets: those of Flux's controllers, which have one for all
// kinds but ArtifactGenerators, and ours.
func finalizers() []string {
	return []string{sourcev1.SourceFinalizer, generatorv1.Finalizer, v1alpha1.RemovalFinalizer, v1alpha1.CredentialFinalizer}
}

// Released counts the objects of each kind that are there, and those that lost a finalizer.
type Released struct {
	Kind         string
	There, Freed int
	// Going are those that were being deleted: they go, and what they applied stays.
	Going int
}

// Release takes the finalizers of the agent off all objects of its kinds. Without an agent
// nobody would, and their deletion would wait for ever. What they applied stays, which is
// what a finalizer is there to remove.
//
// Objects of kinds with which Flux's controllers go on keep them: these would not set them
// again before something changes, and prune nothing of what goes meanwhile.
func Release(ctx context.Context, c client.Client, dryRun bool, goesOn func(schema.GroupKind) bool) ([]Released, error) {
	kinds, err := reconciled()
	if err != nil {
		return nil, err
	}
	kinds = slices.DeleteFunc(kinds, func(gvk schema.GroupVersionKind) bool { return goesOn(gvk.GroupKind()) })
	var all []Released
	for _, gvk := range kinds {
		r, err := release(ctx, c, gvk, dryRun)
		if err != nil {
			return all, err
		}
		if r.There > 0 {
			all = append(all, r)
		}
	}
	return all, nil
}

// changeTries is how often an object is read again that somebody else writes meanwhile.
const changeTries = 5

// change changes an object as it is at the server. One that is gone needs no change.
func change(ctx context.Context, c client.Client, o *metav1.PartialObjectMetadata, f func()) error {
	for try := 1; ; try++ {
		before := o.DeepCopy()
		f()
		err := c.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(Owner("").FieldManager))
		if !apierrors.IsConflict(err) || try == changeTries {
			return client.IgnoreNotFound(err)
		}
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
}

func release(ctx context.Context, c client.Client, gvk schema.GroupVersionKind, dryRun bool) (Released, error) {
	r := Released{Kind: gvk.Kind}
	mapping, err := c.RESTMapper().RESTMapping(gvk.GroupKind())
	if meta.IsNoMatchError(err) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("cannot find kind %s: %w", gvk.Kind, err)
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(mapping.GroupVersionKind.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := c.List(ctx, list); err != nil {
		return r, fmt.Errorf("cannot list objects of kind %s: %w", gvk.Kind, err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		o.SetGroupVersionKind(mapping.GroupVersionKind)
		r.There++
		if !slices.ContainsFunc(o.Finalizers, func(f string) bool { return slices.Contains(finalizers(), f) }) {
			continue
		}
		r.Freed++
		if o.DeletionTimestamp != nil {
			r.Going++
		}
		if dryRun {
			continue
		}
		if err := change(ctx, c, o, func() {
			o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool { return slices.Contains(finalizers(), f) })
		}); err != nil {
			return r, fmt.Errorf("cannot take the finalizer off %s %s/%s: %w", gvk.Kind, o.Namespace, o.Name, err)
		}
	}
	return r, nil
}

// Disown takes the owner off the Secrets that Credentials keep: with the definition all
// Credentials go, and what they own goes with them. It returns how many Secrets these are. The
// journal of a Credential, in which nothing is for anybody else, stays its own.
func Disown(ctx context.Context, c client.Client, dryRun bool) (secrets int, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := c.List(ctx, list); err != nil {
		return 0, fmt.Errorf("cannot list the Secrets that Credentials keep: %w", err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		if o.Labels[v1alpha1.LeasesLabel] != "" || !slices.ContainsFunc(o.OwnerReferences, ofCredential) {
			continue
		}
		secrets++
		if dryRun {
			continue
		}
		if err := change(ctx, c, o, func() { o.OwnerReferences = slices.DeleteFunc(o.OwnerReferences, ofCredential) }); err != nil {
			return secrets, fmt.Errorf("cannot take the owner off Secret %s/%s: %w", o.Namespace, o.Name, err)
		}
	}
	return secrets, nil
}

func ofCredential(ref metav1.OwnerReference) bool {
	group, _, _ := strings.Cut(ref.APIVersion, "/")
	return group == v1alpha1.Group && ref.Kind == "Credential"
}

// Confirm sets the confirmation without which the wall keeps a definition.
func Confirm(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed)
	if err := c.Patch(ctx, u, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot confirm the deletion of %s: %w", inventory.Of(u), err)
	}
	return nil
}

// Gone names those of some objects that are still there.
func Gone(ctx context.Context, c client.Client, objects []*unstructured.Unstructured) (left []string, err error) {
	for _, u := range objects {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(u.GroupVersionKind())
		err := c.Get(ctx, client.ObjectKeyFromObject(u), o)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("cannot read %s: %w", inventory.Of(u), err)
		case o.UID == u.GetUID():
			left = append(left, inventory.Of(u).String())
		}
	}
	return left, nil
}
