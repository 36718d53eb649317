package v1alpha1

import "strings"

// Group is the API group of our kinds.
const Group = "cascade.dev"

// MetaConditionKey of the metadata of a Rollout's event names the condition that the event tells of, where that is right
// or wrong beside all else of the Rollout.
const MetaConditionKey = "condition"

// IsFluxGroup reports whether an API group is one of Flux's, such as
// kustomize.toolkit.fluxcd.io and source.extensions.fluxcd.io. Those of Flux's operator are not.
func IsFluxGroup(group string) bool {
	return strings.HasSuffix(group, ".toolkit.fluxcd.io") || strings.HasSuffix(group, ".extensions.fluxcd.io")
}

// AgentName is the name of the agent's objects, and what they have as their
// app.kubernetes.io/name.
const AgentName = "cascade"

// SyncAccount is the service account that a tier with a lockdown syncs itself as, and the name of
// the binding that gives it its rights.
const SyncAccount = "cascade-sync"

// Labels and annotations that users and the agent exchange.
const (
	// DeletionAnnotation, set to DeletionConfirmed in Git on a protected
	// object, is the first of the two commits that delete it.
	DeletionAnnotation = "cascade.dev/deletion"
	// DeletionConfirmed is the value of DeletionAnnotation that confirms.
	DeletionConfirmed = "confirmed"
	// ProtectedLabel, "true" on a Namespace, keeps the API server from deleting it.
	// Namespaces that have a Cluster get it from the agent, unless it is there with
	// another value.
	ProtectedLabel = "cascade.dev/protected"
	// ApprovePruneAnnotation on a Kustomization or Child names the hash of
	// the one prune plan that may pass the empty and shrink guards.
	ApprovePruneAnnotation = "cascade.dev/approve-prune"
	// ApproveRemovalAnnotation on a Layer names the hash of the one removal from children
	// that may pass the guard.
	ApproveRemovalAnnotation = "cascade.dev/approve-removal"
	// ApproveTakeOverAnnotation on a Child names the epoch of another process than any of this
	// tier, <number>/<holder>, from which this tier may take the child over once.
	ApproveTakeOverAnnotation = "cascade.dev/approve-take-over"
	// ApproveRolloutAnnotation on a Rollout lets waves begin: <wave>=<revision> for each,
	// separated by commas. The revision may be a commit or the beginning of one, of 12
	// letters at least, so that an approval is for what the person has seen.
	ApproveRolloutAnnotation = "cascade.dev/approve-rollout"
	// ApprovedByAnnotation beside it says who approves, as the command line found out:
	// <wave>=<name> for each, separated by commas, the name as in a query of a URL. A text
	// without any such entry is the name for all waves.
	ApprovedByAnnotation = "cascade.dev/approved-by"
	// AbortRolloutAnnotation on a Rollout names the revision whose run is to end. Clusters
	// keep what they have, and get no more of it.
	AbortRolloutAnnotation = "cascade.dev/abort-rollout"
	// RevertRolloutAnnotation on a Rollout names the revision that the clusters which have it
	// are to lose again for the last good one.
	RevertRolloutAnnotation = "cascade.dev/revert-rollout"
	// RetryRolloutAnnotation on a Rollout, with another value than before, tries clusters
	// again that failed, and lets a run that halted go on.
	RetryRolloutAnnotation = "cascade.dev/retry-rollout"
	// PinnedAnnotation is on an object that a layer brought and a Rollout pinned there.
	PinnedAnnotation = "cascade.dev/pinned"
	// RolloutRevisionAnnotation on a Cluster, or on a HelmRelease that makes one, is the
	// revision that a Rollout let it have and that was applied. The agent writes it.
	RolloutRevisionAnnotation = "cascade.dev/rollout-revision"
	// ReleasedRevisionAnnotation on a HelmRelease that a Rollout moves is the revision of
	// RolloutRevisionAnnotation at which it was released completely last, values of ConfigMaps
	// and Secrets included, which no generation tells of. The agent writes it.
	ReleasedRevisionAnnotation = "cascade.dev/released-revision"
	// SkipRolloutAnnotation on a Child lets it keep the revision that it has while others get
	// another one: <rollout>=<revision> for each, separated by commas, as in an approval.
	SkipRolloutAnnotation = "cascade.dev/skip-rollout"
	// RemovalFinalizer keeps a Layer of deletionPolicy Delete until its children are rid of
	// what it applied.
	RemovalFinalizer = "cascade.dev/removal"
	// HeldAnnotation on a Kustomization or HelmRelease is what it holds until a
	// person decides: Held in JSON, with the apiVersion that it is written in. The
	// agent writes it.
	HeldAnnotation = "cascade.dev/held"
	// DriftAnnotation on a Kustomization chooses what is done about drift:
	// correct or report. Without it the agent's --drift counts.
	DriftAnnotation = "cascade.dev/drift"
	// LayerLabelGroup prefixes the owner labels of seeded objects, /name and
	// /namespace, which name the parent's Layer.
	LayerLabelGroup = "layer.cascade.dev"
	// InstallLabelGroup does so for the objects of `cascade install`.
	InstallLabelGroup = "install.cascade.dev"
	// UnreadAnnotation is on what the agent has in memory of an object whose spec it cannot read,
	// with what is wrong. Such an object is suspended there, and has the fields that can be read.
	// It is never written.
	UnreadAnnotation = "cascade.dev/unread"
	// VariablePrefix marks annotations of a Cluster that become variables.
	VariablePrefix = "vars.cascade.dev/"
	// OwnerLabel on a Cluster or Child names whom the cluster belongs to, for fleet views.
	OwnerLabel = "cascade.dev/owner"
	// ReportLabel on a Lease of the agent is the digest of its report, so that
	// a parent that knows the one knows whether to read the other.
	ReportLabel = "cascade.dev/report"
	// ShardsLabel on a Lease says how many shards of children the holder serves, and at
	// which renewal it said so.
	ShardsLabel = "cascade.dev/shards"
	// RecordLabel marks the records of layers in a child.
	RecordLabel = "cascade.dev/record"
	// FirstSeedLabel marks, in a parent, the ConfigMaps that remember to which cluster of a
	// name an agent was pushed first.
	FirstSeedLabel = "cascade.dev/first-seed"
	// FirstSyncAnnotation on a Cluster, with the value adopt, says that the cluster takes
	// the place of one that was there before, whatever its name: its agent holds Clusters.
	FirstSyncAnnotation = "cascade.dev/first-sync"
	// ExpiresAnnotation on a Secret that is handed to children says when what it
	// holds lapses, in RFC 3339, where the Secret does not tell by itself.
	ExpiresAnnotation = "cascade.dev/expires-at"
	// CredentialAnnotation on a Secret that a Credential keeps fresh names what it has: the
	// number of the credential. ContentAnnotation has a digest of its data, DeclaredAnnotation
	// one of what was asked for, IssuedAnnotation and RenewAnnotation have times in RFC 3339.
	CredentialAnnotation = "cascade.dev/credential"
	ContentAnnotation    = "cascade.dev/content"
	DeclaredAnnotation   = "cascade.dev/declared"
	IssuedAnnotation     = "cascade.dev/issued-at"
	RenewedAnnotation    = "cascade.dev/renewed-at"
	RenewAnnotation      = "cascade.dev/renew-at"
	// CredentialReadPrefix begins the annotation of a pod template that names the credential
	// with which the pods were started.
	CredentialReadPrefix = "credential.cascade.dev/"
	// CredentialFinalizer keeps a Credential until what it was issued is revoked.
	CredentialFinalizer = "cascade.dev/credential"
	// VaultAddressAnnotation on a ServiceAccount names the Vault servers, separated by commas,
	// that its tokens may be sent to.
	VaultAddressAnnotation = "cascade.dev/vault-address"
	// CredentialsAnnotation on a ServiceAccount names the Credentials, separated by commas,
	// that may have its tokens written into a Secret.
	CredentialsAnnotation = "cascade.dev/credentials"
	// LeasesLabel marks the Secrets in which the agent remembers logins and leases.
	LeasesLabel = "cascade.dev/leases"
	// InputsAnnotation in the metadata of a chart's artifact identifies what the
	// chart was made of.
	InputsAnnotation = "cascade.dev/inputs"
	// PivotAnnotation on a Cluster names the pivot that keeps it paused where it is moved
	// from; on any object where it is moved to, the pivot that made it. It is taken away
	// there when the pivot is through.
	PivotAnnotation = "cascade.dev/pivot"
	// PivotOfAnnotation on an object that a pivot made is the UID of what it is a copy of.
	PivotOfAnnotation = "cascade.dev/pivot-of"
	// PivotKeptAnnotation is on what a pivot left behind without the owners that went, such as
	// a kubeconfig for the parent, so that the way back may take it over. Its value names the
	// pivot.
	PivotKeptAnnotation = "cascade.dev/pivot-kept"
	// PivotLabel marks the journals of pivots: source in the tier that Clusters are moved
	// from, target in the one that they are moved to.
	PivotLabel = "cascade.dev/pivot"
	// RestoringAnnotation is on a Cluster that is being restored and paused for that. Its value
	// identifies the state; RestoredPausedAnnotation beside it says that it stays paused.
	RestoringAnnotation      = "cascade.dev/restoring"
	RestoredPausedAnnotation = "cascade.dev/restored-paused"
	// AgentNamespace is where a seeded agent lives.
	AgentNamespace = "cascade-system"
)

// Names of objects in a child, in AgentNamespace.
const (
	// VariablesConfigMap has the variables of the Cluster, for substituteFrom.
	VariablesConfigMap = "cluster-vars"
	// ReportConfigMap has the report that the child's agent writes.
	ReportConfigMap = "cascade-report"
	// ReportKey is the key in ReportConfigMap.
	ReportKey = "report.json"
	// HintsConfigMap has hints that repositories have something new: those of the parent, who
	// writes HintsOfParentKey, and those of the tier's own Receivers in HintsOfTierKey.
	HintsConfigMap   = "cascade-hints"
	HintsOfParentKey = "parent.json"
	HintsOfTierKey   = "tier.json"
	// RecordPrefix begins the names of the ConfigMaps that have the parent's records,
	// one for each layer, so that a rebuilt parent adopts what is there.
	RecordPrefix = "cascade-layer."
	// SeedConfigMap had the records of all layers in earlier versions.
	SeedConfigMap = "cascade-seed"
	// FirstSeedPrefix begins the names of the ConfigMaps with FirstSeedLabel.
	FirstSeedPrefix = "cascade-first-seed."
	// EpochConfigMap has the processes that led the tier, the last one above all.
	EpochConfigMap = "cascade-epoch"
	// FirstSyncConfigMap has the record of the tier's first sync: its state, and what
	// people said about Clusters.
	FirstSyncConfigMap = "cascade-first-sync"
	// LeaderLease is held by a working agent.
	LeaderLease = "cascade-leader"
	// HeartbeatLease is renewed by a working agent every few seconds, and at once when its
	// report has changed. Its parent watches it.
	HeartbeatLease = "cascade-heartbeat"
	// ParentServiceAccount is who the parent is in the child.
	ParentServiceAccount = "cascade-parent"
)

// States of a tier's first sync, in FirstSyncConfigMap.
const (
	// FirstSyncOpen: Clusters that do not exist are created after a person said that they
	// are new. An agent begins so, and settles when all that Git declares is there.
	FirstSyncOpen = "open"
	// FirstSyncAdopt is the same, said by a person: only a person ends it.
	FirstSyncAdopt = "adopt"
	// FirstSyncSettled: Clusters are created without asking.
	FirstSyncSettled = "settled"
)

// Condition types.
const (
	// ReadyCondition of a Layer: every selected child has it at the observed revision. Of a
	// Child: connected, seeded, and its own agent reports ready.
	ReadyCondition = "Ready"
	// UpstreamCondition of a Rollout with spec.upstream: what the other environment proved
	// last is the candidate.
	UpstreamCondition = "Upstream"
	// PublishedCondition of a Rollout with spec.publish: the last good commit is written down.
	PublishedCondition = "Published"
	// ApprovalTagsCondition of a Rollout with spec.approvalTags: the tags can be read.
	ApprovalTagsCondition = "ApprovalTags"
	// ConnectedCondition of a Child: the API server answered the last call
	// and is the cluster whose identity is recorded.
	ConnectedCondition = "Connected"
	// DriftedCondition of a Kustomization is there while objects are left as
	// somebody else changed them.
	DriftedCondition = "Drifted"
	// OwnershipConflictCondition of a Kustomization is there while another one declares
	// objects that it declares, and both apply them in turn.
	OwnershipConflictCondition = "OwnershipConflict"
	// PruneBlockedCondition of a Kustomization is there while deletes are held.
	PruneBlockedCondition = "PruneBlocked"
	// RemovalHeldCondition of a Layer is there while its removal from children is held.
	RemovalHeldCondition = "RemovalHeld"
	// HandOverPendingCondition of a Kustomization or HelmRelease is there while
	// objects that it no longer declares are kept for the owner that does.
	HandOverPendingCondition = "HandOverPending"
	// SourceFailingCondition of a Kustomization is there while its source cannot be
	// fetched. What the source had before is still applied. Of a HelmRelease it is there while,
	// besides, this process has nothing of the source. Of a Credential it is there while
	// its source does not answer, or refuses; what the Secret has is valid until it lapses.
	SourceFailingCondition = "SourceFailing"
	// AccountMissingCondition of a Kustomization is there while the service account that
	// it is applied as does not exist.
	AccountMissingCondition = "AccountMissing"
	// RolloutPendingCondition of a Kustomization is there while Clusters keep what is in
	// place although the Kustomization declares something else of them. Its reason says why.
	RolloutPendingCondition = "RolloutPending"
	// CreateHeldCondition of a Kustomization or HelmRelease is there while Clusters
	// are not created, lest they be built twice.
	CreateHeldCondition = "CreateHeld"
	// ManagedElsewhereCondition of a Kustomization is there while it declares Clusters that
	// another tier manages; of a Child, while another tier manages its Cluster.
	ManagedElsewhereCondition = "ManagedElsewhere"
	// ManagementCondition of a Child for which a Layer says spec.management tells which tier
	// has its Cluster, and how far it is on its way.
	ManagementCondition = "Management"
	// SeededCondition of a Child: every layer that selects it is applied.
	SeededCondition = "Seeded"
	// ClusterSeededCondition is SeededCondition on the Cluster API Cluster, for
	// its spec.availabilityGates.
	ClusterSeededCondition = "cascade.dev/Seeded"
	// StaticCredentialCondition of a Child or Layer is there while a child is given a Secret
	// that does not lapse, and the Layer does not say that this is meant.
	StaticCredentialCondition = "StaticCredential"
	// NameTakenCondition of a Child that a person added is there while a Cluster of its name
	// exists, which has no Child for that.
	NameTakenCondition = "NameTaken"
	// CredentialsExpiringCondition of a Child is there while a credential that
	// it was given has used two thirds of its life.
	CredentialsExpiringCondition = "CredentialsExpiring"
)

// Reasons, stable because people and alerts match on them.
const (
	ReasonSucceeded            = "Succeeded"
	ReasonProgressing          = "Progressing"
	ReasonSuspended            = "Suspended"
	ReasonPaused               = "Paused"
	ReasonClusterNotReady      = "ClusterNotReady"
	ReasonClusterDeleting      = "ClusterDeleting"
	ReasonKubeconfigMissing    = "KubeconfigMissing"
	ReasonKubeconfigRefused    = "KubeconfigRefused"
	ReasonReferenceInvalid     = "ReferenceInvalid"
	ReasonUnreachable          = "Unreachable"
	ReasonPushTimedOut         = "PushTimedOut"
	ReasonUnauthorized         = "Unauthorized"
	ReasonIdentityChanged      = "IdentityChanged"
	ReasonIdentityConflict     = "IdentityConflict"
	ReasonChildRefused         = "ChildRefused"
	ReasonProfileNotOurs       = "ProfileNotOurs"
	ReasonSuperseded           = "Superseded"
	ReasonRecordInvalid        = "RecordInvalid"
	ReasonNoLayer              = "NoLayer"
	ReasonAgentNotReady        = "AgentNotReady"
	ReasonProviderNotReady     = "ProviderNotReady"
	ReasonContractMismatch     = "ContractMismatch"
	ReasonReportMissing        = "ReportMissing"
	ReasonReportInvalid        = "ReportInvalid"
	ReasonStale                = "Stale"
	ReasonSourceNotReady       = "SourceNotReady"
	ReasonBuildFailed          = "BuildFailed"
	ReasonSeedFailed           = "SeedFailed"
	ReasonForbidden            = "Forbidden"
	ReasonAccessDenied         = "AccessDenied"
	ReasonCredentialMissing    = "CredentialMissing"
	ReasonCredentialsExpiring  = "CredentialsExpiring"
	ReasonCredentialsLapsed    = "CredentialsLapsed"
	ReasonDependencyNotReady   = "DependencyNotReady"
	ReasonHealthCheckFailed    = "HealthCheckFailed"
	ReasonPruneBlocked         = "PruneBlocked"
	ReasonCreateHeld           = "CreateHeld"
	ReasonRemovalHeld          = "RemovalHeld"
	ReasonHandOverPending      = "HandOverPending"
	ReasonDriftDetected        = "DriftDetected"
	ReasonOwnershipConflict    = "OwnershipConflict"
	ReasonPruneFailed          = "PruneFailed"
	ReasonInvalidSpec          = "InvalidSpec"
	ReasonChildrenNotReady     = "ChildrenNotReady"
	ReasonNoChildren           = "NoChildren"
	ReasonKustomizationFailing = "KustomizationFailing"
	ReasonReleaseFailing       = "HelmReleaseFailing"
	ReasonSourceFailing        = "SourceFailing"
	// ReasonNameTaken: an artifact would have the name of an ExternalArtifact that another made.
	ReasonNameTaken      = "NameTaken"
	ReasonAccountMissing = "AccountMissing"
	ReasonWorkerStalled  = "WorkerStalled"

	// Reasons of Credentials, and of what layers hand over.
	ReasonStaticCredential  = "StaticCredential"
	ReasonCredentialRefused = "CredentialRefused"
	ReasonCredentialLapsing = "CredentialLapsing"
	ReasonCredentialLapsed  = "CredentialLapsed"
	ReasonVaultUnreachable  = "VaultUnreachable"
	ReasonVaultRefused      = "VaultRefused"
	ReasonAnswerInvalid     = "AnswerInvalid"
	ReasonRevocationPending = "RevocationPending"
	ReasonTooManyLeases     = "TooManyLeases"
	// ReasonKindRemoved: the definition of the kind is being deleted; the object is let go of.
	ReasonKindRemoved    = "KindRemoved"
	ReasonFileUnreadable = "FileUnreadable"
	ReasonRestartFailed  = "RestartFailed"

	// Reasons of Rollouts, and of layers that wait for one.
	ReasonRolloutPending         = "RolloutPending"
	ReasonAwaitingApproval       = "AwaitingApproval"
	ReasonOutsideWindow          = "OutsideWindow"
	ReasonSoaking                = "Soaking"
	ReasonRolloutHalted          = "RolloutHalted"
	ReasonReverting              = "Reverting"
	ReasonReverted               = "Reverted"
	ReasonAborted                = "Aborted"
	ReasonDeadlineExceeded       = "DeadlineExceeded"
	ReasonNotReadyBefore         = "NotReadyBefore"
	ReasonRollingOut             = "RollingOut"
	ReasonWaveUnproven           = "WaveUnproven"
	ReasonUnsupportedVersionStep = "UnsupportedVersionStep"
	ReasonRolloutConflict        = "RolloutConflict"
	ReasonRevisionMissing        = "RevisionMissing"
	ReasonControlPlaneUnreadable = "ControlPlaneUnreadable"
	ReasonAwaitingRoom           = "AwaitingRoom"
	ReasonParentOlder            = "ParentOlder"

	// Reasons of what travels between environments as references of a repository.
	ReasonAwaitingUpstream    = "AwaitingUpstream"
	ReasonUpstreamMissing     = "UpstreamMissing"
	ReasonUpstreamUnreadable  = "UpstreamUnreadable"
	ReasonUpstreamUnverified  = "UpstreamUnverified"
	ReasonUpstreamInvalid     = "UpstreamInvalid"
	ReasonUpstreamWentBack    = "UpstreamWentBack"
	ReasonUpstreamNotOnBranch = "UpstreamNotOnBranch"
	ReasonPublishFailed       = "PublishFailed"
	ReasonPublishConflict     = "PublishConflict"
	ReasonTagsUnreadable      = "TagsUnreadable"
	ReasonTagRefused          = "TagRefused"

	// Reasons of Clusters on their way between tiers.
	ReasonManagedElsewhere = "ManagedElsewhere"
	ReasonManagedHere      = "ManagedHere"
	// ReasonKubeconfigNotRenewed of the condition ManagedElsewhere of a Child: the kubeconfig that was left
	// here does not follow the one that the cluster renews.
	ReasonKubeconfigNotRenewed = "KubeconfigNotRenewed"
	ReasonPivotWaiting         = "PivotWaiting"
	ReasonPivotRunning         = "PivotRunning"
	ReasonPivotBlocked         = "PivotBlocked"
	ReasonPivotFailed          = "PivotFailed"

	// Reasons of StateBackups. ReasonBackupStale: the last success is too old.
	ReasonBackupRefused     = "BackupRefused"
	ReasonRestorePending    = "RestorePending"
	ReasonStateUnreadable   = "StateUnreadable"
	ReasonStateLocked       = "StateLocked"
	ReasonEncryptionFailed  = "EncryptionFailed"
	ReasonDestinationFailed = "DestinationFailed"
	ReasonBackupStale       = "BackupStale"

	// Reasons of what a tier below counts as wrong beside what it syncs.
	ReasonCredentialsFailing = "CredentialsFailing"
	ReasonBackupsFailing     = "BackupsFailing"
	ReasonBackupsStale       = "BackupsStale"

	// ReasonStorageVersionDropped: a provider's definition lacks the version in which the
	// child stores objects.
	ReasonStorageVersionDropped = "StorageVersionDropped"
)
