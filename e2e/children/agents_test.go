package children

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// agentWaves is a fleet of three clusters whose agents are of the previous release, and whose
// layer a Rollout moves.
type agentWaves struct {
	*waves
	earlier scenario.Release
}

// Images of agents. Nodes run a program for each.
const (
	earlierImage = "example.com/cascade:earlier"
	presentImage = "example.com/cascade:present"
)

// TestAgentsInWaves: another image of a layer's agent goes over the clusters in waves; agents
// of both versions work beside each other meanwhile.
func TestAgentsInWaves(t *testing.T) {
	scenario.Alongside(t)
	x := startAgentWaves(t)
	steps(t,
		step{"AdoptsTheEarlierAgents", x.adopts},
		step{"CanaryComesFirst", x.canary},
		step{"BothVersionsWork", func(t *testing.T) { x.works(t, "2") }},
		step{"OthersFollow", x.others},
		step{"AllWork", func(t *testing.T) { x.works(t, "3") }},
	)
}

func startAgentWaves(t *testing.T) *agentWaves {
	t.Helper()
	h := startHub(t, "v1beta2", "--observe-interval", observeInterval.String())
	x := &agentWaves{earlier: scenario.Earlier(t, scenario.BeforeValues)}
	x.waves = &waves{&pins{planes: map[string]*plane{}, fleet: h.fleet(t, "agents", map[string]string{
		"app/sync.yaml": fmt.Sprintf(armed, h.Git.HTTPURL("agents")), "own/note.yaml": noteNamed("own", "version", "1"),
	})}}
	x.commits = append(x.commits, x.head(t))
	username, password := h.Git.Login()
	x.define(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: for-child}, stringData: {username: %q, password: %q}}", username, password))
	x.served(t)
	x.layers(t, earlierImage)
	programs := x.programs(t)
	for _, name := range []string{"canary", "p1", "p2"} {
		p := h.plane(t, name, "--audit-reads", "--token-cache=0s")
		if err := p.StartNode(t.Context(), programs); err != nil {
			t.Fatal(err)
		}
		x.planes[name] = p
		x.declare(t, name)
		x.report(t, name, initialized)
		x.handOver(t, name, p.issue(t).kubeconfig)
	}
	for name := range x.planes {
		x.ready(t, name, "")
	}
	return x
}

// programs makes a directory whose program is that of the image which the pod has: the
// agent's Deployment says that in a variable as well.
func (x *agentWaves) programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("#!/bin/sh\ncase \"$CASCADE_IMAGE\" in\n%s) exec %s/cascade \"$@\";;\n%s) exec %s/cascade \"$@\";;\nesac\necho \"no program for $CASCADE_IMAGE\" >&2\nexit 1\n",
		earlierImage, x.earlier.Dir, presentImage, scenario.Programs(t)[0])
	if err := os.WriteFile(filepath.Join(dir, "cascade"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// layers defines the layer, whose agents have an image.
func (x *agentWaves) layers(t *testing.T, image string) {
	t.Helper()
	x.define(t, fmt.Sprintf(`apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: app}
spec:
  clusterSelector: {matchExpressions: [{key: cluster, operator: Exists}]}
  sourceRef: {kind: GitRepository, name: fleet}
  path: ./app
  wait: true
  agent: {image: %q, args: [--observe-interval=1s]}
  credentials: [{name: git-auth, secretRef: {name: for-child}}]
`, image))
}

// run expects the program that the agent of each cluster is of, and the image that its
// Deployment has.
func (x *agentWaves) run(t *testing.T, want map[string]string) {
	t.Helper()
	for name, image := range want {
		p, program := x.planes[name], filepath.Join(scenario.Programs(t)[0], "cascade")
		if image == earlierImage {
			program = filepath.Join(x.earlier.Dir, "cascade")
		}
		scenario.Eventually(t, scenario.Converge, name+" runs "+image, func(ctx context.Context) error {
			d := &appsv1.Deployment{}
			if err := p.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName}, d); err != nil {
				return err
			}
			runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.Agent()))
			if has := d.Spec.Template.Spec.Containers[0].Image; err != nil || has != image || runs != program {
				return fmt.Errorf("the Deployment has %s, and %s runs: %w", has, runs, err)
			}
			return nil
		})
	}
}

// over waits until an image passed all waves.
func (x *agentWaves) over(t *testing.T, image string) {
	t.Helper()
	x.status(t, "over with "+image, func(o *v1alpha1.Rollout) bool {
		return o.Status.LastGood != nil && o.Status.LastGood.Image == image && o.Status.Clusters.Updated == 3 && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ReadyCondition)
	})
}

func (x *agentWaves) adopts(t *testing.T) {
	x.run(t, map[string]string{"canary": earlierImage, "p1": earlierImage, "p2": earlierImage})
	x.reported(t, "1", slices.Collect(maps.Values(x.planes))...)
	since := x.marks(t)
	x.define(t, `apiVersion: cascade.dev/v1alpha1
kind: Rollout
metadata: {name: app}
spec:
  moves: {layerRef: {name: app}}
  deadline: 3m
  waves:
  - {name: canary, selector: {matchLabels: {cluster: canary}}, maxConcurrent: 1}
  - {name: rest, maxConcurrent: 2, approval: Required}
`)
	x.over(t, earlierImage)
	x.alone(t, since)
}

// canary: the other clusters are not written to until the canary runs the new agent, and is
// ready with it.
func (x *agentWaves) canary(t *testing.T) {
	since := x.marks(t)
	x.layers(t, presentImage)
	o := x.held(t, x.commits[0], v1alpha1.ReasonAwaitingApproval)
	if run := o.Status.Run; run.Image != presentImage || run.Wave != 1 {
		t.Errorf("the run is %+v", run)
	}
	x.run(t, map[string]string{"canary": presentImage, "p1": earlierImage, "p2": earlierImage})
	x.alone(t, since, "canary")
}

// works: the agents sync a commit to what they pull, and report it.
func (x *agentWaves) works(t *testing.T, version string) {
	x.commit(t, map[string]string{"own/note.yaml": noteNamed("own", "version", version)})
	for _, p := range x.planes {
		x.fetchBelow(t, p)
	}
	x.reported(t, version, slices.Collect(maps.Values(x.planes))...)
}

// others: with the approval all have the new agent. By the audit log the Deployments of the
// others were written after that of the canary.
func (x *agentWaves) others(t *testing.T) {
	since := map[string]int64{}
	for name, p := range x.planes {
		since[name] = p.now(t)
	}
	x.approve(t, "rest", presentImage) // the commit is that of the run before
	x.over(t, presentImage)
	x.run(t, map[string]string{"canary": presentImage, "p1": presentImage, "p2": presentImage})
	x.alone(t, since, "p1", "p2")
	for _, name := range []string{"p1", "p2"} {
		written := 0
		for _, e := range x.planes[name].byParent(t, since[name]) {
			if e.Writes() && e.ObjectRef.Resource == "deployments" && e.ObjectRef.Name == v1alpha1.AgentName && !strings.Contains(e.RequestURI, "dryRun=All") {
				written++
			}
		}
		if written == 0 {
			t.Errorf("nobody wrote the Deployment of %s", name)
		}
	}
}
