package main

import (
	"strings"
	"testing"
	"testing/fstest"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/cmd/cascade/migration"
)

// TestReadSync: a migration is a commit, and is refused where none would arrive.
func TestReadSync(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		ref    *sourcev1.GitRepositoryRef
		branch string
		want   string // in the error
	}{
		"Branch":  {"as flux bootstrap writes it", &sourcev1.GitRepositoryRef{Branch: "main"}, "main", ""},
		"Commit":  {"as in an incident", &sourcev1.GitRepositoryRef{Branch: "main", Commit: "1a2b"}, "", "GitRepository flux-system/flux-system is pinned to commit 1a2b, so that a commit would not arrive"},
		"Tag":     {"a tag counts more than the branch", &sourcev1.GitRepositoryRef{Branch: "main", Tag: "v1"}, "", "is pinned to tag v1"},
		"SemVer":  {"a new tag arrives, and a commit does not", &sourcev1.GitRepositoryRef{Branch: "main", SemVer: ">=1"}, "", "is pinned to semver >=1"},
		"Name":    {"it is the branch", &sourcev1.GitRepositoryRef{Name: "refs/heads/prod/eu"}, "prod/eu", ""},
		"Both":    {"the name counts", &sourcev1.GitRepositoryRef{Branch: "main", Tag: "v1", Name: "refs/heads/prod"}, "prod", ""},
		"Request": {"no push moves it", &sourcev1.GitRepositoryRef{Branch: "main", Name: "refs/pull/7/head"}, "", "is pinned to name refs/pull/7/head"},
		"Default": {"Flux has one", nil, "master", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(nil)
			b.flags = &genericclioptions.ConfigFlags{}
			named := metav1.ObjectMeta{Namespace: "flux-system", Name: "flux-system"}
			k := &kustomizev1.Kustomization{ObjectMeta: named, Spec: kustomizev1.KustomizationSpec{Path: "./a"}}
			k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.GitRepositoryKind, Name: named.Name}
			git := &sourcev1.GitRepository{ObjectMeta: named, Spec: sourcev1.GitRepositorySpec{URL: b.url, Reference: tc.ref}}
			m := &migrate{bootstrap: *b, sync: "flux-system/flux-system"}
			err := m.readSync(t.Context(), fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(k, git).Build())
			if tc.want == "" && (err != nil || m.branch != tc.branch) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: branch %q: %v", tc.reason, m.branch, err)
			}
		})
	}
}

// TestToFluxHeldFirst: what the agent holds back is refused before the repository is looked at.
// That it has nothing of Flux has the advice to install Flux anew, which would do what is held.
func TestToFluxHeldFirst(t *testing.T) {
	server, l := repositoryWith(t, fstest.MapFS{"a/b.yaml": {Data: []byte("{}\n")}})
	remote, err := remoteOf(server.HTTPURL("fleet"), "main", l)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason string
		held   []string
		want   string
	}{
		"Held":    {"Flux would build the Cluster again", []string{"Kustomization a/b does not create Cluster f/a, which another management cluster manages"}, "the agent holds back"},
		"Nothing": {"there is nothing to go back to", nil, "flux bootstrap after it"},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(nil)
			m := &migrate{bootstrap: *b}
			facts := migration.Facts{Namespace: "flux-system", Replaced: []migration.Controller{{Name: "source-controller"}}, Held: tc.held}
			if err := m.planTo(t.Context(), remote, facts); err == nil || !strings.Contains(err.Error(), tc.want) || tc.held != nil && strings.Contains(err.Error(), "flux bootstrap") {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}
