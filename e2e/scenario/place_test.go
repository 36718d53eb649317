package scenario

import (
	"os"
	"path/filepath"
	"testing"
)

// TestQueue: places are given to who takes longest first, to no more than there are, and
// nobody waits for who was killed.
func TestQueue(t *testing.T) {
	q := queue{dir: t.TempDir(), places: 1, crowd: func() bool { return true }}
	enter := func(seconds int, name string) *os.File {
		t.Helper()
		f, err := q.enter(seconds, name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	take := func(waiting *os.File, want bool, reason string) *os.File {
		t.Helper()
		place, err := q.take(waiting)
		if err != nil {
			t.Fatal(err)
		}
		if (place != nil) != want {
			t.Fatalf("%s: a place is given: %t", reason, place != nil)
		}
		return place
	}
	short, long, killed := enter(1, "TestShort"), enter(100, "TestLong"), enter(1000, "TestKilled")
	take(long, false, "one that takes longer goes first")
	if err := killed.Close(); err != nil {
		t.Fatal(err)
	}
	take(short, false, "the longest that is left goes first")
	place := take(long, true, "it is its turn")
	take(short, false, "there is no other place")
	if err := place.Close(); err != nil {
		t.Fatal(err)
	}
	take(short, true, "the place is free again")
	if left, err := filepath.Glob(filepath.Join(q.dir, "waiting", "*")); err != nil || len(left) > 0 {
		t.Errorf("still waiting are %q, %v", left, err)
	}
}

// TestCrowd: on a machine with more to do than it can, a test begins alone, and not beside another.
func TestCrowd(t *testing.T) {
	crowded := true
	q := queue{dir: t.TempDir(), places: 3, crowd: func() bool { return crowded }}
	take := func(name string) *os.File {
		t.Helper()
		waiting, err := q.enter(1, name)
		if err != nil {
			t.Fatal(err)
		}
		place, err := q.take(waiting)
		if err != nil {
			t.Fatal(err)
		}
		if place == nil {
			if err := waiting.Close(); err != nil {
				t.Fatal(err)
			}
		}
		return place
	}
	first := take("TestFirst")
	if first == nil {
		t.Fatal("nobody may begin, although nothing runs")
	}
	if take("TestSecond") != nil {
		t.Error("another one begins")
	}
	crowded = false
	second := take("TestSecond")
	if second == nil {
		t.Fatal("there is room again, and it waits")
	}
	crowded = true
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if take("TestThird") != nil {
		t.Error("another one begins, in the place before the one that is taken")
	}
}
