package source

import (
	"errors"
	"testing"
)

func TestView(t *testing.T) {
	key, broken := Key{Kind: "GitRepository"}, errors.New("broken")
	a, b := &Snapshot{Revision: "A"}, &Snapshot{Revision: "B"}
	type answer struct {
		snapshot *Snapshot
		err      error
	}
	for name, tc := range map[string]struct {
		reason  string
		view    *View
		answers []answer
		want    answer
	}{
		"First":   {"the second answer is that of the first time", &View{}, []answer{{snapshot: a}, {snapshot: b}}, answer{snapshot: a}},
		"Failed":  {"an error is not remembered", &View{}, []answer{{err: broken}, {snapshot: b}}, answer{snapshot: b}},
		"Nothing": {"that there is none is not remembered", &View{}, []answer{{}, {snapshot: b}}, answer{snapshot: b}},
		"Nil":     {"without a view the newest counts", nil, []answer{{snapshot: a}, {snapshot: b}}, answer{snapshot: b}},
		"Fails":   {"an error is told", nil, []answer{{snapshot: a}, {err: broken}}, answer{err: broken}},
	} {
		t.Run(name, func(t *testing.T) {
			var got answer
			for _, next := range tc.answers {
				got.snapshot, got.err = tc.view.Snapshot(key, func() (*Snapshot, error) { return next.snapshot, next.err })
			}
			if got != tc.want {
				t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
