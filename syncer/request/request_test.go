package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// writes is an API server that takes a while for each write.
type writes struct {
	takes time.Duration
	err   error

	mu  sync.Mutex
	all []string
}

func (w *writes) Patch(ctx context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	time.Sleep(w.takes)
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	var sent metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &sent); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.all = append(w.all, o.GetName()+" "+sent.Annotations[meta.ReconcileRequestAnnotation])
	}
	return errors.Join(ctx.Err(), w.err)
}

func object(name string) Object {
	return Object{schema.GroupVersionKind{Group: "source.toolkit.fluxcd.io", Version: "v1", Kind: "GitRepository"}, types.NamespacedName{Namespace: "n", Name: name}}
}

// TestMake: requests at some milliseconds, each of which has to be written after it was made.
func TestMake(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		at     []int
		takes  time.Duration
		want   int
	}{
		"One":            {"a push", []int{0}, 0, 1},
		"Apart":          {"pushes that have nothing to do with each other", []int{0, 1000, 2000}, 0, 3},
		"Together":       {"a push that three hooks tell of: the first is written at once, the others together", []int{0, 10, 20, 30}, 0, 2},
		"DuringTheFirst": {"what comes while the first is being written may have come too late for its reconcile", []int{0, 50, 60}, 100 * time.Millisecond, 2},
		"Stream":         {"a hundred within a second are a few writes", steps(0, 10, 100), 0, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &writes{takes: tc.takes}
				r := &Requests{Client: server, Manager: "m", Now: time.Now}
				var all sync.WaitGroup
				for _, at := range tc.at {
					all.Go(func() {
						time.Sleep(time.Duration(at) * time.Millisecond)
						made := time.Now()
						if err := r.Make(t.Context(), object("a")); err != nil {
							t.Error(err)
						}
						server.mu.Lock()
						defer server.mu.Unlock()
						last, err := time.Parse("a "+time.RFC3339Nano, server.all[len(server.all)-1])
						if err != nil || last.Before(made) {
							t.Errorf("%s: a request of %s is answered by %s, %v", tc.reason, made, last, err)
						}
					})
				}
				all.Wait()
				if len(server.all) != tc.want {
					t.Errorf("%s: %d writes, want %d: %v", tc.reason, len(server.all), tc.want, server.all)
				}
			})
		})
	}
}

func steps(from, by, n int) []int {
	var all []int
	for i := range n {
		all = append(all, from+i*by)
	}
	return all
}

// TestFailure: an error is that of all who share the write, and the next request tries again.
func TestFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &writes{err: errors.New("refused")}
		r := &Requests{Client: server, Now: time.Now}
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if err := r.Make(t.Context(), object("a")); !errors.Is(err, server.err) {
					t.Errorf("the error is %v", err)
				}
			})
		}
		all.Wait()
		server.err = nil
		if err := r.Make(t.Context(), object("a")); err != nil || len(server.all) != 1 {
			t.Errorf("after it: %v, %v", err, server.all)
		}
	})
}

// TestLeaves: who goes away takes nobody's request along.
func TestLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &writes{}
		r := &Requests{Client: server, Now: time.Now}
		if err := r.Make(t.Context(), object("a")); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		all.Go(func() { _ = r.Make(ctx, object("a")) })
		synctest.Wait()
		all.Go(func() {
			if err := r.Make(t.Context(), object("a")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		leave()
		all.Wait()
		if len(server.all) != 2 {
			t.Errorf("writes: %v", server.all)
		}
	})
}

// TestBounded: what is over is not kept for ever.
func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Requests{Client: &writes{}, Now: time.Now}
		for i := range 3 * mostKept {
			if err := r.Make(t.Context(), object(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if len(r.last) > mostKept {
			t.Errorf("%d objects are kept", len(r.last))
		}
	})
}
