package pivot

import (
	"fmt"
	"slices"
	"strings"
)

// Reasons for which a pivot does not go on. People and alerts match on them.
const (
	// ReasonClusterMissing: a Cluster that was named is not in the source.
	ReasonClusterMissing = "ClusterMissing"
	// ReasonClusterDeleting: a Cluster, or a part of it, is being deleted.
	ReasonClusterDeleting = "ClusterDeleting"
	// ReasonHalfProvisioned: the Cluster is still being built. What its provider made and
	// has not written down yet would be built again.
	ReasonHalfProvisioned = "HalfProvisioned"
	// ReasonClusterPaused: somebody paused the Cluster before.
	ReasonClusterPaused = "ClusterPaused"
	// ReasonSameCluster: source and target are the same cluster.
	ReasonSameCluster = "SameCluster"
	// ReasonPivotConflict: another pivot has one of the Clusters.
	ReasonPivotConflict = "PivotConflict"
	// ReasonKindMissing: the target does not serve a kind in the version in which the source
	// stores it, and would lose fields.
	ReasonKindMissing = "KindMissing"
	// ReasonKindForeign: the target does not have a kind from Cluster API or a provider, so that
	// its objects mean something else there.
	ReasonKindForeign = "KindForeign"
	// ReasonProviderNotRunning: the target has no controller of a provider that is ready.
	ReasonProviderNotRunning = "ProviderNotRunning"
	// ReasonObjectExists: the target has another object of the name of one that is moved.
	ReasonObjectExists = "ObjectExists"
	// ReasonSecretElsewhere: the Cluster refers to a Secret, a ConfigMap or another object that is not of
	// its namespace, which a pivot that is declared does not copy.
	ReasonSecretElsewhere = "SecretElsewhere"
	// ReasonCircularOwners: parts of the Cluster own each other, so that none can be made first.
	ReasonCircularOwners = "CircularOwners"
	// ReasonSharedDiffers: the target has a class or template of the same name that is not
	// the same, and would change the machines of Clusters.
	ReasonSharedDiffers = "SharedDiffers"
	// ReasonOwnerNotHeld: Git declares the Cluster in the source, and no agent of Cascade
	// keeps it from being created again.
	ReasonOwnerNotHeld = "OwnerNotHeld"
	// ReasonMoveBlocked: a controller asks to wait, by annotation.
	ReasonMoveBlocked = "MoveBlocked"
	// ReasonNotPaused: controllers do not say that they have stopped.
	ReasonNotPaused = "NotPaused"
	// ReasonCopyDiffers: the target changes what is copied.
	ReasonCopyDiffers = "CopyDiffers"
	// ReasonCopyMissing: the target does not have a Cluster any more that was moved there.
	ReasonCopyMissing = "CopyMissing"
	// ReasonJournalForeign: the journal in the source names other Clusters or tiers than those that
	// are moved.
	ReasonJournalForeign = "JournalForeign"
	// ReasonPivotHeld: another process drives the pivot.
	ReasonPivotHeld = "PivotHeld"
)

// tolerable are the reasons that a person may wave through: of them a person can know that
// nothing comes of it.
func tolerable() []string {
	return []string{ReasonHalfProvisioned, ReasonClusterPaused, ReasonProviderNotRunning, ReasonSharedDiffers, ReasonOwnerNotHeld, ReasonNotPaused}
}

// CheckTolerated refuses what cannot be waved through.
func CheckTolerated(reasons []string) error {
	for _, r := range reasons {
		if !slices.Contains(tolerable(), r) {
			return fmt.Errorf("cannot tolerate %q: it is none of %s", r, strings.Join(tolerable(), ", "))
		}
	}
	return nil
}

// Problem keeps a pivot from going on.
type Problem struct {
	Reason string `json:"reason"`
	// Message says what and why, for people.
	Message string `json:"message"`
}

func problem(reason, format string, args ...any) Problem {
	return Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// BlockedError has the problems for which a pivot does not go on. Nothing was changed by
// the step that found them; at step Aborted, the pivot was turned back for them.
type BlockedError struct {
	Step     Step
	Problems []Problem
}

// mostTold bounds how many problems an error names.
const mostTold = 10

func (e *BlockedError) Error() string {
	var parts []string
	for _, p := range e.Problems[:min(len(e.Problems), mostTold)] {
		parts = append(parts, p.Reason+": "+p.Message)
	}
	if more := len(e.Problems) - mostTold; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	switch e.Step {
	case "":
		return "cannot begin: " + strings.Join(parts, "; ")
	case Aborted:
		return "turned back, as it can go through later only: " + strings.Join(parts, "; ")
	}
	return fmt.Sprintf("cannot go on with step %s: %s", e.Step, strings.Join(parts, "; "))
}

// without leaves out what is tolerated.
func without(problems []Problem, tolerated []string) []Problem {
	return slices.DeleteFunc(problems, func(p Problem) bool { return slices.Contains(tolerated, p.Reason) })
}
