package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ssautil "github.com/fluxcd/pkg/ssa/utils"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestWithoutData: what is excused from having data is asked by a dashboard, and
// docs/monitoring.md says why there is none.
func TestWithoutData(t *testing.T) {
	all, err := stage.Panels(filepath.Join("..", "..", "deploy", "monitoring", "dashboards"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	for part, reason := range withoutData {
		if !slices.ContainsFunc(all, func(p stage.Panel) bool { return strings.Contains(p.Expr, part) }) {
			t.Errorf("no dashboard asks for %s", part)
		}
		if !strings.Contains(string(page), "| "+reason+" |") {
			t.Errorf("docs/monitoring.md does not say that %s", reason)
		}
	}
	excuses := 0
	for _, p := range all {
		if excused(p.Expr) != "" {
			excuses++
		}
	}
	if len(all) < 40 || excuses > len(all)/4 {
		t.Errorf("%d of %d queries are excused", excuses, len(all))
	}
}

// TestMonitoring: the repositories get a Prometheus and agents that serve it, and nothing else
// is changed.
func TestMonitoring(t *testing.T) {
	change := monitoring(filepath.Join("..", "..", "deploy", "monitoring", "alerts.yaml"))
	for _, c := range []struct {
		repository string
		changed    []string
	}{
		{"masters", []string{"mom/layer.yaml"}},
		{"env-production", []string{"services/prometheus-rules.yaml", "services/prometheus.yaml"}},
		{"env-staging", nil},
		{"base", nil},
		{"apps", nil},
	} {
		from, tree := filepath.Join("..", "testdata", "repos", c.repository), t.TempDir()
		if err := os.CopyFS(tree, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		if err := change(c.repository, tree); err != nil {
			t.Fatal(err)
		}
		var changed []string
		err := filepath.WalkDir(tree, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			name, err := filepath.Rel(tree, path)
			if err != nil {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if before, err := os.ReadFile(filepath.Join(from, name)); err != nil || string(before) != string(text) {
				changed = append(changed, filepath.ToSlash(name))
				if objects, err := ssautil.ReadObjects(strings.NewReader(string(text))); err != nil || len(objects) == 0 {
					t.Errorf("%s has %d objects, %v", name, len(objects), err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(changed, c.changed) {
			t.Errorf("%s: %v changed, want %v", c.repository, changed, c.changed)
		}
	}
}
