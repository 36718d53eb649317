package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
)

func noLookup(string, string, string, string) (map[string]any, error) { return map[string]any{}, nil }

// renderBoth renders a chart as Helm does, and under guard.
func renderBoth(t *testing.T, c *chart.Chart, values map[string]any) (plain, guarded map[string]string, plainErr, guardedErr error) {
	t.Helper()
	top, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: "web", Namespace: "apps", Revision: 1, IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	plain, plainErr = engine.Engine{}.Render(CopyChart(c), top)
	r := newRenderer(t.Context(), Request{Cluster: emptyCluster(), Workers: workers}, c)
	top, err = util.ToRenderValues(r.chart, values, common.ReleaseOptions{Name: "web", Namespace: "apps", Revision: 1, IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	guarded, guardedErr = engine.Engine{CustomTemplateFuncs: r.functions()}.Render(r.chart, top)
	for name, text := range guarded {
		if strings.HasSuffix(name, "/cascade/entry") {
			if text != "" {
				t.Errorf("%s is %q", name, text)
			}
			delete(guarded, name)
		}
	}
	if r.failed != nil {
		guardedErr = r.failed
	}
	return plain, guarded, plainErr, guardedErr
}

// emptyCluster knows Secrets, and has none.
func emptyCluster() Cluster {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	return Cluster{Mapper: mapper, Objects: fake.NewSimpleDynamicClient(runtime.NewScheme())}
}

func chartOf(templates map[string]string) *chart.Chart {
	c := &chart.Chart{Metadata: &chart.Metadata{Name: "web", Version: "1.0.0", APIVersion: "v2"}, Values: map[string]any{}}
	for name, text := range templates {
		c.Templates = append(c.Templates, &common.File{Name: "templates/" + name, Data: []byte(text)})
	}
	return c
}

// ordinary is what charts do, with every way to trim and to nest.
var ordinary = map[string]string{
	"text":         "plain: text\n",
	"empty":        "",
	"field":        "a: {{ .Values.a }}\nb: {{.Values.a}}\n",
	"missing":      "a: {{ .Values.none }} b: {{ .Values.none | quote }} c: {{ .Values.nothing }}\n",
	"hash":         `{{ define "h" }}{{ .Values.none }}{{ end }}{{ include "h" . | sha256sum }}`,
	"trim":         "a:\n{{- range .Values.list }}\n  - {{ . }}\n{{- end }}\nb: {{- .Values.a -}}  \n c\n",
	"trimRange":    "{{- range $i, $x := .Values.list -}}\n   {{ $i }}={{ $x }};\n{{- end -}}\n  end\n",
	"else":         "{{ range .Values.none }}x{{ else }}nothing{{ end }}{{ if .Values.a }}1{{ else if .Values.b }}2{{ else }}3{{ end }}",
	"with":         "{{ with .Values.map }}{{ .k }}{{ else }}none{{ end }}{{ with $x := .Values.a }}{{ $x }}{{ end }}",
	"variables":    "{{ $a := 1 }}{{ $a = add $a 2 }}{{ $a }}{{ $b := `x` }}{{- $b = \"y\" -}} {{ $b }}",
	"comment":      "a{{/* a comment }} with {{ in it */}}b{{- /* trimmed */ -}} c",
	"strings":      `{{ "}}" }}{{ "a\"b" }}{{ print "{{ x }}" }}{{ '}' }}` + "{{ `}} \" ` }}",
	"break":        "{{ range until 10 }}{{ if gt . 3 }}{{ break }}{{ end }}{{ if eq . 1 }}{{ continue }}{{ end }}{{ . }}{{ end }}",
	"define":       "{{ define \"x\" -}}\n  in {{ . }}\n{{- end }}{{ template \"x\" 1 }}{{ include \"x\" 2 | upper }}{{ block \"y\" .Values.a }}<{{ . }}>{{ end }}",
	"pipes":        `{{ .Values.map | toYaml | nindent 2 }}{{ list 1 2 3 | join "," }}{{ dict "a" 1 | toJson }}{{ printf "%5d|%s" 3 "x" }}`,
	"tpl":          `{{ tpl .Values.template . }}{{ tpl "{{ .Values.a }}" $ | upper }}{{ tpl (printf "%s" .Values.template) . }}{{ if tpl "{{ 1 }}" . }}t{{ end }}{{ tpl (.Values.map.k | quote) $ }}`,
	"tplDefine":    `{{ tpl "{{ define \"in\" }}I{{ end }}{{ include \"in\" . }}" . }}`,
	"types":        "{{ 1.5 }} {{ true }} {{ .Values.map }} {{ .Values.list }} {{ .Chart.Name }} {{ .Chart.Version }} {{ .Release.Revision }} {{ .Capabilities.KubeVersion }}",
	"chart":        "{{ .Chart }}",
	"files":        `{{ .Files.Get "none" }}{{ .Files.Glob "*" }}`,
	"parens":       `{{ (index .Values.list 0) }}{{ (.Values.map).k }}{{ ((print "a")) }}`,
	"set":          `{{ $_ := set .Values "new" "n" }}{{ .Values.new }}{{ $d := dict }}{{ $_ := set $d "k" .Values.map }}{{ $d | toYaml }}`,
	"merge":        `{{ $m := merge (dict "x" 1) .Values.map }}{{ $m | toYaml }}{{ mergeOverwrite (dict "k" 1) (deepCopy .Values.map) | toYaml }}`,
	"required":     `{{ required "is needed" .Values.a }}`,
	"fails":        `{{ fail "no good" }}`,
	"needs":        `{{ required "is needed" .Values.none }}`,
	"unknown":      `{{ nosuch 1 }}`,
	"unclosed":     "{{ .Values.a",
	"unclosedIf":   "{{ if .Values.a }}x",
	"stray":        "{{ end }}",
	"badQuote":     "{{ \"a }}\n{{ \" }}",
	"emptyAction":  "{{ }}",
	"notANumber":   `{{ add "x" .Values.map }}`,
	"nilPointer":   "{{ .Values.a.b.c }}",
	"brace":        "a {",
	"braces":       "{ } {{ 1 }}} {",
	"unicode":      "{{ $größe := 1 }}ä{{ $größe }}{{ \"ö\" | repeat 3 }}",
	"digit":        "{{ 1 | add 2 }}{{ -3 }}{{- 4 }}{{ 5 -}}",
	"newline":      "{{\n  .Values.a\n  | upper\n}}\n{{-\n.Values.a\n-}}\nx",
	"nested":       "{{ range .Values.list }}{{ range $.Values.list }}{{ . }}{{ end }};{{ end }}",
	"rangeInt":     "{{ range 3 }}{{ . }}{{ end }}{{ range $k, $v := .Values.map }}{{ $k }}{{ $v }}{{ end }}",
	"regex":        `{{ regexReplaceAll "a+" "baaad" "o" }}{{ "a b" | replace " " "" }}{{ "x y z" | wrapWith 1 "\t" }}{{ trunc 2 "abc" }}{{ indent 4 "a\nb" }}`,
	"functions":    `{{ ternary 1 2 true }}{{ default "d" .Values.none }}{{ coalesce .Values.none "c" }}{{ keys .Values.map | first }}{{ hasKey .Values "a" }}{{ untilStep 1 10 3 }}{{ seq 1 3 }}{{ b64enc "x" }}{{ dig "k" "d" .Values.map }}`,
	"lookup":       `{{ lookup "v1" "Secret" "" "x" | toJson }}`,
	"dns":          `{{ getHostByName "example.com" }}!`,
	"capabilities": `{{ .Capabilities.APIVersions.Has "apps/v1" }}`,
}

func ordinaryValues() map[string]any {
	return map[string]any{
		"a": "A", "list": []any{"x", "y"}, "map": map[string]any{"k": "v"}, "template": "<{{ .Values.a }}{{ range .Values.list }}{{ . }}{{ end }}>", "nothing": nil,
	}
}

// TestGuardedRendersTheSame: each way to write a template on its own, with what
// it prints or that it fails.
func TestGuardedRendersTheSame(t *testing.T) {
	failing := map[string]bool{
		"fails": true, "needs": true, "unknown": true, "unclosed": true, "unclosedIf": true, "stray": true, "badQuote": true, "emptyAction": true, "nilPointer": true,
	}
	for name, text := range ordinary {
		t.Run(name, func(t *testing.T) {
			plain, guarded, plainErr, guardedErr := renderBoth(t, chartOf(map[string]string{name: text}), ordinaryValues())
			if (plainErr != nil) != (guardedErr != nil) {
				t.Fatalf("%s\nplain: %v\nunder guard: %v", text, plainErr, guardedErr)
			}
			if (plainErr != nil) != failing[name] {
				t.Fatalf("%s\nfails: %v, want %t: this is not what was to be tried", text, plainErr, failing[name])
			}
			if diff := cmp.Diff(plain, guarded); diff != "" {
				t.Errorf("%s\n-plain, +under guard:\n%s", text, diff)
			}
		})
	}
}

// TestGuardedCharts: templates of real charts, if there are any beside.
func TestGuardedRealTemplates(t *testing.T) {
	names, err := filepath.Glob("../../../deploy/charts/*/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, name := range names {
		files, err := filepath.Glob(filepath.Join(filepath.Dir(name), "templates", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			guarded, err := guardTemplate(string(data), true)
			if err != nil {
				t.Errorf("%s: %v", f, err)
			}
			again, err := actionsOf(guarded)
			if err != nil || len(again) <= strings.Count(string(data), "{{") {
				t.Errorf("%s: under guard it has %d actions: %v", f, len(again), err)
			}
			tried++
		}
	}
	t.Logf("%d templates", tried)
}

// FuzzGuardTemplate: whatever the text is, it renders the same under guard, or
// fails both ways.
func FuzzGuardTemplate(f *testing.F) {
	for _, text := range ordinary {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, skip := range []string{"rand", "gen", "uuid", "now", "date", "ago", "bcrypt", "htpasswd", "encrypt", "cascade", "keys", "values", "shuffle", "include", "template", "{{range", "range ", "until", "repeat", "seq", "indent"} {
			if strings.Contains(text, skip) {
				return // never the same, or too much without a guard
			}
		}
		plain, guarded, plainErr, guardedErr := renderBoth(t, chartOf(map[string]string{"x": text}), ordinaryValues())
		var over *Exceeded
		if errors.As(guardedErr, &over) || errors.Is(guardedErr, errTooDeep) {
			return
		}
		if (plainErr != nil) != (guardedErr != nil) {
			t.Fatalf("%q\nplain: %v\nunder guard: %v", text, plainErr, guardedErr)
		}
		if diff := cmp.Diff(plain, guarded); plainErr == nil && diff != "" {
			t.Fatalf("%q\n-plain, +under guard:\n%s", text, diff)
		}
	})
}

// TestHostileTemplates end with a reason, soon and in little memory. Each of them
// kills a process that renders it as it is, or never ends.
func TestHostileTemplates(t *testing.T) {
	doubling := func(kind string) string {
		return `{{ $x := ` + kind + ` }}{{ range until 60 }}{{ $x = ` + map[string]string{
			`"xxxxxxxx"`: `print $x $x`, `dict`: `dict "a" $x "b" $x`, `list 1`: `concat $x $x`, `list`: `list $x $x`,
		}[kind] + ` }}{{ end }}`
	}
	for name, tc := range map[string]struct {
		reason string
		text   string
		values map[string]any
		want   string
	}{
		"Range":          {"a range of a number needs no list", `{{ range 9000000000000 }}x{{ end }}`, nil, "steps"},
		"EmptyRange":     {"nor a body", `{{ range 9000000000000 }}{{ end }}`, nil, "steps"},
		"TrimmedRange":   {"nor text that is left of it", "{{- range 9000000000000 -}}\n{{- end -}}", nil, "steps"},
		"NestedRange":    {"each is short", strings.Repeat("{{ range 1000 }}", 5) + "x" + strings.Repeat("{{ end }}", 5), nil, "steps"},
		"LongBody":       {"few turns, much text", `{{ range 1000000 }}` + strings.Repeat("x", 10_000) + `{{ end }}`, nil, "produce"},
		"LongValue":      {"few turns, long values", `{{ $x := repeat 1000000 "x" }}{{ range 1000000 }}{{ $x }}{{ end }}`, nil, "produce"},
		"Repeat":         {"one call takes all memory", `{{ repeat 9000000000 "xxxxxxxxxx" }}`, nil, "repeat"},
		"RepeatString":   {"the number is in a string", `{{ repeat ("9000000000" | int) "xxxxxxxxxx" }}`, nil, "repeat"},
		"Until":          {"a list of numbers", `{{ until 9000000000 }}`, nil, "until"},
		"UntilStep":      {"also downwards", `{{ untilStep 0 -9000000000 -1 }}`, nil, "untilStep"},
		"Seq":            {"also as a text", `{{ seq 9000000000 }}`, nil, "seq"},
		"Indent":         {"one line", `{{ indent 9000000000 "x" }}`, nil, "indent"},
		"Printf":         {"the width is in the format", `{{ printf "%09000000000d" 1 }}{{ printf "%900000000d" 1 }}`, nil, "printf"},
		"PrintfStar":     {"or beside it", `{{ printf "%*d" 900000 1 }}{{ printf "%*d%*d" 90000000 1 90000000 1 }}`, nil, "printf"},
		"Replace":        {"nothing replaced by much", `{{ $x := repeat 10000 "x" }}{{ replace "" $x (repeat 10000 "y") }}`, nil, "replace"},
		"Wrap":           {"each letter on a line of its own", `{{ wrapWith 1 (repeat 10000 "x") (repeat 10000 "y") }}`, nil, "wrapWith"},
		"Join":           {"a long word between many", `{{ join (repeat 10000 "x") (until 10000) }}`, nil, "join"},
		"DoublingText":   {"twice as long each time", doubling(`"xxxxxxxx"`), nil, "produce"},
		"DoublingMap":    {"each map has the one before twice", doubling("dict") + `{{ $x }}`, nil, "value"},
		"DoublingList":   {"so has each list", doubling("list") + `{{ $x | toJson }}`, nil, "value"},
		"DoublingConcat": {"twice as many each time", doubling("list 1"), nil, "value"},
		"Itself":         {"printing it overflows the stack, which nothing can recover", `{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ $d }}`, nil, "contains itself"},
		"ValuesItself":   {"also with what Helm gave", `{{ $_ := set .Values "a" .Values }}{{ .Values }}`, nil, "contains itself"},
		"MergedItself":   {"merging brings it in, too", `{{ $d := dict "a" 1 }}{{ $_ := mergeOverwrite $d (dict "x" $d) }}{{ $d }}`, nil, "contains itself"},
		"Deep":           {"each contains the one before", `{{ $d := dict }}{{ range until 100000 }}{{ $d = dict "d" $d }}{{ end }}{{ $d }}`, nil, "nested deeper"},
		"Template":       {"two calls in each of sixty templates", bushy(60), nil, "more than"},
		"Recursion":      {"a template that calls itself", `{{ define "r" }}{{ template "r" . }}{{ template "r" . }}{{ end }}{{ template "r" . }}`, nil, "call each other"},
		"Tpl":            {"the template is a value", `{{ tpl .Values.t . }}`, map[string]any{"t": `{{ range 9000000000000 }}{{ end }}`}, "steps"},
		"TplTpl":         {"that makes another", `{{ tpl .Values.t . }}`, map[string]any{"t": `{{ tpl "{{ range 9000000000000 }}{{ end }}" . }}`}, "steps"},
		"TplSelf":        {"that is itself", `{{ tpl .Values.t . }}`, map[string]any{"t": `{{ tpl .Values.t . }}{{ tpl .Values.t . }}`}, "call each other"},
		"Keys":           {"each key is a second of computing", `{{ range until 1000 }}{{ genPrivateKey "ed25519" }}{{ end }}`, nil, "produce"},
		"Blocks":         {"Go's parser goes down with each of them", strings.Repeat("{{ if 1 }}", 300_000) + strings.Repeat("{{ end }}", 300_000), nil, "nested too deep"},
		"ElseIfs":        {"and with each of these", "{{ if 1 }}" + strings.Repeat("{{ else if 1 }}", 300_000) + "{{ end }}", nil, "nested too deep"},
		"Parens":         {"and with each of these", "{{ " + strings.Repeat("(", 9000) + "1" + strings.Repeat(")", 9000) + " }}", nil, "nested too deep"},
		"Includes":       {"each of a thousand templates may be included a thousand times, inside each other", `{{ include "x" . }}{{ include "templates/x" . }}` + ring(1000), nil, "call each other"},
		"Files":          {"a file is a template, too", `{{ include "web/templates/x" . }}`, nil, "call each other"},
	} {
		t.Run(name, func(t *testing.T) {
			c := chartOf(map[string]string{"x": tc.text})
			b := newBudget(t.Context())
			b.limits = limits{steps: mostSteps / 20, work: mostWork / 4, text: longestString / 8}
			b.guard(c)
			top, err := util.ToRenderValues(c, tc.values, common.ReleaseOptions{Name: "web"}, common.DefaultCapabilities)
			if err != nil {
				t.Fatal(err)
			}
			_, err = engine.Engine{CustomTemplateFuncs: b.functions(false, noLookup)}.Render(c, top)
			if err = b.explain(err); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s\nrender: %v, want an error with %q", tc.reason, err, tc.want)
			}
		})
	}
}

// ring is a ring of templates that include each other.
func ring(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`{{ define "` + strings.Repeat("x", i+1) + `" }}{{ include "` + strings.Repeat("x", (i+1)%n+1) + `" . }}{{ end }}`)
	}
	return b.String()
}

// bushy is a template that calls another twice, which calls another twice, and so
// on.
func bushy(n int) string {
	var b strings.Builder
	for i := range n {
		name, next := strings.Repeat("x", i+1), strings.Repeat("x", i+2)
		b.WriteString(`{{ define "` + name + `" }}{{ template "` + next + `" }}{{ template "` + next + `" }}{{ end }}`)
	}
	b.WriteString(`{{ define "` + strings.Repeat("x", n+1) + `" }}{{ end }}{{ template "x" }}`)
	return b.String()
}

// TestBudgetEnds: time that is over ends a rendering that is within all other
// limits.
func TestBudgetEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := newBudget(ctx)
	if _, err := b.tick(1); err == nil || !strings.Contains(b.explain(err).Error(), "takes longer") {
		t.Errorf("tick() after the end: %v", err)
	}
}

// TestOriginalIsStored: what the storage holds is the chart as it came.
func TestCopyChart(t *testing.T) {
	c := chartOf(map[string]string{"x": "a: {{ .Values.a }}"})
	c.Values["deep"] = map[string]any{"k": []any{"v"}}
	c.Metadata.Dependencies = []*chart.Dependency{{Name: "sub"}}
	sub := chartOf(map[string]string{"y": "b"})
	sub.Metadata.Name = "sub"
	c.AddDependency(sub)
	own := CopyChart(c)
	b := newBudget(t.Context())
	defer b.cancel()
	b.guard(own)
	own.Values["deep"].(map[string]any)["k"].([]any)[0] = "changed"
	own.Metadata.Dependencies[0].Enabled = true
	own.SetDependencies()
	if got := string(c.Templates[0].Data); got != "a: {{ .Values.a }}" {
		t.Errorf("the template of the shared chart is %q", got)
	}
	if c.Values["deep"].(map[string]any)["k"].([]any)[0] != "v" || c.Metadata.Dependencies[0].Enabled || len(c.Dependencies()) != 1 {
		t.Error("working with the copy changed the shared chart")
	}
	if string(sub.Templates[0].Data) != "b" || sub.Parent() != c {
		t.Error("working with the copy changed the subchart")
	}
}
