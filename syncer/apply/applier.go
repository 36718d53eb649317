package apply

import (
	"context"
	"encoding/base64"
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
	m.SetConcurrency(concurrency)
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
	// Prune removes what the rendering no longer declares. Without it such
	// objects are forgotten.
	Prune bool
	// Target, LowerTier, Approved and Undecided are passed on to the prune
	// plan.
	Target    string
	LowerTier bool
	Approved  string
	Undecided bool
}

// Result of Sync.
type Result struct {
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
}

// PruneError: everything was applied, but the prune could not be completed.
// The inventory of the result still holds what is left.
type PruneError struct{ Err error }

func (e *PruneError) Error() string { return e.Err.Error() }
func (e *PruneError) Unwrap() error { return e.Err }

// Phase is a part of a rendering that is applied before the parts after it.
type Phase struct {
	Objects []*unstructured.Unstructured
	// Await lets the next phase begin only when these objects are healthy.
	Await bool
}

// WaitError: a phase or a stage is applied but not healthy yet. Calling Sync
// again later goes on.
type WaitError struct{ Health Health }

func (e *WaitError) Error() string { return "waiting for " + e.Health.Message() }

// Sync applies the phases' objects, which it may modify, and prunes. On an
// error the result's inventory is what must stay recorded.
func (a *Applier) Sync(ctx context.Context, phases []Phase, o Options) (res Result, err error) {
	var objects []*unstructured.Unstructured
	for _, p := range phases {
		objects = append(objects, p.Objects...)
	}
	a.manager.SetOwnerLabels(objects, a.owner.Name, a.owner.Namespace)
	rendered := inventory.OfAll(objects)
	ahead := inventory.Union(o.Owned, rendered)
	res = Result{Changes: ssa.NewChangeSet(), Inventory: ahead, Complete: true}
	if !inventory.Equal(ahead, o.Owned) {
		if err := o.Record(ctx, ahead); err != nil {
			res.Inventory = o.Owned
			return res, fmt.Errorf("cannot record inventory ahead of apply: %w", err)
		}
	}
	for _, p := range phases {
		entries := inventory.OfAll(p.Objects)
		if err := a.apply(ctx, p.Objects, o, &res); err != nil {
			return res, redact(err, p.Objects)
		}
		if !p.Await {
			continue
		}
		health, err := a.Health(ctx, entries, nil)
		if err != nil {
			return res, err
		}
		if !health.Done() {
			return res, &WaitError{Health: health}
		}
	}
	defer func() { res.Inventory = inOrder(res.Inventory, res.Changes) }()
	if !o.Prune {
		res.Inventory = inventory.Union(nil, rendered)
		return res, nil
	}
	err = a.prune(ctx, inventory.Facts{
		Target: o.Target, Owned: o.Owned, Rendered: rendered, LowerTier: o.LowerTier, Approved: o.Approved, Undecided: o.Undecided,
	}, &res)
	if err != nil {
		return res, &PruneError{Err: err}
	}
	return res, nil
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
// deleted the owner. The result's inventory is what is still there.
func (a *Applier) Remove(ctx context.Context, owned []inventory.Entry, o Options) (Result, error) {
	res := Result{Changes: ssa.NewChangeSet(), Inventory: owned}
	err := a.prune(ctx, inventory.Facts{
		Target: o.Target, Owned: owned, LowerTier: o.LowerTier, Approved: o.Approved, Asked: true,
	}, &res)
	if err != nil {
		return res, &PruneError{Err: err}
	}
	return res, nil
}

func (a *Applier) prune(ctx context.Context, facts inventory.Facts, res *Result) error {
	candidates := inventory.Candidates(facts.Owned, facts.Rendered)
	facts.Live = a.read(ctx, candidates, facts.Owned)
	res.Plan = inventory.PlanPrune(facts)
	keep := res.Plan.Keep
	var failures []error
	if !res.Plan.Held {
		var begun []inventory.Entry
		for _, d := range res.Plan.Deletes {
			a.memo.forget(schema.GroupKind{Group: d.Entry.Group, Kind: d.Entry.Kind}, types.NamespacedName{Namespace: d.Entry.Namespace, Name: d.Entry.Name})
			if err := a.delete(ctx, d); err != nil {
				failures = append(failures, err)
				continue
			}
			begun = append(begun, d.Entry)
		}
		res.Deleted = begun
		// An object leaves the inventory when it is confirmed gone; one with a
		// finalizer stays until then.
		for e, live := range a.read(ctx, begun, nil) {
			if live.State == inventory.Absent {
				keep = slices.DeleteFunc(keep, func(k inventory.Entry) bool { return k == e })
			} else {
				res.Pending = true
			}
		}
	}
	res.Pending = res.Pending || len(res.Plan.Waiting) > 0
	res.Inventory = inventory.Union(facts.Rendered, keep)
	if len(res.Plan.Unknown) > 0 {
		failures = append(failures, fmt.Errorf("cannot tell whether %d objects still exist, the first is %s: %s",
			len(res.Plan.Unknown), res.Plan.Unknown[0], res.Plan.Problem))
	}
	return errors.Join(failures...)
}

func (a *Applier) delete(ctx context.Context, d inventory.Delete) error {
	err := a.client.Delete(ctx, d.Entry.Object(),
		client.PropagationPolicy(metav1.DeletePropagationBackground),
		client.Preconditions{UID: new(types.UID(d.UID))})
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("cannot delete %s: it was re-created meanwhile", d.Entry)
	}
	return fmt.Errorf("cannot delete %s: %w", d.Entry, err)
}

// read returns what the cluster says about entries. owned is the whole
// inventory, against which the content of a Namespace is held.
func (a *Applier) read(ctx context.Context, entries, owned []inventory.Entry) map[inventory.Entry]inventory.Live {
	facts := make(map[inventory.Entry]inventory.Live, len(entries))
	for _, e := range entries {
		facts[e] = a.readOne(ctx, e, owned)
	}
	return facts
}

func unknown(err error) inventory.Live {
	return inventory.Live{State: inventory.Unknown, Problem: err.Error()}
}

func (a *Applier) readOne(ctx context.Context, e inventory.Entry, owned []inventory.Entry) inventory.Live {
	u := e.Object()
	err := a.client.Get(ctx, client.ObjectKeyFromObject(u), u)
	switch {
	case apierrors.IsNotFound(err):
		return inventory.Live{State: inventory.Absent}
	case meta.IsNoMatchError(err):
		return a.kindGone(ctx, e)
	case err != nil:
		return unknown(err)
	}
	labels := u.GetLabels()
	live := inventory.Live{
		State:     inventory.Present,
		UID:       string(u.GetUID()),
		Owned:     labels[a.owner.LabelGroup+"/name"] == a.owner.Name && labels[a.owner.LabelGroup+"/namespace"] == a.owner.Namespace,
		Exempt:    ssautil.AnyInMetadata(u, map[string]string{pruneKey: disabledValue, reconcileKey: disabledValue, ssaKey: ssaIgnore}),
		Confirmed: u.GetAnnotations()["cascade.dev/deletion"] == "confirmed",
		Deleting:  u.GetDeletionTimestamp() != nil,
	}
	if e.Group == "" && e.Kind == "Secret" {
		kind, _, _ := unstructured.NestedString(u.Object, "type")
		live.ClusterSecret = kind == "cluster.x-k8s.io/secret"
	}
	if !live.Owned || live.Exempt || live.Deleting {
		return live
	}
	if name := clusterOf(u); name != "" {
		cluster := inventory.Entry{Namespace: e.Namespace, Name: name, Group: "cluster.x-k8s.io", Kind: "Cluster"}
		exists, err := a.clusterExists(ctx, cluster)
		if err != nil {
			return unknown(err)
		}
		if exists {
			live.OfCluster = name
		}
	}
	if e.Group == "" && e.Kind == "Namespace" {
		if live.Holds, err = a.holds(ctx, e.Name, owned); err != nil {
			return unknown(err)
		}
	}
	return live
}

// clusterOf names the Cluster that an object of Cluster API or a provider is a
// part of: core labels and adopts what a Cluster refers to.
func clusterOf(u *unstructured.Unstructured) string {
	gvk := u.GroupVersionKind()
	if gvk.Group == "cluster.x-k8s.io" && gvk.Kind == "Cluster" {
		return ""
	}
	if name := u.GetLabels()["cluster.x-k8s.io/cluster-name"]; name != "" {
		return name
	}
	for _, ref := range u.GetOwnerReferences() {
		if ref.Kind == "Cluster" && strings.HasPrefix(ref.APIVersion, "cluster.x-k8s.io/") {
			return ref.Name
		}
	}
	return ""
}

func (a *Applier) clusterExists(ctx context.Context, e inventory.Entry) (bool, error) {
	mapping, err := a.client.RESTMapper().RESTMapping(schema.GroupKind{Group: e.Group, Kind: e.Kind})
	if meta.IsNoMatchError(err) {
		gone := a.kindGone(ctx, e)
		if gone.State == inventory.Unknown {
			return false, errors.New(gone.Problem)
		}
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look up kind Cluster: %w", err)
	}
	u := &metav1.PartialObjectMetadata{}
	u.SetGroupVersionKind(mapping.GroupVersionKind)
	err = a.client.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.Name}, u)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read Cluster %s/%s: %w", e.Namespace, e.Name, err)
	}
	return true, nil
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

// redact takes the values of Secrets out of an error of the API server, which
// quotes what it refuses.
func redact(err error, objects []*unstructured.Unstructured) error {
	text := err.Error()
	clean := text
	for _, u := range objects {
		if !ssautil.IsSecret(u) {
			continue
		}
		for _, field := range []string{"data", "stringData"} {
			values, _, _ := unstructured.NestedMap(u.Object, field)
			for _, v := range values {
				s, _ := v.(string)
				if len(s) < 4 {
					continue
				}
				clean = without(clean, s)
				if plain, decodeErr := base64.StdEncoding.DecodeString(s); decodeErr == nil && len(plain) >= 4 {
					clean = without(clean, string(plain))
				}
			}
		}
	}
	if clean == text {
		return err
	}
	return errors.New(clean)
}
