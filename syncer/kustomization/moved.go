package kustomization

import (
	"context"
	"fmt"
	"slices"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// movedPoll is the pause between two looks at objects that another owner took over: should that one drop
// them, they come back before it deletes them, for which it waits longer.
const movedPoll = inventory.HandOverBound / 2

// moved are the ids, sorted, of those objects that another owner took over, of objects that older revisions have and
// the newest one lacks: a later commit moved them there. Who applied them as of an older revision as well would
// have the two of them change what they are in turn, for as long as some Cluster is behind.
func (r *Reconciler) moved(ctx context.Context, run *run, former []*unstructured.Unstructured) ([]string, error) {
	if len(former) == 0 {
		return nil, nil
	}
	others, err := r.Claims.Recording(ctx, run.Obj, inventory.OfAll(former))
	if err != nil {
		return nil, err
	}
	var moved []string
	view := &source.View{}
	for _, u := range former {
		e := inventory.Of(u)
		if len(others[e.ID()]) == 0 {
			continue
		}
		live := &metav1.PartialObjectMetadata{}
		live.SetGroupVersionKind(u.GroupVersionKind())
		err := r.Targets.Local.Get(ctx, client.ObjectKeyFromObject(u), live)
		switch {
		case apierrors.IsNotFound(err), apimeta.IsNoMatchError(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("cannot tell who applied %s: %w", e, err)
		}
		by := []string{apply.Marked(live.Labels, helmv2.GroupVersion.Group), apply.Marked(live.Labels, kustomizev1.GroupVersion.Group)}
		if slices.ContainsFunc(others[e.ID()], func(o client.Object) bool {
			return slices.Contains(by, claim.EntryOf(o).String()) && r.Claims.Declares(ctx, o, view, e)
		}) {
			moved = append(moved, e.ID())
		}
	}
	slices.Sort(moved)
	return moved, nil
}

// looksAgain reports whether objects were left to another owner, which nothing tells of if it drops them.
func (c *composed) looksAgain() bool { return c != nil && len(c.moved) > 0 }

// nextLook is when to look again, however the reconcile ended, that would come back after a time; zero is never.
func (c *composed) nextLook(after time.Duration) time.Duration {
	if c.looksAgain() && (after == 0 || after > movedPoll) {
		return movedPoll
	}
	return after
}
