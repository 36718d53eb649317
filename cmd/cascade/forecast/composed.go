package forecast

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/compose"
)

// composed is what a Kustomization has applied, of which a Rollout lets Clusters have other
// revisions than the one that was applied last.
func (f *forecast) composed(ctx context.Context, k *kustomizev1.Kustomization, newest []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	movers := f.moversOf(k)
	if len(movers) == 0 {
		return newest, nil
	}
	revision, releases := k.Status.LastAppliedRevision, f.madeClusters()
	facts := compose.Facts{
		Newest: compose.Read(revision, newest, releases), Older: map[string]*compose.Rendering{}, Pins: map[types.NamespacedName]compose.Pin{},
	}
	facts.Good = map[string]string{}
	for _, mover := range movers {
		if good := mover.Status.LastGood; good != nil {
			facts.Good[mover.Name] = good.Revision
		}
	}
	for i := range f.tier.children {
		child := &f.tier.children[i]
		if child.Namespace != k.Namespace {
			continue
		}
		// Each Rollout has clusters of its own. What one lets a cluster have stands while another one moves the same.
		var mover *v1alpha1.Rollout
		var on *v1alpha1.ChildRollout
		for _, mover = range movers {
			if on = rollout.OnRecord(child, rollout.MoverOf(mover)); on != nil && on.Revision != "" {
				break
			}
		}
		if on == nil || on.Revision == "" {
			continue
		}
		pin := compose.PinOf(on)
		if rollout.Content(pin.Revision) == rollout.Content(revision) {
			pin.Revision = revision
		}
		facts.Pins[clusterOf(child)] = pin
		if pin.Revision == revision || facts.Older[pin.Revision] != nil {
			continue
		}
		snapshot, err := f.revision(ctx, pin.Revision)
		if err != nil {
			return nil, err
		}
		objects, err := f.render(ctx, k, snapshot, f.cluster)
		if err != nil {
			return nil, fmt.Errorf("cannot render revision %s, which Rollout %s lets Cluster %s have: %w", pin.Revision, mover.Name, child.Name, err)
		}
		facts.Older[pin.Revision] = compose.Read(pin.Revision, objects, releases)
	}
	return compose.Compose(facts).Objects, nil
}

// clustersOf are the Clusters that what changes of a Kustomization belongs to, now or at the commit, as the agent
// takes it for theirs: a change of what several need reaches each of them.
func (f *forecast) clustersOf(k *declaredBy, changes []difference.Change) []types.NamespacedName {
	changed := map[difference.Identity]bool{}
	for _, c := range changes {
		changed[c.Identity()] = true
	}
	clusters, releases := map[types.NamespacedName]bool{}, f.madeClusters()
	for _, objects := range [][]*unstructured.Unstructured{k.before, k.after} {
		rendering := compose.Read("", objects, releases)
		for _, cluster := range rendering.Clusters() {
			if slices.ContainsFunc(rendering.Of(cluster), func(u *unstructured.Unstructured) bool { return changed[difference.IdentityOf(u)] }) {
				clusters[cluster] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(clusters), compareKeys)
}

// moversOf are the Rollouts that move a Kustomization now, by name, as the agent takes them.
func (f *forecast) moversOf(k *kustomizev1.Kustomization) []*v1alpha1.Rollout {
	var movers []*v1alpha1.Rollout
	for i := range f.tier.rollouts {
		r := &f.tier.rollouts[i]
		if ref := r.Spec.Moves.KustomizationRef; ref != nil && ref.Name == k.Name && r.Namespace == k.Namespace && r.DeletionTimestamp.IsZero() {
			movers = append(movers, r)
		}
	}
	slices.SortFunc(movers, func(a, b *v1alpha1.Rollout) int { return strings.Compare(a.Name, b.Name) })
	return movers
}

func clusterOf(child *v1alpha1.Child) types.NamespacedName {
	name := client.ObjectKeyFromObject(child)
	if ref := child.Spec.ClusterRef; ref != nil {
		name.Name = ref.Name
	}
	return name
}

// madeClusters are the Clusters that HelmReleases make.
func (f *forecast) madeClusters() compose.Releases {
	all := compose.Releases{Made: map[types.NamespacedName][]types.NamespacedName{}, Known: map[types.NamespacedName]bool{}}
	for i := range f.tier.children {
		all.Known[clusterOf(&f.tier.children[i])] = true
	}
	for i := range f.tier.releases {
		all.Add(&f.tier.releases[i])
	}
	return all
}
