package release

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubectl/pkg/validation"

	"github.com/cascade-gitops/cascade/syncer/apply"
)

// Numbers of sessions.
const (
	// requestTimeout bounds each request that Helm makes without a context. None
	// of them is a watch.
	requestTimeout = 30 * time.Second
	// mostSessions are kept; the least recently used goes first. A session that was
	// not used for sessionHolds goes as well: a renewed token makes another
	// connection, and the session of the one before is useless.
	mostSessions = 256
	sessionHolds = time.Hour
)

// session is what Helm needs to act on one cluster as one user. It is opened
// and shared by all releases there: clients, discovery, the mapper of kinds.
type session struct {
	cluster   *apply.Cluster
	config    *rest.Config
	discovery discovery.DiscoveryInterface
	clientset *kubernetes.Clientset
	metadata  metadata.Interface
	dynamic   dynamic.Interface
	// used is guarded by sessions.
	used time.Time

	version question[common.KubeVersion]
	apis    question[common.VersionSet]
}

// sessions by connection. A new connection has a new session.
type sessions struct {
	mu   sync.Mutex
	open map[*apply.Cluster]*session
}

// of returns the session of a connection, which costs no request.
func (s *sessions) of(c *apply.Cluster, now time.Time) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.open[c]; known != nil {
		known.used = now
		return known, nil
	}
	opened, err := open(c)
	if err != nil {
		return nil, err
	}
	opened.used = now
	if s.open == nil {
		s.open = map[*apply.Cluster]*session{}
	}
	for c, known := range s.open {
		if now.Sub(known.used) > sessionHolds {
			delete(s.open, c)
		}
	}
	if len(s.open) >= mostSessions {
		var oldest *apply.Cluster
		for c, known := range s.open {
			if oldest == nil || known.used.Before(s.open[oldest].used) {
				oldest = c
			}
		}
		delete(s.open, oldest)
	}
	s.open[c] = opened
	return opened, nil
}

func open(c *apply.Cluster) (*session, error) {
	config := rest.CopyConfig(c.Config)
	if config.Timeout == 0 || config.Timeout > requestTimeout {
		config.Timeout = requestTimeout
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make HTTP client for Helm: %w", err)
	}
	clientset, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("cannot make clients for Helm: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("cannot make dynamic client for Helm: %w", err)
	}
	metadataClient, err := metadata.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("cannot make metadata client for Helm: %w", err)
	}
	return &session{
		cluster: c, config: config, clientset: clientset, metadata: metadataClient, dynamic: dynamicClient,
		discovery: clientset.Discovery(),
	}, nil
}

// capabilities tells templates what the cluster is and serves. Both are asked for
// anew if the chart looks at them, because what serves a new API may have been installed
// a moment ago, and the API server may be another version since.
func (s *session) capabilities(ctx context.Context, c *chart.Chart, values map[string]any, now time.Time) (*common.Capabilities, error) {
	served := discoveryWithin{s.discovery, ctx}
	looks := mentions(c, values, "Capabilities")
	kube, err := s.version.answer(ctx, now, looks || requiresVersion(c), func() (common.KubeVersion, error) {
		v, err := served.ServerVersion()
		if err != nil {
			return common.KubeVersion{}, fmt.Errorf("could not get server version from Kubernetes: %w", err)
		}
		return common.KubeVersion{Version: v.GitVersion, Major: v.Major, Minor: v.Minor}, nil
	})
	if err != nil {
		return nil, err
	}
	apis, err := s.apis.answer(ctx, now, looks, func() (common.VersionSet, error) { return action.GetVersionSet(served) })
	if err != nil {
		return nil, err
	}
	return &common.Capabilities{KubeVersion: kube, APIVersions: apis, HelmVersion: common.DefaultCapabilities.HelmVersion}, nil
}

// discoveryWithin is discovery that ends with a context.
type discoveryWithin struct {
	discovery.DiscoveryInterface
	ctx context.Context
}

func (d discoveryWithin) ServerVersion() (*version.Info, error) {
	return discovery.ToServerVersionInterfaceWithContext(d.DiscoveryInterface).ServerVersionWithContext(d.ctx)
}

func (d discoveryWithin) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	groups, resources, err := discovery.ToServerResourcesInterfaceWithContext(d.DiscoveryInterface).ServerGroupsAndResourcesWithContext(d.ctx)
	if d.ctx.Err() != nil {
		// Groups that there was no time for are not missing.
		return nil, nil, d.ctx.Err()
	}
	return groups, resources, err
}

// mentions reports whether a word is in a template of the chart, or in a file or a
// value, which may be templates too.
func mentions(c *chart.Chart, values map[string]any, word string) bool {
	for _, files := range [][]*common.File{c.Templates, c.Files} {
		for _, f := range files {
			if bytes.Contains(f.Data, []byte(word)) {
				return true
			}
		}
	}
	for _, d := range c.Dependencies() {
		if mentions(d, nil, word) {
			return true
		}
	}
	return inValue(values, word) || inValue(c.Values, word)
}

// requiresVersion reports whether a chart, or one in it, is only for some versions of Kubernetes.
func requiresVersion(c *chart.Chart) bool {
	return c.Metadata != nil && c.Metadata.KubeVersion != "" || slices.ContainsFunc(c.Dependencies(), requiresVersion)
}

func inValue(v any, word string) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, word)
	case map[string]any:
		for _, item := range v {
			if inValue(item, word) {
				return true
			}
		}
	case []any:
		for _, item := range v {
			if inValue(item, word) {
				return true
			}
		}
	}
	return false
}

var (
	_ genericclioptions.RESTClientGetter = (*session)(nil)
	_ kube.Factory                       = (*session)(nil)
)

// ToRESTConfig implements the getter of clients that Helm asks for. Each gets a
// copy, because the builder of requests writes into it.
func (s *session) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(s.config), nil }

// ToDiscoveryClient implements the getter. Each gets a cache of its own: who reads one
// holds its lock over the request.
func (s *session) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return memory.NewMemCacheClient(s.discovery), nil
}

// ToRESTMapper implements the getter: the connection's own mapper, which finds
// new kinds by itself.
func (s *session) ToRESTMapper() (meta.RESTMapper, error) { return s.cluster.RESTMapper(), nil }

// ToRawKubeConfigLoader implements the getter. There is no file behind it.
func (s *session) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{})
}

// DynamicClient implements the factory of clients that Helm asks for.
func (s *session) DynamicClient() (dynamic.Interface, error) { return s.dynamic, nil }

// KubernetesClientSet implements the factory.
func (s *session) KubernetesClientSet() (*kubernetes.Clientset, error) { return s.clientset, nil }

// NewBuilder implements the factory.
func (s *session) NewBuilder() *resource.Builder { return resource.NewBuilder(s) }

// Validator implements the factory. All supported API servers validate what
// they are sent. kubectl's validator would read their OpenAPI documents to find
// that out, and then do nothing.
func (s *session) Validator(string) (validation.Schema, error) { return validation.NullSchema{}, nil }
