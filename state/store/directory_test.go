package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// forward makes so many records.
func forward(t *testing.T, d place, n int) {
	t.Helper()
	for range n {
		_, tag, err := d.record(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.swap(t.Context(), tag, []byte(`{"format":1}`), "", nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAllDeleted: a place whose versions somebody deleted is not one that was never used. What
// is saved there from then on counts.
func TestAllDeleted(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if versions, err := s.Versions(t.Context()); err != nil || len(versions) != 0 {
		t.Errorf("a new place has %v, %v", versions, err)
	}
	l, err := s.Lock(t.Context(), "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if versions, err := s.Versions(t.Context()); err != nil || len(versions) != 0 {
		t.Errorf("one that was locked has %v, %v", versions, err)
	}
	if _, err := s.Save(t.Context(), l, []byte("one")); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.age"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Versions(t.Context()); !errors.Is(err, ErrGone) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Save(t.Context(), l, []byte("two")); err != nil {
		t.Fatal(err)
	}
	if versions, err := s.Versions(t.Context()); err != nil || len(versions) != 1 || versions[0].String() != "1-2" {
		t.Errorf("then it has %v, %v", versions, err)
	}
}

// TestStoppedWriter has a process go on that was stopped after it read a record: others made
// many since, and deleted the one that it would be refused by.
func TestStoppedWriter(t *testing.T) {
	for _, since := range []int{1, leftBehind - 1, leftBehind, leftBehind + 1, mostTrail - 1} {
		t.Run(fmt.Sprint(since), func(t *testing.T) {
			d, err := openDirectory(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			forward(t, d, 3)
			_, stopped, err := d.record(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			forward(t, d, since)
			want, tag, err := d.record(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// What it read is there still, as it is for a process that was stopped a moment later.
			last, err := json.Marshal(&numbered{Number: 3, Trail: []string{"a", "b", "c"}, Record: []byte(`{}`)})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(d.String(), nameOf(3)), last, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := d.swap(t.Context(), stopped, []byte(`{"format":1,"holder":"late"}`), "", nil); !errors.Is(err, errMoved) {
				t.Errorf("it wrote: %v", err)
			}
			got, now, err := d.record(t.Context())
			if err != nil || string(got) != string(want) || now != tag {
				t.Errorf("the record is %s at %s, want %s at %s: %v", got, now, want, tag, err)
			}
		})
	}
}

// TestForgottenWriter was stopped for so long that no record tells whether it counts.
func TestForgottenWriter(t *testing.T) {
	d, err := openDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	forward(t, d, 3)
	forward(t, d, 2*mostTrail)
	last, err := json.Marshal(&numbered{Number: 3, Trail: []string{"a"}, Record: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.String(), nameOf(3)), last, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.swap(t.Context(), "3", []byte(`{"format":1}`), "", nil); err == nil {
		t.Error("it takes itself for one that wrote")
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"format":1,"epoch":3,"holder":"a","token":"t","until":"2026-01-02T03:04:05Z","ends":[{"epoch":1,"last":2},{"epoch":3,"last":1}]}`), int64(1), int64(2))
	f.Add([]byte(nil), int64(0), int64(0))
	f.Add([]byte(`{"format":2}`), int64(1), int64(1))
	f.Fuzz(func(t *testing.T, content []byte, epoch, number int64) {
		r, err := parse(content)
		if err != nil {
			return
		}
		before := r.complete(Version{Epoch: r.Epoch, Number: number})
		l := Lock{Holder: "x", token: "mine"}
		if l.Epoch = r.take(l); r.lockedBy(l) != nil {
			t.Fatal("the lock that was taken is not held")
		}
		v := r.add(l.Epoch, fixed, 1, "")
		if v.Number < 1 || !r.complete(v) {
			t.Fatalf("version %s was added, and is not complete", v)
		}
		if before && !r.complete(Version{Epoch: l.Epoch - 1, Number: number}) {
			t.Fatal("a version is not complete any more")
		}
		if again, ok := parseFile(v.file()); !ok || again != (Version{Epoch: v.Epoch, Number: v.Number}) {
			t.Fatalf("%s is read as %+v", v.file(), again)
		}
		r.release()
		if r.lockedBy(l) == nil || r.held(fixed) {
			t.Fatal("it was given back, and is held")
		}
	})
}

var fixed = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// uploading is a place to which a file takes long.
type uploading struct {
	place
	meanwhile func()
	uploads   int
}

func (u *uploading) put(ctx context.Context, name string, content []byte) (bool, error) {
	u.uploads++
	u.meanwhile()
	return u.place.put(ctx, name, content)
}

// TestSlowUpload: the lock is renewed while a version is written, which is not written anew for that.
func TestSlowUpload(t *testing.T) {
	d, err := openDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := &uploading{place: d}
	s := newStore(at, time.Now)
	l, err := s.Lock(t.Context(), "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	at.meanwhile = func() {
		for range 3 {
			if _, err := s.Renew(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}
	}
	v, err := s.Save(t.Context(), l, []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	if at.uploads != 1 {
		t.Errorf("it was written %d times", at.uploads)
	}
	if content, err := s.Load(t.Context(), v); err != nil || string(content) != "one" || v.String() != "1-1" {
		t.Errorf("version %s has %q, %v", v, content, err)
	}
	// Whoever took the lock over meanwhile saves, and this one does not.
	at.meanwhile = func() {
		if err := s.Unlock(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Save(t.Context(), l, []byte("two")); !errors.Is(err, ErrLockLost) {
		t.Errorf("a lock that was lost saves: %v", err)
	}
	if versions, err := s.Versions(t.Context()); err != nil || len(versions) != 1 {
		t.Errorf("there are %v, %v", versions, err)
	}
}

// TestManyFiles: whoever saves each five minutes and never deletes has more than 20 000 versions in ten weeks. The newest
// is the one that was saved last, and old ones can be deleted.
func TestManyFiles(t *testing.T) {
	const n = 20_010
	dir := t.TempDir()
	s, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Lock(t.Context(), "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Save(t.Context(), l, []byte("one")); err != nil {
		t.Fatal(err)
	}
	for number := int64(2); number <= n; number++ {
		if err := os.WriteFile(filepath.Join(dir, Version{Epoch: 1, Number: number}.file()), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.(*kept).write(t.Context(), func(r *record) (string, []byte, error) {
		r.Ends[0].Last = n
		return "", nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	if versions, err := s.Versions(t.Context()); err != nil || len(versions) != n || versions[len(versions)-1].Number != n {
		t.Errorf("%d versions are listed, %v", len(versions), err)
	}
	if old, err := s.Prune(t.Context(), l, Version{}, 2); err != nil || len(old) != n-2 {
		t.Errorf("%d are deleted, %v", len(old), err)
	}
}
