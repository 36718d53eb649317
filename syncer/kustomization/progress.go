package kustomization

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cascade-gitops/cascade/syncer/wake"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// Corrections of drift come at once, unless they come again and again: then
// somebody else insists, and both would keep the API server busy.
const (
	// calmAfter is how long nothing may happen for corrections to be quick again.
	calmAfter = 2 * time.Minute
	// quickCorrections are not delayed.
	quickCorrections = 5
	maxCorrection    = time.Minute
)

// progress is what this process knows of a Kustomization beyond its status. It
// is lost with the process, which costs a verification of every object and
// nothing else. It is safe for concurrent use.
type progress struct {
	mu sync.Mutex
	// uid is that of the Kustomization.
	uid types.UID
	// rendered is nil until a rendering was applied without a remainder.
	rendered *rendered
	// refused is the last rendering if it failed for its inputs.
	refused *refused
	// applied is where this process applied to last, and as whom; nil if it did not.
	applied *target.Ref
	// way is that to the other cluster which was aimed at last.
	way digest.Sum
	// sweep is when everything is verified again.
	sweep time.Time
	// attempted is the revision that this process applies, or applied last.
	attempted string
	// whole is the revision that this process applied completely last without a Rollout; empty once Rollouts
	// have given every Cluster one of its own.
	whole string
	// stage is since when an early stage is waited for; going, if it is the end of an object.
	stage time.Time
	going bool
	wait  *healthWait
	// jobs are those Jobs that the cluster removes when they are done.
	jobs map[inventory.Entry]job
	// deletes is since when objects are being deleted.
	deletes time.Time
	// terminates is since when all objects of a deleted Kustomization are being deleted.
	terminates time.Time
	// leave is how long it has been tried in vain to leave another cluster, and left when it was
	// tried last.
	leave time.Duration
	left  time.Time
	// handOver is what this process has seen of objects that are kept for others.
	handOver inventory.Seen
	// unsure are objects that changed since their health was last looked at.
	unsure map[inventory.Entry]struct{}
	// older are renderings of revisions that Clusters may have besides the newest one.
	older map[string]olderRendering
	// versions of Kubernetes that were declared of Clusters when they were judged.
	versions map[types.NamespacedName]string
	// composition is there while a Rollout governs it; running are versions of Kubernetes that
	// clusters had a moment ago, and outstanding what they waited for.
	composition *composition
	// idle is why nothing is composed since; empty while it is.
	idle        string
	running     map[asked]running
	outstanding map[look]outstanding
	// withheld are Clusters whose releases did not begin with what was applied, as their control planes could not be
	// read, each with when that ended; zero while it lasts.
	withheld map[types.NamespacedName]time.Time
	// corrections of drift since things were calm, and the last of them.
	corrections int
	corrected   time.Time
}

// rendered is a rendering that was applied, without its objects.
type rendered struct {
	key       string
	reads     *render.ReadSet
	digest    string
	inventory []kustomizev1.ResourceRef
	approved  string
	// governed is the version of what Rollouts said.
	governed string
	// generation of the spec. recorded: the inventory has all of it.
	generation int64
	recorded   bool
	// newest is the snapshot that was found to have the same files, and read the
	// version of the object that was found to have the inventory.
	newest *source.Snapshot
	read   string
	// objects that the memo holds of it; final: nothing but them can call for
	// another look.
	objects int
	final   bool
}

// refused is a rendering that comes to the same error while its inputs are the same.
type refused struct {
	key       string
	requested string
	err       *render.Error
}

// job is a Job that the cluster removes when it is done.
type job struct {
	// body identifies what was applied, cluster is where, inputs are what for, and at is when;
	// zero if it was not.
	body    digest.Sum
	cluster string
	inputs  healthInputs
	at      time.Time
}

// healthWait is what is known of the health of what was applied.
type healthWait struct {
	// began: every object was looked at as the spec of this generation has it judged, and
	// what is not pending was healthy.
	began      bool
	generation int64
	pending    []inventory.Entry
	// since is zero while nothing is waited for, and inputs are what the time-out is measured for. It goes on for
	// revision, of which the rendering has the same digest.
	since    time.Time
	inputs   healthInputs
	revision string
	digest   string
	// failed is when the wait failed that began at before, zero unless the last one did; glanced
	// is when what was pending then was looked at since, and due when it is the next time.
	failed, before, glanced, due time.Time
}

// healthInputs are what a time-out for health is measured from.
type healthInputs struct {
	revision   string
	generation int64
	requested  string
}

func inputsOf(run *run) healthInputs {
	return healthInputs{run.snapshot.Revision, run.Obj.Generation, run.Obj.Annotations[meta.ReconcileRequestAnnotation]}
}

// isOf reports whether this is known of the object with a UID: of none until it is told of one.
func (p *progress) isOf(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uid == "" {
		p.uid = uid
	}
	return p.uid == uid
}

// sameFiles reports whether everything that the last rendering read is the same
// in a snapshot. What cannot be read counts as changed.
func (p *progress) sameFiles(snapshot *source.Snapshot) bool {
	p.mu.Lock()
	rendered := p.rendered
	p.mu.Unlock()
	if rendered == nil {
		return false
	}
	same, err := rendered.reads.Unchanged(snapshot)
	return err == nil && same
}

// covers reports whether the last rendering is of the generation of an object, of what
// Rollouts say and of the same files as a snapshot, and all of it is in the inventory that the object was read
// with. That one may be older than what this process wrote, and one that a rendering did not get into lacks what is
// new, whatever the status says of the revision: variables may have changed. rendered is false if this process has
// not rendered anything.
func (p *progress) covers(obj *kustomizev1.Kustomization, snapshot *source.Snapshot, governed *governed) (covers, rendered bool) {
	p.mu.Lock()
	last := p.rendered
	known := last != nil && last.newest == snapshot && last.read == obj.ResourceVersion
	p.mu.Unlock()
	switch {
	case last == nil:
		return false, false
	case !last.recorded, last.generation != obj.Generation, last.governed != governed.version():
		return false, true
	case known:
		return true, true
	case !slices.Equal(last.inventory, obj.Status.Inventory.Entries):
		return false, true
	}
	same, err := last.reads.Unchanged(snapshot)
	if err != nil || !same {
		return false, true
	}
	p.mu.Lock()
	last.newest, last.read = snapshot, obj.ResourceVersion
	p.mu.Unlock()
	return true, true
}

// refuse notes why a rendering failed, if that comes again with the same inputs.
func (p *progress) refuse(run *run, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = nil
	var lasting *render.Error
	if errors.As(err, &lasting) && lasting.Reads != nil {
		p.refused = &refused{key: run.key, requested: run.Obj.Annotations[meta.ReconcileRequestAnnotation], err: lasting}
	}
}

// refusal is the error that rendering would come to again, or nil. A person who asks for
// a reconcile gets another try.
func (p *progress) refusal(run *run, files render.Files) error {
	p.mu.Lock()
	refused := p.refused
	p.mu.Unlock()
	if refused == nil || refused.key != run.key || refused.requested != run.Obj.Annotations[meta.ReconcileRequestAnnotation] {
		return nil
	}
	if same, err := refused.err.Reads.Unchanged(files); err != nil || !same {
		return nil
	}
	return refused.err
}

// stands reports whether the last rendering is still the right one: its inputs are the same,
// it was applied completely, and what was recorded then is still recorded.
func (p *progress) stands(key string, snapshot *source.Snapshot, obj *kustomizev1.Kustomization) bool {
	p.mu.Lock()
	rendered := p.rendered
	p.mu.Unlock()
	return rendered != nil && rendered.final && rendered.key == key &&
		obj.Status.Inventory != nil && slices.Equal(rendered.inventory, obj.Status.Inventory.Entries) &&
		rendered.approved == obj.Annotations[v1alpha1.ApprovePruneAnnotation] &&
		p.sameFiles(snapshot)
}

// sameInputs reports whether nothing but files differs from what the last rendering was made
// of, as far as this process knows.
func (p *progress) sameInputs(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rendered == nil || p.rendered.key == key
}

func (p *progress) remembered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rendered == nil {
		return 0
	}
	return p.rendered.objects
}

// digest of the last rendering that was applied.
func (p *progress) digest() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.digestLocked()
}

// digestLocked is digest. p is locked.
func (p *progress) digestLocked() string {
	if p.rendered == nil {
		return ""
	}
	return p.rendered.digest
}

// synced notes a rendering that was sent to the cluster. recorded: all of it was written
// into the inventory before.
func (p *progress) synced(run *run, recorded, final bool, sweep time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rendered = &rendered{
		key: run.key, reads: run.rendering.Reads, digest: run.rendering.Digest,
		approved: run.Obj.Annotations[v1alpha1.ApprovePruneAnnotation],
		objects:  run.sync.Remembered, final: final,
		generation: run.Obj.Generation, recorded: recorded, governed: run.governed.version(),
	}
	if run.Obj.Status.Inventory != nil {
		p.rendered.inventory = run.Obj.Status.Inventory.Entries
	}
	p.applied = new(run.target)
	if p.sweep.IsZero() {
		p.sweep = sweep
	}
	if len(run.changed()) == 0 && run.memo.Clean(run.name(), run.sync.Remembered) {
		// What was touched was not drift: a controller did its work. Where something is not as it should be all
		// the same, one look may lead to the next.
		p.corrections = 0
	}
	if !run.sync.Pending {
		p.deletes = time.Time{}
	}
	// This run may end before it looks at the health of what it changed, and the watch tells of
	// no write of ours.
	for _, e := range run.changed() {
		p.doubts(e)
	}
	p.noteJobs(run)
}

// appliedTo is where this process applied to last, and as whom; nil if it did not.
func (p *progress) appliedTo() *target.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applied
}

// noteJobs notes which of the Jobs that the cluster removes were applied. p is locked.
func (p *progress) noteJobs(run *run) {
	before := p.jobs
	p.jobs = nil
	for _, u := range run.rendering.Objects {
		if !health.Vanishes(u) {
			continue
		}
		e, now := inventory.Of(u), job{}
		switch body := bodyOf(u); {
		case slices.Contains(run.changed(), e):
			now = job{body, run.target.Cluster, inputsOf(run), run.start}
		case !slices.Contains(run.declared(), e):
		case before[e].is(run, body):
			now = before[e]
		default:
			now = job{body, run.target.Cluster, inputsOf(run), run.start}
		}
		if p.jobs == nil {
			p.jobs = map[inventory.Entry]job{}
		}
		p.jobs[e] = now
	}
}

func bodyOf(u *unstructured.Unstructured) digest.Sum {
	sum, _ := digest.JSON(u.Object) // it was decoded from JSON, and can be encoded
	return sum
}

// ran reports whether a Job that the cluster removes was applied in this form for what the
// run is for, so that it is not to run again if it is gone. As with Flux it runs again with
// the next interval, or when something else is asked for. Half of the interval is enough:
// intervals are spread, and what comes in between comes much sooner.
func (p *progress) ran(run *run, u *unstructured.Unstructured) bool {
	if !health.Vanishes(u) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[inventory.Of(u)]
	return !j.at.IsZero() && run.start.Sub(j.at) < run.Obj.Spec.Interval.Duration/2 && j.is(run, bodyOf(u))
}

// is reports whether a Job was applied in a form, to the cluster that a run applies to, for what
// it is for.
func (j job) is(run *run, body digest.Sum) bool {
	return j.body == body && j.cluster == run.target.Cluster && j.inputs == inputsOf(run)
}

// isJob reports whether an object is a Job that the cluster removes. p is locked.
func (p *progress) isJob(object inventory.Entry) bool {
	for e := range p.jobs {
		if anyVersion(e) == anyVersion(object) {
			return true
		}
	}
	return false
}

// vanished marks what is not found because it was done and removed.
func (p *progress) vanished(found apply.Health) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range found {
		_, is := p.jobs[found[i].Entry]
		found[i].Vanishes = found[i].Vanishes || is
	}
}

// terminating is since when all objects of a deleted Kustomization are being deleted.
func (p *progress) terminating(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminates.IsZero() {
		p.terminates = now
	}
	return p.terminates
}

// leaving notes a try to leave another cluster that was in vain, and returns for how long that
// has been tried. Time in which nobody tried does not count: it was suspended, or its build failed.
func (p *progress) leaving(start, end time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.left.IsZero() {
		p.leave += min(start.Sub(p.left), 3*leavePoll)
	}
	p.leave += end.Sub(start)
	p.left = end
	return p.leave
}

// arrived: no other cluster is being left any more, or the attempt to did not fail.
func (p *progress) arrived() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave, p.left = 0, time.Time{}
}

// aims notes the way to the cluster that was aimed at.
func (p *progress) aims(way digest.Sum) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.way = way
}

// aimedAt reports whether a way is that to the other cluster which was aimed at last; the zero one, whether none was.
func (p *progress) aimedAt(way digest.Sum) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.way == way
}

// handsOver returns the record of what is kept for others, without the time in which nobody looked.
func (p *progress) handsOver(record *v1alpha1.HandOver, now time.Time) *v1alpha1.HandOver {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handOver.Look(record, now)
}

// stageOver ends the wait for an early stage.
func (p *progress) stageOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage = time.Time{}
}

// invalidate makes the next reconcile render again.
func (p *progress) invalidate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rendered = nil
}

// sweepDue reports, once, that everything is to be verified again.
func (p *progress) sweepDue(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sweep.IsZero() || now.Before(p.sweep) {
		return false
	}
	p.sweep = time.Time{}
	return true
}

// attempts notes that this process is about to apply a revision.
func (p *progress) attempts(revision string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempted = revision
}

// hasAttempted reports whether this process applies a revision, or applied it last. It is false for a
// Kustomization of which nothing is known.
func (p *progress) hasAttempted(revision string) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempted == revision
}

// completes notes that all of what a run composed is in place.
func (p *progress) completes(run *run) {
	if run.governed.waits() {
		return // it is not of those that were given nothing yet
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.whole = ""; run.governed == nil {
		p.whole = run.snapshot.Revision
	}
}

// wholly is what this process applied completely last without a Rollout; empty if it is not known to have.
func (p *progress) wholly() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.whole
}

// stageSince is since when an early stage is waited for, or the end of objects that are going.
func (p *progress) stageSince(now time.Time, going bool) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stage.IsZero() || p.going != going {
		p.stage, p.going = now, going
	}
	return p.stage
}

// doubts has the health of an object looked at. p is locked.
func (p *progress) doubts(object inventory.Entry) {
	if p.unsure == nil {
		p.unsure = map[inventory.Entry]struct{}{}
	}
	p.unsure[anyVersion(object)] = struct{}{}
}

// touched notes that an object changed in the cluster. It tells whether and
// after which time that calls for a reconcile.
func (p *progress) touched(object inventory.Entry, dirty bool, now time.Time) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doubts(object)
	// That a Job is gone when it is done is no drift, and is looked at with the next interval; one that
	// failed runs again with the next try.
	job := p.isJob(object)
	if dirty && job && p.wait != nil && p.wait.since.IsZero() {
		return 0, false
	}
	if !dirty || job {
		return p.wait.touched(object, now)
	}
	if now.Sub(p.corrected) > calmAfter {
		p.corrections = 0
	}
	p.corrections++
	p.corrected = now
	if p.corrections <= quickCorrections {
		return wake.TouchDelay, true
	}
	return min(maxCorrection, time.Second<<min(p.corrections-quickCorrections, 6)), true
}

// touched tells whether and after which time a change of an object's status calls for a look at
// the health: at once while it is waited for, and after that failed if the object was one of those
// that were not healthy. The more those are, the less often.
func (w *healthWait) touched(object inventory.Entry, now time.Time) (time.Duration, bool) {
	switch {
	case w == nil:
		return 0, false
	case !w.since.IsZero():
		return wake.TouchDelay, true
	case w.failed.IsZero() || now.Before(w.due) || !slices.ContainsFunc(w.pending, func(e inventory.Entry) bool { return anyVersion(e) == anyVersion(object) }):
		return 0, false
	}
	pause := max(glancePause, time.Duration(len(w.pending))*glanceEach)
	after := max(healthPoll, w.glanced.Add(pause).Sub(now))
	w.due = now.Add(after)
	return after, true
}

// glance reports whether a look at what a wait left that failed is one more look of that wait, and
// when the next wait is due. A run that verified what was applied, and changed nothing, begins no other: where
// something is pending for good, each one does.
func (p *progress) glance(run *run, now time.Time) (next time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.wait
	if len(run.changed()) > 0 || w == nil || w.failed.IsZero() || !w.isFor(inputsOf(run), p.digestLocked()) {
		return 0, false
	}
	if next = w.failed.Add(run.Obj.GetRetryInterval()).Sub(now); next <= 0 {
		return 0, false
	}
	w.since, w.glanced = w.before, now
	return next, true
}

// await returns the objects whose health has to be looked at, and since when
// they are waited for: all at first, later those that were not healthy when they
// were looked at, that were changed by us or by somebody else.
func (p *progress) await(run *run, now time.Time) (pending []inventory.Entry, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wait == nil {
		p.wait = &healthWait{}
	}
	w := p.wait
	declared := run.declared()
	// Where nothing tells of changes, everything is looked at, and where another spec may
	// judge otherwise.
	if !w.began || w.generation != run.Obj.Generation || !run.memo.Watches() || run.sync != nil && !run.sync.Complete {
		w.pending = declared
	} else {
		wanted := make(map[inventory.Entry]inventory.Entry, len(declared))
		for _, e := range declared {
			wanted[anyVersion(e)] = e
		}
		var pending []inventory.Entry
		look := func(e inventory.Entry) {
			if e, ok := wanted[anyVersion(e)]; ok {
				pending = append(pending, e)
				delete(wanted, anyVersion(e))
			}
		}
		for _, e := range append(w.pending, run.changed()...) {
			look(e)
		}
		for e := range p.unsure {
			look(e)
		}
		w.pending = pending
	}
	w.began, w.generation, p.unsure = true, run.Obj.Generation, nil
	return w.pending, w.begin(inputsOf(run), p.digestLocked(), now)
}

// awaitOnly returns since when objects are waited for that are looked at each time. The
// health of others stays unknown.
func (p *progress) awaitOnly(run *run, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wait == nil || p.wait.began {
		p.wait = &healthWait{}
	}
	return p.wait.begin(inputsOf(run), p.digestLocked(), now)
}

// begin begins to wait, unless that is under way for the same, and returns since when.
func (w *healthWait) begin(what healthInputs, digest string, now time.Time) time.Time {
	if w.since.IsZero() || !w.isFor(what, digest) {
		w.since, w.inputs, w.failed = now, what, time.Time{}
	}
	w.revision, w.digest = what.revision, digest
	return w.since
}

// isFor reports whether the time-out is measured for inputs. A revision that changes nothing of what is
// rendered goes on with that of the one before: where commits come often there would be no end of it.
func (w *healthWait) isFor(what healthInputs, digest string) bool {
	if digest != "" && digest == w.digest {
		what.revision = w.inputs.revision
	}
	return w.inputs == what
}

// healthy ends the wait: all objects are as they should be.
func (p *progress) healthy() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wait != nil {
		p.wait.pending, p.wait.since, p.wait.failed = nil, time.Time{}, time.Time{}
	}
	// What was touched since the look began stays to be looked at.
}

// anyVersion is an entry as the same object is known by in every API version.
func anyVersion(e inventory.Entry) inventory.Entry {
	e.Version = ""
	return e
}

// deleting is when to look again at objects that are being deleted: soon at
// first, seldom if a finalizer holds them.
func (p *progress) deleting(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deletes.IsZero() || now.Sub(p.deletes) > time.Hour {
		p.deletes = now
	}
	return max(deletePoll, now.Sub(p.deletes)/4)
}

// unhealthy ends the wait as failed: the next begins with what is left.
func (p *progress) unhealthy(pending []inventory.Entry, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.wait; w != nil {
		if now.Sub(w.since) < glancePause {
			w.glanced = now // what fails at once may do so again and again
		}
		w.pending, w.before, w.failed, w.since = pending, w.since, now, time.Time{}
	}
	// A Job that failed is no less gone than one that is done: it runs again with the next try.
	for _, e := range pending {
		if j, ok := p.jobs[e]; ok {
			j.at = time.Time{}
			p.jobs[e] = j
		}
	}
}

// glanced: after another look the wait is failed as before.
func (p *progress) glanced(pending []inventory.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wait != nil {
		p.wait.pending, p.wait.since = pending, time.Time{}
	}
}

// awaits is the revision whose health is waited for; empty if none is.
func (p *progress) awaits() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wait == nil || p.wait.since.IsZero() {
		return ""
	}
	return p.wait.revision
}

// cancel ends a wait that is not for these inputs, and reports whether there is one to end.
func (p *progress) cancel(what healthInputs) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wait == nil || p.wait.since.IsZero() {
		return false
	}
	now := p.wait.inputs
	if now.revision = p.wait.revision; now == what {
		return false
	}
	p.wait.since = time.Time{}
	return true
}

// waits for what is left.
func (p *progress) waits(pending []inventory.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wait != nil {
		p.wait.pending = pending
	}
}

// noHealth: health is not looked at.
func (p *progress) noHealth() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wait, p.unsure = nil, nil
}
