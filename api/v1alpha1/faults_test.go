package v1alpha1

import "testing"

func TestFaults(t *testing.T) {
	for name, tc := range map[string]struct {
		why          string
		faults       *ReportFaults
		reason, text string
	}{
		"None":  {"an agent that does not tell", nil, "", ""},
		"Zero":  {"nothing is nothing", &ReportFaults{}, "", ""},
		"One":   {"one is one", &ReportFaults{CredentialsFailing: 1}, ReasonCredentialsFailing, "1 credential cannot be renewed"},
		"Worst": {"what has lapsed comes first", &ReportFaults{CredentialsFailing: 2, CredentialsLapsed: 1, BackupsFailing: 1, BackupsStale: 3}, ReasonCredentialsLapsed, "1 credential has lapsed, 3 backups are too old, 2 credentials cannot be renewed, 1 backup failed"},
		"Stale": {"what cannot be undone comes before what may still be renewed", &ReportFaults{CredentialsFailing: 1, BackupsStale: 1}, ReasonBackupsStale, "1 backup is too old, 1 credential cannot be renewed"},
		"Saved": {"a backup that failed once", &ReportFaults{BackupsFailing: 1}, ReasonBackupsFailing, "1 backup failed"},
	} {
		t.Run(name, func(t *testing.T) {
			if reason, text := tc.faults.Reason(), tc.faults.String(); reason != tc.reason || text != tc.text {
				t.Errorf("%s\n%q, %q; want %q, %q", tc.why, reason, text, tc.reason, tc.text)
			}
		})
	}
}
