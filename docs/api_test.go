package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the pages in docs/api anew")

// TestAPI: docs/api has a page for each kind of ours, made of its definition and its type:
// each field with what it is, its default, and what the API server refuses.
func TestAPI(t *testing.T) {
	words := commentsOf(t)
	pages := map[string]string{}
	var index strings.Builder
	for _, kind := range []any{v1alpha1.Layer{}, v1alpha1.Child{}, v1alpha1.Rollout{}, v1alpha1.Credential{}, v1alpha1.StateBackup{}} {
		page := kindPage{t: t, comments: words, seen: map[reflect.Type]bool{}}
		definition := page.write(reflect.TypeOf(kind))
		file := strings.ToLower(definition.Spec.Names.Kind) + ".md"
		pages[file] = page.text.String()
		fmt.Fprintf(&index, "| [`%s`](%s) | `%s` | %s |\n", definition.Spec.Names.Kind, file, definition.Spec.Names.Plural, cell(page.about))
	}
	pages["README.md"] = written + strings.Replace(apiIndex, "KINDS\n", index.String(), 1)
	dir := "api"
	if *update {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range pages {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, ok := pages[f.Name()]; !ok {
			t.Errorf("docs/api/%s is of a kind that there is not", f.Name())
		}
	}
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("docs/api lacks a page: %v", err)
			continue
		}
		if diff := cmp.Diff(string(got), want); diff != "" {
			t.Errorf("docs/api/%s is not what the types say; run: go test ./docs -run TestAPI -update\n-is, +want:\n%s", name, diff)
		}
	}
}

const (
	written  = "<!-- Written by TestAPI of docs. -->\n"
	apiIndex = `# The API

The kinds of group ` + "`cascade.dev`" + `, version ` + "`v1alpha1`" + `. Flux's kinds are as
[Flux's documentation](https://fluxcd.io/flux/components/) has them, with the differences that
[flux-compatibility.md](../flux-compatibility.md) names; Cluster API's are Cluster API's.

| kind | kubectl | is |
|---|---|---|
KINDS

An object is declared by its ` + "`spec`" + `; the agent writes the ` + "`status`" + `. Fields that a page does not have are refused by
` + "`kubectl apply`" + ` and by the agent. Durations are written as in ` + "`1h30m`" + `. Labels and annotations of these and of other
kinds that the agent reads are on the pages of what they are for; reasons of conditions are in [reasons.md](../reasons.md).
`
)

// comments are those of types, and of the values that a type of text has, in their order.
type comments struct {
	types  map[string]string
	values map[string][][2]string
}

// commentsOf reads the sources of the types.
func commentsOf(t *testing.T) comments {
	t.Helper()
	found := comments{map[string]string{}, map[string][][2]string{}}
	dir := filepath.Join("..", "api", "v1alpha1")
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no types: %v", err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					found.types[spec.Name.Name] = sentences(general.Doc)
				case *ast.ValueSpec:
					of, named := spec.Type.(*ast.Ident)
					if !named || len(spec.Values) != 1 {
						continue
					}
					literal, ok := spec.Values[0].(*ast.BasicLit)
					if !ok {
						continue
					}
					value, err := strconv.Unquote(literal.Value)
					if err != nil {
						continue
					}
					// What the value is called in code is not what it is called in YAML.
					about := strings.TrimLeft(strings.TrimPrefix(sentences(spec.Doc), spec.Names[0].Name), ": ")
					found.values[of.Name] = append(found.values[of.Name], [2]string{value, about})
				}
			}
		}
	}
	return found
}

// sentences are a comment in one line, without what generators read.
func sentences(doc *ast.CommentGroup) string {
	var lines []string
	for line := range strings.Lines(doc.Text()) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "+") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, " "))
}

// kindPage writes the page of one kind.
type kindPage struct {
	t        *testing.T
	comments comments
	text     strings.Builder
	about    string
	// seen are types that have a section, or will; waiting those that will.
	seen    map[reflect.Type]bool
	waiting []typeSection
}

type typeSection struct {
	of     reflect.Type
	schema apiextensionsv1.JSONSchemaProps
}

func (p *kindPage) write(kind reflect.Type) apiextensionsv1.CustomResourceDefinition {
	var definition apiextensionsv1.CustomResourceDefinition
	files, err := filepath.Glob(filepath.Join("..", "deploy", "crds", v1alpha1.GroupVersion.Group+"_*.yaml"))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			p.t.Fatal(err)
		}
		var read apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &read); err != nil {
			p.t.Fatalf("%s: %v", file, err)
		}
		if read.Spec.Names.Kind == kind.Name() {
			definition = read
		}
	}
	if len(definition.Spec.Versions) != 1 {
		p.t.Fatalf("%s has %d versions", kind.Name(), len(definition.Spec.Versions))
	}
	version := definition.Spec.Versions[0]
	p.about = p.comments.types[kind.Name()]
	fmt.Fprintf(&p.text, "%s# %s\n\n%s It is of `apiVersion: %s/%s`.\n", written, kind.Name(), p.about, definition.Spec.Group, version.Name)
	p.text.WriteString("\n| column of kubectl | shows |\n|---|---|\n")
	for _, c := range version.AdditionalPrinterColumns {
		wide := ""
		if c.Priority > 0 {
			wide = ", with `-o wide`"
		}
		fmt.Fprintf(&p.text, "| `%s`%s | `%s` |\n", strings.ToUpper(c.Name), wide, strings.TrimPrefix(c.JSONPath, "."))
	}
	root := version.Schema.OpenAPIV3Schema
	for _, field := range fieldsOf(kind) {
		if name := nameOf(field); name == "spec" || name == "status" {
			p.later(field.Type, root.Properties[name])
		}
	}
	for len(p.waiting) > 0 {
		next := p.waiting[0]
		p.waiting = p.waiting[1:]
		p.section(next.of, next.schema)
	}
	return definition
}

// later gives a type a section, unless it has one.
func (p *kindPage) later(of reflect.Type, schema apiextensionsv1.JSONSchemaProps) {
	if !p.seen[of] {
		p.seen[of] = true
		p.waiting = append(p.waiting, typeSection{of, schema})
	}
}

func (p *kindPage) section(of reflect.Type, schema apiextensionsv1.JSONSchemaProps) {
	fmt.Fprintf(&p.text, "\n## %s\n\n%s\n", of.Name(), p.described(of.Name(), p.comments.types[of.Name()]))
	if of.Kind() == reflect.String {
		p.text.WriteString("\n| value | means |\n|---|---|\n")
		values := p.comments.values[of.Name()]
		var admitted []string
		for _, v := range schema.Enum {
			var value string
			if err := yaml.Unmarshal(v.Raw, &value); err != nil {
				p.t.Fatal(err)
			}
			admitted = append(admitted, value)
		}
		var known []string
		for _, v := range values {
			known = append(known, v[0])
			fmt.Fprintf(&p.text, "| `%s` | %s |\n", v[0], cell(p.described(of.Name()+" "+v[0], v[1])))
		}
		if slices.Sort(admitted); !slices.Equal(admitted, slices.Sorted(slices.Values(known))) {
			p.t.Errorf("the API server admits %q as %s, and the type has %q", admitted, of.Name(), known)
		}
		return
	}
	for _, rule := range schema.XValidations {
		fmt.Fprintf(&p.text, "\n`%s`, or else: %s.\n", rule.Rule, rule.Message)
	}
	p.text.WriteString("\n| field | type | is |\n|---|---|---|\n")
	missing := maps.Clone(schema.Properties)
	for _, field := range fieldsOf(of) {
		name := nameOf(field)
		property, ok := schema.Properties[name]
		if !ok {
			p.t.Errorf("the definition of %s has no field %s", of.Name(), name)
			continue
		}
		delete(missing, name)
		kind := p.kindOf(field.Type, property)
		about := []string{p.described(of.Name()+"."+name, strings.Join(strings.Fields(property.Description), " "))}
		if slices.Contains(schema.Required, name) {
			about = append(about, "Required.")
		}
		about = append(about, bounds(property, kind)...)
		fmt.Fprintf(&p.text, "| `%s` | %s | %s |\n", name, kind, cell(strings.Join(about, " ")))
	}
	for name := range missing {
		p.t.Errorf("%s has no field %s, which its definition has", of.Name(), name)
	}
}

// described fails for what nobody described.
func (p *kindPage) described(of, text string) string {
	if len(strings.Fields(text)) < 2 {
		p.t.Errorf("%s is not described", of)
	}
	return text
}

// fieldsOf are those of a struct as YAML has them.
func fieldsOf(of reflect.Type) []reflect.StructField {
	var fields []reflect.StructField
	for i := range of.NumField() {
		field := of.Field(i)
		if field.Anonymous && nameOf(field) == "" && strings.HasSuffix(field.Type.PkgPath(), "api/v1alpha1") {
			fields = append(fields, fieldsOf(field.Type)...)
		} else if nameOf(field) != "" {
			fields = append(fields, field)
		}
	}
	return fields
}

func nameOf(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// kindOf is what a field holds, in words; types of ours get a section.
func (p *kindPage) kindOf(of reflect.Type, schema apiextensionsv1.JSONSchemaProps) string {
	ours := strings.HasSuffix(of.PkgPath(), "api/v1alpha1")
	switch name := of.Name(); {
	case of.Kind() == reflect.Pointer:
		return p.kindOf(of.Elem(), schema)
	case ours && (of.Kind() == reflect.Struct || len(schema.Enum) > 0):
		p.later(of, schema)
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	case name == "Time":
		return "time"
	case name == "Duration":
		return "duration"
	case name == "Quantity":
		return "quantity"
	case name == "IntOrString":
		return "number or text"
	case of.Kind() == reflect.Struct:
		return name + " of Kubernetes"
	case of.Kind() == reflect.Slice:
		return "list of " + p.kindOf(of.Elem(), *schema.Items.Schema)
	case of.Kind() == reflect.Map:
		return "map of " + p.kindOf(of.Elem(), *schema.AdditionalProperties.Schema)
	case of.Kind() == reflect.String:
		return "text"
	case of.Kind() == reflect.Bool:
		return "boolean"
	case of.Kind() == reflect.Int64, of.Kind() == reflect.Int32:
		return "number"
	}
	p.t.Fatalf("cannot describe type %s", of)
	return ""
}

// bounds are what the API server holds a field to, in sentences.
func bounds(schema apiextensionsv1.JSONSchemaProps, kind string) []string {
	var found []string
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if schema.Default != nil {
		say("By default `%s`.", strings.Trim(string(schema.Default.Raw), `"`))
	}
	if len(schema.Enum) > 0 && !strings.HasPrefix(kind, "[") {
		var values []string
		for _, v := range schema.Enum {
			values = append(values, "`"+strings.Trim(string(v.Raw), `"`)+"`")
		}
		say("One of %s.", strings.Join(values, ", "))
	}
	between := func(least, most *int64, what string) {
		switch {
		case least != nil && *least > 0 && most != nil:
			say("From %d to %d %s.", *least, *most, what)
		case least != nil && *least == 1:
			say("Not empty.")
		case least != nil && *least > 0:
			say("At least %d %s.", *least, what)
		case most != nil:
			say("At most %d %s.", *most, what)
		}
	}
	between(schema.MinLength, schema.MaxLength, "characters")
	between(schema.MinItems, schema.MaxItems, "entries")
	between(schema.MinProperties, schema.MaxProperties, "entries")
	switch {
	case schema.Minimum != nil && schema.Maximum != nil:
		say("From %v to %v.", *schema.Minimum, *schema.Maximum)
	case schema.Minimum != nil:
		say("At least %v.", *schema.Minimum)
	case schema.Maximum != nil:
		say("At most %v.", *schema.Maximum)
	}
	// That of durations and quantities is what they are.
	if schema.Pattern != "" && kind != "duration" && !strings.Contains(kind, "quantity") {
		say("Matches `%s`.", schema.Pattern)
	}
	if len(schema.XListMapKeys) > 0 {
		say("Each `%s` once.", strings.Join(schema.XListMapKeys, "`, `"))
	}
	if schema.XListType != nil && *schema.XListType == "set" {
		say("Each once.")
	}
	if schema.Items != nil && !strings.Contains(kind, "[") && !strings.Contains(kind, "Kubernetes") {
		for _, of := range bounds(*schema.Items.Schema, kind) {
			say("Each: %s", strings.ToLower(of[:1])+of[1:])
		}
	}
	// Those of an object are in its section.
	if schema.Type != "object" {
		for _, rule := range schema.XValidations {
			say("`%s`, or else: %s.", rule.Rule, rule.Message)
		}
	}
	return found
}

// cell is a text in a table.
func cell(text string) string {
	text = strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
	// What looks like HTML outside of code would not be shown.
	parts := strings.Split(text, "`")
	for i := range parts {
		if i%2 == 0 {
			parts[i] = strings.ReplaceAll(parts[i], "<", "&lt;")
		}
	}
	return strings.Join(parts, "`")
}
