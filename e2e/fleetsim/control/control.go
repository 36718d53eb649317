// Package control drives a fleet in another process, over HTTP on loopback: what
// a test does with a fleetsim.Fleet by calls, a benchmark does with a Client, so
// that the simulation's CPU time and memory are a process's of their own.
//
// Invariants: the handler gives away credentials of simulated clusters to whoever
// reaches it, so it is served on loopback only; requests name clusters one by one
// or by a list, and an unknown one is an error, never ignored.
//
// Failure model: every call of the Client has the deadline of its context; an
// answer other than 200 is an error with the text of the answer.
package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/e2e/fleetsim"
)

// Addition of clusters.
type Addition struct {
	Names      []string            `json:"names"`
	Credential fleetsim.Credential `json:"credential"`
	// Life of tokens.
	Life time.Duration `json:"life"`
}

// selection of clusters for an order.
type selection struct {
	Names  []string         `json:"names"`
	Faults *fleetsim.Faults `json:"faults,omitempty"`
	Tokens bool             `json:"tokens,omitempty"`
}

// Handler lets clients drive a fleet.
func Handler(f *fleetsim.Fleet) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /clusters", func(w http.ResponseWriter, r *http.Request) {
		var a Addition
		if !read(w, r, &a) {
			return
		}
		kubeconfigs := make([][]byte, 0, len(a.Names))
		for _, name := range a.Names {
			c := f.Cluster(name)
			if c == nil {
				var err error
				if c, err = f.Add(name); err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
			}
			text, err := c.Kubeconfig(a.Credential, a.Life)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			kubeconfigs = append(kubeconfigs, text)
		}
		write(w, kubeconfigs)
	})
	each := func(do func(c *fleetsim.Cluster, s selection)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var s selection
			if !read(w, r, &s) {
				return
			}
			var found []*fleetsim.Cluster
			for _, name := range s.Names {
				c := f.Cluster(name)
				if c == nil {
					http.Error(w, "no cluster "+name, http.StatusNotFound)
					return
				}
				found = append(found, c)
			}
			for _, c := range found {
				do(c, s)
			}
			write(w, len(found))
		}
	}
	mux.HandleFunc("POST /faults", each(func(c *fleetsim.Cluster, s selection) {
		if s.Faults != nil {
			c.SetFaults(*s.Faults)
		}
	}))
	mux.HandleFunc("POST /rotate", each(func(c *fleetsim.Cluster, _ selection) { c.Rotate() }))
	mux.HandleFunc("POST /revoke", each(func(c *fleetsim.Cluster, s selection) { c.Revoke(s.Tokens) }))
	mux.HandleFunc("POST /recreate", each(func(c *fleetsim.Cluster, _ selection) { c.Recreate() }))
	mux.HandleFunc("POST /reset", func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range f.Names() {
			if c := f.Cluster(name); c != nil {
				c.Reset()
			}
		}
		write(w, 0)
	})
	mux.HandleFunc("GET /reached", func(w http.ResponseWriter, r *http.Request) {
		reached := []string{}
		for _, name := range f.Names() {
			if c := f.Cluster(name); c != nil && c.Counts()[r.URL.Query().Get("by")] > 0 {
				reached = append(reached, name)
			}
		}
		write(w, reached)
	})
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, _ *http.Request) { write(w, f.Counts()) })
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { write(w, f.Stats()) })
	mux.HandleFunc("GET /writes", func(w http.ResponseWriter, _ *http.Request) {
		all := []fleetsim.Write{}
		for _, name := range f.Names() {
			if c := f.Cluster(name); c != nil {
				all = append(all, c.Writes()...)
			}
		}
		write(w, all)
	})
	return mux
}

func read(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that has gone
}

// Client drives a fleet.
type Client struct {
	// URL of the handler.
	URL string
}

// Add makes clusters and returns their kubeconfigs in order; of those that are
// there, it returns kubeconfigs with their current credentials.
func (c Client) Add(ctx context.Context, a Addition) ([][]byte, error) {
	var kubeconfigs [][]byte
	err := c.call(ctx, http.MethodPost, "/clusters", a, &kubeconfigs)
	return kubeconfigs, err
}

// SetFaults gives clusters the same faults.
func (c Client) SetFaults(ctx context.Context, names []string, f fleetsim.Faults) error {
	return c.call(ctx, http.MethodPost, "/faults", selection{Names: names, Faults: &f}, nil)
}

// Rotate gives administrators other credentials.
func (c Client) Rotate(ctx context.Context, names ...string) error {
	return c.call(ctx, http.MethodPost, "/rotate", selection{Names: names}, nil)
}

// Revoke voids earlier credentials of administrators, and tokens if asked for.
func (c Client) Revoke(ctx context.Context, tokens bool, names ...string) error {
	return c.call(ctx, http.MethodPost, "/revoke", selection{Names: names, Tokens: tokens}, nil)
}

// Recreate makes clusters other ones under their names.
func (c Client) Recreate(ctx context.Context, names ...string) error {
	return c.call(ctx, http.MethodPost, "/recreate", selection{Names: names}, nil)
}

// Reset begins counting anew, in all clusters.
func (c Client) Reset(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/reset", nil, nil)
}

// Counts are the requests to all clusters by verb and resource.
func (c Client) Counts(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	err := c.call(ctx, http.MethodGet, "/counts", nil, &counts)
	return counts, err
}

// Reached is how many clusters got a request of a verb and resource.
func (c Client) Reached(ctx context.Context, by string) ([]string, error) {
	var names []string
	err := c.call(ctx, http.MethodGet, "/reached?by="+url.QueryEscape(by), nil, &names)
	return names, err
}

// Writes of all clusters, if the fleet records them.
func (c Client) Writes(ctx context.Context) ([]fleetsim.Write, error) {
	var writes []fleetsim.Write
	err := c.call(ctx, http.MethodGet, "/writes", nil, &writes)
	return writes, err
}

// Stats of the fleet.
func (c Client) Stats(ctx context.Context) (fleetsim.Stats, error) {
	var s fleetsim.Stats
	err := c.call(ctx, http.MethodGet, "/stats", nil, &s)
	return s, err
}

func (c Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("cannot encode order %s: %w", path, err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, body)
	if err != nil {
		return fmt.Errorf("cannot order %s: %w", path, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("cannot order %s: %w", path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return fmt.Errorf("cannot order %s: %s: %s", path, resp.Status, strings.TrimSpace(string(text)))
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("cannot read answer of %s: %w", path, err)
	}
	return nil
}
