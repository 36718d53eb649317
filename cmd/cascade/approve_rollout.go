package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

func (c *cli) newApproveRollout() *cobra.Command {
	var wave, revision string
	cmd := &cobra.Command{
		Use:   "rollout <rollout>",
		Short: "Let a wave of a Rollout begin",
		Long: "Let a wave begin that waits for a person. Without --wave it shows which waves wait. The approval is for the\n" +
			"revision of the run: one that comes later has to be approved again. --revision makes sure that it is\n" +
			"the one that you have seen. The wave " + rollout.End + " lets a run pass of which the last wave proved too little.",
		Example: "  cascade approve rollout base -n fleet\n" +
			"  cascade approve rollout base -n fleet --wave production --revision 0123456789ab",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeName("rollout"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.approveRollout(cmd.Context(), cl, client.ObjectKey{Namespace: c.namespace(), Name: args[0]}, wave, revision)
		},
	}
	cmd.Flags().StringVar(&wave, "wave", "", "name of the wave that may begin")
	cmd.Flags().StringVar(&revision, "revision", "", "revision that the run must have: all of it, its commit, or the first 12 letters of that at least")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) approveRollout(ctx context.Context, cl client.Client, key client.ObjectKey, wave, revision string) error {
	if wave == "" {
		return c.showApprovals(ctx, cl, key)
	}
	who := &authenticationv1.SelfSubjectReview{}
	if err := cl.Create(ctx, who); err != nil {
		return fmt.Errorf("cannot find out who approves: %w", err)
	}
	var run *v1alpha1.RolloutRun
	// Who approves another wave in between must not lose that.
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		r, err := readRollout(ctx, cl, key)
		if err != nil {
			return err
		}
		if run, err = approvable(r, wave, revision); err != nil {
			return fmt.Errorf("cannot approve: %w", err)
		}
		entries := append(entriesBut(r.Annotations[v1alpha1.ApproveRolloutAnnotation], wave), wave+"="+word(rollout.Word(&r.Status)))
		return annotateUnchanged(ctx, cl, r, map[string]*string{
			v1alpha1.ApproveRolloutAnnotation: joined(entries), v1alpha1.ApprovedByAnnotation: new(rollout.Approvers(r.Annotations, wave, who.Status.UserInfo.Username)),
		})
	})
	switch {
	case apierrors.IsConflict(err), apierrors.IsForbidden(err):
		return fmt.Errorf("cannot annotate Rollout %s: %w", key, err)
	case err != nil:
		return err
	}
	fmt.Fprintf(c.streams.Out, "✔ %s approved %s for wave %s of rollout %s\n", who.Status.UserInfo.Username, shortRevision(run.Revision), wave, key)
	return nil
}

// approvable is the run whose wave a person may approve.
func approvable(r *v1alpha1.Rollout, wave, revision string) (*v1alpha1.RolloutRun, error) {
	run, err := underWay(r)
	if err != nil {
		return nil, err
	}
	if revision != "" && !rollout.Means(revision, &r.Status) {
		return nil, fmt.Errorf("the run of rollout %s/%s is at %s, not at %s: look at it with: %s", r.Namespace, r.Name, rollout.Word(&r.Status), revision, held.StatusCommand(r))
	}
	if wave == rollout.End {
		// Before, nobody can know what would be missing.
		if int(run.Wave) < len(run.Terms.Waves) {
			return nil, fmt.Errorf("run %d of rollout %s/%s has waves to pass yet: look at it with: %s", run.Number, r.Namespace, r.Name, held.StatusCommand(r))
		}
		return run, nil
	}
	var names []string
	for i := range run.Terms.Waves {
		if run.Terms.Waves[i].Name != wave {
			names = append(names, run.Terms.Waves[i].Name)
			continue
		}
		if i < int(run.Wave) && !slices.Contains(held.Approvals(r), wave) {
			return nil, fmt.Errorf("wave %s of rollout %s/%s was passed already", wave, r.Namespace, r.Name)
		}
		return run, nil
	}
	return nil, fmt.Errorf("run %d of rollout %s/%s has no wave %s; it has: %s", run.Number, r.Namespace, r.Name, wave, strings.Join(names, ", "))
}

// showApprovals tells which waves wait for a person.
func (c *cli) showApprovals(ctx context.Context, cl client.Client, key client.ObjectKey) error {
	r, err := readRollout(ctx, cl, key)
	if err != nil {
		return err
	}
	waves := held.Approvals(r)
	if len(waves) == 0 {
		return fmt.Errorf("cannot approve: rollout %s waits for no approval", key)
	}
	for _, wave := range waves {
		fmt.Fprintf(c.streams.Out, "wave %s of Rollout %s waits for an approval of %s: %s\n", wave, key, r.Status.Run.Revision, held.ApproveCommand(r, wave))
	}
	return errNotReady
}

// heldRollouts are the Rollouts that go on only when a person decides, in all namespaces.
func heldRollouts(rollouts []v1alpha1.Rollout) []string {
	var lines []string
	for _, item := range held.Rollouts(rollouts) {
		lines = append(lines, fmt.Sprintf("Rollout %s/%s %s: %s", item.Namespace, item.Name, item.Message, item.Commands[0]))
	}
	return lines
}

// listRollouts lists those of all namespaces; a tier without the kind has none.
func listRollouts(ctx context.Context, cl client.Client) ([]v1alpha1.Rollout, error) {
	rollouts := &v1alpha1.RolloutList{}
	if err := cl.List(ctx, rollouts); err != nil {
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot list Rollouts: %w", err)
	}
	return rollouts.Items, nil
}
