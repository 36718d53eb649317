package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

func (c *cli) newRollout() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Show how a revision goes over the clusters in waves, and stop it, let it go on or turn it back",
	}
	cmd.AddCommand(
		c.newRolloutStatus(),
		c.rolloutVerb("history <rollout>", "List the last runs that ended", "", c.rolloutHistory),
		c.rolloutVerb("pause <rollout>", "Let no further cluster begin: set spec.suspend", "Those that have begun go on. Git sets spec.suspend back if it declares the field.",
			func(ctx context.Context, cl client.Client, key client.ObjectKey) error {
				return c.suspendRollout(ctx, cl, key, true)
			}),
		c.rolloutVerb("resume <rollout>", "Let clusters begin again: set spec.suspend to false", "Git sets spec.suspend back if it declares the field.",
			func(ctx context.Context, cl client.Client, key client.ObjectKey) error {
				return c.suspendRollout(ctx, cl, key, false)
			}),
		c.newRolloutAbort(),
		c.rolloutVerb("revert <rollout>", "Give clusters that have the revision of the run the last good one back", "The same as cascade rollout abort --revert.", c.revertRollout),
		c.rolloutVerb("retry <rollout>", "Try clusters again that failed, and let a run that halted go on", "", c.retryRollout),
		c.newRolloutSkip(),
	)
	return cmd
}

// rolloutVerb is a verb that needs the name of a Rollout only.
func (c *cli) rolloutVerb(use, short, long string, do func(context.Context, client.Client, client.ObjectKey) error) *cobra.Command {
	if long != "" {
		long = short + ". " + long
	}
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeName("rollout"), RunE: func(cmd *cobra.Command, args []string) error {
		cl, err := c.client()
		if err != nil {
			return err
		}
		return do(cmd.Context(), cl, client.ObjectKey{Namespace: c.namespace(), Name: args[0]})
	}}
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) newRolloutAbort() *cobra.Command {
	var revert bool
	cmd := c.rolloutVerb("abort <rollout>", "End the run: clusters keep what they have, and get no more of it",
		"A newer revision begins another run. With --revert the clusters that have the revision get the last good one back.",
		func(ctx context.Context, cl client.Client, key client.ObjectKey) error {
			if revert {
				return c.revertRollout(ctx, cl, key)
			}
			return c.abortRollout(ctx, cl, key)
		})
	cmd.Flags().BoolVar(&revert, "revert", false, "give clusters that have the revision the last good one back")
	return cmd
}

func (c *cli) newRolloutSkip() *cobra.Command {
	var undo bool
	cmd := &cobra.Command{
		Use:   "skip <rollout> <cluster>",
		Short: "Let one cluster keep the revision that it has while others get that of the run",
		Long: "Let one cluster keep the revision that it has while others get that of the run, so that no wave waits for\n" +
			"it. One that has that of the run already keeps it, and counts neither as failed nor as proof; a run that\n" +
			"halted goes on after cascade rollout retry. A later revision reaches it again. With --undo it gets the\n" +
			"revision after all.",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeName("rollout"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.skipCluster(cmd.Context(), cl, client.ObjectKey{Namespace: c.namespace(), Name: args[0]}, args[1], undo)
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "let the cluster get the revision after all")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func readRollout(ctx context.Context, cl client.Client, key client.ObjectKey) (*v1alpha1.Rollout, error) {
	r := &v1alpha1.Rollout{}
	if err := cl.Get(ctx, key, r); err != nil {
		return nil, fmt.Errorf("cannot read Rollout %s: %w", key, err)
	}
	return r, nil
}

// annotate sets annotations of an object; a nil value removes one.
func annotate(ctx context.Context, cl client.Client, o client.Object, values map[string]*string) error {
	return mergePatch(ctx, cl, o, map[string]any{"metadata": map[string]any{"annotations": values}})
}

// annotateUnchanged does so unless somebody else wrote the object since it was read.
func annotateUnchanged(ctx context.Context, cl client.Client, o client.Object, values map[string]*string) error {
	return mergePatch(ctx, cl, o, map[string]any{"metadata": map[string]any{"resourceVersion": o.GetResourceVersion(), "annotations": values}})
}

func mergePatch(ctx context.Context, cl client.Client, o client.Object, patch map[string]any) error {
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return cl.Patch(ctx, o, client.RawPatch("application/merge-patch+json", text))
}

func (c *cli) suspendRollout(ctx context.Context, cl client.Client, key client.ObjectKey, suspend bool) error {
	r, err := readRollout(ctx, cl, key)
	if err != nil {
		return err
	}
	if r.Spec.Suspend != suspend {
		if err := mergePatch(ctx, cl, r, map[string]any{"spec": map[string]any{"suspend": suspend}}); err != nil {
			return fmt.Errorf("cannot set spec.suspend of Rollout %s: %w", key, err)
		}
	}
	if suspend {
		fmt.Fprintf(c.streams.Out, "✔ rollout %s is suspended: no further cluster begins, those that have begun go on\n", key)
	} else {
		fmt.Fprintf(c.streams.Out, "✔ rollout %s is resumed\n", key)
	}
	if owner := declaredBy(r); owner != "" {
		fmt.Fprintf(c.streams.ErrOut, "► %s declares the Rollout; if Git has spec.suspend, it sets the field back\n", owner)
	}
	return nil
}

// declaredBy is the Kustomization, HelmRelease or Layer of the parent tier that applied an object.
func declaredBy(o client.Object) string {
	for kind, group := range map[string]string{"Kustomization": "kustomize.toolkit.fluxcd.io", "HelmRelease": "helm.toolkit.fluxcd.io", "Layer": v1alpha1.LayerLabelGroup} {
		if name := o.GetLabels()[group+"/name"]; name != "" {
			return kind + " " + o.GetLabels()[group+"/namespace"] + "/" + name
		}
	}
	return ""
}

// underWay is the run of a Rollout, if it has not ended.
func underWay(r *v1alpha1.Rollout) (*v1alpha1.RolloutRun, error) {
	run := r.Status.Run
	switch {
	case run == nil:
		return nil, fmt.Errorf("rollout %s has no run yet: look at it with: %s", client.ObjectKeyFromObject(r), held.StatusCommand(r))
	case !rollout.Active(run):
		return nil, fmt.Errorf("run %d of rollout %s is over (%s): look at it with: %s", run.Number, client.ObjectKeyFromObject(r), run.Phase, held.StatusCommand(r))
	}
	return run, nil
}

func (c *cli) abortRollout(ctx context.Context, cl client.Client, key client.ObjectKey) error {
	r, err := readRollout(ctx, cl, key)
	if err != nil {
		return err
	}
	run, err := underWay(r)
	if err != nil {
		return fmt.Errorf("cannot abort: %w", err)
	}
	if err := annotate(ctx, cl, r, map[string]*string{
		v1alpha1.AbortRolloutAnnotation: new(rollout.Request(&r.Status, run.StaleAbort, c.now())), v1alpha1.RevertRolloutAnnotation: nil,
	}); err != nil {
		return fmt.Errorf("cannot annotate Rollout %s: %w", key, err)
	}
	fmt.Fprintf(c.streams.Out, "✔ run %d of rollout %s ends: clusters keep what they have, and no further one gets %s\n", run.Number, key, shortRevision(run.Revision))
	return nil
}

func (c *cli) revertRollout(ctx context.Context, cl client.Client, key client.ObjectKey) error {
	r, err := readRollout(ctx, cl, key)
	if err != nil {
		return err
	}
	run, good := r.Status.Run, r.Status.LastGood
	switch {
	case run == nil:
		return fmt.Errorf("cannot revert: rollout %s has no run yet", key)
	case run.Phase != v1alpha1.RolloutProgressing && run.Phase != v1alpha1.RolloutHalted && run.Phase != v1alpha1.RolloutAborted:
		return fmt.Errorf("cannot revert: run %d of rollout %s is %s; to go back from a revision that passed all waves, revert the commit in Git", run.Number, key, run.Phase)
	case good == nil:
		return fmt.Errorf("cannot revert: no revision has passed all waves of rollout %s, so that there is none to go back to; push a commit that mends it", key)
	case good.RolloutRevision == run.RolloutRevision:
		return fmt.Errorf("cannot revert: %s is the last good revision of rollout %s itself", shortRevision(run.Revision), key)
	}
	if err := annotate(ctx, cl, r, map[string]*string{
		v1alpha1.RevertRolloutAnnotation: new(rollout.Request(&r.Status, run.StaleRevert, c.now())), v1alpha1.AbortRolloutAnnotation: nil,
	}); err != nil {
		return fmt.Errorf("cannot annotate Rollout %s: %w", key, err)
	}
	fmt.Fprintf(c.streams.Out, "✔ clusters of rollout %s that have %s get %s back\n", key, shortRevision(run.Revision), shortRevision(good.Revision))
	return nil
}

func (c *cli) retryRollout(ctx context.Context, cl client.Client, key client.ObjectKey) error {
	r, err := readRollout(ctx, cl, key)
	if err != nil {
		return err
	}
	run, err := underWay(r)
	if err != nil {
		return fmt.Errorf("cannot retry: %w", err)
	}
	token := c.now().UTC().Format(time.RFC3339Nano)
	if err := annotate(ctx, cl, r, map[string]*string{v1alpha1.RetryRolloutAnnotation: &token}); err != nil {
		return fmt.Errorf("cannot annotate Rollout %s: %w", key, err)
	}
	fmt.Fprintf(c.streams.Out, "✔ clusters of rollout %s that failed at %s are tried again\n", key, shortRevision(run.Revision))
	return nil
}

// skipCluster writes to the Child, on which other Rollouts may have entries of their own.
func (c *cli) skipCluster(ctx context.Context, cl client.Client, key client.ObjectKey, cluster string, undo bool) error {
	r, err := readRollout(ctx, cl, key)
	if err != nil {
		return err
	}
	run := r.Status.Run
	if run == nil && !undo {
		return fmt.Errorf("cannot skip: rollout %s has no run yet, so that there is no revision to do without", key)
	}
	child, at := &v1alpha1.Child{}, client.ObjectKey{Namespace: key.Namespace, Name: cluster}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := cl.Get(ctx, at, child); err != nil {
			return fmt.Errorf("cannot read Child %s: %w", at, err)
		}
		old := child.Annotations[v1alpha1.SkipRolloutAnnotation]
		entries := entriesBut(old, r.Name)
		if undo && rollout.Skip(child.Annotations, r.Name) == "" {
			return fmt.Errorf("cannot undo: Child %s does not skip a revision of rollout %s", at, key)
		}
		if !undo {
			entries = append(entries, r.Name+"="+word(rollout.Word(&r.Status)))
		}
		return annotateUnchanged(ctx, cl, child, map[string]*string{v1alpha1.SkipRolloutAnnotation: joined(entries)})
	})
	if err != nil {
		return fmt.Errorf("cannot change what Child %s skips: %w", at, err)
	}
	pin := rollout.OnRecord(child, rollout.MoverOf(r))
	switch {
	case undo:
		fmt.Fprintf(c.streams.Out, "✔ %s gets what rollout %s brings\n", at, key)
	case pin != nil && pin.RolloutRevision == run.RolloutRevision:
		fmt.Fprintf(c.streams.Out, "✔ %s has %s of rollout %s already, and keeps it: no wave waits for it, and it does not count as failed\n", at, shortRevision(run.Revision), key)
	default:
		fmt.Fprintf(c.streams.Out, "✔ %s does without %s of rollout %s\n", at, shortRevision(run.Revision), key)
	}
	return nil
}

// entriesBut are the entries <name>=<revision> of an annotation but those of one name.
func entriesBut(value, name string) []string {
	parts := strings.Split(value, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return slices.DeleteFunc(parts, func(p string) bool { return p == "" || strings.HasPrefix(p, name+"=") })
}

// joined is the value of an annotation with entries, nil without any.
func joined(entries []string) *string {
	if len(entries) == 0 {
		return nil
	}
	value := strings.Join(entries, ",")
	return &value
}

// word is how an entry of an annotation names a revision: a branch may have a comma in its
// name, which the commit behind it has not.
func word(revision string) string {
	if !strings.Contains(revision, ",") {
		return revision
	}
	content := rollout.Content(revision)
	return content[strings.Index(content, ":")+1:]
}
