package dispatch

import (
	"reflect"
	"slices"
	"testing"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
)

// TestEveryFieldIsFollowed: a field that came with a new version of Flux and that nobody reads
// would be ignored.
func TestEveryFieldIsFollowed(t *testing.T) {
	for kind, followed := range map[reflect.Type][]string{
		reflect.TypeFor[notificationv1beta3.AlertSpec](): {
			"ProviderRef", "EventSeverity", "EventSources", "InclusionList", "EventMetadata", "ExclusionList", "Summary", "Suspend",
		},
		reflect.TypeFor[notificationv1beta3.ProviderSpec](): {
			"Type", "Interval", "Channel", "Username", "Address", "Timeout", "Proxy", "ProxySecretRef", "SecretRef", "CertSecretRef", "Suspend",
			"ServiceAccountName", "CommitStatusExpr",
		},
	} {
		for i := range kind.NumField() {
			if name := kind.Field(i).Name; !slices.Contains(followed, name) {
				t.Errorf("%s of Flux's %s is not followed", name, kind.Name())
			}
		}
	}
}
