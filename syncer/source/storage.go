package source

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// Modes in a packed archive, whatever the source has.
const (
	fileMode       = 0o600
	executableMode = 0o700
	directoryMode  = 0o750
)

// artifactsKept is how many archives of one source are kept: the current one,
// and the one that a consumer may be about to fetch.
const artifactsKept = 2

// Storage packs snapshots for consumers outside this process and serves them
// under the URLs that Flux's source-controller uses. It is safe for concurrent
// use; calls for one source must not overlap.
type Storage struct {
	dir        string
	advertised string
	address    string

	mu sync.Mutex
	// packed has what was last packed of each source.
	packed map[Key]packed
}

type packed struct {
	snapshot *Snapshot
	artifact meta.Artifact
}

// NewStorage packs into dir and serves at address. The URLs that it gives out
// begin with advertised, a host with an optional port or a URL.
func NewStorage(dir, address, advertised string) *Storage {
	return &Storage{dir: dir, address: address, advertised: advertised, packed: map[Key]packed{}}
}

// Put packs the snapshot of a source and returns its artifact without a time.
// What was packed of the same snapshot before, and is still there, is returned
// as it is. The archive is the one that source-controller makes, byte for byte.
func (s *Storage) Put(ctx context.Context, key Key, snapshot *Snapshot) (*meta.Artifact, error) {
	s.mu.Lock()
	last, ok := s.packed[key]
	s.mu.Unlock()
	if ok && last.snapshot == snapshot {
		if info, err := os.Lstat(filepath.Join(s.dir, last.artifact.Path)); err == nil && info.Mode().IsRegular() && info.Size() == *last.artifact.Size {
			return last.artifact.DeepCopy(), nil
		}
	}
	at := path.Join(folderOf(key), snapshot.Commit+".tar.gz")
	digest, size, err := s.write(ctx, at, snapshot)
	if err != nil {
		return nil, fmt.Errorf("cannot pack revision %s: %w", snapshot.Revision, err)
	}
	artifact := meta.Artifact{Path: at, URL: s.url(at), Revision: snapshot.Revision, Digest: digest, Size: &size}
	s.mu.Lock()
	s.packed[key] = packed{snapshot, artifact}
	s.mu.Unlock()
	return artifact.DeepCopy(), s.collect(at)
}

// Remove deletes what is packed of a source.
func (s *Storage) Remove(key Key) error {
	s.mu.Lock()
	delete(s.packed, key)
	s.mu.Unlock()
	if err := os.RemoveAll(filepath.Join(s.dir, folderOf(key))); err != nil {
		return fmt.Errorf("cannot remove artifacts: %w", err)
	}
	return nil
}

func folderOf(key Key) string { return path.Join(strings.ToLower(key.Kind), key.Namespace, key.Name) }

func (s *Storage) url(at string) string {
	if strings.Contains(s.advertised, "://") {
		return strings.TrimSuffix(s.advertised, "/") + "/" + at
	}
	return "http://" + s.advertised + "/" + at
}

func (s *Storage) write(ctx context.Context, at string, snapshot *Snapshot) (digest string, size int64, err error) {
	target := filepath.Join(s.dir, at)
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return "", 0, err
	}
	f, err := os.CreateTemp(filepath.Dir(target), ".new")
	if err != nil {
		return "", 0, err
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	h := sha256.New()
	if err := Pack(ctx, io.MultiWriter(f, h), snapshot); err != nil {
		return "", 0, err
	}
	if size, err = f.Seek(0, io.SeekCurrent); err != nil {
		return "", 0, err
	}
	if err := f.Close(); err != nil {
		return "", 0, err
	}
	if err := os.Rename(f.Name(), target); err != nil {
		return "", 0, err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), size, nil
}

// collect removes all archives beside the one at this path but the newest.
func (s *Storage) collect(at string) error {
	dir := filepath.Join(s.dir, path.Dir(at))
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot list artifacts: %w", err)
	}
	var others []fs.FileInfo
	for _, f := range files {
		if info, err := f.Info(); err == nil && f.Name() != path.Base(at) {
			others = append(others, info)
		}
	}
	slices.SortFunc(others, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for i, info := range others {
		// What a killed process began has no other name.
		if i < artifactsKept-1 && !strings.HasPrefix(info.Name(), ".") {
			continue
		}
		if err := os.Remove(filepath.Join(dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove artifact: %w", err)
		}
	}
	return nil
}

// ServeHTTP implements http.Handler. It serves archives and nothing else: no
// listings, nothing outside of the directory, whatever links are in it.
func (s *Storage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if !fs.ValidPath(name) || strings.Count(name, "/") != 3 || !strings.HasSuffix(name, ".tar.gz") || strings.HasPrefix(path.Base(name), ".") {
		http.NotFound(w, r)
		return
	}
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/gzip")
	http.ServeContent(w, r, "", info.ModTime(), f)
}

// NeedLeaderElection makes only the agent that works serve: what another one
// has may be old.
func (s *Storage) NeedLeaderElection() bool { return true }

// Start serves until ctx ends.
func (s *Storage) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("cannot serve artifacts at %s: %w", s.address, err)
	}
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 5 * time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve artifacts: %w", err)
	}
	return nil
}

// Pack writes a snapshot as a gzipped tarball by Flux's rules: sorted, without
// links, times and owners, with fixed modes. Equal content is equal bytes.
func Pack(ctx context.Context, w io.Writer, s *Snapshot) error {
	gz := gzip.NewWriter(w)
	p := packer{ctx: ctx, tar: tar.NewWriter(gz), rules: s.rules}
	if err := p.header(&tar.Header{Typeflag: tar.TypeDir, Name: ".", Mode: directoryMode}); err != nil {
		return err
	}
	if err := p.dir("", s.root); err != nil {
		return err
	}
	if err := p.tar.Close(); err != nil {
		return fmt.Errorf("cannot write archive: %w", err)
	}
	if err := gz.Close(); err != nil {
		return fmt.Errorf("cannot write archive: %w", err)
	}
	return nil
}

type packer struct {
	ctx   context.Context
	tar   *tar.Writer
	rules *rules
}

func (p packer) header(h *tar.Header) error {
	if err := p.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("cannot write archive: %w", err)
	}
	return nil
}

func (p packer) dir(at string, dir node) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	entries, err := dir.list()
	if err != nil {
		return err
	}
	for _, e := range entries {
		below := join(at, e.name)
		isDir := e.dir() || e.mode == filemode.Submodule
		excluded := p.rules.excludes(below, isDir)
		switch {
		case isDir:
			if !excluded {
				if err := p.header(&tar.Header{Typeflag: tar.TypeDir, Name: below, Mode: directoryMode}); err != nil {
					return err
				}
			}
			// An excluded directory may have files that are taken back.
			if !excluded || p.rules.takesBack {
				if err := p.dir(below, e.node); err != nil {
					return err
				}
			}
		case excluded, e.mode == filemode.Symlink:
		default:
			if err := p.file(below, e.node); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p packer) file(at string, n node) error {
	r, size, err := n.in.open(n)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", at, err)
	}
	defer r.Close()
	mode := int64(fileMode)
	if n.mode == filemode.Executable {
		mode = executableMode
	}
	if err := p.header(&tar.Header{Typeflag: tar.TypeReg, Name: at, Mode: mode, Size: size}); err != nil {
		return err
	}
	if _, err := io.Copy(p.tar, r); err != nil {
		return fmt.Errorf("cannot write archive: %w", err)
	}
	return nil
}
