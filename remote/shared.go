package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// What layers are rendered from is the same for all their children. It is read,
// parsed and encoded once.

// referenceHolds is how long a Secret or ConfigMap that was read is used for the next
// children. Layers looks for changes.
const referenceHolds = 5 * time.Second

// referenceCache reads Secrets and ConfigMaps that layers refer to. It is safe for
// concurrent use. Objects that it returns must not be modified in depth.
type referenceCache struct {
	client.Reader
	now func() time.Time

	mu   sync.Mutex
	read map[referenceKey]cachedReference
}

type referenceKey struct {
	name   types.NamespacedName
	secret bool
}

type cachedReference struct {
	at     time.Time
	object client.Object
}

// Get reads an object, or returns the one that was read a moment ago. An absence is
// not cached.
func (h *referenceCache) Get(ctx context.Context, name types.NamespacedName, into client.Object, opts ...client.GetOption) error {
	_, secret := into.(*corev1.Secret)
	key, now := referenceKey{name, secret}, h.now()
	h.mu.Lock()
	found, ok := h.read[key]
	h.mu.Unlock()
	if ok && now.Sub(found.at) < referenceHolds {
		switch into := into.(type) {
		case *corev1.Secret:
			*into = *found.object.(*corev1.Secret)
			return nil
		case *corev1.ConfigMap:
			*into = *found.object.(*corev1.ConfigMap)
			return nil
		}
	}
	if err := h.Reader.Get(ctx, name, into, opts...); err != nil {
		return err
	}
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
		h.read[key] = cachedReference{now, &kept}
	case *corev1.ConfigMap:
		kept := *into
		h.read[key] = cachedReference{now, &kept}
	}
	return nil
}

// contents tell whether what a layer reads of its source is the same in another
// snapshot. Which files a layer reads does not depend on the child.
type contents struct {
	mu     sync.Mutex
	layers map[types.UID]content
}

// content of a layer as of one generation.
type content struct {
	generation int64
	// snapshot is the one that was looked at last. key changes only when something in
	// reads has changed.
	snapshot, key string
	reads         *render.ReadSet
}

// of identifies what a layer reads of a snapshot.
func (c *contents) of(layer *v1alpha1.Layer, s *source.Snapshot) string {
	c.mu.Lock()
	known, ok := c.layers[layer.UID]
	c.mu.Unlock()
	if !ok || known.generation != layer.Generation {
		return s.Digest
	}
	if known.snapshot == s.Digest {
		return known.key
	}
	if same, err := known.reads.Unchanged(s); err != nil || !same {
		return s.Digest
	}
	known.snapshot = s.Digest
	c.put(layer.UID, known)
	return known.key
}

// note remembers what a rendering of a layer read.
func (c *contents) note(layer *v1alpha1.Layer, s *source.Snapshot, key string, reads *render.ReadSet) {
	c.put(layer.UID, content{layer.Generation, s.Digest, key, reads})
}

func (c *contents) put(uid types.UID, known content) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.layers == nil || len(c.layers) > 1000 {
		c.layers = map[types.UID]content{} // layers come and go; what is dropped is computed again
	}
	c.layers[uid] = known
}

// manifest caches the agent's objects as layers push them.
type manifest struct {
	mu     sync.Mutex
	layers map[string]*agentManifest
}

// agentManifest is shared by all children of a layer and must not be modified.
type agentManifest struct {
	definitions, ground, workload apply.Phase
}

// mostManifests bounds what is kept. Layers with agents are few.
const mostManifests = 32

func (m *manifest) of(layer *v1alpha1.Layer, image string) (*agentManifest, error) {
	agent := layer.Spec.Agent
	if agent.Image != "" {
		image = agent.Image
	}
	args := agent.Args
	if agent.Decryption != nil {
		args = append([]string{"--sops-age-secret=" + v1alpha1.AgentNamespace + "/" + decryptionSecret}, args...)
	}
	text, err := json.Marshal([]any{layer.Namespace, layer.Name, image, args})
	if err != nil {
		return nil, fmt.Errorf("cannot encode the agent of layer %s: %w", layer.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.layers[string(text)]; known != nil {
		return known, nil
	}
	made, err := makeManifest(ownerOf(layer.Namespace, layer.Name), image, args)
	if err != nil {
		return nil, err
	}
	if m.layers == nil || len(m.layers) >= mostManifests {
		m.layers = map[string]*agentManifest{}
	}
	m.layers[string(text)] = made
	return made, nil
}

func makeManifest(owner apply.Owner, image string, args []string) (*agentManifest, error) {
	definitions, err := deploy.CRDs()
	if err != nil {
		return nil, err
	}
	ground, workload, err := deploy.Agent(image, args)
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
