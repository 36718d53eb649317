package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// What Fetch says instead of an answer.
var (
	// ErrUnknown: this process drives no child of the name.
	ErrUnknown = errors.New("no such child is driven here")
	// ErrNotConnected: the child did not answer its last probe, or the parent has no account
	// of its own there yet.
	ErrNotConnected = errors.New("the child is not connected")
)

// mostLease bounds what is read of the Lease that names the agent's pod.
const mostLease = 64 << 10

// Fetch sends one GET for a path, which needs no escaping, to a child, as the parent's own
// account: never with the kubeconfig, and with no header but those of the link and Accept.
// A child that did not answer its last probe is not asked. The caller bounds ctx and closes
// the body, which fails at the bound of package answer. It is safe for concurrent use, beside
// probes and sessions.
func (c *Pool) Fetch(ctx context.Context, child types.NamespacedName, path, accept string) (*http.Response, error) {
	c.mu.Lock()
	l := c.links[child]
	c.mu.Unlock()
	if l == nil {
		return nil, ErrUnknown
	}
	as := l.account()
	if as == nil {
		return nil, ErrNotConnected
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.life, cancel)
	end := func() { stop(); cancel() }
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, as.base.JoinPath(path).String(), nil)
	if err != nil {
		end()
		return nil, fmt.Errorf("cannot ask for %s: %w", path, err)
	}
	r.Header.Set("Accept", accept)
	response, err := as.endless.Do(r)
	if err != nil {
		end()
		return nil, err
	}
	response.Body = &fetched{response.Body, end}
	if response.StatusCode == http.StatusForbidden {
		l.refuse()
	}
	return response, nil
}

// fetched ends the call with its body.
type fetched struct {
	io.ReadCloser
	end func()
}

func (f *fetched) Close() error {
	defer f.end()
	return f.ReadCloser.Close()
}

// account is the caller as the parent's own account; nil while there is none, or the child
// does not answer.
func (l *Link) account() *caller {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.answers || l.life.Err() != nil || !l.pool.now().Before(l.expires) {
		return nil
	}
	return l.minted
}

// refuse notes that the child refused the account something that it was permitted.
func (l *Link) refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unpermitted = true
}

// AgentPod is the name of the pod that leads the tier of a child, as its Lease says. The
// name is a valid one, whatever the child says.
func (c *Pool) AgentPod(ctx context.Context, child types.NamespacedName) (_ string, err error) {
	response, err := c.Fetch(ctx, child, leasesPath+"/"+v1alpha1.LeaderLease, "application/json")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("cannot read Lease %s of the agent: status %d", v1alpha1.LeaderLease, response.StatusCode)
	}
	lease := &coordinationv1.Lease{}
	if err := json.NewDecoder(io.LimitReader(response.Body, mostLease)).Decode(lease); err != nil {
		return "", fmt.Errorf("cannot read Lease %s of the agent: %w", v1alpha1.LeaderLease, err)
	}
	if lease.Spec.HolderIdentity == nil || len(validation.IsDNS1123Subdomain(*lease.Spec.HolderIdentity)) > 0 {
		return "", errors.New("no pod leads the child's tier")
	}
	return *lease.Spec.HolderIdentity, nil
}

// Permission is what the parent is to be allowed in a child beside its layers.
type Permission struct {
	// Role names it, and Digest what it consists of.
	Role, Digest string
	// Objects give the right, and Needs are what it consists of.
	Objects []*unstructured.Unstructured
	Needs   []authorizationv1.ResourceAttributes
}

// Permit makes sure that the parent's account has a permission. It asks the child, once in
// the life of this process and after each refusal, and writes the objects with the
// kubeconfig if something is missing. After a failure nothing is done for a minute.
func (s *Session) Permit(ctx context.Context, p Permission) error {
	l := s.link
	now := l.pool.now()
	l.mu.Lock()
	refused, early := l.unpermitted, now.Before(l.permitAt)
	l.mu.Unlock()
	if l.minted == nil || early || l.rights[p.Role] == p.Digest && !refused {
		return nil
	}
	l.mu.Lock()
	l.unpermitted, l.permitAt = false, now.Add(permitPause)
	l.mu.Unlock()
	if err := s.Identify(ctx); err != nil {
		return err
	}
	for _, need := range p.Needs {
		may, err := l.may(ctx, need)
		if err != nil {
			return err
		}
		if may {
			continue
		}
		admin, err := s.Administrator(ctx)
		if err != nil {
			return err
		}
		if err := writeAccess(ctx, admin, p.Objects); err != nil {
			return err
		}
		if err := s.DropAdministrator(ctx); err != nil {
			return err
		}
		break
	}
	if l.rights == nil {
		l.rights = map[string]string{}
	}
	l.rights[p.Role] = p.Digest
	return nil
}

// may asks the child whether the parent's account may do something.
func (l *Link) may(ctx context.Context, what authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &what}}
	review.SetGroupVersionKind(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"))
	body, err := json.Marshal(review)
	if err != nil {
		return false, fmt.Errorf("cannot encode access review: %w", err)
	}
	got := &authorizationv1.SelfSubjectAccessReview{}
	raw, err := l.caller().do(ctx, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, plainContent()).Raw()
	if err == nil {
		err = json.Unmarshal(raw, got)
	}
	if err != nil {
		return false, fmt.Errorf("cannot ask for the rights of the parent: %w", err)
	}
	return got.Status.Allowed, nil
}
