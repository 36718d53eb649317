package credential

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// leasesType is the type of the Secrets that have journals.
const leasesType corev1.SecretType = "cascade.dev/leases"

// leasesName is that of the journal of a Credential. Two Credentials have two names; the dot
// keeps it from being that of a target by chance, and it is checked whose it is.
func leasesName(credential string) string { return "cascade-leases." + credential }

// controllerRef is how a Secret names the Credential that has it. It does not block the deletion
// of that: some API servers allow it to those only who may write finalizers of Credentials.
func controllerRef(owner *v1alpha1.Credential) metav1.OwnerReference {
	ref := metav1.NewControllerRef(owner, v1alpha1.GroupVersion.WithKind(Kind))
	ref.BlockOwnerDeletion = nil
	return *ref
}

// gather reads the facts.
func (k *keeping) gather(ctx context.Context) error {
	spec := &k.obj.Spec
	k.facts = Facts{
		Deleting: !k.obj.DeletionTimestamp.IsZero(), Suspended: spec.Suspend, Revokes: spec.RevokeOnDelete == nil || *spec.RevokeOnDelete,
		Declared: declaredOf(spec), Grace: spec.Grace.Duration, Settled: true, NotBefore: k.attempts.notBefore,
	}
	var err error
	if k.facts.Deleting {
		// Nobody meant what the Credentials stand for: nothing is revoked.
		if k.kindRemoved, err = target.KindRemoved(ctx, k.Live, "credentials."+v1alpha1.Group); err != nil {
			return err
		}
		k.facts.Revokes = k.facts.Revokes && !k.kindRemoved
	}
	k.secret, k.foreign = &corev1.Secret{}, false
	err = k.Live.Get(ctx, client.ObjectKey{Namespace: k.obj.Namespace, Name: k.obj.SecretName()}, k.secret)
	switch {
	case apierrors.IsNotFound(err):
		k.secret = nil
	case err != nil:
		return fmt.Errorf("cannot read Secret %s/%s: %w", k.obj.Namespace, k.obj.SecretName(), err)
	case metav1.IsControlledBy(k.secret, k.obj):
		k.facts.Secret = k.held()
	case isOrphan(k.secret):
		k.facts.Secret = k.held()
		k.facts.Secret.Intact = false // it is written anew, with its owner
	default:
		k.foreign = true
	}
	k.record, err = k.readJournal(ctx)
	if errors.As(err, new(*failure)) && k.facts.Deleting && !k.facts.Revokes {
		// Nothing of what it has is needed. One of the Credential goes with it.
		k.record, err = &journalSecret{client: k.Client, owner: k.obj, journal: &journal{Next: 1}}, nil
	}
	if err != nil {
		return err
	}
	notBefore := map[int64]time.Time{}
	for number, a := range k.attempts.revoking {
		notBefore[number] = a.notBefore
	}
	k.facts.Leases = k.record.journal.leases(notBefore)
	if k.facts.Deleting || spec.Suspend {
		return nil
	}
	return k.readReaders(ctx)
}

// isOrphan reports whether a Secret is one that a Credential wrote and that has no owner: it
// was restored, or moved from another management cluster, and the Credential came after it.
func isOrphan(secret *corev1.Secret) bool {
	a := secret.Annotations
	return metav1.GetControllerOf(secret) == nil && a[v1alpha1.CredentialAnnotation] != "" && a[v1alpha1.ContentAnnotation] != ""
}

// held is what the Secret says that it has. What it does not say, or nobody can read, counts
// as tampered with.
func (k *keeping) held() *Held {
	a := k.secret.Annotations
	h := &Held{Declared: a[v1alpha1.DeclaredAnnotation]}
	h.Intact = a[v1alpha1.ContentAnnotation] == digestOf(string(k.obj.UID), string(k.secret.Type), k.secret.Data)
	number, err := strconv.ParseInt(a[v1alpha1.CredentialAnnotation], 10, 64)
	if err != nil || number < 1 || number > 1<<53 {
		number, h.Intact = 0, false
	}
	h.Number = number
	for _, of := range []struct {
		annotation string
		to         *time.Time
	}{
		{v1alpha1.IssuedAnnotation, &h.Issued}, {v1alpha1.RenewedAnnotation, &h.Renewed},
		{v1alpha1.RenewAnnotation, &h.RenewAt}, {v1alpha1.ExpiresAnnotation, &h.Expires},
	} {
		if *of.to, err = parseTime(a[of.annotation]); err != nil {
			h.Intact = false
		}
	}
	return h
}

// content is what is written into the Secret.
type content struct {
	number int64
	data   map[string][]byte
	issued, renewed,
	renewAt, expires time.Time
}

// write writes a credential into the Secret, which nobody changed since it was read.
func (k *keeping) write(ctx context.Context, c content) error {
	if k.foreign {
		return because(v1alpha1.ReasonNameTaken, "cannot write Secret %s: it is there and not of this Credential; remove it, or choose another spec.target.name", k.obj.SecretName())
	}
	kind := k.obj.Spec.Target.Type
	if kind == "" {
		kind = corev1.SecretTypeOpaque
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.obj.Namespace, Name: k.obj.SecretName()}, Type: kind}
	update := k.secret != nil && k.secret.Type == kind
	if update {
		secret = k.secret.DeepCopy()
	}
	if !metav1.IsControlledBy(secret, k.obj) {
		secret.OwnerReferences = append(secret.OwnerReferences, controllerRef(k.obj))
	}
	secret.Data = c.data
	k.annotate(secret, c)
	secret.Annotations[v1alpha1.ContentAnnotation] = digestOf(string(k.obj.UID), string(kind), c.data)
	if update {
		if err := k.Client.Update(ctx, secret, client.FieldOwner(Manager)); err != nil {
			return fmt.Errorf("cannot write Secret %s: %w", k.obj.SecretName(), err)
		}
		return nil
	}
	if k.secret != nil {
		// A type cannot be changed. The Secret is ours, and what it has is replaced: if the API server would take the other one.
		// Its name is the last thing that is looked at, after admission and quotas. Where a quota is used up, a delete does not
		// make room at once, and others may take it: who reads the Secret would have none.
		err := k.create(ctx, secret.DeepCopy(), client.DryRunAll)
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
		case apierrors.IsForbidden(err):
			return fmt.Errorf("cannot replace Secret %s of type %s: correct the policy that refuses the other one; if it is a quota, raise it by one, or delete the Secret: %w",
				k.obj.SecretName(), k.secret.Type, err)
		default:
			return fmt.Errorf("cannot replace Secret %s of type %s: %w", k.obj.SecretName(), k.secret.Type, err)
		}
		precondition := client.Preconditions{UID: &k.secret.UID, ResourceVersion: &k.secret.ResourceVersion}
		if err := k.Client.Delete(ctx, k.secret, precondition); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot delete Secret %s of another type: %w", k.obj.SecretName(), err)
		}
		k.secret = nil
	}
	return k.create(ctx, secret)
}

// create creates the Secret.
func (k *keeping) create(ctx context.Context, secret *corev1.Secret, options ...client.CreateOption) error {
	err := k.Client.Create(ctx, secret, append(options, client.FieldOwner(Manager))...)
	switch {
	case apierrors.IsInvalid(err):
		return because(v1alpha1.ReasonInvalidSpec, "cannot create Secret %s of type %s with spec.target.data: %w", k.obj.SecretName(), secret.Type, err)
	case err != nil:
		return fmt.Errorf("cannot create Secret %s: %w", k.obj.SecretName(), err)
	}
	return nil
}

// annotate says what a Secret has.
func (k *keeping) annotate(secret *corev1.Secret, c content) {
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	maps.Copy(secret.Annotations, map[string]string{
		v1alpha1.CredentialAnnotation: strconv.FormatInt(c.number, 10), v1alpha1.DeclaredAnnotation: k.facts.Declared,
		v1alpha1.IssuedAnnotation: formatTime(c.issued), v1alpha1.RenewedAnnotation: formatTime(c.renewed),
	})
	for name, at := range map[string]time.Time{v1alpha1.RenewAnnotation: c.renewAt, v1alpha1.ExpiresAnnotation: c.expires} {
		if delete(secret.Annotations, name); !at.IsZero() {
			secret.Annotations[name] = formatTime(at)
		}
	}
}

// prolong says in the Secret that what it has is valid for longer.
func (k *keeping) prolong(ctx context.Context, renewed, renewAt, expires time.Time) error {
	if k.secret == nil || k.facts.Secret == nil {
		return nil
	}
	after := k.secret.DeepCopy()
	k.annotate(after, content{
		number: k.facts.Secret.Number, issued: k.facts.Secret.Issued, renewed: renewed, renewAt: renewAt, expires: expires,
	})
	patch := client.MergeFromWithOptions(k.secret, client.MergeFromWithOptimisticLock{})
	if err := k.Client.Patch(ctx, after, patch, client.FieldOwner(Manager)); err != nil {
		return fmt.Errorf("cannot write Secret %s: %w", k.obj.SecretName(), err)
	}
	return nil
}

// appliers are prefixes of the labels by which who applies an object marks it. A Credential
// marks no Secret so.
var appliers = []string{v1alpha1.LayerLabelGroup, v1alpha1.InstallLabelGroup, "kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io"}

// leave lets go of a Secret, before the Credential is gone and takes along what it owns: of one
// that somebody else applies by now, as a commit may have put the Secret itself in the
// Credential's place, and of any when the kind itself goes. The latter says whose it was, so that
// a Credential of the name can have it again.
func (k *keeping) leave(ctx context.Context) error {
	if k.secret == nil || !metav1.IsControlledBy(k.secret, k.obj) {
		return nil
	}
	applied := slices.ContainsFunc(appliers, func(group string) bool { return k.secret.Labels[group+"/name"] != "" })
	if !applied && !k.kindRemoved {
		return nil
	}
	after := k.secret.DeepCopy()
	after.OwnerReferences = slices.DeleteFunc(after.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == k.obj.UID })
	if applied {
		for _, name := range []string{
			v1alpha1.CredentialAnnotation, v1alpha1.ContentAnnotation, v1alpha1.DeclaredAnnotation,
			v1alpha1.IssuedAnnotation, v1alpha1.RenewedAnnotation, v1alpha1.RenewAnnotation, v1alpha1.ExpiresAnnotation,
		} {
			delete(after.Annotations, name)
		}
	}
	patch := client.MergeFromWithOptions(k.secret, client.MergeFromWithOptimisticLock{})
	if err := k.Client.Patch(ctx, after, patch, client.FieldOwner(Manager)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot write Secret %s: %w", k.obj.SecretName(), err)
	}
	return nil
}

// journalSecret is the Secret that has the journal of a Credential. It is written with the
// version that was read: of two processes one is refused.
type journalSecret struct {
	client  client.Client
	owner   *v1alpha1.Credential
	secret  *corev1.Secret
	journal *journal
}

// readJournal reads the journal; one that is not there is empty. It begins with a number that no
// Credential of the name had: readers keep the number of what they were restarted with when their Credential
// goes, and another one may come.
func (k *keeping) readJournal(ctx context.Context) (*journalSecret, error) {
	js := &journalSecret{client: k.Client, owner: k.obj, journal: &journal{Next: k.Now().Unix()}}
	found := &corev1.Secret{}
	err := k.Live.Get(ctx, client.ObjectKey{Namespace: k.obj.Namespace, Name: leasesName(k.obj.Name)}, found)
	if apierrors.IsNotFound(err) {
		return js, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read Secret %s/%s: %w", k.obj.Namespace, leasesName(k.obj.Name), err)
	}
	if !metav1.IsControlledBy(found, k.obj) {
		if owner := metav1.GetControllerOf(found); owner != nil && owner.Kind == Kind && strings.HasPrefix(owner.APIVersion, v1alpha1.Group+"/") {
			// Of one of the same name, which was deleted without waiting. It goes by itself.
			return nil, because(v1alpha1.ReasonProgressing, "cannot use Secret %s: it is of a Credential that was here before, and has not gone yet", found.Name)
		}
		return nil, because(v1alpha1.ReasonNameTaken, "cannot use Secret %s for what is leased: it is somebody else's; remove it", found.Name)
	}
	j, err := parseJournal(found.Data[journalKey])
	if err != nil {
		return nil, because(v1alpha1.ReasonRecordInvalid, "cannot read Secret %s, which has what was leased: %w", found.Name, err)
	}
	js.secret, js.journal = found, j
	return js, nil
}

// change changes the journal and writes it.
func (s *journalSecret) change(ctx context.Context, f func(*journal)) error {
	f(s.journal)
	text, err := s.journal.encode()
	if err != nil {
		return fmt.Errorf("cannot write what is leased: %w", err)
	}
	if s.secret == nil {
		s.secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.owner.Namespace, Name: leasesName(s.owner.Name), Labels: map[string]string{v1alpha1.LeasesLabel: "true"},
				OwnerReferences: []metav1.OwnerReference{controllerRef(s.owner)},
			},
			Type: leasesType, Data: map[string][]byte{journalKey: text},
		}
		if err := s.client.Create(ctx, s.secret, client.FieldOwner(Manager)); err != nil {
			s.secret = nil
			return fmt.Errorf("cannot write down what is leased: %w", err)
		}
		return nil
	}
	s.secret.Data = map[string][]byte{journalKey: text}
	if err := s.client.Update(ctx, s.secret, client.FieldOwner(Manager)); err != nil {
		return fmt.Errorf("cannot write down what is leased: %w", err)
	}
	return nil
}

// remove removes the journal, in which nothing is left.
func (s *journalSecret) remove(ctx context.Context) error {
	if s.secret == nil {
		return nil
	}
	err := s.client.Delete(ctx, s.secret, client.Preconditions{UID: &s.secret.UID, ResourceVersion: &s.secret.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot delete Secret %s: %w", s.secret.Name, err)
	}
	return nil
}
