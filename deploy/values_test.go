package deploy

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

var update = flag.Bool("update", false, "write the golden files anew")

// parsed reads a file of values of testdata.
func parsed(t *testing.T, name string) Options {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "values", name))
	if err != nil {
		t.Fatal(err)
	}
	o, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// valuesFiles are the names of all files of values.
func valuesFiles(t *testing.T) []string {
	t.Helper()
	files, err := os.ReadDir(filepath.Join("testdata", "values"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no values: %v", err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

func isPolicy(u *unstructured.Unstructured) bool {
	return strings.HasPrefix(u.GetKind(), "ValidatingAdmissionPolicy")
}

// TestRendering compares what values render with golden files. The admission policies,
// which no value but the namespace changes, are left out.
func TestRendering(t *testing.T) {
	for _, name := range valuesFiles(t) {
		t.Run(name, func(t *testing.T) {
			rights, workload, err := Agent(parsed(t, name))
			if err != nil {
				t.Fatal(err)
			}
			deployment(t, workload[len(workload)-1]) // fails for a field that is none
			objects := slices.DeleteFunc(append(rights, workload...), isPolicy)
			text, err := ssautil.ObjectsToYAML(objects)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "rendered", name)
			if *update {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), text); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", file, diff)
			}
		})
	}
}

// TestRestricted: off the host's network the pod is what the restricted standard admits,
// and its Namespace admits nothing else.
func TestRestricted(t *testing.T) {
	rights, workload, err := Agent(optionsOf(v1alpha1.AgentValues{Image: "x", HostNetwork: new(false)}))
	if err != nil {
		t.Fatal(err)
	}
	if got := rights[0].GetLabels()["pod-security.kubernetes.io/enforce"]; got != "restricted" {
		t.Errorf("the Namespace admits %q", got)
	}
	pod := deployment(t, workload[0]).Spec.Template.Spec
	c := pod.Containers[0]
	switch s := c.SecurityContext; {
	case pod.HostNetwork, len(pod.Containers[0].Ports) == 0 || c.Ports[0].HostPort != 0:
		t.Error("it is on the host's network")
	case pod.SecurityContext == nil || pod.SecurityContext.RunAsUser == nil || *pod.SecurityContext.RunAsUser == 0:
		t.Error("its user has no number: a node cannot tell that it is not root")
	case s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault, !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}):
		t.Errorf("its security context is %+v", s)
	}
	if pod.DNSPolicy != "" || pod.DNSConfig != nil || slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == clusterDNS }) {
		t.Error("a pod with the cluster's DNS asks for another one")
	}
	for _, o := range pod.Tolerations {
		if o.Effect != corev1.TaintEffectNoSchedule && o.TolerationSeconds == nil && o.Key != "node.cilium.io/agent-not-ready" && o.Key != "CriticalAddonsOnly" {
			t.Errorf("it stays for ever on a node with %s", o.Key)
		}
	}
}

// TestNewPodFirst: a commit that breaks the agent leaves the pod that fetches the next one,
// where two of them may run.
func TestNewPodFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		values v1alpha1.AgentValues
		want   bool
	}{
		"Pods":     {"nothing is for one pod", v1alpha1.AgentValues{HostNetwork: new(false)}, true},
		"Replicas": {"nor with several", v1alpha1.AgentValues{HostNetwork: new(false), Replicas: 2}, true},
		"Host":     {"the ports of the node are for one", v1alpha1.AgentValues{HostNetwork: new(true)}, false},
		"Layer":    {"which is on the host's network if nothing is said", v1alpha1.AgentValues{}, false},
		"Claim":    {"the volume is for one", v1alpha1.AgentValues{HostNetwork: new(false), Storage: &v1alpha1.AgentStorage{Claim: &v1alpha1.AgentClaim{Name: "x"}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.values.Image = "x"
			_, workload, err := Agent(optionsOf(tc.values))
			if err != nil {
				t.Fatal(err)
			}
			r := deployment(t, workload[len(workload)-1]).Spec.Strategy.RollingUpdate
			if first := r.MaxSurge.IntValue() == 1 && r.MaxUnavailable.IntValue() == 0; first != tc.want {
				t.Errorf("%s: the new pod comes first: %t, surge %s, unavailable %s", tc.reason, first, r.MaxSurge, r.MaxUnavailable)
			}
		})
	}
}

// TestFiles: the agent finds the files of a Secret, which may come later than the pod.
func TestFiles(t *testing.T) {
	_, workload, err := Agent(parsed(t, "receiver.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	pod := deployment(t, workload[0]).Spec.Template.Spec
	for path, secret := range map[string]string{"/etc/cascade/files/events": "events-token", "/etc/cascade/pages": "cascade-pages-tls"} {
		at := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
		if at < 0 || !pod.Containers[0].VolumeMounts[at].ReadOnly {
			t.Fatalf("mounts are %+v", pod.Containers[0].VolumeMounts)
		}
		name := pod.Containers[0].VolumeMounts[at].Name
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
			return v.Name == name && v.Secret != nil && v.Secret.SecretName == secret && v.Secret.Optional != nil && *v.Secret.Optional
		}) {
			t.Errorf("volumes are %+v", pod.Volumes)
		}
	}
}

// TestLockdown: the agent's own account may not write what is not its own, whatever the
// values say besides.
func TestLockdown(t *testing.T) {
	for _, v := range []v1alpha1.AgentValues{
		{Image: "x", Lockdown: &v1alpha1.AgentLockdown{}},
		{Image: "x", Lockdown: &v1alpha1.AgentLockdown{ClusterDeleter: true}, MetricsAuth: v1alpha1.MetricsAuthKubernetes},
	} {
		rights, _, err := Agent(optionsOf(v))
		if err != nil {
			t.Fatal(err)
		}
		bound := map[string]bool{}
		for _, u := range rights {
			if subjects, _, _ := unstructured.NestedSlice(u.Object, "subjects"); strings.HasSuffix(u.GetKind(), "RoleBinding") && len(subjects) > 0 {
				name, _, _ := unstructured.NestedString(u.Object, "roleRef", "name")
				bound[name] = true
			}
		}
		if bound["cluster-admin"] || bound["cascade-cluster-deleter"] || len(bound) == 0 {
			t.Errorf("the agent has %v", bound)
		}
		for _, u := range rights {
			if !bound[u.GetName()] || !strings.HasSuffix(u.GetKind(), "Role") {
				continue
			}
			rules, _, _ := unstructured.NestedSlice(u.Object, "rules")
			for _, rule := range rules {
				rule := rule.(map[string]any)
				for _, verb := range rule["verbs"].([]any) {
					all := slices.Contains(rule["resources"].([]any), any("*")) || slices.Contains(rule["apiGroups"].([]any), any("*"))
					ofClusters := slices.ContainsFunc(rule["apiGroups"].([]any), func(g any) bool { return strings.HasSuffix(g.(string), "cluster.x-k8s.io") })
					switch verb {
					case "get", "list", "watch":
					case "delete", "deletecollection", "*":
						if all || ofClusters || verb == "*" {
							t.Errorf("%s may %s %v of %v", u.GetName(), verb, rule["resources"], rule["apiGroups"])
						}
					default:
						if all {
							t.Errorf("%s may %s everything", u.GetName(), verb)
						}
					}
				}
			}
		}
	}
}

// TestLockdownRights: what the engine does not prune is there, and bound.
func TestLockdownRights(t *testing.T) {
	rights, _, err := Agent(optionsOf(v1alpha1.AgentValues{Image: "x", Lockdown: &v1alpha1.AgentLockdown{}}))
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for _, u := range rights {
		if u.GetKind() == "ClusterRoleBinding" && inventory.Of(u) == inventory.AgentBinding() && !inventory.LockedDown(u) {
			t.Error("it has all rights")
		}
		if inventory.LockdownRights(inventory.Of(u)) {
			kept = append(kept, u.GetKind()+"/"+u.GetName())
		}
		if !inventory.AgentLabels(u.GetLabels()) {
			t.Errorf("%s/%s has not the labels of an agent: %v", u.GetKind(), u.GetName(), u.GetLabels())
		}
	}
	want := []string{
		"ClusterRole/cascade-agent", "ClusterRoleBinding/cascade-agent", "ClusterRole/cascade-accounts", "ClusterRoleBinding/cascade-accounts",
		"ClusterRole/cascade-sources", "ClusterRoleBinding/cascade-sources", "ClusterRole/cascade-kustomizations", "ClusterRoleBinding/cascade-kustomizations",
		"Role/cascade-agent", "RoleBinding/cascade-agent",
	}
	if diff := cmp.Diff(want, kept); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

// TestNamespaceOfPolicies: the wall names the agent's account where the agent is.
func TestNamespaceOfPolicies(t *testing.T) {
	rights, _, err := Agent(Options{AgentValues: v1alpha1.AgentValues{Image: "x"}, Namespace: "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := ssautil.ObjectsToYAML(rights)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, v1alpha1.AgentNamespace) || !strings.Contains(text, "system:serviceaccount:elsewhere:cascade'") {
		t.Error("the objects name another namespace than that of the agent")
	}
}

func TestParseRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ reason, text, err string }{
		"Unknown":     {"a typo must not be as if nothing was said", "imgae: x", "imgae"},
		"Decryption":  {"a Layer hands it to a child; here it is an argument", "decryption: {secretRef: {name: x}}", "decryption"},
		"Controllers": {"a kind that there is not", "controllers: [Pod]", `there is no "Pod"`},
		"Together":    {"the agent would end at each start", "controllers: [HelmChart]", "HelmRepository"},
		"Files":       {"two Secrets in one directory", "files: [{name: a, secretRef: {name: x}}, {name: a, secretRef: {name: y}}]", "files"},
		"FilesName":   {"it would be in another directory", "files: [{name: ../a, secretRef: {name: x}}]", "files"},
		"Metrics":     {"a mode that there is not", "metricsAuth: basic", "none or kubernetes"},
		"Events":      {"not a URL", "eventsAddress: notification-controller", "http://"},
		"FirstSync":   {"the word of the flag is another", "firstSync: create", "Adopt or Create"},
		"Claim":       {"a volume is for one", "replicas: 2\nstorage: {claim: {size: 1Gi}}", "storage.claim"},
		"Class":       {"a claim that is there has a class", "storage: {claim: {name: x, storageClassName: fast}}", "without size"},
		"Env":         {"the agent tells by it where it is", "env: [{name: POD_NAMESPACE, value: x}]", "POD_NAMESPACE"},
		"Labels":      {"the Deployment selects by it", "labels: {app.kubernetes.io/name: x}", "the agent's own"},
		"LabelValue":  {"the API server would refuse it later", "labels: {a: 'b c'}", "label"},
		"Namespace":   {"no name of a namespace", "namespace: A", "namespace"},
		"HostNetwork": {"auto is to leave it out", "hostNetwork: auto", "hostNetwork"},
		"Artifacts":   {"an address that names no port", "hostNetwork: false\nargs: [--artifact-addr=here]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := Parse([]byte(tc.text))
			if tc.err == "" && err == nil {
				_, _, err = Agent(o)
				tc.err = "ends in no port"
			}
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want an error with %q", tc.reason, err, tc.err)
			}
		})
	}
}

// TestControllers: the kinds that values may name are those that a Layer may name for the
// agents of its children.
func TestControllers(t *testing.T) {
	definitions, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range definitions {
		if crd.GetName() != "layers.cascade.dev" {
			continue
		}
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if err != nil {
			t.Fatal(err)
		}
		allowed, _, err := unstructured.NestedStringSlice(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties",
			"agent", "properties", "controllers", "items", "enum")
		if err != nil {
			t.Fatal(err)
		}
		want := kinds()
		slices.Sort(want)
		slices.Sort(allowed)
		if diff := cmp.Diff(want, allowed); diff != "" {
			t.Errorf("-values, +Layer:\n%s", diff)
		}
		return
	}
	t.Fatal("there is no definition of Layers")
}
