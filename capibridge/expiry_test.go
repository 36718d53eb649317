package capibridge

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

var issued = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// certificate that is valid for an hour, with that of an issuer behind it.
func certificate(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for _, life := range []time.Duration{time.Hour, 100 * time.Hour} {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "admin"}, NotBefore: issued, NotAfter: issued.Add(life)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return out
}

func signed(t testing.TB, claims jwt.MapClaims) string {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("nobody's"))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// presigned is a token of EKS as its provider makes one: X-Amz-Expires is signed
// as a header and does not say anything true.
func presigned(query string) string {
	return "k8s-aws-v1." + base64.RawURLEncoding.EncodeToString([]byte("https://sts.eu-west-1.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15&"+query))
}

func TestCredentialOf(t *testing.T) {
	cert := certificate(t)
	for name, tc := range map[string]struct {
		reason string
		config rest.Config
		want   Credential
	}{
		"Certificate": {"the client's own, not that of its issuer", rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: cert}},
			Credential{CredentialCertificate, issued, issued.Add(time.Hour)}},
		"BrokenCertificate": {"whoever uses it will be told; it has no date", rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")}},
			Credential{Form: CredentialCertificate}},
		"NoCertificate": {"the same", rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: []byte("cert")}}, Credential{Form: CredentialCertificate}},
		"EKS": {"15 minutes from the date, whatever X-Amz-Expires says", rest.Config{BearerToken: presigned("X-Amz-Date=20260301T120000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host")},
			Credential{CredentialEKS, issued, issued.Add(15 * time.Minute)}},
		"EKSLower":   {"names of parameters are compared without case", rest.Config{BearerToken: presigned("x-amz-date=20260301T120000Z")}, Credential{CredentialEKS, issued, issued.Add(15 * time.Minute)}},
		"EKSNoDate":  {"a request without a date has none", rest.Config{BearerToken: presigned("")}, Credential{Form: CredentialEKS}},
		"EKSBadDate": {"the same", rest.Config{BearerToken: presigned("X-Amz-Date=tomorrow")}, Credential{Form: CredentialEKS}},
		"EKSBroken":  {"no base64", rest.Config{BearerToken: "k8s-aws-v1.%%"}, Credential{Form: CredentialEKS}},
		"ServiceAccount": {"a bound token", rest.Config{BearerToken: signed(t, jwt.MapClaims{"iat": issued.Unix(), "exp": issued.Add(time.Hour).Unix(), "aud": []string{"https://kubernetes.default.svc"}})},
			Credential{CredentialJWT, issued, issued.Add(time.Hour)}},
		"Entra": {"what AKS without local accounts has", rest.Config{BearerToken: signed(t, jwt.MapClaims{"iat": issued.Unix(), "nbf": issued.Unix(), "exp": issued.Add(80 * time.Minute).Unix(), "aud": "6dae42f8-4368-4678-94ff-3960e28e3630"})},
			Credential{CredentialJWT, issued, issued.Add(80 * time.Minute)}},
		"Legacy":   {"a ServiceAccount's Secret has a token without an end", rest.Config{BearerToken: signed(t, jwt.MapClaims{"sub": "system:serviceaccount:kube-system:admin"})}, Credential{Form: CredentialJWT}},
		"Opaque":   {"a token file's line", rest.Config{BearerToken: "abc"}, Credential{Form: CredentialToken}},
		"Negative": {"claims of other types are no claims", rest.Config{BearerToken: signed(t, jwt.MapClaims{"exp": "soon"})}, Credential{Form: CredentialToken}},
		"Nothing":  {"an anonymous kubeconfig", rest.Config{}, Credential{Form: CredentialNone}},
		"Both": {"what expires first ends the connection", rest.Config{BearerToken: presigned("X-Amz-Date=20260301T120000Z"), TLSClientConfig: rest.TLSClientConfig{CertData: cert}},
			Credential{CredentialEKS, issued, issued.Add(15 * time.Minute)}},
		"BothOpaque": {"a token that does not say does not hide a certificate that does", rest.Config{BearerToken: "abc", TLSClientConfig: rest.TLSClientConfig{CertData: cert}},
			Credential{CredentialCertificate, issued, issued.Add(time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, CredentialOf(&tc.config)); diff != "" {
				t.Errorf("%s\nCredentialOf(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestOutlives(t *testing.T) {
	lapses := func(after time.Duration) Credential {
		return Credential{Form: CredentialJWT, ExpiresAt: issued.Add(after)}
	}
	for name, tc := range map[string]struct {
		reason   string
		c, other Credential
		want     bool
	}{
		"Later":   {"what a person made for a year, and a token of EKS", Credential{Form: CredentialCertificate, ExpiresAt: issued.Add(time.Hour)}, lapses(time.Minute), true},
		"Sooner":  {"what is renewed", lapses(time.Minute), lapses(time.Hour), false},
		"Same":    {"the same", lapses(time.Hour), lapses(time.Hour), false},
		"NoEnd":   {"a token of a ServiceAccount's Secret", Credential{Form: CredentialJWT}, lapses(time.Hour), true},
		"Unknown": {"who knows when it lapses", Credential{Form: CredentialToken}, lapses(time.Hour), false},
		"Other":   {"who knows when the other one does", lapses(time.Hour), Credential{Form: CredentialToken}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.c.Outlives(tc.other); got != tc.want {
				t.Errorf("%s: Outlives() = %t", tc.reason, got)
			}
		})
	}
}

// FuzzCredentialOf: whoever may write a kubeconfig writes the token.
func FuzzCredentialOf(f *testing.F) {
	f.Add("abc", []byte("cert"))
	f.Add(presigned("X-Amz-Date=20260301T120000Z"), certificate(f))
	f.Add(presigned("X-Amz-Date=99991231T235959Z"), []byte(nil))
	f.Add(signed(f, jwt.MapClaims{"exp": 1e300, "iat": -1e300}), []byte(nil))
	f.Add("eyJhbGciOiJub25lIn0.eyJleHAiOjF9.", []byte(nil))
	f.Fuzz(func(t *testing.T, token string, cert []byte) {
		got := CredentialOf(&rest.Config{BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CertData: cert}})
		if (got.Form == CredentialNone) != (token == "" && len(cert) == 0) {
			t.Errorf("CredentialOf(%q, %q) = %v", token, cert, got)
		}
		if got.Form == CredentialEKS && got.ExpiresAt.Sub(got.IssuedAt) != 15*time.Minute && !got.ExpiresAt.IsZero() {
			t.Errorf("CredentialOf(%q) lives for %s", token, got.ExpiresAt.Sub(got.IssuedAt))
		}
	})
}
