package release

import (
	"fmt"
	"strings"
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
)

func revisionOf(version int, status common.Status) *helmrelease.Release {
	return &helmrelease.Release{
		Name: "web", Namespace: "apps", Version: version, Info: &helmrelease.Info{Status: status},
		Chart: &chart.Chart{Metadata: &chart.Metadata{Name: "web", Version: "1.0.0"}},
	}
}

// TestRecord: what an action wrote becomes the history, the newest first.
func TestRecord(t *testing.T) {
	const old = "sha256:old"
	for name, tc := range map[string]struct {
		reason  string
		history []*helmrelease.Release
		wrote   []*helmrelease.Release
		want    string
	}{
		"First":      {"an install", nil, []*helmrelease.Release{revisionOf(1, common.StatusPendingInstall), revisionOf(1, common.StatusDeployed)}, "1 deployed"},
		"Upgrade":    {"the one before was superseded", []*helmrelease.Release{revisionOf(1, common.StatusDeployed)}, []*helmrelease.Release{revisionOf(2, common.StatusPendingUpgrade), revisionOf(1, common.StatusSuperseded), revisionOf(2, common.StatusDeployed)}, "2 deployed, 1 superseded"},
		"Failed":     {"the one before stays what it was", []*helmrelease.Release{revisionOf(1, common.StatusDeployed)}, []*helmrelease.Release{revisionOf(2, common.StatusFailed)}, "2 failed, 1 deployed"},
		"Nothing":    {"an action that wrote nothing leaves the history alone", []*helmrelease.Release{revisionOf(1, common.StatusDeployed)}, nil, "1 deployed"},
		"Unrecorded": {"what happened to a revision that is not in the history is not recorded", nil, []*helmrelease.Release{revisionOf(4, common.StatusSuperseded), revisionOf(5, common.StatusDeployed)}, "5 deployed"},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &v2.HelmRelease{}
			for _, r := range tc.history {
				s := snapshotOf(r, old, v2.ReleaseActionInstall)
				s.SetTestHooks(map[string]*v2.TestHookStatus{"t": {Phase: "Succeeded"}})
				obj.Status.History = append(obj.Status.History, s)
			}
			obj.Status.LastAttemptedRevisionDigest = "sha256:new"
			var w written
			for _, r := range tc.wrote {
				w.see(obj, r)
			}
			w.record(obj, v2.ReleaseActionUpgrade)
			var got []string
			for _, s := range obj.Status.History {
				got = append(got, fmt.Sprint(s.Version, " ", s.Status))
			}
			if strings.Join(got, ", ") != tc.want {
				t.Errorf("%s: the history is %q, want %q", tc.reason, got, tc.want)
			}
			if len(tc.history) == 0 || len(tc.wrote) == 0 {
				return
			}
			newest, before := obj.Status.History[0], obj.Status.History[1]
			if newest.OCIDigest != "sha256:new" || newest.Action != v2.ReleaseActionUpgrade {
				t.Errorf("%s: the newest record is %+v", tc.reason, newest)
			}
			if before.OCIDigest != old || !before.HasBeenTested() {
				t.Errorf("%s: the record before lost what it said: %+v", tc.reason, before)
			}
		})
	}
}

// TestReplace: a revision is written over its record and no other.
func TestReplace(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		version int
		found   bool
		want    string
	}{
		"Newest": {"the record at hand", 2, true, "uninstalled deployed"},
		"Older":  {"or an earlier one", 1, true, "deployed uninstalled"},
		"None":   {"a revision without a record", 3, false, "deployed deployed"},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &v2.HelmRelease{}
			for _, version := range []int{2, 1} {
				obj.Status.History = append(obj.Status.History, snapshotOf(revisionOf(version, common.StatusDeployed), "", v2.ReleaseActionInstall))
			}
			if got := replace(obj, revisionOf(tc.version, common.StatusUninstalled), always(v2.ReleaseActionUninstall)); got != tc.found || history(obj) != tc.want {
				t.Errorf("%s: replace() = %t, history %q; want %t, %q", tc.reason, got, history(obj), tc.found, tc.want)
			}
		})
	}
}
