package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

// ErrNoReference: the repository has no such reference, or it leads to no annotated tag.
var ErrNoReference = errors.New("the repository has no such tag")

// MostTags bounds the annotated tags that are read of a repository at once.
const MostTags = 20

// Tag is an annotated tag on a commit, as somebody wrote it.
type Tag struct {
	// Reference that points to it, and the name that it has itself.
	Reference, Name string
	// Object is its own hash, Commit that of the commit which it is on.
	Object, Commit string
	// Tagger as "name <address>", and Message without the signature.
	Tagger, Message string
	// Err is why it says nothing, as one that leads to the commit through another tag; nil if it does.
	Err error

	payload []byte
	armour  string
}

// Verify returns the fingerprint or identifier of the key that the tag is signed with.
func (t *Tag) Verify(v Verification) (key string, err error) {
	if t.Err != nil {
		return "", t.Err
	}
	if t.armour == "" {
		return "", failf(ReasonInvalidGitObject, "tag '%s' is not signed", t.Name)
	}
	if key, err = v.check(t.armour, t.payload); err != nil {
		return "", failf(ReasonInvalidTagSignature, "signature verification of tag '%s' failed: %w", t.Name, err)
	}
	return key, nil
}

// Tags reads annotated tags of a repository with one list of references, and one request for
// each tag that is not here. pick is given the commits of all annotated tags, by the names of
// their references, and says which to read; of those, the first twenty are. An empty
// repository has none. Beside an error it returns those that could be read all the same.
func (m *Mirrors) Tags(ctx context.Context, origin Origin, pick func(commits map[string]string) []string) (tags []Tag, err error) {
	defer recovered(&err)
	mir, dial, err := m.mirror(origin)
	if err != nil {
		return nil, err
	}
	if err := mir.enter(ctx); err != nil {
		return nil, err
	}
	defer mir.leave()
	adv, err := mir.list(ctx, dial)
	if err != nil {
		return nil, err
	}
	commits := make(map[string]string, len(adv.Peeled))
	for name, commit := range adv.Peeled {
		commits[name] = commit.String()
	}
	names := pick(commits)
	for _, name := range names[:min(len(names), MostTags)] {
		commit, ok := adv.Peeled[name]
		if !ok {
			continue
		}
		// Whoever may write tags may write one that is too large to be read: the others say what they say.
		tag, failure := mir.tag(ctx, dial, adv.References[name], commit)
		if failure != nil {
			if err == nil {
				err = fmt.Errorf("cannot read %s: %w", name, failure)
			}
			continue
		}
		tag.Reference = name
		tags = append(tags, *tag)
	}
	return tags, err
}

// tag reads a tag by its own hash and that of its commit.
func (m *mirror) tag(ctx context.Context, dial *dialer, object, commit plumbing.Hash) (_ *Tag, err error) {
	defer recovered(&err)
	if err := m.bring(ctx, dial, target{fetch: object, commit: commit, tagObject: object, advertised: true}); err != nil {
		return nil, err
	}
	raw, err := m.current.raw(plumbing.TagObject, object)
	if err != nil {
		return nil, err
	}
	tag, err := parseTag(raw, commit)
	if err != nil {
		tag = &Tag{Commit: commit.String(), Err: err}
	}
	tag.Object = object.String()
	return tag, nil
}

// recovered makes a panic of the library, which has panicked on what servers sent, an error
// of one repository.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = failf(ReasonGitOperationFailed, "cannot read what the server sent: %v", p)
	}
}

// list returns the references of the repository.
func (m *mirror) list(ctx context.Context, dial *dialer) (*packp.AdvRefs, error) {
	wire, err := dial.connect(ctx)
	if err != nil {
		return nil, connectError(dial, err)
	}
	defer wire.Close()
	adv, err := wire.references(ctx)
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return packp.NewAdvRefs(), nil
	}
	if err != nil {
		return nil, connectError(dial, err)
	}
	return adv, nil
}

// bring has a target in the present generation, as if the server were without some
// capabilities. SSH serves one request for each connection.
func (m *mirror) bring(ctx context.Context, dial *dialer, want target, without ...capability.Capability) error {
	if m.holds(want) {
		return nil
	}
	wire, err := dial.connect(ctx)
	if err != nil {
		return connectError(dial, err)
	}
	defer wire.Close()
	adv, err := wire.references(ctx)
	if err != nil {
		return connectError(dial, err)
	}
	for _, c := range without {
		adv.Capabilities.Delete(c)
	}
	return m.receive(ctx, dial, wire, adv, want)
}

// parseTag reads a tag of a commit from its exact bytes, which are what a signature covers.
func parseTag(raw []byte, commit plumbing.Hash) (*Tag, error) {
	rest, ok := bytes.CutPrefix(raw, []byte("object "+commit.String()+"\ntype commit\ntag "))
	if !ok {
		return nil, failf(ReasonInvalidGitObject, "it is not on commit %s itself", commit)
	}
	t := &Tag{Commit: commit.String()}
	payload, armour := splitTag(raw)
	t.payload, t.armour = payload, armour
	rest = rest[:len(rest)-len(armour)]
	name, rest, _ := bytes.Cut(rest, []byte("\n"))
	header, message, _ := bytes.Cut(rest, []byte("\n\n"))
	t.Name, t.Message = string(name), strings.ToValidUTF8(string(message), "?")
	if tagger, ok := bytes.CutPrefix(header, []byte("tagger ")); ok {
		who := object.Signature{}
		who.Decode(tagger)
		t.Tagger = short(strings.ToValidUTF8(who.Name+" <"+who.Email+">", "?"), 200)
	}
	return t, nil
}

// Contains reports whether a commit is in the history of another one, the tip, of a
// repository. The server says so without sending either: it has nothing to send of a commit
// to who has the tip. tag is an annotated tag on the commit, by which a server finds it that
// gives out no single commits; empty without one.
func (m *Mirrors) Contains(ctx context.Context, origin Origin, tip, commit, tag string) (_ bool, err error) {
	defer recovered(&err)
	if tip == commit {
		return true, nil
	}
	mir, dial, err := m.mirror(origin)
	if err != nil {
		return false, err
	}
	if err := mir.enter(ctx); err != nil {
		return false, err
	}
	defer mir.leave()
	wire, err := dial.connect(ctx)
	if err != nil {
		return false, connectError(dial, err)
	}
	defer wire.Close()
	adv, err := wire.references(ctx)
	if err != nil {
		return false, connectError(dial, err)
	}
	single := adv.Capabilities.Supports(capability.AllowReachableSHA1InWant)
	want, sends := plumbing.NewHash(commit), uint32(0)
	if tag != "" {
		want, sends = plumbing.NewHash(tag), 1
	} else if !single && !adv.Capabilities.Supports(capability.AllowTipSHA1InWant) {
		return false, noSingleCommits(commit)
	}
	req := packp.NewUploadPackRequestFromCapabilities(adv.Capabilities)
	multiplexed := sideband.Sideband
	switch {
	case adv.Capabilities.Supports(capability.Sideband64k):
		_ = req.Capabilities.Set(capability.Sideband64k)
		multiplexed = sideband.Sideband64k
	case adv.Capabilities.Supports(capability.Sideband):
		_ = req.Capabilities.Set(capability.Sideband)
	}
	req.Wants, req.Haves = []plumbing.Hash{want}, []plumbing.Hash{plumbing.NewHash(tip)}
	answer, err := wire.pack(ctx, req)
	if err != nil && tag == "" && !single && ctx.Err() == nil {
		return false, fmt.Errorf("%w: %w", noSingleCommits(commit), connectError(dial, err))
	}
	if err != nil {
		return false, connectError(dial, err)
	}
	defer answer.Close()
	const head = 12
	var pack io.Reader = &limited{r: answer, left: maxPreambleBytes, max: maxPreambleBytes, what: "the server sent", flag: "ask who runs it"}
	if req.Capabilities.Supports(capability.Sideband64k) || req.Capabilities.Supports(capability.Sideband) {
		pack = sideband.NewDemuxer(multiplexed, pack)
	}
	var begin [head]byte
	if _, err := io.ReadFull(pack, begin[:]); err != nil {
		return false, connectError(dial, err)
	}
	if version := binary.BigEndian.Uint32(begin[4:8]); string(begin[:4]) != "PACK" || version != packfile.VersionSupported {
		return false, failf(ReasonGitOperationFailed, "cannot read the server's answer: it is no pack")
	}
	return binary.BigEndian.Uint32(begin[8:]) == sends, nil
}

func noSingleCommits(commit string) error {
	return failf(ReasonGitOperationFailed, "cannot find out whether commit %s is on the branch: the server gives out no single commits (uploadpack.allowReachableSHA1InWant)", commit)
}
