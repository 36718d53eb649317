package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
)

func (c *cli) newApprove() *cobra.Command {
	approve := &cobra.Command{Use: "approve", Short: "Release what is held for a person to decide"}
	var kind, hash string
	prune := &cobra.Command{
		Use:   "prune <name>",
		Short: "Release one held prune plan",
		Long: "Release the prune plan of a Kustomization, a HelmRelease or a Child that is held because too much would be\n" +
			"deleted. Without --hash it shows what is held. The hash names exactly that list of deletes: should\n" +
			"the list change, it has to be approved again. Protected objects are never released this way.",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			return c.completeName(kind)(cmd, args, begun)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.approvePrune(cmd.Context(), cl, kind, client.ObjectKey{Namespace: c.namespace(), Name: args[0]}, hash)
		},
	}
	prune.Flags().StringVar(&kind, "kind", kustomizev1.KustomizationKind, "Kustomization, HelmRelease or Child")
	prune.Flags().StringVar(&hash, "hash", "", "hash of the plan, as the object's condition shows it")
	c.flags.AddFlags(prune.Flags())
	approve.AddCommand(prune, c.newApproveRemoval(), c.newApproveCreate(), c.newApproveFirstSync(), c.newApproveTakeOver(), c.newApproveRollout())
	return approve
}

func (c *cli) approvePrune(ctx context.Context, cl client.Client, kind string, key client.ObjectKey, hash string) error {
	object, held, err := heldPlans(ctx, cl, kind, key)
	if err != nil {
		return err
	}
	if len(held) == 0 {
		return fmt.Errorf("cannot approve: %s %s holds no prune plan", kind, key)
	}
	if hash == "" {
		for _, h := range held {
			fmt.Fprintln(c.streams.Out, h.message)
		}
		return errNotReady
	}
	// An agent of a version that recorded no hash compares the one that it is given.
	if !slices.ContainsFunc(held, func(h heldPlan) bool { return h.plan == nil || h.plan.Hash == hash }) {
		return fmt.Errorf("cannot approve %s: the plan that is held now is another; "+
			"look at it with: cascade approve prune %s -n %s --kind %s", hash, key.Name, key.Namespace, kind)
	}
	if err := annotate(ctx, cl, object, map[string]*string{v1alpha1.ApprovePruneAnnotation: &hash, v1alpha1.ApprovedByAnnotation: approverOf(ctx, cl)}); err != nil {
		return fmt.Errorf("cannot annotate %s %s: %w", kind, key, err)
	}
	fmt.Fprintf(c.streams.Out, "✔ approved prune plan %s of %s %s\n", hash, kind, key)
	return nil
}

// approverOf is who asks, as the API server knows them; nil if it does not say, so that no
// former approver is taken for this one.
func approverOf(ctx context.Context, cl client.Client) *string {
	who := &authenticationv1.SelfSubjectReview{}
	if err := cl.Create(ctx, who); err != nil || who.Status.UserInfo.Username == "" {
		return nil
	}
	return &who.Status.UserInfo.Username
}

// heldPlan is a plan of deletes that an object holds.
type heldPlan struct {
	message string
	// plan is nil if the agent did not record it.
	plan *v1alpha1.HeldPrune
}

// heldPlans returns the object and the plans that it holds.
func heldPlans(ctx context.Context, cl client.Client, kind string, key client.ObjectKey) (client.Object, []heldPlan, error) {
	switch strings.ToLower(kind) {
	case "kustomization":
		o := &kustomizev1.Kustomization{}
		if err := cl.Get(ctx, key, o); err != nil {
			return nil, nil, fmt.Errorf("cannot read Kustomization %s: %w", key, err)
		}
		// What is held stays so while something else is wrong, of which Ready tells then.
		cond := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.PruneBlockedCondition)
		if ready := meta.FindStatusCondition(o.Status.Conditions, fluxmeta.ReadyCondition); cond == nil && ready != nil && ready.Reason == v1alpha1.ReasonPruneBlocked {
			cond = ready
		}
		if cond != nil {
			held, _ := v1alpha1.HeldOf(o)
			return o, []heldPlan{{cond.Message, held.Prune}}, nil
		}
		return o, nil, nil
	case "helmrelease", "hr":
		o := &helmv2.HelmRelease{}
		if err := cl.Get(ctx, key, o); err != nil {
			return nil, nil, fmt.Errorf("cannot read HelmRelease %s: %w", key, err)
		}
		if cond := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.PruneBlockedCondition); cond != nil {
			// Its objects are confirmed in Git; there is no plan that a hash releases.
			return o, []heldPlan{{cond.Message, &v1alpha1.HeldPrune{}}}, nil
		}
		return o, nil, nil
	case "child":
		o := &v1alpha1.Child{}
		if err := cl.Get(ctx, key, o); err != nil {
			return nil, nil, fmt.Errorf("cannot read Child %s: %w", key, err)
		}
		var plans []heldPlan
		for i := range o.Status.Layers {
			l := &o.Status.Layers[i]
			if beside := held.Beside(l); beside != nil {
				plans = append(plans, heldPlan{held.Deletes(l), beside})
			}
			if l.Reason != v1alpha1.ReasonPruneBlocked {
				continue
			}
			plan := heldPlan{message: l.Message}
			if l.Held != nil {
				plan.plan = l.Held.Prune
			}
			plans = append(plans, plan)
		}
		return o, plans, nil
	}
	return nil, nil, fmt.Errorf("cannot approve for kind %q: use Kustomization, HelmRelease or Child", kind)
}
