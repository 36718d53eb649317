package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// removalStand is one Layer of deletionPolicy Delete that children have, and the
// reconciler of Layers with a clock of the test.
type removalStand struct {
	client client.Client
	layers *Layers
	events *record.FakeRecorder
	woken  []string
	now    time.Time
}

var removed = types.NamespacedName{Namespace: "fleet", Name: "app"}

func removalScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, apiextensionsv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// standWith has so many children that have the layer, which selects them.
func standWith(t *testing.T, children int, funcs interceptor.Funcs) *removalStand {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: layerCRD, Finalizers: []string{"customresourcecleanup.apiextensions.k8s.io"}}}
	layer := layerOn(removed.Name)
	layer.UID, layer.Spec.DeletionPolicy = "layer", v1alpha1.DeletionDelete
	layer.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "tenant"}
	objects := []client.Object{crd, layer}
	for i := range children {
		c := childNamed(fmt.Sprintf("c%02d", i), []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: "Succeeded"}})
		c.UID, c.Labels = types.UID(c.Name), map[string]string{"tier": "tenant"}
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: removed.Name, Ready: true, Reason: v1alpha1.ReasonSucceeded, Digest: "d", Objects: 12}}
		objects = append(objects, &c)
	}
	s := &removalStand{events: record.NewFakeRecorder(100), now: start.Time}
	s.client = fake.NewClientBuilder().WithScheme(removalScheme(t)).WithObjects(objects...).WithStatusSubresource(&v1alpha1.Layer{}, &v1alpha1.Child{}).WithInterceptorFuncs(funcs).Build()
	s.layers = &Layers{
		inUse:  &inUse{},
		Client: s.client, Reader: s.client, Events: s.events, Now: func() time.Time { return s.now },
		Wake: func(child types.NamespacedName) { s.woken = append(s.woken, child.Name) },
	}
	s.reconcile(t)
	return s
}

// reconcile lets a moment pass and reconciles the layer, nil if it is gone.
func (s *removalStand) reconcile(t *testing.T) *v1alpha1.Layer {
	t.Helper()
	s.now = s.now.Add(2 * time.Second)
	if _, err := s.layers.Reconcile(t.Context(), ctrl.Request{NamespacedName: removed}); err != nil {
		t.Fatal(err)
	}
	layer := &v1alpha1.Layer{}
	err := s.client.Get(t.Context(), removed, layer)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

func (s *removalStand) edit(t *testing.T, change func(*v1alpha1.Layer)) {
	t.Helper()
	layer := &v1alpha1.Layer{}
	if err := s.client.Get(t.Context(), removed, layer); err != nil {
		t.Fatal(err)
	}
	change(layer)
	if err := s.client.Update(t.Context(), layer); err != nil {
		t.Fatal(err)
	}
}

func (s *removalStand) delete(t *testing.T) {
	t.Helper()
	if err := s.client.Delete(t.Context(), &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: removed.Namespace, Name: removed.Name}}); err != nil {
		t.Fatal(err)
	}
}

// say changes what a child says of the layer.
func (s *removalStand) say(t *testing.T, child string, change func(*v1alpha1.Child)) {
	t.Helper()
	c := &v1alpha1.Child{}
	if err := s.client.Get(t.Context(), types.NamespacedName{Namespace: removed.Namespace, Name: child}, c); err != nil {
		t.Fatal(err)
	}
	change(c)
	if err := s.client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// rid is a child that has nothing of the layer any more.
func rid(c *v1alpha1.Child) { c.Status.Layers = nil }

func typo(l *v1alpha1.Layer) {
	l.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "tennant"}
}

func grantedOf(layer *v1alpha1.Layer) int {
	if layer == nil || layer.Status.Removal == nil {
		return 0
	}
	return len(layer.Status.Removal.Granted)
}

func readyOf(layer *v1alpha1.Layer) metav1.Condition {
	return *meta.FindStatusCondition(layer.Status.Conditions, v1alpha1.ReadyCondition)
}

// TestRemovalIsHeld: a typo in a selector lets no child go (C4), is told once, shows on the
// Layer (C11), and does nothing once it is corrected. What a person approves goes.
func TestRemovalIsHeld(t *testing.T) {
	s := standWith(t, 12, interceptor.Funcs{})
	layer := s.reconcile(t)
	if !slices.Contains(layer.Finalizers, v1alpha1.RemovalFinalizer) || layer.Status.Removal != nil || *layer.Status.OnRecord != (v1alpha1.OnRecord{Children: 12, Objects: 144}) {
		t.Fatalf("at rest: finalizers %v, removal %+v, on record %+v", layer.Finalizers, layer.Status.Removal, layer.Status.OnRecord)
	}
	s.edit(t, typo)
	for range 3 {
		s.now = s.now.Add(plan.RemovalWindow)
		layer = s.reconcile(t)
	}
	ready := readyOf(layer)
	if removal := layer.Status.Removal; removal == nil || !removal.Held || removal.Waiting != 12 || grantedOf(layer) > 0 || len(s.woken) > 0 {
		t.Fatalf("after a typo the record is %+v, woken are %v", removal, s.woken)
	}
	if c := meta.FindStatusCondition(layer.Status.Conditions, v1alpha1.RemovalHeldCondition); c == nil || c.Message != ready.Message ||
		ready.Reason != v1alpha1.ReasonRemovalHeld || !strings.Contains(ready.Message, "12 of 12 children") || !strings.Contains(ready.Message, "cascade approve removal app -n fleet --hash "+layer.Status.Removal.Hash) {
		t.Errorf("Ready is %+v, RemovalHeld is %+v", ready, c)
	}
	holds := 0
	for range len(s.events.Events) {
		if strings.Contains(<-s.events.Events, v1alpha1.ReasonRemovalHeld) {
			holds++
		}
	}
	if holds != 1 {
		t.Errorf("%d events of one hold", holds)
	}
	s.edit(t, func(l *v1alpha1.Layer) { l.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "tenant"} })
	if layer = s.reconcile(t); layer.Status.Removal != nil || meta.FindStatusCondition(layer.Status.Conditions, v1alpha1.RemovalHeldCondition) != nil {
		t.Errorf("after the correction the record is %+v, conditions are %v", layer.Status.Removal, layer.Status.Conditions)
	}
	s.edit(t, typo)
	layer = s.reconcile(t)
	s.edit(t, func(l *v1alpha1.Layer) {
		l.Annotations = map[string]string{v1alpha1.ApproveRemovalAnnotation: layer.Status.Removal.Hash}
	})
	if layer = s.reconcile(t); grantedOf(layer) != 12 || len(s.woken) != 12 || readyOf(layer).Reason != v1alpha1.ReasonProgressing {
		t.Errorf("approved: %d are let go, %d woken, Ready is %+v", grantedOf(layer), len(s.woken), readyOf(layer))
	}
	for i := range 12 {
		s.say(t, fmt.Sprintf("c%02d", i), rid)
	}
	if layer = s.reconcile(t); layer.Status.Removal != nil || readyOf(layer).Reason != v1alpha1.ReasonNoChildren {
		t.Errorf("when it is over the record is %+v, Ready is %+v", layer.Status.Removal, readyOf(layer))
	}
}

// TestDeletedLayer: a Layer that deletes stays until its children are rid of it, or a
// person lets it go.
func TestDeletedLayer(t *testing.T) {
	all := func(change func(*v1alpha1.Child)) func(*testing.T, *removalStand) {
		return func(t *testing.T, s *removalStand) {
			for i := range 12 {
				s.say(t, fmt.Sprintf("c%02d", i), change)
			}
		}
	}
	edit := func(change func(*v1alpha1.Layer)) func(*testing.T, *removalStand) {
		return func(t *testing.T, s *removalStand) { s.edit(t, change) }
	}
	for name, tc := range map[string]struct {
		reason  string
		before  func(*testing.T, *removalStand)
		after   func(*testing.T, *removalStand)
		gone    bool
		granted int
		ready   string
	}{
		"Held":      {"kubectl delete layer empties no child (C4)", nil, nil, false, 0, v1alpha1.ReasonRemovalHeld},
		"Suspended": {"a person lets it go, and everything stays", nil, edit(func(l *v1alpha1.Layer) { l.Spec.Suspend = true }), true, 0, ""},
		"Orphaned":  {"the policy that is set last counts", nil, edit(func(l *v1alpha1.Layer) { l.Spec.DeletionPolicy = v1alpha1.DeletionOrphan }), true, 0, ""},
		"Confirmed": {"two commits: no other approval is asked for", edit(func(l *v1alpha1.Layer) {
			l.Annotations = map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed}
		}), nil, false, 12, v1alpha1.ReasonProgressing},
		"Approved": {"a person approves what is held", nil, func(t *testing.T, s *removalStand) {
			hash := s.reconcile(t).Status.Removal.Hash
			s.edit(t, func(l *v1alpha1.Layer) {
				l.Annotations = map[string]string{v1alpha1.ApproveRemovalAnnotation: hash}
			})
		}, false, 12, v1alpha1.ReasonProgressing},
		"Rid": {"nothing is left in the children", all(rid), nil, true, 0, ""},
		"NothingSent": {"what was never pushed holds up nothing", all(func(c *v1alpha1.Child) {
			c.Status.Layers[0] = v1alpha1.ChildLayer{Name: removed.Name, Reason: v1alpha1.ReasonBuildFailed}
		}), nil, true, 0, ""},
		"ClustersGone": {"the tier goes with its clusters", func(t *testing.T, s *removalStand) {
			if err := s.client.DeleteAllOf(t.Context(), &v1alpha1.Child{}, client.InNamespace("fleet")); err != nil {
				t.Fatal(err)
			}
		}, nil, true, 0, ""},
		"KindGoes": {"the definition is deleted: nothing is removed, and nothing hangs", func(t *testing.T, s *removalStand) {
			if err := s.client.Delete(t.Context(), &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: layerCRD}}); err != nil {
				t.Fatal(err)
			}
		}, nil, true, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := standWith(t, 12, interceptor.Funcs{})
			if tc.before != nil {
				tc.before(t, s)
			}
			s.delete(t)
			if tc.after != nil {
				s.reconcile(t)
				tc.after(t, s)
			}
			s.reconcile(t)
			layer := s.reconcile(t)
			if gone := layer == nil; gone != tc.gone || grantedOf(layer) != tc.granted {
				t.Fatalf("%s: gone %t, %d let go, want %t, %d", tc.reason, gone, grantedOf(layer), tc.gone, tc.granted)
			}
			if layer != nil && readyOf(layer).Reason != tc.ready {
				t.Errorf("%s: Ready is %+v", tc.reason, readyOf(layer))
			}
		})
	}
}

// TestDeletedLayerOfAFew: fewer than three children are let go by themselves, and the
// Layer goes with the last. One that does not answer is named, and keeps it.
func TestDeletedLayerOfAFew(t *testing.T) {
	s := standWith(t, 2, interceptor.Funcs{})
	s.say(t, "c01", func(c *v1alpha1.Child) {
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonUnreachable, Message: "no route"}}
	})
	s.delete(t)
	if layer := s.reconcile(t); grantedOf(layer) != 0 || layer.Status.Removal.Held {
		t.Fatalf("before they settled the record is %+v", layer.Status.Removal)
	}
	s.now = s.now.Add(plan.RemovalSettle)
	if layer := s.reconcile(t); grantedOf(layer) != 2 || len(s.woken) != 2 {
		t.Fatalf("the record is %+v, woken are %v", layer.Status.Removal, s.woken)
	}
	s.say(t, "c00", rid)
	layer := s.reconcile(t)
	if c := readyOf(layer); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "c01: Unreachable: no route") || layer.Status.Removal.Blocked != 1 {
		t.Errorf("Ready is %+v, the record is %+v", c, layer.Status.Removal)
	}
	s.say(t, "c01", rid)
	if layer = s.reconcile(t); layer != nil {
		t.Errorf("the Layer stays: %+v", layer.Status)
	}
}

// TestRemovalBarred: a child from which nothing may be removed at the moment says why, and the
// Layer names it.
func TestRemovalBarred(t *testing.T) {
	removing := v1alpha1.ChildLayer{Name: removed.Name, Reason: v1alpha1.ReasonProgressing, Message: "waiting for 2 objects to be deleted", Digest: "d"}
	for name, tc := range map[string]struct {
		reason string
		bar    func(*run, *capibridge.Cluster)
		entry  v1alpha1.ChildLayer
		want   string
		says   string
	}{
		"Paused":    {reason: "its Cluster is paused", bar: func(_ *run, c *capibridge.Cluster) { c.Paused = true }, want: v1alpha1.ReasonPaused, says: "until it is not"},
		"Suspended": {reason: "the Child is suspended", bar: func(r *run, _ *capibridge.Cluster) { r.child.Spec.Suspend = true }, want: v1alpha1.ReasonSuspended, says: "cascade resume child a -n fleet"},
		"Elsewhere": {reason: "a pivot moved the Cluster", bar: func(r *run, _ *capibridge.Cluster) { r.elsewhere = true }, want: v1alpha1.ReasonManagedElsewhere, says: "another tier"},
		"NoTime":    {reason: "the child used up its time for long", want: v1alpha1.ReasonPushTimedOut, says: "not begun"},
		"Held":      {reason: "what a person decides about waits as well", bar: func(_ *run, c *capibridge.Cluster) { c.Paused = true }, entry: v1alpha1.ChildLayer{Name: removed.Name, Reason: v1alpha1.ReasonRemovalHeld, Digest: "d"}, want: v1alpha1.ReasonPaused, says: "until it is not"},
		"Moment":    {reason: "a child without time for a moment goes on", entry: removing, want: v1alpha1.ReasonProgressing, says: "waiting for 2"},
	} {
		t.Run(name, func(t *testing.T) {
			of := newPaced(45 * time.Second)
			of.child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "one"}
			of.child.Status.Conditions = append(of.child.Status.Conditions, metav1.Condition{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue})
			if tc.entry.Name == "" {
				tc.entry = v1alpha1.ChildLayer{Name: removed.Name, Ready: true, Reason: v1alpha1.ReasonSucceeded, Digest: "d"}
			}
			of.child.Status.Layers = []v1alpha1.ChildLayer{tc.entry}
			if cluster := (capibridge.Cluster{}); tc.bar != nil {
				tc.bar(of.run, &cluster)
				of.seedAll(t.Context(), sessionOf(t, of.run), cluster, nil)
			} else {
				(&push{run: of.run}).leave(nil, reason.Because(v1alpha1.ReasonPushTimedOut, errors.New("not begun")))
				of.summarizeLayers(nil)
			}
			c := meta.FindStatusCondition(of.child.Status.Conditions, v1alpha1.SeededCondition)
			if c.Status != metav1.ConditionFalse || c.Reason != tc.want || !strings.Contains(c.Message, tc.says) {
				t.Errorf("%s: Seeded is %+v", tc.reason, c)
			}
			why, stuck := isStuck(layerOn(removed.Name), of.child)
			if stuck != (tc.want != v1alpha1.ReasonProgressing) || stuck && (why.Reason != tc.want || !strings.Contains(why.Message, tc.says)) {
				t.Errorf("%s: it gets on: %t, %+v", tc.reason, !stuck, why)
			}
		})
	}
}

// TestHeldOnUnselected: what is held in a child that the layer no longer selects shows on
// the Layer, by number and name (C11).
func TestHeldOnUnselected(t *testing.T) {
	s := standWith(t, 12, interceptor.Funcs{})
	child := &v1alpha1.Child{}
	if err := s.client.Get(t.Context(), types.NamespacedName{Namespace: "fleet", Name: "c03"}, child); err != nil {
		t.Fatal(err)
	}
	child.Labels = nil
	if err := s.client.Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	s.reconcile(t)
	s.now = s.now.Add(plan.RemovalSettle)
	if layer := s.reconcile(t); grantedOf(layer) != 1 {
		t.Fatalf("the record is %+v", layer.Status.Removal)
	}
	s.say(t, "c03", func(c *v1alpha1.Child) {
		c.Status.Layers[0].Ready, c.Status.Layers[0].Reason, c.Status.Layers[0].Message = false, v1alpha1.ReasonPruneBlocked, "will not delete protected x"
	})
	layer := s.reconcile(t)
	c := readyOf(layer)
	if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "c03: PruneBlocked: will not delete protected x") || layer.Status.Removal.Blocked != 1 ||
		!slices.ContainsFunc(layer.Status.Failing, func(f v1alpha1.Failure) bool { return f.Name == "c03" }) {
		t.Errorf("Ready is %+v, failing are %v, the record is %+v", c, layer.Status.Failing, layer.Status.Removal)
	}
}

// TestStaleLeaderGrantsNothing: who decides by an older state of the Layer, as a process
// that was paused or whose cache lags, decides about nothing.
func TestStaleLeaderGrantsNothing(t *testing.T) {
	var stale *v1alpha1.Layer
	s := standWith(t, 2, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if layer, is := o.(*v1alpha1.Layer); is && stale != nil {
			stale.DeepCopyInto(layer)
			return nil
		}
		return c.Get(ctx, key, o, opts...)
	}})
	s.edit(t, typo)
	stale = s.reconcile(t)
	s.now = s.now.Add(plan.RemovalSettle)
	behind := stale
	stale = nil
	s.edit(t, func(l *v1alpha1.Layer) { l.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "tenant"} })
	stale = behind
	s.reconcile(t)
	stale = nil
	layer := &v1alpha1.Layer{}
	if err := s.client.Get(t.Context(), removed, layer); err != nil {
		t.Fatal(err)
	}
	if grantedOf(layer) != 0 || len(s.woken) > 0 {
		t.Errorf("by an older state %d are let go, woken are %v", grantedOf(layer), s.woken)
	}
}

// TestKeeps: a child that the Layer has not let go keeps what it has, and says why (C11).
func TestKeeps(t *testing.T) {
	layer := layerOn("app")
	entry := v1alpha1.ChildLayer{Name: "app", Ready: true, Reason: "Succeeded"}
	if err := keeps(layer, &entry); reason.Of(err) != v1alpha1.ReasonProgressing || entry.Held != nil {
		t.Errorf("before it is decided the reason is %v, held is %v", err, entry.Held)
	}
	layer.Status.Removal = &v1alpha1.Removal{Held: true, Hash: "0123456789abcdef", Waiting: 12, Names: []string{"a"}}
	err := keeps(layer, &entry)
	recordOutcome(&entry, err, start)
	if entry.Reason != v1alpha1.ReasonRemovalHeld || entry.Held == nil || entry.Held.Removal.Hash != "0123456789abcdef" {
		t.Fatalf("held, the entry is %+v", entry)
	}
	if undecided(&entry) {
		t.Error("a removal that waits for the Layer counts as a prune plan that nobody decided about: it would be held again in the child")
	}
	child := childNamed("a", nil)
	child.Status.Layers = []v1alpha1.ChildLayer{entry}
	r := &run{child: &child}
	r.summarizeLayers(nil)
	if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.SeededCondition); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonRemovalHeld ||
		!strings.Contains(c.Message, "cascade approve removal app -n fleet --hash 0123456789abcdef") {
		t.Errorf("the child says %+v", c)
	}
}

// TestFinalizerComesAtOnce: a Layer may be deleted right after its policy was set, also
// within the pause between two counts of its children.
func TestFinalizerComesAtOnce(t *testing.T) {
	s := standWith(t, 12, interceptor.Funcs{})
	s.edit(t, func(layer *v1alpha1.Layer) { layer.Spec.DeletionPolicy = v1alpha1.DeletionOrphan })
	if layer := s.reconcile(t); len(layer.Finalizers) > 0 {
		t.Fatalf("a Layer that leaves what it applied has finalizers %v", layer.Finalizers)
	}
	s.edit(t, func(layer *v1alpha1.Layer) { layer.Spec.DeletionPolicy = v1alpha1.DeletionDelete })
	s.now = s.now.Add(-2 * time.Second)
	if layer := s.reconcile(t); !slices.Contains(layer.Finalizers, v1alpha1.RemovalFinalizer) {
		t.Error("nothing keeps the Layer")
	}
}
