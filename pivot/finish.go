package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	journals, unread := Journals(ctx, s.Client, s.Namespace)
	if errors.Is(unread, ErrNewer) {
		unread = nil // a later version looks after it
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
	return finished, unread
}

func finish(ctx context.Context, s Side, j Journal) error {
	p := &Pivot{Target: s, journal: j}
	record, _, err := recordOf(ctx, s)
	if err != nil {
		return err
	}
	// A pivot that takes the Clusters away again begins when this one is over, and writes the
	// record. So what was read is of before that, if this one is not over after it.
	if _, still, err := switched(ctx, s, j); err != nil || !still {
		return err
	}
	away := slices.DeleteFunc(j.names(), func(name types.NamespacedName) bool { return firstsync.ManagedBy(record, name) == "" })
	if len(away) > 0 {
		if err := p.do(ctx, Action{Verb: Take, Clusters: away, Record: record}); err != nil {
			return fmt.Errorf("cannot take the Clusters: %w", err)
		}
	}
	for looks := 1; ; looks++ {
		copies, err := readAll(ctx, s, 0, j.Objects) // its own tier, which is trusted
		if err != nil {
			return err
		}
		next := planLetGo(j, Facts{Copies: copies})
		if len(next) == 0 {
			break
		}
		if looks > mostLooks {
			return fmt.Errorf("%s is left to do, however often it is done", next[0])
		}
		for _, a := range next {
			if err := p.do(ctx, a); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return fmt.Errorf("cannot %s: %w", a, err)
			}
		}
	}
	cm, still, err := switched(ctx, s, j)
	if err != nil || !still {
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

// switched reads the target's journal of a pivot, and reports whether it is at that step.
func switched(ctx context.Context, s Side, j Journal) (*corev1.ConfigMap, bool, error) {
	cm := &corev1.ConfigMap{}
	if err := get(ctx, s.Client, types.NamespacedName{Namespace: s.Namespace, Name: j.nameOf(Target)}, cm); apierrors.IsNotFound(err) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("cannot read the journal in %s: %w", s.Name, err)
	}
	is, err := decode(cm)
	return cm, err == nil && is.ID == j.ID && is.Step == Switch, err
}

// Keeper finishes what pivots left to its tier, as long as it runs. It is the master that
// keeps itself when the management cluster that moved it is gone.
type Keeper struct {
	Side Side
	// Journals watches the journals of the tier, and nothing else: at rest nothing is asked.
	Journals ctrlcache.Cache
	// After is time.After if it is nil.
	After func(time.Duration) <-chan time.Time
}

const (
	// keepAgain is the pause after a call that failed.
	keepAgain = 30 * time.Second
	// keepPatience is how long the process that drives a pivot has until it renews the journal.
	// It knows the field owners that objects had in the source, and nobody here does.
	keepPatience = holds
	// mostWaits is how often that is put off, some ten minutes: one that takes the journal again
	// and again and gets no further leaves the Clusters paused. What is lost then are field owners.
	mostWaits = 30
)

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
	after := k.After
	if after == nil {
		after = time.After
	}
	var again <-chan time.Time
	waits := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
			if waits < mostWaits {
				waits++
				again = after(keepPatience) // somebody drives it
			}
			continue
		case <-again:
		}
		again, waits = nil, 0
		finished, err := Finish(ctx, k.Side)
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "cannot finish pivots, trying again")
			again = after(keepAgain)
		}
		for _, id := range finished {
			logger.Info("Clusters that a pivot brought here are let go", "pivot", id)
		}
	}
}
