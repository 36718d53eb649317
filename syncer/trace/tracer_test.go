package trace

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
)

func TestIDOf(t *testing.T) {
	for _, test := range []struct{ reason, revision, want string }{
		{"a commit of a branch", "main@sha1:0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef"},
		{"a commit alone", "sha1:0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef"},
		{"a branch with a slash and an at", "feature/a@b@sha1:0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef"},
		{"an artifact of a registry", "6.9.1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"},
		{"the digest of a chart", "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"},
		{"a version of a chart", "6.9.1", ""},
		{"too short", "main@sha1:0123456789abcdef", ""},
		{"zeros are no ID", "main@sha1:0000000000000000000000000000000000000000", ""},
		{"nothing", "", ""},
	} {
		id, ok := IDOf(test.revision)
		if ok != (test.want != "") || ok && id.String() != test.want {
			t.Errorf("%s: %s, %t", test.reason, id, ok)
		}
	}
}

func TestWanted(t *testing.T) {
	for _, test := range []struct {
		reason string
		env    map[string]string
		want   bool
		fails  string
	}{
		{"nobody asked", nil, false, ""},
		{"a collector", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, true, ""},
		{"a collector for traces", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces", "OTEL_TRACES_EXPORTER": "otlp"}, true, ""},
		{"off", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, false, ""},
		{"no traces", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_TRACES_EXPORTER": "none"}, false, ""},
		{"another exporter", map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, false, "OTEL_TRACES_EXPORTER=zipkin"},
		{"another protocol", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, false, "4318"},
	} {
		got, err := Wanted(func(name string) string { return test.env[name] })
		if got != test.want || (err != nil) != (test.fails != "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %t, %v", test.reason, got, err)
		}
	}
}

// collected is a collector on loopback.
type collected struct {
	mu    sync.Mutex
	spans []*otlp.Span
	of    map[string]string // attributes of the resource
}

func collect(t *testing.T) (*collected, string) {
	t.Helper()
	c := &collected{of: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			unpacked, err := gzip.NewReader(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			body = unpacked
		}
		data, err := io.ReadAll(body)
		said := &collector.ExportTraceServiceRequest{}
		if err != nil || proto.Unmarshal(data, said) != nil {
			http.Error(w, "not an export", http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range said.GetResourceSpans() {
			for _, a := range resource.GetResource().GetAttributes() {
				c.of[a.GetKey()] = a.GetValue().GetStringValue()
			}
			for _, scope := range resource.GetScopeSpans() {
				c.spans = append(c.spans, scope.GetSpans()...)
			}
		}
	}))
	t.Cleanup(server.Close)
	return c, server.URL
}

// TestOneTrace: a commit that a tier fetches, applies and pushes to a child, and that the
// child fetches too, is one trace; and what was applied is below the fetch of the same tier.
func TestOneTrace(t *testing.T) {
	c, url := collect(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
	for _, cluster := range []string{"hub", "child"} {
		tracer, err := Export(t.Context(), Process{Version: "v1", Instance: cluster + "-0", Cluster: cluster}, logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		tracer.Record(Step{Kind: apps.Kind, Name: apps.NamespacedName, Revision: second, Began: began, Ended: ended, Reason: "Succeeded"})
		tracer.Record(Step{Kind: "Kustomization", Name: types.NamespacedName{Namespace: "team", Name: "web"}, Revision: second, Source: &apps, Began: began, Ended: ended, Reason: "HealthCheckFailed", Failed: true})
		tracer.Record(Step{Kind: "Child", Name: types.NamespacedName{Namespace: "fleet", Name: "eu-1"}, Layer: "base", Revision: second, Source: &apps, Began: began, Ended: ended, Reason: "Applied"})
		tracer.Record(Step{Kind: "HelmRelease", Revision: "6.9.1", Began: began, Ended: ended}) // has no trace
		if err := tracer.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.spans) != 6 {
		t.Fatalf("%d spans, want 6", len(c.spans))
	}
	if c.of["service.name"] != "cascade" || c.of["k8s.cluster.uid"] != "child" || c.of["service.instance.id"] != "child-0" {
		t.Errorf("the process says of itself: %v", c.of)
	}
	fetches, seen := map[string]bool{}, map[string]bool{}
	for i, s := range c.spans {
		if got := hex.EncodeToString(s.GetTraceId()); got != strings.Repeat("2", 32) {
			t.Errorf("%s is in trace %s", s.GetName(), got)
		}
		id := hex.EncodeToString(s.GetSpanId())
		if seen[id] {
			t.Errorf("two spans have the ID %s", id)
		}
		seen[id] = true
		switch i % 3 {
		case 0:
			fetches[id] = true
			if s.GetName() != "fetch GitRepository" || len(s.GetParentSpanId()) != 0 {
				t.Errorf("a fetch is %v", s)
			}
		default:
			if !fetches[hex.EncodeToString(s.GetParentSpanId())] {
				t.Errorf("%s is below no fetch", s.GetName())
			}
		}
		if failed := s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR; failed != (s.GetName() == "apply Kustomization") {
			t.Errorf("%s failed: %t", s.GetName(), failed)
		}
		if took := time.Duration(s.GetEndTimeUnixNano() - s.GetStartTimeUnixNano()); took != 3*time.Second {
			t.Errorf("%s took %s", s.GetName(), took)
		}
	}
}

// TestSilentCollector: a collector that never answers delays neither who records nor, beyond
// its deadline, the end of the process.
func TestSilentCollector(t *testing.T) {
	released := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-released }))
	defer server.Close()
	defer close(released)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	tracer, err := Export(t.Context(), Process{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	// More than the queue takes: the rest is lost.
	for range 10_000 {
		tracer.Record(Step{Kind: apps.Kind, Name: apps.NamespacedName, Revision: second, Began: began, Ended: ended})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := tracer.Close(ctx); err == nil {
		t.Error("nothing is said of spans that were lost")
	}
}

func TestNoTracer(t *testing.T) {
	var none *Tracer
	none.Record(Step{Revision: first})
	if err := none.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
