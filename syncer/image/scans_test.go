package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// clock is a time that tests move.
type clock struct{ at atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.at.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.at.Load()) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

// images is a registry that counts what lists of tags it is asked for.
type images struct {
	host  string
	lists atomic.Int64
}

func serveImages(t *testing.T, count, tags int) *images {
	t.Helper()
	i := &images{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/tags/list") {
			i.lists.Add(1)
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	i.host = strings.TrimPrefix(server.URL, "http://")
	for image := range count {
		for tag := range tags {
			i.push(t, fmt.Sprintf("org/app-%d:1.0.%d", image, tag))
		}
	}
	return i
}

func (i *images) push(t *testing.T, at string) {
	t.Helper()
	ref, err := name.ParseReference(i.host+"/"+at, name.Insecure)
	if err == nil {
		err = remote.Write(ref, empty.Image)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (i *images) origin(image int) source.ImageOrigin {
	return source.ImageOrigin{URL: fmt.Sprintf("oci://%s/org/app-%d", i.host, image), Insecure: true}
}

// TestScans: two hundred ImageRepositories of fifty images are fifty lists of tags at each interval, however they drift apart;
// none after a restart; and one for each credential.
func TestScans(t *testing.T) {
	const objects, different, interval = 200, 50, 10 * time.Minute
	r := serveImages(t, different, 3)
	dir, time0 := t.TempDir(), newClock()
	from := source.NewImages(t.TempDir(), 1<<20, time0.now)
	s := NewScans(from, dir, time0.now, prometheus.NewRegistry())
	name := func(n int) types.NamespacedName {
		return types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("repository-", n)}
	}
	scanOf := func(s *Scans, n int, since time.Time) scan {
		t.Helper()
		got, err := s.Scan(t.Context(), name(n), types.UID(fmt.Sprint(n)), r.origin(n%different), []string{`^.*\.sig$`}, since)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.tags(), []string{"1.0.0", "1.0.1", "1.0.2"}) {
			t.Fatalf("object %d has %q", n, got.tags())
		}
		return got
	}
	// All at once, as after a start.
	var working sync.WaitGroup
	for n := range objects {
		working.Add(1)
		go func() {
			defer working.Done()
			if _, err := s.Scan(t.Context(), name(n), types.UID(fmt.Sprint(n)), r.origin(n%different), []string{`^.*\.sig$`}, time0.now().Add(-interval/sharedFor)); err != nil {
				t.Error(err)
			}
		}()
	}
	working.Wait()
	if got := r.lists.Load(); got != different {
		t.Fatalf("%d lists of tags at the start; want %d", got, different)
	}
	// Forty intervals, each object with its own jitter.
	random := rand.New(rand.NewPCG(1, 1))
	due := make([]time.Time, objects)
	for n := range due {
		due[n] = time0.now().Add(interval)
	}
	begun := time0.now()
	for {
		next := 0
		for n := range due {
			if due[n].Before(due[next]) {
				next = n
			}
		}
		if due[next].Sub(begun) > 40*interval {
			break
		}
		time0.advance(max(0, due[next].Sub(time0.now())))
		got := scanOf(s, next, time0.now().Add(-interval/sharedFor))
		after := interval - time0.now().Sub(got.list.at)
		due[next] = time0.now().Add(after + time.Duration((random.Float64()*2-1)*0.05*float64(after)))
	}
	perInterval := float64(r.lists.Load()-different) / 40
	t.Logf("%.1f lists of tags in each interval, of %d objects of %d images", perInterval, objects, different)
	if perInterval > different*1.06 {
		t.Errorf("%.1f lists of tags in each interval; want about %d", perInterval, different)
	}
	// A restart, with the directory.
	before := r.lists.Load()
	again := NewScans(from, dir, time0.now, prometheus.NewRegistry())
	for n := range objects {
		scanOf(again, n, time0.now().Add(-interval))
	}
	if got := r.lists.Load() - before; got != 0 {
		t.Errorf("%d lists of tags after a restart; want none", got)
	}
	if got := testutil.ToFloat64(again.lists.WithLabelValues("kept")); got != different {
		t.Errorf("%v lists were kept; want %d", got, different)
	}
	// A person who asks gets a list of now, and all that have the image with them.
	time0.advance(time.Second)
	scanOf(again, 0, time0.now())
	scanOf(again, different, time0.now())
	if got := r.lists.Load() - before; got != 1 {
		t.Errorf("%d lists of tags for two that asked; want 1", got)
	}
	// Another credential may read something else.
	other := r.origin(0)
	other.Secrets = []map[string][]byte{{"username": []byte("u"), "password": []byte("p")}}
	if _, err := again.Scan(t.Context(), name(1000), "x", other, nil, time0.now().Add(-interval)); err != nil {
		t.Fatal(err)
	}
	if got := r.lists.Load() - before; got != 2 {
		t.Errorf("%d lists of tags with another credential; want 2", got)
	}
	// What nobody uses is forgotten, on the disk as well.
	for n := range objects {
		again.Forget(name(n))
	}
	again.Forget(name(1000))
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 || len(again.known) != 0 {
		t.Errorf("%d files and %d lists are left, %v", len(files), len(again.known), err)
	}
}

func TestScansTell(t *testing.T) {
	r := serveImages(t, 1, 1)
	time0 := newClock()
	s := NewScans(source.NewImages(t.TempDir(), 1<<20, time0.now), "", time0.now, prometheus.NewRegistry())
	var told []string
	s.onChange(func(name types.NamespacedName) { told = append(told, name.Name) })
	one := types.NamespacedName{Namespace: "ns", Name: "one"}
	look := func(want int, why string) scan {
		t.Helper()
		time0.advance(time.Minute)
		got, err := s.Scan(t.Context(), one, "u", r.origin(0), []string{`-rc`}, time0.now())
		if err != nil || len(told) != want {
			t.Fatalf("%s: told %q, %v; want %d", why, told, err, want)
		}
		return got
	}
	first := look(1, "the first list")
	look(1, "the same list")
	r.push(t, "org/app-0:1.1.0-rc1")
	if got := look(1, "what is excluded is no news"); got.revision() != first.revision() {
		t.Errorf("the revision changed with what is excluded")
	}
	r.push(t, "org/app-0:1.1.0")
	if got := look(2, "a new tag"); got.revision() == first.revision() || len(got.tags()) != 2 {
		t.Errorf("a new tag: %q", got.tags())
	}
	for name, tt := range map[string]struct {
		reason string
		change func(*imagev1.ImageRepository)
		want   bool
	}{
		"Same":    {"its tags are known", func(*imagev1.ImageRepository) {}, true},
		"Another": {"an object that was created again has not the tags of the one before", func(o *imagev1.ImageRepository) { o.UID = "another" }, false},
		"Image":   {"the tags are those of another image", func(o *imagev1.ImageRepository) { o.Spec.Image += "-2" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &imagev1.ImageRepository{ObjectMeta: metav1.ObjectMeta{Namespace: one.Namespace, Name: one.Name, UID: "u"}}
			obj.Spec.Image = strings.TrimPrefix(r.origin(0).URL, "oci://")
			tt.change(obj)
			if _, ok := s.Of(obj); ok != tt.want {
				t.Errorf("%s: known is %t", tt.reason, ok)
			}
		})
	}
}

// failing is a registry that does not answer.
type failing struct{ calls int }

func (f *failing) List(context.Context, source.ImageOrigin, func(int) error) (source.TagList, error) {
	f.calls++
	return source.TagList{}, errors.New("no answer")
}

// TestScansKeptHostile: a file that is not as it was written is as none.
func TestScansKeptHostile(t *testing.T) {
	r := serveImages(t, 1, 2)
	dir, time0 := t.TempDir(), newClock()
	good := NewScans(source.NewImages(t.TempDir(), 1<<20, time0.now), dir, time0.now, prometheus.NewRegistry())
	one := types.NamespacedName{Namespace: "ns", Name: "one"}
	if _, err := good.Scan(t.Context(), one, "u", r.origin(0), nil, time0.now()); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files are kept, %v", len(files), err)
	}
	at := filepath.Join(dir, files[0].Name())
	whole, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		reason  string
		content []byte
		known   bool
	}{
		"Whole":   {reason: "as it was written", content: whole, known: true},
		"Cut":     {reason: "a part of it", content: whole[:len(whole)-12]},
		"Empty":   {reason: "nothing", content: nil},
		"Garbage": {reason: "something else", content: []byte("tags")},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(at, tt.content, 0o600); err != nil {
				t.Fatal(err)
			}
			down := &failing{}
			s := NewScans(down, dir, time0.now, prometheus.NewRegistry())
			_, err := s.Scan(t.Context(), one, "u", r.origin(0), nil, time0.now().Add(-time.Hour))
			if (err == nil) != tt.known || (down.calls == 0) != tt.known {
				t.Errorf("%s: %v after %d calls", tt.reason, err, down.calls)
			}
		})
	}
}

// changing is a registry with a thousand tags of a hundred bytes in each image, which are others at each time.
type changing struct{ calls int }

func (c *changing) List(context.Context, source.ImageOrigin, func(int) error) (source.TagList, error) {
	c.calls++
	var tags []string
	for i := range 1000 {
		tags = append(tags, fmt.Sprintf("%d-%d-%s", c.calls, i, strings.Repeat("x", 90)))
	}
	return source.TagList{Tags: tags}, nil
}

// TestScansBounded: the lists that one namespace names do not fill the memory, and leave room to others.
func TestScansBounded(t *testing.T) {
	const most, each = 1 << 20, 1000 * (90 + 16)
	dir, time0 := t.TempDir(), newClock()
	for name, image := range map[string]func(n int) int{
		"Images": func(n int) int { return n },
		"Image":  func(int) int { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			s := NewScans(&changing{}, dir, time0.now, prometheus.NewRegistry())
			s.most = most
			scan := func(s *Scans, namespace string, n, image int) error {
				time0.advance(time.Second)
				origin := source.ImageOrigin{URL: fmt.Sprintf("oci://registry/%s-%d", namespace, image)}
				_, err := s.Scan(t.Context(), types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(n)}, "u", origin, nil, time0.now())
				return err
			}
			held := func(s *Scans) (bytes int) {
				for _, of := range s.objects {
					bytes += len(of.list.tags) * (90 + 16)
				}
				return bytes
			}
			var refused error
			for n := range 50 {
				if err := scan(s, "evil", n, image(n)); err != nil {
					refused = err
				}
			}
			if source.ReasonOf(refused) != source.ReasonLimitExceeded || held(s) > most+each || held(s) < most/2 {
				t.Errorf("50 lists of %d bytes take %d, and the last is refused with %v", each, held(s), refused)
			}
			for n := range 4 {
				if err := scan(s, "good", n, n); err != nil {
					t.Errorf("a list of another namespace: %v", err)
				}
			}
			// A restart knows what is kept.
			again := NewScans(&failing{}, dir, time0.now, prometheus.NewRegistry())
			again.most = most
			for n := range 50 {
				again.Recall(t.Context(), types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(n)}, "u", source.ImageOrigin{URL: fmt.Sprintf("oci://registry/evil-%d", n)}, nil)
			}
			if held(again) > most || held(again) == 0 {
				t.Errorf("after a restart %d bytes are held", held(again))
			}
			for n := range 50 {
				s.Forget(types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(n)})
			}
			for n := range 8 {
				if err := scan(s, "good", n, n); err != nil {
					t.Errorf("a list of another namespace, which is alone: %v", err)
				}
			}
		})
	}
}

// dripping is a registry that sends lists of some bytes, and ends none before it is told to.
type dripping struct {
	bytes int
	began chan struct{}
	end   chan struct{}
}

func (d *dripping) List(ctx context.Context, _ source.ImageOrigin, room func(int) error) (source.TagList, error) {
	for range d.bytes {
		if err := room(1); err != nil {
			return source.TagList{}, err
		}
	}
	d.began <- struct{}{}
	select {
	case <-d.end:
	case <-ctx.Done():
		return source.TagList{}, ctx.Err()
	}
	return source.TagList{Tags: []string{"1.0.0"}}, room(len("1.0.0") + 16 - d.bytes)
}

// TestScansBoundedInFlight: nor do lists that registries leave open, of which none is known yet.
func TestScansBoundedInFlight(t *testing.T) {
	time0 := newClock()
	d := &dripping{bytes: 400, began: make(chan struct{}, 10), end: make(chan struct{})}
	s := NewScans(d, "", time0.now, prometheus.NewRegistry())
	s.most = 1000
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	scan := func(namespace string, n int) error {
		origin := source.ImageOrigin{URL: fmt.Sprintf("oci://registry/%s-%d", namespace, n)}
		_, err := s.Scan(ctx, types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(n)}, "u", origin, nil, time0.now())
		return err
	}
	ended := make(chan error, 3)
	begin := func(namespace string, n int) {
		t.Helper()
		go func() { ended <- scan(namespace, n) }()
		select {
		case <-d.began:
		case err := <-ended:
			t.Fatalf("list %d of namespace %s ended with %v", n, namespace, err)
		}
	}
	begin("evil", 0)
	begin("evil", 1)
	if err := scan("evil", 2); source.ReasonOf(err) != source.ReasonLimitExceeded {
		t.Errorf("a third list that is open: %v", err)
	}
	begin("good", 0) // has its part
	close(d.end)
	for range 3 {
		if err := <-ended; err != nil {
			t.Errorf("a list that came to its end: %v", err)
		}
	}
	if err := scan("evil", 2); err != nil || len(s.reading) != 0 {
		t.Errorf("once the others have ended: %v, and %d are being read", err, len(s.reading))
	}
}

// TestSubset: what is excluded from a list is told by a bit for each tag.
func TestSubset(t *testing.T) {
	var tags, some []string
	for i := range 200 {
		tags = append(tags, fmt.Sprintf("%03d", i))
		if i%7 == 0 || i > 190 {
			some = append(some, tags[i])
		}
	}
	for _, want := range [][]string{some, tags, nil, tags[199:], tags[:1], tags[63:65]} {
		if got := subsetOf(tags, want).of(tags); !slices.Equal(got, want) {
			t.Errorf("%q became %q", want, got)
		}
	}
	if got := subsetOf(nil, nil).of(nil); len(got) != 0 {
		t.Errorf("nothing became %q", got)
	}
}
