package release

import (
	"slices"
	"strings"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/inventory"
)

// contents are the objects that a release answers for: of its manifest, and the
// definitions that came with its chart.
func (n *run) contents(rel *helmrelease.Release) (entries []inventory.Entry, warnings []string, err error) {
	objects, warnings, err := objectsOf(rel, n.mapper)
	if err != nil {
		return nil, nil, err
	}
	entries = inventory.OfAll(objects)
	if rel.Chart != nil {
		definitions, err := definitionsOf(rel.Chart)
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, inventory.OfAll(definitions)...)
	}
	return entries, warnings, nil
}

// leftoversOf are the objects of the inventory that are neither in the release
// nor among its definitions. Earlier revisions had them, and they have not been
// deleted yet.
func (n *run) leftoversOf(rel *helmrelease.Release) ([]inventory.Entry, error) {
	recorded := entriesOf(n.obj.Status.Inventory)
	if len(recorded) == 0 {
		return nil, nil
	}
	has, _, err := n.contents(rel)
	if err != nil {
		return nil, err
	}
	return dropped(recorded, has), nil
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
	return slices.DeleteFunc(slices.Clone(recorded), func(e inventory.Entry) bool {
		return e.Group == "apiextensions.k8s.io" && e.Kind == "CustomResourceDefinition"
	})
}

// inventory records what the release answers for after an action wrote it. An
// action that failed may have ended before its deletions.
func (n *run) inventory(rel *helmrelease.Release, spared *verdicts, failed bool) {
	if rel == nil {
		return
	}
	has, warnings, err := n.contents(rel)
	if err != nil {
		n.Events.Eventf(n.obj, corev1.EventTypeWarning, v2.InventoryBuildFailedReason, "failed to build inventory for %s/%s: %s", n.obj.Namespace, n.obj.Name, err)
		return
	}
	if len(warnings) > 0 {
		n.Events.Eventf(n.obj, corev1.EventTypeWarning, v2.NamespaceCheckSkippedReason, "%s", strings.Join(warnings, "; "))
	}
	left := inventory.Union(n.found.leftovers, spared.kept())
	if failed {
		left = inventory.Union(left, undeleted(entriesOf(n.obj.Status.Inventory)))
	}
	n.obj.Status.Inventory = refsOf(append(has, dropped(left, has)...))
}
