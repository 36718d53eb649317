package remote

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

// delivered lists the Secrets that the child gets from this layer, with their expiry.
// The name of a provider's Secret has the provider in front.
func (s *seeding) delivered() []v1alpha1.ChildCredential {
	var list []v1alpha1.ChildCredential
	add := func(name string, secret *corev1.Secret) {
		g := v1alpha1.ChildCredential{Name: name}
		if begins, ends := lifeOf(secret); !ends.IsZero() {
			g.ExpiresAt = &metav1.Time{Time: ends}
			if !begins.IsZero() {
				g.RenewAt = &metav1.Time{Time: begins.Add(ends.Sub(begins) * 2 / 3)}
			}
		}
		list = append(list, g)
	}
	for _, c := range s.credentials {
		add(c.name, c.secret)
	}
	for _, w := range s.components.wanted {
		for i, secret := range s.components.secrets[w.Label] {
			add(w.Label+"/"+w.Credentials[i].Name, secret)
		}
	}
	return list
}

// lifeOf returns when the content of a Secret begins and ends to be valid: by its
// annotation, or by the certificate or token in it that expires first. Both are zero
// if neither says. Times are whole seconds.
func lifeOf(secret *corev1.Secret) (begins, ends time.Time) {
	if text := secret.Annotations[v1alpha1.ExpiresAnnotation]; text != "" {
		if ends, err := time.Parse(time.RFC3339, text); err == nil {
			return secret.CreationTimestamp.UTC(), ends.UTC().Truncate(time.Second)
		}
	}
	sooner := func(config rest.Config) {
		if c := capibridge.CredentialOf(&config); !c.ExpiresAt.IsZero() && (ends.IsZero() || c.ExpiresAt.Before(ends)) {
			begins, ends = c.IssuedAt.UTC().Truncate(time.Second), c.ExpiresAt.UTC().Truncate(time.Second)
		}
	}
	for _, key := range []string{corev1.TLSCertKey, "certFile", "clientCert"} {
		sooner(rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: secret.Data[key]}})
	}
	for _, key := range []string{"token", "bearerToken", "password"} {
		sooner(rest.Config{BearerToken: string(secret.Data[key])})
	}
	return begins, ends
}

// warn sets a condition that names the credentials of the child that have used two
// thirds of their life: nobody has renewed them in this tier.
func (r *run) warn() {
	now := r.Now()
	var late []string
	lapsed := false
	for _, c := range r.child.Status.Credentials {
		switch {
		case c.ExpiresAt == nil:
		case !now.Before(c.ExpiresAt.Time):
			lapsed = true
			late = append(late, fmt.Sprintf("%s lapsed at %s", c.Name, c.ExpiresAt.UTC().Format(time.RFC3339)))
		case c.RenewAt != nil && !now.Before(c.RenewAt.Time):
			late = append(late, fmt.Sprintf("%s lapses at %s", c.Name, c.ExpiresAt.UTC().Format(time.RFC3339)))
		}
	}
	before := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.CredentialsExpiringCondition)
	if len(late) == 0 {
		meta.RemoveStatusCondition(&r.child.Status.Conditions, v1alpha1.CredentialsExpiringCondition)
		return
	}
	reason := v1alpha1.ReasonCredentialsExpiring
	if lapsed {
		reason = v1alpha1.ReasonCredentialsLapsed
	}
	r.condition(v1alpha1.CredentialsExpiringCondition, metav1.ConditionTrue, reason, "%s; renew the Secrets that they are copied from", strings.Join(late, ", "))
	if before == nil || before.Reason != reason {
		r.Events.Eventf(r.child, corev1.EventTypeWarning, reason, "%s; renew the Secrets that they are copied from", strings.Join(late, ", "))
	}
}
