// Package held tells what of a tier waits for a person, since when, and by which command it
// goes on.
//
// It is pure: objects in, items out. It reads fields, conditions and their reasons, never a
// message. Invariants: an item has a command only if that command does what the item waits
// for; nothing is held that is suspended, since a person decided that already; what an agent
// of an earlier version did not record is told, with the command that shows more.
package held

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/wording"
)

// Item waits for a person.
type Item struct {
	// Kind, Namespace and Name are of the object that holds it.
	Kind, Namespace, Name string
	// Reason, as docs/reasons.md has it.
	Reason string
	// Message says what is held. It comes from Git and from clusters below in part.
	Message string
	// Since is when it began to wait; zero if that is not known.
	Since metav1.Time
	// Commands go on, each in another way. Without any, it is decided in Git.
	Commands []string
}

// Object is the object of an item, as people write it.
func (i Item) Object() string { return i.Kind + "/" + i.Namespace + "/" + i.Name }

// Facts are the objects of a tier.
type Facts struct {
	Kustomizations []kustomizev1.Kustomization
	HelmReleases   []helmv2.HelmRelease
	Layers         []v1alpha1.Layer
	Children       []v1alpha1.Child
	Rollouts       []v1alpha1.Rollout
}

// Of returns all that waits, what waits longest first.
func Of(f Facts) []Item {
	items := Rollouts(f.Rollouts)
	for i := range f.Kustomizations {
		k := &f.Kustomizations[i]
		if !k.Spec.Suspend {
			items = append(items, ofOwner(kustomizev1.KustomizationKind, k, k.Status.Conditions)...)
		}
	}
	for i := range f.HelmReleases {
		h := &f.HelmReleases[i]
		if !h.Spec.Suspend {
			items = append(items, ofOwner(helmv2.HelmReleaseKind, h, h.Status.Conditions)...)
		}
	}
	for i := range f.Layers {
		items = append(items, ofLayer(&f.Layers[i])...)
	}
	for i := range f.Children {
		items = append(items, ofChild(&f.Children[i])...)
	}
	slices.SortStableFunc(items, func(a, b Item) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(a.Object(), b.Object()), strings.Compare(a.Reason, b.Reason))
	})
	return items
}

// ofOwner is what a Kustomization or HelmRelease holds.
func ofOwner(kind string, o client.Object, conditions []metav1.Condition) []Item {
	var items []Item
	held, known := v1alpha1.HeldOf(o)
	if c := meta.FindStatusCondition(conditions, v1alpha1.PruneBlockedCondition); c != nil {
		item := itemOf(kind, o, v1alpha1.ReasonPruneBlocked, c)
		switch {
		case held.Prune != nil && held.Prune.Hash != "":
			item.Commands = []string{approvePrune(kind, o, held.Prune.Hash)}
		case !known && kind == kustomizev1.KustomizationKind:
			item.Commands = []string{approvePrune(kind, o, "")}
		}
		items = append(items, item)
	}
	if c := meta.FindStatusCondition(conditions, v1alpha1.CreateHeldCondition); c != nil {
		item := itemOf(kind, o, v1alpha1.ReasonCreateHeld, c)
		switch {
		case held.Create == nil:
			item.Commands = []string{"cascade approve create"}
		case !held.Create.Elsewhere && len(held.Create.Clusters) > 0:
			words := make([]string, 0, len(held.Create.Clusters))
			for _, cluster := range held.Create.Clusters {
				words = append(words, wording.Argument(cluster))
			}
			item.Commands = []string{"cascade approve create " + strings.Join(words, " ")}
		}
		items = append(items, item)
	}
	return items
}

func itemOf(kind string, o client.Object, reason string, c *metav1.Condition) Item {
	return Item{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Reason: reason, Message: c.Message, Since: c.LastTransitionTime}
}

// approvePrune releases the plan with a hash; without one, the command shows it.
func approvePrune(kind string, o client.Object, hash string) string {
	command := fmt.Sprintf("cascade approve prune %s -n %s", wording.Argument(o.GetName()), wording.Argument(o.GetNamespace()))
	if kind != kustomizev1.KustomizationKind {
		command += " --kind " + kind
	}
	if hash != "" {
		command += " --hash " + wording.Argument(hash)
	}
	return command
}

func ofLayer(l *v1alpha1.Layer) []Item {
	if !HoldsRemoval(l) {
		return nil
	}
	item := Item{
		Kind: "Layer", Namespace: l.Namespace, Name: l.Name, Reason: v1alpha1.ReasonRemovalHeld, Message: Removal(l),
		Commands: []string{fmt.Sprintf("cascade approve removal %s -n %s --hash %s", wording.Argument(l.Name), wording.Argument(l.Namespace), wording.Argument(l.Status.Removal.Hash))},
	}
	if since := l.Status.Removal.Since; since != nil {
		item.Since = *since
	}
	return []Item{item}
}

// HoldsRemoval reports whether the removal of a Layer from children waits for a person.
func HoldsRemoval(l *v1alpha1.Layer) bool {
	return l.Status.Removal != nil && l.Status.Removal.Held && !l.Spec.Suspend
}

// Removal says which removal a Layer holds.
func Removal(l *v1alpha1.Layer) string {
	removal := l.Status.Removal
	names := strings.Join(removal.Names, ", ")
	if more := int(removal.Waiting) - len(removal.Names); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	of := removal.Waiting
	if l.Status.OnRecord != nil {
		of = l.Status.OnRecord.Children
	}
	return fmt.Sprintf("Layer %s/%s would be removed from %d of %d children: %s; hash %s", l.Namespace, l.Name, removal.Waiting, of, names, removal.Hash)
}

// ofChild is what layers hold in a child, but for removals, which the Layer tells.
func ofChild(child *v1alpha1.Child) []Item {
	var items []Item
	at := Item{Kind: "Child", Namespace: child.Namespace, Name: child.Name}
	if by := child.Status.SupersededBy; by != nil {
		item := at
		item.Reason = v1alpha1.ReasonSuperseded
		item.Message = fmt.Sprintf("another management cluster took the child over: epoch %d of %s", by.Number, by.Holder)
		if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ReadyCondition); c != nil && c.Reason == v1alpha1.ReasonSuperseded {
			item.Since = c.LastTransitionTime
		}
		item.Commands = []string{fmt.Sprintf("cascade approve take-over %s -n %s", wording.Argument(child.Name), wording.Argument(child.Namespace))}
		items = append(items, item)
	}
	for i := range child.Status.Layers {
		l := &child.Status.Layers[i]
		if l.Suspended {
			continue
		}
		if plan := Beside(l); plan != nil {
			item := at
			item.Reason, item.Message = v1alpha1.ReasonPruneBlocked, Deletes(l)
			item.Commands = []string{approvePrune("Child", child, plan.Hash)}
			items = append(items, item)
		}
		item := at
		item.Reason, item.Message, item.Since = l.Reason, "layer "+l.Name+": "+l.Message, l.Since
		switch l.Reason {
		case v1alpha1.ReasonPruneBlocked:
			switch {
			case l.Held == nil:
				item.Commands = []string{approvePrune("Child", child, "")}
			case l.Held.Prune != nil && l.Held.Prune.Hash != "":
				item.Commands = []string{approvePrune("Child", child, l.Held.Prune.Hash)}
			}
		case v1alpha1.ReasonCreateHeld:
			if l.Held != nil && l.Held.Create != nil && len(l.Held.Create.Clusters) > 0 {
				words := make([]string, 0, len(l.Held.Create.Clusters))
				for _, cluster := range l.Held.Create.Clusters {
					words = append(words, wording.Argument(cluster))
				}
				item.Commands = []string{"cascade approve create --pushed " + strings.Join(words, " ") + " --kubeconfig <of this child>"}
			}
		default:
			continue
		}
		items = append(items, item)
	}
	return items
}

// Beside is the plan of deletes that a layer holds in a child while its reason and message are about something else;
// nil if it holds none then. It waits until it is decided.
func Beside(l *v1alpha1.ChildLayer) *v1alpha1.HeldPrune {
	if l.Suspended || l.Reason == v1alpha1.ReasonPruneBlocked || l.Held == nil || l.Held.Prune == nil || l.Held.Prune.Hash == "" {
		return nil
	}
	return l.Held.Prune
}

// Deletes says which plan a layer holds beside something else.
func Deletes(l *v1alpha1.ChildLayer) string {
	return fmt.Sprintf("layer %s: besides, the delete of %d objects waits for an approval; hash %s", l.Name, l.Held.Prune.Deletes, l.Held.Prune.Hash)
}

// Clusters reads what is held to be created, as namespace/name of each.
func Clusters(words []string) ([]types.NamespacedName, error) {
	var names []types.NamespacedName
	for _, word := range words {
		namespace, name, ok := strings.Cut(word, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("cannot use %q: write namespace/name of a Cluster", word)
		}
		names = append(names, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return names, nil
}
