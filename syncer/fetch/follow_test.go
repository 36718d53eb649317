package fetch

import (
	"slices"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"
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
// those of other namespaces as well.
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
}

// TestLeft: a source that other labels make another agent's is that one's alone, and what it
// had is not kept.
func TestLeft(t *testing.T) {
	b := newGitBench(t)
	b.commit("app", "main", "a", "1")
	b.declare("app", "url: "+b.server.HTTPURL("app")+"\nref: {branch: main}")
	key := source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: types.NamespacedName{Namespace: "ns", Name: "app"}}
	ours := true
	b.Shard = func(client.Object) bool { return ours }
	for _, ours = range []bool{true, false, true} {
		patches := b.patches + b.statuses
		result, err := b.Reconcile(t.Context(), ctrl.Request{NamespacedName: key.NamespacedName})
		if err != nil || (result.RequeueAfter > 0) != ours || (b.Snapshots.Get(key) != nil) != ours || !ours && b.patches+b.statuses > patches {
			t.Errorf("ours %t: again after %s, %v", ours, result.RequeueAfter, err)
		}
	}
}
