package agent

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote"
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

// build makes the lease that the working agent holds, by the name that its shard
// has for it. Its identity is the pod's name: a container that is restarted in its
// pod is still the holder and goes on at once, where a random identity would have
// to wait for its own ghost.
func (e *election) build(
	config *rest.Config, namespace string, name func(string) string, reporter *remote.Reporter, now func() time.Time,
) (*heldLease, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot read host name: %w", err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	return newHeldLease(&reportingLock{reporter: reporter, LeaseLock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name(v1alpha1.LeaderLease)},
		Client:     clients.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: cmp.Or(os.Getenv("POD_NAME"), host)},
	}}, e.lease, now), nil
}

// fence is asked before each delete. Without a lease there is nothing to lose.
func (e *election) fence(lock *heldLease) func() error {
	if !e.enabled {
		return nil
	}
	return lock.MayDelete
}

// reportingLock tells with each renewal of the lease, which is written anyway,
// whether the report has changed.
type reportingLock struct {
	*resourcelock.LeaseLock
	reporter *remote.Reporter
}

// Update renews the lease.
func (l *reportingLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if digest := l.reporter.Digest(); digest != "" {
		l.Labels = map[string]string{v1alpha1.ReportLabel: digest}
	}
	return l.LeaseLock.Update(ctx, record)
}
