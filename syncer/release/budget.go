package release

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"
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

// limits are those of a rendering that is counted, for tests to lower.
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
	// given are the values that Helm gave to the templates, by address: a template
	// that passes all of them around does not pay for them each time. It is nil
	// from when a template changes one.
	given map[uintptr]bool
}

func newBudget(ctx context.Context) *budget {
	b := &budget{given: map[uintptr]bool{}, limits: limits{steps: mostSteps, work: mostWork, text: longestString}}
	b.ctx, b.cancel = context.WithTimeout(ctx, renderTime)
	return b
}

// errBudget is what a template exceeded.
type errBudget struct{ what string }

func (e *errBudget) Error() string { return "chart is refused: " + e.what }

func exceeds(format string, args ...any) error { return &errBudget{fmt.Sprintf(format, args...)} }

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

// guard replaces the templates of a chart, which it must own, by ones that stay
// within the budget. A template that cannot be read is left to Helm, which says
// why and renders nothing.
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

// functions are the functions of templates: Helm's, which pay for what they
// return, and those that guarded templates call.
func (b *budget) functions(dns bool, lookup any) template.FuncMap {
	all := template.FuncMap{}
	for name, f := range sprig.TxtFuncMap() {
		if name == "env" || name == "expandenv" || name == "getHostByName" && !dns || helms[name] {
			continue // Helm has none, or its own
		}
		all[name] = b.paid(name, f)
	}
	for name, f := range map[string]any{
		"print": fmt.Sprint, "println": fmt.Sprintln, "printf": fmt.Sprintf,
		"html": template.HTMLEscaper, "js": template.JSEscaper, "urlquery": template.URLQueryEscaper,
	} {
		all[name] = b.paid(name, f)
	}
	maps.Copy(all, template.FuncMap{
		beginFunc: b.begin, enterFunc: b.enter, leaveFunc: b.leave, tickFunc: b.tick, printFunc: b.print, tplFunc: b.tpl, "lookup": lookup,
	})
	return all
}

// helms are functions that Helm has of its own. Those that write a value return
// little more than the value is, and that was paid for when it was built.
var helms = set(`fail include tpl required lookup toToml mustToToml fromToml toYaml mustToYaml toYamlPretty fromYaml
	fromYamlArray toJson mustToJson fromJson fromJsonArray`)

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

// note remembers the maps of a value by address.
func note(seen map[uintptr]bool, v any, depth int) {
	m, list := parts(v)
	if m != nil {
		at := reflect.ValueOf(v).Pointer()
		if seen[at] || depth > deepestValue {
			return
		}
		seen[at] = true
		for _, item := range m {
			note(seen, item, depth+1)
		}
	}
	for _, item := range list {
		note(seen, item, depth+1)
	}
}

// parts of a value that is a map or a list of anything.
func parts(v any) (map[string]any, []any) {
	switch v := v.(type) {
	case map[string]any:
		return v, nil
	case common.Values:
		return v, nil
	case []any:
		return nil, v
	}
	return nil, nil
}

// print is what text/template does to a value that it prints.
func (b *budget) print(v any) (string, error) {
	if s, ok := v.(string); ok {
		return s, b.spend(0, int64(len(s)))
	}
	if err := b.pay(v); err != nil {
		return "", err
	}
	r := reflect.ValueOf(v)
	for r.Kind() == reflect.Pointer && !r.IsNil() {
		r = r.Elem()
	}
	switch {
	case !r.IsValid():
		return "<no value>", nil
	case r.Kind() == reflect.Chan || r.Kind() == reflect.Func:
		return "", fmt.Errorf("can't print a value of type %s", r.Type())
	case !isStringer(r.Type()) && isStringer(reflect.PointerTo(r.Type())):
		// It mostly is a field, of which text/template would take the address.
		p := reflect.New(r.Type())
		p.Elem().Set(r)
		r = p
	}
	s := fmt.Sprint(r.Interface())
	return s, b.spend(0, int64(len(s)))
}

var (
	stringer  = reflect.TypeFor[fmt.Stringer]()
	errorType = reflect.TypeFor[error]()
)

func isStringer(t reflect.Type) bool { return t.Implements(stringer) || t.Implements(errorType) }

// tpl guards a template that is a value.
func (b *budget) tpl(v any) (any, error) {
	s, ok := v.(string)
	if !ok {
		return v, nil
	}
	if err := b.spend(1, int64(len(s))); err != nil {
		return nil, err
	}
	if !strings.Contains(s, "{{") {
		return s, nil
	}
	guarded, err := guardTemplate(s, false)
	if err != nil {
		return nil, fmt.Errorf("cannot parse template %q: %w", s, err)
	}
	return guarded, nil
}

// pay pays for going through a whole value.
func (b *budget) pay(v any) error {
	cost, err := b.measure(v, 0)
	if err == nil {
		return b.spend(0, cost)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.exceeded == nil {
		b.exceeded = err
	}
	return b.exceeded
}

// measure counts the nodes and bytes of a value as it would be written, up to
// more than may be spent.
func (b *budget) measure(v any, depth int) (int64, error) {
	if depth > deepestValue {
		return 0, exceeds("its templates build a value that is nested deeper than %d, or contains itself", deepestValue)
	}
	if s, ok := v.(string); ok {
		return int64(len(s)) + 1, nil
	}
	var cost int64 = 1
	add := func(item any) error {
		n, err := b.measure(item, depth+1)
		if cost += n; err == nil && cost > b.limits.text {
			err = exceeds("its templates build a value of more than %d MiB", b.limits.text>>20)
		}
		return err
	}
	m, list := parts(v)
	if m != nil && b.given != nil && b.given[reflect.ValueOf(v).Pointer()] {
		return 1, nil
	}
	for k, item := range m {
		cost += int64(len(k))
		if err := add(item); err != nil {
			return 0, err
		}
	}
	for _, item := range list {
		if err := add(item); err != nil {
			return 0, err
		}
	}
	switch typed := v.(type) {
	case []string:
		for _, s := range typed {
			cost += int64(len(s)) + 1
		}
	case []byte:
		cost += int64(len(typed))
	}
	return cost, nil
}

// Functions by what they cost beyond their result.
var (
	// builders put values together: what they return is measured.
	builders = set("dict list tuple set append mustAppend push mustPush prepend mustPrepend concat merge mustMerge mergeOverwrite mustMergeOverwrite deepCopy mustDeepCopy")
	// writers go through all of their arguments.
	writers = set("toPrettyJson mustToPrettyJson toRawJson mustToRawJson quote squote toString toStrings cat join print println printf html js urlquery deepCopy mustDeepCopy")
	// changers change their first argument.
	changers = set("set unset merge mustMerge mergeOverwrite mustMergeOverwrite")
	// keys are made of much computing.
	keys = set("genPrivateKey genCA genCAWithKey genSelfSignedCert genSelfSignedCertWithKey genSignedCert genSignedCertWithKey derivePassword bcrypt htpasswd buildCustomCert encryptAES decryptAES")
)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

// paid is a function that pays for what it does. One that cannot pay panics, which
// text/template makes an error of.
func (b *budget) paid(name string, f any) any {
	of := reflect.ValueOf(f)
	kind := of.Type()
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	return reflect.MakeFunc(kind, func(args []reflect.Value) []reflect.Value {
		must(b.before(name, args, kind.IsVariadic()))
		var results []reflect.Value
		if kind.IsVariadic() {
			results = of.CallSlice(args)
		} else {
			results = of.Call(args)
		}
		for _, r := range results {
			must(b.after(name, r))
		}
		return results
	}).Interface()
}

// before pays for a call as far as its arguments tell what it will cost.
func (b *budget) before(name string, args []reflect.Value, variadic bool) error {
	values := flatten(args, variadic)
	if keys[name] {
		if err := b.spend(0, keyWork); err != nil {
			return err
		}
	}
	if writers[name] {
		for _, v := range values {
			if err := b.pay(v); err != nil {
				return err
			}
		}
	}
	if changers[name] && len(values) > 0 {
		b.mu.Lock()
		if m, _ := parts(values[0]); m != nil && b.given[reflect.ValueOf(values[0]).Pointer()] {
			b.given = nil
		}
		b.mu.Unlock()
	}
	if size := grows(name, values); size > b.limits.text {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.exceeded = exceeds("function %s of a template would return more than %d MiB", name, b.limits.text>>20)
		return b.exceeded
	}
	return nil
}

// after pays for what a function returned.
func (b *budget) after(name string, r reflect.Value) error {
	if r.Kind() == reflect.String {
		return b.spend(0, int64(r.Len()))
	}
	if !r.CanInterface() || r.Kind() == reflect.Interface && r.IsNil() {
		return nil
	}
	v := r.Interface()
	switch v := v.(type) {
	case string:
		return b.spend(0, int64(len(v)))
	case []int:
		return b.spend(0, int64(8*len(v)))
	case []string:
		return b.pay(v)
	}
	if builders[name] {
		return b.pay(v)
	}
	return nil
}

func flatten(args []reflect.Value, variadic bool) []any {
	var values []any
	take := func(v reflect.Value) {
		if v.IsValid() && v.CanInterface() {
			values = append(values, v.Interface())
		} else {
			values = append(values, nil)
		}
	}
	for i, a := range args {
		if variadic && i == len(args)-1 {
			for j := range a.Len() {
				take(a.Index(j))
			}
			continue
		}
		take(a)
	}
	return values
}

// width matches a number in a verb of printf.
var width = regexp.MustCompile(`[0-9]+`)

// grows is the size of the result of functions that make much of little.
func grows(name string, args []any) int64 {
	number := func(i int) int64 {
		if i >= len(args) {
			return 0
		}
		r := reflect.ValueOf(args[i])
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
	length := func(i int) int64 {
		if i < len(args) {
			if s, ok := args[i].(string); ok {
				return int64(len(s))
			}
		}
		return 0
	}
	times := func(a, b int64) int64 {
		if a > longestString || b > longestString {
			return longestString + 1
		}
		return a * b
	}
	switch name {
	case "repeat":
		return times(number(0), length(1))
	case "until", "randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randBytes":
		return times(number(0), 8)
	case "untilStep", "seq":
		// With a step of less than one there are none; the span alone counts.
		var span int64
		for i, v := range args {
			if r := reflect.ValueOf(v); r.IsValid() && r.CanInt() && r.Int() < 0 {
				span = max(span, -max(r.Int(), -longestString-1))
			}
			span = max(span, number(i))
		}
		return times(min(span, longestString+1), 8)
	case "indent", "nindent":
		if s, ok := argString(args, 1); ok {
			return times(number(0)+1, int64(strings.Count(s, "\n"))+2) + length(1)
		}
	case "replace":
		if s, ok := argString(args, 2); ok {
			old, _ := argString(args, 0)
			return times(int64(strings.Count(s, old))+1, length(1)) + length(2)
		}
	case "regexReplaceAll", "mustRegexReplaceAll", "regexReplaceAllLiteral", "mustRegexReplaceAllLiteral":
		return times(length(1)+1, length(2)) + length(1)
	case "wrapWith":
		return times(length(2)/max(number(0), 1)+1, length(1)) + length(2)
	case "join":
		if len(args) > 1 {
			if r := reflect.ValueOf(args[1]); r.Kind() == reflect.Slice {
				return times(int64(r.Len()), length(0))
			}
		}
	case "printf":
		if f, ok := argString(args, 0); ok {
			var most int64
			for _, digits := range width.FindAllString(f, -1) {
				n, err := strconv.ParseInt(digits, 10, 64)
				if err != nil {
					n = longestString + 1
				}
				most = max(most, n)
			}
			if strings.Contains(f, "*") {
				for i := range args[1:] {
					most = max(most, number(i+1))
				}
			}
			return times(most, int64(strings.Count(f, "%")))
		}
	}
	return 0
}

func argString(args []any, i int) (string, bool) {
	if i >= len(args) {
		return "", false
	}
	s, ok := args[i].(string)
	return s, ok
}
