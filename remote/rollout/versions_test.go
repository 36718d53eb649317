package rollout

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func TestVersionStep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, from, to string
		refused          string
	}{
		"Next":       {"one minor version is one step", "v1.35.2", "v1.36.0", ""},
		"Skipped":    {"1.35 is left out", "v1.34.0", "v1.36.0", "go to 1.35 first"},
		"Far":        {"and more of them", "1.30.0", "1.36.0", "go to 1.31 first"},
		"Patch":      {"a patch", "v1.36.0", "v1.36.9", ""},
		"PatchBack":  {"patches may go back: etcd and the API stay what they are", "v1.36.9", "v1.36.0", ""},
		"Back":       {"a minor version does not go back", "v1.36.0", "v1.35.9", "declare 1.36 again"},
		"Major":      {"there is no step between major versions", "v1.36.0", "v2.0.0", "major"},
		"Same":       {"nothing changes", "v1.36.0", "v1.36.0", ""},
		"New":        {"nothing runs yet", "", "v1.36.0", ""},
		"Left":       {"nothing is asked for", "v1.36.0", "", ""},
		"Build":      {"distributions add their own", "v1.35.2+rke2r1", "v1.36.1-eksbuild.3", ""},
		"MinorAlone": {"EKS has no patches", "1.35", "v1.36", ""},
		"MinorSkip":  {"and skips none", "v1.34", "1.36", "go to 1.35 first"},
		"Ten":        {"numbers, not letters", "v1.9.0", "v1.10.0", ""},
		"NoVersion":  {"what is none is refused here, with the text in the message", "v1.36.0", "latest", `"latest" is no version`},
		"RunsNone":   {"the same for what runs", "unknown", "v1.36.0", `"unknown" is no version`},
	} {
		t.Run(name, func(t *testing.T) {
			err := VersionStep(tc.from, tc.to)
			if tc.refused == "" {
				if err != nil {
					t.Errorf("%s: %v", tc.reason, err)
				}
				return
			}
			var refused *VersionError
			if !errors.As(err, &refused) || refused.Reason() != v1alpha1.ReasonUnsupportedVersionStep || !strings.Contains(err.Error(), tc.refused) {
				t.Fatalf("%s: VersionStep(%s, %s) = %v, want %q", tc.reason, tc.from, tc.to, err, tc.refused)
			}
			refused.Cluster = types.NamespacedName{Namespace: "fleet", Name: "prod"}
			for _, text := range []string{"fleet/prod", tc.from, tc.to} {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: %q does not name %s", tc.reason, err, text)
				}
			}
		})
	}
}

func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var list []*unstructured.Unstructured
	for _, part := range strings.Split(text, "---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(part), &u.Object); err != nil {
			t.Fatal(err)
		}
		list = append(list, u)
	}
	return list
}

const plainCluster = `apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: fleet, name: prod}
spec: {controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: KubeadmControlPlane, name: prod}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlane
metadata: {namespace: fleet, name: prod}
spec: {version: v1.36.0}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {namespace: fleet, name: prod-a}
spec: {clusterName: prod, template: {spec: {version: v1.36.0}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachinePool
metadata: {namespace: fleet, name: prod-b}
spec: {clusterName: prod, template: {spec: {version: v1.35.1}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachinePool
metadata: {namespace: fleet, name: managed}
spec: {clusterName: prod, template: {spec: {}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {namespace: fleet, name: other}
spec: {clusterName: other, template: {spec: {version: v1.30.0}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {namespace: elsewhere, name: prod-a}
spec: {clusterName: prod, template: {spec: {version: v1.30.0}}}
`

func worker(kind, name, version string) Worker {
	return Worker{Object: clusterapi.Reference{Group: clusterapi.Group, Kind: kind, Namespace: "fleet", Name: name}, Version: version}
}

func TestDeclaredVersions(t *testing.T) {
	prod := types.NamespacedName{Namespace: "fleet", Name: "prod"}
	for name, tc := range map[string]struct {
		reason, objects string
		want            Versions
	}{
		"Plain": {
			"the object of the control plane, and sets of machines of this Cluster only", plainCluster,
			Versions{ControlPlane: "v1.36.0", Workers: []Worker{worker("MachineDeployment", "prod-a", "v1.36.0"), worker("MachinePool", "prod-b", "v1.35.1")}},
		},
		"Topology": {
			"one version for all of it",
			"apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {namespace: fleet, name: prod}\nspec: {topology: {classRef: {name: big}, version: v1.36.0}}\n",
			Versions{Topology: true, ControlPlane: "v1.36.0"},
		},
		"Release": {
			"a chart does not show what it makes", "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {namespace: fleet, name: prod}\nspec: {values: {version: v1.36.0}}\n",
			Versions{},
		},
		"Elsewhere": {
			"a Cluster of another namespace is another one",
			"apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {namespace: other, name: prod}\nspec: {topology: {classRef: {name: big}, version: v1.36.0}}\n", Versions{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, DeclaredVersions(prod, objects(t, tc.objects))); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestRunningVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, cluster, controlPlane, want string
	}{
		"Reported":  {"what runs, whatever was asked for", "spec: {topology: {version: v1.36.0}}", "{spec: {version: v1.36.0}, status: {version: v1.35.2}}", "v1.35.2"},
		"Topology":  {"a provider need not report it", "spec: {topology: {version: v1.35.0}}", "{spec: {version: v1.34.0}}", "v1.35.0"},
		"Spec":      {"without a topology the control plane was told", "spec: {}", "{spec: {version: v1.34.0}}", "v1.34.0"},
		"Nothing":   {"nothing is there", "", "", ""},
		"Machines":  {"a Cluster whose control plane is machines", "spec: {}", "", ""},
		"WrongType": {"a number is no version", "spec: {topology: {version: 1.35}}", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			one := func(text string) *unstructured.Unstructured {
				if text == "" {
					return nil
				}
				return objects(t, text)[0]
			}
			if got := runningVersion(one(tc.cluster), one(tc.controlPlane)); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestStep(t *testing.T) {
	// prod is of a class, told to have a version, and has an annotation.
	prod := func(version, annotation string) string {
		return "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {namespace: fleet, name: prod, annotations: {" + annotation +
			"}}\nspec: {topology: {classRef: {name: big}, version: " + version + "}}\n"
	}
	const admits = `unsafe.topology.cluster.x-k8s.io/disable-update-version-check: ""`
	for name, tc := range map[string]struct {
		reason, live, reported, declared string
		refused                          string
	}{
		"PatchBack": {"Cluster API lets no topology go back", prod("v1.36.4", ""), "v1.36.4", prod("v1.36.2", ""), "from v1.36.4 to v1.36.2: Cluster API lets no managed topology go back"},
		"MinorBack": {"nor by a minor version", prod("v1.36.4", ""), "v1.36.4", prod("v1.35.2", ""), "declare v1.36.4 again"},
		"Underway":  {"nor to what it still runs", prod("v1.36.0", ""), "v1.35.2", prod("v1.35.2", ""), "from v1.36.0 to v1.35.2"},
		"Older":     {"as v1beta1 names a class", strings.Replace(prod("v1.36.4", ""), "classRef: {name: big}", "class: big", 1), "v1.36.4", prod("v1.36.2", ""), "declare v1.36.4 again"},
		"Same":      {"nothing changes", prod("v1.36.4", ""), "v1.36.2", prod("v1.36.4", ""), ""},
		"Patch":     {"it goes on", prod("v1.36.2", ""), "v1.36.2", prod("v1.36.4", ""), ""},
		"Build":     {"Cluster API compares numbers alone", prod("v1.36.2+b", ""), "v1.36.2+b", prod("v1.36.2+a", ""), ""},
		"Skips":     {"a minor version is not skipped", prod("v1.35.2", ""), "v1.35.2", prod("v1.37.0", ""), "go to 1.36 first"},
		"Plain":     {"patches of others may go back", "spec: {}", "v1.36.4", strings.Replace(plainCluster, "v1.36.0", "v1.36.2", 1), ""},
		"Admits":    {"a person has Cluster API admit it", prod("v1.36.4", admits), "v1.36.4", prod("v1.36.2", ""), ""},
		"Declares":  {"so does the commit", prod("v1.36.4", ""), "v1.36.4", prod("v1.36.2", admits), ""},
		"Created":   {"what is declared is not applied again", prod("v1.36.4", ""), "v1.36.4", prod("v1.36.2", "kustomize.toolkit.fluxcd.io/ssa: IfNotPresent"), ""},
		"Unmanaged": {"nor to what a person has taken over", prod("v1.36.4", "kustomize.toolkit.fluxcd.io/reconcile: disabled"), "v1.36.4", prod("v1.36.2", ""), ""},
		"New":       {"nothing is there yet", "", "", prod("v1.36.2", ""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var live *unstructured.Unstructured
			if tc.live != "" {
				live = objects(t, tc.live)[0]
			}
			declared := DeclaredVersions(types.NamespacedName{Namespace: "fleet", Name: "prod"}, objects(t, tc.declared))
			err := RunningOf(live, objects(t, `status: {version: "`+tc.reported+`"}`)[0]).Step(declared)
			var refused *VersionError
			if errors.As(err, &refused) != (tc.refused != "") || refused != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.refused)
			}
		})
	}
}

func TestEarly(t *testing.T) {
	declared := DeclaredVersions(types.NamespacedName{Namespace: "fleet", Name: "prod"}, objects(t, plainCluster))
	of := func(controlPlane string, workers ...string) Versions {
		v := Versions{ControlPlane: controlPlane}
		for _, w := range workers {
			v.Workers = append(v.Workers, worker("MachineDeployment", "md", w))
		}
		return v
	}
	class := declared
	class.Topology = true
	for name, tc := range map[string]struct {
		reason, reported string
		declared         Versions
		want             int
	}{
		"Before":  {"the control plane is on its way: the deployment waits, the pool is of what runs", "v1.35.2", declared, 1},
		"Two":     {"both are newer than what runs", "v1.34.0", declared, 2},
		"There":   {"the control plane runs it", "v1.36.0", declared, 0},
		"First":   {"a control plane that comes up reports none, and core has the workers wait", "", declared, 0},
		"Class":   {"the topology does it by itself", "v1.34.0", class, 0},
		"Cloud":   {"EKS reports a minor version, and core has workers declare a patch", "1.36", of("v1.36", "v1.36.4"), 0},
		"Cloud0":  {"the same where the control plane is declared with a patch", "1.36", of("v1.36.0", "v1.36.4"), 0},
		"Clouds":  {"a minor version is waited for there as well", "1.35", of("v1.36", "v1.36.4", "v1.35.9"), 1},
		"Ahead":   {"workers may be a patch ahead of a control plane that nothing upgrades", "v1.36.2", of("v1.36.2", "v1.36.4"), 0},
		"Patch":   {"a commit that raises both goes in order, as a topology does", "v1.36.2", of("v1.36.4", "v1.36.4", "v1.36.2"), 1},
		"Apart":   {"the control plane is declared elsewhere: nothing is known to raise its patch", "v1.36.2", of("", "v1.36.4", "v1.37.0"), 1},
		"Back":    {"a patch is taken back of the control plane alone", "v1.36.4", of("v1.36.2", "v1.36.5"), 0},
		"None":    {"nobody waits for what cannot be read", "v1.36.0", of("v1.36.0", "latest"), 0},
		"Unknown": {"nor because of it", "unknown", of("v1.36.0", "v1.37.0"), 0},
		"Build":   {"distributions add their own", "v1.36.2+rke2r1", of("v1.36.2+rke2r1", "v1.36.2+rke2r1"), 0},
		"Ten":     {"numbers, not letters", "v1.9.0", of("v1.10.0", "v1.10.0"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.declared.Early(tc.reported); len(got) != tc.want {
				t.Errorf("%s: %v wait, want %d", tc.reason, got, tc.want)
			}
		})
	}
}
