package record

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/epoch"
)

var base = types.NamespacedName{Namespace: "fleet", Name: "base"}

func sample(objects int) *Record {
	r := &Record{
		Layer: base, Cluster: Cluster{Namespace: "fleet", Name: "a", UID: "u"}, Parent: epoch.Mark{Epoch: 3, Holder: "h"},
		Attempted: State{"main@sha1:2", "sha256:2"}, Applied: State{"main@sha1:1", "sha256:1"}, Settled: true,
		Inputs: "i", Sent: []byte("12345678"), Pinned: "main@sha1:1",
		Inventory: []inventory.Entry{{Name: "system:node", Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Version: "v1"}},
	}
	for i := range objects {
		r.Inventory = append(r.Inventory, inventory.Entry{Namespace: "n", Name: fmt.Sprint("object-", i), Kind: "ConfigMap", Version: "v1"})
	}
	return r
}

func reader(c client.Reader) func(context.Context, string) (*corev1.ConfigMap, error) {
	return func(ctx context.Context, name string) (*corev1.ConfigMap, error) {
		cm := &corev1.ConfigMap{}
		return cm, c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: name}, cm)
	}
}

// same compares what records say, not how they stand in the child.
var same = cmpopts.IgnoreUnexported(Record{})

func TestRoundTrip(t *testing.T) {
	child := fake.NewClientBuilder().Build()
	want := sample(2000)
	if want.Exists() {
		t.Error("a record that was not written exists")
	}
	if err := want.Put(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	got, err := Get(t.Context(), reader(child), base)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, same, cmpopts.SortSlices(func(a, b inventory.Entry) bool { return a.ID() < b.ID() })); diff != "" || !got.Exists() {
		t.Errorf("a record that was written and read, exists %t: -want, +got:\n%s", got.Exists(), diff)
	}
	cm, err := reader(child)(t.Context(), Name(base))
	if err != nil {
		t.Fatal(err)
	}
	if size := cm.Size(); size > 32<<10 {
		t.Errorf("2000 objects take %d bytes", size)
	}
	version := cm.ResourceVersion
	if got.Adopted() {
		t.Error("the record of this process is another's")
	}
	if got.Parent.Epoch++; !got.Adopted() {
		t.Error("the record of another process is not told from this one's")
	}
	got.Parent.Epoch--
	slices.Reverse(got.Inventory)
	if err := got.Put(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	if cm, err = reader(child)(t.Context(), Name(base)); err != nil || cm.ResourceVersion != version {
		t.Errorf("a record that says the same was written again: %v, version %s after %s", err, cm.ResourceVersion, version)
	}
	all, err := List(t.Context(), child)
	if err != nil || len(all) != 1 || all[0].Layer != base {
		t.Errorf("List() = %v, %v", all, err)
	}
	if err := got.Delete(t.Context(), child); err != nil || got.Exists() {
		t.Errorf("Delete() = %v, exists %t", err, got.Exists())
	}
	if none, err := Get(t.Context(), reader(child), base); err != nil || none.Exists() || none.Layer != base {
		t.Errorf("Get() of no record = %+v, %v", none, err)
	}
}

// TestConditional: of two processes that read the same record, one writes (C6).
func TestConditional(t *testing.T) {
	child := fake.NewClientBuilder().Build()
	get := func() *Record {
		t.Helper()
		r, err := Get(t.Context(), reader(child), base)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first, second := get(), get()
	first.Applied.Digest, second.Applied.Digest = "1", "2"
	if err := first.Put(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	if err := second.Put(t.Context(), child); !errors.Is(err, ErrMoved) {
		t.Errorf("two processes created the record: %v", err)
	}
	paused := get()
	first.Applied.Digest = "3"
	if err := first.Put(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	paused.Applied.Digest = "4"
	if err := paused.Put(t.Context(), child); !errors.Is(err, ErrMoved) {
		t.Errorf("a process that was paused overwrote what its successor recorded: %v", err)
	}
	if err := paused.Delete(t.Context(), child); !errors.Is(err, ErrMoved) {
		t.Errorf("a process that was paused deleted what its successor recorded: %v", err)
	}
	if got := get().Applied.Digest; got != "3" {
		t.Errorf("the record has digest %s, want 3", got)
	}
	if err := first.Delete(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	stale := sample(0)
	stale.version = "1"
	if err := stale.Put(t.Context(), child); !errors.Is(err, ErrMoved) {
		t.Errorf("a record that was deleted came back: %v", err)
	}
}

// TestUnusable: what cannot be read is never taken for an empty record.
func TestUnusable(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(cm *corev1.ConfigMap)
	}{
		"NoHead":      {"a key is missing", func(cm *corev1.ConfigMap) { delete(cm.Data, headKey) }},
		"NoInventory": {"a key is missing", func(cm *corev1.ConfigMap) { delete(cm.BinaryData, inventoryKey) }},
		"Rubbish":     {"a person edited it", func(cm *corev1.ConfigMap) { cm.Data[headKey] = "{" }},
		"Cut":         {"a backup cut it off", func(cm *corev1.ConfigMap) { cm.BinaryData[inventoryKey] = cm.BinaryData[inventoryKey][:20] }},
		"Newer": {"a newer version wrote it", func(cm *corev1.ConfigMap) {
			cm.Data[headKey] = strings.Replace(cm.Data[headKey], `"format": 1`, `"format": 2`, 1)
		}},
		"OfAnother": {"it was copied from another layer", func(cm *corev1.ConfigMap) {
			cm.Data[headKey] = strings.Replace(cm.Data[headKey], "fleet/base", "fleet/other", 1)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cm, err := sample(3).encode()
			if err != nil {
				t.Fatal(err)
			}
			tc.change(cm)
			child := fake.NewClientBuilder().WithObjects(cm).Build()
			if got, err := Get(t.Context(), reader(child), base); !errors.Is(err, ErrUnusable) {
				t.Errorf("%s: Get() = %+v, %v", tc.reason, got, err)
			} else if deletes := strings.Contains(err.Error(), "delete ConfigMap"); deletes == (name == "Newer") {
				t.Errorf("%s: it advises: %v", tc.reason, err)
			}
			if all, err := List(t.Context(), child); err != nil || len(all) != 0 {
				t.Errorf("%s: List() = %v, %v", tc.reason, all, err)
			}
		})
	}
}

// TestCost: the record of a usual layer takes no compressor with tables, of which each has
// most of a megabyte; and other programs read what is packed without. The bound lies between
// that and what the compressor without state takes at most: it has 300 KB in pools, of which
// the race detector lets go at random.
func TestCost(t *testing.T) {
	entries := sample(20).Inventory
	packs := func() []byte {
		packed, err := pack(entries)
		if err != nil {
			t.Fatal(err)
		}
		return packed
	}
	packed := packs()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const times = 50
	for range times {
		packs()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / times; each > 400<<10 {
		t.Errorf("a record of %d objects takes %d KB to pack", len(entries), each>>10)
	}
	runtime.ReadMemStats(&before)
	for range times {
		if _, err := unpacked(packed); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	// The race detector has a pool forget some.
	if each := (after.TotalAlloc - before.TotalAlloc) / times; each > 30<<10 {
		t.Errorf("a record of %d objects takes %d KB to unpack", len(entries), each>>10)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil || !bytes.Contains(text, []byte("object-19")) {
		t.Errorf("the standard library unpacks %.100s, %v", text, err)
	}
	t.Logf("%d bytes for %d", len(packed), len(text))
}

// TestBounds: neither a layer nor a child makes a record that harms.
func TestBounds(t *testing.T) {
	if err := sample(MaxEntries).Put(t.Context(), fake.NewClientBuilder().Build()); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a record of too many objects was written: %v", err)
	}
	bomb, err := pack(sample(1).Inventory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unpacked(append(bomb, 0)); err == nil {
		t.Error("an inventory with something behind it is read")
	}
	if list, err := unpacked(bomb); err != nil || len(list) != 2 {
		t.Errorf("after one that could not be read, the next one is %v: %v", list, err)
	}
	long := types.NamespacedName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("l", 253)}
	if name := Name(long); len(name) > 253 || name == Name(types.NamespacedName{Namespace: long.Namespace, Name: long.Name[1:]}) {
		t.Errorf("name of a record is %s", name)
	}
}

// unpacked is what a record that is read by itself has.
func unpacked(packed []byte) ([]inventory.Entry, error) {
	room := int64(maxRoom)
	return unpack(packed, &room)
}

// allocated is how much memory f takes, given back or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestBombs: what was packed to some kilobytes is refused before it takes memory, whatever it is.
func TestBombs(t *testing.T) {
	const size = 30 << 20
	fill := func(begin, each, end string) string { return begin + strings.Repeat(each, size/len(each)) + end }
	long := `,{"id":"_` + strings.Repeat("a", 8<<10) + `__B"}`
	for name, tt := range map[string]struct {
		reason, text string
	}{
		"Numbers": {"elements of two bytes, each of which would be an entry", fill("[0", ",0", "]")},
		"Empty":   {"entries that say nothing", fill("[{}", ",{}", "]")},
		"Many":    {"more than a layer has", fill(`[{"id":"_a__B"}`, `,{"id":"_a__B"}`, "]")},
		"Name":    {"one entry of all the text", fill(`[{"id":"_`, "aaaaaaaa", `__B"}]`)},
		"Long":    {"names of many kilobytes", fill(`[{"id":"_a__B"}`, long, "") + fill("", long, "]")},
		"Space":   {"nothing at all", fill("[", "        ", "]")},
		"Behind":  {"an inventory, and something behind it", fill("[]", "[]", "")},
	} {
		t.Run(name, func(t *testing.T) {
			var packed bytes.Buffer
			w := gzip.NewWriter(&packed)
			if _, err := io.WriteString(w, tt.text); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			took := allocated(func() {
				if entries, err := unpacked(packed.Bytes()); err == nil {
					t.Errorf("%s: %d entries are read", tt.reason, len(entries))
				}
			})
			if took > 96<<20 {
				t.Errorf("%s: %d KB are unpacked with %d MB", tt.reason, packed.Len()>>10, took>>20)
			}
		})
	}
}

// listed is a child that has these ConfigMaps.
type listed struct {
	client.Reader
	items []corev1.ConfigMap
}

func (l listed) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*corev1.ConfigMapList).Items = l.items
	return nil
}

// TestListBounded: a child with many large records takes no more memory than one with few.
func TestListBounded(t *testing.T) {
	child := listed{}
	add := func(layers int) {
		r := sample(20_000)
		for range layers {
			r.Layer.Name = fmt.Sprint("layer-", len(child.items))
			cm, err := r.encode()
			if err != nil {
				t.Fatal(err)
			}
			r.packed, r.there = cm.BinaryData[inventoryKey], r.Inventory
			child.items = append(child.items, *cm)
		}
	}
	add(10)
	if records, err := List(t.Context(), child); err != nil || len(records) != 10 || len(records[9].Inventory) != 20_001 {
		t.Fatalf("%d records with 20000 objects: %v", len(records), err)
	}
	add(90)
	took := allocated(func() {
		if records, err := List(t.Context(), child); !errors.Is(err, ErrUnusable) {
			t.Errorf("%d records are read: %v", len(records), err)
		}
	})
	if took > 400<<20 {
		t.Errorf("%d MB were taken to say so", took>>20)
	}
}

// TestPacksOnce: an inventory that did not change is not packed again, with or without a
// restart, and one that changed is.
func TestPacksOnce(t *testing.T) {
	child := fake.NewClientBuilder().Build()
	written := sample(20)
	if err := written.Put(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	read, err := Get(t.Context(), reader(child), base)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*Record{"written": written, "read": read} {
		r.Applied.Revision = "main@sha1:3"
		cm, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if &cm.BinaryData[inventoryKey][0] != &r.packed[0] {
			t.Errorf("a record that was %s is packed anew for another revision", name)
		}
		r.Inventory[0].Name = "another"
		if cm, err = r.encode(); err != nil {
			t.Fatal(err)
		}
		if entries, err := unpacked(cm.BinaryData[inventoryKey]); err != nil || entries[0].Name != "another" {
			t.Errorf("a record that was %s does not say what changed since: %v, %v", name, entries[0], err)
		}
	}
}
