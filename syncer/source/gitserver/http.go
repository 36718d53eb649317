package gitserver

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"os"
	"strings"
)

// The requests of the smart protocol; git-http-backend knows more, which would
// serve the repository's files.
const (
	infoRefs    = "/info/refs"
	uploadPack  = "/git-upload-pack"
	receivePack = "/git-receive-pack"
)

func (s *Server) newHTTP() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(s.handleHTTP),
		ReadHeaderTimeout: headerTimeout,
		ErrorLog:          log.New(s.options.Log, "http: ", 0),
	}
}

func (s *Server) serveHTTP() {
	// It returns when the server is closed, and for no other reason that a
	// caller could act on.
	if err := s.http.Serve(s.web); err != nil && s.ctx.Err() == nil {
		fmt.Fprintf(s.options.Log, "http: %v\n", err)
	}
}

func (s *Server) handleHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		return
	}
	defer s.tasks.Done()
	if !s.allowed(r) {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "wrong or missing credentials", http.StatusUnauthorized)
		return
	}
	// CGI passes headers on as variables, to hooks too.
	r.Header.Del("Authorization")
	repository, service, ok := split(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	name, _, err := s.resolve(repository)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	if err := s.classify(name, service, r); err != nil {
		http.Error(w, "cannot read request", http.StatusBadRequest)
		return
	}
	done, err := spool(r)
	if err != nil {
		http.Error(w, "cannot read request", http.StatusBadRequest)
		return
	}
	defer done()
	s.backendFor(r).ServeHTTP(w, r)
}

// enter counts a handler as a task of the server, unless the server is closing:
// net/http does not wait for handlers when it closes.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.tasks.Add(1)
	return true
}

// backendFor runs git-http-backend for one request. It ends with the connection:
// its input ends and its output breaks.
func (s *Server) backendFor(r *http.Request) http.Handler {
	user := s.options.Username
	if user == "" {
		user = "git"
	}
	return &cgi.Handler{
		Path: s.backend,
		Dir:  s.root,
		Env: append(environment(),
			"GIT_PROJECT_ROOT="+s.root,
			"GIT_HTTP_EXPORT_ALL=1",
			"GIT_PROTOCOL="+r.Header.Get("Git-Protocol"),
			// Pushes are refused without a user.
			"REMOTE_USER="+user),
		Logger: log.New(s.options.Log, "git-http-backend: ", 0),
		Stderr: s.options.Log,
	}
}

func (s *Server) hasPassword() bool { return s.options.Username != "" || s.options.Password != "" }

// allowed checks the credentials of a request.
func (s *Server) allowed(r *http.Request) bool {
	if !s.hasPassword() && s.options.BearerToken == "" {
		return true
	}
	if user, password, ok := r.BasicAuth(); ok {
		return s.hasPassword() && same(user, s.options.Username) && same(password, s.options.Password)
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && s.options.BearerToken != "" && same(token, s.options.BearerToken)
}

// same compares in a time that tells nothing, the length included.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// split takes a request apart; ok is false for all but the smart protocol.
func split(r *http.Request) (repository, service string, ok bool) {
	for service, method := range map[string]string{
		infoRefs: http.MethodGet, uploadPack: http.MethodPost, receivePack: http.MethodPost,
	} {
		repository, found := strings.CutSuffix(r.URL.Path, service)
		if !found {
			continue
		}
		repository, absolute := strings.CutPrefix(repository, "/")
		return repository, service, absolute && strings.HasSuffix(repository, suffix) && r.Method == method
	}
	return "", "", false
}

// classify counts a request. To tell a list from a fetch it looks at the
// beginning of the body and puts it back.
func (s *Server) classify(name, service string, r *http.Request) error {
	switch service {
	case receivePack:
		s.count(name, func(t *Traffic) { t.Pushes++ })
	case infoRefs:
		if r.URL.Query().Get("service") == "git-upload-pack" {
			s.count(name, func(t *Traffic) { t.Discoveries++ })
		}
	case uploadPack:
		list, err := peekList(r)
		if err != nil {
			return err
		}
		s.count(name, func(t *Traffic) {
			if list {
				t.Lists++
			} else {
				t.Fetches++
			}
		})
	}
	return nil
}

// peekLimit is enough of a body, compressed or not, to hold its first command.
const peekLimit = 512

func peekList(r *http.Request) (bool, error) {
	head := make([]byte, peekLimit)
	n, err := io.ReadFull(r.Body, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return false, err
	}
	head = head[:n]
	r.Body = rejoined{io.MultiReader(bytes.NewReader(head), r.Body), r.Body}
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzip, err := gzip.NewReader(bytes.NewReader(head))
		if err != nil {
			return false, err
		}
		// The head is cut off somewhere: what it yields until then is enough.
		head, _ = bufio.NewReader(unzip).Peek(len("0014command=ls-refs"))
	}
	return len(head) > 4 && bytes.HasPrefix(head[4:], []byte("command=ls-refs")), nil
}

// rejoined is a body whose beginning was read already.
type rejoined struct {
	io.Reader
	io.Closer
}

// spool gives a body of unknown length a length, which CGI requires: clients
// send a large push in chunks. The returned function cleans up.
func spool(r *http.Request) (func(), error) {
	if r.ContentLength >= 0 {
		return func() {}, nil
	}
	file, err := os.CreateTemp("", "gitserver-body-*")
	if err != nil {
		return nil, err
	}
	done := func() {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}
	length, err := io.Copy(file, r.Body)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, err
	}
	r.Body, r.ContentLength, r.TransferEncoding = file, length, nil
	return done, nil
}
