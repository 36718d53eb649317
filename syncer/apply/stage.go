package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/ssa"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/memo"
)

// Numbers of a staged apply.
const (
	// stageWait is how long Sync itself waits for CRDs and namespaces of a stage
	// to become usable; they mostly are within a fraction of a second. After
	// that the caller comes back.
	stageWait = time.Second
	stagePoll = 100 * time.Millisecond
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

// Flux's stages, in their order: definitions that others need, classes, the kinds
// that the caller names, and the rest.
const (
	definitionStage = iota
	classStage
	customStage
	lastStage
	stageCount
)

// stages splits objects into Flux's stages.
func stages(objects []*unstructured.Unstructured, custom map[schema.GroupKind]struct{}) [][]*unstructured.Unstructured {
	out := make([][]*unstructured.Unstructured, stageCount)
	for _, u := range objects {
		i := lastStage
		switch {
		case ssautil.IsClusterDefinition(u):
			i = definitionStage
		case ssautil.IsClassDefinition(u):
			i = classStage
		case ssautil.IsCustomStage(u, custom):
			i = customStage
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

// stages sends the objects, stage by stage. An object that fails does not stop
// the others of its stage; the next stage begins only when all of one are
// applied and, for definitions and classes, usable.
func (r *run) stages(ctx context.Context, objects []*unstructured.Unstructured, bodies bodies) error {
	for i, stage := range stages(objects, r.options.Stages) {
		fresh, err := r.stage(ctx, stage, bodies)
		if err != nil {
			return err
		}
		if i == definitionStage || i == classStage {
			if err := r.awaitStage(ctx, fresh); err != nil {
				return err
			}
		}
	}
	return nil
}

// stage sends the objects of one stage and returns those that were not sent
// before.
func (r *run) stage(ctx context.Context, stage []*unstructured.Unstructured, bodies bodies) (fresh []*unstructured.Unstructured, err error) {
	var failed Failures
	for _, rank := range ranks(stage) {
		for i, out := range r.applyRank(ctx, rank, bodies) {
			if _, before := r.options.Sent.of(out.sent); !before || out.got != nil {
				fresh = append(fresh, rank[i])
			}
			if out.err != nil {
				failed = append(failed, out.err)
				if body, err := bodies.of(rank[i]); err == nil && !out.unseen {
					r.tried[sentKeyOf(rank[i], body)] = struct{}{}
				}
				continue
			}
			r.add(out)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	if len(failed) > 0 {
		return nil, failed.orWait()
	}
	return fresh, nil
}

// slowAfter is how long applying takes when the caller is told that it is slow.
const slowAfter = 10 * time.Second

// isSlow reports whether the caller is to be told that it takes long.
func (r *run) isSlow() bool {
	return r.options.Slow != nil && !r.slow && r.now().Sub(r.begun) > slowAfter
}

// tellSlow tells the caller that it takes long. No request may be under way: whoever is told may write
// what is sent.
func (r *run) tellSlow(ctx context.Context) {
	r.slow = true
	r.options.Slow(ctx)
}

// each calls f for each of n objects, some at a time. What takes long is told in between.
func (r *run) each(ctx context.Context, n int, f func(i int)) {
	var mu sync.Mutex
	var left []int
	inParallel(r.client.parallel, n, func(i int) {
		if !r.isSlow() {
			f(i)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		left = append(left, i)
	})
	if len(left) > 0 {
		r.tellSlow(ctx)
		inParallel(r.client.parallel, len(left), func(i int) { f(left[i]) })
	}
}

// orWait is one wait if all failures are waits. Among others, a wait is a failure like
// them: what is wrong must not be said only after the wait.
func (f Failures) orWait() error {
	all := &WaitError{}
	for _, err := range f {
		var waiting *WaitError
		if !errors.As(err, &waiting) {
			return f.plain()
		}
		all.Health = append(all.Health, waiting.Health...)
	}
	return all
}

// GoingError tells, among failures of other objects, of one that is to be created again once
// it is gone.
type GoingError struct{ text string }

func (e *GoingError) Error() string { return e.text }

// plain has the waits among failures as texts.
func (f Failures) plain() Failures {
	plain := make(Failures, 0, len(f))
	for _, err := range f {
		var waiting *WaitError
		switch {
		case errors.As(err, &waiting) && waiting.Going():
			err = &GoingError{err.Error()}
		case waiting != nil:
			err = errors.New(err.Error())
		}
		plain = append(plain, err)
	}
	return plain
}

// awaitStage waits a moment until the objects of a stage are usable by the
// next. Those that were before are not asked for again.
func (a *Applier) awaitStage(ctx context.Context, stage []*unstructured.Unstructured) error {
	var entries []inventory.Entry
	for _, u := range stage {
		e := inventory.Of(u)
		if !a.memo.Ready(a.memoKey(e)) && !directive.Selects(directive.Skip(), u) {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	begin := a.now()
	for {
		health, err := a.usable(ctx, stage, entries)
		if err == nil && health.Done() {
			for _, e := range entries {
				a.memo.SetReady(a.memoKey(e))
			}
			return nil
		}
		if a.now().Sub(begin) > stageWait {
			return errors.Join(err, &WaitError{Health: health})
		}
		if err := pause(ctx, stagePoll); err != nil {
			return err
		}
	}
}

// pause waits a moment, unless the context ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
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

// memoKey is the name under which the memo knows an object.
func (a *Applier) memoKey(e inventory.Entry) memo.Object {
	name := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
	if mapping, err := a.client.RESTMapper().RESTMapping(e.GroupKind(), e.Version); err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		name.Namespace = ""
	}
	return memo.Object{Kind: e.GroupKind(), Name: name}
}
