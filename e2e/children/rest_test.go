package children

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// observeInterval of the agent of TestRemoteAtRest; shorter than anybody's, so that
// a rest of some seconds has several.
const observeInterval = 2 * time.Second

// TestRemoteAtRest has two children, declared to a Cluster API of contract
// v1beta1: one to which the parent pushes, and one with a node and an agent of its
// own. It counts what they are asked when nothing happens, restarts the parent's
// agent, and takes the records away.
func TestRemoteAtRest(t *testing.T) {
	scenario.Alongside(t)
	h := startHub(t, "v1beta1", "--observe-interval", observeInterval.String())
	f := h.fleet(t, "rest", map[string]string{
		"pushed/note.yaml": noteNamed("note", "cluster", "${cluster_name}"),
		"armed/sync.yaml":  "${sync}",
		"own/note.yaml":    noteNamed("own", "cluster", "${cluster_name}", "region", "${label_region}"),
	})
	f.version = "v1beta1"
	username, password := h.Git.Login()
	f.commit(t, map[string]string{"armed/sync.yaml": fmt.Sprintf(armed, h.Git.HTTPURL("rest"))})
	f.define(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: for-child}, stringData: {username: %q, password: %q}}", username, password))
	pushed := h.plane(t, "pushed")
	armed := h.plane(t, "armed", "--audit-reads", "--token-cache=0s")
	if err := armed.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	// No comparison falls into the test by chance.
	f.layer(t, "pushed", "pushed", "interval: 24h")
	f.layer(t, "armed", "armed", "interval: 24h", "agent: {args: [--observe-interval=1s]}", "credentials: [{name: git-auth, secretRef: {name: for-child}}]", "wait: true")
	planes := map[string]*plane{"pushed": pushed, "armed": armed}
	steps(t,
		step{"DiscoverV1beta1", func(t *testing.T) {
			for name := range planes {
				f.declare(t, name)
				f.patch(t, f.cluster(t, name), map[string]any{"metadata": map[string]any{"labels": map[string]any{"region": "eu"}}})
				f.says(t, name, v1alpha1.ConnectedCondition, v1alpha1.ReasonClusterNotReady, "infrastructure")
				f.report(t, name, map[string]any{"phase": "Provisioned", "infrastructureReady": true})
				f.says(t, name, v1alpha1.ConnectedCondition, v1alpha1.ReasonClusterNotReady, "control plane")
				f.report(t, name, map[string]any{"controlPlaneReady": true, "conditions": []any{map[string]any{
					"type": "ControlPlaneInitialized", "status": "True", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
				}}})
				f.handOver(t, name, planes[name].issue(t).kubeconfig)
			}
		}},
		step{"Seeded", func(t *testing.T) {
			pushed.has(t, "note", "cluster", "pushed")
			f.ready(t, "pushed", "")
			f.ready(t, "armed", "")
			// By the child's own agent, with the variables that its parent left it.
			armed.has(t, "own", "cluster", "armed")
			armed.has(t, "own", "region", "eu")
			scenario.Eventually(t, scenario.Converge, "the child reports", func(ctx context.Context) error {
				child, err := f.child(ctx, "armed")
				if err != nil {
					return err
				}
				if r := child.Status.Report; r == nil || !r.Ready || r.Objects != 1 {
					return fmt.Errorf("the report is %+v", r)
				}
				return nil
			})
		}},
		check{"SeedOrder", func(t *testing.T) {
			inOrder(t, armed.writes(t, 0),
				"customresourcedefinitions/layers.cascade.dev", "secrets/git-auth", "deployments/cascade", "gitrepositories/fleet", "kustomizations/own")
			inOrder(t, armed.writes(t, 0), "clusterrolebindings/cascade", "configmaps/cluster-vars", "deployments/cascade")
		}},
		check{"SeedVariables", func(t *testing.T) {
			cm := &corev1.ConfigMap{}
			if err := armed.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.VariablesConfigMap}, cm); err != nil {
				t.Fatal(err)
			}
			for key, want := range map[string]string{"cluster_name": "armed", "cluster_namespace": "rest", "cluster_provider": "local", "label_region": "eu", "cluster_uid": string(f.cluster(t, "armed").GetUID())} {
				if cm.Data[key] != want {
					t.Errorf("%s is %q, want %q", key, cm.Data[key], want)
				}
			}
		}},
		check{"ObserveOneRequestPerInterval", func(t *testing.T) {
			f.quiet(t, pushed, "pushed")
		}},
		check{"AgentIsNotAsked", func(t *testing.T) {
			f.told(t, armed, "armed")
		}},
		step{"FirstComparison", func(t *testing.T) {
			layer := object("cascade.dev/v1alpha1", "Layer", f.name, "armed")
			from := armed.now(t)
			f.patch(t, layer, map[string]any{"spec": map[string]any{"interval": sweepInterval.String()}})
			scenario.Eventually(t, scenario.Converge, "the layer is compared twice", func(context.Context) error {
				lists := 0
				for _, e := range armed.byParent(t, from) {
					if e.Verb == "list" && e.ObjectRef.Resource == "deployments" {
						lists++
					}
				}
				if lists < 2 {
					return fmt.Errorf("%d lists", lists)
				}
				return nil
			})
			f.patch(t, layer, map[string]any{"spec": map[string]any{"interval": "24h"}})
			f.reconciled(t, "armed")
			armed.parentWrote(t, from)
		}},
		step{"RestartWritesNothing", func(t *testing.T) {
			from := map[string]int64{}
			for name, p := range planes {
				from[name] = p.now(t)
			}
			h.agent.Kill()
			h.startAgent(t)
			for name, p := range planes {
				f.reconciled(t, name)
				f.ready(t, name, "")
				p.parentWrote(t, from[name])
				t.Logf("%s: %d requests after the restart", name, len(p.byParent(t, from[name])))
			}
		}},
		step{"RestartWithoutSourceWritesNothing", func(t *testing.T) {
			fleet := object("source.toolkit.fluxcd.io/v1", "GitRepository", f.name, "fleet")
			from := map[string]int64{}
			for name, p := range planes {
				from[name] = p.now(t)
			}
			// What is suspended is not fetched after a start either.
			f.patch(t, fleet, map[string]any{"spec": map[string]any{"suspend": true}})
			h.agent.Kill()
			h.startAgent(t)
			for name := range planes {
				f.reconciled(t, name)
			}
			f.patch(t, fleet, map[string]any{"spec": map[string]any{"suspend": nil}})
			for name, p := range planes {
				f.reconciled(t, name)
				f.ready(t, name, "")
				p.parentWrote(t, from[name])
			}
		}},
		step{"ComparedByFirstRun", func(t *testing.T) {
			// A layer that was not in order is compared at once.
			h.agent.Kill()
			from := map[string]int64{}
			for name, p := range planes {
				child := f.child1(t, name)
				before := child.DeepCopy()
				entry := &child.Status.Layers[0]
				entry.Ready, entry.Reason, entry.Message = false, v1alpha1.ReasonUnreachable, "no answer"
				if err := f.client.Status().Patch(t.Context(), child, client.MergeFrom(before)); err != nil {
					t.Fatal(err)
				}
				from[name] = p.now(t)
			}
			h.startAgent(t)
			for name, p := range planes {
				f.ready(t, name, "")
				record := "/configmaps/" + v1alpha1.RecordPrefix + f.name + "." + name
				for _, e := range p.byParent(t, from[name]) {
					// The record says who compared it.
					if e.Writes() && !strings.Contains(e.RequestURI, record) {
						t.Errorf("%s is in place, and was written to: %s %s", name, e.Verb, e.RequestURI)
					}
				}
			}
		}},
		step{"ComparisonAfterRestart", func(t *testing.T) {
			// Layers are compared at once, instead of after ten minutes.
			f.patch(t, object("cascade.dev/v1alpha1", "Layer", f.name, "pushed"), map[string]any{"spec": map[string]any{"interval": sweepInterval.String()}})
			pushed.swept(t, pushed.now(t), 2)
			h.agent.Kill()
			from := pushed.now(t)
			h.startAgent(t)
			if asked, _ := pushed.swept(t, from, 3); asked["patch"]+asked["update"]+asked["create"] > 0 {
				t.Errorf("nobody did anything while the agent was away, and requests are %v", asked)
			}
			h.agent.Kill()
			pushed.patch(t, "note", map[string]any{"data": map[string]any{"cluster": "hand"}})
			h.startAgent(t)
			pushed.has(t, "note", "cluster", "pushed")
		}},
		step{"CommitElsewhere", func(t *testing.T) {
			from := pushed.now(t)
			f.ready(t, "pushed", f.commit(t, map[string]string{"elsewhere/note.yaml": noteNamed("note", "version", "1")}))
			pushed.swept(t, from, 3)
			pushed.parentWrote(t, from)
		}},
		step{"LostRecordsAreAdopted", func(t *testing.T) {
			for name, p := range planes {
				from := p.now(t)
				before := f.child1(t, name)
				recorded := len(p.inventory(t, f.name, before.Status.Layers[0].Name))
				if err := f.client.Delete(t.Context(), before); err != nil {
					t.Fatal(err)
				}
				scenario.Eventually(t, scenario.Converge, "the Child is there again", func(ctx context.Context) error {
					child, err := f.child(ctx, name)
					if err == nil && child.UID == before.UID {
						err = fmt.Errorf("it is the one that was deleted")
					}
					return err
				})
				child := f.ready(t, name, "")
				if len(child.Status.Layers) != 1 || child.Status.Layers[0].Digest != before.Status.Layers[0].Digest {
					t.Errorf("the layers are %v, they were %v", child.Status.Layers, before.Status.Layers)
				}
				if got := len(p.inventory(t, f.name, before.Status.Layers[0].Name)); got != recorded {
					t.Errorf("%d objects are on record, there were %d", got, recorded)
				}
				p.parentWrote(t, from)
			}
		}},
	)
}

// armed are the source and the Kustomization of a child with an agent.
const armed = `apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: fleet, namespace: cascade-system}
spec:
  url: %s
  ref: {branch: main}
  secretRef: {name: git-auth}
  interval: 1h
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: own, namespace: cascade-system}
spec:
  sourceRef: {kind: GitRepository, name: fleet}
  path: ./own
  prune: true
  interval: 1h
  postBuild:
    substituteFrom: [{kind: ConfigMap, name: cluster-vars}]
`

// inOrder fails the test unless the objects were written in this order.
func inOrder(t *testing.T, events []stage.AuditEvent, want ...string) {
	t.Helper()
	var order []string
	for _, e := range events {
		if e.ByParent() && e.ResponseStatus.Code < 300 && !strings.Contains(e.RequestURI, "dryRun") {
			order = append(order, e.ObjectRef.Resource+"/"+e.ObjectRef.Name)
		}
	}
	before := -1
	for _, object := range want {
		at := slices.Index(order, object)
		if at < 0 || at < before {
			t.Errorf("%s is not where it should be among %v", object, order)
		}
		before = at
	}
}

// byParent are the requests of the parent's agent, without those of the child's.
func (p *plane) byParent(t *testing.T, from int64) []stage.AuditEvent {
	t.Helper()
	return slices.DeleteFunc(p.requests(t, from), func(e stage.AuditEvent) bool { return !e.ByParent() })
}

// parentWrote fails the test if the parent wrote since an offset.
func (p *plane) parentWrote(t *testing.T, from int64) {
	t.Helper()
	for _, e := range p.byParent(t, from) {
		if e.Writes() {
			t.Errorf("%s was written to: %s %s by %s", p.Name, e.Verb, e.RequestURI, e.User.Username)
		}
	}
}

// told fails the test if a child whose agent has a heartbeat is asked for anything while
// nothing happens.
func (f *fleet) told(t *testing.T, p *plane, name string) {
	t.Helper()
	f.reconciled(t, name)
	f.ready(t, name, "")
	var renewed []time.Time
	from := int64(-1)
	scenario.Eventually(t, scenario.Converge, "the heartbeat is renewed", func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		if err := scenario.Get(ctx, p.Tier, lease, v1alpha1.AgentNamespace, v1alpha1.HeartbeatLease); err != nil {
			return err
		}
		if at := lease.Spec.RenewTime.Time; len(renewed) == 0 || !at.Equal(renewed[len(renewed)-1]) {
			renewed = append(renewed, at)
		}
		if from < 0 && len(renewed) == 2 {
			from = p.now(t) // by now the watch has shown one
		}
		if len(renewed) < 4 {
			return fmt.Errorf("%d times", len(renewed)-1)
		}
		return nil
	})
	asked := p.byParent(t, from)
	for _, e := range asked {
		t.Errorf("%s was asked to %s %s", name, e.Verb, e.RequestURI)
	}
	t.Logf("%s was asked %d times within %.1f s", name, len(asked), renewed[len(renewed)-1].Sub(renewed[1]).Seconds())
}

// quiet counts what a child is asked while nothing happens, by the times that its
// audit log has, from one reconcile on until several intervals have passed.
func (f *fleet) quiet(t *testing.T, p *plane, name string) {
	t.Helper()
	const intervals = 5
	f.reconciled(t, name)
	f.ready(t, name, "")
	from := p.now(t)
	var first, last time.Time
	asked := map[string]int{}
	total := 0
	scenario.Eventually(t, scenario.Converge, "several intervals have passed", func(context.Context) error {
		clear(asked)
		total = 0
		first = time.Time{}
		for _, e := range p.byParent(t, from) {
			if first.IsZero() {
				first = e.Received
			}
			last = e.Received
			asked[e.Verb+" "+e.RequestURI]++
			total++
		}
		if passed := last.Sub(first); total == 0 || passed < intervals*observeInterval {
			return fmt.Errorf("%s have passed", passed)
		}
		return nil
	})
	// Runs are spread by a fifth of the interval.
	if most := int(float64(last.Sub(first))/(0.8*float64(observeInterval))) + 1; total > most {
		t.Errorf("%s was asked %d times within %s, at most %d requests are due: %v", name, total, last.Sub(first), most, asked)
	}
	for request := range asked {
		if !strings.HasPrefix(request, "get ") {
			t.Errorf("%s was asked to %s", name, request)
		}
	}
	t.Logf("%s was asked %d times within %.1f s: %v", name, total, last.Sub(first).Seconds(), asked)
}
