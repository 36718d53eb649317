package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

func (c *cli) newRolloutStatus() *cobra.Command {
	var watch bool
	var revision, output string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "status <rollout>",
		Short: "Show where the revision is, wave by wave, and what is waited for",
		Long: "Show where the revision is, wave by wave, and what is waited for. With --watch it goes on until the run\n" +
			"ends or halts, and ends with 0 if it completed, with 1 otherwise. --revision watches the run of one\n" +
			"revision, which may not have begun yet: without it a run that ended before counts. For a revision that changes\n" +
			"nothing for these clusters it is the run of what they get of it. One that a newer revision overtakes while it\n" +
			"waits for its run ends with 1; one that was overtaken before the tier saw it has no run, and ends with --timeout.",
		Example: "  cascade rollout status base -n fleet\n" +
			"  cascade rollout status base -n fleet --watch --revision $(git rev-parse HEAD) --timeout 2h",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeName("rollout"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if revision != "" && !watch {
				return fmt.Errorf("cannot use --revision without --watch: the status is of the run that there is")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			key := client.ObjectKey{Namespace: c.namespace(), Name: args[0]}
			if watch {
				ctx := cmd.Context()
				if timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, timeout)
					defer cancel()
				}
				return c.watchRollout(ctx, cl, key, revision, 2*time.Second)
			}
			r, err := readRollout(cmd.Context(), cl, key)
			if err != nil {
				return err
			}
			if output != "" {
				return printAs(c.streams.Out, output, r.Status)
			}
			return printRollout(c.streams.Out, r, c.now())
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on until the run ends or halts")
	cmd.Flags().StringVar(&revision, "revision", "", "with --watch: the revision whose run is waited for")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "with --watch: how long to wait; 0 for as long as it takes")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml instead of a table")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// patience is for how long a watch goes on without a read that succeeds: an API server that is
// restarted answers again sooner, and a login that lapsed never does.
const patience = 5 * time.Minute

// watchRollout prints the status whenever it is another one, until the run is over.
func (c *cli) watchRollout(ctx context.Context, cl client.Client, key client.ObjectKey, revision string, every time.Duration) error {
	var phase v1alpha1.RolloutPhase
	var shown []byte
	var seen bool // the revision was the candidate
	read := c.now()
	err := wait.PollUntilContextCancel(ctx, every, true, func(ctx context.Context) (bool, error) {
		r, err := readRollout(ctx, cl, key)
		switch {
		case err == nil:
			read = c.now()
		case shown == nil, c.now().Sub(read) >= patience, ctx.Err() != nil, apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return false, err
		default:
			c.tell(err)
			return false, nil
		}
		var text bytes.Buffer
		// Ages would differ every time.
		if err := printRollout(&text, r, time.Time{}); err != nil {
			return false, err
		}
		if !bytes.Equal(shown, text.Bytes()) {
			if shown != nil {
				fmt.Fprintln(c.streams.Out)
			}
			shown = text.Bytes()
			if _, err := c.streams.Out.Write(shown); err != nil {
				return false, err
			}
		}
		phase = ended(r, revision)
		is := r.Status.Candidate != nil && rollout.Names(revision, *r.Status.Candidate)
		if phase == "" && seen && !is && overtaken(r, revision) {
			phase = v1alpha1.RolloutSuperseded
			fmt.Fprintf(c.streams.ErrOut, "✗ %s was overtaken by a newer revision before it had a run\n", shortRevision(revision))
		}
		seen = seen || is
		return phase != "", nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("cannot wait for the end of rollout %s: %w", key, err)
	case phase != v1alpha1.RolloutCompleted:
		return errNotReady
	}
	return nil
}

// ended is how the run ended that is waited for; empty while it goes on. A run that halted
// does not go on by itself. Without a revision it is the run of what is the candidate now, and
// so it is with one that changes nothing: it will never have a run.
func ended(r *v1alpha1.Rollout, revision string) v1alpha1.RolloutPhase {
	if observed := untouching(r); observed != "" && rollout.Names(revision, v1alpha1.RolloutRevision{Revision: observed}) {
		revision = ""
	}
	run := r.Status.Run
	if r.Status.ObservedGeneration != r.Generation {
		return "" // the status is about an earlier spec
	}
	if revision == "" && rollout.IsBack(&r.Status) {
		return v1alpha1.RolloutCompleted
	}
	if revision == "" && run != nil && r.Status.Candidate != nil && *r.Status.Candidate != run.RolloutRevision && !rollout.Active(run) {
		return "" // the next run is about to begin
	}
	if run != nil && (revision == "" || rollout.NamesRun(revision, &r.Status, run.Number, run.RolloutRevision)) {
		if run.Phase == v1alpha1.RolloutHalted || !rollout.Active(run) {
			return run.Phase
		}
		return ""
	}
	for i := range r.Status.History {
		if h := &r.Status.History[i]; revision != "" && rollout.NamesRun(revision, &r.Status, h.Number, h.RolloutRevision) {
			return h.Phase
		}
	}
	return ""
}

// overtaken reports whether a revision that was the candidate will have no run: another one is by now, and
// none began.
func overtaken(r *v1alpha1.Rollout, revision string) bool {
	run, candidate := r.Status.Run, r.Status.Candidate
	return r.Status.ObservedGeneration == r.Generation && candidate != nil && !rollout.Names(revision, *candidate) &&
		(run == nil || !rollout.NamesRun(revision, &r.Status, run.Number, run.RolloutRevision))
}

// untouching is the newest revision of the source, where it changes nothing for the clusters;
// empty where they get it.
func untouching(r *v1alpha1.Rollout) string {
	if c := r.Status.Candidate; c == nil || c.Revision == r.Status.ObservedRevision {
		return ""
	}
	return r.Status.ObservedRevision
}

// printRollout prints the status of a Rollout; without a time it leaves ages out.
func printRollout(out io.Writer, r *v1alpha1.Rollout, now time.Time) error {
	ages := func(format string, at time.Time) string {
		if now.IsZero() || at.IsZero() {
			return ""
		}
		return fmt.Sprintf(format, duration.HumanDuration(now.Sub(at)))
	}
	run := r.Status.Run
	line := fmt.Sprintf("Rollout %s/%s: no run yet", r.Namespace, r.Name)
	if run != nil {
		line = fmt.Sprintf("Rollout %s/%s: run %d of %s is %s%s", r.Namespace, r.Name, run.Number, shortRevision(run.Revision), run.Phase, ages(" for %s", run.Since.Time))
	}
	lines := []string{line}
	if run != nil && run.Image != "" {
		lines = append(lines, "agent's image: "+run.Image)
	}
	if good := r.Status.LastGood; good != nil {
		lines = append(lines, fmt.Sprintf("last good: %s of run %d%s", shortRevision(good.Revision), good.Run, ages(", %s ago", good.At.Time)))
	}
	if next := r.Status.Candidate; next != nil && (run == nil || *next != run.RolloutRevision) {
		lines = append(lines, "newest: "+shortRevision(next.Revision))
	}
	if observed := untouching(r); observed != "" {
		lines = append(lines, shortRevision(observed)+" changes nothing for these clusters")
	}
	lines = append(lines, exchanged(r, ages)...)
	if does := held.WaitsFor(r); does != "" {
		lines = append(lines, "waits for: "+does)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(out, l); err != nil {
			return err
		}
	}
	if err := printWaves(out, r); err != nil {
		return err
	}
	return printFailing(out, r)
}

// exchanged is what travels between environments: what the upstream proved, what was
// published, which tags approved, and what is wrong with any of it.
func exchanged(r *v1alpha1.Rollout, ages func(format string, at time.Time) string) []string {
	var lines []string
	wrong := func(kind string) string {
		if c := meta.FindStatusCondition(r.Status.Conditions, kind); c != nil && c.Status != metav1.ConditionTrue {
			return c.Reason + ": " + strings.Join(strings.Fields(c.Message), " ")
		}
		return ""
	}
	if up := r.Spec.Upstream; up != nil {
		line := fmt.Sprintf("upstream: %s has proven nothing that is known", up.Name)
		if s := r.Status.Upstream; s != nil && s.Newest != nil {
			line = fmt.Sprintf("upstream: %s proved %s in run %d%s", up.Name, briefCommit(s.Newest.Commit), s.Newest.Run, ages(", %s ago", s.Newest.Proven.Time))
			if s.Taken != nil && *s.Taken != *s.Newest {
				line += fmt.Sprintf("; %s was taken", briefCommit(s.Taken.Commit))
			}
		}
		lines = append(lines, line)
		if why := wrong(v1alpha1.UpstreamCondition); why != "" {
			lines = append(lines, "  "+why)
		}
	}
	if p := r.Spec.Publish; p != nil {
		line := "publishes: nothing yet as " + p.Name
		if s := r.Status.Published; s != nil {
			line = fmt.Sprintf("publishes: %s of run %d as %s", briefCommit(s.Commit), s.Run, p.Name)
		}
		lines = append(lines, line)
		if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.PublishedCondition); c != nil && c.Status == metav1.ConditionFalse {
			lines = append(lines, "  "+wrong(v1alpha1.PublishedCondition))
		}
	}
	if run := r.Status.Run; run != nil {
		for _, a := range run.Approvals {
			by := a.By
			if by == "" {
				by = "somebody"
			}
			line := fmt.Sprintf("approved: wave %s by %s%s", a.Wave, oneLine(by), ages(", %s ago", a.At.Time))
			if a.Tag != "" {
				line += fmt.Sprintf(", tag %s with key %s", oneLine(a.Tag), oneLine(a.Key))
			}
			lines = append(lines, line)
		}
	}
	if why := wrong(v1alpha1.ApprovalTagsCondition); why != "" && r.Spec.ApprovalTags != nil {
		lines = append(lines, "approval tags: "+why)
	}
	return lines
}

// briefCommit is the beginning of a commit.
func briefCommit(commit string) string { return commit[:min(len(commit), 12)] }

func printWaves(out io.Writer, r *v1alpha1.Rollout) error {
	if len(r.Status.Waves) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	var rows [][]string
	for i := range r.Status.Waves {
		w := &r.Status.Waves[i]
		rows = append(rows, append(countCells(w.Name, w.RolloutCounts), orDash(held.WaveState(r, i))))
	}
	if len(rows) > 1 {
		rows = append(rows, append(countCells("all", r.Status.Clusters), ""))
	}
	if err := table(out, []string{"WAVE", "CLUSTERS", "UPDATED", "UPDATING", "PENDING", "FAILED", "DEFERRED", "STATE"}, rows); err != nil {
		return err
	}
	if n := r.Status.Unassigned; n > 0 {
		_, err := fmt.Fprintf(out, "%d clusters are in no wave and keep what they have\n", n)
		return err
	}
	return nil
}

func countCells(name string, c v1alpha1.RolloutCounts) []string {
	cells := []string{name}
	for _, n := range []int32{c.Total, c.Updated, c.Updating, c.Pending, c.Failed, c.Deferred} {
		cells = append(cells, strconv.Itoa(int(n)))
	}
	return cells
}

func printFailing(out io.Writer, r *v1alpha1.Rollout) error {
	if len(r.Status.Failing) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	var rows [][]string
	for _, f := range r.Status.Failing {
		rows = append(rows, []string{f.Name, f.Reason, oneLine(shortRevision(f.Message))})
	}
	return table(out, []string{"CLUSTER", "REASON", "MESSAGE"}, rows)
}

// rolloutHistory lists the runs that ended.
func (c *cli) rolloutHistory(ctx context.Context, cl client.Client, key client.ObjectKey) error {
	r, err := readRollout(ctx, cl, key)
	if err != nil {
		return err
	}
	if len(r.Status.History) == 0 {
		return fmt.Errorf("no run of rollout %s has ended yet: look at it with: %s", key, held.StatusCommand(r))
	}
	var rows [][]string
	for i := range r.Status.History {
		h := &r.Status.History[i]
		rows = append(rows, []string{
			strconv.FormatInt(h.Number, 10), shortRevision(h.Revision), string(h.Phase), strconv.Itoa(int(h.Failed)),
			h.Began.UTC().Format(time.RFC3339), duration.HumanDuration(h.Ended.Sub(h.Began.Time)),
		})
	}
	return table(c.streams.Out, []string{"RUN", "REVISION", "PHASE", "FAILED", "BEGAN", "TOOK"}, rows)
}
