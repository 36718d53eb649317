package held

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/wording"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// Rollouts are those that go on only when a person decides, in the order of the list.
func Rollouts(rollouts []v1alpha1.Rollout) []Item {
	var items []Item
	for i := range rollouts {
		r := &rollouts[i]
		run := r.Status.Run
		if r.Spec.Suspend || run == nil {
			continue
		}
		item := Item{Kind: "Rollout", Namespace: r.Namespace, Name: r.Name, Since: run.Since}
		if run.Phase == v1alpha1.RolloutHalted {
			item.Reason = v1alpha1.ReasonRolloutHalted
			item.Message = "halted at " + wording.Short(run.Revision)
			item.Commands = append([]string{StatusCommand(r)}, afterHalt(r)...)
			items = append(items, item)
			continue
		}
		ready := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ReadyCondition)
		if waves := Approvals(r); len(waves) > 0 && ready != nil && (ready.Reason == v1alpha1.ReasonAwaitingApproval || ready.Reason == v1alpha1.ReasonWaveUnproven) {
			item.Reason, item.Since = ready.Reason, ready.LastTransitionTime
			item.Message = "waits for an approval of " + wording.Short(run.Revision)
			item.Commands = []string{ApproveCommand(r, waves[0])}
			items = append(items, item)
		}
	}
	return items
}

// Approvals are the waves of a run that do not begin before a person approves them, in
// their order, and rollout.End if the run does not pass before. Nobody can approve that while
// no cluster is ready at the revision. After them come waves that passed with nothing to change, where
// clusters came to since: the run goes on without these.
func Approvals(r *v1alpha1.Rollout) []string {
	run := r.Status.Run
	if run == nil || run.Phase != v1alpha1.RolloutProgressing && run.Phase != v1alpha1.RolloutHalted {
		return nil
	}
	var waves, passed []string
	for i := range run.Terms.Waves {
		w := &run.Terms.Waves[i]
		next := i == int(run.Wave) && !run.Begun
		switch {
		case w.Approval != v1alpha1.ApprovalRequired && !(next && run.Unproven) || approved(r, w.Name):
		case i >= int(run.Wave):
			waves = append(waves, w.Name)
		case slices.ContainsFunc(r.Status.Waves, func(s v1alpha1.RolloutWaveStatus) bool { return s.Name == w.Name && s.Pending > 0 }):
			passed = append(passed, w.Name)
		}
	}
	if int(run.Wave) == len(run.Terms.Waves) && run.Unproven && r.Status.Clusters.Updated > 0 && !approved(r, rollout.End) {
		waves = append(waves, rollout.End)
	}
	return append(waves, passed...)
}

// approved reports whether the run of a Rollout has the approval for a wave.
func approved(r *v1alpha1.Rollout, wave string) bool {
	run := r.Status.Run
	return slices.ContainsFunc(run.Approvals, func(a v1alpha1.RolloutApproval) bool { return a.Wave == wave }) ||
		slices.ContainsFunc(rollout.Approvals(r.Annotations), func(a rollout.Approval) bool { return a.Wave == wave && rollout.Means(a.Revision, &r.Status) })
}

// ApproveCommand lets a wave of the run begin.
func ApproveCommand(r *v1alpha1.Rollout, wave string) string {
	return fmt.Sprintf("cascade approve rollout %s --wave %s --revision %s", of(r), wording.Argument(wave), wording.Argument(briefly(rollout.Word(&r.Status))))
}

// StatusCommand shows where a Rollout is.
func StatusCommand(r *v1alpha1.Rollout) string { return "cascade rollout status " + of(r) }

func of(r *v1alpha1.Rollout) string {
	return wording.Argument(r.Name) + " -n " + wording.Argument(r.Namespace)
}

// briefly is a revision as the flags take it: of a hash its beginning is enough.
func briefly(revision string) string {
	_, hash, found := strings.Cut(rollout.Content(revision), ":")
	if _, err := hex.DecodeString(hash); !found || err != nil || strings.Contains(revision, "/") {
		return revision
	}
	return hash[:min(len(hash), 12)]
}

// afterHalt are the commands after which a run that halted goes on or ends.
func afterHalt(r *v1alpha1.Rollout) []string {
	abort := "cascade rollout abort " + of(r)
	if good := r.Status.LastGood; good != nil && good.RolloutRevision != r.Status.Run.RolloutRevision {
		abort += " --revert"
	}
	return []string{"cascade rollout retry " + of(r), abort}
}

// WaitsFor is what holds a run up, with the command that goes on where there is one.
func WaitsFor(r *v1alpha1.Rollout) string {
	run := r.Status.Run
	ready := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ReadyCondition)
	if run != nil && run.Phase == v1alpha1.RolloutHalted {
		return "a commit that mends it; " + strings.Join(afterHalt(r), "; or ")
	}
	if r.Spec.Suspend {
		return "cascade rollout resume " + of(r)
	}
	if ready == nil {
		return "the agent, which has not looked at the Rollout yet"
	}
	switch ready.Reason {
	case v1alpha1.ReasonAwaitingApproval, v1alpha1.ReasonWaveUnproven:
		if waves := Approvals(r); len(waves) > 0 {
			return "an approval: " + ApproveCommand(r, waves[0])
		}
	}
	if ready.Status == metav1.ConditionTrue {
		return ""
	}
	return wording.Short(ready.Reason + ": " + ready.Message)
}

// WaveState is where the run of a Rollout is with regard to the wave at a place; empty if
// there is nothing to say.
func WaveState(r *v1alpha1.Rollout, i int) string {
	run := r.Status.Run
	if run == nil || !rollout.Active(run) || run.Phase == v1alpha1.RolloutReverting || i >= len(run.Terms.Waves) {
		return ""
	}
	wave := &run.Terms.Waves[i]
	approval := wave.Approval == v1alpha1.ApprovalRequired && !approved(r, wave.Name)
	switch {
	case i < int(run.Wave):
		return "passed"
	case i == int(run.Wave) && run.Phase == v1alpha1.RolloutHalted:
		return "halted"
	case i == int(run.Wave) && run.SoakSince != nil:
		return "soaks"
	case i == int(run.Wave) && run.Begun:
		return "changes"
	case approval, i == int(run.Wave) && run.Unproven && !approved(r, wave.Name):
		return "needs an approval"
	case i == int(run.Wave):
		return "next"
	}
	return ""
}
