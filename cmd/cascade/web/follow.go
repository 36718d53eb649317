package web

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// mostFollowed is how many lists are followed at a time: those of all kinds, of a few namespaces.
const mostFollowed = 100

// Followed is a reader that lists a kind once and then follows it: a page of a thousand
// children is made of what is here, not of a thousand that are read anew.
//
// A list is here for as long as its watch is open. Whatever ends the watch, as an API server
// that restarts or a right that is lost, ends the list, and the next page asks the API server.
// Who may list and not watch has each page listed. It is safe for concurrent use; what it
// lists is shared, and only to be read.
type Followed struct {
	client.WithWatch
	ctx     context.Context
	cancel  context.CancelFunc
	watches sync.WaitGroup

	mu    sync.Mutex
	lists map[listed]*followed
	// refused may be listed, and not be watched.
	refused map[listed]bool
}

// listed is what a list is of; an empty namespace stands for all.
type listed struct {
	gvk       schema.GroupVersionKind
	namespace string
}

// followed is a list with what changed since, in the order of names.
type followed struct {
	objects []client.Object
	// open: the watch is, and pages may be made of the list.
	open bool
}

// inOrder compares objects by namespace and name.
func inOrder(a, b client.Object) int {
	return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
}

// Follow returns a reader, whose watches end with the context and with Close.
func Follow(ctx context.Context, cl client.WithWatch) *Followed {
	f := &Followed{WithWatch: cl, lists: map[listed]*followed{}, refused: map[listed]bool{}}
	f.ctx, f.cancel = context.WithCancel(ctx)
	return f
}

// Close ends all watches.
func (f *Followed) Close() {
	f.cancel()
	f.watches.Wait()
}

// List implements client.Reader. A list of a part by anything but its namespace is read anew.
func (f *Followed) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(options)
	if o.LabelSelector != nil || o.FieldSelector != nil || o.Limit > 0 || o.Continue != "" || o.Raw != nil {
		return f.WithWatch.List(ctx, list, options...)
	}
	gvk, err := apiutil.GVKForObject(list, f.Scheme())
	if err != nil {
		return f.WithWatch.List(ctx, list, options...)
	}
	of := listed{gvk, o.Namespace}
	if found, err := f.known(of, list); found || err != nil {
		return err
	}
	if err := f.WithWatch.List(ctx, list, options...); err != nil {
		return err
	}
	return f.follow(of, list)
}

// known fills a list with what is followed, and reports whether that is so.
func (f *Followed) known(of listed, list client.ObjectList) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.lists[of]
	if kept == nil || !kept.open {
		return false, nil
	}
	items := make([]runtime.Object, len(kept.objects))
	for i, o := range kept.objects {
		items[i] = o
	}
	if err := meta.SetList(list, items); err != nil {
		return false, fmt.Errorf("cannot fill %T: %w", list, err)
	}
	return true, nil
}

// follow begins to follow what was just listed, unless somebody else did or it may not be.
func (f *Followed) follow(of listed, list client.ObjectList) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil || f.refused[of] || f.lists[of] != nil || len(f.lists) >= mostFollowed {
		return nil
	}
	empty, err := f.Scheme().New(of.gvk)
	if err != nil {
		return fmt.Errorf("cannot follow %s: %w", of.gvk.Kind, err)
	}
	kind, ok := empty.(client.ObjectList)
	if !ok {
		return fmt.Errorf("cannot follow %s: it is no list", of.gvk.Kind)
	}
	// The list itself is the caller's, and what is kept changes.
	kept := &followed{objects: objects(list.DeepCopyObject().(client.ObjectList))}
	slices.SortFunc(kept.objects, inOrder)
	f.lists[of] = kept
	version := list.GetResourceVersion()
	f.watches.Go(func() {
		defer f.forget(of)
		w, err := f.Watch(f.ctx, kind, client.InNamespace(of.namespace), &client.ListOptions{
			Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true},
		})
		if err != nil {
			f.refuse(of, err)
			return
		}
		defer w.Stop()
		f.begin(kept)
		for {
			select {
			case <-f.ctx.Done():
				return
			case event, open := <-w.ResultChan():
				if !open || !f.take(kept, event) {
					return
				}
			}
		}
	})
	return nil
}

// begin lets pages be made of a list.
func (f *Followed) begin(kept *followed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept.open = true
}

// forget ends a list.
func (f *Followed) forget(of listed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.lists, of)
}

// refuse has a list that its reader may not watch be read anew each time. Another error may be
// over by the next page.
func (f *Followed) refuse(of listed, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
		f.refused[of] = true
	}
}

// take changes a list by one event, and reports whether the watch goes on.
func (f *Followed) take(kept *followed, event watch.Event) bool {
	o, ok := event.Object.(client.Object)
	switch {
	case event.Type == watch.Bookmark:
		return true
	case event.Type == watch.Error || !ok:
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at, found := slices.BinarySearchFunc(kept.objects, o, inOrder)
	switch {
	case event.Type == watch.Deleted && found:
		kept.objects = slices.Delete(kept.objects, at, at+1)
	case event.Type == watch.Deleted:
	case found:
		kept.objects[at] = o
	default:
		kept.objects = slices.Insert(kept.objects, at, o)
	}
	return true
}
