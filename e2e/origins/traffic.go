package origins

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// Request is what a client asked.
type Request struct {
	Method string
	Path   string
	// Username and Password are of HTTP basic authentication.
	Username, Password string
	// Authorization is the header as it was sent.
	Authorization string
	// Condition is the If-None-Match header.
	Condition string
	// Status is the answer's.
	Status int
}

// server is a listener with a record, which every origin has.
type server struct {
	listener *httptest.Server

	mu       sync.Mutex
	requests []Request
	fault    http.Handler
}

// listen serves a handler until close. deny reports whether a request lacks what
// it must have, and has answered it then; nil lets everyone in.
func (s *server) listen(h http.Handler, deny func(http.ResponseWriter, *http.Request) bool) {
	s.listener = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := Request{Method: r.Method, Path: r.URL.Path, Authorization: r.Header.Get("Authorization"), Condition: r.Header.Get("If-None-Match")}
		asked.Username, asked.Password, _ = r.BasicAuth()
		answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		s.mu.Lock()
		fault := s.fault
		s.mu.Unlock()
		switch {
		case fault != nil:
			fault.ServeHTTP(answer, r)
		case deny != nil && deny(answer, r):
		default:
			h.ServeHTTP(answer, r)
		}
		asked.Status = answer.status
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, asked)
	}))
}

// Fault has h answer everything from now on; nil ends that.
func (s *server) Fault(h http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = h
}

// Address is host and port.
func (s *server) Address() string { return s.listener.Listener.Addr().String() }

// Close ends the server. Requests in flight end with it.
func (s *server) Close() {
	s.listener.CloseClientConnections()
	s.listener.Close()
}

// Requests returns what was asked and answered so far.
func (s *server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Count says how many requests of a method had a path that contains part, and
// were answered with a status.
func (s *server) Count(method, part string, status int) int {
	n := 0
	for _, r := range s.Requests() {
		if r.Method == method && r.Status == status && strings.Contains(r.Path, part) {
			n++
		}
	}
	return n
}

// Login is a name and a password that a server wants by basic authentication. The
// zero value wants none.
type Login struct{ Username, Password string }

// deny answers who does not have the login.
func (l Login) deny(w http.ResponseWriter, r *http.Request) bool {
	username, password, _ := r.BasicAuth()
	if l == (Login{}) || username == l.Username && password == l.Password {
		return false
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="origin"`)
	http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"wrong credentials"}]}`, http.StatusUnauthorized)
	return true
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets an http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
