package apply

import (
	"context"
	"maps"
	"slices"
	"strings"
	"unique"

	"github.com/cascade-gitops/cascade/syncer/digest"
)

// Seal is what all objects of an owner were while each was as it was applied, by a sweep or by
// what the API server answered to the applies, in a few bytes: there is one for each layer of
// each child. As long as a sweep shows the same, no object has to be looked at: every write to
// one of them, also to its status, breaks the seal. The zero value is always broken.
type Seal struct {
	sum    digest.Short
	places []unique.Handle[place]
}

// standing is an object as it stands in one place.
type standing struct {
	name, uid, version string
}

// answered is an object as the API server answered to its apply.
type answered struct {
	at unique.Handle[place]
	standing
}

// sumOf identifies what stands in places, by name.
func sumOf(places []unique.Handle[place], in func(place) []standing) digest.Short {
	var parts []string
	for _, handle := range places {
		at := handle.Value()
		parts = append(parts, at.resource.String(), at.namespace)
		for _, s := range in(at) {
			parts = append(parts, s.name, s.uid, s.version)
		}
	}
	return digest.Of(parts...).Short()
}

// sortedPlaces are places in the order in which a Seal has them.
func sortedPlaces(places map[unique.Handle[place]]struct{}) []unique.Handle[place] {
	return slices.SortedFunc(maps.Keys(places), func(a, b unique.Handle[place]) int {
		one, other := a.Value(), b.Value()
		return strings.Compare(one.resource.String()+"/"+one.namespace, other.resource.String()+"/"+other.namespace)
	})
}

// Broken reports whether the sweep shows another state than the one of the seal, or may.
func (s *Sweep) Broken(ctx context.Context, owner Owner, seal Seal) (bool, error) {
	if len(seal.places) == 0 {
		return true, nil
	}
	sum, known, err := s.state(ctx, owner, seal.places)
	return !known || sum != seal.sum, err
}

// state identifies what the sweep shows of an owner in some places, which is not known if
// one of them could not be listed or is that of a restored backup.
func (s *Sweep) state(ctx context.Context, owner Owner, places []unique.Handle[place]) (sum digest.Short, known bool, err error) {
	shown := map[place]*swept{}
	for _, handle := range places {
		at := handle.Value()
		in, err := s.in(ctx, at)
		if err != nil {
			return sum, false, err
		}
		if in.objects == nil || in.restored {
			return sum, false, nil
		}
		shown[at] = in
	}
	return sumOf(places, func(at place) []standing {
		var all []standing
		for _, name := range slices.Sorted(maps.Keys(shown[at].objects)) {
			if live := shown[at].objects[name]; owner.owns(live.Labels) {
				all = append(all, standing{name, string(live.UID), live.ResourceVersion})
			}
		}
		return all
	}), true, nil
}

// seal seals what the sweep of this run shows, if each object that is declared was as it
// was applied by that, and nothing else had to be asked. Without a sweep it seals what the
// API server answered, if each of them was sent: who writes to one of them right after that
// breaks the seal, as everybody does later.
func (r *run) seal(ctx context.Context) (Seal, error) {
	for _, p := range r.phases {
		if p.Applied || p.Check != nil {
			return Seal{}, nil
		}
	}
	if r.options.Sweep == nil {
		return r.sealAnswers(), nil
	}
	if r.loose.Load() {
		return Seal{}, nil
	}
	places := sortedPlaces(r.places)
	sum, known, err := r.options.Sweep.state(ctx, r.owner, places)
	if err != nil || !known {
		return Seal{}, err
	}
	return Seal{sum: sum, places: places}, nil
}

func (r *run) sealAnswers() Seal {
	if !r.options.Seal || len(r.packed) > 0 || len(r.answers) != len(r.objects) {
		return Seal{}
	}
	in := map[place][]standing{}
	for _, a := range r.answers {
		r.places[a.at] = struct{}{}
		at := a.at.Value()
		in[at] = append(in[at], a.standing)
	}
	places := sortedPlaces(r.places)
	return Seal{places: places, sum: sumOf(places, func(at place) []standing {
		slices.SortFunc(in[at], func(a, b standing) int { return strings.Compare(a.name, b.name) })
		return in[at]
	})}
}
