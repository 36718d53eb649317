// Package claim tells which other owner answers for an object of a cluster: a
// Kustomization or HelmRelease of the tier whose inventory has it, or that declares it
// at the revision that its source has now. All owners of a tier share their field
// manager, so the object itself shows only who applied it last; what that one no longer
// declares, another may.
//
// An inventory lags behind a commit. In between, an owner that is to have an object may
// wait for a dependency, fail, be suspended, or not exist yet because the Kustomization
// that declares it waits itself. So whoever has not applied its revision is rendered, and
// so is whatever it declares that applies objects in turn.
//
// Invariants: owners are read from the cache and nothing is written. All owners that one
// survey renders from a source are rendered at one revision of it, or a commit that moves
// an object from one to another could be seen on neither side. An owner that is
// being deleted claims nothing. What cannot be found out about an owner counts as a claim
// while that may pass and while the owner is akin to the one that asks; see akin. So does
// an object that an owner has or declares in a cluster of which it is not known which it is.
// Which one a cluster is, it says itself: that proves nothing about the cluster of a
// kubeconfig that another team has written.
//
// A Layer applies to the clusters of Children, and is not rendered here. One that is akin, and has not
// applied there what it declares by now, may declare anything, as an owner that cannot be rendered. So may one that
// an owner is about to make, or to change.
//
// Failure model: an owner that cannot be read is an error, never an absent claim. One
// that cannot be rendered claims what it has on record.
package claim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"helm.sh/helm/v4/pkg/release/common"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// Claims are those of the owners of one tier. It is safe for concurrent use; its fields
// are set before the first question. The zero value of a field other than Client is
// allowed: without a Declarer, what owners of its kind will apply is not known, and only
// inventories count.
type Claims struct {
	// Client reads from the cache, Live from the API server.
	Client, Live client.Reader
	// ServiceAccount is impersonated where an owner names none.
	ServiceAccount string
	// Identify fills in which cluster a reference of an object in a namespace leads to, or
	// leaves it empty: two references may lead to one cluster, and a kubeconfig back to the
	// one that we run in. Without it, only what is on record tells.
	Identify func(ctx context.Context, namespace string, ref target.Ref) (target.Ref, error)
	// Kustomizations and HelmReleases tell what these declare.
	Kustomizations, HelmReleases Declarer
	// Layers are those that are to have something in a cluster, and have not applied there what they declare
	// by now: of those that there are, and of those that are coming, in the form in which they will be. Empty is the
	// cluster that we run in. Nil asks for none.
	Layers func(ctx context.Context, cluster string, coming []*v1alpha1.Layer) ([]*v1alpha1.Layer, error)
	Now    func() time.Time

	mu         sync.Mutex
	index      index
	identities map[lead]identity
}

// Except tells who besides self answers for an object of the cluster that a reference
// leads to. Owners are read when the first question is asked, once for all that follow;
// it is for one plan, and for one caller at a time.
func (c *Claims) Except(self client.Object, at target.Ref, applied Applied) apply.Claims {
	var found *claims
	return func(ctx context.Context, e, except inventory.Entry) (apply.Claim, error) {
		if found == nil {
			survey := &survey{Claims: c, self: self, at: at, applied: applied}
			var err error
			if found, err = survey.claims(ctx); err != nil {
				return apply.Claim{}, err
			}
			// The others are asked about the revision that their sources had first, so that is
			// the one which must still have what self applied.
			found.superseded = found.superseded || applied.Current != nil && !applied.Current(&survey.view)
		}
		return found.on(ctx, e, except), nil
	}
}

// Applied is what the one that asks applied. The zero value is of one that is going and
// declares nothing.
type Applied struct {
	// Current reports whether it is still what that one declares in a view; nil is yes.
	Current func(*source.View) bool
	// Owners are those among it.
	Owners []inventory.Entry
}

// has reports whether an owner is among it.
func (a Applied) has(owner inventory.Entry) bool {
	return slices.ContainsFunc(a.Owners, func(e inventory.Entry) bool { return e.ID() == owner.ID() })
}

// claims are what a survey found.
type claims struct {
	of   *survey
	self inventory.Entry
	// superseded: self applies what it no longer declares.
	superseded bool
	// declared and again are owners by the objects' ids without namespaces.
	declared, again map[string][]claim
	// unsure are owners of which it is not known yet what they declare.
	unsure []inventory.Entry
}

// claim is an owner that has or declares an object, there with this namespace. That of a
// cluster-scoped object may have a namespace, too: Flux and older agents recorded what
// the manifest said, and a rendering is what the manifest says.
type claim struct {
	namespace string
	owner     inventory.Entry
	// unsure: it may be about another cluster. ahead: a Rollout holds it back.
	unsure, ahead bool
	// form of the owner that declares it; nil if the object is on record.
	form client.Object
}

// split takes the namespace off an id, and leaves name, group and kind. A namespace has
// no underscore.
func split(id string) (namespace, rest string) {
	namespace, rest, _ = strings.Cut(id, "_")
	return namespace, rest
}

// matches reports whether a claim is on an object, and of another owner than except.
func (c claim) matches(e, except inventory.Entry) bool {
	return (e.Namespace == "" || c.namespace == "" || e.Namespace == c.namespace) && c.owner.ID() != except.ID()
}

// on tells how others answer for an object.
func (c *claims) on(ctx context.Context, e, except inventory.Entry) apply.Claim {
	_, rest := split(e.ID())
	find := func(in map[string][]claim, unsure bool) *claim {
		for i := range in[rest] {
			if in[rest][i].unsure == unsure && in[rest][i].matches(e, except) {
				return &in[rest][i]
			}
		}
		return nil
	}
	if by := cmp.Or(find(c.again, false), find(c.again, true)); by != nil {
		return apply.Claim{Owner: c.self.String(), Kind: apply.Again, Form: by.form}
	}
	if c.superseded {
		return apply.Claim{Owner: c.self.String(), Kind: apply.Again}
	}
	found := c.recorded(ctx, rest, e, except)
	if found.Owner != "" && !found.Unsure {
		return found
	}
	if by := find(c.declared, false); by != nil {
		return apply.Claim{Owner: by.owner.String(), Kind: apply.Declared, Ahead: by.ahead, Perhaps: found.Perhaps}
	}
	if found.Owner != "" {
		return found
	}
	if by := find(c.declared, true); by != nil {
		return apply.Claim{Owner: by.owner.String(), Kind: apply.Declared, Unsure: true, Perhaps: found.Perhaps}
	}
	for _, by := range c.unsure {
		if by.ID() != except.ID() && by.ID() != e.ID() {
			return apply.Claim{Owner: by.String(), Kind: apply.Declared, Unsure: true, Perhaps: found.Perhaps}
		}
	}
	return found
}

// recorded is the claim of the owners that have an object in their inventories: of the first
// one that is known to have applied it here, or else of the first one that may have.
func (c *claims) recorded(ctx context.Context, rest string, e, except inventory.Entry) apply.Claim {
	var found apply.Claim
	for _, o := range c.recording(rest, e, except) {
		by, counts := apply.Claim{Owner: EntryOf(o).String(), Kind: apply.Recorded}, true
		_, release := o.(*helmv2.HelmRelease)
		switch c.of.applies(ctx, o, c.of.recordedAt(o)) {
		case elsewhere:
			continue
		case here:
			// Definitions of its chart may be on record of a release that left them to others, as with crds: Skip.
			switch by.Unsure = release && isDefinition(e.GroupKind()); {
			case installing(o):
				by.Kind = apply.Declared
			case !by.Unsure:
				by.Perhaps = found.Perhaps
				return by
			}
		case perhaps:
			by.Unsure = true
		case unclear:
			// In a fleet, each cluster has objects of the same names, and one of them may be away
			// for months. A Kustomization has its cluster on record, unless that never tells.
			by.Unsure, counts = true, !release || c.of.akin(visit{owner: o}) && c.of.recent(o)
		}
		all := append(found.Perhaps, by.Owner)
		if counts && (found.Owner == "" || found.Unsure && !by.Unsure) {
			found = by
		}
		found.Perhaps = all
	}
	return found
}

// recording are the owners that have an object of some cluster in their inventories: those
// first that are known to be about the one that is asked about, then those that are akin, and
// then by name. All are of one moment, that of the survey's list or a later one: of what
// was handed over since, the new owner may not have been in that list.
func (c *claims) recording(rest string, e, except inventory.Entry) []client.Object {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	var owners []client.Object
	for _, by := range c.of.index.owners[rest] {
		id := by.owner.ID()
		if o := c.of.index.known[id].owner; id != c.self.ID() && o.GetDeletionTimestamp().IsZero() && by.matches(e, except) {
			owners = append(owners, o)
		}
	}
	asks := func(o client.Object) int {
		if c.of.recordedAt(o).SameCluster(o.GetNamespace(), c.of.at, c.of.self.GetNamespace()) {
			return 0
		}
		if c.of.akin(visit{owner: o}) {
			return 1
		}
		return 2
	}
	slices.SortFunc(owners, func(a, b client.Object) int {
		return cmp.Or(asks(a)-asks(b), strings.Compare(EntryOf(a).String(), EntryOf(b).String()))
	})
	return owners
}

// Recording are the owners besides self that have objects in their inventories, by the ids of these. It does not
// tell in which cluster: that an owner applied the object that one has at hand, its labels say.
func (c *Claims) Recording(ctx context.Context, self client.Object, objects []inventory.Entry) (map[string][]client.Object, error) {
	if _, err := c.current(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string][]client.Object{}
	for _, e := range objects {
		_, rest := split(e.ID())
		for _, by := range c.index.owners[rest] {
			if o := c.index.known[by.owner.ID()].owner; by.matches(e, EntryOf(self)) && o.GetDeletionTimestamp().IsZero() {
				found[e.ID()] = append(found[e.ID()], o)
			}
		}
	}
	return found, nil
}

// Declares reports whether an owner declares an object at the revision that its source has in a view. One of which
// that is not known now may, and applies nothing else meanwhile.
func (c *Claims) Declares(ctx context.Context, owner client.Object, view *source.View, e inventory.Entry) bool {
	declarer := c.Kustomizations
	if _, ok := owner.(*helmv2.HelmRelease); ok {
		declarer = c.HelmReleases
	}
	if declarer == nil {
		return true
	}
	d := declarer.Declares(ctx, owner, view, true)
	_, rest := split(e.ID())
	return d.Unknown != nil || slices.ContainsFunc(d.Entries, func(of inventory.Entry) bool {
		namespace, is := split(of.ID())
		return is == rest && (namespace == "" || e.Namespace == "" || namespace == e.Namespace)
	})
}

// installing reports whether an owner is a release that has not been deployed since it was
// installed: its inventory is written before its objects are.
func installing(o client.Object) bool {
	h, ok := o.(*helmv2.HelmRelease)
	if !ok {
		return false
	}
	deployed := func(s *helmv2.Snapshot) bool {
		return s.Status == common.StatusDeployed.String() || s.Status == common.StatusSuperseded.String()
	}
	// Without the revision of the install, one that was deployed may be missing.
	installed := func(s *helmv2.Snapshot) bool { return s.Action == helmv2.ReleaseActionInstall }
	return slices.ContainsFunc(h.Status.History, installed) && !slices.ContainsFunc(h.Status.History, deployed)
}

// EntryOf identifies an owner.
func EntryOf(o client.Object) inventory.Entry {
	e := inventory.Entry{Namespace: o.GetNamespace(), Name: o.GetName(), Group: kustomizev1.GroupVersion.Group, Kind: kustomizev1.KustomizationKind}
	switch o.(type) {
	case *helmv2.HelmRelease:
		e.Group, e.Kind = helmv2.GroupVersion.Group, helmv2.HelmReleaseKind
	case *v1alpha1.Layer:
		e.Group, e.Kind = v1alpha1.GroupVersion.Group, "Layer"
	}
	return e
}

// IsOwner reports whether objects of a kind apply others.
func IsOwner(kind schema.GroupKind) bool {
	return kind == schema.GroupKind{Group: kustomizev1.GroupVersion.Group, Kind: kustomizev1.KustomizationKind} ||
		kind == schema.GroupKind{Group: helmv2.GroupVersion.Group, Kind: helmv2.HelmReleaseKind}
}

func isLayer(kind schema.GroupKind) bool {
	return kind == schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "Layer"}
}

func isDefinition(kind schema.GroupKind) bool {
	return kind == schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}

// recordedAt is where the objects of an owner's inventory are. One that is given
// another cluster has them in the one before until it has left that.
func (c *Claims) recordedAt(o client.Object) target.Ref {
	if ref := onRecord(o); ref != nil {
		return *ref
	}
	return c.declaredAt(o)
}

// declaredAt is where an owner is to have what it declares, with the identity of the cluster
// that is on record unless another one is meant by now.
func (c *Claims) declaredAt(o client.Object) target.Ref { return c.wantedAt(o).Record(onRecord(o)) }

// wantedAt is declaredAt as far as the spec says.
func (c *Claims) wantedAt(o client.Object) target.Ref {
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		return target.Of(o, c.ServiceAccount)
	case *helmv2.HelmRelease:
		return target.OfRelease(o, c.ServiceAccount)
	}
	return target.Ref{}
}

// onRecord is the target that is recorded on an owner; nil without a record.
func onRecord(o client.Object) *target.Ref {
	if isLayer(EntryOf(o).GroupKind()) {
		return nil
	}
	ref, err := target.Decode(o.GetAnnotations()[target.Annotation])
	if err != nil {
		return nil
	}
	return &ref
}

// current reads all owners from the cache, and brings the index up to them.
func (c *Claims) current(ctx context.Context) ([]client.Object, error) {
	c.mu.Lock()
	before := c.index.updates
	c.mu.Unlock()
	// The first list of a kind waits for the cache, so it is not made under the lock.
	owners, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index.updates != before {
		// The index may be newer than this list by now. Taken back to it, it would not have
		// what owners recorded since, and others who ask it meanwhile delete that.
		if owners, err = c.list(ctx); err != nil {
			return nil, err
		}
	}
	c.index.update(owners)
	return owners, nil
}

// list reads all owners from the cache. They must not be changed.
func (c *Claims) list(ctx context.Context) ([]client.Object, error) {
	var owners []client.Object
	kustomizations := &kustomizev1.KustomizationList{}
	if err := c.Client.List(ctx, kustomizations, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list Kustomizations: %w", err)
	}
	for i := range kustomizations.Items {
		owners = append(owners, &kustomizations.Items[i])
	}
	releases := &helmv2.HelmReleaseList{}
	if err := c.Client.List(ctx, releases, client.UnsafeDisableDeepCopy); err != nil && !apimeta.IsNoMatchError(err) {
		return nil, fmt.Errorf("cannot list HelmReleases: %w", err)
	}
	for i := range releases.Items {
		owners = append(owners, &releases.Items[i])
	}
	return owners, nil
}

// recorded are the ids of the inventory of an owner.
func recorded(o client.Object) []kustomizev1.ResourceRef {
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		if o.Status.Inventory != nil {
			return o.Status.Inventory.Entries
		}
	case *helmv2.HelmRelease:
		if o.Status.Inventory != nil {
			refs := make([]kustomizev1.ResourceRef, 0, len(o.Status.Inventory.Entries))
			for _, r := range o.Status.Inventory.Entries {
				refs = append(refs, kustomizev1.ResourceRef{ID: r.ID, Version: r.Version})
			}
			return refs
		}
	}
	return nil
}

// suspended reports whether an owner does not act for now.
func suspended(o client.Object) bool {
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		return o.Spec.Suspend
	case *helmv2.HelmRelease:
		return o.Spec.Suspend
	}
	return false
}
