package remote

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/park"
)

// known is what need not be sent, unless the sweep shows it otherwise.
func (s *seeding) known(ctx context.Context, owned []inventory.Entry, compare, asked bool) (apply.Sent, *apply.Sweep, error) {
	if len(owned) == 0 {
		return nil, nil, nil // nothing of the layer is there yet, as far as the child has it on record
	}
	if !compare {
		return s.notes.sent, nil, nil
	}
	sweep, err := s.swept(ctx, *s.as)
	if err != nil || sweep == nil || asked {
		return nil, sweep, err
	}
	if lost, err := s.unpermitted(ctx, owned); err != nil || lost {
		return nil, sweep, err
	}
	return s.notes.sent, sweep, nil
}

// seal is the state in which everything that a layer declares was in place in a child.
type seal struct {
	objects apply.Seal
	// record is the version of the layer's record.
	record string
}

// sealed reports whether the layer is in the child as the last comparison left it. That is
// found out without rendering it, by the lists that all layers of the child share: at rest,
// nobody wrote to any of its objects, or to its record. The layer of an account is always
// compared: lists do not tell what the account may do.
func (s *seeding) sealed(ctx context.Context) (bool, error) {
	if s.notes.seal == nil || s.notes.handed || !s.as.Parent() {
		return false, nil
	}
	if s.run.notes.slow {
		park.Aside(ctx)
	}
	sweep, err := s.swept(ctx, *s.as)
	if err != nil || sweep == nil {
		return false, err
	}
	broken, err := sweep.Broken(ctx, s.owner(), s.notes.seal.objects)
	if err != nil {
		return false, cannotReach(err)
	}
	if broken {
		return false, nil
	}
	version, err := s.records.Version(ctx, corev1.SchemeGroupVersion.WithResource("configmaps"), v1alpha1.AgentNamespace, record.Name(s.key()))
	if err != nil {
		return false, cannotReach(err)
	}
	return version == s.notes.seal.record, nil
}

// swept is what the layers that are due and are pushed as one account are held against,
// made once for all of them in a run. Without anything to list with it is nil, and each
// object is asked for.
func (p *push) swept(ctx context.Context, as account.Account) (*apply.Sweep, error) {
	if sweep, made := p.sweeps[as]; made {
		return sweep, nil
	}
	cluster, err := p.lister(ctx, as)
	if err != nil {
		return nil, err
	}
	if p.sweeps == nil {
		p.sweeps = map[account.Account]*apply.Sweep{}
	}
	p.sweeps[as] = nil
	if cluster != nil {
		group := v1alpha1.LayerLabelGroup
		p.sweeps[as] = cluster.Sweep(group+"/name,"+group+"/namespace="+p.child.Namespace, p.notes.versions)
		if as.Parent() {
			p.records = cluster.Sweep(v1alpha1.RecordLabel, p.notes.versions)
		}
	}
	return p.sweeps[as], nil
}

// lister is the connection that lists the objects of layers. For those that the parent
// pushes itself it takes the kubeconfig: the parent's own account has no right to list,
// which would be one to read every Secret. Without a kubeconfig it is nil.
func (p *push) lister(ctx context.Context, as account.Account) (*apply.Cluster, error) {
	if !as.Parent() {
		parent, err := p.session.Account(ctx)
		if err != nil {
			return nil, cannotReach(err)
		}
		return acting(parent, as)
	}
	cluster, err := p.session.Lister(ctx)
	switch why := reason.Of(err); {
	case err == nil:
		return cluster, nil
	case why == v1alpha1.ReasonKubeconfigMissing, why == v1alpha1.ReasonKubeconfigRefused, why == v1alpha1.ReasonUnauthorized,
		apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
		return nil, nil
	}
	return nil, cannotReach(err)
}
