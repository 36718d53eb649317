package capibridge

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	awsv1 "sigs.k8s.io/cluster-api-provider-aws/v2/api/v1beta2"
	eksv1 "sigs.k8s.io/cluster-api-provider-aws/v2/controlplane/eks/api/v1beta2"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// awsAdapter reads AWSCluster and, of EKS, AWSManagedCluster and
// AWSManagedControlPlane. Facts of v2.13, whose kinds keep contract v1beta1:
//
//   - the token in the kubeconfig of EKS is valid for 15 minutes. The provider writes a
//     new one at each reconciliation. The other kubeconfig, <cluster>-user-kubeconfig,
//     runs a program and is not used;
//   - AWSManagedCluster is ready from the start, before anything exists in AWS;
//   - status.ready of AWSManagedControlPlane is true while EKS is ACTIVE or UPDATING. It
//     also becomes false when EKS upgraded by itself, although the API server responds;
//   - identities are cluster-scoped, their Secrets are in the provider's namespace.
type awsAdapter struct {
	namespace string
}

// Names that the provider's own installation uses.
const (
	awsServiceAccount = "capa-controller-manager"
	awsRoleAnnotation = "eks.amazonaws.com/role-arn"
)

func (a awsAdapter) bootstrapSecret() clusterapi.Reference {
	return clusterapi.Reference{Kind: "Secret", Namespace: a.namespace, Name: clusterapi.AWSControllerSecret}
}

func (a awsAdapter) serviceAccount() clusterapi.Reference {
	return clusterapi.Reference{Kind: "ServiceAccount", Namespace: a.namespace, Name: awsServiceAccount}
}

func (a awsAdapter) wants(c Cluster, have objects) []clusterapi.Reference {
	refs := []clusterapi.Reference{c.Infrastructure, c.ControlPlane}
	if !have.all(refs...) {
		return refs
	}
	fields, _, ok := awsFields(c, have)
	if !ok {
		return refs
	}
	chain, _ := identityChain(fields.identity, have)
	refs = append(refs, chain...)
	if have.all(chain...) && controllersOwn(chain) {
		refs = append(refs, a.bootstrapSecret(), a.serviceAccount())
	}
	return refs
}

func (a awsAdapter) facts(c Cluster, have objects) Facts {
	fields, why, ok := awsFields(c, have)
	f := Facts{
		Provider:       "aws",
		Infrastructure: infrastructureHealth(c, have),
		ControlPlane:   controlPlaneHealth(c, have),
		Region:         fields.region,
		Variables:      map[string]string{},
	}
	if c.ControlPlane.Kind == eksv1.AWSManagedControlPlaneKind {
		f.ControlPlane = eksHealth(c, have)
		f.Kubeconfig = KubeconfigSource{Secret: clusterapi.KubeconfigSecret(c.Name), Key: clusterapi.KubeconfigKey, Life: eksLife}
		if c.Infrastructure == c.ControlPlane { // the kind was its own infrastructure once
			f.Infrastructure = f.ControlPlane
		}
	}
	if !ok {
		f.Identity = Identity{Form: IdentityUnknown, Message: why.Message}
		if why.Reason != HealthNotReferenced {
			f.Unread = why
		}
		return f
	}
	f.Identity = a.identity(c, fields.identity, have)
	f.Infrastructure, f.ControlPlane = f.Infrastructure.blockedBy(f.Identity), f.ControlPlane.blockedBy(f.Identity)
	f.Unfinished = c.ControlPlane.Kind == eksv1.AWSManagedControlPlaneKind && fields.oidcProvider == ""
	arns := append(fields.arns, f.Identity.Principal)
	if f.Identity.Form == IdentityController || f.Identity.Form == IdentityWorkload {
		arns = fields.arns // of the controller, which may be of another account
	}
	for name, value := range map[string]string{
		"cluster_account":     accountOf(arns),
		"cluster_partition":   partitionOf(fields.partition, arns),
		"cluster_vpc":         fields.vpc,
		"cluster_eks_name":    fields.eksName,
		"cluster_oidc_issuer": issuerOf(fields.oidcProvider),
	} {
		if value != "" {
			f.Variables[name] = value
		}
	}
	if fields.identity.Kind == string(awsv1.ClusterRoleIdentityKind) && (f.Variables["cluster_account"] == "" || f.Variables["cluster_partition"] == "") {
		_, why := have.get(fields.identity) // nothing but the role would tell
		f.Unread = why.withheldBy(f.Identity)
	}
	return f
}

// awsCluster is what the adapter takes from the kinds of the provider.
type awsCluster struct {
	region, partition, vpc, eksName, oidcProvider string
	// arns of resources of the cluster. Each of them names the account.
	arns     []string
	identity clusterapi.Reference
}

// awsFields are read from the control plane of EKS if there is one, and otherwise from
// the infrastructure.
func awsFields(c Cluster, have objects) (fields awsCluster, why Health, ok bool) {
	if c.ControlPlane.Kind == eksv1.AWSManagedControlPlaneKind {
		eks, why, ok := typed[eksv1.AWSManagedControlPlane](have, c.ControlPlane)
		if !ok {
			return fields, why, false
		}
		fields = awsCluster{
			region: eks.Spec.Region, partition: eks.Spec.Partition, vpc: eks.Spec.NetworkSpec.VPC.ID, eksName: eks.Spec.EKSClusterName,
			oidcProvider: eks.Status.OIDCProvider.ARN, identity: awsIdentity(eks.Spec.IdentityRef),
			arns: []string{eks.Status.OIDCProvider.ARN, eks.Status.IdentityProviderStatus.ARN},
		}
		for _, addon := range eks.Status.Addons {
			fields.arns = append(fields.arns, addon.ARN)
		}
		return fields, Health{}, true
	}
	if c.Infrastructure.Kind != "AWSCluster" {
		return fields, unknown(HealthNotReferenced, "%s is of no kind that this agent knows", c.Infrastructure), false
	}
	ec2, why, ok := typed[awsv1.AWSCluster](have, c.Infrastructure)
	if !ok {
		return fields, why, false
	}
	return awsCluster{
		region: ec2.Spec.Region, partition: ec2.Spec.Partition, vpc: ec2.Spec.NetworkSpec.VPC.ID, identity: awsIdentity(ec2.Spec.IdentityRef),
		arns: []string{ec2.Status.Network.APIServerELB.ARN, ec2.Status.Network.SecondaryAPIServerELB.ARN},
	}, Health{}, true
}

// eksHealth is the health of an EKS control plane.
func eksHealth(c Cluster, have objects) Health {
	ref := c.ControlPlane
	eks, why, ok := typed[eksv1.AWSManagedControlPlane](have, ref)
	if !ok {
		return why
	}
	if eks.Status.FailureMessage != nil && upgradedByItself(eks) {
		return yes(HealthDegraded, "%s", say(ref, "", *eks.Status.FailureMessage))
	}
	health := controlPlaneHealth(c, have)
	if health.Reason == HealthNotAvailable {
		health.Message = ref.String() + ": EKS has the cluster neither as ACTIVE nor as UPDATING"
	}
	return health
}

// upgradedByItself reports whether EKS runs a later version than the spec asks for. EKS
// upgrades a control plane whose version it no longer supports.
func upgradedByItself(eks *eksv1.AWSManagedControlPlane) bool {
	if eks.Spec.UpgradePolicy != eksv1.UpgradePolicyStandard || eks.Spec.Version == nil || eks.Status.Version == nil {
		return false
	}
	wanted, err := semver.NewVersion(*eks.Spec.Version)
	if err != nil {
		return false
	}
	runs, err := semver.NewVersion(*eks.Status.Version)
	if err != nil {
		return false
	}
	return runs.Major() > wanted.Major() || runs.Major() == wanted.Major() && runs.Minor() > wanted.Minor()
}

func awsIdentity(ref *awsv1.AWSIdentityReference) clusterapi.Reference {
	if ref == nil || ref.Kind == "" || ref.Name == "" {
		return clusterapi.Reference{}
	}
	return clusterapi.Reference{Group: clusterapi.InfrastructureGroup, Kind: string(ref.Kind), Name: ref.Name}
}

// identityChain returns the identities from the one that the cluster names to the last
// that has been read: a role names the identity that assumes it. loop reports whether
// the last one names one that is in the chain already.
func identityChain(ref clusterapi.Reference, have objects) (chain []clusterapi.Reference, loop bool) {
	for !ref.IsZero() {
		if slices.Contains(chain, ref) {
			return chain, true
		}
		chain = append(chain, ref)
		ref = sourceOf(ref, have)
	}
	return chain, false
}

// controllersOwn reports whether the chain ends with the controller's own credentials:
// no identity is named, the last one is a role without a source, or the last one is the
// controller's identity.
func controllersOwn(chain []clusterapi.Reference) bool {
	return len(chain) == 0 || chain[len(chain)-1].Kind != string(awsv1.ClusterStaticIdentityKind)
}

func sourceOf(ref clusterapi.Reference, have objects) clusterapi.Reference {
	if ref.Kind != string(awsv1.ClusterRoleIdentityKind) {
		return clusterapi.Reference{}
	}
	role, _, ok := typed[awsv1.AWSClusterRoleIdentity](have, ref)
	if !ok {
		return clusterapi.Reference{}
	}
	return awsIdentity(role.Spec.SourceIdentityRef)
}

// identity follows the chain to where the credentials live.
func (a awsAdapter) identity(c Cluster, ref clusterapi.Reference, have objects) Identity {
	chain, loop := identityChain(ref, have)
	if loop {
		return Identity{
			Object:  ref,
			Form:    IdentityUnknown,
			Message: "the roles of " + ref.String() + " assume each other; correct spec.sourceIdentityRef",
		}
	}
	var found *Identity
	if controllersOwn(chain) {
		found = a.controller(have)
	}
	for _, link := range slices.Backward(chain) {
		identity := Identity{Object: link, Form: IdentityUnknown}
		var allowed *awsv1.AllowedNamespaces
		var why Health
		var ok bool
		switch awsv1.AWSIdentityKind(link.Kind) {
		case awsv1.ClusterRoleIdentityKind:
			var role *awsv1.AWSClusterRoleIdentity
			if role, why, ok = typed[awsv1.AWSClusterRoleIdentity](have, link); ok {
				identity.Form, identity.Principal, identity.Source = IdentityRole, role.Spec.RoleArn, found
				allowed = role.Spec.AllowedNamespaces
			}
		case awsv1.ClusterStaticIdentityKind:
			var static *awsv1.AWSClusterStaticIdentity
			if static, why, ok = typed[awsv1.AWSClusterStaticIdentity](have, link); ok {
				identity.Form, identity.SecretNamespace, identity.SecretName = IdentityStatic, a.namespace, static.Spec.SecretRef
				allowed = static.Spec.AllowedNamespaces
			}
		case awsv1.ControllerIdentityKind:
			var controller *awsv1.AWSClusterControllerIdentity
			if controller, why, ok = typed[awsv1.AWSClusterControllerIdentity](have, link); ok {
				identity = *found
				identity.Object = link
				allowed = controller.Spec.AllowedNamespaces
			}
		default:
			why = unknown(HealthUnreadable, "%s is of no kind of identity that this agent knows", link)
		}
		refused := Identity{Object: link, Form: identity.Form, Refused: true}
		switch {
		case !ok:
			identity.Message = why.Message
		case allowed == nil:
			identity = refused
			identity.Message = link.String() + " allows no namespace to use it; set spec.allowedNamespaces"
		case len(allowed.NamespaceList) > 0 && !slices.Contains(allowed.NamespaceList, c.Namespace) && isEmpty(allowed.Selector):
			identity = refused
			identity.Message = link.String() + " does not allow namespace " + c.Namespace + " to use it; add it to spec.allowedNamespaces"
		}
		if s := identity.Source; s != nil && s.Refused && !identity.Refused {
			identity.Refused, identity.Message = true, s.Message
		}
		found = &identity
	}
	return *found
}

func isEmpty(s metav1.LabelSelector) bool {
	return len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}

// controller tells which credentials the provider's controller uses: the keys that its
// installation gave it, or the role of its service account, or the role of the machine
// that it runs on, in this order.
func (a awsAdapter) controller(have objects) *Identity {
	secret, why := have.get(a.bootstrapSecret())
	switch {
	case secret == nil && why.Reason != HealthNotFound:
		return &Identity{Form: IdentityController, Message: why.Message}
	case secret != nil && !blank(secret, "credentials"):
		return &Identity{Form: IdentityStatic, SecretNamespace: a.namespace, SecretName: clusterapi.AWSControllerSecret}
	}
	account, why := have.get(a.serviceAccount())
	switch {
	case account == nil:
		return &Identity{Form: IdentityController, Message: why.Message}
	case account.GetAnnotations()[awsRoleAnnotation] != "":
		return &Identity{Form: IdentityWorkload, Principal: account.GetAnnotations()[awsRoleAnnotation]}
	}
	return &Identity{Form: IdentityInstanceProfile}
}

// blank reports whether a key of a Secret is missing or contains only white space. The
// provider's manifests have such a key where it is installed without credentials.
func blank(secret *unstructured.Unstructured, key string) bool {
	return strings.TrimSpace(decoded(secret, key)) == ""
}

func decoded(secret *unstructured.Unstructured, key string) string {
	value, err := base64.StdEncoding.DecodeString(stringAt(secret, "data", key))
	if err != nil {
		return ""
	}
	return string(value)
}

// accountOf returns the account in the first ARN that has one:
// arn:partition:service:region:account:resource.
func accountOf(arns []string) string {
	for _, arn := range arns {
		if parts := strings.SplitN(arn, ":", 6); len(parts) == 6 && parts[0] == "arn" && parts[4] != "" {
			return parts[4]
		}
	}
	return ""
}

func partitionOf(stated string, arns []string) string {
	if stated != "" {
		return stated
	}
	for _, arn := range arns {
		if parts := strings.SplitN(arn, ":", 6); len(parts) == 6 && parts[0] == "arn" {
			return parts[1]
		}
	}
	return ""
}

// issuerOf returns the URL in the ARN of an OIDC provider,
// arn:aws:iam::account:oidc-provider/host/path.
func issuerOf(arn string) string {
	if _, at, ok := strings.Cut(arn, ":oidc-provider/"); ok && at != "" {
		return "https://" + at
	}
	return ""
}
