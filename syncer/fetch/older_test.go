package fetch

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
)

// TestOlderRevisions: a revision that a cluster needs stays, comes back after a restart by
// its commit and under the same name, and costs nothing while nobody needs any.
func TestOlderRevisions(t *testing.T) {
	b := newGitBench(t)
	var requests atomic.Int64
	at, err := url.Parse(b.server.HTTPURL(""))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: at.Scheme, Host: at.Host})
	counted := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		proxy.ServeHTTP(w, r)
	}))
	defer counted.Close()
	spec := "url: " + strings.Replace(b.server.HTTPURL("fleet"), at.Scheme+"://"+at.Host, counted.URL, 1) + "\nref: {branch: main}\n"
	first := "main@sha1:" + b.commit("fleet", "main", "a.yaml", "1")
	b.declare("fleet", spec)
	b.want("fleet", "the first time", good, "Normal NewArtifact")
	key, holder := gitKey("fleet"), source.Holder{Kind: "Child"}
	content := func(revision string) string {
		s := b.Snapshots.At(key, revision)
		if s == nil || s.Revision != revision {
			return ""
		}
		data, err := s.ReadFile("a.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}

	b.commit("fleet", "main", "a.yaml", "2")
	b.want("fleet", "a new commit", good, "Normal NewArtifact")
	if content(first) != "" {
		t.Error("a revision that nobody needs is kept")
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := b.onWanted("GitRepository")(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	b.Snapshots.Retain(holder, source.Pinned{Key: key, Revision: first})
	if queue.Len() != 1 {
		t.Fatalf("%d requests are queued, want that of the source", queue.Len())
	}
	b.want("fleet", "it is fetched, and the newest stays as it was", good)
	if got := content(first); got != "1" || b.statuses+b.patches != 0 {
		t.Errorf("at the older revision it is %q, after %d writes", got, b.statuses+b.patches)
	}
	before := requests.Load()
	b.want("fleet", "it is there", good)
	if n := requests.Load() - before; n != 1 {
		t.Errorf("%d requests with nothing missing, want the one for the references", n)
	}

	third := "main@sha1:" + b.commit("fleet", "main", "a.yaml", "3")
	b.want("fleet", "a new commit", good, "Normal NewArtifact")
	if content(first) != "1" || content(third) != "3" {
		t.Errorf("there are %q and %q", content(first), content(third))
	}
	b.declare("fleet", spec+"ignore: \"none.md\"\n")
	old := b.Snapshots.At(key, first)
	b.want("fleet", "other rules are those of the older revisions as well", good, "Normal NewArtifact")
	if now := b.Snapshots.At(key, first); now == old || now.Digest == old.Digest {
		t.Error("after a change of the object, an older revision has the rules of before")
	}

	b.declare("fleet", spec+"include: [{repository: {name: fleet}}]\n")
	gone := "main@sha1:" + strings.Repeat("0", 39) + "1"
	b.Snapshots.Retain(holder, source.Pinned{Key: key, Revision: gone})
	if _, events, _, _ := b.run("fleet"); !slices.ContainsFunc(events, func(e string) bool { return strings.Contains(e, "spec.include") }) {
		t.Errorf("events %q do not say why a revision cannot be had", events)
	}
	b.declare("fleet", spec)
	_, _, result, err := b.run("fleet")
	if failure := b.Snapshots.Failure(key, gone); err != nil || failure == nil || !strings.HasPrefix(failure.Error(), "cannot fetch revision "+gone+" of GitRepository ns/fleet: ") {
		t.Errorf("a commit that is not there: %v, %v", failure, err)
	}
	if result.RequeueAfter <= 0 || result.RequeueAfter > olderPause {
		t.Errorf("it is tried again after %s", result.RequeueAfter)
	}
	_, _, next, _ := b.run("fleet")
	if next.RequeueAfter <= result.RequeueAfter {
		t.Errorf("it is tried again after %s, and then after %s", result.RequeueAfter, next.RequeueAfter)
	}
	for range 10 {
		_, _, next, _ = b.run("fleet")
	}
	if next.RequeueAfter > 2*time.Minute {
		t.Errorf("the newest revision is looked for after %s only", next.RequeueAfter)
	}
	if b.Snapshots.Silent(key) {
		t.Error("the server answers")
	}
	counted.Close()
	if b.run("fleet"); !b.Snapshots.Silent(key) {
		t.Error("the server is away, and what is missing counts as gone")
	}
}

// TestOlderOfSuspended: an older revision of a suspended source is made as the source was, also
// by a process that begins, whatever its spec says by now.
func TestOlderOfSuspended(t *testing.T) {
	b := newGitBench(t)
	b.commit("fleet", "main", "a.yaml", "1")
	b.put("fleet", "a.md", "words")
	url := "url: " + b.server.HTTPURL("fleet") + "\nref: {branch: main}\n"
	b.declare("fleet", url+"ignore: \"*.md\"\n")
	b.want("fleet", "the first time", good, "Normal NewArtifact")
	key, holder := gitKey("fleet"), source.Holder{Kind: "Child"}
	first := b.Snapshots.Get(key)
	retain := func() { b.Snapshots.Retain(holder, source.Pinned{Key: key, Revision: first.Revision}) }
	retain()
	b.commit("fleet", "main", "a.yaml", "2")
	b.want("fleet", "a new commit", good, "Normal NewArtifact")
	is := func(reason string, same bool) {
		t.Helper()
		if now := b.Snapshots.At(key, first.Revision); now == nil || (now.Digest == first.Digest) != same {
			t.Errorf("%s: there is %+v, want what it had: %t", reason, now, same)
		}
	}
	b.want("fleet", "it is known by which generation the older one is", good)
	is("it stays", true)
	b.declare("fleet", url+"suspend: true\n")
	b.want("fleet", "its next spec is prepared", good)
	is("it is suspended, with another spec", true)
	b.declare("fleet", url+"suspend: true\ninclude: [{repository: {name: shared}}]\n")
	b.begin()
	retain()
	b.want("fleet", "a process begins", good)
	is("a process begins", true)
	b.declare("fleet", url)
	b.want("fleet", "it is resumed", good, "Normal NewArtifact")
	is("it is resumed", false)
}

// TestOlderOfRecalled: what the server of a suspended source says of older revisions tells that it answers, as its newest
// one, which was kept, is not asked for. What is gone from it is not awaited then for as long as it is suspended.
func TestOlderOfRecalled(t *testing.T) {
	gone := "main@sha1:" + strings.Repeat("0", 39) + "1"
	for name, tc := range map[string]struct {
		reason string
		away   bool
		spec   string
		// retained are the older revisions, first for that which is there.
		retained []string
		silent   bool
		failed   string
	}{
		"Gone":    {"it does not have it", false, "", []string{gone}, false, gone},
		"There":   {"it has it", false, "", []string{"first"}, false, ""},
		"Both":    {"what one of them tells is true of all", false, "", []string{gone, "first"}, false, gone},
		"Away":    {"it does not answer, and nobody knows what it has", true, "", []string{gone}, true, gone},
		"Include": {"it is never asked", true, "include: [{repository: {name: shared}}]\n", []string{gone}, false, gone},
		"Nobody":  {"there is nothing to ask for", false, "", nil, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGitBench(t)
			b.Kept = source.NewKept(t.TempDir(), 1<<20)
			b.commit("shared", "main", "b.yaml", "1")
			b.declare("shared", "url: "+b.server.HTTPURL("shared")+"\nref: {branch: main}\n")
			b.want("shared", "the first time", good, "Normal NewArtifact")
			spec := "url: " + b.server.HTTPURL("fleet") + "\nref: {branch: main}\n" + tc.spec
			first := "main@sha1:" + b.commit("fleet", "main", "a.yaml", "1")
			b.commit("fleet", "main", "a.yaml", "2")
			b.declare("fleet", spec)
			b.want("fleet", "the first time", good, "Normal NewArtifact")
			kept := b.Kept
			b.begin()
			b.Kept = kept
			b.declare("fleet", spec+"suspend: true\n")
			var pinned []source.Pinned
			for _, revision := range tc.retained {
				pinned = append(pinned, source.Pinned{Key: gitKey("fleet"), Revision: strings.Replace(revision, "first", first, 1)})
			}
			b.Snapshots.Retain(source.Holder{Kind: "Child"}, pinned...)
			if tc.away {
				_ = b.server.Close()
			}
			b.run("fleet")
			if b.Snapshots.Get(gitKey("fleet")) == nil {
				t.Fatalf("%s: nothing was kept", tc.reason)
			}
			if got := b.Snapshots.Silent(gitKey("fleet")); got != tc.silent {
				t.Errorf("%s: that it does not answer is told as %t: %v", tc.reason, got, b.Snapshots.Failure(gitKey("fleet"), gone))
			}
			if err := b.Snapshots.Failure(gitKey("fleet"), gone); (err != nil) != (tc.failed == gone) {
				t.Errorf("%s: what is gone failed by %v", tc.reason, err)
			}
			if is := b.Snapshots.At(gitKey("fleet"), first); (is != nil) != slices.Contains(tc.retained, "first") {
				t.Errorf("%s: of what the server has there is %v", tc.reason, is)
			}
		})
	}
}

// fetching has GitRepositories fetched by a function, which gets the commit that is asked for, if one is.
type fetching struct {
	*GitRepositories
	commit func(context.Context, string) error
}

func (f fetching) fetch(ctx context.Context, _ source.Key, obj *sourcev1.GitRepository) (*fetched, *failure) {
	commit := obj.Spec.Reference.Commit
	if err := f.commit(ctx, commit); err != nil {
		return nil, &failure{condition: sourcev1.FetchFailedCondition, err: err}
	}
	return &fetched{snapshot: &source.Snapshot{Revision: "main@sha1:" + commit}, reason: "Succeeded", eventReason: reasonNewArtifact}, nil
}

// TestOlderByTurns: older revisions for which a server does not answer keep the newest one from nobody for longer than
// one fetch may take, the process is not taken to be stuck for them, and each has its turn.
func TestOlderByTurns(t *testing.T) {
	b := newGitBench(t)
	b.declare("fleet", "url: https://git.example/fleet\ntimeout: 15m\nref: {branch: main}\n")
	synctest.Test(t, func(t *testing.T) {
		dog := stall.New(b.Client, time.Now, prometheus.NewRegistry())
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go func() { _ = dog.Start(ctx) }() // it ends with the context
		var asked []string
		kind := fetching{b.GitRepositories, func(ctx context.Context, commit string) error {
			asked = append(asked, commit)
			switch {
			case strings.HasPrefix(commit, "quick"), commit == "":
				return nil
			case strings.HasPrefix(commit, "slow"):
				time.Sleep(olderMost + time.Second)
				return nil
			}
			<-ctx.Done()
			if err := dog.Check(nil); err != nil {
				t.Errorf("while %q is fetched: %v", commit, err)
			}
			return ctx.Err()
		}}
		name := types.NamespacedName{Namespace: "ns", Name: "fleet"}
		watched := dog.Guard("GitRepository", func() client.Object { return &sourcev1.GitRepository{} }, reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			return reconcileSource(ctx, b.Sources, kind, &sourcev1.GitRepository{}, req.NamespacedName)
		}))
		retain := func(commits ...string) {
			var pinned []source.Pinned
			for _, c := range commits {
				pinned = append(pinned, source.Pinned{Key: gitKey("fleet"), Revision: "main@sha1:" + c})
			}
			b.Snapshots.Retain(source.Holder{Kind: "Child"}, pinned...)
		}
		look := func(pause time.Duration, want ...string) {
			t.Helper()
			asked = nil
			begun := time.Now()
			result, err := watched.Reconcile(ctx, reconcile.Request{NamespacedName: name})
			if took := time.Since(begun); err != nil || took > 15*time.Minute+olderMost {
				t.Errorf("the newest revision waits for %s, %v", took, err)
			}
			if diff := cmp.Diff(append([]string{""}, want...), asked); diff != "" {
				t.Errorf("asked for: -want, +got:\n%s", diff)
			}
			if result.RequeueAfter != pause {
				t.Errorf("it goes on after %s, want %s", result.RequeueAfter, pause)
			}
		}
		retain("hangs1", "hangs2", "hangs3")
		look(olderPause, "hangs1")
		look(olderPause, "hangs2")
		look(4*olderPause, "hangs3")
		look(8*olderPause, "hangs1")
		retain("hangs1", "hangs2", "hangs3", "quick1", "slow1", "slow2")
		look(olderPause, "quick1", "slow1")
		look(olderPause, "slow2")
		look(olderPause, "hangs2")
		retain("quick1", "slow1", "slow2")
		look(time.Minute)

		b.declare("fleet", "url: https://git.example/fleet\ntimeout: 15m\nref: {branch: main}\nignore: \"*.md\"\n")
		look(olderPause, "quick1", "slow1")
		look(time.Minute, "slow2")
		look(time.Minute)
	})
}

// TestOlderBesideNewest: a watchdog waits for the newest revision and for one that is older.
func TestOlderBesideNewest(t *testing.T) {
	b := newGitBench(t)
	b.declare("fleet", "url: https://git.example/fleet\ntimeout: 15m\nref: {branch: main}\n")
	b.Snapshots.Retain(source.Holder{Kind: "Child"}, source.Pinned{Key: gitKey("fleet"), Revision: "main@sha1:1"})
	synctest.Test(t, func(t *testing.T) {
		dog := stall.New(b.Client, time.Now, prometheus.NewRegistry())
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go func() { _ = dog.Start(ctx) }() // it ends with the context
		kind := fetching{b.GitRepositories, func(ctx context.Context, commit string) error {
			<-ctx.Done()
			if err := dog.Check(nil); err != nil {
				t.Errorf("while %q is fetched: %v", commit, err)
			}
			return fmt.Errorf("no answer: %w", ctx.Err())
		}}
		_, err := dog.Guard("GitRepository", func() client.Object { return &sourcev1.GitRepository{} }, reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			return reconcileSource(ctx, b.Sources, kind, &sourcev1.GitRepository{}, req.NamespacedName)
		})).Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "fleet"}})
		if err == nil {
			t.Error("it did not fail")
		}
	})
}
