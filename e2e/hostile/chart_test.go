package hostile

import (
	"fmt"
	"strings"
	"time"
)

// charts are those whose templates, schemas and dependencies cost more than they
// should, or reach for what is not theirs.
func charts(o *outside) []fixture {
	template := func(name, reason, text string) fixture {
		return chartOf(name, reason, map[string]string{"templates/a.yaml": text, "values.yaml": "a: {}\n"}, "")
	}
	schema := func(name, reason, text string) fixture {
		return chartOf("schema-"+name, reason, map[string]string{"templates/a.yaml": configMap("a"), "values.yaml": "a: {b: " + strings.Repeat("a", 1000) + "}\n", "values.schema.json": text}, "")
	}
	depends := func(name, reason, dependencies string, more map[string]string) fixture {
		files := map[string]string{"templates/a.yaml": configMap("a"), "Chart.yaml": "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies: [" + dependencies + "]\n"}
		for file, text := range more {
			files[file] = text
		}
		return chartOf("dependency-"+name, reason, files, "")
	}
	object := func(text string) string { return anyConfigMap + "data: {k: " + text + "}\n" }
	return []fixture{
		template("include", "a template that includes itself", `{{ define "a" }}{{ include "a" . }}{{ end }}{{ include "a" . }}`),
		template("include-two", "two templates that include each other", `{{ define "a" }}{{ include "b" . }}{{ end }}{{ define "b" }}{{ template "a" . }}{{ end }}{{ include "a" . }}`),
		template("include-doubling", "templates each of which includes the next twice", doublingTemplates(40)),
		template("tpl", "a text that is a template of itself", `{{ $t := "{{ tpl .t . }}" }}{{ tpl $t (dict "t" $t "Template" .Template) }}`),
		template("range", "a loop in a loop, of which nothing comes but comments", `{{ range until 2000000 }}{{ range until 2000000 }}# more{{ end }}{{ end }}`),
		template("range-silent", "a loop in a loop in a loop, of which nothing comes", `{{ range until 1000000 }}{{ range until 1000000 }}{{ end }}{{ end }}`),
		template("until", "a list of a billion numbers", `{{ len (until 1000000000) }}`),
		template("until-step", "a list that goes on for ever", `{{ len (untilStep 0 2000000000 1) }}`),
		template("seq", "a text of a billion numbers", `{{ seq 1 1000000000 }}`),
		template("repeat", "a text of a terabyte", `{{ repeat 1000000000 "xxxxxxxxxx" }}`),
		template("repeat-doubling", "a text that is doubled fifty times", `{{ $s := "x" }}{{ range until 50 }}{{ $s = printf "%s%s" $s $s }}{{ end }}{{ $s }}`),
		template("replace", "a text that is replaced by itself fifty times", `{{ $s := "xx" }}{{ range until 50 }}{{ $s = replace "x" "xx" $s }}{{ end }}{{ len $s }}`),
		template("printf", "a width of a billion", `{{ printf "%1000000000d" 1 }}`),
		template("indent", "a margin of a billion", `{{ indent 1000000000 "x" }}`),
		template("random", "a gigabyte of chance", `{{ randAlphaNum 1000000000 }}`),
		template("regex", "a pattern of ten billion states", `{{ regexMatch "((a{0,900}){0,900}){0,900}" "a" }}`),
		template("dict-self", "a map that is its own value, as YAML", `{{ $d := dict }}{{ $_ := set $d "a" $d }}`+object(`{{ toYaml $d | quote }}`)),
		template("dict-self-json", "the same, as JSON", `{{ $d := dict }}{{ $_ := set $d "a" $d }}`+object(`{{ toJson $d | quote }}`)),
		template("dict-self-copy", "the same, copied", `{{ $d := dict }}{{ $_ := set $d "a" $d }}{{ $c := deepCopy $d }}`+object("x")),
		template("dict-self-merge", "the same, merged with itself", `{{ $d := dict "b" (dict) }}{{ $_ := set $d "a" $d }}{{ $c := mergeOverwrite $d (dict "a" $d) }}{{ toYaml $c }}`),
		template("dict-self-print", "the same, printed", `{{ $d := dict }}{{ $_ := set $d "a" $d }}{{ printf "%v" $d }}`),
		template("list-doubling", "a list that is joined with itself fifty times", `{{ $l := list 1 }}{{ range until 50 }}{{ $l = concat $l $l }}{{ end }}{{ len $l }}`),
		template("keys", "a certificate in each turn of a loop", `{{ range until 100000 }}{{ $c := genCA "x" 1 }}{{ end }}`),
		template("from-yaml", "anchors in a text that a template reads", `{{ $t := `+"`"+laughs(9)+"`"+` }}{{ len (toYaml (fromYaml $t)) }}{{ fail "it was read" }}`),
		template("from-json", "a hundred thousand levels in a text that a template reads", `{{ $t := repeat 100000 "[" }}{{ fromJsonArray (printf "%s%s" $t (repeat 100000 "]")) | toYaml }}`),
		template("file", "a file of the machine", object(`{{ required "no such file" (.Files.Get "`+o.file()+`") | quote }}`)),
		template("file-above", "a file above the chart", object(`{{ required "no such file" (.Files.Get "`+o.above(o.file())+`") | quote }}`)),
		template("environment", "the environment of the agent", object(`{{ env "KUBECONFIG" }}`)),
		template("host", "a name that is resolved, which tells who asks", object(`{{ required "no address" (getHostByName "canary.example.com") }}`)),
		template("syntax", "a template that is none", `{{ if }}`),
		template("nil", "a value of nothing", `{{ .Values.a.b.c.d.e }}`),
		template("index", "an item of index 4294967295", `{{ index (list 1) 4294967295 }}`),
		template("output", "fifty megabytes of objects", `{{ range until 50000 }}---`+"\n"+anyConfigMap+`data: {k: {{ repeat 1000 "x" }}}`+"\n"+`{{ end }}`),
		template("objects", "a hundred thousand objects", `{{ range $i := until 100000 }}---`+"\n"+`{apiVersion: v1, kind: ConfigMap, metadata: {name: a{{ $i }}}}`+"\n"+`{{ end }}`),
		chartOf("hooks", "twenty thousand hooks", map[string]string{"templates/a.yaml": `{{ range $i := until 20000 }}---` + "\n" + `{apiVersion: v1, kind: ConfigMap, metadata: {name: a{{ $i }}, annotations: {helm.sh/hook: pre-install}}, data: {k: {{ repeat 5000 "x" }}}}` + "\n" + `{{ end }}`}, ""),
		chartOf("notes", "notes without an end", map[string]string{"templates/a.yaml": configMap("a"), "templates/NOTES.txt": `{{ range until 2000000 }}{{ range until 2000000 }}x{{ end }}{{ end }}`}, ""),
		chartOf("files", "a loop over all files, and all of their content, a million times", map[string]string{"templates/a.yaml": `{{ range until 1000000 }}{{ range $p, $c := $.Files.Glob "**" }}{{ $x := $.Files.Get $p | b64enc | sha256sum }}{{ end }}{{ end }}`, "big.txt": strings.Repeat("x", 1<<20)}, ""),
		chartOf("api-version", "a Chart.yaml of no version", map[string]string{"templates/a.yaml": configMap("a"), "Chart.yaml": "name: app\nversion: not-a-version\n"}, ""),
		chartOf("values-dense", "two million keys without a value in values.yaml", map[string]string{"templates/a.yaml": configMap("a"), "values.yaml": "a: {" + strings.Repeat("b,", 2_000_000) + "}\n"}, ""),
		chartOf("values-list", "values that are no map", map[string]string{"templates/a.yaml": configMap("a"), "values.yaml": "[1, 2]\n"}, ""),
		chartOf("nulls", "null where there are lists", map[string]string{"templates/a.yaml": configMap("a"), "Chart.yaml": "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies: [null]\nmaintainers: [null]\n"}, ""),
		chartOf("name-above", "a chart that is named ..", map[string]string{"templates/a.yaml": configMap("a"), "Chart.yaml": "apiVersion: v2\nname: ..\nversion: 1.0.0\n"}, ""),
		schema("loop", "definitions that are each other", `{"$ref": "#/definitions/a", "definitions": {"a": {"allOf": [{"$ref": "#/definitions/b"}]}, "b": {"allOf": [{"$ref": "#/definitions/a"}]}}}`),
		schema("deep", "twenty thousand levels", strings.Repeat(`{"properties":{"a":`, 20000)+"{}"+strings.Repeat("}}", 20000)),
		schema("doubling", "definitions each of which has the next twice", doublingSchema(40)),
		schema("remote", "a part at a server inside", `{"$ref": "`+o.inside.URL+`/schema.json"}`),
		schema("file", "a part in a file of the machine", `{"$ref": "file://`+o.file()+`"}`),
		schema("meta", "a language of its own, at a server inside", `{"$schema": "`+o.inside.URL+`/meta.json", "type": "object"}`),
		schema("id", "an address of its own, to which parts are relative", `{"$id": "`+o.inside.URL+`/a/", "$ref": "b.json"}`),
		schema("pattern", "a pattern of ten billion states", `{"properties":{"a":{"properties":{"b":{"pattern":"((a{0,900}){0,900}){0,900}c"}}}}}`),
		schema("noise", "no schema", "{{{"),
		schema("types", "types that there are none of", `{"type": ["nothing", 5], "minimum": "x"}`),
		depends("itself", "itself", "{name: app, version: 1.0.0, repository: 'file://.'}", nil),
		depends("above", "a directory of the machine", "{name: x, version: 1.0.0, repository: 'file://"+o.above(o.dir)+"'}", nil),
		depends("absolute", "the same, from the root", "{name: x, version: 1.0.0, repository: 'file://"+o.dir+"'}", nil),
		depends("inside", "a repository inside", "{name: x, version: 1.0.0, repository: 'http://169.254.169.254/charts'}", nil),
		depends("alias", "an alias that is no name", "{name: x, version: 1.0.0, alias: '../x', repository: ''}", nil),
		depends("missing", "a chart that is not there", "{name: x, version: 1.0.0, repository: ''}", nil),
		depends("condition", "a range that is none", "{name: x, version: '>>>', repository: 'file://../x'}", nil),
	}
}

func doublingTemplates(n int) string {
	text := ""
	for i := range n {
		text += fmt.Sprintf("{{ define \"a%d\" }}{{ include \"a%d\" . }}{{ include \"a%d\" . }}{{ end }}", i, i+1, i+1)
	}
	return text + fmt.Sprintf("{{ define \"a%d\" }}x{{ end }}{{ include \"a0\" . }}", n)
}

func doublingSchema(n int) string {
	text := `{"$ref": "#/definitions/a0", "definitions": {`
	for i := range n {
		text += fmt.Sprintf(`"a%d": {"allOf": [{"$ref": "#/definitions/a%d"}, {"$ref": "#/definitions/a%d"}]}, `, i, i+1, i+1)
	}
	return text + fmt.Sprintf(`"a%d": {"type": "string"}}}`, n)
}

// expressions are those that tenants write in their objects.
func expressions(*outside) []fixture {
	var all []fixture
	doubling := `"x"` + strings.Repeat(`.replace("x", "xx")`, 40) + ` == "y"`
	joined := "data.k" + strings.Repeat(` + data.k`, 50)
	lists := "[1,2,3,4,5,6,7,8,9,10]"
	nested := lists
	for i := range 12 {
		nested = fmt.Sprintf("%s.map(x%d, %s)", lists, i, nested)
	}
	texts := map[string]struct{ reason, text string }{
		"doubling": {"a text that is doubled forty times", doubling},
		"loops":    {"twelve loops in each other", "size(" + nested + ") == 11"},
		"syntax":   {"no expression", "data.k =="},
		"type":     {"an expression that is no truth", "'text'"},
		"deep":     {"a thousand brackets", strings.Repeat("(", 1000) + "true" + strings.Repeat(")", 1000)},
		"unknown":  {"a function that there is none of", "open('/etc/passwd') == ''"},
		"regex":    {"a pattern of ten billion states", `"a".matches("((a{0,900}){0,900}){0,900}")`},
		"absent":   {"a field that is not there", "nothing.at.all == 1"},
		"joined":   {"a text of many, and then all of it again", "size(" + joined + ") < 0"},
	}
	for name, tt := range inOrder(texts) {
		f := builds("health-"+name, tt.reason+", for the health of an object", tree{"a.yaml": configMap("a")})
		f.objects = kustomizationOf(fmt.Sprintf("wait: true, healthCheckExprs: [{apiVersion: v1, kind: ConfigMap, current: %q}]", tt.text))
		// spec.timeout is half a minute at least, as in Flux, and until then the object may
		// become healthy.
		f.within = told + 15*time.Second
		f.tells = []string{"InvalidCELExpression", "HealthCheckFailed", "ReconciliationFailed", "BuildFailed"}
		all = append(all, f)
		r := builds("depend-"+name, tt.reason+", for what a dependency must be", tree{"a.yaml": configMap("a")})
		r.objects = manifests(strings.ReplaceAll(kustomizationOf(""), "name: bad", "name: first"), kustomizationOf(fmt.Sprintf("dependsOn: [{name: first, readyExpr: %q}]", tt.text)))
		r.tells = []string{"InvalidCELExpression", "DependencyNotReady", "ReconciliationFailed"}
		all = append(all, r)
	}
	for name, tt := range inOrder(texts) {
		f := chartOf("release-"+name, tt.reason+", for what a release depends on", map[string]string{"templates/a.yaml": configMap("a")}, fmt.Sprintf("dependsOn: [{name: first, readyExpr: %q}]", tt.text))
		f.objects = manifests(strings.ReplaceAll(chartOf("", "", nil, "").objects, "name: bad", "name: first"), f.objects)
		f.tells = []string{"InvalidCELExpression", "DependencyNotReady"}
		all = append(all, f)
	}
	return all
}
