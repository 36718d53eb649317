package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// rolloutFacts are what one decision is made from.
type rolloutFacts struct {
	rollout.Facts
	children map[string]*v1alpha1.Child
	// others do not take part, and have something of the Rollout on record.
	others []*v1alpha1.Child
	// from is the source whose revisions they are; digest identifies what clusters get of
	// the candidate.
	from   source.Key
	digest string
	// digests are the same of what another environment proved, by its commit.
	digests map[string]string
	// held is why no further cluster may begin, whatever is decided otherwise; nil if
	// they may.
	held error
}

// moved is what a Rollout moves, and of where.
type moved struct {
	spec *v1alpha1.RolloutSpec
	// layers of the namespace, and the one that is moved, if one is.
	layers []v1alpha1.Layer
	layer  *v1alpha1.Layer
	// composed is what Clusters the Kustomization declares, if one is moved.
	composed Composition
	from     source.Key
	image    string
}

// facts gathers the facts about a Rollout. An error with a reason is the Rollout's own.
func (r *Rollouts) facts(ctx context.Context, o *v1alpha1.Rollout) (*rolloutFacts, error) {
	if err := rollout.Check(&o.Spec); err != nil {
		return nil, reason.Because(v1alpha1.ReasonInvalidSpec, err)
	}
	all, err := r.rollouts.list(ctx, r.Client, o.Namespace)
	if err != nil {
		return nil, err
	}
	m, err := r.moved(ctx, o)
	if err != nil {
		return nil, err
	}
	f := &rolloutFacts{children: map[string]*v1alpha1.Child{}, from: m.from}
	f.UID, f.Requests = o.UID, requestsOf(o.Annotations)
	list := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, list, client.InNamespace(o.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list Children: %w", err)
	}
	if err := r.catchUp(ctx, o, list.Items); err != nil {
		return nil, err
	}
	for i := range list.Items {
		child := &list.Items[i]
		if r.lags(writtenKey{true, client.ObjectKeyFromObject(child)}, child) {
			return nil, errLags
		}
		pin := pinOf(child, o.Name)
		if !rollout.Governs(o, child.Labels) || !child.DeletionTimestamp.IsZero() || !m.takes(child) {
			if pin != nil {
				f.others = append(f.others, child)
			}
			continue
		}
		if names := rivals(all, o, child); len(names) > 0 {
			return nil, reason.Because(v1alpha1.ReasonRolloutConflict, fmt.Errorf("cluster %s gets the same from Rollout %s: nothing is decided until their clusterSelectors have none in common", child.Name, names[0]))
		}
		f.children[child.Name] = child
		f.Clusters = append(f.Clusters, r.cluster(o, m, child, pin))
	}
	switch f.held = parentBefore(m.image, r.Version); {
	case f.held != nil:
		f.Candidate, f.digest = o.Status.Candidate, o.Status.CandidateDigest
	case o.Spec.Upstream != nil:
		f.Upstream, f.digests, err = r.upstream(ctx, o, m)
	default:
		f.Candidate, f.digest, err = r.candidate(ctx, o, m)
	}
	if err != nil {
		return nil, err
	}
	if is := r.exchange.of(client.ObjectKeyFromObject(o)); is != nil {
		f.Requests.Approvals = append(f.Requests.Approvals, is.approvals...)
	}
	f.refusals(o, m)
	if f.Room = -1; r.MaxChanging > 0 {
		changing, err := r.changing(ctx)
		if err != nil {
			return nil, err
		}
		f.Room = max(r.MaxChanging-changing, 0)
	}
	return f, nil
}

// catchUp has the first decision of this process made from what the API server has: another
// process may have written a moment ago.
func (r *Rollouts) catchUp(ctx context.Context, o *v1alpha1.Rollout, cached []v1alpha1.Child) error {
	key := client.ObjectKeyFromObject(o)
	r.mu.Lock()
	known := r.caught[key]
	r.mu.Unlock()
	if known {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ChildList"))
	if err := r.Reader.List(ctx, list, client.InNamespace(o.Namespace)); err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	live := &v1alpha1.Rollout{}
	if err := r.Reader.Get(ctx, key, live); err != nil {
		return fmt.Errorf("cannot read Rollout %s: %w", key, err)
	}
	r.wrote(writtenKey{NamespacedName: key}, live)
	for i := range list.Items {
		r.wrote(writtenKey{true, client.ObjectKeyFromObject(&list.Items[i])}, &list.Items[i])
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.caught == nil {
		r.caught = map[types.NamespacedName]bool{}
	}
	r.caught[key] = true
	if len(cached) != len(list.Items) {
		return errLags
	}
	return nil
}

// changing counts the clusters of the tier that Rollouts are changing.
func (r *Rollouts) changing(ctx context.Context) (int, error) {
	list := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("cannot list Children: %w", err)
	}
	n := 0
	for i := range list.Items {
		for _, p := range list.Items[i].Status.Rollouts {
			if p.Result == v1alpha1.ResultUpdating {
				n++
				break
			}
		}
	}
	return n, nil
}

// pinOf is what is on record of a Rollout for a child.
func pinOf(child *v1alpha1.Child, name string) *v1alpha1.ChildRollout {
	for i := range child.Status.Rollouts {
		if p := &child.Status.Rollouts[i]; p.Name == name {
			return p
		}
	}
	return nil
}

// rivals are other Rollouts that move the same for a child.
func rivals(all []v1alpha1.Rollout, o *v1alpha1.Rollout, child *v1alpha1.Child) []string {
	var names []string
	for i := range all {
		other := &all[i]
		if other.UID != o.UID && sameMoves(&other.Spec.Moves, &o.Spec.Moves) && rollout.Governs(other, child.Labels) {
			names = append(names, other.Name)
		}
	}
	return names
}

func sameMoves(a, b *v1alpha1.RolloutMoves) bool {
	switch {
	case a.LayerRef != nil && b.LayerRef != nil:
		return *a.LayerRef == *b.LayerRef
	case a.Source != nil && b.Source != nil:
		return *a.Source == *b.Source
	case a.KustomizationRef != nil && b.KustomizationRef != nil:
		return *a.KustomizationRef == *b.KustomizationRef
	}
	return false
}

func requestsOf(annotations map[string]string) rollout.Requests {
	return rollout.Requests{
		Approvals: rollout.Approvals(annotations),
		Abort:     annotations[v1alpha1.AbortRolloutAnnotation],
		Revert:    annotations[v1alpha1.RevertRolloutAnnotation],
		Retry:     annotations[v1alpha1.RetryRolloutAnnotation],
	}
}

// moved finds what a Rollout moves.
func (r *Rollouts) moved(ctx context.Context, o *v1alpha1.Rollout) (*moved, error) {
	m := &moved{spec: &o.Spec}
	switch moves := &o.Spec.Moves; {
	case moves.KustomizationRef != nil:
		return m, r.movedClusters(ctx, o, m)
	case moves.Source != nil:
		ref := o.Spec.SourceRef
		m.from = source.Key{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: cmp.Or(ref.Namespace, o.Namespace), Name: ref.Name}}
		if m.from.Namespace != o.Namespace && r.NoCrossNamespaceRefs {
			return nil, reason.Because(v1alpha1.ReasonAccessDenied, fmt.Errorf("cannot use %s %s of another namespace: the agent has --no-cross-namespace-refs", ref.Kind, m.from.NamespacedName))
		}
		if kind := kindOfRevisions(moves.Source.Kind); kind != ref.Kind {
			return nil, reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("the revisions of a %s cannot pin a %s: name a %s in spec.sourceRef", ref.Kind, moves.Source.Kind, kind))
		}
	}
	list := &v1alpha1.LayerList{}
	if err := r.Client.List(ctx, list, client.InNamespace(o.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list Layers: %w", err)
	}
	m.layers = list.Items
	if ref := o.Spec.Moves.LayerRef; ref != nil {
		i := slices.IndexFunc(m.layers, func(l v1alpha1.Layer) bool { return l.Name == ref.Name })
		if i < 0 {
			return nil, reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("there is no Layer %s: correct spec.moves.layerRef, or create the Layer", ref.Name))
		}
		m.layer = &m.layers[i]
		var err error
		if m.image, err = imageOf(m.layer); err != nil {
			return nil, err
		}
		if m.layer.Spec.SourceRef != nil {
			m.from = layerSource(m.layer)
			if m.from.Kind == sourcev1.BucketKind {
				return nil, reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("the Layer's source is a Bucket, which keeps no older revisions: move it to a GitRepository or an OCIRepository"))
			}
		}
	}
	return m, nil
}

// kindOfRevisions is the kind of a source that tells the revisions for an object.
func kindOfRevisions(pinned string) string {
	if pinned == "HelmRelease" {
		return sourcev1.HelmChartKind
	}
	return pinned
}

// takes reports whether a child has what the Rollout moves. Which objects a layer brings is
// not known before it is rendered: a source is in all children that any layer selects.
func (m *moved) takes(child *v1alpha1.Child) bool {
	switch {
	case m.layer != nil:
		return Selects(m.layer, child.Labels)
	case m.composed != nil:
		return child.Spec.ClusterRef != nil && m.composed.Declares(clusterOf(child))
	}
	return slices.ContainsFunc(m.layers, func(l v1alpha1.Layer) bool { return Selects(&l, child.Labels) })
}

// cluster are the facts about one child.
func (r *Rollouts) cluster(o *v1alpha1.Rollout, m *moved, child *v1alpha1.Child, pin *v1alpha1.ChildRollout) rollout.Cluster {
	c := m.cluster(o, child, pin)
	if c.Rolling = r.rolling(child); m.composed != nil {
		m.ofComposition(child, pin, &c)
		c.Ready = c.Ready && c.Below <= pin.Below
	}
	return c
}

// cluster are the facts about one child that its Child tells.
func (m *moved) cluster(o *v1alpha1.Rollout, child *v1alpha1.Child, pin *v1alpha1.ChildRollout) rollout.Cluster {
	c := rollout.Cluster{
		Name: child.Name, UID: child.UID, Labels: child.Labels, Pin: pin, Skip: rollout.Skip(child.Annotations, o.Name),
		Unreachable: lostSince(child), Healthy: meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) && child.Status.HeardAt == nil,
		Below: notReadyBelow(child),
	}
	switch {
	case m.layer != nil:
		m.ofLayer(child, pin, &c)
	case m.spec.Moves.Source != nil:
		m.ofSource(child, pin, &c)
	}
	// A tier is done when its own are as well as they were.
	c.Ready = c.Ready && c.Below <= pin.Below
	return c
}

// proven says of each revision that the child was given, and is ready at by now, that it
// succeeded: with the write that says so of the layer, rather than with one of its own. The
// reconciler of Rollouts finds the same, should nothing else be written.
func (r *run) proven(selected []*v1alpha1.Layer) {
	for _, o := range r.governing {
		pin := pinOf(r.child, o.Name)
		if pin == nil || pin.Result != v1alpha1.ResultUpdating || o.Spec.Moves.KustomizationRef != nil {
			continue
		}
		m := &moved{spec: &o.Spec}
		if ref := o.Spec.Moves.LayerRef; ref != nil {
			i := slices.IndexFunc(selected, func(l *v1alpha1.Layer) bool { return l.Name == ref.Name })
			if i < 0 {
				continue
			}
			m.layer = selected[i]
		}
		if c := m.cluster(o, r.child, pin); c.Ready && c.Unreachable.IsZero() {
			pin.Result, pin.Reason, pin.Since = v1alpha1.ResultSucceeded, "", metav1.NewTime(r.Now())
		}
	}
}

// notReadyBelow counts the clusters below a child that are not ready, though they can be
// reached, and those to which it is still bringing something.
func notReadyBelow(child *v1alpha1.Child) int32 {
	n := int32(0)
	if below := report.CountsBelow(child); below != nil {
		n = below.Total - below.Ready - below.Suspended - below.Stale
	}
	if said := child.Status.Report; said != nil && said.Rollouts != nil {
		n += said.Rollouts.Pending
	}
	return max(n, 0)
}

// lostSince is since when a child cannot be reached; zero if it can.
func lostSince(child *v1alpha1.Child) time.Time {
	if child.Status.HeardAt != nil {
		return child.Status.HeardAt.Time
	}
	switch c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition); {
	case c == nil:
		return child.CreationTimestamp.Time
	case c.Status != metav1.ConditionTrue:
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// rolling is why the cluster of a child is changing by itself; empty if it is not.
func (r *Rollouts) rolling(child *v1alpha1.Child) string {
	if child.Spec.ClusterRef == nil {
		return ""
	}
	u, ok := r.Clusters.Get(types.NamespacedName{Namespace: child.Namespace, Name: child.Spec.ClusterRef.Name})
	if !ok {
		return ""
	}
	_, reason, _ := capibridge.FromObject(u).Rolling(capibridge.Facts{})
	return reason
}

// ofLayer are the facts about a layer on a child.
func (m *moved) ofLayer(child *v1alpha1.Child, pin *v1alpha1.ChildRollout, c *rollout.Cluster) {
	entry := entryOf(child, m.layer.Name)
	if entry == nil {
		return
	}
	// What an entry says of a child that this process has not asked yet is on record there.
	c.Known = entry.Revision != "" || entry.Digest != "" || entry.Reason == v1alpha1.ReasonRolloutPending
	if entry.Digest != "" || entry.Revision != "" {
		c.Has = &v1alpha1.RolloutRevision{Revision: entry.Revision, Image: cmp.Or(entry.AgentImage, m.image)}
	}
	c.Ready = pin != nil && c.Healthy && entry.Ready && !entry.Suspended && entry.Revision == pin.Revision && entry.AgentImage == pin.Image
}

// ofSource are the facts about a source in a child.
func (m *moved) ofSource(child *v1alpha1.Child, pin *v1alpha1.ChildRollout, c *rollout.Cluster) {
	said := child.Status.Report
	if said == nil {
		// A child without a report is new if nothing of its layers is in place.
		c.Known = len(child.Status.Layers) > 0 && !slices.ContainsFunc(child.Status.Layers, func(l v1alpha1.ChildLayer) bool { return l.Digest != "" })
		return
	}
	revision, tells := report.RevisionOf(said, m.spec.Moves.Source.Name)
	if c.Known = tells || said.Revision == ""; revision != "" {
		c.Has = &v1alpha1.RolloutRevision{Revision: revision}
	}
	c.Ready = pin != nil && c.Healthy && said.Ready && sameContent(revision, pin.Revision)
}

// sameContent reports whether two revisions are the same commit or digest, however a source
// found it.
func sameContent(a, b string) bool { return a != "" && rollout.Content(a) == rollout.Content(b) }

// candidate is the newest revision that clusters could get, and what identifies it. What
// does not touch what they get is no candidate: the one before stays.
func (r *Rollouts) candidate(ctx context.Context, o *v1alpha1.Rollout, m *moved) (*v1alpha1.RolloutRevision, string, error) {
	before, known := o.Status.Candidate, o.Status.CandidateDigest
	if m.from.Name == "" { // a Layer without a source has an agent to move
		return &v1alpha1.RolloutRevision{Image: m.image}, "", nil
	}
	if m.from.Kind == sourcev1.HelmChartKind {
		chart := &sourcev1.HelmChart{}
		err := r.Client.Get(ctx, m.from.NamespacedName, chart)
		switch {
		case apierrors.IsNotFound(err):
			return nil, "", reason.Because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("there is no HelmChart %s: correct spec.sourceRef, or create it", m.from.NamespacedName))
		case err != nil:
			return nil, "", err
		case chart.Status.Artifact == nil:
			return before, known, nil
		}
		return &v1alpha1.RolloutRevision{Revision: chart.Status.Artifact.Revision}, "", nil
	}
	if err := r.mayUse(ctx, m); err != nil {
		return nil, "", err
	}
	newest := r.Snapshots.Get(m.from)
	if newest == nil {
		if before == nil {
			return nil, "", reason.Because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("%s %s has not been fetched yet", m.from.Kind, m.from.NamespacedName))
		}
		return before, known, nil
	}
	if m.composed != nil && !m.composed.Built(newest.Revision) {
		// Before it is known which versions a revision declares, nobody may have it. What cannot
		// be built never is a candidate: the Kustomization says why.
		return before, known, nil
	}
	touched, err := r.touches(o, m, newest, before)
	if err != nil {
		return nil, "", err
	}
	if before != nil && before.Image == m.image && touched == known {
		return before, known, nil
	}
	return &v1alpha1.RolloutRevision{Revision: newest.Revision, Image: m.image}, touched, nil
}

// mayUse is an error if the account of the layer that is moved may not use its source.
func (r *Rollouts) mayUse(ctx context.Context, m *moved) error {
	if m.layer == nil {
		return nil
	}
	as, err := r.accounts.Of(ctx, m.layer)
	if err == nil {
		err = r.accounts.MayUse(ctx, m.layer, as, m.from)
	}
	if err != nil {
		return reason.Because(v1alpha1.ReasonSourceNotReady, err)
	}
	return nil
}

// touches identifies what clusters get of a snapshot: what the paths hold, or what the layer
// reads, as far as that is known.
func (r *Rollouts) touches(o *v1alpha1.Rollout, m *moved, newest *source.Snapshot, before *v1alpha1.RolloutRevision) (string, error) {
	paths := o.Spec.Paths
	if len(paths) == 0 && m.composed != nil {
		paths = m.composed.Paths()
	}
	if len(paths) == 0 && m.layer != nil && before != nil {
		if last := r.Snapshots.At(m.from, before.Revision); last != nil && r.contents.of(m.layer, last) == r.contents.of(m.layer, newest) {
			return o.Status.CandidateDigest, nil
		}
	}
	if len(paths) == 0 {
		return newest.Digest, nil
	}
	hashes := make(map[string]string, len(paths))
	for _, p := range paths {
		_, hash, err := newest.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", fmt.Errorf("cannot look at %s in %s: %w", p, newest.Revision, err)
		}
		hashes[p] = hash
	}
	text, err := json.Marshal(hashes)
	if err != nil {
		return "", err
	}
	return digest.Of(text).String(), nil
}

// retain keeps the revisions that clusters may get or go back to.
func (r *Rollouts) retain(o *v1alpha1.Rollout, f *rolloutFacts, d *rollout.Decision) {
	if f.from.Name == "" || f.from.Kind == sourcev1.HelmChartKind {
		return
	}
	var need []source.Pinned
	add := func(v v1alpha1.RolloutRevision) {
		if p := (source.Pinned{Key: f.from, Revision: v.Revision}); v.Revision != "" && !slices.Contains(need, p) {
			need = append(need, p)
		}
	}
	if c := d.Status.Candidate; c != nil {
		add(*c)
	}
	if run := d.Status.Run; run != nil && rollout.Active(run) {
		add(run.RolloutRevision)
	}
	if good := d.Status.LastGood; good != nil {
		add(good.RolloutRevision)
	}
	if newest := r.Snapshots.Get(f.from); d.Wanted != "" && newest != nil {
		add(v1alpha1.RolloutRevision{Revision: provenRevision(newest, d.Wanted)})
	}
	r.Snapshots.Retain(source.Holder{Kind: "Rollout", NamespacedName: client.ObjectKeyFromObject(o)}, need...)
}
