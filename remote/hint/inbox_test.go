package hint

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/request"
)

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, sourcev1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func entryOf(t *testing.T, h ...Hint) *corev1.ConfigMap {
	t.Helper()
	text, err := Encode(h)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.HintsConfigMap}, Data: map[string]string{v1alpha1.HintsOfParentKey: text},
	}
}

// TestRead: what is there when a process begins is old; from then on each hint is read once.
func TestRead(t *testing.T) {
	i := &Inbox{Namespace: v1alpha1.AgentNamespace}
	all := hints(3)
	other := entryOf(t, all...)
	other.Name = "another"
	for _, step := range []struct {
		reason string
		o      any
		first  bool
		want   int
	}{
		{"what the process finds", entryOf(t, all[0]), true, 0},
		{"the watch begins anew", entryOf(t, all[0]), false, 0},
		{"another ConfigMap", other, false, 0},
		{"something else", "x", false, 0},
		{"two pushes", entryOf(t, all...), false, 2},
		{"the same once more", entryOf(t, all...), false, 0},
		{"a parent that starts anew", entryOf(t, all[1]), false, 0},
	} {
		if got := i.read(step.o, step.first); len(got.parent) != step.want || len(got.tier) != 0 {
			t.Errorf("%s: %v, want %d", step.reason, got, step.want)
		}
	}
	cm := entryOf(t)
	cm.Data = map[string]string{v1alpha1.HintsOfTierKey: entryOf(t, Hint{ID: "own", Repository: all[0].Repository}).Data[v1alpha1.HintsOfParentKey]}
	if got := i.read(cm, false); len(got.parent) != 0 || len(got.tier) != 1 {
		t.Errorf("what a Receiver of the tier was told is %v: its own sources were requested by the Receiver", got)
	}
}

// TestPublish: two replicas lose nothing of each other, and what is no repository is left out.
func TestPublish(t *testing.T) {
	conflicts := 2
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(entryOf(t)).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if conflicts--; conflicts >= 0 {
				return apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, o.GetName(), fmt.Errorf("changed"))
			}
			return c.Patch(ctx, o, p, opts...)
		},
	}).Build()
	n, below := 0, true
	i := &Inbox{
		Namespace: v1alpha1.AgentNamespace, Client: c, Reader: c, Log: logr.Discard(), Passed: func() bool { return below },
		ID: func() string { n++; return fmt.Sprint("id-", n) },
	}
	i.Publish(t.Context(), []Told{{URL: "https://git.example/a", Revision: strings.Repeat("a", 40)}, {URL: "nothing"}, {URL: "https://git.example/a.git"}})
	i.Publish(t.Context(), []Told{{URL: "https://git.example/b", Revision: "refs/heads/main"}})
	below = false
	i.Publish(t.Context(), []Told{{URL: "https://git.example/c"}})
	cm := &corev1.ConfigMap{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(entryOf(t)), cm); err != nil {
		t.Fatal(err)
	}
	got := Parse(cm.Data[v1alpha1.HintsOfTierKey])
	want := []Hint{{ID: "id-2", Repository: Repository("https://git.example/a")}, {ID: "id-3", Repository: Repository("https://git.example/b")}}
	if !slices.Equal(got, want) {
		t.Errorf("written is %v, want %v", got, want)
	}
}

// TestMake: the agent makes the ConfigMap, and leaves one that is there.
func TestMake(t *testing.T) {
	for name, there := range map[string][]client.Object{"New": nil, "There": {entryOf(t, hints(1)...)}} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(there...).Build()
			i := &Inbox{Namespace: v1alpha1.AgentNamespace, Client: c, Reader: c}
			if err := i.make(t.Context()); err != nil {
				t.Fatal(err)
			}
			cm := &corev1.ConfigMap{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(i.object()), cm); err != nil || len(cm.Data) != len(there) {
				t.Errorf("there is %v, %v", cm.Data, err)
			}
		})
	}
}

// TestWake: the sources of a repository are requested, and no others.
func TestWake(t *testing.T) {
	commit := strings.Repeat("a", 40)
	git := func(name, url string, change ...func(*sourcev1.GitRepository)) *sourcev1.GitRepository {
		o := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}}
		o.Spec.URL = url
		for _, f := range change {
			f(o)
		}
		return o
	}
	helm := &sourcev1.HelmRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "charts"}}
	helm.Spec.URL = "https://git.example/app/"
	oci := &sourcev1.OCIRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "image"}}
	oci.Spec.URL = "oci://git.example/app"
	objects := []client.Object{
		git("same", "https://git.example/app.git"),
		git("ssh", "ssh://git@git.example/app"),
		git("other", "https://git.example/other"),
		git("suspended", "https://git.example/app", func(o *sourcev1.GitRepository) { o.Spec.Suspend = true }),
		git("has", "https://git.example/app", func(o *sourcev1.GitRepository) {
			o.Status.Artifact = &meta.Artifact{Revision: "main@sha1:" + commit}
		}),
		git("elsewhere", "https://git.example/app", func(o *sourcev1.GitRepository) { o.Labels = map[string]string{"shard": "b"} }),
		helm, oci,
	}
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(objects...).Build()
	var mu sync.Mutex
	var woken []string
	m := &Matcher{
		Client: c, Kinds: []string{sourcev1.GitRepositoryKind, sourcev1.HelmRepositoryKind}, Log: logr.Discard(),
		Selects: func(o client.Object) bool { return o.GetLabels()["shard"] == "" },
		Requests: &request.Requests{Now: time.Now, Manager: Manager, Client: writer(func(o client.Object) {
			mu.Lock()
			defer mu.Unlock()
			woken = append(woken, o.GetObjectKind().GroupVersionKind().Kind+"/"+o.GetName())
		})},
	}
	m.Wake(t.Context(), []Hint{{ID: "1", Repository: Repository("https://git.example/app"), Revision: commit}})
	slices.Sort(woken)
	if want := []string{"GitRepository/same", "GitRepository/ssh", "HelmRepository/charts"}; !slices.Equal(woken, want) {
		t.Errorf("woken are %v, want %v: images are not of this process", woken, want)
	}
	// A push to another branch: the one that has this commit may be of that branch.
	woken = nil
	m.Wake(t.Context(), []Hint{
		{ID: "2", Repository: Repository("https://git.example/app"), Revision: strings.Repeat("b", 40)},
		{ID: "3", Repository: Repository("https://git.example/app"), Revision: commit},
	})
	if !slices.Contains(woken, "GitRepository/has") {
		t.Errorf("of two pushes woken are %v, and not what has the commit of one", woken)
	}
}

// TestWakeSetBack: a branch is set back by force while the commit before that is fetched: what has the old commit still is
// about to have the other one.
func TestWakeSetBack(t *testing.T) {
	commit := strings.Repeat("a", 40)
	for name, tt := range map[string]struct {
		reason, requested, handled string
		want                       int
	}{
		"UnderWay": {"what was requested before is not fetched yet", "x", "y", 1},
		"First":    {"nor is the first that was ever requested", "x", "", 1},
		"Handled":  {"what has the commit, and is about to have nothing else", "x", "x", 0},
		"Never":    {"nobody requested anything", "", "", 0},
		"Removed":  {"somebody removed the annotation", "", "x", 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "app"}}
			if tt.requested != "" {
				o.Annotations = map[string]string{meta.ReconcileRequestAnnotation: tt.requested}
			}
			o.Spec.URL = "https://git.example/app"
			o.Status.LastHandledReconcileAt = tt.handled
			o.Status.Artifact = &meta.Artifact{Revision: "main@sha1:" + commit}
			woken := 0
			m := &Matcher{
				Client: fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(o).Build(), Kinds: []string{sourcev1.GitRepositoryKind}, Log: logr.Discard(),
				Selects:  func(client.Object) bool { return true },
				Requests: &request.Requests{Now: time.Now, Manager: Manager, Client: writer(func(client.Object) { woken++ })},
			}
			m.Wake(t.Context(), []Hint{{ID: "1", Repository: Repository(o.Spec.URL), Revision: commit}})
			if woken != tt.want {
				t.Errorf("%s: %d requests, want %d", tt.reason, woken, tt.want)
			}
		})
	}
}

type writer func(client.Object)

func (w writer) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	w(o)
	return nil
}
