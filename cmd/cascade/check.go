package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"github.com/cascade-gitops/cascade/cmd/cascade/check"
)

func (c *cli) newCheck() *cobra.Command {
	var before bool
	var output string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Tell whether a cluster can become a tier, and whether the agent of one works",
		Long: "Tell whether a cluster can become a tier (--pre), and whether the agent of one works: what is missing,\n" +
			"what is broken, and what to do about it. It reads this cluster only, and writes nothing; how the\n" +
			"clusters below are comes from what their agents report. It ends with 1 if something has failed.\n" +
			"docs/check.md has all reasons.",
		Example: "  cascade check --pre\n  cascade check\n  cascade check -o json | jq '.[] | select(.level==\"Failure\")'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			found, err := c.check(ctx, before)
			if err != nil {
				return err
			}
			if output == "" {
				err = printFindings(c.streams.Out, found)
			} else {
				err = printAs(c.streams.Out, output, found)
			}
			if err != nil {
				return err
			}
			if check.Failed(found) {
				return errNotReady
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&before, "pre", false, "before an installation: only what it needs")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml instead of lines")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long it may take")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) check(ctx context.Context, before bool) ([]check.Finding, error) {
	cl, err := c.client()
	if err != nil {
		return nil, err
	}
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		config.Timeout = time.Until(deadline) // discovery takes no context
	}
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the cluster: %w", err)
	}
	reader := &check.Reader{Client: cl, Discovery: api, Namespace: c.namespace(), Program: version(), Before: before}
	facts, err := reader.Read(ctx)
	if err != nil {
		return nil, err
	}
	return check.Judge(facts, c.now()), nil
}

// printFindings prints a line for each finding, and what to do below those that have
// something.
func printFindings(out io.Writer, found []check.Finding) error {
	for _, f := range found {
		mark := map[check.Level]string{check.OK: "✔", check.Warning: "⚠", check.Failure: "✗"}[f.Level]
		line := fmt.Sprintf("%s %s: ", mark, f.Subject)
		if f.Reason != "" {
			line += f.Reason + ": "
		}
		if _, err := fmt.Fprintln(out, line+f.Message); err != nil {
			return err
		}
		if f.Remedy == "" {
			continue
		}
		if _, err := fmt.Fprintln(out, "  ↳ "+f.Remedy); err != nil {
			return err
		}
	}
	return nil
}
