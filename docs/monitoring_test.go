package docs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var monitoring = filepath.Join("..", "deploy", "monitoring")

// known are the metrics of docs/metrics.md, with what a histogram becomes, and those of
// libraries that dashboards use.
func known(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, cells := range rows(string(text), 4) {
		for _, name := range words(cells[0]) {
			names[name] = true
			if cells[1] == "histogram" {
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					names[name+suffix] = true
				}
			}
		}
	}
	if len(names) < 40 {
		t.Fatalf("metrics.md has only %d metrics", len(names))
	}
	for _, name := range []string{
		"process_resident_memory_bytes", "process_cpu_seconds_total", "go_memstats_heap_inuse_bytes", "rest_client_requests_total",
		"workqueue_depth", "workqueue_queue_duration_seconds_bucket",
	} {
		names[name] = true
	}
	return names
}

var (
	quoted = regexp.MustCompile(`"[^"]*"`)
	// labelled are lists of labels: of a selector, of an aggregation, of a join.
	labelled = regexp.MustCompile(`\{[^}]*\}|\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)`)
	ranged   = regexp.MustCompile(`\[[^\]]*\]`)
	metric   = regexp.MustCompile(`\b[a-z_:][a-z0-9_:]*\b`)
	// ofLanguage are words of queries that are no metrics.
	ofLanguage = []string{"sum", "count", "max", "min", "rate", "increase", "max_over_time", "last_over_time", "offset", "time", "topk", "bottomk", "vector", "histogram_quantile", "absent", "and", "or", "unless", "by", "on"}
)

// metricsOf are the metrics that a query names.
func metricsOf(query string) []string {
	query = quoted.ReplaceAllString(query, "")
	query = ranged.ReplaceAllString(labelled.ReplaceAllString(query, " "), "")
	var names []string
	for _, name := range metric.FindAllString(query, -1) {
		if !slices.Contains(ofLanguage, name) {
			names = append(names, name)
		}
	}
	return names
}

func TestMetricsOf(t *testing.T) {
	got := metricsOf(`topk(2, sum by (kind, le) (rate(a_bucket{kind=~"b_c|d"}[5m]))) / on (namespace) group_left (owner) e_info == 1 and time() - f > 3 * 86400`)
	if want := []string{"a_bucket", "e_info", "f"}; !slices.Equal(got, want) {
		t.Errorf("metrics are %v, want %v", got, want)
	}
}

// queries are those of panels and variables of a dashboard.
func queries(node any) []string {
	var found []string
	switch node := node.(type) {
	case map[string]any:
		for key, value := range node {
			if text, ok := value.(string); ok && (key == "expr" || key == "definition") {
				found = append(found, text)
			}
			found = append(found, queries(value)...)
		}
	case []any:
		for _, item := range node {
			found = append(found, queries(item)...)
		}
	}
	return found
}

var variable = regexp.MustCompile(`^label_values\(([a-z0-9_]+), [a-z_]+\)$`)

// TestDashboards: every query asks for metrics that there are.
func TestDashboards(t *testing.T) {
	names := known(t)
	files, err := filepath.Glob(filepath.Join(monitoring, "dashboards", "*.json"))
	if err != nil || len(files) != 3 {
		t.Fatalf("dashboards are %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard any
		if err := json.Unmarshal(text, &dashboard); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all := queries(dashboard)
		if len(all) < 10 {
			t.Errorf("%s has only %d queries", file, len(all))
		}
		for _, query := range all {
			of := metricsOf(query)
			if m := variable.FindStringSubmatch(query); m != nil {
				of = m[1:]
			}
			if len(of) == 0 {
				t.Errorf("%s asks for nothing: %s", file, query)
			}
			for _, name := range of {
				if !names[name] {
					t.Errorf("%s asks for %s, which there is not: %s", file, name, query)
				}
			}
		}
	}
}

type rules struct {
	Groups []struct {
		Rules []struct {
			Alert       string
			Expr        string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
}

// TestAlerts: every rule asks for metrics that there are, has its part of alerts.md, and is
// tried; and the copy for the Prometheus Operator is one.
func TestAlerts(t *testing.T) {
	names := known(t)
	read := func(name string, into any) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(monitoring, name))
		if err == nil && into != nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var all rules
	var copied struct{ Spec rules }
	read("alerts.yaml", &all)
	read("prometheusrule.yaml", &copied)
	if !reflect.DeepEqual(all, copied.Spec) {
		t.Error("prometheusrule.yaml has other rules than alerts.yaml")
	}
	tried := read("alerts_test.yaml", nil)
	page, err := os.ReadFile("alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, group := range all.Groups {
		for _, rule := range group.Rules {
			count++
			for _, name := range metricsOf(rule.Expr) {
				if !names[name] {
					t.Errorf("%s asks for %s, which there is not", rule.Alert, name)
				}
			}
			if !strings.Contains(string(page), "\n## "+rule.Alert+"\n\n`"+rule.Labels["severity"]+"`") || !strings.Contains(string(page), "`"+rule.Expr+"`") {
				t.Errorf("alerts.md has no part %s with its severity and its expression", rule.Alert)
			}
			if want := "https://github.com/cascade-gitops/cascade/blob/main/docs/alerts.md#" + strings.ToLower(rule.Alert); rule.Annotations["runbook_url"] != want || rule.Annotations["summary"] == "" {
				t.Errorf("%s has annotations %v", rule.Alert, rule.Annotations)
			}
			if !strings.Contains(tried, "alertname: "+rule.Alert+"\n        exp_alerts:\n          - ") {
				t.Errorf("alerts_test.yaml never has %s fire", rule.Alert)
			}
		}
	}
	if got := strings.Count(string(page), "\n## "); got != count || count == 0 {
		t.Errorf("alerts.md has %d parts, and there are %d rules", got, count)
	}
}
