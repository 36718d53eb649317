package apply

import (
	"context"
	"maps"
	"slices"
	"strings"
	"unique"

	"github.com/cascade-gitops/cascade/syncer/digest"
)

// Seal is what a sweep showed of all objects of an owner while each was as it was applied,
// in a few bytes: there is one for each layer of each child. As long as another sweep shows
// the same, no object has to be looked at: every write to one of them, also to its status,
// breaks the seal. The zero value is always broken.
type Seal struct {
	sum    digest.Short
	places []unique.Handle[place]
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
	var parts []string
	for _, handle := range places {
		at := handle.Value()
		in, err := s.in(ctx, at)
		if err != nil {
			return sum, false, err
		}
		if in.objects == nil || in.restored {
			return sum, false, nil
		}
		parts = append(parts, at.resource.String(), at.namespace)
		for _, name := range slices.Sorted(maps.Keys(in.objects)) {
			if live := in.objects[name]; owner.owns(live.Labels) {
				parts = append(parts, name, string(live.UID), live.ResourceVersion)
			}
		}
	}
	return digest.Of(parts...).Short(), true, nil
}

// seal seals what the sweep of this run shows, if each object that is declared was as it
// was applied by that, and nothing else had to be asked.
func (r *run) seal(ctx context.Context) (Seal, error) {
	if r.options.Sweep == nil || r.loose.Load() {
		return Seal{}, nil
	}
	for _, p := range r.phases {
		if p.Applied || p.Check != nil {
			return Seal{}, nil
		}
	}
	places := slices.SortedFunc(maps.Keys(r.places), func(a, b unique.Handle[place]) int {
		one, other := a.Value(), b.Value()
		return strings.Compare(one.resource.String()+"/"+one.namespace, other.resource.String()+"/"+other.namespace)
	})
	sum, known, err := r.options.Sweep.state(ctx, r.owner, places)
	if err != nil || !known {
		return Seal{}, err
	}
	return Seal{sum: sum, places: places}, nil
}
