package capibridge

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// maxKubeconfig bounds the text that is parsed. Real kubeconfigs have a few KiB.
const maxKubeconfig = 1 << 20

// BelongsTo reports whether a kubeconfig Secret is tied to a Cluster: by the
// cluster-name label or by an owner. A name alone could have been taken by
// anybody who may write Secrets.
func BelongsTo(secret *corev1.Secret, c Cluster) bool {
	if secret.Labels[clusterapi.ClusterNameLabel] == c.Name {
		return true
	}
	for _, ref := range secret.OwnerReferences {
		if ref.Kind == clusterapi.Cluster && string(ref.UID) == c.UID {
			return true
		}
	}
	return false
}

// Allowed is what a kubeconfig may have besides an address and credentials. The
// zero value allows nothing.
type Allowed struct {
	// ProxyURL allows proxy-url, an http, https or socks5 URL without a password. All
	// traffic to the cluster goes through that proxy, which sees the server's name and
	// can be anywhere.
	ProxyURL bool
}

// Kubeconfig makes a client configuration of a kubeconfig's current context. It accepts
// the server's https address and name, inline CA, inline client certificate and key, an
// inline token, and what allowed adds. It refuses every other field that is set, by
// name. Two of them show why: client-go reads tokenFile while it parses, and so would
// send the agent's own token to another server (threat V4); and it runs the program that
// exec names.
func (a Allowed) Kubeconfig(data []byte) (*rest.Config, error) {
	if len(data) == 0 {
		return nil, errors.New("cannot use kubeconfig: it is empty")
	}
	if len(data) > maxKubeconfig {
		return nil, fmt.Errorf("cannot use kubeconfig: %d bytes are more than the limit of %d", len(data), maxKubeconfig)
	}
	// Load only parses. Other functions of clientcmd read files.
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, errors.New("cannot parse kubeconfig: it is not valid YAML of kind Config")
	}
	context, ok := config.Contexts[config.CurrentContext]
	if !ok || context == nil {
		return nil, fmt.Errorf("cannot use kubeconfig: current context %q does not exist", config.CurrentContext)
	}
	cluster, ok := config.Clusters[context.Cluster]
	if !ok || cluster == nil {
		return nil, fmt.Errorf("cannot use kubeconfig: cluster %q does not exist", context.Cluster)
	}
	user, ok := config.AuthInfos[context.AuthInfo]
	if !ok || user == nil {
		return nil, fmt.Errorf("cannot use kubeconfig: user %q does not exist", context.AuthInfo)
	}
	if refused := a.refusedFields(cluster, user); len(refused) > 0 {
		return nil, fmt.Errorf("cannot use kubeconfig: %s not allowed; "+
			"it must be self-contained, with inline certificates or an inline token", strings.Join(refused, ", "))
	}
	server, err := url.Parse(cluster.Server)
	if err != nil || server.Scheme != "https" || server.Host == "" || server.User != nil {
		return nil, errors.New("cannot use kubeconfig: server is not an https URL")
	}
	var proxy func(*http.Request) (*url.URL, error)
	if cluster.ProxyURL != "" {
		by, err := url.Parse(cluster.ProxyURL)
		if err != nil || !slices.Contains([]string{"http", "https", "socks5"}, by.Scheme) || by.Host == "" || by.User != nil {
			return nil, errors.New("cannot use kubeconfig: proxy-url is not an http, https or socks5 URL without a user")
		}
		proxy = http.ProxyURL(by)
	}
	return &rest.Config{
		Host:        cluster.Server,
		BearerToken: user.Token,
		Proxy:       proxy,
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: cluster.TLSServerName,
			CAData:     cluster.CertificateAuthorityData,
			CertData:   user.ClientCertificateData,
			KeyData:    user.ClientKeyData,
		},
	}, nil
}

// refusedFields names what is set besides the allowed fields.
func (a Allowed) refusedFields(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) []string {
	var refused []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"certificate-authority", cluster.CertificateAuthority != ""},
		{"insecure-skip-tls-verify", cluster.InsecureSkipTLSVerify},
		{"proxy-url", cluster.ProxyURL != "" && !a.ProxyURL},
		{"client-certificate", user.ClientCertificate != ""},
		{"client-key", user.ClientKey != ""},
		{"tokenFile", user.TokenFile != ""},
		{"exec", user.Exec != nil},
		{"auth-provider", user.AuthProvider != nil},
		{"username", user.Username != ""},
		{"password", user.Password != ""},
		{"as", user.Impersonate != ""},
		{"as-uid", user.ImpersonateUID != ""},
		{"as-groups", len(user.ImpersonateGroups) > 0},
		{"as-user-extra", len(user.ImpersonateUserExtra) > 0},
	} {
		if f.set {
			refused = append(refused, f.name)
		}
	}
	return refused
}
