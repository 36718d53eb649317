package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"

	"github.com/cascade-gitops/cascade/syncer/pattern"
	"github.com/cascade-gitops/cascade/syncer/version"
)

// Bounds of ranges, and of what an expression extracts of a tag.
const (
	mostRange     = 4 << 10
	mostExtracted = 1 << 10
	mostGroups    = 100 // of an expression that extracts: each step of it remembers where all of them are
)

// descending is the order that chooses the first instead of the last.
const descending = "desc"

// ErrNone is wrapped where no tag fits.
var ErrNone = errors.New("no tag fits the policy")

// Invalid is an error of a spec: it stays until that is changed.
type Invalid struct{ Err error }

func (e *Invalid) Error() string { return e.Err.Error() }
func (e *Invalid) Unwrap() error { return e.Err }

func invalid(format string, args ...any) error { return &Invalid{fmt.Errorf(format, args...)} }

// contest finds the best of tags that come one after the other. It keeps the best one and no other: an image has a hundred
// thousand, what is extracted of each may be a kilobyte, and many policies choose at the same time.
type contest interface {
	// look looks at a tag, and the text by which it is compared.
	look(tag, text string) error
	// best is the best tag so far, false if none is fit.
	best() (string, bool)
}

// by compares tags by what is read of their texts.
type by[K any] struct {
	// read is false for a text that is not fit.
	read    func(text string) (K, bool, error)
	compare func(a, b K) int

	tag  string
	key  K
	some bool
}

// look takes the greatest. Of equal ones, the greatest tag is taken, so that it is the same one each time.
func (b *by[K]) look(tag, text string) error {
	key, fits, err := b.read(text)
	if err != nil || !fits {
		return err
	}
	if !b.some || cmp.Or(b.compare(key, b.key), strings.Compare(tag, b.tag)) > 0 {
		b.tag, b.key, b.some = tag, key, true
	}
	return nil
}

func (b *by[K]) best() (string, bool) { return b.tag, b.some }

// Latest returns the tag that a policy chooses. filter may be nil. The context bounds the time in which
// tags are matched with it.
func Latest(ctx context.Context, choice imagev1.ImagePolicyChoice, filter *imagev1.TagFilter, tags []string) (string, error) {
	contest, err := contestOf(choice)
	if err != nil {
		return "", err
	}
	passed, err := filtered(ctx, filter, tags, contest.look)
	if err != nil {
		return "", err
	}
	best, ok := contest.best()
	if !ok {
		return "", fmt.Errorf("cannot choose among %d tags, of which %d pass spec.filterTags: %w", len(tags), passed, ErrNone)
	}
	return best, nil
}

// contestOf is how a policy chooses.
func contestOf(choice imagev1.ImagePolicyChoice) (contest, error) {
	given := 0
	for _, set := range []bool{choice.SemVer != nil, choice.Alphabetical != nil, choice.Numerical != nil} {
		if set {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, invalid("cannot use spec.policy: it has more than one of semver, alphabetical and numerical; leave one")
	case choice.SemVer != nil:
		return bySemVer(choice.SemVer.Range)
	case choice.Alphabetical != nil:
		sign, err := signOf(choice.Alphabetical.Order)
		return &by[string]{
			read:    func(text string) (string, bool, error) { return text, true, nil },
			compare: func(a, b string) int { return sign * strings.Compare(a, b) },
		}, err
	case choice.Numerical != nil:
		sign, err := signOf(choice.Numerical.Order)
		return &by[number]{read: readNumber, compare: func(a, b number) int { return sign * a.compare(b) }}, err
	}
	return nil, invalid("cannot use spec.policy: it has none of semver, alphabetical and numerical")
}

func signOf(order string) (int, error) {
	switch strings.ToLower(order) {
	case "", "asc":
		return 1, nil
	case descending:
		return -1, nil
	}
	return 0, invalid("cannot use the order %q of spec.policy: it is asc or desc", order)
}

func bySemVer(text string) (contest, error) {
	if len(text) > mostRange {
		return nil, invalid("cannot use the range of spec.policy.semver: it has more than %d bytes", mostRange)
	}
	constraint, err := semver.NewConstraint(text)
	if err != nil {
		return nil, invalid("cannot use the range %q of spec.policy.semver: %w", text, err)
	}
	return &by[*semver.Version]{
		read: func(text string) (*semver.Version, bool, error) {
			v, err := version.Parse(text)
			return v, err == nil && constraint.Check(v), nil
		},
		compare: (*semver.Version).Compare,
	}, nil
}

// number is what a text is compared by. The value of a long number is not exact, so the digits of
// whole ones count as well.
type number struct {
	value  float64
	digits string
}

func (a number) compare(b number) int {
	return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(len(a.digits), len(b.digits)), strings.Compare(a.digits, b.digits))
}

func readNumber(text string) (number, bool, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return number{}, false, fmt.Errorf("cannot compare %q as a number; let spec.filterTags pass numbers only", text)
	}
	n := number{value: value}
	if strings.Trim(text, "0123456789") == "" {
		n.digits = strings.TrimLeft(text, "0")
	}
	return n, true, nil
}

// compile compiles an expression of a spec.
func compile(where, text string) (*regexp.Regexp, error) {
	re, _, err := pattern.Compile(text)
	if err != nil {
		return nil, invalid("cannot use %s: %w", where, err)
	}
	return re, nil
}

// filtered calls look with each tag that passes a filter, and the text by which it is compared. It returns how many do.
func filtered(ctx context.Context, filter *imagev1.TagFilter, tags []string, look func(tag, text string) error) (passed int, err error) {
	if filter == nil {
		for _, tag := range tags {
			if err := look(tag, tag); err != nil {
				return 0, err
			}
		}
		return len(tags), nil
	}
	re, err := compile("spec.filterTags.pattern", filter.Pattern)
	if err != nil {
		return 0, err
	}
	if len(filter.Extract) > mostExtracted {
		return 0, invalid("cannot use spec.filterTags.extract: it has more than %d bytes", mostExtracted)
	}
	if filter.Extract != "" && re.NumSubexp() > mostGroups {
		return 0, invalid("cannot use spec.filterTags.pattern: it has more than %d groups", mostGroups)
	}
	var expanded []byte
	for _, tag := range tags {
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("cannot match %d tags with spec.filterTags: %w", len(tags), err)
		}
		text := tag
		if filter.Extract == "" {
			if !re.MatchString(tag) {
				continue
			}
		} else {
			match := re.FindStringSubmatchIndex(tag)
			if match == nil {
				continue
			}
			if expanded = re.ExpandString(expanded[:0], filter.Extract, tag, match); len(expanded) > mostExtracted {
				return 0, invalid("cannot use spec.filterTags.extract: it makes more than %d bytes of a tag", mostExtracted)
			}
			text = string(expanded)
		}
		if err := look(tag, text); err != nil {
			return 0, err
		}
		passed++
	}
	return passed, nil
}

// Kept returns the tags that no expression of an exclusion list matches, in their order. The context bounds
// the time that this takes.
func Kept(ctx context.Context, exclusions, tags []string) ([]string, error) {
	expressions := make([]*regexp.Regexp, 0, len(exclusions))
	for i, text := range exclusions {
		re, err := compile(fmt.Sprintf("spec.exclusionList[%d]", i), text)
		if err != nil {
			return nil, err
		}
		expressions = append(expressions, re)
	}
	kept := make([]string, 0, len(tags))
	for _, tag := range tags {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("cannot match %d tags with spec.exclusionList: %w", len(tags), err)
		}
		if !slices.ContainsFunc(expressions, func(re *regexp.Regexp) bool { return re.MatchString(tag) }) {
			kept = append(kept, tag)
		}
	}
	return kept, nil
}
