package rights

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	authzv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/memo"
)

// Verbs that are asked about. To create and to read are not: what is in the cluster is
// neither created nor read to stay as it is.
const (
	// Patch is what applying an object takes.
	Patch = "patch"
	// Delete is what an owner needs that is being deleted.
	Delete = "delete"
)

// askTimeout bounds one question, which an API server answers from its memory.
const askTimeout = 10 * time.Second

// Account makes requests with the rights of an account.
type Account interface {
	Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error
}

// question is whether an account may do something. Without a name it is about all
// objects of a resource in a namespace.
type question struct {
	verb            string
	resource        schema.GroupResource
	namespace, name string
}

// compare orders questions.
func (q question) compare(other question) int {
	return cmp.Or(cmp.Compare(q.namespace, other.namespace), cmp.Compare(q.resource.Group, other.resource.Group),
		cmp.Compare(q.resource.Resource, other.resource.Resource))
}

// group is a question about objects that have it in common.
type group struct {
	question
	objects []inventory.Entry
}

// groupsOf are the questions about objects, of the namespaces that concern has. Objects
// whose kind is not served are left out: nobody may or may not apply them.
func groupsOf(mapper meta.RESTMapper, verb string, objects []inventory.Entry, concern func(namespace string) bool) []group {
	groups := map[question]*group{}
	for _, e := range objects {
		mapping, err := mapper.RESTMapping(e.GroupKind(), e.Version)
		if err != nil {
			continue
		}
		q := question{verb: verb, resource: mapping.Resource.GroupResource()}
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			q.namespace = e.Namespace
		}
		if !concern(q.namespace) {
			continue
		}
		if groups[q] == nil {
			groups[q] = &group{question: q}
		}
		groups[q].objects = append(groups[q].objects, e)
	}
	sorted := make([]group, 0, len(groups))
	for _, q := range slices.SortedFunc(maps.Keys(groups), question.compare) {
		sorted = append(sorted, *groups[q])
	}
	return sorted
}

// answers are those about one account; each question is asked once.
type answers struct {
	account Account
	known   map[question]bool
}

func (a *answers) allowed(ctx context.Context, q question) (bool, error) {
	if allowed, ok := a.known[q]; ok {
		return allowed, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	review := &authzv1.SelfSubjectAccessReview{Spec: authzv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authzv1.ResourceAttributes{
		Verb: q.verb, Group: q.resource.Group, Resource: q.resource.Resource, Namespace: q.namespace, Name: q.name,
	}}}
	if err := a.account.Create(ctx, review); err != nil {
		return false, fmt.Errorf("cannot ask whether an account may %s %s in namespace %q: %w", q.verb, q.resource, q.namespace, err)
	}
	if a.known == nil {
		a.known = map[question]bool{}
	}
	a.known[q] = review.Status.Allowed
	return review.Status.Allowed, nil
}

// denied is the first object of a group that the account may not touch; nil if there is
// none. Rules may name objects, so that a right that is not for all may be for each.
func (a *answers) denied(ctx context.Context, g group) (*inventory.Entry, error) {
	allowed, err := a.allowed(ctx, g.question)
	if allowed || err != nil {
		return nil, err
	}
	for _, e := range g.objects {
		q := g.question
		q.name = e.Name
		if allowed, err = a.allowed(ctx, q); err != nil {
			return nil, err
		}
		if !allowed {
			return &e, nil
		}
	}
	return nil, nil
}

// lost are objects that the account may not touch, one of each group.
func (a *answers) lost(ctx context.Context, groups []group) ([]inventory.Entry, error) {
	var lost []inventory.Entry
	for _, g := range groups {
		e, err := a.denied(ctx, g)
		if err != nil {
			return nil, err
		}
		if e != nil {
			lost = append(lost, *e)
		}
	}
	return lost, nil
}

// Lost asks as an account about objects that it applied, and returns some of those that it
// may not apply any more: one of each resource and namespace. It asks one question for each of
// these, unless the answer is no.
func Lost(ctx context.Context, as Account, mapper meta.RESTMapper, objects []inventory.Entry) ([]inventory.Entry, error) {
	a := answers{account: as}
	return a.lost(ctx, groupsOf(mapper, Patch, objects, everywhere))
}

// Doubt asks as an account about what a memo knows to be clean of an owner, and has the memo
// doubt what the account may not touch any more: all of it, if there is no answer. It is
// for what is looked at by interval, and asks one question for each resource and
// namespace.
func Doubt(ctx context.Context, as Account, mapper meta.RESTMapper, m *memo.Memo, owner types.NamespacedName) {
	objects := m.Applies(owner)
	lost, err := Lost(ctx, as, mapper, objects)
	switch {
	case apierrors.IsForbidden(err): // the account may not even ask, and is told by what it applies
	case err != nil:
		m.Doubt(owner, objects)
	default:
		m.Doubt(owner, lost)
	}
}

func everywhere(string) bool { return true }
