package fetch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/wake"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// gitBench has a reconciler of GitRepositories with a real Git server, and
// counts what it writes.
type gitBench struct {
	*GitRepositories
	t        *testing.T
	server   *gitserver.Server
	events   *record.FakeRecorder
	now      time.Time
	patches  int
	statuses int
}

func newGitBench(t *testing.T, objects ...client.Object) *gitBench {
	t.Helper()
	server, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, sourcev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := &gitBench{t: t, server: server, events: record.NewFakeRecorder(100), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&sourcev1.GitRepository{}, &sourcev1.OCIRepository{}, &sourcev1.HelmRepository{}, &sourcev1.HelmChart{}, &sourcev1.Bucket{}).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			b.patches++
			return c.Patch(ctx, obj, patch, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			b.statuses++
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
	}).Build()
	logins, err := source.NewLogins(10, time.Hour, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	b.GitRepositories = &GitRepositories{
		Sources: &Sources{
			Client: c, Reader: c, Snapshots: source.NewSnapshots(), Logins: logins,
			Events: b.events, Metrics: metrics.New(prometheus.NewRegistry()), Now: func() time.Time { return b.now }, Jitter: wake.NewJitter(func() float64 { return 0.5 }),
		},
		Mirrors: source.NewMirrors(t.TempDir(), 64<<20),
	}
	return b
}

// begin has a process begin, which knows nothing but the objects.
func (b *gitBench) begin() {
	b.Sources = &Sources{
		Client: b.Client, Reader: b.Reader, Snapshots: source.NewSnapshots(), Logins: b.Logins,
		Events: b.Events, Metrics: b.Metrics, Now: b.Now, Jitter: b.Jitter, Part: b.Part,
	}
	b.Mirrors = source.NewMirrors(b.t.TempDir(), 64<<20)
}

func (b *gitBench) commit(name, branch, file, content string) string {
	b.t.Helper()
	_ = b.server.Create(b.t.Context(), name) // it may be there
	commit, err := b.server.Commit(b.t.Context(), name, branch, "a subject of more than fifty characters, which events do not show whole", func(folder string) error {
		return os.WriteFile(filepath.Join(folder, file), []byte(content), 0o644)
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return commit
}

// put commits one file, wherever it is.
func (b *gitBench) put(name, file, content string) {
	b.t.Helper()
	if _, err := b.server.Put(b.t.Context(), name, "main", "change "+file, map[string]string{file: content}); err != nil {
		b.t.Fatal(err)
	}
}

// declare creates an object or changes its spec.
func (b *gitBench) declare(name, spec string) {
	b.t.Helper()
	obj := &sourcev1.GitRepository{}
	obj.Namespace, obj.Name = "ns", name
	err := b.Client.Get(b.t.Context(), client.ObjectKeyFromObject(obj), obj)
	if client.IgnoreNotFound(err) != nil {
		b.t.Fatal(err)
	}
	obj.Spec = sourcev1.GitRepositorySpec{}
	if yerr := yaml.UnmarshalStrict([]byte("interval: 1m\n"+spec), &obj.Spec); yerr != nil {
		b.t.Fatal(yerr)
	}
	obj.Generation++
	if apierrors.IsNotFound(err) {
		err = b.Client.Create(b.t.Context(), obj)
	} else {
		err = b.Client.Update(b.t.Context(), obj)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *gitBench) get(name string) *sourcev1.GitRepository {
	b.t.Helper()
	obj := &sourcev1.GitRepository{}
	if err := b.Client.Get(b.t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, obj); err != nil {
		b.t.Fatal(err)
	}
	return obj
}

// run reconciles once and returns the conditions and the events.
func (b *gitBench) run(name string) (map[string]string, []string, ctrl.Result, error) {
	b.t.Helper()
	b.patches, b.statuses = 0, 0
	b.now = b.now.Add(time.Minute)
	result, err := b.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}})
	var events []string
	for len(b.events.Events) > 0 {
		events = append(events, <-b.events.Events)
	}
	obj := &sourcev1.GitRepository{}
	if gerr := b.Client.Get(b.t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, obj); gerr != nil {
		return nil, events, result, err
	}
	return states(obj.Status.Conditions), events, result, err
}

func (b *gitBench) want(name, reason string, wantStates map[string]string, wantEvents ...string) {
	b.t.Helper()
	got, events, _, _ := b.run(name)
	if diff := cmp.Diff(wantStates, got); diff != "" {
		b.t.Errorf("%s\nconditions: -want, +got:\n%s", reason, diff)
	}
	if len(events) != len(wantEvents) {
		b.t.Fatalf("%s\nevents %q, want %q", reason, events, wantEvents)
	}
	for i := range events {
		if !strings.HasPrefix(events[i], wantEvents[i]) {
			b.t.Errorf("%s\nevent %q, want %q", reason, events[i], wantEvents[i])
		}
		// A failure is not about the revision that was fetched before.
		if has := strings.Contains(events[i], "source.toolkit.fluxcd.io/revision:"); has != strings.HasPrefix(events[i], corev1.EventTypeNormal) {
			b.t.Errorf("%s\nevent %q, want it to have the revision of the artifact if that is what it tells of, and only then", reason, events[i])
		}
	}
	if b.statuses > 1 {
		b.t.Errorf("%s\n%d status patches, want one at most", reason, b.statuses)
	}
}

var (
	good    = map[string]string{"Ready": "True/Succeeded", "ArtifactInStorage": "True/Succeeded"}
	subject = "'a subject of more than fifty characters, which eve...'"
)

func with(base map[string]string, more ...string) map[string]string {
	out := map[string]string{}
	for k, v := range base {
		out[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

func failedWith(condition, reason string, more ...string) map[string]string {
	return with(map[string]string{"Ready": "False/" + reason, "Reconciling": "True/ProgressingWithRetry", condition: "True/" + reason}, more...)
}

func TestGitRepositoryLife(t *testing.T) {
	b := newGitBench(t)
	commit := b.commit("fleet", "main", "a.yaml", "1")
	b.declare("fleet", "url: "+b.server.HTTPURL("fleet")+"\nref: {branch: main}\nignore: \"*.md\"\n")
	b.want("fleet", "the first time", good, "Normal NewArtifact stored artifact for commit "+subject)
	obj := b.get("fleet")
	if obj.Finalizers == nil || obj.Finalizers[0] != "finalizers.fluxcd.io" || b.patches != 1 {
		t.Errorf("finalizers %v after %d patches", obj.Finalizers, b.patches)
	}
	a := obj.Status.Artifact
	if a == nil || a.Revision != "main@sha1:"+commit || a.Path != "gitrepository/ns/fleet/"+commit+".tar.gz" || a.Digest == "" || *obj.Status.ObservedIgnore != "*.md" || obj.Status.ObservedGeneration != obj.Generation {
		t.Errorf("status %+v is not as Flux has it", obj.Status)
	}
	if m := apimeta.FindStatusCondition(obj.Status.Conditions, "Ready").Message; m != "stored artifact for revision 'main@sha1:"+commit+"'" {
		t.Errorf("message %q", m)
	}
	b.want("fleet", "nothing changed: nothing is written, no event either", good)
	if b.patches+b.statuses != 0 {
		t.Errorf("%d patches when nothing changed", b.patches+b.statuses)
	}
	obj = b.get("fleet")
	obj.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
	if err := b.Client.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	b.want("fleet", "somebody asked: they get an answer", good, "Trace GitOperationSucceeded no changes since last reconciliation: observed revision 'main@sha1:"+commit+"'")
	if got := b.get("fleet").Status.LastHandledReconcileAt; got != "now" || b.statuses != 1 {
		t.Errorf("lastHandledReconcileAt %q after %d status patches", got, b.statuses)
	}
	before := b.Snapshots.Get(gitKey("fleet"))
	b.declare("fleet", "url: http://127.0.0.1:1/none\nref: {branch: main}\n")
	failing := failedWith("FetchFailed", "GitOperationFailed", "ArtifactInStorage", "True/Succeeded")
	b.want("fleet", "the server is away", failing, "Warning GitOperationFailed cannot fetch from http://127.0.0.1")
	b.want("fleet", "it still is: that was said", failing)
	if b.patches+b.statuses != 0 || b.Snapshots.Get(gitKey("fleet")) != before || b.get("fleet").Status.Artifact == nil {
		t.Errorf("%d patches for the same failure, or the last snapshot is gone", b.patches+b.statuses)
	}
	b.declare("fleet", "url: "+b.server.HTTPURL("fleet")+"\nref: {branch: main}\nignore: \"*.md\"\n")
	b.want("fleet", "it is back", good, "Normal Succeeded stored artifact for commit "+subject)
	next := b.commit("fleet", "main", "a.yaml", "2")
	b.want("fleet", "a new commit", good, "Normal NewArtifact")
	if got := b.get("fleet").Status.Artifact; got.Revision != "main@sha1:"+next || !got.LastUpdateTime.Time.After(a.LastUpdateTime.Time) {
		t.Errorf("artifact %+v", got)
	}
	b.declare("fleet", "url: "+b.server.HTTPURL("fleet")+"\nsuspend: true\nref: {branch: gone}\n")
	obj = b.get("fleet")
	obj.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "suspended"}
	if err := b.Client.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	b.want("fleet", "suspended: nothing is fetched, and who waits for this generation or asked has an answer", good)
	if obj := b.get("fleet"); obj.Status.ObservedGeneration != obj.Generation || obj.Status.LastHandledReconcileAt != "suspended" {
		t.Errorf("generation %d, observed %d, handled %q", obj.Generation, obj.Status.ObservedGeneration, obj.Status.LastHandledReconcileAt)
	}
	b.want("fleet", "suspended, and that was said", good)
	if b.patches+b.statuses != 0 {
		t.Errorf("%d patches of a suspended object", b.patches+b.statuses)
	}
	b.declare("fleet", "url: git@127.0.0.1:x\n")
	b.want("fleet", "only a change of the object ends this", map[string]string{
		"Ready": "False/URLInvalid", "Stalled": "True/URLInvalid", "FetchFailed": "True/URLInvalid", "ArtifactInStorage": "True/Succeeded",
	}, "Warning URLInvalid")
	if obj := b.get("fleet"); obj.Status.ObservedGeneration != obj.Generation {
		t.Error("a stalled object does not show that its generation was seen")
	}
	if err := b.Client.Delete(t.Context(), b.get("fleet")); err != nil {
		t.Fatal(err)
	}
	b.run("fleet")
	if err := b.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "fleet"}, &sourcev1.GitRepository{}); !apierrors.IsNotFound(err) || b.Snapshots.Get(gitKey("fleet")) != nil {
		t.Errorf("after the deletion: %v, want it to be gone with its snapshot", err)
	}
}

// TestVerified: that a signature was checked is told once, to Kubernetes, and is no message of
// an Alert beside that of the new artifact.
func TestVerified(t *testing.T) {
	b := newGitBench(t)
	obj := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "fleet"}}
	obj.Status.Artifact = &meta.Artifact{Revision: "main@sha1:1"}
	for _, message := range []string{"verified signature of 1", "verified signature of 2", "verified signature of 2"} {
		b.verified(t.Context(), obj, message)
	}
	close(b.events.Events)
	var events []string
	for e := range b.events.Events {
		events = append(events, e)
	}
	want := []string{"Trace Succeeded verified signature of 1", "Trace Succeeded verified signature of 2"}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events: -want, +got:\n%s", diff)
	}
}

// TestSuspendedGone: what a suspended source had, and cannot be fetched again by a process
// that begins, is told of, once, and so is that it can.
func TestSuspendedGone(t *testing.T) {
	b := newGitBench(t)
	commit := b.commit("fleet", "main", "a.yaml", "1")
	spec := "url: " + b.server.HTTPURL("fleet") + "\nref: {branch: main}\n"
	b.declare("fleet", spec)
	b.want("fleet", "the first time", good, "Normal NewArtifact")
	b.begin()
	b.declare("fleet", "url: http://127.0.0.1:1/none\nsuspend: true\nref: {branch: main}\n")
	told := with(good, "FetchFailed", "True/RevisionNotFetched")
	b.want("fleet", "its server is away: who applies it stands still", told, "Warning RevisionNotFetched cannot fetch revision main@sha1:"+commit)
	if _, _, _, err := b.run("fleet"); err == nil {
		t.Error("it is not tried again")
	}
	b.want("fleet", "it still is: that was said", told)
	if b.patches+b.statuses != 0 {
		t.Errorf("%d patches for the same failure", b.patches+b.statuses)
	}
	b.declare("fleet", spec+"suspend: true\n")
	b.want("fleet", "it is back", good)
	if s := b.Snapshots.Get(gitKey("fleet")); s == nil || s.Commit != commit {
		t.Errorf("there is %+v, want commit %s", s, commit)
	}
	b.begin()
	b.declare("fleet", "url: http://127.0.0.1:1/none\nref: {branch: main}\n")
	failing := failedWith("FetchFailed", "GitOperationFailed", "ArtifactInStorage", "True/Succeeded")
	b.want("fleet", "it is not suspended, and fails", failing, "Warning GitOperationFailed")
	b.declare("fleet", "url: http://127.0.0.1:1/none\nsuspend: true\nref: {branch: main}\n")
	b.want("fleet", "it told of the failure before it was suspended", failing)
	if obj := b.get("fleet"); obj.Status.ObservedGeneration != obj.Generation {
		t.Errorf("suspended while it fails: generation %d, observed %d; who uses what it had would stand still", obj.Generation, obj.Status.ObservedGeneration)
	}
}

// TestEndedByShare: a source whose fetch was ended, as too many of its namespace take long, says nothing of it and stays as
// it is until it is fetched, and so does one that is suspended.
func TestEndedByShare(t *testing.T) {
	b := newGitBench(t)
	first := "main@sha1:" + b.commit("fleet", "main", "a.yaml", "1")
	b.commit("fleet", "main", "a.yaml", "2")
	spec := "url: " + b.server.HTTPURL("fleet") + "\nref: {branch: main}\n"
	b.declare("fleet", spec)
	b.want("fleet", "the first time", good, "Normal NewArtifact")
	for name, change := range map[string]string{"Fetched": "", "Suspended": "suspend: true\n"} {
		t.Run(name, func(t *testing.T) {
			b.begin()
			b.Snapshots.Retain(source.Holder{Kind: "Child"}, source.Pinned{Key: gitKey("fleet"), Revision: first})
			b.declare("fleet", spec+change)
			obj := b.get("fleet")
			obj.Annotations = map[string]string{meta.ReconcileRequestAnnotation: name}
			if err := b.Client.Update(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
			ctx, end := context.WithCancelCause(t.Context())
			end(park.ErrShare)
			if _, err := b.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(obj)}); err == nil {
				t.Error("it is not tried again")
			}
			if is := states(b.get("fleet").Status.Conditions); !cmp.Equal(is, good) || len(b.events.Events) > 0 {
				t.Errorf("conditions %v, and %d events", is, len(b.events.Events))
			}
			if err := b.Snapshots.Failure(gitKey("fleet"), first); err != nil {
				t.Errorf("of an older revision it is said: %v", err)
			}
			if handled := b.get("fleet").Status.LastHandledReconcileAt; change == "" && handled == name {
				t.Error("who asked for it has an answer")
			}
		})
	}
}

// TestSuspendedIsMadeAgain: a process that begins makes the content of a suspended source in
// the way in which it was made, and of what it was made of, or not at all.
func TestSuspendedIsMadeAgain(t *testing.T) {
	b := newGitBench(t)
	b.commit("fleet", "main", "a.yaml", "1")
	b.put("fleet", "a.md", "words")
	b.put("fleet", "left/a.yaml", "1")
	b.commit("shared", "main", "s.yaml", "1")
	url := "url: " + b.server.HTTPURL("fleet") + "\nref: {branch: main}\n"
	shared := "url: " + b.server.HTTPURL("shared") + "\nref: {branch: main}\n"
	b.declare("shared", shared)
	b.want("shared", "what is included", good, "Normal NewArtifact")
	b.declare("fleet", url+"ignore: \"*.md\"\nsparseCheckout: [a.yaml, a.md]\ninclude: [{repository: {name: shared}}]\n")
	b.want("fleet", "the first time", good, "Normal NewArtifact")
	made := b.Snapshots.Get(gitKey("fleet"))
	b.declare("fleet", url+"suspend: true\n")
	b.begin()
	b.want("shared", "the same commit", good)
	b.want("fleet", "its spec is another one since it is suspended", good)
	if s := b.Snapshots.Get(gitKey("fleet")); s == nil || s.Digest != made.Digest {
		t.Errorf("there is %+v, want what was made before: %+v", s, made)
	}
	b.begin()
	b.put("shared", "s.yaml", "2")
	b.want("shared", "a new commit", good, "Normal NewArtifact")
	b.want("fleet", "its commit is the same, and not what it includes", with(good, "FetchFailed", "True/RevisionNotFetched"), "Warning RevisionNotFetched")
	if s := b.Snapshots.Get(gitKey("fleet")); s != nil {
		t.Errorf("there is %+v, which nobody asked for", s)
	}
	b.declare("fleet", url+"include: [{repository: {name: shared}}]\n")
	b.want("fleet", "it is resumed", good, "Normal NewArtifact")
}

// TestSuspendedIncludes: whether what a suspended source includes is what it was goes by the
// content, whoever packed it.
func TestSuspendedIncludes(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		before, after bool
	}{
		"NoMore": {"as after Flux, by an agent that serves no artifacts", true, false},
		"ByNow":  {"--artifact-addr came", false, true},
		"Always": {"archives of the same are the same", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGitBench(t)
			seal, err := source.OpenSeal(filepath.Join(t.TempDir(), "key"), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			pack := func(packs bool) {
				if b.Storage = nil; packs {
					b.Storage = source.NewStorage(t.TempDir(), "", "artifacts.example:80", seal)
				}
			}
			pack(tc.before)
			b.commit("fleet", "main", "a.yaml", "1")
			b.commit("shared", "main", "s.yaml", "1")
			b.put("shared", "s.md", "words")
			shared := "url: " + b.server.HTTPURL("shared") + "\nref: {branch: main}\n"
			b.declare("shared", shared)
			b.want("shared", "what is included", good, "Normal NewArtifact")
			spec := "url: " + b.server.HTTPURL("fleet") + "\nref: {branch: main}\ninclude: [{repository: {name: shared}}]\n"
			b.declare("fleet", spec)
			b.want("fleet", "the first time", good, "Normal NewArtifact")
			made := b.Snapshots.Get(gitKey("fleet"))
			b.declare("fleet", spec+"suspend: true\n")
			b.begin()
			pack(tc.after)
			b.run("shared")
			b.want("fleet", tc.reason, good)
			if s := b.Snapshots.Get(gitKey("fleet")); s == nil || s.Digest != made.Digest {
				t.Errorf("%s: there is %+v, want what was made before: %+v", tc.reason, s, made)
			}
			b.declare("shared", shared+"ignore: \"*.md\"\n")
			b.begin()
			pack(tc.after)
			b.run("shared")
			b.want("fleet", "the same commit, with other content", with(good, "FetchFailed", "True/RevisionNotFetched"), "Warning RevisionNotFetched")
		})
	}
}

func gitKey(name string) source.Key {
	return source.Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}}
}

func TestGitRepositoryParts(t *testing.T) {
	b := newGitBench(t)
	b.commit("fleet", "main", "a.yaml", "1")
	b.commit("shared", "main", "s.yaml", "1")
	url := "url: " + b.server.HTTPURL("fleet") + "\nref: {branch: main}\n"
	shared := "url: " + b.server.HTTPURL("shared") + "\nref: {branch: main}\n"
	b.declare("fleet", url+"include: [{repository: {name: shared}}]\n")
	unavailable := func(reason string) map[string]string { return failedWith("IncludeUnavailable", reason) }
	b.want("fleet", "what is included is not there", unavailable("NotFound"), "Warning NotFound could not get resource for include 'shared'")
	b.declare("shared", shared)
	b.want("fleet", "it is, but was not fetched yet", unavailable("NoArtifact"), "Warning NoArtifact no artifact available for include 'shared'")
	if _, _, result, err := b.run("fleet"); err != nil || result.RequeueAfter != includePoll {
		t.Errorf("Reconcile() = %v, %v, want to look again after %s", result, err, includePoll)
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := b.onSnapshot(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	b.want("shared", "fetched", good, "Normal NewArtifact")
	if queue.Len() != 1 {
		t.Fatalf("%d requests are queued, want that of the repository that includes", queue.Len())
	}
	b.want("fleet", "woken by what it includes", good, "Normal NewArtifact")
	b.begin()
	obj := b.get("fleet")
	obj.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
	if err := b.Client.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	b.want("fleet", "a process began, and has not fetched yet what is included: that is no failure", good)
	if got := b.get("fleet").Status.LastHandledReconcileAt; got != "" {
		t.Errorf("lastHandledReconcileAt %q, and nothing was fetched", got)
	}
	if _, _, result, err := b.run("fleet"); err != nil || result.RequeueAfter != includePoll || b.statuses != 0 {
		t.Errorf("Reconcile() = %v, %v, %d status patches, want to look again after %s", result, err, b.statuses, includePoll)
	}
	b.declare("shared", "url: http://127.0.0.1:1/none\nref: {branch: main}\n")
	b.want("shared", "its server is away", failedWith("FetchFailed", "GitOperationFailed", "ArtifactInStorage", "True/Succeeded"), "Warning GitOperationFailed")
	b.want("fleet", "it cannot be fetched: that is told", with(unavailable("NoArtifact"), "ArtifactInStorage", "True/Succeeded"), "Warning NoArtifact")
	b.declare("shared", shared)
	b.want("shared", "it can again", good, "Normal Succeeded")
	b.want("fleet", "so can this", good, "Normal Succeeded")
	obj = b.get("fleet")
	if got := obj.Status.LastHandledReconcileAt; got != "now" {
		t.Errorf("lastHandledReconcileAt %q, and it was fetched", got)
	}
	if len(obj.Status.IncludedArtifacts) != 1 || obj.Status.IncludedArtifacts[0].Revision != b.get("shared").Status.Artifact.Revision || len(obj.Status.ObservedInclude) != 1 {
		t.Errorf("status %+v does not show what is included", obj.Status)
	}
	if data, err := b.Snapshots.Get(gitKey("fleet")).ReadFile("shared/s.yaml"); err != nil || string(data) != "1" {
		t.Errorf("shared/s.yaml is %q, %v", data, err)
	}
	b.commit("shared", "main", "s.yaml", "2")
	b.want("shared", "a new commit", good, "Normal NewArtifact")
	b.want("fleet", "what is included changed", good, "Normal NewArtifact")
	b.declare("shared", shared+"include: [{repository: {name: fleet}}]\n")
	b.want("shared", "each would grow by the other", failedWith("IncludeUnavailable", "IncludeCycle", "ArtifactInStorage", "True/Succeeded"), "Warning IncludeCycle")
	b.declare("fleet", url+"include: [{repository: {name: shared}, toPath: a.yaml}]\n")
	b.declare("shared", shared)
	b.want("fleet", "something is there already", failedWith("StorageOperationFailed", "CopyFailure", "ArtifactInStorage", "True/Succeeded"), "Warning CopyFailure")
	b.declare("fleet", url+"sparseCheckout: [gone]\n")
	b.want("fleet", "a directory that is not there", failedWith("FetchFailed", "GitOperationFailed", "ArtifactInStorage", "True/Succeeded"), "Warning GitOperationFailed")
	b.declare("fleet", url+"sparseCheckout: [a.yaml]\nrecurseSubmodules: true\n")
	b.want("fleet", "all is well", good, "Normal NewArtifact")
	if obj := b.get("fleet"); !obj.Status.ObservedRecurseSubmodules || len(obj.Status.ObservedSparseCheckout) != 1 || obj.Status.IncludedArtifacts != nil || obj.Status.ObservedInclude != nil {
		t.Errorf("status %+v does not show what was asked for", obj.Status)
	}
}

func TestGitRepositoryCredentials(t *testing.T) {
	secret := func(name string, data map[string]string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, StringData: nil, Data: func() map[string][]byte {
			out := map[string][]byte{}
			for k, v := range data {
				out[k] = []byte(v)
			}
			return out
		}()}
	}
	b := newGitBench(t, secret("plain", map[string]string{"username": "u", "password": "hidden-word"}),
		secret("app", map[string]string{"githubAppID": "1", "githubAppInstallationID": "2", "githubAppPrivateKey": "hidden-word"}), secret("empty", nil),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "bare"}})
	b.commit("fleet", "main", "a.yaml", "1")
	url := "url: " + b.server.HTTPURL("fleet") + "\nref: {branch: main}\n"
	for name, tc := range map[string]struct {
		reason, spec, fails string
		stalls              bool
		condition           string
	}{
		"NoSecret":       {"a name that is not there", "secretRef: {name: none}", "AuthenticationFailed", false, ""},
		"NoProxy":        {"the same for the proxy", "proxySecretRef: {name: none}", "AuthenticationFailed", false, ""},
		"EmptyProxy":     {"a proxy without an address", "proxySecretRef: {name: empty}", "AuthenticationFailed", false, ""},
		"AppAlone":       {"a GitHub App needs its provider", "secretRef: {name: app}", "InvalidProviderConfiguration", false, ""},
		"GitHubNone":     {"the provider needs a Secret: only the object can change that", "provider: github", "InvalidProviderConfiguration", true, ""},
		"GitHubPlain":    {"of a GitHub App; the Secret may change", "provider: github\nsecretRef: {name: plain}", "InvalidProviderConfiguration", false, ""},
		"GitHubKey":      {"with a private key", "provider: github\nsecretRef: {name: app}", "InvalidProviderConfiguration", false, ""},
		"AWSElsewhere":   {"CodeCommit is at its own hosts", "provider: aws", "CredentialRefused", true, ""},
		"AzureElsewhere": {"so is Azure DevOps", "provider: azure", "CredentialRefused", true, ""},
		"NoAccount":      {"a service account that is not there", "provider: azure\nserviceAccountName: none", "AuthenticationFailed", false, ""},
		"BareAccount":    {"a service account without an identity", "provider: azure\nserviceAccountName: bare", "AuthenticationFailed", false, ""},
		"NoVerifyKeys":   {"no Secret with keys", "verify: {mode: HEAD, secretRef: {name: none}}", "VerificationError", false, "SourceVerified"},
		"NotSigned":      {"a commit that nobody signed", "verify: {mode: HEAD, secretRef: {name: plain}}", "InvalidCommitSignature", false, "SourceVerified"},
		"TagOfBranch":    {"a branch has no tag", "verify: {mode: Tag, secretRef: {name: plain}}", "InvalidVerificationMode", true, "SourceVerified"},
		"LowerCaseMode":  {"the old name of HEAD", "verify: {mode: head, secretRef: {name: plain}}", "InvalidCommitSignature", false, "SourceVerified"},
	} {
		t.Run(name, func(t *testing.T) {
			object := strings.ToLower(name)
			at := url
			if strings.HasSuffix(name, "Account") {
				at = "url: https://dev.azure.com/org/project/_git/repo\nref: {branch: main}\n"
			}
			b.declare(object, at+tc.spec+"\n")
			got, events, result, err := b.run(object)
			want := map[string]string{"Ready": "False/" + tc.fails, "FetchFailed": "True/" + tc.fails}
			if tc.condition != "" {
				delete(want, "FetchFailed")
				want[tc.condition] = "False/" + tc.fails
			}
			if tc.stalls {
				want["Stalled"] = "True/" + tc.fails
			} else {
				want["Reconciling"] = "True/ProgressingWithRetry"
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s\nconditions: -want, +got:\n%s\n%q", tc.reason, diff, events)
			}
			if (err != nil) == tc.stalls || result.RequeueAfter != 0 {
				t.Errorf("%s\nReconcile() = %v, %v, want to try again only if that may help", tc.reason, result, err)
			}
			if b.Snapshots.Get(gitKey(object)) != nil {
				t.Errorf("%s\nthere is a snapshot all the same", tc.reason)
			}
			if strings.Contains(fmt.Sprint(events, err), "hidden-word") {
				t.Errorf("%s\na credential is shown: %q, %v", tc.reason, events, err)
			}
		})
	}
}

func TestGitRepositoryStorage(t *testing.T) {
	b := newGitBench(t)
	dir := t.TempDir()
	seal, err := source.OpenSeal(filepath.Join(t.TempDir(), "key"), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b.Storage = source.NewStorage(dir, "", "artifacts.example:80", seal)
	commit := b.commit("fleet", "main", "a.yaml", "1")
	b.declare("fleet", "url: "+b.server.HTTPURL("fleet")+"\nref: {branch: main}\n")
	b.want("fleet", "packed for others", good, "Normal NewArtifact")
	a := b.get("fleet").Status.Artifact
	u, err := url.Parse(a.URL)
	if err != nil || u.Scheme != "http" || u.Host != "artifacts.example:80" || u.Path != "/gitrepository/ns/fleet/"+commit+".tar.gz" || !strings.HasPrefix(a.Digest, "sha256:") || a.Size == nil {
		t.Fatalf("artifact %+v is not as Flux has it", a)
	}
	server := httptest.NewServer(b.Storage)
	defer server.Close()
	u.Host = server.Listener.Addr().String()
	res, err := http.Get(u.String())
	if err != nil || res.StatusCode != http.StatusOK || res.ContentLength != *a.Size {
		t.Errorf("GET of the artifact = %v, %v", res, err)
	}
	if err == nil {
		_ = res.Body.Close()
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	b.want("fleet", "the storage was lost: packed again, and nothing to tell", good)
	if b.statuses != 0 {
		t.Errorf("%d status patches for the same artifact", b.statuses)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.commit("fleet", "main", "a.yaml", "2")
	b.want("fleet", "the storage cannot be written", failedWith("StorageOperationFailed", "ArchiveOperationFailed", "ArtifactInStorage", "True/Succeeded", "ArtifactOutdated", "True/NewRevision"), "Warning ArchiveOperationFailed")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	b.want("fleet", "it can again", good, "Normal NewArtifact")
	if err := b.Client.Delete(t.Context(), b.get("fleet")); err != nil {
		t.Fatal(err)
	}
	b.run("fleet")
	if _, err := os.Stat(filepath.Join(dir, "gitrepository/ns/fleet")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the artifacts of a deleted object: %v", err)
	}
}

// states are the conditions as type=status/reason.
func states(conditions []metav1.Condition) map[string]string {
	out := map[string]string{}
	for _, c := range conditions {
		out[c.Type] = string(c.Status) + "/" + c.Reason
	}
	return out
}

// TestPinOfReference: what an older revision is asked for by, where a server gives out no single commits, is what the source follows.
func TestPinOfReference(t *testing.T) {
	const commit = "0123456789012345678901234567890123456789"
	for name, tt := range map[string]struct {
		reason   string
		spec     sourcev1.GitRepositorySpec
		revision string
		want     source.Reference
	}{
		"Nothing": {"the default branch", sourcev1.GitRepositorySpec{}, "master@sha1:" + commit, source.Reference{Commit: commit}},
		"Branch": {"a branch", sourcev1.GitRepositorySpec{Reference: &sourcev1.GitRepositoryRef{Branch: "main"}}, "main@sha1:" + commit,
			source.Reference{Branch: "main", Commit: commit}},
		"Name": {"a name, which counts before a branch", sourcev1.GitRepositorySpec{Reference: &sourcev1.GitRepositoryRef{Branch: "main", Name: "refs/heads/release"}}, "refs/heads/release@sha1:" + commit,
			source.Reference{Name: "refs/heads/release", Commit: commit}},
		"Commit": {"another commit", sourcev1.GitRepositorySpec{Reference: &sourcev1.GitRepositoryRef{Branch: "main", Commit: "other"}}, "main@sha1:" + commit,
			source.Reference{Branch: "main", Commit: commit}},
		"Verified": {"the signature of a tag", sourcev1.GitRepositorySpec{Reference: &sourcev1.GitRepositoryRef{SemVer: "1.x"},
			Verification: &sourcev1.GitRepositoryVerification{Mode: sourcev1.ModeGitTag}}, "v1@sha1:" + commit, source.Reference{Tag: "v1"}},
		"VerifiedName": {"that of a tag by its whole name", sourcev1.GitRepositorySpec{Reference: &sourcev1.GitRepositoryRef{Name: "refs/tags/v1"},
			Verification: &sourcev1.GitRepositoryVerification{Mode: sourcev1.ModeGitTagAndHEAD}}, "refs/tags/v1@sha1:" + commit, source.Reference{Tag: "v1"}},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &sourcev1.GitRepository{Spec: *tt.spec.DeepCopy()}
			(&GitRepositories{}).pin(obj, &meta.Artifact{Revision: tt.revision})
			if diff := cmp.Diff(tt.want, reference(obj)); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tt.reason, diff)
			}
		})
	}
}
