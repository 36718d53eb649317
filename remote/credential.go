package remote

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

// delivered lists the credentials that the child gets from this layer, with their expiry. The
// name of a provider's has the provider in front.
func (s *seeding) delivered() []v1alpha1.ChildCredential {
	var list []v1alpha1.ChildCredential
	add := func(name string, c credential) {
		g := v1alpha1.ChildCredential{Name: name, Layer: s.layer.Name}
		if c.kept != nil {
			// When it lapses the child's agent knows, and sees to it.
			g.From = v1alpha1.CredentialFromVault
			list = append(list, g)
			return
		}
		renew, ends := lifeOf(c.secret)
		switch {
		case ends.IsZero() && !c.meant:
			g.Unlimited = true
		case !ends.IsZero():
			g.ExpiresAt = &metav1.Time{Time: ends}
			if !renew.IsZero() {
				g.RenewAt = &metav1.Time{Time: renew}
			}
		}
		list = append(list, g)
	}
	for _, c := range s.credentials {
		add(c.name, c)
	}
	for _, w := range s.components.wanted {
		for _, c := range s.components.credentials[w.Label] {
			add(w.Label+"/"+c.name, c)
		}
	}
	return list
}

// noteDelivered records the credentials that the layers deliver to the child. What it has of a
// layer that gets nothing now, as one that waits, fails before that or is suspended, it has
// from before.
func (p *push) noteDelivered() {
	var now, before []v1alpha1.ChildCredential
	for _, s := range p.layers {
		if s.brought {
			now = append(now, s.delivered()...)
			continue
		}
		for _, c := range p.child.Status.Credentials {
			if c.Layer == s.layer.Name {
				before = append(before, c)
			}
		}
	}
	all := append(now, before...)
	slices.SortStableFunc(all, func(a, b v1alpha1.ChildCredential) int { return strings.Compare(a.Name, b.Name) })
	p.child.Status.Credentials = slices.CompactFunc(all, func(a, b v1alpha1.ChildCredential) bool { return a.Name == b.Name })
}

// lifeOf returns when the content of a Secret ends to be valid, and when it should have been
// renewed: by its annotation, or by the certificate or token in it that expires first. Both are
// zero if neither says. Times are whole seconds.
func lifeOf(secret *corev1.Secret) (renew, ends time.Time) {
	if ends := noted(secret, v1alpha1.ExpiresAnnotation); !ends.IsZero() {
		renew = dueIn(writtenAt(secret), ends)
		// Who keeps it fresh may do so later than others.
		if says := noted(secret, v1alpha1.RenewAnnotation); says.After(renew) {
			renew = says
		}
		return renew, ends
	}
	var begins time.Time
	sooner := func(key string, config rest.Config) {
		c := capibridge.CredentialOf(&config)
		if c.ExpiresAt.IsZero() || !ends.IsZero() && !c.ExpiresAt.Before(ends) {
			return
		}
		begins, ends = c.IssuedAt.UTC().Truncate(time.Second), c.ExpiresAt.UTC().Truncate(time.Second)
		if begins.IsZero() {
			begins = changedAt(secret, key) // a token need not say when it was issued
		}
	}
	for _, key := range []string{corev1.TLSCertKey, "certFile", "clientCert"} {
		sooner(key, rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: secret.Data[key]}})
	}
	for _, key := range []string{"token", "bearerToken", "password"} {
		sooner(key, rest.Config{BearerToken: string(secret.Data[key])})
	}
	return dueIn(begins, ends), ends
}

// dueIn is when two thirds of a life are over, zero if it is not known when it began.
func dueIn(begins, ends time.Time) time.Time {
	if begins.IsZero() {
		return time.Time{}
	}
	return begins.Add(ends.Sub(begins) * 2 / 3).Truncate(time.Second)
}

// noted is a time in an annotation, zero without one.
func noted(secret *corev1.Secret, annotation string) time.Time {
	at, err := time.Parse(time.RFC3339, secret.Annotations[annotation])
	if err != nil {
		return time.Time{}
	}
	return at.UTC().Truncate(time.Second)
}

// writtenAt is when a Secret got what its annotation says the end of: the same Secret is
// renewed again and again.
func writtenAt(secret *corev1.Secret) time.Time {
	at := noted(secret, v1alpha1.IssuedAnnotation)
	if renewed := noted(secret, v1alpha1.RenewedAnnotation); renewed.After(at) {
		at = renewed
	}
	if !at.IsZero() {
		return at
	}
	return changedAt(secret, v1alpha1.ExpiresAnnotation)
}

// changedAt is when a Secret got what it has in an annotation or a key of its data; when it was made, if
// nothing says that it was changed since.
func changedAt(secret *corev1.Secret, field string) time.Time {
	at := secret.CreationTimestamp.UTC()
	for _, by := range secret.ManagedFields {
		if by.Time != nil && by.FieldsV1 != nil && by.Time.After(at) && strings.Contains(by.FieldsV1.GetRawString(), `"f:`+field+`"`) {
			at = by.Time.UTC()
		}
	}
	return at
}

// overdue reports whether a credential has lapsed, or should have been renewed: for how long it
// lives is its keeper's choice.
func overdue(c v1alpha1.ChildCredential, now time.Time) bool {
	return c.ExpiresAt != nil && (!now.Before(c.ExpiresAt.Time) || c.RenewAt != nil && !now.Before(c.RenewAt.Time))
}

// neglected reports whether a credential has lapsed, or whether half of the time is over that
// was left when it should have been renewed. Of one that is due at two thirds of its life that is
// five sixths: cert-manager's renewBefore, kubelets and those who rotate Secrets may well wait for
// more than two thirds.
func neglected(c v1alpha1.ChildCredential, now time.Time) bool {
	if !overdue(c, now) || !now.Before(c.ExpiresAt.Time) {
		return overdue(c, now)
	}
	return !now.Before(c.RenewAt.Add(c.ExpiresAt.Sub(c.RenewAt.Time) / 2))
}

// warn sets a condition that names the credentials of the child that have used two
// thirds of their life: nobody has renewed them in this tier.
func (r *run) warn() {
	r.warnOfStatic()
	now := r.Now()
	var late []string
	lapsed := false
	for _, c := range r.child.Status.Credentials {
		if !overdue(c, now) {
			continue
		}
		verb := "lapses"
		if !now.Before(c.ExpiresAt.Time) {
			lapsed, verb = true, "lapsed"
		}
		late = append(late, fmt.Sprintf("%s %s at %s", c.Name, verb, c.ExpiresAt.UTC().Format(time.RFC3339)))
	}
	told := ""
	if before := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.CredentialsExpiringCondition); before != nil {
		told = before.Reason // the condition itself is written over
	}
	if len(late) == 0 {
		meta.RemoveStatusCondition(&r.child.Status.Conditions, v1alpha1.CredentialsExpiringCondition)
		if told != "" {
			r.Events.Event(r.child, corev1.EventTypeNormal, eventCredentialsRenewed, "no credential that it was given is about to lapse any more")
		}
		return
	}
	reason := v1alpha1.ReasonCredentialsExpiring
	if lapsed {
		reason = v1alpha1.ReasonCredentialsLapsed
	}
	r.condition(v1alpha1.CredentialsExpiringCondition, metav1.ConditionTrue, reason, "%s; renew the Secrets that they are copied from", strings.Join(late, ", "))
	if told != reason {
		r.Events.Eventf(r.child, corev1.EventTypeWarning, reason, "%s; renew the Secrets that they are copied from", strings.Join(late, ", "))
	}
}

// warnOfStatic sets a condition that names the credentials of the child which nothing says
// that they lapse, nor that this is meant.
func (r *run) warnOfStatic() {
	names := withoutEnd(r.child, "")
	if len(names) == 0 {
		meta.RemoveStatusCondition(&r.child.Status.Conditions, v1alpha1.StaticCredentialCondition)
		return
	}
	r.condition(v1alpha1.StaticCredentialCondition, metav1.ConditionTrue, v1alpha1.ReasonStaticCredential, "%s; %s", listed(names), staticRemedy)
}

// staticRemedy is what to do about a credential that does not lapse.
const staticRemedy = "replace it by one that lapses, annotate the Secret with " + v1alpha1.ExpiresAnnotation + ", or say static: true where the Layer names it"

// withoutEnd names the credentials of a child without an end, those of one layer or all.
func withoutEnd(child *v1alpha1.Child, layer string) []string {
	var names []string
	for _, c := range child.Status.Credentials {
		if c.Unlimited && (layer == "" || c.Layer == layer) {
			names = append(names, c.Name)
		}
	}
	return names
}

// listed writes names for people, ten at most.
func listed(names []string) string {
	const most = 10
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if len(names) == 1 {
		return text + " does not say when it lapses"
	}
	return text + " do not say when they lapse"
}

// tellStatic sets a condition of a layer that names the credentials without an end which it
// hands to its children.
func tellStatic(layer *v1alpha1.Layer, children []v1alpha1.Child) {
	var names []string
	for i := range children {
		names = append(names, withoutEnd(&children[i], layer.Name)...)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		meta.RemoveStatusCondition(&layer.Status.Conditions, v1alpha1.StaticCredentialCondition)
		return
	}
	meta.SetStatusCondition(&layer.Status.Conditions, metav1.Condition{
		Type: v1alpha1.StaticCredentialCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonStaticCredential,
		ObservedGeneration: layer.Generation, Message: listed(names) + "; " + staticRemedy,
	})
}
