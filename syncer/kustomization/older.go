package kustomization

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/compose"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// olderRendering is what a revision declares that is not the newest one. The objects are
// shared, and not changed.
type olderRendering struct {
	key     string
	reads   *render.ReadSet
	objects []*unstructured.Unstructured
	// plain are the values that were decrypted for it. Who applies the objects later decrypts
	// nothing of them, and may have them quoted all the same.
	plain []string
}

// olderObjects are those of a rendering that was made of the same files with the same
// inputs, nil if there is none.
func (p *progress) olderObjects(key, revision string, files render.Files) []*unstructured.Unstructured {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	of := make([]olderRendering, 0, len(p.older))
	for _, o := range p.older {
		if o.key == key {
			of = append(of, o)
		}
	}
	p.mu.Unlock()
	for _, o := range of {
		if same, err := o.reads.Unchanged(files); err == nil && same {
			p.mu.Lock()
			p.older[revision] = o
			p.mu.Unlock()
			return o.objects
		}
	}
	return nil
}

// rememberOlder keeps a rendering of a revision that was made with these inputs.
func (p *progress) rememberOlder(inputs render.Build, key, revision string, r *render.Rendering) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.older == nil {
		p.older = map[string]olderRendering{}
	}
	o := olderRendering{key: key, reads: r.Reads, objects: r.Objects}
	if inputs.Decrypter != nil {
		o.plain = slices.Clone(inputs.Decrypter.Plain())
	}
	p.older[revision] = o
}

// olderPlain are the values that were decrypted for older revisions.
func (p *progress) olderPlain() []string {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, o := range p.older {
		all = append(all, o.plain...)
	}
	return all
}

// keepOlder forgets the renderings of revisions that no Cluster may have any more.
func (p *progress) keepOlder(used map[string]*compose.Rendering) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for revision := range p.older {
		if used[revision] == nil {
			delete(p.older, revision)
		}
	}
}

// judgedVersion is what was declared of a Cluster when its step of Kubernetes' version was
// found to be right.
func (p *progress) judgedVersion(cluster types.NamespacedName) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.versions[cluster]
}

// judgedVersions replaces what was found out about the steps of all Clusters.
func (p *progress) judgedVersions(judged map[types.NamespacedName]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.versions = judged
}

// ungoverned forgets what only a Rollout asks for.
func (p *progress) ungoverned() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.composition, p.older, p.versions, p.running, p.outstanding, p.idle = nil, nil, nil, nil, nil, ""
}
