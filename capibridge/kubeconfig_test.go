package capibridge

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

var (
	ca64   = base64.StdEncoding.EncodeToString([]byte("ca"))
	cert64 = base64.StdEncoding.EncodeToString([]byte("cert"))
	key64  = base64.StdEncoding.EncodeToString([]byte("key"))
)

// kubeconfig has the given lines in its cluster and its user.
func kubeconfig(cluster, user string) string {
	return "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- {name: c, context: {cluster: k, user: u}}\n" +
		"clusters:\n- name: k\n  cluster:\n    " + strings.ReplaceAll(cluster, "\n", "\n    ") + "\n" +
		"users:\n- name: u\n  user:\n    " + strings.ReplaceAll(user, "\n", "\n    ") + "\n"
}

const server = "server: https://127.0.0.1:6443"

func TestKubeconfig(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		data   string
		want   *rest.Config
	}{
		"Certificate": {
			"what Cluster API's control planes write",
			kubeconfig(server+"\ncertificate-authority-data: "+ca64, "client-certificate-data: "+cert64+"\nclient-key-data: "+key64),
			&rest.Config{Host: "https://127.0.0.1:6443", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca"), CertData: []byte("cert"), KeyData: []byte("key")}},
		},
		"Token": {
			"what managed control planes write",
			kubeconfig(server, "token: abc"), &rest.Config{Host: "https://127.0.0.1:6443", BearerToken: "abc"},
		},
		"ServerName": {
			"behind a tunnel the name in the certificate is not that of the address",
			kubeconfig(server+"\ntls-server-name: api.example.com", "token: abc"),
			&rest.Config{Host: "https://127.0.0.1:6443", BearerToken: "abc", TLSClientConfig: rest.TLSClientConfig{ServerName: "api.example.com"}},
		},
		"SkipVerify": {
			"Flux, too, verifies the server all the same, so that a kubeconfig of a server with a good certificate works",
			kubeconfig(server+"\ninsecure-skip-tls-verify: true\ncertificate-authority-data: "+ca64, "token: abc"),
			&rest.Config{Host: "https://127.0.0.1:6443", BearerToken: "abc", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca")}},
		},
		"OthersIgnored": {
			"users that the current context does not name are not used, whatever they say",
			kubeconfig(server, "token: abc") + "- name: other\n  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}}\n",
			&rest.Config{Host: "https://127.0.0.1:6443", BearerToken: "abc"},
		},
		"NoAlias": {
			"what aliases are written with may be in texts and comments",
			"# *a &b\n" + kubeconfig(server, "token: 'a&b *c'"), &rest.Config{Host: "https://127.0.0.1:6443", BearerToken: "a&b *c"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Allowed{}.Kubeconfig([]byte(tc.data))
			if err != nil {
				t.Fatalf("%s\nKubeconfig(): %v", tc.reason, err)
			}
			if diff := cmp.Diff(fieldsOf(tc.want), fieldsOf(got)); diff != "" {
				t.Errorf("%s\nKubeconfig(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// fieldsOf are all that may be set; anything else fails the test.
func fieldsOf(c *rest.Config) map[string]string {
	out := map[string]string{
		"host": c.Host, "token": c.BearerToken, "name": c.ServerName, "ca": string(c.CAData), "cert": string(c.CertData), "key": string(c.KeyData),
	}
	for name, set := range map[string]bool{
		"tokenFile": c.BearerTokenFile != "", "exec": c.ExecProvider != nil, "authProvider": c.AuthProvider != nil, "proxy": c.Proxy != nil,
		"insecure": c.Insecure, "caFile": c.CAFile != "", "certFile": c.CertFile != "", "keyFile": c.KeyFile != "",
		"username": c.Username != "", "password": c.Password != "", "impersonate": c.Impersonate.UserName+c.Impersonate.UID != "" || len(c.Impersonate.Groups)+len(c.Impersonate.Extra) > 0,
		"wrap": c.WrapTransport != nil, "transport": c.Transport != nil, "dial": c.Dial != nil,
	} {
		if set {
			out[name] = "set"
		}
	}
	return out
}

func TestKubeconfigRefused(t *testing.T) {
	stolen := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(stolen, []byte("our-own-service-account-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason string
		data   string
		names  string
	}{
		"TokenFile":       {"threat V4: client-go reads it while it parses, and we would send our own token to his server", kubeconfig(server, "tokenFile: "+stolen), "tokenFile"},
		"TokenAndFile":    {"the same beside an honest token", kubeconfig(server, "token: abc\ntokenFile: "+stolen), "tokenFile"},
		"Exec":            {"CVE-2022-24817: runs a program", kubeconfig(server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}"), "exec"},
		"AuthProvider":    {"runs a program as well", kubeconfig(server, "auth-provider: {name: gcp}"), "auth-provider"},
		"Proxy":           {"all traffic would go by another host", kubeconfig(server+"\nproxy-url: http://127.0.0.1:1", "token: abc"), "proxy-url not allowed; start the agent with --allow-kubeconfig-proxy"},
		"CAFile":          {"a file of the agent's pod", kubeconfig(server+"\ncertificate-authority: "+stolen, "token: abc"), "certificate-authority"},
		"CertFile":        {"the same", kubeconfig(server, "client-certificate: "+stolen+"\nclient-key-data: "+key64), "client-certificate"},
		"KeyFile":         {"the same", kubeconfig(server, "client-certificate-data: "+cert64+"\nclient-key: "+stolen), "client-key"},
		"Username":        {"basic authentication is no longer served", kubeconfig(server, "username: a\npassword: hidden-word"), "username, password"},
		"Impersonate":     {"the parent is who the cluster says, nobody else", kubeconfig(server, "token: abc\nas: admin"), "as"},
		"ImpersonateUID":  {"the same", kubeconfig(server, "token: abc\nas-uid: \"1\""), "as-uid"},
		"ImpersonateMany": {"the same", kubeconfig(server, "token: abc\nas-groups: [a]\nas-user-extra: {a: [b]}"), "as-groups, as-user-extra"},
		"HTTP":            {"the credential would go in the clear", kubeconfig("server: http://127.0.0.1:6443", "token: abc"), "https"},
		"NoScheme":        {"client-go would guess one", kubeconfig("server: 127.0.0.1:6443", "token: abc"), "https"},
		"UserInfo":        {"a credential in the address ends up in logs", kubeconfig("server: https://me:hidden-word@127.0.0.1", "token: abc"), "https"},
		"NoServer":        {"client-go would fall back to localhost", kubeconfig("tls-server-name: x", "token: abc"), "https"},
		"NoContext":       {"there is no default", strings.Replace(kubeconfig(server, "token: abc"), "current-context: c", "current-context: d", 1), "context"},
		"EmptyContext":    {"the same", strings.Replace(kubeconfig(server, "token: abc"), "current-context: c\n", "", 1), "context"},
		"NoCluster":       {"a context that leads nowhere", strings.Replace(kubeconfig(server, "token: abc"), "cluster: k", "cluster: x", 1), "cluster"},
		"NoUser":          {"the same", strings.Replace(kubeconfig(server, "token: abc"), "user: u", "user: x", 1), "user"},
		"Empty":           {"a Secret that is being filled", "", "empty"},
		"NotYAML":         {"the error must not quote what may be a secret", "hidden-word: [", "not valid"},
		"OtherKind":       {"some other object", "apiVersion: v1\nkind: Secret\ndata: {value: hidden-word}\n", ""},
		"Huge":            {"it would be parsed for nothing", kubeconfig(server, "token: abc") + "#" + strings.Repeat("x", maxKubeconfig), "limit"},
		"Bomb":            {"threat V2", kubeconfig(server, "token: abc") + bomb(), "aliases"},
		"Long":            {"the parser counts how often an alias is used, not how long the text is that it stands for", kubeconfig(server, "token: abc") + "a: &a " + strings.Repeat("x", 100<<10) + "\nb: [" + strings.Repeat("*a,", 3000) + "*a]\n", "aliases"},
		"Cycle":           {"threat V1", "apiVersion: v1\nkind: Config\nclusters: &a [*a]\n", "aliases"},
		"Merge":           {"an alias by another name", kubeconfig(server, "token: abc") + "x: &x {a: b}\ny: {<<: *x}\n", "aliases"},
		"Many":            {"a node takes a hundred times the memory of its text", kubeconfig(server, "token: abc") + "x: &x [" + strings.Repeat("a,", maxKubeconfig/2-200) + "*x]\n", "aliases"},
		"Brackets":        {"the same without aliases", kubeconfig(server, "token: abc") + "x: [" + strings.Repeat("[],", maxKubeconfig/3-100) + "[\n", ""},
		"Deep":            {"depth costs stack", "apiVersion: v1\nkind: Config\nx: " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, err := Allowed{}.Kubeconfig([]byte(tc.data))
			if err == nil {
				t.Fatalf("%s\nKubeconfig() = %v, want it refused", tc.reason, fieldsOf(got))
			}
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
				t.Errorf("%s\n%d MB were allocated", tc.reason, took>>20)
			}
			if !strings.Contains(err.Error(), tc.names) {
				t.Errorf("%s\nerror %q, want it to name %s", tc.reason, err, tc.names)
			}
			if strings.Contains(err.Error(), "hidden-word") || strings.Contains(err.Error(), "our-own") {
				t.Errorf("%s\nthe error shows a secret: %v", tc.reason, err)
			}
		})
	}
}

func bomb() string {
	b := "x0: &x0 [a,a,a,a,a,a,a,a,a]\n"
	for i := 1; i < 10; i++ {
		prev, this := "*x"+string(rune('0'+i-1)), "x"+string(rune('0'+i))
		b += this + ": &" + this + " [" + strings.TrimSuffix(strings.Repeat(prev+",", 9), ",") + "]\n"
	}
	return b
}

func TestKubeconfigWithProxy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		data   string
		want   string
	}{
		"HTTP":     {"allowed by a flag", kubeconfig(server+"\nproxy-url: http://proxy.example.com:3128", "token: abc"), "http://proxy.example.com:3128"},
		"SOCKS":    {"the same", kubeconfig(server+"\nproxy-url: socks5://proxy.example.com:1080", "token: abc"), "socks5://proxy.example.com:1080"},
		"None":     {"allowed is not required", kubeconfig(server, "token: abc"), ""},
		"Password": {"errors would show it", kubeconfig(server+"\nproxy-url: http://me:hidden-word@proxy", "token: abc"), "refused"},
		"File":     {"no proxy", kubeconfig(server+"\nproxy-url: file:///etc/passwd", "token: abc"), "refused"},
		"Broken":   {"the same", kubeconfig(server+"\nproxy-url: \"http://[hidden-word\"", "token: abc"), "refused"},
		"Others":   {"nothing else is allowed with it", kubeconfig(server+"\nproxy-url: http://proxy", "token: abc\nas: admin"), "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Allowed{ProxyURL: true}.Kubeconfig([]byte(tc.data))
			if err != nil {
				if tc.want != "refused" || strings.Contains(err.Error(), "hidden-word") {
					t.Errorf("%s\nKubeconfig(): %v", tc.reason, err)
				}
				return
			}
			proxy := ""
			if got.Proxy != nil {
				u, err := got.Proxy(&http.Request{})
				if err != nil {
					t.Fatal(err)
				}
				proxy = u.String()
			}
			if proxy != tc.want {
				t.Errorf("%s\nKubeconfig() uses proxy %q, want %q", tc.reason, proxy, tc.want)
			}
		})
	}
}

// FuzzKubeconfig: whoever may write a Secret writes this.
func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte(kubeconfig(server, "token: abc")))
	f.Add([]byte(kubeconfig(server+"\nproxy-url: http://x", "tokenFile: /etc/hostname")))
	f.Add([]byte(`{"kind":"Config","apiVersion":"v1","current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],"clusters":[{"name":"k","cluster":{"server":"https://x"}}],"users":[{"name":"u","user":{"exec":{"command":"x"}}}]}`))
	f.Add([]byte("contexts: [null]\nclusters: [null]\nusers: [null]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Allowed{}.Kubeconfig(data)
		if err != nil {
			return
		}
		for name, value := range fieldsOf(got) {
			if value == "set" {
				t.Errorf("Kubeconfig() set %s", name)
			}
		}
		if !strings.HasPrefix(strings.ToLower(got.Host), "https://") {
			t.Errorf("Kubeconfig() has host %q", got.Host)
		}
	})
}

// TestRenewed: a cluster that manages itself may give its parent other credentials for the place
// that the parent knows, and nothing else.
func TestRenewed(t *testing.T) {
	now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	token := func(end time.Duration) string {
		return "token: " + signed(t, jwt.MapClaims{"exp": now.Add(end).Unix()})
	}
	place := server + "\ncertificate-authority-data: " + ca64 + "\ntls-server-name: api"
	here := kubeconfig(place, token(-time.Minute))
	for name, tc := range map[string]struct {
		reason string
		there  string
		// user is what the kubeconfig has then, empty if it stays as it is, and refused what the error tells.
		user, refused string
	}{
		"Renewed":     {"what a controller renews every few minutes", kubeconfig(place, token(time.Hour)), token(time.Hour), ""},
		"OtherNames":  {"names in a kubeconfig are of no account", strings.NewReplacer("name: u\n", "name: v\n", "user: u}", "user: v}").Replace(kubeconfig(place, token(time.Hour))), token(time.Hour), ""},
		"NoEnd":       {"not every token says when it ends", kubeconfig(place, "token: abc"), "token: abc", ""},
		"Lapsed":      {"nobody renews it there either", kubeconfig(place, token(-time.Second)), "", "lapsed at 2026-09-01T11:59:59Z"},
		"Server":      {"the way to a cluster is a person's to change", kubeconfig(strings.Replace(place, "6443", "6444", 1), token(time.Hour)), "", "another server than"},
		"CA":          {"so is who vouches for it", kubeconfig(server+"\ntls-server-name: api", token(time.Hour)), "", "another certificate-authority-data"},
		"ServerName":  {"so is the name of it", kubeconfig(server+"\ncertificate-authority-data: "+ca64, token(time.Hour)), "", "another tls-server-name"},
		"Proxy":       {"so is what it leads through", kubeconfig(place+"\nproxy-url: http://proxy:3128", token(time.Hour)), "", "another proxy-url"},
		"Exec":        {"what is refused here is refused from there", kubeconfig(place, "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}"), "", "exec not allowed"},
		"File":        {"files are those of the agent", kubeconfig(place, "tokenFile: /etc/hostname"), "", "tokenFile not allowed"},
		"Nobody":      {"a kubeconfig that is not filled in yet", kubeconfig(place, "{}"), "", "neither a token"},
		"NoKey":       {"a certificate alone is no credential", kubeconfig(place, "client-certificate-data: "+cert64), "", "neither a token"},
		"Certificate": {"what no client can use would lock the parent out", kubeconfig(place, "client-certificate-data: "+cert64+"\nclient-key-data: "+key64), "", "cannot be used"},
		"Empty":       {"a Secret without it", "", "", "it is empty"},
		"Aliases":     {"so is what it takes: each of them is written out", kubeconfig(place, token(time.Hour)) + "a: &a x\nb: [*a]\n", "", "aliases"},
		"Large":       {"what is parsed is bounded", strings.Repeat("#", maxKubeconfig+1), "", "more than the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Allowed{ProxyURL: true}.Renewed([]byte(here), []byte(tc.there), now)
			if tc.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tc.refused) || got != nil {
					t.Errorf("%s: Renewed() = %q, %v, want an error with %q", tc.reason, got, err, tc.refused)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			is, err := Allowed{}.Kubeconfig(got)
			if err != nil {
				t.Fatal(err)
			}
			want, err := Allowed{}.Kubeconfig([]byte(kubeconfig(place, tc.user)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, is); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			if again, err := (Allowed{}).Renewed(got, []byte(tc.there), now); again != nil || err != nil {
				t.Errorf("the same credentials are written again: %q, %v", again, err)
			}
		})
	}
}

func TestBelongsTo(t *testing.T) {
	cluster := Cluster{Name: "prod", UID: "1"}
	for name, tc := range map[string]struct {
		reason string
		meta   metav1.ObjectMeta
		want   bool
	}{
		"Label":        {"what every provider sets", metav1.ObjectMeta{Labels: map[string]string{clusterapi.ClusterNameLabel: "prod"}}, true},
		"OtherLabel":   {"the Secret of a neighbour", metav1.ObjectMeta{Labels: map[string]string{clusterapi.ClusterNameLabel: "dev"}}, false},
		"Owner":        {"owned by the very Cluster", metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "KubeadmControlPlane", UID: "9"}, {Kind: "Cluster", UID: "1"}}}, true},
		"FormerOwner":  {"owned by a Cluster of the same name that is gone", metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Cluster", Name: "prod", UID: "0"}}}, false},
		"ControlPlane": {"an owner of another kind says nothing by itself", metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "KubeadmControlPlane", UID: "1"}}}, false},
		"Nothing":      {"a name alone can be taken by anybody", metav1.ObjectMeta{Name: clusterapi.KubeconfigSecret("prod")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := BelongsTo(&corev1.Secret{ObjectMeta: tc.meta}, cluster); got != tc.want {
				t.Errorf("%s\nBelongsTo() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}
