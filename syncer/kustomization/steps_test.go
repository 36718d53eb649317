package kustomization

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/cli-utils/pkg/object"
	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/observed"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// noon is when the steps are taken.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const revision = "main@sha1:2"

// fakeApplier answers for a cluster.
type fakeApplier struct {
	sync   func(context.Context, apply.Options) (apply.Result, error)
	remove func(apply.Options) (apply.Result, error)
	health func([]inventory.Entry) (apply.Health, error)
	// owned is what Remove was last called for.
	owned []inventory.Entry
	// look is how long the last look at the health may take.
	look time.Duration
}

func (f *fakeApplier) Sync(ctx context.Context, _ []apply.Phase, o apply.Options) (apply.Result, error) {
	return f.sync(ctx, o)
}

func (f *fakeApplier) Remove(_ context.Context, owned []inventory.Entry, o apply.Options) (apply.Result, error) {
	f.owned = owned
	return f.remove(o)
}

func (f *fakeApplier) Health(ctx context.Context, entries []inventory.Entry, _ *health.Checker) (apply.Health, error) {
	if deadline, ok := ctx.Deadline(); ok {
		f.look = time.Until(deadline).Round(time.Second)
	}
	return f.health(entries)
}

// steps has a reconciler without a control plane, and one Kustomization in it.
type steps struct {
	*Reconciler
	*run
	client client.Client
	events *record.FakeRecorder
	// cluster answers for every cluster that is applied to.
	cluster *fakeApplier
	now     time.Time
}

// take reads what the test declares into a run, as Reconcile does.
func take(t *testing.T, obj *kustomizev1.Kustomization, objects ...client.Object) *steps {
	t.Helper()
	return takeWith(t, nil, obj, objects...)
}

// takeWith is take in a cluster that has more kinds.
func takeWith(t *testing.T, kinds []func(*runtime.Scheme) error, obj *kustomizev1.Kustomization, objects ...client.Object) *steps {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range append([]func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, sourcev1.AddToScheme, apiextensionsv1.AddToScheme,
	}, kinds...) {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "here"}}
	kind := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "kustomizations.kustomize.toolkit.fluxcd.io"}}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, obj, system, kind)...).WithStatusSubresource(&kustomizev1.Kustomization{})
	if kinds != nil {
		mapper := apimeta.MultiRESTMapper{testrestmapper.TestOnlyStaticRESTMapper(scheme)}
		own := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta1"}})
		own.Add(schema.GroupVersionKind{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta1", Kind: "LocalControlPlane"}, apimeta.RESTScopeNamespace)
		builder = builder.WithRESTMapper(append(mapper, own))
	}
	c := builder.Build()
	s := &steps{client: c, events: record.NewFakeRecorder(100), cluster: &fakeApplier{}, now: noon}
	local := &apply.Cluster{Client: c}
	s.Reconciler = &Reconciler{
		Client: c, Memo: memo.New(nil, kustomizev1.GroupVersion.Group, time.Now), Events: s.events, Metrics: metrics.New(prometheus.NewRegistry()),
		Targets: &target.Targets{Local: local, Now: func() time.Time { return s.now }},
		Sources: &find.Finder{
			Client: c, Reader: c, Snapshots: source.NewSnapshots(), Fetched: map[string]bool{sourcev1.GitRepositoryKind: true},
			Artifacts: source.NewArtifacts(t.TempDir(), 1<<20),
		},
		Now: func() time.Time { return s.now }, Jitter: wake.NewJitter(func() float64 { return 0.5 }), Random: func() float64 { return 0 },
		Claims: &claim.Claims{Client: c}, Rules: Rules{Drift: DriftCorrect, Sweep: time.Hour, RequeueDependency: 30 * time.Second},
	}
	s.open()
	s.applier = func(*apply.Cluster, apply.Owner, *memo.Memo) applier { return s.cluster }
	read, err := s.store.Read(t.Context(), client.ObjectKeyFromObject(obj))
	if err != nil {
		t.Fatal(err)
	}
	s.run = newRun(s.store.Record(read), s.Reconciler.known.of(client.ObjectKeyFromObject(obj)), s.now)
	s.snapshot = &source.Snapshot{Revision: revision}
	return s
}

// shop is a Kustomization of namespace apps.
func shop(change func(*kustomizev1.Kustomization)) *kustomizev1.Kustomization {
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{
		Namespace: "apps", Name: "shop", Generation: 1, Finalizers: []string{kustomizev1.KustomizationFinalizer},
	}}
	k.Spec.Interval, k.Spec.RetryInterval = metav1.Duration{Duration: time.Hour}, &metav1.Duration{Duration: time.Minute}
	k.Spec.Timeout, k.Spec.Prune = &metav1.Duration{Duration: 5 * time.Minute}, true
	k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.GitRepositoryKind, Name: "fleet"}
	if change != nil {
		change(k)
	}
	return k
}

func git(artifact bool) *sourcev1.GitRepository {
	o := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "fleet"}}
	if artifact {
		o.Status.Artifact = &meta.Artifact{Revision: revision}
	}
	return o
}

// says is what the Ready condition says, as status/reason.
func (s *steps) says() string {
	c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, meta.ReadyCondition)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason
}

// want is how a step ends.
type want struct {
	// goes: the next step follows.
	goes bool
	says string
	// after is when the object is looked at again.
	after  time.Duration
	events int
}

// expect compares how a step ended.
func (s *steps) expect(t *testing.T, reason string, end *end, w want) {
	t.Helper()
	if (end == nil) != w.goes {
		t.Fatalf("%s: the step ended as %+v, want it to go on: %t", reason, end, w.goes)
	}
	if s.says() != w.says {
		t.Errorf("%s: it says %q, want %q", reason, s.says(), w.says)
	}
	if end != nil && end.result.RequeueAfter != w.after {
		t.Errorf("%s: looked at again after %s, want %s", reason, end.result.RequeueAfter, w.after)
	}
	if len(s.events.Events) != w.events {
		t.Errorf("%s: %d events, want %d", reason, len(s.events.Events), w.events)
	}
}

func TestFindStep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		obj      func(*kustomizev1.Kustomization)
		source   client.Object
		snapshot bool
		rules    func(*Rules)
		want     want
	}{
		"Found":   {"the snapshot that this process fetched", nil, git(true), true, nil, want{goes: true}},
		"Missing": {"no such source: tried again, the user is told", nil, nil, false, nil, want{says: "False/ArtifactFailed", after: time.Minute, events: 1}},
		"NotYet":  {"the source will be fetched and wakes us", nil, git(false), false, nil, want{says: "False/ArtifactFailed", after: 30 * time.Second}},
		"Restart": {"an earlier process fetched it: what was ready stays ready", nil, git(true), false, nil, want{after: 30 * time.Second}},
		"Lockdown": {"a source of another namespace is refused", func(k *kustomizev1.Kustomization) { k.Spec.SourceRef.Namespace = "other" }, nil, false,
			func(r *Rules) { r.NoCrossNamespaceRefs = true }, want{says: "False/AccessDenied", events: 1}},
		"Gate": {"a kind that a gate has to allow", func(k *kustomizev1.Kustomization) { k.Spec.SourceRef.Kind = sourcev1.ExternalArtifactKind }, nil, false,
			nil, want{says: "False/FeatureGateDisabled", events: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if tc.source != nil {
				objects = append(objects, tc.source)
			}
			s := take(t, shop(tc.obj), objects...)
			s.snapshot, s.Obj.Status.LastAttemptedRevision = nil, revision
			if tc.rules != nil {
				tc.rules(&s.Rules)
			}
			if tc.snapshot {
				s.Sources.Snapshots.Put(sourceKey(s.Obj), &source.Snapshot{Revision: revision})
			}
			end := s.Reconciler.find(t.Context(), s.run)
			s.expect(t, tc.reason, end, tc.want)
			if (s.snapshot != nil) != tc.want.goes {
				t.Errorf("%s: the snapshot is %v", tc.reason, s.snapshot)
			}
			for range len(s.events.Events) {
				if e := <-s.events.Events; strings.Contains(e, revision) {
					t.Errorf("%s: event %q is about the revision that was tried before", tc.reason, e)
				}
			}
		})
	}
}

// TestRequestWaits: who asks while a new process has the source fetched again is answered when
// something was looked at.
func TestRequestWaits(t *testing.T) {
	s := take(t, shop(func(k *kustomizev1.Kustomization) {
		k.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
		k.Status.LastHandledReconcileAt = "before"
	}), git(true))
	for _, tc := range []struct {
		reason   string
		snapshot *source.Snapshot
		want     string
	}{
		{"nothing was fetched", nil, "before"},
		{"something was, and cannot be built", &source.Snapshot{Revision: revision}, "now"},
	} {
		if tc.snapshot != nil {
			s.Sources.Snapshots.Put(sourceKey(s.Obj), tc.snapshot)
		}
		if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.Obj)}); err != nil {
			t.Fatal(err)
		}
		obj := &kustomizev1.Kustomization{}
		if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(s.Obj), obj); err != nil {
			t.Fatal(err)
		}
		if got := obj.Status.LastHandledReconcileAt; got != tc.want {
			t.Errorf("%s: handled is %q, want %q", tc.reason, got, tc.want)
		}
	}
}

// TestWaitsForWorker: who waits for a worker says so, unless the status tells of what is to be
// built that it is in place.
func TestWaitsForWorker(t *testing.T) {
	const before, waits = "True/Succeeded", "Unknown/Progressing"
	for name, tc := range map[string]struct {
		reason string
		change func(*kustomizev1.Kustomization)
		// rendered is the key of the last rendering by this process, if there was one.
		rendered string
		want     string
	}{
		"Restart":  {"it was applied by the process before: that it is ready stands", nil, "", before},
		"Sweep":    {"it is verified again", nil, "inputs", before},
		"Inputs":   {"a variable has another value", nil, "others", waits},
		"Revision": {"there is a commit", func(k *kustomizev1.Kustomization) { k.Status.LastAppliedRevision = "main@sha1:1" }, "", waits},
		"Spec":     {"the spec was changed", func(k *kustomizev1.Kustomization) { k.Generation = 2 }, "", waits},
		"Asked": {"a person waits for it", func(k *kustomizev1.Kustomization) {
			k.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
		}, "", waits},
		"NotReady": {"it failed before", func(k *kustomizev1.Kustomization) { k.Status.Conditions[0].Status = metav1.ConditionFalse }, "", waits},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Status.LastAppliedRevision, k.Status.ObservedGeneration = revision, 1
				k.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Succeeded", LastTransitionTime: metav1.Time{Time: noon}}}
				if tc.change != nil {
					tc.change(k)
				}
			}))
			s.key = "inputs"
			if tc.rendered != "" {
				s.run.known.rendered = &rendered{key: tc.rendered}
			}
			s.waitsForWorker(t.Context(), s.run)
			if err := s.client.Get(t.Context(), s.name(), s.Obj); err != nil {
				t.Fatal(err)
			}
			if s.says() != tc.want {
				t.Errorf("%s: it says %q, want %q", tc.reason, s.says(), tc.want)
			}
		})
	}
}

// TestSourceFailingStep: a source that cannot be fetched is told of, and what it had
// before is applied.
func TestSourceFailingStep(t *testing.T) {
	failing := func(o *sourcev1.GitRepository) *sourcev1.GitRepository {
		o.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: sourcev1.GitOperationFailedReason, LastTransitionTime: metav1.NewTime(noon)}}
		return o
	}
	gone := git(true)
	gone.Spec.Suspend = true
	gone.Status.Conditions = []metav1.Condition{
		{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason, LastTransitionTime: metav1.NewTime(noon)},
		{Type: sourcev1.FetchFailedCondition, Status: metav1.ConditionTrue, Reason: "RevisionNotFetched", LastTransitionTime: metav1.NewTime(noon)},
	}
	made := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "fleet"}}
	made.Spec.SourceRef = &meta.NamespacedObjectKindReference{APIVersion: generatorv1.GroupVersion.String(), Kind: generatorv1.ArtifactGeneratorKind, Name: "parts"}
	made.Status.Artifact = &meta.Artifact{Revision: revision}
	made.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason, LastTransitionTime: metav1.NewTime(noon)}}
	generator := &generatorv1.ArtifactGenerator{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "parts"}}
	generator.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: meta.BuildFailedReason, LastTransitionTime: metav1.NewTime(noon)}}
	disabled := generator.DeepCopy()
	disabled.Status.Conditions = gone.Status.Conditions
	for name, tc := range map[string]struct {
		reason   string
		source   client.Object
		by       client.Object
		snapshot bool
		told     bool
		part     string
	}{
		"Good":      {"there is nothing to tell, any more", git(true), nil, true, false, ""},
		"Failing":   {"its last revision stays", failing(git(true)), nil, true, true, "new revisions do not arrive"},
		"Restart":   {"nothing is there since the restart", failing(git(true)), nil, false, true, "has not fetched it yet"},
		"Suspended": {"it is ready, and what it had is gone since the restart", gone, nil, false, true, "is suspended, and cannot be fetched again since 20"},
		"Generator": {"what is made of others stays ready when that fails", made, generator, true, true, "ArtifactGenerator/apps/parts is not ready"},
		"Disabled":  {"what made it is ready, and cannot make it again since the restart", made, disabled, false, true, "ArtifactGenerator/apps/parts is disabled, and cannot make again what it made since 20"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{tc.source}
			if tc.by != nil {
				objects = append(objects, tc.by)
			}
			s := takeWith(t, []func(*runtime.Scheme) error{generatorv1.AddToScheme}, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.SourceRef.Kind = find.KindOf(tc.source)
				k.Status.Conditions = []metav1.Condition{
					{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.ReconciliationSucceededReason},
					{Type: v1alpha1.SourceFailingCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSourceFailing, Message: "before"},
				}
			}), objects...)
			s.snapshot, s.Rules.ExternalArtifact = nil, true
			s.Sources.Fetched[sourcev1.ExternalArtifactKind], s.Sources.Fetched[generatorv1.ArtifactGeneratorKind] = true, true
			if tc.snapshot {
				s.Sources.Snapshots.Put(sourceKey(s.Obj), &source.Snapshot{Revision: revision})
			}
			s.Reconciler.find(t.Context(), s.run)
			c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, v1alpha1.SourceFailingCondition)
			if (c != nil) != tc.told || c != nil && (!strings.Contains(c.Message, tc.part) || c.Reason != v1alpha1.ReasonSourceFailing) {
				t.Errorf("%s: it tells %+v", tc.reason, c)
			}
			if s.says() != "True/"+meta.ReconciliationSucceededReason {
				t.Errorf("%s: what was applied is %s", tc.reason, s.says())
			}
		})
	}
}

// TestReadyExprAcrossNamespaces: with --no-cross-namespace-refs no expression reads what
// other namespaces have.
func TestReadyExprAcrossNamespaces(t *testing.T) {
	for name, tc := range map[string]struct {
		reason          string
		lockdown        bool
		namespace, expr string
		says            string
	}{
		"Allowed":  {"nothing is locked down", false, "others", "dep.status.x == 1", ""},
		"Refused":  {"an expression can tell all that it reads", true, "others", "dep.status.x == 1", "False/AccessDenied"},
		"Own":      {"its own namespace is its own", true, "apps", "dep.status.x == 1", ""},
		"Built-in": {"only whether it is ready is told", true, "others", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.DependsOn = []kustomizev1.DependencyReference{{Namespace: tc.namespace, Name: "base", ReadyExpr: tc.expr}}
			}))
			s.Rules.NoCrossNamespaceRefs = tc.lockdown
			end := s.check(t.Context(), s.run)
			if s.says() != tc.says || (end != nil) != (tc.says != "") {
				t.Errorf("%s: it says %q and ends as %+v, want %q", tc.reason, s.says(), end, tc.says)
			}
		})
	}
}

func TestDependStep(t *testing.T) {
	base := func(ready bool, applied string) *kustomizev1.Kustomization {
		k := shop(func(k *kustomizev1.Kustomization) { k.Name = "base" })
		k.Status.ObservedGeneration, k.Status.LastAppliedRevision = 1, applied
		truth := metav1.ConditionFalse
		if ready {
			truth = metav1.ConditionTrue
		}
		k.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: truth, Reason: "x"}}
		return k
	}
	on := func(k *kustomizev1.Kustomization) {
		k.Spec.DependsOn = []kustomizev1.DependencyReference{{Name: "base"}}
	}
	waiting := want{says: "False/DependencyNotReady", after: 30 * time.Second, events: 1}
	for name, tc := range map[string]struct {
		reason string
		obj    func(*kustomizev1.Kustomization)
		base   client.Object
		want   want
	}{
		"None":     {"it depends on nothing", nil, nil, want{goes: true}},
		"Ready":    {"at the same revision", on, base(true, revision), want{goes: true}},
		"Missing":  {"it may come with the next commit", on, nil, waiting},
		"NotReady": {"it is waited for", on, base(false, revision), waiting},
		"Behind":   {"it is ready for the commit before", on, base(true, "main@sha1:1"), waiting},
		"Still": {"who waits already says so once", func(k *kustomizev1.Kustomization) {
			on(k)
			k.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: meta.DependencyNotReadyReason}}
		}, base(false, revision), want{says: "False/DependencyNotReady", after: 30 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if tc.base != nil {
				objects = append(objects, tc.base)
			}
			s := take(t, shop(tc.obj), objects...)
			s.Obj.Status.LastAttemptedRevision = "main@sha1:failed"
			s.expect(t, tc.reason, s.Reconciler.depend(t.Context(), s.run), tc.want)
			if tc.want.events > 0 {
				if told := <-s.events.Events; !strings.Contains(told, "/revision:"+revision) {
					t.Errorf("%s: %q names another revision than the one that waits", tc.reason, told)
				}
			}
		})
	}
}

func TestBuildStep(t *testing.T) {
	from := func(kind, name string, optional bool) func(*kustomizev1.Kustomization) {
		return func(k *kustomizev1.Kustomization) {
			k.Spec.PostBuild = &kustomizev1.PostBuild{
				Substitute:     map[string]string{"region": "own"},
				SubstituteFrom: []kustomizev1.SubstituteReference{{Kind: kind, Name: name, Optional: optional}},
			}
		}
	}
	vars := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "vars"}, Data: map[string]string{"region": "shared", "size": "3"}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "keys"}, Data: map[string][]byte{"password": []byte("hunter2")}}
	failed := want{says: "False/BuildFailed", after: time.Minute, events: 1}
	for name, tc := range map[string]struct {
		reason    string
		obj       func(*kustomizev1.Kustomization)
		want      want
		variables map[string]string
		sensitive bool
	}{
		"Plain":     {"nothing but the files", nil, want{goes: true}, nil, false},
		"Variables": {"the spec's own win", from("ConfigMap", "vars", false), want{goes: true}, map[string]string{"region": "own", "size": "3"}, false},
		"Secret":    {"its values must not be told", from("Secret", "keys", false), want{goes: true}, map[string]string{"region": "own", "password": "hunter2"}, true},
		"Missing":   {"a variable that is declared must be there", from("ConfigMap", "gone", false), failed, nil, false},
		"Optional":  {"unless it may be missing", from("ConfigMap", "gone", true), want{goes: true}, map[string]string{"region": "own"}, false},
		"Patch":     {"a document that would end the process", func(k *kustomizev1.Kustomization) { k.Spec.Patches = []kustomize.Patch{{Patch: "a: &a [*a]"}} }, failed, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj), vars, secret)
			end := s.Reconciler.build(t.Context(), s.run)
			s.expect(t, tc.reason, end, tc.want)
			if len(s.run.inputs.Variables) != len(tc.variables) {
				t.Errorf("%s: variables are %v", tc.reason, s.run.inputs.Variables)
			}
			for key, value := range tc.variables {
				if s.run.inputs.Variables[key] != value {
					t.Errorf("%s: variables are %v", tc.reason, s.run.inputs.Variables)
				}
			}
			if (len(s.run.inputs.Sensitive) > 0) != tc.sensitive {
				t.Errorf("%s: sensitive are %d values", tc.reason, len(s.run.inputs.Sensitive))
			}
		})
	}
}

func TestAimStep(t *testing.T) {
	elsewhere := target.Ref{Kind: "Secret", Name: "gone", Cluster: "there"}
	recorded := func(k *kustomizev1.Kustomization) {
		k.Annotations = map[string]string{target.Annotation: elsewhere.Encode()}
		k.Status.Inventory = refs([]inventory.Entry{entry("a")})
	}
	for name, tc := range map[string]struct {
		reason string
		obj    func(*kustomizev1.Kustomization)
		// late is how long the object has tried already.
		late  time.Duration
		want  want
		check func(*steps) string
	}{
		"Here": {"the cluster that we run in", nil, 0, want{goes: true}, nil},
		"NoKubeconfig": {"the way to another cluster is missing", func(k *kustomizev1.Kustomization) {
			k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "gone"}}
		}, 0, want{says: "False/ReconciliationFailed", after: time.Minute, events: 1}, nil},
		"Forged": {"an annotation must not lend the rights of another account", func(k *kustomizev1.Kustomization) {
			k.Annotations = map[string]string{target.Annotation: target.Ref{User: "system:serviceaccount:kube-system:admin"}.Encode()}
		}, 0, want{says: "False/ReconciliationFailed", after: time.Minute, events: 1}, nil},
		"AccountAdded": {"it is applied as a service account from now on, to the same cluster", accountAdded, 0, want{goes: true},
			func(s *steps) string {
				want := target.Ref{Kind: "Secret", Name: "way", User: target.User("apps", "ops"), Cluster: "there"}
				if s.Obj.Status.Inventory == nil || s.Obj.Annotations[target.Annotation] != want.Encode() {
					return "on record is " + s.Obj.Annotations[target.Annotation]
				}
				return ""
			}},
		"Leaving": {"what was applied to another cluster goes first", recorded, 0, want{says: "False/PruneFailed", after: 10 * time.Second},
			func(s *steps) string {
				if s.Obj.Status.Inventory == nil || s.Obj.Annotations[target.Annotation] == "" {
					return "what is left there is forgotten"
				}
				return ""
			}},
		"Left": {"after its time-out it is left there, and the user is told", recorded, 6 * time.Minute, want{goes: true, events: 1},
			func(s *steps) string {
				if s.Obj.Status.Inventory != nil || s.Obj.Annotations[target.Annotation] != "" {
					return "the other cluster is still on record"
				}
				return ""
			}},
		"NothingLeft": {"an empty inventory has nothing to prune", func(k *kustomizev1.Kustomization) {
			recorded(k)
			k.Status.Inventory = nil
		}, 0, want{goes: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj), clusterServer(t, "there"))
			s.dials()
			s.run.rendering, s.run.target = &render.Rendering{}, target.Of(s.Obj, "")
			if tc.late > 0 {
				s.run.known.leaving(s.now, s.now.Add(tc.late))
				s.now = s.now.Add(tc.late)
				s.run.start = s.now
			}
			end := s.Reconciler.aim(t.Context(), s.run)
			s.expect(t, tc.reason, end, tc.want)
			if tc.check != nil {
				if problem := tc.check(s); problem != "" {
					t.Errorf("%s: %s", tc.reason, problem)
				}
			}
		})
	}
}

// clusterServer is another way to a cluster: it tells whose it is, unless uid is empty, and has service account ops and
// Cluster lives of namespace apps, and on record that a pivot took Cluster away from there.
func clusterServer(t *testing.T, uid string) *corev1.Secret {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		switch r.URL.Path {
		case "/readyz":
			answer = "ok"
		case "/api":
			answer = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
		case "/apis":
			answer = metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
				Groups: []metav1.APIGroup{{Name: clusterapi.Group, Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: clusterapi.Group + "/v1beta2", Version: "v1beta2"}}}}}
		case "/apis/" + clusterapi.Group + "/v1beta2":
			answer = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: clusterapi.Group + "/v1beta2",
				APIResources: []metav1.APIResource{{Name: "clusters", Kind: clusterapi.Cluster, Namespaced: true}}}
		case "/apis/" + clusterapi.Group + "/v1beta2/namespaces/apps/clusters/lives":
			answer = metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "lives", Labels: labels()}}
		case "/apis/" + clusterapi.Group + "/v1beta2/namespaces/apps/clusters/prod", "/apis/" + clusterapi.Group + "/v1beta2/namespaces/apps/clusters/away":
			w.WriteHeader(http.StatusNotFound)
			answer = apierrors.NewNotFound(schema.GroupResource{Group: clusterapi.Group, Resource: "clusters"}, path.Base(r.URL.Path)).Status()
		case "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps/" + v1alpha1.FirstSyncConfigMap:
			record := firstsync.SettledRecord(v1alpha1.AgentNamespace, "", noon)
			firstsync.ManageElsewhere(record, "p1", types.NamespacedName{Namespace: "apps", Name: "away"})
			record.APIVersion, record.Kind = "v1", "ConfigMap"
			answer = record
		case "/api/v1/configmaps":
			w.WriteHeader(http.StatusForbidden)
			answer = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", nil).Status()
		case "/api/v1":
			answer = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
				APIResources: []metav1.APIResource{{Name: "namespaces", Kind: "Namespace"}, {Name: "serviceaccounts", Kind: "ServiceAccount", Namespaced: true}, {Name: "configmaps", Kind: "ConfigMap", Namespaced: true}}}
		case "/api/v1/namespaces/apps/serviceaccounts/ops":
			answer = corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{Kind: "ServiceAccount", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "ops", Labels: labels()}}
		case "/api/v1/namespaces/apps/serviceaccounts/missing":
			w.WriteHeader(http.StatusNotFound)
			answer = apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, "missing").Status()
		default:
			answer = metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
				ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: types.UID(uid)}}
			if uid == "" {
				w.WriteHeader(http.StatusForbidden)
				answer = apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, metav1.NamespaceSystem, nil).Status()
			}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "way"}, Data: map[string][]byte{"value": []byte(s.URL)}}
}

// dials has the ways that clusterServer makes lead there.
func (s *steps) dials() {
	s.Targets.Local.Config, s.Targets.Scheme = &rest.Config{}, s.client.Scheme()
	s.Targets.Kubeconfig = func(url []byte) (*rest.Config, error) {
		return &rest.Config{Host: string(url), TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil
	}
}

// accountAdded is a Kustomization that was applied to another cluster without a service
// account, and has one now.
func accountAdded(k *kustomizev1.Kustomization) {
	k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
	k.Spec.ServiceAccountName = "ops"
	k.Annotations = map[string]string{target.Annotation: target.Ref{Kind: "Secret", Name: "way", Cluster: "there"}.Encode()}
	k.Status.Inventory = refs([]inventory.Entry{entry("a")})
}

// appliedAs is accountAdded of a Kustomization that was applied with the rights of an account.
func appliedAs(k *kustomizev1.Kustomization, account string) {
	accountAdded(k)
	k.Annotations[target.Annotation] = target.Ref{Kind: "Secret", Name: "way", User: target.User("apps", account), Cluster: "there"}.Encode()
}

// appliedTo is accountAdded of a Kustomization that was applied to a cluster.
func appliedTo(uid string) func(*kustomizev1.Kustomization) {
	return func(k *kustomizev1.Kustomization) {
		accountAdded(k)
		k.Annotations[target.Annotation] = target.Ref{Kind: "Secret", Name: "way", User: target.User("apps", "ops"), Cluster: uid}.Encode()
	}
}

// staysWithCluster: all that is left is a part of a Cluster of another owner.
func staysWithCluster(t *testing.T, s *steps, aim func() *end, res apply.Result) {
	cluster := inventory.Entry{Namespace: "fleet", Name: "c1", Group: clusterapi.Group, Kind: clusterapi.Cluster, Version: "v1beta2"}
	res.Changes, res.Inventory = ssa.NewChangeSet(), []inventory.Entry{entry("a"), cluster}
	res.Plan.OfCluster, res.Plan.Claimed = []inventory.Entry{entry("a")}, []inventory.Entry{cluster}
	s.cluster.remove = func(apply.Options) (apply.Result, error) { return res, nil }
	for range 60 {
		s.now = s.now.Add(leavePoll)
		end := aim()
		if end == nil || end.result.RequeueAfter > blockedPoll || s.says() != "False/PruneBlocked" || len(s.events.Events) != 1 {
			t.Fatalf("it is not told once: %+v, %s, %d events", end, s.says(), len(s.events.Events))
		}
		if inventory.Undecided(true, s.run.held.Prune) {
			t.Fatal("nothing is to be approved, and it counts as a plan that is")
		}
		if err := s.WriteHeld(t.Context(), s.run.held); err != nil {
			t.Fatal(err)
		}
		if held, _ := v1alpha1.HeldOf(s.Obj); (held.HandOver != nil) != (res.HandOver != nil) {
			t.Fatalf("the time that others had is on record as %v", held.HandOver)
		}
	}
	if e := <-s.events.Events; !strings.HasPrefix(e, corev1.EventTypeWarning) || !strings.Contains(e, "spec.prune: false") {
		t.Errorf("the event is %q", e)
	}
}

// TestLeavingSince: the time-out for leaving another cluster is for attempts that fail one after
// the other, and for nothing that has to be waited for.
func TestLeavingSince(t *testing.T) {
	cluster := inventory.Entry{Namespace: "fleet", Name: "c1", Group: clusterapi.Group, Kind: clusterapi.Cluster, Version: "v1beta2"}
	fails := func(apply.Options) (apply.Result, error) { return apply.Result{}, errors.New("denied") }
	waits := func(t *testing.T, s *steps, aim func() *end, res apply.Result) {
		res.Changes, res.Inventory = ssa.NewChangeSet(), append([]inventory.Entry{entry("a")}, res.Plan.Waiting...)
		for i := range 60 {
			s.cluster.remove = func(o apply.Options) (apply.Result, error) {
				if i > 0 && res.HandOver != nil && (o.HandOver == nil || o.HandOver.Hash != res.HandOver.Hash) {
					t.Errorf("the record of the hand-over is %v", o.HandOver)
				}
				return res, nil
			}
			s.now = s.now.Add(leavePoll)
			if end := aim(); end == nil || s.says() != "Unknown/Progressing" || len(s.events.Events) > 1 {
				t.Fatalf("it is not waited for: %+v, %s, %d events", end, s.says(), len(s.events.Events))
			}
		}
	}
	there := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
	for name, tc := range map[string]struct {
		reason string
		// meanwhile is what comes between two attempts that fail.
		meanwhile func(t *testing.T, s *steps, aim func() *end)
		goes      bool
	}{
		"Failing": {"it is tried in vain all the time", func(t *testing.T, s *steps, aim func() *end) {
			for range 30 {
				if s.now = s.now.Add(leavePoll); aim() == nil {
					t.Fatal("it is left before its time-out")
				}
			}
		}, true},
		"Untried": {"it was suspended, or its build failed", func(*testing.T, *steps, func() *end) {}, false},
		"Queued": {"one Cluster goes after the other", func(t *testing.T, s *steps, aim func() *end) {
			waits(t, s, aim, apply.Result{Plan: inventory.Plan{Queued: []inventory.Entry{entry("a")}}})
		}, false},
		"Superseded": {"Git has taken the move back, and its parent has not applied that", func(t *testing.T, s *steps, aim func() *end) {
			waits(t, s, aim, apply.Result{Plan: inventory.Plan{Superseded: true}})
		}, false},
		"OfCluster": {"what belongs to a Cluster goes after it", func(t *testing.T, s *steps, aim func() *end) {
			waits(t, s, aim, apply.Result{Plan: inventory.Plan{OfCluster: []inventory.Entry{entry("a")}, Waiting: []inventory.Entry{cluster}}})
		}, false},
		"OfClusterThatStays": {"another owner has the Cluster: a person decides, and is told how", func(t *testing.T, s *steps, aim func() *end) {
			staysWithCluster(t, s, aim, apply.Result{})
		}, false},
		"OfClusterOverdue": {"the same, after nobody took it over in time", func(t *testing.T, s *steps, aim func() *end) {
			staysWithCluster(t, s, aim, apply.Result{
				Plan:     inventory.Plan{Late: []inventory.Entry{entry("a")}},
				HandOver: &v1alpha1.HandOver{Hash: "0123456789abcdef", Since: metav1.NewTime(noon.Add(-inventory.HandOverBound))},
			})
		}, false},
		"HandOver": {"another owner is to take it over", func(t *testing.T, s *steps, aim func() *end) {
			waits(t, s, aim, apply.Result{
				Plan:     inventory.Plan{HandOver: []inventory.Entry{entry("a")}, NewOwner: "Kustomization/x/y"},
				HandOver: &v1alpha1.HandOver{Hash: "0123456789abcdef", Since: metav1.NewTime(noon)},
			})
		}, false},
		"Reverted": {"it was the other cluster's again for a while", func(t *testing.T, s *steps, aim func() *end) {
			s.Obj.Spec.KubeConfig = there
			if end := aim(); end != nil {
				t.Fatalf("it is not applied to the cluster that was applied to: %+v", end)
			}
			s.Obj.Spec.KubeConfig = nil
		}, false},
		"Here": {"nothing was left for a while", func(t *testing.T, s *steps, aim func() *end) {
			before := s.Obj.Annotations
			s.Obj.Annotations = nil
			if end := aim(); end != nil {
				t.Fatalf("it is not applied to the cluster that we run in: %+v", end)
			}
			s.Obj.Annotations = before
		}, false},
		"HeldMeanwhile": {"the cluster answered, and a person had to decide", func(t *testing.T, s *steps, aim func() *end) {
			s.cluster.remove = func(apply.Options) (apply.Result, error) {
				a := []inventory.Entry{entry("a")}
				return apply.Result{Changes: ssa.NewChangeSet(), Inventory: a, Plan: inventory.Plan{Protected: a}}, nil
			}
			if end := aim(); end == nil || s.says() != "False/PruneBlocked" {
				t.Fatalf("nothing is held: %+v, %s", end, s.says())
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				accountAdded(k)
				k.Spec.KubeConfig = nil
			}), clusterServer(t, "there"))
			s.dials()
			s.run.rendering = &render.Rendering{}
			aim := func() *end {
				s.run.start, s.run.target = s.now, target.Of(s.Obj, "")
				return s.Reconciler.aim(t.Context(), s.run)
			}
			s.cluster.remove = fails
			if end := aim(); end == nil {
				t.Fatalf("%s: it is left at the first attempt", tc.reason)
			}
			tc.meanwhile(t, s, aim)
			s.cluster.remove, s.now = fails, s.now.Add(6*time.Minute)
			if end := aim(); (end == nil) != tc.goes || (s.Obj.Status.Inventory == nil) != tc.goes {
				t.Errorf("%s: the step ended as %+v, the inventory is %v, want it to be left: %t", tc.reason, end, s.Obj.Status.Inventory, tc.goes)
			}
		})
	}
}

// TestClustersMoveOnce: Clusters that are declared still are not built a second time in the next cluster, while the one of
// before cannot be asked.
func TestClustersMoveOnce(t *testing.T) {
	a, cluster := entry("a"), inventory.Entry{Namespace: "apps", Name: "prod", Group: clusterapi.Group, Kind: clusterapi.Cluster, Version: "v1beta2"}
	both := []inventory.Entry{a, cluster}
	way := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
	for name, tc := range map[string]struct {
		reason string
		// from is the Secret that is on record, to where it is to be applied by now.
		from string
		to   *meta.KubeConfigReference
		// late is how long the object has tried to leave the former.
		late            time.Duration
		owned, declared []inventory.Entry
		// there are Clusters of our own cluster.
		there []string
		held  bool
	}{
		"Replaced":            {"the Secret has the kubeconfig of another cluster", "way", way, 0, both, both, nil, true},
		"ReplacedNoCluster":   {"what can be lost is left there", "way", way, 0, []inventory.Entry{a}, both, nil, false},
		"ReplacedNotDeclared": {"the next one gets none", "way", way, 0, both, []inventory.Entry{a}, nil, false},
		"Mute":                {"the former does not answer", "gone", nil, 6 * time.Minute, both, both, nil, true},
		"MuteNoCluster":       {"what can be lost is left there", "gone", nil, 6 * time.Minute, []inventory.Entry{a}, []inventory.Entry{a}, nil, false},
		"MuteMoved":           {"a pivot took the Cluster to the next one", "gone", nil, 6 * time.Minute, both, both, []string{"prod"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			record := target.Ref{Kind: "Secret", Name: tc.from, Cluster: "before"}.Encode()
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.KubeConfig, k.Status.Inventory = tc.to, refs(tc.owned)
				k.Annotations = map[string]string{target.Annotation: record}
			}), clusterServer(t, "there"))
			s.dials()
			s.Targets.Local.Client = withClusters{s.client, tc.there}
			s.run.rendering, s.run.target = &render.Rendering{}, target.Of(s.Obj, "")
			for _, e := range tc.declared {
				s.run.rendering.Objects = append(s.run.rendering.Objects, e.Object())
			}
			if tc.late > 0 {
				s.run.known.leaving(s.now, s.now.Add(tc.late))
				s.now = s.now.Add(tc.late)
				s.run.start = s.now
			}
			w := want{goes: true, events: 1}
			if tc.held {
				w = want{says: "False/PruneBlocked", after: blockedPoll, events: 1}
			}
			s.expect(t, tc.reason, s.Reconciler.aim(t.Context(), s.run), w)
			if kept := s.Obj.Status.Inventory != nil && s.Obj.Annotations[target.Annotation] == record; kept != tc.held {
				t.Errorf("%s: the inventory is %v, and on record is %s", tc.reason, s.Obj.Status.Inventory, s.Obj.Annotations[target.Annotation])
			}
		})
	}
}

// TestClustersMoveUntold: nor are they where the reference is another one, and one of both clusters does not tell which it is.
func TestClustersMoveUntold(t *testing.T) {
	a, cluster := entry("a"), inventory.Entry{Namespace: "apps", Name: "prod", Group: clusterapi.Group, Kind: clusterapi.Cluster, Version: "v1beta2"}
	way, home := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}, target.Ref{Cluster: "here"}
	for name, tc := range map[string]struct {
		reason string
		before target.Ref
		to     *meta.KubeConfigReference
		owned  []inventory.Entry
		// there are Clusters of our own cluster.
		there []string
		held  bool
	}{
		"MuteNext":        {"the next one has an account of one namespace", target.Ref{Kind: "Secret", Name: "gone", Cluster: "before"}, way, []inventory.Entry{a, cluster}, nil, true},
		"MuteNoCluster":   {"what can be lost is left there", target.Ref{Kind: "Secret", Name: "gone", Cluster: "before"}, way, []inventory.Entry{a}, nil, false},
		"MuteBefore":      {"the former was a workspace of kcp", target.Ref{Kind: "Secret", Name: "way"}, nil, []inventory.Entry{a, cluster}, nil, true},
		"MuteBeforeMoved": {"the next one has the Cluster, as it is the same under another name", target.Ref{Kind: "Secret", Name: "way"}, nil, []inventory.Entry{a, cluster}, []string{"prod"}, false},
		"Home":            {"our own cluster has it", home, way, []inventory.Entry{a, cluster}, []string{"prod"}, true},
		"HomeGone":        {"our own cluster does not have it any more", home, way, []inventory.Entry{a, cluster}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			record := tc.before.Encode()
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.KubeConfig, k.Status.Inventory = tc.to, refs(tc.owned)
				k.Annotations = map[string]string{target.Annotation: record}
			}), clusterServer(t, ""))
			s.dials()
			s.Targets.Local.Client = withClusters{s.client, tc.there}
			s.run.rendering, s.run.target = &render.Rendering{Objects: []*unstructured.Unstructured{a.Object(), cluster.Object()}}, target.Of(s.Obj, "")
			w := want{goes: true, events: 1}
			if tc.held {
				w = want{says: "False/PruneBlocked", after: blockedPoll, events: 1}
			}
			s.expect(t, tc.reason, s.Reconciler.aim(t.Context(), s.run), w)
			if kept := s.Obj.Annotations[target.Annotation] == record; kept != tc.held || len(s.Obj.Status.Inventory.Entries) != len(tc.owned) {
				t.Errorf("%s: the inventory is %v, and on record is %s", tc.reason, s.Obj.Status.Inventory, s.Obj.Annotations[target.Annotation])
			}
			// Our own cluster is not gone: its record comes back.
			if e := <-s.events.Events; tc.held && strings.Contains(e, target.Annotation) == tc.before.Local() {
				t.Errorf("%s: the event is %q", tc.reason, e)
			}
			if !tc.held || tc.before.Local() {
				return
			}
			delete(s.Obj.Annotations, target.Annotation)
			if err := s.recordOwn(t.Context(), s.run); err != nil {
				t.Fatal(err)
			}
			s.run.target = target.Of(s.Obj, "")
			if end := s.Reconciler.aim(t.Context(), s.run); end != nil {
				t.Errorf("%s: a person let the cluster of before go, and it ends as %+v", tc.reason, end)
			}
		})
	}
}

// TestClustersMoveMute: nor are they where the same reference leads to a cluster of which nothing tells whether it is the one of before.
func TestClustersMoveMute(t *testing.T) {
	a, cluster := entry("a"), inventory.Entry{Namespace: "apps", Name: "prod", Group: clusterapi.Group, Kind: clusterapi.Cluster, Version: "v1beta2"}
	ops, lives := inventory.Entry{Namespace: "apps", Name: "ops", Kind: "ServiceAccount", Version: "v1"}, cluster
	away := cluster
	lives.Name, away.Name = "lives", "away"
	both := []inventory.Entry{a, cluster}
	for name, tc := range map[string]struct {
		reason string
		// before is the identity on record, now the one of the cluster that the Secret leads to.
		before, now string
		owned       []inventory.Entry
		applied     string
		// known: this process aimed at it.
		known, held bool
		// elsewhere: this process aimed at another API server.
		elsewhere bool
		// attempts and conditions that the status has.
		attempts   meta.History
		conditions []metav1.Condition
		// off: Git has the Cluster switched off.
		off bool
	}{
		"MuteNow":     {"a rotation took the wrong entry, with an account of one namespace", "before", "", both, "1", false, true, false, nil, nil, false},
		"NeverTold":   {"nor did the one of before", "", "", both, "1", false, true, false, nil, nil, false},
		"TellsNow":    {"the one of before did not", "", "there", both, "1", false, true, false, nil, nil, false},
		"Told":        {"both tell, and it lost its objects", "there", "there", both, "1", false, false, false, nil, nil, false},
		"NoCluster":   {"what can be lost is left there", "", "", []inventory.Entry{a}, "1", false, false, false, nil, nil, false},
		"There":       {"it has a Cluster of the inventory, and lost another one", "", "", []inventory.Entry{lives, cluster}, "1", false, false, false, nil, nil, false},
		"Sibling":     {"the cluster of another environment has the same accounts, of a Kustomization of the same name", "", "", []inventory.Entry{ops, cluster}, "1", false, true, false, nil, nil, false},
		"NotApplied":  {"the inventory is written ahead of the first object", "", "", both, "", false, false, false, nil, nil, false},
		"Known":       {"its API server is the one of before, and it lost its objects", "before", "", both, "1", true, false, false, nil, nil, false},
		"OtherServer": {"this process applied to another API server, and no health was seen", "", "", both, "", false, true, true, nil, nil, false},
		"Unhealthy":   {"it was applied, and not healthy in time", "", "", both, "", false, true, false, meta.History{{LastReconciledStatus: meta.HealthCheckFailedReason}}, nil, false},
		"Partly":      {"of what was applied one object was refused", "", "", both, "", false, true, false, meta.History{{LastReconciledStatus: meta.ReconciliationFailedReason}}, nil, false},
		"Checked": {"it was applied, and its health is waited for", "", "", both, "", false, true, false, nil,
			[]metav1.Condition{{Type: meta.HealthyCondition, Status: metav1.ConditionUnknown, Reason: meta.ProgressingReason}}, false},
		"HeldOther": {"another one of its Clusters may not be created", "", "", both, "", false, true, false, nil,
			[]metav1.Condition{{Type: v1alpha1.CreateHeldCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCreateHeld}}, false},
		"PivotedAway":     {"a pivot took it from there, as the record there says", "", "", []inventory.Entry{a, away}, "1", false, false, false, nil, nil, false},
		"PivotedAwayOne":  {"a pivot took another one from there", "", "", []inventory.Entry{cluster, away}, "1", false, true, false, nil, nil, false},
		"SwitchedOff":     {"it is not applied", "", "", both, "1", false, false, false, nil, nil, true},
		"SwitchedOffTold": {"nor is it in one that tells now", "", "there", both, "1", false, false, false, nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			way := clusterServer(t, tc.now)
			way.Name, way.Labels = "edge-kubeconfig", map[string]string{clusterapi.ClusterNameLabel: "edge"}
			record := target.Ref{Kind: "Secret", Name: way.Name, Cluster: tc.before}.Encode()
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: way.Name}}
				k.Status.LastAppliedRevision, k.Status.History, k.Status.Conditions = tc.applied, tc.attempts, tc.conditions
				k.Annotations = map[string]string{target.Annotation: record}
			}), way)
			s.dials()
			s.Targets.Local.Client = withClusters{s.client, nil}
			switched := cluster.Object()
			if tc.off {
				switched.SetAnnotations(map[string]string{directive.Group + "/reconcile": "disabled"})
			}
			s.run.rendering = &render.Rendering{Objects: []*unstructured.Unstructured{a.Object(), switched, away.Object()}}
			aim := func() *end {
				s.run.target, s.run.unproven = target.Of(s.Obj, ""), false
				return s.Reconciler.aim(t.Context(), s.run)
			}
			if tc.known || tc.elsewhere {
				s.expect(t, tc.reason, aim(), want{goes: true})
				record = s.Obj.Annotations[target.Annotation]
			}
			if tc.elsewhere {
				next := &corev1.Secret{}
				if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(way), next); err != nil {
					t.Fatal(err)
				}
				next.Data = clusterServer(t, tc.now).Data
				if err := s.client.Update(t.Context(), next); err != nil {
					t.Fatal(err)
				}
			}
			s.Obj.Status.Inventory = refs(tc.owned)
			w, blocked := want{goes: true}, want{says: "False/PruneBlocked", after: blockedPoll, events: 1}
			if tc.held {
				w = blocked
			}
			s.expect(t, tc.reason, aim(), w)
			if tc.off {
				// It may run in the cluster of before.
				record = s.Obj.Annotations[target.Annotation]
				switched.SetAnnotations(nil)
				s.expect(t, tc.reason+", and is switched on", aim(), blocked)
			}
			if !tc.held && !tc.off {
				return
			}
			if e := <-s.events.Events; s.Obj.Annotations[target.Annotation] != record || !strings.Contains(e, target.Annotation) {
				t.Errorf("%s: on record is %s, the event is %q", tc.reason, s.Obj.Annotations[target.Annotation], e)
			}
			delete(s.Obj.Annotations, target.Annotation)
			if err := errors.Join(s.recordOwn(t.Context(), s.run), s.recordCluster(t.Context(), s.run)); err != nil {
				t.Fatal(err)
			}
			for range 2 { // and the apply fails
				if end := aim(); end != nil {
					t.Errorf("%s: a person let the cluster of before go, and it ends as %+v", tc.reason, end)
				}
			}
		})
	}
}

// TestClustersLeftBehind: nor are they where what is in the cluster of before is left there.
func TestClustersLeftBehind(t *testing.T) {
	a, cluster := entry("a"), inventory.Entry{Namespace: "apps", Name: "prod", Group: clusterapi.Group, Kind: clusterapi.Cluster, Version: "v1beta2"}
	way, home := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}, target.Ref{Cluster: "here"}
	for name, tc := range map[string]struct {
		reason string
		before target.Ref
		to     *meta.KubeConfigReference
		owned  []inventory.Entry
		// there are Clusters of our own cluster.
		there []string
		held  bool
		// prune is spec.prune; exempt: the Clusters ask not to be pruned.
		prune, exempt bool
	}{
		"Home":           {"our own cluster has it", home, way, []inventory.Entry{a, cluster}, []string{"prod"}, true, false, false},
		"HomeGone":       {"a pivot took it from our own cluster, or a person deleted it", home, way, []inventory.Entry{a, cluster}, nil, false, false, false},
		"HomeOther":      {"our own cluster has one that is not declared any more", home, way, []inventory.Entry{a, {Namespace: "apps", Name: "old", Group: clusterapi.Group, Kind: clusterapi.Cluster, Version: "v1beta2"}}, []string{"old"}, false, false, false},
		"NoCluster":      {"it asked for what is left to be left", home, way, []inventory.Entry{a}, nil, false, false, false},
		"Unreachable":    {"the former may run on", target.Ref{Kind: "Secret", Name: "gone", Cluster: "before"}, nil, []inventory.Entry{a, cluster}, nil, true, false, false},
		"HomeExempt":     {"it is not pruned, and goes out of the inventory", home, way, []inventory.Entry{a, cluster}, []string{"prod"}, true, true, true},
		"HomePruned":     {"it is pruned, as a person confirmed", home, way, []inventory.Entry{a, cluster}, []string{"prod"}, false, true, false},
		"HomeExemptGone": {"a pivot took it from our own cluster", home, way, []inventory.Entry{a, cluster}, nil, false, true, true},
		"Moved":          {"the next one has it", target.Ref{Kind: "Secret", Name: "gone", Cluster: "before"}, nil, []inventory.Entry{a, cluster}, []string{"prod"}, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			record := tc.before.Encode()
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.KubeConfig, k.Spec.Prune, k.Status.Inventory = tc.to, tc.prune, refs(tc.owned)
				k.Annotations = map[string]string{target.Annotation: record}
			}), clusterServer(t, "there"))
			s.dials()
			s.Targets.Local.Client = withClusters{s.client, tc.there}
			if tc.exempt {
				s.Targets.Local.Client = exempted{withClusters{s.client, tc.there}}
			}
			// The plan leaves what is exempt out, and the rest is gone.
			s.cluster.remove = func(apply.Options) (apply.Result, error) { return apply.Result{Changes: ssa.NewChangeSet()}, nil }
			s.run.rendering, s.run.target = &render.Rendering{Objects: []*unstructured.Unstructured{a.Object(), cluster.Object()}}, target.Of(s.Obj, "")
			w := want{goes: true}
			if tc.held {
				w = want{says: "False/PruneBlocked", after: blockedPoll, events: 1}
			}
			s.expect(t, tc.reason, s.Reconciler.aim(t.Context(), s.run), w)
			if kept := s.Obj.Status.Inventory != nil && len(s.Obj.Status.Inventory.Entries) == len(tc.owned) && s.Obj.Annotations[target.Annotation] == record; kept != tc.held {
				t.Errorf("%s: the inventory is %v, and on record is %s", tc.reason, s.Obj.Status.Inventory, s.Obj.Annotations[target.Annotation])
			}
			if !tc.held {
				return
			}
			// Our own cluster is not gone: its record comes back.
			if e := <-s.events.Events; strings.Contains(e, target.Annotation) == tc.before.Local() || !strings.Contains(e, takeBackMove) {
				t.Errorf("%s: the event is %q", tc.reason, e)
			}
		})
	}
}

// TestTakenBack: a move that was taken back is not held any more, whatever the Kustomization waits for.
func TestTakenBack(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, record, says string
		suspended, held      bool
	}{
		"NoSource":  {"it cannot be built", "way", willNotApply + "Cluster/apps/prod to another cluster: " + takeBackMove, false, false},
		"Suspended": {"nor while it is suspended", "way", willNotApply + "Cluster/apps/prod to another cluster: " + takeBackMove, true, false},
		"Parts":     {"parts of a Cluster of another owner were to be deleted", "way", "will not delete ConfigMap/apps/keys; " + takeBackMove, false, false},
		"Away":      {"it is still to be moved", "gone", willNotApply + "Cluster/apps/prod to another cluster: " + takeBackMove, false, true},
		"Replaced":  {"the spec does not tell where the Secret leads to", "way", willNotApply + "Cluster/apps/prod to another cluster: have it lead to that one again", false, true},
		"Plan":      {"a person is to decide about deletes", "way", "would delete 20 objects", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.KubeConfig, k.Spec.Suspend = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}, tc.suspended
				k.Status.Inventory = refs([]inventory.Entry{entry("a")})
				k.Annotations = map[string]string{target.Annotation: target.Ref{Kind: "Secret", Name: tc.record, Cluster: "there"}.Encode()}
				v1alpha1.SetHeld(k, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Protected: 1}})
				apimeta.SetStatusCondition(&k.Status.Conditions, metav1.Condition{
					Type: v1alpha1.PruneBlockedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPruneBlocked, Message: tc.says,
				})
			}), clusterServer(t, "there"))
			s.dials()
			if _, err := s.Reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.name()}); err != nil {
				t.Fatal(err)
			}
			obj := &kustomizev1.Kustomization{}
			if err := s.client.Get(t.Context(), s.name(), obj); err != nil {
				t.Fatal(err)
			}
			held, _ := v1alpha1.HeldOf(obj)
			if blocked := apimeta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.PruneBlockedCondition); blocked != tc.held || (held.Prune != nil) != tc.held {
				t.Errorf("%s: it is PruneBlocked: %t, on record is %v", tc.reason, blocked, held.Prune)
			}
		})
	}
}

// TestAimElsewhere: what becomes of the objects when a Kustomization is given a kubeconfig.
func TestAimElsewhere(t *testing.T) {
	a, b := entry("a"), entry("b") // b is not declared any more
	for name, tc := range map[string]struct {
		reason string
		// uid is that of the cluster that the kubeconfig leads to.
		uid string
		// leaves: what was applied here is pruned here.
		leaves bool
		events int
		// keeps is what is on record as applied to the cluster of the kubeconfig.
		keeps []inventory.Entry
		// as is who it was applied as here, which may be nobody; it is to be applied as ops there.
		as string
	}{
		"Elsewhere":    {"what was applied here does not belong here any more", "there", true, 0, nil, "ops"},
		"OtherAccount": {"the one of the spec is an account there", "there", true, 0, nil, "before"},
		"NobodyBefore": {"the one of the spec is an account there, and nobody was impersonated here", "there", true, 0, nil, ""},
		"Itself":       {"the kubeconfig leads to the cluster that was applied to: nothing moves", "here", false, 0, []inventory.Entry{a, b}, "ops"},
		"Unknown":      {"it may be the cluster that was applied to: the user is told, and what is not declared may be somebody else's", "", false, 1, []inventory.Entry{a}, "ops"},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
				k.Spec.ServiceAccountName = "ops"
				k.Status.Inventory = refs([]inventory.Entry{a, b})
			}), clusterServer(t, tc.uid))
			s.dials()
			before := target.Ref{}
			if tc.as != "" {
				before.User = target.User("apps", tc.as)
			}
			removed := false
			s.cluster.remove = func(apply.Options) (apply.Result, error) {
				removed = true
				return apply.Result{Changes: ssa.NewChangeSet(), Complete: true}, nil
			}
			s.applier = func(c *apply.Cluster, _ apply.Owner, _ *memo.Memo) applier {
				if c.Config.Impersonate.UserName != before.User {
					t.Errorf("%s: it is pruned with the rights of %q", tc.reason, c.Config.Impersonate.UserName)
				}
				return s.cluster
			}
			s.appliedHere(a)
			s.run.rendering, s.run.target, s.run.sync = &render.Rendering{}, before, &apply.Result{Changes: ssa.NewChangeSet()}
			s.run.known.synced(s.run, true, true, noon)
			s.run.sync = nil
			if err := s.recordOwn(t.Context(), s.run); err != nil {
				t.Fatal(err)
			}
			s.run.rendering, s.run.target = &render.Rendering{Objects: []*unstructured.Unstructured{a.Object()}}, target.Of(s.Obj, "")
			s.expect(t, tc.reason, s.Reconciler.aim(t.Context(), s.run), want{goes: true, events: tc.events})
			if prunes := s.options(t.Context(), s.run, nil, nil).Prune; prunes == (tc.uid == "") {
				t.Errorf("%s: what is no longer declared is pruned: %t", tc.reason, prunes)
			}
			if left := s.Memo.Owned(s.name()); len(left) > 0 {
				t.Errorf("%s: changes of %v in our own cluster count as drift", tc.reason, left)
			}
			// It may be another process that goes on with what is written.
			written := &kustomizev1.Kustomization{}
			if err := s.client.Get(t.Context(), s.name(), written); err != nil {
				t.Fatal(err)
			}
			kept, err := entries(written.Status.Inventory)
			if err != nil || removed != tc.leaves || !inventory.Equal(kept, tc.keeps) {
				t.Errorf("%s: pruned: %t, written is the inventory %v, %v, want %v", tc.reason, removed, kept, err, tc.keeps)
			}
		})
	}
}

// TestAimRecordsLast: the record of the next cluster is not written before the inventory of the former is dropped.
func TestAimRecordsLast(t *testing.T) {
	s := take(t, shop(appliedTo("before")), clusterServer(t, "there"))
	s.dials()
	s.store.Client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			return errors.New("no answer")
		},
	})
	was := s.Obj.Annotations[target.Annotation]
	s.run.rendering, s.run.target = &render.Rendering{}, target.Of(s.Obj, "")
	if end := s.Reconciler.aim(t.Context(), s.run); end == nil || end.err == nil {
		t.Fatalf("the status cannot be written, and it goes on: %+v", end)
	}
	written := &kustomizev1.Kustomization{}
	if err := s.client.Get(t.Context(), s.name(), written); err != nil || written.Annotations[target.Annotation] != was {
		t.Errorf("the inventory of the former cluster counts as that of %s, %v", written.Annotations[target.Annotation], err)
	}
}

// TestClustersOfEarlierProcess: that Clusters are in our own cluster is known although another process applied them, before
// they are built a second time in the cluster of a kubeconfig.
func TestClustersOfEarlierProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// there are Clusters of our own cluster, which others have if others is set.
		there  []string
		others bool
		// applied is where this process knows that it applied to.
		applied *target.Ref
		own     bool
	}{
		"Ours":   {"the agent was restarted", []string{"prod"}, false, nil, true},
		"Others": {"somebody else has one of that name here", []string{"prod"}, true, nil, false},
		"None":   {"it was taken over from Flux, which applied to the other cluster", nil, false, nil, false},
		"LetGo":  {"a person removed the record of the other cluster", []string{"prod"}, false, &target.Ref{Kind: "Secret", Name: "way"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := inventory.Entry{Namespace: "apps", Name: "prod", Group: clusterapi.Group, Kind: clusterapi.Cluster, Version: "v1beta2"}
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				if tc.others {
					k.Name = "other"
				}
				k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
				k.Status.Inventory = refs([]inventory.Entry{cluster})
			}), clusterServer(t, "there"))
			s.dials()
			s.Targets.Local.Client = withClusters{s.client, tc.there}
			s.run.known.applied = tc.applied
			removed := false
			s.cluster.remove = func(apply.Options) (apply.Result, error) {
				removed = true
				return apply.Result{Changes: ssa.NewChangeSet(), Inventory: []inventory.Entry{cluster}, Plan: inventory.Plan{Protected: []inventory.Entry{cluster}}}, nil
			}
			if err := s.recordOwn(t.Context(), s.run); err != nil {
				t.Fatal(err)
			}
			if own := s.Obj.Annotations[target.Annotation] == (target.Ref{Cluster: "here"}).Encode(); own != tc.own {
				t.Errorf("%s: on record is %q", tc.reason, s.Obj.Annotations[target.Annotation])
			}
			s.run.rendering, s.run.target = &render.Rendering{Objects: []*unstructured.Unstructured{cluster.Object()}}, target.Of(s.Obj, "")
			if end := s.Reconciler.aim(t.Context(), s.run); (end != nil) != tc.own || removed != tc.own {
				t.Errorf("%s: it ends as %+v, says %s, pruned here: %t", tc.reason, end, s.says(), removed)
			}
		})
	}
}

// appliedHere has this process know that it applied an object to its own cluster.
func (s *steps) appliedHere(e inventory.Entry) {
	s.Memo = memo.NewPolled(observed.NewReader(nil), kustomizev1.GroupVersion.Group)
	s.Memo.Keeps(e.GroupKind(), schema.GroupVersionResource{Group: e.Group, Version: e.Version, Resource: "deployments"})
	s.Memo.Remember(memo.Object{Kind: e.GroupKind(), Name: types.NamespacedName{Namespace: e.Namespace, Name: e.Name}}, s.name(), digest.Short{1},
		&unstructured.Unstructured{Object: map[string]any{}}, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, Name: e.Name, UID: "a", ResourceVersion: "1", Generation: 1, Labels: map[string]string{s.Memo.Label(): "shop"},
		}})
}

// TestAimElsewhereHeld: leaving the cluster that we run in goes on after a restart, and is about
// the whole inventory, also about what the memo does not have.
func TestAimElsewhereHeld(t *testing.T) {
	owned := []inventory.Entry{entry("a"), entry("b"), entry("c")}
	obj := shop(func(k *kustomizev1.Kustomization) {
		k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
		k.Status.Inventory = refs(owned)
	})
	way := clusterServer(t, "there")
	for _, process := range []string{"the one that applied it", "the next one"} {
		s := take(t, obj, way.DeepCopy())
		s.dials()
		if process == "the one that applied it" {
			s.appliedHere(owned[0])
			if err := s.recordOwn(t.Context(), s.run); err != nil {
				t.Fatal(err)
			}
		}
		s.cluster.remove = func(apply.Options) (apply.Result, error) {
			return apply.Result{Changes: ssa.NewChangeSet(), Inventory: owned, Plan: inventory.Plan{Protected: owned}}, nil
		}
		s.run.rendering, s.run.target = &render.Rendering{}, target.Of(s.Obj, "")
		end := s.Reconciler.aim(t.Context(), s.run)
		if end == nil || s.says() != "False/PruneBlocked" || len(s.cluster.owned) != len(owned) || len(s.Obj.Status.Inventory.Entries) != len(owned) {
			t.Fatalf("%s: it ends as %+v, says %s and removes %v", process, end, s.says(), s.cluster.owned)
		}
		obj = &kustomizev1.Kustomization{}
		if err := s.client.Get(t.Context(), s.name(), obj); err != nil {
			t.Fatal(err)
		}
		obj.ResourceVersion, obj.Status = "", s.Obj.Status
	}
	// It is taken back: nothing moves.
	obj.Spec.KubeConfig = nil
	s := take(t, obj)
	s.run.rendering, s.run.target = &render.Rendering{}, target.Of(s.Obj, "")
	if end := s.Reconciler.aim(t.Context(), s.run); end != nil || len(s.cluster.owned) > 0 || s.Obj.Annotations[target.Annotation] != "" {
		t.Errorf("taken back: it ends as %+v, removes %v, and has on record %s", end, s.cluster.owned, s.Obj.Annotations[target.Annotation])
	}
}

// TestElsewhereUnapplied: what a Kustomization has in our own cluster is known to be here after it
// was given a kubeconfig, also where nothing was applied by that before it was deleted or the
// process ended.
func TestElsewhereUnapplied(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*kustomizev1.Kustomization)
	}{
		"Deleted":   {"the next commit took it out", func(k *kustomizev1.Kustomization) { k.DeletionTimestamp = &metav1.Time{Time: noon} }},
		"NoSource":  {"nothing was fetched yet", func(*kustomizev1.Kustomization) {}},
		"Suspended": {"it was suspended with the same commit", func(k *kustomizev1.Kustomization) { k.Spec.Suspend = true }},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
				k.Finalizers = append(k.Finalizers, "somebody/else")
				k.Status.Inventory = refs([]inventory.Entry{entry("a")})
				tc.change(k)
			}), clusterServer(t, "there"))
			s.dials()
			s.appliedHere(entry("a"))
			var at []*apply.Cluster
			s.applier = func(c *apply.Cluster, _ apply.Owner, _ *memo.Memo) applier {
				at = append(at, c)
				return s.cluster
			}
			s.cluster.remove = func(apply.Options) (apply.Result, error) { return apply.Result{Changes: ssa.NewChangeSet()}, nil }
			if _, err := s.Reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.name()}); err != nil {
				t.Fatal(err)
			}
			if deletes := name == "Deleted"; deletes != (len(at) > 0) || deletes && at[0] != s.Targets.Local {
				t.Errorf("%s: it is pruned in %v, want our own cluster alone, %p", tc.reason, at, s.Targets.Local)
			}
			obj := &kustomizev1.Kustomization{}
			if err := s.client.Get(t.Context(), s.name(), obj); err != nil {
				t.Fatal(err)
			}
			if got, want := obj.Annotations[target.Annotation], (target.Ref{Cluster: "here"}).Encode(); got != want {
				t.Errorf("%s: on record is %q, want %q", tc.reason, got, want)
			}
		})
	}
}

func TestApplyStep(t *testing.T) {
	a, b := entry("a"), entry("b")
	done := func() apply.Result {
		return apply.Result{Changes: ssa.NewChangeSet(), Inventory: []inventory.Entry{a}, Complete: true}
	}
	waiting := &v1alpha1.HandOver{Hash: "0123456789abcdef", Since: metav1.NewTime(noon)}
	held := inventory.Plan{Held: true, Hash: "0123456789abcdef", Guard: "too much", Deletes: []inventory.Delete{{Entry: b}}}
	for name, tc := range map[string]struct {
		reason string
		change func(*apply.Result) error
		want   want
		hold   v1alpha1.Held
	}{
		"Applied":  {"health is next", func(*apply.Result) error { return nil }, want{goes: true, says: "Unknown/Progressing"}, v1alpha1.Held{}},
		"Refused":  {"the API server refused an object", func(*apply.Result) error { return errors.New("denied") }, want{says: "False/ReconciliationFailed", after: time.Minute, events: 1}, v1alpha1.Held{}},
		"Unpruned": {"deletes failed", func(*apply.Result) error { return &apply.PruneError{Err: errors.New("denied")} }, want{says: "False/PruneFailed", after: time.Minute, events: 1}, v1alpha1.Held{}},
		"Stage": {"the definitions are not usable yet: no worker waits", func(*apply.Result) error { return &apply.WaitError{} },
			want{says: "Unknown/Progressing", after: stagePoll}, v1alpha1.Held{}},
		"Held": {"a person has to decide about deletes", func(r *apply.Result) error { r.Plan = held; return nil },
			want{says: "False/PruneBlocked", after: time.Hour, events: 1}, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: held.Hash, Deletes: 1}}},
		"Protected": {"what is protected waits for its confirmation", func(r *apply.Result) error { r.Plan = inventory.Plan{Protected: []inventory.Entry{b}}; return nil },
			want{says: "False/PruneBlocked", after: time.Hour, events: 1}, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Protected: 1}}},
		"LastBeside": {"what goes after a Kustomization is on record, and looked at again when that may be gone (read 876)", func(r *apply.Result) error {
			r.Plan, r.Decided = inventory.Plan{Hash: held.Hash, Protected: []inventory.Entry{b}, Last: []inventory.Entry{a}}, "0123456789abcdef"
			return nil
		}, want{says: "False/PruneBlocked", after: deletePoll, events: 1},
			v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Protected: 1}, Last: "0123456789abcdef", Kept: &v1alpha1.HeldKept{Objects: []string{a.String()}}}},
		"HandOver": {"another owner is to have an object: that holds nothing up", func(r *apply.Result) error {
			r.Plan, r.HandOver = inventory.Plan{HandOver: []inventory.Entry{b}, NewOwner: "Kustomization/x/y"}, waiting
			return nil
		}, want{goes: true, says: "Unknown/Progressing", events: 1}, v1alpha1.Held{HandOver: waiting}},
		"Kept": {"parts of Clusters that exist, and Clusters whose turn comes: no person is needed, and whoever applies this next has to know", func(r *apply.Result) error {
			r.Plan = inventory.Plan{OfCluster: []inventory.Entry{b}, Queued: []inventory.Entry{a}}
			return nil
		}, want{goes: true, says: "Unknown/Progressing"}, v1alpha1.Held{Kept: &v1alpha1.HeldKept{Objects: []string{a.String(), b.String()}}}},
		"KeptUnpruned": {"the same where another delete fails", func(r *apply.Result) error {
			r.Plan = inventory.Plan{OfCluster: []inventory.Entry{b}}
			return &apply.PruneError{Err: errors.New("denied")}
		}, want{says: "False/PruneFailed", after: time.Minute, events: 1}, v1alpha1.Held{Kept: &v1alpha1.HeldKept{Objects: []string{b.String()}}}},
		"Superseded": {"a newer revision is there: that one is applied", func(r *apply.Result) error { r.Plan.Superseded = true; return nil },
			want{says: "Unknown/Progressing", after: time.Second}, v1alpha1.Held{}},
		"Creation": {"a person has to decide about Clusters", func(r *apply.Result) error {
			r.Creation = &inventory.Creation{Held: []inventory.HeldCluster{{Name: types.NamespacedName{Namespace: "fleet", Name: "alpha"}}}}
			return nil
		}, want{says: "False/CreateHeld", after: time.Minute, events: 1}, v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: []string{"fleet/alpha"}}}},
		"ManagedElsewhere": {"another tier manages a Cluster: that is as it should be, and is told", func(r *apply.Result) error {
			r.Creation = &inventory.Creation{ManagedElsewhere: []types.NamespacedName{{Namespace: "fleet", Name: "alpha"}}}
			return nil
		}, want{goes: true, says: "Unknown/Progressing", events: 1}, v1alpha1.Held{Create: &v1alpha1.HeldCreate{ManagedElsewhere: []string{"fleet/alpha"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(nil))
			s.run.rendering = &render.Rendering{Digest: "sha256:x"}
			s.run.cluster = s.Targets.Local
			s.cluster.sync = func(ctx context.Context, o apply.Options) (apply.Result, error) {
				if err := o.Record(ctx, []inventory.Entry{a, b}); err != nil {
					t.Errorf("the inventory is not recorded: %v", err)
				}
				ahead := &kustomizev1.Kustomization{}
				if err := s.client.Get(ctx, client.ObjectKeyFromObject(s.Obj), ahead); err != nil {
					t.Fatal(err)
				}
				if ahead.Status.Inventory == nil || len(ahead.Status.Inventory.Entries) != 2 {
					t.Errorf("%s: before the first write the inventory is %v", tc.reason, ahead.Status.Inventory)
				}
				res := done()
				return res, tc.change(&res)
			}
			end := s.Reconciler.apply(t.Context(), s.run)
			s.expect(t, tc.reason, end, tc.want)
			if holds := tc.hold.Prune != nil || tc.hold.Create != nil; holds && !tc.want.goes && s.Obj.Status.ObservedGeneration != s.Obj.Generation {
				t.Errorf("%s: observed is generation %d: flux reconcile and kstatus wait for %d", tc.reason, s.Obj.Status.ObservedGeneration, s.Obj.Generation)
			}
			if err := s.WriteHeld(t.Context(), s.run.held); err != nil {
				t.Fatal(err)
			}
			if got, _ := v1alpha1.HeldOf(s.Obj); !sameHeld(got, tc.hold) {
				t.Errorf("%s: on record is %v, want %v", tc.reason, s.Obj.Annotations, tc.hold)
			}
		})
	}
}

// TestToldAside: that objects are handed over, or that another tier has a Cluster, is told as that, and of no revision:
// what Ready says of the one before would be said of this one.
func TestToldAside(t *testing.T) {
	for reason, res := range map[string]apply.Result{
		v1alpha1.ReasonHandOverPending: {
			Plan:     inventory.Plan{HandOver: []inventory.Entry{entry("b")}, NewOwner: "Kustomization/x/y"},
			HandOver: &v1alpha1.HandOver{Hash: "0123456789abcdef", Since: metav1.NewTime(noon)},
		},
		v1alpha1.ReasonManagedElsewhere: {Creation: &inventory.Creation{ManagedElsewhere: []types.NamespacedName{{Namespace: "fleet", Name: "alpha"}}}},
	} {
		t.Run(reason, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Status.LastAppliedRevision, k.Status.LastAttemptedRevision = "main@sha1:a", "main@sha1:b"
				status.MarkReady(k, meta.ReconciliationSucceededReason, "Applied revision: main@sha1:a")
			}))
			s.run.rendering = &render.Rendering{Digest: "sha256:x"}
			s.run.cluster = s.Targets.Local
			s.cluster.sync = func(context.Context, apply.Options) (apply.Result, error) {
				res.Changes, res.Inventory, res.Complete = ssa.NewChangeSet(), []inventory.Entry{entry("a")}, true
				return res, nil
			}
			s.Reconciler.apply(t.Context(), s.run)
			if len(s.events.Events) != 1 {
				t.Fatalf("%d events", len(s.events.Events))
			}
			if told := <-s.events.Events; !strings.HasPrefix(told, "Normal "+reason+" ") || strings.Contains(told, "/revision:") {
				t.Errorf("told is %q", told)
			}
		})
	}
}

// TestKeptStays: what goes with a Cluster is on record until a plan says that it is gone, and is
// written when it changes only.
func TestKeptStays(t *testing.T) {
	a, b := entry("a"), entry("b")
	s := take(t, shop(nil))
	s.run.rendering = &render.Rendering{Digest: "sha256:x"}
	s.run.cluster = s.Targets.Local
	for _, step := range []struct {
		reason string
		plan   inventory.Plan
		err    error
		want   string
		same   bool
	}{
		{"parts of a Cluster are not declared any more", inventory.Plan{OfCluster: []inventory.Entry{b, a}}, nil, "Deployment/x/a Deployment/x/b", false},
		{"nothing changed", inventory.Plan{OfCluster: []inventory.Entry{a, b}}, nil, "Deployment/x/a Deployment/x/b", true},
		{"nothing is known of them", inventory.Plan{}, errors.New("denied"), "Deployment/x/a Deployment/x/b", true},
		{"the next plan decides", inventory.Plan{Superseded: true}, nil, "Deployment/x/a Deployment/x/b", true},
		{"one is gone", inventory.Plan{OfCluster: []inventory.Entry{b}}, nil, "Deployment/x/b", false},
		{"all are gone", inventory.Plan{}, nil, "", false},
	} {
		s.cluster.sync = func(context.Context, apply.Options) (apply.Result, error) {
			return apply.Result{Changes: ssa.NewChangeSet(), Plan: step.plan}, step.err
		}
		s.Reconciler.apply(t.Context(), s.run)
		before := s.Obj.ResourceVersion
		if err := s.WriteHeld(t.Context(), s.run.held); err != nil {
			t.Fatal(err)
		}
		var got []string
		if held, _ := v1alpha1.HeldOf(s.Obj); held.Kept != nil {
			got = held.Kept.Objects
		}
		if strings.Join(got, " ") != step.want || (s.Obj.ResourceVersion == before) != step.same {
			t.Errorf("%s: on record is %v, version %s after %s", step.reason, s.Obj.Annotations, s.Obj.ResourceVersion, before)
		}
	}
}

// TestDecidedStays: what nobody is asked about again is on record until a plan says that it is gone (read 876).
func TestDecidedStays(t *testing.T) {
	s := take(t, shop(nil))
	s.run.rendering = &render.Rendering{Digest: "sha256:x"}
	s.run.cluster = s.Targets.Local
	made := inventory.Plan{Hash: "0123456789abcdef"}
	for _, step := range []struct {
		reason  string
		plan    inventory.Plan
		decided string
		err     error
		want    string
	}{
		{"a plan put some last", made, "ab", nil, "ab"},
		{"no plan was made", inventory.Plan{}, "", errors.New("denied"), "ab"},
		{"the next plan decides", inventory.Plan{Superseded: true}, "", nil, "ab"},
		{"one is gone, and another delete failed", made, "a", &apply.PruneError{Err: errors.New("denied")}, "a"},
		{"nothing is pruned any more", inventory.Plan{}, "", nil, ""},
	} {
		before := s.run.held.Last
		s.cluster.sync = func(_ context.Context, o apply.Options) (apply.Result, error) {
			if o.Decided != before {
				t.Errorf("%s: the plan is made with %q, want %q", step.reason, o.Decided, before)
			}
			return apply.Result{Changes: ssa.NewChangeSet(), Plan: step.plan, Decided: step.decided}, step.err
		}
		if s.Reconciler.apply(t.Context(), s.run); s.run.held.Last != step.want {
			t.Errorf("%s: on record is %q, want %q", step.reason, s.run.held.Last, step.want)
		}
	}
}

// TestDriftOrNews: with drift mode report, what differs is left as it is only if just this was
// applied before. The status has the same revision after variables changed.
func TestDriftOrNews(t *testing.T) {
	was := func(digest, status string) meta.Snapshot {
		return meta.Snapshot{Digest: digest, LastReconciledStatus: status}
	}
	const done, failed, unhealthy = meta.ReconciliationSucceededReason, meta.ReconciliationFailedReason, meta.HealthCheckFailedReason
	for name, tc := range map[string]struct {
		reason  string
		history meta.History // the newest first
		applied string
		want    bool
	}{
		"Same":      {"somebody changed what was applied", meta.History{was("new", done)}, revision, true},
		"Variables": {"the variables changed", meta.History{was("old", done)}, revision, false},
		"Halfway":   {"they did, and a part of it was refused", meta.History{was("new", failed), was("old", done)}, revision, false},
		"Back":      {"they are what they were, and a part of the others was applied", meta.History{was("other", failed), was("new", done)}, revision, false},
		"Unhealthy": {"all of it was applied", meta.History{was("new", unhealthy), was("old", done)}, revision, true},
		"Failed":    {"it was applied, and could not be looked at since", meta.History{was("new", failed), was("new", done)}, revision, true},
		"Revision":  {"a commit that changes nothing: what differs is brought to it, as by each commit", meta.History{was("new", done)}, "main@sha1:1", false},
		"NoHistory": {"as earlier versions of Flux left it", nil, revision, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Annotations = map[string]string{v1alpha1.DriftAnnotation: string(DriftReport)}
				k.Status.LastAppliedRevision, k.Status.ObservedGeneration, k.Status.History = tc.applied, 1, tc.history
			}))
			s.run.rendering = &render.Rendering{Digest: "new"}
			s.run.cluster = s.Targets.Local
			s.cluster.sync = func(_ context.Context, o apply.Options) (apply.Result, error) {
				if !o.Report || o.Applied != tc.want {
					t.Errorf("%s: report %t, applied before %t, want true and %t", tc.reason, o.Report, o.Applied, tc.want)
				}
				return apply.Result{Changes: ssa.NewChangeSet()}, nil
			}
			s.Reconciler.apply(t.Context(), s.run)
		})
	}
}

// TestDriftAfterHold: all that is declared is applied while a plan is held. A process that knows
// nothing of it takes what differs for drift.
func TestDriftAfterHold(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		plan   inventory.Plan
	}{
		"Prune": {"a person has to approve deletes", inventory.Plan{Held: true, Hash: "0123456789abcdef", Deletes: []inventory.Delete{{Entry: entry("b")}}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Annotations = map[string]string{v1alpha1.DriftAnnotation: string(DriftReport)}
				k.Status.ObservedGeneration, k.Status.LastAppliedRevision = 1, "main@sha1:1"
				k.Status.History = meta.History{{Digest: "old", LastReconciledStatus: meta.ReconciliationSucceededReason}}
			}))
			s.run.rendering, s.run.cluster = &render.Rendering{Digest: "new", Reads: &render.ReadSet{}}, s.Targets.Local
			applied := false
			s.cluster.sync = func(_ context.Context, o apply.Options) (apply.Result, error) {
				applied = o.Applied
				return apply.Result{Changes: ssa.NewChangeSet(), Complete: true, Plan: tc.plan}, nil
			}
			for _, want := range []bool{false, true} {
				if end := s.Reconciler.apply(t.Context(), s.run); end == nil || s.Obj.Status.LastAppliedRevision != revision {
					t.Fatalf("%s: it ends as %+v and applied %s", tc.reason, end, s.Obj.Status.LastAppliedRevision)
				}
				if applied != want {
					t.Errorf("%s: it was applied before: %t, want %t; the history is %+v", tc.reason, applied, want, s.Obj.Status.History)
				}
			}
			if n := len(s.Obj.Status.History); n != 2 {
				t.Errorf("%s: the history has %d entries, want one for each revision", tc.reason, n)
			}
		})
	}
}

// TestEventOrigin: an event names the revision that the artifact was built from, also
// before the status does.
func TestEventOrigin(t *testing.T) {
	for name, tc := range map[string]struct {
		reason           string
		snapshot         *source.Snapshot
		attempt, applied string
		want             string
	}{
		"First":    {"nothing was applied before", &source.Snapshot{Revision: "v2", OriginRevision: "main@sha1:b"}, "v2", "", "main@sha1:b"},
		"Next":     {"not that of the artifact before", &source.Snapshot{Revision: "v2", OriginRevision: "main@sha1:b"}, "v2", "v1", "main@sha1:b"},
		"Unknown":  {"the artifact does not say", &source.Snapshot{Revision: "v2"}, "v2", "v1", ""},
		"Deletion": {"no snapshot was looked for", nil, "v1", "v1", "main@sha1:a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(nil))
			if s.run.snapshot = tc.snapshot; tc.snapshot == nil {
				s.Obj.DeletionTimestamp = &metav1.Time{Time: noon}
			}
			s.Obj.Status.LastAttemptedRevision, s.Obj.Status.LastAppliedRevision, s.Obj.Status.LastAppliedOriginRevision = tc.attempt, tc.applied, "main@sha1:a"
			s.event(s.run, corev1.EventTypeNormal, nil, "done")
			got := <-s.events.Events
			if has := strings.Contains(got, "/originRevision:"); has != (tc.want != "") || !strings.Contains(got, tc.want) {
				t.Errorf("%s: %s, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func sameHeld(a, b v1alpha1.Held) bool {
	x, y := &metav1.ObjectMeta{}, &metav1.ObjectMeta{}
	v1alpha1.SetHeld(x, a)
	v1alpha1.SetHeld(y, b)
	return x.Annotations[v1alpha1.HeldAnnotation] == y.Annotations[v1alpha1.HeldAnnotation]
}

// TestUndecidedStep: what was held is still held after a restart, an upgrade from an
// agent that recorded nothing but conditions, and after the record was taken away.
func TestUndecidedStep(t *testing.T) {
	blocked := func(k *kustomizev1.Kustomization) {
		k.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.PruneBlockedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPruneBlocked,
			Message: "2 of 3 objects are no longer declared, more than 1; would delete ConfigMap/apps/a; restore them in Git, or run: cascade approve prune shop -n apps --hash 0123456789abcdef",
		}}
	}
	for name, tc := range map[string]struct {
		reason string
		obj    func(*kustomizev1.Kustomization)
		want   bool
	}{
		"Free":  {"nothing was held", nil, false},
		"Older": {"the status of an agent that had no record", blocked, true},
		"Held": {"the plan is on record", func(k *kustomizev1.Kustomization) {
			blocked(k)
			v1alpha1.SetHeld(k, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "0123456789abcdef", Deletes: 2}})
		}, true},
		"Protected": {"only confirmations are waited for", func(k *kustomizev1.Kustomization) {
			blocked(k)
			v1alpha1.SetHeld(k, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Protected: 2}})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj))
			s.run.rendering, s.run.cluster = &render.Rendering{}, s.Targets.Local
			s.cluster.sync = func(_ context.Context, o apply.Options) (apply.Result, error) {
				if o.Undecided != tc.want {
					t.Errorf("%s: undecided: %t", tc.reason, o.Undecided)
				}
				return apply.Result{Changes: ssa.NewChangeSet(), Complete: true}, nil
			}
			s.Reconciler.apply(t.Context(), s.run)
		})
	}
}

// TestHoldStays: a plan that deletes nothing for the moment decides nothing about what was held.
func TestHoldStays(t *testing.T) {
	b, denied := entry("b"), &apply.PruneError{Err: errors.New("denied")}
	const hash, other = "0123456789abcdef", "fedcba9876543210"
	for name, tc := range map[string]struct {
		reason string
		obj    func(*kustomizev1.Kustomization)
		plan   inventory.Plan
		want   bool
		err    error
		// hash is what can be approved from then on.
		hash string
	}{
		"Superseded": {"a newer revision declares one of the objects again, and not the others", nil, inventory.Plan{Superseded: true, Keep: []inventory.Entry{b}}, true, nil, hash},
		"HandOver":   {"another owner cannot be built, and may declare them", nil, inventory.Plan{Hash: hash, HandOver: []inventory.Entry{b}, NewOwner: "Kustomization/x/y", Unsure: true, Keep: []inventory.Entry{b}}, true, nil, hash},
		"Beside": {"the same, and something protected waits besides (read 915)", nil,
			inventory.Plan{Hash: other, Protected: []inventory.Entry{entry("c")}, HandOver: []inventory.Entry{b}, NewOwner: "Kustomization/x/y", Unsure: true}, true, nil, hash},
		"Taken":    {"another owner has them", nil, inventory.Plan{Hash: hash, Claimed: []inventory.Entry{b}, Keep: []inventory.Entry{b}}, false, nil, ""},
		"Approved": {"a person decided", nil, inventory.Plan{Hash: hash, Deletes: []inventory.Delete{{Entry: b}}}, false, nil, ""},
		"Restored": {"Git declares them again", nil, inventory.Plan{Hash: hash}, false, nil, ""},
		"NoPrune":  {"they are left", func(k *kustomizev1.Kustomization) { k.Spec.Prune = false }, inventory.Plan{}, false, nil, ""},
		"ApprovedFails": {"a person decided, and one of the deletes failed (read 902)", nil,
			inventory.Plan{Hash: hash, Unasked: true, Deletes: []inventory.Delete{{Entry: b}}}, false, denied, ""},
		"ApprovedUnread": {"a person decided, and another object cannot be read (read 902)", nil,
			inventory.Plan{Hash: hash, Unasked: true, Deletes: []inventory.Delete{{Entry: b}}, Unknown: []inventory.Entry{entry("c")}}, false, denied, ""},
		"Unread": {"they may be deleted later", nil, inventory.Plan{Hash: other, Unknown: []inventory.Entry{b}}, true, denied, hash},
		"NoPlan": {"nobody asked", nil, inventory.Plan{}, true, denied, hash},
		"HeldNow": {"others are held, and something fails: these can be approved (read 902)", nil,
			inventory.Plan{Hash: other, Held: true, Guard: "too much", Deletes: []inventory.Delete{{Entry: b}}, Unknown: []inventory.Entry{entry("c")}}, true, denied, other},
	} {
		t.Run(name, func(t *testing.T) {
			obj := shop(func(k *kustomizev1.Kustomization) {
				k.Spec.Prune = true
				k.Status.Conditions = []metav1.Condition{{Type: v1alpha1.PruneBlockedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPruneBlocked}}
				v1alpha1.SetHeld(k, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: hash, Deletes: 1}})
				if tc.obj != nil {
					tc.obj(k)
				}
			})
			s := take(t, obj.DeepCopy())
			s.run.rendering, s.run.cluster = &render.Rendering{}, s.Targets.Local
			s.cluster.sync = func(context.Context, apply.Options) (apply.Result, error) {
				return apply.Result{Changes: ssa.NewChangeSet(), Complete: true, Plan: tc.plan}, tc.err
			}
			s.Reconciler.apply(t.Context(), s.run)
			if got := s.run.undecided(); got != tc.want {
				t.Errorf("%s: undecided: %t", tc.reason, got)
			}
			if err := s.WriteHeld(t.Context(), s.run.held); err != nil {
				t.Fatal(err)
			}
			var got string
			if held, _ := v1alpha1.HeldOf(s.Obj); held.Prune != nil {
				got = held.Prune.Hash
			}
			if got != tc.hash {
				t.Errorf("%s: on record is plan %q, want %q", tc.reason, got, tc.hash)
			}
			blocked := apimeta.FindStatusCondition(s.Obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
			if got == other && !strings.Contains(blocked.Message, other) {
				t.Errorf("%s: it says %s", tc.reason, blocked.Message)
			}
			if tc.err == nil {
				return
			}
			s = take(t, obj)
			s.cluster.remove = func(apply.Options) (apply.Result, error) { return apply.Result{Plan: tc.plan}, tc.err }
			if _, err := s.pruneAt(t.Context(), s.run, target.Ref{}, apply.Options{}); !errors.Is(err, tc.err) || s.run.undecided() != tc.want {
				t.Errorf("%s: in a removal: undecided: %t, %v", tc.reason, s.run.undecided(), err)
			}
		})
	}
}

func TestPruneStep(t *testing.T) {
	a, b := entry("a"), entry("b")
	deleted := func(change func(*kustomizev1.Kustomization)) func(*kustomizev1.Kustomization) {
		return func(k *kustomizev1.Kustomization) {
			k.DeletionTimestamp = &metav1.Time{Time: noon}
			k.Status.Inventory = refs([]inventory.Entry{a, b})
			if change != nil {
				change(k)
			}
		}
	}
	policy := func(p string) func(*kustomizev1.Kustomization) {
		return func(k *kustomizev1.Kustomization) { k.Spec.DeletionPolicy = p }
	}
	none := apply.Result{Changes: ssa.NewChangeSet()}
	left := apply.Result{Changes: ssa.NewChangeSet(), Inventory: []inventory.Entry{a}}
	held := left
	held.Plan = inventory.Plan{Protected: []inventory.Entry{a}}
	handing := left
	handing.Plan = inventory.Plan{HandOver: []inventory.Entry{a}, NewOwner: "Kustomization/x/y"}
	handing.HandOver = &v1alpha1.HandOver{Hash: "0123456789abcdef", Since: metav1.NewTime(noon)}
	parts := left
	parts.Plan = inventory.Plan{OfCluster: []inventory.Entry{a}}
	last := left
	last.Plan = inventory.Plan{Last: []inventory.Entry{a}, LastFor: inventory.Entry{Namespace: "x", Name: "apps", Kind: "Kustomization"}}
	web := inventory.Entry{Namespace: "x", Name: "web", Group: "helm.toolkit.fluxcd.io", Kind: "HelmRelease", Version: "v2"}
	below := apply.Result{Changes: ssa.NewChangeSet(), Inventory: []inventory.Entry{a, web}, Plan: inventory.Plan{Going: []inventory.Entry{web}}}
	wentAtOnce := left
	wentAtOnce.Plan = below.Plan
	shared := left
	shared.Plan = inventory.Plan{Claimed: []inventory.Entry{a}}
	for name, tc := range map[string]struct {
		reason  string
		obj     func(*kustomizev1.Kustomization)
		result  apply.Result
		err     error
		removed bool
		gone    bool
		says    string
		after   time.Duration
	}{
		"Pruned":    {"its objects go with it", deleted(nil), none, nil, true, true, "", 0},
		"Orphan":    {"what it applied stays", deleted(policy(kustomizev1.DeletionPolicyOrphan)), none, nil, false, true, "", 0},
		"NoPrune":   {"who never prunes does not begin with it", deleted(func(k *kustomizev1.Kustomization) { k.Spec.Prune = false }), none, nil, false, true, "", 0},
		"Suspended": {"a deletion takes nothing along", deleted(func(k *kustomizev1.Kustomization) { k.Spec.Suspend = true }), none, nil, false, true, "", 0},
		"Protected": {"a person has to confirm", deleted(nil), held, nil, true, false, "False/PruneBlocked", blockedPoll},
		"Failed":    {"it stays and is tried again", deleted(nil), none, errors.New("denied"), true, false, "False/PruneFailed", time.Minute},
		"Seldom":    {"who looks every hour does not try a deletion that seldom", deleted(func(k *kustomizev1.Kustomization) { k.Spec.RetryInterval = nil }), none, errors.New("denied"), true, false, "False/PruneFailed", deletionRetry},
		"Accepted":  {"what the API server accepted is not waited for", deleted(nil), left, nil, true, true, "", 0},
		"Waits":     {"unless the policy says so", deleted(policy(kustomizev1.DeletionPolicyWaitForTermination)), left, nil, true, false, "Unknown/Progressing", deletePoll},
		"Shared":    {"what another one has as well is not deleted, and not waited for", deleted(policy(kustomizev1.DeletionPolicyWaitForTermination)), shared, nil, true, true, "", 0},
		"WaitsLate": {"the time-out begins with the deletes, which another hour was spent on before", deleted(func(k *kustomizev1.Kustomization) {
			k.Spec.DeletionPolicy = kustomizev1.DeletionPolicyWaitForTermination
			k.DeletionTimestamp = &metav1.Time{Time: noon.Add(-time.Hour)}
		}), left, nil, true, false, "Unknown/Progressing", deletePoll},
		"HandsOver":       {"another owner is to have them: it stays until then", deleted(nil), handing, nil, true, false, "Unknown/Progressing", handOverPoll},
		"OfCluster":       {"keys of a Cluster that is being deleted go after it", deleted(nil), parts, nil, true, false, "Unknown/Progressing", 30 * time.Second},
		"OfClusterFailed": {"the same where another delete fails", deleted(nil), parts, errors.New("denied"), true, false, "False/PruneFailed", time.Minute},
		"Last":            {"accounts go after what needs them for its own removal (read 831)", deleted(nil), last, nil, true, false, "Unknown/Progressing", deletePoll},
		"LastBelow":       {"the same for an account that who declares this one has: it is kept no longer than this one is there (read 875)", deleted(nil), below, nil, true, false, "Unknown/Progressing", deletePoll},
		"LastBelowGone":   {"what had no finalizer is gone", deleted(nil), wentAtOnce, nil, true, true, "", 0},
		"AccountAdded":    {"in another cluster, as a service account that it did not have when it was applied", deleted(accountAdded), none, nil, true, true, "", 0},
		"AccountChanged": {"it is pruned as the account that it was applied as: whether the one of the spec exists is of no interest", deleted(func(k *kustomizev1.Kustomization) {
			appliedAs(k, "ops")
			k.Spec.ServiceAccountName = "missing"
		}), none, nil, true, true, "", 0},
		"AccountDropped": {"the same where the spec names none any more", deleted(func(k *kustomizev1.Kustomization) {
			appliedAs(k, "ops")
			k.Spec.ServiceAccountName = ""
		}), none, nil, true, true, "", 0},
		"AccountGone": {"nobody can prune as an account that is gone: what it applied is left, and the user is told", deleted(func(k *kustomizev1.Kustomization) {
			appliedAs(k, "missing")
		}), none, nil, false, true, "", 0},
		"NobodyBefore": {"this process impersonated nobody, and the account that the spec got since is one of another cluster", deleted(func(k *kustomizev1.Kustomization) {
			accountAdded(k)
			k.Spec.ServiceAccountName = "missing"
		}), none, nil, true, true, "", 0},
		"OtherCluster": {"the cluster was built anew under its name: what was applied is gone with the former", deleted(appliedTo("before")), none, nil, false, true, "", 0},
		"Unreachable": {"the way to its cluster is missing: nothing is forgotten", deleted(func(k *kustomizev1.Kustomization) {
			k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "gone"}}
		}), none, nil, false, false, "False/PruneFailed", time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj), clusterServer(t, "there"))
			s.dials()
			if name == "NobodyBefore" {
				s.run.known.applied = &target.Ref{Kind: "Secret", Name: "way", Cluster: "there"}
			}
			removed := false
			s.run.held.Last = "0123456789abcdef"
			s.cluster.remove = func(o apply.Options) (apply.Result, error) {
				if !removed && o.Decided != "0123456789abcdef" {
					t.Errorf("%s: what was decided before is %q", tc.reason, o.Decided)
				}
				removed = true
				return tc.result, tc.err
			}
			result, err := s.finalize(t.Context(), s.run)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if removed != tc.removed {
				t.Errorf("%s: objects were pruned: %t", tc.reason, removed)
			}
			if gone := len(s.Obj.Finalizers) == 0; gone != tc.gone {
				t.Errorf("%s: the Kustomization may go: %t", tc.reason, gone)
			}
			if kept := s.run.held.Kept != nil; kept != (len(tc.result.Plan.OfCluster)+len(tc.result.Plan.Last) > 0) {
				t.Errorf("%s: on record is %v", tc.reason, s.run.held.Kept)
			}
			if told := len(s.events.Events) > 0; name == "OtherCluster" && !told {
				t.Errorf("%s: nobody is told what is left behind", tc.reason)
			}
			if s.says() != tc.says || result.RequeueAfter != tc.after {
				t.Errorf("%s: it says %q and is looked at after %s, want %q and %s", tc.reason, s.says(), result.RequeueAfter, tc.says, tc.after)
			}
			if tc.after == deletePoll && len(tc.result.Plan.Last)+len(tc.result.Plan.Going) == 0 {
				s.now = s.now.Add(s.Obj.GetTimeout())
				if _, err := s.finalize(t.Context(), s.run); err != nil || len(s.Obj.Finalizers) > 0 {
					t.Errorf("%s: it stays longer than its time-out, %v", tc.reason, err)
				}
			}
		})
	}
}

// TestSwitchedOff: a Kustomization that is deleted while its parent declares it leaves what it applied to the one that its
// parent makes again, unless the parent makes none.
func TestSwitchedOff(t *testing.T) {
	for name, tc := range map[string]struct {
		reason      string
		annotations map[string]any
		want        apply.Claim
	}{
		"Declared": {"its parent makes it again", nil, apply.Claim{Owner: "Kustomization/apps/shop", Kind: apply.Again}},
		"Disabled": {"its parent is not to reconcile it", map[string]any{"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}, apply.Claim{}},
		"Ignored":  {"its parent is not to apply it", map[string]any{"kustomize.toolkit.fluxcd.io/ssa": "Ignore"}, apply.Claim{}},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": kustomizev1.GroupVersion.String(), "kind": kustomizev1.KustomizationKind,
				"metadata": map[string]any{"namespace": "apps", "name": "shop", "annotations": tc.annotations},
			}}
			root := shop(func(k *kustomizev1.Kustomization) {
				k.Name, k.Status.Inventory = "root", refs([]inventory.Entry{inventory.Of(u)})
			})
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.DeletionTimestamp, k.Status.Inventory = &metav1.Time{Time: noon}, refs([]inventory.Entry{entry("a")})
			}), root)
			s.Claims.Kustomizations = declarers{
				"root": claim.DeclarationOf([]*unstructured.Unstructured{u}, nil), "shop": {Entries: []inventory.Entry{entry("a")}},
			}
			s.Claims.Now = s.Now
			asked := false
			s.cluster.remove = func(o apply.Options) (apply.Result, error) {
				asked = true
				got, err := o.Claimed(t.Context(), entry("a"), inventory.Entry{})
				got.Form = nil // for HelmReleases
				if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
					t.Errorf("%s: %v; -want, +got:\n%s", tc.reason, err, diff)
				}
				return apply.Result{Changes: ssa.NewChangeSet()}, nil
			}
			if _, err := s.finalize(t.Context(), s.run); err != nil || !asked {
				t.Errorf("%s: asked: %t, %v", tc.reason, asked, err)
			}
		})
	}
}

// withClusters is our own cluster with some Clusters in it, of Kustomization apps/shop.
type withClusters struct {
	client.Client
	there []string
}

// exempted is withClusters that ask not to be pruned.
type exempted struct{ withClusters }

func (c exempted) Get(ctx context.Context, name client.ObjectKey, into client.Object, o ...client.GetOption) error {
	err := c.withClusters.Get(ctx, name, into, o...)
	if err == nil && into.GetObjectKind().GroupVersionKind().GroupKind() == clusterapi.ClusterKind {
		into.SetAnnotations(map[string]string{directive.Group + "/prune": "Disabled"})
	}
	return err
}

// labels that Kustomization apps/shop gives its objects.
func labels() map[string]string {
	return map[string]string{kustomizev1.GroupVersion.Group + "/name": "shop", kustomizev1.GroupVersion.Group + "/namespace": "apps"}
}

func (c withClusters) RESTMapper() apimeta.RESTMapper {
	kind := clusterapi.ClusterKind.WithVersion("v1beta2")
	mapper := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion()})
	mapper.Add(kind, apimeta.RESTScopeNamespace)
	return apimeta.FirstHitRESTMapper{MultiRESTMapper: apimeta.MultiRESTMapper{mapper, c.Client.RESTMapper()}}
}

func (c withClusters) Get(ctx context.Context, name client.ObjectKey, into client.Object, o ...client.GetOption) error {
	switch kind := into.GetObjectKind().GroupVersionKind().GroupKind(); {
	case kind != clusterapi.ClusterKind:
		return c.Client.Get(ctx, name, into, o...)
	case slices.Contains(c.there, name.Name):
		into.SetLabels(labels())
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: clusterapi.Group, Resource: "clusters"}, name.Name)
}

// TestClusterTakenDown: a deleted Kustomization goes once Cluster API has taken down the cluster that it applied to, as
// nobody can prune there, or let it go by a commit.
func TestClusterTakenDown(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		way    string
		there  []string
		// of is the Cluster whose kubeconfig it is, as is on record.
		of string
		// refuses: the way is there, and the cluster does not let anything be pruned.
		refuses bool
		// elsewhere reports whether another tier manages the Cluster.
		elsewhere func() (bool, error)
		gone      bool
	}{
		"Gone":          {"the Secret went with the Cluster", "edge-kubeconfig", nil, "edge", false, nil, true},
		"There":         {"the Cluster is there, and its Secret may come back", "edge-kubeconfig", []string{"edge"}, "edge", false, nil, false},
		"NoSecret":      {"a Secret of another name says nothing about a Cluster", "edge", nil, "", false, nil, false},
		"NeverACluster": {"somebody made the Secret, for a cluster that Cluster API did not make", "edge-kubeconfig", nil, "", false, nil, false},
		"Kept":          {"the Secret was not collected", "edge-kubeconfig", nil, "edge", true, func() (bool, error) { return false, nil }, true},
		"Pivoted":       {"it manages itself, and does not answer for a moment", "edge-kubeconfig", nil, "edge", true, func() (bool, error) { return true, nil }, false},
		"MovedAway":     {"another tier has its kubeconfig as well", "edge-kubeconfig", nil, "edge", false, func() (bool, error) { return true, nil }, false},
		"NoRecord":      {"it is not known whether it was moved", "edge-kubeconfig", nil, "edge", false, func() (bool, error) { return false, errors.New("no answer") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			way := clusterServer(t, "there")
			if tc.refuses {
				way.Name, way.Labels = tc.way, map[string]string{clusterapi.ClusterNameLabel: "edge"}
			}
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.DeletionTimestamp = &metav1.Time{Time: noon}
				k.Status.Inventory = refs([]inventory.Entry{entry("a")})
				k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: tc.way}}
				k.Annotations = map[string]string{target.Annotation: target.Ref{Kind: "Secret", Name: tc.way, Cluster: "there", OfCluster: tc.of}.Encode()}
			}), way)
			s.Targets.Local.Client = withClusters{s.client, tc.there}
			if tc.elsewhere != nil {
				s.Targets.Elsewhere = func(_ context.Context, name types.NamespacedName) (bool, error) {
					if name != (types.NamespacedName{Namespace: "apps", Name: "edge"}) {
						t.Errorf("it was asked about Cluster %s", name)
					}
					return tc.elsewhere()
				}
			}
			s.dials()
			s.cluster.remove = func(apply.Options) (apply.Result, error) { return apply.Result{}, errors.New("no answer") }
			if _, err := s.finalize(t.Context(), s.run); err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if gone := len(s.Obj.Finalizers) == 0; gone != tc.gone || len(s.events.Events) != 1 {
				t.Errorf("%s: the Kustomization may go: %t; %d events", tc.reason, gone, len(s.events.Events))
			}
		})
	}
}

// TestRecordOfBefore: a record of a version that did not write down whose kubeconfig it is about gets that while the
// Secret tells, and so does what has no record, also where nothing is applied any more, so that the Kustomization goes once both are gone.
func TestRecordOfBefore(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*kustomizev1.Kustomization)
		of     string
		gone   bool
	}{
		"Deleted":       {"Cluster API takes the cluster down meanwhile", func(k *kustomizev1.Kustomization) { k.DeletionTimestamp = &metav1.Time{Time: noon} }, "edge", true},
		"NotBuilt":      {"it has no source, and may be deleted next", func(*kustomizev1.Kustomization) {}, "edge", false},
		"NeverACluster": {"somebody made the Secret", func(k *kustomizev1.Kustomization) { k.DeletionTimestamp = &metav1.Time{Time: noon} }, "", false},
		"Flux": {"it was taken over, and Flux records nothing", func(k *kustomizev1.Kustomization) {
			k.Annotations, k.DeletionTimestamp = nil, &metav1.Time{Time: noon}
		}, "edge", true},
	} {
		t.Run(name, func(t *testing.T) {
			before := target.Ref{Kind: "Secret", Name: "edge-kubeconfig", Key: "value", User: target.User("apps", "ops"), Cluster: "there"}
			way := clusterServer(t, "there")
			way.Name = before.Name
			if tc.of != "" {
				way.Labels = map[string]string{clusterapi.ClusterNameLabel: tc.of}
			}
			s := takeWith(t, []func(*runtime.Scheme) error{}, shop(func(k *kustomizev1.Kustomization) {
				k.Finalizers = append(k.Finalizers, "somebody/else")
				k.Status.Inventory = refs([]inventory.Entry{entry("a")})
				k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: before.Name, Key: before.Key}}
				k.Annotations = map[string]string{target.Annotation: before.Encode()}
				tc.change(k)
			}), way)
			s.Targets.Local.Client = withClusters{s.client, []string{"edge"}}
			s.dials()
			s.cluster.remove = func(apply.Options) (apply.Result, error) { return apply.Result{}, errors.New("no answer") }
			look := func() *kustomizev1.Kustomization {
				t.Helper()
				if _, err := s.Reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.name()}); err != nil {
					t.Fatalf("%s: %v", tc.reason, err)
				}
				obj := &kustomizev1.Kustomization{}
				if err := s.client.Get(t.Context(), s.name(), obj); err != nil {
					t.Fatal(err)
				}
				return obj
			}
			want := before
			if name == "Flux" {
				want.User, want.Cluster = "", ""
			}
			want.OfCluster = tc.of
			if obj := look(); obj.Annotations[target.Annotation] != want.Encode() || !slices.Contains(obj.Finalizers, kustomizev1.KustomizationFinalizer) {
				t.Fatalf("%s: with the Cluster there, on record is %s; finalizers %q", tc.reason, obj.Annotations[target.Annotation], obj.Finalizers)
			}
			if err := s.client.Delete(t.Context(), way); err != nil {
				t.Fatal(err)
			}
			s.Targets.Local.Client = withClusters{s.client, nil}
			if obj := look(); slices.Contains(obj.Finalizers, kustomizev1.KustomizationFinalizer) == tc.gone {
				t.Errorf("%s: once the Cluster is gone, finalizers are %q", tc.reason, obj.Finalizers)
			}
		})
	}
}

// TestRecordTakenBack: a kubeconfig that a commit names for a while is no record of what our own cluster has: a
// deletion would prune in the other cluster, which has objects of the same names and labels.
func TestRecordTakenBack(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		labels map[string]string
		// records: the kubeconfig is taken for that of the inventory.
		records bool
	}{
		"Ours":   {"an earlier process applied it here", labels(), false},
		"Others": {"somebody else has one of that name here", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			way := clusterServer(t, "there")
			way.Name, way.Labels = "edge-kubeconfig", map[string]string{clusterapi.ClusterNameLabel: "edge"}
			a := entry("a")
			s := takeWith(t, []func(*runtime.Scheme) error{}, shop(func(k *kustomizev1.Kustomization) {
				k.Finalizers = append(k.Finalizers, "somebody/else")
				k.Status.Inventory = refs([]inventory.Entry{a})
				k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: way.Name}}
			}), way, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name, Labels: tc.labels}})
			s.dials()
			at := -1
			s.applier = func(c *apply.Cluster, _ apply.Owner, _ *memo.Memo) applier {
				if at = 0; c != s.Targets.Local {
					at = 1
				}
				return s.cluster
			}
			s.cluster.remove = func(apply.Options) (apply.Result, error) { return apply.Result{Changes: ssa.NewChangeSet()}, nil }
			reconcile := func() *kustomizev1.Kustomization {
				t.Helper()
				if _, err := s.Reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.name()}); err != nil {
					t.Fatalf("%s: %v", tc.reason, err)
				}
				obj := &kustomizev1.Kustomization{}
				if err := s.client.Get(t.Context(), s.name(), obj); err != nil {
					t.Fatal(err)
				}
				return obj
			}
			obj := reconcile()
			if records := obj.Annotations[target.Annotation] != ""; records != tc.records {
				t.Fatalf("%s: on record is %q", tc.reason, obj.Annotations[target.Annotation])
			}
			if tc.records {
				return
			}
			obj.Spec.KubeConfig = nil
			if err := s.client.Update(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
			if err := s.client.Delete(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
			if reconcile(); at != 0 {
				t.Errorf("%s: the commit was taken back, and it is pruned in cluster %d, want our own one", tc.reason, at)
			}
		})
	}
}

// TestHandOverSeen: time in which no agent ran, or the old owner was suspended, is no time that the
// new one had to take the objects.
func TestHandOverSeen(t *testing.T) {
	s := take(t, shop(func(k *kustomizev1.Kustomization) {
		k.DeletionTimestamp = &metav1.Time{Time: noon}
		k.Status.Inventory = refs([]inventory.Entry{entry("a")})
		v1alpha1.SetHeld(k, v1alpha1.Held{HandOver: &v1alpha1.HandOver{Hash: "0123456789abcdef", Since: metav1.NewTime(noon.Add(-time.Hour))}})
	}))
	overdue := false
	s.cluster.remove = func(o apply.Options) (apply.Result, error) {
		overdue = inventory.Overdue(o.HandOver, s.now)
		return apply.Result{
			Changes: ssa.NewChangeSet(), Inventory: []inventory.Entry{entry("a")}, HandOver: o.HandOver,
			Plan: inventory.Plan{HandOver: []inventory.Entry{entry("a")}, NewOwner: "Kustomization/x/y"},
		}, nil
	}
	for i := range 70 {
		if _, err := s.Reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.name()}); err != nil {
			t.Fatal(err)
		}
		if late := i >= 60; overdue != late {
			t.Fatalf("after %s of a new process the new owner had its time: %t", time.Duration(i)*handOverPoll, overdue)
		}
		s.now = s.now.Add(handOverPoll)
	}
}

// TestDeletionMeasured: a deletion that is held is in the metrics as any prune is, until the
// Kustomization may go.
func TestDeletionMeasured(t *testing.T) {
	s := take(t, shop(func(k *kustomizev1.Kustomization) {
		k.DeletionTimestamp, k.Finalizers = &metav1.Time{Time: noon}, append(k.Finalizers, "somebody/else")
		k.Status.Inventory = refs([]inventory.Entry{entry("a")})
	}))
	registry := prometheus.NewRegistry()
	s.Metrics = metrics.New(registry)
	request := ctrl.Request{NamespacedName: s.name()}
	s.Metrics.Reconciled(kustomizev1.KustomizationKind, s.name(), &kustomizev1.Kustomization{Status: kustomizev1.KustomizationStatus{
		Conditions: []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue}}, // as it was before
	}}, 0)
	names := []string{"cascade_resource_ready", "cascade_prune_blocked", "cascade_inventory_objects"}
	for _, step := range []struct {
		reason string
		plan   inventory.Plan
		left   []inventory.Entry
		want   string
	}{
		{"a person has to confirm", inventory.Plan{Protected: []inventory.Entry{entry("a")}}, []inventory.Entry{entry("a")}, `
# HELP cascade_inventory_objects Number of objects in the inventory.
# TYPE cascade_inventory_objects gauge
cascade_inventory_objects{kind="Kustomization",name="shop",namespace="apps"} 1
# HELP cascade_prune_blocked 1 while deletes of the object are held for a person to decide; absent otherwise.
# TYPE cascade_prune_blocked gauge
cascade_prune_blocked{kind="Kustomization",name="shop",namespace="apps"} 1
# HELP cascade_resource_ready 1 if the object is ready, 0 if it is not, by its Ready condition.
# TYPE cascade_resource_ready gauge
cascade_resource_ready{kind="Kustomization",name="shop",namespace="apps"} 0
`},
		{"it was let go, though somebody else keeps it", inventory.Plan{}, nil, ""},
		{"it is looked at again", inventory.Plan{}, nil, ""},
	} {
		s.cluster.remove = func(apply.Options) (apply.Result, error) {
			return apply.Result{Changes: ssa.NewChangeSet(), Inventory: step.left, Plan: step.plan}, nil
		}
		if _, err := s.Reconciler.Reconcile(t.Context(), request); err != nil {
			t.Fatalf("%s: %v", step.reason, err)
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(step.want), names...); err != nil {
			t.Errorf("%s: %v", step.reason, err)
		}
	}
}

func TestHealthStep(t *testing.T) {
	a := entry("a")
	is := func(s kstatus.Status) func([]inventory.Entry) (apply.Health, error) {
		return func([]inventory.Entry) (apply.Health, error) { return apply.Health{{Entry: a, Status: s}}, nil }
	}
	broken := func([]inventory.Entry) (apply.Health, error) { return nil, errors.New("no answer") }
	waits := func(k *kustomizev1.Kustomization) { k.Spec.Wait = true }
	for name, tc := range map[string]struct {
		reason string
		obj    func(*kustomizev1.Kustomization)
		health func([]inventory.Entry) (apply.Health, error)
		// late is how long it was waited for already.
		late    time.Duration
		want    want
		healthy metav1.ConditionStatus
	}{
		"Nobody":   {"nobody asks for health", nil, broken, 0, want{goes: true}, ""},
		"Healthy":  {"all are as they should be", waits, is(kstatus.CurrentStatus), 0, want{goes: true, events: 1}, metav1.ConditionTrue},
		"Progress": {"it is looked at again, no worker waits", waits, is(kstatus.InProgressStatus), 0, want{says: "Unknown/Progressing", after: healthPoll}, metav1.ConditionUnknown},
		"Failed":   {"what failed is not waited for", waits, is(kstatus.FailedStatus), 0, want{says: "False/HealthCheckFailed", after: time.Minute, events: 1}, metav1.ConditionFalse},
		"Late":     {"nor what takes longer than spec.timeout", waits, is(kstatus.InProgressStatus), 6 * time.Minute, want{says: "False/HealthCheckFailed", after: time.Minute, events: 1}, metav1.ConditionFalse},
		"Unknown":  {"not to know is not to be healthy", waits, broken, 0, want{says: "Unknown/Progressing", after: healthPoll}, ""},
		"NoAnswer": {"and no reason to wait for ever", waits, broken, 6 * time.Minute, want{says: "False/HealthCheckFailed", after: time.Minute, events: 1}, metav1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj))
			s.Obj.Status.Inventory = refs([]inventory.Entry{a})
			s.cluster.health = tc.health
			if tc.late > 0 {
				s.run.known.await(s.run, s.now)
				s.now = s.now.Add(tc.late)
			}
			s.expect(t, tc.reason, s.Reconciler.health(t.Context(), s.run), tc.want)
			// Whatever an expression waits for, the failure is told in time.
			if most := max(5*time.Minute-tc.late, leastLook); s.cluster.look > most || s.cluster.look == 0 && tc.obj != nil {
				t.Errorf("%s: the look may take %s, want at most %s", tc.reason, s.cluster.look, most)
			}
			c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, meta.HealthyCondition)
			if c == nil && tc.healthy != "" || c != nil && c.Status != tc.healthy {
				t.Errorf("%s: the condition Healthy is %v, want %q", tc.reason, c, tc.healthy)
			}
			// A failure is tried again, and what is tried is said as Flux says it.
			const checks = "Running health checks for revision " + revision + " with a timeout of 5m0s"
			doing := apimeta.FindStatusCondition(s.Obj.Status.Conditions, meta.ReconcilingCondition)
			if (doing != nil) == tc.want.goes || doing != nil && !strings.HasPrefix(doing.Message, checks) {
				t.Errorf("%s: the condition Reconciling is %v", tc.reason, doing)
			}
			if doing != nil && (doing.Reason == meta.ProgressingWithRetryReason) != (tc.healthy == metav1.ConditionFalse) {
				t.Errorf("%s: the reason of Reconciling is %s", tc.reason, doing.Reason)
			}
		})
	}
}

// TestGlance: what was not healthy in time makes its Kustomization ready when it is, and not only
// with the next try; until then nothing else is said of it.
func TestGlance(t *testing.T) {
	s := take(t, shop(func(k *kustomizev1.Kustomization) { k.Spec.Wait = true }))
	s.Obj.Status.Inventory = refs([]inventory.Entry{entry("a")})
	look := func(status kstatus.Status, err error) *end {
		s.cluster.health = func([]inventory.Entry) (apply.Health, error) {
			return apply.Health{{Entry: entry("a"), Status: status}}, err
		}
		return s.Reconciler.health(t.Context(), s.run)
	}
	const failed = "False/HealthCheckFailed"
	look(kstatus.InProgressStatus, nil)
	s.now = s.now.Add(6 * time.Minute)
	s.expect(t, "it takes too long", look(kstatus.InProgressStatus, nil), want{says: failed, after: time.Minute, events: 1})
	s.now = s.now.Add(10 * time.Second)
	s.expect(t, "it has changed, and is not healthy", look(kstatus.InProgressStatus, nil), want{says: failed, after: 50 * time.Second, events: 1})
	s.expect(t, "nobody can tell", look(kstatus.CurrentStatus, errors.New("no answer")), want{says: failed, after: 50 * time.Second, events: 1})
	if end := look(kstatus.CurrentStatus, nil); end != nil || !apimeta.IsStatusConditionTrue(s.Obj.Status.Conditions, meta.HealthyCondition) {
		t.Errorf("it is healthy: the step ended as %+v, %v", end, s.Obj.Status.Conditions)
	}
	s.expect(t, "and is not later", look(kstatus.FailedStatus, nil), want{says: failed, after: time.Minute, events: 3})
	s.now = s.now.Add(time.Minute)
	s.expect(t, "the next try waits anew", look(kstatus.InProgressStatus, nil), want{says: "Unknown/Progressing", after: healthPoll, events: 3})
}

// TestHealthOfCommits: a commit that changes nothing of what is applied neither begins the time-out anew, which
// would have no end where many are made, nor takes back that it is over. One that changes something does.
func TestHealthOfCommits(t *testing.T) {
	s := take(t, shop(func(k *kustomizev1.Kustomization) { k.Spec.Wait = true }))
	s.Obj.Status.Inventory = refs([]inventory.Entry{entry("a")})
	s.cluster.health = func([]inventory.Entry) (apply.Health, error) {
		return apply.Health{{Entry: entry("a"), Status: kstatus.InProgressStatus}}, nil
	}
	const failed, waits = "False/HealthCheckFailed", "Unknown/Progressing"
	for _, step := range []struct {
		reason, revision, digest string
		changed                  bool
		after                    time.Duration
		want                     want
	}{
		{"it is applied", "main@sha1:2", "x", true, 0, want{says: waits, after: healthPoll}},
		{"a commit elsewhere", "main@sha1:3", "x", false, 3 * time.Minute, want{says: waits, after: healthPoll}},
		{"it takes too long", "main@sha1:3", "x", false, 3 * time.Minute, want{says: failed, after: time.Minute, events: 1}},
		{"another commit elsewhere", "main@sha1:4", "x", false, 10 * time.Second, want{says: failed, after: 50 * time.Second, events: 1}},
		{"the next try", "main@sha1:4", "x", false, time.Minute, want{says: waits, after: healthPoll, events: 1}},
		{"a commit elsewhere, which changes a variable", "main@sha1:5", "x", false, 4 * time.Minute, want{says: waits, after: healthPoll, events: 1}},
		{"that is applied", "main@sha1:5", "y", false, 4 * time.Minute, want{says: waits, after: healthPoll, events: 1}},
		{"a commit that changes what is applied", "main@sha1:6", "z", true, 4 * time.Minute, want{says: waits, after: healthPoll, events: 2}},
		{"it takes too long as well", "main@sha1:6", "z", false, 6 * time.Minute, want{says: failed, after: time.Minute, events: 3}},
	} {
		s.now = s.now.Add(step.after)
		s.run.snapshot = &source.Snapshot{Revision: step.revision}
		if last := s.run.known.rendered; step.changed && last != nil {
			s.run.known.invalidate() // its files are others
		}
		if end := s.cancel(t.Context(), s.run); end != nil {
			t.Fatalf("%s: the step ended as %+v", step.reason, end)
		}
		s.run.known.rendered = &rendered{reads: &render.ReadSet{}, digest: step.digest}
		s.expect(t, step.reason, s.Reconciler.health(t.Context(), s.run), step.want)
		c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, meta.ReconcilingCondition)
		if c == nil || !strings.Contains(c.Message, step.revision) {
			t.Errorf("%s: the condition Reconciling is %v", step.reason, c)
		}
	}
}

// TestGlanceRendered: so is what is never settled, as where something is kept for as long as a Cluster
// lives: it is rendered and verified each time.
func TestGlanceRendered(t *testing.T) {
	s := take(t, shop(func(k *kustomizev1.Kustomization) { k.Spec.Wait = true }))
	look := func(status kstatus.Status, action ssa.Action) *end {
		changes := ssa.NewChangeSet()
		changes.Add(ssa.ChangeSetEntry{ObjMetadata: object.ObjMetadata{Namespace: "apps", Name: "a", GroupKind: schema.GroupKind{Kind: "ConfigMap"}}, GroupVersion: "v1", Action: action})
		s.run.rendering, s.run.sync, s.run.memo = &render.Rendering{}, &apply.Result{Changes: changes, Complete: true}, s.Memo
		s.cluster.health = func(of []inventory.Entry) (apply.Health, error) {
			return apply.Health{{Entry: of[0], Status: status}}, nil
		}
		return s.Reconciler.health(t.Context(), s.run)
	}
	const failed = "False/HealthCheckFailed"
	s.expect(t, "it failed", look(kstatus.FailedStatus, ssa.CreatedAction), want{says: failed, after: time.Minute, events: 1})
	if after, _ := s.run.known.touched(s.declared()[0], false, s.now); after != glancePause {
		t.Errorf("it failed at once, and is looked at after %s", after)
	}
	s.now = s.now.Add(10 * time.Second)
	s.expect(t, "it has changed, and fails as before", look(kstatus.FailedStatus, ssa.UnchangedAction), want{says: failed, after: 50 * time.Second, events: 1})
	status.MarkProgressing(s.Obj, "Waiting for a worker")
	s.expect(t, "there was no worker for a moment", look(kstatus.InProgressStatus, ssa.UnchangedAction), want{says: failed, after: 50 * time.Second, events: 1})
	s.expect(t, "it was applied anew", look(kstatus.InProgressStatus, ssa.ConfiguredAction), want{says: "Unknown/Progressing", after: healthPoll, events: 1})
}

// TestHandOverUnhealthy: the time that objects are kept for others passes as well while those that
// are applied are not healthy, and only the first look is a failure.
func TestHandOverUnhealthy(t *testing.T) {
	s := take(t, shop(func(k *kustomizev1.Kustomization) { k.Spec.Wait, k.Spec.RetryInterval = true, nil }))
	changes := ssa.NewChangeSet()
	changes.Add(ssa.ChangeSetEntry{ObjMetadata: object.ObjMetadata{Namespace: "apps", Name: "a", GroupKind: schema.GroupKind{Kind: "ConfigMap"}}, GroupVersion: "v1", Action: ssa.UnchangedAction})
	s.run.rendering, s.run.memo = &render.Rendering{}, s.Memo
	s.run.sync = &apply.Result{Changes: changes, Complete: true, HandOver: &v1alpha1.HandOver{Since: metav1.NewTime(noon)}}
	s.cluster.health = func([]inventory.Entry) (apply.Health, error) {
		return apply.Health{{Entry: entry("a"), Status: kstatus.FailedStatus}}, nil
	}
	for _, reason := range []string{"it failed", "it is looked at for the hand-over"} {
		s.expect(t, reason, s.Reconciler.health(t.Context(), s.run), want{says: "False/HealthCheckFailed", after: handOverPoll, events: 1})
	}
}

// TestApprovalEnds: an approval of deletes is none of the next ones, which may be of the same
// objects by another accident.
func TestApprovalEnds(t *testing.T) {
	const hash, other = "0123456789abcdef", "fedcba9876543210"
	deletes := []inventory.Delete{{Entry: entry("a")}}
	for name, tc := range map[string]struct {
		reason string
		plan   inventory.Plan
		// fields are those that somebody applies, as the API server has them: the cache has none.
		fields string
		// now is what is approved on the API server by the time that it is taken off.
		now, want string
	}{
		"Reverted": {"they are declared again", inventory.Plan{Hash: other}, "", hash, ""},
		"Smaller":  {"what is left is not held", inventory.Plan{Hash: other, Deletes: deletes}, "", hash, ""},
		"Deletes":  {"they are deleted by it, perhaps not all at once", inventory.Plan{Hash: hash, Deletes: deletes}, "", hash, hash},
		"Unread":   {"they may be deleted later", inventory.Plan{Hash: other, Unknown: []inventory.Entry{entry("a")}}, "", hash, hash},
		"Held":     {"others are held", inventory.Plan{Hash: other, Held: true, Guard: "too much", Deletes: deletes}, "", hash, hash},
		"NoPlan":   {"nobody asked", inventory.Plan{}, "", hash, hash},
		"Declared": {"it is in Git, which would bring it back", inventory.Plan{Hash: other},
			`{"f:metadata":{"f:annotations":{"f:` + v1alpha1.ApprovePruneAnnotation + `":{}}}}`, hash, hash},
		"Newer": {"another plan was approved meanwhile", inventory.Plan{Hash: other}, "", other, other},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Annotations = map[string]string{v1alpha1.ApprovePruneAnnotation: hash, v1alpha1.ApprovedByAnnotation: "jane"}
			}))
			if tc.now != hash {
				newer := s.Obj.DeepCopy()
				newer.Annotations[v1alpha1.ApprovePruneAnnotation] = tc.now
				if err := s.client.Update(t.Context(), newer); err != nil {
					t.Fatal(err)
				}
			}
			s.Targets.Local.Client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
					if tc.fields != "" {
						defer func() {
							obj.SetManagedFields([]metav1.ManagedFieldsEntry{{Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(tc.fields)}})
						}()
					}
					return c.Get(ctx, key, obj, opts...)
				},
			})
			s.run.rendering, s.run.cluster = &render.Rendering{Digest: "sha256:x"}, s.Targets.Local
			s.cluster.sync = func(context.Context, apply.Options) (apply.Result, error) {
				return apply.Result{Changes: ssa.NewChangeSet(), Complete: true, Plan: tc.plan}, nil
			}
			s.Reconciler.apply(t.Context(), s.run)
			if err := s.endApproval(t.Context(), s.run); err != nil {
				t.Errorf("%s: %v", tc.reason, err)
			}
			obj := &kustomizev1.Kustomization{}
			if err := s.client.Get(t.Context(), s.name(), obj); err != nil {
				t.Fatal(err)
			}
			if got, by := obj.Annotations[v1alpha1.ApprovePruneAnnotation], obj.Annotations[v1alpha1.ApprovedByAnnotation]; got != tc.want || (by == "") != (tc.want == "") {
				t.Errorf("%s: %q is approved by %q, want %q", tc.reason, got, by, tc.want)
			}
		})
	}
}

// TestApprovalEndsLate: what could not be written is found out again.
func TestApprovalEndsLate(t *testing.T) {
	r := &tier{t: t}
	s := r.take(func(k *kustomizev1.Kustomization) {
		k.Annotations = map[string]string{v1alpha1.ApprovePruneAnnotation: "0123456789abcdef"}
	})
	key := sourceKey(s.Obj)
	if err := s.client.Create(t.Context(), git(true)); err != nil {
		t.Fatal(err)
	}
	s.Sources.Snapshots.Put(key, fleetOf(t, revision))
	s.cluster.sync = func(_ context.Context, o apply.Options) (apply.Result, error) {
		return apply.Result{Changes: ssa.NewChangeSet(), Complete: true, Plan: inventory.Plan{Hash: "fedcba9876543210"}}, nil
	}
	down := true
	s.store.Client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if down {
				return apierrors.NewInternalError(errors.New("etcd elects"))
			}
			return c.Patch(ctx, obj, patch, opts...)
		},
	})
	for _, down = range []bool{true, false} {
		if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.name()}); (err != nil) != down {
			t.Fatalf("etcd elects: %t, and the reconcile ends with %v", down, err)
		}
	}
	obj := &kustomizev1.Kustomization{}
	if err := s.client.Get(t.Context(), s.name(), obj); err != nil {
		t.Fatal(err)
	}
	if got := obj.Annotations[v1alpha1.ApprovePruneAnnotation]; got != "" {
		t.Errorf("%s is approved still, and it says %v", got, obj.Status.Conditions)
	}
}

// TestRecreatedLate: an object that is deleted, to be created again, is so soon after its finalizer
// let it go, however long that takes.
func TestRecreatedLate(t *testing.T) {
	going := &apply.WaitError{Health: apply.Health{{Entry: entry("a"), Status: kstatus.TerminatingStatus}}}
	const waits, failed = "Unknown/Progressing", "False/ReconciliationFailed"
	s := take(t, shop(func(k *kustomizev1.Kustomization) { k.Spec.RetryInterval = nil }))
	sync := func(err error) *end {
		s.cluster.sync = func(context.Context, apply.Options) (apply.Result, error) {
			return apply.Result{Changes: ssa.NewChangeSet()}, err
		}
		s.run.start, s.run.rendering, s.run.cluster = s.now, &render.Rendering{}, s.Targets.Local
		return s.Reconciler.apply(t.Context(), s.run)
	}
	s.Obj.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionUnknown, Reason: meta.ProgressingReason}}
	s.expect(t, "it may be gone in a moment", sync(going), want{says: waits, after: stagePoll})
	s.now = s.now.Add(stageTimeout + time.Second)
	s.expect(t, "it takes long", sync(going), want{says: failed, after: (stageTimeout + time.Second) / 4, events: 1})
	s.now = s.now.Add(4 * time.Minute)
	s.expect(t, "and longer", sync(going), want{says: failed, after: (5*time.Minute + time.Second) / 4, events: 2})
	s.expect(t, "another object fails beside", sync(apply.Failures{errors.New("denied"), &apply.GoingError{}}), want{says: failed, after: (5*time.Minute + time.Second) / 4, events: 3})
	s.expect(t, "it is gone, and another one fails", sync(apply.Failures{errors.New("denied")}), want{says: failed, after: time.Hour, events: 4})
	s.expect(t, "another one goes", sync(apply.Failures{errors.New("denied"), &apply.GoingError{}}), want{says: failed, after: goingPoll, events: 5})
	s.expect(t, "and a definition is waited for as long as any", sync(&apply.WaitError{}), want{says: waits, after: stagePoll, events: 5})
}

// TestAppliesSlowly: a status that says of the revision before that it is applied does not say so
// while another one is there in part; that what is in place is verified is no news.
func TestAppliesSlowly(t *testing.T) {
	for name, tc := range map[string]struct{ applied, want string }{
		"Commit":   {"main@sha1:1", "Unknown/Progressing"},
		"Verified": {revision, "True/Succeeded"},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Status.LastAppliedRevision, k.Status.ObservedGeneration = tc.applied, 1
				k.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Succeeded", LastTransitionTime: metav1.Time{Time: noon}}}
			}))
			s.run.rendering, s.run.cluster = &render.Rendering{Digest: "sha256:x"}, s.Targets.Local
			during := &steps{run: &run{Record: recordOf(&kustomizev1.Kustomization{})}}
			s.cluster.sync = func(ctx context.Context, o apply.Options) (apply.Result, error) {
				o.Slow(ctx)
				return apply.Result{Changes: ssa.NewChangeSet()}, s.client.Get(ctx, s.name(), during.Obj)
			}
			s.Reconciler.apply(t.Context(), s.run)
			if got := during.says(); got != tc.want {
				t.Errorf("while it is applied it says %s, want %s", got, tc.want)
			}
		})
	}
}

// TestCancelStep: whoever asks for something else ends the wait for health, and is named.
func TestCancelStep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		waits  bool
		change func(*run)
		event  string
	}{
		"Revision": {"a commit came", true, func(run *run) { run.snapshot = &source.Snapshot{Revision: "main@sha1:3"} }, "GitRepository/apps/fleet"},
		"Spec":     {"somebody changed the Kustomization", true, func(run *run) { run.Obj.Generation++ }, "Kustomization/apps/shop"},
		"Request": {"somebody asked for a reconcile", true, func(run *run) {
			run.Obj.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
		}, "Kustomization/apps/shop"},
		"Elsewhere": {"a commit changes none of its files", true, func(run *run) {
			run.snapshot = &source.Snapshot{Revision: "main@sha1:3"}
			run.known.rendered = &rendered{reads: &render.ReadSet{}}
		}, ""},
		"Asked": {"somebody asked for a reconcile after such a commit", true, func(run *run) {
			run.snapshot = &source.Snapshot{Revision: "main@sha1:3"}
			run.known.rendered = &rendered{reads: &render.ReadSet{}}
			run.Obj.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
		}, "Kustomization/apps/shop"},
		"Same":    {"the next look is for the same", true, func(*run) {}, ""},
		"Nothing": {"nothing is waited for", false, func(run *run) { run.snapshot = &source.Snapshot{Revision: "main@sha1:3"} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) { k.Spec.Wait = true }))
			if tc.waits {
				s.run.known.await(s.run, s.now)
			}
			tc.change(s.run)
			for range 2 { // it is told once, whatever keeps the reconcile from going on
				if end := s.cancel(t.Context(), s.run); end != nil {
					t.Fatalf("%s: the step ended as %+v", tc.reason, end)
				}
			}
			close(s.events.Events)
			var told []string
			for e := range s.events.Events {
				told = append(told, e)
			}
			want := "Normal HealthCheckCanceled Health checks canceled due to new reconciliation triggered by " + tc.event
			if tc.event == "" && len(told) > 0 || tc.event != "" && (len(told) != 1 || !strings.HasPrefix(told[0], want)) {
				t.Errorf("%s: told %q", tc.reason, told)
			}
		})
	}
}

// TestOwnershipConflict: that another Kustomization applies an object in turn with this one is told
// while that is so, whether anything has to be applied or not. Ready is not about that.
func TestOwnershipConflict(t *testing.T) {
	s := take(t, shop(nil))
	gk, watched := schema.GroupKind{Kind: "ConfigMap"}, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metadata := metadatafake.NewSimpleMetadataClient(scheme)
	// The fake has no bookmarks, by which a watch tells that it has shown all there was.
	metadata.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		return a.(clienttesting.WatchActionImpl).ListOptions.SendInitialEvents != nil, nil, apierrors.NewBadRequest("no bookmarks")
	})
	ctx, cancel := context.WithCancel(t.Context())
	s.run.memo = memo.New(observed.NewReader(metadata), kustomizev1.GroupVersion.Group, func() time.Time { return s.now })
	done := make(chan struct{})
	go func() { defer close(done); _ = s.run.memo.Start(ctx) }()
	defer func() { cancel(); <-done }()
	if !s.run.memo.Watch(ctx, gk, watched, watched) {
		t.Fatal("ConfigMaps are not watched")
	}
	object := memo.Object{Kind: gk, Name: types.NamespacedName{Namespace: "apps", Name: "a"}}
	other := types.NamespacedName{Namespace: "apps", Name: "team"}
	for i, by := range []types.NamespacedName{s.name(), other, s.name(), other} {
		if c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, v1alpha1.OwnershipConflictCondition); c != nil {
			t.Fatalf("told after %d turns: %+v", i, c)
		}
		got := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: "1", Labels: map[string]string{s.run.memo.Label(): by.Name}}}
		s.run.memo.Remember(object, by, digest.Short{1}, &unstructured.Unstructured{}, got)
		s.now = s.now.Add(time.Minute)
		if end := s.Reconciler.apply(t.Context(), s.run); end != nil {
			t.Fatalf("the step ended as %+v", end)
		}
	}
	c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, v1alpha1.OwnershipConflictCondition)
	if c == nil || c.Reason != v1alpha1.ReasonOwnershipConflict || !strings.HasSuffix(c.Message, ": ConfigMap/apps/a, by Kustomization apps/team") || s.says() != "" {
		t.Errorf("it says %+v, Ready %q", c, s.says())
	}
	s.Reconciler.apply(t.Context(), s.run) // it is told once
	if len(s.events.Events) != 1 || !strings.HasPrefix(<-s.events.Events, "Trace OwnershipConflict ") {
		t.Error("want one event that no Alert takes for the state of a commit")
	}
	s.run.memo.Retain(other, nil)
	s.Reconciler.apply(t.Context(), s.run)
	if c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, v1alpha1.OwnershipConflictCondition); c != nil {
		t.Errorf("the other one let go, and it says %+v", c)
	}
}

// TestSuspended: a status says that something goes on while that is so.
func TestSuspended(t *testing.T) {
	waits := func(healthy bool) []metav1.Condition {
		conditions := []metav1.Condition{
			{Type: meta.ReadyCondition, Status: metav1.ConditionUnknown, Reason: meta.ProgressingReason, Message: "Waiting for another Cluster to be gone"},
			{Type: meta.ReconcilingCondition, Status: metav1.ConditionTrue, Reason: meta.ProgressingReason},
		}
		if healthy {
			conditions = append(conditions, metav1.Condition{Type: meta.HealthyCondition, Status: metav1.ConditionUnknown, Reason: meta.ProgressingReason})
		}
		return conditions
	}
	for name, tc := range map[string]struct {
		reason   string
		was      []metav1.Condition
		want     map[string]string
		events   int
		observed int64
	}{
		"Ready": {"it stays so, of the new spec", []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: "x"}}, map[string]string{"Ready": "True/x"}, 0, 2},
		"Failed": {"it stays so, and is not tried again", []metav1.Condition{
			{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: "x"}, {Type: meta.ReconcilingCondition, Status: metav1.ConditionTrue, Reason: meta.ProgressingWithRetryReason},
		}, map[string]string{"Ready": "False/x"}, 0, 1},
		"New":    {"nothing is known of it", nil, map[string]string{}, 0, 1},
		"Health": {"nobody looks at its objects any more", waits(true), map[string]string{"Ready": "False/Suspended", "Healthy": "Unknown/Suspended"}, 1, 1},
		"Stage":  {"its first objects are waited for no more", waits(false), map[string]string{"Ready": "False/Suspended"}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Spec.Suspend, k.Generation = true, 2
				k.Status.ObservedGeneration, k.Status.LastAttemptedRevision, k.Status.Conditions = 1, revision, tc.was
			}))
			s.run.known.await(s.run, s.now)
			key := client.ObjectKeyFromObject(s.Obj)
			for range 2 { // it is told once
				if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
			}
			got := &kustomizev1.Kustomization{}
			if err := s.client.Get(t.Context(), key, got); err != nil {
				t.Fatal(err)
			}
			says := map[string]string{}
			for _, c := range got.Status.Conditions {
				says[c.Type] = string(c.Status) + "/" + c.Reason
			}
			if diff := cmp.Diff(tc.want, says); diff != "" {
				t.Errorf("%s: conditions: -want, +got:\n%s", tc.reason, diff)
			}
			if len(s.events.Events) != tc.events || got.Status.ObservedGeneration != tc.observed {
				t.Errorf("%s: %d events, observed generation %d", tc.reason, len(s.events.Events), got.Status.ObservedGeneration)
			}
			if ready := apimeta.FindStatusCondition(got.Status.Conditions, meta.ReadyCondition); tc.events > 0 && !strings.HasSuffix(ready.Message, "with: Waiting for another Cluster to be gone") {
				t.Errorf("%s: Ready says %q, and not what is left to do", tc.reason, ready.Message)
			}
			for range len(s.events.Events) {
				if told := <-s.events.Events; !strings.HasPrefix(told, eventv1.EventTypeTrace+" ") {
					t.Errorf("%s: told %q, which sets the status of the commit", tc.reason, told)
				}
			}
			if waits := !s.run.known.wait.since.IsZero(); tc.events > 0 && waits {
				t.Errorf("%s: health is still waited for", tc.reason)
			}
		})
	}
}

// TestTellsChanges: what is changed for a revision does not say what came of the one before.
func TestTellsChanges(t *testing.T) {
	for name, was := range map[string]metav1.Condition{
		"Ready":  {Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.ReconciliationSucceededReason},
		"Failed": {Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: meta.BuildFailedReason},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) { k.Status.Conditions = []metav1.Condition{was} }))
			changes := ssa.NewChangeSet()
			changes.Add(ssa.ChangeSetEntry{Subject: "ConfigMap/apps/a", Action: ssa.ConfiguredAction})
			s.tell(s.run, apply.Result{Changes: changes, Deleted: []inventory.Entry{entry("b")}})
			for range 2 {
				if told := <-s.events.Events; !strings.HasPrefix(told, "Normal Progressing ") {
					t.Errorf("told %q", told)
				}
			}
		})
	}
}

// TestRecordStep: what a reconcile that went through leaves on record.
func TestRecordStep(t *testing.T) {
	keys := inventory.Entry{Namespace: "apps", Name: "keys", Kind: "Secret", Version: "v1"}
	template := inventory.Entry{Namespace: "apps", Name: "old", Group: "infrastructure.cluster.x-k8s.io", Kind: "AWSMachineTemplate", Version: "v1beta2"}
	const waits = revision + "; 1 objects that are no longer declared wait for Clusters to be gone: Secret/apps/keys, with keys of AWSCluster/apps/prod"
	ready := func(message string) func(*kustomizev1.Kustomization) {
		return func(k *kustomizev1.Kustomization) {
			k.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.ReconciliationSucceededReason, Message: "Applied revision: " + message, ObservedGeneration: 1}}
			applied, _, _ := strings.Cut(message, ";")
			k.Status.ObservedGeneration, k.Status.LastAppliedRevision = 1, applied
			k.Status.History = meta.History{{Digest: "sha256:x", LastReconciledStatus: meta.ReconciliationSucceededReason, Metadata: map[string]string{"revision": applied}}}
		}
	}
	for name, tc := range map[string]struct {
		reason string
		obj    func(*kustomizev1.Kustomization)
		rules  func(*Rules)
		writes bool
		// told begins the event, and is empty without one.
		told string
		// waits for Clusters, kept is what Ready says of it.
		waits []inventory.Entry
		kept  string
	}{
		"Waits":       {"the user may take it for deleted", ready(revision), nil, true, "Normal ReconciliationSucceeded", []inventory.Entry{template, keys}, waits},
		"WaitsStill":  {"that was told, and what comes of it wakes nobody", ready(waits), nil, false, "", []inventory.Entry{template, keys}, waits},
		"WaitsNoMore": {"it is gone", ready(waits), nil, true, "", nil, revision},
		"Template":    {"a Cluster had it before its new one, and may live for years", ready(revision), nil, false, "", []inventory.Entry{template}, revision},
		"First":       {"it was not ready before", nil, nil, true, "Normal ReconciliationSucceeded", nil, revision},
		"NewRevision": {"a commit that changes nothing here has a status, and no Event", ready("main@sha1:1"), nil, true, "Told ReconciliationSucceeded", nil, revision},
		"NoStatus":    {"unless statuses are not wanted", ready("main@sha1:1"), func(r *Rules) { r.NoCommitStatusEvent = true }, true, "", nil, revision},
		"Same":        {"an interval without a change is no news", ready(revision), nil, false, "", nil, revision},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) {
				k.Status.LastAttemptedRevision = revision
				if tc.obj != nil {
					tc.obj(k)
				}
			}))
			if tc.rules != nil {
				tc.rules(&s.Rules)
			}
			s.run.rendering = &render.Rendering{Digest: "sha256:x"}
			s.run.sync = &apply.Result{Changes: ssa.NewChangeSet(), Plan: inventory.Plan{OfCluster: tc.waits, Credential: "AWSCluster/apps/prod"}}
			before := s.Obj.ResourceVersion
			end := s.succeeded(t.Context(), s.run)
			if err := errors.Join(end.err, s.WriteHeld(t.Context(), s.run.held), s.Write(t.Context())); err != nil {
				t.Fatal(err)
			}
			got := &kustomizev1.Kustomization{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.Obj), got); err != nil {
				t.Fatal(err)
			}
			if got.Status.LastAppliedRevision != revision || got.Status.ObservedGeneration != 1 || len(got.Status.History) != 1 {
				t.Errorf("%s: on record is %+v", tc.reason, got.Status)
			}
			if (got.ResourceVersion != before) != tc.writes {
				t.Errorf("%s: version %s after %s", tc.reason, got.ResourceVersion, before)
			}
			told := ""
			if len(s.events.Events) > 0 {
				told = <-s.events.Events
			}
			named := strings.Contains(told, "/commit_status:update") && strings.Contains(told, "/revision:"+revision)
			if (told == "") != (tc.told == "") || !strings.HasPrefix(told, tc.told) || told != "" && !named || len(s.events.Events) > 0 {
				t.Errorf("%s: told %q, want %q", tc.reason, told, tc.told)
			}
			after := time.Hour
			if tc.kept == waits {
				after = ofClusterPoll
			}
			if end.result.RequeueAfter != after {
				t.Errorf("%s: looked at again after %s", tc.reason, end.result.RequeueAfter)
			}
			if says := apimeta.FindStatusCondition(got.Status.Conditions, meta.ReadyCondition).Message; says != "Applied revision: "+tc.kept {
				t.Errorf("%s: Ready says %q", tc.reason, says)
			}
			if tc.waits != nil && tc.told != "" && !strings.Contains(told, "Secret/apps/keys, with keys of AWSCluster/apps/prod") {
				t.Errorf("%s: told %q", tc.reason, told)
			}
		})
	}
	s := take(t, shop(nil))
	if end := s.failed(t.Context(), s.run, meta.BuildFailedReason, errors.New("no such file")); end.result.RequeueAfter != time.Minute || len(s.Obj.Status.History) != 0 {
		t.Errorf("a failure before applying: %+v, history %v", end, s.Obj.Status.History)
	}
	if c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, meta.ReadyCondition); !strings.Contains(c.Message, "no such file") {
		t.Errorf("the failure is not told: %v", c)
	}
}
