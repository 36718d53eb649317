package krew

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden file anew")

func plugin() Plugin {
	return Plugin{
		Name: "cascade", Version: "v1.2.0", Homepage: "https://example.org", Summary: "Run a fleet", Description: "Two\nlines.\n",
		Archives: []Archive{
			{"linux", "amd64", "https://example.org/a.tar.gz", strings.Repeat("ab", 32), "kubectl-cascade"},
			{"windows", "arm64", "https://example.org/b.zip", strings.Repeat("cd", 32), "kubectl-cascade.exe"},
		},
	}
}

func TestManifest(t *testing.T) {
	got, err := plugin().Manifest()
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "krew.yaml")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*Plugin)
	}{
		"Lines":    {"krew refuses a summary of two lines", func(p *Plugin) { p.Summary = "a\nb" }},
		"Nothing":  {"a plugin for nobody", func(p *Plugin) { p.Archives = nil }},
		"Checksum": {"a checksum that is none", func(p *Plugin) { p.Archives[0].SHA256 = "x" }},
	} {
		p := plugin()
		tc.change(&p)
		if _, err := p.Manifest(); err == nil {
			t.Errorf("%s: %s is written", name, tc.reason)
		}
	}
}
