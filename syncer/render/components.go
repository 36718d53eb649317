package render

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/envsubst/parse"
	"github.com/fluxcd/pkg/ssa/normalize"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// MaxComponents bounds a file of component manifests. Those of the largest
// provider have 3 MB.
const MaxComponents = 16 << 20

// spaced finds variables with blanks around the name, which clusterctl takes.
var spaced = regexp.MustCompile(`\$\{[ \t]*([A-Za-z0-9_]+)[ \t]*\}`)

// Components is a file of manifests with variables in it, as providers of Cluster API
// publish them. The variables are expanded before the text is parsed, unlike in a
// Kustomization: the text is not YAML before that. Components is immutable.
type Components struct {
	text string
	// needs are the variables without a default, and uses all of them.
	needs, uses []string
}

// Uses are the names of the variables that the file mentions, sorted. The
// objects depend on the values of no others.
func (c *Components) Uses() []string { return c.uses }

// LoadComponents reads a file of component manifests. An *Error comes again with the same
// files.
func LoadComponents(files interface {
	ReadFile(name string) ([]byte, error)
}, name string) (*Components, error) {
	data, err := files.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{err: fmt.Errorf("%w: the source has no file %q", ErrPathNotFound, name)}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	if len(data) > MaxComponents {
		return nil, &Error{err: fmt.Errorf("cannot use %s: it has %d bytes, the limit is %d", name, len(data), MaxComponents)}
	}
	c := &Components{text: spaced.ReplaceAllString(string(data), "${$1}")}
	if nested(c.text) > maxNested {
		return nil, &Error{err: fmt.Errorf("cannot use %s: %w: variables are nested deeper than %d", name, errSubstitution, maxNested)}
	}
	tree, err := parse.Parse(c.text)
	if err != nil {
		return nil, &Error{err: fmt.Errorf("cannot find the variables of %s: %w", name, err)}
	}
	needs, uses := map[string]bool{}, map[string]bool{}
	mentions(tree.Root, needs, uses)
	c.needs, c.uses = sorted(needs), sorted(uses)
	return c, nil
}

// mentions collects the variables below a node. As in clusterctl, a variable is needed
// unless its first mention has a default.
func mentions(n parse.Node, needs, uses map[string]bool) {
	switch n := n.(type) {
	case *parse.ListNode:
		for _, child := range n.Nodes {
			mentions(child, needs, uses)
		}
	case *parse.FuncNode:
		if !uses[n.Param] && len(n.Args) == 0 {
			needs[n.Param] = true
		}
		uses[n.Param] = true
		for _, arg := range n.Args {
			// What is inside of a default is not needed.
			mentions(arg, map[string]bool{}, uses)
		}
	}
}

func sorted(set map[string]bool) []string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Missing are the variables that have no default and no value.
func (c *Components) Missing(values map[string]string) []string {
	var missing []string
	for _, name := range c.needs {
		if _, ok := values[name]; !ok {
			missing = append(missing, name)
		}
	}
	return missing
}

// Expand puts values into a text as into component manifests. A variable that
// is not set is an error unless it has a default.
func Expand(text string, values map[string]string) (string, error) {
	tree, err := parse.Parse(text)
	if err != nil {
		return "", fmt.Errorf("cannot find the variables: %w", err)
	}
	uses := map[string]bool{}
	mentions(tree.Root, map[string]bool{}, uses)
	v := newVariables(Build{Variables: only(values, sorted(uses))})
	if v.invalid != nil {
		return "", v.invalid
	}
	return v.put(text)
}

// only leaves the variables with these names.
func only(values map[string]string, names []string) map[string]string {
	left := make(map[string]string, len(names))
	for _, name := range names {
		if value, ok := values[name]; ok {
			left[name] = value
		}
	}
	return left
}

// Objects are what the file declares with these values, normalised. The caller
// owns them. Every error comes again with the same values, and may quote them:
// see Mask.
func (c *Components) Objects(values map[string]string) ([]*unstructured.Unstructured, error) {
	if missing := c.Missing(values); len(missing) > 0 {
		return nil, fmt.Errorf("variables are not set and have no default: %s", strings.Join(missing, ", "))
	}
	v := newVariables(Build{Variables: only(values, c.uses), Lenient: true})
	if v.invalid != nil {
		return nil, v.invalid
	}
	text, err := v.put(c.text)
	if err != nil {
		return nil, shorten(err)
	}
	objects, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil {
		return nil, shorten(fmt.Errorf("cannot parse the manifests: %w", err))
	}
	for _, u := range objects {
		filled(u)
	}
	if err := normalize.UnstructuredList(objects); err != nil {
		return nil, shorten(fmt.Errorf("cannot normalise the manifests: %w", err))
	}
	return objects, nil
}

// filled sets the keys of a Secret that have a null value to empty content. Credentials
// that a role replaces are null, and the pod mounts the keys all the same.
func filled(u *unstructured.Unstructured) {
	if !ssautil.IsSecret(u) {
		return
	}
	for _, field := range []string{"data", "stringData"} {
		values, _ := u.Object[field].(map[string]any)
		for key, value := range values {
			if value == nil {
				values[key] = ""
			}
		}
	}
}
