package providers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrStorageVersion is wrapped by the error of a definition that lacks the version in which
// the cluster stores objects.
var ErrStorageVersion = errors.New("storage version")

// Definition is a CustomResourceDefinition among components, as far as it takes to know
// whether objects outlive it.
type Definition struct {
	Name, Group, Kind string
	// Versions that it has, served or not.
	Versions []string
}

// stored is what an API server says of a definition that it has: the version in which it
// stores objects, and those in which some may still be stored.
type stored struct {
	storage  string
	versions []string
}

// drops reports whether objects have to be stored anew before the definition replaces the
// one that is there, because some may be stored in a version that it does not have. The API
// server refuses a definition that lacks one of status.storedVersions
// (https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#upgrade-existing-objects-to-a-new-stored-version).
func (d Definition) drops(there stored) (bool, error) {
	if !slices.Contains(d.Versions, there.storage) {
		return false, fmt.Errorf("cannot replace CustomResourceDefinition %s: the new one lacks the %w %s of the one that is there; upgrade to a version of the provider that has both, and then to this one",
			d.Name, ErrStorageVersion, there.storage)
	}
	return slices.ContainsFunc(there.versions, func(v string) bool { return !slices.Contains(d.Versions, v) }), nil
}

// Stored has what was stored anew, by the UID of the object: in which version, and what its
// resourceVersion was after that. One that has another by now may be stored as it was before, as
// where etcd was restored.
type Stored map[types.UID]string

// migrationPage is how many objects are listed by one request.
const migrationPage = 500

// Migrate stores the objects of a kind anew, if the definition drops a version in which some
// of them may be stored, and says so in the status of the definition that is there. Any write
// of an object stores it in the present storage version; this one changes nothing else. done
// has what an earlier call stored: a call that runs out of time is gone on with.
func (d Definition) Migrate(ctx context.Context, child client.Client, done Stored) error {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := child.Get(ctx, client.ObjectKey{Name: d.Name}, crd); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("cannot read CustomResourceDefinition %s: %w", d.Name, err)
	}
	there, err := storedOf(crd)
	if err != nil {
		return fmt.Errorf("cannot read CustomResourceDefinition %s: %w", d.Name, err)
	}
	if drops, err := d.drops(there); err != nil || !drops {
		return err
	}
	if err := d.store(ctx, child, there.storage, done); err != nil {
		return err
	}
	before := crd.DeepCopy()
	if err := unstructured.SetNestedStringSlice(crd.Object, []string{there.storage}, "status", "storedVersions"); err != nil {
		return fmt.Errorf("cannot read CustomResourceDefinition %s: %w", d.Name, err)
	}
	// Whoever changed the definition meanwhile may have changed the storage version.
	if err := child.Status().Patch(ctx, crd, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("cannot write the stored versions of CustomResourceDefinition %s: %w", d.Name, err)
	}
	return nil
}

// store writes each object of the kind once, as it is.
func (d Definition) store(ctx context.Context, child client.Client, version string, done Stored) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: d.Group, Version: version, Kind: d.Kind + "List"})
	for {
		if err := child.List(ctx, list, client.Limit(migrationPage), client.Continue(list.Continue)); err != nil {
			return fmt.Errorf("cannot list objects of kind %s, to store them anew: %w", d.Kind, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if done[o.UID] == version+" at "+o.ResourceVersion {
				continue
			}
			switch err := child.Patch(ctx, o, asItIs(o)); {
			case err == nil:
				done[o.UID] = version + " at " + o.ResourceVersion
			case apierrors.IsConflict(err), apierrors.IsNotFound(err):
				// Whoever writes it, or deletes it, meanwhile does the same.
			default:
				return fmt.Errorf("cannot store %s %s anew: %w", d.Kind, client.ObjectKeyFromObject(o), err)
			}
		}
		if list.Continue == "" {
			return nil
		}
	}
}

// asItIs is a patch that changes nothing, of the very object that was seen.
func asItIs(o *metav1.PartialObjectMetadata) client.Patch {
	text, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion}}) // of strings
	return client.RawPatch(types.MergePatchType, text)
}

// storedOf reads a definition that is in a cluster.
func storedOf(crd *unstructured.Unstructured) (stored, error) {
	var s stored
	var err error
	if s.versions, _, err = unstructured.NestedStringSlice(crd.Object, "status", "storedVersions"); err != nil {
		return s, err
	}
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		return s, err
	}
	for _, v := range versions {
		if v, _ := v.(map[string]any); v["storage"] == true {
			s.storage, _ = v["name"].(string)
		}
	}
	if s.storage == "" {
		return s, errors.New("it has no storage version")
	}
	return s, nil
}

// definedBy are the definitions among components.
func definedBy(objects []*unstructured.Unstructured) ([]Definition, error) {
	var all []Definition
	for _, u := range objects {
		if gvk := u.GroupVersionKind(); gvk.Kind != "CustomResourceDefinition" || gvk.Group != "apiextensions.k8s.io" {
			continue
		}
		d := Definition{Name: u.GetName()}
		var err1, err2, err3 error
		d.Group, _, err1 = unstructured.NestedString(u.Object, "spec", "group")
		d.Kind, _, err2 = unstructured.NestedString(u.Object, "spec", "names", "kind")
		versions, _, err3 := unstructured.NestedSlice(u.Object, "spec", "versions")
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("cannot read CustomResourceDefinition %s: %w", u.GetName(), err)
		}
		for _, v := range versions {
			v, _ := v.(map[string]any)
			if name, _ := v["name"].(string); name != "" {
				d.Versions = append(d.Versions, name)
			}
		}
		all = append(all, d)
	}
	return all, nil
}
