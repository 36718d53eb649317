package remote

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/link"
)

// told are the series that a Fleet tells of objects, as name, labels and value.
func told(t *testing.T, now func() time.Time, objects ...client.Object) (*Fleet, func() []string) {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	f := &Fleet{
		Client:      fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).Build(),
		Connections: link.NewPool(t.Context(), s, now, rand.Float64), Now: now,
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(f)
	return f, func() []string {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, family := range families {
			for _, m := range family.GetMetric() {
				line := family.GetName()
				for _, l := range m.GetLabel() {
					if l.GetValue() != "" {
						line += " " + l.GetName() + "=" + l.GetValue()
					}
				}
				all = append(all, fmt.Sprint(line, " ", m.GetGauge().GetValue()))
			}
		}
		return all
	}
}

// TestSeries: a thousand children have their part of the budget, masters or tenants.
func TestSeries(t *testing.T) {
	expires := metav1.NewTime(time.Unix(1000, 0).Add(30 * 24 * time.Hour))
	heard := metav1.NewTime(time.Unix(1000, 0))
	var objects []client.Object
	for i := range 1000 {
		child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: fmt.Sprint("c", i)}}
		child.Status.HeardAt = &heard
		child.Status.Credentials = []v1alpha1.ChildCredential{{Name: "a", ExpiresAt: &expires}, {Name: "b", ExpiresAt: &expires}}
		child.Status.Report = &v1alpha1.Report{Children: &v1alpha1.ReportCounts{Total: 3, Ready: 2}}
		child.Status.Version = strings.Repeat("v", 5000)
		objects = append(objects, child)
	}
	for i := range 10 {
		objects = append(objects, &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: fmt.Sprint("l", i)}})
	}
	_, tell := told(t, func() time.Time { return heard.Time }, objects...)
	all := tell()
	if len(all) > 8100 {
		t.Errorf("%d series", len(all))
	}
	for _, line := range all {
		if len(line) > 400 {
			t.Errorf("a child chose a label of %d bytes", len(line))
		}
	}
}

func TestFleet(t *testing.T) {
	now := time.Unix(5000, 0)
	renew, soon, late := metav1.NewTime(time.Unix(3120, 0)), metav1.NewTime(time.Unix(6000, 0)), metav1.NewTime(time.Unix(7000, 0))
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a", Labels: map[string]string{environmentLabel: "production", v1alpha1.OwnerLabel: "payments"}}}
	child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}}
	child.Status.Provider, child.Status.Region, child.Status.Version = "aws", "eu-west-1", "v1.36.3"
	child.Status.Credentials = []v1alpha1.ChildCredential{{Name: "x", ExpiresAt: &late, RenewAt: &renew}, {Name: "y", ExpiresAt: &soon, RenewAt: &soon}, {Name: "z"}}
	child.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Revision: "main@sha1:1", Held: &v1alpha1.Held{}}, {Name: "other", Revision: "main@sha1:1"}}
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}}
	layer.Status.Revision, layer.Status.Children = "main@sha1:2", v1alpha1.ChildCounts{Total: 1, Updating: 1}
	f, tell := told(t, func() time.Time { return now }, child, layer)
	has := func(reason string, want ...string) {
		t.Helper()
		all := tell()
		for _, w := range want {
			if !slices.Contains(all, w) {
				t.Errorf("%s: there is no %q but\n%s", reason, w, strings.Join(all, "\n"))
			}
		}
	}
	has("a child that holds something, and is behind",
		"cascade_child_condition condition=Connected name=a namespace=fleet 1",
		"cascade_child_condition condition=Ready name=a namespace=fleet 0",
		"cascade_child_info environment=production name=a namespace=fleet owner=payments provider=aws region=eu-west-1 version=v1.36.3 1",
		"cascade_child_credential_expiry_timestamp_seconds name=a namespace=fleet 6000",
		"cascade_child_held_layers name=a namespace=fleet 1",
		"cascade_child_breakers_open 0",
		"cascade_layer_children name=base namespace=fleet state=updating 1",
		"cascade_layer_children_behind name=base namespace=fleet 1",
		"cascade_layer_lag_seconds name=base namespace=fleet 0",
	)
	if all := strings.Join(tell(), "\n"); strings.Contains(all, "cascade_child_overdue") {
		t.Errorf("a credential is to be renewed already:\n%s", all)
	}
	now = now.Add(time.Minute)
	has("it is behind for longer", "cascade_layer_lag_seconds name=base namespace=fleet 60")
	has("one should have been renewed, though another one lapses first", "cascade_child_overdue_credential_expiry_timestamp_seconds name=a namespace=fleet 7000",
		"cascade_child_credential_expiry_timestamp_seconds name=a namespace=fleet 6000")
	write := func(change func()) {
		t.Helper()
		change()
		for _, o := range []client.Object{child, layer} {
			if err := f.Client.(client.Client).Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(func() { layer.Status.Revision = "main@sha1:3" })
	has("another commit is no excuse", "cascade_layer_lag_seconds name=base namespace=fleet 60")
	now = now.Add(time.Minute)
	write(func() { child.Status.Layers[0].Revision = "main@sha1:2" })
	has("one that goes along with each commit, a step behind, does not stay", "cascade_layer_children_behind name=base namespace=fleet 1", "cascade_layer_lag_seconds name=base namespace=fleet 0")
	write(func() { child.Status.Layers[0].Revision = "main@sha1:3" })
	has("it has the revision", "cascade_layer_children_behind name=base namespace=fleet 0", "cascade_layer_lag_seconds name=base namespace=fleet 0")
	for reason, suspend := range map[string]*bool{"a suspended layer": &layer.Spec.Suspend, "a suspended child": &child.Spec.Suspend} {
		write(func() { *suspend, layer.Status.Revision = true, "main@sha1:4" })
		has(reason+" is kept back on purpose", "cascade_layer_children_behind name=base namespace=fleet 0")
		now = now.Add(time.Hour)
		has(reason+" is so for long", "cascade_layer_lag_seconds name=base namespace=fleet 0")
		write(func() { *suspend = false })
		has(reason+" is resumed", "cascade_layer_children_behind name=base namespace=fleet 1", "cascade_layer_lag_seconds name=base namespace=fleet 0")
		now = now.Add(time.Minute)
		has(reason+" was resumed a minute ago", "cascade_layer_lag_seconds name=base namespace=fleet 60")
	}
	for _, reason := range []string{v1alpha1.ReasonPaused, v1alpha1.ReasonRemovalHeld} {
		entry := &child.Status.Layers[0]
		write(func() { entry.Revision = layer.Status.Revision })
		tell()
		write(func() { entry.Revision, entry.Reason = "main@sha1:3", reason })
		has(reason+" is no delay", "cascade_layer_children_behind name=base namespace=fleet 0")
		now = now.Add(time.Hour)
		has(reason+" for long is none either", "cascade_layer_lag_seconds name=base namespace=fleet 0")
		write(func() { entry.Reason = v1alpha1.ReasonProgressing })
		has(reason+" has ended", "cascade_layer_children_behind name=base namespace=fleet 1", "cascade_layer_lag_seconds name=base namespace=fleet 0")
		now = now.Add(time.Minute)
		has(reason+" ended a minute ago", "cascade_layer_lag_seconds name=base namespace=fleet 60")
	}
	write(func() {
		child.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNoLayer},
			{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoLayer},
			{Type: v1alpha1.SeededCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoLayer},
		}
	})
	has("the cluster is there, whether a layer selects it or not", "cascade_child_info environment=production name=a namespace=fleet owner=payments provider=aws region=eu-west-1 version=v1.36.3 1")
	if all := strings.Join(tell(), "\n"); strings.Contains(all, "cascade_child_condition") {
		t.Errorf("a cluster that no layer selects is not connected, which it is not to be:\n%s", all)
	}
	never := make(chan struct{})
	f.Part.Elected = never
	if all := tell(); len(all) > 0 {
		t.Errorf("a replica that does not lead tells %v", all)
	}
}

// TestSeedDuration: how long a child took until all was in place the first time counts once.
func TestSeedDuration(t *testing.T) {
	at := func(seconds int64, kind string, is metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: is, LastTransitionTime: metav1.Unix(seconds, 0)}
	}
	of := func(digest string, conditions ...metav1.Condition) *v1alpha1.Child {
		c := &v1alpha1.Child{}
		c.Status.Identity, c.Status.Conditions = &v1alpha1.ChildIdentity{KubeSystemUID: "1"}, conditions
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Digest: digest}}
		return c
	}
	connected := at(100, v1alpha1.ConnectedCondition, metav1.ConditionTrue)
	seeded := of("d", connected, at(130, v1alpha1.SeededCondition, metav1.ConditionTrue))
	for name, tc := range map[string]struct {
		reason        string
		before, after *v1alpha1.Child
		count         uint64
		sum           float64
	}{
		"First":   {"all is in place for the first time", of("", connected, at(90, v1alpha1.SeededCondition, metav1.ConditionFalse)), seeded, 1, 30},
		"Again":   {"a new commit is no new child", of("d", connected, at(120, v1alpha1.SeededCondition, metav1.ConditionFalse)), seeded, 0, 0},
		"Stays":   {"nothing changed", seeded, seeded, 0, 0},
		"Not yet": {"it is on its way", of("", connected), of("", connected, at(90, v1alpha1.SeededCondition, metav1.ConditionFalse)), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			NewMetrics(registry).observe(tc.before, tc.after, time.Unix(130, 0))
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			if h := families[0].GetMetric()[0].GetHistogram(); h.GetSampleCount() != tc.count || h.GetSampleSum() != tc.sum {
				t.Errorf("%s: %d times, %v s; want %d, %v", tc.reason, h.GetSampleCount(), h.GetSampleSum(), tc.count, tc.sum)
			}
		})
	}
}
