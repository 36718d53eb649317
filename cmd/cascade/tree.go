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
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// tier is a node of the tree.
type tier struct {
	Name      string `json:"name"`
	Revision  string `json:"revision,omitempty"`
	Ready     bool   `json:"ready"`
	Suspended bool   `json:"suspended,omitempty"`
	Reason    string `json:"reason"`
	Message   string `json:"message,omitempty"`
	// Cause is the object for which the tier is not ready: a Layer of the tier above, or one of
	// any other kind in the tier.
	Cause *v1alpha1.TierCause `json:"cause,omitempty"`
	Since metav1.Time         `json:"since"`
	// Heard is when it was last heard of, if that is too long ago.
	Heard    *metav1.Time `json:"heard,omitempty"`
	Version  string       `json:"version,omitempty"`
	Owner    string       `json:"owner,omitempty"`
	Provider string       `json:"provider,omitempty"`
	Region   string       `json:"region,omitempty"`
	// Faults are what is wrong although the tier may be ready: credentials that are not
	// renewed, a state that is not saved.
	Faults *v1alpha1.ReportFaults `json:"faults,omitempty"`
	// Rollouts are what the tier may have of each, of the children of this tier only.
	Rollouts []pinned `json:"rollouts,omitempty"`
	Children []*tier  `json:"children,omitempty"`
	// Held is what is neither created nor removed before a person decides, of this tier only.
	Held []string `json:"held,omitempty"`
	// Unlisted clusters below are counted but have no row: a report is bounded.
	Unlisted int `json:"unlisted,omitempty"`
	// unlistedReady of these are ready.
	unlistedReady int
	// Below counts the clusters below where these are not shown, and BelowReady those of them
	// that are ready.
	Below      int `json:"below,omitempty"`
	BelowReady int `json:"belowReady,omitempty"`
	// folded are those without a row because others with the same cause have one.
	folded []folded
	// doubt is why it is not known whether all of this is up to date, nil if it is known.
	doubt error
}

// pinned is what a Rollout lets a child have.
type pinned struct {
	Name     string `json:"name"`
	Revision string `json:"revision"`
	// Result of the revision in the child.
	Result v1alpha1.RolloutResult `json:"result"`
	// Behind: the Rollout brings another revision to its clusters now. Wanted is that.
	Behind bool   `json:"behind,omitempty"`
	Wanted string `json:"wanted,omitempty"`
}

func (p pinned) String() string {
	text := fmt.Sprintf("%s %s %s", p.Name, shortRevision(p.Revision), p.Result)
	if p.Behind {
		text += " (behind " + shortRevision(p.Wanted) + ")"
	}
	return text
}

// pins are what Rollouts let a child have, in order of their names.
func pins(child *v1alpha1.Child, rollouts []v1alpha1.Rollout) []pinned {
	var all []pinned
	for i := range child.Status.Rollouts {
		at := &child.Status.Rollouts[i]
		p := pinned{Name: at.Name, Revision: at.Revision, Result: at.Result}
		for j := range rollouts {
			r := &rollouts[j]
			if r.Namespace != child.Namespace || r.Name != at.Name {
				continue
			}
			if wanted := rollout.Wanted(r); wanted != nil && *wanted != at.RolloutRevision {
				p.Behind, p.Wanted = true, wanted.Revision
			}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b pinned) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (c *cli) newTree() *cobra.Command {
	var o treeOptions
	cmd := &cobra.Command{
		Use:   "tree [path]",
		Short: "Show the fleet below this tier: revision, readiness, reason and age",
		Long: "Show the fleet below this tier, tier by tier. What is below the children comes from what their\n" +
			"agents report, so no credentials but those for this cluster are needed. AGE is for how long the\n" +
			"state is what it is. What is Stale was last heard of so long ago, and is shown as it was then. MESSAGE\n" +
			"begins with credentials that are not renewed and backups that are too old, of a tier that is ready too.\n" +
			"Of more than ten clusters beside one another that are not ready for one cause the first three are shown,\n" +
			"and the rest is counted with the object that is the cause; with a filter each has its row.\n" +
			"With a path it begins there. With --filter or --status-selector it shows the clusters that pass, and\n" +
			"the tiers above them; --depth counts what is deeper.\n" +
			"With --group-by it counts the clusters below instead. Those of which no tier has a row are counted\n" +
			"too; only by reason and by revision they are told apart.",
		Example: "  cascade tree --status-selector ready=false\n" +
			"  cascade tree 'masters/aws>tenants/shop'\n" +
			"  cascade tree --depth 1 --filter provider=aws,region!=eu-central-1 --watch\n" +
			"  cascade tree --group-by cause",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			path := ""
			if len(args) > 0 {
				path = args[0]
			}
			view, err := newTreeView(path, o.filter, o.status, o.depth)
			if err != nil {
				return err
			}
			if o.by != "" && (path != "" || view.filters() || o.depth > 0) {
				return errors.New("cannot group a part of the tree: use --group-by without a path, --filter, --status-selector and --depth")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			print := func(ctx context.Context, out io.Writer) error { return c.tree(ctx, cl, out, view, o) }
			if o.watch {
				return c.watchTree(cmd.Context(), cl, print)
			}
			return print(cmd.Context(), c.streams.Out)
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "json or yaml instead of a tree; wide for what Rollouts let each child have")
	cmd.Flags().StringVar(&o.by, "group-by", "", "count clusters instead, by: "+strings.Join(groupings(), ", "))
	cmd.Flags().StringVar(&o.filter, "filter", "", "only clusters with these fields, key=value,key!=value, of: "+strings.Join(treeFields(), ", "))
	cmd.Flags().StringVar(&o.status, "status-selector", "", "only clusters that are so: ready=false or ready=true")
	cmd.Flags().IntVar(&o.depth, "depth", 0, "show so many tiers below, and count what is deeper; 0 shows all")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "print it again whenever it has changed")
	c.flags.AddFlags(cmd.Flags())
	_ = cmd.RegisterFlagCompletionFunc("group-by", cobra.FixedCompletions(groupings(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

type treeOptions struct {
	output, by, filter, status string
	depth                      int
	watch                      bool
}

func (c *cli) tree(ctx context.Context, cl client.Client, out io.Writer, view treeView, o treeOptions) error {
	namespace := agentNamespace(ctx, cl, c.saidNamespace())
	if o.by != "" {
		found, err := loadGroups(ctx, cl, namespace, o.by, c.now())
		if err != nil {
			return err
		}
		if o.output == "" {
			return errors.Join(printGroups(out, found), printDoubt(out, found.doubt))
		}
		return errors.Join(printAs(out, o.output, found), printDoubt(c.streams.ErrOut, found.doubt))
	}
	root, err := loadTree(ctx, cl, namespace, c.now())
	if err != nil {
		return err
	}
	doubt := root.doubt
	if root, err = view.of(root); err != nil {
		return err
	}
	if o.output == "" || o.output == "wide" {
		if !view.filters() {
			fold(root)
		}
		return errors.Join(printTree(out, root, c.now(), o.output == "wide"), printHeld(out, root.Held), printDoubt(out, doubt))
	}
	return errors.Join(printAs(out, o.output, root), printDoubt(c.streams.ErrOut, doubt))
}

// printDoubt tells below what is shown why it may not be up to date.
func printDoubt(out io.Writer, doubt error) error {
	if doubt == nil {
		return nil
	}
	_, err := fmt.Fprintf(out, "► whether all of this is up to date is not known: %s\n", doubt)
	return err
}

// loadTree reads this tier's own report, whether its agent is there to write one, and its
// Children.
func loadTree(ctx context.Context, cl client.Client, namespace string, now time.Time) (*tier, error) {
	root := &tier{Name: "this tier", Reason: v1alpha1.ReasonReportMissing, Message: "the agent of this tier has not reported yet"}
	own, err := ownReport(ctx, cl, namespace)
	if err != nil {
		return nil, err
	}
	if own != nil {
		root.Revision, root.Ready, root.Reason, root.Message, root.Since = own.Revision, own.Ready, own.Reason, own.Message, own.Since
		root.Suspended, root.Faults = own.Reason == v1alpha1.ReasonSuspended, own.Faults
		if !own.Ready {
			root.Cause = report.Root(own.Failing)
		}
	}
	beat, doubt, err := heartbeat(ctx, cl, namespace)
	if err != nil {
		return nil, err
	}
	if beat.Silent(now) {
		root.Ready, root.Suspended, root.Cause = false, false, nil
		root.Reason, root.Message = cause.ReasonAgentSilent, beat.Message()
		root.Since = metav1.NewTime(beat.Renewed)
		root.Heard = &root.Since
	}
	children := &v1alpha1.ChildList{}
	if err := cl.List(ctx, children); err != nil {
		return nil, fmt.Errorf("cannot list Children: %w", err)
	}
	rollouts, err := listRollouts(ctx, cl)
	if err != nil {
		return nil, err
	}
	known := beat.Dated(children.Items, now)
	if len(known) > 0 || own != nil {
		root.doubt = doubt
	}
	for i := range known {
		t := childTier(&known[i])
		t.Rollouts = pins(&known[i], rollouts)
		root.Children = append(root.Children, t)
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
	root.Held = append(root.Held, heldRollouts(rollouts)...)
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

// heartbeat of the agent of this tier, nil if it is not known: doubt is why, also of one that is absent.
func heartbeat(ctx context.Context, cl client.Client, namespace string) (beat *cause.Heartbeat, doubt, err error) {
	beat, err = cause.HeartbeatIn(ctx, cl, namespace)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("cannot read the heartbeat of this tier: %w", err), nil
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read the heartbeat of this tier: %w", err)
	case beat == nil || beat.Absent:
		return beat, fmt.Errorf("there is no Lease %s/%s: no agent works in this namespace", namespace, v1alpha1.HeartbeatLease), nil
	}
	return beat, nil, nil
}

func childTier(child *v1alpha1.Child) *tier {
	t := fromRow(report.Row(child))
	rows := report.RowsBelow(child)
	ready := 0
	for _, below := range rows {
		if below.Ready {
			ready++
		}
		at := t
		segments := strings.Split(below.Path, ">")
		for _, s := range segments[:len(segments)-1] {
			at = at.child(s)
		}
		at.put(fromRow(below))
	}
	if c := report.CountsBelow(child); c != nil {
		t.Unlisted = max(0, int(c.Total)-len(rows))
		t.unlistedReady = min(t.Unlisted, max(0, int(c.Ready)-ready))
	}
	return t
}

func fromRow(row v1alpha1.TierRow) *tier {
	segments := strings.Split(row.Path, ">")
	return &tier{
		Name: segments[len(segments)-1], Revision: row.Revision, Ready: row.Ready, Suspended: row.Suspended, Reason: row.Reason,
		Message: row.Message, Cause: row.Cause, Since: row.Since, Heard: row.Heard,
		Version: row.Version, Owner: row.Owner, Provider: row.Provider, Region: row.Region, Faults: row.Faults,
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

// told is the message of a tier, with how long ago it was heard of if that is too long, and
// with its faults.
func (t *tier) told(now time.Time) string {
	var said []string
	if t.Heard != nil {
		said = append(said, "last heard of "+age(*t.Heard, now)+" ago")
	}
	for _, text := range []string{t.Faults.String(), t.Message} {
		if text != "" {
			said = append(said, text)
		}
	}
	return strings.Join(said, "; ")
}

func printTree(out io.Writer, root *tier, now time.Time, wide bool) error {
	var rows [][]string
	add := func(t *tier, cells ...string) {
		if wide {
			var texts []string
			if t != nil {
				for _, p := range t.Rollouts {
					texts = append(texts, p.String())
				}
			}
			last := len(cells) - 1
			cells = append(cells[:last:last], strings.Join(texts, ", "), cells[last])
		}
		rows = append(rows, cells)
	}
	var walk func(t *tier, lead, branch string)
	walk = func(t *tier, lead, branch string) {
		ready := "False"
		if t.Ready {
			ready = "True"
		}
		add(t, lead+branch+t.Name, orDash(shortRevision(t.Revision)), ready, t.Reason,
			age(t.Since, now), orDash(t.Version), oneLine(shortRevision(t.told(now))))
		switch branch {
		case "├─ ":
			lead += "│  "
		case "└─ ":
			lead += "   "
		}
		for i, c := range t.Children {
			branch := "├─ "
			if i == len(t.Children)-1 && t.Unlisted+len(t.folded) == 0 {
				branch = "└─ "
			}
			walk(c, lead, branch)
		}
		for i, f := range t.folded {
			branch := "├─ "
			if i == len(t.folded)-1 && t.Unlisted == 0 {
				branch = "└─ "
			}
			add(nil, fmt.Sprintf("%s%sand %d more", lead, branch, f.count), "", "False", f.reason, "", "", oneLine(f.cause))
		}
		if t.Below > 0 {
			add(nil, fmt.Sprintf("%s└─ %d below, %d ready", lead, t.Below, t.BelowReady), "", "", "", "", "", "")
		}
		if t.Unlisted > 0 {
			add(nil, fmt.Sprintf("%s└─ and %d more", lead, t.Unlisted), "", "", "", "", "", "")
		}
	}
	walk(root, "", "")
	header := []string{"TIER", "REVISION", "READY", "REASON", "AGE", "VERSION", "MESSAGE"}
	if wide {
		header = []string{"TIER", "REVISION", "READY", "REASON", "AGE", "VERSION", "ROLLOUTS", "MESSAGE"}
	}
	return table(out, header, rows)
}
