package render

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/fluxcd/pkg/envsubst"
	"github.com/fluxcd/pkg/envsubst/parse"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/yaml"
)

// substituteMark is the label or annotation that takes an object out of
// substitution, with the value "disabled".
const substituteMark = "kustomize.toolkit.fluxcd.io/substitute"

const (
	// MaxExpressions bounds the variables in one object, and maxNested those
	// inside of each other: Flux's library recurses over both.
	MaxExpressions = 100_000
	maxNested      = 100
	// MaxSubstituted bounds the bytes that substitution makes of one object.
	MaxSubstituted = 32 << 20
)

// errSubstitution is wrapped by the errors of substitutions that would exhaust the
// process.
var errSubstitution = errors.New("refused substitution")

// errNameless: the rendering would lack the object without a word, and the next prune
// would delete it. Flux drops it.
var errNameless = errors.New("the object has no apiVersion, kind or metadata.name any more; give each variable in them a value")

var variableName = regexp.MustCompile(`^[_[:alpha:]][_[:alpha:][:digit:]]*$`)

// edit decrypts each object and then substitutes variables in it, object by object, as
// Flux does. An object that takes the identity that another has at that moment fails the
// build.
func edit(ctx context.Context, fsys *fileSystem, built []*item, b Build) error {
	var vars *variables
	if len(b.Variables) > 0 || b.Always {
		vars = newVariables(b)
	}
	edits := edits{built: built}
	for _, i := range built {
		if i.name() == "" || i.kind() == "" || i.apiVersion() == "" {
			return errUnnamed
		}
		if b.Decrypter != nil {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := edits.decrypt(ctx, i, b.Decrypter); err != nil {
				fsys.keys = err
				return fmt.Errorf("cannot decrypt %s %s: %w", i.kind(), i.name(), err)
			}
		}
		if vars == nil || i.marked(substituteMark, "disabled") {
			continue
		}
		kind, name := i.kind(), i.name()
		if err := edits.substitute(i, vars); err != nil {
			return fmt.Errorf("cannot substitute variables in %s %s: %w", kind, name, err)
		}
		if !isList(i.kind()) && (i.name() == "" || i.kind() == "" || i.apiVersion() == "") {
			return fmt.Errorf("cannot substitute variables in %s %s: %w", kind, name, errNameless)
		}
	}
	return nil
}

// edits keeps the identities of the objects while they change.
type edits struct {
	built []*item
	count map[identity]int
}

// change counts the identities anew after an object changed from what it was,
// and fails if it is now the same as another.
func (e *edits) change(i *item, was identity) error {
	is := i.identity()
	if e.count == nil {
		e.count = make(map[identity]int, len(e.built))
		for _, i := range e.built {
			e.count[i.identity()]++
		}
	} else if is != was {
		e.count[was]--
		e.count[is]++
	}
	if e.count[is] > 1 {
		return sameAs(is)
	}
	return nil
}

func (e *edits) decrypt(ctx context.Context, i *item, d Decrypter) error {
	sealed := i.kind() == "Secret"
	if i.resource != nil {
		sealed = sealed || i.resource.Field("sops") != nil
	} else {
		sealed = sealed || i.read[0].Object["sops"] != nil
	}
	if !sealed {
		return nil
	}
	was := i.identity()
	r := i.resource
	if r == nil {
		var err error
		if r, err = provider.NewDefaultDepProvider().GetResourceFactory().FromBytes(i.text); err != nil {
			return err
		}
	}
	var out *resource.Resource
	err := guarded(func() (err error) {
		out, err = d.Resource(ctx, r)
		return err
	})
	if err != nil || out == nil {
		return err
	}
	i.changed(out)
	return e.change(i, was)
}

func (e *edits) substitute(i *item, vars *variables) error {
	if vars.invalid != nil {
		return vars.invalid
	}
	text, err := i.yaml()
	if err != nil {
		return err
	}
	if quiet(text) && i.canonical() {
		return nil
	}
	was := i.identity()
	out, err := vars.put(string(text))
	if err != nil {
		return err
	}
	if out == string(text) && i.canonical() {
		return nil
	}
	r := i.resource
	if r == nil {
		r = &resource.Resource{}
	}
	if err := guarded(func() error {
		data, err := yaml.YAMLToJSON([]byte(out))
		if err != nil {
			return err
		}
		return r.UnmarshalJSON(data)
	}); err != nil {
		return err
	}
	i.changed(r)
	return e.change(i, was)
}

// canonical reports whether decoding the object's text and encoding it again, which
// substitution does to every object, is known not to change it. It may report false
// for an object that would stay the same.
func (i *item) canonical() bool {
	if i.plain {
		return true
	}
	objects, err := i.objects()
	if err != nil || len(objects) != 1 {
		return false
	}
	return tameTree(objects[0].Object)
}

// variables are what is put into objects.
type variables struct {
	values  map[string]string
	lenient bool
	// invalid: a name that no substitution can have.
	invalid error
}

func newVariables(b Build) *variables {
	v := &variables{values: make(map[string]string, len(b.Variables)), lenient: b.Lenient}
	first := ""
	for name, value := range b.Variables {
		if !variableName.MatchString(name) && (v.invalid == nil || name < first) {
			first = name
			v.invalid = fmt.Errorf("the variable name %q is invalid: it must match %s", name, variableName)
		}
		v.values[name] = strings.ReplaceAll(value, "\n", "")
	}
	return v
}

// put puts the variables into a text.
func (v *variables) put(text string) (string, error) { return expressionsOf(text).put(v) }

// expressions are a text with variables in it, read for any number of substitutions. It
// is immutable.
type expressions struct {
	text string
	// tree is nil, and template is not to be used, if the text cannot be read; err says
	// why no values can be put into it.
	tree     parse.Node
	template *envsubst.Template
	err      error
}

func expressionsOf(text string) *expressions {
	e := &expressions{text: text}
	if n := strings.Count(text, "$"); n > MaxExpressions {
		e.err = fmt.Errorf("%w: %d variables are more than the limit of %d", errSubstitution, n, MaxExpressions)
		return e
	}
	if nested(text) > maxNested {
		e.err = fmt.Errorf("%w: variables are nested deeper than %d", errSubstitution, maxNested)
		return e
	}
	tree, err := parse.Parse(text)
	if err == nil {
		e.tree = tree.Root
		e.template, err = envsubst.Parse(text)
	}
	if err != nil {
		e.err = fmt.Errorf("variable substitution failed: %w", err)
	}
	return e
}

// uses are the names of the variables that the text mentions, sorted. What becomes of it
// depends on the values of no others.
func (e *expressions) uses() []string {
	if e.err != nil {
		return nil
	}
	names := map[string]bool{}
	mentions(e.tree, map[string]bool{}, names)
	return sorted(names)
}

func (e *expressions) put(v *variables) (string, error) {
	if e.err != nil {
		return "", e.err
	}
	if v.bound(e.tree) > MaxSubstituted {
		return "", fmt.Errorf("%w: it could make more than %d bytes", errSubstitution, MaxSubstituted)
	}
	out, err := e.template.Execute(v.value)
	if err != nil {
		return "", fmt.Errorf("variable substitution failed: %w", err)
	}
	if err := Check([]byte(out)); err != nil {
		return "", err
	}
	return out, nil
}

// bound is an upper bound of the bytes that a node becomes, and that are needed
// on the way.
func (v *variables) bound(n parse.Node) int {
	switch n := n.(type) {
	case *parse.TextNode:
		return len(n.Value)
	case *parse.ListNode:
		sum := 0
		for _, child := range n.Nodes {
			sum = min(sum+v.bound(child), 1<<40)
		}
		return sum
	case *parse.FuncNode:
		args, last := 0, 0
		for _, a := range n.Args {
			last = v.bound(a)
			args = min(args+last, 1<<40)
		}
		// Letters can take more bytes in the other case, and bytes that are no
		// letters become three.
		value := 3 * len(v.values[n.Param])
		if !strings.HasPrefix(n.Name, "/") {
			return max(value, args)
		}
		times := 1
		if n.Name == "//" {
			times = value + 1
			if pattern, ok := n.Args[0].(*parse.TextNode); ok {
				times = strings.Count(v.values[n.Param], pattern.Value)
			}
		}
		return max(args, value+min(times*min(last, 1<<20), 1<<40))
	}
	return 0
}

// nested counts how deep variables are inside of each other.
func nested(text string) int {
	deepest, depth := 0, 0
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '$' && i+1 < len(text) && text[i+1] == '$':
			i++
		case text[i] == '$' && i+1 < len(text) && text[i+1] == '{':
			depth++
			deepest = max(deepest, depth)
		case text[i] == '}' && depth > 0:
			depth--
		}
	}
	return deepest
}

func (v *variables) value(name string) (string, bool) {
	value, ok := v.values[name]
	return value, ok || v.lenient
}
