package migration

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/object"
	automationv1 "github.com/fluxcd/image-automation-controller/api/v1"
	reflectorv1 "github.com/fluxcd/image-reflector-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/syncer/credential"
)

// Controller is one of Flux's controllers.
type Controller struct {
	Name     string
	Replicas int32
}

// Kind is a kind with the number of its objects.
type Kind struct {
	Name  string
	Count int
	// Controller of Flux that the objects need, of those that an installation may lack.
	Controller string
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
	// Served are the kinds of Flux that an agent reconciles, Unserved Flux's other ones, and
	// Ours are those of Cascade that need no cluster below.
	Served, Unserved, Ours []Kind
	// Sharded are objects of the served kinds that have the label of a shard.
	Sharded []Kind
	// Outdated are kinds of Flux that are not served in the version that an agent reads.
	Outdated []string
	// Suspended is which object that syncs the repository is suspended, empty if none is, and
	// Resume the command that lets it go on.
	Suspended, Resume string
	// Held are objects that an agent holds something back for, which no other engine does.
	Held []string
	// Unseen are objects with parts or keys of Clusters that fail before anybody looks at what would go,
	// UnseenSuspended those of which nobody knows it as they are suspended.
	Unseen, UnseenSuspended []string
	// Ended: there is no agent any more. What fails then is Flux's to say.
	Ended bool
	// Kept: something of it waits for nobody, and goes when a Cluster is gone, or a Kustomization or HelmRelease.
	Kept bool
	// Parted counts the owners that may keep something so: they have parts of Clusters, or keys, and prune.
	Parted int
	// Behind: the agent may be of an earlier version than this program, and not say what it keeps.
	Behind bool
	// Objects in inventories. Unrecorded are HelmReleases without one, which earlier versions of
	// Flux did not write.
	Objects, Unrecorded int
	// Layers and Children that only an agent serves.
	Layers, Children int
	// Annotated are objects of Flux's kinds that say something that only an agent reads.
	Annotated []string
}

// generator is the controller of Flux that makes artifacts of others. It reads those that
// source-controller serves, and is read over HTTP: neither goes on beside an agent.
const generator = "source-watcher"

// replaced are the controllers whose work an agent does, in the order in which they end: who reads
// ends before whom it reads.
func replaced() []string {
	return []string{"kustomize-controller", "helm-controller", generator, "source-controller"}
}

// isShard reports whether a Deployment is a copy of one of them for a part of the objects.
func isShard(name string) bool {
	return slices.ContainsFunc(replaced(), func(of string) bool { return strings.HasPrefix(name, of+"-") })
}

// fluxGroups tells Flux's kinds from others.
const fluxGroups = ".fluxcd.io"

// cascadeGroup begins the annotations that only an agent reads.
const cascadeGroup = "cascade.dev/"

// shardLabel is how Flux says that a copy of its controllers serves an object, and which one.
const shardLabel = "sharding.fluxcd.io/key"

// Read reads the facts of a cluster whose Flux is in a namespace.
func Read(ctx context.Context, c client.Client, namespace string) (Facts, error) {
	f := Facts{Namespace: namespace}
	list := &appsv1.DeploymentList{}
	if err := c.List(ctx, list, client.InNamespace(namespace), ofFlux()); err != nil {
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
		case isShard(d.Name):
			f.Shards = append(f.Shards, found)
		case strings.HasSuffix(d.Name, "-controller"):
			f.Others = append(f.Others, found)
		}
	}
	slices.SortFunc(f.Replaced, func(a, b Controller) int { return slices.Index(replaced(), a.Name) - slices.Index(replaced(), b.Name) })
	if err := f.readInstance(ctx, c); err != nil {
		return f, err
	}
	return f, f.readKinds(ctx, c)
}

// Held says what the agent of a cluster holds back, which whoever applies the same objects
// after it does at once. behind: the agent may be of an earlier version, and not say all of it.
func Held(ctx context.Context, c client.Client, behind bool) ([]string, error) {
	f := Facts{Behind: behind}
	if err := f.readKinds(ctx, c); err != nil {
		return nil, err
	}
	texts := slices.Concat(f.Held, f.Unseen, f.UnseenSuspended)
	if text := f.untold(); text != "" {
		texts = slices.Insert(texts, 0, text)
	}
	return texts, nil
}

// untold says that an agent may keep more than it tells; empty if it does not.
func (f Facts) untold() string {
	if !f.Behind || f.Parted == 0 {
		return ""
	}
	return fmt.Sprintf("the agent may be of an earlier version than this program, which does not say what it keeps for Clusters, and %d Kustomizations and HelmReleases have parts or keys of some", f.Parted)
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
	served := map[string]*unstructured.Unstructured{}
	for _, crd := range ours {
		served[crd.GetName()] = crd
	}
	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := c.List(ctx, crds); err != nil {
		return fmt.Errorf("cannot list definitions: %w", err)
	}
	clusters := slices.ContainsFunc(crds.Items, func(crd apiextensionsv1.CustomResourceDefinition) bool {
		return clusterapi.IsCluster(schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind})
	})
	for i := range crds.Items {
		crd := &crds.Items[i]
		if !strings.HasSuffix(crd.Spec.Group, fluxGroups) && served[crd.Name] == nil {
			continue
		}
		if of := served[crd.Name]; of != nil && strings.HasSuffix(crd.Spec.Group, fluxGroups) && controllerOf(crd.Spec.Group, crd.Spec.Names.Kind) == "" {
			if version := versionOf(of); !serves(crd, version) {
				f.Outdated = append(f.Outdated, crd.Spec.Names.Kind+" "+version)
			}
		}
		found, err := listOf(ctx, c, schema.GroupVersionKind{Group: crd.Spec.Group, Version: storedVersion(crd), Kind: crd.Spec.Names.Kind})
		if err != nil {
			return err
		}
		f.count(schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}, served[crd.Name] != nil, clusters, found)
	}
	slices.Sort(f.Annotated)
	slices.Sort(f.Held)
	slices.Sort(f.Unseen)
	slices.Sort(f.UnseenSuspended)
	return nil
}

// controllerOf is the controller of a kind that an installation of Flux may lack; empty for a kind
// of those that each has.
func controllerOf(group, kind string) string {
	switch {
	case group == notificationv1.GroupVersion.Group:
		return "notification-controller"
	case group == generatorv1.GroupVersion.Group:
		return generator
	case group == automationv1.GroupVersion.Group && kind == automationv1.ImageUpdateAutomationKind:
		return "image-automation-controller"
	case group == reflectorv1.GroupVersion.Group:
		return "image-reflector-controller"
	}
	return ""
}

// versionOf is the version of one of our definitions, of which each of Flux's has one.
func versionOf(crd *unstructured.Unstructured) string {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		if v, ok := v.(map[string]any); ok && v["storage"] == true {
			name, _ := v["name"].(string)
			return name
		}
	}
	return ""
}

func serves(crd *apiextensionsv1.CustomResourceDefinition, version string) bool {
	return slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version && v.Served })
}

func storedVersion(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// count takes in the objects of a kind. clusters: the tier has Clusters.
func (f *Facts) count(of schema.GroupKind, served, clusters bool, objects []unstructured.Unstructured) {
	kind := of.Kind
	switch k := (Kind{kind, len(objects), controllerOf(of.Group, kind)}); {
	case len(objects) == 0:
		return
	case of.Group == v1alpha1.GroupVersion.Group && kind != "Layer" && kind != "Child":
		f.Ours = append(f.Ours, k)
		return
	case kind == "Layer":
		f.Layers = len(objects)
		return
	case kind == "Child":
		f.Children = len(objects)
		return
	case served:
		f.Served = append(f.Served, k)
		if n := sharded(objects); n > 0 && k.Controller == "" {
			f.Sharded = append(f.Sharded, Kind{kind, n, ""})
		}
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
		parted := clusters && hasParts(u)
		if parted {
			f.Parted++
		}
		h, _ := v1alpha1.HeldOf(u)
		f.Kept = f.Kept || h.Kept != nil && prunes(u) && unseen(u) == ""
		name := fmt.Sprintf("%s %s/%s", kind, u.GetNamespace(), u.GetName())
		texts := held(u)
		for _, text := range texts {
			f.Held = append(f.Held, name+" "+text)
		}
		if why := unseen(u); parted && why != "" && len(texts) == 0 {
			text := name + " has parts or keys of Clusters, and nobody knows which of them would go, as it " + why
			if suspended(u) {
				f.UnseenSuspended = append(f.UnseenSuspended, text)
			} else {
				f.Unseen = append(f.Unseen, text)
			}
		}
		for key := range u.GetAnnotations() {
			// What the agent wrote itself says nothing of what a person wants.
			if strings.HasPrefix(key, cascadeGroup) && !slices.Contains(written(), key) {
				f.Annotated = append(f.Annotated, name+" has "+key)
			}
		}
	}
}

// sharded counts the objects of shards.
func sharded(objects []unstructured.Unstructured) int {
	n := 0
	for i := range objects {
		if objects[i].GetLabels()[shardLabel] != "" {
			n++
		}
	}
	return n
}

// held says what an agent holds back for an object. What cannot be read is held, too, and what
// a condition alone tells of: not all of it has a record, and an earlier agent made none.
func held(u *unstructured.Unstructured) []string {
	h, known := v1alpha1.HeldOf(u)
	var texts []string
	if !known && u.GetAnnotations()[v1alpha1.HeldAnnotation] != "" {
		texts = append(texts, "holds something that this version cannot read")
	}
	switch p := h.Prune; {
	case p != nil:
		texts = append(texts, fmt.Sprintf("holds the delete of %d objects, and of %d protected ones", p.Deletes, p.Protected))
	case isTrue(u, v1alpha1.PruneBlockedCondition):
		texts = append(texts, "holds deletes before a person has decided")
	}
	switch c := h.Create; {
	case c != nil && len(c.Clusters) > 0:
		texts = append(texts, "does not create "+listed("Cluster ", c.Clusters)+", before a person has decided")
	case isTrue(u, v1alpha1.CreateHeldCondition):
		texts = append(texts, "does not create Clusters before a person has decided")
	}
	if c := h.Create; c != nil && len(c.ManagedElsewhere) > 0 {
		texts = append(texts, "does not create "+listed("Cluster ", c.ManagedElsewhere)+", which another management cluster manages")
	}
	if h.HandOver != nil {
		texts = append(texts, "keeps objects until another owner has them")
	}
	kept := h.Kept
	if !prunes(u) {
		kept = nil
	}
	switch why := unseen(u); {
	case kept != nil && why != "":
		texts = append(texts, "kept "+listed("", kept.Objects)+" until something else is gone when it was last applied, and "+why)
	case kept != nil:
		texts = append(texts, "keeps "+listed("", kept.Objects)+" until something else is gone")
	}
	return texts
}

// hasParts reports whether an owner would delete something that a Cluster may be made of, or needs.
func hasParts(u *unstructured.Unstructured) bool {
	return prunes(u) && slices.ContainsFunc(entriesOf(u), func(e entry) bool {
		id, err := object.ParseObjMetadata(e.id)
		return err != nil || clusterapi.IsGroup(id.GroupKind.Group) ||
			id.GroupKind == schema.GroupKind{Kind: "Secret"} || id.GroupKind == schema.GroupKind{Group: v1alpha1.Group, Kind: credential.Kind}
	})
}

// prunes reports whether an owner deletes what is no longer declared. A release always does.
func prunes(u *unstructured.Unstructured) bool {
	prune, _, _ := unstructured.NestedBool(u.Object, "spec", "prune")
	return prune || u.GetKind() != "Kustomization"
}

func suspended(u *unstructured.Unstructured) bool {
	is, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend")
	return is
}

// unseen says why nobody looks at what an owner would delete, and what to do; empty if somebody does.
func unseen(u *unstructured.Unstructured) string {
	again := ", so that it is looked at again"
	if u.GetKind() == "Kustomization" {
		again += ", or set its spec.prune to false"
	}
	if suspended(u) {
		return "is suspended: resume it" + again
	}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range list {
		has, _ := c.(map[string]any)
		// A check of the health, and a delete that fails, come after the look.
		if reason, _ := has["reason"].(string); has["type"] == fluxmeta.ReadyCondition && has["status"] == string(metav1.ConditionFalse) &&
			reason != fluxmeta.HealthCheckFailedReason && reason != fluxmeta.PruneFailedReason {
			return "is not applied (" + reason + "): correct that" + again
		}
	}
	return ""
}

// isTrue reports whether the status of an object has a condition that is true.
func isTrue(u *unstructured.Unstructured, condition string) bool {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	return slices.ContainsFunc(list, func(c any) bool {
		has, _ := c.(map[string]any)
		return has["type"] == condition && has["status"] == string(metav1.ConditionTrue)
	})
}

// listed names the first of some objects.
func listed(kind string, names []string) string {
	const most = 3
	text := kind + strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
