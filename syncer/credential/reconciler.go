package credential

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/vault"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Kind is the kind that is reconciled.
const Kind = "Credential"

// Manager is the field manager of what is written.
const Manager = "cascade"

const (
	// timeout bounds one reconcile.
	timeout = 3 * time.Minute
	// observePause is between two looks at a Credential of which nothing is due: whether the
	// Secret is there and as it was written, and whether the source answers. A source that
	// does not is told within a minute.
	observePause = 40 * time.Second
	// readersPause is between two looks at what is restarting.
	readersPause = 5 * time.Second
	// mostSteps bounds the steps of one reconcile, and spell for how long another one is taken: a
	// server that accepts calls and answers none is told of before all have been tried.
	mostSteps = 2*MostLeases + 8
	spell     = 15 * time.Second
)

// Source of Vault's calls: what package vault makes.
type Source interface {
	Probe(ctx context.Context, s vault.Server) error
	Login(ctx context.Context, s vault.Server, l vault.Login) (*vault.Session, error)
	Resume(s vault.Server, t vault.Token) (*vault.Session, error)
}

// Reconciler keeps Credentials.
type Reconciler struct {
	// Client reads Credentials from the cache and writes, Live reads from the API server.
	Client client.Client
	Live   client.Reader
	Vault  Source
	// VaultAddresses are servers that any login may go to.
	VaultAddresses []string
	// Files is the directory that files are read below; nil allows none.
	Files *os.Root
	// Namespace of the agent.
	Namespace string
	Events    record.EventRecorder
	Metrics   *metrics.Metrics
	// Stalls watches the reconciles; nil watches none.
	Stalls *stall.Watchdog
	Now    func() time.Time
	// Random is in [0, 1). It is safe for concurrent use.
	Random func() float64
	// Retries after errors of the API server.
	Retries wake.Retries
	// Shard has the Credentials that this process reconciles.
	Shard wake.Shard
	// MayWrite is asked before anything is leased, written or revoked; nil lets all pass.
	MayWrite func() error

	store *status.Store[*v1alpha1.Credential]

	mu sync.Mutex // guards the fields below; never held over a call
	// attempts are what is known of each Credential beside what is written down.
	attempts map[types.NamespacedName]*attempts
	// audiences are those of the API server itself, empty before they are known.
	audiences []string
}

// attempts are those that failed. Only the one reconcile of its Credential has it.
type attempts struct {
	uid        types.UID
	generation int64
	requested  string
	// failures since the last success, the last of them, and when the next attempt is made.
	failures  int
	failed    *failure
	notBefore time.Time
	// revoking has the same for each lease that is not revoked.
	revoking map[int64]*revoking
	// unread is why what is written down could not be read.
	unread *failure
	// probed is when the source was asked last, silent what became of that.
	probed time.Time
	silent *failure
	// reading is why what reads the credential could not be restarted.
	reading *failure
}

// why is the nearest reason for which a credential could not be issued or renewed now; nil if
// there is none.
func (a *attempts) why() *failure {
	switch {
	case a.unread != nil:
		return a.unread
	case a.failed != nil:
		return a.failed
	}
	return a.silent
}

type revoking struct {
	failures  int
	notBefore time.Time
	failed    *failure
}

// failure is an error with its reason.
type failure struct {
	reason string
	err    error
}

// Error implements error.
func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

func because(reason string, format string, args ...any) error {
	return &failure{reason, fmt.Errorf(format, args...)}
}

// failureOf gives an error its reason.
func failureOf(err error) *failure {
	var f *failure
	switch {
	case errors.As(err, &f):
		return &failure{f.reason, err}
	case vault.Is(err, vault.Unreachable):
		return &failure{v1alpha1.ReasonVaultUnreachable, err}
	case vault.Is(err, vault.Refused):
		return &failure{v1alpha1.ReasonVaultRefused, err}
	case vault.Is(err, vault.Invalid):
		return &failure{v1alpha1.ReasonAnswerInvalid, err}
	}
	return &failure{v1alpha1.ReasonProgressing, err}
}

// SetupWithManager registers the reconciler, which works on so many Credentials at a time.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, most int) error {
	r.Open()
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Credential{}, builder.WithPredicates(r.Shard.Changed())).
		WithOptions(controller.Options{MaxConcurrentReconciles: most, RateLimiter: r.Retries.RateLimiter()}).
		Complete(r.Stalls.Guard(Kind, func() client.Object { return &v1alpha1.Credential{} }, r))
}

// Open makes what the reconciler keeps. It is called once, before the first reconcile;
// SetupWithManager does so.
func (r *Reconciler) Open() {
	r.store = &status.Store[*v1alpha1.Credential]{
		Client: r.Client, Live: r.Live, Manager: Manager,
		New:        func() *v1alpha1.Credential { return &v1alpha1.Credential{} },
		Meta:       func(o *v1alpha1.Credential) *metav1.ObjectMeta { return &o.ObjectMeta },
		CopyStatus: func(to, from *v1alpha1.Credential) { to.Status = *from.Status.DeepCopy() },
	}
	r.attempts = map[types.NamespacedName]*attempts{}
}

// Reconcile keeps one Credential.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj, err := r.store.Read(ctx, req.NamespacedName)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("cannot read %s %s: %w", Kind, req.NamespacedName, err)
	}
	if err != nil || !r.Shard.Has(obj) { // it is gone, or left the shard
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	stall.Allow(ctx, timeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	run, before, start := r.store.Record(obj), obj.DeepCopy(), r.Now()
	if !obj.DeletionTimestamp.IsZero() {
		if !controllerutil.ContainsFinalizer(obj, v1alpha1.CredentialFinalizer) {
			return ctrl.Result{}, nil
		}
	} else if controllerutil.AddFinalizer(obj, v1alpha1.CredentialFinalizer) {
		if err := run.WriteMetadata(ctx); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	k := &keeping{Reconciler: r, obj: obj, attempts: r.attemptsOf(obj)}
	result, kerr := k.keep(ctx)
	if k.finished {
		controllerutil.RemoveFinalizer(obj, v1alpha1.CredentialFinalizer)
		return ctrl.Result{}, client.IgnoreNotFound(run.WriteMetadata(ctx))
	}
	obj.Status.LastHandledReconcileAt = obj.Annotations[meta.ReconcileRequestAnnotation]
	if err := run.Write(ctx); err != nil {
		return ctrl.Result{}, errors.Join(kerr, err)
	}
	r.tell(ctx, before, obj)
	r.Metrics.Reconciled(Kind, req.NamespacedName, obj, r.Now().Sub(start))
	return result, kerr
}

func (r *Reconciler) forget(name types.NamespacedName) {
	r.store.Forget(name)
	r.Metrics.Forget(Kind, name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.attempts, name)
}

// attemptsOf are those of an object. Whoever changed it, or asked for a reconcile, wants the
// next attempt now.
func (r *Reconciler) attemptsOf(obj *v1alpha1.Credential) *attempts {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := client.ObjectKeyFromObject(obj)
	a := r.attempts[name]
	if a == nil || a.uid != obj.UID {
		a = &attempts{uid: obj.UID, revoking: map[int64]*revoking{}}
		r.attempts[name] = a
	}
	requested := obj.Annotations[meta.ReconcileRequestAnnotation]
	if a.generation != obj.Generation || a.requested != requested {
		a.generation, a.requested, a.failures, a.failed, a.notBefore = obj.Generation, requested, 0, nil, time.Time{}
		a.probed, a.silent = time.Time{}, nil
		for _, one := range a.revoking {
			one.notBefore = time.Time{}
		}
	}
	return a
}

// keeping is one reconcile of one Credential.
type keeping struct {
	*Reconciler
	obj      *v1alpha1.Credential
	attempts *attempts
	facts    Facts
	secret   *corev1.Secret
	// foreign: the Secret is somebody else's.
	foreign bool
	// kindRemoved: the definition of the kind is being deleted, and the Credential with it.
	kindRemoved bool
	record      *journalSecret
	// outdated are the Deployments that have not been restarted.
	outdated []client.Object
	finished bool
}

// keep takes steps until nothing is due.
func (k *keeping) keep(ctx context.Context) (ctrl.Result, error) {
	began := k.Now()
	for range mostSteps {
		if err := k.gather(ctx); err != nil {
			// Of an API server that does not answer there is nothing to tell.
			if k.attempts.unread = failureOf(err); k.attempts.unread.reason != v1alpha1.ReasonProgressing {
				k.judge(Step{Do: Keep, Why: BackingOff})
			}
			return ctrl.Result{}, err
		}
		k.attempts.unread = nil
		step := Plan(k.facts, k.Now())
		if step.Do == Keep {
			return k.rest(ctx, step)
		}
		if k.Now().Sub(began) > spell {
			k.judge(step)
			return ctrl.Result{RequeueAfter: time.Second}, nil
		}
		if k.MayWrite != nil {
			if err := k.MayWrite(); err != nil {
				return ctrl.Result{}, err
			}
		}
		err := k.take(ctx, step)
		switch {
		case k.finished:
			return ctrl.Result{}, nil
		case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
			// Somebody else wrote, maybe another process that takes itself for the leader.
			k.judge(step)
			return ctrl.Result{RequeueAfter: time.Second}, nil
		case err != nil && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && failureOf(err).reason == v1alpha1.ReasonProgressing:
			k.fail(step, err)
			k.judge(step)
			return ctrl.Result{}, err
		case err != nil:
			k.fail(step, err)
		}
	}
	k.judge(Step{Do: Keep, Why: NothingToDo})
	return ctrl.Result{RequeueAfter: time.Second}, nil
}

// fail notes an attempt that failed.
func (k *keeping) fail(step Step, err error) {
	now := k.Now()
	if step.Do == Revoke || step.Do == Forget || step.Do == Finish {
		a := k.attempts.revoking[step.Lease]
		if a == nil {
			a = &revoking{}
			k.attempts.revoking[step.Lease] = a
		}
		a.failures++
		a.failed = failureOf(err)
		a.notBefore = now.Add(Pause(a.failures, 2*time.Minute, k.Random()))
		return
	}
	life := time.Duration(0)
	if _, expires := k.facts.Life(); !expires.IsZero() && k.facts.Secret != nil {
		life = expires.Sub(k.facts.Secret.Renewed)
	}
	k.attempts.failures++
	k.attempts.failed = failureOf(err)
	k.attempts.notBefore = now.Add(Pause(k.attempts.failures, MostPause(life), k.Random()))
}

// succeed forgets what failed.
func (k *keeping) succeed() {
	k.attempts.failures, k.attempts.failed, k.attempts.notBefore = 0, nil, time.Time{}
	k.attempts.probed, k.attempts.silent = k.Now(), nil
}

// take takes one step.
func (k *keeping) take(ctx context.Context, step Step) error {
	log.FromContext(ctx).V(1).Info("taking a step", "action", step.Do, "reason", step.Why)
	switch step.Do {
	case Issue, Replace:
		if err := k.issue(ctx); err != nil {
			return err
		}
		k.succeed()
		return nil
	case Renew:
		if err := k.renew(ctx, step.Lease); err != nil {
			return err
		}
		k.succeed()
		return nil
	case Revoke:
		return k.revoke(ctx, step.Lease)
	case Forget:
		delete(k.attempts.revoking, step.Lease)
		return k.record.change(ctx, func(j *journal) { j.drop(step.Lease) })
	case Finish:
		if err := k.leave(ctx); err != nil {
			return err
		}
		if err := k.record.remove(ctx); err != nil {
			return err
		}
		if k.kindRemoved {
			k.Events.Eventf(k.obj, corev1.EventTypeWarning, v1alpha1.ReasonKindRemoved,
				"the kind Credential itself is being removed: Secret %s stays, and what is leased is not revoked and lapses; install the definition again", k.obj.SecretName())
		}
		k.finished = true
		return nil
	}
	return fmt.Errorf("cannot take step %s: there is no such step", step.Do)
}

// rest ends a reconcile of which nothing is due: readers are restarted, the source is asked
// whether it is there, and it is told how the Credential stands.
func (k *keeping) rest(ctx context.Context, step Step) (ctrl.Result, error) {
	now := k.Now()
	deleting := !k.obj.DeletionTimestamp.IsZero()
	again := observePause
	if !deleting && !k.obj.Spec.Suspend {
		k.attempts.reading = nil
		if err := k.restart(ctx); err != nil {
			k.attempts.reading = &failure{v1alpha1.ReasonRestartFailed, err}
			again = readersPause
		} else if len(k.outdated) > 0 || step.Why == Readers {
			again = readersPause
		}
		if k.attempts.failures == 0 && now.Sub(k.attempts.probed) >= observePause/2 {
			k.probe(ctx)
		}
	}
	k.judge(step)
	wait := again - time.Duration(k.Random()*float64(again)/10)
	if !step.Until.IsZero() {
		wait = min(wait, max(step.Until.Sub(k.Now()), 10*time.Millisecond))
	}
	return ctrl.Result{RequeueAfter: wait}, nil
}

// probe asks whether the source is there.
func (k *keeping) probe(ctx context.Context) {
	k.attempts.probed, k.attempts.silent = k.Now(), nil
	if k.obj.Spec.Vault == nil {
		return
	}
	server, err := k.server(ctx, k.obj.Spec.Vault)
	if err == nil {
		err = k.Vault.Probe(ctx, server)
	}
	if err != nil {
		k.attempts.silent = failureOf(err)
	}
}

// judge writes into the status how the Credential stands.
func (k *keeping) judge(step Step) {
	o, now := k.obj, k.Now()
	o.Status.ObservedGeneration = o.Generation
	o.Status.Failures = int32(min(k.attempts.failures, 1<<20))
	o.Status.Unrevoked = 0
	renewAt, expires := k.facts.Life()
	o.Status.IssuedAt, o.Status.LastRenewal = nil, nil
	if s := k.facts.Secret; s != nil {
		o.Status.IssuedAt, o.Status.LastRenewal = timeOf(s.Issued), timeOf(s.Renewed)
	}
	o.Status.RenewAt, o.Status.ExpiresAt = timeOf(renewAt), timeOf(expires)
	for _, l := range k.facts.Leases {
		if k.facts.Secret == nil || l.Number != k.facts.Secret.Number {
			o.Status.Unrevoked++
		}
	}
	failed := k.attempts.why()
	if failed != nil && o.DeletionTimestamp.IsZero() && !o.Spec.Suspend {
		status.SetCondition(o, v1alpha1.SourceFailingCondition, metav1.ConditionTrue, failed.reason, "%s", failed)
	} else {
		status.RemoveCondition(o, v1alpha1.SourceFailingCondition)
	}
	is, reason, message := k.ready(step, now, expires)
	status.SetCondition(o, v1alpha1.ReadyCondition, is, reason, "%s", message)
}

// ready is the condition of that type.
func (k *keeping) ready(step Step, now, expires time.Time) (metav1.ConditionStatus, string, string) {
	why := ""
	if f := k.attempts.why(); f != nil {
		why = "; it cannot be replaced: " + f.Error()
	}
	if !k.obj.DeletionTimestamp.IsZero() {
		if f := k.attempts.unread; f != nil {
			return metav1.ConditionFalse, f.reason, f.Error() + ". What is leased is not known; spec.revokeOnDelete: false lets go of it"
		}
		text := fmt.Sprintf("%d leases are to be revoked before the Credential goes", len(k.facts.Leases))
		for _, a := range k.attempts.revoking {
			if a.failed != nil {
				text += "; the last attempt failed: " + a.failed.Error() + ". spec.revokeOnDelete: false lets go of them"
				break
			}
		}
		return metav1.ConditionFalse, v1alpha1.ReasonRevocationPending, text
	}
	until := "which does not say when it lapses"
	if !expires.IsZero() {
		until = "valid until " + expires.UTC().Format(time.RFC3339)
	}
	switch k.facts.Stands(now) {
	case Missing:
		if f := k.attempts.why(); f != nil {
			return metav1.ConditionFalse, f.reason, f.Error()
		}
		if step.Why == Full {
			return metav1.ConditionFalse, v1alpha1.ReasonTooManyLeases, string(Full)
		}
		return metav1.ConditionFalse, v1alpha1.ReasonProgressing, "no credential has been issued yet"
	case Gone:
		return metav1.ConditionFalse, v1alpha1.ReasonCredentialLapsed, fmt.Sprintf("what Secret %s has lapsed at %s%s", k.obj.SecretName(), expires.UTC().Format(time.RFC3339), why)
	case Lapsing:
		// A renewal that is on its way, or only waits for its moment, is no news.
		if k.attempts.why() != nil || k.obj.Spec.Suspend || step.Why == Full {
			return metav1.ConditionFalse, v1alpha1.ReasonCredentialLapsing, fmt.Sprintf("what Secret %s has lapses at %s%s", k.obj.SecretName(), expires.UTC().Format(time.RFC3339), why)
		}
	}
	switch f := k.attempts.why(); {
	case f != nil && (k.foreign || k.facts.Secret.Declared != k.facts.Declared || !k.facts.Secret.Intact):
		return metav1.ConditionFalse, f.reason, f.Error()
	case step.Why == Full:
		return metav1.ConditionFalse, v1alpha1.ReasonTooManyLeases, string(Full)
	case k.attempts.reading != nil:
		return metav1.ConditionFalse, k.attempts.reading.reason, k.attempts.reading.Error()
	case k.obj.Spec.Suspend:
		return metav1.ConditionTrue, v1alpha1.ReasonSuspended, fmt.Sprintf("it is not renewed; Secret %s has a credential %s", k.obj.SecretName(), until)
	}
	return metav1.ConditionTrue, v1alpha1.ReasonSucceeded, fmt.Sprintf("Secret %s has a credential %s", k.obj.SecretName(), until)
}

func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t.UTC().Truncate(time.Second)}
}

// tell records what became of a Credential, if that is news. That it is valid for longer is
// none.
func (r *Reconciler) tell(ctx context.Context, before, after *v1alpha1.Credential) {
	for _, kind := range []string{v1alpha1.ReadyCondition, v1alpha1.SourceFailingCondition} {
		was, is := apimeta.FindStatusCondition(before.Status.Conditions, kind), apimeta.FindStatusCondition(after.Status.Conditions, kind)
		if kind == v1alpha1.SourceFailingCondition && is == nil && was != nil && apimeta.IsStatusConditionTrue(before.Status.Conditions, v1alpha1.ReadyCondition) {
			// Who was told that it fails is told that it does not any more; otherwise that it is
			// ready again says so.
			if is := apimeta.FindStatusCondition(after.Status.Conditions, v1alpha1.ReadyCondition); is != nil && is.Status == metav1.ConditionTrue {
				r.Events.Eventf(after, corev1.EventTypeNormal, is.Reason, "%s", is.Message)
			}
		}
		if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason {
			continue
		}
		if kind == v1alpha1.ReadyCondition && is.Status == metav1.ConditionTrue {
			r.Events.Eventf(after, corev1.EventTypeNormal, is.Reason, "%s", is.Message)
			continue
		}
		if is.Reason == v1alpha1.ReasonProgressing {
			continue
		}
		log.FromContext(ctx).Error(errors.New(is.Message), "Credential is not kept", "reason", is.Reason)
		r.Events.Eventf(after, corev1.EventTypeWarning, is.Reason, "%s", is.Message)
	}
}
