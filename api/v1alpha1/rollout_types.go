package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// RolloutSpec says in which order clusters get a new revision, and when that stops.
// +kubebuilder:validation:XValidation:rule="has(self.sourceRef) == has(self.moves.source)",message="sourceRef must be set with moves.source, whose revisions it tells; those of a Layer or Kustomization are of its own source"
// +kubebuilder:validation:XValidation:rule="self.waves.all(w, has(w.selector) || w.name == self.waves[self.waves.size() - 1].name)",message="a wave without a selector takes all other clusters, so it must be the last one"
type RolloutSpec struct {
	// Moves is what gets the revision.
	// +required
	Moves RolloutMoves `json:"moves"`

	// SourceRef is a source of this tier that tells the revisions for moves.source.
	// +optional
	SourceRef *RolloutSourceReference `json:"sourceRef,omitempty"`

	// Paths that a commit must touch to be a new revision of the Rollout, by default what
	// the Layer reads, spec.path of the Kustomization, or the whole source.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=atomic
	// +optional
	Paths []string `json:"paths,omitempty"`

	// ClusterSelector bounds which clusters of this namespace take part, by default all
	// that have what the Rollout moves.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// Waves are passed in this order. A cluster belongs to the first wave that selects it.
	// One that none selects keeps the revision that it has.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +required
	Waves []RolloutWave `json:"waves"`

	// Deadline for one cluster, from the revision being allowed to the cluster being ready
	// at it. A cluster that misses it has failed, unless it cannot be reached.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:default="30m"
	// +optional
	Deadline metav1.Duration `json:"deadline,omitempty"`

	// Unreachable says what a cluster is that cannot be reached: with Skip it gets the
	// revision on its return and holds nobody up, with Count it has failed.
	// +kubebuilder:default=Skip
	// +optional
	Unreachable RolloutUnreachable `json:"unreachable,omitempty"`

	// Window is when clusters may begin to change.
	// +optional
	Window *RolloutWindow `json:"window,omitempty"`

	// OnFailure is what happens when more clusters of a wave failed than may: Halt waits for
	// a person or a newer revision, Revert gives the last good revision back to all clusters
	// that have the failed one.
	// +kubebuilder:default=Halt
	// +optional
	OnFailure RolloutFailurePolicy `json:"onFailure,omitempty"`

	// Preempt lets a newer revision take the place of one that is in the middle of a wave.
	// By default it waits for the end of the wave.
	// +optional
	Preempt bool `json:"preempt,omitempty"`

	// Suspend lets no further cluster begin. Those that have begun go on.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// Upstream is a Rollout of another environment, which follows the same Git repository:
	// only commits that it proved are revisions of this one.
	// +optional
	Upstream *RolloutUpstream `json:"upstream,omitempty"`

	// Publish has each commit that passed all waves written down in the Git repository, for
	// Rollouts of other environments that name it in spec.upstream.
	// +optional
	Publish *RolloutPublish `json:"publish,omitempty"`

	// ApprovalTags lets signed tags of the Git repository approve waves, besides the
	// annotation.
	// +optional
	ApprovalTags *RolloutApprovalTags `json:"approvalTags,omitempty"`
}

// RolloutUpstream names a Rollout of another environment by what that publishes. It is read
// with the credential of the source.
type RolloutUpstream struct {
	// Name under spec.publish of the other Rollout: the reference
	// refs/cascade/proven/<name> is read.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
	// +required
	Name string `json:"name"`
	// MinAge is for how long the other environment must have run a commit, from when it
	// passed all waves there until the next one did.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	MinAge *metav1.Duration `json:"minAge,omitempty"`
	// Verify names the Secret with the public keys of those who may prove commits: PGP
	// keys, and SSH keys under names that end with .sshpub, as for spec.verify of a
	// GitRepository. Without it, whoever may write the reference may.
	// +optional
	Verify *RolloutKeys `json:"verify,omitempty"`
}

// RolloutPublish says where commits that passed all waves are written down.
type RolloutPublish struct {
	// Name that no other Rollout publishes under in this repository. It should name the
	// environment, as staging-base: refs/cascade/proven/<name> is written.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
	// +required
	Name string `json:"name"`
	// SecretRef names the credential that may write the reference, with the keys of a
	// GitRepository's Secret. With the key signingKey, an SSH private key, what is written
	// is signed.
	// +required
	SecretRef LocalReference `json:"secretRef"`
}

// RolloutApprovalTags says which tags approve waves, and whose.
type RolloutApprovalTags struct {
	// SecretRef names the public keys of those who may approve: PGP keys, and SSH keys
	// under names that end with .sshpub, as for spec.verify of a GitRepository.
	// +required
	SecretRef LocalReference `json:"secretRef"`
	// Prefix of the tags' names; <prefix>/<wave>, or <prefix>/<wave>/<anything>, approves
	// the wave for the commit that it is on. By default
	// cascade/approve/<namespace>/<name of the Rollout>. Environments that share a
	// repository need different ones.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?(/[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
	// +optional
	Prefix string `json:"prefix,omitempty"`
}

// RolloutKeys names public keys.
type RolloutKeys struct {
	// SecretRef names the Secret that has the keys.
	// +required
	SecretRef LocalReference `json:"secretRef"`
}

// RolloutMoves names what gets the revision.
// +kubebuilder:validation:XValidation:rule="[has(self.layerRef), has(self.source), has(self.kustomizationRef)].filter(x, x).size() == 1",message="exactly one of layerRef, source and kustomizationRef must be set"
type RolloutMoves struct {
	// LayerRef names a Layer of this namespace: each cluster has it rendered from the
	// revision that it may have, with the agent of that time.
	// +optional
	LayerRef *LayerReference `json:"layerRef,omitempty"`
	// Source is an object that a layer brings into the clusters: it is pinned to the
	// revision there, so that a cluster keeps it without its parent.
	// +optional
	Source *RolloutPinnedSource `json:"source,omitempty"`
	// KustomizationRef names a Kustomization of this namespace that declares Clusters: what
	// it declares of each Cluster is that of the revision which the Cluster may have.
	// +optional
	KustomizationRef *LocalReference `json:"kustomizationRef,omitempty"`
}

// RolloutPinnedSource is an object in the clusters.
type RolloutPinnedSource struct {
	// Kind: the commit of a GitRepository is pinned, the digest of an OCIRepository, the
	// version of a HelmRelease's chart.
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;HelmRelease
	// +required
	Kind string `json:"kind"`
	// Name of the object in the clusters.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// Namespace of the object in the clusters.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`
}

// RolloutSourceReference names a source of this tier.
type RolloutSourceReference struct {
	// Kind: GitRepository for the commits of one, OCIRepository for its digests, HelmChart
	// for the versions of a chart.
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;HelmChart
	// +required
	Kind string `json:"kind"`
	// Name of the source.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
	// Namespace of the source, by default the Rollout's. Another one needs an agent without
	// --no-cross-namespace-refs.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// RolloutWave is a set of clusters that change together.
type RolloutWave struct {
	// Name of the wave, by which people approve it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
	// +required
	Name string `json:"name"`
	// Selector of the clusters by label. The last wave may have none: it takes the rest.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// MaxConcurrent is how many clusters of the wave change at the same time, as a number or
	// in per cent of the wave, rounded down and at least 1.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == string || self >= 1 && self <= 2147483647",message="must be a number from 1 to 2147483647, or from 1% to 100%"
	// +kubebuilder:validation:Pattern="^([1-9][0-9]?|100)%$"
	// +kubebuilder:default="25%"
	// +optional
	MaxConcurrent intstr.IntOrString `json:"maxConcurrent,omitempty"`
	// MaxFailures is how many clusters of the wave may fail, as a number or in per cent of
	// the wave, rounded down.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == string || self >= 0 && self <= 2147483647",message="must be a number from 0 to 2147483647, or from 0% to 100%"
	// +kubebuilder:validation:Pattern="^([0-9]|[1-9][0-9]|100)%$"
	// +kubebuilder:default=0
	// +optional
	MaxFailures intstr.IntOrString `json:"maxFailures,omitempty"`
	// Soak is how long all clusters of the wave that have the revision must have been ready
	// before the next wave begins. Those that come to the wave meanwhile have a soak of their own.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +optional
	Soak *metav1.Duration `json:"soak,omitempty"`
	// Approval before the wave begins.
	// +kubebuilder:default=None
	// +optional
	Approval RolloutApprovalPolicy `json:"approval,omitempty"`
	// Window for the clusters of this wave, instead of that of the Rollout.
	// +optional
	Window *RolloutWindow `json:"window,omitempty"`
}

// RolloutWindow is open for a time after each moment of a schedule.
type RolloutWindow struct {
	// Cron says when the window opens, in the five fields of cron.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=128
	// +required
	Cron string `json:"cron"`
	// Duration for which it stays open.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +required
	Duration metav1.Duration `json:"duration"`
	// TimeZone of Cron, as in the tz database; UTC by default.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
}

// RolloutUnreachable says what becomes of clusters that cannot be reached.
// +kubebuilder:validation:Enum=Skip;Count
type RolloutUnreachable string

const (
	// UnreachableSkip gives them the revision on their return.
	UnreachableSkip RolloutUnreachable = "Skip"
	// UnreachableCount counts them as failed.
	UnreachableCount RolloutUnreachable = "Count"
)

// RolloutFailurePolicy says what happens after too many failures.
// +kubebuilder:validation:Enum=Halt;Revert
type RolloutFailurePolicy string

const (
	// FailureHalt waits for a person or a newer revision.
	FailureHalt RolloutFailurePolicy = "Halt"
	// FailureRevert goes back to the last good revision.
	FailureRevert RolloutFailurePolicy = "Revert"
)

// RolloutApprovalPolicy says whether a wave waits for a person.
// +kubebuilder:validation:Enum=None;Required
type RolloutApprovalPolicy string

const (
	// ApprovalNone waits for nobody.
	ApprovalNone RolloutApprovalPolicy = "None"
	// ApprovalRequired waits for a person who names the wave and the revision.
	ApprovalRequired RolloutApprovalPolicy = "Required"
)

// RolloutStatus says where the revision is. It does not grow with the fleet: what is of one
// cluster is in its Child.
// +structType=atomic
type RolloutStatus struct {
	// ObservedGeneration is the generation of the Rollout that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready and Upstream, with the reasons of docs/reasons.md.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// UID by which Children know the Rollout: that of the object about which was decided first. One
	// that is restored with its status keeps it, and one that is made again gets another.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Candidate is the newest revision that the clusters could get.
	// +optional
	Candidate *RolloutRevision `json:"candidate,omitempty"`
	// CandidateDigest identifies what the clusters get of the candidate. A newer revision
	// with the same is none of its own.
	// +optional
	CandidateDigest string `json:"candidateDigest,omitempty"`
	// ObservedRevision is the newest revision of the source of which it is known what clusters
	// would get of it. Where it is not that of the candidate it changes nothing for them. It is
	// empty with an upstream, and where no source is moved.
	// +optional
	ObservedRevision string `json:"observedRevision,omitempty"`
	// LastGood is the revision that passed all waves last.
	// +optional
	LastGood *RolloutGood `json:"lastGood,omitempty"`
	// Upstream is what the Rollout of spec.upstream proved.
	// +optional
	Upstream *RolloutUpstreamStatus `json:"upstream,omitempty"`
	// Published is what was written down last for spec.publish.
	// +optional
	Published *RolloutProof `json:"published,omitempty"`
	// Run is the revision that is on its way over the waves, or was last.
	// +optional
	Run *RolloutRun `json:"run,omitempty"`
	// Waves count the clusters of each wave.
	// +listType=map
	// +listMapKey=name
	// +optional
	Waves []RolloutWaveStatus `json:"waves,omitempty"`
	// Clusters counts those of all waves, and those of none.
	// +optional
	Clusters RolloutCounts `json:"clusters,omitempty"`
	// Unassigned counts clusters that no wave selects.
	// +optional
	Unassigned int32 `json:"unassigned,omitempty"`
	// Failing names at most twenty clusters that failed, or hold a wave up.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	Failing []Failure `json:"failing,omitempty"`
	// History has the last runs that ended, the newest first.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	History []RolloutHistory `json:"history,omitempty"`
	// LastHandledReconcileAt is the value of the reconcile request annotation that was
	// handled last.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`
}

// RolloutRevision is what a cluster may have.
type RolloutRevision struct {
	// Revision of the source, as Flux writes it: main@sha1:..., latest@sha256:..., 1.2.3.
	Revision string `json:"revision"`
	// Image of the agent that the Layer installs; empty where it installs none.
	// +optional
	Image string `json:"image,omitempty"`
}

// RolloutProof is a commit that passed all waves of a Rollout.
type RolloutProof struct {
	// Commit that passed them.
	Commit string `json:"commit"`
	// Run of the Rollout that it passed them in.
	Run int64 `json:"run"`
	// Proven is when it had passed them, by the clock of its environment.
	Proven metav1.Time `json:"proven"`
}

// RolloutUpstreamStatus is what another environment proved. The condition Upstream says what
// is waited for.
type RolloutUpstreamStatus struct {
	// Name that it was published under.
	Name string `json:"name"`
	// Newest is the commit that was proven last.
	// +optional
	Newest *RolloutProof `json:"newest,omitempty"`
	// Taken is the one that became the candidate last. None that was proven before it is
	// taken any more.
	// +optional
	Taken *RolloutProof `json:"taken,omitempty"`
}

// RolloutGood is a revision that passed all waves.
type RolloutGood struct {
	RolloutRevision `json:",inline"`
	// Run that it passed them in.
	Run int64 `json:"run"`
	// At is when it had passed them.
	At metav1.Time `json:"at"`
}

// RolloutPhase says what a run does.
// +kubebuilder:validation:Enum=Progressing;Halted;Reverting;Completed;Reverted;Aborted;Superseded
type RolloutPhase string

const (
	// RolloutProgressing: clusters get the revision, or something is waited for.
	RolloutProgressing RolloutPhase = "Progressing"
	// RolloutHalted: more clusters failed than may. A person or a newer revision goes on.
	RolloutHalted RolloutPhase = "Halted"
	// RolloutReverting: clusters that have the revision get the last good one back.
	RolloutReverting RolloutPhase = "Reverting"
	// RolloutCompleted: the revision passed all waves.
	RolloutCompleted RolloutPhase = "Completed"
	// RolloutReverted: no cluster that can be reached has the revision any more.
	RolloutReverted RolloutPhase = "Reverted"
	// RolloutAborted: a person ended it.
	RolloutAborted RolloutPhase = "Aborted"
	// RolloutSuperseded: a newer revision took its place.
	RolloutSuperseded RolloutPhase = "Superseded"
)

// RolloutRun is one revision on its way over the waves.
type RolloutRun struct {
	// Number of the run; each has the next one.
	Number          int64 `json:"number"`
	RolloutRevision `json:",inline"`
	// Phase of the run. Of one that ended it stays.
	Phase RolloutPhase `json:"phase"`
	// Terms are those of the spec when the run began; a change of the spec counts for the
	// next run.
	Terms RolloutTerms `json:"terms"`
	// Wave is the place of the wave that the run is in, from 0; the number of waves once it
	// passed them all.
	Wave int32 `json:"wave"`
	// Begun: the wave was let begin, by its approval and its window.
	// +optional
	Begun bool `json:"begun,omitempty"`
	// Began is when the run did.
	Began metav1.Time `json:"began"`
	// SoakSince is since when all clusters of the wave that have the revision are ready.
	// +optional
	SoakSince *metav1.Time `json:"soakSince,omitempty"`
	// LookedAt is when the run was looked at last, to a minute, as long as a soak or a deadline runs.
	// +optional
	LookedAt *metav1.Time `json:"lookedAt,omitempty"`
	// ResumedAt is when the run was looked at again after nobody had for a while, as the agent was
	// gone: soak and deadlines count from there at the earliest.
	// +optional
	ResumedAt *metav1.Time `json:"resumedAt,omitempty"`
	// Since is when Phase changed.
	Since metav1.Time `json:"since"`
	// Approvals that were given.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Approvals []RolloutApproval `json:"approvals,omitempty"`
	// Unproven: the wave passed with less than half of its clusters ready at the revision,
	// so that the next one that has clusters, or the end of the run, waits until half of
	// them are, or for an approval.
	// +optional
	Unproven bool `json:"unproven,omitempty"`
	// Retried is the request to try failed clusters again that was handled last.
	// +optional
	Retried string `json:"retried,omitempty"`
	// StaleAbort is the request to abort that stood when the run began: it is of a run before.
	// +optional
	StaleAbort string `json:"staleAbort,omitempty"`
	// StaleRevert is the request to revert that stood when the run began.
	// +optional
	StaleRevert string `json:"staleRevert,omitempty"`
}

// RolloutTerms are what a run keeps to.
type RolloutTerms struct {
	// Waves as spec.waves had them.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Waves []RolloutWave `json:"waves"`
	// Deadline as spec.deadline had it.
	Deadline metav1.Duration `json:"deadline"`
	// Unreachable as spec.unreachable had it.
	// +optional
	Unreachable RolloutUnreachable `json:"unreachable,omitempty"`
	// Window as spec.window had it.
	// +optional
	Window *RolloutWindow `json:"window,omitempty"`
	// OnFailure as spec.onFailure had it.
	// +optional
	OnFailure RolloutFailurePolicy `json:"onFailure,omitempty"`
}

// RolloutApproval is a person's consent to a wave.
type RolloutApproval struct {
	// Wave that was approved; _end is the end of the run.
	Wave string `json:"wave"`
	// By is who approved, as far as that is known.
	// +optional
	By string `json:"by,omitempty"`
	// At is when the approval was seen.
	At metav1.Time `json:"at"`
	// Tag that approved, where one did.
	// +optional
	Tag string `json:"tag,omitempty"`
	// Key that the tag is signed with.
	// +optional
	Key string `json:"key,omitempty"`
}

// RolloutCounts counts clusters. Each is counted once besides in Total.
type RolloutCounts struct {
	// Total is how many there are. One that another tier manages, or into which no layer brings what is moved, is left out
	// unless it failed.
	// +kubebuilder:default=0
	// +optional
	Total int32 `json:"total"`
	// Updated clusters are ready at the revision that they are to have now.
	// +kubebuilder:default=0
	// +optional
	Updated int32 `json:"updated"`
	// Updating clusters may have it and are not ready at it yet.
	// +kubebuilder:default=0
	// +optional
	Updating int32 `json:"updating"`
	// Pending clusters do not have it yet.
	// +kubebuilder:default=0
	// +optional
	Pending int32 `json:"pending"`
	// Failed clusters missed the deadline.
	// +kubebuilder:default=0
	// +optional
	Failed int32 `json:"failed"`
	// Deferred clusters cannot be reached, are changing by themselves, or were not ready
	// before: they hold nobody up.
	// +kubebuilder:default=0
	// +optional
	Deferred int32 `json:"deferred"`
}

// RolloutWaveStatus counts the clusters of a wave.
type RolloutWaveStatus struct {
	// Name of the wave.
	Name          string `json:"name"`
	RolloutCounts `json:",inline"`
}

// RolloutHistory is a run that ended.
type RolloutHistory struct {
	// Number of the run.
	Number          int64 `json:"number"`
	RolloutRevision `json:",inline"`
	// Phase in which it ended.
	Phase RolloutPhase `json:"phase"`
	// Began is when the run did.
	Began metav1.Time `json:"began"`
	// Ended is when the run did.
	Ended metav1.Time `json:"ended"`
	// Failed counts the clusters that had failed at the end.
	// +optional
	Failed int32 `json:"failed,omitempty"`
}

// ChildRollout is what a Rollout allows a child to have, and what became of it. The leader
// of the tier writes it; that it succeeded, who drives the child may as well.
type ChildRollout struct {
	// Name of the Rollout.
	Name            string `json:"name"`
	RolloutRevision `json:",inline"`
	// UID is that in the status of the Rollout. What another one of the same name let the child
	// have counts for nothing. Versions before wrote none.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Run in which the child got the revision; of one that is past, the run that it got past.
	Run int64 `json:"run"`
	// Past: the child got the revision past the Rollout: from a version that knows no Rollouts, or
	// before the Rollout came. It stays until a run gives the child another one.
	// +optional
	Past bool `json:"past,omitempty"`
	// Had is what the child had when it got the revision. What it has is either of both, unless a
	// version that knows no Rollouts was here. Versions before wrote none.
	// +optional
	Had *RolloutRevision `json:"had,omitempty"`
	// Brought: a run of the child found all that is moved in place at the revision. What the Child says of its
	// layers, and of what is below it, may be of before. It is not set of what was ready already when it was noted.
	// +optional
	Brought bool `json:"brought,omitempty"`
	// Idle: no layer brings the object that is moved into the child, so that nobody waits for it to have the revision.
	// +optional
	Idle bool `json:"idle,omitempty"`
	// Result of it.
	Result RolloutResult `json:"result"`
	// Reason of a result that is neither Updating nor Succeeded.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Since is when Result changed. A result that the deadline is for ends at the deadline
	// after it.
	Since metav1.Time `json:"since"`
	// Blameless: the child was not ready before it got the revision, and not for an earlier
	// revision of this Rollout.
	// +optional
	Blameless bool `json:"blameless,omitempty"`
	// Unproven: the child missed its deadline at the revision, or was put off before it was ready
	// at it, and was not ready at it since.
	// +optional
	Unproven bool `json:"unproven,omitempty"`
	// Below is how many clusters below the child were not ready when it got the revision, or was found
	// to have it already. More of them may not be when it is done.
	// +optional
	Below int32 `json:"below,omitempty"`
	// Underway is how many Rollouts of its own the child had on their way when it got the revision.
	// Versions before counted them in Below.
	// +optional
	Underway int32 `json:"underway,omitempty"`
}

// Same reports whether this is one Rollout that lets the child have one revision.
func (r ChildRollout) Same(other ChildRollout) bool {
	return r.Name == other.Name && r.UID == other.UID && r.RolloutRevision == other.RolloutRevision
}

// RolloutResult is what became of a revision in one child.
// +kubebuilder:validation:Enum=Updating;Succeeded;Degraded;Failed;Unreachable;Unproven;Deferred;Skipped
type RolloutResult string

const (
	// ResultUpdating: the child is not ready at the revision yet.
	ResultUpdating RolloutResult = "Updating"
	// ResultSucceeded: it reported to be ready at the revision.
	ResultSucceeded RolloutResult = "Succeeded"
	// ResultDegraded: it was ready at the revision, and is not any more.
	ResultDegraded RolloutResult = "Degraded"
	// ResultFailed: it missed the deadline.
	ResultFailed RolloutResult = "Failed"
	// ResultUnreachable: it got the revision and cannot be reached since.
	ResultUnreachable RolloutResult = "Unreachable"
	// ResultUnproven: it missed the deadline, and was not ready before either.
	ResultUnproven RolloutResult = "Unproven"
	// ResultDeferred: it is to get another revision than it has, and is rolling, or is
	// refused it.
	ResultDeferred RolloutResult = "Deferred"
	// ResultSkipped: a person let it keep the revision that it has, for this run.
	ResultSkipped RolloutResult = "Skipped"
)

// The definition of Rollouts is not pruned: a parent of an earlier version does not know it,
// and would hold its layers for a deletion that nobody wants.

// Rollout gives a revision to clusters in waves: few at a time, each wave after the one
// before it proved it, and none after too many failed.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:categories=all;cascade
// +kubebuilder:printcolumn:name="Clusters",type=integer,JSONPath=`.status.clusters.total`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.clusters.updated`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.clusters.failed`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.run.phase`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.run.revision`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Rollout struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RolloutSpec   `json:"spec,omitempty"`
	Status RolloutStatus `json:"status,omitempty"`
}

// RolloutList is a list of Rollouts.
// +kubebuilder:object:root=true
type RolloutList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Rollout `json:"items"`
}

// GetConditions returns the conditions of the status, as Flux's kinds do.
func (r *Rollout) GetConditions() []metav1.Condition { return r.Status.Conditions }

// FailingExchange returns the conditions about what travels between environments that are False, as
// of an upstream that cannot be read. The Rollout may be ready: its clusters have what it knows of.
func (r *Rollout) FailingExchange() []metav1.Condition {
	var failing []metav1.Condition
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case UpstreamCondition, PublishedCondition, ApprovalTagsCondition:
			if c.Status == metav1.ConditionFalse {
				failing = append(failing, c)
			}
		}
	}
	return failing
}

// SetConditions sets the conditions of the status.
func (r *Rollout) SetConditions(conditions []metav1.Condition) { r.Status.Conditions = conditions }
