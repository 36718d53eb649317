package release

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// holdCreation ends the call if an action would create Clusters that may exist
// already.
func (n *run) holdCreation(ctx context.Context, next Action, diff jsondiff.DiffSet) (*Outcome, error) {
	held, err := n.creation(ctx, next, diff)
	if err != nil {
		conditions.MarkFalse(n.obj, meta.ReadyCondition, "StateError", "%s", err)
		return nil, err
	}
	if held.Withholding() || held.Blocked() {
		n.markCreationHeld(held)
		return &Outcome{Creation: held}, nil
	}
	conditions.Delete(n.obj, v1alpha1.CreateHeldCondition)
	return nil, nil
}

// creation finds out whether an action would create Clusters that may exist
// already. A release is applied as a whole or not at all, so that one such
// Cluster holds all of it. nil means that nothing is held.
func (n *run) creation(ctx context.Context, next Action, diff jsondiff.DiffSet) (*inventory.Creation, error) {
	if !next.creates() || n.req.FirstSync == nil {
		return nil, nil
	}
	// The release is rendered for this alone, which is left out where no Cluster is
	// in doubt. The client that creates objects checks once more in any case.
	if quiet, err := n.req.FirstSync.Quiet(ctx); quiet || err != nil {
		return nil, err
	}
	objects, err := n.objectsAfter(ctx, next, diff)
	if err != nil {
		// The action will fail for the same reason, and reports it.
		n.log.V(1).Info("cannot tell what an action would create", "action", next, "reason", n.text(err))
		return nil, nil
	}
	record, err := n.req.FirstSync.For(ctx, objects)
	if err != nil {
		return nil, err
	}
	return n.guard.facts.Creation(ctx, objects, record)
}

// objectsAfter are the objects that an action would apply.
func (n *run) objectsAfter(ctx context.Context, next Action, diff jsondiff.DiffSet) ([]*unstructured.Unstructured, error) {
	switch next {
	case Correct:
		var objects []*unstructured.Unstructured
		for _, d := range diff {
			if u, ok := d.DesiredObject.(*unstructured.Unstructured); ok && d.Type == jsondiff.DiffTypeCreate {
				objects = append(objects, u)
			}
		}
		return objects, nil
	case Rollback:
		to := n.obj.Status.History.Previous(n.obj.GetUpgrade().GetRemediation().MustIgnoreTestFailures(n.obj.GetTest().IgnoreFailures))
		if to == nil {
			return nil, errNoLatest
		}
		rel, err := n.store.read(ctx, n.storageNamespace, to.Name, to.Version)
		if err != nil {
			return nil, err
		}
		objects, _, err := objectsOf(rel, n.mapper)
		return objects, err
	}
	rel, err := n.rehearse(ctx, next)
	if err != nil {
		return nil, err
	}
	objects, _, err := objectsOf(rel, n.mapper)
	if err != nil {
		return nil, err
	}
	for _, hook := range rel.Hooks {
		hooked, _, err := objectsIn(rel, hook.Manifest, n.mapper)
		if err != nil {
			return nil, err
		}
		objects = append(objects, hooked...)
	}
	return objects, nil
}

// rehearse renders what an install or upgrade would make. The attempt does not
// count as one.
func (n *run) rehearse(ctx context.Context, next Action) (*helmrelease.Release, error) {
	before := n.obj.Status.LastAttemptedReleaseAction
	defer func() { n.obj.Status.LastAttemptedReleaseAction = before }()
	n.obj.Status.LastAttemptedReleaseAction = n.countsAs(next)
	return n.helm(ctx, func(*helmrelease.Release) {}).rehearse(ctx, next)
}

// markCreationHeld records that a release waits for a person.
func (n *run) markCreationHeld(c *inventory.Creation) {
	obj, message := n.obj, c.Message()
	isNew := conditions.GetMessage(obj, v1alpha1.CreateHeldCondition) != message
	conditions.Delete(obj, meta.ReconcilingCondition)
	conditions.MarkTrue(obj, v1alpha1.CreateHeldCondition, v1alpha1.ReasonCreateHeld, "%s", message)
	conditions.MarkFalse(obj, meta.ReadyCondition, v1alpha1.ReasonCreateHeld, "%s", message)
	conditions.MarkStalled(obj, v1alpha1.ReasonCreateHeld, "%s", message)
	if isNew {
		n.Events.Eventf(obj, corev1.EventTypeWarning, v1alpha1.ReasonCreateHeld, "%s", message)
	}
}

// errCreateHeld is wrapped by errors of actions that would build a cluster that may
// exist already.
var errCreateHeld = errors.New("creation is held")

// mayCreate is an error if one of the objects is not to be created. It is
// called right before the create: an object that existed when the action began
// may have gone since.
func (k *kubeClient) mayCreate(list kube.ResourceList) error {
	if k.firstSync == nil {
		return nil
	}
	objects := unstructuredOf(list)
	record, err := k.firstSync.For(k.ctx, objects)
	if err != nil {
		return err
	}
	c, err := k.guard.facts.Creation(k.ctx, objects, record)
	if err != nil {
		return err
	}
	if c.Withholding() || c.Blocked() {
		return fmt.Errorf("%w: %s", errCreateHeld, c.Message())
	}
	return nil
}

// unstructuredOf are the objects of a list that have a form without types: all of Cluster
// API are among them.
func unstructuredOf(list kube.ResourceList) []*unstructured.Unstructured {
	var objects []*unstructured.Unstructured
	for _, info := range list {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(info.Object)
		if err != nil {
			continue
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(info.Mapping.GroupVersionKind)
		u.SetName(info.Name)
		u.SetNamespace(entryOf(info).Namespace)
		objects = append(objects, u)
	}
	return objects
}
