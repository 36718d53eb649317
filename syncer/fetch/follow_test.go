package fetch

import (
	"crypto/rand"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestFollowIncludes: a process that follows a repository hands over what the one has that
// leads, also if it sees a new commit of an included repository later.
func TestFollowIncludes(t *testing.T) {
	leader := newGitBench(t)
	layer := &v1alpha1.Layer{}
	layer.Namespace, layer.Name = "ns", "base"
	layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: sourcev1.GitRepositoryKind, Name: "fleet"}
	if err := leader.Client.Create(t.Context(), layer); err != nil {
		t.Fatal(err)
	}
	follower := *leader
	follower.GitRepositories = &GitRepositories{Sources: leader.Sources, Mirrors: leader.Mirrors}
	follower.begin()
	follower.Part = &Part{Elected: make(chan struct{})} // it never is
	leader.commit("fleet", "main", "a.yaml", "1")
	leader.commit("shared", "main", "s.yaml", "1")
	leader.declare("shared", "url: "+leader.server.HTTPURL("shared")+"\nref: {branch: main}\n")
	leader.declare("fleet", "url: "+leader.server.HTTPURL("fleet")+"\nref: {branch: main}\ninclude: [{repository: {name: shared}}]\n")
	leader.want("shared", "the first time", good, "Normal NewArtifact")
	leader.want("fleet", "the first time", good, "Normal NewArtifact")
	has := func(reason, want string) {
		t.Helper()
		snapshot := follower.Snapshots.Get(gitKey("fleet"))
		if snapshot == nil {
			t.Fatalf("%s: there is no snapshot", reason)
		}
		if data, err := snapshot.ReadFile("shared/s.yaml"); err != nil || string(data) != want {
			t.Errorf("%s: shared/s.yaml is %q, %v, want %q", reason, data, err, want)
		}
	}
	if _, _, result, err := follower.run("fleet"); err != nil || result.RequeueAfter != includePoll || follower.Snapshots.Get(gitKey("fleet")) != nil {
		t.Errorf("Reconcile() = %v, %v before there is what it includes", result, err)
	}
	follower.want("shared", "what is included", good)
	follower.want("fleet", "as the leader", good)
	has("the first time", "1")
	leader.put("shared", "s.yaml", "2")
	leader.want("shared", "a new commit", good, "Normal NewArtifact")
	leader.want("fleet", "a new commit", good, "Normal NewArtifact")
	if _, _, _, err := follower.run("fleet"); err == nil {
		t.Error("what it includes is not what the leader included, and it is not tried again")
	}
	has("it was not told of the new commit", "1")
	follower.want("shared", "it is told", good)
	follower.want("fleet", "as the leader", good)
	has("it was told", "2")
}

// TestNamedSources: a process that drives children follows the sources that Layers name,
// those of other namespaces as well, and what their repositories include.
func TestNamedSources(t *testing.T) {
	layer := &v1alpha1.Layer{}
	layer.Namespace = "team"
	layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: sourcev1.GitRepositoryKind, Name: "fleet", Namespace: "platform"}
	layer.Spec.Providers = &v1alpha1.ProvidersSpec{SourceRef: &v1alpha1.SourceReference{Kind: sourcev1.GitRepositoryKind, Name: "components"}}
	var got []string
	for _, request := range sourcesOf(sourcev1.GitRepositoryKind)(t.Context(), layer) {
		got = append(got, request.String())
	}
	if want := []string{"platform/fleet", "team/components"}; !slices.Equal(got, want) {
		t.Errorf("followed are %v, want %v", got, want)
	}
	if got := sourcesOf(sourcev1.BucketKind)(t.Context(), layer); len(got) > 0 {
		t.Errorf("of another kind %v", got)
	}
	fleet := &sourcev1.GitRepository{}
	fleet.Namespace = "platform"
	fleet.Spec.Include = []sourcev1.GitRepositoryInclude{{GitRepositoryRef: meta.LocalObjectReference{Name: "shared"}}}
	if got := includedBy(t.Context(), fleet); len(got) != 1 || got[0].String() != "platform/shared" {
		t.Errorf("of what a repository includes %v", got)
	}
}

// TestLeft: a source that other labels make another agent's is that one's alone, and what it
// had is not kept, whether or not this process follows others for its children.
func TestLeft(t *testing.T) {
	for name, part := range map[string]*Part{"Alone": nil, "DrivesChildren": {}} {
		t.Run(name, func(t *testing.T) {
			b := newGitBench(t)
			b.commit("app", "main", "a", "1")
			b.declare("app", "url: "+b.server.HTTPURL("app")+"\nref: {branch: main}")
			seal, err := source.OpenSeal(filepath.Join(t.TempDir(), "key"), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			key := gitKey("app")
			ours := true
			b.Part, b.Shard, b.Storage = part, func(client.Object) bool { return ours }, source.NewStorage(t.TempDir(), "", "artifacts.example:80", seal)
			for _, ours = range []bool{true, false, true} {
				patches := b.patches + b.statuses
				result, err := b.Reconcile(t.Context(), ctrl.Request{NamespacedName: key.NamespacedName})
				if err != nil || (result.RequeueAfter > 0) != ours || !ours && b.patches+b.statuses > patches {
					t.Errorf("ours %t: again after %s, %v", ours, result.RequeueAfter, err)
				}
				if has, packed := b.Snapshots.Get(key) != nil, b.Storage.Stored(key) != nil; has != ours || packed != ours {
					t.Errorf("ours %t: there is a snapshot: %t, and an archive: %t", ours, has, packed)
				}
			}
		})
	}
}

// TestFollowNoMore: what a Layer names is followed, and what none names any more is not kept:
// it would be applied, old as it is, when one names it again.
func TestFollowNoMore(t *testing.T) {
	b := newGitBench(t)
	commit := b.commit("app", "main", "a", "1")
	spec := "url: " + b.server.HTTPURL("app") + "\nref: {branch: main}\n"
	b.declare("app", spec)
	b.want("app", "another process leads it", good, "Normal NewArtifact")
	ours := false
	b.Part = &Part{}
	b.begin()
	b.Shard = func(client.Object) bool { return ours }
	newLayer := func() *v1alpha1.Layer {
		layer := &v1alpha1.Layer{}
		layer.Namespace, layer.Name = "ns", "base"
		layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: sourcev1.GitRepositoryKind, Name: "app"}
		return layer
	}
	has := func(reason, want string) {
		t.Helper()
		got := ""
		if s := b.Snapshots.Get(gitKey("app")); s != nil {
			got = s.Commit
		}
		if got != want {
			t.Errorf("%s: there is %q, want %q", reason, got, want)
		}
	}
	create := func() {
		t.Helper()
		if err := b.Client.Create(t.Context(), newLayer()); err != nil {
			t.Fatal(err)
		}
		b.want("app", "a Layer names it", good)
		has("a Layer names it", commit)
	}
	create()
	if err := b.Client.Delete(t.Context(), newLayer()); err != nil {
		t.Fatal(err)
	}
	b.want("app", "the Layer is gone", good)
	has("the Layer is gone", "")
	create()
	obj := b.get("app")
	obj.Status.Artifact.Revision = "main@sha1:" + strings.Repeat("0", 39) + "1"
	if err := b.Client.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := b.run("app"); err == nil {
		t.Error("a commit that is not there is followed")
	}
	has("it cannot follow", commit)
	ours = true
	b.declare("app", "url: http://127.0.0.1:1/none\nref: {branch: main}\n")
	b.run("app")
	has("it comes to lead, and what it has is older than what was applied", "")
}

// TestIncludedIsAway: of a repository that this process follows and cannot fetch, the one tells
// that includes it.
func TestIncludedIsAway(t *testing.T) {
	b := newGitBench(t)
	b.commit("fleet", "main", "a.yaml", "1")
	b.commit("shared", "main", "s.yaml", "1")
	shared := "url: " + b.server.HTTPURL("shared") + "\nref: {branch: main}\n"
	b.declare("shared", shared)
	b.want("shared", "what is included", good, "Normal NewArtifact")
	b.declare("fleet", "url: "+b.server.HTTPURL("fleet")+"\nref: {branch: main}\ninclude: [{repository: {name: shared}}]\n")
	b.want("fleet", "the first time", good, "Normal NewArtifact")
	b.Part = &Part{}
	b.begin()
	b.Shard = func(o client.Object) bool { return o.GetName() != "shared" }
	b.declare("shared", "url: http://127.0.0.1:1/none\nref: {branch: main}\n")
	b.want("fleet", "what it includes is not known to be away", good)
	if _, _, _, err := b.run("shared"); err == nil {
		t.Fatal("a server that is away is followed")
	}
	away := with(failedWith("IncludeUnavailable", "NoArtifact"), "ArtifactInStorage", "True/Succeeded")
	b.want("fleet", "it is", away, "Warning NoArtifact no artifact available for include 'shared': cannot fetch revision")
	b.run("shared")
	b.want("fleet", "it still is: that was said", away)
	b.declare("shared", shared)
	b.want("shared", "it is back", good)
	b.want("fleet", "so is this", good, "Normal Succeeded")
}
