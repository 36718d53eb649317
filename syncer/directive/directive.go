// Package directive knows the annotations and labels by which an object tells
// the engine how to treat it, as Flux defines them.
//
// The package is pure. A directive counts as an annotation and as a label, and
// its value in any case of letters.
package directive

import (
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Group is Flux's API group of Kustomizations, which is the prefix of the keys.
const Group = "kustomize.toolkit.fluxcd.io"

const (
	reconcileKey = Group + "/reconcile"
	pruneKey     = Group + "/prune"
	ssaKey       = Group + "/ssa"
	forceKey     = Group + "/force"
	disabled     = "disabled"
	enabled      = "enabled"
	ignore       = "Ignore"
	merge        = "Merge"
	ifNotPresent = "IfNotPresent"
)

// Skip selects objects that are not to be applied at all.
func Skip() map[string]string { return map[string]string{reconcileKey: disabled, ssaKey: ignore} }

// IfNotPresent selects objects that are to be created and left alone after that.
func IfNotPresent() map[string]string { return map[string]string{ssaKey: ifNotPresent} }

// Force selects objects that may be re-created where a field is immutable.
func Force() map[string]string { return map[string]string{forceKey: enabled} }

// Merge selects objects whose fields of other managers are not taken over.
func Merge() map[string]string { return map[string]string{ssaKey: merge} }

// keep selects objects that are not to be pruned.
func keep() map[string]string {
	return map[string]string{pruneKey: disabled, reconcileKey: disabled, ssaKey: ignore}
}

// Selects reports whether an object carries one of the directives of a selector.
func Selects(selector map[string]string, u *unstructured.Unstructured) bool {
	return ssautil.AnyInMetadata(u, selector)
}

// InMetadata is Selects for labels and annotations without their object.
func InMetadata(selector, labels, annotations map[string]string) bool {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetLabels(labels)
	u.SetAnnotations(annotations)
	return Selects(selector, u)
}

// Keeps reports whether labels and annotations ask that the object is not pruned.
func Keeps(labels, annotations map[string]string) bool {
	return InMetadata(keep(), labels, annotations)
}
