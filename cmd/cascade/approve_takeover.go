package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/epoch"
)

func (c *cli) newApproveTakeOver() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "take-over [<child>]",
		Short: "Take children over from a management cluster that is gone",
		Long: "Let this tier go on with children that another management cluster took over, one that was made of a\n" +
			"copy of this one or of the same repositories. Their Children have the reason Superseded, and this tier\n" +
			"writes nothing to them. Make sure that the other one is gone: it would be superseded in turn.",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeName("child"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) == 1) {
				return errors.New("cannot take over: name a Child, or set --all for those of the namespace")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			if all {
				return c.takeOverAll(cmd.Context(), cl)
			}
			child := &v1alpha1.Child{}
			key := client.ObjectKey{Namespace: c.namespace(), Name: args[0]}
			if err := cl.Get(cmd.Context(), key, child); err != nil {
				return fmt.Errorf("cannot read Child %s: %w", key, err)
			}
			if child.Status.SupersededBy == nil {
				return fmt.Errorf("cannot take over Child %s: nobody has superseded this tier there", key)
			}
			return c.takeOver(cmd.Context(), cl, child)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "take over every superseded Child of the namespace")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) takeOverAll(ctx context.Context, cl client.Client) error {
	children := &v1alpha1.ChildList{}
	if err := cl.List(ctx, children, client.InNamespace(c.namespace())); err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	taken := 0
	for i := range children.Items {
		if children.Items[i].Status.SupersededBy == nil {
			continue
		}
		if err := c.takeOver(ctx, cl, &children.Items[i]); err != nil {
			return err
		}
		taken++
	}
	if taken == 0 {
		return fmt.Errorf("cannot take over: no Child of namespace %s is superseded", c.namespace())
	}
	return nil
}

// takeOver names the one process from which the child may be taken over, and its epoch. Should
// another one have it by then, or the same one once more, it has to be approved again.
func (c *cli) takeOver(ctx context.Context, cl client.Client, child *v1alpha1.Child) error {
	from := child.Status.SupersededBy
	key := client.ObjectKeyFromObject(child)
	approval := epoch.Mark{Epoch: from.Number, Holder: from.Holder}.Approval()
	if err := annotate(ctx, cl, child, map[string]*string{v1alpha1.ApproveTakeOverAnnotation: &approval, v1alpha1.ApprovedByAnnotation: approverOf(ctx, cl)}); err != nil {
		return fmt.Errorf("cannot annotate Child %s: %w", key, err)
	}
	fmt.Fprintf(c.streams.Out, "✔ Child %s may be taken over from epoch %d of %s\n", key, from.Number, from.Holder)
	return nil
}
