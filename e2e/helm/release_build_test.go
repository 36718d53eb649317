package helm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// chartCRD is the row's kind, with a mark in its description.
func chartCRD(mark string) string {
	return strings.Replace(scenario.ThingCRD, "schema: {openAPIV3Schema: {type: object,", "schema: {openAPIV3Schema: {type: object, description: "+mark+",", 1)
}

func (h *releaseSpec) crds(t *testing.T) {
	r := h.Row(t, scenario.WithFiles(scenario.AppChart("$ns", "1.0.0"), map[string]string{"crds/crd.yaml": chartCRD("one")}), scenario.WithFiles(scenario.AppChart("$ns", "2.0.0"), map[string]string{"crds/crd.yaml": chartCRD("two")}))
	kind := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	r.Release(t, "web", "{chart: {spec: {chart: $ns}}, install: {crds: Skip}}")
	r.Released(t, "web", 1)
	r.Absent(t, kind, "", r.Fill("things.$ns.example.com"))
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")

	// Create is the default on installation, together with objects of the kind.
	r.Release(t, "web", "{chart: {spec: {chart: $ns}}, values: {objects: [{apiVersion: $ns.example.com/v1, kind: Thing, metadata: {name: thing}}]}}")
	o := r.Released(t, "web", 1)
	if got := marked(t, r); got != "one" {
		t.Errorf("the definition is of version %s", got)
	}
	if err := r.Load(t.Context(), kind, "", r.Fill("things.$ns.example.com")); err != nil || kind.GetLabels()["helm.toolkit.fluxcd.io/name"] != "web" {
		t.Errorf("labels %v, %v", kind.GetLabels(), err)
	}
	want := []string{r.Fill("_things.$ns.example.com_apiextensions.k8s.io_CustomResourceDefinition v1"), r.Fill("$ns_thing_$ns.example.com_Thing v1"), r.Namespace + "_web-settings__ConfigMap v1"}
	slices.Sort(want)
	if diff := cmp.Diff(want, scenario.ReleaseInventory(o)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	r.Release(t, "web", "{chart: {spec: {chart: $ns, version: 2.0.0}}, upgrade: {crds: Skip}}")
	r.Released(t, "web", 2)
	if got := marked(t, r); got != "one" {
		t.Errorf("the definition is of version %s", got)
	}
	// Definitions stay when the release goes.
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	marked(t, r)
}

// marked says which chart's definition is there.
func marked(t *testing.T, r *scenario.HelmRow) string {
	t.Helper()
	kind := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	if err := r.Load(t.Context(), kind, "", r.Fill("things.$ns.example.com")); err != nil {
		t.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(kind.Object, "spec", "versions")
	mark, _, _ := unstructured.NestedString(versions[0].(map[string]any), "schema", "openAPIV3Schema", "description")
	return mark
}

func (h *releaseSpec) crdsAreReplaced(t *testing.T) {
	r := h.Row(t, scenario.WithFiles(scenario.AppChart("$ns", "1.0.0"), map[string]string{"crds/crd.yaml": chartCRD("one")}), scenario.WithFiles(scenario.AppChart("$ns", "2.0.0"), map[string]string{"crds/crd.yaml": chartCRD("two")}),
		scenario.WithFiles(scenario.AppChart("$ns", "3.0.0"), map[string]string{"crds/crd.yaml": chartCRD("three")}))
	r.Release(t, "web", "{chart: {spec: {chart: $ns}}}")
	r.Released(t, "web", 1)
	// What is there may be another owner's, and newer. It stays, also where nothing is said.
	r.Release(t, "web", "{chart: {spec: {chart: $ns, version: 2.0.0}}, upgrade: {crds: Create}}")
	r.Released(t, "web", 2)
	if got := marked(t, r); got != "one" {
		t.Errorf("with Create the definition is of version %s", got)
	}
	r.Release(t, "web", "{chart: {spec: {chart: $ns, version: 3.0.0}}}")
	r.Released(t, "web", 3)
	if got := marked(t, r); got != "one" {
		t.Errorf("by default the definition is of version %s", got)
	}
	r.Release(t, "web", "{chart: {spec: {chart: $ns, version: 3.0.0}}, upgrade: {crds: CreateReplace}, values: {settings: {color: blue}}}")
	r.Released(t, "web", 4)
	if got := marked(t, r); got != "three" {
		t.Errorf("with CreateReplace the definition is of version %s", got)
	}
	// And on installation, over one that is there.
	r.Release(t, "other", "{chart: {spec: {chart: $ns, version: 2.0.0}}, install: {crds: CreateReplace}}")
	r.Released(t, "other", 1)
	if got := marked(t, r); got != "two" {
		t.Errorf("with CreateReplace the definition is of version %s", got)
	}
}

// valuesFrom: later ones win over earlier ones, spec.values over all.
func (h *releaseSpec) valuesFrom(t *testing.T) {
	r := h.Row(t)
	r.Apply(t, r.Fill(`apiVersion: v1
kind: ConfigMap
metadata: {name: first, namespace: $ns}
data:
  values.yaml: "settings: {a: first, b: first, c: first, d: first}"
  other.yaml: "settings: {e: other}"
---
apiVersion: v1
kind: Secret
metadata: {name: second, namespace: $ns}
stringData:
  values.yaml: "settings: {b: second, c: second}"
  plain: "with, a comma=and more"
  quoted: "'7'"
  list: "{one,two}"
`))
	r.Release(t, "web", `
values: {settings: {c: inline, g: inline}}
valuesFrom:
- {kind: ConfigMap, name: first}
- {kind: Secret, name: second}
- {kind: ConfigMap, name: first, valuesKey: other.yaml}
- {kind: Secret, name: second, valuesKey: plain, targetPath: settings.f, literal: true}
- {kind: Secret, name: second, valuesKey: quoted, targetPath: settings.g}
- {kind: Secret, name: second, valuesKey: quoted, targetPath: settings.n}
- {kind: Secret, name: second, valuesKey: list, targetPath: settings.h, literal: true}
- {kind: Secret, name: nowhere, optional: true}
- {kind: ConfigMap, name: first, valuesKey: nothing, optional: true}
- {kind: ConfigMap, name: nowhere, valuesKey: x, targetPath: settings.a, optional: true}
`)
	r.Released(t, "web", 1)
	want := map[string]string{
		"a": "first", "b": "second", "c": "inline", "d": "first", "e": "other", "f": "with, a comma=and more", "g": "inline", "n": "7", "h": "{one,two}", "color": "red",
	}
	if diff := cmp.Diff(want, r.Data(t, "web-settings")); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

func (h *releaseSpec) valuesFromMissing(t *testing.T) {
	r := h.Row(t)
	r.Apply(t, r.Fill("apiVersion: v1\nkind: Secret\nmetadata: {name: there, namespace: $ns}\nstringData: {broken: 'hunter2: [', path: hunter2}\n"))
	for _, c := range []struct{ name, from, message, reason string }{
		{"resource", "{kind: ConfigMap, name: nowhere}", "could not resolve ConfigMap chart values reference '" + r.Namespace + "/nowhere' with key 'values.yaml': configmaps \"nowhere\" not found", "the ConfigMap is not there"},
		{"key", "{kind: Secret, name: there}", "could not resolve Secret chart values reference '" + r.Namespace + "/there' with key 'values.yaml': key not found", "the key is not there"},
		{"yaml", "{kind: Secret, name: there, valuesKey: broken}", "could not resolve Secret chart values reference '" + r.Namespace + "/there' with key 'broken'", "it is no YAML"},
	} {
		r.Release(t, c.name, "valuesFrom: ["+c.from+"]")
		o := r.ReleaseTells(t, c.name, "Ready", "False", "ValuesError", c.message)
		if got := meta.FindStatusCondition(o.Status.Conditions, "Ready").Message; strings.Contains(got, "hunter2") {
			t.Errorf("%s: the message has a Secret's value: %s", c.reason, got)
		}
	}
	r.Apply(t, r.Fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nowhere, namespace: $ns}\ndata: {values.yaml: 'settings: {color: blue}'}\n"))
	r.Request(t, "resource")
	r.Released(t, "resource", 1)
	r.Has(t, "resource-settings", "color", "blue")
}

// valuesWatched: a labelled ConfigMap is an event for those who read it.
func (h *releaseSpec) valuesWatched(t *testing.T) {
	r := h.Row(t)
	values := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: values, namespace: $ns, labels: {reconcile.fluxcd.io/watch: Enabled}}\ndata: {values.yaml: 'settings: {color: %s}'}\n"
	r.Apply(t, r.Fill(fmt.Sprintf(values, "blue")))
	r.Release(t, "web", "valuesFrom: [{kind: ConfigMap, name: values}]")
	r.Released(t, "web", 1)
	r.Apply(t, r.Fill(fmt.Sprintf(values, "green")))
	r.Has(t, "web-settings", "color", "green")
	r.Released(t, "web", 2)
}

func (h *releaseSpec) postRenderers(t *testing.T) {
	r := h.Row(t)
	deployment := "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 0, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: 'cascade.local/e2e:dev'}]}}}}"
	render := `postRenderers:
- kustomize:
    patches: [{target: {kind: ConfigMap, name: web-settings}, patch: '[{"op": "add", "path": "/data/patched", "value": "%s"}]'}]
    images: [{name: cascade.local/e2e, newName: example.com/web, newTag: v2}]
- kustomize: {patches: [{patch: '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web-settings"}, "data": {"second": "here"}}'}]}
values: {objects: [` + deployment + `]}
`
	r.Release(t, "web", fmt.Sprintf(render, "one"))
	o := r.Released(t, "web", 1)
	if diff := cmp.Diff(map[string]string{"color": "red", "patched": "one", "second": "here"}, r.Data(t, "web-settings")); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
	web := &appsv1.Deployment{}
	if err := r.Load(t.Context(), web, r.Namespace, "web"); err != nil || web.Spec.Template.Spec.Containers[0].Image != "example.com/web:v2" {
		t.Errorf("containers %+v, %v", web.Spec.Template.Spec.Containers, err)
	}
	// What changes a rendering is a change, as what changes values is.
	r.Release(t, "web", fmt.Sprintf(render, "two"))
	after := r.Released(t, "web", 2)
	r.Has(t, "web-settings", "patched", "two")
	if o.Status.ObservedPostRenderersDigest == "" || after.Status.ObservedPostRenderersDigest == o.Status.ObservedPostRenderersDigest {
		t.Errorf("digests are %q, %q", o.Status.ObservedPostRenderersDigest, after.Status.ObservedPostRenderersDigest)
	}
	r.Release(t, "web", "values: {objects: ["+deployment+"]}")
	o = r.Released(t, "web", 3)
	if o.Status.ObservedPostRenderersDigest != "" {
		t.Errorf("the digest is %q", o.Status.ObservedPostRenderersDigest)
	}
	if diff := cmp.Diff(map[string]string{"color": "red"}, r.Data(t, "web-settings")); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
}

// postRenderStrategies: whether hooks are rendered as well, and as one with the
// rest or each by itself.
func (h *releaseSpec) postRenderStrategies(t *testing.T) {
	r := h.Row(t)
	hooked := "{apiVersion: v1, kind: ConfigMap, metadata: {name: %s-hooked, annotations: {helm.sh/hook: pre-install}}, data: {k: v}}"
	for strategy, want := range map[string]string{"nohooks": "", "combined": "here", "separate": "here"} {
		r.Release(t, strategy, "{postRenderStrategy: "+strategy+", values: {objects: ["+fmt.Sprintf(hooked, strategy)+"]}, postRenderers: [{kustomize: {patches: [{target: {kind: ConfigMap}, patch: '[{\"op\": \"add\", \"path\": \"/data/patched\", \"value\": \"here\"}]'}]}}]}")
		r.Released(t, strategy, 1)
		r.Has(t, strategy+"-settings", "patched", "here")
		r.Has(t, strategy+"-hooked", "patched", want)
	}
}

func (h *releaseSpec) commonMetadata(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "commonMetadata: {labels: {team: a}, annotations: {note: b}}")
	o := r.Released(t, "web", 1)
	u := r.Object(t, "v1", "ConfigMap", "web-settings")
	if u.GetLabels()["team"] != "a" || u.GetAnnotations()["note"] != "b" || o.Status.ObservedCommonMetadataDigest == "" {
		t.Errorf("labels %v, annotations %v, digest %q", u.GetLabels(), u.GetAnnotations(), o.Status.ObservedCommonMetadataDigest)
	}
	r.Release(t, "web", "commonMetadata: {labels: {team: b}}")
	r.Released(t, "web", 2)
	u = r.Object(t, "v1", "ConfigMap", "web-settings")
	if u.GetLabels()["team"] != "b" || u.GetAnnotations()["note"] != "" {
		t.Errorf("labels %v, annotations %v", u.GetLabels(), u.GetAnnotations())
	}
}

func (h *releaseSpec) schemaValidation(t *testing.T) {
	schema := map[string]string{"values.schema.json": `{"type": "object", "properties": {"settings": {"properties": {"color": {"enum": ["red"]}}}}}`}
	r := h.Row(t, scenario.WithFiles(scenario.AppChart("$ns", "1.0.0"), schema))
	r.Release(t, "web", "{chart: {spec: {chart: $ns}}, values: {settings: {color: blue}}}")
	r.ReleaseTells(t, "web", "Ready", "False", "InstallFailed", "...values don't meet the specifications of the schema(s)")
	r.Release(t, "web", "{chart: {spec: {chart: $ns}}, install: {disableSchemaValidation: true}, values: {settings: {color: blue}}}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "{chart: {spec: {chart: $ns}}, values: {settings: {color: green}}}")
	r.ReleaseTells(t, "web", "Ready", "False", "UpgradeFailed", "...values don't meet the specifications of the schema(s)")
	r.Release(t, "web", "{chart: {spec: {chart: $ns}}, upgrade: {disableSchemaValidation: true}, values: {settings: {color: green}}}")
	r.Released(t, "web", 2)
}
