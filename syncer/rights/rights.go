package rights

import (
	"context"
	"sync"
	"time"

	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// othersHold is how long it stands whether others than RBAC decide.
const othersHold = time.Hour

// Options of Rights. All must be set.
type Options struct {
	// Reader watches the cluster with the agent's rights.
	Reader *observed.Reader
	// Agent asks with the agent's rights, As with those of a user.
	Agent Account
	As    func(user string) (Account, error)
	// Mapper knows the kinds of the cluster.
	Mapper meta.RESTMapper
	Now    func() time.Time
	// Random returns numbers from 0 to 1.
	Random func() float64
}

// Rights knows of owners, in the agent's own cluster, what their accounts may do. It is
// safe for concurrent use, and Start owns its goroutines. The nil Rights knows nothing.
type Rights struct {
	options Options
	owners  Owners
	// signal wakes Start; it holds one.
	signal chan struct{}

	mu       sync.Mutex // guards what follows; never held over a call
	standing map[types.NamespacedName]*standing
	news     news
	// names of the service accounts that exist; nil while that is not known.
	names map[types.NamespacedName]struct{}
	// since is when all resources were listed first; zero while they are not. unlisted
	// are those that were not.
	since    time.Time
	unlisted int
	// rested is when news is acted upon again: checks must not go on all the time.
	rested time.Time
	// blind are the resources that cannot be watched.
	blind map[schema.GroupVersionResource]bool
	// others: others than RBAC decide. othersAt is when that was asked.
	others   bool
	othersAt time.Time
}

// Owners are those whose rights are watched. Its methods are called without locks held.
type Owners interface {
	// Facts says what an owner needs now. refused: its last apply was.
	Facts(ctx context.Context, owner types.NamespacedName, refused bool) (Facts, error)
	// Lost tells that an account may not touch some objects of an owner any more.
	Lost(owner types.NamespacedName, objects []inventory.Entry)
	// Look tells that an owner may do more than it could, or that its account came or
	// went.
	Look(owner types.NamespacedName)
}

// Facts are what an owner needs.
type Facts struct {
	// Verb is Patch or Delete.
	Verb    string
	Objects []inventory.Entry
	// Suspended: nothing is done for the owner.
	Suspended bool
}

// Reconciled is what a reconcile of an owner came to.
type Reconciled struct {
	// User is the account that the owner acts as; empty if it acts as none.
	User  string
	Began time.Time
	// Tried: everything was applied, or Refused.
	Tried, Refused bool
	// Missing: the status says that the account does not exist.
	Missing bool
}

// New returns Rights that know of no owner.
func New(o Options) *Rights {
	return &Rights{
		options: o, signal: make(chan struct{}, 1), standing: map[types.NamespacedName]*standing{}, blind: map[schema.GroupVersionResource]bool{},
	}
}

// Serve sets who is told. It is called before Start.
func (r *Rights) Serve(owners Owners) {
	if r != nil {
		r.owners = owners
	}
}

// Keep takes in what a reconcile of an owner came to.
func (r *Rights) Keep(owner types.NamespacedName, found Reconciled) {
	switch {
	case r == nil:
		return
	case found.User == "":
		r.Forget(owner)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.standing[owner]
	if s == nil || s.user != found.User {
		s = &standing{user: found.User}
		r.standing[owner] = s
		if !r.since.IsZero() && found.Began.Before(r.since) {
			r.schedule(s, quiet)
		} else if r.inTurns() {
			r.schedule(s, time.Duration(r.options.Random()*float64(period)))
		}
		r.wakeUp()
	}
	s.missing = found.Missing
	late := found.Tried && s.tried(found.Began, found.Refused)
	if late || s.behind {
		s.behind = false
		r.schedule(s, quiet)
		r.wakeUp()
	}
}

// Forget ends what is known of an owner.
func (r *Rights) Forget(owner types.NamespacedName) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.standing, owner); len(r.standing) == 0 {
		r.wakeUp()
	}
}

// Missing reports whether the service account that a user stands for does not exist. It
// is not known before the first list.
func (r *Rights) Missing(user string) (missing, known bool) {
	if r == nil {
		return false, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lacks(user)
}

// lacks is Missing with the lock held.
func (r *Rights) lacks(user string) (missing, known bool) {
	name, ok := accountOf(user)
	if !ok || r.names == nil {
		return false, false
	}
	_, there := r.names[name]
	return !there, true
}

// schedule checks an owner after a while, or sooner if it is to be. The lock is held.
func (r *Rights) schedule(s *standing, after time.Duration) {
	if at := r.options.Now().Add(after); s.check.IsZero() || at.Before(s.check) {
		s.check = at
	}
}

// inTurns reports whether not all changes of rights are shown. The lock is held.
func (r *Rights) inTurns() bool {
	for resource := range r.blind {
		if resource != accounts {
			return true
		}
	}
	return r.others
}

// wakeUp has Start look again.
func (r *Rights) wakeUp() {
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// changed takes in that rights changed in a namespace, or in all.
func (r *Rights) changed(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.news.add(r.options.Now(), true, namespace)
	r.wakeUp()
}

// accountChanged takes in a service account that is there, or gone.
func (r *Rights) accountChanged(name types.NamespacedName, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, there := r.names[name]; there != gone || r.names == nil {
		return
	}
	if gone {
		delete(r.names, name)
	} else {
		r.names[name] = struct{}{}
	}
	r.news.add(r.options.Now(), false, "")
	r.wakeUp()
}

// accountsListed takes in all service accounts.
func (r *Rights) accountsListed(names map[types.NamespacedName]struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names = names
	r.news.add(r.options.Now(), false, "")
	r.wakeUp()
}

// listed takes in the first list of a resource. Owners that were reconciled before may
// have lost rights in between.
func (r *Rights) listed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unlisted--; r.unlisted > 0 {
		return
	}
	r.since = r.options.Now()
	for _, s := range r.standing {
		r.schedule(s, quiet)
	}
	r.wakeUp()
}

// Start watches and asks until the context ends, and returns when all of its goroutines
// have. It implements controller-runtime's Runnable.
func (r *Rights) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("rights")
	ctx = log.IntoContext(ctx, logger)
	var open *watches
	defer func() {
		if open != nil {
			open.end()
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.signal:
		case <-timer.C:
		}
		open = r.attend(ctx, open)
		if open == nil {
			continue
		}
		r.askOthers(ctx)
		r.look(ctx)
		if next := r.next(); !next.IsZero() {
			timer.Reset(max(next.Sub(r.options.Now()), time.Millisecond))
		}
	}
}

// attend begins to watch when there is an owner, and ends when there is none.
func (r *Rights) attend(ctx context.Context, open *watches) *watches {
	r.mu.Lock()
	wanted := len(r.standing) > 0
	if wanted && open == nil {
		r.since, r.unlisted = time.Time{}, len(watched())-1 // service accounts give no rights
	}
	r.mu.Unlock()
	switch {
	case wanted && open == nil:
		return r.watch(ctx)
	case !wanted && open != nil:
		open.end()
		r.mu.Lock()
		r.names, r.news, r.since = nil, news{}, time.Time{}
		clear(r.blind)
		r.mu.Unlock()
		return nil
	}
	return open
}

// askOthers asks, now and then, whether others than RBAC decide about rights: then the
// API server cannot list the rules of a user, not even of us.
func (r *Rights) askOthers(ctx context.Context) {
	now := r.options.Now()
	r.mu.Lock()
	known := !r.othersAt.IsZero() && now.Sub(r.othersAt) < othersHold
	if !known {
		r.othersAt = now
	}
	r.mu.Unlock()
	if known {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	review := &authzv1.SelfSubjectRulesReview{Spec: authzv1.SelfSubjectRulesReviewSpec{Namespace: metav1.NamespaceDefault}}
	err := r.options.Agent.Create(ctx, review)
	r.mu.Lock()
	before := r.others
	switch {
	case err == nil:
		r.others = review.Status.Incomplete
	case answersAtAll(err):
		r.others = true
	default:
		r.othersAt = now.Add(retry - othersHold)
	}
	others := r.others
	r.mu.Unlock()
	switch logger := log.FromContext(ctx); {
	case err != nil && others && !before:
		logger.Error(err, "cannot tell who decides about rights; the API server is asked about rights in turns")
	case err == nil && others && !before:
		logger.Info("others than RBAC decide about rights, which no watch shows; the API server is asked about rights in turns")
	}
}

// next is when to look again; zero if nothing is to be done before something happens.
func (r *Rights) next() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.othersAt.Add(othersHold)
	sooner := func(at time.Time) {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	sooner(r.newsDue())
	for _, s := range r.standing {
		sooner(s.check)
	}
	return next
}
