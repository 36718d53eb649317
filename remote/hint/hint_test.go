package hint

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestRepository: which ways to write a URL are of one repository.
func TestRepository(t *testing.T) {
	const one = "https://git.example.org/team/app"
	for name, tc := range map[string]struct {
		reason, url string
		same        bool
	}{
		"Itself":      {"the same", one, true},
		"Suffix":      {"Git servers serve it with .git as well", one + ".git", true},
		"Slash":       {"a slash at the end", one + "/", true},
		"Slashes":     {"a slash too many", "https://git.example.org//team/app", true},
		"User":        {"a login in the URL is no other repository", "https://bot:secret@git.example.org/team/app.git", true},
		"SSH":         {"tenants may have keys where the top has tokens", "ssh://git@git.example.org/team/app", true},
		"SCP":         {"as git clone prints it", "git@git.example.org:team/app.git", true},
		"SCPSlash":    {"with a slash", "git@git.example.org:/team/app.git", true},
		"Port":        {"the port that is meant anyway", "https://git.example.org:443/team/app", true},
		"SSHPort":     {"that of SSH", "ssh://git@git.example.org:22/team/app", true},
		"Host":        {"names of hosts have no case", "https://Git.Example.ORG./team/app", true},
		"HTTP":        {"without TLS, inside", "http://git.example.org/team/app", true},
		"Query":       {"what follows names no other repository", one + "?a=b#c", true},
		"OCI":         {"an image may be of the same name: a fetch too many at the worst", "oci://git.example.org/team/app", true},
		"Path":        {"another repository", "https://git.example.org/team/app2", false},
		"Case":        {"paths have a case on most servers", "https://git.example.org/Team/app", false},
		"OtherPort":   {"another server on the same host", "https://git.example.org:8443/team/app", false},
		"OtherHost":   {"another host", "https://example.org/team/app", false},
		"Parent":      {"a path that leads up", "https://git.example.org/team/app/..", false},
		"LooksInside": {"the name as a part of another", "https://evil.example.org/git.example.org/team/app", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Repository(tc.url) == Repository(one); got != tc.same {
				t.Errorf("%s: %s is the same: %t", tc.reason, tc.url, got)
			}
		})
	}
	for _, none := range []string{"", "   ", "app", "/team/app", "./a:b", "://x", "https://", "https://[::1", "a b:\x00"} {
		if got := Repository(none); got != "" && len(got) != digestLength {
			t.Errorf("Repository(%q) = %q", none, got)
		}
	}
	for _, none := range []string{"", "app", "/team/app", "https://"} {
		if got := Repository(none); got != "" {
			t.Errorf("Repository(%q) = %q, want none", none, got)
		}
	}
}

func hints(n int) []Hint {
	var all []Hint
	for i := range n {
		all = append(all, Hint{ID: fmt.Sprint("id-", i), Repository: Repository(fmt.Sprint("https://git.example/", i)), Revision: strings.Repeat("a", 40)})
	}
	return all
}

// TestParse: what others wrote is bounded, and what is wrong in it spoils nothing else.
func TestParse(t *testing.T) {
	good := hints(1)[0]
	entry := func(h ...Hint) string {
		text, err := Encode(h)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, tc := range map[string]struct {
		reason, text string
		want         int
	}{
		"Good":     {"as we write it", entry(good), 1},
		"Newest":   {"of too many the newest", entry(hints(Most + 5)...), Most},
		"Empty":    {"nothing yet", "", 0},
		"NoJSON":   {"somebody wrote something else", "hello", 0},
		"Object":   {"another shape", `{"id":"a"}`, 0},
		"Newer":    {"a later version says more of it", strings.Replace(entry(good), `{`, `{"ref":"main",`, 1), 1},
		"TooLong":  {"more than we ever write", "[" + strings.Repeat(" ", mostEncoded) + "]", 0},
		"NoID":     {"without an ID it would go round for ever", entry(Hint{Repository: good.Repository}), 0},
		"LongID":   {"a text that fills the memory", entry(Hint{ID: strings.Repeat("a", mostID+1), Repository: good.Repository}, good), 1},
		"URL":      {"a URL is no digest", entry(Hint{ID: "a", Repository: "https://git.example/a"}, good), 1},
		"Upper":    {"another way to write a digest", entry(Hint{ID: "a", Repository: strings.ToUpper(good.Repository)}), 0},
		"Revision": {"what does not look like a commit", entry(Hint{ID: "a", Repository: good.Repository, Revision: "main\n"}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Parse(tc.text); len(got) != tc.want {
				t.Errorf("%s: %d hints, want %d: %v", tc.reason, len(got), tc.want, got)
			}
		})
	}
	if text := entry(hints(Most)...); len(text) > mostEncoded {
		t.Errorf("what we write has %d bytes, and is not read above %d", len(text), mostEncoded)
	}
}

// FuzzParse: whatever stands in an entry, what is read of it is bounded and can be written.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "[]", "null", `[{"id":"a","repository":"` + strings.Repeat("0", digestLength) + `"}]`, `[[[[`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Parse(text)
		again, err := Encode(got)
		if err != nil || len(got) > Most || len(again) > mostEncoded || len(Parse(again)) != len(got) {
			t.Errorf("Parse(%q) = %v, %v", text, got, err)
		}
	})
}

// FuzzRepository: one URL has one digest, however often it is normalised.
func FuzzRepository(f *testing.F) {
	for _, seed := range []string{"https://a/b.git", "git@a:b", "ssh://u:p@A:22//x/../y/", "%%", "a:b:c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got := Repository(text); got != "" && len(got) != digestLength || got != Repository(text) {
			t.Errorf("Repository(%q) = %q", text, got)
		}
	})
}

// TestMemory: each hint is news once, for as long as it can go round.
func TestMemory(t *testing.T) {
	var m memory
	all := hints(3 * mostSeen)
	for i, h := range all {
		if got := m.news([]Hint{h, h}); len(got) != 1 {
			t.Fatalf("hint %d is news %d times", i, len(got))
		}
	}
	if len(m.seen) != mostSeen || len(m.order) != mostSeen {
		t.Errorf("%d and %d are kept, want %d", len(m.seen), len(m.order), mostSeen)
	}
	if got := m.news(all[len(all)-Most:]); len(got) != 0 {
		t.Errorf("what was seen a moment ago is news: %v", got)
	}
}

// TestMerge: of one repository the newest stays, and of too many the newest do.
func TestMerge(t *testing.T) {
	all := hints(Most + 3)
	merged := merge(nil, all)
	if len(merged) != Most || merged[Most-1] != all[Most+2] {
		t.Errorf("%d hints, the last is %v", len(merged), merged[Most-1])
	}
	newer := Hint{ID: "newer", Repository: merged[0].Repository}
	if again := merge(merged, []Hint{newer}); len(again) != Most || again[Most-1] != newer || again[0] == merged[0] {
		t.Errorf("the newer hint of a repository is %v", again[Most-1])
	}
	if len(merged) != Most || merged[0] != all[3] {
		t.Error("merge changed what it was given")
	}
}

// TestMergeOfOneRepository: no push is lost for another one to the same repository, on another
// branch as it may be.
func TestMergeOfOneRepository(t *testing.T) {
	a, b := Repository("https://git.example/a"), Repository("https://git.example/b")
	push := func(id, repository, revision string) Hint {
		return Hint{ID: id, Repository: repository, Revision: revision}
	}
	busy := make([]Hint, 0, Most+1)
	for i := range Most + 1 {
		busy = append(busy, push(fmt.Sprint("busy-", i), a, fmt.Sprint("r", i)))
	}
	for name, tc := range map[string]struct {
		reason        string
		before, hints []Hint
		want          []Hint
	}{
		"TwoBranches": {"two pushes", []Hint{push("1", a, "x")}, []Hint{push("2", a, "y")}, []Hint{push("1", a, "x"), push("2", a, "y")}},
		"Again":       {"the same one, told twice", []Hint{push("1", a, "x"), push("2", b, "x")}, []Hint{push("3", a, "x")}, []Hint{push("2", b, "x"), push("3", a, "x")}},
		"Any":         {"one that leaves nobody alone", []Hint{push("1", a, "x"), push("2", a, "y")}, []Hint{push("3", a, "")}, []Hint{push("3", a, "")}},
		"AfterAny":    {"that one may be known already", []Hint{push("1", a, "")}, []Hint{push("2", a, "x")}, []Hint{push("1", a, ""), push("2", a, "x")}},
		"TooMany":     {"the oldest two are one", nil, busy, append([]Hint{push("busy-1", a, "")}, busy[2:]...)},
		"OthersStay":  {"a busy repository costs no other one its hint", []Hint{push("0", b, "z")}, busy, append([]Hint{push("0", b, "z"), push("busy-2", a, "")}, busy[3:]...)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := merge(tc.before, tc.hints); !slices.Equal(got, tc.want) {
				t.Errorf("%s: %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestHas(t *testing.T) {
	commit := strings.Repeat("a", 40)
	for _, tc := range []struct {
		reason, artifact, commit string
		want                     bool
	}{
		{"the branch is there", "main@sha1:" + commit, commit, true},
		{"as Flux wrote it once", "main/" + commit, commit, true},
		{"another commit", "main@sha1:" + strings.Repeat("b", 40), commit, false},
		{"the server did not say", "main@sha1:" + commit, "", false},
		{"a part of it", "main@sha1:" + commit, commit[:10], false},
	} {
		if got := has(tc.artifact, tc.commit); got != tc.want {
			t.Errorf("%s: %t", tc.reason, got)
		}
	}
}
