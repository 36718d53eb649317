package apply

import (
	"context"
	"fmt"
	"strings"

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
// owner answers for stays, as it does when a Kustomization was only renamed.
func (a *Applier) carries(ctx context.Context, e inventory.Entry, u *unstructured.Unstructured, claimed Claims) (holds []string, objects int, err error) {
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
		_, elsewhere, _ := unstructured.NestedMap(at.Object, "spec", "kubeConfig")
		if !elsewhere {
			scopes, err := a.facts.scopes(entries, nil)
			if err != nil {
				return nil, 0, err
			}
			entries = scopes.ofAll(entries)
		}
		for _, c := range entries {
			if claimed != nil && !elsewhere {
				if by, err := claimed(ctx, c, inventory.Of(at)); err != nil {
					return nil, 0, err
				} else if by.Owner != "" {
					continue
				}
			}
			objects++
			lower := elsewhere && (strings.HasSuffix(c.Group, ".toolkit.fluxcd.io") || c.Group == v1alpha1.Group)
			if inventory.ProtectedKind(c.Group, c.Kind) || lower {
				holds = append(holds, c.String())
			}
			if elsewhere || !isSync(c) || seen[c.ID()] {
				continue
			}
			seen[c.ID()] = true
			if len(seen) > carriedMost {
				return append(holds, c.String()), objects, nil
			}
			below := c.Object()
			if err := a.facts.Get(ctx, client.ObjectKeyFromObject(below), below); confirmsAbsence(err) {
				continue
			} else if err != nil {
				return nil, 0, fmt.Errorf("cannot read %s to tell what goes with it: %w", c, err)
			}
			queue = append(queue, below)
		}
	}
	return holds, objects, nil
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
