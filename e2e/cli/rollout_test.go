package cli

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestRolloutVerbs: the verbs about Rollouts write what they say, as the API server has it
// then. No agent runs: what one would write of the run, the test does.
func TestRolloutVerbs(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartAPIServer(t)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(s.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	v := &rolloutVerbs{APIServer: s, Client: cl, program: scenario.Path(t, "bin", "cascade")}
	v.prepare(t)
	const commit = "2222222222222222222222222222222222222222"
	for _, c := range []struct {
		reason string
		args   string
		code   int
		says   string
		check  func(*v1alpha1.Rollout, *v1alpha1.Child) string
		want   string
	}{
		{"what waits is shown", "approve rollout base", 1, "--wave rest --revision 222222222222", nil, ""},
		{"another commit than was seen", "approve rollout base --wave rest --revision 111111111111", 1, "not at 111111111111", nil, ""},
		{"the API server knows who approves", "approve rollout base --wave rest --revision 222222222222 --as jane --as-group system:masters", 0, "jane approved",
			func(r *v1alpha1.Rollout, _ *v1alpha1.Child) string {
				return r.Annotations[v1alpha1.ApproveRolloutAnnotation] + " by " + r.Annotations[v1alpha1.ApprovedByAnnotation]
			}, "rest=main@sha1:" + commit + " by rest=jane"},
		{"it is suspended", "rollout pause base", 0, "is suspended",
			func(r *v1alpha1.Rollout, _ *v1alpha1.Child) string {
				return map[bool]string{true: "suspended"}[r.Spec.Suspend]
			}, "suspended"},
		{"and says how to go on", "rollout status base", 0, "waits for: cascade rollout resume base -n fleet", nil, ""},
		{"and goes on", "rollout resume base", 0, "is resumed",
			func(r *v1alpha1.Rollout, _ *v1alpha1.Child) string {
				return map[bool]string{false: "resumed"}[r.Spec.Suspend]
			}, "resumed"},
		{"a cluster does without", "rollout skip base shop", 0, "does without",
			func(_ *v1alpha1.Rollout, c *v1alpha1.Child) string {
				return c.Annotations[v1alpha1.SkipRolloutAnnotation]
			}, "base=main@sha1:" + commit},
		{"and does not any more", "rollout skip base shop --undo", 0, "gets what",
			func(_ *v1alpha1.Rollout, c *v1alpha1.Child) string {
				return c.Annotations[v1alpha1.SkipRolloutAnnotation]
			}, ""},
		{"no such cluster", "rollout skip base none", 1, "cannot read Child fleet/none", nil, ""},
		{"the run is turned back", "rollout abort base --revert", 0, "get main@sha1:11111111 back",
			func(r *v1alpha1.Rollout, _ *v1alpha1.Child) string {
				return r.Annotations[v1alpha1.RevertRolloutAnnotation]
			}, "main@sha1:" + commit},
		{"or ends", "rollout abort base", 0, "run 4 of rollout fleet/base ends",
			func(r *v1alpha1.Rollout, _ *v1alpha1.Child) string {
				return r.Annotations[v1alpha1.AbortRolloutAnnotation]
			}, "main@sha1:" + commit},
		{"it is listed", "get all", 0, "rollout/base", nil, ""},
		{"and in the tree", "tree -o wide", 0, "base main@sha1:11111111 Succeeded (behind main@sha1:22222222)", nil, ""},
	} {
		out, code := v.run(t, c.args)
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%s: cascade %s ends with %d, and says:\n%s", c.reason, c.args, code, out)
		}
		if c.check == nil {
			continue
		}
		r, child := &v1alpha1.Rollout{}, &v1alpha1.Child{}
		for name, o := range map[string]client.Object{"base": r, "shop": child} {
			if err := v.Get(t.Context(), client.ObjectKey{Namespace: "fleet", Name: name}, o); err != nil {
				t.Fatal(err)
			}
		}
		if got := c.check(r, child); got != c.want {
			t.Errorf("%s: there is %q, want %q", c.reason, got, c.want)
		}
	}
}

type rolloutVerbs struct {
	*scenario.APIServer
	client.Client
	program string
}

// prepare makes a tier with a Rollout in the middle of a run.
func (v *rolloutVerbs) prepare(t *testing.T) {
	t.Helper()
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range crds {
		if err := v.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	waves := []v1alpha1.RolloutWave{
		{Name: "canary", MaxConcurrent: intstr.FromInt32(1), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "true"}}},
		{Name: "rest", MaxConcurrent: intstr.FromString("25%"), Approval: v1alpha1.ApprovalRequired},
	}
	r := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}}
	r.Spec.Moves.LayerRef = &v1alpha1.LayerReference{Name: "base"}
	r.Spec.Waves = waves
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "shop"}}
	child.Spec.InCluster = true
	scenario.Eventually(t, scenario.Converge, "the kinds are served", func(ctx context.Context) error {
		for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}}, r, child} {
			if err := v.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
		}
		return nil
	})
	now := metav1.Now()
	r.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:1111111111111111111111111111111111111111"}, Run: 3, At: now}
	r.Status.Run = &v1alpha1.RolloutRun{
		Number: 4, RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2222222222222222222222222222222222222222"}, Phase: v1alpha1.RolloutProgressing,
		Terms: v1alpha1.RolloutTerms{Waves: r.Spec.Waves}, Wave: 1, Began: now, Since: now,
	}
	if err := v.Status().Update(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "base", RolloutRevision: r.Status.LastGood.RolloutRevision, Run: 3, Result: v1alpha1.ResultSucceeded, Since: now}}
	if err := v.Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
}

// run runs the program, and returns what it printed and how it ended.
func (v *rolloutVerbs) run(t *testing.T, args string) (string, int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), v.program, append(strings.Fields(args), "-n", "fleet", "--kubeconfig", v.Kubeconfig)...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return string(out), exit.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	return string(out), 0
}
