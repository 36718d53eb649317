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
	ends   []io.Closer
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
	for _, resource := range resources {
		body, err := watchFrom(ctx, c, config.Host+"/"+resource)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot watch %s: %w", resource, err), w.Close())
		}
		w.ends = append(w.ends, body)
		w.done.Go(func() { w.read(resource[strings.LastIndex(resource, "/")+1:], body) })
	}
	return w, nil
}

// watchFrom watches a resource from now on.
func watchFrom(ctx context.Context, c *http.Client, address string) (io.ReadCloser, error) {
	get := func(query url.Values) (io.ReadCloser, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"?"+query.Encode(), nil)
		if err != nil {
			return nil, err
		}
		response, err := c.Do(request)
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			response.Body.Close()
			return nil, errors.New(response.Status)
		}
		return response.Body, nil
	}
	body, err := get(url.Values{"limit": {"1"}})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	list := &metav1.PartialObjectMetadataList{}
	if err := json.NewDecoder(body).Decode(list); err != nil {
		return nil, err
	}
	return get(url.Values{"watch": {"true"}, "resourceVersion": {list.ResourceVersion}, "timeoutSeconds": {watchSeconds}})
}

// read counts the events of a watch until it ends.
func (w *Writes) read(resource string, body io.Reader) {
	lines := bufio.NewReaderSize(body, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err == nil {
			err = w.count(resource, line)
		}
		if err != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.failed = errors.Join(w.failed, fmt.Errorf("cannot watch %s: %w", resource, err))
			return
		}
	}
}

// count counts one event.
func (w *Writes) count(resource string, line []byte) error {
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
	w.mu.Lock()
	defer w.mu.Unlock()
	had := w.counts[resource]
	w.counts[resource] = Written{had.Writes + 1, had.Bytes + size}
	return nil
}

// Total is what was written so far. It fails if a watch has ended.
func (w *Writes) Total() (map[string]Written, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.counts), w.failed
}

// Close ends the watches.
func (w *Writes) Close() error {
	var errs []error
	for _, body := range w.ends {
		errs = append(errs, body.Close())
	}
	w.done.Wait()
	return errors.Join(errs...)
}
