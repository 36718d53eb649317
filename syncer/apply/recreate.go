package apply

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/ssa"
	ssaerrors "github.com/fluxcd/pkg/ssa/errors"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// recreates reports whether an object may be deleted and created again, after an
// apply of it failed.
func (r *run) recreates(it *item, err error) bool {
	return err != nil && ssaerrors.IsImmutableError(err) && mayRecreate(it.object, it.live, r.options)
}

// recreate deletes an object of which an immutable field is to change, and creates it
// again. One that would be refused as well if it were new stays as it is. An object that does not
// go within a moment, because a finalizer holds it, is created by a later Sync: until then, the
// error is a WaitError.
func (r *run) recreate(ctx context.Context, it *item, refusal error) outcome {
	switch refused, err := r.refusedAnew(ctx, it, refusal); {
	case err != nil:
		return outcome{err: err}
	case refused:
		return outcome{err: ssaerrors.NewDryRunErr(refusal, it.object)}
	}
	switch protected, err := r.protects(ctx, it); {
	case err != nil:
		return outcome{err: fmt.Errorf("cannot find out whether %s is protected, so that it is not deleted: %w", ssautil.FmtUnstructured(it.object), err)}
	case protected != "":
		return outcome{err: fmt.Errorf("%w; it is not deleted to be created again, whatever force says: %s", ssaerrors.NewDryRunErr(refusal, it.object), protected)}
	}
	if err := r.client.MayDelete(); err != nil {
		return outcome{err: fmt.Errorf("cannot re-create %s: %w", ssautil.FmtUnstructured(it.object), err)}
	}
	resource := r.client.metadata.Resource(it.mapping.Resource).Namespace(it.key.Name.Namespace)
	err := resource.Delete(ctx, it.key.Name.Name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground),
		Preconditions:     &metav1.Preconditions{UID: &it.live.UID, ResourceVersion: &it.live.Version},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return outcome{err: fmt.Errorf("cannot delete %s to create it again: %w", ssautil.FmtUnstructured(it.object), err)}
	}
	for begin := r.now(); ; {
		_, err := resource.Get(ctx, it.key.Name.Name, metav1.GetOptions{})
		switch {
		case confirmsAbsence(err):
			got, err := r.patch(ctx, it)
			return sentOutcome(it, ssa.CreatedAction, got, err)
		case err != nil:
			return outcome{err: ssaerrors.NewDryRunErr(err, it.object)}
		case r.now().Sub(begin) > stageWait:
			return outcome{err: r.stillThere(it)}
		}
		if err := pause(ctx, stagePoll); err != nil {
			return outcome{err: err}
		}
	}
}

// protects tells why the live object is not to be deleted, and what to do; empty if it may be.
// It may destroy a cluster, or end the agent before it has created the object again. A
// confirmation counts as for a prune, but not for what belongs to the agent.
func (r *run) protects(ctx context.Context, it *item) (string, error) {
	e, k := r.scopes.of(inventory.Of(it.object)), &lookups{owned: r.owned}
	u, err := r.get(ctx, it.mapping, e)
	if confirmsAbsence(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	live, err := r.liveOf(ctx, e, u, k)
	if err != nil {
		return "", err
	}
	if err := r.weigh(ctx, e, u, r.owned, k, &live); err != nil {
		return "", err
	}
	switch {
	case live.OfCluster != "":
		return "a Cluster needs it; declare it as it is, or another one with another name", nil
	case inventory.OfAgent(e, live):
		return "it belongs to the agent; declare it as it is, or replace it by hand", nil
	case inventory.Protected(e, live, r.options.LowerTier) && !live.Confirmed:
		return fmt.Sprintf("it is protected; annotate it with %s: %s, or replace it by hand", v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed), nil
	}
	return "", nil
}

// refusedAnew reports whether the API server would refuse an object for the same cause if it were
// new: for a value that is not valid, or by a policy. It is asked to create one of another name, and not
// to keep it: an immutable field is told in the same words as any that is not valid. What only
// the object itself may have, such as a port of each node, is another cause.
func (r *run) refusedAnew(ctx context.Context, it *item, refusal error) (bool, error) {
	if !apierrors.IsInvalid(refusal) {
		return false, nil // somebody wrote meanwhile: the delete has a precondition
	}
	u := it.object.DeepCopy()
	u.SetName(nameAnew(it.key.Name.Name))
	body, err := encode(u)
	if err != nil {
		return false, err
	}
	_, err = r.client.metadata.Resource(it.mapping.Resource).Namespace(it.key.Name.Namespace).Patch(ctx, u.GetName(), types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: r.owner.FieldManager, Force: new(true), DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil, apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil // a quota that the object itself uses up, or a webhook that takes no such question
	case !apierrors.IsInvalid(err):
		return false, fmt.Errorf("cannot find out whether %s may be created again, so that it is not deleted: %w", ssautil.FmtUnstructured(it.object), err)
	}
	was, is := causesOf(refusal), causesOf(err)
	return len(was) == 0 || slices.ContainsFunc(was, func(c metav1.StatusCause) bool { return slices.Contains(is, c) }), nil
}

// causesOf are the causes of a refusal, each with its field.
func causesOf(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

// nameAnew is a name that nothing has, as short as names of all kinds must be.
func nameAnew(name string) string {
	const most = 40
	sum := digest.Of("anew", name).Short()
	return strings.TrimRight(name[:min(len(name), most)], "-.:") + "-" + hex.EncodeToString(sum[:4])
}

// stillThere is the wait for the end of an object that is to be created again.
func (r *run) stillThere(it *item) error {
	return &WaitError{Health: Health{{
		Entry: r.scopes.of(inventory.Of(it.object)), Status: status.TerminatingStatus,
		Message: "it is deleted, to be created again with other immutable fields; its finalizers hold it",
	}}}
}

// mayRecreate reports whether an object may be deleted and created again to change an
// immutable field, by what needs no request. What is protected never is: see protects.
func mayRecreate(u *unstructured.Unstructured, live *observed.Object, o Options) bool {
	gk := u.GroupVersionKind().GroupKind()
	kind, _, _ := unstructured.NestedString(u.Object, "type")
	ofCluster := ssautil.IsSecret(u) && kind == clusterapi.SecretType || u.GetLabels()[clusterapi.ClusterNameLabel] != ""
	return live != nil && !inventory.ProtectedKind(gk.Group, gk.Kind) && !ofCluster && !ssautil.IsNamespace(u) && !isSync(inventory.Of(u)) &&
		(o.Force || live.Force || directive.Selects(directive.Force(), u))
}
