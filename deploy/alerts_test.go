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
