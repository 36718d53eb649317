package chart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/ignore"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// Repositories returns the repository with a normalized URL, with the credential that
// whoever asks for the chart may use: a dependency names no credential.
type Repositories func(ctx context.Context, normalized string) (Repository, error)

// FromSnapshot packages a chart that is in another source: in a directory, or packed.
// With byRevision the version has the revision of the source as its metadata, but that
// of the last build as long as nothing changed that the chart is made of.
func (c *Charts) FromSnapshot(ctx context.Context, s *source.Snapshot, spec Spec, byRevision bool, repositories Repositories) (*Build, error) {
	l := &local{charts: c, ctx: ctx, s: s, spec: spec, files: wanted(spec.ValuesFiles), at: clean(spec.Chart), repositories: repositories}
	used := map[string]bool{}
	defer func() { c.indexes.retain(spec.User, used) }()
	dir, hash, err := s.Stat(l.at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failf(ReasonReference, "no chart found at path '%s' of revision %s", spec.Chart, s.Revision)
	}
	if err != nil {
		return nil, wrap(ReasonReference, fmt.Sprintf("cannot find chart at path '%s'", spec.Chart), err)
	}
	l.isDir = dir
	m, err := l.metadata()
	if err != nil {
		return nil, wrap(ReasonReference, fmt.Sprintf("cannot read chart at path '%s'", spec.Chart), err)
	}
	version, err := withMetadata(m.Version, l.suffix(byRevision))
	if err != nil {
		return nil, err
	}
	inputs, err := l.inputs(hash, m)
	if known := (*source.Error)(nil); errors.As(err, &known) {
		return nil, err
	}
	if err != nil {
		return nil, wrap(ReasonPackage, fmt.Sprintf("cannot read chart at path '%s'", spec.Chart), err)
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
	key := digestOf("local", inputs, version, fmt.Sprintf("%t %q", spec.IgnoreMissingValues, l.files), accessKey(found))
	return c.make(ctx, key, func() (*Build, error) { return l.build(version, inputs, found) })
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

// inputs identifies what the chart is made of: its directory with what links in it lead
// to, the values files, and the dependencies in the source. Where those are the same,
// the chart is, whatever else a commit changed.
func (l *local) inputs(hash string, m *helmchart.Metadata) (string, error) {
	parts := []string{"1", l.at, hash}
	if l.isDir {
		parts = append(parts, l.s.Rules())
	}
	follow := func(dir string) error {
		// What is wrong with the rules is found out when they are used.
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
	return digestOf(parts...), nil
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
			// Whether a link that leads nowhere matters is found out later.
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

// named are the dependencies that the chart and its lock file name.
func (l *local) named(m *helmchart.Metadata) ([]*helmchart.Dependency, error) {
	all := slices.Clone(m.Dependencies)
	for _, name := range []string{lockFile, requirementsLockFile} {
		data, err := l.s.ReadFile(path.Join(l.at, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lock, err := parseLock(data)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", name, err)
		}
		if lock != nil {
			all = append(all, lock.Dependencies...)
		}
	}
	return all, nil
}

// pathOf returns where in the source a dependency is; false for one that is not.
func (l *local) pathOf(d *helmchart.Dependency) (string, bool) {
	if d.Repository == "" {
		return clean(path.Join(l.at, "charts", d.Name)), true
	}
	u, err := url.Parse(d.Repository)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	return clean("/" + path.Join(l.at, u.Host, u.Path)), true
}

// access is a repository that a dependency names, or why there is none.
type access struct {
	Repository
	err error
}

// access looks up the repositories of the dependencies that are not in the source, by
// their normalized URLs. It matters that one cannot be had only if the chart does not
// bring along what is in it.
func (l *local) access(m *helmchart.Metadata) (map[string]access, error) {
	if !l.isDir {
		return nil, nil
	}
	named, err := l.named(m)
	if err != nil {
		return nil, failf(ReasonDependency, "%w", err)
	}
	found := map[string]access{}
	for _, d := range named {
		if _, ok := l.pathOf(d); ok {
			continue
		}
		at, err := dependencyURL(d)
		if err != nil {
			continue
		}
		if _, ok := found[at]; !ok {
			r, err := l.repositories(l.ctx, at)
			found[at] = access{r, err}
		}
	}
	return found, nil
}

// accessKey keeps apart what was made with different credentials.
func accessKey(found map[string]access) string {
	var keys []string
	for _, a := range found {
		if a.err == nil {
			keys = append(keys, a.key())
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, ",")
}

func dependencyURL(d *helmchart.Dependency) (string, error) {
	switch {
	case strings.HasPrefix(d.Repository, "@"), strings.HasPrefix(d.Repository, "alias:"):
		return "", fmt.Errorf("aliased repository dependency is not supported: %s", d.Repository)
	case !strings.HasPrefix(d.Repository, "http://") && !strings.HasPrefix(d.Repository, "https://") && !strings.HasPrefix(d.Repository, OCI+"://"):
		return "", errors.New("invalid dependency repository URL: its scheme is not one of http, https, oci, file")
	}
	return NormalizeURL(d.Repository)
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
			return parseValues(data)
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

// complete adds the dependencies that the chart does not bring along. Under which alias
// and condition they are used is decided when the chart is rendered; only of several
// versions of one chart, which would be in the same place, each gets its alias now.
func (l *local) complete(chart *helmchart.Chart, from map[string]access, b *budget) (added int, parts []*source.Snapshot, err error) {
	brought, done := chart.Dependencies(), map[string]bool{}
	wanted := wantedCharts(chart)
	kinds := map[string]map[string]bool{}
	for _, d := range wanted {
		if kinds[d.Name] == nil {
			kinds[d.Name] = map[string]bool{}
		}
		kinds[d.Name][d.Version+" "+d.Repository] = true
	}
	for _, d := range wanted {
		as := d.Name
		if d.Alias != "" && len(kinds[d.Name]) > 1 {
			as = d.Alias
		}
		there := slices.ContainsFunc(brought, func(c *helmchart.Chart) bool { return c.Name() == d.Name || d.Alias != "" && c.Name() == d.Alias })
		if there || done[as] {
			continue
		}
		done[as] = true
		kind := "remote"
		var sub *helmchart.Chart
		if at, ok := l.pathOf(d); ok {
			kind = "local"
			sub, err = l.nearby(d, at, b)
		} else {
			var part *source.Snapshot
			if sub, part, err = l.distant(d, from, b); err == nil {
				parts = append(parts, part)
			}
		}
		if err != nil {
			return 0, nil, wrap(ReasonDependency, fmt.Sprintf("failed to add %s dependency '%s'", kind, d.Name), err)
		}
		if as != d.Name {
			sub.Metadata.Name = as
		}
		chart.AddDependency(sub)
		added++
	}
	return added, parts, nil
}

// wantedCharts are the dependencies as the lock file has them, with the aliases of
// Chart.yaml, which a lock file does not have.
func wantedCharts(chart *helmchart.Chart) []*helmchart.Dependency {
	named := chart.Metadata.Dependencies
	if chart.Lock == nil {
		return named
	}
	locked := make([]*helmchart.Dependency, 0, len(chart.Lock.Dependencies))
	for i, d := range chart.Lock.Dependencies {
		copied := *d
		if i < len(named) && named[i].Name == d.Name && copied.Alias == "" {
			copied.Alias = named[i].Alias
		}
		locked = append(locked, &copied)
	}
	return locked
}

// nearby loads a dependency that is in the same source.
func (l *local) nearby(d *helmchart.Dependency, at string, b *budget) (*helmchart.Chart, error) {
	if at == "" || strings.HasPrefix(l.at+"/", at+"/") {
		return nil, fmt.Errorf("the chart at '/%s' has the chart that depends on it in it (reference '%s')", at, d.Repository)
	}
	sub, err := l.load(at, b)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no chart found at '/%s' (reference '%s')", at, d.Repository)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to load chart from '/%s' (reference '%s'): %w", at, d.Repository, err)
	}
	if d.Version == "" {
		return sub, nil
	}
	constraint, err := semver.NewConstraint(d.Version)
	if err != nil {
		return nil, fmt.Errorf("invalid version/constraint format '%s': %w", d.Version, err)
	}
	version, err := semver.NewVersion(sub.Metadata.Version)
	if err != nil {
		return nil, err
	}
	if !constraint.Check(version) {
		return nil, fmt.Errorf("can't get a valid version for constraint '%s': the chart has version %s", d.Version, version)
	}
	return sub, nil
}

// distant fetches a dependency from a repository.
func (l *local) distant(d *helmchart.Dependency, from map[string]access, b *budget) (*helmchart.Chart, *source.Snapshot, error) {
	at, err := dependencyURL(d)
	if err != nil {
		return nil, nil, err
	}
	if err := from[at].err; err != nil {
		return nil, nil, fmt.Errorf("failed to get its repository: %w", err)
	}
	chart, err := l.charts.find(l.ctx, l.spec.User, from[at].Repository, d.Name, d.Version, nil)
	if err != nil {
		return nil, nil, err
	}
	build, err := l.charts.pull(l.ctx, chart)
	if err != nil {
		return nil, nil, err
	}
	files, err := packaged(l.ctx, build.Snapshot, b, nil)
	if err != nil {
		return nil, nil, err
	}
	sub, err := assemble(l.ctx, files, b, kept)
	return sub, build.Snapshot, err
}
