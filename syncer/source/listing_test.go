package source

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// tagServer answers for one repository.
func tagServer(t *testing.T, list http.HandlerFunc) ImageOrigin {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		list(w, r)
	}))
	t.Cleanup(server.Close)
	return ImageOrigin{URL: "oci://" + strings.TrimPrefix(server.URL, "http://") + "/org/app", Insecure: true}
}

// ample has room for anything.
func ample(int) error { return nil }

func TestList(t *testing.T) {
	quoted := func(n int, tag string) string { return strings.TrimSuffix(strings.Repeat(`"`+tag+`",`, n), ",") }
	for name, tt := range map[string]struct {
		reason string
		list   func(w http.ResponseWriter, r *http.Request)
		want   int
		fails  string
		as     string
	}{
		"Plain": {reason: "the tags", list: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"tags":["1","2"]}`) }, want: 2},
		"None":  {reason: "a repository without tags", list: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"tags":null}`) }},
		"Forms": {reason: "what is no tag is left out", list: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"tags":["ok","a b","-x","../x","","`+strings.Repeat("a", 129)+`","x\nkind: y"]}`)
		}, want: 1},
		"Pages":        {reason: "all pages", list: func(w http.ResponseWriter, r *http.Request) { page(w, r, 3) }, want: 3},
		"EndlessPages": {reason: "pages without an end", list: func(w http.ResponseWriter, r *http.Request) { page(w, r, 1<<30) }, fails: "more than", as: ReasonLimitExceeded},
		"Long": {reason: "50 MiB of tags are refused", fails: "more than 8388608 bytes", as: ReasonLimitExceeded, list: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"tags":[`)
			for range 50 << 10 {
				if _, err := fmt.Fprint(w, quoted(8, strings.Repeat("a", 125))+","); err != nil {
					return
				}
			}
			fmt.Fprint(w, `"x"]}`)
		}},
		"Many": {reason: "and short ones, before they are a million texts", list: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"tags":[`+quoted(MaxTags+1000, "a")+`]}`)
		}, fails: "more than 100000 tags", as: ReasonLimitExceeded},
		"Empties": {reason: "and those without a letter", list: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"tags":[`+quoted(2_000_000, "")+`]}`) }, fails: "more than 100000 tags", as: ReasonLimitExceeded},
		"Invalid": {reason: "and pages of what is no tag", list: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", `</v2/org/app/tags/list?last=x>; rel="next"`)
			fmt.Fprint(w, `{"name":"tags","tags":[`+quoted(20_000, "-")+`]}`)
		}, fails: "more than 100000 tags", as: ReasonLimitExceeded},
		"Names": {reason: "whatever the case of the field", list: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"a":{"b":["]",{"c":"\\\"}"}]},"\u0054aGs":[`+quoted(MaxTags+2000, "a")+`]}`)
		}, fails: "more than 100000 tags", as: ReasonLimitExceeded},
		"Google": {reason: "Google tells of each manifest, tagged or not, what nobody asked for", list: func(w http.ResponseWriter, _ *http.Request) {
			var manifests []string
			for n := range 10_000 {
				manifests = append(manifests, fmt.Sprintf(`"sha256:%064d":{"imageSizeBytes":"4","layerId":"","mediaType":"application/vnd.oci.image.manifest.v1+json","tag":["a","b"],"timeCreatedMs":"1","timeUploadedMs":"1"}`, n))
			}
			fmt.Fprint(w, `{"child":[],"manifest":{`+strings.Join(manifests, ",")+`},"name":"org/app","tags":[`+quoted(100, "a")+`]}`)
		}, want: 100},
		"NotJSON":  {reason: "not a list", list: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>`) }, fails: "cannot list the tags", as: ReasonReadFailed},
		"NotFound": {reason: "no such repository", list: func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) }, fails: "404", as: ReasonReadFailed},
		"Unasked":  {reason: "nobody asked whether it changed", list: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }, fails: "304", as: ReasonReadFailed},
		"OtherSite": {reason: "the next page is elsewhere", list: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", `<http://127.0.0.2:1/v2/org/app/tags/list?last=1>; rel="next"`)
			fmt.Fprint(w, `{"tags":["1"]}`)
		}, fails: "cannot list the tags", as: ReasonReadFailed},
	} {
		t.Run(name, func(t *testing.T) {
			images := NewImages(t.TempDir(), 1<<20, time.Now)
			got, err := images.List(t.Context(), tagServer(t, tt.list), ample)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) || ReasonOf(err) != tt.as {
					t.Errorf("%s: got %d tags, %v; want %s with %q", tt.reason, len(got.Tags), err, tt.as, tt.fails)
				}
				return
			}
			if err != nil || len(got.Tags) != tt.want {
				t.Errorf("%s: got %q, %v; want %d", tt.reason, got.Tags, err, tt.want)
			}
		})
	}
}

func page(w http.ResponseWriter, r *http.Request, last int) {
	n := 0
	_, _ = fmt.Sscanf(r.URL.Query().Get("last"), "%d", &n)
	if n++; n < last {
		w.Header().Set("Link", fmt.Sprintf(`</v2/org/app/tags/list?last=%d>; rel="next"`, n))
	}
	fmt.Fprintf(w, `{"tags":["v%d"]}`, n)
}

// TestListUnchanged: a registry that gives entity tags sends a list once, each page of it, and again when it changed; another
// credential is not shown what the first one read.
func TestListUnchanged(t *testing.T) {
	version, sent, same := 1, 0, 0
	origin := tagServer(t, func(w http.ResponseWriter, r *http.Request) {
		tag := fmt.Sprintf(`"%d %s"`, version, r.URL.Query().Get("last"))
		w.Header().Set("Etag", tag)
		if r.Header.Get("If-None-Match") == tag {
			same++
			w.WriteHeader(http.StatusNotModified)
			return
		}
		sent++
		page(w, r, 2*version)
	})
	images := NewImages(t.TempDir(), 1<<20, time.Now)
	list := func(origin ImageOrigin, tags int, unchanged bool) {
		t.Helper()
		got, err := images.List(t.Context(), origin, ample)
		if err != nil || len(got.Tags) != tags || got.Unchanged != unchanged {
			t.Fatalf("got %+v, %v; want %d tags, unchanged %t", got, err, tags, unchanged)
		}
	}
	list(origin, 2, false)
	list(origin, 2, true)
	if sent != 2 || same != 2 {
		t.Errorf("%d pages were sent and %d were the same; want 2 of each", sent, same)
	}
	version = 2
	list(origin, 4, false)
	list(origin, 4, true)
	other := origin
	other.Secrets = []map[string][]byte{{"username": []byte("u"), "password": []byte("p")}}
	list(other, 4, false)
}

// TestVersionsBounded: whoever looks for a version in a range keeps none of the tags of a registry, which may send as many as
// it likes, and reads no more of one page than a list may have.
func TestVersionsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		list   func(w http.ResponseWriter, r *http.Request)
		finds  bool
	}{
		"Flat": {"a page of texts without a letter", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"tags":["1.0.0",`+strings.TrimSuffix(strings.Repeat(`"",`, 2_000_000), ",")+`]}`)
		}, false},
		"Pages": {"many pages", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("last") != "4" {
				last, _ := strconv.Atoi(r.URL.Query().Get("last"))
				w.Header().Set("Link", fmt.Sprintf(`</v2/org/app/tags/list?last=%d>; rel="next"`, last+1))
			}
			fmt.Fprint(w, `{"tags":[`+strings.TrimSuffix(strings.Repeat(`"-",`, 90_000), ",")+`,"1.0.0"]}`)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			images, origin := NewImages(t.TempDir(), 1<<20, time.Now), tagServer(t, tt.list)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := images.Resolve(t.Context(), origin, ImageReference{SemVer: "*"}, "")
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 128<<20 {
				t.Errorf("%s: it took %d MiB", tt.reason, took>>20)
			}
			if bounded := ReasonOf(err) == ReasonLimitExceeded; bounded == tt.finds {
				t.Errorf("%s: Resolve() = %v", tt.reason, err)
			}
			tags, err := images.Tags(t.Context(), origin)
			if (err == nil) != tt.finds || tt.finds && len(tags) != 5 {
				t.Errorf("%s: Tags() has %d, %v", tt.reason, len(tags), err)
			}
		})
	}
}

// TestListRoom: what is read is told while it is read, an answer before its end; and what is left of it are its tags.
func TestListRoom(t *testing.T) {
	images := NewImages(t.TempDir(), 1<<20, time.Now)
	others := strings.Repeat("x", 100_000)
	pages := tagServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("last") == "" {
			w.Header().Set("Link", `</v2/org/app/tags/list?last=1>; rel="next"`)
		}
		fmt.Fprint(w, `{"manifest":"`+others+`","tags":["1.0.0","no tag"]}`)
	})
	now, most := 0, 0
	got, err := images.List(t.Context(), pages, func(bytes int) error {
		now += bytes
		most = max(most, now)
		return nil
	})
	if want := 2 * TagBytes("1.0.0"); err != nil || len(got.Tags) != 2 || now != want || most < len(others) || most > 2*len(others) {
		t.Errorf("got %q, %v; %d bytes of %d are left, want %d", got.Tags, err, now, most, want)
	}
	open := tagServer(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"tags":["1.0.0"`+strings.Repeat(" ", 1<<20))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	now = 0
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = images.List(ctx, open, func(bytes int) error {
		if now += bytes; now > 100_000 {
			return failf(ReasonLimitExceeded, "there is no room")
		}
		return nil
	})
	if ReasonOf(err) != ReasonLimitExceeded || !strings.Contains(err.Error(), "there is no room") {
		t.Errorf("of an answer without an end: %v after %d bytes", err, now)
	}
}
