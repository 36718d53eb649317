package chart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/ignore"

	"github.com/cascade-gitops/cascade/syncer/source"
)

const (
	// maxTreeDepth bounds how deep directories of a chart nest, also by links that
	// lead back.
	maxTreeDepth = 64
	// maxRulesBytes bounds .helmignore, each line of which is compared with each
	// file.
	maxRulesBytes = 64 << 10
)

// helmRules reads the .helmignore of a chart's directory.
func helmRules(s *source.Snapshot, dir string) (*ignore.Rules, error) {
	rules := ignore.Empty()
	data, err := s.ReadFile(path.Join(dir, ignore.HelmIgnore))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("cannot read %s: %w", ignore.HelmIgnore, err)
	case len(data) > maxRulesBytes:
		return nil, limitf("%s has %d bytes, more than %d", ignore.HelmIgnore, len(data), maxRulesBytes)
	default:
		if rules, err = ignore.Parse(bytes.NewReader(data)); err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", ignore.HelmIgnore, err)
		}
	}
	rules.AddDefaults()
	return rules, nil
}

// collect returns the files below a directory of a snapshot, sorted by name, without
// those that the rules ignore. Links are followed inside of the snapshot.
func collect(ctx context.Context, s *source.Snapshot, root string, rules *ignore.Rules, b *budget) ([]*archive.BufferedFile, error) {
	t := &tree{ctx: ctx, s: s, root: root, rules: rules, b: b}
	if err := t.dir("", 0); err != nil {
		return nil, err
	}
	sortFiles(t.files)
	return t.files, nil
}

type tree struct {
	ctx   context.Context
	s     *source.Snapshot
	root  string
	rules *ignore.Rules
	b     *budget
	files []*archive.BufferedFile
}

func (t *tree) ignored(name string, dir bool) bool {
	return t.rules != nil && t.rules.Ignore(name, kind(dir))
}

func (t *tree) dir(at string, depth int) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	if depth > maxTreeDepth {
		return limitf("the directories of the chart nest more than %d deep", maxTreeDepth)
	}
	entries, err := t.s.ReadDir(path.Join(t.root, at))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := strings.TrimPrefix(at+"/"+e.Name, "/")
		full := path.Join(t.root, name)
		dir := e.Dir
		if e.Link {
			if t.ignored(name, false) {
				continue
			}
			if dir, _, err = t.s.Stat(full); err != nil {
				return fmt.Errorf("cannot follow the symbolic link %s: %w", full, err)
			}
		}
		if t.ignored(name, dir) {
			continue
		}
		if _, err := inside(name); err != nil {
			return err
		}
		if dir {
			if err := t.b.take(name, 0); err != nil {
				return err
			}
			if err := t.dir(name, depth+1); err != nil {
				return err
			}
			continue
		}
		data, err := t.s.ReadFile(full)
		if err != nil {
			return err
		}
		if err := t.b.take(name, int64(len(data))); err != nil {
			return err
		}
		t.files = append(t.files, &archive.BufferedFile{Name: name, Data: bytes.TrimPrefix(data, bom)})
	}
	return nil
}

// kind is what the rules want to know of a file: whether it is a directory.
type kind bool

func (k kind) IsDir() bool { return bool(k) }
func (k kind) Mode() fs.FileMode {
	if k {
		return fs.ModeDir
	}
	return 0
}
func (kind) Name() string       { return "" }
func (kind) Size() int64        { return 0 }
func (kind) ModTime() time.Time { return time.Time{} }
func (kind) Sys() any           { return nil }
