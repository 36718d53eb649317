// Package target is the cluster that an object is applied to: the reference to it
// that a Kustomization or HelmRelease makes, what became of it since the inventory
// was written, and the connections to clusters.
//
// Invariants:
//
//   - a reference holds no credential, and two that are equal lead to the same
//     cluster with the same rights;
//   - what a spec asks for is done with the rights of its service account, which
//     the target decides about, in its own cluster;
//   - connections are made once for each kubeconfig and shared. The lock of Targets
//     is never held over a call.
//
// Failure model: an error is about the one object. A cluster that does not let us
// read who it is stays unknown, which is no error.
package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/auth"
	"github.com/fluxcd/pkg/auth/azure"
	"github.com/fluxcd/pkg/auth/generic"
	authutils "github.com/fluxcd/pkg/auth/utils"
	"github.com/fluxcd/pkg/cache"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// Numbers of Targets.
const (
	// targetTimeout bounds each call to a cluster, as with Flux.
	targetTimeout = 30 * time.Second
	// mostTargets connections are kept, the least recently used goes first; one
	// that was not used for targetIdle goes in any case.
	mostTargets = 256
	targetIdle  = 30 * time.Minute
	// targetAge is after which a connection is made anew, and the cluster asked who
	// it is: one of a ConfigMap is found by name, under which it may have been
	// built again.
	targetAge = 30 * time.Minute
)

// Targets holds connections to the clusters that Kustomizations are applied to.
// It is safe for concurrent use; the lock is never held over a call. Fields are
// set before the first call of Get.
type Targets struct {
	// Local is the cluster that we run in, with our own rights.
	Local *apply.Cluster
	// Kubeconfig parses a kubeconfig. It decides what one may contain.
	Kubeconfig func([]byte) (*rest.Config, error)
	// Addresses are those where clusters of spec.kubeConfig may be.
	Addresses answer.Addresses
	// ServiceAccount is impersonated where an object names none
	// (--default-service-account).
	ServiceAccount string
	// KubeConfigServiceAccount is used for a ConfigMap that names none
	// (--default-kubeconfig-service-account).
	KubeConfigServiceAccount string
	// Elsewhere reports whether another tier manages a Cluster that is not here; nil asks nobody. Not
	// to know is an error: what is in its cluster would be left behind.
	Elsewhere func(context.Context, types.NamespacedName) (bool, error)
	// Tokens caches what cloud providers issue. Each request to a cluster of a
	// ConfigMap asks for its token, so there should be one.
	Tokens *cache.TokenCache
	Scheme *runtime.Scheme
	Now    func() time.Time

	mu     sync.Mutex
	own    map[types.NamespacedName]ownTokens
	open   map[string]*keptTarget
	most   int           // for tests; mostTargets if 0
	idle   time.Duration // for tests; targetIdle if 0
	opened int           // connections made so far
	// identities are those of clusters by the digests of the ways to them. They outlive the
	// connections: a tier may have a thousand kubeconfigs.
	identities map[string]identity
}

// keptTarget is a connection that is kept.
type keptTarget struct {
	cluster *apply.Cluster
	used    time.Time
	made    time.Time
}

// identity is which cluster a way leads to.
type identity struct {
	uid   string
	found time.Time
}

// Get returns the connection for an object: to the cluster of spec.kubeConfig
// or the one that we run in, as spec.serviceAccountName or the default. It is
// shared, and stays usable after it left the cache; nobody closes it. Calls of
// connections to other clusters end after 30 s, so watches need a configuration
// without that time-out. Errors are for a condition of reason
// ReconciliationFailed.
func (t *Targets) Get(ctx context.Context, obj *kustomizev1.Kustomization) (*apply.Cluster, error) {
	return t.Connect(ctx, obj.Namespace, Of(obj, t.ServiceAccount))
}

// Connect is Get for a reference of an object in a namespace: one that was
// recorded, say.
func (t *Targets) Connect(ctx context.Context, namespace string, ref Ref) (*apply.Cluster, error) {
	base, digest, err := t.base(ctx, namespace, ref)
	if err != nil || ref.User == "" {
		return base, err
	}
	return t.keep(digest+" as "+ref.User, func() (*apply.Cluster, error) { return base.As(ref.User) })
}

// Identify fills in which cluster a reference leads to, and the Cluster of its kubeconfig. A cluster that does
// not let us read its kube-system namespace, or that has none, as a workspace of kcp, stays unknown, without an error.
func (t *Targets) Identify(ctx context.Context, namespace string, ref Ref) (Ref, error) {
	ctx, cancel := context.WithTimeout(ctx, targetTimeout)
	defer cancel()
	w, err := t.way(ctx, namespace, ref)
	if err != nil {
		return ref, err
	}
	ref.OfCluster = w.ofCluster
	if ref.Cluster = t.known(w.digest); ref.Cluster != "" {
		return ref, nil
	}
	base, err := w.connect()
	if err != nil {
		return ref, err
	}
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err = base.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, ns)
	if apierrors.IsForbidden(err) || (apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)) {
		return ref, nil
	}
	if err != nil {
		return ref, fmt.Errorf("cannot identify target cluster: %w", err)
	}
	ref.Cluster = string(ns.UID)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.identities == nil {
		t.identities = map[string]identity{}
	}
	t.identities[w.digest] = identity{ref.Cluster, t.Now()}
	return ref, nil
}

// Presently is a recorded reference with the cluster that it leads to now, which may not tell
// which one it is.
func (t *Targets) Presently(ctx context.Context, namespace string, ref Ref) (Ref, error) {
	ref.Cluster = ""
	return t.Identify(ctx, namespace, ref)
}

func (t *Targets) known(digest string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.Now()
	maps.DeleteFunc(t.identities, func(of string, i identity) bool { return of != "" && now.Sub(i.found) > targetAge })
	return t.identities[digest].uid
}

// AccountGone asks the target whether the service account that a reference impersonates is
// confirmed not to exist. The reference is of an object in a namespace.
func (t *Targets) AccountGone(ctx context.Context, namespace string, ref Ref) (bool, error) {
	if ref.User == "" {
		return false, nil
	}
	base, _, err := t.base(ctx, namespace, ref)
	if err != nil {
		return false, err
	}
	err = base.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Account()}, &corev1.ServiceAccount{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("cannot read ServiceAccount %s/%s of the target cluster: %w", namespace, ref.Account(), err)
	}
	return false, nil
}

// base is the connection without impersonation, and the digest of what it was
// made of.
func (t *Targets) base(ctx context.Context, namespace string, ref Ref) (*apply.Cluster, string, error) {
	ctx, cancel := context.WithTimeout(ctx, targetTimeout)
	defer cancel()
	w, err := t.way(ctx, namespace, ref)
	if err != nil {
		return nil, "", err
	}
	c, err := w.connect()
	return c, w.digest, err
}

// way is what a connection without impersonation is made of, by its digest, and makes it. The
// digest is empty for the cluster that we run in. ofCluster names the Cluster of a kubeconfig that
// Cluster API made.
type way struct {
	digest    string
	ofCluster string
	connect   func() (*apply.Cluster, error)
}

func (t *Targets) way(ctx context.Context, namespace string, ref Ref) (way, error) {
	name := types.NamespacedName{Namespace: namespace, Name: ref.Name}
	switch {
	case ref.Local():
		return way{connect: func() (*apply.Cluster, error) { return t.Local, nil }}, nil
	case ref.Name == "":
		return way{}, errors.New("invalid .spec.kubeConfig, neither .spec.kubeConfig.configMapRef nor .spec.kubeConfig.secretRef is set")
	case ref.Kind == "ConfigMap":
		return t.byConfigMap(ctx, name)
	}
	return t.bySecret(ctx, name, ref.Key)
}

func (t *Targets) bySecret(ctx context.Context, name types.NamespacedName, key string) (way, error) {
	secret := &corev1.Secret{}
	err := t.Local.Get(ctx, name, secret)
	if apierrors.IsNotFound(err) {
		// Flux reads it from a cache, whose errors name the kind.
		err = apierrors.NewNotFound(schema.GroupResource{Resource: "Secret"}, name.Name)
	}
	if err != nil {
		return way{}, fmt.Errorf("unable to read KubeConfig secret '%s' error: %w", name, err)
	}
	data, err := kubeconfigOf(secret, key)
	if err != nil {
		return way{}, err
	}
	ofCluster, _ := clusterapi.ClusterOfKubeconfig(secret)
	of := digest.Of("Secret", name.String(), string(data)).Hex()
	return way{of, ofCluster, func() (*apply.Cluster, error) {
		return t.keep(of, func() (*apply.Cluster, error) {
			config, err := t.Kubeconfig(data)
			if err != nil {
				return nil, fmt.Errorf("invalid KubeConfig in secret '%s': %w", name, err)
			}
			return t.connect(config)
		})
	}}, nil
}

// kubeconfigOf takes the key that is asked for, or value, or value.yaml.
func kubeconfigOf(secret *corev1.Secret, key string) ([]byte, error) {
	keys := []string{"value", "value.yaml"}
	if key != "" {
		keys = []string{key}
	}
	for _, k := range keys {
		if data := secret.Data[k]; data != nil {
			return data, nil
		}
	}
	return nil, fmt.Errorf("KubeConfig secret '%s' does not contain a '%s' key with a kubeconfig", client.ObjectKeyFromObject(secret), keys[0])
}

func (t *Targets) byConfigMap(ctx context.Context, name types.NamespacedName) (way, error) {
	cm, err := t.configMap(ctx, name)
	if err != nil {
		return way{}, err
	}
	fields := []string{"ConfigMap", name.String()}
	for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
		fields = append(fields, key, cm.Data[key])
	}
	of := digest.Of(fields...).Hex()
	return way{of, "", func() (*apply.Cluster, error) {
		if c := t.kept(of); c != nil {
			return c, nil
		}
		config, err := t.exchange(ctx, cm)
		if err != nil {
			return nil, err
		}
		return t.keep(of, func() (*apply.Cluster, error) { return t.connect(config) })
	}}, nil
}

// OfConfigMap is how the cluster is reached that a ConfigMap names, whose provider issues a
// token for each request. The address has not been called, and is not known to be allowed. anew: the provider
// is asked whatever is remembered of its answers.
func (t *Targets) OfConfigMap(ctx context.Context, name types.NamespacedName, anew bool) (*rest.Config, error) {
	if anew && t.Tokens != nil {
		if err := t.forget(name); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, targetTimeout)
	defer cancel()
	cm, err := t.configMap(ctx, name)
	if err != nil {
		return nil, err
	}
	config, err := t.exchange(ctx, cm)
	if err != nil {
		return nil, err
	}
	return config, checkAddress(config.Host)
}

// configMap reads one that may be used. It names the service account that is acted as; without
// one it is the agent.
func (t *Targets) configMap(ctx context.Context, name types.NamespacedName) (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{}
	if err := ofTier(t.Local.Get(ctx, name, cm)); err != nil {
		return nil, fmt.Errorf("failed to get configmap %s: %w", name, err)
	}
	if t.KubeConfigServiceAccount != "" && cm.Data[meta.KubeConfigKeyServiceAccountName] == "" {
		// It is written here because the library takes an empty name for the agent's.
		if cm.Data == nil {
			cm.Data = map[string]string{}
		}
		cm.Data[meta.KubeConfigKeyServiceAccountName] = t.KubeConfigServiceAccount
	}
	return cm, checkConfigMap(cm)
}

// exchange asks the provider of a ConfigMap that may be used where the cluster is, with the
// identity that is exchanged for its tokens.
func (t *Targets) exchange(ctx context.Context, cm *corev1.ConfigMap) (*rest.Config, error) {
	var o []auth.Option
	if tokens := t.tokensOf(client.ObjectKeyFromObject(cm)); tokens != nil {
		// Nobody tells that a ConfigMap is gone, so none has metrics of its own.
		o = append(o, auth.WithCache(*tokens, cache.InvolvedObject{Kind: "ConfigMap", Operation: kustomizev1.MetricFetchKubeConfig}))
	}
	ref := meta.KubeConfigReference{ConfigMapRef: &meta.LocalObjectReference{Name: cm.Name}}
	config, err := authutils.GetRESTConfig(source.AllowNetwork(ctx), ref, cm.Namespace, settled{t.Local, cm}, o...)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the cluster of ConfigMap '%s': %w", client.ObjectKeyFromObject(cm), err)
	}
	if !strings.Contains(config.Host, "://") {
		// Google says an address without a scheme.
		config.Host = "https://" + config.Host
	}
	// Each request renews its token, which takes other requests.
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return permitted{next} })
	return config, nil
}

// ownTokens is what is remembered of one ConfigMap alone, since a moment at which what all share was of no use.
type ownTokens struct {
	since  time.Time
	tokens *cache.TokenCache
}

// mostOwnTokens are what one ConfigMap needs: tokens, and where its cluster is.
const mostOwnTokens = 8

// forget has what is remembered of a ConfigMap begin anew. The cache that all share forgets nothing by name.
func (t *Targets) forget(name types.NamespacedName) error {
	tokens, err := cache.NewTokenCache(mostOwnTokens)
	if err != nil {
		return fmt.Errorf("cannot remember tokens of ConfigMap '%s': %w", name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.own == nil {
		t.own = map[types.NamespacedName]ownTokens{}
	}
	t.own[name] = ownTokens{t.Now(), tokens}
	return nil
}

// tokensOf is what remembers tokens of a ConfigMap: what all share, which has nothing any more of before forget
// once the longest that it keeps anything has passed.
func (t *Targets) tokensOf(name types.NamespacedName) *cache.TokenCache {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.Now()
	maps.DeleteFunc(t.own, func(_ types.NamespacedName, o ownTokens) bool { return now.Sub(o.since) > cache.TokenMaxDuration })
	if own, ok := t.own[name]; ok {
		return own.tokens
	}
	return t.Tokens
}

// settled answers for one ConfigMap with what was read of it and checked: who writes it
// may have written another one since.
type settled struct {
	client.Client
	configMap *corev1.ConfigMap
}

func (s settled) Get(ctx context.Context, name types.NamespacedName, into client.Object, o ...client.GetOption) error {
	if cm, ok := into.(*corev1.ConfigMap); ok && name == client.ObjectKeyFromObject(s.configMap) {
		s.configMap.DeepCopyInto(cm)
		return nil
	}
	return ofTier(s.Client.Get(ctx, name, into, o...))
}

func (s settled) SubResource(name string) client.SubResourceClient {
	return part{s.Client.SubResource(name)}
}

// part is how a token of a service account is got.
type part struct{ client.SubResourceClient }

func (p part) Create(ctx context.Context, of, into client.Object, o ...client.SubResourceCreateOption) error {
	return ofTier(p.SubResourceClient.Create(ctx, of, into, o...))
}

// TierError: the API server of the cluster that we run in did not answer, or had an error. It says nothing
// of the cluster that a ConfigMap names, nor of whether the ConfigMap is there.
type TierError struct{ Err error }

func (e *TierError) Error() string { return e.Err.Error() }
func (e *TierError) Unwrap() error { return e.Err }

// ofTier tells an error that comes without an answer from what the API server answers.
func ofTier(err error) error {
	var said apierrors.APIStatus
	if err == nil || errors.As(err, &said) && said.Status().Code < http.StatusInternalServerError && said.Status().Code != http.StatusTooManyRequests {
		return err
	}
	return &TierError{err}
}

// checkConfigMap refuses to send our own token to an address that anybody who writes a
// ConfigMap chooses, or to whoever has the key of a CA in it. The provider generic asks
// nobody where the cluster is. The others ask the cloud for what is missing, and only azure
// compares an address that is there with those that the cloud says.
func checkConfigMap(cm *corev1.ConfigMap) error {
	if cm.Data[meta.KubeConfigKeyServiceAccountName] != "" {
		return nil
	}
	name, provider := client.ObjectKeyFromObject(cm), cm.Data[meta.KubeConfigKeyProvider]
	if provider == generic.ProviderName {
		return &source.Error{Reason: source.ReasonCredentialRefused, Err: fmt.Errorf("CredentialRefused: cannot use ConfigMap '%s': with provider %s it must name a %s",
			name, provider, meta.KubeConfigKeyServiceAccountName)}
	}
	var chosen []string
	if cm.Data[meta.KubeConfigKeyAddress] != "" && provider != azure.ProviderName {
		chosen = append(chosen, meta.KubeConfigKeyAddress)
	}
	if cm.Data[meta.KubeConfigKeyCACert] != "" {
		chosen = append(chosen, meta.KubeConfigKeyCACert)
	}
	if len(chosen) == 0 {
		return nil
	}
	return &source.Error{Reason: source.ReasonCredentialRefused, Err: fmt.Errorf(
		"CredentialRefused: cannot use ConfigMap '%s': remove %s, as the token of the agent goes only where the cloud says that the cluster is, or name a %s",
		name, strings.Join(chosen, " and "), meta.KubeConfigKeyServiceAccountName)}
}

// permitted lets the requests of a cloud provider's library reach the network.
type permitted struct{ next http.RoundTripper }

func (p permitted) RoundTrip(r *http.Request) (*http.Response, error) {
	return p.next.RoundTrip(r.WithContext(source.AllowNetwork(r.Context())))
}

func (t *Targets) connect(config *rest.Config) (*apply.Cluster, error) {
	config = rest.CopyConfig(config)
	config.Timeout = targetTimeout
	config.UserAgent = status.ObjectManager
	if err := checkAddress(config.Host); err != nil {
		return nil, err
	}
	if err := t.Addresses.Guard(config); err != nil {
		return nil, fmt.Errorf("cannot use address of cluster: %w", err)
	}
	c, err := apply.Connect(config, t.Scheme)
	if err != nil {
		return nil, err
	}
	// Who may not delete here may not delete there; and whose fields are taken over here
	// does not keep them there.
	c.Obey(t.Local)
	return c, nil
}

// checkAddress refuses an address to which a token would go in the clear.
func checkAddress(host string) error {
	if u, err := url.Parse(host); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
		return errors.New("cannot use address of cluster: it is not an https URL")
	}
	return nil
}

func (t *Targets) kept(key string) *apply.Cluster {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(t.Now())
	if kept := t.open[key]; kept != nil {
		kept.used = t.Now()
		return kept.cluster
	}
	return nil
}

// keep returns the connection of a key, made by connect if there is none.
// connect sends nothing, so it is called with the lock held and once only.
func (t *Targets) keep(key string, connect func() (*apply.Cluster, error)) (*apply.Cluster, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.Now()
	t.expire(now)
	if kept := t.open[key]; kept != nil {
		kept.used = now
		return kept.cluster, nil
	}
	c, err := connect()
	if err != nil {
		return nil, err
	}
	t.opened++
	if t.open == nil {
		t.open = map[string]*keptTarget{}
	}
	for most := cmp.Or(t.most, mostTargets); len(t.open) >= most; {
		t.drop(t.oldest())
	}
	t.open[key] = &keptTarget{cluster: c, used: now, made: now}
	return c, nil
}

func (t *Targets) expire(now time.Time) {
	for key, kept := range t.open {
		if now.Sub(kept.used) > cmp.Or(t.idle, targetIdle) || now.Sub(kept.made) > targetAge {
			t.drop(key)
		}
	}
}

func (t *Targets) oldest() string {
	var oldest string
	for key, kept := range t.open {
		if oldest == "" || kept.used.Before(t.open[oldest].used) {
			oldest = key
		}
	}
	return oldest
}

func (t *Targets) drop(key string) {
	t.open[key].cluster.Close()
	delete(t.open, key)
}
