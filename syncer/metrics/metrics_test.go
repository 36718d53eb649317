package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// series counts what is scraped, by family, as Prometheus does: a histogram is one series for
// each bucket, one without a bound, sum and count.
func series(t *testing.T, registry prometheus.Gatherer) (total int, by map[string]int) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	by = map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n := 1
			if h := m.GetHistogram(); h != nil {
				n = len(h.GetBucket()) + 3
			}
			by[f.GetName()] += n
			total += n
		}
	}
	return total, by
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// ofObjects is the part of the budget of 15 000 series of a tier with 1000 children that its
// releases and charts may have: the children have 6000, the agent itself 1200, and layers some.
const ofObjects = 15000 - 6000 - 1200 - 300

// TestSeries: a thousand releases with a thousand charts stay within their part, whatever was
// reconciled before them and is gone.
func TestSeries(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	var objects []client.Object
	for i := range 1000 {
		name := types.NamespacedName{Namespace: "fleet", Name: fmt.Sprint("c", i)}
		m.Reconciled("HelmRelease", types.NamespacedName{Namespace: "gone", Name: name.Name}, &helmv2.HelmRelease{}, time.Second)
		m.Forget("HelmRelease", types.NamespacedName{Namespace: "gone", Name: name.Name})
		release := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name.Name}}
		chart := &sourcev1.HelmChart{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name.Name}}
		m.Reconciled("HelmRelease", name, release, time.Second)
		m.Reconciled("HelmChart", name, chart, time.Second)
		objects = append(objects, release, chart)
	}
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(objects...).Build()
	registry.MustRegister(NewInfo(c, []string{"HelmRelease", "HelmChart"}, []string{Gotk}, func(client.Object) bool { return true }, func() bool { return true }))
	total, by := series(t, registry)
	// Inventories of releases are known only once they are applied.
	if total += 1000; total > ofObjects || by["gotk_resource_info"] != 2000 {
		t.Errorf("%d series, %v", total, by)
	}
	if got := by["gotk_reconcile_duration_seconds"]; got != 13*(mostTimed+2) {
		t.Errorf("%d series of durations, want those of %d objects and of two kinds", got, mostTimed)
	}
}

// TestHeld: what a person has to look at has a series while it is so.
func TestHeld(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	name := types.NamespacedName{Namespace: "n", Name: "a"}
	o := &kustomizev1.Kustomization{}
	count := func() string {
		_, by := series(t, registry)
		return fmt.Sprint(by["cascade_prune_blocked"], by["cascade_create_held"], by["cascade_drifted_objects"], by["cascade_resource_ready"])
	}
	for _, step := range []struct {
		reason string
		do     func()
		want   string
	}{
		{"nothing is held", func() {}, "0 0 0 1"},
		{"deletes are", func() { set(o, v1alpha1.PruneBlockedCondition, metav1.ConditionTrue) }, "1 0 0 1"},
		{"and Clusters", func() { set(o, v1alpha1.CreateHeldCondition, metav1.ConditionTrue); m.Drifted(name, 2) }, "1 1 1 1"},
		{"and no more", func() {
			set(o, v1alpha1.PruneBlockedCondition, metav1.ConditionFalse)
			apimeta.RemoveStatusCondition(&o.Status.Conditions, v1alpha1.CreateHeldCondition)
			m.Drifted(name, 0)
		}, "0 0 0 1"},
	} {
		step.do()
		m.Reconciled("Kustomization", name, o, time.Second)
		if got := count(); got != step.want {
			t.Errorf("%s: %s, want %s", step.reason, got, step.want)
		}
	}
	m.Forget("Kustomization", name)
	if total, by := series(t, registry); total != 0 {
		t.Errorf("of what is gone there is left %v", by)
	}
}

func set(o status.Object, kind string, is metav1.ConditionStatus) {
	status.SetCondition(o, kind, is, "Test", "")
}

// TestInfo: the labels are those by which the published dashboards ask, and have no login.
func TestInfo(t *testing.T) {
	ks := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web", UID: "1"}}
	ks.Spec.Suspend, ks.Spec.Path, ks.Spec.SourceRef.Name, ks.Status.LastAppliedRevision = true, "./web", "fleet", "main@sha1:abc"
	set(ks, meta.ReadyCondition, metav1.ConditionTrue)
	git := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "fleet", UID: "2"}}
	git.Spec.URL, git.Status.Artifact = "https://user:secret@git.example/fleet?token=secret", &meta.Artifact{Revision: strings.Repeat("r", 1000)}
	others := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "others"}}
	active := true
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewInfo(fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(ks, git, others).Build(),
		[]string{"Kustomization", "GitRepository", "Layer"}, []string{Gotk, Flux},
		func(o client.Object) bool { return o.GetName() != "others" }, func() bool { return active }))
	got := texts(t, registry)
	for _, want := range []string{
		"flux_resource_info exported_namespace=apps kind=Kustomization name=web path=./web ready=True reason=Test revision=main@sha1:abc source_name=fleet suspended=True uid=1",
		"gotk_resource_info customresource_group=kustomize.toolkit.fluxcd.io customresource_kind=Kustomization customresource_version=v1 exported_namespace=apps name=web ready=True revision=main@sha1:abc source_name=fleet suspended=true",
		"gotk_resource_info customresource_group=source.toolkit.fluxcd.io customresource_kind=GitRepository customresource_version=v1 exported_namespace=apps name=fleet ready=Unknown revision=" + strings.Repeat("r", mostText) + " suspended=false url=https://git.example/fleet",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("there is no\n%s\nbut\n%s", want, strings.Join(got, "\n"))
		}
	}
	if text := strings.Join(got, "\n"); strings.Contains(text, "secret") {
		t.Errorf("a login is told: %s", text)
	}
	if text := strings.Join(got, "\n"); strings.Contains(text, "others") {
		t.Errorf("an object of another agent is told: %s", text)
	}
	if active = false; len(texts(t, registry)) > 0 {
		t.Error("a replica that does not lead tells the same again")
	}
}

// texts are the series that are not empty, with their labels that are not.
func texts(t *testing.T, registry prometheus.Gatherer) []string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			line := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" {
					line += " " + l.GetName() + "=" + l.GetValue()
				}
			}
			all = append(all, line)
		}
	}
	return all
}
