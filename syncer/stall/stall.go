// Package stall watches reconciles, and finds those that do not end. Every reconcile has a deadline, and all
// that it calls is to end with its context. What does not, for a defect of ours or of a
// library, keeps a worker for ever, and its object stays as it was without a word.
//
// Invariants: a reconcile is told of once, after its deadline; its own status, written
// when it ends after all, goes over what is said here. One that waits without a worker
// (package park) is not told of. Metrics say how the reconciles of a kind stand.
//
// Failure model: a status that cannot be written is logged and written with the next look.
// The health check fails as long as a worker is lost for several looks, so that the process
// is restarted: nothing else gives a worker back.
package stall

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// Deadline is how long a reconcile may run, without what it waits, unless its object says
// something else.
const Deadline = 10 * time.Minute

const (
	// interval is the pause between two looks.
	interval = 30 * time.Second
	// grace is how long after its deadline a reconcile is given to end.
	grace = 30 * time.Second
	// unhealthyAfter is how many looks find the same reconcile before the process is
	// called unhealthy.
	unhealthyAfter = 3
	// tellTimeout bounds writing that one object stalls.
	tellTimeout = 10 * time.Second
)

// Watchdog watches the reconciles of all controllers of a process. It is safe for
// concurrent use; the nil Watchdog watches nothing.
type Watchdog struct {
	client client.Client
	now    func() time.Time
	stuck  *prometheus.GaugeVec

	mu      sync.Mutex // guards what follows; never held over a call
	running map[*Reconcile]struct{}
	lots    map[string]*park.Lot // by kind
}

// Reconcile is one reconcile under way. Its methods are called by the goroutine that
// does it.
type Reconcile struct {
	watchdog *Watchdog
	kind     string
	request  reconcile.Request
	object   func() client.Object
	// may is how long it may run; the watchdog's lock guards it, and what follows.
	may   time.Duration
	begun time.Time
	// looks is how often it was found after its deadline; told, that its object says so.
	looks int
	told  bool
}

// New returns a Watchdog that tells of stalled objects by a client.
func New(c client.Client, now func() time.Time, registry prometheus.Registerer) *Watchdog {
	w := &Watchdog{client: c, now: now, running: map[*Reconcile]struct{}{}, lots: map[string]*park.Lot{}, stuck: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cascade_stalled_workers", Help: "Number of workers whose reconcile did not end by its deadline.",
	}, []string{"kind"})}
	registry.MustRegister(w.stuck, tally{w})
	return w
}

// key marks the context of a Reconcile.
type key struct{}

// Lot returns a park.Lot for the reconciles of a kind, which are watched. object makes an empty
// object of the kind. A kind has one lot.
func (w *Watchdog) Lot(kind string, object func() client.Object, inner reconcile.Reconciler, o park.Options) *park.Lot {
	if w == nil {
		return park.New(inner, o)
	}
	o.Watch = w.watches(kind, object)
	lot := park.New(inner, o)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lots[kind] = lot
	return lot
}

// watches returns what watches one reconcile. object makes an empty object of its kind.
func (w *Watchdog) watches(kind string, object func() client.Object) func(context.Context, reconcile.Request) (context.Context, park.Watch) {
	w.stuck.WithLabelValues(kind).Set(0)
	return func(ctx context.Context, request reconcile.Request) (context.Context, park.Watch) {
		r := &Reconcile{watchdog: w, kind: kind, object: object, request: request, may: Deadline}
		return context.WithValue(ctx, key{}, r), r
	}
}

// Begin is called when the reconcile begins to run, or goes on after it waited.
func (r *Reconcile) Begin() {
	r.watchdog.mu.Lock()
	defer r.watchdog.mu.Unlock()
	r.begun, r.looks, r.told = r.watchdog.now(), 0, false
	r.watchdog.running[r] = struct{}{}
}

// End is called when the reconcile waits for something without a worker, or has ended.
func (r *Reconcile) End() {
	r.watchdog.mu.Lock()
	defer r.watchdog.mu.Unlock()
	delete(r.watchdog.running, r)
}

// Allow says that the reconcile of a context may take so long by the spec of its object,
// besides what every reconcile may take and what was allowed before.
func Allow(ctx context.Context, d time.Duration) {
	r, _ := ctx.Value(key{}).(*Reconcile)
	if r == nil {
		return
	}
	r.watchdog.mu.Lock()
	defer r.watchdog.mu.Unlock()
	r.may += d
}

// Guard returns a reconciler that is watched. object makes an empty object of its kind.
func (w *Watchdog) Guard(kind string, object func() client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
	if w == nil {
		return inner
	}
	watch := w.watches(kind, object)
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		ctx, one := watch(ctx, request)
		one.Begin()
		defer one.End()
		return inner.Reconcile(ctx, request)
	})
}

// NeedLeaderElection is false: who does not lead the tier may have something to do as well.
func (w *Watchdog) NeedLeaderElection() bool { return false }

// Start looks until the context ends. It implements controller-runtime's Runnable.
func (w *Watchdog) Start(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			w.look(ctx)
		}
	}
}

// Check implements healthz.Checker: an error says that workers are lost for good.
func (w *Watchdog) Check(*http.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.running {
		if one.looks >= unhealthyAfter {
			return fmt.Errorf("the reconcile of %s %s began at %s and does not end", one.kind, one.request, one.begun.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// look finds the reconciles that are past their deadlines, and tells of them.
func (w *Watchdog) look(ctx context.Context) {
	counts := map[string]float64{}
	untold := map[*Reconcile]time.Time{}
	w.mu.Lock()
	for one := range w.running {
		if !w.now().After(one.begun.Add(one.may + grace)) {
			continue
		}
		one.looks++
		counts[one.kind]++
		if !one.told {
			untold[one] = one.begun
		}
	}
	w.mu.Unlock()
	w.stuck.Reset()
	for kind, n := range counts {
		w.stuck.WithLabelValues(kind).Set(n)
	}
	for one, begun := range untold {
		err := w.tell(ctx, one, begun)
		log.FromContext(ctx).Error(err, "A reconcile did not end by its deadline and keeps its worker",
			"kind", one.kind, "namespace", one.request.Namespace, "name", one.request.Name, "since", begun)
		w.mu.Lock()
		one.told = err == nil && one.begun.Equal(begun)
		w.mu.Unlock()
	}
}

// tell writes to the status of an object that its reconcile does not end.
func (w *Watchdog) tell(ctx context.Context, one *Reconcile, begun time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	o := one.object()
	if err := w.client.Get(ctx, one.request.NamespacedName, o); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("cannot read %s %s: %w", one.kind, one.request, err)
	}
	after, ok := o.DeepCopyObject().(status.Object)
	if !ok {
		return nil // its kind has no conditions
	}
	status.MarkFailing(after, v1alpha1.ReasonWorkerStalled, fmt.Errorf(
		"the reconcile that began at %s did not end by its deadline and keeps a worker; the agent restarts if it does not end; if it comes again, look at the agent's log and suspend the object",
		begun.UTC().Format(time.RFC3339)))
	return status.Patch(ctx, w.client, o, after, "cascade")
}
