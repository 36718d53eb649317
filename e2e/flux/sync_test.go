package flux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestSync runs one tier and does to its sync what happens to syncs: the process
// is killed in the middle, Git loses what it declared, people make mistakes.
func TestSync(t *testing.T) {
	scenario.Alongside(t)
	s := startSync(t)
	for _, part := range []struct {
		name string
		run  func(*syncTier, *testing.T)
	}{
		{"KilledAtTenPoints", (*syncTier).killedAtTenPoints},
		{"EmptyKustomizationDeletesNothing", (*syncTier).emptyKustomization},
		{"RemovedPathDeletesNothing", (*syncTier).removedPath},
		{"EmptiedBranchDeletesNothing", (*syncTier).emptiedBranch},
		{"ApprovedPlanIsCarriedOut", (*syncTier).approvedPlan},
		{"HealthAndDependencies", (*syncTier).healthAndDependencies},
		{"Suspended", (*syncTier).suspended},
		{"Pruning", (*syncTier).pruning},
		{"IgnoredFilesAreHeld", (*syncTier).ignoredFiles},
		{"InhabitedNamespaceStays", (*syncTier).inhabitedNamespace},
		{"DeletionPolicies", (*syncTier).deletionPolicies},
		{"Refusals", (*syncTier).refusals},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(s, t) }) {
			return
		}
	}
}

// syncTier is a tier with one Kustomization, apps, of set objects.
type syncTier struct {
	*scenario.Tier
	// revision counts the commits; each declares other objects.
	revision int
}

// set is the number of objects that the repository declares.
const set = 30

func startSync(t *testing.T) *syncTier {
	t.Helper()
	repos := t.TempDir()
	o := &syncTier{}
	if err := o.write(filepath.Join(repos, "apps")); err != nil {
		t.Fatal(err)
	}
	o.Tier = scenario.StartTierWith(t, repos, syncManifests)
	o.converged(t)
	return o
}

const syncManifests = `apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata:
  name: apps
  namespace: cascade-system
spec:
  url: ${git_url}/apps.git
  ref: {branch: main}
  secretRef: {name: git-auth}
  interval: 1s
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: apps
  namespace: cascade-system
spec:
  sourceRef: {kind: GitRepository, name: apps}
  path: ./set
  targetNamespace: default
  prune: true
  interval: 10m
  retryInterval: 1s
`

// names of the objects of a revision. Each revision takes eight away and adds
// eight, below what the shrink guard holds.
func (o *syncTier) names() []string {
	var names []string
	for i := range set {
		names = append(names, fmt.Sprintf("object-%03d", 8*o.revision+i))
	}
	return names
}

// write puts the objects of the revision into a directory, each with content
// that is new.
func (o *syncTier) write(dir string) error {
	if err := os.RemoveAll(filepath.Join(dir, "set")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "set"), 0o755); err != nil {
		return err
	}
	for _, name := range o.names() {
		text := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\ndata:\n  revision: \"%d\"\n", name, o.revision)
		if err := os.WriteFile(filepath.Join(dir, "set", name+".yaml"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (o *syncTier) commit(t *testing.T, message string, change func(dir string) error) string {
	t.Helper()
	sha, err := o.Git.Commit(t.Context(), "apps", "main", message, change)
	if err != nil {
		t.Fatal(err)
	}
	return sha
}

// present returns the objects that carry the Kustomization's owner labels, by
// name.
func (o *syncTier) present(ctx context.Context) (map[string]string, error) {
	c, err := o.MoM.Client()
	if err != nil {
		return nil, err
	}
	list := &corev1.ConfigMapList{}
	if err := c.List(ctx, list, client.InNamespace("default"), client.MatchingLabels{"kustomize.toolkit.fluxcd.io/name": "apps"}); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, cm := range list.Items {
		found[cm.Name] = cm.Data["revision"]
	}
	return found, nil
}

func (o *syncTier) kustomization(ctx context.Context) (*kustomizev1.Kustomization, metav1.Condition, error) {
	k := &kustomizev1.Kustomization{}
	if err := scenario.Get(ctx, o.MoM, k, stage.Namespace, "apps"); err != nil {
		return nil, metav1.Condition{}, err
	}
	c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
	if c == nil {
		return k, metav1.Condition{}, nil
	}
	return k, *c, nil
}

// converged waits until the cluster has exactly what the revision declares, and
// the inventory says the same.
func (o *syncTier) converged(t *testing.T) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("revision %d is in the cluster", o.revision), func(ctx context.Context) error {
		found, err := o.present(ctx)
		if err != nil {
			return err
		}
		for _, name := range o.names() {
			if found[name] != fmt.Sprint(o.revision) {
				return fmt.Errorf("%s has revision %q, want %d", name, found[name], o.revision)
			}
		}
		if len(found) != set {
			return fmt.Errorf("%d objects are there, want %d: an orphan is left", len(found), set)
		}
		k, c, err := o.kustomization(ctx)
		if err != nil {
			return err
		}
		if c.Status != metav1.ConditionTrue || k.Status.Inventory == nil || len(k.Status.Inventory.Entries) != set {
			return fmt.Errorf("Ready is %s: %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	})
}

// killedAtTenPoints kills the agent after the n-th write of a sync, for ten
// different n, and then sees whether anything was lost or left.
func (o *syncTier) killedAtTenPoints(t *testing.T) {
	for point := 1; point <= 10; point++ {
		writes := 4 * point // of about 30 applies, 8 deletes and 2 inventories
		_, from, err := o.MoM.Audit(0)
		if err != nil {
			t.Fatal(err)
		}
		pid := 0
		scenario.Eventually(t, scenario.Converge, "the agent is running", func(context.Context) error {
			if pid = o.MoM.Agent(); pid == 0 {
				return errors.New("it has no process")
			}
			return nil
		})
		o.revision++
		o.commit(t, fmt.Sprintf("Revision %d", o.revision), o.write)
		at := o.killAfter(t, pid, from, writes)
		o.converged(t)
		t.Logf("killed after %d writes, converged", at)
	}
}

// killAfter kills a process when the agent has done that many writes to what it
// manages. The last point may come after the end of the sync.
func (o *syncTier) killAfter(t *testing.T, pid int, from int64, writes int) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenario.Converge)
	defer cancel()
	done := 0
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for done < writes {
		events, next, err := o.MoM.Audit(from)
		if err != nil {
			t.Fatal(err)
		}
		from = next
		for _, e := range events {
			if e.ByAgent() && !strings.Contains(e.RequestURI, "dryRun") &&
				(e.ObjectRef.Resource == "configmaps" && e.ObjectRef.Namespace == "default" || e.ObjectRef.Resource == "kustomizations") {
				done++
			}
		}
		if _, c, err := o.kustomization(ctx); err == nil && done >= set && c.Status == metav1.ConditionTrue {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("only %d writes of %d", done, writes)
		case <-tick.C:
		}
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return done
}

// untouched fails if anything that was there is gone, or the agent asked for a
// deletion since an offset of the audit log.
func (o *syncTier) untouched(t *testing.T, from int64) {
	t.Helper()
	found, err := o.present(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range o.names() {
		if _, ok := found[name]; !ok {
			t.Errorf("%s is gone", name)
		}
	}
	events, _, err := o.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if strings.HasPrefix(e.Verb, "delete") && e.ByAgent() {
			t.Errorf("%s %s", e.Verb, e.RequestURI)
		}
	}
}

// loses commits a change that takes everything away and waits for the answer.
func (o *syncTier) loses(t *testing.T, message string, change func(dir string) error, reasons ...string) {
	t.Helper()
	_, from, err := o.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	sha := o.commit(t, message, change)
	scenario.Eventually(t, scenario.Converge, message+" is answered", func(ctx context.Context) error {
		k, c, err := o.kustomization(ctx)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(k.Status.LastAttemptedRevision, sha) || c.Status != metav1.ConditionFalse || !slices.Contains(reasons, c.Reason) {
			return fmt.Errorf("at %s Ready is %s: %s: %s", k.Status.LastAttemptedRevision, c.Status, c.Reason, c.Message)
		}
		t.Logf("%s: %s: %s", message, c.Reason, c.Message)
		return nil
	})
	o.untouched(t, from)
	// And it comes back as if nothing had happened.
	o.commit(t, "Declare it again", o.write)
	o.converged(t)
}

func (o *syncTier) emptyKustomization(t *testing.T) {
	o.loses(t, "resources: []", emptied, v1alpha1.ReasonPruneBlocked)
}

func emptied(dir string) error {
	if err := os.RemoveAll(filepath.Join(dir, "set")); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "set"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "set", "kustomization.yaml"), []byte("resources: []\n"), 0o644)
}

func (o *syncTier) removedPath(t *testing.T) {
	o.loses(t, "path removed", func(dir string) error {
		if err := os.Rename(filepath.Join(dir, "set"), filepath.Join(dir, "moved")); err != nil {
			return err
		}
		return nil
	}, fluxmeta.ArtifactFailedReason)
	o.commit(t, "Tidy up", func(dir string) error { return os.RemoveAll(filepath.Join(dir, "moved")) })
}

func (o *syncTier) emptiedBranch(t *testing.T) {
	// The path of the Kustomization is made the root first, where an emptied
	// branch is an empty directory and not a missing one.
	patchPath := func(path string) {
		t.Helper()
		k, _, err := o.kustomization(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := o.MoM.Client()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Patch(t.Context(), k, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"path":%q}}`, path))); err != nil {
			t.Fatal(err)
		}
	}
	patchPath("./")
	o.converged(t)
	o.loses(t, "branch emptied", func(dir string) error { return os.RemoveAll(filepath.Join(dir, "set")) }, v1alpha1.ReasonPruneBlocked)
	patchPath("./set")
	o.converged(t)
}

// approvedPlan empties the directory on purpose: a person approves exactly the
// list of deletes.
func (o *syncTier) approvedPlan(t *testing.T) {
	o.commit(t, "Empty on purpose", emptied)
	hash := ""
	scenario.Eventually(t, scenario.Converge, "the plan is held", func(ctx context.Context) error {
		_, c, err := o.kustomization(ctx)
		if err != nil {
			return err
		}
		m := regexp.MustCompile(`--hash ([0-9a-f]+)`).FindStringSubmatch(c.Message)
		if c.Reason != v1alpha1.ReasonPruneBlocked || m == nil {
			return fmt.Errorf("Ready is %s: %s: %s", c.Status, c.Reason, c.Message)
		}
		hash = m[1]
		return nil
	})
	if out, err := o.Run(t.Context(), "cascade", "approve", "prune", "apps", "--hash", "0123456789abcdef", "--kubeconfig", o.MoM.Kubeconfig()); err == nil {
		t.Fatalf("another hash was accepted: %s", out)
	}
	if _, err := o.Run(t.Context(), "cascade", "approve", "prune", "apps", "--hash", hash, "--kubeconfig", o.MoM.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the plan is carried out", func(ctx context.Context) error {
		found, err := o.present(ctx)
		if err != nil {
			return err
		}
		_, c, err := o.kustomization(ctx)
		if err != nil {
			return err
		}
		if len(found) != 0 || c.Status != metav1.ConditionTrue {
			return fmt.Errorf("%d objects are left; Ready is %s: %s: %s", len(found), c.Status, c.Reason, c.Message)
		}
		return nil
	})
}
