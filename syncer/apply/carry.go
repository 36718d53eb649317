package apply

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

const (
	releaseGroup = "helm.toolkit.fluxcd.io"
	// carriedMost bounds how many Kustomizations and HelmReleases below one are
	// looked into. Beyond that it holds too much to go by itself.
	carriedMost = 200
)

// isSync reports whether objects of a kind take others along when they are
// deleted, by their inventory.
func isSync(e inventory.Entry) bool {
	return e.Group == releaseGroup && e.Kind == "HelmRelease" || e.Group == group && e.Kind == "Kustomization"
}

// carries counts what goes with a Kustomization or HelmRelease, and with those
// that it declares, and names what of that is protected. An object that another
// owner answers for stays, as it does when a Kustomization was only renamed, or
// when the one that asks declares by itself what it left to it before.
func (a *Applier) carries(ctx context.Context, e inventory.Entry, u *unstructured.Unstructured, k *lookups) (holds []string, objects int, err error) {
	seen := map[string]bool{e.ID(): true}
	for queue := []*unstructured.Unstructured{u}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if leaves(at) {
			continue
		}
		entries, err := recorded(at)
		if err != nil {
			return nil, 0, err
		}
		elsewhere := appliesElsewhere(at)
		if !elsewhere {
			scopes, err := a.facts.scopes(entries, nil)
			if err != nil {
				return nil, 0, err
			}
			entries = scopes.ofAll(entries)
		}
		for _, c := range entries {
			if !elsewhere && k.rendered[c.ID()] {
				continue
			}
			if k.claimed != nil && !elsewhere {
				if by, err := k.claimed(ctx, c, inventory.Of(at)); err != nil {
					return nil, 0, err
				} else if by.Owner != "" {
					continue
				}
			}
			objects++
			if inventory.Protected(c, inventory.Live{}, elsewhere) {
				holds = append(holds, c.String())
			}
			if elsewhere || !isSync(c) && !isLayer(c) && !isCredential(c) && !isSecret(c) || seen[c.ID()] {
				continue
			}
			below := c.Object()
			if !isSecret(c) { // its name tells who reads it
				seen[c.ID()] = true
				if len(seen) > carriedMost {
					return append(holds, c.String()), objects, nil
				}
				if err := a.facts.Get(ctx, client.ObjectKeyFromObject(below), below); confirmsAbsence(err) {
					continue
				} else if err != nil {
					return nil, 0, fmt.Errorf("cannot read %s to tell what goes with it: %w", c, err)
				}
			}
			switch {
			case isSync(c):
				queue = append(queue, below)
			case isLayer(c):
				layerHolds, layerObjects, _ := along(c, below)
				holds, objects = append(holds, layerHolds...), objects+layerObjects
			default:
				ofCluster, credential, err := a.neededBy(ctx, c, below, false, k)
				if err != nil {
					return nil, 0, err
				}
				if ofCluster != "" || credential != "" {
					holds = append(holds, c.String())
				}
			}
		}
	}
	return holds, objects, nil
}

// layerProtected is on how many children a Layer is protected: as many as make the Layer
// itself hold its removal until a person approves. A Layer that is being deleted cannot be
// kept any more, so it is better held before.
const layerProtected = 3

func isLayer(e inventory.Entry) bool { return e.Group == v1alpha1.Group && e.Kind == "Layer" }

// along tells what a Layer takes along from its children when it is deleted, by its
// status.
func along(e inventory.Entry, u *unstructured.Unstructured) (holds []string, objects int, text string) {
	policy, _, _ := unstructured.NestedString(u.Object, "spec", "deletionPolicy")
	suspended, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend")
	if policy != string(v1alpha1.DeletionDelete) || suspended {
		return nil, 0, ""
	}
	children, known, _ := unstructured.NestedInt64(u.Object, "status", "onRecord", "children")
	if !known {
		// An earlier version wrote the status.
		children, _, _ = unstructured.NestedInt64(u.Object, "status", "children", "total")
	}
	if children == 0 {
		return nil, 0, ""
	}
	count, _, _ := unstructured.NestedInt64(u.Object, "status", "onRecord", "objects")
	text = fmt.Sprintf("with %s would go %d objects on %d children", e, count, children)
	if children >= layerProtected {
		holds = []string{text}
	}
	return holds, int(max(count, children)), text
}

// holding says that a Layer holds its removal from children until a person approves;
// empty if it does not.
func holding(u *unstructured.Unstructured) string {
	held, _, _ := unstructured.NestedBool(u.Object, "status", "removal", "held")
	waiting, _, _ := unstructured.NestedInt64(u.Object, "status", "removal", "waiting")
	if suspended, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend"); !held || suspended {
		return ""
	}
	return fmt.Sprintf("Layer/%s/%s is being deleted, and its removal from %d children is held: look at it with: cascade approve removal %s -n %s",
		u.GetNamespace(), u.GetName(), waiting, u.GetName(), u.GetNamespace())
}

// leaves reports whether a Kustomization or HelmRelease that is deleted leaves
// what it applied. A HelmRelease that is suspended now may be resumed to be
// deleted.
func leaves(u *unstructured.Unstructured) bool {
	if u.GroupVersionKind().Group != group {
		return false
	}
	policy, _, _ := unstructured.NestedString(u.Object, "spec", "deletionPolicy")
	prune, _, _ := unstructured.NestedBool(u.Object, "spec", "prune")
	return policy == "Orphan" || (policy == "" || policy == "MirrorPrune") && !prune
}

// recorded reads the inventory in the status of a Kustomization or HelmRelease.
func recorded(u *unstructured.Unstructured) ([]inventory.Entry, error) {
	refs, _, err := unstructured.NestedSlice(u.Object, "status", "inventory", "entries")
	if err != nil {
		return nil, fmt.Errorf("cannot read inventory of %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	entries := make([]inventory.Entry, 0, len(refs))
	for _, r := range refs {
		ref, _ := r.(map[string]any)
		id, _ := ref["id"].(string)
		version, _ := ref["v"].(string)
		e, err := inventory.Parse(id, version)
		if err != nil {
			return nil, fmt.Errorf("cannot read inventory of %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}
