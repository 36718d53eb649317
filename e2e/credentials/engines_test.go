package credentials

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/syncer/credential"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/vault"
)

// TestEngines: the reconciler against engines of a real Vault, without a control plane, so
// that leases are short: certificates, which are replaced, accounts of a cloud, which are
// renewed, and a secret of kv, which is read again. What is leased is what is known, all the
// time; a batch login and one whose policy forbids revocation are among them.
func TestEngines(t *testing.T) {
	lease := duration(t, "CASCADE_CREDENTIAL_LEASE", 6*time.Second)
	cloud, server := startIAM(t), startVault(t)
	server.setUp(t, lease, cloud.url)
	server.do(t, http.MethodPost, "sys/mounts/kv", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	server.do(t, http.MethodPost, "kv/data/git", map[string]any{"data": map[string]string{"username": "git", "password": "first"}})
	server.do(t, http.MethodPut, "sys/policies/acl/kv", map[string]any{"policy": `path "kv/data/git" { capabilities = ["read"] }`})
	server.do(t, http.MethodPost, "sys/auth/approle", map[string]any{"type": "approle"})
	login := func(role, of string) (id, secret string) {
		server.do(t, http.MethodPost, "auth/approle/role/"+role, map[string]any{"token_policies": []string{"credentials", "kv"}, "token_ttl": "1h", "token_type": of})
		answer := server.do(t, http.MethodGet, "auth/approle/role/"+role+"/role-id", nil)
		id = fmt.Sprint(answer["data"].(map[string]any)["role_id"])
		answer = server.do(t, http.MethodPost, "auth/approle/role/"+role+"/secret-id", map[string]any{})
		return id, fmt.Sprint(answer["data"].(map[string]any)["secret_id"])
	}
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	// The kind is there to stay, so that a Credential that goes revokes what is leased.
	objects := []client.Object{&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "credentials.cascade.dev"}}}
	for name, tc := range map[string]struct{ of, path, method string }{
		"certificate": {"service", "pki/issue/agents", "PUT"}, "cloud": {"service", "aws/creds/capa", "GET"}, "git": {"service", "kv/data/git", "GET"},
		"batch": {"batch", "pki/issue/agents", "PUT"},
	} {
		id, secret := login(name, tc.of)
		o := &v1alpha1.Credential{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Generation: 1},
			Spec: v1alpha1.CredentialSpec{
				Grace: metav1.Duration{Duration: time.Second}, Interval: metav1.Duration{Duration: 2 * time.Second},
				Vault: &v1alpha1.VaultSource{
					Address: server.url, Request: v1alpha1.VaultRequest{Path: tc.path, Method: tc.method},
					Auth: v1alpha1.VaultAuth{AppRole: &v1alpha1.VaultAppRoleAuth{Mount: "approle", RoleID: id, SecretRef: v1alpha1.LocalReference{Name: "login-" + name}}},
				},
			},
		}
		if tc.method == "PUT" {
			o.Spec.Vault.Request.Parameters = map[string]string{"common_name": name}
		}
		objects = append(objects, o, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "login-" + name},
			Data:       map[string][]byte{"secret-id": []byte(secret), "vault-address": []byte(server.url)},
		})
	}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(&v1alpha1.Credential{}).Build()
	r := &credential.Reconciler{
		Client: c, Live: c, Vault: &vault.Clients{Now: time.Now}, Namespace: "cascade-system", Events: record.NewFakeRecorder(10_000),
		Metrics: metrics.New(prometheus.NewRegistry()), Now: time.Now, Random: rand.Float64,
	}
	r.Open()
	names := []string{"certificate", "cloud", "git", "batch"}
	due := map[string]time.Time{}
	look := func(ctx context.Context) {
		for _, name := range names {
			if time.Now().Before(due[name]) {
				continue
			}
			result, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "default", Name: name}})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			due[name] = time.Now().Add(result.RequeueAfter)
		}
	}
	secret := func(name string) *corev1.Secret {
		o := &corev1.Secret{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, o); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return o
	}
	used, valid := map[string]bool{}, 0
	pass := func(d time.Duration, check bool) {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
			look(t.Context())
			for _, name := range names {
				o := secret(name)
				used[name+string(o.Data["serial_number"])+string(o.Data["access_key"])+string(o.Data["password"])] = true
				ends, err := time.Parse(time.RFC3339Nano, o.Annotations[v1alpha1.ExpiresAnnotation])
				if name == "git" {
					continue
				}
				if check && (err != nil || !time.Now().Before(ends)) {
					t.Errorf("%s has nothing that is valid: %v, ends %s", name, err, ends)
				}
				if key := string(o.Data["access_key"]); check && key != "" && !cloud.valid(key) && time.Now().Before(ends) {
					t.Errorf("the cloud refuses %s, which is told to be valid until %s", key, ends)
				}
				valid++
			}
		}
	}
	look(t.Context())
	pass(3*lease, true)
	server.do(t, http.MethodPost, "kv/data/git", map[string]any{"data": map[string]string{"username": "git", "password": "second"}})
	server.stop(t)
	pass(2*lease, false)
	server.goOn(t)
	pass(lease, false) // what was under way when it stopped, ends
	pass(2*lease, true)
	if got := string(secret("git").Data["password"]); got != "second" {
		t.Errorf("the secret of kv is %s", got)
	}
	t.Logf("%d looks at %d credentials", valid, len(used))
	for _, name := range names {
		o := &v1alpha1.Credential{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, o); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", name, scenario.Summary(o.Status.Conditions))
		if err := c.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		due[name] = time.Time{}
	}
	scenario.Eventually(t, scenario.Converge, "nothing is leased", func(ctx context.Context) error {
		look(ctx)
		for _, path := range []string{"pki/issue/agents/", "aws/creds/capa/"} {
			if left, err := server.leases(ctx, path); err != nil || len(left) > 0 {
				return fmt.Errorf("%s: %v, %v", path, left, err)
			}
		}
		if now, _ := cloud.count(); now > 0 {
			return fmt.Errorf("the cloud has %d accounts", now)
		}
		return nil
	})
}
