package inventory

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestPlanHandOver: what is declared by an owner that has not applied it is kept for that
// one until it had the time.
func TestPlanHandOver(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	config := func(name string) Entry { return Entry{Namespace: "x", Name: name, Kind: "ConfigMap", Version: "v1"} }
	volume := Entry{Namespace: "x", Name: "v", Kind: "PersistentVolumeClaim", Version: "v1"}
	declared := Live{State: Present, UID: "1", Owned: true, HandOver: "Kustomization/x/new"}
	change := func(f func(*Live)) Live {
		l := declared
		f(&l)
		return l
	}
	dropped := Live{State: Present, UID: "2", Owned: true}
	since := func(ago time.Duration, entries ...Entry) *v1alpha1.HandOver {
		return HandingOver(entries, nil, now.Add(-ago))
	}
	for name, tc := range map[string]struct {
		reason                    string
		live                      map[Entry]Live
		record                    *v1alpha1.HandOver
		asked                     bool
		kept, deletes, leaves     string
		late                      string
		protected                 string
		superseded, held, waiting bool
		part                      bool
	}{
		"Kept":         {reason: "the new owner has not applied it yet", live: map[Entry]Live{config("a"): declared}, kept: "a"},
		"KeptAlone":    {reason: "what nobody declares goes", live: map[Entry]Live{config("a"): declared, config("b"): dropped}, kept: "a", deletes: "b"},
		"Early":        {reason: "the bound has not passed", live: map[Entry]Live{config("a"): declared}, record: since(HandOverBound-time.Second, config("a")), kept: "a"},
		"Overdue":      {reason: "the new owner had the time", live: map[Entry]Live{config("a"): declared}, record: since(HandOverBound, config("a")), deletes: "a"},
		"OtherObjects": {reason: "each object has its own time", live: map[Entry]Live{config("a"): declared, config("b"): declared}, record: since(HandOverBound, config("a")), kept: "b", deletes: "a"},
		"OldRecord":    {reason: "an earlier version knew the time of all of them together", live: map[Entry]Live{config("a"): declared, config("b"): declared}, record: &v1alpha1.HandOver{Hash: Identify([]Entry{config("a")}), Since: metav1.NewTime(now.Add(-HandOverBound))}, kept: "a b"},
		"Protected":    {reason: "data is kept as long as anybody declares it", live: map[Entry]Live{volume: declared}, record: since(24*time.Hour, volume), kept: "v"},
		"Ahead":        {reason: "a Rollout lets the new owner have it in days", live: map[Entry]Live{config("a"): change(func(l *Live) { l.Ahead = true }), config("b"): declared}, record: since(24*time.Hour, config("a"), config("b")), kept: "a", deletes: "b"},
		"Unsure":       {reason: "nobody is known to declare it: a person decides", live: map[Entry]Live{volume: change(func(l *Live) { l.Unsure = true })}, record: since(HandOverBound, volume), late: "v", protected: "v"},
		"UnsureYet":    {reason: "it may be known soon", live: map[Entry]Live{volume: change(func(l *Live) { l.Unsure, l.Confirmed = true, true })}, kept: "v"},
		"UnsureGoes":   {reason: "a person decided", live: map[Entry]Live{volume: change(func(l *Live) { l.Unsure, l.Confirmed = true, true })}, record: since(HandOverBound, volume), deletes: "v"},
		"UnsureBeside": {reason: "what is held with it stays on record", asked: true, live: map[Entry]Live{volume: change(func(l *Live) { l.Unsure = true }), config("a"): change(func(l *Live) { l.Unsure = true })}, record: since(HandOverBound, volume, config("a")), late: "a v", deletes: "a", protected: "v", held: true},
		"UnsurePart":   {reason: "it waits for its Cluster, and for nobody to take it over", live: map[Entry]Live{config("a"): change(func(l *Live) { l.Unsure, l.OfCluster = true, "c" })}, record: since(HandOverBound, config("a")), late: "a", part: true},
		"Confirmed":    {reason: "somebody confirmed a deletion, not a hand-over", live: map[Entry]Live{volume: change(func(l *Live) { l.Confirmed = true })}, kept: "v"},
		"Taken":        {reason: "the new owner has it", live: map[Entry]Live{config("a"): change(func(l *Live) { l.Owned = false })}, leaves: "a"},
		"Going":        {reason: "it is being deleted already", live: map[Entry]Live{config("a"): change(func(l *Live) { l.Deleting = true })}, waiting: true},
		"Asked":        {reason: "a deleted owner hands over as well", live: map[Entry]Live{config("a"): declared, config("b"): dropped}, asked: true, kept: "a", deletes: "b"},
		"Superseded":   {reason: "the owner declares something else by now", live: map[Entry]Live{config("a"): {State: Present, UID: "1", Owned: true, Again: true}, config("b"): dropped}, superseded: true},
		"ComesBack":    {reason: "a deleted owner is to be created again with it", live: map[Entry]Live{config("a"): {State: Present, UID: "1", Owned: true, Again: true}, config("b"): dropped}, asked: true, leaves: "a", deletes: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			f := Facts{Target: "t", Live: tc.live, HandOver: tc.record, Now: now, Asked: tc.asked, Rendered: []Entry{config("stays")}, Owned: []Entry{config("stays")}}
			for e := range tc.live {
				f.Owned = append(f.Owned, e)
			}
			if tc.asked {
				f.Rendered = nil
				f.Live[config("stays")] = Live{State: Absent}
			}
			p := PlanPrune(f)
			if record := f.Record(p); tc.late != "" && (record == nil || !record.Since.Equal(&tc.record.Since)) {
				t.Errorf("%s: the time begins anew: %v", tc.reason, record)
			}
			var deletes []Entry
			for _, d := range p.Deletes {
				deletes = append(deletes, d.Entry)
			}
			left := Difference(f.Owned, Union(p.Keep, append(f.Rendered, config("stays"))))
			if namesOf(p.HandOver) != tc.kept || namesOf(p.Late) != tc.late || (len(p.OfCluster) > 0) != tc.part || namesOf(p.Protected) != tc.protected || namesOf(deletes) != tc.deletes || namesOf(left) != tc.leaves || p.Superseded != tc.superseded || p.Held != tc.held || (len(p.Waiting) > 0) != tc.waiting {
				t.Errorf("%s: hands over %q, deletes %q, lets go of %q: %+v", tc.reason, namesOf(p.HandOver), namesOf(deletes), namesOf(left), p)
			}
		})
	}
}

func namesOf(entries []Entry) string {
	var names []string
	for _, e := range Union(nil, entries) {
		names = append(names, e.Name)
	}
	return strings.Join(names, " ")
}

// TestHandingOver: the time of each object runs from when it began to wait.
func TestHandingOver(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	a, b := Entry{Name: "a", Kind: "Role"}, Entry{Name: "b", Kind: "Role"}
	first := HandingOver([]Entry{a, b}, nil, noon)
	if again := HandingOver([]Entry{b, a}, first, noon.Add(time.Minute)); *again != *first {
		t.Errorf("the same objects in another order: %v, then %v", first, again)
	}
	if left := HandingOver([]Entry{a}, first, noon.Add(time.Minute)); !left.Since.Time.Equal(first.Since.Time) {
		t.Errorf("what is left waits since then: %v", left)
	}
	c := Entry{Name: "c", Kind: "Role"}
	if more := Waiting([]Entry{a, c}, first, noon.Add(time.Minute)); !more[a.ID()].Equal(noon) || !more[c.ID()].Equal(noon.Add(time.Minute)) {
		t.Errorf("what comes waits since now: %v", more)
	}
	var many []Entry
	for i := range 2 * mostEarlier {
		many = append(many, Entry{Name: fmt.Sprint("r", i), Kind: "Role"})
	}
	all := HandingOver(many, nil, noon)
	if later := Waiting(many, all, noon.Add(HandOverBound)); !later.Overdue(many[len(many)-1], noon.Add(HandOverBound)) || len(all.Earlier) > 10*mostEarlier {
		t.Errorf("many wait together: %v", all)
	} else if left := later.Record(many[1:]); !left.Since.Equal(&all.Since) {
		t.Errorf("what is left of many waits since then: %v", left)
	}
	if none := HandingOver(nil, first, noon); none != nil || Overdue(none, noon) {
		t.Errorf("nothing is kept: %v", none)
	}
}

// TestHandOverGrows: an object is kept for its time, however often another one joins it or leaves.
func TestHandOverGrows(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	config := func(name string) Entry { return Entry{Namespace: "x", Name: name, Kind: "ConfigMap", Version: "v1"} }
	declared := Live{State: Present, UID: "1", Owned: true, HandOver: "Layer/x/new", Unsure: true}
	var seen Seen
	f := Facts{Target: "t", Live: map[Entry]Live{}, Rendered: []Entry{config("stays")}, Owned: []Entry{config("stays")}}
	for _, step := range []struct {
		minute         int
		drops, settles string
		restart        bool
		kept, deletes  string
	}{
		{minute: 0, drops: "a", kept: "a"},
		{minute: 4, drops: "b", kept: "a b"},
		{minute: 8, drops: "c", settles: "b", kept: "a c"},
		{minute: 9, drops: "d", kept: "a c d"},
		{minute: 10, kept: "c d", deletes: "a"},
		{minute: 14, restart: true, kept: "c d"},
		{minute: 18, kept: "c d"},
		{minute: 19, kept: "", deletes: "c d"},
	} {
		f.Now = noon.Add(time.Duration(step.minute) * time.Minute)
		if step.drops != "" {
			f.Owned = append(f.Owned, config(step.drops))
			f.Live[config(step.drops)] = declared
		}
		if step.settles != "" {
			f.Live[config(step.settles)] = Live{State: Present, UID: "1"}
		}
		if step.restart {
			seen = Seen{}
		} else {
			seen.looked = f.Now // it looks every few seconds
		}
		f.HandOver = seen.Look(f.HandOver, f.Now)
		p := PlanPrune(f)
		var deletes []Entry
		for _, d := range p.Deletes {
			deletes = append(deletes, d.Entry)
			f.Live[d.Entry] = Live{State: Absent}
		}
		if namesOf(p.HandOver) != step.kept || namesOf(deletes) != step.deletes {
			t.Errorf("after %d minutes it keeps %q and deletes %q, want %q and %q", step.minute, namesOf(p.HandOver), namesOf(deletes), step.kept, step.deletes)
		}
		f.HandOver = f.Record(p)
	}
}

// TestSeenHandOver: time in which nobody looked is no time that the new owner had.
func TestSeenHandOver(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *v1alpha1.HandOver {
		return &v1alpha1.HandOver{Hash: "x", Since: metav1.NewTime(noon.Add(-d))}
	}
	for name, tc := range map[string]struct {
		reason string
		record *v1alpha1.HandOver
		// looks are when a process looks; the last one is a minute after noon.
		looks []time.Duration
		// lost: what the looks say is never written.
		lost bool
		// had is how much of its time the new owner had by then.
		had time.Duration
	}{
		"Nothing":   {"nothing is kept", nil, nil, false, 0},
		"Begins":    {"a process that looks all the time", ago(0), []time.Duration{0}, false, time.Minute},
		"Goes":      {"it has looked for longer than a new one has to", ago(9 * time.Minute), []time.Duration{-time.Minute, 0}, false, HandOverBound - handOverLeft + 2*time.Minute},
		"Restart":   {"no agent ran for an hour", ago(time.Hour), nil, false, HandOverBound - handOverLeft},
		"Short":     {"the agent is another one a moment later", ago(time.Minute), nil, false, 2 * time.Minute},
		"Suspended": {"the owner was not looked at for ten minutes", ago(11 * time.Minute), []time.Duration{-11 * time.Minute, -10 * time.Minute}, false, 2 * time.Minute},
		"Unwritten": {"the same where what it said could not be written", ago(time.Hour), []time.Duration{-time.Minute, 0}, true, HandOverBound - handOverLeft + 2*time.Minute},
		"Ahead":     {"the clock was ahead by a day", ago(-24 * time.Hour), []time.Duration{0}, false, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			var s Seen
			record := tc.record
			for _, at := range append(tc.looks, time.Minute) {
				if got := s.Look(record, noon.Add(at)); !tc.lost || at == time.Minute {
					record = got
				}
			}
			if (record != nil) != (tc.record != nil) {
				t.Fatalf("%s: the record is %v", tc.reason, record)
			}
			if record == nil {
				return
			}
			if had := noon.Add(time.Minute).Sub(record.Since.Time); had != tc.had || record.Hash != tc.record.Hash {
				t.Errorf("%s: the new owner had %s, want %s", tc.reason, had, tc.had)
			}
		})
	}
}

// TestHandOverOfPart: the time of what is left is not that of a new set.
func TestHandOverOfPart(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	cluster := func(name string) Entry {
		return Entry{Namespace: "x", Name: name, Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta2"}
	}
	a, b := cluster("a"), cluster("b")
	unsure := Live{State: Present, UID: "1", Owned: true, HandOver: "Kustomization/flux-system/root", Unsure: true, Confirmed: true}
	f := Facts{Target: "t", Asked: true, Now: now, Owned: []Entry{a, b}, Live: map[Entry]Live{a: unsure, b: unsure}}
	f.HandOver = HandingOver(f.Owned, nil, now.Add(-HandOverBound))
	first := PlanPrune(f)
	if len(first.Deletes) != 1 || len(first.Late) != 1 || len(first.HandOver) != 0 {
		t.Fatalf("one of both goes first: %+v", first)
	}
	gone := first.Deletes[0].Entry
	f.HandOver, f.Now = f.Record(first), now.Add(time.Minute)
	f.Live[gone] = Live{State: Absent}
	if second := PlanPrune(f); len(second.Deletes) != 1 || second.Deletes[0].Entry == gone {
		t.Errorf("the other one had its time: %+v", second)
	}
}
