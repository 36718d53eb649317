package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// helmSpec is a spec with what charts come from.
type helmSpec struct {
	*spec
	charts   *origins.Charts
	registry *origins.Registry
	buckets  *origins.Buckets
}

// bucketKey is the access key of the S3 server.
const bucketKey = "cascade"

func startHelmSpec(t *testing.T) *helmSpec {
	t.Helper()
	h := &helmSpec{
		charts: origins.StartCharts(origins.Login{}), registry: origins.StartRegistry(origins.Login{}), buckets: origins.StartBuckets(bucketKey),
	}
	t.Cleanup(h.charts.Close)
	t.Cleanup(h.registry.Close)
	t.Cleanup(h.buckets.Close)
	for _, version := range []string{"1.0.0", "1.1.0"} {
		h.charts.Add(app("app", version))
	}
	h.spec = startSpec(t)
	return h
}

// app is a chart whose objects its values say: a ConfigMap named after the
// release with settings, and whatever objects lists.
func app(name, version string) origins.Chart {
	return origins.Chart{Name: name, Version: version, AppVersion: "7", Files: map[string]string{
		"values.yaml": "settings: {color: red}\nobjects: []\nrefuse: \"\"\n",
		"templates/settings.yaml": `{{- with .Values.refuse }}{{ fail . }}{{ end -}}
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-settings}
data:
  {{- toYaml .Values.settings | nindent 2 }}
`,
		"templates/objects.yaml": "{{- range .Values.objects }}\n---\n{{ toYaml . }}\n{{- end }}\n",
	}}
}

// with is a chart with more files.
func with(c origins.Chart, files map[string]string) origins.Chart {
	c.Files = c.Tree()
	for name, text := range files {
		c.Files[name] = text
	}
	return c
}

// helmRow is one row of the table.
type helmRow struct {
	*row
	h *helmSpec
}

// row begins one: a namespace, and a HelmRepository named charts. Charts of its
// own are in the repository before that.
func (h *helmSpec) row(t *testing.T, charts ...origins.Chart) *helmRow {
	t.Helper()
	_, name, isPart := strings.Cut(t.Name(), "/")
	if !isPart {
		name = t.Name()
	}
	r := &helmRow{row: &row{spec: h.spec, ns: strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(name))}, h: h}
	for _, c := range charts {
		for name, text := range c.Files {
			c.Files[name] = r.fill(text)
		}
		c.Name = r.fill(c.Name)
		h.charts.Add(c)
	}
	r.apply(t, r.fill(`apiVersion: v1
kind: Namespace
metadata: {name: $ns}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: charts, namespace: $ns}
spec: {url: "`+h.charts.URL()+`", interval: 10m}
`))
	return r
}

// gitRow is one with a Git repository as well, as rows of Kustomizations have.
func (h *helmSpec) gitRow(t *testing.T, files map[string]string) *helmRow {
	t.Helper()
	return &helmRow{row: h.spec.row(t, files), h: h}
}

// release makes or replaces a HelmRelease. What spec says, in YAML, goes over
// version 1.0.0 of the chart app, field by field; null takes one away.
func (r *helmRow) release(t *testing.T, name, spec string) {
	t.Helper()
	fields := map[string]any{
		"interval": "10m", "timeout": "1m",
		"chart": map[string]any{"spec": map[string]any{
			"chart": "app", "version": "1.0.0", "sourceRef": map[string]any{"kind": "HelmRepository", "name": "charts"},
		}},
	}
	over := map[string]any{}
	if err := yaml.Unmarshal([]byte(r.fill(spec)), &over); err != nil {
		t.Fatal(err)
	}
	u := stage.Object("helm.toolkit.fluxcd.io/v2", "HelmRelease")
	u.Object["metadata"] = map[string]any{"namespace": r.ns, "name": name}
	u.Object["spec"] = merge(fields, over)
	if err := r.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("user"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

// merge puts fields over others, as a merge patch does.
func merge(fields, over map[string]any) map[string]any {
	for key, value := range over {
		below, isMap := value.(map[string]any)
		current, wasMap := fields[key].(map[string]any)
		switch {
		case value == nil:
			delete(fields, key)
		case isMap && wasMap:
			fields[key] = merge(current, below)
		default:
			fields[key] = value
		}
	}
	return fields
}

// reporter is an object with conditions.
type reporter interface {
	client.Object
	GetConditions() []metav1.Condition
}

// tells waits until a condition of an object has a status, a reason ("" is any),
// and a message that begins or, with a leading "...", goes on like this. It must be
// about the generation that is there. The object is read into o.
func (r *row) tells(t *testing.T, o reporter, name, kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	t.Helper()
	var found metav1.Condition
	eventually(t, converge, fmt.Sprintf("%T %s says %s=%s, %s: %s", o, name, kind, status, reason, message), func(ctx context.Context) error {
		if err := r.load(ctx, o, r.ns, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(o.GetConditions(), kind)
		if c == nil || c.Status != status || reason != "" && c.Reason != reason || c.ObservedGeneration != o.GetGeneration() {
			return fmt.Errorf("conditions are %s", summary(o.GetConditions()))
		}
		rest, anywhere := strings.CutPrefix(message, "...")
		if anywhere && !strings.Contains(c.Message, rest) || !anywhere && !strings.HasPrefix(c.Message, message) {
			return fmt.Errorf("conditions are %s", summary(o.GetConditions()))
		}
		found = *c
		return nil
	})
	return found
}

// releaseTells is tells of a HelmRelease, which it returns.
func (r *row) releaseTells(t *testing.T, name, kind string, status metav1.ConditionStatus, reason, message string) *helmv2.HelmRelease {
	t.Helper()
	o := &helmv2.HelmRelease{}
	r.tells(t, o, name, kind, status, reason, message)
	return o
}

const anyRevision = 0

// released waits until a HelmRelease is ready and has nothing left to do, in
// its version: the release's number in Helm's storage. Where an agent is killed that
// is anyRevision: an install that was cut off ends as an upgrade, as in Flux.
func (r *row) released(t *testing.T, name string, version int) *helmv2.HelmRelease {
	t.Helper()
	o := &helmv2.HelmRelease{}
	eventually(t, converge, fmt.Sprintf("HelmRelease %s is ready in version %d", name, version), func(ctx context.Context) error {
		if err := r.load(ctx, o, r.ns, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(o.Status.Conditions, fluxmeta.ReadyCondition)
		latest := o.Status.History.Latest()
		switch {
		case c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != o.Generation || o.Status.ObservedGeneration != o.Generation:
		case meta.FindStatusCondition(o.Status.Conditions, fluxmeta.ReconcilingCondition) != nil || meta.FindStatusCondition(o.Status.Conditions, fluxmeta.StalledCondition) != nil:
		case latest == nil || version != anyRevision && latest.Version != version:
			return fmt.Errorf("history is %s", snapshots(o))
		default:
			return nil
		}
		return fmt.Errorf("observed generation %d of %d, conditions are %s", o.Status.ObservedGeneration, o.Generation, summary(o.Status.Conditions))
	})
	return o
}

// snapshots of a history, newest first, in short.
func snapshots(o *helmv2.HelmRelease) []string {
	var all []string
	for _, s := range o.Status.History {
		all = append(all, fmt.Sprintf("%s/%s.v%d %s %s@%s", s.Namespace, s.Name, s.Version, s.Status, s.ChartName, s.ChartVersion))
	}
	return all
}

// history waits until a HelmRelease has snapshots, newest first. Flux writes the
// conditions first and the rest of the status after them.
func (r *row) history(t *testing.T, name string, want ...string) {
	t.Helper()
	eventually(t, converge, fmt.Sprintf("HelmRelease %s has history %q", name, want), func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.load(ctx, o, r.ns, name); err != nil {
			return err
		}
		if got := snapshots(o); !slices.Equal(got, want) {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// status waits until a HelmRelease's is as wanted.
func (r *row) status(t *testing.T, name string, wanted func(helmv2.HelmReleaseStatus) bool) {
	t.Helper()
	eventually(t, converge, fmt.Sprintf("the status of HelmRelease %s is as wanted", name), func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.load(ctx, o, r.ns, name); err != nil {
			return err
		}
		if !wanted(o.Status) {
			return fmt.Errorf("it is %+v", o.Status)
		}
		return nil
	})
}

// storage says what Helm's storage in a namespace has of a release, by the labels
// of its Secrets.
func (r *row) storage(t *testing.T, namespace, release string) []string {
	t.Helper()
	list := &corev1.SecretList{}
	if err := r.client.List(t.Context(), list, client.InNamespace(namespace), client.MatchingLabels{"owner": "helm", "name": release}); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range list.Items {
		all = append(all, "v"+s.Labels["version"]+" "+s.Labels["status"])
	}
	slices.Sort(all)
	return all
}

// request asks a HelmRelease to reconcile, with further annotations, and waits
// until that is answered.
func (r *row) request(t *testing.T, name string, annotations ...string) *helmv2.HelmRelease {
	t.Helper()
	r.asked++
	at := fmt.Sprintf("%s-%d", name, r.asked)
	patch := fmt.Sprintf(`%q:%q`, fluxmeta.ReconcileRequestAnnotation, at)
	for _, a := range annotations {
		patch += fmt.Sprintf(`,%q:%q`, a, at)
	}
	o := &helmv2.HelmRelease{}
	r.patch(t, o, name, `{"metadata":{"annotations":{`+patch+`}}}`)
	eventually(t, converge, "the request of "+name+" is handled", func(ctx context.Context) error {
		if err := r.load(ctx, o, r.ns, name); err != nil {
			return err
		}
		if o.Status.LastHandledReconcileAt != at {
			return fmt.Errorf("last handled is %q, conditions are %s", o.Status.LastHandledReconcileAt, summary(o.Status.Conditions))
		}
		return nil
	})
	return o
}

// event waits until an event with a reason is about an object, whose message
// has a part.
func (r *row) event(t *testing.T, kind, name, reason, part string) {
	t.Helper()
	eventually(t, converge, fmt.Sprintf("an event of %s %s says %s: %s", kind, name, reason, part), func(ctx context.Context) error {
		list := &corev1.EventList{}
		if err := r.client.List(ctx, list, client.InNamespace(r.ns)); err != nil {
			return err
		}
		var all []string
		for _, e := range list.Items {
			if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name {
				continue
			}
			if e.Reason == reason && strings.Contains(e.Message, part) {
				return nil
			}
			all = append(all, e.Type+" "+e.Reason+" "+e.Message)
		}
		return fmt.Errorf("events are %q", all)
	})
}

// inventoryOf a release, sorted.
func inventoryOf(o *helmv2.HelmRelease) []string {
	var ids []string
	if o.Status.Inventory != nil {
		for _, e := range o.Status.Inventory.Entries {
			ids = append(ids, e.ID+" "+e.Version)
		}
	}
	slices.Sort(ids)
	return ids
}

// absent fails if an object is there.
func (r *row) absent(t *testing.T, o client.Object, namespace, name string) {
	t.Helper()
	if err := r.load(t.Context(), o, namespace, name); !apierrors.IsNotFound(err) {
		t.Errorf("%T %s/%s is there: %v", o, namespace, name, err)
	}
}

// artifact waits until a source is ready and has an artifact of a revision; "" is
// any.
func (r *row) artifact(t *testing.T, o interface {
	reporter
	GetArtifact() *fluxmeta.Artifact
}, name, revision string) *fluxmeta.Artifact {
	t.Helper()
	var found *fluxmeta.Artifact
	eventually(t, converge, fmt.Sprintf("%T %s has revision %s", o, name, revision), func(ctx context.Context) error {
		if err := r.load(ctx, o, r.ns, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(o.GetConditions(), fluxmeta.ReadyCondition)
		a := o.GetArtifact()
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		observed, _, _ := unstructured.NestedInt64(fields, "status", "observedGeneration")
		if c == nil || c.Status != metav1.ConditionTrue || observed != o.GetGeneration() || a == nil || revision != "" && a.Revision != revision {
			return fmt.Errorf("artifact %+v, conditions are %s", a, summary(o.GetConditions()))
		}
		found = a
		return nil
	})
	return found
}

var _ reporter = &sourcev1.Bucket{}
