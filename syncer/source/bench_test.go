package source

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// thousand is a repository of 1000 directories with 3 files each.
func thousand(b *testing.B) (*Mirrors, Origin, func(string)) {
	b.Helper()
	s, err := gitserver.Start(b.Context(), gitserver.Options{Root: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	if err := s.Create(b.Context(), repository); err != nil {
		b.Fatal(err)
	}
	commit := func(content string) {
		_, err := s.Commit(b.Context(), repository, "main", "x", func(folder string) error {
			if _, err := os.Stat(filepath.Join(folder, "apps")); err == nil {
				return os.WriteFile(filepath.Join(folder, "apps/app-0007/f1.yaml"), []byte(content), 0o644)
			}
			for i := range 1000 {
				dir := filepath.Join(folder, "apps", fmt.Sprintf("app-%04d", i))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
				for j := range 3 {
					text := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c-%d-%d}\n", i, j)
					if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d.yaml", j)), []byte(text), 0o644); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	commit("# first\n")
	return NewMirrors(b.TempDir(), plenty), Origin{URL: s.HTTPURL(repository)}, commit
}

// BenchmarkStat is what a commit costs those that ask whether their paths
// changed: 10,000 questions, and the bytes that are kept to answer them.
func BenchmarkStat(b *testing.B) {
	m, from, _ := thousand(b)
	s, err := m.Fetch(b.Context(), from, onMain, Options{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		for i := range 10_000 {
			if _, _, err := s.Stat(fmt.Sprintf("apps/app-%04d/f%d.yaml", i%1000, i%3)); err != nil {
				b.Fatal(err)
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/1024, "kept-KiB")
	runtime.KeepAlive(s)
}

// BenchmarkStatInParallel: the same by several readers.
func BenchmarkStatInParallel(b *testing.B) {
	m, from, _ := thousand(b)
	s, err := m.Fetch(b.Context(), from, onMain, Options{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, _, err := s.Stat(fmt.Sprintf("apps/app-%04d/f%d.yaml", i%1000, i%3)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkReadFile reads 1000 files, as a first rendering does.
func BenchmarkReadFile(b *testing.B) {
	m, from, _ := thousand(b)
	s, err := m.Fetch(b.Context(), from, onMain, Options{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for i := range 1000 {
			if _, err := s.ReadFile(fmt.Sprintf("apps/app-%04d/f%d.yaml", i, i%3)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkCommit fetches a commit of one line and asks 10,000 questions.
func BenchmarkCommit(b *testing.B) {
	m, from, commit := thousand(b)
	last, err := m.Fetch(b.Context(), from, onMain, Options{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		commit(fmt.Sprintf("# %d\n", i))
		b.StartTimer()
		if last, err = m.Fetch(b.Context(), from, onMain, Options{}, last); err != nil {
			b.Fatal(err)
		}
		for i := range 10_000 {
			if _, _, err := last.Stat(fmt.Sprintf("apps/app-%04d/f%d.yaml", i%1000, i%3)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkPushes is what each of 200 commits costs who waits for it, one after the other.
func BenchmarkPushes(b *testing.B) {
	for b.Loop() {
		m, from, commit := thousand(b)
		last, err := m.Fetch(b.Context(), from, onMain, Options{}, nil)
		if err != nil {
			b.Fatal(err)
		}
		var took []time.Duration
		for i := range 200 {
			commit(fmt.Sprintf("# %d\n", i))
			begun := time.Now()
			if last, err = m.Fetch(b.Context(), from, onMain, Options{}, last); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[100].Milliseconds()), "p50-ms")
		b.ReportMetric(float64(took[197].Milliseconds()), "p99-ms")
		b.ReportMetric(float64(took[199].Milliseconds()), "most-ms")
	}
}
