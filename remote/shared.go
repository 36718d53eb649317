package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/keep"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// shared is what layers are rendered from, which is the same for all their children. It
// is read, built, parsed and encoded once.
type shared struct {
	references referenceCache
	inUse      inUse
	contents   contents
	templates  templates
	manifest   manifest
	revisions  revisions
}

// referenceHolds is how long a Secret or ConfigMap that was read is used for the next
// children. Layers looks for changes.
const referenceHolds = 5 * time.Second

// referenceCache reads Secrets and ConfigMaps that layers refer to, each as the account of
// the layer. It is safe for concurrent use. Objects that it returns must not be modified in
// depth.
type referenceCache struct {
	now func() time.Time

	mu   sync.Mutex
	read map[referenceKey]cachedReference
}

// referenceKey has the account that an object was read as: another one may have less
// rights.
type referenceKey struct {
	as     account.Account
	name   types.NamespacedName
	secret bool
}

// referenceReader reads as one account, or returns what was read as the same a moment ago.
type referenceReader struct {
	client.Reader
	as    account.Account
	cache *referenceCache
	// noted is told which version of an object was read, empty for one that is not there.
	noted func(ref reference, version string)
}

type cachedReference struct {
	at      time.Time
	object  client.Object
	version string
}

// drop forgets what was read of an object of a namespace, as whichever account.
func (h *referenceCache) drop(namespace string, ref reference) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.read, func(k referenceKey, _ cachedReference) bool {
		return k.name.Namespace == namespace && k.name.Name == ref.name && k.secret == (ref.kind == "Secret")
	})
}

// Get reads an object, or returns the one that was read a moment ago. An absence is
// not cached.
func (r *referenceReader) Get(ctx context.Context, name types.NamespacedName, into client.Object, opts ...client.GetOption) error {
	h, ref := r.cache, reference{"ConfigMap", name.Name}
	_, secret := into.(*corev1.Secret)
	if secret {
		ref.kind = "Secret"
	}
	key, now := referenceKey{r.as, name, secret}, h.now()
	h.mu.Lock()
	found, ok := h.read[key]
	h.mu.Unlock()
	if ok && now.Sub(found.at) < referenceHolds {
		r.noted(ref, found.version)
		switch into := into.(type) {
		case *corev1.Secret:
			*into = *found.object.(*corev1.Secret)
			return nil
		case *corev1.ConfigMap:
			*into = *found.object.(*corev1.ConfigMap)
			return nil
		}
	}
	if err := r.Reader.Get(ctx, name, into, opts...); err != nil {
		if apierrors.IsNotFound(err) {
			r.noted(ref, "")
		}
		return err
	}
	version := versionOf(into)
	r.noted(ref, version)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.read == nil {
		h.read = map[referenceKey]cachedReference{}
	}
	for k, o := range h.read {
		if now.Sub(o.at) >= referenceHolds {
			delete(h.read, k)
		}
	}
	switch into := into.(type) {
	case *corev1.Secret:
		kept := *into
		h.read[key] = cachedReference{now, &kept, version}
	case *corev1.ConfigMap:
		kept := *into
		h.read[key] = cachedReference{now, &kept, version}
	}
	return nil
}

// contents tell whether what a layer reads of its source is the same in another
// snapshot. Which files a layer reads does not depend on the child. Children may have it at
// different revisions.
type contents struct {
	mu     sync.Mutex
	layers map[types.UID]layerContents
	seen   map[types.UID]sight
}

// sight is a content that a layer was seen to have at the newest revision of its source, and since when.
type sight struct {
	generation int64
	key        string
	since      time.Time
}

// layerContents are those of a layer as of one generation, the one that was rendered last
// first.
type layerContents struct {
	generation int64
	known      []content
}

// mostContents bounds the contents that are known of a layer: children of a rollout have two
// revisions of it, or a few.
const mostContents = 8

// content of a layer. It is not changed.
type content struct {
	// snapshots are those that were looked at, the last one first. key changes only when
	// something in reads has changed.
	snapshots []string
	key       string
	reads     *render.ReadSet
	// read is the digest of reads.
	read digest.Short
}

// of identifies what a layer reads of a snapshot: by a key of this process, and by the digest of
// what was read, which is zero before anything was rendered from the like.
func (c *contents) of(layer *v1alpha1.Layer, s *source.Snapshot) (key string, read digest.Short) {
	c.mu.Lock()
	all := c.layers[layer.UID]
	c.mu.Unlock()
	if all.generation != layer.Generation {
		return s.Digest, read
	}
	for _, known := range all.known {
		if slices.Contains(known.snapshots, s.Digest) {
			return known.key, known.read
		}
	}
	for _, known := range all.known {
		if same, err := known.reads.Unchanged(s); err == nil && same {
			c.put(layer, content{prefixed(s.Digest, known.snapshots), known.key, known.reads, known.read})
			return known.key, known.read
		}
	}
	return s.Digest, read
}

// learn finds out what a layer reads of a snapshot, if that is not known. An error says that it
// could not be found out for now.
func (c *contents) learn(ctx context.Context, builds *templates, workers worker.Runner, layer *v1alpha1.Layer, s *source.Snapshot) error {
	key, read := c.of(layer, s)
	if read != (digest.Short{}) {
		return nil
	}
	build, err := builds.build(ctx, workers, layer, s, key, "")
	if failed := permanent(err); failed != nil {
		c.note(layer, s, key, failed.Reads)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot build layer %s from %s: %w", layer.Name, s.Revision, err)
	}
	c.note(layer, s, key, build.Reads())
	return nil
}

// same reports whether a layer reads the same of two snapshots, as far as that is known.
func (c *contents) same(layer *v1alpha1.Layer, a, b *source.Snapshot) bool {
	one, _ := c.of(layer, a)
	other, _ := c.of(layer, b)
	return one == other
}

// since is when somebody asked first about what a layer has at the newest revision of its source, which is now if that is
// another content than at the last question.
func (c *contents) since(layer *v1alpha1.Layer, newest *source.Snapshot, now time.Time) time.Time {
	key, _ := c.of(layer, newest)
	c.mu.Lock()
	defer c.mu.Unlock()
	if seen := c.seen[layer.UID]; seen.key == key && seen.generation == layer.Generation {
		return seen.since
	}
	if c.seen == nil || len(c.seen) > 1000 {
		c.seen = map[types.UID]sight{}
	}
	c.seen[layer.UID] = sight{layer.Generation, key, now}
	return now
}

// note remembers what a rendering of a layer read, and returns the digest of that.
func (c *contents) note(layer *v1alpha1.Layer, s *source.Snapshot, key string, reads *render.ReadSet) digest.Short {
	now := content{snapshots: []string{s.Digest}, key: key, reads: reads}
	c.mu.Lock()
	for _, o := range c.layers[layer.UID].known {
		if o.reads == reads {
			now.read = o.read // children share a build
		}
	}
	c.mu.Unlock()
	if now.read == (digest.Short{}) {
		now.read = reads.Digest()
	}
	c.put(layer, now)
	return now.read
}

// put records a content in place of what was known by its key.
func (c *contents) put(layer *v1alpha1.Layer, now content) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.layers == nil || len(c.layers) > 1000 {
		c.layers = map[types.UID]layerContents{} // layers come and go; what is dropped is computed again
	}
	known := []content{now}
	if all := c.layers[layer.UID]; all.generation == layer.Generation {
		for _, o := range all.known {
			// What was the same by what an earlier rendering read may not be by what this one did.
			if o.key != now.key && len(known) < mostContents {
				known = append(known, o)
			}
		}
	}
	c.layers[layer.UID] = layerContents{layer.Generation, known}
}

// prefixed is a bounded list with another one in front.
func prefixed(first string, list []string) []string {
	return append([]string{first}, list[:min(len(list), mostContents-1)]...)
}

// manifest caches the agent's objects as layers push them.
type manifest struct{ made keep.Once[*agentManifest] }

// agentManifest is shared by all children of a layer and must not be modified.
type agentManifest struct {
	definitions, ground, workload apply.Phase
}

// mostManifests bounds the bytes of the agents' objects that are kept. Layers with agents
// are few.
const mostManifests = 32 << 20

func (m *manifest) of(ctx context.Context, layer *v1alpha1.Layer, image string) (*agentManifest, error) {
	agent := layer.Spec.Agent
	o := deploy.Options{AgentValues: agent.AgentValues}
	o.Image = cmp.Or(image, o.Image) // a Rollout may have chosen another one than spec.agent
	o.FirstSync = ""                 // it does not reach the child
	o.Args, _ = agentArgs(agent)
	if agent.Decryption != nil {
		o.Args = append([]string{"--sops-age-secret=" + v1alpha1.AgentNamespace + "/" + decryptionSecret}, o.Args...)
	}
	text, err := json.Marshal([]any{layer.Namespace, layer.Name, o})
	if err != nil {
		return nil, fmt.Errorf("cannot encode the agent of layer %s: %w", layer.Name, err)
	}
	passes := func(error) bool { return false }
	return m.made.Do(ctx, string(text), mostManifests, passes, func() (*agentManifest, int, error) {
		made, err := makeManifest(ownerOf(layer.Namespace, layer.Name), o)
		if err != nil {
			return nil, 0, err
		}
		return made, made.definitions.Size() + made.ground.Size() + made.workload.Size(), nil
	})
}

func makeManifest(owner apply.Owner, o deploy.Options) (*agentManifest, error) {
	definitions, err := deploy.CRDs()
	if err != nil {
		return nil, err
	}
	ground, workload, err := deploy.Agent(o)
	if err != nil {
		return nil, err
	}
	made := &agentManifest{}
	for _, p := range []struct {
		into *apply.Phase
		from apply.Phase
	}{
		{&made.definitions, apply.Phase{Objects: definitions}},
		{&made.ground, apply.Phase{Objects: ground}},
		{&made.workload, apply.Phase{Objects: workload, Await: true}},
	} {
		if *p.into, err = p.from.Freeze(owner); err != nil {
			return nil, err
		}
	}
	return made, nil
}
