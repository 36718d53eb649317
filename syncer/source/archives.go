package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"time"
)

// Archives makes snapshots of gzipped tarballs, such as packaged charts. It is
// safe for concurrent use.
type Archives struct {
	dir    string
	limits limits
}

// NewArchives keeps files in dir, which have no names there. A tarball of more
// than maxBytes, or that inflates to more than maxInflatedBytes, is refused.
func NewArchives(dir string, maxBytes, maxInflatedBytes int64) *Archives {
	return &Archives{dir: dir, limits: limits{packBytes: maxBytes, inflatedBytes: maxInflatedBytes, entriesMost: MaxEntries}}
}

// About is what a snapshot says of itself, with the meaning of Snapshot's
// fields.
type About struct {
	Revision, OriginRevision string
	// File is a plain name with the suffix .tgz or .tar.gz.
	File     string
	Metadata map[string]string
	Time     time.Time
}

// Open reads a gzipped tarball to its end and returns what is in it, without
// links, as a snapshot that keeps the file as it is: its digest is that of the
// file, and Storage serves that file. An error has the reason ArtifactFailed or
// LimitExceeded, or is the reader's.
func (a *Archives) Open(ctx context.Context, r io.Reader, about About) (*Snapshot, error) {
	if err := allowed(about.File); err != nil {
		return nil, err
	}
	most := a.limits.packBytes
	file, err := newSpool(ctx, a.dir, &limited{r: r, left: most, max: most, what: "the archive has", flag: "shrink it"})
	if err != nil {
		return nil, wrapArtifact(about.File, err)
	}
	content, err := file.unpack(ctx, a.limits)
	if err != nil {
		file.close()
		return nil, wrapArtifact(about.File, err)
	}
	return &Snapshot{
		Revision: about.Revision, OriginRevision: about.OriginRevision, Digest: file.digest, Time: about.Time,
		File: about.File, Metadata: about.Metadata,
		root: content.root, rules: &rules{id: "none"}, packed: content.packed,
	}, nil
}

// allowed refuses names that are more than the name of a served file.
func allowed(name string) error {
	if servedType(name) == "" {
		return failf(ReasonArtifactFailed, "cannot store an artifact as %q: the name is not allowed", name)
	}
	return nil
}

// spool is a whole downloaded file, on disk and without a name. The kernel removes it
// with the last reference, or with the process, however that ends.
type spool struct {
	file   *os.File
	dir    string
	size   int64
	digest string
}

// newSpool reads to the end, and writes the same into the others.
func newSpool(ctx context.Context, dir string, r io.Reader, others ...io.Writer) (*spool, error) {
	f, err := unnamed(dir)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(append(others, f, h)...), contextReader{ctx, r})
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &spool{file: f, dir: dir, size: size, digest: "sha256:" + hex.EncodeToString(h.Sum(nil))}, nil
}

func (s *spool) reader() *io.SectionReader { return io.NewSectionReader(s.file, 0, s.size) }

func (s *spool) close() { _ = s.file.Close() }

// unpack reads what is in it.
func (s *spool) unpack(ctx context.Context, l limits) (*archive, error) {
	content, err := unpack(ctx, s.reader(), s.dir, l.inflatedBytes, l.entriesMost)
	if err != nil {
		return nil, err
	}
	content.packed = s
	return content, nil
}
