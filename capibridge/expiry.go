package capibridge

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"k8s.io/client-go/rest"
)

// CredentialForm is how a kubeconfig authenticates.
type CredentialForm string

// Forms of the credential in a kubeconfig.
const (
	// CredentialNone is the form of a kubeconfig that has neither token nor certificate.
	CredentialNone CredentialForm = "None"
	// CredentialCertificate is a client certificate.
	CredentialCertificate CredentialForm = "ClientCertificate"
	// CredentialEKS is a presigned request to AWS's token service. EKS sends it to
	// learn the identity of the caller.
	CredentialEKS CredentialForm = "EKSToken"
	// CredentialJWT is a signed token: of a service account, or of Entra.
	CredentialJWT CredentialForm = "JWT"
	// CredentialToken is a token of an unknown form.
	CredentialToken CredentialForm = "Token"
)

// Credential describes the credential in a kubeconfig.
type Credential struct {
	Form CredentialForm
	// IssuedAt and ExpiresAt are zero if the credential does not have them. Nobody has
	// verified them: they tell when to read the kubeconfig again, and grant nothing.
	IssuedAt  time.Time
	ExpiresAt time.Time
}

// Outlives reports whether a credential is known to be good for longer than another one. A signed token
// that does not say when it lapses is good until somebody revokes it.
func (c Credential) Outlives(other Credential) bool {
	if other.ExpiresAt.IsZero() {
		return false
	}
	return c.ExpiresAt.After(other.ExpiresAt) || c.Form == CredentialJWT && c.ExpiresAt.IsZero()
}

const (
	eksPrefix = "k8s-aws-v1."
	// eksLife begins at the date in the request. X-Amz-Expires says 60 seconds, but
	// neither EKS nor the token service goes by it.
	eksLife = 15 * time.Minute
	eksDate = "20060102T150405Z"
)

// CredentialOf describes the credential of a client configuration that Kubeconfig
// returned. Of a token and a certificate, it describes the one that expires first. It
// verifies nothing and makes no request. A credential that it cannot read has no dates.
func CredentialOf(config *rest.Config) Credential {
	found := Credential{Form: CredentialNone}
	if len(config.CertData) > 0 {
		found = ofCertificate(config.CertData)
	}
	if config.BearerToken != "" {
		token := ofToken(config.BearerToken)
		if found.ExpiresAt.IsZero() || (!token.ExpiresAt.IsZero() && token.ExpiresAt.Before(found.ExpiresAt)) {
			found = token
		}
	}
	return found
}

// ofCertificate reads the first certificate, which is the client's own. Certificates of
// its issuers may follow.
func ofCertificate(data []byte) Credential {
	c := Credential{Form: CredentialCertificate}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return c
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			c.IssuedAt, c.ExpiresAt = cert.NotBefore, cert.NotAfter
		}
		return c
	}
}

func ofToken(token string) Credential {
	if presigned, ok := strings.CutPrefix(token, eksPrefix); ok {
		return ofEKS(presigned)
	}
	claims := jwt.RegisteredClaims{}
	if _, _, err := jwt.NewParser().ParseUnverified(token, &claims); err != nil && !errors.Is(err, jwt.ErrTokenUnverifiable) {
		return Credential{Form: CredentialToken}
	}
	c := Credential{Form: CredentialJWT, IssuedAt: dateOf(claims.IssuedAt), ExpiresAt: dateOf(claims.ExpiresAt)}
	if c.ExpiresAt.Before(c.IssuedAt) {
		c.IssuedAt, c.ExpiresAt = time.Time{}, time.Time{}
	}
	return c
}

// dateOf returns the zero time for a date that is missing or not plausible.
func dateOf(d *jwt.NumericDate) time.Time {
	if d == nil || d.Year() < 1970 || d.Year() > 9999 {
		return time.Time{}
	}
	return d.UTC()
}

func ofEKS(presigned string) Credential {
	c := Credential{Form: CredentialEKS}
	request, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(presigned, "="))
	if err != nil {
		return c
	}
	u, err := url.Parse(string(request))
	if err != nil {
		return c
	}
	for name, values := range u.Query() {
		if strings.EqualFold(name, "X-Amz-Date") && len(values) > 0 {
			if at, err := time.Parse(eksDate, values[0]); err == nil {
				c.IssuedAt, c.ExpiresAt = at, at.Add(eksLife)
			}
		}
	}
	return c
}
