package remote

import (
	"context"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/access"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// permit makes sure that the parent has the rights to push the phases.
func (s *seeding) permit(ctx context.Context, phases []apply.Phase, rec *record.Record) error {
	rules := access.Acting(s.as.Name, record.Name(s.key()))
	if s.as.Parent() {
		var err error
		if rules, err = s.rules(ctx, phases); err != nil {
			return err
		}
	}
	role := access.LayerRole(s.layer.Namespace, s.layer.Name)
	// The rights of an earlier process are still there; to write those of all layers again
	// after each start would be three requests for each.
	all, err := access.Digest(slices.Concat(access.BaseRights(), rules))
	switch {
	case err != nil:
	case rec.Rights == all:
		err = s.session.Trust(role, rules)
	case rec.Rights != "":
		s.session.DistrustBase()
	}
	if err != nil {
		return reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	if err := s.grant(ctx, role, rules); err != nil {
		return err
	}
	rec.Rights = all
	return nil
}

// rules are the rights that the parent needs for what the layer declares.
func (s *seeding) rules(ctx context.Context, phases []apply.Phase) ([]rbacv1.PolicyRule, error) {
	var objects []*unstructured.Unstructured
	defined := map[schema.GroupKind]string{}
	for _, p := range phases {
		objects = append(objects, p.Outline()...)
		maps.Copy(defined, p.Defines())
	}
	objects = append(objects, s.components.asked...)
	var unsure error
	rules := access.Rights(objects, s.resources(ctx, defined, &unsure), record.Name(s.key()))
	if unsure != nil {
		return nil, cannotReach(unsure)
	}
	return rules, nil
}

// resources names the resource of a kind, from the definitions of the layer or from
// the discovery of the child. unsure is set if discovery failed: a kind that could
// not be looked up may exist.
func (s *seeding) resources(ctx context.Context, defined map[schema.GroupKind]string, unsure *error) access.ResourceOf {
	var mapper meta.RESTMapper
	return func(gk schema.GroupKind) (string, bool) {
		if r := defined[gk]; r != "" {
			return r, true
		}
		if mapper == nil {
			cluster, err := s.session.Account(ctx)
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
// just reached. A layer with an account sees what the account may read.
func (s *seeding) survey(ctx context.Context, owned []inventory.Entry, phases []apply.Phase) (*apply.Survey, error) {
	if len(owned) > 0 || !s.as.Parent() {
		return nil, nil
	}
	cluster, err := s.session.AtHand(ctx)
	if err != nil {
		return nil, cannotReach(err)
	}
	if cluster == nil {
		return nil, nil
	}
	survey, err := cluster.Survey(ctx, phases)
	if err != nil {
		return nil, reason.Because(v1alpha1.ReasonUnreachable, err)
	}
	return survey, nil
}
