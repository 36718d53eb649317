package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
)

// errSomething makes the process exit with 2: something is not as it should be.
var errSomething = errors.New("something is not as it should be")

func (c *cli) newWhy() *cobra.Command {
	var output string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "why [<kind>/<name> | <path>]",
		Short: "Tell why something is not ready: the root cause first, and what to do",
		Long: "Tell why something is not ready: the root cause first, what to do about it, and what it causes. Without an\n" +
			"argument it tells of everything in this tier and below it, grouped by root cause. With the kind and name of an\n" +
			"object, in the namespace of -n, or the path of a cluster as `cascade tree` shows it, it tells of that one. What\n" +
			"is held for a person, suspended, or on its way is told as well. It reads this cluster only: the clusters below\n" +
			"are known by the reports of their agents.\n\n" +
			"It ends with 0 if all is well, with 2 if something is not, and with 1 if that is not known.\n" +
			"docs/why.md tells how to read it.",
		Example: "  cascade why\n" +
			"  cascade why kustomization/apps -n cascade-system\n" +
			"  cascade why child/shop -n tenants\n" +
			"  cascade why 'masters/aws>tenants/shop'",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeObject(kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			cluster, err := c.connect()
			if err != nil {
				return err
			}
			reader := cause.Reader{Tier: cluster, Namespace: agentNamespace(ctx, cluster, ""), Providers: &capibridge.Providers{}}
			facts, err := reader.Read(ctx)
			if err != nil {
				return err
			}
			return c.why(facts, args, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long it may take")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// agentNamespace is where the agent of this tier is; where agents are, if there is none or
// that is not known. A namespace that is said counts if an agent is there, or nobody may tell: it
// may be that of other objects.
func agentNamespace(ctx context.Context, cl client.Client, said string) string {
	if said != "" {
		if _, doubt, err := heartbeat(ctx, cl, said); err != nil || doubt == nil || apierrors.IsForbidden(doubt) {
			return said
		}
	}
	agents, err := installation.All(ctx, cl)
	switch {
	case slices.ContainsFunc(agents, func(a installation.Found) bool { return a.Namespace == said }):
		return said
	case err != nil || len(agents) != 1:
		return v1alpha1.AgentNamespace
	}
	return agents[0].Namespace
}

// why answers from facts.
func (c *cli) why(facts *cause.Facts, args []string, output string) error {
	now := c.now()
	e := cause.Explain(facts, now)
	answer := e.All()
	if len(args) == 1 {
		o, err := c.whom(e, args[0])
		if err != nil {
			return err
		}
		answer, _ = e.About(o)
	}
	switch output {
	case "", "text":
		if err := answer.Text(c.streams.Out, now); err != nil {
			return err
		}
	default:
		if err := printAs(c.streams.Out, output, answer); err != nil {
			return err
		}
	}
	switch {
	case !answer.Ready:
		return errSomething
	case len(answer.Unread) > 0:
		return errNotReady // what was not read may not be well
	}
	return nil
}

// whom finds the object that an argument names.
func (c *cli) whom(e *cause.Explanation, arg string) (cause.Object, error) {
	kind, name, _ := strings.Cut(arg, "/")
	if kind = kindNamed(kind); kind != "" && name != "" {
		namespace := c.namespace()
		if before, after, both := strings.Cut(name, "/"); both {
			namespace, name = before, after
		}
		found := e.Named("", kind, namespace, name)
		if len(found) == 1 {
			return found[0], nil
		}
		for _, o := range e.Named("", kind, "", name) {
			return cause.Object{}, fmt.Errorf("cannot find %s/%s in namespace %s: there is one in namespace %s; name that with -n", kind, name, namespace, o.Namespace)
		}
		return cause.Object{}, fmt.Errorf("cannot find %s/%s in namespace %s", kind, name, namespace)
	}
	found := e.Paths(arg)
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return cause.Object{}, fmt.Errorf("cannot find %q: it is neither <kind>/<name> of an object here, nor a cluster of: cascade tree", arg)
	}
	return cause.Object{}, fmt.Errorf("cannot choose among %d clusters for %q, such as %s and %s: name the whole path", len(found), arg, found[0].Path(), found[1].Path())
}

// kindNamed is the kind that a person calls by a name, in the words of `cascade get`; empty
// if there is none.
func kindNamed(name string) string {
	name = strings.ToLower(name)
	switch name {
	case "cluster", "clusters":
		return "Cluster"
	case "deployment", "deployments":
		return "Deployment" // of a provider of Cluster API
	}
	for _, kind := range []string{
		"GitRepository", "OCIRepository", "Bucket", "HelmRepository", "HelmChart", "ExternalArtifact", "ArtifactGenerator", "Kustomization", "HelmRelease",
		"Layer", "Child", "Rollout", "ImageRepository", "ImagePolicy", "ImageUpdateAutomation", "Receiver", "Credential", "StateBackup",
	} {
		if strings.ToLower(kind) == name {
			return kind
		}
		for _, g := range getters() {
			if g.single != strings.ToLower(kind) {
				continue
			}
			if g.name == name {
				return kind
			}
			for _, a := range g.aliases {
				if a == name {
					return kind
				}
			}
		}
	}
	return ""
}
