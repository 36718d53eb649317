package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
)

// helmPolicy is the annotation with which Helm leaves an object behind.
const helmPolicy = "helm.sh/resource-policy"

// holder is an owner of an object: a Kustomization or a HelmRelease.
type holder struct {
	// object is nil if there is none, or it may not be read.
	object *unstructured.Unstructured
	goes   bool
}

// above are the owners of one name: in the cluster of the object, and in the tier that applies to that from
// elsewhere. A label does not say which it is of.
type above struct {
	holders []holder
	// goes: one of them does.
	goes bool
}

// goes reports whether an object goes: it is being deleted, or its deletion is confirmed, or its owner goes.
func (a *Applier) goes(ctx context.Context, u *unstructured.Unstructured, k *lookups) (bool, error) {
	if isGoing(u) {
		return true, nil
	}
	return a.goesAbove(ctx, u, k, func(inventory.Entry) bool { return true })
}

// isGoing reports whether an object itself says that it goes.
func isGoing(u *unstructured.Unstructured) bool {
	return u.GetDeletionTimestamp() != nil || u.GetAnnotations()[v1alpha1.DeletionAnnotation] == v1alpha1.DeletionConfirmed
}

// goesAbove reports whether an owner of an object goes that counts, and takes it along.
func (a *Applier) goesAbove(ctx context.Context, u *unstructured.Unstructured, k *lookups, counts func(inventory.Entry) bool) (bool, error) {
	for _, e := range aboveOf(u) {
		if !counts(e) || keptFrom(e, u) {
			continue
		}
		by, err := a.readAbove(ctx, e, k)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(by.holders, func(h holder) bool { return h.goes && has(h.object, u) }) {
			return true, nil
		}
	}
	return false, nil
}

// has reports whether an owner has an object. Who moved it to another one left its label there: what
// counts is the inventory, if there is one that can be read.
func has(owner, u *unstructured.Unstructured) bool {
	if owner == nil {
		return true
	}
	entries, err := recorded(owner)
	return err != nil || len(entries) == 0 || slices.ContainsFunc(entries, func(e inventory.Entry) bool { return e.ID() == inventory.Of(u).ID() })
}

// readAbove reads the owners of a name, once for a plan.
func (a *Applier) readAbove(ctx context.Context, e inventory.Entry, k *lookups) (above, error) {
	if by, known := k.above[e]; known {
		return by, nil
	}
	if k.above == nil {
		k.above = map[inventory.Entry]above{}
	}
	k.above[e] = above{} // two may have each other
	by, err := a.readHolders(ctx, e, k)
	if err != nil {
		delete(k.above, e)
		return above{}, err
	}
	k.above[e] = by
	return by, nil
}

func (a *Applier) readHolders(ctx context.Context, e inventory.Entry, k *lookups) (above, error) {
	here, err := a.readHolder(ctx, e, k)
	if err != nil || a.facts.home == nil {
		return above{[]holder{here}, here.goes}, err
	}
	if k.home == nil {
		k.home = &lookups{}
	}
	home := *a
	home.facts = a.facts.home
	there, err := home.readHolder(ctx, e, k.home)
	if there.object != nil && !appliesElsewhere(there.object) {
		there = holder{} // it has nothing in this cluster
	}
	return above{[]holder{here, there}, here.goes || there.goes}, err
}

// appliesElsewhere reports whether an owner applies to another cluster than its own.
func appliesElsewhere(owner *unstructured.Unstructured) bool {
	_, elsewhere, _ := unstructured.NestedMap(owner.Object, "spec", "kubeConfig")
	return elsewhere
}

// readHolder reads an owner. One that may not be read goes, as nobody knows that it stays.
func (a *Applier) readHolder(ctx context.Context, e inventory.Entry, k *lookups) (holder, error) {
	u := &unstructured.Unstructured{}
	err := a.facts.InServed(e.GroupKind(), func(served *meta.RESTMapping) error {
		u.SetGroupVersionKind(served.GroupVersionKind)
		return a.facts.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.Name}, u)
	})
	var by holder
	switch {
	case confirmsAbsence(err), meta.IsNoMatchError(err):
	case apierrors.IsForbidden(err):
		by.goes = true
	case err != nil:
		return holder{}, fmt.Errorf("cannot read %s to tell whether it goes: %w", e, err)
	default:
		by.object = u
		if leaves(u) {
			break
		}
		if by.goes, err = a.goes(ctx, u, k); err != nil {
			return holder{}, err
		}
	}
	return by, nil
}

// aboveOf are the owners that the labels of an object name, but for itself.
func aboveOf(u *unstructured.Unstructured) []inventory.Entry {
	var found []inventory.Entry
	labels, self := u.GetLabels(), inventory.Of(u)
	for _, e := range []inventory.Entry{{Group: group, Kind: "Kustomization"}, {Group: releaseGroup, Kind: "HelmRelease"}} {
		e.Namespace, e.Name = labels[e.Group+"/namespace"], labels[e.Group+"/name"]
		if e.Name != "" && e.ID() != self.ID() {
			found = append(found, e)
		}
	}
	return found
}

// keptFrom reports whether an object stays when its owner goes.
func keptFrom(e inventory.Entry, u *unstructured.Unstructured) bool {
	if e.Group == releaseGroup {
		return strings.EqualFold(strings.TrimSpace(u.GetAnnotations()[helmPolicy]), "keep")
	}
	return directive.Keeps(u.GetLabels(), u.GetAnnotations())
}
