package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"k8s.io/apimachinery/pkg/types"
)

// Kept keeps the last snapshot of each source in a directory that outlives the process.
// It is a memory for the time after a restart at which a source cannot be fetched.
// It is safe for concurrent use; calls for one source must not overlap.
//
// A file has all that the snapshot has: links and what is ignored, too. What is not read
// to its end, or not as it was written, is not used.
type Kept struct {
	dir    string
	limits limits

	mu sync.Mutex
	// written has the identity of what this process wrote of each source.
	written map[Key]string
}

// NewKept keeps in dir. What inflates to more than maxInflatedBytes is not kept.
func NewKept(dir string, maxInflatedBytes int64) *Kept {
	return &Kept{dir: dir, limits: limits{inflatedBytes: maxInflatedBytes, entriesMost: MaxEntries}, written: map[Key]string{}}
}

// keptVersion is the form of the files. Others are taken to be absent.
const keptVersion = "cascade.dev/kept-snapshot-1"

// keptAs is the first file in the archive.
type keptAs struct {
	Version string `json:"version"`
	// UID is that of the source's object: one that was created again is another one.
	UID      types.UID `json:"uid"`
	Revision string    `json:"revision"`
	// Recorded is the digest by which the status of the source has it, that of an archive where sources are packed: one
	// revision may have several contents. It is empty where nothing is said.
	Recorded       string            `json:"recorded,omitempty"`
	OriginRevision string            `json:"originRevision,omitempty"`
	Commit         string            `json:"commit,omitempty"`
	Digest         string            `json:"digest"`
	File           string            `json:"file,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	Subject        string            `json:"subject,omitempty"`
	Time           time.Time         `json:"time"`
	// Ruled: there are ignore rules. Own are those that are not in the tree.
	Ruled bool    `json:"ruled"`
	Own   *string `json:"own,omitempty"`
}

// Names in the archive. The last entry says that it is whole.
const (
	keptHead   = "snapshot.json"
	keptTree   = "tree/"
	keptPacked = "packed"
	keptEnd    = "end"
	// keptHeadMost bounds the first file.
	keptHeadMost = 4 << 20
)

// Put keeps the snapshot of a source, which its status has by a digest, in place of the one before. What
// is kept already is not written again.
func (k *Kept) Put(ctx context.Context, key Key, uid types.UID, s *Snapshot, recorded string) (err error) {
	as := keptAs{
		Version: keptVersion, UID: uid, Revision: s.Revision, Recorded: recorded, OriginRevision: s.OriginRevision, Commit: s.Commit,
		Digest: s.Digest, File: s.File, Metadata: s.Metadata, Subject: s.Subject, Time: s.Time, Ruled: s.rules.matcher != nil, Own: s.rules.own,
	}
	head, err := json.Marshal(as)
	if err != nil {
		return fmt.Errorf("cannot keep revision %s: %w", s.Revision, err)
	}
	identity := string(head) + s.root.id.String()
	k.mu.Lock()
	known := k.written[key]
	k.mu.Unlock()
	if known == identity {
		return nil
	}
	if err := k.write(ctx, k.file(key), head, s); err != nil {
		return fmt.Errorf("cannot keep revision %s: %w", s.Revision, err)
	}
	k.mu.Lock()
	k.written[key] = identity
	k.mu.Unlock()
	return nil
}

// Get returns what is kept of a source. It is nil if that is nothing, or is of another
// object or revision, or is recorded by another digest.
func (k *Kept) Get(ctx context.Context, key Key, uid types.UID, revision, recorded string) (*Snapshot, error) {
	f, err := os.Open(k.file(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what is kept: %w", err)
	}
	defer f.Close()
	s, err := k.read(ctx, f, uid, revision, recorded)
	if err != nil {
		return nil, fmt.Errorf("cannot read what is kept: %w", err)
	}
	return s, nil
}

// Remove forgets a source.
func (k *Kept) Remove(key Key) error {
	k.mu.Lock()
	delete(k.written, key)
	k.mu.Unlock()
	if err := os.Remove(k.file(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove what is kept: %w", err)
	}
	return nil
}

// Suffixes of a file, and of one that is being written.
const (
	keptSuffix = ".tar.gz"
	keptNext   = ".next"
)

// file of a source. Names of Kubernetes have no separators in them, and no underscore. Where
// one is too long for that of a file, its beginning and its sum stand for it.
func (k *Kept) file(key Key) string {
	const most = 255 - len(keptSuffix+keptNext)
	name := key.Name
	if len(name) > most {
		name = fmt.Sprintf("%s_%x", name[:most-1-2*sha256.Size], sha256.Sum256([]byte(name)))
	}
	return filepath.Join(k.dir, strings.ToLower(key.Kind), key.Namespace, name+keptSuffix)
}

// write writes a file and gives it its name when all of it is on the disk.
func (k *Kept) write(ctx context.Context, name string, head []byte, s *Snapshot) (err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	next := name + keptNext // one that a killed process left is written over
	f, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(next)
		}
	}()
	gz, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return err
	}
	w := &keptWriter{ctx: ctx, tar: tar.NewWriter(gz), left: k.limits.inflatedBytes}
	if err := w.snapshot(head, s); err != nil {
		return err
	}
	for _, end := range []func() error{w.tar.Close, gz.Close, f.Sync, f.Close} {
		if err := end(); err != nil {
			return err
		}
	}
	return os.Rename(next, name)
}

type keptWriter struct {
	ctx  context.Context
	tar  *tar.Writer
	left int64
}

func (w *keptWriter) snapshot(head []byte, s *Snapshot) error {
	if err := w.entry(tar.TypeReg, keptHead, 0, int64(len(head)), bytes.NewReader(head)); err != nil {
		return err
	}
	if err := w.dir(keptTree, s.root); err != nil {
		return err
	}
	if packed, ok := s.Packed(); ok {
		if err := w.entry(tar.TypeReg, keptPacked, 0, packed.Size(), packed); err != nil {
			return err
		}
	}
	return w.entry(tar.TypeReg, keptEnd, 0, 0, nil)
}

// Names may be any bytes, as in Git; the form PAX has them all.
func (w *keptWriter) entry(kind byte, name string, mode, size int64, content io.Reader) error {
	if w.left -= size; w.left < 0 {
		return failf(ReasonLimitExceeded, "it inflates to more than the limit")
	}
	if err := w.tar.WriteHeader(&tar.Header{Typeflag: kind, Name: name, Mode: mode, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	if content == nil {
		return nil
	}
	_, err := io.Copy(w.tar, contextReader{w.ctx, content})
	return err
}

// dir writes a directory and what is in it. A link is a file with its target, and has its
// mode to be known by. A submodule that was not fetched is nothing.
func (w *keptWriter) dir(at string, dir node) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	entries, err := dir.list()
	if err != nil {
		return err
	}
	if err := w.entry(tar.TypeDir, at, int64(filemode.Dir), 0, nil); err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case e.dir():
			err = w.dir(at+e.name+"/", e.node)
		case e.mode != filemode.Submodule:
			err = w.file(at+e.name, e.node)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *keptWriter) file(at string, n node) error {
	r, size, err := n.in.open(n)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", at, err)
	}
	defer r.Close()
	return w.entry(tar.TypeReg, at, int64(n.mode), size, r)
}

// read reads a file to its end. The snapshot is nil if it is not the one that is asked
// for.
func (k *Kept) read(ctx context.Context, file io.Reader, uid types.UID, revision, recorded string) (*Snapshot, error) {
	gz, err := gzip.NewReader(contextReader{ctx, file})
	if err != nil {
		return nil, err
	}
	most := k.limits.inflatedBytes + k.limits.inflatedBytes/4 + 64<<20 // of headers
	inflated := &limited{r: gz, left: most, max: most, what: "what is kept inflates to", flag: "remove it"}
	archive := tar.NewReader(inflated)
	var as keptAs
	header, err := archive.Next()
	if err != nil {
		return nil, err
	}
	if header.Name != keptHead || header.Size > keptHeadMost {
		return nil, errors.New("it does not begin as it was written")
	}
	if err := json.NewDecoder(archive).Decode(&as); err != nil {
		return nil, err
	}
	if as.Version != keptVersion || as.UID != uid || as.Revision != revision || as.Recorded != "" && as.Recorded != recorded {
		return nil, nil
	}
	tree, packed, err := k.tree(ctx, archive)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{
		Revision: as.Revision, OriginRevision: as.OriginRevision, Commit: as.Commit, Digest: as.Digest, File: as.File,
		Metadata: as.Metadata, Subject: as.Subject, Time: as.Time, root: tree, packed: packed, rules: &rules{id: "none"},
	}
	// What follows is the sum of the whole.
	if _, err := io.Copy(io.Discard, inflated); err != nil {
		return nil, err
	}
	if as.Ruled {
		if s.rules, err = newRules(s, as.Own, k.limits.entriesMost, nil); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// tree reads the entries behind the first.
func (k *Kept) tree(ctx context.Context, from *tar.Reader) (_ node, packed *spool, err error) {
	f, err := unnamed(k.dir)
	if err != nil {
		return node{}, nil, err
	}
	content := &archive{file: f, spans: map[id]span{}}
	defer func() {
		if err != nil {
			_ = f.Close()
			if packed != nil {
				packed.close()
			}
		}
	}()
	root := &folder{room: newRoom(k.limits.entriesMost)}
	var end int64
	for {
		header, err := from.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // the last entry is missing
			}
			return node{}, packed, err
		}
		switch name, below := strings.CutPrefix(header.Name, keptTree); {
		case below && header.Typeflag == tar.TypeDir:
			err = root.put(strings.TrimSuffix(name, "/"), nil)
		case below:
			var n node
			if n, end, err = content.add(from, end); err == nil {
				n.mode = filemode.FileMode(header.Mode)
				err = root.put(name, &n)
			}
		case header.Name == keptPacked:
			packed, err = newSpool(ctx, k.dir, from)
		case header.Name == keptEnd:
			content.buffer = nil
			top, err := root.node(0)
			return top, packed, err
		default:
			err = fmt.Errorf("it has the unknown entry %q", header.Name)
		}
		if err != nil {
			return node{}, packed, err
		}
	}
}
