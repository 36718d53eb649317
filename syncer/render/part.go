package render

import (
	"context"
	"fmt"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/yaml"
)

// part is one object of a Template, before variables are substituted.
type part struct {
	// item is empty if the part is the same for all values. It must not be modified.
	item       item
	kind, name string
	is         identity
	// unnamed: it has no apiVersion, kind or name, of which nothing can be made.
	unnamed bool
	// marked: it says that nothing is to be substituted in it.
	marked bool
	// expressions are nil if substitution does not change the part. Even a text without
	// variables may be written in another way by it.
	expressions *expressions
	// uses are the variables that the part mentions.
	uses []string
	// canonical: what is the same as text after substitution stays as it is.
	canonical bool
}

// partsOf decrypts what was built, and makes parts of it.
func partsOf(ctx context.Context, fsys *fileSystem, built []*item, b Build) ([]*part, error) {
	edits := edits{built: built}
	for _, i := range built {
		if b.Decrypter == nil || unnamed(i) {
			break // no rendering gets beyond what is unnamed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := edits.decrypt(ctx, i, b.Decrypter); err != nil {
			fsys.keys = err
			return nil, fmt.Errorf("cannot decrypt %s %s: %w", i.kind(), i.name(), err)
		}
	}
	parts := make([]*part, 0, len(built))
	for _, i := range built {
		parts = append(parts, partOf(i))
	}
	return parts, nil
}

func unnamed(i *item) bool { return i.name() == "" || i.kind() == "" || i.apiVersion() == "" }

func partOf(i *item) *part {
	p := &part{
		kind: i.kind(), name: i.name(), is: i.identity(), unnamed: unnamed(i),
		marked: i.marked(substituteMark, "disabled"), canonical: i.canonical(),
	}
	text, err := i.yaml()
	switch {
	case p.marked:
	case err != nil:
		p.expressions = &expressions{err: err}
	case !quiet(text) || !p.canonical:
		p.expressions = expressionsOf(string(text))
		p.uses = p.expressions.uses()
	}
	// An error comes again when the objects are wanted.
	_, _ = i.objects()
	p.item = *i
	return p
}

// steps of a rendering: what fails in an earlier one is said, whatever object it is about.
type step int

const (
	readingBack step = iota
	unsealing
	normalising
	finishing
)

type failure struct {
	step step
	err  error
}

// attempt is what was made of a part.
type attempt struct {
	objects []*unstructured.Unstructured
	// changed: the part was substituted, and has the identity is now.
	changed, nameless bool
	is                identity
	failure           *failure
}

// bare is the part without substitution.
func (p *part) bare(b Build) attempt {
	i := p.item
	i.read = nil
	for _, u := range p.item.read {
		i.read = append(i.read, u.DeepCopy())
	}
	a := attempt{is: p.is}
	a.make(&i, b)
	return a
}

// with is the part with variables, nil for no substitution. An error says that they
// cannot be substituted.
func (p *part) with(vars *variables, b Build) (attempt, error) {
	if vars == nil {
		return p.bare(b), nil
	}
	out, err := p.expressions.put(vars)
	if err != nil {
		return attempt{}, err
	}
	if out == p.expressions.text && p.canonical {
		return p.bare(b), nil
	}
	i, err := substituted(out)
	if err != nil {
		return attempt{}, err
	}
	a := attempt{changed: true, nameless: !isList(i.kind()) && unnamed(i), is: i.identity()}
	a.make(i, b)
	return a, nil
}

// make makes the objects of an item, which it may modify.
func (a *attempt) make(i *item, b Build) {
	objects, err := i.objects()
	if err != nil {
		a.failure = &failure{readingBack, fmt.Errorf("cannot read the build: %w", err)}
		return
	}
	if err := unsealed(objects); err != nil {
		a.failure = &failure{unsealing, err}
		return
	}
	if err := normalized(objects); err != nil {
		a.failure = &failure{normalising, err}
		return
	}
	mark(objects, b)
	a.objects = objects
}

// substituted reads a text after substitution.
func substituted(text string) (*item, error) {
	i := &item{}
	return i, guarded(func() error {
		data, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			return err
		}
		if u := tameObject(data); u != nil {
			i.read = []*unstructured.Unstructured{u}
			return nil
		}
		i.resource = &resource.Resource{}
		return i.resource.UnmarshalJSON(data)
	})
}

// tameObject is the object in data that kustomize would give back as it is, if it read
// data, wrote it and read that; nil if there is a doubt.
func tameObject(data []byte) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil || u.IsList() || !identified(u) || ssautil.IsKustomization(u) || !tameTree(u.Object) {
		return nil
	}
	return u
}
