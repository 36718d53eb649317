package release

import (
	"errors"
	"fmt"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/chartutil"
	"github.com/opencontainers/go-digest"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/release/common"

	"github.com/cascade-gitops/cascade/syncer/release/sandbox"
)

// State of a release in Helm's storage, as against its HelmRelease.
type State string

// States, in the order in which they are looked for.
const (
	// Absent: there is no release, or it was uninstalled.
	Absent State = "Absent"
	// Locked: an action began and never ended.
	Locked State = "Locked"
	// Uninstalling: an uninstall of it began and did not end.
	Uninstalling State = "Uninstalling"
	// Unmanaged: another client of Helm installed the release or changed it.
	Unmanaged State = "Unmanaged"
	// Failed: the last action on it failed, or its tests did.
	Failed State = "Failed"
	// OutOfSync: it was installed from another chart, with other values or in
	// another way.
	OutOfSync State = "OutOfSync"
	// Untested: it is as declared, and its tests have not run.
	Untested State = "Untested"
	// Drifted: it is as declared, and its objects in the cluster are not.
	Drifted State = "Drifted"
	// InSync: there is nothing to do.
	InSync State = "InSync"
)

// Stored is what the newest revision of a release in Helm's storage says.
type Stored struct {
	Name, Namespace string
	Version         int
	Status          common.Status
	// Chart that it was installed from.
	ChartName, ChartVersion string
	// Ours: all that is in it has the labels of the HelmRelease. It is looked for only
	// while the release is uninstalling, when the history may not be about it.
	Ours bool
	// Unverified is why it is not what status.history says that it is; nil if it
	// is, or if status.history is empty or too old to tell.
	Unverified error
}

// Errors of verification, whose texts explain the state Unmanaged.
var (
	errDigest      = errors.New("release digest verification error")
	errNotObserved = errors.New("release not observed to be made for object")
)

// Desired is what a HelmRelease wants, besides what its spec says.
type Desired struct {
	ChartName, ChartVersion string
	// Values that the chart is rendered with, and ConfigDigest of them.
	Values       map[string]any
	ConfigDigest digest.Digest
	// Preserving is the digest of the values over those of the newest revision, where an upgrade
	// preserves these; empty otherwise.
	Preserving digest.Digest
}

// StateOf compares what is stored, nil if nothing is, with what is declared. It
// does not know of drift. The reason is for logs.
func StateOf(obj *v2.HelmRelease, stored *Stored, want Desired) (state State, reason string, err error) {
	switch {
	case stored == nil:
		return Absent, "no release in storage for object", nil
	case stored.Status.IsPending():
		return Locked, fmt.Sprintf("release with status '%s'", stored.Status), nil
	}
	latest := obj.Status.History.Latest()
	switch {
	case stored.Status == common.StatusUninstalling && (stored.Ours || latest != nil && stored.Unverified == nil):
		return Uninstalling, fmt.Sprintf("release with status '%s'", stored.Status), nil
	case latest == nil && stored.Status == common.StatusUninstalled:
		return Absent, "found uninstalled release in storage", nil
	case latest == nil:
		return Unmanaged, "found existing release in storage", nil
	case stored.Unverified != nil:
		return Unmanaged, stored.Unverified.Error(), nil
	}
	switch stored.Status {
	case common.StatusFailed:
		return Failed, "", nil
	case common.StatusUninstalled:
		return Absent, "found uninstalled release in storage", nil
	case common.StatusDeployed:
	default:
		return "", "", fmt.Errorf("unable to determine state for release with status '%s'", stored.Status)
	}
	switch {
	case stored.ChartName != want.ChartName, stored.ChartVersion != want.ChartVersion:
		return OutOfSync, "release chart changed", nil
	case !want.sameValues(latest.ConfigDigest) && (want.Preserving == "" || want.Preserving.String() != latest.ConfigDigest):
		return OutOfSync, "release config values changed", nil
	}
	switch recorded, declared := recordedMade(obj), declaredMade(obj); {
	case declared.postRenderers != recorded.postRenderers:
		return OutOfSync, "postrenderers digest has changed", nil
	case declared.metadata != recorded.metadata:
		return OutOfSync, "common metadata digest has changed", nil
	}
	if test := obj.GetTest(); test.Enable {
		if !latest.HasBeenTested() {
			return Untested, "", nil
		}
		if r := obj.GetActiveRemediation(); r != nil && !r.MustIgnoreTestFailures(test.IgnoreFailures) && latest.HasTestInPhase("Failed") {
			return Failed, "release has test in failed phase", nil
		}
	}
	return InSync, "", nil
}

// sameValues compares the values with a recorded digest, which may be of
// another algorithm.
func (d Desired) sameValues(recorded string) bool {
	if recorded == d.ConfigDigest.String() {
		return recorded != ""
	}
	r := digest.Digest(recorded)
	if r.Validate() != nil || r.Algorithm() == d.ConfigDigest.Algorithm() {
		return false
	}
	return chartutil.VerifyValues(r, d.Values)
}

// over is the digest of the values over those of a revision, as Helm has them for an upgrade that preserves these.
func (d Desired) over(config map[string]any) digest.Digest {
	return ConfigDigest(util.CoalesceTables(sandbox.CopyValues(d.Values), sandbox.CopyValues(config)))
}

// Targets of a release, as messages name them.
const (
	targetStorageNamespace = "storage namespace"
	targetReleaseNamespace = "release namespace"
	targetReleaseName      = "release name"
	targetChartName        = "chart name"
)

// targetChanged reports whether the HelmRelease points at another release than
// the one that its status is about, which has to be uninstalled first.
func targetChanged(obj *v2.HelmRelease, chartName string) (what string, changed bool) {
	latest := obj.Status.History.Latest()
	switch {
	case obj.Status.StorageNamespace == "" || latest == nil:
		return "", false
	case obj.GetStorageNamespace() != obj.Status.StorageNamespace:
		return targetStorageNamespace, true
	case obj.GetReleaseNamespace() != latest.Namespace:
		return targetReleaseNamespace, true
	case ShortName(obj.GetReleaseName()) != latest.Name:
		return targetReleaseName, true
	case chartName != latest.ChartName && obj.GetUpgrade().GetChartNameChangeStrategy() == v2.ChartNameChangeStrategyReinstall:
		return targetChartName, true
	}
	return "", false
}

// resetsFailures reports whether something changed since the last attempt, so
// that failures are counted anew. It marks a request for a reset as handled.
func resetsFailures(obj *v2.HelmRelease, want Desired) (why string, reset bool) {
	// Always asked first: a request is handled once, whatever else has changed.
	requested := v2.ShouldHandleResetRequest(obj)
	s := &obj.Status
	switch {
	case s.LastAttemptedGeneration != obj.Generation:
		return "generation differs from last attempt", true
	case s.LastAttemptedRevision != want.ChartVersion:
		return "chart version differs from last attempt", true
	case s.LastAttemptedConfigDigest != "" && !want.sameValues(s.LastAttemptedConfigDigest):
		return "values differ from last attempt", true
	//lint:ignore SA1019 of the time before digests there is a SHA-1: as good as other values
	case s.LastAttemptedConfigDigest == "" && s.LastAttemptedValuesChecksum != "":
		return "values differ from last attempt", true
	case requested:
		return "reset requested through annotation", true
	}
	return "", false
}
