package migration

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/deploy"
)

// Controller is one of Flux's controllers.
type Controller struct {
	Name     string
	Replicas int32
}

// Kind is a kind of Flux with the number of its objects.
type Kind struct {
	Name  string
	Count int
}

// Facts are what a plan is made of.
type Facts struct {
	// Namespace of Flux's controllers.
	Namespace string
	// Replaced are the controllers whose work an agent does, Others those that go on.
	Replaced, Others []Controller
	// Shards are copies of the replaced ones for a part of the objects.
	Shards []Controller
	// Instance is the FluxInstance that declares the controllers, empty if Git does.
	Instance string
	// Served are the kinds that an agent reconciles, Unserved Flux's other ones.
	Served, Unserved []Kind
	// Objects in inventories. Unrecorded are HelmReleases without one, which earlier versions of
	// Flux did not write.
	Objects, Unrecorded int
	// Layers and Children that only an agent serves.
	Layers, Children int
	// Annotated are objects of Flux's kinds that say something that only an agent reads.
	Annotated []string
}

// replaced are the controllers whose work an agent does, in the order in which they end.
func replaced() []string {
	return []string{"kustomize-controller", "helm-controller", "source-controller"}
}

// fluxGroups tells Flux's kinds from others.
const fluxGroups = ".fluxcd.io"

// cascadeGroup begins the annotations that only an agent reads.
const cascadeGroup = "cascade.dev/"

// Read reads the facts of a cluster whose Flux is in a namespace.
func Read(ctx context.Context, c client.Client, namespace string) (Facts, error) {
	f := Facts{Namespace: namespace}
	list := &appsv1.DeploymentList{}
	if err := c.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/part-of": "flux"}); err != nil {
		return f, fmt.Errorf("cannot list Flux's controllers: %w", err)
	}
	for _, d := range list.Items {
		found := Controller{Name: d.Name, Replicas: 1}
		if d.Spec.Replicas != nil {
			found.Replicas = *d.Spec.Replicas
		}
		switch {
		case slices.Contains(replaced(), d.Name):
			f.Replaced = append(f.Replaced, found)
		case slices.ContainsFunc(replaced(), func(name string) bool { return strings.HasPrefix(d.Name, name+"-") }):
			f.Shards = append(f.Shards, found)
		case strings.HasSuffix(d.Name, "-controller") || d.Name == "source-watcher":
			f.Others = append(f.Others, found)
		}
	}
	slices.SortFunc(f.Replaced, func(a, b Controller) int { return slices.Index(replaced(), a.Name) - slices.Index(replaced(), b.Name) })
	if err := f.readInstance(ctx, c); err != nil {
		return f, err
	}
	return f, f.readKinds(ctx, c)
}

// instance is the kind by which Flux's operator declares the controllers.
func instance() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "fluxcd.controlplane.io", Version: "v1", Kind: "FluxInstance"}
}

func (f *Facts) readInstance(ctx context.Context, c client.Client) error {
	found, err := listOf(ctx, c, instance())
	for _, u := range found {
		if u.GetNamespace() == f.Namespace {
			f.Instance = u.GetNamespace() + "/" + u.GetName()
		}
	}
	return err
}

// listOf lists the objects of a kind, none if there is no such kind.
func listOf(ctx context.Context, c client.Client, gvk schema.GroupVersionKind) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := c.List(ctx, list); err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("cannot list objects of kind %s: %w", gvk.Kind, err)
	}
	return list.Items, nil
}

func (f *Facts) readKinds(ctx context.Context, c client.Client) error {
	ours, err := deploy.CRDs()
	if err != nil {
		return err
	}
	served := map[string]bool{}
	for _, crd := range ours {
		served[crd.GetName()] = true
	}
	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := c.List(ctx, crds); err != nil {
		return fmt.Errorf("cannot list definitions: %w", err)
	}
	for i := range crds.Items {
		crd := &crds.Items[i]
		if !strings.HasSuffix(crd.Spec.Group, fluxGroups) && !served[crd.Name] {
			continue
		}
		found, err := listOf(ctx, c, schema.GroupVersionKind{Group: crd.Spec.Group, Version: storedVersion(crd), Kind: crd.Spec.Names.Kind})
		if err != nil {
			return err
		}
		f.count(crd.Spec.Names.Kind, served[crd.Name], found)
	}
	slices.Sort(f.Annotated)
	return nil
}

func storedVersion(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

func (f *Facts) count(kind string, served bool, objects []unstructured.Unstructured) {
	switch k := (Kind{kind, len(objects)}); {
	case len(objects) == 0:
		return
	case kind == "Layer":
		f.Layers = len(objects)
		return
	case kind == "Child":
		f.Children = len(objects)
		return
	case served:
		f.Served = append(f.Served, k)
	default:
		f.Unserved = append(f.Unserved, k)
	}
	for i := range objects {
		u := &objects[i]
		entries := len(entriesOf(u))
		f.Objects += entries
		if kind == "HelmRelease" && entries == 0 {
			f.Unrecorded++
		}
		for key := range u.GetAnnotations() {
			// What the agent wrote itself says nothing of what a person wants.
			if strings.HasPrefix(key, cascadeGroup) && !slices.Contains(written(), key) {
				f.Annotated = append(f.Annotated, fmt.Sprintf("%s %s/%s has %s", kind, u.GetNamespace(), u.GetName(), key))
			}
		}
	}
}
