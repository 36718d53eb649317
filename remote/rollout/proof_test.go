package rollout_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

var (
	one, two, three = strings.Repeat("1", 40), strings.Repeat("2", 40), strings.Repeat("3", 40)
	proven          = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// proving is a Rollout whose runs ended like this, the newest first.
func proving(phases ...v1alpha1.RolloutPhase) *v1alpha1.Rollout {
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base", UID: "uid"}}
	o.Spec.Publish = &v1alpha1.RolloutPublish{Name: "staging"}
	for i, phase := range phases {
		number := len(phases) - i
		h := v1alpha1.RolloutHistory{Number: int64(number), Phase: phase, Ended: metav1.NewTime(proven.Add(time.Duration(number) * time.Hour))}
		h.Revision = "main@sha1:" + strings.Repeat(string(rune('0'+number)), 40)
		o.Status.History = append(o.Status.History, h)
		if phase == v1alpha1.RolloutCompleted && o.Status.LastGood == nil {
			o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: h.RolloutRevision, Run: h.Number, At: h.Ended}
		}
	}
	return o
}

func TestPublishable(t *testing.T) {
	const done, halted = v1alpha1.RolloutCompleted, v1alpha1.RolloutAborted
	published := func(change func(*rollout.Proofs)) *rollout.Proofs {
		p, err := rollout.Publishable(proving(done, done), nil)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(p)
		}
		return p
	}
	back := proving(done, done)
	back.Status.LastGood.At = metav1.NewTime(proven)
	forgot := proving(done, done)
	forgot.Status.History = forgot.Status.History[:1]
	for _, tt := range []struct {
		reason string
		o      *v1alpha1.Rollout
		before *rollout.Proofs
		want   []string
		others bool
	}{
		{reason: "nothing passed yet", o: proving(halted)},
		{reason: "what passed, the newest first", o: proving(done, done), want: []string{two, one}},
		{reason: "what did not pass is not there", o: proving(halted, done, halted, done), want: []string{three, one}},
		{reason: "it is published already", o: proving(done, done), before: published(nil)},
		{reason: "the status forgot what passed before", o: forgot, before: published(nil)},
		{reason: "somebody else wrote another time", o: proving(done, done), want: []string{two, one},
			before: published(func(p *rollout.Proofs) { p.Proofs[0].Proven = p.Proofs[0].Proven.Add(-time.Minute) })},
		{reason: "somebody else wrote another commit before", o: proving(done, done), want: []string{two, one},
			before: published(func(p *rollout.Proofs) { p.Proofs[1].Commit = strings.Repeat("e", 40) })},
		{reason: "somebody else left one out", o: proving(done, done), before: published(func(p *rollout.Proofs) { p.Proofs = p.Proofs[:1] }), want: []string{two, one}},
		{reason: "another one passed since", o: proving(done, done, done), before: published(nil), want: []string{three, two, one}},
		{reason: "nothing that somebody else may have written is published again", o: proving(done, done, done),
			before: published(func(p *rollout.Proofs) { p.Proofs[1].Commit = strings.Repeat("e", 40) }), want: []string{three, two, one}},
		{reason: "a Rollout of another name", o: proving(done, done, done), before: published(func(p *rollout.Proofs) { p.Rollout = "fleet/other" }), others: true},
		{reason: "the tier was built again", o: proving(done, done, done), before: published(func(p *rollout.Proofs) { p.UID = "before" }), want: []string{three, two, one}},
		{reason: "another tier, which proved something since", o: proving(done), before: published(func(p *rollout.Proofs) { p.UID = "other" }), others: true},
		{reason: "the clock was set back", o: back, want: []string{two, one}},
	} {
		got, err := rollout.Publishable(tt.o, tt.before)
		if errors.Is(err, rollout.ErrOthers) != tt.others || err != nil && !tt.others {
			t.Errorf("%s: %v", tt.reason, err)
		}
		var commits []string
		if got != nil {
			for i, p := range got.Proofs {
				if commits = append(commits, p.Commit); i > 0 && !p.Proven.Before(got.Proofs[i-1].Proven) {
					t.Errorf("%s: proof %d is of %s, the one after it of %s", tt.reason, i, p.Proven, got.Proofs[i-1].Proven)
				}
			}
			read(t, got)
		}
		if d := cmp.Diff(tt.want, commits); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.reason, d)
		}
	}
}

// read expects that what is written is what is read.
func read(t *testing.T, p *rollout.Proofs) {
	t.Helper()
	text, err := p.Message()
	if err != nil {
		t.Fatal(err)
	}
	got, err := rollout.ParseProofs(p.Name, p.Proofs[0].Commit, text)
	if d := cmp.Diff(p, got); err != nil || d != "" {
		t.Errorf("read %v (-want +got):\n%s", err, d)
	}
}

func TestParseProofs(t *testing.T) {
	p, err := rollout.Publishable(proving(v1alpha1.RolloutCompleted, v1alpha1.RolloutCompleted), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Message()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ reason, name, commit, text, says string }{
		{"as it was written", "staging", two, text, ""},
		{"of a later version, with more in it", "staging", two, strings.Replace(text, `"name"`, `"more": {}, "name"`, 1), ""},
		{"published under another name", "production", two, text, "not of"},
		{"the tag is on another commit", "staging", one, text, "another commit"},
		{"no JSON", "staging", two, "subject\n\nnothing", "no proofs in JSON"},
		{"nothing at all", "staging", two, "", "no proofs in JSON"},
		{"an empty list", "staging", two, "s\n\n" + `{"name": "staging", "proofs": []}`, "no proofs"},
		{"no commit", "staging", "x", "s\n\n" + `{"name": "staging", "proofs": [{"commit": "x"}]}`, "names no commit"},
		{"the order of the list is not that of time", "staging", two, strings.Replace(text, "2026-03-01T13", "2027-03-01T13", 1), "is later"},
		{"without end", "staging", two, text + strings.Repeat(" ", 1<<20), "bytes"},
	} {
		_, err := rollout.ParseProofs(tt.name, tt.commit, tt.text)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.reason, err, tt.says)
		}
	}
}

func FuzzParseProofs(f *testing.F) {
	p, err := rollout.Publishable(proving(v1alpha1.RolloutCompleted, v1alpha1.RolloutCompleted), nil)
	if err != nil {
		f.Fatal(err)
	}
	text, err := p.Message()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("a\n\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := rollout.ParseProofs("staging", two, text)
		if err != nil {
			return
		}
		if len(p.Proofs) == 0 || len(p.Proofs) > 32 || p.Proofs[0].Commit != two || p.Name != "staging" {
			t.Errorf("took %+v", p)
		}
	})
}

func TestApprovers(t *testing.T) {
	approve := func(words, by string) map[string]string {
		return map[string]string{v1alpha1.ApproveRolloutAnnotation: words, v1alpha1.ApprovedByAnnotation: by}
	}
	for _, tt := range []struct {
		reason string
		given  map[string]string
		want   []rollout.Approval
	}{
		{"one name for all, as earlier versions wrote it", approve("a=1,b=2", "ann"), []rollout.Approval{{Wave: "a", Revision: "1", By: "ann"}, {Wave: "b", Revision: "2", By: "ann"}}},
		{"a name that looks like an entry, of no wave", approve("a=1", "CN=ann,O=ops"), []rollout.Approval{{Wave: "a", Revision: "1", By: "CN=ann,O=ops"}}},
		{"a name for each", approve("a=1,b=2", "a=ann,b=bob%2C+jr"), []rollout.Approval{{Wave: "a", Revision: "1", By: "ann"}, {Wave: "b", Revision: "2", By: "bob, jr"}}},
		{"one of them is not known", approve("a=1,b=2", "b=bob"), []rollout.Approval{{Wave: "a", Revision: "1"}, {Wave: "b", Revision: "2", By: "bob"}}},
		{"nobody says who", approve("a=1", ""), []rollout.Approval{{Wave: "a", Revision: "1"}}},
	} {
		if d := cmp.Diff(tt.want, rollout.Approvals(tt.given)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.reason, d)
		}
	}
	for _, tt := range []struct {
		reason string
		given  map[string]string
		person string
		want   string
	}{
		{"the first one", nil, "ann", "b=ann"},
		{"who approved before stays", approve("a=1", "CN=ann,O=ops"), "bob", "a=CN%3Dann%2CO%3Dops,b=bob"},
		{"an approval of the wave by somebody else is replaced", approve("a=1,b=1", "a=ann,b=eve"), "bob", "a=ann,b=bob"},
	} {
		if got := rollout.Approvers(tt.given, "b", tt.person); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.reason, got, tt.want)
		}
	}
}

func TestApprovedWave(t *testing.T) {
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}}
	if got := rollout.ApprovalPrefix(o); got != "cascade/approve/fleet/base" {
		t.Errorf("the prefix is %q", got)
	}
	o.Spec.ApprovalTags = &v1alpha1.RolloutApprovalTags{Prefix: "go/production"}
	for tag, want := range map[string]string{
		"go/production/rest": "rest", "go/production/rest/2026-03-01": "rest", "go/production/rest/a/b": "rest",
		"go/production": "", "go/production2/rest": "", "x/go/production/rest": "",
	} {
		if got := rollout.ApprovedWave(rollout.ApprovalPrefix(o), tag); got != want {
			t.Errorf("%s approves %q, want %q", tag, got, want)
		}
	}
}
