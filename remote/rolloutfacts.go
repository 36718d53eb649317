package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/rollout"
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
	// observed is the newest revision of the source of which it is known what they would get.
	observed string
	// digests are the same of what another environment proved, by its commit.
	digests map[string]string
	// again is when to look again although nothing changes; zero for never.
	again time.Duration
	// held is why the image of the layer is no candidate; nil if it may be one.
	held error
}

// facts gathers the facts about a Rollout. An error with a reason is the Rollout's own.
func (r *Rollouts) facts(ctx context.Context, o *v1alpha1.Rollout) (*rolloutFacts, error) {
	if why := o.Annotations[v1alpha1.UnreadAnnotation]; why != "" {
		// With what is missing of its spec, it would decide something else than is written there.
		return nil, reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("%s: nothing is decided, and clusters keep what they have, until it is corrected", why))
	}
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
	if !asClusters(list.Items, r.Clusters, append(selectorsOf(all), m.selectors()...)...) {
		return nil, errNotListed
	}
	f.Written, f.Watching = r.lastWritten(client.ObjectKeyFromObject(o)), r.watching(client.ObjectKeyFromObject(o))
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for i := range list.Items {
		child := &list.Items[i]
		if r.lags(writtenKey{true, client.ObjectKeyFromObject(child)}, child) {
			return nil, errLags
		}
		if !rollout.Governs(o, child.Labels) || !child.DeletionTimestamp.IsZero() || !m.takes(child) {
			if slices.ContainsFunc(child.Status.Rollouts, func(c v1alpha1.ChildRollout) bool { return c.Name == o.Name }) {
				f.others = append(f.others, child)
			}
			continue
		}
		pin := rollout.OnRecord(child, rollout.MoverOf(o))
		if names := rivals(all, o, child); len(names) > 0 {
			return nil, reason.Because(v1alpha1.ReasonRolloutConflict, fmt.Errorf("cluster %s gets the same from Rollout %s: nothing is decided until their clusterSelectors have none in common", child.Name, names[0]))
		}
		f.children[child.Name] = child
		f.Clusters = append(f.Clusters, r.cluster(asking, o, m, child, pin))
	}
	switch f.held = parentBefore(m.image, r.Version); {
	case f.held != nil:
		f.Candidate, f.digest, f.observed, _ = m.before(o)
	case o.Spec.Upstream != nil:
		f.Upstream, f.digests, err = r.upstream(ctx, o, m)
	default:
		f.Candidate, f.digest, f.observed, err = r.candidate(ctx, o, m)
	}
	if err != nil {
		return nil, err
	}
	switch why := m.idle(); {
	case why != "":
		f.Blocked = rollout.Hold{Reason: v1alpha1.ReasonSourceNotReady, Message: why}
	case m.layer != nil && m.layer.Spec.Suspend:
		f.Blocked = rollout.Hold{Reason: v1alpha1.ReasonSuspended, Message: m.suspended()}
	}
	f.TooNew = tooNew(r.Version, o, f.Candidate)
	f.again, f.Unread = m.again, m.unread
	if is := r.exchange.about(o, m.from); is != nil {
		f.Requests.Approvals = append(f.Requests.Approvals, is.approvals...)
	}
	f.refusals(asking, o, m)
	f.barriers(r, o, m)
	if f.Room = -1; r.MaxChanging > 0 {
		changing, err := r.changing(ctx)
		if err != nil {
			return nil, err
		}
		f.Room = max(r.MaxChanging-changing, 0)
	}
	return f, nil
}

// tooNew are the images of what clusters could be given that a version of this program may not bring. A Layer that names
// one says nothing of what they are to go back to, nor of what a run brings.
func tooNew(version string, o *v1alpha1.Rollout, candidate *v1alpha1.RolloutRevision) map[string]string {
	images := map[string]string{}
	for _, r := range givenNext(o, candidate) {
		if err := parentBefore(r.Image, version); err != nil {
			images[r.Image] = err.Error()
		}
	}
	return images
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

// changing counts the clusters of the tier that Rollouts are changing. One that is gone changes
// nothing any more, nor does one that cannot be decided about change what it began beyond the
// deadline of that: nobody judges it.
func (r *Rollouts) changing(ctx context.Context) (int, error) {
	all, err := r.rollouts.list(ctx, r.Client, metav1.NamespaceAll)
	if err != nil {
		return 0, err
	}
	list := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("cannot list Children: %w", err)
	}
	n := 0
	for i := range list.Items {
		child := &list.Items[i]
		if r.lags(writtenKey{true, client.ObjectKeyFromObject(child)}, child) {
			return 0, errLags
		}
		for j := range all {
			pin := rollout.OnRecord(child, rollout.MoverOf(&all[j]))
			if all[j].Namespace == child.Namespace && pin != nil && pin.Result == v1alpha1.ResultUpdating && !rollout.Overdue(&all[j], r.changesSince(&all[j], child, pin), r.Now()) {
				n++
				break
			}
		}
	}
	return n, nil
}

// changesSince is since when a cluster may be changing for its pin, which has to reach it first: it has its deadline from
// then on, and its place among those that change.
func (r *Rollouts) changesSince(o *v1alpha1.Rollout, child *v1alpha1.Child, pin *v1alpha1.ChildRollout) time.Time {
	since, ref := pin.Since.Time, o.Spec.Moves.KustomizationRef
	if o.Spec.Moves.LayerRef != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if over := r.barriers[client.ObjectKeyFromObject(o)][pin.Revision].over; over.After(since) {
			return over
		}
	}
	if ref == nil || r.Compositions == nil || child.Spec.ClusterRef == nil {
		return since
	}
	if composed := r.Compositions.Of(types.NamespacedName{Namespace: o.Namespace, Name: ref.Name}); composed != nil {
		if _, reached := composed.Reached(clusterOf(child), pin.Revision); reached.After(since) {
			return reached
		}
	}
	return since
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

// candidate is the newest revision that clusters could get, and what identifies it. What
// does not touch what they get is no candidate: the one before stays, and observed is the
// revision that was looked at last.
func (r *Rollouts) candidate(ctx context.Context, o *v1alpha1.Rollout, m *moved) (is *v1alpha1.RolloutRevision, digest, observed string, err error) {
	before, known := o.Status.Candidate, o.Status.CandidateDigest
	if m.from.Name == "" { // a Layer without a source has an agent to move
		return &v1alpha1.RolloutRevision{Image: m.image}, "", "", nil
	}
	if m.from.Kind == sourcev1.HelmChartKind {
		switch revision, err := r.chartVersion(ctx, m.from); {
		case err != nil:
			return nil, "", "", err
		case revision == "":
			return m.before(o)
		default:
			return &v1alpha1.RolloutRevision{Revision: revision}, "", revision, nil
		}
	}
	if err := r.mayUse(ctx, m); err != nil {
		return nil, "", "", err
	}
	newest := r.Snapshots.Get(m.from)
	if newest == nil {
		if before == nil {
			return nil, "", "", reason.Because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("%s %s has not been fetched yet", m.from.Kind, m.from.NamespacedName))
		}
		return m.before(o)
	}
	if m.composed != nil && !m.composed.Built(newest.Revision) {
		// Before it is known which versions a revision declares, nobody may have it. What cannot
		// be built never is a candidate: the Kustomization says why.
		return m.before(o)
	}
	touched, err := r.touches(ctx, o, m, newest, before)
	if errors.Is(err, errUnread) {
		return m.before(o)
	}
	if err != nil {
		return nil, "", "", err
	}
	if before != nil && before.Image == m.image && touched == known {
		return before, known, newest.Revision, nil
	}
	return &v1alpha1.RolloutRevision{Revision: newest.Revision, Image: m.image}, touched, newest.Revision, nil
}

// before is the candidate of before, as nobody can tell yet whether there is another one.
func (m *moved) before(o *v1alpha1.Rollout) (is *v1alpha1.RolloutRevision, digest, observed string, err error) {
	m.unread = true
	return o.Status.Candidate, o.Status.CandidateDigest, o.Status.ObservedRevision, nil
}

// chartVersion is the newest version of a HelmChart; empty while there is none. Where this process
// fetches it, its snapshot tells: who is woken by that may find an old status. Where another one
// does, as Flux's, its status wakes.
func (r *Rollouts) chartVersion(ctx context.Context, of source.Key) (version string, err error) {
	chart := &sourcev1.HelmChart{}
	err = r.Client.Get(ctx, of.NamespacedName, chart)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("cannot read HelmChart %s: %w", of.NamespacedName, err)
	}
	if r.followCharts != nil {
		if err := r.followCharts(); err != nil {
			return "", err
		}
	}
	newest := r.Snapshots.Get(of)
	switch {
	case err != nil:
		return "", reason.Because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("there is no HelmChart %s: correct spec.sourceRef, or create it", of.NamespacedName))
	case newest != nil:
		version = newest.Revision
	case chart.Status.Artifact != nil:
		version = chart.Status.Artifact.Revision
	}
	if len(chart.Spec.ValuesFiles) > 0 {
		// The generation of this HelmChart tells clusters nothing.
		version, _, _ = strings.Cut(version, "+")
	}
	return version, nil
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
