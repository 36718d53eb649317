package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
	"github.com/cascade-gitops/cascade/cmd/cascade/forecast"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// errChanges makes the process exit with 2: a plan has changes.
var errChanges = errors.New("there are changes")

// maxPackBytes bounds what one fetch may receive, as the agent's --max-pack-bytes does by
// default.
const maxPackBytes = 512 << 20

// planned are the flags of the verb.
type planned struct {
	source, revision, path, output string
	// sourceNamespace is that of source, if it is not the one of the flags.
	sourceNamespace string
	// child is the only one that is asked about, as <namespace>/<name>.
	child   string
	lenient bool
	timeout time.Duration
}

func (c *cli) newPlan() *cobra.Command {
	var p planned
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what a commit would change in this tier and in its children, before it is there",
		Long: "Show what a commit would change in this tier and in its children: objects that are added, changed, deleted or\n" +
			"protected from that, by Kustomizations and Layers of one GitRepository, and the waves of a Rollout that clusters\n" +
			"would change in. The commit is one of a clone, or one that the repository has already, in full. It writes\n" +
			"nothing to any cluster. Of fields only the paths are shown, never values.\n\n" +
			"It ends with 0 if nothing would change, with 2 if something would, and with 1 if that is not known of all.\n" +
			"docs/plan.md tells how to use it for pull requests, and what it does not tell.",
		Example: "  cascade plan --source fleet\n" +
			"  cascade plan --source fleet --path ../fleet --revision feature -o markdown > plan.md",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
			defer cancel()
			return c.plan(ctx, p)
		},
	}
	p.bind(cmd)
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) plan(ctx context.Context, p planned) error {
	cluster, err := c.connect()
	if err != nil {
		return err
	}
	r, err := c.planFor(ctx, cluster, p)
	if err != nil {
		return err
	}
	return c.conclude(r, p.output)
}

// conclude prints a plan, and ends as it says.
func (c *cli) conclude(r *difference.Report, output string) error {
	if err := c.printPlan(r, output); err != nil {
		return err
	}
	switch {
	case len(r.Problems) > 0:
		return errNotReady
	case r.Changes():
		return errChanges
	}
	return nil
}

func (c *cli) printPlan(r *difference.Report, output string) error {
	switch output {
	case "":
		return r.Text(c.streams.Out)
	case "markdown", "md":
		return r.Markdown(c.streams.Out)
	case "json", "yaml":
		return printAs(c.streams.Out, output, r)
	}
	return fmt.Errorf("cannot print as %q: use json, yaml or markdown", output)
}

// planFor makes the plan; what it fetches is below a directory that goes again.
func (c *cli) planFor(ctx context.Context, cluster forecast.Cluster, p planned) (*difference.Report, error) {
	o := forecast.Options{Lenient: p.lenient, Child: p.child}
	var err error
	if o.Source, err = c.planSource(ctx, cluster, p.sourceNamespace, p.source); err != nil {
		return nil, err
	}
	if o.Clone, o.Commit, err = planCommit(p.path, p.revision); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "cascade-plan-")
	if err != nil {
		return nil, fmt.Errorf("cannot make a directory for what is fetched: %w", err)
	}
	defer os.RemoveAll(dir)
	o.Mirrors = source.NewMirrors(filepath.Join(dir, "mirrors"), maxPackBytes)
	if o.Logins, err = source.NewLogins(10, time.Hour, c.now); err != nil {
		return nil, err
	}
	workers := worker.New(worker.Options{Limits: worker.DefaultLimits()})
	defer workers.Close()
	o.Workers = workers
	return forecast.Of(ctx, cluster, o)
}

// planSource is the GitRepository of that name, which may say its namespace, or the only one.
func (c *cli) planSource(ctx context.Context, cl client.Client, namespace, name string) (client.ObjectKey, error) {
	key := inNamespace(namespace, c.namespace(), name)
	if in, of, ok := strings.Cut(name, "/"); ok {
		return client.ObjectKey{Namespace: in, Name: of}, nil
	}
	if name != "" {
		return key, nil
	}
	list := &sourcev1.GitRepositoryList{}
	if err := cl.List(ctx, list, client.InNamespace(key.Namespace)); err != nil {
		return key, fmt.Errorf("cannot list GitRepositories: %w", err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	switch len(names) {
	case 0:
		return key, fmt.Errorf("cannot plan: there is no GitRepository in namespace %s; choose one of another with --source <namespace>/<name>", key.Namespace)
	case 1:
		key.Name = names[0]
		return key, nil
	}
	return key, fmt.Errorf("cannot plan: there are several GitRepositories in namespace %s; choose one with --source: %s", key.Namespace, strings.Join(names, ", "))
}

// planCommit is the commit that is asked for, and the clone if there is one.
func planCommit(path, revision string) (*source.Clone, string, error) {
	clone, err := source.OpenClone(path)
	switch {
	case errors.Is(err, source.ErrNoClone) && plumbing.IsHash(revision):
		return nil, revision, nil
	case errors.Is(err, source.ErrNoClone):
		return nil, "", fmt.Errorf("cannot plan for %s: %s is in no clone; name one with --path, or a commit of the repository in full with --revision", revision, path)
	case err != nil:
		return nil, "", err
	case plumbing.IsHash(revision) && !clone.Has(revision):
		return clone, revision, nil // it is fetched
	}
	commit, err := clone.Commit(revision)
	return clone, commit, err
}
