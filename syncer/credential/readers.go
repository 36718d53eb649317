package credential

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// readAnnotation is the annotation of a pod template that names which credential of a Secret
// the pods were started with.
func readAnnotation(secret string) string {
	name := v1alpha1.CredentialReadPrefix + secret
	if len(validation.IsQualifiedName(name)) > 0 {
		sum := sha256.Sum256([]byte(secret))
		name = v1alpha1.CredentialReadPrefix + hex.EncodeToString(sum[:16])
	}
	return name
}

// readReaders finds out who has been restarted since the Secret has what it has, and whether
// that is over. It is over for what is not there.
func (k *keeping) readReaders(ctx context.Context) error {
	k.outdated = nil
	if k.facts.Secret == nil {
		return nil
	}
	annotation, number := readAnnotation(k.obj.SecretName()), strconv.FormatInt(k.facts.Secret.Number, 10)
	for _, reader := range k.obj.Spec.Restart {
		d := &appsv1.Deployment{}
		err := k.Live.Get(ctx, client.ObjectKey{Namespace: k.obj.Namespace, Name: reader.Name}, d)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read Deployment %s/%s, which spec.restart names: %w", k.obj.Namespace, reader.Name, err)
		}
		read, restarted := d.Spec.Template.Annotations[annotation]
		switch {
		case read == number:
		case !restarted && d.CreationTimestamp.After(k.facts.Secret.Issued):
			// Its pods have never seen another one.
		default:
			k.outdated = append(k.outdated, d)
			k.facts.Settled = false
			continue
		}
		if !rolledOut(d) {
			k.facts.Settled = false
		}
	}
	return nil
}

// rolledOut reports whether no pod of an earlier template is left.
func rolledOut(d *appsv1.Deployment) bool {
	wanted := int32(1)
	if d.Spec.Replicas != nil {
		wanted = *d.Spec.Replicas
	}
	s := &d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas >= wanted && s.Replicas <= s.UpdatedReplicas && s.AvailableReplicas >= wanted
}

// restart restarts what has an earlier credential.
func (k *keeping) restart(ctx context.Context) error {
	if k.facts.Secret == nil || !k.facts.Secret.Intact || len(k.outdated) == 0 {
		return nil
	}
	if k.MayWrite != nil {
		if err := k.MayWrite(); err != nil {
			return err
		}
	}
	annotation, number := readAnnotation(k.obj.SecretName()), strconv.FormatInt(k.facts.Secret.Number, 10)
	var failed error
	for _, o := range k.outdated {
		d := o.(*appsv1.Deployment)
		after := d.DeepCopy()
		if after.Spec.Template.Annotations == nil {
			after.Spec.Template.Annotations = map[string]string{}
		}
		after.Spec.Template.Annotations[annotation] = number
		if err := k.Client.Patch(ctx, after, client.MergeFrom(d), client.FieldOwner(Manager)); client.IgnoreNotFound(err) != nil {
			failed = errors.Join(failed, fmt.Errorf("cannot restart Deployment %s, which reads the credential when it starts: %w", d.Name, err))
		}
	}
	return failed
}
