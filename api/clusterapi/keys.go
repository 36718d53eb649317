package clusterapi

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Keys of clouds that no identity names.
const (
	// AWSControllerSecret has the keys of the controllers of AWS. They use it for what names no
	// identity, and to assume a role.
	AWSControllerSecret = "capa-manager-bootstrap-credentials"
	// VSphereControllerSecret and GCPControllerSecret have those of theirs, for clusters that name
	// no keys.
	VSphereControllerSecret = "capv-manager-bootstrap-credentials"
	GCPControllerSecret     = "capg-manager-bootstrap-credentials"
	// ROSAControllerSecret has the keys for OpenShift of the controllers of AWS, for control planes
	// that name none. Those of AWS are others.
	ROSAControllerSecret = "rosa-creds-secret"
	// AzureCredentialAnnotation names the Secret with which Azure Service Operator makes a
	// resource. Without it the operator takes AzureNamespaceSecret of the namespace, and where
	// that is not there, its own AzureControllerSecret.
	AzureCredentialAnnotation = "serviceoperator.azure.com/credential-from"
	AzureNamespaceSecret      = "aso-credential"
	AzureControllerSecret     = "aso-controller-settings"

	// AzureGroupSuffix ends the groups of Azure Service Operator. Its resources are written out in
	// the objects of the provider whose kinds begin with AzureOperatorPrefix.
	AzureGroupSuffix    = ".azure.com"
	AzureOperatorPrefix = "AzureASO"
)

// ProviderByControllerSecret names the provider of which controllers have their own keys in a
// Secret of that name, as the names of its kinds begin; empty if it is none of theirs. It is in
// the namespace of the controllers, wherever that is.
func ProviderByControllerSecret(secret string) string {
	switch secret {
	case AWSControllerSecret:
		return "AWS"
	case ROSAControllerSecret:
		return rosa
	case AzureControllerSecret:
		return "Azure"
	case VSphereControllerSecret:
		return "VSphere"
	case GCPControllerSecret:
		return "GCP"
	}
	return ""
}

// rosa begins the names of kinds of OpenShift on AWS, which the controllers of AWS make. A network
// is one of AWS alone.
const (
	rosa        = "ROSA"
	rosaNetwork = rosa + "Network"
)

// AzureSecretsOf names the Secrets in the namespace of an object with which Azure Service
// Operator makes it, if it is one of its resources, and those that are written out in its spec.
func AzureSecretsOf(u *unstructured.Unstructured) []string {
	found := azureSecretOf(nil, u.Object)
	spec, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec")
	return azureSecretsIn(found, spec)
}

func azureSecretsIn(found []string, v any) []string {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			found = azureSecretsIn(found, item)
		}
	case map[string]any:
		found = azureSecretOf(found, v)
		for _, item := range v {
			found = azureSecretsIn(found, item)
		}
	}
	return found
}

func azureSecretOf(found []string, resource map[string]any) []string {
	version, _ := resource["apiVersion"].(string)
	gv, err := schema.ParseGroupVersion(version)
	if err != nil || !strings.HasSuffix(gv.Group, AzureGroupSuffix) {
		return found
	}
	annotations, _, _ := unstructured.NestedFieldNoCopy(resource, "metadata", "annotations")
	all, _ := annotations.(map[string]any)
	name, _ := all[AzureCredentialAnnotation].(string)
	if name == "" {
		name = AzureNamespaceSecret
	}
	if slices.Contains(found, name) {
		return found
	}
	return append(found, name)
}

// UsesControllerKeys reports whether the controllers of a provider may make an object with
// their own keys in a Secret of that name: it names neither a Secret nor an identity, or one that
// has none, such as a role.
func UsesControllerKeys(u *unstructured.Unstructured, secret string, identities []unstructured.Unstructured) bool {
	kind, provider := u.GetKind(), ProviderByControllerSecret(secret)
	ofROSA := strings.HasPrefix(kind, rosa)
	switch {
	case provider == "", !strings.HasPrefix(kind, provider) && !(ofROSA && secret == AWSControllerSecret):
		return false
	case strings.HasPrefix(kind, AzureOperatorPrefix):
		return slices.Contains(AzureSecretsOf(u), AzureNamespaceSecret)
	case kind == rosa+Cluster:
		return false // its control plane has them
	case secret == ROSAControllerSecret:
		return kind != rosaNetwork && len(keysOf(u)) == 0
	case !ofROSA && len(keysOf(u)) > 0: // which are for OpenShift there
		return false
	case ReferenceAt(u, "spec", IdentityField).IsZero():
		// Managed clusters leave it to their control planes.
		return !strings.HasSuffix(kind, "ManagedCluster")
	}
	return !slices.ContainsFunc(identities, func(i unstructured.Unstructured) bool {
		return NamesIdentity(u, IdentityField, i.GetNamespace(), i.GetKind(), i.GetName()) && len(SecretsOf(&i)) > 0
	})
}
