package remote

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// contact is a child of which the age is asked.
type contact struct {
	*run
	now time.Time
	// heard and proven are what the connection knows.
	heard  time.Time
	proven bool
}

func newContact(status metav1.ConditionStatus, since metav1.Time) *contact {
	child := childNamed("a", []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: status, LastTransitionTime: since}})
	child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "one"}
	child.Status.Report = &v1alpha1.Report{}
	c := &contact{now: start.Time}
	c.run = &run{
		Children: &Children{Now: func() time.Time { return c.now }, ObserveInterval: 45 * time.Second},
		child:    &child, recorded: child.DeepCopy(), notes: &notes{began: c.now},
	}
	return c
}

func (c *contact) connected(status metav1.ConditionStatus) {
	meta.SetStatusCondition(&c.child.Status.Conditions, metav1.Condition{Type: v1alpha1.ConnectedCondition, Status: status, Reason: "X"})
}

// aged takes the step, and returns what is on record then.
func (c *contact) aged(result ctrl.Result) (ctrl.Result, *metav1.Time) {
	got := c.age(result, c.heard, c.proven)
	return got, c.child.Status.HeardAt
}

// TestAge: when a child was last heard of is recorded once, after three observe
// intervals, and is gone when it is heard of again.
func TestAge(t *testing.T) {
	c := newContact(metav1.ConditionTrue, start)
	c.heard, c.proven = c.now, true
	result := ctrl.Result{RequeueAfter: 40 * time.Second}
	if got, at := c.aged(result); got != result || at != nil {
		t.Errorf("at rest age() = %v, and HeardAt is %v", got, at)
	}

	c.connected(metav1.ConditionFalse)
	c.now = c.now.Add(time.Minute)
	if got, at := c.aged(ctrl.Result{}); got.RequeueAfter != report.Patience(45*time.Second)-time.Minute || at != nil {
		t.Errorf("a minute after it was lost age() = %v, and HeardAt is %v; want a run at the moment it is stale", got, at)
	}
	if got, _ := c.aged(ctrl.Result{RequeueAfter: time.Second}); got.RequeueAfter != time.Second {
		t.Errorf("a run that is due earlier is put off: %v", got)
	}
	c.now = c.now.Add(report.Patience(45*time.Second) - time.Minute)
	for range 3 {
		if _, at := c.aged(ctrl.Result{}); at == nil || !at.Time.Equal(c.heard) {
			t.Fatalf("HeardAt is %v, want %s", at, c.heard)
		}
		c.now = c.now.Add(time.Hour)
	}
	// Nothing is known while a probe is on its way.
	c.connected(metav1.ConditionTrue)
	c.asking = true
	if _, at := c.aged(ctrl.Result{}); at == nil {
		t.Error("HeardAt is gone before there is an answer")
	}
	c.asking, c.heard = false, c.now
	if _, at := c.aged(ctrl.Result{}); at != nil {
		t.Errorf("HeardAt is %v of a child that answers", at)
	}

	// Its API server answers, and its agent is silent.
	c.now = c.now.Add(report.Patience(45 * time.Second))
	if _, at := c.aged(ctrl.Result{}); at == nil {
		t.Error("an agent that is silent for three intervals is heard of")
	}
}

// TestAgeOfUnseeded: a child that no layer selects any more is not asked, so that nobody misses
// its answers, and there is no connection to it.
func TestAgeOfUnseeded(t *testing.T) {
	d := newDescribed(t, withoutProvider)
	key := client.ObjectKeyFromObject(&d.child)
	d.child.Status.Layers, d.child.Status.HeardAt = nil, new(later(-time.Hour))
	if err := errors.Join(d.client.Status().Update(t.Context(), &d.child), d.client.DeleteAllOf(t.Context(), &v1alpha1.Layer{}, client.InNamespace(key.Namespace))); err != nil {
		t.Fatal(err)
	}
	life := d.children.Connections.Of(key).Life()
	result, err := d.children.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
	if err != nil {
		t.Fatal(err)
	}
	got := &v1alpha1.Child{}
	if err := d.client.Get(t.Context(), key, got); err != nil {
		t.Fatal(err)
	}
	if at := got.Status.HeardAt; !unseeded(got) || at != nil || result.RequeueAfter != 0 || life.Err() == nil {
		t.Errorf("HeardAt is %v, it is looked at after %s, and the connection is %v: %+v", at, result.RequeueAfter, life.Err(), got.Status.Conditions)
	}
}

// TestLostInTimeToCome: what is on record of a child from a time to come, as the clock was ahead for a while, is so
// since now. Rollouts, deadlines of layers and alerts would wait until then, also for a child that nobody can ask.
func TestLostInTimeToCome(t *testing.T) {
	d := newDescribed(t, withoutProvider)
	d.children.Clusters = &clusters.Watch{} // which are not known yet
	key, ahead := client.ObjectKeyFromObject(&d.child), later(720*time.Hour)
	d.child.Status.Layers[0].Since = ahead
	d.child.Status.Conditions = append(d.child.Status.Conditions, metav1.Condition{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonUnreachable, LastTransitionTime: ahead})
	if err := d.client.Status().Update(t.Context(), &d.child); err != nil {
		t.Fatal(err)
	}
	if _, err := d.children.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	got := &v1alpha1.Child{}
	if err := d.client.Get(t.Context(), key, got); err != nil {
		t.Fatal(err)
	}
	if lost, since := lostSince(got), got.Status.Layers[0].Since; !lost.Equal(start.Time) || !since.Equal(&start) {
		t.Errorf("it is lost since %s, and its layer is as it is since %s; now is %s", lost, since, start)
	}
	for _, c := range got.Status.Conditions {
		if c.LastTransitionTime.After(start.Time) {
			t.Errorf("%s is %s since %s", c.Type, c.Status, c.LastTransitionTime)
		}
	}
}

// TestAgeAfterRestart: a process that knows nothing yet neither makes a dead child alive
// nor a living one dead.
func TestAgeAfterRestart(t *testing.T) {
	lost := later(-time.Hour)
	c := newContact(metav1.ConditionFalse, lost)
	if got, at := c.aged(ctrl.Result{}); got.RequeueAfter != 0 || at == nil || !at.Equal(&lost) {
		t.Errorf("HeardAt of a child that was lost before is %v, want %s", at, lost)
	}
	alive := newContact(metav1.ConditionTrue, lost)
	if got, at := alive.aged(ctrl.Result{}); got.RequeueAfter != 0 || at != nil {
		t.Errorf("HeardAt of a child that was connected is %v, %v", at, got)
	}

	// One look at the lease shows nothing.
	c.heard = c.now
	c.connected(metav1.ConditionTrue)
	if _, at := c.aged(ctrl.Result{}); at == nil {
		t.Error("one look at a lease makes its holder alive")
	}
	if err := c.agentError(link.Agent{}); reason.Of(err) != v1alpha1.ReasonAgentNotReady {
		t.Errorf("and the agent is %v", err)
	}
	c.proven = true
	if _, at := c.aged(ctrl.Result{}); at != nil || c.agentError(link.Agent{Renewed: true}) != nil {
		t.Errorf("the lease was renewed, and HeardAt is %v", at)
	}
}

// TestSuspendedLayer: what is recorded of a layer says that it is suspended, and one that is
// not in place does not count as such for being suspended.
func TestSuspendedLayer(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		before *v1alpha1.ChildLayer
		want   metav1.ConditionStatus
		says   string
	}{
		"Ready":       {"it is in place", &v1alpha1.ChildLayer{Ready: true, Reason: v1alpha1.ReasonSucceeded}, metav1.ConditionTrue, "in place"},
		"Never":       {"it was never looked at", nil, metav1.ConditionFalse, "was never pushed"},
		"Failed":      {"a half of its first push was refused", &v1alpha1.ChildLayer{Reason: v1alpha1.ReasonSeedFailed, Message: "no", LastAttemptedDigest: "d"}, metav1.ConditionFalse, "SeedFailed: no"},
		"NotBegun":    {"nothing of it was sent", &v1alpha1.ChildLayer{Reason: v1alpha1.ReasonDependencyNotReady}, metav1.ConditionFalse, "DependencyNotReady"},
		"Half":        {"a half of a commit was sent, and then its source was gone", &v1alpha1.ChildLayer{Reason: v1alpha1.ReasonSourceNotReady, Digest: "c", LastAttemptedDigest: "d"}, metav1.ConditionFalse, "SourceNotReady"},
		"NothingSent": {"what is in place is all that was sent", &v1alpha1.ChildLayer{Reason: v1alpha1.ReasonSourceNotReady, Digest: "d", LastAttemptedDigest: "d"}, metav1.ConditionTrue, "in place"},
		"Refused":     {"what somebody changed could not be put right", &v1alpha1.ChildLayer{Reason: v1alpha1.ReasonSeedFailed, Digest: "d", LastAttemptedDigest: "d"}, metav1.ConditionFalse, "SeedFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			c := childNamed("a", nil)
			if tc.before != nil {
				tc.before.Name = "base"
				c.Status.Layers = []v1alpha1.ChildLayer{*tc.before}
			}
			r := &run{Children: &Children{Now: func() time.Time { return start.Time }}, child: &c}
			base := layerOn("base")
			base.Spec.Suspend = true
			r.summarizeLayers([]*v1alpha1.Layer{base})
			if entry := entryOf(&c, "base"); entry != nil && !entry.Suspended {
				t.Errorf("%s: the layer is %+v", tc.reason, entry)
			}
			s := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.SeededCondition)
			if s.Status != tc.want || s.Status == metav1.ConditionFalse && s.Reason != v1alpha1.ReasonSuspended || !strings.Contains(s.Message, tc.says) {
				t.Errorf("%s: Seeded is %+v", tc.reason, s)
			}
		})
	}
}
