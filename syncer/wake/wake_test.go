package wake

import (
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"math/rand/v2"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestChanged(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*kustomizev1.Kustomization)
		want   bool
	}{
		"Spec": {"a new generation", func(k *kustomizev1.Kustomization) { k.Generation++ }, true},
		"Request": {"flux reconcile", func(k *kustomizev1.Kustomization) {
			k.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
		}, true},
		"Approval": {"an annotation that was asked for", func(k *kustomizev1.Kustomization) { k.Annotations = map[string]string{"approve": "x"} }, true},
		"Deletion": {"a deletion has to be answered", func(k *kustomizev1.Kustomization) { k.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true},
		"Status":   {"our own write must not wake us", func(k *kustomizev1.Kustomization) { k.Status.LastAppliedRevision = "x"; k.ResourceVersion = "2" }, false},
		"Other":    {"nor somebody's note", func(k *kustomizev1.Kustomization) { k.Annotations = map[string]string{"note": "x"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := &kustomizev1.Kustomization{}
			after := before.DeepCopy()
			tc.change(after)
			if got := Changed("approve").Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tc.want {
				t.Errorf("%s\nChanged() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

// TestShard: with two agents of a tier that share its objects by labels, each object has one
// that reconciles it, also after its labels changed.
func TestShard(t *testing.T) {
	mine := func(k *kustomizev1.Kustomization) { k.Labels = map[string]string{"part": "mine"} }
	theirs := func(k *kustomizev1.Kustomization) { k.Labels = map[string]string{"part": "theirs"} }
	renewed := func(k *kustomizev1.Kustomization) { k.Generation++ }
	shard := Shard(func(o client.Object) bool { return o.GetLabels()["part"] == "mine" })
	for name, tc := range map[string]struct {
		reason        string
		shard         Shard
		before, after func(*kustomizev1.Kustomization)
		update, is    bool
	}{
		"Changed":    {"there is something to do", shard, mine, renewed, true, true},
		"Elsewhere":  {"another agent does it", shard, theirs, renewed, false, false},
		"Joined":     {"nobody else looks at it any more", shard, theirs, mine, true, true},
		"Left":       {"what is known of it has to go", shard, mine, theirs, true, false},
		"OtherLabel": {"it stays where it is", shard, mine, func(k *kustomizev1.Kustomization) { k.Labels["team"] = "a" }, false, true},
		"All":        {"there is no other agent", nil, theirs, mine, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := &kustomizev1.Kustomization{}
			tc.before(before)
			after := before.DeepCopy()
			tc.after(after)
			passes := tc.shard.Changed()
			if got := passes.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tc.update {
				t.Errorf("%s: Update() = %t", tc.reason, got)
			}
			got := [...]bool{
				passes.Create(event.CreateEvent{Object: after}), passes.Delete(event.DeleteEvent{Object: after}), passes.Generic(event.GenericEvent{Object: after}),
			}
			if got != [...]bool{tc.is, tc.is, tc.is} {
				t.Errorf("%s: Create(), Delete(), Generic() = %v, want %t", tc.reason, got, tc.is)
			}
		})
	}
}

func TestNewArtifact(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*sourcev1.GitRepository)
		want   bool
	}{
		"Revision": {"a commit", func(g *sourcev1.GitRepository) { g.Status.Artifact.Revision = "2" }, true},
		"Digest":   {"the same commit, and other rules of what to ignore", func(g *sourcev1.GitRepository) { g.Status.Artifact.Digest = "sha256:2" }, true},
		"URL":      {"it is somewhere else, or perhaps not there", func(g *sourcev1.GitRepository) { g.Status.Artifact.URL = "http://elsewhere/x" }, true},
		"Time":     {"it was packed again", func(g *sourcev1.GitRepository) { g.Status.Artifact.LastUpdateTime = metav1.Now() }, false},
		"None":     {"there is nothing to look at", func(g *sourcev1.GitRepository) { g.Status.Artifact = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := &sourcev1.GitRepository{}
			before.Status.Artifact = &meta.Artifact{Revision: "1", Digest: "sha256:1", URL: "http://here/x"}
			after := before.DeepCopy()
			tc.change(after)
			if got := NewArtifact().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tc.want {
				t.Errorf("%s: NewArtifact() = %t", tc.reason, got)
			}
		})
	}
}

func TestRetries(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		retries  Retries
		min, max time.Duration
	}{
		"Default": {"nothing is said", Retries{}, MinRetry, MaxRetry},
		"Flags":   {"an operator says more", Retries{Min: time.Second, Max: 3 * time.Second}, time.Second, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			limiter, request := tc.retries.RateLimiter(), reconcile.Request{}
			within := func(pause, most time.Duration) bool { return pause <= most && pause >= most*4/5 }
			if first := limiter.When(request); !within(first, tc.min) {
				t.Errorf("%s: the first pause is %s, want %s", tc.reason, first, tc.min)
			}
			for range 20 {
				limiter.When(request)
			}
			pauses := map[time.Duration]bool{}
			for range 20 {
				last := limiter.When(request)
				if pauses[last] = true; !within(last, tc.max) {
					t.Errorf("%s: the longest pause is %s, want %s", tc.reason, last, tc.max)
				}
			}
			if len(pauses) < 10 {
				t.Errorf("%s: those who fail at one moment come again at one of %d moments", tc.reason, len(pauses))
			}
		})
	}
}

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		reason       string
		share        float64
		chance, want float64
	}{
		{"none is exact", 0, 1, 60}, {"the shortest", 0.1, 0, 54}, {"the longest", 0.1, 1, 66}, {"the middle", 0.5, 0.5, 60},
	} {
		if got := Spread(func() float64 { return tc.chance }, tc.share)(time.Minute); got.Round(time.Millisecond).Seconds() != tc.want {
			t.Errorf("%s: %s, want %g s", tc.reason, got, tc.want)
		}
	}
}

func TestJittered(t *testing.T) {
	jitter := NewJitter(rand.New(rand.NewPCG(1, 2)).Float64)
	for range 1000 {
		if got := jitter(time.Minute); got < 57*time.Second || got > 63*time.Second {
			t.Fatalf("jitter(1m) = %s, want within 5 %%", got)
		}
	}
}
