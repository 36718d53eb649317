package graph

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Portable is an object as it can be made elsewhere: without its status and without what an
// API server writes. References to owners are those of here; see Rebase.
func Portable(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := u.DeepCopy()
	delete(out.Object, "status")
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "generateName", "creationTimestamp", "managedFields", "selfLink", "deletionTimestamp",
		"deletionGracePeriodSeconds",
	} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	// Those of the garbage collector are about a deletion here.
	finalizers := slices.DeleteFunc(out.GetFinalizers(), func(f string) bool { return f == "foregroundDeletion" || f == "orphan" })
	if len(finalizers) == 0 {
		unstructured.RemoveNestedField(out.Object, "metadata", "finalizers")
	} else {
		out.SetFinalizers(finalizers)
	}
	return out
}

// Rebase makes the owners of an object those of the other side. uids has the UID there for
// each UID here. It fails, and changes nothing, if an owner is not there: the object would
// be collected as garbage.
func Rebase(u *unstructured.Unstructured, uids map[types.UID]types.UID) error {
	refs := u.GetOwnerReferences()
	if len(refs) == 0 {
		return nil
	}
	for i, ref := range refs {
		uid, ok := uids[ref.UID]
		if !ok || uid == "" {
			return fmt.Errorf("cannot give %s its owner %s %s: it is not on the other side", nameOf(u), ref.Kind, ref.Name)
		}
		refs[i].UID = uid
	}
	u.SetOwnerReferences(refs)
	return nil
}
