package request

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Moment is the time after a write in which further requests for its object become
	// one.
	Moment = 250 * time.Millisecond
	// timeout bounds one write, whoever waits for it.
	timeout = 10 * time.Second
	// mostKept is from how many objects on those are dropped for which nobody waits.
	mostKept = 1024
)

// Object is what is to be reconciled.
type Object struct {
	schema.GroupVersionKind
	types.NamespacedName
}

// Writer writes annotations.
type Writer interface {
	Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error
}

// Requests makes requests. It is safe for concurrent use.
type Requests struct {
	Client Writer
	// Manager is the field manager of the annotation.
	Manager string
	Now     func() time.Time

	mu sync.Mutex // guards last; never held over a call
	// last is the write of each object that is under way, or was a moment ago.
	last map[Object]*write
}

// write is one write of an object's annotation. What it has is set before done is closed.
type write struct {
	done chan struct{}
	end  time.Time
	err  error
	// next is the write after it, which somebody waits to make; the lock guards it.
	next *write
}

// Make asks for a reconcile of an object, and returns when that is written. For an object
// that does not exist it returns the API server's error NotFound.
func (r *Requests) Make(ctx context.Context, o Object) error {
	before, own, leads := r.join(o)
	if !leads {
		select {
		case <-own.done:
			return own.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// Others wait for this write: it is made even if the one who began it goes.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*timeout)
	defer cancel()
	if before != nil {
		r.follow(ctx, o, before, own)
	}
	own.err = r.write(ctx, o)
	own.end = r.Now()
	close(own.done)
	return own.err
}

// join finds the write that a request is part of. leads: the caller has to make it, after
// another one if there is one before.
func (r *Requests) join(o Object) (before, own *write, leads bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.last[o]
	switch {
	case last == nil || last.over(r.Now()) && last.next == nil:
		own = &write{done: make(chan struct{})}
		r.keep(o, own)
		return nil, own, true
	case last.next == nil:
		last.next = &write{done: make(chan struct{})}
		return last, last.next, true
	}
	return nil, last.next, false
}

// over reports whether the moment after a write has passed.
func (w *write) over(now time.Time) bool {
	select {
	case <-w.done:
		return now.Sub(w.end) >= Moment
	default:
		return false
	}
}

// keep notes the last write of an object. The caller holds the lock.
func (r *Requests) keep(o Object, w *write) {
	if len(r.last) >= mostKept {
		now := r.Now()
		for other, last := range r.last {
			if last.next == nil && last.over(now) {
				delete(r.last, other)
			}
		}
	}
	if r.last == nil {
		r.last = map[Object]*write{}
	}
	r.last[o] = w
}

// follow waits until a write may follow the one before it. From then on requests are part
// of another one.
func (r *Requests) follow(ctx context.Context, o Object, before, own *write) {
	select {
	case <-before.done:
		timer := time.NewTimer(Moment - r.Now().Sub(before.end))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(o, own)
}

// write writes the annotation.
func (r *Requests) write(ctx context.Context, o Object) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		meta.ReconcileRequestAnnotation: r.Now().Format(time.RFC3339Nano),
	}}})
	if err != nil {
		return fmt.Errorf("cannot encode request: %w", err)
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(o.GroupVersionKind)
	object.Namespace, object.Name = o.Namespace, o.Name
	if err := r.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(r.Manager)); err != nil {
		return fmt.Errorf("cannot request a reconcile of %s %s: %w", o.Kind, o.NamespacedName, err)
	}
	return nil
}
