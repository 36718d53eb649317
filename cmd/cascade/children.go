package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// exportSchema is that of export. It changes when a field gets another meaning or goes;
// fields may be added.
const exportSchema = "cascade.dev/children/v1"

// environmentLabel is the label by which the documentation's fleets name an environment.
const environmentLabel = "environment"

// export is the inventory of clusters that other systems read: a catalogue, a CMDB.
type export struct {
	Schema string `json:"schema"`
	// At is when it was made.
	At    metav1.Time `json:"at"`
	Items []exported  `json:"items"`
}

// exported is one cluster.
type exported struct {
	// Path of names from this tier down, `<namespace>/<name>` each, joined by `>`.
	Path      string `json:"path"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID of its kube-system Namespace, which no other cluster has. Only of the children of
	// this tier.
	UID         string            `json:"uid,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Owner       string            `json:"owner,omitempty"`
	Environment string            `json:"environment,omitempty"`
	Provider    string            `json:"provider,omitempty"`
	Region      string            `json:"region,omitempty"`
	Version     string            `json:"version,omitempty"`
	Endpoint    string            `json:"endpoint,omitempty"`
	Agent       string            `json:"agent,omitempty"`
	Revision    string            `json:"revision,omitempty"`
	Ready       bool              `json:"ready"`
	Suspended   bool              `json:"suspended,omitempty"`
	Reason      string            `json:"reason"`
	Message     string            `json:"message,omitempty"`
	// Cause is the object for which it is not ready.
	Cause *v1alpha1.TierCause `json:"cause,omitempty"`
	Since metav1.Time         `json:"since"`
	// HeardAt is there only while the cluster was last heard of too long ago; the rest is as
	// of then.
	HeardAt *metav1.Time `json:"heardAt,omitempty"`
	// ExpiresAt is when the first of Credentials lapses.
	ExpiresAt   *metav1.Time         `json:"expiresAt,omitempty"`
	Credentials []exportedCredential `json:"credentials,omitempty"`
	Layers      []exportedLayer      `json:"layers,omitempty"`
	// Behind counts what the cluster does not have at the revision of this tier: layers, and
	// what Rollouts move.
	Behind int `json:"behind"`
	// Below counts the clusters below it, at any depth.
	Below *exportedBelow `json:"below,omitempty"`
}

type exportedCredential struct {
	Name      string       `json:"name"`
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
}

type exportedLayer struct {
	Name string `json:"name"`
	// Revision that it has, and Wanted, that of the tier, if that is another.
	Revision string `json:"revision,omitempty"`
	Wanted   string `json:"wanted,omitempty"`
	Ready    bool   `json:"ready"`
	Reason   string `json:"reason"`
}

type exportedBelow struct {
	Total int32 `json:"total"`
	Ready int32 `json:"ready"`
	Stale int32 `json:"stale"`
	// Unlisted of them have no item of their own: a report is bounded.
	Unlisted int `json:"unlisted,omitempty"`
}

type childrenOptions struct {
	namespace, selector, output string
	recursive, noHeader         bool
}

func (c *cli) newChildren() *cobra.Command {
	var all bool
	var o childrenOptions
	cmd := &cobra.Command{
		Use:   "children",
		Short: "List the clusters below: whose they are, where, at which version and revision",
		Long: "List the clusters below: whose they are, where, at which version and revision. BEHIND counts what a cluster\n" +
			"does not have at the revision of this tier, EXPIRES is when the first of its credentials lapses, and\n" +
			"HEARD how long ago it was last heard of, if that is too long. In JSON and YAML it is an export for\n" +
			"other systems, schema " + exportSchema + ", which docs/discovery.md describes.",
		Example:           "  cascade children -A\n  cascade children -A --recursive -o json | jq '.items[] | {path, owner, version}'",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.namespace = c.namespace(); all {
				o.namespace = ""
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.children(cmd.Context(), cl, o)
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the clusters of all namespaces")
	cmd.Flags().StringVarP(&o.selector, "selector", "l", "", "only clusters with these labels; with --recursive, and what is below them")
	cmd.Flags().BoolVar(&o.recursive, "recursive", false, "also those below the children, as far as reports have them")
	cmd.Flags().BoolVar(&o.noHeader, "no-header", false, "leave out the header")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "json or yaml instead of a table, wide for more columns")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) children(ctx context.Context, cl client.Client, o childrenOptions) error {
	l, err := (&getOptions{namespace: o.namespace, selector: o.selector}).listing()
	if err != nil {
		return err
	}
	children, layers := &v1alpha1.ChildList{}, &v1alpha1.LayerList{}
	if err := cl.List(ctx, children, l.options...); err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	if err := cl.List(ctx, layers, client.InNamespace(o.namespace)); err != nil {
		return fmt.Errorf("cannot list Layers: %w", err)
	}
	rollouts, err := listRollouts(ctx, cl)
	if err != nil {
		return err
	}
	// -n says where the Children are, which is not where their agent is.
	beat, doubt, err := heartbeat(ctx, cl, agentNamespace(ctx, cl, ""))
	if err != nil {
		return err
	}
	if len(children.Items) > 0 {
		if err := printDoubt(c.streams.ErrOut, doubt); err != nil {
			return err
		}
	}
	e := exportOf(beat.Dated(children.Items, c.now()), layers.Items, rollouts, o.recursive, c.now())
	switch o.output {
	case "", "wide":
		return printChildren(c.streams.Out, e, o, c.now())
	case "json", "yaml":
		return printAs(c.streams.Out, o.output, e)
	}
	return fmt.Errorf("cannot print as %q: use wide, json or yaml", o.output)
}

// exportOf makes the inventory, in the order of paths.
func exportOf(children []v1alpha1.Child, layers []v1alpha1.Layer, rollouts []v1alpha1.Rollout, recursive bool, now time.Time) *export {
	wanted := map[client.ObjectKey]string{}
	for i := range layers {
		wanted[client.ObjectKeyFromObject(&layers[i])] = layers[i].Status.Revision
	}
	e := &export{Schema: exportSchema, At: metav1.NewTime(now.UTC().Truncate(time.Second)), Items: []exported{}}
	for i := range children {
		child := &children[i]
		e.Items = append(e.Items, exportChild(child, wanted, rollouts))
		if !recursive {
			continue
		}
		own := report.Row(child).Path
		for _, row := range report.RowsBelow(child) {
			row.Path = own + ">" + row.Path
			e.Items = append(e.Items, exportRow(row))
		}
	}
	slices.SortFunc(e.Items, func(a, b exported) int { return strings.Compare(a.Path, b.Path) })
	return e
}

func exportRow(row v1alpha1.TierRow) exported {
	last := row.Path[strings.LastIndex(row.Path, ">")+1:]
	namespace, name, _ := strings.Cut(last, "/")
	return exported{
		Path: row.Path, Namespace: namespace, Name: name, Owner: row.Owner, Provider: row.Provider, Region: row.Region, Version: row.Version,
		Revision: row.Revision, Ready: row.Ready, Suspended: row.Suspended, Reason: row.Reason, Message: row.Message, Cause: row.Cause, Since: row.Since, HeardAt: row.Heard,
	}
}

func exportChild(child *v1alpha1.Child, wanted map[client.ObjectKey]string, rollouts []v1alpha1.Rollout) exported {
	e := exportRow(report.Row(child))
	e.Labels, e.Environment, e.Endpoint = maps.Clone(child.Labels), child.Labels[environmentLabel], child.Status.Endpoint
	if id := child.Status.Identity; id != nil {
		e.UID = id.KubeSystemUID
	}
	if r := child.Status.Report; r != nil {
		e.Agent = r.Agent
	}
	for _, cred := range child.Status.Credentials {
		e.Credentials = append(e.Credentials, exportedCredential{cred.Name, cred.ExpiresAt})
		if at := cred.ExpiresAt; at != nil && (e.ExpiresAt == nil || at.Before(e.ExpiresAt)) {
			e.ExpiresAt = at
		}
	}
	for _, p := range pins(child, rollouts) {
		if p.Behind {
			e.Behind++
		}
	}
	local := slices.DeleteFunc(slices.Clone(rollouts), func(r v1alpha1.Rollout) bool { return r.Namespace != child.Namespace })
	governing := rollout.Of(local, child.Labels)
	for i := range child.Status.Layers {
		l := &child.Status.Layers[i]
		item := exportedLayer{Name: l.Name, Revision: l.Revision, Ready: l.Ready, Reason: l.Reason}
		if want := wanted[client.ObjectKey{Namespace: child.Namespace, Name: l.Name}]; want != "" && want != l.Revision && !governing.Layer(l.Name).Moves() {
			// One that a Rollout moves is behind by the word of the Rollout.
			item.Wanted = want
			e.Behind++
		}
		e.Layers = append(e.Layers, item)
	}
	if counts := report.CountsBelow(child); counts != nil {
		e.Below = &exportedBelow{Total: counts.Total, Ready: counts.Ready, Stale: counts.Stale, Unlisted: max(0, int(counts.Total)-len(report.RowsBelow(child)))}
	}
	return e
}

func printChildren(out io.Writer, e *export, o childrenOptions, now time.Time) error {
	header := []string{"CLUSTER", "OWNER", "PROVIDER", "REGION", "VERSION", "REVISION", "BEHIND", "EXPIRES", "HEARD", "READY", "REASON"}
	if o.output == "wide" {
		header = append(header, "AGE", "ENVIRONMENT", "ENDPOINT", "AGENT", "BELOW")
	}
	var rows [][]string
	for i := range e.Items {
		item := &e.Items[i]
		heard, expires, below := "", "", ""
		if item.HeardAt != nil {
			heard = age(*item.HeardAt, now) + " ago"
		}
		if item.ExpiresAt != nil {
			expires = within(*item.ExpiresAt, now)
		}
		row := []string{
			item.Path, orDash(item.Owner), orDash(item.Provider), orDash(item.Region), orDash(item.Version), orDash(shortRevision(item.Revision)),
			fmt.Sprint(item.Behind), orDash(expires), orDash(heard), truth(item.Ready), item.Reason,
		}
		if o.output == "wide" {
			if b := item.Below; b != nil {
				below = fmt.Sprintf("%d/%d", b.Ready, b.Total)
			}
			row = append(row, age(item.Since, now), orDash(item.Environment), orDash(item.Endpoint), orDash(item.Agent), orDash(below))
		}
		rows = append(rows, row)
	}
	if o.noHeader {
		header = nil
	}
	return table(out, header, rows)
}

// within is how far off a moment is, or that it is over.
func within(at metav1.Time, now time.Time) string {
	if at.Time.Before(now) {
		return "lapsed"
	}
	return age(metav1.NewTime(now), at.Time)
}
