package apply

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
)

// Numbers of a staged apply.
const (
	// stageWait is how long Sync itself waits for CRDs and namespaces of a stage
	// to become usable; they mostly are within a fraction of a second. After
	// that the caller comes back.
	stageWait = time.Second
	stagePoll = 100 * time.Millisecond
	// concurrency of requests for one rendering, as Flux's --concurrent-ssa.
	concurrency = 4
)

// Keys that objects carry to steer the engine, as Flux defines them.
const (
	group             = "kustomize.toolkit.fluxcd.io"
	reconcileKey      = group + "/reconcile"
	pruneKey          = group + "/prune"
	ssaKey            = group + "/ssa"
	forceKey          = group + "/force"
	disabledValue     = "disabled"
	enabledValue      = "enabled"
	ssaIgnore         = "Ignore"
	ssaMerge          = "Merge"
	ssaIfNotPresent   = "IfNotPresent"
	lastAppliedConfig = corev1.LastAppliedConfigAnnotation
)

// Owner is in whose name objects are applied. The labels <LabelGroup>/name and
// <LabelGroup>/namespace mark what belongs to it.
type Owner struct {
	FieldManager string
	LabelGroup   string
	Name         string
	Namespace    string
}

// Applier applies for one owner in one cluster. It is safe for concurrent use,
// but an owner's renderings must be applied one after the other.
type Applier struct {
	client  *Cluster
	memo    *Memo
	manager *ssa.ResourceManager
	owner   Owner
}

// New returns an Applier for an owner in a cluster. Without a memo every object
// is sent with each Sync.
func New(c *Cluster, owner Owner, memo *Memo) *Applier {
	m := ssa.NewResourceManager(c, nil, ssa.Owner{Field: owner.FieldManager, Group: owner.LabelGroup})
	m.SetConcurrency(c.parallel)
	return &Applier{client: c, memo: memo, manager: m, owner: owner}
}

// Options of Sync.
type Options struct {
	// Owned is the owner's inventory as it is recorded now.
	Owned []inventory.Entry
	// Record writes the inventory down durably. It is called before the first
	// write of an object.
	Record func(ctx context.Context, entries []inventory.Entry) error
	// MigrateAPIVersion rewrites what field managers are recorded with, if it is
	// of another API version than the declared one (Flux's gate of that name).
	MigrateAPIVersion bool
	// Force re-creates objects whose immutable fields changed.
	Force bool
	// Ignore has fields that others may change without it being drift.
	Ignore []jsondiff.IgnoreRule
	// Stages are kinds that are applied after definitions and classes and before
	// everything else.
	Stages map[schema.GroupKind]struct{}
	// Report: objects that were applied before and have drifted are reported in
	// the result, not corrected. Applied: all of the rendering was.
	Report  bool
	Applied bool
	// Secretive: what is declared may hold values of Secrets anywhere, so that
	// reports name fields only.
	Secretive bool
	// Moved: Remove is for a cluster that the owner left, not for an owner that a
	// person deleted. The shrink guard holds then.
	Moved bool
	// FirstSync is what the tier knows of the Clusters of the rendering. Nil: any
	// may be created.
	FirstSync *inventory.FirstSync
	// Prune removes what the rendering no longer declares. Without it such
	// objects are forgotten.
	Prune bool
	// Target, LowerTier, Approved and Undecided are passed on to the prune
	// plan.
	Target    string
	LowerTier bool
	Approved  string
	Undecided bool
	// Sent are objects as they were applied before, which are not applied again.
	// It is for clusters whose calls follow each other.
	Sent Sent
	// Survey is what there was in the cluster a moment ago, if that was looked for.
	Survey *Survey
	// bodies are those of the phase at hand, if it is frozen.
	bodies map[*unstructured.Unstructured][]byte
	// Claimed is asked about objects that would be deleted; nil knows of no other
	// owner.
	Claimed Claims

	// creation is what FirstSync comes to.
	creation *inventory.Creation
}

// Claims names an owner that answers for an object besides the one that asks,
// "" if there is none. Except is no answer either.
type Claims func(ctx context.Context, e, except inventory.Entry) (string, error)

// Sent is a set of objects as they were applied, in a few bytes each.
type Sent map[[8]byte]struct{}

func sentKey(u *unstructured.Unstructured, body []byte) (key [8]byte) {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", inventory.Of(u).ID())
	h.Write(body)
	copy(key[:], h.Sum(nil))
	return key
}

// SentOf is what phases are that an owner is known to have applied as they are,
// in an earlier process say. What is packed is left out.
func SentOf(owner Owner, phases []Phase) (Sent, error) {
	sent := Sent{}
	for _, p := range phases {
		for _, u := range p.Objects {
			body, err := p.bodies[u], error(nil)
			if body == nil {
				ssautil.RemoveCABundleFromCRD(u)
				owner.label(u)
				if body, err = encode(u); err != nil {
					return nil, err
				}
			}
			sent[sentKey(u, body)] = struct{}{}
		}
	}
	return sent, nil
}

// Result of Sync.
type Result struct {
	// Sent are all objects that are as they were applied, by this call or before.
	Sent Sent
	// Changes that were made, in order.
	Changes *ssa.ChangeSet
	// Drifted objects that are left as they are, each with what differs.
	Drifted []Drift
	// Remembered is how many objects the memo holds from now on; Complete, that
	// those are all there is to watch. Then Memo.Clean tells whether another
	// Sync of the same rendering would do anything.
	Remembered int
	Complete   bool
	// Inventory that is to be recorded from now on.
	Inventory []inventory.Entry
	// Plan of the prune, and the objects that were deleted.
	Plan    inventory.Plan
	Deleted []inventory.Entry
	// Pending: deletes that have begun and are not confirmed yet.
	Pending bool
	// Creation is what was not applied, lest a cluster be built twice. While it is
	// blocked, nothing is pruned. It is nil if nothing was looked for.
	Creation *inventory.Creation
	// Done is how many phases are in place, with all that was waited for;
	// Applied is how many of them were sent completely, at most one more.
	Done, Applied int
}

// PruneError: everything was applied, but the prune could not be completed.
// The inventory of the result still holds what is left.
type PruneError struct{ Err error }

func (e *PruneError) Error() string { return e.Err.Error() }
func (e *PruneError) Unwrap() error { return e.Err }

// Phase is a part of a rendering that is applied before the parts after it.
type Phase struct {
	// Name stands in errors about the phase; it may be empty.
	Name    string
	Objects []*unstructured.Unstructured
	// Packed are further objects, nil if there are none.
	Packed *Packed
	// Await lets the next phase begin only when the objects are healthy and
	// Check, if there is one, has nothing to wait for.
	Await bool
	Check func(ctx context.Context, c *Cluster) (Health, error)
	// Applied: the objects were applied and are not sent again. Await says
	// whether they are waited for.
	Applied bool
	// bodies are what is sent of the objects of a frozen phase.
	bodies map[*unstructured.Unstructured][]byte
	digest string
}

// Freeze labels the objects for their owner and encodes them, once for any
// number of clusters. They must not be modified from then on.
func (p Phase) Freeze(owner Owner) (Phase, error) {
	h := sha256.New()
	bodies := make(map[*unstructured.Unstructured][]byte, len(p.Objects))
	for _, u := range p.Objects {
		ssautil.RemoveCABundleFromCRD(u)
		owner.label(u)
		body, err := encode(u)
		if err != nil {
			return p, err
		}
		bodies[u] = body
		h.Write(body)
		h.Write([]byte{'\n'})
	}
	p.bodies, p.digest = bodies, hex.EncodeToString(h.Sum(nil))
	return p, nil
}

// Digest identifies the objects of a frozen phase; it is empty for others.
func (p Phase) Digest() string { return p.digest }

// label marks an object as the owner's. One that is marked is not touched: it
// may be shared.
func (o Owner) label(u *unstructured.Unstructured) {
	labels := u.GetLabels()
	if labels[o.LabelGroup+"/name"] == o.Name && labels[o.LabelGroup+"/namespace"] == o.Namespace {
		return
	}
	if labels == nil {
		labels = map[string]string{}
	}
	labels[o.LabelGroup+"/name"], labels[o.LabelGroup+"/namespace"] = o.Name, o.Namespace
	u.SetLabels(labels)
}

// Entries of all objects of the phase.
func (p Phase) Entries() []inventory.Entry {
	entries := inventory.OfAll(p.Objects)
	if p.Packed == nil {
		return entries
	}
	return append(entries, p.Packed.Entries()...)
}

// Outline are the objects of the phase, those that are packed as far as it takes
// to know what they are and who may write them. They must not be modified.
func (p Phase) Outline() []*unstructured.Unstructured {
	if p.Packed == nil {
		return p.Objects
	}
	return append(slices.Clone(p.Objects), p.Packed.Outline()...)
}

// Defines are the kinds that definitions of the phase define, with the names of
// their resources.
func (p Phase) Defines() map[schema.GroupKind]string {
	defined := map[schema.GroupKind]string{}
	for _, u := range p.Outline() {
		if ssautil.IsCRD(u) {
			group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
			defined[schema.GroupKind{Group: group, Kind: kind}], _, _ = unstructured.NestedString(u.Object, "spec", "names", "plural")
		}
	}
	return defined
}

// all the objects of a phase, which the caller may modify.
func (p Phase) all() ([]*unstructured.Unstructured, error) {
	if p.Packed == nil {
		return p.Objects, nil
	}
	objects, err := p.Packed.Objects()
	return append(objects, p.Objects...), err
}

// WaitError: a phase or a stage is applied but not healthy yet. Calling Sync
// again later goes on.
type WaitError struct {
	// Phase is the name of the phase, if it has one.
	Phase  string
	Health Health
}

func (e *WaitError) Error() string {
	if e.Phase != "" {
		return "waiting for " + e.Phase + ": " + e.Health.Message()
	}
	return "waiting for " + e.Health.Message()
}

// inPhase names the phase in an error.
func inPhase(name string, err error) error {
	var waiting *WaitError
	switch {
	case name == "":
		return err
	case errors.As(err, &waiting):
		waiting.Phase = name
		return err
	}
	return fmt.Errorf("cannot apply %s: %w", name, err)
}

// Sync applies the phases' objects, which it may modify, and prunes. On an
// error the result's inventory is what must stay recorded.
func (a *Applier) Sync(ctx context.Context, phases []Phase, o Options) (res Result, err error) {
	var objects []*unstructured.Unstructured
	var rendered, packed []inventory.Entry
	provided := map[string]bool{}
	for _, p := range phases {
		for _, u := range p.Objects {
			a.owner.label(u)
		}
		objects = append(objects, p.Objects...)
		rendered = append(rendered, p.Entries()...)
		providers := providersOf(p.Objects)
		if p.Packed != nil {
			packed = append(packed, p.Packed.Entries()...)
			providers = append(providers, p.Packed.providers...)
		}
		for _, name := range providers {
			provided[name] = true
		}
	}
	res = Result{Changes: ssa.NewChangeSet(), Inventory: o.Owned, Complete: true, Sent: Sent{}}
	if res.Creation, err = a.Creation(ctx, objects, o.FirstSync); err != nil {
		return res, err
	}
	o.creation = res.Creation
	ahead := inventory.Union(o.Owned, append(packed, inventory.OfAll(withoutHeld(objects, o.creation))...))
	res.Inventory = ahead
	if !inventory.Equal(ahead, o.Owned) {
		if err := o.Record(ctx, ahead); err != nil {
			res.Inventory = o.Owned
			return res, fmt.Errorf("cannot record inventory ahead of apply: %w", err)
		}
	}
	for _, p := range phases {
		p.Objects = withoutHeld(p.Objects, o.creation)
		if err := a.phase(ctx, p, o, &res); err != nil {
			return res, inPhase(p.Name, err)
		}
		res.Done++
	}
	defer func() { res.Inventory = inOrder(res.Inventory, res.Changes) }()
	a.memo.retain(types.NamespacedName{Namespace: a.owner.Namespace, Name: a.owner.Name}, rendered)
	if res.Creation.Blocked() {
		// What is not applied completely is not pruned.
		return res, nil
	}
	if !o.Prune {
		res.Inventory = inventory.Union(nil, rendered)
		return res, nil
	}
	err = a.prune(ctx, inventory.Facts{
		Target: o.Target, Owned: o.Owned, Rendered: rendered, LowerTier: o.LowerTier, Approved: o.Approved, Undecided: o.Undecided,
	}, o.Claimed, provided, &res)
	if err != nil {
		return res, &PruneError{Err: err}
	}
	return res, nil
}

// phase applies one phase and waits for it.
func (a *Applier) phase(ctx context.Context, p Phase, o Options, res *Result) error {
	if !p.Applied {
		objects, err := p.all()
		if err != nil {
			return err
		}
		for _, u := range objects {
			a.owner.label(u)
		}
		o.bodies = p.bodies
		if err := a.apply(ctx, objects, o, res); err != nil {
			return redact(err, objects)
		}
	}
	res.Applied++
	if !p.Await {
		return nil
	}
	health, err := a.Health(ctx, p.Entries(), nil)
	if err == nil && health.Done() && p.Check != nil {
		health, err = p.Check(ctx, a.client)
	}
	if err == nil && !health.Done() {
		err = &WaitError{Health: health}
	}
	return err
}

// inOrder sorts entries as they were applied, which is how people read them, and
// puts what is left of others behind.
func inOrder(entries []inventory.Entry, changes *ssa.ChangeSet) []inventory.Entry {
	rank := make(map[string]int, len(changes.Entries))
	for i, c := range changes.Entries {
		rank[c.ObjMetadata.String()] = i - len(changes.Entries)
	}
	type ranked struct {
		entry inventory.Entry
		rank  int
	}
	all := make([]ranked, 0, len(entries))
	for _, e := range entries {
		all = append(all, ranked{e, rank[e.ID()]})
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return a.rank - b.rank })
	sorted := make([]inventory.Entry, 0, len(all))
	for _, r := range all {
		sorted = append(sorted, r.entry)
	}
	return sorted
}

// Remove deletes everything that the owner's inventory names, because a person
// deleted the owner or applies it elsewhere now. The result's inventory is what
// is still there.
func (a *Applier) Remove(ctx context.Context, owned []inventory.Entry, o Options) (Result, error) {
	res := Result{Changes: ssa.NewChangeSet(), Inventory: owned}
	err := a.prune(ctx, inventory.Facts{
		Target: o.Target, Owned: owned, LowerTier: o.LowerTier, Approved: o.Approved, Undecided: o.Undecided, Asked: !o.Moved, Moved: o.Moved,
	}, o.Claimed, nil, &res)
	if err != nil {
		return res, &PruneError{Err: err}
	}
	return res, nil
}

func (a *Applier) owns(labels map[string]string) bool {
	return labels[a.owner.LabelGroup+"/name"] == a.owner.Name && labels[a.owner.LabelGroup+"/namespace"] == a.owner.Namespace
}

// confirmsAbsence reports whether an answer says that there is no such object. A
// 404 that does not come from a kind's own handler says only that the path is
// not served, as it is when the version of a kind was dropped.
func confirmsAbsence(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// served finds the kind of an entry, in the version that is written down or, if
// that is not served any more, in another.
func (c *Cluster) served(e inventory.Entry) (*meta.RESTMapping, error) {
	c.moved.Lock()
	moved := c.moved.kinds[e.GroupKind()]
	c.moved.Unlock()
	if moved != nil {
		return moved, nil
	}
	mapping, err := c.RESTMapper().RESTMapping(e.GroupKind(), e.Version)
	if meta.IsNoMatchError(err) {
		return c.RESTMapper().RESTMapping(e.GroupKind())
	}
	return mapping, err
}

// relocate asks the API server for the versions of a kind, after it turned out
// that the one that the mapper knows is not served any more. It is nil if no
// version is.
func (c *Cluster) relocate(gk schema.GroupKind) (*meta.RESTMapping, error) {
	groups, err := c.discovery.ServerGroups()
	if err != nil {
		return nil, fmt.Errorf("cannot discover API groups: %w", err)
	}
	for _, g := range groups.Groups {
		if g.Name != gk.Group {
			continue
		}
		for _, v := range g.Versions {
			list, err := c.discovery.ServerResourcesForGroupVersion(v.GroupVersion)
			if err != nil {
				return nil, fmt.Errorf("cannot discover resources of %s: %w", v.GroupVersion, err)
			}
			for _, r := range list.APIResources {
				if r.Kind != gk.Kind || strings.Contains(r.Name, "/") {
					continue
				}
				gv := schema.GroupVersion{Group: gk.Group, Version: v.Version}
				found := &meta.RESTMapping{Resource: gv.WithResource(r.Name), GroupVersionKind: gv.WithKind(gk.Kind), Scope: meta.RESTScopeRoot}
				if r.Namespaced {
					found.Scope = meta.RESTScopeNamespace
				}
				c.moved.Lock()
				defer c.moved.Unlock()
				if c.moved.kinds == nil {
					c.moved.kinds = map[schema.GroupKind]*meta.RESTMapping{}
				}
				c.moved.kinds[gk] = found
				return found, nil
			}
		}
	}
	return nil, nil
}

// namespaceOf is the namespace of an entry in requests.
func namespaceOf(mapping *meta.RESTMapping, e inventory.Entry) string {
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return ""
	}
	return e.Namespace
}

// read returns what the cluster says about entries. owned is the whole
// inventory, against which the content of a Namespace is held.
func (a *Applier) read(ctx context.Context, entries, owned []inventory.Entry, claimed Claims) map[inventory.Entry]inventory.Live {
	facts := make(map[inventory.Entry]inventory.Live, len(entries))
	k := &kin{claimed: claimed}
	for _, e := range entries {
		facts[e], _ = a.examine(ctx, e, owned, k)
	}
	return facts
}

// Look returns what the cluster says about one object that may have to be
// deleted, and the labels and annotations of one that is present. owned is
// everything that the owner answers for.
func (a *Applier) Look(ctx context.Context, e inventory.Entry, owned []inventory.Entry) (live inventory.Live, labels, annotations map[string]string) {
	live, u := a.examine(ctx, e, owned, &kin{})
	if live.State != inventory.Present {
		return live, nil, nil
	}
	return live, u.GetLabels(), u.GetAnnotations()
}

func unknown(err error) inventory.Live {
	return inventory.Live{State: inventory.Unknown, Problem: err.Error()}
}

// examine returns the object, too, if it is present. k is shared by the objects
// of one plan.
func (a *Applier) examine(ctx context.Context, e inventory.Entry, owned []inventory.Entry, k *kin) (inventory.Live, *unstructured.Unstructured) {
	mapping, err := a.client.served(e)
	if meta.IsNoMatchError(err) {
		return a.kindGone(ctx, e), nil
	}
	if err != nil {
		return unknown(err), nil
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && e.Namespace == "" {
		// Written down ahead of an apply that could not succeed.
		return inventory.Live{State: inventory.Absent}, nil
	}
	u, err := a.get(ctx, mapping, e)
	if apierrors.IsNotFound(err) && !confirmsAbsence(err) {
		moved, rerr := a.client.relocate(e.GroupKind())
		switch {
		case rerr != nil:
			return unknown(rerr), nil
		case moved == nil:
			return a.kindGone(ctx, e), nil
		}
		u, err = a.get(ctx, moved, e)
	}
	switch {
	case confirmsAbsence(err):
		return inventory.Live{State: inventory.Absent}, nil
	case meta.IsNoMatchError(err):
		return a.kindGone(ctx, e), nil
	case err != nil:
		return unknown(err), nil
	}
	labels := u.GetLabels()
	live := inventory.Live{
		State:     inventory.Present,
		UID:       string(u.GetUID()),
		Owned:     a.owns(labels),
		Recreated: !a.applied(u),
		Claimed:   a.others(labels),
		Guarded:   labels[protectedLabel] == "true" || a.isOwner(e),
		Exempt:    isExempt(labels, u.GetAnnotations()),
		Confirmed: u.GetAnnotations()[deletionKey] == confirmedValue,
		Deleting:  u.GetDeletionTimestamp() != nil,
		Provider:  labels[providerLabel],
	}
	if e.Group == "" && e.Kind == "Secret" {
		kind, _, _ := unstructured.NestedString(u.Object, "type")
		live.ClusterSecret = kind == clusterSecret
	}
	if !live.Owned || live.Exempt || live.Deleting {
		return live, u
	}
	if k.claimed != nil && live.Claimed == "" {
		if live.Claimed, err = k.claimed(ctx, e, inventory.Entry{}); err != nil {
			return unknown(err), nil
		}
	}
	if live.OfCluster, live.Credential, err = a.neededBy(ctx, e, u, k); err != nil {
		return unknown(err), nil
	}
	switch {
	case e.Group == "" && e.Kind == "Namespace":
		live.Holds, err = a.holds(ctx, e.Name, owned)
	case isSync(e):
		live.Holds, live.Carries, err = a.carries(ctx, e, u, k.claimed)
	}
	if err != nil {
		return unknown(err), nil
	}
	return live, u
}

// get reads an object, or its metadata where that is all that a plan looks at:
// of every kind but Secret, Kustomization and HelmRelease.
func (a *Applier) get(ctx context.Context, mapping *meta.RESTMapping, e inventory.Entry) (*unstructured.Unstructured, error) {
	u := e.Object()
	u.SetGroupVersionKind(mapping.GroupVersionKind)
	u.SetNamespace(namespaceOf(mapping, e))
	if ssautil.IsSecret(u) || isSync(e) {
		return u, a.client.Get(ctx, client.ObjectKeyFromObject(u), u)
	}
	p, err := a.client.metadata.Resource(mapping.Resource).Namespace(u.GetNamespace()).Get(ctx, e.Name, metav1.GetOptions{})
	if err != nil {
		return u, err
	}
	u.SetUID(p.UID)
	u.SetLabels(p.Labels)
	u.SetAnnotations(p.Annotations)
	u.SetOwnerReferences(p.OwnerReferences)
	u.SetDeletionTimestamp(p.DeletionTimestamp)
	u.SetManagedFields(p.ManagedFields)
	return u, nil
}

// kindGone decides about an object whose kind the API server does not know at
// the moment. Discovery may be incomplete, so the kind counts as gone only if
// no CRD declares it and no aggregated API serves its group.
func (a *Applier) kindGone(ctx context.Context, e inventory.Entry) inventory.Live {
	crds := &unstructured.UnstructuredList{}
	crds.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinitionList"})
	if err := a.client.List(ctx, crds); err != nil {
		return unknown(fmt.Errorf("cannot list CRDs to tell whether kind %s is gone: %w", e.Kind, err))
	}
	for _, crd := range crds.Items {
		g, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		k, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
		if g == e.Group && k == e.Kind {
			return unknown(fmt.Errorf("kind %s is not served although its CRD exists", e.Kind))
		}
	}
	services := &unstructured.UnstructuredList{}
	services.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIServiceList"})
	if err := a.client.List(ctx, services); err != nil {
		return unknown(fmt.Errorf("cannot list APIServices to tell whether kind %s is gone: %w", e.Kind, err))
	}
	for _, s := range services.Items {
		g, _, _ := unstructured.NestedString(s.Object, "spec", "group")
		if g == e.Group {
			return unknown(fmt.Errorf("kind %s is not served although APIService %s exists", e.Kind, s.GetName()))
		}
	}
	return inventory.Live{State: inventory.Absent}
}

// without replaces a value in a text, also where it is quoted.
func without(text, value string) string {
	quoted := strconv.Quote(value)
	text = strings.ReplaceAll(text, value, "*****")
	return strings.ReplaceAll(text, quoted[1:len(quoted)-1], "*****")
}

// Redact takes the values of Secrets among objects out of an error of the API
// server, which quotes what it refuses. The error stays what it is otherwise.
func Redact(err error, objects []*unstructured.Unstructured) error { return redact(err, objects) }

// redact takes the values of Secrets out of an error of the API server, which
// quotes what it refuses. The error stays what it is otherwise.
func redact(err error, objects []*unstructured.Unstructured) error {
	text := err.Error()
	clean := text
	for _, u := range objects {
		if !ssautil.IsSecret(u) {
			continue
		}
		for _, field := range []string{"data", "stringData"} {
			scalars(u.Object[field], func(s string) {
				if len(s) < 4 {
					return
				}
				clean = without(clean, s)
				if plain, decodeErr := base64.StdEncoding.DecodeString(s); decodeErr == nil && len(plain) >= 4 {
					clean = without(clean, string(plain))
				}
			})
		}
	}
	if clean == text {
		return err
	}
	return &redacted{text: clean, err: err}
}

// redacted is an error without the values that its text had.
type redacted struct {
	text string
	err  error
}

func (r *redacted) Error() string { return r.text }
func (r *redacted) Unwrap() error { return r.err }

// scalars visits every value in a tree, as it is written. What was declared
// wrongly, as a number or a map, is as secret as what was declared rightly.
func scalars(v any, visit func(string)) {
	switch v := v.(type) {
	case nil:
	case map[string]any:
		for _, item := range v {
			scalars(item, visit)
		}
	case []any:
		for _, item := range v {
			scalars(item, visit)
		}
	default:
		visit(fmt.Sprint(v))
	}
}
