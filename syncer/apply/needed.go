package apply

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/inventory"
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// needed completes the facts about components of providers that are no longer
// declared. As long as objects of a provider's kinds exist, its controllers,
// rights and webhooks are needed to take down what these objects stand for. The
// providers in provided are still declared: a component that a new version of
// theirs leaves out may go.
func (a *Applier) needed(ctx context.Context, facts map[inventory.Entry]inventory.Live, provided map[string]bool) {
	type answer struct {
		by  string
		err error
	}
	answers := map[string]answer{}
	for e, live := range facts {
		if live.State != inventory.Present || !live.Owned || live.Exempt || live.Provider == "" || provided[live.Provider] {
			continue
		}
		got, ok := answers[live.Provider]
		if !ok {
			got.by, got.err = a.objectOf(ctx, live.Provider)
			answers[live.Provider] = got
		}
		if got.err != nil {
			facts[e] = unknown(got.err)
			continue
		}
		live.NeededBy = got.by
		facts[e] = live
	}
}

// objectOf names an object of the kinds that a provider's definitions make; empty
// if there is none.
func (a *Applier) objectOf(ctx context.Context, provider string) (string, error) {
	crds, err := a.facts.metadata.Resource(crdResource).List(ctx, metav1.ListOptions{LabelSelector: clusterapi.ProviderLabel + "=" + provider})
	if err != nil {
		return "", fmt.Errorf("cannot list the definitions of provider %s: %w", provider, err)
	}
	for _, crd := range crds.Items {
		resource, group, _ := strings.Cut(crd.Name, ".")
		kind, err := a.facts.RESTMapper().KindFor(schema.GroupVersionResource{Group: group, Resource: resource})
		if err != nil {
			if crd.DeletionTimestamp != nil && meta.IsNoMatchError(err) {
				continue
			}
			return "", fmt.Errorf("cannot look up %s of provider %s: %w", crd.Name, provider, err)
		}
		list, err := a.facts.metadata.Resource(kind.GroupVersion().WithResource(resource)).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return "", fmt.Errorf("cannot list %s of provider %s: %w", crd.Name, provider, err)
		}
		if len(list.Items) > 0 {
			e := inventory.Entry{Group: group, Kind: kind.Kind, Namespace: list.Items[0].Namespace, Name: list.Items[0].Name}
			return e.String(), nil
		}
	}
	return "", nil
}
