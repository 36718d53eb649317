package providers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/e2e/charts"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestCharts has what the cluster charts render admitted by a real API server with
// the definitions and the admission webhooks of Cluster API and of its providers,
// unmodified. Nothing works on what is admitted.
func TestCharts(t *testing.T) {
	scenario.Alongside(t)
	a := startAdmission(t)
	t.Run("Sets", a.sets)
	t.Run("Changes", a.changes)
	t.Run("EveryValue", a.everyValue)
	t.Run("WhatCannotBeChanged", a.fixed)
	t.Run("TheAutoscalersNumberStays", a.autoscaler)
	t.Run("TemplatesAreGuarded", a.guarded)
}

// admission is an API server with the definitions and webhooks of all providers.
type admission struct {
	client dynamic.Interface
	config *rest.Config
	// resources by kind.
	resources map[schema.GroupKind]schema.GroupVersionResource
	// charts is their directory, loaded what was read of it.
	charts string
	loaded map[string]*chart.Chart

	mu       sync.Mutex
	warnings []string
}

// The definitions that the charts need, by the directories of their modules, and
// the programs that serve their webhooks.
var providers = map[string]struct {
	definitions []string
	program     string
}{
	"core":         {[]string{"clusters", "machinedeployments", "machinepools", "machinehealthchecks"}, "webhooks"},
	"bootstrap":    {[]string{"kubeadmconfigtemplates"}, "webhooks"},
	"controlplane": {[]string{"kubeadmcontrolplanes"}, "webhooks"},
	"aws": {[]string{"awsclusters", "awsmachinetemplates", "awsmanagedclusters", "awsmanagedcontrolplanes", "awsmanagedmachinepools",
		"nodeadmconfigtemplates", "awsclusterroleidentities"}, "webhooks"},
	"azure": {[]string{"azureclusters", "azuremachinetemplates", "azureasomanagedclusters", "azureasomanagedcontrolplanes",
		"azureasomanagedmachinepools", "managedclusters.containerservice.azure.com", "managedclustersagentpools.containerservice.azure.com",
		"resourcegroups.resources.azure.com", "azureclusteridentities"}, "webhooks-azure"},
	"local": {[]string{"localclusters", "localcontrolplanes"}, ""},
}

func startAdmission(t *testing.T) *admission {
	t.Helper()
	bin, api := scenario.Path(t, "bin"), scenario.StartAPIServer(t)
	a := &admission{resources: map[schema.GroupKind]schema.GroupVersionResource{}, charts: scenario.Path(t, "deploy", "charts"), loaded: map[string]*chart.Chart{}}
	api.Config.WarningHandler = a
	a.config = api.Config
	var err error
	if a.client, err = dynamic.NewForConfig(api.Config); err != nil {
		t.Fatal(err)
	}
	a.define(t, bin)
	a.guard(t, bin, api.Dir, api.Kubeconfig)
	return a
}

// HandleWarningHeader collects what the API server and webhooks warn of.
func (a *admission) HandleWarningHeader(_ int, _, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warnings = append(a.warnings, text)
}

func (a *admission) warned() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	warnings := a.warnings
	a.warnings = nil
	slices.Sort(warnings)
	return slices.Compact(warnings)
}

// providerManifests reads the objects of the files of a provider.
func providerManifests(t *testing.T, bin, provider, pattern string) []*unstructured.Unstructured {
	t.Helper()
	dir := filepath.Join(bin, "providers", provider)
	if provider == "local" {
		dir = scenario.Path(t, "e2e", "local", "config", "crd")
	}
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s in %s (make build-e2e): %v", pattern, dir, err)
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		read, err := ssautil.ReadObjects(f)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects = append(objects, read...)
	}
	return objects
}

// define installs the definitions. Conversions are left out, for which providers
// would need certificates: what is tried is in the version that is stored, or in
// one that differs from it in nothing that is tried.
func (a *admission) define(t *testing.T, bin string) {
	t.Helper()
	crds := a.client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	var installs sync.WaitGroup
	for provider, p := range providers {
		wanted := slices.Clone(p.definitions)
		for _, u := range providerManifests(t, bin, provider, "*.yaml") {
			plural, _, _ := unstructured.NestedString(u.Object, "spec", "names", "plural")
			i := slices.IndexFunc(wanted, func(w string) bool { return w == plural || w == u.GetName() })
			if u.GetKind() != "CustomResourceDefinition" || i < 0 {
				continue
			}
			wanted = slices.Delete(wanted, i, i+1)
			unstructured.RemoveNestedField(u.Object, "spec", "conversion")
			a.learn(u)
			installs.Go(func() {
				if _, err := crds.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
					t.Errorf("cannot create definition %s: %v", u.GetName(), err)
				}
			})
		}
		if len(wanted) > 0 {
			t.Fatalf("no definition of %s", strings.Join(wanted, ", "))
		}
	}
	installs.Wait()
	a.established(t)
}

// established waits until all definitions are served.
func (a *admission) established(t *testing.T) {
	t.Helper()
	crds := a.client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	scenario.Eventually(t, scenario.Converge, "the definitions are established", func(ctx context.Context) error {
		list, err := crds.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, u := range list.Items {
			conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
			if !slices.ContainsFunc(conditions, func(c any) bool {
				condition, _ := c.(map[string]any)
				return condition["type"] == "Established" && condition["status"] == "True"
			}) {
				return fmt.Errorf("%s is not", u.GetName())
			}
		}
		return nil
	})
}

// learn remembers how objects of a definition are reached, in the version that the
// charts use.
func (a *admission) learn(crd *unstructured.Unstructured) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	a.resources[schema.GroupKind{Group: group, Kind: kind}] = schema.GroupVersionResource{Group: group, Resource: plural}
}

// guard starts the webhooks and has the API server ask them.
func (a *admission) guard(t *testing.T, bin, dir, kubeconfig string) {
	t.Helper()
	bundle := certificates(t, dir)
	ports := map[string]int{}
	for _, program := range []string{"webhooks", "webhooks-azure"} {
		ports[program] = serveWebhooks(t, filepath.Join(bin, "providers", program), dir, kubeconfig)
	}
	for provider, p := range providers {
		if p.program == "" {
			continue
		}
		for _, u := range providerManifests(t, bin, provider, "manifests.yaml") {
			u.SetName(provider + "-" + u.GetName())
			hooks, _, err := unstructured.NestedSlice(u.Object, "webhooks")
			if err != nil {
				t.Fatal(err)
			}
			hooks = slices.DeleteFunc(hooks, func(h any) bool { return !a.guards(h.(map[string]any)) })
			for _, h := range hooks {
				hook := h.(map[string]any)
				path, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "path")
				hook["clientConfig"] = map[string]any{"url": fmt.Sprintf("https://127.0.0.1:%d%s", ports[p.program], path), "caBundle": bundle}
			}
			if err := unstructured.SetNestedSlice(u.Object, hooks, "webhooks"); err != nil {
				t.Fatal(err)
			}
			resource := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: strings.ToLower(u.GetKind()) + "s"}
			if _, err := a.client.Resource(resource).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
				t.Fatalf("cannot create %s %s: %v", u.GetKind(), u.GetName(), err)
			}
		}
	}
}

// guards reports whether a webhook is about objects that are defined.
func (a *admission) guards(hook map[string]any) bool {
	rules, _, _ := unstructured.NestedSlice(hook, "rules")
	for _, r := range rules {
		resources, _, _ := unstructured.NestedStringSlice(r.(map[string]any), "resources")
		for _, defined := range a.resources {
			if slices.Contains(resources, defined.Resource) {
				return true
			}
		}
	}
	return false
}

// serveWebhooks starts a program that serves webhooks, which ends with the test,
// and returns its port.
func serveWebhooks(t *testing.T, program, certificates, kubeconfig string) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var output strings.Builder
	cmd := exec.Command(program, "--port", strconv.Itoa(port), "--cert-dir", certificates)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start webhooks (make build-e2e): %v", err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Errorf("cannot end webhooks: %v", err)
		}
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("%s: %s", filepath.Base(program), output.String()[max(0, output.Len()-4000):])
		}
	})
	scenario.Eventually(t, scenario.Converge, "webhooks are served", func(ctx context.Context) error {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // it is asked whether it answers, nothing else
		c, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return err
		}
		return c.Close()
	})
	return port
}

// certificates writes a certificate for loopback and returns its authority, which
// is itself.
func certificates(t *testing.T, dir string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhooks"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, 1),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	for name, data := range map[string][]byte{"tls.crt": bundle, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return base64.StdEncoding.EncodeToString(bundle)
}

// namespace makes one for a part of the test.
func (a *admission) namespace(t *testing.T) string {
	t.Helper()
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"generateName": "charts-"}}}
	made, err := a.client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.GetName()
}

// apply sends an object as Helm does, and has fields that nobody knows refused.
func (a *admission) apply(ctx context.Context, u *unstructured.Unstructured, dryRun ...string) (*unstructured.Unstructured, error) {
	data, err := u.MarshalJSON()
	if err != nil {
		return nil, err
	}
	force := true
	applied, err := a.of(u).Patch(ctx, u.GetName(), types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: "helm", Force: &force, FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return applied, nil
}

func (a *admission) of(u *unstructured.Unstructured) dynamic.ResourceInterface {
	resource := a.resources[u.GroupVersionKind().GroupKind()]
	resource.Version = u.GroupVersionKind().Version
	return a.client.Resource(resource).Namespace(u.GetNamespace())
}

// embedded returns the objects that the provider for Azure makes of an object, with
// what it adds to them where they would not be complete without.
func embedded(u *unstructured.Unstructured) []*unstructured.Unstructured {
	if !strings.HasPrefix(u.GetKind(), "AzureASO") {
		return nil
	}
	resources, _, _ := unstructured.NestedSlice(u.Object, "spec", "resources")
	var objects []*unstructured.Unstructured
	for _, r := range resources {
		o := &unstructured.Unstructured{Object: r.(map[string]any)}
		o.SetNamespace(u.GetNamespace())
		objects = append(objects, o)
	}
	return objects
}

// render renders a chart for a release named demo, with what is embedded.
func (a *admission) render(t *testing.T, chart, namespace string, values map[string]any) []*unstructured.Unstructured {
	t.Helper()
	all, err := a.tryRender(t, chart, namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (a *admission) tryRender(t *testing.T, chart, namespace string, values map[string]any) ([]*unstructured.Unstructured, error) {
	t.Helper()
	if a.loaded[chart] == nil {
		c, err := charts.Load(filepath.Join(a.charts, chart))
		if err != nil {
			t.Fatal(err)
		}
		a.loaded[chart] = c
	}
	r, err := charts.Render(a.loaded[chart], "demo", namespace, values)
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, u := range r.Objects {
		all = append(append(all, u), embedded(u)...)
	}
	return all, nil
}

func (a *admission) values(t *testing.T, chart string) map[string]map[string]any {
	t.Helper()
	sets, err := charts.Sets(filepath.Join(a.charts, chart))
	if err != nil || len(sets) == 0 {
		t.Fatalf("chart %s has no value sets: %v", chart, err)
	}
	return sets
}

// sets: every object of every value set is admitted, and admitting it again
// changes nothing.
func (a *admission) sets(t *testing.T) {
	count := 0
	for _, chart := range charts.Names() {
		sets := a.values(t, chart)
		for _, name := range slices.Sorted(maps.Keys(sets)) {
			count++
			t.Run(chart+"/"+name, func(t *testing.T) {
				a.warned()
				objects := a.render(t, chart, a.namespace(t), sets[name])
				generations := map[string]int64{}
				for range 2 {
					for _, u := range objects {
						applied, err := a.apply(t.Context(), u)
						if err != nil {
							t.Error(err)
							continue
						}
						id := u.GetKind() + "/" + u.GetName()
						if was, again := generations[id]; again && was != applied.GetGeneration() {
							t.Errorf("%s was changed by being applied again", id)
						}
						generations[id] = applied.GetGeneration()
					}
				}
				for _, w := range a.warned() {
					t.Errorf("warning: %s", w)
				}
				t.Logf("%d objects", len(objects))
			})
		}
	}
	if count < 12 {
		t.Errorf("only %d value sets", count)
	}
}

// changes: the edits that people make of values are admitted, and no template is
// edited by one.
func (a *admission) changes(t *testing.T) {
	for _, change := range charts.Changes() {
		t.Run(change.Name, func(t *testing.T) {
			base := a.values(t, change.Chart)[change.Set]
			over, err := charts.Values(change.Values)
			if err != nil {
				t.Fatal(err)
			}
			namespace := a.namespace(t)
			was := map[string]*unstructured.Unstructured{}
			for _, u := range a.render(t, change.Chart, namespace, base) {
				applied, err := a.apply(t.Context(), u)
				if err != nil {
					t.Fatal(err)
				}
				was[u.GetKind()+"/"+u.GetName()] = applied
			}
			for _, u := range a.render(t, change.Chart, namespace, charts.Merge(base, over)) {
				applied, err := a.apply(t.Context(), u)
				if err != nil {
					t.Errorf("%s: %v", change.Reason, err)
					continue
				}
				if before := was[u.GetKind()+"/"+u.GetName()]; before != nil && charts.Template(u) && !reflect.DeepEqual(before.Object["spec"], applied.Object["spec"]) {
					t.Errorf("template %s was edited", u.GetName())
				}
			}
		})
	}
}

// everyValue: each value that the schemas do not say cannot be changed is changed,
// alone, in a cluster that is there.
func (a *admission) everyValue(t *testing.T) {
	tried, tries := map[string]bool{}, map[string]int{}
	for _, chart := range charts.Names() {
		s, err := charts.LoadSchema(filepath.Join(a.charts, chart))
		if err != nil {
			t.Fatal(err)
		}
		sets := a.values(t, chart)
		for _, name := range slices.Sorted(maps.Keys(sets)) {
			base := sets[name]
			namespace := a.namespace(t)
			before := a.render(t, chart, namespace, base)
			for _, u := range before {
				if _, err := a.apply(t.Context(), u); err != nil {
					t.Fatal(err)
				}
			}
			s.EachLeaf(chart, base, func(path []string, kind string, leaf charts.Schema) {
				id := kind + ": " + strings.Join(path, ".")
				if path[0] == "pools" {
					id = kind + " pool: " + strings.Join(path[2:], ".")
				}
				// What does not go with three value sets goes with none of its kind.
				if tries[id]++; path[0] == "global" || leaf.Fixed(kind) || tried[id] || tries[id] > 3 {
					return
				}
				for _, value := range others(leaf, charts.At(base, path)) {
					after, err := a.tryRender(t, chart, namespace, charts.Merge(base, charts.Nest(path, value)))
					if err != nil {
						continue // it does not go with the others
					}
					tried[id] = true
					for _, u := range after {
						if slices.ContainsFunc(before, func(b *unstructured.Unstructured) bool { return reflect.DeepEqual(b.Object, u.Object) }) {
							continue
						}
						if _, err := a.apply(t.Context(), u, metav1.DryRunAll); err != nil {
							t.Errorf("%s %s: %s becomes %v: %v", chart, name, strings.Join(path, "."), value, err)
						}
					}
				}
			})
		}
	}
	t.Logf("%d values are changed", len(tried))
	if len(tried) < 200 {
		t.Errorf("only %d values were changed", len(tried))
	}
}

// others are values that a schema allows besides the one that is there.
func others(leaf charts.Schema, current any) []any {
	if current == nil {
		current = leaf.Default
	}
	candidates := slices.Concat(leaf.Enum, leaf.Examples)
	switch number := current.(type) {
	case bool:
		candidates = append(candidates, !number)
	case float64:
		candidates = append(candidates, number+1)
	}
	return slices.DeleteFunc(candidates, func(v any) bool { return reflect.DeepEqual(v, current) })
}

// fixed: what the schemas say cannot be changed is refused before anything of it
// happens, where a provider refuses it.
func (a *admission) fixed(t *testing.T) {
	for _, c := range []struct {
		name, reason, chart, set, values, field string
	}{
		{"EKSRegion", "a cluster does not move", "cluster-aws", "eks", `region: us-east-1`, "spec.region"},
		{"EKSClusterName", "nor does it change its name", "cluster-aws", "eks", `controlPlane: {eks: {clusterName: other}}`, "spec.eksClusterName"},
		{"EKSKeyGoes", "what is encrypted stays it", "cluster-aws", "eks-full", `controlPlane: {eks: {kmsKey: null}}`, "spec.encryptionConfig"},
		{"EKSAuthenticationGoesBack", "access entries are for ever", "cluster-aws", "eks-full", `controlPlane: {eks: {authenticationMode: api_and_config_map}}`, "spec.accessConfig.authenticationMode"},
		{"EKSVersionGoesBack", "no version goes back", "cluster-aws", "eks", `version: v1.33.0`, "spec.version"},
		{"EKSInstanceType", "EKS would ignore it; the name of the node group has it refused", "cluster-aws", "eks", `pools: {default: {instanceType: m7i.large}}`, "spec.eksNodegroupName"},
		{"EKSDisk", "node groups keep their disks", "cluster-aws", "eks", `pools: {default: {disk: {size: 200}}}`, "spec.diskSize"},
		{"EKSImage", "and their kind of image", "cluster-aws", "eks", `pools: {default: {amiType: BOTTLEROCKET_x86_64}}`, "spec.amiType"},
		{"EKSSpot", "and their market", "cluster-aws", "eks", `pools: {default: {spot: true}}`, "spec.capacityType"},
		{"EKSZones", "and their zones", "cluster-aws", "eks", `pools: {default: {zones: [eu-west-1a]}}`, "spec.availabilityZones"},
		{"EKSSubnets", "and their subnets", "cluster-aws", "eks-private", `pools: {default: {subnetIDs: [subnet-0123456789abcdef0]}}`, "spec.subnetIDs"},
		{"EKSRole", "and their role", "cluster-aws", "eks-full", `pools: {system: {roleName: other}}`, "spec.roleName"},
		{"AWSRegion", "a cluster does not move", "cluster-aws", "self-managed", `region: us-east-1`, "spec.region"},
		{"AWSGoesPrivate", "a load balancer keeps its side", "cluster-aws", "self-managed", `network: {private: true}`, "spec.controlPlaneLoadBalancer.scheme"},
		{"AWSVPC", "a cluster does not move between VPCs", "cluster-aws", "self-managed-private", `network: {vpc: {id: vpc-0123456789abcdef1}}`, "spec.network.vpc.id"},
		{"AzureLocation", "a cluster does not move", "cluster-azure", "self-managed", `location: northeurope`, "spec.location"},
		{"AzureSubscription", "nor between subscriptions", "cluster-azure", "self-managed", `subscriptionID: 00000000-0000-0000-0000-000000000002`, "spec.subscriptionID"},
		{"AzureResourceGroup", "nor between resource groups", "cluster-azure", "self-managed", `resourceGroup: other`, "spec.resourceGroup"},
		{"AzureGoesPrivate", "a load balancer keeps its side", "cluster-azure", "self-managed", `network: {private: true}`, "spec.networkSpec"},
		{"AzureAPIServerIP", "and its address", "cluster-azure", "self-managed-private", `network: {vnet: {apiServerIP: 10.8.0.101}}`, "spec.networkSpec.apiServerLB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := a.values(t, c.chart)[c.set]
			over, err := charts.Values(c.values)
			if err != nil {
				t.Fatal(err)
			}
			namespace := a.namespace(t)
			for _, u := range a.render(t, c.chart, namespace, base) {
				if _, err := a.apply(t.Context(), u); err != nil {
					t.Fatal(err)
				}
			}
			var refusals []string
			for _, u := range a.render(t, c.chart, namespace, charts.Merge(base, over)) {
				if _, err := a.apply(t.Context(), u); err != nil {
					refusals = append(refusals, err.Error())
				}
			}
			if !slices.ContainsFunc(refusals, func(r string) bool { return strings.Contains(r, c.field) }) {
				t.Errorf("%s: no refusal names %s: %q", c.reason, c.field, refusals)
			}
		})
	}
}

// autoscaler: the number of replicas that an autoscaler chose survives an upgrade,
// and a pool of a fixed size keeps its size when it is handed over.
func (a *admission) autoscaler(t *testing.T) {
	for _, c := range []struct {
		name, reason, chart, set, kind, after string
		autoscaler, want                      int64
	}{
		{"BeginsWithMin", "a new pool has as many as it needs", "cluster-azure", "aks-full", "MachinePool/demo-system", ``, 0, 3},
		{"SurvivesAnUpgrade", "the number in between is not in Git", "cluster-aws", "self-managed-multi-az", "MachineDeployment/demo-default-a", `version: v1.35.0`, 7, 7},
		{"SurvivesNewBounds", "bounds that still have it leave it", "cluster-aws", "eks-spot", "MachinePool/demo-spot", `pools: {spot: {max: 80}}`, 42, 42},
		{"SurvivesNarrowBounds", "bounds that do not have it are for the autoscaler to enforce", "cluster-aws", "eks-spot", "MachinePool/demo-spot", `pools: {spot: {max: 20}}`, 42, 42},
		{"IsHandedOver", "a pool of a fixed size is taken over as it is", "cluster-aws", "self-managed", "MachineDeployment/demo-default", `pools: {default: {replicas: null, min: 1, max: 9}}`, 0, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := a.values(t, c.chart)[c.set]
			namespace := a.namespace(t)
			var live *unstructured.Unstructured
			apply := func(values map[string]any) {
				t.Helper()
				for _, u := range a.render(t, c.chart, namespace, values) {
					applied, err := a.apply(t.Context(), u)
					if err != nil {
						t.Fatal(err)
					}
					if u.GetKind()+"/"+u.GetName() == c.kind {
						live = applied
					}
				}
			}
			apply(base)
			if c.autoscaler > 0 {
				scaled := live.DeepCopy()
				if err := unstructured.SetNestedField(scaled.Object, c.autoscaler, "spec", "replicas"); err != nil {
					t.Fatal(err)
				}
				if _, err := a.of(scaled).Update(t.Context(), scaled, metav1.UpdateOptions{FieldManager: "autoscaler"}); err != nil {
					t.Fatal(err)
				}
			}
			over, err := charts.Values(c.after)
			if err != nil {
				t.Fatal(err)
			}
			apply(charts.Merge(base, over))
			if got, _, _ := unstructured.NestedInt64(live.Object, "spec", "replicas"); got != c.want {
				t.Errorf("%s: %s has %d replicas, want %d", c.reason, c.kind, got, c.want)
			}
		})
	}
}

// guarded: the API server that all of this is admitted by refuses what it should.
func (a *admission) guarded(t *testing.T) {
	for _, c := range []struct{ name, chart, set, kind, field string }{
		{"AWSMachineTemplate", "cluster-aws", "self-managed", "AWSMachineTemplate", "instanceType"},
		{"AzureMachineTemplate", "cluster-azure", "self-managed", "AzureMachineTemplate", "vmSize"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, u := range a.render(t, c.chart, a.namespace(t), a.values(t, c.chart)[c.set]) {
				if u.GetKind() != c.kind {
					continue
				}
				if _, err := a.apply(t.Context(), u); err != nil {
					t.Fatal(err)
				}
				edited := u.DeepCopy()
				if err := unstructured.SetNestedField(edited.Object, "Other.large", "spec", "template", "spec", c.field); err != nil {
					t.Fatal(err)
				}
				if _, err := a.apply(t.Context(), edited); err == nil || !strings.Contains(err.Error(), "immutable") {
					t.Errorf("an edit of a template is admitted: %v", err)
				}
				unknown := u.DeepCopy()
				if err := unstructured.SetNestedField(unknown.Object, "x", "spec", "template", "spec", "unknown"); err != nil {
					t.Fatal(err)
				}
				if _, err := a.apply(t.Context(), unknown); err == nil {
					t.Error("a field that nobody knows is admitted")
				}
			}
		})
	}
}
