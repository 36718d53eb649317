//go:build linux

package mom

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/store"
)

// closingName is the ConfigMap by which a saved state says that it was saved after all
// writers of the cluster had ended. It is in the state only.
const closingName = "cascade-mom"

// tierName is the ConfigMap that names the tier of a saved state. It is another one than that
// of closingName, which alone makes an older program take a state for closed.
const tierName = "cascade-mom-tier"

// repositoryKey, branchKey and pathKey of the ConfigMap of tierName.
const repositoryKey, branchKey, pathKey = "repository", "branch", "path"

// mark has a state say of itself which tier it is of, for which alone it counts, and whether all
// writers had ended.
func mark(s *archive.Snapshot, of Tier, closed bool) {
	add := func(name string, data map[string]any) {
		s.Objects = append(s.Objects, unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": v1alpha1.AgentNamespace, "name": name}, "data": data,
		}})
	}
	if of != (Tier{}) {
		add(tierName, map[string]any{repositoryKey: of.Repository, branchKey: of.Branch, pathKey: of.Path})
	}
	if closed {
		add(closingName, map[string]any{"closed": "true"})
	}
}

// tierOf is the tier that the first of some versions which says so is of; nil is none of them. What
// an older program saved does not say it.
func tierOf(versions ...*archive.Snapshot) (t Tier) {
	for _, s := range versions {
		for i := 0; s != nil && i < len(s.Objects) && t == (Tier{}); i++ {
			if isConfigMap(&s.Objects[i], tierName) {
				t.Repository, _, _ = unstructured.NestedString(s.Objects[i].Object, "data", repositoryKey)
				t.Branch, _, _ = unstructured.NestedString(s.Objects[i].Object, "data", branchKey)
				t.Path, _, _ = unstructured.NestedString(s.Objects[i].Object, "data", pathKey)
			}
		}
	}
	return t
}

func isConfigMap(u *unstructured.Unstructured, name string) bool {
	return u.GetAPIVersion() == "v1" && u.GetKind() == "ConfigMap" && u.GetNamespace() == v1alpha1.AgentNamespace && u.GetName() == name
}

// opened takes out of a restored state what is about the state itself. settled reports whether
// the tier may create Clusters as it did: its record says so, and is to be believed.
func opened(s *archive.Snapshot, b Beginning) (settled bool) {
	closed := slices.ContainsFunc(s.Objects, func(u unstructured.Unstructured) bool { return isConfigMap(&u, closingName) })
	s.Objects = slices.DeleteFunc(s.Objects, func(u unstructured.Unstructured) bool {
		return isConfigMap(&u, closingName) || isConfigMap(&u, tierName)
	})
	return b.Trusts(closed) && slices.ContainsFunc(s.Objects, func(u unstructured.Unstructured) bool {
		state, _, _ := unstructured.NestedString(u.Object, "data", stateKey)
		return isConfigMap(&u, v1alpha1.FirstSyncConfigMap) && state == v1alpha1.FirstSyncSettled
	})
}

// stateKey of the record of the first sync.
const stateKey = "state"

// settle says in the record that the first sync is over. A restored record does not say it by
// itself, as whoever restores cannot know that nothing was built since.
func settle(ctx context.Context, c client.Client) error {
	record := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}}
	patch := fmt.Appendf(nil, `{"data":{%q:%q}}`, stateKey, v1alpha1.FirstSyncSettled)
	if err := c.Patch(ctx, record, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager)); err != nil {
		return fmt.Errorf("cannot settle the first sync: %w", err)
	}
	return nil
}

// saver saves the state of a cluster when it changes.
type saver struct {
	state  *State
	client client.Client
	folder Folder
	origin Origin
	lease  *lease
	board  *board
	say    func(format string, args ...any)
	now    func() time.Time

	mu      sync.Mutex
	changes changes
	// tier that the cluster is of.
	tier Tier
	// changed wakes run; it holds one signal.
	changed chan struct{}
	// digest of what was saved last.
	digest []byte
}

// touch takes in that something changed.
func (s *saver) touch() {
	s.mu.Lock()
	s.changes.note(s.now())
	s.mu.Unlock()
	s.board.ofState(func(status *StateStatus) { status.Unsaved = true })
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// know takes in which tier the cluster is of.
func (s *saver) know(of Tier) {
	s.mu.Lock()
	s.tier = of
	s.mu.Unlock()
	s.touch()
}

// run saves what changes until the context ends. What is unsaved then, the caller saves.
func (s *saver) run(ctx context.Context) {
	looked := s.now()
	for {
		s.mu.Lock()
		due, some := s.changes.due()
		s.mu.Unlock()
		if !some {
			// Not all of what is saved tells of its changes.
			due = looked.Add(saveLook)
		}
		timer := time.NewTimer(max(due.Sub(s.now()), 0))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-s.changed:
			timer.Stop()
			continue
		case <-timer.C:
		}
		looked = s.now()
		s.mu.Lock()
		s.changes.taken()
		s.mu.Unlock()
		if err := s.save(ctx, false); err != nil && ctx.Err() == nil {
			s.mu.Lock()
			s.changes.failed(s.now())
			s.mu.Unlock()
			s.board.ofState(func(status *StateStatus) { status.Error, status.Unsaved = err.Error(), true })
			s.say("the state is not saved, and is tried again: %v", err)
		}
	}
}

// digestOf is what tells a state from the one before. That a Rollout was looked at is no change: while it
// soaks it is each minute, and the versions that are kept would be of an hour or two.
func digestOf(s *archive.Snapshot) ([sha256.Size]byte, error) {
	same := archive.Snapshot{Objects: slices.Clone(s.Objects)}
	for i := range same.Objects {
		o := &same.Objects[i]
		if o.GetKind() == "Rollout" && o.GroupVersionKind().Group == v1alpha1.GroupVersion.Group {
			o = o.DeepCopy()
			unstructured.RemoveNestedField(o.Object, "status", "run", "lookedAt")
			same.Objects[i] = *o
		}
	}
	lines, err := same.Lines()
	return sha256.Sum256(lines), err
}

// save saves the state as it is now. closed says that nothing writes to the cluster any more.
func (s *saver) save(ctx context.Context, closed bool) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	snapshot, err := s.state.Take(ctx, s.client)
	if err != nil {
		return fmt.Errorf("cannot take the state: %w", err)
	}
	snapshot.Epoch = s.lease.current().Epoch
	s.mu.Lock()
	s.origin.Tier = s.tier
	s.mu.Unlock()
	mark(snapshot, s.origin.Tier, closed)
	digest, err := digestOf(snapshot)
	if err != nil {
		return err
	}
	if bytes.Equal(digest[:], s.digest) {
		s.board.ofState(func(status *StateStatus) { status.Unsaved, status.Error = false, "" })
		return nil
	}
	sealed, err := s.state.Seal(snapshot)
	if err != nil {
		return fmt.Errorf("cannot encrypt the state: %w", err)
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	s.digest, s.origin.Saving = nil, true      // what is the newest is not known until that is answered
	_ = writeJSON(s.folder.origin(), s.origin) // where this cannot be written, the folder gives way to what it saved
	version, err := s.lease.save(ctx, s.state.Store, sealed)
	if err != nil {
		return err // it may be there all the same
	}
	s.digest = digest[:]
	s.origin.Version, s.origin.Saving = version.String(), false
	s.board.ofState(func(status *StateStatus) {
		status.Version, status.SavedAt, status.Unsaved, status.Error = version.String(), s.now(), false, ""
	})
	if err := writeJSON(s.folder.origin(), s.origin); err != nil {
		return err
	}
	// What is old is of no use to anybody; that it is still there hurts nobody.
	if _, err := s.state.Store.Prune(ctx, s.lease.current(), store.Version{}, s.state.Keep); err != nil && !errors.Is(err, store.ErrLockLost) {
		s.say("old versions of the state are not deleted: %v", err)
	}
	return nil
}

// look finds out whether what was saved without an answer is there. A folder counts one version that it does
// not know as its own, so there must never be two. Those of this epoch are of this process.
func (s *saver) look(ctx context.Context) error {
	if !s.origin.Saving {
		return nil
	}
	versions, err := s.state.versions(ctx)
	if errors.Is(err, store.ErrGone) {
		return nil // and the next one is saved all the more
	}
	if err != nil {
		return fmt.Errorf("cannot find out whether the last try has saved the state: %w", err)
	}
	if len(versions) > 0 && versions[0].Epoch == s.lease.current().Epoch && versions[0].Compare(store.ParseVersion(s.origin.Version)) > 0 {
		s.origin.Version = versions[0].String()
	}
	return nil
}

// load reads a version.
func (s *State) load(ctx context.Context, name string) (*archive.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	versions, err := s.Store.Versions(ctx)
	if err != nil {
		return nil, err
	}
	version, err := store.Find(versions, name)
	if err != nil {
		return nil, err
	}
	sealed, err := s.Store.Load(ctx, version)
	if err != nil {
		return nil, err
	}
	snapshot, err := s.Open(sealed)
	if err != nil {
		return nil, fmt.Errorf("cannot open version %s of the state: %w", version, err)
	}
	return snapshot, nil
}

// versions lists what is saved, the newest first.
func (s *State) versions(ctx context.Context) ([]store.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	versions, err := s.Store.Versions(ctx)
	slices.Reverse(versions)
	return versions, err
}

// kindsOf counts the objects of a state by their kinds, for people.
func kindsOf(s *archive.Snapshot) string {
	count := map[string]int{}
	for i := range s.Objects {
		count[s.Objects[i].GetKind()]++
	}
	var text string
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%d %s", count[kind], kind)
	}
	return text
}
