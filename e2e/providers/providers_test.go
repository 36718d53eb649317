package providers

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/capibridge/shapes"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// The definitions that the objects of lives are of, by the directories of their
// modules, and the label by which Cluster API knows the contract of each, which
// its providers add when they are installed.
var lifeDefinitions = map[string]struct {
	names    []string
	contract map[string]string
}{
	"core":         {[]string{"clusters.cluster.x-k8s.io"}, nil},
	"controlplane": {[]string{"kubeadmcontrolplanes.controlplane.cluster.x-k8s.io"}, map[string]string{"cluster.x-k8s.io/v1beta2": "v1beta2"}},
	"aws": {[]string{
		"awsclusters.infrastructure.cluster.x-k8s.io", "awsmanagedclusters.infrastructure.cluster.x-k8s.io", "awsmanagedcontrolplanes.controlplane.cluster.x-k8s.io",
		"awsclusterstaticidentities.infrastructure.cluster.x-k8s.io", "awsclusterroleidentities.infrastructure.cluster.x-k8s.io", "awsclustercontrolleridentities.infrastructure.cluster.x-k8s.io",
	}, map[string]string{"cluster.x-k8s.io/v1beta1": "v1beta1_v1beta2"}},
	"azure": {[]string{
		"azureclusters.infrastructure.cluster.x-k8s.io", "azuremanagedclusters.infrastructure.cluster.x-k8s.io", "azuremanagedcontrolplanes.infrastructure.cluster.x-k8s.io",
		"azureasomanagedclusters.infrastructure.cluster.x-k8s.io", "azureasomanagedcontrolplanes.infrastructure.cluster.x-k8s.io", "azureclusteridentities.infrastructure.cluster.x-k8s.io",
		"managedclusters.containerservice.azure.com",
	}, map[string]string{"cluster.x-k8s.io/v1beta1": "v1beta1"}},
	"local": {[]string{"localclusters.infrastructure.cluster.x-k8s.io", "localcontrolplanes.controlplane.cluster.x-k8s.io"}, nil},
}

// reader is a client with which objects are read in the versions that it knows of.
type reader struct{ client.Client }

func (r reader) InServed(gk schema.GroupKind, read func(*meta.RESTMapping) error) error {
	mapping, err := r.RESTMapper().RESTMapping(gk)
	if err != nil {
		return err
	}
	return read(mapping)
}

// TestProviders has a real API server with the definitions of Cluster API and of
// its providers hold the objects of clusters at each stage of their lives, and
// asks what they mean: of Clusters of v1beta2, and of v1beta1 as Cluster API's own
// conversion has them.
func TestProviders(t *testing.T) {
	scenario.Alongside(t)
	p := startProviders(t)
	lives, err := shapes.Lives()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("Lives", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, life := range lives {
			parts.Run(life.Name, func(t *testing.T) { p.live(t, life) })
		}
	})
	// The provider goes, the other stays; the clients that knew of it do not know yet.
	t.Run("OneProviderIsRemoved", func(t *testing.T) {
		p.remove(t, "azureclusters.infrastructure.cluster.x-k8s.io", "azureasomanagedclusters.infrastructure.cluster.x-k8s.io")
		for who, c := range map[string]client.Client{"before": p.client, "after": p.connect(t)} {
			for life, want := range map[string]string{"azure-vm/vm": capibridge.HealthNotServed, "azure-aks/aks": capibridge.HealthNotServed, "aws-ec2/ec2": capibridge.HealthReady} {
				namespace, name, _ := strings.Cut(life, "/")
				u := &unstructured.Unstructured{}
				u.SetGroupVersionKind(clusterapi.ClusterKind.WithVersion("v1beta2"))
				if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, u); err != nil {
					t.Fatal(err)
				}
				f, err := new(capibridge.Providers).Describe(t.Context(), reader{c}, capibridge.FromObject(u))
				if err != nil {
					t.Errorf("%s, a client from %s: %v", life, who, err)
				}
				if f.Infrastructure.Reason != want {
					t.Errorf("%s, a client from %s: infrastructure is %+v, want %s", life, who, f.Infrastructure, want)
				}
			}
		}
	})
}

type providerTier struct {
	config *rest.Config
	client client.Client
}

func (p *providerTier) connect(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(p.config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// remove takes definitions away, and what is of them.
func (p *providerTier) remove(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		crd.SetName(name)
		if err := p.client.Delete(t.Context(), crd); err != nil {
			t.Fatal(err)
		}
		scenario.Eventually(t, scenario.Converge, name+" is gone", func(ctx context.Context) error {
			err := p.client.Get(ctx, client.ObjectKey{Name: name}, crd)
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return err
			}
			// What a stage left in deletion waits for a controller that is not here.
			list := &unstructured.UnstructuredList{}
			group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
			mapping, err := p.client.RESTMapper().RESTMapping(schema.GroupKind{Group: group, Kind: kind})
			if err != nil {
				return err
			}
			list.SetGroupVersionKind(mapping.GroupVersionKind)
			if err := p.client.List(ctx, list); err != nil {
				return err
			}
			for _, u := range list.Items {
				u.SetFinalizers(nil)
				if err := p.client.Update(ctx, &u); err != nil {
					return err
				}
			}
			return fmt.Errorf("it has %d objects", len(list.Items))
		})
	}
}

// startProviders starts an API server with the definitions, and Cluster API's
// conversions.
func startProviders(t *testing.T) *providerTier {
	t.Helper()
	bin, api := scenario.Path(t, "bin"), scenario.StartAPIServer(t)
	p := &providerTier{config: api.Config}
	p.client = p.connect(t)
	start := time.Now()
	defer func() { t.Logf("the definitions took %s", time.Since(start)) }()
	p.define(t, bin, map[string]any{
		"strategy": "Webhook",
		"webhook": map[string]any{"conversionReviewVersions": []any{"v1"}, "clientConfig": map[string]any{
			"caBundle": certificates(t, api.Dir),
			"url":      fmt.Sprintf("https://127.0.0.1:%d/convert", serveWebhooks(t, filepath.Join(bin, "providers", "webhooks"), api.Dir, api.Kubeconfig)),
		}},
	})
	return p
}

// define installs the definitions, Clusters with a conversion.
func (p *providerTier) define(t *testing.T, bin string, conversion map[string]any) {
	t.Helper()
	var names []string
	var installs sync.WaitGroup
	for provider, d := range lifeDefinitions {
		missing := slices.Clone(d.names)
		for _, u := range providerManifests(t, bin, provider, "*.yaml") {
			i := slices.Index(missing, u.GetName())
			if u.GetKind() != "CustomResourceDefinition" || i < 0 {
				continue
			}
			missing = slices.Delete(missing, i, i+1)
			names = append(names, u.GetName())
			unstructured.RemoveNestedField(u.Object, "spec", "conversion")
			if provider == "core" {
				if err := unstructured.SetNestedMap(u.Object, conversion, "spec", "conversion"); err != nil {
					t.Fatal(err)
				}
			}
			if d.contract != nil {
				u.SetLabels(d.contract)
			}
			if u.GetName() == "managedclusters.containerservice.azure.com" {
				// It has twelve, each with a schema that takes an API server seconds.
				keepVersions(t, u, "v1api20210501", "v1api20240901", "v1api20240901storage")
			}
			installs.Go(func() {
				if err := p.client.Create(t.Context(), u); err != nil {
					t.Errorf("cannot create definition %s: %v", u.GetName(), err)
				}
			})
		}
		if len(missing) > 0 {
			t.Fatalf("no definition of %v", missing)
		}
	}
	installs.Wait()
	scenario.Eventually(t, scenario.Converge, "the definitions are established", func(ctx context.Context) error {
		for _, name := range names {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
			if err := p.client.Get(ctx, client.ObjectKey{Name: name}, u); err != nil {
				return err
			}
			conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
			if !slices.ContainsFunc(conditions, func(c any) bool {
				condition, _ := c.(map[string]any)
				return condition["type"] == "Established" && condition["status"] == "True"
			}) {
				return fmt.Errorf("%s is not", name)
			}
		}
		return nil
	})
}

// keepVersions leaves out all other versions of a definition.
func keepVersions(t *testing.T, crd *unstructured.Unstructured, names ...string) {
	t.Helper()
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	versions = slices.DeleteFunc(versions, func(v any) bool {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		return !slices.Contains(names, name)
	})
	if len(versions) != len(names) {
		t.Fatalf("%s does not have versions %v", crd.GetName(), names)
	}
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
}

// live leads a life, one stage after the other.
func (p *providerTier) live(t *testing.T, life shapes.Life) {
	for _, stage := range life.Stages {
		for _, u := range stage.Objects {
			p.put(t, u.DeepCopy())
		}
		for _, version := range []string{"v1beta2", "v1beta1"} {
			t.Run(stage.Name+"/"+version, func(t *testing.T) {
				u := &unstructured.Unstructured{}
				u.SetGroupVersionKind(clusterapi.ClusterKind.WithVersion(version))
				if err := p.client.Get(t.Context(), client.ObjectKeyFromObject(stage.Cluster()), u); err != nil {
					t.Fatal(err)
				}
				c := capibridge.FromObject(u)
				f, err := new(capibridge.Providers).Describe(t.Context(), reader{p.client}, c)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(stage.Want, shapes.Answers(c, f)); diff != "" {
					t.Errorf("answers: -want, +got:\n%s", diff)
				}
			})
		}
	}
}

// put makes an object be as it is in a stage, in its status too.
func (p *providerTier) put(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	ctx := t.Context()
	if namespace := u.GetNamespace(); namespace != "" {
		ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}}
		if err := p.client.Create(ctx, ns); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	deleted := u.GetDeletionTimestamp() != nil
	u.SetDeletionTimestamp(nil)
	status, hasStatus := u.Object["status"]
	live := u.DeepCopy()
	err := p.client.Get(ctx, client.ObjectKeyFromObject(u), live)
	switch {
	case apierrors.IsNotFound(err):
		err = p.client.Create(ctx, u)
	case err == nil:
		u.SetResourceVersion(live.GetResourceVersion())
		u.SetDeletionTimestamp(live.GetDeletionTimestamp())
		err = p.client.Update(ctx, u)
	}
	if err == nil && hasStatus {
		u.Object["status"] = status
		err = p.client.Status().Update(ctx, u)
	}
	if err == nil && deleted {
		err = p.client.Delete(ctx, u)
	}
	if err != nil {
		t.Fatalf("cannot put %s %s: %v", u.GetKind(), u.GetName(), err)
	}
}
