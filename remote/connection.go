package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// Numbers of a connection. The time-out is Cluster API's own for its cluster
// cache.
const (
	callTimeout = 10 * time.Second
	// tokenLife is asked for; the API server may shorten it.
	tokenLife = time.Hour
	// A child that failed is left alone for minBackoff, doubling to maxBackoff:
	// never longer, so that it is found soon after it comes back.
	minBackoff = 2 * time.Second
	maxBackoff = 30 * time.Second
)

// seedManager is the field manager of everything that a parent writes into a
// child.
const seedManager = "cascade-seed"

// errBackingOff is returned without a call while a child's breaker is open.
var errBackingOff = errors.New("last call failed, next one not before its time")

// Connections holds a connection for each child. A child is only ever visited
// by one goroutine at a time, so the lock guards the map alone and is never held
// over a network call.
type Connections struct {
	scheme *runtime.Scheme
	now    func() time.Time

	mu    sync.Mutex
	links map[types.NamespacedName]*link
}

// NewConnections returns an empty pool.
func NewConnections(scheme *runtime.Scheme, now func() time.Time) *Connections {
	return &Connections{scheme: scheme, now: now, links: map[types.NamespacedName]*link{}}
}

// link is the connection to one child.
type link struct {
	scheme *runtime.Scheme
	now    func() time.Time

	// digest of the kubeconfig that admin was made of.
	digest string
	admin  *apply.Cluster
	// minted replaces admin until renewAt; then it is minted anew.
	minted  *apply.Cluster
	renewAt time.Time
	version string

	failures  int
	notBefore time.Time
	// progress of layers that are not completely pushed yet, by name.
	progress map[string]progress
	// lease of the child's agent as it was seen to change last, by our clock:
	// the clocks of two clusters cannot be compared.
	lease        string
	leaseChanged time.Time
}

func (c *Connections) link(key types.NamespacedName) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[key]
	if l == nil {
		l = &link{scheme: c.scheme, now: c.now}
		c.links[key] = l
	}
	return l
}

// Forget closes the connection to a child and drops what is known of it.
func (c *Connections) Forget(key types.NamespacedName) {
	c.mu.Lock()
	l := c.links[key]
	delete(c.links, key)
	c.mu.Unlock()
	if l != nil {
		l.close()
	}
}

func (l *link) close() {
	for _, c := range []*apply.Cluster{l.admin, l.minted} {
		if c != nil {
			c.Close()
		}
	}
	l.admin, l.minted = nil, nil
}

// use makes the link follow a kubeconfig. A changed one, after a rotation of
// credentials or a move of the endpoint, replaces everything at once.
func (l *link) use(kubeconfig []byte) error {
	sum := sha256.Sum256(kubeconfig)
	digest := hex.EncodeToString(sum[:])
	if l.admin != nil && l.digest == digest {
		return nil
	}
	config, err := capibridge.Kubeconfig(kubeconfig)
	if err != nil {
		return err
	}
	config.Timeout = callTimeout
	config.UserAgent = "cascade-parent"
	admin, err := apply.Connect(config, l.scheme)
	if err != nil {
		return err
	}
	l.close()
	l.admin, l.digest, l.version = admin, digest, ""
	l.failures, l.notBefore = 0, time.Time{}
	return nil
}

// cluster is the connection to use now.
func (l *link) cluster() *apply.Cluster {
	if l.minted != nil && l.now().Before(l.renewAt) {
		return l.minted
	}
	return l.admin
}

// identify asks the child who it is; it is also the probe of its API server.
func (l *link) identify(ctx context.Context) (string, error) {
	if l.now().Before(l.notBefore) {
		return "", errBackingOff
	}
	uid, err := kubeSystemUID(ctx, l.cluster())
	if apierrors.IsUnauthorized(err) && l.minted != nil {
		// The minted token lapsed or was revoked; the kubeconfig is the way back.
		l.minted.Close()
		l.minted = nil
		uid, err = kubeSystemUID(ctx, l.admin)
	}
	if err != nil {
		l.failed()
		return "", err
	}
	l.failures, l.notBefore = 0, time.Time{}
	return uid, nil
}

func kubeSystemUID(ctx context.Context, c *apply.Cluster) (string, error) {
	ns := &corev1.Namespace{}
	if err := c.Get(ctx, types.NamespacedName{Name: "kube-system"}, ns); err != nil {
		return "", fmt.Errorf("cannot read namespace kube-system: %w", err)
	}
	return string(ns.UID), nil
}

// failed opens the breaker.
func (l *link) failed() {
	wait := min(minBackoff<<min(l.failures, 8), maxBackoff)
	l.failures++
	l.notBefore = l.now().Add(wait)
}

// mint makes sure that the parent has a ServiceAccount of its own in the child
// and a fresh token of it, so that the cluster's admin kubeconfig is not used
// again until the token lapses.
func (l *link) mint(ctx context.Context) error {
	if l.minted != nil && l.now().Before(l.renewAt) {
		return nil
	}
	c := l.admin
	for _, u := range parentAccess() {
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner(seedManager)); err != nil {
			return fmt.Errorf("cannot create %s %s for the parent: %w", u.GetKind(), u.GetName(), err)
		}
	}
	seconds := int64(tokenLife.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	account := &corev1.ServiceAccount{}
	account.Namespace, account.Name = v1alpha1.AgentNamespace, v1alpha1.ParentServiceAccount
	if err := c.SubResource("token").Create(ctx, account, request); err != nil {
		return fmt.Errorf("cannot request a token for the parent: %w", err)
	}
	config := rest.CopyConfig(c.Config)
	config.BearerToken = request.Status.Token
	config.CertData, config.KeyData = nil, nil
	minted, err := apply.Connect(config, l.scheme)
	if err != nil {
		return err
	}
	if l.minted != nil {
		l.minted.Close()
	}
	l.minted = minted
	now := l.now()
	l.renewAt = now.Add(request.Status.ExpirationTimestamp.Sub(now) * 2 / 3)
	return nil
}

// parentAccess are the objects that let the parent into a child. A layer may
// hold any kind, and rights that the writer does not have himself cannot be
// given, so the parent is an administrator of its children, as Cluster API
// made it in the first place.
func parentAccess() []*unstructured.Unstructured {
	labels := map[string]any{"app.kubernetes.io/name": "cascade"}
	return []*unstructured.Unstructured{
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": v1alpha1.AgentNamespace, "labels": labels},
		}},
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "ServiceAccount",
			"metadata":                     map[string]any{"name": v1alpha1.ParentServiceAccount, "namespace": v1alpha1.AgentNamespace, "labels": labels},
			"automountServiceAccountToken": false,
		}},
		{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
			"metadata": map[string]any{"name": v1alpha1.ParentServiceAccount, "labels": labels},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
			"subjects": []any{map[string]any{
				"kind": "ServiceAccount", "name": v1alpha1.ParentServiceAccount, "namespace": v1alpha1.AgentNamespace,
			}},
		}},
	}
}
