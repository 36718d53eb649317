package remote

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Repositories reads and writes annotated tags of the repositories that GitRepositories name.
// Each call has the deadline of the GitRepository.
type Repositories interface {
	// Tags reads those that pick chooses by the names of their references, and beside an error those that could be read.
	Tags(ctx context.Context, repository types.NamespacedName, pick func(commits map[string]string) []string) ([]source.Tag, error)
	// Contains reports whether a commit is in the history of another one; tag is a tag on it,
	// or empty.
	Contains(ctx context.Context, repository types.NamespacedName, tip, commit, tag string) (bool, error)
	// Push writes a tag with the credential of a Secret.
	Push(ctx context.Context, repository, secret types.NamespacedName, tag source.NewTag) (string, error)
	// SigningKeys verify what Push signs with a Secret; none if it signs nothing.
	SigningKeys(ctx context.Context, secret types.NamespacedName) (source.Verification, error)
	// Keys are the public keys of a Secret.
	Keys(ctx context.Context, secret types.NamespacedName) (source.Verification, error)
}

// exchange carries what travels between environments as references of a Git repository: it
// reads what the upstream of a Rollout proved and the tags by which people approve, and writes
// what a Rollout proved. It decides nothing. A repository that does not answer costs the
// decisions nothing: they are made from what was read last, and what cannot be read moves
// nothing.
type exchange struct {
	*Rollouts

	mu    sync.Mutex
	known map[types.NamespacedName]*exchanged
	// tell has the Rollout decided about.
	tell []func(types.NamespacedName)
}

// exchanged is what was read and written last for one Rollout. It is never changed.
type exchanged struct {
	asked    asked
	upstream *rollout.Upstream
	// onBranch are the proven commits that are in the history of tip.
	onBranch map[string]bool
	tip      string

	approvals []rollout.Approval
	// refused is why a tag does not approve, or tags cannot be read.
	refused rollout.Hold
	// last is the reference of the last tag that was read.
	last string

	published *v1alpha1.RolloutProof
	// unpublished is why the last good commit is not published.
	unpublished rollout.Hold
}

// asked is what something was read for.
type asked struct {
	from         source.Key
	upstream     *v1alpha1.RolloutUpstream
	publish      *v1alpha1.RolloutPublish
	approvalTags *v1alpha1.RolloutApprovalTags
}

// askedOf is what is read for a Rollout. The least age of a proof changes nothing of that.
func askedOf(o *v1alpha1.Rollout, from source.Key) asked {
	a := asked{from, o.Spec.Upstream.DeepCopy(), o.Spec.Publish.DeepCopy(), o.Spec.ApprovalTags.DeepCopy()}
	if a.upstream != nil {
		a.upstream.MinAge = nil
	}
	return a
}

const (
	// exchangePause is between two looks at a repository for one Rollout, and exchangeAgain
	// after one that failed.
	exchangePause = time.Second
	exchangeAgain = 30 * time.Second
	// exchangeDeadline is for all that is read and written for one Rollout at once.
	exchangeDeadline = 2 * time.Minute
	// mostChecked bounds the proven commits that are looked for on the branch.
	mostChecked = 8
)

// exchanges reports whether a Rollout needs any of it.
func exchanges(spec *v1alpha1.RolloutSpec) bool {
	return spec.Upstream != nil || spec.Publish != nil || spec.ApprovalTags != nil
}

// of is what is known for a Rollout, nil while nothing was read since this process began.
func (x *exchange) of(key types.NamespacedName) *exchanged {
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.known[key]
}

// about is what is known for a Rollout as it is by now, nil while that was not read: another upstream, other keys or
// another repository say nothing of it.
func (x *exchange) about(o *v1alpha1.Rollout, from source.Key) *exchanged {
	is := x.of(client.ObjectKeyFromObject(o))
	if is == nil || !reflect.DeepEqual(is.asked, askedOf(o, from)) {
		return nil
	}
	return is
}

func (x *exchange) forget(key types.NamespacedName) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.known, key)
}

// keep records what was read, and has the Rollout decided about if that is something new.
func (x *exchange) keep(key types.NamespacedName, is *exchanged) {
	for _, f := range x.replace(key, is) {
		f(key)
	}
}

// replace records what was read, and returns who has to be told.
func (x *exchange) replace(key types.NamespacedName, is *exchanged) []func(types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	same := is.says(x.known[key])
	if x.known == nil {
		x.known = map[types.NamespacedName]*exchanged{}
	}
	x.known[key] = is
	if same {
		return nil
	}
	return slices.Clone(x.tell)
}

// says reports whether a decision that is made from it is made from the other as well.
func (e *exchanged) says(other *exchanged) bool {
	if other == nil || !reflect.DeepEqual(e.asked, other.asked) {
		return false
	}
	said := func(e *exchanged) []any {
		up := e.upstream
		if up != nil {
			// Equal proofs may have times of different places, and equality.Semantic panics for
			// a time that is not of the API.
			c := *up
			c.Proofs = nil
			up = &c
		}
		return []any{up, e.approvals, e.refused, e.published, e.unpublished}
	}
	return slices.EqualFunc(e.proofs(), other.proofs(), rollout.Proof.Equal) && equality.Semantic.DeepEqual(said(e), said(other))
}

func (e *exchanged) proofs() []rollout.Proof {
	if e.upstream == nil {
		return nil
	}
	return e.upstream.Proofs
}

// onSnapshot looks at all Rollouts when a source has a new revision: its history may have
// what was not on the branch.
func (x *exchange) onSnapshot(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	x.Snapshots.OnChange(func(source.Key) { x.wake(ctx, queue, "") })
	return nil
}

// onExchanged has Rollouts decided about for which something new was read.
func (x *exchange) onExchanged(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tell = append(x.tell, func(key types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: key}) })
	return nil
}

// Reconcile reads and writes for one Rollout.
func (x *exchange) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o := &v1alpha1.Rollout{}
	err := x.Client.Get(ctx, req.NamespacedName, o)
	switch {
	case apierrors.IsNotFound(err):
		x.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	case err != nil:
		return ctrl.Result{}, err
	case !x.Part.leads() || !o.DeletionTimestamp.IsZero() || !x.Part.selects(o) || !exchanges(&o.Spec):
		x.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	from, err := x.from(ctx, o)
	if err != nil && !reason.Given(err) {
		return ctrl.Result{}, fmt.Errorf("cannot find the repository of Rollout %s: %w", req.NamespacedName, err)
	}
	is := &exchanged{asked: askedOf(o, from)}
	if err != nil {
		why := rollout.Hold{Reason: reason.Of(err), Message: err.Error()}
		is.upstream, is.refused, is.unpublished = &rollout.Upstream{Failure: why}, why, why
		x.keep(req.NamespacedName, is)
		return ctrl.Result{RequeueAfter: exchangeAgain}, nil
	}
	before := x.of(req.NamespacedName)
	all := ctx
	ctx, cancel := context.WithTimeout(ctx, exchangeDeadline)
	defer cancel()
	if o.Spec.Upstream != nil {
		x.readUpstream(ctx, o, from, before, is)
	}
	if o.Spec.ApprovalTags != nil {
		is.approvals, is.refused, is.last = x.readApprovals(ctx, o, from, before)
	}
	if o.Spec.Publish != nil {
		is.published, is.unpublished = x.publish(ctx, o, from)
	}
	if all.Err() != nil {
		return ctrl.Result{}, all.Err()
	}
	x.keep(req.NamespacedName, is)
	return ctrl.Result{RequeueAfter: x.interval(all, from, is)}, nil
}

// interval is that of the source, and sooner after a failure.
func (x *exchange) interval(ctx context.Context, from source.Key, is *exchanged) time.Duration {
	every := exchangeAgain
	repository := &sourcev1.GitRepository{}
	if err := x.Client.Get(ctx, from.NamespacedName, repository); err == nil {
		every = max(repository.Spec.Interval.Duration, exchangePause)
	}
	if is.unpublished.Reason != "" || is.refused.Reason != "" || is.upstream != nil && is.upstream.Failure.Reason != "" {
		every = min(every, exchangeAgain)
	}
	return every
}

// from is the repository of a Rollout.
func (x *exchange) from(ctx context.Context, o *v1alpha1.Rollout) (source.Key, error) {
	m, err := x.moved(ctx, o)
	if err != nil {
		return source.Key{}, err
	}
	if x.Repositories == nil {
		return m.from, reason.Because(v1alpha1.ReasonInvalidSpec, errors.New("this agent does not reconcile GitRepositories (--controllers)"))
	}
	if err := tellsCommits(m); err != nil {
		return m.from, err
	}
	return m.from, x.mayUse(ctx, m)
}

// tellsCommits is an error if the revisions of a Rollout are no commits.
func tellsCommits(m *moved) error {
	if m.from.Kind != sourcev1.GitRepositoryKind {
		return reason.Because(v1alpha1.ReasonInvalidSpec, errors.New("spec.upstream, spec.publish and spec.approvalTags need revisions of a GitRepository"))
	}
	return nil
}

// readUpstream reads what the upstream of a Rollout proved.
func (x *exchange) readUpstream(ctx context.Context, o *v1alpha1.Rollout, from source.Key, before, is *exchanged) {
	is.upstream = &rollout.Upstream{}
	fails := func(reason, format string, args ...any) {
		is.upstream.Failure = rollout.Hold{Reason: reason, Message: short(fmt.Sprintf(format, args...))}
	}
	name := o.Spec.Upstream.Name
	proofs, tag, hold := x.proofs(ctx, o.Namespace, from, name, o.Spec.Upstream.Verify)
	if hold.Reason != "" {
		is.upstream.Failure = hold
		return
	}
	if proofs == nil {
		fails(v1alpha1.ReasonUpstreamMissing, "the repository of GitRepository %s has no %s: the other environment has proven nothing yet, or its Rollout has another spec.publish.name", from.NamespacedName, rollout.ProofReference(name))
		return
	}
	newest := x.Snapshots.Get(from)
	if newest == nil {
		fails(v1alpha1.ReasonAwaitingUpstream, "GitRepository %s has not been fetched yet", from.NamespacedName)
		return
	}
	is.upstream.Proofs = proofs.Proofs
	is.tip, is.onBranch, is.upstream.Refused = newest.Commit, map[string]bool{}, map[string]rollout.Hold{}
	untaken := rollout.Untaken(&o.Spec, &o.Status, proofs.Proofs)
	for i, p := range untaken[:min(len(untaken), mostChecked)] {
		contains := before != nil && before.tip == is.tip && before.onBranch[p.Commit]
		if !contains {
			on := ""
			if i == 0 {
				on = tag.Object
			}
			var err error
			if contains, err = x.Repositories.Contains(ctx, from.NamespacedName, is.tip, p.Commit, on); err != nil {
				is.upstream.Refused[p.Commit] = rollout.Hold{Reason: v1alpha1.ReasonUpstreamUnreadable, Message: short(fmt.Sprintf("cannot find out whether commit %s, which %s proved, is on the branch: %v", p.Commit, name, err))}
				continue
			}
		}
		if is.onBranch[p.Commit] = contains; !contains {
			is.upstream.Refused[p.Commit] = rollout.Hold{Reason: v1alpha1.ReasonUpstreamNotOnBranch, Message: fmt.Sprintf("commit %s, which %s proved, is not in the history of %s: follow the branch that the other environment follows", p.Commit, name, newest.Revision)}
		}
	}
	if len(untaken) > mostChecked {
		for _, p := range untaken[mostChecked:] {
			if _, checked := is.onBranch[p.Commit]; !checked {
				is.upstream.Refused[p.Commit] = rollout.Hold{Reason: v1alpha1.ReasonUpstreamUnreadable, Message: fmt.Sprintf("only the last %d commits that %s proved are looked at", mostChecked, name)}
			}
		}
	}
}

// proofs reads what is published under a name; nil if nothing is.
func (x *exchange) proofs(ctx context.Context, namespace string, from source.Key, name string, verify *v1alpha1.RolloutKeys) (*rollout.Proofs, source.Tag, rollout.Hold) {
	fails := func(reason, format string, args ...any) (*rollout.Proofs, source.Tag, rollout.Hold) {
		return nil, source.Tag{}, rollout.Hold{Reason: reason, Message: short(fmt.Sprintf(format, args...))}
	}
	reference := rollout.ProofReference(name)
	tags, err := x.Repositories.Tags(ctx, from.NamespacedName, func(map[string]string) []string { return []string{reference} })
	switch {
	case err != nil:
		return fails(v1alpha1.ReasonUpstreamUnreadable, "cannot read %s of GitRepository %s: %v", reference, from.NamespacedName, err)
	case len(tags) == 0:
		return nil, source.Tag{}, rollout.Hold{}
	}
	tag := tags[0]
	if tag.Err != nil {
		return fails(v1alpha1.ReasonUpstreamInvalid, "cannot use %s: %v", reference, tag.Err)
	}
	if verify != nil {
		keys, err := x.Repositories.Keys(ctx, types.NamespacedName{Namespace: namespace, Name: verify.SecretRef.Name})
		if err == nil {
			_, err = tag.Verify(keys)
		}
		if err != nil {
			return fails(v1alpha1.ReasonUpstreamUnverified, "cannot trust %s: %v", reference, err)
		}
	}
	if tag.Name != rollout.ProofTag(name) {
		return fails(v1alpha1.ReasonUpstreamInvalid, "cannot use %s: its tag has the name %.100q", reference, tag.Name)
	}
	proofs, err := rollout.ParseProofs(name, tag.Commit, tag.Message)
	if err != nil {
		return fails(v1alpha1.ReasonUpstreamInvalid, "cannot use %s: %v", reference, err)
	}
	return proofs, tag, rollout.Hold{}
}

// upstream are the facts about what another environment proved, and what identifies what
// clusters get of each commit.
func (r *Rollouts) upstream(ctx context.Context, o *v1alpha1.Rollout, m *moved) (*rollout.Upstream, map[string]string, error) {
	if m.composed != nil {
		return nil, nil, reason.Because(v1alpha1.ReasonInvalidSpec, errors.New("spec.upstream cannot be used with moves.kustomizationRef, whose Kustomization is built at its newest revision first: let the GitRepository follow a branch of this environment"))
	}
	if err := tellsCommits(m); err != nil {
		return nil, nil, err
	}
	if err := r.mayUse(ctx, m); err != nil {
		return nil, nil, err
	}
	digests := map[string]string{}
	up := &rollout.Upstream{}
	before := o.Status.Candidate
	if taken := rollout.Taken(&o.Spec, &o.Status); taken != nil && before != nil {
		up.Taken = &v1alpha1.RolloutRevision{Revision: before.Revision, Image: m.image}
		digests[taken.Commit] = o.Status.CandidateDigest
	}
	is := r.exchange.about(o, m.from)
	if is == nil || is.upstream == nil {
		up.Failure = rollout.Hold{Reason: v1alpha1.ReasonAwaitingUpstream, Message: "what " + o.Spec.Upstream.Name + " proved was not read yet"}
		return up, digests, nil
	}
	up.Failure, up.Proofs = is.upstream.Failure, is.upstream.Proofs
	up.Revisions, up.Refused, up.Unfetched = map[string]v1alpha1.RolloutRevision{}, map[string]rollout.Hold{}, map[string]rollout.Hold{}
	newest := r.Snapshots.Get(m.from)
	if newest == nil {
		return up, digests, nil
	}
	for _, p := range rollout.Untaken(&o.Spec, &o.Status, up.Proofs) {
		if why, refused := is.upstream.Refused[p.Commit]; refused {
			up.Refused[p.Commit] = why
			continue
		}
		revision := provenRevision(newest, p.Commit)
		snapshot := r.Snapshots.At(m.from, revision)
		if snapshot == nil {
			if err := r.Snapshots.Failure(m.from, revision); err != nil {
				up.Unfetched[p.Commit] = rollout.Hold{Reason: v1alpha1.ReasonUpstreamUnreadable, Message: short(err.Error())}
			}
			continue
		}
		touched, err := r.touches(ctx, o, m, snapshot, before)
		if errors.Is(err, errUnread) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		digests[p.Commit] = touched
		if up.Revisions[p.Commit] = (v1alpha1.RolloutRevision{Revision: revision, Image: m.image}); up.Taken != nil && touched == o.Status.CandidateDigest {
			up.Revisions[p.Commit] = *up.Taken
		}
	}
	return up, digests, nil
}

// provenRevision is a commit as a revision of a source.
func provenRevision(newest *source.Snapshot, commit string) string {
	return strings.TrimSuffix(newest.Revision, newest.Commit) + commit
}
