package image

import (
	"reflect"
	"testing"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
)

// TestEveryFieldIsFollowed: a field that came with a new version of Flux and that nobody reads would be ignored.
func TestEveryFieldIsFollowed(t *testing.T) {
	for kind, followed := range map[reflect.Type][]string{
		reflect.TypeFor[imagev1.ImageRepositorySpec](): {
			"Image", "Interval", "Timeout", "SecretRef", "ProxySecretRef", "ServiceAccountName", "CertSecretRef", "Suspend", "AccessFrom", "ExclusionList", "Provider", "Insecure",
		},
		reflect.TypeFor[imagev1.ImagePolicySpec]():   {"ImageRepositoryRef", "Policy", "FilterTags", "DigestReflectionPolicy", "Interval", "Suspend"},
		reflect.TypeFor[imagev1.ImagePolicyChoice](): {"SemVer", "Alphabetical", "Numerical"},
		reflect.TypeFor[imagev1.TagFilter]():         {"Pattern", "Extract"},
		reflect.TypeFor[autov1.ImageUpdateAutomationSpec](): {
			"SourceRef", "GitSpec", "Interval", "PolicySelector", "Update", "Suspend",
		},
		reflect.TypeFor[autov1.GitSpec]():         {"Checkout", "Commit", "Push"},
		reflect.TypeFor[autov1.GitCheckoutSpec](): {"Reference"},
		reflect.TypeFor[autov1.CommitSpec]():      {"Author", "SigningKey", "MessageTemplate", "MessageTemplateValues"},
		reflect.TypeFor[autov1.SigningKey]():      {"SecretRef", "Type"},
		reflect.TypeFor[autov1.PushSpec]():        {"Branch", "Refspec", "Options"},
		reflect.TypeFor[autov1.UpdateStrategy]():  {"Strategy", "Path"},
	} {
		known := map[string]bool{}
		for _, name := range followed {
			known[name] = true
		}
		for i := range kind.NumField() {
			if name := kind.Field(i).Name; !known[name] {
				t.Errorf("%s of Flux's %s is not followed", name, kind.Name())
			}
		}
	}
}
