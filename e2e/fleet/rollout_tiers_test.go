package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestRolloutTiers brings commits to the applications of three tenants below two masters:
// the Rollout of each environment pins what its tenants pull, and production waits for an
// approval. Tenants pull by themselves, so what a tenant has is by its own audit log.
func TestRolloutTiers(t *testing.T) {
	scenario.Alongside(t)
	f := startFleet(t)
	steps := []struct {
		name string
		run  func(*testing.T)
	}{
		{"EveryTierIsReady", f.everyTierIsReady},
		{"RolloutsComeByCommit", f.rolloutsCome},
		{"BadCommitStopsAtTheCanary", f.badCommit},
		{"RevertHeals", f.revertHeals},
		{"StagingThenProduction", f.stagingThenProduction},
		{"MoMGoneInTheMiddle", f.momGone},
	}
	for _, s := range steps {
		if !t.Run(s.name, s.run) {
			return
		}
	}
}

// appsRollout is what an environment's repository declares for the applications of its
// tenants: the source of the candidates, and the waves.
const appsRollout = `apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: apps, namespace: cascade-system}
spec:
  url: %s
  ref: {branch: main}
  secretRef: {name: git-auth}
  interval: 2s
---
apiVersion: cascade.dev/v1alpha1
kind: Rollout
metadata: {name: apps, namespace: cascade-system}
spec:
  moves:
    source: {kind: GitRepository, name: apps, namespace: cascade-system}
  sourceRef: {kind: GitRepository, name: apps}
  deadline: 45s
  waves:
%s`

const (
	stagingWaves    = "  - {name: all, maxConcurrent: 1, soak: 2s}\n"
	productionWaves = "  - {name: canary, selector: {matchLabels: {canary: \"true\"}}, maxConcurrent: 1, approval: Required}\n  - {name: rest, maxConcurrent: 50%}\n"
)

// rolloutsCome declares the Rollouts, and alpha as the canary of production.
func (f *fleet) rolloutsCome(t *testing.T) {
	since := f.offsets(t, "alpha", "beta", "gamma")
	for repo, waves := range map[string]string{"env-production": productionWaves, "env-staging": stagingWaves} {
		f.commit(t, repo, "Applications in waves", func(dir string) error {
			if repo == "env-production" {
				if err := scenario.ReplaceIn(filepath.Join(dir, "tenants", "alpha.yaml"), "environment: production\n", "environment: production\n      canary: \"true\"\n"); err != nil {
					return err
				}
			}
			return os.WriteFile(filepath.Join(dir, "fleet", "rollout.yaml"), fmt.Appendf(nil, appsRollout, f.Git.HTTPURL("apps"), waves), 0o644)
		})
	}
	for _, master := range []string{"production", "staging"} {
		f.rollout(t, master, "over", func(o *v1alpha1.Rollout) bool { return readyNow(o) == v1alpha1.ReasonSucceeded })
	}
	scenario.Eventually(t, scenario.Converge, "alpha is the canary", func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := scenario.Get(ctx, f.tiers["production"], child, stage.Namespace, "alpha"); err != nil {
			return err
		}
		if child.Labels["canary"] != "true" {
			return fmt.Errorf("labels are %v", child.Labels)
		}
		return nil
	})
	f.unchanged(t, since)
}

// rollout waits until the Rollout of a master is as it should be.
func (f *fleet) rollout(t *testing.T, master, what string, is func(*v1alpha1.Rollout) bool) *v1alpha1.Rollout {
	t.Helper()
	o := &v1alpha1.Rollout{}
	scenario.Eventually(t, scenario.Converge, "the Rollout of "+master+" is "+what, func(ctx context.Context) error {
		*o = v1alpha1.Rollout{}
		if err := scenario.Get(ctx, f.tiers[master], o, stage.Namespace, "apps"); err != nil {
			return err
		}
		if !is(o) {
			return fmt.Errorf("run %+v, clusters %+v, failing %v: %s", o.Status.Run, o.Status.Clusters, o.Status.Failing, scenario.Summary(o.Status.Conditions))
		}
		return nil
	})
	return o
}

func readyNow(o *v1alpha1.Rollout) string {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition); c != nil {
		return c.Reason
	}
	return ""
}

// stands waits until a commit stands in a master for a reason.
func (f *fleet) stands(t *testing.T, master, commit, reason string) {
	t.Helper()
	f.rollout(t, master, "held for "+reason, func(o *v1alpha1.Rollout) bool {
		return o.Status.Run != nil && strings.HasSuffix(o.Status.Run.Revision, commit) && readyNow(o) == reason
	})
}

// approveCanary lets the first wave of production begin with a commit.
func (f *fleet) approveCanary(t *testing.T, commit string) {
	t.Helper()
	c, err := f.tiers["production"].Client()
	if err != nil {
		t.Fatal(err)
	}
	o := &v1alpha1.Rollout{}
	o.Namespace, o.Name = stage.Namespace, "apps"
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.ApproveRolloutAnnotation, "canary="+commit)
	if err := c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

// offsets are the ends of audit logs.
func (f *fleet) offsets(t *testing.T, tiers ...string) map[string]int64 {
	t.Helper()
	at := map[string]int64{}
	for _, name := range tiers {
		_, end, err := f.tiers[name].Audit(0)
		if err != nil {
			t.Fatal(err)
		}
		at[name] = end
	}
	return at
}

// unchanged expects that nobody wrote to the workloads of tenants since.
func (f *fleet) unchanged(t *testing.T, since map[string]int64) {
	t.Helper()
	for name, from := range since {
		events, _, err := f.tiers[name].Audit(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Writes() && e.ObjectRef.Namespace == "apps" && e.ObjectRef.Resource == "deployments" && e.ObjectRef.Subresource == "" && !strings.Contains(e.RequestURI, "dryRun=All") {
				t.Errorf("%s: %s %s by %s", name, e.Verb, e.RequestURI, e.UserAgent)
			}
		}
	}
}

// greets expects the greeting of a version in tenants, now.
func (f *fleet) greets(t *testing.T, version int, tenants ...string) {
	t.Helper()
	for _, name := range tenants {
		scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s greets with version %d", name, version), func(ctx context.Context) error {
			d := &appsv1.Deployment{}
			if err := scenario.Get(ctx, f.tiers[name], d, "apps", "hello"); err != nil {
				return err
			}
			for _, env := range d.Spec.Template.Spec.Containers[0].Env {
				if env.Value == f.greeting(version, name) {
					return nil
				}
			}
			return fmt.Errorf("it has %+v", d.Spec.Template.Spec.Containers[0].Env)
		})
	}
}

// badCommit breaks the applications: staging has one tenant, which is its canary, and
// production stops at alpha, which a person let go too early.
func (f *fleet) badCommit(t *testing.T) {
	since := f.offsets(t, "beta")
	sha := f.commit(t, "apps", "Break", func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "hello", "broken.yaml"), []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name}\n"), 0o644); err != nil {
			return err
		}
		return scenario.ReplaceIn(filepath.Join(dir, "hello", "kustomization.yaml"), "  - deployment.yaml\n", "  - deployment.yaml\n  - broken.yaml\n")
	})
	f.stands(t, "staging", sha, v1alpha1.ReasonRolloutHalted)
	f.stands(t, "production", sha, v1alpha1.ReasonAwaitingApproval)
	f.approveCanary(t, sha)
	f.stands(t, "production", sha, v1alpha1.ReasonRolloutHalted)
	child := &v1alpha1.Child{}
	if err := scenario.Get(t.Context(), f.tiers["production"], child, stage.Namespace, "beta"); err != nil {
		t.Fatal(err)
	}
	if r := child.Status.Rollouts; len(r) != 1 || strings.HasSuffix(r[0].Revision, sha) {
		t.Errorf("beta may have %+v", r)
	}
	f.unchanged(t, since)
}

func (f *fleet) revertHeals(t *testing.T) {
	sha := f.commit(t, "apps", "Take it back", func(dir string) error {
		if err := os.Remove(filepath.Join(dir, "hello", "broken.yaml")); err != nil {
			return err
		}
		return scenario.ReplaceIn(filepath.Join(dir, "hello", "kustomization.yaml"), "  - broken.yaml\n", "")
	})
	f.stands(t, "staging", sha, v1alpha1.ReasonSucceeded)
	f.stands(t, "production", sha, v1alpha1.ReasonAwaitingApproval)
	f.approveCanary(t, sha)
	f.stands(t, "production", sha, v1alpha1.ReasonSucceeded)
}

func (f *fleet) stagingThenProduction(t *testing.T) {
	since := f.offsets(t, "alpha", "beta")
	start := time.Now()
	before := f.version
	sha := f.greet(t)
	f.stands(t, "staging", sha, v1alpha1.ReasonSucceeded)
	f.greets(t, f.version, "gamma")
	t.Logf("staging had the commit, soaked, after %.1f s", time.Since(start).Seconds())
	f.stands(t, "production", sha, v1alpha1.ReasonAwaitingApproval)
	f.unchanged(t, since)
	f.greets(t, before, "alpha", "beta")
	start = time.Now()
	f.approveCanary(t, sha)
	f.stands(t, "production", sha, v1alpha1.ReasonSucceeded)
	f.greets(t, f.version, "alpha", "beta")
	t.Logf("production had the commit %.1f s after the approval", time.Since(start).Seconds())
}

// momGone ends the MoM while production waits: the tiers below finish their own runs, and
// nothing moves without an approval.
func (f *fleet) momGone(t *testing.T) {
	since := f.offsets(t, "alpha", "beta")
	before := f.version
	sha := f.greet(t)
	f.stands(t, "production", sha, v1alpha1.ReasonAwaitingApproval)
	if err := f.MoM.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.stands(t, "staging", sha, v1alpha1.ReasonSucceeded)
	f.greets(t, f.version, "gamma")
	f.unchanged(t, since)
	f.greets(t, before, "alpha", "beta")
	f.approveCanary(t, sha)
	f.stands(t, "production", sha, v1alpha1.ReasonSucceeded)
	f.greets(t, f.version, "alpha", "beta")
	if err := f.MoM.StartControlPlane(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.await(t, f.MoM, "production")
}
