package render

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Bounds of a hostile case. They are generous: without the guards these inputs
// take all memory, or for ever.
const (
	hostileDeadline = 2 * time.Minute
	hostileBytes    = 512 << 20
)

// hostileCase is a source that is meant to do harm.
type hostileCase struct {
	fluxCase
	// want is in the error; with renders set there is none.
	want    string
	renders bool
}

func hostileCases(t *testing.T) map[string]*hostileCase {
	out := map[string]*hostileCase{}
	for name, c := range readCases(t, "testdata/hostile/*.txtar") {
		h := &hostileCase{fluxCase: *c}
		if want, ok := c.files["error:"]; ok {
			h.want = strings.TrimSpace(want)
		} else if _, ok := c.files["renders:"]; ok {
			h.renders = true
		} else {
			t.Fatalf("%s: neither error: nor renders:", name)
		}
		delete(h.files, "error:")
		delete(h.files, "renders:")
		for file, content := range c.files {
			if made, ok := strings.CutSuffix(file, ".gen"); ok {
				delete(h.files, file)
				h.files[made] = generated(t, content)
			}
		}
		out[name] = h
	}
	return out
}

// generated is what lines of a number and a Go string make: each string as often as
// its number says.
func generated(t *testing.T, lines string) string {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		times, quoted, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(times)
		if err != nil {
			t.Fatal(err)
		}
		s, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %v", quoted, err)
		}
		b.WriteString(strings.Repeat(s, n))
	}
	return b.String()
}

// TestHostile: each input ends as an error that names the cause, or renders what
// is harmless, in bounded time and space, and nothing outside is read.
func TestHostile(t *testing.T) {
	const canary = "CANARY-7f3a"
	outside := filepath.Join(t.TempDir(), "kustomization.yaml")
	if err := os.WriteFile(outside, []byte("k: "+canary+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	place := strings.NewReplacer("UPOUT", strings.Repeat("../", 12)+strings.TrimPrefix(outside, "/"), "OUTSIDE", outside, "CANARY", canary)
	cases := hostileCases(t)
	if len(cases) < 60 {
		t.Errorf("%d cases, want 60 or more", len(cases))
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			c := cases[name]
			for file, content := range c.files {
				if len(content) < 1<<16 {
					c.files[file] = place.Replace(content)
				}
			}
			b := buildOf(kustomizationOf(t, place.Replace(c.spec)))
			b.Sensitive = slices.Collect(maps.Values(b.Variables))
			ctx, cancel := context.WithTimeout(t.Context(), hostileDeadline)
			defer cancel()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			type result struct {
				r   *Rendering
				err error
			}
			done := make(chan result, 1)
			go func() {
				r, err := rendered(ctx, c.files, b)
				done <- result{r, err}
			}()
			var got result
			select {
			case got = <-done:
			case <-time.After(2 * hostileDeadline):
				t.Fatal("it does not end")
			}
			runtime.ReadMemStats(&after)
			if grown := after.TotalAlloc - before.TotalAlloc; grown > hostileBytes {
				t.Errorf("%d MB allocated, want at most %d", grown>>20, hostileBytes>>20)
			}
			text := fmt.Sprint(got.err)
			if got.err == nil {
				data, err := json.Marshal(contents(got.r.Objects))
				if err != nil {
					t.Fatal(err)
				}
				text = string(data)
			}
			if strings.Contains(text, canary) {
				t.Errorf("it has what it must not have: %.300s", text)
			}
			if got.err != nil && len(text) > 2*maxError {
				t.Errorf("an error of %d bytes", len(text))
			}
			switch {
			case c.renders != (got.err == nil):
				t.Errorf("Render() = %.300s, want an error: %t", text, !c.renders)
			case !c.renders && !strings.Contains(text, c.want):
				t.Errorf("Render(): error %.300q, want it to name %q", text, c.want)
			case errors.Is(got.err, context.DeadlineExceeded):
				t.Error("it ended only because of the deadline")
			}
		})
	}
}
