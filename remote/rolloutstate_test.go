package remote

import (
	"errors"
	"strings"
	"testing"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestSayNoClusters: what makes the clusters of a Rollout may wait for the Rollout, which so is
// ready without any, and never by that for a revision that was taken back or aborted.
func TestSayNoClusters(t *testing.T) {
	for _, tt := range []struct {
		reason string
		phase  v1alpha1.RolloutPhase
		newest string
		want   metav1.ConditionStatus
		says   string
	}{
		{"before the first run", "", "", metav1.ConditionTrue, v1alpha1.ReasonNoChildren},
		{"the last cluster of a run went", v1alpha1.RolloutProgressing, "v2", metav1.ConditionTrue, v1alpha1.ReasonNoChildren},
		{"a run ended for the next one", v1alpha1.RolloutSuperseded, "v3", metav1.ConditionTrue, v1alpha1.ReasonNoChildren},
		{"the last run passed", v1alpha1.RolloutCompleted, "v2", metav1.ConditionTrue, v1alpha1.ReasonSucceeded},
		{"the last run was aborted", v1alpha1.RolloutAborted, "v2", metav1.ConditionFalse, v1alpha1.ReasonAborted},
		{"the last run was reverted", v1alpha1.RolloutReverted, "v2", metav1.ConditionFalse, v1alpha1.ReasonReverted},
		{"and another commit came since", v1alpha1.RolloutAborted, "v3", metav1.ConditionTrue, v1alpha1.ReasonNoChildren},
		{"a commit came since the last run passed", v1alpha1.RolloutCompleted, "v3", metav1.ConditionTrue, v1alpha1.ReasonNoChildren},
		{"which mends it", v1alpha1.RolloutReverted, "v3", metav1.ConditionTrue, v1alpha1.ReasonNoChildren},
	} {
		o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "web"}}
		if tt.phase != "" {
			o.Status.Run = &v1alpha1.RolloutRun{RolloutRevision: v1alpha1.RolloutRevision{Revision: "v2"}, Phase: tt.phase}
			o.Status.Candidate = &v1alpha1.RolloutRevision{Revision: tt.newest}
		}
		sayRollout(o, rollout.Hold{Reason: v1alpha1.ReasonNoChildren, Message: "no cluster is selected"})
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition); c.Status != tt.want || c.Reason != tt.says {
			t.Errorf("%s: %s %s, want %s %s", tt.reason, c.Status, c.Reason, tt.want, tt.says)
		}
		metrics := NewRolloutMetrics(prometheus.NewRegistry())
		metrics.record(o)
		alerts := false
		for _, phase := range []v1alpha1.RolloutPhase{v1alpha1.RolloutReverted, v1alpha1.RolloutAborted, v1alpha1.RolloutProgressing} {
			alerts = alerts || testutil.ToFloat64(metrics.phase.WithLabelValues("fleet", "web", string(phase))) > 0
		}
		if alerts != (tt.want == metav1.ConditionFalse) {
			t.Errorf("%s: it is in the metrics as one that was taken back or aborted, or is on its way: %t", tt.reason, alerts)
		}
	}
}

// TestTellConditions: what a Rollout reads and writes beside its runs is told when it fails, and when that is over.
func TestTellConditions(t *testing.T) {
	published := func(status metav1.ConditionStatus, reason string) *v1alpha1.Rollout {
		o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "web"}}
		if reason != "" {
			meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.PublishedCondition, Status: status, Reason: reason, Message: "it is so"})
		}
		return o
	}
	fails, works, asksNot := published(metav1.ConditionFalse, v1alpha1.ReasonPublishFailed), published(metav1.ConditionTrue, v1alpha1.ReasonSucceeded), published("", "")
	for name, tc := range map[string]struct {
		reason  string
		was, is *v1alpha1.Rollout
		want    string
	}{
		"Fails":     {"it fails", works, fails, "Warning PublishFailed it is so"},
		"Still":     {"it was told", fails, fails, ""},
		"Otherwise": {"it fails for another reason", fails, published(metav1.ConditionFalse, v1alpha1.ReasonSourceNotReady), "Warning SourceNotReady it is so"},
		"Recovers":  {"it is mended", fails, works, "Normal PublishedRecovered condition Published is no longer False, for PublishFailed"},
		"Dropped":   {"the spec does not ask for it any more", fails, asksNot, "Normal PublishedRecovered condition Published is no longer False, for PublishFailed"},
		"Well":      {"nothing was wrong", asksNot, works, ""},
	} {
		t.Run(name, func(t *testing.T) {
			events := record.NewFakeRecorder(10)
			(&Rollouts{Events: events}).tell(tc.was, tc.is)
			got := ""
			select {
			case got = <-events.Events:
			default:
			}
			if text, annotations, _ := strings.Cut(got, "map["); strings.TrimSpace(text) != tc.want || (tc.want != "") != strings.Contains(annotations, v1alpha1.Group+"/condition:Published") {
				t.Errorf("%s: told %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestSayBack: a source that is back at the last good revision has nothing to mend, and alerts nobody.
func TestSayBack(t *testing.T) {
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "web"}}
	good, bad := v1alpha1.RolloutRevision{Revision: "v1"}, v1alpha1.RolloutRevision{Revision: "v2"}
	o.Status.Run = &v1alpha1.RolloutRun{RolloutRevision: bad, Phase: v1alpha1.RolloutReverted}
	o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: good}
	registry := prometheus.NewRegistry()
	metrics := NewRolloutMetrics(registry)
	for _, tt := range []struct {
		newest      v1alpha1.RolloutRevision
		want, phase string
	}{{bad, v1alpha1.ReasonReverted, "Reverted"}, {good, v1alpha1.ReasonSucceeded, "Completed"}} {
		o.Status.Candidate = &tt.newest
		sayRollout(o, rollout.Hold{})
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition); c.Reason != tt.want {
			t.Errorf("the newest is %s, and it says %s: %s", tt.newest.Revision, c.Reason, c.Message)
		}
		metrics.record(o)
		want := `# HELP cascade_rollout_phase 1 for the phase that the run of the Rollout is in; Completed, too, once the source and all clusters are back at the last good revision, and while there is no cluster to bring a revision to.
# TYPE cascade_rollout_phase gauge
cascade_rollout_phase{name="web",namespace="fleet",phase="` + tt.phase + `"} 1
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "cascade_rollout_phase"); err != nil {
			t.Errorf("the newest is %s: %v", tt.newest.Revision, err)
		}
	}
}

// TestRefusedMeasured: what is wrong with a Rollout is in the metrics, also of one about which a new
// process never decides.
func TestRefusedMeasured(t *testing.T) {
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "web", Generation: 2}}
	o.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no label": ""}}
	o.Status.Run = &v1alpha1.RolloutRun{Phase: v1alpha1.RolloutHalted}
	o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.UpstreamCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonUpstreamUnreadable}}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	now := time.Unix(1_700_000_000, 0)
	r := &Rollouts{
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build(), Events: record.NewFakeRecorder(10),
		Metrics: NewRolloutMetrics(registry), Now: func() time.Time { return now }, Snapshots: source.NewSnapshots(), exchange: &exchange{},
	}
	for _, tt := range []struct {
		reason string
		change func()
		want   string
	}{
		{"its spec is wrong", func() {}, `
# HELP cascade_rollout_condition 0 for each condition of the Rollout that is False, of Ready, Upstream, Published and ApprovalTags; absent otherwise, while it is suspended, and for Ready where the phase of the run is the reason.
# TYPE cascade_rollout_condition gauge
cascade_rollout_condition{condition="Ready",name="web",namespace="fleet"} 0
cascade_rollout_condition{condition="Upstream",name="web",namespace="fleet"} 0
# HELP cascade_rollout_phase 1 for the phase that the run of the Rollout is in; Completed, too, once the source and all clusters are back at the last good revision, and while there is no cluster to bring a revision to.
# TYPE cascade_rollout_phase gauge
cascade_rollout_phase{name="web",namespace="fleet",phase="Halted"} 1
`},
		{"other labels make it another agent's", func() { r.Part.Selects = func(client.Object) bool { return false } }, ""},
	} {
		tt.change()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
			t.Fatalf("%s: %v", tt.reason, err)
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(tt.want), "cascade_rollout_condition", "cascade_rollout_phase"); err != nil {
			t.Errorf("%s: %v", tt.reason, err)
		}
		now = now.Add(time.Minute)
	}
}

// TestRefusedAnswers: who asks for a Rollout that is refused is answered, as by what is wrong with it.
func TestRefusedAnswers(t *testing.T) {
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "web", Annotations: map[string]string{fluxmeta.ReconcileRequestAnnotation: "asked"}}}
	o.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no label": ""}}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &Rollouts{
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build(), Events: record.NewFakeRecorder(10),
		Now: func() time.Time { return time.Unix(1_700_000_000, 0) }, Snapshots: source.NewSnapshots(), exchange: &exchange{},
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
		t.Fatal(err)
	}
	after := &v1alpha1.Rollout{}
	if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(o), after); err != nil {
		t.Fatal(err)
	}
	c := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ReadyCondition)
	if after.Status.LastHandledReconcileAt != "asked" || c == nil || c.Reason != v1alpha1.ReasonInvalidSpec {
		t.Errorf("it handled %q, and is %+v", after.Status.LastHandledReconcileAt, c)
	}
}

// TestUnread: of a Rollout whose spec cannot be read nothing is decided, by what is left of it, and its run
// stays. That is told as what a person mends, not as what one suspended.
func TestUnread(t *testing.T) {
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "web", Generation: 2}}
	o.Annotations = map[string]string{v1alpha1.UnreadAnnotation: "cannot read spec.deadline: 9999999h"}
	o.Spec.Moves, o.Spec.Suspend = v1alpha1.RolloutMoves{LayerRef: &v1alpha1.LayerReference{Name: "base"}}, true
	o.Status.Run = &v1alpha1.RolloutRun{RolloutRevision: v1alpha1.RolloutRevision{Revision: "v2"}, Phase: v1alpha1.RolloutProgressing}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	r := &Rollouts{
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build(), Events: record.NewFakeRecorder(10),
		Metrics: NewRolloutMetrics(registry), Now: func() time.Time { return time.Unix(1_700_000_000, 0) }, Snapshots: source.NewSnapshots(), exchange: &exchange{},
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
		t.Fatal(err)
	}
	after := &v1alpha1.Rollout{}
	if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(o), after); err != nil {
		t.Fatal(err)
	}
	c := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ReadyCondition)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonInvalidSpec || !strings.Contains(c.Message, "spec.deadline") {
		t.Errorf("it is %+v", c)
	}
	if run := after.Status.Run; run == nil || run.Revision != "v2" || run.Phase != v1alpha1.RolloutProgressing {
		t.Errorf("its run is %+v", run)
	}
	if n, err := testutil.GatherAndCount(registry, "cascade_rollout_condition"); err != nil || n != 1 {
		t.Errorf("%d conditions are measured as False, %v", n, err)
	}
}

// TestPhaseMeasured: what the phase of a run tells is told once, and a Rollout that is refused in such a
// phase is told of by its condition.
func TestPhaseMeasured(t *testing.T) {
	for _, tt := range []struct {
		why     string
		refused error
		want    int
	}{
		{"a person aborted it, and knows", nil, 0},
		{"no commit comes to any cluster", reason.Because(v1alpha1.ReasonInvalidSpec, errors.New("no")), 1},
	} {
		o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "web"}}
		o.Status.Run = &v1alpha1.RolloutRun{RolloutRevision: v1alpha1.RolloutRevision{Revision: "v2"}, Phase: v1alpha1.RolloutAborted}
		sayRollout(o, rollout.Hold{})
		if tt.refused != nil {
			sayRefused(o, reason.Of(tt.refused), tt.refused.Error())
		}
		registry := prometheus.NewRegistry()
		NewRolloutMetrics(registry).record(o)
		if n, err := testutil.GatherAndCount(registry, "cascade_rollout_condition"); err != nil || n != tt.want {
			t.Errorf("%s: %d conditions are measured as False, %v", tt.why, n, err)
		}
	}
}

// TestSayUpstreamMissing: an environment that is new waits for the first proof, and alerts nobody.
func TestSayUpstreamMissing(t *testing.T) {
	for _, tt := range []struct {
		reason string
		taken  *v1alpha1.RolloutProof
		run    *v1alpha1.RolloutRun
		want   metav1.ConditionStatus
	}{
		{"nothing was proven yet", nil, nil, metav1.ConditionUnknown},
		{"it was there, and is gone", &v1alpha1.RolloutProof{Commit: "c"}, nil, metav1.ConditionFalse},
		{"it had another upstream, and this one is not there: its name is wrong", nil, &v1alpha1.RolloutRun{Phase: v1alpha1.RolloutCompleted}, metav1.ConditionFalse},
	} {
		o := &v1alpha1.Rollout{}
		o.Status.Run = tt.run
		o.Spec.Upstream = &v1alpha1.RolloutUpstream{Name: "staging"}
		o.Status.Upstream = &v1alpha1.RolloutUpstreamStatus{Name: "staging", Taken: tt.taken}
		sayExchange(o, nil, rollout.Hold{Reason: v1alpha1.ReasonUpstreamMissing, Message: "no"}, false)
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.UpstreamCondition); c.Status != tt.want {
			t.Errorf("%s: %s, want %s", tt.reason, c.Status, tt.want)
		}
	}
}

// TestRolloutMoves: other labels wake the agent that they take a Rollout from, and the one that
// gets it.
func TestRolloutMoves(t *testing.T) {
	labelled := func(agent, team string) *v1alpha1.Rollout {
		return &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"agent": agent, "team": team}}}
	}
	passes := Part{Selects: func(o client.Object) bool { return o.GetLabels()["agent"] == "a" }}.moved()
	for _, tt := range []struct {
		reason        string
		before, after *v1alpha1.Rollout
		want          bool
	}{
		{"it goes", labelled("a", "x"), labelled("b", "x"), true},
		{"it comes", labelled("b", "x"), labelled("a", "x"), true},
		{"it stays", labelled("a", "x"), labelled("a", "y"), false},
	} {
		if got := passes.Update(event.TypedUpdateEvent[*v1alpha1.Rollout]{ObjectOld: tt.before, ObjectNew: tt.after}); got != tt.want {
			t.Errorf("%s: it wakes: %t, want %t", tt.reason, got, tt.want)
		}
	}
}

// TestLastWritten: the clock of the API server tells when the status of a Rollout was written last. One that was set back is believed
// once it was so for an hour: it may be on the machine of this process, and both wrong for a while.
func TestLastWritten(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	r := &Rollouts{Now: func() time.Time { return now }}
	key := writtenKey{NamespacedName: types.NamespacedName{Namespace: "fleet", Name: "web"}}
	day := func(n int) time.Time { return time.Unix(int64(n)*24*3600, 0) }
	for _, tt := range []struct {
		reason string
		after  time.Duration
		at     []int
		want   time.Time
	}{
		{"its clock tells nothing", 0, nil, time.Time{}},
		{"it was approved after its status was written", 0, []int{4}, day(4)},
		{"it goes on", time.Minute, []int{5}, day(5)},
		{"it was set back", 59 * time.Minute, []int{3}, day(5)},
		{"nobody put it right for an hour", time.Minute, []int{3}, day(3)},
	} {
		now = now.Add(tt.after)
		o := rolloutNamed("web", movesLayer("base"))
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Time: &metav1.Time{Time: day(8)}}}
		for _, n := range tt.at {
			o.ManagedFields = append(o.ManagedFields, metav1.ManagedFieldsEntry{Manager: statusManager, Subresource: "status", Time: &metav1.Time{Time: day(n)}})
		}
		r.wrote(key, o)
		r.wrote(writtenKey{true, key.NamespacedName}, &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: statusManager, Subresource: "status", Time: &metav1.Time{Time: day(9)}}}}})
		if got := r.lastWritten(key.NamespacedName); !got.Equal(tt.want) {
			t.Errorf("%s: it was written at %s, want %s", tt.reason, got, tt.want)
		}
	}
	r.Snapshots, r.exchange, r.Metrics = source.NewSnapshots(), &exchange{}, NewRolloutMetrics(prometheus.NewRegistry())
	if r.forget(key.NamespacedName); !r.lastWritten(key.NamespacedName).IsZero() {
		t.Error("it is known of one that is gone")
	}
}

// TestWatching: a process watches a Rollout since it looked first, or again after a time in which it did not, as while
// its machine slept or its clock was ahead.
func TestWatching(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	r := &Rollouts{Now: func() time.Time { return now }}
	began := now
	for _, tt := range []struct {
		reason string
		after  time.Duration
		anew   bool
	}{
		{"the first look", 0, true},
		{"the next one", time.Minute, false},
		{"and one that is late", 2 * time.Minute, false},
		{"nobody looked for a while", 3 * time.Minute, true},
		{"the clock is right again", -time.Second, true},
	} {
		if now = now.Add(tt.after); tt.anew {
			began = now
		}
		if got := r.watching(types.NamespacedName{Name: "web"}); !got.Equal(began) {
			t.Errorf("%s: it watches since %s, want %s", tt.reason, got, began)
		}
	}
}

// TestTellConditionsOfNoCommit: what is wrong beside a run says nothing of its commit, which all clusters may have for
// weeks.
func TestTellConditionsOfNoCommit(t *testing.T) {
	of := func(status metav1.ConditionStatus, reason string) *v1alpha1.Rollout {
		o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "web"}}
		o.Status.Run = &v1alpha1.RolloutRun{Number: 7, Phase: v1alpha1.RolloutCompleted, RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:b"}}
		o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.UpstreamCondition, Status: status, Reason: reason, Message: "why"}}
		return o
	}
	well, away := of(metav1.ConditionTrue, v1alpha1.ReasonSucceeded), of(metav1.ConditionFalse, v1alpha1.ReasonUpstreamUnreadable)
	events := record.NewFakeRecorder(10)
	(&Rollouts{Events: events}).tell(well, away)
	(&Rollouts{Events: events}).tell(away, well)
	close(events.Events)
	told := 0
	for e := range events.Events {
		if told++; strings.Contains(e, "main@sha1:b") {
			t.Errorf("told is %q", e)
		}
	}
	if told != 2 {
		t.Errorf("%d events", told)
	}
}
