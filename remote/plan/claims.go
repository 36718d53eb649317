package plan

import (
	"context"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// Declared is what one layer that selects the child declares there.
type Declared struct {
	// Layer is its name, namespace/name.
	Layer string
	// Known: it is known what the layer declares. A layer that cannot be rendered may
	// declare anything.
	Known bool
	// Unsure: nobody knows whether the layer is for the child at all, which has nothing of it.
	Unsure bool
	// Ahead: it is what a layer will declare at the newest revision, while a Rollout holds it at
	// an older one, or this replica has not fetched that. To the layer itself that is nothing: it
	// goes by what it is rendered from.
	Ahead bool
	// Entries that it declares. Applied: all of them are in the child, and on record as
	// the layer's.
	Entries []inventory.Entry
	Applied bool
}

// Claims tells, for the layer named except, how the other layers of the child answer for
// an object. A layer that declares the object and has not applied it yet keeps the object
// for itself, without a bound: nobody meant to delete it in between. One that may not be for the child
// is told from these.
func Claims(layers []Declared, except string) apply.Claims {
	type of struct{ namespace, name, group, kind string }
	key := func(e inventory.Entry) of { return of{e.Namespace, e.Name, e.Group, e.Kind} }
	recorded, declared := map[of]string{}, map[of]string{}
	unknown, unsure := "", ""
	for _, l := range layers {
		switch {
		case l.Layer == except && (l.Known || l.Ahead):
			continue
		case l.Unsure:
			unsure = l.Layer
			continue
		case !l.Known:
			// It may be the one that asks itself, in the form that it has by now.
			unknown = l.Layer
			continue
		}
		into := declared
		if l.Applied {
			into = recorded
		}
		for _, e := range l.Entries {
			into[key(e)] = l.Layer
			// A layer may name a namespace for an object of a kind that has none.
			e.Namespace = ""
			into[key(e)] = l.Layer
		}
	}
	return func(_ context.Context, e, _ inventory.Entry) (apply.Claim, error) {
		at := key(e)
		switch {
		case recorded[at] != "":
			return apply.Claim{Owner: "Layer/" + recorded[at], Kind: apply.Recorded}, nil
		case declared[at] != "":
			return apply.Claim{Owner: "Layer/" + declared[at], Kind: apply.Declared}, nil
		case unknown != "":
			return apply.Claim{Owner: "Layer/" + unknown, Kind: apply.Declared}, nil
		case unsure != "":
			return apply.Claim{Owner: "Layer/" + unsure, Kind: apply.Declared, Unsure: true}, nil
		}
		return apply.Claim{}, nil
	}
}
