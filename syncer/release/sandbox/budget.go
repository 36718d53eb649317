package sandbox

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
)

// Limits of rendering one chart. They are far above what charts need and far
// below what hurts.
const (
	// renderTime bounds rendering, not what comes after.
	renderTime = 30 * time.Second
	// mostSteps bounds the turns of ranges and the calls of templates.
	mostSteps = 1_000_000
	// mostWork bounds the bytes that templates write and their functions return,
	// and the values that they look at, added up.
	mostWork = 256 << 20
	// longestString bounds what one function may return.
	longestString = 32 << 20
	// mostOutput bounds the manifests of a release.
	mostOutput = 32 << 20
	// deepestValue bounds the nesting of what templates build. What contains itself
	// is infinitely deep, and would end the process when it is printed.
	deepestValue = 1000
	// deepestCall bounds how templates call each other.
	deepestCall = 500
	// keyWork is what making a key or hashing a password costs: some of these are
	// a second of work.
	keyWork = mostWork / 64
	// mostLooked bounds what a lookup of a list may return.
	mostLooked = 10_000
)

// limits of one rendering. Tests lower them.
type limits struct {
	steps, work int64
	// text is the longest that one function returns, and the largest value.
	text int64
}

// budget holds what rendering one chart may cost. A template that exceeds it ends
// with an error.
type budget struct {
	ctx    context.Context
	cancel context.CancelFunc
	limits limits

	mu          sync.Mutex
	steps, work int64
	// depth of templates that call each other.
	depth    int
	exceeded error
	// given are the values that Helm gave to the templates, by address. A template
	// that passes them around does not pay for them each time. given is nil once a
	// template has changed one of them.
	given map[uintptr]bool
}

func newBudget(ctx context.Context) *budget {
	b := &budget{given: map[uintptr]bool{}, limits: limits{steps: mostSteps, work: mostWork, text: longestString}}
	b.ctx, b.cancel = context.WithTimeout(ctx, renderTime)
	return b
}

// Exceeded: a chart costs more than it may. It will the next time, too.
type Exceeded struct{ what string }

func (e *Exceeded) Error() string { return "chart is refused: " + e.what }

func exceeds(format string, args ...any) error { return &Exceeded{fmt.Sprintf(format, args...)} }

// explain makes an error say what was exceeded, instead of where a template was
// then. It ends the time of rendering.
func (b *budget) explain(err error) error {
	b.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && b.exceeded != nil {
		return fmt.Errorf("cannot render chart: %w", b.exceeded)
	}
	return err
}

// spend takes from the budget.
func (b *budget) spend(steps, work int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.exceeded == nil {
		b.steps += steps
		b.work += work
		switch {
		case b.ctx.Err() != nil:
			b.exceeded = exceeds("rendering takes longer than %s", renderTime)
		case b.steps > b.limits.steps:
			b.exceeded = exceeds("its templates take more than %d steps", b.limits.steps)
		case work < 0 || b.work > b.limits.work:
			b.exceeded = exceeds("its templates produce more than %d MiB", b.limits.work>>20)
		}
	}
	return b.exceeded
}

// output checks what was rendered in the end.
func (b *budget) output(size int) error {
	if size <= mostOutput {
		return b.spend(0, 0)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.exceeded = exceeds("its manifests are larger than %d MiB", mostOutput>>20)
	return b.exceeded
}

// guard replaces the templates of a chart, which belongs to the budget, by ones
// that stay within it. A template that cannot be read is replaced by one that
// fails with the reason.
func (b *budget) guard(c *chart.Chart) {
	guarded := make([]*common.File, 0, len(c.Templates))
	for _, t := range c.Templates {
		text, err := guardTemplate(string(t.Data), true)
		if err != nil {
			text = "{{" + tickFunc + " -1}}{{fail " + strconv.Quote(err.Error()) + "}}"
		}
		guarded = append(guarded, &common.File{Name: t.Name, ModTime: t.ModTime, Data: []byte(text)})
	}
	c.Templates = guarded
	for _, d := range c.Dependencies() {
		b.guard(d)
	}
}

func (b *budget) tick(text int) (string, error) { return "", b.spend(1, int64(max(text, 0))) }

// begin notes what Helm gives to a template.
func (b *budget) begin(dot any) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.given != nil {
		note(b.given, dot, 0)
	}
	return ""
}

// enter begins a template, leave ends it. Templates call each other by include,
// tpl and template, and none of these knows how deep the others are.
func (b *budget) enter(text int) (string, error) {
	b.mu.Lock()
	if b.depth++; b.depth > deepestCall && b.exceeded == nil {
		b.exceeded = exceeds("its templates call each other deeper than %d", deepestCall)
	}
	b.mu.Unlock()
	return b.tick(text)
}

func (b *budget) leave() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.depth--
	return ""
}
