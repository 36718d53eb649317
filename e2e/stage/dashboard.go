package stage

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Panel is one query of a dashboard.
type Panel struct{ Dashboard, Title, Expr string }

// Panels reads the queries of the dashboards of a directory.
func Panels(dir string) ([]Panel, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("cannot find dashboards in %s: %w", dir, err)
	}
	var all []Panel
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			return nil, fmt.Errorf("cannot parse dashboard %s: %w", file, err)
		}
		for _, p := range dashboard.Panels {
			for _, t := range p.Targets {
				all = append(all, Panel{strings.TrimSuffix(filepath.Base(file), ".json"), p.Title, t.Expr})
			}
		}
	}
	return all, nil
}

// Shows is an error while a query, for all namespaces, has no number to show.
func (p Prometheus) Shows(ctx context.Context, panel Panel) error {
	samples, err := p.Query(ctx, strings.ReplaceAll(panel.Expr, "$namespace", ".*"))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(samples, func(s Sample) bool { return !math.IsNaN(s.Value) }) {
		return fmt.Errorf("%d series without a number", len(samples))
	}
	return nil
}
