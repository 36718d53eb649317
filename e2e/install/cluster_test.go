package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// cluster is a control plane into which the test installs.
type cluster struct {
	*scenario.Tier
	tier *stage.Tier
	// program is that of the command line; empty: the one of this commit.
	program string
}

// startCluster starts a control plane without an agent, and a node if it is asked for.
func startCluster(t *testing.T, node bool) *cluster {
	t.Helper()
	s, err := stage.Open(t.Context(), stage.Options{Run: scenario.RunDir(t), Bin: scenario.Programs(t), Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		scenario.NoRaces(t, s)
		if t.Failed() {
			logs(t, s)
		}
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	c := &cluster{Tier: &scenario.Tier{Stage: s}}
	if c.tier, err = s.Cluster(t.Context(), "tier", "--audit-reads"); err != nil {
		t.Fatal(err)
	}
	s.MoM = c.tier
	if node {
		if err := c.tier.StartNode(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if c.Client, err = c.tier.Client(); err != nil {
		t.Fatal(err)
	}
	return c
}

// logs shows the end of what agents printed.
func logs(t *testing.T, s *stage.Stage) {
	for _, file := range s.Logs() {
		out, err := exec.Command("tail", "-n", "5", file).CombinedOutput()
		t.Logf("%s: %v\n%s", filepath.Base(file), err, out)
	}
}

// run runs a verb, and returns what it printed, and its exit code.
func (c *cluster) run(t *testing.T, in string, args ...string) (out, complaints string, code int) {
	t.Helper()
	program := c.program
	if program == "" {
		var err error
		if program, err = c.Program("cascade"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), scenario.Converge)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(args, "--kubeconfig", c.tier.Kubeconfig())...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), code
}

// must runs a verb that succeeds.
func (c *cluster) must(t *testing.T, args ...string) string {
	t.Helper()
	out, complaints, code := c.run(t, "", args...)
	if code != 0 {
		t.Fatalf("cascade %v ends with %d\n%s%s", args, code, out, complaints)
	}
	return out + complaints
}

func (c *cluster) install(t *testing.T, args ...string) string {
	t.Helper()
	return c.must(t, append([]string{"install", "--image", stage.Image}, args...)...)
}

// repository makes a repository with a Kustomization of ConfigMaps, which the agent syncs.
func (c *cluster) repository(t *testing.T, account string) {
	t.Helper()
	user, password := c.Git.Login()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "git-auth"},
		StringData: map[string]string{"username": user, "password": password},
	}
	if err := c.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	c.Repository(t, "apps", map[string]string{"app/a.yaml": scenario.ConfigMap("a", "1")})
	more := ""
	if account != "" {
		more = "  serviceAccountName: " + account + "\n"
	}
	c.Apply(t, scenario.Kustomization("app", "apps", "./app", more))
}

func (c *cluster) deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := c.Load(t.Context(), d, stage.Namespace, "cascade"); err != nil {
		t.Fatal(err)
	}
	return d
}

// uids are the UIDs of what an installation has to leave alone.
func (c *cluster) uids(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, o := range []*unstructured.Unstructured{
		named("v1", "ConfigMap", "default", "a"), named("cluster.x-k8s.io/v1beta2", "Cluster", "default", "prod"),
		named("v1", "Namespace", "", stage.Namespace), named("v1", "Secret", stage.Namespace, "git-auth"),
	} {
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		found[o.GetKind()] = string(o.GetUID())
	}
	return found
}

func named(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	u := stage.Object(apiVersion, kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// deleted are the deletes since an offset of the audit log that were carried out, of
// everybody but controllers of Kubernetes. A node deletes pods that have ended.
func (c *cluster) deleted(t *testing.T, from int64) []string {
	t.Helper()
	events, _, err := c.tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range events {
		of := e.ObjectRef
		if of.Resource == "pods" {
			continue
		}
		if (e.Verb == "delete" || e.Verb == "deletecollection") && e.ResponseStatus.Code < 300 && !strings.Contains(e.RequestURI, "dryRun") &&
			!strings.HasPrefix(e.User.Username, "system:serviceaccount:kube-system:") && !strings.HasPrefix(e.User.Username, "system:apiserver") {
			found = append(found, fmt.Sprintf("%s/%s", of.Resource, of.Name))
		}
	}
	return found
}
