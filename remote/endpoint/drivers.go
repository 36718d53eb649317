package endpoint

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/remote/shard"
	"github.com/cascade-gitops/cascade/remote/tenure"
)

// driversFor is for how long it is known who drives which children.
const driversFor = 5 * time.Second

// Drivers tells which replica of the agent drives which children, by the Leases of the tier,
// and where the replica is, by its pod. It is safe for concurrent use.
type Drivers struct {
	// Client reads at the API server. Namespace has the Leases and the pods.
	Client    client.Reader
	Namespace string
	// Identity of this process as the holder of a Lease: the name of its pod.
	Identity string
	// Leader is the name of the leader's Lease, empty if there is one process, without a
	// Lease. Shards is into how many parts the children are shared out; 1 leaves all of them
	// to the leader.
	Leader string
	Shards int
	// Listen is where this process serves metrics. The others do so at the same port.
	Listen string
	Now    func() time.Time

	mu sync.Mutex // guards what follows; never held over a call
	// holders of the shards, and the addresses of those that are not this process.
	holders   []string
	addresses map[string]string
	until     time.Time
}

// Of is Discovery.Drivers.
func (d *Drivers) Of(ctx context.Context, self string) (func(types.NamespacedName) (string, bool), error) {
	own, err := Advertised(d.Listen, self)
	if err != nil {
		return nil, err
	}
	if d.Leader == "" {
		return func(types.NamespacedName) (string, bool) { return own, true }, nil
	}
	holders, addresses, err := d.read(ctx)
	if err != nil {
		return nil, err
	}
	return func(child types.NamespacedName) (string, bool) {
		holder := holders[shard.Of(child, d.Shards)]
		if holder == d.Identity {
			return own, true
		}
		at, ok := addresses[holder]
		return at, ok
	}, nil
}

// read reads Leases and pods, if that was not done a moment ago.
func (d *Drivers) read(ctx context.Context) (holders []string, addresses map[string]string, err error) {
	d.mu.Lock()
	holders, addresses = d.holders, d.addresses
	fresh := d.Now().Before(d.until)
	d.mu.Unlock()
	if fresh {
		return holders, addresses, nil
	}
	_, port, err := net.SplitHostPort(d.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot tell the port of metrics %q: %w", d.Listen, err)
	}
	holders, addresses = make([]string, d.Shards), map[string]string{}
	for i := range holders {
		name := d.Leader
		if d.Shards > 1 {
			name = tenure.LeaseName(i)
		}
		lease := &coordinationv1.Lease{}
		if err := d.Client.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: name}, lease); err != nil {
			return nil, nil, fmt.Errorf("cannot read Lease %s: %w", name, err)
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			continue // between two holders
		}
		holders[i] = *lease.Spec.HolderIdentity
		if holders[i] == d.Identity || addresses[holders[i]] != "" {
			continue
		}
		pod := &corev1.Pod{}
		if err := d.Client.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: holders[i]}, pod); err != nil {
			return nil, nil, fmt.Errorf("cannot read pod %s, which holds Lease %s: %w", holders[i], name, err)
		}
		if pod.Status.PodIP != "" {
			addresses[holders[i]] = net.JoinHostPort(pod.Status.PodIP, port)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holders, d.addresses, d.until = holders, addresses, d.Now().Add(driversFor)
	return holders, addresses, nil
}
