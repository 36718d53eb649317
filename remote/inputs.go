package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// credential is delivered under a name in the child.
type credential struct {
	name string
	// secret is copied, nil if there is a kept one.
	secret *corev1.Secret
	// kept is what the child's agent gets by itself.
	kept *v1alpha1.Credential
	// meant: that nothing says when it lapses is meant.
	meant bool
}

// credentialFor reads the Secret of a reference, or makes the Credential.
func (s *seeding) credentialFor(ctx context.Context, from client.Reader, ref *v1alpha1.CredentialReference, forWhom string) (credential, error) {
	if ref.Vault != nil {
		kept, err := keptOf(s.push.cluster, s.layer, ref)
		if err != nil {
			return credential{}, reason.Because(v1alpha1.ReasonReferenceInvalid, err)
		}
		return credential{name: ref.Name, kept: kept}, nil
	}
	if ref.SecretRef == nil {
		return credential{}, reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("credential %s has neither secretRef nor vault", ref.Name))
	}
	secret := &corev1.Secret{}
	name, err := s.refersTo("Secret", ref.SecretRef.Name)
	if err != nil {
		return credential{}, err
	}
	if err := from.Get(ctx, name, secret); err != nil {
		return credential{}, account.Refused(*s.as, v1alpha1.ReasonCredentialMissing, fmt.Errorf("cannot read Secret %s%s: %w", name, forWhom, err))
	}
	return credential{name: ref.Name, secret: secret, meant: ref.Static}, nil
}

// gather reads what the layer is rendered from.
func (p *push) gather(ctx context.Context, s *seeding) error {
	if p.undescribed != "" {
		return waitsBecause(v1alpha1.ReasonClusterNotReady, "nothing new is pushed before it is known what the cluster's region and account are: %s", p.undescribed)
	}
	if err := s.actAs(ctx); err != nil {
		return err
	}
	var err error
	if s.pin, err = s.pinned(); err != nil {
		return err
	}
	if s.image, err = s.imageOf(); err != nil {
		return err
	}
	from, err := s.referencesFor(ctx)
	if err != nil {
		return reason.Because(v1alpha1.ReasonProgressing, err)
	}
	if ref := s.layer.Spec.SourceRef; ref != nil {
		if err := p.Accounts.MayUse(ctx, s.layer, *s.as, layerSource(s.layer)); err != nil {
			return err
		}
		if s.snapshot, err = s.snapshotOf(layerSource(s.layer)); err != nil {
			return err
		}
		if s.snapshot == nil {
			return reason.Because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("%s %s has not been fetched yet", ref.Kind, ref.Name))
		}
		s.content, s.read = p.contents.of(s.layer, s.snapshot)
	}
	s.refers, s.credentials = nil, nil
	for _, ref := range credentialsOf(s.layer) {
		c, err := s.credentialFor(ctx, from, &ref, "")
		if err != nil {
			return err
		}
		s.credentials = append(s.credentials, c)
	}
	if err := p.gatherComponents(ctx, s, from); err != nil {
		return err
	}
	sensitive, err := substitute(ctx, from, s.layer, s.vars, s.refersTo)
	if err != nil && !reason.Given(err) {
		err = account.Refused(*s.as, v1alpha1.ReasonBuildFailed, err)
	}
	s.sensitive = append(s.sensitive, sensitive...)
	return err
}

// substitute adds the variables of a layer to those of a cluster, and returns which values
// among them are of Secrets.
func substitute(ctx context.Context, from client.Reader, layer *v1alpha1.Layer, vars map[string]string,
	refersTo func(kind, name string) (types.NamespacedName, error),
) (sensitive []string, err error) {
	b := layer.Spec.PostBuild
	if b == nil {
		return nil, nil
	}
	for _, ref := range b.SubstituteFrom {
		name, err := refersTo(ref.Kind, ref.Name)
		if err != nil {
			return sensitive, err
		}
		loaded, err := render.LoadVariables(ctx, from, name.Namespace, ref.Kind, name.Name, ref.Optional)
		if err != nil {
			return sensitive, err
		}
		maps.Copy(vars, loaded)
		sensitive = append(sensitive, render.Sensitive(ref.Kind, loaded)...)
	}
	maps.Copy(vars, b.Substitute)
	return sensitive, nil
}

// Variables are what a layer is rendered with for the cluster of a child, as a push has
// them, and which values among them are of Secrets. The cluster has the facts of its
// provider.
func Variables(ctx context.Context, from client.Reader, layer *v1alpha1.Layer, cluster capibridge.Cluster, child *v1alpha1.Child) (vars map[string]string, sensitive []string, err error) {
	vars = clusterVariables(cluster, child)
	sensitive, err = substitute(ctx, from, layer, vars, func(kind, name string) (types.NamespacedName, error) {
		return referred(cluster, layer, kind, name)
	})
	return vars, sensitive, err
}

// clusterVariables are those that a cluster gives to all layers.
func clusterVariables(cluster capibridge.Cluster, child *v1alpha1.Child) map[string]string {
	vars := cluster.Variables(child.Status.Version)
	if id := child.Status.Identity; id != nil && id.SeededAs != "" {
		vars["cluster_uid"] = id.SeededAs
	}
	return vars
}

// seen is the snapshot of a source that this push was the first to render; nil if there is
// none.
func (p *push) seen(key source.Key) *source.Snapshot {
	snapshot, _ := p.view.Snapshot(key, func() (*source.Snapshot, error) { return p.Snapshots.Get(key), nil })
	return snapshot
}

// credentialsOf are those that a layer delivers in the agent's namespace: its credentials,
// and the keys that its agent decrypts with, which are meant to last.
func credentialsOf(layer *v1alpha1.Layer) []v1alpha1.CredentialReference {
	all := layer.Spec.Credentials
	if agent := layer.Spec.Agent; agent != nil && agent.Decryption != nil {
		all = append(slices.Clone(all), v1alpha1.CredentialReference{Name: decryptionSecret, SecretRef: &agent.Decryption.SecretRef, Static: true})
	}
	return all
}

// decryptionSecret has the keys of a child's agent.
const decryptionSecret = "cascade-decryption"

// inputs identifies everything that the rendering depends on, in this process.
func (s *seeding) inputs() string { return s.inputsWith(s.content, s.requested()) }

// recordable identifies everything that the rendering depends on for other processes as well. It
// is empty if that is not known, and where it would tell something of a value that only Secrets
// have: records are no Secrets.
func (s *seeding) recordable() string {
	if s.snapshot == nil || s.read == (digest.Short{}) || len(s.sensitive) > 0 || len(s.credentials) > 0 || s.layer.Spec.Providers != nil {
		return ""
	}
	sum := digest.Of(s.Version, s.inputsWith(hex.EncodeToString(s.read[:]), "")).Short()
	return hex.EncodeToString(sum[:])
}

func (s *seeding) inputsWith(content, requested string) string {
	h := sha256.New()
	e := json.NewEncoder(h)
	_ = e.Encode([]any{s.layer.UID, s.layer.Generation, s.as, requested, content, s.vars, s.image,
		s.child.Annotations[v1alpha1.ApprovePruneAnnotation]})
	for _, c := range s.credentials {
		c.identify(e)
	}
	s.components.identify(e)
	if pins := s.objectPins(); len(pins) > 0 {
		_ = e.Encode(pins)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// identify encodes what the rendering has of a credential.
func (c credential) identify(e *json.Encoder) {
	if c.kept != nil {
		_ = e.Encode([]any{c.name, c.kept.Spec})
		return
	}
	_ = e.Encode([]any{c.name, c.secret.UID, c.secret.ResourceVersion})
}

func (s *seeding) requested() string { return s.layer.Annotations[fluxmeta.ReconcileRequestAnnotation] }
