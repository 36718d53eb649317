package source

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"golang.org/x/crypto/ssh"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// draft sets files of the checkout to contents.
func draft(checkout, branch string, changes map[string]string) Draft {
	return Draft{
		Checkout: Reference{Branch: checkout}, Branch: branch, Name: "Image Bot", Address: "bot@example.com", At: time.Unix(1767225600, 0),
		Decide: func(context.Context, *Files) (map[string][]byte, string, error) {
			out := map[string][]byte{}
			for name, content := range changes {
				out[name] = []byte(content)
			}
			return out, "update images\n\nof apps\n", nil
		},
	}
}

func write(t *testing.T, m *Mirrors, o Origin, d Draft) Written {
	t.Helper()
	w, err := m.Write(t.Context(), o, d)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWrite(t *testing.T) {
	o := serve(t, gitserver.Options{})
	first := o.commit("main", map[string]string{"app/a.yaml": "a: 1\n", "app/link": "-> a.yaml", "app/deep/b.yaml": "b: 1\n", "z": "z"})
	m := mirrors(t)
	w := write(t, m, o.url(), draft("main", "main", map[string]string{"app/a.yaml": "a: 2\n", "app/deep/b.yaml": "b: 2\n"}))
	if now := o.git("", "rev-parse", "main"); w.Commit != now || w.Revision != "main@sha1:"+now || w.Tries != 1 {
		t.Errorf("wrote %+v, and the branch has %s", w, now)
	}
	if got := o.git("", "rev-parse", "main^"); got != first {
		t.Errorf("the parent is %s; want %s", got, first)
	}
	if got, want := o.git("", "diff", "--stat=80", first, "main"), " app/a.yaml      | 2 +-\n app/deep/b.yaml | 2 +-\n 2 files changed, 2 insertions(+), 2 deletions(-)"; got != strings.TrimSpace(want) {
		t.Errorf("the change is\n%s", got)
	}
	if got, want := o.git("", "show", "--no-patch", "--format=%an <%ae> %at|%cn <%ce> %ct|%B", "main"), "Image Bot <bot@example.com> 1767225600|Image Bot <bot@example.com> 1767225600|update images\n\nof apps"; got != want {
		t.Errorf("the commit is\n%s", got)
	}
	o.git("", "fsck", "--strict", "--no-dangling")
	if s := fetch(t, m, o.url(), onMain, nil); read(t, s, "app/a.yaml") != "a: 2\n" || read(t, s, "app/link") != "a: 2\n" {
		t.Errorf("the snapshot has %q", read(t, s, "app/a.yaml"))
	}

	for name, tt := range map[string]struct {
		reason string
		draft  func() Draft
		fails  string
	}{
		"Nothing": {reason: "no change, no commit", draft: func() Draft { return draft("main", "main", nil) }},
		"Same":    {reason: "the same content, no commit", draft: func() Draft { return draft("main", "main", map[string]string{"z": "z"}) }},
		"Known": {reason: "the revision is known, and nobody is asked", draft: func() Draft {
			d := draft("main", "main", map[string]string{"z": "other"})
			d.Known = w.Revision
			return d
		}},
		"NewFile":   {reason: "files are changed, none is made", draft: func() Draft { return draft("main", "main", map[string]string{"app/new.yaml": "x"}) }, fails: "there is no"},
		"Directory": {reason: "a directory is no file", draft: func() Draft { return draft("main", "main", map[string]string{"app": "x"}) }, fails: "is not the file"},
		"Link":      {reason: "a link is no file", draft: func() Draft { return draft("main", "main", map[string]string{"app/link": "x"}) }, fails: "is not the file"},
		"NoBranch":  {reason: "nobody said where to push", draft: func() Draft { return draft("main", "", map[string]string{"z": "x"}) }, fails: "which branch"},
		"BadBranch": {reason: "not a name of a branch", draft: func() Draft { return draft("main", "a..b", map[string]string{"z": "x"}) }, fails: "cannot push to branch"},
		"BadAuthor": {reason: "a name does not add headers", draft: func() Draft {
			d := draft("main", "main", map[string]string{"z": "x"})
			d.Name = "a\nparent b"
			return d
		}, fails: "not allowed"},
		"Absent":   {reason: "no such checkout", draft: func() Draft { return draft("gone", "gone", map[string]string{"z": "x"}) }, fails: "cannot find reference"},
		"Forced":   {reason: "nothing is forced", draft: func() Draft { d := draft("main", "main", nil); d.Refspec = "+refs/heads/main:refs/heads/x"; return d }, fails: "forced"},
		"Deleted":  {reason: "nothing is deleted", draft: func() Draft { d := draft("main", "main", nil); d.Refspec = ":refs/heads/x"; return d }, fails: "deleted"},
		"Others":   {reason: "only what is written here is pushed", draft: func() Draft { d := draft("main", "main", nil); d.Refspec = "refs/heads/other:refs/heads/x"; return d }, fails: "what is pushed is"},
		"Wildcard": {reason: "one reference", draft: func() Draft { d := draft("main", "main", nil); d.Refspec = "refs/heads/main:refs/heads/*"; return d }, fails: "one whole reference"},
		"Decided": {reason: "an error of who decides", draft: func() Draft {
			d := draft("main", "main", nil)
			d.Decide = func(context.Context, *Files) (map[string][]byte, string, error) {
				return nil, "", errors.New("bad marker")
			}
			return d
		}, fails: "bad marker"},
	} {
		t.Run(name, func(t *testing.T) {
			before := o.git("", "rev-parse", "main")
			got, err := m.Write(t.Context(), o.url(), tt.draft())
			if tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)) || tt.fails == "" && err != nil {
				t.Errorf("%s: %v; want %q", tt.reason, err, tt.fails)
			}
			if after := o.git("", "rev-parse", "main"); got.Commit != "" || after != before {
				t.Errorf("%s: wrote %+v, and the branch is at %s, before at %s", tt.reason, got, after, before)
			}
			if name == "Known" && !got.Same {
				t.Errorf("%s: %+v", tt.reason, got)
			}
		})
	}
}

// TestWriteBranch: what becomes of a branch of its own.
func TestWriteBranch(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a": "1", "b": "1"})
	m := mirrors(t)
	auto := func(own Written, a string) Written {
		d := draft("main", "auto", map[string]string{"a": a})
		d.Own, d.OwnBasis = own.Commit, own.Basis
		return write(t, m, o.url(), d)
	}
	ancestor := func(commit, of string) {
		t.Helper()
		o.git("", "merge-base", "--is-ancestor", commit, of)
	}
	first := auto(Written{}, "2")
	if o.git("", "rev-parse", "auto") != first.Commit || o.git("", "show", "main:a") != "1" || !strings.HasPrefix(first.Revision, "main@sha1:") {
		t.Fatalf("the branch was not made of main: %+v", first)
	}
	if w := auto(first, "2"); w.Commit != "" {
		t.Errorf("the same change was committed twice: %+v", w)
	}
	second := auto(first, "3")
	ancestor(first.Commit, second.Commit)
	if got := o.git("", "rev-list", "--parents", "-n1", "auto"); len(strings.Fields(got)) != 2 {
		t.Errorf("main did not move, and the parents are %s", got)
	}
	// Main moves: the branch has its files, and nothing was forced.
	moved := o.commit("main", map[string]string{"b": "2"})
	third := auto(second, "3")
	ancestor(second.Commit, third.Commit)
	ancestor(moved, third.Commit)
	if o.git("", "show", "auto:b") != "2" || o.git("", "show", "auto:a") != "3" {
		t.Errorf("the branch has not the files of main")
	}
	// A person pushes to the branch: what they wrote stays.
	person := o.commit("auto", map[string]string{"b": "mine"})
	o.commit("main", map[string]string{"b": "3"})
	fourth := auto(third, "4")
	ancestor(person, fourth.Commit)
	if o.git("", "show", "auto:b") != "mine" || o.git("", "show", "auto:a") != "4" {
		t.Errorf("the commit of a person was lost: %q", o.git("", "show", "auto:b"))
	}
	// It stays when the branch ends with a commit of the automation again, whether or not its basis is on record.
	for i, own := range []Written{fourth, {}} {
		if own.Commit == "" {
			own.Commit = o.git("", "rev-parse", "auto") // as a status has it that was written before there was a basis
		}
		w := auto(own, fmt.Sprint("4", i))
		ancestor(own.Commit, w.Commit)
		if o.git("", "show", "auto:b") != "mine" || w.Basis != BasisBranch {
			t.Errorf("the commit of a person was reverted: %q, %+v", o.git("", "show", "auto:b"), w)
		}
	}
	// The branch is merged, and goes on where it was merged to.
	merge := o.git("", "commit-tree", "-p", "main", "-p", "auto", "-m", "merge", "auto^{tree}")
	o.git("", "update-ref", "refs/heads/main", merge)
	fifth := auto(Written{Commit: o.git("", "rev-parse", "auto"), Basis: BasisBranch}, "5")
	if got := o.git("", "rev-list", "--parents", "-n1", "auto"); got != fifth.Commit+" "+merge || fifth.Basis != BasisCheckout {
		t.Errorf("the parents are %s; want %s; wrote %+v", got, merge, fifth)
	}
	// The branch is deleted, and made again.
	o.git("", "update-ref", "-d", "refs/heads/auto")
	sixth := auto(fifth, "6")
	if got := o.git("", "rev-parse", "auto^"); got != merge || sixth.Commit == "" {
		t.Errorf("the branch was made of %s; want %s", got, merge)
	}
	o.git("", "fsck", "--strict", "--no-dangling")
}

// TestWriteCheckoutGoesBack: a checkout that is a commit or a tag may go back to an earlier one. What people wrote since stays on
// the branch, also in the runs after that.
func TestWriteCheckoutGoesBack(t *testing.T) {
	pin := func(commit, _ string) Reference { return Reference{Branch: "main", Commit: commit} }
	bare := func(commit, _ string) Reference { return Reference{Commit: commit} }
	tag := func(_, tag string) Reference { return Reference{Tag: tag} }
	for name, tt := range map[string]struct {
		reason string
		at     func(commit, tag string) Reference
		branch string
		// twice: it was made of the earlier commit before.
		twice bool
		// unrecorded: what the commit was made of is not on record.
		unrecorded, tipsOnly bool
	}{
		"Pin":        {reason: "the branch that is pinned is that of everybody", at: pin, branch: "main"},
		"Beside":     {reason: "a pull request does not revert what main has", at: pin, branch: "auto"},
		"Bare":       {reason: "a commit without a branch", at: bare, branch: "auto"},
		"Tag":        {reason: "a tag was withdrawn, and the branch is that of everybody", at: tag, branch: "main"},
		"TagBeside":  {reason: "a pull request, of tags", at: tag, branch: "auto"},
		"Twice":      {reason: "it was there before", at: pin, branch: "auto", twice: true},
		"Unrecorded": {reason: "the second parent tells what it was made of", at: pin, branch: "auto", twice: true, unrecorded: true},
		"NotTold":    {reason: "the server does not tell, and nothing is certain", at: tag, branch: "main", tipsOnly: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := serve(t, gitserver.Options{})
			if tt.tipsOnly {
				o.git("", "config", "uploadpack.allowReachableSHA1InWant", "false")
			}
			var own Written
			m := mirrors(t)
			run := func(at Reference, value string) {
				d := draft("", tt.branch, map[string]string{"a": value})
				d.Checkout, d.Own, d.OwnBasis, d.Made = at, own.Commit, own.Basis, own.Revision
				if tt.unrecorded {
					d.OwnBasis = ""
				}
				w := write(t, m, o.url(), d)
				if w.Commit != "" || w.Basis == BasisBranch {
					own.Basis = w.Basis
				}
				if own.Revision = w.Revision; w.Commit != "" {
					own.Commit = w.Commit
				}
			}
			older := tt.at(o.commit("main", map[string]string{"a": "1", "b": "1", "c": "1"}), "v1")
			o.git("", "tag", "v1", "main")
			if tt.twice {
				run(older, "2")
			}
			newer := tt.at(o.commit("main", map[string]string{"b": "2", "c": "2"}), "v2")
			o.git("", "tag", "v2", "main")
			run(newer, "2")
			for _, value := range []string{"2", "3", "4"} {
				run(older, value)
				if got := o.git("", "show", tt.branch+":a") + o.git("", "show", tt.branch+":b") + o.git("", "show", tt.branch+":c"); got != value+"22" {
					t.Fatalf("%s: the branch has %s; want %s22; wrote %+v", tt.reason, got, value, own)
				}
			}
			o.git("", "fsck", "--strict", "--no-dangling")
		})
	}
}

// TestWriteCheckoutGoesOn: a branch of its own follows a checkout that is a commit or a tag to a later one, however many changes there
// were between.
func TestWriteCheckoutGoesOn(t *testing.T) {
	for name, at := range map[string]func(commit, tag string) Reference{
		"Pin": func(commit, _ string) Reference { return Reference{Branch: "main", Commit: commit} },
		"Tag": func(_, tag string) Reference { return Reference{Tag: tag} },
	} {
		t.Run(name, func(t *testing.T) {
			o := serve(t, gitserver.Options{})
			m := mirrors(t)
			var own Written
			run := func(at Reference, value string) {
				d := draft("", "auto", map[string]string{"a": value})
				d.Checkout, d.Own, d.OwnBasis, d.Made = at, own.Commit, own.Basis, own.Revision
				own = write(t, m, o.url(), d)
			}
			older := at(o.commit("main", map[string]string{"a": "1", "b": "1"}), "v1")
			o.git("", "tag", "v1", "main")
			run(older, "2")
			run(older, "3")
			newer := at(o.commit("main", map[string]string{"b": "2"}), "v2")
			o.git("", "tag", "v2", "main")
			if run(newer, "4"); o.git("", "show", "auto:b") != "2" || o.git("", "show", "auto:a") != "4" || own.Basis != BasisCheckout {
				t.Errorf("wrote %+v, and the branch has not the files of the checkout", own)
			}
		})
	}
}

// TestWriteBranchAtRest: that nothing is to be done holds as long as the branch is as it was, too.
func TestWriteBranchAtRest(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		// between is what others do after the push.
		between func(o *origin)
		// next is what the branch is to have then.
		next       string
		same, push bool
	}{
		"Rest":    {"nobody did anything", func(*origin) {}, "2", true, false},
		"Gone":    {"the branch was deleted: it is made again", func(o *origin) { o.git("", "update-ref", "-d", "refs/heads/auto") }, "2", false, true},
		"Changed": {"somebody set it back: that is set again", func(o *origin) { o.commit("auto", map[string]string{"a": "1"}) }, "2", false, true},
		"Others":  {"somebody changed another file: nothing is to be set", func(o *origin) { o.commit("auto", map[string]string{"b": "2"}) }, "2", false, false},
		"Merged": {"the branch was merged and deleted: nothing is to be set", func(o *origin) {
			o.git("", "update-ref", "refs/heads/main", "auto")
			o.git("", "update-ref", "-d", "refs/heads/auto")
		}, "2", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := serve(t, gitserver.Options{})
			o.commit("main", map[string]string{"a": "1", "b": "1"})
			m := mirrors(t)
			last := write(t, m, o.url(), draft("main", "auto", map[string]string{"a": "2"}))
			tt.between(o)
			again := func() Written {
				d := draft("main", "auto", map[string]string{"a": tt.next})
				d.Own, d.OwnBasis, d.Known, d.Tip = last.Commit, last.Basis, last.Revision, last.Tip
				return write(t, m, o.url(), d)
			}
			w := again()
			if w.Same != tt.same || (w.Commit != "") != tt.push || tt.push && o.git("", "show", "auto:a") != tt.next {
				t.Errorf("%s: %+v", tt.reason, w)
			}
			if w.Commit != "" {
				last = w
			}
			last.Revision, last.Tip = w.Revision, w.Tip
			if w := again(); !w.Same {
				t.Errorf("%s: it is looked at again: %+v", tt.reason, w)
			}
		})
	}
}

// TestWriteBranchUnrecorded: a commit whose basis is not on record, as before there was one, is told from what is on top of others by
// what it is made of.
func TestWriteBranchUnrecorded(t *testing.T) {
	person := func(o *origin) { o.commit("auto", map[string]string{"b": "mine"}) }
	for name, tt := range map[string]struct {
		reason string
		// before and after are what others do before the commit of the automation, and after it.
		before, after func(o *origin)
		basis         Basis
	}{
		"Made":   {reason: "its parent is of main", basis: BasisCheckout},
		"Others": {reason: "its parent is of somebody else", before: person, basis: BasisBranch},
		"Merged": {reason: "its parent is of somebody else, and main has it by now", before: person, basis: BasisCheckout,
			after: func(o *origin) { o.git("", "update-ref", "refs/heads/main", "auto^") }},
	} {
		t.Run(name, func(t *testing.T) {
			o := serve(t, gitserver.Options{})
			o.commit("main", map[string]string{"a": "1", "b": "1", "c": "1"})
			m := mirrors(t)
			if tt.before != nil {
				tt.before(o)
			}
			first := write(t, m, o.url(), draft("main", "auto", map[string]string{"a": "2"}))
			if tt.after != nil {
				tt.after(o)
			}
			o.commit("main", map[string]string{"c": "2"})
			d := draft("main", "auto", map[string]string{"a": "3"})
			d.Own = first.Commit
			second := write(t, m, o.url(), d)
			if followed := o.git("", "show", "auto:c") == "2"; second.Basis != tt.basis || followed != (tt.basis == BasisCheckout) {
				t.Errorf("%s: wrote %+v, and the branch follows main: %t; want basis %s", tt.reason, second, followed, tt.basis)
			}
			if tt.before != nil && o.git("", "show", "auto:b") != "mine" {
				t.Errorf("%s: the commit of a person was lost", tt.reason)
			}
			// Once main was taken in, the commit has it as a second parent.
			o.commit("main", map[string]string{"c": "3"})
			d = draft("main", "auto", map[string]string{"a": "4"})
			d.Own = second.Commit
			if third := write(t, m, o.url(), d); third.Basis != tt.basis {
				t.Errorf("%s: wrote %+v; want basis %s", tt.reason, third, tt.basis)
			}
		})
	}
}

// TestWriteBranchShared: two automations push to one branch, in turn and more often than the other. What each of them
// set stays.
func TestWriteBranchShared(t *testing.T) {
	for name, turns := range map[string][]int{
		"InTurn": {0, 1, 0, 1, 0, 1},
		"Twice":  {0, 0, 1, 1, 0, 0, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := serve(t, gitserver.Options{})
			o.commit("main", map[string]string{"f0": "-", "f1": "-", "b": "1"})
			m := mirrors(t)
			var last [2]Written
			want := [2]string{"-", "-"}
			for n, who := range turns {
				want[who] = fmt.Sprint(n)
				d := draft("main", "auto", map[string]string{fmt.Sprint("f", who): want[who]})
				d.Own, d.OwnBasis = last[who].Commit, last[who].Basis
				last[who] = write(t, m, o.url(), d)
				if got := [2]string{o.git("", "show", "auto:f0"), o.git("", "show", "auto:f1")}; got != want {
					t.Fatalf("after turn %d the branch has %q; want %q", n, got, want)
				}
			}
		})
	}
}

func TestWriteRefspec(t *testing.T) {
	o := serve(t, gitserver.Options{})
	base := o.commit("main", map[string]string{"a": "1"})
	m := mirrors(t)
	d := draft("main", "auto", map[string]string{"a": "2"})
	d.Refspec = "refs/heads/auto:refs/for/main"
	w := write(t, m, o.url(), d)
	if o.git("", "rev-parse", "auto") != w.Commit || o.git("", "rev-parse", "refs/for/main") != w.Commit || o.git("", "rev-parse", "main") != base {
		t.Fatalf("wrote %+v", w)
	}
	// Another reference that went its own way stays there, and the branch has the commit.
	stray := o.git("", "commit-tree", "-p", base, "-m", "stray", "main^{tree}")
	o.git("", "update-ref", "refs/for/main", stray)
	d = draft("main", "auto", map[string]string{"a": "3"})
	d.Own, d.Refspec = w.Commit, "refs/heads/auto:refs/for/main"
	second, err := m.Write(t.Context(), o.url(), d)
	if ReasonOf(err) != ReasonRefspecFailed || second.Commit == "" || o.git("", "rev-parse", "auto") != second.Commit || o.git("", "rev-parse", "refs/for/main") != stray {
		t.Fatalf("wrote %+v, %v", second, err)
	}
	// When it may be written, it is, although nothing is to change.
	o.git("", "update-ref", "refs/for/main", w.Commit)
	d = draft("main", "auto", map[string]string{"a": "3"})
	d.Own, d.Refspec, d.Owed = second.Commit, "refs/heads/auto:refs/for/main", second.Commit
	write(t, m, o.url(), d)
	if got := o.git("", "rev-parse", "refs/for/main"); got != second.Commit {
		t.Errorf("the second reference is at %s; want %s", got, second.Commit)
	}
	write(t, m, o.url(), d) // and again, where there is nothing to push
}

// TestWriteRefspecAhead: what the second reference is to have is told before the branch has it, so that it comes there whatever happens
// in between, and nothing is pushed that could not be told.
func TestWriteRefspecAhead(t *testing.T) {
	o := serve(t, gitserver.Options{})
	base := o.commit("main", map[string]string{"a": "1"})
	m := mirrors(t)
	d := draft("main", "auto", map[string]string{"a": "2"})
	d.Refspec = "refs/heads/auto:refs/for/main"
	d.Ahead = func(_ context.Context, commit string) error { d.Owed = commit; return errors.New("not on record") }
	w, err := m.Write(t.Context(), o.url(), d)
	if err == nil || w.Commit != "" || o.git("", "for-each-ref", "refs/heads/auto", "refs/for") != "" {
		t.Fatalf("wrote %+v, %v", w, err)
	}
	// The process ends once the branch has the commit: nobody knows of that but by what was told.
	d.Ahead = func(_ context.Context, commit string) error {
		if o.git("", "for-each-ref", "refs/heads/auto") != "" {
			t.Error("the branch was pushed before it was told")
		}
		d.Owed = commit
		return nil
	}
	write(t, m, o.url(), d)
	o.git("", "update-ref", "-d", "refs/for/main")
	d.Ahead = nil
	write(t, m, o.url(), d)
	if got := o.git("", "rev-parse", "refs/for/main"); got != d.Owed || got == base {
		t.Errorf("the second reference is at %s; want %s", got, d.Owed)
	}
	// What is on top of it is not the caller's to push there.
	o.git("", "update-ref", "-d", "refs/for/main")
	o.commit("auto", map[string]string{"b": "mine"})
	if write(t, m, o.url(), d); o.git("", "for-each-ref", "refs/for") != "" {
		t.Error("the commit of a person was pushed to the second reference")
	}
}

// TestWriteRefspecEachTime: the second reference goes along with each push, also when the checkout moves or the branch begins anew.
func TestWriteRefspecEachTime(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		// between is done after a push.
		between func(o *origin)
	}{
		"Again":  {reason: "nothing but the value changes", between: func(*origin) {}},
		"Moved":  {reason: "the checkout moves", between: func(o *origin) { o.commit("main", map[string]string{"b": o.git("", "rev-parse", "auto")}) }},
		"Person": {reason: "a person pushes to the branch", between: func(o *origin) { o.commit("auto", map[string]string{"b": o.git("", "rev-parse", "auto")}) }},
		"Merged": {reason: "the checkout is at the branch", between: func(o *origin) { o.git("", "update-ref", "refs/heads/main", "auto") }},
		"Behind": {reason: "the second reference was set back by several pushes", between: func(o *origin) { o.git("", "update-ref", "refs/for/main", "main") }},
	} {
		t.Run(name, func(t *testing.T) {
			o := serve(t, gitserver.Options{})
			o.commit("main", map[string]string{"a": "1", "b": "1"})
			m := mirrors(t)
			var last Written
			for _, value := range []string{"2", "3", "4"} {
				d := draft("main", "auto", map[string]string{"a": value})
				d.Own, d.OwnBasis, d.Refspec = last.Commit, last.Basis, "refs/heads/auto:refs/for/main"
				last = write(t, m, o.url(), d)
				if now := o.git("", "rev-parse", "refs/for/main"); now != last.Commit || o.git("", "rev-parse", "auto") != now {
					t.Errorf("%s: wrote %+v, and the second reference has %s", tt.reason, last, now)
				}
				tt.between(o)
			}
		})
	}
}

// TestWriteRefspecUnknown: that the server does not tell where the second reference is in history is not told as commits that it has.
func TestWriteRefspecUnknown(t *testing.T) {
	o := serve(t, gitserver.Options{})
	older := o.commit("main", map[string]string{"a": "0"})
	o.commit("main", map[string]string{"a": "1"})
	m := mirrors(t)
	first := write(t, m, o.url(), draft("main", "auto", map[string]string{"a": "2"}))
	o.git("", "update-ref", "refs/for/main", older)
	o.git("", "config", "uploadpack.allowReachableSHA1InWant", "false")
	d := draft("main", "auto", map[string]string{"a": "3"})
	d.Own, d.OwnBasis, d.Refspec = first.Commit, first.Basis, "refs/heads/auto:refs/for/main"
	second, err := m.Write(t.Context(), o.url(), d)
	if ReasonOf(err) != ReasonRefspecFailed || second.Commit == "" || !strings.Contains(err.Error(), "allowReachableSHA1InWant") || strings.Contains(err.Error(), "forced") {
		t.Errorf("wrote %+v, %v", second, err)
	}
}

func TestWriteOptions(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a": "1"})
	m := mirrors(t)
	d := draft("main", "main", map[string]string{"a": "2"})
	d.Options = map[string]string{"merge_request.create": "", "topic": "images"}
	if _, err := m.Write(t.Context(), o.url(), d); err == nil || !strings.Contains(err.Error(), "push options") {
		t.Fatalf("a server without push options: %v", err)
	}
	o.git("", "config", "receive.advertisePushOptions", "true")
	hook := "#!/bin/sh\ni=0\nwhile [ $i -lt $GIT_PUSH_OPTION_COUNT ]; do eval echo \\$GIT_PUSH_OPTION_$i >> \"$GIT_DIR/options\"; i=$((i+1)); done\ncat >/dev/null\n"
	if err := os.WriteFile(filepath.Join(o.root, repository+".git", "hooks", "pre-receive"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, m, o.url(), d)
	got, err := os.ReadFile(filepath.Join(o.root, repository+".git", "options"))
	if err != nil || string(got) != "merge_request.create=\ntopic=images\n" {
		t.Errorf("the server got %q, %v", got, err)
	}
}

// TestWriteLogins: a commit is pushed with the credential that reads the repository, by HTTPS and SSH; one that
// only reads is refused with what to do.
func TestWriteLogins(t *testing.T) {
	o := serve(t, gitserver.Options{Username: "user", Password: "secret", TLS: true})
	o.commit("main", map[string]string{"a": "1"})
	known := []byte(o.KnownHosts())
	m := mirrors(t)
	write(t, m, Origin{URL: o.HTTPURL(repository), Secret: map[string][]byte{"username": []byte("user"), "password": []byte("secret"), "ca.crt": o.CA()}},
		draft("main", "main", map[string]string{"a": "2"}))
	write(t, m, Origin{URL: o.SSHURL(repository), Secret: map[string][]byte{"identity": o.ClientKey(), "known_hosts": known}},
		draft("main", "main", map[string]string{"a": "3"}))
	if got := o.git("", "show", "main:a"); got != "3" {
		t.Errorf("the file has %q", got)
	}
	key, err := o.ReadKey(repository)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Write(t.Context(), Origin{URL: o.SSHURL(repository), Secret: map[string][]byte{"identity": key, "known_hosts": known}}, draft("main", "main", map[string]string{"a": "4"}))
	if err == nil || errors.Is(err, ErrMoved) {
		t.Errorf("a key that only reads: %v", err)
	}
	if got := o.git("", "show", "main:a"); got != "3" {
		t.Errorf("the file has %q", got)
	}
}

func TestWriteSigned(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sealed := func(passphrase string) []byte {
		block, err := ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte(passphrase))
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(block)
	}
	public, err := ssh.NewPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	entity, err := openpgp.NewEntity("Image Bot", "", "bot@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	armoured := func(kind string, write func(io.Writer) error) []byte {
		var out bytes.Buffer
		w, err := armor.Encode(&out, kind, nil)
		if err == nil {
			err = errors.Join(write(w), w.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	ring := armoured(openpgp.PublicKeyType, func(w io.Writer) error { return entity.Serialize(w) })
	plain := armoured(openpgp.PrivateKeyType, func(w io.Writer) error { return entity.SerializePrivate(w, nil) })
	if err := entity.EncryptPrivateKeys([]byte("pass"), nil); err != nil {
		t.Fatal(err)
	}
	locked := armoured(openpgp.PrivateKeyType, func(w io.Writer) error { return entity.SerializePrivateWithoutSigning(w, nil) })
	for name, tt := range map[string]struct {
		reason string
		kind   string
		secret map[string][]byte
		fails  string
	}{
		"SSH":             {reason: "a key with its passphrase", kind: KeySSH, secret: map[string][]byte{"identity": sealed("pass"), "password": []byte("pass")}},
		"SSHNoPassphrase": {reason: "a passphrase that is missing", kind: KeySSH, secret: map[string][]byte{"identity": sealed("pass")}, fails: "passphrase"},
		"SSHNoKey":        {reason: "not a key", kind: KeySSH, secret: map[string][]byte{"identity": []byte("secret-text")}, fails: "no SSH private key"},
		"PGP":             {reason: "a plain key", kind: KeyOpenPGP, secret: map[string][]byte{"git.asc": plain}},
		"PGPDefault":      {reason: "the type without a name", secret: map[string][]byte{"git.asc": plain}},
		"PGPPassphrase":   {reason: "a key with its passphrase", kind: KeyOpenPGP, secret: map[string][]byte{"git.asc": locked, "passphrase": []byte("pass")}},
		"PGPWrong":        {reason: "a wrong passphrase", kind: KeyOpenPGP, secret: map[string][]byte{"git.asc": locked, "passphrase": []byte("x")}, fails: "passphrase"},
		"PGPPublic":       {reason: "a public key signs nothing", kind: KeyOpenPGP, secret: map[string][]byte{"git.asc": ring}, fails: "no private key"},
		"PGPNone":         {reason: "no key", kind: KeyOpenPGP, fails: "no key git.asc"},
		"Unknown":         {reason: "no such type", kind: "x509", fails: "no key of type"},
	} {
		t.Run(name, func(t *testing.T) {
			sign, err := NewSigner(tt.kind, tt.secret)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), "secret-text") {
					t.Fatalf("%s: %v; want %q", tt.reason, err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			o := serve(t, gitserver.Options{})
			o.commit("main", map[string]string{"a": "1"})
			m := mirrors(t)
			d := draft("main", "main", map[string]string{"a": "2"})
			d.Sign = sign
			write(t, m, o.url(), d)
			snapshot := fetch(t, m, o.url(), onMain, nil)
			if _, err := snapshot.Verify(Verification{Head: true, KeyRings: []string{string(ring)}, AuthorizedKeys: []string{string(ssh.MarshalAuthorizedKey(public))}}); err != nil {
				t.Errorf("%s: %v", tt.reason, err)
			}
			o.git("", "fsck", "--strict", "--no-dangling")
		})
	}
}

// TestWriteRaces: four people push commits, each by real git and again when they lose a race, while an automation changes a file of
// theirs just when one of them pushes. All of both land, and none is lost. CASCADE_RACES is how many commits each of them makes.
func TestWriteRaces(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"app/image.yaml": "0", "README": "x"})
	const people = 4
	each := 5
	if more, err := strconv.Atoi(os.Getenv("CASCADE_RACES")); err == nil {
		each = more
	}
	run := func(dir string, args ...string) error {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=n", "GIT_AUTHOR_EMAIL=e", "GIT_COMMITTER_NAME=n", "GIT_COMMITTER_EMAIL=e"}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %v: %w: %s", args, err, out)
		}
		return nil
	}
	var working sync.WaitGroup
	errs := make(chan error, people)
	pushing := make(chan struct{}, people*each)
	for person := range people {
		working.Add(1)
		go func() {
			defer working.Done()
			dir := filepath.Join(o.root, fmt.Sprintf("clone-%d", person))
			err := run(o.root, "clone", "--quiet", o.HTTPURL(repository), dir)
			for n := 0; n < each && err == nil; n++ {
				name := fmt.Sprintf("person-%d-%d", person, n)
				for first := true; ; first = false {
					if err = errors.Join(run(dir, "fetch", "--quiet"), run(dir, "reset", "--quiet", "--hard", "origin/main"), os.WriteFile(filepath.Join(dir, name), nil, 0o600),
						run(dir, "add", name), run(dir, "commit", "--quiet", "-m", name)); err != nil {
						break
					}
					if first {
						pushing <- struct{}{}
					}
					if run(dir, "push", "--quiet", "origin", "HEAD:main") == nil {
						break
					}
				}
			}
			errs <- err
		}()
	}
	go func() { working.Wait(); close(pushing) }()
	m := mirrors(t)
	var commits []string
	tries, n := 0, 0
	for range pushing {
		n++
		for {
			w, err := m.Write(t.Context(), o.url(), draft("main", "main", map[string]string{"app/image.yaml": fmt.Sprint(n)}))
			tries += w.Tries
			if errors.Is(err, ErrMoved) {
				continue // as the next reconcile would
			}
			if err != nil {
				t.Fatal(err)
			}
			commits = append(commits, w.Commit)
			break
		}
	}
	for range people {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	files := strings.Fields(o.git("", "ls-tree", "--name-only", "main"))
	landed := slices.DeleteFunc(slices.Clone(files), func(name string) bool { return !strings.HasPrefix(name, "person-") })
	if len(landed) != people*each {
		t.Errorf("%d of %d commits of people landed", len(landed), people*each)
	}
	history := strings.Fields(o.git("", "rev-list", "main"))
	for _, commit := range commits {
		if !slices.Contains(history, commit) {
			t.Errorf("commit %s of the automation was lost", commit)
		}
	}
	if want := 1 + people*each + len(commits); len(history) != want {
		t.Errorf("the history has %d commits; want %d", len(history), want)
	}
	o.git("", "fsck", "--strict", "--no-dangling")
	t.Logf("%d of %d commits of people and %d of the automation landed, by %d tries", len(landed), people*each, len(commits), tries)
}

func TestFilesWith(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{
		"a.yaml": "x: 1 # TOKEN", "b.yml": "TOKEN", "c.txt": "TOKEN", "apps/d.yaml": "TOKEN", "apps/e.yaml": "nothing", "apps/link.yaml": "-> d.yaml",
		"plain/f.yaml": "nothing", "long.yaml": "TOKEN" + strings.Repeat("x", MaxMarkedBytes),
	})
	m := mirrors(t)
	look := func(dir string) (names []string, err error) {
		d := draft("main", "main", nil)
		d.Decide = func(ctx context.Context, files *Files) (map[string][]byte, string, error) {
			found, err := files.With(ctx, dir, "TOKEN", ".yaml", ".yml")
			for name := range found {
				names = append(names, name)
			}
			slices.Sort(names)
			return nil, "", err
		}
		_, err = m.Write(t.Context(), o.url(), d)
		return names, err
	}
	for dir, want := range map[string][]string{
		"": {"a.yaml", "apps/d.yaml", "b.yml"}, "./": {"a.yaml", "apps/d.yaml", "b.yml"}, "apps": {"apps/d.yaml"}, "/apps/": {"apps/d.yaml"}, "./plain": nil, "../apps": {"apps/d.yaml"},
	} {
		if got, err := look(dir); err != nil || !slices.Equal(got, want) {
			t.Errorf("below %q: %q, %v; want %q", dir, got, err, want)
		}
	}
	for _, dir := range []string{"gone", "a.yaml", "apps/link.yaml"} {
		if got, err := look(dir); err == nil || ReasonOf(err) != ReasonInvalidDraft {
			t.Errorf("below %q: %q, %v", dir, got, err)
		}
	}
}
