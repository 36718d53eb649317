package remote

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestOutstanding: what a Kustomization no longer declares in a cluster waits for the Layers that are to have something
// there, as long as they do not have what their source has by now.
func TestOutstanding(t *testing.T) {
	const bound = inventory.HandOverBound
	has := func(revision, why string, since time.Duration) *v1alpha1.ChildLayer {
		return &v1alpha1.ChildLayer{
			Name: "app", Revision: revision, Ready: why == v1alpha1.ReasonSucceeded, Reason: why, ObservedGeneration: 1, Since: metav1.NewTime(start.Add(-since)),
		}
	}
	type fleet struct {
		child *v1alpha1.Child
		layer *v1alpha1.Layer
		// coming are Layers as a Kustomization is about to apply them.
		coming []*v1alpha1.Layer
		// seen is what was newest when the layer was asked about before, and had failed for long already.
		seen string
	}
	seen := func(revision string) func(f *fleet) {
		return func(f *fleet) { f.seen = revision }
	}
	// comes has the layer come in another form.
	comes := func(change func(l *v1alpha1.Layer)) func(f *fleet) {
		return func(f *fleet) {
			next := f.layer.DeepCopy()
			next.Generation, next.Spec.Interval.Duration = 0, time.Hour
			change(next)
			f.coming = append(f.coming, next)
		}
	}
	for name, tc := range map[string]struct {
		reason  string
		entry   *v1alpha1.ChildLayer
		cluster string
		change  func(f *fleet)
		want    bool
	}{
		"Settled": {"it has what its source has", has("r2", v1alpha1.ReasonSucceeded, time.Hour), "far", nil, false},
		"Behind":  {"it has the commit before", has("r1", v1alpha1.ReasonSucceeded, time.Hour), "far", nil, true},
		"Unread":  {"a Rollout lets it have the commit before, and the newest has nothing else for it", has("r0", v1alpha1.ReasonSucceeded, time.Hour), "far", nil, false},
		"Held":    {"a Rollout lets it have the commit before, and the newest has something for it", has("r-1", v1alpha1.ReasonSucceeded, time.Hour), "far", nil, true},
		"New":     {"it has nothing yet", nil, "far", nil, true},
		"Changed": {"its path is another one by now", has("r2", v1alpha1.ReasonSucceeded, time.Hour), "far", func(f *fleet) { f.layer.Generation = 2 }, true},
		"Waits":   {"it waits for another layer", has("r1", v1alpha1.ReasonDependencyNotReady, time.Minute), "far", nil, true},
		"Fails":   {"it has failed for long, at what it is to have by now", has("r1", v1alpha1.ReasonBuildFailed, bound), "far", seen("r0"), false},
		"Mended":  {"the commit that moves something to it mends it", has("r1", v1alpha1.ReasonBuildFailed, 24*time.Hour), "far", seen("r-1"), true},
		"MendedPath": {"the commit gives it a path that builds", has("r1", v1alpha1.ReasonBuildFailed, 24*time.Hour), "far", func(f *fleet) {
			seen("r0")(f)
			f.layer.Generation = 2
		}, true},
		"Unhealthy":  {"all of it is there, and is not healthy yet", has("r2", v1alpha1.ReasonProgressing, time.Minute), "far", nil, false},
		"Deletes":    {"what it no longer declares waits for the Kustomization", has("r2", v1alpha1.ReasonHandOverPending, time.Minute), "far", nil, false},
		"Elsewhere":  {"it is about another cluster", nil, "other", nil, false},
		"Own":        {"the Child is this tier's own cluster", nil, "", func(f *fleet) { f.child.Status.Identity.KubeSystemUID = "near" }, true},
		"NotOwn":     {"the Child is not", nil, "", nil, false},
		"Others":     {"it is for other clusters", nil, "far", func(f *fleet) { f.child.Labels = nil }, false},
		"Suspended":  {"nobody knows when it goes on", nil, "far", func(f *fleet) { f.layer.Spec.Suspend = true }, false},
		"Child":      {"nor when its Child does", nil, "far", func(f *fleet) { f.child.Spec.Suspend = true }, false},
		"Sourceless": {"it has no source, from which something could come", nil, "far", func(f *fleet) { f.layer.Spec.SourceRef = nil }, false},
		"Comes":      {"a commit brings a layer for the cluster", has("r2", v1alpha1.ReasonSucceeded, time.Hour), "far", comes(func(l *v1alpha1.Layer) { l.Name = "new" }), true},
		"ComesFrom":  {"with its source", has("r2", v1alpha1.ReasonSucceeded, time.Hour), "far", comes(func(l *v1alpha1.Layer) { l.Name, l.Spec.SourceRef.Name = "new", "new" }), true},
		"ComesApart": {"it brings one for other clusters", has("r2", v1alpha1.ReasonSucceeded, time.Hour), "far", comes(func(l *v1alpha1.Layer) {
			l.Name, l.Spec.ClusterSelector.MatchLabels = "new", map[string]string{"tier": "master"}
		}), false},
		"ComesThere": {"it brings one for those of another namespace", has("r2", v1alpha1.ReasonSucceeded, time.Hour), "far", comes(func(l *v1alpha1.Layer) { l.Name, l.Namespace = "new", "other" }), false},
		"Moves":      {"a commit gives it another path", has("r2", v1alpha1.ReasonSucceeded, time.Hour), "far", comes(func(l *v1alpha1.Layer) { l.Spec.Path = "./all" }), true},
		"Stays":      {"a commit has it compared more often", has("r2", v1alpha1.ReasonSucceeded, time.Hour), "far", comes(func(*v1alpha1.Layer) {}), false},
		"GoesOn": {"a commit resumes it", has("r1", v1alpha1.ReasonSucceeded, time.Hour), "far", func(f *fleet) {
			f.layer.Spec.Suspend = true
			comes(func(l *v1alpha1.Layer) { l.Spec.Suspend = false })(f)
		}, true},
		"Unfetched": {"its source was not fetched", nil, "far", func(f *fleet) { f.layer.Spec.SourceRef.Name = "other" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			child, layer := childNamed("alpha", nil), layerOn("app")
			child.Labels = map[string]string{"tier": "tenant"}
			child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "far"}
			if tc.entry != nil {
				child.Status.Layers = []v1alpha1.ChildLayer{*tc.entry}
			}
			layer.Generation, layer.Spec.ClusterSelector.MatchLabels = 1, map[string]string{"tier": "tenant"}
			layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet"}
			key := layerSource(layer)
			f := &fleet{child: &child, layer: layer}
			if tc.change != nil {
				tc.change(f)
			}
			c := fake.NewClientBuilder().WithScheme(removalScheme(t)).WithObjects(&child, layer).
				WithIndex(&v1alpha1.Child{}, identityIndex, func(o client.Object) []string {
					return []string{o.(*v1alpha1.Child).Status.Identity.KubeSystemUID}
				}).Build()
			r := &Children{Client: c, Snapshots: source.NewSnapshots(), Now: func() time.Time { return start.Time }, own: "near"}
			r.Snapshots.Retain(holderOf(client.ObjectKeyFromObject(&child)), source.Pinned{Key: key, Revision: "r-1"}, source.Pinned{Key: key, Revision: "r0"})
			for _, s := range []source.Snapshot{{Revision: "r-1", Digest: "sha256:a"}, {Revision: "r0", Digest: "sha256:b"}, {Revision: "r2", Digest: "sha256:b"}} {
				r.Snapshots.Put(key, &s)
			}
			if f.seen != "" {
				before := layer.DeepCopy()
				before.Generation = 1
				r.contents.since(before, r.Snapshots.At(key, f.seen), start.Add(-bound))
			}
			got, err := r.Outstanding(t.Context(), tc.cluster, f.coming)
			if err != nil || (len(got) == 1) != tc.want {
				t.Errorf("%s: outstanding are %v, %v; want one: %t", tc.reason, got, err, tc.want)
			}
		})
	}
}
