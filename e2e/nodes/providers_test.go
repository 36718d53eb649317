package nodes

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// workloads are the Deployments of cert-manager and of Cluster API's core.
var workloads = map[string][]string{
	"cert-manager": {"cert-manager", "cert-manager-cainjector", "cert-manager-webhook"},
	"capi-system":  {"capi-controller-manager"},
}

// serving is the Certificate of Cluster API's webhooks, and the Secret that it is kept in.
const (
	serving       = "capi-serving-cert"
	servingSecret = "capi-webhook-service-cert"
)

// TestProviders: a tier with nothing but an agent gets cert-manager and Cluster API's core from
// Git, as pods from images, and with them a Cluster in an old version. Nobody waits for
// webhooks, and nobody makes a certificate, but cert-manager.
func TestProviders(t *testing.T) {
	s := startStand(t)
	c := s.start(t, "tier", true)
	c.registered(t, corev1.ConditionTrue)
	// Its API server calls webhooks in pods.
	if err := s.network.Route(t.Context(), c.options.Pods, c.node); err != nil {
		t.Fatal(err)
	}
	c.Apply(t, corednsManifests(s.pullable("public/coredns:1")))
	c.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: cascade-system}\n")
	c.logins(t)
	if out, err := c.run(t, "install", "--image", s.agent, "--image-pull-secret", "registry", "--first-sync", "create"); err != nil {
		t.Fatalf("cannot install: %v\n%s", err, out)
	}
	agent := c.agent(t)
	c.git(t, "tier", s.tierFiles(t))
	_, offset, err := c.tier.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, ownTier("http://"+at("git", c.Git.HTTPAddress())+"/tier.git", versionOf(t, "cert-manager"), versionOf(t, "cluster-api")))
	c.provided(t)
	if !t.Run("Order", func(t *testing.T) { c.inOrder(t, offset) }) {
		return
	}
	t.Run("Injected", func(t *testing.T) { c.injected(t) })
	t.Run("Converts", func(t *testing.T) { c.converts(t) })
	t.Run("Refuses", func(t *testing.T) { c.refuses(t) })
	t.Run("Settled", func(t *testing.T) { c.settled(t) })
	for _, p := range append(c.pods(t), agent) {
		for _, status := range p.Status.ContainerStatuses {
			if status.RestartCount > 0 {
				t.Errorf("pod %s/%s was restarted", p.Namespace, p.Name)
			}
		}
	}
}

// provided waits until the tier has its layer. Until then it may only wait: nothing that it
// sends fails.
func (c *cluster) provided(t *testing.T) {
	t.Helper()
	var told []string
	scenario.Eventually(t, scenario.BringUp, "the tier has its providers", func(ctx context.Context) error {
		o := &v1alpha1.Child{}
		if err := c.Load(ctx, o, stage.Namespace, "self"); err != nil {
			return err
		}
		if len(o.Status.Layers) != 1 {
			return fmt.Errorf("%s", scenario.Summary(o.Status.Conditions))
		}
		layer := o.Status.Layers[0]
		if line := layer.Reason + ": " + layer.Message; !slices.Contains(told, line) {
			told = append(told, line)
			t.Log(line)
		}
		switch layer.Reason {
		case v1alpha1.ReasonProgressing, v1alpha1.ReasonProviderNotReady, v1alpha1.ReasonSourceNotReady:
		default:
			if !layer.Ready {
				t.Fatalf("the layer is %s: %s", layer.Reason, layer.Message)
			}
		}
		if !layer.Ready {
			return fmt.Errorf("%s: %s", layer.Reason, layer.Message)
		}
		return nil
	})
}

// inOrder fails unless each set began when the one before it worked, and logs when that was.
// What the agent sent was refused to it only where it asked whether webhooks respond.
func (c *cluster) inOrder(t *testing.T, offset int64) {
	layer := &v1alpha1.Layer{}
	if err := c.Load(t.Context(), layer, stage.Namespace, "providers"); err != nil {
		t.Fatal(err)
	}
	begin := layer.CreationTimestamp.Time
	took := func(what string, at time.Time) {
		t.Helper()
		if at.Before(begin) {
			t.Errorf("%s: at %s, before the layer", what, at)
		}
		t.Logf("%s after %s", what, at.Sub(begin))
	}
	created := func(o client.Object, namespace, name string) time.Time {
		t.Helper()
		if err := c.Load(t.Context(), o, namespace, name); err != nil {
			t.Fatal(err)
		}
		return o.GetCreationTimestamp().Time
	}
	issuer := created(&corev1.Namespace{}, "", "cert-manager")
	issues := c.available(t, "cert-manager")
	core := created(&corev1.Namespace{}, "", "capi-system")
	works := c.available(t, "capi-system")
	cluster := created(stage.Object("cluster.x-k8s.io/v1beta2", "Cluster"), "default", "old")
	took("cert-manager begun", issuer)
	took("cert-manager available", issues)
	took("Cluster API begun", core)
	took("Cluster API available", works)
	took("the Cluster of the layer created", cluster)
	if core.Before(issues) {
		t.Errorf("Cluster API was begun at %s, before cert-manager was available, at %s", core, issues)
	}
	if cluster.Before(works) {
		t.Errorf("the Cluster was created at %s, before Cluster API was available, at %s", cluster, works)
	}
	events, _, err := c.tier.Audit(offset)
	if err != nil {
		t.Fatal(err)
	}
	var writes, asked int
	for _, e := range events {
		if !e.ByAgent() || !e.Writes() {
			continue
		}
		writes++
		if e.ResponseStatus.Code < 400 || e.ResponseStatus.Code == http.StatusConflict { // somebody wrote in between
			continue
		}
		if strings.Contains(e.RequestURI, "dryRun=All") {
			asked++
			continue
		}
		t.Errorf("the agent's %s was answered with %d: %s", e.Verb, e.ResponseStatus.Code, e.RequestURI)
	}
	if writes == 0 {
		t.Error("the audit log has no request of the agent")
	}
	t.Logf("of %d requests to write, %d were refused, all of which only asked", writes, asked)
}

// available is when the last of the Deployments of a namespace became available.
func (c *cluster) available(t *testing.T, namespace string) time.Time {
	t.Helper()
	var last time.Time
	for _, name := range workloads[namespace] {
		d := &appsv1.Deployment{}
		if err := c.Load(t.Context(), d, namespace, name); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue
		})
		if i < 0 {
			t.Fatalf("Deployment %s is not available: %+v", name, d.Status.Conditions)
		}
		if at := d.Status.Conditions[i].LastTransitionTime.Time; at.After(last) {
			last = at
		}
	}
	return last
}

// injected fails unless cert-manager issued the certificate, and whoever calls a webhook of
// Cluster API trusts who signed it.
func (c *cluster) injected(t *testing.T) {
	secret := &corev1.Secret{}
	if err := c.Load(t.Context(), secret, "capi-system", servingSecret); err != nil {
		t.Fatal(err)
	}
	if issuer := secret.Annotations["cert-manager.io/certificate-name"]; issuer != serving {
		t.Errorf("the certificate of the webhooks is not of Certificate %s, but of %q", serving, issuer)
	}
	certificate := stage.Object("cert-manager.io/v1", "Certificate")
	if err := c.Load(t.Context(), certificate, "capi-system", serving); err != nil {
		t.Fatal(err)
	}
	if ready := conditionOf(certificate, "Ready"); ready != "True" {
		t.Errorf("Certificate %s has Ready %q", serving, ready)
	}
	bundles := c.bundles(t)
	for name, bundle := range bundles {
		if !bytes.Equal(bundle, secret.Data["ca.crt"]) {
			t.Errorf("%s trusts %q, not who signed the certificate", name, bundle)
		}
	}
	t.Logf("%d callers of webhooks were told whom to trust", len(bundles))
	if len(bundles) < 20 {
		t.Errorf("there are only %d callers of webhooks of Cluster API", len(bundles))
	}
}

// bundles are whom the API server trusts where it calls webhooks of Cluster API: for each
// kind and for each admission webhook.
func (c *cluster) bundles(t *testing.T) map[string][]byte {
	t.Helper()
	bundles := map[string][]byte{}
	crds := &unstructured.UnstructuredList{}
	crds.SetAPIVersion("apiextensions.k8s.io/v1")
	crds.SetKind("CustomResourceDefinitionList")
	if err := c.Client.List(t.Context(), crds, client.MatchingLabels{"cluster.x-k8s.io/provider": "cluster-api"}); err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds.Items {
		config, found, _ := unstructured.NestedMap(crd.Object, "spec", "conversion", "webhook", "clientConfig")
		if !found {
			continue
		}
		text, _ := config["caBundle"].(string)
		bundle, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		bundles[crd.GetName()] = bundle
	}
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	if err := c.Load(t.Context(), mutating, "", "capi-mutating-webhook-configuration"); err != nil {
		t.Fatal(err)
	}
	for _, w := range mutating.Webhooks {
		bundles[w.Name] = w.ClientConfig.CABundle
	}
	if err := c.Load(t.Context(), validating, "", "capi-validating-webhook-configuration"); err != nil {
		t.Fatal(err)
	}
	for _, w := range validating.Webhooks {
		bundles[w.Name] = w.ClientConfig.CABundle
	}
	return bundles
}

// conditionOf is the status of a condition; empty if there is none.
func conditionOf(u *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if c, _ := c.(map[string]any); c["type"] == kind {
			status, _ := c["status"].(string)
			return status
		}
	}
	return ""
}

// converts reads the Cluster in both versions: what the old one calls apiVersion is apiGroup in
// the new one. Cluster API works on it.
func (c *cluster) converts(t *testing.T) {
	for version, want := range map[string]map[string]any{
		"v1beta1": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "LocalCluster", "name": "old", "namespace": "default"},
		"v1beta2": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "LocalCluster", "name": "old"},
	} {
		o := stage.Object("cluster.x-k8s.io/"+version, "Cluster")
		if err := c.Load(t.Context(), o, "default", "old"); err != nil {
			t.Fatal(err)
		}
		got, _, _ := unstructured.NestedMap(o.Object, "spec", "infrastructureRef")
		if !maps.Equal(got, want) {
			t.Errorf("in %s it refers to %v, want %v", version, got, want)
		}
	}
	scenario.Eventually(t, scenario.Converge, "Cluster API works on the Cluster", func(ctx context.Context) error {
		o := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
		if err := c.Load(ctx, o, "default", "old"); err != nil {
			return err
		}
		phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		infrastructure := stage.Object("infrastructure.cluster.x-k8s.io/v1alpha1", "LocalCluster")
		if err := c.Load(ctx, infrastructure, "default", "old"); err != nil {
			return err
		}
		if owners := infrastructure.GetOwnerReferences(); phase != "Provisioning" || len(owners) != 1 || owners[0].UID != o.GetUID() {
			return fmt.Errorf("it is %q, and its LocalCluster has the owners %+v", phase, owners)
		}
		return nil
	})
}

// refuses sends what is wrong in a way that no schema knows: webhooks of Cluster API, in each
// version, and of cert-manager refuse it.
func (c *cluster) refuses(t *testing.T) {
	for name, tc := range map[string]struct{ reason, manifest, want string }{
		"New": {
			"a range of addresses that is none",
			`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: wrong, namespace: default}, spec: {clusterNetwork: {services: {cidrBlocks: [10.96.0.0/99]}},
			  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LocalCluster, name: wrong}}}`,
			`admission webhook "validation.cluster.cluster.x-k8s.io" denied the request`,
		},
		"Old": {
			"the same in the version before, which is converted first",
			`{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, metadata: {name: wrong, namespace: default}, spec: {clusterNetwork: {services: {cidrBlocks: [10.96.0.0/99]}},
			  infrastructureRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1, kind: LocalCluster, name: wrong}}}`,
			`admission webhook "validation.cluster.cluster.x-k8s.io" denied the request`,
		},
		"Certificate": {
			"a certificate for nobody",
			`{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: wrong, namespace: default}, spec: {secretName: wrong, issuerRef: {name: wrong}}}`,
			`admission webhook "webhook.cert-manager.io" denied the request`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := stage.Apply(t.Context(), c.Client, tc.manifest)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v; want %s", tc.reason, err, tc.want)
			}
		})
	}
	o := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
	if err := c.Load(t.Context(), o, "default", "wrong"); !apierrors.IsNotFound(err) {
		t.Errorf("the Cluster that was refused is there: %v", err)
	}
}

// settled reconciles the layer once more. What cert-manager injected is no drift: the agent
// leaves it, and writes nothing.
func (c *cluster) settled(t *testing.T) {
	before := c.versions(t)
	if out, err := c.run(t, "reconcile", "layer", "providers", "--timeout", "2m"); err != nil {
		t.Fatalf("cannot reconcile the layer: %v\n%s", err, out)
	}
	for name, version := range c.versions(t) {
		if before[name] != version {
			t.Errorf("%s was written again", name)
		}
	}
}

// versions are the resource versions of what cert-manager injects into.
func (c *cluster) versions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, kind := range []client.ObjectList{
		&metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinitionList"}},
		&metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfigurationList"}},
		&metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfigurationList"}},
	} {
		if err := c.Client.List(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
		list := kind.(*metav1.PartialObjectMetadataList)
		for _, o := range list.Items {
			versions[list.Kind+" "+o.Name] = o.ResourceVersion
		}
	}
	return versions
}
