package artifact

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// stand is a reconciler with a cluster that is none, and a Git server.
type stand struct {
	*Reconciler
	t      *testing.T
	client client.Client
	git    *gitserver.Server
	// mirrors have what was fetched, last is that of the repository.
	mirrors *source.Mirrors
	last    *source.Snapshot
	// applied, statuses and deletes count writes of ExternalArtifacts.
	applied, statuses, deletes int
	// told are the snapshots that were handed over.
	told []string
}

const repository = "team/fleet"

func newStand(t *testing.T, objects ...client.Object) *stand {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{sourcev1.AddToScheme, generatorv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	s := &stand{t: t, mirrors: source.NewMirrors(t.TempDir(), 64<<20)}
	s.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&generatorv1.ArtifactGenerator{}, &sourcev1.ExternalArtifact{}, &sourcev1.GitRepository{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
				s.applied++
				return c.Apply(ctx, obj, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
				if _, ok := obj.(*sourcev1.ExternalArtifact); ok {
					s.statuses++
				}
				return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
				if _, ok := obj.(*sourcev1.ExternalArtifact); ok {
					s.deletes++
				}
				return c.Delete(ctx, obj, opts...)
			},
		}).Build()
	s.restart()
	server, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	if err := server.Create(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	s.git = server
	return s
}

// restart begins with a new process, which remembers nothing.
func (s *stand) restart() {
	s.Reconciler = &Reconciler{
		Client: s.client, Live: s.client, Composer: source.NewComposer(s.t.TempDir(), 64<<20), Events: &record.FakeRecorder{},
		Metrics: metrics.New(prometheus.NewRegistry()), Now: time.Now, Jitter: func(d time.Duration) time.Duration { return d },
		Rules: Rules{RequeueDependency: 30 * time.Second},
		Sources: &find.Finder{
			Client: s.client, Reader: s.client, Snapshots: source.NewSnapshots(), Artifacts: source.NewArtifacts(s.t.TempDir(), 64<<20),
			Fetched: map[string]bool{sourcev1.GitRepositoryKind: true, generatorv1.ArtifactGeneratorKind: true},
		},
	}
	s.open()
	s.told = nil
	s.Sources.Snapshots.OnChange(func(key source.Key) {
		if key.Kind == sourcev1.ExternalArtifactKind {
			s.told = append(s.told, key.Name)
		}
	})
}

// commit changes files, and has the source a at the commit.
func (s *stand) commit(files map[string]string) string {
	s.t.Helper()
	_, err := s.git.Commit(s.t.Context(), repository, "main", "change", func(folder string) error {
		for name, text := range files {
			at := filepath.Join(folder, name)
			if text == "" {
				if err := os.Remove(at); err != nil {
					return err
				}
				continue
			}
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.fetch()
}

// fetch has the source a at the newest commit, and returns its revision.
func (s *stand) fetch() string {
	s.t.Helper()
	var err error
	s.last, err = s.mirrors.Fetch(s.t.Context(), source.Origin{URL: s.git.HTTPURL(repository)}, source.Reference{Branch: "main"}, source.Options{}, s.last)
	if err != nil {
		s.t.Fatal(err)
	}
	g := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "a"}}
	if err := s.client.Create(s.t.Context(), g); err != nil && !apierrors.IsAlreadyExists(err) {
		s.t.Fatal(err)
	}
	if err := s.client.Get(s.t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
		s.t.Fatal(err)
	}
	g.Status.Artifact = &meta.Artifact{Revision: s.last.Revision, Digest: s.last.Digest, Path: "x", LastUpdateTime: metav1.Now()}
	if err := s.client.Status().Update(s.t.Context(), g); err != nil {
		s.t.Fatal(err)
	}
	s.Sources.Snapshots.Put(source.Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "x", Name: "a"}}, s.last)
	return s.last.Revision
}

// reconcile reconciles the generator g, and returns it, or nil if it is gone.
func (s *stand) reconcile() *generatorv1.ArtifactGenerator {
	s.t.Helper()
	name := types.NamespacedName{Namespace: "x", Name: "g"}
	if _, err := s.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
		s.t.Fatal(err)
	}
	g := &generatorv1.ArtifactGenerator{}
	err := s.client.Get(s.t.Context(), name, g)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

// external reads an ExternalArtifact; nil if there is none.
func (s *stand) external(name string) *sourcev1.ExternalArtifact {
	s.t.Helper()
	e := &sourcev1.ExternalArtifact{}
	err := s.client.Get(s.t.Context(), types.NamespacedName{Namespace: "x", Name: name}, e)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// edit changes the generator as a user would.
func (s *stand) edit(change func(*generatorv1.ArtifactGenerator)) {
	s.t.Helper()
	g := &generatorv1.ArtifactGenerator{}
	if err := s.client.Get(s.t.Context(), types.NamespacedName{Namespace: "x", Name: "g"}, g); err != nil {
		s.t.Fatal(err)
	}
	change(g)
	g.Generation++
	if err := s.client.Update(s.t.Context(), g); err != nil {
		s.t.Fatal(err)
	}
}

func readyOf(t *testing.T, g *generatorv1.ArtifactGenerator) *metav1.Condition {
	t.Helper()
	c := apimeta.FindStatusCondition(g.Status.Conditions, meta.ReadyCondition)
	if c == nil {
		t.Fatal("there is no condition Ready")
	}
	return c
}

// fifty is a generator of an artifact for each of 50 directories.
func fifty() *generatorv1.ArtifactGenerator {
	g := generator()
	g.Spec.Sources, g.Spec.OutputArtifacts = g.Spec.Sources[:1], nil
	for n := range 50 {
		g.Spec.OutputArtifacts = append(g.Spec.OutputArtifacts, generatorv1.OutputArtifact{
			Name: fmt.Sprintf("app-%d", n), OriginRevision: "@a",
			Copy: []generatorv1.CopyOperation{
				{From: fmt.Sprintf("@a/apps/%d/**", n), To: "@artifact/", Exclude: []string{"*.md"}}, {From: "@a/base/**", To: "@artifact/base/"},
			},
		})
	}
	return g
}

// TestOneOfFifty: a commit in one of fifty directories writes one of fifty artifacts, and tells
// of one. A new process writes none.
func TestOneOfFifty(t *testing.T) {
	s := newStand(t, fifty())
	files := map[string]string{"base/b.yaml": "base"}
	for n := range 50 {
		files[fmt.Sprintf("apps/%d/a.yaml", n)] = fmt.Sprint(n)
	}
	first := s.commit(files)
	g := s.reconcile()
	if c := readyOf(t, g); c.Status != metav1.ConditionTrue || c.Reason != meta.SucceededReason || c.Message != "reconciliation succeeded, generated 50 artifact(s)" {
		t.Fatalf("Ready is %+v", c)
	}
	if s.applied != 50 || s.statuses != 50 || len(s.told) != 50 || len(g.Status.Inventory) != 50 || g.Status.ObservedSourcesDigest == "" {
		t.Fatalf("%d applied, %d statuses, %d told, %d in the inventory", s.applied, s.statuses, len(s.told), len(g.Status.Inventory))
	}
	before := s.external("app-7").Status.Artifact
	count := func(what string, applied, statuses int, told ...string) {
		t.Helper()
		s.applied, s.statuses, s.told = 0, 0, nil
		s.reconcile()
		if s.applied != applied || s.statuses != statuses || !slices.Equal(s.told, told) {
			t.Errorf("%s: %d applied, %d statuses, told of %v; want %d, %d, %v", what, s.applied, s.statuses, s.told, applied, statuses, told)
		}
	}
	count("nothing changed", 0, 0)
	second := s.commit(map[string]string{"apps/7/a.yaml": "changed", "apps/8/README.md": "it is excluded"})
	count("a commit in one of fifty directories", 0, 1, "app-7")
	after := s.external("app-7").Status.Artifact
	if after.Revision == before.Revision || after.Metadata[generatorv1.ArtifactOriginRevisionAnnotation] != second {
		t.Errorf("artifact %+v, before %+v", after, before)
	}
	if other := s.external("app-8").Status.Artifact; other.Metadata[generatorv1.ArtifactOriginRevisionAnnotation] != first {
		t.Errorf("another artifact has origin %v, though nothing of it changed", other.Metadata)
	}
	s.commit(map[string]string{"apps/7/a.yaml": "7"})
	count("the commit is reverted", 0, 1, "app-7")
	if again := s.external("app-7").Status.Artifact; again.Revision != before.Revision || again.Digest != before.Digest {
		t.Errorf("the same files are revision %s, before %s", again.Revision, before.Revision)
	}

	s.restart()
	s.fetch()
	s.applied, s.statuses = 0, 0
	s.reconcile()
	if s.statuses != 0 || len(s.told) != 50 {
		t.Errorf("a new process writes %d statuses, and has %d of 50 artifacts", s.statuses, len(s.told))
	}
}

// TestArtifactOfGenerator: what Flux's other controllers read of an ExternalArtifact.
func TestArtifactOfGenerator(t *testing.T) {
	g := generator("@a/app/** @artifact/")
	g.Spec.Sources = g.Spec.Sources[:1]
	g.Spec.OutputArtifacts[0].OriginRevision = "@a"
	g.Spec.CommonMetadata = &generatorv1.CommonMetadata{
		Labels:      map[string]string{"team": "one", generatorv1.ArtifactGeneratorLabel: "another", managedBy: "another"},
		Annotations: map[string]string{"note": "x"},
	}
	s := newStand(t, g)
	revision := s.commit(map[string]string{"app/a.yaml": "a", "other.yaml": "b"})
	made := s.reconcile()
	e := s.external("out")
	labels := map[string]string{"team": "one", generatorv1.ArtifactGeneratorLabel: "uid-g", managedBy: "source-watcher"}
	if !reflect.DeepEqual(e.Labels, labels) || e.Annotations["note"] != "x" {
		t.Errorf("labels %v, annotations %v", e.Labels, e.Annotations)
	}
	if ref := e.Spec.SourceRef; ref == nil || ref.APIVersion != "source.extensions.fluxcd.io/v1beta1" || ref.Kind != "ArtifactGenerator" || ref.Name != "g" || ref.Namespace != "x" {
		t.Errorf("sourceRef %+v", e.Spec.SourceRef)
	}
	a := e.Status.Artifact
	digest := strings.TrimPrefix(a.Revision, "latest@")
	if !strings.HasPrefix(digest, "sha256:") || a.Digest != digest || a.Path != "externalartifact/x/out/"+strings.TrimPrefix(digest, "sha256:")+".tar.gz" ||
		a.Metadata[generatorv1.ArtifactOriginRevisionAnnotation] != revision || a.LastUpdateTime.IsZero() {
		t.Errorf("artifact %+v", a)
	}
	if c := apimeta.FindStatusCondition(e.Status.Conditions, meta.ReadyCondition); c == nil || c.Status != metav1.ConditionTrue || c.Reason != "Succeeded" {
		t.Errorf("conditions %+v", e.Status.Conditions)
	}
	want := generatorv1.ExternalArtifactReference{Name: "out", Namespace: "x", Digest: a.Digest, Filename: strings.TrimPrefix(digest, "sha256:") + ".tar.gz"}
	if !slices.Equal(made.Status.Inventory, []generatorv1.ExternalArtifactReference{want}) {
		t.Errorf("inventory %+v", made.Status.Inventory)
	}
	observed := generatorv1.HashObservedSources(map[string]generatorv1.ObservedSource{"a": {Digest: s.last.Digest, Revision: revision}})
	if made.Status.ObservedSourcesDigest != observed {
		t.Errorf("observedSourcesDigest %s, want %s", made.Status.ObservedSourcesDigest, observed)
	}
	// It is found as others find it.
	o, err := s.Sources.Object(t.Context(), keyOf("x", "out"))
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := s.Sources.Snapshot(t.Context(), keyOf("x", "out"), o)
	if err != nil || snapshot.Revision != a.Revision || snapshot.OriginRevision != revision {
		t.Errorf("snapshot %+v, %v", snapshot, err)
	}
	s.edit(func(g *generatorv1.ArtifactGenerator) {
		g.Spec.OutputArtifacts[0].Revision, g.Spec.CommonMetadata = "@a", nil
	})
	s.reconcile()
	if e := s.external("out"); e.Status.Artifact.Revision != revision || e.Annotations["note"] != "" || e.Labels["team"] != "" {
		t.Errorf("artifact %+v, labels %v, annotations %v", e.Status.Artifact, e.Labels, e.Annotations)
	}
	s.edit(func(g *generatorv1.ArtifactGenerator) {
		g.Spec.OutputArtifacts[0].Revision, g.Spec.OutputArtifacts[0].OriginRevision = "", ""
	})
	s.reconcile()
	if a := s.external("out").Status.Artifact; a.Revision != "latest@"+digest || len(a.Metadata) > 0 {
		t.Errorf("the origin that is asked for no more stays: %+v", a)
	}
}

// TestOthersArtifacts: only what the generator made is written and deleted.
func TestOthersArtifacts(t *testing.T) {
	foreign := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "out", UID: "theirs"}}
	g := generator("@a/app/** @artifact/")
	g.Spec.Sources = g.Spec.Sources[:1]
	g.Spec.OutputArtifacts = append(g.Spec.OutputArtifacts, *g.Spec.OutputArtifacts[0].DeepCopy())
	g.Spec.OutputArtifacts[1].Name = "other"
	s := newStand(t, g, foreign)
	s.commit(map[string]string{"app/a.yaml": "a"})
	made := s.reconcile()
	if c := readyOf(t, made); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonNameTaken || !strings.Contains(c.Message, "'out'") {
		t.Errorf("Ready is %+v", c)
	}
	if e := s.external("out"); e.Labels != nil || e.Status.Artifact != nil {
		t.Errorf("another's artifact was written: %+v", e)
	}
	if e := s.external("other"); e == nil || e.Status.Artifact == nil {
		t.Error("one name that is taken keeps the others from being made")
	}
	// It is not deleted with the generator, nor when it is in its inventory.
	s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts = g.Spec.OutputArtifacts[1:] })
	made = s.reconcile()
	made.Status.Inventory = append(made.Status.Inventory, generatorv1.ExternalArtifactReference{Name: "out", Namespace: "x"})
	if err := s.client.Status().Update(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	if s.external("out") == nil || s.deletes != 0 {
		t.Error("another's artifact was deleted")
	}
	// What it declares no more goes, and is asked about first.
	asked := 0
	s.MayDelete = func() error { asked++; return nil }
	s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Name = "renamed" })
	s.reconcile()
	if s.external("other") != nil || s.external("renamed") == nil || asked != 1 {
		t.Errorf("after a new name: %v, %v, asked %d times", s.external("other"), s.external("renamed"), asked)
	}
	s.MayDelete = func() error { return errors.New("another process has the tier") }
	if err := s.client.Delete(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(made)}); err == nil || s.external("renamed") == nil {
		t.Errorf("it was deleted by a process that may not: %v", err)
	}
	s.MayDelete = nil
	if s.reconcile() != nil || s.external("renamed") != nil || s.external("out") == nil {
		t.Error("the generator, or what it made, is left; or another's artifact is gone")
	}
}

// TestNameMovesToPattern: a name that another generator lets go of is made by the one that makes
// it of a pattern, at once.
func TestNameMovesToPattern(t *testing.T) {
	apps, all := generator("@a/apps/web/** @artifact/"), generator("@a/apps/{app}/** @artifact/")
	for _, g := range []*generatorv1.ArtifactGenerator{apps, all} {
		g.Spec.Sources = g.Spec.Sources[:1]
	}
	apps.Spec.OutputArtifacts[0].Name = "web"
	all.Name, all.UID = "all", "uid-all"
	all.Spec.PathPattern, all.Spec.OutputArtifacts[0].Name = "@a/apps/{app}", "{app}"
	s := newStand(t, apps, all)
	s.commit(map[string]string{"apps/web/a.yaml": "a"})
	s.reconcile()
	look := func() *generatorv1.ArtifactGenerator {
		t.Helper()
		if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(all)}); err != nil {
			t.Fatal(err)
		}
		g := &generatorv1.ArtifactGenerator{}
		if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(all), g); err != nil {
			t.Fatal(err)
		}
		return g
	}
	if c := readyOf(t, look()); c.Reason != v1alpha1.ReasonNameTaken {
		t.Fatalf("Ready is %+v", c)
	}
	before := s.external("web")
	s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Name = "other" })
	s.reconcile()
	if s.external("web") != nil {
		t.Fatal("the artifact is not let go")
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	defer queue.ShutDown()
	s.onArtifact(before, true, queue)
	woken := map[string]bool{}
	for queue.Len() > 0 {
		request, _ := queue.Get()
		woken[request.Name] = true
	}
	if !woken["all"] || !woken["g"] {
		t.Errorf("woken are %v", woken)
	}
	if c := readyOf(t, look()); c.Status != metav1.ConditionTrue || s.external("web") == nil {
		t.Errorf("Ready is %+v", c)
	}
}

// TestDrift: what somebody deletes or changes of an artifact comes back.
func TestDrift(t *testing.T) {
	g := generator("@a/app/** @artifact/")
	g.Spec.Sources = g.Spec.Sources[:1]
	s := newStand(t, g)
	s.commit(map[string]string{"app/a.yaml": "a"})
	s.reconcile()
	e := s.external("out")
	revision := e.Status.Artifact.Revision
	if !s.asWritten(client.ObjectKeyFromObject(g), e) {
		t.Error("our own write wakes the generator")
	}
	e.Labels = map[string]string{"mine": "too"}
	if err := s.client.Update(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if s.asWritten(client.ObjectKeyFromObject(g), e) {
		t.Error("another's write does not wake the generator")
	}
	s.reconcile()
	if e = s.external("out"); e.Labels[generatorv1.ArtifactGeneratorLabel] != "uid-g" || e.Labels["mine"] != "too" {
		t.Errorf("labels %v", e.Labels)
	}
	e.Status.Artifact.Revision = "forged"
	if err := s.client.Status().Update(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	if e = s.external("out"); e.Status.Artifact.Revision != revision {
		t.Errorf("the artifact is %+v", e.Status.Artifact)
	}
	if err := s.client.Delete(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	if e = s.external("out"); e == nil || e.Status.Artifact == nil || e.Status.Artifact.Revision != revision {
		t.Errorf("what was deleted is %+v", e)
	}
}

// TestConditions: what goes wrong is told with Flux's reason, and what was made stays.
func TestConditions(t *testing.T) {
	gone := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "gone"}, Spec: sourcev1.GitRepositorySpec{Suspend: true}}
	gone.Status.Artifact = &meta.Artifact{Revision: "main@sha1:1"}
	gone.Status.Conditions = []metav1.Condition{
		{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Succeeded"},
		{Type: sourcev1.FetchFailedCondition, Status: metav1.ConditionTrue, Reason: "RevisionNotFetched", Message: "cannot fetch it again"},
	}
	down := gone.DeepCopy()
	down.Name, down.Spec.Suspend = "down", false
	down.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: "GitOperationFailed", Message: "no route"}}
	for name, tc := range map[string]struct {
		reason  string
		change  func(*generatorv1.ArtifactGenerator)
		no      bool // cross-namespace references
		want    string
		message string
		stalled bool
	}{
		"NotFound":  {"there is no such source", func(g *generatorv1.ArtifactGenerator) { g.Spec.Sources[0].Name = "missing" }, false, generatorv1.SourceFetchFailedReason, "source 'GitRepository/x/missing' not found", false},
		"Artifact":  {"it has none yet", func(g *generatorv1.ArtifactGenerator) { g.Spec.Sources[0].Name = "empty" }, false, generatorv1.SourceFetchFailedReason, "source 'GitRepository/x/empty' has no artifact", false},
		"Gone":      {"it is suspended, and has lost it", func(g *generatorv1.ArtifactGenerator) { g.Spec.Sources[0].Name = "gone" }, false, generatorv1.SourceFetchFailedReason, "source 'GitRepository/x/gone': cannot fetch it again", false},
		"Down":      {"this process could not fetch it again", func(g *generatorv1.ArtifactGenerator) { g.Spec.Sources[0].Name = "down" }, false, generatorv1.SourceFetchFailedReason, "source 'GitRepository/x/down' is not ready, and this process has not fetched it yet; see its status: GitOperationFailed", false},
		"Namespace": {"another namespace is refused", func(g *generatorv1.ArtifactGenerator) { g.Spec.Sources[0].Namespace = "y" }, true, generatorv1.AccessDeniedReason, "cross-namespace references have been blocked", true},
		"Elsewhere": {"without the flag it is looked for", func(g *generatorv1.ArtifactGenerator) { g.Spec.Sources[0].Namespace = "y" }, false, generatorv1.SourceFetchFailedReason, "source 'GitRepository/y/a' not found", false},
		"Alias":     {"the spec is invalid", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@c/x" }, false, generatorv1.ValidationFailedReason, "spec.sources", true},
		"Path":      {"there is no such file", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@a/missing" }, false, meta.BuildFailedReason, "no such file or directory", false},
		"Circle": {"it would grow each time", func(g *generatorv1.ArtifactGenerator) {
			g.Spec.Sources[0] = generatorv1.SourceReference{Alias: "a", Kind: "ExternalArtifact", Name: "out"}
		}, false, generatorv1.ValidationFailedReason, "made of what this generator makes", true},
	} {
		t.Run(name, func(t *testing.T) {
			g := generator("@a/app/** @artifact/")
			g.Spec.Sources = g.Spec.Sources[:1]
			s := newStand(t, g, &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "empty"}}, gone.DeepCopy(), down.DeepCopy())
			s.Rules.NoCrossNamespaceRefs = tc.no
			s.commit(map[string]string{"app/a.yaml": "a"})
			s.reconcile()
			before := s.external("out").Status.Artifact
			s.edit(tc.change)
			s.applied, s.statuses = 0, 0
			made := s.reconcile()
			c := readyOf(t, made)
			if c.Status != metav1.ConditionFalse || c.Reason != tc.want || !strings.Contains(c.Message, tc.message) || c.ObservedGeneration != made.Generation {
				t.Errorf("%s\nReady is %+v", tc.reason, c)
			}
			if stalled := apimeta.IsStatusConditionTrue(made.Status.Conditions, meta.StalledCondition); stalled != tc.stalled {
				t.Errorf("%s: stalled: %t", tc.reason, stalled)
			}
			if after := s.external("out").Status.Artifact; s.deletes+s.applied+s.statuses != 0 || after.Revision != before.Revision || len(made.Status.Inventory) != 1 {
				t.Errorf("%s: what was made is not left as it was: %+v", tc.reason, after)
			}
			if s.Sources.Snapshots.Get(keyOf("x", "out")) == nil {
				t.Error("what was made is not in use any more")
			}
			// Nothing is polled, and nothing is written twice.
			at := made.ResourceVersion
			result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(g)})
			if err != nil || result.RequeueAfter != 0 && result.RequeueAfter < 30*time.Second {
				t.Errorf("the next look is after %s: %v", result.RequeueAfter, err)
			}
			if again := s.reconcile(); again.ResourceVersion != at {
				t.Error("the same failure is written again")
			}
		})
	}
}

// TestRequestWaits: who asks while a new process has the sources fetched again is answered when they are there.
func TestRequestWaits(t *testing.T) {
	g := generator("@a/app/** @artifact/")
	g.Spec.Sources = g.Spec.Sources[:1]
	s := newStand(t, g)
	s.commit(map[string]string{"app/a.yaml": "a"})
	s.reconcile()
	s.edit(func(g *generatorv1.ArtifactGenerator) {
		g.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
	})
	s.restart()
	if made := s.reconcile(); made.Status.LastHandledReconcileAt != "" || !apimeta.IsStatusConditionTrue(made.Status.Conditions, meta.ReadyCondition) {
		t.Errorf("nothing was fetched, and the request is handled: %+v", made.Status)
	}
	s.fetch()
	if made := s.reconcile(); made.Status.LastHandledReconcileAt != "now" {
		t.Errorf("the request is not handled: %q", made.Status.LastHandledReconcileAt)
	}
}

// TestDisabled: nothing is written, and after a restart what was made is found again if the
// sources still have it. If they do not, it says so.
func TestDisabled(t *testing.T) {
	g := generator("@a/app/** @artifact/")
	g.Spec.Sources = g.Spec.Sources[:1]
	s := newStand(t, g)
	s.commit(map[string]string{"app/a.yaml": "a"})
	s.reconcile()
	s.edit(func(g *generatorv1.ArtifactGenerator) {
		g.Annotations = map[string]string{generatorv1.ReconcileAnnotation: "Disabled", meta.ReconcileRequestAnnotation: "now"}
	})
	s.commit(map[string]string{"other.yaml": "x"})
	s.restart()
	s.fetch()
	s.applied, s.statuses = 0, 0
	if made := s.reconcile(); made.Status.LastHandledReconcileAt != "now" {
		t.Errorf("the request is not handled: %q", made.Status.LastHandledReconcileAt)
	}
	lost := func() *metav1.Condition {
		t.Helper()
		made := s.reconcile()
		if c := readyOf(t, made); c.Status != metav1.ConditionTrue {
			t.Errorf("Ready is %+v", c)
		}
		return find.NotRestored(made)
	}
	if c := lost(); c != nil {
		t.Errorf("all that was made is there, and it tells %+v", c)
	}
	if s.applied+s.statuses != 0 || !slices.Equal(s.told, []string{"out"}) {
		t.Errorf("%d applied, %d statuses, told of %v", s.applied, s.statuses, s.told)
	}
	revision := s.external("out").Status.Artifact.Revision
	s.commit(map[string]string{"app/a.yaml": "changed"})
	if c := lost(); c != nil {
		t.Errorf("what was made is in use, and it tells %+v", c)
	}
	s.restart()
	if c := lost(); c != nil {
		t.Errorf("its source is not fetched yet, and it tells %+v", c)
	}
	s.fetch()
	events := record.NewFakeRecorder(10)
	s.Events = events
	for range 2 {
		if c := lost(); c == nil || c.Reason != "RevisionNotFetched" || !strings.Contains(c.Message, "made: out: ") {
			t.Errorf("what it made is in its sources no more, and it tells %+v", c)
		}
	}
	if len(events.Events) != 1 {
		t.Errorf("%d events", len(events.Events))
	}
	if len(s.told) != 0 || s.external("out").Status.Artifact.Revision != revision {
		t.Errorf("told of %v: a disabled generator makes something new", s.told)
	}
	s.commit(map[string]string{"app/a.yaml": "a"})
	if c := lost(); c != nil || !slices.Equal(s.told, []string{"out"}) {
		t.Errorf("the commit is reverted, told of %v, and it tells %+v", s.told, c)
	}
	s.commit(map[string]string{"app/a.yaml": "changed"})
	s.restart()
	s.fetch()
	lost()
	s.edit(func(g *generatorv1.ArtifactGenerator) { g.Annotations = nil })
	if c := lost(); c != nil || len(s.told) != 1 || s.external("out").Status.Artifact.Revision == revision {
		t.Errorf("it is enabled, and makes nothing, or tells %+v", c)
	}
}

// TestDisabledLost: why a disabled generator cannot make again what it made.
func TestDisabledLost(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*stand)
		want   string
	}{
		"Source": {"its source is gone", func(s *stand) {
			s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.Sources[0].Name = "missing" })
		}, "source 'GitRepository/x/missing' not found"},
		"Files": {"its source has none of it", func(s *stand) {
			s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@a/missing" })
		}, "no such file or directory"},
		"Name": {"its spec has another name by now", func(s *stand) {
			s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Name = "other" })
		}, "it would be another"},
		"Spec": {"its spec is invalid by now", func(s *stand) {
			s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@c/x" })
		}, "spec.sources"},
		"Deleted": {"nobody can refer to what is not there", func(s *stand) {
			s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@a/missing" })
			if err := s.client.Delete(s.t.Context(), s.external("out")); err != nil {
				s.t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := generator("@a/app/** @artifact/")
			g.Spec.Sources = g.Spec.Sources[:1]
			s := newStand(t, g)
			s.commit(map[string]string{"app/a.yaml": "a"})
			s.reconcile()
			s.edit(func(g *generatorv1.ArtifactGenerator) {
				g.Annotations = map[string]string{generatorv1.ReconcileAnnotation: generatorv1.DisabledValue}
			})
			tc.change(s)
			s.restart()
			s.fetch()
			got := ""
			if c := find.NotRestored(s.reconcile()); c != nil {
				got = c.Message
			}
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%s: it tells %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestDisabledRevision: a revision that the spec names says nothing of what was copied: what a disabled generator would
// make by now is not handed over under it, and what was kept of what it made is.
func TestDisabledRevision(t *testing.T) {
	g := generator("@a/app/** @artifact/")
	g.Spec.Sources = g.Spec.Sources[:1]
	g.Spec.OutputArtifacts[0].Revision = "@a"
	s := newStand(t, g)
	s.commit(map[string]string{"app/a.yaml": "a", "app/b.yaml": "b"})
	s.reconcile()
	s.edit(func(g *generatorv1.ArtifactGenerator) {
		g.Annotations = map[string]string{generatorv1.ReconcileAnnotation: "Disabled"}
	})
	s.restart()
	s.fetch()
	if s.reconcile(); !slices.Equal(s.told, []string{"out"}) {
		t.Fatalf("told of %v: it is as it was", s.told)
	}
	s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].Exclude = []string{"b.yaml"} })
	s.restart()
	s.fetch()
	if s.reconcile(); len(s.told) != 0 {
		t.Errorf("told of %v: other content under the same revision", s.told)
	}
}

// TestLeft: what a generator made that other labels make another agent's is not kept here, as it
// would be applied, old as it is, when they come back. The objects are that agent's.
func TestLeft(t *testing.T) {
	for name, disabled := range map[string]bool{"Made": false, "Restored": true} {
		t.Run(name, func(t *testing.T) {
			g := generator("@a/app/** @artifact/")
			g.Spec.Sources = g.Spec.Sources[:1]
			s := newStand(t, g)
			s.commit(map[string]string{"app/a.yaml": "a"})
			s.reconcile()
			if disabled {
				s.edit(func(g *generatorv1.ArtifactGenerator) {
					g.Annotations = map[string]string{generatorv1.ReconcileAnnotation: generatorv1.DisabledValue}
				})
				s.restart()
				s.fetch()
			}
			ours := true
			s.Sources.Shard = func(client.Object) bool { return ours }
			other := keyOf("x", "other") // another generator's by now, which the inventory still has
			s.Sources.Snapshots.Put(other, s.last)
			if err := s.client.Create(t.Context(), &sourcev1.ExternalArtifact{
				ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "other"},
				Spec: sourcev1.ExternalArtifactSpec{SourceRef: &meta.NamespacedObjectKindReference{
					APIVersion: generatorv1.GroupVersion.String(), Kind: generatorv1.ArtifactGeneratorKind, Namespace: "x", Name: "h",
				}},
			}); err != nil {
				t.Fatal(err)
			}
			for _, ours = range []bool{true, false, true} {
				made := s.reconcile()
				if got := s.Sources.Snapshots.Get(keyOf("x", "out")) != nil; got != ours || s.external("out") == nil || s.deletes > 0 {
					t.Errorf("ours %t: there is a snapshot: %t, and %d deletes", ours, got, s.deletes)
				}
				if s.Sources.Snapshots.Get(other) == nil {
					t.Errorf("ours %t: what another generator made is dropped", ours)
				}
				if ours && !disabled {
					made.Status.Inventory = append(made.Status.Inventory, generatorv1.ExternalArtifactReference{Namespace: "x", Name: "other"})
					if err := s.client.Status().Update(t.Context(), made); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// TestOneFails: an artifact that cannot be made keeps no other from being made, and stays as it
// was.
func TestOneFails(t *testing.T) {
	g := fifty()
	g.Spec.OutputArtifacts = g.Spec.OutputArtifacts[:2]
	s := newStand(t, g)
	events := record.NewFakeRecorder(100)
	s.Events = events
	// told are the events since it was asked last, without their messages.
	told := func() (all []string) {
		for len(events.Events) > 0 {
			words := strings.Fields(<-events.Events)
			all = append(all, words[0]+" "+words[1])
		}
		return all
	}
	s.commit(map[string]string{"base/b.yaml": "b", "apps/0/a.yaml": "a", "apps/1/a.yaml": "a"})
	s.reconcile()
	if all := told(); !slices.Contains(all, "Normal Succeeded") {
		t.Errorf("told is %q", all)
	}
	before := s.external("app-0").Status.Artifact
	s.commit(map[string]string{"apps/0/a.yaml": "", "apps/1/a.yaml": "b"})
	made := s.reconcile()
	if c := readyOf(t, made); c.Reason != meta.BuildFailedReason || !strings.Contains(c.Message, "artifact 'app-0'") || strings.Contains(c.Message, "app-1") {
		t.Errorf("Ready is %+v", c)
	}
	if !slices.Equal(s.told[2:], []string{"app-1"}) || len(made.Status.Inventory) != 2 || s.deletes != 0 {
		t.Errorf("told of %v, inventory %v, %d deletes", s.told, made.Status.Inventory, s.deletes)
	}
	if after := s.external("app-0").Status.Artifact; after.Revision != before.Revision {
		t.Error("what cannot be made did not stay as it was")
	}
	if all := told(); !slices.Equal(all, []string{"Normal Progressing", "Warning BuildFailed"}) {
		t.Errorf("told is %q", all)
	}
	// What fails is told once, and nothing says that it is over.
	s.commit(map[string]string{"apps/1/a.yaml": "c"})
	s.reconcile()
	if all := told(); !slices.Equal(all, []string{"Normal Progressing"}) {
		t.Errorf("told is %q", all)
	}
	s.commit(map[string]string{"apps/0/a.yaml": "a", "apps/1/a.yaml": "d"})
	s.reconcile()
	if all := told(); len(all) == 0 || all[len(all)-1] != "Normal Succeeded" {
		t.Errorf("told is %q", all)
	}
}

// TestEveryFieldIsFollowed: a field that came with a new version of Flux and that nobody reads
// would be ignored.
func TestEveryFieldIsFollowed(t *testing.T) {
	followed := map[string][]string{
		"ArtifactGeneratorSpec":   {"CommonMetadata", "Sources", "PathPattern", "OutputArtifacts"},
		"SourceReference":         {"Alias", "Name", "Namespace", "Kind"},
		"OutputArtifact":          {"Name", "Revision", "OriginRevision", "Copy"},
		"CopyOperation":           {"From", "To", "Exclude", "Strategy"},
		"CommonMetadata":          {"Annotations", "Labels"},
		"ArtifactGeneratorStatus": {"ReconcileRequestStatus", "Conditions", "Inventory", "ObservedSourcesDigest"},
	}
	for _, kind := range []reflect.Type{
		reflect.TypeFor[generatorv1.ArtifactGeneratorSpec](), reflect.TypeFor[generatorv1.SourceReference](), reflect.TypeFor[generatorv1.OutputArtifact](),
		reflect.TypeFor[generatorv1.CopyOperation](), reflect.TypeFor[generatorv1.CommonMetadata](), reflect.TypeFor[generatorv1.ArtifactGeneratorStatus](),
	} {
		for n := range kind.NumField() {
			if name := kind.Field(n).Name; !slices.Contains(followed[kind.Name()], name) {
				t.Errorf("%s.%s of Flux's ArtifactGenerator is not followed", kind.Name(), name)
			}
		}
	}
}

// TestKeptOfBefore: a volume may have what was made before under the revision that is on record, as that is of a source.
func TestKeptOfBefore(t *testing.T) {
	g := generator("@a/app/** @artifact/")
	g.Spec.Sources = g.Spec.Sources[:1]
	g.Spec.OutputArtifacts[0].Revision = "@a"
	s := newStand(t, g)
	kept := source.NewKept(t.TempDir(), 64<<20)
	s.Kept = kept
	s.commit(map[string]string{"app/a.yaml": "a", "app/b.yaml": "b"})
	s.reconcile()
	s.Kept = nil // the volume is full, or another replica made it
	s.edit(func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].Exclude = []string{"b.yaml"} })
	s.reconcile()
	s.edit(func(g *generatorv1.ArtifactGenerator) {
		g.Annotations = map[string]string{generatorv1.ReconcileAnnotation: generatorv1.DisabledValue}
	})
	s.restart()
	s.Kept = kept
	if s.reconcile(); len(s.told) != 0 {
		t.Errorf("told of %v: it is what was made before", s.told)
	}
	s.fetch()
	if s.reconcile(); !slices.Equal(s.told, []string{"out"}) {
		t.Errorf("told of %v: its sources have what it made", s.told)
	}
}
