package remote

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// snapshotOf is a snapshot of files.
func snapshotOf(t testing.TB, files map[string]string) *source.Snapshot {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := source.NewArchives(t.TempDir(), 1<<24, 1<<24).Open(t.Context(), &packed, source.About{Revision: "v1", File: "layer.tar.gz"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fleetOf is a layer on one child after the other.
type fleetOf struct {
	children *Children
	layer    *v1alpha1.Layer
	snapshot *source.Snapshot
}

func newFleet(t testing.TB, files map[string]string) *fleetOf {
	layer := layerOn("base")
	layer.UID, layer.Generation = "1", 1
	return &fleetOf{children: &Children{}, layer: layer, snapshot: snapshotOf(t, files)}
}

// on is the push into the child of a number.
func (f *fleetOf) on(n int) *seeding {
	vars := map[string]string{
		"cluster_name": fmt.Sprintf("c%04d", n), "cluster_namespace": "fleet", "cluster_uid": fmt.Sprint("uid-", n), "cluster_version": "v1.34.1",
		"cluster_infrastructure": "aws", "cluster_region": fmt.Sprint("r", n%4), "cluster_pods": "10.0.0.0/16", "cluster_services": "10.1.0.0/16",
		"cluster_host": "example.com", "cluster_port": "6443", "tier": "tenant",
	}
	content, read := f.children.contents.of(f.layer, f.snapshot)
	return &seeding{
		push: &push{run: &run{Children: f.children, child: &v1alpha1.Child{}}, vars: vars}, layer: f.layer, vars: maps.Clone(vars),
		snapshot: f.snapshot, content: content, read: read,
	}
}

// alone renders a layer for one child as if there were no others, and identifies what it
// rendered as it was recorded when each child was rendered by itself.
func alone(ctx context.Context, s *seeding) ([]apply.Phase, string, error) {
	r, err := render.Render(ctx, s.snapshot, render.Build{Path: s.layer.Spec.Path, Variables: s.vars, Sensitive: s.sensitive, NoDigest: true})
	if err != nil {
		return nil, "", err
	}
	var first, then []*unstructured.Unstructured
	for _, u := range r.Objects {
		switch u.GroupVersionKind().Group {
		case kustomizev1.GroupVersion.Group, helmv2.GroupVersion.Group:
			then = append(then, u)
		default:
			first = append(first, u)
		}
	}
	h := sha256.New()
	e := json.NewEncoder(h)
	for _, u := range append(slices.Clone(first), then...) {
		if err := e.Encode(u.Object); err != nil {
			return nil, "", err
		}
	}
	return []apply.Phase{{Objects: first}, {Objects: then}}, "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// layerFiles are twenty objects, of which two mention variables.
func layerFiles() map[string]string {
	files := map[string]string{}
	for n := range 18 {
		files[fmt.Sprintf("f%02d.yaml", n)] = fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: cm-%d\n  namespace: ns\n  labels:\n    app: web\ndata:\n  url: http://example.com/%d\n  text: |\n    one\n    two\n", n, n)
		if n%3 == 1 {
			files[fmt.Sprintf("f%02d.yaml", n)] = deployment(fmt.Sprint("web-", n), "info")
		}
	}
	files["x.yaml"] = deployment("agent", "${cluster_region}/${cluster_name}")
	files["y.yaml"] = "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata:\n  name: apps\n  namespace: cascade-system\nspec:\n  interval: 10m\n  prune: true\n  path: ./clusters/${cluster_name}\n  sourceRef:\n    kind: GitRepository\n    name: fleet\n  postBuild:\n    substitute:\n      version: ${cluster_version}\n"
	return files
}

func deployment(name, value string) string {
	return strings.ReplaceAll("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: NAME\n  namespace: ns\n  labels:\n    app: web\nspec:\n  replicas: 2\n  selector:\n    matchLabels:\n      app: NAME\n  template:\n    metadata:\n      labels:\n        app: NAME\n    spec:\n      containers:\n      - name: web\n        image: example.com/web:1\n        ports:\n        - containerPort: 80\n        env:\n        - name: A\n          value: \""+value+"\"\n        resources:\n          requests:\n            cpu: 100m\n            memory: 64Mi\n", "NAME", name)
}

// TestLayerOfChildren: what children get of a layer is what each would get alone, with the
// digest that agents have recorded in them, and what they have in common is shared.
func TestLayerOfChildren(t *testing.T) {
	f := newFleet(t, layerFiles())
	shared := map[*unstructured.Unstructured]int{}
	var mu sync.Mutex
	var children sync.WaitGroup
	for n := range 40 {
		s, other := f.on(n), f.on(n)
		children.Go(func() {
			phases, err := s.phases(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			want, wantDigest, err := alone(t.Context(), other)
			if err != nil {
				t.Error(err)
				return
			}
			digest, err := digestOf(phases)
			if err != nil || digest != wantDigest {
				t.Errorf("child %d has digest %s, and alone %s: %v", n, digest, wantDigest, err)
			}
			phases = phases[len(phases)-2:]
			owner := ownerOf(f.layer.Namespace, f.layer.Name)
			wantSent, err := apply.SentOf(owner, want) // labels the objects
			if err != nil {
				t.Error(err)
			}
			if sent, err := apply.SentOf(owner, phases); err != nil || !slices.Equal(sent, wantSent) {
				t.Errorf("child %d: other objects are known to be sent: %v", n, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for at := range want {
				if diff := cmp.Diff(objectsIn(want[at]), objectsIn(phases[at])); diff != "" {
					t.Errorf("child %d, phase %d: -alone, +shared:\n%s", n, at, diff)
				}
				for _, u := range phases[at].Objects {
					shared[u]++
				}
			}
		})
	}
	children.Wait()
	if n := f.children.templates.made.Len(); n != 1 {
		t.Errorf("%d builds are kept of one layer", n)
	}
	// Objects that mention variables may be made twice by two children at the same time.
	for u, times := range shared {
		if name := u.GetName(); times != 40 && name != "agent" && name != "apps" {
			t.Errorf("%s is shared by %d of 40 children", name, times)
		}
	}
}

func objectsIn(p apply.Phase) []map[string]any {
	var out []map[string]any
	for _, u := range p.Objects {
		out = append(out, u.Object)
	}
	return out
}

// TestBuildsOfLayers: when a layer is built again.
func TestBuildsOfLayers(t *testing.T) {
	files := layerFiles()
	files["other/readme.md"] = "x"
	f := newFleet(t, files)
	push := func(n int) error {
		_, err := f.on(n).phases(t.Context())
		return err
	}
	kept := func() int { return f.children.templates.made.Len() }
	changed := func(file, text string) {
		files[file] = text
		f.snapshot = snapshotOf(t, files)
	}
	if err := errors.Join(push(1), push(2)); err != nil || kept() != 1 {
		t.Fatalf("two children: %d builds, %v", kept(), err)
	}
	changed("other/readme.md", "y")
	if err := push(1); err != nil || kept() != 1 {
		t.Errorf("a commit that changes nothing that is read: %d builds, %v", kept(), err)
	}
	changed("f00.yaml", "not: [yaml")
	for range 3 {
		if err := push(1); reason.Of(err) != v1alpha1.ReasonBuildFailed || kept() != 2 {
			t.Errorf("a build that fails: %d builds, %v", kept(), err)
		}
	}
	changed("other/readme.md", "z")
	if err := push(2); reason.Of(err) != v1alpha1.ReasonBuildFailed || kept() != 2 {
		t.Errorf("a commit that does not mend it: %d builds, %v", kept(), err)
	}
	delete(files, "f00.yaml")
	changed("f01.yaml", deployment("new", "${gone}"))
	if err := push(1); err == nil || !strings.Contains(err.Error(), "gone") || kept() != 3 {
		t.Errorf("a variable that is not set: %d builds, %v", kept(), err)
	}
	f.layer.Generation++
	if err := push(1); err == nil || kept() != 4 {
		t.Errorf("another generation of the layer: %d builds, %v", kept(), err)
	}
	f.layer.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"}
	if err := push(1); err == nil || kept() != 5 {
		t.Errorf("a request: %d builds, %v", kept(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.layer.Generation++
	if _, err := f.on(1).phases(ctx); !errors.Is(err, context.Canceled) || kept() != 5 {
		t.Errorf("a build that there was no time for is kept: %d builds, %v", kept(), err)
	}
}

// TestAgentManifests: the objects of an agent are made once for all children of a layer.
func TestAgentManifests(t *testing.T) {
	var m manifest
	layer := layerOn("base")
	layer.Spec.Agent = &v1alpha1.AgentSpec{}
	var children sync.WaitGroup
	made := make([]*agentManifest, 20)
	for n := range made {
		children.Go(func() {
			var err error
			if made[n], err = m.of(t.Context(), layer, "example.com/agent:1"); err != nil {
				t.Error(err)
			}
		})
	}
	children.Wait()
	for _, one := range made {
		if one != made[0] || one == nil {
			t.Fatal("two children have two manifests")
		}
	}
	if other, err := m.of(t.Context(), layer, "example.com/agent:2"); err != nil || other == made[0] || m.made.Len() != 2 {
		t.Errorf("another image has the same manifest: %v", err)
	}
	layer.Spec.Agent.Replicas = 2
	if other, err := m.of(t.Context(), layer, "example.com/agent:1"); err != nil || other == made[0] {
		t.Errorf("two replicas have the manifest of one: %v", err)
	}
}

// BenchmarkLayerOfChildren is what it takes to find out, after a start, that a layer of 20
// objects, 2 of which mention variables, is in place in one of 1000 children.
func BenchmarkLayerOfChildren(b *testing.B) {
	const children = 1000
	b.Run("alone", func(b *testing.B) {
		f := newFleet(b, layerFiles())
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			phases, _, err := alone(b.Context(), f.on(n%children))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := apply.SentOf(ownerOf(f.layer.Namespace, f.layer.Name), phases); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("shared", func(b *testing.B) {
		f := newFleet(b, layerFiles())
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			phases, err := f.on(n % children).phases(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := digestOf(phases); err != nil {
				b.Fatal(err)
			}
			if _, err := apply.SentOf(ownerOf(f.layer.Namespace, f.layer.Name), phases); err != nil {
				b.Fatal(err)
			}
		}
	})
}
