package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestReach(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "index"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "index", "db.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(good.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(gone.Close)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	for name, tc := range map[string]struct {
		reason, database string
		reached          bool
	}{
		"Server":    {"a database", good.URL, true},
		"Directory": {"a copy of one", "file://" + dir, true},
		"NoCopy":    {"a directory that is none", "file://" + t.TempDir(), false},
		"Gone":      {"a server of something else", gone.URL, false},
		"Closed":    {"nobody is there", closed.URL, false},
		"Nonsense":  {"no address", "\x00", false},
	} {
		if err := reach(t.Context(), tc.database); (err == nil) != tc.reached {
			t.Errorf("%s (%s): %v", name, tc.reason, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error)
	go func() { asked <- reach(ctx, silent.URL) }()
	cancel()
	if err := <-asked; err == nil {
		t.Error("a server that never answers was reached")
	}
}
