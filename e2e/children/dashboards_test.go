package children

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// stirred is how often something happens while the dashboards are looked at.
const stirred = 4 * time.Second

// eventSink takes what the agent posts to a notification-controller, and returns its address.
func eventSink(t *testing.T) string {
	t.Helper()
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	t.Cleanup(sink.Close)
	return sink.URL + "/"
}

// dashboards: every query of the dashboards has data of real agents. There is one of each thing
// that they show: what fails, what drifted, what lapses, what is held, and a child that comes
// while Prometheus scrapes.
func (e *environment) dashboards(t *testing.T) {
	all, err := stage.Panels(scenario.Path(t, "deploy", "monitoring", "dashboards"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 40 {
		t.Fatalf("there are only %d queries", len(all))
	}
	version := 1
	e.commit(t, shownAt(version))
	e.furnish(t)
	last := time.Now()
	stir := func() {
		if time.Since(last) < stirred {
			return
		}
		version++
		e.commit(t, shownAt(version))
		e.byHand(t)
		last = time.Now()
	}
	for _, panel := range all {
		scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s of dashboard %s has data: %s", panel.Title, panel.Dashboard, panel.Expr), func(ctx context.Context) error {
			stir()
			return e.prometheus.Shows(ctx, panel)
		})
	}
	t.Logf("all %d queries of the dashboards have data", len(all))
}

// shownAt are files of the environment: a directory that needs kustomize, with an object that
// commits change and one that they do not.
func shownAt(version int) map[string]string {
	return map[string]string{
		"shown/kustomization.yaml": fmt.Sprintf("resources: [left.yaml]\ngeneratorOptions: {disableNameSuffixHash: true}\n"+
			"configMapGenerator: [{name: shown, namespace: default, literals: [version=%d]}]\n", version),
		"shown/left.yaml": noteNamed("left", "by", "git"),
	}
}

// furnish adds one of each thing that dashboards show.
func (e *environment) furnish(t *testing.T) {
	e.define(t, `apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: shown, annotations: {cascade.dev/drift: report}}
spec: {sourceRef: {kind: GitRepository, name: fleet}, path: ./shown, prune: true, interval: 1h}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: broken}
spec: {sourceRef: {kind: GitRepository, name: fleet}, path: ./none, prune: true, interval: 1h}
---
apiVersion: cascade.dev/v1alpha1
kind: Rollout
metadata: {name: bare}
spec: {moves: {layerRef: {name: bare}}, waves: [{name: all}]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: git, annotations: {cascade.dev/credentials: git}}
---
apiVersion: cascade.dev/v1alpha1
kind: Credential
metadata: {name: git}
spec: {serviceAccountToken: {serviceAccountName: git, audiences: [git], lifetime: 1h}, interval: 10m, grace: 2m}
`)
	// A StateBackup counts beside the agent only.
	backup := object("cascade.dev/v1alpha1", "StateBackup", v1alpha1.AgentNamespace, "tier")
	backup.Object["spec"] = map[string]any{
		"interval": "15m", "destination": map[string]any{"url": "s3://state/production?region=none&endpoint=https://127.0.0.1:9"},
		"encryption": map[string]any{"recipients": []any{"age192trcm4y0u7ednvzpkqeu9huz7d6f4fpt068teg39mydxu8eq35sh0xahu"}},
	}
	e.apply(t, backup)
	// What the tenants were given lapses.
	e.annotate(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: e.name, Name: "for-child"}}, v1alpha1.ExpiresAnnotation, time.Now().Add(100*time.Hour).UTC().Format(time.RFC3339))
	// One tenant is never handed over, and one comes now.
	e.declare(t, "unborn")
	e.layer(t, "later", "late")
	late := e.plane(t, "late")
	e.declare(t, "late")
	e.report(t, "late", initialized)
	e.handOver(t, "late", late.issue(t).kubeconfig)
	// From the first contact to its layers is a while: what it is to have comes behind it.
	scenario.Eventually(t, scenario.Converge, "the agent has seen it", func(ctx context.Context) error {
		if child, err := e.child(ctx, "late"); err != nil || child.Status.Identity == nil {
			return fmt.Errorf("it has no identity yet: %w", err)
		}
		return nil
	})
	e.commit(t, map[string]string{"later/note.yaml": noteNamed("later", "version", "1")})
	e.ready(t, "late", "")
	e.byHand(t)
}

// byHand changes an object of which Git has the opposite.
func (e *environment) byHand(t *testing.T) {
	t.Helper()
	left := object("v1", "ConfigMap", "default", "left")
	scenario.Eventually(t, scenario.Converge, "the object is there to be changed", func(ctx context.Context) error {
		return scenario.Get(ctx, e.tier, left, "default", "left")
	})
	e.patch(t, left, map[string]any{"data": map[string]any{"by": "hand"}})
}
