package remote

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	events "k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// TestGivenBack: a child that is being sent another revision is not ready at the one before it, which a Rollout gives
// it back, by what was said of it before; and it is not sent what was taken back by then.
func TestGivenBack(t *testing.T) {
	base, other := rolloutNamed("base", movesLayer("base")), pinTo("other", "r9", "")
	first, second := pinTo("base", "r1", ""), pinTo("base", "r2", "")
	first.Result, second.Result = v1alpha1.ResultUpdating, v1alpha1.ResultUpdating
	inPlace := v1alpha1.ChildLayer{Name: "base", Ready: true, Reason: v1alpha1.ReasonSucceeded, Revision: "r1", Digest: "sha256:of-r1", LastAttemptedRevision: "r1", LastAttemptedDigest: "sha256:of-r1"}
	failing := inPlace
	failing.Ready, failing.Reason = false, v1alpha1.ReasonSeedFailed
	for name, tc := range map[string]struct {
		reason string
		said   v1alpha1.ChildLayer
		tried  string
		unpins bool
		// meanwhile is what Rollouts wrote since the run began.
		meanwhile []v1alpha1.ChildRollout
		waits     bool
		writes    bool
	}{
		"Sent":     {"it is on its way", inPlace, "r2", false, nil, false, true},
		"Others":   {"another Rollout wrote into the Child", inPlace, "r2", false, []v1alpha1.ChildRollout{second, other}, false, true},
		"Back":     {"it was taken back before anything was sent", inPlace, "r2", false, []v1alpha1.ChildRollout{first}, true, false},
		"Content":  {"what is there is compared", inPlace, "r1", false, nil, false, false},
		"NotReady": {"nobody takes it for ready", failing, "r2", false, nil, false, false},
		"Unmoved":  {"no Rollout moves the layer", inPlace, "r2", true, nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			child := childNamed("a", []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}})
			child.Status.Layers, child.Status.Rollouts = []v1alpha1.ChildLayer{tc.said}, []v1alpha1.ChildRollout{second}
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&child).WithStatusSubresource(&child).Build()
			get := func() *v1alpha1.Child {
				t.Helper()
				got := &v1alpha1.Child{}
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(&child), got); err != nil {
					t.Fatal(err)
				}
				return got
			}
			f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
			f.children.Client, f.children.Cluster, f.children.Events = c, &apply.Cluster{Client: c}, events.NewFakeRecorder(10)
			s := f.on(0)
			s.run.child, s.run.notes, s.governing = get(), &notes{}, rollout.Governing{base}
			s.run.recorded = s.run.child.DeepCopy()
			if !tc.unpins {
				s.pin = &s.child.Status.Rollouts[0].RolloutRevision
			}
			if tc.meanwhile != nil {
				live := get()
				live.Status.Rollouts = tc.meanwhile
				if err := c.Status().Update(t.Context(), live); err != nil {
					t.Fatal(err)
				}
			}
			was, entry := get().ResourceVersion, entryOf(s.child, "base")
			s.notes = &layerNotes{inputs: "what is about to be sent"}
			err := s.begins(t.Context(), entry, record.State{Revision: tc.tried, Digest: "sha256:of-" + tc.tried})
			if isWaitingError(err) != tc.waits || err != nil && !tc.waits {
				t.Fatalf("%s: begins() = %v, want it to wait: %t", tc.reason, err, tc.waits)
			}
			if sent := s.notes.inputs != ""; sent == tc.waits {
				t.Errorf("%s: it counts as sent: %t", tc.reason, sent)
			}
			live := get()
			if (live.ResourceVersion != was) != tc.writes {
				t.Errorf("%s: the Child is %+v", tc.reason, live.Status)
			}
			ready := (&moved{spec: &base.Spec, layer: f.layer}).cluster(base, live, &first).Ready
			if want := tc.said.Ready && !tc.writes; ready != want {
				t.Errorf("%s: given back what it had, it is ready: %t, want %t", tc.reason, ready, want)
			}
			if said := entryOf(live, "base"); said.Ready != tc.said.Ready || said.Revision != "r1" || said.LastAttemptedRevision != entry.LastAttemptedRevision {
				t.Errorf("%s: the status says %+v, and the run %+v", tc.reason, said, entry)
			}
			if tc.writes {
				// The end of the run goes on from there.
				entry.Ready, entry.Reason = false, v1alpha1.ReasonSeedFailed
				if err := s.writeStatus(t.Context()); err != nil || entryOf(get(), "base").Ready || entryOf(s.before, "base").LastAttemptedRevision != "r1" {
					t.Errorf("%s: at the end it is %+v: %v", tc.reason, get().Status, err)
				}
			}
		})
	}
}
