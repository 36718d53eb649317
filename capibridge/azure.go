package capibridge

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	azurev1 "sigs.k8s.io/cluster-api-provider-azure/api/v1beta1"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// azureAdapter reads AzureCluster and, of AKS, AzureASOManagedControlPlane and
// the deprecated AzureManagedControlPlane, with what is beside them. Facts of
// v1.23, whose kinds keep contract v1beta1:
//
//   - status.ready and status.initialized of AzureASOManagedControlPlane are false
//     while Azure changes or cannot change one of its resources, and while the Cluster
//     is paused. AKS responds meanwhile;
//   - the state of AKS is in the ManagedCluster of Azure Service Operator, not in the
//     control plane. The adapter reads it in the version in which the control plane
//     writes it: by the names of the operator's versions, API servers prefer the oldest;
//   - the kubeconfig is an Opaque Secret with certificates, or with a token of Entra
//     where local accounts are disabled;
//   - an AKS cluster can be stopped, and its control plane stays ready;
//   - an identity is an AzureClusterIdentity, or a Secret that the objects of Azure
//     Service Operator name in an annotation.
type azureAdapter struct{}

const (
	asoManagedClusterGroup = "containerservice.azure.com"
	asoResourceGroupGroup  = "resources.azure.com"
)

func (a azureAdapter) wants(c Cluster, have objects) []clusterapi.Reference {
	refs := []clusterapi.Reference{c.Infrastructure, c.ControlPlane}
	if !have.all(refs...) {
		return refs
	}
	fields, _, ok := azureFields(c, have)
	if !ok {
		return refs
	}
	return append(refs, fields.identity, fields.managedCluster, fields.secret)
}

func (a azureAdapter) facts(c Cluster, have objects) Facts {
	f := Facts{
		Provider:       "azure",
		Infrastructure: infrastructureHealth(c, have),
		ControlPlane:   controlPlaneHealth(c, have),
		Variables:      map[string]string{},
	}
	fields, why, ok := azureFields(c, have)
	switch {
	case c.ControlPlane.Kind == azurev1.AzureASOManagedControlPlaneKind:
		f.ControlPlane = aksHealth(c, fields.managedCluster, have)
		f.Infrastructure = asoInfrastructureHealth(c, f.Infrastructure)
		f.Unfinished = fields.oidcIssuer == ""
	case c.ControlPlane.Kind == azurev1.AzureManagedControlPlaneKind:
		f.ControlPlane = azureManagedHealth(c, have, f.ControlPlane)
		f.Unfinished = fields.oidcIssuer == ""
	}
	if !ok {
		f.Identity = Identity{Form: IdentityUnknown, Message: why.Message}
		if why.Reason != HealthNotReferenced {
			f.Unread = why
		}
		return f
	}
	if !fields.managedCluster.IsZero() {
		_, f.Unread = have.get(fields.managedCluster)
	}
	f.Region = fields.location
	f.Identity = azureIdentity(c, fields, have)
	if credential := cmp.Or(fields.secret, fields.identity); f.Unread == (Health{}) && f.Identity.Form != IdentityController {
		_, why := have.get(credential) // it tells the tenant
		f.Unread = why.withheldBy(f.Identity)
	}
	f.Infrastructure, f.ControlPlane = f.Infrastructure.blockedBy(f.Identity), f.ControlPlane.blockedBy(f.Identity)
	for name, value := range map[string]string{
		"cluster_subscription":   fields.subscription,
		"cluster_resource_group": fields.resourceGroup,
		"cluster_vnet":           fields.vnet,
		"cluster_tenant":         f.Identity.Tenant,
		"cluster_oidc_issuer":    fields.oidcIssuer,
	} {
		if value != "" {
			f.Variables[name] = value
		}
	}
	return f
}

// azureCluster is what the adapter takes from the kinds of the provider.
type azureCluster struct {
	subscription, location, resourceGroup, vnet, oidcIssuer string
	// identity is set, or secret, for an identity of Azure Service Operator.
	identity clusterapi.Reference
	secret   clusterapi.Reference
	// managedCluster is the object of Azure Service Operator that stands for AKS.
	managedCluster clusterapi.Reference
}

// azureFields are read from the control plane of AKS if there is one, and otherwise from
// the infrastructure.
func azureFields(c Cluster, have objects) (fields azureCluster, why Health, ok bool) {
	switch c.ControlPlane.Kind {
	case azurev1.AzureASOManagedControlPlaneKind:
		aso, why, ok := typed[azurev1.AzureASOManagedControlPlane](have, c.ControlPlane)
		if !ok {
			return fields, why, false
		}
		return asoFields(c, aso, have), Health{}, true
	case azurev1.AzureManagedControlPlaneKind:
		aks, why, ok := typed[azurev1.AzureManagedControlPlane](have, c.ControlPlane)
		if !ok {
			return fields, why, false
		}
		fields = azureCluster{
			subscription: aks.Spec.SubscriptionID, location: aks.Spec.Location, resourceGroup: aks.Spec.ResourceGroupName,
			vnet: aks.Spec.VirtualNetwork.Name, identity: azureIdentityRef(c, aks.Spec.IdentityRef),
		}
		if issuer := aks.Status.OIDCIssuerProfile; issuer != nil && issuer.IssuerURL != nil {
			fields.oidcIssuer = *issuer.IssuerURL
		}
		return fields, Health{}, true
	}
	if c.Infrastructure.Kind != azurev1.AzureClusterKind {
		return fields, unknown(HealthNotReferenced, "%s is of no kind that this agent knows", c.Infrastructure), false
	}
	machines, why, ok := typed[azurev1.AzureCluster](have, c.Infrastructure)
	if !ok {
		return fields, why, false
	}
	fields = azureCluster{
		subscription: machines.Spec.SubscriptionID, location: machines.Spec.Location, resourceGroup: machines.Spec.ResourceGroup,
		vnet: machines.Spec.NetworkSpec.Vnet.Name, identity: azureIdentityRef(c, machines.Spec.IdentityRef),
	}
	if fields.subscription == "" { // the controller's own, which the ID of what it made tells
		fields.subscription, _ = idOf(machines.Spec.NetworkSpec.Vnet.ID)
	}
	return fields, Health{}, true
}

// asoFields are read from the objects of Azure Service Operator in the specs of the
// control plane and of the infrastructure.
func asoFields(c Cluster, aso *azurev1.AzureASOManagedControlPlane, have objects) azureCluster {
	var fields azureCluster
	aks := embedded(aso.Spec.Resources, schema.GroupKind{Group: asoManagedClusterGroup, Kind: "ManagedCluster"})
	if aks == nil {
		return fields
	}
	fields.managedCluster = clusterapi.Reference{
		Group:     asoManagedClusterGroup,
		Version:   aks.GroupVersionKind().Version,
		Kind:      "ManagedCluster",
		Namespace: c.Namespace,
		Name:      aks.GetName(),
	}
	fields.location = stringAt(aks, "spec", "location")
	fields.resourceGroup = stringAt(aks, "spec", "owner", "name")
	credential := aks.GetAnnotations()[clusterapi.AzureCredentialAnnotation]
	if infrastructure, _, ok := typed[azurev1.AzureASOManagedCluster](have, c.Infrastructure); ok {
		if group := embedded(infrastructure.Spec.Resources, schema.GroupKind{Group: asoResourceGroupGroup, Kind: "ResourceGroup"}); group != nil {
			if name := stringAt(group, "spec", "azureName"); name != "" && group.GetName() == fields.resourceGroup {
				fields.resourceGroup = name
			}
		}
	}
	if credential == "" {
		credential = clusterapi.AzureNamespaceSecret
	}
	fields.secret = clusterapi.Reference{Kind: "Secret", Namespace: c.Namespace, Name: credential}
	if live, _ := have.get(fields.managedCluster); live != nil {
		if subscription, group := idOf(stringAt(live, "status", "id")); subscription != "" {
			fields.subscription, fields.resourceGroup = subscription, group
		}
		fields.oidcIssuer = stringAt(live, "status", "oidcIssuerProfile", "issuerURL")
	}
	return fields
}

// embedded returns the first object of a kind among those that a spec contains.
func embedded(resources []runtime.RawExtension, kind schema.GroupKind) *unstructured.Unstructured {
	for _, raw := range resources {
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(raw.Raw, &u.Object); err == nil && u.GroupVersionKind().GroupKind() == kind {
			return u
		}
	}
	return nil
}

// idOf returns subscription and resource group of
// /subscriptions/<id>/resourceGroups/<name>/...
func idOf(id string) (subscription, group string) {
	parts := strings.Split(id, "/")
	if len(parts) >= 5 && strings.EqualFold(parts[1], "subscriptions") && strings.EqualFold(parts[3], "resourceGroups") {
		return parts[2], parts[4]
	}
	return "", ""
}

// aksHealth is the health of AKS in the words of Azure Service Operator.
func aksHealth(c Cluster, ref clusterapi.Reference, have objects) Health {
	own := controlPlaneHealth(c, have)
	object, _ := have.get(c.ControlPlane) // own says why there is none
	if object == nil || own.Reason == HealthDeleting {
		return own
	}
	aks, why := have.get(ref)
	if ref.IsZero() {
		why = unknown(HealthUnreadable, "%s has no ManagedCluster in spec.resources", c.ControlPlane)
	}
	initialized := boolAt(object, "status", "initialized") || c.ControlPlaneInitialized
	switch {
	case aks == nil && boolAt(object, "status", "ready"):
		return yes(HealthReady, "")
	case aks == nil && !initialized && why.Reason == HealthNotFound:
		return no(HealthProvisioning, "%s", why.Message)
	case aks == nil:
		return why
	}
	ready := asoReady(aks)
	failed := ready.status == metav1.ConditionFalse && ready.severity == "Error"
	switch state := stringAt(aks, "status", "provisioningState"); {
	case aks.GetDeletionTimestamp() != nil || state == "Deleting":
		return no(HealthDeleting, "%s is being deleted", ref)
	case stringAt(aks, "status", "powerState", "code") == "Stopped":
		return no(HealthStopped, "%s is stopped; start it in Azure", ref)
	case !initialized && failed:
		return no(HealthFailed, "%s", say(ref, ready.reason, ready.message))
	case !initialized:
		return no(HealthProvisioning, "%s", say(ref, ready.reason, ready.message))
	case failed:
		return yes(HealthDegraded, "%s", say(ref, ready.reason, ready.message))
	case state == "Failed" || state == "Canceled":
		return yes(HealthDegraded, "%s", say(ref, state, "Azure could not carry out the last change"))
	case state != "" && state != "Succeeded":
		return yes(HealthUpdating, "%s: %s", ref, state)
	}
	return yes(HealthReady, "")
}

// asoReady reads the condition Ready of Azure Service Operator, which has a severity in
// each of the operator's versions.
func asoReady(u *unstructured.Unstructured) condition {
	current, deprecated := conditionsOf(u)
	for _, of := range []conditions{deprecated, current} {
		if c, ok := of.find("Ready"); ok {
			return c
		}
	}
	return condition{status: metav1.ConditionUnknown}
}

// asoInfrastructureHealth: infrastructure that was ready once stays so while Azure
// changes it.
func asoInfrastructureHealth(c Cluster, own Health) Health {
	switch {
	case own.Reason != HealthProvisioning || !c.InfrastructureProvisioned:
		return own
	case c.Paused:
		return yes(HealthReady, "")
	}
	return yes(HealthUpdating, "%s", own.Message)
}

// azureManagedHealth also reads the condition in which Azure says whether AKS is
// available.
func azureManagedHealth(c Cluster, have objects, own Health) Health {
	u, _ := have.get(c.ControlPlane)
	if u == nil || own.Status != metav1.ConditionTrue {
		return own
	}
	_, deprecated := conditionsOf(u)
	switch available, ok := deprecated.find("AzureResourceAvailable"); {
	case ok && available.failed():
		return no(HealthNotAvailable, "%s", say(c.ControlPlane, available.reason, available.message))
	case ok && available.status == metav1.ConditionFalse:
		return yes(HealthDegraded, "%s", say(c.ControlPlane, available.reason, available.message))
	}
	return own
}

func azureIdentityRef(c Cluster, ref *corev1.ObjectReference) clusterapi.Reference {
	if ref == nil || ref.Name == "" {
		return clusterapi.Reference{}
	}
	r := clusterapi.Reference{
		Group:     clusterapi.InfrastructureGroup,
		Kind:      azurev1.AzureClusterIdentityKind,
		Namespace: ref.Namespace,
		Name:      ref.Name,
	}
	if r.Namespace == "" {
		r.Namespace = c.Namespace
	}
	return r
}

func azureIdentity(c Cluster, fields azureCluster, have objects) Identity {
	if !fields.secret.IsZero() {
		return asoIdentity(fields.secret, have)
	}
	if fields.identity.IsZero() {
		return Identity{
			Form:    IdentityController,
			Message: "no identity is named, so the provider uses its own, which it will not do for long; set spec.identityRef",
		}
	}
	named, why, ok := typed[azurev1.AzureClusterIdentity](have, fields.identity)
	if !ok {
		return Identity{Object: fields.identity, Form: IdentityUnknown, Message: why.Message}
	}
	identity := Identity{Object: fields.identity, Form: IdentityUnknown, Principal: named.Spec.ClientID, Tenant: named.Spec.TenantID}
	secret := false
	switch named.Spec.Type {
	case azurev1.WorkloadIdentity:
		identity.Form = IdentityWorkload
	case azurev1.UserAssignedMSI, azurev1.UserAssignedIdentityCredential:
		identity.Form = IdentityManaged
	case azurev1.ServicePrincipal, azurev1.ManualServicePrincipal:
		identity.Form, secret = IdentityStatic, true
	case azurev1.ServicePrincipalCertificate:
		identity.Form, secret = IdentityCertificate, named.Spec.CertPath == ""
	default:
		identity.Message = fields.identity.String() + " has type " + string(named.Spec.Type) + ", which this agent does not know"
	}
	if secret {
		identity.SecretNamespace, identity.SecretName = named.Spec.ClientSecret.Namespace, named.Spec.ClientSecret.Name
	}
	// A namespace that may not use the identity does not see its details either.
	refused := Identity{Object: fields.identity, Form: identity.Form, Refused: true}
	switch allowed := named.Spec.AllowedNamespaces; {
	case allowed == nil:
		refused.Message = fields.identity.String() + " allows no namespace to use it; set spec.allowedNamespaces"
		return refused
	case (allowed.Selector == nil || isEmpty(*allowed.Selector)) && len(allowed.NamespaceList) > 0 &&
		!slices.Contains(allowed.NamespaceList, c.Namespace):
		refused.Message = fields.identity.String() + " does not allow namespace " + c.Namespace + " to use it; add it to spec.allowedNamespaces"
		return refused
	}
	return identity
}

// asoIdentity tells from the keys of a Secret how Azure Service Operator uses it. It
// does not read the secret values.
func asoIdentity(ref clusterapi.Reference, have objects) Identity {
	secret, why := have.get(ref)
	if secret == nil {
		if why.Reason == HealthNotFound && ref.Name == clusterapi.AzureNamespaceSecret {
			return Identity{
				Form: IdentityController,
				Message: "no credential is named, and the namespace has none, so that of Azure Service Operator is used, in Secret " +
					clusterapi.AzureControllerSecret + " of its namespace",
			}
		}
		return Identity{Form: IdentityUnknown, SecretNamespace: ref.Namespace, SecretName: ref.Name, Message: why.Message}
	}
	data, _, _ := unstructured.NestedMap(secret.Object, "data")
	identity := Identity{
		Form: IdentityWorkload, SecretNamespace: ref.Namespace, SecretName: ref.Name,
		Principal: decoded(secret, "AZURE_CLIENT_ID"), Tenant: decoded(secret, "AZURE_TENANT_ID"),
	}
	has := func(key string) bool { _, ok := data[key]; return ok }
	switch {
	case has("AZURE_CLIENT_SECRET"):
		identity.Form = IdentityStatic
	case has("AZURE_CLIENT_CERTIFICATE"):
		identity.Form = IdentityCertificate
	case strings.EqualFold(decoded(secret, "AUTH_MODE"), "podidentity"):
		identity.Form = IdentityManaged
	}
	return identity
}
