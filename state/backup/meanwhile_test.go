package backup

import (
	"context"
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
