package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/state/store"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// clock is moved by the test.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// place is one at which the same is tried as at all others.
type place struct {
	name string
	// address of a place with nothing, and how it is opened.
	address func(t *testing.T) (string, store.Options)
}

func places() []place {
	secret := map[string][]byte{"accesskey": []byte("an-id"), "secretkey": []byte("a-key")}
	return []place{
		{"Directory", func(t *testing.T) (string, store.Options) {
			return filepath.Join(t.TempDir(), "state"), store.Options{}
		}},
		{"S3", func(t *testing.T) (string, store.Options) {
			s := newBucket(t, speakS3)
			return "s3://bucket/a/tier?region=here&endpoint=" + url.QueryEscape(s.URL), store.Options{Secret: secret}
		}},
		{"Azure", func(t *testing.T) (string, store.Options) {
			s := newBucket(t, speakAzure)
			return "azblob://bucket/a/tier?endpoint=" + url.QueryEscape(s.URL), store.Options{Secret: map[string][]byte{"sasKey": []byte("sig=x")}}
		}},
		{"Google", func(t *testing.T) (string, store.Options) {
			s := newBucket(t, speakGoogle)
			t.Setenv("STORAGE_EMULATOR_HOST", s.URL)
			return "gs://bucket/a/tier", store.Options{}
		}},
		{"Git", func(t *testing.T) (string, store.Options) {
			s := startGit(t)
			if err := s.Create(t.Context(), "state.git"); err != nil {
				t.Fatal(err)
			}
			return "git+" + s.HTTPURL("state.git"), store.Options{}
		}},
		{"GitBesideMain", func(t *testing.T) (string, store.Options) {
			s := startGit(t)
			if err := s.Create(t.Context(), "fleet.git"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(t.Context(), "fleet.git", "main", "A file", func(folder string) error {
				return os.WriteFile(filepath.Join(folder, "a.yaml"), []byte("a: 1\n"), 0o600)
			}); err != nil {
				t.Fatal(err)
			}
			return "git+" + s.HTTPURL("fleet.git") + "?branch=saved", store.Options{}
		}},
	}
}

func startGit(t *testing.T) *gitserver.Server {
	t.Helper()
	s, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// each runs a test at each place. open opens the place anew, as another process does.
func each(t *testing.T, test func(t *testing.T, now *clock, open func() store.Store)) {
	t.Helper()
	for _, p := range places() {
		t.Run(p.name, func(t *testing.T) {
			now := newClock()
			address, options := p.address(t)
			options.Now = now.Now
			test(t, now, func() store.Store {
				t.Helper()
				s, err := store.Open(t.Context(), address, options)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			})
		})
	}
}

func lock(t *testing.T, s store.Store, holder string) store.Lock {
	t.Helper()
	l, err := s.Lock(t.Context(), holder, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func save(t *testing.T, s store.Store, l store.Lock, content string) store.Version {
	t.Helper()
	v, err := s.Save(t.Context(), l, []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// holds checks the versions that are listed, and what they have.
func holds(t *testing.T, s store.Store, want ...string) {
	t.Helper()
	versions, err := s.Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range versions {
		content, err := s.Load(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v.String()+"="+string(content))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got versions %q, want %q", got, want)
	}
}

func TestVersions(t *testing.T) {
	each(t, func(t *testing.T, now *clock, open func() store.Store) {
		s := open()
		holds(t, s)
		l := lock(t, s, "a")
		holds(t, s)
		save(t, s, l, "one")
		now.pass(time.Second)
		v := save(t, s, l, "two")
		holds(t, open(), "1-1=one", "1-2=two")
		versions, err := s.Versions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := versions[1]; got != v || !got.Saved.Equal(now.Now()) || got.Bytes != 3 {
			t.Errorf("version %+v is told as %+v", v, got)
		}
		if err := s.Unlock(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		other := open()
		l = lock(t, other, "b")
		if l.Epoch != 2 {
			t.Errorf("the second lock has epoch %d", l.Epoch)
		}
		save(t, other, l, "three")
		holds(t, s, "1-1=one", "1-2=two", "2-1=three")
		for _, missing := range []store.Version{{Epoch: 1, Number: 3}, {Epoch: 3, Number: 1}, {Epoch: 1}} {
			if _, err := s.Load(t.Context(), missing); !errors.Is(err, store.ErrNoVersion) {
				t.Errorf("loading %s: %v", missing, err)
			}
		}
	})
}

func TestTheSecondIsRefused(t *testing.T) {
	each(t, func(t *testing.T, now *clock, open func() store.Store) {
		first, second := open(), open()
		l := lock(t, first, "mom at home")
		_, err := second.Lock(t.Context(), "mom elsewhere", time.Minute)
		var locked *store.LockedError
		if !errors.Is(err, store.ErrLocked) || !errors.As(err, &locked) || locked.Holder != "mom at home" || !locked.Until.Equal(l.Until) {
			t.Fatalf("two hold the lock, or it is not said who: %v", err)
		}
		// The same name is no key: another process may have it.
		if _, err := second.Lock(t.Context(), "mom at home", time.Minute); !errors.Is(err, store.ErrLocked) {
			t.Fatalf("who has the name has the lock: %v", err)
		}
		now.pass(50 * time.Second)
		l, err = first.Renew(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		now.pass(time.Minute + store.Skew - time.Second)
		if _, err := second.Lock(t.Context(), "mom elsewhere", time.Minute); !errors.Is(err, store.ErrLocked) {
			t.Fatalf("clocks may differ, and the lock was taken: %v", err)
		}
		save(t, first, l, "late, and nobody took the lock")
		now.pass(2 * time.Second)
		next := lock(t, second, "mom elsewhere")
		if next.Epoch <= l.Epoch {
			t.Errorf("epoch %d after %d", next.Epoch, l.Epoch)
		}
		// The first one comes back.
		if _, err := first.Save(t.Context(), l, []byte("too late")); !errors.Is(err, store.ErrLockLost) {
			t.Errorf("a lost lock saves: %v", err)
		}
		if _, err := first.Renew(t.Context(), l); !errors.Is(err, store.ErrLockLost) {
			t.Errorf("a lost lock is renewed: %v", err)
		}
		if _, err := first.Prune(t.Context(), l, store.Version{}, 1); !errors.Is(err, store.ErrLockLost) {
			t.Errorf("a lost lock deletes: %v", err)
		}
		if err := first.Unlock(t.Context(), l); err != nil {
			t.Errorf("a lost lock cannot be given back: %v", err)
		}
		if _, err := second.Renew(t.Context(), next); err != nil {
			t.Errorf("who lost the lock gave that of another back: %v", err)
		}
		holds(t, second, "1-1=late, and nobody took the lock")
	})
}

// TestRace has many take one lock, and save, at the same time.
func TestRace(t *testing.T) {
	each(t, func(t *testing.T, now *clock, open func() store.Store) {
		const many = 6
		var wg sync.WaitGroup
		stores, won := make([]store.Store, many), make([]store.Lock, many)
		for i := range many {
			stores[i] = open()
		}
		for i := range many {
			wg.Go(func() {
				l, err := stores[i].Lock(t.Context(), fmt.Sprint("process ", i), time.Minute)
				if err == nil {
					won[i] = l
				} else if !errors.Is(err, store.ErrLocked) {
					t.Errorf("process %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		winner, winners := -1, 0
		for i := range won {
			if won[i].Epoch != 0 {
				winner, winners = i, winners+1
			}
		}
		if winners != 1 {
			t.Fatalf("%d processes hold the lock", winners)
		}
		for i := range 3 {
			wg.Go(func() {
				if _, err := stores[winner].Save(t.Context(), won[winner], []byte("same")); err != nil {
					t.Errorf("save %d: %v", i, err)
				}
			})
		}
		wg.Go(func() {
			if _, err := stores[winner].Renew(t.Context(), won[winner]); err != nil {
				t.Errorf("renew: %v", err)
			}
		})
		wg.Wait()
		holds(t, stores[0], "1-1=same", "1-2=same", "1-3=same")
	})
}

func TestPrune(t *testing.T) {
	each(t, func(t *testing.T, now *clock, open func() store.Store) {
		s := open()
		l := lock(t, s, "a")
		for i := range 5 {
			save(t, s, l, fmt.Sprint(i))
		}
		if pruned, err := s.Prune(t.Context(), l, store.ParseVersion("1-3"), 2); err != nil || len(pruned) != 0 {
			t.Errorf("%v was deleted: %v", pruned, err)
		}
		if pruned, err := s.Prune(t.Context(), l, store.ParseVersion("1-3"), 1); err != nil || len(pruned) != 1 || pruned[0].String() != "1-4" {
			t.Errorf("%v was deleted: %v", pruned, err)
		}
		holds(t, open(), "1-1=0", "1-2=1", "1-3=2", "1-5=4")
		pruned, err := s.Prune(t.Context(), l, store.Version{}, 2)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(pruned) == "" || len(pruned) != 2 {
			t.Errorf("%v was deleted", pruned)
		}
		holds(t, open(), "1-3=2", "1-5=4")
		if pruned, err := s.Prune(t.Context(), l, store.Version{}, 0); err != nil || len(pruned) != 1 {
			t.Errorf("%v was deleted: %v", pruned, err)
		}
		holds(t, open(), "1-5=4")
		if pruned, err := s.Prune(t.Context(), l, store.Version{}, 0); err != nil || len(pruned) != 0 {
			t.Errorf("the newest version was deleted: %v, %v", pruned, err)
		}
		if v := save(t, s, l, "next"); v.String() != "1-6" {
			t.Errorf("the next version is %s", v)
		}
	})
}

// TestManyObjects: whoever saves each five minutes and never deletes has more than 20 000 versions in ten weeks. The
// newest is the one that was saved last.
func TestManyObjects(t *testing.T) {
	const n, record = 20_200, "a/tier/record.json"
	server := newBucket(t, speakS3)
	s, err := store.Open(t.Context(), "s3://bucket/a/tier?region=here&endpoint="+url.QueryEscape(server.URL), store.Options{
		Secret: map[string][]byte{"accesskey": []byte("an-id"), "secretkey": []byte("a-key")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	save(t, s, lock(t, s, "a"), "one")
	server.mu.Lock()
	for number := 2; number <= n; number++ {
		server.put(fmt.Sprintf("a/tier/%010d-%010d.age", 1, number), nil)
	}
	server.put(record, bytes.Replace(server.objects[record].content, []byte(`"last":1`), fmt.Appendf(nil, `"last":%d`, n), 1))
	server.mu.Unlock()
	if versions, err := s.Versions(t.Context()); err != nil || len(versions) != n || versions[n-1].Number != n {
		t.Errorf("%d versions are listed, %v", len(versions), err)
	}
}

func TestACancelledSaveIsNotListed(t *testing.T) {
	each(t, func(t *testing.T, now *clock, open func() store.Store) {
		s := open()
		l := lock(t, s, "a")
		save(t, s, l, "one")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Save(ctx, l, []byte("two")); err == nil {
			// A directory does not ask the context; then it is saved.
			holds(t, s, "1-1=one", "1-2=two")
			return
		}
		holds(t, s, "1-1=one")
		save(t, s, l, "three")
		holds(t, open(), "1-1=one", "1-2=three")
	})
}

func TestLargeArchives(t *testing.T) {
	content := string(bytes.Repeat([]byte("0123456789abcdef"), 1<<16)) // a megabyte
	each(t, func(t *testing.T, now *clock, open func() store.Store) {
		s := open()
		l := lock(t, s, "a")
		save(t, s, l, content)
		holds(t, s, "1-1="+content)
	})
}

func TestSamePlace(t *testing.T) {
	for _, row := range []struct {
		reason, a, b string
		want         bool
	}{
		{"as it is", "s3://b/p", "s3://b/p", true},
		{"a region is a way to it", "s3://b/p", "s3://b/p?region=R", true},
		{"so is a slash", "s3://b/p/", "s3://b/p", true},
		{"what is left out is written", "git+https://h/r", "git+https://h/r?branch=cascade-state", true},
		{"another server has another bucket of that name", "s3://b/p?region=R", "s3://b/p?endpoint=https://h", false},
		{"another prefix", "s3://b/p", "s3://b/q", false},
		{"another branch", "git+https://h/r", "git+https://h/r?branch=main", false},
		{"another cloud", "s3://b/p", "gs://b/p", false},
		{"none is on record", "", "s3://b/p", false},
		{"nor any", "", "", false},
	} {
		if got := store.SamePlace(row.a, row.b); got != row.want {
			t.Errorf("%s: %q and %q: %v", row.reason, row.a, row.b, got)
		}
	}
}

func TestParse(t *testing.T) {
	for _, row := range []struct{ reason, in, want string }{
		{"a path is a directory", "/a/b/", "/a/b"},
		{"so is a URL of one", "file:///a/b", "/a/b"},
		{"a bucket and a prefix", "s3://b/p/q/?region=eu-1", "s3://b/p/q"},
		{"a bucket alone", "gs://b", "gs://b"},
		{"an account of Azure", "azblob://c/p?account=me", "azblob://c/p"},
		{"a branch by default", "git+https://h/r.git", "git+https://h/r.git?branch=cascade-state"},
		{"a branch by name", "git+ssh://git@h/r.git?branch=b", "git+ssh://git@h/r.git?branch=b"},
		{"nothing", "", "cannot"},
		{"no bucket", "s3:///p", "cannot"},
		{"an account is needed", "azblob://c/p", "cannot"},
		{"an account is a name", "azblob://c/p?account=evil.example/", "cannot"},
		{"an option that is not known may be a misspelt one", "s3://b/p?regio=x", "cannot"},
		{"a scheme that is not known", "ftp://b/p", "cannot"},
		{"a password would be in lists of processes", "git+https://u:secret@h/r.git", "cannot"},
		{"a login is no bucket", "s3://id@b/p", "cannot"},
		{"one slash is no scheme", "s3:/b/p", "cannot"},
	} {
		a, err := store.Parse(row.in)
		got := a.String()
		if err != nil {
			got = err.Error()
		}
		if got != row.want && (row.want != "cannot" || err == nil) || strings.Contains(got, "secret") {
			t.Errorf("%s: got %q, want %q", row.reason, got, row.want)
		}
	}
}

func TestFind(t *testing.T) {
	versions := []store.Version{{Epoch: 1, Number: 1}, {Epoch: 1, Number: 2}, {Epoch: 2, Number: 1}}
	for _, row := range []struct{ reason, name, want string }{
		{"the newest is meant", "", "2-1"}, {"by its name", "1-2", "1-2"}, {"there is none", "3-1", ""}, {"not by a part of its name", "1", ""},
	} {
		v, err := store.Find(versions, row.name)
		if (err != nil) != (row.want == "") || err == nil && v.String() != row.want {
			t.Errorf("%s: got %s, %v", row.reason, v, err)
		}
	}
	if _, err := store.Find(nil, ""); !errors.Is(err, store.ErrNoVersion) {
		t.Errorf("nothing is found in nothing: %v", err)
	}
}

// TestWhatIsKeptIsChecked changes what is kept.
func TestWhatIsKeptIsChecked(t *testing.T) {
	dir := t.TempDir()
	s, err := store.Open(t.Context(), dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := lock(t, s, "a")
	v := save(t, s, l, "one")
	// What a process left that lost its lock while it saved.
	if err := os.WriteFile(filepath.Join(dir, "0000000001-0000000002.age"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	holds(t, s, "1-1=one")
	if _, err := s.Load(t.Context(), store.Version{Epoch: 1, Number: 2}); !errors.Is(err, store.ErrNoVersion) {
		t.Errorf("what is not complete is loaded: %v", err)
	}
	save(t, s, l, "two")
	holds(t, s, "1-1=one", "1-2=two")
	if err := os.WriteFile(filepath.Join(dir, "0000000001-0000000001.age"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), v); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("what was changed is loaded: %v", err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "record-*"))
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	for _, n := range names {
		if err := os.WriteFile(n, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Versions(t.Context()); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("a record that cannot be read is taken for none: %v", err)
	}
}

func TestABranchWithOtherFilesIsLeftAlone(t *testing.T) {
	server := startGit(t)
	if err := server.Create(t.Context(), "fleet.git"); err != nil {
		t.Fatal(err)
	}
	commit, err := server.Commit(t.Context(), "fleet.git", "main", "A file", func(folder string) error {
		return os.WriteFile(filepath.Join(folder, "a.yaml"), []byte("a: 1\n"), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), "git+"+server.HTTPURL("fleet.git")+"?branch=main", store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Lock(t.Context(), "a", time.Minute); err == nil || !strings.Contains(err.Error(), "branch of its own") {
		t.Errorf("a branch of commit %s was taken for a state: %v", commit, err)
	}
}

// TestServersThatIgnoreConditions: success says nothing then.
func TestServersThatIgnoreConditions(t *testing.T) {
	server := newBucket(t, speakS3)
	server.ignore = true
	s, err := store.Open(t.Context(), "s3://bucket/a?region=here&endpoint="+url.QueryEscape(server.URL), store.Options{
		Secret: map[string][]byte{"accesskey": []byte("an-id"), "secretkey": []byte("a-key")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Lock(t.Context(), "a", time.Minute); err == nil || !strings.Contains(err.Error(), "If-None-Match") {
		t.Errorf("the lock is held, and by nobody: %v", err)
	}
}

// TestAnswersThatAreLost: what was written is found to be written.
func TestAnswersThatAreLost(t *testing.T) {
	server := newBucket(t, speakGoogle)
	t.Setenv("STORAGE_EMULATOR_HOST", server.URL)
	s, err := store.Open(t.Context(), "gs://bucket/a", store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := lock(t, s, "a")
	server.lose("record.json")
	save(t, s, l, "one")
	holds(t, s, "1-1=one")
	server.lose("record.json")
	if err := s.Unlock(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	server.lose("record.json")
	l = lock(t, s, "b")
	save(t, s, l, "two")
	holds(t, s, "1-1=one", "2-1=two")
}
