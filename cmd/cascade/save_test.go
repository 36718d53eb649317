package main

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/cascade-gitops/cascade/state/store"
)

// TestSaveKeeps: what was saved before goes only for what can be restored.
func TestSaveKeeps(t *testing.T) {
	broken := errors.New("it is not what was saved")
	for name, tc := range map[string]struct {
		reason string
		keep   int
		err    error
		want   int
	}{
		"Kept":      {"the new one is good: it replaces the one before", 1, nil, 1},
		"Broken":    {"the new one cannot be restored: the one before stays", 1, broken, 2},
		"Boundless": {"nobody said how many", 0, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			at, err := store.Open(t.Context(), "file://"+t.TempDir(), store.Options{Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			defer at.Close()
			s := &saving{cli: &cli{streams: genericiooptions.IOStreams{Out: &bytes.Buffer{}, ErrOut: &bytes.Buffer{}}, now: time.Now}, keep: tc.keep, timeout: time.Minute}
			good := func(store.Version) error { return nil }
			if err := s.keepVersion(t.Context(), at, []byte("yesterday"), good); err != nil {
				t.Fatal(err)
			}
			var seen []store.Version
			err = s.keepVersion(t.Context(), at, []byte("today"), func(v store.Version) error {
				var err error
				if seen, err = at.Versions(t.Context()); err != nil {
					return err
				}
				// Who saves, or takes the tier over, need not wait for a look.
				l, err := at.Lock(t.Context(), "another", time.Minute)
				if err != nil {
					return err
				}
				if err := at.Unlock(t.Context(), l); err != nil {
					return err
				}
				if !slices.Contains(seen, v) {
					t.Errorf("%s: version %s is told and is not there", tc.reason, v)
				}
				return tc.err
			})
			if !errors.Is(err, tc.err) {
				t.Errorf("%s: %v", tc.reason, err)
			}
			left, err := at.Versions(t.Context())
			if err != nil || len(seen) != 2 || len(left) != tc.want {
				t.Errorf("%s: %d versions while it is looked at, %d in the end, want %d: %v", tc.reason, len(seen), len(left), tc.want, err)
			}
		})
	}
}
