package archive_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/state/archive"
)

var taken = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func key(t testing.TB) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func object(kind, namespace, name string, content map[string]any) unstructured.Unstructured {
	o := unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion("example.org/v1")
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	for k, v := range content {
		o.Object[k] = v
	}
	return o
}

func snapshot(objects int) *archive.Snapshot {
	s := &archive.Snapshot{Tier: "4b1d", Program: "v1.2.3", Epoch: 7, Taken: taken}
	for i := range objects {
		s.Objects = append(s.Objects, object("Thing", "n", fmt.Sprintf("o%03d", i), map[string]any{
			"spec": map[string]any{"number": int64(i), "part": 0.5, "text": "<&>\u2028", "list": []any{"a", nil, true}},
		}))
	}
	return s
}

func TestRoundTrip(t *testing.T) {
	one, other := key(t), key(t)
	s := snapshot(50)
	sealed, err := archive.Seal(s, one.Recipient(), other.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []age.Identity{one, other} {
		got, err := archive.Open(sealed, key(t), id)
		if err != nil {
			t.Fatal(err)
		}
		want := *s
		want.Format = archive.Format
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestLinesDoNotDependOnTheOrder(t *testing.T) {
	s := snapshot(40)
	want, err := s.Lines()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		random.Shuffle(len(s.Objects), func(i, j int) { s.Objects[i], s.Objects[j] = s.Objects[j], s.Objects[i] })
		got, err := s.Lines()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			t.Fatal("the lines are others in another order")
		}
	}
}

func TestNothingIsReadableWithoutAKey(t *testing.T) {
	s := snapshot(0)
	s.Tier, s.Program = "canary-tier", "canary-program"
	s.Objects = []unstructured.Unstructured{object("Secret", "canary-namespace", "canary-name", map[string]any{"data": "canary-data"})}
	sealed, err := archive.Seal(s, key(t).Recipient())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("canary")) {
		t.Error("the archive has what it is to hide")
	}
}

func TestSealRefuses(t *testing.T) {
	for _, row := range []struct {
		reason string
		change func(*archive.Snapshot)
		want   error
		text   string
	}{
		{"an object without a name cannot be restored", func(s *archive.Snapshot) { s.Objects[0].SetName("") }, nil, "no apiVersion, kind or name"},
		{"of two objects of a name one would be lost", func(s *archive.Snapshot) { s.Objects = append(s.Objects, s.Objects[0]) }, nil, "twice"},
		{"no API server has an object of this size", func(s *archive.Snapshot) {
			s.Objects[0].Object["spec"] = strings.Repeat("x", archive.MaxObjectBytes)
		}, archive.ErrTooLarge, ""},
		{"there is a bound of objects", func(s *archive.Snapshot) {
			s.Objects = make([]unstructured.Unstructured, archive.MaxObjects+1)
		}, archive.ErrTooLarge, ""},
	} {
		s := snapshot(2)
		row.change(s)
		_, err := archive.Seal(s, key(t).Recipient())
		if err == nil || row.want != nil && !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.text) {
			t.Errorf("%s: got %v", row.reason, err)
		}
	}
	if _, err := archive.Seal(snapshot(1)); !errors.Is(err, archive.ErrNoRecipient) {
		t.Errorf("state would be kept unencrypted: %v", err)
	}
}

// sealLines encrypts lines that Seal would not write.
func sealLines(t testing.TB, to age.Recipient, lines ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewWriter(w)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if _, err := z.Write([]byte(l)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func head(format, count int, digest string) string {
	text, err := json.Marshal(map[string]any{"kind": "cascade.dev/state", "format": format, "count": count, "digest": digest})
	if err != nil {
		panic(err)
	}
	return string(text) + "\n"
}

const empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestOpenRefuses(t *testing.T) {
	id := key(t)
	good, err := archive.Seal(snapshot(3), id.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(good)
	flipped[len(flipped)-20] ^= 1
	a, b := `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`+"\n", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b"}}`+"\n"
	for _, row := range []struct {
		reason string
		in     []byte
		keys   []age.Identity
		want   error
	}{
		{"another key opens nothing", good, []age.Identity{key(t)}, archive.ErrWrongKey},
		{"no key opens nothing", good, nil, archive.ErrWrongKey},
		{"one bit is another", flipped, []age.Identity{id}, archive.ErrDamaged},
		{"its end is missing", good[:len(good)-30], []age.Identity{id}, archive.ErrDamaged},
		{"something follows", append(slices.Clone(good), 0), []age.Identity{id}, archive.ErrDamaged},
		{"it is empty", nil, []age.Identity{id}, archive.ErrDamaged},
		{"it is a text", []byte("hello"), []age.Identity{id}, archive.ErrDamaged},
		{"it has nothing", sealLines(t, id.Recipient()), []age.Identity{id}, archive.ErrDamaged},
		{"it has no header", sealLines(t, id.Recipient(), a), []age.Identity{id}, archive.ErrDamaged},
		{"a newer version wrote it", sealLines(t, id.Recipient(), head(archive.Format+1, 0, empty)), []age.Identity{id}, archive.ErrNewerFormat},
		{"there is no format 0", sealLines(t, id.Recipient(), head(0, 0, empty)), []age.Identity{id}, archive.ErrDamaged},
		{"an object is missing", sealLines(t, id.Recipient(), head(1, 1, empty)), []age.Identity{id}, archive.ErrDamaged},
		{"an object is too many", sealLines(t, id.Recipient(), head(1, 0, empty), a), []age.Identity{id}, archive.ErrDamaged},
		{"an object is another", sealLines(t, id.Recipient(), head(1, 1, empty), a), []age.Identity{id}, archive.ErrDamaged},
		{"objects are not in order", sealLines(t, id.Recipient(), head(1, 2, empty), b, a), []age.Identity{id}, archive.ErrDamaged},
		{"an object is there twice", sealLines(t, id.Recipient(), head(1, 2, empty), a, a), []age.Identity{id}, archive.ErrDamaged},
		{"a line does not end", sealLines(t, id.Recipient(), head(1, 1, empty), strings.TrimSpace(a)), []age.Identity{id}, archive.ErrDamaged},
		{"it says too many objects", sealLines(t, id.Recipient(), head(1, archive.MaxObjects+1, empty)), []age.Identity{id}, archive.ErrTooLarge},
		{"a line inflates without end", sealLines(t, id.Recipient(), head(1, 1, empty), strings.Repeat("x", archive.MaxObjectBytes+2)), []age.Identity{id}, archive.ErrTooLarge},
	} {
		if got, err := archive.Open(row.in, row.keys...); !errors.Is(err, row.want) || got != nil {
			t.Errorf("%s: got %v, want %v", row.reason, err, row.want)
		}
	}
}

// broken is a key service that does not answer.
type broken struct{}

func (broken) Unwrap([]*age.Stanza) ([]byte, error) { return nil, errors.New("connection refused") }

func TestAKeyServiceThatFailsIsNoWrongKey(t *testing.T) {
	id := key(t)
	sealed, err := archive.Seal(snapshot(1), id.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	_, err = archive.Open(sealed, broken{})
	if err == nil || errors.Is(err, archive.ErrWrongKey) || errors.Is(err, archive.ErrDamaged) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the cause is hidden: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	id := key(f)
	good, err := archive.Seal(snapshot(3), id.Recipient())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, true)
	f.Add([]byte(head(1, 0, empty)), false)
	f.Add([]byte(head(1, 1, empty)+`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`+"\n"), false)
	f.Fuzz(func(t *testing.T, in []byte, whole bool) {
		if !whole {
			// What somebody with the public key could write.
			in = sealLines(t, id.Recipient(), string(in))
		}
		s, err := archive.Open(in, id)
		if err != nil {
			if s != nil {
				t.Fatal("an archive that is refused has objects")
			}
			return
		}
		again, err := archive.Seal(s, id.Recipient())
		if err != nil {
			t.Fatalf("what was opened cannot be sealed: %v", err)
		}
		same, err := archive.Open(again, id)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s, same); diff != "" {
			t.Fatal(diff)
		}
	})
}
