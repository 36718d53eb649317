package remote

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// rendering gives a seeding what its layer declares, as fromGit finds it.
func rendering(t *testing.T, s *seeding, digest string) apply.Sent {
	t.Helper()
	phases, err := s.fromGit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.rendered = &rendered{phases: phases, entries: declared(phases), digest: digest}
	sent, err := apply.SentOf(s.owner(), phases)
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

// TestLookAfterCommit: a process that begins when there is a commit sends what is new alone, by what
// the record says of the rendering that is in place.
func TestLookAfterCommit(t *testing.T) {
	named := func(name, text string) string {
		return strings.ReplaceAll(noteOf(text), "{name: note,", "{name: "+name+",")
	}
	const secret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  namespace: default\nstringData:\n  k: v\n"
	before := map[string]string{"app/a.yaml": named("a", "1"), "app/b.yaml": named("b", "${cluster_name}"), "app/s.yaml": secret}
	for name, tc := range map[string]struct {
		reason string
		files  map[string]string
		change func(*seeding, *record.Record)
		known  int
	}{
		"Changed":   {"one of three is another, and nothing is said of a Secret", map[string]string{"app/a.yaml": named("a", "2"), "app/b.yaml": before["app/b.yaml"], "app/s.yaml": secret}, nil, 1},
		"Added":     {"there is one more", map[string]string{"app/a.yaml": before["app/a.yaml"], "app/b.yaml": before["app/b.yaml"], "app/c.yaml": named("c", "1"), "app/s.yaml": secret}, nil, 2},
		"Attempted": {"a part of another rendering was sent since", before, func(_ *seeding, r *record.Record) { r.Attempted.Digest = "sha256:3" }, 0},
		"Broken":    {"what was sent cannot be read", before, func(_ *seeding, r *record.Record) { r.Sent = r.Sent[1:] }, 0},
		"Earlier":   {"an earlier version wrote the record", before, func(_ *seeding, r *record.Record) { r.Sent = nil }, 0},
		"Sensitive": {"a digest would tell something of a variable", before, func(s *seeding, r *record.Record) {
			s.sensitive = []string{"x"}
			s.describe(r, rendering(t, s, "sha256:1"))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			process := func(files map[string]string) *seeding {
				f := newFleet(t, files)
				f.layer.Spec.Path = "app"
				f.children.Version, f.children.Now = "v1", func() time.Time { return start.Time }
				s := f.on(0)
				s.as, s.notes = &account.Account{}, &layerNotes{}
				s.run.notes = &notes{layers: map[string]*layerNotes{"base": s.notes}}
				return s
			}
			first := process(before)
			sent := rendering(t, first, "sha256:1")
			state := record.State{Revision: "v1", Digest: "sha256:1"}
			rec := &record.Record{Layer: first.key(), Attempted: state, Applied: state, Inventory: first.rendered.entries}
			first.describe(rec, sent)
			if tc.change != nil {
				tc.change(first, rec)
			}
			second := process(tc.files)
			wanted := rendering(t, second, "sha256:2")
			if err := second.look(t.Context(), rec, &v1alpha1.ChildLayer{Name: "base", Ready: true}); err != nil {
				t.Fatal(err)
			}
			known := 0
			for _, key := range wanted {
				if slices.Contains(second.notes.sent, key) {
					known++
				}
			}
			if known != tc.known {
				t.Errorf("%s: %d of %d objects are known to be in place, want %d", tc.reason, known, len(wanted), tc.known)
			}
		})
	}
}

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
		"Agent":   {reason: "what an agent is made of is known by the Layer, the image and the version", adopted: true, before: func(s *seeding) { s.layer.Spec.Agent = &v1alpha1.AgentSpec{} }},
		"Image": {reason: "the agent has another image", before: func(s *seeding) { s.layer.Spec.Agent = &v1alpha1.AgentSpec{} }, change: func(s *seeding, _ *record.Record, _ *v1alpha1.ChildLayer) {
			s.image = "cascade:v2"
		}},
		"Delivered": {reason: "so would that of a credential", before: func(s *seeding) {
			s.credentials = []credential{{name: "c", secret: &corev1.Secret{}}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before := process(t, files)
			if tc.before != nil {
				tc.before(before)
			}
			sent := rendering(t, before, "sha256:1")
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
