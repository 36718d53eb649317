package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestCheck: cascade check says of a cluster without an agent that one can be installed,
// of a tier that works that it does, and names each fault that is planted in it, and that
// one alone. Nothing but an API server runs: what controllers would write, the test does.
func TestCheck(t *testing.T) {
	scenario.Alongside(t)
	c := startChecked(t)
	c.expect(t, "an empty cluster", []string{"--pre"})
	c.install(t)
	c.expect(t, "a tier that works", nil)
	for _, f := range faults() {
		if !t.Run(f.name, func(t *testing.T) {
			f.plant(c, t)
			c.expect(t, f.reason, nil, f.want...)
			f.mend(c, t)
			c.expect(t, "mended: "+f.reason, nil)
		}) {
			return
		}
	}
	t.Run("Rights", func(t *testing.T) {
		c.expect(t, "a user without rights knows nothing, and is told so", []string{"--pre", "--as", "nobody"}, "RightsMissing", "Unread", "Unread", "Unread")
	})
}

// checked is the cluster that is checked.
type checked struct {
	*scenario.APIServer
	client.Client
	program, version string
	objects          map[string]*unstructured.Unstructured
}

func startChecked(t *testing.T) *checked {
	t.Helper()
	c := &checked{APIServer: scenario.StartAPIServer(t), program: scenario.Path(t, "bin", "cascade"), objects: map[string]*unstructured.Unstructured{}}
	var err error
	if c.Client, err = client.New(c.Config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), c.program, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	c.version = strings.TrimPrefix(strings.TrimSpace(string(out)), "cascade ")
	return c
}

// install makes the cluster a tier with Cluster API, a source, a Kustomization and a child, in
// which all is well.
func (c *checked) install(t *testing.T) {
	t.Helper()
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	rights, workload, err := deploy.Agent(deploy.Options{AgentValues: v1alpha1.AgentValues{Image: "cascade:v1"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range slices.Concat(crds, rights, workload) {
		c.objects[u.GetKind()+"/"+u.GetName()] = u.DeepCopy()
		if err := c.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	scenario.InstallClusterAPI(t, c.Client)
	c.apply(t, others)
	c.apply(t, fmt.Sprintf(reported, c.version))
	c.status(t, agent, `{"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}`)
	c.status(t, core, `{"conditions": [{"type": "Available", "status": "True", "reason": "X", "message": "it is"}]}`)
	c.ready(t, source, "True", "Succeeded")
	c.ready(t, app, "True", "ReconciliationSucceeded")
	c.status(t, child, connected)
}

const (
	agent  = "apps/v1 Deployment cascade-system/cascade"
	core   = "apps/v1 Deployment capi-system/capi-controller-manager"
	source = "source.toolkit.fluxcd.io/v1 GitRepository cascade-system/fleet"
	app    = "kustomize.toolkit.fluxcd.io/v1 Kustomization cascade-system/fleet"
	child  = "cascade.dev/v1alpha1 Child cascade-system/alpha"
	leader = "coordination.k8s.io/v1 Lease cascade-system/cascade-leader"
	beat   = "coordination.k8s.io/v1 Lease cascade-system/cascade-heartbeat"
	report = "v1 ConfigMap cascade-system/cascade-report"
	crd    = "apiextensions.k8s.io/v1 CustomResourceDefinition "
	policy = "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy cascade-clusters"

	connected = `{"conditions": [{"type": "Connected", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}], "heardAt": null, "report": null}`

	reported = `apiVersion: v1
kind: ConfigMap
metadata: {name: cascade-report, namespace: cascade-system}
data: {report.json: '{"agent": %q, "ready": true, "reason": "Succeeded", "since": "2026-01-01T00:00:00Z", "objects": 1}'}
`
	// What holds for as long as the test runs was renewed in a time to come.
	others = `apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: cascade-leader, namespace: cascade-system}
spec: {holderIdentity: a, leaseDurationSeconds: 15, renewTime: "2100-01-01T00:00:00.000000Z"}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: cascade-heartbeat, namespace: cascade-system}
spec: {holderIdentity: a, leaseDurationSeconds: 45, renewTime: "2100-01-01T00:00:00.000000Z"}
---
apiVersion: v1
kind: Namespace
metadata: {name: flux-system}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: kustomize-controller-leader-election, namespace: flux-system}
spec: {holderIdentity: "", leaseDurationSeconds: 35, renewTime: "2100-01-01T00:00:00.000000Z"}
---
apiVersion: v1
kind: Namespace
metadata: {name: capi-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: capi-controller-manager, namespace: capi-system, labels: {cluster.x-k8s.io/provider: cluster-api}}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: manager, image: capi}]}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: fleet, namespace: cascade-system}
spec: {url: https://git.example.com/fleet, interval: 1m}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: fleet, namespace: cascade-system}
spec: {sourceRef: {kind: GitRepository, name: fleet}, interval: 1m, prune: true}
---
apiVersion: cascade.dev/v1alpha1
kind: Child
metadata: {name: alpha, namespace: cascade-system}
spec: {kubeConfig: {secretRef: {name: alpha}}}
`
)

// fault is what is wrong, and the reasons that tell it.
type fault struct {
	name, reason string
	want         []string
	plant, mend  func(c *checked, t *testing.T)
}

func faults() []fault {
	type change = func(c *checked, t *testing.T)
	patch := func(what, patch string) change { return func(c *checked, t *testing.T) { c.patch(t, what, patch) } }
	status := func(what, patch string) change { return func(c *checked, t *testing.T) { c.status(t, what, patch) } }
	ready := func(what, value, reason string, more ...string) change {
		return func(c *checked, t *testing.T) { c.ready(t, what, value, reason, more...) }
	}
	remove := func(what string) change { return func(c *checked, t *testing.T) { c.remove(t, what) } }
	restore := func(what string) change {
		return func(c *checked, t *testing.T) {
			if err := c.Create(t.Context(), c.objects[what].DeepCopy()); err != nil {
				t.Fatal(err)
			}
		}
	}
	both := func(first, second change) change {
		return func(c *checked, t *testing.T) { first(c, t); second(c, t) }
	}
	one := func(name, reason string, plant, mend change) fault {
		return fault{name, reason, []string{name}, plant, mend}
	}
	renewed := func(what, at string) change {
		return patch(what, `{"spec": {"renewTime": "`+at+`-01-01T00:00:00.000000Z"}}`)
	}
	version := func(version string) change {
		return func(c *checked, t *testing.T) { c.apply(t, fmt.Sprintf(reported, version)) }
	}
	same := func(c *checked, t *testing.T) { version(c.version)(c, t) }
	aside := func(agent string) change {
		return status(child, `{"report": {"agent": "`+agent+`", "ready": true, "reason": "Succeeded", "since": "2026-01-01T00:00:00Z", "objects": 1}}`)
	}
	condition := func(kind, value, reason string) string {
		return `{"type": "` + kind + `", "status": "` + value + `", "reason": "` + reason + `", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}`
	}
	const local = crd + "localclusters.infrastructure.cluster.x-k8s.io"
	return []fault{
		one("DefinitionMissing", "somebody deleted it", both(patch(crd+"layers.cascade.dev", `{"metadata": {"annotations": {"cascade.dev/deletion": "confirmed"}}}`), remove(crd+"layers.cascade.dev")),
			restore("CustomResourceDefinition/layers.cascade.dev")),
		one("DefinitionNotServed", "a version is switched off", (*checked).unserve, restoreServed),
		one("StoredVersionNotServed", "objects are stored in a version of long ago", (*checked).storeOld, (*checked).storeNew),
		one("DefinitionNewer", "Flux was upgraded beside us", patch(crd+"buckets.source.toolkit.fluxcd.io", `{"metadata": {"labels": {"app.kubernetes.io/version": "v2.99.0"}}}`),
			patch(crd+"buckets.source.toolkit.fluxcd.io", `{"metadata": {"labels": {"app.kubernetes.io/version": "`+deploy.FluxVersion+`"}}}`)),
		one("OtherControllerRunning", "Flux is at work", patch(fluxLease, `{"spec": {"holderIdentity": "kustomize-controller-1"}}`), patch(fluxLease, `{"spec": {"holderIdentity": ""}}`)),
		one("AgentMissing", "it was uninstalled", remove(agent), both(restore("Deployment/cascade"), status(agent, `{"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}`))),
		one("AgentNotAvailable", "an image that is not there", both(status(agent, `{"availableReplicas": 0}`), (*checked).brokenPod),
			both(status(agent, `{"availableReplicas": 1}`), remove("v1 Pod cascade-system/cascade-1"))),
		one("NoLeader", "it hangs", renewed(leader, "2020"), renewed(leader, "2100")),
		one("AgentSilent", "it leads and does not report", renewed(beat, "2020"), renewed(beat, "2100")),
		one("ShardUnserved", "replicas without Leases", (*checked).shard, both(remove(agent), both(restore("Deployment/cascade"), status(agent, `{"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}`)))),
		one("AgentVersionDiffers", "an old agent", version("v0.0.1"), same),
		one("PolicyMissing", "somebody deleted it", remove(policy), restore("ValidatingAdmissionPolicy/cascade-clusters")),
		one("PolicyDisarmed", "its binding only audits",
			patch("admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding cascade-clusters", `{"spec": {"validationActions": ["Audit"]}}`),
			patch("admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding cascade-clusters", `{"spec": {"validationActions": ["Deny"]}}`)),
		one("ProviderNotAvailable", "core does not start", status(core, `{"conditions": [`+condition("Available", "False", "X")+`]}`), status(core, `{"conditions": [`+condition("Available", "True", "X")+`]}`)),
		one("ContractMissing", "definitions without labels", patch(local, `{"metadata": {"labels": {"cluster.x-k8s.io/v1beta1": null, "cluster.x-k8s.io/v1beta2": null}}}`),
			patch(local, `{"metadata": {"labels": {"cluster.x-k8s.io/v1beta2": "v1alpha1"}}}`)),
		one("ContractMismatch", "a provider of years ago", patch(local, `{"metadata": {"labels": {"cluster.x-k8s.io/v1alpha4": "v1alpha1", "cluster.x-k8s.io/v1beta2": null}}}`),
			patch(local, `{"metadata": {"labels": {"cluster.x-k8s.io/v1alpha4": null, "cluster.x-k8s.io/v1beta2": "v1alpha1"}}}`)),
		one("SourceFailing", "a wrong login", ready(source, "False", "GitOperationFailed"), ready(source, "True", "Succeeded")),
		one("NotReady", "a build that fails", ready(app, "False", "BuildFailed"), ready(app, "True", "ReconciliationSucceeded")),
		one("HeldForAPerson", "a prune", ready(app, "True", "ReconciliationSucceeded", condition("PruneBlocked", "True", "PruneBlocked")), ready(app, "True", "ReconciliationSucceeded")),
		one("ChildUnreachable", "a dead cluster", status(child, `{"conditions": [`+condition("Connected", "False", "Unreachable")+`]}`), status(child, connected)),
		one("ChildStale", "a dead agent", status(child, `{"heardAt": "2020-01-01T00:00:00Z"}`), status(child, connected)),
		one("CredentialsExpiring", "a token", status(child, `{"conditions": [`+condition("Connected", "True", "Succeeded")+`, `+condition("CredentialsExpiring", "True", "CredentialsExpiring")+`]}`),
			status(child, connected)),
		{"ChildAgentSkew", "two minor versions between parent and child", []string{"AgentVersionDiffers", "ChildAgentSkew"}, both(version("v1.4.0"), aside("v1.2.3")), both(same, status(child, connected))},
	}
}

const fluxLease = "coordination.k8s.io/v1 Lease flux-system/kustomize-controller-leader-election"

// expect runs the check, and compares the reasons of all that is not well.
func (c *checked) expect(t *testing.T, reason string, args []string, want ...string) {
	t.Helper()
	scenario.Eventually(t, time.Minute, reason, func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, c.program, append([]string{"check", "-o", "json", "--kubeconfig", c.Kubeconfig}, args...)...).Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return err
		}
		var found []struct{ Subject, Level, Reason, Message string }
		if err := json.Unmarshal(out, &found); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var got []string
		failed := false
		for _, f := range found {
			if f.Level != "OK" {
				got = append(got, f.Reason)
			}
			failed = failed || f.Level == "Failure"
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || failed != (exit != nil) {
			return fmt.Errorf("%s: the reasons are %v, want %v; it failed: %t: %s", reason, got, want, exit != nil, out)
		}
		return nil
	})
}

// named is the object of "apiVersion kind [namespace/]name".
func named(what string) *unstructured.Unstructured {
	parts := strings.Fields(what)
	u := stage.Object(parts[0], parts[1])
	namespace, name, ok := strings.Cut(parts[2], "/")
	if !ok {
		namespace, name = "", parts[2]
	}
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

func (c *checked) apply(t *testing.T, text string) {
	t.Helper()
	objects, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		scenario.Eventually(t, scenario.Converge, "the kind is served", func(ctx context.Context) error {
			return c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("test"), client.ForceOwnership)
		})
	}
}

func (c *checked) patch(t *testing.T, what, patch string) {
	t.Helper()
	if err := c.Patch(t.Context(), named(what), client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

func (c *checked) status(t *testing.T, what, status string) {
	t.Helper()
	if err := c.Status().Patch(t.Context(), named(what), client.RawPatch(types.MergePatchType, []byte(`{"status": `+status+`}`))); err != nil {
		t.Fatal(err)
	}
}

// ready writes the condition Ready, and more conditions.
func (c *checked) ready(t *testing.T, what, value, reason string, more ...string) {
	t.Helper()
	all := append([]string{`{"type": "Ready", "status": "` + value + `", "reason": "` + reason + `", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}`}, more...)
	c.status(t, what, `{"conditions": [`+strings.Join(all, ", ")+`]}`)
}

// remove deletes an object, and waits until it is gone.
func (c *checked) remove(t *testing.T, what string) {
	t.Helper()
	if err := c.Delete(t.Context(), named(what), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, what+" is gone", func(ctx context.Context) error {
		u := named(what)
		if err := client.IgnoreNotFound(c.Get(ctx, client.ObjectKeyFromObject(u), u)); err != nil || u.GetUID() != "" {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

// edit changes an object that was read.
func (c *checked) edit(t *testing.T, what string, change func(o map[string]any)) {
	t.Helper()
	u := named(what)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
		t.Fatal(err)
	}
	change(u.Object)
	if err := c.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
}

const external = crd + "externalartifacts.source.toolkit.fluxcd.io"

func (c *checked) unserve(t *testing.T) { c.serve(t, false) }

func restoreServed(c *checked, t *testing.T) { c.serve(t, true) }

func (c *checked) serve(t *testing.T, served bool) {
	t.Helper()
	c.edit(t, external, func(o map[string]any) { versionsOf(o)[0].(map[string]any)["served"] = served })
}

func versionsOf(o map[string]any) []any { return o["spec"].(map[string]any)["versions"].([]any) }

// storeOld gives a definition a version of earlier, which is not served, and in which
// objects may still be stored.
func (c *checked) storeOld(t *testing.T) {
	t.Helper()
	c.edit(t, external, func(o map[string]any) {
		old := (&unstructured.Unstructured{Object: versionsOf(o)[0].(map[string]any)}).DeepCopy().Object
		old["name"], old["served"], old["storage"] = "v1beta1", false, false
		o["spec"].(map[string]any)["versions"] = append(versionsOf(o), old)
	})
	c.status(t, external, `{"storedVersions": ["v1beta1", "v1"]}`)
}

func (c *checked) storeNew(t *testing.T) {
	t.Helper()
	c.status(t, external, `{"storedVersions": ["v1"]}`)
	c.edit(t, external, func(o map[string]any) { o["spec"].(map[string]any)["versions"] = versionsOf(o)[:1] })
}

// brokenPod is a pod of the agent whose image cannot be pulled.
func (c *checked) brokenPod(t *testing.T) {
	t.Helper()
	c.apply(t, `apiVersion: v1
kind: Pod
metadata: {name: cascade-1, namespace: cascade-system, labels: {app.kubernetes.io/name: cascade}}
spec: {automountServiceAccountToken: false, serviceAccountName: cascade, containers: [{name: manager, image: nothing}]}
`)
	c.status(t, "v1 Pod cascade-system/cascade-1", `{"phase": "Pending", "containerStatuses": [{"name": "manager", "ready": false, "restartCount": 0, "image": "nothing", "imageID": "",
		"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]}`)
}

// shard has the Deployment ask for two shards, of which nobody serves one.
func (c *checked) shard(t *testing.T) {
	t.Helper()
	c.edit(t, agent, func(o map[string]any) {
		containers, _, err := unstructured.NestedSlice(o, "spec", "template", "spec", "containers")
		if err != nil {
			t.Fatal(err)
		}
		container := containers[0].(map[string]any)
		container["args"] = append(container["args"].([]any), "--shards=2")
		if err := unstructured.SetNestedSlice(o, containers, "spec", "template", "spec", "containers"); err != nil {
			t.Fatal(err)
		}
	})
	c.apply(t, `apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: cascade-shard-0, namespace: cascade-system}
spec: {holderIdentity: a, leaseDurationSeconds: 15, renewTime: "2100-01-01T00:00:00.000000Z"}
`)
}
