package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// workloads are how many objects the repository declares beside Flux.
const workloads = 200

// fluxed is a cluster as flux bootstrap leaves it: stand-ins hold the controllers' leases,
// and all objects are as kustomize-controller applied them.
type fluxed struct {
	*cluster
	git     *gitserver.Server
	applied []*unstructured.Unstructured
}

func startFlux(t *testing.T) *fluxed {
	t.Helper()
	f := &fluxed{cluster: startCluster(t, true), git: hub(t, "fleet")}
	if _, err := f.git.Commit(t.Context(), "fleet", "main", "Add Flux v2.9.5", f.files); err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	if err := f.files(tree); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(tree, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "kustomization.yaml" {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		objects, err := ssautil.ReadObjects(strings.NewReader(string(text)))
		f.applied = append(f.applied, objects...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f.restore(t)
	for _, name := range []string{"source-controller", "kustomize-controller", "helm-controller", "source-watcher"} {
		f.leads(t, name, true)
	}
	return f
}

// files are what the repository has.
func (f *fluxed) files(dir string) error {
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "flux"))); err != nil {
		return err
	}
	crds, err := deploy.CRDs()
	if err != nil {
		return err
	}
	var theirs []*unstructured.Unstructured
	for _, crd := range crds {
		if _, group, _ := strings.Cut(crd.GetName(), "."); v1alpha1.IsFluxGroup(group) {
			theirs = append(theirs, crd)
		}
	}
	definitions, err := ssautil.ObjectsToYAML(theirs)
	if err != nil {
		return err
	}
	at := filepath.Join(dir, "clusters", "prod", "flux-system")
	components, err := os.ReadFile(filepath.Join(at, "gotk-components.yaml"))
	if err != nil {
		return err
	}
	var work strings.Builder
	for i := range workloads {
		switch i % 10 {
		case 0:
			fmt.Fprintf(&work, "---\n{apiVersion: v1, kind: Service, metadata: {name: s%d, namespace: default}, spec: {ports: [{port: 80}]}}\n", i)
		case 1:
			fmt.Fprintf(&work, "---\n{apiVersion: v1, kind: ServiceAccount, metadata: {name: a%d, namespace: default}}\n", i)
		default:
			fmt.Fprintf(&work, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: c%d, namespace: default}, data: {value: \"1\"}}\n", i)
		}
	}
	return errors.Join(
		os.WriteFile(filepath.Join(at, "gotk-components.yaml"), append(components, "---\n"+strings.TrimSuffix(definitions, "---\n")...), 0o644),
		scenario.ReplaceIn(filepath.Join(at, "gotk-sync.yaml"), "${git_url}", f.git.HTTPURL("fleet")),
		os.WriteFile(filepath.Join(dir, "clusters", "prod", "work.yaml"), []byte(work.String()), 0o644))
}

// restore applies what kustomize-controller applied, in its name, and writes its inventory.
func (f *fluxed) restore(t *testing.T) {
	t.Helper()
	labels := map[string]string{"kustomize.toolkit.fluxcd.io/name": "flux-system", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
	status := kustomizev1.KustomizationStatus{Inventory: &kustomizev1.ResourceInventory{}}
	slices.SortStableFunc(f.applied, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	for _, u := range f.applied {
		ssautil.SetCommonMetadata([]*unstructured.Unstructured{u}, labels, nil)
		scenario.Eventually(t, scenario.Converge, ssautil.FmtUnstructured(u)+" is applied", func(ctx context.Context) error {
			return f.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u.DeepCopy()), client.FieldOwner("kustomize-controller"), client.ForceOwnership)
		})
		status.Inventory.Entries = append(status.Inventory.Entries, kustomizev1.ResourceRef{ID: inventory.Of(u).ID(), Version: u.GroupVersionKind().Version})
	}
	user, password := f.git.Login()
	secret := &corev1.Secret{StringData: map[string]string{"username": user, "password": password, "ca.crt": string(f.git.CA())}}
	secret.Namespace, secret.Name = "flux-system", "flux-system"
	k := &kustomizev1.Kustomization{}
	if err := errors.Join(f.Client.Create(t.Context(), secret), f.Load(t.Context(), k, "flux-system", "flux-system")); err != nil {
		t.Fatal(err)
	}
	status.ObservedGeneration = k.Generation
	k.Status = status
	k.Finalizers = []string{"finalizers.fluxcd.io"}
	if err := f.Client.Status().Update(t.Context(), k, client.FieldOwner("kustomize-controller")); err != nil {
		t.Fatal(err)
	}
}

func rank(u *unstructured.Unstructured) int {
	return map[string]int{"Namespace": -2, "CustomResourceDefinition": -1, "Deployment": 1, "GitRepository": 2, "Kustomization": 3}[u.GetKind()]
}

// leads waits until a stand-in runs, or does not.
func (f *fluxed) leads(t *testing.T, name string, wanted bool) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("that %s runs is %t", name, wanted), func(ctx context.Context) error {
		d := &appsv1.Deployment{}
		if err := f.Load(ctx, d, "flux-system", name); err != nil {
			return err
		}
		if (d.Status.ReadyReplicas > 0) != wanted || (*d.Spec.Replicas > 0) != wanted {
			return fmt.Errorf("it has %d replicas, %d ready", *d.Spec.Replicas, d.Status.ReadyReplicas)
		}
		return nil
	})
}

// identities are the UIDs of all that Flux applied.
func (f *fluxed) identities(t *testing.T) map[string]types.UID {
	t.Helper()
	found := map[string]types.UID{}
	for _, u := range f.applied {
		live := stage.Object(u.GetAPIVersion(), u.GetKind())
		if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(u), live); err != nil {
			t.Errorf("%s is gone: %v", ssautil.FmtUnstructured(u), err)
			continue
		}
		found[ssautil.FmtUnstructured(u)] = live.GetUID()
	}
	return found
}

// TestMigrate: a cluster of flux bootstrap goes to an agent, works, and goes back. No object
// is another one, nothing of Flux's is deleted, and the two never work at the same time.
func TestMigrate(t *testing.T) {
	scenario.Alongside(t)
	f := startFlux(t)
	before, from := f.identities(t), f.AuditOffset(t)
	if len(before) < workloads+20 {
		t.Fatalf("there are %d objects", len(before))
	}

	out := f.must(t, "migrate", "from-flux", "--image", stage.Image)
	if !strings.Contains(out, "ends, in this order: kustomize-controller, helm-controller, source-watcher, source-controller") || !strings.Contains(out, "nothing was changed") {
		t.Errorf("the plan is\n%s", out)
	}
	if out, _, _ := f.run(t, "", "migrate", "from-flux", "--image", stage.Image, "--export-diff"); !strings.Contains(out, "+replicas:\n+- name: kustomize-controller\n+  count: 0\n") {
		t.Errorf("the difference is\n%s", out)
	}
	_, complaints, code := f.run(t, "", "migrate", "from-flux", "--image", stage.Image, "--yes", "--committed")
	if code == 0 || !strings.Contains(complaints, "does not declare it yet") {
		t.Errorf("a change that is not merged: %s", complaints)
	}
	f.leads(t, "kustomize-controller", true)

	f.operatorIsAsked(t)
	// A call that is ended in the middle, with Flux's controllers at zero and no agent.
	if out, complaints, code := f.run(t, "", "migrate", "from-flux", "--image", "cascade.local/none:dev", "--yes", "--timeout", "15s"); code == 0 {
		t.Errorf("it ended well within 15 s\n%s%s", out, complaints)
	}
	out = f.must(t, "migrate", "from-flux", "--image", stage.Image, "--yes", "--record", filepath.Join(t.TempDir(), "from"))
	t.Logf("from-flux:\n%s", out)
	for _, name := range []string{"source-controller", "kustomize-controller", "helm-controller", "source-watcher"} {
		f.leads(t, name, false)
	}
	for _, name := range []string{"notification-controller", "image-reflector-controller", "image-automation-controller"} {
		f.leads(t, name, true)
	}
	args := f.deployment(t).Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--events-addr=http://notification-controller.flux-system.svc.cluster.local./") {
		t.Errorf("events do not go to notification-controller: %v", args)
	}
	if !slices.Contains(args, "--no-cross-namespace-refs=true") || !slices.Contains(args, "--feature-gates=ExternalArtifact=true") {
		t.Errorf("what Flux's controllers are told the agent is not: %v", args)
	}
	f.commitsArrive(t, "2")
	if out := f.must(t, "migrate", "from-flux", "--image", stage.Image, "--yes"); !strings.Contains(out, "declares it already") {
		t.Errorf("a second time it says\n%s", out)
	}

	if out := f.must(t, "migrate", "to-flux"); !strings.Contains(out, "nothing was changed") {
		t.Errorf("the plan is\n%s", out)
	}
	out = f.must(t, "migrate", "to-flux", "--yes")
	t.Logf("to-flux:\n%s", out)
	for _, name := range []string{"source-controller", "kustomize-controller", "helm-controller", "source-watcher"} {
		f.leads(t, name, true)
	}
	after := f.identities(t)
	for name, uid := range before {
		if after[name] != uid {
			t.Errorf("%s is another one", name)
		}
	}
	f.gone(t, "apps/v1", "Deployment", stage.Namespace, "cascade")
	f.onlyOurs(t, from)
	f.oneAtATime(t, from)
	// Flux's controllers leave what they do not find in Git any more if it says so itself.
	for _, u := range []*unstructured.Unstructured{
		named("v1", "Namespace", "", stage.Namespace), named("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "layers.cascade.dev"),
	} {
		if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil || u.GetAnnotations()["kustomize.toolkit.fluxcd.io/prune"] != "disabled" {
			t.Errorf("%s %s would be pruned: %v %v", u.GetKind(), u.GetName(), u.GetAnnotations(), err)
		}
	}
}

// fluxInstance declares Flux's controllers to its operator.
const fluxInstance = `{apiVersion: fluxcd.controlplane.io/v1, kind: FluxInstance, metadata: {name: flux, namespace: flux-system}}`

// operatorIsAsked: controllers that an operator declares are not stopped behind its back.
func (f *fluxed) operatorIsAsked(t *testing.T) {
	t.Helper()
	f.Apply(t, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fluxinstances.fluxcd.controlplane.io}
spec:
  group: fluxcd.controlplane.io
  names: {kind: FluxInstance, listKind: FluxInstanceList, plural: fluxinstances, singular: fluxinstance}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`)
	scenario.Eventually(t, scenario.Converge, "the operator's kind is served", func(ctx context.Context) error {
		c, err := f.tier.Client()
		if err != nil {
			return err
		}
		return stage.Apply(ctx, c, fluxInstance)
	})
	_, complaints, code := f.run(t, "", "migrate", "from-flux", "--image", stage.Image, "--yes")
	if code == 0 || !strings.Contains(complaints, "cannot stop the controllers of FluxInstance flux-system/flux") || !strings.Contains(complaints, "target: {kind: Deployment, name: helm-controller}") {
		t.Errorf("an operator's controllers: it ends with %d\n%s", code, complaints)
	}
	f.leads(t, "kustomize-controller", true)
	c, err := f.tier.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), named("fluxcd.controlplane.io/v1", "FluxInstance", "flux-system", "flux")); err != nil {
		t.Fatal(err)
	}
}

// commitsArrive: a commit arrives by the agent.
func (f *fluxed) commitsArrive(t *testing.T, value string) {
	t.Helper()
	if _, err := f.git.Commit(t.Context(), "fleet", "main", "Work", func(dir string) error {
		return scenario.ReplaceIn(filepath.Join(dir, "clusters", "prod", "work.yaml"), `name: c2, namespace: default}, data: {value: "1"}`, `name: c2, namespace: default}, data: {value: "`+value+`"}`)
	}); err != nil {
		t.Fatal(err)
	}
	f.must(t, "reconcile", "kustomization", "flux-system", "--with-source", "-n", "flux-system")
	f.Value(t, "c2", value)
}

// onlyOurs: what was deleted since is the agent's own.
func (f *fluxed) onlyOurs(t *testing.T, from int64) {
	t.Helper()
	for _, d := range f.deleted(t, from) {
		_, name, _ := strings.Cut(d, "/")
		if !strings.HasPrefix(name, "cascade") && d != "fluxinstances/flux" {
			t.Errorf("there was deleted %s", d)
		}
	}
}

// oneAtATime: while a stand-in renews its lease, the agent writes nothing.
func (f *fluxed) oneAtATime(t *testing.T, from int64) {
	t.Helper()
	events, _, err := f.tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	var first, last time.Time
	for _, e := range events {
		if e.ByAgent() && e.Writes() && e.ObjectRef.Resource != "leases" {
			if first.IsZero() {
				first = e.Received
			}
			last = e.Received
		}
	}
	if first.IsZero() {
		t.Fatal("the audit log has no write of the agent")
	}
	ended, began := 0, 0
	for _, e := range events {
		if !strings.HasPrefix(e.UserAgent, "standin-") || !e.Writes() || !replacedLease(e.ObjectRef.Name) {
			continue
		}
		switch {
		case e.Received.Before(first):
			ended++
		case e.Received.After(last):
			began++
		default:
			t.Errorf("between %s and %s, when the agent wrote, there is %s %s of %s at %s", first, last, e.Verb, e.RequestURI, e.UserAgent, e.Received)
		}
	}
	if ended == 0 || began == 0 {
		t.Errorf("the audit log has %d renewals before and %d after: it does not show what it is to show", ended, began)
	}
}

func replacedLease(name string) bool {
	return slices.Contains([]string{"source-controller-leader-election", "kustomize-controller-leader-election", "helm-controller-leader-election", "source-watcher-leader-election"}, name)
}
