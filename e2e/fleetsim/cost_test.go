package fleetsim

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
)

// TestClusterIsSmall bounds what an object of a seeded cluster costs while nobody asks for
// it: how many there are, what is seeded says.
func TestClusterIsSmall(t *testing.T) {
	const clusters, most = 100, 400
	f := startFleet(t, Options{})
	template := addCluster(t, f, "template")
	api := clientOf(t, template, Certificate)
	for _, u := range agentObjects(t) {
		if err := apply(t.Context(), api, u); err != nil {
			t.Fatal(err)
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	// The same writes without the network, whose connections have their own cost.
	seed := func(c *Cluster, name string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, r := range template.objects {
			if c.objects[r.kind.key(r.namespace, r.name)] != nil {
				continue
			}
			w := write{kind: r.kind, version: r.kind.stored, namespace: r.namespace, name: r.name}
			if _, err := c.commit(w, outcome{content: r.content, managed: r.managed}, nil, false); err != nil {
				t.Fatal(err)
			}
		}
		// What every cluster has for itself.
		for i := range 6 {
			object := part{"metadata": part{"name": fmt.Sprint("own", i), "namespace": "default"}, "data": part{"cluster": name, "more": name + strconv.Itoa(i)}}
			content, err := f.store.content(builtin("ConfigMap"), object)
			if err != nil {
				t.Fatal(err)
			}
			w := write{kind: builtin("ConfigMap"), version: "v1", namespace: "default", name: fmt.Sprint("own", i)}
			if _, err := c.commit(w, outcome{content: content, managed: f.store.managedSet(nil)}, nil, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := heap()
	for i := range clusters {
		name := fmt.Sprint("c", i)
		seed(addCluster(t, f, name), name)
	}
	each := (heap() - before) / clusters
	objects := uint64(f.Stats().Objects / (clusters + 1))
	t.Logf("%d bytes for each of %d clusters with %d objects", each, clusters, objects)
	if each > objects*most {
		t.Errorf("a cluster takes %d bytes for %d objects, want at most %d for each", each, objects, most)
	}
}

// BenchmarkApply is the cost of an apply that other clusters saw before, with the
// client and TLS in the same process.
func BenchmarkApply(b *testing.B) {
	f, err := Start(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	t := &testing.T{}
	objects := agentObjects(t)
	c, err := f.Add("c")
	if err != nil {
		b.Fatal(err)
	}
	api := clientOf(t, c, Certificate)
	b.ReportAllocs()
	for b.Loop() {
		for _, u := range objects {
			if err := apply(b.Context(), api, u); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(objects)), "µs/apply")
}
