package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StateBackupSpec says when the state of the tier is saved, where to and for whom.
// +kubebuilder:validation:XValidation:rule="has(self.interval) != has(self.schedule)",message="exactly one of interval and schedule must be set"
type StateBackupSpec struct {
	// Interval between two looks at the state. A version is saved when something changed.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Schedule in the format of cron, five fields, in UTC; CRON_TZ=<zone> before it names
	// another time zone.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=200
	// +optional
	Schedule string `json:"schedule,omitempty"`
	// Destination is where versions are kept. No two tiers may have the same.
	// +required
	Destination StateDestination `json:"destination"`
	// Encryption says who can read them.
	// +required
	Encryption StateEncryption `json:"encryption"`
	// KeepLast is how many of its own versions are kept. The newest is never deleted, and none that others saved.
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +optional
	KeepLast int32 `json:"keepLast,omitempty"`
	// StaleAfter is how old the last look may become before it counts as too old: three
	// intervals, or two days of a schedule, if it is not set.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	StaleAfter *metav1.Duration `json:"staleAfter,omitempty"`
	// Timeout of one backup.
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Suspend: nothing is saved, and nothing deleted.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// StateDestination is where versions are kept.
type StateDestination struct {
	// URL of a bucket or of a branch: s3://bucket/prefix?region=R&endpoint=URL,
	// azblob://container/prefix?account=NAME, gs://bucket/prefix,
	// git+https://host/repository?branch=B or git+ssh://git@host/repository?branch=B.
	// +kubebuilder:validation:Pattern="^(s3|azblob|gs|git\\+https|git\\+http|git\\+ssh)://.+$"
	// +kubebuilder:validation:MaxLength=2048
	// +required
	URL string `json:"url"`
	// SecretRef names a Secret in the same namespace, in the keys of Flux's Bucket or
	// GitRepository. Without it a bucket is opened with the identity of the agent.
	// +optional
	SecretRef *LocalReference `json:"secretRef,omitempty"`
	// CertSecretRef names a Secret with ca.crt, tls.crt and tls.key for a bucket.
	// +optional
	CertSecretRef *LocalReference `json:"certSecretRef,omitempty"`
}

// StateEncryption says who can read what is saved. State is never kept unencrypted.
type StateEncryption struct {
	// Recipients are public keys of age (age1...) or SSH, or keys of a key management
	// service: awskms:<ARN>, gcpkms:<name>, azurekv:<URL>, hcvault:<URL>. Any of them opens
	// what is saved.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=20
	// +kubebuilder:validation:items:MinLength=5
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +required
	Recipients []string `json:"recipients"`
}

// StateBackupStatus is what became of the last backups.
type StateBackupStatus struct {
	// ObservedGeneration is the generation that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready, with the reasons of docs/reasons.md.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// LastAttempt is when a backup was tried last.
	// +optional
	LastAttempt *metav1.Time `json:"lastAttempt,omitempty"`
	// LastSuccess is when the newest version was last found to be the present state.
	// +optional
	LastSuccess *metav1.Time `json:"lastSuccess,omitempty"`
	// Destination is the URL where it saves. At another one that has versions already it saves
	// nothing until these cannot be what is to be restored into the tier.
	// +optional
	Destination string `json:"destination,omitempty"`
	// SavedAbove is the newest version that others had saved there when it began to. That one and those
	// before it are not deleted.
	// +optional
	SavedAbove string `json:"savedAbove,omitempty"`
	// EmptySince is when nothing was there any more, although others had saved there. Where all was saved since,
	// the place was made anew: savedAbove does not count for it.
	// +optional
	EmptySince *metav1.Time `json:"emptySince,omitempty"`
	// MovedAway identifies the Clusters that other management clusters had when the newest version was last
	// found to be the present state. Where these are others, it saves at once.
	// +optional
	MovedAway string `json:"movedAway,omitempty"`
	// LastVersion is the newest version: <epoch>-<number>.
	// +optional
	LastVersion string `json:"lastVersion,omitempty"`
	// LastDigest identifies what it has, without telling anything of it.
	// +optional
	LastDigest string `json:"lastDigest,omitempty"`
	// Objects that it has.
	// +optional
	Objects int64 `json:"objects,omitempty"`
	// Bytes that it has, encrypted.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// Versions that are kept.
	// +optional
	Versions int32 `json:"versions,omitempty"`
	// LastHandledReconcileAt is the value of the reconcile request annotation that was
	// handled last.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`
}

// StateBackup saves the state of the tier, encrypted: what Git does not have. It counts in
// the namespace of the agent only, because it has the Secrets of the whole tier.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:categories=all;cascade
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.lastVersion`
// +kubebuilder:printcolumn:name="Success",type=date,JSONPath=`.status.lastSuccess`
// +kubebuilder:printcolumn:name="Objects",type=integer,JSONPath=`.status.objects`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type StateBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   StateBackupSpec   `json:"spec,omitempty"`
	Status StateBackupStatus `json:"status,omitempty"`
}

// StateBackupList is a list of StateBackups.
// +kubebuilder:object:root=true
type StateBackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StateBackup `json:"items"`
}

// GetConditions returns the conditions of the status, as Flux's kinds do.
func (b *StateBackup) GetConditions() []metav1.Condition { return b.Status.Conditions }

// SetConditions sets the conditions of the status.
func (b *StateBackup) SetConditions(conditions []metav1.Condition) { b.Status.Conditions = conditions }
