package providers

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestLayerProviders seeds an API server with Cluster API and the provider for AWS, as
// their projects publish them, from an artifact that is pinned by its digest.
// Nothing runs there but what the test starts: Deployments become available, and
// webhooks answer, when the test says so.
func TestLayerProviders(t *testing.T) {
	scenario.Alongside(t)
	p := startLayerProviders(t)
	for _, part := range []struct {
		name string
		run  func(*provided, *testing.T)
	}{
		{"EachWaitsForTheOneBefore", (*provided).eachWaits},
		{"OnlyWhatIsNamed", (*provided).onlyWhatIsNamed},
		{"RoleAndCredentials", (*provided).roleAndCredentials},
		{"NothingIsWrittenTwice", (*provided).nothingTwice},
		{"Refusals", (*provided).refusals},
		{"UpgradeInOrder", (*provided).upgrade},
		{"NotRemovedWhileNeeded", (*provided).notRemoved},
		{"RemovedWhenConfirmed", (*provided).removed},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(p, t) }) {
			return
		}
	}
}

type provided struct {
	*stage.Stage
	// cloud is the child: an API server and nothing else.
	cloud *stage.Tier
	layer *v1alpha1.Layer
	// port of the webhooks, and whom to trust there.
	port   int
	bundle []byte
}

// componentFiles are what the projects publish, a stand-in for cert-manager, and a
// next version of core and of the provider.
func componentFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	published := scenario.Path(t, "bin", "components", "published")
	err := fs.WalkDir(os.DirFS(published), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(published, name))
		files["components/"+name] = string(data)
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("no component manifests in %s (make build-e2e): %v", published, err)
	}
	for before, after := range map[string]string{
		"components/cluster-api/v1.13.4/":        "components/cluster-api/v1.13.5/",
		"components/infrastructure-aws/v2.13.0/": "components/infrastructure-aws/v2.13.1/",
	} {
		for name, text := range maps.Clone(files) {
			if strings.HasPrefix(name, before) {
				files[after+strings.TrimPrefix(name, before)] = strings.ReplaceAll(text, "  - --leader-elect\n", "  - --leader-elect=true\n")
			}
		}
	}
	for name, text := range maps.Clone(files) {
		if strings.HasPrefix(name, "components/infrastructure-aws/v2.13.1/") {
			files[name] = withVersions(t, text, identities, "v1beta2")
			files[strings.Replace(name, "v2.13.1", "v2.13.9", 1)] = withVersions(t, text, identities, "v1beta1")
		}
	}
	data, err := os.ReadFile(filepath.Join("testdata", "cert-manager", "cert-manager.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files["components/cert-manager/v1.0.0/cert-manager.yaml"] = string(data)
	return files
}

// identities is a kind of the provider for AWS, which stores v1beta2 and has v1beta1 as well.
const identities = "awsclusterstaticidentities.infrastructure.cluster.x-k8s.io"

// withVersions makes a definition in a file have one version only.
func withVersions(t *testing.T, text, crd, version string) string {
	t.Helper()
	documents := strings.Split(text, "\n---\n")
	for i, document := range documents {
		u := &unstructured.Unstructured{}
		if !strings.Contains(document, "name: "+crd) || yaml.Unmarshal([]byte(document), &u.Object) != nil || u.GetName() != crd {
			continue
		}
		versions, _, err := unstructured.NestedSlice(u.Object, "spec", "versions")
		if err != nil {
			t.Fatal(err)
		}
		versions = slices.DeleteFunc(versions, func(v any) bool { return v.(map[string]any)["name"] != version })
		if len(versions) != 1 {
			t.Fatalf("%s has no version %s", crd, version)
		}
		versions[0].(map[string]any)["storage"] = true
		if err := unstructured.SetNestedSlice(u.Object, versions, "spec", "versions"); err != nil {
			t.Fatal(err)
		}
		data, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		documents[i] = string(data)
	}
	return strings.Join(documents, "\n---\n")
}

const providersBootstrap = `apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {name: components, namespace: cascade-system}
spec:
  url: ${url}
  insecure: true
  ref: {digest: "${digest}"}
  interval: 10m
---
apiVersion: v1
kind: Secret
metadata: {name: accounts, namespace: cascade-system}
stringData: {AccessKeyID: AKIDEXAMPLE, SecretAccessKey: hunter2hunter2}
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: cloud, namespace: cascade-system}
spec:
  clusterSelector: {matchLabels: {cascade.dev/tier: cloud}}
  postBuild:
    substitute: {AWS_B64ENCODED_CREDENTIALS: "", CAPA_LOGLEVEL: "3"}
  providers:
    sourceRef: {kind: OCIRepository, name: components}
    path: ./components
    certManager: {version: v1.0.0}
    core: {version: v1.13.4}
    bootstrap: [{name: kubeadm, version: v1.13.4}]
    controlPlane: [{name: kubeadm, version: v1.13.4}]
    infrastructure:
      - name: aws
        version: v2.13.0
        serviceAccountAnnotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::${label_account}:role/capa"}
        credentials: [{name: accounts, secretRef: {name: accounts}}]
  interval: 1h
  timeout: 5m
---
apiVersion: cascade.dev/v1alpha1
kind: Child
metadata:
  name: cloud
  namespace: cascade-system
  labels: {cascade.dev/tier: cloud, account: "123456789012"}
spec: {kubeConfig: {secretRef: {name: cloud}}}
`

func startLayerProviders(t *testing.T) *provided {
	t.Helper()
	registry := origins.StartRegistry(origins.Login{})
	t.Cleanup(registry.Close)
	digest, err := registry.PushFiles("fleet/components", "v1", componentFiles(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	repos := t.TempDir()
	bootstrap := filepath.Join(repos, "bootstrap.yaml")
	if err := os.WriteFile(bootstrap, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: none, namespace: cascade-system}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := &provided{Stage: scenario.StartStage(t, stage.Options{Repos: repos, Bootstrap: bootstrap})}
	p.cloud = &stage.Tier{Name: "cloud", Dir: filepath.Join(filepath.Dir(p.MoM.Dir), "clusters", "cloud")}
	if _, err := p.Run(t.Context(), "controlplane", "start", "--dir", p.cloud.Dir, "--name", "cloud", "--api-only", "--owner-pid", strconv.Itoa(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(p.cloud.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "cloud"}, Data: map[string][]byte{"value": kubeconfig}}
	if err := c.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("${url}", registry.URL("fleet/components"), "${digest}", digest).Replace(providersBootstrap)
	if err := stage.Apply(t.Context(), c, text); err != nil {
		t.Fatal(err)
	}
	// They want the definitions of all providers that they serve, which come one
	// by one; to be asked they do not.
	certs := t.TempDir()
	if p.bundle, err = base64.StdEncoding.DecodeString(certificates(t, certs)); err != nil {
		t.Fatal(err)
	}
	p.port = serveWebhooks(t, scenario.Path(t, "bin", "providers", "webhooks"), certs, p.cloud.Kubeconfig())
	p.layer = &v1alpha1.Layer{}
	if err := scenario.Get(t.Context(), p.MoM, p.layer, stage.Namespace, "cloud"); err != nil {
		t.Fatal(err)
	}
	return p
}

// change writes the layer as a commit would, and asks for it to be looked at.
func (p *provided) change(t *testing.T, edit func(*v1alpha1.LayerSpec)) {
	t.Helper()
	c, err := p.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := scenario.Get(t.Context(), p.MoM, p.layer, stage.Namespace, "cloud"); err != nil {
		t.Fatal(err)
	}
	before := p.layer.DeepCopy()
	edit(&p.layer.Spec)
	p.layer.Annotations = map[string]string{fluxmeta.ReconcileRequestAnnotation: p.layer.ResourceVersion}
	if err := c.Patch(t.Context(), p.layer, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// tells waits until the layer has a reason on the child, and a message with all
// the parts.
func (p *provided) tells(t *testing.T, reason string, parts ...string) {
	t.Helper()
	p.tellsWhile(t, func(context.Context) error { return nil }, reason, parts...)
}

func (p *provided) tellsWhile(t *testing.T, while func(context.Context) error, reason string, parts ...string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("the layer is %s: %s", reason, strings.Join(parts, " ")), func(ctx context.Context) error {
		if err := while(ctx); err != nil {
			return err
		}
		child := &v1alpha1.Child{}
		if err := scenario.Get(ctx, p.MoM, child, stage.Namespace, "cloud"); err != nil {
			return err
		}
		if len(child.Status.Layers) == 0 {
			return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
		}
		l := child.Status.Layers[0]
		for _, part := range parts {
			if !strings.Contains(l.Message, part) {
				return fmt.Errorf("%s: %s", l.Reason, l.Message)
			}
		}
		if l.Reason != reason {
			return fmt.Errorf("%s: %s", l.Reason, l.Message)
		}
		return nil
	})
}

// available says of a Deployment what its controller would.
func (p *provided) available(ctx context.Context, namespace, name string) error {
	c, err := p.cloud.Client()
	if err != nil {
		return err
	}
	d := &appsv1.Deployment{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, d); err != nil {
		return err
	}
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable"},
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
		},
	}
	return c.Status().Update(ctx, d)
}

// answer does what cert-manager and the provider's pods do: the webhooks that are
// configured are served, and the API server knows by whom.
func (p *provided) answer(ctx context.Context) error {
	c, err := p.cloud.Client()
	if err != nil {
		return err
	}
	at := func(config *admissionv1.WebhookClientConfig) {
		if config.Service != nil {
			url := fmt.Sprintf("https://127.0.0.1:%d%s", p.port, *config.Service.Path)
			*config = admissionv1.WebhookClientConfig{URL: &url, CABundle: p.bundle}
		}
	}
	mutating, validating := &admissionv1.MutatingWebhookConfigurationList{}, &admissionv1.ValidatingWebhookConfigurationList{}
	if err := errors.Join(c.List(ctx, mutating), c.List(ctx, validating)); err != nil {
		return err
	}
	for i := range mutating.Items {
		for j := range mutating.Items[i].Webhooks {
			at(&mutating.Items[i].Webhooks[j].ClientConfig)
		}
		if err := c.Update(ctx, &mutating.Items[i]); err != nil {
			return err
		}
	}
	for i := range validating.Items {
		for j := range validating.Items[i].Webhooks {
			at(&validating.Items[i].Webhooks[j].ClientConfig)
			// The program serves those that charts need.
			ignore := admissionv1.Ignore
			validating.Items[i].Webhooks[j].FailurePolicy = &ignore
		}
		if err := c.Update(ctx, &validating.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// work does for everything what a node and cert-manager would.
func (p *provided) work(ctx context.Context) error {
	c, err := p.cloud.Client()
	if err != nil {
		return err
	}
	list := &appsv1.DeploymentList{}
	if err := c.List(ctx, list); err != nil {
		return err
	}
	for _, d := range list.Items {
		if d.Status.ObservedGeneration == d.Generation {
			continue
		}
		if err := p.available(ctx, d.Namespace, d.Name); err != nil {
			return err
		}
	}
	return p.answer(ctx)
}

// silence takes all webhooks out of the way. It comes before each time that they
// are applied again: what the test did to them to have them answer does not go
// together with what is declared.
func (p *provided) silence(t *testing.T) {
	t.Helper()
	c, err := p.cloud.Client()
	if err != nil {
		t.Fatal(err)
	}
	label := client.HasLabels{"cluster.x-k8s.io/provider"}
	if err := errors.Join(
		c.DeleteAllOf(t.Context(), &admissionv1.MutatingWebhookConfiguration{}, label),
		c.DeleteAllOf(t.Context(), &admissionv1.ValidatingWebhookConfiguration{}, label),
	); err != nil {
		t.Fatal(err)
	}
}

// absent fails if there is something of a namespace.
func (p *provided) absent(t *testing.T, namespace string) {
	t.Helper()
	if err := scenario.Get(t.Context(), p.cloud, &corev1.Namespace{}, "", namespace); !apierrors.IsNotFound(err) {
		t.Fatalf("namespace %s is there before what it needs: %v", namespace, err)
	}
}

func (p *provided) eachWaits(t *testing.T) {
	p.tells(t, v1alpha1.ReasonProviderNotReady, "waiting for cert-manager v1.0.0", "Deployment/cert-manager/cert-manager")
	p.absent(t, "capi-system")
	works := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	works(p.available(t.Context(), "cert-manager", "cert-manager"))
	for _, step := range []struct{ named, namespace, deployment, webhook, next string }{
		{"cluster-api v1.13.4", "capi-system", "capi-controller-manager", "capi-mutating-webhook-configuration", "capi-kubeadm-bootstrap-system"},
		{"bootstrap-kubeadm v1.13.4", "capi-kubeadm-bootstrap-system", "capi-kubeadm-bootstrap-controller-manager", "capi-kubeadm-bootstrap-mutating", "capi-kubeadm-control-plane-system"},
		{"control-plane-kubeadm v1.13.4", "capi-kubeadm-control-plane-system", "capi-kubeadm-control-plane-controller-manager", "capi-kubeadm-control-plane-mutating", "capa-system"},
		{"infrastructure-aws v2.13.0", "capa-system", "capa-controller-manager", "capa-mutating-webhook-configuration", ""},
	} {
		p.tells(t, v1alpha1.ReasonProviderNotReady, "waiting for "+step.named, "Deployment/"+step.namespace+"/"+step.deployment)
		works(p.available(t.Context(), step.namespace, step.deployment))
		p.tells(t, v1alpha1.ReasonProviderNotReady, "waiting for "+step.named, "MutatingWebhookConfiguration/"+step.webhook, "failed calling webhook")
		if step.next != "" {
			p.absent(t, step.next)
		}
		works(p.answer(t.Context()))
	}
	p.tells(t, v1alpha1.ReasonSucceeded)
}

func (p *provided) onlyWhatIsNamed(t *testing.T) {
	got, err := scenario.Installed(t.Context(), p.cloud)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for name, value := range got {
		if of, ok := strings.CutPrefix(name, "definitions of "); ok {
			count[of] = strings.Count(value, "\n") + 1
			delete(got, name)
		}
	}
	if diff := cmp.Diff(map[string]int{"": 3, "cluster-api": 13, "bootstrap-kubeadm": 2, "control-plane-kubeadm": 2, "infrastructure-aws": 24}, count); diff != "" {
		t.Errorf("numbers of definitions: -want, +got:\n%s", diff)
	}
	want := map[string]string{
		"Deployment cert-manager/cert-manager":                                                       "1 available",
		"Deployment capi-system/capi-controller-manager":                                             "1 available",
		"Deployment capi-kubeadm-bootstrap-system/capi-kubeadm-bootstrap-controller-manager":         "1 available",
		"Deployment capi-kubeadm-control-plane-system/capi-kubeadm-control-plane-controller-manager": "1 available",
		"Deployment capa-system/capa-controller-manager":                                             "1 available",
		"Provider capi-system/cluster-api":                                                           "CoreProvider v1.13.4",
		"Provider capi-kubeadm-bootstrap-system/bootstrap-kubeadm":                                   "BootstrapProvider v1.13.4",
		"Provider capi-kubeadm-control-plane-system/control-plane-kubeadm":                           "ControlPlaneProvider v1.13.4",
		"Provider capa-system/infrastructure-aws":                                                    "InfrastructureProvider v2.13.0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

// roleAndCredentials: with a role there is no key in the child but what is handed
// over on purpose.
func (p *provided) roleAndCredentials(t *testing.T) {
	account := &corev1.ServiceAccount{}
	if err := scenario.Get(t.Context(), p.cloud, account, "capa-system", "capa-controller-manager"); err != nil {
		t.Fatal(err)
	}
	if got, want := account.Annotations["eks.amazonaws.com/role-arn"], "arn:aws:iam::123456789012:role/capa"; got != want {
		t.Errorf("the role is %q, want %q", got, want)
	}
	secret := &corev1.Secret{}
	if err := scenario.Get(t.Context(), p.cloud, secret, "capa-system", "capa-manager-bootstrap-credentials"); err != nil {
		t.Fatal(err)
	}
	// The pod mounts the key.
	if data, ok := secret.Data["credentials"]; !ok || len(data) > 0 {
		t.Errorf("the provider's credentials have the keys %v", slices.Collect(maps.Keys(secret.Data)))
	}
	if err := scenario.Get(t.Context(), p.cloud, secret, "capa-system", "accounts"); err != nil || string(secret.Data["AccessKeyID"]) != "AKIDEXAMPLE" {
		t.Errorf("the credentials that are handed over have the keys %v: %v", slices.Collect(maps.Keys(secret.Data)), err)
	}
	d := &appsv1.Deployment{}
	if err := scenario.Get(t.Context(), p.cloud, d, "capa-system", "capa-controller-manager"); err != nil {
		t.Fatal(err)
	}
	if args := d.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--v=3") {
		t.Errorf("the arguments of the provider are %v", args)
	}
}

// writes are those of the agent in the child since an offset, by what was written.
func (p *provided) writes(t *testing.T, from int64) (map[string]int, int64) {
	t.Helper()
	events, to, err := p.cloud.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	writes := map[string]int{}
	for _, e := range events {
		if e.ByAgent() && !strings.Contains(e.RequestURI, "dryRun=All") && e.ResponseStatus.Code < 300 {
			writes[e.Verb+" "+e.ObjectRef.Resource+" "+e.ObjectRef.Namespace+"/"+e.ObjectRef.Name]++
		}
	}
	return writes, to
}

// nothingTwice: while the layer waited it was reconciled many times, and nothing of
// what was in place was sent again.
func (p *provided) nothingTwice(t *testing.T) {
	writes, _ := p.writes(t, 0)
	objects := 0
	for what, n := range writes {
		if strings.Contains(what, stage.Namespace) || strings.HasPrefix(what, "create") || strings.Contains(what, "/cascade-parent") {
			continue // the parent's own records, its rights and its token
		}
		objects++
		most := 1
		if strings.Contains(what, " customresourcedefinitions ") || strings.Contains(what, " clusterroles ") || strings.Contains(what, " namespaces ") {
			// If the definitions of a provider are not served within a second the
			// next reconcile goes on with their stage, which these kinds share.
			most = 5
		}
		if n > most {
			t.Errorf("%d times: %s", n, what)
		}
	}
	if objects < 100 {
		t.Errorf("only %d objects were written", objects)
	}
}

// refusals leave everything as it is, and say what to do.
func (p *provided) refusals(t *testing.T) {
	_, from := p.writes(t, 0)
	p.change(t, func(s *v1alpha1.LayerSpec) { s.Providers.Infrastructure[0].Version = "v2.13.9" })
	p.tells(t, v1alpha1.ReasonStorageVersionDropped, identities, "lacks the storage version v1beta2", "upgrade to a version of the provider that has both")
	p.change(t, func(s *v1alpha1.LayerSpec) { s.Providers.Infrastructure[0].Version = "v9.9.9" })
	p.tells(t, v1alpha1.ReasonBuildFailed, `the source has no file "components/infrastructure-aws/v9.9.9/metadata.yaml"`)
	p.change(t, func(s *v1alpha1.LayerSpec) {
		s.Providers.Infrastructure[0].Version = "v2.13.0"
		s.PostBuild.Substitute = nil
	})
	p.tells(t, v1alpha1.ReasonBuildFailed, "cannot render infrastructure-aws v2.13.0", "variables are not set and have no default: AWS_B64ENCODED_CREDENTIALS")
	p.change(t, func(s *v1alpha1.LayerSpec) {
		s.PostBuild.Substitute = map[string]string{"AWS_B64ENCODED_CREDENTIALS": "", "CAPA_LOGLEVEL": "3"}
		s.Providers.SourceRef.Name = "elsewhere"
	})
	p.tells(t, v1alpha1.ReasonSourceNotReady, "OCIRepository elsewhere")
	p.change(t, func(s *v1alpha1.LayerSpec) {
		s.Providers.SourceRef.Name = "components"
		s.Providers.Infrastructure[0].Credentials[0].SecretRef.Name = "nobody"
	})
	p.tells(t, v1alpha1.ReasonCredentialMissing, "nobody for infrastructure-aws")
	if writes, _ := p.writes(t, from); len(writes) > 0 {
		t.Errorf("refusals wrote: %v", writes)
	}
	p.silence(t) // the request below makes the layer compare everything
	p.change(t, func(s *v1alpha1.LayerSpec) { s.Providers.Infrastructure[0].Credentials[0].SecretRef.Name = "accounts" })
	p.tellsWhile(t, p.work, v1alpha1.ReasonSucceeded)
}

// storedInOld has an object stored in a version that the next one of the provider drops, as
// objects are that were made before an earlier upgrade.
func (p *provided) storedInOld(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	c, err := p.cloud.Client()
	if err != nil {
		t.Fatal(err)
	}
	store := func(version string) {
		t.Helper()
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		scenario.Eventually(t, scenario.Converge, "objects are stored in "+version, func(ctx context.Context) error {
			if err := c.Get(ctx, client.ObjectKey{Name: identities}, crd); err != nil {
				return err
			}
			versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
			if err != nil {
				return err
			}
			for _, v := range versions {
				v := v.(map[string]any)
				v["storage"] = v["name"] == version
			}
			return errors.Join(
				unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"),
				unstructured.SetNestedMap(crd.Object, map[string]any{"strategy": "None"}, "spec", "conversion"),
				c.Update(ctx, crd),
			)
		})
	}
	identity := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(awsIdentity), &identity.Object); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), identity); err != nil {
		t.Fatal(err)
	}
	store("v1beta1")
	// The API server goes over to another storage version a moment after it was told to. A
	// patch that changes nothing is written when it has.
	before := identity.GetResourceVersion()
	scenario.Eventually(t, scenario.Converge, "an object is stored in v1beta1", func(ctx context.Context) error {
		if err := c.Patch(ctx, identity, client.RawPatch(types.MergePatchType, []byte("{}"))); err != nil {
			return err
		}
		if identity.GetResourceVersion() == before {
			return errors.New("it was not written")
		}
		return nil
	})
	store("v1beta2")
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(identity), identity); err != nil {
		t.Fatal(err)
	}
	return identity
}

// upgrade: core comes first, and the provider only when core works. Objects in a version that
// the provider drops are stored anew before that.
func (p *provided) upgrade(t *testing.T) {
	arguments := func(namespace, name string) []string {
		t.Helper()
		d := &appsv1.Deployment{}
		if err := scenario.Get(t.Context(), p.cloud, d, namespace, name); err != nil {
			t.Fatal(err)
		}
		return d.Spec.Template.Spec.Containers[0].Args
	}
	p.silence(t)
	before := p.storedInOld(t)
	p.change(t, func(s *v1alpha1.LayerSpec) {
		s.Providers.Infrastructure[0].Version, s.Providers.Core.Version = "v2.13.1", "v1.13.5"
	})
	p.tells(t, v1alpha1.ReasonProviderNotReady, "waiting for cluster-api v1.13.5", "Deployment/capi-system/capi-controller-manager")
	if args := arguments("capi-system", "capi-controller-manager"); !slices.Contains(args, "--leader-elect=true") {
		t.Errorf("arguments of core are %v", args)
	}
	if args := arguments("capa-system", "capa-controller-manager"); !slices.Contains(args, "--leader-elect") {
		t.Errorf("arguments of the provider are %v before core works", args)
	}
	p.tellsWhile(t, p.work, v1alpha1.ReasonSucceeded)
	if args := arguments("capa-system", "capa-controller-manager"); !slices.Contains(args, "--leader-elect=true") {
		t.Errorf("arguments of the provider are %v", args)
	}
	after := before.DeepCopy()
	if err := scenario.Get(t.Context(), p.cloud, after, "", before.GetName()); err != nil {
		t.Fatal(err)
	}
	if after.GetUID() != before.GetUID() || after.GetGeneration() != before.GetGeneration() || after.GetResourceVersion() == before.GetResourceVersion() {
		t.Errorf("an object in a version that is dropped was not stored anew, or was changed: it was\n%v\nand is\n%v", before.Object, after.Object)
	}
	c, err := p.cloud.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	found, err := scenario.Installed(t.Context(), p.cloud)
	if err != nil {
		t.Fatal(err)
	}
	if got := found["Provider capi-system/cluster-api"] + ", " + found["Provider capa-system/infrastructure-aws"]; got != "CoreProvider v1.13.5, InfrastructureProvider v2.13.1" {
		t.Errorf("clusterctl's inventory has %s", got)
	}
}

const awsIdentity = `apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSClusterStaticIdentity
metadata: {name: production}
spec: {secretRef: accounts, allowedNamespaces: {}}
`

// notRemoved: a provider that is taken out of the layer stays as long as there are
// objects of its kinds, also if its removal was confirmed.
func (p *provided) notRemoved(t *testing.T) {
	c, err := p.cloud.Client()
	if err != nil {
		t.Fatal(err)
	}
	p.silence(t)
	if err := stage.Apply(t.Context(), c, awsIdentity); err != nil {
		t.Fatal(err)
	}
	_, from := p.writes(t, 0)
	aws := slices.Clone(p.layer.Spec.Providers.Infrastructure)
	p.change(t, func(s *v1alpha1.LayerSpec) { s.Providers.Infrastructure = nil })
	p.tellsWhile(t, p.work, v1alpha1.ReasonPruneBlocked, "AWSClusterStaticIdentity/production", "needs the provider")
	p.silence(t)
	p.change(t, func(s *v1alpha1.LayerSpec) {
		s.Providers.Infrastructure = aws
		s.Providers.Infrastructure[0].Deletion = "confirmed"
	})
	p.tellsWhile(t, p.work, v1alpha1.ReasonSucceeded)
	p.silence(t)
	p.change(t, func(s *v1alpha1.LayerSpec) { s.Providers.Infrastructure = nil })
	p.tellsWhile(t, p.work, v1alpha1.ReasonPruneBlocked, "AWSClusterStaticIdentity/production", "needs the provider")
	writes, _ := p.writes(t, from)
	for what := range writes {
		if strings.HasPrefix(what, "delete") {
			t.Error(what)
		}
	}
}

// removed: when nothing needs it any more, a provider whose removal was confirmed
// goes with its definitions, and the others stay.
func (p *provided) removed(t *testing.T) {
	c, err := p.cloud.Client()
	if err != nil {
		t.Fatal(err)
	}
	identity := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(awsIdentity), &identity.Object); err != nil {
		t.Fatal(err)
	}
	p.silence(t)
	if err := c.Delete(t.Context(), identity); err != nil {
		t.Fatal(err)
	}
	p.change(t, func(*v1alpha1.LayerSpec) {})
	scenario.Eventually(t, scenario.Converge, "the provider is gone", func(ctx context.Context) error {
		if err := p.work(ctx); err != nil {
			return err
		}
		ns := &corev1.Namespace{}
		if err := c.Get(ctx, client.ObjectKey{Name: "capa-system"}, ns); err == nil && ns.DeletionTimestamp != nil {
			// No controller runs here that would.
			ns.Spec.Finalizers = nil
			if err := c.SubResource("finalize").Update(ctx, ns); err != nil {
				return err
			}
		}
		found, err := scenario.Installed(ctx, p.cloud)
		if err != nil {
			return err
		}
		for name := range found {
			if strings.Contains(name, "aws") || strings.Contains(name, "capa-system") {
				return fmt.Errorf("%s is there", name)
			}
		}
		return nil
	})
	p.tells(t, v1alpha1.ReasonSucceeded)
	found, err := scenario.Installed(t.Context(), p.cloud)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Provider capi-system/cluster-api", "Deployment capi-system/capi-controller-manager", "definitions of cluster-api"} {
		if found[name] == "" {
			t.Errorf("%s is gone", name)
		}
	}
	child := &v1alpha1.Child{}
	if err := scenario.Get(t.Context(), p.MoM, child, stage.Namespace, "cloud"); err != nil {
		t.Fatal(err)
	}
	if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
		t.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
	}
}
