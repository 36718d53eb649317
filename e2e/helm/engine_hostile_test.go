package helm

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func hostileTemplate(t *testing.T, r *engineRow) {
	for name, text := range map[string]string{
		"endless":  settings + "{{ range 9000000000000 }}{{ end }}",
		"itself":   settings + "{{ $d := dict }}{{ $_ := set $d \"d\" $d }}# {{ $d }}",
		"alias":    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: &a {k: *a}\n",
		"laughs":   "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]\n" + settings,
		"no-map":   "- a\n- b\n",
		"no-kind":  "metadata: {name: x}\n",
		"null":     "apiVersion: v1\nkind: ConfigMap\nmetadata: null\n",
		"badnames": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: [1], labels: 3, annotations: [x]}\n",
	} {
		r.use("1.0.0", map[string]string{"x": text})
		out, err := r.releases.Sync(t.Context(), r.request())
		if err == nil || !conditions.IsFalse(r.obj, v2.ReleasedCondition) || conditions.GetReason(r.obj, v2.ReleasedCondition) != v2.InstallFailedReason {
			t.Errorf("%s: Sync() = %+v, %v\n%s", name, out, err, r.tell())
		}
	}
	if _, err := r.storage().Last("web"); err == nil {
		t.Error("something was stored")
	}
}

func hostileSchema(t *testing.T, r *engineRow) {
	for name, schema := range map[string]string{
		"file":   `{"$ref": "file:///etc/hostname"}`,
		"remote": `{"properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json#/x"}}}`,
		"laughs": `{"definitions": {"a": {"allOf": [{"$ref": "#/definitions/b"}, {"$ref": "#/definitions/b"}]}` + laughing(40) + `}, "$ref": "#/definitions/a"}`,
	} {
		r.use("1.0.0", map[string]string{"settings": settings})
		r.chart.Schema = []byte(schema)
		if out, err := r.releases.Sync(t.Context(), r.request()); err == nil || !strings.Contains(err.Error(), "values.schema.json") {
			t.Errorf("%s: Sync() = %+v, %v", name, out, err)
		}
	}
	// What is a schema stays one: of itself too, and of values that do not fit.
	r.chart.Schema = []byte(`{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"type": "string"}, "tree": {"$ref": "#/definitions/t"}}, "definitions": {"t": {"properties": {"sub": {"$ref": "#/definitions/t"}}}}}`)
	r.values = map[string]any{"a": "x", "tree": map[string]any{"sub": map[string]any{}}}
	r.mustSync(t)
	r.values = map[string]any{"a": 1}
	if out, err := r.releases.Sync(t.Context(), r.request()); err == nil || !strings.Contains(err.Error(), "want string") {
		t.Errorf("values that do not fit: %+v, %v", out, err)
	}
}

func laughing(n int) string {
	var b strings.Builder
	for i := range n {
		name, next := string(rune('b'+i%25))+strings.Repeat("x", i/25), string(rune('b'+(i+1)%25))+strings.Repeat("x", (i+1)/25)
		fmt.Fprintf(&b, `, %q: {"allOf": [{"$ref": "#/definitions/%s"}, {"$ref": "#/definitions/%s"}]}`, name, next, next)
	}
	return b.String()
}

func hostilePostRenderer(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	r.obj.Spec.PostRenderers = []v2.PostRenderer{{Kustomize: &v2.Kustomize{Patches: patches("data: &a {k: *a}")}}}
	if out, err := r.releases.Sync(t.Context(), r.request()); err == nil || !strings.Contains(err.Error(), "contains itself") {
		t.Fatalf("Sync() = %+v, %v", out, err)
	}
	r.obj.Spec.PostRenderers = []v2.PostRenderer{{Kustomize: &v2.Kustomize{Patches: patches(`[{"op": "add", "path": "/data/b", "value": "2"}]`)}}}
	r.obj.Spec.CommonMetadata = &v2.CommonMetadata{Labels: map[string]string{"team": "a"}}
	r.mustSync(t)
	if cm := r.there(t, "", "ConfigMap", "settings"); cm.Object["data"].(map[string]any)["b"] != "2" || cm.GetLabels()["team"] != "a" {
		t.Errorf("the ConfigMap is %v", cm)
	}
}

func hostileStorage(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	bomb := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "sh.helm.release.v1.web.v1", Namespace: r.ns, Labels: map[string]string{"owner": "helm", "name": "web", "version": "1", "status": "deployed"}},
		Type:       "helm.sh/release.v1", Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(zeros(t, 200<<20)))},
	}
	if err := r.client.Create(t.Context(), bomb); err != nil {
		t.Fatal(err)
	}
	out, err := r.sync(t)
	if err == nil || !strings.Contains(err.Error(), "expands to more than 64 MiB") || conditions.GetReason(r.obj, meta.ReadyCondition) != "StateError" {
		t.Errorf("Sync() = %+v, %v\n%s", out, err, r.tell())
	}
}

func secretsAreNotTold(t *testing.T, r *engineRow) {
	const secret = "hunter2-is-my-password"
	r.use("1.0.0", map[string]string{"s": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {p: '" + secret + "'}\nstringData: {q: {" + secret + ": 12345678}}\n"})
	out, err := r.sync(t)
	if err == nil && !out.Stalled && !out.Again {
		t.Fatalf("Sync() = %+v: an invalid Secret was applied", out)
	}
	if told := r.tell() + fmt.Sprint(err); strings.Contains(told, secret) || strings.Contains(told, "12345678") {
		t.Errorf("the value of a Secret is told:\n%s", told)
	}
}

// zeros is much of nothing, compressed.
func zeros(t *testing.T, n int64) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.CopyN(z, nothing{}, n); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type nothing struct{}

func (nothing) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
