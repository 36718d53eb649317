package vault_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/syncer/vault"
	"github.com/cascade-gitops/cascade/syncer/vault/vaultserver"
)

// clock is the time of a test.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newClock() *clock { return &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

// TestSession: one login, a lease, its renewal up to the most, its end.
func TestSession(t *testing.T) {
	c := newClock()
	s := vaultserver.Start(c.now, vaultserver.Role{Lease: time.Minute, MaxLease: 100 * time.Second, Login: time.Minute, Renewable: true, LoginRenewable: true})
	defer s.Close()
	clients := &vault.Clients{Now: c.now}
	session, err := clients.Login(t.Context(), vault.Server{Address: s.URL + "/"}, vault.Login{Mount: "kubernetes", Body: map[string]string{"role": "r", "jwt": "secret-jwt"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := c.at.Add(time.Minute); !session.Token.Expires.Equal(want) || session.Token.Batch || !session.Token.Renewable {
		t.Errorf("token %+v, want one until %s", session.Token, want)
	}
	answer, err := session.Request(t.Context(), vault.Request{Path: "database/creds/app", Method: "GET"})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Lease.Duration != time.Minute || !answer.Lease.Renewable || answer.Lease.ID == "" || answer.Data["password"] == "" {
		t.Errorf("answer %+v", answer)
	}
	c.at = c.at.Add(50 * time.Second)
	again, err := clients.Resume(vault.Server{Address: s.URL}, session.Token)
	if err != nil {
		t.Fatal(err)
	}
	until, err := again.Renew(t.Context(), answer.Lease)
	if err != nil {
		t.Fatal(err)
	}
	if want := c.at.Add(50 * time.Second); !until.Equal(want) {
		t.Errorf("renewed until %s, want the most, %s", until, want)
	}
	if want := c.at.Add(time.Minute); !again.Token.Expires.Equal(want) {
		t.Errorf("the login ends at %s, want %s", again.Token.Expires, want)
	}
	if err := again.Revoke(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.Valid()) != 0 {
		t.Errorf("a revoked session leaves %v", s.Valid())
	}
	if err := again.Revoke(t.Context()); err != nil {
		t.Errorf("a second revocation: %v", err)
	}
	if _, err := again.Renew(t.Context(), answer.Lease); !errors.Is(err, vault.ErrGone) {
		t.Errorf("a renewal of what is gone: %v", err)
	}
}

// TestRenewsNothing: a server that renews a lease by nothing, as at the end of its most, makes
// it no longer: another one is to be asked for while this one is valid.
func TestRenewsNothing(t *testing.T) {
	for name, answer := range map[string]string{
		"Zero":     `{"lease_id":"database/creds/app/1","lease_duration":0,"renewable":true}`,
		"Negative": `{"lease_id":"database/creds/app/1","lease_duration":-5,"renewable":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			server := httptest.NewServer(text(answer))
			defer server.Close()
			session, err := (&vault.Clients{Now: c.now}).Resume(vault.Server{Address: server.URL}, vault.Token{ID: "token"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := session.Renew(t.Context(), vault.Lease{ID: "database/creds/app/1", Duration: time.Minute}); !errors.Is(err, vault.ErrGone) {
				t.Errorf("got %v, want that it is gone", err)
			}
		})
	}
}

// TestBatch: a batch token cannot be revoked; what it was leased can.
func TestBatch(t *testing.T) {
	c := newClock()
	s := vaultserver.Start(c.now, vaultserver.Role{Lease: time.Minute, Login: time.Hour, Batch: true})
	defer s.Close()
	clients := &vault.Clients{Now: c.now}
	session, err := clients.Login(t.Context(), vault.Server{Address: s.URL}, vault.Login{Mount: "approle", Body: map[string]string{"role_id": "r", "secret_id": "s"}})
	if err != nil || !session.Token.Batch {
		t.Fatalf("%+v, %v", session, err)
	}
	answer, err := session.Request(t.Context(), vault.Request{Path: "aws/creds/x", Method: "PUT", Parameters: map[string]string{"ttl": "1m"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Revoke(t.Context(), answer.Lease.ID); err != nil || len(s.Valid()) != 0 {
		t.Errorf("%v, %v", s.Valid(), err)
	}
}

// TestHostileServers: what a server may answer that is no Vault, or one that lies.
func TestHostileServers(t *testing.T) {
	const jwt = "eyJhbGciOiJub25lIn0.secret.jwt"
	for name, tc := range map[string]struct {
		reason string
		answer http.HandlerFunc
		want   vault.Kind
	}{
		"Huge": {"an answer without an end is not read to it", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"data":{"x":"`)
			for range 1 << 12 {
				if _, err := io.WriteString(w, strings.Repeat("a", 1<<10)); err != nil {
					return
				}
			}
		}, vault.Invalid},
		"Page":       {"a page of a web server", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, vault.Invalid},
		"Empty":      {"nothing at all", func(http.ResponseWriter, *http.Request) {}, vault.Refused},
		"NoData":     {"an answer without a credential", text(`{"lease_id":"x","lease_duration":5}`), vault.Invalid},
		"Endless":    {"a lease that does not end could not be told to have lapsed", text(`{"lease_id":"x","lease_duration":0,"data":{"a":"b"}}`), vault.Invalid},
		"Negative":   {"a lease that ended before it began", text(`{"lease_id":"x","lease_duration":-60,"data":{"a":"b"}}`), vault.Invalid},
		"NoNumber":   {"a duration that is none", text(`{"lease_id":"x","lease_duration":"soon","data":{"a":"b"}}`), vault.Invalid},
		"HugeNumber": {"a duration past all bounds", text(`{"lease_id":"x","lease_duration":1e300,"data":{"a":"b"}}`), vault.Invalid},
		"Wrapped":    {"a wrapped answer has no credential", text(`{"wrap_info":{"token":"x","ttl":60},"data":{"a":"b"}}`), vault.Invalid},
		"LongName":   {"a name of a lease that fills the journal", text(`{"lease_id":"` + strings.Repeat("x", 5000) + `","lease_duration":60,"data":{"a":"b"}}`), vault.Invalid},
		"Redirect": {"a login is not sent on", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://203.0.113.1/", http.StatusTemporaryRedirect)
		}, vault.Refused},
		"Switched": {"one that changes the protocol, which nobody asked for, and says nothing more", func(w http.ResponseWriter, _ *http.Request) {
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				defer c.Close()
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				_, _ = io.Copy(io.Discard, c) // until the client hangs up
			}
		}, vault.Unreachable},
		"Failing":   {"a server that fails is asked again", status(500), vault.Unreachable},
		"Sealed":    {"a sealed one, too", status(503), vault.Unreachable},
		"Throttled": {"one that has too much to do", status(429), vault.Unreachable},
		"Denied":    {"one that will not", status(403), vault.Refused},
		"Echo": {"one that sends back what it was sent", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(403)
			fmt.Fprintf(w, `{"errors":["no: %s %s"]}`, r.Header.Get("X-Vault-Token"), jwt)
		}, vault.Refused},
		"ControlChars": {"words that would move a terminal's cursor", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			_, _ = io.WriteString(w, `{"errors":["a\u001b[2Jb\nc"]}`)
		}, vault.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			s := vaultserver.Start(c.now, vaultserver.Role{})
			defer s.Close()
			clients := &vault.Clients{Now: c.now}
			session, err := clients.Login(t.Context(), vault.Server{Address: s.URL}, vault.Login{Mount: "jwt", Body: map[string]string{"role": "r", "jwt": jwt}})
			if err != nil {
				t.Fatal(err)
			}
			s.Answer = tc.answer
			_, err = session.Request(t.Context(), vault.Request{Path: "kv/data/x", Method: "GET"})
			if !vault.Is(err, tc.want) {
				t.Errorf("%s\nerror %v, want one of kind %d", tc.reason, err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hvs.") || strings.Contains(err.Error(), jwt) || strings.ContainsAny(err.Error(), "\n\x1b")) {
				t.Errorf("the error tells too much: %q", err)
			}
		})
	}
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"errors":[]}`)
	}
}

// TestCutLife: centuries are cut, so that no time overflows.
func TestCutLife(t *testing.T) {
	c := newClock()
	s := vaultserver.Start(c.now, vaultserver.Role{})
	defer s.Close()
	clients := &vault.Clients{Now: c.now}
	session, err := clients.Login(t.Context(), vault.Server{Address: s.URL}, vault.Login{Mount: "jwt", Body: map[string]string{"jwt": "j"}})
	if err != nil {
		t.Fatal(err)
	}
	s.Answer = text(`{"lease_id":"x","lease_duration":9000000000000,"data":{"a":"b"}}`)
	answer, err := session.Request(t.Context(), vault.Request{Path: "x", Method: "GET"})
	if err != nil || answer.Lease.Duration != 10*365*24*time.Hour {
		t.Errorf("%+v, %v", answer, err)
	}
}

// TestProbe tells a server that is there from one that is not, or sealed.
func TestProbe(t *testing.T) {
	c := newClock()
	s := vaultserver.Start(c.now, vaultserver.Role{})
	defer s.Close()
	clients := &vault.Clients{Now: c.now}
	if err := clients.Probe(t.Context(), vault.Server{Address: s.URL, Namespace: "team"}); err != nil {
		t.Error(err)
	}
	s.SetSealed(true)
	if err := clients.Probe(t.Context(), vault.Server{Address: s.URL}); !vault.Is(err, vault.Unreachable) || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("of a sealed one: %v", err)
	}
	s.SetSealed(false)
	s.SetDown(true)
	if err := clients.Probe(t.Context(), vault.Server{Address: s.URL}); !vault.Is(err, vault.Unreachable) {
		t.Errorf("of one that is down: %v", err)
	}
}

// TestRefusals: logins that are never sent.
func TestRefusals(t *testing.T) {
	for name, address := range map[string]string{
		"Socket": "unix:///run/vault.sock", "File": "file:///etc", "Nothing": "", "User": "https://u:p@vault.example.com", "Query": "https://vault.example.com/?a=b",
	} {
		t.Run(name, func(t *testing.T) {
			if err := vault.CheckAddress(address); !vault.Is(err, vault.Invalid) {
				t.Errorf("%q: %v", address, err)
			}
		})
	}
	c := newClock()
	clients := &vault.Clients{Now: c.now, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("the address is refused")
	}}
	if _, err := clients.Login(t.Context(), vault.Server{Address: "http://vault.example.com"}, vault.Login{Mount: "jwt"}); !vault.Is(err, vault.Unreachable) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("an address that may not be dialed: %v", err)
	}
	if _, err := clients.Login(t.Context(), vault.Server{Address: "https://vault.example.com", CA: []byte("no PEM")}, vault.Login{}); !vault.Is(err, vault.Invalid) {
		t.Errorf("an authority that is none: %v", err)
	}
	if _, err := clients.Resume(vault.Server{Address: "https://vault.example.com"}, vault.Token{ID: "a\nb"}); !vault.Is(err, vault.Invalid) {
		t.Errorf("a token with a line feed: %v", err)
	}
}

// TestEnvironment: nothing of the process's environment is used.
func TestEnvironment(t *testing.T) {
	t.Setenv("VAULT_TOKEN", "of-the-process")
	t.Setenv("VAULT_NAMESPACE", "other")
	t.Setenv("VAULT_ADDR", "http://203.0.113.1")
	var headers http.Header
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers = r.Header.Clone()
		_, _ = io.WriteString(w, `{"auth":{"client_token":"t","accessor":"a"}}`)
	}))
	defer s.Close()
	clients := &vault.Clients{Now: newClock().now}
	if _, err := clients.Login(t.Context(), vault.Server{Address: s.URL}, vault.Login{Mount: "jwt", Body: map[string]string{"jwt": "j"}}); err != nil {
		t.Fatal(err)
	}
	if headers.Get("X-Vault-Token") != "" || headers.Get("X-Vault-Namespace") != "" {
		t.Errorf("headers %v", headers)
	}
	if _, err := clients.Login(t.Context(), vault.Server{Address: s.URL, Namespace: "team"}, vault.Login{Mount: "jwt", Body: map[string]string{"jwt": "j"}}); err != nil {
		t.Fatal(err)
	}
	if headers.Get("X-Vault-Namespace") != "team" {
		t.Errorf("headers %v", headers)
	}
}

// TestTLS: a server is trusted by the authority that is named, and by no other.
func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(text(`{"auth":{"client_token":"t","accessor":"a"}}`))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshake that is refused
	s.StartTLS()
	defer s.Close()
	clients := &vault.Clients{Now: newClock().now}
	l := vault.Login{Mount: "jwt", Body: map[string]string{"jwt": "j"}}
	if _, err := clients.Login(t.Context(), vault.Server{Address: s.URL}, l); !vault.Is(err, vault.Unreachable) {
		t.Errorf("an unknown authority: %v", err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if _, err := clients.Login(t.Context(), vault.Server{Address: s.URL, CA: ca}, l); err != nil {
		t.Errorf("the named authority: %v", err)
	}
}

// FuzzAnswer: whatever a server answers, a call ends with an answer that can be used, or an
// error with a kind.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"data":{"a":"b"}}`, `{"lease_id":"x","lease_duration":60,"renewable":true,"data":{"password":"p"}}`, `{"auth":{}}`, `null`, `[]`, `{`, `{"errors":["x"],"a":1}`,
		`{"lease_id":"x","lease_duration":-1,"data":{"a":null}}`,
	} {
		f.Add([]byte(seed))
	}
	now := newClock().now
	var body []byte
	s := vaultserver.Start(now, vaultserver.Role{})
	f.Cleanup(s.Close)
	s.Answer = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }
	clients := &vault.Clients{Now: now}
	session, err := clients.Login(context.Background(), vault.Server{Address: s.URL}, vault.Login{Mount: "jwt", Body: map[string]string{"jwt": "j"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		body = text
		answer, err := session.Request(t.Context(), vault.Request{Path: "x", Method: "GET"})
		var e *vault.Error
		switch {
		case err != nil && !errors.As(err, &e):
			t.Errorf("error %v has no kind", err)
		case err == nil && (len(answer.Data) == 0 || answer.Lease.ID != "" && answer.Lease.Duration <= 0):
			t.Errorf("answer %+v cannot be used", answer)
		}
	})
}
