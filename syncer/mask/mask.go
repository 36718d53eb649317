// Package mask takes secret values out of texts that may quote them: API servers quote what
// they refuse, parsers what they cannot read, and such texts get into statuses and events.
//
// The package is pure. A value is taken out as it is and in the forms in which libraries
// write it. One of fewer than 4 letters stays: it stands in every message.
package mask

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Unlisted stands in a list of values for ones that are not in it, as there are too many: texts are withheld as a whole.
// No secret is one such letter; a value that is withholds more than it has to, and shows nothing.
const Unlisted = "\x00"

const (
	// hidden stands where a value was.
	hidden = "*****"
	// withheld stands where a text was.
	withheld = "***** (the message is withheld: it takes too long to look for so many secret values in it; split what has them into several objects)"
)

// Texts returns a function that takes values out of texts. It is safe for concurrent use. The
// values cost nothing until there is a text: most of the time nothing fails. Tenants choose how
// many values there are and how long they are: no form is kept that is not in the text, and a
// text is withheld as a whole if it would take long to look for all of them.
func Texts(values []string) func(string) string {
	return func(text string) string {
		places := 0
		for _, v := range values {
			places += 1 + strings.Count(v, "\n")
		}
		if places > mostCompared/(len(text)+1) || slices.Contains(values, Unlisted) {
			return withheld
		}
		var found []string
		for _, v := range values {
			forms(v, len(text), func(form string) {
				if strings.Contains(text, form) {
					found = append(found, form)
				}
			})
		}
		// The longest first: one may be a part of another.
		slices.SortFunc(found, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
		for _, form := range slices.Compact(found) {
			text = strings.ReplaceAll(text, form, hidden)
		}
		return text
	}
}

// Scalars are the texts and numbers in a value of YAML or JSON, however deep. Numbers are there
// as they are written, and as a template writes them.
func Scalars(value any) []string {
	switch value := value.(type) {
	case string:
		return []string{value}
	case json.Number:
		if f, err := value.Float64(); err == nil {
			return []string{value.String(), fmt.Sprint(f)}
		}
		return []string{value.String()}
	case float64:
		return []string{strconv.FormatFloat(value, 'f', -1, 64), fmt.Sprint(value)}
	case map[string]any:
		var all []string
		for _, v := range value {
			all = append(all, Scalars(v)...)
		}
		return all
	case []any:
		var all []string
		for _, v := range value {
			all = append(all, Scalars(v)...)
		}
		return all
	}
	return nil
}

// Error takes values out of the text of an error; nil for no error. The error stays what it
// is otherwise.
func Error(err error, values []string) error {
	if err == nil {
		return nil
	}
	return Reword(err, Texts(values)(err.Error()))
}

// Reword is an error with another text.
func Reword(err error, text string) error {
	if text == err.Error() {
		return err
	}
	return &masked{text: text, err: err}
}

const (
	// leastSecret letters are masked: a value of fewer is no secret, and stands in every
	// message.
	leastSecret = 4
	// leastLine letters of one line of a value are masked by themselves. Parsers quote
	// single lines.
	leastLine = 8
	// mostCompared bounds the letters of a text, times the values and lines that are looked for
	// in it: a second of work, or a few.
	mostCompared = 1 << 28
)

// forms shows visit how a value may stand in a text of so many letters: without its newlines, as
// substitution puts it in; line by line; quoted and escaped for Go, JSON and YAML, once and
// twice; and in base64, as a Secret has it. No form is shorter than what it is a form of.
func forms(value string, letters int, visit func(form string)) {
	each := func(v string) {
		if len(v) < leastSecret || len(v) > letters {
			return
		}
		visit(v)
		visit(base64.StdEncoding.EncodeToString([]byte(v)))
		if !strings.ContainsFunc(v, escaped) {
			return
		}
		once := inner(strconv.Quote(v))
		visit(once)
		visit(inner(strconv.Quote(once)))
		visit(inner(strconv.QuoteToASCII(v)))
		visit(strings.ReplaceAll(v, "'", "''"))
		visit(url.QueryEscape(v))
		if text, err := json.Marshal(v); err == nil {
			visit(inner(string(text)))
			visit(inner(strconv.Quote(inner(string(text)))))
		}
	}
	each(value)
	each(strings.TrimSpace(value))
	if !strings.Contains(value, "\n") {
		return
	}
	each(strings.ReplaceAll(value, "\n", ""))
	each(strings.TrimSpace(strings.ReplaceAll(value, "\n", " ")))
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= leastLine {
			each(line)
		}
	}
}

// escaped reports whether a letter may have another form when it is quoted or escaped.
func escaped(r rune) bool {
	return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

func inner(quoted string) string { return quoted[1 : len(quoted)-1] }

type masked struct {
	text string
	err  error
}

func (m *masked) Error() string { return m.text }
func (m *masked) Unwrap() error { return m.err }
