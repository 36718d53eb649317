package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cascade-gitops/cascade/cmd/cascade/page"
)

// Numbers of a server.
const (
	// mostStreams is how many pages follow changes at a time, streamLife how long one
	// does before the browser comes again.
	mostStreams = 32
	streamLife  = 10 * time.Minute
	// mostReads is how many pages are made at a time.
	mostReads = 8
	// mostURL is the longest path and query that is looked at.
	mostURL = 16 << 10
)

// Options of a Server.
type Options struct {
	// Source is what the reader of a request may read. Its error is a *Refusal, or one of
	// the API server.
	Source func(*http.Request) (*Source, error)
	// Loopback: it serves one person on their own machine. Requests must be for this
	// address, of the form host:port, and their path must begin with Key.
	Loopback, Key string
	// Look is how often it is looked for changes of a page that is open.
	Look time.Duration
	Now  func() time.Time
	Log  logr.Logger
}

// Refusal is a request that nobody's data answer.
type Refusal struct{ Status int }

func (r *Refusal) Error() string { return http.StatusText(r.Status) }

// Server serves pages. It is safe for concurrent use.
type Server struct {
	Options
	pages   *page.Pages
	streams chan struct{}
	reads   chan struct{}
}

// New returns a Server.
func New(o Options) (*Server, error) {
	pages, err := page.New()
	if err != nil {
		return nil, err
	}
	return &Server{o, pages, make(chan struct{}, mostStreams), make(chan struct{}, mostReads)}, nil
}

// HTTP is a server of these pages with bounds on what a client may hold. The caller serves
// and closes it. Its streams end with the context.
func (s *Server) HTTP(ctx context.Context) *http.Server {
	return &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return ctx },
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protect(w.Header())
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		s.problem(w, r, http.StatusMethodNotAllowed, "Pages are only read", "Nothing can be changed here.")
		return
	case len(r.URL.Path)+len(r.URL.RawQuery) > mostURL:
		s.problem(w, r, http.StatusRequestURITooLong, "The address is too long", "Begin at the first page.")
		return
	case s.Loopback != "" && !s.ours(r.Host):
		// A name of somebody else's site may lead to this address.
		s.problem(w, r, http.StatusMisdirectedRequest, "This is another server", "Use the address that cascade web printed.")
		return
	}
	path, ok := s.below(r.URL.Path)
	if !ok {
		s.problem(w, r, http.StatusNotFound, "There is no such page", "Use the address that cascade web printed.")
		return
	}
	if content, mediaType, found := page.Asset(path); found {
		w.Header().Set("Content-Type", mediaType)
		write(w, r, http.StatusOK, content)
		return
	}
	q := page.ParseQuery(r.URL.Query())
	switch name, known := nameOf(path); {
	case path == "live":
		s.live(w, r, q)
	case known:
		s.page(w, r, name, q)
	default:
		s.problem(w, r, http.StatusNotFound, "There is no such page", "Begin at the first page.")
	}
}

// protect tells a browser to run and load nothing but what this program serves.
func protect(h http.Header) {
	for key, value := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
	} {
		h.Set(key, value)
	}
}

// ours reports whether a request is for the loopback address that is served.
func (s *Server) ours(host string) bool {
	_, port, err := net.SplitHostPort(s.Loopback)
	if err != nil {
		return false
	}
	return host == s.Loopback || host == net.JoinHostPort("localhost", port)
}

// below is a path without what it must begin with.
func (s *Server) below(path string) (string, bool) {
	path = strings.TrimPrefix(path, "/")
	if s.Key == "" {
		return path, true
	}
	key, rest, found := strings.Cut(path, "/")
	return rest, found && subtle.ConstantTimeCompare([]byte(key), []byte(s.Key)) == 1
}

// nameOf is the page of a path.
func nameOf(path string) (page.Name, bool) {
	if path == "" {
		return page.Fleet, true
	}
	for _, n := range page.Names() {
		if path == n.Path() {
			return n, true
		}
	}
	return "", false
}

// page serves one page.
func (s *Server) page(w http.ResponseWriter, r *http.Request, n page.Name, q page.Query) {
	text, err := s.make(r, n, q, s.Now())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	write(w, r, http.StatusOK, text)
}

// make reads what a page needs and writes it.
func (s *Server) make(r *http.Request, n page.Name, q page.Query, now time.Time) ([]byte, error) {
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-r.Context().Done():
		return nil, fmt.Errorf("cannot read: %w", r.Context().Err())
	}
	source, err := s.Source(r)
	if err != nil {
		return nil, err
	}
	f, err := source.facts(r.Context(), n, q, now)
	if err != nil {
		return nil, err
	}
	return s.pages.Render(n, f, q, now)
}

// fail says that a page cannot be shown, without any name of the tier.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var refusal *Refusal
	switch {
	case errors.As(err, &refusal) && refusal.Status == http.StatusUnauthorized, apierrors.IsUnauthorized(err):
		w.Header().Set("WWW-Authenticate", "Bearer")
		s.problem(w, r, http.StatusUnauthorized, "Nobody knows you", "Send a bearer token that the API server of this tier takes, or use cascade web.")
	case errors.As(err, &refusal) && refusal.Status == http.StatusForbidden, apierrors.IsForbidden(err):
		s.problem(w, r, http.StatusForbidden, "You may not read this",
			"The page is made of kinds that you may not list here. Ask for the ClusterRole in docs/page.md, or add ?namespace= of one in which you may.")
	default:
		s.Log.Error(err, "cannot show a page")
		s.problem(w, r, http.StatusServiceUnavailable, "The tier cannot be read", "Its API server did not answer as it should. Reload the page; see what the server logs.")
	}
}

func (s *Server) problem(w http.ResponseWriter, r *http.Request, status int, title, text string) {
	content, err := s.pages.Problem(title, text)
	if err != nil {
		http.Error(w, title, status)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	write(w, r, status, content)
}

func write(w http.ResponseWriter, r *http.Request, status int, content []byte) {
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(content) // a browser that left needs nothing more
	}
}

// live tells a page when it is another one, and when the tier cannot be read, as server-sent
// events. Rights are asked for with each look.
func (s *Server) live(w http.ResponseWriter, r *http.Request, q page.Query) {
	name := page.Name(r.URL.Query().Get("of"))
	if required, _ := page.Needs(name); required == nil {
		s.problem(w, r, http.StatusNotFound, "There is no such page", "Begin at the first page.")
		return
	}
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		w.Header().Set("Retry-After", "30")
		s.problem(w, r, http.StatusServiceUnavailable, "Too many pages follow changes", "Reload the page to see what is new.")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), streamLife)
	defer cancel()
	r = r.WithContext(ctx)
	now, err := s.digest(r, name, q)
	if refused(err) {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // proxies pass events on at once
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	send := func(text string) bool {
		// A client that takes nothing keeps its place for so long only.
		_ = control.SetWriteDeadline(time.Now().Add(2 * s.Look))
		_, err := w.Write([]byte(text))
		return err == nil && control.Flush() == nil
	}
	if !send("retry: 5000\n\n") {
		return
	}
	tick := time.NewTicker(s.Look)
	defer tick.Stop()
	// Any other answer than a stream would be the last one that a browser asks for, so one that
	// begins while the tier cannot be read says so as well.
	for last, unread := now, false; ctx.Err() == nil; now, err = s.digest(r, name, q) {
		text := ": \n\n"
		switch {
		case refused(err):
			send("event: ended\ndata: refused\n\n")
			return
		case err != nil && !unread:
			s.Log.Error(err, "cannot read for a page that is open")
			unread = true
			text = "event: unread\ndata: page\n\n"
		case err == nil && (unread || now != last):
			last, unread = now, false
			text = "event: changed\ndata: page\n\n"
		}
		if !send(text) {
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// refused reports whether an error is an answer to the reader, and not the lack of one.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || errors.As(err, new(*Refusal))
}

// digest identifies what a page says. Ages move once a minute.
func (s *Server) digest(r *http.Request, n page.Name, q page.Query) ([sha256.Size]byte, error) {
	text, err := s.make(r, n, q, s.Now().Truncate(time.Minute))
	return sha256.Sum256(bytes.TrimSpace(text)), err
}

// Address is the URL of the first page of a server on loopback.
func (s *Server) Address() string {
	u := url.URL{Scheme: "http", Host: s.Loopback, Path: "/" + s.Key + "/"}
	return u.String()
}
