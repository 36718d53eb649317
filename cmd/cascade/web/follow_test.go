package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/page"
)

// counting is an API server that counts what it is asked for.
type counting struct {
	client.WithWatch

	mu           sync.Mutex
	lists, opens int
	watches      []watch.Interface
	// opened has one for each watch.
	opened chan struct{}
	// refuses watches.
	refuses error
}

func count(cl client.WithWatch) *counting {
	c := &counting{opened: make(chan struct{}, 1000)}
	c.WithWatch = interceptor.NewClient(cl, interceptor.Funcs{
		List: func(ctx context.Context, cl client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			c.mu.Lock()
			c.lists++
			c.mu.Unlock()
			return cl.List(ctx, list, options...)
		},
		Watch: func(ctx context.Context, cl client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			c.mu.Lock()
			refuses := c.refuses
			c.mu.Unlock()
			var w watch.Interface
			err := refuses
			if err == nil {
				w, err = cl.Watch(ctx, list, options...)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.opens++; err == nil {
				c.watches = append(c.watches, w)
			}
			c.opened <- struct{}{}
			return w, err
		},
	})
	return c
}

// listed is how many lists were asked for since it was asked last.
func (c *counting) listed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.lists
	c.lists = 0
	return n
}

// cut ends all watches.
func (c *counting) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.watches {
		w.Stop()
	}
	c.watches = nil
}

func (c *counting) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuses = err
}

// names of the Children that a reader lists.
func names(t *testing.T, r client.Reader, options ...client.ListOption) string {
	t.Helper()
	list := &v1alpha1.ChildList{}
	if err := r.List(t.Context(), list, options...); err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range list.Items {
		all = append(all, list.Items[i].Name+list.Items[i].Labels["is"])
	}
	return strings.Join(all, " ")
}

// eventually asks until it is so: what is asked for comes by a watch.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !so() {
		select {
		case <-ctx.Done():
			t.Fatal(what)
		case <-time.After(time.Millisecond):
		}
	}
}

// until asks again until a list is so.
func until(t *testing.T, r client.Reader, want string) {
	t.Helper()
	eventually(t, "it does not list "+want, func() bool { return names(t, r) == want })
}

func childOf(namespace, name string) *v1alpha1.Child {
	return &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// TestFollowed: a list is asked for once, and has what changes since, in the order of names. It
// ends with its watch.
func TestFollowed(t *testing.T) {
	api := count(fake.NewClientBuilder().WithScheme(schemeOf(t)).WithObjects(childOf("a-b", "x"), childOf("a", "y"), childOf("a", "x")).Build())
	f := Follow(t.Context(), api)
	defer f.Close()
	if got := names(t, f); got != "x y x" {
		t.Errorf("the first list is %q", got)
	}
	<-api.opened
	until(t, f, "x y x")
	api.listed()
	first := childOf("a", "x")
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(first), first); err != nil {
		t.Fatal(err)
	}
	first.Labels = map[string]string{"is": "-changed"}
	for _, change := range []error{
		api.Create(t.Context(), childOf("a", "w")), api.Create(t.Context(), childOf("b", "a")), api.Update(t.Context(), first), api.Delete(t.Context(), childOf("a", "y")),
	} {
		if change != nil {
			t.Fatal(change)
		}
	}
	until(t, f, "w x-changed x a")
	if n := api.listed(); n != 0 {
		t.Errorf("%d lists for what a watch told", n)
	}
	if got := names(t, f, client.InNamespace("b")); got != "a" || api.listed() != 1 {
		t.Errorf("a namespace lists %q, or did not ask for itself", got)
	}
	<-api.opened
	if got := names(t, f, client.InNamespace("a"), client.Limit(1)); got == "" || api.listed() != 1 {
		t.Errorf("a part is %q, or was not asked for", got)
	}

	api.cut()
	// What comes while nobody watches is in the next list.
	if err := api.Create(t.Context(), childOf("c", "late")); err != nil {
		t.Fatal(err)
	}
	until(t, f, "w x-changed x a late")
	if api.listed() == 0 {
		t.Error("a list whose watch ended was not asked for again")
	}
}

// TestFollowedRefusals: who may not watch has each list asked for, and who lost the right to list
// sees nothing that was there before.
func TestFollowedRefusals(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "children"}, "", errors.New("no"))
	cl := fake.NewClientBuilder().WithScheme(schemeOf(t)).WithObjects(childOf("a", "x")).Build()
	api := count(cl)
	api.refuse(forbidden)
	f := Follow(t.Context(), api)
	defer f.Close()
	names(t, f)
	<-api.opened
	eventually(t, "the refusal is not noted", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.refused) == 1 && len(f.lists) == 0
	})
	for range 3 {
		names(t, f)
	}
	if n := api.listed(); n != 4 || api.opens != 1 {
		t.Errorf("%d lists and %d watches, want 4 and 1", n, api.opens)
	}

	// A right that is lost ends the watch.
	var mu sync.Mutex
	lost := false
	api = count(interceptor.NewClient(cl, interceptor.Funcs{List: func(ctx context.Context, cl client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		mu.Lock()
		defer mu.Unlock()
		if lost {
			return forbidden
		}
		return cl.List(ctx, list, options...)
	}}))
	g := Follow(t.Context(), api)
	defer g.Close()
	names(t, g)
	<-api.opened
	mu.Lock()
	lost = true
	mu.Unlock()
	api.refuse(forbidden)
	api.cut()
	eventually(t, "what was there before is still listed", func() bool { return apierrors.IsForbidden(g.List(t.Context(), &v1alpha1.ChildList{})) })
}

// thousand is an API server with a thousand children, of which three hundred fail at one commit
// and each tells of ten clusters below.
func thousand(t testing.TB) *counting {
	t.Helper()
	var all []client.Object
	at := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	for i := range 1000 {
		c := childOf("fleet", fmt.Sprintf("child-%04d", i))
		c.Labels = map[string]string{"environment": fmt.Sprintf("environment-%02d", i%20)}
		ready := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, LastTransitionTime: at}
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: at, Revision: "main@sha1:1111111111111111111111111111111111111111"}}
		if i < 300 {
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonBuildFailed, "layer base: cannot build"
			c.Status.Layers[0].Ready, c.Status.Layers[0].Reason = false, v1alpha1.ReasonBuildFailed
		}
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, LastTransitionTime: at}, ready}
		c.Status.Report = &v1alpha1.Report{Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: at, Children: &v1alpha1.ReportCounts{Total: 10, Ready: 9}}
		for j := range 10 {
			row := v1alpha1.TierRow{Path: fmt.Sprintf("tenants/tenant-%02d", j), Ready: j > 0, Reason: v1alpha1.ReasonSucceeded, Since: at}
			if j == 0 {
				row.Reason, row.Message = v1alpha1.ReasonKustomizationFailing, "Kustomization/apps/shop: HealthCheckFailed"
				row.Cause = &v1alpha1.TierCause{Kind: "Kustomization", Namespace: "apps", Name: "shop", Reason: v1alpha1.ReasonHealthCheckFailed}
			}
			c.Status.Report.Tiers = append(c.Status.Report.Tiers, row)
		}
		all = append(all, c)
	}
	for i := range 100 {
		all = append(all, &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: fmt.Sprint("k-", i)}})
	}
	return count(fake.NewClientBuilder().WithScheme(schemeOf(t)).
		WithIndex(&corev1.Event{}, "involvedObject.kind", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Kind} }).
		WithIndex(&corev1.Event{}, "involvedObject.name", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Name} }).
		WithObjects(all...).Build())
}

// pagesOf serves the pages of an API server as cascade web does.
func pagesOf(t testing.TB, api client.WithWatch) *Server {
	t.Helper()
	f := Follow(t.Context(), api)
	t.Cleanup(f.Close)
	s, err := New(Options{
		Source: func(*http.Request) (*Source, error) {
			return &Source{Reader: f, Direct: api, Namespace: v1alpha1.AgentNamespace}, nil
		},
		Look: time.Second, Now: time.Now, Log: logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// urls of all pages, each about something that there is.
func urls() map[page.Name]string {
	all := map[page.Name]string{}
	for _, n := range page.Names() {
		all[n] = "/" + strings.TrimPrefix(n.Path(), "./") + "?path=fleet/child-0001"
	}
	all[page.Why] = "/why"
	return all
}

// TestThousandChildren: at a thousand children pages come to ask for no list at all, and none is
// larger than 200 KB.
func TestThousandChildren(t *testing.T) {
	api := thousand(t)
	s := pagesOf(t, api)
	sizes := map[page.Name]int{}
	eventually(t, "pages go on to ask for lists", func() bool {
		api.listed()
		for n, url := range urls() {
			w := ask(t, s, http.MethodGet, url)
			if sizes[n] = w.Body.Len(); w.Code != http.StatusOK || sizes[n] > 200_000 {
				t.Fatalf("%s: %d, %d bytes", n, w.Code, sizes[n])
			}
		}
		// Events of one child, by its name, are no list that is followed.
		return api.listed() <= 1
	})
	t.Logf("bytes are %v", sizes)
	w := ask(t, s, http.MethodGet, "/why")
	for _, want := range []string{"Layer/fleet/base", "Kustomization/apps/shop"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the page of causes does not name %s", want)
		}
	}
}

// BenchmarkPages is what each page costs at a thousand children when its lists are followed.
func BenchmarkPages(b *testing.B) {
	s := pagesOf(b, thousand(b))
	for name, url := range urls() {
		b.Run(string(name), func(b *testing.B) {
			size := 0
			for b.Loop() {
				w := httptest.NewRecorder()
				s.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodGet, url, nil))
				size = w.Body.Len()
			}
			b.ReportMetric(float64(size), "bytes/page")
		})
	}
}
