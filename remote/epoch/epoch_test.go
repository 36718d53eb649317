package epoch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func TestJudge(t *testing.T) {
	lineage := []Mark{{3, "c"}, {2, "b"}, {1, "a"}}
	for name, tc := range map[string]struct {
		reason string
		mark   Mark
		want   Verdict
	}{
		"Unmarked":    {"a version that left no mark wrote it", Mark{}, Unmarked},
		"Own":         {"this process wrote it", Mark{3, "c"}, Own},
		"OwnLower":    {"this process wrote it before it raised its epoch", Mark{1, "c"}, Own},
		"Predecessor": {"the process before the last one wrote it", Mark{1, "a"}, Succeeded},
		"SameNumber":  {"two copies of one tier count alike; the holder tells them apart", Mark{3, "x"}, Foreign},
		"Lower":       {"a number says nothing about who has the right", Mark{1, "x"}, Foreign},
		"Higher":      {"nor does a higher one", Mark{9, "x"}, Foreign},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Judge(lineage, tc.mark); got != tc.want {
				t.Errorf("%s: Judge() = %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
	// The process began with one shard at 3, another one with others at 4, and then this one
	// with another shard at 5.
	shard := From(Mark{3, "c"}, []Mark{{5, "c"}, {4, "d"}, {2, "b"}})
	for name, tc := range map[string]struct {
		reason string
		mark   Mark
		want   Verdict
	}{
		"Later":       {"who began later has the child", Mark{4, "d"}, Outrun},
		"Itself":      {"this process lost the shard and got it again", Mark{5, "c"}, Outrun},
		"Own":         {"this process wrote it since it has the shard", Mark{3, "c"}, Own},
		"Predecessor": {"who began before has it no more", Mark{2, "b"}, Succeeded},
		"Earlier":     {"who has another shard by now had this one before", Mark{1, "d"}, Succeeded},
		"Unknown":     {"a backup does not know that a predecessor raised its epoch", Mark{9, "b"}, Succeeded},
		"Foreign":     {"nobody of this tier", Mark{9, "x"}, Foreign},
	} {
		t.Run("Shard"+name, func(t *testing.T) {
			if got := Judge(shard, tc.mark); got != tc.want {
				t.Errorf("%s: Judge() = %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
	if got := Judge(nil, Mark{1, "a"}); got != Foreign {
		t.Errorf("Judge() without a lineage = %d, want Foreign", got)
	}
}

// TestTier: processes of one tier follow each other; a copy of the tier goes its own way
// from where it was copied.
func TestTier(t *testing.T) {
	etcd := fake.NewClientBuilder().Build()
	take := func(c client.Client, holder string) []Mark {
		t.Helper()
		lineage, err := NewTier(c, "cascade-system", holder).Lineage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return lineage
	}
	if diff := cmp.Diff([]Mark{{1, "a"}}, take(etcd, "a")); diff != "" {
		t.Errorf("the first process: -want, +got:\n%s", diff)
	}
	copied := &corev1.ConfigMap{}
	if err := etcd.Get(t.Context(), types.NamespacedName{Namespace: "cascade-system", Name: v1alpha1.EpochConfigMap}, copied); err != nil {
		t.Fatal(err)
	}
	copied.ResourceVersion = ""
	elsewhere := fake.NewClientBuilder().WithObjects(copied).Build()
	successor, returned := take(elsewhere, "b"), take(etcd, "c")
	if diff := cmp.Diff([]Mark{{2, "b"}, {1, "a"}}, successor); diff != "" {
		t.Errorf("the successor: -want, +got:\n%s", diff)
	}
	if got := Judge(successor, Mark{1, "a"}); got != Succeeded {
		t.Errorf("the successor finds the old tier's mark to be %d, want Succeeded", got)
	}
	if got := Judge(returned, successor[0]); got != Foreign {
		t.Errorf("the old tier, which came back, finds its successor's mark to be %d, want Foreign", got)
	}
}

// TestMany: an agent that ends again and again before it compares anything, for days, goes on with what
// its first process wrote, and the lineage of all of them fits into its ConfigMap.
func TestMany(t *testing.T) {
	holder := func(n int) string { return fmt.Sprintf("cascade-%010d-abcde_%032d", n, n) }
	var lineage []Mark
	for n := range 4000 {
		lineage = next(lineage, holder(n), 0)
		if n == 2000 && Judge(lineage, Mark{1, holder(0)}) != Succeeded {
			t.Error("after 2000 processes the first one is not known any more")
		}
	}
	text, err := json.Marshal(lineage)
	if err != nil || len(text) > 1<<19 {
		t.Errorf("%d processes take %d bytes: %v", len(lineage), len(text), err)
	}
}

// TestBegin: of two processes that seed children of one tier, the one that began last has
// the larger epoch, and both know each other once they look.
func TestBegin(t *testing.T) {
	etcd := fake.NewClientBuilder().Build()
	a, b := NewTier(etcd, "n", "a"), NewTier(etcd, "n", "b")
	begin := func(tier *Tier) Mark {
		t.Helper()
		m, err := tier.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first, second, third := begin(a), begin(b), begin(a)
	if first.Epoch >= second.Epoch || second.Epoch >= third.Epoch || third.Holder != "a" {
		t.Errorf("the epochs are %v, %v, %v", first, second, third)
	}
	known, err := b.Lineage(t.Context())
	if err != nil || Judge(known, third) != Succeeded {
		t.Errorf("before it looks, b finds a's mark to be %d: %v", Judge(known, third), err)
	}
	looked, err := b.Look(t.Context())
	if err != nil || looked[0] != second || Judge(looked, third) != Outrun {
		t.Errorf("b sees %v: %v", looked, err)
	}
	if got := Judge(From(first, looked[1:]), second); got != Foreign {
		t.Errorf("a lineage without b finds its mark to be %d", got)
	}
}

// TestTierIsConditional: of two processes that begin at once, one has the epoch.
func TestTierIsConditional(t *testing.T) {
	etcd := fake.NewClientBuilder().Build()
	first := NewTier(etcd, "n", "a")
	if _, err := first.Lineage(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What the second one reads is old by the time it writes.
	old := &corev1.ConfigMap{}
	if err := etcd.Get(t.Context(), types.NamespacedName{Namespace: "n", Name: v1alpha1.EpochConfigMap}, old); err != nil {
		t.Fatal(err)
	}
	if err := first.Raise(t.Context(), Mark{Epoch: 41, Holder: "x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := NewTier(&reading{Client: etcd, old: old}, "n", "b").Lineage(t.Context()); err == nil {
		t.Error("a process that read an old lineage wrote it")
	}
	lineage, err := first.Lineage(t.Context())
	if err != nil || lineage[0] != (Mark{42, "a"}) {
		t.Errorf("a process that takes a child over from epoch 41 has %v, %v", lineage, err)
	}
}

// TestHostileNumber: a child may say any number of who wrote to it. None leaves too few for those who come,
// and a tier that took one over from an earlier version counts on.
func TestHostileNumber(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// recorded is what an earlier version wrote down, raised what this one takes over.
		recorded []Mark
		raised   Mark
	}{
		"Largest":    {"the next one would have none that is larger", nil, Mark{math.MaxInt64, "x"}},
		"Last":       {"and this one would have the last one", nil, Mark{math.MaxInt64 - 1, "x"}},
		"Below":      {"it is no number of a process", nil, Mark{math.MinInt64, "x"}},
		"Known":      {"of a process of this tier the child says more than that had", []Mark{{1, "before"}}, Mark{math.MaxInt64 - 1, "before"}},
		"Recorded":   {"an earlier version believed it", []Mark{{math.MaxInt64, "before"}, {5, "first"}}, Mark{}},
		"Overflowed": {"and the one after that had the smallest", []Mark{{math.MinInt64, "last"}, {math.MaxInt64, "before"}, {5, "first"}}, Mark{}},
	} {
		t.Run(name, func(t *testing.T) {
			etcd := fake.NewClientBuilder().Build()
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: v1alpha1.EpochConfigMap}}
			if err := errors.Join(Write(cm, tc.recorded), etcd.Create(t.Context(), cm)); err != nil {
				t.Fatal(err)
			}
			first := NewTier(etcd, "n", "a")
			before, err := first.Lineage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := first.Raise(t.Context(), tc.raised); err != nil {
				t.Fatal(err)
			}
			raised, err := first.Lineage(t.Context())
			if err != nil || raised[0].Epoch < before[0].Epoch {
				t.Fatalf("%s: an epoch never falls: %v, %v", tc.reason, raised, err)
			}
			second := NewTier(etcd, "n", "b")
			for range 2 { // a process, and another shard of it
				began, err := second.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				lineage, err := second.Lineage(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if began.Epoch <= raised[0].Epoch || began.Epoch > 1<<40 {
					t.Errorf("%s: who comes has %v after %v", tc.reason, began, raised[0])
				}
				for _, m := range append(tc.recorded, raised[0], Mark{1, "a"}) {
					if got := Judge(From(began, lineage), m); got != Succeeded {
						t.Errorf("%s: to %v it stands as %d", tc.reason, m, got)
					}
				}
			}
		})
	}
}

// TestOneWrites: all workers of a process ask for the lineage at its start, and one of them
// writes it.
func TestOneWrites(t *testing.T) {
	counting := &counting{Client: fake.NewClientBuilder().Build()}
	tier := NewTier(counting, "n", "a")
	var workers sync.WaitGroup
	for range 20 {
		workers.Go(func() {
			if lineage, err := tier.Lineage(t.Context()); err != nil || len(lineage) != 1 {
				t.Errorf("the lineage is %v: %v", lineage, err)
			}
		})
	}
	workers.Wait()
	if n := counting.created.Load(); n != 1 {
		t.Errorf("written %d times", n)
	}
	tier = NewTier(counting, "n", "b")
	tier.turn <- struct{}{} // one that hangs
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tier.Lineage(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("who waits for another one has no deadline: %v", err)
	}
}

// counting counts creations.
type counting struct {
	client.Client
	created atomic.Int32
}

func (c *counting) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	c.created.Add(1)
	return c.Client.Create(ctx, o, opts...)
}

// reading reads an old object.
type reading struct {
	client.Client
	old *corev1.ConfigMap
}

func (r *reading) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	r.old.DeepCopyInto(into.(*corev1.ConfigMap))
	return nil
}

// TestDeleted: somebody deletes the record while a process leads the tier. Those that led it before
// are still its predecessors, or their marks in children would be another management cluster's.
func TestDeleted(t *testing.T) {
	for name, write := range map[string]func(*Tier) error{
		"Begin": func(tier *Tier) error { _, err := tier.Begin(t.Context()); return err },
		"Raise": func(tier *Tier) error { return tier.Raise(t.Context(), Mark{Epoch: 7}) },
		"Look":  func(tier *Tier) error { _, err := tier.Look(t.Context()); return err },
		"Start": func(tier *Tier) error { return minutes(t, tier) },
	} {
		c := fake.NewClientBuilder().Build()
		if _, err := NewTier(c, "ns", "before").Lineage(t.Context()); err != nil {
			t.Fatal(err)
		}
		tier := NewTier(c, "ns", "own")
		if _, err := tier.Lineage(t.Context()); err != nil {
			t.Fatal(err)
		}
		cm := &corev1.ConfigMap{}
		cm.Namespace, cm.Name = "ns", v1alpha1.EpochConfigMap
		if err := c.Delete(t.Context(), cm); err != nil {
			t.Fatal(err)
		}
		if err := write(tier); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		known, err := tier.Lineage(t.Context())
		if err != nil || Judge(known, Mark{1, "before"}) != Succeeded {
			t.Errorf("%s: this process knows %v, %v", name, known, err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if marks, err := MarksOf(cm); err != nil || Judge(marks, Mark{1, "before"}) != Succeeded || Judge(marks, known[0]) != Own {
			t.Errorf("%s: on record are %v, %v", name, marks, err)
		}
	}
}

// minutes lets a process run on for two, with nothing to do.
func minutes(t *testing.T, tier *Tier) (err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute+time.Second)
		defer cancel()
		err = tier.Start(ctx)
	})
	return err
}

// TestDeletedOfMany: two replicas lead children of one tier, and what the one writes again lacks the
// other, which began since it looked last. The process after them is the successor of both.
func TestDeletedOfMany(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	a, b, idle := NewTier(c, "ns", "a"), NewTier(c, "ns", "b"), NewTier(c, "ns", "idle")
	var marks []Mark
	for _, tier := range []*Tier{a, b} {
		m, err := tier.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		marks = append(marks, m)
	}
	cm := &corev1.ConfigMap{}
	cm.Namespace, cm.Name = "ns", v1alpha1.EpochConfigMap
	if err := c.Delete(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	for _, tier := range []*Tier{a, b, idle} {
		if err := minutes(t, tier); err != nil {
			t.Fatal(err)
		}
	}
	lineage, err := NewTier(c, "ns", "next").Lineage(t.Context())
	for _, m := range marks {
		if got := Judge(lineage, m); err != nil || got != Succeeded {
			t.Errorf("the mark of %s is %d to the next process, want Succeeded: %v, %v", m.Holder, got, lineage, err)
		}
	}
	if has(lineage, "idle") {
		t.Errorf("a replica that leads nothing is on record: %v", lineage)
	}
}

// TestBelow: who led the tier in a cluster is found wherever its agent is, as far as it may be read.
func TestBelow(t *testing.T) {
	in := func(namespace, text string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.EpochConfigMap}, Data: map[string]string{lineageKey: text}}
	}
	const usual, a, b = v1alpha1.AgentNamespace, `[{"epoch":2,"holder":"a"}]`, `[{"epoch":1,"holder":"b"}]`
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", nil)
	for name, tc := range map[string]struct {
		reason  string
		objects []client.Object
		// list is what a list of all namespaces says.
		list  error
		want  []Mark
		fails bool
	}{
		"None":       {"no tier runs there", nil, nil, nil, false},
		"Usual":      {"its agent is where it is in most", []client.Object{in(usual, a)}, nil, []Mark{{2, "a"}}, false},
		"Elsewhere":  {"it was installed with -n", []client.Object{in("ops", a)}, nil, []Mark{{2, "a"}}, false},
		"Both":       {"what any of them says spares records", []client.Object{in("ops", b), in(usual, a)}, nil, []Mark{{2, "a"}, {1, "b"}}, false},
		"Unreadable": {"its agent cannot read it either, and does not hide the other", []client.Object{in(usual, "x"), in("ops", b)}, nil, []Mark{{1, "b"}}, false},
		"Narrow":     {"the kubeconfig is for the usual namespace alone", []client.Object{in("ops", b), in(usual, a)}, forbidden, []Mark{{2, "a"}}, false},
		"NarrowNone": {"it is, and has nothing there", []client.Object{in("ops", b)}, forbidden, nil, false},
		"Fails":      {"to not know is an error", []client.Object{in(usual, a)}, errors.New("connection refused"), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := fake.NewClientBuilder().WithObjects(tc.objects...).
				WithIndex(&corev1.ConfigMap{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).
				WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if tc.list != nil {
						return tc.list
					}
					return c.List(ctx, list, opts...)
				}}).Build()
			got, err := Below(t.Context(), cluster)
			slices.SortFunc(got, func(a, b Mark) int { return strings.Compare(a.Holder, b.Holder) })
			if diff := cmp.Diff(tc.want, got); diff != "" || (err != nil) != tc.fails {
				t.Errorf("%s: %v; -want, +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}
