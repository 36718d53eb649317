package mom

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
)

// Facts are what a tier says about itself.
type Facts struct {
	// Sync is the Kustomization that syncs the tier, and the GitRepository that it gets it from.
	Sync types.NamespacedName
	// Request is what objects were asked for since this process runs, and say when the agent that
	// runs now has looked at them. What a cluster that goes on says before that, it says of
	// another time.
	Request string

	// Sources are those of all kinds, HelmCharts among them, but HelmRepositories of type oci:
	// of these nobody says anything.
	Sources        []Source
	Kustomizations []kustomizev1.Kustomization
	HelmReleases   []helmv2.HelmRelease
	Layers         []v1alpha1.Layer
	Children       []v1alpha1.Child
	Rollouts       []v1alpha1.Rollout
	// Clusters are what Cluster API has.
	Clusters []capibridge.Cluster
}

// Source is one of any kind.
type Source struct {
	Kind    string
	Object  conditioned
	Suspend bool
	// Handled is the request that it answered last.
	Handled string
	// Artifact is what it has; nil if it has nothing.
	Artifact *fluxmeta.Artifact
}

// Verdict is whether a tier may go.
type Verdict struct {
	// Ready: what Git declares is applied, each Cluster is there, and each child has what it
	// is to have.
	Ready bool `json:"ready"`
	// Waiting says what is not so yet.
	Waiting []string `json:"waiting,omitempty"`
	// Held says what waits for a person, and the command with which it goes on.
	Held []string `json:"held,omitempty"`
	// Depends says what goes on in the children only as long as this tier is there.
	Depends []string `json:"depends,omitempty"`
}

// Judge judges.
func Judge(f Facts) Verdict {
	var v Verdict
	v.Waiting = slices.Concat(f.objects(), f.clusters(), f.children())
	for _, item := range held.Of(held.Facts{
		Kustomizations: f.Kustomizations, HelmReleases: f.HelmReleases, Layers: f.Layers, Children: f.Children, Rollouts: f.Rollouts,
	}) {
		text := fmt.Sprintf("%s: %s: %s", item.Object(), item.Reason, item.Message)
		if len(item.Commands) > 0 {
			text += "; " + item.Commands[0]
		}
		v.Held = append(v.Held, text)
	}
	v.Depends = f.depends()
	for _, list := range []*[]string{&v.Waiting, &v.Held, &v.Depends} {
		slices.Sort(*list)
	}
	v.Ready = len(v.Waiting) == 0
	return v
}

// conditioned are objects that say how they are.
type conditioned interface {
	client.Object
	GetConditions() []metav1.Condition
}

// objects are those of which the last generation is not ready. What a person suspended is not
// waited for.
func (f Facts) objects() []string {
	var waiting []string
	look := func(kind string, o conditioned, suspended bool, more string) {
		if why := cmp.Or(notReady(o), more); why != "" && !suspended {
			waiting = append(waiting, fmt.Sprintf("%s/%s/%s: %s", kind, o.GetNamespace(), o.GetName(), why))
		}
	}
	synced := false
	for _, s := range f.Sources {
		look(s.Kind, s.Object, s.Suspend, f.unasked(s.Object, s.Handled))
	}
	for i := range f.Kustomizations {
		k := &f.Kustomizations[i]
		synced = synced || client.ObjectKeyFromObject(k) == f.Sync
		look(kustomizev1.KustomizationKind, k, k.Spec.Suspend, cmp.Or(f.unasked(k, k.Status.LastHandledReconcileAt), f.behind(k)))
	}
	if !synced {
		waiting = append(waiting, fmt.Sprintf("Kustomization/%s: it does not exist yet", f.Sync))
	}
	for i := range f.HelmReleases {
		h := &f.HelmReleases[i]
		look(helmv2.HelmReleaseKind, h, h.Spec.Suspend, f.unasked(h, h.Status.LastHandledReconcileAt))
	}
	for i := range f.Layers {
		look("Layer", &f.Layers[i], f.Layers[i].Spec.Suspend, f.unpushed(&f.Layers[i]))
	}
	return waiting
}

// unasked is why an object says nothing about now.
func (f Facts) unasked(o client.Object, handled string) string {
	if asked := o.GetAnnotations()[fluxmeta.ReconcileRequestAnnotation]; !f.isAsked(o) || handled != asked {
		return "it is not looked at yet"
	}
	return ""
}

// isAsked reports whether an object was asked by this process, or by a person since.
func (f Facts) isAsked(o client.Object) bool {
	asked := o.GetAnnotations()[fluxmeta.ReconcileRequestAnnotation]
	if asked == f.Request {
		return true
	}
	since, err := time.Parse(time.RFC3339Nano, f.Request)
	at, later := time.Parse(time.RFC3339Nano, asked)
	return err == nil && later == nil && at.After(since)
}

// root are the objects that sync the tier, nil where they do not exist.
func (f Facts) root() (source *Source, sync *kustomizev1.Kustomization) {
	for i := range f.Sources {
		if s := &f.Sources[i]; s.Kind == sourcev1.GitRepositoryKind && client.ObjectKeyFromObject(s.Object) == f.Sync {
			source = s
		}
	}
	for i := range f.Kustomizations {
		if k := &f.Kustomizations[i]; client.ObjectKeyFromObject(k) == f.Sync {
			sync = k
		}
	}
	return source, sync
}

// current reports whether the tier has what its repository has now.
func (f Facts) current() bool {
	source, sync := f.root()
	return source != nil && sync != nil && f.unasked(source.Object, source.Handled) == "" &&
		f.unasked(sync, sync.Status.LastHandledReconcileAt) == "" && f.behind(sync) == ""
}

// toAsk are the objects that were not asked yet. They are when the tier has what its repository
// has now: the agent of before may have left all of them ready. Charts are asked when all sources
// have answered, and HelmReleases when all charts have: each is made of those before. Layers are not asked: each of
// their children would be compared whole, and one that manages itself does not answer.
func (f Facts) toAsk() []client.Object {
	if !f.current() {
		return nil
	}
	var all []client.Object
	for i := range f.Kustomizations {
		if !f.Kustomizations[i].Spec.Suspend {
			all = append(all, &f.Kustomizations[i])
		}
	}
	for i := range f.Rollouts {
		if !f.Rollouts[i].Spec.Suspend {
			all = append(all, &f.Rollouts[i])
		}
	}
	for i := range f.Children {
		if !f.Children[i].Spec.Suspend {
			all = append(all, &f.Children[i])
		}
	}
	answered := true
	for _, charts := range []bool{false, true} {
		if !answered {
			break
		}
		for _, s := range f.Sources {
			if s.Suspend || (s.Kind == sourcev1.HelmChartKind) != charts {
				continue
			}
			all = append(all, s.Object)
			answered = answered && f.unasked(s.Object, s.Handled) == ""
		}
	}
	for i := range f.HelmReleases {
		if answered && !f.HelmReleases[i].Spec.Suspend {
			all = append(all, &f.HelmReleases[i])
		}
	}
	return slices.DeleteFunc(all, f.isAsked)
}

// behind is why a Kustomization that is ready does not have what its repository has now.
func (f Facts) behind(k *kustomizev1.Kustomization) string {
	source := types.NamespacedName{Namespace: cmp.Or(k.Spec.SourceRef.Namespace, k.Namespace), Name: k.Spec.SourceRef.Name}
	if revision := f.revisionOf(k.Spec.SourceRef.Kind, source); revision != "" && revision != k.Status.LastAppliedRevision {
		return "revision " + revision + " is not applied yet"
	}
	return ""
}

// unpushed is why a Layer that is ready on all of its children is not so with what its repository
// has now. Where a Rollout moves it, that one was asked.
func (f Facts) unpushed(l *v1alpha1.Layer) string {
	for i := range f.Rollouts {
		o := &f.Rollouts[i]
		if ref := o.Spec.Moves.LayerRef; ref == nil || ref.Name != l.Name || o.Namespace != l.Namespace {
			continue
		}
		if o.Spec.Suspend || meta.IsStatusConditionFalse(o.Status.Conditions, v1alpha1.ReadyCondition) {
			return "" // it says so itself
		}
		return f.unasked(o, o.Status.LastHandledReconcileAt)
	}
	if l.Spec.SourceRef == nil || l.Status.Children.Total == 0 {
		return ""
	}
	source := types.NamespacedName{Namespace: cmp.Or(l.Spec.SourceRef.Namespace, l.Namespace), Name: l.Spec.SourceRef.Name}
	if revision := f.revisionOf(l.Spec.SourceRef.Kind, source); revision != "" && revision != l.Status.Revision {
		return "revision " + revision + " is not in place yet"
	}
	return ""
}

// revisionOf a source; empty if it is not known.
func (f Facts) revisionOf(kind string, name types.NamespacedName) string {
	for _, s := range f.Sources {
		if s.Kind == kind && client.ObjectKeyFromObject(s.Object) == name && s.Artifact != nil {
			return s.Artifact.Revision
		}
	}
	return ""
}

// notReady is why an object is not, empty if it is.
func notReady(o conditioned) string {
	c := meta.FindStatusCondition(o.GetConditions(), v1alpha1.ReadyCondition)
	switch {
	case c == nil:
		return "nothing is said about it yet"
	case c.ObservedGeneration < o.GetGeneration():
		return "it was changed, and is not looked at yet"
	case c.Status != metav1.ConditionTrue:
		return cmp.Or(c.Reason, string(c.Status)) + ": " + c.Message
	}
	return ""
}

// clusters are those that a layer selects and that are no children yet, and those that none selects and that are not built
// yet: their providers go with this tier, and nobody would go on with what is half there.
func (f Facts) clusters() []string {
	children := map[types.NamespacedName]*v1alpha1.Child{}
	for i := range f.Children {
		// One without clusterRef is another cluster's, whatever its name.
		if child := &f.Children[i]; child.Spec.ClusterRef != nil {
			children[types.NamespacedName{Namespace: child.Namespace, Name: child.Spec.ClusterRef.Name}] = child
		}
	}
	var waiting []string
	for i := range f.Clusters {
		cluster := &f.Clusters[i]
		child := children[types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}]
		selected := slices.ContainsFunc(f.Layers, func(l v1alpha1.Layer) bool { return selects(&l, cluster.Namespace, cluster.Labels) })
		why := ""
		switch {
		case cluster.Deleting:
		case selected && child == nil:
			why = "it is no child yet"
		case selected, cluster.Paused, child != nil && child.Spec.Suspend: // as the child says, or a person
		case !cluster.InfrastructureProvisioned:
			why = "its infrastructure is not provisioned yet"
		case !cluster.ControlPlaneInitialized:
			why = "its control plane is not initialized yet"
		}
		if why != "" {
			waiting = append(waiting, fmt.Sprintf("Cluster/%s/%s: %s", cluster.Namespace, cluster.Name, why))
		}
	}
	return waiting
}

// selects reports whether a layer that is not suspended selects a Cluster, or the Child of one, with
// these labels. An empty selector selects nothing.
func selects(layer *v1alpha1.Layer, namespace string, of map[string]string) bool {
	s := &layer.Spec.ClusterSelector
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 && layer.Namespace == namespace && !layer.Spec.Suspend &&
		selector.Matches(labels.Set(of))
}

func (f Facts) children() []string {
	var waiting []string
	for i := range f.Children {
		child := &f.Children[i]
		if why := cmp.Or(f.unready(child), f.unasked(child, child.Status.LastHandledReconcileAt), f.unmoved(child)); why != "" && !child.Spec.Suspend {
			waiting = append(waiting, fmt.Sprintf("Child/%s/%s: %s", child.Namespace, child.Name, why))
		}
	}
	return waiting
}

// unready is why a child is not. One that is not because a person suspended a layer before it was in place says only that,
// for as long as it is so: then its other layers count, and what its agent reports.
func (f Facts) unready(child *v1alpha1.Child) string {
	status := &child.Status
	is := meta.FindStatusCondition(status.Conditions, v1alpha1.ReadyCondition)
	switch {
	case f.leftAlone(child):
		return ""
	case is == nil || is.Reason != v1alpha1.ReasonSuspended || is.ObservedGeneration < child.Generation ||
		meta.IsStatusConditionTrue(status.Conditions, v1alpha1.SeededCondition): // else all below it is suspended, as its agent reports
		return notReady(child)
	}
	for _, entry := range status.Layers {
		if !entry.Ready && !slices.ContainsFunc(f.Layers, func(l v1alpha1.Layer) bool {
			return l.Namespace == child.Namespace && l.Name == entry.Name && l.Spec.Suspend
		}) {
			return fmt.Sprintf("layer %s: %s: %s", entry.Name, entry.Reason, entry.Message)
		}
	}
	withAgent := false
	for i := range f.Layers {
		l := &f.Layers[i]
		if !l.DeletionTimestamp.IsZero() || !selects(l, child.Namespace, child.Labels) {
			continue
		}
		if !slices.ContainsFunc(status.Layers, func(entry v1alpha1.ChildLayer) bool { return entry.Name == l.Name }) {
			return "layer " + l.Name + " is not looked at yet"
		}
		withAgent = withAgent || l.Spec.Agent != nil
	}
	switch report := status.Report; {
	case status.HeardAt != nil:
		return "it was last heard of at " + status.HeardAt.UTC().Format(time.RFC3339)
	case report == nil && withAgent:
		return "its agent has not reported yet"
	case report != nil && !report.Ready:
		return report.Reason + ": " + report.Message
	}
	return ""
}

// leftAlone reports whether a child is one that no layer selects, as its agent says and the layers do: all Clusters
// are children, and such a one is not ready for as long as nobody wants it.
func (f Facts) leftAlone(child *v1alpha1.Child) bool {
	is := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
	return is != nil && is.Reason == v1alpha1.ReasonNoLayer && is.ObservedGeneration >= child.Generation &&
		!slices.ContainsFunc(f.Layers, func(l v1alpha1.Layer) bool { return selects(&l, child.Namespace, child.Labels) })
}

// unmoved is why the Cluster of a child is not managed by whom a layer says: this tier moves it,
// and nobody else would go on with one that is half way.
func (f Facts) unmoved(child *v1alpha1.Child) string {
	if child.Spec.ClusterRef == nil {
		return ""
	}
	is := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ManagementCondition)
	if is != nil && is.Status != metav1.ConditionTrue {
		return "Management: " + is.Reason + ": " + is.Message
	}
	wanted := map[v1alpha1.Management]string{v1alpha1.ManagementSelf: v1alpha1.ReasonManagedElsewhere, v1alpha1.ManagementParent: v1alpha1.ReasonManagedHere}
	for i := range f.Layers {
		l := &f.Layers[i]
		reason, declares := wanted[l.Spec.Management]
		if declares && l.DeletionTimestamp.IsZero() && selects(l, child.Namespace, child.Labels) && (is == nil || is.Reason != reason) {
			return fmt.Sprintf("Management: Layer %s declares %s, which is not looked at yet", l.Name, l.Spec.Management)
		}
	}
	return ""
}

// depends says what of the children this tier does for them.
func (f Facts) depends() []string {
	withAgent := map[types.NamespacedName]bool{}
	for i := range f.Layers {
		if f.Layers[i].Spec.Agent != nil {
			withAgent[client.ObjectKeyFromObject(&f.Layers[i])] = true
		}
	}
	var depends []string
	for i := range f.Children {
		child := &f.Children[i]
		if len(child.Status.Layers) > 0 && !slices.ContainsFunc(child.Status.Layers, func(l v1alpha1.ChildLayer) bool {
			return withAgent[types.NamespacedName{Namespace: child.Namespace, Name: l.Name}]
		}) {
			depends = append(depends, fmt.Sprintf("Child/%s/%s: it has no agent of its own, and gets what Git says only from here", child.Namespace, child.Name))
		}
		for _, credential := range child.Status.Credentials {
			if credential.ExpiresAt != nil {
				depends = append(depends, fmt.Sprintf("Child/%s/%s: credential %s lapses at %s unless it is renewed from here",
					child.Namespace, child.Name, credential.Name, credential.ExpiresAt.UTC().Format(time.RFC3339)))
			}
		}
	}
	return depends
}
