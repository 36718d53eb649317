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
	"sync"
)

// hidden stands where a value was.
const hidden = "*****"

// Texts returns a function that takes values out of texts. It is safe for concurrent use. The
// values cost nothing until there is a text: most of the time nothing fails.
func Texts(values []string) func(string) string {
	all := sync.OnceValue(func() []string {
		var all []string
		for _, v := range values {
			all = append(all, forms(v)...)
		}
		// The longest first: one may be a part of another.
		slices.SortFunc(all, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
		return slices.Compact(all)
	})
	return func(text string) string {
		for _, form := range all() {
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
)

// forms are how a value may stand in a text: without its newlines, as substitution puts it
// in; line by line; quoted and escaped for Go, JSON and YAML, once and twice; and
// in base64, as a Secret has it.
func forms(value string) []string {
	plain := []string{value, strings.ReplaceAll(value, "\n", ""), strings.TrimSpace(strings.ReplaceAll(value, "\n", " ")), strings.TrimSpace(value)}
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= leastLine {
			plain = append(plain, line)
		}
	}
	var all []string
	for _, v := range plain {
		if len(v) < leastSecret {
			continue
		}
		inner := func(quoted string) string { return quoted[1 : len(quoted)-1] }
		once := inner(strconv.Quote(v))
		all = append(all, v, once, inner(strconv.Quote(once)), inner(strconv.QuoteToASCII(v)),
			strings.ReplaceAll(v, "'", "''"), base64.StdEncoding.EncodeToString([]byte(v)), url.QueryEscape(v))
		if escaped, err := json.Marshal(v); err == nil {
			all = append(all, inner(string(escaped)), inner(strconv.Quote(inner(string(escaped)))))
		}
	}
	return all
}

type masked struct {
	text string
	err  error
}

func (m *masked) Error() string { return m.text }
func (m *masked) Unwrap() error { return m.err }
