package pivot

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

var (
	clusterA     = types.NamespacedName{Namespace: "fleet", Name: "a"}
	templateKind = schema.GroupKind{Group: infrastructure, Kind: "ModelClusterTemplate"}
	recordKey    = key{schema.GroupKind{Kind: "ConfigMap"}, types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}}
)

// change changes an object of a side, as somebody else would.
func (m *memory) change(k key, f func(u *unstructured.Unstructured)) {
	u := m.objects[k].DeepCopy()
	f(u)
	m.put(u)
}

func (w *world) side(name string) Side {
	return Side{Name: name, Client: &process{memory: w.sides[name], world: w, life: &life{}}, Namespace: v1alpha1.AgentNamespace}
}

// blockedBy fails unless an error names a reason.
func blockedBy(t *testing.T, err error, reason string) {
	t.Helper()
	var blocked *BlockedError
	if !errors.As(err, &blocked) || !slices.ContainsFunc(blocked.Problems, func(p Problem) bool { return p.Reason == reason }) {
		t.Fatalf("got %v, want %s", err, reason)
	}
}

// TestCopyDeleted: somebody deletes a copy before it is let go. Let go, the target's
// controllers would take the cluster down.
func TestCopyDeleted(t *testing.T) {
	w := newWorld(t, 1)
	p := w.pivot("mom", "master", &life{})
	tell := p.Tell
	p.Tell = func(e Event) {
		tell(e)
		if e.Step == Verify && e.Action == "" && e.Waits == "" {
			if err := w.sides["master"].delete(key{clusterKind, clusterA}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := p.Run(t.Context())
	blockedBy(t, err, ReasonClusterDeleting)
	if _, err := w.pivot("mom", "master", &life{}).Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.at("mom", "master")
}

// TestPartDeleted: a part of the Cluster, or the Cluster, begins to be deleted while a pivot is on
// its way. Nobody takes it down while the Cluster is paused, so that the source gets the Cluster
// back, and the deletion is over before the next one begins: it is not lost either.
func TestPartDeleted(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		step   Step
		action Verb
		of     key
	}{
		"Paused":  {"a rollout chose the machine while the pause was on its way", Freeze, Pause, key{machineKind, types.NamespacedName{Namespace: "fleet", Name: "a-old"}}},
		"Copied":  {"a person deletes what is copied", Copy, Make, key{machineKind, types.NamespacedName{Namespace: "fleet", Name: "a-old"}}},
		"Cluster": {"a person deletes the Cluster", Copy, Make, key{clusterKind, clusterA}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.deletes = tt.of.kind == clusterKind
			mom := w.sides["mom"]
			old := modelObject(clusterapi.Group+"/v1beta2", "Machine", "a-old", mom.objects[key{clusterKind, clusterA}])
			old.Object["spec"] = map[string]any{"clusterName": "a"}
			old.Object["status"] = map[string]any{"nodeRef": map[string]any{"name": "old"}}
			old.SetFinalizers([]string{"machine.cluster.x-k8s.io"})
			mom.put(old)
			p := w.pivot("mom", "master", &life{})
			tell, deleted := p.Tell, false
			p.Tell = func(e Event) {
				if tell(e); deleted || e.Step != tt.step || !strings.HasPrefix(e.Action, string(tt.action)+" ") {
					return
				}
				deleted = true
				if err := mom.delete(tt.of, nil); err != nil {
					t.Fatal(err)
				}
			}
			// turned back, it is the controllers' again
			j, err := p.Run(t.Context())
			if blockedBy(t, err, ReasonClusterDeleting); !deleted || j.Step != Aborted {
				t.Fatalf("%s: at step %s, %v", tt.reason, j.Step, err)
			}
			if mom.objects[tt.of].GetDeletionTimestamp() == nil || clusterapi.IsPaused(mom.objects[key{clusterKind, clusterA}]) || len(w.sides["master"].objects) > len(mom.objects) {
				t.Fatalf("%s: the source did not get it back", tt.reason)
			}
			for k := range w.sides["master"].objects {
				if k.kind == clusterKind || k.kind == machineKind {
					t.Errorf("%s: the target still has %v", tt.reason, k)
				}
			}
			j, err = w.pivot("mom", "master", &life{}).Run(t.Context())
			if blockedBy(t, err, ReasonClusterDeleting); j.Step != "" {
				t.Fatalf("%s: another one is begun before it is gone: step %s", tt.reason, j.Step)
			}
			if tt.of.kind == clusterKind {
				return
			}
			mom.change(tt.of, func(u *unstructured.Unstructured) { u.SetFinalizers(nil) })
			mom.gone(tt.of)
			if _, err := w.pivot("mom", "master", &life{}).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.at("master", "mom")
			if w.sides["master"].objects[tt.of] != nil {
				t.Errorf("%s: it lives on in the target", tt.reason)
			}
		})
	}
}

// TestRolls: a Cluster says that its machines are being replaced as long as some are not up to date,
// as with strategy OnDelete, a MachineDeployment that is paused or a remediation that is put off,
// where nothing happens for weeks. It is moved; what is deleted meanwhile turns the pivot back.
func TestRolls(t *testing.T) {
	for _, condition := range []string{"RollingOut", "Remediating"} {
		w := newWorld(t, 1)
		w.sides["mom"].change(key{clusterKind, clusterA}, func(u *unstructured.Unstructured) {
			_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"type": condition, "status": "True"}}, "status", "conditions")
		})
		if _, err := w.pivot("mom", "master", &life{}).Run(t.Context()); err != nil {
			t.Fatalf("%s: %v", condition, err)
		}
		w.at("master", "mom")
	}
}

// TestPausesAlone: controllers of a class and of a ClusterResourceSet go by the annotation of these
// alone. Nobody waits for them to say that they have stopped, a copy is theirs once it is let go, and
// none acts on what is taken away.
func TestPausesAlone(t *testing.T) {
	class := key{schema.GroupKind{Group: clusterapi.Group, Kind: clusterapi.ClusterClass}, types.NamespacedName{Namespace: "fleet", Name: "own"}}
	set := key{schema.GroupKind{Group: clusterapi.AddonsGroup, Kind: clusterapi.ClusterResourceSet}, types.NamespacedName{Namespace: "fleet", Name: "cni"}}
	binding := key{schema.GroupKind{Group: clusterapi.AddonsGroup, Kind: clusterapi.ClusterResourceSetBinding}, clusterA}
	for name, tt := range map[string]struct {
		reason string
		// paused is the annotation that they have in the source.
		paused string
		labels map[string]string
		aborts bool
		// older: an agent of the target that knows nothing of the annotation ends the pivot.
		older bool
	}{
		"Goes":        {reason: "nothing but the Cluster uses them"},
		"Labels":      {reason: "they say whose they are", labels: map[string]string{clusterapi.ClusterNameLabel: "a"}},
		"Paused":      {reason: "what a person paused stays so", paused: "by hand"},
		"Aborted":     {reason: "the source has them as they were, and the target nothing", aborts: true},
		"OlderKeeper": {reason: "whoever comes after one that left the annotation takes it away", older: true},
		"OlderPivot":  {reason: "what an earlier pivot left paused is nobody's wish", paused: "0123456789-3"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			mom, master := w.sides["mom"], w.sides["master"]
			for _, m := range w.sides {
				for _, kind := range []schema.GroupKind{set.kind, binding.kind} {
					m.serves[kind] = true
					m.put(definition(kind.Group, kind.Kind))
				}
			}
			running := map[string]any{"conditions": []any{map[string]any{"type": "Paused", "status": "False"}}}
			own, cni := modelObject(clusterapi.Group+"/v1beta2", clusterapi.ClusterClass, "own", nil), modelObject(clusterapi.AddonsGroup+"/v1", clusterapi.ClusterResourceSet, "cni", nil)
			for _, u := range []*unstructured.Unstructured{own, cni} {
				u.Object["status"] = running
				u.SetLabels(tt.labels)
				if tt.paused != "" {
					u.SetAnnotations(map[string]string{clusterapi.PausedAnnotation: tt.paused})
				}
			}
			mom.put(own)
			cni = mom.put(cni)
			bound := modelObject(clusterapi.AddonsGroup+"/v1", clusterapi.ClusterResourceSetBinding, "a", cni)
			bound.Object["spec"] = map[string]any{"clusterName": "a"}
			owner := mom.objects[key{clusterKind, clusterA}]
			bound.SetOwnerReferences(append(bound.GetOwnerReferences(), metav1.OwnerReference{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID()}))
			mom.put(bound)
			mom.change(key{clusterKind, clusterA}, func(u *unstructured.Unstructured) {
				_ = unstructured.SetNestedField(u.Object, "own", "spec", "topology", "classRef", "name")
			})
			l := &life{}
			p := w.pivot("mom", "master", l)
			tell := p.Tell
			p.Tell = func(e Event) {
				tell(e)
				l.dead = tt.aborts && e.Step == Verify
				if tt.older && e.Step == Unpause && master.objects[class].GetAnnotations()[v1alpha1.PivotAnnotation] != "" {
					if finished, err := Finish(t.Context(), w.side("master")); err != nil || len(finished) != 1 {
						t.Fatalf("%s: finished %v: %v", tt.reason, finished, err)
					}
					for _, k := range []key{class, set} {
						master.change(k, func(u *unstructured.Unstructured) {
							u.SetAnnotations(map[string]string{clusterapi.PausedAnnotation: p.journal.ID})
						})
					}
				}
				for _, k := range []key{class, set} {
					if u := master.objects[k]; u != nil && !clusterapi.IsPaused(u) && (e.Step.Revocable() || e.Step == Switch) {
						t.Fatalf("%s: a controller acts on the copy %s at step %s", tt.reason, u.GetName(), e.Step)
					}
					if u := mom.objects[k]; u != nil && !clusterapi.IsPaused(u) && mom.objects[binding] == nil {
						t.Fatalf("%s: a controller acts on %s of the source, which is taken away", tt.reason, u.GetName())
					}
				}
			}
			j, err := p.Run(t.Context())
			if tt.aborts {
				if master.objects[class] == nil || !errors.Is(err, errKilled) {
					t.Fatalf("%s: nothing is to be turned back: %v", tt.reason, err)
				}
				j, err = w.pivot("mom", "master", &life{}).Abort(t.Context())
			}
			if err != nil {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			from, to := mom, master
			if tt.aborts {
				from, to = master, mom
			}
			if want := map[bool]Step{false: Done, true: Aborted}[tt.aborts]; j.Step != want {
				t.Fatalf("%s: the pivot is at step %s", tt.reason, j.Step)
			}
			for _, k := range []key{class, set} {
				if from.objects[k] != nil {
					t.Errorf("%s: %s still has %s", tt.reason, from.name, k.name)
				}
				u := to.objects[k]
				if u == nil {
					t.Fatalf("%s: %s does not have %s", tt.reason, to.name, k.name)
				}
				value, paused := u.GetAnnotations()[clusterapi.PausedAnnotation]
				if paused != (tt.paused == "by hand") || paused && value != "by hand" {
					t.Errorf("%s: %s has annotations %v", tt.reason, k.name, u.GetAnnotations())
				}
			}
		})
	}
}

// TestKeptForOthers: a template that a pivot left behind, as another Cluster uses it, was
// changed since. It is not overwritten when the first Cluster comes back.
func TestKeptForOthers(t *testing.T) {
	w := newWorld(t, 1)
	mom, template := w.sides["mom"], key{templateKind, types.NamespacedName{Namespace: "fleet", Name: "template"}}
	mom.change(template, func(u *unstructured.Unstructured) {
		refs := u.GetOwnerReferences()
		for _, name := range modelClusters() {
			c := mom.objects[key{clusterKind, name}]
			refs = append(refs, metav1.OwnerReference{APIVersion: c.GetAPIVersion(), Kind: c.GetKind(), Name: c.GetName(), UID: c.GetUID()})
		}
		u.SetOwnerReferences(refs)
	})
	if _, err := w.pivot("mom", "master", &life{}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.at("master", "mom")
	if mom.objects[template].GetAnnotations()[v1alpha1.PivotKeptAnnotation] == "" {
		t.Fatal("the template was not left behind")
	}
	mom.change(template, func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"size": "large"} })
	w.sides["master"].change(template, func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"size": "small"} })
	_, err := w.pivot("master", "mom", &life{}).Run(t.Context())
	blockedBy(t, err, ReasonSharedDiffers)
	p := w.pivot("master", "mom", &life{})
	p.Tolerated = []string{ReasonSharedDiffers}
	if _, err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.at("mom", "master")
	if size, _, _ := unstructured.NestedString(mom.objects[template].Object, "spec", "size"); size != "large" {
		t.Errorf("the template of Cluster b has size %s now", size)
	}
}

// TestPausedByOthers: what a person paused stays so, in the way in which it was paused, also
// if that comes between the first look and the pause of the pivot.
func TestPausedByOthers(t *testing.T) {
	cluster := key{clusterKind, clusterA}
	for name, tt := range map[string]struct {
		reason    string
		pause     func(u *unstructured.Unstructured)
		meanwhile bool
		spec      bool
	}{
		"Spec":      {"the field stays", func(u *unstructured.Unstructured) { u.Object["spec"].(map[string]any)["paused"] = true }, false, true},
		"Meanwhile": {"it is not the pivot's to take back", func(u *unstructured.Unstructured) { u.Object["spec"].(map[string]any)["paused"] = true }, true, true},
		"Annotation": {"who takes the annotation away has it go on", func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{clusterapi.PausedAnnotation: ""})
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.declares = nil // nobody takes the pause away
			p := w.pivot("mom", "master", &life{})
			p.Tolerated = []string{ReasonClusterPaused}
			if tt.meanwhile {
				tell := p.Tell
				p.Tell = func(e Event) {
					if tell(e); e.Step == Freeze && e.Action == "" && e.Waits == "" {
						w.sides["mom"].change(cluster, tt.pause)
					}
				}
			} else {
				w.sides["mom"].change(cluster, tt.pause)
			}
			if _, err := p.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			c := w.sides["master"].objects[cluster]
			if !clusterapi.IsPaused(c) || clusterapi.IsPausedBySpec(c) != tt.spec {
				t.Errorf("%s: got spec.paused %t, annotations %v", tt.reason, clusterapi.IsPausedBySpec(c), c.GetAnnotations())
			}
		})
	}
}

// TestStaleRecord: a change of a record is held to what was read. A process that was stopped
// does not take back what a later pivot wrote.
func TestStaleRecord(t *testing.T) {
	w := newWorld(t, 1)
	p := w.pivot("mom", "master", &life{})
	p.journal.ID = "p1"
	read, _, err := recordOf(t.Context(), p.Target)
	if err != nil {
		t.Fatal(err)
	}
	w.sides["master"].change(recordKey, func(u *unstructured.Unstructured) {
		cm := &corev1.ConfigMap{}
		fill(cm, u)
		firstsync.ManageElsewhere(cm, "p2", clusterA)
		u.Object = content(cm).Object
	})
	if err := p.do(t.Context(), Action{Verb: Take, Clusters: []types.NamespacedName{clusterA}, Record: read}); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	after, _, err := recordOf(t.Context(), p.Target)
	if err != nil || firstsync.ManagedBy(after, clusterA) != "p2" {
		t.Errorf("the record says %q, %v", firstsync.ManagedBy(after, clusterA), err)
	}
}

// hooked calls a function once, before an object of a name is read.
type hooked struct {
	client.Client
	name   string
	before func()
}

func (h *hooked) Get(ctx context.Context, name client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if f := h.before; f != nil && name.Name == h.name {
		h.before = nil
		f()
	}
	return h.Client.Get(ctx, name, o, options...)
}

// TestFinishLate: the agent that finishes a pivot was held up, and the Cluster is back by
// then. Its record says so still, so that nobody builds it again there.
func TestFinishLate(t *testing.T) {
	there := &life{}
	if _, err := newWorld(t, 1).pivot("mom", "master", there).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for call := 1; call <= there.calls; call += stride() {
		w := newWorld(t, 1)
		if _, err := w.pivot("mom", "master", &life{killAt: call, after: true}).Run(t.Context()); !errors.Is(err, errKilled) {
			continue
		}
		if j, err := Journals(t.Context(), w.side("master").Client, v1alpha1.AgentNamespace); err != nil || len(j[Target]) == 0 || j[Target][0].Step != Switch {
			continue
		}
		tried++
		side := w.side("master")
		side.Client = &hooked{Client: side.Client, name: v1alpha1.FirstSyncConfigMap, before: func() {
			for _, d := range [][2]string{{"mom", "master"}, {"master", "mom"}} {
				if _, err := w.pivot(d[0], d[1], &life{}).Run(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			w.at("mom", "master")
		}}
		if _, err := Finish(t.Context(), side); err != nil {
			t.Fatal(err)
		}
		record, _, err := recordOf(t.Context(), w.side("master"))
		if err != nil || firstsync.ManagedBy(record, clusterA) == "" {
			t.Fatalf("call %d: the record does not say that the Cluster is elsewhere: %v", call, err)
		}
	}
	if tried == 0 {
		t.Error("no kill left a pivot to finish")
	}
}

func foreignJournal(name, text string) *unstructured.Unstructured {
	return content(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: name, Labels: map[string]string{v1alpha1.PivotLabel: string(Target)}},
		Data:       map[string]string{journalKey: text},
	})
}

// TestUnreadJournals: one that a later version wrote, or that somebody broke, does not keep
// the Clusters of others from being let go.
func TestUnreadJournals(t *testing.T) {
	for name, tt := range map[string]struct {
		reason, text string
		fails        bool
	}{
		"Newer":  {"its own version looks after it", `{"format": 99}`, false},
		"Broken": {"it is told", `{"form`, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			p := w.pivot("mom", "master", &life{})
			tell := p.Tell
			p.Tell = func(e Event) {
				if tell(e); e.Step == Unpause && e.Action == "" {
					p.Source.Client.(*process).life.dead = true
				}
			}
			if _, err := p.Run(t.Context()); !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			w.sides["master"].put(foreignJournal("cascade-pivot.target.foreign", tt.text))
			finished, err := Finish(t.Context(), w.side("master"))
			if len(finished) != 1 || (err != nil) != tt.fails {
				t.Errorf("%s: finished %v, %v", tt.reason, finished, err)
			}
			if clusterapi.IsPaused(w.sides["master"].objects[key{clusterKind, clusterA}]) {
				t.Errorf("%s: the Cluster is not let go", tt.reason)
			}
		})
	}
}

// TestTooMany: a journal that would not hold all objects is found out before anything is
// paused.
func TestTooMany(t *testing.T) {
	w := newWorld(t, 1)
	mom := w.sides["mom"]
	owner := mom.objects[key{clusterKind, clusterA}]
	for i := range 2500 {
		machine := modelObject(clusterapi.Group+"/v1beta2", "Machine", fmt.Sprintf("a-%s-%d", strings.Repeat("x", 240), i), owner)
		machine.Object["spec"] = map[string]any{"clusterName": "a"}
		machine.Object["status"] = map[string]any{"nodeRef": map[string]any{"name": "n"}}
		mom.put(machine)
	}
	_, err := w.pivot("mom", "master", &life{}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "move fewer Clusters") {
		t.Fatalf("got %v", err)
	}
	if clusterapi.IsPaused(mom.objects[key{clusterKind, clusterA}]) {
		t.Error("the Cluster is paused, and nothing can go on")
	}
}

// oneInformer is a cache that has one informer.
type oneInformer struct {
	informertest.FakeInformers
	informer ctrlcache.Informer
}

func (c *oneInformer) GetInformer(context.Context, client.Object, ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return c.informer, nil
}

// handedOut tells of the handler that it is given.
type handedOut struct {
	ctrlcache.Informer
	handler chan toolscache.ResourceEventHandler
}

func (i *handedOut) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.handler <- h
	return i.Informer.AddEventHandler(h)
}

// TestKeeperWaits: the process that drives a pivot has its time to let go of the copies, as it
// knows whose fields they had. When it is gone, the agent does.
func TestKeeperWaits(t *testing.T) {
	w := newWorld(t, 1)
	p := w.pivot("mom", "master", &life{})
	tell := p.Tell
	p.Tell = func(e Event) {
		if tell(e); e.Step == Unpause && e.Action == "" {
			p.Source.Client.(*process).life.dead = true
		}
	}
	if _, err := p.Run(t.Context()); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{}
	for k, u := range w.sides["master"].objects {
		if strings.HasPrefix(k.name.Name, journalPrefix) {
			fill(cm, u)
		}
	}
	informer := &handedOut{Informer: &controllertest.FakeInformer{}, handler: make(chan toolscache.ResourceEventHandler, 1)}
	asked, fire := make(chan time.Duration, 1), make(chan time.Time)
	keeper := &Keeper{Side: w.side("master"), Journals: &oneInformer{informer: informer}, After: func(d time.Duration) <-chan time.Time {
		select {
		case asked <- d:
		default: // the first counts
		}
		return fire
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- keeper.Start(ctx) }()
	cluster := key{clusterKind, clusterA}
	handler := <-informer.handler
	handler.OnAdd(cm, false)
	if first := <-asked; first != keepPatience {
		t.Errorf("it waits %s", first)
	}
	// The process that drives it renews the journal: it has as long again.
	handler.OnUpdate(cm, cm)
	select {
	case more := <-asked:
		if more != keepPatience {
			t.Errorf("it waits for %s more", more)
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not wait for a process that goes on")
	}
	if !clusterapi.IsPaused(w.sides["master"].objects[cluster]) {
		t.Error("it did not wait")
	}
	fire <- time.Time{}
	// It comes to the next pause, or the end, when it has finished.
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if clusterapi.IsPaused(w.sides["master"].objects[cluster]) {
		t.Error("the Cluster is not let go")
	}
}

// TestKeeperEnds: one that takes the journal each time and gets no further does not keep the
// Clusters paused for ever.
func TestKeeperEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cm, err := (Journal{Format: format, ID: "p1", Step: Switch}).encode(v1alpha1.AgentNamespace, Target)
		if err != nil {
			t.Fatal(err)
		}
		informer := &handedOut{Informer: &controllertest.FakeInformer{}, handler: make(chan toolscache.ResourceEventHandler, 1)}
		asked := 0
		w := newWorld(t, 1)
		keeper := &Keeper{Side: w.side("master"), Journals: &oneInformer{informer: informer}, After: func(time.Duration) <-chan time.Time {
			asked++
			return make(chan time.Time)
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- keeper.Start(ctx) }()
		handler := <-informer.handler
		for range 2 * mostWaits {
			handler.OnUpdate(cm, cm)
			synctest.Wait()
		}
		cancel()
		if err := <-ended; err != nil || asked != mostWaits {
			t.Errorf("the end was put off %d times, want %d: %v", asked, mostWaits, err)
		}
	})
}

// TestRenewedThere: letting go of many copies takes longer than the target's agent waits. It is told
// that somebody does it, who has the field owners of the source.
func TestRenewedThere(t *testing.T) {
	w := newWorld(t, 1)
	p := w.pivot("mom", "master", &life{})
	now, letting := p.Now, false
	p.Now = func() time.Time {
		if letting {
			w.now = w.now.Add(holds / 6)
		}
		return now()
	}
	seen := func() string {
		for k, u := range w.sides["master"].objects {
			if strings.HasPrefix(k.name.Name, journalPrefix) {
				cm := &corev1.ConfigMap{}
				fill(cm, u)
				if j, err := decode(cm); err != nil || j.Step != Switch {
					t.Fatalf("the target's journal is at step %s, %v", j.Step, err)
				}
				return u.GetResourceVersion()
			}
		}
		return ""
	}
	tell := p.Tell
	var before, last string
	var since time.Time
	p.Tell = func(e Event) {
		tell(e)
		switch {
		case e.Step == Unpause && e.Action == "":
			letting, before, since = true, seen(), w.now
			last = before
		case e.Step == Unpause:
			if is := seen(); is != last {
				last, since = is, w.now
			}
			if silent := w.now.Sub(since); silent >= keepPatience {
				t.Errorf("the target hears nothing for %s", silent)
			}
		case e.Step == Release:
			letting = false
		}
	}
	if _, err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if last == before {
		t.Error("the target is not told that somebody lets go of the copies")
	}
	w.at("master", "mom")
}

// TestSecretElsewhere: whoever writes a Cluster may have it refer to a Secret that is not his. A
// pivot that is declared does not bring it to him; a person who may read it does.
func TestSecretElsewhere(t *testing.T) {
	w := newWorld(t, 1)
	mom := w.sides["mom"]
	mom.put(content(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "others"}}))
	secret := modelObject("v1", "Secret", "password", nil)
	secret.SetNamespace("others")
	mom.put(secret)
	mom.change(key{infraKind, clusterA}, func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedMap(u.Object, map[string]any{"name": "password", "namespace": "others"}, "spec", "secretRef")
	})
	is := key{schema.GroupKind{Kind: "Secret"}, types.NamespacedName{Namespace: "others", Name: "password"}}
	p := w.pivot("mom", "master", &life{})
	p.Own = true
	_, err := p.Run(t.Context())
	blockedBy(t, err, ReasonSecretElsewhere)
	if clusterapi.IsPaused(mom.objects[key{clusterKind, clusterA}]) || w.sides["master"].objects[is] != nil {
		t.Error("something was begun")
	}

	// Nor if the reference comes later.
	ref := func(set bool) {
		mom.change(key{infraKind, clusterA}, func(u *unstructured.Unstructured) {
			if unstructured.RemoveNestedField(u.Object, "spec", "secretRef"); set {
				_ = unstructured.SetNestedMap(u.Object, map[string]any{"name": "password", "namespace": "others"}, "spec", "secretRef")
			}
		})
	}
	ref(false)
	p = w.pivot("mom", "master", &life{})
	p.Own = true
	tell := p.Tell
	p.Tell = func(e Event) {
		if tell(e); e.Step == Copy && e.Action == "" {
			ref(true)
		}
	}
	_, err = p.Run(t.Context())
	blockedBy(t, err, ReasonSecretElsewhere)
	if w.sides["master"].objects[is] != nil {
		t.Error("the Secret was copied")
	}

	if _, err := w.pivot("mom", "master", &life{}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.at("master", "mom")
	if w.sides["master"].objects[is] == nil || mom.objects[is] == nil {
		t.Error("a person's pivot did not copy it")
	}
}

// TestObjectElsewhere: a Cluster may refer to any object. A pivot that is declared makes in the parent nothing that is not of its
// namespace, brings to the child what each Cluster may use, and takes nothing of others away (read 840).
func TestObjectElsewhere(t *testing.T) {
	identityKind := schema.GroupKind{Group: infrastructure, Kind: "ModelIdentity"}
	classKind := schema.GroupKind{Group: clusterapi.Group, Kind: clusterapi.ClusterClass}
	for name, tt := range map[string]struct {
		reason string
		kind   schema.GroupKind
		global bool
		// ours: it is the tier of the agent that gives the Cluster to the child.
		ours bool
		// there: the target has one of the name, with these annotations.
		there       bool
		annotations map[string]string
		moved       bool
	}{
		"Machine":   {reason: "the parent would add it to the cluster of another team", kind: machineKind},
		"Template":  {reason: "machines of another team would be made after it", kind: templateKind},
		"Class":     {reason: "so would clusters", kind: classKind},
		"Identity":  {reason: "any namespace could use it", kind: identityKind, global: true},
		"OurPart":   {reason: "the child would be told what is in it", kind: machineKind, ours: true},
		"OurSample": {reason: "and so of a template that no class shows", kind: templateKind, ours: true},
		"OurClass":  {reason: "any Cluster may use it", kind: classKind, ours: true, moved: true},
		"OurKeys":   {reason: "any Cluster may use one without a namespace", kind: identityKind, global: true, ours: true, moved: true},
		"There":     {reason: "it is used as it is", kind: machineKind, there: true, moved: true},
		"Left":      {reason: "also where a former pivot left it", kind: machineKind, there: true, annotations: map[string]string{v1alpha1.PivotKeptAnnotation: "0123456789-1"}, moved: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			from, to := w.sides["mom"], w.sides["master"]
			for _, m := range w.sides {
				m.serves[identityKind] = true
				m.put(definition(identityKind.Group, identityKind.Kind))
			}
			from.put(content(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "others"}}))
			version := tt.kind.Group + "/v1"
			if tt.kind.Group == clusterapi.Group {
				version = clusterapi.Group + "/v1beta2"
			}
			u, ref := modelObject(version, tt.kind.Kind, "x", nil), map[string]any{"kind": tt.kind.Kind, "name": "x", "namespace": "others"}
			if u.SetNamespace("others"); tt.global {
				u.SetNamespace("")
				delete(ref, "namespace")
			}
			u.Object["spec"] = map[string]any{"clusterName": "prod"} // there is none in this tier
			u.Object["status"] = map[string]any{"nodeRef": map[string]any{"name": "n"}}
			is := keyOf(u)
			if tt.there {
				to.put(content(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "others"}}))
				live := u.DeepCopy()
				live.SetAnnotations(tt.annotations)
				live.Object["spec"] = map[string]any{"clusterName": "theirs"}
				to.put(live)
			}
			made := []key{is}
			if u = from.put(u); tt.kind == classKind {
				template := modelObject(infrastructure+"/v1", templateKind.Kind, "of-x", u)
				template.SetNamespace("others")
				made = append(made, keyOf(from.put(template)))
			}
			from.change(key{infraKind, clusterA}, func(u *unstructured.Unstructured) { _ = unstructured.SetNestedMap(u.Object, ref, "spec", "extra") })
			p := w.pivot("mom", "master", &life{})
			if p.Own = true; tt.ours {
				p.Target.Kubeconfig = types.NamespacedName{Namespace: "fleet", Name: "a-kubeconfig"}
			}
			_, err := p.Run(t.Context())
			if !tt.moved {
				blockedBy(t, err, ReasonSecretElsewhere)
				w.at("mom", "master")
			} else if err != nil {
				t.Fatalf("%s: %v", tt.reason, err)
			} else {
				w.at("master", "mom")
			}
			for _, k := range made {
				if from.objects[k] == nil {
					t.Errorf("%s: %v was taken away", tt.reason, k)
				}
				if (to.objects[k] != nil) != tt.moved {
					t.Errorf("%s: the target has %v of %v", tt.reason, to.objects[k], k)
				}
			}
			if tt.there {
				if cluster, _, _ := unstructured.NestedString(to.objects[is].Object, "spec", "clusterName"); cluster != "theirs" {
					t.Errorf("%s: it is of %s now", tt.reason, cluster)
				}
			}
		})
	}
}

// TestHeld: what a child has is bounded in the memory of its parent, which others have a part in. What
// the tier has itself is not: it may have thousands of Clusters, and could move none of them.
func TestHeld(t *testing.T) {
	for name, tt := range map[string]struct {
		reason   string
		own      bool
		from, to types.NamespacedName
		want     string
	}{
		"Tier":   {"what is declared goes to the child, from the tier of who acts", true, types.NamespacedName{}, types.NamespacedName{Namespace: "fleet", Name: "a-kubeconfig"}, ""},
		"Child":  {"what is declared comes back from a child, which may be a stranger's", true, types.NamespacedName{Namespace: "fleet", Name: "a-kubeconfig"}, types.NamespacedName{}, "more than 384 MB"},
		"Person": {"a person has a process of his own", false, types.NamespacedName{Namespace: "fleet", Name: "a-kubeconfig"}, types.NamespacedName{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.sides["mom"].change(key{clusterKind, types.NamespacedName{Namespace: "fleet", Name: "b"}}, func(u *unstructured.Unstructured) {
				u.Object["x"] = slices.Repeat([]any{strings.Repeat("x", 1<<20)}, 400) // one string, which is counted 400 times
			})
			p := w.pivot("mom", "master", &life{})
			p.Own, p.Source.Kubeconfig, p.Target.Kubeconfig = tt.own, tt.from, tt.to
			_, err := p.Run(t.Context())
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s: got %v, want %q", tt.reason, err, tt.want)
			}
		})
	}
}

// smallPages is a client that is asked for few Secrets at a time with what is in them: each may have a
// megabyte and a half.
type smallPages struct {
	client.Client
	w     *world
	lists int
}

func (c *smallPages) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if l, ok := list.(*unstructured.UnstructuredList); ok && l.GetKind() == "SecretList" {
		o := &client.ListOptions{}
		o.ApplyOptions(options)
		if c.lists++; o.Limit == 0 || o.Limit > 20 {
			c.w.fail("%d Secrets are asked for at a time", o.Limit)
		}
	}
	return c.Client.List(ctx, list, options...)
}

// TestSecretsOfOthers: a namespace may have many Secrets besides those of the Cluster, as releases of
// Helm. They are not in memory at the same time, on neither side and in no step.
func TestSecretsOfOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		own    int
		listed bool
	}{
		"Few":  {"the Secrets of a small Cluster are read by name", 5, false},
		"Many": {"those of a large one are listed", 30, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			for i := range tt.own {
				s := modelObject("v1", "Secret", fmt.Sprintf("a-own-%d", i), w.sides["mom"].objects[key{clusterKind, clusterA}])
				s.SetLabels(map[string]string{clusterapi.ClusterNameLabel: "a"})
				w.sides["mom"].put(s)
			}
			p := w.pivot("mom", "master", &life{})
			target := &smallPages{Client: p.Target.Client, w: w}
			p.Source.Client, p.Target.Client = &smallPages{Client: p.Source.Client, w: w}, target
			if _, err := p.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.at("master", "mom")
			if target.lists > 0 != tt.listed {
				t.Errorf("%s: %d lists of Secrets in the target", tt.reason, target.lists)
			}
		})
	}
}

// TestCopiesHeld: a child answers for the copies that it was given with whatever it likes.
func TestCopiesHeld(t *testing.T) {
	w := newWorld(t, 1)
	p := w.pivot("mom", "master", &life{})
	w.sides["mom"].change(key{machineKind, clusterA}, func(u *unstructured.Unstructured) { u.Object["x"] = strings.Repeat("x", 2<<20) })
	objects := []Object{{Group: clusterapi.Group, Version: "v1beta2", Kind: "Machine", Namespace: "fleet", Name: "a"}}
	if _, err := readAll(t.Context(), p.Source, 1<<20, objects); err == nil || !strings.Contains(err.Error(), "more than 1 MB") {
		t.Errorf("more is held than may be: %v", err)
	}
	if got, err := readAll(t.Context(), p.Source, 0, objects); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

// refusing is a client whose credentials have lapsed.
type refusing struct{ client.Client }

func (refusing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewUnauthorized("Unauthorized")
}

// TestKubeconfigLapsed: the kubeconfig of a Cluster that was paused lapses on the way, and nobody
// renews it. What a person can do is told, and goes on.
func TestKubeconfigLapsed(t *testing.T) {
	for name, tt := range map[string]struct {
		reason, secret string
		told           bool
	}{
		"OfCluster": {"Cluster API does not renew it while it is paused", "a-kubeconfig", true},
		"OfPerson":  {"whoever gave it knows how to renew it", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			p := w.pivot("mom", "master", &life{})
			p.Wait = func(context.Context, time.Duration) error { return errors.New("the process ends") }
			if _, err := p.Run(t.Context()); err == nil || !clusterapi.IsPaused(w.sides["mom"].objects[key{clusterKind, clusterA}]) {
				t.Fatalf("it is not frozen, %v", err)
			}
			for _, act := range []func(*Pivot) error{
				func(p *Pivot) error { _, err := p.Run(t.Context()); return err },
				func(p *Pivot) error { _, err := p.Abort(t.Context()); return err },
			} {
				p := w.pivot("mom", "master", &life{})
				p.Target.Client = refusing{p.Target.Client}
				if tt.secret != "" {
					p.Target.Kubeconfig = types.NamespacedName{Namespace: "fleet", Name: tt.secret}
				}
				err := act(p)
				if !apierrors.IsUnauthorized(err) || strings.Contains(err.Error(), "Secret fleet/a-kubeconfig, or use cascade pivot") != tt.told {
					t.Errorf("%s: got %v", tt.reason, err)
				}
			}
			// With a kubeconfig that is valid it goes on.
			if _, err := w.pivot("mom", "master", &life{}).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.at("master", "mom")

			// On the way back the command with the other file would be about the other direction.
			p = w.pivot("master", "mom", &life{})
			p.Source.Client = refusing{p.Source.Client}
			if tt.secret != "" {
				p.Source.Kubeconfig = types.NamespacedName{Namespace: "fleet", Name: tt.secret}
			}
			_, err := p.Run(t.Context())
			if !apierrors.IsUnauthorized(err) || strings.Contains(err.Error(), "--kubeconfig <file> --to <file of the target>, with --abort") != tt.told {
				t.Errorf("%s: on the way back it says %v", tt.reason, err)
			}
		})
	}
}

// TestCircle: whoever may write ConfigMaps in some namespace makes two that own each other while a
// pivot is under way. It ends, and so does one that is turned back; where they are part of the
// Cluster, it is told, and turned back all the same.
func TestCircle(t *testing.T) {
	move := map[string]string{"clusterctl.cluster.x-k8s.io/move": ""}
	for name, tt := range map[string]struct {
		reason, namespace string
		labels            map[string]string
		want              string
	}{
		"Elsewhere": {"nothing of them is moved", "others", move, ""},
		"Beside":    {"they go along for their label, and stay as well", "fleet", move, ""},
		"OfCluster": {"they would lose their owners", "fleet", map[string]string{clusterapi.ClusterNameLabel: "a"}, ReasonCircularOwners},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			mom := w.sides["mom"]
			mom.put(content(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "others"}}))
			circle := func() {
				one := modelObject("v1", "ConfigMap", "one", nil)
				one.SetNamespace(tt.namespace)
				one.SetLabels(tt.labels)
				one = mom.put(one)
				two := modelObject("v1", "ConfigMap", "two", one)
				two.SetNamespace(tt.namespace)
				two.SetLabels(tt.labels)
				two = mom.put(two)
				one = one.DeepCopy()
				one.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "two", UID: two.GetUID()}})
				mom.put(one)
			}
			p := w.pivot("mom", "master", &life{})
			tell, at := p.Tell, Freeze
			p.Tell = func(e Event) {
				if tell(e); at == Freeze && e.Step == Copy {
					at = Copy
					circle()
				}
			}
			_, err := p.Run(t.Context())
			if tt.want == "" {
				if err != nil {
					t.Fatalf("%s: %v", tt.reason, err)
				}
				w.at("master", "mom")
				return
			}
			blockedBy(t, err, tt.want)
			if _, err := w.pivot("mom", "master", &life{}).Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.at("mom", "master")
			_, err = w.pivot("mom", "master", &life{}).Run(t.Context())
			blockedBy(t, err, tt.want)
			if clusterapi.IsPaused(mom.objects[key{clusterKind, clusterA}]) {
				t.Error("something was begun")
			}
		})
	}
}

// TestForgedJournal: the journal of a pivot to the parent is in the child, whose owner writes what
// he likes. It neither has the parent forget where other Clusters are, nor copy what is not his.
func TestForgedJournal(t *testing.T) {
	const others = "others"
	for name, tt := range map[string]struct {
		reason string
		forge  func(j *Journal)
		says   string
	}{
		"OtherCluster": {"the parent would build it a second time", func(j *Journal) { j.Step, j.Clusters[0].Name = Switch, "b" }, ReasonJournalForeign},
		"MoreClusters": {"and so here", func(j *Journal) {
			j.Step, j.Clusters = Switch, append(j.Clusters, Cluster{Namespace: "fleet", Name: "b", UID: "u"})
		}, ReasonJournalForeign},
		"OtherTier":  {"it is no pivot of these two", func(j *Journal) { j.To.UID = "x" }, ReasonJournalForeign},
		"OtherPivot": {"what another pivot made would count as its own", func(j *Journal) { j.ID = "0123456789-1" }, ReasonJournalForeign},
		"Over":       {"the next one would be taken for that", func(j *Journal) { j.Step, j.ID = Done, "0123456789-1" }, ReasonJournalForeign},
		"NoCopy":     {"nothing of it was copied", func(j *Journal) { j.Step = Switch }, ReasonCopyMissing},
		"NotOwn":     {"a Secret of another namespace would be made in the parent", func(j *Journal) { j.Step, j.Own = Copy, false }, ReasonSecretElsewhere},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.declares = nil
			if _, err := w.pivot("mom", "master", &life{}).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			mom, master := w.sides["mom"], w.sides["master"]
			mom.change(recordKey, func(u *unstructured.Unstructured) {
				cm := &corev1.ConfigMap{}
				fill(cm, u)
				firstsync.ManageElsewhere(cm, "other", types.NamespacedName{Namespace: "fleet", Name: "b"})
				u.Object = content(cm).Object
			})
			before := mom.objects[recordKey].DeepCopy()
			master.put(content(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: others}}))
			secret := modelObject("v1", "Secret", "password", nil)
			secret.SetNamespace(others)
			master.put(secret)
			master.change(key{infraKind, clusterA}, func(u *unstructured.Unstructured) {
				_ = unstructured.SetNestedMap(u.Object, map[string]any{"name": "password", "namespace": others}, "spec", "secretRef")
			})
			p := w.pivot("master", "mom", &life{})
			p.Own, p.Keep = true, false
			if err := p.meet(t.Context()); err != nil {
				t.Fatal(err)
			}
			j := p.journal
			at := j.nameOf(Source)
			j.ID, j.Step, j.Clusters[0].UID = j.set()+"-1", Freeze, master.objects[key{clusterKind, clusterA}].GetUID()
			tt.forge(&j)
			cm, err := j.encode(v1alpha1.AgentNamespace, Source)
			if err != nil {
				t.Fatal(err)
			}
			cm.Name = at
			master.put(content(cm))
			p = w.pivot("master", "mom", &life{})
			p.Own, p.Keep = true, false
			_, err = p.Run(t.Context())
			blockedBy(t, err, tt.says)
			if after := mom.objects[recordKey]; !reflect.DeepEqual(before.Object["data"], after.Object["data"]) {
				t.Errorf("%s: the parent's record is %v, was %v", tt.reason, after.Object["data"], before.Object["data"])
			}
			if mom.objects[keyOf(secret)] != nil {
				t.Errorf("%s: it was copied", tt.reason)
			}
		})
	}
}

// TestKindForeign: which kinds are moved, the source says, and the cluster that is given back may be
// anybody's. What the target does not count among the kinds of clusters is not made there.
func TestKindForeign(t *testing.T) {
	for name, tt := range map[string]struct {
		reason, group, kind string
		// known: the target's definition has the label as well.
		known bool
		says  string
		moved bool
	}{
		"Synced":   {"it would be applied with the agent's rights", "kustomize.toolkit.fluxcd.io", "Kustomization", false, "", false},
		"Rights":   {"the kind is Kubernetes' own", "rbac.authorization.k8s.io", "RoleBinding", true, "", false},
		"Operator": {"another operator would act on it", "argoproj.io", "Application", false, ReasonKindForeign, false},
		"Provider": {"a provider's kind on both sides", "containers.example.com", "Pool", true, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			for _, side := range []string{"mom", "master"} {
				d := definition(tt.group, tt.kind)
				if side == "mom" || tt.known {
					d.SetLabels(map[string]string{clusterapi.ClusterctlLabel: ""})
				}
				w.sides[side].put(d)
				w.sides[side].serves[schema.GroupKind{Group: tt.group, Kind: tt.kind}] = true
			}
			u := modelObject(tt.group+"/v1", tt.kind, "x", nil)
			u.SetLabels(map[string]string{clusterapi.ClusterNameLabel: "a"})
			w.sides["mom"].put(u)
			_, err := w.pivot("mom", "master", &life{}).Run(t.Context())
			if tt.says != "" {
				blockedBy(t, err, tt.says)
				w.at("mom", "master")
			} else if err != nil {
				t.Fatal(err)
			}
			if moved := w.sides["master"].objects[keyOf(u)] != nil; moved != tt.moved {
				t.Errorf("%s: moved %t", tt.reason, moved)
			}
		})
	}
	// One that the target does not have at all is missing there, and nothing else.
	missing := newWorld(t, 1)
	other := definition("containers.example.com", "Pool")
	other.SetLabels(map[string]string{clusterapi.ClusterctlLabel: ""})
	pool := modelObject("containers.example.com/v1", "Pool", "x", nil)
	pool.SetLabels(map[string]string{clusterapi.ClusterNameLabel: "a"})
	missing.sides["mom"].put(other)
	missing.sides["mom"].put(pool)
	missing.sides["mom"].serves[keyOf(pool).kind] = true
	preview, err := missing.pivot("mom", "master", &life{}).Preview(t.Context())
	if err != nil || len(preview.Problems) != 1 || preview.Problems[0].Reason != ReasonKindMissing {
		t.Errorf("got %+v, %v", preview.Problems, err)
	}
	// Nor where the definition comes when the pivot is under way.
	w := newWorld(t, 1)
	p := w.pivot("mom", "master", &life{killAt: 60})
	if _, err := p.Run(t.Context()); !errors.Is(err, errKilled) || p.journal.Step.Over() || !p.journal.Step.Revocable() {
		t.Fatal(err, p.journal.Step)
	}
	d := definition("argoproj.io", "Application")
	d.SetLabels(map[string]string{clusterapi.ClusterctlLabel: ""})
	w.sides["mom"].put(d)
	u := modelObject("argoproj.io/v1", "Application", "x", nil)
	u.SetLabels(map[string]string{clusterapi.ClusterNameLabel: "a"})
	w.sides["mom"].put(u)
	for _, m := range w.sides {
		m.serves[keyOf(u).kind] = true
	}
	_, err = w.pivot("mom", "master", &life{}).Run(t.Context())
	blockedBy(t, err, ReasonKindForeign)
	if w.sides["master"].objects[keyOf(u)] != nil {
		t.Error("it was made all the same")
	}
}

// TestUnderWay: what is under way is brought to its end, and nothing else is begun.
func TestUnderWay(t *testing.T) {
	w := newWorld(t, 1)
	idle := func() {
		t.Helper()
		p := w.pivot("mom", "master", &life{})
		p.UnderWay = true
		if _, err := p.Run(t.Context()); !errors.Is(err, ErrIdle) {
			t.Fatalf("got %v", err)
		}
	}
	idle()
	w.at("mom", "master")
	if _, err := w.pivot("mom", "master", &life{killAt: 120}).Run(t.Context()); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	p := w.pivot("mom", "master", &life{})
	p.UnderWay = true
	if _, err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.at("master", "mom")
	idle()
}

// TestForgotten: the source lost its journal, or its agent is in another namespace by now. The next pivot is none that the
// target has on record as done, and by which nobody would end it.
func TestForgotten(t *testing.T) {
	w := newWorld(t, 1)
	w.declares = nil
	move := func(from, to string) Journal {
		t.Helper()
		j, err := w.pivot(from, to, &life{}).Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.at(to, from)
		return j
	}
	move("mom", "master")
	first := move("master", "mom")
	move("mom", "master")
	delete(w.sides["master"].objects, key{schema.GroupKind{Kind: "ConfigMap"}, types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: first.nameOf(Source)}})
	if second := move("master", "mom"); second.ID == first.ID {
		t.Errorf("two pivots have the name %s", first.ID)
	}
}

// TestClocks: by the clock of another process the hold is over, and it turns back. The first one
// does not pause again what that one let go.
func TestClocks(t *testing.T) {
	w := newWorld(t, 1)
	first := w.pivot("mom", "master", &life{})
	ahead := w.pivot("mom", "master", &life{})
	ahead.Now = func() time.Time { return w.now.Add(10 * time.Minute) }
	tell, once := first.Tell, false
	first.Tell = func(e Event) {
		if tell(e); e.Step == Copy && e.Action != "" && !once {
			once = true
			if _, err := ahead.Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := first.Run(t.Context()); !errors.Is(err, ErrLost) {
		t.Fatalf("got %v", err)
	}
	if clusterapi.IsPaused(w.sides["mom"].objects[key{clusterKind, clusterA}]) {
		t.Error("Cluster a is paused, and nothing is under way")
	}
	if w.failed {
		t.Fatal()
	}
}

// TestHeldByClockAhead: a process whose clock was ahead was killed. Nobody waits for that time, neither to go on nor
// to turn back, and a clock that is a little ahead holds as any other.
func TestHeldByClockAhead(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		ahead  time.Duration
		abort  bool
		held   bool
	}{
		"GoesOn":    {"three hours", 3 * time.Hour, false, false},
		"TurnsBack": {"three hours, and a person turns back", 3 * time.Hour, true, false},
		"Little":    {"some seconds are those of any two machines", 20 * time.Second, false, true},
		"Exact":     {"it may be alive", 0, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			l := &life{}
			first := w.pivot("mom", "master", l)
			first.Now = func() time.Time { return w.now.Add(tc.ahead) }
			first.Tell = func(e Event) { l.dead = e.Step == Copy && e.Action != "" }
			second := w.pivot("mom", "master", &life{})
			if _, err := first.Run(t.Context()); !errors.Is(err, errKilled) || first.journal.Step != Copy {
				t.Fatalf("got %v at step %s, want that it is killed while it copies", err, first.journal.Step)
			}
			run := second.Run
			if tc.abort {
				run = second.Abort
			}
			_, err := run(t.Context())
			var blocked *BlockedError
			if held := errors.As(err, &blocked) && blocked.Problems[0].Reason == ReasonPivotHeld; held != tc.held || !held && err != nil {
				t.Fatalf("%s: got %v", tc.reason, err)
			}
			switch {
			case tc.held:
			case tc.abort:
				w.at("mom", "master")
			default:
				w.at("master", "mom")
			}
		})
	}
}

// TestBindingOfTarget: the target has ClusterResourceSets that match a copy, and its controller, which heeds no pause of
// a Cluster, writes an empty record of what it applied before the pivot comes to that, or adds to it.
func TestBindingOfTarget(t *testing.T) {
	set := schema.GroupKind{Group: clusterapi.AddonsGroup, Kind: clusterapi.ClusterResourceSet}
	binding := key{schema.GroupKind{Group: clusterapi.AddonsGroup, Kind: clusterapi.ClusterResourceSetBinding}, clusterA}
	entry := func(set string, applied bool) map[string]any {
		return map[string]any{"clusterResourceSetName": set, "resources": []any{map[string]any{"kind": "ConfigMap", "name": set, "applied": applied}}}
	}
	for name, tt := range map[string]struct {
		reason string
		set    string // of the target
		step   key    // once this is in the target, its controller writes
		aborts bool
	}{
		"Same":    {"both get it from the same repository", "cni", key{clusterKind, clusterA}, false},
		"Other":   {"it has another one for its own clusters", "other", key{clusterKind, clusterA}, false},
		"Added":   {"and comes after the copy", "other", binding, false},
		"Aborted": {"nothing is left of one that turns back", "cni", key{clusterKind, clusterA}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			mom, master := w.sides["mom"], w.sides["master"]
			for _, m := range w.sides {
				for _, kind := range []schema.GroupKind{set, binding.kind} {
					m.serves[kind] = true
					m.put(definition(kind.Group, kind.Kind))
				}
			}
			master.put(modelObject("v1", "Namespace", "fleet", nil))
			master.put(modelObject(set.Group+"/v1", set.Kind, tt.set, nil))
			cni := mom.put(modelObject(set.Group+"/v1", set.Kind, "cni", nil))
			bound := modelObject(binding.kind.Group+"/v1", binding.kind.Kind, "a", cni)
			bound.Object["spec"] = map[string]any{"clusterName": "a", "bindings": []any{entry("cni", true)}}
			owner := mom.objects[key{clusterKind, clusterA}] // it is made after the Cluster, as of one without a class
			bound.SetOwnerReferences(append(bound.GetOwnerReferences(), metav1.OwnerReference{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID()}))
			mom.put(bound)
			wrote := false
			controller := func() {
				if live := master.objects[binding]; master.objects[tt.step] == nil || live != nil && slices.ContainsFunc(entries(live), func(e map[string]any) bool { return e["clusterResourceSetName"] == tt.set }) {
					return
				}
				wrote = true
				u := modelObject(binding.kind.Group+"/v1", binding.kind.Kind, "a", nil)
				u.Object["spec"] = map[string]any{"clusterName": "a"}
				if live := master.objects[binding]; live != nil {
					u = live.DeepCopy()
				}
				list, _, _ := unstructured.NestedSlice(u.Object, "spec", "bindings")
				_ = unstructured.SetNestedSlice(u.Object, append(list, entry(tt.set, false)), "spec", "bindings")
				master.put(u)
			}
			l := &life{}
			p := w.pivot("mom", "master", l)
			tell := p.Tell
			p.Tell = func(e Event) {
				controller()
				tell(e)
				l.dead = tt.aborts && e.Step == Verify
			}
			if _, err := p.Run(t.Context()); (err != nil) != tt.aborts || !wrote {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			if tt.aborts {
				if _, err := w.pivot("mom", "master", &life{}).Abort(t.Context()); err != nil || master.objects[binding] != nil || mom.objects[binding] == nil {
					t.Fatalf("%s: %v, the target has %v", tt.reason, err, master.objects[binding])
				}
				return
			}
			own := slices.ContainsFunc(entries(master.objects[binding]), func(e map[string]any) bool { return differsAt("", entry("cni", true), e) == "" })
			if !own || mom.objects[binding] != nil {
				t.Errorf("%s: the target has %v", tt.reason, master.objects[binding])
			}
		})
	}
}
