package claim

import (
	"context"
	"fmt"
	"slices"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// Declarer tells what the owners of one kind declare. It is safe for concurrent use and
// writes nothing.
type Declarer interface {
	// Declares tells what an owner declares at the revision that its source has in a view.
	// The owner may not exist yet. whole: it is told of one that is settled, too.
	Declares(ctx context.Context, owner client.Object, view *source.View, whole bool) Declaration
}

// Declaration is what an owner declares.
type Declaration struct {
	// Settled: all of it is in its inventory. Nothing else is set then, unless the
	// whole was asked for.
	Settled bool
	// Entries as the manifests have them: that of a cluster-scoped object may have a
	// namespace.
	Entries []inventory.Entry
	// Ahead are entries that it has at that revision and does not declare yet: a Rollout lets their Clusters have
	// them later, perhaps in days. What moves to it from another owner is not to be deleted in between.
	Ahead []inventory.Entry
	// Owners are the Kustomizations and HelmReleases among both, Layers those among Entries.
	Owners, Layers []*unstructured.Unstructured
	// Unknown is why it is not known what the owner declares; nil if it is.
	// Passing: it will be known soon.
	Unknown error
	Passing bool
}

// DeclarationOf is the declaration of objects, of which a Rollout holds some back.
func DeclarationOf(objects, ahead []*unstructured.Unstructured) Declaration {
	d := Declaration{Entries: inventory.OfAll(objects), Ahead: inventory.OfAll(ahead)}
	for _, u := range slices.Concat(objects, ahead) {
		if IsOwner(u.GroupVersionKind().GroupKind()) {
			d.Owners = append(d.Owners, &unstructured.Unstructured{Object: u.Object})
		}
	}
	for _, u := range objects {
		if isLayer(u.GroupVersionKind().GroupKind()) {
			d.Layers = append(d.Layers, &unstructured.Unstructured{Object: u.Object})
		}
	}
	return d
}

// mostOwners bounds how many owners a survey looks at that do not exist yet. A tree of
// Kustomizations is a few levels deep; only one that is made to be endless has more.
const mostOwners = 2000

// survey finds out for one plan who answers for what.
type survey struct {
	*Claims
	self    client.Object
	at      target.Ref
	applied Applied

	// view has all owners declare what they do at one revision of each source.
	view  source.View
	found *claims
	// places are where clusters were asked for.
	places places
	// live are the owners that exist, by id.
	live map[string]client.Object
	// parent is the owner whose labels self has.
	parent string
	// queue of owners to look at.
	queue []visit
	// seen has the forms of owners that were declared.
	seen map[string]bool
	// coming are Layers that may have to do with self, as owners that do act are about to apply them.
	coming []*v1alpha1.Layer
}

// visit is one look at an owner.
type visit struct {
	owner client.Object
	// by declares the owner; the zero value if the owner exists in this form.
	by inventory.Entry
	// late: by may not apply it for long. ahead: for as long as a Rollout holds it back.
	late, ahead bool
}

// claims finds out about all owners.
func (s *survey) claims(ctx context.Context) (*claims, error) {
	owners, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	self := EntryOf(s.self)
	s.found = &claims{of: s, self: self, declared: map[string][]claim{}, again: map[string][]claim{}}
	s.live, s.seen = make(map[string]client.Object, len(owners)), map[string]bool{}
	s.parent = parentOf(s.self)
	for _, o := range owners {
		e := EntryOf(o)
		s.live[e.ID()] = o
		if e.ID() == self.ID() || !o.GetDeletionTimestamp().IsZero() {
			continue
		}
		if !s.drops(o) {
			s.queue = append(s.queue, visit{owner: o})
		}
	}
	if err := s.missing(ctx); err != nil {
		return nil, err
	}
	for len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = s.queue[1:]
		s.look(ctx, next)
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("cannot find out who else declares the objects of %s: %w", self, err)
		}
	}
	return s.found, s.layers(ctx)
}

// layers adds the Layers of which the cluster is about to get something: what the commit moves to one of them is deleted
// else before it has that. Being of one namespace tells nothing: all Layers of a fleet are.
func (s *survey) layers(ctx context.Context) error {
	if s.Layers == nil {
		return nil
	}
	cluster := s.at.Cluster
	if !s.at.Local() && cluster == "" {
		if s.Identify != nil {
			cluster, _ = s.cluster(ctx, s.self.GetNamespace(), s.at)
		}
		if cluster == "" {
			return nil
		}
	}
	layers, err := s.Layers(ctx, cluster, s.coming)
	if err != nil {
		return fmt.Errorf("cannot find out which Layers are to have objects of %s: %w", s.found.self, err)
	}
	for _, l := range layers {
		if s.akinTo(l) {
			s.found.unsure = append(s.found.unsure, EntryOf(l))
		}
	}
	return nil
}

// comes notes a Layer in the form in which an owner is about to apply it: the commit that takes something out of self may
// bring the Layer that is to have it, or give it another path.
func (s *survey) comes(u *unstructured.Unstructured, by client.Object) {
	l := &v1alpha1.Layer{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, l); err != nil {
		return // the API server will not take it either
	}
	e := EntryOf(by)
	metav1.SetMetaDataLabel(&l.ObjectMeta, e.Group+"/name", e.Name)
	metav1.SetMetaDataLabel(&l.ObjectMeta, e.Group+"/namespace", e.Namespace)
	if s.akinTo(l) {
		s.coming = append(s.coming, l)
	}
}

// akinTo reports whether a Layer may have to do with self, as akin does of an owner.
func (s *survey) akinTo(l *v1alpha1.Layer) bool {
	return sourceOf(l) == sourceOf(s.self) || s.parent != "" && parentOf(l) == s.parent
}

// drops reports whether self applied an owner and no longer declares it. It goes, and
// what it declares with it.
func (s *survey) drops(o client.Object) bool {
	return parentOf(o) == s.found.self.String() && !s.applied.has(EntryOf(o))
}

// missing adds the owners that self and others have applied, and that the cache does not
// have yet: self applied its own a moment ago, and the caches of two kinds are of
// different moments.
func (s *survey) missing(ctx context.Context) error {
	if s.Live == nil {
		return nil
	}
	var names []inventory.Entry
	for _, o := range s.above() {
		at := s.recordedAt(o)
		if s.worthAsking(visit{owner: o}, at) && s.atHome(ctx, o.GetNamespace(), at) {
			names = append(names, s.absent(o)...)
		}
	}
	for _, e := range s.applied.Owners {
		if e.Namespace != "" && s.live[e.ID()] == nil && s.atHome(ctx, s.self.GetNamespace(), s.at) {
			names = append(names, e)
		}
	}
	for _, e := range names {
		o := newOwner(e.Kind)
		err := s.Live.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.Name}, o)
		switch {
		case apierrors.IsNotFound(err), apimeta.IsNoMatchError(err):
		case err != nil:
			return fmt.Errorf("cannot read %s: %w", e, err)
		case o.GetDeletionTimestamp().IsZero() && s.live[e.ID()] == nil:
			s.live[e.ID()] = o
			s.queue = append(s.queue, visit{owner: o})
		}
	}
	return nil
}

// above are the owners besides self that applied others which the cache does not have.
func (s *survey) above() []client.Object {
	var above []client.Object
	for id, o := range s.live {
		if id != EntryOf(s.self).ID() && len(s.absent(o)) > 0 {
			above = append(above, o)
		}
	}
	return above
}

// absent are the owners that one applied and that the cache does not have.
func (s *survey) absent(o client.Object) []inventory.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var absent []inventory.Entry
	for _, e := range s.index.below(EntryOf(o)) {
		if s.live[e.ID()] == nil {
			absent = append(absent, e)
		}
	}
	return absent
}

// look finds out what one owner declares.
func (s *survey) look(ctx context.Context, v visit) {
	declarer := s.Kustomizations
	if _, ok := v.owner.(*helmv2.HelmRelease); ok {
		declarer = s.HelmReleases
	}
	at := s.declaredAt(v.owner)
	if declarer == nil || !s.worthAsking(v, at) {
		return
	}
	local, there := s.atHome(ctx, v.owner.GetNamespace(), at), s.applies(ctx, v.owner, at)
	if !local && there == elsewhere {
		return
	}
	e, self := EntryOf(v.owner), EntryOf(s.self)
	isSelf := e.ID() == self.ID()
	// An owner that is settled has applied what it declares. If one of these is gone or
	// going by now, whether it comes back is in the rendering only; those that it has in
	// another cluster are never here. One that moves has applied it elsewhere. Of Layers the rendering alone tells what
	// they are to be.
	whole := v.by == (inventory.Entry{}) && ((local || there == here) && s.lost(e) || local && s.mayLack(v.owner) || at != s.recordedAt(v.owner))
	d := declarer.Declares(ctx, v.owner, &s.view, false)
	settled := d.Settled
	if settled && whole {
		d = declarer.Declares(ctx, v.owner, &s.view, true)
	}
	switch {
	case d.Unknown != nil && isSelf && (v.late || !s.self.GetDeletionTimestamp().IsZero()):
		// Self cannot wait for itself: who comes back finds nothing on record of what went on.
		s.found.unsure = append(s.found.unsure, v.by)
	case d.Unknown != nil && isSelf:
		s.found.superseded = true
	case d.Unknown != nil:
		if there != elsewhere && s.akin(v) && (d.Passing || s.recent(v.owner)) {
			s.found.unsure = append(s.found.unsure, e)
		}
		return
	case there != elsewhere:
		in, by, again := s.found.declared, e, false
		switch {
		case isSelf && (v.late || there != here && !s.self.GetDeletionTimestamp().IsZero()):
			// Self has to wait for that one. If it goes, what is declared for it in another
			// cluster takes nothing over here.
			by = v.by
		case isSelf:
			in, again = s.found.again, true
		}
		add := func(entries []inventory.Entry, ahead bool) {
			for _, of := range entries {
				namespace, rest := split(of.ID())
				in[rest] = append(in[rest], claim{namespace: namespace, owner: by, unsure: there != here, ahead: ahead, form: v.owner})
			}
		}
		if add(d.Entries, v.ahead); !again { // what is ahead of self is nothing to it: it goes by what it may have
			add(d.Ahead, true)
		}
	}
	if !local || isSelf {
		return
	}
	done := settled && isReady(v.owner)
	for _, u := range d.Owners {
		s.declared(u, v.owner, v.ahead || slices.Contains(d.Ahead, inventory.Of(u)), done)
	}
	if v.ahead || suspended(v.owner) {
		return // it applies its Layers when nobody waits for them any more
	}
	for _, u := range d.Layers {
		if !leaves(v.owner, u, nil) {
			s.comes(u, v.owner)
		}
	}
}

// declared adds an owner that another one declares, in the form in which it will be. ahead: once a Rollout lets it. done: the
// other one has applied what it declares, and who differs all the same may go on so.
func (s *survey) declared(u *unstructured.Unstructured, by client.Object, ahead, done bool) {
	o := newOwner(u.GetKind())
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return // the API server will not take it either
	}
	e, self := EntryOf(o), EntryOf(s.self)
	live := s.live[e.ID()]
	if e.ID() == self.ID() {
		live = s.self
	}
	if leaves(by, u, live) {
		return
	}
	gone := live == nil || !live.GetDeletionTimestamp().IsZero()
	if gone && done && overlooks(by, u) && !s.self.GetDeletionTimestamp().IsZero() {
		return // nobody takes over what self lets go of
	}
	s.keepRecord(o, s.live[e.ID()])
	if e.ID() == self.ID() {
		// It declares what it applies, unless it is to change or to come back.
		if s.self.GetDeletionTimestamp().IsZero() && shapeOf(o) == shapeOf(s.self) || !s.self.GetDeletionTimestamp().IsZero() && suspended(by) {
			return
		}
	} else if live != nil && live.GetDeletionTimestamp().IsZero() && shapeOf(o) == shapeOf(live) {
		return
	}
	form := e.ID() + " " + shapeOf(o)
	if s.seen[form] || len(s.seen) >= mostOwners {
		return
	}
	s.seen[form] = true
	late := ahead || suspended(by) || isFailing(by) && !s.recent(by) || done && s.self.GetDeletionTimestamp().IsZero()
	s.queue = append(s.queue, visit{owner: o, by: EntryOf(by), late: late, ahead: ahead})
}

// leaves reports whether an owner that declares an object writes it neither now nor later, as its directives say: what the
// manifest has does not come true, and who is there in another form stays so. live is nil if the object does not exist;
// one that is being deleted is made again. Helm knows no directives.
func leaves(by client.Object, u *unstructured.Unstructured, live client.Object) bool {
	if _, ok := by.(*kustomizev1.Kustomization); !ok {
		return false
	}
	if directive.Selects(directive.Skip(), u) {
		return true
	}
	return live != nil && live.GetDeletionTimestamp().IsZero() &&
		(directive.Selects(directive.IfNotPresent(), u) || directive.InMetadata(directive.Skip(), live.GetLabels(), live.GetAnnotations()))
}

// overlooks reports whether an owner that has applied what it declares does not notice that an object of it is gone: Helm
// looks at objects in an upgrade only. Whoever waits for that one to make them again may wait for good.
func overlooks(by client.Object, u *unstructured.Unstructured) bool {
	release, ok := by.(*helmv2.HelmRelease)
	return ok && (release.GetDriftDetection().GetMode() != helmv2.DriftDetectionEnabled ||
		directive.Selects(map[string]string{helmv2.DriftDetectionMetadataKey: helmv2.DriftDetectionDisabledValue}, u))
}

// lost reports whether one of the owners that an owner applied does not exist or is being
// deleted: that one itself, or one that somebody applied while it went.
func (s *survey) lost(owner inventory.Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.index.below(owner) {
		if live := s.live[e.ID()]; live == nil || !live.GetDeletionTimestamp().IsZero() {
			return true
		}
	}
	return false
}

// mayLack reports whether an owner may not have applied the Layers in its inventory, which is written ahead, as they are to be.
func (s *survey) mayLack(o client.Object) bool {
	if s.Layers == nil || isReady(o) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.layers(EntryOf(o))
}

// akin reports whether an owner may have to do with self, if nothing is known of what
// it declares: they are in one namespace, or of one source, or the same Kustomization
// applied both. Without this, one object that somebody got wrong somewhere in the tier
// would delay every delete.
func (s *survey) akin(v visit) bool {
	switch {
	case v.owner.GetNamespace() == s.self.GetNamespace(), sourceOf(v.owner) == sourceOf(s.self):
		return true
	case v.by != (inventory.Entry{}):
		return v.by.String() == s.parent
	}
	return s.parent != "" && parentOf(v.owner) == s.parent
}

// recent reports whether an owner was made, or began to fail, so short a time ago that
// it may be a part of the change that self is a part of.
func (s *survey) recent(o client.Object) bool {
	within := func(t metav1.Time) bool { return s.Now().Sub(t.Time) < inventory.HandOverBound }
	if made := o.GetCreationTimestamp(); made.IsZero() || within(made) {
		return true
	}
	ready := readyOf(o)
	return ready != nil && within(ready.LastTransitionTime)
}

func isReady(o client.Object) bool {
	ready := readyOf(o)
	return ready != nil && ready.Status == metav1.ConditionTrue
}

func isFailing(o client.Object) bool {
	ready := readyOf(o)
	return ready != nil && ready.Status == metav1.ConditionFalse
}

// readyOf is the condition Ready of an owner, nil without one.
func readyOf(o client.Object) *metav1.Condition {
	var conditions []metav1.Condition
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		conditions = o.Status.Conditions
	case *helmv2.HelmRelease:
		conditions = o.Status.Conditions
	}
	return apimeta.FindStatusCondition(conditions, meta.ReadyCondition)
}

func newOwner(kind string) client.Object {
	if kind == helmv2.HelmReleaseKind {
		return &helmv2.HelmRelease{}
	}
	return &kustomizev1.Kustomization{}
}

// parentOf names the Kustomization that applied an object, by its labels.
func parentOf(o client.Object) string {
	labels, group := o.GetLabels(), kustomizev1.GroupVersion.Group
	if labels[group+"/name"] == "" {
		return ""
	}
	return inventory.Entry{Kind: kustomizev1.KustomizationKind, Namespace: labels[group+"/namespace"], Name: labels[group+"/name"]}.String()
}

// sourceOf names the source of an owner; a HelmRelease's is that of its chart.
func sourceOf(o client.Object) string {
	kind, namespace, name := "", "", ""
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		kind, namespace, name = o.Spec.SourceRef.Kind, o.Spec.SourceRef.Namespace, o.Spec.SourceRef.Name
	case *helmv2.HelmRelease:
		switch {
		case o.Spec.ChartRef != nil:
			kind, namespace, name = o.Spec.ChartRef.Kind, o.Spec.ChartRef.Namespace, o.Spec.ChartRef.Name
		case o.Spec.Chart != nil:
			ref := o.Spec.Chart.Spec.SourceRef
			kind, namespace, name = ref.Kind, ref.Namespace, ref.Name
		}
	case *v1alpha1.Layer:
		if o.Spec.SourceRef != nil {
			kind, namespace, name = o.Spec.SourceRef.Kind, o.Spec.SourceRef.Namespace, o.Spec.SourceRef.Name
		}
	}
	if namespace == "" {
		namespace = o.GetNamespace()
	}
	return kind + "/" + namespace + "/" + name
}
