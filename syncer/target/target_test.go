package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/auth"
	"github.com/fluxcd/pkg/cache"
	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
)

func kustomizationAt(account string, kubeConfig *meta.KubeConfigReference) *kustomizev1.Kustomization {
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "shop"}}
	k.Spec.ServiceAccountName, k.Spec.KubeConfig = account, kubeConfig
	return k
}

func bySecretRef(name, key string) *meta.KubeConfigReference {
	return &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: name, Key: key}}
}

func byConfigMapRef(name string) *meta.KubeConfigReference {
	return &meta.KubeConfigReference{ConfigMapRef: &meta.LocalObjectReference{Name: name}}
}

func TestTargetOf(t *testing.T) {
	for name, tt := range map[string]struct {
		reason  string
		obj     *kustomizev1.Kustomization
		account string
		want    Ref
	}{
		"Local":   {reason: "ours, with our rights", obj: kustomizationAt("", nil)},
		"Account": {reason: "an account of the Kustomization's namespace", obj: kustomizationAt("ops", nil), want: Ref{User: "system:serviceaccount:apps:ops"}},
		"Default": {reason: "--default-service-account", obj: kustomizationAt("", nil), account: "default", want: Ref{User: "system:serviceaccount:apps:default"}},
		"Own":     {reason: "the object's own wins", obj: kustomizationAt("ops", nil), account: "default", want: Ref{User: "system:serviceaccount:apps:ops"}},
		"Secret": {reason: "the account is impersonated there too", obj: kustomizationAt("ops", bySecretRef("edge", "config")),
			want: Ref{Kind: "Secret", Name: "edge", Key: "config", User: "system:serviceaccount:apps:ops"}},
		"ConfigMap": {reason: "a provider's cluster", obj: kustomizationAt("", byConfigMapRef("edge")), want: Ref{Kind: "ConfigMap", Name: "edge"}},
		"Neither":   {reason: "never the cluster that we run in by mistake", obj: kustomizationAt("", &meta.KubeConfigReference{}), want: Ref{Kind: "Secret"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Of(tt.obj, tt.account)
			if got != tt.want {
				t.Errorf("%s: got %+v, want %+v", tt.reason, got, tt.want)
			}
			again, err := Decode(got.Encode())
			if err != nil || again != got {
				t.Errorf("written and read again it is %+v, %v", again, err)
			}
		})
	}
	if _, err := Decode("edge"); err == nil {
		t.Error("any text is a target")
	}
}

// TestRecordTarget: what is recorded of a target, so that a cluster that is replaced while it
// does not tell which it is is found to be another one.
func TestRecordTarget(t *testing.T) {
	edge := func(name, cluster string) Ref { return Ref{Kind: "Secret", Name: name, Cluster: cluster} }
	for name, tc := range map[string]struct {
		reason string
		target Ref
		before *Ref
		want   Ref
	}{
		"First":  {"nothing was recorded", edge("a", ""), nil, edge("a", "")},
		"Silent": {"it does not tell at the moment", edge("a", ""), new(edge("a", "1")), edge("a", "1")},
		"Tells":  {"it is another one now", edge("a", "2"), new(edge("a", "1")), edge("a", "2")},
		"Other":  {"of another reference nothing is known", edge("b", ""), new(edge("a", "1")), edge("b", "")},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.target.Record(tc.before); got != tc.want {
				t.Errorf("%s: recorded is %+v, want %+v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestCompareTargets(t *testing.T) {
	edge := func(cluster string) Ref { return Ref{Kind: "Secret", Name: "edge", Cluster: cluster} }
	other := Ref{Kind: "Secret", Name: "other", Cluster: "2"}
	for name, tt := range map[string]struct {
		reason   string
		recorded *Ref
		wanted   Ref
		want     Change
	}{
		"Local":        {reason: "nothing is recorded for our own cluster", want: Same},
		"Takeover":     {reason: "Flux recorded nothing: it is about the cluster that is named", wanted: edge("1"), want: Same},
		"Same":         {reason: "same cluster", recorded: new(edge("1")), wanted: edge("1"), want: Same},
		"Renamed":      {reason: "another Secret that leads to the same cluster", recorded: new(Ref{Kind: "Secret", Name: "other", Cluster: "1"}), wanted: edge("1"), want: Same},
		"OtherUser":    {reason: "rights differ, the cluster does not", recorded: new(Ref{Kind: "Secret", Name: "edge", Cluster: "1", User: "a"}), wanted: edge("1"), want: Same},
		"Moved":        {reason: "the old cluster is pruned", recorded: new(edge("1")), wanted: other, want: Moved},
		"Home":         {reason: "from another cluster to ours", recorded: new(edge("1")), wanted: Ref{}, want: Moved},
		"Away":         {reason: "from ours, when that was recorded", recorded: new(Ref{}), wanted: edge("1"), want: Moved},
		"Self":         {reason: "a kubeconfig of our own cluster", recorded: new(Ref{}), wanted: edge("home"), want: Same},
		"Replaced":     {reason: "the Secret leads to another cluster now", recorded: new(edge("1")), wanted: edge("2"), want: Replaced},
		"Unidentified": {reason: "a cluster that hides its identity", recorded: new(edge("")), wanted: edge(""), want: Same},
		"UnknownMove":  {reason: "another reference, which may lead to the same cluster", recorded: new(edge("")), wanted: Ref{Kind: "Secret", Name: "other"}, want: Unidentified},
		"UnknownNow":   {reason: "the new kubeconfig has fewer rights, maybe in the same cluster", recorded: new(edge("1")), wanted: Ref{Kind: "Secret", Name: "other"}, want: Unidentified},
		"UnknownOnce":  {reason: "the new kubeconfig has more rights, maybe in the same cluster", recorded: new(edge("")), wanted: other, want: Unidentified},
		"UnknownKey":   {reason: "another key of the Secret", recorded: new(edge("")), wanted: Ref{Kind: "Secret", Name: "edge", Key: "new"}, want: Unidentified},
		"UnknownHome":  {reason: "from a cluster that may be ours", recorded: new(edge("")), wanted: Ref{}, want: Unidentified},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Compare(tt.recorded, tt.wanted, "home"); got != tt.want {
				t.Errorf("%s: got %d, want %d", tt.reason, got, tt.want)
			}
		})
	}
}

func TestDecideDeletion(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		facts  DeletionFacts
		want   DeletionDecision
		text   string
	}{
		"Usual":        {reason: "pruned, then gone", facts: DeletionFacts{Objects: 2}, want: DeletionDecision{Prune: true, Release: true}},
		"Nothing":      {reason: "nothing to prune, wherever it was", facts: DeletionFacts{Problem: errors.New("no route")}, want: DeletionDecision{Release: true}},
		"AccountGone":  {reason: "as Flux, but said", facts: DeletionFacts{Objects: 2, AccountGone: true, Target: Ref{User: "system:serviceaccount:apps:ops"}}, want: DeletionDecision{Release: true}, text: "system:serviceaccount:apps:ops does not exist; 2 objects are left behind"},
		"Unreachable":  {reason: "stays, and says how to end it", facts: DeletionFacts{Objects: 2, Problem: errors.New("no route")}, text: "no route; to delete the Kustomization and leave them, set spec.deletionPolicy to Orphan"},
		"ClusterGone":  {reason: "Cluster API took it down, and no commit could end the deletion otherwise", facts: DeletionFacts{Objects: 2, Problem: errors.New("no route"), ClusterGone: "the Cluster apps/edge does not exist"}, want: DeletionDecision{Release: true}, text: "the Cluster apps/edge does not exist; 2 objects are gone with it, or left behind"},
		"Other":        {reason: "nobody reaches the cluster of before, and the account is looked for where it never was", facts: DeletionFacts{Objects: 2, Other: true, AccountGone: true, Target: Ref{Kind: "Secret", Name: "edge"}}, want: DeletionDecision{Release: true}, text: "the cluster that Secret edge leads to is another one now; 2 objects are left behind"},
		"Unidentified": {reason: "it may well be the same one", facts: DeletionFacts{Objects: 2, Unidentified: true, Target: Ref{Kind: "Secret", Name: "edge"}}, text: "let it read that; to delete the Kustomization and leave them, set spec.deletionPolicy to Orphan"},
		"Unknown":      {reason: "an unreachable target says nothing about its accounts", facts: DeletionFacts{Objects: 2, AccountGone: true, Problem: errors.New("no route")}, text: "cannot prune 2 objects"},
	} {
		t.Run(name, func(t *testing.T) {
			got := DecideDeletion(tt.facts)
			if !strings.Contains(got.Message, tt.text) || (got.Message == "") != (tt.text == "") {
				t.Errorf("%s: message is %q", tt.reason, got.Message)
			}
			if got.Message = ""; got != tt.want {
				t.Errorf("%s: got %+v, want %+v", tt.reason, got, tt.want)
			}
		})
	}
}

// apiServer answers for a Namespace and records who asked.
type apiServer struct {
	*httptest.Server
	mu    sync.Mutex
	users []string
}

func newAPIServer(t *testing.T, uid string) *apiServer {
	s := &apiServer{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.users = append(s.users, r.Header.Get("Authorization")+" "+r.Header.Get("Impersonate-User"))
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		write := func(v any) {
			if err := json.NewEncoder(w).Encode(v); err != nil {
				t.Error(err)
			}
		}
		switch r.URL.Path {
		case "/api":
			write(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		case "/apis":
			write(metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
		case "/api/v1":
			write(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
				APIResources: []metav1.APIResource{{Name: "namespaces", Kind: "Namespace"}, {Name: "serviceaccounts", Kind: "ServiceAccount", Namespaced: true}}})
		case "/api/v1/namespaces/kube-system":
			if uid == "none" {
				w.WriteHeader(http.StatusNotFound)
				write(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
				return
			}
			if uid == "" {
				w.WriteHeader(http.StatusForbidden)
				write(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden})
				return
			}
			write(map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"name": "kube-system", "uid": uid}})
		default:
			w.WriteHeader(http.StatusNotFound)
			write(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func (s *apiServer) kubeconfig(t *testing.T, token string) []byte {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": s.URL, "certificate-authority-data": s.ca()}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"token": token}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func newTargets(t *testing.T, s *apiServer, objects ...client.Object) (*Targets, *time.Time) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "home"}})
	local := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(scheme)).WithObjects(objects...).Build()
	return &Targets{
		Local:      &apply.Cluster{Client: local, Config: &rest.Config{Host: s.URL, BearerToken: "ours", TLSClientConfig: rest.TLSClientConfig{CAData: s.ca()}}},
		Kubeconfig: capibridge.Allowed{}.Kubeconfig, Scheme: scheme, Now: func() time.Time { return now },
	}, &now
}

func kubeconfigSecret(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}, Data: data}
}

func TestTargetsGet(t *testing.T) {
	s := newAPIServer(t, "edge")
	config := s.kubeconfig(t, "theirs")
	targets, _ := newTargets(t, s,
		kubeconfigSecret("value", map[string][]byte{"value": config, "value.yaml": []byte("x")}),
		kubeconfigSecret("yaml", map[string][]byte{"value.yaml": config}),
		kubeconfigSecret("none", map[string][]byte{"config": config}),
		kubeconfigSecret("exec", map[string][]byte{"value": []byte(strings.Replace(string(config), `"token"`, `"tokenFile"`, 1))}),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "stolen"}, Data: map[string]string{"provider": "generic", "address": s.URL, "audiences": "https://kubernetes.default.svc"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "stolengcp"}, Data: map[string]string{"provider": "gcp", "cluster": "projects/p/locations/l/clusters/c", "address": s.URL, "ca.crt": string(s.ca())}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "odd"}, Data: map[string]string{"provider": "odd"}},
	)
	for name, tt := range map[string]struct {
		reason string
		obj    *kustomizev1.Kustomization
		user   string
		want   string
	}{
		"Account":    {reason: "our token, their rights", obj: kustomizationAt("ops", nil), user: "Bearer ours system:serviceaccount:apps:ops"},
		"Value":      {reason: "the default key", obj: kustomizationAt("", bySecretRef("value", "")), user: "Bearer theirs "},
		"ValueYAML":  {reason: "the other default key", obj: kustomizationAt("", bySecretRef("yaml", "")), user: "Bearer theirs "},
		"Key":        {reason: "the key that is named", obj: kustomizationAt("ops", bySecretRef("none", "config")), user: "Bearer theirs system:serviceaccount:apps:ops"},
		"NoKey":      {reason: "Flux's text", obj: kustomizationAt("", bySecretRef("none", "")), want: "KubeConfig secret 'apps/none' does not contain a 'value' key with a kubeconfig"},
		"OtherKey":   {reason: "no other key instead", obj: kustomizationAt("", bySecretRef("value", "config")), want: "does not contain a 'config' key"},
		"NoSecret":   {reason: "Flux's text", obj: kustomizationAt("", bySecretRef("absent", "")), want: "unable to read KubeConfig secret 'apps/absent' error: "},
		"TokenFile":  {reason: "threat V4", obj: kustomizationAt("", bySecretRef("exec", "")), want: "invalid KubeConfig in secret 'apps/exec': cannot use kubeconfig: tokenFile not allowed"},
		"Neither":    {reason: "never our own cluster", obj: kustomizationAt("", &meta.KubeConfigReference{}), want: "invalid .spec.kubeConfig"},
		"OurToken":   {reason: "our token goes to no address of a tenant", obj: kustomizationAt("", byConfigMapRef("stolen")), want: "with provider generic it must name a serviceAccountName"},
		"CloudToken": {reason: "nor does that of the cloud, which is not asked then", obj: kustomizationAt("", byConfigMapRef("stolengcp")), want: "remove address and ca.crt"},
		"Provider":   {reason: "unknown", obj: kustomizationAt("", byConfigMapRef("odd")), want: "provider 'odd' not implemented"},
		"NoProvider": {reason: "absent", obj: kustomizationAt("", byConfigMapRef("absent")), want: "failed to get configmap apps/absent"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := targets.Get(t.Context(), tt.obj)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("%s: got %v, want %q", tt.reason, err, tt.want)
				}
				if strings.Contains(err.Error(), "theirs") {
					t.Errorf("error tells the token: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s.users = nil
			if err := c.Get(t.Context(), types.NamespacedName{Name: "x"}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			if last := s.users[len(s.users)-1]; last != tt.user {
				t.Errorf("%s: server was asked by %q, want %q", tt.reason, last, tt.user)
			}
			again, err := targets.Get(t.Context(), tt.obj)
			if err != nil || again != c {
				t.Errorf("a second call gives another connection (%v)", err)
			}
		})
	}
	if c, err := targets.Get(t.Context(), kustomizationAt("", nil)); err != nil || c != targets.Local {
		t.Errorf("our own cluster, with our rights: %v", err)
	}
}

// TestTargetsTakeOver: the managers of --override-manager are those of all clusters, and
// of all accounts in them.
func TestTargetsTakeOver(t *testing.T) {
	s := newAPIServer(t, "edge")
	targets, _ := newTargets(t, s, kubeconfigSecret("edge", map[string][]byte{"value": s.kubeconfig(t, "x")}))
	local, err := apply.Connect(targets.Local.Config, targets.Scheme)
	if err != nil {
		t.Fatal(err)
	}
	local.Override([]string{"node-fetch"})
	local.Client = targets.Local.Client
	targets.Local = local
	for name, tc := range map[string]struct {
		reason  string
		obj     *kustomizev1.Kustomization
		manager string
		foreign bool
	}{
		"Local":        {"our own cluster", kustomizationAt("", nil), "node-fetch-1", true},
		"Account":      {"the same cluster as another user", kustomizationAt("ops", nil), "node-fetch-1", true},
		"Other":        {"the cluster of spec.kubeConfig", kustomizationAt("", bySecretRef("edge", "")), "node-fetch-1", true},
		"OtherAccount": {"and an account there", kustomizationAt("ops", bySecretRef("edge", "")), "node-fetch-1", true},
		"Kubectl":      {"kubectl's are taken over everywhere", kustomizationAt("", bySecretRef("edge", "")), "kubectl-edit", true},
		"Nobody's":     {"a manager that nobody named keeps its fields", kustomizationAt("", bySecretRef("edge", "")), "autoscaler", false},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := targets.Get(t.Context(), tc.obj)
			if err != nil {
				t.Fatal(err)
			}
			live := &metav1.PartialObjectMetadata{}
			live.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: tc.manager, Operation: metav1.ManagedFieldsOperationUpdate}}
			if got := c.Reader().Of(live).Foreign; got != tc.foreign {
				t.Errorf("%s: Foreign = %t, want %t", tc.reason, got, tc.foreign)
			}
		})
	}
}

// TestTargetsOfStrangers: kubeconfigs and ConfigMaps of tenants lead to API servers,
// and to nothing else.
func TestTargetsOfStrangers(t *testing.T) {
	var others []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		others = append(others, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	inside := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasPrefix(r.URL.Path, "/away"):
			http.Redirect(w, r, other.URL+"/?key=inner", http.StatusTemporaryRedirect)
		case strings.HasPrefix(r.URL.Path, "/error"):
			http.Error(w, "password: inner", http.StatusForbidden)
		default:
			_, _ = io.WriteString(w, `{"password":"inner"}`)
		}
	}))
	defer inside.Close()
	at := func(path string) []byte {
		s := &apiServer{Server: inside}
		return []byte(strings.ReplaceAll(string(s.kubeconfig(t, "theirs")), inside.URL, inside.URL+path))
	}
	metadata := []byte(strings.ReplaceAll(string((&apiServer{Server: inside}).kubeconfig(t, "theirs")), inside.URL, "https://169.254.169.254"))
	s := newAPIServer(t, "edge")
	targets, _ := newTargets(t, s,
		kubeconfigSecret("away", map[string][]byte{"value": at("/away")}),
		kubeconfigSecret("error", map[string][]byte{"value": at("/error")}),
		kubeconfigSecret("json", map[string][]byte{"value": at("/json")}),
		kubeconfigSecret("metadata", map[string][]byte{"value": metadata}),
	)
	for name, tt := range map[string]struct {
		reason, want string
	}{
		"away":     {"a redirect is not followed", answer.ReasonRedirect},
		"error":    {"words of a service that is no API server do not come back", "failed to get server groups"},
		"json":     {"nor its objects", answer.ReasonNotKubernetes},
		"metadata": {"link-local addresses are refused", answer.ReasonAddress},
	} {
		_, err := targets.Identify(t.Context(), "apps", Ref{Kind: "Secret", Name: name})
		if name == "error" {
			// Forbidden is no error of Identify.
			if c, cerr := targets.Connect(t.Context(), "apps", Ref{Kind: "Secret", Name: name}); cerr == nil {
				err = c.Get(t.Context(), types.NamespacedName{Name: "x"}, &corev1.Namespace{})
			}
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.reason, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "inner") {
			t.Errorf("%s: %v", tt.reason, err)
		}
	}
	if len(others) > 0 {
		t.Errorf("the other server got %q", others)
	}
	targets.Addresses.Deny = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	targets.open = nil
	_, err := targets.Identify(t.Context(), "apps", Ref{Kind: "Secret", Name: "json"})
	var refused *answer.Error
	if !errors.As(err, &refused) || refused.Reason != answer.ReasonAddress {
		t.Errorf("loopback, where it is denied: got %v", err)
	}
}

func TestTargetsCache(t *testing.T) {
	s := newAPIServer(t, "edge")
	secret := kubeconfigSecret("edge", map[string][]byte{"value": s.kubeconfig(t, "one")})
	targets, now := newTargets(t, s, secret)
	targets.most = 3
	remote := kustomizationAt("", bySecretRef("edge", ""))
	get := func(obj *kustomizev1.Kustomization) *apply.Cluster {
		t.Helper()
		*now = now.Add(time.Second)
		c, err := targets.Get(t.Context(), obj)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := get(remote)

	secret.Data["value"] = s.kubeconfig(t, "two")
	if err := targets.Local.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if get(remote) == first {
		t.Error("a rotated credential is not used")
	}
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if _, err := targets.Get(t.Context(), kustomizationAt("ops", bySecretRef("edge", ""))); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if targets.opened != 3 {
		t.Errorf("%d connections were made, want 3: two credentials, one account", targets.opened)
	}
	for _, account := range []string{"a", "b", "c"} {
		get(kustomizationAt(account, nil))
	}
	if len(targets.open) != 3 {
		t.Errorf("%d connections are kept, want 3", len(targets.open))
	}
	opened := targets.opened
	get(kustomizationAt("c", nil))
	if targets.opened != opened {
		t.Error("the one used last was dropped")
	}
	*now = now.Add(targetIdle)
	get(kustomizationAt("d", nil))
	if len(targets.open) != 1 {
		t.Errorf("%d connections are kept after a long idle time, want 1", len(targets.open))
	}
}

func TestTargetsIdentify(t *testing.T) {
	s, hidden, without := newAPIServer(t, "edge"), newAPIServer(t, ""), newAPIServer(t, "none")
	made := kubeconfigSecret("edge-kubeconfig", map[string][]byte{"value": s.kubeconfig(t, "x")})
	made.Labels = map[string]string{clusterapi.ClusterNameLabel: "edge"}
	targets, now := newTargets(t, s, made, kubeconfigSecret("other-kubeconfig", made.Data),
		kubeconfigSecret("edge", map[string][]byte{"value": s.kubeconfig(t, "x")}),
		kubeconfigSecret("hidden", map[string][]byte{"value": hidden.kubeconfig(t, "x")}),
		kubeconfigSecret("workspace", map[string][]byte{"value": without.kubeconfig(t, "x")}))
	for name, want := range map[string]string{"": "home", "edge": "edge", "hidden": "", "workspace": ""} {
		ref := Ref{User: "system:serviceaccount:apps:ops"}
		if name != "" {
			ref.Kind, ref.Name = "Secret", name
		}
		for range 2 {
			got, err := targets.Identify(t.Context(), "apps", ref)
			if err != nil || got.Cluster != want {
				t.Errorf("%q: got %q, %v, want %q", name, got.Cluster, err, want)
			}
		}
	}
	for name, want := range map[string]string{made.Name: "edge", "other-kubeconfig": "", "edge": ""} {
		if got, err := targets.Identify(t.Context(), "apps", Ref{Kind: "Secret", Name: name}); err != nil || got.OfCluster != want {
			t.Errorf("%q is the kubeconfig of Cluster %q, %v, want %q", name, got.OfCluster, err, want)
		}
	}
	asked := 0
	for _, u := range s.users {
		if u != "Bearer x " {
			t.Errorf("a tenant's rights do not matter for the identity: asked by %q", u)
		}
		asked++
	}
	before := asked
	if _, err := targets.Identify(t.Context(), "apps", Ref{Kind: "Secret", Name: "edge"}); err != nil || len(s.users) != before {
		t.Errorf("the identity is asked for again (%v)", err)
	}
	s.Close()
	targets.open = nil
	if got, err := targets.Identify(t.Context(), "apps", Ref{Kind: "Secret", Name: "edge"}); err != nil || got.Cluster != "edge" || len(targets.open) != 0 {
		t.Errorf("without a connection it is known as %q, %v", got.Cluster, err)
	}
	*now = now.Add(targetAge + time.Second)
	if _, err := targets.Identify(t.Context(), "apps", Ref{Kind: "Secret", Name: "edge"}); err == nil {
		t.Error("an unreachable cluster has an identity")
	}
}

func TestTargetsAccountGone(t *testing.T) {
	s := newAPIServer(t, "edge")
	targets, _ := newTargets(t, s,
		kubeconfigSecret("edge", map[string][]byte{"value": s.kubeconfig(t, "x")}),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "ops"}})
	remote := Of(kustomizationAt("ops", bySecretRef("edge", "")), "")
	for name, tt := range map[string]struct {
		reason string
		ref    Ref
		want   bool
	}{
		"There":  {reason: "it exists", ref: Ref{User: User("apps", "ops")}},
		"Gone":   {reason: "confirmed", ref: Ref{User: User("apps", "absent")}, want: true},
		"Remote": {reason: "our own cluster's account says nothing about the other cluster's", ref: remote, want: true},
		"Nobody": {reason: "nobody is impersonated", ref: Ref{}},
	} {
		got, err := targets.AccountGone(t.Context(), "apps", tt.ref)
		if err != nil || got != tt.want {
			t.Errorf("%s: %s: got %t, %v", name, tt.reason, got, err)
		}
	}
	s.Close()
	if gone, err := targets.AccountGone(t.Context(), "apps", remote); err == nil || gone {
		t.Error("an unreachable cluster confirms something")
	}
}

// TestTargetsConfigMap: a cluster that takes tokens of our service accounts.
func TestTargetsConfigMap(t *testing.T) {
	auth.EnableObjectLevelWorkloadIdentity()
	t.Cleanup(auth.DisableObjectLevelWorkloadIdentity)
	s := newAPIServer(t, "edge")
	targets, _ := newTargets(t, s)
	tokens, err := cache.NewTokenCache(10)
	if err != nil {
		t.Fatal(err)
	}
	targets.Tokens = tokens
	issued := 0
	named := map[string]string{"provider": "generic", "address": s.URL, "ca.crt": string(s.ca()), "audiences": "edge", "serviceAccountName": "edge"}
	// An empty name is none, so that the default counts.
	empty := maps.Clone(named)
	empty["serviceAccountName"] = ""
	swapped := 0
	targets.Local.Client = fake.NewClientBuilder().WithObjects(
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "edge"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "edge"}, Data: named},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "empty"}, Data: empty},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "swapped"}, Data: named},
	).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, obj, opts...)
			if cm, ok := obj.(*corev1.ConfigMap); ok && err == nil && key.Name == "swapped" {
				if swapped++; swapped > 1 {
					delete(cm.Data, "serviceAccountName") // written after the check
				}
			}
			return err
		},
		SubResourceCreate: func(_ context.Context, _ client.Client, _ string, obj, sub client.Object, _ ...client.SubResourceCreateOption) error {
			request := sub.(*authnv1.TokenRequest)
			if !slices.Equal(request.Spec.Audiences, []string{"edge"}) || obj.GetName() != "edge" || obj.GetNamespace() != "apps" {
				t.Errorf("a token of %s/%s for %q is created", obj.GetNamespace(), obj.GetName(), request.Spec.Audiences)
			}
			issued++
			claims := fmt.Sprintf(`{"sub":"system:serviceaccount:apps:edge","exp":%d}`, time.Now().Add(time.Hour).Unix())
			request.Status.Token = "eyJhbGciOiJub25lIn0." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".eA"
			request.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
			return nil
		},
	}).Build()
	obj := kustomizationAt("ops", byConfigMapRef("edge"))
	for range 3 {
		c, err := targets.Get(t.Context(), obj)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), types.NamespacedName{Name: "x"}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	if last := s.users[len(s.users)-1]; !strings.HasPrefix(last, "Bearer eyJhbGciOiJub25lIn0.") || !strings.HasSuffix(last, " system:serviceaccount:apps:ops") {
		t.Errorf("server was asked by %q", last)
	}
	if issued != 1 {
		t.Errorf("%d tokens were created, want 1", issued)
	}
	if _, err := targets.Get(t.Context(), kustomizationAt("", byConfigMapRef("swapped"))); err != nil || swapped != 1 {
		t.Errorf("what was checked is not what is used: %d reads, %v", swapped, err)
	}
	targets.KubeConfigServiceAccount = "edge"
	if _, err := targets.Get(t.Context(), kustomizationAt("", byConfigMapRef("empty"))); err != nil {
		t.Errorf("with an empty name the token is that of the agent: %v", err)
	}
}

// TestTierDoesNotAnswer: what the API server of this tier does not hand out of what a ConfigMap needs is told apart from
// what it refuses, and from what the cloud says (read 699).
func TestTierDoesNotAnswer(t *testing.T) {
	auth.EnableObjectLevelWorkloadIdentity()
	t.Cleanup(auth.DisableObjectLevelWorkloadIdentity)
	s := newAPIServer(t, "edge")
	unavailable, denied := apierrors.NewServiceUnavailable("etcd"), apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "ops", errors.New("no"))
	for name, tc := range map[string]struct {
		reason            string
		configMap, tokens error
		account           error
		ofTier            bool
	}{
		"ConfigMap": {"the ConfigMap", unavailable, nil, nil, true},
		"Silent":    {"nobody answers", errors.New("connection refused"), nil, nil, true},
		"Account":   {"the account that it names", nil, nil, unavailable, true},
		"Token":     {"a token of that", nil, apierrors.NewTooManyRequests("later", 1), nil, true},
		"Denied":    {"an answer", nil, denied, nil, false},
		"NotFound":  {"there is none", apierrors.NewNotFound(corev1.Resource("configmaps"), "edge"), nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			targets, _ := newTargets(t, s,
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "edge"}, Data: map[string]string{"provider": "generic", "address": s.URL, "ca.crt": string(s.ca()), "serviceAccountName": "ops"}},
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "ops"}},
			)
			targets.Local.Client = interceptor.NewClient(targets.Local.Client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					switch o.(type) {
					case *corev1.ConfigMap:
						if tc.configMap != nil {
							return tc.configMap
						}
					case *corev1.ServiceAccount:
						if tc.account != nil {
							return tc.account
						}
					}
					return c.Get(ctx, key, o, opts...)
				},
				SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
					return tc.tokens
				},
			})
			_, err := targets.OfConfigMap(t.Context(), types.NamespacedName{Namespace: "apps", Name: "edge"}, false)
			var tier *TierError
			if err == nil || errors.As(err, &tier) != tc.ofTier {
				t.Errorf("%s: %v, of this tier: %t", tc.reason, err, tier != nil)
			}
		})
	}
}

// TestCheckConfigMap: where the agent's own token may go.
func TestCheckConfigMap(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, provider, keys string
		refused                string
	}{
		"Generic":       {"nobody is asked where the cluster is", "generic", "address", "it must name a serviceAccountName"},
		"GenericOf":     {"the token is that of an account of the namespace", "generic", "address ca.crt serviceAccountName", ""},
		"GKE":           {"the cloud says where it is", "gcp", "cluster", ""},
		"GKEAddress":    {"the cloud says whose CA it is, and that of one's own cluster signs for other hosts", "gcp", "cluster address", "remove address,"},
		"GKECA":         {"who answers at that address would be anybody's matter", "gcp", "cluster ca.crt", "remove ca.crt,"},
		"GKEBoth":       {"the cloud is not asked", "gcp", "cluster address ca.crt", "remove address and ca.crt,"},
		"GKEOf":         {"the identity is the namespace's", "gcp", "cluster address ca.crt serviceAccountName", ""},
		"EKSAddress":    {"as with GKE", "aws", "cluster address", "remove address,"},
		"AKSAddress":    {"it is one of those that the cloud says, or the library refuses it", "azure", "cluster address", ""},
		"AKSCA":         {"as with the others", "azure", "cluster ca.crt", "remove ca.crt,"},
		"AKSAddressCA":  {"the library does not compare then", "azure", "cluster address ca.crt", "remove ca.crt,"},
		"FutureAddress": {"nothing is known of a provider that the library may have one day", "other", "address", "remove address,"},
	} {
		t.Run(name, func(t *testing.T) {
			data := map[string]string{"provider": tc.provider}
			for key := range strings.FieldsSeq(tc.keys) {
				data[key] = "x"
			}
			err := checkConfigMap(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "edge"}, Data: data})
			if (err == nil) != (tc.refused == "") || err != nil && (source.ReasonOf(err) != source.ReasonCredentialRefused || !strings.Contains(err.Error(), tc.refused)) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.refused)
			}
		})
	}
}

// TestTargetsOfGoogle: with its own identity the agent goes to the address that the cloud says,
// and to no other. The cloud is on loopback.
func TestTargetsOfGoogle(t *testing.T) {
	s := newAPIServer(t, "edge")
	var endpoint atomic.Value
	endpoint.Store(s.Listener.Addr().String())
	cloud := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/token":
			_, _ = io.WriteString(w, `{"access_token":"agent","token_type":"Bearer","expires_in":3600}`)
		case "/v1/projects/p/locations/l/clusters/c":
			// An address of GKE has no scheme.
			_ = json.NewEncoder(w).Encode(map[string]any{"endpoint": endpoint.Load(),
				"masterAuth": map[string]any{"clusterCaCertificate": base64.StdEncoding.EncodeToString(s.ca())}})
		default:
			t.Errorf("Google is asked for %s", r.URL.Path)
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(cloud.Close)
	usual, roots := http.DefaultTransport, x509.NewCertPool()
	roots.AddCert(cloud.Certificate())
	http.DefaultTransport = &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, cloud.Listener.Addr().String())
		},
	}
	t.Cleanup(func() { http.DefaultTransport = usual })
	login := filepath.Join(t.TempDir(), "login.json")
	if err := os.WriteFile(login, []byte(`{"type":"authorized_user","client_id":"x","client_secret":"x","refresh_token":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", login)
	t.Run("Moved", func(t *testing.T) {
		name := types.NamespacedName{Namespace: "apps", Name: "edge"}
		targets, _ := newTargets(t, s, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Data: map[string]string{"provider": "gcp", "cluster": "projects/p/locations/l/clusters/c"}})
		tokens, err := cache.NewTokenCache(10)
		if err != nil {
			t.Fatal(err)
		}
		targets.Tokens = tokens
		defer endpoint.Store(endpoint.Load())
		for i, step := range []struct {
			at   string
			anew bool
			want string
		}{
			{s.Listener.Addr().String(), false, s.URL},
			{"192.0.2.1", false, s.URL}, // it is remembered
			{"192.0.2.1", true, "https://192.0.2.1"},
			{"192.0.2.1", false, "https://192.0.2.1"}, // the other one is not any more
		} {
			endpoint.Store(step.at)
			if config, err := targets.OfConfigMap(t.Context(), name, step.anew); err != nil || config.Host != step.want {
				t.Fatalf("step %d: %+v, %v, want %s (read 696)", i, config, err, step.want)
			}
		}
	})
	for name, tc := range map[string]struct {
		reason  string
		data    map[string]string
		refused string
	}{
		"Cluster": {"the address and the CA are those that the cloud says", nil, ""},
		"Address": {"the certificate of a tenant's cluster is no word for an address", map[string]string{"address": s.URL}, "remove address,"},
		"CA":      {"nor is the CA of a tenant", map[string]string{"ca.crt": string(s.ca())}, "remove ca.crt,"},
	} {
		t.Run(name, func(t *testing.T) {
			data := map[string]string{"provider": "gcp", "cluster": "projects/p/locations/l/clusters/c"}
			maps.Copy(data, tc.data)
			targets, _ := newTargets(t, s, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "edge"}, Data: data})
			s.users = nil
			_, err := targets.Identify(t.Context(), "apps", Ref{Kind: "ConfigMap", Name: "edge"})
			config, ofChild := targets.OfConfigMap(t.Context(), types.NamespacedName{Namespace: "apps", Name: "edge"}, false)
			if tc.refused == "" {
				if err != nil || ofChild != nil || len(s.users) == 0 || s.users[0] != "Bearer agent " {
					t.Errorf("%s: %v, %v; the cluster was asked by %q", tc.reason, err, ofChild, s.users)
				}
				if ofChild == nil && config.Host != s.URL {
					t.Errorf("%s: the address of a Child is %s", tc.reason, config.Host)
				}
				return
			}
			for _, err := range []error{err, ofChild} {
				if source.ReasonOf(err) != source.ReasonCredentialRefused || !strings.Contains(err.Error(), tc.refused) {
					t.Errorf("%s: %v, want %q", tc.reason, err, tc.refused)
				}
			}
			if len(s.users) > 0 {
				t.Errorf("%s: the server got %q", tc.reason, s.users)
			}
		})
	}
}
