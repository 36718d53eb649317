package scrape

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// apiServer knows the tokens good and poor, of which the first may read /metrics.
func apiServer(fails error) *fake.Clientset {
	c := fake.NewClientset()
	c.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authnv1.TokenReview).DeepCopy()
		switch token := review.Spec.Token; token {
		case "good", "poor":
			review.Status = authnv1.TokenReviewStatus{Authenticated: true, User: authnv1.UserInfo{Username: token, Groups: []string{"scrapers"}}}
		default:
			review.Status = authnv1.TokenReviewStatus{Error: "invalid bearer token"}
		}
		return true, review, fails
	})
	c.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authzv1.SubjectAccessReview).DeepCopy()
		at := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "good" && review.Spec.Groups[0] == "scrapers" && at.Verb == "get" && at.Path == "/metrics"
		return true, review, nil
	})
	return c
}

func TestFilter(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		reason, method, path, header string
		fails                        error
		status                       int
	}{
		"Allowed":   {"a scraper with the right", http.MethodGet, "/metrics", "Bearer good", nil, 200},
		"Case":      {"the scheme is not a matter of case", http.MethodGet, "/metrics", "bearer good", nil, 200},
		"Nobody":    {"no token", http.MethodGet, "/metrics", "", nil, 401},
		"Basic":     {"another scheme", http.MethodGet, "/metrics", "Basic good", nil, 401},
		"Unknown":   {"a token that nobody has", http.MethodGet, "/metrics", "Bearer bad", nil, 401},
		"Long":      {"a token that is none costs no request", http.MethodGet, "/metrics", "Bearer " + strings.Repeat("x", mostToken+1), nil, 401},
		"Forbidden": {"somebody without the right", http.MethodGet, "/metrics", "Bearer poor", nil, 403},
		"Path":      {"profiles are another right", http.MethodGet, "/debug/pprof/heap", "Bearer good", nil, 403},
		"Method":    {"and so is another verb", http.MethodPost, "/metrics", "Bearer good", nil, 403},
		"NoAnswer":  {"who cannot tell lets nobody in", http.MethodGet, "/metrics", "Bearer good", errors.New("no route to host"), 503},
	} {
		t.Run(name, func(t *testing.T) {
			f := New(apiServer(tc.fails), func() time.Time { return now })
			served := false
			handler := f.Handler(logr.Discard(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
			r := httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, nil)
			if tc.header != "" {
				r.Header.Set("Authorization", tc.header)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != tc.status || served != (tc.status == 200) {
				t.Errorf("%s: %d, served %t, want %d", tc.reason, w.Code, served, tc.status)
			}
		})
	}
}

// TestFilterRemembers: the API server is asked once a minute, not with each scrape; what
// is remembered has a bound.
func TestFilterRemembers(t *testing.T) {
	now := time.Unix(1000, 0)
	clients := apiServer(nil)
	f := New(clients, func() time.Time { return now })
	handler := f.Handler(logr.Discard(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ask := func(token string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	for _, step := range []struct {
		reason, token string
		after         time.Duration
		requests      int
	}{
		{"the first time", "good", 0, 2},
		{"right after", "good", allowed / 2, 0},
		{"a minute later", "good", allowed, 2},
		{"somebody without the right", "poor", 0, 2},
		{"again", "poor", refused / 2, 0},
		{"who may have got it since", "poor", refused, 2},
	} {
		now = now.Add(step.after)
		clients.ClearActions()
		ask(step.token)
		if got := len(clients.Actions()); got != step.requests {
			t.Errorf("%s: %d requests, want %d", step.reason, got, step.requests)
		}
	}
	ask("good")
	for i := range 3 * mostKnown {
		ask(fmt.Sprint("bad", i))
		if len(f.known) > mostKnown {
			t.Fatalf("%d answers are kept", len(f.known))
		}
	}
	clients.ClearActions()
	if code := ask("good"); code != 200 || len(clients.Actions()) != 0 {
		t.Errorf("strangers displaced who was allowed: %d, %d requests", code, len(clients.Actions()))
	}
}

// TestTrees: below a tree the right to a directory is the right to all in it, and who has it
// is asked about once, not for each child.
func TestTrees(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		reason, may, path string
		status, requests  int
	}{
		"All":       {"all children", "/children/", "/children/fleet/a/agent", 200, 2},
		"Namespace": {"those of a namespace", "/children/fleet/", "/children/fleet/a/agent", 200, 4},
		"One":       {"one alone", "/children/fleet/a/agent", "/children/fleet/a/agent", 200, 6},
		"Another":   {"not a neighbour", "/children/fleet/a/agent", "/children/fleet/b/agent", 403, 6},
		"Other":     {"not another namespace", "/children/fleet/", "/children/team/a/agent", 403, 6},
		"Outside":   {"not what is beside the tree", "/children/", "/metrics", 403, 2},
		"Directory": {"outside of a tree a directory is a path as any other", "/debug/", "/debug/pprof/heap", 403, 2},
	} {
		t.Run(name, func(t *testing.T) {
			clients := apiServer(nil)
			clients.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
				review := a.(clienttesting.CreateAction).GetObject().(*authzv1.SubjectAccessReview).DeepCopy()
				review.Status.Allowed = review.Spec.NonResourceAttributes.Path == tc.may
				return true, review, nil
			})
			f := New(clients, func() time.Time { return now }, "/children/")
			handler := f.Handler(logr.Discard(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			for i, requests := range []int{tc.requests, 0} {
				clients.ClearActions()
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tc.path, nil)
				r.Header.Set("Authorization", "Bearer good")
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code != tc.status || len(clients.Actions()) != requests {
					t.Errorf("%s, time %d: %d with %d requests, want %d with %d", tc.reason, i, w.Code, len(clients.Actions()), tc.status, requests)
				}
			}
		})
	}
}
