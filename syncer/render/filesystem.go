package render

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"sigs.k8s.io/kustomize/api/konfig"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// Files is a tree of files, as source.Snapshot is one. A path that is absent is
// an fs.ErrNotExist; any other error says that nothing is known.
type Files interface {
	// Stat tells what is at a path. The hash of a file stands for its content,
	// and that of a directory for all that is below it, before ignore rules.
	Stat(name string) (dir bool, hash string, err error)
	ReadDir(name string) ([]source.Entry, error)
	ReadFile(name string) ([]byte, error)
	// Rules identifies the ignore rules in force: with the same rules, a
	// directory of the same path and hash lists the same.
	Rules() string
}

// fileSystem reads Files for one build, rooted at "/". The kustomization file that the
// build begins with replaces the one in Files. Everything that is read through
// fileSystem has passed Check, and is recorded.
type fileSystem struct {
	ctx     context.Context
	files   Files
	reads   *recorder
	overlay map[string][]byte
	// contents are the files that were read and have passed.
	contents map[string][]byte
	// partly are files whose mappings were not looked at yet.
	partly map[string]bool
	// bringsSchema: a kustomization file that was read names an OpenAPI schema.
	bringsSchema bool
	// read counts the bytes of all files, and nodes what YAML there may be in them.
	read, nodes int
	// entered counts how often a directory was entered, by its kustomization file.
	entered int
	// added counts the nodes that aliases add in all files that were read: many files
	// with a few aliases each do as much harm as one with many.
	added int
	// failed is why the first file was refused or could not be read. kustomize treats
	// such a file as absent, which would give another rendering or another message.
	failed error
	// refused: failed is about the content of a file, and is permanent while the
	// content is the same.
	refused bool

	decrypter Decrypter
	// sealed are the files that the decrypter is to see, by path.
	sealed map[string]sealed
	// keys is why something could not be decrypted.
	keys error
	// passing: the build failed for what is not in its input.
	passing bool
}

func newFileSystem(ctx context.Context, files Files) *fileSystem {
	return &fileSystem{ctx: ctx, files: files, reads: newRecorder(files), overlay: map[string][]byte{}, contents: map[string][]byte{}, partly: map[string]bool{}}
}

func rooted(name string) string { return path.Clean("/" + filepath.ToSlash(name)) }

func (f *fileSystem) ReadFile(name string) ([]byte, error) {
	data, err := f.readFile(name)
	if err != nil {
		return nil, err
	}
	return data, f.whole(rooted(name), data)
}

// whole makes sure that a file has passed all of Check.
func (f *fileSystem) whole(at string, data []byte) error {
	if !f.partly[at] {
		return nil
	}
	delete(f.partly, at)
	if _, err := dissect(data); err != nil {
		f.refused = f.failed == nil
		return f.note(fmt.Errorf("cannot read %s: %w", at, err))
	}
	return nil
}

// readFile is ReadFile for callers that check the mappings of a file themselves, or that
// call whole before they pass the file on.
func (f *fileSystem) readFile(name string) ([]byte, error) {
	at := rooted(name)
	if data, ok := f.overlay[at]; ok {
		return f.checked(at, data)
	}
	data, ok := f.contents[at]
	if !ok {
		err := f.ctx.Err()
		if err == nil {
			err = f.reads.stat(at)
		}
		if err == nil {
			data, err = f.files.ReadFile(at)
		}
		if err != nil {
			return nil, f.note(err)
		}
		if data, err = f.checked(at, data); err != nil {
			return nil, err
		}
		if data, err = f.decrypted(at, data); err != nil {
			return nil, err
		}
		f.contents[at] = data
	}
	if isKustomization(path.Base(at)) {
		return f.kustomization(at, data)
	}
	return data, nil
}

// checked returns data if it may be read.
func (f *fileSystem) checked(at string, data []byte) ([]byte, error) {
	if err := f.check(at, data); err != nil {
		f.refused = f.failed == nil
		return nil, f.note(fmt.Errorf("cannot read %s: %w", at, err))
	}
	if _, ok := f.overlay[at]; ok && isKustomization(path.Base(at)) {
		return f.kustomization(at, data)
	}
	return data, nil
}

// kustomization returns the content of a kustomization file, and notes what it
// names that is encrypted.
func (f *fileSystem) kustomization(at string, data []byte) ([]byte, error) {
	if f.entered++; f.entered > MaxEntered {
		f.refused = f.failed == nil
		return nil, f.note(fmt.Errorf("%w: kustomization files take each other more than %d times; look for bases that are taken again and again", ErrHostile, MaxEntered))
	}
	if f.decrypter != nil {
		if err := f.seal(path.Dir(at), data); err != nil {
			f.refused = f.failed == nil
			return nil, f.note(fmt.Errorf("cannot read %s: %w", at, err))
		}
	}
	return data, nil
}

// note keeps an error unless it says that a file is absent.
func (f *fileSystem) note(err error) error {
	if f.failed == nil && err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.failed = err
	}
	return err
}

func (f *fileSystem) check(at string, data []byte) error {
	if err := f.count(at, data); err != nil {
		return err
	}
	// What is larger is no YAML by its name, or was refused: it goes to a worker unread.
	switch {
	case suspect(data) && nodes(data) <= MaxNodes:
		added, err := dissect(data)
		if err != nil {
			return err
		}
		f.added += added
	case crowded(data):
		f.partly[at] = true
	}
	if isKustomization(path.Base(at)) {
		added, bringsSchema, err := checkKustomization(data)
		if err != nil {
			return err
		}
		f.added += added
		f.bringsSchema = f.bringsSchema || bringsSchema
	}
	if f.added > MaxAdded {
		return fmt.Errorf("%w: aliases add more than %d nodes to the files read so far", ErrHostile, MaxAdded)
	}
	return nil
}

// count bounds what one rendering reads. Nodes are counted in what is read as YAML:
// what else there is goes to kustomize only.
func (f *fileSystem) count(at string, data []byte) error {
	if f.read += len(data); f.read > MaxBytes {
		return fmt.Errorf("%w: the files read so far have more than %d MiB; split them into several Kustomizations", ErrHostile, MaxBytes>>20)
	}
	if !isYAML(at) {
		return nil
	}
	n := nodes(data)
	if f.nodes += n; n > MaxNodes || f.nodes > MaxTotalNodes {
		return fmt.Errorf("%w: it may have more than %d nodes, or those read so far more than %d", ErrHostile, MaxNodes, MaxTotalNodes)
	}
	return nil
}

func isYAML(at string) bool {
	switch path.Ext(at) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return isKustomization(path.Base(at))
}

func isKustomization(base string) bool {
	return slices.Contains(konfig.RecognizedKustomizationFileNames(), base)
}

func (f *fileSystem) Exists(name string) bool {
	at := rooted(name)
	if _, ok := f.overlay[at]; ok {
		return true
	}
	_, _, err := f.stat(at)
	return f.note(err) == nil
}

func (f *fileSystem) stat(at string) (dir bool, hash string, err error) {
	if err := f.reads.stat(at); err != nil {
		return false, "", err
	}
	return f.files.Stat(at)
}

func (f *fileSystem) IsDir(name string) bool {
	at := rooted(name)
	if _, ok := f.overlay[at]; ok {
		return false
	}
	dir, _, err := f.stat(at)
	return f.note(err) == nil && dir
}

func (f *fileSystem) list(at string) ([]source.Entry, error) {
	if err := f.reads.list(at); err != nil {
		return nil, f.note(err)
	}
	entries, err := f.files.ReadDir(at)
	return entries, f.note(err)
}

// Walk calls visit for each file in lexical order. Symbolic links are left out, as they are
// from Flux's artifacts.
func (f *fileSystem) Walk(root string, visit filepath.WalkFunc) error {
	at := rooted(root)
	dir, _, err := f.stat(at)
	if err != nil {
		return visit(at, nil, f.note(err))
	}
	err = f.walk(at, dir, visit)
	if errors.Is(err, filepath.SkipDir) || errors.Is(err, filepath.SkipAll) {
		return nil
	}
	return err
}

func (f *fileSystem) walk(at string, dir bool, visit filepath.WalkFunc) error {
	if err := visit(at, fileInfo{name: path.Base(at), dir: dir}, nil); err != nil || !dir {
		return err
	}
	entries, err := f.list(at)
	if err != nil {
		return visit(at, fileInfo{name: path.Base(at), dir: dir}, err)
	}
	for _, e := range entries {
		if e.Link {
			continue
		}
		if err := f.walk(path.Join(at, e.Name), e.Dir, visit); err != nil {
			if errors.Is(err, filepath.SkipDir) {
				if !e.Dir {
					return nil
				}
				continue
			}
			return err
		}
	}
	return nil
}

type fileInfo struct {
	name string
	dir  bool
	size int64
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return i.size }
func (i fileInfo) ModTime() time.Time { return time.Time{} }
func (i fileInfo) IsDir() bool        { return i.dir }
func (i fileInfo) Sys() any           { return nil }
func (i fileInfo) Mode() os.FileMode {
	if i.dir {
		return os.ModeDir | 0o555
	}
	return 0o444
}
