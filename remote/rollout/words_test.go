package rollout_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// TestMeans: what a person said of a run is not taken for the next one, which has the same
// commit and another image of the agents.
func TestMeans(t *testing.T) {
	at := func(revision, image string) v1alpha1.RolloutRevision {
		return v1alpha1.RolloutRevision{Revision: revision, Image: image}
	}
	status := func(run v1alpha1.RolloutRevision, before ...v1alpha1.RolloutRevision) *v1alpha1.RolloutStatus {
		s := &v1alpha1.RolloutStatus{Run: &v1alpha1.RolloutRun{Number: int64(len(before) + 1), RolloutRevision: run}}
		for i, b := range before { // the newest first
			s.History = append(s.History, v1alpha1.RolloutHistory{Number: int64(len(before) - i), RolloutRevision: b})
		}
		return s
	}
	const one, two = "registry.example.com/cascade:v1", "registry.example.com/cascade:v2"
	for _, tt := range []struct {
		reason, words string
		status        *v1alpha1.RolloutStatus
		want          bool
	}{
		{"the commit of the run", "222222222222", status(at(second, one), at(first, one)), true},
		{"the image, which the commit before had as well", one, status(at(second, one), at(first, one)), false},
		{"the image, which came with the commit", two, status(at(second, two), at(first, one)), false},
		{"the image, which alone was new in the run before", two, status(at(third, two), at(second, two), at(second, one)), false},
		{"the commit, which the run before had with another image", second, status(at(second, two), at(second, one)), false},
		{"the beginning of it", "222222222222", status(at(second, two), at(second, one)), false},
		{"the image, which alone is new", two, status(at(second, two), at(second, one)), true},
		{"the image of before", one, status(at(second, two), at(second, one)), false},
		{"the image, where there is no source", two, status(at("", two), at("", one)), true},
		{"the image of before, where there is no source", one, status(at("", two), at("", one)), false},
		{"no words", "", status(at("", "")), false},
	} {
		if got := rollout.Means(tt.words, tt.status); got != tt.want {
			t.Errorf("%s: Means(%q) = %v", tt.reason, tt.words, got)
		}
		if !rollout.Means(rollout.Word(tt.status), tt.status) && tt.words != "" {
			t.Errorf("%s: %q is not taken for the run that it is the word for", tt.reason, rollout.Word(tt.status))
		}
	}
}

func TestNames(t *testing.T) {
	r := v1alpha1.RolloutRevision{Revision: "main@sha1:0123456789abcdef0123456789abcdef01234567"}
	for _, tt := range []struct {
		words, reason string
		want          bool
	}{
		{r.Revision, "all of it", true},
		{"0123456789abcdef0123456789abcdef01234567", "the commit", true},
		{"0123456789ab", "the beginning of it", true},
		{"0123456789a", "too short to be meant for this one", false},
		{"123456789abc", "not the beginning", false},
		{"", "nothing", false},
		{"main", "the branch", false},
	} {
		if got := rollout.Names(tt.words, r); got != tt.want {
			t.Errorf("%s: Names(%q) = %v", tt.reason, tt.words, got)
		}
	}
}

func TestOpen(t *testing.T) {
	noon := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC) // a Wednesday
	for _, tt := range []struct {
		reason, cron, zone string
		lasts              time.Duration
		open, fails        bool
		changes            time.Duration
	}{
		{reason: "opened at 8", cron: "0 8 * * *", lasts: 8 * time.Hour, open: true, changes: 4 * time.Hour},
		{reason: "closed at noon", cron: "0 8 * * *", lasts: 4 * time.Hour, changes: 20 * time.Hour},
		{reason: "opens at noon", cron: "0 12 * * *", lasts: time.Hour, open: true, changes: time.Hour},
		{reason: "13:00 in Paris", cron: "0 13 * * 1-5", zone: "Europe/Paris", lasts: time.Hour, open: true, changes: time.Hour},
		{reason: "weekends only", cron: "0 0 * * 6", lasts: 48 * time.Hour, changes: 60 * time.Hour},
		{reason: "never", cron: "0 0 30 2 *", lasts: time.Hour, fails: true},
		{reason: "no zone of this name", cron: "0 0 * * *", zone: "Mars/Base", lasts: time.Hour, fails: true},
		{reason: "no schedule", cron: "at noon please", lasts: time.Hour, fails: true},
		{reason: "no words", cron: "@every 1h0m", lasts: time.Hour, fails: true},
		{reason: "a zone and no fields", cron: "TZ=Europe/Paris", lasts: time.Hour, fails: true},
		{reason: "another word for it", cron: "CRON_TZ=UTC", lasts: time.Hour, fails: true},
		{reason: "no duration", cron: "0 0 * * *", fails: true},
	} {
		open, changes, err := rollout.Open(&v1alpha1.RolloutWindow{Cron: tt.cron, Duration: metav1.Duration{Duration: tt.lasts}, TimeZone: tt.zone}, noon)
		if (err != nil) != tt.fails || open != tt.open || err == nil && changes.Sub(noon) != tt.changes {
			t.Errorf("%s: open %v, changes after %s, %v", tt.reason, open, changes.Sub(noon), err)
		}
	}
}

// TestOpenInSpring: the hour that clocks leave out leaves no window out.
func TestOpenInSpring(t *testing.T) {
	spring := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC) // when it becomes 3:00 in Paris, of a Sunday
	for _, tt := range []struct {
		reason, cron string
		after        time.Duration // the change of the clocks
		open         bool
		changes      time.Duration // after it, too
	}{
		{"the day before", "30 2 * * 0", -12 * time.Hour, false, 30 * time.Minute},
		{"the week before", "30 2 * * 0", -7 * 24 * time.Hour, false, -7*24*time.Hour + 30*time.Minute},
		{"just before", "30 2 * * 0", 29 * time.Minute, false, 30 * time.Minute},
		{"when it would be 2:30", "30 2 * * 0", 30 * time.Minute, true, 150 * time.Minute},
		{"an hour later", "30 2 * * 0", 90 * time.Minute, true, 150 * time.Minute},
		{"it closed", "30 2 * * 0", 150 * time.Minute, false, 7*24*time.Hour - 30*time.Minute},
		{"it opens at 2:00 and at 3:00, which are one", "0 2,3 * * *", time.Hour, true, 2 * time.Hour},
		{"it opens at 3:30, as on any day", "30 3 * * *", 0, false, 30 * time.Minute},
		{"it opens at 1:30, as on any day", "30 1 * * *", time.Hour, true, 90 * time.Minute},
		{"in another month", "30 2 1 5 *", 0, false, 33*24*time.Hour - 30*time.Minute},
	} {
		at := spring.Add(tt.after)
		open, changes, err := rollout.Open(&v1alpha1.RolloutWindow{Cron: tt.cron, Duration: metav1.Duration{Duration: 2 * time.Hour}, TimeZone: "Europe/Paris"}, at)
		if err != nil || open != tt.open || changes.Sub(spring) != tt.changes {
			t.Errorf("%s: open %v, changes after %s, %v", tt.reason, open, changes.Sub(spring), err)
		}
	}
}
