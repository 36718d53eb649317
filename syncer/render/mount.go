package render

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// mountPoint is where kustomize sees the source. It is below the root so that a
// path which leaves the source is seen to do so.
const mountPoint = "/source"

var (
	errReadOnly = errors.New("the source is read-only")
	errOutside  = errors.New("the path leaves the source")
)

// mounted shows a fileSystem to kustomize, at mountPoint.
type mounted struct{ *fileSystem }

// at is the path in the source, or an error for one that is outside of it.
func (m mounted) at(name string) (string, error) {
	at := rooted(name)
	if at == mountPoint {
		return "/", nil
	}
	if rest, ok := strings.CutPrefix(at, mountPoint+"/"); ok {
		return "/" + rest, nil
	}
	return "", fmt.Errorf("cannot read %s: %w", at, errOutside)
}

// within is at for what fails the build if it is outside.
func (m mounted) within(name string) (string, error) {
	at, err := m.at(name)
	if err != nil {
		m.refused = m.refused || m.failed == nil
		return "", m.note(err)
	}
	return at, nil
}

func (m mounted) ReadFile(name string) ([]byte, error) {
	at, err := m.within(name)
	if err != nil {
		return nil, err
	}
	return m.fileSystem.ReadFile(at)
}

func (m mounted) Exists(name string) bool {
	at, err := m.at(name)
	return err == nil && m.fileSystem.Exists(at)
}

func (m mounted) IsDir(name string) bool {
	at, err := m.at(name)
	return err == nil && m.fileSystem.IsDir(at)
}

func (m mounted) CleanedAbs(name string) (filesys.ConfirmedDir, string, error) {
	at, err := m.within(name)
	if err != nil {
		return "", "", err
	}
	if m.fileSystem.IsDir(at) {
		return filesys.ConfirmedDir(path.Join(mountPoint, at)), "", nil
	}
	if !m.fileSystem.Exists(at) {
		return "", "", fmt.Errorf("'%s' doesn't exist in the source", at)
	}
	return filesys.ConfirmedDir(path.Join(mountPoint, path.Dir(at))), path.Base(at), nil
}

func (m mounted) ReadDir(name string) ([]string, error) {
	at, err := m.within(name)
	if err != nil {
		return nil, err
	}
	entries, err := m.list(at)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names, nil
}

func (m mounted) Walk(root string, visit filepath.WalkFunc) error {
	at, err := m.within(root)
	if err != nil {
		return visit(root, nil, err)
	}
	return m.fileSystem.Walk(at, func(at string, info fs.FileInfo, err error) error {
		return visit(path.Join(mountPoint, at), info, err)
	})
}

// opened is a file whose content is known.
func opened(name string, data []byte) filesys.File {
	return &openFile{Reader: bytes.NewReader(data), info: fileInfo{name: path.Base(rooted(name)), size: int64(len(data))}}
}

type openFile struct {
	*bytes.Reader
	info fileInfo
}

func (o *openFile) Close() error               { return nil }
func (o *openFile) Write([]byte) (int, error)  { return 0, errReadOnly }
func (o *openFile) Stat() (os.FileInfo, error) { return o.info, nil }
