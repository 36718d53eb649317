package mom

import (
	"errors"
	"fmt"

	"github.com/cascade-gitops/cascade/state/store"
)

// Origin is what a folder knows of the tier and of the state that its cluster is of.
type Origin struct {
	// Tier whose objects are in the cluster; none as long as nothing was applied. One that is
	// declared elsewhere from now on is of the place of before until all is applied from there.
	Tier
	// State is the address of the saved state, without any login.
	State string `json:"state,omitempty"`
	// Epoch of the lock under which this folder worked last.
	Epoch int64 `json:"epoch,omitempty"`
	// Version that was saved or restored last.
	Version string `json:"version,omitempty"`
	// Saving: the next version was being saved when this was written, and may be there.
	Saving bool `json:"saving,omitempty"`
	// Holder of the lock was this folder's process.
	Holder string `json:"holder,omitempty"`
	// Restoring: a version is being brought into the cluster of the folder, or was when its
	// process ended. Such a cluster has a part of a state only.
	Restoring bool `json:"restoring,omitempty"`
}

// behind reports whether the newest version is none of this folder. Somebody had the lock after it,
// or this is a copy of the folder, or an old one that was put back, and the run that it is of went on.
func (o Origin) behind(newest store.Version) bool {
	if newest.Epoch != o.Epoch {
		return newest.Epoch > o.Epoch
	}
	var epoch, number int64
	if _, err := fmt.Sscanf(o.Version, "%d-%d", &epoch, &number); err != nil || epoch != o.Epoch {
		number = 0 // it has saved nothing under this lock
	}
	if o.Saving {
		number++
	}
	return newest.Number > number
}

// Situation is what there is before a run.
type Situation struct {
	// Tier that the run is to bring up. Moved: a person says that it was declared elsewhere before.
	Tier  Tier
	Moved bool
	// Cluster: the folder has the data of a cluster.
	Cluster bool
	Origin  Origin
	// State is the address of the state that the run is to keep, empty for none.
	State string
	// Versions that are saved there, the newest first.
	Versions []store.Version
	// Wanted is a version that a person asked for.
	Wanted string
}

// How a run begins.
type How string

const (
	// Fresh: with an empty cluster. There is nothing else.
	Fresh How = "Fresh"
	// GoOn: with the cluster that the folder has, which is the newest that there is.
	GoOn How = "GoOn"
	// Restore: with an empty cluster, into which a version is restored.
	Restore How = "Restore"
)

// Beginning is what a run begins with.
type Beginning struct {
	How How
	// Version to restore.
	Version string
	// Newest: no version was saved after it.
	Newest bool
	// Aside: the cluster of the folder is put aside first, because another state counts.
	Aside bool
}

// Begin decides what a run begins with. Whoever saved last has the newest state: an epoch is only
// ever given once, later ones are higher, and so are later versions of one.
func Begin(s Situation) (Beginning, error) {
	forgotten := fmt.Errorf("cannot go on without the state of this folder, %s: somebody else may have gone on with it; say --state", s.Origin.State)
	if s.Cluster && s.Origin.Restoring {
		// An empty cluster has the tier built again, if the state is not what fills it.
		switch {
		case s.State == "":
			return Beginning{}, forgotten
		case s.State == s.Origin.State && len(s.Versions) == 0:
			return Beginning{}, fmt.Errorf("cannot go on: a version of the state %s was being restored into this folder, and none is there any more", s.State)
		}
		s.Cluster, s.Origin = false, Origin{}
		b, err := Begin(s)
		b.Aside = err == nil
		return b, err
	}
	switch {
	case s.State == "" && s.Wanted != "":
		return Beginning{}, errors.New("cannot restore a version: no state is given to restore it from")
	case s.State == "" && s.Cluster && s.Origin.State != "":
		return Beginning{}, forgotten
	case s.Cluster && s.State != "" && s.Origin.State != "" && s.Origin.State != s.State:
		return Beginning{}, fmt.Errorf("cannot use folder: its cluster is of the state %s, not of %s; use another --dir", s.Origin.State, s.State)
	case s.Wanted != "":
		for i, v := range s.Versions {
			if v.String() == s.Wanted {
				return Beginning{How: Restore, Version: s.Wanted, Newest: i == 0, Aside: s.Cluster}, nil
			}
		}
		return Beginning{}, fmt.Errorf("cannot restore version %s: there is none of that name", s.Wanted)
	case len(s.Versions) == 0 && s.Cluster:
		return s.goOn()
	case len(s.Versions) == 0:
		return Beginning{How: Fresh}, nil
	case !s.Cluster:
		return Beginning{How: Restore, Version: s.Versions[0].String(), Newest: true}, nil
	case s.Origin.State == "":
		return Beginning{}, fmt.Errorf("cannot use folder: it has a cluster that was never saved, and the state %s is of another one; use another --dir", s.State)
	case s.Origin.behind(s.Versions[0]):
		return Beginning{How: Restore, Version: s.Versions[0].String(), Newest: true, Aside: true}, nil
	}
	return s.goOn()
}

func (s Situation) goOn() (Beginning, error) {
	if s.ofAnother(s.Origin.Tier) {
		return Beginning{}, fmt.Errorf("cannot use folder: its cluster is of %s, not of %s, whose Clusters it would build a second time; "+
			"use another --dir or --name, or say --moved if this is the same tier", s.Origin.Tier, s.Tier)
	}
	return Beginning{How: GoOn}, nil
}

// ofAnother reports whether what is there is of another tier than the run.
func (s Situation) ofAnother(t Tier) bool { return t != Tier{} && !t.is(s.Tier) && !s.Moved }

// Trusts reports whether the record that all Clusters are known is to be believed of a
// restored state: it must be the last one, and saved after its writers had ended.
func (b Beginning) Trusts(closed bool) bool { return b.How == Restore && b.Newest && closed }
