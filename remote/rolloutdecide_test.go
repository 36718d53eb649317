package remote

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Commits of the repository that a decided Rollout follows, and the revisions of a source on them.
var (
	commit1, commit2     = strings.Repeat("1", 40), strings.Repeat("2", 40)
	revision1, revision2 = "main@sha1:" + commit1, "main@sha1:" + commit2
)

// decided is a Rollout of a layer in a tier with an API server, and the process that decides about it.
type decided struct {
	*Rollouts
	t    *testing.T
	now  time.Time
	from source.Key
}

// newDecided is one whose children have the first commit, which passed all waves.
func newDecided(t *testing.T, change func(*v1alpha1.Rollout, *v1alpha1.Layer), children ...string) *decided {
	t.Helper()
	s := &decided{t: t, now: time.Unix(1_700_000_000, 0), from: source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: types.NamespacedName{Namespace: "fleet", Name: "fleet"}}}
	layer := layerOn("base")
	layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: s.from.Kind, Name: s.from.Name}
	layer.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "tenant"}
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base", UID: "1"}}
	o.Spec.Moves.LayerRef = &v1alpha1.LayerReference{Name: "base"}
	o.Spec.Paths = []string{"base"}
	o.Spec.Waves = []v1alpha1.RolloutWave{{Name: "all"}}
	o.Spec.Deadline.Duration = 30 * time.Minute
	if change != nil {
		change(o, layer)
	}
	objects := []client.Object{o, layer}
	for _, name := range children {
		child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name, UID: types.UID(name), Labels: map[string]string{"tier": "tenant"}}}
		child.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.now)},
			{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.now)},
		}
		child.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Revision: revision1, Digest: "sha256:1", LastAttemptedDigest: "sha256:1", Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: metav1.NewTime(s.now)}}
		objects = append(objects, child)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.Rollout{}, &v1alpha1.Child{}).Build()
	s.Rollouts = &Rollouts{
		Client: c, Reader: c, Snapshots: source.NewSnapshots(), Events: record.NewFakeRecorder(1000), accounts: &account.Accounts{},
		rollouts: &rolloutKind{now: time.Now, served: true}, contents: &contents{}, templates: &templates{}, Now: func() time.Time { return s.now },
	}
	s.exchange = &exchange{Rollouts: s.Rollouts}
	return s
}

// commit has the repository be at a commit.
func (s *decided) commit(commit string) {
	s.t.Helper()
	s.Snapshots.Put(s.from, s.snapshot(commit))
}

func (s *decided) snapshot(commit string) *source.Snapshot {
	s.t.Helper()
	snapshot := *snapshotOf(s.t, map[string]string{"base/a.yaml": commit})
	snapshot.Commit, snapshot.Revision = commit, "main@sha1:"+commit
	return &snapshot
}

// passed has the first commit be the last good one, which all children have.
func (s *decided) passed() {
	s.t.Helper()
	s.commit(commit1)
	for range 3 {
		s.decide()
	}
	if good := s.rollout().Status.LastGood; good == nil || good.Revision != revision1 {
		s.t.Fatalf("the last good revision is %+v", good)
	}
}

// decide decides once.
func (s *decided) decide() ctrl.Result {
	s.t.Helper()
	s.now = s.now.Add(decidePause)
	result, err := s.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "fleet", Name: "base"}})
	if err != nil {
		s.t.Fatal(err)
	}
	return result
}

// after lets time pass, in which the process looks each minute.
func (s *decided) after(d time.Duration) {
	s.t.Helper()
	for ends := s.now.Add(d); s.now.Before(ends); {
		s.now = s.now.Add(min(time.Minute, ends.Sub(s.now)) - decidePause)
		s.decide()
	}
}

func (s *decided) rollout() *v1alpha1.Rollout {
	s.t.Helper()
	o := &v1alpha1.Rollout{}
	if err := s.Client.Get(s.t.Context(), types.NamespacedName{Namespace: "fleet", Name: "base"}, o); err != nil {
		s.t.Fatal(err)
	}
	return o
}

func (s *decided) child(name string) *v1alpha1.Child {
	s.t.Helper()
	child := &v1alpha1.Child{}
	if err := s.Client.Get(s.t.Context(), types.NamespacedName{Namespace: "fleet", Name: name}, child); err != nil {
		s.t.Fatal(err)
	}
	return child
}

// edit changes an object of the tier, its status included.
func (s *decided) edit(o client.Object, change func()) {
	s.t.Helper()
	change()
	status := o.DeepCopyObject().(client.Object)
	if err := s.Client.Update(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
	status.SetResourceVersion(o.GetResourceVersion())
	if _, is := o.(*v1alpha1.Layer); is {
		return
	}
	if err := s.Client.Status().Update(s.t.Context(), status); err != nil {
		s.t.Fatal(err)
	}
}

// takes has a child be ready at what it may have.
func (s *decided) takes(name string) {
	s.t.Helper()
	child := s.child(name)
	s.edit(child, func() {
		child.Status.Rollouts[0].Brought = true
		child.Status.Layers[0].Revision = child.Status.Rollouts[0].Revision
	})
}

// suspend suspends a layer, or resumes it.
func (s *decided) suspend(is bool) {
	s.t.Helper()
	layer := &v1alpha1.Layer{}
	if err := s.Client.Get(s.t.Context(), types.NamespacedName{Namespace: "fleet", Name: "base"}, layer); err != nil {
		s.t.Fatal(err)
	}
	s.edit(layer, func() { layer.Spec.Suspend = is })
}

// has expects what a child may have, and what became of that.
func (s *decided) has(name, revision string, result v1alpha1.RolloutResult) {
	s.t.Helper()
	pins := s.child(name).Status.Rollouts
	if len(pins) != 1 || pins[0].Revision != revision || pins[0].Result != result {
		s.t.Fatalf("%s has %+v, want %s %s; the Rollout says %+v", name, pins, revision, result, meta.FindStatusCondition(s.rollout().Status.Conditions, v1alpha1.ReadyCondition))
	}
}

// says expects a condition of the Rollout.
func (s *decided) says(kind, reason string) {
	s.t.Helper()
	if c := meta.FindStatusCondition(s.rollout().Status.Conditions, kind); c == nil || c.Reason != reason {
		s.t.Fatalf("%s is %+v, want %s", kind, c, reason)
	}
}

// phase expects that of the run.
func (s *decided) phase(want v1alpha1.RolloutPhase) {
	s.t.Helper()
	if run := s.rollout().Status.Run; run == nil || run.Phase != want {
		s.t.Fatalf("the run is %+v, want %s", run, want)
	}
}

// TestAskedAnew: nothing is decided from what was read for another upstream, other keys or other tags than those of the
// spec by now.
func TestAskedAnew(t *testing.T) {
	key := types.NamespacedName{Namespace: "fleet", Name: "base"}
	for name, edited := range map[string]v1alpha1.RolloutUpstream{
		"Upstream": {Name: "preprod"},
		"Keys":     {Name: "staging", Verify: &v1alpha1.RolloutKeys{SecretRef: v1alpha1.LocalReference{Name: "staging"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newDecided(t, func(o *v1alpha1.Rollout, _ *v1alpha1.Layer) {
				o.Spec.Upstream = &v1alpha1.RolloutUpstream{Name: "staging", MinAge: &metav1.Duration{Duration: 24 * time.Hour}}
			}, "a")
			proved := []rollout.Proof{{Commit: commit1, Run: 1, Proven: s.now.Add(-100 * time.Hour)}}
			keeps := func() {
				s.exchange.keep(key, &exchanged{asked: askedOf(s.rollout(), s.from), upstream: &rollout.Upstream{Proofs: proved}})
			}
			keeps()
			s.passed()
			s.commit(commit2)
			proved = append([]rollout.Proof{{Commit: commit2, Run: 2, Proven: s.now.Add(-time.Hour)}}, proved...)
			keeps()
			s.decide()
			s.says(v1alpha1.UpstreamCondition, v1alpha1.ReasonAwaitingUpstream)
			o := s.rollout()
			s.edit(o, func() { o.Spec.Upstream = &edited })
			s.decide()
			s.has("a", revision1, v1alpha1.ResultSucceeded)
			s.says(v1alpha1.UpstreamCondition, v1alpha1.ReasonAwaitingUpstream)
			if up := s.rollout().Status.Upstream; edited.Name != "staging" && up.Taken != nil {
				t.Errorf("it says that %+v was taken of %s", up.Taken, up.Name)
			}
			keeps()
			s.decide()
			s.has("a", revision2, v1alpha1.ResultUpdating)
			o = s.rollout()
			s.edit(o, func() { o.Spec.Upstream.MinAge = &metav1.Duration{Duration: time.Hour} })
			if s.exchange.about(o, s.from) == nil {
				t.Error("what was read is not known any more for another age")
			}
		})
	}
	t.Run("Tags", func(t *testing.T) {
		s := newDecided(t, func(o *v1alpha1.Rollout, _ *v1alpha1.Layer) {
			o.Spec.Waves[0].Approval = v1alpha1.ApprovalRequired
			o.Spec.ApprovalTags = &v1alpha1.RolloutApprovalTags{SecretRef: v1alpha1.LocalReference{Name: "approvers"}}
		}, "a")
		s.passed()
		s.commit(commit2)
		read := &exchanged{asked: askedOf(s.rollout(), s.from), approvals: []rollout.Approval{{Wave: "all", Revision: commit2, By: "ann", Tag: "x", Key: "y"}}}
		o := s.rollout()
		s.edit(o, func() { o.Spec.ApprovalTags.SecretRef.Name = "others" })
		s.exchange.keep(key, read)
		s.decide()
		s.has("a", revision1, v1alpha1.ResultSucceeded)
		s.says(v1alpha1.ReadyCondition, v1alpha1.ReasonAwaitingApproval)
		o = s.rollout()
		s.edit(o, func() { o.Spec.ApprovalTags.SecretRef.Name = "approvers" })
		s.decide()
		s.has("a", revision2, v1alpha1.ResultUpdating)
	})
}

// authorizer is an API server that answers whether an account may do something.
type authorizer struct {
	client.Reader
	allowed bool
	fails   error
}

func (a *authorizer) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	o.(*authzv1.SelfSubjectAccessReview).Status.Allowed = a.allowed
	return a.fails
}

// TestRefusedIsLookedAtAgain: nothing tells when a layer's account may use its source, or the API server answers that, so
// that a Rollout which is refused for it is looked at again by itself.
func TestRefusedIsLookedAtAgain(t *testing.T) {
	asking := &authorizer{}
	s := newDecided(t, func(_ *v1alpha1.Rollout, layer *v1alpha1.Layer) {
		layer.Spec.ServiceAccountName, layer.Spec.SourceRef.Namespace = "pusher", "shared"
	}, "a")
	s.from.Namespace = "shared"
	s.accounts = &account.Accounts{Now: func() time.Time { return s.now }, As: func(context.Context, string) (account.Caller, error) { return asking, nil }}
	refused := func(reason string) {
		t.Helper()
		result := s.decide()
		if s.says(v1alpha1.ReadyCondition, v1alpha1.ReasonSourceNotReady); result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
			t.Errorf("%s: it is looked at after %s", reason, result.RequeueAfter)
		}
		s.now = s.now.Add(result.RequeueAfter)
	}
	s.commit(commit1)
	refused("nobody let it yet")
	asking.allowed = true
	s.passed()
	s.commit(commit2)
	s.now = s.now.Add(2 * time.Minute)
	asking.fails = errors.New("the authorizer does not answer")
	refused("nobody knows")
	refused("nobody knows still")
	asking.fails = nil
	s.decide()
	s.has("a", revision2, v1alpha1.ResultUpdating)
}
