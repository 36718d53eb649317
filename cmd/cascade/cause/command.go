package cause

import (
	"fmt"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// ResumeCommand lets a suspended Rollout go on.
func ResumeCommand(r *v1alpha1.Rollout) string {
	return fmt.Sprintf("cascade rollout resume %s -n %s", r.Name, r.Namespace)
}

// RetryCommand tries the failed clusters of a Rollout again that halted.
func RetryCommand(r *v1alpha1.Rollout) string {
	return fmt.Sprintf("cascade rollout retry %s -n %s", r.Name, r.Namespace)
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
