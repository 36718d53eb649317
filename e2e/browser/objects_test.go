package browser

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestObjects: the page of objects in a real browser, with kinds that are read by their own
// controllers and say so, and with text of others in each of them.
func TestObjects(t *testing.T) {
	scenario.Alongside(t)
	p := start(t)
	b, root := startBrowser(t), p.web(t)
	credential := &v1alpha1.Credential{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "git-auth"}}
	credential.Spec.ServiceAccountToken = &v1alpha1.ServiceAccountTokenSource{ServiceAccountName: "git", Audiences: []string{"git"}, Lifetime: metav1.Duration{Duration: time.Hour}}
	credential.Spec.Interval, credential.Spec.Grace = metav1.Duration{Duration: 10 * time.Minute}, metav1.Duration{Duration: 2 * time.Minute}
	backup := &v1alpha1.StateBackup{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "tier"}}
	backup.Spec.Interval = &metav1.Duration{Duration: 15 * time.Minute}
	backup.Spec.Destination.URL, backup.Spec.Encryption.Recipients = "s3://state/mom", []string{"age192trcm4y0u7ednvzpkqeu9huz7d6f4fpt068teg39mydxu8eq35sh0xahu"}
	lapsed, saved := ago(25*time.Minute), ago(4*time.Hour)
	err := errors.Join(
		p.write(t.Context(), credential, func() {
			credential.Status.IssuedAt, credential.Status.ExpiresAt = &saved, &lapsed
			credential.Status.Conditions = condition(metav1.ConditionFalse, v1alpha1.ReasonCredentialLapsed, evil)[1:]
		}),
		p.write(t.Context(), backup, func() {
			backup.Status.LastVersion, backup.Status.LastSuccess = "3-17", &saved
			backup.Status.Conditions = condition(metav1.ConditionFalse, v1alpha1.ReasonBackupStale, evil)[1:]
		}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, path, says string }{
		{"objects", "objects", "fleet/git-auth"},
		{"objects-kind", "objects?kind=StateBackup", "version 3-17"},
		{"why-credential", "why?object=Credential%2Ffleet%2Fgit-auth", "CredentialLapsed"},
	} {
		t.Run(c.name, func(t *testing.T) { b.check(t, root, c.name, c.path, c.says) })
	}
	answer, err := get(t.Context(), http.DefaultClient, root+"objects", "")
	if err != nil || answer.status != http.StatusOK || len(answer.body) > mostBytes || strings.Contains(answer.body, "s3://") {
		t.Errorf("%d, %d bytes, %v", answer.status, len(answer.body), err)
	}
}
