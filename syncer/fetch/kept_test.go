package fetch

import (
	"crypto/rand"
	"path/filepath"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestRecalled: what was kept stands in after a restart for what cannot be fetched, if it is the content that the status
// has. The revision alone does not say so.
func TestRecalled(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		full   bool
		packs  bool
	}{
		"Same":       {"it is what was applied", false, false},
		"SamePacked": {"whose digest is that of an archive", false, true},
		"Full":       {"what the new rules added was applied, and is not in it: it would be pruned", true, false},
		"FullPacked": {"the same, where sources are packed", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGitBench(t)
			seal, err := source.OpenSeal(filepath.Join(t.TempDir(), "key"), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			on := func(most int64) {
				b.Kept = source.NewKept(dir, most)
				if tc.packs {
					b.Storage = source.NewStorage(t.TempDir(), "", "artifacts.example:80", seal)
				}
			}
			on(1 << 20)
			b.commit("fleet", "main", "a.yaml", "1")
			b.put("fleet", "more/b.yaml", "2")
			url, rules := "url: "+b.server.HTTPURL("fleet")+"\nref: {branch: main}\n", "ignore: \"more/\"\n"
			b.declare("fleet", url+rules)
			b.want("fleet", "the first time", good, "Normal NewArtifact")
			if tc.full {
				on(1) // no room
				rules = "ignore: \"none.md\"\n"
				b.declare("fleet", url+rules)
				b.want("fleet", "the same commit, with other rules", good, "Normal NewArtifact", "Warning SnapshotNotKept")
			}
			had := b.Snapshots.Get(gitKey("fleet"))
			b.begin()
			on(1 << 20)
			b.declare("fleet", "url: http://127.0.0.1:1/none\nref: {branch: main}\n"+rules)
			b.run("fleet")
			s := b.Snapshots.Get(gitKey("fleet"))
			if tc.full && s != nil || !tc.full && (s == nil || s.Digest != had.Digest) {
				t.Errorf("%s: there is %+v", tc.reason, s)
			}
		})
	}
}
