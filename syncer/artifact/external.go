package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// managedBy is the label by which an object says who manages it.
const managedBy = "app.kubernetes.io/managed-by"

// keyOf names an ExternalArtifact.
func keyOf(namespace, name string) source.Key {
	return source.Key{Kind: sourcev1.ExternalArtifactKind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// fileOf is the name of the archive of a content.
func fileOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") + ".tar.gz" }

func keysOf[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

// generatorOf is the generator that an ExternalArtifact says it is of.
func generatorOf(o *sourcev1.ExternalArtifact) (types.NamespacedName, bool) {
	ref := o.Spec.SourceRef
	if ref == nil || ref.Kind != generatorv1.ArtifactGeneratorKind || !strings.HasPrefix(ref.APIVersion, generatorv1.GroupVersion.Group+"/") {
		return types.NamespacedName{}, false
	}
	// It is where its generator is.
	return types.NamespacedName{Namespace: o.Namespace, Name: ref.Name}, true
}

// isOurs reports whether a generator made an ExternalArtifact: it has its label, or says so in
// its spec, as one whose generator was created anew, or whose labels somebody took off.
func isOurs(obj *generatorv1.ArtifactGenerator, o *sourcev1.ExternalArtifact) bool {
	if o.Labels[generatorv1.ArtifactGeneratorLabel] == string(obj.UID) {
		return true
	}
	by, ok := generatorOf(o)
	return ok && by == client.ObjectKeyFromObject(obj)
}

// takenError says that an ExternalArtifact is another's.
type takenError struct{ name string }

func (e *takenError) Error() string {
	return fmt.Sprintf("cannot write ExternalArtifact '%s': it is there, and this generator did not make it; delete it, or name the artifact otherwise", e.name)
}

// news is what an event tells.
type news struct{ reason, message string }

// write brings the ExternalArtifacts of what could be made up to date, and hands their
// snapshots over.
func (r *Reconciler) write(ctx context.Context, obj *generatorv1.ArtifactGenerator, f *found, all *compositions) ([]news, error) {
	var told []news
	var errs []error
	inventory := make([]generatorv1.ExternalArtifactReference, 0, len(all.outputs))
	for _, o := range all.outputs {
		before := slices.IndexFunc(obj.Status.Inventory, func(ref generatorv1.ExternalArtifactReference) bool { return ref.Name == o.name })
		if o.snapshot == nil {
			if before >= 0 {
				inventory = append(inventory, obj.Status.Inventory[before])
			}
			continue
		}
		artifact, changed, err := r.publish(ctx, obj, o)
		if err != nil {
			errs = append(errs, err)
			if before >= 0 {
				inventory = append(inventory, obj.Status.Inventory[before])
			}
			continue
		}
		if changed {
			told = append(told, news{meta.SucceededReason, fmt.Sprintf("%s/%s/%s generated with revision %s", sourcev1.ExternalArtifactKind, obj.Namespace, o.name, artifact.Revision)})
		}
		inventory = append(inventory, generatorv1.ExternalArtifactReference{
			Name: o.name, Namespace: obj.Namespace, Digest: artifact.Digest, Filename: path.Base(artifact.Path),
		})
	}
	obj.Status.Inventory = inventory
	return told, errors.Join(errs...)
}

// publish writes one ExternalArtifact as far as it is not as it should be. changed reports
// whether its artifact did.
func (r *Reconciler) publish(ctx context.Context, obj *generatorv1.ArtifactGenerator, o composition) (artifact *meta.Artifact, changed bool, err error) {
	key := keyOf(obj.Namespace, o.name)
	live, err := r.declare(ctx, obj, o, key)
	if err != nil {
		return nil, false, err
	}
	known := r.Sources.Snapshots.Get(key)
	same := known != nil && known.Digest == o.snapshot.Digest && known.Revision == o.snapshot.Revision
	artifact, err = r.pack(ctx, key, o.snapshot, same)
	if err != nil {
		return nil, false, fmt.Errorf("cannot store ExternalArtifact '%s': %w", o.name, err)
	}
	old := live.Status.Artifact
	changed = old == nil || old.Revision != artifact.Revision || old.Digest != artifact.Digest
	if !changed {
		artifact.LastUpdateTime = old.LastUpdateTime
		if r.observed(obj) {
			// The origin is where the files came from when they changed last: a commit that
			// changes others is none of this artifact's.
			artifact.Metadata = old.Metadata
		}
	} else {
		artifact.LastUpdateTime = metav1.NewTime(r.Now())
	}
	before := live.DeepCopy()
	live.Status.Artifact = artifact
	status.SetCondition(live, meta.ReadyCondition, metav1.ConditionTrue, meta.SucceededReason, "Artifact is ready")
	if !equality.Semantic.DeepEqual(before.Status, live.Status) {
		if err := status.Patch(ctx, r.Client, before, live, Manager); err != nil {
			return nil, false, err
		}
	}
	r.remember(obj, o.name, made{version: live.ResourceVersion, declared: declared(obj, o)})
	snapshot := o.snapshot
	if origin := artifact.Metadata[generatorv1.ArtifactOriginRevisionAnnotation]; origin != snapshot.OriginRevision {
		if snapshot, err = snapshot.As(source.About{
			Revision: snapshot.Revision, OriginRevision: origin, File: snapshot.File, Metadata: artifact.Metadata, Time: snapshot.Time,
		}); err != nil {
			return nil, false, err
		}
	}
	if same && !changed {
		r.Sources.Snapshots.Renew(key, snapshot)
	} else {
		// After the status: whoever is woken finds the object.
		r.Sources.Snapshots.Put(key, snapshot)
		if r.Kept != nil {
			if err := r.Kept.Put(ctx, key, live.UID, snapshot, ""); err != nil {
				// It is in use already.
				log.FromContext(ctx).Error(err, "cannot keep an artifact; look at the volume of --snapshot-path", "artifact", key.String())
			}
		}
	}
	return artifact, changed, nil
}

// observed reports whether the generator was reconciled by its present spec.
func (r *Reconciler) observed(obj *generatorv1.ArtifactGenerator) bool {
	for _, c := range obj.Status.Conditions {
		if c.Type == meta.ReadyCondition {
			return c.ObservedGeneration == obj.Generation && c.Status == metav1.ConditionTrue
		}
	}
	return false
}

// pack stores a snapshot, if somebody wants it packed, and describes it. same says that this
// is what was packed before.
func (r *Reconciler) pack(ctx context.Context, key source.Key, snapshot *source.Snapshot, same bool) (*meta.Artifact, error) {
	if r.Storage == nil {
		return &meta.Artifact{
			Path:     path.Join(strings.ToLower(key.Kind), key.Namespace, key.Name, snapshot.File),
			Revision: snapshot.Revision, Digest: snapshot.Digest, Metadata: snapshot.Metadata,
		}, nil
	}
	if stored := r.Storage.Stored(key); same && stored != nil && stored.Revision == snapshot.Revision {
		stored.Metadata = snapshot.Metadata
		return stored, nil
	}
	return r.Storage.Put(ctx, key, snapshot)
}

// declare applies the metadata and spec of an ExternalArtifact, unless they are known to be as
// they should be, and returns the object.
func (r *Reconciler) declare(ctx context.Context, obj *generatorv1.ArtifactGenerator, o composition, key source.Key) (*sourcev1.ExternalArtifact, error) {
	live := &sourcev1.ExternalArtifact{}
	err := r.Client.Get(ctx, key.NamespacedName, live)
	known := r.known(obj, o.name)
	if err == nil && known.version == live.ResourceVersion && known.declared == declared(obj, o) && isOurs(obj, live) {
		return live, nil
	}
	// Who lets go of the name after this look wakes the generator.
	r.remember(obj, o.name, known)
	// The cache may lag behind our last write, or another's.
	live = &sourcev1.ExternalArtifact{}
	err = r.Live.Get(ctx, key.NamespacedName, live)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
	}
	if err == nil && !isOurs(obj, live) {
		return nil, &takenError{o.name}
	}
	if err == nil && known.version == live.ResourceVersion && known.declared == declared(obj, o) {
		return live, nil
	}
	u := &unstructured.Unstructured{Object: declaration(obj, o)}
	// Of one that is there, no other than this: somebody may replace it.
	if err == nil {
		u.SetUID(live.UID)
	}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(Manager), client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("cannot write %s %s: %w", key.Kind, key.NamespacedName, err)
	}
	written := &sourcev1.ExternalArtifact{}
	if err := r.Live.Get(ctx, key.NamespacedName, written); err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
	}
	return written, nil
}

// declaration is what is applied of an ExternalArtifact.
func declaration(obj *generatorv1.ArtifactGenerator, o composition) map[string]any {
	labels, annotations := map[string]any{}, map[string]any{}
	for name, value := range o.labels {
		labels[name] = value
	}
	if m := obj.Spec.CommonMetadata; m != nil {
		for name, value := range m.Labels {
			labels[name] = value
		}
		for name, value := range m.Annotations {
			annotations[name] = value
		}
	}
	labels[managedBy] = Manager
	labels[generatorv1.ArtifactGeneratorLabel] = string(obj.UID)
	metadata := map[string]any{"name": o.name, "namespace": obj.Namespace, "labels": labels}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	return map[string]any{
		"apiVersion": sourcev1.GroupVersion.String(), "kind": sourcev1.ExternalArtifactKind, "metadata": metadata,
		"spec": map[string]any{"sourceRef": map[string]any{
			"apiVersion": generatorv1.GroupVersion.String(), "kind": generatorv1.ArtifactGeneratorKind, "name": obj.Name, "namespace": obj.Namespace,
		}},
	}
}

// declared identifies a declaration.
func declared(obj *generatorv1.ArtifactGenerator, o composition) string {
	data, _ := json.Marshal(declaration(obj, o)) // it has strings only
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (r *Reconciler) known(obj *generatorv1.ArtifactGenerator, name string) made {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made[client.ObjectKeyFromObject(obj)][name]
}

func (r *Reconciler) remember(obj *generatorv1.ArtifactGenerator, name string, m made) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := client.ObjectKeyFromObject(obj)
	if r.made[of] == nil {
		r.made[of] = map[string]made{}
	}
	r.made[of][name] = m
}

// claimants are the generators that made the ExternalArtifact of a name, or wanted to: a spec may
// have a pattern that only its sources make names of.
func (r *Reconciler) claimants(name types.NamespacedName) []types.NamespacedName {
	r.mu.Lock()
	defer r.mu.Unlock()
	var by []types.NamespacedName
	for of, all := range r.made {
		if _, ok := all[name.Name]; ok && of.Namespace == name.Namespace {
			by = append(by, of)
		}
	}
	return by
}

// asWritten reports whether an ExternalArtifact is as this process wrote it last.
func (r *Reconciler) asWritten(by types.NamespacedName, o client.Object) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made[by][o.GetName()].version == o.GetResourceVersion()
}

// collect deletes the ExternalArtifacts that the generator made and does not declare any more.
func (r *Reconciler) collect(ctx context.Context, obj *generatorv1.ArtifactGenerator, all *compositions) ([]news, error) {
	// The label is the record of what was made: the status may not have it yet.
	list := &sourcev1.ExternalArtifactList{}
	if err := r.Client.List(ctx, list, client.InNamespace(obj.Namespace), client.MatchingLabels{generatorv1.ArtifactGeneratorLabel: string(obj.UID)}); err != nil {
		return nil, fmt.Errorf("cannot list ExternalArtifacts: %w", err)
	}
	names := r.names(obj)
	for _, o := range list.Items {
		names[o.Name] = true
	}
	for _, o := range all.outputs {
		delete(names, o.name)
	}
	var told []news
	for _, name := range slices.Sorted(keysOf(names)) {
		gone, err := r.remove(ctx, obj, keyOf(obj.Namespace, name))
		if err != nil {
			return told, err
		}
		if gone {
			told = append(told, news{"GarbageCollectionSucceeded", fmt.Sprintf("%s/%s/%s deleted", sourcev1.ExternalArtifactKind, obj.Namespace, name)})
		}
	}
	return told, nil
}

// names are those of what a generator made, as far as its status and this process know.
func (r *Reconciler) names(obj *generatorv1.ArtifactGenerator) map[string]bool {
	names := map[string]bool{}
	for _, ref := range obj.Status.Inventory {
		if ref.Namespace == obj.Namespace {
			names[ref.Name] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.made[client.ObjectKeyFromObject(obj)] {
		names[name] = true
	}
	return names
}

// remove deletes one that the generator made, and no other.
func (r *Reconciler) remove(ctx context.Context, obj *generatorv1.ArtifactGenerator, key source.Key) (bool, error) {
	live := &sourcev1.ExternalArtifact{}
	err := r.Live.Get(ctx, key.NamespacedName, live)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
	}
	deleted := false
	if err == nil && isOurs(obj, live) {
		if r.MayDelete != nil {
			if err := r.MayDelete(); err != nil {
				return false, err
			}
		}
		uid := live.UID
		err := r.Client.Delete(ctx, live, client.Preconditions{UID: &uid})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return false, fmt.Errorf("cannot delete %s %s: %w", key.Kind, key.NamespacedName, err)
		}
		deleted = err == nil
	}
	r.mu.Lock()
	delete(r.made[client.ObjectKeyFromObject(obj)], key.Name)
	r.mu.Unlock()
	if err == nil && !isOurs(obj, live) {
		return false, nil // what there is under its name is another's by now
	}
	return deleted, r.drop(key)
}

// drop takes back what was handed over of an artifact, and deletes what is kept and packed of it.
func (r *Reconciler) drop(key source.Key) error {
	r.Sources.Snapshots.Put(key, nil)
	var errs []error
	if r.Kept != nil {
		errs = append(errs, r.Kept.Remove(key))
	}
	if r.Storage != nil {
		errs = append(errs, r.Storage.Remove(key))
	}
	return errors.Join(errs...)
}
