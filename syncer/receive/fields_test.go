package receive

import (
	"reflect"
	"slices"
	"testing"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
)

// TestEveryFieldIsFollowed: a field that came with a new version of Flux and that nobody reads
// would be ignored.
func TestEveryFieldIsFollowed(t *testing.T) {
	for kind, followed := range map[reflect.Type][]string{
		reflect.TypeFor[notificationv1.ReceiverSpec]():                  {"Type", "Interval", "Events", "Resources", "ResourceFilter", "SecretRef", "OIDCProviders", "Suspend"},
		reflect.TypeFor[notificationv1.ReceiverResource]():              {"CrossNamespaceObjectReference", "Filter"},
		reflect.TypeFor[notificationv1.CrossNamespaceObjectReference](): {"APIVersion", "Kind", "Name", "Namespace", "MatchLabels"},
		reflect.TypeFor[notificationv1.OIDCProvider]():                  {"IssuerURL", "Audience", "Variables", "Validations"},
		reflect.TypeFor[notificationv1.OIDCVariable]():                  {"Name", "Expression"},
		reflect.TypeFor[notificationv1.OIDCValidation]():                {"Expression", "Message"},
		reflect.TypeFor[notificationv1.ReceiverStatus]():                {"ReconcileRequestStatus", "Conditions", "WebhookPath", "ObservedGeneration"},
	} {
		for i := range kind.NumField() {
			if name := kind.Field(i).Name; !slices.Contains(followed, name) {
				t.Errorf("%s of Flux's %s is not followed", name, kind.Name())
			}
		}
	}
}
