package remote

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// reasoned is a failure of a layer on a child, with its stable reason.
type reasoned struct {
	reason string
	err    error
}

func (e *reasoned) Error() string { return e.err.Error() }
func (e *reasoned) Unwrap() error { return e.err }

func because(reason string, err error) error { return &reasoned{reason: reason, err: err} }

// seeding is the push of one layer into one child.
type seeding struct {
	*push
	layer *v1alpha1.Layer
	vars  map[string]string
	notes *layerNotes
	// sensitive values among vars.
	sensitive []string
	snapshot  *source.Snapshot
	// content identifies what the layer reads of the snapshot.
	content string
	// credentials are the Secrets to deliver, as they are in the parent.
	credentials []credential
	// components are what spec.providers is rendered from.
	components components
	// settled is that of the layer's record in the child.
	settled bool
}

// credential is a Secret that is delivered under a name in the child.
type credential struct {
	name   string
	secret *corev1.Secret
}

// gather reads what the layer is rendered from.
func (p *push) gather(ctx context.Context, s *seeding) error {
	if ref := s.layer.Spec.SourceRef; ref != nil {
		if s.snapshot = p.Snapshots.Get(layerSource(s.layer)); s.snapshot == nil {
			return because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("%s %s has not been fetched yet", ref.Kind, ref.Name))
		}
		s.content = p.contents.of(s.layer, s.snapshot)
	}
	for _, c := range credentialsOf(s.layer) {
		secret := &corev1.Secret{}
		name := types.NamespacedName{Namespace: s.layer.Namespace, Name: c.SecretRef.Name}
		if err := p.references.Get(ctx, name, secret); err != nil {
			return because(v1alpha1.ReasonCredentialMissing, fmt.Errorf("cannot read Secret %s: %w", name, err))
		}
		s.credentials = append(s.credentials, credential{c.Name, secret})
	}
	if err := p.gatherComponents(ctx, s); err != nil {
		return err
	}
	if b := s.layer.Spec.PostBuild; b != nil {
		for _, ref := range b.SubstituteFrom {
			vars, err := render.LoadVariables(ctx, &p.references, s.layer.Namespace, ref.Kind, ref.Name, ref.Optional)
			if err != nil {
				return because(v1alpha1.ReasonBuildFailed, err)
			}
			maps.Copy(s.vars, vars)
			s.sensitive = append(s.sensitive, render.Sensitive(ref.Kind, vars)...)
		}
		maps.Copy(s.vars, b.Substitute)
	}
	return nil
}

// credentialsOf are the Secrets that a layer delivers: its credentials, and the keys
// that its agent decrypts with.
func credentialsOf(layer *v1alpha1.Layer) []v1alpha1.CredentialReference {
	all := layer.Spec.Credentials
	if agent := layer.Spec.Agent; agent != nil && agent.Decryption != nil {
		all = append(slices.Clone(all), v1alpha1.CredentialReference{Name: decryptionSecret, SecretRef: agent.Decryption.SecretRef})
	}
	return all
}

// decryptionSecret has the keys of a child's agent.
const decryptionSecret = "cascade-decryption"

// inputs identifies everything that the rendering depends on.
func (s *seeding) inputs() string {
	h := sha256.New()
	e := json.NewEncoder(h)
	_ = e.Encode([]any{s.layer.UID, s.layer.Generation, s.requested(), s.content, s.vars, s.AgentImage,
		s.child.Annotations[v1alpha1.ApprovePruneAnnotation]})
	for _, c := range s.credentials {
		_ = e.Encode([]any{c.name, c.secret.UID, c.secret.ResourceVersion})
	}
	s.components.identify(e)
	return hex.EncodeToString(h.Sum(nil))
}

func (s *seeding) requested() string { return s.layer.Annotations[fluxmeta.ReconcileRequestAnnotation] }

func ownerOf(namespace, layer string) apply.Owner {
	return apply.Owner{FieldManager: seedManager, LabelGroup: v1alpha1.LayerLabelGroup, Name: layer, Namespace: namespace}
}

// phases renders the layer in the order in which it is pushed: CRDs; namespace,
// rights, credentials and variables; the agent; the providers; what Git declares for
// the child, its sources before the rest. The agent comes before the providers, so
// that it reports their progress. They come before the objects of Git, which may need
// them.
func (s *seeding) phases(ctx context.Context) ([]apply.Phase, error) {
	var phases []apply.Phase
	var own []*unstructured.Unstructured
	var workload apply.Phase
	if s.layer.Spec.Agent != nil {
		m, err := s.manifest.of(s.layer, s.AgentImage)
		if err != nil {
			return nil, because(v1alpha1.ReasonBuildFailed, err)
		}
		phases, workload = append(phases, m.definitions, m.ground), m.workload
		own = append(own, variablesObject(s.push.vars))
	}
	for _, c := range s.credentials {
		own = append(own, credentialObject(c.name, c.secret))
	}
	phases = append(phases, apply.Phase{Objects: own}, workload)
	providers, err := s.providerPhases()
	if err != nil {
		return nil, err
	}
	phases = append(phases, providers...)
	if s.snapshot == nil {
		return phases, nil
	}
	rendering, err := render.Render(ctx, s.snapshot, render.Build{
		Path: s.layer.Spec.Path, Variables: s.vars, Sensitive: s.sensitive, NoDigest: true,
		Workers: worker.For(s.Workers, "Layer/"+s.layer.Namespace+"/"+s.layer.Name),
	})
	if err != nil {
		return nil, because(v1alpha1.ReasonBuildFailed, err)
	}
	s.contents.note(s.layer, s.snapshot, s.content, rendering.Reads)
	// Sources come before the objects that refer to them.
	var first, then []*unstructured.Unstructured
	for _, u := range rendering.Objects {
		switch u.GroupVersionKind().Group {
		case kustomizev1.GroupVersion.Group, helmv2.GroupVersion.Group:
			then = append(then, u)
		default:
			first = append(first, u)
		}
	}
	return append(phases, apply.Phase{Objects: first}, apply.Phase{Objects: then}), nil
}

func variablesObject(vars map[string]string) *unstructured.Unstructured {
	data := make(map[string]any, len(vars))
	for k, v := range vars {
		data[k] = v
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": v1alpha1.VariablesConfigMap, "namespace": v1alpha1.AgentNamespace},
		"data":     data,
	}}
}

func credentialObject(name string, from *corev1.Secret) *unstructured.Unstructured {
	data := make(map[string]any, len(from.Data))
	for k, v := range from.Data {
		data[k] = base64.StdEncoding.EncodeToString(v)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": name, "namespace": v1alpha1.AgentNamespace},
		"type":     string(from.Type),
		"data":     data,
	}}
}

// digestOf identifies a rendering.
func digestOf(phases []apply.Phase) (string, error) {
	h := sha256.New()
	e := json.NewEncoder(h)
	for _, p := range phases {
		if d := p.Digest(); d != "" {
			h.Write([]byte(d))
			continue
		}
		for _, u := range p.Objects {
			if err := e.Encode(u.Object); err != nil {
				return "", fmt.Errorf("cannot encode %s %s: %w", u.GetKind(), u.GetName(), err)
			}
		}
		if p.Packed != nil {
			_ = e.Encode(p.Packed.Digest())
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// bring pushes the layer into the child. It returns nil once the layer is in place
// and, where the layer says wait, healthy. It keeps entry current, the layer's entry
// in the Child's status. A layer that is known to be in place is not applied again
// before its interval has passed, unless a reconcile is requested.
func (s *seeding) bring(ctx context.Context, entry *v1alpha1.ChildLayer) error {
	ctx, cancel := context.WithTimeout(ctx, s.layer.Spec.Timeout.Duration)
	defer cancel()
	inputs, now := s.inputs(), s.Now()
	decided := entry.Ready || entry.Reason == v1alpha1.ReasonPruneBlocked
	if entry.Digest != "" {
		entry.DeletionPolicy = s.layer.Spec.DeletionPolicy // the present policy counts for what is in place
	}
	if s.notes.inputs == inputs && decided && now.Before(s.notes.due) {
		if s.snapshot != nil {
			entry.Revision = s.snapshot.Revision // of another commit with the same content
		}
		if entry.Ready {
			return nil
		}
		return because(entry.Reason, errors.New(entry.Message))
	}
	phases, err := s.phases(ctx)
	if err != nil {
		return err
	}
	digest, err := digestOf(phases)
	if err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	if entry.Digest == "" && len(entry.Inventory) == 0 {
		if err := s.adopt(ctx, entry, digest); err != nil {
			return err
		}
	}
	asked := s.notes.inputs != "" && s.notes.requested != s.requested()
	switch {
	case entry.Digest != digest:
		entry.Ready = false
	case s.notes.inputs == "" && (entry.Ready || unsent(entry.Reason)):
		// After a restart the record counts. The comparisons with the children are spread
		// over the interval.
		s.notes.due = now.Add(time.Duration(s.Rand() * float64(s.layer.Spec.Interval.Duration)))
	}
	if entry.Digest != digest || asked || !now.Before(s.notes.due) || entry.Reason == v1alpha1.ReasonPruneBlocked {
		// A change sends only what changed. A comparison of everything with the child is
		// made when it is due or requested.
		known := s.notes.sent
		if asked || !now.Before(s.notes.due) || entry.Reason == v1alpha1.ReasonPruneBlocked {
			known = nil
		}
		err := s.apply(ctx, entry, phases, digest, known)
		if err != nil && reasonOf(err) != v1alpha1.ReasonPruneBlocked {
			return err
		}
		s.notes.due = now.Add(s.jittered(s.layer.Spec.Interval.Duration))
		s.notes.inputs, s.notes.requested = inputs, s.requested()
		if err != nil {
			return err
		}
	}
	s.notes.inputs, s.notes.requested = inputs, s.requested()
	if s.notes.sent == nil {
		// An earlier process applied these phases, so a change need not send all of them.
		if s.notes.sent, err = apply.SentOf(ownerOf(s.layer.Namespace, s.layer.Name), phases); err != nil {
			return because(v1alpha1.ReasonSeedFailed, err)
		}
	}
	if s.snapshot != nil {
		entry.Revision = s.snapshot.Revision
	}
	if !s.layer.Spec.Wait || entry.Ready {
		return nil
	}
	return s.await(ctx, entry, phases)
}

// unsent reports whether a layer with this reason was not pushed since it was in
// place: what failed comes before the push or after it.
func unsent(reason string) bool {
	switch reason {
	case v1alpha1.ReasonSourceNotReady, v1alpha1.ReasonCredentialMissing, v1alpha1.ReasonDependencyNotReady, v1alpha1.ReasonClusterNotReady,
		v1alpha1.ReasonPaused, v1alpha1.ReasonBuildFailed, v1alpha1.ReasonProgressing, v1alpha1.ReasonHealthCheckFailed:
		return true
	}
	return false
}

// await is nil once every object of the layer is healthy.
func (s *seeding) await(ctx context.Context, entry *v1alpha1.ChildLayer, phases []apply.Phase) error {
	// The rights were granted when the layer was pushed. Reading health writes nothing.
	if err := s.recognize(ctx); err != nil {
		return err
	}
	cluster, err := s.link.cluster(s.link.caller())
	if err != nil {
		return because(v1alpha1.ReasonUnreachable, err)
	}
	found, err := apply.New(cluster, ownerOf(s.layer.Namespace, s.layer.Name), nil, s.Now).Health(ctx, slices.DeleteFunc(declared(phases), still), nil)
	if apierrors.IsForbidden(err) {
		return s.permit(ctx, phases)
	}
	if err != nil {
		return because(v1alpha1.ReasonUnreachable, err)
	}
	waited := time.Duration(0)
	if entry.Reason == v1alpha1.ReasonProgressing || entry.Reason == v1alpha1.ReasonHealthCheckFailed {
		waited = s.Now().Sub(entry.Since.Time)
	}
	switch verdict := health.Judge(found, true); {
	case verdict == health.Healthy:
		return nil
	case verdict == health.Stalled || waited > s.layer.Spec.Timeout.Duration, entry.Reason == v1alpha1.ReasonHealthCheckFailed:
		return because(v1alpha1.ReasonHealthCheckFailed, errors.New(found.Message()))
	}
	return because(v1alpha1.ReasonProgressing, errors.New("waiting for "+found.Message()))
}

// declared are the entries of all phases.
func declared(phases []apply.Phase) []inventory.Entry {
	var entries []inventory.Entry
	for _, p := range phases {
		entries = append(entries, p.Entries()...)
	}
	return entries
}

// still reports whether an object is healthy because it exists: it has no status, or
// a status that the apply waited for.
func still(e inventory.Entry) bool {
	switch e.Group {
	case "rbac.authorization.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io":
		return true
	case "":
		return e.Kind == "ConfigMap" || e.Kind == "Secret" || e.Kind == "ServiceAccount" || e.Kind == "Namespace"
	}
	return false
}

// permit makes sure that the parent has the rights to push the phases.
func (s *seeding) permit(ctx context.Context, phases []apply.Phase) error {
	var objects []*unstructured.Unstructured
	defined := map[schema.GroupKind]string{}
	for _, p := range phases {
		objects = append(objects, p.Outline()...)
		maps.Copy(defined, p.Defines())
	}
	objects = append(objects, s.components.asked...)
	if s.link.caller() == nil {
		if err := s.link.reread(ctx, s.request); err != nil {
			return err
		}
	}
	var unsure error
	rules := rights(objects, s.resources(defined, &unsure))
	if unsure != nil {
		return because(v1alpha1.ReasonUnreachable, unsure)
	}
	return s.ensure(ctx, layerRole(s.layer.Namespace, s.layer.Name), rules)
}

// resources names the resource of a kind, from the definitions of the layer or from
// the discovery of the child. unsure is set if discovery failed: a kind that could
// not be looked up may exist.
func (s *seeding) resources(defined map[schema.GroupKind]string, unsure *error) resourceOf {
	var mapper meta.RESTMapper
	return func(gk schema.GroupKind) (string, bool) {
		if r := defined[gk]; r != "" {
			return r, true
		}
		if mapper == nil {
			cluster, err := s.link.cluster(s.link.caller())
			if err != nil {
				*unsure = err
				return "", false
			}
			mapper = cluster.RESTMapper()
		}
		m, err := mapper.RESTMapping(gk)
		if err != nil {
			if !meta.IsNoMatchError(err) {
				*unsure = err
			}
			return "", false
		}
		return m.Resource.Resource, true
	}
}

// survey reads what is in a child that gets a layer for the first time. That takes
// more rights than the layer has, so it uses the kubeconfig, with which the child was
// just reached.
func (s *seeding) survey(ctx context.Context, owned []inventory.Entry, phases []apply.Phase) (*apply.Survey, error) {
	if len(owned) > 0 || s.link.admin == nil {
		return nil, nil
	}
	cluster, err := s.link.cluster(s.link.admin)
	if err != nil {
		return nil, because(v1alpha1.ReasonUnreachable, err)
	}
	survey, err := cluster.Survey(ctx, phases)
	if err != nil {
		return nil, because(v1alpha1.ReasonUnreachable, err)
	}
	return survey, nil
}

func (s *seeding) apply(ctx context.Context, entry *v1alpha1.ChildLayer, phases []apply.Phase, digest string, known apply.Sent) error {
	owned, err := entriesOf(entry.Inventory)
	if err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	survey, err := s.survey(ctx, owned, phases)
	if err != nil {
		return err
	}
	firstSync, err := s.firstSync(ctx, phases)
	if err != nil {
		return err
	}
	// The identity of the child and the inventory ahead are recorded before the first
	// write to the child.
	if ahead := inventory.Union(owned, declared(phases)); s.recorded.Status.Identity == nil || !inventory.Equal(ahead, owned) {
		entry.Inventory = refsOf(ahead)
		if err := s.writeStatus(ctx); err != nil {
			return because(v1alpha1.ReasonSeedFailed, err)
		}
	}
	if err := s.permit(ctx, phases); err != nil {
		return err
	}
	as := s.link.caller()
	if s.layer.Spec.Prune && len(inventory.Candidates(owned, declared(phases))) > 0 || firstSync != nil && !firstSync.Settled {
		// A prune plan depends on what an object holds and on what needs it. Whether a
		// Cluster is complete depends on the objects that it refers to. The parent's own
		// account may read neither.
		if _, err := s.link.administrator(ctx, s.request); err != nil {
			return because(v1alpha1.ReasonSeedFailed, err)
		}
		as = s.link.admin
	}
	cluster, err := s.link.cluster(as)
	if err != nil {
		return because(v1alpha1.ReasonUnreachable, err)
	}
	note := func(ctx context.Context, entries []inventory.Entry) error {
		entry.Inventory = refsOf(entries)
		// Both copies, ours first. Either alone suffices to find what is about to be
		// created.
		if err := s.writeStatus(ctx); err != nil {
			return err
		}
		return s.writeRecord(ctx, cluster, *entry)
	}
	s.resume(phases, digest)
	s.notes.sent = nil // not known until this push is complete
	res, err := apply.New(cluster, ownerOf(s.layer.Namespace, s.layer.Name), nil, s.Now).Sync(ctx, phases, apply.Options{
		Owned: owned, Record: note, Prune: s.layer.Spec.Prune, LowerTier: true,
		Target:    s.child.Status.Identity.KubeSystemUID,
		Approved:  s.child.Annotations[v1alpha1.ApprovePruneAnnotation],
		Undecided: undecided(entry),
		FirstSync: firstSync,
		Sent:      known,
		Survey:    survey,
	})
	s.advance(phases, digest, res)
	err = render.Mask(err, s.sensitive)
	entry.Inventory = refsOf(res.Inventory)
	var waiting *apply.WaitError
	var prune *apply.PruneError
	switch {
	case errors.As(err, &waiting) && waiting.Phase != "":
		return because(v1alpha1.ReasonProviderNotReady, err)
	case errors.As(err, &waiting):
		return because(v1alpha1.ReasonAgentNotReady, err)
	case errors.As(err, &prune):
		return because(v1alpha1.ReasonPruneFailed, err)
	case err != nil:
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	s.notes.sent = res.Sent
	if res.Creation.Blocked() {
		if err := s.link.dropAdmin(ctx); err != nil {
			return because(v1alpha1.ReasonSeedFailed, err)
		}
		entry.Held = &v1alpha1.Held{Create: res.Creation.Hold()}
		return because(v1alpha1.ReasonCreateHeld, errors.New(res.Creation.Message()))
	}
	s.settled = s.settled || len(inventory.ClustersAmong(declared(phases))) > 0
	entry.Digest = digest
	entry.DeletionPolicy = s.layer.Spec.DeletionPolicy
	if s.snapshot != nil {
		entry.Revision = s.snapshot.Revision
	}
	if err := s.writeRecord(ctx, cluster, *entry); err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	if err := s.link.dropAdmin(ctx); err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	if res.Plan.Blocked() {
		entry.Held = &v1alpha1.Held{Prune: res.Plan.Hold()}
		return because(v1alpha1.ReasonPruneBlocked, errors.New(res.Plan.Message(s.named())))
	}
	return nil
}

// firstSyncCreate, among the arguments of a layer's agent, says that a child without
// records never had a Cluster.
const firstSyncCreate = "--first-sync=create"

// firstSync reads the child's record of the first sync, for the Clusters that the
// layer declares; nil if it declares none. A management cluster that a parent pushes
// to may have been lost and rebuilt. Then the push must not create Clusters that run
// already.
func (s *seeding) firstSync(ctx context.Context, phases []apply.Phase) (*inventory.FirstSync, error) {
	var objects []*unstructured.Unstructured
	for _, p := range phases {
		objects = append(objects, p.Objects...)
	}
	if inventory.FleetOf(objects).Empty() {
		return nil, nil
	}
	// The parent's own account may not read the record of the child's agent.
	admin, err := s.link.administrator(ctx, s.request)
	if err != nil {
		return nil, err
	}
	record, err := firstsync.Read(ctx, admin)
	if err != nil {
		return nil, because(v1alpha1.ReasonSeedFailed, err)
	}
	if record == nil {
		record = &inventory.FirstSync{Elsewhere: true}
	}
	layers, err := s.link.layerRecords(ctx)
	if err != nil {
		return nil, because(v1alpha1.ReasonSeedFailed, err)
	}
	mine := layers[s.recordKey()]
	if mine.err != nil {
		return nil, because(v1alpha1.ReasonSeedFailed, mine.err)
	}
	s.settled = mine.Settled
	record.Settled = record.Settled || s.settled || s.layer.Spec.Agent != nil && slices.Contains(s.layer.Spec.Agent.Args, firstSyncCreate)
	return record, nil
}

// layerRecord is a layer's record in the child itself. A parent that lost its own
// record adopts it and rewrites nothing.
type layerRecord struct {
	Revision  string                    `json:"revision,omitempty"`
	Digest    string                    `json:"digest,omitempty"`
	Inventory []v1alpha1.InventoryEntry `json:"inventory"`
	// ClusterUID is the variable cluster_uid. In a parent that restored the Cluster
	// from a backup the Cluster has another UID.
	ClusterUID string `json:"clusterUID,omitempty"`
	// Settled: the layer was applied with all the Clusters that it declares. From then
	// on its Clusters are created without approval.
	Settled bool `json:"settled,omitempty"`
	// err is why the record cannot be used.
	err error
}

func (s *seeding) recordKey() string { return s.layer.Namespace + "." + s.layer.Name }

func (s *seeding) writeRecord(ctx context.Context, cluster *apply.Cluster, entry v1alpha1.ChildLayer) error {
	text, err := json.Marshal(layerRecord{Revision: entry.Revision, Digest: entry.Digest, Inventory: entry.Inventory, ClusterUID: s.push.vars["cluster_uid"], Settled: s.settled})
	if err != nil {
		return fmt.Errorf("cannot encode seed record: %w", err)
	}
	cm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": v1alpha1.SeedConfigMap, "namespace": v1alpha1.AgentNamespace},
		"data":     map[string]any{s.recordKey(): string(text)},
	}}
	// A manager for each layer, so that each owns its key only.
	manager := seedManager + "." + s.recordKey()
	if len(manager) > 128 {
		sum := sha256.Sum256([]byte(manager))
		manager = seedManager + "." + hex.EncodeToString(sum[:8])
	}
	if _, err := cluster.Write(ctx, cm, manager); err != nil {
		return fmt.Errorf("cannot write seed record in the child: %w", err)
	}
	return nil
}

// layerRecords reads the records of all layers in the child.
func (l *link) layerRecords(ctx context.Context) (map[string]layerRecord, error) {
	cm := &corev1.ConfigMap{}
	path := "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps/" + v1alpha1.SeedConfigMap
	err := l.caller().do(ctx, "GET", path, nil, plainContent()).Into(cm)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read seed record in the child: %w", err)
	}
	records := map[string]layerRecord{}
	for key, text := range cm.Data {
		var found layerRecord
		if err := json.Unmarshal([]byte(text), &found); err != nil {
			found.err = fmt.Errorf("cannot parse seed record %s in the child: %w; repair or delete the key in ConfigMap %s/%s",
				key, err, v1alpha1.AgentNamespace, v1alpha1.SeedConfigMap)
		}
		records[key] = found
	}
	return records, nil
}

// adopt takes the child's own record of a layer if the Child's status has none. If
// the record has the digest of the present rendering, the next comparison with the
// child is made at a random time within the interval.
func (s *seeding) adopt(ctx context.Context, entry *v1alpha1.ChildLayer, digest string) error {
	if s.link.caller() == nil {
		if err := s.link.reread(ctx, s.request); err != nil {
			return err
		}
	}
	records, err := s.link.layerRecords(ctx)
	if err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	found, ok := records[s.recordKey()]
	if !ok {
		return nil
	}
	if found.err != nil {
		return because(v1alpha1.ReasonSeedFailed, found.err)
	}
	entry.Inventory, entry.Digest, entry.Revision = found.Inventory, found.Digest, found.Revision
	if found.Digest == digest {
		s.notes.due = s.Now().Add(time.Duration(s.Rand() * float64(s.layer.Spec.Interval.Duration)))
		entry.DeletionPolicy = s.layer.Spec.DeletionPolicy
	}
	return nil
}

func entriesOf(refs []v1alpha1.InventoryEntry) ([]inventory.Entry, error) {
	entries := make([]inventory.Entry, 0, len(refs))
	for _, ref := range refs {
		e, err := inventory.Parse(ref.ID, ref.Version)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func refsOf(entries []inventory.Entry) []v1alpha1.InventoryEntry {
	refs := make([]v1alpha1.InventoryEntry, 0, len(entries))
	for _, e := range entries {
		refs = append(refs, v1alpha1.InventoryEntry{ID: e.ID(), Version: e.Version})
	}
	return refs
}
