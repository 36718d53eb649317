package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/remote/tenure"
)

// election decides which of several agents works.
type election struct {
	enabled bool
	// lease is after how long others may take over, renew how long a renewal is tried, and
	// retry the pause between two tries.
	lease, renew, retry time.Duration
}

func (e *election) bind(f *pflag.FlagSet) {
	f.BoolVar(&e.enabled, "enable-leader-election", true, "let only one of several agents of the tier work")
	f.DurationVar(&e.lease, "leader-election-lease-duration", leaseDuration, "time after which another agent takes over from one that is gone; 10s at least")
	f.DurationVar(&e.renew, "leader-election-renew-deadline", 10*time.Second, "time for which an agent tries to renew its lease before it gives up")
	f.DurationVar(&e.retry, "leader-election-retry-period", 2*time.Second, "pause between two tries to get or renew the lease")
}

func (e *election) check() error {
	switch {
	case e.lease < leastLease:
		return fmt.Errorf("cannot use --leader-election-lease-duration %s: %s is the least", e.lease, leastLease)
	case e.renew >= e.lease:
		return fmt.Errorf("cannot use --leader-election-renew-deadline %s: it must be shorter than --leader-election-lease-duration", e.renew)
	case e.retry <= 0 || e.retry*6/5 >= e.renew:
		return fmt.Errorf("cannot use --leader-election-retry-period %s: it must be positive, and six fifths of it shorter than --leader-election-renew-deadline", e.retry)
	}
	return nil
}

// locks makes the Leases that agents of one tier compete for. The identity of the agent is
// the pod's name: a container that is restarted in its pod is still the holder and goes on
// at once, where a random identity would have to wait for its own ghost.
type locks struct {
	clients   kubernetes.Interface
	namespace string
	identity  string
	lease     time.Duration
	now       func() time.Time
}

func (e *election) build(config *rest.Config, namespace string, now func() time.Time) (*locks, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot read host name: %w", err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	return &locks{clients: clients, namespace: namespace, identity: cmp.Or(os.Getenv("POD_NAME"), host), lease: e.lease, now: now}, nil
}

// of makes the Lease of a name, which tells with each renewal, that is written anyway, what
// labels says.
func (l *locks) of(name string, labels func(renewed time.Time) map[string]string) *heldLease {
	return newHeldLease(&labelledLock{labels: labels, LeaseLock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: l.namespace, Name: name},
		Client:     l.clients.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: l.identity},
	}}, l.lease, l.now)
}

// leader makes the Lease of the agent that leads the tier. It tells whether the report has
// changed, and among how many shards the children are shared out.
func (l *locks) leader(name string, reporter *report.Reporter, shards int) *heldLease {
	return l.of(name, func(renewed time.Time) map[string]string {
		said := map[string]string{}
		if digest := reporter.Digest(); digest != "" {
			said[v1alpha1.ReportLabel] = digest
		}
		if shards > 1 {
			maps.Copy(said, tenure.Labels(shards, renewed))
		}
		return said
	})
}

// fence is asked before what only the holder of the lease may do. Without a lease there is
// nothing to lose.
func (e *election) fence(lock *heldLease) func() error {
	if !e.enabled {
		return nil
	}
	return lock.Held
}

// labelledLock writes labels with each renewal.
type labelledLock struct {
	*resourcelock.LeaseLock
	labels func(renewed time.Time) map[string]string
}

// Create implements resourcelock.Interface.
func (l *labelledLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.Labels = l.labels(record.RenewTime.Time)
	return l.LeaseLock.Create(ctx, record)
}

// Update implements resourcelock.Interface.
func (l *labelledLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.Labels = l.labels(record.RenewTime.Time)
	return l.LeaseLock.Update(ctx, record)
}
