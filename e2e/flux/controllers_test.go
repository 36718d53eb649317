package flux

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestControllers: one process fetches and serves sources, another applies what
// it finds by the URL in their status, as with Flux's controllers; and what a
// third party writes as an ExternalArtifact is applied too.
func TestControllers(t *testing.T) {
	scenario.Alongside(t)
	o := scenario.StartTier(t)
	tier, err := o.Cluster(t.Context(), "split")
	if err != nil {
		t.Fatal(err)
	}
	c, err := tier.Client()
	if err != nil {
		t.Fatal(err)
	}
	scenario.InstallKinds(t, c, o.Stage)
	artifacts := scenario.FreeAddress(t)
	scenario.StartAgent(t, o.Stage, tier, "sources", "--controllers=GitRepository", "--artifact-addr="+artifacts, "--artifact-adv-addr="+artifacts)
	scenario.StartAgent(t, o.Stage, tier, "appliers", "--controllers=Kustomization", "--feature-gates=ExternalArtifact=true")

	if err := o.Git.Create(t.Context(), "split"); err != nil {
		t.Fatal(err)
	}
	o.Put(t, "split", map[string]string{"app/a.yaml": scenario.ConfigMap("a", "1")})
	for _, text := range []string{
		fmt.Sprintf("apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: split, namespace: cascade-system}\n"+
			"spec: {url: %q, ref: {branch: main}, secretRef: {name: git-auth}, interval: 1s}\n", o.Git.HTTPURL("split")),
		scenario.Kustomization("apps", "split", "./app", ""),
	} {
		if err := stage.Apply(t.Context(), c, text); err != nil {
			t.Fatal(err)
		}
	}
	applied(t, c, "apps", "a", "1")
	g := &sourcev1.GitRepository{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: stage.Namespace, Name: "split"}, g); err != nil {
		t.Fatal(err)
	}
	a := g.Status.Artifact
	if a == nil || !strings.Contains(a.URL, "@"+artifacts+"/gitrepository/cascade-system/split/") || !strings.HasPrefix(a.Digest, "sha256:") || a.Size == nil {
		t.Fatalf("the artifact is %+v", a)
	}
	// Who has the URL has the artifact; who knows where it is has not.
	bare, err := url.Parse(a.URL)
	if err != nil {
		t.Fatal(err)
	}
	bare.User = nil
	for from, want := range map[string]int{a.URL: http.StatusOK, bare.String(): http.StatusUnauthorized} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, from, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("GET %s is %s, want %d", from, answer.Status, want)
		}
	}
	o.Put(t, "split", map[string]string{"app/a.yaml": scenario.ConfigMap("a", "2")})
	applied(t, c, "apps", "a", "2")

	// The third party names what is served already.
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
		t.Fatal(err)
	}
	e := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "made"}}
	if err := c.Create(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	e.Status.Artifact = g.Status.Artifact.DeepCopy()
	e.Status.Artifact.Revision = "latest@" + g.Status.Artifact.Digest
	e.Status.Artifact.Metadata = map[string]string{"org.opencontainers.image.revision": "main@sha1:0123"}
	e.Status.Conditions = []metav1.Condition{{Type: fluxmeta.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Succeeded", LastTransitionTime: metav1.Now()}}
	if err := c.Status().Update(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	external := strings.Replace(scenario.Kustomization("external", "made", "./app", "  namePrefix: x-\n"), "kind: GitRepository", "kind: ExternalArtifact", 1)
	if err := stage.Apply(t.Context(), c, external); err != nil {
		t.Fatal(err)
	}
	k := applied(t, c, "external", "x-a", "2")
	if k.Status.LastAppliedRevision != e.Status.Artifact.Revision || k.Status.LastAppliedOriginRevision != "main@sha1:0123" {
		t.Errorf("applied %q of %q", k.Status.LastAppliedRevision, k.Status.LastAppliedOriginRevision)
	}
	// What is announced is not there: that is said, tried again, and what was applied stays.
	there := e.Status.Artifact.URL
	e.Status.Artifact.URL = there + ".gone"
	if err := c.Status().Update(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	failing(t, c, "external", fluxmeta.ArtifactFailedReason, "artifact not found")
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "x-a"}, &corev1.ConfigMap{}); err != nil {
		t.Errorf("what was applied: %v", err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
		t.Fatal(err)
	}
	e.Status.Artifact.URL = there
	if err := c.Status().Update(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	applied(t, c, "external", "x-a", "2")
	// What is served is not what was promised: nothing of it is applied.
	e.Status.Artifact.Digest = "sha256:" + strings.Repeat("0", 64)
	e.Status.Artifact.Revision = "latest@" + e.Status.Artifact.Digest
	if err := c.Status().Update(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	failing(t, c, "external", fluxmeta.ArtifactFailedReason, "digest")
}

// failing waits until a Kustomization says why it is not ready.
func failing(t *testing.T, c client.Client, name, reason, part string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s says %s: %s", name, reason, part), func(ctx context.Context) error {
		k := &kustomizev1.Kustomization{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: name}, k); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if ready == nil || ready.Reason != reason || !strings.Contains(ready.Message, part) {
			return fmt.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
		}
		return nil
	})
}

// applied waits until a Kustomization is ready and has applied a value.
func applied(t *testing.T, c client.Client, name, object, value string) *kustomizev1.Kustomization {
	t.Helper()
	k := &kustomizev1.Kustomization{}
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s applied %s=%s", name, object, value), func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: name}, k); err != nil {
			return err
		}
		m := &corev1.ConfigMap{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: "default", Name: object}, m); apierrors.IsNotFound(err) || err == nil && m.Data["value"] != value {
			return fmt.Errorf("it has %v, and conditions %s", m.Data, scenario.Summary(k.Status.Conditions))
		} else if err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition) {
			return fmt.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
		}
		return nil
	})
	return k
}
