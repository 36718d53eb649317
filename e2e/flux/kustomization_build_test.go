package flux

import (
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// overlay: every field that a kustomization.yaml has as well, at once.
func (s *kustomizationSpec) overlay(t *testing.T) {
	r := s.Row(t, map[string]string{
		"app/a.yaml":                            scenario.ConfigMapWith("a", "", "{k: v}"),
		"app/web.yaml":                          strings.ReplaceAll(neverReady, "replicas: 1", "replicas: 0"),
		"components/extra/kustomization.yaml":   "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches: [{target: {kind: ConfigMap}, patch: '[{\"op\": \"add\", \"path\": \"/data/component\", \"value\": \"here\"}]'}]\n",
		"components/another/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n",
	})
	r.Kustomization(t, "app", `
namePrefix: pre-
nameSuffix: -post
commonMetadata: {labels: {team: a}, annotations: {note: b}}
patches: [{target: {kind: ConfigMap}, patch: '[{"op": "add", "path": "/data/patched", "value": "here"}]'}]
images: [{name: cascade.local/e2e, newName: example.com/web, newTag: v2}]
components: [../components/extra, ../components/missing]
ignoreMissingComponents: true
buildMetadata: [originAnnotations]
`)
	k := r.Ready(t, "app")
	a := r.Object(t, "v1", "ConfigMap", "pre-a-post")
	if diff := cmp.Diff(map[string]any{"k": "v", "component": "here", "patched": "here"}, a.Object["data"]); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
	if a.GetLabels()["team"] != "a" || a.GetAnnotations()["note"] != "b" || !strings.Contains(a.GetAnnotations()["config.kubernetes.io/origin"], "a.yaml") {
		t.Errorf("labels %v, annotations %v", a.GetLabels(), a.GetAnnotations())
	}
	web := &appsv1.Deployment{}
	if err := r.Load(t.Context(), web, r.Namespace, "pre-slow-post"); err != nil || web.Spec.Template.Spec.Containers[0].Image != "example.com/web:v2" {
		t.Errorf("image %v, %v", web.Spec.Template.Spec.Containers, err)
	}
	if diff := cmp.Diff([]string{r.Namespace + "_pre-a-post__ConfigMap v1", r.Namespace + "_pre-slow-post_apps_Deployment v1"}, scenario.Inventory(k)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	r.Kustomization(t, "app", "components: [../components/missing]")
	r.Says(t, "app", "Ready", "False", "BuildFailed", "")
}

func (s *kustomizationSpec) postBuild(t *testing.T) {
	r := s.Row(t, map[string]string{
		"app/a.yaml":     scenario.ConfigMapWith("a", "", `{inline: "${inline}", last: "${last}", default: "${none:=default}", upper: "${last^^}", plain: "$last", escaped: "$${last}", lines: "${lines}"}`),
		"app/raw.yaml":   scenario.ConfigMapWith("raw", ", annotations: {kustomize.toolkit.fluxcd.io/substitute: disabled}", `{k: "${inline}"}`),
		"strict/a.yaml":  scenario.ConfigMapWith("strict", "", `{k: "${nowhere}"}`),
		"absent/a.yaml":  scenario.ConfigMapWith("absent", "", `{k: "${k:=v}"}`),
		"without/a.yaml": scenario.ConfigMapWith("without", "", `{k: "${k}"}`),
	})
	r.Apply(t, r.Fill(`apiVersion: v1
kind: ConfigMap
metadata: {name: first, namespace: $ns}
data: {last: first, inline: first, lines: "one\ntwo"}
---
apiVersion: v1
kind: Secret
metadata: {name: second, namespace: $ns}
stringData: {last: second}
`))
	r.Kustomization(t, "app", `
postBuild:
  substitute: {inline: inline}
  substituteFrom: [{kind: ConfigMap, name: first}, {kind: Secret, name: second}, {kind: ConfigMap, name: third, optional: true}]
`)
	r.Ready(t, "app")
	want := map[string]string{"inline": "inline", "last": "second", "default": "default", "upper": "SECOND", "plain": "$last", "escaped": "${last}", "lines": "onetwo"}
	if diff := cmp.Diff(want, r.Data(t, "a")); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	if got := r.Data(t, "raw")["k"]; got != "${inline}" {
		t.Errorf("what says substitute: disabled has %q", got)
	}
	r.Kustomization(t, "strict", "postBuild: {substitute: {a: b}}")
	r.Says(t, "strict", "Ready", "False", "BuildFailed", "...variable not set (strict mode): \"nowhere\"")
	r.Kustomization(t, "absent", "postBuild: {substituteFrom: [{kind: ConfigMap, name: nowhere}]}")
	r.Says(t, "absent", "Ready", "False", "BuildFailed", "...nowhere")
	// Without a variable nothing is substituted, but with Always.
	r.Kustomization(t, "without", "postBuild: {substitute: {}}")
	r.Ready(t, "without")
	if got := r.Data(t, "without")["k"]; got != "${k}" {
		t.Errorf("without variables the object has %q", got)
	}
	r.Kustomization(t, "absent", "postBuild: {substituteStrategy: Always}")
	r.Ready(t, "absent")
	if got := r.Data(t, "absent")["k"]; got != "v" {
		t.Errorf("with substituteStrategy Always the object has %q", got)
	}
}

// postBuildWatched: a labelled ConfigMap is an event for those who read it.
func (s *kustomizationSpec) postBuildWatched(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", `{k: "${k}"}`)})
	r.Apply(t, r.Fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: $ns, labels: {reconcile.fluxcd.io/watch: Enabled}}\ndata: {k: one}\n"))
	r.Kustomization(t, "app", "postBuild: {substituteFrom: [{kind: ConfigMap, name: vars}]}")
	r.Has(t, "a", "k", "one")
	r.Ready(t, "app")
	r.Patch(t, &corev1.ConfigMap{}, "vars", `{"data":{"k":"two"}}`)
	r.Has(t, "a", "k", "two")
}

// ignore leaves fields to those who own them.
func (s *kustomizationSpec) ignore(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{ours: a, theirs: a}"), "app/b.yaml": scenario.ConfigMapWith("b", "", "{ours: b, theirs: b}")})
	r.Kustomization(t, "app", "ignore: [{paths: [/data/theirs], target: {kind: ConfigMap, name: a}}]")
	r.Ready(t, "app")
	for _, name := range []string{"a", "b"} {
		u := stage.Object("v1", "ConfigMap")
		u.SetNamespace(r.Namespace)
		u.SetName(name)
		u.Object["data"] = map[string]any{"theirs": "changed"}
		if err := r.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("autoscaler"), client.ForceOwnership); err != nil {
			t.Fatal(err)
		}
	}
	r.Handled(t, "app", r.Ask(t, &kustomizev1.Kustomization{}, "app"))
	r.Has(t, "b", "theirs", "b")
	if diff := cmp.Diff(map[string]string{"ours": "a", "theirs": "changed"}, r.Data(t, "a")); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	r.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{ours: aa, theirs: aa}")})
	r.Ready(t, "app")
	if diff := cmp.Diff(map[string]string{"ours": "aa", "theirs": "changed"}, r.Data(t, "a")); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

func (s *kustomizationSpec) secretsAreMasked(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80, protocol: \"${protocol}\"}]}\n"})
	r.Apply(t, r.Fill("apiVersion: v1\nkind: Secret\nmetadata: {name: vars, namespace: $ns}\nstringData: {protocol: hunter2hunter2}\n"))
	r.Kustomization(t, "app", "postBuild: {substituteFrom: [{kind: Secret, name: vars}]}")
	c := r.Says(t, "app", "Ready", "False", "ReconciliationFailed", "Service/"+r.Namespace+"/a dry-run failed (Invalid): ")
	if strings.Contains(c.Message, "hunter2") || !strings.Contains(c.Message, "***") {
		t.Errorf("the message is %q", c.Message)
	}
}

func (s *kustomizationSpec) notDecrypted(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {k: RU5DW0FFUzI1Nl9HQ00s}\nsops: {mac: x}\n"})
	r.Kustomization(t, "app", "")
	r.Says(t, "app", "Ready", "False", "BuildFailed", "...is SOPS encrypted")
}
