package install

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

const work = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: default}, data: {value: \"1\"}}\n"

// hub is a Git server with HTTPS and SSH.
func hub(t *testing.T, repository string) *gitserver.Server {
	t.Helper()
	s, err := gitserver.Start(context.WithoutCancel(t.Context()), gitserver.Options{Root: t.TempDir(), Username: "ann", Password: "hunter2hunter2", TLS: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Create(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBootstrap: a cluster becomes a tier from an empty repository, with one command.
func TestBootstrap(t *testing.T) {
	scenario.Alongside(t)
	t.Run("HTTPS", bootstrapByHTTPS)
	t.Run("SSH", bootstrapBySSH)
	t.Run("Flux", bootstrapOfFlux)
}

func bootstrapByHTTPS(t *testing.T) {
	c, git := startCluster(t, true), hub(t, "tier")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, git.CA(), 0o644); err != nil {
		t.Fatal(err)
	}
	bootstrap := func(more ...string) string {
		out, complaints, code := c.run(t, "hunter2hunter2\n", append([]string{
			"bootstrap", "git", "--url", git.HTTPURL("tier"), "--username", "ann", "--password-stdin", "--ca-file", ca, "--path", "clusters/tier", "--image", stage.Image,
		}, more...)...)
		if code != 0 {
			t.Fatalf("it ends with %d\n%s%s", code, out, complaints)
		}
		return out + complaints
	}
	// What was installed by hand is the Kustomization's from then on, and goes with Git.
	c.install(t, "--env", "OLD=1")
	out := bootstrap()
	if !strings.Contains(out, "pushed commit") || strings.Contains(out, "hunter2") {
		t.Errorf("it says\n%s", out)
	}
	if _, err := git.Commit(t.Context(), "tier", "main", "Work", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "clusters", "tier", "a.yaml"), []byte(work), 0o644)
	}); err != nil {
		t.Fatal(err)
	}
	c.must(t, "reconcile", "kustomization", "cascade-system", "--with-source")
	c.Value(t, "a", "1")

	d := c.deployment(t)
	if env := d.Spec.Template.Spec.Containers[0].Env; slices.ContainsFunc(env, func(e corev1.EnvVar) bool { return e.Name == "OLD" }) || d.Labels["install.cascade.dev/name"] != "" {
		t.Errorf("what is not in Git stays: labels %v, variables %v", d.Labels, env)
	}
	generation := d.Generation
	from, pushes := c.AuditOffset(t), git.Requests("tier").Pushes
	if out := bootstrap(); !strings.Contains(out, "declares it already") {
		t.Errorf("a second time it says\n%s", out)
	}
	if now := git.Requests("tier").Pushes; now != pushes {
		t.Errorf("a second time it pushes, %d times", now-pushes)
	}
	if d := c.deployment(t); d.Generation != generation {
		t.Errorf("the Deployment was changed: it has generation %d, and had %d", d.Generation, generation)
	}

	out = bootstrap("--env", "A=b")
	if !strings.Contains(out, "writing clusters/tier/cascade-system/agent.yaml") || strings.Contains(out, "applying") {
		t.Errorf("of a change it says\n%s", out)
	}
	env := c.deployment(t).Spec.Template.Spec.Containers[0].Env
	if last := env[len(env)-1]; last.Name != "A" || last.Value != "b" {
		t.Errorf("the change is not in the cluster: %+v", last)
	}
	events, _, err := c.tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Writes() && e.ObjectRef.Resource == "deployments" && strings.HasPrefix(e.UserAgent, "cascade/") {
			t.Errorf("the change did not come by Git: %s %s of %s", e.Verb, e.RequestURI, e.UserAgent)
		}
	}
	if deleted := c.deleted(t, from); len(deleted) > 0 {
		t.Errorf("there was deleted %v", deleted)
	}
	// The agent gives its rights to an account before they go.
	if out := bootstrap("--lockdown"); strings.Count(out, "pushed commit") != 2 {
		t.Errorf("of a lockdown it says\n%s", out)
	}
	if _, err := git.Commit(t.Context(), "tier", "main", "Work", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "clusters", "tier", "a.yaml"), []byte(strings.ReplaceAll(work, `"1"`, `"2"`)), 0o644)
	}); err != nil {
		t.Fatal(err)
	}
	c.must(t, "reconcile", "kustomization", "cascade-system", "--with-source")
	c.Value(t, "a", "2")
	c.staysUninstalled(t)
}

// staysUninstalled: an agent that is declared in Git does not put itself back while it ends.
func (c *cluster) staysUninstalled(t *testing.T) {
	t.Helper()
	from := c.AuditOffset(t)
	c.must(t, "uninstall", "--yes")
	events, _, err := c.tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.ObjectRef.Resource == "deployments" && e.ResponseStatus.Code == http.StatusCreated {
			t.Errorf("the Deployment is made anew: %s %s of %s", e.Verb, e.RequestURI, e.UserAgent)
		}
	}
	d := named("apps/v1", "Deployment", stage.Namespace, "cascade")
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d); !apierrors.IsNotFound(err) {
		t.Errorf("the Deployment is still there: %v", err)
	}
}

func bootstrapBySSH(t *testing.T) {
	c, git := startCluster(t, true), hub(t, "tier")
	command := []string{"bootstrap", "git", "--url", git.SSHURL("tier"), "--image", stage.Image}
	out, complaints, code := c.run(t, "n\n", command...)
	if code == 0 || !strings.HasPrefix(out, "ssh-ed25519 ") || !strings.Contains(complaints, "known by it from now on") {
		t.Fatalf("it ends with %d\n%s%s", code, out, complaints)
	}
	// The key is the same when the person comes back.
	if err := git.Allow("tier", []byte(out)); err != nil {
		t.Fatal(err)
	}
	if again := c.must(t, command...); !strings.Contains(again, "pushed commit") || !strings.HasPrefix(again, out) {
		t.Errorf("it says\n%s", again)
	}
	secret := &corev1.Secret{}
	if err := c.Load(t.Context(), secret, stage.Namespace, "cascade-system"); err != nil {
		t.Fatal(err)
	}
	keys := maps.Clone(secret.Data)
	pushes := git.Requests("tier").Pushes
	if out := c.must(t, command...); !strings.Contains(out, "declares it already") {
		t.Errorf("a second time it says\n%s", out)
	}
	if now := git.Requests("tier").Pushes; now != pushes {
		t.Errorf("a second time it pushes, %d times", now-pushes)
	}
	if err := c.Load(t.Context(), secret, stage.Namespace, "cascade-system"); err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(keys, secret.Data, func(a, b []byte) bool { return string(a) == string(b) }) {
		t.Error("the login was replaced")
	}
	if _, err := git.Commit(t.Context(), "tier", "main", "Work", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(work), 0o644)
	}); err != nil {
		t.Fatal(fmt.Errorf("cannot commit: %w", err))
	}
	c.must(t, "reconcile", "kustomization", "cascade-system", "--with-source")
	c.Value(t, "a", "1")
}

// bootstrapOfFlux: a new cluster becomes the tier that a repository of flux bootstrap declares.
// The agent syncs it in the place of Flux's controllers, which do not start.
func bootstrapOfFlux(t *testing.T) {
	f := &fluxed{cluster: startCluster(t, true), git: hub(t, "fleet")}
	if _, err := f.git.Commit(t.Context(), "fleet", "main", "Add Flux v2.9.5", f.files); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, f.git.CA(), 0o644); err != nil {
		t.Fatal(err)
	}
	out, complaints, code := f.run(t, "hunter2hunter2\n", "bootstrap", "git", "--url", f.git.HTTPURL("fleet"), "--username", "ann", "--password-stdin", "--ca-file", ca,
		"--path", "clusters/prod", "--image", stage.Image)
	if code != 0 || !strings.Contains(out, "the tier syncs itself") {
		t.Fatalf("it ends with %d\n%s%s", code, out, complaints)
	}
	f.Value(t, "c2", "1")
	f.leads(t, "notification-controller", true)
	for _, name := range []string{"source-controller", "kustomize-controller", "helm-controller"} {
		f.leads(t, name, false)
	}
	secret := &corev1.Secret{}
	if err := f.Load(t.Context(), secret, "flux-system", "flux-system"); err != nil {
		t.Fatal(err)
	}
}
