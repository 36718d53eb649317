package kustomization

import (
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/syncer/status"

	"github.com/cascade-gitops/cascade/syncer/wake"

	"github.com/fluxcd/cli-utils/pkg/object"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

func entry(name string) inventory.Entry {
	return inventory.Entry{Namespace: "x", Name: name, Group: "apps", Kind: "Deployment", Version: "v1"}
}

// recordOf is the record of an object that nobody writes.
func recordOf(obj *kustomizev1.Kustomization) *status.Record[*kustomizev1.Kustomization] {
	return &status.Record[*kustomizev1.Kustomization]{Obj: obj}
}

// TestCorrections: drift is corrected at once, unless somebody insists.
func TestCorrections(t *testing.T) {
	p := &progress{}
	now := time.Unix(1000, 0)
	var got []time.Duration
	for range 14 {
		now = now.Add(time.Second)
		after, ok := p.touched(entry("a"), true, now)
		if !ok {
			t.Fatal("drift calls for nothing")
		}
		got = append(got, after)
	}
	q := wake.TouchDelay
	want := []time.Duration{q, q, q, q, q, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second,
		time.Minute, time.Minute, time.Minute, time.Minute}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("delays of corrections, one each second: -want, +got:\n%s", diff)
	}
	if after, _ := p.touched(entry("a"), true, now.Add(calmAfter+time.Second)); after != wake.TouchDelay {
		t.Errorf("a correction after calm waits %s, want %s", after, wake.TouchDelay)
	}
}

// TestCorrectionsOfNothing: a look that changed nothing leaves the next correction quick, unless it left something
// that is not as it should be: it may lead to the next look by itself, and would without a pause.
func TestCorrectionsOfNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		reason     string
		remembered int
		want       time.Duration
	}{
		"Clean":   {"a controller did its work", 0, wake.TouchDelay},
		"Touched": {"one of the objects is still touched", 1, 32 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p, now := &progress{}, time.Unix(1000, 0)
			var got time.Duration
			for range 10 {
				now = now.Add(time.Second)
				got, _ = p.touched(entry("a"), true, now)
				p.synced(&run{
					Record: recordOf(shop(nil)), memo: &memo.Memo{}, rendering: &render.Rendering{},
					sync: &apply.Result{Changes: ssa.NewChangeSet(), Remembered: tc.remembered},
				}, true, false, time.Time{})
			}
			if got != tc.want {
				t.Errorf("%s: the tenth look comes after %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

func TestSweepDue(t *testing.T) {
	p := &progress{}
	now := time.Unix(1000, 0)
	if p.sweepDue(now) {
		t.Error("a sweep is due before anything was applied")
	}
	p.sweep = now.Add(time.Minute)
	if p.sweepDue(now) {
		t.Error("a sweep is due before its time")
	}
	if !p.sweepDue(now.Add(time.Minute)) {
		t.Error("a sweep is not due at its time")
	}
	if p.sweepDue(now.Add(time.Hour)) {
		t.Error("a sweep is due twice")
	}
}

// TestAwait: which objects a look at health asks for.
func TestAwait(t *testing.T) {
	p := &progress{}
	obj := &kustomizev1.Kustomization{}
	change := func(action ssa.Action, names ...string) *apply.Result {
		set := ssa.NewChangeSet()
		for _, name := range names {
			e := entry(name)
			c := ssa.ChangeSetEntry{GroupVersion: e.Version, Action: action}
			c.ObjMetadata.Namespace, c.ObjMetadata.Name, c.ObjMetadata.GroupKind = e.Namespace, e.Name, e.GroupKind()
			set.Add(c)
		}
		return &apply.Result{Changes: set, Complete: true}
	}
	names := func(entries []inventory.Entry) string {
		text := ""
		for _, e := range entries {
			text += e.Name
		}
		return text
	}
	none := &memo.Memo{}
	look := func(revision string, sync *apply.Result, now int64) (string, int64) {
		pending, since := p.await(&run{Record: recordOf(obj), snapshot: &source.Snapshot{Revision: revision}, sync: sync, memo: none}, time.Unix(now, 0))
		return names(pending), since.Unix()
	}
	for _, step := range []struct {
		reason   string
		revision string
		sync     *apply.Result
		now      int64
		before   func()
		want     string
		since    int64
	}{
		{"everything is looked at first", "1", change(ssa.CreatedAction, "a", "b", "c"), 10, func() {}, "abc", 10},
		{"later only what was not healthy", "1", change(ssa.UnchangedAction, "a", "b", "c"), 20, func() { p.waits([]inventory.Entry{entry("b")}) }, "b", 10},
		{"and what changed meanwhile, each once", "1", change(ssa.UnchangedAction, "a", "b", "c"), 30, func() {
			p.touched(entry("b"), false, time.Unix(25, 0))
			p.touched(entry("c"), false, time.Unix(25, 0))
		}, "bc", 10},
		{"a new revision is waited for anew, with what is left of the last", "2", change(ssa.UnchangedAction, "a", "b"), 40, func() {}, "b", 40},
		{"when all are healthy, only changes are looked at", "2", change(ssa.UnchangedAction, "a", "b"), 50, p.healthy, "", 50},
		{"our own ones as well", "3", change(ssa.ConfiguredAction, "a"), 60, func() {}, "a", 60},
		{"after a failure what is left, with a time-out of its own", "3", change(ssa.UnchangedAction, "a"), 90, func() { p.unhealthy([]inventory.Entry{entry("a")}, time.Unix(80, 0)) }, "a", 90},
		{"an object that is no longer declared is not waited for", "4", change(ssa.UnchangedAction, "z"), 100, func() {}, "", 100},
		{"another spec may judge otherwise: spec.healthCheckExprs", "4", change(ssa.UnchangedAction, "a", "z"), 110, func() { p.healthy(); obj.Generation++ }, "az", 110},
		{"what was judged so is not looked at again", "4", change(ssa.UnchangedAction, "a", "z"), 120, p.healthy, "", 120},
		{"what a run changed that did not come to look at it is looked at by the next", "4", change(ssa.UnchangedAction, "a", "z"), 125, func() {
			p.healthy()
			p.synced(&run{Record: recordOf(obj), rendering: &render.Rendering{}, sync: change(ssa.ConfiguredAction, "a")}, true, false, time.Time{})
		}, "a", 125},
		{"of what spec.healthChecks left out nothing is known", "4", change(ssa.UnchangedAction, "a", "z"), 130, func() {
			p.awaitOnly(&run{Record: recordOf(obj), snapshot: &source.Snapshot{Revision: "4"}}, time.Unix(125, 0))
			p.healthy()
		}, "az", 130},
	} {
		step.before()
		got, since := look(step.revision, step.sync, step.now)
		if got != step.want || since != step.since {
			t.Fatalf("%s: pending %q since %d, want %q since %d", step.reason, got, since, step.want, step.since)
		}
	}
}

// TestAwaitWithoutWatch: where nothing tells of changes, everything is looked at
// each time; and what is touched during a look is looked at again.
func TestAwaitWithoutWatch(t *testing.T) {
	obj := &kustomizev1.Kustomization{}
	set := ssa.NewChangeSet()
	c := ssa.ChangeSetEntry{GroupVersion: "v1", Action: ssa.UnchangedAction}
	c.ObjMetadata.Namespace, c.ObjMetadata.Name, c.ObjMetadata.GroupKind = entry("a").Namespace, "a", entry("a").GroupKind()
	set.Add(c)
	for name, tc := range map[string]struct {
		reason   string
		memo     *memo.Memo
		complete bool
		want     int
	}{
		"Remote":    {"another cluster is not watched", nil, true, 1},
		"Unwatched": {"one of the objects is not", &memo.Memo{}, false, 1},
		"Watched":   {"nothing was touched", &memo.Memo{}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := &progress{}
			look := func() []inventory.Entry {
				r := &run{Record: recordOf(obj), snapshot: &source.Snapshot{}, memo: tc.memo, sync: &apply.Result{Changes: set, Complete: tc.complete}}
				pending, _ := p.await(r, time.Unix(1, 0))
				return pending
			}
			look()
			p.healthy()
			if got := look(); len(got) != tc.want {
				t.Errorf("%s: %v is looked at, want %d objects", tc.reason, got, tc.want)
			}
			e := entry("a")
			e.Version = "v1beta1"
			p.touched(e, false, time.Unix(2, 0))
			p.healthy()
			if got := look(); len(got) != 1 {
				t.Errorf("what was touched during the look, in another version of its API, is forgotten: %v", got)
			}
		})
	}
}

// TestJobs: a Job that the cluster removes when it is done is no drift, and does not run
// again before the next interval, unless something else is asked for.
func TestJobs(t *testing.T) {
	job := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"namespace": "x", "name": "migrate"},
		"spec": map[string]any{"ttlSecondsAfterFinished": int64(60)},
	}}
	result := func(action ssa.Action) *apply.Result {
		set := ssa.NewChangeSet()
		if action != "" {
			set.Add(ssa.ChangeSetEntry{ObjMetadata: object.UnstructuredToObjMetadata(job), GroupVersion: "v1", Action: action})
		}
		return &apply.Result{Changes: set}
	}
	at := func(minute int, revision string, requested string) *run {
		obj := shop(func(k *kustomizev1.Kustomization) {
			if requested != "" {
				k.Annotations = map[string]string{meta.ReconcileRequestAnnotation: requested}
			}
		})
		return &run{Record: recordOf(obj), snapshot: &source.Snapshot{Revision: revision}, start: time.Unix(0, 0).Add(time.Duration(minute) * time.Minute),
			rendering: &render.Rendering{Objects: []*unstructured.Unstructured{job}}}
	}
	in := func(r *run, cluster string) *run {
		r.target.Cluster = cluster
		return r
	}
	changed := job.DeepCopy()
	changed.SetLabels(map[string]string{"a": "b"})
	for name, tc := range map[string]struct {
		reason  string
		applied ssa.Action
		next    *run
		job     *unstructured.Unstructured
		want    bool
	}{
		"Gone":      {"it is done, and removed", ssa.CreatedAction, at(1, "1", ""), job, true},
		"Interval":  {"as with Flux it runs with each interval", ssa.CreatedAction, at(57, "1", ""), job, false},
		"Commit":    {"and for each revision", ssa.CreatedAction, at(1, "2", ""), job, false},
		"Requested": {"and when a person asks", ssa.CreatedAction, at(1, "1", "now"), job, false},
		"Changed":   {"a variable is another one", ssa.CreatedAction, at(1, "1", ""), changed, false},
		"Rebuilt":   {"another cluster has taken the place of that one", ssa.CreatedAction, in(at(1, "1", ""), "2"), job, false},
		"Failed":    {"it was not applied", "", at(1, "1", ""), job, false},
		"Skipped":   {"or not for us", ssa.SkippedAction, at(1, "1", ""), job, false},
		"Other":     {"what stays is applied", ssa.CreatedAction, at(1, "1", ""), shopObject("a"), false},
	} {
		t.Run(name, func(t *testing.T) {
			p, first := &progress{}, at(0, "1", "")
			first.sync = result(tc.applied)
			p.synced(first, true, true, time.Time{})
			if got := p.ran(tc.next, tc.job); got != tc.want {
				t.Errorf("%s: ran() = %t", tc.reason, got)
			}
			if _, ok := p.touched(inventory.Of(job), true, time.Unix(1, 0)); ok {
				t.Errorf("%s: that the Job is gone calls for a reconcile", tc.reason)
			}
			// A reconcile in between leaves it as it was, and does not put off when it runs next.
			between := at(10, "1", "")
			between.sync = result(ssa.UnchangedAction)
			if p.synced(between, true, true, time.Time{}); tc.want && p.ran(at(57, "1", ""), job) {
				t.Errorf("%s: it does not run with the next interval", tc.reason)
			}
		})
	}
}

// TestJobFailed: a Job that failed runs again with the next try, as with Flux, also when the
// cluster has removed it: that it is gone must not make its Kustomization ready.
func TestJobFailed(t *testing.T) {
	job := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"namespace": "x", "name": "migrate"},
		"spec": map[string]any{"ttlSecondsAfterFinished": int64(60)},
	}}
	for name, tc := range map[string]struct {
		reason string
		ends   func(*progress)
		ran    bool
	}{
		"Healthy": {"it is done", (*progress).healthy, true},
		"Failed":  {"it failed", func(p *progress) { p.unhealthy([]inventory.Entry{inventory.Of(job)}, time.Unix(1, 0)) }, false},
		"Other":   {"another object is not healthy", func(p *progress) { p.unhealthy([]inventory.Entry{entry("a")}, time.Unix(1, 0)) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			set := ssa.NewChangeSet()
			set.Add(ssa.ChangeSetEntry{ObjMetadata: object.UnstructuredToObjMetadata(job), GroupVersion: "v1", Action: ssa.CreatedAction})
			r := &run{Record: recordOf(shop(nil)), snapshot: &source.Snapshot{Revision: "1"}, start: time.Unix(0, 0), sync: &apply.Result{Changes: set},
				rendering: &render.Rendering{Objects: []*unstructured.Unstructured{job}}}
			p := &progress{}
			p.synced(r, true, true, time.Time{})
			tc.ends(p)
			r.start = time.Unix(150, 0)
			if got := p.ran(r, job); got != tc.ran {
				t.Errorf("%s: ran() = %t", tc.reason, got)
			}
			// What this try leaves alone does not count as run by that.
			set.Entries[0].Action = ssa.UnchangedAction
			p.synced(r, true, true, time.Time{})
			if got := p.ran(r, job); got != tc.ran {
				t.Errorf("%s: ran() = %t after a try that changed nothing", tc.reason, got)
			}
		})
	}
}

func shopObject(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "x", "name": name}}}
}

// TestTouchedWhileWaiting: an event ends the pause of a health check, and calls
// for nothing when nothing is waited for.
func TestTouchedWhileWaiting(t *testing.T) {
	p := &progress{}
	if _, ok := p.touched(entry("a"), false, time.Unix(1, 0)); ok {
		t.Error("a change of status calls for a reconcile although nobody waits")
	}
	p.wait = &healthWait{since: time.Unix(1, 0)}
	if _, ok := p.touched(entry("a"), false, time.Unix(2, 0)); !ok {
		t.Error("a change of status does not wake the health check")
	}
}

// TestTouchedAfterFailure: what was not healthy in time is looked at when it changes, and nothing
// else; the more that is, the less often.
func TestTouchedAfterFailure(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	r := &run{Record: recordOf(shop(nil)), snapshot: &source.Snapshot{Revision: "1"}}
	p := &progress{}
	p.wait = &healthWait{began: true, inputs: inputsOf(r), since: at(1)}
	p.unhealthy([]inventory.Entry{entry("a")}, at(300))
	if _, ok := p.touched(entry("b"), false, at(310)); ok {
		t.Error("a change of what was healthy calls for a look")
	}
	if after, ok := p.touched(entry("a"), false, at(310)); !ok || after != healthPoll {
		t.Errorf("a change of what was not healthy calls for a look: %t, after %s", ok, after)
	}
	if _, ok := p.touched(entry("a"), false, at(311)); ok {
		t.Error("one more change calls for one more look")
	}
	next, ok := p.glance(r, at(315))
	if !ok || next != r.Obj.GetRetryInterval()-15*time.Second {
		t.Errorf("it is looked at besides the retries: %t, the next comes after %s", ok, next)
	}
	p.glanced([]inventory.Entry{entry("a")})
	if after, _ := p.touched(entry("a"), false, at(316)); after != glancePause-time.Second {
		t.Errorf("it is looked at again after %s", after)
	}
	many := make([]inventory.Entry, 1000)
	for i := range many {
		many[i] = entry("a")
	}
	p.glanced(many)
	if after, _ := p.touched(entry("a"), false, at(345)); after != 1000*glanceEach-30*time.Second {
		t.Errorf("a thousand are looked at again after %s", after)
	}
	if _, ok := p.glance(r, at(360)); ok {
		t.Error("the retry is none")
	}
	p.unhealthy([]inventory.Entry{entry("a")}, at(700))
	p.jobs = map[inventory.Entry]job{entry("a"): {}}
	if _, ok := p.touched(entry("a"), true, at(740)); ok {
		t.Error("a Job that failed runs again as it is removed")
	}
}

// TestCovers: an inventory that was read before the last write does not have what that
// write added, whatever this process remembers.
func TestCovers(t *testing.T) {
	snapshot := &source.Snapshot{Revision: "main@sha1:1"}
	applied := refs([]inventory.Entry{entry("a"), entry("b")})
	at := func(version string, generation int64, inventory *kustomizev1.ResourceInventory) *kustomizev1.Kustomization {
		k := shop(nil)
		k.ResourceVersion, k.Generation, k.Status.Inventory = version, generation, inventory
		return k
	}
	for name, tc := range map[string]struct {
		reason        string
		rendered      *rendered
		obj           *kustomizev1.Kustomization
		covers, known bool
	}{
		"Read":    {"the read inventory has all of it", &rendered{generation: 1, recorded: true, inventory: applied.Entries}, at("2", 1, applied), true, true},
		"Lags":    {"the cache is behind our own write", &rendered{generation: 1, recorded: true, inventory: applied.Entries}, at("1", 1, refs([]inventory.Entry{entry("a")})), false, true},
		"Spec":    {"another spec declares something else", &rendered{generation: 1, recorded: true, inventory: applied.Entries}, at("2", 2, applied), false, true},
		"Failed":  {"it could not be recorded", &rendered{generation: 1, inventory: applied.Entries}, at("2", 1, applied), false, true},
		"Restart": {"nothing is known", nil, at("2", 1, applied), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.rendered != nil {
				tc.rendered.reads = &render.ReadSet{}
			}
			p := &progress{rendered: tc.rendered}
			for range 2 {
				covers, known := p.covers(tc.obj, snapshot, nil)
				if covers != tc.covers || known != tc.known {
					t.Errorf("%s: covers() = %t, %t", tc.reason, covers, known)
				}
			}
		})
	}
}
