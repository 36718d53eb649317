package apply

import (
	"github.com/Masterminds/semver/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/syncer/observed"
)

// outdates reports whether a definition in the cluster is of a later release of Flux than
// the declared one. Who applies an older one over it takes fields from objects that are there.
func outdates(live *observed.Object, declared *unstructured.Unstructured) bool {
	if live == nil || live.FluxRelease == "" || declared.GetKind() != "CustomResourceDefinition" {
		return false
	}
	return Later(live.FluxRelease, observed.FluxRelease(declared.GetLabels()))
}

// Later reports whether a release of Flux is later than another one. Nothing is known of
// what is no version.
func Later(release, than string) bool {
	a, err := semver.NewVersion(release)
	if err != nil {
		return false
	}
	b, err := semver.NewVersion(than)
	return err == nil && a.GreaterThan(b)
}
