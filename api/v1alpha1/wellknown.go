package v1alpha1

// Group is the API group of our kinds.
const Group = "cascade.dev"

// AgentName is the name of the agent's objects, and what they have as their
// app.kubernetes.io/name.
const AgentName = "cascade"

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
	// VariablePrefix marks annotations of a Cluster that become variables.
	VariablePrefix = "vars.cascade.dev/"
	// ReportLabel on the agent's Lease is the digest of its report, so that
	// a parent that reads the one knows whether to read the other.
	ReportLabel = "cascade.dev/report"
	// ExpiresAnnotation on a Secret that is handed to children says when what it
	// holds lapses, in RFC 3339, where the Secret does not tell by itself.
	ExpiresAnnotation = "cascade.dev/expires-at"
	// InputsAnnotation in the metadata of a chart's artifact identifies what the
	// chart was made of.
	InputsAnnotation = "cascade.dev/inputs"
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
	// SeedConfigMap has the parent's inventories in the child, so that a
	// rebuilt parent adopts what is there.
	SeedConfigMap = "cascade-seed"
	// FirstSyncConfigMap has the record of the tier's first sync: its state, and what
	// people said about Clusters.
	FirstSyncConfigMap = "cascade-first-sync"
	// LeaderLease is held by a working agent.
	LeaderLease = "cascade-leader"
	// ParentServiceAccount is who the parent is in the child.
	ParentServiceAccount = "cascade-parent"
)

// States of a tier's first sync, in FirstSyncConfigMap.
const (
	// FirstSyncAdopt: Clusters that do not exist are created after a person said
	// that they are new.
	FirstSyncAdopt = "adopt"
	// FirstSyncSettled: Clusters are created without asking.
	FirstSyncSettled = "settled"
)

// Condition types.
const (
	// ReadyCondition of a Layer: every selected, reachable child has it. Of a
	// Child: connected, seeded, and its own agent reports ready.
	ReadyCondition = "Ready"
	// ConnectedCondition of a Child: the API server answered the last call
	// and is the cluster whose identity is recorded.
	ConnectedCondition = "Connected"
	// DriftedCondition of a Kustomization is there while objects are left as
	// somebody else changed them.
	DriftedCondition = "Drifted"
	// PruneBlockedCondition of a Kustomization is there while deletes are held.
	PruneBlockedCondition = "PruneBlocked"
	// HandOverPendingCondition of a Kustomization or HelmRelease is there while
	// objects that it no longer declares are kept for the owner that does.
	HandOverPendingCondition = "HandOverPending"
	// SourceFailingCondition of a Kustomization is there while its source cannot be
	// fetched. What the source had before is still applied.
	SourceFailingCondition = "SourceFailing"
	// AccountMissingCondition of a Kustomization is there while the service account that
	// it is applied as does not exist.
	AccountMissingCondition = "AccountMissing"
	// CreateHeldCondition of a Kustomization or HelmRelease is there while Clusters
	// are not created, lest they be built twice.
	CreateHeldCondition = "CreateHeld"
	// SeededCondition of a Child: every layer that selects it is applied.
	SeededCondition = "Seeded"
	// ClusterSeededCondition is SeededCondition on the Cluster API Cluster, for
	// its spec.availabilityGates.
	ClusterSeededCondition = "cascade.dev/Seeded"
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
	ReasonUnreachable          = "Unreachable"
	ReasonUnauthorized         = "Unauthorized"
	ReasonIdentityChanged      = "IdentityChanged"
	ReasonNoLayer              = "NoLayer"
	ReasonAgentNotReady        = "AgentNotReady"
	ReasonProviderNotReady     = "ProviderNotReady"
	ReasonContractMismatch     = "ContractMismatch"
	ReasonReportMissing        = "ReportMissing"
	ReasonReportInvalid        = "ReportInvalid"
	ReasonSourceNotReady       = "SourceNotReady"
	ReasonBuildFailed          = "BuildFailed"
	ReasonSeedFailed           = "SeedFailed"
	ReasonCredentialMissing    = "CredentialMissing"
	ReasonCredentialsExpiring  = "CredentialsExpiring"
	ReasonCredentialsLapsed    = "CredentialsLapsed"
	ReasonDependencyNotReady   = "DependencyNotReady"
	ReasonHealthCheckFailed    = "HealthCheckFailed"
	ReasonPruneBlocked         = "PruneBlocked"
	ReasonCreateHeld           = "CreateHeld"
	ReasonHandOverPending      = "HandOverPending"
	ReasonDriftDetected        = "DriftDetected"
	ReasonPruneFailed          = "PruneFailed"
	ReasonInvalidSpec          = "InvalidSpec"
	ReasonChildrenNotReady     = "ChildrenNotReady"
	ReasonNoChildren           = "NoChildren"
	ReasonKustomizationFailing = "KustomizationFailing"
	ReasonReleaseFailing       = "HelmReleaseFailing"
	ReasonSourceFailing        = "SourceFailing"
	ReasonAccountMissing       = "AccountMissing"
	ReasonWorkerStalled        = "WorkerStalled"
)
