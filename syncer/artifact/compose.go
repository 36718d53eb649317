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
	if dir, glob := split(op.from); glob {
		return op.matching(c, effort, from, dir, excludes)
	}
	p, err := from.Piece(op.from)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && op.fromDir && !p.Dir():
		return nothing()
	case err != nil:
		return err
	case !p.Dir():
		left, err := excludes.match(effort, op.from, "")
		if err != nil || left {
			return err
		}
		to := op.to
		into := op.toDir
		if !into {
			if into, err = c.Dir(to); err != nil {
				return err
			}
		}
		if into {
			to = path.Join(to, p.Name())
		}
		return op.file(c, effort, to, p, false)
	case op.strategy == generatorv1.ExtractStrategy:
		return buildf("strategy Extract takes archives, and this is a directory; end the path with /*.tgz")
	}
	// As source-watcher does: a directory keeps its name, whatever it is copied to.
	some, err := op.directory(c, effort, path.Join(op.to, p.Name()), p, op.from, op.from, excludes)
	if err == nil && !some {
		return nothing()
	}
	return err
}

// directory copies what is in a directory, which is at a path of the source. It is false for
// one without files. What is excluded may be told by its path below base.
func (op copying) directory(c *source.Composition, effort *source.Effort, to string, dir source.Piece, at, base string, excludes excludes) (bool, error) {
	if len(excludes) == 0 && op.strategy == generatorv1.OverwriteStrategy {
		return c.Put(to, dir)
	}
	some := false
	err := effort.Each(dir, func(name string, p source.Piece) (bool, error) {
		left, err := excludes.match(effort, path.Join(at, name), base)
		some = some || left || !p.Dir()
		if err != nil || left || p.Dir() {
			return !left, err
		}
		return false, op.file(c, effort, path.Join(to, name), p, true)
	})
	return some, err
}

// matching copies the files and directories that a pattern matches, all of which are in the
// directory base. They keep their paths; only what dir/** matches loses that of dir.
func (op copying) matching(c *source.Composition, effort *source.Effort, from *source.Snapshot, base string, excludes excludes) error {
	dir, err := from.Piece(base)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !dir.Dir() {
		return nothing()
	}
	if err != nil {
		return err
	}
	text, lost := op.from, ""
	rest := strings.TrimPrefix(text[len(base):], "/")
	if rest == "**" {
		lost = base
	}
	if strings.HasSuffix(text, "/**") {
		// What is in a directory, and neither itself nor a file of such a name.
		text += "/*"
	}
	wanted, err := parsePattern(text)
	if err != nil {
		return err
	}
	deep := strings.Contains(rest, "**") || strings.Contains(rest, "{")
	levels := strings.Count(rest, "/")
	some, kept := false, false
	err = effort.Each(dir, func(name string, p source.Piece) (bool, error) {
		full := path.Join(base, name)
		matches, err := wanted.matches(effort, full)
		if err != nil {
			return false, err
		}
		if !matches || p.Dir() && op.strategy == generatorv1.ExtractStrategy {
			// Without two stars a pattern matches at one depth; braces may have several.
			return deep || strings.Count(name, "/") < levels, nil
		}
		left, err := excludes.match(effort, full, base)
		if err != nil || left {
			some = true
			return false, err
		}
		to := path.Join(op.to, strings.TrimPrefix(full, lost))
		files := true
		if p.Dir() {
			files, err = op.directory(c, effort, to, p, full, base, excludes)
		} else {
			err = op.file(c, effort, to, p, true)
		}
		some, kept = some || files, kept || files
		return false, err
	})
	switch {
	case err != nil || kept:
		return err
	case some:
		return buildf("all that matches is excluded; correct from or exclude")
	}
	return nothing()
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
		if merged, err := mergeInto(c, effort, to, p); err != nil || merged {
			return err
		}
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
	// name: it is about the name of a file or a directory, wherever it is.
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

// match reports whether a file or a directory, with all that is in it, is excluded: by its
// path in the source, its path below base, or its name.
func (e excludes) match(effort *source.Effort, full, base string) (bool, error) {
	below := strings.TrimPrefix(full, base+"/")
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
