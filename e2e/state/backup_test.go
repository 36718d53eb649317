package state

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/state"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/key"
	"github.com/cascade-gitops/cascade/state/store"
)

// TestStateBackup has an agent save its tier into a Git repository, and a person restore it
// with the program.
func TestStateBackup(t *testing.T) {
	scenario.Alongside(t)
	s := startStage(t)
	tier, c := stood(t, s, "backed-up", true)
	made{t, c}.tier(2)
	if err := s.Git.Create(t.Context(), "state.git"); err != nil {
		t.Fatal(err)
	}
	agent, err := tier.StartAgent(t.Context(), "--controllers=StateBackup")
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Kill()
	url := "git+" + s.Git.HTTPURL("state.git")
	backup := func(namespace, name, recipient string) string {
		return fmt.Sprintf(`apiVersion: cascade.dev/v1alpha1
kind: StateBackup
metadata: {name: %s, namespace: %s}
spec:
  interval: 10s
  destination: {url: "%s", secretRef: {name: git-auth}}
  encryption: {recipients: ["%s"]}
  keepLast: 2
`, name, namespace, url, recipient)
	}
	if err := stage.Apply(t.Context(), c, backup(stage.Namespace, "tier", recipient)+"---\n"+backup("fleet", "elsewhere", recipient)+"---\n"+backup(stage.Namespace, "nobody", "age1nothing")); err != nil {
		t.Fatal(err)
	}
	b := &v1alpha1.StateBackup{}
	ready := func(ctx context.Context, namespace, name, reason string) error {
		if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, b); err != nil {
			return err
		}
		is := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ReadyCondition)
		if is == nil || is.Reason != reason {
			return fmt.Errorf("Ready is %+v", is)
		}
		return nil
	}
	scenario.Eventually(t, scenario.Converge, "one in another namespace is refused", func(ctx context.Context) error {
		return ready(ctx, "fleet", "elsewhere", v1alpha1.ReasonBackupRefused)
	})
	scenario.Eventually(t, scenario.Converge, "one for nobody is refused", func(ctx context.Context) error {
		return ready(ctx, stage.Namespace, "nobody", v1alpha1.ReasonInvalidSpec)
	})
	saved := func(version string) {
		t.Helper()
		scenario.Eventually(t, scenario.Converge, "version "+version+" is saved", func(ctx context.Context) error {
			if err := ready(ctx, stage.Namespace, "tier", v1alpha1.ReasonSucceeded); err != nil {
				return err
			}
			if b.Status.LastVersion != version {
				return fmt.Errorf("the version is %q: %+v", b.Status.LastVersion, b.Status)
			}
			return nil
		})
	}
	saved("1-1")
	first := b.Status.LastSuccess.Time
	scenario.Eventually(t, scenario.Converge, "the state is looked at again, and nothing is saved", func(ctx context.Context) error {
		if err := ready(ctx, stage.Namespace, "tier", v1alpha1.ReasonSucceeded); err != nil {
			return err
		}
		if !b.Status.LastSuccess.After(first) {
			return fmt.Errorf("the last success is at %s", b.Status.LastSuccess)
		}
		if b.Status.LastVersion != "1-1" {
			t.Errorf("version %s has what was saved before", b.Status.LastVersion)
		}
		return nil
	})
	made{t, c}.cluster(2)
	saved("2-1")
	made{t, c}.cluster(3)
	saved("3-1")
	if b.Status.Versions != 2 {
		t.Errorf("%d versions are kept", b.Status.Versions)
	}
	if _, err := metric(t.Context(), agent, `cascade_state_backup_objects{name="tier",namespace="cascade-system"}`); err != nil {
		t.Error(err)
	}
	agent.Kill()
	verbs(t, s, tier, url, loadFrom(t, s, url))
}

// metric is what an agent serves of one.
func metric(ctx context.Context, a *stage.Agent, line string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.Metrics()+"/metrics", nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	for l := range strings.SplitSeq(string(text), "\n") {
		if value, ok := strings.CutPrefix(l, line); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("there is no metric %s", line)
}

// loadFrom reads the newest version.
func loadFrom(t *testing.T, s *stage.Stage, url string) *archive.Snapshot {
	t.Helper()
	user, password := s.Git.Login()
	at, err := store.Open(t.Context(), url, store.Options{Secret: map[string][]byte{"username": []byte(user), "password": []byte(password)}})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	versions, err := at.Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v, err := store.Find(versions, "")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := at.Load(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := key.Identities(t.Context(), []byte(identity))
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := archive.Open(sealed, ids...)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(state.Clusters(snapshot)); n != 4 {
		t.Errorf("version %s has %d Clusters", v, n)
	}
	return snapshot
}

// verbs are what a person does: save by hand with a verification, list, and restore.
func verbs(t *testing.T, s *stage.Stage, tier *stage.Tier, url string, saved *archive.Snapshot) {
	t.Helper()
	dir := t.TempDir()
	credentials := filepath.Join(dir, "credentials")
	if err := os.Mkdir(credentials, 0o700); err != nil {
		t.Fatal(err)
	}
	user, password := s.Git.Login()
	for name, content := range map[string]string{"credentials/username": user, "credentials/password": password + "\n", "key.txt": identity + "\n", "other.txt": otherKey + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program, err := s.Program("cascade")
	if err != nil {
		t.Fatal(err)
	}
	run := func(on *stage.Tier, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+on.Kubeconfig())
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	verified, _ := stood(t, s, "verified", false)
	out, err := run(tier, "save", "--to", url, "--credentials", credentials, "--recipient", recipient, "--verify", "--verify-kubeconfig", verified.Kubeconfig())
	if err != nil || !strings.Contains(out, "verified version 4-1") {
		t.Fatalf("save --verify: %v\n%s", err, out)
	}
	// A tier that has kinds of Cluster API may have who works on them: it is not one to verify in.
	used, c := stood(t, s, "used", true)
	if out, err := run(tier, "save", "--to", "file://"+filepath.Join(dir, "used"), "--recipient", recipient, "--verify", "--verify-kubeconfig", used.Kubeconfig()); err == nil || !strings.Contains(out, "not empty") {
		t.Errorf("save --verify in a tier: %v\n%s", err, out)
	}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "fleet", Name: "c00"}, stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")); !apierrors.IsNotFound(err) {
		t.Errorf("the Cluster was restored there: %v", err)
	}
	if out, err := run(tier, "save", "list", "--from", url, "--credentials", credentials); err != nil || !strings.Contains(out, "4-1") || strings.Contains(out, "1-1") {
		t.Errorf("save list: %v\n%s", err, out)
	}
	next, c := stood(t, s, "restored", true)
	if out, err := run(next, "restore", "--from", url, "--credentials", credentials, "--identity", filepath.Join(dir, "other.txt")); err == nil || !strings.Contains(out, "not for any of the given keys") {
		t.Errorf("restore with another key: %v\n%s", err, out)
	}
	if out, err := run(next, "restore", "--from", url, "--credentials", credentials, "--identity", filepath.Join(dir, "key.txt"), "--dry-run"); err != nil || !strings.Contains(out, "Create Cluster/fleet/c00") {
		t.Errorf("restore --dry-run: %v\n%s", err, out)
	}
	if out, err := run(next, "restore", "--from", url, "--credentials", credentials, "--identity", filepath.Join(dir, "key.txt")); err != nil || !strings.Contains(out, "4 Clusters resumed") {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	same(t, c, saved)
	// A tier that may create Clusters by itself is not one to restore into.
	settled, c := stood(t, s, "settled", true)
	if err := stage.Apply(t.Context(), c, "{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-first-sync, namespace: cascade-system}, data: {state: settled, why: it is new}}"); err != nil {
		t.Fatal(err)
	}
	if out, err := run(settled, "restore", "--from", url, "--credentials", credentials, "--identity", filepath.Join(dir, "key.txt")); err == nil || !strings.Contains(out, state.ReasonSettled) {
		t.Errorf("restore into a settled tier: %v\n%s", err, out)
	}
}
