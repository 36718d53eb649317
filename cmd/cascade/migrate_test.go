package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
	gossh "golang.org/x/crypto/ssh"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/checkout"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
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
		reason  string
		version string // of the agent
		gone    bool   // the agent
		held    []string
		unseen  []string
		want    string
	}{
		"Held":    {"Flux would build the Cluster again", version(), false, []string{"Kustomization a/b does not create Cluster f/a, which another management cluster manages"}, nil, "the agent holds back"},
		"Nothing": {"there is nothing to go back to", version(), false, nil, nil, "flux bootstrap after it"},
		"Earlier": {"it does not say what it keeps", "v0.0.1", false, nil, nil, "Upgrade the agent"},
		"Unseen":  {"nobody said what it keeps", version(), false, nil, []string{"Kustomization a/b is not applied"}, "the agent holds back"},
		"Again":   {"an earlier call ended the agent, and Flux says what fails", "", true, nil, []string{"Kustomization a/b is not applied"}, "flux bootstrap after it"},
		"Unknown": {"it may be an earlier one", "", false, nil, nil, "Upgrade the agent"},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(nil)
			if !tc.gone {
				b.found = &installation.Found{Namespace: b.namespace, Version: tc.version}
			}
			m := &migrate{bootstrap: *b}
			facts := migration.Facts{Namespace: "flux-system", Replaced: []migration.Controller{{Name: "source-controller"}}, Held: tc.held, Unseen: tc.unseen, Parted: 1}
			if err := m.planTo(t.Context(), remote, facts); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(tc.want, "flux bootstrap") && strings.Contains(err.Error(), "flux bootstrap") {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

// TestToFluxMayPush: a login that may only read, as the deploy key of flux bootstrap, is found out before
// the agent is stopped. An agent that was stopped for a commit that did not come works again.
func TestToFluxMayPush(t *testing.T) {
	files := fluxFiles("spec: {sourceRef: {kind: GitRepository, name: flux-system}}\n")
	files["a/cascade-system/agent.yaml"] = &fstest.MapFile{Data: []byte("{}\n")}
	server, _ := repositoryWith(t, files)
	reading, err := server.ReadKey("fleet")
	if err != nil {
		t.Fatal(err)
	}
	auth, err := ssh.NewPublicKeys("git", reading, "")
	if err != nil {
		t.Fatal(err)
	}
	auth.HostKeyCallback = gossh.InsecureIgnoreHostKey() //nolint:gosec // a server of this test
	remote := checkout.Remote{URL: server.SSHURL("fleet"), Branch: "main", Auth: auth}
	facts := migration.Facts{Namespace: "flux-system", Replaced: []migration.Controller{{Name: "source-controller"}}}
	newMigrate := func(yes bool) *migrate {
		b, _ := newBootstrapOf(nil)
		b.yes, b.found = yes, &installation.Found{Namespace: b.namespace}
		return &migrate{bootstrap: *b}
	}
	if err := newMigrate(true).planTo(t.Context(), remote, facts); err == nil || !strings.Contains(err.Error(), "must be allowed to write there; nothing was changed") {
		t.Errorf("the login may only read: %v", err)
	}
	if err := newMigrate(false).planTo(t.Context(), remote, facts); err != nil {
		t.Errorf("who asks what will happen pushes nothing: %v", err)
	}
	for name, tc := range map[string]struct {
		reason string
		before int32
		want   string
	}{
		"Ran":     {"it goes on", 2, "the agent works again, scaled to 2 as before"},
		"Stopped": {"an earlier call, or a person, stopped it", 0, "the agent is scaled to zero, as it was"},
	} {
		t.Run(name, func(t *testing.T) {
			agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName}, Spec: appsv1.DeploymentSpec{Replicas: &tc.before}}
			flux := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "source-controller", Labels: map[string]string{"app.kubernetes.io/part-of": "flux"}}}
			c := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(agent, flux).Build()
			now := facts
			_, _, err := newMigrate(true).pushTo(t.Context(), c, remote, &now)
			if err == nil || !strings.Contains(err.Error(), "cannot push") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(agent), agent); err != nil || *agent.Spec.Replicas != tc.before {
				t.Errorf("%s: it has %d replicas, want %d: %v", tc.reason, *agent.Spec.Replicas, tc.before, err)
			}
		})
	}
}

// TestToFluxSilent: a server that takes the connection and says nothing does not keep the agent stopped when the call has
// run out of time.
func TestToFluxSilent(t *testing.T) {
	server, _ := repositoryWith(t, fluxFiles("spec: {sourceRef: {kind: GitRepository, name: flux-system}}\n"))
	key, err := server.ReadKey("fleet")
	if err != nil {
		t.Fatal(err)
	}
	auth, err := ssh.NewPublicKeys("git", key, "")
	if err != nil {
		t.Fatal(err)
	}
	auth.HostKeyCallback = gossh.InsecureIgnoreHostKey() //nolint:gosec // a server of this test
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			cancel()
		}
	}()
	defer listener.Close()
	replicas := int32(2)
	agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	flux := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "source-controller", Labels: map[string]string{"app.kubernetes.io/part-of": "flux"}}}
	c := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(agent, flux).Build()
	b, _ := newBootstrapOf(nil)
	b.yes, b.found = true, &installation.Found{Namespace: b.namespace}
	ended := make(chan error, 1)
	go func() {
		remote := checkout.Remote{URL: "ssh://git@" + listener.Addr().String() + "/fleet", Branch: "main", Auth: auth}
		facts := migration.Facts{Namespace: "flux-system", Replaced: []migration.Controller{{Name: "source-controller"}}}
		_, _, err := (&migrate{bootstrap: *b}).pushTo(ctx, c, remote, &facts)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "the agent works again, scaled to 2 as before") {
			t.Errorf("the call ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody ends the wait for the server")
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(agent), agent); err != nil || *agent.Spec.Replicas != 2 {
		t.Errorf("the agent has %d replicas: %v", *agent.Spec.Replicas, err)
	}
}
