package kustomization

import (
	"context"
	"encoding/hex"
	"slices"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/syncer/compose"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
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

// beside are what Clusters may be given next, or count as having, where none of them has it: a process that has begun
// since that was applied does not know otherwise which Clusters it lacks. A revision that cannot be read keeps nobody
// else from what he may have.
func (r *Reconciler) beside(ctx context.Context, run *run) (list []*compose.Rendering, missing map[string]string) {
	f, key := run.composed.facts, run.inputs.Key()
	known, failed := run.known.built(key)
	of := revisions{snapshot: run.snapshot, rendering: run.rendering, inputs: run.inputs}
	missing = map[string]string{}
	for _, revision := range run.governed.besides() {
		switch {
		case revision == f.Newest.Revision, f.Older[revision] != nil, known[revision]:
			continue
		case sameRevision(revision, f.Newest.Revision):
			list = append(list, f.Newest.As(revision))
			continue
		case failed[revision]:
			missing[revision] = meta.BuildFailedReason
			continue
		}
		switch from, problem, err := r.older(ctx, run.Obj, revision, f.Newest, run.governed, of); {
		case err != nil:
			log.FromContext(ctx).Error(err, "cannot tell which Clusters a revision has", "revision", revision)
		case problem.reason != "":
			missing[revision] = problem.reason
		default:
			list = append(list, from)
		}
	}
	return list, missing
}

// built are the revisions of which it is known what they declare, and failed those that cannot be built with these inputs.
func (p *progress) built(key string) (known, failed map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, failed = map[string]bool{}, map[string]bool{}
	if p.composition == nil {
		return known, failed
	}
	for revision := range p.composition.versions {
		known[revision] = true
	}
	for revision, reason := range p.composition.missing {
		failed[revision] = reason == meta.BuildFailedReason && p.composition.inputs == key
	}
	return known, failed
}

// newest is the revision that was composed last with what Clusters may have; empty if that was of another source, or of
// other inputs.
func (p *progress) newest(from source.Key, key string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.composition; c != nil && c.source == from && c.inputs == key {
		return c.newest
	}
	return ""
}

// builtLast is the revision that was composed last with what Clusters may have, of this source and with these inputs; empty if
// nobody knows. A process before this one composed what the status has as the last attempt.
func (run *run) builtLast() string {
	if newest := run.known.newest(sourceKey(run.Obj), run.inputs.Key()); newest != "" {
		return newest
	}
	return status.BuiltLast(run.Obj.Status.History, run.builtWith())
}

// builtWith identifies the source and the inputs for another process.
func (run *run) builtWith() string {
	from := sourceKey(run.Obj)
	of := digest.Of(from.Kind, from.NamespacedName.String(), run.inputs.Key()).Short()
	return hex.EncodeToString(of[:])
}

// retains keeps the revisions that Clusters may have, and those of which one may stand in for a newest one that cannot be
// built: last is the one that was built last.
func (r *Reconciler) retains(run *run, last string) {
	key := sourceKey(run.Obj)
	var also []string
	if run.governed != nil && r.Sources.Snapshots.At(key, run.snapshot.Revision) != nil {
		also = []string{last, run.snapshot.Revision}
	}
	r.Sources.Snapshots.Retain(holderOf(run.name()), run.governed.needs(key, also...)...)
}

// isUnbuilt reports whether the last reconcile could not build what it was to apply.
func isUnbuilt(obj *kustomizev1.Kustomization) bool {
	ready := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
	return ready != nil && (ready.Reason == meta.BuildFailedReason || ready.Reason == meta.ArtifactFailedReason)
}

// foundOut reports whether something is known by now of a revision that was not there.
func (r *Reconciler) foundOut(run *run) bool {
	run.known.mu.Lock()
	composition := run.known.composition
	run.known.mu.Unlock()
	if composition == nil {
		return false
	}
	for revision, reason := range composition.missing {
		if reason != meta.BuildFailedReason && (r.Sources.Snapshots.At(composition.source, revision) != nil || r.missing(composition.source, revision).reason != reason) {
			return true
		}
	}
	return false
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
	p.composition, p.older, p.versions, p.running, p.outstanding, p.withheld, p.idle = nil, nil, nil, nil, nil, nil, ""
}
