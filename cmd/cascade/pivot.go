package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/pivot"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

// Words of --to besides a file.
const (
	toSelf   = "self"
	toParent = "parent"
)

// pivotFlags are those of cascade pivot.
type pivotFlags struct {
	to, context string
	// agents and toAgents are the namespaces of both agents, of this cluster and the one of --to; empty:
	// where they are.
	agents, toAgents string
	plan, abort      bool
	tolerate         []string
	timeout          time.Duration
}

func (c *cli) newPivot() *cobra.Command {
	var f pivotFlags
	cmd := &cobra.Command{
		Use:   "pivot <namespace>/<cluster>... --to <kubeconfig>|self|parent",
		Short: "Move Clusters from one management cluster to another, such that one of both acts on them",
		Long: "Move Clusters, with everything that Cluster API and its providers have of them, from the management cluster\n" +
			"of the kubeconfig to another one: into the cluster itself (self), back from there (parent), or to the one of\n" +
			"a kubeconfig. What the Clusters consist of runs on, untouched. Each step is written down before it is begun:\n" +
			"the same command goes on where another one ended, and --abort turns back as long as the target has not\n" +
			"taken over. Where Git declares the Clusters, they are left alone from then on (docs/pivot.md).",
		Example: "  cascade pivot fleet/master-1 --to self --plan\n" +
			"  cascade pivot fleet/master-1 --to self\n" +
			"  cascade pivot fleet/master-1 --to parent\n" +
			"  cascade pivot fleet/master-1 fleet/master-2 --to new-mom.yaml\n" +
			"  cascade pivot fleet/master-1 --to self --abort",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completeCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.plan && f.abort {
				return errors.New("cannot use --plan with --abort")
			}
			names, err := c.clusterNames(args)
			if err != nil {
				return err
			}
			if err := pivot.CheckTolerated(f.tolerate); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			p, err := c.pivotOf(ctx, names, f)
			if err != nil {
				return err
			}
			return c.pivot(ctx, p, f)
		},
	}
	cmd.Flags().StringVar(&f.to, "to", "", "self, parent, or the file of an administrator's kubeconfig of the target")
	cmd.Flags().StringVar(&f.context, "to-context", "", "context of that kubeconfig")
	cmd.Flags().StringVar(&f.agents, "agent-namespace", "", "namespace of the agent of this cluster, if it is no Deployment there, or one of several (default: where it is, or "+v1alpha1.AgentNamespace+")")
	cmd.Flags().StringVar(&f.toAgents, "to-agent-namespace", "", "that of the agent of the cluster of --to, likewise")
	cmd.Flags().BoolVar(&f.plan, "plan", false, "say what would be done to which object, and what speaks against it; nothing is changed")
	cmd.Flags().BoolVar(&f.abort, "abort", false, "turn back: the target loses what it was given, and the source goes on")
	cmd.Flags().StringSliceVar(&f.tolerate, "tolerate", nil, "go on in spite of these reasons, as --plan names them")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 30*time.Minute, "how long it may take; the same command goes on after that")
	_ = cmd.MarkFlagRequired("to") // it is there
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// clusterNames are namespace/name, or a name in the namespace of the flags.
func (c *cli) clusterNames(args []string) ([]types.NamespacedName, error) {
	var names []types.NamespacedName
	for _, word := range args {
		namespace, name, ok := strings.Cut(word, "/")
		if !ok {
			namespace, name = c.namespace(), word
		}
		if namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("cannot use %q: write namespace/name of a Cluster", word)
		}
		names = append(names, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return names, nil
}

// pivotOf connects to both sides.
func (c *cli) pivotOf(ctx context.Context, names []types.NamespacedName, f pivotFlags) (*pivot.Pivot, error) {
	here, err := c.client()
	if err != nil {
		return nil, err
	}
	var config *rest.Config
	var secret types.NamespacedName
	switch f.to {
	case toSelf, toParent:
		if len(names) != 1 {
			return nil, fmt.Errorf("cannot use --to %s with several Clusters: each is moved to another cluster", f.to)
		}
		if config, err = kubeconfigOfCluster(ctx, here, names[0]); err != nil {
			return nil, err
		}
		secret = kubeconfigSecret(names[0])
	default:
		config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: f.to}, &clientcmd.ConfigOverrides{CurrentContext: f.context}).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("cannot load --to: %w", err)
		}
	}
	config.QPS = -1
	answer.Guard(config)
	there, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the cluster of --to: %w", err)
	}
	p := &pivot.Pivot{
		Clusters: names, Keep: f.to == toSelf, Tolerated: f.tolerate,
		Holder: holderName(), Program: version(), Now: c.now, Rest: pivot.DefaultRest, Wait: pauseFor, Tell: c.tellPivot,
	}
	p.Source, p.Target, err = sidesOf(ctx, f, names[0], here, pivot.Side{Name: "the cluster of --to", Client: there, Kubeconfig: secret})
	return p, err
}

// sidesOf are source and target of a pivot, each with the namespace of its agent: a journal elsewhere
// is one that no agent ends, and a record that is not found says nothing of who has a Cluster.
func sidesOf(ctx context.Context, f pivotFlags, cluster types.NamespacedName, here client.Client, there pivot.Side) (source, target pivot.Side, err error) {
	source, target = pivot.Side{Name: "this cluster", Client: here, Namespace: f.agents}, there
	flag, toFlag := "--agent-namespace", "--to-agent-namespace"
	target.Namespace = f.toAgents
	if f.to == toParent {
		source, target, flag, toFlag = target, source, toFlag, flag
		source.Name = "Cluster " + cluster.String()
	}
	if err := findAgent(ctx, &source, pivot.Source, flag); err != nil {
		return source, target, err
	}
	return source, target, findAgent(ctx, &target, pivot.Target, toFlag)
}

// agentWithin is how long the look for the agent of a side may take.
const agentWithin = 30 * time.Second

// findAgent gives a side the namespace of its agent. The agent of a mom is no Deployment, so that none is
// found there.
func findAgent(ctx context.Context, side *pivot.Side, role pivot.Role, flag string) error {
	if _, err := pivot.Identify(ctx, *side, role); err != nil {
		return err // it says what to do where a kubeconfig has lapsed
	}
	ctx, cancel := context.WithTimeout(ctx, agentWithin)
	defer cancel()
	agents, err := installation.All(ctx, side.Client)
	if err != nil {
		return fmt.Errorf("cannot find the agent of %s: %w", side.Name, err)
	}
	namespace, err := namespaceOf(agents, side.Name, side.Namespace, flag)
	side.Namespace = cmp.Or(namespace, v1alpha1.AgentNamespace)
	return err
}

// namespaceOf is the namespace of the agent of a cluster: where the only one is, or where one is that is said by a flag.
// It is empty if nobody said one, and there is none.
func namespaceOf(agents []installation.Found, of, said, flag string) (string, error) {
	var namespaces []string
	for _, found := range agents {
		namespaces = append(namespaces, found.Namespace)
	}
	switch in := strings.Join(namespaces, " and "); {
	case len(agents) == 0, slices.Contains(namespaces, said):
		return said, nil
	case said != "":
		return "", fmt.Errorf("cannot use %s %s: the agent of %s is in namespace %s, and so are its records; leave the flag out, or name that one", flag, said, of, in)
	case len(agents) > 1:
		return "", fmt.Errorf("cannot tell which agent of %s is meant: there is one in namespace %s; say which with %s", of, in, flag)
	}
	return namespaces[0], nil
}

// holderName names this process, and no other one ever.
func holderName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "_" + string(uuid.NewUUID())
}

// pauseFor waits for a time, unless the context ends before.
func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// kubeconfigOfCluster is what Cluster API, or a pivot, has in this cluster of a Cluster. It
// is the person's kubeconfig that reads it, and so what it names is trusted as that.
func kubeconfigOfCluster(ctx context.Context, cl client.Client, name types.NamespacedName) (*rest.Config, error) {
	secret, key := &corev1.Secret{}, kubeconfigSecret(name)
	if err := cl.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("cannot read the kubeconfig of Cluster %s, Secret %s: %w; give another one with --to <file>", name, key, err)
	}
	config, err := (capibridge.Allowed{}).Kubeconfig(secret.Data[clusterapi.KubeconfigKey])
	if err != nil {
		return nil, fmt.Errorf("cannot use the kubeconfig of Cluster %s, Secret %s: %w", name, key, err)
	}
	return config, nil
}

func kubeconfigSecret(cluster types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: cluster.Namespace, Name: clusterapi.KubeconfigSecret(cluster.Name)}
}

func (c *cli) tellPivot(e pivot.Event) {
	switch {
	case e.Action != "":
		fmt.Fprintf(c.streams.Out, "  %s\n", e.Action)
	case e.Waits != "":
		fmt.Fprintf(c.streams.Out, "  … waits for %s\n", e.Waits)
	default:
		fmt.Fprintf(c.streams.Out, "► %s\n", e.Step)
	}
}

// pivot carries out what the flags say.
func (c *cli) pivot(ctx context.Context, p *pivot.Pivot, f pivotFlags) error {
	if f.plan {
		return c.previewPivot(ctx, p)
	}
	run := p.Run
	if f.abort {
		run = p.Abort
	}
	j, err := run(ctx)
	switch {
	case err != nil && j.ID != "" && !j.Step.Over():
		return fmt.Errorf("%w; the pivot is at step %s: the same command goes on%s", err, j.Step, abortHint(j))
	case err != nil:
		return err
	case j.Step == pivot.Aborted:
		fmt.Fprintf(c.streams.Out, "✔ pivot %s is turned back: %s manages the Clusters as before\n", j.ID, p.Source.Name)
		return nil
	}
	fmt.Fprintf(c.streams.Out, "✔ pivot %s is done: %s manages the Clusters\n", j.ID, p.Target.Name)
	return nil
}

// abortHint says how to turn back, where that is possible.
func abortHint(j pivot.Journal) string {
	if j.Step.Revocable() && j.Step != pivot.Undo {
		return ", and --abort turns back"
	}
	return ""
}

func (c *cli) previewPivot(ctx context.Context, p *pivot.Pivot) error {
	preview, err := p.Preview(ctx)
	if err != nil {
		return err
	}
	out := c.streams.Out
	if j := preview.Journal; j.Step != "" {
		fmt.Fprintf(out, "pivot %s is at step %s since %s: the same command without --plan goes on%s\n", j.ID, j.Step, j.Stepped.UTC().Format(time.RFC3339), abortHint(j))
	}
	step := pivot.Step("")
	for _, line := range preview.Lines {
		if line.Step != step {
			step = line.Step
			fmt.Fprintf(out, "► %s\n", step)
		}
		fmt.Fprintf(out, "  %s\n", line.Text)
	}
	if len(preview.Problems) == 0 {
		return nil
	}
	fmt.Fprintln(out, "it would not begin:")
	for _, problem := range preview.Problems {
		fmt.Fprintf(out, "  %s: %s\n", problem.Reason, problem.Message)
	}
	return errNotReady
}

// completeCluster completes names of Clusters: each has a Child of its name.
func (c *cli) completeCluster(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	g, ok := kindOf("child")
	if !ok {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	namespace := c.namespace()
	var names []string
	for _, name := range c.names(cmd.Context(), g, strings.TrimPrefix(begun, namespace+"/")) {
		names = append(names, namespace+"/"+name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
