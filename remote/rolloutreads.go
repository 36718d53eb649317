package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// errUnread: it is not known yet what the layer reads of the candidate, so that nobody can tell
// whether the layer reads something else of another revision.
var errUnread = errors.New("what the layer reads of the candidate is not known yet")

const (
	// unreadMost is for how long nothing else is a candidate for want of the one before. One that
	// nobody can fetch any more would be the candidate for good otherwise.
	unreadMost = 10 * time.Minute
	// unreadAgain is between two tries to build it.
	unreadAgain = 10 * time.Second
	// learnTimeout is for that build: Rollouts are decided about one after the other.
	learnTimeout = time.Minute
)

// touches identifies what clusters get of a snapshot: what the paths hold, or what the layer
// reads. It is errUnread while the latter is not known of the candidate, to which it is compared.
func (r *Rollouts) touches(ctx context.Context, o *v1alpha1.Rollout, m *moved, newest *source.Snapshot, before *v1alpha1.RolloutRevision) (string, error) {
	paths := o.Spec.Paths
	if len(paths) == 0 && m.composed != nil {
		paths = m.composed.Paths()
	}
	if len(paths) == 0 && m.layer != nil && before != nil && before.Revision != "" {
		same, err := r.reads(ctx, o, m, newest, before.Revision)
		if err != nil {
			return "", err
		}
		if same {
			return o.Status.CandidateDigest, nil
		}
	}
	if len(paths) == 0 {
		return newest.Digest, nil
	}
	hashes := make(map[string]string, len(paths))
	for _, p := range paths {
		_, hash, err := newest.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", fmt.Errorf("cannot look at %s in %s: %w", p, newest.Revision, err)
		}
		hashes[p] = hash
	}
	text, err := json.Marshal(hashes)
	if err != nil {
		return "", err
	}
	return digest.Of(text).String(), nil
}

// reads reports whether a layer reads the same of a snapshot as of the revision of the candidate.
// A process that began a moment ago has pushed neither, and knows of neither what is read: it
// fetches the candidate, which is retained, and builds it once.
func (r *Rollouts) reads(ctx context.Context, o *v1alpha1.Rollout, m *moved, newest *source.Snapshot, candidate string) (bool, error) {
	key := client.ObjectKeyFromObject(o)
	read := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.unread, key)
	}
	if newest.Revision == candidate {
		read()
		return true, nil
	}
	last := r.Snapshots.At(m.from, candidate)
	again := unreadMost
	if last != nil {
		building, cancel := context.WithTimeout(ctx, learnTimeout)
		defer cancel()
		err := r.contents.learn(building, r.templates, r.workers, m.layer, last)
		if err == nil {
			read()
			return r.contents.same(m.layer, last, newest), nil
		}
		log.FromContext(ctx).Error(err, "cannot find out what a layer reads", "layer", m.layer.Name)
		again = unreadAgain
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unread == nil {
		r.unread = map[client.ObjectKey]time.Time{}
	}
	now := r.Now()
	if _, ok := r.unread[key]; !ok {
		r.unread[key] = now
	}
	left := unreadMost - now.Sub(r.unread[key])
	if left <= 0 {
		return false, nil
	}
	m.again = min(again, left)
	return false, errUnread
}
