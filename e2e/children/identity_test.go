package children

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// minted fails the test unless the provider's account was used at the beginning,
// and the parent's own ever since.
func (p *plane) minted(t *testing.T, from int64) {
	t.Helper()
	var first, own int
	for _, e := range p.requests(t, from) {
		switch e.User.Username {
		case parentUser:
			own++
		default:
			first++
			if own > 0 {
				t.Errorf("%s %s came as %q after the parent had an account of its own", e.Verb, e.RequestURI, e.User.Username)
			}
		}
	}
	if first == 0 || own == 0 {
		t.Errorf("%d requests came as the administrator, %d as the parent", first, own)
	}
}

// leastRights looks at what the parent's account is, and may do.
func leastRights(t *testing.T, p *plane) {
	t.Helper()
	account := &corev1.ServiceAccount{}
	if err := p.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.ParentServiceAccount}, account); err != nil {
		t.Fatal(err)
	}
	if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
		t.Error("pods would mount the token of the parent's account")
	}
	secrets := &corev1.SecretList{}
	if err := p.client.List(t.Context(), secrets); err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets.Items {
		if s.Type == corev1.SecretTypeServiceAccountToken {
			t.Errorf("Secret %s/%s has a token that never expires", s.Namespace, s.Name)
		}
	}
	bindings := &rbacv1.ClusterRoleBindingList{}
	if err := p.client.List(t.Context(), bindings); err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings.Items {
		for _, s := range b.Subjects {
			if s.Kind == "ServiceAccount" && s.Name == v1alpha1.ParentServiceAccount && b.RoleRef.Name == "cluster-admin" {
				t.Error("the parent is bound to cluster-admin")
			}
		}
	}
	for _, tc := range []struct {
		reason string
		attrs  authorizationv1.ResourceAttributes
		want   bool
	}{
		{"what the layer holds is written", authorizationv1.ResourceAttributes{Verb: "patch", Resource: "configmaps", Namespace: "default", Name: "note"}, true},
		{"who the cluster is", authorizationv1.ResourceAttributes{Verb: "get", Resource: "namespaces", Name: "kube-system"}, true},
		{"no layer holds Secrets of the system", authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets", Namespace: "kube-system"}, false},
		{"no layer holds pods", authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods", Namespace: "kube-system"}, false},
		{"nodes are none of its business", authorizationv1.ResourceAttributes{Verb: "delete", Resource: "nodes"}, false},
		{"it would be anybody", authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: "users", Name: "kubernetes-admin"}, false},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: parentUser, ResourceAttributes: &tc.attrs,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + v1alpha1.AgentNamespace, "system:authenticated"}}}
		if err := p.client.Create(t.Context(), review); err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed != tc.want {
			t.Errorf("%s: the parent may %s %s: %t", tc.reason, tc.attrs.Verb, tc.attrs.Resource, review.Status.Allowed)
		}
	}
}

// identities has the kubeconfig of a cluster lead to another one that lives.
func identities(h *hub, t *testing.T) {
	f := h.fleet(t, "identity", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	right, wrong := h.plane(t, "right"), h.plane(t, "wrong")
	f.layer(t, "app", "c")
	f.declare(t, "c")
	f.report(t, "c", initialized)
	f.handOver(t, "c", right.issue(t).kubeconfig)
	f.ready(t, "c", "")
	recorded := f.child1(t, "c").Status.Identity

	f.handOver(t, "c", wrong.issue(t).kubeconfig)
	f.says(t, "c", v1alpha1.ConnectedCondition, v1alpha1.ReasonIdentityChanged, recorded.KubeSystemUID)
	// Neither a commit nor a request may reach the wrong cluster, and what the
	// right one has on record stays.
	sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "2")})
	f.fetched(t, sha)
	child := f.reconciled(t, "c")
	if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition); c.Reason != v1alpha1.ReasonIdentityChanged {
		t.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
	}
	if child.Status.Identity == nil || *child.Status.Identity != *recorded || len(child.Status.Layers) != 1 {
		t.Errorf("the identity is %v, it was %v; layers are %v", child.Status.Identity, recorded, child.Status.Layers)
	}
	f.handOver(t, "c", right.issue(t).kubeconfig)
	right.has(t, "note", "version", "2")
	f.ready(t, "c", sha)
	wrong.untouched(t, 0)
	for _, e := range wrong.requests(t, 0) {
		if e.ObjectRef.Subresource == "token" {
			t.Errorf("the wrong cluster was asked for a token")
		}
	}
}

// rebuiltServer is a control plane that lost its data and was built again in the
// same place: address, authorities and administrator are those of before.
func rebuiltServer(h *hub, t *testing.T) {
	f := h.fleet(t, "rebuilt", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	p := h.plane(t, "rebuilt")
	f.layer(t, "app", "c")
	f.declare(t, "c")
	f.report(t, "c", initialized)
	f.handOver(t, "c", p.kubeconfig(t, func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {}))
	recorded := f.ready(t, "c", "").Status.Identity

	p.rebuild(t)
	from := p.now(t)
	sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "2")})
	f.fetched(t, sha)
	f.reconciled(t, "c")
	child := f.says(t, "c", v1alpha1.ConnectedCondition, v1alpha1.ReasonIdentityChanged, recorded.KubeSystemUID)
	if *child.Status.Identity != *recorded {
		t.Errorf("the identity is %v, it was %v", child.Status.Identity, recorded)
	}
	f.reconciled(t, "c")
	p.untouched(t, from)
	// A person says that this is intended.
	if err := f.client.Delete(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	p.has(t, "note", "version", "2")
	f.ready(t, "c", sha)
}

// rebuild ends a control plane and starts it again without its data.
func (p *plane) rebuild(t *testing.T) {
	t.Helper()
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(p.Dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	if err := p.StartControlPlane(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.connect(t)
}

// notReadyServers are kubeconfigs that lead to something that is no usable API
// server: it does not say a word, or says of itself that it is not ready.
func notReadyServers(h *hub, t *testing.T) {
	f := h.fleet(t, "notready", map[string]string{"one/note.yaml": noteNamed("note"), "two/note.yaml": noteNamed("note")})
	p := h.plane(t, "notready")
	f.layer(t, "one", "silent")
	f.layer(t, "two", "unready")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	// Behind it is an API server that would take everything.
	behind, err := p.Config()
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(behind.Host)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(behind.CAData)
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	var isReady atomic.Bool
	unready := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/readyz") && !isReady.Load() {
			http.Error(w, "[-]etcd failed: reason withheld", http.StatusInternalServerError)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(unready.Close)
	for name, server := range map[string]string{"silent": "https://" + silent.Addr().String(), "unready": unready.URL} {
		f.declare(t, name)
		f.report(t, name, initialized)
		f.handOver(t, name, changed(t, p.issue(t).kubeconfig, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.Server = server
			if name == "unready" {
				c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: unready.Certificate().Raw})
			}
		}))
	}
	f.says(t, "unready", v1alpha1.ConnectedCondition, v1alpha1.ReasonUnreachable, "readyz")
	f.says(t, "silent", v1alpha1.ConnectedCondition, v1alpha1.ReasonUnreachable)
	if id := f.child1(t, "silent").Status.Identity; id != nil {
		t.Errorf("the silent server has the identity %v", id)
	}
	p.untouched(t, 0)
	isReady.Store(true)
	f.ready(t, "unready", "")
}

// lostTokens takes away the parent's own account, and then everything at once.
func lostTokens(h *hub, t *testing.T) {
	f := h.fleet(t, "tokens", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	p := h.plane(t, "tokens")
	f.layer(t, "app", "c")
	f.declare(t, "c")
	f.report(t, "c", initialized)
	credential := p.issue(t)
	f.handOver(t, "c", credential.kubeconfig)
	f.ready(t, "c", "")
	said := f.keep(t)
	steps(t,
		step{"RevokedIsMintedAnew", func(t *testing.T) {
			p.dismiss(t)
			from := p.now(t)
			sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "2")})
			p.has(t, "note", "version", "2")
			f.ready(t, "c", sha)
			refused := 0
			for _, e := range p.refused(t, from) {
				refused++
				t.Logf("refused: %s %s", e.Verb, e.RequestURI)
			}
			if refused == 0 {
				t.Error("no token was refused; the test does not see what it is about")
			}
		}},
		step{"RotatedKeepsTheMintedToken", func(t *testing.T) {
			next := p.issue(t)
			from := p.now(t)
			f.handOver(t, "c", next.kubeconfig)
			p.revoke(t, credential)
			credential = next
			sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "3")})
			p.has(t, "note", "version", "3")
			f.ready(t, "c", sha)
			for _, e := range p.requests(t, from) {
				if e.User.Username != parentUser {
					t.Errorf("%s %s came as %q although the parent has an account of its own", e.Verb, e.RequestURI, e.User.Username)
				}
			}
		}},
		step{"BothLost", func(t *testing.T) {
			next := p.issue(t)
			p.revoke(t, credential)
			p.dismiss(t)
			f.handOver(t, "c", next.kubeconfig)
			credential = next
			sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "4")})
			p.has(t, "note", "version", "4")
			f.ready(t, "c", sha)
		}},
		check{"Silently", func(t *testing.T) {
			for _, c := range said.complaints() {
				t.Error(c)
			}
		}},
		step{"RightsTakenAwayAreGrantedAnew", func(t *testing.T) {
			for i, all := range []bool{false, true} {
				roles := &rbacv1.ClusterRoleList{}
				if err := p.client.List(t.Context(), roles); err != nil {
					t.Fatal(err)
				}
				removed := 0
				for _, role := range roles.Items {
					if strings.HasPrefix(role.Name, v1alpha1.ParentServiceAccount) && (all || role.Name != v1alpha1.ParentServiceAccount) {
						removed++
						if err := p.client.Delete(t.Context(), &role); err != nil {
							t.Fatal(err)
						}
					}
				}
				if removed == 0 {
					t.Fatal("the parent has no roles")
				}
				version := fmt.Sprint(5 + i)
				sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", version)})
				p.has(t, "note", "version", version)
				f.ready(t, "c", sha)
			}
		}},
	)
}

// dismiss deletes the parent's account, so that its tokens are refused.
func (p *plane) dismiss(t *testing.T) {
	t.Helper()
	if err := p.client.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.ParentServiceAccount}}); err != nil {
		t.Fatal(err)
	}
}
