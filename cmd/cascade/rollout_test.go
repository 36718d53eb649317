package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// aRollout is on its way from shaOne to shaTwo, in the second of three waves.
func aRollout(name string, phase v1alpha1.RolloutPhase) *v1alpha1.Rollout {
	waves := []v1alpha1.RolloutWave{
		{Name: "canary", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "true"}}},
		{Name: "staging", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "staging"}}},
		{Name: "production", Approval: v1alpha1.ApprovalRequired},
	}
	r := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
	r.Spec.Waves = waves
	revision := v1alpha1.RolloutRevision{Revision: shaTwo}
	r.Status.Candidate = &revision
	r.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: v1alpha1.RolloutRevision{Revision: shaOne}, Run: 3, At: ago(26 * time.Hour)}
	r.Status.Run = &v1alpha1.RolloutRun{
		Number: 4, RolloutRevision: revision, Phase: phase, Terms: v1alpha1.RolloutTerms{Waves: waves}, Wave: 1, Begun: true,
		Began: ago(2 * time.Hour), Since: ago(2 * time.Hour),
	}
	r.Status.Clusters = v1alpha1.RolloutCounts{Total: 112, Updated: 3, Updating: 1, Pending: 106, Failed: 1, Deferred: 1}
	r.Status.Waves = []v1alpha1.RolloutWaveStatus{
		{Name: "canary", RolloutCounts: v1alpha1.RolloutCounts{Total: 2, Updated: 2}},
		{Name: "staging", RolloutCounts: v1alpha1.RolloutCounts{Total: 10, Updated: 1, Updating: 1, Pending: 6, Failed: 1, Deferred: 1}},
		{Name: "production", RolloutCounts: v1alpha1.RolloutCounts{Total: 100, Pending: 100}},
	}
	r.Status.Failing = []v1alpha1.Failure{{Name: "shop", Reason: v1alpha1.ReasonDeadlineExceeded, Message: "not ready at " + shaTwo}}
	r.Status.Unassigned = 2
	r.Status.Conditions = conditions("Ready", metav1.ConditionFalse, v1alpha1.ReasonProgressing, "wave staging changes", time.Hour)
	r.Status.History = []v1alpha1.RolloutHistory{
		{Number: 3, RolloutRevision: v1alpha1.RolloutRevision{Revision: shaOne}, Phase: v1alpha1.RolloutCompleted, Began: ago(30 * time.Hour), Ended: ago(26 * time.Hour), Failed: 1},
		{Number: 2, RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:3333333333333333333333333333333333333333"}, Phase: v1alpha1.RolloutReverted, Began: ago(50 * time.Hour), Ended: ago(49 * time.Hour), Failed: 4},
	}
	return r
}

func awaitingRollout() *v1alpha1.Rollout {
	r := aRollout("awaiting", v1alpha1.RolloutProgressing)
	r.Status.Run.Wave, r.Status.Run.Begun = 2, false
	r.Status.Failing, r.Status.Unassigned = nil, 0
	r.Status.Conditions = conditions("Ready", metav1.ConditionFalse, v1alpha1.ReasonAwaitingApproval, "wave production waits for an approval", time.Hour)
	return r
}

func rolloutClient(objects ...client.Object) client.Client {
	return fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, cl client.WithWatch, o client.Object, options ...client.CreateOption) error {
			review, ok := o.(*authenticationv1.SelfSubjectReview)
			if !ok {
				return errors.New("the verb writes something new")
			}
			review.Status.UserInfo.Username = "jane"
			return nil
		},
	}).Build()
}

// pieces of what can be asked of a Rollout, for the tests.
func readBack(t *testing.T, cl client.Client, name string) *v1alpha1.Rollout {
	t.Helper()
	r := &v1alpha1.Rollout{}
	if err := cl.Get(t.Context(), client.ObjectKey{Namespace: "fleet", Name: name}, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRolloutStatus(t *testing.T) {
	suspended := aRollout("suspended", v1alpha1.RolloutProgressing)
	suspended.Spec.Suspend = true
	newer := aRollout("newer", v1alpha1.RolloutProgressing)
	newer.Status.Candidate = &v1alpha1.RolloutRevision{Revision: "main@sha1:4444444444444444444444444444444444444444"}
	completed := aRollout("completed", v1alpha1.RolloutCompleted)
	completed.Status.Conditions = conditions("Ready", metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "", time.Hour)
	completed.Status.Failing = nil
	soaking := aRollout("soaking", v1alpha1.RolloutProgressing)
	since := ago(time.Minute)
	soaking.Status.Run.SoakSince, soaking.Status.Failing = &since, nil
	soaking.Status.Conditions = conditions("Ready", metav1.ConditionFalse, v1alpha1.ReasonSoaking, "wave staging is ready at "+shaTwo+" since 11:59:00, and soaks for 30m0s", time.Minute)
	promoted := awaitingRollout()
	promoted.Spec.Upstream = &v1alpha1.RolloutUpstream{Name: "staging-base", MinAge: &metav1.Duration{Duration: 24 * time.Hour}}
	promoted.Spec.Publish = &v1alpha1.RolloutPublish{Name: "production-base"}
	promoted.Spec.ApprovalTags = &v1alpha1.RolloutApprovalTags{}
	taken := v1alpha1.RolloutProof{Commit: strings.Repeat("2", 40), Run: 7, Proven: ago(30 * time.Hour)}
	promoted.Status.Upstream = &v1alpha1.RolloutUpstreamStatus{Newest: &v1alpha1.RolloutProof{Commit: strings.Repeat("5", 40), Run: 9, Proven: ago(time.Hour)}, Taken: &taken}
	promoted.Status.Published = &v1alpha1.RolloutProof{Commit: strings.Repeat("1", 40), Run: 3, Proven: ago(26 * time.Hour)}
	promoted.Status.Run.Approvals = []v1alpha1.RolloutApproval{{Wave: "staging", By: "Ann <ann@example.com>", At: ago(time.Hour), Tag: "cascade/approve/production-base/staging", Key: "SHA256:abc"}}
	for kind, says := range map[string][2]string{
		v1alpha1.UpstreamCondition:     {v1alpha1.ReasonAwaitingUpstream, "staging-base runs it since 11:00, and is to for 24h0m0s"},
		v1alpha1.PublishedCondition:    {v1alpha1.ReasonPublishFailed, "the server refuses it"},
		v1alpha1.ApprovalTagsCondition: {v1alpha1.ReasonTagRefused, "refs/tags/cascade/approve/production-base/production approves nothing: it is not signed"},
	} {
		promoted.Status.Conditions = append(promoted.Status.Conditions, conditions(kind, metav1.ConditionFalse, says[0], says[1], time.Hour)...)
	}
	for name, r := range map[string]*v1alpha1.Rollout{
		"promoted": promoted, "progressing": newer, "awaiting": awaitingRollout(), "halted": aRollout("base", v1alpha1.RolloutHalted), "suspended": suspended, "completed": completed,
		"soaking": soaking, "new": {ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := printRollout(&out, r, noon); err != nil {
				t.Fatal(err)
			}
			golden(t, "rollout-"+name+".txt", out.String())
		})
	}
}

func TestRolloutHistory(t *testing.T) {
	cl := rolloutClient(aRollout("base", v1alpha1.RolloutProgressing))
	c, out := newCLI(t)
	if err := c.rolloutHistory(t.Context(), cl, client.ObjectKey{Namespace: "fleet", Name: "base"}); err != nil {
		t.Fatal(err)
	}
	golden(t, "rollout-history.txt", out.String())
}

func TestEnded(t *testing.T) {
	newer := aRollout("r", v1alpha1.RolloutCompleted)
	newer.Status.Candidate = &v1alpha1.RolloutRevision{Revision: "main@sha1:4444444444444444444444444444444444444444"}
	edited := aRollout("r", v1alpha1.RolloutCompleted)
	edited.Generation = 2
	untouched := func(phase v1alpha1.RolloutPhase) *v1alpha1.Rollout {
		o := aRollout("r", phase)
		o.Status.Candidate = o.Status.Run.RolloutRevision.DeepCopy()
		o.Status.ObservedRevision = "main@sha1:5555555555555555555555555555555555555555"
		return o
	}
	for name, tc := range map[string]struct {
		reason   string
		rollout  *v1alpha1.Rollout
		revision string
		want     v1alpha1.RolloutPhase
	}{
		"Progressing": {"it goes on", aRollout("r", v1alpha1.RolloutProgressing), "", ""},
		"Awaiting":    {"a person may approve while somebody watches", awaitingRollout(), "", ""},
		"Reverting":   {"it goes on", aRollout("r", v1alpha1.RolloutReverting), "", ""},
		"Halted":      {"it does not go on by itself", aRollout("r", v1alpha1.RolloutHalted), "", v1alpha1.RolloutHalted},
		"Completed":   {"all waves were passed", aRollout("r", v1alpha1.RolloutCompleted), "", v1alpha1.RolloutCompleted},
		"Newer":       {"the run of a newer revision is about to begin", newer, "", ""},
		"Edited":      {"the status is about an earlier spec", edited, "", ""},
		"Named":       {"the run that is asked for", newer, "222222222222", v1alpha1.RolloutCompleted},
		"Past":        {"a run that ended before", newer, "111111111111", v1alpha1.RolloutCompleted},
		"PastBad":     {"a run that ended badly before", newer, "3333333333333333333333333333333333333333", v1alpha1.RolloutReverted},
		"Future":      {"no run had the revision yet", aRollout("r", v1alpha1.RolloutCompleted), "555555555555", ""},
		"Untouched":   {"it changes nothing for the clusters, and never has a run", untouched(v1alpha1.RolloutCompleted), "555555555555", v1alpha1.RolloutCompleted},
		"Underway":    {"the clusters are about to get what it has", untouched(v1alpha1.RolloutProgressing), "555555555555", ""},
		"Bad":         {"what it has was halted", untouched(v1alpha1.RolloutHalted), "555555555555", v1alpha1.RolloutHalted},
		"Unobserved":  {"nobody has looked at it yet", untouched(v1alpha1.RolloutCompleted), "666666666666", ""},
		"New":         {"there is no run yet", &v1alpha1.Rollout{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ended(tc.rollout, tc.revision); got != tc.want {
				t.Errorf("%s: ended() = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestWatchRollout(t *testing.T) {
	for _, tc := range []struct {
		reason string
		phase  v1alpha1.RolloutPhase
		err    error
	}{
		{"completed is success", v1alpha1.RolloutCompleted, nil},
		{"halted is none", v1alpha1.RolloutHalted, errNotReady},
		{"nor is aborted", v1alpha1.RolloutAborted, errNotReady},
		{"what takes longer than one waits is none", v1alpha1.RolloutProgressing, context.DeadlineExceeded},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			c, out := newCLI(t)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			err := c.watchRollout(ctx, rolloutClient(aRollout("base", tc.phase)), client.ObjectKey{Namespace: "fleet", Name: "base"}, "", time.Millisecond)
			if !errors.Is(err, tc.err) {
				t.Errorf("watch: %v, want %v", err, tc.err)
			}
			if n := strings.Count(out.String(), "Rollout fleet/base"); n != 1 {
				t.Errorf("it was shown %d times, want once: nothing changed", n)
			}
		})
	}
}

// TestWatchRolloutOvertaken: a revision that waited for its run, and gets none as a newer one came, is not
// waited for.
func TestWatchRolloutOvertaken(t *testing.T) {
	const waits, newer, runs = "main@sha1:bbbbbbbbbbbb", "main@sha1:cccccccccccc", "main@sha1:aaaaaaaaaaaa"
	for _, tc := range []struct {
		reason     string
		candidates []string // of each read, the last one's from then on
		began      bool     // a run of it, at the last of these
		err        error
	}{
		{"a newer one took its place", []string{runs, waits, newer}, false, errNotReady},
		{"it was fetched late: it may come yet", []string{runs}, false, context.DeadlineExceeded},
		{"nothing was seen of it", []string{runs, newer}, false, context.DeadlineExceeded},
		{"it waits", []string{runs, waits}, false, context.DeadlineExceeded},
		{"its run began", []string{waits, newer}, true, context.DeadlineExceeded},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			reads := 0
			cl := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(aRollout("base", v1alpha1.RolloutProgressing)).Build(), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
					err := c.Get(ctx, key, o, options...)
					if r, ok := o.(*v1alpha1.Rollout); ok {
						at := min(reads, len(tc.candidates)-1)
						reads++
						r.Status.Run.Revision, r.Status.Candidate = runs, &v1alpha1.RolloutRevision{Revision: tc.candidates[at]}
						if tc.began && at == len(tc.candidates)-1 {
							r.Status.Run.Revision = waits
						}
					}
					return err
				},
			})
			c, _ := newCLI(t)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			err := c.watchRollout(ctx, cl, client.ObjectKey{Namespace: "fleet", Name: "base"}, waits[len("main@sha1:"):], time.Millisecond)
			if !errors.Is(err, tc.err) {
				t.Errorf("watch: %v, want %v", err, tc.err)
			}
		})
	}
}

// TestWatchRolloutGoesOn: an API server that does not answer for a moment is no end of a run.
func TestWatchRolloutGoesOn(t *testing.T) {
	for _, tc := range []struct {
		reason string
		after  int // reads
		err    error
		ends   bool
	}{
		{"it is restarted", 1, apierrors.NewServiceUnavailable("restarts"), false},
		{"it has too much to do", 1, apierrors.NewTooManyRequests("later", 1), false},
		{"the Rollout was deleted", 1, apierrors.NewNotFound(schema.GroupResource{Resource: "rollouts"}, "base"), true},
		{"one may not read it any more", 1, apierrors.NewForbidden(schema.GroupResource{Resource: "rollouts"}, "base", nil), true},
		{"nor log in", 1, apierrors.NewUnauthorized("lapsed"), true},
		{"nothing was seen yet: it may be another cluster", 0, apierrors.NewServiceUnavailable("none"), true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			reads := 0
			cl := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(aRollout("base", v1alpha1.RolloutProgressing)).Build(), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
					if reads++; reads == tc.after+1 {
						return tc.err
					}
					err := c.Get(ctx, key, o, options...)
					if reads > tc.after+1 {
						o.(*v1alpha1.Rollout).Status.Run.Phase = v1alpha1.RolloutCompleted
					}
					return err
				},
			})
			c, _ := newCLI(t)
			err := c.watchRollout(t.Context(), cl, client.ObjectKey{Namespace: "fleet", Name: "base"}, "", time.Millisecond)
			if tc.ends != errors.Is(err, tc.err) || !tc.ends && err != nil {
				t.Errorf("watch: %v, ends %t", err, tc.ends)
			}
		})
	}
}

// TestWatchRolloutGivesUp: what does not go away ends a watch, and is what the watch ends with.
func TestWatchRolloutGivesUp(t *testing.T) {
	lapsed := errors.New("getting credentials: the token lapsed")
	for _, tc := range []struct {
		reason  string
		answers func(read int) bool
		reads   int
		ends    error
	}{
		{"no attempt mends it", func(read int) bool { return read == 1 }, 6, lapsed},
		{"it is mended now and then", func(read int) bool { return read%4 == 1 }, 21, nil},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			c, _ := newCLI(t)
			now, reads := time.Unix(0, 0), 0
			c.now = func() time.Time { return now }
			cl := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(aRollout("base", v1alpha1.RolloutProgressing)).Build(), interceptor.Funcs{
				Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
					reads++
					now = now.Add(time.Minute)
					err := cl.Get(ctx, key, o, options...)
					if reads > 20 {
						o.(*v1alpha1.Rollout).Status.Run.Phase = v1alpha1.RolloutCompleted
					} else if !tc.answers(reads) {
						return lapsed
					}
					return err
				},
			})
			if err := c.watchRollout(t.Context(), cl, client.ObjectKey{Namespace: "fleet", Name: "base"}, "", time.Millisecond); !errors.Is(err, tc.ends) || reads != tc.reads {
				t.Errorf("it ends after %d reads with %v", reads, err)
			}
		})
	}
}

func TestAskRollout(t *testing.T) {
	const at = "2026-09-01T12:00:00Z"
	first := aRollout("first", v1alpha1.RolloutHalted)
	first.Status.LastGood = nil
	declared := aRollout("declared", v1alpha1.RolloutProgressing)
	declared.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "fleet"}
	key := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: "fleet", Name: name} }
	for _, tc := range []struct {
		reason, name, verb string
		err, out           string
		annotation, value  string
	}{
		{"a run under way ends", "going", "abort", "", "run 4", v1alpha1.AbortRolloutAnnotation, shaTwo},
		{"one that halted too", "halted", "abort", "", "run 4", v1alpha1.AbortRolloutAnnotation, shaTwo},
		{"one that is over does not end again", "over", "abort", "is over (Completed)", "", v1alpha1.AbortRolloutAnnotation, ""},
		{"no such Rollout", "none", "abort", "cannot read Rollout fleet/none", "", "", ""},
		{"clusters get the last good revision back", "halted", "revert", "", "main@sha1:11111111 back", v1alpha1.RevertRolloutAnnotation, shaTwo},
		{"a revision that passed all waves is reverted in Git", "over", "revert", "revert the commit in Git", "", v1alpha1.RevertRolloutAnnotation, ""},
		{"the first revision of all has none before it", "first", "revert", "none to go back to", "", v1alpha1.RevertRolloutAnnotation, ""},
		{"each request is another one", "halted", "retry", "", "tried again", v1alpha1.RetryRolloutAnnotation, at},
		{"what is over is not tried again", "over", "retry", "is over", "", v1alpha1.RetryRolloutAnnotation, ""},
		{"Git may set it back", "declared", "pause", "", "Kustomization fleet/apps declares", "", ""},
		{"nobody declares it", "going", "pause", "", "is suspended", "", ""},
	} {
		t.Run(tc.verb+" "+tc.reason, func(t *testing.T) {
			asked, halted := aRollout("going", v1alpha1.RolloutProgressing), aRollout("halted", v1alpha1.RolloutHalted)
			// What excludes the other one goes with it.
			excluded := map[string]string{"abort": v1alpha1.RevertRolloutAnnotation, "revert": v1alpha1.AbortRolloutAnnotation}
			asked.Annotations = map[string]string{v1alpha1.RevertRolloutAnnotation: shaTwo}
			halted.Annotations = map[string]string{v1alpha1.AbortRolloutAnnotation: shaTwo}
			cl := rolloutClient(asked, halted, aRollout("over", v1alpha1.RolloutCompleted), first.DeepCopy(), declared.DeepCopy())
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			verbs := map[string]func() error{
				"abort":  func() error { return c.abortRollout(t.Context(), cl, key(tc.name)) },
				"revert": func() error { return c.revertRollout(t.Context(), cl, key(tc.name)) },
				"retry":  func() error { return c.retryRollout(t.Context(), cl, key(tc.name)) },
				"pause":  func() error { return c.suspendRollout(t.Context(), cl, key(tc.name), true) },
			}
			err := verbs[tc.verb]()
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%s: %v, want %q", tc.verb, err, tc.err)
			}
			if !strings.Contains(out.String(), tc.out) {
				t.Errorf("it says %q, want %q", out, tc.out)
			}
			if tc.annotation != "" {
				if got := readBack(t, cl, tc.name).Annotations[tc.annotation]; got != tc.value {
					t.Errorf("%s is %q, want %q", tc.annotation, got, tc.value)
				}
			}
			if other := excluded[tc.verb]; tc.value != "" && other != "" && readBack(t, cl, tc.name).Annotations[other] != "" {
				t.Errorf("%s is still there", other)
			}
			if tc.verb == "pause" && !readBack(t, cl, tc.name).Spec.Suspend {
				t.Error("spec.suspend is not set")
			}
		})
	}
}

func TestResume(t *testing.T) {
	r := aRollout("base", v1alpha1.RolloutProgressing)
	r.Spec.Suspend = true
	cl := rolloutClient(r)
	c, _ := newCLI(t)
	if err := c.suspendRollout(t.Context(), cl, client.ObjectKey{Namespace: "fleet", Name: "base"}, false); err != nil {
		t.Fatal(err)
	}
	if readBack(t, cl, "base").Spec.Suspend {
		t.Error("it is still suspended")
	}
}

func TestApproveRollout(t *testing.T) {
	const old = "staging=" + shaOne
	for _, tc := range []struct {
		reason, name, wave, revision string
		err, out, approved           string
	}{
		{"without a wave it shows what waits", "awaiting", "", "", errNotReady.Error(), "--wave production --revision 222222222222", old},
		{"nothing waits", "over", "", "", "waits for no approval", "", old},
		{"a wave, at the revision of the run", "awaiting", "production", "", "", "jane approved main@sha1:22222222 for wave production", old + ",production=" + shaTwo},
		{"before its turn", "going", "production", "", "", "wave production", old + ",production=" + shaTwo},
		{"an approval of another revision is replaced", "going", "staging", "", "", "wave staging", "staging=" + shaTwo},
		{"the revision that the person has seen", "awaiting", "production", "222222222222", "", "jane", old + ",production=" + shaTwo},
		{"another one came since", "awaiting", "production", "111111111111", "not at 111111111111", "", old},
		{"too little of one", "awaiting", "production", "2222", "not at 2222", "", old},
		{"no such wave", "awaiting", "rest", "", "has no wave rest; it has: canary, staging, production", "", old},
		{"a wave that was passed", "awaiting", "canary", "", "passed already", "", old},
		{"a wave that passed with nothing to change, and a cluster came to it", "joined", "canary", "", "", "jane approved main@sha1:22222222 for wave canary", old + ",canary=" + shaTwo},
		{"a run that is over", "over", "production", "", "is over (Completed)", "", old},
		{"no such Rollout", "none", "production", "", "cannot read Rollout fleet/none", "", ""},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			joined := aRollout("joined", v1alpha1.RolloutProgressing)
			joined.Status.Run.Terms.Waves = slices.Clone(joined.Status.Run.Terms.Waves)
			joined.Status.Run.Terms.Waves[0].Approval, joined.Status.Waves[0].Pending = v1alpha1.ApprovalRequired, 1
			all := []client.Object{joined, awaitingRollout(), aRollout("going", v1alpha1.RolloutProgressing), aRollout("over", v1alpha1.RolloutCompleted)}
			for _, o := range all {
				o.SetAnnotations(map[string]string{v1alpha1.ApproveRolloutAnnotation: old})
			}
			cl := rolloutClient(all...)
			c, out := newCLI(t)
			err := c.approveRollout(t.Context(), cl, client.ObjectKey{Namespace: "fleet", Name: tc.name}, tc.wave, tc.revision)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("approve: %v, want %q", err, tc.err)
			}
			if !strings.Contains(out.String(), tc.out) {
				t.Errorf("it says %q, want %q", out, tc.out)
			}
			if tc.approved == "" {
				return
			}
			r := readBack(t, cl, tc.name)
			if got := r.Annotations[v1alpha1.ApproveRolloutAnnotation]; got != tc.approved {
				t.Errorf("approved is %q, want %q", got, tc.approved)
			}
			if got := r.Annotations[v1alpha1.ApprovedByAnnotation]; (got == tc.wave+"=jane") != (tc.err == "") {
				t.Errorf("approved by %q", got)
			}
		})
	}
}

func TestSkipCluster(t *testing.T) {
	for _, tc := range []struct {
		reason, before string
		undo           bool
		err, after     string
	}{
		{"one does without", "", false, "", "base=" + shaTwo},
		{"entries of other Rollouts stay", "apps=" + shaOne, false, "", "apps=" + shaOne + ",base=" + shaTwo},
		{"an entry of an earlier run is replaced", "base=" + shaOne + ", apps=1.2.3", false, "", "apps=1.2.3,base=" + shaTwo},
		{"undo removes it", "apps=1.2.3,base=" + shaTwo, true, "", "apps=1.2.3"},
		{"and the annotation with the last one", "base=" + shaTwo, true, "", ""},
		{"nothing to undo", "apps=1.2.3", true, "does not skip", "apps=1.2.3"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			shop := child("fleet", "shop", nil, nil)
			if tc.before != "" {
				shop.Annotations = map[string]string{v1alpha1.SkipRolloutAnnotation: tc.before}
			}
			cl := rolloutClient(aRollout("base", v1alpha1.RolloutProgressing), shop)
			c, _ := newCLI(t)
			err := c.skipCluster(t.Context(), cl, client.ObjectKey{Namespace: "fleet", Name: "base"}, "shop", tc.undo)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("skip: %v, want %q", err, tc.err)
			}
			if err := cl.Get(t.Context(), client.ObjectKeyFromObject(shop), shop); err != nil {
				t.Fatal(err)
			}
			if got := shop.Annotations[v1alpha1.SkipRolloutAnnotation]; got != tc.after {
				t.Errorf("the annotation is %q, want %q", got, tc.after)
			}
		})
	}
}

// TestSkipTooLate: what a skip does for a cluster that has the revision already.
func TestSkipTooLate(t *testing.T) {
	shop := child("fleet", "shop", nil, nil)
	shop.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "base", RolloutRevision: v1alpha1.RolloutRevision{Revision: shaTwo}, Result: v1alpha1.ResultUpdating}}
	c, out := newCLI(t)
	if err := c.skipCluster(t.Context(), rolloutClient(aRollout("base", v1alpha1.RolloutProgressing), shop), client.ObjectKey{Namespace: "fleet", Name: "base"}, "shop", false); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "has main@sha1:22222222 of rollout fleet/base already, and keeps it") {
		t.Errorf("it says %q", out)
	}
}

func TestWord(t *testing.T) {
	if got := word("a,b@sha1:2222222222222222222222222222222222222222"); got != "2222222222222222222222222222222222222222" {
		t.Errorf("word() = %q: a comma would end the entry", got)
	}
}

// TestTreeShowsRollouts: what each child may have, how far that is behind, and what waits.
func TestTreeShowsRollouts(t *testing.T) {
	objects := fleet(t)
	one, two := v1alpha1.RolloutRevision{Revision: shaOne}, v1alpha1.RolloutRevision{Revision: shaTwo}
	objects[1].(*v1alpha1.Child).Status.Rollouts = []v1alpha1.ChildRollout{
		{Name: "providers", RolloutRevision: one, Result: v1alpha1.ResultSucceeded},
		{Name: "base", RolloutRevision: two, Result: v1alpha1.ResultUpdating},
	}
	objects[2].(*v1alpha1.Child).Status.Rollouts = []v1alpha1.ChildRollout{{Name: "base", RolloutRevision: one, Result: v1alpha1.ResultSucceeded}}
	base := aRollout("base", v1alpha1.RolloutHalted)
	base.Namespace = "masters"
	cl := rolloutClient(append(objects, beat(v1alpha1.AgentNamespace, 0), base, awaitingRollout(), aRollout("calm", v1alpha1.RolloutProgressing))...)
	root, err := loadTree(t.Context(), cl, v1alpha1.AgentNamespace, noon)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := errors.Join(printTree(&out, root, noon, true), printHeld(&out, root.Held)); err != nil {
		t.Fatal(err)
	}
	golden(t, "tree-wide.txt", out.String())
}
