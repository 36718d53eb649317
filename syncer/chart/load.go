package chart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// Names of the files that have a meaning of their own.
const (
	chartFile  = "Chart.yaml"
	lockFile   = "Chart.lock"
	valuesFile = "values.yaml"
	schemaFile = "values.schema.json"
	// As they were before Helm 3.
	requirementsFile     = "requirements.yaml"
	requirementsLockFile = "requirements.lock"
)

// Option of Load.
type Option func(*loading)

type loading struct {
	fileBytes int64
	schemas   schemas
}

// schemas says what is done with values.schema.json.
type schemas int

const (
	checked schemas = iota
	dropped
	// kept as it is, in a chart that is only packaged.
	kept
)

// WithFileMaxBytes bounds one file of the chart in place of DefaultFileMaxBytes.
func WithFileMaxBytes(most int64) Option {
	return func(l *loading) { l.fileBytes = most }
}

// WithoutSchemas leaves values.schema.json out, for a release that does not use it: a
// schema that refers to other hosts is then no failure.
func WithoutSchemas() Option {
	return func(l *loading) { l.schemas = dropped }
}

// Load returns the chart that is in a snapshot: in one directory at its root, as in a
// packaged chart, or packed as the only file. The caller owns the chart; Helm changes
// it. The error has the reason ChartPackageError or LimitExceeded.
func Load(ctx context.Context, s *source.Snapshot, options ...Option) (*helmchart.Chart, error) {
	l := &loading{fileBytes: DefaultFileMaxBytes}
	for _, o := range options {
		o(l)
	}
	b := newBudget(l.fileBytes)
	files, err := packaged(ctx, s, b, nil)
	if err == nil {
		var c *helmchart.Chart
		if c, err = assemble(ctx, files, b, l.schemas); err == nil {
			return c, nil
		}
	}
	return nil, wrap(ReasonPackage, fmt.Sprintf("cannot load chart of revision %s", s.Revision), err)
}

// wrap gives a failure its reason, unless it has one already.
func wrap(reason, doing string, err error) error {
	var known *source.Error
	if errors.As(err, &known) && known.Reason == source.ReasonLimitExceeded {
		reason = known.Reason
	}
	return failf(reason, "%s: %w", doing, err)
}

// packaged returns the files of the chart in a snapshot, of one that is a file those
// to keep.
func packaged(ctx context.Context, s *source.Snapshot, b *budget, keep func(name string) bool) ([]*archive.BufferedFile, error) {
	root, err := rootOf(s)
	if err != nil {
		return nil, err
	}
	if dir, _, err := s.Stat(root); err != nil || !dir {
		data, err := s.ReadFile(root)
		if err != nil {
			return nil, err
		}
		_, files, err := untar(ctx, bytes.NewReader(data), b, keep)
		return files, err
	}
	return collect(ctx, s, root, nil, b)
}

// rootOf returns the directory of the chart in a snapshot, or the only file.
func rootOf(s *source.Snapshot) (string, error) {
	entries, err := s.ReadDir("")
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(entries, func(e source.Entry) bool { return e.Name == chartFile }) {
		return "", errors.New("the root has Chart.yaml; put the directory of the chart into the archive, and not what is in it")
	}
	if len(entries) != 1 {
		return "", fmt.Errorf("there are %d files and directories at the root, and a chart is one directory", len(entries))
	}
	return entries[0].Name, nil
}

// assemble makes a chart of its files. What is packed in it is unpacked here, within
// the same limits, because Helm has none for all of it; and what Helm's libraries
// parse is checked before they see it.
func assemble(ctx context.Context, files []*archive.BufferedFile, b *budget, what schemas) (*helmchart.Chart, error) {
	files, err := flatten(ctx, files, b, 0)
	if err != nil {
		return nil, err
	}
	taken := make([]*archive.BufferedFile, 0, len(files))
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		dir, name := path.Split(f.Name)
		if !ownedByChart(dir) {
			taken = append(taken, f)
			continue
		}
		switch name {
		case chartFile, lockFile, valuesFile, requirementsFile, requirementsLockFile:
			if err := b.parse(f.Data); err != nil {
				return nil, fmt.Errorf("cannot read %s: %w", f.Name, err)
			}
		case schemaFile:
			if what == dropped {
				continue
			}
			if what == checked {
				if err := checkSchema(f.Data); err != nil {
					return nil, fmt.Errorf("cannot use %s: %w", f.Name, err)
				}
			}
		}
		taken = append(taken, f)
	}
	c, err := loader.LoadFiles(taken)
	if err != nil {
		return nil, err
	}
	if err := checkLocks(c); err != nil {
		return nil, err
	}
	sortCharts(c)
	return c, nil
}

// ownedByChart reports whether a directory is one that a chart is in: the root, or
// charts/<name>, or charts/<name>/charts/<name>, ...
func ownedByChart(dir string) bool {
	for dir != "" {
		rest, ok := strings.CutPrefix(dir, "charts/")
		if !ok {
			return false
		}
		if _, dir, ok = strings.Cut(rest, "/"); !ok {
			return false
		}
	}
	return true
}

// flatten unpacks the charts that are packed in a chart, where Helm looks for them.
func flatten(ctx context.Context, files []*archive.BufferedFile, b *budget, depth int) ([]*archive.BufferedFile, error) {
	if depth > maxNesting {
		return nil, limitf("charts nest more than %d deep", maxNesting)
	}
	flat := make([]*archive.BufferedFile, 0, len(files))
	for _, f := range files {
		if nesting(f.Name) > maxNesting {
			return nil, limitf("charts nest more than %d deep", maxNesting)
		}
		dir, name := path.Split(f.Name)
		parent, isCharts := strings.CutSuffix(dir, "charts/")
		if !isCharts || !ownedByChart(parent) || path.Ext(name) != ".tgz" || strings.IndexAny(name, "_.") == 0 {
			flat = append(flat, f)
			continue
		}
		_, packed, err := untar(ctx, bytes.NewReader(f.Data), b, nil)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", f.Name, err)
		}
		// The name tells Helm that it is a directory. It takes the name of the chart
		// from Chart.yaml.
		folder := f.Name + ".d/"
		if slices.ContainsFunc(files, func(other *archive.BufferedFile) bool { return strings.HasPrefix(other.Name, folder) }) {
			return nil, fmt.Errorf("cannot read %s: there is a directory %s", f.Name, folder)
		}
		for _, p := range packed {
			p.Name = folder + p.Name
		}
		packed, err = flatten(ctx, packed, b, depth+1)
		if err != nil {
			return nil, err
		}
		flat = append(flat, packed...)
	}
	return flat, nil
}

// nesting is how many charts a file is in, at most.
func nesting(name string) int { return strings.Count("/"+name, "/charts/") }

// checkLocks refuses errors in lock files, which no later step would find.
func checkLocks(c *helmchart.Chart) error {
	if c.Lock != nil && slices.Contains(c.Lock.Dependencies, nil) {
		return fmt.Errorf("the lock file of chart %q has an empty dependency", c.Name())
	}
	for _, sub := range c.Dependencies() {
		if err := checkLocks(sub); err != nil {
			return err
		}
	}
	return nil
}

// sortCharts brings dependencies into an order: Helm has them in one that changes.
func sortCharts(c *helmchart.Chart) {
	subs := slices.Clone(c.Dependencies())
	for _, sub := range subs {
		sortCharts(sub)
	}
	slices.SortStableFunc(subs, func(a, b *helmchart.Chart) int {
		if n := strings.Compare(a.Name(), b.Name()); n != 0 {
			return n
		}
		return strings.Compare(a.Metadata.Version, b.Metadata.Version)
	})
	c.SetDependencies(subs...)
}

// About is what a chart says of itself.
type About struct {
	Name, Version, AppVersion string
}

// Describe reads name and version of a chart in a snapshot, without loading the
// chart.
func Describe(ctx context.Context, s *source.Snapshot) (About, error) {
	m, err := metadata(ctx, s)
	if err != nil {
		return About{}, wrap(ReasonPackage, fmt.Sprintf("cannot read chart of revision %s", s.Revision), err)
	}
	return About{Name: m.Name, Version: m.Version, AppVersion: m.AppVersion}, nil
}

func metadata(ctx context.Context, s *source.Snapshot) (*helmchart.Metadata, error) {
	root, err := rootOf(s)
	if err != nil {
		return nil, err
	}
	if dir, _, err := s.Stat(root); err != nil || !dir {
		files, err := packaged(ctx, s, newBudget(DefaultFileMaxBytes), identity)
		if err != nil {
			return nil, err
		}
		return metadataOf(func(name string) ([]byte, error) { return find(files, name) })
	}
	return metadataOf(func(name string) ([]byte, error) { return s.ReadFile(root + "/" + name) })
}

func find(files []*archive.BufferedFile, name string) ([]byte, error) {
	for _, f := range files {
		if f.Name == name {
			return f.Data, nil
		}
	}
	return nil, fs.ErrNotExist
}

// metadataOf reads the metadata of a chart, also in the form of before Helm 3.
func metadataOf(read func(name string) ([]byte, error)) (*helmchart.Metadata, error) {
	m, b := &helmchart.Metadata{}, newBudget(0)
	for _, name := range []string{chartFile, requirementsFile} {
		data, err := read(name)
		if errors.Is(err, fs.ErrNotExist) && name == requirementsFile {
			break
		}
		if err == nil {
			err = b.parse(data)
		}
		if err == nil {
			err = yaml.Unmarshal(bytes.TrimPrefix(data, bom), m)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("no %s found", name)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot load %s: %w", name, err)
		}
		if m.APIVersion == "" {
			m.APIVersion = helmchart.APIVersionV1
		}
	}
	return m, m.Validate()
}

// readAll is io.ReadAll up to a limit.
func readAll(r io.Reader, most int64, err error) ([]byte, error) {
	return io.ReadAll(&capped{r: r, left: most, err: err})
}

// parseLock reads a lock file; nil if it is empty.
func parseLock(data []byte) (*helmchart.Lock, error) {
	if err := newBudget(0).parse(data); err != nil {
		return nil, err
	}
	var lock *helmchart.Lock
	if err := yaml.Unmarshal(bytes.TrimPrefix(data, bom), &lock); err != nil {
		return nil, err
	}
	if lock != nil && slices.Contains(lock.Dependencies, nil) {
		return nil, errors.New("it has an empty dependency")
	}
	return lock, nil
}
