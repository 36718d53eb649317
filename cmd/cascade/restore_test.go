package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/store"
)

// TestChoose: versions that an agent saved of an empty tier, before anybody restored into that what
// the former one saved at the same address, say nothing of the Clusters of that.
func TestChoose(t *testing.T) {
	type version struct {
		tier, lineage string
		clusters      int
	}
	unreadable := version{tier: "unreadable"}
	former := version{"former", "then", 2}
	for name, tt := range map[string]struct {
		reason   string
		versions []version
		// asked is the version, and a flag.
		asked string
		// want is the place of the version, and newer that of the one which it is compared with; -1 is none.
		want, newer int
		fails       bool
	}{
		"Newest":      {"the newest, as ever", []version{former, former}, "", 1, -1, false},
		"Empty":       {"an agent saved the new tier, before a restore or since it goes on without Clusters: a person knows", []version{former, {"new", "", 0}, {"new", "begun", 0}}, "", -1, -1, true},
		"Twice":       {"and another one before it", []version{former, {"first", "", 0}, {"new", "begun", 0}}, "", -1, -1, true},
		"Approved":    {"a person approved one Cluster before the restore", []version{former, {"new", "begun", 1}}, "", -1, -1, true},
		"ApprovedOld": {"and many versions were saved since", []version{former, {"new", "begun", 1}, {"new", "begun", 1}, {"new", "begun", 1}, {"new", "begun", 1}, {"new", "begun", 1}}, "", -1, -1, true},
		"ApprovedOne": {"where no child was ever reached", []version{{"former", "", 2}, {"new", "", 1}}, "", -1, -1, true},
		"Moved":       {"clusterctl brought all of them", []version{{"former", "", 2}, {"new", "", 2}}, "", 1, -1, false},
		"RolledBack":  {"etcd of the tier was rolled back, and it was saved above what was made since", []version{{"former", "since then", 2}, {"former", "again then", 1}}, "", -1, -1, true},
		"BackAsked":   {"what the tier does not have now may have been removed", []version{{"former", "since then", 2}, {"former", "again then", 1}}, "1-1", 0, 1, false},
		"EmptyAsked":  {"a person says that the tier has none", []version{former, {"new", "", 0}, {"new", "begun", 0}}, "3-1", 2, -1, false},
		"Removed":     {"the tier had its Clusters removed", []version{former, {"former", "then", 0}}, "", 1, -1, false},
		"RemovedLong": {"a while ago", []version{former, {"former", "then", 0}, {"former", "then", 0}}, "", 2, -1, false},
		"Shared":      {"another tier was saved there before: if that was lost, its Clusters are not in the newest", []version{{"other", "x", 1}, former, {"former", "then", 0}, {"former", "then", 0}}, "", -1, -1, true},
		"RestoredOld": {"what the tier was restored from lies above what had nothing to do with it", []version{{"other", "x", 1}, former, former, {"next", "now then", 1}}, "", 3, -1, false},
		"Restored":    {"the tier was restored elsewhere, and had them removed there", []version{former, {"next", "now then", 0}}, "", 1, -1, false},
		"NoLineage":   {"no child of it was ever reached: whose state the newest is, nobody can tell", []version{{"former", "", 2}, {"next", "", 0}}, "", -1, -1, true},
		"NeverAny":    {"neither has Clusters, or children", []version{{"former", "", 0}, {"next", "", 0}}, "", 1, -1, false},
		"Unreadable":  {"what it would be compared with is for another key", []version{unreadable, {"new", "", 0}}, "", -1, -1, true},
		"OtherKey":    {"nor if more was saved since: that may be of a tier that was made anew, with another key, and has one of many Clusters", []version{unreadable, {"new", "begun", 1}, {"new", "begun", 1}}, "", -1, -1, true},
		"OtherNone":   {"or had its children by kubeconfigs", []version{unreadable, {"new", "begun", 0}, {"new", "begun", 0}}, "", -1, -1, true},
		"OtherAsked":  {"a person knows", []version{unreadable, {"new", "begun", 1}, {"new", "begun", 1}}, "3-1", 2, -1, false},
		"Long":        {"the tier never had Clusters, and saved long", slices.Repeat([]version{{"former", "then", 0}}, 100), "", 99, -1, false},
		"Asked":       {"what is asked for is compared with the newest that follows it", []version{former, former, former}, "1-1", 0, 2, false},
		"AskedBelow":  {"not with that of an empty tier", []version{former, former, {"new", "begun", 0}}, "1-1", 0, 1, false},
		"AskedNobody": {"also where no child of it was ever reached", []version{{"former", "", 2}, {"next", "", 0}}, "1-1", 0, -1, false},
		"AskedSome":   {"but with one that has Clusters, so that none is built again", []version{{"former", "", 2}, {"next", "", 1}}, "1-1", 0, 1, false},
		"AskedLast":   {"nor of one in which something is by now", []version{former, {"new", "begun", 1}}, "1-1", 0, -1, false},
		"AskedNext":   {"but with that of one that went on with it", []version{former, {"next", "now then", 1}}, "1-1", 0, 1, false},
		"AskedOther":  {"nobody can tell what the newest has", []version{former, unreadable}, "1-1", -1, -1, true},
		"AskedKnown":  {"a person can", []version{former, unreadable}, "1-1 --not-removed", 0, -1, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked, notRemoved := strings.CutSuffix(tt.asked, " --not-removed")
			r := &restoring{notRemoved: notRemoved, cli: &cli{streams: genericiooptions.IOStreams{Out: &bytes.Buffer{}, ErrOut: &bytes.Buffer{}}, now: time.Now}, version: asked}
			var versions []store.Version
			snapshots := map[store.Version]*archive.Snapshot{}
			for i, is := range tt.versions {
				v := store.Version{Epoch: int64(i + 1), Number: 1}
				versions, snapshots[v] = append(versions, v), snapshot(is.tier, is.lineage, is.clusters)
			}
			loads := 0
			v, s, newer, err := r.choose(versions, func(v store.Version) (*archive.Snapshot, error) {
				loads++
				if s := snapshots[v]; s.Tier != unreadable.tier {
					return s, nil
				}
				return nil, archive.ErrWrongKey
			})
			if loads > 9 {
				t.Errorf("%s: %d versions are read", tt.reason, loads)
			}
			if (err != nil) != tt.fails {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			if tt.fails {
				if way := map[bool]string{true: "--version", false: "--not-removed"}[tt.asked == ""]; !strings.Contains(err.Error(), way) {
					t.Errorf("%s: what to do is not said: %v", tt.reason, err)
				}
				return
			}
			var compared *archive.Snapshot
			if tt.newer >= 0 {
				compared = snapshots[versions[tt.newer]]
			}
			if v != versions[tt.want] || s != snapshots[v] || newer != compared {
				t.Errorf("%s: version %s, compared with %+v", tt.reason, v, newer)
			}
		})
	}
}

// snapshot of a tier that holders led, the last one first.
func snapshot(tier, lineage string, clusters int) *archive.Snapshot {
	s := &archive.Snapshot{Tier: tier}
	for i := range clusters {
		s.Objects = append(s.Objects, unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": map[string]any{"namespace": "fleet", "name": fmt.Sprint("c", i)}}})
	}
	if lineage == "" {
		return s
	}
	var marks []string
	for _, holder := range strings.Fields(lineage) {
		marks = append(marks, fmt.Sprintf(`{"epoch":1,"holder":%q}`, holder))
	}
	s.Objects = append(s.Objects, unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "cascade-system", "name": "cascade-epoch"},
		"data": map[string]any{"lineage.json": "[" + strings.Join(marks, ",") + "]"},
	}})
	return s
}
