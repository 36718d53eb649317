package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/cascade-gitops/cascade/cmd/cascade/lease"
)

const (
	// leasePoll is the pause between two looks at the leases of Flux's controllers.
	leasePoll = 5 * time.Second
	// mostDoubt is how long a renewal counts from when it was seen, at most.
	mostDoubt = time.Minute
	// longLapsed is after what time a Lease that has a holder is looked at once alone: no clock is ahead by so much,
	// and no start is to wait for one that was killed long ago.
	longLapsed = 24 * time.Hour
)

// FluxNamespace is where Flux's controllers are, if nobody says another one.
const FluxNamespace = "flux-system"

// fluxControllers are those of Flux whose work this process does. Two engines would undo
// each other's status, and what one prunes the other may just have applied. So this process
// waits until none of them holds its lease, and ends when one comes back: what declares
// them may be in Git, and then whoever syncs it scales them up again.
type fluxControllers struct {
	clients    kubernetes.Interface
	namespaces []string
	leases     []string
	// left are the kinds that this process leaves alone; look finds out which.
	left  []leftKind
	kinds []string
	now   func() time.Time
	log   logr.Logger
	// sights of their Leases. One goroutine looks at a time: await, and Start after it.
	sights map[string]sight
	// back is the lease of one that came back while this process worked.
	back atomic.Pointer[string]
	// cache has the metadata of Leases in the namespaces.
	cache ctrlcache.Cache
}

// sight of a Lease: the clock of this node may be ahead of the one by which it is renewed, so that it always counts
// as lapsed. What is renewed while this process looks is held, whatever the clocks say.
type sight struct {
	// renewed is when it was, by the clock of its holder.
	renewed time.Time
	// until when that counts, or may count, by ours.
	until time.Time
	// moved: it was renewed between two looks.
	moved bool
}

var _ manager.LeaderElectionRunnable = &fluxControllers{}

func newFluxControllers(config *rest.Config, p *place, s *sharding, now func() time.Time, log logr.Logger) (*fluxControllers, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	return &fluxControllers{clients: clients, namespaces: fluxNamespaces(p.namespace, p.flux), leases: s.fluxLeases(), kinds: slices.Clone(s.kinds), now: now, log: log}, nil
}

// fluxNamespaces are where Flux's controllers may be: Flux's own, and the agent's. In others
// whoever may write a Lease would stop the agent with it.
func fluxNamespaces(namespace, flux string) []string {
	if namespace == flux {
		return []string{namespace}
	}
	return []string{namespace, flux}
}

// await waits until none of them is at work, and finds out which kinds are left to others.
// Meanwhile it serves the probes of a process
// that is alive and not ready at an address, lest the kubelet kill who waits.
func (f *fluxControllers) await(ctx context.Context, probes string) error {
	holder, doubt, err := f.look(ctx)
	if err == nil && holder == "" && doubt == "" {
		return nil
	}
	stop, err2 := serveWaiting(ctx, probes)
	if err2 != nil {
		return err2
	}
	defer stop()
	for {
		switch {
		case err != nil:
			f.log.Error(err, "cannot tell whether Flux's controllers run; waiting")
		case holder != "":
			f.log.Info("waiting: Flux's controllers work on the same objects; scale them to zero, in Git if Git declares them", "lease", holder)
		case doubt != "":
			f.log.Info("waiting for whether a Lease is renewed that lapsed by the clock of this node", "lease", doubt)
		default:
			return nil
		}
		timer := time.NewTimer(leasePoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		holder, doubt, err = f.look(ctx)
	}
}

// look is what a process has to know before it begins: who keeps it waiting, and if nobody
// does, what it leaves alone. While it is in doubt about a Lease, it does not know that.
func (f *fluxControllers) look(ctx context.Context) (holder, doubt string, err error) {
	if holder, err = f.holder(ctx); err != nil || holder != "" {
		return holder, "", err
	}
	f.left, err = f.leave(ctx)
	for name, s := range f.sights {
		if !s.moved && f.now().Before(s.until) {
			doubt = name
		}
	}
	return "", doubt, err
}

// serveWaiting answers /healthz and refuses /readyz until stop is called. Of an address 0
// nothing is served.
func serveWaiting(ctx context.Context, address string) (stop func(), err error) {
	if address == "" || address == "0" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot serve probes: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "waiting for Flux's controllers to end", http.StatusServiceUnavailable)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: leasePoll}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // it ends by stop
	}()
	return func() { _ = server.Close(); <-done }, nil
}

// holder names one of the leases that somebody holds now; empty if nobody holds any.
func (f *fluxControllers) holder(ctx context.Context) (string, error) {
	return f.heldNow(ctx, f.leases...)
}

// heldNow is a lease of one of some controllers that somebody holds now, with its namespace;
// empty if nobody does.
func (f *fluxControllers) heldNow(ctx context.Context, controllers ...string) (string, error) {
	for _, namespace := range f.namespaces {
		list, err := f.list(ctx, namespace)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			if l := &list.Items[i]; lease.Of(l.Name, controllers...) && f.held(l) {
				return namespace + "/" + l.Name, nil
			}
		}
	}
	return "", nil
}

// held reports whether somebody holds a Lease now: as it says, or as it was renewed since it was seen first.
func (f *fluxControllers) held(l *coordinationv1.Lease) bool {
	now, name := f.now(), l.Namespace+"/"+l.Name
	if l.Spec.RenewTime == nil || !lease.Held(l, l.Spec.RenewTime.Time) {
		delete(f.sights, name) // nobody has it
		return false
	}
	renewed := l.Spec.RenewTime.Time
	before, known := f.sights[name]
	if !known || !before.renewed.Equal(renewed) {
		s := sight{renewed: renewed, moved: known}
		if known || !lease.Held(l, now) && now.Sub(renewed) < longLapsed {
			s.until = now.Add(min(time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second, mostDoubt))
		}
		if f.sights == nil {
			f.sights = map[string]sight{}
		}
		f.sights[name], before = s, s
	}
	return lease.Held(l, now) || before.moved && now.Before(before.until)
}

// list reads the Leases of a namespace. The call ends after leasePoll.
func (f *fluxControllers) list(ctx context.Context, namespace string) (*coordinationv1.LeaseList, error) {
	ctx, cancel := context.WithTimeout(ctx, leasePoll)
	defer cancel()
	list, err := f.clients.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot list Leases of namespace %s: %w", namespace, err)
	}
	return list, nil
}

// watched are the Leases of which the cache has the metadata: what their watch shows is
// reason enough to read one.
func (f *fluxControllers) watched() (client.Object, ctrlcache.ByObject) {
	by := ctrlcache.ByObject{Namespaces: map[string]ctrlcache.Config{}}
	for _, namespace := range f.namespaces {
		by.Namespaces[namespace] = ctrlcache.Config{}
	}
	return leaseMetadata(), by
}

func leaseMetadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	return m
}

// NeedLeaderElection: a replica that waits for its turn must not begin, either.
func (f *fluxControllers) NeedLeaderElection() bool { return false }

// Start ends with an error when one of Flux's controllers comes to work, and the process
// with it: the next one waits. It implements manager.Runnable.
func (f *fluxControllers) Start(ctx context.Context) error {
	informer, err := f.cache.GetInformer(ctx, leaseMetadata())
	if err != nil {
		return fmt.Errorf("cannot watch the leases of Flux's controllers: %w", err)
	}
	seen := make(chan string, 1)
	look := func(o any) {
		m, ok := o.(*metav1.PartialObjectMetadata)
		if !ok || !lease.Of(m.Name, f.leases...) {
			return
		}
		select {
		case seen <- m.Namespace + "/" + m.Name:
		default: // all of them are read
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, o any) { look(o) }})
	if err != nil {
		return fmt.Errorf("cannot watch the leases of Flux's controllers: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	ticker := time.NewTicker(leftPoll)
	defer ticker.Stop()
	var free []leftKind
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			now, err := f.free(ctx)
			if err != nil {
				f.log.Error(err, "cannot tell whether kinds are still left to others, trying again")
				continue
			}
			if again := both(free, now); len(again) > 0 {
				return fmt.Errorf("cannot take over %s in the middle of its work: this agent ends, and reconciles them when it is started again", kindsOf(again))
			}
			free = now
			continue
		case <-seen:
		}
		holder, err := f.holder(ctx)
		for err != nil && ctx.Err() == nil {
			f.log.Error(err, "cannot tell whether Flux's controllers run, trying again")
			timer := time.NewTimer(time.Second)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
			holder, err = f.holder(ctx)
		}
		if holder != "" {
			f.back.Store(&holder)
			return f.mayWrite()
		}
	}
}

// mayWrite is an error when one of Flux's controllers has come to work. It is asked before
// each delete, as reconciles that are on their way take a moment to end.
func (f *fluxControllers) mayWrite() error {
	if holder := f.back.Load(); holder != nil {
		return fmt.Errorf("cannot work beside Flux's controllers, one of which holds Lease %s: "+
			"this agent ends, and waits when it is started again; scale them to zero, in Git if Git declares them", *holder)
	}
	return nil
}

// fence adds to what is asked before each delete.
func (f *fluxControllers) fence(other func() error) func() error {
	if other == nil {
		return f.mayWrite
	}
	return func() error { return errors.Join(f.mayWrite(), other()) }
}
