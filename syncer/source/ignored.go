package source

import (
	"errors"
	"io/fs"
)

// Ignored calls f with each file below a directory that the ignore rules exclude, while it
// wants more. read returns the content. A directory that is not there has none.
func (s *Snapshot) Ignored(dir string, f func(name string, read func() ([]byte, error)) (more bool)) error {
	at, n, err := s.resolve(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = s.ignored(at, n, f)
	return err
}

func (s *Snapshot) ignored(at string, dir node, f func(string, func() ([]byte, error)) bool) (more bool, err error) {
	if !dir.dir() {
		return true, nil
	}
	entries, err := dir.list()
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		below := join(at, e.name)
		switch {
		case e.dir():
			if more, err := s.ignored(below, e.node, f); err != nil || !more {
				return false, err
			}
		case e.mode.IsFile() && s.rules.excludes(below, false):
			if !f(below, func() ([]byte, error) { return e.read(below) }) {
				return false, nil
			}
		}
	}
	return true, nil
}
