package difference

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
)

// Renderings of one owner in one cluster.
type Renderings struct {
	// Before is what is declared now, nil if the owner is new there. After is what the commit
	// declares, nil if the owner goes.
	Before, After []*unstructured.Unstructured
	// Prune: what is no longer declared is deleted.
	Prune bool
	// Child: the cluster is a child, whose sync objects are protected.
	Child bool
	// Asked: the owner is deleted as well, and so are its objects, as far as none is
	// protected.
	Asked bool
	// Elsewhere has what other owners declare in the cluster.
	Elsewhere Declared
	// Along is what goes with an owner among the objects, when it is deleted.
	Along map[Identity]Along
}

// Declared is what owners declare in one cluster, now and by the commit.
type Declared struct {
	Before, After map[Identity]*unstructured.Unstructured
}

// Along is what is deleted with a Kustomization or Layer.
type Along struct {
	Objects int
	// Protected names what does not go without a confirmation.
	Protected []string
}

// Compare finds what the commit changes, sorted, and what the guard of deletes would say;
// empty if it would let them pass.
func Compare(r Renderings) (changes []Change, guard string) {
	before, after := ByIdentity(r.Before), ByIdentity(r.After)
	for key, u := range after {
		was, ok := before[key]
		moved, other := r.Elsewhere.Before[key]
		switch {
		case directive.Selects(directive.Skip(), u):
		case !ok && other:
			changes = append(changes, changeOf(u, Moved, fields(moved, u)))
		case !ok:
			changes = append(changes, changeOf(u, Added, nil))
		case directive.Selects(directive.IfNotPresent(), u):
		default:
			if paths := fields(was, u); len(paths) > 0 {
				changes = append(changes, changeOf(u, Changed, paths))
			}
		}
	}
	deletes, guard := deleted(r, before, after)
	changes = append(changes, deletes...)
	slices.SortFunc(changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Action.order(), b.Action.order()), strings.Compare(a.String(), b.String()), strings.Compare(a.APIVersion, b.APIVersion))
	})
	return changes, guard
}

// Identity of an object, whatever version it is declared in.
type Identity struct{ Group, Kind, Namespace, Name string }

// IdentityOf is that of an object.
func IdentityOf(u *unstructured.Unstructured) Identity {
	return Identity{u.GroupVersionKind().Group, u.GetKind(), u.GetNamespace(), u.GetName()}
}

// ByIdentity has objects by their identities.
func ByIdentity(objects []*unstructured.Unstructured) map[Identity]*unstructured.Unstructured {
	all := make(map[Identity]*unstructured.Unstructured, len(objects))
	for _, u := range objects {
		all[IdentityOf(u)] = u
	}
	return all
}

// deleted are the objects that are no longer declared, and what becomes of them.
func deleted(r Renderings, before, after map[Identity]*unstructured.Unstructured) ([]Change, string) {
	var gone []Change
	live := map[inventory.Entry]inventory.Live{}
	actions := map[inventory.Entry]Action{}
	for key, u := range before {
		if goes := r.goes(key, after); !goes {
			continue
		}
		e := inventory.Of(u)
		keeps := !r.Prune || directive.Keeps(u.GetLabels(), u.GetAnnotations())
		actions[e] = Kept
		along := r.Along[key]
		live[e] = inventory.Live{
			State: inventory.Present, UID: e.ID(), Owned: true, Exempt: keeps, Holds: along.Protected, Below: inventory.Below{Carries: along.Objects},
			OfAgent: inventory.AgentLabels(u.GetLabels()), LockedDown: inventory.LockdownRights(e) && r.lockedDown(after),
			Confirmed: u.GetAnnotations()[v1alpha1.DeletionAnnotation] == v1alpha1.DeletionConfirmed,
		}
	}
	if len(live) == 0 {
		return nil, ""
	}
	owned, rendered := inventory.OfAll(r.Before), inventory.OfAll(r.After)
	for _, e := range inventory.Beside(owned, rendered) {
		live[e] = inventory.Live{State: inventory.Present, Owned: true} // what needs it is known in the cluster alone
	}
	plan := inventory.PlanPrune(inventory.Facts{
		Owned: owned, Rendered: rendered, Live: live, LowerTier: r.Child, Asked: r.Asked,
	})
	for _, d := range plan.Deletes {
		if actions[d.Entry] = Deleted; plan.Held {
			actions[d.Entry] = Held
		}
	}
	for _, e := range plan.Last {
		actions[e] = Deleted
	}
	for _, e := range slices.Concat(plan.Protected, plan.Needed, plan.OfCluster, plan.Queued, plan.Waiting) {
		actions[e] = Protected
	}
	for key, u := range before {
		if r.goes(key, after) {
			gone = append(gone, changeOf(u, actions[inventory.Of(u)], nil))
		}
	}
	guard := ""
	if plan.Held {
		guard = plan.Guard
	}
	return gone, guard
}

// lockedDown reports whether the commit leaves the agent with the rights of a lockdown alone.
func (r Renderings) lockedDown(after map[Identity]*unstructured.Unstructured) bool {
	key := IdentityOf(inventory.AgentBinding().Object())
	binding := cmp.Or(after[key], r.Elsewhere.After[key])
	return binding == nil || inventory.LockedDown(binding)
}

// goes reports whether nobody declares an object any more that the owner declared.
func (r Renderings) goes(key Identity, after map[Identity]*unstructured.Unstructured) bool {
	_, stays := after[key]
	_, other := r.Elsewhere.After[key]
	return !stays && !other
}

func changeOf(u *unstructured.Unstructured, action Action, paths []string) Change {
	return Change{
		Action: action, APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(), Fields: paths,
	}
}

// Grouped puts clusters together in which the same changes. The clusters of a group, and the
// groups by their first cluster, are in order.
func Grouped(results []Result) []Group {
	slices.SortFunc(results, func(a, b Result) int { return strings.Compare(a.Cluster, b.Cluster) })
	var groups []Group
	places := map[string]int{}
	for _, r := range results {
		if len(r.Changes) == 0 {
			continue
		}
		key := fmt.Sprintf("%q %q %v", r.From, r.Guard, r.Changes)
		i, ok := places[key]
		if !ok {
			i = len(groups)
			places[key] = i
			groups = append(groups, Group{From: r.From, Changes: r.Changes, Guard: r.Guard})
		}
		if r.Cluster != "" {
			groups[i].Clusters = append(groups[i].Clusters, r.Cluster)
		}
	}
	return groups
}
