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

// leasePoll is the pause between two looks at the leases of Flux's controllers.
const leasePoll = 5 * time.Second

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
	// back is the lease of one that came back while this process worked.
	back atomic.Pointer[string]
	// cache has the metadata of Leases in the namespaces.
	cache ctrlcache.Cache
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
	holder, err := f.look(ctx)
	if err == nil && holder == "" {
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
		case holder == "":
			return nil
		default:
			f.log.Info("waiting: Flux's controllers work on the same objects; scale them to zero, in Git if Git declares them", "lease", holder)
		}
		timer := time.NewTimer(leasePoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		holder, err = f.look(ctx)
	}
}

// look is what a process has to know before it begins: who keeps it waiting, and if nobody
// does, what it leaves alone.
func (f *fluxControllers) look(ctx context.Context) (holder string, err error) {
	if holder, err = f.holder(ctx); err != nil || holder != "" {
		return holder, err
	}
	f.left, err = f.leave(ctx)
	return "", err
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
			if l := &list.Items[i]; lease.Of(l.Name, controllers...) && lease.Held(l, f.now()) {
				return namespace + "/" + l.Name, nil
			}
		}
	}
	return "", nil
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
