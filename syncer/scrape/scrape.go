// Package scrape decides who may read what the agent serves, by asking the API server.
//
// A Filter wants a bearer token with each request, has the API server say whose it is
// (TokenReview), and whether that user may read the path (SubjectAccessReview of a
// non-resource URL, such as get /metrics; or of a resource, for pages about objects). That is what the metrics filter of
// controller-runtime does, which links the API server's own libraries for it: fifty
// packages, tracing exporters among them.
//
// Below a tree, the right to a directory is the right to all in it: who may get /children/ or
// /children/fleet/ is not asked about for each child, of which there may be thousands.
//
// Invariants:
//
//   - nothing is served that the API server did not allow within the last minute;
//   - tokens are kept as digests only, and never logged;
//   - whoever sends tokens that nobody knows costs the API server at most so many
//     requests at a time.
//
// Failure model: an API server that does not answer lets nobody in; the scraper gets 503
// and comes back.
package scrape

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Numbers of a Filter.
const (
	// allowed and refused are how long an answer stands. A right that is taken away
	// ends within the first.
	allowed = time.Minute
	refused = 10 * time.Second
	// timeout bounds both questions about one request.
	timeout = 10 * time.Second
	// mostAsked is how many requests are asked about at a time, mostKnown how many
	// answers are kept, and mostToken the longest token that is looked at.
	mostAsked = 4
	mostKnown = 4000
	mostToken = 16 << 10
)

// Filter lets those read that the API server allows. It is safe for concurrent use.
type Filter struct {
	clients kubernetes.Interface
	now     func() time.Time
	asking  chan struct{}
	trees   []string

	mu    sync.Mutex // guards known; never held over a request
	known map[question]answer
}

// question is who asks for what, the token as a digest.
type question struct {
	token      [sha256.Size]byte
	verb, path string
	// resource is empty for a question about a path. It has no selectors.
	resource authzv1.ResourceAttributes
}

// answer is an HTTP status, until a time.
type answer struct {
	status int
	until  time.Time
}

// New returns a Filter that asks the API server of these clients. trees are paths that end
// with a slash.
func New(clients kubernetes.Interface, now func() time.Time, trees ...string) *Filter {
	return &Filter{clients: clients, now: now, asking: make(chan struct{}, mostAsked), trees: trees, known: map[question]answer{}}
}

// Handler serves what next serves to those who may read it. Others get 401 without a
// token that somebody has, 403 without the right, and 503 if nobody can tell.
func (f *Filter) Handler(log logr.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := f.decide(r)
		switch {
		case err != nil:
			log.Error(err, "cannot tell who asks for metrics")
			http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
		case status != http.StatusOK:
			if status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			http.Error(w, http.StatusText(status), status)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// decide returns the status for a request.
func (f *Filter) decide(r *http.Request) (int, error) {
	token := Token(r)
	if token == "" {
		return http.StatusUnauthorized, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	q := question{token: sha256.Sum256([]byte(token)), verb: strings.ToLower(r.Method)}
	status, err := 0, error(nil)
	for _, q.path = range f.paths(r.URL.Path) {
		if status, err = f.answer(ctx, token, q); err != nil || status != http.StatusForbidden {
			return status, err
		}
	}
	return status, nil
}

// paths are those of which one is to be allowed: the directories of a tree above a path,
// from the top, and the path.
func (f *Filter) paths(path string) []string {
	for _, tree := range f.trees {
		rest, below := strings.CutPrefix(path, tree)
		if !below {
			continue
		}
		paths := []string{tree}
		if first, _, more := strings.Cut(rest, "/"); more {
			paths = append(paths, tree+first+"/")
		}
		return append(paths, path)
	}
	return []string{path}
}

// May returns the HTTP status for the question whether who has a token may do something
// with a resource: 200, 401 if nobody has the token, or 403. With an error nobody can tell.
func (f *Filter) May(ctx context.Context, token string, of authzv1.ResourceAttributes) (int, error) {
	if token == "" || len(token) > mostToken {
		return http.StatusUnauthorized, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	of.FieldSelector, of.LabelSelector = nil, nil // answers are kept by value
	return f.answer(ctx, token, question{token: sha256.Sum256([]byte(token)), resource: of})
}

// Token is the bearer token of a request, empty if it has none.
func Token(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || len(token) > mostToken {
		return ""
	}
	return token
}

// answer is the status for a question, from memory or from the API server. The caller
// bounds its time.
func (f *Filter) answer(ctx context.Context, token string, q question) (int, error) {
	if status := f.recall(q); status != 0 {
		return status, nil
	}
	select {
	case f.asking <- struct{}{}:
		defer func() { <-f.asking }()
	case <-ctx.Done():
		return 0, fmt.Errorf("too many ask at a time: %w", ctx.Err())
	}
	if status := f.recall(q); status != 0 {
		return status, nil // somebody asked the same meanwhile
	}
	status, err := f.ask(ctx, token, q)
	if err != nil {
		return 0, err
	}
	f.keep(q, status)
	return status, nil
}

func (f *Filter) ask(ctx context.Context, token string, q question) (int, error) {
	review, err := f.clients.AuthenticationV1().TokenReviews().Create(ctx, &authnv1.TokenReview{Spec: authnv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("cannot create TokenReview: %w", err)
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := review.Status.User
	extra := map[string]authzv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authzv1.ExtraValue(values)
	}
	spec := authzv1.SubjectAccessReviewSpec{User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra}
	if q.path != "" {
		spec.NonResourceAttributes = &authzv1.NonResourceAttributes{Path: q.path, Verb: q.verb}
	} else {
		spec.ResourceAttributes = &q.resource
	}
	access, err := f.clients.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authzv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return 0, fmt.Errorf("cannot create SubjectAccessReview: %w", err)
	case access.Status.Allowed:
		return http.StatusOK, nil
	}
	return http.StatusForbidden, nil
}

// recall is the status that was answered before, 0 if there is none.
func (f *Filter) recall(q question) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known, ok := f.known[q]; ok && f.now().Before(known.until) {
		return known.status
	}
	return 0
}

func (f *Filter) keep(q question, status int) {
	now, lasts := f.now(), refused
	if status == http.StatusOK {
		lasts = allowed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.known) >= mostKnown {
		maps.DeleteFunc(f.known, func(_ question, a answer) bool { return !now.Before(a.until) || a.status != http.StatusOK })
	}
	if len(f.known) >= mostKnown {
		clear(f.known)
	}
	f.known[q] = answer{status, now.Add(lasts)}
}
