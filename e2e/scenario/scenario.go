package scenario

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// How long tests wait at most. Tests report what they measured; the speed of the
// machine is not what they are about.
const (
	// BringUp covers clusters that come up or go away.
	BringUp = 8 * time.Minute
	// Converge covers one commit.
	Converge = 4 * time.Minute
)

// Main runs the tests of a suite. Each suite calls it in its TestMain.
func Main(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// Path is a path below the root of the repository, wherever below it the test runs.
func Path(t *testing.T, elem ...string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "e2e", "go.mod")); err == nil {
			return filepath.Join(append([]string{dir}, elem...)...)
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("cannot find the root of the repository")
		}
	}
}

// Programs are the directories that StartStage takes programs from. The agent with
// the race detector is in the first.
func Programs(t *testing.T) []string {
	t.Helper()
	return []string{Path(t, "bin", "race"), Path(t, "bin")}
}

// RunDir makes a directory for what a test runs. Its name is short, unlike that of
// t.TempDir, because sockets are below it. The stage that gets it removes it.
func RunDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cascade-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// StartStage starts a stage that ends with the test.
func StartStage(t *testing.T, o stage.Options) *stage.Stage {
	t.Helper()
	o.Run, o.Bin, o.Log = RunDir(t), Programs(t), t.Logf
	s, err := stage.Start(t.Context(), o)
	if err != nil {
		t.Fatalf("cannot start the stage: %v", err)
	}
	t.Cleanup(func() {
		races := races(s)
		if t.Failed() || len(races) > 0 {
			show(t, s)
		}
		// They come last: of a long output, the end is what is read.
		for _, race := range races {
			t.Error(race)
		}
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	return s
}

// NoRaces fails the test if the race detector of an agent reported something, or an
// agent panicked.
func NoRaces(t *testing.T, s *stage.Stage) {
	t.Helper()
	for _, race := range races(s) {
		t.Error(race)
	}
}

// races are the beginnings of what the race detectors of agents reported, and of their
// panics.
func races(s *stage.Stage) []string {
	var found []string
	for _, file := range s.Logs() {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, mark := range []string{"WARNING: DATA RACE", "\npanic: ", "fatal error: "} {
			if i := bytes.Index(data, []byte(mark)); i >= 0 {
				found = append(found, fmt.Sprintf("%s: %s", file, data[i:min(len(data), i+4000)]))
			}
		}
	}
	return found
}

// show logs what a person would look at first.
func show(t *testing.T, s *stage.Stage) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, args := range [][]string{{"tree"}, {"get", "all", "-A"}, {"events", "-A", "--types", "Warning"}} {
		out, err := s.Run(ctx, "cascade", append(args, "--kubeconfig", s.MoM.Kubeconfig())...)
		t.Logf("cascade %v: %v\n%s", args, err, out)
	}
}

// Eventually calls f until it succeeds, and fails the test with the last error
// when the time is over. The pause between two calls is short and fixed; nothing
// is inferred from it.
func Eventually(t *testing.T, within time.Duration, what string, f func(ctx context.Context) error) {
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
