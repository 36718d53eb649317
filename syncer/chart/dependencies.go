package chart

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"

	"github.com/cascade-gitops/cascade/syncer/source"
)

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

// access looks up the repositories of the dependencies that are not in the
// source, by their normalized URLs. A repository that cannot be found is an
// error only if the chart does not bring the dependency along.
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

// accessKey keeps apart builds that used different credentials.
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

// complete adds the dependencies that the chart does not bring along. Aliases
// and conditions are applied when the chart is rendered. Only several versions
// of one chart, which would be in the same place, get their aliases now.
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
	ctx := l.ctx
	if timeout := from[at].Timeout; timeout > 0 {
		within, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = within
	}
	chart, err := l.charts.find(ctx, l.spec.User, from[at].Repository, d.Name, d.Version, nil)
	if err != nil && from[at].Registry == nil && source.ReasonOf(err) == ReasonReference {
		// The index that is known is of when others asked for it. Nobody is told when the version comes.
		if err = l.charts.indexes.renew(ctx, l.spec.User, from[at].Repository); err == nil {
			chart, err = l.charts.find(ctx, l.spec.User, from[at].Repository, d.Name, d.Version, nil)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	build, err := l.charts.pull(ctx, chart, l.spec.Changed)
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
