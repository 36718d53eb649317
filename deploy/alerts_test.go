package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// TestAlertDefinition: an Alert may name what Flux's may, and our own kinds with events
// besides; a Receiver may name what Flux's may.
func TestAlertDefinition(t *testing.T) {
	flux := fluxKinds(t)
	for name, want := range map[string][]string{
		"alerts.notification.toolkit.fluxcd.io":    append(flux[:len(flux):len(flux)], "Layer", "Child", "Rollout", "Credential", "StateBackup"),
		"receivers.notification.toolkit.fluxcd.io": flux,
	} {
		if diff := cmp.Diff(want, kindsOf(t, name)); diff != "" {
			t.Errorf("kinds of %s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPodMonitor: what the agent tells is about the namespace that it says, also where the
// Prometheus Operator gives each target a label of that name.
func TestPodMonitor(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("monitoring", "podmonitor.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var monitor struct {
		Spec struct {
			PodMetricsEndpoints []struct {
				MetricRelabelings []struct {
					SourceLabels       []string
					Regex, TargetLabel string
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &monitor); err != nil || len(monitor.Spec.PodMetricsEndpoints) != 1 {
		t.Fatalf("it has %d endpoints: %v", len(monitor.Spec.PodMetricsEndpoints), err)
	}
	for name, tc := range map[string]struct {
		reason string
		series map[string]string
		want   string
	}{
		"Own":      {"alerts and dashboards name the object", map[string]string{"__name__": "cascade_children", "namespace": "cascade-system", "exported_namespace": "fleet"}, "fleet"},
		"OfTier":   {"it is about no namespace", map[string]string{"__name__": "cascade_build_info", "namespace": "cascade-system"}, "cascade-system"},
		"OfFlux":   {"published dashboards read exported_namespace", map[string]string{"__name__": "gotk_resource_info", "namespace": "cascade-system", "exported_namespace": "team"}, "cascade-system"},
		"OfOthers": {"the name only ends so", map[string]string{"__name__": "x_cascade_y", "namespace": "cascade-system", "exported_namespace": "team"}, "cascade-system"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range monitor.Spec.PodMetricsEndpoints[0].MetricRelabelings {
				// As Prometheus does it: the values are joined, the expression is anchored, and
				// what it captured replaces the label.
				var values []string
				for _, label := range r.SourceLabels {
					values = append(values, tc.series[label])
				}
				if m := regexp.MustCompile("^(?s:" + r.Regex + ")$").FindStringSubmatch(strings.Join(values, ";")); m != nil {
					tc.series[r.TargetLabel] = m[1]
				}
			}
			if got := tc.series["namespace"]; got != tc.want {
				t.Errorf("%s: it is of namespace %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// fluxKinds are the kinds in the marker of Flux's type, in its order.
func fluxKinds(t *testing.T) []string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/fluxcd/notification-controller/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "v1", "reference_types.go"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`\+kubebuilder:validation:Enum=(\S+)\n.*\n\tKind string`).FindStringSubmatch(string(text))
	if m == nil {
		t.Fatal("Flux's type has no enumeration of kinds")
	}
	return strings.Split(m[1], ";")
}

// kindsOf are those that a definition lets references name, the same in all versions.
func kindsOf(t *testing.T, name string) []string {
	t.Helper()
	objects, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		if u.GetName() != name {
			continue
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, crd, true); err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for _, v := range crd.Spec.Versions {
			if !v.Storage {
				continue
			}
			spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
			field := spec.Properties["eventSources"]
			if field.Items == nil {
				field = spec.Properties["resources"]
			}
			for _, value := range field.Items.Schema.Properties["kind"].Enum {
				kinds = append(kinds, strings.Trim(string(value.Raw), `"`))
			}
		}
		return kinds
	}
	t.Fatalf("there is no definition %s", name)
	return nil
}
