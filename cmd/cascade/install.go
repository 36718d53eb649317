package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/agent"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

func (c *cli) newInstall() *cobra.Command {
	var image, firstSync string
	var replicas int32
	var export bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the agent in the first tier; all others are seeded",
		Long: "Install the agent in the first tier; all others are seeded. A tier of which nothing is on record\n" +
			"creates no Cluster before a person says that it is new, because the same cluster may run already,\n" +
			"built by a management cluster that was lost. --first-sync=create says that this tier never had one.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := agent.CheckFirstSync(firstSync); err != nil {
				return err
			}
			if replicas < 1 {
				return fmt.Errorf("cannot install an agent with --replicas %d: it must be from 1 to %d", replicas, deploy.MostReplicas)
			}
			crds, err := deploy.CRDs()
			if err != nil {
				return err
			}
			var args []string
			if firstSync != agent.FirstSyncAdopt {
				args = append(args, "--first-sync="+firstSync)
			}
			rights, workload, err := deploy.Agent(deploy.Options{AgentValues: v1alpha1.AgentValues{Image: image, Args: args, Replicas: replicas}})
			if err != nil {
				return err
			}
			if export {
				text, err := utils.ObjectsToYAML(append(append(crds, rights...), workload...))
				if err != nil {
					return fmt.Errorf("cannot print manifests: %w", err)
				}
				_, err = fmt.Fprint(c.streams.Out, text)
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return c.install(ctx, [][]*unstructured.Unstructured{crds, rights, workload})
		},
	}
	cmd.Flags().StringVar(&image, "image", cmp.Or(os.Getenv("CASCADE_IMAGE"), "cascade:"+version()),
		"image of the agent, with a tag: flux version asks for one")
	cmd.Flags().StringVar(&firstSync, "first-sync", agent.FirstSyncAdopt, "adopt, or create for a tier that never had a Cluster")
	cmd.Flags().Int32Var(&replicas, "replicas", 1, "replicas of the agent, each on a node of its own, which share the Children of the tier out")
	cmd.Flags().BoolVar(&export, "export", false, "print the manifests instead of applying them")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for the agent to be ready")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) install(ctx context.Context, steps [][]*unstructured.Unstructured) error {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	cluster, err := apply.Connect(config, newScheme())
	if err != nil {
		return err
	}
	defer cluster.Close()
	applier := apply.New(cluster, apply.Owner{
		FieldManager: "cascade-install", LabelGroup: v1alpha1.InstallLabelGroup,
		Name: v1alpha1.AgentName, Namespace: v1alpha1.AgentNamespace,
	}, nil, c.now)
	for i, what := range []string{"CRDs", "namespace and rights", "agent"} {
		fmt.Fprintf(c.streams.ErrOut, "► applying %s\n", what)
		_, err := applier.Sync(ctx, []apply.Phase{{Objects: steps[i]}}, apply.Options{
			Record: func(context.Context, []inventory.Entry) error { return nil },
		})
		// What is not usable yet is waited for below.
		var waiting *apply.WaitError
		if err != nil && !errors.As(err, &waiting) {
			return fmt.Errorf("cannot apply %s: %w", what, err)
		}
		entries := inventory.OfAll(steps[i])
		var last apply.Health
		err = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			var err error
			last, err = applier.Health(ctx, entries, nil)
			return err == nil && last.Done(), nil
		})
		if err != nil {
			return fmt.Errorf("cannot wait for %s: %w: %s", what, err, last.Message())
		}
	}
	fmt.Fprintln(c.streams.Out, "✔ the agent is running")
	return nil
}
