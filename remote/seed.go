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
	"math/rand/v2"
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
)

// reasoned is a failure of a layer on a child with its stable reason.
type reasoned struct {
	reason string
	err    error
}

func (e *reasoned) Error() string { return e.err.Error() }
func (e *reasoned) Unwrap() error { return e.err }

func because(reason string, err error) error { return &reasoned{reason: reason, err: err} }

// seeding is one layer on its way into one child.
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
	// credentials are what is handed over, as it is in the parent.
	credentials []credential
	// components is what spec.providers is made of.
	components components
	// settled is that of the inscription.
	settled bool
}

// credential is a Secret that is handed over, under a name in the child.
type credential struct {
	name   string
	secret *corev1.Secret
}

// gather reads what the layer is made of.
func (p *push) gather(ctx context.Context, s *seeding) error {
	if ref := s.layer.Spec.SourceRef; ref != nil {
		if s.snapshot = p.Snapshots.Get(layerSource(s.layer)); s.snapshot == nil {
			return because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("%s %s has not been fetched yet", ref.Kind, ref.Name))
		}
		s.content = p.contents.of(s.layer, s.snapshot)
	}
	for _, c := range given(s.layer) {
		secret := &corev1.Secret{}
		name := types.NamespacedName{Namespace: s.layer.Namespace, Name: c.SecretRef.Name}
		if err := p.handed.Get(ctx, name, secret); err != nil {
			return because(v1alpha1.ReasonCredentialMissing, fmt.Errorf("cannot read Secret %s: %w", name, err))
		}
		s.credentials = append(s.credentials, credential{c.Name, secret})
	}
	if err := p.gatherComponents(ctx, s); err != nil {
		return err
	}
	if b := s.layer.Spec.PostBuild; b != nil {
		for _, ref := range b.SubstituteFrom {
			vars, err := render.LoadVariables(ctx, &p.handed, s.layer.Namespace, ref.Kind, ref.Name, ref.Optional)
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

// given are the Secrets that a layer hands over: its credentials, and the keys
// that its agent decrypts with.
func given(layer *v1alpha1.Layer) []v1alpha1.CredentialReference {
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

// phases renders the layer in the order in which it is pushed: CRDs, then
// namespace, rights, credentials and variables, then the agent, then what Git
// holds for the child, its sources and Kustomizations above all. Providers come
// between: the agent tells how it is going, and what Git holds may need them.
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
	rendering, err := render.Render(ctx, s.snapshot, render.Build{Path: s.layer.Spec.Path, Variables: s.vars, Sensitive: s.sensitive, NoDigest: true})
	if err != nil {
		return nil, because(v1alpha1.ReasonBuildFailed, err)
	}
	s.contents.note(s.layer, s.snapshot, s.content, rendering.Reads)
	// Sources before what asks for them.
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

// bring brings the layer into the child and returns nil once it is there and,
// where the layer says wait, healthy. entry is the layer's record in the
// Child's status and is kept current. What is known to be there already is not
// applied again before the layer's interval has passed, unless somebody asks.
func (s *seeding) bring(ctx context.Context, entry *v1alpha1.ChildLayer) error {
	ctx, cancel := context.WithTimeout(ctx, s.layer.Spec.Timeout.Duration)
	defer cancel()
	inputs, now := s.inputs(), s.Now()
	settled := entry.Ready || entry.Reason == v1alpha1.ReasonPruneBlocked
	if entry.Digest != "" {
		entry.DeletionPolicy = s.layer.Spec.DeletionPolicy // of what is there, as of now
	}
	if s.notes.inputs == inputs && settled && now.Before(s.notes.due) {
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
		// After a restart, what is recorded is taken as it is. When it is compared
		// with the child is spread over the interval.
		s.notes.due = now.Add(time.Duration(rand.Float64() * float64(s.layer.Spec.Interval.Duration)))
	}
	if entry.Digest != digest || asked || !now.Before(s.notes.due) || entry.Reason == v1alpha1.ReasonPruneBlocked {
		// A change sends what changed. Everything is compared with the child when that
		// is due, or asked for.
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
		// It is what an earlier process applied, so a change need not send all of it.
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

// unsent reports whether a layer that is not ready for this reason was not sent
// since it was in place: something that comes before or after was wrong.
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
	// The rights were granted when the layer was pushed. Nothing is written to look.
	if err := s.recognize(ctx); err != nil {
		return err
	}
	cluster, err := s.link.cluster(s.link.caller())
	if err != nil {
		return because(v1alpha1.ReasonUnreachable, err)
	}
	found, err := apply.New(cluster, ownerOf(s.layer.Namespace, s.layer.Name), nil).Health(ctx, slices.DeleteFunc(declared(phases), still), nil)
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

// still reports whether an object is as it should be by being there: it has no
// status, or one that was waited for when it was applied.
func still(e inventory.Entry) bool {
	switch e.Group {
	case "rbac.authorization.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io":
		return true
	case "":
		return e.Kind == "ConfigMap" || e.Kind == "Secret" || e.Kind == "ServiceAccount" || e.Kind == "Namespace"
	}
	return false
}

// permit makes sure that the parent may push the phases.
func (s *seeding) permit(ctx context.Context, phases []apply.Phase) error {
	var objects []*unstructured.Unstructured
	defined := map[schema.GroupKind]string{}
	for _, p := range phases {
		objects = append(objects, p.Outline()...)
		maps.Copy(defined, p.Defines())
	}
	objects = append(objects, s.components.asked...)
	if s.link.caller() == nil {
		if err := s.link.reread(ctx, s.question); err != nil {
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

// resources names the resource of a kind: as a definition of the layer says, in
// defined, or as the child serves it. What the child could not tell is in unsure: a kind that is
// not known is not one that does not exist.
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

// survey looks at a child that gets a layer for the first time. It needs more
// rights than those of the layer, which the kubeconfig gives that the child was
// just reached with.
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
	// Who the child is, and what it is about to get, is on record before the first
	// write to it.
	if ahead := inventory.Union(owned, declared(phases)); s.recorded.Status.Identity == nil || !inventory.Equal(ahead, owned) {
		entry.Inventory = refsOf(ahead)
		if err := s.record(ctx); err != nil {
			return because(v1alpha1.ReasonSeedFailed, err)
		}
	}
	if err := s.permit(ctx, phases); err != nil {
		return err
	}
	as := s.link.caller()
	if s.layer.Spec.Prune && len(inventory.Candidates(owned, declared(phases))) > 0 || firstSync != nil && !firstSync.Settled {
		// Whether something may go depends on what it holds and what needs it, and
		// whether a Cluster is there completely on what it refers to, which the
		// parent's own account may not see.
		if _, err := s.link.administrator(ctx, s.question); err != nil {
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
		// Both copies, ours first: either alone suffices to answer for what is
		// about to be created.
		if err := s.record(ctx); err != nil {
			return err
		}
		return s.inscribe(ctx, cluster, *entry)
	}
	s.resume(phases, digest)
	s.notes.sent = nil // what is there is known again when all of it is
	res, err := apply.New(cluster, ownerOf(s.layer.Namespace, s.layer.Name), nil).Sync(ctx, phases, apply.Options{
		Owned: owned, Record: note, Prune: s.layer.Spec.Prune, LowerTier: true,
		Target:    s.child.Status.Identity.KubeSystemUID,
		Approved:  s.child.Annotations[v1alpha1.ApprovePruneAnnotation],
		Undecided: entry.Reason == v1alpha1.ReasonPruneBlocked && inventory.AsksForApproval(entry.Message),
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
		if err := s.link.resign(ctx); err != nil {
			return because(v1alpha1.ReasonSeedFailed, err)
		}
		return because(v1alpha1.ReasonCreateHeld, errors.New(res.Creation.Message()))
	}
	s.settled = s.settled || len(inventory.ClustersAmong(declared(phases))) > 0
	entry.Digest = digest
	entry.DeletionPolicy = s.layer.Spec.DeletionPolicy
	if s.snapshot != nil {
		entry.Revision = s.snapshot.Revision
	}
	if err := s.inscribe(ctx, cluster, *entry); err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	if err := s.link.resign(ctx); err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	if res.Plan.Blocked() {
		return because(v1alpha1.ReasonPruneBlocked, errors.New(res.Plan.Message(s.named())))
	}
	return nil
}

// firstSyncCreate, among the arguments of a layer's agent, says that a child that has
// no records never had a Cluster.
const firstSyncCreate = "--first-sync=create"

// firstSync is what the child has on record about the Clusters that the layer
// declares; nil if it declares none. A management cluster that is pushed to may have
// been lost and set up anew, like any other: what runs already must not be built
// again by whoever comes first.
func (s *seeding) firstSync(ctx context.Context, phases []apply.Phase) (*inventory.FirstSync, error) {
	var objects []*unstructured.Unstructured
	for _, p := range phases {
		objects = append(objects, p.Objects...)
	}
	if inventory.FleetOf(objects).Empty() {
		return nil, nil
	}
	// The parent's own account does not see the record of the child's agent.
	admin, err := s.link.administrator(ctx, s.question)
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
	layers, err := s.link.inscriptions(ctx)
	if err != nil {
		return nil, because(v1alpha1.ReasonSeedFailed, err)
	}
	mine := layers[s.inscriptionKey()]
	if mine.err != nil {
		return nil, because(v1alpha1.ReasonSeedFailed, mine.err)
	}
	s.settled = mine.Settled
	record.Settled = record.Settled || s.settled || s.layer.Spec.Agent != nil && slices.Contains(s.layer.Spec.Agent.Args, firstSyncCreate)
	return record, nil
}

// inscription is a layer's record in the child itself. A parent that lost its
// own adopts it and rewrites nothing.
type inscription struct {
	Revision  string                    `json:"revision,omitempty"`
	Digest    string                    `json:"digest,omitempty"`
	Inventory []v1alpha1.InventoryEntry `json:"inventory"`
	// ClusterUID is the variable cluster_uid, which a parent that lost the Cluster
	// and got it back from a backup would give another value.
	ClusterUID string `json:"clusterUID,omitempty"`
	// Settled: the layer was applied with all the Clusters that it declares. From then
	// on it creates Clusters without asking.
	Settled bool `json:"settled,omitempty"`
	// err is why the record cannot be used.
	err error
}

func (s *seeding) inscriptionKey() string { return s.layer.Namespace + "." + s.layer.Name }

func (s *seeding) inscribe(ctx context.Context, cluster *apply.Cluster, entry v1alpha1.ChildLayer) error {
	text, err := json.Marshal(inscription{Revision: entry.Revision, Digest: entry.Digest, Inventory: entry.Inventory, ClusterUID: s.push.vars["cluster_uid"], Settled: s.settled})
	if err != nil {
		return fmt.Errorf("cannot encode seed record: %w", err)
	}
	cm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": v1alpha1.SeedConfigMap, "namespace": v1alpha1.AgentNamespace},
		"data":     map[string]any{s.inscriptionKey(): string(text)},
	}}
	// A manager for each layer, so that each owns its key only.
	manager := seedManager + "." + s.inscriptionKey()
	if len(manager) > 128 {
		sum := sha256.Sum256([]byte(manager))
		manager = seedManager + "." + hex.EncodeToString(sum[:8])
	}
	if _, err := cluster.Write(ctx, cm, manager); err != nil {
		return fmt.Errorf("cannot write seed record in the child: %w", err)
	}
	return nil
}

// inscriptions reads the records of all layers in the child.
func (l *link) inscriptions(ctx context.Context) (map[string]inscription, error) {
	cm := &corev1.ConfigMap{}
	path := "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps/" + v1alpha1.SeedConfigMap
	err := l.caller().do(ctx, "GET", path, nil, plainContent()).Into(cm)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read seed record in the child: %w", err)
	}
	records := map[string]inscription{}
	for key, text := range cm.Data {
		var found inscription
		if err := json.Unmarshal([]byte(text), &found); err != nil {
			found.err = fmt.Errorf("cannot parse seed record %s in the child: %w; repair or delete the key in ConfigMap %s/%s",
				key, err, v1alpha1.AgentNamespace, v1alpha1.SeedConfigMap)
		}
		records[key] = found
	}
	return records, nil
}

// adopt takes over the child's own record of a layer that we have none of. What
// is in place as it is rendered now is only to be compared with the child when
// it would be anyway.
func (s *seeding) adopt(ctx context.Context, entry *v1alpha1.ChildLayer, digest string) error {
	if s.link.caller() == nil {
		if err := s.link.reread(ctx, s.question); err != nil {
			return err
		}
	}
	records, err := s.link.inscriptions(ctx)
	if err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	found, ok := records[s.inscriptionKey()]
	if !ok {
		return nil
	}
	if found.err != nil {
		return because(v1alpha1.ReasonSeedFailed, found.err)
	}
	entry.Inventory, entry.Digest, entry.Revision = found.Inventory, found.Digest, found.Revision
	if found.Digest == digest {
		s.notes.due = s.Now().Add(time.Duration(rand.Float64() * float64(s.layer.Spec.Interval.Duration)))
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
