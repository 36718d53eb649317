package node

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

var (
	_ vknode.PodLifecycleHandler = (*pods)(nil)
	_ vknode.PodNotifier         = (*pods)(nil)
)

// pods are the workers of the node, one for each pod UID. virtual-kubelet tells them what to run.
//
// They write pod statuses themselves instead of handing them to virtual-kubelet, which replaces the whole status (and with
// it the labels) of a pod, never notices when somebody else changed it (the node lifecycle controller does, after an
// outage), and leaves the object of a deleted pod in place for the whole grace period even if its processes ended at once.
type pods struct {
	host   *host
	lister corelisters.PodLister

	mu      sync.Mutex
	workers map[types.UID]*pod
	closed  bool
	group   sync.WaitGroup
}

func newPods(h *host, lister corelisters.PodLister) *pods {
	return &pods{host: h, lister: lister, workers: map[types.UID]*pod{}}
}

// NotifyPods is how virtual-kubelet would be told of statuses; see the type.
func (s *pods) NotifyPods(context.Context, func(*corev1.Pod)) {}

// CreatePod starts the worker of a pod. It never fails: what stands in the way of a pod, its status says, and its worker
// tries again.
func (s *pods) CreatePod(_ context.Context, object *corev1.Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.workers[object.UID] != nil {
		return nil
	}
	p := newPod(s.host, object)
	for _, other := range s.workers {
		if other.namespace == p.namespace && other.name == p.name {
			// Same name, other pod: the object was deleted and made anew while nobody looked.
			other.stop(0)
			p.after = append(p.after, other.done)
		}
	}
	s.workers[object.UID] = p
	s.group.Go(func() {
		p.run()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.workers, object.UID)
	})
	return nil
}

// UpdatePod tells the worker what its pod looks like now. Nothing that may change in a running pod changes its processes.
func (s *pods) UpdatePod(_ context.Context, object *corev1.Pod) error {
	if p := s.worker(object.UID); p != nil {
		p.observe(object)
	}
	return nil
}

// DeletePod ends the processes of a pod and returns after they have ended.
func (s *pods) DeletePod(ctx context.Context, object *corev1.Pod) error {
	p := s.worker(object.UID)
	if p == nil {
		if object.DeletionTimestamp != nil {
			// A pod of a former node, which took its processes along.
			if err := removeObject(ctx, s.host.client, object); err != nil {
				return err
			}
		}
		return errdefs.NotFoundf("pod %s/%s does not run here", object.Namespace, object.Name)
	}
	if object.DeletionTimestamp != nil {
		p.observe(object)
	} else {
		p.stop(time.Second) // the object is gone, nobody waits for a clean end
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// GetPod returns the pod of that name, unless the API server has another one of the same name by now: virtual-kubelet does
// not compare UIDs, and would take the new one for the old.
func (s *pods) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	current, err := s.lister.Pods(namespace).Get(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.workers {
		if p.namespace == namespace && p.name == name && (err != nil || current.UID == p.uid) {
			return p.object(), nil
		}
	}
	return nil, errdefs.NotFoundf("pod %s/%s does not run here", namespace, name)
}

// GetPodStatus returns what the worker last knew.
func (s *pods) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	object, err := s.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &object.Status, nil
}

// GetPods returns the pods that run here.
func (s *pods) GetPods(context.Context) ([]*corev1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*corev1.Pod, 0, len(s.workers))
	for _, p := range s.workers {
		all = append(all, p.object())
	}
	return all, nil
}

func (s *pods) worker(uid types.UID) *pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.workers[uid]
}

// watch tells workers of every change to their pods, where virtual-kubelet tells only of those to the spec: a worker puts
// its status right when somebody else wrote it, and hurries when a grace period was shortened or the object removed.
func (s *pods) watch() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, changed any) {
			object := changed.(*corev1.Pod)
			if p := s.worker(object.UID); p != nil {
				p.observe(object)
			}
		},
		DeleteFunc: func(last any) {
			if unknown, ok := last.(cache.DeletedFinalStateUnknown); ok {
				last = unknown.Obj
			}
			if object, ok := last.(*corev1.Pod); ok {
				if p := s.worker(object.UID); p != nil {
					p.stop(time.Second)
				}
			}
		},
	}
}

// shutdown ends all processes and leaves the objects alone: the next node runs these pods again.
func (s *pods) shutdown(grace time.Duration) {
	s.mu.Lock()
	s.closed = true
	for _, p := range s.workers {
		p.leave()
		p.stop(grace)
	}
	s.mu.Unlock()
	s.group.Wait()
}

// addresses hands out the addresses of the pods that have their own.
type addresses struct {
	mu    sync.Mutex
	node  netip.Addr
	taken map[netip.Addr]bool
}

func newAddresses(node netip.Addr) *addresses {
	return &addresses{node: node, taken: map[netip.Addr]bool{}}
}

// take returns the lowest free address behind the node's, or false when the node's last octet is used up.
func (a *addresses) take() (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ip := a.node.Next(); ip.Is4() && ip.As4()[3] != 255; ip = ip.Next() {
		if !a.taken[ip] {
			a.taken[ip] = true
			return ip.String(), true
		}
	}
	return "", false
}

func (a *addresses) give(ip string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if parsed, err := netip.ParseAddr(ip); err == nil {
		delete(a.taken, parsed)
	}
}
