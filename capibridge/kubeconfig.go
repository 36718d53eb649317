package capibridge

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// maxKubeconfig bounds the text that is parsed. Real kubeconfigs have a few KiB for each cluster, and a
// parser takes a hundred times the memory of a text of nothing but brackets.
const maxKubeconfig = 256 << 10

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
// inline token, and what allowed adds. It verifies the server also where
// insecure-skip-tls-verify says not to, as Flux does. It refuses every other field that is
// set, by name. Two of them show why: client-go reads tokenFile while it parses, and so would
// send the agent's own token to another server (threat V4); and it runs the program that
// exec names.
func (a Allowed) Kubeconfig(data []byte) (*rest.Config, error) {
	k, err := a.parse(data)
	if err != nil {
		return nil, err
	}
	return k.client(), nil
}

// Renewed is the kubeconfig that is here with the credentials of the one that a cluster has of
// itself, there; nil if it has them already. There must be a kubeconfig that is allowed, leads to the
// same place as the one here, and has credentials that have not lapsed. Nothing but these is
// taken: where the kubeconfig here leads never changes by what a cluster says.
func (a Allowed) Renewed(here, there []byte, now time.Time) ([]byte, error) {
	ours, err := a.parse(here)
	if err != nil {
		return nil, fmt.Errorf("the one that is here: %w", err)
	}
	theirs, err := a.parse(there)
	if err != nil {
		return nil, fmt.Errorf("the one in the cluster: %w", err)
	}
	if other := ours.otherPlace(theirs); len(other) > 0 {
		return nil, fmt.Errorf("the one in the cluster leads elsewhere, it has another %s than the one that is here", strings.Join(other, ", "))
	}
	u := theirs.user
	if u.Token == "" && (len(u.ClientCertificateData) == 0 || len(u.ClientKeyData) == 0) {
		return nil, errors.New("the one in the cluster has neither a token nor a client certificate with its key")
	}
	if len(u.ClientCertificateData) > 0 || len(u.ClientKeyData) > 0 {
		if _, err := tls.X509KeyPair(u.ClientCertificateData, u.ClientKeyData); err != nil {
			return nil, fmt.Errorf("the client certificate and the key of the one in the cluster cannot be used: %w", err)
		}
	}
	if at := CredentialOf(theirs.client()).ExpiresAt; !at.IsZero() && !now.Before(at) {
		return nil, fmt.Errorf("the credentials of the one in the cluster lapsed at %s: its controller there does not renew them", at.UTC().Format(time.RFC3339))
	}
	if ours.user.Token == u.Token && bytes.Equal(ours.user.ClientCertificateData, u.ClientCertificateData) && bytes.Equal(ours.user.ClientKeyData, u.ClientKeyData) {
		return nil, nil
	}
	ours.user.Token, ours.user.ClientCertificateData, ours.user.ClientKeyData = u.Token, u.ClientCertificateData, u.ClientKeyData
	data, err := clientcmd.Write(*ours.config)
	if err != nil {
		return nil, fmt.Errorf("cannot encode kubeconfig: %w", err)
	}
	return data, nil
}

// parsed is a kubeconfig of which all that its current context names is allowed.
type parsed struct {
	config  *clientcmdapi.Config
	cluster *clientcmdapi.Cluster
	user    *clientcmdapi.AuthInfo
	// proxy is nil without one.
	proxy *url.URL
}

func (a Allowed) parse(data []byte) (*parsed, error) {
	if len(data) == 0 {
		return nil, errors.New("cannot use kubeconfig: it is empty")
	}
	if len(data) > maxKubeconfig {
		return nil, fmt.Errorf("cannot use kubeconfig: %d bytes are more than the limit of %d", len(data), maxKubeconfig)
	}
	if err := checkAliases(data); err != nil {
		return nil, err
	}
	// Load only parses. Other functions of clientcmd read files.
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, errInvalid
	}
	context, ok := config.Contexts[config.CurrentContext]
	if !ok || context == nil {
		return nil, fmt.Errorf("cannot use kubeconfig: current context %q does not exist", config.CurrentContext)
	}
	k := &parsed{config: config}
	if k.cluster, ok = config.Clusters[context.Cluster]; !ok || k.cluster == nil {
		return nil, fmt.Errorf("cannot use kubeconfig: cluster %q does not exist", context.Cluster)
	}
	if k.user, ok = config.AuthInfos[context.AuthInfo]; !ok || k.user == nil {
		return nil, fmt.Errorf("cannot use kubeconfig: user %q does not exist", context.AuthInfo)
	}
	if refused := refusedFields(k.cluster, k.user); len(refused) > 0 {
		return nil, fmt.Errorf("cannot use kubeconfig: %s not allowed; "+
			"it must be self-contained, with inline certificates or an inline token", strings.Join(refused, ", "))
	}
	server, err := url.Parse(k.cluster.Server)
	if err != nil || server.Scheme != "https" || server.Host == "" || server.User != nil {
		return nil, errors.New("cannot use kubeconfig: server is not an https URL")
	}
	if k.cluster.ProxyURL != "" {
		if !a.ProxyURL {
			return nil, errors.New("cannot use kubeconfig: proxy-url not allowed; start the agent with --allow-kubeconfig-proxy if such a proxy may see where all traffic goes")
		}
		k.proxy, err = url.Parse(k.cluster.ProxyURL)
		if err != nil || !slices.Contains([]string{"http", "https", "socks5"}, k.proxy.Scheme) || k.proxy.Host == "" || k.proxy.User != nil {
			return nil, errors.New("cannot use kubeconfig: proxy-url is not an http, https or socks5 URL without a user")
		}
	}
	return k, nil
}

// errInvalid does not quote what may be a secret.
var errInvalid = errors.New("cannot parse kubeconfig: it is not valid YAML of kind Config")

// checkAliases refuses aliases of YAML. Load writes out what each stands for, so that one text of some
// KiB that is named often takes gigabytes, and kubeconfigs have no use for them.
func checkAliases(data []byte) error {
	if bytes.IndexByte(data, '&') < 0 || bytes.IndexByte(data, '*') < 0 {
		return nil
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return errInvalid // whatever Load would make of it
	}
	var within func(*yaml.Node) bool
	within = func(n *yaml.Node) bool { return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, within) }
	if within(&document) {
		return errors.New("cannot use kubeconfig: it has aliases of YAML; write out what they stand for")
	}
	return nil
}

// client is the configuration of a client that the kubeconfig is for.
func (k *parsed) client() *rest.Config {
	var proxy func(*http.Request) (*url.URL, error)
	if k.proxy != nil {
		proxy = http.ProxyURL(k.proxy)
	}
	return &rest.Config{
		Host:        k.cluster.Server,
		BearerToken: k.user.Token,
		Proxy:       proxy,
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: k.cluster.TLSServerName,
			CAData:     k.cluster.CertificateAuthorityData,
			CertData:   k.user.ClientCertificateData,
			KeyData:    k.user.ClientKeyData,
		},
	}
}

// otherPlace names what differs in where two kubeconfigs lead to.
func (k *parsed) otherPlace(other *parsed) []string {
	var differs []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"server", k.cluster.Server == other.cluster.Server},
		{"tls-server-name", k.cluster.TLSServerName == other.cluster.TLSServerName},
		{"certificate-authority-data", bytes.Equal(k.cluster.CertificateAuthorityData, other.cluster.CertificateAuthorityData)},
		{"proxy-url", k.cluster.ProxyURL == other.cluster.ProxyURL},
	} {
		if !f.same {
			differs = append(differs, f.name)
		}
	}
	return differs
}

// refusedFields names what is set besides the allowed fields.
func refusedFields(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) []string {
	var refused []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"certificate-authority", cluster.CertificateAuthority != ""},
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
