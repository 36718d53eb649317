package apply

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

// connectTo connects to a server as the agent does to a cluster.
func connectTo(t *testing.T, h http.Handler) *Cluster {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := Connect(&rest.Config{Host: s.URL}, scheme.Scheme)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func gzipOf(w io.Writer) *gzip.Writer {
	gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		panic(err) // a level that exists
	}
	return gz
}

// TestConnectBounds: every client that is made of a connection has bounds: its own
// ones, those of a user that it stands for, and those that Helm makes of Config.
func TestConnectBounds(t *testing.T) {
	spaces := strings.Repeat(" ", 1<<16)
	c := connectTo(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		gz := gzipOf(w)
		_, _ = io.WriteString(gz, `{"kind":"Namespace","apiVersion":"v1",`)
		for range 200 << 20 / len(spaces) {
			if _, err := io.WriteString(gz, spaces); err != nil {
				return
			}
		}
		_ = gz.Close()
	}))
	as, err := c.As("somebody")
	if err != nil {
		t.Fatal(err)
	}
	helm, err := kubernetes.NewForConfig(rest.CopyConfig(c.Config))
	if err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() error{
		"Ready":   func() error { return c.Ready(t.Context()) },
		"Version": func() error { _, err := c.Version(t.Context()); return err },
		"As":      func() error { return as.Ready(t.Context()) },
		"Config": func() error {
			_, err := helm.Discovery().ServerVersion()
			return err
		},
	} {
		var refused *answer.Error
		if err := ask(); !errors.As(err, &refused) || refused.Reason != answer.ReasonTooLarge {
			t.Errorf("%s: got %v", name, err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_ = c.Ready(t.Context())
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("%d bytes were allocated for a probe", took)
	}
}

// TestDeadClusterHoldsNobody: while one caller waits for a cluster that does not
// answer, the others do not.
func TestDeadClusterHoldsNobody(t *testing.T) {
	var asked atomic.Int64
	arrived, held := make(chan struct{}, 10), make(chan struct{})
	c := connectTo(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		arrived <- struct{}{}
		select {
		case <-held:
		case <-r.Context().Done():
		}
	}))
	defer close(held)
	now := time.Now()
	asking, giveUp := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Answers(asking, now) }()
	<-arrived

	// Another waits for that answer, and no longer than it has time.
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Answers(short, now); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller without time got %v", err)
	}
	if err := c.Answers(t.Context(), now); !errors.Is(err, errNoAnswer) {
		t.Errorf("a caller with time got %v", err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the API server was asked %d times", n)
	}
	// That the first gave up says nothing of the API server.
	giveUp()
	if err := <-done; err == nil {
		t.Error("no answer is an answer")
	}
	if !c.answer.at.IsZero() {
		t.Error("an answer is kept though none came")
	}

	// Once it is known to be gone, nobody waits, also while somebody asks again.
	c.answer.err, c.answer.at = errors.New("gone"), now.Add(-time.Hour)
	again, stop := context.WithCancel(t.Context())
	go func() { done <- c.Answers(again, now) }()
	<-arrived
	for range 20 {
		if err := c.Answers(t.Context(), now); err == nil || err.Error() != "gone" {
			t.Errorf("while it is asked again: %v", err)
		}
	}
	stop()
	<-done
}
