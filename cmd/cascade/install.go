package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/agent"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/hindrance"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// install is one call of the verb.
type install struct {
	*cli
	options deploy.Options
	timeout time.Duration
	// downgrade: a version that is there may be replaced by an earlier one.
	downgrade bool
	// dryRun and diff show what would be done.
	dryRun, diff bool
}

func (c *cli) newInstall() *cobra.Command {
	values, i, export := &valueFlags{}, &install{cli: c}, false
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the agent in the first tier, or upgrade it there; all others are seeded",
		Long: "Install the agent in the first tier, or upgrade it there; all others are seeded. A tier of which\n" +
			"nothing is on record creates no Cluster before a person says that it is new, because the same\n" +
			"cluster may run already, built by a management cluster that was lost. --first-sync=create says\n" +
			"that this tier never had one.\n\n" +
			"What the agent is to be is said by --values and by flags, in the words of spec.agent of a Layer.\n" +
			"All of it is said again for an upgrade: what an installation had and these values do not have is\n" +
			"taken away. --diff ends with 1 if there are differences.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if i.options, err = values.options(cmd.Flags(), c.streams.In); err != nil {
				return err
			}
			if c.flags.Namespace != nil && *c.flags.Namespace != "" {
				i.options.Namespace = *c.flags.Namespace
			}
			if export {
				return i.export()
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), i.timeout)
			defer cancel()
			return i.run(ctx)
		},
	}
	values.bind(cmd.Flags())
	cmd.Flags().BoolVar(&export, "export", false, "print the manifests instead of applying them; without --host-network, for the host's network")
	cmd.Flags().BoolVar(&i.dryRun, "dry-run", false, "ask the API server what would change, and change nothing")
	cmd.Flags().BoolVar(&i.diff, "diff", false, "show what would change, and change nothing")
	cmd.Flags().BoolVar(&i.downgrade, "allow-downgrade", false, "install an earlier version than the one that is there")
	cmd.Flags().DurationVar(&i.timeout, "timeout", 5*time.Minute, "how long to wait for the agent to be ready")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// steps are the objects in the order in which they are applied.
func (i *install) steps() ([][]*unstructured.Unstructured, error) {
	crds, err := deploy.CRDs()
	if err != nil {
		return nil, err
	}
	rights, workload, err := deploy.Agent(i.options)
	if err != nil {
		return nil, err
	}
	if err := starts(workload); err != nil {
		return nil, err
	}
	return [][]*unstructured.Unstructured{crds, rights, workload}, nil
}

// starts is an error if the agent among the objects would end at each start by its arguments: those of
// the values, and what was added to them.
func starts(workload []*unstructured.Unstructured) error {
	for _, u := range workload {
		if u.GetKind() != "Deployment" {
			continue
		}
		d := &appsv1.Deployment{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, d); err != nil {
			return fmt.Errorf("cannot read Deployment %s: %w", u.GetName(), err)
		}
		args := d.Spec.Template.Spec.Containers[0].Args
		if err := agent.Check(args); err != nil {
			return fmt.Errorf("cannot install the agent, which would end at each start: %w. Its arguments are %s; more than one replica gives it --shards, and --arg=--NAME=VALUE says what counts",
				err, strings.Join(args, " "))
		}
	}
	return nil
}

func (i *install) export() error {
	steps, err := i.steps()
	if err != nil {
		return err
	}
	text, err := utils.ObjectsToYAML(slices.Concat(steps...))
	if err != nil {
		return fmt.Errorf("cannot print manifests: %w", err)
	}
	_, err = fmt.Fprint(i.streams.Out, text)
	return err
}

func (i *install) run(ctx context.Context) error {
	cluster, err := i.connect()
	if err != nil {
		return err
	}
	defer cluster.Close()
	namespace := cmp.Or(i.options.Namespace, v1alpha1.AgentNamespace)
	found, err := i.admit(ctx, cluster, namespace, "install the agent")
	if err != nil {
		return err
	}
	if found != nil && found.Kustomization != "" {
		i.say("Kustomization %s applies the agent as well, and undoes with its next sync what is installed here; see cascade bootstrap", found.Kustomization)
	}
	if err := i.place(ctx, cluster, found); err != nil {
		return err
	}
	steps, err := i.steps()
	if err != nil {
		return err
	}
	markVersion(steps[len(steps)-1])
	if i.dryRun || i.diff {
		return i.show(ctx, cluster, namespace, slices.Concat(steps...))
	}
	return i.apply(ctx, cluster, namespace, steps)
}

// admit finds the agent that is there, and is an error if none must be installed over it, or beside it.
func (i *install) admit(ctx context.Context, cl client.Client, namespace, what string) (*installation.Found, error) {
	found, err := installation.Find(ctx, cl)
	if err != nil {
		return nil, err
	}
	if err := found.Admit(namespace, version(), i.downgrade); err != nil {
		return nil, err
	}
	if found == nil {
		if err := i.noProcess(ctx, cl, namespace, what, "two would undo each other's work"); err != nil {
			return nil, err
		}
	}
	return found, i.tellStrays(ctx, cl, namespace, found == nil)
}

// tellStrays tells of records of the first sync in other namespaces than that of the agent, which goes by its own alone.
// Who pushes into this cluster goes by them.
func (i *install) tellStrays(ctx context.Context, cl client.Client, namespace string, anew bool) error {
	records, _, err := recordsIn(ctx, cl, nil)
	for _, stray := range records {
		if stray == namespace {
			continue
		}
		advice, holds := "", "approved or held"
		if anew {
			// Its first record takes over what this one says of Clusters that are away.
			holds = "approved"
			advice = fmt.Sprintf("To go on with it, install the agent there, with -n %s. ", stray)
		}
		i.say("ConfigMap %s/%s is the record of another agent than the one in namespace %s, for which nothing is %s by it. Clusters that are pushed into this cluster may be held by it. "+
			"%sIf no agent is in %s, and no Cluster that it names runs elsewhere, delete it", stray, v1alpha1.FirstSyncConfigMap, namespace, holds, advice, stray)
	}
	return err
}

// noProcess is an error if an agent works in a namespace that is no Deployment, which would not end.
func (c *cli) noProcess(ctx context.Context, cl client.Client, namespace, what, why string) error {
	works, err := installation.Undeployed(ctx, cl, namespace, c.now)
	if err == nil && works {
		err = fmt.Errorf("cannot %s: one works in namespace %s that is no Deployment, as that of cascade mom, and %s", what, namespace, why)
	}
	return err
}

// place decides about the host's network, where nothing was said.
func (i *install) place(ctx context.Context, cluster *apply.Cluster, found *installation.Found) error {
	ready := 0
	if i.options.HostNetwork == nil && found == nil {
		var err error
		if ready, err = installation.ReadyNodes(ctx, cluster); err != nil {
			return err
		}
	}
	onHost, why := installation.HostNetwork(i.options.HostNetwork, found, ready)
	i.options.HostNetwork = &onHost
	i.say("the agent is on %s: %s", networkName(onHost), why)
	if found != nil && found.Version != "" && found.Version != version() {
		i.say("version %s is there, this is %s", found.Version, version())
	}
	return nil
}

// show shows a plan.
func (i *install) show(ctx context.Context, cluster *apply.Cluster, namespace string, objects []*unstructured.Unstructured) error {
	steps, err := installation.Plan(ctx, cluster, namespace, objects)
	if err != nil {
		return err
	}
	if i.diff {
		differ, err := installation.Differs(i.streams.Out, steps)
		if err == nil && differ {
			err = errNotReady
		}
		return err
	}
	count := map[installation.Action]int{}
	for _, s := range steps {
		count[s.Action]++
		if s.Action == installation.Leave {
			continue
		}
		note := ""
		if s.Action == installation.Keep {
			note = " (it is of a later release of Flux)"
		}
		fmt.Fprintf(i.streams.Out, "%s %s%s\n", s.Action, inventory.Of(s.Object()), note)
	}
	_, err = fmt.Fprintf(i.streams.Out, "%d to create, %d to change, %d to delete, %d unchanged\n",
		count[installation.Create], count[installation.Change], count[installation.Delete], count[installation.Leave]+count[installation.Keep])
	return err
}

func (i *install) apply(ctx context.Context, cluster *apply.Cluster, namespace string, steps [][]*unstructured.Unstructured) error {
	applier := apply.New(cluster, installation.Owner(namespace), nil, i.now)
	if err := i.inSteps(ctx, applier, cluster, namespace, steps); err != nil {
		return err
	}
	gone, err := installation.Outdated(ctx, cluster, namespace, slices.Concat(steps...))
	if err != nil {
		return err
	}
	for _, u := range gone {
		i.say("deleting %s, which is not a part of the installation any more", inventory.Of(u))
		if err := installation.Remove(ctx, cluster, u); err != nil {
			return err
		}
	}
	fmt.Fprintln(i.streams.Out, "✔ the agent is running")
	return nil
}

// inSteps applies definitions, rights and the workload, each when the one before it is usable.
func (i *install) inSteps(ctx context.Context, applier *apply.Applier, cluster *apply.Cluster, namespace string, steps [][]*unstructured.Unstructured) error {
	for n, what := range []string{"CRDs", "namespace and rights", "agent"} {
		i.say("applying %s", what)
		result, err := applier.Sync(ctx, []apply.Phase{{Objects: steps[n]}}, apply.Options{
			Record: func(context.Context, []inventory.Entry) error { return nil }, KeepNewer: true,
		})
		// What is not usable yet is waited for below.
		var waiting *apply.WaitError
		if err != nil && !errors.As(err, &waiting) {
			return fmt.Errorf("cannot apply %s: %w", what, err)
		}
		for _, change := range result.Changes.Entries {
			if change.Action == "skipped" {
				i.say("%s stays as it is: it is of a later release of Flux", change.Subject)
			}
		}
		if err := i.await(ctx, applier, cluster, namespace, what, inventory.OfAll(steps[n])); err != nil {
			return err
		}
	}
	return nil
}

// Pauses between two looks at what is waited for.
const (
	healthPause = 200 * time.Millisecond
	causePause  = time.Second
)

// await waits until objects are healthy, and tells why they are not as soon as that is known.
func (i *install) await(ctx context.Context, applier *apply.Applier, cluster *apply.Cluster, namespace, what string, entries []inventory.Entry) error {
	var last apply.Health
	var causes []string
	var looked time.Time
	progress := i.progress(what)
	defer progress.end()
	err := wait.PollUntilContextCancel(ctx, healthPause, true, func(ctx context.Context) (bool, error) {
		found, err := applier.Health(ctx, entries, nil)
		if err == nil {
			last = found
		}
		if err == nil && last.Done() {
			return true, nil
		}
		if now := i.now(); now.Sub(looked) >= causePause {
			looked = now
			if found, err := hindrance.Of(ctx, cluster, namespace); err == nil && !slices.Equal(found, causes) {
				causes = found
				for _, cause := range causes {
					i.say("waiting for %s: %s", what, cause)
				}
			}
		}
		progress.tick(i.now())
		return false, nil
	})
	switch {
	case err == nil:
		return nil
	case len(causes) > 0:
		return fmt.Errorf("cannot wait for %s: %w: %s", what, err, strings.Join(causes, "; "))
	}
	return fmt.Errorf("cannot wait for %s: %w: %s", what, err, last.Message())
}
