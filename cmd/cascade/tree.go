package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
)

// tier is a node of the tree.
type tier struct {
	Name      string      `json:"name"`
	Revision  string      `json:"revision,omitempty"`
	Ready     bool        `json:"ready"`
	Suspended bool        `json:"suspended,omitempty"`
	Reason    string      `json:"reason"`
	Message   string      `json:"message,omitempty"`
	Since     metav1.Time `json:"since"`
	// Heard is when it was last heard of, if that is too long ago.
	Heard    *metav1.Time `json:"heard,omitempty"`
	Version  string       `json:"version,omitempty"`
	Owner    string       `json:"owner,omitempty"`
	Provider string       `json:"provider,omitempty"`
	Region   string       `json:"region,omitempty"`
	Children []*tier      `json:"children,omitempty"`
	// Held is what is neither created nor removed before a person decides, of this tier only.
	Held []string `json:"held,omitempty"`
	// Unlisted clusters below are counted but have no row: a report is bounded.
	Unlisted int `json:"unlisted,omitempty"`
}

func (c *cli) newTree() *cobra.Command {
	var output, by string
	cmd := &cobra.Command{
		Use:   "tree",
		Short: "Show the fleet below this tier: revision, readiness, reason and age",
		Long: "Show the fleet below this tier, tier by tier. What is below the children comes from what their\n" +
			"agents report, so no credentials but those for this cluster are needed. AGE is for how long the\n" +
			"state is what it is. What is Stale was last heard of so long ago, and is shown as it was then.\n" +
			"With --group-by it counts the clusters below instead. Those of which no tier has a row are counted\n" +
			"too; only by reason and by revision they are told apart.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			if by != "" {
				found, err := loadGroups(cmd.Context(), cl, c.namespace(), by)
				if err != nil {
					return err
				}
				if output == "" {
					return printGroups(c.streams.Out, found)
				}
				return printAs(c.streams.Out, output, found)
			}
			root, err := loadTree(cmd.Context(), cl, c.namespace())
			if err != nil {
				return err
			}
			if output == "" {
				return errors.Join(printTree(c.streams.Out, root, c.now()), printHeld(c.streams.Out, root.Held))
			}
			return printAs(c.streams.Out, output, root)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml instead of a tree")
	cmd.Flags().StringVar(&by, "group-by", "", "count clusters instead, by: "+strings.Join(groupings(), ", "))
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// loadTree reads this tier's own report and its Children.
func loadTree(ctx context.Context, cl client.Client, namespace string) (*tier, error) {
	root := &tier{Name: "this tier", Reason: v1alpha1.ReasonReportMissing, Message: "the agent of this tier has not reported yet"}
	own, err := ownReport(ctx, cl, namespace)
	if err != nil {
		return nil, err
	}
	if own != nil {
		root.Revision, root.Ready, root.Reason, root.Message, root.Since = own.Revision, own.Ready, own.Reason, own.Message, own.Since
		root.Suspended = own.Reason == v1alpha1.ReasonSuspended
	}
	children := &v1alpha1.ChildList{}
	if err := cl.List(ctx, children); err != nil {
		return nil, fmt.Errorf("cannot list Children: %w", err)
	}
	for i := range children.Items {
		root.Children = append(root.Children, childTier(&children.Items[i]))
	}
	sortTiers(root)
	held, err := heldCreations(ctx, cl)
	if err != nil {
		return nil, err
	}
	for _, h := range held {
		root.Held = append(root.Held, h.String())
	}
	removals, err := heldRemovals(ctx, cl)
	if err != nil {
		return nil, err
	}
	root.Held = append(root.Held, removals...)
	return root, nil
}

// ownReport reads the report of this tier; nil if there is none.
func ownReport(ctx context.Context, cl client.Client, namespace string) (*v1alpha1.Report, error) {
	cm := &corev1.ConfigMap{}
	err := cl.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.ReportConfigMap}, cm)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the report of this tier: %w", err)
	}
	r, err := report.Parse(cm.Data[v1alpha1.ReportKey])
	if err != nil {
		return nil, fmt.Errorf("cannot read the report of this tier: %w", err)
	}
	return r, nil
}

func childTier(child *v1alpha1.Child) *tier {
	t := fromRow(report.Row(child))
	rows := report.RowsBelow(child)
	for _, below := range rows {
		at := t
		segments := strings.Split(below.Path, ">")
		for _, s := range segments[:len(segments)-1] {
			at = at.child(s)
		}
		at.put(fromRow(below))
	}
	if c := report.CountsBelow(child); c != nil {
		t.Unlisted = max(0, int(c.Total)-len(rows))
	}
	return t
}

func fromRow(row v1alpha1.TierRow) *tier {
	segments := strings.Split(row.Path, ">")
	return &tier{
		Name: segments[len(segments)-1], Revision: row.Revision, Ready: row.Ready, Suspended: row.Suspended, Reason: row.Reason,
		Message: row.Message, Since: row.Since, Heard: row.Heard,
		Version: row.Version, Owner: row.Owner, Provider: row.Provider, Region: row.Region,
	}
}

// child returns the tier below of that name; rows may come before the row of
// the tier that they are below.
func (t *tier) child(name string) *tier {
	for _, c := range t.Children {
		if c.Name == name {
			return c
		}
	}
	c := &tier{Name: name, Reason: v1alpha1.ReasonReportMissing}
	t.Children = append(t.Children, c)
	return c
}

func (t *tier) put(n *tier) {
	c := t.child(n.Name)
	n.Children = c.Children
	*c = *n
}

func sortTiers(t *tier) {
	slices.SortFunc(t.Children, func(a, b *tier) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range t.Children {
		sortTiers(c)
	}
}

// told is the message of a tier, with how long ago it was heard of if that is too long.
func (t *tier) told(now time.Time) string {
	if t.Heard == nil {
		return t.Message
	}
	text := "last heard of " + age(*t.Heard, now) + " ago"
	if t.Message != "" {
		text += "; " + t.Message
	}
	return text
}

func printTree(out io.Writer, root *tier, now time.Time) error {
	var rows [][]string
	var walk func(t *tier, lead, branch string)
	walk = func(t *tier, lead, branch string) {
		ready := "False"
		if t.Ready {
			ready = "True"
		}
		rows = append(rows, []string{
			lead + branch + t.Name, orDash(shortRevision(t.Revision)), ready, t.Reason,
			age(t.Since, now), orDash(t.Version), oneLine(shortRevision(t.told(now))),
		})
		switch branch {
		case "├─ ":
			lead += "│  "
		case "└─ ":
			lead += "   "
		}
		for i, c := range t.Children {
			branch := "├─ "
			if i == len(t.Children)-1 && t.Unlisted == 0 {
				branch = "└─ "
			}
			walk(c, lead, branch)
		}
		if t.Unlisted > 0 {
			rows = append(rows, []string{fmt.Sprintf("%s└─ and %d more", lead, t.Unlisted), "", "", "", "", "", ""})
		}
	}
	walk(root, "", "")
	return table(out, []string{"TIER", "REVISION", "READY", "REASON", "AGE", "VERSION", "MESSAGE"}, rows)
}
