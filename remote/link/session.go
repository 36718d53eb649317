package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/access"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// rightsWait is how long the API server may take to honour a right that was granted.
const rightsWait = 3 * time.Second

// IdentityError: another cluster answers than the one on record. Its reason is
// IdentityChanged. Nothing is written to the cluster.
type IdentityError struct{ Found, Recorded string }

func (e *IdentityError) Error() string {
	return fmt.Sprintf("another cluster answers: kube-system has UID %s, recorded is %s", e.Found, e.Recorded)
}

// Session is how one reconcile calls the child. It is valid until the reconcile asks
// the link again, and for one goroutine.
type Session struct {
	link    *Link
	request Request
	// identified: the identity was read with the credentials of this generation.
	identified bool
	generation int
	// before is what was spent in earlier sessions.
	before spent
}

// Begin begins a session after Ask returned a result. request is the one that was
// asked with; its Recorded is the identity that the child must have.
func (l *Link) Begin(request Request) *Session {
	// A kind that was missing may be served by now.
	l.kinds.Doubt()
	l.meter.mu.Lock()
	defer l.meter.mu.Unlock()
	return &Session{link: l, request: request, before: l.meter.spent}
}

// End closes the session's connections. Without it, they are closed some seconds later.
func (s *Session) End() {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admin.release()
	l.minted.release()
	l.lent.release()
	l.lent = nil
}

// takeBack ends what no session used.
func (l *Link) takeBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lent.release()
	l.lent = nil
}

// Over reports whether the child was forgotten, so that what failed may have failed
// for that.
func (s *Session) Over() bool { return s.link.life.Err() != nil }

// Identify makes sure that the child is the recorded cluster. It asks the child once
// for each set of credentials.
func (s *Session) Identify(ctx context.Context) error {
	l := s.link
	if l.caller() == nil {
		if err := l.reread(ctx, s.request); err != nil {
			return err
		}
	}
	if s.identified && s.generation == l.generation {
		return nil
	}
	s.identified = false
	err := l.verify(ctx)
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		l.drop()
		l.doubt()
		if err = l.reread(ctx, s.request); err == nil {
			err = l.verify(ctx)
		}
	}
	if err != nil {
		return reason.Because(v1alpha1.ReasonUnreachable, err)
	}
	if l.identity != s.request.Recorded {
		return reason.Because(v1alpha1.ReasonIdentityChanged, &IdentityError{Found: l.identity, Recorded: s.request.Recorded})
	}
	s.identified, s.generation = true, l.generation
	return nil
}

// Repair drops what a refusal of the child shows to be of no use any more: a token
// that was revoked or that expired, or rights that somebody took away. It reports
// whether there was something to drop, so that the call is worth repeating.
func (s *Session) Repair(err error) bool {
	switch {
	case apierrors.IsUnauthorized(err):
		s.link.drop()
		return true
	case apierrors.IsForbidden(err) && s.link.rights != nil:
		s.link.doubt()
		return true
	}
	return false
}

// Account connects as the parent's own account or, before that has a token, with the
// kubeconfig.
func (s *Session) Account(ctx context.Context) (*apply.Cluster, error) {
	if err := s.Identify(ctx); err != nil {
		return nil, err
	}
	return s.link.cluster(s.link.caller())
}

// Administrator connects with the kubeconfig's own credentials.
func (s *Session) Administrator(ctx context.Context) (*apply.Cluster, error) {
	if s.link.admin == nil || s.link.lapsed() {
		if err := s.link.reread(ctx, s.request); err != nil {
			return nil, err
		}
	}
	if err := s.Identify(ctx); err != nil {
		return nil, err
	}
	if s.link.admin == nil {
		return nil, reason.Because(v1alpha1.ReasonUnreachable, errors.New("cannot connect: the kubeconfig was dropped meanwhile"))
	}
	return s.link.cluster(s.link.admin)
}

// AtHand is the connection with the kubeconfig's credentials if the kubeconfig was just
// read, nil otherwise: reading it for a mere look is not worth it.
func (s *Session) AtHand(ctx context.Context) (*apply.Cluster, error) {
	if s.link.admin == nil {
		return nil, nil
	}
	return s.Administrator(ctx)
}

// DropAdministrator goes back from the administrator's credentials to a token.
func (s *Session) DropAdministrator(ctx context.Context) error {
	l := s.link
	if l.minted == nil {
		return l.renew(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admin.release()
	l.admin = nil
	return nil
}

// Read reads one object of a built-in kind by its path.
func (s *Session) Read(ctx context.Context, path string, into runtime.Object) error {
	as := s.link.caller()
	if as == nil {
		if err := s.link.reread(ctx, s.request); err != nil {
			return err
		}
		as = s.link.admin
	}
	metered := *as
	metered.http = s.link.meter.over(metered.sessions)
	return metered.do(ctx, "GET", path, nil, plainContent()).Into(into)
}

// Accepts reports whether the child, which must be the recorded cluster, takes the credentials of a
// kubeconfig that leads to it. The session goes on with its own.
func (s *Session) Accepts(ctx context.Context, config *rest.Config) (bool, error) {
	as, err := calls(config, s.link.pool.Addresses, s.link.mayWrite)
	if err != nil {
		return false, err
	}
	defer as.release()
	uid, err := kubeSystemUID(ctx, as)
	switch {
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
		return false, nil
	case err != nil:
		return false, err
	case uid != s.request.Recorded:
		return false, reason.Because(v1alpha1.ReasonIdentityChanged, &IdentityError{Found: uid, Recorded: s.request.Recorded})
	}
	return true, nil
}

// Steady words an error of a call to the child the same way each time, as a condition needs it.
func (s *Session) Steady(err error) error { return steady(err, s.link.host) }

// Grant makes sure that the parent has an account of its own in the child with these
// rights for one role, and a token of the account. If the account or its rights are
// missing, Grant reads the kubeconfig and creates them.
func (s *Session) Grant(ctx context.Context, role string, rules []rbacv1.PolicyRule) error {
	if err := s.Identify(ctx); err != nil {
		return err
	}
	l := s.link
	digest, err := access.Digest(rules)
	if err != nil {
		return err
	}
	if l.minted != nil && l.rights[role] == digest {
		return nil
	}
	admin, err := s.Administrator(ctx)
	if err != nil {
		return err
	}
	if err := writeAccess(ctx, admin, l.grants(role, rules)); err != nil {
		return err
	}
	if err := s.DropAdministrator(ctx); err != nil {
		return err
	}
	if err := l.allowed(ctx, "", rules[len(rules)-1]); err != nil {
		return err
	}
	if l.rights == nil {
		l.rights = map[string]string{}
	}
	l.rights[access.BaseRole], l.rights[role], l.doubted = "", digest, false
	l.mayWatch()
	return nil
}

// grants are the objects that give the parent's account these rights for one role, with the account
// and the rights of all layers where it is not known that they are there.
func (l *Link) grants(role string, rules []rbacv1.PolicyRule) []*unstructured.Unstructured {
	objects := access.Role(role, rules)
	if _, known := l.rights[access.BaseRole]; !known || l.minted == nil {
		objects = append(append(access.Account(), access.Role(access.BaseRole, access.BaseRights())...), objects...)
	}
	return objects
}

// DistrustBase has the next Grant write the rights of all layers along: a record in the child says that
// other rights were granted last. That may have been another version, which has other ones, and the
// records of other layers still vouch for those of before.
func (s *Session) DistrustBase() { delete(s.link.rights, access.BaseRole) }

// Trust takes it that an earlier process granted these rights, and those that Grant gives
// with all of them, as a record in the child says. Grant has nothing to do then. What the
// child refuses all the same, Repair has Grant do again.
func (s *Session) Trust(role string, rules []rbacv1.PolicyRule) error {
	l := s.link
	digest, err := access.Digest(rules)
	if _, known := l.rights[role]; err != nil || known || l.doubted || l.minted == nil {
		return err
	}
	if l.rights == nil {
		l.rights = map[string]string{}
	}
	l.rights[access.BaseRole], l.rights[role] = "", digest
	l.mayWatch()
	return nil
}

// Lend gives the parent's account the right to get one Secret of the child for as long as the
// owner, an object of the same namespace, exists there. It reads the kubeconfig for that. The error is
// one of apimachinery if there is no owner, or the kubeconfig is refused.
func (s *Session) Lend(ctx context.Context, secret types.NamespacedName, owner *metav1.PartialObjectMetadata) error {
	admin, err := s.Administrator(ctx)
	if err != nil {
		return err
	}
	name := client.ObjectKeyFromObject(owner)
	if err := admin.Get(ctx, name, owner); err != nil {
		return fmt.Errorf("cannot read %s %s of the child: %w", owner.Kind, name, err)
	}
	objects, rule := access.Loan(secret, metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID})
	if err := writeAccess(ctx, admin, objects); err != nil {
		return err
	}
	if err := s.DropAdministrator(ctx); err != nil {
		return err
	}
	return s.link.allowed(ctx, secret.Namespace, rule)
}

// doubt forgets which rights the parent has.
func (l *Link) doubt() { l.rights, l.doubted = nil, true }

// Revoke deletes the parent's rights for a layer that is no longer pushed.
func (s *Session) Revoke(ctx context.Context, role string) error {
	admin, err := s.Administrator(ctx)
	if err != nil {
		return err
	}
	objects := access.Role(role, nil)
	slices.Reverse(objects)
	for _, u := range objects {
		if err := client.IgnoreNotFound(admin.Delete(ctx, u)); err != nil {
			return fmt.Errorf("cannot delete %s %s of the parent: %w", u.GetKind(), u.GetName(), err)
		}
	}
	delete(s.link.rights, role)
	return s.DropAdministrator(ctx)
}

// writeAccess writes accounts, roles and bindings as the cluster's administrator.
func writeAccess(ctx context.Context, admin *apply.Cluster, objects []*unstructured.Unstructured) error {
	for _, u := range objects {
		write := func() error {
			_, err := admin.Write(ctx, u, access.Manager)
			return err
		}
		err := write()
		if apierrors.IsInvalid(err) && u.GetKind() == "ClusterRoleBinding" {
			// The role of a binding is immutable, and an earlier release bound another one.
			if err = client.IgnoreNotFound(admin.Delete(ctx, u.DeepCopy())); err == nil {
				err = write()
			}
		}
		if err != nil {
			return fmt.Errorf("cannot create %s %s for the parent: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// allowed waits until the API server honours a right that the parent was granted, in one
// namespace or, if that is empty, in all.
func (l *Link) allowed(ctx context.Context, namespace string, rule rbacv1.PolicyRule) error {
	ctx, cancel := context.WithTimeout(ctx, rightsWait)
	defer cancel()
	what := authorizationv1.ResourceAttributes{Namespace: namespace, Verb: rule.Verbs[len(rule.Verbs)-1], Group: rule.APIGroups[0], Resource: rule.Resources[0]}
	if len(rule.ResourceNames) > 0 {
		what.Name = rule.ResourceNames[len(rule.ResourceNames)-1]
	}
	for pause := 20 * time.Millisecond; ; pause *= 2 {
		if may, err := l.may(ctx, what); err != nil || may {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.New("the rights that the parent was granted have no effect yet")
		case <-timer.C:
		}
	}
}
