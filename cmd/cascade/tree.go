package main

import (
	"context"
	"encoding/json"
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
	"github.com/cascade-gitops/cascade/remote"
)

// tier is a node of the tree.
type tier struct {
	Name     string      `json:"name"`
	Revision string      `json:"revision,omitempty"`
	Ready    bool        `json:"ready"`
	Reason   string      `json:"reason"`
	Message  string      `json:"message,omitempty"`
	Since    metav1.Time `json:"since"`
	Version  string      `json:"version,omitempty"`
	Children []*tier     `json:"children,omitempty"`
	// Held is what is not created before a person decides, of this tier only.
	Held []string `json:"held,omitempty"`
	// Unlisted clusters below are counted but have no row: a report is bounded.
	Unlisted int `json:"unlisted,omitempty"`
}

func (c *cli) newTree() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "tree",
		Short: "Show the fleet below this tier: revision, readiness, reason and age",
		Long: "Show the fleet below this tier, tier by tier. What is below the children comes from what their\n" +
			"agents report, so no credentials but those for this cluster are needed. AGE is for how long the\n" +
			"state is what it is.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
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
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// loadTree reads this tier's own report and its Children.
func loadTree(ctx context.Context, cl client.Client, namespace string) (*tier, error) {
	root := &tier{Name: "this tier", Reason: v1alpha1.ReasonReportMissing, Message: "the agent of this tier has not reported yet"}
	cm := &corev1.ConfigMap{}
	err := cl.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.ReportConfigMap}, cm)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("cannot read the report of this tier: %w", err)
	}
	if err == nil {
		var r v1alpha1.Report
		if err := json.Unmarshal([]byte(cm.Data[v1alpha1.ReportKey]), &r); err != nil {
			return nil, fmt.Errorf("cannot parse the report of this tier: %w", err)
		}
		root.Revision, root.Ready, root.Reason, root.Message, root.Since = r.Revision, r.Ready, r.Reason, r.Message, r.Since
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
	return root, nil
}

func childTier(child *v1alpha1.Child) *tier {
	row := remote.Row(child)
	t := fromRow(row)
	if child.Status.Report == nil {
		return t
	}
	for _, below := range child.Status.Report.Tiers {
		at := t
		segments := strings.Split(below.Path, ">")
		for _, s := range segments[:len(segments)-1] {
			at = at.child(s)
		}
		at.put(fromRow(below))
	}
	if c := child.Status.Report.Children; c != nil {
		t.Unlisted = max(0, int(c.Total)-len(child.Status.Report.Tiers))
	}
	return t
}

func fromRow(row v1alpha1.TierRow) *tier {
	segments := strings.Split(row.Path, ">")
	return &tier{
		Name: segments[len(segments)-1], Revision: row.Revision, Ready: row.Ready, Reason: row.Reason,
		Message: row.Message, Since: row.Since, Version: row.Version,
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
			age(t.Since, now), orDash(t.Version), oneLine(shortRevision(t.Message)),
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
