package report

import (
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Kinds whose faults are counted.
const credentialKind, backupKind = "Credential", "StateBackup"

// foldFaults counts the Credentials and StateBackups that are not as they should be, and
// names some. The tier is as ready as it is without them: what runs with a credential fails
// by itself when that lapsed.
func foldFaults(r *v1alpha1.Report, f *Facts) {
	all := &v1alpha1.ReportFaults{}
	for i := range f.Credentials {
		o := &f.Credentials[i]
		if !o.DeletionTimestamp.IsZero() {
			continue
		}
		switch c := faultOf(o.Status.Conditions); {
		case c == nil:
		case c.Reason == v1alpha1.ReasonCredentialLapsed:
			all.CredentialsLapsed++
			nameFault(r, credentialKind, o, c)
		case !o.Spec.Suspend:
			all.CredentialsFailing++
			nameFault(r, credentialKind, o, c)
		}
	}
	for i := range f.Backups {
		o := &f.Backups[i]
		if o.Spec.Suspend || !o.DeletionTimestamp.IsZero() {
			continue
		}
		switch c := faultOf(o.Status.Conditions); {
		case c == nil:
		case c.Reason == v1alpha1.ReasonBackupStale:
			all.BackupsStale++
			nameFault(r, backupKind, o, c)
		default:
			all.BackupsFailing++
			nameFault(r, backupKind, o, c)
		}
	}
	r.Faults = confineFaults(all)
}

// faultOf is the condition that says what is wrong; nil if none does. What nobody looked at
// yet, or is just being made, is not wrong.
func faultOf(conditions []metav1.Condition) *metav1.Condition {
	if c := meta.FindStatusCondition(conditions, fluxmeta.ReadyCondition); c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonProgressing {
		return c
	}
	if c := meta.FindStatusCondition(conditions, v1alpha1.SourceFailingCondition); c != nil && c.Status == metav1.ConditionTrue && c.Reason != v1alpha1.ReasonProgressing {
		return c
	}
	return nil
}

func nameFault(r *v1alpha1.Report, kind string, o client.Object, c *metav1.Condition) {
	if len(r.Failing) == maxFaultsNamed {
		return
	}
	failure := v1alpha1.Failure{Name: kind + "/" + o.GetNamespace() + "/" + o.GetName(), Reason: c.Reason, Message: c.Message}
	confineFailure(&failure)
	r.Failing = append(r.Failing, failure)
}

// faults are counts that are added up, and taken back.
type faults struct{ failing, lapsed, backups, stale int64 }

// add counts some, or takes them back if sign is negative.
func (s *faults) add(f *v1alpha1.ReportFaults, sign int64) {
	if f == nil {
		return
	}
	s.failing += sign * int64(f.CredentialsFailing)
	s.lapsed += sign * int64(f.CredentialsLapsed)
	s.backups += sign * int64(f.BackupsFailing)
	s.stale += sign * int64(f.BackupsStale)
}

// told are the sums as a report has them; nil if there is nothing to count.
func (s *faults) told() *v1alpha1.ReportFaults {
	bound := func(n int64) int32 { return int32(min(n, maxFaults)) }
	return confineFaults(&v1alpha1.ReportFaults{
		CredentialsFailing: bound(s.failing), CredentialsLapsed: bound(s.lapsed), BackupsFailing: bound(s.backups), BackupsStale: bound(s.stale),
	})
}

// confineFaults are counts such as can be; nil if there is nothing to count.
func confineFaults(f *v1alpha1.ReportFaults) *v1alpha1.ReportFaults {
	if f == nil {
		return nil
	}
	c := *f
	for _, n := range []*int32{&c.CredentialsFailing, &c.CredentialsLapsed, &c.BackupsFailing, &c.BackupsStale} {
		*n = min(max(0, *n), maxFaults)
	}
	if c == (v1alpha1.ReportFaults{}) {
		return nil
	}
	return &c
}
