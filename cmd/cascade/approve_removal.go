package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
)

func (c *cli) newApproveRemoval() *cobra.Command {
	var hash string
	cmd := &cobra.Command{
		Use:   "removal <layer>",
		Short: "Release the held removal of a layer from children",
		Long: "Release the removal of a Layer with deletionPolicy Delete from children that it no longer selects, or\n" +
			"from all because it is being deleted, which is held because it would empty too many at once. Without\n" +
			"--hash it shows what is held. The hash names exactly these children: should they change, it has to be\n" +
			"approved again. What is protected in a child stays there until it is confirmed.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeName("layer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.approveRemoval(cmd.Context(), cl, client.ObjectKey{Namespace: c.namespace(), Name: args[0]}, hash)
		},
	}
	cmd.Flags().StringVar(&hash, "hash", "", "hash of the removal, as the Layer's condition shows it")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) approveRemoval(ctx context.Context, cl client.Client, key client.ObjectKey, hash string) error {
	layer := &v1alpha1.Layer{}
	if err := cl.Get(ctx, key, layer); err != nil {
		return fmt.Errorf("cannot read Layer %s: %w", key, err)
	}
	removal := layer.Status.Removal
	if removal == nil || !removal.Held {
		return fmt.Errorf("cannot approve: Layer %s holds no removal", key)
	}
	if hash == "" {
		fmt.Fprintln(c.streams.Out, held.Removal(layer))
		return errNotReady
	}
	if removal.Hash != hash {
		return fmt.Errorf("cannot approve %s: the removal that is held now is another; look at it with: cascade approve removal %s -n %s", hash, key.Name, key.Namespace)
	}
	if err := annotate(ctx, cl, layer, map[string]*string{v1alpha1.ApproveRemovalAnnotation: &hash, v1alpha1.ApprovedByAnnotation: approverOf(ctx, cl)}); err != nil {
		return fmt.Errorf("cannot annotate Layer %s: %w", key, err)
	}
	fmt.Fprintf(c.streams.Out, "✔ approved removal %s of layer %s from %d children\n", hash, key, removal.Waiting)
	return nil
}

// heldRemovals are the Layers that hold a removal, in all namespaces.
func heldRemovals(ctx context.Context, cl client.Client) ([]string, error) {
	layers := &v1alpha1.LayerList{}
	if err := cl.List(ctx, layers); err != nil {
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot list Layers: %w", err)
	}
	var lines []string
	for i := range layers.Items {
		if l := &layers.Items[i]; held.HoldsRemoval(l) {
			lines = append(lines, held.Removal(l))
		}
	}
	return lines, nil
}
