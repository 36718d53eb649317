// Package profile says what the inventory of clusters that SIG Multicluster defines
// (ClusterProfile, KEP-4322) has of a child.
//
// It is pure: a Child in, an object out. The kind has no Go module of ours to depend on, so
// that objects are unstructured.
//
// Invariants: a profile has nothing with which a cluster could be entered, neither a credential
// nor a provider of one; nothing but what stands in the Child; the same Child makes the same
// profile; and no text of a child is longer than the kind lets it be.
package profile

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Kind of profiles. Later versions of the inventory serve this one as well.
var Kind = schema.GroupVersionKind{Group: "multicluster.x-k8s.io", Version: "v1alpha1", Kind: "ClusterProfile"}

const (
	// Manager is the name under which all profiles are that an agent writes.
	Manager = "cascade"
	// ManagerLabel has it, for those who select.
	ManagerLabel = "x-k8s.io/cluster-manager"

	// labelsAnnotation names the labels that are ours, so that those which the Child loses go.
	labelsAnnotation = "cascade.dev/labels"

	// Conditions of a profile: its API server answers, and it has what its tier pushes.
	controlPlaneHealthy = "ControlPlaneHealthy"
	joined              = "Joined"

	// Names of properties that the inventory knows, and our own.
	clusterID = "clusterset.k8s.io/cluster-id"
	region    = "topology.kubernetes.io/region"
	provider  = "cascade.dev/provider"
	endpoint  = "cascade.dev/endpoint"
	revision  = "cascade.dev/revision"

	// mostValue and mostMessage bound texts in bytes, as the kind does.
	mostValue, mostMessage = 1024, 4096
)

// Of is the profile of a child, its status included. It is controlled by the Child, so that
// it goes with it.
func Of(child *v1alpha1.Child) *unstructured.Unstructured {
	u := Empty(child.Namespace, child.Name)
	u.SetLabels(labels(child.Labels))
	u.SetAnnotations(map[string]string{labelsAnnotation: strings.Join(slices.Sorted(maps.Keys(u.GetLabels())), ",")})
	u.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Child", Name: child.Name, UID: child.UID, Controller: new(true),
	}})
	u.Object["spec"] = map[string]any{"displayName": child.Name, "clusterManager": map[string]any{"name": Manager}}
	status := map[string]any{
		"conditions": []any{
			condition(controlPlaneHealthy, meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition), child),
			condition(joined, meta.FindStatusCondition(child.Status.Conditions, v1alpha1.SeededCondition), child),
		},
	}
	if v := bounded(child.Status.Version, mostValue); v != "" {
		status["version"] = map[string]any{"kubernetes": v}
	}
	if p := properties(child); len(p) > 0 {
		status["properties"] = p
	}
	u.Object["status"] = status
	return u
}

// Empty is a profile with nothing but its name.
func Empty(namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(Kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// labels are those of the Child, but for those that say who applied it or guard it, and the
// manager's.
func labels(of map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range of {
		domain, _, _ := strings.Cut(key, "/")
		if domain == v1alpha1.LayerLabelGroup || key == v1alpha1.ProtectedLabel || strings.HasSuffix(domain, ".toolkit.fluxcd.io") {
			continue
		}
		out[key] = value
	}
	out[ManagerLabel] = Manager
	return out
}

// condition is one of the Child under another name. What the Child does not say is unknown.
func condition(kind string, of *metav1.Condition, child *v1alpha1.Child) map[string]any {
	if of == nil {
		of = &metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonProgressing, LastTransitionTime: child.CreationTimestamp}
	}
	return map[string]any{
		"type": kind, "status": string(of.Status), "reason": of.Reason, "message": bounded(of.Message, mostMessage),
		"lastTransitionTime": of.LastTransitionTime.UTC().Format(time.RFC3339),
	}
}

func properties(child *v1alpha1.Child) []any {
	values := map[string]string{region: child.Status.Region, provider: child.Status.Provider, endpoint: child.Status.Endpoint}
	if id := child.Status.Identity; id != nil {
		values[clusterID] = id.KubeSystemUID
	}
	if report := child.Status.Report; report != nil {
		values[revision] = report.Revision
	}
	var all []any
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if value := bounded(values[name], mostValue); value != "" {
			all = append(all, map[string]any{"name": name, "value": value})
		}
	}
	return all
}

func bounded(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "")
}

// Controls reports whether a profile is that of a Child, and not one that somebody else made
// under its name. Without a UID it is that of any Child of the name.
func Controls(profile *unstructured.Unstructured, child metav1.ObjectMeta) bool {
	owner := metav1.GetControllerOf(profile)
	return owner != nil && owner.Kind == "Child" && strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group+"/") && owner.Name == child.Name &&
		(child.UID == "" || owner.UID == child.UID) && profile.GetLabels()[ManagerLabel] == Manager
}

// Patch is what a profile lacks of what is wanted, as JSON merge patches of the object and of
// its status; nil where it lacks nothing. Labels, and parts of the status, that others write
// stay. The patches hold for this object and no other one of its name.
func Patch(has, wants *unstructured.Unstructured) (object, status map[string]any) {
	labels, is := map[string]any{}, has.GetLabels()
	for key, value := range wants.GetLabels() {
		if got, ok := is[key]; !ok || got != value {
			labels[key] = value
		}
	}
	for key := range strings.SplitSeq(has.GetAnnotations()[labelsAnnotation], ",") {
		if _, kept := wants.GetLabels()[key]; !kept && key != "" {
			if _, there := is[key]; there {
				labels[key] = nil // the Child had it
			}
		}
	}
	names := wants.GetAnnotations()[labelsAnnotation]
	if len(labels) > 0 || has.GetAnnotations()[labelsAnnotation] != names || !equality.Semantic.DeepEqual(has.Object["spec"], wants.Object["spec"]) {
		object = map[string]any{
			"metadata": map[string]any{"uid": string(has.GetUID()), "labels": labels, "annotations": map[string]any{labelsAnnotation: names}},
			"spec":     wants.Object["spec"],
		}
	}
	parts := map[string]any{}
	for _, part := range []string{"conditions", "version", "properties"} {
		is, _, _ := unstructured.NestedFieldNoCopy(has.Object, "status", part)
		want, _, _ := unstructured.NestedFieldNoCopy(wants.Object, "status", part)
		if !equality.Semantic.DeepEqual(is, want) {
			parts[part] = want
		}
	}
	if len(parts) > 0 {
		status = map[string]any{"metadata": map[string]any{"uid": string(has.GetUID())}, "status": parts}
	}
	return object, status
}
