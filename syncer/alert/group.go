package alert

import (
	"container/heap"
	"hash/maphash"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Windows say how long events of one cause are waited for.
type Windows struct {
	// Quiet is the time without another event after which those of few objects are told,
	// QuietMany the same for many objects.
	Quiet, QuietMany time.Duration
	// Longest and LongestMany bound how long the first one waits.
	Longest, LongestMany time.Duration
	// Again is how long what comes after a message about many waits for the next one.
	Again time.Duration
}

// DefaultWindows are long enough for what one commit or one outage does to a fleet, and
// short enough for a person who waits.
func DefaultWindows() Windows {
	return Windows{
		Quiet: 2 * time.Second, QuietMany: 10 * time.Second,
		Longest: 10 * time.Second, LongestMany: 2 * time.Minute, Again: 5 * time.Minute,
	}
}

// Numbers of a group.
const (
	// Few objects are told one by one.
	Few = 3
	// mostFew bounds the events of few objects that are kept.
	mostFew = 50
	// mostNames and mostTexts are shown of many, the latter cut to mostTextBytes.
	mostNames     = 10
	mostTexts     = 3
	mostTextBytes = 500
	// mostObjects bounds how many objects of a cause are told apart. Those above are
	// counted for each of their events.
	mostObjects = 20_000
	// mostCauses bounds the causes that are waited for at a time.
	mostCauses = 2000
)

// cause is what events must have in common to be told together.
type cause struct {
	alert, provider               types.NamespacedName
	kind, severity, reason, exact string
}

// causeOf has the revision of an event in it: what two commits did has two causes.
func causeOf(m *Message) cause {
	revision, _ := m.Event.GetRevision()
	return cause{
		alert: m.Alert, provider: m.Provider, kind: m.Event.InvolvedObject.Kind, severity: m.Event.Severity, reason: m.Event.Reason, exact: revision,
	}
}

// group is the events of one cause that wait to be told.
type group struct {
	cause       cause
	first, last time.Time
	// begin is the first event, few are all of them while their objects are few.
	begin Message
	few   []Message
	// many tells that there were more objects. It stays so if some are taken out again.
	many bool
	// objects have the number of their events.
	objects map[uint64]int
	over    int
	events  int
	names   []string
	texts   []string
	// before is until when what comes is told as more of what was told; zero before that.
	before time.Time
	due    time.Time
	place  int
}

// Groups collects events until those of one cause are told. It is not safe for concurrent
// use.
type Groups struct {
	windows Windows
	seed    maphash.Seed
	by      map[cause]*group
	queue   dueFirst
}

// NewGroups waits as windows say.
func NewGroups(w Windows) *Groups {
	return &Groups{windows: w, seed: maphash.MakeSeed(), by: map[cause]*group{}}
}

// Add takes a message of one event. What it returns is told at once: the message itself,
// where too many causes wait already, and before it what it takes back.
func (g *Groups) Add(m Message, now time.Time) []Message {
	before := g.TakeBack(&m)
	key := causeOf(&m)
	of := g.by[key]
	if of == nil {
		if len(g.by) >= mostCauses {
			return append(before, m)
		}
		of = &group{cause: key, place: -1}
		g.by[key] = of
	}
	if of.events == 0 {
		of.first, of.begin, of.objects = now, m, map[uint64]int{}
	}
	of.last = now
	of.events++
	g.count(of, &m)
	if of.many = of.many || len(of.objects) > Few; of.many {
		of.few = nil
	} else {
		of.few = append(of.few, m)
	}
	if len(of.few) >= mostFew {
		before = append(before, of.take()...)
		g.settle(of, now)
		return before
	}
	g.schedule(of)
	return before
}

// TakeBack takes out of what waits whatever says otherwise of the object of a message: if it were told
// after that message, the last thing that is told of the object would be wrong. What waits for a moment
// only is returned, to be told before. What waits among many, or as more of them, is left out.
func (g *Groups) TakeBack(m *Message) (before []Message) {
	if StateOf(&m.Event) == Unchanged {
		return nil
	}
	name := nameOf(m)
	object := maphash.String(g.seed, name)
	for _, of := range g.opposed(m, object) {
		if StateOf(&of.begin.Event) == Unchanged {
			continue
		}
		of.few = slices.DeleteFunc(of.few, func(w Message) bool {
			if nameOf(&w) != name {
				return false
			}
			if of.before.IsZero() {
				before = append(before, w)
			}
			return true
		})
		of.events -= of.objects[object]
		delete(of.objects, object)
		of.names = slices.DeleteFunc(of.names, func(n string) bool { return n == name })
		switch {
		case of.events > 0:
			if len(of.few) > 0 {
				of.begin = of.few[0]
			}
		case of.before.IsZero():
			g.forget(of)
		default:
			of.take()
		}
	}
	return before
}

// Ahead returns what waits of the object of a message and is to be told before it: an
// incident that is over can only be closed after it was opened. Others of the same cause
// are told along.
func (g *Groups) Ahead(m *Message, now time.Time) []Message {
	var messages []Message
	for _, of := range g.opposed(m, maphash.String(g.seed, nameOf(m))) {
		messages = append(messages, g.tell(of, now)...)
	}
	return messages
}

// opposed are the groups that have the object of a message with another severity, the oldest first.
func (g *Groups) opposed(m *Message, object uint64) (all []*group) {
	for _, of := range g.queue {
		same := of.cause.alert == m.Alert && of.cause.provider == m.Provider && of.cause.kind == m.Event.InvolvedObject.Kind
		if of.objects[object] > 0 && same && of.cause.severity != m.Event.Severity && AspectOf(&of.begin.Event) == AspectOf(&m.Event) {
			all = append(all, of)
		}
	}
	slices.SortFunc(all, func(a, b *group) int { return a.first.Compare(b.first) })
	return all
}

func nameOf(m *Message) string {
	return m.Event.InvolvedObject.Namespace + "/" + m.Event.InvolvedObject.Name
}

// count notes the object and the text of an event.
func (g *Groups) count(of *group, m *Message) {
	name := nameOf(m)
	object := maphash.String(g.seed, name)
	_, known := of.objects[object]
	if known || len(of.objects) < mostObjects {
		of.objects[object]++
	} else {
		of.over++
	}
	if !known && len(of.names) < mostNames {
		of.names = append(of.names, name)
	}
	if text := Cut(m.Event.Message, mostTextBytes); len(of.texts) < mostTexts && !slices.Contains(of.texts, text) {
		of.texts = append(of.texts, text)
	}
}

// take returns what a group tells, and empties it.
func (of *group) take() []Message {
	messages := of.few
	if of.many {
		m := of.begin
		m.Objects, m.Events = len(of.objects)+of.over, of.events
		m.Names, m.Texts, m.More = of.names, of.texts, !of.before.IsZero()
		messages = []Message{m}
	}
	of.few, of.begin, of.objects, of.names, of.texts, of.over, of.events, of.many = nil, Message{}, nil, nil, nil, 0, 0, false
	return messages
}

// schedule sets when a group is told.
func (g *Groups) schedule(of *group) {
	w := g.windows
	switch {
	case !of.before.IsZero():
		of.due = of.before
	case of.many:
		of.due = earlier(of.last.Add(w.QuietMany), of.first.Add(w.LongestMany))
	default:
		of.due = earlier(of.last.Add(w.Quiet), of.first.Add(w.Longest))
	}
	g.place(of)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// settle decides what becomes of a group that was told: what comes after many waits to be
// told as more of it; one of few objects is forgotten.
func (g *Groups) settle(of *group, now time.Time) {
	if !now.Before(of.before) {
		g.forget(of)
		return
	}
	of.due = of.before
	g.place(of)
}

func (g *Groups) place(of *group) {
	if of.place < 0 {
		heap.Push(&g.queue, of)
		return
	}
	heap.Fix(&g.queue, of.place)
}

func (g *Groups) forget(of *group) {
	if of.place >= 0 {
		heap.Remove(&g.queue, of.place)
	}
	delete(g.by, of.cause)
}

// Due returns what is to be told now, the first cause first.
func (g *Groups) Due(now time.Time) []Message {
	var messages []Message
	for len(g.queue) > 0 && !now.Before(g.queue[0].due) {
		of := g.queue[0]
		if of.events == 0 { // nothing came after it was told
			g.forget(of)
			continue
		}
		messages = append(messages, g.tell(of, now)...)
	}
	return messages
}

// tell returns what a group tells now. What comes after many waits to be told as more.
func (g *Groups) tell(of *group, now time.Time) []Message {
	many := of.many
	messages := of.take()
	if !many {
		g.forget(of)
		return messages
	}
	of.before = now.Add(g.windows.Again)
	of.due = of.before
	g.place(of)
	return messages
}

// All returns whatever waits, for the end.
func (g *Groups) All() []Message {
	var messages []Message
	for len(g.queue) > 0 {
		of := heap.Pop(&g.queue).(*group)
		of.place = -1
		if of.events > 0 {
			messages = append(messages, of.take()...)
		}
		delete(g.by, of.cause)
	}
	return messages
}

// Next is when Due has something, at the earliest. ok is false if nothing waits.
func (g *Groups) Next() (at time.Time, ok bool) {
	if len(g.queue) == 0 {
		return time.Time{}, false
	}
	return g.queue[0].due, true
}

// dueFirst is a heap of groups.
type dueFirst []*group

func (q dueFirst) Len() int { return len(q) }

func (q dueFirst) Less(i, j int) bool {
	if q[i].due.Equal(q[j].due) {
		return q[i].first.Before(q[j].first)
	}
	return q[i].due.Before(q[j].due)
}

func (q dueFirst) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *dueFirst) Push(x any) {
	of := x.(*group)
	of.place = len(*q)
	*q = append(*q, of)
}

// Pop implements heap.Interface.
func (q *dueFirst) Pop() any {
	old := *q
	of := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	of.place = -1
	return of
}
