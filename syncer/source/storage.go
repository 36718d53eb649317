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
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// Modes in a packed archive, whatever the source has.
const (
	fileMode       = 0o600
	executableMode = 0o700
	directoryMode  = 0o750
)

// latest is the name of the link to the newest artifact, for the kinds whose
// status has its URL.
func latest(kind string) string {
	switch kind {
	case sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.HelmChartKind:
		return "latest.tar.gz"
	case sourcev1.HelmRepositoryKind:
		return "index.yaml"
	}
	return ""
}

// artifactsKept is how many archives of one source are kept: the current one,
// and the one that a consumer may be about to fetch.
const artifactsKept = 2

// Storage packs snapshots for consumers outside this process and serves them,
// and other artifacts, under the paths that Flux's source-controller uses. It serves an
// artifact to whoever has its URL, which has a login in it. It is safe for concurrent
// use; calls for one source must not overlap.
type Storage struct {
	dir        string
	advertised string
	address    string
	seal       Seal

	mu sync.Mutex
	// packed has what was last packed of each source.
	packed map[Key]packed
}

type packed struct {
	snapshot *Snapshot
	artifact meta.Artifact
}

// NewStorage packs into dir and serves at address. The URLs that it gives out
// lead to advertised, a host with an optional port or a URL, with logins of the seal.
func NewStorage(dir, address, advertised string, seal Seal) *Storage {
	return &Storage{dir: dir, address: address, advertised: advertised, seal: seal, packed: map[Key]packed{}}
}

// Put packs the snapshot of a source and returns its artifact without a time.
// What was packed of the same snapshot before, and is still there, is returned
// as it is. The archive is the one that source-controller makes, byte for byte.
func (s *Storage) Put(ctx context.Context, key Key, snapshot *Snapshot) (*meta.Artifact, error) {
	s.mu.Lock()
	last, ok := s.packed[key]
	s.mu.Unlock()
	if ok && last.snapshot == snapshot {
		if stored := s.Stored(key); stored != nil {
			return stored, nil
		}
	}
	artifact, err := s.store(key, snapshot.File, snapshot.Revision, func(w io.Writer) error {
		if file, ok := snapshot.Packed(); ok {
			_, err := io.Copy(w, contextReader{ctx, file})
			return err
		}
		return Pack(ctx, w, snapshot)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot pack revision %s: %w", snapshot.Revision, err)
	}
	artifact.Metadata = snapshot.Metadata
	s.mu.Lock()
	s.packed[key] = packed{snapshot, *artifact}
	s.mu.Unlock()
	return artifact.DeepCopy(), nil
}

// PutFile stores what is read from content as the artifact of a source, under a
// plain name that ends in .yaml, .tgz or .tar.gz, and returns the artifact
// without a time.
func (s *Storage) PutFile(ctx context.Context, key Key, name, revision string, content io.Reader) (*meta.Artifact, error) {
	artifact, err := s.store(key, name, revision, func(w io.Writer) error {
		_, err := io.Copy(w, contextReader{ctx, content})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot store revision %s: %w", revision, err)
	}
	s.mu.Lock()
	s.packed[key] = packed{nil, *artifact}
	s.mu.Unlock()
	return artifact.DeepCopy(), nil
}

// Stored returns the artifact that was last put of a source, without a time; nil
// if there is none or its file is gone.
func (s *Storage) Stored(key Key) *meta.Artifact {
	s.mu.Lock()
	last, ok := s.packed[key]
	s.mu.Unlock()
	if !ok {
		return nil
	}
	if info, err := os.Lstat(filepath.Join(s.dir, last.artifact.Path)); err != nil || !info.Mode().IsRegular() || info.Size() != *last.artifact.Size {
		return nil
	}
	return last.artifact.DeepCopy()
}

// Latest returns the URL that always leads to the newest artifact of a source,
// as it is in its status; empty for the kinds that have none.
func (s *Storage) Latest(key Key) string {
	name := latest(key.Kind)
	if name == "" {
		return ""
	}
	return s.url(path.Join(folderOf(key), name))
}

// store writes a file, makes it the newest one, and removes those that are too
// old.
func (s *Storage) store(key Key, name, revision string, write func(io.Writer) error) (*meta.Artifact, error) {
	if err := allowed(name); err != nil {
		return nil, err
	}
	if name == latest(key.Kind) {
		return nil, failf(ReasonArtifactFailed, "cannot store an artifact as %q: it is the name of the newest one", name)
	}
	at := path.Join(folderOf(key), name)
	digest, size, err := s.write(at, write)
	if err != nil {
		return nil, err
	}
	keep := []string{name}
	if link := latest(key.Kind); link != "" {
		if err := s.link(path.Join(folderOf(key), link), name); err != nil {
			return nil, fmt.Errorf("cannot make %s the latest: %w", name, err)
		}
		keep = append(keep, link)
	}
	if err := s.collect(folderOf(key), keep); err != nil {
		return nil, err
	}
	return &meta.Artifact{Path: at, URL: s.url(at), Revision: revision, Digest: digest, Size: &size}, nil
}

// link makes a symbolic link to a file beside it, in place of the one that was
// there.
func (s *Storage) link(at, name string) error {
	target := filepath.Join(s.dir, at)
	if to, err := os.Readlink(target); err == nil && to == name {
		return nil
	}
	next := filepath.Join(filepath.Dir(target), ".link")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(name, next); err != nil {
		return err
	}
	return os.Rename(next, target)
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
	scheme, host, found := strings.Cut(s.advertised, "://")
	if !found {
		scheme, host = "http", s.advertised
	}
	return scheme + "://" + sealUser + ":" + s.seal.password(at) + "@" + strings.TrimSuffix(host, "/") + "/" + at
}

func (s *Storage) write(at string, write func(io.Writer) error) (digest string, size int64, err error) {
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
	if err := write(io.MultiWriter(f, h)); err != nil {
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

// collect removes all files of a folder beside those to keep but the newest.
func (s *Storage) collect(folder string, keep []string) error {
	dir := filepath.Join(s.dir, folder)
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot list artifacts: %w", err)
	}
	var others []fs.FileInfo
	for _, f := range files {
		if info, err := f.Info(); err == nil && !slices.Contains(keep, f.Name()) {
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

// servedType is the media type of a file by its name; empty if a file of this
// name is not served.
func servedType(name string) string {
	if name != path.Base(name) || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "\\\x00") {
		return ""
	}
	switch {
	case strings.HasSuffix(name, ".tar.gz"), strings.HasSuffix(name, ".tgz"):
		return "application/gzip"
	case strings.HasSuffix(name, ".yaml"):
		return "application/yaml"
	}
	return ""
}

// ServeHTTP implements http.Handler. It serves artifacts and nothing else: no
// listings, nothing outside of the directory, whatever links are in it. Without a login
// everything is 401. With that of something else everything is 404, as if it were gone: so
// is a login of which the key was lost, and the consumer looks for a new URL.
func (s *Storage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	media := servedType(path.Base(name))
	user, password, given := r.BasicAuth()
	if !given {
		w.Header().Set("WWW-Authenticate", `Basic realm="artifacts"`)
		http.Error(w, "the URL in the status of the source has a login", http.StatusUnauthorized)
		return
	}
	if !fs.ValidPath(name) || strings.Count(name, "/") != 3 || media == "" || !s.seal.admits(name, user, password) {
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
	w.Header().Set("Content-Type", media)
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
	p := packer{ctx: ctx, tar: tar.NewWriter(gz), rules: s.rules, most: s.packMost}
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
	// most bounds the files, unless it is 0; packed is what they have by now.
	most, packed int64
}

func (p *packer) header(h *tar.Header) error {
	if err := p.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("cannot write archive: %w", err)
	}
	return nil
}

func (p *packer) dir(at string, dir node) error {
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

func (p *packer) file(at string, n node) error {
	r, size, err := n.in.open(n)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", at, err)
	}
	defer r.Close()
	if p.packed += size; p.most > 0 && p.packed > p.most {
		return tooLong("its files have", p.most, "make it of fewer files")
	}
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
