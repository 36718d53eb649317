package release

import (
	"context"
	"errors"
	"fmt"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"github.com/opencontainers/go-digest"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// known is what was found when a release was read last.
type known struct {
	cluster *apply.Cluster
	// stamp of the storage and recorded digest for which it holds.
	stamp, recorded string
	stored          *Stored
	// preserving is the digest of the values that an upgrade has which preserves the stored ones under those with the
	// digest declared. Both are empty until they are asked for.
	declared, preserving digest.Digest
	// leftovers are objects of earlier revisions that are still to be deleted.
	leftovers []inventory.Entry
	// undone are objects of revisions that never were deployed and are on no record.
	undone []inventory.Entry
	// cutOff: no process lived to record our own last tries. All else is as it was recorded.
	cutOff bool
	// successor is the HelmRelease that made the newest revision, if it is another one, or the next one of the
	// same name that takes it over. It is looked for before an uninstall only.
	successor string
}

// look tells the state of the release. It reads the stored release only if the
// storage has changed since it was read last.
func (n *run) look(ctx context.Context, want Desired) (State, string, jsondiff.DiffSet, error) {
	rel, err := n.read(ctx)
	if err == nil {
		want.Preserving, err = n.preserving(ctx, rel, want)
	}
	if err != nil {
		return "", "", nil, fmt.Errorf("failed to retrieve last release from storage: %w", err)
	}
	state, reason, err := StateOf(n.obj, n.found.stored, want)
	if err != nil || state != InSync || !n.obj.GetDriftDetection().MustDetectChanges() {
		return state, reason, nil, err
	}
	n.sweeps()
	n.doubt(ctx)
	if n.undrifted() {
		return InSync, "", nil, nil
	}
	if rel == nil {
		if rel, err = n.store.read(ctx, n.storageNamespace, n.name, n.found.stored.Version); err != nil {
			return "", "", nil, fmt.Errorf("failed to retrieve last release from storage: %w", err)
		}
	}
	found, err := n.drifts.compare(ctx, rel)
	n.noteDrift(found, err)
	switch {
	case err != nil && !found.set.HasChanges():
		return "", "", nil, fmt.Errorf("unable to determine cluster state: %w", err)
	case err != nil:
		n.log.Error(n.redacted(err), "diff of release against cluster state completed with error")
	}
	if found.set.HasChanges() {
		return Drifted, "", found.set, nil
	}
	return InSync, "", nil, nil
}

// read sets found. The release is returned if it had to be read.
func (n *run) read(ctx context.Context) (*helmrelease.Release, error) {
	recorded := ""
	latest := n.obj.Status.History.Latest()
	if latest != nil {
		recorded = latest.Digest + " " + latest.APIVersion + " " + latest.OCIDigest
	}
	found, err := n.store.revisions(ctx, n.storageNamespace, n.name)
	if err != nil {
		return nil, err
	}
	stamp := stampOf(found)
	n.mu.Lock()
	before, ok := n.known[n.obj.UID]
	n.mu.Unlock()
	if ok && before.cluster == n.req.Cluster && before.stamp == stamp && before.recorded == recorded {
		n.found = before
		return nil, nil
	}
	now := known{cluster: n.req.Cluster, stamp: stamp, recorded: recorded}
	var rel *helmrelease.Release
	if len(found) > 0 {
		if rel, err = n.store.read(ctx, n.storageNamespace, n.name, found[0].version); err != nil {
			return nil, err
		}
		now.stored = storedOf(rel, latest)
		if now.stored.Status == common.StatusUninstalling {
			if now.stored.Ours, err = n.ours(rel); err != nil {
				return nil, err
			}
		}
		if now.cutOff, err = n.isCutOff(ctx, found, rel); err != nil {
			return nil, err
		}
		if now.undone, err = n.undoneIn(ctx, found, rel); err != nil {
			return nil, err
		}
		if now.leftovers, err = n.leftoversOf(rel, now.undone); err != nil {
			return nil, err
		}
	}
	n.found = now
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[types.UID]known{}
	}
	n.known[n.obj.UID] = now
	return rel, nil
}

// preserving is the digest of the values that an upgrade would have, if that preserves those of the newest revision and
// these are others than what is declared; empty otherwise. The revision is read if it is nil.
func (n *run) preserving(ctx context.Context, rel *helmrelease.Release, want Desired) (digest.Digest, error) {
	latest, stored := n.obj.Status.History.Latest(), n.found.stored
	deployed := latest != nil && stored != nil && stored.Status == common.StatusDeployed
	if !deployed || !n.obj.GetUpgrade().PreserveValues || want.sameValues(latest.ConfigDigest) {
		return "", nil
	}
	if n.found.declared == "" || n.found.declared != want.ConfigDigest {
		if rel == nil {
			var err error
			if rel, err = n.store.read(ctx, n.storageNamespace, n.name, stored.Version); err != nil {
				return "", err
			}
		}
		n.found.declared, n.found.preserving = want.ConfigDigest, want.over(rel.Config)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.known[n.obj.UID] = n.found
	}
	return n.found.preserving, nil
}

// isCutOff reports whether the storage has what the history begins with as it was recorded, and since then
// nothing but failed tries of our own: the process ended before it had recorded them. What was
// deployed before is what to go back to still. newest is the first of found.
func (n *run) isCutOff(ctx context.Context, found []revision, newest *helmrelease.Release) (bool, error) {
	latest := n.obj.Status.History.Latest()
	if latest == nil {
		return false, nil
	}
	for i, r := range found {
		rel := newest
		if i > 0 {
			var err error
			if rel, err = n.store.read(ctx, n.storageNamespace, n.name, r.version); errors.Is(err, driver.ErrReleaseNotFound) {
				return false, nil
			} else if err != nil {
				return false, err
			}
		}
		if r.version <= latest.Version {
			return i > 0 && latest.Targets(rel.Name, rel.Namespace, rel.Version) && verify(latest, rel) == nil, nil
		}
		if rel.Info.Status != common.StatusFailed {
			return false, nil
		}
		if ours, err := n.ours(rel); err != nil || !ours {
			return false, err
		}
	}
	return false, nil
}

func storedOf(rel *helmrelease.Release, latest *v2.Snapshot) *Stored {
	s := &Stored{Name: rel.Name, Namespace: rel.Namespace, Version: rel.Version, Status: rel.Info.Status}
	if rel.Chart != nil && rel.Chart.Metadata != nil {
		s.ChartName, s.ChartVersion = rel.Chart.Metadata.Name, rel.Chart.Metadata.Version
	}
	if latest != nil {
		s.Unverified = verify(latest, rel)
	}
	return s
}

// newest reads the newest of all revisions, which it lists; nil if there is none.
// What it was made with is not told from then on.
func (n *run) newest(ctx context.Context) (found []revision, rel *helmrelease.Release, err error) {
	found, err = n.store.revisions(ctx, n.storageNamespace, n.name)
	if err != nil || len(found) == 0 {
		return nil, nil, err
	}
	if rel, err = n.store.read(ctx, n.storageNamespace, n.name, found[0].version); err != nil {
		return found, nil, err
	}
	n.hide(rel)
	return found, rel, nil
}
