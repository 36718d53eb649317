package source

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRetained: a revision that somebody needs stays when the source moves on, one that is
// missing is asked for once, and nothing stays that nobody needs.
func TestRetained(t *testing.T) {
	key, other := Key{Kind: "GitRepository"}, Key{Kind: "GitRepository"}
	key.Name, other.Name = "fleet", "other"
	a, b := Holder{Kind: "Child"}, Holder{Kind: "Child"}
	a.Name, b.Name = "a", "b"
	at := func(revision string) *Snapshot { return &Snapshot{Revision: revision} }
	s := NewSnapshots()
	var wanted, told []string
	s.OnWanted(func(k Key) { wanted = append(wanted, k.Name) })
	s.OnKept(func(holders []Holder) {
		for _, h := range holders {
			told = append(told, h.Name)
		}
		slices.Sort(told)
	})
	one, two := at("main@sha1:1"), at("main@sha1:2")
	s.Put(key, one)
	check := func(reason string, want ...*Snapshot) {
		t.Helper()
		for i, revision := range []string{"main@sha1:1", "main@sha1:2", "main@sha1:3"} {
			if got := s.At(key, revision); got != want[i] {
				t.Errorf("%s: At(%s) = %v, want %v", reason, revision, got, want[i])
			}
		}
	}
	s.Retain(a, Pinned{key, "main@sha1:1"})
	check("the newest is at its revision", one, nil, nil)
	s.Put(key, two)
	check("the one before was retained", one, two, nil)
	if wanted != nil {
		t.Errorf("%v were asked for, although nothing was missing", wanted)
	}
	s.Retain(b, Pinned{key, "main@sha1:3"})
	s.Retain(b, Pinned{key, "main@sha1:3"})
	s.Retain(a, Pinned{key, "main@sha1:1"}, Pinned{key, "main@sha1:3"})
	if diff := cmp.Diff([]string{"fleet"}, wanted); diff != "" {
		t.Errorf("asked for, -want, +got:\n%s", diff)
	}
	if all, missing := s.Retained(key); !slices.Equal(all, []string{"main@sha1:1", "main@sha1:3"}) || !slices.Equal(missing, []string{"main@sha1:3"}) {
		t.Errorf("Retained() = %v, %v", all, missing)
	}
	if err := errors.New("not on the branch"); !s.Fail(key, "main@sha1:3", err) || s.Fail(key, "main@sha1:3", err) || !slices.Equal(told, []string{"a", "b"}) {
		t.Errorf("a failure is not told once: %v", told)
	}
	var failed *RevisionError
	if err := s.Failure(key, "main@sha1:3"); !errors.As(err, &failed) || err.Error() != "cannot fetch revision main@sha1:3 of GitRepository /fleet: not on the branch" {
		t.Errorf("Failure() = %v", err)
	}
	s.Silence(key)
	if s.Put(key, two); s.Silent(key) || s.Failure(key, "main@sha1:3") != nil {
		t.Errorf("once the source answers again: silent %t, %v", s.Silent(key), s.Failure(key, "main@sha1:3"))
	}
	s.Silence(key)
	s.Fail(key, "main@sha1:3", errors.New("it does not answer"))
	if s.Answer(key); s.Silent(key) || s.Failure(key, "main@sha1:3") != nil {
		t.Errorf("once it answers: silent %t, %v", s.Silent(key), s.Failure(key, "main@sha1:3"))
	}
	if err := errors.New("not on the branch"); !s.Fail(key, "main@sha1:3", err) || s.Failure(key, "main@sha1:3") == nil {
		t.Error("what it says after that is not told")
	}
	told = []string{"a", "b"}
	three := at("main@sha1:3")
	s.Keep(key, three)
	s.Keep(key, at("main@sha1:4"))
	if check("fetched", one, two, three); s.Failure(key, "main@sha1:3") != nil || s.At(key, "main@sha1:4") != nil || len(told) != 4 {
		t.Errorf("after it was fetched: %v, %v, %v", s.Failure(key, "main@sha1:3"), s.At(key, "main@sha1:4"), told)
	}
	s.Retain(a)
	check("one of two let go", nil, two, three)
	s.Put(key, nil)
	check("the source is gone", nil, nil, nil)
	s.Put(other, one)
	if got := s.At(other, "main@sha1:3"); got != nil {
		t.Errorf("another source has %v", got)
	}
	s.Retain(b)
	if len(s.older.by)+len(s.older.wanted) != 0 {
		t.Errorf("left are %v and %v", s.older.by, s.older.wanted)
	}
}

// TestRetainedAgain: a source that comes to a revision again is at it.
func TestRetainedAgain(t *testing.T) {
	key := Key{Kind: "GitRepository"}
	s := NewSnapshots()
	one, again := &Snapshot{Revision: "1"}, &Snapshot{Revision: "1"}
	s.Put(key, one)
	s.Retain(Holder{}, Pinned{key, "1"})
	s.Put(key, &Snapshot{Revision: "2"})
	s.Put(key, again)
	if got := s.At(key, "1"); got != again {
		t.Error("an earlier snapshot of the revision hides the newest")
	}
	if all, missing := s.Retained(key); len(all)+len(missing) != 0 {
		t.Errorf("Retained() = %v, %v, want nothing: it is the newest", all, missing)
	}
	s.Put(key, &Snapshot{Revision: "3"})
	if got := s.At(key, "1"); got != again {
		t.Error("it was not kept")
	}
}
