package receive

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

// signer is an issuer of OpenID Connect on loopback.
type signer struct {
	*httptest.Server
	key *ecdsa.PrivateKey
	// asked counts requests; answers replaces what is said.
	asked   atomic.Int64
	answers atomic.Pointer[http.HandlerFunc]
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{key: key}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		if other := s.answers.Load(); other != nil {
			(*other)(w, r)
			return
		}
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": s.URL, "jwks_uri": s.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}})
		case "/keys":
			point, err := key.PublicKey.Bytes()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			encode := base64.RawURLEncoding.EncodeToString
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]any{
				"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "a", "x": encode(point[1:33]), "y": encode(point[33:]),
			}}})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *signer) sign(t *testing.T, key any, method jwt.SigningMethod, change ...func(jwt.MapClaims)) string {
	t.Helper()
	claims := jwt.MapClaims{"iss": s.URL, "aud": "receiver", "sub": "repo:team/app", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	for _, f := range change {
		f(claims)
	}
	token := jwt.NewWithClaims(method, claims)
	token.Header["kid"] = "a"
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestIssuers: tokens as an issuer signs them, and as others do.
func TestIssuers(t *testing.T) {
	s := newSigner(t)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issuers := NewIssuers(time.Now, answer.Addresses{})
	for name, tc := range map[string]struct {
		reason, token string
		good          bool
	}{
		"Good":     {"of the issuer", s.sign(t, s.key, jwt.SigningMethodES256), true},
		"Forged":   {"by another key", s.sign(t, other, jwt.SigningMethodES256), false},
		"None":     {"by no key", s.sign(t, jwt.UnsafeAllowNoneSignatureType, jwt.SigningMethodNone), false},
		"Shared":   {"by a secret that is public", s.sign(t, []byte("a"), jwt.SigningMethodHS256), false},
		"Expired":  {"a replay of yesterday's", s.sign(t, s.key, jwt.SigningMethodES256, func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Minute).Unix() }), false},
		"Audience": {"for somebody else", s.sign(t, s.key, jwt.SigningMethodES256, func(c jwt.MapClaims) { c["aud"] = "other" }), false},
		"Issuer":   {"in the name of another issuer", s.sign(t, s.key, jwt.SigningMethodES256, func(c jwt.MapClaims) { c["iss"] = "https://other.example" }), false},
		"Garbage":  {"no token", "a.b.c", false},
	} {
		t.Run(name, func(t *testing.T) {
			claims, err := issuers.Claims(t.Context(), s.URL, "receiver", tc.token)
			if tc.good != (err == nil) || tc.good && claims["sub"] != "repo:team/app" {
				t.Errorf("%s: %v, %v", tc.reason, claims, err)
			}
			var down *UnavailableError
			if errors.As(err, &down) {
				t.Errorf("%s: the issuer is called unavailable: %v", tc.reason, err)
			}
		})
	}
	before := s.asked.Load()
	for range 20 {
		if _, err := issuers.Claims(t.Context(), s.URL, "receiver", s.sign(t, s.key, jwt.SigningMethodES256)); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.asked.Load() - before; n != 0 {
		t.Errorf("%d requests for twenty tokens by a key that is known", n)
	}
}

// TestBadIssuers: issuers that lie or are gone are bounded, and asked again after a while.
func TestBadIssuers(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		answer http.HandlerFunc
	}{
		"Down": {"an error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }},
		"Endless": {"more than it may say", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"issuer":"` + strings.Repeat("a", 2*mostAnswer)))
		}},
		"Switched": {"another protocol that nobody asked for, and then nothing, to which no time limit reaches", func(w http.ResponseWriter, _ *http.Request) {
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				defer c.Close()
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				_, _ = io.Copy(io.Discard, c) // until the client hangs up
			}
		}},
		"Another": {"the name of another", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"issuer":"https://accounts.google.com"}`))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSigner(t)
			s.answers.Store(&tc.answer)
			now := time.Now()
			issuers := NewIssuers(func() time.Time { return now }, answer.Addresses{})
			token := s.sign(t, s.key, jwt.SigningMethodES256)
			var down *UnavailableError
			for range 3 {
				if _, err := issuers.Claims(t.Context(), s.URL, "receiver", token); !errors.As(err, &down) {
					t.Errorf("%s: %v", tc.reason, err)
				}
			}
			if n := s.asked.Load(); n != 1 {
				t.Errorf("%s: asked %d times", tc.reason, n)
			}
			s.answers.Store(nil)
			now = now.Add(2 * issuerRetry)
			if _, err := issuers.Claims(t.Context(), s.URL, "receiver", token); err != nil {
				t.Errorf("%s: it is back, and %v", tc.reason, err)
			}
		})
	}
}

// TestKeysAway: that keys cannot be had says nothing of a token, and who sends tokens that no key is known for has them asked for a few times.
func TestKeysAway(t *testing.T) {
	s := newSigner(t)
	now := time.Now()
	issuers := NewIssuers(func() time.Time { return now }, answer.Addresses{})
	good := s.sign(t, s.key, jwt.SigningMethodES256)
	if _, err := issuers.Claims(t.Context(), s.URL, "receiver", good); err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := s.sign(t, other, jwt.SigningMethodES256)
	for range 100 {
		if _, err := issuers.Claims(t.Context(), s.URL, "receiver", forged); err == nil {
			t.Fatal("a forged token is accepted")
		}
		if _, err := issuers.Claims(t.Context(), s.URL, "receiver", good); err != nil {
			t.Fatalf("a token by a key that is known: %v", err)
		}
	}
	if n := s.asked.Load(); n > issuerBurst {
		t.Errorf("the issuer was asked %d times for a hundred forged tokens, want %d at most", n, issuerBurst)
	}
	now = now.Add(2 * issuerRetry)
	away := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	s.answers.Store(&away)
	var down *UnavailableError
	if _, err := issuers.Claims(t.Context(), s.URL, "receiver", forged); !errors.As(err, &down) {
		t.Errorf("a token by a key that cannot be had: %v", err)
	}
}

// TestIssuersKept: issuers that do not answer take the place of none that did.
func TestIssuersKept(t *testing.T) {
	s := newSigner(t)
	issuers := NewIssuers(time.Now, answer.Addresses{})
	good := s.sign(t, s.key, jwt.SigningMethodES256)
	var down *UnavailableError
	for i := range 2 * mostIssuers {
		if _, err := issuers.Claims(t.Context(), s.URL, "receiver", good); err != nil {
			t.Fatal(err)
		}
		if _, err := issuers.Claims(t.Context(), fmt.Sprint(s.URL, "/", i), "receiver", good); !errors.As(err, &down) {
			t.Fatalf("there is no such issuer: %v", err)
		}
	}
	if n := s.asked.Load(); n != 2+2*mostIssuers || len(issuers.known) > mostIssuers {
		t.Errorf("%d requests, want two of the good one; %d are kept", n, len(issuers.known))
	}
}

// TestIssuerAddresses: an issuer that a tenant names is asked at no address that is refused, and
// sends the agent to none.
func TestIssuerAddresses(t *testing.T) {
	loopback := answer.Addresses{Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}}
	for name, tc := range map[string]struct {
		reason    string
		addresses answer.Addresses
		answer    func(s, other *signer) http.HandlerFunc // nil as an issuer does
		url       func(s *signer) string                  // nil is that of the issuer
		asked     int64
		want      string
	}{
		"Denied": {"by the flag", loopback, nil, nil, 0, answer.ReasonAddress},
		"Name":   {"a name of the same", loopback, nil, func(s *signer) string { return strings.Replace(s.URL, "127.0.0.1", "localhost", 1) }, 0, answer.ReasonAddress},
		"Link":   {"link-local", answer.Addresses{}, nil, func(*signer) string { return "http://169.254.169.254" }, 0, answer.ReasonAddress},
		"Redirect": {"a description that is elsewhere is none", answer.Addresses{}, func(_, other *signer) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, other.URL+r.URL.Path, http.StatusFound)
			}
		}, nil, 1, "302"},
		"Keys": {"keys at a metadata service", answer.Addresses{}, func(s, _ *signer) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(map[string]any{"issuer": s.URL, "jwks_uri": "http://169.254.169.254/keys", "id_token_signing_alg_values_supported": []string{"ES256"}})
			}
		}, nil, 1, answer.ReasonAddress},
	} {
		t.Run(name, func(t *testing.T) {
			s, other := newSigner(t), newSigner(t)
			if tc.answer != nil {
				f := tc.answer(s, other)
				s.answers.Store(&f)
			}
			url := s.URL
			if tc.url != nil {
				url = tc.url(s)
			}
			token := s.sign(t, s.key, jwt.SigningMethodES256)
			if _, err := NewIssuers(time.Now, tc.addresses).Claims(t.Context(), url, "receiver", token); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
			if s.asked.Load() != tc.asked || other.asked.Load() != 0 {
				t.Errorf("%s: the issuer was asked %d times, the other %d times", tc.reason, s.asked.Load(), other.asked.Load())
			}
		})
	}
}
