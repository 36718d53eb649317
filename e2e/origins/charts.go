package origins

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/Masterminds/semver/v3"
	"sigs.k8s.io/yaml"
)

// Charts is a Helm chart repository by HTTP: index.yaml and the archives that it
// names.
type Charts struct {
	server

	mu       sync.Mutex
	charts   map[string][]byte // by file name
	entries  map[string][]entry
	modified int
}

type entry struct {
	APIVersion string   `json:"apiVersion"`
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	AppVersion string   `json:"appVersion,omitempty"`
	Created    string   `json:"created"`
	Digest     string   `json:"digest"`
	URLs       []string `json:"urls"`
}

// StartCharts starts one that wants a login. It must be closed.
func StartCharts(login Login) *Charts {
	c := &Charts{charts: map[string][]byte{}, entries: map[string][]entry{}}
	c.listen(c, login.deny)
	return c
}

// URL of the repository.
func (c *Charts) URL() string { return "http://" + c.Address() }

// Add has the repository serve a chart, by a URL in its index that is relative.
func (c *Charts) Add(charts ...Chart) {
	for _, chart := range charts {
		file := chart.Name + "-" + chart.Version + ".tgz"
		c.AddArchive(chart, file, chart.Pack())
	}
}

// AddArchive has the index say of a chart that it is at a URL, absolute or
// relative. An archive that is not nil is served there.
func (c *Charts) AddArchive(chart Chart, url string, archive []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := entry{
		APIVersion: "v2", Name: chart.Name, Version: chart.Version, AppVersion: chart.AppVersion, Created: "2026-01-01T00:00:00Z",
		URLs: []string{url},
	}
	if archive != nil {
		e.Digest = fmt.Sprintf("%x", sha256.Sum256(archive))
		c.charts[path.Base(url)] = archive
	}
	c.entries[chart.Name] = append(slices.DeleteFunc(c.entries[chart.Name], func(old entry) bool { return old.Version == e.Version }), e)
	slices.SortFunc(c.entries[chart.Name], func(a, b entry) int {
		return semver.MustParse(b.Version).Compare(semver.MustParse(a.Version))
	})
	c.modified++
}

// Index is the repository's index.yaml.
func (c *Charts) Index() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return yaml.Marshal(map[string]any{"apiVersion": "v1", "generated": "2026-01-01T00:00:00Z", "entries": c.entries})
}

// ServeHTTP answers conditional requests for the index as static hosts do.
func (c *Charts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if name == "index.yaml" {
		index, err := c.Index()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		tag := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(index)))
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(index) // a client that went away
		return
	}
	c.mu.Lock()
	archive, ok := c.charts[path.Base(name)]
	c.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(archive)
}
