package providers

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/render"
)

var update = flag.Bool("update", false, "write the golden files")

// tree is a source in memory, with what stands for a failing one.
type tree struct {
	files map[string]string
	mu    sync.Mutex
	reads map[string]int
	fail  error
}

func (f *tree) ReadFile(name string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads[name]++
	if f.fail != nil {
		return nil, f.fail
	}
	text, ok := f.files[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return []byte(text), nil
}

func (f *tree) Stat(name string) (bool, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return false, "", f.fail
	}
	text, ok := f.files[name]
	if !ok {
		return false, "", &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return false, text, nil
}

const (
	core = `apiVersion: v1
kind: Namespace
metadata: {name: capi-system}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusters.cluster.x-k8s.io}
spec:
  group: cluster.x-k8s.io
  names: {kind: Cluster, plural: clusters}
  scope: Namespaced
  versions: [{name: v1beta2, schema: {openAPIV3Schema: {properties: {name: {pattern: '^[a-z]+$'}}}}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: capi-controller-manager, namespace: capi-system}
spec:
  template:
    spec: {containers: [{name: manager, args: ["--gates=MachinePool=${EXP_MACHINE_POOL:=true},Topology=${CLUSTER_TOPOLOGY:=false}"]}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: capi-validating}
webhooks:
- name: other.example.com
  rules: [{operations: [UPDATE], apiGroups: [cluster.x-k8s.io], apiVersions: [v1beta2], resources: [clusters]}]
- name: cluster.example.com
  rules: [{operations: [CREATE, UPDATE], apiGroups: [cluster.x-k8s.io], apiVersions: [v1beta2], resources: [clusters]}]
`
	cloud = `apiVersion: v1
kind: Namespace
metadata: {name: cap-system}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: manager
  namespace: cap-system
  annotations:
    ${CLOUD_ROLE/#arn/eks.amazonaws.com/role-arn: arn}
---
apiVersion: v1
kind: Secret
metadata: {name: credentials, namespace: cap-system}
data:
  credentials: ${ CLOUD_CREDENTIALS }
`
	metadata = `apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
kind: Metadata
releaseSeries:
- {major: 0, minor: 4, contract: v1alpha4}
- {major: 1, minor: 10, contract: v1beta1}
- {major: 1, minor: 13, contract: v1beta2}
`
)

func source() *tree {
	return &tree{reads: map[string]int{}, files: map[string]string{
		"c/cluster-api/v1.13.4/core-components.yaml":                         core,
		"c/cluster-api/v1.13.4/metadata.yaml":                                metadata,
		"c/cluster-api/v1.10.0/core-components.yaml":                         core,
		"c/cluster-api/v1.10.0/metadata.yaml":                                metadata,
		"c/infrastructure-cloud/v1.10.2/infrastructure-components.yaml":      cloud,
		"c/infrastructure-cloud/v1.10.2/metadata.yaml":                       metadata,
		"c/infrastructure-cloud/v1.13.0/infrastructure-components.yaml":      cloud,
		"c/infrastructure-cloud/v1.13.0/metadata.yaml":                       metadata,
		"c/infrastructure-cloud/v0.4.0/infrastructure-components.yaml":       cloud,
		"c/infrastructure-cloud/v0.4.0/metadata.yaml":                        metadata,
		"c/infrastructure-cloud/v2.0.0/infrastructure-components.yaml":       cloud,
		"c/infrastructure-cloud/v2.0.0/metadata.yaml":                        metadata,
		"c/infrastructure-bare/v1.13.0/infrastructure-components.yaml":       cloud,
		"c/infrastructure-homeless/v1.13.0/infrastructure-components.yaml":   "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}\n",
		"c/infrastructure-homeless/v1.13.0/metadata.yaml":                    metadata,
		"c/infrastructure-broken/v1.13.0/infrastructure-components.yaml":     "apiVersion: v1\nkind: [",
		"c/infrastructure-broken/v1.13.0/metadata.yaml":                      metadata,
		"c/infrastructure-bomb/v1.13.0/infrastructure-components.yaml":       "a: &a [*a]\n",
		"c/infrastructure-bomb/v1.13.0/metadata.yaml":                        metadata,
		"c/infrastructure-unfinished/v1.13.0/infrastructure-components.yaml": "a: ${OPEN\n",
		"c/infrastructure-unfinished/v1.13.0/metadata.yaml":                  metadata,
	}}
}

func named(coreVersion, provider, version string) *v1alpha1.ProvidersSpec {
	spec := &v1alpha1.ProvidersSpec{Core: v1alpha1.Release{Version: coreVersion}}
	if provider != "" {
		spec.Infrastructure = []v1alpha1.Provider{{Name: provider, Release: v1alpha1.Release{Version: version}}}
	}
	return spec
}

func order(files Files, spec *v1alpha1.ProvidersSpec, variables map[string]string) Order {
	return Order{Files: files, Content: "sha1:1", Root: "./c/", Wanted: List(spec), Variables: variables, Sensitive: slices.Collect(maps.Values(variables))}
}

// TestSets compares what providers become with golden files: order, labels, what
// is put into the text, and what is added.
func TestSets(t *testing.T) {
	role := named("v1.13.4", "cloud", "v1.10.2")
	role.Infrastructure[0].ServiceAccountAnnotations = map[string]string{"eks.amazonaws.com/role-arn": "arn:aws:iam::${account}:role/capa"}
	confirmed := named("v1.13.4", "cloud", "v1.13.0")
	confirmed.Infrastructure[0].Deletion = "confirmed"
	for name, tc := range map[string]struct {
		reason    string
		spec      *v1alpha1.ProvidersSpec
		variables map[string]string
	}{
		"credentials": {"a Secret's value is put into the text; defaults hold; the old contract works with core", named("v1.13.4", "cloud", "v1.10.2"),
			map[string]string{"CLOUD_CREDENTIALS": "c2VjcmV0", "label_x.y": "a name that is no variable's is none of ours"}},
		"role": {"with a role there is no key: the credentials are empty, not absent, because the pod mounts them", role,
			map[string]string{"CLOUD_CREDENTIALS": "", "account": "123456789012"}},
		"role-variable": {"the same by the provider's own variable, which puts a whole annotation into the text", named("v1.13.4", "cloud", "v1.10.2"),
			map[string]string{"CLOUD_CREDENTIALS": "", "CLOUD_ROLE": "arn:aws:iam::123456789012:role/capa", "EXP_MACHINE_POOL": "false"}},
		"confirmed": {"what is confirmed to be deleted says so on everything", confirmed, map[string]string{"CLOUD_CREDENTIALS": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			sets, err := NewLibrary().Sets(t.Context(), order(source(), tc.spec, tc.variables))
			if err != nil {
				t.Fatalf("%s\nSets(): %v", tc.reason, err)
			}
			var out strings.Builder
			for _, set := range sets {
				fmt.Fprintf(&out, "# %s in %s\n", set, set.Namespace)
				for _, p := range set.Probes {
					fmt.Fprintf(&out, "# %s: %s in %q\n", p.Webhook, p.Kind, p.Namespace)
				}
				objects, err := set.Objects.Objects()
				if err != nil {
					t.Fatal(err)
				}
				for _, u := range objects {
					if u.GetName() == "providers.clusterctl.cluster.x-k8s.io" {
						delete(u.Object, "spec") // as Cluster API has it
					}
					data, err := yaml.Marshal(u.Object)
					if err != nil {
						t.Fatal(err)
					}
					fmt.Fprintf(&out, "---\n%s", data)
				}
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("%s\nSets() (-update writes the file): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	secret := map[string]string{"CLOUD_CREDENTIALS": "c2VjcmV0"}
	for name, tc := range map[string]struct {
		reason    string
		spec      *v1alpha1.ProvidersSpec
		variables map[string]string
		is        error
		want      string
	}{
		"NoProvider": {"a provider that the source does not have", named("v1.13.4", "gcp", "v1.13.0"), secret, render.ErrPathNotFound,
			`no file "c/infrastructure-gcp/v1.13.0/metadata.yaml"`},
		"NoVersion": {"a version that the source does not have", named("v1.13.4", "cloud", "v1.13.7"), secret, render.ErrPathNotFound,
			`no file "c/infrastructure-cloud/v1.13.7/metadata.yaml"`},
		"NoMetadata": {"without metadata nobody knows whether it works with core", named("v1.13.4", "bare", "v1.13.0"), secret, render.ErrPathNotFound,
			`no file "c/infrastructure-bare/v1.13.0/metadata.yaml"`},
		"NoSeries": {"metadata of another release", named("v1.13.4", "cloud", "v2.0.0"), secret, ErrContract, "does not say which one 2.0 implements"},
		"OldContract": {"a provider that is too old for core", named("v1.13.4", "cloud", "v0.4.0"), secret, ErrContract,
			"infrastructure-cloud v0.4.0 implements v1alpha4, core in the version named works with v1beta1 and v1beta2"},
		"NewContract": {"a provider that is too new for core", named("v1.10.0", "cloud", "v1.13.0"), secret, ErrContract,
			"infrastructure-cloud v1.13.0 implements v1beta2, core in the version named works with v1beta1"},
		"Unset":      {"a variable without value and default is named", named("v1.13.4", "cloud", "v1.13.0"), nil, nil, "variables are not set and have no default: CLOUD_CREDENTIALS"},
		"Namespace":  {"a provider without a namespace has no place for its credentials", named("v1.13.4", "homeless", "v1.13.0"), secret, nil, "they have 0"},
		"Syntax":     {"what is no YAML", named("v1.13.4", "broken", "v1.13.0"), secret, nil, "cannot parse the manifests"},
		"Hostile":    {"an alias cycle kills a parser that meets it", named("v1.13.4", "bomb", "v1.13.0"), secret, render.ErrHostile, "refused YAML"},
		"Unfinished": {"a variable that does not end", named("v1.13.4", "unfinished", "v1.13.0"), secret, nil, "cannot find the variables"},
		"Value":      {"a value that breaks the text is not quoted in the error", named("v1.13.4", "cloud", "v1.13.0"), map[string]string{"CLOUD_CREDENTIALS": "hunter2: ["}, nil, "cannot render infrastructure-cloud v1.13.0"},
	} {
		t.Run(name, func(t *testing.T) {
			l, files := NewLibrary(), source()
			for range 2 {
				_, err := l.Sets(t.Context(), order(files, tc.spec, tc.variables))
				if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) {
					t.Errorf("%s\nSets(): %v, want %q (%v)", tc.reason, err, tc.want, tc.is)
				} else if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "c2VjcmV0") {
					t.Errorf("%s\nSets(): %v, which tells the value of a variable", tc.reason, err)
				}
			}
			for file, n := range files.reads {
				// Once for its variables, once for its objects.
				if n > 2 {
					t.Errorf("%s was read %d times for an error that comes again", file, n)
				}
			}
		})
	}
}

// TestOnce: sets are made once for the same content, version and values, and not
// shared where any of these differs.
func TestOnce(t *testing.T) {
	l, files := NewLibrary(), source()
	ask := func(o Order) []*Set {
		t.Helper()
		sets, err := l.Sets(t.Context(), o)
		if err != nil {
			t.Error(err)
		}
		return sets
	}
	spec := named("v1.13.4", "cloud", "v1.13.0")
	var callers sync.WaitGroup
	for i := range 50 {
		callers.Go(func() {
			ask(order(files, spec, map[string]string{"CLOUD_CREDENTIALS": "YQ==", "cluster_name": fmt.Sprint(i)}))
		})
	}
	callers.Wait()
	if l.built.Load() != 2 {
		t.Errorf("%d sets were made for children that differ in variables that are not used, want 2", l.built.Load())
	}
	first := ask(order(files, spec, map[string]string{"CLOUD_CREDENTIALS": "YQ=="}))
	for name, tc := range map[string]struct {
		reason string
		change func(*Order)
		made   int
	}{
		"Value":   {"the value of a variable that is used", func(o *Order) { o.Variables = map[string]string{"CLOUD_CREDENTIALS": "Yg=="} }, 1},
		"Content": {"another revision of the source with the same files", func(o *Order) { o.Content = "sha1:2" }, 0},
		"File": {"another content of a file", func(o *Order) {
			changed := source()
			file := "c/infrastructure-cloud/v1.13.0/infrastructure-components.yaml"
			changed.files[file] += "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: more, namespace: cap-system}}\n"
			o.Files, o.Content = changed, "sha1:3"
		}, 1},
		"Version": {"another version", func(o *Order) { o.Wanted = List(named("v1.13.4", "cloud", "v1.10.2")) }, 1},
		"Annotation": {"an annotation", func(o *Order) {
			s := named("v1.13.4", "cloud", "v1.13.0")
			s.Infrastructure[0].ServiceAccountAnnotations = map[string]string{"a": "b"}
			o.Wanted = List(s)
		}, 1},
		"Credentials": {"credentials are no part of what is shared", func(o *Order) {
			s := named("v1.13.4", "cloud", "v1.13.0")
			s.Infrastructure[0].Credentials = []v1alpha1.CredentialReference{{Name: "a"}}
			o.Wanted = List(s)
		}, 0},
	} {
		before := l.built.Load()
		o := order(files, spec, map[string]string{"CLOUD_CREDENTIALS": "YQ=="})
		tc.change(&o)
		got := ask(o)
		if made := int(l.built.Load() - before); made != tc.made {
			t.Errorf("%s: %s: %d sets were made, want %d", name, tc.reason, made, tc.made)
		}
		if same := got[1].Objects.Digest() == first[1].Objects.Digest(); same != (name == "Content" || name == "Credentials") {
			t.Errorf("%s: %s: same digest is %v", name, tc.reason, same)
		}
		if n := len(got[1].Credentials); n != map[string]int{"Credentials": 1}[name] {
			t.Errorf("%s: %s: %d credentials", name, tc.reason, n)
		}
	}
}

// TestPassing: what can pass by itself is tried again.
func TestPassing(t *testing.T) {
	l, files := NewLibrary(), source()
	o := order(files, named("v1.13.4", "", ""), nil)
	files.fail = errors.New("the mirror is being repaired")
	if _, err := l.Sets(t.Context(), o); !errors.Is(err, files.fail) {
		t.Fatalf("Sets() = %v, want %v", err, files.fail)
	}
	files.fail = nil
	if _, err := l.Sets(t.Context(), o); err != nil {
		t.Fatalf("Sets() fails after the source came back: %v", err)
	}
}

func TestList(t *testing.T) {
	release := v1alpha1.Release{Version: "v1.0.0"}
	one := func(name string) []v1alpha1.Provider { return []v1alpha1.Provider{{Name: name, Release: release}} }
	var got []string
	for _, w := range List(&v1alpha1.ProvidersSpec{
		Addon: one("helm"), RuntimeExtension: one("x"), IPAM: one("in-cluster"), Infrastructure: append(one("aws"), one("azure")...),
		ControlPlane: one("kubeadm"), Bootstrap: one("kubeadm"), Core: release, CertManager: &release,
	}) {
		got = append(got, w.dir("c")+"/"+w.file)
	}
	want := []string{
		"c/cert-manager/v1.0.0/cert-manager.yaml",
		"c/cluster-api/v1.0.0/core-components.yaml",
		"c/bootstrap-kubeadm/v1.0.0/bootstrap-components.yaml",
		"c/control-plane-kubeadm/v1.0.0/control-plane-components.yaml",
		"c/infrastructure-aws/v1.0.0/infrastructure-components.yaml",
		"c/infrastructure-azure/v1.0.0/infrastructure-components.yaml",
		"c/ipam-in-cluster/v1.0.0/ipam-components.yaml",
		"c/runtime-extension-x/v1.0.0/runtime-extension-components.yaml",
		"c/addon-helm/v1.0.0/addon-components.yaml",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("each needs those before it; List(): -want, +got:\n%s", diff)
	}
	if got := List(nil); got != nil {
		t.Errorf("List(nil) = %v: a layer that names no providers installs none", got)
	}
}

// TestProbes: each webhook configuration is asked by a kind that it is called for.
func TestProbes(t *testing.T) {
	definition := func(group, plural, kind, scope string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + "." + group},
			"spec": map[string]any{"group": group, "scope": scope, "names": map[string]any{"plural": plural, "kind": kind}},
		}}
	}
	for name, tc := range map[string]struct {
		reason string
		rule   map[string]any
		want   string
	}{
		"Named": {"the first kind of the rule", map[string]any{"operations": []any{"CREATE"}, "apiGroups": []any{"a.io"}, "apiVersions": []any{"v1"}, "resources": []any{"things"}}, "a.io/v1, Kind=Thing in ns"},
		"Scope": {"a kind of the cluster has no namespace", map[string]any{"operations": []any{"*"}, "apiGroups": []any{"a.io"}, "apiVersions": []any{"v1"}, "resources": []any{"identities"}}, "a.io/v1, Kind=Identity in "},
		"All":   {"a rule for all kinds is asked by one of them", map[string]any{"operations": []any{"CREATE"}, "apiGroups": []any{"b.io", "a.io"}, "apiVersions": []any{"v1"}, "resources": []any{"*/*"}}, "a.io/v1, Kind=Identity in "},
		"Other": {"kinds of others may not be there", map[string]any{"operations": []any{"CREATE"}, "apiGroups": []any{"c.io"}, "apiVersions": []any{"v1"}, "resources": []any{"*"}}, ""},
		"Never": {"a webhook for updates cannot be asked by a creation", map[string]any{"operations": []any{"UPDATE"}, "apiGroups": []any{"a.io"}, "apiVersions": []any{"v1"}, "resources": []any{"things"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			webhook := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": "w"},
				"webhooks": []any{map[string]any{"rules": []any{tc.rule}}},
			}}
			probes, err := probesOf([]*unstructured.Unstructured{webhook, definition("a.io", "things", "Thing", "Namespaced"), definition("a.io", "identities", "Identity", "Cluster")}, "ns")
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, p := range probes {
				got += p.Kind.String() + " in " + p.Object().GetNamespace()
			}
			if got != tc.want {
				t.Errorf("%s\nprobesOf() = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
