package remote

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// TestAdopt: a process that begins takes a layer for in place without rendering it, if the record
// says that the same version applied all that it would render. In every other case it renders.
func TestAdopt(t *testing.T) {
	files := map[string]string{"app/a.yaml": noteOf("${cluster_name}"), "unread/x": "1"}
	// process is one that has rendered the layer for another child.
	process := func(t *testing.T, files map[string]string) *seeding {
		t.Helper()
		f := newFleet(t, files)
		f.layer.Spec.Path = "app"
		f.layer.Spec.Interval.Duration = 10 * time.Minute
		f.children.Version, f.children.Now = "v1", func() time.Time { return start.Time }
		if _, err := f.on(1).fromGit(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := f.on(0)
		s.as, s.notes = &account.Account{}, &layerNotes{}
		s.run.notes = &notes{layers: map[string]*layerNotes{"base": s.notes}}
		return s
	}
	for name, tc := range map[string]struct {
		reason  string
		files   map[string]string
		before  func(*seeding)
		change  func(*seeding, *record.Record, *v1alpha1.ChildLayer)
		adopted bool
	}{
		"Same":      {reason: "nothing is another", adopted: true},
		"Elsewhere": {reason: "a commit changed what the layer does not read", files: map[string]string{"app/a.yaml": noteOf("${cluster_name}"), "unread/x": "2"}, adopted: true},
		"Commit":    {reason: "a commit changed the layer", files: map[string]string{"app/a.yaml": noteOf("2")}},
		"Version":   {reason: "another version may render something else", change: func(s *seeding, _ *record.Record, _ *v1alpha1.ChildLayer) { s.Version = "v2" }},
		"Layer":     {reason: "the Layer was changed", change: func(s *seeding, _ *record.Record, _ *v1alpha1.ChildLayer) { s.layer.Generation++ }},
		"Variable":  {reason: "the cluster was changed", change: func(s *seeding, _ *record.Record, _ *v1alpha1.ChildLayer) { s.vars["cluster_version"] = "v1.35.0" }},
		"NotReady":  {reason: "it was not in place", change: func(_ *seeding, _ *record.Record, e *v1alpha1.ChildLayer) { e.Ready = false }},
		"Attempted": {reason: "another one was tried since", change: func(_ *seeding, r *record.Record, _ *v1alpha1.ChildLayer) { r.Attempted.Digest = "sha256:2" }},
		"Leftover": {reason: "something that it declared before is there", change: func(_ *seeding, r *record.Record, _ *v1alpha1.ChildLayer) {
			r.Inventory = append(r.Inventory, inventory.Entry{Name: "old", Namespace: "ns", Kind: "ConfigMap", Version: "v1"})
		}},
		"Broken":  {reason: "what was sent cannot be read", change: func(_ *seeding, r *record.Record, _ *v1alpha1.ChildLayer) { r.Sent[0], r.Sent = 0, r.Sent[1:] }},
		"Earlier": {reason: "an earlier version wrote the record", change: func(_ *seeding, r *record.Record, _ *v1alpha1.ChildLayer) { r.Inputs, r.Sent = "", nil }},
		"NotRead": {reason: "it is not known what the layer reads", change: func(s *seeding, _ *record.Record, _ *v1alpha1.ChildLayer) { clear(s.read[:]) }},
		"Secrets": {reason: "a digest would tell something of a Secret", before: func(s *seeding) { s.sensitive = []string{"x"} }},
		"Delivered": {reason: "so would that of a credential", before: func(s *seeding) {
			s.credentials = []credential{{name: "c", secret: &corev1.Secret{}}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before := process(t, files)
			if tc.before != nil {
				tc.before(before)
			}
			phases, err := before.fromGit(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			before.rendered = &rendered{phases: phases, entries: declared(phases), digest: "sha256:1"}
			sent, err := apply.SentOf(before.owner(), phases)
			if err != nil {
				t.Fatal(err)
			}
			state := record.State{Revision: "v1", Digest: "sha256:1"}
			rec := &record.Record{Layer: before.key(), Attempted: state, Applied: state, Inventory: before.rendered.entries}
			before.describe(rec, sent)

			now := files
			if tc.files != nil {
				now = tc.files
			}
			s := process(t, now)
			if tc.before != nil {
				tc.before(s)
			}
			entry := &v1alpha1.ChildLayer{Name: "base", Ready: true}
			if tc.change != nil {
				tc.change(s, rec, entry)
			}
			if got := s.adopt(rec, entry, s.inputs()); got != tc.adopted {
				t.Fatalf("%s: adopt() = %t", tc.reason, got)
			}
			if n := s.notes; tc.adopted && (!n.looked || n.inputs != s.inputs() || !slices.Equal(n.sent, sent) || !n.due.After(start.Time) || entry.Digest != "sha256:1") {
				t.Errorf("%s: known is %+v of %+v", tc.reason, n, entry)
			}
			if !tc.adopted && s.notes.looked {
				t.Errorf("%s: it counts as looked at", tc.reason)
			}
		})
	}
}
