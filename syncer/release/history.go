package release

import (
	"slices"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
)

// written are the revisions that an action wrote, with their last state.
type written struct {
	snapshots map[int]*v2.Snapshot
	newest    *helmrelease.Release
}

// see records a revision.
func (w *written) see(obj *v2.HelmRelease, rel *helmrelease.Release) {
	ociDigest := obj.Status.LastAttemptedRevisionDigest
	if s := recordOf(obj, rel); s != nil {
		ociDigest = s.OCIDigest
	}
	if w.snapshots == nil {
		w.snapshots = map[int]*v2.Snapshot{}
	}
	w.snapshots[rel.Version] = snapshotOf(rel, ociDigest, "")
	if w.newest == nil || rel.Version >= w.newest.Version {
		w.newest = rel
	}
}

// record puts the newest revision in front of the history, and what became of an
// earlier one in its place. It may be called again in the course of an action.
func (w *written) record(obj *v2.HelmRelease, action v2.ReleaseAction) {
	if w.newest == nil {
		return
	}
	newest := w.snapshots[w.newest.Version]
	newest.Action = action
	for i, s := range obj.Status.History {
		now := w.snapshots[s.Version]
		if s.Version == newest.Version || now == nil || !s.Targets(now.Name, now.Namespace, now.Version) {
			continue
		}
		now.SetTestHooks(s.GetTestHooks())
		obj.Status.History[i] = now
	}
	before := slices.DeleteFunc(obj.Status.History, func(s *v2.Snapshot) bool { return s.Targets(newest.Name, newest.Namespace, newest.Version) })
	obj.Status.History = append(v2.Snapshots{newest}, before...)
}

// recordOf is the record of a revision in the history.
func recordOf(obj *v2.HelmRelease, rel *helmrelease.Release) *v2.Snapshot {
	for _, s := range obj.Status.History {
		if s.Targets(rel.Name, rel.Namespace, rel.Version) {
			return s
		}
	}
	return nil
}

// replace writes a revision over its record, if there is one.
func replace(obj *v2.HelmRelease, rel *helmrelease.Release, action func(*v2.Snapshot) v2.ReleaseAction) bool {
	for i, s := range obj.Status.History {
		if s.Targets(rel.Name, rel.Namespace, rel.Version) {
			now := snapshotOf(rel, s.OCIDigest, action(s))
			now.SetTestHooks(s.GetTestHooks())
			obj.Status.History[i] = now
			return true
		}
	}
	return false
}

func always(a v2.ReleaseAction) func(*v2.Snapshot) v2.ReleaseAction {
	return func(*v2.Snapshot) v2.ReleaseAction { return a }
}

func same(s *v2.Snapshot) v2.ReleaseAction { return s.GetAction() }
