package source

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// archive is the content of a tarball. The files are in one unpacked file without a
// name. The kernel removes it with the last snapshot, or with the process, however that
// ends.
type archive struct {
	root  node
	file  *os.File
	spans map[id]span
	// packed is the tarball itself, if it is kept.
	packed *spool
	// buffer is what files are copied with: an archive of many small ones would need one
	// for each.
	buffer []byte
}

// span is where a file's content is.
type span struct{ at, size int64 }

func (a *archive) list(node) (listing, error) {
	return nil, errors.New("it is no directory")
}

func (a *archive) open(n node) (io.ReadCloser, int64, error) {
	s, ok := a.spans[n.id]
	if !ok {
		return nil, 0, fmt.Errorf("the archive has no content %s", n.id)
	}
	return io.NopCloser(io.NewSectionReader(a.file, s.at, s.size)), s.size, nil
}

// readerOnly hides other methods, by which a reader would be copied with a buffer of its
// own.
type readerOnly struct{ io.Reader }

// add appends content at the end of the file, unless that is in it already. It returns
// the node of it, without a mode, and the end from then on.
func (a *archive) add(from io.Reader, end int64) (node, int64, error) {
	h := sha256.New()
	if a.buffer == nil {
		a.buffer = make([]byte, 32<<10)
	}
	size, err := io.CopyBuffer(io.MultiWriter(a.file, h), readerOnly{from}, a.buffer)
	if err != nil {
		return node{}, end, err
	}
	n := node{in: a}
	h.Sum(n.id[:0])
	if _, known := a.spans[n.id]; known {
		if _, err := a.file.Seek(end, io.SeekStart); err != nil {
			return node{}, end, fmt.Errorf("cannot write file: %w", err)
		}
		return n, end, nil
	}
	a.spans[n.id] = span{end, size}
	return n, end + size, nil
}

// unnamed returns a new file that has no name in any directory.
func unnamed(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create directory: %w", err)
	}
	f, err := os.CreateTemp(dir, "unnamed")
	if err != nil {
		return nil, fmt.Errorf("cannot create file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot remove name of file: %w", err)
	}
	return f, nil
}

// unpack reads a gzipped tarball. As in Flux, links are left out, and a name
// that leads elsewhere fails the whole. Equal content is kept once.
func unpack(ctx context.Context, packed io.Reader, dir string, inflatedMost int64, entriesMost int) (_ *archive, err error) {
	gz, err := gzip.NewReader(contextReader{ctx, packed})
	if err != nil {
		return nil, fmt.Errorf("cannot read archive: %w", err)
	}
	f, err := unnamed(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	a := &archive{file: f, spans: map[id]span{}}
	room := newRoom(entriesMost)
	root := &folder{room: room}
	inflated := &limited{r: gz, left: inflatedMost, max: inflatedMost, what: "the archive inflates to", flag: "shrink it"}
	reader := tar.NewReader(inflated)
	var end, unpacked int64
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read archive: %w", err)
		}
		if err := room.header(header.Name); err != nil {
			return nil, err
		}
		name, err := inside(header.Name)
		if err != nil {
			return nil, cannotUnpack(err)
		}
		mode := header.FileInfo().Mode()
		switch {
		case header.Typeflag == tar.TypeLink || header.Typeflag == tar.TypeSymlink:
		case mode.IsDir():
			if err := root.put(name, nil); err != nil {
				return nil, cannotUnpack(err)
			}
		case mode.IsRegular():
			// The holes of a sparse file are in no byte that was inflated.
			if unpacked += header.Size; unpacked > inflatedMost {
				return nil, tooLong("the archive inflates to", inflatedMost, "shrink it")
			}
			var n node
			if n, end, err = a.add(reader, end); err != nil {
				return nil, fmt.Errorf("cannot read %s of archive: %w", name, err)
			}
			n.mode = filemode.Regular
			if mode&0o111 != 0 {
				n.mode = filemode.Executable
			}
			if err := root.put(name, &n); err != nil {
				return nil, cannotUnpack(err)
			}
		default:
			return nil, failf(ReasonArtifactFailed, "cannot unpack %s: it is neither a file nor a directory", name)
		}
	}
	// What follows the end of the tarball has to be a whole stream too.
	if _, err := io.Copy(io.Discard, inflated); err != nil {
		return nil, fmt.Errorf("cannot read archive: %w", err)
	}
	a.buffer = nil
	if a.root, err = root.node(0); err != nil {
		return nil, err
	}
	return a, nil
}

func cannotUnpack(err error) error {
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	return failf(ReasonArtifactFailed, "cannot unpack: %w", err)
}

// maxNameBytes bounds what all names of an archive add up to. A name may have a
// megabyte, and takes a few bytes in a compressed archive.
const maxNameBytes = 64 << 20

// room is what the names of an archive may still take: headers and the directories that
// have none count alike.
type room struct{ headers, entries, names, most int }

func newRoom(entriesMost int) *room {
	return &room{entries: entriesMost, names: maxNameBytes, most: entriesMost}
}

// header counts an entry of the archive before its name is looked at.
func (r *room) header(name string) error {
	if r.headers++; r.headers > r.most+1 {
		return tooMany(r.most)
	}
	if r.names -= len(name); r.names < 0 {
		return failf(ReasonLimitExceeded, "the names in it have more than %d bytes", maxNameBytes)
	}
	if strings.Count(name, "/") > maxDepth+1 {
		return failf(ReasonLimitExceeded, "directories nest more than %d deep", maxDepth)
	}
	return nil
}

// entry counts a file or directory that is created.
func (r *room) entry() error {
	if r == nil {
		return nil
	}
	if r.entries--; r.entries < 0 {
		return tooMany(r.most)
	}
	return nil
}

// inside returns the clean path of a name, which must be relative and stay
// below.
func inside(name string) (string, error) {
	if name == "" || strings.HasPrefix(name, "/") || strings.ContainsAny(name, "\\\x00") {
		return "", fmt.Errorf("the name %q is not allowed", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("the name %q leads elsewhere", name)
		}
	}
	return clean(path.Clean(name)), nil
}

// folder is a directory that is being put together.
type folder struct {
	files map[string]node
	dirs  map[string]*folder
	// room is what all of it may take; nil if that is known to be little.
	room *room
}

// put records a file, or a directory if n is nil.
func (f *folder) put(name string, n *node) error {
	if name == "" {
		if n != nil {
			return errors.New("the root is a file")
		}
		return nil
	}
	part, rest, below := strings.Cut(name, "/")
	if !below && n != nil {
		if f.dirs[part] != nil {
			return fmt.Errorf("%s is a directory and a file", name)
		}
		if _, there := f.files[part]; !there {
			if err := f.room.entry(); err != nil {
				return err
			}
		}
		if f.files == nil {
			f.files = map[string]node{}
		}
		f.files[part] = *n
		return nil
	}
	if _, ok := f.files[part]; ok {
		return fmt.Errorf("%s is a directory and a file", name)
	}
	if f.dirs == nil {
		f.dirs = map[string]*folder{}
	}
	if f.dirs[part] == nil {
		if err := f.room.entry(); err != nil {
			return err
		}
		f.dirs[part] = &folder{room: f.room}
	}
	return f.dirs[part].put(rest, n)
}

func (f *folder) node(depth int) (node, error) {
	if depth > maxDepth {
		return node{}, failf(ReasonLimitExceeded, "directories nest more than %d deep", maxDepth)
	}
	entries := make(listing, 0, len(f.files)+len(f.dirs))
	for name, n := range f.files {
		entries = append(entries, entry{name, n})
	}
	for name, d := range f.dirs {
		n, err := d.node(depth + 1)
		if err != nil {
			return node{}, err
		}
		entries = append(entries, entry{name, n})
	}
	return compose(entries), nil
}
