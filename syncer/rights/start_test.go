package rights

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// server is what is watched in the tests of Start. refuses is a resource that the agent
// may not read.
func server(t *testing.T, refuses string) *metadatafake.FakeMetadataClient {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	object := func(apiVersion, kind, namespace, name string) runtime.Object {
		return &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		}
	}
	c := metadatafake.NewSimpleMetadataClient(scheme,
		object("v1", "ServiceAccount", "a", "of-a"), object("rbac.authorization.k8s.io/v1", "RoleBinding", "a", "of-a"))
	forbidden := func(a clienttesting.Action) error {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), "", nil)
	}
	if refuses != "" {
		c.PrependReactor("list", refuses, func(a clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden(a) })
	}
	// The fake has no bookmarks, by which a watch tells that it has shown all there was.
	c.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		o := a.(clienttesting.WatchActionImpl).ListOptions
		return o.SendInitialEvents != nil, nil, apierrors.NewBadRequest("no bookmarks")
	})
	return c
}

// TestStart: the watch begins with the first owner and ends with the last, and what it
// shows is acted upon.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := server(t, "")
		w, r, stop := start(t, c)
		defer stop()
		time.Sleep(time.Hour)
		if n := len(c.Actions()); n > 0 {
			t.Fatalf("%d requests while nobody acts as an account", n)
		}
		w.keep(r, "a", false)
		time.Sleep(2 * quiet)
		w.want(t, "a right may have been lost before the watch began", []string{"of-a patch configmaps a/", "of-a patch namespaces /"}, nil)
		time.Sleep(24 * time.Hour)
		w.want(t, "nothing happens", nil, nil)

		w.deny("of-a patch configmaps a/")
		bindings := c.Resource(rbacv1.SchemeGroupVersion.WithResource("rolebindings")).Namespace("a")
		if err := bindings.Delete(t.Context(), "of-a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * quiet)
		w.want(t, "a binding is gone", []string{"of-a patch configmaps a/", "of-a patch configmaps a/one"}, []string{"a lost ConfigMap a/one"})
		if err := c.Resource(accounts).Namespace("a").Delete(t.Context(), "of-a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * quiet)
		w.want(t, "the account is gone", nil, []string{"a looks"})

		r.Forget(owner("a"))
		synctest.Wait()
		if _, known := r.Missing("system:serviceaccount:a:of-a"); known {
			t.Error("accounts are known although nothing is watched")
		}
		n := len(c.Actions())
		time.Sleep(time.Hour)
		if more := len(c.Actions()) - n; more > 0 {
			t.Errorf("%d requests after the last owner", more)
		}
	})
}

// TestStartBlind: an agent that may not watch RBAC asks in turns.
func TestStartBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r, stop := start(t, server(t, "clusterroles"))
		defer stop()
		w.keep(r, "a", false)
		time.Sleep(2 * time.Minute)
		w.take()
		w.deny("of-a patch configmaps a/")
		time.Sleep(time.Minute)
		_, told := w.take()
		if told = slices.Compact(told); !slices.Equal(told, []string{"a lost ConfigMap a/one"}) {
			t.Errorf("%q is told", told)
		}
	})
}

// start runs Rights of two owners until stop is called, which waits for its end.
func start(t *testing.T, c *metadatafake.FakeMetadataClient) (w *world, r *Rights, stop func()) {
	t.Helper()
	w, r = begin(t)
	r = New(r.options)
	r.options.Reader = observed.NewReader(c)
	r.options.Now = time.Now
	w.now = time.Now()
	r.Serve(w)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Start(ctx); err != nil {
			t.Error(err)
		}
	}()
	return w, r, func() {
		cancel()
		<-done
	}
}

// TestHerd: when all rights may have changed, each account is asked about once, and no
// more than eight at a time.
func TestHerd(t *testing.T) {
	const owners = 10000
	w, r := begin(t)
	var at, most atomic.Int64
	r.options.As = func(user string) (Account, error) {
		return counted{account{w, user[strings.LastIndex(user, ":")+1:]}, &at, &most}, nil
	}
	for i := range owners {
		name := "more-" + time.Duration(i).String()
		w.facts[name] = Facts{Verb: Patch, Objects: []inventory.Entry{configMap(name, "one"), configMap(name, "two")}}
		w.keep(r, name, false)
	}
	r.changed("")
	r.changed("a")
	w.pass(t, r, quiet)
	asked, _ := w.take()
	if len(asked) != owners+3 || len(slices.Compact(asked)) != owners+3 {
		t.Errorf("%d questions for %d accounts", len(asked), owners+2)
	}
	if n := most.Load(); n > parallel {
		t.Errorf("%d questions at a time", n)
	}
}

// counted counts how many questions are asked at a time.
type counted struct {
	account
	at, most *atomic.Int64
}

func (c counted) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	now := c.at.Add(1)
	defer c.at.Add(-1)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	return c.account.Create(ctx, o, opts...)
}

// deny takes a right away.
func (w *world) deny(question string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.denied[question] = true
}
