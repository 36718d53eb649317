package safety

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestHandOverWalk moves objects between six owners, renames, splits and merges these,
// gives them other parents and dependencies, suspends them and takes commits back, all at
// random and faster than it is applied. No object that every commit declared is ever
// deleted, and whenever there is quiet, the cluster is as the last commit says.
func TestHandOverWalk(t *testing.T) {
	scenario.Alongside(t)
	const worlds = 4
	operations, seed := 160, time.Now().UnixNano()
	for name, set := range map[string]func(int64){
		"CASCADE_HANDOVER_OPERATIONS": func(n int64) { operations = int(n) }, "CASCADE_HANDOVER_SEED": func(n int64) { seed = n },
	} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			set(n)
		}
	}
	t.Logf("%d operations, CASCADE_HANDOVER_SEED=%d", operations, seed)
	h := scenario.StartHelmTier(t)
	parts := scenario.PartsOf(t)
	defer parts.Wait()
	for n := range worlds {
		parts.Run(fmt.Sprint("World", n), func(t *testing.T) {
			w := &moves{random: rand.New(rand.NewPCG(uint64(seed), uint64(n))), state: firstOwners()}
			w.handOver = &handOver{HelmRow: h.GitRow(t, w.state.files(nil))}
			w.walk(t, operations/worlds)
		})
	}
}

// owners are what Git declares in a world.
type owners struct {
	// list of the owners, which keep their directories.
	list []ownerState
	// at has the owner, by its place in the list, of each object.
	at map[string]int
}

// ownerState is one Kustomization.
type ownerState struct {
	// name changes, by a rename. parent is left or right.
	name, parent string
	suspended    bool
	// after is the place of the owner that it depends on; -1 is none.
	after int
}

const (
	ownersOfWalk  = 6
	objectsOfWalk = 10
)

func firstOwners() owners {
	o := owners{at: map[string]int{}}
	for i := range ownersOfWalk {
		o.list = append(o.list, ownerState{name: fmt.Sprint("o", i), parent: []string{"left", "right"}[i%2], after: -1})
	}
	for i := range objectsOfWalk {
		o.at[fmt.Sprint("c", i)] = i % ownersOfWalk
	}
	return o
}

func (o owners) clone() owners {
	return owners{list: slices.Clone(o.list), at: maps.Clone(o.at)}
}

// files are the commit, as what is to change of the one before.
func (o owners) files(before map[string]string) map[string]string {
	files := map[string]string{
		"root/parents.yaml": owner("left", "left", "") + "---\n" + owner("right", "right", ", dependsOn: [{name: left}]"),
		// No directory is ever empty: that would be held.
		"left/stays.yaml": content("left"), "right/stays.yaml": content("right"),
	}
	for i, k := range o.list {
		more := fmt.Sprintf(", suspend: %t", k.suspended)
		if k.after >= 0 {
			more += fmt.Sprintf(", dependsOn: [{name: %s}]", o.list[k.after].name)
		}
		files[fmt.Sprintf("%s/%d.yaml", k.parent, i)] = owner(k.name, fmt.Sprint("d", i), more)
		files[fmt.Sprintf("d%d/stays.yaml", i)] = content(fmt.Sprint("stays", i))
	}
	for object, i := range o.at {
		files[fmt.Sprintf("d%d/%s.yaml", i, object)] = content(object)
	}
	for name := range before {
		if _, ok := files[name]; !ok {
			files[name] = ""
		}
	}
	return files
}

// moves is a walk through one world.
type moves struct {
	*handOver
	random *rand.Rand
	state  owners
	// past are the states of the commits, the newest last.
	past []owners
	tree map[string]string
	log  []string
	next int
	// from is where the audit log ended at the last quiet. What happened to objects since
	// is told when one of them is not the first any more.
	from int64
}

func (w *moves) walk(t *testing.T, operations int) {
	w.tree = w.state.files(nil)
	w.Kustomization(t, "root", "path: ./root")
	w.quiet(t)
	var err error
	if w.uids, err = w.objects(t.Context()); err != nil {
		t.Fatal(err)
	}
	for done := 0; done < operations; {
		for range 2 + w.random.IntN(8) {
			w.past = append(w.past, w.state.clone())
			for range 1 + w.random.IntN(3) {
				w.step()
				done++
			}
			w.commit(t)
			// Now and then the agent gets somewhere before the next commit comes.
			if w.random.IntN(3) == 0 {
				w.Fetched(t)
			}
		}
		for i := range w.state.list {
			w.state.list[i].suspended = false
		}
		w.commit(t)
		w.quiet(t)
		if t.Failed() {
			t.Fatalf("after %d operations; the last were: %s", done, strings.Join(w.log[max(0, len(w.log)-40):], "; "))
		}
	}
}

// step is one operation on what Git declares.
func (w *moves) step() {
	i, j := w.random.IntN(ownersOfWalk), w.random.IntN(ownersOfWalk)
	k := &w.state.list[i]
	note := func(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }
	switch w.random.IntN(10) {
	case 0, 1, 2:
		object := fmt.Sprint("c", w.random.IntN(objectsOfWalk))
		w.state.at[object] = j
		note("%s to d%d", object, j)
	case 3:
		w.next++
		k.name = fmt.Sprintf("o%d-%d", i, w.next)
		note("d%d is %s", i, k.name)
	case 4:
		for object, at := range w.state.at {
			if at == i {
				w.state.at[object] = j
			}
		}
		note("all of d%d to d%d", i, j)
	case 5:
		n := 0
		for _, object := range slices.Sorted(maps.Keys(w.state.at)) {
			if w.state.at[object] == i {
				w.state.at[object] = (j + n) % ownersOfWalk
				n++
			}
		}
		note("d%d is split", i)
	case 6:
		k.suspended = !k.suspended
		note("%s suspended: %t", k.name, k.suspended)
	case 7:
		// Only on one before it, so that nobody waits for himself.
		if k.after = -1; i > 0 && w.random.IntN(3) > 0 {
			k.after = w.random.IntN(i)
		}
		note("%s after d%d", k.name, k.after)
	case 8:
		k.parent = map[string]string{"left": "right", "right": "left"}[k.parent]
		note("%s below %s", k.name, k.parent)
	case 9:
		back := 1 + w.random.IntN(3)
		if back > len(w.past) {
			return
		}
		w.state = w.past[len(w.past)-back].clone()
		note("back by %d", back)
	}
}

func (w *moves) commit(t *testing.T) {
	t.Helper()
	files := w.state.files(w.tree)
	changes := map[string]string{}
	for name, text := range files {
		if w.tree[name] != text {
			changes[name] = text
		}
		if text == "" {
			delete(w.tree, name)
		} else {
			w.tree[name] = text
		}
	}
	if len(changes) > 0 {
		w.Commit(t, changes)
		w.log = append(w.log, fmt.Sprintf("commit %.8s at %s", w.Head, time.Now().UTC().Format(clock)))
	}
}

// quiet waits until the cluster is as the last commit says, and compares UIDs.
func (w *moves) quiet(t *testing.T) {
	t.Helper()
	declared := map[string]string{"left": "left", "right": "right"}
	for i, k := range w.state.list {
		declared[fmt.Sprint("stays", i)] = k.name
	}
	for object, i := range w.state.at {
		declared[object] = w.state.list[i].name
	}
	scenario.Eventually(t, scenario.Converge, "the cluster is as the last commit says", func(ctx context.Context) error {
		list := &corev1.ConfigMapList{}
		if err := w.Client.List(ctx, list, client.InNamespace(w.Namespace)); err != nil {
			return err
		}
		found := map[string]string{}
		for _, cm := range list.Items {
			if cm.Name != "kube-root-ca.crt" {
				found[cm.Name] = cm.Labels["kustomize.toolkit.fluxcd.io/name"]
			}
		}
		if !maps.Equal(found, declared) {
			return fmt.Errorf("objects and owners are %v, want %v", found, declared)
		}
		for _, k := range w.state.list {
			o, err := w.Read(ctx, k.name)
			if err != nil {
				return err
			}
			ready := apimeta.IsStatusConditionTrue(o.Status.Conditions, "Ready")
			pending := apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.HandOverPendingCondition) != nil
			if !ready || pending || !strings.HasSuffix(o.Status.LastAppliedRevision, w.Head) {
				return fmt.Errorf("%s is at %s: %s", k.name, o.Status.LastAppliedRevision, scenario.Summary(o.Status.Conditions))
			}
			if o.Status.Inventory == nil || len(o.Status.Inventory.Entries) == 0 {
				return errors.New(k.name + " has no inventory")
			}
		}
		return nil
	})
	if w.uids != nil {
		w.same(t, slices.Collect(maps.Keys(w.uids))...)
		if t.Failed() {
			w.trace(t)
		}
	}
	w.from = w.AuditOffset(t)
}

// trace logs what the agent wrote in the namespace since the last quiet, in its order.
func (w *moves) trace(t *testing.T) {
	t.Helper()
	for _, e := range w.Writes(t, w.from) {
		if e.ObjectRef.Resource != "events" {
			t.Log(e.Received.UTC().Format(clock), e.Verb, e.ObjectRef.Resource, e.ObjectRef.Name, e.ObjectRef.Subresource, e.ResponseStatus.Code)
		}
	}
}

// clock is how a trace tells the time.
const clock = "15:04:05.000"
