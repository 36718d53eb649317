package remote

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// selfManaged is the API server of a cluster that manages itself. The parent's account may read
// the kubeconfig once it has the right.
type selfManaged struct {
	*far
	mu sync.Mutex
	// admin is the token of the kubeconfig that is good, and next another one that is; secret is the
	// kubeconfig that the cluster has of itself, nil for none. left: the Cluster went on from there.
	admin, next string
	secret      []byte
	left        bool
	// granted are the rights that were written, by path, and broken: none can be.
	granted map[string]string
	broken  bool
	reads   int
}

const theirRight = "/apis/rbac.authorization.k8s.io/v1/namespaces/fleet/rolebindings/cascade-parent.secret.alpha-kubeconfig"

func (s *selfManaged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := func(code int, o any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(o)
	}
	refuse := func(code int, reason metav1.StatusReason) {
		answer(code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason})
	}
	as := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if as == s.next && as != "" {
		as = s.admin
	}
	may := as == s.admin || as == "minted" && s.granted[theirRight] != ""
	switch path := r.URL.Path; {
	case as != s.admin && as != "minted":
		refuse(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case strings.HasSuffix(path, "/token"):
		answer(http.StatusCreated, authenticationv1.TokenRequest{TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}, Status: authenticationv1.TokenRequestStatus{Token: "minted"}})
	case strings.HasSuffix(path, "/selfsubjectaccessreviews"):
		answer(http.StatusCreated, authorizationv1.SelfSubjectAccessReview{TypeMeta: metav1.TypeMeta{Kind: "SelfSubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}, Status: authorizationv1.SubjectAccessReviewStatus{Allowed: may}})
	case path == "/apis":
		var groups []metav1.APIGroup
		for group, version := range map[string]string{"rbac.authorization.k8s.io": "v1", clusterapi.Group: "v1beta2"} {
			v := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + version, Version: version}
			groups = append(groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
		}
		answer(http.StatusOK, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: groups})
	case path == "/apis/rbac.authorization.k8s.io/v1":
		answer(http.StatusOK, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "rbac.authorization.k8s.io/v1", APIResources: []metav1.APIResource{
			{Name: "roles", Kind: "Role", Namespaced: true, Verbs: metav1.Verbs{"patch"}}, {Name: "rolebindings", Kind: "RoleBinding", Namespaced: true, Verbs: metav1.Verbs{"patch"}},
		}})
	case path == "/apis/cluster.x-k8s.io/v1beta2":
		answer(http.StatusOK, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "cluster.x-k8s.io/v1beta2", APIResources: []metav1.APIResource{
			{Name: "clusters", Kind: "Cluster", Namespaced: true, Verbs: metav1.Verbs{"get"}},
		}})
	case path == "/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet/clusters/alpha" && !s.left && as == s.admin:
		answer(http.StatusOK, metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "alpha", UID: "there"},
		})
	case r.Method == http.MethodPatch && s.broken:
		refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case r.Method == http.MethodPatch && strings.HasPrefix(path, "/apis/rbac.authorization.k8s.io/v1/namespaces/fleet/") && as == s.admin:
		body := map[string]any{}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			refuse(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		u := unstructured.Unstructured{Object: body}
		text, _ := json.Marshal([]any{body["rules"], body["roleRef"], u.GetOwnerReferences()})
		s.granted[path] = string(text)
		answer(http.StatusOK, body)
	case strings.HasSuffix(path, "/secrets/alpha-kubeconfig"):
		s.reads++
		switch {
		case !may:
			refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
		case s.secret == nil:
			refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
		default:
			answer(http.StatusOK, corev1.Secret{TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, Data: map[string][]byte{clusterapi.KubeconfigKey: s.secret}})
		}
	default:
		s.far.ServeHTTP(w, r)
	}
}

func (s *selfManaged) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// away is a tier whose Child manages itself.
type away struct {
	*met
	there  *selfManaged
	server *httptest.Server
	mu     sync.Mutex
	now    time.Time
}

func (a *away) Now() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

func (a *away) after(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = a.now.Add(d)
}

// kubeconfig of the child with a token.
func (a *away) kubeconfig(t *testing.T, server, token string) []byte {
	t.Helper()
	c := clientcmdapi.NewConfig()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["x"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	data, err := clientcmd.Write(*c)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func newAway(t *testing.T) *away {
	t.Helper()
	a := &away{met: newMet(t), now: start.Time}
	a.there = &selfManaged{far: a.far, admin: "first", granted: map[string]string{}}
	a.server = httptest.NewTLSServer(a.there)
	t.Cleanup(a.server.Close)
	a.there.secret = a.kubeconfig(t, a.server.URL, "first")
	child := &v1alpha1.Child{}
	if err := a.client.Get(t.Context(), a.key, child); err != nil {
		t.Fatal(err)
	}
	child.Spec = v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "alpha"}}
	if err := a.client.Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	child.Status.Identity = &v1alpha1.ChildIdentity{ClusterUID: "here", KubeSystemUID: "far"}
	if err := a.client.Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "alpha-kubeconfig", UID: "kubeconfig", Labels: map[string]string{clusterapi.ClusterNameLabel: "alpha"}},
		Data:       map[string][]byte{clusterapi.KubeconfigKey: a.kubeconfig(t, a.server.URL, "first"), "other": []byte("stays")},
	}
	if err := a.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	other := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}}
	other.SetNamespace("fleet")
	other.SetName("other")
	r := a.children
	r.Clusters, r.Cluster, r.Cache, r.Bridge = clusters.Fixed(other), &apply.Cluster{Client: a.client}, a.client, &capibridge.Providers{}
	r.Elsewhere = func(context.Context, types.NamespacedName) (bool, error) { return true, nil }
	r.Now, r.Connections = a.Now, link.NewPool(t.Context(), clientgoscheme.Scheme, a.Now, r.Rand)
	r.Connections.OnProbe(func(types.NamespacedName, link.Turn) { a.woken <- struct{}{} })
	return a
}

// secret is the one here.
func (a *away) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := a.client.Get(t.Context(), client.ObjectKey{Namespace: "fleet", Name: "alpha-kubeconfig"}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// follows fails unless the kubeconfig here has a token, and nothing else of the Secret changed.
func (a *away) follows(t *testing.T, token string) {
	t.Helper()
	secret := a.secret(t)
	if got := secret.Data[clusterapi.KubeconfigKey]; !bytes.Equal(got, a.kubeconfig(t, a.server.URL, token)) || string(secret.Data["other"]) != "stays" {
		t.Errorf("the Secret here is not of token %q: %s", token, got)
	}
}

// says fails unless the Child is connected and its condition has a reason and a text.
func (a *away) says(t *testing.T, child *v1alpha1.Child, reason, text string) {
	t.Helper()
	c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ManagedElsewhereCondition)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason || !strings.Contains(c.Message, text) {
		t.Errorf("the condition is %+v, want %s with %q", c, reason, text)
	}
	if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ConnectedCondition) {
		t.Errorf("the child is not connected: %+v", child.Status.Conditions)
	}
}

// TestKubeconfigFollows: the kubeconfig of a master that manages itself, which a controller in the
// master renews, was left here to lapse: the parent lost the master when it started anew.
func TestKubeconfigFollows(t *testing.T) {
	a := newAway(t)
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
	a.follows(t, "first")
	want := map[string]string{
		theirRight: `[null,{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"cascade-parent.secret.alpha-kubeconfig"},` +
			`[{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster","name":"alpha","uid":"there"}]]`,
		strings.Replace(theirRight, "rolebindings", "roles", 1): `[[{"apiGroups":[""],"resourceNames":["alpha-kubeconfig"],"resources":["secrets"],"verbs":["get"]}],null,` +
			`[{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster","name":"alpha","uid":"there"}]]`,
	}
	a.there.change(func() {
		if got := a.there.granted; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("rights in the child are\n%v, want\n%v", got, want)
		}
	})
	version := a.secret(t).ResourceVersion

	a.there.change(func() { a.there.reads = 0 })
	a.after(time.Minute)
	a.contact(t)
	a.after(renewalMost)
	a.contact(t)
	a.there.change(func() {
		if a.there.reads != 1 || a.secret(t).ResourceVersion != version {
			t.Errorf("in seven minutes the Secret of the child is read %d times, want once, and that here has version %s, want %s", a.there.reads, a.secret(t).ResourceVersion, version)
		}
	})

	// The controller in the child issues another one, and the first lapses.
	a.there.change(func() { a.there.admin, a.there.secret = "second", a.kubeconfig(t, a.server.URL, "second") })
	a.after(renewalMost)
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
	a.follows(t, "second")

	// The parent starts anew.
	a.children.forget(a.key)
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")

	// A person gives the Child a kubeconfig, after it could not follow: nothing is due any more.
	a.there.change(func() { a.there.secret = nil })
	a.after(renewalMost)
	child := a.contact(t)
	a.says(t, child, v1alpha1.ReasonKubeconfigNotRenewed, "has no Secret")
	child.Spec.KubeConfig = &v1alpha1.KubeConfigReference{SecretRef: &v1alpha1.SecretKeyReference{Name: "alpha-kubeconfig"}}
	if err := a.client.Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	a.after(renewalMost)
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
	if at := a.children.notesOf(a.key).renewAt; !at.IsZero() {
		t.Errorf("the next look is due at %s: the Child is reconciled each second", at)
	}
}

// TestKubeconfigStays: what does not lead to the same place with credentials that are good is told, and is
// not written; a child that is connected stays it.
func TestKubeconfigStays(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(t *testing.T, a *away)
		why    string
		text   string
	}{
		"Moved": {"the way to a cluster is a person's to change", func(t *testing.T, a *away) {
			a.there.secret = a.kubeconfig(t, "https://127.0.0.1:1", "second")
		}, v1alpha1.ReasonKubeconfigNotRenewed, "another server"},
		"Refused": {"what no server takes would lock the parent out", func(t *testing.T, a *away) {
			a.there.secret = a.kubeconfig(t, a.server.URL, "second")
		}, v1alpha1.ReasonKubeconfigNotRenewed, "refuses the credentials"},
		"Missing": {"nobody renews it there either", func(_ *testing.T, a *away) { a.there.secret = nil }, v1alpha1.ReasonKubeconfigNotRenewed, "has no Secret fleet/alpha-kubeconfig"},
		"WentOn":  {"a third tier has the Cluster", func(_ *testing.T, a *away) { a.there.left = true }, v1alpha1.ReasonKubeconfigNotRenewed, "does not manage itself"},
		"Owned": {"a pivot has not left it yet", func(t *testing.T, a *away) {
			a.there.secret = a.kubeconfig(t, a.server.URL, "second")
			secret := a.secret(t)
			secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: "x/v1", Kind: "ControlPlane", Name: "alpha", UID: "x"}}
			if err := a.client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}, v1alpha1.ReasonManagedElsewhere, "another tier"},
		"TakenOver": {"a pivot on its way back has verified it", func(t *testing.T, a *away) {
			a.there.secret = a.kubeconfig(t, a.server.URL, "second")
			secret := a.secret(t)
			secret.Annotations = map[string]string{v1alpha1.PivotAnnotation: "p"}
			if err := a.client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}, v1alpha1.ReasonManagedElsewhere, "another tier"},
		"Own": {"a kubeconfig that a person gave the Child is theirs", func(t *testing.T, a *away) {
			a.there.secret = a.kubeconfig(t, a.server.URL, "second")
			child := &v1alpha1.Child{}
			if err := a.client.Get(t.Context(), a.key, child); err != nil {
				t.Fatal(err)
			}
			child.Spec.KubeConfig = &v1alpha1.KubeConfigReference{SecretRef: &v1alpha1.SecretKeyReference{Name: "alpha-kubeconfig"}}
			if err := a.client.Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
		}, v1alpha1.ReasonManagedElsewhere, "another tier"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t)
			tc.change(t, a)
			a.says(t, a.contact(t), tc.why, tc.text)
			a.follows(t, "first")
		})
	}
	// The credentials here lapsed before the right was granted.
	a := newAway(t)
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
	a.there.change(func() { a.there.admin, a.there.granted = "second", map[string]string{} })
	a.after(renewalMost)
	child := a.contact(t)
	a.says(t, child, v1alpha1.ReasonKubeconfigNotRenewed, "may not read Secret fleet/alpha-kubeconfig")
	events := childTransitions(&v1alpha1.Child{}, child)
	if !slices.ContainsFunc(events, func(e transition) bool { return e.reason == v1alpha1.ReasonKubeconfigNotRenewed }) {
		t.Errorf("events are %v", events)
	}
}

// TestKubeconfigOutlives: credentials that a person put here for longer than those of the master are
// good for stay, while the master takes them.
func TestKubeconfigOutlives(t *testing.T) {
	a := newAway(t)
	year, first, second := tokenUntil(t, a.Now().Add(365*24*time.Hour)), tokenUntil(t, a.Now().Add(time.Hour)), tokenUntil(t, a.Now().Add(2*time.Hour))
	secret := a.secret(t)
	secret.Data[clusterapi.KubeconfigKey] = a.kubeconfig(t, a.server.URL, year)
	if err := a.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	a.there.change(func() { a.there.admin, a.there.secret = year, a.kubeconfig(t, a.server.URL, first) })
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
	a.follows(t, year)
	// An authenticator that fails for a moment refuses what is good.
	refused := func() {
		a.there.change(func() {
			a.there.admin, a.there.next, a.there.secret = second, "", a.kubeconfig(t, a.server.URL, second)
		})
	}
	for _, look := range []struct {
		change func()
		pause  time.Duration
		want   string
	}{
		{refused, renewalMost, year},
		{func() { a.there.change(func() { a.there.admin, a.there.next = year, second }) }, 2 * renewalRetry, year},
		{refused, renewalMost, year},
		{func() {}, 2 * renewalRetry, second},
	} {
		look.change()
		a.after(look.pause)
		a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
		a.follows(t, look.want)
	}
}

// TestKubeconfigBothRefused: that nothing is accepted is told once, and not taken back at each look.
func TestKubeconfigBothRefused(t *testing.T) {
	a := newAway(t)
	year, first := tokenUntil(t, a.Now().Add(365*24*time.Hour)), tokenUntil(t, a.Now().Add(time.Hour))
	secret := a.secret(t)
	secret.Data[clusterapi.KubeconfigKey] = a.kubeconfig(t, a.server.URL, year)
	if err := a.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	a.there.change(func() { a.there.admin, a.there.secret = year, a.kubeconfig(t, a.server.URL, first) })
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
	a.there.change(func() { a.there.admin, a.there.next = tokenUntil(t, a.Now().Add(3*time.Hour)), "" })
	a.after(renewalMost)
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
	for range 3 {
		a.after(2 * renewalRetry)
		a.says(t, a.contact(t), v1alpha1.ReasonKubeconfigNotRenewed, "refuses the credentials")
	}
}

func tokenUntil(t *testing.T, end time.Time) string {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"exp": end.Unix()}).SignedString([]byte("nobody's"))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestKubeconfigOfEKS: its token is good for 15 minutes, and its controller makes another one every ten. A
// parent that starts anew at any moment has one that is good for some minutes more.
func TestKubeconfigOfEKS(t *testing.T) {
	a := newAway(t)
	first := a.Now().Add(-9 * time.Minute)
	issued := func() time.Time { return first.Add(a.Now().Sub(first).Truncate(10 * time.Minute)) }
	token := func(at time.Time) string {
		return "k8s-aws-v1." + base64.RawURLEncoding.EncodeToString([]byte("https://sts.eu-west-1.amazonaws.com/?X-Amz-Date="+at.UTC().Format("20060102T150405Z")))
	}
	here := issued()
	secret := a.secret(t)
	secret.Data[clusterapi.KubeconfigKey] = a.kubeconfig(t, a.server.URL, token(here))
	if err := a.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for began := a.Now(); a.Now().Sub(began) < time.Hour; {
		if left := here.Add(15 * time.Minute).Sub(a.Now()); left < 3*time.Minute {
			t.Fatalf("after %s the kubeconfig here is good for %s", a.Now().Sub(began), left)
		}
		here = issued()
		a.there.change(func() { a.there.admin, a.there.secret = token(here), a.kubeconfig(t, a.server.URL, token(here)) })
		a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
		a.follows(t, token(here))
		// A run comes late where others wait for the processor.
		a.after(a.children.notesOf(a.key).renewAt.Sub(a.Now()) + 30*time.Second)
	}
}

// TestKubeconfigCalls: what keeps the kubeconfig from being renewed is told although it is a call that
// failed, as such a call may fail each time; one alone says nothing.
func TestKubeconfigCalls(t *testing.T) {
	a := newAway(t)
	a.there.change(func() { a.there.broken = true })
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
	a.after(time.Minute)
	a.says(t, a.contact(t), v1alpha1.ReasonKubeconfigNotRenewed, "cannot get the right to read Secret fleet/alpha-kubeconfig of the child")
	a.there.change(func() { a.there.broken = false })
	a.after(time.Minute)
	a.says(t, a.contact(t), v1alpha1.ReasonManagedElsewhere, "another tier")
}

// TestKubeconfigWithoutLayer: a master without layers, which a person moved or which lost them, is brought
// back with its kubeconfig as well.
func TestKubeconfigWithoutLayer(t *testing.T) {
	a := newAway(t)
	if err := a.client.DeleteAllOf(t.Context(), &v1alpha1.Layer{}, client.InNamespace("fleet")); err != nil {
		t.Fatal(err)
	}
	child := &v1alpha1.Child{}
	if err := a.client.Get(t.Context(), a.key, child); err != nil {
		t.Fatal(err)
	}
	child.Status.Identity = nil // it was never met
	if err := a.client.Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	a.there.record = &corev1.ConfigMap{}
	child = a.contact(t)
	a.says(t, child, v1alpha1.ReasonManagedElsewhere, "another tier")
	if ready := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ReadyCondition); ready == nil || ready.Reason != v1alpha1.ReasonNoLayer {
		t.Errorf("Ready is %+v", ready)
	}
	a.there.change(func() { a.there.next, a.there.secret = "second", a.kubeconfig(t, a.server.URL, "second") })
	a.after(renewalMost)
	a.contact(t)
	a.follows(t, "second")
}
