package kustomization

import (
	"reflect"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
)

// TestEveryFieldIsFollowed: a field that is not known here would be ignored,
// which may apply with more rights, or to another cluster.
func TestEveryFieldIsFollowed(t *testing.T) {
	supported := map[string]bool{
		"CommonMetadata": true, "DependsOn": true, "Interval": true, "RetryInterval": true, "Path": true, "PostBuild": true, "Prune": true, "DeletionPolicy": true,
		"NamePrefix": true, "NameSuffix": true, "Patches": true, "Images": true, "SourceRef": true, "Suspend": true, "TargetNamespace": true, "Timeout": true,
		"Force": true, "Wait": true, "Components": true, "IgnoreMissingComponents": true, "BuildMetadata": true,
		"KubeConfig": true, "ServiceAccountName": true, "Decryption": true, "HealthChecks": true, "HealthCheckExprs": true, "Ignore": true,
	}
	spec := reflect.TypeFor[kustomizev1.KustomizationSpec]()
	for i := range spec.NumField() {
		if name := spec.Field(i).Name; !supported[name] {
			t.Errorf("spec.%s of Flux's Kustomization is not followed", name)
		}
	}
}
