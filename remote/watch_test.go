package remote

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/syncer/park"
)

// TestPausesOfParked: a Child that takes long and fails is tried more and more seldom, as one that fails at once, though its
// controller forgets it as soon as it goes on aside.
func TestPausesOfParked(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		takes  time.Duration
	}{
		"Soon": {"it has its worker to the end", time.Second},
		"Long": {"it goes on aside", patience + time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var pauses []time.Duration
				var ended time.Time
				inner := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
					mu.Lock()
					if !ended.IsZero() {
						pauses = append(pauses, time.Since(ended))
					}
					mu.Unlock()
					time.Sleep(tc.takes)
					mu.Lock()
					defer mu.Unlock()
					ended = time.Now()
					return reconcile.Result{}, errors.New("no answer")
				})
				lot, options := childLot(nil, inner, 2)
				options.Reconciler, options.SkipNameValidation, options.Logger = lot, new(true), logr.Discard()
				c, err := controller.NewUnmanaged("child", options)
				if err != nil {
					t.Fatal(err)
				}
				begin := ctrlsource.Func(func(ctx context.Context, queue park.Queue) error {
					queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "fleet", Name: "a"}})
					return lot.Open(ctx, queue)
				})
				if err := c.Watch(begin); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.Start(ctx) }()
				time.Sleep(time.Hour)
				cancel()
				if err := errors.Join(<-done, lot.Start(ctx)); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, retryMost, retryMost}
				if len(pauses) < len(want) || !slices.Equal(pauses[:len(want)], want) {
					t.Errorf("%s: it is tried again after %v, want %v", tc.reason, pauses, want)
				}
			})
		})
	}
}
