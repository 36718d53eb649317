package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// components is what spec.providers of one layer is rendered from.
type components struct {
	wanted   []providers.Wanted
	snapshot *source.Snapshot
	// credentials to deliver, by the provider that needs them and in its order.
	credentials map[string][]credential
	// asked are the objects of which the creation is tried, so that webhooks are called.
	asked []*unstructured.Unstructured
	// definitions are those of all providers.
	definitions []providers.Definition
}

// componentSource is the source of the component manifests, false if the layer
// names no providers.
func componentSource(layer *v1alpha1.Layer) (source.Key, bool) {
	spec := layer.Spec.Providers
	if spec == nil {
		return source.Key{}, false
	}
	ref := spec.SourceRef
	if ref == nil {
		ref = layer.Spec.SourceRef
	}
	if ref == nil {
		return source.Key{}, true
	}
	return sourceOf(layer, ref), true
}

// gatherComponents finds the snapshot and what the providers' credentials are made of.
func (p *push) gatherComponents(ctx context.Context, s *seeding, from client.Reader) error {
	key, named := componentSource(s.layer)
	if !named {
		return nil
	}
	if key.Name == "" {
		return reason.Because(v1alpha1.ReasonInvalidSpec, errors.New("spec.providers has no source: set spec.providers.sourceRef or spec.sourceRef"))
	}
	c := &s.components
	c.wanted = providers.List(s.layer.Spec.Providers)
	if err := p.Accounts.MayUse(ctx, s.layer, *s.as, key); err != nil {
		return err
	}
	var err error
	if c.snapshot, err = s.snapshotOf(key); err != nil {
		return err
	}
	if c.snapshot == nil {
		return reason.Because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("%s %s, which has the component manifests, has not been fetched yet", key.Kind, key.Name))
	}
	c.credentials = map[string][]credential{}
	for _, w := range c.wanted {
		for i := range w.Credentials {
			one, err := s.credentialFor(ctx, from, &w.Credentials[i], " for "+w.Label)
			if err != nil {
				return err
			}
			c.credentials[w.Label] = append(c.credentials[w.Label], one)
		}
	}
	return nil
}

// identify encodes all that the rendering of the providers depends on besides the
// layer and its variables.
func (c *components) identify(e *json.Encoder) {
	if c.snapshot == nil {
		return
	}
	_ = e.Encode(c.snapshot.Digest)
	for _, w := range c.wanted {
		for _, one := range c.credentials[w.Label] {
			one.identify(e)
		}
	}
}

// providerPhases are the providers that the layer names: each is a phase, which
// is in place before the next begins.
func (s *seeding) providerPhases(ctx context.Context) ([]apply.Phase, error) {
	c := &s.components
	if len(c.wanted) == 0 {
		return nil, nil
	}
	sets, err := s.Providers.Sets(ctx, providers.Order{
		Files: c.snapshot, Content: c.snapshot.Digest, Root: s.layer.Spec.Providers.Path,
		Wanted: c.wanted, Variables: s.vars, Sensitive: s.sensitive,
	})
	switch {
	case errors.Is(err, providers.ErrContract):
		return nil, reason.Because(v1alpha1.ReasonContractMismatch, err)
	case err != nil:
		return nil, reason.Because(v1alpha1.ReasonBuildFailed, err)
	}
	c.asked, c.definitions = nil, nil
	phases := make([]apply.Phase, 0, len(sets))
	for _, set := range sets {
		for _, probe := range set.Probes {
			c.asked = append(c.asked, probe.Object())
		}
		c.definitions = append(c.definitions, set.Definitions...)
		p := apply.Phase{Name: set.String(), Packed: set.Objects, Await: true, Check: webhooksRespond(set.Probes)}
		p.Objects = append(p.Objects, accountsOf(set.Namespace, c.credentials[set.Label])...)
		for i, one := range c.credentials[set.Label] {
			var restart []string
			if asked := set.Credentials[i].Restart; asked == nil && set.ReadsAtStart(one.name) || asked != nil && *asked {
				restart = set.Deployments
			}
			u, err := one.object(set.Namespace, restart)
			if err != nil {
				return nil, err
			}
			p.Objects = append(p.Objects, u)
		}
		set.Own(p.Objects...)
		phases = append(phases, p)
	}
	return phases, nil
}

// migration is the storing anew of objects for one rendering of a layer.
type migration struct {
	// digest of the rendering, and what was stored so far. over: all was, and the child has refused
	// nothing since.
	digest string
	done   providers.Stored
	over   bool
}

// migrate stores objects anew of which the providers' definitions drop the version in which
// they may be stored, as clusterctl does before an upgrade. The definitions that are there, and
// the webhooks that convert, are still those of the versions before.
func (s *seeding) migrate(ctx context.Context, rec *record.Record) error {
	if rec.InPlace(s.rendered.digest) {
		return nil
	}
	// The parent's own account has rights to what the layer declares, not to objects of its
	// kinds.
	return s.notes.migration.run(ctx, s.rendered.digest, s.components.definitions, s.session.Administrator)
}

func (m *migration) run(ctx context.Context, digest string, definitions []providers.Definition, connect func(context.Context) (*apply.Cluster, error)) error {
	if m.digest != digest {
		*m = migration{digest: digest, done: providers.Stored{}}
	}
	if m.over || len(definitions) == 0 {
		return nil
	}
	admin, err := connect(ctx)
	if err != nil {
		return cannotReach(err)
	}
	for _, d := range definitions {
		switch err := d.Migrate(ctx, admin, m.done); {
		case errors.Is(err, providers.ErrStorageVersion):
			return reason.Because(v1alpha1.ReasonStorageVersionDropped, err)
		case err != nil:
			return reason.Because(v1alpha1.ReasonSeedFailed, err)
		}
	}
	m.done, m.over = providers.Stored{}, true
	return nil
}

// after takes what became of the push. Only while it waits for what it sent is the child known to be
// as the migration left it: later its etcd may be restored, with the versions in which it stored
// before, and it refuses the definitions then.
func (m *migration) after(err error) {
	var waiting *apply.WaitError
	m.over = m.over && errors.As(err, &waiting)
}

// webhooksRespond makes the API server call each webhook, by a dry run. A Deployment
// is available before the CA bundle of its webhook is in the webhook configuration,
// and until then no object of its kinds can be written.
func webhooksRespond(probes []providers.Probe) func(ctx context.Context, c *apply.Cluster) (apply.Health, error) {
	if len(probes) == 0 {
		return nil
	}
	return func(ctx context.Context, c *apply.Cluster) (apply.Health, error) {
		var waiting apply.Health
		for _, p := range probes {
			err := c.Create(ctx, p.Object(), client.DryRunAll, client.FieldOwner(seedManager))
			if err != nil && !meta.IsNoMatchError(err) && !errors.As(err, new(apierrors.APIStatus)) {
				return nil, fmt.Errorf("cannot reach API server: %w", err)
			}
			if notReached(err) {
				waiting = append(waiting, health.Result{Entry: p.Webhook, Status: status.InProgressStatus, Message: err.Error()})
			}
		}
		return waiting, nil
	}
}

// notReached reports whether an error says that the API server could not reach a
// webhook. Any other refusal is the decision of a webhook, or of the API server after
// it called them. The code does not tell: a webhook chooses its own, and mostly gives no
// reason. What the API server says of itself has one.
func notReached(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable, metav1.StatusReasonTimeout,
		metav1.StatusReasonServerTimeout, metav1.StatusReasonNotFound:
		return true
	}
	return meta.IsNoMatchError(err)
}

// progress of a push that is not complete. It is kept in memory: without it the layer
// is applied from the start again, which changes nothing.
type progress struct {
	digest, requested, identity string
	done, applied               int
	since                       time.Time
	// grew is when done or applied last increased.
	grew time.Time
}

// resume marks the phases that need not be sent again, because the same rendering of
// them was sent a short time ago.
func (s *seeding) resume(phases []apply.Phase, digest string) {
	p := s.notes.progress
	if p.digest != digest || p.requested != s.requested() || p.identity != s.child.Status.Identity.KubeSystemUID ||
		s.Now().Sub(p.since) >= s.layer.Spec.Interval.Duration || p.applied > len(phases) {
		s.notes.progress = progress{}
		return
	}
	for i := range phases[:p.applied] {
		phases[i].Applied = true
		phases[i].Await = phases[i].Await && i >= p.done
	}
}

// advance notes the progress of a push.
func (s *seeding) advance(phases []apply.Phase, digest string, res apply.Result) {
	if res.Done == len(phases) || res.Applied == 0 {
		s.notes.progress = progress{}
		return
	}
	since, grew := s.Now(), s.Now()
	if before := s.notes.progress; !before.since.IsZero() {
		since = before.since
		if before.done == res.Done && before.applied == res.Applied {
			grew = before.grew
		}
	}
	s.notes.progress = progress{
		digest: digest, requested: s.requested(), identity: s.child.Status.Identity.KubeSystemUID,
		done: res.Done, applied: res.Applied, since: since, grew: grew,
	}
}
