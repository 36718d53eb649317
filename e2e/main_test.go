// Package e2e has the scenarios that run on real control planes, real Cluster
// API, real Git servers and real pods, with the agent under the race detector.
// No agent below the first tier is ever started by a test.
package e2e

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// How long tests wait at most. They say what they measured; how fast the
// machine was is not what they are about.
const (
	// bringUp covers clusters that come up or go away.
	bringUp = 8 * time.Minute
	// converge covers one commit.
	converge = 4 * time.Minute
)

// together is how many tests have control planes at the same time: most of the
// time of each is waiting, and more of them would wait for each other.
const together = 4

var places = make(chan struct{}, together)

// alongside lets a test run beside others.
func alongside(t *testing.T) {
	t.Helper()
	t.Parallel()
	places <- struct{}{}
	t.Cleanup(func() { <-places })
}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// startStage starts a stage that ends with the test. The agent with the race
// detector is taken where it is built.
func startStage(t *testing.T, o stage.Options) *stage.Stage {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join("..", "bin"))
	if err != nil {
		t.Fatal(err)
	}
	// Sockets below it must not have long names, as those of t.TempDir are.
	if o.Run, err = os.MkdirTemp("", "cascade-e2e-"); err != nil {
		t.Fatal(err)
	}
	o.Bin = []string{filepath.Join(bin, "race"), bin}
	o.Log = t.Logf
	s, err := stage.Start(t.Context(), o)
	if err != nil {
		t.Fatalf("cannot start the stage: %v", err)
	}
	t.Cleanup(func() {
		noRaces(t, s)
		if t.Failed() {
			tell(t, s)
		}
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	return s
}

// noRaces fails the test if the race detector of an agent spoke, or an agent
// panicked.
func noRaces(t *testing.T, s *stage.Stage) {
	t.Helper()
	for _, file := range s.Logs() {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, mark := range []string{"WARNING: DATA RACE", "\npanic: ", "fatal error: "} {
			if i := bytes.Index(data, []byte(mark)); i >= 0 {
				t.Errorf("%s: %s", file, data[i:min(len(data), i+4000)])
			}
		}
	}
}

// tell shows what a person would look at first.
func tell(t *testing.T, s *stage.Stage) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, args := range [][]string{{"tree"}, {"get", "all", "-A"}} {
		out, err := s.Run(ctx, "cascade", append(args, "--kubeconfig", s.MoM.Kubeconfig())...)
		t.Logf("cascade %v: %v\n%s", args, err, out)
	}
}

// eventually calls f until it succeeds, and fails the test with the last error
// when the time is over. The pause between two calls is short and fixed; nothing
// is inferred from it.
func eventually(t *testing.T, within time.Duration, what string, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		// That the time is over is no reason; what was wrong until then is.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %s: %v", within, what, last)
		case <-tick.C:
		}
	}
}
