// Package reasons is the table of the stable reasons that Cascade gives: what each means,
// and what a person does next. docs/reasons.md is made of it, and so is what programs say
// beside a reason.
//
// Invariants: it is data and pure; every reason that the code gives is in the table, which
// a test compares, and docs/reasons.md is what Page returns. It cannot fail: of a reason
// that nobody knows, there is nothing to say.
package reasons

import (
	"regexp"
	"slices"
	"strings"
)

// Section has the reasons of some kinds.
type Section struct {
	// Title of the section on the page.
	Title string
	// Kinds that it is about; none stands for all.
	Kinds []string
	// Intro is the text above the table, in Markdown, empty for none.
	Intro   string
	Entries []Entry
}

// Entry explains reasons that mean the same, in Markdown.
type Entry struct {
	Reasons []string
	// Note follows the reasons on the page, and says where they are found if that is not
	// the condition Ready, or with which message.
	Note  string
	Means string
	// Next is what a person does. Empty: what another kind's entry says, or nothing.
	Next string
}

// Sections are all reasons, in the order of the page.
func Sections() []Section {
	return []Section{
		anyKind(), gitRepository(), otherSources(), artifactGenerator(), helmRelease(), imageUpdates(), kustomization(), receiver(), child(), cluster(), layer(), rollout(), promotion(), stateBackup(), notification(),
	}
}

// Find returns what is said of a reason that an object of a kind has, and the title of the
// section that says it. What is said of the kind itself counts more than what is said of
// others, and an entry without a Note more than one with. known is false if the table does
// not have the reason.
func Find(kind, reason string) (entry Entry, section string, known bool) {
	best := 0
	for _, s := range Sections() {
		for _, e := range s.Entries {
			if !slices.Contains(e.Reasons, reason) {
				continue
			}
			if rank := rankOf(s, e, kind); rank > best {
				best, entry, section, known = rank, e, s.Title, true
			}
		}
	}
	return entry, section, known
}

// rankOf orders entries by how much they say about a kind. The first one of equals counts.
func rankOf(s Section, e Entry, kind string) int {
	rank := 1
	switch {
	case slices.Contains(s.Kinds, kind):
		rank += 4
	case kind == "Layer" && slices.Contains(s.Kinds, "Child"):
		rank += 3 // what a layer is not in place for is said of its children
	case slices.Contains(s.Kinds, "Kustomization"):
		rank += 2 // other kinds refer to its entries
	}
	if e.Note == "" {
		rank++
	}
	if e.Next == "" {
		rank -= 4 // another entry says what to do
	}
	return max(rank, 1)
}

// Next is what a person does about a reason, as plain text; empty if there is nothing to
// say.
func Next(kind, reason string) string {
	e, _, _ := Find(kind, reason)
	return Plain(e.Next)
}

// Means is what a reason stands for, as plain text; empty for one that nobody knows.
func Means(kind, reason string) string {
	e, _, _ := Find(kind, reason)
	return Plain(e.Means)
}

// Anchor is the part of docs/reasons.md that has a reason, as a link writes it; empty for
// one that nobody knows.
func Anchor(kind, reason string) string {
	_, title, known := Find(kind, reason)
	if !known {
		return ""
	}
	return "#" + notInAnchors.ReplaceAllString(strings.ReplaceAll(strings.ToLower(title), " ", "-"), "")
}

var (
	notInAnchors = regexp.MustCompile(`[^a-z0-9-]`)
	link         = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
)

// Plain is Markdown as a terminal shows it: without marks of code and emphasis, and with
// pages named instead of linked.
func Plain(markdown string) string {
	text := link.ReplaceAllStringFunc(markdown, func(found string) string {
		m := link.FindStringSubmatch(found)
		page := "docs/" + m[2]
		if m[1] == m[2] || strings.HasPrefix(m[2], "http") {
			return page
		}
		return m[1] + " (" + page + ")"
	})
	return strings.NewReplacer("`", "", "*", "").Replace(text)
}

// Page is docs/reasons.md.
func Page() string {
	var b strings.Builder
	b.WriteString(intro + "\n")
	for _, s := range Sections() {
		b.WriteString("\n## " + s.Title + "\n")
		if s.Intro != "" {
			b.WriteString("\n" + s.Intro + "\n")
		}
		b.WriteString("\n| reason | means | next |\n|---|---|---|\n")
		for _, e := range s.Entries {
			b.WriteString("| `" + strings.Join(e.Reasons, "`, `") + "`" + e.Note + " | " + e.Means + " |")
			if e.Next != "" {
				b.WriteString(" " + e.Next)
			}
			b.WriteString(" |\n")
		}
	}
	b.WriteString("\n## For programs\n\n" + forPrograms + "\n")
	return b.String()
}
