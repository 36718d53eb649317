package tenure

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/shard"
)

// Lock is the Lease of a shard as this process sees it.
type Lock interface {
	resourcelock.Interface
	// Held is an error if the Lease may be another's by now.
	Held() error
}

// Options of the tenures of a process.
type Options struct {
	// Shards is the number of shards, and Replica names this process among the replicas.
	Shards  int
	Replica string
	// Namespace of the Leases. Client reads and writes them at the API server.
	Namespace string
	Client    client.Client
	// Lock makes the Lease of a shard of the name.
	Lock func(name string) Lock
	// Lease, Renew and Retry are those of leader election.
	Lease, Renew, Retry time.Duration
	// Epoch begins a tenure.
	Epoch func(context.Context) (epoch.Mark, error)
	Now   func() time.Time
	// Registry gets the metrics.
	Registry prometheus.Registerer
}

// Tenures are the shards that this process has. It is safe for concurrent use.
type Tenures struct {
	Options
	picked picture

	mu sync.Mutex
	// held is set with the tenures: the end of one may follow its begin at once.
	held *prometheus.GaugeVec
	// shards by their number: the tenure, nil without one, and whether this process is to
	// have it. stop ends the election in which the tenure was won.
	shards []place
	// gained and lost are told of a shard.
	gained func(ctx context.Context, has func(types.NamespacedName) bool) error
	lost   func(has func(types.NamespacedName) bool)
}

type place struct {
	tenure *Tenure
	wanted bool
	stop   context.CancelFunc
	// unable: this process won the shard, and could not begin with it. It tried so last at tried.
	unable bool
	tried  time.Time
	// unserved is since when no replica holds the Lease; zero if one does, or it is not known.
	unserved time.Time
}

// New returns tenures of nothing yet.
func New(o Options) *Tenures {
	t := &Tenures{Options: o, shards: make([]place, o.Shards), held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cascade_shard_held",
		Help: "1 if this process drives the children of the shard.",
	}, []string{"shard"})}
	// When the Lease of a shard expires, it is to be clear already who is to have it. But a
	// replica lives from one renewal to the next, however far these are apart.
	t.picked = picture{now: o.Now, patience: max(o.Lease-2*o.Retry, o.Retry*3/2), seen: map[string]sighting{}}
	o.Registry.MustRegister(t.held)
	for i := range t.shards {
		t.held.WithLabelValues(strconv.Itoa(i)).Set(0)
	}
	return t
}

// OnChange sets what is told that a shard was gained or lost. It is called before Start.
// gained is called while the shard is this process's; lost when all work has ended.
func (t *Tenures) OnChange(gained func(ctx context.Context, has func(types.NamespacedName) bool) error, lost func(has func(types.NamespacedName) bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gained, t.lost = gained, lost
}

// Enter begins work on a child, if its shard is this process's. The work ends with the
// returned context; leave says that it has ended.
func (t *Tenures) Enter(ctx context.Context, child types.NamespacedName) (held *Tenure, bound context.Context, leave func(), ok bool) {
	if held = t.of(child); held == nil {
		return nil, nil, nil, false
	}
	bound, leave, ok = held.enter(ctx)
	return held, bound, leave, ok
}

// errNotHeld: the child is in a shard of another replica, or of nobody.
var errNotHeld = errors.New("this replica does not have the shard of the child")

// MayWrite is an error if the child may be another replica's by now.
func (t *Tenures) MayWrite(child types.NamespacedName) error {
	held := t.of(child)
	if held == nil || held.Over() {
		return errNotHeld
	}
	return held.held()
}

// Has reports whether the child's shard is this process's.
func (t *Tenures) Has(child types.NamespacedName) bool {
	held := t.of(child)
	return held != nil && !held.Over()
}

func (t *Tenures) of(child types.NamespacedName) *Tenure {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shards[shard.Of(child, t.Shards)].tenure
}

// has tells of a child whether it is in a shard.
func (t *Tenures) has(i int) func(types.NamespacedName) bool {
	return func(child types.NamespacedName) bool { return shard.Of(child, t.Shards) == i }
}

// NeedLeaderElection says that every replica takes part, whoever leads the tier.
func (t *Tenures) NeedLeaderElection() bool { return false }

// Start takes part until the context ends. It returns when no shard is held any more.
func (t *Tenures) Start(ctx context.Context) error {
	var elections sync.WaitGroup
	for i := range t.shards {
		elections.Go(func() { t.compete(ctx, i) })
	}
	t.attend(ctx)
	elections.Wait()
	return nil
}

// compete takes part in the election of a shard, again after each tenure.
func (t *Tenures) compete(ctx context.Context, i int) {
	for ctx.Err() == nil {
		if err := t.elect(ctx, i); err != nil {
			log.FromContext(ctx).Error(err, "cannot take part in the election of a shard", "shard", i)
		}
		pause(ctx, t.Retry)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// looks is how often an election looks at a Lease for each time that it is renewed. The elector
// of client-go waits up to 2.2 times its period: with the period of renewals, a shard whose
// replica is gone had no other up to 8.8 seconds after its Lease was over.
const looks = 4

// elect takes part in one election of a shard and, if it is won, holds the tenure until
// that ends.
func (t *Tenures) elect(ctx context.Context, i int) error {
	election, stop := context.WithCancel(ctx)
	defer stop()
	inner := t.Lock(LeaseName(i))
	lock := &shardLock{Lock: inner, tenures: t, shard: i}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: t.Lease, RenewDeadline: t.Renew, RetryPeriod: t.Retry / looks, ReleaseOnCancel: true, Name: LeaseName(i),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { t.begin(leading, election, stop, i, inner.Held) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	elector.Run(election)
	stop()
	return t.end(context.WithoutCancel(ctx), i)
}

// begin begins a tenure: with an epoch above all others, and with all children of the
// shard. Without an epoch for long, or where the Lease was late meanwhile, the shard is given
// back: who holds the Lease drives the children, as all others see it.
func (t *Tenures) begin(leading, election context.Context, stop context.CancelFunc, i int, held func() error) {
	logger := log.FromContext(leading).WithValues("shard", i)
	mark, err := t.Epoch(leading)
	for until := t.Now().Add(t.Renew); err != nil && leading.Err() == nil && held() == nil && t.Now().Before(until); {
		// Often another replica begins with another shard at this moment.
		logger.Error(err, "cannot begin with a shard; trying again")
		pause(leading, t.Retry/looks)
		mark, err = t.Epoch(leading)
	}
	if err != nil {
		t.mu.Lock()
		t.shards[i].unable, t.shards[i].tried = true, t.Now()
		t.mu.Unlock()
		stop()
		return
	}
	t.mu.Lock()
	if election.Err() != nil || held() != nil {
		t.mu.Unlock()
		stop() // or the election goes on, and the next renewal may succeed
		return
	}
	t.shards[i].tenure, t.shards[i].stop = newTenure(election, mark, held), stop
	t.held.WithLabelValues(strconv.Itoa(i)).Set(1)
	gained := t.gained
	t.mu.Unlock()
	logger.Info("drives the children of a shard", "epoch", mark.Epoch)
	if err := gained(leading, t.has(i)); err != nil && leading.Err() == nil {
		logger.Error(err, "cannot begin with a shard; giving it back")
		stop()
	}
}

// end ends a tenure, if there is one, and all its work.
func (t *Tenures) end(ctx context.Context, i int) error {
	t.mu.Lock()
	held, lost := t.shards[i].tenure, t.lost
	t.mu.Unlock()
	if held == nil {
		return nil
	}
	select {
	case <-held.close():
	case <-ctx.Done():
		return fmt.Errorf("cannot give shard %d back: its work has not ended: %w", i, ctx.Err())
	}
	t.mu.Lock()
	if t.shards[i].tenure != held {
		t.mu.Unlock()
		return nil
	}
	t.shards[i].tenure, t.shards[i].stop = nil, nil
	t.held.WithLabelValues(strconv.Itoa(i)).Set(0)
	t.mu.Unlock()
	lost(t.has(i))
	log.FromContext(ctx).Info("drives the children of a shard no more", "shard", i)
	return nil
}

// may reports whether this process may hold a shard: it does, or is to.
func (t *Tenures) may(i int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shards[i].tenure != nil || t.shards[i].wanted
}

// able is an error while this process could not begin with a shard if it had it, which it tries once for each
// renewal of a Lease.
func (t *Tenures) able(ctx context.Context, i int) error {
	t.mu.Lock()
	unable, early := t.shards[i].unable, t.Now().Sub(t.shards[i].tried) < t.Retry
	t.mu.Unlock()
	if !unable {
		return nil
	}
	if early {
		return errUnable
	}
	_, err := t.Epoch(ctx)
	t.mu.Lock()
	t.shards[i].unable, t.shards[i].tried = err != nil, t.Now()
	t.mu.Unlock()
	return err
}

// Unserved is since when no replica has the shard of a child; zero if one has, or that is not known.
func (t *Tenures) Unserved(child types.NamespacedName) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shards[shard.Of(child, t.Shards)].unserved
}

// note takes over which shards have a replica.
func (t *Tenures) note(served []bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, is := range served {
		if at := &t.shards[i].unserved; is {
			*at = time.Time{}
		} else if at.IsZero() {
			*at = t.Now()
		}
	}
}

// want takes a plan over. What another replica is to have is given back.
func (t *Tenures) want(plan []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, replica := range plan {
		t.shards[i].wanted = replica == t.Replica
		if stop := t.shards[i].stop; stop != nil && !t.shards[i].wanted {
			stop()
		}
	}
}

// shardLock is the Lease of a shard for its election. It is acquired only by who is to
// have it, and given back only when all work has ended. The election looks more often than
// is asked and written: see looks. One goroutine uses it.
type shardLock struct {
	Lock
	tenures *Tenures
	shard   int
	// record and raw are the Lease as it was at asked; raw is nil after a write.
	record *resourcelock.LeaderElectionRecord
	raw    []byte
	asked  time.Time
	// renewed is when it was written last that this process holds it; zero if it does not.
	renewed time.Time
}

// errNotWanted is of a replica that leaves a shard to another, and errUnable of one that could not begin with it
// a moment ago.
var (
	errNotWanted = errors.New("another replica is to have the shard")
	errUnable    = errors.New("this replica could not begin with the shard a moment ago")
)

// Get implements resourcelock.Interface. How a Lease is that another replica is to have counts
// a while later only: when it is over is counted from when it was seen to be renewed.
func (l *shardLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.raw != nil && l.tenures.Now().Sub(l.asked) < l.tenures.Retry && !l.tenures.may(l.shard) {
		return l.record, l.raw, nil
	}
	l.raw = nil
	record, raw, err := l.Lock.Get(ctx)
	if err != nil {
		return nil, nil, err
	}
	l.record, l.raw, l.asked = record, raw, l.tenures.Now()
	return record, raw, nil
}

// Create implements resourcelock.Interface.
func (l *shardLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if !l.tenures.may(l.shard) {
		return errNotWanted
	}
	if err := l.tenures.able(ctx, l.shard); err != nil {
		return err
	}
	return l.write(r, func() error { return l.Lock.Create(ctx, r) })
}

// Update implements resourcelock.Interface.
func (l *shardLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" {
		if err := l.tenures.end(ctx, l.shard); err != nil {
			return err
		}
	} else if !l.tenures.may(l.shard) {
		return errNotWanted
	} else if !l.renewed.IsZero() && l.tenures.Now().Sub(l.renewed) < l.tenures.Retry {
		return nil // it was renewed a moment ago, which is what Held goes by
	} else if err := l.tenures.able(ctx, l.shard); err != nil {
		return err
	}
	return l.write(r, func() error { return l.Lock.Update(ctx, r) })
}

// write notes of a write whether it renewed the Lease. A failed one may have arrived.
func (l *shardLock) write(r resourcelock.LeaderElectionRecord, send func() error) error {
	begun := l.tenures.Now()
	l.raw, l.renewed = nil, time.Time{}
	if err := send(); err != nil {
		return err
	}
	if r.HolderIdentity != "" {
		l.renewed = begun
	}
	return nil
}
