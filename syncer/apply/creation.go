package apply

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// Creation decides which objects may not be applied because they would build a
// cluster that may exist already. record is what the tier knows of the Clusters
// of the objects; the caller reads it before. The cluster is asked only where
// the record leaves a doubt.
func (a *Applier) Creation(ctx context.Context, objects []*unstructured.Unstructured, record *inventory.FirstSync) (*inventory.Creation, error) {
	if record == nil {
		return nil, nil
	}
	objects = slices.DeleteFunc(slices.Clone(objects), func(u *unstructured.Unstructured) bool {
		return directive.Selects(directive.Skip(), u) // it is not applied in any case
	})
	fleet := inventory.FleetOf(objects)
	live := map[types.NamespacedName]inventory.ClusterLive{}
	for _, name := range fleet.Clusters {
		if record.Open(name) {
			continue
		}
		live[name] = a.clusterLive(ctx, name, record)
	}
	var loose map[inventory.Entry]inventory.LooseLive
	if !record.Settled && len(fleet.Loose) > 0 {
		var err error
		if loose, err = a.looseLive(ctx, fleet.Loose); err != nil {
			return nil, err
		}
	}
	return inventory.PlanCreation(fleet, record, live, loose)
}

func clusterEntry(name types.NamespacedName) inventory.Entry {
	return inventory.Entry{Namespace: name.Namespace, Name: name.Name, Group: clusterapi.Group, Kind: clusterapi.Cluster}
}

// clusterLive reads one Cluster. In a settled tier a Cluster that the memo
// shows is not read: applying it is pinned to its UID, so that it cannot be
// created.
func (a *Applier) clusterLive(ctx context.Context, name types.NamespacedName, record *inventory.FirstSync) inventory.ClusterLive {
	e := clusterEntry(name)
	if record.Settled && a.memo.Live(memo.Object{Kind: e.GroupKind(), Name: name}) != nil {
		return inventory.ClusterLive{State: inventory.Present}
	}
	u, state, err := a.fetch(ctx, e)
	switch {
	case err != nil:
		return inventory.ClusterLive{Problem: err.Error()}
	case state != inventory.Present:
		return inventory.ClusterLive{State: state}
	}
	is := inventory.ClusterLive{State: inventory.Present, Paused: clusterapi.IsPaused(u)}
	if record.Settled {
		return is
	}
	for _, part := range clusterapi.PartsOf(u) {
		if part.Group == "" {
			continue
		}
		// Parts are in the namespace of their Cluster, whatever the reference says.
		ref := inventory.Entry{Namespace: u.GetNamespace(), Name: part.Name, Group: part.Group, Kind: part.Kind, Version: part.Version}
		switch there := a.exists(ctx, ref, &lookups{}); there.State {
		case inventory.Unknown:
			return inventory.ClusterLive{Problem: there.Problem}
		case inventory.Absent:
			is.Missing = append(is.Missing, ref.String())
		}
	}
	return is
}

// fetch reads a whole object. Without an error the state is Present or Absent.
func (a *Applier) fetch(ctx context.Context, e inventory.Entry) (*unstructured.Unstructured, inventory.State, error) {
	gone := func() (*unstructured.Unstructured, inventory.State, error) {
		if is := a.facts.kindGone(ctx, e); is.State == inventory.Unknown {
			return nil, is.State, fmt.Errorf("cannot read %s: %s", e, is.Problem)
		}
		return nil, inventory.Absent, nil
	}
	mapping, err := a.facts.served(e)
	if meta.IsNoMatchError(err) {
		return gone()
	}
	if err != nil {
		return nil, inventory.Unknown, fmt.Errorf("cannot read %s: %w", e, err)
	}
	u := e.Object()
	u.SetGroupVersionKind(mapping.GroupVersionKind)
	err = a.facts.Get(ctx, client.ObjectKeyFromObject(u), u)
	switch {
	case confirmsAbsence(err):
		return nil, inventory.Absent, nil
	case meta.IsNoMatchError(err):
		return gone()
	case err != nil:
		return nil, inventory.Unknown, fmt.Errorf("cannot read %s: %w", e, err)
	}
	return u, inventory.Present, nil
}

// exists asks for the metadata of an object.
func (a *Applier) exists(ctx context.Context, e inventory.Entry, k *lookups) inventory.Live {
	mapping, err := a.facts.served(e)
	if meta.IsNoMatchError(err) {
		return a.kindGone(ctx, e, k)
	}
	if err != nil {
		return unknown(err)
	}
	_, err = a.facts.metadata.Resource(mapping.Resource).Namespace(namespaceOf(mapping, e)).Get(ctx, e.Name, metav1.GetOptions{})
	switch {
	case confirmsAbsence(err):
		return inventory.Live{State: inventory.Absent}
	case err != nil:
		return unknown(fmt.Errorf("cannot read %s: %w", e, err))
	}
	return inventory.Live{State: inventory.Present}
}

// looseLive looks at objects of which nothing says to which Cluster they belong,
// and at the Clusters of their namespaces, which may refer to them.
func (a *Applier) looseLive(ctx context.Context, entries []inventory.Entry) (map[inventory.Entry]inventory.LooseLive, error) {
	clusters := map[string]*unstructured.UnstructuredList{}
	out := map[inventory.Entry]inventory.LooseLive{}
	known := &lookups{}
	for _, e := range entries {
		is := a.exists(ctx, e, known)
		if is.State == inventory.Unknown {
			return nil, fmt.Errorf("cannot tell whether %s exists: %s", e, is.Problem)
		}
		out[e] = inventory.LooseLive{State: is.State}
		if is.State == inventory.Present {
			continue
		}
		list, ok := clusters[e.Namespace]
		if !ok {
			var err error
			if list, err = a.clustersIn(ctx, e.Namespace); err != nil {
				return nil, err
			}
			clusters[e.Namespace] = list
		}
		for i := range list.Items {
			if clusterapi.RefersTo(&list.Items[i], e.Namespace, e.Kind, e.Name) {
				name := client.ObjectKeyFromObject(&list.Items[i])
				out[e] = inventory.LooseLive{State: is.State, Of: &name}
				break
			}
		}
	}
	return out, nil
}

func (a *Applier) clustersIn(ctx context.Context, namespace string) (*unstructured.UnstructuredList, error) {
	list := &unstructured.UnstructuredList{}
	err := a.facts.InServed(clusterapi.ClusterKind, func(served *meta.RESTMapping) error {
		list.SetGroupVersionKind(served.GroupVersionKind)
		return a.facts.List(ctx, list, client.InNamespace(namespace))
	})
	if meta.IsNoMatchError(err) {
		return list, nil // what may refer to it cannot be there; then it is held
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list Clusters in namespace %s: %w", namespace, err)
	}
	return list, nil
}

// withoutHeld leaves out what must not be applied.
func withoutHeld(objects []*unstructured.Unstructured, c *inventory.Creation) []*unstructured.Unstructured {
	if !c.Withholding() {
		return objects
	}
	var may []*unstructured.Unstructured
	for _, u := range objects {
		if !c.Withholds(inventory.Of(u)) {
			may = append(may, u)
		}
	}
	return may
}

// pin sets the UID of the live object. The API server refuses to apply it if
// the object has gone or is another one by now, because it creates nothing that
// has a UID.
func pin(u *unstructured.Unstructured, live *observed.Object) *unstructured.Unstructured {
	pinned := u.DeepCopy()
	pinned.SetUID(live.UID)
	return pinned
}
