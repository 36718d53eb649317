package fetch

import (
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"reflect"
	"testing"
)

// TestEveryGitFieldIsFollowed: a field that came with a new version of Flux and
// that nobody reads would be ignored.
func TestEveryGitFieldIsFollowed(t *testing.T) {
	followed := map[string]bool{
		"URL": true, "SecretRef": true, "Interval": true, "Timeout": true, "Reference": true, "Ignore": true, "Suspend": true, "Provider": true,
		"ServiceAccountName": true, "Verification": true, "ProxySecretRef": true, "RecurseSubmodules": true, "Include": true, "SparseCheckout": true,
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[sourcev1.GitRepositorySpec](), reflect.TypeFor[sourcev1.GitRepositoryRef]()} {
		for i := range kind.NumField() {
			name := kind.Field(i).Name
			if kind == reflect.TypeFor[sourcev1.GitRepositoryRef]() {
				if !reflect.ValueOf(reference(&sourcev1.GitRepository{})).FieldByName(name).IsValid() {
					t.Errorf("spec.ref.%s of Flux's GitRepository is not followed", name)
				}
			} else if !followed[name] {
				t.Errorf("spec.%s of Flux's GitRepository is not followed", name)
			}
		}
	}
}
