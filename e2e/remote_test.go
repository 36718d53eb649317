package e2e

import (
	"context"
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
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

// TestRemote has one agent and many clusters, to each of which something else
// happens at the same time. The parts have a namespace each.
func TestRemote(t *testing.T) {
	alongside(t)
	h := startHub(t, "v1beta2")
	for _, part := range []struct {
		name string
		run  func(*hub, *testing.T)
	}{
		{"Life", life},
		{"Identity", identities},
		{"IdentityOfARebuiltServer", rebuiltServer},
		{"NotReadyServers", notReadyServers},
		{"LostTokens", lostTokens},
		{"Layers", layers},
		{"PushedClusters", pushedClusters},
		{"Inhabited", inhabited},
		{"Unreachable", unreachable},
		{"ByHand", byHand},
		{"Rotation", rotation},
		{"Recreation", recreation},
		{"Deletion", deletion},
	} {
		t.Run(part.name, func(t *testing.T) { t.Parallel(); part.run(h, t) })
	}
}

// acts runs parts of a story; one that fails ends it, unless it only looked.
func acts(t *testing.T, parts ...any) {
	t.Helper()
	for _, part := range parts {
		switch part := part.(type) {
		case act:
			if !t.Run(part.name, part.run) {
				return
			}
		case look:
			t.Run(part.name, part.run)
		}
	}
}

// act of a story, without which the next cannot be.
type act struct {
	name string
	run  func(*testing.T)
}

// look at how far the story came. It changes nothing.
type look act

// life follows one cluster from its declaration on, stage by stage, as providers
// make them.
func life(h *hub, t *testing.T) {
	y := h.yard(t, "life", map[string]string{
		"app/note.yaml":  noteNamed("note", "cluster", "${cluster_name}", "version", "1"),
		"late/note.yaml": noteNamed("late", "cluster", "${cluster_name}"),
		"cel/note.yaml":  noteNamed("cel", "cluster", "${cluster_name}"),
	})
	p := h.plane(t, "life")
	y.layer(t, "app", "life")
	credential := p.issue(t)
	acts(t,
		act{"DiscoverV1beta2", func(t *testing.T) {
			// Some providers put a URL here, or nothing that can be reached.
			cluster := y.declare(t, "life", `controlPlaneEndpoint: {host: "https://0123.example.invalid", port: 443}`, `availabilityGates: [{conditionType: cascade.dev/Seeded}]`)
			child := y.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonClusterNotReady, "infrastructure")
			if child.Spec.ClusterRef == nil || child.Spec.ClusterRef.Name != "life" || child.Labels["cluster"] != "life" {
				t.Errorf("the Child refers to %v, with labels %v", child.Spec.ClusterRef, child.Labels)
			}
			if len(child.Finalizers) > 0 {
				t.Errorf("the Child has finalizers %v", child.Finalizers)
			}
			if got := y.cluster(t, "life").GetFinalizers(); !slices.Equal(got, cluster.GetFinalizers()) {
				t.Errorf("the Cluster has finalizers %v", got)
			}
		}},
		act{"GateProvisionedWithoutServer", func(t *testing.T) {
			y.report(t, "life", map[string]any{"phase": "Provisioned", "initialization": map[string]any{"infrastructureProvisioned": true}})
			y.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonClusterNotReady, "control plane")
		}},
		act{"GateKubeconfigMissing", func(t *testing.T) {
			y.report(t, "life", initialized)
			y.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigMissing, capibridge.KubeconfigSecret("life"))
		}},
		act{"DialSecretOfNobodyRefused", func(t *testing.T) {
			for name, labels := range map[string]map[string]string{"Nobody": nil, "Neighbour": {capibridge.ClusterNameLabel: "neighbour"}} {
				y.handOver(t, "life", credential.kubeconfig, func(s *corev1.Secret) { s.Labels = labels })
				y.visit(t, "life")
				y.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigMissing, "belong")
				t.Logf("%s: refused", name)
			}
			y.handOver(t, "life", credential.kubeconfig, func(s *corev1.Secret) {
				s.Data = map[string][]byte{"relative": s.Data[capibridge.KubeconfigKey]}
			})
			y.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigMissing, "key value")
		}},
		act{"DialKubeconfigRefused", func(t *testing.T) {
			for word, change := range map[string]func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo){
				"exec": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
					*u = clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "aws-iam-authenticator", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}}
				},
				"tokenFile": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
					*u = clientcmdapi.AuthInfo{TokenFile: h.tier.Kubeconfig()}
				},
				"client-key": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.ClientKey = h.tier.Kubeconfig() },
				"proxy-url":  func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.ProxyURL = "http://127.0.0.1:1" },
				"insecure-skip-tls-verify": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
					c.InsecureSkipTLSVerify = true
					c.CertificateAuthorityData = nil
				},
				"https": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
					c.Server = strings.Replace(c.Server, "https", "http", 1)
				},
			} {
				y.handOver(t, "life", p.kubeconfig(t, change))
				y.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigRefused, word)
			}
			if got := p.requests(t, 0); len(got) > 0 {
				t.Errorf("the cluster was asked %d times before there was a kubeconfig, first for %s", len(got), got[0].RequestURI)
			}
		}},
		act{"DialByTheKubeconfigAlone", func(t *testing.T) {
			// The type differs by provider: this is AKS's.
			if err := y.client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: capibridge.KubeconfigSecret("life")}}); err != nil {
				t.Fatal(err)
			}
			y.handOver(t, "life", credential.kubeconfig, func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque })
			p.has(t, "note", "cluster", "life")
			child := y.ready(t, "life", "")
			ns := &corev1.Namespace{}
			if err := p.client.Get(t.Context(), client.ObjectKey{Name: "kube-system"}, ns); err != nil {
				t.Fatal(err)
			}
			want := v1alpha1.ChildIdentity{ClusterUID: string(y.cluster(t, "life").GetUID()), KubeSystemUID: string(ns.UID)}
			if child.Status.Identity == nil || *child.Status.Identity != want {
				t.Errorf("the recorded identity is %v, want %v", child.Status.Identity, want)
			}
		}},
		look{"IdentifyBeforeTheFirstWrite", func(t *testing.T) {
			var asked bool
			for _, e := range p.requests(t, 0) {
				asked = asked || e.Verb == "get" && e.ObjectRef.Resource == "namespaces" && e.ObjectRef.Name == "kube-system"
				if e.Writes() && !asked {
					t.Fatalf("%s %s came before the question who the cluster is", e.Verb, e.RequestURI)
				}
			}
		}},
		look{"MintUsesTheAdministratorOnce", func(t *testing.T) { p.minted(t, 0) }},
		look{"MintLeastRights", func(t *testing.T) { leastRights(t, p) }},
		look{"SeededOnTheCluster", func(t *testing.T) { y.seeded(t, "life", metav1.ConditionTrue) }},
		act{"GateAvailable", func(t *testing.T) {
			y.layer(t, "late", "life", "readyWhen: Available")
			y.says(t, "life", v1alpha1.SeededCondition, v1alpha1.ReasonClusterNotReady, "Available")
			y.seeded(t, "life", metav1.ConditionFalse)
			p.hasNot(t, "late")
			y.report(t, "life", map[string]any{"conditions": []any{map[string]any{
				"type": "Available", "status": "True", "reason": "Available", "message": "", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
			}}})
			p.has(t, "late", "cluster", "life")
			y.ready(t, "life", "")
			y.seeded(t, "life", metav1.ConditionTrue)
		}},
		act{"GateExpression", func(t *testing.T) {
			y.layer(t, "cel", "life", `readyWhen: "'blue' in cluster.metadata.labels"`)
			y.says(t, "life", v1alpha1.SeededCondition, v1alpha1.ReasonClusterNotReady, "blue")
			p.hasNot(t, "cel")
			y.patch(t, y.cluster(t, "life"), map[string]any{"metadata": map[string]any{"labels": map[string]any{"blue": "yes"}}})
			p.has(t, "cel", "cluster", "life")
		}},
		act{"PausedIsNotPushed", func(t *testing.T) {
			y.ready(t, "life", "")
			y.patch(t, y.cluster(t, "life"), map[string]any{"spec": map[string]any{"paused": true}})
			y.says(t, "life", v1alpha1.ReadyCondition, v1alpha1.ReasonPaused)
			from := p.now(t)
			sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "2")})
			y.fetched(t, sha)
			y.visit(t, "life")
			p.untouched(t, from)
			if paused, _, _ := unstructured.NestedBool(y.cluster(t, "life").Object, "spec", "paused"); !paused {
				t.Error("the Cluster is not paused any more")
			}
			y.patch(t, y.cluster(t, "life"), map[string]any{"spec": map[string]any{"paused": nil}})
			p.has(t, "note", "version", "2")
			y.ready(t, "life", sha)
		}},
		act{"UnselectedOrphan", func(t *testing.T) {
			y.patch(t, layerNamed(y, "late"), map[string]any{"spec": map[string]any{"clusterSelector": map[string]any{"matchLabels": map[string]any{"cluster": "nobody"}}}})
			y.forgets(t, "life", "late")
			p.has(t, "late", "cluster", "life")
		}},
		act{"UnselectedDelete", func(t *testing.T) {
			y.patch(t, layerNamed(y, "cel"), map[string]any{"spec": map[string]any{"deletionPolicy": "Delete"}})
			eventually(t, converge, "the policy is recorded", func(ctx context.Context) error {
				child, err := y.child(ctx, "life")
				if err != nil {
					return err
				}
				for _, l := range child.Status.Layers {
					if l.Name == "cel" && l.DeletionPolicy == v1alpha1.DeletionDelete {
						return nil
					}
				}
				return fmt.Errorf("layers are %v", child.Status.Layers)
			})
			if err := y.client.Delete(t.Context(), layerNamed(y, "cel")); err != nil {
				t.Fatal(err)
			}
			y.forgets(t, "life", "cel")
			p.hasNot(t, "cel")
			p.has(t, "note", "version", "2")
		}},
	)
}

// inhabited is a cluster that has some of what a layer brings. That is found out by
// one list, and what a person exempted is left alone.
func inhabited(h *hub, t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"a", "b", "c", "d"} {
		files["app/"+name+".yaml"] = noteNamed(name, "by", "git")
	}
	y := h.yard(t, "inhabited", files)
	p := h.plane(t, "inhabited", "--audit-reads")
	for name, annotations := range map[string]map[string]string{"a": {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}, "b": nil} {
		if err := p.client.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations}, Data: map[string]string{"by": "hand"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	y.layer(t, "app", "inhabited")
	from := p.now(t)
	y.declare(t, "inhabited")
	y.report(t, "inhabited", initialized)
	y.handOver(t, "inhabited", p.issue(t).kubeconfig)
	y.ready(t, "inhabited", "")
	for name, want := range map[string]string{"a": "hand", "b": "git", "c": "git", "d": "git"} {
		p.has(t, name, "by", want)
	}
	lists := 0
	for _, e := range p.requests(t, from) {
		switch {
		case e.ObjectRef.Resource != "configmaps" || e.ObjectRef.Namespace != "default":
		case e.Verb == "list":
			lists++
		case e.Verb == "get":
			t.Errorf("%s was asked for, although there was a list", e.ObjectRef.Name)
		}
	}
	if lists != 1 {
		t.Errorf("ConfigMaps were listed %d times", lists)
	}
}

func layerNamed(y *yard, name string) *v1alpha1.Layer {
	return &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: name}}
}

// fetched waits until the source has a commit.
func (y *yard) fetched(t *testing.T, commit string) {
	t.Helper()
	eventually(t, converge, "the commit is fetched", func(ctx context.Context) error {
		u := object("source.toolkit.fluxcd.io/v1", "GitRepository", y.namespace, "fleet")
		if err := y.client.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
			return err
		}
		revision, _, _ := unstructured.NestedString(u.Object, "status", "artifact", "revision")
		if !strings.HasSuffix(revision, commit) {
			return fmt.Errorf("the revision is %s", revision)
		}
		return nil
	})
}

// forgets waits until a Child has no record of a layer.
func (y *yard) forgets(t *testing.T, name, layer string) {
	t.Helper()
	eventually(t, converge, "the record of layer "+layer+" goes", func(ctx context.Context) error {
		child, err := y.child(ctx, name)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(child.Status.Layers, func(l v1alpha1.ChildLayer) bool { return l.Name == layer }) {
			return fmt.Errorf("conditions are %s", summary(child.Status.Conditions))
		}
		return nil
	})
}

// seeded waits for the condition on the Cluster that spec.availabilityGates may
// name.
func (y *yard) seeded(t *testing.T, name string, want metav1.ConditionStatus) {
	t.Helper()
	eventually(t, converge, fmt.Sprintf("cascade.dev/Seeded of Cluster %s is %s", name, want), func(context.Context) error {
		conditions, _, err := unstructured.NestedSlice(y.cluster(t, name).Object, "status", "conditions")
		if err != nil {
			return err
		}
		for _, c := range conditions {
			c := c.(map[string]any)
			if c["type"] == "cascade.dev/Seeded" && c["status"] == string(want) {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v", conditions)
	})
}

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
	y := h.yard(t, "identity", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	right, wrong := h.plane(t, "right"), h.plane(t, "wrong")
	y.layer(t, "app", "c")
	y.declare(t, "c")
	y.report(t, "c", initialized)
	y.handOver(t, "c", right.issue(t).kubeconfig)
	y.ready(t, "c", "")
	recorded := y.child1(t, "c").Status.Identity

	y.handOver(t, "c", wrong.issue(t).kubeconfig)
	y.says(t, "c", v1alpha1.ConnectedCondition, v1alpha1.ReasonIdentityChanged, recorded.KubeSystemUID)
	// Neither a commit nor a request may reach the wrong cluster, and what the
	// right one has on record stays.
	sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "2")})
	y.fetched(t, sha)
	child := y.visit(t, "c")
	if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition); c.Reason != v1alpha1.ReasonIdentityChanged {
		t.Errorf("conditions are %s", summary(child.Status.Conditions))
	}
	if child.Status.Identity == nil || *child.Status.Identity != *recorded || len(child.Status.Layers) != 1 {
		t.Errorf("the identity is %v, it was %v; layers are %v", child.Status.Identity, recorded, child.Status.Layers)
	}
	y.handOver(t, "c", right.issue(t).kubeconfig)
	right.has(t, "note", "version", "2")
	y.ready(t, "c", sha)
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
	y := h.yard(t, "rebuilt", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	p := h.plane(t, "rebuilt")
	y.layer(t, "app", "c")
	y.declare(t, "c")
	y.report(t, "c", initialized)
	y.handOver(t, "c", p.kubeconfig(t, func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {}))
	recorded := y.ready(t, "c", "").Status.Identity

	p.rebuild(t)
	from := p.now(t)
	sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "2")})
	y.fetched(t, sha)
	y.visit(t, "c")
	child := y.says(t, "c", v1alpha1.ConnectedCondition, v1alpha1.ReasonIdentityChanged, recorded.KubeSystemUID)
	if *child.Status.Identity != *recorded {
		t.Errorf("the identity is %v, it was %v", child.Status.Identity, recorded)
	}
	y.visit(t, "c")
	p.untouched(t, from)
	// A person says that this is intended.
	if err := y.client.Delete(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	p.has(t, "note", "version", "2")
	y.ready(t, "c", sha)
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

func (y *yard) child1(t *testing.T, name string) *v1alpha1.Child {
	t.Helper()
	child, err := y.child(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return child
}

// notReadyServers are kubeconfigs that lead to something that is no usable API
// server: it does not say a word, or says of itself that it is not ready.
func notReadyServers(h *hub, t *testing.T) {
	y := h.yard(t, "notready", map[string]string{"one/note.yaml": noteNamed("note"), "two/note.yaml": noteNamed("note")})
	p := h.plane(t, "notready")
	y.layer(t, "one", "silent")
	y.layer(t, "two", "unready")
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
		y.declare(t, name)
		y.report(t, name, initialized)
		y.handOver(t, name, changed(t, p.issue(t).kubeconfig, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.Server = server
			if name == "unready" {
				c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: unready.Certificate().Raw})
			}
		}))
	}
	y.says(t, "unready", v1alpha1.ConnectedCondition, v1alpha1.ReasonUnreachable, "readyz")
	y.says(t, "silent", v1alpha1.ConnectedCondition, v1alpha1.ReasonUnreachable)
	if id := y.child1(t, "silent").Status.Identity; id != nil {
		t.Errorf("the silent server has the identity %v", id)
	}
	p.untouched(t, 0)
	isReady.Store(true)
	y.ready(t, "unready", "")
}

// lostTokens takes away the parent's own account, and then everything at once.
func lostTokens(h *hub, t *testing.T) {
	y := h.yard(t, "tokens", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	p := h.plane(t, "tokens")
	y.layer(t, "app", "c")
	y.declare(t, "c")
	y.report(t, "c", initialized)
	credential := p.issue(t)
	y.handOver(t, "c", credential.kubeconfig)
	y.ready(t, "c", "")
	said := y.keep(t)
	acts(t,
		act{"RevokedIsMintedAnew", func(t *testing.T) {
			p.dismiss(t)
			from := p.now(t)
			sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "2")})
			p.has(t, "note", "version", "2")
			y.ready(t, "c", sha)
			refused := 0
			for _, e := range p.refused(t, from) {
				refused++
				t.Logf("refused: %s %s", e.Verb, e.RequestURI)
			}
			if refused == 0 {
				t.Error("no token was refused; the test does not see what it is about")
			}
		}},
		act{"RotatedKeepsTheMintedToken", func(t *testing.T) {
			next := p.issue(t)
			from := p.now(t)
			y.handOver(t, "c", next.kubeconfig)
			p.revoke(t, credential)
			credential = next
			sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "3")})
			p.has(t, "note", "version", "3")
			y.ready(t, "c", sha)
			for _, e := range p.requests(t, from) {
				if e.User.Username != parentUser {
					t.Errorf("%s %s came as %q although the parent has an account of its own", e.Verb, e.RequestURI, e.User.Username)
				}
			}
		}},
		act{"BothLost", func(t *testing.T) {
			next := p.issue(t)
			p.revoke(t, credential)
			p.dismiss(t)
			y.handOver(t, "c", next.kubeconfig)
			credential = next
			sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", "4")})
			p.has(t, "note", "version", "4")
			y.ready(t, "c", sha)
		}},
		look{"Silently", func(t *testing.T) {
			for _, c := range said.complaints() {
				t.Error(c)
			}
		}},
		act{"RightsTakenAwayAreGrantedAnew", func(t *testing.T) {
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
				sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", version)})
				p.has(t, "note", "version", version)
				y.ready(t, "c", sha)
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

// layers are several on one child, that depend on each other.
func layers(h *hub, t *testing.T) {
	y := h.yard(t, "layers", map[string]string{
		// Named so that its CRD comes last in any alphabetic order.
		"base/a-widget.yaml": "apiVersion: example.com/v1\nkind: Widget\nmetadata:\n  name: first\n  namespace: default\nspec: {cluster: \"${cluster_name}\"}\n",
		"base/z-crd.yaml":    widgets,
		"app/note.yaml":      noteNamed("app", "cluster", "${cluster_name}", "uid", "${cluster_uid}", "label", "${label_environment}", "own", "${git_url}", "pods", "${pod_cidr}", "word", "${word}"),
		"broken/note.yaml":   noteNamed("broken", "cluster", "${cluster_name}") + "  data: [\n",
		"top/note.yaml":      noteNamed("top", "cluster", "${cluster_name}"),
	})
	p := h.plane(t, "layers")
	y.layer(t, "app", "c", "dependsOn: [{name: base}]", `postBuild: {substitute: {word: "of the layer"}}`)
	y.layer(t, "base", "c", "wait: true", "credentials: [{name: handed, secretRef: {name: original}}]")
	y.layer(t, "top", "c", "dependsOn: [{name: broken}]")
	y.layer(t, "broken", "c")
	y.define(t, `{apiVersion: v1, kind: Secret, metadata: {name: original}, stringData: {word: one}}`)
	y.declare(t, "c", `clusterNetwork: {pods: {cidrBlocks: [10.1.0.0/16]}}`)
	y.patch(t, y.cluster(t, "c"), map[string]any{"metadata": map[string]any{
		"labels": map[string]any{"environment": "blue"}, "annotations": map[string]any{"vars.cascade.dev/git_url": "https://example.com/apps"},
	}})
	y.report(t, "c", initialized)
	y.handOver(t, "c", p.issue(t).kubeconfig)
	handed := func(want string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			s := &corev1.Secret{}
			if err := p.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: "handed"}, s); err != nil {
				return err
			}
			if string(s.Data["word"]) != want {
				return fmt.Errorf("the word is %q", s.Data["word"])
			}
			return nil
		}
	}
	acts(t,
		act{"DependencyWaits", func(t *testing.T) {
			y.says(t, "c", v1alpha1.SeededCondition, v1alpha1.ReasonBuildFailed, "broken")
			eventually(t, converge, "layer top waits", func(ctx context.Context) error {
				child, err := y.child(ctx, "c")
				if err != nil {
					return err
				}
				for _, l := range child.Status.Layers {
					if l.Name == "top" && l.Reason == v1alpha1.ReasonDependencyNotReady {
						return nil
					}
				}
				return fmt.Errorf("layers are %v", child.Status.Layers)
			})
			p.hasNot(t, "top")
			// One that fails does not hold up those that do not depend on it.
			p.has(t, "app", "cluster", "c")
			sha := y.commit(t, map[string]string{"broken/note.yaml": noteNamed("broken", "cluster", "${cluster_name}")})
			p.has(t, "top", "cluster", "c")
			y.ready(t, "c", sha)
		}},
		look{"Order", func(t *testing.T) {
			inOrder(t, p.writes(t, 0), "secrets/handed", "customresourcedefinitions/widgets.example.com", "widgets/first", "configmaps/app")
		}},
		look{"Variables", func(t *testing.T) {
			for key, want := range map[string]string{
				"uid": string(y.cluster(t, "c").GetUID()), "label": "blue", "own": "https://example.com/apps", "pods": "10.1.0.0/16", "word": "of the layer",
			} {
				p.has(t, "app", key, want)
			}
		}},
		act{"Credentials", func(t *testing.T) {
			eventually(t, converge, "the Secret is handed over", handed("one"))
			y.define(t, `{apiVersion: v1, kind: Secret, metadata: {name: original}, stringData: {word: two}}`)
			eventually(t, 2*converge, "the new content is handed over", handed("two"))
			if got := y.child1(t, "c").Status.Credentials; len(got) != 1 || got[0].Name != "handed" || got[0].ExpiresAt != nil {
				t.Errorf("recorded are %v", got)
			}
		}},
		act{"CredentialsThatLapse", func(t *testing.T) {
			secret := &corev1.Secret{}
			if err := y.client.Get(t.Context(), client.ObjectKey{Namespace: y.namespace, Name: "original"}, secret); err != nil {
				t.Fatal(err)
			}
			expires := func(at time.Time) {
				t.Helper()
				y.annotate(t, secret, v1alpha1.ExpiresAnnotation, at.UTC().Format(time.RFC3339))
				y.visit(t, "c")
				eventually(t, converge, "the end of its life is known", func(ctx context.Context) error {
					child, err := y.child(ctx, "c")
					if err != nil {
						return err
					}
					got := child.Status.Credentials
					if len(got) != 1 || got[0].ExpiresAt == nil || got[0].RenewAt == nil || got[0].ExpiresAt.Unix() != at.Unix() {
						return fmt.Errorf("recorded are %v", got)
					}
					due := secret.CreationTimestamp.Add(at.Sub(secret.CreationTimestamp.Time) * 2 / 3)
					if off := got[0].RenewAt.Sub(due).Abs(); off > 2*time.Second {
						return fmt.Errorf("it is to be renewed at %s, two thirds of its life are over at %s", got[0].RenewAt, due)
					}
					return nil
				})
			}
			expires(time.Now().Add(time.Hour))
			if c := meta.FindStatusCondition(y.child1(t, "c").Status.Conditions, v1alpha1.CredentialsExpiringCondition); c != nil {
				t.Errorf("there is a warning too early: %s", c.Message)
			}
			expires(time.Now())
			eventually(t, converge, "there is a warning", func(ctx context.Context) error {
				child, err := y.child(ctx, "c")
				if err != nil {
					return err
				}
				c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.CredentialsExpiringCondition)
				if c == nil || c.Reason != v1alpha1.ReasonCredentialsLapsed || !strings.Contains(c.Message, "handed") {
					return fmt.Errorf("conditions are %s", summary(child.Status.Conditions))
				}
				return nil
			})
			// Renewed.
			expires(time.Now().Add(time.Hour))
			eventually(t, converge, "the warning goes", func(ctx context.Context) error {
				child, err := y.child(ctx, "c")
				if err == nil && meta.FindStatusCondition(child.Status.Conditions, v1alpha1.CredentialsExpiringCondition) != nil {
					err = fmt.Errorf("conditions are %s", summary(child.Status.Conditions))
				}
				return err
			})
		}},
		look{"InventoriesInBothPlaces", func(t *testing.T) {
			inscribed := &corev1.ConfigMap{}
			if err := p.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.SeedConfigMap}, inscribed); err != nil {
				t.Fatal(err)
			}
			child := y.child1(t, "c")
			if len(child.Status.Layers) != 4 {
				t.Fatalf("layers are %v", child.Status.Layers)
			}
			for _, l := range child.Status.Layers {
				text := inscribed.Data[y.namespace+"."+l.Name]
				if len(l.Inventory) == 0 {
					t.Errorf("layer %s has no inventory", l.Name)
				}
				for _, e := range l.Inventory {
					if !strings.Contains(text, `"`+e.ID+`"`) {
						t.Errorf("the record in the child lacks %s: %s", e.ID, text)
					}
				}
			}
		}},
		act{"LostChildIsAdopted", func(t *testing.T) {
			y.ready(t, "c", "")
			before := y.child1(t, "c")
			from := p.now(t)
			if err := y.client.Delete(t.Context(), before); err != nil {
				t.Fatal(err)
			}
			eventually(t, converge, "the Child is there again", func(ctx context.Context) error {
				child, err := y.child(ctx, "c")
				if err != nil {
					return err
				}
				if child.UID == before.UID || !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) || len(child.Status.Layers) != 4 {
					return fmt.Errorf("UID %s, conditions are %s", child.UID, summary(child.Status.Conditions))
				}
				return nil
			})
			p.untouched(t, from)
		}},
	)
}

const widgets = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.com
spec:
  group: example.com
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// unreachable freezes a control plane, and then kills it.
func unreachable(h *hub, t *testing.T) {
	y := h.yard(t, "unreachable", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	p := h.plane(t, "unreachable")
	y.layer(t, "app", "c")
	y.declare(t, "c")
	y.report(t, "c", initialized)
	y.handOver(t, "c", p.issue(t).kubeconfig)
	known := y.ready(t, "c", "")
	lost := func(t *testing.T) {
		t.Helper()
		child := y.says(t, "c", v1alpha1.ConnectedCondition, v1alpha1.ReasonUnreachable)
		since := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition).LastTransitionTime
		// What is known stays, and the age of the outage is kept.
		sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", time.Now().String())})
		y.fetched(t, sha)
		child = y.visit(t, "c")
		c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
		if c.Status != metav1.ConditionFalse || !c.LastTransitionTime.Equal(&since) {
			t.Errorf("Connected is %s since %s, it was lost at %s", c.Status, c.LastTransitionTime, since)
		}
		if len(child.Status.Layers) != 1 || len(child.Status.Layers[0].Inventory) != len(known.Status.Layers[0].Inventory) || *child.Status.Identity != *known.Status.Identity {
			t.Errorf("the records are %v and %v", child.Status.Identity, child.Status.Layers)
		}
		eventually(t, converge, "the layer counts it", func(ctx context.Context) error {
			layer := layerNamed(y, "app")
			if err := y.client.Get(ctx, client.ObjectKeyFromObject(layer), layer); err != nil {
				return err
			}
			if layer.Status.Children.Unreachable != 1 || len(layer.Status.Failing) != 1 || layer.Status.Failing[0].Reason != v1alpha1.ReasonUnreachable {
				return fmt.Errorf("counts are %v, failing %v", layer.Status.Children, layer.Status.Failing)
			}
			return nil
		})
		if y.cluster(t, "c").GetDeletionTimestamp() != nil {
			t.Error("the Cluster is being deleted")
		}
	}
	acts(t,
		act{"Frozen", func(t *testing.T) {
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Signal(syscall.SIGCONT); err != nil {
					t.Error(err)
				}
			}()
			y.request(t, &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: "c"}})
			lost(t)
		}},
		act{"Thawed", func(t *testing.T) { y.ready(t, "c", "") }},
		act{"Killed", func(t *testing.T) {
			if err := p.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			y.request(t, &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: "c"}})
			lost(t)
		}},
		act{"Back", func(t *testing.T) {
			if err := p.StartControlPlane(t.Context()); err != nil {
				t.Fatal(err)
			}
			y.ready(t, "c", "")
		}},
	)
}

// byHand is a cluster that Cluster API did not make: the same treatment.
func byHand(h *hub, t *testing.T) {
	y := h.yard(t, "byhand", map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "1")})
	right, wrong := h.plane(t, "by-hand"), h.plane(t, "by-hand-wrong")
	y.layer(t, "app", "mine")
	handOver := func(kubeconfig []byte) {
		t.Helper()
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: "mine"}, Data: map[string][]byte{"config": kubeconfig}}
		err := y.client.Create(t.Context(), secret)
		if apierrors.IsAlreadyExists(err) {
			err = y.client.Update(t.Context(), secret)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	y.define(t, "{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: mine, labels: {cluster: mine}}, spec: {kubeConfig: {secretRef: {name: mine, key: config}}}}")
	acts(t,
		act{"KubeconfigMissing", func(t *testing.T) {
			y.says(t, "mine", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigMissing, "mine")
		}},
		act{"Seeded", func(t *testing.T) {
			handOver(right.issue(t).kubeconfig)
			y.visit(t, "mine")
			right.has(t, "note", "cluster", "mine")
			child := y.ready(t, "mine", "")
			if child.Status.Identity.ClusterUID != "" || child.Status.Identity.KubeSystemUID == "" {
				t.Errorf("the identity is %v", child.Status.Identity)
			}
			right.minted(t, 0)
		}},
		act{"RevokedIsMintedAnew", func(t *testing.T) {
			said := y.keep(t)
			right.dismiss(t)
			sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "2")})
			right.has(t, "note", "version", "2")
			y.ready(t, "mine", sha)
			for _, c := range said.complaints() {
				t.Error(c)
			}
		}},
		act{"IdentityChanged", func(t *testing.T) {
			handOver(wrong.issue(t).kubeconfig)
			y.visit(t, "mine")
			y.says(t, "mine", v1alpha1.ConnectedCondition, v1alpha1.ReasonIdentityChanged)
			sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "3")})
			y.fetched(t, sha)
			y.visit(t, "mine")
			handOver(right.issue(t).kubeconfig)
			y.visit(t, "mine")
			right.has(t, "note", "version", "3")
			y.ready(t, "mine", sha)
			wrong.untouched(t, 0)
		}},
		act{"RemovedByHand", func(t *testing.T) {
			from := right.now(t)
			if err := y.client.Delete(t.Context(), y.child1(t, "mine")); err != nil {
				t.Fatal(err)
			}
			sha := y.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "4")})
			y.fetched(t, sha)
			right.untouched(t, from)
			right.has(t, "note", "version", "3")
			if _, err := y.child(t.Context(), "mine"); !apierrors.IsNotFound(err) {
				t.Errorf("the Child is there again, or cannot be read: %v", err)
			}
		}},
	)
}
