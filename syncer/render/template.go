package render

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/keep"
	"github.com/cascade-gitops/cascade/syncer/mask"
)

// keptVersions bounds the bytes of the versions of objects that a Template keeps besides
// those that all of its renderings share.
const keptVersions = 1 << 20

// met are keys of versions that were made once, the last one of each slot. What is made for the
// values of one cluster alone would fill the memory of a fleet with what nobody asks for again,
// so that a Template keeps what is made a second time. It is safe for concurrent use.
type met [2048]atomic.Uint32

// again reports whether the last key in the same slot was the same, and puts this one there.
func (o *met) again(key digest.Sum) bool {
	mark := binary.BigEndian.Uint32(key[4:])
	return o[binary.BigEndian.Uint32(key[:])%uint32(len(o))].Swap(mark) == mark
}

// Finish makes of an object what renderings of a Template share, and tells how many bytes
// that takes. It gets an object that nobody else has, which it may modify and keep.
type Finish[T any] func(*unstructured.Unstructured) (made T, size int, err error)

// Template is a build before variables are substituted, from which Render renders for any
// number of values. What Render returns is shared by renderings, and must not be
// modified: an object that mentions no variable is made once. Any other is made for the values
// of the variables that it mentions, and kept for a while when it is made for them again. A
// Template is safe for concurrent use.
type Template[T any] struct {
	build  Build
	finish Finish[T]
	reads  *ReadSet
	parts  []*part
	// fixed are the versions of the parts that are the same for all values, by their
	// places among parts; nil for others.
	fixed []*version[T]
	// count has how many parts are of an identity before substitution.
	count map[identity]int
	kept  keep.Recent[digest.Sum, *version[T]]
	met   met
	size  int
}

// Prepare builds what files and b declare, up to the substitution of variables. It
// ignores b.Variables and b.NoDigest: a rendering of a Template has no digest. Rendering
// the Template gives what Render gives, and the same errors. Only where an object cannot be
// decrypted, Render may name another object before it, in which variables cannot be
// substituted. The errors of Prepare are those of Render.
func Prepare[T any](ctx context.Context, files Files, b Build, finish Finish[T]) (*Template[T], error) {
	t := &Template[T]{build: b, finish: finish, count: map[identity]int{}}
	t.build.Variables, t.build.Sensitive, t.build.Decrypter, t.build.Workers = nil, nil, nil, nil
	reads, err := readingFrom(ctx, files, b, func(fsys *fileSystem, dir string) error {
		built, err := assemble(ctx, fsys, dir, b)
		if err != nil {
			return err
		}
		t.parts, err = partsOf(ctx, fsys, built, b)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.reads = reads
	t.fixed = make([]*version[T], len(t.parts))
	for n, p := range t.parts {
		t.count[p.is]++
		t.size += p.size()
		if p.expressions == nil {
			t.fixed[n] = t.finished(p.bare(t.build))
			t.size += t.fixed[n].size
			p.item = item{}
		}
	}
	return t, nil
}

// Reads is what the build depends on.
func (t *Template[T]) Reads() *ReadSet { return t.reads }

// Size is about how many bytes the Template takes, and may come to take.
func (t *Template[T]) Size() int { return t.size + keptVersions }

// Render puts the variables into the build. No error has one of the sensitive values in
// it. Every error is an *Error.
func (t *Template[T]) Render(values map[string]string, sensitive []string) ([]T, error) {
	made, err := t.render(values)
	if err != nil {
		return nil, &Error{Reads: t.reads, err: shorten(mask.Error(err, sensitive))}
	}
	return made, nil
}

func (t *Template[T]) render(values map[string]string) ([]T, error) {
	var vars *variables
	if len(values) > 0 || t.build.Always {
		vars = newVariables(Build{Variables: values, Lenient: t.build.Lenient})
	}
	ids := identities{before: t.count}
	versions := make([]*version[T], len(t.parts))
	for n, p := range t.parts {
		v, err := t.version(n, vars)
		if err != nil {
			return nil, err
		}
		if v.changed {
			if err := ids.change(p.is, v.is); err != nil {
				return nil, p.unsubstituted(err)
			}
			if v.nameless {
				return nil, p.unsubstituted(errNameless)
			}
		}
		versions[n] = v
	}
	return together(versions)
}

// version is what a part is with these variables. Its error is one that comes before all
// that is wrong with objects as such.
func (t *Template[T]) version(n int, vars *variables) (*version[T], error) {
	p := t.parts[n]
	switch {
	case p.unnamed:
		return nil, errUnnamed
	case vars != nil && !p.marked && vars.invalid != nil:
		return nil, p.unsubstituted(vars.invalid)
	case t.fixed[n] != nil:
		return t.fixed[n], nil
	}
	key := p.key(n, vars)
	if v, ok := t.kept.Get(key); ok {
		return v, nil
	}
	a, err := p.with(vars, t.build)
	if err != nil {
		return nil, p.unsubstituted(err)
	}
	v := t.finished(a)
	if v.failure == nil && t.met.again(key) {
		t.kept.Add(key, v, v.size, keptVersions)
	}
	return v, nil
}

// version is a part of a rendering, for values of the variables that it mentions.
type version[T any] struct {
	changed, nameless bool
	is                identity
	failure           *failure
	objects           []T
	size              int
}

// versionSize is about what a version takes besides its objects.
const versionSize = 500

// finished is what renderings share of what was made of a part.
func (t *Template[T]) finished(a attempt) *version[T] {
	v := &version[T]{changed: a.changed, nameless: a.nameless, is: a.is, failure: a.failure, size: versionSize}
	for _, u := range a.objects {
		object, size, err := t.finish(u)
		if err != nil {
			v.failure = &failure{finishing, err}
			break
		}
		v.objects, v.size = append(v.objects, object), v.size+size
	}
	return v
}

// together are the objects of all versions, or the failure that a rendering of all of them
// at once comes upon first.
func together[T any](versions []*version[T]) ([]T, error) {
	var first *failure
	count := 0
	for _, v := range versions {
		if v.failure != nil && (first == nil || v.failure.step < first.step) {
			first = v.failure
		}
		count += len(v.objects)
	}
	if first != nil {
		return nil, first.err
	}
	all := make([]T, 0, count)
	for _, v := range versions {
		all = append(all, v.objects...)
	}
	return all, nil
}

// identities counts the objects of each identity while objects change.
type identities struct {
	before, since map[identity]int
}

// change is the change of an object, which fails if it is now the same as another.
func (i *identities) change(was, is identity) error {
	if is != was {
		if i.since == nil {
			i.since = map[identity]int{}
		}
		i.since[was]--
		i.since[is]++
	}
	if i.before[is]+i.since[is] > 1 {
		return sameAs(is)
	}
	return nil
}

func sameAs(is identity) error {
	return fmt.Errorf("it is now the same as another object of this build: %s %s", is.kind, is.name)
}

// errUnnamed is about an object as it was built.
var errUnnamed = errors.New("cannot build: an object has no apiVersion, kind or metadata.name")

// key identifies the values of the variables that the part mentions.
func (p *part) key(n int, vars *variables) digest.Sum {
	if vars == nil {
		return digest.Of(strconv.Itoa(n), "bare")
	}
	values := make([]string, 1, 2*len(p.uses)+1)
	values[0] = strconv.Itoa(n)
	for _, name := range p.uses {
		is := "unset"
		value, ok := vars.values[name]
		if ok {
			is = "set"
		}
		values = append(values, is, value)
	}
	return digest.Of(values...)
}

// unsubstituted is why variables cannot be put into the part.
func (p *part) unsubstituted(err error) error {
	return fmt.Errorf("cannot substitute variables in %s %s: %w", p.kind, p.name, err)
}

// size is about how many bytes the part takes.
func (p *part) size() int {
	size := versionSize + len(p.kind) + len(p.name)
	if p.expressions != nil {
		// The text, what was read of it, and the tree of its variables.
		size += 8*len(p.expressions.text) + 100*strings.Count(p.expressions.text, "$")
	}
	return size
}
