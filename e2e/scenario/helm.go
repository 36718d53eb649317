package scenario

import (
	"context"
	"fmt"
	"slices"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// HelmTier is a tier with a Helm repository, a registry and buckets.
type HelmTier struct {
	*Tier
	Charts   *origins.Charts
	Registry *origins.Registry
	Buckets  *origins.Buckets
}

// BucketKey is the access key of the S3 server.
const BucketKey = "cascade"

// StartHelmTier starts a tier. The Helm repository has versions 1.0.0 and 1.1.0 of
// AppChart under the name app.
func StartHelmTier(t *testing.T) *HelmTier {
	t.Helper()
	h := &HelmTier{
		Charts: origins.StartCharts(origins.Login{}), Registry: origins.StartRegistry(origins.Login{}), Buckets: origins.StartBuckets(BucketKey),
	}
	t.Cleanup(h.Charts.Close)
	t.Cleanup(h.Registry.Close)
	t.Cleanup(h.Buckets.Close)
	for _, version := range []string{"1.0.0", "1.1.0"} {
		h.Charts.Add(AppChart("app", version))
	}
	h.Tier = StartTier(t)
	return h
}

// AppChart is a chart whose objects its values say: a ConfigMap named after the
// release with settings, and whatever objects lists.
func AppChart(name, version string) origins.Chart {
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

// WithFiles is a chart with more files, or with others of the same names.
func WithFiles(c origins.Chart, files map[string]string) origins.Chart {
	c.Files = c.Tree()
	for name, text := range files {
		c.Files[name] = text
	}
	return c
}

// HelmRow is one row of a table about releases and sources.
type HelmRow struct {
	*Row
	Helm *HelmTier
}

// Row begins a row: a namespace, and a HelmRepository named charts. Charts of its
// own are in the repository before that.
func (h *HelmTier) Row(t *testing.T, charts ...origins.Chart) *HelmRow {
	t.Helper()
	r := h.RowIn(rowName(t))
	for _, c := range charts {
		for name, text := range c.Files {
			c.Files[name] = r.Fill(text)
		}
		c.Name = r.Fill(c.Name)
		h.Charts.Add(c)
	}
	r.Apply(t, r.Fill(`apiVersion: v1
kind: Namespace
metadata: {name: $ns}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: charts, namespace: $ns}
spec: {url: "`+h.Charts.URL()+`", interval: 10m}
`))
	return r
}

// RowIn is a row in a namespace that is there, or that the caller makes.
func (h *HelmTier) RowIn(namespace string) *HelmRow {
	return &HelmRow{Row: &Row{Tier: h.Tier, Namespace: namespace}, Helm: h}
}

// GitRow begins a row that has a Git repository, as rows of Kustomizations have, and
// no HelmRepository.
func (h *HelmTier) GitRow(t *testing.T, files map[string]string) *HelmRow {
	t.Helper()
	return &HelmRow{Row: h.Tier.Row(t, files), Helm: h}
}

// Release creates or replaces a HelmRelease. What spec says, in YAML, goes over
// version 1.0.0 of the chart app, field by field; null takes one away.
func (r *HelmRow) Release(t *testing.T, name, spec string) {
	t.Helper()
	fields := map[string]any{
		"interval": "10m", "timeout": "1m",
		"chart": map[string]any{"spec": map[string]any{
			"chart": "app", "version": "1.0.0", "sourceRef": map[string]any{"kind": "HelmRepository", "name": "charts"},
		}},
	}
	over := map[string]any{}
	if err := yaml.Unmarshal([]byte(r.Fill(spec)), &over); err != nil {
		t.Fatal(err)
	}
	u := stage.Object("helm.toolkit.fluxcd.io/v2", "HelmRelease")
	u.Object["metadata"] = map[string]any{"namespace": r.Namespace, "name": name}
	u.Object["spec"] = merge(fields, over)
	if err := r.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("user"), client.ForceOwnership); err != nil {
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

// ReleaseTells is tells of a HelmRelease, which it returns.
func (r *Row) ReleaseTells(t *testing.T, name, kind string, status metav1.ConditionStatus, reason, message string) *helmv2.HelmRelease {
	t.Helper()
	o := &helmv2.HelmRelease{}
	r.Tells(t, o, name, kind, status, reason, message)
	return o
}

const AnyVersion = 0

// Released waits until a HelmRelease is ready and has nothing left to do, in
// its version: the release's number in Helm's storage. Where an agent is killed that
// is anyRevision: an install that was cut off ends as an upgrade, as in Flux.
func (r *Row) Released(t *testing.T, name string, version int) *helmv2.HelmRelease {
	t.Helper()
	o := &helmv2.HelmRelease{}
	Eventually(t, Converge, fmt.Sprintf("HelmRelease %s is ready in version %d", name, version), func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(o.Status.Conditions, fluxmeta.ReadyCondition)
		latest := o.Status.History.Latest()
		switch {
		case c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != o.Generation || o.Status.ObservedGeneration != o.Generation:
		case meta.FindStatusCondition(o.Status.Conditions, fluxmeta.ReconcilingCondition) != nil || meta.FindStatusCondition(o.Status.Conditions, fluxmeta.StalledCondition) != nil:
		case latest == nil || version != AnyVersion && latest.Version != version:
			return fmt.Errorf("history is %s", Snapshots(o))
		default:
			return nil
		}
		return fmt.Errorf("observed generation %d of %d, conditions are %s", o.Status.ObservedGeneration, o.Generation, Summary(o.Status.Conditions))
	})
	return o
}

// Snapshots of a history, newest first, in short.
func Snapshots(o *helmv2.HelmRelease) []string {
	var all []string
	for _, s := range o.Status.History {
		all = append(all, fmt.Sprintf("%s/%s.v%d %s %s@%s", s.Namespace, s.Name, s.Version, s.Status, s.ChartName, s.ChartVersion))
	}
	return all
}

// History waits until a HelmRelease has snapshots, newest first. Flux writes the
// conditions first and the rest of the status after them.
func (r *Row) History(t *testing.T, name string, want ...string) {
	t.Helper()
	Eventually(t, Converge, fmt.Sprintf("HelmRelease %s has history %q", name, want), func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.Load(ctx, o, r.Namespace, name); err != nil {
			return err
		}
		if got := Snapshots(o); !slices.Equal(got, want) {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// Status waits until a HelmRelease's is as wanted.
func (r *Row) Status(t *testing.T, name string, wanted func(helmv2.HelmReleaseStatus) bool) {
	t.Helper()
	Eventually(t, Converge, fmt.Sprintf("the status of HelmRelease %s is as wanted", name), func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.Load(ctx, o, r.Namespace, name); err != nil {
			return err
		}
		if !wanted(o.Status) {
			return fmt.Errorf("it is %+v", o.Status)
		}
		return nil
	})
}

// Storage says what Helm's storage in a namespace has of a release, by the labels
// of its Secrets.
func (r *Row) Storage(t *testing.T, namespace, release string) []string {
	t.Helper()
	list := &corev1.SecretList{}
	if err := r.Client.List(t.Context(), list, client.InNamespace(namespace), client.MatchingLabels{"owner": "helm", "name": release}); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range list.Items {
		all = append(all, "v"+s.Labels["version"]+" "+s.Labels["status"])
	}
	slices.Sort(all)
	return all
}

// Request asks a HelmRelease to reconcile, with further annotations, and waits
// until that is answered.
func (r *Row) Request(t *testing.T, name string, annotations ...string) *helmv2.HelmRelease {
	t.Helper()
	at := r.NewRequest(name)
	patch := fmt.Sprintf(`%q:%q`, fluxmeta.ReconcileRequestAnnotation, at)
	for _, a := range annotations {
		patch += fmt.Sprintf(`,%q:%q`, a, at)
	}
	o := &helmv2.HelmRelease{}
	r.Patch(t, o, name, `{"metadata":{"annotations":{`+patch+`}}}`)
	Eventually(t, Converge, "the request of "+name+" is handled", func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, name); err != nil {
			return err
		}
		if o.Status.LastHandledReconcileAt != at {
			return fmt.Errorf("last handled is %q, conditions are %s", o.Status.LastHandledReconcileAt, Summary(o.Status.Conditions))
		}
		return nil
	})
	return o
}

// ReleaseInventory a release, sorted.
func ReleaseInventory(o *helmv2.HelmRelease) []string {
	var ids []string
	if o.Status.Inventory != nil {
		for _, e := range o.Status.Inventory.Entries {
			ids = append(ids, e.ID+" "+e.Version)
		}
	}
	slices.Sort(ids)
	return ids
}

const SlowDeployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: slow}, spec: {replicas: 1, selector: {matchLabels: {app: $ns}}, template: {metadata: {labels: {app: $ns}}, spec: {containers: [{name: slow, image: 'cascade.local/e2e:dev', command: [sleep, '1000000'], readinessProbe: {exec: {command: ['false']}, periodSeconds: 1}}]}}}}"
