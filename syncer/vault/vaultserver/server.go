// Package vaultserver is a Vault for tests: logins, leases, their renewal and revocation, at a
// clock that the test has. It answers as Vault 1.21 does where that matters, and can be down,
// sealed, or lie.
package vaultserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// Lease is something that was leased.
type Lease struct {
	ID, Token string
	Expires   time.Time
	Max       time.Time
	Renewable bool
	Revoked   bool
	Secret    string
}

// Token is a login.
type Token struct {
	ID        string
	Expires   time.Time
	Renewable bool
	Batch     bool
	Revoked   bool
	TTL       time.Duration
}

// Role says what a login of the server's one role is given.
type Role struct {
	// Lease and MaxLease of what is leased; no Lease leases nothing. Login is the life of a
	// token, zero for one without an end.
	Lease, MaxLease, Login    time.Duration
	Renewable, LoginRenewable bool
	Batch                     bool
	// MayNotRevoke refuses revocations, as without the policy that all have.
	MayNotRevoke bool
	// Denied refuses logins.
	Denied bool
	// Data is what an answer has besides password.
	Data map[string]any
}

// Server is a Vault. Its fields are changed while no call is made.
type Server struct {
	URL string
	// Role is what logins have.
	Role Role
	// Answer, if not nil, answers in the place of the engine, and Before is called before each
	// call with its method and path.
	Answer http.HandlerFunc
	Before func(call string)

	now  func() time.Time
	http *httptest.Server

	mu     sync.Mutex
	down   bool
	sealed bool
	tokens map[string]*Token
	leases map[string]*Lease
	serial int
	calls  []string
	seen   []string
}

// Start starts a server, which the caller closes.
func Start(now func() time.Time, role Role) *Server {
	s := &Server{Role: role, now: now, tokens: map[string]*Token{}, leases: map[string]*Lease{}}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = s.http.URL
	return s
}

// Close ends the server.
func (s *Server) Close() { s.http.Close() }

// SetDown makes the server drop connections, or answer again.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// SetSealed seals the server, or unseals it.
func (s *Server) SetSealed(sealed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed = sealed
}

// Calls are those that were made, with their method and path.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// Logins are the bodies of logins.
func (s *Server) Logins() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

// Valid are the leases that are neither revoked nor over, by the password that they are for.
func (s *Server) Valid() map[string]Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	valid := map[string]Lease{}
	for _, l := range s.leases {
		if s.holds(l) {
			valid[l.Secret] = *l
		}
	}
	return valid
}

// Leased is how many leases there ever were.
func (s *Server) Leased() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leases)
}

// RevokeAll revokes all leases, as an operator does.
func (s *Server) RevokeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		l.Revoked = true
	}
}

func (s *Server) holds(l *Lease) bool {
	return !l.Revoked && s.now().Before(l.Expires) && s.alive(s.tokens[l.Token])
}

func (s *Server) alive(t *Token) bool {
	return t != nil && !t.Revoked && (t.Expires.IsZero() || s.now().Before(t.Expires))
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	call := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/v1/")
	if s.Before != nil {
		s.Before(call)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	if s.down {
		panic(http.ErrAbortHandler)
	}
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	if s.sealed {
		fail(w, http.StatusServiceUnavailable, "Vault is sealed")
		return
	}
	body := map[string]any{}
	if r.Method != http.MethodGet {
		_ = json.NewDecoder(r.Body).Decode(&body)
	}
	switch {
	case path == "sys/health":
		write(w, map[string]any{"initialized": true, "sealed": false})
		return
	case strings.HasPrefix(path, "auth/") && strings.HasSuffix(path, "/login"):
		s.login(w, body)
		return
	}
	token := s.tokens[r.Header.Get("X-Vault-Token")]
	if !s.alive(token) {
		fail(w, http.StatusForbidden, "permission denied", "invalid token")
		return
	}
	switch path {
	case "auth/token/lookup-self":
		write(w, map[string]any{"data": map[string]any{"id": token.ID}})
	case "auth/token/renew-self":
		if !token.Renewable {
			fail(w, http.StatusBadRequest, "token is not renewable")
			return
		}
		token.Expires = s.now().Add(token.TTL)
		write(w, map[string]any{"auth": map[string]any{"client_token": token.ID, "lease_duration": seconds(token.TTL), "renewable": true}})
	case "auth/token/revoke-self":
		if s.Role.MayNotRevoke {
			fail(w, http.StatusForbidden, "permission denied")
			return
		}
		token.Revoked = true
		w.WriteHeader(http.StatusNoContent)
	case "sys/leases/renew":
		s.renew(w, body)
	case "sys/leases/revoke":
		if s.Role.MayNotRevoke {
			fail(w, http.StatusForbidden, "permission denied")
			return
		}
		if l := s.leases[fmt.Sprint(body["lease_id"])]; l != nil {
			l.Revoked = true
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		if s.Answer != nil {
			s.Answer(w, r)
			return
		}
		s.engine(w, path, token)
	}
}

func (s *Server) login(w http.ResponseWriter, body map[string]any) {
	text, _ := json.Marshal(body)
	s.seen = append(s.seen, string(text))
	if s.Role.Denied {
		fail(w, http.StatusForbidden, "permission denied")
		return
	}
	s.serial++
	t := &Token{ID: fmt.Sprintf("hvs.token%04d", s.serial), Renewable: s.Role.LoginRenewable, Batch: s.Role.Batch, TTL: s.Role.Login}
	if t.TTL > 0 {
		t.Expires = s.now().Add(t.TTL)
	}
	accessor := fmt.Sprintf("accessor%04d", s.serial)
	if t.Batch {
		accessor = ""
	}
	s.tokens[t.ID] = t
	write(w, map[string]any{"auth": map[string]any{
		"client_token": t.ID, "accessor": accessor, "lease_duration": seconds(t.TTL), "renewable": t.Renewable,
	}})
}

func (s *Server) engine(w http.ResponseWriter, path string, token *Token) {
	s.serial++
	password := fmt.Sprintf("password%04d", s.serial)
	data := map[string]any{"username": "u", "password": password}
	for k, v := range s.Role.Data {
		data[k] = v
	}
	answer := map[string]any{"data": data}
	if s.Role.Lease > 0 {
		l := &Lease{
			ID: fmt.Sprintf("%s/%04d", path, s.serial), Token: token.ID, Renewable: s.Role.Renewable, Secret: password,
			Expires: s.now().Add(s.Role.Lease), Max: s.now().Add(max(s.Role.MaxLease, s.Role.Lease)),
		}
		s.leases[l.ID] = l
		answer["lease_id"], answer["lease_duration"], answer["renewable"] = l.ID, seconds(s.Role.Lease), l.Renewable
	}
	write(w, answer)
}

func (s *Server) renew(w http.ResponseWriter, body map[string]any) {
	l := s.leases[fmt.Sprint(body["lease_id"])]
	if l == nil || !s.holds(l) {
		fail(w, http.StatusBadRequest, "lease not found")
		return
	}
	if !l.Renewable {
		fail(w, http.StatusBadRequest, "lease is not renewable")
		return
	}
	until := s.now().Add(s.Role.Lease)
	if until.After(l.Max) {
		until = l.Max
	}
	l.Expires = until
	write(w, map[string]any{"lease_id": l.ID, "lease_duration": max(seconds(until.Sub(s.now())), 1), "renewable": true})
}

func seconds(d time.Duration) int { return int(d / time.Second) }

func write(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func fail(w http.ResponseWriter, status int, words ...string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": words})
}
