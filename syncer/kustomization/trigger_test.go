package kustomization

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/auth"
	"github.com/fluxcd/pkg/cache"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/syncer/depend"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// enqueued is a queue that notes what comes, in its order.
type enqueued struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	all []turn
}

type turn struct {
	name     string
	priority int
	after    time.Duration
}

func (e *enqueued) AddWithOpts(o priorityqueue.AddOpts, items ...reconcile.Request) {
	for _, item := range items {
		e.all = append(e.all, turn{item.Name, *o.Priority, o.After})
	}
}

// TestNotes: of many Kustomizations on a source, those that read what a commit changed
// come at once, those that others wait for as well, and the rest one after the other.
func TestNotes(t *testing.T) {
	const many = 200
	scheme := runtime.NewScheme()
	if err := kustomizev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var objects []client.Object
	r := &Reconciler{Sources: &find.Finder{Snapshots: source.NewSnapshots()}, Now: time.Now}
	for n := range many {
		k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: fmt.Sprint("app-", n)}}
		k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.GitRepositoryKind, Name: "git"}
		if n == 1 {
			k.Spec.DependsOn = []kustomizev1.DependencyReference{{Name: "app-2"}}
		}
		objects = append(objects, k)
		if n > 1 {
			r.known.of(client.ObjectKeyFromObject(k)).rendered = &rendered{reads: &render.ReadSet{}}
		}
	}
	r.Client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&kustomizev1.Kustomization{}, wake.SourceIndex, func(o client.Object) []string {
			return []string{wake.SourceKey(sourceKey(o.(*kustomizev1.Kustomization)))}
		}).
		WithIndex(&kustomizev1.Kustomization{}, wake.DependencyIndex, func(o client.Object) []string {
			return depend.Keys(dependencies(o.(*kustomizev1.Kustomization)))
		}).Build()
	queue := &enqueued{}
	if err := r.onSnapshot(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	r.Sources.Snapshots.Put(source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: types.NamespacedName{Namespace: "apps", Name: "git"}}, &source.Snapshot{})
	if len(queue.all) != many {
		t.Fatalf("%d are enqueued, want all of %d once", len(queue.all), many)
	}
	prompt, last := 0, time.Duration(0)
	for _, e := range queue.all {
		changed := e.name == "app-0" || e.name == "app-1"
		switch {
		case changed != (e.priority == wake.PriorityChanged), changed && e.after != 0, !changed && e.priority != wake.PriorityUnchanged:
			t.Errorf("%+v: it changed: %t", e, changed)
		case e.name == "app-2" && e.after != 0:
			t.Errorf("%+v: another waits for it", e)
		case !changed && e.after == 0:
			prompt++
		case e.after > 0 && e.after < noteCalm, e.after > noteCalm+many*notePause:
			t.Errorf("%+v comes at the wrong time", e)
		}
		last = max(last, e.after)
	}
	if prompt < notesAtOnce || prompt > notesAtOnce+1 || last < noteCalm+many/2*notePause {
		t.Errorf("%d come at once, the last after %s", prompt, last)
	}
}

// TestOnGenerator: who applies what a generator makes is woken when that begins to fail.
func TestOnGenerator(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kustomizev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	of := func(name, artifact string) *kustomizev1.Kustomization {
		k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}}
		k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.ExternalArtifactKind, Name: artifact}
		return k
	}
	r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(of("shop", "part"), of("other", "theirs")).
		WithIndex(&kustomizev1.Kustomization{}, wake.SourceIndex, func(o client.Object) []string {
			return []string{wake.SourceKey(sourceKey(o.(*kustomizev1.Kustomization)))}
		}).Build()}
	good := &generatorv1.ArtifactGenerator{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "parts"}}
	good.Status.Inventory = []generatorv1.ExternalArtifactReference{{Namespace: "apps", Name: "part"}}
	bad := good.DeepCopy()
	status.MarkFailing(bad, meta.BuildFailedReason, errors.New("x"))
	queue := &enqueued{}
	r.onGenerator(t.Context(), event.UpdateEvent{ObjectOld: good, ObjectNew: bad}, queue)
	r.onGenerator(t.Context(), event.UpdateEvent{ObjectOld: bad, ObjectNew: bad}, queue)
	if want := (turn{"shop", wake.PriorityUnchanged, sourceGrace}); len(queue.all) != 1 || queue.all[0] != want {
		t.Errorf("enqueued are %+v, want %+v", queue.all, want)
	}
}

func TestBecameReady(t *testing.T) {
	made := func(change func(*kustomizev1.Kustomization)) *kustomizev1.Kustomization {
		k := &kustomizev1.Kustomization{}
		status.MarkReady(k, "ReconciliationSucceeded", "")
		k.Status.LastAppliedRevision, k.Status.ObservedGeneration = "1", 1
		change(k)
		return k
	}
	same := func(*kustomizev1.Kustomization) {}
	unready := func(k *kustomizev1.Kustomization) { status.MarkFailing(k, "BuildFailed", errors.New("x")) }
	for name, tc := range map[string]struct {
		reason        string
		before, after func(*kustomizev1.Kustomization)
		want          bool
	}{
		"Ready":    {"dependants may go on", unready, same, true},
		"Revision": {"ready all the time, but now of the new revision", same, func(k *kustomizev1.Kustomization) { k.Status.LastAppliedRevision = "2" }, true},
		"Observed": {"ready all the time, but now of the new generation", same, func(k *kustomizev1.Kustomization) { k.Status.ObservedGeneration = 2 }, true},
		"Same":     {"nothing new", same, same, false},
		"Broken":   {"nobody can go on because of a failure", same, unready, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := becameReady(made(tc.before), made(tc.after)); got != tc.want {
				t.Errorf("%s\nbecameReady() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

// TestLeft: of a Kustomization that other labels make another agent's nothing is kept, and
// nobody looks at it again.
func TestLeft(t *testing.T) {
	s := take(t, shop(nil))
	s.Sources.Shard = func(client.Object) bool { return false }
	result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.Obj)})
	if known := len(s.Reconciler.known.progress); err != nil || !result.IsZero() || known > 0 {
		t.Errorf("again after %s, known are %d, %v", result.RequeueAfter, known, err)
	}
}

// TestMadeAgain: what is known of a Kustomization is not believed of another one of its name.
func TestMadeAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		before types.UID
		keeps  bool
	}{
		"Same":  {"it is the one that was reconciled", "two", true},
		"Other": {"it was deleted and made again, and nobody saw it gone", "one", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(k *kustomizev1.Kustomization) { k.UID, k.Spec.Suspend = "two", true }))
			key := client.ObjectKeyFromObject(s.Obj)
			before := s.Reconciler.known.of(key)
			before.isOf(tc.before)
			for range 2 {
				if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
			}
			if keeps := s.Reconciler.known.of(key) == before; keeps != tc.keeps || !s.Reconciler.known.of(key).isOf("two") {
				t.Errorf("%s: what was known is kept: %t", tc.reason, keeps)
			}
		})
	}
}

// TestTokenMetrics: the tokens that were asked for to decrypt for a Kustomization have no metrics
// once it is gone.
func TestTokenMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	tokens, err := cache.NewTokenCache(10, cache.WithMetricsRegisterer(registry), cache.WithMetricsPrefix("gotk_token_"))
	if err != nil {
		t.Fatal(err)
	}
	s := take(t, shop(nil))
	s.Rules.Decryption.Tokens = tokens
	for _, operation := range []string{
		kustomizev1.MetricDecryptWithAWS, kustomizev1.MetricDecryptWithAzure, kustomizev1.MetricDecryptWithGCP, kustomizev1.MetricDecryptWithVault,
	} {
		for _, name := range []string{"gone", "shop"} {
			involved := cache.WithInvolvedObject(kustomizev1.KustomizationKind, name, "apps", operation)
			if _, _, err := tokens.GetOrSet(t.Context(), "key", func(context.Context) (cache.Token, error) { return &auth.GitCredentials{}, nil }, involved); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "apps", Name: "gone"}}); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(registry, "gotk_token_cache_events_total"); n != 4 || err != nil {
		t.Errorf("%d series, %v; want those of the other Kustomization", n, err)
	}
}
