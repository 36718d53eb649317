package gauge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// watchSeconds is how long an API server is asked to keep a watch up.
const watchSeconds = "86400"

// Written is how often objects of a resource were written, and how many bytes they had, as
// JSON: a store writes an object as a whole, whatever of it changed.
type Written struct {
	Writes int   `json:"writes"`
	Bytes  int64 `json:"bytes"`
}

// Writes counts what is written into an API server's store, by resource. It watches them,
// so that each state of an object is counted once. It is safe for concurrent use.
type Writes struct {
	mu     sync.Mutex
	counts map[string]Written
	failed error
	end    context.CancelFunc
	done   sync.WaitGroup
}

// FollowWrites begins to count. Resources are paths: apis/cascade.dev/v1alpha1/children,
// api/v1/configmaps. The caller closes it.
func FollowWrites(ctx context.Context, config *rest.Config, resources ...string) (*Writes, error) {
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	w := &Writes{counts: map[string]Written{}}
	ctx, w.end = context.WithCancel(ctx)
	for _, resource := range resources {
		f := &followed{client: c, address: config.Host + "/" + resource, name: resource[strings.LastIndex(resource, "/")+1:]}
		err := f.begin(ctx)
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("cannot watch %s: %w", resource, err)
		}
		w.done.Go(func() { w.follow(ctx, f) })
	}
	return w, nil
}

// followed is a resource whose events are read.
type followed struct {
	client        *http.Client
	address, name string
	// version is that of the last event.
	version string
	body    io.ReadCloser
}

func (f *followed) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.address+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := f.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, errors.New(response.Status)
	}
	return response.Body, nil
}

// begin watches from now on.
func (f *followed) begin(ctx context.Context) error {
	body, err := f.get(ctx, url.Values{"limit": {"1"}})
	if err != nil {
		return err
	}
	defer body.Close()
	list := &metav1.PartialObjectMetadataList{}
	if err := json.NewDecoder(body).Decode(list); err != nil {
		return err
	}
	f.version = list.ResourceVersion
	return f.watch(ctx)
}

// watch goes on behind the last event.
func (f *followed) watch(ctx context.Context) (err error) {
	f.body, err = f.get(ctx, url.Values{"watch": {"true"}, "resourceVersion": {f.version}, "timeoutSeconds": {watchSeconds}})
	return err
}

// mostEmpty watches in a row may end without an event. An API server that has too much to do, or ends, ends each at once.
const mostEmpty = 10

// follow counts the events of a resource until the context ends. An API server ends a watch
// whose reader is behind, or that is old: another one goes on where it was, and no event is lost unless the
// server has forgotten it, which is a failure.
func (w *Writes) follow(ctx context.Context, f *followed) {
	empty := 0
	for {
		from := f.version
		err := w.read(f)
		f.body.Close()
		if ctx.Err() != nil {
			return
		}
		if empty++; f.version != from {
			empty = 0
		}
		if errors.Is(err, io.EOF) && empty < mostEmpty {
			if err = f.watch(ctx); err == nil {
				continue
			}
		}
		w.mu.Lock()
		w.failed = errors.Join(w.failed, fmt.Errorf("cannot watch %s: %w", f.name, err))
		w.mu.Unlock()
		return
	}
}

// read counts the events of a watch until it ends.
func (w *Writes) read(f *followed) error {
	lines := bufio.NewReaderSize(f.body, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		if err := w.count(f, line); err != nil {
			return err
		}
	}
}

// count counts one event.
func (w *Writes) count(f *followed, line []byte) error {
	event := struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}{}
	if err := json.Unmarshal(line, &event); err != nil {
		return err
	}
	size := int64(len(event.Object))
	switch event.Type {
	case "ADDED", "MODIFIED":
	case "DELETED":
		size = 0 // of which the store keeps the name
	default:
		return fmt.Errorf("%s: %s", event.Type, event.Object)
	}
	object := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(event.Object, object); err != nil {
		return err
	}
	f.version = object.ResourceVersion
	w.mu.Lock()
	defer w.mu.Unlock()
	had := w.counts[f.name]
	w.counts[f.name] = Written{had.Writes + 1, had.Bytes + size}
	return nil
}

// Total is what was written so far. It fails if a watch has ended.
func (w *Writes) Total() (map[string]Written, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.counts), w.failed
}

// Close ends the watches.
func (w *Writes) Close() {
	w.end()
	w.done.Wait()
}
