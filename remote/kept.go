package remote

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// keptOf is the Credential that a child's agent keeps, in the place of a Secret that is
// copied. Texts of it have the variables of the cluster: not those of the child, and no value
// of a Secret, which the server would be told.
func keptOf(cluster capibridge.Cluster, layer *v1alpha1.Layer, ref *v1alpha1.CredentialReference) (*v1alpha1.Credential, error) {
	vault := ref.Vault.DeepCopy()
	vars := namingVariables(cluster, layer)
	texts := []*string{&vault.Address, &vault.Namespace, &vault.Request.Path}
	if ca := vault.CASecretRef; ca != nil {
		texts = append(texts, &ca.Name)
	}
	switch auth := &vault.Auth; {
	case auth.Kubernetes != nil:
		texts = append(texts, &auth.Kubernetes.Mount, &auth.Kubernetes.Role, &auth.Kubernetes.ServiceAccountName)
	case auth.JWT != nil:
		texts = append(texts, &auth.JWT.Mount, &auth.JWT.Role, &auth.JWT.ServiceAccountName)
	case auth.AppRole != nil:
		texts = append(texts, &auth.AppRole.Mount, &auth.AppRole.RoleID)
	case auth.Cert != nil:
		texts = append(texts, &auth.Cert.Mount, &auth.Cert.Role)
	}
	for _, text := range texts {
		rendered, err := substituted(*text, vars)
		if err != nil {
			return nil, fmt.Errorf("cannot render %q of credential %s: %w", *text, ref.Name, err)
		}
		*text = rendered
	}
	for name, value := range vault.Request.Parameters {
		rendered, err := substituted(value, vars)
		if err != nil {
			return nil, fmt.Errorf("cannot render parameter %s of credential %s: %w", name, ref.Name, err)
		}
		vault.Request.Parameters[name] = rendered
	}
	c := &v1alpha1.Credential{Spec: v1alpha1.CredentialSpec{
		Vault: vault, RenewBefore: ref.RenewBefore, Target: v1alpha1.CredentialTarget{Type: ref.Type, Data: ref.Data},
	}}
	c.Name = ref.Name
	return c, nil
}

func substituted(text string, vars map[string]string) (string, error) {
	if !strings.Contains(text, "$") {
		return text, nil
	}
	return render.Text(text, vars)
}

// object is a credential as it is applied in a child: a Secret, or a Credential.
func (c credential) object(namespace string, restart []string) (*unstructured.Unstructured, error) {
	if c.kept == nil {
		u := credentialObject(c.name, c.secret)
		u.SetNamespace(namespace)
		return u, nil
	}
	kept := c.kept.DeepCopy()
	for _, name := range restart {
		kept.Spec.Restart = append(kept.Spec.Restart, v1alpha1.CredentialReader{Kind: "Deployment", Name: name})
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(kept)
	if err != nil {
		return nil, reason.Because(v1alpha1.ReasonBuildFailed, fmt.Errorf("cannot encode Credential %s: %w", c.name, err))
	}
	// What Go has no word for "not said" must not be said.
	spec := content["spec"].(map[string]any)
	for _, name := range []string{"interval", "grace"} {
		delete(spec, name)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Credential",
		"metadata": map[string]any{"name": c.name, "namespace": namespace},
		"spec":     spec,
	}}, nil
}

// accountsOf are the service accounts that the agent of a child logs in with for these
// credentials, each with the servers that its tokens may go to.
func accountsOf(namespace string, all []credential) []*unstructured.Unstructured {
	servers := map[string]map[string]struct{}{}
	for _, c := range all {
		if c.kept == nil {
			continue
		}
		vault, account := c.kept.Spec.Vault, ""
		switch auth := &vault.Auth; {
		case auth.Kubernetes != nil:
			account = auth.Kubernetes.ServiceAccountName
		case auth.JWT != nil:
			account = auth.JWT.ServiceAccountName
		}
		if account == "" {
			continue
		}
		if servers[account] == nil {
			servers[account] = map[string]struct{}{}
		}
		servers[account][vault.Address] = struct{}{}
	}
	var accounts []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		accounts = append(accounts, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ServiceAccount",
			"metadata": map[string]any{
				"name": name, "namespace": namespace,
				"annotations": map[string]any{v1alpha1.VaultAddressAnnotation: strings.Join(slices.Sorted(maps.Keys(servers[name])), ",")},
			},
			"automountServiceAccountToken": false,
		}})
	}
	return accounts
}
