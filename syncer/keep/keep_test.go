package keep

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
)

func TestRecent(t *testing.T) {
	type add struct {
		key  string
		size int
	}
	for name, tc := range map[string]struct {
		reason string
		adds   []add
		// use is looked at after all but the last were added.
		use  string
		want []string
	}{
		"Room":     {"what there is room for stays", []add{{"a", 4}, {"b", 6}}, "", []string{"a", "b"}},
		"Oldest":   {"what was not used for longest goes", []add{{"a", 4}, {"b", 4}, {"c", 4}}, "", []string{"b", "c"}},
		"Used":     {"being looked at is a use", []add{{"a", 4}, {"b", 4}, {"c", 4}}, "a", []string{"a", "c"}},
		"Several":  {"as many go as it takes", []add{{"a", 4}, {"b", 4}, {"c", 9}}, "", []string{"c"}},
		"TooLarge": {"the last one stays, or it would be made for each use", []add{{"a", 4}, {"b", 99}}, "", []string{"b"}},
		"Again":    {"what is added anew counts once", []add{{"a", 9}, {"b", 1}, {"a", 2}}, "", []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			var r Recent[string, int]
			for n, a := range tc.adds {
				if n == len(tc.adds)-1 && tc.use != "" {
					r.Get(tc.use)
				}
				r.Add(a.key, n, a.size, 10)
			}
			var kept []string
			for _, key := range []string{"a", "b", "c"} {
				if _, ok := r.Get(key); ok {
					kept = append(kept, key)
				}
			}
			if !slices.Equal(kept, tc.want) || r.Len() != len(tc.want) {
				t.Errorf("%s: %q are kept, want %q", tc.reason, kept, tc.want)
			}
		})
	}
}

func TestOnce(t *testing.T) {
	lasting := errors.New("it is wrong")
	for name, tc := range map[string]struct {
		reason string
		err    error
		made   int
	}{
		"Value":   {"a value is made once", nil, 1},
		"Lasting": {"so is a failure that lasts", lasting, 1},
		"Passing": {"a failure that may pass is tried again", errors.New("no answer"), 3},
		"GaveUp":  {"so is what there was no time for", context.DeadlineExceeded, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var o Once[string]
			made := 0
			for range 3 {
				got, err := o.Do(t.Context(), "k", 100, func(err error) bool { return errors.Is(err, lasting) }, func() (string, int, error) {
					made++
					return "v", 1, tc.err
				})
				if !errors.Is(err, tc.err) || err == nil && got != "v" {
					t.Errorf("%s: Do() = %q, %v", tc.reason, got, err)
				}
			}
			if made != tc.made {
				t.Errorf("%s: it was made %d times, want %d", tc.reason, made, tc.made)
			}
		})
	}
}

func TestOnceTogether(t *testing.T) {
	var o Once[int]
	var mu sync.Mutex
	made := map[string]int{}
	var callers sync.WaitGroup
	for n := range 100 {
		callers.Go(func() {
			key := strconv.Itoa(n % 4)
			got, err := o.Do(t.Context(), key, 1000, func(error) bool { return true }, func() (int, int, error) {
				mu.Lock()
				defer mu.Unlock()
				made[key]++
				return n % 4, 1, nil
			})
			if err != nil || got != n%4 {
				t.Errorf("Do(%s) = %d, %v", key, got, err)
			}
		})
	}
	callers.Wait()
	for key, times := range made {
		if times != 1 {
			t.Errorf("%s was made %d times", key, times)
		}
	}
	if o.Len() != 4 {
		t.Errorf("%d are kept, want 4", o.Len())
	}
}
