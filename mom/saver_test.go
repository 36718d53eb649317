//go:build linux

package mom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/store"
)

func record(state string) unstructured.Unstructured {
	return unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": v1alpha1.AgentNamespace, "name": v1alpha1.FirstSyncConfigMap},
		"data": map[string]any{"state": state},
	}}
}

// saved is a state as a save leaves it.
func saved(of Tier, closed bool, objects ...unstructured.Unstructured) *archive.Snapshot {
	s := &archive.Snapshot{Objects: objects}
	mark(s, of, closed)
	return s
}

func TestOpened(t *testing.T) {
	newest := Beginning{How: Restore, Newest: true}
	settled, tier := record(v1alpha1.FirstSyncSettled), Tier{Repository: "https://example.com/a", Path: "mom"}
	for name, tc := range map[string]struct {
		reason    string
		saved     *archive.Snapshot
		beginning Beginning
		want      bool
	}{
		"Closed":  {"the last state, after which nothing was built", saved(Tier{}, true, settled), newest, true},
		"Tier":    {"it names its tier as well", saved(tier, true, settled), newest, true},
		"Crashed": {"something may have been built after it", saved(Tier{}, false, settled), newest, false},
		"Running": {"which tier it is of says nothing of that", saved(tier, false, settled), newest, false},
		"Old":     {"something was built after it", saved(Tier{}, true, settled), Beginning{How: Restore}, false},
		"Open":    {"it never was settled", saved(Tier{}, true, record(v1alpha1.FirstSyncOpen)), newest, false},
		"None":    {"there is no record", saved(Tier{}, true), newest, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := opened(tc.saved, tc.beginning); got != tc.want {
				t.Errorf("%s: got %t", tc.reason, got)
			}
			for i := range tc.saved.Objects {
				if !isConfigMap(&tc.saved.Objects[i], v1alpha1.FirstSyncConfigMap) {
					t.Errorf("%s: what is about the state is restored: %s", tc.reason, tc.saved.Objects[i].GetName())
				}
			}
		})
	}
}

func TestTierOf(t *testing.T) {
	a, b := Tier{Repository: "https://example.com/a", Path: "mom"}, Tier{Repository: "https://example.com/b", Path: "mom"}
	for name, tc := range map[string]struct {
		reason   string
		versions []*archive.Snapshot
		want     Tier
	}{
		"Only":    {"there is no newer one", []*archive.Snapshot{saved(a, true), nil}, a},
		"Older":   {"it is of before the tier moved", []*archive.Snapshot{saved(a, false), saved(b, true)}, a},
		"Unnamed": {"it is of before an upgrade of the program, and the newest says it", []*archive.Snapshot{saved(Tier{}, true), saved(b, true)}, b},
		"None":    {"all are of before it", []*archive.Snapshot{saved(Tier{}, true), saved(Tier{}, false)}, Tier{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tierOf(tc.versions...); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// shelf is a store that keeps when it was written, and what.
type shelf struct {
	store.Store

	mu     sync.Mutex
	saved  []string
	broken bool
	// unanswered: what it keeps, it does not tell.
	unanswered bool
	// during is called while it is written.
	during func()
}

func (s *shelf) Save(_ context.Context, l store.Lock, content []byte) (store.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.during()
	if s.broken {
		return store.Version{}, errors.New("it is full")
	}
	s.saved = append(s.saved, string(content))
	if s.unanswered {
		return store.Version{}, errors.New("its answer is lost")
	}
	return store.Version{Epoch: l.Epoch, Number: int64(len(s.saved))}, nil
}

func (s *shelf) Versions(context.Context) ([]store.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []store.Version
	for i := range s.saved {
		all = append(all, store.Version{Epoch: 7, Number: int64(i + 1)})
	}
	return all, nil
}

func (s *shelf) Prune(context.Context, store.Lock, store.Version, int) ([]store.Version, error) {
	return nil, nil
}

func (s *shelf) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.saved)
}

// TestSaver: what changes is saved soon and not too often, what does not change is not, and what
// could not be saved is tried again. Whatever the place keeps and does not tell, the folder goes on.
func TestSaver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		kept, content := &shelf{}, "one"
		var mu sync.Mutex
		set := func(to string) {
			mu.Lock()
			defer mu.Unlock()
			content = to
		}
		s := &saver{
			state: &State{
				Store: kept, Keep: 1,
				Take: func(context.Context, client.Client) (*archive.Snapshot, error) {
					mu.Lock()
					defer mu.Unlock()
					o := record(content)
					o.SetName("a")
					return &archive.Snapshot{Objects: []unstructured.Unstructured{o}}, nil
				},
				Seal: func(s *archive.Snapshot) ([]byte, error) {
					state, _, _ := unstructured.NestedString(s.Objects[0].Object, "data", "state")
					return fmt.Appendf(nil, "%s at %s, %d objects of %s, epoch %d", state, time.Since(began), len(s.Objects), tierOf(s), s.Epoch), nil
				},
			},
			folder: Folder(t.TempDir()), lease: &lease{lock: store.Lock{Epoch: 7}}, say: t.Logf, now: time.Now, changed: make(chan struct{}, 1),
			origin: Origin{State: "s", Epoch: 7},
		}
		s.board = &board{folder: s.folder}
		kept.during = func() {
			var origin Origin
			if _, err := readJSON(s.folder.origin(), &origin); err != nil || !origin.Saving {
				t.Errorf("while it saves the folder knows %+v, %v", origin, err)
			}
		}
		said := func() StateStatus {
			s.board.mu.Lock()
			defer s.board.mu.Unlock()
			return *s.board.status.State
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() { defer close(done); s.run(ctx) }()
		s.touch()
		time.Sleep(time.Minute)
		s.touch() // and nothing is another
		time.Sleep(time.Minute)
		set("two")
		kept.mu.Lock()
		kept.broken = true
		kept.mu.Unlock()
		s.touch()
		time.Sleep(3 * time.Second)
		if status := said(); !status.Unsaved || status.Error == "" {
			t.Errorf("of what is not saved it says %+v", status)
		}
		kept.mu.Lock()
		kept.broken = false
		kept.mu.Unlock()
		time.Sleep(time.Minute)
		if status := said(); status.Unsaved || status.Error != "" || status.Version != "7-2" {
			t.Errorf("of what is saved it says %+v", status)
		}
		s.know(Tier{Repository: "https://example.com/a", Path: "mom"})
		time.Sleep(time.Minute)
		set("untold") // of which nothing is told
		time.Sleep(time.Minute)
		cancel()
		<-done
		if err := s.save(t.Context(), true); err != nil {
			t.Error(err)
		}
		const none, of = "of path  of , epoch 7", "of path mom of https://example.com/a, epoch 7"
		want := []string{"one at 2s, 1 objects " + none, "two at 2m7s, 1 objects " + none, "two at 3m5s, 2 objects " + of, "untold at 4m5s, 2 objects " + of, "untold at 5m3s, 3 objects " + of}
		if got := kept.all(); !slices.Equal(got, want) {
			t.Errorf("saved were %q, want %q", got, want)
		}
		var origin Origin
		if there, err := readJSON(s.folder.origin(), &origin); err != nil || !there || origin.Version != "7-5" || origin.Saving || origin.Path != "mom" {
			t.Errorf("the folder knows %+v, %t, %v", origin, there, err)
		}

		kept.unanswered = true
		set("three")
		for range 3 {
			if err := s.save(t.Context(), false); err == nil {
				t.Error("what nobody answered is said to be saved")
			}
			origin = Origin{}
			if _, err := readJSON(s.folder.origin(), &origin); err != nil {
				t.Fatal(err)
			}
			versions, err := s.state.versions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if b, err := Begin(Situation{Tier: origin.Tier, Cluster: true, State: "s", Origin: origin, Versions: versions}); err != nil || b.How != GoOn {
				t.Errorf("a folder that knows %+v begins with %+v, %v after it saved %s", origin, b, err, versions[0])
			}
		}
		kept.unanswered = false
		set("two")
		if err := s.save(t.Context(), true); err != nil {
			t.Error(err)
		}
		if got := kept.all(); len(got) != 9 || !strings.HasPrefix(got[8], "two") {
			t.Errorf("what was saved before that which nobody answered is not saved again: %q", got)
		}
	})
}

// TestDigest: a Rollout that soaks is looked at each minute, which is not what a state is saved for.
func TestDigest(t *testing.T) {
	digest := func(name, lookedAt, phase string) string {
		o := unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Rollout", "metadata": map[string]any{"name": name},
			"status": map[string]any{"run": map[string]any{"lookedAt": lookedAt, "phase": phase}},
		}}
		s := &archive.Snapshot{Objects: []unstructured.Unstructured{o}}
		d, err := digestOf(s)
		if err != nil {
			t.Fatal(err)
		}
		if at, _, _ := unstructured.NestedString(s.Objects[0].Object, "status", "run", "lookedAt"); at != lookedAt {
			t.Errorf("the state says that it was looked at %q", at)
		}
		return string(d[:])
	}
	soaks := digest("a", "10:00", "Progressing")
	if soaks != digest("a", "10:01", "Progressing") {
		t.Error("a look is another state")
	}
	if soaks == digest("a", "10:00", "Completed") || soaks == digest("b", "10:00", "Progressing") {
		t.Error("another state has the same digest")
	}
}
