package alert

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func messageOf(name, severity, reason, text string) Message {
	e := eventOf(name, severity, text)
	e.Reason = reason
	m, _ := MessageOf(alertOf(nil), e)
	return m
}

// play lets the time pass until nothing waits any more.
func play(g *Groups) []Message {
	var all []Message
	for {
		at, ok := g.Next()
		if !ok {
			return all
		}
		all = append(all, g.Due(at)...)
	}
}

func TestOneCauseIsOneMessage(t *testing.T) {
	g := NewGroups(DefaultWindows())
	for i := range 1000 {
		now := begin.Add(time.Duration(i) * 50 * time.Millisecond)
		if got := g.Due(now); len(got) > 0 {
			t.Fatalf("%d messages while events come", len(got))
		}
		g.Add(messageOf(fmt.Sprint("k", i), "error", "ArtifactFailed", fmt.Sprint("cannot find source of k", i)), now)
	}
	of := g.by[causeOf(&g.queue[0].begin)]
	if len(of.few) > 0 || len(of.names) != mostNames || len(of.texts) != mostTexts {
		t.Errorf("%d events, %d names and %d texts are kept", len(of.few), len(of.names), len(of.texts))
	}
	all := play(g)
	if len(all) != 1 {
		t.Fatalf("%d messages, want one", len(all))
	}
	m := all[0]
	if m.Objects != 1000 || m.Events != 1000 || m.Title() != "1000 Kustomizations" {
		t.Errorf("%q tells of %d objects and %d events", m.Title(), m.Objects, m.Events)
	}
	want := "ArtifactFailed: apps/k0, apps/k1, apps/k2, apps/k3, apps/k4, apps/k5, apps/k6, apps/k7, apps/k8, apps/k9 and 990 more\n" +
		"cannot find source of k0\ncannot find source of k1\ncannot find source of k2"
	if got := m.Text(1000); got != want {
		t.Errorf("text is %q", got)
	}
}

// TestNamesOfMany: who is well by now is not named among those that fail.
func TestNamesOfMany(t *testing.T) {
	g := NewGroups(DefaultWindows())
	for i := range mostNames + 2 {
		g.Add(messageOf(fmt.Sprint("k", i), "error", "BuildFailed", "it failed"), begin)
	}
	for i := range mostNames {
		g.Add(messageOf(fmt.Sprint("k", i), "info", "Succeeded", "it is well"), begin)
	}
	for _, m := range play(g) {
		if m.Event.Severity == "error" && (m.Title() != "2 Kustomizations" || m.Text(1000) != "BuildFailed\nit failed") {
			t.Errorf("told is %q: %q", m.Title(), m.Text(1000))
		}
	}
}

func TestGroups(t *testing.T) {
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	type add struct {
		after                  time.Duration
		name, severity, reason string
	}
	few := []add{{0, "a", "error", "BuildFailed"}, {at(0.1), "b", "error", "BuildFailed"}, {at(0.2), "c", "error", "BuildFailed"}}
	many := append(few[:3:3], add{at(0.3), "d", "error", "BuildFailed"})
	for name, tt := range map[string]struct {
		reason string
		adds   []add
		want   []string // title at second
	}{
		"One":      {reason: "one event waits for others for a moment", adds: few[:1], want: []string{"kustomization/a.apps at 2"}},
		"Few":      {reason: "three objects are told one by one", adds: few, want: []string{"kustomization/a.apps at 2.2", "kustomization/b.apps at 2.2", "kustomization/c.apps at 2.2"}},
		"Many":     {reason: "four are told together", adds: many, want: []string{"4 Kustomizations at 10.3"}},
		"SameName": {reason: "four events of one object are told one by one", adds: []add{{0, "a", "info", "Progressing"}, {0, "a", "info", "Progressing"}, {0, "a", "info", "Progressing"}, {0, "a", "info", "Progressing"}}, want: []string{"kustomization/a.apps at 2", "kustomization/a.apps at 2", "kustomization/a.apps at 2", "kustomization/a.apps at 2"}},
		"TwoReasons": {
			reason: "another reason is another cause", adds: append(many[:4:4], add{at(0.3), "e", "error", "HealthCheckFailed"}),
			want: []string{"kustomization/e.apps at 2.3", "4 Kustomizations at 10.3"},
		},
		"MoreOfIt": {
			reason: "what comes later waits, and says that it is more",
			adds:   append(many[:4:4], add{at(60), "e", "error", "BuildFailed"}, add{at(61), "f", "error", "BuildFailed"}, add{at(62), "g", "error", "BuildFailed"}, add{at(63), "h", "error", "BuildFailed"}),
			want:   []string{"4 Kustomizations at 10.3", "4 more Kustomizations at 310.3"},
		},
		"WellBeforeMore": {
			reason: "what comes later and is well before it is told is told to be well alone",
			adds:   append(many[:4:4], add{at(60), "e", "error", "BuildFailed"}, add{at(120), "e", "info", "Succeeded"}),
			want:   []string{"4 Kustomizations at 10.3", "kustomization/e.apps at 122"},
		},
		"WellAmongMany": {
			reason: "one of many is well before they are told",
			adds:   append(many[:4:4], add{at(5), "e", "error", "BuildFailed"}, add{at(6), "a", "info", "Succeeded"}),
			want:   []string{"kustomization/a.apps at 8", "4 Kustomizations at 15"},
		},
		"FewLeft": {
			reason: "those that are left of many are told together, however few they are",
			adds:   append(many[:4:4], add{at(6), "a", "info", "Succeeded"}, add{at(6), "b", "info", "Succeeded"}, add{at(6), "c", "info", "Succeeded"}),
			want:   []string{"kustomization/a.apps at 8", "kustomization/b.apps at 8", "kustomization/c.apps at 8", "1 Kustomization at 10.3"},
		},
		"AllWell": {
			reason: "all of many are well before they are told",
			adds: append(many[:4:4], add{at(6), "a", "info", "Succeeded"}, add{at(6), "b", "info", "Succeeded"}, add{at(6), "c", "info", "Succeeded"},
				add{at(6), "d", "info", "Succeeded"}),
			want: []string{"4 Kustomizations at 16"},
		},
		"WellOfFew": {
			reason: "one of few is told to fail before it is told to be well",
			adds:   []add{few[0], {at(1.9), "b", "error", "BuildFailed"}, {at(2), "a", "info", "Succeeded"}, {at(3.8), "c", "error", "BuildFailed"}},
			want:   []string{"kustomization/a.apps at 2", "kustomization/a.apps at 4", "kustomization/b.apps at 5.8", "kustomization/c.apps at 5.8"},
		},
		"FailsAfterWell": {
			reason: "nor is one that fails by now told to be well",
			adds: []add{{0, "a", "info", "Succeeded"}, {0, "b", "info", "Succeeded"}, {0, "c", "info", "Succeeded"}, {0, "d", "info", "Succeeded"}, {0, "e", "info", "Succeeded"},
				{at(1), "a", "error", "BuildFailed"}},
			want: []string{"kustomization/a.apps at 3", "4 Kustomizations at 10"},
		},
		"Tried": {
			reason: "what an attempt does says nothing of how the object is",
			adds:   append(many[:4:4], add{at(0.3), "a", "info", "Progressing"}),
			want:   []string{"kustomization/a.apps at 2.3", "4 Kustomizations at 10.3"},
		},
		"Slowly": {
			reason: "events that never cease do not keep the first for ever", adds: func() (all []add) {
				for i := range 300 {
					all = append(all, add{at(float64(i)), fmt.Sprint("k", i), "error", "BuildFailed"})
				}
				return all
			}(),
			want: []string{"120 Kustomizations at 120", "180 more Kustomizations at 420"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewGroups(DefaultWindows())
			var got []string
			tell := func(now time.Time, messages []Message) {
				for _, m := range messages {
					got = append(got, fmt.Sprintf("%s at %g", m.Title(), now.Sub(begin).Seconds()))
				}
			}
			until := func(end time.Time) {
				for {
					next, ok := g.Next()
					if !ok || next.After(end) {
						return
					}
					tell(next, g.Due(next))
				}
			}
			for _, a := range tt.adds {
				until(begin.Add(a.after))
				now := begin.Add(a.after)
				tell(now, g.Add(messageOf(a.name, a.severity, a.reason, "it failed"), now))
			}
			until(begin.Add(time.Hour))
			if fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("%s:\n got %q\nwant %q", tt.reason, got, tt.want)
			}
			if len(g.by) > 0 {
				t.Errorf("%d causes are kept for ever", len(g.by))
			}
		})
	}
}

func TestGroupsAreBounded(t *testing.T) {
	g := NewGroups(DefaultWindows())
	told := 0
	for i := range mostCauses + 10 {
		told += len(g.Add(messageOf("a", "error", fmt.Sprint("Reason", i), "x"), begin))
	}
	if told != 10 || len(g.by) != mostCauses {
		t.Errorf("%d are told at once, %d causes wait", told, len(g.by))
	}
	g = NewGroups(DefaultWindows())
	for range mostFew*2 + 1 {
		told += len(g.Add(messageOf("a", "error", "Failed", "x"), begin))
	}
	if told != 10+2*mostFew {
		t.Errorf("%d are told at once", told)
	}
	if rest := g.All(); len(rest) != 1 || len(g.by) > 0 {
		t.Errorf("%d are told in the end, and %d causes are left", len(rest), len(g.by))
	}
}

// TestAhead: what an object that is well now failed with is told before that, with all that
// waits for the same cause, and nothing else is.
func TestAhead(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		fail   []string
		well   string
		want   []string
		later  []string
	}{
		"Few":  {"its failure was not told yet", []string{"a", "b"}, "b", []string{"kustomization/a.apps", "kustomization/b.apps"}, nil},
		"Many": {"nor that of many, with it", []string{"a", "b", "c", "d"}, "c", []string{"4 Kustomizations"}, nil},
		"None": {"it did not fail", []string{"a", "b"}, "c", nil, []string{"kustomization/a.apps", "kustomization/b.apps"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewGroups(DefaultWindows())
			for _, name := range tt.fail {
				g.Add(messageOf(name, "error", "BuildFailed", "it failed"), begin)
			}
			titles := func(all []Message) (out []string) {
				for i := range all {
					out = append(out, all[i].Title())
				}
				return out
			}
			m := messageOf(tt.well, "info", "Succeeded", "it is well")
			if got := titles(g.Ahead(&m, begin)); !slices.Equal(got, tt.want) {
				t.Errorf("%s: ahead is told %q, want %q", tt.reason, got, tt.want)
			}
			if got := titles(play(g)); !slices.Equal(got, tt.later) || len(g.by) > 0 {
				t.Errorf("%s: later is told %q, want %q; %d causes are left", tt.reason, got, tt.later, len(g.by))
			}
		})
	}
}

// FuzzGroups: whatever comes in whatever order, each event is in exactly one message, or in none
// if its object is otherwise by then, and who is told of many is told of no more objects than there were.
func FuzzGroups(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, uint16(300))
	}
	f.Fuzz(func(t *testing.T, seed uint64, n uint16) {
		random := rand.New(rand.NewPCG(seed, 1))
		g := NewGroups(DefaultWindows())
		now, events := begin, 0
		objects, mixed := 1+random.IntN(30), random.IntN(2) == 0
		check := func(messages []Message) {
			for _, m := range messages {
				events += m.Events
				if m.Objects > objects || m.Objects < 1 || m.Objects > m.Events || !mixed && m.Many() != (m.Objects > Few) && m.Objects > 1 || !m.Many() && m.Objects > 1 {
					t.Fatalf("%+v tells of %d objects and %d events of %d", m.Names, m.Objects, m.Events, objects)
				}
				if m.Many() && (len(m.Names) > mostNames || len(m.Names) > m.Objects || len(m.Texts) == 0) {
					t.Fatalf("%d names and %d texts of %d objects", len(m.Names), len(m.Texts), m.Objects)
				}
			}
		}
		for range n {
			now = now.Add(time.Duration(random.ExpFloat64() * float64(time.Duration(random.IntN(4))*time.Second)))
			check(g.Due(now))
			reason := fmt.Sprint("Reason", random.IntN(3))
			severity := "error"
			if mixed && random.IntN(3) == 0 {
				severity = "info"
			}
			check(g.Add(messageOf(fmt.Sprint("k", random.IntN(objects)), severity, reason, fmt.Sprint(random.IntN(5))), now))
			if next, ok := g.Next(); !ok || next.Sub(now) > DefaultWindows().Again {
				t.Fatal("something is never told, or too late")
			}
		}
		if random.IntN(2) == 0 {
			check(g.All())
		} else {
			check(play(g))
		}
		if events > int(n) || !mixed && events < int(n) {
			t.Fatalf("%d events are told of %d", events, n)
		}
		if len(g.by) > 0 || len(g.queue) > 0 {
			t.Fatalf("%d causes are left", len(g.by))
		}
	})
}

func TestTold(t *testing.T) {
	told := NewTold(5*time.Minute, StateOf)
	base := func() *Event { return eventOf("shop", "error", "it failed") }
	if told.Again(&base().Event, begin) {
		t.Fatal("the first time is no repetition")
	}
	for name, tt := range map[string]struct {
		reason string
		change func(*Event)
		after  time.Duration
		want   bool
	}{
		"Same":           {reason: "all is the same", change: func(*Event) {}, after: time.Minute, want: true},
		"OtherTimestamp": {reason: "the time is not compared", change: func(e *Event) { e.Timestamp.Time = begin }, after: time.Minute, want: true},
		"OtherMessage":   {reason: "the message is compared", change: func(e *Event) { e.Message = "it failed again" }, after: time.Minute},
		"OtherMetadata":  {reason: "metadata is compared", change: func(e *Event) { e.Metadata["kustomize.toolkit.fluxcd.io/revision"] = "x" }, after: time.Minute},
		"OtherObject":    {reason: "the object is compared", change: func(e *Event) { e.InvolvedObject.Name = "web" }, after: time.Minute},
		"Shifted":        {reason: "what is joined is kept apart", change: func(e *Event) { e.InvolvedObject.Namespace, e.InvolvedObject.Name = "app", "sshop" }, after: time.Minute},
		"Later":          {reason: "the interval is over", change: func(*Event) {}, after: 6 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			told := NewTold(5*time.Minute, StateOf)
			told.Again(&base().Event, begin)
			e := base()
			tt.change(e)
			if got := told.Again(&e.Event, begin.Add(tt.after)); got != tt.want {
				t.Errorf("%s: got %v", tt.reason, got)
			}
		})
	}
	for i := range 2 * mostTold {
		e := base()
		e.Message = fmt.Sprint(i)
		told.Again(&e.Event, begin)
	}
	for i := range 2 * mostTold {
		e := base()
		e.Severity = []string{"error", "info"}[i%2]
		told.Again(&e.Event, begin)
	}
	if len(told.until) > mostTold || len(told.order) > mostTold {
		t.Errorf("%d are remembered", len(told.until))
	}
	told.Again(&eventOf("web", "info", "it is well").Event, begin.Add(time.Hour))
	if len(told.until) != 1 || len(told.order) != 1 || len(told.objects) != 1 {
		t.Errorf("%d events of %d objects are remembered after the interval", len(told.until), len(told.objects))
	}
}

// TestToldOfStates: what is told last is how the object is.
func TestToldOfStates(t *testing.T) {
	type step struct {
		reason, severity, text string
		unwanted               bool // no Alert tells it
	}
	failed := step{reason: "GitOperationFailed", severity: "error", text: "cannot reach the server"}
	well := step{reason: "Succeeded", severity: "info", text: "stored artifact"}
	tried := step{reason: "Progressing", severity: "info", text: "ConfigMap/a configured"}
	other := step{reason: "PruneBlocked", severity: "error", text: "2 objects are kept"}
	quiet := well
	quiet.unwanted = true
	of := map[string]func(*eventv1.Event) State{"people": StateOf, "commits": StatusOf}
	for name, tt := range map[string]struct {
		reason string
		steps  []step
		want   map[string]string // t is told, - is not
	}{
		"FailsAgain":     {"the outage that goes on is told", []step{failed, well, failed}, map[string]string{"people": "ttt", "commits": "ttt"}},
		"WellAgain":      {"the recovery that lasts is told", []step{well, failed, well}, map[string]string{"people": "ttt", "commits": "ttt"}},
		"ErrorsOnly":     {"an Alert of errors tells of one that began again", []step{failed, quiet, failed}, map[string]string{"people": "t-t", "commits": "t-t"}},
		"Interleaved":    {"two things that fail for themselves are told once each", []step{failed, other, failed, other}, map[string]string{"people": "tt--", "commits": "tt--"}},
		"InterleavedBut": {"and both once more after a recovery", []step{failed, other, well, other, failed, other}, map[string]string{"people": "ttttt-", "commits": "ttttt-"}},
		"Tried":          {"what each attempt does makes no failure news, but a status that is pending fails again", []step{failed, tried, failed, tried}, map[string]string{"people": "tt--", "commits": "tttt"}},
		"Drifts":         {"what is corrected again and again is told once, but a status that is pending succeeds again", []step{well, tried, well, tried}, map[string]string{"people": "tt--", "commits": "tttt"}},
		"Same":           {"nothing else was said", []step{failed, failed, failed}, map[string]string{"people": "t--", "commits": "t--"}},
	} {
		for who, want := range tt.want {
			t.Run(name+"/"+who, func(t *testing.T) {
				told, got := NewTold(5*time.Minute, of[who]), ""
				for i, s := range tt.steps {
					e := eventOf("shop", s.severity, s.text)
					e.Reason = s.reason
					told.Note(&e.Event)
					if s.unwanted || told.Again(&e.Event, begin.Add(time.Duration(i)*time.Second)) {
						got += "-"
					} else {
						got += "t"
					}
				}
				if got != want {
					t.Errorf("%s: %s, want %s", tt.reason, got, want)
				}
			})
		}
	}
}
