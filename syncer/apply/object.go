package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"
	"unique"

	"github.com/cascade-gitops/cascade/api/clusterapi"

	"github.com/fluxcd/cli-utils/pkg/object"
	"github.com/fluxcd/pkg/ssa"
	ssaerrors "github.com/fluxcd/pkg/ssa/errors"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// item is one object on its way into the cluster.
type item struct {
	object  *unstructured.Unstructured
	body    []byte
	key     memo.Object
	mapping *meta.RESTMapping
	// desired identifies what is asked for: the body, and how it is applied.
	desired digest.Short
	// live is what is in the cluster, nil if nothing is; watched, that the memo
	// would notice a change of it; kept, that it remembers the answer to an apply.
	live          *observed.Object
	watched, kept bool
	// shown: a sweep shows live.
	shown bool
}

// place is where an item is listed.
func (it *item) place() place { return place{it.mapping.Resource, it.key.Name.Namespace} }

// outcome of one object. complete: nothing has to be asked about it before its
// next change.
type outcome struct {
	entry      inventory.Entry
	change     ssa.ChangeSetEntry
	drift      *Drift
	remembered bool
	complete   bool
	err        error
	// unseen: besides the error, nothing was found out about the object, nor sent.
	unseen bool
	// sent identifies the object as it was applied, now or before, and seen is its state.
	// touched: that is not the one in which it was seen before.
	sent    sentKey
	seen    seen
	touched bool
	// got is the answer to an apply, if there was one, and at is where the object is then.
	got *metav1.PartialObjectMetadata
	at  place
}

// add takes an outcome that is no error into the result.
func (r *run) add(out outcome) {
	res := &r.res
	if out.drift != nil {
		res.Drifted = append(res.Drifted, *out.drift)
	}
	if out.remembered {
		res.Remembered++
	}
	if out.sent != (sentKey{}) {
		r.sent[out.sent] = out.seen
	}
	if r.options.Seal && out.got != nil {
		r.answers = append(r.answers, answered{unique.Make(out.at), standing{out.got.Name, string(out.got.UID), out.got.ResourceVersion}})
	}
	if out.touched {
		res.Touched = append(res.Touched, out.entry)
	}
	res.Complete = res.Complete && out.complete
	res.Changes.Add(out.change)
}

// applyRank applies objects that do not depend on each other.
func (r *run) applyRank(ctx context.Context, objects []*unstructured.Unstructured, bodies bodies) []outcome {
	outcomes := make([]outcome, len(objects))
	// A cluster that does not answer is not asked for each object anew.
	var silent atomic.Bool
	r.each(ctx, len(objects), func(i int) {
		switch kind := objects[i].GroupVersionKind().GroupKind(); {
		case silent.Load():
			outcomes[i] = outcome{unseen: true, err: fmt.Errorf("%s was not tried: the API server does not answer", ssautil.FmtUnstructured(objects[i]))}
			return
		case r.stuck.has(kind):
			outcomes[i] = outcome{unseen: true, err: fmt.Errorf("%s was not tried: the API server does not get done with objects of this kind", ssautil.FmtUnstructured(objects[i]))}
			return
		}
		begun := r.now()
		outcomes[i] = r.applyOne(ctx, objects[i], bodies)
		if took := r.now().Sub(begun); outcomes[i].err != nil && took >= stuckAfter && gaveUp(outcomes[i].err) {
			outcomes[i].err = &StuckError{Took: took.Round(time.Second), Err: outcomes[i].err}
			r.stuck.add(objects[i].GroupVersionKind().GroupKind())
		} else if Unanswered(outcomes[i].err) {
			silent.Store(true)
		}
	})
	return outcomes
}

// applyOne brings one object into the cluster with as few requests as what is
// known allows: none if it is as desired, one apply in the usual case. The API
// server validates an apply before it writes, so that no dry run has to go
// before it.
func (r *run) applyOne(ctx context.Context, u *unstructured.Unstructured, bodies bodies) outcome {
	if directive.Selects(directive.Skip(), u) {
		return outcome{change: changeOf(u, ssa.SkippedAction), complete: true}
	}
	body, err := bodies.of(u)
	if err != nil {
		return outcome{err: err}
	}
	var sent sentKey
	if r.client.kinds != nil {
		sent = sentKeyOf(u, body)
		if before, ok := r.options.Sent.of(sent); ok && r.options.Sweep == nil {
			return outcome{change: changeOf(u, ssa.UnchangedAction), sent: sent, seen: before}
		}
	}
	it, err := r.locate(u, body)
	if err != nil {
		return outcome{err: err}
	}
	if out, stands, err := r.swept(ctx, it, sent); stands || err != nil {
		out.err = err
		return out
	}
	r.loose.Store(true)
	if r.memo.Matches(it.key, r.owner.key(), it.desired) {
		return outcome{change: changeOf(u, ssa.UnchangedAction), remembered: true, complete: true}
	}
	if r.memo.Skips(it.key, r.owner.key(), it.desired) {
		return outcome{change: changeOf(u, ssa.SkippedAction), remembered: true, complete: true}
	}
	if err := r.observe(ctx, it); err != nil {
		return outcome{err: ssaerrors.NewDryRunErr(err, u)}
	}
	once := directive.Selects(directive.IfNotPresent(), u)
	switch {
	case it.live != nil && (it.live.Skip || once):
		shown := r.memo.Skip(it.key, r.owner.key(), it.desired, once)
		return outcome{change: changeOf(u, ssa.SkippedAction), remembered: shown, complete: shown}
	case (it.live == nil || it.live.Deleting) && r.options.Ran != nil && r.options.Ran(u):
		return outcome{change: changeOf(u, ssa.UnchangedAction), complete: true}
	case r.options.KeepNewer && outdates(it.live, u):
		return outcome{change: changeOf(u, ssa.SkippedAction)}
	case it.live != nil && r.options.Report && (r.options.Applied || r.memo.Applied(it.key, r.owner.key(), it.desired)):
		return r.report(ctx, u)
	case it.live != nil && it.live.Deleting && mayRecreate(it.object, it.live, r.options):
		return outcome{err: r.stillThere(it)}
	case it.live == nil && !r.res.Creation.MayCreate(inventory.Of(u)):
		return outcome{err: fmt.Errorf("cannot apply %s: it has gone since it was looked for, and is not to be created", ssautil.FmtUnstructured(u))}
	}
	out := r.write(ctx, it)
	if out.err == nil {
		out.sent, out.entry, out.at, out.touched = sent, inventory.Of(u), it.place(), true
		if out.got != nil {
			out.seen = seenOf(r.owner.FieldManager, u, out.got)
		}
	}
	return out
}

// swept holds an object against the sweep, if there is one. stands: it is as it was when
// it was seen last. What the sweep shows of another one is not asked for again.
func (r *run) swept(ctx context.Context, it *item, sent sentKey) (out outcome, stands bool, err error) {
	at := it.place()
	live, trusted, err := r.options.Sweep.find(ctx, at, it.key.Name.Name)
	if err != nil {
		return outcome{unseen: true}, false, ssaerrors.NewDryRunErr(err, it.object)
	}
	if live == nil {
		return outcome{}, false, nil
	}
	before, _ := r.options.Sent.of(sent)
	if !trusted || !before.stands(r.owner.FieldManager, it.object, live, r.client.reader) {
		it.live, it.shown = r.client.reader.Of(live), true
		return outcome{}, false, nil
	}
	now := seenOf(r.owner.FieldManager, it.object, live)
	r.places[unique.Make(at)] = struct{}{}
	return outcome{
		entry: inventory.Of(it.object), change: changeOf(it.object, ssa.UnchangedAction), sent: sent, seen: now, touched: now != before,
	}, true, nil
}

// locate finds where an object is to be, and identifies what is asked for.
func (r *run) locate(u *unstructured.Unstructured, body []byte) (*item, error) {
	gvk := u.GroupVersionKind()
	mapping, err := r.client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, ssaerrors.NewDryRunErr(err, u)
	}
	name := types.NamespacedName{Name: u.GetName()}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if name.Namespace = u.GetNamespace(); name.Namespace == "" {
			return nil, fmt.Errorf("%s namespace not specified: set metadata.namespace, or spec.targetNamespace", ssautil.FmtUnstructured(u))
		}
	}
	return &item{
		object: u, body: body, key: memo.Object{Kind: gvk.GroupKind(), Name: name}, mapping: mapping,
		desired: digest.Of(body, []byte(r.how())).Short(),
	}, nil
}

// how describes what besides its body decides how an object is applied.
func (r *run) how() string {
	how := r.owner.FieldManager + " as " + r.client.Config.Impersonate.UserName
	if len(r.options.Ignore) > 0 {
		rules, err := json.Marshal(r.options.Ignore)
		how += fmt.Sprintf(" %s %v", rules, err)
	}
	return how
}

// observe finds out what is in the cluster under the name of an item. An item of
// which the memo is to remember something is watched from before that.
func (r *run) observe(ctx context.Context, it *item) (err error) {
	// One watch for all versions of a kind, in the one that the API server prefers.
	preferred := it.mapping
	if any, err := r.client.RESTMapper().RESTMapping(it.key.Kind); err == nil {
		preferred = any
	}
	it.watched = r.memo.Watch(ctx, it.key.Kind, preferred.Resource, it.mapping.Resource)
	it.kept = it.watched || r.memo.Keeps(it.key.Kind, it.mapping.Resource)
	if !it.shown {
		it.live, err = r.look(ctx, it)
	}
	return err
}

// look tells what is in the cluster under a name; nil if nothing is.
func (r *run) look(ctx context.Context, it *item) (*observed.Object, error) {
	resource, name := it.mapping.Resource, it.key.Name
	if live, known := r.options.Survey.find(resource, name.Namespace, name.Name); known {
		return live, nil
	}
	if it.watched {
		if live := r.memo.Live(it.key); live != nil {
			return live, nil
		}
	}
	if !it.watched || it.key.Kind == clusterapi.ClusterKind { // a Cluster exactly, whatever it costs
		return r.client.reader.Get(ctx, resource, name.Namespace, name.Name)
	}
	return r.client.reader.GetWithout(ctx, resource, name.Namespace, name.Name, r.memo.Label(), r.now())
}

// write sends an item and has the memo remember the answer.
func (r *run) write(ctx context.Context, it *item) outcome {
	if it.live != nil && it.key.Kind == clusterapi.ClusterKind {
		// Applying creates what is not there. A Cluster that goes at this very moment,
		// to another management cluster perhaps, must not be built again by that.
		var err error
		it.object = pin(it.object, it.live)
		if it.body, err = encode(it.object); err != nil {
			return outcome{err: err}
		}
	}
	if !it.kept {
		return r.send(ctx, it)
	}
	r.memo.Begin(it.key)
	out := r.send(ctx, it)
	if out.err != nil || out.got == nil {
		r.memo.Abandon(it.key, r.owner.key())
		return out
	}
	shown := r.memo.Remember(it.key, r.owner.key(), it.desired, it.object, out.got)
	out.remembered, out.complete = shown, shown
	return out
}

// send sends what has to be sent of an item.
func (r *run) send(ctx context.Context, it *item) outcome {
	o := r.options
	if it.live != nil && (it.live.Foreign || it.live.Kept.In(it.object) || len(o.Ignore) > 0 || o.MigrateAPIVersion) {
		action, got, err := r.byLibrary(ctx, it)
		if err == nil && len(o.Ignore) == 0 {
			// The fields are ours now. The answer to an apply, which changes nothing
			// any more, is what can be remembered.
			got, err = r.patch(ctx, it)
		}
		if r.recreates(it, err) {
			return r.recreate(ctx, it, err)
		}
		return sentOutcome(it, action, got, err)
	}
	got, err := r.patch(ctx, it)
	switch {
	case r.recreates(it, err):
		return r.recreate(ctx, it, err)
	case err != nil:
		return outcome{err: ssaerrors.NewDryRunErr(err, it.object)}
	case it.live == nil:
		return sentOutcome(it, ssa.CreatedAction, got, nil)
	case it.live.UID == got.UID && it.live.Version == got.ResourceVersion:
		return sentOutcome(it, ssa.UnchangedAction, got, nil)
	}
	return sentOutcome(it, ssa.ConfiguredAction, got, nil)
}

func sentOutcome(it *item, action ssa.Action, got *metav1.PartialObjectMetadata, err error) outcome {
	if err != nil {
		return outcome{err: err}
	}
	return outcome{change: changeOf(it.object, action), got: got}
}

// patch applies an item by one request.
func (r *run) patch(ctx context.Context, it *item) (*metav1.PartialObjectMetadata, error) {
	return r.client.send(ctx, it.mapping.Resource, it.key.Name, it.body, r.owner.FieldManager)
}

// conflictTries is how often fields are taken over again after somebody wrote meanwhile.
const conflictTries = 3

// byLibrary applies an item by a live read, a dry run and, if that differs, an
// apply. It is for objects of which fields of other managers are taken over, that
// or have fields to be ignored.
func (r *run) byLibrary(ctx context.Context, it *item) (ssa.Action, *metav1.PartialObjectMetadata, error) {
	options := ssa.DefaultApplyOptions()
	options.DriftIgnoreRules = r.options.Ignore
	options.MigrateAPIVersion = r.options.MigrateAPIVersion
	options.Cleanup = r.client.reader.Cleanup()
	library := r.library(it.object)
	set, err := library.ApplyAll(ctx, []*unstructured.Unstructured{it.object}, options)
	for range conflictTries {
		if !apierrors.IsConflict(err) {
			break
		}
		// Somebody wrote while fields were taken over; see exact.
		set, err = library.ApplyAll(ctx, []*unstructured.Unstructured{it.object}, options)
	}
	if err != nil {
		return "", nil, err
	}
	name := it.key.Name
	got, err := r.client.metadata.Resource(it.mapping.Resource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		// It was applied; what has become of it is seen the next time.
		return set.Entries[0].Action, nil, nil
	}
	action := set.Entries[0].Action
	if action == ssa.UnchangedAction && (got.UID != it.live.UID || got.ResourceVersion != it.live.Version) {
		// Somebody wrote since it was compared. That is seen the next time, too.
		return action, nil, nil
	}
	return action, got, nil
}

func changeOf(u *unstructured.Unstructured, action ssa.Action) ssa.ChangeSetEntry {
	return ssa.ChangeSetEntry{
		ObjMetadata:  object.UnstructuredToObjMetadata(u),
		GroupVersion: u.GroupVersionKind().Version,
		Subject:      ssautil.FmtUnstructured(u),
		Action:       action,
	}
}
