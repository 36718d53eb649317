package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (c *cli) newSuspend() *cobra.Command {
	return c.suspendVerb(true, &cobra.Command{
		Use:   "suspend <kind> [name...]",
		Short: "Let nothing of an object be done until it is resumed: set spec.suspend",
		Long: "Let nothing of an object be done until it is resumed: set spec.suspend. What is in place stays. A Layer that\n" +
			"is suspended is pushed to no child, a Child that is gets no layer. Git sets the field back if it\n" +
			"declares it.",
		Example: "  cascade suspend kustomization apps\n" +
			"  cascade suspend layer tenants -n fleet\n" +
			"  cascade suspend child shop -n fleet",
	})
}

func (c *cli) newResume() *cobra.Command {
	return c.suspendVerb(false, &cobra.Command{
		Use:   "resume <kind> [name...]",
		Short: "Let an object that was suspended go on: set spec.suspend to false",
		Long: "Let an object that was suspended go on: set spec.suspend to false. With --wait it is over when the object was\n" +
			"reconciled, and ends with 1 if that failed. Git sets the field back if it declares it.",
		Example: "  cascade resume kustomization apps --wait\n  cascade resume layer --all -n fleet",
	})
}

func (c *cli) suspendVerb(suspend bool, cmd *cobra.Command) *cobra.Command {
	var all, wait bool
	var timeout time.Duration
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.ValidArgsFunction = c.completeKindAndName(suspendable)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		g, ok := kindOf(args[0])
		if !ok || g.suspend == nil {
			return fmt.Errorf("cannot %s kind %q: use %s", cmd.Name(), args[0], strings.Join(suspendable(), ", "))
		}
		if all == (len(args) > 1) {
			return fmt.Errorf("cannot %s: say the names of %s, or --all of the namespace", cmd.Name(), g.name)
		}
		cl, err := c.client()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		objects, err := c.toSuspend(ctx, cl, g, args[1:])
		if err != nil {
			return err
		}
		return c.setAll(ctx, cl, g, objects, suspend, wait)
	}
	cmd.Flags().BoolVar(&all, "all", false, "all objects of the kind in the namespace")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long it may take")
	if !suspend {
		cmd.Flags().BoolVar(&wait, "wait", false, "reconcile each object, and wait for the result")
	}
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// suspendable are the words for what has spec.suspend.
func suspendable() []string {
	var words []string
	for _, g := range getters() {
		if g.suspend != nil {
			words = append(words, g.single)
		}
	}
	return words
}

// toSuspend are the objects of these names, or all.
func (c *cli) toSuspend(ctx context.Context, cl client.Client, g getter, names []string) ([]client.Object, error) {
	all, err := listObjects(ctx, cl, g, listing{options: []client.ListOption{client.InNamespace(c.namespace())}})
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		if len(all) == 0 {
			return nil, fmt.Errorf("found no %s in namespace %s", g.name, c.namespace())
		}
		return all, nil
	}
	var chosen []client.Object
	for _, name := range names {
		i := slices.IndexFunc(all, func(o client.Object) bool { return o.GetName() == name })
		if i < 0 {
			return nil, fmt.Errorf("found no %s %s in namespace %s", g.single, name, c.namespace())
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// setAll sets the field of all objects, and only then waits for any: one may depend on another.
func (c *cli) setAll(ctx context.Context, cl client.Client, g getter, objects []client.Object, suspend, wait bool) error {
	var failed []error
	var asked []*request
	set := slices.DeleteFunc(slices.Clone(objects), func(o client.Object) bool {
		err := c.setSuspend(ctx, cl, g, o, suspend)
		failed = append(failed, err)
		return err != nil
	})
	if !wait {
		return errors.Join(failed...)
	}
	for _, o := range set {
		r, err := c.askResumed(ctx, cl, g, client.ObjectKeyFromObject(o))
		failed = append(failed, err)
		if r != nil {
			asked = append(asked, r)
		}
	}
	if len(asked) > 0 {
		failed = append(failed, c.awaitAll(ctx, cl, asked...))
	}
	return errors.Join(failed...)
}

func (c *cli) setSuspend(ctx context.Context, cl client.Client, g getter, o client.Object, suspend bool) error {
	key := client.ObjectKeyFromObject(o)
	if *g.suspend(o) != suspend {
		if err := mergePatch(ctx, cl, o, map[string]any{"spec": map[string]any{"suspend": suspend}}); err != nil {
			return fmt.Errorf("cannot set spec.suspend of %s %s: %w", g.single, key, err)
		}
	}
	state := "resumed"
	if suspend {
		state = "suspended"
	}
	fmt.Fprintf(c.streams.Out, "✔ %s %s is %s\n", g.single, key, state)
	if owner := declaredBy(o); owner != "" {
		fmt.Fprintf(c.streams.ErrOut, "► %s declares it; if Git has spec.suspend, it sets the field back\n", owner)
	}
	return nil
}

// askResumed asks for the reconciliation of an object that was resumed; nil if nobody would
// answer.
func (c *cli) askResumed(ctx context.Context, cl client.Client, g getter, key client.ObjectKey) (*request, error) {
	s, err := newSubject(g.single, key)
	if err != nil {
		return nil, err
	}
	if err := cl.Get(ctx, key, s.object); err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", g.single, key, err)
	}
	if s.still || isLookedUp(s.object) {
		return nil, nil
	}
	r, err := c.askFor(ctx, cl, g.single, s, s.done())
	if err != nil {
		return nil, err
	}
	r.patient = true
	return r, nil
}
