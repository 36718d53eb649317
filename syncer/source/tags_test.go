package source

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/git/signature"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

const proofRef = "refs/cascade/proven/staging"

// newTag is a tag on a commit under the reference of a proof.
func newTag(commit, before, message string) NewTag {
	return NewTag{Reference: proofRef, Before: before, Name: "cascade/proven/staging", Commit: commit, Tagger: "cascade", Address: "staging@cascade.dev",
		At: time.Unix(1_700_000_000, 0), Message: message}
}

// TestPush: one process writes a tag, over each transport, and another reads it, exactly as it
// was written; who comes too late loses nothing of the other's.
func TestPush(t *testing.T) {
	o := serve(t, gitserver.Options{Username: "ann", Password: "secret"})
	first := o.commit("main", map[string]string{"a.yaml": "1"})
	second := o.commit("main", map[string]string{"a.yaml": "2"})
	login := Origin{URL: o.HTTPURL(repository), Secret: map[string][]byte{"username": []byte("ann"), "password": []byte("secret")}}
	shell := Origin{URL: o.SSHURL(repository), Secret: map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(o.KnownHosts())}}
	m := mirrors(t)
	one, err := m.Push(t.Context(), login, newTag(first, "", "subject\n\n{}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Push(t.Context(), login, newTag(second, "", "late")); !errors.Is(err, ErrMoved) {
		t.Errorf("a push that expects no reference: %v", err)
	}
	two, err := m.Push(t.Context(), shell, newTag(second, one, "by ssh"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Push(t.Context(), shell, newTag(first, one, "late")); !errors.Is(err, ErrMoved) {
		t.Errorf("a push that expects an older tag: %v", err)
	}
	for name, origin := range map[string]Origin{"HTTP": login, "SSH": shell} {
		tags, err := m.Tags(t.Context(), origin, func(commits map[string]string) []string {
			if commits[proofRef] != second {
				t.Errorf("%s: the list has %v", name, commits)
			}
			return []string{"refs/cascade/proven/none", proofRef}
		})
		if err != nil || len(tags) != 1 {
			t.Fatalf("%s: %v, %v", name, tags, err)
		}
		if got := tags[0]; got.Object != two || got.Commit != second || got.Name != "cascade/proven/staging" || got.Message != "by ssh\n" || got.Tagger != "cascade <staging@cascade.dev>" {
			t.Errorf("%s: read %+v", name, got)
		}
	}
	o.git("", "fsck", "--strict")
	_, err = m.Push(t.Context(), Origin{URL: o.HTTPURL(repository)}, newTag(first, two, "x"))
	if ReasonOf(err) != ReasonAuthenticationFailed {
		t.Errorf("without a login: %v", err)
	}
}

// TestTagSignatures: what was signed for one name or one commit is worth nothing elsewhere.
func TestTagSignatures(t *testing.T) {
	o := serve(t, gitserver.Options{})
	good, bad := newSigners(t), newSigners(t)
	commit := o.commit("main", map[string]string{"a.yaml": "1"})
	keys := Verification{KeyRings: []string{good.keyRing}, AuthorizedKeys: []string{good.sshKeys}}
	sign := func(by signature.Signer, name, message string) string {
		payload := "object " + commit + "\ntype commit\ntag " + name + "\ntagger Ann <ann@example.com> 1000 +0000\n\n" + message + "\n"
		if by == nil {
			return payload
		}
		armoured, err := by.Sign(strings.NewReader(payload))
		if err != nil {
			t.Fatal(err)
		}
		return payload + string(armoured)
	}
	for _, tt := range []struct {
		reason, name, raw string
		ok                bool
	}{
		{"an SSH key", "ssh", sign(good.ssh, "ssh", "go"), true},
		{"a PGP key", "pgp", sign(good.pgp, "pgp", "go"), true},
		{"somebody else's key", "other", sign(bad.ssh, "other", "go"), false},
		{"no signature", "plain", sign(nil, "plain", "go"), false},
		{"a word was changed after it was signed", "changed", strings.Replace(sign(good.ssh, "changed", "go"), "go", "no", 1), false},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			o.git("", "update-ref", "refs/tags/"+tt.name, o.git(tt.raw, "hash-object", "-t", "tag", "-w", "--stdin"))
			tags, err := mirrors(t).Tags(t.Context(), o.url(), func(map[string]string) []string { return []string{"refs/tags/" + tt.name} })
			if err != nil || len(tags) != 1 {
				t.Fatalf("%v, %v", tags, err)
			}
			key, err := tags[0].Verify(keys)
			if (err == nil) != tt.ok || tt.ok && key == "" {
				t.Errorf("key %q, %v", key, err)
			}
			if tags[0].Tagger != "Ann <ann@example.com>" || tags[0].Name != tt.name || strings.Contains(tags[0].Message, "BEGIN") {
				t.Errorf("read %+v", tags[0])
			}
		})
	}
}

// TestTagOfATag: a tag that leads to the commit through another one says nothing about it, and takes nothing from others.
func TestTagOfATag(t *testing.T) {
	o := serve(t, gitserver.Options{})
	commit := o.commit("main", map[string]string{"a.yaml": "1"})
	inner := o.git("object "+commit+"\ntype commit\ntag inner\ntagger n <e> 1000 +0000\n\nx\n", "hash-object", "-t", "tag", "-w", "--stdin")
	outer := o.git("object "+inner+"\ntype tag\ntag outer\ntagger n <e> 1000 +0000\n\nx\n", "hash-object", "-t", "tag", "-w", "--stdin")
	o.git("", "update-ref", "refs/tags/outer", outer)
	o.git("", "update-ref", "refs/tags/inner", inner)
	tags, err := mirrors(t).Tags(t.Context(), o.url(), func(map[string]string) []string { return []string{"refs/tags/outer", "refs/tags/inner"} })
	if err != nil || len(tags) != 2 {
		t.Fatalf("read %+v, %v", tags, err)
	}
	if _, err := tags[0].Verify(Verification{}); ReasonOf(err) != ReasonInvalidGitObject || tags[0].Err == nil || tags[0].Reference != "refs/tags/outer" {
		t.Errorf("read %+v, %v", tags[0], err)
	}
	if tags[1].Err != nil || tags[1].Name != "inner" || tags[1].Commit != commit {
		t.Errorf("read %+v", tags[1])
	}
}

// TestTagTooLarge: a tag that cannot be read takes nothing from others, whether these come before it or after.
func TestTagTooLarge(t *testing.T) {
	o := serve(t, gitserver.Options{})
	commit := o.commit("main", map[string]string{"a.yaml": "1"})
	var names []string
	for _, name := range []string{"a", "large", "z"} {
		text := "object " + commit + "\ntype commit\ntag " + name + "\ntagger n <e> 1000 +0000\n\n"
		if name == "large" {
			text += strings.Repeat("x", MaxFileBytes)
		}
		o.git("", "update-ref", "refs/tags/"+name, o.git(text+"\n", "hash-object", "-t", "tag", "-w", "--stdin"))
		names = append(names, "refs/tags/"+name)
	}
	tags, err := mirrors(t).Tags(t.Context(), o.url(), func(map[string]string) []string { return names })
	if ReasonOf(err) != ReasonLimitExceeded || !strings.Contains(err.Error(), "refs/tags/large") {
		t.Errorf("the error is %v", err)
	}
	if len(tags) != 2 || tags[0].Name != "a" || tags[1].Name != "z" || tags[1].Commit != commit {
		t.Errorf("read %+v", tags)
	}
}

// TestContains: whether a commit is in the history of another one, without its history here.
func TestContains(t *testing.T) {
	o := serve(t, gitserver.Options{Username: "ann", Password: "secret"})
	first := o.commit("main", map[string]string{"a.yaml": "1"})
	second := o.commit("main", map[string]string{"a.yaml": "2"})
	aside := o.commit("aside", map[string]string{"b.yaml": "1"})
	third := o.commit("main", map[string]string{"a.yaml": "3"})
	login := Origin{URL: o.HTTPURL(repository), Secret: map[string][]byte{"username": []byte("ann"), "password": []byte("secret")}}
	shell := Origin{URL: o.SSHURL(repository), Secret: map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(o.KnownHosts())}}
	m := mirrors(t)
	of := map[string]string{}
	for _, commit := range []string{first, aside} {
		tag := newTag(commit, "", "x")
		tag.Reference = "refs/cascade/proven/" + commit
		hash, err := m.Push(t.Context(), login, tag)
		if err != nil {
			t.Fatal(err)
		}
		of[commit] = hash
	}
	for _, tt := range []struct {
		reason, tip, commit, tag string
		want                     bool
	}{
		{"itself", third, third, "", true},
		{"the one before", third, second, "", true},
		{"the first", third, first, "", true},
		{"the first, by a tag", third, first, of[first], true},
		{"of another branch", third, aside, "", false},
		{"of another branch, by a tag", third, aside, of[aside], false},
		{"one that follows", first, third, "", false},
		{"a tip that the server does not have", strings.Repeat("a", 40), first, "", false},
	} {
		for name, origin := range map[string]Origin{"HTTP": login, "SSH": shell} {
			got, err := m.Contains(t.Context(), origin, tt.tip, tt.commit, tt.tag)
			if err != nil || got != tt.want {
				t.Errorf("%s, %s: %v, %v", tt.reason, name, got, err)
			}
		}
	}
	if got, err := m.Contains(t.Context(), login, third, strings.Repeat("b", 40), ""); err == nil && got {
		t.Error("a commit that nobody has is in the history")
	}
	o.git("", "config", "uploadpack.allowReachableSHA1InWant", "false")
	if _, err := m.Contains(t.Context(), login, third, first, ""); err == nil || !strings.Contains(err.Error(), "gives out no single commits") {
		t.Errorf("a server that gives out none: %v", err)
	}
	if got, err := m.Contains(t.Context(), login, third, first, of[first]); err != nil || !got {
		t.Errorf("by its tag: %v, %v", got, err)
	}
	o.git("", "config", "uploadpack.allowTipSHA1InWant", "true")
	if _, err := m.Contains(t.Context(), shell, third, first, ""); err == nil || !strings.Contains(err.Error(), "gives out no single commits") {
		t.Errorf("a server that gives out tips: %v", err)
	}
	if got, err := m.Contains(t.Context(), login, third, first, ""); err != nil || !got {
		t.Errorf("one that cannot tell tips apart: %v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Contains(ctx, login, third, first, ""); err == nil {
		t.Error("it answered after its deadline")
	}
}
