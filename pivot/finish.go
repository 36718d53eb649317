package pivot

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// Finish lets go of the Clusters that a tier was given by pivots whose process, or whose
// other tier, is gone. Only a journal of the target that says switch is finished: it is
// written after that of the source said so, so that the source never acts on the Clusters
// again. It returns the pivots of which something was left to do.
func Finish(ctx context.Context, s Side) ([]string, error) {
	journals, err := Journals(ctx, s.Client, s.Namespace)
	if err != nil {
		return nil, err
	}
	var finished []string
	for _, j := range journals[Target] {
		if j.Step != Switch {
			continue
		}
		if err := finish(ctx, s, j); err != nil {
			return finished, fmt.Errorf("cannot finish pivot %s: %w", j.ID, err)
		}
		finished = append(finished, j.ID)
	}
	return finished, nil
}

func finish(ctx context.Context, s Side, j Journal) error {
	p := &Pivot{Target: s, journal: j}
	record, ok, err := recordOf(ctx, s)
	if err != nil {
		return err
	}
	for _, name := range j.names() {
		if ok && firstsync.ManagedBy(record, name) != "" {
			if err := p.do(ctx, Action{Verb: Take, Clusters: []types.NamespacedName{name}}); err != nil {
				return fmt.Errorf("cannot take Cluster %s: %w", name, err)
			}
		}
	}
	for {
		copies, err := readAll(ctx, s, j.Objects)
		if err != nil {
			return err
		}
		next := planLetGo(j, Facts{Copies: copies})
		if len(next) == 0 {
			break
		}
		for _, a := range next {
			if err := p.do(ctx, a); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return fmt.Errorf("cannot %s: %w", a, err)
			}
		}
	}
	cm := &corev1.ConfigMap{}
	if err := get(ctx, s.Client, types.NamespacedName{Namespace: s.Namespace, Name: j.nameOf(Target)}, cm); err != nil {
		return client.IgnoreNotFound(err)
	}
	if is, err := decode(cm); err != nil || is.ID != j.ID || is.Step != Switch {
		return err
	}
	j.Step, j.Objects = Done, nil
	after, err := j.encode(s.Namespace, Target)
	if err != nil {
		return err
	}
	after.UID, after.ResourceVersion = cm.UID, cm.ResourceVersion
	return client.IgnoreNotFound(update(ctx, s.Client, after))
}

// Keeper finishes what pivots left to its tier, as long as it runs. It is the master that
// keeps itself when the management cluster that moved it is gone.
type Keeper struct {
	Side Side
	// Every is the pause between two looks, each of which is one list of a few objects.
	Every time.Duration
}

// NeedLeaderElection says that only the working agent does it.
func (k *Keeper) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (k *Keeper) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("pivot")
	ticker := time.NewTicker(k.Every)
	defer ticker.Stop()
	for {
		finished, err := Finish(ctx, k.Side)
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "cannot finish pivots, trying again")
		}
		for _, id := range finished {
			logger.Info("Clusters that a pivot brought here are let go", "pivot", id)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// KeeperPause is Every of an agent.
const KeeperPause = 30 * time.Second
