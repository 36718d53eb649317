package cause

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Answer is what programs read: an Explanation, or the chains of one object.
type Answer struct {
	// APIVersion is Version: within it, fields are added only.
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Object that was asked for, nil for all.
	Object *Object `json:"object,omitempty"`
	// Ready: nothing is to be said.
	Ready bool `json:"ready"`
	// Chains of the object, each with its root first.
	Chains []Chain `json:"chains,omitempty"`
	// Below are groups of what is not as it should be in and below a cluster that was
	// asked for.
	Below []Group `json:"below,omitempty"`
	// Explanation is there if all were asked for.
	*Explanation `json:",inline"`
	// Unread kinds make the answer incomplete.
	Unread map[string]string `json:"unread,omitempty"`
}

// Version of the form of an Answer, and its Kind.
const (
	Version    = "why.cascade.dev/v1alpha1"
	AnswerKind = "Why"
)

// All answers for all objects.
func (e *Explanation) All() *Answer {
	return &Answer{APIVersion: Version, Kind: AnswerKind, Ready: len(e.Groups) == 0, Explanation: e, Unread: e.Unread}
}

// About answers for one object. known is false if there is no such object.
func (e *Explanation) About(o Object) (a *Answer, known bool) {
	chains, known := e.Of(o)
	a = &Answer{APIVersion: Version, Kind: AnswerKind, Object: &o, Chains: chains, Unread: e.Unread}
	if o.Kind == childKind {
		path := o.Path()
		a.Below = slices.DeleteFunc(slices.Clone(e.Groups), func(g Group) bool {
			in := func(o Object) bool { return o.Tier == path || strings.HasPrefix(o.Tier, path+">") }
			return !in(g.Root.Object) && !slices.ContainsFunc(g.Others, in)
		})
	}
	a.Ready = len(a.Chains)+len(a.Below) == 0
	return a, known
}

// Text prints an Answer for people.
func (a *Answer) Text(out io.Writer, now time.Time) error {
	p := printer{now: now}
	switch {
	case a.Object == nil:
		p.all(a.Explanation)
	default:
		p.one(a)
	}
	for _, kind := range sortedKeys(a.Unread) {
		p.line("! cannot list %s, so that they are not in this answer: %s", kind, a.Unread[kind])
	}
	_, err := io.WriteString(out, p.text.String())
	return err
}

type printer struct {
	text strings.Builder
	now  time.Time
}

func (p *printer) line(format string, args ...any) {
	fmt.Fprintf(&p.text, format+"\n", args...)
}

func (p *printer) all(e *Explanation) {
	switch {
	case len(e.Groups) > 0:
	case len(e.Unread) > 0:
		p.line("nothing is wrong with %s, as far as is known", count(e.Known, "object"))
		return
	default:
		p.line("✔ all is well: %s", count(e.Known, "object"))
		return
	}
	p.line("%s not as they should be, for %s:", of2(e.Objects, e.Known, "object"), count(len(e.Groups), "root cause"))
	for _, g := range e.Groups {
		p.line("")
		p.group(g)
	}
}

func (p *printer) one(a *Answer) {
	name := where(*a.Object)
	if len(a.Chains) == 0 {
		p.line("✔ %s is as it should be", name)
	}
	for i, c := range a.Chains {
		if i > 0 {
			p.line("")
		}
		p.chain(c)
	}
	if len(a.Below) > 0 {
		p.line("\nin it and below it, for %s:", count(len(a.Below), "root cause"))
		for _, g := range a.Below {
			p.line("")
			p.group(g)
		}
	}
}

// mark of a state.
func mark(s State) string {
	switch s {
	case Failing:
		return "✗"
	case Held:
		return "⚠"
	case Suspended:
		return "‖"
	case Progressing:
	}
	return "►"
}

// root prints a link with all that is known of it.
func (p *printer) root(l Link, also string) {
	p.line("%s %s%s: %s%s%s", mark(l.State), where(l.Object), also, l.Reason, p.age(l), p.revision(l.Revision))
	if l.Message != "" {
		p.line("    %s", brief(l.Message))
	}
	if l.Next != "" {
		p.line("    next: %s", l.Next)
	}
	if l.Command != "" {
		p.line("    run:  %s", l.Command)
	}
}

func (p *printer) chain(c Chain) {
	p.root(c[0], "")
	p.effects(c)
}

// effects are the rest of a chain, one line each.
func (p *printer) effects(c Chain) {
	for _, l := range c[1:] {
		text := ""
		if l.Layer != "" {
			text = " (layer " + l.Layer + ")"
		}
		p.line("  → %s%s: %s%s", where(l.Object), text, l.Reason, p.age(l))
	}
}

func (p *printer) group(g Group) {
	also := ""
	if g.Roots > 1 {
		also = fmt.Sprintf(" and %d like it", g.Roots-1)
	}
	root := g.Root
	if g.Roots > 1 {
		root.Revision = g.Revision
	}
	p.root(root, also)
	p.effects(g.Chain)
	shown := len(g.Others) + len(g.Affected)
	if g.Objects-g.Chain.objects() <= 0 {
		return
	}
	var names []string
	for _, o := range append(slices.Clone(g.Others), g.Affected...) {
		if !slices.ContainsFunc(g.Chain, func(l Link) bool { return l.Object == o }) {
			names = append(names, where(o))
		}
	}
	const most = 5
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := g.Objects - 1 - shown + max(0, len(names)-most); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	what := count(g.Objects, "object")
	if g.Clusters > 1 {
		what += ", " + count(g.Clusters, "cluster")
	}
	p.line("    in all %s: %s", what, text)
}

// where is an object with the tier that has it.
func where(o Object) string {
	if o.Tier == "" {
		return o.String()
	}
	return o.String() + " in " + o.Tier
}

func (p *printer) age(l Link) string {
	text := ""
	if l.Since != nil {
		text = ", for " + since(*l.Since, p.now)
	}
	if l.Heard != nil {
		text += ", last heard of " + since(*l.Heard, p.now) + " ago"
	}
	return text
}

func since(t metav1.Time, now time.Time) string { return duration.HumanDuration(now.Sub(t.Time)) }

func (p *printer) revision(r string) string {
	if r == "" {
		return ""
	}
	return ", at " + shortRevision(r)
}

var longHash = regexp.MustCompile(`\b(sha1|sha256):([0-9a-f]{8})[0-9a-f]+`)

// shortRevision cuts hashes, as the flux CLI does.
func shortRevision(revision string) string { return longHash.ReplaceAllString(revision, "$1:$2") }

// brief is a message as a terminal has room for.
func brief(message string) string {
	const most = 400
	message = shortRevision(message)
	if r := []rune(message); len(r) > most {
		return string(r[:most-3]) + "..."
	}
	return message
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func of2(n, all int, what string) string {
	if n == 1 {
		return fmt.Sprintf("1 of %s is", count(all, what))
	}
	return fmt.Sprintf("%d of %s are", n, count(all, what))
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
