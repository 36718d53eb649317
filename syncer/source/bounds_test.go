package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// allocated is how many bytes a function allocates.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// flood sends a line until nobody takes it, or 128 MiB of it.
func flood(w io.Writer, line string) {
	block := strings.Repeat(line, 1000)
	for sent := 0; sent < 128<<20; sent += len(block) {
		if _, err := io.WriteString(w, block); err != nil {
			return
		}
	}
}

// TestEndlessAnswers: whatever a Git server sends beside a pack has an end, and its
// words are neither kept nor told.
func TestEndlessAnswers(t *testing.T) {
	usual := func(w http.ResponseWriter, _ *http.Request) { advertise(w) }
	refuse := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			flood(w, "inner-word ")
		}
	}
	elsewhere := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/?token=inner-word", http.StatusFound)
	}
	for name, tc := range map[string]struct {
		reason           string
		references, pack http.HandlerFunc
		fails            string
	}{
		"Shallow": {"commits that are shallow, without an end", usual, func(w http.ResponseWriter, _ *http.Request) {
			flood(w, pkt("shallow "+someCommit))
		}, ReasonLimitExceeded},
		"Acks": {"commits that both have, without an end", usual, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, pkt("shallow "+someCommit)+"0000")
			flood(w, pkt("ACK "+someCommit+" common\n"))
		}, ReasonLimitExceeded},
		"Refused":      {"a long refusal", refuse(http.StatusUnauthorized), nil, ReasonAuthenticationFailed},
		"Forbidden":    {"another", refuse(http.StatusForbidden), nil, ReasonAuthenticationFailed},
		"Missing":      {"and another", refuse(http.StatusNotFound), nil, ReasonGitOperationFailed},
		"PackRefused":  {"of the pack", usual, refuse(http.StatusInternalServerError), ReasonGitOperationFailed},
		"PackUnauthed": {"of the pack", usual, refuse(http.StatusUnauthorized), ReasonAuthenticationFailed},
		"Redirect":     {"an address that has a secret", elsewhere, nil, ReasonGitOperationFailed},
		"PackRedirect": {"the same for the pack", usual, elsewhere, ReasonGitOperationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			from, _ := hostile(t, tc.references, tc.pack)
			m := NewMirrors(t.TempDir(), 64<<20)
			var err error
			took := allocated(func() { _, err = m.Fetch(t.Context(), from, onMain, Options{}, nil) })
			if err == nil || ReasonOf(err) != tc.fails {
				t.Errorf("%s\nFetch() = %.300v, want reason %s", tc.reason, err, tc.fails)
			}
			if err != nil && (strings.Contains(err.Error(), "inner-word") || len(err.Error()) > 1000) {
				t.Errorf("%s\nthe error has words of the server: %.300v", tc.reason, err)
			}
			// The server is in the same process, and copies what it sends.
			if took > 48<<20 {
				t.Errorf("%s\n%d bytes were allocated", tc.reason, took)
			}
		})
	}
}

// serveSSH is a Git server by SSH that answers what talk writes.
func serveSSH(t *testing.T, host ssh.Signer, algorithms []string, talk func(ssh.Channel)) Origin {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
	if algorithms != nil {
		if host, err = ssh.NewSignerWithAlgorithms(host.(ssh.AlgorithmSigner), algorithms); err != nil {
			t.Fatal(err)
		}
	}
	config.AddHostKey(host)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, channels, requests, err := ssh.NewServerConn(conn, config)
				if err != nil {
					return
				}
				go ssh.DiscardRequests(requests)
				for offered := range channels {
					channel, asked, err := offered.Accept()
					if err != nil {
						return
					}
					go func() {
						for r := range asked {
							_ = r.Reply(true, nil)
							if r.Type == "exec" {
								talk(channel)
								_ = channel.Close()
							}
						}
					}()
				}
			}()
		}
	}()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	at := listener.Addr().String()
	return Origin{URL: "ssh://git@" + at + "/x", Secret: map[string][]byte{
		"identity": pem.EncodeToMemory(block), "known_hosts": []byte(knownhosts.Line([]string{at}, host.PublicKey()) + "\n"),
	}}
}

func rsaKey(t *testing.T, bits int) ssh.Signer {
	t.Helper()
	if bits < 1024 {
		t.Fatal("too short for this library")
	}
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func TestEndlessAnswersBySSH(t *testing.T) {
	from := serveSSH(t, rsaKey(t, 2048), nil, func(c ssh.Channel) {
		_, _ = io.WriteString(c, pkt(someCommit+" HEAD\x00shallow side-band-64k ofs-delta symref=HEAD:refs/heads/main\n")+pkt(someCommit+" refs/heads/main\n")+"0000")
		_, _ = io.CopyN(io.Discard, c, 4)
		flood(c, pkt("shallow "+someCommit))
	})
	var err error
	took := allocated(func() { _, err = mirrors(t).Fetch(t.Context(), from, onMain, Options{}, nil) })
	if ReasonOf(err) != ReasonLimitExceeded {
		t.Errorf("Fetch() = %v, want reason %s", err, ReasonLimitExceeded)
	}
	if took > 48<<20 {
		t.Errorf("%d bytes were allocated", took)
	}
}

// TestHostKeys: a server proves itself with a key and a signature that cannot be
// forged.
func TestHostKeys(t *testing.T) {
	said := func(c ssh.Channel) { _, _ = io.WriteString(c, "0000") }
	for name, tc := range map[string]struct {
		reason     string
		bits       int
		algorithms []string
		fails      string
	}{
		"Long":  {"the ordinary case", 2048, nil, ReasonEmptyRepository},
		"Short": {"it can be broken", 1024, nil, "has 1024 bits, fewer than 2048"},
		"SHA1":  {"its signatures can be forged", 2048, []string{ssh.KeyAlgoRSA}, "no common algorithm for host key"},
	} {
		t.Run(name, func(t *testing.T) {
			from := serveSSH(t, rsaKey(t, tc.bits), tc.algorithms, said)
			_, err := mirrors(t).Fetch(t.Context(), from, onMain, Options{}, nil)
			if err == nil || ReasonOf(err) != tc.fails && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s\nFetch() = %v, want %s", tc.reason, err, tc.fails)
			}
		})
	}
}

// offset is how a pack writes how far before an object its base is.
func offset(n uint64) []byte {
	out := []byte{byte(n & 0x7f)}
	for n >>= 7; n > 0; n >>= 7 {
		n--
		out = append([]byte{byte(n&0x7f) | 0x80}, out...)
	}
	return out
}

// chainOf is a pack of an object and deltas, each on the one before.
func chainOf(kind byte, deltas int, target uint64, byName bool) []byte {
	const ofsDelta, refDelta = 6, 7
	content := []byte("0123456789")
	objects := [][]byte{packedObject(kind, uint64(len(content)), nil, content)}
	name := plumbing.ComputeHash(plumbing.BlobObject, content)
	for range deltas {
		body := append(binary.AppendUvarint(binary.AppendUvarint(nil, 10), target), 0x90, 10)
		if byName {
			objects = append(objects, packedObject(refDelta, uint64(len(body)), name[:], body))
			name[0]++ // what it is called is known to nobody yet
			continue
		}
		objects = append(objects, packedObject(ofsDelta, uint64(len(body)), offset(uint64(len(objects[len(objects)-1]))), body))
	}
	return packOf(uint32(len(objects)), objects...)
}

func TestInspectChains(t *testing.T) {
	const tree, blob = 2, 3
	for name, tc := range map[string]struct {
		reason string
		pack   []byte
		fails  string
	}{
		"Ordinary":   {"what git makes", chainOf(blob, 50, 10, false), ""},
		"Aggressive": {"what it makes at most", chainOf(blob, 250, 10, false), ""},
		"Deep":       {"what it never makes", chainOf(blob, 251, 10, false), "more than 250 deltas"},
		"Large":      {"a file of 10 MiB with many versions", chainOf(blob, 50, 10<<20, false), ""},
		"Heavy":      {"files of 90 MiB, one made of the other", chainOf(blob, 12, 90<<20, false), "make more than 1073741824 bytes"},
		"Named":      {"the same, where the base is not known yet", chainOf(blob, 13, 90<<20, true), "make more than 1073741824 bytes"},
		"Tree":       {"a directory", chainOf(tree, 5, 1<<20, false), ""},
		"LargeTree":  {"one that is made large", chainOf(tree, 5, 17<<20, false), "its names take"},
		"Names":      {"two million names", packOf(1, packedObject(tree, 60<<20, nil, nil)), "its names take"},
	} {
		t.Run(name, func(t *testing.T) {
			err := inspect(t.Context(), bytes.NewReader(tc.pack), 1000, 64<<30)
			if (err == nil) != (tc.fails == "") || err != nil && (ReasonOf(err) != ReasonLimitExceeded || !strings.Contains(err.Error(), tc.fails)) {
				t.Errorf("%s\ninspect() = %v, want %q", tc.reason, err, tc.fails)
			}
		})
	}
	var many [][]byte
	for range 20 {
		one := chainOf(blob, 80, 12<<20, false)
		many = append(many, one[12:len(one)-20])
	}
	if err := inspect(t.Context(), bytes.NewReader(packOf(20*81, many...)), 2000, 64<<30); ReasonOf(err) != ReasonLimitExceeded || !strings.Contains(err.Error(), "large files") {
		t.Errorf("many long chains: inspect() = %v", err)
	}
}

// TestManyNames: a directory of very many names is refused before they are read.
func TestManyNames(t *testing.T) {
	gen := openGeneration(t.TempDir())
	store := func(data []byte) plumbing.Hash {
		t.Helper()
		o := gen.store.NewEncodedObject()
		o.SetType(plumbing.TreeObject)
		w, err := o.Writer()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		hash, err := gen.store.SetEncodedObject(o)
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	one := append([]byte("100644 a-name.yaml\x00"), make([]byte, 20)...)
	var names bytes.Buffer
	for i := range 5000 {
		fmt.Fprintf(&names, "100644 %08d\x00", i)
		names.Write(make([]byte, 20))
	}
	large, ordinary := store(bytes.Repeat(one, 600_000)), store(names.Bytes())
	var err error
	took := allocated(func() { _, err = gen.list(gen.nodeOf(0o040000, large)) })
	if ReasonOf(err) != ReasonLimitExceeded {
		t.Errorf("list() = %v, want reason %s", err, ReasonLimitExceeded)
	}
	if took > 32<<20 {
		t.Errorf("%d bytes were allocated", took)
	}
	if l, err := gen.list(gen.nodeOf(0o040000, ordinary)); err != nil || len(l) != 5000 {
		t.Errorf("a directory of 5000 names: %d, %v", len(l), err)
	}
}

// TestPackWithinContext: no pack is read after the deadline of its fetch.
func TestPackWithinContext(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("PACK"); err != nil {
		t.Fatal(err)
	}
	if err := rewind(f); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := io.ReadAll(contextFile{ctx, f}); !errors.Is(err, context.Canceled) {
		t.Errorf("Read() = %v", err)
	}
	if _, err := io.Copy(io.Discard, contextFile{ctx, f}); !errors.Is(err, context.Canceled) {
		t.Errorf("Copy() = %v", err)
	}
}

// named is a tarball of empty files and directories with the given names.
func named(t *testing.T, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	gz, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(gz)
	for _, name := range names {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Format: tar.FormatPAX}
		if strings.HasSuffix(name, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestNamesOfArchives: directories that have no header of their own count as well.
func TestNamesOfArchives(t *testing.T) {
	var deep, wide []string
	for i := range 2 {
		deep = append(deep, fmt.Sprintf("a%d/", i)+strings.Repeat("x/", 500_000))
	}
	for i := range 40 {
		wide = append(wide, fmt.Sprintf("a%d/", i)+strings.Repeat("x/", 800)+"f")
	}
	room, long := newRoom(MaxEntries), strings.Repeat("y", 1_000_000)
	for i := range 80 {
		if err := room.header(long); (err != nil) != (i >= maxNameBytes/len(long)) {
			t.Errorf("after %d names of a megabyte: %v", i, err)
		}
	}
	for name, tc := range map[string]struct {
		reason string
		names  []string
		fails  string
	}{
		"Deep":     {"two names in a few KB", deep, "nest more than"},
		"Wide":     {"40 files in 32000 directories", wide, "files and directories"},
		"Ordinary": {"as deep as may be", []string{"a/", "a/b", strings.Repeat("d/", 900) + "f", strings.Repeat("n", 1000)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			data := named(t, tc.names...)
			var err error
			took := allocated(func() { _, err = unpack(t.Context(), bytes.NewReader(data), t.TempDir(), 1<<30, 20_000) })
			if (err == nil) != (tc.fails == "") || err != nil && (ReasonOf(err) != ReasonLimitExceeded || !strings.Contains(err.Error(), tc.fails)) {
				t.Errorf("%s\nunpack() = %v, want %q", tc.reason, err, tc.fails)
			}
			if took > 128<<20 {
				t.Errorf("%s\n%d bytes were allocated for an archive of %d", tc.reason, took, len(data))
			}
		})
	}
}

// TestListedObjects: a list in which objects take no room is refused before a library makes
// much of it, however it comes.
func TestListedObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		objects int
		refused bool
	}{
		"Most": {"no server lists so many", maxListed, false},
		"More": {"a megabyte of these is a gigabyte to a library", maxListed + 1, true},
	} {
		for way, through := range map[string]func(io.Reader) io.Reader{"Whole": func(r io.Reader) io.Reader { return r }, "Bytes": iotest.OneByteReader} {
			t.Run(name+way, func(t *testing.T) {
				text := "<ListBucketResult>" + strings.Repeat("<Contents/>", tc.objects)
				got, err := io.ReadAll(modest{entry: "<Contents"}.listed(through(strings.NewReader(text))))
				if refused := ReasonOf(err) == ReasonLimitExceeded; refused != tc.refused {
					t.Errorf("%s: %v", tc.reason, err)
				}
				if !tc.refused && string(got) != text {
					t.Errorf("%s: %d bytes of %d came through", tc.reason, len(got), len(text))
				}
			})
		}
	}
}

// TestSparseArchive: the holes of a file are in no byte of the archive, and take room when
// it is unpacked. One of a terabyte is refused before anything is written.
func TestSparseArchive(t *testing.T) {
	const holes = 1 << 40
	record := func(key, value string) string {
		line := fmt.Sprintf(" GNU.sparse.%s=%s\n", key, value)
		n := len(line) + 2
		return fmt.Sprintf("%d%s", n, line)
	}
	var out bytes.Buffer
	gz := gzip.NewWriter(&out)
	block := func(kind byte, name, body string) {
		var head bytes.Buffer
		w := tar.NewWriter(&head)
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(body)), Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		raw := head.Bytes()
		raw[156] = kind
		copy(raw[148:156], "        ")
		sum := 0
		for _, b := range raw[:512] {
			sum += int(b)
		}
		copy(raw[148:156], fmt.Sprintf("%06o\x00 ", sum))
		_, _ = gz.Write(append(raw[:512:512], body+strings.Repeat("\x00", (512-len(body)%512)%512)...)) // to memory
	}
	block('x', "PaxHeaders.0/s", record("major", "1")+record("minor", "0")+record("name", "sparse")+record("realsize", strconv.Itoa(holes)))
	list := fmt.Sprintf("1\n%d\n1\n", holes-1)
	block('0', "GNUSparseFile.0/s", list+strings.Repeat("\x00", 512-len(list))+"x")
	_, _ = gz.Write(make([]byte, 1024)) // to memory
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := unpack(ctx, &out, t.TempDir(), MaxInflatedBytes, MaxEntries)
	if ReasonOf(err) != ReasonLimitExceeded || !strings.Contains(err.Error(), "the archive inflates to more than") {
		t.Errorf("unpack() = %v", err)
	}
}

// TestSlowArtifact: a body that never ends, or never goes on, ends by its deadline.
func TestSlowArtifact(t *testing.T) {
	held := make(chan struct{})
	defer close(held)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			wait := time.After(time.Millisecond)
			if r.URL.Path == "/silent" {
				wait = nil
			}
			select {
			case <-wait:
			case <-r.Context().Done():
				return
			case <-held:
				return
			}
		}
	}))
	defer s.Close()
	for path, want := range map[string]string{"/silent": "the server sent nothing for", "/endless": "it was not sent within"} {
		a := NewArtifacts(t.TempDir(), plenty)
		a.timeout, a.silence = time.Minute, 50*time.Millisecond
		if path == "/endless" {
			a.timeout, a.silence = 100*time.Millisecond, time.Minute
		}
		_, err := a.Fetch(t.Context(), of("ExternalArtifact"), &meta.Artifact{URL: s.URL + path, Revision: "1", Digest: sumOf(nil)})
		if ReasonOf(err) != ReasonArtifactFailed || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: Fetch() = %v, want %q", path, err, want)
		}
	}
}
