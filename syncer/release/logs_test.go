package release

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestLogs(t *testing.T) {
	now := at
	l := newLogs(logr.Discard(), func() time.Time { now = now.Add(time.Second); return now }, nil)
	if got := l.after("failed"); got != "failed" {
		t.Errorf("after() without lines is %q", got)
	}
	log := slog.New(l)
	for range 20 {
		log.Debug("long ago")
		log.Debug("and far away")
	}
	for range 7 {
		log.Debug("waiting", "resource", "a")
	}
	log.Warn("failed", "k", 1, "error", errors.New("no"))
	log.With("x", "y").WithGroup("in").Error("end", "z", true)
	got := strings.Split(l.String(), "\n")
	if len(got) != lastLines+1 { // the one that was said again has two
		t.Fatalf("kept are %d lines: %v", len(got), got)
	}
	want := []string{
		`2026-11-20T10:30:41.123456789Z: waiting: {"resource":"a"}`,
		`2026-11-20T10:30:47.123456789Z: waiting: {"resource":"a"} (5 duplicate lines omitted)`,
		`2026-11-20T10:30:48.123456789Z: warning: failed: {"error":"no","k":1}`,
		`2026-11-20T10:30:49.123456789Z: error: end: {"in":{"z":true},"x":"y"}`,
	}
	if diff := cmp.Diff(want, got[len(got)-len(want):]); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

func TestLogsHideSecrets(t *testing.T) {
	l := newLogs(logr.Discard(), time.Now, nil)
	slog.New(l).Error("patch failed", "error", errors.New(`invalid value "hunter2-secret" of data.p`))
	l.hide([]*unstructured.Unstructured{{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "stringData": map[string]any{"p": "hunter2-secret"}}}})
	if got := l.String(); strings.Contains(got, "hunter2") || !strings.Contains(got, "*****") {
		t.Errorf("lines tell the value of a Secret: %s", got)
	}
	if got := l.redact(errors.New("hunter2-secret")).Error(); strings.Contains(got, "hunter2") {
		t.Errorf("redact() tells %q", got)
	}
}
