package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"filippo.io/age"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/state"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/key"
	"github.com/cascade-gitops/cascade/state/store"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Kind of the objects.
const Kind = "StateBackup"

// manager writes the status.
const manager = "cascade"

// Reconciler reconciles StateBackups.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Reader reads the state and Secrets from the API server.
	Reader client.Reader
	// Namespace of the agent, in which alone a StateBackup counts.
	Namespace string
	// Holder of locks: this process.
	Holder string
	// Program is the version of this program.
	Program string
	Events  record.EventRecorder
	Metrics *Metrics
	Stalls  *stall.Watchdog
	Now     func() time.Time
	Jitter  wake.Jitter
	Retries wake.Retries
	// Logins gets tokens where there is no Secret.
	Logins *source.Logins
	// Shard has the objects that this process reconciles.
	Shard wake.Shard
	// Records has the record of the first sync, a change of which is looked at; nil: only the time counts.
	Records cache.Cache
	// MayWrite is asked before a version is saved; nil lets it.
	MayWrite func() error
	// Open opens a destination; nil is store.Open.
	Open func(ctx context.Context, address string, o store.Options) (store.Store, error)

	// turns has a chan struct{} of each name that tries wait for.
	turns sync.Map
}

// SetupWithManager registers the reconciler. The leader alone saves: it is what the manager
// starts reconcilers with.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Open == nil {
		r.Open = store.Open
	}
	b := ctrl.NewControllerManagedBy(mgr)
	if r.Records != nil {
		// A Cluster may be moved away long before it is time.
		b = b.WatchesRawSource(ctrlsource.Kind(r.Records, client.Object(&corev1.ConfigMap{}), handler.EnqueueRequestsFromMapFunc(r.all)))
	}
	return b.
		For(&v1alpha1.StateBackup{}, builder.WithPredicates(r.Shard.Changed())).
		WithOptions(r.options()).
		Complete(r.Stalls.Guard(Kind, func() client.Object { return &v1alpha1.StateBackup{} }, r))
}

// options of the controller.
func (r *Reconciler) options() controller.Options {
	return controller.Options{
		// A destination that stands still is not to be in the way of another one. What takes memory, they do in turn.
		MaxConcurrentReconciles: 4, RateLimiter: r.Retries.RateLimiter(),
		// None but that of the spec: the manager's would end a backup that may take longer.
		ReconciliationTimeout: -1,
	}
}

// all StateBackups.
func (r *Reconciler) all(ctx context.Context, _ client.Object) []ctrl.Request {
	list := &v1alpha1.StateBackupList{}
	if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
		log.FromContext(ctx).Error(err, "StateBackups are not woken")
		return nil
	}
	var out []ctrl.Request
	for i := range list.Items {
		out = append(out, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

// record is that of the first sync, empty if there is none.
func (r *Reconciler) record(ctx context.Context) (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{}
	err := r.Reader.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm)
	if client.IgnoreNotFound(err) != nil {
		return nil, unreadable(fmt.Errorf("cannot read the record of the first sync: %w", err))
	}
	return cm, nil
}

// movedAway identifies the Clusters that a record has as managed elsewhere, and the pivots that moved them; empty
// for none.
func movedAway(cm *corev1.ConfigMap) string {
	var moved []string
	for _, name := range firstsync.Elsewhere(cm) {
		moved = append(moved, name.String()+" "+firstsync.ManagedBy(cm, name))
	}
	if len(moved) == 0 {
		return ""
	}
	slices.Sort(moved)
	sum := sha256.Sum256([]byte(strings.Join(moved, "\n")))
	return hex.EncodeToString(sum[:8])
}

// failure has the reason of an error.
type failure struct {
	reason string
	err    error
	// stalls: only a change of the object ends it.
	stalls bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Reconcile saves the state of the tier if it is time.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o := &v1alpha1.StateBackup{}
	err := r.Client.Get(ctx, req.NamespacedName, o)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("cannot read %s %s: %w", Kind, req, err)
	}
	suspended := o.Spec.Suspend && o.Annotations[v1alpha1.UnreadAnnotation] == "" // by a person
	if err != nil || !r.Shard.Has(o) || suspended || o.DeletionTimestamp != nil {
		r.Metrics.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	before := o.DeepCopy()
	if o.Status.ObservedGeneration != o.Generation {
		// What is kept may be elsewhere, or for another recipient. A try that fails has seen this
		// generation as well.
		o.Status.LastDigest = ""
	}
	t, recipients, err := r.check(ctx, o)
	if err != nil {
		return r.conclude(ctx, before, o, t, err)
	}
	now, away := r.Now(), o.Status.MovedAway
	cm, unread := r.record(ctx)
	if unread == nil {
		away = movedAway(cm)
	}
	due, at := t.due(o, away, now)
	if !due && unread != nil {
		return ctrl.Result{}, unread
	}
	if !due {
		r.Metrics.record(o, t)
		return ctrl.Result{RequeueAfter: r.wait(t, at.Sub(now))}, nil
	}
	stall.Allow(ctx, t.timeout)
	within, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	o.Status.LastAttempt = &metav1.Time{Time: now.UTC().Truncate(time.Second)}
	r.Metrics.record(before, t) // a try may take longer than who is told of its age would wait
	told := r.telling(within, before, t)
	message, err := r.save(within, o, t, recipients)
	before = told()
	o.Status.Conditions = before.DeepCopy().Status.Conditions
	if err == nil {
		o.Status.LastSuccess, o.Status.MovedAway = o.Status.LastAttempt, away
		status.MarkReady(o, v1alpha1.ReasonSucceeded, "%s", message)
	}
	return r.conclude(ctx, before, o, t, err)
}

// wait spreads intervals; a schedule is exact.
func (r *Reconciler) wait(t timing, d time.Duration) time.Duration {
	d = max(d, time.Second)
	if t.schedule != nil || r.Jitter == nil {
		return d
	}
	return r.Jitter(d)
}

// check reads the spec. The timing counts also where the rest of it is wrong: a backup that is not
// made grows old. It is zero where none is to be made.
func (r *Reconciler) check(ctx context.Context, o *v1alpha1.StateBackup) (timing, []age.Recipient, error) {
	invalid := func(err error) error {
		return &failure{reason: v1alpha1.ReasonInvalidSpec, err: err, stalls: true}
	}
	if o.Namespace != r.Namespace {
		return timing{}, nil, &failure{reason: v1alpha1.ReasonBackupRefused, stalls: true, err: fmt.Errorf(
			"cannot save the state of the tier for namespace %s: it has the Secrets of all namespaces; a StateBackup counts in namespace %s", o.Namespace, r.Namespace)}
	}
	t, err := timingOf(&o.Spec)
	if why := o.Annotations[v1alpha1.UnreadAnnotation]; why != "" {
		err = errors.New(why)
	}
	if err != nil {
		return t, nil, invalid(err)
	}
	a, err := store.Parse(o.Spec.Destination.URL)
	if err != nil {
		return t, nil, invalid(err)
	}
	if a.Kind == "file" {
		return t, nil, invalid(errors.New("cannot use spec.destination.url: a directory of the agent's pod is lost with it"))
	}
	if len(o.Spec.Encryption.Recipients) == 0 {
		return t, nil, invalid(fmt.Errorf("cannot use spec.encryption: %w", archive.ErrNoRecipient))
	}
	// Services are asked later, within the time of a backup, by the context of the process.
	recipients, err := key.Recipients(source.AllowNetwork(ctx), o.Spec.Encryption.Recipients...)
	if err != nil {
		return t, nil, invalid(fmt.Errorf("cannot use spec.encryption: %w", err))
	}
	return t, recipients, nil
}

// save takes the state, and keeps it if it is another one than the newest version has.
func (r *Reconciler) save(ctx context.Context, o *v1alpha1.StateBackup, t timing, recipients []age.Recipient) (string, error) {
	// Two that save at one place would find each other's lock.
	leave, err := r.turn(ctx, o.Spec.Destination.URL)
	if err != nil {
		return "", err
	}
	defer leave()
	at, err := r.open(ctx, o)
	if err != nil {
		return "", err
	}
	defer at.Close()
	versions, err := at.Versions(ctx)
	if err != nil && !errors.Is(err, store.ErrGone) { // what is gone is saved anew
		return "", destination(err)
	}
	o.Status.Versions = int32(min(len(versions), 1<<30))
	is, err := r.take(ctx, o, versions, recipients)
	if err != nil {
		return "", err
	}
	if is.sealed != nil && r.MayWrite != nil {
		if err := r.MayWrite(); err != nil {
			return "", &failure{reason: v1alpha1.ReasonProgressing, err: err}
		}
	}
	if err := r.claim(ctx, o, versions); err != nil {
		return "", err
	}
	if is.sealed == nil {
		return fmt.Sprintf("the state is that of version %s", o.Status.LastVersion), nil
	}
	return r.keep(ctx, o, at, t, is, others(o, versions))
}

// taken is the state of the tier as it is to be kept.
type taken struct {
	digest string
	// sealed is nil if the newest version has it.
	sealed []byte
	// objects in it.
	objects int
}

// take takes the state and encrypts it. One try at a time does: the state of the whole tier is in memory. What is
// encrypted is a small part of that.
func (r *Reconciler) take(ctx context.Context, o *v1alpha1.StateBackup, versions []store.Version, recipients []age.Recipient) (*taken, error) {
	leave, err := r.turn(ctx, memory)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := r.admit(ctx, o, versions); err != nil {
		return nil, err
	}
	var warned int
	s, err := state.Take(ctx, r.Reader, state.TakeOptions{
		Program: r.Program, Namespace: r.Namespace, Now: r.Now,
		Warn: func(text string) {
			if warned++; warned <= 5 {
				log.FromContext(ctx).Info("the state has a reference that leads to nothing", "what", text)
			}
		},
	})
	if err != nil {
		return nil, unreadable(err)
	}
	digest, err := state.ID(s)
	if err != nil {
		return nil, unreadable(err)
	}
	is := &taken{digest: digest, objects: len(s.Objects)}
	if n := len(versions); n > 0 && digest == o.Status.LastDigest && versions[n-1].String() == o.Status.LastVersion {
		return is, nil
	}
	if is.sealed, err = archive.Seal(s, recipients...); err != nil {
		return nil, &failure{reason: v1alpha1.ReasonEncryptionFailed, err: err}
	}
	return is, nil
}

// unreadable gives an error of reading the tier its reason.
func unreadable(err error) error {
	if errors.Is(err, state.ErrRestoring) {
		return &failure{reason: v1alpha1.ReasonRestorePending, err: err}
	}
	return &failure{reason: v1alpha1.ReasonStateUnreadable, err: err}
}

// admit fails while a Cluster is being restored, and if what others saved at the destination may still be
// what is to be restored into the tier: it would no longer be the newest. A tier of which the first sync is open
// makes no Cluster unasked: where some are not paused, they were restored, moved here, or a person wanted
// them. Whether all were, nobody knows, so that versions of others are not deleted after that either. A version
// that is later than the last on record is no sign of a rolled back etcd: `cascade save` makes such ones, and
// so does an agent that ends before it writes the status.
func (r *Reconciler) admit(ctx context.Context, o *v1alpha1.StateBackup, versions []store.Version) error {
	running, err := state.CountRunning(ctx, r.Reader)
	if err != nil {
		return unreadable(err)
	}
	if len(versions) == 0 {
		return nil
	}
	cm, err := r.record(ctx)
	if err != nil {
		return err
	}
	newest := versions[len(versions)-1]
	if settled, _ := firstsync.Says(cm); settled || running > 0 || mine(o, versions) {
		return nil
	}
	return &failure{reason: v1alpha1.ReasonRestorePending, err: fmt.Errorf(
		"cannot save above version %s, which this StateBackup did not save: no Cluster of the tier runs, and its first sync is not over. If the tier that saved it is gone, and this one takes its place: cascade restore. "+
			"If that is another tier: give this one a destination of its own. If nothing is to be restored, or all is: cascade approve first-sync", newest)}
}

// mine reports whether a StateBackup saved at its destination before. The version of Cascade before noted no
// destination. The digest is only there while the spec is the one by which the last version was saved.
func mine(o *v1alpha1.StateBackup, versions []store.Version) bool {
	return store.SamePlace(o.Status.Destination, o.Spec.Destination.URL) ||
		o.Status.Destination == "" && o.Status.LastDigest != "" && o.Status.LastVersion == versions[len(versions)-1].String()
}

// claim notes that the destination is one that this StateBackup saves at, what others saved there, and that this
// is gone, before it does: a version whose answer is lost is its own all the same.
func (r *Reconciler) claim(ctx context.Context, o *v1alpha1.StateBackup, versions []store.Version) error {
	gone := len(versions) == 0 && o.Status.SavedAbove != ""
	if o.Status.Destination == o.Spec.Destination.URL && !gone {
		return nil
	}
	claimed := o.DeepCopy()
	claimed.Status.Destination = o.Spec.Destination.URL
	switch {
	case store.SamePlace(o.Status.Destination, o.Spec.Destination.URL): // what others saved there is on record
		if gone {
			claimed.Status.EmptySince = o.Status.LastAttempt
		}
	case len(versions) == 0:
		claimed.Status.SavedAbove, claimed.Status.EmptySince = "", nil
	case !mine(o, versions):
		claimed.Status.SavedAbove, claimed.Status.EmptySince = versions[len(versions)-1].String(), nil
	}
	if err := status.Patch(ctx, r.Client, o, claimed, manager); err != nil {
		return &failure{reason: v1alpha1.ReasonProgressing, err: err}
	}
	o.Status.Destination, o.Status.SavedAbove, o.Status.EmptySince = claimed.Status.Destination, claimed.Status.SavedAbove, claimed.Status.EmptySince
	return nil
}

// others is the newest version that others saved at the destination: it and those before are not deleted. An
// empty place does not tell that they are gone, as another volume may be mounted for a while. What was saved
// since, without them, is all this StateBackup's. When a version was saved is on record for the latest ones alone.
func others(o *v1alpha1.StateBackup, versions []store.Version) store.Version {
	since := o.Status.EmptySince
	if since != nil && !slices.ContainsFunc(versions, func(v store.Version) bool {
		return v.Began.Before(since.Time) && v.Saved.Before(since.Time)
	}) {
		return store.Version{}
	}
	return store.ParseVersion(o.Status.SavedAbove)
}

// keep saves a version under the lock, and deletes old ones of this StateBackup, which are those above others.
func (r *Reconciler) keep(
	ctx context.Context, o *v1alpha1.StateBackup, at store.Store, t timing, is *taken, others store.Version,
) (string, error) {
	ttl, renews := lockOf(o.Spec.Destination.URL, t.timeout)
	l, err := at.Lock(ctx, r.Holder, ttl)
	if err != nil {
		return "", destination(err)
	}
	// A lock that is left is in the way of the next one until it lapses.
	defer func() {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := at.Unlock(release, l); err != nil {
			log.FromContext(ctx).Error(err, "the lock of the saved state is left until it lapses")
		}
	}()
	if renews {
		defer renewing(ctx, at, l)()
	}
	v, err := at.Save(ctx, l, is.sealed)
	if err != nil {
		return "", destination(err)
	}
	o.Status.LastVersion, o.Status.LastDigest = v.String(), is.digest
	o.Status.Objects, o.Status.Bytes = int64(is.objects), int64(len(is.sealed))
	keep := int(o.Spec.KeepLast)
	if keep <= 0 {
		keep = defaultKeep
	}
	pruned, err := at.Prune(ctx, l, others, keep)
	o.Status.Versions = o.Status.Versions + 1 - int32(len(pruned))
	if err != nil {
		return "", destination(fmt.Errorf("version %s is saved: %w", v, err))
	}
	return fmt.Sprintf("saved version %s: %d objects, %d bytes", v, is.objects, len(is.sealed)), nil
}

// lockOf is for how long the lock of a destination is taken, and whether it is renewed. A process that ends while it
// saves keeps all others from saving for as long, whatever its spec allows a save to take. In Git a renewal would have
// the upload begin again, as it is one write with that. Its lock may lapse meanwhile, and holds until somebody takes it.
func lockOf(url string, timeout time.Duration) (ttl time.Duration, renews bool) {
	if a, err := store.Parse(url); err == nil && a.Kind == "git" {
		return min(timeout, defaultTimeout), false
	}
	return min(timeout, lockFor), timeout > lockFor
}

// renewing renews a lock until the returned function is called, which waits for the last renewal. A lock that was lost
// is told by what saves under it.
func renewing(ctx context.Context, at store.Store, l store.Lock) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(renewEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			within, cancel := context.WithTimeout(ctx, renewPatience)
			_, err := at.Renew(within, l)
			cancel()
			if errors.Is(err, store.ErrLockLost) {
				return
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// destination gives an error of a store its reason.
func destination(err error) error {
	reason := v1alpha1.ReasonDestinationFailed
	switch {
	case errors.Is(err, store.ErrLocked), errors.Is(err, store.ErrLockLost):
		reason = v1alpha1.ReasonStateLocked
	default:
		switch known := source.ReasonOf(err); known {
		case source.ReasonAuthenticationFailed, source.ReasonCredentialRefused, source.ReasonLimitExceeded:
			reason = known
		}
	}
	return &failure{reason: reason, err: err}
}

// open opens the destination with its Secrets.
func (r *Reconciler) open(ctx context.Context, o *v1alpha1.StateBackup) (store.Store, error) {
	options := store.Options{Now: r.Now}
	for _, of := range []struct {
		field string
		ref   *v1alpha1.LocalReference
		into  *map[string][]byte
	}{
		{"secretRef", o.Spec.Destination.SecretRef, &options.Secret},
		{"certSecretRef", o.Spec.Destination.CertSecretRef, &options.Certificates},
	} {
		if of.ref == nil {
			continue
		}
		secret := &corev1.Secret{}
		if err := r.Reader.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: of.ref.Name}, secret); err != nil {
			return nil, &failure{reason: v1alpha1.ReasonCredentialMissing, err: fmt.Errorf("cannot read the Secret of spec.destination.%s: %w", of.field, err)}
		}
		*of.into = secret.Data
		if secret.Data == nil {
			*of.into = map[string][]byte{}
		}
	}
	if options.Secret == nil && r.Logins != nil {
		options.Workload = &source.Workload{Logins: r.Logins, Client: r.Client, Key: source.Key{Kind: Kind, NamespacedName: client.ObjectKeyFromObject(o)}}
	}
	at, err := r.Open(ctx, o.Spec.Destination.URL, options)
	if err != nil {
		return nil, destination(err)
	}
	return at, nil
}

// conclude writes what became of it.
func (r *Reconciler) conclude(ctx context.Context, before, o *v1alpha1.StateBackup, t timing, err error) (ctrl.Result, error) {
	o.Status.ObservedGeneration = o.Generation
	o.Status.LastHandledReconcileAt = o.Annotations[meta.ReconcileRequestAnnotation]
	var f *failure
	if err != nil {
		if !errors.As(err, &f) {
			f = &failure{reason: v1alpha1.ReasonDestinationFailed, err: err}
		}
		switch {
		case f.stalls:
			status.MarkStalled(o, f.reason, f.err)
		case t.stale > 0 && t.isStale(o, r.Now()):
			status.MarkFailing(o, v1alpha1.ReasonBackupStale, fmt.Errorf("%s: the last success was at %s: %w", f.reason, since(o).UTC().Format(time.RFC3339), f.err))
		default:
			status.MarkFailing(o, f.reason, f.err)
		}
	}
	if t.stale > 0 {
		r.Metrics.record(o, t)
	}
	// The answer of the API server has what cannot be read, too: once is enough.
	if o.Annotations[v1alpha1.UnreadAnnotation] == "" || !equality.Semantic.DeepEqual(before.Status, o.Status) {
		if err := status.Patch(ctx, r.Client, before, o, manager); err != nil {
			return ctrl.Result{}, err
		}
	}
	r.tell(before, o)
	switch {
	case f == nil:
		now := r.Now()
		return ctrl.Result{RequeueAfter: r.wait(t, t.next(now).Sub(now))}, nil
	case f.stalls:
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, fmt.Errorf("cannot save the state of the tier: %w", f.err)
}

// tell records an event where something is new.
func (r *Reconciler) tell(before, o *v1alpha1.StateBackup) {
	was, is := apimeta.FindStatusCondition(before.Status.Conditions, meta.ReadyCondition), apimeta.FindStatusCondition(o.Status.Conditions, meta.ReadyCondition)
	if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason && (is.Status != metav1.ConditionTrue || before.Status.LastVersion == o.Status.LastVersion) {
		return
	}
	kind := corev1.EventTypeNormal
	if is.Status != metav1.ConditionTrue {
		kind = corev1.EventTypeWarning
	}
	r.Events.Eventf(o, kind, is.Reason, "%s", is.Message)
}
