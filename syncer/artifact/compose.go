package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// compose carries out the copy operations of an output, one after the other.
func (o output) compose(c *source.Composition, effort *source.Effort, snapshots map[string]*source.Snapshot) error {
	for _, op := range o.copies {
		if err := op.run(c, effort, snapshots[op.alias]); err != nil {
			return fmt.Errorf("cannot copy '@%s/%s' to '@artifact/%s': %w", op.alias, op.from, op.to, err)
		}
	}
	return nil
}

// buildError is an error about the files, which another revision may end.
type buildError struct{ err error }

func (e *buildError) Error() string { return e.err.Error() }
func (e *buildError) Unwrap() error { return e.err }

func buildf(format string, args ...any) error { return &buildError{fmt.Errorf(format, args...)} }

// isBuild reports whether an error is about the files, or a limit that they exceed.
func isBuild(err error) bool {
	var wrong *buildError
	var known *source.Error
	return errors.As(err, &wrong) || errors.As(err, &known)
}

// nothing says that there is nothing to copy, which is likely a path that is misspelt.
func nothing() error {
	return buildf("the source has no such file or directory; correct the path, or commit it")
}

func (op copying) run(c *source.Composition, effort *source.Effort, from *source.Snapshot) error {
	excludes, err := readExcludes(op.exclude)
	if err != nil {
		return err
	}
	dir, glob := split(op.from)
	if glob {
		return op.matching(c, effort, from, dir, excludes)
	}
	p, err := from.Piece(op.from)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && op.fromDir && !p.Dir():
		return nothing()
	case err != nil:
		return err
	case !p.Dir():
		to := op.to
		if op.toDir {
			to = path.Join(to, p.Name())
		}
		left, err := excludes.match(effort, op.from, p.Name())
		if err != nil || left {
			return err
		}
		return op.file(c, effort, to, p, false)
	case op.strategy == generatorv1.ExtractStrategy:
		return buildf("strategy Extract takes archives, and this is a directory; end the path with /*.tgz")
	}
	to := op.to
	if op.toDir {
		to = path.Join(to, p.Name())
	}
	return op.directory(c, effort, to, p, op.from, excludes)
}

// directory copies what is in a directory.
func (op copying) directory(c *source.Composition, effort *source.Effort, to string, dir source.Piece, at string, excludes excludes) error {
	if len(excludes) == 0 && op.strategy == generatorv1.OverwriteStrategy {
		some, err := c.Put(to, dir)
		if err == nil && !some {
			return nothing()
		}
		return err
	}
	some := false
	err := effort.Each(dir, func(name string, p source.Piece) (bool, error) {
		if p.Dir() {
			return true, nil
		}
		some = true
		left, err := excludes.match(effort, path.Join(at, name), name)
		if err != nil || left {
			return false, err
		}
		return false, op.file(c, effort, path.Join(to, name), p, true)
	})
	if err == nil && !some {
		return nothing()
	}
	return err
}

// matching copies the files that a pattern matches, by their paths below the directory that
// all of them are in.
func (op copying) matching(c *source.Composition, effort *source.Effort, from *source.Snapshot, at string, excludes excludes) error {
	dir, err := from.Piece(at)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !dir.Dir() {
		return nothing()
	}
	if err != nil {
		return err
	}
	if strings.TrimPrefix(op.from[len(at):], "/") == "**" && op.strategy != generatorv1.ExtractStrategy {
		return op.directory(c, effort, op.to, dir, at, excludes)
	}
	wanted, err := parsePattern(op.from)
	if err != nil {
		return err
	}
	deep := strings.Contains(op.from, "**")
	levels := strings.Count(strings.TrimPrefix(op.from[len(at):], "/"), "/")
	braces := strings.Contains(op.from, "{")
	some := false
	err = effort.Each(dir, func(name string, p source.Piece) (bool, error) {
		if p.Dir() {
			// Without two stars a pattern matches at one depth; braces may have several.
			return deep || braces || strings.Count(name, "/") < levels, nil
		}
		full := path.Join(at, name)
		matches, err := wanted.matches(effort, full)
		if err != nil || !matches {
			return false, err
		}
		some = true
		left, err := excludes.match(effort, full, name)
		if err != nil || left {
			return false, err
		}
		return false, op.file(c, effort, path.Join(op.to, name), p, true)
	})
	if err == nil && !some {
		return nothing()
	}
	return err
}

// file copies one file by the strategy. several says that it is one of those that a pattern
// or a directory has, of which the ones that the strategy is not for are treated as others.
func (op copying) file(c *source.Composition, effort *source.Effort, to string, p source.Piece, several bool) error {
	switch op.strategy {
	case generatorv1.ExtractStrategy:
		if !isArchive(p.Name()) {
			if several {
				return nil
			}
			return buildf("strategy Extract takes files that end in .tar.gz or .tgz")
		}
		return c.Extract(op.to, p)
	case generatorv1.MergeStrategy:
		if !isYAML(p.Name()) {
			if several {
				break
			}
			return buildf("strategy Merge takes files that end in .yaml or .yml")
		}
		there, ok, err := c.Read(to)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		with, err := p.Read()
		if err != nil {
			return err
		}
		// Parsing takes a microsecond for a few bytes.
		if err := effort.Spend(1 + (len(there)+len(with))>>2); err != nil {
			return err
		}
		merged, err := merge(there, with)
		if err != nil {
			return err
		}
		return c.Write(to, merged)
	}
	_, err := c.Put(to, p)
	return err
}

func isArchive(name string) bool {
	return strings.HasSuffix(name, ".tgz") || strings.HasSuffix(name, ".tar.gz")
}

func isYAML(name string) bool { return slices.Contains([]string{".yaml", ".yml"}, path.Ext(name)) }

// excludes are the patterns of what is not copied.
type excludes []exclude

type exclude struct {
	*pattern
	// name: it is about the name of a file, in whatever directory.
	name bool
}

func readExcludes(texts []string) (excludes, error) {
	var all excludes
	for _, text := range texts {
		text = strings.TrimPrefix(text, "./")
		p, err := parsePattern(text)
		if err != nil {
			return nil, err
		}
		all = append(all, exclude{p, !strings.Contains(text, "/")})
	}
	return all, nil
}

// match reports whether a file is excluded, by its path in the source, its path in the
// directory that is copied, or its name.
func (e excludes) match(effort *source.Effort, full, below string) (bool, error) {
	for _, x := range e {
		for _, at := range []string{full, below, path.Base(full)}[x.first():x.last()] {
			matches, err := x.matches(effort, at)
			if err != nil || matches {
				return matches, err
			}
		}
	}
	return false, nil
}

// first and last bound the forms of a path that a pattern is about.
func (x exclude) first() int {
	if x.name {
		return 2
	}
	return 0
}

func (x exclude) last() int {
	if x.name {
		return 3
	}
	return 2
}
