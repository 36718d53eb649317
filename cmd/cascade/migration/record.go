package migration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/fluxcd/cli-utils/pkg/object"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Record has the UID of every object that Flux's kinds have applied, by its id in an inventory.
type Record map[string]types.UID

// written are the annotations that the agent writes itself.
func written() []string {
	return []string{v1alpha1.HeldAnnotation, v1alpha1.DriftAnnotation, v1alpha1.InputsAnnotation}
}

// entry is an object of an inventory.
type entry struct {
	id, version string
}

// entriesOf are the entries of an object's inventory.
func entriesOf(u *unstructured.Unstructured) []entry {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "inventory", "entries")
	var entries []entry
	for _, item := range list {
		if e, ok := item.(map[string]any); ok {
			id, _ := e["id"].(string)
			version, _ := e["v"].(string)
			entries = append(entries, entry{id, version})
		}
	}
	return entries
}

// owners are the kinds with inventories, and those that a record has besides.
func owners() []schema.GroupKind {
	return []schema.GroupKind{
		{Group: "kustomize.toolkit.fluxcd.io", Kind: "Kustomization"},
		{Group: "helm.toolkit.fluxcd.io", Kind: "HelmRelease"},
	}
}

// Take records the objects of all inventories, and those who have them. The storage of a Helm
// release is not in it, because each upgrade adds to it.
func Take(ctx context.Context, c client.Client, except func(schema.GroupKind, client.ObjectKey) bool) (Record, error) {
	r := Record{}
	for _, gk := range owners() {
		mapping, err := c.RESTMapper().RESTMapping(gk)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot find kind %s: %w", gk.Kind, err)
		}
		list, err := listOf(ctx, c, mapping.GroupVersionKind)
		if err != nil {
			return nil, err
		}
		for i := range list {
			u := &list[i]
			r[object.UnstructuredToObjMetadata(u).String()] = u.GetUID()
			for _, e := range entriesOf(u) {
				if err := r.add(ctx, c, e, except); err != nil {
					return nil, err
				}
			}
		}
	}
	return r, nil
}

func (r Record) add(ctx context.Context, c client.Client, e entry, except func(schema.GroupKind, client.ObjectKey) bool) error {
	id, err := object.ParseObjMetadata(e.id)
	if err != nil {
		return fmt.Errorf("cannot read entry %q of an inventory: %w", e.id, err)
	}
	if except(id.GroupKind, client.ObjectKey{Namespace: id.Namespace, Name: id.Name}) {
		return nil
	}
	uid, err := uidOf(ctx, c, id)
	if err != nil {
		return err
	}
	if uid != "" {
		r[e.id] = uid
	}
	return nil
}

// uidOf reads the UID of an object, empty if it is not there.
func uidOf(ctx context.Context, c client.Client, id object.ObjMetadata) (types.UID, error) {
	mapping, err := c.RESTMapper().RESTMapping(id.GroupKind)
	if meta.IsNoMatchError(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot find kind %s: %w", id.GroupKind, err)
	}
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(mapping.GroupVersionKind)
	err = c.Get(ctx, client.ObjectKey{Namespace: id.Namespace, Name: id.Name}, o)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read %s %s/%s: %w", id.GroupKind.Kind, id.Namespace, id.Name, err)
	}
	return o.UID, nil
}

// Changed names the objects of a record that are gone or are others now.
func (r Record) Changed(ctx context.Context, c client.Client) ([]string, error) {
	var changed []string
	for text, was := range r {
		id, err := object.ParseObjMetadata(text)
		if err != nil {
			return nil, fmt.Errorf("cannot read %q of the record: %w", text, err)
		}
		uid, err := uidOf(ctx, c, id)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s %s/%s", id.GroupKind.Kind, id.Namespace, id.Name)
		switch {
		case uid == "":
			changed = append(changed, name+" is gone")
		case uid != was:
			changed = append(changed, name+" is another one")
		}
	}
	slices.Sort(changed)
	return changed, nil
}

// Load reads a record; nil if there is none.
func Load(file string) (Record, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the record: %w", err)
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("cannot read the record %s: %w", file, err)
	}
	return r, nil
}

// Save writes a record.
func (r Record) Save(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write the record: %w", err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("cannot write the record: %w", err)
	}
	return nil
}
