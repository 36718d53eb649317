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
	mostTexts     = 16 << 20 // of all tags, of which the longest 100 000 are less
	mostGroups    = 100      // of an expression that extracts: each step of it remembers where all of them are
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

// candidate is a tag and the text by which it is compared.
type candidate struct{ tag, text string }

// Latest returns the tag that a policy chooses. filter may be nil. The context bounds the time in which
// tags are matched with it.
func Latest(ctx context.Context, choice imagev1.ImagePolicyChoice, filter *imagev1.TagFilter, tags []string) (string, error) {
	order, err := orderOf(choice)
	if err != nil {
		return "", err
	}
	candidates, err := filtered(ctx, filter, tags)
	if err != nil {
		return "", err
	}
	best, err := order(candidates)
	if err != nil {
		return "", err
	}
	if best == nil {
		return "", fmt.Errorf("cannot choose among %d tags, of which %d pass spec.filterTags: %w", len(tags), len(candidates), ErrNone)
	}
	return best.tag, nil
}

// orderOf returns the function that finds the best candidate, nil if none is fit.
func orderOf(choice imagev1.ImagePolicyChoice) (func([]candidate) (*candidate, error), error) {
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
		return func(all []candidate) (*candidate, error) {
			return best(all, func(a, b candidate) int { return sign * strings.Compare(a.text, b.text) }), nil
		}, err
	case choice.Numerical != nil:
		sign, err := signOf(choice.Numerical.Order)
		return func(all []candidate) (*candidate, error) { return byNumber(all, sign) }, err
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

// best returns the greatest candidate. Of equal ones, the greatest tag is taken, so that it is the
// same one each time.
func best(all []candidate, compare func(a, b candidate) int) *candidate {
	if len(all) == 0 {
		return nil
	}
	found := slices.MaxFunc(all, func(a, b candidate) int { return cmp.Or(compare(a, b), strings.Compare(a.tag, b.tag)) })
	return &found
}

func bySemVer(text string) (func([]candidate) (*candidate, error), error) {
	if len(text) > mostRange {
		return nil, invalid("cannot use the range of spec.policy.semver: it has more than %d bytes", mostRange)
	}
	constraint, err := semver.NewConstraint(text)
	if err != nil {
		return nil, invalid("cannot use the range %q of spec.policy.semver: %w", text, err)
	}
	return func(all []candidate) (*candidate, error) {
		versions := make(map[candidate]*semver.Version, len(all))
		var fit []candidate
		for _, c := range all {
			v, err := version.Parse(c.text)
			if err != nil || !constraint.Check(v) {
				continue
			}
			versions[c] = v
			fit = append(fit, c)
		}
		return best(fit, func(a, b candidate) int { return versions[a].Compare(versions[b]) }), nil
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

func byNumber(all []candidate, sign int) (*candidate, error) {
	numbers := make(map[candidate]number, len(all))
	for _, c := range all {
		value, err := strconv.ParseFloat(c.text, 64)
		if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
			return nil, fmt.Errorf("cannot compare %q as a number; let spec.filterTags pass numbers only", c.text)
		}
		n := number{value: value}
		if strings.Trim(c.text, "0123456789") == "" {
			n.digits = strings.TrimLeft(c.text, "0")
		}
		numbers[c] = n
	}
	return best(all, func(a, b candidate) int { return sign * numbers[a].compare(numbers[b]) }), nil
}

// compile compiles an expression of a spec.
func compile(where, text string) (*regexp.Regexp, error) {
	re, _, err := pattern.Compile(text)
	if err != nil {
		return nil, invalid("cannot use %s: %w", where, err)
	}
	return re, nil
}

func filtered(ctx context.Context, filter *imagev1.TagFilter, tags []string) ([]candidate, error) {
	candidates := make([]candidate, 0, len(tags))
	if filter == nil {
		for _, tag := range tags {
			candidates = append(candidates, candidate{tag, tag})
		}
		return candidates, nil
	}
	re, err := compile("spec.filterTags.pattern", filter.Pattern)
	if err != nil {
		return nil, err
	}
	if len(filter.Extract) > mostExtracted {
		return nil, invalid("cannot use spec.filterTags.extract: it has more than %d bytes", mostExtracted)
	}
	if filter.Extract != "" && re.NumSubexp() > mostGroups {
		return nil, invalid("cannot use spec.filterTags.pattern: it has more than %d groups", mostGroups)
	}
	texts, text := 0, []byte(nil)
	for _, tag := range tags {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("cannot match %d tags with spec.filterTags: %w", len(tags), err)
		}
		if filter.Extract == "" {
			if re.MatchString(tag) {
				candidates = append(candidates, candidate{tag, tag})
			}
			continue
		}
		if match := re.FindStringSubmatchIndex(tag); match != nil {
			text = re.ExpandString(text[:0], filter.Extract, tag, match)
			if len(text) > mostExtracted {
				return nil, invalid("cannot use spec.filterTags.extract: it makes more than %d bytes of a tag", mostExtracted)
			}
			if texts += len(text); texts > mostTexts {
				return nil, invalid("cannot use spec.filterTags.extract: it makes more than %d bytes of all tags", mostTexts)
			}
			candidates = append(candidates, candidate{tag, string(text)})
		}
	}
	return candidates, nil
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
