package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestClusterAPIVersion: the release of Cluster API that pages show is the one that tests run,
// whatever version of its types the product is built with. Decisions keep that of their time.
func TestClusterAPIVersion(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join("..", "e2e", "local", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`\ssigs\.k8s\.io/cluster-api (v\d+\.\d+)(\.\d+)\n`).FindStringSubmatch(string(mod))
	if m == nil {
		t.Fatal("e2e/local runs no Cluster API")
	}
	minor, tested := m[1], m[1]+m[2]
	shown := regexp.MustCompile(regexp.QuoteMeta(minor) + `\.\d+\b`)
	found := 0
	for at, text := range sources(t) {
		if !strings.HasPrefix(at, "docs/") || filepath.Ext(at) != ".md" || strings.HasPrefix(at, "docs/decisions/") || at == "docs/findings.md" {
			continue
		}
		for _, version := range shown.FindAllString(text, -1) {
			found++
			if version != tested {
				t.Errorf("%s has %s, and tests run %s", at, version, tested)
			}
		}
	}
	if found < 10 {
		t.Errorf("pages show a release of Cluster API only %d times", found)
	}
}
