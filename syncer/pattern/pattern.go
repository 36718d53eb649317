// Package pattern compiles the regular expressions of tenants, where they are matched in the
// agent's own process.
//
// Invariant: an expression takes memory and time by what it is written out to, and not by its text:
// (?:.?.?){1000} repeats, in a few characters, what Go then makes a thousand times. What is refused is
// counted before anything is compiled. The package is pure.
package pattern

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

// Bounds of one expression. A step takes some 40 bytes, and one pass over it for each character that
// is matched. A text without repeats has about as many steps as characters.
const (
	mostBytes = 4 << 10
	mostSteps = 5000
)

// Steps says how many steps an expression has, without making them.
func Steps(text string) (int, error) {
	if len(text) > mostBytes {
		return 0, fmt.Errorf("it has more than %d bytes", mostBytes)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0, err
	}
	steps := stepsOf(parsed) + classesOf(parsed)
	if steps > mostSteps {
		return 0, fmt.Errorf("it repeats too much: it is %d steps, more than %d", steps, mostSteps)
	}
	return steps, nil
}

// Compile compiles an expression, and says how many steps it has.
func Compile(text string) (re *regexp.Regexp, steps int, err error) {
	if steps, err = Steps(text); err != nil {
		return nil, 0, err
	}
	if re, err = regexp.Compile(text); err != nil {
		return nil, 0, err
	}
	return re, steps, nil
}

// stepsOf counts the instructions that Go makes of an expression, as its own parser does for its bound of
// 128 MiB, which is one for a process that has nothing else to do. That bound keeps the number small enough to be counted.
func stepsOf(re *syntax.Regexp) int {
	steps := 0
	for _, sub := range re.Sub {
		steps += stepsOf(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		steps = len(re.Rune)
	case syntax.OpCapture, syntax.OpStar:
		steps += 2
	case syntax.OpPlus, syntax.OpQuest:
		steps++
	case syntax.OpAlternate:
		steps += len(re.Sub) - 1
	case syntax.OpRepeat:
		switch {
		case re.Max >= 0:
			steps = re.Max*steps + re.Max - re.Min
		case re.Min > 0:
			steps = re.Min*steps + 1
		default:
			steps += 2
		}
	}
	return max(1, steps)
}

// classesOf counts the ranges of classes, of which ten take what a step takes: one as \pL has hundreds. What repeats
// a class refers to it, so that it counts once.
func classesOf(re *syntax.Regexp) int {
	steps := 0
	if re.Op == syntax.OpCharClass {
		steps = len(re.Rune) / 10
	}
	for _, sub := range re.Sub {
		steps += classesOf(sub)
	}
	return steps
}
