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

// above is an owner of an object: a Kustomization or a HelmRelease.
type above struct {
	// object is nil if there is none, or it may not be read.
	object *unstructured.Unstructured
	goes   bool
}

// goes reports whether an object goes: it is being deleted, or its deletion is confirmed, or its owner goes.
func (a *Applier) goes(ctx context.Context, u *unstructured.Unstructured, k *lookups) (bool, error) {
	if u.GetDeletionTimestamp() != nil {
		return true, nil
	}
	for _, e := range aboveOf(u) {
		if keptFrom(e, u) {
			continue
		}
		by, err := a.readAbove(ctx, e, k)
		if err != nil {
			return false, err
		}
		if by.goes && has(by.object, u) {
			return true, nil
		}
	}
	return u.GetAnnotations()[v1alpha1.DeletionAnnotation] == v1alpha1.DeletionConfirmed, nil
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

// readAbove reads an owner, once for a plan. One that may not be read goes, as nobody knows that it stays.
func (a *Applier) readAbove(ctx context.Context, e inventory.Entry, k *lookups) (above, error) {
	if by, known := k.above[e]; known {
		return by, nil
	}
	if k.above == nil {
		k.above = map[inventory.Entry]above{}
	}
	u := &unstructured.Unstructured{}
	err := a.facts.InServed(e.GroupKind(), func(served *meta.RESTMapping) error {
		u.SetGroupVersionKind(served.GroupVersionKind)
		return a.facts.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.Name}, u)
	})
	var by above
	switch {
	case confirmsAbsence(err), meta.IsNoMatchError(err):
	case apierrors.IsForbidden(err):
		by.goes = true
	case err != nil:
		return above{}, fmt.Errorf("cannot read %s to tell whether it goes: %w", e, err)
	default:
		by.object = u
		if leaves(u) {
			break
		}
		k.above[e] = by // two may have each other
		if by.goes, err = a.goes(ctx, u, k); err != nil {
			delete(k.above, e)
			return above{}, err
		}
	}
	k.above[e] = by
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
