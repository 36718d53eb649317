package source

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// shelf is a server of S3 with one bucket, of which it knows what this package asks:
// whether the bucket is there, the list of its objects, and an object. In front of it
// a test may put what it likes.
type shelf struct {
	t      *testing.T
	server *httptest.Server
	front  func(w http.ResponseWriter, r *http.Request) (done bool)

	mu       sync.Mutex
	objects  map[string]string
	requests []string
}

func newShelf(t *testing.T, start func(http.Handler) *httptest.Server) *shelf {
	t.Helper()
	s := &shelf{t: t, objects: map[string]string{}}
	s.server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		front := s.front
		s.mu.Unlock()
		if front != nil && front(w, r) {
			return
		}
		s.serve(w, r)
	}))
	t.Cleanup(s.server.Close)
	return s
}

// serve answers as S3 does, as far as this package asks.
func (s *shelf) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	content, exists := s.objects[key]
	switch {
	case bucket != "fleet":
		refuse(w, http.StatusNotFound, "NoSuchBucket")
	case r.Method == http.MethodHead && key == "":
	case r.Method == http.MethodGet && key == "" && r.URL.Query().Get("list-type") == "2":
		s.list(w, r.URL.Query().Get("prefix"))
	case r.Method == http.MethodGet && exists:
		w.Header().Set("ETag", etag(content))
		w.Header().Set("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = io.WriteString(w, content)
	case r.Method == http.MethodGet && key != "":
		refuse(w, http.StatusNotFound, "NoSuchKey")
	default:
		s.t.Errorf("S3 is asked for what the test does not know: %s %s", r.Method, r.URL)
		refuse(w, http.StatusNotImplemented, "NotImplemented")
	}
}

func etag(content string) string {
	sum := md5.Sum([]byte(content))
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>%[1]s</Message></Error>`, code)
}

func (s *shelf) list(w http.ResponseWriter, prefix string) {
	type object struct {
		Key, LastModified, ETag string
		Size                    int
	}
	answer := struct {
		XMLName      xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
		Name, Prefix string
		KeyCount     int
		IsTruncated  bool
		EncodingType string
		Contents     []object
	}{Name: "fleet", Prefix: prefix, EncodingType: "url"}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(key, prefix) {
			content := s.objects[key]
			answer.Contents = append(answer.Contents, object{Key: url.QueryEscape(key), LastModified: "2026-01-02T03:04:05.000Z", ETag: etag(content), Size: len(content)})
		}
	}
	answer.KeyCount = len(answer.Contents)
	w.Header().Set("Content-Type", "application/xml")
	if err := xml.NewEncoder(w).Encode(answer); err != nil {
		s.t.Errorf("cannot list the bucket: %v", err)
	}
}

func (s *shelf) put(files map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.objects, files)
}

func (s *shelf) remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
}

// fetched returns the objects that were fetched since the last call.
func (s *shelf) fetched() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for _, r := range s.requests {
		if key, ok := strings.CutPrefix(r, "GET /fleet/"); ok && key != "" && key != ".sourceignore" {
			keys = append(keys, key)
		}
	}
	s.requests = nil
	slices.Sort(keys)
	return keys
}

func (s *shelf) origin() BucketOrigin {
	return BucketOrigin{
		Endpoint: strings.TrimPrefix(strings.TrimPrefix(s.server.URL, "http://"), "https://"), Bucket: "fleet", Region: "us-east-1", Insecure: true,
		Secret: map[string][]byte{"accesskey": []byte("me"), "secretkey": []byte("s3cret")},
	}
}

// revisionAsFlux is the digest of a sorted index of names and MD5 sums.
func revisionAsFlux(files map[string]string) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(files)) {
		sum := md5.Sum([]byte(files[key]))
		fmt.Fprintf(h, "%s %s\n", key, hex.EncodeToString(sum[:]))
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

func pullBucket(t *testing.T, b *Buckets, o BucketOrigin, ignore *string, last *Snapshot) *Snapshot {
	t.Helper()
	s, err := b.Fetch(t.Context(), o, ignore, last)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBucket(t *testing.T) {
	s := newShelf(t, httptest.NewServer)
	files := map[string]string{"a.yaml": "1", "dir/b.yaml": "2", "dir/same.yaml": "1", "logo.png": "x"}
	s.put(files)
	s.put(map[string]string{"folder/": ""})
	dir := filepath.Join(t.TempDir(), "buckets")
	b := NewBuckets(dir, plenty)
	first := pullBucket(t, b, s.origin(), nil, nil)
	if want := revisionAsFlux(files); first.Revision != want || first.File != strings.TrimPrefix(want, "sha256:")+".tar.gz" {
		t.Errorf("revision %s in %s, want %s", first.Revision, first.File, want)
	}
	if diff := cmp.Diff([]string{"a.yaml", "dir/b.yaml", "dir/same.yaml", "logo.png"}, walk(t, first, "")); diff != "" {
		t.Errorf("files: -want, +got:\n%s", diff)
	}
	if got := s.fetched(); len(got) != len(files) {
		t.Errorf("%q were fetched", got)
	}
	_, one, _ := first.Stat("a.yaml")
	if _, same, _ := first.Stat("dir/same.yaml"); one != same {
		t.Error("equal content has another hash")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files %v are left over, %v", left, err)
	}
	// Nothing has changed.
	if again := pullBucket(t, b, s.origin(), nil, first); again != first {
		t.Error("an unchanged bucket is another snapshot")
	}
	// Another source of the same origin.
	if other := pullBucket(t, b, s.origin(), nil, nil); other.Revision != first.Revision || read(t, other, "dir/b.yaml") != "2" {
		t.Errorf("another source has %+v", other)
	}
	if got := s.fetched(); len(got) != 0 {
		t.Errorf("%q were fetched of what is known", got)
	}
	// One object is another, one is new, one is gone: what stayed is not fetched.
	files["a.yaml"], files["new.yaml"] = "3", "4"
	delete(files, "logo.png")
	s.put(map[string]string{"a.yaml": "3", "new.yaml": "4"})
	s.remove("logo.png")
	next := pullBucket(t, b, s.origin(), nil, first)
	if got := s.fetched(); !slices.Equal(got, []string{"a.yaml", "new.yaml"}) {
		t.Errorf("%q were fetched, want what has changed", got)
	}
	if next.Revision != revisionAsFlux(files) {
		t.Errorf("revision %s, want %s", next.Revision, revisionAsFlux(files))
	}
	if diff := cmp.Diff([]string{"a.yaml", "dir/b.yaml", "dir/same.yaml", "new.yaml"}, walk(t, next, "")); diff != "" {
		t.Errorf("files after a change: -want, +got:\n%s", diff)
	}
	if read(t, next, "a.yaml") != "3" || read(t, next, "dir/b.yaml") != "2" || read(t, first, "a.yaml") != "1" {
		t.Error("a snapshot has the content of the other")
	}
	// However often it changes, the content is in a few files.
	for i := range 3 * storesMost {
		s.put(map[string]string{fmt.Sprintf("many/%d.yaml", i): fmt.Sprint(i)})
		next = pullBucket(t, b, s.origin(), nil, next)
		if stores := len(storesOf(next.bucket.objects)); stores > storesMost {
			t.Fatalf("after %d changes the content is in %d files", i+1, stores)
		}
	}
	if got := s.fetched(); len(got) != 3*storesMost {
		t.Errorf("%d objects were fetched for %d changes", len(got), 3*storesMost)
	}
	for i := range 3 * storesMost {
		if got := read(t, next, fmt.Sprintf("many/%d.yaml", i)); got != fmt.Sprint(i) {
			t.Errorf("file %d has %q", i, got)
		}
	}
	// Nobody needs the old ones any more.
	first = nil
	if kept := alive(&b.pulls, 1); kept != 1 {
		t.Errorf("%d contents are kept, want that of the one snapshot", kept)
	}
	runtime.KeepAlive(next)
}

// alive collects garbage until so many are left in a pool, and counts them.
func alive[T any](p *pool[T], want int) int {
	kept := 0
	for range 100 {
		runtime.GC()
		p.mu.Lock()
		kept = 0
		for _, w := range p.kept {
			if w.Value() != nil {
				kept++
			}
		}
		p.mu.Unlock()
		if kept <= want {
			break
		}
	}
	return kept
}

func ptr(s string) *string { return &s }

func TestBucketRules(t *testing.T) {
	s := newShelf(t, httptest.NewServer)
	files := map[string]string{"a.yaml": "1", "apps/b.yaml": "2", "apps/c.md": "3", "apps/.sourceignore": "*", ".git/config": "x", "bad/../../x": "x"}
	s.put(files)
	keep := "bad/\n"
	for name, tc := range map[string]struct {
		reason string
		rules  *string
		ignore *string
		prefix string
		want   []string
		index  []string
	}{
		"None":   {"no default rules, and only the root has a file of rules", nil, &keep, "", []string{".git/config", "a.yaml", "apps/.sourceignore", "apps/b.yaml", "apps/c.md"}, []string{".git/config", "a.yaml", "apps/.sourceignore", "apps/b.yaml", "apps/c.md"}},
		"File":   {"the file of rules is kept and is no part of the revision", ptr("bad/\n*.md\n.git/\n"), nil, "", []string{".sourceignore", "a.yaml", "apps/.sourceignore", "apps/b.yaml"}, []string{"a.yaml", "apps/.sourceignore", "apps/b.yaml"}},
		"Both":   {"the object's rules come last", ptr("bad/\n*.md\n"), ptr("!*.md\n.git/"), "", []string{".sourceignore", "a.yaml", "apps/.sourceignore", "apps/b.yaml", "apps/c.md"}, []string{"a.yaml", "apps/.sourceignore", "apps/b.yaml", "apps/c.md"}},
		"Prefix": {"the names keep the prefix", nil, nil, "apps/", []string{"apps/.sourceignore", "apps/b.yaml", "apps/c.md"}, []string{"apps/.sourceignore", "apps/b.yaml", "apps/c.md"}},
		"Half":   {"a prefix is no directory", nil, nil, "a", []string{"a.yaml", "apps/.sourceignore", "apps/b.yaml", "apps/c.md"}, []string{"a.yaml", "apps/.sourceignore", "apps/b.yaml", "apps/c.md"}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.rules != nil {
				s.put(map[string]string{".sourceignore": *tc.rules})
				defer s.remove(".sourceignore")
			}
			o := s.origin()
			o.Prefix = tc.prefix
			got := pullBucket(t, NewBuckets(t.TempDir(), plenty), o, tc.ignore, nil)
			if diff := cmp.Diff(tc.want, walk(t, got, "")); diff != "" {
				t.Errorf("%s: files: -want, +got:\n%s", tc.reason, diff)
			}
			index := map[string]string{}
			for _, key := range tc.index {
				index[key] = files[key]
			}
			if want := revisionAsFlux(index); got.Revision != want {
				t.Errorf("%s: revision %s, want %s", tc.reason, got.Revision, want)
			}
		})
	}
}

func TestBucketCredentials(t *testing.T) {
	s := newShelf(t, httptest.NewTLSServer)
	s.put(map[string]string{"a": "1"})
	s.front = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.Header.Get("Authorization"), "Credential=me/") || strings.Contains(r.Header.Get("Authorization"), "Credential=ldap/") {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>`)
		return true
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	sts := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil || r.Form.Get("LDAPUsername") != "someone" || r.Form.Get("LDAPPassword") != "s3cret" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_, _ = fmt.Fprintf(w, `<AssumeRoleWithLDAPIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithLDAPIdentityResult><Credentials>`+
			`<AccessKeyId>ldap</AccessKeyId><SecretAccessKey>x</SecretAccessKey><SessionToken>y</SessionToken><Expiration>%s</Expiration>`+
			`</Credentials></AssumeRoleWithLDAPIdentityResult></AssumeRoleWithLDAPIdentityResponse>`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	defer sts.Close()
	stsCA := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: sts.Certificate().Raw})
	someone := map[string][]byte{"username": []byte("someone"), "password": []byte("s3cret")}
	for name, tc := range map[string]struct {
		reason string
		set    func(o *BucketOrigin)
		fails  string
		says   string
	}{
		"Keys": {"the usual Secret", func(*BucketOrigin) {}, "", ""},
		"Wrong": {"another key", func(o *BucketOrigin) {
			o.Secret = map[string][]byte{"accesskey": []byte("x"), "secretkey": []byte("s3cret")}
		}, ReasonBucketFailed, "spec.secretRef"},
		"Anonymous": {"no key", func(o *BucketOrigin) { o.Secret = nil }, ReasonBucketFailed, "spec.secretRef"},
		"Half":      {"half a Secret", func(o *BucketOrigin) { o.Secret = map[string][]byte{"accesskey": []byte("me")} }, ReasonAuthenticationFailed, "secretkey"},
		"CA":        {"nobody vouches for the server", func(o *BucketOrigin) { o.Certificates = nil }, ReasonBucketFailed, "certificate"},
		"NoCA":      {"no certificate in the Secret", func(o *BucketOrigin) { o.Certificates = map[string][]byte{"ca.crt": []byte("x")} }, ReasonAuthenticationFailed, "ca.crt"},
		"Endpoint":  {"an endpoint that is none", func(o *BucketOrigin) { o.Endpoint = "https://a b" }, ReasonURLInvalid, "spec.endpoint"},
		"Provider":  {"a provider that is none", func(o *BucketOrigin) { o.Provider = "x" }, ReasonInvalidProvider, "spec.provider"},
		"LDAP": {"a service that gives out keys", func(o *BucketOrigin) {
			o.Secret, o.STS = nil, &BucketSTS{Provider: "ldap", Endpoint: sts.URL, Secret: someone, Certificates: map[string][]byte{"ca.crt": stsCA}}
		}, "", ""},
		"NoLDAP": {"half of its Secret", func(o *BucketOrigin) {
			o.Secret, o.STS = nil, &BucketSTS{Provider: "ldap", Endpoint: sts.URL, Secret: map[string][]byte{"username": nil}}
		}, ReasonAuthenticationFailed, "password"},
		"STS":     {"aws is not for generic", func(o *BucketOrigin) { o.STS = &BucketSTS{Provider: "aws", Endpoint: sts.URL} }, ReasonInvalidSTS, "STS provider 'aws' is not supported for 'generic' bucket provider"},
		"STSLDAP": {"ldap is not for aws", func(o *BucketOrigin) { o.Provider, o.STS = "aws", &BucketSTS{Provider: "ldap", Endpoint: sts.URL} }, ReasonInvalidSTS, "not supported"},
		"STSSecret": {"aws has no Secret", func(o *BucketOrigin) {
			o.Provider, o.STS = "aws", &BucketSTS{Provider: "aws", Endpoint: sts.URL, Secret: someone}
		}, ReasonInvalidSTS, "spec.sts.secretRef"},
		"STSAddress": {"no URL", func(o *BucketOrigin) { o.STS = &BucketSTS{Provider: "ldap", Endpoint: "x"} }, ReasonURLInvalid, "spec.sts.endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			o := s.origin()
			o.Insecure, o.Certificates = false, map[string][]byte{"ca.crt": ca}
			tc.set(&o)
			_, err := NewBuckets(t.TempDir(), plenty).Fetch(t.Context(), o, nil, nil)
			if (err != nil) != (tc.fails != "") || (err != nil && (ReasonOf(err) != tc.fails || !strings.Contains(err.Error(), tc.says))) {
				t.Errorf("%s: Fetch() = %v (%s), want %s %q", tc.reason, err, ReasonOf(err), tc.fails, tc.says)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: the key is in %v", tc.reason, err)
			}
		})
	}
}

// TestHostileBuckets: a named reason, and nothing is fetched of a bucket whose
// names lead elsewhere.
func TestHostileBuckets(t *testing.T) {
	list := func(body string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/fleet/") {
				return false
			}
			w.Header().Set("Content-Type", "application/xml")
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	object := func(f http.HandlerFunc) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/a.yaml") {
				return false
			}
			f(w, r)
			return true
		}
	}
	many := map[string]string{}
	for i := range 30 {
		many[fmt.Sprint("many/", i)] = "x"
	}
	for name, tc := range map[string]struct {
		reason string
		files  map[string]string
		front  func(w http.ResponseWriter, r *http.Request) bool
		bucket string
		fails  string
		says   string
	}{
		"Parent":    {"CVE-2026-47680: a name that leads elsewhere", map[string]string{"../a": "1"}, nil, "", ReasonBucketFailed, "elsewhere"},
		"Deeper":    {"the same on the way", map[string]string{"a/../../b": "1"}, nil, "", ReasonBucketFailed, "elsewhere"},
		"Absolute":  {"the same from the root", map[string]string{"/etc/x": "1"}, nil, "", ReasonBucketFailed, "not allowed"},
		"Backslash": {"a separator elsewhere", map[string]string{`a\..\b`: "1"}, nil, "", ReasonBucketFailed, "not allowed"},
		"Collision": {"two names of one file", map[string]string{"a//b": "1", "a/b": "2"}, nil, "", ReasonBucketFailed, "same file"},
		"Both":      {"a name that is a file and a directory", map[string]string{"a": "1", "a/b": "2"}, nil, "", ReasonBucketFailed, "directory and a file"},
		"Deep":      {"directories without end", map[string]string{strings.Repeat("d/", maxDepth+1) + "x": "1"}, nil, "", ReasonLimitExceeded, "parts"},
		"Many":      {"more objects than anybody needs", many, nil, "", ReasonLimitExceeded, "20 objects"},
		"Large":     {"more bytes than may be sent", map[string]string{"big": strings.Repeat("x", 100_001)}, nil, "", ReasonLimitExceeded, "100000 bytes"},
		"Rules":     {"a file of rules without end", map[string]string{".sourceignore": strings.Repeat("#\n", maxRulesBytes)}, nil, "", ReasonLimitExceeded, ".sourceignore"},
		"Patterns":  {"more rules than anybody needs", map[string]string{".sourceignore": strings.Repeat("x\n", maxPatterns+1)}, nil, "", ReasonLimitExceeded, "patterns"},
		"NoBucket":  {"there is no such bucket", nil, nil, "other", ReasonBucketFailed, "'other'"},
		"NoList":    {"a list that is none", nil, list("x"), "", ReasonBucketFailed, ""},
		"LongList": {"a list without end", nil, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/fleet/") {
				return false
			}
			_, _ = io.WriteString(w, "<ListBucketResult><Contents><Key>")
			for r.Context().Err() == nil {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 64<<10)); err != nil {
					return true
				}
			}
			return true
		}, "", ReasonLimitExceeded, "list of objects"},
		"Short": {"less is sent than was announced", map[string]string{"a.yaml": "12345"}, object(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.Header().Set("ETag", `"x"`)
			w.Header().Set("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
			_, _ = io.WriteString(w, "1")
		}), "", ReasonBucketFailed, "a.yaml"},
		"Grown": {"an object that is larger now", map[string]string{"a.yaml": "1"}, object(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "200000")
			w.Header().Set("ETag", `"x"`)
			w.Header().Set("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
			_, _ = w.Write(bytes.Repeat([]byte("x"), 200_000))
		}), "", ReasonLimitExceeded, "100000 bytes"},
		"Refused": {"one object may not be read", map[string]string{"a.yaml": "1"}, object(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code><Message>"+strings.Repeat("no\n", 10_000)+"</Message></Error>")
		}), "", ReasonBucketFailed, "a.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t, httptest.NewServer)
			s.put(map[string]string{"good.yaml": "1"})
			s.put(tc.files)
			s.front = tc.front
			dir := t.TempDir()
			b := NewBuckets(dir, 100_000)
			b.objectsMost = 20
			o := s.origin()
			if tc.bucket != "" {
				o.Bucket = tc.bucket
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := b.Fetch(ctx, o, nil, nil)
			if err == nil || ReasonOf(err) != tc.fails || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("%s: Fetch() = %v (%s), want %s %q", tc.reason, err, ReasonOf(err), tc.fails, tc.says)
			}
			if len(err.Error()) > 3500 || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: the error tells too much: %v", tc.reason, err)
			}
			if tc.front == nil {
				if got := s.fetched(); len(got) > 0 {
					t.Errorf("%s: %q were fetched", tc.reason, got)
				}
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("%s: files %v are left over", tc.reason, left)
			}
		})
	}
}

// TestBucketChanges: what changes while it is read is what the revision tells.
func TestBucketChanges(t *testing.T) {
	s := newShelf(t, httptest.NewServer)
	s.put(map[string]string{"a.yaml": "1", "b.yaml": "2", "gone.yaml": "3"})
	s.front = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/gone.yaml"):
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>")
			return true
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/b.yaml"):
			s.put(map[string]string{"b.yaml": "later"})
		}
		return false
	}
	b := NewBuckets(t.TempDir(), plenty)
	got := pullBucket(t, b, s.origin(), nil, nil)
	if want := revisionAsFlux(map[string]string{"a.yaml": "1", "b.yaml": "later"}); got.Revision != want || read(t, got, "b.yaml") != "later" {
		t.Errorf("revision %s, want %s of what was fetched", got.Revision, want)
	}
	// Set back, the list is the one that this was fetched by.
	s.front = nil
	s.put(map[string]string{"b.yaml": "2"})
	back := pullBucket(t, b, s.origin(), nil, got)
	if want := revisionAsFlux(map[string]string{"a.yaml": "1", "b.yaml": "2", "gone.yaml": "3"}); back.Revision != want || read(t, back, "b.yaml") != "2" {
		t.Errorf("revision %s after b.yaml was set back, and it is %q; want %s", back.Revision, read(t, back, "b.yaml"), want)
	}
}

func TestBucketProxyAndDeadline(t *testing.T) {
	s := newShelf(t, httptest.NewServer)
	s.put(map[string]string{"a.yaml": "1"})
	through := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		through++
		r.URL.Host, r.RequestURI = strings.TrimPrefix(s.server.URL, "http://"), ""
		res, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		maps.Copy(w.Header(), res.Header)
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
	}))
	defer proxy.Close()
	o := s.origin()
	o.Proxy, _ = url.Parse(proxy.URL)
	if pullBucket(t, NewBuckets(t.TempDir(), plenty), o, nil, nil); through == 0 {
		t.Error("the proxy was not asked")
	}
	release := make(chan struct{})
	defer close(release)
	s.front = func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return true
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := NewBuckets(t.TempDir(), plenty).Fetch(ctx, s.origin(), nil, nil); !errors.Is(err, context.Canceled) || ReasonOf(err) != ReasonBucketFailed {
		t.Errorf("Fetch() of a server that does not answer = %v (%s)", err, ReasonOf(err))
	}
}
