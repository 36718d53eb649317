package sandbox

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// width matches a number in a verb of printf.
var width = regexp.MustCompile(`[0-9]+`)

// growth has the size of the result, by the arguments, of functions whose
// result may be much larger than these.
var growth = map[string]func(arguments) int64{
	"repeat": func(a arguments) int64 { return times(a.number(0), a.length(1)) },
	"until":  many, "randAlphaNum": many, "randAlpha": many, "randAscii": many, "randNumeric": many, "randBytes": many,
	"untilStep": span, "seq": span,
	"indent": indented, "nindent": indented,
	"replace":         replaced,
	"regexReplaceAll": matched, "mustRegexReplaceAll": matched, "regexReplaceAllLiteral": matched, "mustRegexReplaceAllLiteral": matched,
	"wrapWith": func(a arguments) int64 { return times(a.length(2)/max(a.number(0), 1)+1, a.length(1)) + a.length(2) },
	"join":     joined,
	"printf":   printed,
}

// grows is the size of the result of a function; 0 for those that return little
// more than they are given.
func grows(name string, args []any) int64 {
	if size := growth[name]; size != nil {
		return size(args)
	}
	return 0
}

// arguments of a call.
type arguments []any

// number is an argument as a number that is not negative; 0 if it is none.
func (a arguments) number(i int) int64 {
	if i >= len(a) {
		return 0
	}
	r := reflect.ValueOf(a[i])
	switch {
	case !r.IsValid():
		return 0
	case r.CanInt():
		return max(r.Int(), 0)
	case r.CanUint():
		return int64(min(r.Uint(), longestString+1))
	case r.CanFloat():
		return int64(min(max(r.Float(), 0), longestString+1))
	case r.Kind() == reflect.String:
		n, _ := strconv.ParseFloat(r.String(), 64)
		return int64(min(max(n, 0), longestString+1))
	}
	return 0
}

// text is an argument that is a string.
func (a arguments) text(i int) (string, bool) {
	if i >= len(a) {
		return "", false
	}
	s, ok := a[i].(string)
	return s, ok
}

// length of an argument that is a string; 0 if it is none.
func (a arguments) length(i int) int64 {
	s, _ := a.text(i)
	return int64(len(s))
}

// times multiplies without overflow: whatever is too long is too long.
func times(a, b int64) int64 {
	if a > longestString || b > longestString {
		return longestString + 1
	}
	return a * b
}

func many(a arguments) int64 { return times(a.number(0), 8) }

// span is the size of a list of numbers. The step does not count: it is at
// least one.
func span(a arguments) int64 {
	var most int64
	for i, v := range a {
		if r := reflect.ValueOf(v); r.IsValid() && r.CanInt() && r.Int() < 0 {
			most = max(most, -max(r.Int(), -longestString-1))
		}
		most = max(most, a.number(i))
	}
	return times(min(most, longestString+1), 8)
}

func indented(a arguments) int64 {
	s, ok := a.text(1)
	if !ok {
		return 0
	}
	return times(a.number(0)+1, int64(strings.Count(s, "\n"))+2) + a.length(1)
}

func replaced(a arguments) int64 {
	s, ok := a.text(2)
	if !ok {
		return 0
	}
	old, _ := a.text(0)
	return times(int64(strings.Count(s, old))+1, a.length(1)) + a.length(2)
}

func matched(a arguments) int64 { return times(a.length(1)+1, a.length(2)) + a.length(1) }

func joined(a arguments) int64 {
	if len(a) < 2 {
		return 0
	}
	r := reflect.ValueOf(a[1])
	if r.Kind() != reflect.Slice {
		return 0
	}
	return times(int64(r.Len()), a.length(0))
}

func printed(a arguments) int64 {
	format, ok := a.text(0)
	if !ok {
		return 0
	}
	var most int64
	for _, digits := range width.FindAllString(format, -1) {
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			n = longestString + 1
		}
		most = max(most, n)
	}
	if strings.Contains(format, "*") {
		for i := range a[1:] {
			most = max(most, a.number(i+1))
		}
	}
	return times(most, int64(strings.Count(format, "%")))
}
