package pivot

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
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
	// Journals watches the journals of the tier, and nothing else: at rest nothing is asked.
	Journals ctrlcache.Cache
}

// keepAgain is the pause after a call that failed.
const keepAgain = 30 * time.Second

// NeedLeaderElection says that only the working agent does it.
func (k *Keeper) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (k *Keeper) Start(ctx context.Context) error {
	informer, err := k.Journals.GetInformer(ctx, &corev1.ConfigMap{})
	if err != nil {
		return fmt.Errorf("cannot watch journals of pivots: %w", err)
	}
	wake := make(chan struct{}, 1)
	look := func(o any) {
		cm, ok := o.(*corev1.ConfigMap)
		if !ok || cm.Labels[v1alpha1.PivotLabel] != string(Target) {
			return
		}
		if j, err := decode(cm); err != nil || j.Step != Switch {
			return
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, o any) { look(o) }})
	if err != nil {
		return fmt.Errorf("cannot watch journals of pivots: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	logger := log.FromContext(ctx).WithName("pivot")
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-again:
		}
		again = nil
		finished, err := Finish(ctx, k.Side)
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "cannot finish pivots, trying again")
			again = time.After(keepAgain)
		}
		for _, id := range finished {
			logger.Info("Clusters that a pivot brought here are let go", "pivot", id)
		}
	}
}
