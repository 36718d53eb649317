package v1alpha1

import (
	"fmt"
	"strings"
)

// Reason of the worst of the faults; empty if there are none.
func (f *ReportFaults) Reason() string {
	switch {
	case f == nil:
		return ""
	case f.CredentialsLapsed > 0:
		return ReasonCredentialsLapsed
	case f.BackupsStale > 0:
		return ReasonBackupsStale
	case f.CredentialsFailing > 0:
		return ReasonCredentialsFailing
	case f.BackupsFailing > 0:
		return ReasonBackupsFailing
	}
	return ""
}

// String tells people of the faults, the worst first; it is empty if there are none.
func (f *ReportFaults) String() string {
	if f == nil {
		return ""
	}
	var said []string
	add := func(n int32, what, is, are string) {
		switch {
		case n == 1:
			said = append(said, fmt.Sprintf("1 %s %s", what, is))
		case n > 1:
			said = append(said, fmt.Sprintf("%d %ss %s", n, what, are))
		}
	}
	add(f.CredentialsLapsed, "credential", "has lapsed", "have lapsed")
	add(f.BackupsStale, "backup", "is too old", "are too old")
	add(f.CredentialsFailing, "credential", "cannot be renewed", "cannot be renewed")
	add(f.BackupsFailing, "backup", "failed", "failed")
	return strings.Join(said, ", ")
}

// String names the object and says why it is not ready, as Kind/namespace/name: Reason; it is
// empty if there is none.
func (c *TierCause) String() string {
	if c == nil {
		return ""
	}
	return c.Kind + "/" + c.Namespace + "/" + c.Name + ": " + c.Reason
}
