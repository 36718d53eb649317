package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// takingDown is for how long what is being deleted counts as one that needs keys which it only says are its own:
// longer than a Cluster takes to go, and not for good.
const takingDown = 6 * time.Hour

// use is how it is known that an object uses a Secret or an identity.
type use int

const (
	// uses: it does.
	uses use = iota
	// mayUse: the keys are those of its controllers, perhaps.
	mayUse
	// sameName: it has keys of that name beside its controllers, perhaps these.
	sameName
	// says: whoever wrote it says so, and may have chosen what is not theirs.
	says
	// usesAnother: it has keys of that name, and these are known to be in another namespace.
	usesAnother
)

func isCluster(e inventory.Entry) bool { return clusterapi.IsCluster(e.GroupKind()) }

// lookups is what was read of a cluster's Clusters and identities for one plan, so
// that many objects of one plan cost one list.
type lookups struct {
	// owned is all that the owner of the plan answers for.
	owned []inventory.Entry
	// confirmed: a person has confirmed the deletion of all of it.
	confirmed bool
	// clusters are by namespace, of which "" is all.
	clusters map[string]*known
	// users are the objects that name an identity, identities those that name a
	// Secret or another identity: of the namespaces looked, of which "" is all. hidden are
	// the kinds that may not be listed in all of them.
	users, identities []unstructured.Unstructured
	looked            map[string]bool
	hidden            []providerKind
	// secrets are those that were looked for by their names.
	secrets map[string][]metav1.PartialObjectMetadata
	// found are the objects that were read together; nil if there is none. gone are the
	// kinds that the API server does not know.
	found map[inventory.Entry]*unstructured.Unstructured
	gone  map[schema.GroupKind]inventory.Live
	// claimed may be nil. tier: it knows every Kustomization and HelmRelease that applies
	// to the cluster.
	claimed Claims
	tier    bool
	// rendered are the ids of what the owner declares, which is applied by now, where a Kustomization or HelmRelease
	// without a kubeconfig applies to as well: these leave what another owner answers for, as that one does.
	rendered map[string]bool
	// asked: a person deleted the owner.
	asked bool
	// above are the owners that were read. home is what was read of the tier that applies
	// from elsewhere; nil before it is asked.
	above map[inventory.Entry]above
	home  *lookups
}

// neededBy names the Cluster that an object is a part of, or that needs it to be
// taken apart one day, and the identity that reads a Secret, or what a Credential keeps in one. What Cluster API has
// not adopted yet, or a provider does not mark, is found by what refers to it. confirmed: a person has
// confirmed its deletion.
func (a *Applier) neededBy(ctx context.Context, e inventory.Entry, u *unstructured.Unstructured, confirmed bool, k *lookups) (ofCluster, credential string, err error) {
	if isCluster(e) {
		return "", "", nil
	}
	if name := clusterapi.ClusterOf(u); name != "" {
		exists, err := a.clusterExists(ctx, clusterEntry(types.NamespacedName{Namespace: e.Namespace, Name: name}))
		if err != nil {
			return "", "", err
		}
		if exists {
			return name, "", nil
		}
	}
	secret, err := secretOf(e, u)
	if err != nil || !clusterapi.IsGroup(e.Group) && secret == (inventory.Entry{}) {
		return "", "", err
	}
	if _, err := a.facts.RESTMapper().RESTMapping(clusterapi.ClusterKind); meta.IsNoMatchError(err) {
		return "", "", nil // there are no Clusters
	} else if err != nil {
		return "", "", fmt.Errorf("cannot look up kind Cluster: %w", err)
	}
	switch {
	case secret != (inventory.Entry{}):
		return a.credentialOf(ctx, secret, confirmed, k)
	case clusterapi.IsIdentity(e.Kind):
		// Its own namespace, not that of its Kustomization's targetNamespace.
		e.Namespace = u.GetNamespace()
		ofCluster, err := a.identifies(ctx, e, k)
		return ofCluster, "", err
	}
	ofCluster, err = a.referredTo(ctx, e, u, k)
	return ofCluster, "", err
}

func isSecret(e inventory.Entry) bool { return e.Group == "" && e.Kind == "Secret" }

func isCredential(e inventory.Entry) bool { return e.Group == v1alpha1.Group && e.Kind == "Credential" }

// secretOf is the Secret of which the keys end with an object: the object itself, or what a
// Credential keeps them in. It is zero for all others.
func secretOf(e inventory.Entry, u *unstructured.Unstructured) (inventory.Entry, error) {
	switch {
	case isSecret(e):
		return e, nil
	case !isCredential(e):
		return inventory.Entry{}, nil
	}
	c := &v1alpha1.Credential{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c); err != nil {
		return inventory.Entry{}, fmt.Errorf("cannot read %s: %w", e, err)
	}
	return inventory.Entry{Version: "v1", Kind: "Secret", Namespace: e.Namespace, Name: c.SecretName()}, nil
}

func (a *Applier) clusterExists(ctx context.Context, e inventory.Entry) (bool, error) {
	err := a.facts.InServed(clusterapi.ClusterKind, func(served *meta.RESTMapping) error {
		u := &metav1.PartialObjectMetadata{}
		u.SetGroupVersionKind(served.GroupVersionKind)
		return a.facts.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.Name}, u)
	})
	switch {
	case meta.IsNoMatchError(err):
		gone := a.facts.kindGone(ctx, e)
		if gone.State == inventory.Unknown {
			return false, errors.New(gone.Problem)
		}
		return false, nil
	case confirmsAbsence(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("cannot read Cluster %s/%s: %w", e.Namespace, e.Name, err)
	}
	return true, nil
}

// referredTo names a Cluster that refers to an object: as its infrastructure or
// control plane, or as its class or a template of that.
func (a *Applier) referredTo(ctx context.Context, e inventory.Entry, u *unstructured.Unstructured, k *lookups) (string, error) {
	class := types.NamespacedName{Namespace: e.Namespace, Name: clusterapi.OwnerOf(u, clusterapi.ClusterClass)}
	if e.Group == clusterapi.Group && e.Kind == clusterapi.ClusterClass {
		class.Name = e.Name
	}
	within := e.Namespace
	if class.Name != "" {
		within = "" // a class may be used from other namespaces
	}
	clusters, err := a.clusters(ctx, within, k)
	if err != nil {
		return "", err
	}
	c := clusters.withPart(e.Namespace, e.Kind, e.Name)
	if class.Name != "" {
		c = cmp.Or(c, clusters.classes[class])
	}
	if c == nil {
		return "", nil
	}
	return c.GetName(), nil
}

func (a *Applier) list(ctx context.Context, gvk schema.GroupVersionKind, namespace string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := a.facts.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("cannot list %s: %w", gvk.Kind, err)
	}
	return list.Items, nil
}

// identifies names what uses an identity to reach its cloud: a Cluster if it is
// known of which, or else the object that names it.
func (a *Applier) identifies(ctx context.Context, e inventory.Entry, k *lookups) (string, error) {
	if err := a.identities(ctx, e.Namespace, k); err != nil {
		return "", err
	}
	needs := a.needs(ctx, e.Namespace, true, k)
	return userOf(e, k, func(u *unstructured.Unstructured) (bool, error) { return needs(u, uses) })
}

// userOf names the first that uses an identity, or another one behind which it stands, and needs it.
func userOf(e inventory.Entry, k *lookups, needs func(*unstructured.Unstructured) (bool, error)) (string, error) {
	seen := map[string]bool{e.ID(): true}
	for queue := []inventory.Entry{e}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for i := range k.users {
			u := &k.users[i]
			if !clusterapi.NamesIdentity(u, clusterapi.IdentityField, at.Namespace, at.Kind, at.Name) {
				continue
			}
			if needed, err := needs(u); err != nil {
				return "", err
			} else if needed {
				return clusterNameOf(u), nil
			}
		}
		for i := range k.identities {
			before := inventory.Of(&k.identities[i])
			if !seen[before.ID()] && clusterapi.NamesIdentity(&k.identities[i], clusterapi.SourceIdentityField, at.Namespace, at.Kind, at.Name) {
				seen[before.ID()] = true
				queue = append(queue, before)
			}
		}
	}
	return "", nil
}

// clusterNameOf is the Cluster of what uses an identity, or its own name if that is not known.
func clusterNameOf(u *unstructured.Unstructured) string {
	return cmp.Or(clusterapi.ClusterOf(u), u.GetName())
}

// credentialOf tells what reads a Secret to reach its cloud, and which Cluster needs that: an
// identity, a cluster that names it, resources of Azure Service Operator, or the controllers of a
// provider.
func (a *Applier) credentialOf(ctx context.Context, e inventory.Entry, confirmed bool, k *lookups) (ofCluster, credential string, err error) {
	if err := a.identities(ctx, e.Namespace, k); err != nil {
		return "", "", err
	}
	needs := a.needs(ctx, e.Namespace, confirmed, k)
	for i := range k.identities {
		u := &k.identities[i]
		if !clusterapi.ReadsSecret(u, e.Namespace, e.Name) {
			continue
		}
		identity := inventory.Of(u)
		how, err := a.useOf(ctx, e, u, k)
		if err != nil {
			return "", "", err
		}
		user, err := userOf(identity, k, func(u *unstructured.Unstructured) (bool, error) { return needs(u, how) })
		if err != nil {
			return "", "", err
		}
		if user != "" {
			return user, toldIn(e.Namespace, u), nil
		}
		credential = toldIn(e.Namespace, u)
	}
	provider := clusterapi.ProviderByControllerSecret(e.Name)
	for i := range k.users {
		u := &k.users[i]
		beside := u.GetNamespace() == e.Namespace
		named := beside && slices.Contains(clusterapi.AzureSecretsOf(u), e.Name) || clusterapi.ReadsSecret(u, e.Namespace, e.Name)
		// The controllers may have other keys by now, such as a role of their account: a person knows.
		if !named && !clusterapi.UsesControllerKeys(u, e.Name, k.identities) {
			continue
		}
		how := mayUse
		if named {
			if how, err = a.useOf(ctx, e, u, k); err != nil {
				return "", "", err
			}
		}
		if needed, err := needs(u, how); err != nil {
			return "", "", err
		} else if needed {
			return clusterNameOf(u), toldIn(e.Namespace, u), nil
		}
		credential = cmp.Or(credential, toldIn(e.Namespace, u))
	}
	if provider != "" {
		credential = cmp.Or(credential, "controllers of "+provider)
	}
	return "", credential, nil
}

// toldIn names an object to those who may read a namespace, who need not see others.
func toldIn(namespace string, u *unstructured.Unstructured) string {
	if in := u.GetNamespace(); in != "" && in != namespace {
		return u.GetKind() + " of another namespace"
	}
	return inventory.Of(u).String()
}

// useOf tells how it is known that an object which names a Secret has its keys in this one. Whoever
// may write one in a namespace of their own can have it name a Secret of others. What has no namespace, and
// says none, means a Secret beside its controllers, of which the providers make it an owner.
func (a *Applier) useOf(ctx context.Context, secret inventory.Entry, u *unstructured.Unstructured, k *lookups) (use, error) {
	named := types.NamespacedName{Namespace: secret.Namespace, Name: secret.Name}
	switch in := u.GetNamespace(); {
	case in == secret.Namespace, in == "" && slices.Contains(clusterapi.SecretsOf(u), named):
		return uses, nil
	case in != "":
		return says, nil
	}
	isOwner := func(r metav1.OwnerReference) bool { return r.Kind == u.GetKind() && r.Name == u.GetName() }
	own := &metav1.PartialObjectMetadata{}
	own.SetGroupVersionKind(secret.GroupKind().WithVersion("v1"))
	if err := a.facts.Get(ctx, client.ObjectKey(named), own); err != nil && !confirmsAbsence(err) {
		return uses, fmt.Errorf("cannot read %s to tell whether %s %s reads it: %w", secret, u.GetKind(), u.GetName(), err)
	}
	if slices.ContainsFunc(own.OwnerReferences, isOwner) {
		return uses, nil
	}
	others, err := a.secretsNamed(ctx, secret.Name, k)
	if err != nil {
		return uses, err
	}
	if slices.ContainsFunc(others, func(other metav1.PartialObjectMetadata) bool {
		return slices.ContainsFunc(other.OwnerReferences, isOwner)
	}) {
		return usesAnother, nil
	}
	return sameName, nil
}

// secretsNamed are the Secrets of a name in all namespaces, none if these may not be listed. They are
// read once for a plan.
func (a *Applier) secretsNamed(ctx context.Context, name string, k *lookups) ([]metav1.PartialObjectMetadata, error) {
	if found, known := k.secrets[name]; known {
		return found, nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "SecretList"})
	if err := a.facts.List(ctx, list, client.MatchingFields{"metadata.name": name}); err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("cannot list Secrets of the name %s to tell which of them are keys: %w", name, err)
	}
	if k.secrets == nil {
		k.secrets = map[string][]metav1.PartialObjectMetadata{}
	}
	k.secrets[name] = list.Items
	return list.Items, nil
}

// needs tells whether what is in a namespace has to stay for an object that uses it, whatever a
// person confirms. What is used stays for what is in the same namespace, and elsewhere for a Cluster that
// exists. What may be used stays for what is taken down: what is being deleted, or of a Cluster that goes,
// as Clusters go one by one. For one that stays, a confirmation counts. What another namespace only says
// to use stays for a Cluster that goes with the owner of the plan, and for what others delete for a while:
// they need not end that, nor a Cluster that they only confirm. Where only the name tells, it stays for a Cluster
// that goes with any owner, too. Clusters that may not be seen exist. confirmed: a person has confirmed it.
func (a *Applier) needs(ctx context.Context, namespace string, confirmed bool, k *lookups) func(*unstructured.Unstructured, use) (bool, error) {
	return func(u *unstructured.Unstructured, how use) (bool, error) {
		if how == usesAnother {
			return false, nil
		}
		stranger := (how == says || how == sameName) && u.GetNamespace() != namespace
		if how == uses && u.GetNamespace() == namespace || u.GetDeletionTimestamp() != nil && !stranger || a.takenDown(u) {
			return true, nil
		}
		cluster, hidden, err := a.clusterOf(ctx, u, k)
		switch {
		case err != nil:
			return false, err
		case how == uses:
			return hidden || cluster != nil, nil
		case cluster == nil:
			return false, nil
		case stranger && a.takenDown(cluster):
			return true, nil
		case !confirmed:
			// A person is asked anyway. For that the owners of all Clusters need not be read.
			return isGoing(cluster) && (!stranger || k.owns(inventory.Of(cluster))), nil
		case stranger:
			return a.goesAlong(ctx, cluster, how, k)
		}
		return a.goes(ctx, cluster, k)
	}
}

// takenDown reports whether an object is being deleted, and not for too long.
func (a *Applier) takenDown(u *unstructured.Unstructured) bool {
	at := u.GetDeletionTimestamp()
	return at != nil && a.now().Sub(at.Time) < takingDown
}

// goesAlong reports whether a Cluster goes that the owner of the plan answers for, or whose HelmRelease does, or which
// has any owner where only the name of the keys tells. That owner has to go itself: anybody may write its name in the
// labels of a Cluster.
func (a *Applier) goesAlong(ctx context.Context, cluster *unstructured.Unstructured, how use, k *lookups) (bool, error) {
	if k.owns(inventory.Of(cluster)) {
		return a.goes(ctx, cluster, k)
	}
	return a.goesAbove(ctx, cluster, k, func(e inventory.Entry) bool { return how == sameName || k.owns(e) })
}

func (k *lookups) owns(e inventory.Entry) bool {
	return slices.ContainsFunc(k.owned, func(o inventory.Entry) bool { return o.ID() == e.ID() })
}

// identities reads what names an identity and what is one, once for a plan. With
// rights for some namespaces only, what is in the one that is named counts as well.
func (a *Applier) identities(ctx context.Context, namespace string, k *lookups) error {
	if k.looked == nil {
		kinds, err := a.facts.providerKinds()
		if err != nil {
			return err
		}
		if k.hidden, err = a.identitiesIn(ctx, "", kinds, k); err != nil {
			return err
		}
		k.looked = map[string]bool{"": true}
	}
	if k.looked[namespace] {
		return nil
	}
	if _, err := a.identitiesIn(ctx, namespace, k.hidden, k); err != nil {
		return err
	}
	k.looked[namespace] = true
	return nil
}

// identitiesIn adds the objects of kinds in a namespace, or in all of them, and returns the kinds that
// may not be listed there and have namespaces.
func (a *Applier) identitiesIn(ctx context.Context, namespace string, kinds []providerKind, k *lookups) (hidden []providerKind, err error) {
	var users, identities []unstructured.Unstructured
	for _, kind := range kinds {
		found, err := a.list(ctx, kind.gvk, namespace)
		switch {
		case apierrors.IsForbidden(err) && kind.namespaced:
			hidden = append(hidden, kind)
		case apierrors.IsForbidden(err):
		case err != nil:
			return nil, err
		case clusterapi.IsIdentity(kind.gvk.Kind):
			identities = append(identities, found...)
		default:
			users = append(users, found...)
		}
	}
	k.users, k.identities = append(k.users, users...), append(k.identities, identities...)
	return hidden, nil
}

type providerKind struct {
	gvk        schema.GroupVersionKind
	namespaced bool
}

// providerKinds lists the kinds of infrastructure and control plane providers that are
// identities or may name one, each once. Groups of others may fail to answer; of these none may.
func (c *Cluster) providerKinds() ([]providerKind, error) {
	_, lists, err := c.discovery.ServerGroupsAndResources()
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); ok {
		err = nil
		for gv, cause := range failed {
			if clusterapi.IsGroup(gv.Group) {
				err = cause
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot discover kinds of Cluster API: %w", err)
	}
	var kinds []providerKind
	seen := map[schema.GroupKind]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("cannot parse group version %q: %w", list.GroupVersion, err)
		}
		if gv.Group != clusterapi.InfrastructureGroup && gv.Group != clusterapi.ControlPlaneGroup {
			continue
		}
		for _, r := range list.APIResources {
			gvk := gv.WithKind(r.Kind)
			if seen[gvk.GroupKind()] || clusterapi.IsTemplate(r.Kind) || !slices.Contains(r.Verbs, "list") ||
				!clusterapi.IsIdentity(r.Kind) && !clusterapi.MayNameIdentity(r.Kind) {
				continue
			}
			seen[gvk.GroupKind()] = true
			kinds = append(kinds, providerKind{gvk: gvk, namespaced: r.Namespaced})
		}
	}
	return kinds, nil
}
