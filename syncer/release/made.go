package release

import (
	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/opencontainers/go-digest"
	"helm.sh/helm/v4/pkg/release/common"
)

// made is what a revision was rendered with besides its chart and its values, of
// which the history has records: digests, empty for what was not declared.
type made struct{ postRenderers, metadata string }

// unknownMade is no HelmRelease's: whatever is declared, it is something else.
var unknownMade = made{postRenderers: digest.FromString("").String(), metadata: digest.FromString("").String()}

// declaredMade is what the object declares now.
func declaredMade(obj *v2.HelmRelease) made {
	return made{postRenderers: postRenderersDigest(obj), metadata: commonMetadataDigest(obj)}
}

// recordedMade is what the revision was made with that is deployed. The status has
// no place for those before it.
func recordedMade(obj *v2.HelmRelease) made {
	return made{postRenderers: obj.Status.ObservedPostRenderersDigest, metadata: obj.Status.ObservedCommonMetadataDigest}
}

func (m made) record(obj *v2.HelmRelease) {
	obj.Status.ObservedPostRenderersDigest, obj.Status.ObservedCommonMetadataDigest = m.postRenderers, m.metadata
}

// deployedVersion is the newest revision of the history that was deployed, the one
// that the record is about; 0 if there is none.
func deployedVersion(obj *v2.HelmRelease) int {
	version := 0
	for _, s := range obj.Status.History {
		if status := common.Status(s.Status); s.Version > version && (status == common.StatusDeployed || status == common.StatusSuperseded) {
			version = s.Version
		}
	}
	return version
}

// releasedAsDeclared reports whether the status says that the release was made of
// this generation and that this went well. A record that differs then is not of
// another declaration: an engine that took no such digests, or took them in another
// way, wrote the status. A refusal marks a generation as observed as well, therefore
// the attempt counts, too.
func releasedAsDeclared(obj *v2.HelmRelease) bool {
	return obj.Status.ObservedGeneration == obj.Generation && obj.Status.LastAttemptedGeneration == obj.Generation &&
		conditions.IsTrue(obj, v2.ReleasedCondition) && !conditions.Has(obj, v2.RemediatedCondition)
}
