package children

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// waves is a fleet of three clusters, a canary and two others, whose layer a Rollout moves.
type waves struct {
	*pins
}

// TestRollout: a commit goes over the clusters in waves, stops at the one that it breaks, and
// goes on when it is mended; the audit logs of the clusters say who got what.
func TestRollout(t *testing.T) {
	scenario.Alongside(t)
	h := startHub(t, "v1beta2", "--observe-interval", observeInterval.String())
	x := &waves{&pins{fleet: h.fleet(t, "waves", map[string]string{"app/note.yaml": noteNamed("note", "at", "one"), "other/README.md": "nothing"}), planes: map[string]*plane{}}}
	x.commits = append(x.commits, x.head(t))
	for _, name := range []string{"canary", "p1", "p2"} {
		x.planes[name] = h.plane(t, "waves-"+name)
	}
	x.served(t)
	x.define(t, "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata: {name: app}\nspec:\n  clusterSelector: {matchExpressions: [{key: cluster, operator: Exists}]}\n"+
		"  sourceRef: {kind: GitRepository, name: fleet}\n  path: ./app\n  interval: 24h\n  wait: true\n")
	for name, p := range x.planes {
		x.declare(t, name)
		x.report(t, name, initialized)
		x.handOver(t, name, p.issue(t).kubeconfig)
		x.ready(t, name, "")
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"AdoptsWhatIsThere", x.adopts},
		{"StopsAtTheCanary", x.stops},
		{"RestartMovesNobody", x.restarts},
		{"RevertedCommitHeals", x.heals},
		{"GoesOverTheWaves", x.goes},
		{"LaterWaveHasWhatWasProven", x.frozen},
		{"ReturnsAndCatchesUp", x.returns},
		{"AnotherPathIsNoRevision", x.untouched},
		{"Deleted", x.deleted},
	} {
		if !t.Run(part.name, part.run) {
			return
		}
	}
}

// define defines the Rollout.
func (x *waves) rollout(t *testing.T) {
	t.Helper()
	x.define(t, `apiVersion: cascade.dev/v1alpha1
kind: Rollout
metadata: {name: app}
spec:
  moves: {layerRef: {name: app}}
  deadline: 20s
  waves:
  - {name: canary, selector: {matchLabels: {cluster: canary}}, maxConcurrent: 1, soak: 2s}
  - {name: rest, maxConcurrent: 1, approval: Required}
`)
}

// status waits until the Rollout is as it should be.
func (x *waves) status(t *testing.T, what string, is func(*v1alpha1.Rollout) bool) *v1alpha1.Rollout {
	t.Helper()
	o := &v1alpha1.Rollout{}
	scenario.Eventually(t, scenario.Converge, "the Rollout is "+what, func(ctx context.Context) error {
		*o = v1alpha1.Rollout{}
		if err := x.client.Get(ctx, client.ObjectKey{Namespace: x.name, Name: "app"}, o); err != nil {
			return err
		}
		if !is(o) {
			return fmt.Errorf("run %+v, clusters %+v, failing %v: %s", o.Status.Run, o.Status.Clusters, o.Status.Failing, scenario.Summary(o.Status.Conditions))
		}
		return nil
	})
	return o
}

func readyFor(o *v1alpha1.Rollout) string {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition); c != nil {
		return c.Reason
	}
	return ""
}

// completed waits until a revision passed all waves.
func (x *waves) completed(t *testing.T, revision string) {
	t.Helper()
	x.status(t, "over at "+revision, func(o *v1alpha1.Rollout) bool {
		return o.Status.LastGood != nil && o.Status.LastGood.Revision == revision && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ReadyCondition)
	})
}

// held waits until a revision is held for a reason.
func (x *waves) held(t *testing.T, revision, reason string) *v1alpha1.Rollout {
	t.Helper()
	return x.status(t, "held for "+reason+" at "+revision, func(o *v1alpha1.Rollout) bool {
		return o.Status.Run != nil && o.Status.Run.Revision == revision && readyFor(o) == reason
	})
}

// approve lets a wave begin, as cascade approve rollout does.
func (x *waves) approve(t *testing.T, wave, revision string) {
	t.Helper()
	x.patch(t, object("cascade.dev/v1alpha1", "Rollout", x.name, "app"), map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		v1alpha1.ApproveRolloutAnnotation: wave + "=" + revision, v1alpha1.ApprovedByAnnotation: "ann",
	}}})
}

// marks are the present moments of the clusters' audit logs.
func (x *waves) marks(t *testing.T) map[string]int64 {
	t.Helper()
	at := map[string]int64{}
	for name, p := range x.planes {
		x.reconciled(t, name)
		at[name] = p.now(t)
	}
	return at
}

// alone expects that nothing was written since to clusters but those named.
func (x *waves) alone(t *testing.T, since map[string]int64, but ...string) {
	t.Helper()
	for name, p := range x.planes {
		if !slices.Contains(but, name) {
			x.reconciled(t, name)
			p.parentWrote(t, since[name])
		}
	}
}

// values of the note in each cluster.
func (x *waves) values(t *testing.T, want map[string]string) {
	t.Helper()
	for name, value := range want {
		x.planes[name].has(t, "note", "at", value)
	}
}

func (x *waves) adopts(t *testing.T) {
	since := x.marks(t)
	x.rollout(t)
	x.completed(t, x.commits[0])
	x.alone(t, since)
	for name := range x.planes {
		child, err := x.child(t.Context(), name)
		if err != nil || len(child.Status.Rollouts) != 1 || child.Status.Rollouts[0].Revision != x.commits[0] || child.Status.Rollouts[0].Result != v1alpha1.ResultSucceeded {
			t.Errorf("%s may have %+v, %v", name, child.Status.Rollouts, err)
		}
	}
}

// broken is a kind that no cluster has.
const broken = "apiVersion: example.com/v1\nkind: Nowhere\nmetadata: {name: x, namespace: default}\n"

func (x *waves) stops(t *testing.T) {
	since := x.marks(t)
	x.next(t, "two", "app/broken.yaml", broken)
	o := x.held(t, x.commits[1], v1alpha1.ReasonRolloutHalted)
	if o.Status.Clusters.Failed != 1 || len(o.Status.Failing) != 1 || o.Status.Failing[0].Name != "canary" || o.Status.Failing[0].Reason != v1alpha1.ReasonDeadlineExceeded {
		t.Errorf("it failed on %+v: %v", o.Status.Clusters, o.Status.Failing)
	}
	x.alone(t, since, "canary")
	x.values(t, map[string]string{"p1": "one", "p2": "one"})
}

func (x *waves) restarts(t *testing.T) {
	since := x.marks(t)
	x.agent.Kill()
	x.startAgent(t)
	x.held(t, x.commits[1], v1alpha1.ReasonRolloutHalted)
	x.alone(t, since, "canary")
}

// heals: the commit that takes the broken one back goes over the waves as any other.
func (x *waves) heals(t *testing.T) {
	since := x.marks(t)
	x.next(t, "one", "app/broken.yaml", "")
	o := x.held(t, x.commits[2], v1alpha1.ReasonAwaitingApproval)
	if h := o.Status.History; len(h) == 0 || h[0].Phase != v1alpha1.RolloutSuperseded || h[0].Failed != 1 {
		t.Errorf("the history is %+v", h)
	}
	x.alone(t, since, "canary")
	x.approve(t, "rest", x.commits[1]) // which nobody wants any more
	x.marks(t)
	x.alone(t, since, "canary")
	x.approve(t, "rest", x.commits[2])
	x.completed(t, x.commits[2])
}

func (x *waves) goes(t *testing.T) {
	since := x.marks(t)
	x.next(t, "three")
	x.held(t, x.commits[3], v1alpha1.ReasonAwaitingApproval)
	x.values(t, map[string]string{"canary": "three"})
	x.alone(t, since, "canary")
	x.approve(t, "rest", x.commits[3])
	x.completed(t, x.commits[3])
	x.values(t, map[string]string{"canary": "three", "p1": "three", "p2": "three"})
	if o := x.status(t, "approved", func(o *v1alpha1.Rollout) bool { return len(o.Status.Run.Approvals) == 1 }); o.Status.Run.Approvals[0].By != "ann" {
		t.Errorf("approvals are %+v", o.Status.Run.Approvals)
	}
	// One at a time, after the canary: when each was written to, by its own audit log.
	at := map[string]int64{}
	for name, p := range x.planes {
		for _, e := range p.writes(t, since[name]) {
			if strings.Contains(e.RequestURI, "/configmaps/note") {
				at[name] = e.Received.UnixMicro()
				break
			}
		}
	}
	if at["canary"] == 0 || at["p1"] <= at["canary"] || at["p2"] <= at["canary"] {
		t.Errorf("the notes were written at %v", at)
	}
}

// frozen: while a revision waits between two waves, a newer commit begins from the first wave.
// The second never has what the first has not proven (argo-cd#19535, argo-cd#29410).
func (x *waves) frozen(t *testing.T) {
	x.next(t, "four")
	x.held(t, x.commits[4], v1alpha1.ReasonAwaitingApproval)
	x.next(t, "five", "app/broken.yaml", broken)
	x.approve(t, "rest", x.commits[4])
	o := x.status(t, "past four", func(o *v1alpha1.Rollout) bool {
		return o.Status.Run.Revision == x.commits[5] && readyFor(o) == v1alpha1.ReasonRolloutHalted
	})
	if got := o.Status.Clusters.Failed; got != 1 {
		t.Errorf("%d clusters failed", got)
	}
	for _, name := range []string{"p1", "p2"} {
		value, err := x.planes[name].value(t.Context(), "note", "at")
		if err != nil || value == "five" {
			t.Errorf("%s has %q, which the canary did not prove: %v", name, value, err)
		}
	}
	x.next(t, "six", "app/broken.yaml", "")
	x.held(t, x.commits[6], v1alpha1.ReasonAwaitingApproval)
	x.approve(t, "rest", x.commits[6])
	x.completed(t, x.commits[6])
}

// returns: a cluster that cannot be reached holds nobody up, and gets the revision on its
// return, from an agent that was started since.
func (x *waves) returns(t *testing.T) {
	x.lose(t, "p2")
	x.next(t, "seven")
	x.held(t, x.commits[7], v1alpha1.ReasonAwaitingApproval)
	x.approve(t, "rest", x.commits[7])
	o := x.status(t, "over without p2", func(o *v1alpha1.Rollout) bool {
		return o.Status.LastGood.Revision == x.commits[7] && o.Status.Run.Phase == v1alpha1.RolloutCompleted
	})
	if o.Status.Clusters.Updated != 2 || o.Status.Clusters.Deferred != 1 {
		t.Errorf("clusters are %+v", o.Status.Clusters)
	}
	x.values(t, map[string]string{"p1": "seven"})
	x.agent.Kill()
	x.startAgent(t)
	if err := x.planes["p2"].Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	x.planes["p2"].has(t, "note", "at", "seven")
	x.status(t, "at all clusters", func(o *v1alpha1.Rollout) bool { return o.Status.Clusters.Updated == 3 })
}

// lose lets a cluster answer nobody, and waits until it counts as lost.
func (x *waves) lose(t *testing.T, name string) {
	t.Helper()
	if err := x.planes[name].Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.planes[name].Signal(syscall.SIGCONT) })
	scenario.Eventually(t, 2*scenario.Converge, name+" is lost", func(ctx context.Context) error {
		child, err := x.child(ctx, name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
		if c == nil || c.Status == metav1.ConditionTrue {
			return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
		}
		return nil
	})
}

// untouched: a commit that changes nothing which the layer reads is no revision for it.
func (x *waves) untouched(t *testing.T) {
	since := x.marks(t)
	sha := x.commit(t, map[string]string{"other/README.md": "something"})
	scenario.Eventually(t, scenario.Converge, "the source is fetched", func(ctx context.Context) error {
		if head := x.head(t); !strings.HasSuffix(head, sha) {
			return fmt.Errorf("it has %s", head)
		}
		return nil
	})
	x.alone(t, since)
	o := x.status(t, "as before", func(o *v1alpha1.Rollout) bool { return true })
	if o.Status.Candidate.Revision != x.commits[7] || o.Status.Run.Revision != x.commits[7] {
		t.Errorf("the candidate is %+v, the run %+v", o.Status.Candidate, o.Status.Run)
	}
	x.commits = append(x.commits, "main@sha1:"+sha)
}

// deleted: without the Rollout all clusters follow, at once, and nothing of it is on record.
func (x *waves) deleted(t *testing.T) {
	if err := x.client.Delete(t.Context(), object("cascade.dev/v1alpha1", "Rollout", x.name, "app")); err != nil {
		t.Fatal(err)
	}
	x.next(t, "eight")
	x.values(t, map[string]string{"canary": "eight", "p1": "eight", "p2": "eight"})
	scenario.Eventually(t, scenario.Converge, "nothing is on record", func(ctx context.Context) error {
		for name := range x.planes {
			child, err := x.child(ctx, name)
			if err != nil || len(child.Status.Rollouts) > 0 {
				return fmt.Errorf("%s may have %+v, %w", name, child.Status.Rollouts, err)
			}
		}
		return nil
	})
}
