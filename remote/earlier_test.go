package remote

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/record"
)

// entriesNamed are ConfigMaps.
func entriesNamed(names ...string) []inventory.Entry {
	var entries []inventory.Entry
	for _, name := range names {
		entries = append(entries, inventory.Entry{Namespace: "default", Name: name, Kind: "ConfigMap", Version: "v1"})
	}
	return entries
}

// refsNamed are such entries as earlier versions wrote them.
func refsNamed(names ...string) []v1alpha1.InventoryEntry {
	var refs []v1alpha1.InventoryEntry
	for _, e := range entriesNamed(names...) {
		refs = append(refs, v1alpha1.InventoryEntry{ID: e.ID(), Version: e.Version})
	}
	return refs
}

// TestAddEarlier: what an earlier version applied stays answered for, and a layer is in
// place only if everybody agrees that it is.
func TestAddEarlier(t *testing.T) {
	layer := types.NamespacedName{Namespace: "fleet", Name: "base"}
	one, two := record.State{Revision: "main@sha1:1", Digest: "sha256:1"}, record.State{Revision: "main@sha1:2", Digest: "sha256:2"}
	inChild := &earlierRecord{Revision: one.Revision, Digest: one.Digest, Inventory: refsNamed("a", "b"), ClusterUID: "u", Settled: true}
	for name, tc := range map[string]struct {
		reason string
		// exists is what the record in the child says, nil if there is none.
		exists *record.Record
		found  *earlierRecord
		entry  v1alpha1.ChildLayer
		want   record.Record
	}{
		"Nothing": {
			reason: "a child that nobody seeded has an empty record",
			want:   record.Record{Layer: layer},
		},
		"InPlace": {
			reason: "both records agree: nothing is sent",
			found:  inChild, entry: v1alpha1.ChildLayer{Digest: one.Digest, Ready: true, Inventory: refsNamed("a", "b")},
			want: record.Record{Layer: layer, Cluster: record.Cluster{UID: "u"}, Settled: true, Attempted: one, Applied: one, Inventory: entriesNamed("a", "b")},
		},
		"Waiting": {
			reason: "it is in place and waits for its source: nothing was sent since",
			found:  inChild, entry: v1alpha1.ChildLayer{Digest: one.Digest, Reason: v1alpha1.ReasonSourceNotReady, Inventory: refsNamed("a", "b")},
			want: record.Record{Layer: layer, Cluster: record.Cluster{UID: "u"}, Settled: true, Attempted: one, Applied: one, Inventory: entriesNamed("a", "b")},
		},
		"FailedHalfWay": {
			reason: "something else may have been sent in part",
			found:  inChild, entry: v1alpha1.ChildLayer{Digest: one.Digest, Reason: v1alpha1.ReasonSeedFailed, Inventory: refsNamed("a", "b", "c")},
			want: record.Record{Layer: layer, Cluster: record.Cluster{UID: "u"}, Settled: true, Applied: one, Inventory: entriesNamed("a", "b", "c")},
		},
		"OnlyInTheChild": {
			reason: "a rebuilt tier; or the layer was released since, and its objects are gone: it has to be compared",
			found:  inChild, entry: v1alpha1.ChildLayer{Reason: v1alpha1.ReasonProgressing},
			want: record.Record{Layer: layer, Cluster: record.Cluster{UID: "u"}, Settled: true, Applied: one, Inventory: entriesNamed("a", "b")},
		},
		"OnlyInTheParent": {
			reason: "the version before ended between its two writes",
			entry:  v1alpha1.ChildLayer{Reason: v1alpha1.ReasonProgressing, Inventory: refsNamed("a")},
			want:   record.Record{Layer: layer, Inventory: entriesNamed("a")},
		},
		"OtherOfTwo": {
			reason: "the parent knows more than the child: both inventories count",
			found:  inChild, entry: v1alpha1.ChildLayer{Digest: two.Digest, Ready: true, Inventory: refsNamed("b", "c")},
			want: record.Record{Layer: layer, Cluster: record.Cluster{UID: "u"}, Settled: true, Applied: one, Inventory: entriesNamed("a", "b", "c")},
		},
		"CutOff": {
			reason: "the process ended between the new record and the removal of the old one",
			exists: &record.Record{Layer: layer, Cluster: record.Cluster{UID: "u"}, Attempted: one, Applied: one, Inventory: entriesNamed("a", "b")},
			found:  inChild, entry: v1alpha1.ChildLayer{Digest: one.Digest, Ready: true, Inventory: refsNamed("a", "b")},
			want: record.Record{Layer: layer, Cluster: record.Cluster{UID: "u"}, Settled: true, Attempted: one, Applied: one, Inventory: entriesNamed("a", "b")},
		},
		"WentBack": {
			reason: "an earlier version applied a commit after this one, and its objects are on record nowhere else",
			exists: &record.Record{Layer: layer, Cluster: record.Cluster{UID: "u"}, Attempted: one, Applied: one, Inventory: entriesNamed("a", "b")},
			found:  &earlierRecord{Revision: two.Revision, Digest: two.Digest, Inventory: refsNamed("a", "c"), ClusterUID: "u"},
			entry:  v1alpha1.ChildLayer{Digest: two.Digest, Ready: true, Inventory: refsNamed("a", "c")},
			want:   record.Record{Layer: layer, Cluster: record.Cluster{UID: "u"}, Applied: one, Inventory: entriesNamed("a", "b", "c")},
		},
		"WentBackAndFailed": {
			reason: "an earlier version ended before it recorded in the child what it had begun",
			exists: &record.Record{Layer: layer, Attempted: one, Applied: one, Inventory: entriesNamed("a")},
			entry:  v1alpha1.ChildLayer{Digest: one.Digest, Reason: v1alpha1.ReasonSeedFailed, Inventory: refsNamed("a", "c")},
			want:   record.Record{Layer: layer, Applied: one, Inventory: entriesNamed("a", "c")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &record.Record{Layer: layer}
			if tc.exists != nil {
				rec = tc.exists
				if err := rec.Put(t.Context(), fake.NewClientBuilder().Build()); err != nil {
					t.Fatal(err)
				}
			}
			if err := addEarlier(rec, tc.found, &tc.entry); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tc.want, rec, cmpopts.IgnoreUnexported(record.Record{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s\naddEarlier(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
	rec := &record.Record{Layer: layer}
	broken := &earlierRecord{Digest: one.Digest, Inventory: []v1alpha1.InventoryEntry{{ID: "nonsense"}}}
	if err := addEarlier(rec, broken, &v1alpha1.ChildLayer{}); err == nil || rec.Applied.Digest != "" {
		t.Errorf("an inventory that says nothing is taken for %+v: %v", rec, err)
	}
}

// TestParseEarlier: what an earlier version wrote is read, and a list of more than any of them could write is not:
// it would take hundreds of megabytes.
func TestParseEarlier(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, text string
		// want is how many entries are read, -1 if none may be.
		want int
	}{
		"Some":    {"two objects", `{"digest":"1","inventory":[{"id":"n_a__A","v":"v1"},{"id":"n_b__B","v":"v1"}]}`, 2},
		"None":    {"a layer without objects", `{"digest":"1","inventory":null}`, 0},
		"Missing": {"a person cut it off", `{"digest":"1"}`, 0},
		"Text":    {"not a list", `{"digest":"1","inventory":"x"}`, -1},
		"Numbers": {"elements that are no entries", `{"digest":"1","inventory":[0` + strings.Repeat(",0", 4<<20) + `]}`, -1},
		"Empty":   {"entries that say nothing", `{"digest":"1","inventory":[{}` + strings.Repeat(",{}", 8<<20/3) + `]}`, -1},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			found, err := parseEarlier("fleet.base", tc.text)
			runtime.ReadMemStats(&after)
			if (err != nil) != (tc.want < 0) || err == nil && (len(found.Inventory) != tc.want || found.Digest != "1") {
				t.Errorf("%s: %d entries, %v", tc.reason, len(found.Inventory), err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
				t.Errorf("%s: %d KB of text take %d MB", tc.reason, len(tc.text)>>10, took>>20)
			}
		})
	}
}
