package release

import (
	"context"
	"errors"
	"slices"
	"strings"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/inventory"
)

// contents are the objects that a release answers for: of its manifest, and the
// definitions that came with its chart.
func (n *run) contents(rel *helmrelease.Release) (entries, definitions []inventory.Entry, warnings []string, err error) {
	objects, warnings, err := objectsOf(rel, n.mapper)
	if err != nil {
		return nil, nil, nil, err
	}
	if rel.Chart != nil {
		found, err := definitionsOf(rel.Chart)
		if err != nil {
			return nil, nil, nil, err
		}
		definitions = inventory.OfAll(found)
	}
	return inventory.OfAll(objects), definitions, warnings, nil
}

// leftoversOf are the objects of the inventory, and of revisions that were undone, that
// the release does not declare. Earlier revisions had them, and they have not been deleted
// yet.
func (n *run) leftoversOf(rel *helmrelease.Release, undone []inventory.Entry) ([]inventory.Entry, error) {
	recorded := inventory.Union(entriesOf(n.obj.Status.Inventory), undone)
	if len(recorded) == 0 {
		return nil, nil
	}
	has, definitions, _, err := n.contents(rel)
	if err != nil {
		return nil, err
	}
	return n.withoutHooks(rel, dropped(recorded, append(has, definitions...)))
}

// withoutHooks are those that the release does not declare as hooks either. A chart may
// make a hook of what was an object of the release.
func (n *run) withoutHooks(rel *helmrelease.Release, left []inventory.Entry) ([]inventory.Entry, error) {
	for _, h := range rel.Hooks {
		if len(left) == 0 {
			break
		}
		objects, _, err := objectsIn(rel, h.Manifest, n.mapper)
		if err != nil {
			return nil, err
		}
		left = dropped(left, inventory.OfAll(objects))
	}
	return left, nil
}

// undoneIn are the objects of the newest revisions that never were deployed and that the
// history does not have, because the process ended before: nothing else is on record of
// what they created, and Helm compares the next revision with the last deployed one.
// Objects without the labels of the HelmRelease are left out: another client of Helm made
// that revision. newest is the first of found.
func (n *run) undoneIn(ctx context.Context, found []revision, newest *helmrelease.Release) ([]inventory.Entry, error) {
	recorded := 0
	if latest := n.obj.Status.History.Latest(); latest != nil {
		recorded = latest.Version
	}
	var undone []inventory.Entry
	for i, r := range found {
		if r.version <= recorded {
			break
		}
		rel := newest
		if i > 0 {
			var err error
			if rel, err = n.store.read(ctx, n.storageNamespace, n.name, r.version); errors.Is(err, driver.ErrReleaseNotFound) {
				continue
			} else if err != nil {
				return nil, err
			}
		}
		if s := rel.Info.Status; s != common.StatusFailed && !s.IsPending() {
			break
		}
		objects, _, err := objectsOf(rel, n.mapper)
		if err != nil {
			return nil, err
		}
		objects = slices.DeleteFunc(objects, func(u *unstructured.Unstructured) bool { return !n.labelled(u) })
		undone = inventory.Union(undone, undeleted(inventory.OfAll(objects)))
	}
	return undone, nil
}

// dropped are the recorded objects that a release does not have any more. If it
// is not known whether an object has a namespace, now or when it was recorded,
// it counts as the object of the same name: unknown is not absent.
func dropped(recorded, has []inventory.Entry) []inventory.Entry {
	unplaced := func(e inventory.Entry) inventory.Entry {
		return inventory.Entry{Group: e.Group, Kind: e.Kind, Name: e.Name}
	}
	same := map[inventory.Entry]bool{}
	for _, e := range has {
		same[unplaced(e)] = same[unplaced(e)] || e.Namespace == ""
	}
	return slices.DeleteFunc(inventory.Difference(recorded, has), func(e inventory.Entry) bool {
		nowhere, known := same[unplaced(e)]
		return known && (nowhere || e.Namespace == "")
	})
}

// undeleted are the recorded objects that a failed action may have left behind.
// Definitions are not among them. Helm never deletes those of a chart, and one
// in a manifest is recorded when the guard keeps it.
func undeleted(recorded []inventory.Entry) []inventory.Entry {
	return slices.DeleteFunc(slices.Clone(recorded), isDefinition)
}

// inventory records what the release answers for after an action wrote it, and tells what
// of it is not certain.
func (n *run) inventory(a Action, rel *helmrelease.Release, spared *verdicts, partly bool) {
	if rel == nil {
		return
	}
	warnings, err := n.recordContents(a, rel, spared, partly)
	if err != nil {
		n.Events.Eventf(n.obj, corev1.EventTypeWarning, v2.InventoryBuildFailedReason, "failed to build inventory for %s/%s: %s", n.obj.Namespace, n.obj.Name, err)
		return
	}
	if len(warnings) > 0 {
		n.Events.Eventf(n.obj, corev1.EventTypeWarning, v2.NamespaceCheckSkippedReason, "%s", strings.Join(warnings, "; "))
	}
}

// recordContents records what the release answers for. partly: what of the inventory is
// not in the release may not have been deleted, because the action has not ended, failed
// before that, or compared the release with another than the newest revision.
func (n *run) recordContents(a Action, rel *helmrelease.Release, spared *verdicts, partly bool) (warnings []string, err error) {
	recorded := entriesOf(n.obj.Status.Inventory)
	left := inventory.Union(inventory.Union(n.found.leftovers, n.found.undone), spared.kept())
	if partly {
		left = inventory.Union(left, undeleted(recorded))
	}
	has, definitions, warnings, err := n.contents(rel)
	if err != nil {
		return nil, err
	}
	if left, err = n.withoutHooks(rel, dropped(left, append(has, definitions...))); err != nil {
		return nil, err
	}
	if n.leavesDefinitions(a) {
		// Those that are on record were applied before.
		definitions = inventory.Difference(definitions, inventory.Difference(definitions, recorded))
	}
	n.obj.Status.Inventory = refsOf(slices.Concat(has, definitions, left))
	return warnings, nil
}

// leavesDefinitions reports whether an action leaves the definitions of the chart to others. A rollback goes back to what
// upgrades made.
func (n *run) leavesDefinitions(a Action) bool {
	if a == Install {
		return n.obj.GetInstall().CRDs == v2.Skip
	}
	return n.obj.GetUpgrade().CRDs == v2.Skip
}
