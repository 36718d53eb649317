package claim

import (
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
)

// index has the inventories of all owners by the objects in them, so that a plan does
// not read thousands of inventories to find out about a few objects. It is brought up to
// date by the resource versions of the owners. updates counts how often.
type index struct {
	updates int
	known   map[string]*indexed
	// owners of an object, by its id without the namespace.
	owners map[string]map[string]claim
}

// indexed is what the index has of an owner.
type indexed struct {
	owner   client.Object
	version string
	rests   []string
	// below are the owners in the inventory. layers: there are Layers in it.
	below  []inventory.Entry
	layers bool
	seen   bool
}

// update brings the index up to what owners have recorded now: all that there are, in a
// list that is no older than that of the update before.
func (x *index) update(owners []client.Object) {
	x.updates++
	if x.known == nil {
		x.known, x.owners = map[string]*indexed{}, map[string]map[string]claim{}
	}
	for _, o := range owners {
		e := EntryOf(o)
		id := e.ID()
		was := x.known[id]
		if was != nil && was.version == version(o) {
			was.seen = true
			continue
		}
		x.drop(id)
		now := &indexed{owner: alone(o), version: version(o), seen: true}
		for _, ref := range recorded(o) {
			namespace, rest := split(ref.ID)
			if x.owners[rest] == nil {
				x.owners[rest] = map[string]claim{}
			}
			// The same name in two namespaces of one owner is two claims.
			x.owners[rest][id+" "+namespace] = claim{namespace: namespace, owner: e}
			now.rests = append(now.rests, rest)
			below, err := inventory.Parse(ref.ID, ref.Version)
			switch {
			case err != nil:
			case IsOwner(below.GroupKind()):
				now.below = append(now.below, below)
			case isLayer(below.GroupKind()):
				now.layers = true
			}
		}
		x.known[id] = now
	}
	for id, of := range x.known {
		if !of.seen {
			x.drop(id)
		}
		of.seen = false
	}
}

// alone returns an owner outside of the list that it came in, of which a pointer to one element would
// keep all. It shares what the informer's cache has, and must not be changed either.
func alone(o client.Object) client.Object {
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		one := *o
		return &one
	case *helmv2.HelmRelease:
		one := *o
		return &one
	}
	return o
}

// version of an owner: another object of the same name has another one.
func version(o client.Object) string { return string(o.GetUID()) + " " + o.GetResourceVersion() }

func (x *index) drop(id string) {
	was := x.known[id]
	if was == nil {
		return
	}
	for _, rest := range was.rests {
		for key := range x.owners[rest] {
			if strings.HasPrefix(key, id+" ") {
				delete(x.owners[rest], key)
			}
		}
		if len(x.owners[rest]) == 0 {
			delete(x.owners, rest)
		}
	}
	delete(x.known, id)
}

// below are the owners in the inventory of an owner.
func (x *index) below(e inventory.Entry) []inventory.Entry {
	if of := x.known[e.ID()]; of != nil {
		return of.below
	}
	return nil
}

// layers reports whether there are Layers in the inventory of an owner.
func (x *index) layers(e inventory.Entry) bool {
	of := x.known[e.ID()]
	return of != nil && of.layers
}
