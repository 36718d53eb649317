package apply

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/cli-utils/pkg/object"
	"github.com/fluxcd/pkg/ssa"
	ssaerrors "github.com/fluxcd/pkg/ssa/errors"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/health"
)

// failuresShown bounds an error text.
const failuresShown = 5

// Failures are the objects of a stage that could not be applied. The others of
// the stage were.
type Failures []error

func (f Failures) Error() string {
	texts := make([]string, 0, failuresShown+1)
	for i, err := range f {
		if i == failuresShown {
			texts = append(texts, fmt.Sprintf("and %d more objects failed", len(f)-i))
			break
		}
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "\n")
}

// Unwrap gives access to each failure.
func (f Failures) Unwrap() []error { return f }

// stages splits objects into Flux's stages: definitions that others need,
// classes, the kinds that the caller names, and the rest.
func stages(objects []*unstructured.Unstructured, custom map[schema.GroupKind]struct{}) [][]*unstructured.Unstructured {
	out := make([][]*unstructured.Unstructured, 4)
	for _, u := range objects {
		i := 3
		switch {
		case ssautil.IsClusterDefinition(u):
			i = 0
		case ssautil.IsClassDefinition(u):
			i = 1
		case ssautil.IsCustomStage(u, custom):
			i = 2
		}
		out[i] = append(out[i], u)
	}
	return out
}

// ranks sorts the objects of a stage in Flux's order and splits them where the
// rank of the kind changes: what has the same rank does not depend on each
// other.
func ranks(objects []*unstructured.Unstructured) [][]*unstructured.Unstructured {
	rank := make(map[string]int, len(ssa.ReconcileOrder.First)+len(ssa.ReconcileOrder.Last))
	for i, kind := range ssa.ReconcileOrder.First {
		rank[kind] = i - len(ssa.ReconcileOrder.First)
	}
	for i, kind := range ssa.ReconcileOrder.Last {
		rank[kind] = i + 1
	}
	objects = slices.Clone(objects)
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		ka, kb := a.GroupVersionKind(), b.GroupVersionKind()
		return cmp.Or(cmp.Compare(rank[ka.Kind], rank[kb.Kind]), cmp.Compare(ka.Group, kb.Group), cmp.Compare(ka.Kind, kb.Kind),
			cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	var out [][]*unstructured.Unstructured
	for i, u := range objects {
		if i == 0 || rank[u.GetKind()] != rank[objects[i-1].GetKind()] {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], u)
	}
	return out
}

// apply sends the objects, stage by stage. An object that fails does not stop
// the others of its stage; the next stage begins only when all of one are
// applied and, for definitions and classes, usable.
func (a *Applier) apply(ctx context.Context, objects []*unstructured.Unstructured, o Options, res *Result) error {
	for i, stage := range stages(objects, o.Stages) {
		var failed Failures
		var fresh []*unstructured.Unstructured
		for _, rank := range ranks(stage) {
			for i, out := range a.applyRank(ctx, rank, o) {
				if _, before := o.Sent[out.sent]; !before {
					fresh = append(fresh, rank[i])
				}
				if out.err != nil {
					failed = append(failed, out.err)
					continue
				}
				if out.drift != nil {
					res.Drifted = append(res.Drifted, *out.drift)
				}
				if out.remembered {
					res.Remembered++
				}
				if out.sent != [8]byte{} {
					res.Sent[out.sent] = struct{}{}
				}
				res.Complete = res.Complete && out.settled
				res.Changes.Add(out.change)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if len(failed) > 0 {
			return failed
		}
		if i < 2 {
			if err := a.awaitStage(ctx, fresh); err != nil {
				return err
			}
		}
	}
	return nil
}

// outcome of one object. settled: nothing has to be asked about it before its
// next change.
type outcome struct {
	change     ssa.ChangeSetEntry
	drift      *Drift
	remembered bool
	settled    bool
	err        error
	// sent identifies the object as it was applied, now or before.
	sent [8]byte
	// got is the answer to an apply, if there was one.
	got *metav1.PartialObjectMetadata
}

func (a *Applier) applyRank(ctx context.Context, objects []*unstructured.Unstructured, o Options) []outcome {
	outcomes := make([]outcome, len(objects))
	var workers sync.WaitGroup
	next := make(chan int)
	// A cluster that does not answer is not asked for each object anew.
	var gone atomic.Bool
	for range min(a.client.parallel, len(objects)) {
		workers.Go(func() {
			for i := range next {
				if gone.Load() {
					outcomes[i].err = fmt.Errorf("%s was not tried: the API server does not answer", ssautil.FmtUnstructured(objects[i]))
					continue
				}
				outcomes[i] = a.applyOne(ctx, objects[i], o)
				if unanswered(outcomes[i].err) {
					gone.Store(true)
				}
			}
		})
	}
	for i := range objects {
		next <- i
	}
	close(next)
	workers.Wait()
	return outcomes
}

// unanswered reports whether a request failed without the API server's word.
func unanswered(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF)
}

// applyOne brings one object into the cluster with as few requests as what is
// known allows: none if it is as desired, one apply in the usual case. The API
// server validates an apply before it writes, so that no dry run has to go
// before it.
func (a *Applier) applyOne(ctx context.Context, u *unstructured.Unstructured, o Options) outcome {
	if ssautil.AnyInMetadata(u, skipSelector()) {
		return outcome{change: changeOf(u, ssa.SkippedAction), settled: true}
	}
	body, err := o.bodies[u], error(nil)
	if body == nil {
		ssautil.RemoveCABundleFromCRD(u)
		if body, err = encode(u); err != nil {
			return outcome{err: err}
		}
	}
	var sent [8]byte
	if a.client.kinds != nil {
		sent = sentKey(u, body)
		if _, ok := o.Sent[sent]; ok {
			return outcome{change: changeOf(u, ssa.UnchangedAction), sent: sent}
		}
	}
	gk := u.GroupVersionKind().GroupKind()
	mapping, err := a.client.RESTMapper().RESTMapping(gk, u.GroupVersionKind().Version)
	if err != nil {
		return outcome{err: ssaerrors.NewDryRunErr(err, u)}
	}
	name := types.NamespacedName{Name: u.GetName()}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if name.Namespace = u.GetNamespace(); name.Namespace == "" {
			return outcome{err: fmt.Errorf("%s namespace not specified: set metadata.namespace, or spec.targetNamespace", ssautil.FmtUnstructured(u))}
		}
	}
	owner := types.NamespacedName{Namespace: a.owner.Namespace, Name: a.owner.Name}
	desired := desiredDigest(body, a.how(o))
	if a.memo.clean(gk, name, owner, desired) {
		return outcome{change: changeOf(u, ssa.UnchangedAction), remembered: true, settled: true}
	}
	// One watch for all versions of a kind, in the one that the API server prefers.
	preferred := mapping
	if any, err := a.client.RESTMapper().RESTMapping(gk); err == nil {
		preferred = any
	}
	watched := a.memo.watch(ctx, gk, preferred.Resource)
	live, err := a.look(ctx, gk, mapping.Resource, name, watched, o.Survey)
	if err != nil {
		return outcome{err: ssaerrors.NewDryRunErr(err, u)}
	}
	if live != nil && (live.Skip || ssautil.AnyInMetadata(u, ifNotPresentSelector())) {
		// What a person exempts is not watched: the exemption may end any time.
		a.memo.forget(gk, name)
		return outcome{change: changeOf(u, ssa.SkippedAction)}
	}
	if o.Report && live != nil && (o.Applied || a.memo.applied(gk, name, owner, desired)) {
		return a.report(ctx, u, o)
	}
	if live == nil && !o.creation.MayCreate(inventory.Of(u)) {
		return outcome{err: fmt.Errorf("cannot apply %s: it has gone since it was looked for, and is not to be created", ssautil.FmtUnstructured(u))}
	}
	if live != nil && gk == clusterKind {
		// Applying creates what is not there. A Cluster that goes at this very moment,
		// to another management cluster perhaps, must not be built again by that.
		u = pin(u, live)
		if body, err = encode(u); err != nil {
			return outcome{err: err}
		}
	}
	if watched {
		a.memo.begin(gk, name)
	}
	out := a.settle(ctx, u, live, body, o, mapping.Resource, name)
	if out.err == nil {
		out.sent = sent
	}
	switch {
	case watched && out.err == nil && out.got != nil:
		a.memo.remember(gk, name, owner, desired, u, out.got)
		out.remembered, out.settled = true, true
	case watched:
		a.memo.abandon(gk, name)
	}
	return out
}

// settle sends what has to be sent of an object.
func (a *Applier) settle(ctx context.Context, u *unstructured.Unstructured, live *Live, body []byte, o Options, resource schema.GroupVersionResource, name types.NamespacedName) outcome {
	action := ssa.CreatedAction
	got, err := (*metav1.PartialObjectMetadata)(nil), error(nil)
	force := mayRecreate(u, live, o)
	switch {
	case live != nil && (live.Foreign || len(o.Ignore) > 0 || o.MigrateAPIVersion):
		action, got, err = a.byLibrary(ctx, u, o, force, resource, name)
		if err == nil && len(o.Ignore) == 0 {
			// The fields are ours now. The answer to an apply, which changes nothing
			// any more, is what can be remembered.
			got, err = a.send(ctx, resource, name, body)
		}
	default:
		got, err = a.send(ctx, resource, name, body)
		if err != nil && force && ssaerrors.IsImmutableError(err) {
			action, got, err = a.byLibrary(ctx, u, o, force, resource, name)
			break
		}
		if err != nil {
			return outcome{err: ssaerrors.NewDryRunErr(err, u)}
		}
		if live != nil {
			action = ssa.ConfiguredAction
			if live.UID == got.UID && live.Version == got.ResourceVersion {
				action = ssa.UnchangedAction
			}
		}
	}
	if err != nil {
		return outcome{err: err}
	}
	return outcome{change: changeOf(u, action), got: got}
}

// send applies an object by one request.
func (a *Applier) send(ctx context.Context, resource schema.GroupVersionResource, name types.NamespacedName, body []byte) (*metav1.PartialObjectMetadata, error) {
	return a.client.send(ctx, resource, name, body, a.owner.FieldManager)
}

// mayRecreate reports whether an object may be deleted and created again to
// change an immutable field. What is protected never is: it could destroy a
// cluster.
func mayRecreate(u *unstructured.Unstructured, live *Live, o Options) bool {
	gk := u.GroupVersionKind().GroupKind()
	kind, _, _ := unstructured.NestedString(u.Object, "type")
	ofCluster := ssautil.IsSecret(u) && kind == clusterSecret || u.GetLabels()[clusterName] != ""
	return live != nil && !inventory.ProtectedKind(gk.Group, gk.Kind) && !ofCluster && !ssautil.IsNamespace(u) && !isSync(inventory.Of(u)) &&
		(o.Force || live.Force || ssautil.AnyInMetadata(u, forceSelector()))
}

// how describes what besides its body decides how an object is applied.
func (a *Applier) how(o Options) string {
	how := a.owner.FieldManager + " as " + a.client.Config.Impersonate.UserName
	if len(o.Ignore) > 0 {
		rules, err := json.Marshal(o.Ignore)
		how += fmt.Sprintf(" %s %v", rules, err)
	}
	return how
}

// look tells what is in the cluster under a name; nil if nothing is.
func (a *Applier) look(ctx context.Context, gk schema.GroupKind, resource schema.GroupVersionResource, name types.NamespacedName, watched bool, survey *Survey) (*Live, error) {
	if live, known := survey.find(resource, name.Namespace, name.Name); known {
		return live, nil
	}
	if !watched {
		return a.client.read(ctx, resource, name.Namespace, name.Name)
	}
	if live := a.memo.live(gk, name); live != nil {
		return live, nil
	}
	if gk == clusterKind {
		return a.client.read(ctx, resource, name.Namespace, name.Name) // exactly, whatever it costs
	}
	return a.client.peek(ctx, resource, name.Namespace, name.Name, a.memo.selector, a.memo.now())
}

// byLibrary applies an object by a live read, a dry run and, if that differs,
// an apply: for objects of which fields of other managers are taken over, that
// have fields to be ignored, or that have to be re-created.
func (a *Applier) byLibrary(ctx context.Context, u *unstructured.Unstructured, o Options, force bool, resource schema.GroupVersionResource, name types.NamespacedName) (ssa.Action, *metav1.PartialObjectMetadata, error) {
	options := ssa.DefaultApplyOptions()
	options.Force = force
	options.DriftIgnoreRules = o.Ignore
	options.MigrateAPIVersion = o.MigrateAPIVersion
	options.Cleanup = ssa.ApplyCleanupOptions{
		Annotations:   leftAnnotations(),
		Labels:        leftLabels(),
		FieldManagers: a.client.takenOver,
		Exclusions:    mergeSelector(),
	}
	set, err := a.manager.ApplyAll(ctx, []*unstructured.Unstructured{u}, options)
	if err != nil {
		return "", nil, err
	}
	got, err := a.client.metadata.Resource(resource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		// It was applied; what has become of it is seen the next time.
		return set.Entries[0].Action, nil, nil
	}
	return set.Entries[0].Action, got, nil
}

func changeOf(u *unstructured.Unstructured, action ssa.Action) ssa.ChangeSetEntry {
	return ssa.ChangeSetEntry{
		ObjMetadata:  object.UnstructuredToObjMetadata(u),
		GroupVersion: u.GroupVersionKind().Version,
		Subject:      ssautil.FmtUnstructured(u),
		Action:       action,
	}
}

// awaitStage waits a moment until the objects of a stage are usable by the
// next. Those that were before are not asked for again.
func (a *Applier) awaitStage(ctx context.Context, stage []*unstructured.Unstructured) error {
	var entries []inventory.Entry
	for _, u := range stage {
		e := inventory.Of(u)
		if !a.memo.isReady(e.GroupKind(), a.nameOf(e)) && !ssautil.AnyInMetadata(u, skipSelector()) {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	begin := time.Now()
	for {
		health, err := a.usable(ctx, stage, entries)
		if err == nil && health.Done() {
			for _, e := range entries {
				a.memo.setReady(e.GroupKind(), a.nameOf(e))
			}
			return nil
		}
		if time.Since(begin) > stageWait {
			return errors.Join(err, &WaitError{Health: health})
		}
		timer := time.NewTimer(stagePoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// usable is the health of the entries of a stage. A definition is usable when
// its kinds are served, which one question answers for all of them where
// discovery is shared; definitions themselves are large to read.
func (a *Applier) usable(ctx context.Context, stage []*unstructured.Unstructured, entries []inventory.Entry) (Health, error) {
	if a.client.kinds == nil {
		return a.Health(ctx, entries, nil)
	}
	definitions := map[inventory.Entry]*unstructured.Unstructured{}
	for _, u := range stage {
		if ssautil.IsCRD(u) {
			definitions[inventory.Of(u)] = u
		}
	}
	var found Health
	var others []inventory.Entry
	var now *served
	for _, e := range entries {
		u := definitions[e]
		if u == nil {
			others = append(others, e)
			continue
		}
		if now == nil {
			var err error
			if now, err = a.client.kinds.now(ctx, true); err != nil {
				return nil, err
			}
		}
		result := health.Result{Entry: e, Status: status.CurrentStatus}
		if missing := now.lacks(u); missing != "" {
			result.Status, result.Message = status.InProgressStatus, missing+" is not served yet"
		}
		found = append(found, result)
	}
	if len(others) == 0 {
		return found, nil
	}
	rest, err := a.Health(ctx, others, nil)
	return append(found, rest...), err
}

// lacks names a kind and version that a definition declares and that is not
// served.
func (s *served) lacks(crd *unstructured.Unstructured) string {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedFieldNoCopy(crd.Object, "spec", "versions") // with large schemas
	list, _ := versions.([]any)
	for _, v := range list {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		if version["served"] != true {
			continue
		}
		if _, err := s.mapper.RESTMapping(schema.GroupKind{Group: group, Kind: kind}, name); err != nil {
			return kind + "." + group + "/" + name
		}
	}
	return ""
}

// nameOf is the name under which the memo knows an object.
func (a *Applier) nameOf(e inventory.Entry) types.NamespacedName {
	name := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
	if mapping, err := a.client.RESTMapper().RESTMapping(e.GroupKind(), e.Version); err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		name.Namespace = ""
	}
	return name
}

// Selectors of Flux's annotations and labels, for ssautil.AnyInMetadata.

func skipSelector() map[string]string {
	return map[string]string{reconcileKey: disabledValue, ssaKey: ssaIgnore}
}
func ifNotPresentSelector() map[string]string { return map[string]string{ssaKey: ssaIfNotPresent} }
func forceSelector() map[string]string        { return map[string]string{forceKey: enabledValue} }
func mergeSelector() map[string]string        { return map[string]string{ssaKey: ssaMerge} }

// takenOverManagers are those of Flux's kustomize-controller: kubectl, its own
// updates of former days, and what the caller names, by prefix.
func takenOverManagers(overrides []string) []ssa.FieldManager {
	managers := []ssa.FieldManager{
		{Name: "flux-client-side-apply", OperationType: metav1.ManagedFieldsOperationApply, ExactMatch: true},
		{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationApply},
		{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationUpdate},
		{Name: "before-first-apply", OperationType: metav1.ManagedFieldsOperationUpdate},
		{Name: "kustomize-controller", OperationType: metav1.ManagedFieldsOperationUpdate},
	}
	for _, name := range overrides {
		managers = append(managers,
			ssa.FieldManager{Name: name, OperationType: metav1.ManagedFieldsOperationApply},
			ssa.FieldManager{Name: name, OperationType: metav1.ManagedFieldsOperationUpdate})
	}
	return managers
}

// Annotations and labels that former engines left on objects, which Flux
// removes.
func leftAnnotations() []string {
	return []string{lastAppliedConfig, group + "/checksum", "fluxcd.io/sync-checksum"}
}

func leftLabels() []string { return []string{"fluxcd.io/sync-gc-mark"} }
