package cause

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// AwaitedApprovals are the waves of the run of a Rollout that need an approval and have
// none, the next first.
func AwaitedApprovals(r *v1alpha1.Rollout) []string {
	run := r.Status.Run
	if run == nil || run.Phase != v1alpha1.RolloutProgressing && run.Phase != v1alpha1.RolloutHalted {
		return nil
	}
	var waves []string
	for i := range run.Terms.Waves {
		w := &run.Terms.Waves[i]
		next := i == int(run.Wave) && !run.Begun
		if i < int(run.Wave) || w.Approval != v1alpha1.ApprovalRequired && !(next && run.Unproven) || Approved(r, w.Name) {
			continue
		}
		waves = append(waves, w.Name)
	}
	return waves
}

// Approved reports whether the run of a Rollout has the approval for a wave. There has to
// be a run.
func Approved(r *v1alpha1.Rollout, wave string) bool {
	return slices.ContainsFunc(r.Status.Run.Approvals, func(a v1alpha1.RolloutApproval) bool { return a.Wave == wave }) ||
		slices.ContainsFunc(rollout.Approvals(r.Annotations), func(a rollout.Approval) bool { return a.Wave == wave && rollout.Means(a.Revision, &r.Status) })
}

// ApproveCommand approves a wave of the run of a Rollout.
func ApproveCommand(r *v1alpha1.Rollout, wave string) string {
	return fmt.Sprintf("cascade approve rollout %s -n %s --wave %s --revision %s", r.Name, r.Namespace, wave, briefly(rollout.Word(&r.Status)))
}

// StatusCommand shows where a Rollout is.
func StatusCommand(r *v1alpha1.Rollout) string {
	return fmt.Sprintf("cascade rollout status %s -n %s", r.Name, r.Namespace)
}

// ResumeCommand lets a suspended Rollout go on.
func ResumeCommand(r *v1alpha1.Rollout) string {
	return fmt.Sprintf("cascade rollout resume %s -n %s", r.Name, r.Namespace)
}

// RetryCommand tries the failed clusters of a Rollout again that halted.
func RetryCommand(r *v1alpha1.Rollout) string {
	return fmt.Sprintf("cascade rollout retry %s -n %s", r.Name, r.Namespace)
}

// briefly is a revision as the flags take it: of a hash its beginning is enough.
func briefly(revision string) string {
	_, hash, found := strings.Cut(rollout.Content(revision), ":")
	if _, err := hex.DecodeString(hash); !found || err != nil || strings.Contains(revision, "/") {
		return revision
	}
	return hash[:min(len(hash), 12)]
}

// pruneCommand approves a held plan of deletes, or shows it where its hash is not known.
// Protected objects are not approved: the command is empty for them.
func pruneCommand(o Object, held *v1alpha1.HeldPrune) string {
	command := fmt.Sprintf("cascade approve prune %s -n %s", o.Name, o.Namespace)
	if o.Kind != kustomizationKind {
		command += " --kind " + o.Kind
	}
	switch {
	case held == nil:
		return command
	case held.Hash == "":
		return ""
	}
	return command + " --hash " + held.Hash
}

// createCommand shows the Clusters that are held. It approves none: one that runs already
// would be built a second time.
func createCommand(held *v1alpha1.HeldCreate) string {
	if held != nil && held.Elsewhere {
		return ""
	}
	return "cascade approve create"
}
