package report

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func credentialNamed(name string, conditions ...metav1.Condition) v1alpha1.Credential {
	o := v1alpha1.Credential{}
	o.Namespace, o.Name, o.Status.Conditions = "capa-system", name, conditions
	return o
}

func backupNamed(name string, conditions ...metav1.Condition) v1alpha1.StateBackup {
	o := v1alpha1.StateBackup{}
	o.Namespace, o.Name, o.Status.Conditions = "cascade-system", name, conditions
	return o
}

func not(reason string) metav1.Condition {
	return metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: "m"}
}

// TestFaults: what is wrong with credentials and backups is counted and named, and the tier
// is as ready as it is.
func TestFaults(t *testing.T) {
	yes := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Succeeded"}
	failing := metav1.Condition{Type: "SourceFailing", Status: metav1.ConditionTrue, Reason: "VaultUnreachable", Message: "m"}
	off, offLapsed, offBackup := credentialNamed("off", not("CredentialLapsing")), credentialNamed("off", not("CredentialLapsed")), backupNamed("off", not("BackupStale"))
	off.Spec.Suspend, offLapsed.Spec.Suspend, offBackup.Spec.Suspend = true, true, true
	going := credentialNamed("going", not("RevocationPending"))
	going.DeletionTimestamp = &start
	for name, tc := range map[string]struct {
		why     string
		facts   Facts
		faults  *v1alpha1.ReportFaults
		failing []v1alpha1.Failure
	}{
		"None": {"what is well adds nothing", Facts{Credentials: []v1alpha1.Credential{credentialNamed("a", yes)}, Backups: []v1alpha1.StateBackup{backupNamed("a", yes)}}, nil, nil},
		"New":  {"what was not looked at yet is not wrong", Facts{Credentials: []v1alpha1.Credential{credentialNamed("a"), credentialNamed("b", not("Progressing"))}, Backups: []v1alpha1.StateBackup{backupNamed("a")}}, nil, nil},
		"Failing": {"it is valid, and its source does not answer", Facts{Credentials: []v1alpha1.Credential{credentialNamed("a", yes, failing)}},
			&v1alpha1.ReportFaults{CredentialsFailing: 1}, []v1alpha1.Failure{{Name: "Credential/capa-system/a", Reason: "VaultUnreachable", Message: "m"}}},
		"Lapsing": {"one that is about to lapse is counted once", Facts{Credentials: []v1alpha1.Credential{credentialNamed("a", not("CredentialLapsing"), failing)}},
			&v1alpha1.ReportFaults{CredentialsFailing: 1}, []v1alpha1.Failure{{Name: "Credential/capa-system/a", Reason: "CredentialLapsing", Message: "m"}}},
		"Lapsed": {"what lapsed is another thing", Facts{Credentials: []v1alpha1.Credential{credentialNamed("a", not("CredentialLapsed"), failing)}},
			&v1alpha1.ReportFaults{CredentialsLapsed: 1}, []v1alpha1.Failure{{Name: "Credential/capa-system/a", Reason: "CredentialLapsed", Message: "m"}}},
		"Suspended": {"a person wants it not to be renewed, and what reads it fails all the same when it lapsed",
			Facts{Credentials: []v1alpha1.Credential{off, offLapsed}, Backups: []v1alpha1.StateBackup{offBackup}},
			&v1alpha1.ReportFaults{CredentialsLapsed: 1}, []v1alpha1.Failure{{Name: "Credential/capa-system/off", Reason: "CredentialLapsed", Message: "m"}}},
		"Going": {"one that is being deleted is no fault", Facts{Credentials: []v1alpha1.Credential{going}}, nil, nil},
		"Backups": {"one failed once, one is too old", Facts{Backups: []v1alpha1.StateBackup{backupNamed("a", not("DestinationFailed")), backupNamed("b", not("BackupStale"))}},
			&v1alpha1.ReportFaults{BackupsFailing: 1, BackupsStale: 1}, []v1alpha1.Failure{
				{Name: "StateBackup/cascade-system/a", Reason: "DestinationFailed", Message: "m"}, {Name: "StateBackup/cascade-system/b", Reason: "BackupStale", Message: "m"}}},
	} {
		t.Run(name, func(t *testing.T) {
			want := &v1alpha1.Report{Ready: true, Reason: "Succeeded", Since: start, Brought: &v1alpha1.ReportBrought{Complete: true}, Faults: tc.faults, Failing: tc.failing}
			if diff := cmp.Diff(want, Compute(tc.facts, nil, start)); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.why, diff)
			}
		})
	}
}

// TestFaultsLeaveRoom: many credentials that lapsed are counted, and what does not let the
// tier be ready is named beside some of them.
func TestFaultsLeaveRoom(t *testing.T) {
	f := Facts{}
	for i := range 500 {
		f.Credentials = append(f.Credentials, credentialNamed(fmt.Sprint("c", i), not("CredentialLapsed")))
		f.Kustomizations = append(f.Kustomizations, kustomization(fmt.Sprint("k", i), 0, ready(metav1.ConditionFalse, "BuildFailed", "m")))
	}
	r := Compute(f, nil, start)
	wellFormed(t, "many faults", r)
	if r.Faults.CredentialsLapsed != 500 || len(r.Failing) != maxFailing || r.Failing[maxFaultsNamed-1].Reason != "CredentialLapsed" || r.Failing[maxFaultsNamed].Reason != "BuildFailed" {
		t.Errorf("%+v, %+v", r.Faults, r.Failing)
	}
	if r.Ready || r.Reason != "KustomizationFailing" || r.Message != "Kustomization/cascade-system/k0: BuildFailed: m" {
		t.Errorf("the tier says %s: %s", r.Reason, r.Message)
	}
}

// TestFaultsGoUp: those of each cluster are in its row, those of all are added up, however
// many tiers are between, and a cluster with some has a row before those without.
func TestFaultsGoUp(t *testing.T) {
	var tenants []v1alpha1.Child
	for i := range 150 {
		c := childNamed(fmt.Sprintf("tenant-%03d", i), ready(metav1.ConditionTrue, "Succeeded", ""))
		c.Status.Report = &v1alpha1.Report{Ready: true, Reason: "Succeeded", Since: start}
		if i >= 147 {
			c.Status.Report.Faults = &v1alpha1.ReportFaults{CredentialsLapsed: 2, BackupsStale: 1}
		}
		tenants = append(tenants, c)
	}
	below := belowOf(tenants...)
	master := Compute(Facts{Below: below, Backups: []v1alpha1.StateBackup{backupNamed("a", not("BackupStale"))}}, nil, start)
	if diff := cmp.Diff(&v1alpha1.ReportFaults{CredentialsLapsed: 6, BackupsStale: 3}, master.Children.Faults); diff != "" {
		t.Errorf("of all tenants: -want, +got:\n%s", diff)
	}
	rows := 0
	for _, row := range master.Tiers {
		if row.Faults != nil {
			rows++
		}
	}
	if rows != 3 {
		t.Errorf("%d rows with faults, want 3: rows are %v", rows, master.Tiers)
	}
	c := childNamed("master", ready(metav1.ConditionTrue, "Succeeded", ""))
	c.Status.Report = master
	top := Compute(Facts{Below: belowOf(c)}, nil, start)
	if diff := cmp.Diff(&v1alpha1.ReportFaults{CredentialsLapsed: 6, BackupsStale: 4}, top.Children.Faults); diff != "" {
		t.Errorf("of all below: -want, +got:\n%s", diff)
	}
	if len(top.Tiers) != maxTierRows || top.Tiers[0].Path != "fleet/master" || top.Tiers[0].Faults.BackupsStale != 1 {
		t.Errorf("the first of %d rows is %+v", len(top.Tiers), top.Tiers[0])
	}
	for i := range tenants {
		c := tenants[i].DeepCopy()
		c.ResourceVersion, c.Status.Report.Faults = "2", nil
		below.Put(c)
	}
	if now := below.Counts(); now.Faults != nil {
		t.Errorf("all is well again, and %+v are counted", now.Faults)
	}
}

// TestFaultsAreNotFirst: however many clusters have faults, those that are not ready have rows.
func TestFaultsAreNotFirst(t *testing.T) {
	master := childNamed("a", ready(metav1.ConditionTrue, "Succeeded", ""))
	master.Status.Report = &v1alpha1.Report{Ready: true, Reason: "Succeeded", Since: start}
	for i := range 100 {
		row := v1alpha1.TierRow{Path: fmt.Sprintf("t/n%02d", i), Ready: true, Reason: "Succeeded", Since: start, Faults: &v1alpha1.ReportFaults{CredentialsFailing: 1}}
		if i >= 90 {
			row.Ready, row.Reason, row.Faults = false, "BuildFailed", nil
		}
		master.Status.Report.Tiers = append(master.Status.Report.Tiers, row)
	}
	children := []v1alpha1.Child{master}
	for i := range 95 {
		c := childNamed(fmt.Sprintf("b%02d", i), ready(metav1.ConditionTrue, "Succeeded", ""))
		c.Status.Report = &v1alpha1.Report{Ready: true, Reason: "Succeeded", Since: start, Faults: &v1alpha1.ReportFaults{CredentialsFailing: 1}}
		children = append(children, c)
	}
	r := Compute(Facts{Below: belowOf(children...)}, nil, start)
	failed, faulty := 0, 0
	for _, row := range r.Tiers {
		switch {
		case !row.Ready:
			failed++
		case row.Faults != nil:
			faulty++
		}
	}
	if failed != 10 || faulty != 90 || r.Tiers[0].Ready {
		t.Errorf("%d rows are not ready, %d have faults, the first is %+v; want 10, 90 and one that is not ready", failed, faulty, r.Tiers[0])
	}
}

// TestFaultsOfOthers: counts of another trust domain are such as can be, and neither an older
// agent nor an older parent is at a loss.
func TestFaultsOfOthers(t *testing.T) {
	hostile := &v1alpha1.ReportFaults{CredentialsFailing: math.MaxInt32, CredentialsLapsed: -5, BackupsStale: math.MinInt32}
	var children []v1alpha1.Child
	for i := range 3000 {
		c := childNamed(fmt.Sprint("child-", i), ready(metav1.ConditionTrue, "Succeeded", ""))
		c.Status.Report = &v1alpha1.Report{Ready: true, Reason: "Succeeded", Since: start, Faults: hostile, Children: &v1alpha1.ReportCounts{Total: 5, Faults: hostile},
			Tiers: []v1alpha1.TierRow{{Path: "a/b", Ready: true, Reason: "Succeeded", Since: start, Faults: hostile}}}
		children = append(children, c)
	}
	r := Compute(Facts{Below: belowOf(children...)}, nil, start)
	wellFormed(t, "hostile faults", r)
	want := &v1alpha1.ReportFaults{CredentialsFailing: maxFaults}
	if diff := cmp.Diff(want, r.Children.Faults); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	for _, row := range r.Tiers {
		if diff := cmp.Diff(want, row.Faults); diff != "" {
			t.Fatalf("row %s: -want, +got:\n%s", row.Path, diff)
		}
	}
	text, err := encode(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again); diff != "" {
		t.Errorf("what was written and what is read: -want, +got:\n%s", diff)
	}
	old, err := Parse(`{"ready":true,"reason":"Succeeded","since":"2026-09-01T12:00:00Z","objects":1,"children":{"total":10,"ready":8}}`)
	if err != nil || old.Faults != nil || old.Children.Faults != nil {
		t.Errorf("an older agent counts %+v, %v", old, err)
	}
	var older struct {
		Ready    bool
		Children struct{ Total int32 }
		Tiers    []struct{ Path string }
	}
	if err := json.Unmarshal([]byte(text), &older); err != nil || !older.Ready || older.Children.Total != 18000 || len(older.Tiers) != maxTierRows {
		t.Errorf("an older parent reads %+v, %v", older, err)
	}
}

// TestFaultsCost: a tier without any writes what it wrote before there were faults.
func TestFaultsCost(t *testing.T) {
	var children []v1alpha1.Child
	for i := range 100 {
		c := childNamed(fmt.Sprint("child-", i), ready(metav1.ConditionTrue, "Succeeded", ""))
		c.Status.Report = &v1alpha1.Report{Ready: true, Reason: "Succeeded", Since: start, Children: &v1alpha1.ReportCounts{Total: 5, Ready: 5}}
		children = append(children, c)
	}
	yes := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue}
	text, err := encode(Compute(Facts{
		Below: belowOf(children...), Credentials: []v1alpha1.Credential{credentialNamed("a", yes)}, Backups: []v1alpha1.StateBackup{backupNamed("b", yes)},
		Kustomizations: []kustomizev1.Kustomization{kustomization("k", 1, []metav1.Condition{yes})},
	}, nil, later(time.Minute)))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "faults") || strings.Contains(text, "failing") {
		t.Errorf("nothing is wrong, and it says %.300s", text)
	}
}
