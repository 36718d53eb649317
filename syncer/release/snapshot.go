package release

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/chartutil"
	"github.com/opencontainers/go-digest"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	partdigest "github.com/cascade-gitops/cascade/syncer/digest"
)

// longest is what Helm allows for the name of a release, hashed how much of the
// hash a shortened one ends with.
const (
	longest = 53
	hashed  = 12
)

// ShortName is the name of the release for the declared name. A name that is
// too long is cut, and ends with a hash that keeps it unique.
func ShortName(name string) string {
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:longest-hashed-1] + "-" + hex.EncodeToString(sum[:])[:hashed]
}

// ConfigDigest is the digest of values as status.history records it. It is empty
// for values that cannot be written.
func ConfigDigest(values map[string]any) digest.Digest {
	return chartutil.DigestValues(digest.SHA256, values)
}

// observed is the part of a release of which the digest is taken. The fields,
// their names and their order are those of helm-controller, so that both take
// the same digest.
type observed struct {
	Name          string             `json:"name"`
	Version       int                `json:"version"`
	Info          helmrelease.Info   `json:"info"`
	ChartMetadata chart.Metadata     `json:"chartMetadata"`
	Config        map[string]any     `json:"config"`
	Manifest      string             `json:"manifest"`
	Hooks         []helmrelease.Hook `json:"hooks"`
	Namespace     string             `json:"namespace"`
	OCIDigest     string             `json:"ociDigest,omitempty"`
}

// releaseDigest identifies a release as it is stored. Test hooks do not count:
// anybody may run them.
func releaseDigest(algorithm digest.Algorithm, rel *helmrelease.Release, ociDigest string) digest.Digest {
	o := observed{
		Name: rel.Name, Version: rel.Version, Manifest: rel.Manifest, Namespace: rel.Namespace, OCIDigest: ociDigest,
	}
	if rel.Info != nil {
		o.Info = *rel.Info
	}
	if rel.Chart != nil && rel.Chart.Metadata != nil {
		o.ChartMetadata = *rel.Chart.Metadata
	}
	if len(rel.Config) > 0 {
		o.Config = rel.Config
	}
	for _, h := range rel.Hooks {
		if !isTest(h) {
			o.Hooks = append(o.Hooks, *h)
		}
	}
	digester := algorithm.Digester()
	if err := json.NewEncoder(digester.Hash()).Encode(o); err != nil {
		return ""
	}
	return digester.Digest()
}

// snapshotOf is the record of a release for status.history.
func snapshotOf(rel *helmrelease.Release, ociDigest string, action v2.ReleaseAction) *v2.Snapshot {
	s := &v2.Snapshot{
		APIVersion:   v2.CurrentSnapshotAPIVersion,
		Digest:       releaseDigest(digest.SHA256, rel, ociDigest).String(),
		Name:         rel.Name,
		Namespace:    rel.Namespace,
		Version:      rel.Version,
		ConfigDigest: ConfigDigest(rel.Config).String(),
		Action:       action,
		OCIDigest:    ociDigest,
	}
	if rel.Chart != nil && rel.Chart.Metadata != nil {
		m := rel.Chart.Metadata
		s.ChartName, s.ChartVersion, s.AppVersion = m.Name, m.Version, m.AppVersion
	}
	if i := rel.Info; i != nil {
		s.Status = i.Status.String()
		s.FirstDeployed, s.LastDeployed, s.Deleted = metav1.NewTime(i.FirstDeployed), metav1.NewTime(i.LastDeployed), metav1.NewTime(i.Deleted)
	}
	return s
}

// verify compares a stored release with the record of it. Records of older
// engines have no digest that could be compared.
func verify(s *v2.Snapshot, rel *helmrelease.Release) error {
	if s.APIVersion != v2.CurrentSnapshotAPIVersion {
		return nil
	}
	recorded, err := digest.Parse(s.Digest)
	if err != nil {
		return errDigest
	}
	if releaseDigest(recorded.Algorithm(), rel, s.OCIDigest) != recorded {
		return errNotObserved
	}
	return nil
}

func isTest(h *helmrelease.Hook) bool {
	return h != nil && slices.Contains(h.Events, helmrelease.HookTest)
}

// testHooks are the results of a release's tests, of those that the filters
// select.
func testHooks(rel *helmrelease.Release, filters []v2.Filter) map[string]*v2.TestHookStatus {
	results := map[string]*v2.TestHookStatus{}
	for _, h := range rel.Hooks {
		if isTest(h) && selected(h.Name, filters) {
			results[h.Name] = &v2.TestHookStatus{
				LastStarted:   metav1.NewTime(h.LastRun.StartedAt),
				LastCompleted: metav1.NewTime(h.LastRun.CompletedAt),
				Phase:         h.LastRun.Phase.String(),
			}
		}
	}
	return results
}

func selected(name string, filters []v2.Filter) bool {
	wanted, any := false, false
	for _, f := range filters {
		switch {
		case f.Exclude && f.Name == name:
			return false
		case !f.Exclude:
			any = true
			wanted = wanted || f.Name == name
		}
	}
	return wanted || !any
}

// partDigest is the digest of a part of a spec; empty if it cannot be written.
func partDigest(v any) string {
	sum, err := partdigest.JSON(v)
	if err != nil {
		return ""
	}
	return sum.String()
}

func postRenderersDigest(obj *v2.HelmRelease) string {
	if obj.Spec.PostRenderers == nil {
		return ""
	}
	return partDigest(obj.Spec.PostRenderers)
}

func commonMetadataDigest(obj *v2.HelmRelease) string {
	if obj.Spec.CommonMetadata == nil {
		return ""
	}
	return partDigest(obj.Spec.CommonMetadata)
}
