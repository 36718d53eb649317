package remote

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// publish writes what a Rollout proved, unless that is there already, and signed as it is to be:
// who may write the reference may have written another tag.
func (x *exchange) publish(ctx context.Context, o *v1alpha1.Rollout, from source.Key) (*v1alpha1.RolloutProof, rollout.Hold) {
	good, name := o.Status.LastGood, o.Spec.Publish.Name
	if good == nil {
		return nil, rollout.Hold{}
	}
	fails := func(reason, format string, args ...any) (*v1alpha1.RolloutProof, rollout.Hold) {
		return o.Status.Published, rollout.Hold{Reason: reason, Message: short(fmt.Sprintf(format, args...))}
	}
	reference := rollout.ProofReference(name)
	before, tag, hold := x.proofs(ctx, o.Namespace, from, name, nil)
	switch hold.Reason {
	case "":
	case v1alpha1.ReasonUpstreamInvalid:
		return fails(v1alpha1.ReasonPublishConflict, "%s: delete it, or choose another spec.publish.name", hold.Message)
	default:
		return fails(v1alpha1.ReasonPublishFailed, "%s", hold.Message)
	}
	secret := types.NamespacedName{Namespace: o.Namespace, Name: o.Spec.Publish.SecretRef.Name}
	proofs, err := rollout.Publishable(o, before)
	if proofs == nil && err == nil {
		var keys source.Verification
		if keys, err = x.Repositories.SigningKeys(ctx, secret); err == nil && !signedBy(&tag, keys) {
			proofs, err = rollout.Publishable(o, nil)
		}
	}
	switch {
	case errors.Is(err, rollout.ErrOthers):
		return fails(v1alpha1.ReasonPublishConflict, "cannot write %s: %v; choose another spec.publish.name, or delete it", reference, err)
	case err != nil:
		return fails(v1alpha1.ReasonPublishFailed, "cannot write %s: %v", reference, err)
	case proofs == nil:
		newest := before.Proofs[0]
		return &v1alpha1.RolloutProof{Commit: newest.Commit, Run: newest.Run, Proven: metav1.NewTime(newest.Proven)}, rollout.Hold{}
	}
	newest := proofs.Proofs[0]
	message, err := proofs.Message()
	if err != nil {
		return fails(v1alpha1.ReasonPublishFailed, "%v", err)
	}
	if err := x.mayWrite(); err != nil {
		return fails(v1alpha1.ReasonPublishFailed, "cannot write %s: %v", reference, err)
	}
	_, err = x.Repositories.Push(ctx, from.NamespacedName, secret, source.NewTag{
		Reference: reference, Before: tag.Object, Name: rollout.ProofTag(name), Commit: newest.Commit, Tagger: "cascade", Address: name + "@cascade.dev", At: newest.Proven, Message: message,
	})
	if err != nil {
		return fails(v1alpha1.ReasonPublishFailed, "%v", err)
	}
	x.Events.Eventf(o, corev1.EventTypeNormal, "ProofPublished", "%s says that %s passed all waves in run %d", reference, newest.Commit, newest.Run)
	return &v1alpha1.RolloutProof{Commit: newest.Commit, Run: newest.Run, Proven: metav1.NewTime(newest.Proven)}, rollout.Hold{}
}

// signedBy reports whether a tag is signed with one of the keys, if there are any.
func signedBy(tag *source.Tag, keys source.Verification) bool {
	if len(keys.AuthorizedKeys) == 0 {
		return true
	}
	_, err := tag.Verify(keys)
	return err == nil
}
