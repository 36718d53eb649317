package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/syncer/apply"
)

// lastLines is how many lines of Helm an event about a failure ends with.
const lastLines = 10

// logs keeps the last lines that Helm logs during one action, and passes all on
// at debug level. It is a slog.Handler, safe for concurrent use.
type logs struct {
	*lines
	attrs  []attr
	groups []string
}

type attr struct {
	groups []string
	slog.Attr
}

type lines struct {
	to  logr.Logger
	now func() time.Time
	// values takes out the secrets among the values of the release; it may be nil.
	values func(string) string

	mu   sync.Mutex
	kept []line
	// secret are objects whose values must not be told.
	secret []*unstructured.Unstructured
}

// line is a message that was logged count times more, the last time at last.
type line struct {
	at, last time.Time
	text     string
	count    int
}

func newLogs(to logr.Logger, now func() time.Time, values func(string) string) *logs {
	return &logs{lines: &lines{to: to, now: now, values: values}}
}

// hide takes the values of Secrets out of what is told from now on, also out of
// lines that are kept already.
func (l *lines) hide(objects []*unstructured.Unstructured) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.secret = append(l.secret, objects...)
}

// redact takes the hidden values out of an error.
func (l *lines) redact(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || len(l.secret) == 0 {
		return err
	}
	return apply.Redact(err, l.secret)
}

// Enabled implements slog.Handler.
func (l *logs) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (l *logs) WithAttrs(more []slog.Attr) slog.Handler {
	n := *l
	n.attrs = append([]attr(nil), l.attrs...)
	for _, a := range more {
		n.attrs = append(n.attrs, attr{l.groups, a})
	}
	return &n
}

// WithGroup implements slog.Handler.
func (l *logs) WithGroup(name string) slog.Handler {
	if name == "" {
		return l
	}
	n := *l
	n.groups = append(append([]string(nil), l.groups...), name)
	return &n
}

// Handle implements slog.Handler.
func (l *logs) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	switch r.Level {
	case slog.LevelError:
		text = "error: " + text
	case slog.LevelWarn:
		text = "warning: " + text
	}
	values := map[string]any{}
	put := func(a attr) {
		at := values
		for _, g := range a.groups {
			inner, ok := at[g].(map[string]any)
			if !ok {
				inner = map[string]any{}
				at[g] = inner
			}
			at = inner
		}
		if err, ok := a.Value.Any().(error); ok {
			at[a.Key] = err.Error()
			return
		}
		at[a.Key] = a.Value.Any()
	}
	for _, a := range l.attrs {
		put(a)
	}
	r.Attrs(func(a slog.Attr) bool {
		put(attr{l.groups, a})
		return true
	})
	if data, err := json.Marshal(values); err == nil {
		text += ": " + string(data)
	}
	l.add(text)
	return nil
}

func (l *lines) add(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now().UTC()
	if n := len(l.kept); n > 0 && l.kept[n-1].text == text {
		// While waiting, Helm says the same again and again.
		l.kept[n-1].count++
		l.kept[n-1].last = now
		return
	}
	if len(l.kept) == lastLines {
		l.kept = l.kept[1:]
	}
	l.kept = append(l.kept, line{at: now, text: text})
	if l.to.V(1).Enabled() {
		l.to.V(1).Info(l.clean(text))
	}
}

func (l *lines) clean(text string) string {
	if l.values != nil {
		text = l.values(text)
	}
	if len(l.secret) == 0 {
		return text
	}
	return apply.Redact(errors.New(text), l.secret).Error()
}

// String is what an event ends with: a line for each message, with its time.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, k := range l.kept {
		fmt.Fprintf(&b, "%s: %s\n", k.at.Format(time.RFC3339Nano), k.text)
		if k.count == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s: %s", k.last.Format(time.RFC3339Nano), k.text)
		switch more := k.count - 1; {
		case more == 1:
			b.WriteString(" (1 duplicate line omitted)")
		case more > 1:
			fmt.Fprintf(&b, " (%d duplicate lines omitted)", more)
		}
		b.WriteString("\n")
	}
	return l.clean(strings.TrimSpace(b.String()))
}

// after appends the lines to the message of an event.
func (l *lines) after(message string) string {
	if last := l.String(); last != "" {
		return message + "\n\nLast Helm logs:\n\n" + last
	}
	return message
}
