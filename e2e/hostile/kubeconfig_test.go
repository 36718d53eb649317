package hostile

import "strings"

// kubeconfig is one whose fields are as given.
type kubeconfig struct{ server, cluster, user, more string }

func (k kubeconfig) String() string {
	if k.server == "" {
		k.server = "https://$server"
	}
	if k.user == "" {
		k.user = "token: " + password
	}
	return "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: '" + k.server + "'" + k.cluster + "}}]\nusers: [{name: u, user: {" + k.user + "}}]\n" + k.more
}

// kubeconfigs are those that would have the agent run, read or send what it must not.
func kubeconfigs(o *outside) []fixture {
	var all []fixture
	inside := "https://" + strings.TrimPrefix(o.inside.URL, "http://")
	fields := []struct {
		name, reason string
		k            kubeconfig
	}{
		{"exec", "a program for the token", kubeconfig{server: inside, user: "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ['" + o.dir + "/was-here'], interactiveMode: Never}"}},
		{"token-file", "the token of the agent's account, read while it is parsed", kubeconfig{server: inside, user: "tokenFile: " + o.file()}},
		{"token-and-file", "a file that wins over the token", kubeconfig{server: inside, user: "token: x, tokenFile: " + o.file()}},
		{"client-certificate", "a file of the machine as certificate", kubeconfig{server: inside, user: "client-certificate: " + o.file() + ", client-key: " + o.file()}},
		{"client-key", "a file of the machine as key", kubeconfig{server: inside, user: "client-certificate-data: eA==, client-key: " + o.file()}},
		{"authority", "a file of the machine as authority, whose content an error shows", kubeconfig{server: inside, cluster: ", certificate-authority: " + o.file()}},
		{"insecure", "a server that nobody is to check", kubeconfig{server: inside, cluster: ", insecure-skip-tls-verify: true"}},
		{"proxy", "all traffic goes through a server inside of the network", kubeconfig{server: "https://example.com", cluster: ", proxy-url: '" + o.inside.URL + "'"}},
		{"proxy-socks", "a proxy with a password in its URL", kubeconfig{server: "https://example.com", cluster: ", proxy-url: 'socks5://a:b@" + strings.TrimPrefix(o.inside.URL, "http://") + "'"}},
		{"auth-provider", "a plugin for the token", kubeconfig{server: inside, user: "auth-provider: {name: gcp, config: {cmd-path: /bin/sh}}"}},
		{"basic", "a name and a password", kubeconfig{server: inside, user: "username: a, password: b"}},
		{"as", "somebody else's name", kubeconfig{server: inside, user: "token: x, as: system:admin"}},
		{"as-groups", "the group of administrators", kubeconfig{server: inside, user: "token: x, as-groups: ['system:masters']"}},
		{"as-uid", "somebody else's UID", kubeconfig{server: inside, user: "token: x, as-uid: '1'"}},
		{"as-extra", "somebody else's attributes", kubeconfig{server: inside, user: "token: x, as-user-extra: {a: [b]}"}},
		{"http", "a server without TLS", kubeconfig{server: o.inside.URL}},
		{"user-info", "a password in the URL", kubeconfig{server: strings.Replace(inside, "https://", "https://a:b@", 1)}},
		{"file-url", "a URL of a file", kubeconfig{server: "file://" + o.file()}},
		{"unix-url", "a socket of the machine", kubeconfig{server: "unix:///run/containerd/containerd.sock"}},
		{"metadata", "the metadata service", kubeconfig{server: "https://169.254.169.254"}},
		{"metadata-mapped", "the same, as an IPv6 address", kubeconfig{server: "https://[::ffff:169.254.169.254]"}},
		{"metadata-translated", "the same, through NAT64", kubeconfig{server: "https://[64:ff9b::a9fe:a9fe]"}},
		{"metadata-ipv6", "that of another cloud", kubeconfig{server: "https://[fd00:ec2::254]"}},
		{"metadata-azure", "and of another", kubeconfig{server: "https://168.63.129.16"}},
		{"link-local", "a neighbour of the node", kubeconfig{server: "https://[fe80::1%25lo]"}},
		{"zero", "an address that means this machine by chance", kubeconfig{server: "https://0.0.0.0:6443"}},
		{"multicast", "many machines", kubeconfig{server: "https://224.0.0.1"}},
		{"certificate", "a certificate that is none", kubeconfig{server: inside, user: "client-certificate-data: eHh4, client-key-data: eHh4"}},
		{"authority-data", "an authority that is none", kubeconfig{server: inside, cluster: ", certificate-authority-data: eHh4"}},
		{"token-newline", "a token that adds a header", kubeconfig{server: inside, user: "token: \"x\\r\\nX-Remote-User: admin\"", cluster: ", certificate-authority-data: $ca"}},
	}
	for _, f := range fields {
		all = append(all, kubeconfigOf(f.name, f.reason, f.k.String()))
	}
	for name, tt := range inOrder(map[string]struct{ reason, text string }{
		"no-context": {"no current context", "apiVersion: v1\nkind: Config\n"},
		"no-cluster": {"a context of a cluster that is not there", "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: none, user: none}}]\n"},
		"list":       {"no map at all", "[1, 2, 3]"},
		"noise":      {"no YAML", "\t{{{{"},
		"empty":      {"nothing", " "},
		"other-kind": {"a Secret in a Secret", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\n"},
		"nulls":      {"null where an object is wanted", "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: null}]\nclusters: [null]\nusers: [null]\n"},
	}) {
		all = append(all, kubeconfigOf(name, tt.reason, tt.text))
	}
	for _, f := range fields[:8] {
		r := releaseElsewhere("release-"+f.name, f.reason+", of a HelmRelease", f.k.String())
		all = append(all, r)
	}
	return all
}

// releaseElsewhere is a HelmRelease that is installed by a kubeconfig.
func releaseElsewhere(name, reason, text string) fixture {
	f := chartOf(name, reason, map[string]string{"templates/a.yaml": configMap("a")}, "kubeConfig: {secretRef: {name: kubeconfig}}")
	f.objects = manifests(secret("kubeconfig", map[string]string{"value": text}), f.objects)
	f.tells = []string{"RESTClientError", "StateError", "InstallFailed"}
	return f
}
