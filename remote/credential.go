package remote

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// given lists what the child holds of this layer, with when it lapses.
func (s *seeding) given() []v1alpha1.ChildCredential {
	var list []v1alpha1.ChildCredential
	for _, c := range s.credentials {
		g := v1alpha1.ChildCredential{Name: c.name}
		if begins, ends := lifeOf(c.secret); !ends.IsZero() {
			g.ExpiresAt = &metav1.Time{Time: ends}
			if !begins.IsZero() {
				g.RenewAt = &metav1.Time{Time: begins.Add(ends.Sub(begins) * 2 / 3)}
			}
		}
		list = append(list, g)
	}
	return list
}

// lifeOf tells when what a Secret holds begins and ceases to be good: as its
// annotation says, or the certificate or token in it that lapses first. Both are
// zero if nothing tells. Times are whole seconds.
func lifeOf(secret *corev1.Secret) (begins, ends time.Time) {
	if text := secret.Annotations[v1alpha1.ExpiresAnnotation]; text != "" {
		if ends, err := time.Parse(time.RFC3339, text); err == nil {
			return secret.CreationTimestamp.UTC(), ends.UTC().Truncate(time.Second)
		}
	}
	sooner := func(b, e time.Time) {
		if !e.IsZero() && (ends.IsZero() || e.Before(ends)) {
			begins, ends = b.UTC().Truncate(time.Second), e.UTC().Truncate(time.Second)
		}
	}
	for _, key := range []string{corev1.TLSCertKey, "certFile", "clientCert"} {
		if block, _ := pem.Decode(secret.Data[key]); block != nil {
			if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
				sooner(cert.NotBefore, cert.NotAfter)
			}
		}
	}
	for _, key := range []string{"token", "bearerToken", "password"} {
		sooner(lifeOfToken(string(secret.Data[key])))
	}
	return begins, ends
}

// lifeOfToken reads the claims of a JSON web token; it is for who it is given to
// to verify it.
func lifeOfToken(token string) (begins, ends time.Time) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return begins, ends
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return begins, ends
	}
	var claims struct {
		Begins float64 `json:"iat"`
		Ends   float64 `json:"exp"`
	}
	const farthest = 253402300799 // the last second of the year 9999
	if json.Unmarshal(raw, &claims) != nil || claims.Ends <= 0 || claims.Ends > farthest || claims.Begins < 0 || claims.Begins > claims.Ends {
		return begins, ends
	}
	if claims.Begins > 0 {
		begins = time.Unix(int64(claims.Begins), 0)
	}
	return begins, time.Unix(int64(claims.Ends), 0)
}

// warn says which credentials of the child have used two thirds of their life:
// whoever renews them in this tier has not done so.
func (v *visit) warn() {
	now := v.Now()
	var late []string
	lapsed := false
	for _, c := range v.child.Status.Credentials {
		switch {
		case c.ExpiresAt == nil:
		case !now.Before(c.ExpiresAt.Time):
			lapsed = true
			late = append(late, fmt.Sprintf("%s lapsed at %s", c.Name, c.ExpiresAt.UTC().Format(time.RFC3339)))
		case c.RenewAt != nil && !now.Before(c.RenewAt.Time):
			late = append(late, fmt.Sprintf("%s lapses at %s", c.Name, c.ExpiresAt.UTC().Format(time.RFC3339)))
		}
	}
	before := meta.FindStatusCondition(v.child.Status.Conditions, v1alpha1.CredentialsExpiringCondition)
	if len(late) == 0 {
		meta.RemoveStatusCondition(&v.child.Status.Conditions, v1alpha1.CredentialsExpiringCondition)
		return
	}
	reason := v1alpha1.ReasonCredentialsExpiring
	if lapsed {
		reason = v1alpha1.ReasonCredentialsLapsed
	}
	v.condition(v1alpha1.CredentialsExpiringCondition, metav1.ConditionTrue, reason, "%s; renew the Secrets that they are copied from", strings.Join(late, ", "))
	if before == nil || before.Reason != reason {
		v.Events.Eventf(v.child, corev1.EventTypeWarning, reason, "%s; renew the Secrets that they are copied from", strings.Join(late, ", "))
	}
}
