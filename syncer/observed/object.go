package observed

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fluxcd/pkg/ssa"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
)

// Object is the metadata of an object in the cluster, as far as applying depends
// on it.
type Object struct {
	UID      types.UID
	Version  string
	Deleting bool
	// Skip: the object asks not to be reconciled; Force: to be re-created if
	// need be; Merge: not to have fields of other managers taken over.
	Skip, Force, Merge bool
	// Foreign: kubectl or a former engine manages fields that have to be taken
	// over before applying.
	Foreign bool
	// Kept are fields of kubectl's that are not taken over, unless they are declared.
	Kept Kept
	// FluxRelease is the release of Flux that the object is labelled with, empty if it has no
	// such label.
	FluxRelease string
}

// FluxRelease is the release of Flux that labels name, as flux version reads them.
func FluxRelease(labels map[string]string) string {
	if labels["app.kubernetes.io/part-of"] != "flux" {
		return ""
	}
	return labels["app.kubernetes.io/version"]
}

// Of reads the metadata of a live object.
func (r *Reader) Of(p *metav1.PartialObjectMetadata) *Object {
	is := func(selector map[string]string) bool { return directive.InMetadata(selector, p.Labels, p.Annotations) }
	o := &Object{
		UID: p.UID, Version: p.ResourceVersion, Deleting: p.DeletionTimestamp != nil,
		Skip: is(directive.Skip()), Force: is(directive.Force()), Merge: is(directive.Merge()),
		FluxRelease: FluxRelease(p.Labels),
	}
	if o.Merge {
		return o
	}
	o.Foreign = hasAny(p.Annotations, leftAnnotations()) || hasAny(p.Labels, leftLabels())
	for _, e := range p.ManagedFields {
		kept, _, rest := split(e, keepable(e, p.Namespace != ""))
		o.Kept |= kept
		if !r.takesOver(e) {
			continue
		}
		o.Foreign = o.Foreign || kept == 0 || rest != nil
	}
	return o
}

func hasAny(m map[string]string, keys []string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { _, ok := m[k]; return ok })
}

// takesOver reports whether the fields of a manager are taken over.
func (r *Reader) takesOver(e metav1.ManagedFieldsEntry) bool {
	if e.Subresource != "" {
		return false
	}
	for _, m := range r.managers {
		if e.Operation == m.OperationType && strings.HasPrefix(e.Manager, m.Name) {
			return true
		}
	}
	return false
}

// Cleanup is what has to be taken off an object of which Foreign is true.
func (r *Reader) Cleanup() ssa.ApplyCleanupOptions {
	return ssa.ApplyCleanupOptions{
		Annotations: leftAnnotations(), Labels: leftLabels(), FieldManagers: r.managers, Exclusions: directive.Merge(),
	}
}

// TakeOff leaves out of a declared object what is taken off the live one, or each apply would put
// back what the one before it took off. An object without any of that is not written to.
func TakeOff(u *unstructured.Unstructured) {
	annotations, labels := u.GetAnnotations(), u.GetLabels()
	annotated, labelled := hasAny(annotations, leftAnnotations()), hasAny(labels, leftLabels())
	if !annotated && !labelled || directive.Selects(directive.Merge(), u) {
		return
	}
	if annotated {
		u.SetAnnotations(without(annotations, leftAnnotations()))
	}
	if labelled {
		u.SetLabels(without(labels, leftLabels()))
	}
}

// without is nil if nothing else is in m.
func without(m map[string]string, keys []string) map[string]string {
	maps.DeleteFunc(m, func(k, _ string) bool { return slices.Contains(keys, k) })
	if len(m) == 0 {
		return nil
	}
	return m
}

// managersTakenOver are those of Flux's kustomize-controller: kubectl, its own
// updates of former days, and those that the caller names by prefix. Its documentation
// promises that what flux-client-side-apply applies stays.
func managersTakenOver(overrides []string) []ssa.FieldManager {
	managers := []ssa.FieldManager{
		{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationApply},
		{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationUpdate},
		{Name: "before-first-apply", OperationType: metav1.ManagedFieldsOperationUpdate},
		{Name: "kustomize-controller", OperationType: metav1.ManagedFieldsOperationUpdate},
	}
	for _, name := range overrides {
		managers = append(managers,
			ssa.FieldManager{Name: name, OperationType: metav1.ManagedFieldsOperationApply},
			ssa.FieldManager{Name: name, OperationType: metav1.ManagedFieldsOperationUpdate})
	}
	return managers
}

// leftAnnotations and leftLabels are what former engines left on objects. Flux
// removes them.
func leftAnnotations() []string {
	return []string{corev1.LastAppliedConfigAnnotation, directive.Group + "/checksum", "fluxcd.io/sync-checksum"}
}

func leftLabels() []string { return []string{"fluxcd.io/sync-gc-mark"} }

// Generation of an object, as far as it tells of changes: zero of a kind without one, and of a PriorityClass,
// which is at 1 for good. The API server never raises that, whatever is changed.
func Generation(kind schema.GroupKind, p *metav1.PartialObjectMetadata) int64 {
	if kind == (schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}) {
		return 0
	}
	return p.Generation
}

// Written identifies who manages which fields of an object, and since when, but for its status: the API
// server counts pods in the status of a ResourceQuota, with a write for each. It tells what of an object whose
// Generation is zero was changed. Whoever changes the value of a field of another takes the field from it
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management), and who has
// the same name another time, in seconds. Zero says nothing, as of an object that shows no managers.
func Written(p *metav1.PartialObjectMetadata) uint64 {
	sum := uint64(0)
	for _, e := range p.ManagedFields {
		if e.Subresource == "" && e.FieldsV1 != nil {
			since := int64(0)
			if e.Time != nil {
				since = e.Time.Unix()
			}
			d := digest.Of(e.Manager, string(e.Operation), e.APIVersion, e.FieldsV1.GetRawString(), strconv.FormatInt(since, 10))
			sum += binary.BigEndian.Uint64(d[:]) // their order depends on when they wrote
		}
	}
	return sum
}
