package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CredentialSpec is where a credential comes from, and the Secret that has it. The agent of
// the tier that needs the credential gets it, and replaces it before it lapses.
// +kubebuilder:validation:XValidation:rule="(has(self.vault) ? 1 : 0) + (has(self.serviceAccountToken) ? 1 : 0) + (has(self.file) ? 1 : 0) == 1",message="set exactly one of vault, serviceAccountToken and file"
// +kubebuilder:validation:XValidation:rule=`(has(self.target) && has(self.target.name) ? self.target.name : "") == (has(oldSelf.target) && has(oldSelf.target.name) ? oldSelf.target.name : "")`,message="target.name cannot be changed, because what reads the Secret would lose it: make another Credential"
type CredentialSpec struct {
	// Vault gets it from HashiCorp Vault or OpenBao.
	// +optional
	Vault *VaultSource `json:"vault,omitempty"`

	// ServiceAccountToken is a token of a service account of this namespace, which the
	// account allows by its annotation cascade.dev/credentials.
	// +optional
	ServiceAccountToken *ServiceAccountTokenSource `json:"serviceAccountToken,omitempty"`

	// File is read below the agent's --credential-files; for Credentials of the agent's own
	// namespace only.
	// +optional
	File *FileSource `json:"file,omitempty"`

	// Target is the Secret that gets the credential.
	// +optional
	Target CredentialTarget `json:"target,omitempty"`

	// Restart names what reads the credential only when it starts: it is restarted when the
	// Secret has another one. What was there before stays valid until then.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Restart []CredentialReader `json:"restart,omitempty"`

	// RenewBefore is how long before the end the credential is renewed or replaced; by
	// default when two thirds of its life are over, and never before half of it is.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	RenewBefore *metav1.Duration `json:"renewBefore,omitempty"`

	// Interval at which a source is read again that does not say when its content lapses.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:default="10m"
	// +optional
	Interval metav1.Duration `json:"interval,omitempty"`

	// Grace is for how long a credential that was replaced stays valid for those who have
	// not read the new one yet.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:default="2m"
	// +optional
	Grace metav1.Duration `json:"grace,omitempty"`

	// RevokeOnDelete revokes what is valid when the Credential is deleted, which waits for
	// that: until the server did it, or until all of it has lapsed.
	// +kubebuilder:default=true
	// +optional
	RevokeOnDelete *bool `json:"revokeOnDelete,omitempty"`

	// Suspend stops renewals; what is there stays until it lapses.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// VaultSource is a request to a Vault server, and how the agent logs in for it.
type VaultSource struct {
	// Address of the server. The login goes there only if the address is one that the
	// operator named with --vault-address, or that the service account or Secret of the login
	// names: docs/credentials.md.
	// +kubebuilder:validation:Pattern="^https?://[^/?#@]+(/[^?#]*)?$"
	// +kubebuilder:validation:MaxLength=512
	// +required
	Address string `json:"address"`
	// Namespace of Vault, of editions that have them.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// CASecretRef names a Secret whose ca.crt is trusted instead of the system's authorities.
	// +optional
	CASecretRef *LocalReference `json:"caSecretRef,omitempty"`
	// Auth is how the agent logs in.
	// +required
	Auth VaultAuth `json:"auth"`
	// Request whose answer has the credential.
	// +required
	Request VaultRequest `json:"request"`
}

// VaultAuth is one way to log in to Vault.
// +kubebuilder:validation:XValidation:rule="(has(self.kubernetes) ? 1 : 0) + (has(self.jwt) ? 1 : 0) + (has(self.appRole) ? 1 : 0) + (has(self.cert) ? 1 : 0) == 1",message="set exactly one of kubernetes, jwt, appRole and cert"
type VaultAuth struct {
	// Kubernetes logs in with a token of a service account, which Vault shows to this cluster.
	// +optional
	Kubernetes *VaultKubernetesAuth `json:"kubernetes,omitempty"`
	// JWT logs in with a token that Vault verifies by itself.
	// +optional
	JWT *VaultJWTAuth `json:"jwt,omitempty"`
	// AppRole logs in with a role ID and a secret ID.
	// +optional
	AppRole *VaultAppRoleAuth `json:"appRole,omitempty"`
	// Cert logs in with a client certificate.
	// +optional
	Cert *VaultCertAuth `json:"cert,omitempty"`
}

// VaultKubernetesAuth logs in to the auth method kubernetes.
type VaultKubernetesAuth struct {
	// Mount path of the method.
	// +kubebuilder:default=kubernetes
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern="^([A-Za-z0-9_.-]|\\$\\{[A-Za-z0-9_]+\\})+(/([A-Za-z0-9_.-]|\\$\\{[A-Za-z0-9_]+\\})+)*$"
	// +optional
	Mount string `json:"mount,omitempty"`
	// Role in the method.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +required
	Role string `json:"role"`
	// ServiceAccountName in the namespace of the Credential.
	// +kubebuilder:default=cascade-vault
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Audiences of the token. A token for the API server itself goes only to servers of
	// --vault-address.
	// +kubebuilder:default={vault}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +optional
	Audiences []string `json:"audiences,omitempty"`
}

// VaultJWTAuth logs in to the auth method jwt.
// +kubebuilder:validation:XValidation:rule="has(self.serviceAccountName) != has(self.secretRef)",message="set one of serviceAccountName and secretRef"
type VaultJWTAuth struct {
	// Mount path of the method.
	// +kubebuilder:default=jwt
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern="^([A-Za-z0-9_.-]|\\$\\{[A-Za-z0-9_]+\\})+(/([A-Za-z0-9_.-]|\\$\\{[A-Za-z0-9_]+\\})+)*$"
	// +optional
	Mount string `json:"mount,omitempty"`
	// Role in the method.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +required
	Role string `json:"role"`
	// ServiceAccountName whose token is used.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Audiences of that token.
	// +kubebuilder:default={vault}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +optional
	Audiences []string `json:"audiences,omitempty"`
	// SecretRef names a Secret whose key token is used.
	// +optional
	SecretRef *LocalReference `json:"secretRef,omitempty"`
}

// VaultAppRoleAuth logs in to the auth method approle.
type VaultAppRoleAuth struct {
	// Mount path of the method.
	// +kubebuilder:default=approle
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern="^([A-Za-z0-9_.-]|\\$\\{[A-Za-z0-9_]+\\})+(/([A-Za-z0-9_.-]|\\$\\{[A-Za-z0-9_]+\\})+)*$"
	// +optional
	Mount string `json:"mount,omitempty"`
	// RoleID of the role.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +required
	RoleID string `json:"roleID"`
	// SecretRef names a Secret whose key secret-id is used.
	// +required
	SecretRef LocalReference `json:"secretRef"`
}

// VaultCertAuth logs in to the auth method cert.
type VaultCertAuth struct {
	// Mount path of the method.
	// +kubebuilder:default=cert
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern="^([A-Za-z0-9_.-]|\\$\\{[A-Za-z0-9_]+\\})+(/([A-Za-z0-9_.-]|\\$\\{[A-Za-z0-9_]+\\})+)*$"
	// +optional
	Mount string `json:"mount,omitempty"`
	// Role of the method; without one all that know the certificate's authority are tried.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Role string `json:"role,omitempty"`
	// SecretRef names a Secret with tls.crt and tls.key.
	// +required
	SecretRef LocalReference `json:"secretRef"`
}

// VaultRequest is what is asked of a secrets engine.
type VaultRequest struct {
	// Path below /v1, such as aws/creds/capa, pki/issue/agents or kv/data/git.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern="^[^/?#\\s][^?#\\s]*$"
	// +required
	Path string `json:"path"`
	// Method of the request.
	// +kubebuilder:validation:Enum=GET;PUT;POST
	// +kubebuilder:default=GET
	// +optional
	Method string `json:"method,omitempty"`
	// Parameters of the request, of a GET in its query.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Parameters map[string]string `json:"parameters,omitempty"`
}

// ServiceAccountTokenSource is a token that the API server issues.
type ServiceAccountTokenSource struct {
	// ServiceAccountName in the namespace of the Credential.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	ServiceAccountName string `json:"serviceAccountName"`
	// Audiences of the token: whom it is shown to.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +required
	Audiences []string `json:"audiences"`
	// Lifetime of the token. An API server may give it another one.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:default="1h"
	// +optional
	Lifetime metav1.Duration `json:"lifetime,omitempty"`
}

// FileSource is a file that something beside the agent keeps fresh.
type FileSource struct {
	// Path below the agent's --credential-files.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +required
	Path string `json:"path"`
}

// CredentialTarget is the Secret that gets a credential.
type CredentialTarget struct {
	// Name of the Secret, by default that of the Credential.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
	// +optional
	Name string `json:"name,omitempty"`
	// Type of the Secret.
	// +kubebuilder:default=Opaque
	// +optional
	Type corev1.SecretType `json:"type,omitempty"`
	// Data of the Secret, by key. Without any, each field of the answer is a key.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Data map[string]CredentialValue `json:"data,omitempty"`
}

// CredentialValue is one value of a Secret.
// +kubebuilder:validation:XValidation:rule="has(self.from) != has(self.value)",message="set one of from and value"
type CredentialValue struct {
	// From is a field of the answer: access_key, or data.password of a field within a field.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +optional
	From string `json:"from,omitempty"`
	// Value is a text in which ${field} stands for a field of the answer, and $${ for ${.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	// +optional
	Value string `json:"value,omitempty"`
}

// CredentialReader reads a credential only when it starts.
type CredentialReader struct {
	// Kind of the object.
	// +kubebuilder:validation:Enum=Deployment
	// +kubebuilder:default=Deployment
	// +optional
	Kind string `json:"kind,omitempty"`
	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// CredentialStatus is how long the credential is valid, and what becomes of it.
type CredentialStatus struct {
	// ObservedGeneration is the generation that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready, with the reasons of docs/reasons.md, and SourceFailing while the
	// source does not answer or refuses.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// IssuedAt is when what the Secret has was issued.
	// +optional
	IssuedAt *metav1.Time `json:"issuedAt,omitempty"`
	// LastRenewal is when its life was made longer, or when it was issued.
	// +optional
	LastRenewal *metav1.Time `json:"lastRenewal,omitempty"`
	// RenewAt is when it is renewed or replaced.
	// +optional
	RenewAt *metav1.Time `json:"renewAt,omitempty"`
	// ExpiresAt is when it lapses; absent if nothing says when.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
	// Failures are attempts that failed since the last success.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// Unrevoked are leases of earlier credentials that are not revoked yet.
	// +optional
	Unrevoked int32 `json:"unrevoked,omitempty"`
	// LastHandledReconcileAt is the value of the reconcile request annotation that was
	// handled last.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`
}

// Credential is a credential that lapses, kept fresh in a Secret.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:categories=all;cascade
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 230",message="the name has 230 letters at most"
// +kubebuilder:printcolumn:name="Renewed",type=date,JSONPath=`.status.lastRenewal`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.status.expiresAt`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Credential struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   CredentialSpec   `json:"spec,omitempty"`
	Status CredentialStatus `json:"status,omitempty"`
}

// CredentialList is a list of Credentials.
// +kubebuilder:object:root=true
type CredentialList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Credential `json:"items"`
}

// SecretName is the name of the Secret that has the credential.
func (c *Credential) SecretName() string {
	if c.Spec.Target.Name != "" {
		return c.Spec.Target.Name
	}
	return c.Name
}

// GetConditions returns the conditions of the status, as Flux's kinds do.
func (c *Credential) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions sets the conditions of the status.
func (c *Credential) SetConditions(conditions []metav1.Condition) { c.Status.Conditions = conditions }
