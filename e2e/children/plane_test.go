package children

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/record"
)

// plane is a control plane that a provider made.
type plane struct {
	*stage.Tier
	client client.Client
	// issued counts the tokens.
	issued int
}

// plane starts an empty control plane that ends with the test.
func (h *hub) plane(t *testing.T, name string, flags ...string) *plane {
	t.Helper()
	if flags == nil {
		flags = planeFlags
	}
	tier, err := h.Cluster(t.Context(), name, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if !t.Failed() {
			if err := tier.Remove(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	p := &plane{Tier: tier}
	p.connect(t)
	return p
}

// connect to the control plane, and make the account of the provider.
func (p *plane) connect(t *testing.T) {
	t.Helper()
	var err error
	if p.client, err = p.Client(); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: provider}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: provider, Name: provider}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: provider},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: provider, Name: provider}},
		},
	} {
		// The namespaces of the system come a moment after the API server.
		scenario.Eventually(t, scenario.Converge, "the account of the provider exists", func(ctx context.Context) error {
			if err := p.client.Create(ctx, o); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
	}
}

// provider is the account of the provider in each child, and its namespace.
const provider = "provider"

// parentUser is how the audit log names the parent's account.
var parentUser = "system:serviceaccount:" + v1alpha1.AgentNamespace + ":" + v1alpha1.ParentServiceAccount

// login is a credential that a provider handed out.
type login struct {
	kubeconfig []byte
	// id is the token's, as the audit log has it.
	id     string
	secret *corev1.Secret
}

// issue makes a kubeconfig with a new token of the provider's account, which is
// valid until it is revoked.
func (p *plane) issue(t *testing.T) login {
	t.Helper()
	p.issued++
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: provider, Name: fmt.Sprintf("token-%d", p.issued)}}
	if err := p.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: provider, Name: provider}}
	if err := p.client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return login{
		kubeconfig: p.kubeconfig(t, func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			*u = clientcmdapi.AuthInfo{Token: request.Status.Token}
		}),
		id: tokenID(t, request.Status.Token), secret: secret,
	}
}

// revoke has a token refused from now on.
func (p *plane) revoke(t *testing.T, old login) {
	t.Helper()
	if err := p.client.Delete(t.Context(), old.secret); err != nil {
		t.Fatal(err)
	}
}

// kubeconfig is the administrator's, changed.
func (p *plane) kubeconfig(t *testing.T, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	data, err := os.ReadFile(p.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return changed(t, data, change)
}

// changed is a kubeconfig with other content of its context.
func changed(t *testing.T, kubeconfig []byte, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	change(config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo])
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tokenID reads the id out of a token.
func tokenID(t *testing.T, text string) string {
	t.Helper()
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		t.Fatal("the API server's token is no JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		ID string `json:"jti"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.ID == "" {
		t.Fatalf("the API server's token has no id: %v", err)
	}
	return claims.ID
}

// now is the end of the audit log.
func (p *plane) now(t *testing.T) int64 {
	t.Helper()
	_, end, err := p.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// requests are what agents asked of the control plane since an offset of its audit
// log, reads as well.
func (p *plane) requests(t *testing.T, from int64) []stage.AuditEvent {
	t.Helper()
	events, _, err := p.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(events, func(e stage.AuditEvent) bool { return !e.ByAgent() })
}

// writes are those of the requests that could change something.
func (p *plane) writes(t *testing.T, from int64) []stage.AuditEvent {
	t.Helper()
	return slices.DeleteFunc(p.requests(t, from), func(e stage.AuditEvent) bool { return !e.Writes() })
}

// refused are the requests of agents whose credential was not accepted.
func (p *plane) refused(t *testing.T, from int64) []stage.AuditEvent {
	t.Helper()
	return slices.DeleteFunc(p.requests(t, from), func(e stage.AuditEvent) bool { return e.ResponseStatus.Code != http.StatusUnauthorized })
}

// untouched fails the test if an agent wrote since an offset of the audit log.
func (p *plane) untouched(t *testing.T, from int64) {
	t.Helper()
	for _, e := range p.writes(t, from) {
		t.Errorf("%s was written to: %s %s by %s at %s", p.Name, e.Verb, e.RequestURI, e.User.Username, e.Received.Format(time.TimeOnly))
	}
}

// has waits until a ConfigMap of namespace default has a value.
func (p *plane) has(t *testing.T, name, key, want string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s has ConfigMap %s", p.Name, name), func(ctx context.Context) error {
		got, err := p.value(ctx, name, key)
		if err == nil && got != want {
			return fmt.Errorf("%s is %q, want %q", key, got, want)
		}
		return err
	})
}

func (p *plane) value(ctx context.Context, name, key string) (string, error) {
	cm := &corev1.ConfigMap{}
	err := p.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, cm)
	return cm.Data[key], err
}

// hasNot fails the test if a ConfigMap of namespace default exists.
func (p *plane) hasNot(t *testing.T, name string) {
	t.Helper()
	if _, err := p.value(t.Context(), name, ""); !apierrors.IsNotFound(err) {
		t.Errorf("%s has ConfigMap %s, or it cannot be read: %v", p.Name, name, err)
	}
}

// noteNamed is a ConfigMap of namespace default, for repositories.
func noteNamed(name string, data ...string) string {
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n  namespace: default\ndata:\n"
	for i := 0; i < len(data); i += 2 {
		text += "  " + data[i] + ": \"" + data[i+1] + "\"\n"
	}
	return text
}

// record is what the child has of a layer of its parent.
func (p *plane) record(ctx context.Context, namespace, layer string) (*record.Record, error) {
	read := func(ctx context.Context, name string) (*corev1.ConfigMap, error) {
		cm := &corev1.ConfigMap{}
		return cm, p.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: name}, cm)
	}
	return record.Get(ctx, read, types.NamespacedName{Namespace: namespace, Name: layer})
}

// inventory of a layer in the child.
func (p *plane) inventory(t *testing.T, namespace, layer string) []inventory.Entry {
	t.Helper()
	r, err := p.record(t.Context(), namespace, layer)
	if err != nil {
		t.Fatal(err)
	}
	return r.Inventory
}
