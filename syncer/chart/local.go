package chart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/ignore"

	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Repositories returns the repository with a normalized URL. Its credential is
// one that the object that asks for the chart may use, because a dependency
// names none.
type Repositories func(ctx context.Context, normalized string) (Repository, error)

// FromSnapshot packages a chart that is in another source: in a directory, or
// packed. With byRevision the version has the revision of the source as its
// metadata. As long as the inputs of the chart are the same, it keeps the
// revision of the last build.
func (c *Charts) FromSnapshot(
	ctx context.Context, s *source.Snapshot, spec Spec, byRevision bool, repositories Repositories,
) (_ *Build, err error) {
	l := &local{charts: c, ctx: ctx, s: s, spec: spec, files: wanted(spec.ValuesFiles), at: clean(spec.Chart), repositories: repositories}
	used := map[string]bool{}
	defer func() {
		if err != nil {
			used = nil // the next attempt is not to find what this one found
		}
		c.indexes.retain(spec.User, used)
	}()
	m, inputs, err := l.made()
	if err != nil {
		return nil, err
	}
	version, err := withMetadata(m.Version, l.suffix(byRevision))
	if err != nil {
		return nil, err
	}
	if last := spec.Last; last != nil && !spec.Changed && last.Inputs == inputs && last.Name == m.Name {
		if last.Snapshot != nil {
			return last, nil
		}
		version = last.Version
	}
	if spec.is(m.Name, version) {
		return spec.Last, nil
	}
	found, err := l.access(m)
	if err != nil {
		return nil, err
	}
	for _, a := range found {
		used[a.key()] = true
	}
	key := digest.Of("local", inputs, version, fmt.Sprintf("%t %q", spec.IgnoreMissingValues, l.files), accessKey(found)).Hex()
	return c.make(ctx, key, func() (*Build, error) { return l.build(version, inputs, found) })
}

// Made is what a chart in a source is made of.
type Made struct {
	// Name and Version as the chart has them.
	Name, Version string
	// Inputs identifies the content: that of two commits is the same if one chart is made of both.
	Inputs string
}

// MadeOf tells what FromSnapshot would package, for those who only compare. Nothing is packaged, and no repository is asked.
func MadeOf(ctx context.Context, s *source.Snapshot, spec Spec, limits Limits) (Made, error) {
	l := &local{charts: &Charts{limits: limits}, ctx: ctx, s: s, spec: spec, files: wanted(spec.ValuesFiles), at: clean(spec.Chart)}
	m, inputs, err := l.made()
	if err != nil {
		return Made{}, err
	}
	return Made{Name: m.Name, Version: m.Version, Inputs: inputs}, nil
}

// made finds the chart, and tells what it says of itself and what it is made of.
func (l *local) made() (*helmchart.Metadata, string, error) {
	dir, hash, err := l.s.Stat(l.at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", failf(ReasonReference, "no chart found at path '%s' of revision %s", l.spec.Chart, l.s.Revision)
	}
	if err != nil {
		return nil, "", wrap(ReasonReference, fmt.Sprintf("cannot find chart at path '%s'", l.spec.Chart), err)
	}
	l.isDir = dir
	m, err := l.metadata()
	if err != nil {
		return nil, "", wrap(ReasonReference, fmt.Sprintf("cannot read chart at path '%s'", l.spec.Chart), err)
	}
	inputs, err := l.inputs(hash, m)
	if known := (*source.Error)(nil); errors.As(err, &known) {
		return nil, "", err
	}
	if err != nil {
		return nil, "", wrap(ReasonPackage, fmt.Sprintf("cannot read chart at path '%s'", l.spec.Chart), err)
	}
	return m, inputs, nil
}

// clean makes a path relative to the root of a source, which it cannot leave.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// local is one packaging of a chart in a source.
type local struct {
	charts       *Charts
	ctx          context.Context
	s            *source.Snapshot
	spec         Spec
	files        []string
	at           string
	isDir        bool
	repositories Repositories
}

func (l *local) metadata() (*helmchart.Metadata, error) {
	if l.isDir {
		return metadataOf(func(name string) ([]byte, error) { return l.s.ReadFile(path.Join(l.at, name)) })
	}
	data, err := l.packed()
	if err != nil {
		return nil, err
	}
	_, files, err := untar(l.ctx, bytes.NewReader(data), newBudget(l.charts.limits.File), identity)
	if err != nil {
		return nil, err
	}
	return metadataOf(func(name string) ([]byte, error) { return find(files, name) })
}

func (l *local) packed() ([]byte, error) {
	data, err := l.s.ReadFile(l.at)
	if err == nil && int64(len(data)) > l.charts.limits.Chart {
		err = limitf("%s has %d bytes, more than %d; raise --helm-chart-max-size or shrink it", l.at, len(data), l.charts.limits.Chart)
	}
	return data, err
}

// suffix of the version: the revision of the source, and the generation if there are
// values files, as Flux has them.
func (l *local) suffix(byRevision bool) string {
	var parts []string
	if byRevision {
		revision := l.s.Revision[strings.LastIndexAny(l.s.Revision, ":/@")+1:]
		parts = append(parts, revision[:min(12, len(revision))])
	}
	if len(l.files) > 0 {
		parts = append(parts, strconv.FormatInt(l.spec.Generation, 10))
	}
	return strings.Join(parts, ".")
}

// inputs identifies the content that the chart is built from: its directory
// with the targets of links, the values files, and the dependencies in the
// source. The chart is the same as long as those are, whatever else a commit
// changed.
func (l *local) inputs(hash string, m *helmchart.Metadata) (string, error) {
	parts := []string{"1", l.at, hash}
	if l.isDir {
		parts = append(parts, l.s.Rules())
	}
	follow := func(dir string) error {
		// An error in the rules is reported when they are used.
		rules, _ := helmRules(l.s, dir)
		w := &linked{ctx: l.ctx, s: l.s, root: dir, rules: rules, b: newBudget(0), found: func(name, hash string) { parts = append(parts, "link", name, hash) }}
		return w.dir("", 0)
	}
	if l.isDir {
		if err := follow(l.at); err != nil {
			return "", err
		}
		named, err := l.named(m)
		if err != nil {
			return "", err
		}
		for _, d := range named {
			at, ok := l.pathOf(d)
			if !ok {
				continue
			}
			dir, hash, err := l.s.Stat(at)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
			parts = append(parts, "dependency", at, hash)
			if dir && at != l.at {
				if err := follow(at); err != nil {
					return "", err
				}
			}
		}
	}
	for _, name := range l.files {
		_, hash, err := l.s.Stat(clean(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", failf(ReasonValues, "cannot read values file '%s': %w", name, err)
		}
		parts = append(parts, "values", name, hash)
	}
	return digest.Quoted(parts...).Hex(), nil
}

// linked finds the links below a directory, with the hash of what they lead to, which
// the directory's own hash does not cover.
type linked struct {
	ctx   context.Context
	s     *source.Snapshot
	root  string
	rules *ignore.Rules
	b     *budget
	found func(name, hash string)
}

func (w *linked) dir(at string, depth int) error {
	if depth > maxTreeDepth {
		return limitf("the directories of the chart nest more than %d deep", maxTreeDepth)
	}
	entries, err := w.s.ReadDir(path.Join(w.root, at))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		name, into := path.Join(at, e.Name), e.Dir
		if w.rules != nil && w.rules.Ignore(name, kind(into)) {
			continue
		}
		if err := w.b.take(name, 0); err != nil {
			return err
		}
		if e.Link {
			var hash string
			// A link without a target is an error only if the chart needs it, which a later
			// step finds out.
			into, hash, _ = w.s.Stat(path.Join(w.root, name))
			w.found(path.Join(w.root, name), hash)
		}
		if into {
			if err := w.dir(name, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *local) build(version, inputs string, from map[string]access) (*Build, error) {
	if !l.isDir && len(l.files) == 0 {
		data, err := l.packed()
		if err == nil {
			var build *Build
			if build, err = l.charts.fetched(l.ctx, data, ""); err == nil && build.Version == version {
				build.Inputs = inputs
				return l.charts.open(l.ctx, data, build)
			}
		}
		if err != nil {
			return nil, wrap(ReasonPull, fmt.Sprintf("cannot read chart at path '%s'", l.spec.Chart), err)
		}
	}
	b := newBudget(l.charts.limits.File)
	chart, err := l.load(l.at, b)
	if err != nil {
		return nil, wrap(ReasonPackage, fmt.Sprintf("cannot load chart at path '%s'", l.spec.Chart), err)
	}
	build := &Build{Inputs: inputs}
	chart.Metadata.Version = version
	if len(l.files) > 0 {
		var merged map[string]any
		merged, build.ValuesFiles, err = mergeValues(l.spec.ValuesFiles, l.spec.IgnoreMissingValues, func(name string) (map[string]any, error) {
			data, err := l.s.ReadFile(clean(name))
			if err == nil {
				err = b.take(name, int64(len(data)))
			}
			if err != nil {
				return nil, err
			}
			return b.values(data)
		})
		if err != nil {
			return nil, err
		}
		if err := setValues(chart, merged); err != nil {
			return nil, err
		}
	}
	if l.isDir {
		if build.Dependencies, build.parts, err = l.complete(chart, from, b); err != nil {
			return nil, err
		}
	}
	return l.charts.finish(l.ctx, chart, build)
}

// load reads a chart in the source, in a directory or packed.
func (l *local) load(at string, b *budget) (*helmchart.Chart, error) {
	dir, _, err := l.s.Stat(at)
	if err != nil {
		return nil, err
	}
	if dir {
		rules, err := helmRules(l.s, at)
		if err != nil {
			return nil, err
		}
		files, err := collect(l.ctx, l.s, at, rules, b)
		if err != nil {
			return nil, err
		}
		return assemble(l.ctx, files, b, kept)
	}
	data, err := l.s.ReadFile(at)
	if err != nil {
		return nil, err
	}
	_, files, err := untar(l.ctx, bytes.NewReader(data), b, nil)
	if err != nil {
		return nil, err
	}
	return assemble(l.ctx, files, b, kept)
}
