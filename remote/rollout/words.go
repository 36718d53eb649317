package rollout

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// End is what an approval names instead of a wave to let a run pass of which the last wave
// proved too little. No wave has such a name.
const End = "_end"

// shortest is how many letters of a commit or digest name a revision.
const shortest = 12

// Names reports whether a person's words name a revision: all of it, its commit or digest,
// or the beginning of that; or the image, if that is all there is to it.
func Names(words string, r v1alpha1.RolloutRevision) bool {
	if words == "" {
		return false
	}
	if r.Revision == "" {
		return words == r.Image
	}
	if words == r.Revision {
		return true
	}
	_, hash, found := strings.Cut(r.Revision[strings.LastIndex(r.Revision, "@")+1:], ":")
	return found && len(words) >= shortest && strings.HasPrefix(hash, words)
}

// NamesRun reports whether a person's words name the revision of a run of a number, also by its
// image where that is all that told the run from one before it. The image says nothing of any
// other run: later commits come with it as well.
func NamesRun(words string, status *v1alpha1.RolloutStatus, number int64, r v1alpha1.RolloutRevision) bool {
	return Names(words, r) || words != "" && words == r.Image && imageOnly(status, number, r)
}

// Word is what a person's request has to name for the run of a Rollout: its revision, or its
// image if that is all that tells the run from one before it. Words for a run before it may
// still stand in the annotations.
func Word(status *v1alpha1.RolloutStatus) string {
	run := status.Run
	if run.Revision == "" || imageOnly(status, run.Number, run.RolloutRevision) {
		return run.Image
	}
	return run.Revision
}

// imageOnly reports whether a run of a number had the source's revision of an earlier one, with
// another image.
func imageOnly(status *v1alpha1.RolloutStatus, number int64, r v1alpha1.RolloutRevision) bool {
	another := func(run int64, has v1alpha1.RolloutRevision) bool {
		return run < number && has.Revision == r.Revision && has.Image != r.Image
	}
	if good := status.LastGood; good != nil && another(good.Run, good.RolloutRevision) {
		return true
	}
	return slices.ContainsFunc(status.History, func(h v1alpha1.RolloutHistory) bool { return another(h.Number, h.RolloutRevision) })
}

// Request is what asks to abort or revert the run of a Rollout. stale is the request of that kind
// that stood when the run began, and now makes the text differ from it where the words are the same.
func Request(status *v1alpha1.RolloutStatus, stale string, now time.Time) string {
	words := Word(status)
	if requested(stale) == words {
		words += " " + now.UTC().Format(time.RFC3339Nano)
	}
	return words
}

// requested are the words of a request.
func requested(request string) string {
	words, _, _ := strings.Cut(request, " ")
	return words
}

// Means reports whether a person's words are about the run of a Rollout, and not about one
// before it.
func Means(words string, status *v1alpha1.RolloutStatus) bool {
	run := status.Run
	if imageOnly(status, run.Number, run.RolloutRevision) {
		return words != "" && words == run.Image
	}
	return Names(words, run.RolloutRevision)
}

// Reverts reports whether a person asks that what the run of a Rollout brought is taken back, and there is something to go
// back to.
func Reverts(status *v1alpha1.RolloutStatus, ask Requests) bool {
	run, good := status.Run, status.LastGood
	return run != nil && good != nil && good.RolloutRevision != run.RolloutRevision && ask.Revert != run.StaleRevert && Means(requested(ask.Revert), status)
}

// Approvals reads the annotations by which a person lets waves begin. What is not of the
// form <wave>=<revision> approves nothing.
func Approvals(annotations map[string]string) []Approval {
	var all []Approval
	for _, part := range strings.Split(annotations[v1alpha1.ApproveRolloutAnnotation], ",") {
		if wave, revision, ok := strings.Cut(strings.TrimSpace(part), "="); ok {
			all = append(all, Approval{Wave: wave, Revision: revision})
		}
	}
	by := approvers(annotations[v1alpha1.ApprovedByAnnotation], all)
	for i := range all {
		all[i].By = by(all[i].Wave)
	}
	return all
}

// approvers reads who approved which wave. A text without an entry for any wave that was
// approved names who approved all of them, as earlier versions and people write it.
func approvers(text string, approvals []Approval) func(wave string) string {
	by := map[string]string{}
	for _, part := range strings.Split(text, ",") {
		wave, name, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || !slices.ContainsFunc(approvals, func(a Approval) bool { return a.Wave == wave }) {
			continue
		}
		if plain, err := url.QueryUnescape(name); err == nil {
			by[wave] = plain
		}
	}
	if len(by) == 0 {
		return func(string) string { return text }
	}
	return func(wave string) string { return by[wave] }
}

// Approvers is the annotation that says who approved each wave, after a person approved one.
// Who approved the others before stays.
func Approvers(annotations map[string]string, wave, person string) string {
	entries := []string{wave + "=" + url.QueryEscape(person)}
	for _, a := range Approvals(annotations) {
		if a.Wave != wave && a.By != "" {
			entries = append(entries, a.Wave+"="+url.QueryEscape(a.By))
		}
	}
	slices.Sort(entries)
	return strings.Join(slices.Compact(entries), ",")
}

// ApprovalPrefix is what the names of tags begin with that approve waves of a Rollout.
func ApprovalPrefix(o *v1alpha1.Rollout) string {
	if tags := o.Spec.ApprovalTags; tags != nil && tags.Prefix != "" {
		return tags.Prefix
	}
	return "cascade/approve/" + o.Namespace + "/" + o.Name
}

// ApprovedWave is the wave that a tag of a name approves; empty if it approves none.
func ApprovedWave(prefix, tag string) string {
	rest, ok := strings.CutPrefix(tag, prefix+"/")
	if !ok {
		return ""
	}
	wave, _, _ := strings.Cut(rest, "/")
	return wave
}

// InTurn is the order in which tags that may approve waves of a run are read, by their references, of which the first ones
// are. Whoever may write tags, without a key, is not to fill these: those that approved when they were read last come
// first, then those of waves that somebody has to approve, the one with the plain name of each before others. Of the rest
// those come after the one that was read last, so that each has its turn.
func InTurn(run *v1alpha1.RolloutRun, prefix string, references, approved []string, last string, most int) []string {
	tag := func(reference string) string { return strings.TrimPrefix(reference, "refs/tags/") }
	rank := func(reference string) int {
		wave := ApprovedWave(prefix, tag(reference))
		switch {
		case slices.Contains(approved, reference):
			return 0
		case !needsApproval(run, wave), slices.ContainsFunc(approved, func(a string) bool { return ApprovedWave(prefix, tag(a)) == wave }):
			return 3
		case tag(reference) == prefix+"/"+wave:
			return 1
		}
		return 2
	}
	all := slices.Clone(references)
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(rank(a)-rank(b), strings.Compare(a, b)) })
	if len(all) <= most {
		return all
	}
	cut := rank(all[most])
	from := slices.IndexFunc(all, func(r string) bool { return rank(r) == cut })
	var next, before, after []string
	for _, r := range all[from:] {
		switch {
		case rank(r) != cut:
			after = append(after, r)
		case r > last:
			next = append(next, r)
		default:
			before = append(before, r)
		}
	}
	return slices.Concat(all[:from], next, before, after)
}

// needsApproval reports whether a person has to approve a wave of a run, as far as it is known by now.
func needsApproval(run *v1alpha1.RolloutRun, wave string) bool {
	if wave == End {
		return int(run.Wave) >= len(run.Terms.Waves)-1
	}
	i := slices.IndexFunc(run.Terms.Waves, func(w v1alpha1.RolloutWave) bool { return w.Name == wave })
	return i >= 0 && (run.Terms.Waves[i].Approval == v1alpha1.ApprovalRequired || run.Unproven && i == int(run.Wave))
}

// Skip reads from the annotations of a Child which revision of a Rollout it does without.
func Skip(annotations map[string]string, rollout string) string {
	for _, part := range strings.Split(annotations[v1alpha1.SkipRolloutAnnotation], ",") {
		if name, revision, ok := strings.Cut(strings.TrimSpace(part), "="); ok && name == rollout {
			return revision
		}
	}
	return ""
}

// Open reports whether a window is open at a time, and when that changes next: when it
// opens, or closes.
func Open(w *v1alpha1.RolloutWindow, at time.Time) (open bool, changes time.Time, err error) {
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("cannot use time zone %q of a window: %w; name one of the tz database, Europe/Paris for example", w.TimeZone, err)
	}
	schedule, err := scheduleOf(w.Cron)
	if err != nil {
		return false, time.Time{}, err
	}
	if w.Duration.Duration <= 0 {
		return false, time.Time{}, fmt.Errorf("cannot use a window of %s: spec.window.duration must be above zero", w.Duration.Duration)
	}
	at = at.In(zone)
	// The last opening that may still hold is after at - duration.
	opening := schedule.Next(at.Add(-w.Duration.Duration))
	if opening.IsZero() {
		return false, time.Time{}, fmt.Errorf("cannot use the schedule %q of a window: it never opens", w.Cron)
	}
	if opening.After(at) {
		return false, opening, nil
	}
	// Openings that follow while it is open keep it open. A year of them is always.
	closes := opening.Add(w.Duration.Duration)
	for range 366 * 24 {
		next := schedule.Next(opening)
		if next.IsZero() || next.After(closes) {
			return true, closes, nil
		}
		opening, closes = next, next.Add(w.Duration.Duration)
	}
	return true, closes, nil
}

// scheduleOf reads the five fields of cron. The parser takes words and time zones as well, and
// panics for a zone that nothing follows (robfig/cron v3.0.1).
func scheduleOf(text string) (cron.Schedule, error) {
	if !strings.Contains(text, "TZ=") && !strings.HasPrefix(text, "@") {
		if schedule, err := cron.ParseStandard(text); err == nil {
			return whole{schedule}, nil
		}
	}
	return nil, fmt.Errorf("cannot use the schedule %q of a window: it is to have the five fields of cron, as 0 8 * * 1-5", text)
}

// whole is a schedule that leaves nothing out when clocks go forward. What falls into the hour that is not there counts
// from when it would have come: a window that opens in it once a week would not open that week otherwise.
type whole struct{ cron.Schedule }

// Next is the first time after another one; zero if there is none.
func (s whole) Next(t time.Time) time.Time {
	next := s.Schedule.Next(t)
	for at := t; !next.IsZero(); {
		begins, ends := at.ZoneBounds()
		if !begins.IsZero() {
			from := begins.Add(-time.Second)
			name, before := from.Zone()
			_, since := begins.Zone()
			over := begins.Add(time.Duration(since-before) * time.Second)
			if t.After(from) {
				from = t
			}
			if from.Before(over) {
				if is := s.Schedule.Next(from.In(time.FixedZone(name, before))); is.After(from) && is.Before(over) && is.Before(next) {
					return is.In(t.Location())
				}
			}
		}
		if ends.IsZero() || !ends.Before(next) {
			break
		}
		at = ends
	}
	return next
}

// Check returns what is wrong with a spec that the API server cannot see.
func Check(spec *v1alpha1.RolloutSpec) error {
	windows := []*v1alpha1.RolloutWindow{spec.Window}
	selectors := []*metav1.LabelSelector{spec.ClusterSelector}
	for i := range spec.Waves {
		windows = append(windows, spec.Waves[i].Window)
		selectors = append(selectors, spec.Waves[i].Selector)
	}
	for _, w := range windows {
		if w == nil {
			continue
		}
		if _, _, err := Open(w, time.Unix(0, 0)); err != nil {
			return err
		}
	}
	for _, s := range selectors {
		if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
			return fmt.Errorf("cannot use a selector of the Rollout: %w", err)
		}
	}
	return nil
}
