package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// LayerSpec is what is pushed to which clusters.
type LayerSpec struct {
	// ClusterSelector selects Cluster API Clusters of this namespace, and
	// hand-written Children, by label. An empty selector selects nothing.
	// +required
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`

	// ReadyWhen gates the first push: ControlPlaneInitialized, Available, or a
	// CEL expression over `cluster` that returns a bool. The Cluster must not be
	// deleting or paused, and its API server must answer, in any case.
	// +kubebuilder:default=ControlPlaneInitialized
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	ReadyWhen string `json:"readyWhen,omitempty"`

	// SourceRef is the source, in this namespace, that holds Path.
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

	// Credentials are Secrets of this namespace that the child needs, created
	// there in the agent's namespace.
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

	// DeletionPolicy says what a child that is no longer selected keeps.
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// Suspend stops pushing this layer; what was pushed stays.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// SourceReference names a source in the same namespace.
type SourceReference struct {
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;Bucket
	// +required
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// PostBuild has the variables that are substituted after the build, as in a
// Kustomization. Inline values win over SubstituteFrom, and both win over the
// variables that come from the Cluster.
type PostBuild struct {
	// +optional
	Substitute map[string]string `json:"substitute,omitempty"`
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	SubstituteFrom []SubstituteReference `json:"substituteFrom,omitempty"`
}

// SubstituteReference names a ConfigMap or Secret whose data are variables.
type SubstituteReference struct {
	// +kubebuilder:validation:Enum=Secret;ConfigMap
	// +required
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// Optional tolerates the absence of the object.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// AgentSpec describes the agent that is installed in a child.
type AgentSpec struct {
	// Image of the agent; by default the parent's own.
	// +optional
	Image string `json:"image,omitempty"`
	// Args are added to the agent's command line.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
	// Decryption hands the child the keys of what its repositories hold
	// encrypted.
	// +optional
	Decryption *AgentDecryption `json:"decryption,omitempty"`
}

// AgentDecryption is the first secret of a child, with which it reads all others.
type AgentDecryption struct {
	// SecretRef is a Secret in the Layer's namespace with age keys, each under a
	// key that ends in .agekey, as for a Kustomization. It is copied to the child,
	// where the agent uses it for every Kustomization that names none.
	// +required
	SecretRef LocalReference `json:"secretRef"`
}

// CredentialReference hands a Secret to the child.
type CredentialReference struct {
	// Name of the Secret in the child, in the namespace of what needs it: the
	// agent's, or the provider's.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// SecretRef is the Secret in the Layer's namespace that is copied.
	// +required
	SecretRef LocalReference `json:"secretRef"`
}

// LocalReference names an object in the same namespace.
type LocalReference struct {
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// LayerReference names another Layer of the same namespace.
type LayerReference struct {
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// LayerStatus summarises the children; it does not grow with the fleet.
type LayerStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Revision of the source that is being pushed.
	// +optional
	Revision string `json:"revision,omitempty"`
	// +optional
	Children ChildCounts `json:"children,omitempty"`
	// Failing names at most ten children on which the layer is not ready.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Failing []Failure `json:"failing,omitempty"`
	// LastHandledReconcileAt is the value of the reconcile request annotation
	// that was handled last.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`
}

// ChildCounts counts the children that a Layer selects.
// The counts have defaults, because a patch of a status that had none carries
// only those that are not zero.
type ChildCounts struct {
	// +kubebuilder:default=0
	// +optional
	Total int32 `json:"total"`
	// +kubebuilder:default=0
	// +optional
	Seeded int32 `json:"seeded"`
	// +kubebuilder:default=0
	// +optional
	Failing int32 `json:"failing"`
	// +kubebuilder:default=0
	// +optional
	Unreachable int32 `json:"unreachable"`
}

// Failure names something that is not as it should be, and why.
type Failure struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	// +optional
	Message string `json:"message,omitempty"`
}

// Layer is a Kustomization fanned out over clusters.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=all;cascade
// +kubebuilder:printcolumn:name="Children",type=integer,JSONPath=`.status.children.total`
// +kubebuilder:printcolumn:name="Seeded",type=integer,JSONPath=`.status.children.seeded`
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
