package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DeletionPolicy says what a child that is no longer selected keeps.
// +kubebuilder:validation:Enum=Orphan;Delete
type DeletionPolicy string

const (
	// DeletionOrphan leaves everything in the child as it is.
	DeletionOrphan DeletionPolicy = "Orphan"
	// DeletionDelete removes what the layer applied, protected objects excepted.
	DeletionDelete DeletionPolicy = "Delete"
)

// Management says which tier has the objects of Cluster API of a cluster.
// +kubebuilder:validation:Enum=self;parent
type Management string

const (
	// ManagementSelf: the cluster itself.
	ManagementSelf Management = "self"
	// ManagementParent: the tier of the Layer.
	ManagementParent Management = "parent"
)

// LayerSpec is what is pushed to which clusters.
// +kubebuilder:validation:XValidation:rule="!has(self.serviceAccountName) || !has(self.agent)",message="a Layer with a serviceAccountName cannot install an agent, which is administrator of the cluster: put spec.agent into a Layer without one"
// +kubebuilder:validation:XValidation:rule="!has(self.serviceAccountName) || !has(self.providers)",message="a Layer with a serviceAccountName cannot install providers, which are administrators of the cluster: put spec.providers into a Layer without one"
// +kubebuilder:validation:XValidation:rule="!has(self.credentials) || self.credentials.all(c, !has(c.restart))",message="restart is for credentials of providers"
type LayerSpec struct {
	// ClusterSelector selects Cluster API Clusters of this namespace, and
	// hand-written Children, by label. An empty selector selects nothing.
	// +required
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`

	// ReadyWhen gates the first push, and no push after that: ControlPlaneInitialized, Available, or a
	// CEL expression over `cluster` that returns a bool. The Cluster must not be
	// deleting or paused, and its API server must answer, in any case.
	// +kubebuilder:default=ControlPlaneInitialized
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	ReadyWhen string `json:"readyWhen,omitempty"`

	// ServiceAccountName is the service account that the layer is pushed as: in each child
	// the account of this name in the namespace that has the name of this one, and here
	// that of this namespace. In the child it bounds what is applied, read and deleted of
	// the layer; here it bounds which Secrets, ConfigMaps and sources of other namespaces
	// the layer takes. Without it, and without --default-service-account, the layer is
	// pushed with all rights.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// SourceRef is the source that holds Path.
	// +optional
	SourceRef *SourceReference `json:"sourceRef,omitempty"`

	// Path of the directory that is rendered once for each child.
	// +optional
	Path string `json:"path,omitempty"`

	// PostBuild adds variables to those that come from the Cluster.
	// +optional
	PostBuild *PostBuild `json:"postBuild,omitempty"`

	// Agent installs cascade in the child. Omitted, the layer is pushed
	// without an agent.
	// +optional
	Agent *AgentSpec `json:"agent,omitempty"`

	// Providers installs Cluster API in the child, with the providers that are
	// named and no other, before Path is applied.
	// +optional
	Providers *ProvidersSpec `json:"providers,omitempty"`

	// Management says which tier has the objects of Cluster API of the clusters that the layer
	// selects: self, each cluster itself, or parent, this tier. A change of it moves them, with
	// a journal in both tiers; a cluster that manages itself goes on when this tier is gone.
	// It needs Cluster API and the providers in the child. Omitted, nothing is moved.
	// +optional
	Management Management `json:"management,omitempty"`

	// Credentials that the child needs, in the agent's namespace there: Secrets of this
	// namespace, or what the child's agent asks a Vault server for.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Credentials []CredentialReference `json:"credentials,omitempty"`

	// Interval at which the layer is verified in each child and drift corrected.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:default="10m"
	// +optional
	Interval metav1.Duration `json:"interval,omitempty"`

	// Timeout of one push to one child, health included.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:default="5m"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitempty"`

	// Wait makes the layer ready on a child only when all its objects are.
	// +optional
	Wait bool `json:"wait,omitempty"`

	// DependsOn names Layers of this namespace that must be ready on the same
	// child first.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	DependsOn []LayerReference `json:"dependsOn,omitempty"`

	// Prune removes from a child what the layer no longer declares.
	// +kubebuilder:default=true
	// +optional
	Prune bool `json:"prune"`

	// DeletionPolicy says what a child that is no longer selected keeps. With Delete, a
	// removal from many children at once waits for a person, also when the Layer itself is
	// deleted.
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// Suspend stops pushing this layer; what was pushed stays.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// SourceReference names a source.
type SourceReference struct {
	// Kind of the source.
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;Bucket
	// +required
	Kind string `json:"kind"`
	// Name of the source.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// Namespace of the source, by default the Layer's. The service account of the Layer has
	// to have the right to get the source there. A Layer without an account may name other
	// namespaces unless the agent has --no-cross-namespace-refs.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// PostBuild has the variables that are substituted after the build, as in a
// Kustomization. Inline values win over SubstituteFrom, and both win over the
// variables that come from the Cluster.
type PostBuild struct {
	// Substitute has variables and their values.
	// +optional
	Substitute map[string]string `json:"substitute,omitempty"`
	// SubstituteFrom names ConfigMaps and Secrets of this namespace whose data are variables.
	// Those of a later one win.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	SubstituteFrom []SubstituteReference `json:"substituteFrom,omitempty"`
}

// SubstituteReference names a ConfigMap or Secret whose data are variables.
type SubstituteReference struct {
	// Kind of the object.
	// +kubebuilder:validation:Enum=Secret;ConfigMap
	// +required
	Kind string `json:"kind"`
	// Name may have variables in it, as that of a credential.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// Optional tolerates the absence of the object.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// CredentialReference hands a credential to the child: a copy of a Secret, or a Credential
// that the child's own agent keeps fresh.
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) != has(self.vault)",message="set one of secretRef and vault"
// +kubebuilder:validation:XValidation:rule="has(self.vault) || !(has(self.type) || has(self.data) || has(self.renewBefore) || has(self.restart))",message="type, data, renewBefore and restart are for vault: a Secret is copied as it is"
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) || !has(self.static)",message="static is for secretRef: what comes from vault has an end"
type CredentialReference struct {
	// Name of the Secret in the child, in the namespace of what needs it: the
	// agent's, or the provider's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// SecretRef is the Secret in the Layer's namespace that is copied. Its name may have
	// variables in it, as in git-${label_environment}: those of the Cluster, and those of
	// spec.postBuild.substitute.
	// +optional
	SecretRef *LocalReference `json:"secretRef,omitempty"`
	// Static says that what the Secret holds has no end, and that this is meant. Without it,
	// a Secret that does not tell when it lapses is told as StaticCredential.
	// +optional
	Static bool `json:"static,omitempty"`
	// Vault is asked by the child's agent, which keeps the Secret fresh whether this tier is
	// there or not. Texts may have variables in them, as the name of secretRef. The service
	// account of the login is made in the child, for this server, and should be that of
	// nobody else.
	// +optional
	Vault *VaultSource `json:"vault,omitempty"`
	// Type of the Secret.
	// +optional
	Type corev1.SecretType `json:"type,omitempty"`
	// Data of the Secret, by key, as in a Credential.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Data map[string]CredentialValue `json:"data,omitempty"`
	// RenewBefore is how long before its end the credential is replaced.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	RenewBefore *metav1.Duration `json:"renewBefore,omitempty"`
	// Restart of the provider's Deployments when the Secret has another credential; by
	// default of providers that read it only when they start.
	// +optional
	Restart *bool `json:"restart,omitempty"`
}

// LocalReference names an object in the same namespace.
type LocalReference struct {
	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// LayerReference names another Layer of the same namespace.
type LayerReference struct {
	// Name of the Layer.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// LayerStatus summarises the children; it does not grow with the fleet.
// +structType=atomic
type LayerStatus struct {
	// ObservedGeneration is the generation of the Layer that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready, with the reasons of docs/reasons.md.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Revision of the source that is being pushed. Children that have it are counted as
	// current.
	// +optional
	Revision string `json:"revision,omitempty"`
	// Children counts those that the Layer selects.
	// +optional
	Children ChildCounts `json:"children,omitempty"`
	// Failing names at most ten children on which the layer is not ready.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Failing []Failure `json:"failing,omitempty"`
	// LastHandledReconcileAt is the value of the reconcile request annotation that was
	// handled last on every child that can be reached.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`
	// AgentImage is the image of the layer's agents while spec.agent names none: that of the
	// parent's own agent when the parent first saw the layer. The parent's next version leaves
	// it as it is.
	// +optional
	AgentImage string `json:"agentImage,omitempty"`
	// OnRecord counts what the layer applied, selected or not. Earlier versions did not.
	// +optional
	OnRecord *OnRecord `json:"onRecord,omitempty"`
	// Removal is what becomes of children that are not to have the layer any more, with
	// deletionPolicy Delete. No child removes anything that is not granted here.
	// +optional
	Removal *Removal `json:"removal,omitempty"`
}

// OnRecord counts what a layer applied to children.
type OnRecord struct {
	// Children that have something of the layer.
	Children int32 `json:"children"`
	// Objects on all of them together.
	Objects int64 `json:"objects"`
}

// Removal is what becomes of children that have a layer and are not to have it any more.
type Removal struct {
	// Waiting is how many children keep the layer for now: their number is more than may
	// go without a person, or they are looked at for a moment.
	// +optional
	Waiting int32 `json:"waiting,omitempty"`
	// Names of at most ten of those that wait.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Names []string `json:"names,omitempty"`
	// Hash names exactly the children that wait, in this wait.
	// +optional
	Hash string `json:"hash,omitempty"`
	// Since is when these began to wait.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Held: they wait until a person approves Hash, or until none is to lose the layer.
	// +optional
	Held bool `json:"held,omitempty"`
	// Approved is the hash of those whose removal a person approved with others, and whose
	// turn has not come.
	// +optional
	Approved string `json:"approved,omitempty"`
	// Granted are the children from which the layer is being removed. One goes from here
	// when it has nothing of the layer any more.
	// +kubebuilder:validation:MaxItems=500
	// +listType=atomic
	// +optional
	Granted []Grant `json:"granted,omitempty"`
	// Blocked is how many of Granted do not get on: protected objects, a cluster that does
	// not answer.
	// +optional
	Blocked int32 `json:"blocked,omitempty"`
	// Spent are the grants of the last hour that no person approved.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Spent []Spent `json:"spent,omitempty"`
}

// Grant lets a layer be removed from one child.
type Grant struct {
	// Name of the Child.
	Name string `json:"name"`
	// UID of the Child.
	UID types.UID `json:"uid"`
	// At is when it was given.
	At metav1.Time `json:"at"`
}

// Spent counts grants of one minute.
type Spent struct {
	// At is the end of the minute.
	At metav1.Time `json:"at"`
	// Children that got a grant in this minute.
	Children int32 `json:"children"`
}

// ChildCounts counts the children that a Layer selects. Each is counted once besides in
// Total. The counts have defaults, because a patch of a status that had none carries
// only those that are not zero.
type ChildCounts struct {
	// Total is how many children the Layer selects.
	// +kubebuilder:default=0
	// +optional
	Total int32 `json:"total"`
	// Current: the layer is in place at the observed generation and revision.
	// +kubebuilder:default=0
	// +optional
	Current int32 `json:"current"`
	// Updating: the layer is on its way.
	// +kubebuilder:default=0
	// +optional
	Updating int32 `json:"updating"`
	// Failed: the layer could not be rendered, pushed or pruned, or is not healthy.
	// +kubebuilder:default=0
	// +optional
	Failed int32 `json:"failed"`
	// Unreachable: the cluster does not answer, refuses the parent, is another one, or no replica drives it.
	// +kubebuilder:default=0
	// +optional
	Unreachable int32 `json:"unreachable"`
	// Waiting: the cluster is being built or paused, or the layer waits for another one
	// or for its source.
	// +kubebuilder:default=0
	// +optional
	Waiting int32 `json:"waiting"`
	// Elsewhere: another tier manages the Cluster. What the layer brought stays as it is.
	// +kubebuilder:default=0
	// +optional
	Elsewhere int32 `json:"elsewhere"`
	// Suspended: a person suspended the Layer.
	// +kubebuilder:default=0
	// +optional
	Suspended int32 `json:"suspended"`
	// Seeded is what earlier versions called Current.
	// +kubebuilder:default=0
	// +optional
	Seeded int32 `json:"seeded"`
	// Failing is what earlier versions called Failed.
	// +kubebuilder:default=0
	// +optional
	Failing int32 `json:"failing"`
}

// Failure names something that is not as it should be, and why.
type Failure struct {
	// Name of the child, or of the object: <kind>/<namespace>/<name>.
	Name string `json:"name"`
	// Reason why it is not ready.
	Reason string `json:"reason"`
	// Message says more of the reason, to people.
	// +optional
	Message string `json:"message,omitempty"`
}

// Layer is a Kustomization fanned out over clusters.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=all;cascade
// +kubebuilder:printcolumn:name="Children",type=integer,JSONPath=`.status.children.total`
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=`.status.children.current`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.revision`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Layer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LayerSpec   `json:"spec,omitempty"`
	Status LayerStatus `json:"status,omitempty"`
}

// LayerList is a list of Layers.
// +kubebuilder:object:root=true
type LayerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Layer `json:"items"`
}

// GetConditions returns the conditions of the status, as Flux's kinds do.
func (l *Layer) GetConditions() []metav1.Condition { return l.Status.Conditions }

// SetConditions sets the conditions of the status.
func (l *Layer) SetConditions(conditions []metav1.Condition) { l.Status.Conditions = conditions }
