package children

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// hub is a management tier with the API of Cluster API but none of its
// controllers: a test does what they and a provider would do, and when. The agent
// runs as a process of the machine. The children are real control planes.
type hub struct {
	*stage.Stage
	tier   *stage.Tier
	client client.WithWatch
	agent  *stage.Agent
	flags  []string
	// program is the file of the agent, empty for the one of the stage.
	program string
}

// planeFlags are those of control planes without controllers and nodes: nothing is
// written that the test or the agent does not write. A revoked token is refused at
// once.
var planeFlags = []string{"--api-only", "--audit-reads", "--token-cache=0s"}

// startHub starts a hub that serves one version of Cluster, v1beta1 or v1beta2,
// and whose agent has these flags.
func startHub(t *testing.T, version string, flags ...string) *hub {
	t.Helper()
	h := openHub(t, flags...)
	h.installAll(t, version)
	h.startAgent(t)
	return h
}

// openHub starts the control plane of a hub, in which nothing is installed.
func openHub(t *testing.T, flags ...string) *hub {
	t.Helper()
	return openHubOn(t, []string{"--api-only"}, flags...)
}

// openHubOn starts one whose control plane has flags of its own.
func openHubOn(t *testing.T, plane []string, flags ...string) *hub {
	t.Helper()
	h := &hub{flags: flags}
	var err error
	if h.Stage, err = stage.Open(t.Context(), stage.Options{Run: scenario.RunDir(t), Bin: scenario.Programs(t), Log: t.Logf}); err != nil {
		t.Fatalf("cannot start the stage: %v", err)
	}
	t.Cleanup(func() {
		scenario.NoRaces(t, h.Stage)
		if t.Failed() && h.agent != nil {
			h.tell(t)
		}
		if err := h.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	if h.tier, err = h.Cluster(t.Context(), "hub", plane...); err != nil {
		t.Fatal(err)
	}
	if h.client, err = h.tier.Watcher(); err != nil {
		t.Fatal(err)
	}
	return h
}

// installAll applies the present CRDs of cascade and that of Clusters.
func (h *hub) installAll(t *testing.T, version string) {
	t.Helper()
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	h.install(t, crds, version)
}

// install applies CRDs of cascade and that of Clusters.
func (h *hub) install(t *testing.T, crds []*unstructured.Unstructured, version string) {
	t.Helper()
	data, err := os.ReadFile(scenario.Path(t, "bin", "capi", "crd", "bases", "cluster.x-k8s.io_clusters.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd, err := ssautil.ReadObject(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	versions = slices.DeleteFunc(versions, func(v any) bool { return v.(map[string]any)["name"] != version })
	if len(versions) != 1 {
		t.Fatalf("Cluster has %d versions named %s", len(versions), version)
	}
	versions[0].(map[string]any)["storage"] = true
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(crd.Object, "status")
	for _, u := range append(crds, crd) {
		h.apply(t, u)
	}
	h.apply(t, object("v1", "Namespace", "", v1alpha1.AgentNamespace))
	scenario.Eventually(t, scenario.Converge, "the kinds are served", func(ctx context.Context) error {
		for _, u := range []*unstructured.Unstructured{
			stage.Object("cluster.x-k8s.io/"+version, "Cluster"), stage.Object("cascade.dev/v1alpha1", "Layer"), stage.Object("cascade.dev/v1alpha1", "Child"),
			stage.Object("source.toolkit.fluxcd.io/v1", "GitRepository"), stage.Object("kustomize.toolkit.fluxcd.io/v1", "Kustomization"),
		} {
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion(u.GetAPIVersion())
			list.SetKind(u.GetKind() + "List")
			if err := h.client.List(ctx, list); err != nil {
				return err
			}
		}
		return nil
	})
}

func (h *hub) startAgent(t *testing.T) {
	t.Helper()
	var err error
	if h.agent, err = h.tier.StartAgentWith(t.Context(), stage.AgentOptions{Program: h.program, Flags: h.flags}); err != nil {
		t.Fatal(err)
	}
}

// tell shows what a person would look at first.
func (h *hub) tell(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := h.Run(ctx, "cascade", "get", "all", "-A", "--kubeconfig", h.tier.Kubeconfig())
	t.Logf("cascade get all: %v\n%s", err, out)
	data, err := os.ReadFile(h.agent.Log)
	var errors []string
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, `"level":"info"`) {
			errors = append(errors, line)
		}
	}
	t.Logf("errors in the agent's log: %v\n%s", err, strings.Join(errors[max(0, len(errors)-20):], ""))
}

func (h *hub) apply(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	if err := h.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner("test")); err != nil {
		t.Fatalf("cannot apply %s %s: %v", u.GetKind(), u.GetName(), err)
	}
}

func object(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	u := stage.Object(apiVersion, kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// times is how often the long form of a test does something, by an environment
// variable; without it the short form does it as often as given.
func times(t *testing.T, variable string, short int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s must be a number above 0, it is %q", variable, text)
	}
	return n
}
