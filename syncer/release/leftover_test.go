package release

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/mask"
)

func TestDropped(t *testing.T) {
	at := func(namespace, kind string) inventory.Entry {
		return inventory.Entry{Namespace: namespace, Name: "web", Group: "apps", Kind: kind, Version: "v1"}
	}
	for name, tc := range map[string]struct {
		reason             string
		recorded, has, all []inventory.Entry
	}{
		"Same":        {"nothing was dropped", []inventory.Entry{at("shop", "Deployment")}, []inventory.Entry{at("shop", "Deployment")}, nil},
		"Dropped":     {"the release has it no more", []inventory.Entry{at("shop", "Deployment")}, nil, []inventory.Entry{at("shop", "Deployment")}},
		"Moved":       {"it is in another namespace now", []inventory.Entry{at("shop", "Deployment")}, []inventory.Entry{at("cart", "Deployment")}, []inventory.Entry{at("shop", "Deployment")}},
		"OtherKind":   {"a name is not enough", []inventory.Entry{at("shop", "Deployment")}, []inventory.Entry{at("", "StatefulSet")}, []inventory.Entry{at("shop", "Deployment")}},
		"UnknownNow":  {"discovery failed: nobody knows the namespace, and the object is declared", []inventory.Entry{at("shop", "Deployment")}, []inventory.Entry{at("", "Deployment")}, nil},
		"UnknownThen": {"discovery had failed when it was recorded", []inventory.Entry{at("", "Deployment")}, []inventory.Entry{at("shop", "Deployment")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.all, dropped(tc.recorded, tc.has)); diff != "" && len(tc.all)+len(dropped(tc.recorded, tc.has)) > 0 {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestUndeleted(t *testing.T) {
	settings := inventory.Entry{Namespace: "shop", Name: "settings", Kind: "ConfigMap", Version: "v1"}
	definition := inventory.Entry{Name: "carts.shop.io", Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Version: "v1"}
	if diff := cmp.Diff([]inventory.Entry{settings}, undeleted([]inventory.Entry{definition, settings})); diff != "" {
		t.Errorf("undeleted(): -want, +got:\n%s", diff)
	}
}

// TestDefinitionsOnRecord: a release that leaves the definitions of its chart to others does not answer for them.
func TestDefinitionsOnRecord(t *testing.T) {
	config := named("ConfigMap", "settings")
	definition := inventory.Entry{Name: "widgets.shop.io", Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Version: "v1"}
	file := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: widgets.shop.io}\n"
	rel := &helmrelease.Release{Name: "web", Namespace: "apps", Version: 1, Manifest: manifestOf(config),
		Chart: &chart.Chart{Metadata: &chart.Metadata{Name: "web"}, Files: []*common.File{{Name: "crds/widgets.yaml", Data: []byte(file)}}}}
	both, alone := []inventory.Entry{config, definition}, []inventory.Entry{config}
	skips := v2.HelmReleaseSpec{Install: &v2.Install{CRDs: v2.Skip}, Upgrade: &v2.Upgrade{CRDs: v2.Skip}}
	for name, tc := range map[string]struct {
		reason   string
		action   Action
		spec     v2.HelmReleaseSpec
		recorded []inventory.Entry
		want     []inventory.Entry
	}{
		"Install":         {"it applied them", Install, v2.HelmReleaseSpec{}, nil, both},
		"InstallSkipped":  {"another release has them", Install, skips, nil, alone},
		"Upgrade":         {"only the installation left them out", Upgrade, v2.HelmReleaseSpec{Install: skips.Install}, nil, both},
		"UpgradeSkipped":  {"another release has them", Upgrade, skips, alone, alone},
		"Had":             {"the installation applied them", Upgrade, v2.HelmReleaseSpec{Upgrade: skips.Upgrade}, both, both},
		"RollbackSkipped": {"it goes back to what had none", Rollback, skips, alone, alone},
		"Rollback":        {"it goes back to what had them", Rollback, v2.HelmReleaseSpec{}, alone, both},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Spec, obj.Status.Inventory = tc.spec, refsOf(tc.recorded)
			if _, err := m.newRun(obj, wanted).recordContents(tc.action, rel, newVerdicts(), false); err != nil {
				t.Fatal(err)
			}
			if got := entriesOf(obj.Status.Inventory); !inventory.Equal(got, tc.want) {
				t.Errorf("%s: on record are %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

// TestSubchartDefinitions: Helm stores no subcharts. Definitions that came with one are no leftovers of an earlier
// revision, and nobody who confirms the end of a release loses all objects of their kinds.
func TestSubchartDefinitions(t *testing.T) {
	definition := inventory.Entry{Name: "widgets.shop.io", Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Version: "v1"}
	file := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: widgets.shop.io}\n"
	obj, m := inSync(t)
	made := *m.stored[0]
	made.Chart = &chart.Chart{Metadata: &chart.Metadata{Name: "web", Version: "1.0.0"}}
	made.Chart.AddDependency(&chart.Chart{Metadata: &chart.Metadata{Name: "crds"}, Files: []*common.File{{Name: "crds/widgets.yaml", Data: []byte(file)}}})
	if _, err := m.newRun(obj, wanted).recordContents(Install, &made, newVerdicts(), false); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(&made)
	if err != nil {
		t.Fatal(err)
	}
	stored := &helmrelease.Release{}
	if err := json.Unmarshal(text, stored); err != nil {
		t.Fatal(err)
	}
	m.stored[0], m.writes = stored, m.writes+1
	obj.Status.History[0] = snapshotOf(stored, "", v2.ReleaseActionInstall)
	m.live["widgets.shop.io"] = owned(nil)
	out, err := m.newRun(obj, wanted).reconcile(t.Context())
	if on := entriesOf(obj.Status.Inventory); err != nil || out != (Outcome{}) || !slices.Equal(on, []inventory.Entry{definition}) {
		t.Errorf("reconcile() = %+v, %v, and on record are %v; want it to be done, with the definition on record", out, err, on)
	}
	obj.Annotations = map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed}
	if out, err := m.newRun(obj, wanted).uninstall(t.Context()); err != nil || out != (Outcome{}) || len(m.deleted) > 0 {
		t.Errorf("uninstall() = %+v, %v, and deleted %v; want the definition to stay", out, err, m.deleted)
	}
}

func TestLogsTellNoValues(t *testing.T) {
	hide := func(text string) string { return strings.ReplaceAll(text, "hunter2", "*****") }
	l := newLogs(logr.Discard(), time.Now, hide)
	l.add(`error: hook failed: unknown flag "hunter2"`)
	if told := l.after("Helm install failed"); strings.Contains(told, "hunter2") || !strings.Contains(told, "unknown flag") {
		t.Errorf("an event ends with %q", told)
	}
	cause := errors.New("invalid value: hunter2")
	n := &run{req: Request{Redact: hide}}
	if err := n.redacted(cause); strings.Contains(err.Error(), "hunter2") || !errors.Is(err, cause) {
		t.Errorf("redacted() = %v, want the same error without the secret", err)
	}
	if err := n.redacted(nil); err != nil {
		t.Errorf("redacted(nil) = %v", err)
	}
}

// TestOldValuesAreNotTold: Helm acts on a revision that was made with values of before. Those
// that the HelmRelease does not show may be of a Secret that has changed since, or is gone.
func TestOldValuesAreNotTold(t *testing.T) {
	old := map[string]any{"db": map[string]any{"password": "hunter22", "pin": 12345678.0, "host": "database"}, "mode": "public", "a": "b", "name": "frontend", "hook": "migration", "namespace": "shopping"}
	for name, tc := range map[string]struct {
		reason string
		action Action
		act    func(*v2.HelmRelease, *fakeWorld) (*run, error)
	}{
		"Deleted": {"the HelmRelease is deleted", Uninstall, func(obj *v2.HelmRelease, m *fakeWorld) (*run, error) {
			n := m.newRun(obj, Desired{})
			_, err := n.remove(t.Context())
			return n, err
		}},
		"Moved": {"it points elsewhere, and has a new Secret", Uninstall, func(obj *v2.HelmRelease, m *fakeWorld) (*run, error) {
			obj.Spec.ReleaseName = "other"
			n := m.newRun(obj, wanted)
			n.req.Redact = mask.Texts([]string{"new-password"})
			_, err := n.reconcile(t.Context())
			return n, err
		}},
		"RolledBack": {"an upgrade with a new Secret failed", Rollback, func(obj *v2.HelmRelease, m *fakeWorld) (*run, error) {
			strategy := v2.RollbackRemediationStrategy
			obj.Spec.Upgrade = &v2.Upgrade{Remediation: &v2.UpgradeRemediation{Retries: 1, Strategy: &strategy}}
			m.fails[Upgrade] = errors.New("it is never ready")
			n := m.newRun(obj, wanted)
			_, err := n.reconcile(t.Context())
			return n, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Spec.Values = &apiextensionsv1.JSON{Raw: []byte(`{"mode": "public"}`)}
			m.stored[0].Config = old
			m.stored[0].Manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: frontend, namespace: shopping, annotations: {helm.sh/resource-policy: keep}}\n"
			m.stored[0].Hooks = []*helmrelease.Hook{{Name: "h", Manifest: "apiVersion: v1\nkind: Secret\nmetadata: {name: migration}\n"}}
			obj.Status.History[0] = snapshotOf(m.stored[0], "", v2.ReleaseActionInstall)
			m.fails[tc.action] = errors.New(`configmaps "frontend" in the namespace "shopping", or secrets "migration", is invalid: {"PW": "hunter22", "PIN": "1.2345678e+07", "NO": "12345678", "HOST": "database", "MODE": "public"}`)
			n, err := tc.act(obj, m)
			told := fmt.Sprint(err, obj.Status.Conditions)
			for recorder := n.Events.(*record.FakeRecorder); len(recorder.Events) > 0; {
				told += <-recorder.Events
			}
			if strings.Contains(told, "hunter22") || strings.Contains(told, "2345678") || !strings.Contains(told, `"MODE": "public"`) {
				t.Errorf("%s: it says %s", tc.reason, told)
			}
			if strings.Contains(told, "database") || !strings.Contains(told, `configmaps "frontend" in the namespace "shopping", or secrets "migration"`) {
				t.Errorf("%s: it does not tell the names of the objects, or more: %s", tc.reason, told)
			}
		})
	}
}

// TestManyOldValues: tenants choose how many values there are.
func TestManyOldValues(t *testing.T) {
	many := func(of string) map[string]any {
		values := map[string]any{}
		for i := range 100_000 {
			values[fmt.Sprint(i)] = fmt.Sprintf("%s%06d", of, i)
		}
		return values
	}
	raw, err := json.Marshal(many("n"))
	if err != nil {
		t.Fatal(err)
	}
	obj := &v2.HelmRelease{Spec: v2.HelmReleaseSpec{Values: &apiextensionsv1.JSON{Raw: raw}}}
	start := time.Now()
	if got := secretsOf(&helmrelease.Release{Config: many("o")}, obj); len(got) != 100_000 {
		t.Errorf("%d values are secret, want all", len(got))
	}
	// Each held against each other one is many minutes. A second is usual, and ten on a busy machine.
	if took := time.Since(start); took > 2*time.Minute {
		t.Errorf("it took %s", took)
	}
}

func TestSessionsOfRenewedConnectionsGo(t *testing.T) {
	var s sessions
	now := time.Unix(0, 0)
	use := func() {
		t.Helper()
		if _, err := s.of(&apply.Cluster{Config: &rest.Config{Host: "https://127.0.0.1:1"}}, now); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		use()
	}
	now = now.Add(sessionHolds + time.Second)
	use()
	if len(s.open) != 1 {
		t.Errorf("%d sessions are kept, want the one that is in use", len(s.open))
	}
}
