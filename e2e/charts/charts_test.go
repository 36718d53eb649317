package charts

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	sigsyaml "sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write golden files and the tables of the READMEs")

// dir is the directory of a chart.
func dir(name string) string { return filepath.Join("..", "..", "deploy", "charts", name) }

// render renders a chart for a release named demo.
func render(t *testing.T, name string, values map[string]any) Rendering {
	t.Helper()
	r, err := tryRender(t, name, "demo", values)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryRender(t *testing.T, name, release string, values map[string]any) (Rendering, error) {
	t.Helper()
	c, err := Load(dir(name))
	if err != nil {
		t.Fatal(err)
	}
	return Render(c, release, "fleet", values)
}

func set(t *testing.T, chart, name string) map[string]any {
	t.Helper()
	sets, err := Sets(dir(chart))
	if err != nil {
		t.Fatal(err)
	}
	if sets[name] == nil {
		t.Fatalf("chart %s has no value set %s", chart, name)
	}
	return sets[name]
}

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	v, err := Values(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// each calls f with the rendering of every value set of every chart.
func each(t *testing.T, f func(t *testing.T, chart string, values map[string]any, r Rendering)) {
	t.Helper()
	for _, name := range Names() {
		sets, err := Sets(dir(name))
		if err != nil || len(sets) == 0 {
			t.Fatalf("chart %s has no value sets: %v", name, err)
		}
		for s, v := range sets {
			t.Run(name+"/"+s, func(t *testing.T) { f(t, name, v, render(t, name, v)) })
		}
	}
}

// TestChanges: an edit of values becomes the edits of objects that it is meant to
// be, and never one of a template.
func TestChanges(t *testing.T) {
	for _, change := range Changes() {
		t.Run(change.Name, func(t *testing.T) {
			base := set(t, change.Chart, change.Set)
			before := render(t, change.Chart, base)
			after := render(t, change.Chart, Merge(base, values(t, change.Values)))
			if diff := cmp.Diff(change.Diff, Diff(before.Objects, after.Objects)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", change.Reason, diff)
			}
		})
	}
}

// TestGolden shows what comes out, one file for each kind of cluster.
func TestGolden(t *testing.T) {
	for _, c := range []struct{ chart, set string }{
		{"cluster-aws", "eks"}, {"cluster-aws", "self-managed"}, {"cluster-azure", "aks"}, {"cluster-azure", "self-managed"}, {"cluster-local", "tenant"},
	} {
		t.Run(c.chart+"/"+c.set, func(t *testing.T) {
			r := render(t, c.chart, set(t, c.chart, c.set))
			var got bytes.Buffer
			for _, u := range r.Objects {
				data, err := sigsyaml.Marshal(u.Object)
				if err != nil {
					t.Fatal(err)
				}
				got.WriteString("---\n")
				got.Write(data)
			}
			file := filepath.Join("testdata", c.chart+"-"+c.set+".yaml")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (go test ./e2e/charts -update): -want +got:\n%s", file, diff)
			}
			if strings.TrimSpace(r.Notes) == "" || strings.Contains(r.Notes, "<no value>") {
				t.Errorf("the notes are %q", r.Notes)
			}
		})
	}
}

// TestBadValues: what is wrong is said, with where it is.
func TestBadValues(t *testing.T) {
	for _, c := range []struct{ name, reason, chart, set, values, message string }{
		{"UnknownValue", "a word that is misspelled is no value", "cluster-aws", "eks", `regions: eu-west-1`, "additional properties 'regions' not allowed"},
		{"UnknownBelow", "at any depth", "cluster-aws", "eks", `pools: {default: {instancetype: x}}`, "at '/pools/default': additional properties 'instancetype' not allowed"},
		{"NoRegion", "what nobody can guess is required", "cluster-aws", "eks", `region: null`, "missing property 'region'"},
		{"NoVersion", "a version is chosen, not found", "cluster-azure", "aks", `version: null`, "missing property 'version'"},
		{"VersionWithoutV", "one spelling of a version", "cluster-aws", "eks", `version: 1.34.2`, "at '/version'"},
		{"VersionWithoutPatch", "kubeadm needs all of it", "cluster-aws", "self-managed", `version: v1.34`, "version v1.34 lacks the patch"},
		{"VersionAsNumber", "YAML makes 1.30 of it", "cluster-aws", "eks", `version: 1.30`, "at '/version': got number, want string"},
		{"LongName", "everything is named after it", "cluster-aws", "eks", `name: an-extraordinarily-long-name-of-a-cluster`, "at '/name'"},
		{"UpperCaseName", "names are DNS labels", "cluster-local", "tenant", `name: Alpha`, "at '/name'"},
		{"EvenControlPlane", "etcd wants a majority", "cluster-aws", "self-managed", `controlPlane: {selfManaged: {replicas: 2}}`, "at '/controlPlane/selfManaged/replicas': value must be one of 1, 3, 5, 7"},
		{"WrongControlPlane", "one of the two", "cluster-aws", "eks", `controlPlane: {type: kops}`, "at '/controlPlane/type': value must be one of 'eks', 'selfManaged'"},
		{"BlockOfTheOther", "a block that is not read would be forgotten", "cluster-aws", "eks", `controlPlane: {selfManaged: {replicas: 3}}`, "at '/controlPlane': additional properties 'selfManaged' not allowed"},
		{"BlockOfTheOtherOnAzure", "so it is on Azure", "cluster-azure", "self-managed", `controlPlane: {aks: {tier: Free}}`, "at '/controlPlane': additional properties 'aks' not allowed"},
		{"StaticIdentity", "keys that do not expire are not supported", "cluster-aws", "eks", `identity: {kind: AWSClusterStaticIdentity, name: a}`, "at '/identity/kind'"},
		{"ControllerIdentityName", "there is only one", "cluster-aws", "eks", `identity: {name: other}`, "at '/identity/name'"},
		{"Deletion", "only one word confirms", "cluster-aws", "eks", `deletion: "yes"`, "at '/deletion'"},
		{"NoSize", "a pool has a size", "cluster-aws", "eks", `pools: {default: {replicas: null}}`, "pools.default needs either replicas, or min and max"},
		{"TwoSizes", "and only one", "cluster-azure", "aks", `pools: {system: {min: 1, max: 3}}`, "pools.system needs either replicas, or min and max"},
		{"OnlyMin", "bounds are two", "cluster-aws", "eks", `pools: {default: {replicas: null, min: 1}}`, "only one of min and max"},
		{"MinAboveMax", "in order", "cluster-aws", "eks", `pools: {default: {replicas: null, min: 5, max: 3}}`, "pools.default has min 5 above max 3"},
		{"NegativeReplicas", "numbers count", "cluster-aws", "eks", `pools: {default: {replicas: -1}}`, "at '/pools/default/replicas': minimum: got -1, want 0"},
		{"PoolName", "pools are parts of names", "cluster-aws", "eks", `pools: {Big_Pool: {instanceType: m6i.large, replicas: 1}}`, "'Big_Pool'"},
		{"LongPoolOfAKS", "AKS allows 12 characters", "cluster-azure", "aks", `pools: {averylongpool: {vmSize: Standard_D2s_v5, replicas: 1}}`, `cannot name a pool of AKS "averylongpool"`},
		{"NoSystemPool", "AKS runs its own pods somewhere", "cluster-azure", "aks", `pools: {system: {mode: User}}`, "AKS needs a pool of mode System"},
		{"SpotSystemPool", "but not where they may be taken away", "cluster-azure", "aks", `pools: {system: {spot: true}}`, "pools.system is of mode System, which cannot be spot"},
		{"ZoneElsewhere", "zones are in the region", "cluster-aws", "eks", `pools: {default: {zones: [us-east-1a]}}`, "us-east-1a, which is not in region eu-west-1"},
		{"TaintEffect", "effects are three", "cluster-aws", "eks", `pools: {default: {taints: [{key: a, effect: Never}]}}`, "at '/pools/default/taints/0/effect'"},
		{"LabelValue", "labels have a syntax", "cluster-aws", "eks", `pools: {default: {labels: {team: "a b"}}}`, "at '/pools/default/labels/team'"},
		{"ManagedWithKubelet", "EKS runs its own kubelets", "cluster-aws", "eks", `pools: {default: {kubeletArgs: {max-pods: "10"}}}`, "pools.default.kubeletArgs applies to pools of type machines only"},
		{"MachinesWithAMIType", "Cluster API knows images by ID", "cluster-aws", "self-managed", `pools: {default: {amiType: AL2023_x86_64_STANDARD}}`, "pools.default.amiType applies to pools of type managed only"},
		{"ManagedWithoutEKS", "only EKS manages", "cluster-aws", "self-managed", `pools: {default: {type: managed}}`, "pools.default.type is managed, which only EKS has"},
		{"SpotPriceWithoutSpot", "a price of nothing", "cluster-aws", "self-managed", `pools: {default: {spotMaxPrice: "1"}}`, "pools.default.spotMaxPrice is set, but spot is not"},
		{"ProvisionedDiskWithoutIOPS", "io2 is sold by them", "cluster-aws", "self-managed", `pools: {default: {disk: {type: io2}}}`, "missing property 'iops'"},
		{"ThroughputOfIO2", "only gp3 sells it", "cluster-aws", "self-managed", `pools: {default: {disk: {type: io2, iops: 3000, throughput: 250}}}`, "a disk of type io2 has no throughput"},
		{"IdentitiesOfNone", "whose identities", "cluster-azure", "self-managed", `pools: {default: {identity: {ids: [/subscriptions/a/resourceGroups/b/providers/c]}}}`, "an identity with ids is of type UserAssigned"},
		{"PrivateWithPublicCIDRs", "either or", "cluster-aws", "eks", `network: {private: true, publicCIDRs: [192.0.2.0/24]}`, "network.private says that there is no public endpoint"},
		{"VPCWithoutSubnets", "a VPC that is there has subnets", "cluster-aws", "eks", `network: {vpc: {id: vpc-0123456789abcdef0}}`, "name its subnets in network.subnets too"},
		{"VPCTwice", "it is there, or it is made", "cluster-aws", "eks-private", `network: {vpc: {cidr: 10.0.0.0/16}}`, "cidr and availabilityZones are for one that is to be made"},
		{"CIDR", "addresses have a length", "cluster-aws", "eks", `network: {publicCIDRs: [192.0.2.1]}`, "at '/network/publicCIDRs/0'"},
		{"PodsOnEKS", "EKS has them elsewhere", "cluster-aws", "eks", `network: {pods: 10.0.0.0/16}`, "network.pods applies to self-managed control planes only"},
		{"NoSubscription", "a self-managed cluster is somewhere", "cluster-azure", "self-managed", `subscriptionID: ""`, "subscriptionID is needed"},
		{"VnetOnAKS", "AKS has a subnet", "cluster-azure", "aks", `network: {vnet: {name: a}}`, "network.vnet applies to self-managed control planes only"},
		{"DNSOfOddServices", "nothing is guessed", "cluster-azure", "aks", `network: {services: 10.96.3.128/25}`, "set controlPlane.aks.dnsServiceIP"},
		{"UserAssignedWithoutIdentity", "then which", "cluster-azure", "aks", `controlPlane: {aks: {identity: {type: UserAssigned}}}`, "missing property 'ids'"},
		{"FileWithoutContent", "a file has something in it", "cluster-aws", "self-managed", `controlPlane: {selfManaged: {files: [{path: /a}]}}`, "at '/controlPlane/selfManaged/files/0'"},
		{"Variable", "variables are substituted by name", "cluster-local", "tenant", `variables: {git-url: a}`, "'git-url'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := tryRender(t, c.chart, "demo", Merge(set(t, c.chart, c.set), values(t, c.values)))
			if err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("%s: the error is %q, want %q in it", c.reason, err, c.message)
			}
		})
	}
	if _, err := tryRender(t, "cluster-local", "1-is-no-letter", nil); err == nil || !strings.Contains(err.Error(), "set the value name") {
		t.Errorf("the name of a release that is no name of a cluster is taken: %v", err)
	}
}

// TestDeletion: Helm deletes only what begins a deletion. The rest is deleted by
// Cluster API, in its order, and can be confirmed.
func TestDeletion(t *testing.T) {
	begins := []string{"Cluster", "MachineDeployment", "MachineHealthCheck", "MachinePool"}
	each(t, func(t *testing.T, chart string, values map[string]any, r Rendering) {
		for _, u := range r.Objects {
			if kept, begin := u.GetAnnotations()["helm.sh/resource-policy"] == "keep", slices.Contains(begins, u.GetKind()); kept == begin {
				t.Errorf("%s %s is kept: %t", u.GetKind(), u.GetName(), kept)
			}
			if confirmed, harmless := u.GetAnnotations()["cascade.dev/deletion"] != "", u.GetKind() == "MachineHealthCheck"; confirmed != harmless {
				t.Errorf("%s %s may be deleted: %t", u.GetKind(), u.GetName(), confirmed)
			}
			if u.GetNamespace() != "fleet" {
				t.Errorf("%s %s is in namespace %q", u.GetKind(), u.GetName(), u.GetNamespace())
			}
		}
		for _, u := range render(t, chart, Merge(values, map[string]any{"deletion": "confirmed"})).Objects {
			if u.GetAnnotations()["cascade.dev/deletion"] != "confirmed" {
				t.Errorf("%s %s may not be deleted", u.GetKind(), u.GetName())
			}
		}
	})
}

// TestNames: with the longest names of clusters and pools, every name is one that
// Kubernetes and the label values of Cluster API have room for.
func TestNames(t *testing.T) {
	label := regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	longest := strings.Repeat("c", 40)
	each(t, func(t *testing.T, chart string, values map[string]any, _ Rendering) {
		renamed := map[string]any{"name": longest}
		if pools, found := values["pools"].(map[string]any); found {
			longer := map[string]any{}
			for name, pool := range pools {
				long := name + strings.Repeat("p", 20-len(name))
				if values["controlPlane"] == nil { // AKS
					long = long[:12]
				}
				if control, found := values["controlPlane"].(map[string]any); found && control["type"] == "aks" {
					long = long[:12]
				}
				longer[name], longer[long] = nil, pool
			}
			renamed["pools"] = longer
		}
		r := render(t, chart, Merge(values, renamed))
		seen := map[string]bool{}
		for _, u := range r.Objects {
			name := u.GetName()
			if !Template(u) && !label.MatchString(name) || len(name) > 253 {
				t.Errorf("%s has the name %s of %d characters", u.GetKind(), name, len(name))
			}
			if !strings.HasPrefix(name, longest) {
				t.Errorf("%s %s is not named after its cluster", u.GetKind(), name)
			}
			if id := u.GetKind() + name; seen[id] {
				t.Errorf("there are two %s %s", u.GetKind(), name)
			} else {
				seen[id] = true
			}
			for key, value := range u.GetLabels() {
				if len(value) > 63 {
					t.Errorf("%s %s has the label %s of %d characters", u.GetKind(), name, key, len(value))
				}
			}
		}
	})
}

// TestLint: helm lint has nothing to say.
func TestLint(t *testing.T) {
	for _, name := range Names() {
		sets, err := Sets(dir(name))
		if err != nil {
			t.Fatal(err)
		}
		for s, v := range sets {
			for _, m := range lint.RunAll(dir(name), v, "fleet").Messages {
				if m.Severity > support.InfoSev {
					t.Errorf("%s with %s: %v", name, s, m)
				}
			}
		}
	}
}

// TestExamples: what READMEs and documents show as values is accepted.
func TestExamples(t *testing.T) {
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	for _, name := range Names() {
		data, err := os.ReadFile(filepath.Join(dir(name), "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		shown := 0
		for _, m := range block.FindAllStringSubmatch(string(data), -1) {
			if text, found := strings.CutPrefix(m[1], "# values\n"); found {
				render(t, name, values(t, text))
				shown++
			}
		}
		if shown == 0 {
			t.Errorf("the README of %s shows no values", name)
		}
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "clusters.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, m := range block.FindAllStringSubmatch(string(data), -1) {
		if !strings.Contains(m[1], "kind: HelmRelease") {
			continue
		}
		release := values(t, m[1])
		name, _ := At(release, []string{"spec", "chart", "spec", "chart"}).(string)
		of, _ := At(release, []string{"spec", "values"}).(map[string]any)
		render(t, filepath.Base(name), of)
		shown++
	}
	if shown == 0 {
		t.Error("docs/clusters.md shows no HelmRelease")
	}
}

// TestTestedVersions: what the charts say that they are written for is what they
// are tested with.
func TestTestedVersions(t *testing.T) {
	tested := map[string]string{}
	for _, file := range []string{"go.mod", "azure/go.mod"} {
		data, err := os.ReadFile(filepath.Join("..", "webhooks", filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)sigs\.k8s\.io/(cluster-api[a-z-]*)(?:/v2)? (v\d+\.\d+)\.\d+$`).FindAllStringSubmatch(string(data), -1) {
			tested[m[1]] = m[2]
		}
	}
	for _, name := range []string{"cluster-aws", "cluster-azure"} {
		c, err := Load(dir(name))
		if err != nil {
			t.Fatal(err)
		}
		stated := 0
		for module, version := range c.Metadata.Annotations {
			if stated++; tested[module] != version {
				t.Errorf("%s is written for %s %s, and tested with %q", name, module, version, tested[module])
			}
		}
		if stated != 2 {
			t.Errorf("%s states %d versions", name, stated)
		}
	}
}

// TestSharedTemplates: what charts share is the same in all of them.
func TestSharedTemplates(t *testing.T) {
	for file, charts := range map[string][]string{"_names.tpl": Names(), "_machines.tpl": {"cluster-aws", "cluster-azure"}} {
		var first []byte
		for _, chart := range charts {
			data, err := os.ReadFile(filepath.Join(dir(chart), "templates", file))
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = data
			}
			if !bytes.Equal(first, data) {
				t.Errorf("%s of %s is not that of %s", file, chart, charts[0])
			}
		}
	}
}
