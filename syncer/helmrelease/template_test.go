package helmrelease

import (
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestHelmChartDeclared(t *testing.T) {
	obj := &helmv2.HelmRelease{}
	obj.Namespace, obj.Name = "team", "web"
	obj.Spec.Interval.Duration = time.Hour
	obj.Spec.Chart = &helmv2.HelmChartTemplate{
		ObjectMeta: &helmv2.HelmChartTemplateObjectMeta{Labels: map[string]string{"a": "b"}},
		Spec: helmv2.HelmChartTemplateSpec{
			Chart: "podinfo", Version: "6.x", SourceRef: helmv2.CrossNamespaceObjectReference{Kind: "HelmRepository", Name: "charts", Namespace: "shared"},
			ValuesFiles: []string{"prod.yaml"},
		},
	}
	want := &sourcev1.HelmChart{
		TypeMeta: metav1.TypeMeta{APIVersion: "source.toolkit.fluxcd.io/v1", Kind: "HelmChart"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shared", Name: "team-web", Labels: map[string]string{
			"a": "b", "helm.toolkit.fluxcd.io/name": "web", "helm.toolkit.fluxcd.io/namespace": "team",
		}},
		Spec: sourcev1.HelmChartSpec{
			Chart: "podinfo", Version: "6.x", SourceRef: sourcev1.LocalHelmChartSourceReference{Kind: "HelmRepository", Name: "charts"},
			Interval: metav1.Duration{Duration: time.Hour}, ValuesFiles: []string{"prod.yaml"},
		},
	}
	got := helmChart(obj)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("the chart: -want, +got:\n%s", diff)
	}
	if _, ok := obj.Spec.Chart.ObjectMeta.Labels["helm.toolkit.fluxcd.io/name"]; ok {
		t.Error("the labels of the template in the HelmRelease were changed")
	}
	for name, tc := range map[string]struct {
		reason string
		edit   func(*sourcev1.HelmChart)
		want   bool
	}{
		"Same":      {"nothing is to be written", func(*sourcev1.HelmChart) {}, true},
		"Defaulted": {"the API server fills in what is not declared", func(c *sourcev1.HelmChart) { c.Spec.ReconcileStrategy = "ChartVersion" }, true},
		"Suspended": {"whoever suspends a chart means it", func(c *sourcev1.HelmChart) { c.Spec.Suspend = true }, true},
		"Annotated": {"other people's annotations are theirs", func(c *sourcev1.HelmChart) { c.Annotations = map[string]string{"x": "y"} }, true},
		"Version":   {"another version is declared", func(c *sourcev1.HelmChart) { c.Spec.Version = "5.x" }, false},
		"Label":     {"ours was taken off", func(c *sourcev1.HelmChart) { delete(c.Labels, "a") }, false},
		"Verify":    {"verification was added by hand", func(c *sourcev1.HelmChart) { c.Spec.Verify = &sourcev1.HelmChartVerification{Provider: "cosign"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			have := got.DeepCopy()
			tc.edit(have)
			if declares(got, have) != tc.want {
				t.Errorf("%s: declares() = %t", tc.reason, !tc.want)
			}
		})
	}
}
