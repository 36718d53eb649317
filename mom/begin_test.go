package mom

import (
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/state/store"
)

func TestBegin(t *testing.T) {
	a, b := Tier{Repository: "https://example.com/a", Path: "mom"}, Tier{Repository: "https://example.com/b", Path: "mom"}
	of := func(branch string) Tier { return Tier{Repository: a.Repository, Branch: branch, Path: a.Path} }
	versions := []store.Version{{Epoch: 3, Number: 1}, {Epoch: 2, Number: 2}, {Epoch: 2, Number: 1}}
	// many are of one run.
	many := []store.Version{{Epoch: 3, Number: 9}, {Epoch: 3, Number: 8}, {Epoch: 2, Number: 7}}
	for name, tc := range map[string]struct {
		reason    string
		situation Situation
		want      Beginning
		err       string
	}{
		"First":      {"nothing is there and nothing is kept", Situation{}, Beginning{How: Fresh}, ""},
		"FirstState": {"a state that is begun", Situation{State: "s"}, Beginning{How: Fresh}, ""},
		"Again":      {"a folder that keeps no state", Situation{Cluster: true}, Beginning{How: GoOn}, ""},
		"Elsewhere":  {"another machine", Situation{State: "s", Versions: versions}, Beginning{How: Restore, Version: "3-1", Newest: true}, ""},
		"Same":       {"the same folder, after which nobody had the lock", Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3, Version: "3-1"}, Versions: versions}, Beginning{How: GoOn}, ""},
		"Crashed": {"a folder whose last epoch never saved: it has what was saved before, and more",
			Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 4}, Versions: versions}, Beginning{How: GoOn}, ""},
		"Overtaken": {"somebody went on elsewhere: the folder is older, and put aside",
			Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 2}, Versions: versions}, Beginning{How: Restore, Version: "3-1", Newest: true, Aside: true}, ""},
		"Copied": {"a copy of the folder, or an old one that was put back: its run went on elsewhere",
			Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3, Version: "3-1"}, Versions: many}, Beginning{How: Restore, Version: "3-9", Newest: true, Aside: true}, ""},
		"CopiedEarly": {"also from before the run had saved anything",
			Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3, Version: "2-9"}, Versions: many}, Beginning{How: Restore, Version: "3-9", Newest: true, Aside: true}, ""},
		"CopiedNow": {"one version is enough", Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3, Version: "3-8"}, Versions: many},
			Beginning{How: Restore, Version: "3-9", Newest: true, Aside: true}, ""},
		"Last": {"the folder that saved it", Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3, Version: "3-9"}, Versions: many}, Beginning{How: GoOn}, ""},
		"Deleted": {"somebody deleted what it saved after that",
			Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3, Version: "3-10"}, Versions: many}, Beginning{How: GoOn}, ""},
		"KilledSaving": {"it saved that itself, and was killed before it knew",
			Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3, Version: "3-8", Saving: true}, Versions: many}, Beginning{How: GoOn}, ""},
		"KilledSavingFirst": {"so with the first one",
			Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3, Version: "2-2", Saving: true}, Versions: versions}, Beginning{How: GoOn}, ""},
		"CopiedSaving": {"it saved one then, not two", Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3, Version: "3-7", Saving: true}, Versions: many},
			Beginning{How: Restore, Version: "3-9", Newest: true, Aside: true}, ""},
		"NeverSaved": {"a folder that begins to keep state", Situation{Cluster: true, State: "s"}, Beginning{How: GoOn}, ""},
		"Partly": {"a process that ended while it restored left a part of a state",
			Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 9, Restoring: true}, Versions: versions}, Beginning{How: Restore, Version: "3-1", Newest: true, Aside: true}, ""},
		"PartlyForgotten": {"and without the state there is nothing that says what Clusters there are",
			Situation{Cluster: true, Origin: Origin{State: "s", Epoch: 9, Restoring: true}}, Beginning{}, "cannot go on without the state of this folder, s"},
		"PartlyGone": {"nor where somebody deleted all of its versions",
			Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 9, Restoring: true}}, Beginning{}, "was being restored into this folder"},
		"Stranger": {"whose cluster is right, nobody can tell",
			Situation{Cluster: true, State: "s", Versions: versions}, Beginning{}, "cannot use folder: it has a cluster that was never saved"},
		"OtherState": {"a folder is of one state", Situation{Cluster: true, State: "t", Origin: Origin{State: "s"}}, Beginning{}, "its cluster is of the state s, not of t"},
		"Forgotten": {"without the lock, another may write at the same time",
			Situation{Cluster: true, Origin: Origin{State: "s"}}, Beginning{}, "cannot go on without the state of this folder, s"},
		"Old":        {"a person asks for an older one", Situation{State: "s", Versions: versions, Wanted: "2-2"}, Beginning{How: Restore, Version: "2-2"}, ""},
		"OldOverNew": {"over a folder that has another", Situation{Cluster: true, State: "s", Origin: Origin{State: "s", Epoch: 3}, Versions: versions, Wanted: "2-1"}, Beginning{How: Restore, Version: "2-1", Aside: true}, ""},
		"Newest":     {"the newest by its name", Situation{State: "s", Versions: versions, Wanted: "3-1"}, Beginning{How: Restore, Version: "3-1", Newest: true}, ""},
		"NoVersion":  {"a name that is none", Situation{State: "s", Versions: versions, Wanted: "9"}, Beginning{}, "cannot restore version 9"},
		"SameTier":   {"the tier of before", Situation{Tier: a, Cluster: true, Origin: Origin{Tier: a}}, Beginning{How: GoOn}, ""},
		"OtherTier": {"its record says that all Clusters of the tier are known, which is true of another tier",
			Situation{Tier: b, Cluster: true, Origin: Origin{Tier: a}}, Beginning{}, "its cluster is of path mom of https://example.com/a, not of path mom of https://example.com/b"},
		"SameRepository": {"another protocol and spelling are no move",
			Situation{Tier: Tier{Repository: "ssh://example.com:2222/a.git", Path: "mom"}, Cluster: true, Origin: Origin{Tier: a}}, Beginning{How: GoOn}, ""},
		"OtherPath": {"a repository may have several",
			Situation{Tier: Tier{Repository: a.Repository, Path: "two"}, Cluster: true, Origin: Origin{Tier: a}}, Beginning{}, "not of path two of https://example.com/a"},
		"OtherBranch": {"branches may be environments, and --branch has a default",
			Situation{Tier: of("main"), Cluster: true, Origin: Origin{Tier: of("prod")}}, Beginning{}, "its cluster is of path mom, branch prod, of https://example.com/a, not of path mom, branch main, of"},
		"OtherBranchMoved": {"a person says that it is the same", Situation{Tier: of("main"), Moved: true, Cluster: true, Origin: Origin{Tier: of("prod")}}, Beginning{How: GoOn}, ""},
		"UnknownBranch":    {"a folder of an earlier program goes on, and the cluster is asked", Situation{Tier: of("prod"), Cluster: true, Origin: Origin{Tier: a}}, Beginning{How: GoOn}, ""},
		"OtherTierState": {"also where the folder is the newest of a state",
			Situation{Tier: b, Cluster: true, State: "s", Origin: Origin{Tier: a, State: "s", Epoch: 3, Version: "3-1"}, Versions: versions}, Beginning{}, "say --moved"},
		"Moved":       {"a person says that it is the same", Situation{Tier: b, Moved: true, Cluster: true, Origin: Origin{Tier: a}}, Beginning{How: GoOn}, ""},
		"UnknownTier": {"nothing was applied, or the cluster is asked", Situation{Tier: b, Cluster: true}, Beginning{How: GoOn}, ""},
		"OvertakenMoved": {"the folder does not count, so neither does its tier",
			Situation{Tier: b, Cluster: true, State: "s", Origin: Origin{Tier: a, State: "s", Epoch: 2}, Versions: versions}, Beginning{How: Restore, Version: "3-1", Newest: true, Aside: true}, ""},
		"WantedAlone": {"from nowhere", Situation{Wanted: "1"}, Beginning{}, "no state is given"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Begin(tc.situation)
			if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: got %+v, %v, want %+v, %q", tc.reason, got, err, tc.want, tc.err)
			}
		})
	}
}

func TestTrusts(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		beginning Beginning
		closed    bool
		want      bool
	}{
		"Down":    {"the last state, after which nothing wrote", Beginning{How: Restore, Newest: true}, true, true},
		"Crashed": {"a Cluster may have been made after it was saved", Beginning{How: Restore, Newest: true}, false, false},
		"Old":     {"Clusters were made after it, which it does not have", Beginning{How: Restore}, true, false},
		"Fresh":   {"nothing was restored", Beginning{How: Fresh}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.beginning.Trusts(tc.closed); got != tc.want {
				t.Errorf("%s: got %t", tc.reason, got)
			}
		})
	}
}
