package image

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// TestBasisOnRecord: what the last commit was made of is read back from the status, and only if it is about that commit.
func TestBasisOnRecord(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.UTC)
	pushed := func(obj *autov1.ImageUpdateAutomation, at time.Time, basis source.Basis) {
		now := metav1.NewTime(at)
		obj.Status.LastPushTime = &now
		setBasis(obj, "auto", basis)
	}
	for name, tt := range map[string]struct {
		reason string
		set    func(obj *autov1.ImageUpdateAutomation)
		want   source.Basis
	}{
		"Nothing":  {"nothing was pushed", func(*autov1.ImageUpdateAutomation) {}, ""},
		"Before":   {"it was pushed before there was a record", func(obj *autov1.ImageUpdateAutomation) { obj.Status.LastPushTime = &metav1.Time{Time: at} }, ""},
		"Checkout": {"it is made of the checkout", func(obj *autov1.ImageUpdateAutomation) { pushed(obj, at, source.BasisCheckout) }, source.BasisCheckout},
		"Branch":   {"it is on top of others", func(obj *autov1.ImageUpdateAutomation) { pushed(obj, at, source.BasisBranch) }, source.BasisBranch},
		"Again": {"the same is pushed again", func(obj *autov1.ImageUpdateAutomation) {
			pushed(obj, at, source.BasisCheckout)
			pushed(obj, at.Add(time.Hour), source.BasisCheckout)
		}, source.BasisCheckout},
		"Direct": {"the branch is the checkout by now", func(obj *autov1.ImageUpdateAutomation) {
			pushed(obj, at, source.BasisCheckout)
			pushed(obj, at.Add(time.Hour), "")
		}, ""},
		"Other": {"Flux's controller pushed later, and leaves the condition as it is", func(obj *autov1.ImageUpdateAutomation) {
			pushed(obj, at, source.BasisCheckout)
			obj.Status.LastPushTime = &metav1.Time{Time: at.Add(time.Hour)}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &autov1.ImageUpdateAutomation{}
			tt.set(obj)
			if got := basisOf(obj); got != tt.want {
				t.Errorf("%s: %q; want %q", tt.reason, got, tt.want)
			}
			read := &autov1.ImageUpdateAutomation{}
			stored, err := json.Marshal(obj)
			if err == nil {
				err = json.Unmarshal(stored, read)
			}
			if got := basisOf(read); err != nil || got != tt.want {
				t.Errorf("%s: after a restart: %q, %v; want %q", tt.reason, got, err, tt.want)
			}
		})
	}
}

// writer answers with what is made up, and remembers what it was asked for.
type writer struct {
	written source.Written
	err     error
	// ahead is a commit that a second reference is to have.
	ahead string
	asked source.Draft
}

func (w *writer) Write(ctx context.Context, _ types.NamespacedName, draft source.Draft) (source.Written, error) {
	w.asked = draft
	if w.ahead != "" {
		if err := draft.Ahead(ctx, w.ahead); err != nil {
			return source.Written{}, err
		}
	}
	return w.written, w.err
}

// automation returns a reconciler, and an automation of a GitRepository that follows main.
func automation(t *testing.T, w Writer, push *autov1.PushSpec) (*Automations, *autov1.ImageUpdateAutomation) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{sourcev1.AddToScheme, imagev1.AddToScheme, autov1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	repository := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "apps"}}
	repository.Spec.Reference = &sourcev1.GitRepositoryRef{Branch: "main"}
	obj := &autov1.ImageUpdateAutomation{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "auto", Generation: 1}}
	obj.Spec.SourceRef.Name = repository.Name
	obj.Spec.GitSpec = &autov1.GitSpec{Push: push}
	clock := newClock()
	now := func() time.Time { clock.advance(time.Minute); return clock.now() }
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(repository, obj).WithStatusSubresource(obj).Build()
	r := &Automations{
		Shared: &Shared{
			Client: c, Reader: c, Events: record.NewFakeRecorder(100), Metrics: metrics.New(prometheus.NewRegistry()),
			Now: now, Jitter: wake.NewJitter(func() float64 { return 0.5 }),
		},
		Writer: w, Commits: NewCommits(prometheus.NewRegistry()),
	}
	r.store = r.records()
	return r, stored(t, r)
}

// stored is the automation as the API server has it.
func stored(t *testing.T, r *Automations) *autov1.ImageUpdateAutomation {
	t.Helper()
	obj, err := r.store.Read(t.Context(), types.NamespacedName{Namespace: "apps", Name: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// reconciled runs an automation, and brings its Ready condition up to date.
func reconciled(t *testing.T, r *Automations, obj *autov1.ImageUpdateAutomation) outcome {
	t.Helper()
	out := r.run(t.Context(), obj)
	if out.failed != nil {
		status.MarkFailing(obj, out.failed.reason, out.failed.err)
		return out
	}
	obj.Status.ObservedGeneration = obj.Generation
	status.MarkReady(obj, meta.SucceededReason, "%s", out.message)
	return out
}

// TestMadeOnRecord: the revision that the last commit was made of is on record with it, whatever else fails, and once that the branch
// has what the checkout does not have any more.
func TestMadeOnRecord(t *testing.T) {
	w := &writer{}
	r, obj := automation(t, w, &autov1.PushSpec{Branch: "auto", Refspec: "refs/heads/auto:refs/for/main"})
	w.written, w.err = source.Written{Revision: "main@sha1:1", Commit: "a1", Tip: "a1", Basis: source.BasisCheckout}, &source.Error{Reason: source.ReasonRefspecFailed, Err: errors.New("refused")}
	reconciled(t, r, obj)
	w.written, w.err = source.Written{Revision: "main@sha1:0", Tip: "a1", Basis: source.BasisBranch}, nil
	reconciled(t, r, obj)
	if d := w.asked; d.Own != "a1" || d.Made != "main@sha1:1" || d.OwnBasis != source.BasisCheckout {
		t.Errorf("after a push whose second reference failed: %+v", d)
	}
	reconciled(t, r, obj)
	if d := w.asked; d.Own != "a1" || d.Made != "main@sha1:0" || d.OwnBasis != source.BasisBranch {
		t.Errorf("after the checkout went back: %+v", d)
	}
}

// TestRefspecIsOwed: what the branch has and the second reference may not have is on record until it was pushed there, whatever else
// fails in between, and also if the process ends before it can tell.
func TestRefspecIsOwed(t *testing.T) {
	w := &writer{ahead: "c1"}
	r, obj := automation(t, w, &autov1.PushSpec{Branch: "auto", Refspec: "refs/heads/auto:refs/for/main"})
	fails := func(reason string) error { return &source.Error{Reason: reason, Err: errors.New("it is away")} }
	for i, step := range []struct {
		reason  string
		ahead   string
		written source.Written
		err     error
		owed    string
	}{
		{"the second reference is refused", "c1", source.Written{Revision: "main@sha1:1", Commit: "c1", Tip: "c1"}, fails(source.ReasonRefspecFailed), ""},
		{"the server is away", "", source.Written{}, fails(source.ReasonGitOperationFailed), "c1"},
		{"it is there again", "", source.Written{Revision: "main@sha1:1", Tip: "c1"}, nil, "c1"},
		{"nothing is owed any more", "", source.Written{Revision: "main@sha1:1", Tip: "c1"}, nil, ""},
		{"another push, and all is well", "c2", source.Written{Revision: "main@sha1:1", Commit: "c2", Tip: "c2"}, nil, ""},
		{"nothing is owed of that", "", source.Written{Revision: "main@sha1:1", Tip: "c2"}, nil, ""},
	} {
		w.ahead, w.written, w.err = step.ahead, step.written, step.err
		if reconciled(t, r, obj); w.asked.Owed != step.owed {
			t.Errorf("run %d, %s: %q is owed, want %q", i, step.reason, w.asked.Owed, step.owed)
		}
		if w.asked.Owed != "" && w.asked.Known != "" {
			t.Errorf("run %d, %s: it does not look", i, step.reason)
		}
	}
	// The process ends once the branch has the commit: nothing of the run is on record but what was told ahead.
	w.ahead = "c3"
	reconciled(t, r, obj)
	w.ahead = ""
	if reconciled(t, r, stored(t, r)); w.asked.Owed != "c3" {
		t.Errorf("after the process ended in between %q is owed, want c3", w.asked.Owed)
	}
	// A status of before there was a record has but the reason.
	obj = stored(t, r)
	obj.Status.Conditions, obj.Status.LastPushCommit = nil, "c4"
	status.MarkFailing(obj, source.ReasonRefspecFailed, errors.New("refused"))
	if reconciled(t, r, obj); w.asked.Owed != "c4" {
		t.Errorf("of a status of before %q is owed, want c4", w.asked.Owed)
	}
}

// TestRefspecOnRecord: what was told ahead of a push is taken back at its end, also where all else of the status is as it was.
func TestRefspecOnRecord(t *testing.T) {
	w := &writer{}
	r, obj := automation(t, w, &autov1.PushSpec{Branch: "main", Refspec: "refs/heads/main:refs/for/main"})
	for _, commit := range []string{"c1", "c2", "c3"} {
		w.ahead, w.written = commit, source.Written{Revision: "main@sha1:" + commit, Commit: commit, Tip: commit}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(obj)}); err != nil {
			t.Fatal(err)
		}
		if now := stored(t, r); !apimeta.IsStatusConditionTrue(now.Status.Conditions, refspecPushed) || now.Status.LastPushCommit != commit || owedBy(now) != "" {
			t.Errorf("after the push of %s: %+v", commit, now.Status)
		}
	}
}
