package migration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func bootstrapped() Facts {
	return Facts{
		Namespace: "flux-system",
		Replaced:  []Controller{{"kustomize-controller", 1}, {"helm-controller", 1}, {"source-controller", 1}},
		Others:    []Controller{{"notification-controller", 1}, {"image-reflector-controller", 1}},
		Served:    []Kind{{"GitRepository", 2, ""}, {"Kustomization", 5, ""}, {"HelmRelease", 3, ""}, {"Alert", 1, "notification-controller"}, {"ImagePolicy", 4, "image-reflector-controller"}}, Objects: 240,
		Unserved: []Kind{{"Widget", 1, ""}},
	}
}

// withGenerator has source-watcher as well.
func withGenerator(f *Facts) {
	f.Replaced = slices.Insert(f.Replaced, 2, Controller{"source-watcher", 1})
	f.Served = append(f.Served, Kind{"ExternalArtifact", 3, ""}, Kind{"ArtifactGenerator", 3, "source-watcher"})
}

// TestPlans: what a person reads before anything happens.
func TestPlans(t *testing.T) {
	files := []string{"clusters/prod/cascade-system/agent.yaml", "clusters/prod/flux-system/kustomization.yaml"}
	unapplied := []string{"Kustomization a/b has parts or keys of Clusters, and nobody knows which of them would go, as it is not applied (DependencyNotReady): correct that, so that it is looked at again"}
	from := func(f Facts) Plan { return FromFlux(f, files) }
	to := func(f Facts) Plan { return ToFlux(f, files, Leave{}) }
	for name, tc := range map[string]struct {
		reason string
		change func(*Facts)
		plan   func(Facts) Plan
	}{
		"from":          {"as flux bootstrap leaves it", nil, from},
		"from-again":    {"the commit is there already", nil, func(f Facts) Plan { return FromFlux(f, nil) }},
		"from-operator": {"an operator declares the controllers", func(f *Facts) { f.Instance = "flux-system/flux" }, from},
		"from-nothing":  {"there is no Flux", func(f *Facts) { f.Replaced = nil }, from},
		"from-sharded": {"labels share the objects out among controllers", func(f *Facts) {
			f.Shards = []Controller{{"kustomize-controller-shard1", 1}, {"helm-controller-shard1", 0}, {"kustomize-controller-shard2", 2}}
		}, from},
		"from-suspended": {"the commit would not arrive, with Flux stopped for it", func(f *Facts) {
			f.Suspended, f.Resume = "Kustomization flux-system/flux-system", "cascade resume kustomization flux-system -n flux-system"
		}, from},
		"to-suspended": {"nothing waits for the commit", func(f *Facts) {
			f.Suspended, f.Resume = "Kustomization flux-system/flux-system", "cascade resume kustomization flux-system -n flux-system"
		}, to},
		"from-unsharded": {"those for parts were scaled to zero", func(f *Facts) { f.Shards = []Controller{{"kustomize-controller-shard1", 0}} }, from},
		"from-helm":      {"releases of an earlier Flux", func(f *Facts) { f.Unrecorded = 3 }, from},
		"to":             {"nothing that only an agent serves", nil, to},
		"to-children":    {"children would stand still", func(f *Facts) { f.Layers, f.Children = 2, 7 }, to},
		"to-leave":       {"a person says that they may", func(f *Facts) { f.Layers, f.Children = 2, 7 }, func(f Facts) Plan { return ToFlux(f, files, Leave{Children: true}) }},
		"to-annotated":   {"what Flux does not read", func(f *Facts) { f.Annotated = []string{"Kustomization a/b has cascade.dev/first-sync"} }, to},
		"from-old":       {"definitions that the agent does not read", func(f *Facts) { f.Outdated = []string{"OCIRepository v1"} }, from},
		"from-stopped":   {"a controller that would go on was scaled to zero", func(f *Facts) { f.Others[0].Replicas = 0 }, from},
		"from-watcher":   {"it reads what ends, and who applies reads it", withGenerator, from},
		"to-watcher":     {"it starts again", withGenerator, to},
		"to-stopped":     {"nobody starts it again", func(f *Facts) { f.Others[0].Replicas = 0 }, to},
		"to-shards": {"Flux's own leave out what is for parts, and those were scaled to zero for the agent", func(f *Facts) {
			f.Shards, f.Sharded = []Controller{{"kustomize-controller-shard1", 0}, {"source-controller-shard1", 1}}, []Kind{{"GitRepository", 2, ""}, {"Kustomization", 3, ""}}
		}, to},
		"to-unlabelled": {"nothing is for those", func(f *Facts) { f.Shards = []Controller{{"kustomize-controller-shard1", 0}} }, to},
		"to-held": {"Flux would do at once what the agent holds", func(f *Facts) {
			f.Held = []string{"Kustomization a/b holds the delete of 3 objects, and of 2 protected ones"}
		}, func(f Facts) Plan { return ToFlux(f, files, Leave{true, true}) }},
		"to-kept": {"a part of a living Cluster would go", func(f *Facts) {
			f.Held, f.Kept = []string{"Kustomization a/b keeps Secret/f/keys until something else is gone"}, true
		}, func(f Facts) Plan { return ToFlux(f, files, Leave{true, true}) }},
		"to-unseen": {"nobody said what it keeps", func(f *Facts) { f.Unseen = unapplied }, func(f Facts) Plan { return ToFlux(f, files, Leave{true, true}) }},
		"to-again":  {"an earlier call ended the agent: that it fails Flux says, and no agent can look", func(f *Facts) { f.Unseen, f.Ended = unapplied, true }, to},
		"to-again-held": {"it is on record, and Flux would do it", func(f *Facts) {
			f.Held, f.Ended = []string{"Kustomization a/b holds the delete of 3 objects, and of 2 protected ones"}, true
		}, to},
		"to-asleep": {"Flux leaves alone what is suspended", func(f *Facts) {
			f.UnseenSuspended = []string{"HelmRelease apps/grafana has parts or keys of Clusters, and nobody knows which of them would go, as it is suspended: resume it, so that it is looked at again"}
		}, to},
		"to-behind":      {"the agent may not say that it keeps it", func(f *Facts) { f.Behind, f.Parted = true, 3 }, func(f Facts) Plan { return ToFlux(f, files, Leave{true, true}) }},
		"to-parted":      {"an agent of another version has nothing of Clusters, or one of this version says all", func(f *Facts) { f.Behind = true }, to},
		"to-credentials": {"leases lapse", func(f *Facts) { f.Ours = []Kind{{"Credential", 10, ""}, {"StateBackup", 1, ""}} }, to},
		"to-lapse":       {"a person says that they may", func(f *Facts) { f.Ours = []Kind{{"Credential", 10, ""}, {"StateBackup", 1, ""}} }, func(f Facts) Plan { return ToFlux(f, files, Leave{Credentials: true}) }},
		"to-nothing":     {"there are no controllers to go back to", func(f *Facts) { f.Replaced = nil }, to},
	} {
		t.Run(name, func(t *testing.T) {
			f := bootstrapped()
			if tc.change != nil {
				tc.change(&f)
			}
			p := tc.plan(f)
			var text strings.Builder
			fmt.Fprintf(&text, "# %s\n", tc.reason)
			for _, s := range p.Says {
				fmt.Fprintln(&text, s)
			}
			for _, s := range p.Warns {
				fmt.Fprintln(&text, "!", s)
			}
			if p.Refused != "" {
				fmt.Fprintln(&text, "refused:", p.Refused)
			}
			if f.Instance != "" {
				text.WriteString(InstancePatch(f))
			}
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if text.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", text.String(), want)
			}
		})
	}
}

// TestHeld: what an agent holds back for an object, and that what cannot be read is not taken
// for nothing.
func TestHeld(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		held   v1alpha1.Held
		text   string
		true   []string
		want   []string
	}{
		"Nothing": {"most objects", v1alpha1.Held{}, "", nil, nil},
		"Prune":   {"deletes", v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Deletes: 12, Protected: 3}}, "", nil, []string{"holds the delete of 12 objects, and of 3 protected ones"}},
		"Create":  {"a tier that was built anew", v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: []string{"f/a", "f/b", "f/c", "f/d"}}}, "", nil, []string{"does not create Cluster f/a, f/b, f/c and 1 more, before a person has decided"}},
		"Moved":   {"after a pivot the Kustomization is ready", v1alpha1.Held{Create: &v1alpha1.HeldCreate{ManagedElsewhere: []string{"f/a"}}}, "", nil, []string{"does not create Cluster f/a, which another management cluster manages"}},
		"Kept": {"a part of a Cluster that stays is no longer declared: the Kustomization is ready", v1alpha1.Held{Kept: &v1alpha1.HeldKept{Objects: []string{"Secret/f/keys"}}}, "", nil,
			[]string{"keeps Secret/f/keys until something else is gone"}},
		"Blocked":   {"a HelmRelease has no record of it", v1alpha1.Held{}, "", []string{v1alpha1.PruneBlockedCondition}, []string{"holds deletes before a person has decided"}},
		"Uncreated": {"an earlier agent made no record", v1alpha1.Held{}, "", []string{v1alpha1.CreateHeldCondition}, []string{"does not create Clusters before a person has decided"}},
		"Over":      {"an object between two owners", v1alpha1.Held{HandOver: &v1alpha1.HandOver{Hash: "0123456789abcdef"}}, "", nil, []string{"keeps objects until another owner has them"}},
		"Later":     {"a later version wrote it", v1alpha1.Held{}, `{"apiVersion":"cascade.dev/v9"}`, nil, []string{"holds something that this version cannot read"}},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{Object: map[string]any{}}
			var conditions []any
			for _, c := range tc.true {
				conditions = append(conditions, map[string]any{"type": c, "status": "True"})
			}
			if err := unstructured.SetNestedSlice(u.Object, conditions, "status", "conditions"); err != nil {
				t.Fatal(err)
			}
			v1alpha1.SetHeld(u, tc.held)
			if tc.text != "" {
				u.SetAnnotations(map[string]string{v1alpha1.HeldAnnotation: tc.text})
			}
			if got := held(u); !slices.Equal(got, tc.want) {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestUnseen: what an owner would delete of Clusters nobody knows while nobody looks at it, and what
// was kept when it was looked at last may be no longer.
func TestUnseen(t *testing.T) {
	const part, keys, config = "fleet_pool_cluster.x-k8s.io_MachineDeployment", "fleet_keys__Secret", "fleet_a__ConfigMap"
	kept := v1alpha1.Held{Kept: &v1alpha1.HeldKept{Objects: []string{"Secret/f/keys"}}}
	suspended, resume := map[string]any{"prune": true, "suspend": true}, "it is suspended: resume it, so that it is looked at again, or set its spec.prune to false"
	for name, tc := range map[string]struct {
		reason string
		kind   string
		spec   map[string]any
		ready  string // its reason
		id     string
		held   v1alpha1.Held
		want   string
		kept   bool
	}{
		"Part":      {"Flux would delete it when it is resumed", "Kustomization", suspended, "", part, v1alpha1.Held{}, "has parts or keys of Clusters, and nobody knows which of them would go, as " + resume, false},
		"Keys":      {"a Cluster may need them", "Kustomization", suspended, "", keys, v1alpha1.Held{}, "as " + resume, false},
		"Release":   {"it has no such field", "HelmRelease", map[string]any{"suspend": true}, "", part, v1alpha1.Held{}, "as it is suspended: resume it, so that it is looked at again", false},
		"None":      {"no Cluster is made of that", "Kustomization", suspended, "", config, v1alpha1.Held{}, "", false},
		"Unpruned":  {"nothing of it is deleted", "Kustomization", map[string]any{"suspend": true}, "", part, kept, "", false},
		"Works":     {"the agent looks at it, and says what it keeps", "Kustomization", map[string]any{"prune": true}, "", part, v1alpha1.Held{}, "", false},
		"Unbuilt":   {"nothing was applied since", "Kustomization", map[string]any{"prune": true}, "BuildFailed", part, v1alpha1.Held{}, "as it is not applied (BuildFailed): correct that", false},
		"Unhealthy": {"it was applied, and looked at", "Kustomization", map[string]any{"prune": true}, "HealthCheckFailed", part, v1alpha1.Held{}, "", false},
		"Kept":      {"the Cluster is still there", "Kustomization", map[string]any{"prune": true}, "", keys, kept, "keeps Secret/f/keys until something else is gone", true},
		"Stale":     {"it may be gone by now", "Kustomization", suspended, "", keys, kept, "kept Secret/f/keys until something else is gone when it was last applied, and is suspended: resume it", false},
		"Blocked":   {"it was looked at, and a person decides", "Kustomization", map[string]any{"prune": true}, "PruneBlocked", part, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Deletes: 1}}, "holds the delete of 1 objects, and of 0 protected ones", false},
	} {
		t.Run(name, func(t *testing.T) {
			u := unstructured.Unstructured{Object: map[string]any{"kind": tc.kind, "spec": tc.spec, "status": map[string]any{
				"inventory": map[string]any{"entries": []any{map[string]any{"id": tc.id, "v": "v1"}}},
			}}}
			if tc.ready != "" {
				ready := map[string]any{"type": "Ready", "status": "False", "reason": tc.ready}
				if err := unstructured.SetNestedSlice(u.Object, []any{ready}, "status", "conditions"); err != nil {
					t.Fatal(err)
				}
			}
			v1alpha1.SetHeld(&u, tc.held)
			f := Facts{}
			f.count(schema.GroupKind{Group: "toolkit.fluxcd.io", Kind: tc.kind}, true, true, []unstructured.Unstructured{u})
			if text := strings.Join(slices.Concat(f.Held, f.Unseen, f.UnseenSuspended), "; "); !strings.Contains(text, tc.want) || (text == "") != (tc.want == "") || f.Kept != tc.kept {
				t.Errorf("%s: it holds %q, want %q; it waits for a Cluster: %t", tc.reason, text, tc.want, f.Kept)
			}
			// What is suspended Flux leaves alone, unless it is on record that something was kept.
			if asleep := tc.spec["suspend"] != nil && tc.held.Kept == nil && tc.want != ""; asleep != (len(f.UnseenSuspended) > 0) {
				t.Errorf("%s: %q wait for a person to resume them", tc.reason, f.UnseenSuspended)
			}
			if parted := tc.id != config && tc.spec["prune"] != nil || tc.kind == "HelmRelease"; f.Parted != 1 && parted || f.Parted != 0 && !parted {
				t.Errorf("%s: %d have parts of Clusters", tc.reason, f.Parted)
			}
			g := Facts{}
			if g.count(schema.GroupKind{Group: "toolkit.fluxcd.io", Kind: tc.kind}, true, false, []unstructured.Unstructured{u}); g.Parted != 0 {
				t.Errorf("%s: %d have parts of Clusters in a tier without any", tc.reason, g.Parted)
			}
		})
	}
}

// TestReadDefinitions: a definition of an earlier Flux is one that the agent cannot read. That
// of a controller that goes on by itself is not looked at.
func TestReadDefinitions(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	define := func(group, kind, plural string, versions ...string) *apiextensionsv1.CustomResourceDefinition {
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group}}
		crd.Spec.Group, crd.Spec.Names = group, apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, Plural: plural}
		for i, v := range versions {
			crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: v, Served: true, Storage: i == 0})
		}
		return crd
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		define("source.toolkit.fluxcd.io", "OCIRepository", "ocirepositories", "v1beta2"),
		define("source.toolkit.fluxcd.io", "GitRepository", "gitrepositories", "v1", "v1beta2"),
		define("image.toolkit.fluxcd.io", "ImagePolicy", "imagepolicies", "v1beta2"),
	).Build()
	list := interceptor.NewClient(c, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
		if _, ok := l.(*unstructured.UnstructuredList); ok {
			return nil // there are no objects
		}
		return c.List(ctx, l, o...)
	}})
	f, err := Read(t.Context(), list, "flux-system")
	if err != nil || !slices.Equal(f.Outdated, []string{"OCIRepository v1"}) {
		t.Errorf("outdated are %q, %v", f.Outdated, err)
	}
}

// TestReadControllers: which of Flux's Deployments an agent replaces, and which are copies of
// those for a part of the objects.
func TestReadControllers(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	scheme.AddKnownTypeWithName(instance(), &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(instance().GroupVersion().WithKind("FluxInstanceList"), &unstructured.UnstructuredList{})
	build := fake.NewClientBuilder().WithScheme(scheme)
	for _, name := range []string{"source-controller", "kustomize-controller", "kustomize-controller-shard1", "source-watcher", "notification-controller", "source-controller-shard1"} {
		build.WithObjects(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: name, Labels: map[string]string{"app.kubernetes.io/part-of": "flux"}}})
	}
	f, err := Read(t.Context(), build.Build(), "flux-system")
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		what string
		got  []Controller
		want string
	}{
		{"replaced", f.Replaced, "kustomize-controller, source-watcher, source-controller"},
		{"for a part of the objects", f.Shards, "kustomize-controller-shard1, source-controller-shard1"},
		{"left", f.Others, "notification-controller"},
	} {
		if got := Names(of.got); got != of.want {
			t.Errorf("%s: %s, want %s", of.what, got, of.want)
		}
	}
}

// TestCountSharded: what labels give to a part of Flux's controllers is counted, of the kinds that an
// agent takes over.
func TestCountSharded(t *testing.T) {
	labelled, plain := unstructured.Unstructured{Object: map[string]any{}}, unstructured.Unstructured{Object: map[string]any{}}
	labelled.SetLabels(map[string]string{"sharding.fluxcd.io/key": "shard1"})
	f := Facts{}
	f.count(schema.GroupKind{Group: "kustomize.toolkit.fluxcd.io", Kind: "Kustomization"}, true, false, []unstructured.Unstructured{labelled, plain, labelled})
	f.count(schema.GroupKind{Group: "helm.toolkit.fluxcd.io", Kind: "HelmRelease"}, true, false, []unstructured.Unstructured{plain})
	f.count(schema.GroupKind{Group: "notification.toolkit.fluxcd.io", Kind: "Alert"}, true, false, []unstructured.Unstructured{labelled})
	if want := []Kind{{"Kustomization", 2, ""}}; !slices.Equal(f.Sharded, want) {
		t.Errorf("%v are for a part, want %v", f.Sharded, want)
	}
}

// TestRuns: an operator's controllers count as stopped when all are at zero.
func TestRuns(t *testing.T) {
	f := bootstrapped()
	if !f.Runs() {
		t.Error("none is to run")
	}
	for i := range f.Replaced {
		f.Replaced[i].Replicas = 0
	}
	if f.Runs() {
		t.Error("one is to run")
	}
}

// TestGoesOn: what only an agent served has nobody after it.
func TestGoesOn(t *testing.T) {
	images, kustomization := schema.GroupKind{Group: "image.toolkit.fluxcd.io", Kind: "ImageRepository"}, schema.GroupKind{Group: "kustomize.toolkit.fluxcd.io", Kind: "Kustomization"}
	for name, tc := range map[string]struct {
		reason string
		others []Controller
		kind   schema.GroupKind
		want   bool
	}{
		"Replaced":  {"its controller starts again", nil, kustomization, true},
		"Beside":    {"its controller never ended", []Controller{{"image-reflector-controller", 1}}, images, true},
		"Missing":   {"flux bootstrap does not install it by default", nil, images, false},
		"Stopped":   {"nobody starts it", []Controller{{"image-reflector-controller", 0}}, images, false},
		"Another":   {"it works on other kinds of the group", []Controller{{"image-automation-controller", 1}}, images, false},
		"Generator": {"its group has another suffix", nil, schema.GroupKind{Group: "source.extensions.fluxcd.io", Kind: "ArtifactGenerator"}, false},
		"Ours":      {"Flux knows nothing of it", nil, schema.GroupKind{Group: "cascade.dev", Kind: "Layer"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := bootstrapped()
			f.Others = tc.others
			if got := f.GoesOn(tc.kind); got != tc.want {
				t.Errorf("%s: GoesOn(%s) = %t", tc.reason, tc.kind, got)
			}
		})
	}
}

// TestGoesOnGenerator: source-watcher starts again where it was.
func TestGoesOnGenerator(t *testing.T) {
	f := bootstrapped()
	withGenerator(&f)
	if !f.GoesOn(schema.GroupKind{Group: "source.extensions.fluxcd.io", Kind: "ArtifactGenerator"}) {
		t.Error("nobody works on ArtifactGenerators after the move back")
	}
}

// TestRecordFile: a record that was written is read again, and what is no record is refused.
func TestRecordFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "record")
	if r, err := Load(file); r != nil || err != nil {
		t.Errorf("there is no file, and it has %v: %v", r, err)
	}
	if err := (Record{"default_a__ConfigMap": "1-2-3"}).Save(file); err != nil {
		t.Fatal(err)
	}
	if r, err := Load(file); err != nil || r["default_a__ConfigMap"] != "1-2-3" {
		t.Errorf("it has %v: %v", r, err)
	}
	if err := os.WriteFile(file, []byte("no record"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil {
		t.Error("a file that is no record is one")
	}
}
