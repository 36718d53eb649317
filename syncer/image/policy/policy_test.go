package policy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
)

func semverOf(text string) imagev1.ImagePolicyChoice {
	return imagev1.ImagePolicyChoice{SemVer: &imagev1.SemVerPolicy{Range: text}}
}

func alphabetical(order string) imagev1.ImagePolicyChoice {
	return imagev1.ImagePolicyChoice{Alphabetical: &imagev1.AlphabeticalPolicy{Order: order}}
}

func numerical(order string) imagev1.ImagePolicyChoice {
	return imagev1.ImagePolicyChoice{Numerical: &imagev1.NumericalPolicy{Order: order}}
}

// repeats is an expression of 3 KiB, of which Go makes more than three million steps.
var repeats = "(?:" + strings.Repeat(".?", 1600) + "){1000}"

// allocates is an error if more than 40 MiB are allocated since it was called.
func allocates() func() error {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	return func() error {
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 40<<20 {
			return fmt.Errorf("%d MiB were allocated", n>>20)
		}
		return nil
	}
}

func TestLatest(t *testing.T) {
	filter := func(pattern, extract string) *imagev1.TagFilter {
		return &imagev1.TagFilter{Pattern: pattern, Extract: extract}
	}
	for name, tt := range map[string]struct {
		reason string
		choice imagev1.ImagePolicyChoice
		filter *imagev1.TagFilter
		tags   []string
		want   string
		// fails is a part of the error; spec is whether a change of the spec can mend it.
		fails string
		spec  bool
	}{
		"SemVer":              {reason: "the highest version of the range", choice: semverOf("5.0.x"), tags: []string{"5.0.0", "5.0.10", "5.0.9", "5.1.0"}, want: "5.0.10"},
		"SemVerStable":        {reason: "a range without a prerelease has none", choice: semverOf(">=1.0.0"), tags: []string{"1.0.0", "2.0.0-rc.1"}, want: "1.0.0"},
		"SemVerPrerelease":    {reason: "-0 lets prereleases in", choice: semverOf(">=1.0.0-0"), tags: []string{"1.0.0", "2.0.0-rc.1"}, want: "2.0.0-rc.1"},
		"SemVerWithV":         {reason: "a v may be before the version", choice: semverOf("*"), tags: []string{"v1.2.0", "1.1.0"}, want: "v1.2.0"},
		"SemVerIgnoresOthers": {reason: "what is no whole version is passed over, as in Flux", choice: semverOf("*"), tags: []string{"latest", "9", "9.9", "1.0.0"}, want: "1.0.0"},
		"ZeroPadded":          {reason: "a date with zeros is a version, as in Flux", choice: semverOf(">=2025.0.0"), tags: []string{"2025.12.11", "2026.01.05", "2026.2"}, want: "2026.01.05"},
		"SemVerTied":          {reason: "build metadata has no order: the greatest tag", choice: semverOf("*"), tags: []string{"v1.0.0", "1.0.0"}, want: "v1.0.0"},
		"SemVerNone":          {reason: "no tag fits", choice: semverOf(">=2"), tags: []string{"1.0.0"}, fails: "no tag fits"},
		"SemVerInvalid":       {reason: "the range is not one", choice: semverOf("over the hills"), tags: []string{"1.0.0"}, fails: "range", spec: true},
		"SemVerLong":          {reason: "a range is bounded", choice: semverOf(strings.Repeat(">=1.0.0 ", 1000)), tags: []string{"1.0.0"}, fails: "more than", spec: true},
		"Alphabetical":        {reason: "ascending chooses the last", choice: alphabetical("asc"), tags: []string{"b", "c", "a"}, want: "c"},
		"AlphabeticalDefault": {reason: "ascending is the default", choice: alphabetical(""), tags: []string{"b", "c", "a"}, want: "c"},
		"AlphabeticalDesc":    {reason: "descending chooses the first", choice: alphabetical("desc"), tags: []string{"b", "c", "a"}, want: "a"},
		"AlphabeticalOrder":   {reason: "there is no other order", choice: alphabetical("sideways"), tags: []string{"a"}, fails: "asc or desc", spec: true},
		"Numerical":           {reason: "by value, not by letters", choice: numerical("asc"), tags: []string{"9", "10", "2"}, want: "10"},
		"NumericalDesc":       {reason: "descending chooses the least", choice: numerical("desc"), tags: []string{"9", "10", "2"}, want: "2"},
		"NumericalFraction":   {reason: "fractions are numbers", choice: numerical("asc"), tags: []string{"1.5", "1.25"}, want: "1.5"},
		"NumericalLong":       {reason: "numbers of 17 digits differ, though their floats do not", choice: numerical("asc"), tags: []string{"20260101120000123", "20260101120000124", "20260101120000122"}, want: "20260101120000124"},
		"NumericalZeros":      {reason: "of the same number the greatest tag", choice: numerical("asc"), tags: []string{"007", "7", "07"}, want: "7"},
		"NumericalWord":       {reason: "as in Flux a word fails the policy", choice: numerical("asc"), tags: []string{"1", "latest"}, fails: "latest"},
		"NumericalNaN":        {reason: "not a number is not one", choice: numerical("asc"), tags: []string{"1", "nan"}, fails: "nan"},
		"NumericalInfinite":   {reason: "nor is infinity", choice: numerical("asc"), tags: []string{"1", "Inf"}, fails: "Inf"},
		"Filter":              {reason: "only what matches counts", choice: semverOf("*-0"), filter: filter(`.*-rc.*`, ""), tags: []string{"1.0.0", "1.0.0-rc.1", "1.0.0-rc.2"}, want: "1.0.0-rc.2"},
		"Extract":             {reason: "compared by what is extracted", choice: alphabetical("asc"), filter: filter(`^RELEASE\.(?P<timestamp>.*)Z$`, "$timestamp"), tags: []string{"RELEASE.2026-01-02T00-00-00Z", "RELEASE.2026-01-03T00-00-00Z", "edge"}, want: "RELEASE.2026-01-03T00-00-00Z"},
		"ExtractNumber":       {reason: "a number out of a tag", choice: numerical("asc"), filter: filter(`^main-[a-f0-9]+-(?P<ts>[0-9]+)$`, "$ts"), tags: []string{"main-abc-9", "main-def-10", "dev-abc-99"}, want: "main-def-10"},
		"ExtractTied":         {reason: "of two tags with the same text the greatest", choice: numerical("asc"), filter: filter(`^[a-z]+-([0-9]+)$`, "$1"), tags: []string{"b-1", "a-1"}, want: "b-1"},
		"FilterNone":          {reason: "nothing passes", choice: semverOf("*"), filter: filter(`^x$`, ""), tags: []string{"1.0.0"}, fails: "of which 0 pass"},
		"FilterInvalid":       {reason: "not an expression", choice: semverOf("*"), filter: filter(`(`, ""), tags: []string{"1.0.0"}, fails: "filterTags.pattern", spec: true},
		"FilterLookahead":     {reason: "RE2 looks at nothing twice", choice: semverOf("*"), filter: filter(`(?=a)`, ""), tags: []string{"1.0.0"}, fails: "filterTags.pattern", spec: true},
		"FilterRepeats":       {reason: "repetitions of repetitions are refused by the library", choice: semverOf("*"), filter: filter(`((a{100}){100}){100}`, ""), tags: []string{"1.0.0"}, fails: "filterTags.pattern", spec: true},
		"Repeats":             {reason: "what is short may repeat a thousand times", choice: semverOf("*"), filter: filter(repeats, ""), tags: []string{"1.0.0"}, fails: "filterTags.pattern", spec: true},
		"Groups":              {reason: "what extracts has few groups", choice: semverOf("*"), filter: filter(strings.Repeat("()", 500)+".*", "$0"), tags: []string{"1.0.0"}, fails: "groups", spec: true},
		"GroupsUnused":        {reason: "what extracts nothing may have any", choice: semverOf("*"), filter: filter(strings.Repeat("()", 500)+".*", ""), tags: []string{"1.0.0"}, want: "1.0.0"},
		"FilterLong":          {reason: "an expression is bounded", choice: semverOf("*"), filter: filter(strings.Repeat("a", 5000), ""), tags: []string{"1.0.0"}, fails: "more than", spec: true},
		"ExtractLong":         {reason: "what extracts is bounded", choice: semverOf("*"), filter: filter(`.`, strings.Repeat("a", 2000)), tags: []string{"1.0.0"}, fails: "more than", spec: true},
		"ExtractGrows":        {reason: "a tag does not become a thousand", choice: alphabetical("asc"), filter: filter(`.*`, strings.Repeat("$0", 200)), tags: []string{strings.Repeat("a", 100)}, fails: "makes more than", spec: true},
		"ExtractAll":          {reason: "all tags together may, as the best one is kept alone", choice: alphabetical("asc"), filter: filter(`^.*$`, strings.Repeat("$0", 10)), tags: slices.Repeat([]string{strings.Repeat("a", 100)}, 20_000), want: strings.Repeat("a", 100)},
		"NoChoice":            {reason: "a policy chooses in one way", tags: []string{"1.0.0"}, fails: "none of", spec: true},
		"TwoChoices":          {reason: "and in no two", choice: imagev1.ImagePolicyChoice{SemVer: &imagev1.SemVerPolicy{Range: "*"}, Numerical: &imagev1.NumericalPolicy{}}, tags: []string{"1.0.0"}, fails: "more than one", spec: true},
		"NoTags":              {reason: "an image without tags", choice: semverOf("*"), fails: "no tag fits"},
	} {
		t.Run(name, func(t *testing.T) {
			bounded := allocates()
			got, err := Latest(t.Context(), tt.choice, tt.filter, tt.tags)
			if err := bounded(); err != nil {
				t.Errorf("%s: %v", tt.reason, err)
			}
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Fatalf("%s: got %q, %v; want an error with %q", tt.reason, got, err, tt.fails)
				}
				if errors.As(err, new(*Invalid)) != tt.spec {
					t.Errorf("%s: %v is of the spec: %t", tt.reason, err, !tt.spec)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("%s: got %q, %v; want %q", tt.reason, got, err, tt.want)
			}
		})
	}
}

// TestLatestProperties: whatever the tags, the choice is one of those that pass the filter, is the
// same in each order, and stays when it is the only one left.
func TestLatestProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pattern := regexp.MustCompile(`^(?:v)?[0-9.]+$`)
	filter := &imagev1.TagFilter{Pattern: pattern.String()}
	choices := map[string]imagev1.ImagePolicyChoice{
		"semver": semverOf(">=1.0.0-0"), "asc": alphabetical("asc"), "desc": alphabetical("desc"), "numbers": numerical("asc"), "numbers desc": numerical("desc"),
	}
	for round := range 500 {
		var tags []string
		for range 1 + random.IntN(20) {
			switch random.IntN(4) {
			case 0:
				tags = append(tags, fmt.Sprintf("v%d.%d.%d", random.IntN(3), random.IntN(12), random.IntN(12)))
			case 1:
				tags = append(tags, fmt.Sprintf("%d.%d.%d", random.IntN(3), random.IntN(12), random.IntN(12)))
			case 2:
				tags = append(tags, fmt.Sprintf("2026010112%013d", random.IntN(5)))
			default:
				tags = append(tags, fmt.Sprintf("sha-%d", random.IntN(9)))
			}
		}
		for name, choice := range choices {
			got, err := Latest(t.Context(), choice, filter, tags)
			shuffled := slices.Clone(tags)
			random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			again, err2 := Latest(t.Context(), choice, filter, shuffled)
			if got != again || (err == nil) != (err2 == nil) {
				t.Fatalf("round %d, %s: %v gives %q, %v, and in another order %q, %v", round, name, tags, got, err, again, err2)
			}
			if err != nil {
				continue
			}
			if !slices.Contains(tags, got) || !pattern.MatchString(got) {
				t.Fatalf("round %d, %s: %q is not of the filtered set of %v", round, name, got, tags)
			}
			if alone, err := Latest(t.Context(), choice, filter, []string{got}); err != nil || alone != got {
				t.Fatalf("round %d, %s: %q alone gives %q, %v", round, name, got, alone, err)
			}
		}
	}
}

// measured is a context that measures what is in memory each time that it has been asked so often.
type measured struct {
	context.Context
	calls int
	most  uint64
}

func (m *measured) Err() error {
	if m.calls++; m.calls%20_000 == 0 {
		m.most = max(m.most, inMemory())
	}
	return m.Context.Err()
}

func inMemory() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestLatestKeepsOne: a policy that chooses has no more in memory than it compares, whatever it makes of the tags: dozens choose at
// the same time.
func TestLatestKeepsOne(t *testing.T) {
	tags := make([]string, 0, 100_000)
	for n := range cap(tags) {
		tags = append(tags, fmt.Sprint(100_000+n))
	}
	for name, tt := range map[string]struct {
		choice  imagev1.ImagePolicyChoice
		extract string
	}{
		"SemVer":       {semverOf(">=1.0.0-0"), "1.0.$1-" + strings.Repeat("x", 120)},
		"Alphabetical": {alphabetical("asc"), strings.Repeat("x", 120) + "$1"},
		"Numerical":    {numerical("asc"), strings.Repeat("0", 120) + "$1"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := &measured{Context: t.Context()}
			before := inMemory()
			got, err := Latest(ctx, tt.choice, &imagev1.TagFilter{Pattern: `^([0-9]+)$`, Extract: tt.extract}, tags)
			if err != nil || got != "199999" {
				t.Errorf("got %q, %v", got, err)
			}
			if ctx.most > before+1<<20 {
				t.Errorf("%d KiB were in memory", (ctx.most-before)>>10)
			}
		})
	}
	runtime.KeepAlive(tags)
}

func TestKept(t *testing.T) {
	for name, tt := range map[string]struct {
		reason           string
		exclusions, tags []string
		want             []string
		fails            bool
	}{
		"Default":  {reason: "signatures of cosign are no images", exclusions: []string{`^.*\.sig$`}, tags: []string{"1.0.0", "sha256-abc.sig"}, want: []string{"1.0.0"}},
		"Several":  {reason: "each expression excludes", exclusions: []string{`1\.0\.2`, `1.1.1|1.0.0`}, tags: []string{"1.0.0", "1.0.2", "1.1.1", "2.0.0"}, want: []string{"2.0.0"}},
		"Nothing":  {reason: "no list, no exclusion", tags: []string{"a"}, want: []string{"a"}},
		"Invalid":  {reason: "not an expression", exclusions: []string{`(`}, fails: true},
		"Bounded":  {reason: "an expression is bounded", exclusions: []string{strings.Repeat("a", 5000)}, fails: true},
		"Repeats":  {reason: "what is short may repeat a thousand times", exclusions: slices.Repeat([]string{repeats}, 25), fails: true},
		"Class":    {reason: "a repeat of one class is not much", exclusions: []string{`^[a-f0-9]{1,1000}\p{L}{0,64}$`}, tags: []string{"ab", "x"}, want: []string{"x"}},
		"Emptying": {reason: "all may be excluded", exclusions: []string{`.*`}, tags: []string{"a", "b"}, want: []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			bounded := allocates()
			got, err := Kept(t.Context(), tt.exclusions, tt.tags)
			if err := bounded(); err != nil {
				t.Errorf("%s: %v", tt.reason, err)
			}
			if tt.fails != (err != nil) || !slices.Equal(got, tt.want) {
				t.Errorf("%s: got %q, %v; want %q", tt.reason, got, err, tt.want)
			}
			if tt.fails && !errors.As(err, new(*Invalid)) {
				t.Errorf("%s: %v is not of the spec", tt.reason, err)
			}
		})
	}
}

// TestMatchingEnds: to match expressions with tags takes a time that the context bounds.
func TestMatchingEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tags := []string{"1.0.0"}
	if _, err := Latest(ctx, semverOf("*"), &imagev1.TagFilter{Pattern: ".*"}, tags); !errors.Is(err, context.Canceled) || errors.As(err, new(*Invalid)) {
		t.Errorf("Latest() = %v after its time", err)
	}
	if _, err := Kept(ctx, []string{"x"}, tags); !errors.Is(err, context.Canceled) || errors.As(err, new(*Invalid)) {
		t.Errorf("Kept() = %v after its time", err)
	}
}
