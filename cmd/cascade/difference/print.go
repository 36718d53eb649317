package difference

import (
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Most of what is printed for people; JSON has all.
const (
	mostNames  = 5
	mostFields = 6
)

// sign of an action.
func (a Action) sign() string {
	switch a {
	case Added:
		return "+"
	case Changed:
		return "~"
	case Moved:
		return ">"
	case Deleted:
		return "-"
	case Kept:
		return "="
	}
	return "!"
}

// Text writes the report for a terminal.
func (r *Report) Text(out io.Writer) error {
	p := &printer{out: out, text: func(text string) string { return text }}
	p.line("%s at %s: %s", r.Source, short(r.Commit), r.Summary)
	for _, o := range r.Owners {
		p.line("")
		p.line("%s", o.title())
		for _, w := range o.ways() {
			p.line("  %s", w)
		}
		for _, g := range o.Groups {
			indent := "  "
			if len(g.Clusters) > 0 {
				p.line("  %s", g.title())
				indent = "    "
			}
			for _, c := range g.Changes {
				p.line("%s%s %s%s", indent, c.Action.sign(), c, c.told(", "))
			}
			if g.Guard != "" {
				p.line("%s! the deletes would be held: %s", indent, g.Guard)
			}
		}
	}
	r.rest(p, "  ")
	return p.err
}

// Markdown writes the report for a pull request.
func (r *Report) Markdown(out io.Writer) error {
	p := &printer{out: out, text: escaped}
	p.line("### Plan of %s at `%s`", code(r.Source), short(r.Commit))
	p.line("")
	p.line("%s", r.Summary)
	for _, o := range r.Owners {
		p.line("")
		p.line("#### %s", code(o.title()))
		for _, w := range o.ways() {
			p.line("")
			p.line("%s", escaped(w))
		}
		for _, g := range o.Groups {
			p.line("")
			if len(g.Clusters) > 0 {
				p.line("%s", escaped(g.title()))
				p.line("")
			}
			p.line("| | object | fields |")
			p.line("|---|---|---|")
			for _, c := range g.Changes {
				fields := make([]string, 0, len(c.Fields))
				for _, f := range shortened(c.Fields, mostFields) {
					fields = append(fields, code(f))
				}
				p.line("| %s | %s | %s |", c.Action, code(c.String()), strings.Join(fields, "<br>"))
			}
			if g.Guard != "" {
				p.line("")
				p.line("The deletes would be held: %s.", escaped(g.Guard))
			}
		}
	}
	r.rest(p, "* ")
	return p.err
}

// rest writes what could not be found out.
func (r *Report) rest(p *printer, bullet string) {
	if len(r.Problems) > 0 {
		p.line("")
		p.line("The plan is not complete:")
		p.line("")
	}
	for _, problem := range r.Problems {
		where := problem.Owner
		if problem.Cluster != "" {
			where += " in " + problem.Cluster
		}
		p.line("%s%s: %s", bullet, where, p.text(strings.Join(strings.Fields(problem.Message), " ")))
	}
	if len(r.Notes) > 0 {
		p.line("")
	}
	for _, n := range r.Notes {
		p.line("%s%s", bullet, p.text(n))
	}
}

// printer keeps the first error of writing.
type printer struct {
	out io.Writer
	// text makes plain text of what others wrote.
	text func(string) string
	err  error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format+"\n", args...)
	}
}

// String is the summary in words.
func (s Summary) String() string {
	var parts []string
	for _, n := range []struct {
		count int
		what  string
	}{
		{s.Added, "added"}, {s.Changed, "changed"}, {s.Moved, "moved to another owner"}, {s.Deleted, "deleted"},
		{s.Held, "not deleted before an approval"}, {s.Protected, "protected from being deleted"}, {s.Kept, "left behind"},
	} {
		if n.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n.count, n.what))
		}
	}
	if len(parts) == 0 {
		return "no changes"
	}
	text := strings.Join(parts, ", ")
	if s.Clusters > 0 {
		text += fmt.Sprintf("; %s below", clusters(s.Clusters))
	}
	return text
}

func (o Owner) title() string {
	text := o.Kind + " " + o.Namespace + "/" + o.Name
	switch {
	case o.New:
		text += ", new"
	case o.Gone:
		text += ", which goes"
	}
	if o.Suspended {
		text += ", suspended"
	}
	return text
}

// ways say in which order the clusters would change, a line for each.
func (o Owner) ways() []string {
	all := o.Ways
	if len(all) == 0 && o.Rollout != "" {
		all = []Way{{Rollout: o.Rollout, Waves: o.Waves}}
	}
	var lines []string
	for _, w := range all {
		switch {
		case w.Rollout != "":
			lines = append(lines, w.waves())
		case len(w.Conflict) > 0:
			lines = append(lines, fmt.Sprintf("not at all while Rollouts %s move the same: %s", strings.Join(w.Conflict, " and "), clusters(w.Clusters)))
		default:
			lines = append(lines, "at once, without a Rollout: "+clusters(w.Clusters))
		}
	}
	return lines
}

// waves are those of a Rollout.
func (way Way) waves() string {
	var parts []string
	for _, w := range way.Waves {
		switch {
		case w.None:
			parts = append(parts, fmt.Sprintf("no wave: %s, which keep what they have", clusters(w.Clusters)))
			continue
		case w.Approval:
			parts = append(parts, fmt.Sprintf("%s after an approval: %s, %s at a time", w.Name, clusters(w.Clusters), w.MaxConcurrent))
			continue
		}
		parts = append(parts, fmt.Sprintf("%s: %s, %s at a time", w.Name, clusters(w.Clusters), w.MaxConcurrent))
	}
	return "in waves of Rollout " + way.Rollout + ": " + strings.Join(parts, "; ")
}

func clusters(n int) string {
	if n == 1 {
		return "1 cluster"
	}
	return fmt.Sprintf("%d clusters", n)
}

func (g Group) title() string {
	text := clusters(len(g.Clusters))
	if g.From != "" {
		text += " at " + shortRevision(g.From)
	}
	if len(g.Clusters) > 1 {
		text += ", the same fields of each"
	}
	return text + ": " + strings.Join(shortened(g.Clusters, mostNames), ", ")
}

// told are the fields of a change, or what becomes of an object that stays.
func (c Change) told(separator string) string {
	switch c.Action {
	case Protected:
		return ": protected, and stays until its deletion is confirmed"
	case Held:
		return ": stays until a person approves"
	case Kept:
		return ": no longer declared, and stays"
	}
	if len(c.Fields) == 0 {
		return ""
	}
	return ": " + strings.Join(shortened(c.Fields, mostFields), separator)
}

func shortened(all []string, most int) []string {
	if len(all) <= most {
		return all
	}
	return append(append([]string{}, all[:most]...), fmt.Sprintf("and %d more", len(all)-most))
}

var longHash = regexp.MustCompile(`\b(sha1|sha256):([0-9a-f]{12})[0-9a-f]+`)

func shortRevision(revision string) string { return longHash.ReplaceAllString(revision, "$1:$2") }

func short(commit string) string { return commit[:min(len(commit), 12)] }

// code writes a text as code of Markdown, in which nothing else counts.
func code(text string) string {
	return "`" + strings.NewReplacer("`", "'", "|", `\|`, "\n", " ").Replace(text) + "`"
}

// escaped is a text in which nothing counts as Markdown.
func escaped(text string) string {
	return strings.NewReplacer("|", `\|`, "`", "'", "<", "&lt;", "*", `\*`, "_", `\_`, "[", `\[`).Replace(text)
}
