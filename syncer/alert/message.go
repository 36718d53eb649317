package alert

import (
	"fmt"
	"strings"
	"unicode/utf8"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"k8s.io/apimachinery/pkg/types"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
)

// Message is what one Provider is told once, of one event or of many with one cause.
type Message struct {
	// Alert and Provider that it is of; both are in one namespace.
	Alert, Provider types.NamespacedName
	// Event has the metadata of MessageOf. Of many it is the first one.
	Event eventv1.Event
	// Objects is of how many objects it tells, Events of how many events.
	Objects, Events int
	// Names are the first objects of many, as namespace/name, without those that are otherwise by
	// now, and Texts the first different messages. A message of one event has none of both.
	Names, Texts []string
	// More tells that others of the cause were told before.
	More bool
	// Over are the keys of incidents that are over, where it is not that of the object alone.
	Over []string
	// StatusOnly tells that it is for commit statuses alone.
	StatusOnly bool
}

// MessageOf is what an Alert tells of an event by itself. conflicts are the keys of
// metadata that more than one of the event, its object and the Alert have.
func MessageOf(a *notificationv1beta3.Alert, e *Event) (m Message, conflicts []string) {
	m = Message{
		Alert:    types.NamespacedName{Namespace: a.Namespace, Name: a.Name},
		Provider: types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.ProviderRef.Name},
		Event:    e.Event, Objects: 1, Events: 1,
	}
	m.Event.Metadata, conflicts = metadataOf(a, &e.Event)
	m.StatusOnly = statusOnly(m.Event.Metadata)
	delete(m.Event.Metadata, eventv1.MetaCommitStatusKey)
	return m, conflicts
}

// Size is about how many bytes a message takes.
func (m *Message) Size() int {
	n := 512 + len(m.Event.Message)
	for k, v := range m.Event.Metadata {
		n += len(k) + len(v)
	}
	for _, list := range [][]string{m.Names, m.Texts, m.Over} {
		for _, s := range list {
			n += len(s)
		}
	}
	return n
}

// Many reports whether the message tells of several objects.
func (m *Message) Many() bool { return len(m.Texts) > 0 }

// Title names what the message is about: kustomization/shop.apps, or 300 Kustomizations.
func (m *Message) Title() string {
	o := &m.Event.InvolvedObject
	if !m.Many() {
		return strings.ToLower(o.Kind) + "/" + o.Name + "." + o.Namespace
	}
	more := ""
	if m.More {
		more = "more "
	}
	return fmt.Sprintf("%d %s%s", m.Objects, more, plural(o.Kind, m.Objects))
}

// plural is the word for several objects of a kind.
func plural(kind string, n int) string {
	switch {
	case n == 1:
		return kind
	case kind == "Child":
		return "Children"
	case strings.HasSuffix(kind, "y"):
		return strings.TrimSuffix(kind, "y") + "ies"
	}
	return kind + "s"
}

// Text is what the message says, in at most so many bytes.
func (m *Message) Text(most int) string {
	if !m.Many() {
		return Cut(m.Event.Message, most)
	}
	var b strings.Builder
	b.WriteString(m.Event.Reason)
	if len(m.Names) > 0 {
		b.WriteString(": " + strings.Join(m.Names, ", "))
		if left := m.Objects - len(m.Names); left > 0 {
			fmt.Fprintf(&b, " and %d more", left)
		}
	}
	for _, text := range m.Texts {
		b.WriteString("\n" + text)
	}
	return Cut(b.String(), most)
}

// Cut shortens text to at most so many bytes, at a character. Bytes that are no text are
// left out.
func Cut(text string, most int) string {
	text = strings.ToValidUTF8(text, "")
	if len(text) <= most {
		return text
	}
	const end = "..."
	if most < len(end) {
		return ""
	}
	text = text[:most-len(end)]
	for len(text) > 0 {
		if r, n := utf8.DecodeLastRuneInString(text); r != utf8.RuneError || n != 1 {
			break
		}
		text = text[:len(text)-1]
	}
	return text + end
}
