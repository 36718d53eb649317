package source

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/git/signature"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// Reasons of a failed verification, as Flux's source-controller names them.
const (
	ReasonInvalidVerificationMode = "InvalidVerificationMode"
	ReasonInvalidGitObject        = "InvalidGitObject"
	ReasonInvalidTagSignature     = "InvalidTagSignature"
	ReasonInvalidCommitSignature  = "InvalidCommitSignature"
)

// provenance is a commit, and the tag that led to it, as they were written.
type provenance struct {
	gen     *generation
	commit  plumbing.Hash
	tree    plumbing.Hash
	message string
	time    time.Time
	// tagName is empty if no tag led here, tag is zero if it has no object.
	tagName string
	tag     plumbing.Hash
}

// provenance reads the commit. Its tree is taken from the very bytes that a
// signature covers, and the library has to agree: a header that two parsers
// read in two ways is how a signed commit comes to stand for another tree
// (CVE-2026-45022).
func (g *generation) provenance(t target) (*provenance, error) {
	raw, err := g.raw(plumbing.CommitObject, t.commit)
	if err != nil {
		return nil, err
	}
	header, message, _ := bytes.Cut(raw, []byte("\n\n"))
	first, rest, _ := bytes.Cut(header, []byte("\n"))
	name, ok := bytes.CutPrefix(first, []byte("tree "))
	if !ok || !plumbing.IsHash(string(name)) || bytes.HasPrefix(rest, []byte("tree ")) || bytes.Contains(rest, []byte("\ntree ")) {
		return nil, failf(ReasonGitOperationFailed, "cannot use commit %s: it does not begin with one tree", t.commit)
	}
	g.mu.Lock()
	c, err := object.GetCommit(g.store, t.commit)
	g.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("cannot read commit %s: %w", t.commit, err)
	}
	tree := plumbing.NewHash(string(name))
	if c.TreeHash != tree {
		return nil, failf(ReasonGitOperationFailed, "cannot use commit %s: its header can be read in two ways", t.commit)
	}
	return &provenance{
		gen: g, commit: t.commit, tree: tree, message: strings.ToValidUTF8(string(message), "?"), time: c.Committer.When,
		tagName: t.tag, tag: t.tagObject,
	}, nil
}

// parents of a commit.
func (g *generation) parents(commit plumbing.Hash) ([]plumbing.Hash, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, err := object.GetCommit(g.store, commit)
	if err != nil {
		return nil, fmt.Errorf("cannot read commit %s: %w", commit, err)
	}
	return c.ParentHashes, nil
}

// Verification says what has to be signed, and by whom.
type Verification struct {
	Tag, Head bool
	// KeyRings are PGP public keys in armour, AuthorizedKeys SSH public keys in
	// the format of the file of that name.
	KeyRings, AuthorizedKeys []string
}

// Verify checks signatures against the exact bytes of the objects that the
// snapshot is of, and tells what was verified with which key. An error has a
// reason.
func (s *Snapshot) Verify(v Verification) (string, error) {
	p := s.git
	if p == nil {
		return "", failf(ReasonInvalidVerificationMode, "cannot verify a signature: the source is not from Git")
	}
	var verified []string
	if v.Tag {
		if p.tagName == "" {
			return "", failf(ReasonInvalidVerificationMode, "cannot verify tag object's signature if a tag reference is not specified")
		}
		if p.tag.IsZero() {
			return "", failf(ReasonInvalidGitObject, "cannot verify signature of tag '%s' since it is not signed", p.tagName)
		}
		shown := p.tagName + "@" + p.tag.String()
		raw, err := p.gen.raw(plumbing.TagObject, p.tag)
		if err != nil {
			return "", err
		}
		if !bytes.HasPrefix(raw, []byte("object "+p.commit.String()+"\ntype commit\n")) {
			return "", failf(ReasonInvalidGitObject, "cannot verify tag '%s' since it does not point to commit %s itself", shown, p.commit)
		}
		payload, armour := splitTag(raw)
		if armour == "" {
			return "", failf(ReasonInvalidGitObject, "cannot verify signature of tag '%s' since it is not signed", shown)
		}
		key, err := v.check(armour, payload)
		if err != nil {
			return "", failf(ReasonInvalidTagSignature, "signature verification of tag '%s' failed: %w", shown, err)
		}
		verified = append(verified, fmt.Sprintf("tag '%s' with key '%s'", shown, key))
	}
	if v.Head {
		raw, err := p.gen.raw(plumbing.CommitObject, p.commit)
		if err != nil {
			return "", err
		}
		payload, armour, err := splitCommit(raw)
		var key string
		if err == nil {
			key, err = v.check(armour, payload)
		}
		if err != nil {
			return "", failf(ReasonInvalidCommitSignature, "signature verification of commit '%s' failed: %w", p.commit, err)
		}
		verified = append(verified, fmt.Sprintf("commit '%s' with key '%s'", p.commit, key))
	}
	return "verified signature of\n\t- " + strings.Join(verified, "\n\t- "), nil
}

func (v Verification) check(armour string, payload []byte) (string, error) {
	switch signature.GetSignatureType(armour) {
	case "openpgp":
		if len(v.KeyRings) == 0 {
			return "", fmt.Errorf("PGP signature detected but no PGP public keys found in secret (keys with .asc suffix)")
		}
		return signature.VerifyPGPSignature(armour, payload, v.KeyRings...)
	case "ssh":
		if len(v.AuthorizedKeys) == 0 {
			return "", fmt.Errorf("SSH signature detected but no SSH public keys found in secret (keys with .sshpub suffix)")
		}
		return signature.VerifySSHSignature(armour, payload, v.AuthorizedKeys...)
	}
	if armour == "" {
		return "", fmt.Errorf("it is not signed")
	}
	return "", fmt.Errorf("the type of its signature is not supported")
}

// splitCommit takes the signature out of a commit: the header gpgsig with the
// lines that continue it. What is signed is all the rest, byte for byte; as in
// git, that is also without a signature for SHA-256 repositories.
func splitCommit(raw []byte) (payload []byte, armour string, err error) {
	end := bytes.Index(raw, []byte("\n\n"))
	if end < 0 {
		end = len(raw) - 1
	}
	header, body := raw[:end+1], raw[end+1:]
	var signed, found []byte
	times, inside, kept := 0, false, true
	for line := range bytes.Lines(header) {
		if line[0] == ' ' {
			if inside {
				found = append(found, line[1:]...)
			}
			if kept {
				signed = append(signed, line...)
			}
			continue
		}
		inside, kept = false, true
		if rest, ok := bytes.CutPrefix(line, []byte("gpgsig ")); ok {
			times++
			inside, kept = true, false
			found = append(found, rest...)
		} else if bytes.HasPrefix(line, []byte("gpgsig-sha256 ")) {
			kept = false
		}
		if kept {
			signed = append(signed, line...)
		}
	}
	if times > 1 {
		return nil, "", fmt.Errorf("it has %d signatures", times)
	}
	return slices.Concat(signed, body), string(found), nil
}

// splitTag takes the signature off the end of a tag: it begins with the last
// line that begins one.
func splitTag(raw []byte) (payload []byte, armour string) {
	at, pos := -1, 0
	for line := range bytes.Lines(raw) {
		if bytes.HasPrefix(line, []byte("-----BEGIN ")) && signature.GetSignatureType(string(line)) != "unknown" {
			at = pos
		}
		pos += len(line)
	}
	if at < 0 {
		return raw, ""
	}
	return raw[:at], string(raw[at:])
}
