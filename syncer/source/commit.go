package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/fluxcd/pkg/git/signature"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/storage/memory"
)

// Reasons of commits that are written.
const (
	// ReasonInvalidDraft is of one that cannot be made as it is asked for, whatever the repository has.
	ReasonInvalidDraft = "InvalidSourceConfiguration"
	// ReasonRefspecFailed is of one that the branch has, and the second reference does not.
	ReasonRefspecFailed = "RefspecPushFailed"
)

// Draft is a commit that is to be made and pushed.
type Draft struct {
	// Checkout is what is read: one branch, tag, version, name or commit.
	Checkout Reference
	// Branch that is written, made of the checkout where there is none.
	Branch string
	// Refspec names a second reference that is written, as refs/heads/<branch>:<reference>; empty for none.
	Refspec string
	// Options are sent along with each push.
	Options map[string]string
	// Own is the commit that whoever calls pushed last, and OwnBasis what came of it in Written.Basis. Where a
	// branch of its own still ends with it, nobody else wrote there since; before that, they may have.
	Own      string
	OwnBasis Basis
	// Made is a revision of the checkout that had all which Own was made of: that of the push, or one that was looked at since,
	// as Written.Revision tells.
	Made string
	// Owed is a commit that the second reference may not have yet: if the branch still ends with it, it is pushed there although
	// nothing is to change.
	Owed string
	// Ahead is told of a commit before the branch gets it, if it is to be pushed to a second reference after that; nil if nobody
	// is. Nothing is pushed if it fails.
	Ahead func(ctx context.Context, commit string) error
	// Known is the revision of the checkout at which nothing was to be done, and Tip the commit that a branch of its own
	// had then, empty if there was no such branch; the answer of Write is empty if both are as they were. Without Known it
	// looks in any case.
	Known, Tip string
	// Name, Address and At are those of author and committer.
	Name, Address string
	At            time.Time
	// Sign signs the bytes of a commit; nil leaves it unsigned.
	Sign Signer
	// Decide returns the content of files that are to change, and the message. It may be called several times, as
	// others push meanwhile.
	Decide func(ctx context.Context, files *Files) (changes map[string][]byte, message string, err error)
}

// Signer returns a signature of a text.
type Signer func(text []byte) (string, error)

// Basis is what a commit on a branch of its own has the files of, besides the changes; empty where the branch is the
// checkout, or where it is not known.
type Basis string

const (
	// BasisCheckout: those of the checkout, and nothing that others pushed to the branch.
	BasisCheckout Basis = "MadeOfCheckout"
	// BasisBranch: those of the branch, to which others pushed, or which has what the checkout does not have any more.
	BasisBranch Basis = "MadeOfBranch"
)

// Written is what became of a draft.
type Written struct {
	// Revision of the checkout, as a snapshot has it; after a push to the same branch, that of the new commit.
	Revision string
	// Commit that was pushed, empty if there was nothing to change, and its Message.
	Commit, Message string
	// Basis of the commit, or of Draft.Own where nothing was pushed and the branch ends with that. Whoever calls keeps it for
	// Draft.OwnBasis: the commit alone does not tell.
	Basis Basis
	// Tries is how often others were faster, and one.
	Tries int
	// Tip is the commit that the branch has by now, empty if there is none. Whoever calls keeps it for Draft.Tip.
	Tip string
	// Same reports that all is at Draft.Known and Draft.Tip, so that nothing was looked at.
	Same bool
}

// writeTries is how often a commit is made anew, as others push.
const writeTries = 8

// Write makes a commit on top of what a repository has, and lets a branch point to it. Nothing is ever forced: the
// server is told which commit the branch has, and refuses if that is not so; what others pushed is a parent of what is
// pushed here. ErrMoved is wrapped when others were faster each time.
//
// A branch that is not the checkout is read and written as follows. Where others pushed to it, their commits are kept
// and files are changed on top of them, until the branch is merged or deleted. Where nobody but the caller did, it has
// the files of the checkout with the changes, as if it were made anew, and what it was becomes the first parent. That
// must not take back what others wrote: where the checkout is a commit or a tag, and does not certainly have all that the
// branch was made of, files are changed on top of the branch, too. The branch of a checkout that is a commit of it is
// that of others in any case.
func (m *Mirrors) Write(ctx context.Context, origin Origin, draft Draft) (w Written, err error) {
	defer recovered(&err)
	if err := draft.check(); err != nil {
		return Written{}, err
	}
	for try := 1; ; try++ {
		w, err = m.write(ctx, origin, &draft)
		w.Tries = try
		if !errors.Is(err, ErrMoved) || try == writeTries || ctx.Err() != nil {
			return w, err
		}
	}
}

func (d *Draft) check() error {
	invalid := func(format string, args ...any) error { return failf(ReasonInvalidDraft, format, args...) }
	if d.Branch == "" {
		return invalid("cannot tell which branch to push to; set spec.git.push.branch, or a branch in spec.git.checkout.ref")
	}
	if err := plumbing.NewBranchReferenceName(d.Branch).Validate(); err != nil {
		return invalid("cannot push to branch %q: %w", short(d.Branch, 200), err)
	}
	if strings.ContainsAny(d.Name+d.Address, "\n<>\x00") {
		return invalid("cannot write commits of %q <%q>: a character is not allowed", short(d.Name, 200), short(d.Address, 200))
	}
	_, err := d.second()
	return err
}

// second is the other reference that is written, empty for none.
func (d *Draft) second() (plumbing.ReferenceName, error) {
	if d.Refspec == "" {
		return "", nil
	}
	invalid := func(why string) (plumbing.ReferenceName, error) {
		return "", failf(ReasonInvalidDraft, "cannot push refspec %q: %s", short(d.Refspec, 200), why)
	}
	from, to, ok := strings.Cut(d.Refspec, ":")
	switch {
	case strings.HasPrefix(d.Refspec, "+"):
		return invalid("nothing is forced; leave the + out")
	case !ok:
		to = from
	case from == "":
		return invalid("nothing is deleted; name refs/heads/" + d.Branch + " before the colon")
	}
	own := plumbing.NewBranchReferenceName(d.Branch)
	if from != string(own) && from != d.Branch && from != "HEAD" {
		return invalid("what is pushed is refs/heads/" + d.Branch + "; name that before the colon")
	}
	name := plumbing.ReferenceName(to)
	if !strings.HasPrefix(to, "refs/") || strings.Contains(to, "*") || name.Validate() != nil {
		return invalid("name one whole reference, such as refs/heads/main, behind the colon")
	}
	if name == own {
		return "", nil
	}
	return name, nil
}

// commitOf is the name of a commit, empty for none.
func commitOf(hash plumbing.Hash) string {
	if hash.IsZero() {
		return ""
	}
	return hash.String()
}

// base is what a commit is made on top of.
type base struct {
	gen *generation
	// files is the commit whose files are changed.
	files   plumbing.Hash
	parents []plumbing.Hash
	// old is what the branch has; zero if there is none.
	old plumbing.Hash
	// unless has the tree that is there already, where only another one is worth a commit; zero for none.
	unless plumbing.Hash
	basis  Basis
}

func (m *Mirrors) write(ctx context.Context, origin Origin, draft *Draft) (w Written, err error) {
	mir, dial, err := m.mirror(origin)
	if err != nil {
		return w, err
	}
	gen, want, err := mir.obtain(ctx, dial, draft.Checkout, func(adv *packp.AdvRefs, t target) bool {
		tip := adv.References[string(plumbing.NewBranchReferenceName(draft.Branch))]
		w.Same = draft.Known != "" && t.revision == draft.Known && (draft.Checkout.only(draft.Branch) || commitOf(tip) == draft.Tip)
		return w.Same
	})
	if err != nil {
		return w, err
	}
	w.Revision = want.revision
	if w.Same {
		w.Tip = draft.Tip
		return w, nil
	}
	b, err := m.base(ctx, origin, mir, dial, gen, want, draft)
	if err != nil {
		return w, err
	}
	w.Tip = commitOf(b.old)
	from, err := b.gen.provenance(target{commit: b.files})
	if err != nil {
		return w, err
	}
	root := b.gen.nodeOf(filemode.Dir, from.tree)
	if _, err := count(root, m.limits.entriesMost, 0); err != nil {
		return w, fmt.Errorf("cannot walk commit %s: %w", b.files, err)
	}
	changes, message, err := draft.Decide(ctx, &Files{root: root, unmarked: m.unmarked()})
	if err != nil {
		return w, err
	}
	second, err := draft.second()
	if err != nil {
		return w, err
	}
	objects := &drafted{store: memory.NewStorage(), gen: b.gen}
	tree := from.tree
	if len(changes) > 0 {
		if tree, err = objects.tree(from.tree, changes, 0); err != nil {
			return w, fmt.Errorf("cannot change files of commit %s: %w", b.files, err)
		}
	}
	if tree == b.unless || tree == from.tree {
		if w.Tip == draft.Own {
			w.Basis = b.basis
		}
		if draft.Owed != "" && second != "" && b.old.String() == draft.Owed {
			objects.made = nil // the server has all of it
			return w, m.forward(ctx, origin, dial, second, b.old, nil, objects, draft.Options)
		}
		return w, nil
	}
	commit, err := objects.commit(draft, tree, b.parents, message)
	if err != nil {
		return w, err
	}
	if second != "" && draft.Ahead != nil {
		if err := draft.Ahead(ctx, commit.String()); err != nil {
			return w, err
		}
	}
	own := plumbing.NewBranchReferenceName(draft.Branch)
	if err := m.send(ctx, dial, own, b.old, commit, objects, draft.Options); err != nil {
		return w, err
	}
	w.Commit, w.Message, w.Basis, w.Tip = commit.String(), message, b.basis, commit.String()
	if draft.Checkout.only(draft.Branch) {
		w.Revision = draft.Branch + "@sha1:" + w.Commit
	}
	if second == "" {
		return w, nil
	}
	return w, m.forward(ctx, origin, dial, second, commit, append(b.parents, b.files), objects, draft.Options)
}

// only reports whether a reference is the branch of a name and nothing else.
func (r Reference) only(branch string) bool {
	return r.Commit == "" && r.Name == "" && r.SemVer == "" && r.Tag == "" && cmp.Or(r.Branch, "master") == branch
}

// moves reports whether a reference is a branch: one that is set back has what people want of it, and not what it had.
func (r Reference) moves() bool {
	return r.Commit == "" && (strings.HasPrefix(r.Name, "refs/heads/") || r.Name == "" && r.SemVer == "" && r.Tag == "")
}

// base finds what the next commit is made on top of.
func (m *Mirrors) base(ctx context.Context, origin Origin, mir *mirror, dial *dialer, gen *generation, checkout target, draft *Draft) (base, error) {
	b := base{gen: gen, files: checkout.commit, parents: []plumbing.Hash{checkout.commit}, old: checkout.commit}
	if draft.Checkout.only(draft.Branch) {
		return b, nil
	}
	// A pin does not make the branch that it is on one of the caller's own: everybody pushes there.
	everybodys := draft.Checkout.Branch == draft.Branch
	if !everybodys {
		b.basis = BasisCheckout
	}
	if err := mir.enter(ctx); err != nil {
		return b, err
	}
	adv, err := mir.list(ctx, dial)
	mir.leave()
	if err != nil {
		return b, err
	}
	tip, exists := adv.References[string(plumbing.NewBranchReferenceName(draft.Branch))]
	switch {
	case !exists:
		b.old = plumbing.ZeroHash
		return b, nil
	case tip == checkout.commit:
		return b, nil
	}
	b.old = tip
	last := tip.String() == draft.Own && !everybodys
	alone := last && draft.OwnBasis == BasisCheckout
	if alone && !draft.Checkout.moves() {
		_, made, _ := strings.Cut(draft.Made, "sha1:")
		alone = m.certain(ctx, origin, checkout.commit, plumbing.NewHash(made))
	}
	if !alone && !everybodys {
		// A branch that was merged goes on where it was merged to.
		if merged, err := m.Contains(ctx, origin, checkout.commit.String(), tip.String(), ""); err == nil && merged {
			return b, nil
		}
	}
	branch, _, err := mir.obtain(ctx, dial, Reference{Branch: draft.Branch}, func(*packp.AdvRefs, target) bool { return false })
	if err != nil {
		return b, err
	}
	if !branch.has(tip) {
		return b, failf(ReasonGitOperationFailed, "cannot read branch %s: %w", draft.Branch, ErrMoved)
	}
	if last && !alone {
		if alone, err = m.madeOf(ctx, origin, draft.Checkout, checkout.commit, branch, tip); err != nil {
			return b, err
		}
	}
	if !alone {
		b.gen, b.files, b.parents = branch, tip, []plumbing.Hash{tip}
		if !everybodys {
			b.basis = BasisBranch
		}
		return b, nil
	}
	now, err := branch.provenance(target{commit: tip})
	if err != nil {
		return b, err
	}
	b.unless, b.parents = now.tree, []plumbing.Hash{tip}
	// Where it is not known, the checkout is named as a parent: it is no less true.
	if ahead, err := m.Contains(ctx, origin, tip.String(), checkout.commit.String(), ""); err != nil || !ahead {
		b.parents = append(b.parents, checkout.commit)
	}
	return b, nil
}

// madeOf reports whether a commit that the caller pushed certainly has nothing of others which the checkout does not
// have, where its basis is not on record. A second parent is the checkout whose files it has; what was made
// on top of a commit that the checkout has by now has no more than that. All else may be on top of others.
func (m *Mirrors) madeOf(ctx context.Context, origin Origin, ref Reference, checkout plumbing.Hash, gen *generation, commit plumbing.Hash) (bool, error) {
	parents, err := gen.parents(commit)
	if err != nil || len(parents) == 0 {
		return false, err
	}
	if len(parents) > 1 && ref.moves() {
		return true, nil
	}
	return m.certain(ctx, origin, checkout, parents[len(parents)-1]), nil
}

// certain reports whether a tip has a commit in its history. Where the server does not tell, or the commit is not known,
// nothing is certain.
func (m *Mirrors) certain(ctx context.Context, origin Origin, tip, commit plumbing.Hash) bool {
	if commit.IsZero() {
		return false
	}
	contained, err := m.Contains(ctx, origin, tip.String(), commit.String(), "")
	return err == nil && contained
}

// send pushes objects and lets a reference that has the commit old point to another.
func (m *Mirrors) send(ctx context.Context, dial *dialer, name plumbing.ReferenceName, old, commit plumbing.Hash, objects *drafted, options map[string]string) error {
	is := func(now plumbing.Hash) error {
		if now != old {
			return ErrMoved
		}
		return nil
	}
	_, err := m.update(ctx, dial, name, is, commit, objects, options)
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrMoved) {
		return failf(ReasonGitOperationFailed, "cannot push to %s: %w", name, ErrMoved)
	}
	if errors.As(err, new(*Error)) {
		return err
	}
	// How servers tell of a race differs, where the reference is does not.
	now, listed := m.now(ctx, dial, name)
	switch {
	case listed != nil:
		return connectError(dial, fmt.Errorf("cannot push to %s: %w", name, err))
	case now == commit:
		return nil // the answer was lost
	case now != old:
		return failf(ReasonGitOperationFailed, "cannot push to %s: %w", name, ErrMoved)
	}
	return connectError(dial, fmt.Errorf("cannot push to %s: %w; the credential must be allowed to write there", name, err))
}

// now is what a reference has, as who may write sees it.
func (m *Mirrors) now(ctx context.Context, dial *dialer, name plumbing.ReferenceName) (plumbing.Hash, error) {
	wire, err := dial.connectToWrite(ctx)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	defer wire.Close()
	adv, err := wire.references(ctx)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return adv.References[string(name)], nil
}

// errThere: there is nothing to push.
var errThere = errors.New("it is there already")

// forward lets the second reference point to a commit that the branch has by now, if that is a step forward for it. below are
// commits in its history; where the reference is at none of them, the server is asked.
func (m *Mirrors) forward(ctx context.Context, origin Origin, dial *dialer, name plumbing.ReferenceName, commit plumbing.Hash, below []plumbing.Hash, objects *drafted, options map[string]string) error {
	_, err := m.update(ctx, dial, name, func(now plumbing.Hash) error {
		if now == commit {
			return errThere
		}
		if now.IsZero() || slices.Contains(below, now) {
			return nil
		}
		contained, err := m.Contains(ctx, origin, commit.String(), now.String(), "")
		switch {
		case err != nil:
			return fmt.Errorf("cannot find out whether it is a step forward: %w", err)
		case !contained:
			return errors.New("it has commits that the pushed one does not have, and nothing is forced")
		}
		return nil
	}, commit, objects, options)
	if err == nil || errors.Is(err, errThere) {
		return nil
	}
	// The branch has the commit already, and this is tried again by itself.
	return failf(ReasonRefspecFailed, "cannot push to %s: %w", name, connectError(dial, err))
}

// update sends one command. may is given what a reference has, and says whether that may be replaced. It returns what it had.
func (m *Mirrors) update(ctx context.Context, dial *dialer, name plumbing.ReferenceName, may func(now plumbing.Hash) error, commit plumbing.Hash, objects *drafted, options map[string]string) (plumbing.Hash, error) {
	var pack bytes.Buffer
	if _, err := packfile.NewEncoder(&pack, objects.store, false).Encode(objects.made, 0); err != nil {
		return plumbing.ZeroHash, fmt.Errorf("cannot pack commit %s: %w", commit, err)
	}
	wire, err := dial.connectToWrite(ctx)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	defer wire.Close()
	adv, err := wire.references(ctx)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	now := adv.References[string(name)]
	if err := may(now); err != nil {
		return now, err
	}
	req := packp.NewReferenceUpdateRequestFromCapabilities(adv.Capabilities)
	if len(options) > 0 {
		if !adv.Capabilities.Supports(capability.PushOptions) {
			return now, failf(ReasonGitOperationFailed, "cannot push to %s: the server takes no push options; leave spec.git.push.options out", name)
		}
		_ = req.Capabilities.Set(capability.PushOptions)
		for _, key := range slices.Sorted(maps.Keys(options)) {
			req.Options = append(req.Options, &packp.Option{Key: key, Value: options[key]})
		}
	}
	req.Commands = []*packp.Command{{Name: name, Old: now, New: commit}}
	req.Packfile = io.NopCloser(&pack)
	return now, wire.update(ctx, req)
}

// drafted are the objects of a commit that is not in the repository yet.
type drafted struct {
	store *memory.Storage
	gen   *generation
	made  []plumbing.Hash
}

func (d *drafted) add(kind plumbing.ObjectType, content []byte) (plumbing.Hash, error) {
	o := d.store.NewEncodedObject()
	o.SetType(kind)
	w, err := o.Writer()
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if _, err := w.Write(content); err != nil {
		return plumbing.ZeroHash, err
	}
	hash, err := d.store.SetEncodedObject(o)
	if err == nil && !slices.Contains(d.made, hash) {
		d.made = append(d.made, hash)
	}
	return hash, err
}

// tree makes a directory with other content of files, whose paths are relative to it. Whatever else a tree has stays, in the
// order that it has.
func (d *drafted) tree(at plumbing.Hash, changes map[string][]byte, depth int) (plumbing.Hash, error) {
	raw, err := d.gen.raw(plumbing.TreeObject, at)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	below := map[string]map[string][]byte{}
	for file, content := range changes {
		name, rest, _ := strings.Cut(file, "/")
		if below[name] == nil {
			below[name] = map[string][]byte{}
		}
		below[name][rest] = content
	}
	out := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		head := bytes.IndexByte(raw, 0)
		if head < 0 || len(raw) < head+1+20 {
			return plumbing.ZeroHash, fmt.Errorf("cannot read tree %s: it ends too early", at)
		}
		mode, name, _ := strings.Cut(string(raw[:head]), " ")
		hash := plumbing.Hash(raw[head+1 : head+21])
		if inside, ok := below[name]; ok {
			delete(below, name)
			content, file := inside[""]
			switch kind, err := filemode.New(mode); {
			case err != nil:
				return plumbing.ZeroHash, fmt.Errorf("cannot read tree %s: %w", at, err)
			case file && kind.IsFile() && kind != filemode.Symlink && len(inside) == 1:
				hash, err = d.add(plumbing.BlobObject, content)
				if err != nil {
					return plumbing.ZeroHash, err
				}
			case !file && kind == filemode.Dir && depth < maxDepth:
				if hash, err = d.tree(hash, inside, depth+1); err != nil {
					return plumbing.ZeroHash, err
				}
			default:
				return plumbing.ZeroHash, fmt.Errorf("%q is not the file or directory that it was", name)
			}
		}
		out = append(append(append(out, raw[:head]...), 0), hash[:]...)
		raw = raw[head+21:]
	}
	for name := range below {
		return plumbing.ZeroHash, fmt.Errorf("there is no %q", name)
	}
	return d.add(plumbing.TreeObject, out)
}

func (d *drafted) commit(draft *Draft, tree plumbing.Hash, parents []plumbing.Hash, message string) (plumbing.Hash, error) {
	who := object.Signature{Name: draft.Name, Email: draft.Address, When: draft.At.UTC().Truncate(time.Second)}
	c := &object.Commit{Author: who, Committer: who, Message: strings.ReplaceAll(message, "\x00", ""), TreeHash: tree, ParentHashes: parents}
	encode := func(encode func(plumbing.EncodedObject) error) ([]byte, error) {
		o := &plumbing.MemoryObject{}
		if err := encode(o); err != nil {
			return nil, fmt.Errorf("cannot encode the commit: %w", err)
		}
		r, err := o.Reader()
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return io.ReadAll(r)
	}
	if draft.Sign != nil {
		text, err := encode(c.EncodeWithoutSignature)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if c.PGPSignature, err = draft.Sign(text); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	content, err := encode(c.Encode)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return d.add(plumbing.CommitObject, content)
}

// Bounds of what Files reads.
const (
	// MaxMarkedBytes bounds a file that is looked into; a longer one is passed over.
	MaxMarkedBytes   = 4 << 20
	mostMarkedFiles  = 5000
	mostMarkedBytes  = 64 << 20
	rememberUnmarked = 64 << 10
)

// Files are those of a commit.
type Files struct {
	root     node
	unmarked *recent[unmarkedDir, struct{}]
}

// unmarkedDir is a directory without a token, by its content.
type unmarkedDir struct {
	token string
	dir   id
}

// unmarked remembers directories in which there was nothing to be found.
func (m *Mirrors) unmarked() *recent[unmarkedDir, struct{}] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.barren == nil {
		m.barren = newRecent[unmarkedDir, struct{}](rememberUnmarked)
	}
	return m.barren
}

// With returns the files below a directory whose names end with one of the suffixes and which have a token in them, by their
// paths. Symbolic links and submodules are not followed, and files of more than MaxMarkedBytes are passed over. A directory
// that was found to have none is not read again, in whatever commit.
func (f *Files) With(ctx context.Context, dir, token string, suffixes ...string) (map[string][]byte, error) {
	at, here := clean(dir), f.root
	for part := range strings.SplitSeq(at, "/") {
		if part == "" {
			continue
		}
		entries, err := here.list()
		if err != nil {
			return nil, err
		}
		n, ok := entries.find(part)
		if !ok || !n.dir() {
			return nil, failf(ReasonInvalidDraft, "cannot find the directory %q in the repository", short(dir, 200))
		}
		here = n
	}
	s := &tokens{ctx: ctx, token: token, suffixes: suffixes, unmarked: f.unmarked, found: map[string][]byte{}}
	return s.found, s.walk(at, here)
}

// tokens looks for files with a token.
type tokens struct {
	ctx      context.Context
	token    string
	suffixes []string
	unmarked *recent[unmarkedDir, struct{}]
	found    map[string][]byte
	bytes    int
}

func (s *tokens) walk(at string, dir node) error {
	key := unmarkedDir{s.token + strings.Join(s.suffixes, ""), dir.id}
	if _, ok := s.unmarked.get(key); ok {
		return nil
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	entries, err := dir.list()
	if err != nil {
		return err
	}
	before := len(s.found)
	for _, e := range entries {
		name := path.Join(at, e.name)
		switch {
		case e.dir():
			err = s.walk(name, e.node)
		case e.mode.IsFile() && e.mode != filemode.Symlink && slices.ContainsFunc(s.suffixes, func(suffix string) bool { return strings.HasSuffix(e.name, suffix) }):
			err = s.file(name, e.node)
		}
		if err != nil {
			return err
		}
	}
	if len(s.found) == before {
		s.unmarked.put(key, struct{}{}, 1)
	}
	return nil
}

func (s *tokens) file(name string, n node) error {
	r, size, err := n.in.open(n)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", name, err)
	}
	defer r.Close()
	if size > MaxMarkedBytes {
		return nil
	}
	content := make([]byte, size)
	if _, err := io.ReadFull(r, content); err != nil {
		return fmt.Errorf("cannot read %s: %w", name, err)
	}
	if !bytes.Contains(content, []byte(s.token)) {
		return nil
	}
	if s.bytes += len(content); s.bytes > mostMarkedBytes || len(s.found) == mostMarkedFiles {
		return failf(ReasonLimitExceeded, "more than %d files or %d bytes have markers; set spec.update.path", mostMarkedFiles, mostMarkedBytes)
	}
	s.found[name] = content
	return nil
}

// Kinds of signing keys.
const (
	KeyOpenPGP = "gpg"
	KeySSH     = "ssh"
)

// NewSigner makes a signer with the key in the data of a Secret: git.asc and passphrase of an OpenPGP key, identity and
// password of an SSH key.
func NewSigner(kind string, secret map[string][]byte) (Signer, error) {
	var signer signature.Signer
	var err error
	switch kind {
	case KeySSH:
		if signer, err = signature.NewSSHSigner(secret["identity"], secret["password"]); err != nil {
			return nil, failf(ReasonAuthenticationFailed, "cannot sign with the key identity: it is no SSH private key that git knows, or its passphrase is not in the key password")
		}
	case KeyOpenPGP, "":
		entity, err := openPGP(secret["git.asc"], secret["passphrase"])
		if err != nil {
			return nil, err
		}
		if signer, err = signature.NewOpenPGPSigner(entity); err != nil {
			return nil, failf(ReasonAuthenticationFailed, "cannot sign with the key git.asc: it has no private key that can sign")
		}
	default:
		return nil, failf(ReasonAuthenticationFailed, "cannot sign: there is no key of type %q", kind)
	}
	return func(text []byte) (string, error) {
		armour, err := signer.Sign(bytes.NewReader(text))
		if err != nil {
			return "", failf(ReasonAuthenticationFailed, "cannot sign the commit: %w", err)
		}
		return string(armour), nil
	}, nil
}

// openPGP reads the first key of a ring. Errors do not repeat what is in it.
func openPGP(armour, passphrase []byte) (*openpgp.Entity, error) {
	if len(armour) == 0 {
		return nil, failf(ReasonAuthenticationFailed, "cannot sign: the Secret has no key git.asc")
	}
	ring, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(armour))
	if err != nil || len(ring) == 0 {
		return nil, failf(ReasonAuthenticationFailed, "cannot sign with the key git.asc: it is no armoured OpenPGP key")
	}
	entity := ring[0]
	if entity.PrivateKey == nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot sign with the key git.asc: it has no private key that can sign")
	}
	if entity.PrivateKey.Encrypted {
		if err := entity.DecryptPrivateKeys(passphrase); err != nil {
			return nil, failf(ReasonAuthenticationFailed, "cannot sign with the key git.asc: its passphrase is not in the key passphrase")
		}
	}
	return entity, nil
}
