package backup

import (
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/robfig/cron/v3"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

const (
	leastInterval    = 10 * time.Second
	defaultTimeout   = 10 * time.Minute
	defaultKeep      = 30
	staleIntervals   = 3
	staleOfSchedules = 48 * time.Hour
	// lockFor is how long the lock of a destination holds after the process that has it was lost, and renewEvery
	// leaves several tries before it lapses, of which one may take renewPatience.
	lockFor       = time.Minute
	renewEvery    = 10 * time.Second
	renewPatience = 20 * time.Second
	// skew is how far ahead the clock may have been of whoever saved last.
	skew = 5 * time.Minute
)

// timing of a StateBackup, read from its spec.
type timing struct {
	interval time.Duration
	// schedule is set if interval is not.
	schedule cron.Schedule
	timeout  time.Duration
	stale    time.Duration
}

// timingOf reads a spec. An error is one of the spec; when a backup is too old is told all the same.
func timingOf(spec *v1alpha1.StateBackupSpec) (timing, error) {
	t := timing{timeout: defaultTimeout, stale: staleOfSchedules}
	// What a person says of it holds whatever is wrong besides.
	said := spec.StaleAfter != nil && spec.StaleAfter.Duration > 0
	if said {
		t.stale = spec.StaleAfter.Duration
	}
	switch {
	case spec.Interval != nil && spec.Schedule != "":
		return t, fmt.Errorf("cannot use spec.interval and spec.schedule together: set one of them")
	case spec.Interval != nil:
		if t.interval = spec.Interval.Duration; t.interval < leastInterval {
			return t, fmt.Errorf("cannot use spec.interval %s: it must be %s at least", t.interval, leastInterval)
		}
		if !said {
			t.stale = staleIntervals * t.interval
		}
	case spec.Schedule != "":
		schedule, err := cron.ParseStandard(spec.Schedule)
		if err != nil {
			return t, fmt.Errorf("cannot use spec.schedule %q: %w", spec.Schedule, err)
		}
		t.schedule = schedule
	default:
		return t, fmt.Errorf("cannot tell when to save: set spec.interval or spec.schedule")
	}
	if spec.Timeout != nil {
		if t.timeout = spec.Timeout.Duration; t.timeout <= 0 {
			return t, fmt.Errorf("cannot use spec.timeout %s: it must be positive", t.timeout)
		}
	}
	if spec.StaleAfter != nil && !said {
		return t, fmt.Errorf("cannot use spec.staleAfter %s: it must be positive", spec.StaleAfter.Duration)
	}
	return t, nil
}

// next is when the state is looked at after a time.
func (t timing) next(after time.Time) time.Time {
	if t.schedule != nil {
		return t.schedule.Next(after.UTC())
	}
	return after.Add(t.interval)
}

// due reports whether a backup is to be tried now, and when the next one is otherwise. One
// that failed, that was never tried, whose spec changed, that somebody asks for or that was at a
// time which is to come is due. So is one that has other Clusters as moved away than away says: restored
// from it, two management clusters would act on one Cluster.
func (t timing) due(o *v1alpha1.StateBackup, away string, now time.Time) (bool, time.Time) {
	asked := o.Annotations[meta.ReconcileRequestAnnotation]
	switch last := o.Status.LastSuccess; {
	case asked != "" && asked != o.Status.LastHandledReconcileAt,
		o.Status.ObservedGeneration != o.Generation, o.Status.MovedAway != away,
		last == nil, o.Status.LastAttempt == nil:
		return true, now
	case !o.Status.LastAttempt.Equal(last), ahead(last.Time, now):
		return true, now
	default:
		at := t.next(last.Time)
		return !at.After(now), at
	}
}

// isStale reports whether the last success is too old. One that never was is as old as the
// object; of one that is to come nobody knows how old it is.
func (t timing) isStale(o *v1alpha1.StateBackup, now time.Time) bool {
	return now.Sub(since(o)) > t.stale || ahead(since(o), now)
}

// ahead reports whether a time is of a clock that was wrong.
func ahead(at, now time.Time) bool { return at.After(now.Add(skew)) }

func since(o *v1alpha1.StateBackup) time.Time {
	if o.Status.LastSuccess != nil {
		return o.Status.LastSuccess.Time
	}
	return o.CreationTimestamp.Time
}
