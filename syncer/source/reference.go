package source

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"github.com/cascade-gitops/cascade/syncer/version"
)

// Reference names what to follow; the first that is set counts, in the order
// Commit, Name, SemVer, Tag, Branch. Nothing means the branch master.
type Reference struct {
	Branch string
	Tag    string
	// SemVer is a range of versions; the tag of the highest one in it counts.
	SemVer string
	// Name is a full reference name, e.g. refs/pull/1/head.
	Name   string
	Commit string
}

// target is a resolved reference: fetch is the hash to ask for, commit what it
// leads to.
type target struct {
	fetch      plumbing.Hash
	commit     plumbing.Hash
	revision   string
	advertised bool
	// others are what to ask for where the history of fetch does not have the commit, or fetch is none.
	others []plumbing.Hash
	// tag is the name of the tag, if it is one, and tagObject its own object, if
	// it has one.
	tag       string
	tagObject plumbing.Hash
}

// resolve finds what a reference names. It is more than one target only for
// tags of versions that differ in nothing but their build metadata: the newest
// commit of those counts. The revision has Flux's form: <branch or
// tag>@sha1:<commit>, or sha1:<commit> for a bare commit.
func resolve(adv *packp.AdvRefs, ref Reference) ([]target, error) {
	lookup := func(name, shown string) (target, error) {
		name = strings.TrimSuffix(name, "^{}")
		hash, ok := adv.References[name]
		if !ok && name == "HEAD" && adv.Head != nil {
			hash, ok = *adv.Head, true
		}
		if !ok {
			return target{}, &Error{Reason: ReasonGitOperationFailed, Err: noReference(name)}
		}
		t := target{fetch: hash, commit: hash, advertised: true}
		if tag, ok := strings.CutPrefix(name, "refs/tags/"); ok {
			t.tag = tag
		}
		if peeled, ok := adv.Peeled[name]; ok {
			t.commit, t.tagObject = peeled, hash
		}
		t.revision = shown + "@sha1:" + t.commit.String()
		return t, nil
	}
	one := func(t target, err error) ([]target, error) {
		if err != nil {
			return nil, err
		}
		return []target{t}, nil
	}
	if len(adv.References) == 0 {
		return nil, failf(ReasonEmptyRepository, "cannot follow the repository: it has no commits yet")
	}
	branch := ref.Branch
	if branch == "" {
		branch = "master"
	}
	switch {
	case ref.Commit != "":
		if !plumbing.IsHash(ref.Commit) {
			return nil, failf(ReasonGitOperationFailed, "cannot follow commit %q: not a full SHA-1", ref.Commit)
		}
		commit := plumbing.NewHash(ref.Commit)
		t := target{commit: commit, revision: "sha1:" + commit.String()}
		if ref.Branch != "" {
			t.revision = ref.Branch + "@sha1:" + commit.String()
		}
		for name, h := range adv.References {
			if peeled, ok := adv.Peeled[name]; h == commit || ok && peeled == commit {
				t.fetch, t.advertised = h, true
				return []target{t}, nil
			}
		}
		// Where the server gives out no single commits, the commit is in a history: that of what is named, or of any branch.
		from := "refs/heads/" + branch
		switch {
		case ref.Branch != "":
		case ref.Name != "":
			from = strings.TrimSuffix(ref.Name, "^{}")
		case ref.Tag != "":
			from = "refs/tags/" + ref.Tag
		}
		tip, found := adv.References[from]
		if t.fetch = tip; !found && adv.Head != nil {
			t.fetch = *adv.Head
		}
		if ref.Branch == "" || !found {
			t.others = branches(adv, t.fetch)
		}
		return []target{t}, nil
	case ref.Name != "":
		return one(lookup(ref.Name, ref.Name))
	case ref.SemVer != "":
		tags, err := highest(adv, ref.SemVer)
		if err != nil {
			return nil, err
		}
		var targets []target
		for _, tag := range tags {
			t, err := lookup("refs/tags/"+tag, tag)
			if err != nil {
				return nil, err
			}
			targets = append(targets, t)
		}
		return targets, nil
	case ref.Tag != "":
		return one(lookup("refs/tags/"+ref.Tag, ref.Tag))
	}
	return one(lookup("refs/heads/"+branch, branch))
}

// branches are the tips of all branches but one.
func branches(adv *packp.AdvRefs, but plumbing.Hash) []plumbing.Hash {
	var tips []plumbing.Hash
	for name, tip := range adv.References {
		if strings.HasPrefix(name, "refs/heads/") && tip != but {
			tips = append(tips, tip)
		}
	}
	plumbing.HashesSort(tips)
	return slices.Compact(tips)
}

// maxTied bounds the tags of one version whose commits are compared.
const maxTied = 20

// highest returns the tags of the highest version in a range, sorted.
func highest(adv *packp.AdvRefs, versions string) ([]string, error) {
	constraint, err := semver.NewConstraint(versions)
	if err != nil {
		return nil, failf(ReasonGitOperationFailed, "cannot read the version range %q in spec.ref.semver: %w", versions, err)
	}
	var best *semver.Version
	var tags []string
	for name := range adv.References {
		tag, ok := strings.CutPrefix(name, "refs/tags/")
		if !ok {
			continue
		}
		v, err := version.Parse(tag)
		if err != nil || !constraint.Check(v) {
			continue
		}
		switch {
		case best == nil || v.GreaterThan(best):
			best, tags = v, []string{tag}
		case v.Equal(best):
			tags = append(tags, tag)
		}
	}
	if best == nil {
		return nil, failf(ReasonGitOperationFailed, "cannot find a tag in the version range %q", versions)
	}
	slices.Sort(tags)
	if len(tags) > maxTied {
		return nil, failf(ReasonLimitExceeded, "cannot choose a tag: %d tags are of version %s, more than the limit of %d", len(tags), best, maxTied)
	}
	return tags, nil
}

// ErrReferenceMissing: a repository has no branch or tag of a name.
var ErrReferenceMissing = errors.New("no such reference")

// noReference is its name.
type noReference string

func (r noReference) Error() string {
	return fmt.Sprintf("cannot find reference %s in the repository", string(r))
}

func (noReference) Is(target error) bool { return target == ErrReferenceMissing }
