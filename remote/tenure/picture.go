package tenure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/shard"
)

// Names of Leases: of the shard of a number, and of a replica.
const (
	shardPrefix   = "cascade-shard-"
	replicaPrefix = "cascade-replica-"
)

// LeaseName of a shard.
func LeaseName(i int) string { return shardPrefix + strconv.Itoa(i) }

// ShardOf is the number of the shard that a Lease is of; ok is false if it is of none.
func ShardOf(lease string) (i int, ok bool) {
	text, ok := strings.CutPrefix(lease, shardPrefix)
	if !ok {
		return 0, false
	}
	i, err := strconv.Atoi(text)
	return i, err == nil
}

// remembered is for how many durations of a Lease a replica that is gone is left on record.
const remembered = 40

// Labels of a Lease whose holder serves a number of shards, for a renewal at a time. The
// time tells the renewal of a process that knows of shards from that of one that does
// not, which leaves the labels as they are.
func Labels(shards int, renewed time.Time) map[string]string {
	return map[string]string{v1alpha1.ShardsLabel: fmt.Sprintf("%d.%d", shards, renewed.UnixMicro())}
}

// served is the number of shards that the holder of a Lease serves; 1 if it does not say.
func served(lease *coordinationv1.Lease) int {
	number, at, _ := strings.Cut(lease.Labels[v1alpha1.ShardsLabel], ".")
	n, err := strconv.Atoi(number)
	if err != nil || lease.Spec.RenewTime == nil || at != strconv.FormatInt(lease.Spec.RenewTime.UnixMicro(), 10) {
		return 1
	}
	return n
}

// picture is what the Leases of a tier say. One goroutine uses it.
type picture struct {
	now func() time.Time
	// patience is how long a replica lives after its last renewal, by our clock: the
	// clocks of others may be wrong.
	patience time.Duration
	seen     map[string]sighting
}

type sighting struct {
	renewed metav1.MicroTime
	at      time.Time
}

// lives reports whether the holder of a Lease renewed it a moment ago.
func (p *picture) lives(lease *coordinationv1.Lease) bool {
	return lease.Spec.RenewTime != nil && p.age(lease) < p.patience
}

// age is how long ago a Lease was seen to be renewed.
func (p *picture) age(lease *coordinationv1.Lease) time.Duration {
	var renewed metav1.MicroTime
	if lease.Spec.RenewTime != nil {
		renewed = *lease.Spec.RenewTime
	}
	last, known := p.seen[lease.Name]
	if !known || !last.renewed.Equal(&renewed) {
		last = sighting{renewed: renewed, at: p.now()}
		p.seen[lease.Name] = last
	}
	return p.now().Sub(last.at)
}

// plan says which replica is to have each of n shards. leader is the name of the Lease of
// the tier's leader. agreed is false, and nobody is to have any, if the leader serves
// another number of shards: it drives children itself.
func (p *picture) plan(leases []coordinationv1.Lease, leader string, n int) (plan []string, agreed, led bool) {
	holders := make([]string, n)
	var replicas []string
	agreed = true
	for i := range leases {
		lease := &leases[i]
		holder := ""
		if lease.Spec.HolderIdentity != nil {
			holder = *lease.Spec.HolderIdentity
		}
		switch {
		case lease.Name == leader && holder != "":
			led, agreed = true, served(lease) == n
		case strings.HasPrefix(lease.Name, replicaPrefix):
			if holder != "" && served(lease) == n && p.lives(lease) {
				replicas = append(replicas, holder)
			}
		case strings.HasPrefix(lease.Name, shardPrefix):
			if at, err := strconv.Atoi(strings.TrimPrefix(lease.Name, shardPrefix)); err == nil && at < n {
				holders[at] = holder
			}
		}
	}
	if !agreed {
		return make([]string, n), false, led
	}
	return shard.Plan(holders, replicas), true, led
}

// served says which of n shards have a replica: their Leases are renewed.
func (p *picture) served(leases []coordinationv1.Lease, n int) []bool {
	served := make([]bool, n)
	for i := range leases {
		lease := &leases[i]
		if at, ok := ShardOf(lease.Name); ok && at >= 0 && at < n {
			served[at] = lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" && p.lives(lease)
		}
	}
	return served
}

// attend says again and again that this process lives, looks who else does, and wants the
// shards that are its own by that.
func (t *Tenures) attend(ctx context.Context) {
	for ctx.Err() == nil {
		if err := t.look(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "cannot tell which shards are this replica's")
		}
		pause(ctx, t.Retry)
	}
	// Others need not wait for this one.
	gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.Renew)
	defer cancel()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: replicaPrefix + t.Replica}}
	if err := t.Client.Delete(gone, lease); client.IgnoreNotFound(err) != nil {
		log.FromContext(ctx).Error(err, "cannot delete the Lease of this replica")
	}
}

func (t *Tenures) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.Renew)
	defer cancel()
	if err := t.live(ctx); err != nil {
		return err
	}
	list := &coordinationv1.LeaseList{}
	if err := t.Client.List(ctx, list, client.InNamespace(t.Namespace), client.HasLabels{v1alpha1.ShardsLabel}); err != nil {
		return fmt.Errorf("cannot list the Leases of shards: %w", err)
	}
	if !slices.ContainsFunc(list.Items, func(l coordinationv1.Lease) bool { return l.Name == v1alpha1.LeaderLease }) {
		// There is none, or it never was held by who knows of shards.
		leader := &coordinationv1.Lease{}
		err := t.Client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: v1alpha1.LeaderLease}, leader)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot read the Lease of the leader: %w", err)
		}
		if err == nil {
			list.Items = append(list.Items, *leader)
		}
	}
	plan, agreed, led := t.picked.plan(list.Items, v1alpha1.LeaderLease, t.Shards)
	switch {
	case !agreed:
		log.FromContext(ctx).Info("waiting: the leader of the tier drives children itself, or has another number of --shards", "shards", t.Shards)
	case !led:
		return nil // it stays as it is until there is a leader
	}
	t.want(plan)
	if agreed {
		t.note(t.picked.served(list.Items, t.Shards))
	}
	return t.tidy(ctx, list.Items)
}

// live renews the Lease of this replica.
func (t *Tenures) live(ctx context.Context) error {
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: t.Namespace, Name: replicaPrefix + t.Replica}
	err := t.Client.Get(ctx, key, lease)
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return fmt.Errorf("cannot read the Lease of this replica: %w", err)
	}
	now, seconds := metav1.NewMicroTime(t.Now()), int32(t.Lease/time.Second)
	lease.Namespace, lease.Name = key.Namespace, key.Name
	lease.Labels = Labels(t.Shards, now.Time)
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &t.Replica, LeaseDurationSeconds: &seconds, RenewTime: &now}
	if absent {
		err = t.Client.Create(ctx, lease)
	} else {
		err = t.Client.Update(ctx, lease)
	}
	if err != nil {
		return fmt.Errorf("cannot renew the Lease of this replica: %w", err)
	}
	return nil
}

// tidy deletes the Leases of replicas that have been gone for long.
func (t *Tenures) tidy(ctx context.Context, leases []coordinationv1.Lease) error {
	var errs []error
	for i := range leases {
		lease := &leases[i]
		if !strings.HasPrefix(lease.Name, replicaPrefix) || t.picked.age(lease) < remembered*t.Lease {
			continue
		}
		err := t.Client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("cannot delete the Lease of a replica that is gone: %w", err))
		}
		delete(t.picked.seen, lease.Name)
	}
	return errors.Join(errs...)
}
