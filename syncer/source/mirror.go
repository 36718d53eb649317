package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// packsPerGeneration is the default of Mirrors.packsMost.
const packsPerGeneration = 64

// objectCacheBytes is the size of a generation's cache of inflated objects.
const objectCacheBytes = 1 << 20

// Reference names what to follow; the first that is set counts, in the order
// Commit, Name, Tag, Branch.
type Reference struct {
	Branch string
	Tag    string
	Name   string
	Commit string
}

// Mirrors holds one mirror for each origin, in a directory of its own.
// It is safe for concurrent use.
type Mirrors struct {
	dir          string
	maxPackBytes int64
	// packsMost bounds the number of packs that incremental fetches pile up
	// before a mirror starts afresh with one.
	packsMost int
	// entriesMost bounds the files and directories of a snapshot.
	entriesMost int

	mu      sync.Mutex
	mirrors map[string]*mirror
}

// NewMirrors keeps mirrors below dir. A pack of more than maxPackBytes is
// refused.
func NewMirrors(dir string, maxPackBytes int64) *Mirrors {
	return &Mirrors{dir: dir, maxPackBytes: maxPackBytes, packsMost: packsPerGeneration, entriesMost: MaxEntries, mirrors: map[string]*mirror{}}
}

// Fetch resolves the reference at the origin and returns its snapshot. If the
// reference still points to what last holds, last is returned and nothing but
// the list of references was asked for.
func (m *Mirrors) Fetch(ctx context.Context, origin Origin, ref Reference, ignore *string, last *Snapshot) (*Snapshot, error) {
	dial, err := origin.dialer()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	mir := m.mirrors[origin.key()]
	if mir == nil {
		mir = &mirror{dir: filepath.Join(m.dir, origin.key()), maxPackBytes: m.maxPackBytes, packsMost: m.packsMost, entriesMost: m.entriesMost}
		m.mirrors[origin.key()] = mir
	}
	m.mu.Unlock()
	return mir.snapshot(ctx, dial, ref, ignore, last)
}

// mirror has the objects of one origin. Its lock is held over network calls:
// it only ever delays users of the same origin, who would wait anyway.
type mirror struct {
	dir          string
	maxPackBytes int64
	packsMost    int
	entriesMost  int

	mu      sync.Mutex
	current *generation
	packs   int
	serial  int
}

// generation is one object store on disk. Its directory is removed when
// neither the mirror nor any snapshot refers to it any more.
type generation struct {
	dir string
	// mu serialises reads: the storage is not safe for concurrent use.
	mu    sync.Mutex
	store *filesystem.Storage
}

func (m *mirror) snapshot(ctx context.Context, dial *dialer, ref Reference, ignore *string, last *Snapshot) (*Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	session, err := dial.transport.NewUploadPackSession(dial.endpoint, dial.auth)
	if err != nil {
		return nil, connectError(dial, err)
	}
	defer session.Close()
	adv, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, connectError(dial, err)
	}
	want, err := resolve(adv, ref)
	if err != nil {
		return nil, err
	}
	if last != nil && last.Revision == want.revision && sameIgnore(last.ignore, ignore) {
		if !last.gen.lost() {
			return last, nil
		}
		m.current = nil
	}
	gen, err := m.obtain(ctx, dial, session, adv, want)
	if err != nil {
		return nil, err
	}
	return newSnapshot(gen, want.commit, want.revision, ignore, m.entriesMost)
}

// obtain returns a generation that has the commit.
func (m *mirror) obtain(ctx context.Context, dial *dialer, session transport.UploadPackSession, adv *packp.AdvRefs, want target) (*generation, error) {
	if m.current != nil && m.current.has(want.commit) {
		return m.current, nil
	}
	if m.current == nil || m.packs >= m.packsMost {
		gen, err := m.newGeneration()
		if err != nil {
			return nil, err
		}
		m.current, m.packs = gen, 0
	}
	req := packp.NewUploadPackRequestFromCapabilities(adv.Capabilities)
	if adv.Capabilities.Supports(capability.Sideband64k) {
		_ = req.Capabilities.Set(capability.Sideband64k)
	} else if adv.Capabilities.Supports(capability.Sideband) {
		_ = req.Capabilities.Set(capability.Sideband)
	}
	if adv.Capabilities.Supports(capability.OFSDelta) {
		_ = req.Capabilities.Set(capability.OFSDelta)
	}
	shallow := adv.Capabilities.Supports(capability.Shallow)
	switch {
	case want.advertised:
		req.Wants = []plumbing.Hash{want.fetch}
	case adv.Capabilities.Supports(capability.AllowReachableSHA1InWant), adv.Capabilities.Supports(capability.AllowTipSHA1InWant):
		req.Wants = []plumbing.Hash{want.commit}
	default:
		// The server gives out only what it advertises: the commit has to come
		// with the history of its branch.
		req.Wants = []plumbing.Hash{want.fetch}
		shallow = false
	}
	if shallow {
		_ = req.Capabilities.Set(capability.Shallow)
		req.Depth = packp.DepthCommits(1)
		// What is here already is told as commits without a history, so that
		// the server sends only the difference of the trees.
		for _, c := range m.current.tips() {
			req.Haves = append(req.Haves, c)
			req.Shallows = append(req.Shallows, c)
		}
		// Without this git sends whole trees: of two commits of which neither is
		// the parent of the other, as it is with depth 1, it takes what they
		// share into account only for a thin pack. Every server has it; the
		// library takes it out of what they advertise, as it does not ask for it.
		if len(req.Haves) > 0 {
			_ = req.Capabilities.Set(capability.ThinPack)
		}
	}
	if err := m.receive(ctx, session, req); err != nil {
		return nil, connectError(dial, err)
	}
	m.packs++
	if !m.current.has(want.commit) {
		return nil, failf(ReasonGitOperationFailed, "cannot find commit %s: the server did not send it; is it on the branch?", want.commit)
	}
	return m.current, m.current.remember(want.commit)
}

func (m *mirror) receive(ctx context.Context, session transport.UploadPackSession, req *packp.UploadPackRequest) (err error) {
	resp, err := session.UploadPack(ctx, req)
	if err != nil {
		if errors.Is(err, transport.ErrEmptyUploadPackRequest) {
			return nil
		}
		return err
	}
	defer func() {
		if cerr := resp.Close(); err == nil && cerr != nil && ctx.Err() == nil {
			err = cerr
		}
	}()
	// The pack is spooled first: whoever reads an earlier snapshot must not wait
	// for a slow server.
	spool, err := os.CreateTemp(m.dir, "pack")
	if err != nil {
		return fmt.Errorf("cannot create spool file: %w", err)
	}
	defer func() {
		_ = spool.Close()
		_ = os.Remove(spool.Name())
	}()
	var pack io.Reader = resp
	if req.Capabilities.Supports(capability.Sideband64k) {
		pack = sideband.NewDemuxer(sideband.Sideband64k, resp)
	} else if req.Capabilities.Supports(capability.Sideband) {
		pack = sideband.NewDemuxer(sideband.Sideband, resp)
	}
	if _, err := io.Copy(spool, &limited{r: pack, left: m.maxPackBytes, max: m.maxPackBytes}); err != nil {
		return err
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("cannot rewind spool file: %w", err)
	}
	m.current.mu.Lock()
	defer m.current.mu.Unlock()
	if !req.Capabilities.Supports(capability.ThinPack) {
		return packfile.UpdateObjectStorage(m.current.store, spool)
	}
	// A thin pack has deltas against objects that are here already, so it
	// cannot be kept as it is.
	parser, err := packfile.NewParserWithStorage(packfile.NewScanner(spool), m.current.store)
	if err != nil {
		return err
	}
	_, err = parser.Parse()
	return err
}

func (m *mirror) newGeneration() (*generation, error) {
	m.serial++
	if m.serial == 1 {
		// Left over by an earlier process that did not end in an orderly way.
		if err := os.RemoveAll(m.dir); err != nil {
			return nil, fmt.Errorf("cannot clear mirror directory: %w", err)
		}
	}
	dir := filepath.Join(m.dir, fmt.Sprint(m.serial))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create mirror directory: %w", err)
	}
	gen := &generation{dir: dir, store: filesystem.NewStorage(osfs.New(dir), cache.NewObjectLRU(objectCacheBytes))}
	runtime.AddCleanup(gen, func(dir string) { _ = os.RemoveAll(dir) }, dir)
	return gen, nil
}

func (g *generation) has(commit plumbing.Hash) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.store.HasEncodedObject(commit) == nil
}

// lost reports whether the objects are gone from the disk, which something that
// cleans temporary directories may have done.
func (g *generation) lost() bool {
	_, err := os.Stat(filepath.Join(g.dir, "objects"))
	return errors.Is(err, os.ErrNotExist)
}

// remember keeps the commit as a tip, which later fetches build upon.
func (g *generation) remember(commit plumbing.Hash) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	name := plumbing.ReferenceName("refs/cascade/" + commit.String())
	if err := g.store.SetReference(plumbing.NewHashReference(name, commit)); err != nil {
		return fmt.Errorf("cannot record commit %s: %w", commit, err)
	}
	return nil
}

func (g *generation) tips() []plumbing.Hash {
	g.mu.Lock()
	defer g.mu.Unlock()
	iter, err := g.store.IterReferences()
	if err != nil {
		return nil
	}
	var tips []plumbing.Hash
	_ = iter.ForEach(func(r *plumbing.Reference) error {
		if r.Type() == plumbing.HashReference {
			tips = append(tips, r.Hash())
		}
		return nil
	})
	return tips
}

func (g *generation) tree(commit plumbing.Hash) (*object.Commit, *object.Tree, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, err := object.GetCommit(g.store, commit)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read commit %s: %w", commit, err)
	}
	t, err := c.Tree()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read tree of commit %s: %w", commit, err)
	}
	return c, t, nil
}

// target is a resolved reference: fetch is the hash to ask for, commit what it
// leads to.
type target struct {
	fetch      plumbing.Hash
	commit     plumbing.Hash
	revision   string
	advertised bool
}

// resolve finds the commit that a reference names. The revision has Flux's
// form: <branch or tag>@sha1:<commit>, or sha1:<commit> for a bare commit.
func resolve(adv *packp.AdvRefs, ref Reference) (target, error) {
	lookup := func(name, shown string) (target, error) {
		hash, ok := adv.References[name]
		if !ok {
			return target{}, failf(ReasonGitOperationFailed, "cannot find reference %s in the repository", name)
		}
		t := target{fetch: hash, commit: hash, advertised: true}
		if peeled, ok := adv.Peeled[name]; ok {
			t.commit = peeled
		}
		t.revision = shown + "@sha1:" + t.commit.String()
		return t, nil
	}
	if len(adv.References) == 0 {
		return target{}, failf(ReasonEmptyRepository, "cannot follow the repository: it has no commits yet")
	}
	branch := ref.Branch
	if branch == "" {
		branch = "master"
	}
	switch {
	case ref.Commit != "":
		if !plumbing.IsHash(ref.Commit) {
			return target{}, failf(ReasonGitOperationFailed, "cannot follow commit %q: not a full SHA-1", ref.Commit)
		}
		commit := plumbing.NewHash(ref.Commit)
		t := target{commit: commit, revision: "sha1:" + ref.Commit}
		if ref.Branch != "" {
			t.revision = ref.Branch + "@sha1:" + ref.Commit
		}
		for _, h := range adv.References {
			if h == commit {
				t.fetch, t.advertised = h, true
				return t, nil
			}
		}
		if tip, ok := adv.References["refs/heads/"+branch]; ok {
			t.fetch = tip
		} else if adv.Head != nil {
			t.fetch = *adv.Head
		}
		return t, nil
	case ref.Name != "":
		return lookup(ref.Name, ref.Name)
	case ref.Tag != "":
		return lookup("refs/tags/"+ref.Tag, ref.Tag)
	}
	return lookup("refs/heads/"+branch, branch)
}

func connectError(dial *dialer, err error) error {
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	// The endpoint has no password: URLs with one are refused.
	where := fmt.Sprintf("%s://%s", dial.endpoint.Protocol, dial.endpoint.Host)
	switch {
	case errors.Is(err, transport.ErrAuthenticationRequired), errors.Is(err, transport.ErrAuthorizationFailed),
		errors.Is(err, transport.ErrInvalidAuthMethod), strings.Contains(err.Error(), "ssh: unable to authenticate"):
		return failf(ReasonAuthenticationFailed, "cannot read the repository at %s: %w; check spec.secretRef", where, err)
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return failf(ReasonEmptyRepository, "cannot follow the repository at %s: it has no commits yet", where)
	}
	return failf(ReasonGitOperationFailed, "cannot fetch from %s: %w", where, err)
}

// limited fails when more is read than the pack limit allows.
type limited struct {
	r         io.Reader
	left, max int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return n, failf(ReasonLimitExceeded, "cannot fetch: the repository sent more than %d bytes; raise --max-pack-bytes or shrink it", l.max)
	}
	return n, err
}
