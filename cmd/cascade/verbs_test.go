package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// screen is what a verb prints while it goes on.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1000)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.text.Write(p)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return n, err
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// shows waits until a text is there.
func (s *screen) shows(t *testing.T, text string) {
	t.Helper()
	late := time.After(30 * time.Second)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-late:
			t.Fatalf("there is no %q in:\n%s", text, s)
		}
	}
}

// watching runs a verb that goes on, until the test calls what is returned.
func watching(t *testing.T, run func(context.Context, *cli) error) (*screen, func()) {
	t.Helper()
	s := newScreen()
	c := &cli{streams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: s, ErrOut: s}, flags: genericclioptions.NewConfigFlags(true), now: func() time.Time { return noon }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, c) }()
	return s, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("a person ended it, which is no error: %v", err)
		}
	}
}

// announced tells of each watch that has begun: the fake server has no versions from which
// one could go on.
func announced(cl client.WithWatch) (client.WithWatch, chan struct{}) {
	begun := make(chan struct{}, 10)
	return interceptor.NewClient(cl, interceptor.Funcs{
		Watch: func(ctx context.Context, cl client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			w, err := cl.Watch(ctx, list, options...)
			begun <- struct{}{}
			return w, err
		},
	}), begun
}

func indexed() *fake.ClientBuilder {
	b := fake.NewClientBuilder().WithScheme(newScheme()).
		WithIndex(&corev1.Event{}, "involvedObject.kind", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Kind} }).
		WithIndex(&corev1.Event{}, "involvedObject.name", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Name} })
	for _, g := range getters() {
		b = b.WithIndex(g.object(), "metadata.name", nameOf).WithStatusSubresource(g.object())
	}
	return b
}

func TestGetWatch(t *testing.T) {
	first := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "apps"}}
	cl, begun := announced(indexed().WithObjects(first, &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "base"}}).Build())
	chosen, err := choose("ks")
	if err != nil {
		t.Fatal(err)
	}
	s, end := watching(t, func(ctx context.Context, c *cli) error {
		o := newGetOptions()
		o.namespace, o.watch, o.status = "team", true, "ready=false"
		return c.get(ctx, cl, chosen, o)
	})
	s.shows(t, "base")
	<-begun
	set := func(status metav1.ConditionStatus, message string) {
		t.Helper()
		if err := cl.Get(t.Context(), client.ObjectKeyFromObject(first), first); err != nil {
			t.Fatal(err)
		}
		meta.SetStatusCondition(&first.Status.Conditions, metav1.Condition{Type: "Ready", Status: status, Reason: "X", Message: message})
		if err := cl.Status().Update(t.Context(), first); err != nil {
			t.Fatal(err)
		}
	}
	set(metav1.ConditionFalse, "cannot build")
	s.shows(t, "cannot build")
	// A change that nobody sees is none.
	first.Annotations = map[string]string{"seen": "no"}
	if err := cl.Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	set(metav1.ConditionTrue, "applied")
	s.shows(t, "applied")
	if err := cl.Delete(t.Context(), &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "base"}}); err != nil {
		t.Fatal(err)
	}
	s.shows(t, "deleted")
	end()
	golden(t, "get-watch.txt", s.String())
	c, _ := newCLI(t)
	all, err := choose("all")
	if err != nil {
		t.Fatal(err)
	}
	o := newGetOptions()
	if o.watch = true; c.get(t.Context(), cl, all, o) == nil {
		t.Error("several kinds are watched, whose columns differ")
	}
}

// TestGetWatchMissed: what became of objects while there was no watch is shown after the next list.
func TestGetWatchMissed(t *testing.T) {
	named := func(name string) *kustomizev1.Kustomization {
		return &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	}
	apps := named("apps")
	watches := make(chan *watch.FakeWatcher, 10)
	cl := interceptor.NewClient(indexed().WithObjects(apps, named("base")).Build(), interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			w := watch.NewFake()
			watches <- w
			return w, nil
		},
	})
	chosen, err := choose("ks")
	if err != nil {
		t.Fatal(err)
	}
	s, end := watching(t, func(ctx context.Context, c *cli) error {
		o := newGetOptions()
		o.namespace, o.watch, o.status = "team", true, "ready=false"
		return c.get(ctx, cl, chosen, o)
	})
	w := <-watches
	if err := cl.Delete(t.Context(), named("base")); err != nil {
		t.Fatal(err)
	}
	meta.SetStatusCondition(&apps.Status.Conditions, metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "X", Message: "applied"})
	if err := cl.Status().Update(t.Context(), apps); err != nil {
		t.Fatal(err)
	}
	w.Stop() // the API server, or a proxy, ends it
	w = <-watches
	shown := s.String()
	if !strings.Contains(shown, "applied") || strings.Count(shown, "base") != 2 || !strings.Contains(shown, "deleted") {
		t.Errorf("it shows\n%s", shown)
	}
	w.Stop()
	<-watches
	if again := s.String(); again != shown {
		t.Errorf("nothing happened, and it shows\n%s", again)
	}
	end()
}

func anEvent(name, kind, object, of, reason, message string, ago time.Duration) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}, Type: of, Reason: reason, Message: message,
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "fleet", Name: object}, LastTimestamp: metav1.NewTime(noon.Add(-ago)),
	}
}

func TestEvents(t *testing.T) {
	l := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "tenants"}, Spec: v1alpha1.LayerSpec{SourceRef: &v1alpha1.SourceReference{Kind: "GitRepository", Name: "repo"}}}
	c := child("fleet", "shop", nil, nil)
	c.Spec.ClusterRef = &v1alpha1.LocalReference{Name: "shop"}
	series := anEvent("e5", "Child", "shop", "Warning", "Unreachable", "no answer", time.Hour)
	series.Series = &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(noon.Add(-time.Second))}
	part := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "part"}, Spec: sourcev1.ExternalArtifactSpec{SourceRef: &fluxmeta.NamespacedObjectKindReference{Kind: "ArtifactGenerator", Name: "parts"}}}
	cl := indexed().WithObjects(l, c, part, series,
		anEvent("e0", "ArtifactGenerator", "parts", "Normal", "Succeeded", "made", 5*time.Minute),
		anEvent("e1", "Layer", "tenants", "Normal", "Ready", "in place\non all", time.Minute),
		anEvent("e2", "GitRepository", "repo", "Normal", "NewArtifact", "stored", 2*time.Minute),
		anEvent("e3", "Child", "bank", "Warning", "PruneBlocked", "too many", 3*time.Minute),
		anEvent("e4", "Cluster", "shop", "Warning", "ChildRefused", "quota", 4*time.Minute),
	).Build()
	for name, tc := range map[string]struct {
		reason, of, output string
		types              []string
		everywhere         bool
	}{
		"all":   {reason: "the latest last"},
		"where": {reason: "then the namespace is a column", everywhere: true},
		"layer": {reason: "with those of its source", of: "layer/tenants"},
		"child": {reason: "with those of its Cluster", of: "Child/shop"},
		"types": {reason: "what is wrong", types: []string{"warning"}},
		"other": {reason: "of a kind that we do not know", of: "Cluster/shop"},
		"gone":  {reason: "what is gone had some", of: "child/bank"},
		"part":  {reason: "nobody reconciles it, but something makes it", of: "ea/part"},
		"names": {reason: "by cli-runtime's printers", of: "layer/tenants", output: "name"},
	} {
		t.Run(name, func(t *testing.T) {
			verb, out := newCLI(t)
			verb.now = func() time.Time { return noon }
			o := newEventOptions()
			if o.namespace, o.of, o.types = "fleet", tc.of, tc.types; tc.everywhere {
				o.namespace = ""
			}
			*o.print.OutputFormat = tc.output
			if err := verb.events(t.Context(), cl, o); err != nil {
				t.Fatalf("%s\nevents: %v", tc.reason, err)
			}
			golden(t, "events-"+name+".txt", out.String())
		})
	}
	heard, begun := announced(cl)
	s, end := watching(t, func(ctx context.Context, c *cli) error {
		o := newEventOptions()
		o.namespace, o.of, o.watch = "fleet", "layer/tenants", true
		return c.events(ctx, heard, o)
	})
	s.shows(t, "in place")
	<-begun
	for _, e := range []*corev1.Event{anEvent("e6", "Child", "bank", "Warning", "Other", "of another", 0), anEvent("e7", "Layer", "tenants", "Warning", "ChildrenNotReady", "new", 0)} {
		if err := cl.Create(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	s.shows(t, "ChildrenNotReady")
	end()
	golden(t, "events-watch.txt", s.String())
}

func TestSuspend(t *testing.T) {
	objects := []client.Object{
		&kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "apps", Labels: map[string]string{"kustomize.toolkit.fluxcd.io/name": "root", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}}},
		&helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "mesh"}},
		&v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "base"}},
		&v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "shop"}},
		&v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "bank"}},
		&sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "repo"}},
	}
	for _, word := range suspendable() {
		if g, ok := kindOf(word); !ok || *g.suspend(g.object()) {
			t.Errorf("%s has no spec.suspend, or an empty one is suspended", word)
		}
	}
	cl := indexed().WithObjects(objects...).Build()
	c, out := newCLI(t)
	for _, tc := range []struct {
		kind  string
		names []string
	}{{"ks", []string{"apps"}}, {"hr", []string{"mesh"}}, {"layer", nil}, {"children", []string{"shop", "bank"}}, {"git", []string{"repo"}}} {
		g, _ := kindOf(tc.kind)
		for _, suspend := range []bool{true, true, false} {
			found, err := c.toSuspend(t.Context(), cl, g, tc.names)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range found {
				if err := c.setSuspend(t.Context(), cl, g, o, suspend); err != nil {
					t.Fatal(err)
				}
				is := g.object()
				if err := cl.Get(t.Context(), client.ObjectKeyFromObject(o), is); err != nil {
					t.Fatal(err)
				}
				if *g.suspend(is) != suspend {
					t.Errorf("spec.suspend of %s %s is %t, want %t", tc.kind, o.GetName(), !suspend, suspend)
				}
			}
		}
	}
	golden(t, "suspend.txt", out.String())
	g, _ := kindOf("layer")
	if _, err := c.toSuspend(t.Context(), cl, g, []string{"base", "typo"}); err == nil || !strings.Contains(err.Error(), "typo") {
		t.Errorf("a name that does not exist: %v, want no object touched", err)
	}
}

// TestResumeWaits: all go on before any is waited for, and one that waits for another has not
// failed.
func TestResumeWaits(t *testing.T) {
	of := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "team", Name: name} }
	apps, base, broken, other := &kustomizev1.Kustomization{ObjectMeta: of("apps")}, &kustomizev1.Kustomization{ObjectMeta: of("base")}, &kustomizev1.Kustomization{ObjectMeta: of("broken")}, &kustomizev1.Kustomization{ObjectMeta: of("other")}
	registry := &sourcev1.HelmRepository{ObjectMeta: of("registry"), Spec: sourcev1.HelmRepositorySpec{Type: sourcev1.HelmRepositoryTypeOCI, Suspend: true}}
	for _, k := range []*kustomizev1.Kustomization{apps, base, broken, other} {
		k.Spec.Suspend = true
	}
	var patched []string
	looks := 0 // at apps, which goes on after base, and that takes a moment
	cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(apps, base, broken, other, registry).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			patched = append(patched, o.GetName())
			return c.Patch(ctx, o, patch, options...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			err := c.Get(ctx, key, o, options...)
			k, ok := o.(*kustomizev1.Kustomization)
			if !ok {
				return err
			}
			k.Status.LastHandledReconcileAt = k.Annotations[fluxmeta.ReconcileRequestAnnotation]
			k.Status.Conditions = conditions("Ready", metav1.ConditionTrue, "ReconciliationSucceeded", "", 0)
			switch {
			case key.Name == "apps" && looks < 3:
				looks++
				k.Status.Conditions = conditions("Ready", metav1.ConditionFalse, fluxmeta.DependencyNotReadyReason, "dependency base is not ready", 0)
			case key.Name == "broken":
				k.Status.Conditions = conditions("Ready", metav1.ConditionFalse, "BuildFailed", "cannot build", 0)
			}
			return err
		},
	}).Build()
	for _, tc := range []struct {
		reason, kind string
		objects      []client.Object
		err          string
		patched      []string
	}{
		{"in the order of their names, not in that of dependencies", "ks", []client.Object{apps, base}, "", []string{"apps", "base", "apps", "base"}},
		{"one that fails keeps no other one waiting", "ks", []client.Object{broken, other}, "BuildFailed", []string{"broken", "other", "broken", "other"}},
		{"nobody would answer", "helmrepo", []client.Object{registry}, "", []string{"registry"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			patched, looks = nil, 0
			c, _ := newCLI(t)
			g, _ := kindOf(tc.kind)
			for _, o := range tc.objects {
				*g.suspend(o) = true
				if err := cl.Update(ctx, o); err != nil {
					t.Fatal(err)
				}
			}
			err := c.setAll(ctx, cl, g, tc.objects, false, true)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("resume: %v, want %q", err, tc.err)
			}
			if !slices.Equal(patched, tc.patched) {
				t.Errorf("it changes %v, want %v", patched, tc.patched)
			}
		})
	}
}

func TestTreeView(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, path, filter, status string
		depth                        int
		invalid                      bool
	}{
		"depth":     {reason: "what is deeper is counted", depth: 1},
		"not-ready": {reason: "with the tiers above, and without counts of clusters that nobody knows", status: "ready=false"},
		"path":      {reason: "from a tier down", path: "masters/aws>tenants/shop"},
		"region":    {reason: "by what rows have", filter: "region!=eu-west-1,provider=aws"},
		"nowhere":   {reason: "a typo is an error", path: "masters/gcp", invalid: true},
		"field":     {reason: "a field that rows do not have passes nothing", filter: "zone=a", invalid: true},
		"condition": {reason: "of what is below only ready is known", status: "stalled=true", invalid: true},
		"negative":  {reason: "no such depth", depth: -1, invalid: true},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			for _, c := range silentFleet() {
				objects = append(objects, c)
			}
			if tc.path != "" {
				objects = fleet(t)
			}
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			view, err := newTreeView(tc.path, tc.filter, tc.status, tc.depth)
			if err == nil {
				err = c.tree(t.Context(), indexed().WithObjects(append(objects, beat(v1alpha1.AgentNamespace, 0))...).Build(), out, view, treeOptions{})
			}
			if (err != nil) != tc.invalid {
				t.Fatalf("%s\ntree: %v", tc.reason, err)
			}
			if err == nil {
				golden(t, "tree-view-"+name+".txt", out.String())
			}
		})
	}
}

// TestTreeFolds: of many clusters that are not ready for one cause a few have a row, and the
// object that is the cause is told once. Whoever asks for a part sees all of it.
func TestTreeFolds(t *testing.T) {
	var objects []client.Object
	for i := range 30 {
		c := child("fleet", fmt.Sprintf("c%02d", i), conditions("Ready", metav1.ConditionFalse, "BuildFailed", "layer base: cannot build", time.Hour), nil)
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Reason: "BuildFailed"}}
		switch {
		case i%3 == 1:
			c.Status.Conditions = conditions("Ready", metav1.ConditionTrue, "Succeeded", "", time.Hour)
		case i > 22:
			c.Status.Conditions = conditions("Ready", metav1.ConditionFalse, "Unreachable", "no answer", time.Hour)
		}
		objects = append(objects, c)
	}
	cl := indexed().WithObjects(append(objects, beat(v1alpha1.AgentNamespace, 0))...).Build()
	for name, o := range map[string]treeOptions{"folded": {}, "folded-wide": {output: "wide"}, "unfolded": {filter: "cause=Layer/fleet/base: BuildFailed"}, "by-cause": {by: "cause"}} {
		t.Run(name, func(t *testing.T) {
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			view, err := newTreeView("", o.filter, "", 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.tree(t.Context(), cl, out, view, o); err != nil {
				t.Fatal(err)
			}
			golden(t, "tree-"+name+".txt", out.String())
		})
	}
}

func TestTreeWatch(t *testing.T) {
	cl, begun := announced(indexed().WithObjects(append(fleet(t), beat(v1alpha1.AgentNamespace, 0))...).Build())
	s, end := watching(t, func(ctx context.Context, c *cli) error {
		return c.watchTree(ctx, cl, func(ctx context.Context, out io.Writer) error {
			view, err := newTreeView("", "", "", 1)
			if err != nil {
				return err
			}
			return c.tree(ctx, cl, out, view, treeOptions{})
		})
	})
	s.shows(t, "masters/new")
	for range 3 {
		<-begun
	}
	if err := cl.Create(t.Context(), child("masters", "gcp", nil, nil)); err != nil {
		t.Fatal(err)
	}
	s.shows(t, "masters/gcp")
	end()
	golden(t, "tree-watch.txt", s.String())
}

func TestChildren(t *testing.T) {
	first, last := metav1.NewTime(noon.Add(48*time.Hour)), metav1.NewTime(noon.Add(90*24*time.Hour))
	lapsed := metav1.NewTime(noon.Add(-time.Hour))
	var objects []client.Object
	for i, c := range silentFleet() {
		c.Labels = map[string]string{v1alpha1.OwnerLabel: "platform", "environment": "production"}
		c.Status.Region, c.Status.Endpoint = "eu-central-1", fmt.Sprintf("api-%d.example.com", i)
		c.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: fmt.Sprintf("uid-%d", i)}
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Revision: shaOne, Ready: true, Reason: "Succeeded"}, {Name: "agents", Revision: shaTwo, Reason: "SeedFailed"}}
		c.Status.Credentials = []v1alpha1.ChildCredential{{Name: "git", ExpiresAt: &last}, {Name: "cloud", ExpiresAt: &first}, {Name: "token"}}
		objects = append(objects, c)
	}
	objects[2].(*v1alpha1.Child).Status.Credentials[0].ExpiresAt = &lapsed
	for name, revision := range map[string]string{"base": shaTwo, "agents": shaTwo} {
		l := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "masters", Name: name}}
		l.Status.Revision = revision
		objects = append(objects, l)
	}
	cl := indexed().WithObjects(append(objects, beat(v1alpha1.AgentNamespace, 0))...).Build()
	for name, o := range map[string]childrenOptions{
		"table.txt":     {namespace: "masters"},
		"wide.txt":      {output: "wide", recursive: true},
		"export.json":   {output: "json", recursive: true},
		"export.yaml":   {output: "yaml", selector: "environment=staging"},
		"no-header.txt": {noHeader: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			if err := c.children(t.Context(), cl, o); err != nil {
				t.Fatal(err)
			}
			golden(t, "children-"+name, out.String())
		})
	}
	c, _ := newCLI(t)
	if c.children(t.Context(), cl, childrenOptions{output: "csv"}) == nil {
		t.Error("an unknown format is printed")
	}
}

// TestChildLabels: who adds a Child again, to repair it, says its labels or does not, and no
// layer loses the cluster by that.
func TestChildLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		changes []string
		want    map[string]string
		err     string
	}{
		"None":    {"nothing is said of labels", nil, map[string]string{"tier": "tenant", "region": "north", "owner": "ann"}, ""},
		"Changed": {"one is said, the other stays", []string{"region=south"}, map[string]string{"tier": "tenant", "region": "south", "owner": "ann"}, ""},
		"More":    {"another one comes", []string{"site=a"}, map[string]string{"tier": "tenant", "region": "north", "owner": "ann", "site": "a"}, ""},
		"Off":     {"that is said by its name alone", []string{"region-"}, map[string]string{"tier": "tenant", "owner": "ann"}, ""},
		"Foreign": {"a label of somebody else is not for this verb to take off", []string{"owner-"}, map[string]string{"tier": "tenant", "region": "north", "owner": "ann"}, ""},
		"Bad":     {"a name without a value", []string{"region"}, nil, "name=value"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fake.NewClientBuilder().WithScheme(newScheme()).WithReturnManagedFields().Build()
			there := fake.NewClientBuilder().WithScheme(newScheme()).
				WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "uid-edge"}}).Build()
			c, _ := newCLI(t)
			add := func(changes []string) error {
				a := &childAdd{cli: c, namespace: "fleet", name: "edge", labels: changes}
				found, err := a.admit(t.Context(), hub, there)
				if err != nil {
					return err
				}
				labels, err := a.labelsOf(found)
				if err != nil {
					return err
				}
				secret, edge := childObjects("fleet", "edge", labels, []byte("kubeconfig"))
				for _, o := range []client.Object{secret, edge} {
					if err := serverSideApply(t.Context(), hub, o); err != nil {
						return err
					}
				}
				return nil
			}
			if err := add([]string{"tier=tenant", "region=north"}); err != nil {
				t.Fatal(err)
			}
			edge := child("fleet", "edge", nil, nil)
			if err := hub.Patch(t.Context(), edge, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"owner":"ann"}}}`)), client.FieldOwner("kubectl")); err != nil {
				t.Fatal(err)
			}
			err := add(tc.changes)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s: %v does not name %s", tc.reason, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if err := hub.Get(t.Context(), client.ObjectKeyFromObject(edge), edge); err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(edge.Labels, tc.want) {
				t.Errorf("%s: the labels are %v, want %v", tc.reason, edge.Labels, tc.want)
			}
		})
	}
}

// TestChildExport: what is printed for a repository takes the place of the Child there, and has what
// the Child has, whoever wrote that.
func TestChildExport(t *testing.T) {
	found := child("fleet", "edge", nil, nil)
	found.Labels = map[string]string{
		"cascade.dev/tier": "tenant", "region": "north", "app.kubernetes.io/managed-by": "Helm",
		"kustomize.toolkit.fluxcd.io/name": "fleet", "kustomize.toolkit.fluxcd.io/namespace": "cascade-system", "install.cascade.dev/name": "cascade",
	}
	declared := map[string]string{
		"vars.cascade.dev/size": "small", "kustomize.toolkit.fluxcd.io/prune": "disabled", "example.com/owner": "shop",
	}
	found.Annotations = map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": "{}", "reconcile.fluxcd.io/requestedAt": "now", "meta.helm.sh/release-name": "fleet",
		v1alpha1.ApprovePruneAnnotation: "sha256:0", v1alpha1.ApprovedByAnnotation: "somebody",
	}
	maps.Copy(found.Annotations, declared)
	found.Spec.Suspend = true
	for name, tc := range map[string]struct {
		reason  string
		found   *v1alpha1.Child
		changes []string
		want    map[string]string
	}{
		"New":     {"nothing is there", nil, []string{"cascade.dev/tier=tenant"}, map[string]string{"cascade.dev/tier": "tenant"}},
		"None":    {"Layers select it by what a repository gave it", found, nil, map[string]string{"cascade.dev/tier": "tenant", "region": "north"}},
		"Changed": {"one is said, another one goes", found, []string{"cascade.dev/tier=master", "region-"}, map[string]string{"cascade.dev/tier": "master"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, out := newCLI(t)
			a := &childAdd{cli: c, namespace: "fleet", name: "edge", labels: tc.changes, export: true}
			labels, err := a.labelsOf(tc.found)
			if err != nil {
				t.Fatal(err)
			}
			secret, edge := childObjects("fleet", "edge", labels, []byte("kubeconfig"))
			edge = asDeclared(edge, tc.found)
			if !maps.Equal(edge.Labels, tc.want) {
				t.Errorf("%s: the labels are %v, want %v", tc.reason, edge.Labels, tc.want)
			}
			if tc.found != nil && (!edge.Spec.Suspend || !maps.Equal(edge.Annotations, declared)) {
				t.Errorf("%s: it is suspended: %t, and has annotations %v", tc.reason, edge.Spec.Suspend, edge.Annotations)
			}
			if err := a.print(secret, edge); err != nil || strings.Contains(out.String(), "status:") {
				t.Errorf("%s: it prints %s: %v", tc.reason, out, err)
			}
		})
	}
}

// TestRemoveChild: the account goes from the cluster of the Child alone, and if that is not the
// one that is given, nothing goes. Nor does what another tier uses, and what Git makes again.
func TestRemoveChild(t *testing.T) {
	known := func(name, uid string) *v1alpha1.Child {
		c := child("fleet", name, nil, nil)
		if uid != "" {
			c.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: uid}
		}
		return c
	}
	declared := func(group string) *v1alpha1.Child {
		c := known("edge", "uid-edge")
		c.Labels = map[string]string{group + "/name": "apps", group + "/namespace": "team"}
		return c
	}
	superseded := known("edge", "uid-edge")
	superseded.Status.SupersededBy = &v1alpha1.Epoch{Number: 7, Holder: "process-b"}
	for name, tc := range map[string]struct {
		reason   string
		children []client.Object
		account  string // the tier that its annotation names
		err      []string
		stays    string // who the account stays for
	}{
		"Same":         {"it is that cluster", []client.Object{known("edge", "uid-edge"), known("shop", "uid-shop")}, "uid-hub", nil, ""},
		"Unmarked":     {"an earlier version made the account", []client.Object{known("edge", "uid-edge")}, "", nil, ""},
		"Another":      {"the context leads to a cluster that is no child", []client.Object{known("edge", "uid-other")}, "uid-hub", []string{"uid-edge", "uid-other", "--child-context"}, ""},
		"Child":        {"the context leads to another child", []client.Object{known("edge", ""), known("shop", "uid-edge")}, "uid-hub", []string{"fleet/shop", "uid-edge"}, ""},
		"Gone":         {"an earlier call removed the Child", []client.Object{known("shop", "uid-shop")}, "uid-hub", nil, ""},
		"GoneAndChild": {"it is gone, and the context leads to another child", []client.Object{known("shop", "uid-edge")}, "uid-hub", []string{"fleet/shop", "uid-edge"}, ""},
		"Unconnected":  {"the tier has never reached it", []client.Object{known("edge", "")}, "uid-hub", nil, ""},
		"Superseded":   {"the new parent reaches it by the account", []client.Object{superseded}, "", nil, "process-b"},
		"Added":        {"the new parent is about to take it over", []client.Object{known("edge", "uid-edge")}, "uid-other-hub", nil, "uid-other-hub"},
		"GoneAndAdded": {"an earlier call removed the Child, and the new parent uses the account", nil, "uid-other-hub", nil, "uid-other-hub"},
		"Declared":     {"Git makes it again, without an account then", []client.Object{declared("kustomize.toolkit.fluxcd.io")}, "uid-hub", []string{"Kustomization team/apps", "Git first"}, ""},
		"OfLayer":      {"so does the parent tier", []client.Object{declared(v1alpha1.LayerLabelGroup)}, "uid-hub", []string{"Layer team/apps"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			system := func(uid types.UID) client.Object {
				return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: uid}}
			}
			hub := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(tc.children...).WithObjects(system("uid-hub")).Build()
			there := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(accountOfChild(tc.account)...).WithObjects(system("uid-edge")).Build()
			c, out := newCLI(t)
			err := c.removeChild(t.Context(), hub, there, client.ObjectKey{Namespace: "fleet", Name: "edge"})
			if tc.account == "uid-other-hub" { // it may be this tier, before it was made anew
				if err == nil {
					t.Fatalf("%s: a script takes the account for removed", tc.reason)
				}
				fmt.Fprint(out, err)
				err = nil
			}
			if (err == nil) != (tc.err == nil) {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			for _, text := range tc.err {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: %v does not name %s", tc.reason, err, text)
				}
			}
			if !strings.Contains(out.String(), tc.stays) {
				t.Errorf("%s: it does not say for whom the account stays: %s", tc.reason, out.String())
			}
			for _, o := range accountOfChild("") {
				if gone := apierrors.IsNotFound(there.Get(t.Context(), client.ObjectKeyFromObject(o), o)); gone != (tc.err == nil && tc.stays == "") {
					t.Errorf("%s: %T is gone: %t", tc.reason, o, gone)
				}
			}
			left := &v1alpha1.ChildList{}
			if err := hub.List(t.Context(), left); err != nil {
				t.Fatal(err)
			}
			if tc.err != nil && len(left.Items) != len(tc.children) {
				t.Errorf("%s: %d of %d Children are left", tc.reason, len(left.Items), len(tc.children))
			}
			if found := slices.ContainsFunc(left.Items, func(c v1alpha1.Child) bool { return c.Name == "edge" }); tc.err == nil && found {
				t.Errorf("%s: the Child is there still", tc.reason)
			}
		})
	}
	empty := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(known("shop", "uid-shop")).Build()
	c, _ := newCLI(t)
	if err := c.removeChild(t.Context(), empty, nil, client.ObjectKey{Namespace: "fleet", Name: "edge"}); err == nil || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("a Child that never was: %v", err)
	}
}

// TestChildrenFields: a field of the export never goes without another schema.
func TestChildrenFields(t *testing.T) {
	text, err := json.Marshal(exported{})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"path":"","namespace":"","name":"","ready":false,"reason":"","since":null,"behind":0}`; string(text) != want {
		t.Errorf("the fields that each cluster has are %s, want %s: another meaning needs another schema than %s", text, want, exportSchema)
	}
}

func TestTrace(t *testing.T) {
	labelled := func(o client.Object, group, namespace, name string) client.Object {
		o.SetLabels(map[string]string{group + "/name": name, group + "/namespace": namespace})
		return o
	}
	repo := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "fleet"}, Spec: sourcev1.GitRepositorySpec{URL: "https://git.example.com/fleet"}}
	repo.Status.Artifact = &fluxmeta.Artifact{Revision: shaTwo}
	repo.Status.Conditions = conditions("Ready", metav1.ConditionTrue, "Succeeded", "stored artifact", time.Hour)
	root := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "root"}, Spec: kustomizev1.KustomizationSpec{Path: "./root", SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet"}}}
	root.Status.LastAppliedRevision = shaTwo
	labelled(root, "kustomize.toolkit.fluxcd.io", "flux-system", "root")
	apps := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "apps"}, Spec: kustomizev1.KustomizationSpec{Path: "./apps", Suspend: true, SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet"}}}
	apps.Status.LastAppliedRevision = shaOne
	apps.Status.Conditions = conditions("Ready", metav1.ConditionFalse, "BuildFailed", "cannot build", time.Minute)
	labelled(apps, "kustomize.toolkit.fluxcd.io", "flux-system", "root")
	part := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "part"}, Spec: sourcev1.ExternalArtifactSpec{SourceRef: &fluxmeta.NamespacedObjectKindReference{Kind: "ArtifactGenerator", Name: "parts"}}}
	part.Status.Artifact, part.Status.Conditions = &fluxmeta.Artifact{Revision: shaTwo}, conditions("Ready", metav1.ConditionTrue, "Succeeded", "made", time.Hour)
	whole := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "whole"}, Spec: kustomizev1.KustomizationSpec{Path: "./", SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "ExternalArtifact", Name: "part"}}}
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "made"}}
	labelled(made, "kustomize.toolkit.fluxcd.io", "flux-system", "whole")
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "owner"}}
	labelled(owner, "kustomize.toolkit.fluxcd.io", "flux-system", "apps")
	owned := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "owned", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "1"}}}}
	seeded := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "seeded"}}
	labelled(seeded, v1alpha1.LayerLabelGroup, "fleet", "tenants")
	bare := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bare"}}
	orphan := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orphan"}}
	labelled(orphan, "helm.toolkit.fluxcd.io", "shop", "gone")
	cluster := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": map[string]any{"namespace": "fleet", "name": "shop"}}}
	labelled(cluster, "kustomize.toolkit.fluxcd.io", "flux-system", "apps")
	kid := child("fleet", "shop", nil, nil)
	kid.Spec.ClusterRef = &v1alpha1.LocalReference{Name: "shop"}
	scheme := newScheme()
	scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"}, &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "ClusterList"}, &unstructured.UnstructuredList{})
	mapper := meta.NewDefaultRESTMapper(append(scheme.PrioritizedVersionsAllGroups(), schema.GroupVersion{Group: "cluster.x-k8s.io", Version: "v1beta2"}))
	for gvk := range scheme.AllKnownTypes() {
		mapper.Add(gvk, meta.RESTScopeNamespace)
	}
	cl := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(repo, root, apps, part, whole, made, owner, owned, seeded, bare, orphan, cluster, kid).Build()
	for name, tc := range map[string]struct {
		reason string
		kind   schema.GroupVersionKind
		key    client.ObjectKey
	}{
		"owned":  {"by its owner, to the Kustomization that begins all", corev1.SchemeGroupVersion.WithKind("Secret"), client.ObjectKey{Namespace: "shop", Name: "owned"}},
		"seeded": {"by the tier above", corev1.SchemeGroupVersion.WithKind("ConfigMap"), client.ObjectKey{Namespace: "shop", Name: "seeded"}},
		"made":   {"of an ExternalArtifact, which nobody reconciles", corev1.SchemeGroupVersion.WithKind("ConfigMap"), client.ObjectKey{Namespace: "shop", Name: "made"}},
		"bare":   {"by nobody", corev1.SchemeGroupVersion.WithKind("ConfigMap"), client.ObjectKey{Namespace: "shop", Name: "bare"}},
		"orphan": {"by what is gone", corev1.SchemeGroupVersion.WithKind("ConfigMap"), client.ObjectKey{Namespace: "shop", Name: "orphan"}},
		"child":  {"by its Cluster", v1alpha1.GroupVersion.WithKind("Child"), client.ObjectKey{Namespace: "fleet", Name: "shop"}},
	} {
		t.Run(name, func(t *testing.T) {
			steps, err := trace(t.Context(), cl, tc.kind, tc.key, noon)
			if err != nil {
				t.Fatalf("%s\ntrace: %v", tc.reason, err)
			}
			var out bytes.Buffer
			if err := printTrace(&out, steps); err != nil {
				t.Fatal(err)
			}
			golden(t, "trace-"+name+".txt", out.String())
		})
	}
	if _, err := trace(t.Context(), cl, corev1.SchemeGroupVersion.WithKind("ConfigMap"), client.ObjectKey{Namespace: "shop", Name: "none"}, noon); err == nil {
		t.Error("what does not exist is traced")
	}
}

func TestDiffRefuses(t *testing.T) {
	oci := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "oci"}, Spec: kustomizev1.KustomizationSpec{SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "OCIRepository", Name: "x"}}}
	git := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "git"}, Spec: kustomizev1.KustomizationSpec{SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Namespace: "sources", Name: "x"}}}
	agents := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "agents"}}
	objects := []client.Object{oci, git, agents, child("fleet", "shop", nil, nil)}
	// Layers of the namespace by whom they select, and children by that.
	for name, from := range map[string]v1alpha1.SourceReference{
		"one": {Kind: "GitRepository", Name: "fleet", Namespace: "sources"}, "two": {Kind: "GitRepository", Name: "fleet", Namespace: "sources"},
		"three": {Kind: "GitRepository", Name: "apps"}, "image": {Kind: "OCIRepository", Name: "image"},
	} {
		l := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
		l.Spec.SourceRef, l.Spec.ClusterSelector.MatchLabels = &from, map[string]string{name: "yes"}
		objects = append(objects, l)
	}
	for name, of := range map[string][]string{"elsewhere": {"one", "two", "image"}, "both": {"one", "three"}} {
		c := child("fleet", name, nil, nil)
		c.Labels = map[string]string{}
		for _, l := range of {
			c.Labels[l] = "yes"
		}
		objects = append(objects, c)
	}
	cl := indexed().WithObjects(objects...).Build()
	for name, tc := range map[string]struct {
		reason, kind, name  string
		source              string
		owner, child, error string
		// from is the source that is compared, empty: the only one in the namespace.
		from string
	}{
		"Git":       {"its own source is the one", "kustomization", "git", "", "Kustomization/fleet/git", "", "", "sources/x"},
		"Said":      {"by the name alone, which is of its own namespace", "kustomization", "git", "x", "Kustomization/fleet/git", "", "", "sources/x"},
		"Whole":     {"with the namespace", "kustomization", "git", "sources/x", "Kustomization/fleet/git", "", "", "sources/x"},
		"Other":     {"nothing of it is in another one", "kustomization", "git", "y", "", "", "it is made of GitRepository sources/x", ""},
		"Namesake":  {"nor in one of another namespace", "kustomization", "git", "fleet/x", "", "", "it is made of GitRepository sources/x", ""},
		"Layer":     {"the same goes for a Layer", "layer", "three", "fleet", "", "", "it is made of GitRepository fleet/apps", ""},
		"OCI":       {"an artifact has no commits", "kustomization", "oci", "", "", "", "OCIRepository", ""},
		"Agents":    {"nothing of Git is in it", "layer", "agents", "", "", "", "it has no source", ""},
		"Child":     {"no layer is in it", "child", "shop", "", "", "fleet/shop", "", ""},
		"Elsewhere": {"all layers in it are of one source, in another namespace", "child", "elsewhere", "", "", "fleet/elsewhere", "", "sources/fleet"},
		"Both":      {"of several somebody has to choose", "child", "both", "", "", "fleet/both", "made of several GitRepositories", ""},
		"Chosen":    {"who says it has chosen", "child", "both", "sources/fleet", "", "fleet/both", "", "sources/fleet"},
		"Missing":   {"no such object", "child", "toys", "", "", "", "cannot read Child", ""},
	} {
		p := planned{source: tc.source}
		owner, child, err := diffOf(t.Context(), cl, tc.kind, client.ObjectKey{Namespace: "fleet", Name: tc.name}, &p)
		if (err != nil) != (tc.error != "") || err != nil && !strings.Contains(err.Error(), tc.error) || owner != tc.owner || child != tc.child {
			t.Errorf("%s: %s\ngot %q, %q, %v", name, tc.reason, owner, child, err)
		}
		if from := strings.TrimPrefix(p.sourceNamespace+"/"+p.source, "/"); err == nil && from != tc.from {
			t.Errorf("%s: %s\nthe source is %q, want %q", name, tc.reason, from, tc.from)
		}
	}
	c, _ := newCLI(t)
	for kind, want := range map[string]string{"hr": "only the agent renders charts", "git": "use kustomization, layer or child"} {
		if err := c.diff(t.Context(), kind, "x", planned{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("diff %s: %v, want %q before any cluster is asked", kind, err, want)
		}
	}
}

func TestLogs(t *testing.T) {
	const log = `{"level":"info","ts":"2026-09-01T12:00:00Z","msg":"Reconciliation finished","controllerKind":"Kustomization","namespace":"team","name":"apps"}
{"level":"debug","ts":"2026-09-01T12:00:01Z","msg":"nothing","controllerKind":"Child","namespace":"fleet","name":"shop"}
{"level":"error","ts":"2026-09-01T12:00:02Z","msg":"Reconciler error","error":"no route","controllerKind":"Child","namespace":"fleet","name":"shop"}
{"level":"info","ts":"2026-09-01T12:00:03Z","msg":"starting"}
panic: what a process says that dies

`
	for name, tc := range map[string]struct {
		reason  string
		options logOptions
		want    []int
	}{
		"All":       {"each line", logOptions{}, []int{0, 1, 2, 3, 4}},
		"Level":     {"and above; a line without a level does not pass", logOptions{level: "info"}, []int{0, 2, 3}},
		"Errors":    {"what a person looks for", logOptions{level: "error"}, []int{2}},
		"Object":    {"of one object", logOptions{of: "child/shop"}, []int{1, 2}},
		"Namespace": {"of another namespace", logOptions{of: "ks/other/apps"}, nil},
		"Words":     {"by any word for the kind", logOptions{of: "ks/team/apps"}, []int{0}},
		"Foreign":   {"of a kind that we do not know", logOptions{of: "Pod/x"}, nil},
	} {
		f, err := tc.options.filter()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		p := &logPrinter{to: &out, filter: f, raw: true}
		if err := p.copy("agent-1", strings.NewReader(log)); err != nil {
			t.Fatal(err)
		}
		want := ""
		for _, i := range tc.want {
			want += strings.Split(log, "\n")[i] + "\n"
		}
		if out.String() != want {
			t.Errorf("%s: %s\ngot:\n%swant:\n%s", name, tc.reason, out.String(), want)
		}
	}
	var out bytes.Buffer
	p := &logPrinter{to: &out, withPod: true}
	if err := p.copy("agent-1", strings.NewReader(log+strings.Repeat("x", 3*mostLine)+"\nend\n")); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if long := strings.Repeat("x", mostLine); !strings.Contains(text, long+"\nend\n") {
		t.Error("a line without an end is not cut, or what is behind it is lost")
	} else {
		text = strings.Replace(text, long, "(a long line)", 1)
	}
	golden(t, "logs.txt", text)
	if err := p.copy("agent-1", broken{}); err == nil {
		t.Error("a log that breaks off is no error")
	}
	for _, o := range []logOptions{{level: "loud"}, {of: "child"}, {of: "child//shop"}, {of: "a/b/c/d"}, {output: "xml"}} {
		if _, err := o.filter(); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// TestLogsOfPods: a pod that does not run keeps nobody from the logs of those that do.
func TestLogsOfPods(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// waiting are the pods of two that do not run yet.
		waiting   []string
		out, said string
		err       string
	}{
		"Both":   {"both run", nil, "log of a-1\nlog of a-2\n", "", ""},
		"First":  {"the first does not run", []string{"a-1"}, "log of a-2\n", "cannot read the log of pod a-1: container", ""},
		"Second": {"the second does not run", []string{"a-2"}, "log of a-1\n", "cannot read the log of pod a-2: container", ""},
		"None":   {"no pod runs", []string{"a-1", "a-2"}, "", "cannot read the log of pod a-2: container", "cannot read the log of any of 2 pods"},
	} {
		for _, follow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/Follow=%t", name, follow), func(t *testing.T) {
				refused := make(chan struct{})
				left := int32(len(tc.waiting))
				var count atomic.Int32
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					pod := strings.Split(r.URL.Path, "/")[6]
					if slices.Contains(tc.waiting, pod) {
						w.Header().Set("Content-Type", "application/json")
						w.WriteHeader(http.StatusBadRequest)
						fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"container is waiting to start: ContainerCreating","reason":"BadRequest","code":400}`)
						if count.Add(1) == left {
							close(refused)
						}
						return
					}
					if follow && left > 0 {
						<-refused
					}
					fmt.Fprintln(w, "log of "+pod) // of no form, and printed as it is
				}))
				defer server.Close()
				api, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
				if err != nil {
					t.Fatal(err)
				}
				var out, said bytes.Buffer
				c := &cli{streams: genericiooptions.IOStreams{Out: &out, ErrOut: &said}}
				err = c.logsOf(t.Context(), api.CoreV1().Pods("n"), []string{"a-1", "a-2"}, logOptions{follow: follow, tail: -1}, logFilter{})
				if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s: %v", tc.reason, err)
				}
				lines := strings.SplitAfter(out.String(), "\n")
				slices.Sort(lines)
				if got := strings.Join(lines, ""); got != tc.out {
					t.Errorf("%s: got %q, want %q", tc.reason, got, tc.out)
				}
				if !strings.Contains(said.String(), tc.said) || tc.said == "" && said.Len() > 0 {
					t.Errorf("%s: says %q", tc.reason, said.String())
				}
			})
		}
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the connection is gone") }

func TestCompletion(t *testing.T) {
	cl := indexed().WithObjects(child("fleet", "shop", nil, nil), child("fleet", "bank", nil, nil), child("other", "toys", nil, nil)).Build()
	g, _ := kindOf("child")
	if got := fmt.Sprint(namesOf(t.Context(), cl, g, "fleet")); got != "[bank shop]" {
		t.Errorf("names are %s", got)
	}
	c, _ := newCLI(t)
	complete := c.completeKindAndName(suspendable)
	if words, _ := complete(nil, nil, "ku"); fmt.Sprint(words) != "[kustomization]" {
		t.Errorf("kinds that begin with ku are %v", words)
	}
	if words, _ := complete(nil, []string{"child", "shop"}, ""); words != nil {
		t.Errorf("a third argument is completed with %v", words)
	}
}

// TestCompletionHangs: a cluster that does not answer does not hold the terminal.
func TestCompletionHangs(t *testing.T) {
	// Nothing answers there; that is found out at once, or never.
	server := "https://192.0.2.1:6443"
	flags := genericclioptions.NewConfigFlags(true)
	flags.APIServer = &server
	c := &cli{streams: genericiooptions.NewTestIOStreamsDiscard(), flags: flags, now: time.Now}
	g, _ := kindOf("child")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if names := c.names(ctx, g, ""); names != nil {
		t.Errorf("names are %v", names)
	}
}
