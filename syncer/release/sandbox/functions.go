package sandbox

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
)

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

// helms are Helm's own functions. Those that write a value return little more
// than the value, which was paid for when it was built.
var helms = set(`fail include tpl required lookup toToml mustToToml fromToml toYaml mustToYaml toYamlPretty fromYaml
	fromYamlArray toJson mustToJson fromJson fromJsonArray`)

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

// Functions by what they cost beyond their result.
var (
	// builders put values together: what they return is measured.
	builders = set("dict list tuple set append mustAppend push mustPush prepend mustPrepend concat merge mustMerge mergeOverwrite mustMergeOverwrite deepCopy mustDeepCopy")
	// writers go through all of their arguments.
	writers = set("toPrettyJson mustToPrettyJson toRawJson mustToRawJson quote squote toString toStrings cat join print println printf html js urlquery deepCopy mustDeepCopy")
	// changers change their first argument.
	changers = set("set unset merge mustMerge mergeOverwrite mustMergeOverwrite")
	// keys take much computing.
	keys = set("genPrivateKey genCA genCAWithKey genSelfSignedCert genSelfSignedCertWithKey genSignedCert genSignedCertWithKey derivePassword bcrypt htpasswd buildCustomCert encryptAES decryptAES")
)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

// paid wraps a function so that it pays for what it does. If the budget is
// exceeded it panics, and text/template turns that into an error.
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
