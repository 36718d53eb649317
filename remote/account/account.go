package account

import (
	"context"
	"fmt"
	"sync"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	authzv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/flight"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// Account is as whom a layer is pushed. The zero value is the parent itself.
type Account struct {
	// Namespace and Name of the service account, in each child and here.
	Namespace, Name string
}

// Parent reports whether the layer is pushed by the parent itself, with all rights.
func (a Account) Parent() bool { return a.Name == "" }

// User stands for the account, in each child and here; empty for the parent.
func (a Account) User() string {
	if a.Parent() {
		return ""
	}
	return target.User(a.Namespace, a.Name)
}

// Caller makes requests in this tier with the rights of a user.
type Caller interface {
	client.Reader
	Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error
}

// Times of what stands about an account.
const (
	// holds is how long an answer stands. The children of a layer ask every 45 seconds.
	holds = 10 * time.Second
	// lasts is how long the last answer stands while there is no other.
	lasts = time.Minute
	// askTimeout bounds one question, which an API server answers from its memory.
	askTimeout = 10 * time.Second
)

// Accounts knows the accounts of layers. It is safe for concurrent use. Its fields are set
// before the first use.
type Accounts struct {
	// As makes requests as a user, and Parent with the parent's own rights.
	As     func(ctx context.Context, user string) (Caller, error)
	Parent client.Reader
	// Default is the account of layers that name none; empty pushes them with all rights.
	Default string
	// NoCrossNamespaceRefs refuses sources of other namespaces to layers without an account.
	NoCrossNamespaceRefs bool
	Now                  func() time.Time

	asking flight.Group[bool]

	mu      sync.Mutex // guards answers
	answers map[question]answer
}

// question is whether a user may do something to one object.
type question struct {
	user, verb, group, resource, namespace, name string
}

// answer is what the API server said, and when.
type answer struct {
	allowed bool
	at      time.Time
}

// Of says as whom a layer is pushed.
func (a *Accounts) Of(ctx context.Context, layer *v1alpha1.Layer) (Account, error) {
	named := Account{Namespace: layer.Namespace, Name: layer.Spec.ServiceAccountName}
	switch {
	case !named.Parent():
		return named, nil
	case a.Default == "":
		return Account{}, nil
	}
	named.Name = a.Default
	escalates, err := a.may(ctx, question{
		user: named.User(), verb: "escalate", group: v1alpha1.GroupVersion.Group, resource: "layers", namespace: layer.Namespace, name: layer.Name,
	})
	if err != nil {
		return Account{}, reason.Because(v1alpha1.ReasonProgressing, err)
	}
	if escalates {
		return Account{}, nil
	}
	return named, nil
}

// Reader reads Secrets and ConfigMaps of this tier as an account.
func (a *Accounts) Reader(ctx context.Context, as Account) (client.Reader, error) {
	if as.Parent() {
		return a.Parent, nil
	}
	return a.As(ctx, as.User())
}

// Admit is an error if a layer has what the account that it is pushed as must not bring
// into a child: whoever chooses the image and the arguments of an agent or of a provider,
// which are administrators there, is one.
func Admit(layer *v1alpha1.Layer, as Account) error {
	what := ""
	switch {
	case as.Parent():
		return nil
	case layer.Spec.Agent != nil:
		what = "agent"
	case layer.Spec.Providers != nil:
		what = "providers"
	default:
		return nil
	}
	how := "put it into a Layer without serviceAccountName"
	if layer.Spec.ServiceAccountName == "" {
		how = fmt.Sprintf("let %s escalate layers.cascade.dev %s in namespace %s", as.User(), layer.Name, layer.Namespace)
	}
	return reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf(
		"cannot push spec.%s as %s: it is administrator of the cluster that it is installed in; %s", what, as.User(), how))
}

// resources are those of the kinds of sources that a Layer may name.
var resources = map[string]string{
	sourcev1.GitRepositoryKind: "gitrepositories", sourcev1.OCIRepositoryKind: "ocirepositories", sourcev1.BucketKind: "buckets",
}

// MayUse is an error unless a layer may use a source. One of another namespace is for
// those whom its owner lets get it.
func (a *Accounts) MayUse(ctx context.Context, layer *v1alpha1.Layer, as Account, key source.Key) error {
	switch {
	case key.Namespace == layer.Namespace, as.Parent() && !a.NoCrossNamespaceRefs:
		return nil
	case as.Parent():
		return reason.Because(v1alpha1.ReasonAccessDenied, fmt.Errorf("can't access '%s/%s/%s', cross-namespace references have been blocked", key.Kind, key.Namespace, key.Name))
	}
	resource := resources[key.Kind] // the kinds that the API admits
	allowed, err := a.may(ctx, question{
		user: as.User(), verb: "get", group: sourcev1.GroupVersion.Group, resource: resource, namespace: key.Namespace, name: key.Name,
	})
	switch {
	case err != nil:
		return reason.Because(v1alpha1.ReasonProgressing, err)
	case !allowed:
		return reason.Because(v1alpha1.ReasonAccessDenied, fmt.Errorf("can't access '%s/%s/%s' as %s: whoever owns namespace %s has to let it get %s %s there",
			key.Kind, key.Namespace, key.Name, as.User(), key.Namespace, resource, key.Name))
	}
	return nil
}

// Refused gives the error of reading a Secret or ConfigMap of this tier the reason that it
// has if the account may not read it, and otherwise the one that is given.
func Refused(as Account, otherwise string, err error) error {
	if !as.Parent() && apierrors.IsForbidden(err) {
		return reason.Because(v1alpha1.ReasonAccessDenied, fmt.Errorf("%w; let %s get it in namespace %s of this tier, or take it out of the layer", err, as.User(), as.Namespace))
	}
	return reason.Because(otherwise, err)
}

// may reports whether the API server lets a user do something. Callers that ask at the
// same time share the question.
func (a *Accounts) may(ctx context.Context, q question) (bool, error) {
	known := func() (bool, bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		found, ok := a.answers[q]
		return found.allowed, ok && a.Now().Sub(found.at) < holds
	}
	allowed, err := a.asking.Do(ctx, fmt.Sprintf("%q", q), known, func() (bool, error) { return a.ask(ctx, q) })
	if err == nil {
		return allowed, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if last, ok := a.answers[q]; ok && a.Now().Sub(last.at) < lasts {
		return last.allowed, nil
	}
	return false, fmt.Errorf("cannot ask whether %s may %s %s %s/%s: %w", q.user, q.verb, q.resource, q.namespace, q.name, err)
}

// ask puts a question to the API server, as the user whom it is about, and notes the answer.
func (a *Accounts) ask(ctx context.Context, q question) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	as, err := a.As(ctx, q.user)
	if err != nil {
		return false, err
	}
	review := &authzv1.SelfSubjectAccessReview{Spec: authzv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authzv1.ResourceAttributes{
		Verb: q.verb, Group: q.group, Resource: q.resource, Namespace: q.namespace, Name: q.name,
	}}}
	if err := as.Create(ctx, review); err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.Now()
	if a.answers == nil {
		a.answers = map[question]answer{}
	}
	for other, found := range a.answers {
		if now.Sub(found.at) >= lasts {
			delete(a.answers, other)
		}
	}
	a.answers[q] = answer{review.Status.Allowed, now}
	return review.Status.Allowed, nil
}
