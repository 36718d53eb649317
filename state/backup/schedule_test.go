package backup

import (
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(d)} }

func every(d time.Duration) v1alpha1.StateBackupSpec {
	return v1alpha1.StateBackupSpec{Interval: &metav1.Duration{Duration: d}}
}

func TestDue(t *testing.T) {
	done := v1alpha1.StateBackupStatus{ObservedGeneration: 1, LastAttempt: at(-time.Hour), LastSuccess: at(-time.Hour), MovedAway: "moved"}
	for name, tt := range map[string]struct {
		reason string
		spec   v1alpha1.StateBackupSpec
		change func(*v1alpha1.StateBackup)
		want   bool
		next   time.Time
	}{
		"Never":   {"there is none yet", every(time.Hour), func(o *v1alpha1.StateBackup) { o.Status = v1alpha1.StateBackupStatus{} }, true, noon},
		"Over":    {"the interval is over", every(time.Hour), func(*v1alpha1.StateBackup) {}, true, noon},
		"NotOver": {"it is not", every(2 * time.Hour), func(*v1alpha1.StateBackup) {}, false, noon.Add(time.Hour)},
		"Failed":  {"the last one failed: the pauses are those of the queue", every(2 * time.Hour), func(o *v1alpha1.StateBackup) { o.Status.LastAttempt = at(-time.Minute) }, true, noon},
		"Changed": {"it may go elsewhere now", every(2 * time.Hour), func(o *v1alpha1.StateBackup) { o.Generation = 2 }, true, noon},
		"Moved":   {"a Cluster was moved away since, or came back", v1alpha1.StateBackupSpec{Schedule: "0 3 * * *"}, func(o *v1alpha1.StateBackup) { o.Status.MovedAway = "" }, true, noon},
		"Asked":   {"somebody asks", every(2 * time.Hour), func(o *v1alpha1.StateBackup) { o.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "x"} }, true, noon},
		"AskedOnce": {"and was answered", every(2 * time.Hour), func(o *v1alpha1.StateBackup) {
			o.Annotations, o.Status.LastHandledReconcileAt = map[string]string{meta.ReconcileRequestAnnotation: "x"}, "x"
		}, false, noon.Add(time.Hour)},
		"Ahead": {"the clock was ahead then, by a day", every(2 * time.Hour), func(o *v1alpha1.StateBackup) {
			o.Status.LastAttempt, o.Status.LastSuccess = at(24*time.Hour), at(24*time.Hour)
		}, true, noon},
		"AheadCron": {"nor is a schedule put off", v1alpha1.StateBackupSpec{Schedule: "0 3 * * *"}, func(o *v1alpha1.StateBackup) {
			o.Status.LastAttempt, o.Status.LastSuccess = at(24*time.Hour), at(24*time.Hour)
		}, true, noon},
		"AheadFailed": {"one that failed since then is not put off, however little it was", every(2 * time.Hour), func(o *v1alpha1.StateBackup) {
			o.Status.LastAttempt, o.Status.LastSuccess = at(-time.Minute), at(time.Minute)
		}, true, noon},
		"Skewed": {"clocks of two machines are a little apart", every(2 * time.Hour), func(o *v1alpha1.StateBackup) {
			o.Status.LastAttempt, o.Status.LastSuccess = at(time.Minute), at(time.Minute)
		}, false, noon.Add(2*time.Hour + time.Minute)},
		"Cron":     {"eleven was not, and the next is at three", v1alpha1.StateBackupSpec{Schedule: "0 3 * * *"}, func(*v1alpha1.StateBackup) {}, false, noon.Add(15 * time.Hour)},
		"CronOver": {"half past eleven was missed", v1alpha1.StateBackupSpec{Schedule: "30 * * * *"}, func(*v1alpha1.StateBackup) {}, true, noon.Add(-30 * time.Minute)},
		"CronZone": {"three in Tokyo is six in the evening", v1alpha1.StateBackupSpec{Schedule: "CRON_TZ=Asia/Tokyo 0 3 * * *"}, func(*v1alpha1.StateBackup) {}, false, noon.Add(6 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			o := &v1alpha1.StateBackup{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: tt.spec, Status: done}
			tt.change(o)
			when, err := timingOf(&o.Spec)
			if err != nil {
				t.Fatal(err)
			}
			got, next := when.due(o, "moved", noon)
			if got != tt.want || !next.Equal(tt.next) {
				t.Errorf("%s: got %t at %s, want %t at %s", tt.reason, got, next, tt.want, tt.next)
			}
		})
	}
}

func TestTiming(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		spec   v1alpha1.StateBackupSpec
		stale  time.Duration
	}{
		"Interval": {"three intervals", every(time.Hour), 3 * time.Hour},
		"Schedule": {"two days", v1alpha1.StateBackupSpec{Schedule: "@daily"}, 48 * time.Hour},
		"Said":     {"as it says", v1alpha1.StateBackupSpec{Schedule: "@weekly", StaleAfter: &metav1.Duration{Duration: 192 * time.Hour}}, 192 * time.Hour},
		"Neither":  {"when?", v1alpha1.StateBackupSpec{}, 0},
		"Both":     {"which of the two?", v1alpha1.StateBackupSpec{Schedule: "@daily", Interval: &metav1.Duration{Duration: time.Hour}}, 0},
		"TooOften": {"each reads the whole tier", every(time.Second), 0},
		"NoCron":   {"it is no schedule", v1alpha1.StateBackupSpec{Schedule: "now and then"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			when, err := timingOf(&tt.spec)
			if (err != nil) != (tt.stale == 0) || err == nil && when.stale != tt.stale {
				t.Errorf("%s: got %s, %v", tt.reason, when.stale, err)
			}
		})
	}
}

// TestStaleOfWrong: when a backup is too old is what a person says, whatever is wrong besides.
func TestStaleOfWrong(t *testing.T) {
	stale := &metav1.Duration{Duration: 192 * time.Hour}
	for name, spec := range map[string]v1alpha1.StateBackupSpec{
		"Schedule": {Schedule: "0 3 * * 7x", StaleAfter: stale},
		"Timeout":  {Interval: &metav1.Duration{Duration: time.Hour}, Timeout: &metav1.Duration{Duration: -time.Second}, StaleAfter: stale},
	} {
		t.Run(name, func(t *testing.T) {
			if when, err := timingOf(&spec); err == nil || when.stale != stale.Duration {
				t.Errorf("%s, %v", when.stale, err)
			}
		})
	}
}

func TestIsStale(t *testing.T) {
	when, err := timingOf(&v1alpha1.StateBackupSpec{Interval: &metav1.Duration{Duration: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	o := &v1alpha1.StateBackup{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: *at(-2 * time.Hour)}}
	if when.isStale(o, noon) || !when.isStale(o, noon.Add(2*time.Hour)) {
		t.Error("without a success it is as old as the object")
	}
	o.Status.LastSuccess = at(0)
	if when.isStale(o, noon.Add(2*time.Hour)) || !when.isStale(o, noon.Add(4*time.Hour)) {
		t.Error("the last success counts")
	}
	o.Status.LastSuccess = at(24 * time.Hour)
	if !when.isStale(o, noon) {
		t.Error("a success that is to come says nothing")
	}
}
