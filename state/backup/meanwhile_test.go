package backup

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/state/store"
)

// TestStaleMeanwhile: a try may take longer by its spec than the last success may be old. It is told while it runs, and
// what the try ends with goes over that, also where it is what was there before (read 640).
func TestStaleMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(o *v1alpha1.StateBackup) {
			o.CreationTimestamp = metav1.Now()
			o.Spec.Timeout = &metav1.Duration{Duration: 12 * time.Hour}
		})
		b.Reconciler.Now = time.Now
		dir, stands := b.dir, time.Duration(0)
		b.Open = func(ctx context.Context, _ string, o store.Options) (store.Store, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(stands):
				return store.Open(ctx, dir, o)
			}
		}
		for range 2 { // the second finds what the first one saved, as the last one below does
			if _, _, err := b.reconcile(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		stands = 5 * time.Hour
		name := types.NamespacedName{Namespace: "cascade-system", Name: "tier"}
		ended := make(chan error)
		go func() {
			_, err := b.Reconcile(t.Context(), ctrl.Request{NamespacedName: name})
			ended <- err
		}()
		expect := func(when, want string) {
			t.Helper()
			o := &v1alpha1.StateBackup{}
			if err := b.Client.Get(t.Context(), name, o); err != nil {
				t.Fatal(err)
			}
			if is := ready(o); is.Reason != want {
				t.Errorf("%s: %+v, want %s", when, is, want)
			}
		}
		time.Sleep(time.Hour)
		expect("two hours after the last success", v1alpha1.ReasonSucceeded)
		time.Sleep(time.Hour + time.Minute)
		expect("three hours after it", v1alpha1.ReasonBackupStale)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		expect("when it ended", v1alpha1.ReasonSucceeded)
		var told []string
		for len(b.events.Events) > 0 {
			told = append(told, strings.Fields(<-b.events.Events)[1])
		}
		if got, want := strings.Join(told, " "), "Succeeded BackupStale Succeeded"; got != want {
			t.Errorf("the events are %s, want %s", got, want)
		}
	})
}

// TestAnother: a destination that stands still is not in the way of a StateBackup that saves elsewhere. Two that save
// at one place do it in turn: neither finds the other's lock.
func TestAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(o *v1alpha1.StateBackup) { o.CreationTimestamp = metav1.Now() })
		if n := b.options().MaxConcurrentReconciles; n < 2 {
			t.Errorf("%d StateBackup is saved at a time", n)
		}
		b.Reconciler.Now = time.Now
		dirs := map[string]string{"s3://bucket/tier": b.dir, "s3://elsewhere/tier": t.TempDir()}
		b.Open = func(ctx context.Context, url string, o store.Options) (store.Store, error) {
			time.Sleep(time.Minute)
			return store.Open(ctx, dirs[url], o)
		}
		first := &v1alpha1.StateBackup{}
		if err := b.Client.Get(t.Context(), types.NamespacedName{Namespace: "cascade-system", Name: "tier"}, first); err != nil {
			t.Fatal(err)
		}
		began, ended := time.Now(), make(chan error)
		for name, url := range map[string]string{"tier": "", "same": "s3://bucket/tier", "elsewhere": "s3://elsewhere/tier"} {
			if url != "" {
				o := &v1alpha1.StateBackup{ObjectMeta: metav1.ObjectMeta{Namespace: first.Namespace, Name: name, Generation: 1, CreationTimestamp: metav1.Now()}, Spec: first.Spec}
				o.Spec.Destination.URL = url
				if err := b.Client.Create(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			go func() {
				_, err := b.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: first.Namespace, Name: name}})
				ended <- err
			}()
		}
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 2*time.Minute {
			t.Errorf("they took %s: two of them save at one place, one elsewhere", took)
		}
	})
}

// standing is a store whose saves take until their process ends, which then gives no lock back.
type standing struct {
	store.Store
	ended *bool
}

func (s standing) Save(ctx context.Context, l store.Lock, content []byte) (store.Version, error) {
	if *s.ended {
		return s.Store.Save(ctx, l, content)
	}
	<-ctx.Done()
	return store.Version{}, ctx.Err()
}

func (s standing) Unlock(ctx context.Context, l store.Lock) error {
	if *s.ended {
		return s.Store.Unlock(ctx, l)
	}
	return nil
}

// TestKilledWhileSaving: however long a save may take, one that saves keeps others out, and one that was killed does not
// for long (read 716).
func TestKilledWhileSaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(o *v1alpha1.StateBackup) {
			o.CreationTimestamp = metav1.Now()
			o.Spec.Timeout = &metav1.Duration{Duration: 6 * time.Hour}
		})
		b.Reconciler.Now = time.Now
		dir, killed := b.dir, false
		b.Open = func(ctx context.Context, _ string, o store.Options) (store.Store, error) {
			at, err := store.Open(ctx, dir, o)
			return standing{at, &killed}, err
		}
		process, kill := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = b.Reconcile(process, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "cascade-system", Name: "tier"}})
		}()
		time.Sleep(time.Hour)
		other, err := store.Open(t.Context(), dir, store.Options{Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if _, err := other.Lock(t.Context(), "other", time.Minute); !errors.Is(err, store.ErrLocked) {
			t.Errorf("another one may save meanwhile: %v", err)
		}
		kill()
		<-ended
		killed = true
		time.Sleep(2 * time.Minute)
		if o, _, err := b.reconcile(); err != nil || o.Status.LastVersion == "" {
			t.Errorf("two minutes after it was killed: %+v, %v", o.Status, err)
		}
	})
}

// TestLockOf: what a destination is locked for.
func TestLockOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, url string
		timeout     time.Duration
		ttl         time.Duration
		renews      bool
	}{
		"Bucket": {"it is renewed beside an upload", "s3://bucket/tier", 6 * time.Hour, lockFor, true},
		"Short":  {"nobody renews what lasts as long as the save", "s3://bucket/tier", 30 * time.Second, 30 * time.Second, false},
		"Git":    {"a renewal would have a push begin again", "git+https://git.example.com/state.git", 6 * time.Hour, defaultTimeout, false},
	} {
		if ttl, renews := lockOf(tc.url, tc.timeout); ttl != tc.ttl || renews != tc.renews {
			t.Errorf("%s: %s: it is locked for %s, renewed: %t", name, tc.reason, ttl, renews)
		}
	}
}
