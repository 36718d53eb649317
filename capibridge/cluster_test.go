package capibridge

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestFromObject(t *testing.T) {
	const head = "metadata: {namespace: fleet, name: prod, uid: \"1\"}\n"
	for name, tc := range map[string]struct {
		reason string
		yaml   string
		want   Cluster
	}{
		"New": {"just created: nothing is known", head, Cluster{}},
		"Provisioned2": {
			"v1beta2: phase Provisioned comes before any API server", head + "status: {phase: Provisioned, initialization: {infrastructureProvisioned: true}}\n",
			Cluster{InfrastructureProvisioned: true},
		},
		"Provisioned1": {
			"v1beta1 says it in another field", head + "status: {phase: Provisioned, infrastructureReady: true}\n",
			Cluster{InfrastructureProvisioned: true},
		},
		"Initialized2": {
			"v1beta2: the sticky field", head + "status: {initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}, conditions: [{type: Available, status: \"False\"}]}\n",
			Cluster{InfrastructureProvisioned: true, ControlPlaneInitialized: true},
		},
		"Initialized1": {
			"v1beta1: the condition is as sticky; controlPlaneReady is not, and is no gate", head + "status: {infrastructureReady: true, controlPlaneReady: false, conditions: [{type: ControlPlaneInitialized, status: \"True\"}]}\n",
			Cluster{InfrastructureProvisioned: true, ControlPlaneInitialized: true},
		},
		"NotInitialized1": {
			"a control plane that is ready by another contract is not initialised", head + "status: {infrastructureReady: true, controlPlaneReady: true, conditions: [{type: ControlPlaneInitialized, status: \"False\"}]}\n",
			Cluster{InfrastructureProvisioned: true},
		},
		"Available2": {"v1beta2 has its conditions on top", head + "status: {conditions: [{type: Available, status: \"True\"}]}\n", Cluster{Available: true}},
		"Available1": {"v1beta1 carries the new conditions below", head + "status: {v1beta2: {conditions: [{type: Available, status: \"True\"}]}}\n", Cluster{Available: true}},
		"Unknown":    {"Unknown is not True", head + "status: {conditions: [{type: Available, status: Unknown}]}\n", Cluster{}},
		"Paused":     {"by spec", head + "spec: {paused: true}\n", Cluster{Paused: true}},
		"PausedToo":  {"by annotation, whose value does not matter", "metadata: {namespace: fleet, name: prod, uid: \"1\", annotations: {cluster.x-k8s.io/paused: \"\"}}\n", Cluster{Paused: true, Annotations: map[string]string{"cluster.x-k8s.io/paused": ""}}},
		"Deleting":   {"a deletion stops every write", "metadata: {namespace: fleet, name: prod, uid: \"1\", deletionTimestamp: \"2026-01-01T00:00:00Z\"}\n", Cluster{Deleting: true}},
		"Facts": {
			"everything that becomes a variable",
			"metadata: {namespace: fleet, name: prod, uid: \"1\", labels: {topology.kubernetes.io/region: eu-west-1}}\n" +
				"spec:\n  topology: {version: v1.36.3, variables: [{name: size, value: large}, {name: count, value: 3}, {name: ratio, value: 1.5}, {name: enabled, value: true}, {name: map, value: {a: b}}, {value: x}]}\n" +
				"  infrastructureRef: {kind: AWSManagedCluster, name: prod}\n  controlPlaneEndpoint: {host: api.example.com, port: 6443}\n  clusterNetwork: {pods: {cidrBlocks: [10.0.0.0/16, \"fd00::/48\"]}, services: {cidrBlocks: [10.1.0.0/16]}}\n",
			Cluster{
				Labels: map[string]string{"topology.kubernetes.io/region": "eu-west-1"}, Region: "eu-west-1", Version: "v1.36.3", Provider: "aws", Endpoint: "api.example.com",
				PodCIDR: "10.0.0.0/16", ServiceCIDR: "10.1.0.0/16", TopologyVariables: map[string]string{"size": "large", "count": "3", "ratio": "1.5", "enabled": "true", "map": `{"a":"b"}`}, Infrastructure: clusterapi.Reference{Kind: "AWSManagedCluster", Namespace: "fleet", Name: "prod"},
			},
		},
		"Moved": {
			"clusterctl deletes here what lives on elsewhere", "metadata: {namespace: fleet, name: prod, uid: \"1\", deletionTimestamp: \"2026-01-01T00:00:00Z\", annotations: {clusterctl.cluster.x-k8s.io/delete-for-move: \"\"}}\n",
			Cluster{Moved: true, Deleting: true, Annotations: map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""}},
		},
		"MoveBlocked": {
			"a controller has not let go yet", "metadata: {namespace: fleet, name: prod, uid: \"1\", annotations: {clusterctl.cluster.x-k8s.io/block-move: \"\"}}\n",
			Cluster{MoveBlocked: true, Annotations: map[string]string{"clusterctl.cluster.x-k8s.io/block-move": ""}},
		},
		"Changing2": {
			"machines are replaced", head + "status: {conditions: [{type: RollingOut, status: \"True\"}, {type: Remediating, status: \"True\"}, {type: RemoteConnectionProbe, status: \"False\"}]}\n",
			Cluster{RollingOut: true, Remediating: true, RemoteConnection: metav1.ConditionFalse},
		},
		"Changing1": {
			"the same in a Cluster of v1beta1", head + "status: {conditions: [{type: Ready, status: \"True\"}], v1beta2: {conditions: [{type: RollingOut, status: \"True\"}, {type: Remediating, status: \"True\"}, {type: RemoteConnectionProbe, status: \"True\"}]}}\n",
			Cluster{RollingOut: true, Remediating: true, RemoteConnection: metav1.ConditionTrue},
		},
		"Failed2": {
			"Available says nothing of it", head + "status: {conditions: [{type: Available, status: \"True\"}], deprecated: {v1beta1: {failureReason: CreateError, failureMessage: no quota}}}\n",
			Cluster{Available: true, Failure: Failure{"CreateError", "no quota"}},
		},
		"Failed1": {
			"the same in v1beta1", head + "status: {failureMessage: no quota, v1beta2: {conditions: [{type: Available, status: \"True\"}]}}\n",
			Cluster{Available: true, Failure: Failure{"", "no quota"}},
		},
		"FailedCondition2": {
			"a condition of severity Error is one as well; Info and Warning are progress",
			head + "status: {conditions: [{type: Available, status: \"True\"}], deprecated: {v1beta1: {conditions: [{type: Ready, status: \"False\", severity: Error, reason: Summed}, {type: InfrastructureReady, status: \"False\", severity: Info, reason: Creating}, {type: TopologyReconciled, status: \"False\", severity: Error, reason: Broken, message: template is gone}]}}}\n",
			Cluster{Available: true, Failure: Failure{"Broken", "template is gone"}},
		},
		"FailedCondition1": {
			"the same in v1beta1", head + "status: {conditions: [{type: Ready, status: \"False\", severity: Error}, {type: ControlPlaneInitialized, status: \"True\"}], v1beta2: {conditions: [{type: Available, status: \"True\"}]}}\n",
			Cluster{Available: true, ControlPlaneInitialized: true, Failure: Failure{Reason: "Ready"}},
		},
		"OldCluster": {
			"before Cluster API 1.9 there is one list, of contract v1beta1", head + "status: {conditions: [{type: ControlPlaneInitialized, status: \"True\"}, {type: Ready, status: \"False\", severity: Warning, reason: x}]}\n",
			Cluster{ControlPlaneInitialized: true},
		},
		"References2": {
			"v1beta2 names the group",
			head + "spec: {infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AzureCluster, name: a}, controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: KubeadmControlPlane, name: b}, topology: {classRef: {name: tenant}, version: v1.36.0}}\n",
			Cluster{
				Infrastructure: clusterapi.Reference{Group: "infrastructure.cluster.x-k8s.io", Kind: "AzureCluster", Namespace: "fleet", Name: "a"}, ControlPlane: clusterapi.Reference{Group: "controlplane.cluster.x-k8s.io", Kind: "KubeadmControlPlane", Namespace: "fleet", Name: "b"},
				Provider: "azure", Class: "fleet/tenant", Version: "v1.36.0",
			},
		},
		"References1": {
			"v1beta1 names a version, and may name a namespace",
			head + "spec: {infrastructureRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: AzureCluster, name: a, namespace: other}, controlPlaneRef: {apiVersion: controlplane.cluster.x-k8s.io/v1beta1, kind: KubeadmControlPlane, name: b}, topology: {class: tenant, classNamespace: classes}}\n",
			Cluster{
				Infrastructure: clusterapi.Reference{Group: "infrastructure.cluster.x-k8s.io", Kind: "AzureCluster", Namespace: "other", Name: "a"}, ControlPlane: clusterapi.Reference{Group: "controlplane.cluster.x-k8s.io", Kind: "KubeadmControlPlane", Namespace: "fleet", Name: "b"},
				Provider: "azure", Class: "classes/tenant",
			},
		},
		"Overrides": {
			"what the control plane or a pool has instead is there beside; what only looks like it does not win",
			head + "spec: {topology: {variables: [{name: size, value: s}, {name: worker_a_zone, value: mine}, {name: none, value: null}, {name: html, value: {a: \"<b>\"}}], controlPlane: {variables: {overrides: [{name: size, value: l}]}}, " +
				"workers: {machineDeployments: [{name: a, variables: {overrides: [{name: zone, value: z}, {name: tags, value: [x, 1]}]}}], machinePools: [{name: b, variables: {overrides: [{name: size, value: m}]}}]}}}\n",
			Cluster{TopologyVariables: map[string]string{"size": "s", "controlplane_size": "l", "worker_a_zone": "mine", "worker_a_tags": `["x",1]`, "worker_b_size": "m", "html": `{"a":"<b>"}`}},
		},
		"Nonsense": {
			"fields of other types than the contract has are as if they were not there", head + "spec: {paused: \"yes\", topology: {variables: [x, 1]}, clusterNetwork: {pods: {cidrBlocks: x}}}\nstatus: {conditions: [x], initialization: {controlPlaneInitialized: \"true\"}}\n",
			Cluster{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.Namespace, tc.want.Name, tc.want.UID = "fleet", "prod", "1"
			if tc.want.RemoteConnection == "" {
				tc.want.RemoteConnection = metav1.ConditionUnknown
			}
			got := FromObject(object(t, tc.yaml))
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Cluster{}, "Object")); diff != "" {
				t.Errorf("%s\nFromObject(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestProvider(t *testing.T) {
	for kind, want := range map[string]string{
		"AWSCluster": "aws", "AWSManagedCluster": "aws", "AzureCluster": "azure", "AzureManagedCluster": "azure", "AzureASOManagedCluster": "azure",
		"AWSManagedControlPlane": "aws", "LocalCluster": "local", "DockerCluster": "docker", "VSphereCluster": "vsphere", "": "",
	} {
		if got := provider(kind); got != want {
			t.Errorf("provider(%q) = %q, want %q", kind, got, want)
		}
	}
}

func TestGate(t *testing.T) {
	up := Cluster{InfrastructureProvisioned: true, ControlPlaneInitialized: true, Object: map[string]any{
		"metadata": map[string]any{"uid": "1", "resourceVersion": "1", "labels": map[string]any{"tier": "prod"}},
		"spec":     map[string]any{"ready": true},
		"status":   map[string]any{"conditions": []any{map[string]any{"type": "Available", "status": "True"}}},
		"many":     many(3000),
	}}
	with := func(change func(*Cluster)) Cluster {
		c := up
		change(&c)
		return c
	}
	var gates Gates
	for name, tc := range map[string]struct {
		reason  string
		cluster Cluster
		when    string
		want    string
	}{
		"Default":          {"the default needs no Available, which comes late and goes stale", up, "", ""},
		"Named":            {"the default by its name", up, WhenControlPlaneInitialized, ""},
		"Deleting":         {"a cluster that goes is written to no more, whatever else it is", with(func(c *Cluster) { c.Deleting, c.Paused = true, true }), "", v1alpha1.ReasonClusterDeleting},
		"Paused":           {"somebody works on it", with(func(c *Cluster) { c.Paused = true }), "", v1alpha1.ReasonPaused},
		"NoInfrastructure": {"nothing is there", with(func(c *Cluster) { c.InfrastructureProvisioned = false }), "", v1alpha1.ReasonClusterNotReady},
		"NoControlPlane":   {"no API server is there", with(func(c *Cluster) { c.ControlPlaneInitialized = false }), "", v1alpha1.ReasonClusterNotReady},
		"NotAvailable":     {"only where a layer asks for it", up, WhenAvailable, v1alpha1.ReasonClusterNotReady},
		"Available":        {"the same, given", with(func(c *Cluster) { c.Available = true }), WhenAvailable, ""},
		"Expression":       {"any fact of the Cluster may be asked for", up, `cluster.metadata.labels.tier == "prod" && cluster.status.conditions.exists(c, c.type == "Available" && c.status == "True")`, ""},
		"ExpressionFalse":  {"a clear no", up, `cluster.metadata.labels.tier == "dev"`, v1alpha1.ReasonClusterNotReady},
		"ExpressionBefore": {"an expression cannot open the gate of a cluster without an API server", with(func(c *Cluster) { c.ControlPlaneInitialized = false }), "true", v1alpha1.ReasonClusterNotReady},
		"Syntax":           {"a person has to repair it", up, `cluster.`, v1alpha1.ReasonInvalidSpec},
		"UnknownVariable":  {"the same", up, `self.x == 1`, v1alpha1.ReasonInvalidSpec},
		"NoBool":           {"the same", up, `cluster.metadata.labels.tier`, v1alpha1.ReasonInvalidSpec},
		"MissingField":     {"an error is no yes", up, `cluster.spec.nowhere == 1`, v1alpha1.ReasonInvalidSpec},
		"Field":            {"that it is a bool is known when it is read", up, `cluster.spec.ready`, ""},
		"Doubling":         {"nor is it the agent that compares 2^40 numbers, which nothing interrupts", up, "[[1]]" + strings.Repeat(".map(x, x + x)", 40) + ".all(x, x == x)", v1alpha1.ReasonInvalidSpec},
		"Expensive":        {"an expression has a budget, or one Layer stops all", up, `cluster.many.all(a, cluster.many.all(b, cluster.many.all(c, a + b + c >= 0)))`, v1alpha1.ReasonInvalidSpec},
	} {
		t.Run(name, func(t *testing.T) {
			got := gates.Gate(t.Context(), workers, tc.cluster, tc.when)
			if again := gates.Gate(t.Context(), nil, tc.cluster, tc.when); again != got {
				t.Errorf("%s\nGate(%q) = %+v, and then %+v", tc.reason, tc.when, got, again)
			}
			if got.Open != (tc.want == "") || got.Reason != tc.want || (got.Message == "") != got.Open {
				t.Errorf("%s\nGate(%q) = %+v, want reason %q", tc.reason, tc.when, got, tc.want)
			}
		})
	}
}

// asking counts what workers are asked.
type asking struct {
	worker.Runner
	times int
}

func (a *asking) Run(ctx context.Context, job worker.Job) ([]byte, error) {
	a.times++
	return a.Runner.Run(ctx, job)
}

// TestGatesAskOnce: a child is looked at far more often than its Cluster changes.
func TestGatesAskOnce(t *testing.T) {
	const rule = `cluster.metadata.name == "a"`
	named := func(name, version string) Cluster {
		return Cluster{InfrastructureProvisioned: true, ControlPlaneInitialized: true, Object: map[string]any{
			"metadata": map[string]any{"name": name, "uid": "1", "resourceVersion": version},
		}}
	}
	var gates Gates
	if v := gates.Gate(t.Context(), nil, named("a", "1"), rule); v.Open || v.Reason != v1alpha1.ReasonClusterNotReady {
		t.Errorf("without a worker it is %+v: unknown is no yes, and no mistake of the Layer", v)
	}
	ask := &asking{Runner: workers}
	for _, tc := range []struct {
		reason  string
		cluster Cluster
		rule    string
		open    bool
		times   int
	}{
		{"that there was no worker is not remembered", named("a", "1"), rule, true, 1},
		{"nothing changed", named("a", "1"), rule, true, 1},
		{"the Cluster changed", named("b", "2"), rule, false, 2},
		{"so did the rule", named("b", "2"), `cluster.metadata.name == "b"`, true, 3},
		{"it is not known which state of the Cluster this is", named("a", ""), rule, true, 4},
		{"and never", named("a", ""), rule, true, 5},
	} {
		if v := gates.Gate(t.Context(), ask, tc.cluster, tc.rule); v.Open != tc.open || ask.times != tc.times {
			t.Errorf("%s: %+v after %d questions, want %d", tc.reason, v, ask.times, tc.times)
		}
	}
}

func many(n int) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = int64(i)
	}
	return out
}

func TestVariables(t *testing.T) {
	c := Cluster{
		Namespace: "fleet", Name: "prod", UID: "1", Provider: "aws",
		Labels:            map[string]string{"topology.kubernetes.io/zone": "a", "9lives": "cat", "plain": "x", "UPPER-case.x": "y"},
		Annotations:       map[string]string{v1alpha1.VariablePrefix + "cluster_region": "eu", v1alpha1.VariablePrefix + "2nd": "two\nlines", v1alpha1.VariablePrefix: "no name", "other/annotation": "z"},
		TopologyVariables: map[string]string{"node.size": "big\nger"},
		Region:            "us",
		Class:             "classes/tenant",
		Provided:          map[string]string{"cluster_account": "123", "cluster_name": "not this"},
	}
	want := map[string]string{
		"cluster_name": "prod", "cluster_namespace": "fleet", "cluster_uid": "1", "cluster_provider": "aws", "cluster_endpoint": "", "pod_cidr": "", "service_cidr": "",
		"cluster_version":                   "v1.36.3", // of the server, as the Cluster states none
		"cluster_region":                    "eu",      // what a person wrote for this purpose wins
		"_2nd":                              "twolines",
		"cluster_class":                     "tenant",
		"cluster_account":                   "123", // of the provider
		"label_topology_kubernetes_io_zone": "a", "label_9lives": "cat", "label_plain": "x", "label_UPPER_case_x": "y",
		"var_node_size": "bigger",
	}
	got := c.Variables("v1.36.3")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Variables(): -want, +got:\n%s", diff)
	}
	name := regexp.MustCompile(`^[_[:alpha:]][_[:alpha:][:digit:]]*$`)
	for k, v := range got {
		if !name.MatchString(k) || strings.Contains(v, "\n") {
			t.Errorf("%q=%q: substitution refuses such names, and values must be of one line", k, v)
		}
	}
	c.Version = "v1.37.0"
	if got := c.Variables("v1.36.3")["cluster_version"]; got != "v1.37.0" {
		t.Errorf("cluster_version = %q, want what the Cluster states", got)
	}
}

// TestVariablesAreStable: names that become one must not take turns, or the
// rendering changes from one reconcile to the next.
func TestVariablesAreStable(t *testing.T) {
	c := Cluster{Labels: map[string]string{}, Annotations: map[string]string{}, TopologyVariables: map[string]string{}}
	for i, separator := range []string{".", "-", "/", "_"} {
		c.Labels["a"+separator+"b"] = fmt.Sprint(i)
		c.Annotations[v1alpha1.VariablePrefix+"a"+separator+"b"] = fmt.Sprint(i)
		c.TopologyVariables["a"+separator+"b"] = fmt.Sprint(i)
	}
	first := c.Variables("")
	for range 50 {
		if again := c.Variables(""); !maps.Equal(first, again) {
			t.Fatalf("Variables() of one Cluster differ:\n%s", cmp.Diff(first, again))
		}
	}
}

// FuzzFromObject: whoever may create Clusters writes them, and an API server of
// another version, or one without a schema, lets pass what it likes.
func FuzzFromObject(f *testing.F) {
	for _, seed := range []string{
		`{"spec":{"paused":true,"infrastructureRef":{"apiVersion":"a/b","kind":"AWSCluster","name":"x"},"topology":{"class":"c","variables":[{"name":"a","value":{"b":[1,2.5,null,true]}}]}}}`,
		`{"status":{"conditions":[{"type":"Ready","status":"False","severity":"Error"},1,null],"v1beta2":{"conditions":{}},"deprecated":{"v1beta1":{"failureMessage":1}}}}`,
		`{"metadata":{"annotations":{"vars.cascade.dev/1":"\n"},"labels":{"9":"x"}},"spec":{"topology":{"workers":{"machineDeployments":[{"variables":{"overrides":[{"name":"","value":1}]}}]}}}}`,
	} {
		f.Add([]byte(seed))
	}
	name := regexp.MustCompile(`^[_[:alpha:]][_[:alpha:][:digit:]]*$`)
	f.Fuzz(func(t *testing.T, data []byte) {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &u.Object); err != nil || u.Object == nil {
			return
		}
		c := FromObject(u)
		if c.Provider != "" && c.Infrastructure.IsZero() {
			t.Errorf("provider %q of no infrastructure", c.Provider)
		}
		for k, v := range c.Variables("") {
			if !name.MatchString(k) || strings.Contains(v, "\n") && !strings.HasPrefix(k, "label_") {
				t.Errorf("%q=%q: substitution refuses such names, and values must be of one line", k, v)
			}
		}
		if word, _ := c.State(Facts{}); word == "" {
			t.Error("State() has no word")
		}
	})
}
