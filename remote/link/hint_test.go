package link

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestHint: hints reach a child that is the recorded one and takes them, by one write, and
// no other.
func TestHint(t *testing.T) {
	const written = `application/merge-patch+json {"data":{"parent.json":"[]"}}`
	for name, tc := range map[string]struct {
		reason string
		change func(n *near, f *far)
		err    error
		asked  string
		want   string
	}{
		"Takes":     {"it has an agent that made the ConfigMap", func(*near, *far) {}, nil, "GET kube-system, PATCH cascade-hints", written},
		"Suspended": {"a person suspended it, or its Cluster is paused", func(n *near, _ *far) { n.TakesHints(false, "one") }, ErrNotConnected, "", ""},
		"Gone":      {"it was forgotten: its Cluster is being deleted", func(n *near, _ *far) { n.pool.Forget(n.key) }, ErrUnknown, "", ""},
		"Earlier":   {"its agent is of an earlier version: nothing is made there", func(_ *near, f *far) { f.takesHints = false }, ErrNoHints, "GET kube-system, PATCH cascade-hints", ""},
		"Another":   {"another cluster answers at its address", func(_ *near, f *far) { f.uid = "two" }, &IdentityError{}, "GET kube-system", ""},
		"Fenced": {"another process drives it by now", func(n *near, _ *far) {
			n.pool.Fence = func(types.NamespacedName) error { return errFence }
		}, errFence, "GET kube-system", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFar(t)
			f.takesHints = true
			n := newNear(t, f)
			n.good(t)
			n.TakesHints(true, "one")
			f.asked()
			tc.change(n, f)
			err := n.pool.Hint(t.Context(), n.key, "[]")
			var other *IdentityError
			switch {
			case tc.err == nil && err != nil, tc.err != nil && err == nil:
				t.Errorf("%s: Hint() = %v, want %v", tc.reason, err, tc.err)
			case errors.As(tc.err, &other) != errors.As(err, &other), !errors.As(err, &other) && !errors.Is(err, tc.err):
				t.Errorf("%s: Hint() = %v, want %v", tc.reason, err, tc.err)
			}
			expect(t, tc.reason, f.asked(), tc.asked)
			if f.hints != tc.want {
				t.Errorf("%s: written is %q, want %q", tc.reason, f.hints, tc.want)
			}
			if takes := len(n.pool.Hinted()) == 1; takes != (name != "Suspended" && name != "Gone") {
				t.Errorf("%s: Hinted() has it: %t", tc.reason, takes)
			}
		})
	}
}

var errFence = errors.New("not any more")
