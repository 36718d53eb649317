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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
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
	layer *v1alpha1.Layer
	child *v1alpha1.Child
	link  *link
	vars  map[string]string
	// sensitive values among vars.
	sensitive []string
	snapshot  *source.Snapshot
	// image of the agent if the layer names none.
	image string
	// credentials are the Secrets to hand over, as they are in the parent.
	credentials []*corev1.Secret
	// components is what spec.providers is made of.
	components components
	// record writes the Child's status durably.
	record func(ctx context.Context) error
	now    func() time.Time
}

// gather reads what the layer is made of.
func (r *Children) gather(ctx context.Context, s *seeding) error {
	if ref := s.layer.Spec.SourceRef; ref != nil {
		key := layerSource(s.layer)
		if s.snapshot = r.Snapshots.Get(key); s.snapshot == nil {
			return because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("%s %s has not been fetched yet", ref.Kind, ref.Name))
		}
	}
	for _, c := range s.layer.Spec.Credentials {
		secret := &corev1.Secret{}
		name := types.NamespacedName{Namespace: s.layer.Namespace, Name: c.SecretRef.Name}
		if err := r.Cluster.Get(ctx, name, secret); err != nil {
			return because(v1alpha1.ReasonCredentialMissing, fmt.Errorf("cannot read Secret %s: %w", name, err))
		}
		s.credentials = append(s.credentials, secret)
	}
	if err := r.gatherComponents(ctx, s); err != nil {
		return err
	}
	if p := s.layer.Spec.PostBuild; p != nil {
		for _, ref := range p.SubstituteFrom {
			vars, err := render.LoadVariables(ctx, r.Cluster, s.layer.Namespace, ref.Kind, ref.Name, ref.Optional)
			if err != nil {
				return because(v1alpha1.ReasonBuildFailed, err)
			}
			maps.Copy(s.vars, vars)
			s.sensitive = append(s.sensitive, render.Sensitive(ref.Kind, vars)...)
		}
		maps.Copy(s.vars, p.Substitute)
	}
	return nil
}

// inputs identifies everything that the rendering depends on.
func (s *seeding) inputs() string {
	h := sha256.New()
	e := json.NewEncoder(h)
	revision := ""
	if s.snapshot != nil {
		revision = s.snapshot.Digest
	}
	_ = e.Encode([]any{s.layer.UID, s.layer.Generation, s.requested(), revision, s.vars, s.image,
		s.child.Annotations[v1alpha1.ApprovePruneAnnotation]})
	for _, c := range s.credentials {
		_ = e.Encode(c.Data)
	}
	s.components.identify(e)
	return hex.EncodeToString(h.Sum(nil))
}

func (s *seeding) requested() string { return s.layer.Annotations[fluxmeta.ReconcileRequestAnnotation] }

// phases renders the layer in the order in which it is pushed: CRDs, then
// namespace, rights, credentials and variables, then the agent, then what Git
// holds for the child, its sources and Kustomizations above all. Providers come
// between: the agent tells how it is going, and what Git holds may need them.
func (s *seeding) phases(ctx context.Context, clusterVars map[string]string) ([]apply.Phase, error) {
	var crds, ground, workload []*unstructured.Unstructured
	if agent := s.layer.Spec.Agent; agent != nil {
		image := agent.Image
		if image == "" {
			image = s.image
		}
		var err error
		if crds, err = deploy.CRDs(); err != nil {
			return nil, err
		}
		if ground, workload, err = deploy.Agent(image, agent.Args); err != nil {
			return nil, err
		}
		ground = append(ground, variablesObject(clusterVars))
	}
	for i, c := range s.credentials {
		ground = append(ground, credentialObject(s.layer.Spec.Credentials[i].Name, c))
	}
	phases := []apply.Phase{{Objects: crds, Await: true}, {Objects: ground}, {Objects: workload, Await: true}}
	providers, err := s.providerPhases()
	if err != nil {
		return nil, err
	}
	phases = append(phases, providers...)
	if s.snapshot == nil {
		return phases, nil
	}
	rendering, err := render.Render(ctx, s.snapshot, render.Build{Path: s.layer.Spec.Path, Variables: s.vars, Sensitive: s.sensitive})
	if err != nil {
		return nil, because(v1alpha1.ReasonBuildFailed, err)
	}
	return append(phases, apply.Phase{Objects: rendering.Objects}), nil
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

// seed brings the layer into the child and returns nil once it is there and,
// where the layer says wait, healthy. entry is the layer's record in the
// Child's status and is kept current. What is known to be there already is not
// applied again before the layer's interval has passed, unless verify says so.
func (s *seeding) seed(ctx context.Context, entry *v1alpha1.ChildLayer, clusterVars map[string]string, verify bool) error {
	phases, err := s.phases(ctx, clusterVars)
	if err != nil {
		return err
	}
	digest, err := digestOf(phases)
	if err != nil {
		return err
	}
	var all []inventory.Entry
	for _, p := range phases {
		all = append(all, p.Entries()...)
	}
	applier := s.applier()
	if entry.Digest == "" && len(entry.Inventory) == 0 {
		if err := s.adopt(ctx, entry); err != nil {
			return err
		}
	}
	if entry.Digest != digest {
		entry.Ready = false
		verify = true
	}
	if verify || !s.fresh(*entry) {
		if err := s.apply(ctx, applier, entry, phases, digest); err != nil {
			return err
		}
	}
	if s.snapshot != nil {
		entry.Revision = s.snapshot.Revision
	}
	if !s.layer.Spec.Wait || entry.Ready {
		return nil
	}
	found, err := applier.Health(ctx, all, nil)
	if err != nil {
		return because(v1alpha1.ReasonUnreachable, err)
	}
	switch verdict := health.Judge(found, true); {
	case verdict == health.Healthy:
		return nil
	case verdict == health.Stalled || s.now().Sub(entry.VerifiedAt.Time) > s.layer.Spec.Timeout.Duration:
		return because(v1alpha1.ReasonHealthCheckFailed, errors.New(found.Message()))
	}
	return because(v1alpha1.ReasonProgressing, errors.New("waiting for "+found.Message()))
}

// fresh reports whether the layer was compared with the child within its
// interval.
func (s *seeding) fresh(entry v1alpha1.ChildLayer) bool {
	return entry.VerifiedAt != nil && s.now().Sub(entry.VerifiedAt.Time) < s.layer.Spec.Interval.Duration
}

func (s *seeding) applier() *apply.Applier {
	return apply.New(s.link.cluster(), apply.Owner{
		FieldManager: seedManager, LabelGroup: v1alpha1.LayerLabelGroup, Name: s.layer.Name, Namespace: s.layer.Namespace,
	}, nil)
}

func (s *seeding) apply(ctx context.Context, applier *apply.Applier, entry *v1alpha1.ChildLayer, phases []apply.Phase, digest string) error {
	owned, err := entriesOf(entry.Inventory)
	if err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	note := func(ctx context.Context, entries []inventory.Entry) error {
		entry.Inventory = refsOf(entries)
		// Both copies, ours first: either alone suffices to answer for what is
		// about to be created.
		if err := s.record(ctx); err != nil {
			return err
		}
		return s.inscribe(ctx, *entry)
	}
	s.resume(phases, digest)
	res, err := applier.Sync(ctx, phases, apply.Options{
		Owned: owned, Record: note, Prune: s.layer.Spec.Prune, LowerTier: true,
		Target:    s.child.Status.Identity.KubeSystemUID,
		Approved:  s.child.Annotations[v1alpha1.ApprovePruneAnnotation],
		Undecided: entry.Reason == v1alpha1.ReasonPruneBlocked && inventory.AsksForApproval(entry.Message),
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
	entry.Digest = digest
	entry.VerifiedAt = &metav1.Time{Time: s.now()}
	entry.DeletionPolicy = s.layer.Spec.DeletionPolicy
	if err := s.inscribe(ctx, *entry); err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	if res.Plan.Blocked() {
		return because(v1alpha1.ReasonPruneBlocked, errors.New(res.Plan.Message(fmt.Sprintf("%s -n %s --kind Child", s.child.Name, s.child.Namespace))))
	}
	return nil
}

// inscription is a layer's record in the child itself. A parent that lost its
// own adopts it and rewrites nothing.
type inscription struct {
	Revision  string                    `json:"revision,omitempty"`
	Digest    string                    `json:"digest,omitempty"`
	Inventory []v1alpha1.InventoryEntry `json:"inventory"`
}

func (s *seeding) inscriptionKey() string { return s.layer.Namespace + "." + s.layer.Name }

func (s *seeding) inscribe(ctx context.Context, entry v1alpha1.ChildLayer) error {
	text, err := json.Marshal(inscription{Revision: entry.Revision, Digest: entry.Digest, Inventory: entry.Inventory})
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
	err = s.link.cluster().Apply(ctx, client.ApplyConfigurationFromUnstructured(cm), client.ForceOwnership, client.FieldOwner(manager))
	if err != nil {
		return fmt.Errorf("cannot write seed record in the child: %w", err)
	}
	return nil
}

func (s *seeding) adopt(ctx context.Context, entry *v1alpha1.ChildLayer) error {
	cm := &corev1.ConfigMap{}
	err := s.link.cluster().Get(ctx, types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.SeedConfigMap}, cm)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return because(v1alpha1.ReasonUnreachable, fmt.Errorf("cannot read seed record in the child: %w", err))
	}
	text, ok := cm.Data[s.inscriptionKey()]
	if !ok {
		return nil
	}
	var found inscription
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return because(v1alpha1.ReasonSeedFailed, fmt.Errorf("cannot parse seed record of layer %s in the child: %w; repair or delete its key in ConfigMap %s/%s",
			s.layer.Name, err, v1alpha1.AgentNamespace, v1alpha1.SeedConfigMap))
	}
	entry.Inventory, entry.Digest, entry.Revision = found.Inventory, found.Digest, found.Revision
	if found.Digest != "" {
		entry.VerifiedAt = &metav1.Time{Time: s.now()}
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
