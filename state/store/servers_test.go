package store_test

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// bucket is a server of object storage on loopback with one bucket, whose writes are
// conditional as the documentation of each cloud says.
type bucket struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	objects map[string]stored
	// generation of the next object.
	generation int64
	// ignore conditions, as servers do that do not know them.
	ignore bool
	// lost names the object the answer to whose next write is lost.
	lost string
}

type stored struct {
	content    []byte
	generation int64
}

// speaker answers in the way of a cloud.
type speaker func(b *bucket, w http.ResponseWriter, r *http.Request)

func newBucket(t *testing.T, speak speaker) *bucket {
	t.Helper()
	b := &bucket{t: t, objects: map[string]stored{}, generation: 1767323045000000}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		speak(b, w, r)
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *bucket) lose(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = name
}

// put writes an object, and reports whether its answer is lost.
func (b *bucket) put(name string, content []byte) (lost bool) {
	b.objects[name] = stored{content, b.generation}
	b.generation++
	if b.lost != "" && strings.HasSuffix(name, b.lost) {
		b.lost = ""
		return true
	}
	return false
}

// drop ends the connection without an answer.
func (b *bucket) drop(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		b.t.Error(err)
		return
	}
	_ = c.Close()
}

func etag(o stored) string {
	sum := md5.Sum(append(fmt.Append(nil, o.generation), o.content...))
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// holds reports whether the conditions of a write hold: RFC 9110, 13.1.
func (b *bucket) holds(r *http.Request, name string) bool {
	o, exists := b.objects[name]
	if b.ignore {
		return true
	}
	if r.Header.Get("If-None-Match") == "*" && exists {
		return false
	}
	if match := r.Header.Get("If-Match"); match != "" {
		return exists && match == etag(o)
	}
	return true
}

// speakS3 is PutObject with If-None-Match: * and If-Match, which is 412 PreconditionFailed
// where the object is another one, and 404 NoSuchKey where If-Match finds none (Amazon S3 API
// Reference, PutObject; User Guide, "How to prevent object overwrites with conditional
// writes").
func speakS3(b *bucket, w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code string) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>%[1]s</Message></Error>`, code)
	}
	name, _ := strings.CutPrefix(r.URL.Path, "/bucket/")
	o, exists := b.objects[name]
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "2":
		type object struct {
			Key, LastModified, ETag string
			Size                    int
		}
		answer := struct {
			XMLName      xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
			Name         string
			EncodingType string
			Contents     []object

			IsTruncated           bool
			NextContinuationToken string `xml:",omitempty"`
		}{Name: "bucket", EncodingType: "url"}
		last := ""
		for _, key := range b.names(r.URL.Query().Get("prefix")) {
			if key <= r.URL.Query().Get("continuation-token") {
				continue
			}
			if len(answer.Contents) == 1000 {
				answer.IsTruncated, answer.NextContinuationToken = true, last
				break
			}
			last = key
			answer.Contents = append(answer.Contents, object{Key: url.QueryEscape(key), LastModified: "2026-01-02T03:04:05.000Z", ETag: etag(b.objects[key]), Size: len(b.objects[key].content)})
		}
		w.Header().Set("Content-Type", "application/xml")
		_ = xml.NewEncoder(w).Encode(answer)
	case r.Method == http.MethodGet && exists:
		w.Header().Set("ETag", etag(o))
		w.Header().Set("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
		w.Header().Set("Content-Length", strconv.Itoa(len(o.content)))
		_, _ = w.Write(o.content)
	case r.Method == http.MethodGet:
		refuse(http.StatusNotFound, "NoSuchKey")
	case r.Method == http.MethodPut:
		content, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
			if content, err = unchunked(content); err != nil {
				b.t.Errorf("cannot read %s in chunks: %v", name, err)
			}
		}
		if r.Header.Get("If-Match") != "" && !exists && !b.ignore {
			refuse(http.StatusNotFound, "NoSuchKey")
			return
		}
		if !b.holds(r, name) {
			refuse(http.StatusPreconditionFailed, "PreconditionFailed")
			return
		}
		if b.put(name, content) {
			b.drop(w)
			return
		}
		w.Header().Set("ETag", etag(b.objects[name]))
	case r.Method == http.MethodDelete:
		delete(b.objects, name)
		w.WriteHeader(http.StatusNoContent)
	default:
		b.t.Errorf("S3 is asked for what the test does not know: %s %s", r.Method, r.URL)
		refuse(http.StatusNotImplemented, "NotImplemented")
	}
}

// unchunked reads content in chunks, each of which is signed, as it is sent without TLS
// (Amazon S3 API Reference, "Signature calculations for the Authorization header:
// transferring payload in multiple chunks").
func unchunked(in []byte) ([]byte, error) {
	var out []byte
	for {
		head, rest, ok := bytes.Cut(in, []byte("\r\n"))
		size, _, _ := strings.Cut(string(head), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		switch {
		case !ok || err != nil || int64(len(rest)) < n:
			return nil, fmt.Errorf("%q begins no chunk", head)
		case n == 0:
			return out, nil
		}
		out = append(out, rest[:n]...)
		in = bytes.TrimPrefix(rest[n:], []byte("\r\n"))
	}
}

// speakAzure is Put Blob with If-None-Match: *, which is 409 BlobAlreadyExists where there is
// one, and with If-Match, which is 412 ConditionNotMet where it is another one (Azure Blob
// Storage REST API, Put Blob; "Specifying conditional headers for Blob service operations").
func speakAzure(b *bucket, w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code string) {
		w.Header().Set("x-ms-error-code", code)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="utf-8"?><Error><Code>%s</Code><Message>%[1]s</Message></Error>`, code)
	}
	name, _ := strings.CutPrefix(r.URL.Path, "/bucket/")
	o, exists := b.objects[name]
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("comp") == "list":
		var list strings.Builder
		for _, key := range b.names(r.URL.Query().Get("prefix")) {
			fmt.Fprintf(&list, "<Blob><Name>%s</Name><Properties><Etag>%s</Etag><Content-Length>%d</Content-Length></Properties></Blob>", key, strings.Trim(etag(b.objects[key]), `"`), len(b.objects[key].content))
		}
		w.Header().Set("Content-Type", "application/xml")
		_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>%s</Blobs><NextMarker/></EnumerationResults>`, list.String())
	case r.Method == http.MethodGet && exists:
		w.Header().Set("ETag", etag(o))
		w.Header().Set("Content-Length", strconv.Itoa(len(o.content)))
		_, _ = w.Write(o.content)
	case r.Method == http.MethodGet:
		refuse(http.StatusNotFound, "BlobNotFound")
	case r.Method == http.MethodPut:
		content, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		switch {
		case b.holds(r, name):
		case r.Header.Get("If-None-Match") != "":
			refuse(http.StatusConflict, "BlobAlreadyExists")
			return
		default:
			refuse(http.StatusPreconditionFailed, "ConditionNotMet")
			return
		}
		if b.put(name, content) {
			b.drop(w)
			return
		}
		w.Header().Set("ETag", etag(b.objects[name]))
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodDelete && exists:
		delete(b.objects, name)
		w.WriteHeader(http.StatusAccepted)
	case r.Method == http.MethodDelete:
		refuse(http.StatusNotFound, "BlobNotFound")
	default:
		b.t.Errorf("Azure is asked for what the test does not know: %s %s", r.Method, r.URL)
		refuse(http.StatusNotImplemented, "NotImplemented")
	}
}

// speakGoogle is objects.insert with ifGenerationMatch, zero for none, which is 412 where the
// object is another one (Cloud Storage JSON API, Objects: insert; "Request preconditions").
func speakGoogle(b *bucket, w http.ResponseWriter, r *http.Request) {
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	refuse := func(status int, reason string) {
		answer(status, map[string]any{"error": map[string]any{"code": status, "message": reason, "errors": []any{map[string]any{"reason": reason}}}})
	}
	meta := func(name string) map[string]any {
		o := b.objects[name]
		return map[string]any{"name": name, "generation": strconv.FormatInt(o.generation, 10), "etag": etag(o), "size": strconv.Itoa(len(o.content))}
	}
	const objects = "/storage/v1/b/bucket/o"
	query := r.URL.Query()
	name, one := strings.CutPrefix(r.URL.Path, objects+"/")
	o, exists := b.objects[name]
	switch {
	case r.Method == http.MethodGet && r.URL.Path == objects:
		items := []any{}
		for _, key := range b.names(query.Get("prefix")) {
			items = append(items, meta(key))
		}
		answer(http.StatusOK, map[string]any{"items": items})
	case one && r.Method == http.MethodGet && (!exists || query.Get("generation") != "" && query.Get("generation") != strconv.FormatInt(o.generation, 10)):
		refuse(http.StatusNotFound, "notFound")
	case one && r.Method == http.MethodGet && query.Get("alt") == "media":
		_, _ = w.Write(o.content)
	case one && r.Method == http.MethodGet:
		answer(http.StatusOK, meta(name))
	case one && r.Method == http.MethodDelete && exists:
		delete(b.objects, name)
		w.WriteHeader(http.StatusNoContent)
	case one && r.Method == http.MethodDelete:
		refuse(http.StatusNotFound, "notFound")
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/b/bucket/o") && query.Get("uploadType") == "multipart":
		b.insertGoogle(w, r, refuse, func(name string) { answer(http.StatusOK, meta(name)) })
	default:
		b.t.Errorf("Google is asked for what the test does not know: %s %s", r.Method, r.URL)
		refuse(http.StatusNotImplemented, "notImplemented")
	}
}

func (b *bucket) insertGoogle(w http.ResponseWriter, r *http.Request, refuse func(int, string), done func(name string)) {
	_, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		b.t.Error(err)
		return
	}
	parts := multipart.NewReader(r.Body, parameters["boundary"])
	var in struct {
		Name string `json:"name"`
	}
	var content []byte
	for i := range 2 {
		part, err := parts.NextPart()
		if err != nil {
			return
		}
		if i == 0 {
			err = json.NewDecoder(part).Decode(&in)
		} else {
			content, err = io.ReadAll(part)
		}
		if err != nil {
			return
		}
	}
	if want := r.URL.Query().Get("ifGenerationMatch"); want != "" && want != strconv.FormatInt(b.objects[in.Name].generation, 10) {
		refuse(http.StatusPreconditionFailed, "conditionNotMet")
		return
	}
	if b.put(in.Name, content) {
		b.drop(w)
		return
	}
	done(in.Name)
}

// names of objects with a prefix, sorted.
func (b *bucket) names(prefix string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(b.objects)), func(name string) bool { return !strings.HasPrefix(name, prefix) })
}
