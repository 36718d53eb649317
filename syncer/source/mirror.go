package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

const (
	// packsPerGeneration is the default of limits.packsMost.
	packsPerGeneration = 64
	// packsLate is how many times that many packs a mirror may have while each look finds a
	// new commit.
	packsLate = 4
)

// Options say which part of a commit becomes the snapshot.
type Options struct {
	// Ignore has rules besides those in the tree, or is nil.
	Ignore *string
	// SparseCheckout are directories. If there are any, the snapshot has nothing else. As
	// in Flux they are prefixes of paths, and each has to exist.
	SparseCheckout []string
	// Submodules says whether submodules are fetched and put in their places.
	Submodules bool
	// Include has the snapshots of other sources that are put into this one.
	Include []Include
}

// Include is a part of another source's snapshot, and its place in this one.
type Include struct {
	Name     string
	Snapshot *Snapshot
	// From is a path in that snapshot, To is a path in this one.
	From, To string
}

// key identifies these options.
func (o Options) key() string {
	h := sha256.New()
	if o.Ignore != nil {
		fmt.Fprintf(h, "ignore %q\n", *o.Ignore)
	}
	fmt.Fprintf(h, "sparse %q\nsubmodules %t\n", o.SparseCheckout, o.Submodules)
	for _, i := range o.Include {
		fmt.Fprintf(h, "include %q %q %s %s\n", i.From, i.To, i.Snapshot.root.id, i.Snapshot.rules.id)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Mirrors has one mirror for each origin, in a directory of its own. It is safe for
// concurrent use.
type Mirrors struct {
	// KeyExchanges and HostKeys are the algorithms of SSH that may be used, the best first;
	// empty are those of the library, and all that cannot be forged. They are set before the
	// first fetch.
	KeyExchanges, HostKeys []string

	dir    string
	limits limits

	// started removes what an earlier process left that was killed.
	started sync.Once

	mu sync.Mutex
	// mirrors live as long as a snapshot of theirs is in use: a new password makes a new
	// mirror, and the old one goes.
	mirrors map[string]weak.Pointer[mirror]
	// barren are directories without a token; see Files.With.
	barren *recent[unmarkedDir, struct{}]
}

type limits struct {
	packBytes     int64
	inflatedBytes int64
	// packsMost bounds the packs of incremental fetches. A mirror that has so many begins
	// again with one, when a look finds nothing new: nobody waits for that. With packsLate
	// times as many it begins again whoever waits.
	packsMost int
	// entriesMost bounds the files and directories of a snapshot.
	entriesMost int
}

// NewMirrors keeps mirrors below dir. They refuse a pack of more than maxPackBytes.
func NewMirrors(dir string, maxPackBytes int64) *Mirrors {
	return &Mirrors{dir: dir, mirrors: map[string]weak.Pointer[mirror]{}, limits: limits{
		packBytes: maxPackBytes, inflatedBytes: MaxInflatedBytes, packsMost: packsPerGeneration, entriesMost: MaxEntries,
	}}
}

// Fetch resolves the reference at the origin and returns its snapshot. If the reference
// still points to the commit of last, Fetch returns last, and its only request was for
// the list of references. Those who wait for the same origin share one.
func (m *Mirrors) Fetch(ctx context.Context, origin Origin, ref Reference, options Options, last *Snapshot) (_ *Snapshot, err error) {
	// The library has panicked on what servers sent (CVE-2025-21614, CVE-2026-33762).
	// Only this one repository gets an error.
	defer func() {
		if p := recover(); p != nil {
			err = failf(ReasonGitOperationFailed, "cannot read what the server sent: %v", p)
		}
	}()
	mir, dial, err := m.mirror(origin)
	if err != nil {
		return nil, err
	}
	asked := options.key()
	gen, want, err := mir.obtain(ctx, dial, ref, func(_ *packp.AdvRefs, want target) bool {
		return last != nil && last.git != nil && last.Revision == want.revision && last.git.tag == want.tagObject && last.asked == asked
	})
	if err != nil {
		return nil, err
	}
	if gen == nil {
		return last, nil
	}
	return m.snapshot(ctx, origin, gen, want, options, last)
}

func (m *Mirrors) mirror(origin Origin) (*mirror, *dialer, error) {
	dial, err := origin.dialer()
	if err == nil {
		err = dial.restrict(m.KeyExchanges, m.HostKeys)
	}
	if err != nil {
		return nil, nil, err
	}
	m.started.Do(func() { err = os.RemoveAll(m.dir) })
	if err != nil {
		return nil, nil, fmt.Errorf("cannot clear directory of mirrors: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mir := m.mirrors[origin.key()].Value()
	if mir == nil {
		for key, p := range m.mirrors {
			if p.Value() == nil {
				delete(m.mirrors, key)
			}
		}
		mir = &mirror{dir: filepath.Join(m.dir, origin.key()), limits: &m.limits, turn: make(chan struct{}, 1)}
		m.mirrors[origin.key()] = weak.Make(mir)
	}
	return mir, dial, nil
}

func (m *Mirrors) snapshot(ctx context.Context, origin Origin, gen *generation, want target, options Options, last *Snapshot) (*Snapshot, error) {
	git, err := gen.provenance(want)
	if err != nil {
		return nil, err
	}
	subject, _, _ := strings.Cut(strings.TrimSpace(git.message), "\n")
	s := &Snapshot{
		Revision: want.revision, Commit: want.commit.String(), Subject: subject, Time: git.time,
		File: want.commit.String() + ".tar.gz",
		root: gen.nodeOf(filemode.Dir, git.tree), asked: options.key(), git: git,
	}
	if _, err := count(s.root, m.limits.entriesMost, 0); err != nil {
		return nil, fmt.Errorf("cannot walk commit %s: %w", s.Commit, err)
	}
	commit := s.root
	if s.root, err = sparse(commit, options.SparseCheckout); err != nil {
		return nil, err
	}
	if options.Submodules {
		if s.root, err = m.submodules(ctx, origin, commit, s.root, 0); err != nil {
			return nil, err
		}
	}
	for _, i := range options.Include {
		if s.root, err = i.into(s.root); err != nil {
			return nil, failf(ReasonCopyFailure, "cannot include %s from %q at %q: %w", i.Name, i.From, i.To, err)
		}
	}
	s.Digest = treeDigest(s.root, options.Ignore)
	if s.rules, err = newRules(s, options.Ignore, m.limits.entriesMost, last); err != nil {
		return nil, err
	}
	return s, nil
}

// mirror has the objects of one origin. One fetch at a time uses it. The others that
// wait want the same origin, and none waits longer than its own deadline.
type mirror struct {
	dir    string
	limits *limits
	// turn guards the fields below and the requests to the origin.
	turn chan struct{}

	current *generation
	packs   int
	// adv is the last list of references, nil unless others waited when it came. It is the
	// one with this number of those that were begun.
	adv    *packp.AdvRefs
	number int64

	// begun counts the lists that were asked for, waiting those who wait to ask for one.
	begun, waiting atomic.Int64
}

func (m *mirror) enter(ctx context.Context) error {
	select {
	case m.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return failf(ReasonGitOperationFailed, "cannot fetch: another fetch of the same repository has not ended: %w", ctx.Err())
	}
}

func (m *mirror) leave() { <-m.turn }

// obtain resolves a reference and returns a generation that has the commit. The
// generation is nil if the caller has a snapshot of it already. The error is a Told once the server listed what it has,
// unless the connection failed after that.
func (m *mirror) obtain(ctx context.Context, dial *dialer, ref Reference, known func(*packp.AdvRefs, target) bool) (_ *generation, _ target, err error) {
	came := m.begun.Load()
	m.waiting.Add(1)
	err = m.enter(ctx)
	m.waiting.Add(-1)
	if err != nil {
		return nil, target{}, err
	}
	defer m.leave()
	defer func() {
		if m.waiting.Load() == 0 {
			m.adv = nil // it may be large
		}
	}()
	if m.adv != nil && m.number > came {
		if gen, want, ok := m.shared(ref, known); ok {
			return gen, want, nil
		}
	}
	number := m.begun.Add(1)
	wire, err := dial.connect(ctx)
	if err != nil {
		return nil, target{}, connectError(dial, err)
	}
	defer wire.Close()
	adv, err := wire.references(ctx)
	if err != nil {
		return nil, target{}, connectError(dial, err)
	}
	m.adv, m.number = adv, number
	defer func() {
		if err != nil && ctx.Err() == nil && !errors.As(err, new(net.Error)) {
			err = &Told{err}
		}
	}()
	targets, err := resolve(adv, ref)
	if err != nil {
		return nil, target{}, err
	}
	// Tags of one version differ by their build metadata, which has no order. The newest
	// commit decides, as in Flux.
	best, newest := targets[0], int64(-1<<62)
	for i, t := range targets {
		if len(targets) == 1 && known(adv, t) {
			if m.current != nil && !m.current.lost() {
				m.renew(ctx, dial, wire, adv, t)
				return nil, t, nil
			}
			m.current = nil
		}
		if i == 0 {
			err = m.receive(ctx, dial, wire, adv, t)
		} else {
			err = m.bring(ctx, dial, t)
		}
		if err != nil {
			return nil, target{}, err
		}
		if len(targets) == 1 {
			break
		}
		git, err := m.current.provenance(t)
		if err != nil {
			return nil, target{}, err
		}
		if at := git.time.Unix(); at > newest {
			best, newest = t, at
		}
	}
	if len(targets) > 1 && known(adv, best) {
		return nil, best, nil
	}
	return m.current, best, nil
}

// shared answers from the last list of references who needs no request besides. That list was
// begun after the caller came, and says what one of its own would. Most who wait for their
// turns find nothing new, or what somebody before them fetched: a list of each of them, one
// after the other, would take the time of those at the end.
func (m *mirror) shared(ref Reference, known func(*packp.AdvRefs, target) bool) (*generation, target, bool) {
	targets, err := resolve(m.adv, ref)
	if err != nil || len(targets) > 1 || m.current == nil || m.current.lost() {
		return nil, target{}, false
	}
	if known(m.adv, targets[0]) {
		return nil, targets[0], m.packs < m.limits.packsMost // else it is time to renew
	}
	return m.current, targets[0], m.holds(targets[0])
}

// exactly returns a generation that has a commit. It asks the origin only if none has.
func (m *mirror) exactly(ctx context.Context, dial *dialer, commit plumbing.Hash) (*generation, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	current := m.current
	m.leave()
	if current != nil && !current.lost() && current.complete(commit) {
		return current, nil
	}
	gen, _, err := m.obtain(ctx, dial, Reference{Commit: commit.String()}, func(*packp.AdvRefs, target) bool { return false })
	return gen, err
}

// renew begins again with one pack if there are many, for a commit that is here already. If
// that fails, all stays as it was, and is tried again after as many packs more.
func (m *mirror) renew(ctx context.Context, dial *dialer, wire wire, adv *packp.AdvRefs, have target) {
	if m.packs < m.limits.packsMost {
		return
	}
	old := m.current
	m.current = nil
	if err := m.receive(ctx, dial, wire, adv, have); err != nil {
		m.current, m.packs = old, 0
	}
}

// holds reports whether the current generation has a target.
func (m *mirror) holds(want target) bool {
	return m.current != nil && !m.current.lost() && m.current.complete(want.commit) && (want.tagObject.IsZero() || m.current.has(want.tagObject))
}

// receive fetches the target into the current generation, or into a new one.
func (m *mirror) receive(ctx context.Context, dial *dialer, wire wire, adv *packp.AdvRefs, want target) error {
	if m.current != nil && m.current.lost() {
		m.current = nil
	}
	if m.holds(want) {
		return nil
	}
	if m.current == nil || m.packs >= packsLate*m.limits.packsMost {
		gen, err := m.newGeneration()
		if err != nil {
			return err
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
	shallow, tipsOnly, history := adv.Capabilities.Supports(capability.Shallow), false, false
	switch {
	case want.advertised:
		req.Wants = []plumbing.Hash{want.fetch}
	case adv.Capabilities.Supports(capability.AllowReachableSHA1InWant), adv.Capabilities.Supports(capability.AllowTipSHA1InWant):
		req.Wants = []plumbing.Hash{want.commit}
		tipsOnly = !adv.Capabilities.Supports(capability.AllowReachableSHA1InWant)
	default:
		// The server sends only what it advertises. The commit comes with the history of
		// its branch.
		req.Wants = []plumbing.Hash{want.fetch}
		if want.fetch.IsZero() {
			req.Wants = want.others
		}
		shallow, history = false, true
	}
	if shallow {
		_ = req.Capabilities.Set(capability.Shallow)
		req.Depth = packp.DepthCommits(1)
		// The request names the commits that are here as shallow, so that the server sends
		// only the difference of the trees.
		for _, c := range m.current.tips() {
			req.Haves = append(req.Haves, c)
			req.Shallows = append(req.Shallows, c)
		}
		// Without thin-pack git sends whole trees: with depth 1 neither of the two commits
		// is the parent of the other, and then git leaves out what both have only from a
		// thin pack. Every server has the capability. The library removes it from what
		// servers advertise, because it does not use it.
		if len(req.Haves) > 0 {
			_ = req.Capabilities.Set(capability.ThinPack)
		}
	}
	if err := m.unpack(ctx, wire, req); err != nil {
		if tipsOnly && ctx.Err() == nil && errors.As(err, new(refusal)) {
			// By SSH, git takes the word literally: it gives out tips of hidden references,
			// and no commit before one. By HTTP it cannot tell them apart.
			return m.bring(ctx, dial, want, capability.AllowTipSHA1InWant)
		}
		return connectError(dial, err)
	}
	m.packs++
	if history && !want.fetch.IsZero() && len(want.others) > 0 && !m.current.has(want.commit) {
		want.fetch = plumbing.ZeroHash
		return m.bring(ctx, dial, want, capability.AllowTipSHA1InWant)
	}
	if !m.current.has(want.commit) || (!want.tagObject.IsZero() && !m.current.has(want.tagObject)) {
		return failf(ReasonGitOperationFailed, "cannot find commit %s: the server did not send it; is it on a branch?", want.commit)
	}
	return m.current.remember(want.commit)
}

// refusal is what came in the place of a pack.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func (m *mirror) unpack(ctx context.Context, wire wire, req *packp.UploadPackRequest) (err error) {
	resp, err := wire.pack(ctx, req)
	if err != nil {
		if errors.Is(err, transport.ErrEmptyUploadPackRequest) {
			return nil
		}
		return refusal{err}
	}
	defer func() {
		if cerr := resp.Close(); err == nil && cerr != nil && ctx.Err() == nil {
			err = cerr
		}
	}()
	// The pack goes to a file first: a reader of an earlier snapshot must not wait for a
	// slow server.
	spool, err := os.CreateTemp(m.dir, "pack")
	if err != nil {
		return fmt.Errorf("cannot create spool file: %w", err)
	}
	defer func() {
		_ = spool.Close()
		_ = os.Remove(spool.Name())
	}()
	// The bound includes what the server sends beside the pack, which may have no end.
	most := m.limits.packBytes
	all := most + most/8 + 64<<10
	var pack io.Reader = &limited{r: resp, left: all, max: all, what: "the repository sent", flag: "raise --max-pack-bytes or shrink it"}
	if req.Capabilities.Supports(capability.Sideband64k) {
		pack = sideband.NewDemuxer(sideband.Sideband64k, pack)
	} else if req.Capabilities.Supports(capability.Sideband) {
		pack = sideband.NewDemuxer(sideband.Sideband, pack)
	}
	if _, err := io.Copy(spool, &limited{r: pack, left: most, max: most, what: "the repository sent", flag: "raise --max-pack-bytes or shrink it"}); err != nil {
		return err
	}
	if err := rewind(spool); err != nil {
		return err
	}
	// A shallow pack has each file and directory once; history has more.
	if err := inspect(ctx, spool, 2*m.limits.entriesMost, m.limits.inflatedBytes); err != nil {
		return err
	}
	if err := rewind(spool); err != nil {
		return err
	}
	m.current.mu.Lock()
	defer func() {
		// The parser writes one object after the other, a commit before its files.
		m.current.partial = m.current.partial || err != nil
		m.current.mu.Unlock()
	}()
	within := contextFile{ctx, spool}
	if !req.Capabilities.Supports(capability.ThinPack) {
		return packfile.UpdateObjectStorage(m.current.store, within)
	}
	// A thin pack has deltas against objects that are in other packs. The parser reads
	// these and writes each object of the pack whole.
	parser, err := packfile.NewParserWithStorage(packfile.NewScanner(within), m.current.store)
	if err != nil {
		return err
	}
	_, err = parser.Parse()
	return err
}

func rewind(f *os.File) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("cannot rewind spool file: %w", err)
	}
	return nil
}

func (m *mirror) newGeneration() (*generation, error) {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create mirror directory: %w", err)
	}
	// The name is new each time, because the directory of an earlier generation is removed
	// only after its last user.
	dir, err := os.MkdirTemp(m.dir, "")
	if err != nil {
		return nil, fmt.Errorf("cannot create mirror directory: %w", err)
	}
	gen := openGeneration(dir)
	gen.owner = m
	runtime.AddCleanup(gen, func(dir string) { _ = os.RemoveAll(dir) }, dir)
	return gen, nil
}

func connectError(dial *dialer, err error) error {
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	// The library of HTTP quotes the address that a redirect led to, with its query.
	var call *url.Error
	var unexpected *plumbing.UnexpectedError
	if errors.As(err, &unexpected) {
		err = unexpected.Err
	}
	if errors.As(err, &call) {
		err = call.Err
	}
	err = worded{err}
	// The endpoint has no login.
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

// worded is an error without the local port, so that the same failure has the same text
// at each attempt, and cut, because a server may have written it.
type worded struct{ error }

var ownPort = regexp.MustCompile(`\b(read|write) (tcp[46]?) [^ ]+->`)

func (w worded) Error() string {
	return strings.TrimRight(short(ownPort.ReplaceAllString(w.error.Error(), "$1 $2 "), 500), ": ")
}
func (w worded) Unwrap() error { return w.error }
