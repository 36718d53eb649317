package sandbox

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Functions that guarded templates call.
const (
	beginFunc = "cascadeBegin"
	enterFunc = "cascadeEnter"
	leaveFunc = "cascadeLeave"
	tickFunc  = "cascadeTick"
	printFunc = "cascadePrint"
	tplFunc   = "cascadeTpl"
)

// How far blocks and parentheses of a template may be nested. Go's parser goes
// down with each of them, and so does each call of the template.
const (
	deepestBlock = 200
	deepestParen = 50
)

var errTooDeep = errors.New("template is nested too deep")

// guardTemplate rewrites a template so that it reports what it does, and does the
// same otherwise: at the beginning and with each turn of a range, with each call
// of a template, with each value that it prints. It works on the text, because
// what text/template parses cannot be written back as it was. file: it is one of
// the chart, which Helm itself may render.
func guardTemplate(src string, file bool) (string, error) {
	actions, err := actionsOf(src)
	if err != nil {
		return "", err
	}
	if err := matchBlocks(src, actions); err != nil {
		return "", err
	}
	var out strings.Builder
	if file {
		fmt.Fprintf(&out, "{{%s .}}", beginFunc)
	}
	fmt.Fprintf(&out, "{{%s %d}}", enterFunc, len(src))
	at := 0
	for _, a := range actions {
		out.WriteString(src[at:a.from])
		if a.leaves {
			left := ""
			if strings.HasPrefix(src[a.from:], "{{-") {
				left = "- "
			}
			out.WriteString("{{" + left + leaveFunc + "}}")
		}
		out.WriteString(guardTpl(src[a.from:a.to], a.prints))
		if a.counts {
			call := enterFunc
			if a.keyword == "range" {
				call = tickFunc
			}
			out.WriteString("{{" + call + " " + strconv.Itoa(a.body))
			if a.trims {
				out.WriteString(" -")
			}
			out.WriteString("}}")
		}
		// The rest of the action: its closing delimiter comes before the tick.
		at = a.to
	}
	rest := src[at:]
	if last := len(rest) - 1; last >= 0 && rest[last] == '{' {
		// It must not become a part of what comes after it.
		rest = rest[:last] + `{{"{"}}`
	}
	out.WriteString(rest)
	out.WriteString("{{" + leaveFunc + "}}")
	return out.String(), nil
}

// templateAction is a {{ }} of a template.
type templateAction struct {
	// from and to are where it begins and ends, with delimiters.
	from, to int
	keyword  string
	// trims: text after it loses its leading space.
	trims bool
	// prints: its value goes into the output.
	prints bool
	// counts: a body of so many bytes follows, which may run many times.
	counts bool
	body   int
	// leaves: it ends the body of a template.
	leaves bool
}

var keywords = map[string]bool{
	"if": true, "else": true, "end": true, "range": true, "with": true, "define": true, "block": true,
	"template": true, "break": true, "continue": true,
}

// actionsOf finds the actions as Go's lexer does.
func actionsOf(src string) ([]templateAction, error) {
	var found []templateAction
	for at := 0; ; {
		i := strings.Index(src[at:], "{{")
		if i < 0 {
			return found, nil
		}
		a := templateAction{from: at + i}
		inside := a.from + 2
		if len(src) > inside+1 && src[inside] == '-' && isSpace(src[inside+1]) {
			inside += 2
		}
		if strings.HasPrefix(src[inside:], "/*") {
			end := strings.Index(src[inside:], "*/")
			if end < 0 {
				return nil, errors.New("unclosed comment")
			}
			rest := inside + end + 2
			switch {
			case strings.HasPrefix(src[rest:], "}}"):
				a.to = rest + 2
			case len(src) > rest && isSpace(src[rest]) && strings.HasPrefix(src[rest+1:], "-}}"):
				a.to = rest + 4
			default:
				return nil, errors.New("comment ends before closing delimiter")
			}
			found, at = append(found, a), a.to
			continue
		}
		end, err := endOfAction(src, inside)
		if err != nil {
			return nil, err
		}
		a.to = end
		a.trims = src[end-3] == '-' && end-4 >= inside && isSpace(src[end-4])
		content := strings.TrimSpace(src[inside : end-2])
		a.keyword = leadingWord(content)
		if keywords[a.keyword] {
			a.counts = a.keyword == "range" || a.keyword == "define" || a.keyword == "block"
		} else {
			a.keyword = ""
			a.prints = content != "" && content != "-" && !assigns(content)
		}
		found, at = append(found, a), a.to
	}
}

// endOfAction is where the action ends whose inside begins at a position.
func endOfAction(src string, at int) (int, error) {
	depth := 0
	for at < len(src) {
		switch c := src[at]; {
		case strings.HasPrefix(src[at:], "}}"):
			return at + 2, nil
		case c == '"' || c == '\'' || c == '`':
			end, err := endOfQuote(src, at)
			if err != nil {
				return 0, err
			}
			at = end
		default:
			switch c {
			case '(':
				depth++
			case ')':
				depth--
			}
			if depth > deepestParen {
				return 0, errTooDeep
			}
			at++
		}
	}
	return 0, errors.New("unclosed action")
}

func endOfQuote(src string, at int) (int, error) {
	quote := src[at]
	for i := at + 1; i < len(src); i++ {
		switch {
		case src[i] == quote:
			return i + 1, nil
		case src[i] == '\\' && quote != '`':
			i++
		case src[i] == '\n' && quote != '`':
			return 0, errors.New("unterminated quoted string")
		}
	}
	return 0, errors.New("unterminated quoted string")
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func isWordRune(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

func leadingWord(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool { return !isWordRune(r) })
	if end < 0 {
		return s
	}
	return s[:end]
}

// assigns reports whether an action declares or sets a variable, and so prints
// nothing.
func assigns(content string) bool {
	if content[0] != '$' {
		return false
	}
	rest := strings.TrimLeft(content[1+len(leadingWord(content[1:])):], " \t\r\n")
	return strings.HasPrefix(rest, ":=") || strings.HasPrefix(rest, "=")
}

// matchBlocks finds how long the body of each block is.
func matchBlocks(src string, actions []templateAction) error {
	type block struct{ action, branches int }
	var open []block
	depth := 0
	for i, a := range actions {
		switch a.keyword {
		case "if", "range", "with", "define", "block":
			open = append(open, block{action: i, branches: 1})
			depth++
		case "else":
			if len(open) > 0 {
				// A chain of else-ifs is nested, for the parser.
				open[len(open)-1].branches++
				depth++
			}
		case "end":
			if len(open) == 0 {
				return nil // the parser says it better
			}
			last := open[len(open)-1]
			open = open[:len(open)-1]
			depth -= last.branches
			actions[i].leaves = actions[last.action].keyword == "define" || actions[last.action].keyword == "block"
			actions[last.action].body = a.from - actions[last.action].to
		}
		if depth > deepestBlock {
			return errTooDeep
		}
	}
	return nil
}

// guardTpl rewrites one action: what is given to tpl is guarded when it is known,
// and what is printed passes through a function.
func guardTpl(action string, prints bool) string {
	inner := action[2 : len(action)-2]
	if strings.Contains(inner, "tpl") {
		inner = guardTplCalls(inner)
	}
	if !prints {
		return "{{" + inner + "}}"
	}
	left, right := "", ""
	if len(inner) > 1 && inner[0] == '-' && isSpace(inner[1]) {
		left, inner = inner[:2], inner[2:]
	}
	if n := len(inner); n > 1 && inner[n-1] == '-' && isSpace(inner[n-2]) {
		right, inner = inner[n-2:], inner[:n-2]
	}
	return "{{" + left + printFunc + " (" + strings.TrimSpace(inner) + ")" + right + "}}"
}

// guardTplCalls wraps the first argument of each call of tpl.
func guardTplCalls(inner string) string {
	var out strings.Builder
	for at := 0; at < len(inner); {
		c := inner[at]
		if c == '"' || c == '\'' || c == '`' {
			end, err := endOfQuote(inner, at)
			if err != nil {
				end = len(inner)
			}
			out.WriteString(inner[at:end])
			at = end
			continue
		}
		r, size := utf8.DecodeRuneInString(inner[at:])
		if !isWordRune(r) {
			out.WriteString(inner[at : at+size])
			at += size
			continue
		}
		word := leadingWord(inner[at:])
		out.WriteString(word)
		start := at
		at += len(word)
		if word != "tpl" || start > 0 && (inner[start-1] == '.' || inner[start-1] == '$') || at >= len(inner) || !isSpace(inner[at]) {
			continue
		}
		gap := len(inner[at:]) - len(strings.TrimLeft(inner[at:], " \t\r\n"))
		end := endOfOperand(inner, at+gap)
		if end == at+gap {
			continue // it is given by a pipe: an error of the template
		}
		out.WriteString(inner[at : at+gap])
		out.WriteString("(" + tplFunc + " " + guardTplCalls(inner[at+gap:end]) + ")")
		at = end
	}
	return out.String()
}

// endOfOperand is where the operand ends that begins at a position: a string, a
// field or variable, a name, or something in parentheses with fields of it.
func endOfOperand(s string, at int) int {
	if at >= len(s) {
		return at
	}
	switch s[at] {
	case '"', '`', '\'':
		end, err := endOfQuote(s, at)
		if err != nil {
			return at
		}
		return end
	case '(':
		depth := 0
		for at < len(s) {
			switch c := s[at]; {
			case c == '"' || c == '`' || c == '\'':
				end, err := endOfQuote(s, at)
				if err != nil {
					return len(s)
				}
				at = end
				continue
			case c == '(':
				depth++
			case c == ')':
				depth--
			}
			at++
			if depth == 0 {
				break
			}
		}
	}
	for at < len(s) {
		r, size := utf8.DecodeRuneInString(s[at:])
		if r != '.' && r != '$' && !isWordRune(r) {
			break
		}
		at += size
	}
	return at
}
