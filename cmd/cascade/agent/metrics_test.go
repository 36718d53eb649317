package agent

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascade-gitops/cascade/remote"
	"github.com/cascade-gitops/cascade/remote/endpoint"
	"github.com/cascade-gitops/cascade/remote/hint"
	"github.com/cascade-gitops/cascade/remote/tenure"
	"github.com/cascade-gitops/cascade/state/backup"
	"github.com/cascade-gitops/cascade/syncer/alert/dispatch"
	"github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/credential"
	"github.com/cascade-gitops/cascade/syncer/events"
	"github.com/cascade-gitops/cascade/syncer/image"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/receive"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// described keeps what is registered.
type described struct{ rows []string }

var description = regexp.MustCompile(`(?s)^Desc\{fqName: "([^"]*)", help: "(.*)", unit: "[^"]*", constLabels: \{(.*?)\}, variableLabels: \{(.*)\}\}$`)

func (d *described) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 64)
	c.Describe(descs)
	close(descs)
	for desc := range descs {
		m := description.FindStringSubmatch(desc.String())
		if m == nil {
			return fmt.Errorf("cannot read %s", desc)
		}
		kind := "gauge"
		switch c.(type) {
		case *prometheus.HistogramVec, prometheus.Histogram:
			kind = "histogram"
		}
		if strings.HasSuffix(m[1], "_total") {
			kind = "counter"
		}
		var labels []string
		for _, part := range []string{m[3], m[4]} {
			for _, label := range strings.FieldsFunc(part, func(r rune) bool { return r == ',' }) {
				name, _, _ := strings.Cut(label, "=")
				labels = append(labels, "`"+name+"`")
			}
		}
		d.rows = append(d.rows, fmt.Sprintf("| `%s` | %s | %s | %s |", m[1], kind, strings.Join(labels, ", "), strings.ReplaceAll(m[2], "|", `\|`)))
	}
	return nil
}

func (d *described) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

func (*described) Unregister(prometheus.Collector) bool { return false }

// registered are the rows of all metrics of the agent's own.
func registered(t *testing.T) []string {
	t.Helper()
	d := &described{}
	metrics.New(d)
	remote.NewMetrics(d)
	remote.NewRolloutMetrics(d)
	backup.NewMetrics(d)
	stall.New(nil, time.Now, d)
	worker.New(worker.Options{Registry: d})
	tenure.New(tenure.Options{Shards: 2, Registry: d, Now: time.Now})
	endpoint.NewProxy(nil, nil, time.Now, d)
	hint.NewTeller(hint.Options{Registry: d})
	receive.NewHandler(receive.Options{Registry: d})
	image.NewCommits(d)
	image.NewScans(nil, "", time.Now, d)
	dir := t.TempDir()
	indexes := chart.NewIndexes(dir, 1, 1)
	countCharts(d, indexes, chart.NewCharts(indexes, dir, chart.Limits{}))
	d.MustRegister(built("v"), leading("l", nil), &remote.Fleet{}, &credential.Fleet{}, metrics.NewInfo(nil, nil, []string{metrics.Gotk, metrics.Flux}, nil, nil))
	if _, err := (&tokens{size: 10, duration: time.Hour}).build(d); err != nil {
		t.Fatal(err)
	}
	if _, err := events.NewPosts("http://example.com", "", http.DefaultClient, d, logr.Discard()); err != nil {
		t.Fatal(err)
	}
	if _, err := events.NewIntake(events.IntakeOptions{Registry: d}); err != nil {
		t.Fatal(err)
	}
	if _, err := dispatch.New(dispatch.Options{Registry: d}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(d.rows)
	return slices.Compact(d.rows)
}

const (
	tableBegin = "| metric | type | labels | means |\n|---|---|---|---|\n"
	tableEnd   = "\n\n"
)

// TestMetricsPage: docs/metrics.md has each metric with its labels, and none that there is
// not. -update writes the table.
func TestMetricsPage(t *testing.T) {
	page := filepath.Join("..", "..", "..", "docs", "metrics.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	table, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no table of metrics", page)
	}
	rows := registered(t)
	if *update {
		if err := os.WriteFile(page, []byte(before+tableBegin+strings.Join(rows, "\n")+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(table, "\n"), rows); diff != "" {
		t.Errorf("%s (-page +registered; -update writes it):\n%s", page, diff)
	}
}

var spelled = regexp.MustCompile(`"((?:cascade|gotk|flux)_[a-z0-9_]+)"`)

// TestMetricsAreRegistered: every name that the code spells is among those of the page, so
// that none is forgotten in the test of the page.
func TestMetricsAreRegistered(t *testing.T) {
	rows := strings.Join(registered(t), "\n")
	root := filepath.Join("..", "..", "..")
	found := 0
	for _, dir := range []string{"cmd", "remote", "syncer", "capibridge", "inventory"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(text), "client_golang/prometheus") {
				return err
			}
			for _, m := range spelled.FindAllStringSubmatch(string(text), -1) {
				if found++; !strings.HasSuffix(m[1], "_") && !strings.Contains(rows, "`"+m[1]+"`") {
					t.Errorf("%s has %s, which is not registered in this test", path, m[1])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 30 {
		t.Errorf("only %d names were found", found)
	}
}

// TestLeading: a process that waits for its lease is told from one that has it.
func TestLeading(t *testing.T) {
	leads := false
	registry := prometheus.NewRegistry()
	registry.MustRegister(leading("cascade", func() bool { return leads }))
	for _, want := range []float64{0, 1} {
		families, err := registry.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("there are %d metrics: %v", len(families), err)
		}
		if got := families[0].GetMetric()[0]; got.GetGauge().GetValue() != want || got.GetLabel()[0].GetValue() != "cascade" {
			t.Errorf("it leads: %t, and tells %v", leads, got)
		}
		leads = true
	}
}

// counted is a count of requests by host.
type counted map[string]int

// Increment implements clientmetrics.ResultMetric.
func (c counted) Increment(_ context.Context, _, _, host string) { c[host]++ }

// TestHosts: clusters that come and go leave no label behind.
func TestHosts(t *testing.T) {
	seen := counted{}
	h := &hosts{next: seen, own: "10.0.0.1:443"}
	h.Increment(t.Context(), "200", "GET", "10.0.0.1:443")
	for i := range 100 {
		h.Increment(t.Context(), "200", "GET", fmt.Sprint("tenant-", i))
	}
	if len(seen) != 2 || seen["10.0.0.1:443"] != 1 || seen[otherHost] != 100 {
		t.Errorf("hosts are %v", seen)
	}
}
