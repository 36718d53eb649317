package apply

import (
	"context"
	"fmt"
	"slices"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
)

// read returns what the cluster says about entries. owned is the whole
// inventory: the content of a Namespace is compared with it.
func (a *Applier) read(ctx context.Context, entries, owned []inventory.Entry, k *lookups) map[inventory.Entry]inventory.Live {
	a.gather(ctx, entries, k)
	facts := make(map[inventory.Entry]inventory.Live, len(entries))
	for _, e := range entries {
		facts[e], _ = a.examine(ctx, e, owned, k)
	}
	return facts
}

// Look returns what the cluster says about one object that may have to be
// deleted, and the labels and annotations of one that is present.
type Look func(ctx context.Context, e inventory.Entry) (live inventory.Live, labels, annotations map[string]string)

// Looks returns a Look for objects that are judged together, one after the other: what is read of
// Clusters and of identities for the first of them counts for all. owned is everything that the owner answers
// for, and confirmed whether a person confirmed the deletion of all that.
func (a *Applier) Looks(owned []inventory.Entry, confirmed bool) Look {
	k := &lookups{owned: owned, confirmed: confirmed}
	return func(ctx context.Context, e inventory.Entry) (live inventory.Live, labels, annotations map[string]string) {
		live, u := a.examine(ctx, e, owned, k)
		if live.State != inventory.Present {
			return live, nil, nil
		}
		return live, u.GetLabels(), u.GetAnnotations()
	}
}

func unknown(err error) inventory.Live {
	return inventory.Live{State: inventory.Unknown, Problem: err.Error()}
}

// examine returns what the cluster says about one entry, and the object if it
// is present. The objects of one plan share k.
func (a *Applier) examine(ctx context.Context, e inventory.Entry, owned []inventory.Entry, k *lookups) (inventory.Live, *unstructured.Unstructured) {
	mapping, err := a.facts.served(e)
	if meta.IsNoMatchError(err) {
		return a.kindGone(ctx, e, k), nil
	}
	if err != nil {
		return unknown(err), nil
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && e.Namespace == "" {
		// Written down ahead of an apply that could not succeed.
		return inventory.Live{State: inventory.Absent}, nil
	}
	u, err := a.found(ctx, mapping, e, k)
	if apierrors.IsNotFound(err) && !confirmsAbsence(err) {
		moved, _, rerr := a.facts.relocate(e.GroupKind())
		switch {
		case rerr != nil:
			return unknown(rerr), nil
		case moved == nil:
			return a.kindGone(ctx, e, k), nil
		}
		u, err = a.get(ctx, moved, e)
	}
	switch {
	case confirmsAbsence(err):
		return inventory.Live{State: inventory.Absent}, nil
	case meta.IsNoMatchError(err):
		return a.kindGone(ctx, e, k), nil
	case err != nil:
		return unknown(err), nil
	}
	live, err := a.liveOf(ctx, e, u, k)
	if err != nil {
		return unknown(err), nil
	}
	if live.Owned && live.Deleting && k.asked && k.claimed != nil && isSync(e) {
		// An owner that is declared again is not to wait for what goes of its own: it comes back once it is
		// gone, and so do all its objects.
		claim, err := k.claimed(ctx, e, inventory.Entry{})
		if err != nil {
			return unknown(err), nil
		}
		live.Again = claim.Kind == Again
	}
	if !live.Owned || live.Deleting {
		if live.Owned && live.Lingers(a.now()) && isSync(e) {
			if live.Holds, live.Carries, err = a.carries(ctx, e, u, k); err != nil {
				live.Holds = []string{err.Error()} // it may have a Cluster, and is there, whatever the error says
			}
		}
		return live, u
	}
	if live.Exempt {
		// It is not pruned. Its Namespace may be, and a HelmRelease knows of no such directive.
		if live.OfCluster, live.Credential, err = a.neededBy(ctx, e, u, live.Confirmed || k.confirmed, k); err != nil {
			return unknown(err), nil
		}
		return live, u
	}
	if k.claimed != nil {
		if err := a.claim(ctx, e, u.GetLabels(), k, &live); err != nil {
			return unknown(err), nil
		}
	}
	if err := a.weigh(ctx, e, u, owned, k, &live); err != nil {
		return unknown(err), nil
	}
	return live, u
}

// liveOf is what an object says about itself.
func (a *Applier) liveOf(ctx context.Context, e inventory.Entry, u *unstructured.Unstructured, k *lookups) (live inventory.Live, err error) {
	labels := u.GetLabels()
	live = inventory.Live{
		State:     inventory.Present,
		UID:       string(u.GetUID()),
		Version:   u.GetResourceVersion(),
		Owned:     a.owner.owns(labels),
		Recreated: !a.applied(u),
		Claimed:   a.others(labels, k),
		Guarded:   labels[v1alpha1.ProtectedLabel] == "true" || a.isOwner(e),
		Self:      a.isOwner(e),
		Exempt:    directive.Keeps(labels, u.GetAnnotations()),
		Confirmed: u.GetAnnotations()[v1alpha1.DeletionAnnotation] == v1alpha1.DeletionConfirmed,
		Deleting:  u.GetDeletionTimestamp() != nil,
		Provider:  labels[clusterapi.ProviderLabel],
		OfAgent:   inventory.AgentLabels(labels),
	}
	if live.Deleting {
		live.Since = u.GetDeletionTimestamp().Time
		if a.owner.LabelGroup == releaseGroup && isSync(e) {
			// A Kustomization waits for the HelmReleases that go with it. What cannot be read tells nothing.
			below, _ := recorded(u)
			live.Self = live.Self || slices.ContainsFunc(below, a.isOwner)
		}
	}
	if isSecret(e) {
		kind, _, _ := unstructured.NestedString(u.Object, "type")
		live.ClusterSecret = kind == clusterapi.SecretType
	}
	if isLayer(e) {
		live.Holding = holding(u)
	}
	if inventory.LockdownRights(e) {
		live.LockedDown, err = a.lockedDown(ctx)
	}
	return live, err
}

// lockedDown reports whether the agent of the cluster has the rights of a lockdown alone. A plan
// is made when everything was applied, so what is there now is what is declared.
func (a *Applier) lockedDown(ctx context.Context) (bool, error) {
	binding := inventory.AgentBinding().Object()
	if err := a.facts.Get(ctx, client.ObjectKeyFromObject(binding), binding); confirmsAbsence(err) {
		return true, nil
	} else if err != nil {
		return false, fmt.Errorf("cannot read %s to tell which rights the agent has: %w", inventory.AgentBinding(), err)
	}
	return inventory.LockedDown(binding), nil
}

// weigh sets what would be lost with an object: what needs it, and what goes with it.
func (a *Applier) weigh(ctx context.Context, e inventory.Entry, u *unstructured.Unstructured, owned []inventory.Entry, k *lookups, live *inventory.Live) (err error) {
	if live.OfCluster, live.Credential, err = a.neededBy(ctx, e, u, live.Confirmed || k.confirmed, k); err != nil {
		return err
	}
	switch {
	case e.Group == "" && e.Kind == "Namespace":
		if live.Holds, err = a.holds(ctx, e.Name, owned); err == nil && (live.Confirmed || k.confirmed) {
			live.OfCluster, err = a.servesElsewhere(ctx, e.Name, k)
		}
	case isSync(e):
		live.Holds, live.Carries, err = a.carries(ctx, e, u, k)
	case isLayer(e):
		live.Holds, live.Carries, live.Along = along(e, u)
	}
	return err
}

// claim sets what other owners of the tier have to do with an object.
func (a *Applier) claim(ctx context.Context, e inventory.Entry, labels map[string]string, k *lookups, live *inventory.Live) error {
	claim, err := k.claimed(ctx, e, inventory.Entry{})
	by := Marked(labels, a.owner.LabelGroup)
	switch {
	case err != nil:
		return err
	case slices.Contains(claim.Perhaps, by), claim.Kind == Recorded && by != "" && by == claim.Owner:
		live.Owned = false // that one took the object over, and applied it
	case claim.Owner == "":
	case claim.Kind == Again:
		live.Again = true
	case live.Claimed != "":
	case claim.Kind == Declared, claim.Unsure:
		live.HandOver, live.Unsure, live.Ahead = claim.Owner, claim.Unsure, claim.Ahead
	default:
		live.Claimed = claim.Owner
	}
	return nil
}
