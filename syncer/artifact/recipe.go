package artifact

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"

	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// MaxArtifacts bounds what one generator makes, with those of the directories that its
// pattern finds.
const MaxArtifacts = 1000

// maxExcludes bounds the patterns of one copy operation, as the CRD does.
const maxExcludes = 100

// recipe is what a generator asks for.
type recipe struct {
	sources   map[string]source.Key
	discovery *discovery
	outputs   []output
}

// output is one artifact. With a discovery it is one for each directory.
type output struct {
	name string
	// revision and origin are aliases, or empty.
	revision, origin string
	copies           []copying
	// labels are what a directory's path was found to have.
	labels map[string]string
}

// copying is one copy operation.
type copying struct {
	alias string
	// from is a path in the source, or a pattern of paths. fromDir says that it names a
	// directory.
	from    string
	fromDir bool
	// to is a path in the artifact. toDir says that files are put into it.
	to       string
	toDir    bool
	exclude  []string
	strategy string
}

// invalidError is an error that only a change of the spec can end.
type invalidError struct{ err error }

func (e *invalidError) Error() string { return e.err.Error() }
func (e *invalidError) Unwrap() error { return e.err }

func invalidf(format string, args ...any) error { return &invalidError{fmt.Errorf(format, args...)} }

func isInvalid(err error) bool {
	var invalid *invalidError
	return errors.As(err, &invalid)
}

// read makes a recipe of a spec. The error says that the spec is invalid.
func read(obj *generatorv1.ArtifactGenerator) (*recipe, error) {
	r := &recipe{sources: map[string]source.Key{}}
	for _, s := range obj.Spec.Sources {
		if _, twice := r.sources[s.Alias]; twice {
			return nil, invalidf("duplicate source alias '%s' found", s.Alias)
		}
		r.sources[s.Alias] = source.Key{Kind: s.Kind, NamespacedName: types.NamespacedName{Namespace: cmp.Or(s.Namespace, obj.Namespace), Name: s.Name}}
	}
	var err error
	if obj.Spec.PathPattern != "" {
		if r.discovery, err = readDiscovery(obj.Spec.PathPattern); err != nil {
			return nil, err
		}
		if _, ok := r.sources[r.discovery.alias]; !ok {
			return nil, invalidf("spec.pathPattern '%s' names a source alias that is not in spec.sources", obj.Spec.PathPattern)
		}
	}
	names := map[string]bool{}
	for _, a := range obj.Spec.OutputArtifacts {
		o, err := r.output(a)
		if err != nil {
			return nil, err
		}
		if names[o.name] {
			return nil, invalidf("duplicate artifact name '%s' found", o.name)
		}
		names[o.name] = true
		r.outputs = append(r.outputs, o)
	}
	if r.discovery == nil {
		for _, o := range r.outputs {
			if err := o.check(); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

func (r *recipe) output(a generatorv1.OutputArtifact) (output, error) {
	o := output{name: a.Name}
	var err error
	if o.revision, err = r.alias(a.Name, "revision", a.Revision); err != nil {
		return o, err
	}
	if o.origin, err = r.alias(a.Name, "originRevision", a.OriginRevision); err != nil {
		return o, err
	}
	for _, c := range a.Copy {
		op, err := r.copying(c)
		if err != nil {
			return o, invalidf("artifact '%s': %w", a.Name, err)
		}
		o.copies = append(o.copies, op)
	}
	return o, nil
}

// alias reads a reference to a source, @alias.
func (r *recipe) alias(artifact, field, text string) (string, error) {
	if text == "" {
		return "", nil
	}
	alias, ok := strings.CutPrefix(text, "@")
	if _, known := r.sources[alias]; !ok || !known {
		return "", invalidf("artifact '%s': %s '%s' names a source alias that is not in spec.sources", artifact, field, text)
	}
	return alias, nil
}

func (r *recipe) copying(c generatorv1.CopyOperation) (copying, error) {
	op := copying{exclude: c.Exclude, strategy: cmp.Or(c.Strategy, generatorv1.OverwriteStrategy)}
	switch op.strategy {
	case generatorv1.OverwriteStrategy, generatorv1.MergeStrategy, generatorv1.ExtractStrategy:
	default:
		return op, fmt.Errorf("strategy '%s' is not one of Overwrite, Merge, Extract", c.Strategy)
	}
	var ok bool
	if op.alias, op.from, ok = cutAlias(c.From); !ok {
		return op, fmt.Errorf("from '%s' is not @alias/path", c.From)
	}
	if _, known := r.sources[op.alias]; !known {
		return op, fmt.Errorf("from '%s' names a source alias that is not in spec.sources", c.From)
	}
	alias, to, ok := cutAlias(c.To)
	if !ok || alias != "artifact" {
		return op, fmt.Errorf("to '%s' is not @artifact/path", c.To)
	}
	op.to = to
	if len(op.exclude) > maxExcludes {
		return op, fmt.Errorf("from '%s' has more than %d patterns to exclude", c.From, maxExcludes)
	}
	return op, nil
}

// cutAlias splits @alias/path.
func cutAlias(text string) (alias, path string, ok bool) {
	text, ok = strings.CutPrefix(text, "@")
	if !ok {
		return "", "", false
	}
	return strings.Cut(text, "/")
}

// check completes an output whose names are those that are used.
func (o *output) check() error {
	if problems := validation.IsDNS1123Subdomain(o.name); len(problems) > 0 {
		return invalidf("artifact name '%s' is not valid: %s", o.name, problems[0])
	}
	for n := range o.copies {
		if err := o.copies[n].check(); err != nil {
			return invalidf("artifact '%s': %w", o.name, err)
		}
	}
	return nil
}

func (c *copying) check() error {
	from, to := c.from, c.to
	var err error
	if c.from, err = inside(from); err != nil {
		return fmt.Errorf("from '@%s/%s' %w", c.alias, from, err)
	}
	c.fromDir = from == "" || strings.HasSuffix(from, "/")
	if _, glob := split(c.from); glob {
		if c.fromDir {
			return fmt.Errorf("from '@%s/%s' is a pattern, and ends with a slash; end it with /** to copy what is in directories", c.alias, from)
		}
		if _, err := parsePattern(c.from); err != nil {
			return fmt.Errorf("from '@%s/%s': %w", c.alias, from, err)
		}
	}
	if strings.ContainsAny(to, special) {
		return fmt.Errorf("to '@artifact/%s' is a pattern; name one path", to)
	}
	if c.to, err = inside(to); err != nil {
		return fmt.Errorf("to '@artifact/%s' %w", to, err)
	}
	c.toDir = c.to == "" || strings.HasSuffix(to, "/")
	for _, text := range c.exclude {
		if _, err := parsePattern(strings.TrimPrefix(text, "./")); err != nil {
			return err
		}
	}
	return nil
}

// inside is a path or pattern without what does not count in it. It must be relative, and
// not lead elsewhere.
func inside(text string) (string, error) {
	if strings.HasPrefix(text, "/") {
		return "", errors.New("is not relative")
	}
	if strings.ContainsRune(text, 0) {
		return "", errors.New("has a character that no path has")
	}
	var parts []string
	for part := range strings.SplitSeq(text, "/") {
		switch part {
		case "..":
			return "", errors.New("leads elsewhere: it has '..'")
		case "", ".":
		default:
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/"), nil
}

// discovery is a pattern of directories with captures.
type discovery struct {
	alias, text string
	// segments are the names of directories, one below the other.
	segments []segment
}

// segment is the name of one directory.
type segment struct {
	literal string
	// re has a group for each of the captures; nil if the name is literal.
	re       *regexp.Regexp
	captures []string
}

// capture is a placeholder.
var capture = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// readDiscovery reads a pattern @alias/apps/{app}.
func readDiscovery(text string) (*discovery, error) {
	alias, path, ok := cutAlias(text)
	if !ok {
		return nil, invalidf("spec.pathPattern '%s' is not @alias/pattern", text)
	}
	clean, err := inside(path)
	if err != nil {
		return nil, invalidf("spec.pathPattern '%s' %w", text, err)
	}
	if clean == "" {
		return nil, invalidf("spec.pathPattern '%s' names no directory", text)
	}
	d := &discovery{alias: alias, text: text}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(clean, "/") {
		s := segment{literal: part}
		var re strings.Builder
		at := 0
		for _, m := range capture.FindAllStringSubmatchIndex(part, -1) {
			name := part[m[2]:m[3]]
			if seen[name] {
				return nil, invalidf("spec.pathPattern '%s' has the capture '%s' twice", text, name)
			}
			if problems := validation.IsQualifiedName(name); len(problems) > 0 {
				return nil, invalidf("spec.pathPattern '%s' has the capture '%s', which cannot be a label: %s", text, name, problems[0])
			}
			seen[name] = true
			re.WriteString(regexp.QuoteMeta(part[at:m[0]]) + "(.+)")
			s.captures = append(s.captures, name)
			at = m[1]
		}
		re.WriteString(regexp.QuoteMeta(part[at:]))
		if strings.ContainsAny(capture.ReplaceAllString(part, ""), "{}") {
			return nil, invalidf("spec.pathPattern '%s' has a brace that is no capture; write {name}", text)
		}
		if len(s.captures) > 0 {
			if s.re, err = regexp.Compile(`(?s)\A` + re.String() + `\z`); err != nil {
				return nil, invalidf("spec.pathPattern '%s' is not valid", text)
			}
		}
		d.segments = append(d.segments, s)
	}
	return d, nil
}

// find returns what the captures are in each directory that matches, in the order of their
// paths.
func (d *discovery) find(effort *source.Effort, s *source.Snapshot) ([]map[string]string, error) {
	root, err := s.Piece("")
	if err != nil {
		return nil, err
	}
	var found []map[string]string
	var below func(dir source.Piece, depth int, captured map[string]string) error
	below = func(dir source.Piece, depth int, captured map[string]string) error {
		if depth == len(d.segments) {
			for name, value := range captured {
				if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
					return invalidf("spec.pathPattern '%s' captures '%s' for '%s', which cannot be a label: %s", d.text, value, name, problems[0])
				}
			}
			if found = append(found, captured); len(found) > MaxArtifacts {
				return invalidf("spec.pathPattern '%s' matches more than %d directories", d.text, MaxArtifacts)
			}
			return nil
		}
		return effort.Each(dir, func(_ string, p source.Piece) (bool, error) {
			if !p.Dir() {
				return false, nil
			}
			seg, with := d.segments[depth], captured
			if seg.re == nil && p.Name() != seg.literal {
				return false, nil
			}
			if seg.re != nil {
				m := seg.re.FindStringSubmatch(p.Name())
				if m == nil {
					return false, nil
				}
				with = maps.Clone(captured)
				for n, name := range seg.captures {
					with[name] = m[n+1]
				}
			}
			return false, below(p, depth+1, with)
		})
	}
	err = below(root, 0, map[string]string{})
	return found, err
}

// expand returns the outputs of a recipe, those of each directory that its discovery finds.
// An error that isInvalid says that they cannot be named.
func (r *recipe) expand(effort *source.Effort, snapshots map[string]*source.Snapshot) ([]output, error) {
	if r.discovery == nil {
		return r.outputs, nil
	}
	found, err := r.discovery.find(effort, snapshots[r.discovery.alias])
	if err != nil {
		return nil, err
	}
	var all []output
	names := map[string]bool{}
	for _, captured := range found {
		for _, o := range r.outputs {
			filled, err := o.fill(captured)
			if err != nil {
				return nil, invalidf("spec.pathPattern '%s': %w", r.discovery.text, err)
			}
			if names[filled.name] {
				return nil, invalidf("spec.pathPattern '%s': several directories have artifact '%s'; they differ in what is no part of its name, or in case", r.discovery.text, filled.name)
			}
			names[filled.name] = true
			if all = append(all, filled); len(all) > MaxArtifacts {
				return nil, invalidf("spec.pathPattern '%s' makes more than %d artifacts", r.discovery.text, MaxArtifacts)
			}
		}
	}
	return all, nil
}

// fill puts what was captured in the place of the placeholders. Names and labels are in lower
// case; paths are as they are.
func (o output) fill(captured map[string]string) (output, error) {
	as := func(text string, lower bool) string {
		return capture.ReplaceAllStringFunc(text, func(m string) string {
			value, ok := captured[m[1:len(m)-1]]
			if !ok {
				return m
			}
			if lower {
				value = strings.ToLower(value)
			}
			return value
		})
	}
	filled := output{name: as(o.name, true), revision: o.revision, origin: o.origin, labels: map[string]string{}}
	for name, value := range captured {
		filled.labels[name] = strings.ToLower(value)
	}
	for _, c := range o.copies {
		c.from, c.to = as(c.from, false), as(c.to, false)
		filled.copies = append(filled.copies, c)
	}
	return filled, filled.check()
}
