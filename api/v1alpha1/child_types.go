package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ChildSpec says how the cluster is reached: through the Cluster API Cluster
// that made it, or by a kubeconfig for a cluster made by other means; or that it is the
// tier's own.
// +kubebuilder:validation:XValidation:rule="[has(self.clusterRef), has(self.kubeConfig), has(self.inCluster) && self.inCluster].filter(x, x).size() == 1",message="exactly one of clusterRef, kubeConfig and inCluster must be set"
type ChildSpec struct {
	// ClusterRef names the Cluster API Cluster in the same namespace. The agent
	// creates such a Child for each Cluster, under the Cluster's name.
	// +optional
	ClusterRef *LocalReference `json:"clusterRef,omitempty"`
	// KubeConfig reaches a cluster that Cluster API did not make.
	// +optional
	KubeConfig *KubeConfigReference `json:"kubeConfig,omitempty"`
	// InCluster: it is the cluster that this tier runs in, reached with the agent's own
	// rights. Layers bring into it what they bring into children, Cluster API and its
	// providers for example, but no agent: it has one.
	// +optional
	InCluster bool `json:"inCluster,omitempty"`
	// Suspend: no layer is pushed to the child, and none is removed from it. What is in
	// place stays, and the child goes on to follow its own repositories.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// KubeConfigReference says how a cluster is reached, in the words of a Kustomization's
// spec.kubeConfig.
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) != has(self.configMapRef)",message="exactly one of secretRef and configMapRef must be set"
type KubeConfigReference struct {
	// SecretRef names the Secret that holds a kubeconfig.
	// +optional
	SecretRef *SecretKeyReference `json:"secretRef,omitempty"`
	// ConfigMapRef names a ConfigMap in the same namespace that says which cluster of which
	// cloud it is, as Flux reads it: provider (aws, azure, gcp or generic), cluster, address,
	// ca.crt, audiences and serviceAccountName. No credential is stored: the identity of the
	// service account, or of the agent, is exchanged for a token.
	// +optional
	ConfigMapRef *LocalReference `json:"configMapRef,omitempty"`
}

// SecretKeyReference names a Secret in the same namespace, and a key in it.
type SecretKeyReference struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// Key defaults to `value`.
	// +optional
	Key string `json:"key,omitempty"`
}

// ChildStatus is what is known of a child, and what was done to it. One manager owns it as a
// whole: to tell who owns which of its fields would be a third of the Child.
// +structType=atomic
type ChildStatus struct {
	// ObservedGeneration is the generation of the Child that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Identity is recorded on the first contact. A different cluster that
	// answers later under the same name is never written to.
	// +optional
	Identity *ChildIdentity `json:"identity,omitempty"`
	// Conditions: Connected, Seeded and Ready, with the reasons of docs/reasons.md.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Layers that were pushed to the child.
	// +listType=map
	// +listMapKey=name
	// +optional
	Layers []ChildLayer `json:"layers,omitempty"`
	// Rollouts are the revisions that Rollouts allow the child to have.
	// +listType=map
	// +listMapKey=name
	// +optional
	Rollouts []ChildRollout `json:"rollouts,omitempty"`
	// Report is what the child's own agent said last.
	// +optional
	Report *Report `json:"report,omitempty"`
	// Credentials that the child was given.
	// +listType=map
	// +listMapKey=name
	// +optional
	Credentials []ChildCredential `json:"credentials,omitempty"`
	// MovingTo is where this tier began to bring the management of the Cluster, until it is there.
	// +optional
	MovingTo Management `json:"movingTo,omitempty"`
	// SupersededBy is the process outside of this tier's history that took the child over,
	// while this tier writes nothing for that.
	// +optional
	SupersededBy *Epoch `json:"supersededBy,omitempty"`
	// Version of Kubernetes in the child.
	// +optional
	Version string `json:"version,omitempty"`
	// Provider of the child's infrastructure, as in variable cluster_provider.
	// +optional
	Provider string `json:"provider,omitempty"`
	// Region of the child, as in variable cluster_region.
	// +optional
	Region string `json:"region,omitempty"`
	// Endpoint is the host of the API server as the Cluster states it, for people and
	// inventories: the parent goes by the kubeconfig.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// HeardAt is when the child was last heard of, and is there only while that is
	// longer ago than three observe intervals. The report is as old, then.
	// +optional
	HeardAt *metav1.Time `json:"heardAt,omitempty"`
	// LastHandledReconcileAt is the value of the reconcile request annotation
	// that was handled last.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`
}

// Epoch names a process that leads a tier.
type Epoch struct {
	// Number grows whenever another process takes the tier over.
	Number int64 `json:"number"`
	// Holder is the process, and no other one ever.
	Holder string `json:"holder"`
}

// ChildIdentity ties a name to one cluster.
type ChildIdentity struct {
	// ClusterUID is the UID of the Cluster API Cluster, empty for a cluster
	// that Cluster API did not make.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`
	// KubeSystemUID is the UID of the kube-system Namespace in the child.
	KubeSystemUID string `json:"kubeSystemUID"`
	// SeededAs is the UID of the Cluster under which the child was seeded first,
	// if it was another one: a Cluster that is restored from a backup gets a new UID.
	// Its variable cluster_uid stays what it was, and so does what is made of it.
	// +optional
	SeededAs string `json:"seededAs,omitempty"`
	// TakingOver is there from the first contact until the records that another
	// management cluster left in the child are marked as this tier's.
	// +optional
	TakingOver bool `json:"takingOver,omitempty"`
}

// ChildLayer is the record of one layer on one child.
type ChildLayer struct {
	// Name of the Layer.
	Name string `json:"name"`
	// Revision of the source that was applied completely last.
	// +optional
	Revision string `json:"revision,omitempty"`
	// Digest of the rendering that was applied completely last.
	// +optional
	Digest string `json:"digest,omitempty"`
	// LastAttemptedRevision is the revision that was sent last, perhaps in part.
	// +optional
	LastAttemptedRevision string `json:"lastAttemptedRevision,omitempty"`
	// LastAttemptedDigest is that of the rendering that was sent last, perhaps in part.
	// +optional
	LastAttemptedDigest string `json:"lastAttemptedDigest,omitempty"`
	// ObservedGeneration is the generation of the Layer that was handled on this child last.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// LastHandledReconcileAt is the reconcile request of the Layer that was handled on this
	// child last.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`
	// Ready: applied and, where the Layer says wait, healthy.
	Ready bool `json:"ready"`
	// Reason of Ready.
	Reason string `json:"reason"`
	// Message says more of the reason, to people.
	// +optional
	Message string `json:"message,omitempty"`
	// Suspended: a person suspended the Layer, so that nothing is pushed. The other
	// fields are of the last push.
	// +optional
	Suspended bool `json:"suspended,omitempty"`
	// Held is what the layer does not do in this child until a person decides.
	// +optional
	Held *Held `json:"held,omitempty"`
	// Since is when Ready or Reason changed.
	Since metav1.Time `json:"since"`
	// AgentImage of the layer, of the revision that was applied completely last, where the layer
	// installs the agent.
	// +optional
	AgentImage string `json:"agentImage,omitempty"`
	// Past names the Rollout past which the layer, or an object in it, was applied, as the last run
	// found: by a version that knows no Rollouts, or before the Rollout came. Nothing is pushed
	// before the Rollout goes on from what is there.
	// +optional
	Past string `json:"past,omitempty"`
	// Objects that the layer answers for in this child.
	// +optional
	Objects int32 `json:"objects,omitempty"`
	// DeletionPolicy as of the last push. What a Layer left that is gone stays, whatever it
	// says.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// Inventory is where earlier versions kept the objects that the layer answers for in
	// this child. It is in the child now, and removed here when it was written there.
	// +listType=atomic
	// +optional
	Inventory []InventoryEntry `json:"inventory,omitempty"`
}

// InventoryEntry locates one object: id is <namespace>_<name>_<group>_<Kind>.
type InventoryEntry struct {
	// ID is <namespace>_<name>_<group>_<Kind>.
	ID string `json:"id"`
	// Version of the kind's API.
	Version string `json:"v"`
}

// ChildCredential is a credential that the child was given.
type ChildCredential struct {
	// Name of the Secret in the child; of one that a provider is handed, behind the
	// provider's label: infrastructure-aws/credentials.
	Name string `json:"name"`
	// ExpiresAt is when what the Secret holds lapses, as far as that is known.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
	// RenewAt is when two thirds of its life are over, or later if the Credential that keeps the
	// copied Secret fresh renews it later.
	// +optional
	RenewAt *metav1.Time `json:"renewAt,omitempty"`
	// From is Vault for one that the child's agent asks a Vault server for, and renews; absent
	// for a copy of a Secret.
	// +optional
	From string `json:"from,omitempty"`
	// Layer that hands it over.
	// +optional
	Layer string `json:"layer,omitempty"`
	// Unlimited: nothing says when it lapses, and its Layer does not say that this is meant.
	// +optional
	Unlimited bool `json:"unlimited,omitempty"`
}

// CredentialFromVault is where a child's credential comes from that its agent asks for.
const CredentialFromVault = "Vault"

// Report is what an agent says of its own tier and, rolled up, of the tiers
// below. It is bounded: Tiers has at most 100 rows, those that are not ready
// first, and the counts always cover all.
type Report struct {
	// Agent is the version of the agent.
	// +optional
	Agent string `json:"agent,omitempty"`
	// Revision of the tier's sources, `name=revision` when there are several. Where all
	// of these are too long, the last part says how many are left out, with a digest of
	// all: `a=main@sha1:...,+41 sha256:0123456789abcdef`.
	// +optional
	Revision string `json:"revision,omitempty"`
	// Brought is what layers brought of what a Rollout of the parent can move. Nil stands for
	// an agent of before, which does not tell.
	// +optional
	Brought *ReportBrought `json:"brought,omitempty"`
	// Ready: what the tier syncs is ready, and no Rollout of it came to a halt. Children has
	// the clusters below.
	Ready bool `json:"ready"`
	// Reason of Ready.
	Reason string `json:"reason"`
	// Message says more of the reason, to people.
	// +optional
	Message string `json:"message,omitempty"`
	// Since is when Ready or Reason changed.
	Since metav1.Time `json:"since"`
	// Objects that the tier's Kustomizations answer for.
	Objects int32 `json:"objects"`
	// Suspended counts the tier's sources, Kustomizations and HelmReleases that a person
	// suspended. When all of the latter two are, the tier is not ready, but Suspended.
	// +optional
	Suspended int32 `json:"suspended,omitempty"`
	// Failing names at most ten objects of the tier that are not ready, among them three at
	// most of the Credentials and StateBackups that Faults counts.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Failing []Failure `json:"failing,omitempty"`
	// Children counts the clusters below, at any depth.
	// +optional
	Children *ReportCounts `json:"children,omitempty"`
	// Rollouts counts those of the tier; nil stands for none.
	// +optional
	Rollouts *ReportRollouts `json:"rollouts,omitempty"`
	// Faults counts what is wrong in the tier although what it syncs may be ready; nil stands
	// for nothing, or for an agent that does not tell.
	// +optional
	Faults *ReportFaults `json:"faults,omitempty"`
	// Tiers has a row for each cluster below, at any depth.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Tiers []TierRow `json:"tiers,omitempty"`
}

// ReportBrought tells of sources and HelmReleases that layers brought.
type ReportBrought struct {
	// Objects with what each has: a Rollout finds the one that it moves by its kind, namespace
	// and name. Those that a Rollout pinned come first.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	Objects []ReportedSource `json:"objects,omitempty"`
	// More counts those that there was no room for.
	// +optional
	More int32 `json:"more,omitempty"`
	// Complete: Objects are all that have anything. An agent of before, which left out
	// HelmReleases at a version that no pin can name, does not tell.
	// +optional
	Complete bool `json:"complete,omitempty"`
}

// ReportedSource is a source or HelmRelease with what it has.
type ReportedSource struct {
	// Kind is GitRepository, OCIRepository or HelmRelease.
	Kind string `json:"kind"`
	// Namespace of the object.
	Namespace string `json:"namespace"`
	// Name of the object.
	Name string `json:"name"`
	// Revision that all who refer to a source have tried; of a HelmRelease the version of its
	// chart, empty if it has one that no pin can name.
	Revision string `json:"revision"`
}

// ReportRollouts counts Rollouts.
type ReportRollouts struct {
	// Pending are on their way, or have a newer revision to begin with.
	// +optional
	Pending int32 `json:"pending,omitempty"`
	// Failed came to a halt, or were turned back.
	// +optional
	Failed int32 `json:"failed,omitempty"`
}

// ReportFaults counts what does not keep a tier from being ready now, and will sooner or
// later: credentials that are not renewed, and a state that is not saved.
type ReportFaults struct {
	// CredentialsFailing cannot be issued or renewed, and have not lapsed.
	// +optional
	CredentialsFailing int32 `json:"credentialsFailing,omitempty"`
	// CredentialsLapsed are not valid any more.
	// +optional
	CredentialsLapsed int32 `json:"credentialsLapsed,omitempty"`
	// BackupsFailing could not be made the last time, and are not too old.
	// +optional
	BackupsFailing int32 `json:"backupsFailing,omitempty"`
	// BackupsStale are older than their StateBackups allow.
	// +optional
	BackupsStale int32 `json:"backupsStale,omitempty"`
}

// ReportCounts counts clusters.
type ReportCounts struct {
	// Total is how many there are.
	Total int32 `json:"total"`
	// Ready is how many of them are ready.
	Ready int32 `json:"ready"`
	// Suspended clusters are not ready.
	// +optional
	Suspended int32 `json:"suspended,omitempty"`
	// Stale clusters are not ready: nobody knows how they are now.
	// +optional
	Stale int32 `json:"stale,omitempty"`
	// Updating counts the layers that are on their way to clusters which are ready with an
	// earlier revision of theirs, once for each cluster. An agent of an earlier version does
	// not tell.
	// +optional
	Updating int32 `json:"updating,omitempty"`
	// ByReason counts all clusters by their reason, the most common first. The entry
	// with an empty name is all others.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	ByReason []NamedCount `json:"byReason,omitempty"`
	// ByRevision does so by their revision. Those without one are among the others.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	ByRevision []NamedCount `json:"byRevision,omitempty"`
	// Faults of all these clusters, added up; nil stands for none.
	// +optional
	Faults *ReportFaults `json:"faults,omitempty"`
}

// NamedCount is how many have something in common.
type NamedCount struct {
	// Name is what they have in common: a reason, or a revision.
	// +optional
	Name string `json:"name,omitempty"`
	// Count is how many have it.
	Count int32 `json:"count"`
}

// TierRow is one cluster below the tier that reports.
type TierRow struct {
	// Path of names from the reporting tier down, `<namespace>/<name>` each,
	// joined by `>`.
	Path string `json:"path"`
	// Revision of the cluster's sources.
	// +optional
	Revision string `json:"revision,omitempty"`
	// Ready as the Child says it, or the cluster's own report.
	Ready bool `json:"ready"`
	// Suspended: what syncs the cluster is suspended, so that it is not ready.
	// +optional
	Suspended bool `json:"suspended,omitempty"`
	// Reason of Ready.
	Reason string `json:"reason"`
	// Message says more of the reason, to people.
	// +optional
	Message string `json:"message,omitempty"`
	// Cause is the object for which the cluster is not ready, and why that is not; nil if the
	// cluster itself is all that is known.
	// +optional
	Cause *TierCause `json:"cause,omitempty"`
	// Since is when Ready or Reason changed.
	Since metav1.Time `json:"since"`
	// Heard is when the cluster was last heard of, and is there only while that is too
	// long ago: the rest of the row is as of then.
	// +optional
	Heard *metav1.Time `json:"heard,omitempty"`
	// Version of Kubernetes in the cluster.
	// +optional
	Version string `json:"version,omitempty"`
	// Owner is the label cascade.dev/owner of the Child.
	// +optional
	Owner string `json:"owner,omitempty"`
	// Provider of the cluster's infrastructure.
	// +optional
	Provider string `json:"provider,omitempty"`
	// Region of the cluster's infrastructure.
	// +optional
	Region string `json:"region,omitempty"`
	// Faults of the cluster's own tier; nil stands for none.
	// +optional
	Faults *ReportFaults `json:"faults,omitempty"`
}

// TierCause is an object for which a cluster is not ready: a Layer of the tier above it, or an
// object of any other kind in the cluster.
type TierCause struct {
	// Kind of the object.
	Kind string `json:"kind"`
	// Namespace of the object.
	Namespace string `json:"namespace"`
	// Name of the object.
	Name string `json:"name"`
	// Reason why the object is not ready.
	Reason string `json:"reason"`
}

// Child is one connected cluster.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=children,categories=all;cascade
// +kubebuilder:printcolumn:name="Connected",type=string,JSONPath=`.status.conditions[?(@.type=="Connected")].status`
// +kubebuilder:printcolumn:name="Seeded",type=string,JSONPath=`.status.conditions[?(@.type=="Seeded")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.metadata.labels.cascade\.dev/owner`
// +kubebuilder:printcolumn:name="Environment",type=string,JSONPath=`.metadata.labels.environment`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Provider",type=string,priority=1,JSONPath=`.status.provider`
// +kubebuilder:printcolumn:name="Region",type=string,priority=1,JSONPath=`.status.region`
// +kubebuilder:printcolumn:name="Endpoint",type=string,priority=1,JSONPath=`.status.endpoint`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.report.revision`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Child struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ChildSpec   `json:"spec,omitempty"`
	Status ChildStatus `json:"status,omitempty"`
}

// ChildList is a list of Children.
// +kubebuilder:object:root=true
type ChildList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Child `json:"items"`
}

// GetConditions returns the conditions of the status, as Flux's kinds do.
func (c *Child) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions sets the conditions of the status.
func (c *Child) SetConditions(conditions []metav1.Condition) { c.Status.Conditions = conditions }
