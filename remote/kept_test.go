package remote

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

// vaultOf is a source whose texts have variables.
func vaultOf(change func(*v1alpha1.VaultSource)) *v1alpha1.CredentialReference {
	v := &v1alpha1.VaultSource{
		Address: "https://vault.${word}.example.com",
		Auth:    v1alpha1.VaultAuth{JWT: &v1alpha1.VaultJWTAuth{Mount: "jwt-${cluster_name}", Role: "r-${word}", ServiceAccountName: "cascade-vault"}},
		Request: v1alpha1.VaultRequest{Path: "aws/creds/${cluster_name}", Method: "PUT", Parameters: map[string]string{"ttl": "1h", "name": "${cluster_name}"}},
	}
	if change != nil {
		change(v)
	}
	return &v1alpha1.CredentialReference{Name: "keys", Vault: v, Type: "Opaque", Data: map[string]v1alpha1.CredentialValue{"credentials": {Value: "key = ${access_key}"}}}
}

// TestKept: what a child's agent is to keep has the variables of the cluster, and its data
// those of the answer.
func TestKept(t *testing.T) {
	layer := &v1alpha1.Layer{Spec: v1alpha1.LayerSpec{PostBuild: &v1alpha1.PostBuild{Substitute: map[string]string{"word": "eu"}}}}
	cluster := capibridge.Cluster{Name: "edge", Namespace: "fleet"}
	ref := vaultOf(nil)
	kept, err := keptOf(cluster, layer, ref)
	if err != nil {
		t.Fatal(err)
	}
	u, err := credential{name: "keys", kept: kept}.object("capa-system", []string{"capa-controller-manager"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(u.Object)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"apiVersion":"cascade.dev/v1alpha1","kind":"Credential","metadata":{"name":"keys","namespace":"capa-system"},"spec":{` +
		`"restart":[{"kind":"Deployment","name":"capa-controller-manager"}],` +
		`"target":{"data":{"credentials":{"value":"key = ${access_key}"}},"type":"Opaque"},` +
		`"vault":{"address":"https://vault.eu.example.com","auth":{"jwt":{"mount":"jwt-edge","role":"r-eu","serviceAccountName":"cascade-vault"}},` +
		`"request":{"method":"PUT","parameters":{"name":"edge","ttl":"1h"},"path":"aws/creds/edge"}}}}`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if ref.Vault.Request.Path != "aws/creds/${cluster_name}" || ref.Vault.Request.Parameters["name"] != "${cluster_name}" {
		t.Error("the Layer was changed")
	}
	if _, err := keptOf(cluster, layer, vaultOf(func(v *v1alpha1.VaultSource) { v.Request.Path = "aws/creds/${nobody}" })); err == nil || !strings.Contains(err.Error(), "keys") {
		t.Errorf("a variable that is not set: %v", err)
	}
}

// TestAccounts: each account that logs in is made once, with the servers of all its logins.
func TestAccounts(t *testing.T) {
	layer, cluster := &v1alpha1.Layer{}, capibridge.Cluster{Name: "edge"}
	var all []credential
	for _, change := range []func(*v1alpha1.VaultSource){
		func(v *v1alpha1.VaultSource) { v.Address = "https://b.example.com" },
		func(v *v1alpha1.VaultSource) { v.Address = "https://a.example.com" },
		func(v *v1alpha1.VaultSource) { v.Address = "https://b.example.com" },
		func(v *v1alpha1.VaultSource) {
			v.Address = "https://c.example.com"
			v.Auth = v1alpha1.VaultAuth{Kubernetes: &v1alpha1.VaultKubernetesAuth{Role: "r", ServiceAccountName: "other"}}
		},
		func(v *v1alpha1.VaultSource) {
			v.Address = "https://d.example.com"
			v.Auth = v1alpha1.VaultAuth{AppRole: &v1alpha1.VaultAppRoleAuth{RoleID: "r"}}
		},
	} {
		kept, err := keptOf(cluster, layer, vaultOf(func(v *v1alpha1.VaultSource) {
			v.Auth.JWT.Role = "r"
			change(v)
		}))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, credential{name: "x", kept: kept})
	}
	all = append(all, credential{name: "copied"})
	got := map[string]string{}
	for _, u := range accountsOf("capa-system", all) {
		got[u.GetNamespace()+"/"+u.GetName()] = u.GetAnnotations()[v1alpha1.VaultAddressAnnotation]
	}
	want := map[string]string{"capa-system/cascade-vault": "https://a.example.com,https://b.example.com", "capa-system/other": "https://c.example.com"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestTellStatic: a Layer tells of the Secrets without an end that it hands over, of all its
// children, and of those of no other Layer.
func TestTellStatic(t *testing.T) {
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Name: "platform"}}
	children := []v1alpha1.Child{
		{Status: v1alpha1.ChildStatus{Credentials: []v1alpha1.ChildCredential{{Name: "git-auth", Unlimited: true, Layer: "platform"}, {Name: "theirs", Unlimited: true, Layer: "other"}}}},
		{Status: v1alpha1.ChildStatus{Credentials: []v1alpha1.ChildCredential{{Name: "git-auth", Unlimited: true, Layer: "platform"}, {Name: "minted", Layer: "platform", From: v1alpha1.CredentialFromVault}}}},
	}
	tellStatic(layer, children)
	if c := layer.Status.Conditions; len(c) != 1 || c[0].Reason != v1alpha1.ReasonStaticCredential || !strings.HasPrefix(c[0].Message, "git-auth does not say when it lapses; ") {
		t.Errorf("conditions %+v", c)
	}
	tellStatic(layer, nil)
	if len(layer.Status.Conditions) != 0 {
		t.Errorf("conditions %+v when there are none", layer.Status.Conditions)
	}
}
