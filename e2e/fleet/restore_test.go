package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// stateBackup is what the repository of the MoM says about its state.
const stateBackup = `apiVersion: cascade.dev/v1alpha1
kind: StateBackup
metadata:
  name: tier
  namespace: cascade-system
spec:
  interval: 10s
  destination:
    url: git+${git_url}/state.git
    secretRef: {name: git-auth}
  encryption:
    recipients: [%s]
`

// TestRestoredMoM loses the MoM with all of its data, sets it up anew from Git, which brings
// the StateBackup as well, and restores the newest version beside the agent that leads the new
// tier. The restore is killed when it made the first Cluster, and goes on. Nothing is built a
// second time, nothing below is touched, nothing is saved above what was saved before it is
// restored, and who was suspended still is.
func TestRestoredMoM(t *testing.T) {
	scenario.Alongside(t)
	f := startSmallFleet(t)
	below := []string{"production", "staging", "alpha"}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Git.Create(t.Context(), "state.git"); err != nil {
		t.Fatal(err)
	}
	f.commit(t, "masters", "Save the state", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "mom", "backup.yaml"), fmt.Appendf(nil, stateBackup, identity.Recipient()), 0o644)
	})
	first := f.backedUp(t, "")
	if _, err := f.Run(t.Context(), "cascade", "suspend", "child", "staging", "--kubeconfig", f.MoM.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	newest := f.backedUp(t, first)
	running := f.controlPlanes(t)
	objectsBelow := map[string]map[string]string{}
	from := map[string]int64{}
	for _, name := range below {
		objectsBelow[name] = uids(t, f.tiers[name])
		if _, from[name], err = f.tiers[name].Audit(0); err != nil {
			t.Fatal(err)
		}
	}

	if err := f.Lose(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.SetUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.holds(t, f.MoM, "production", "staging")
	scenario.Eventually(t, scenario.BringUp, "the new MoM saves nothing above what is to be restored", func(ctx context.Context) error {
		b := &v1alpha1.StateBackup{}
		if err := scenario.Get(ctx, f.MoM, b, stage.Namespace, "tier"); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ReadyCondition); ready == nil || ready.Reason != v1alpha1.ReasonRestorePending {
			return fmt.Errorf("conditions are %s", scenario.Summary(b.Status.Conditions))
		}
		return nil
	})
	f.createsNothing(t, running)

	restore := f.restore(t, identity)
	f.killed(t, restore())
	if out, err := restore().CombinedOutput(); err != nil {
		t.Fatalf("cascade restore: %v\n%s", err, out)
	}
	f.await(t, f.MoM, "production")
	child := &v1alpha1.Child{}
	f.wait(t, "staging is suspended, as it was", func(ctx context.Context) error {
		if err := scenario.Get(ctx, f.MoM, child, stage.Namespace, "staging"); err != nil {
			return err
		}
		if !child.Spec.Suspend {
			return errors.New("it is not")
		}
		return nil
	})
	if _, err := f.Run(t.Context(), "cascade", "resume", "child", "staging", "--kubeconfig", f.MoM.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	f.await(t, f.MoM, "staging")
	f.settled(t, f.MoM, "")
	f.backedUp(t, newest)

	if now := f.controlPlanes(t); !maps.Equal(now, running) {
		t.Errorf("control planes are %v, they were %v", now, running)
	}
	for _, name := range below {
		after := uids(t, f.tiers[name])
		for object, uid := range objectsBelow[name] {
			if after[object] != uid {
				t.Errorf("%s: %s had UID %s, has %q", name, object, uid, after[object])
			}
		}
		f.noDeletes(t, f.tiers[name], from[name])
		f.noWritesByParent(t, f.tiers[name], from[name])
	}
	f.nobodyElseMadeClusters(t)
}

// backedUp waits until a version other than an earlier one is the present one, and returns it.
func (f *fleet) backedUp(t *testing.T, before string) string {
	t.Helper()
	b := &v1alpha1.StateBackup{}
	f.wait(t, "a version of the state other than "+before+" is saved", func(ctx context.Context) error {
		if err := scenario.Get(ctx, f.MoM, b, stage.Namespace, "tier"); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ReadyCondition) || b.Status.LastVersion == before {
			return fmt.Errorf("version %q, conditions are %s", b.Status.LastVersion, scenario.Summary(b.Status.Conditions))
		}
		return nil
	})
	return b.Status.LastVersion
}

// restore makes commands that restore the newest version into the MoM.
func (f *fleet) restore(t *testing.T, identity *age.X25519Identity) func() *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	user, password := f.Git.Login()
	for name, content := range map[string]string{"key.txt": identity.String(), "credentials/username": user, "credentials/password": password} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program, err := f.Program("cascade")
	if err != nil {
		t.Fatal(err)
	}
	return func() *exec.Cmd {
		return exec.CommandContext(t.Context(), program, "restore", "--kubeconfig", f.MoM.Kubeconfig(), "--from", "git+"+f.Git.HTTPURL("state.git"),
			"--credentials", filepath.Join(dir, "credentials"), "--identity", filepath.Join(dir, "key.txt"))
	}
}

// killed kills a restore when the MoM has a Cluster.
func (f *fleet) killed(t *testing.T, restore *exec.Cmd) {
	t.Helper()
	c, err := f.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := restore.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), scenario.Converge)
	defer cancel()
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("cluster.x-k8s.io/v1beta2")
	list.SetKind("ClusterList")
	// The next write is a few milliseconds away: this asks without a pause.
	for len(list.Items) == 0 {
		if err := c.List(ctx, list); err != nil {
			t.Fatalf("the restore made no Cluster: %v", err)
		}
	}
	if err := restore.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = restore.Wait()
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		u := &list.Items[i]
		if u.GetAnnotations()[v1alpha1.RestoringAnnotation] == "" {
			t.Errorf("Cluster %s is no longer being restored: the restore was not killed half way", u.GetName())
		}
	}
}

// nobodyElseMadeClusters: what clusters are built from came into the new MoM by the restore
// alone.
func (f *fleet) nobodyElseMadeClusters(t *testing.T) {
	t.Helper()
	events, _, err := f.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]int{}
	for _, e := range events {
		if e.ResponseStatus.Code != http.StatusCreated || strings.Contains(e.RequestURI, "dryRun=") {
			continue
		}
		switch e.ObjectRef.Resource {
		case "clusters", "localclusters", "localcontrolplanes":
			if made[e.ObjectRef.Resource]++; !strings.HasPrefix(e.UserAgent, "cascade/") {
				t.Errorf("%s made %s %s", e.UserAgent, e.ObjectRef.Resource, e.ObjectRef.Name)
			}
		}
	}
	if made["clusters"] != 2 {
		t.Errorf("the MoM got %v, and there are two clusters below it", made)
	}
}
