package answer_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// doors are the files where a configuration of a connection comes into being, and why
// what is sent with it has bounds. Another one needs a guard, and a line here.
var doors = map[string]string{
	"cmd/cascade/agent/agent.go":     "guarded at once",
	"cmd/cascade/main.go":            "the kubeconfig of whoever runs the command line",
	"cmd/cascade/check.go":           "the same",
	"cmd/cascade/child.go":           "the same, for a cluster of theirs",
	"cmd/cascade/pivot.go":           "the same, and guarded at once: what it reads decides what is deleted",
	"cmd/cascade/save.go":            "guarded at once",
	"cmd/cascade-mom/down.go":        "prints the file, connects to nothing",
	"mom/managers.go":                "hands the file to programs of its own, connects to nothing",
	"mom/account.go":                 "writes a kubeconfig, connects to nothing",
	"mom/folder.go":                  "the same",
	"mom/up.go":                      "guarded in connect",
	"pivot/management/management.go": "guarded by Addresses",
	"cmd/cascade/logs.go":            "the same; a log has no end, and is printed as it comes",
	"remote/kubeconfig.go":           "read for remote/link, which guards it in calls",
	"remote/credential.go":           "holds a credential, connects to nothing",
	"remote/renewal.go":              "compares credentials; remote/link guards what connects in calls",
	"remote/link/reach.go":           "guarded in calls",
	"syncer/target/target.go":        "guarded in connect",
	"state/inside.go":                "guarded by Addresses",
	"syncer/apply/cluster.go":        "of a client that is bounded",
	"syncer/release/session.go":      "a copy of a guarded one",
	"capibridge/kubeconfig.go":       "for remote/link and syncer/target",
}

// TestDoors: nothing connects to an API server past this package.
func TestDoors(t *testing.T) {
	found := madeIn(t, regexp.MustCompile(`GetConfig\(\)|InClusterConfig|clientcmd\.[A-Z]\w+\(|GetRESTConfig\(|\.Kubeconfig\(|rest\.Config\{|ToRESTConfig\(\)`),
		func(line string) bool { return strings.Contains(line, "mgr.GetConfig()") })
	for _, name := range found {
		if doors[name] == "" {
			t.Errorf("%s makes a configuration of a connection: guard it with package answer, and say so here", name)
		}
	}
	for name := range doors {
		if !slices.Contains(found, name) {
			t.Errorf("%s makes no configuration any more", name)
		}
	}
}

// bare are the files where a transport is made that hands its connection over to a server which
// changes the protocol, and why that is harmless. Every other one is made by Over.
var bare = map[string]string{
	"remote/link/caller.go":    "bounded in calls",
	"syncer/events/events.go":  "to the address that whoever runs the agent named",
	"syncer/render/network.go": "libraries of clouds want one, and ask the clouds",
	"mom/managers.go":          "to a program of its own",
}

// TestTransports: no other client takes an answer without an end.
func TestTransports(t *testing.T) {
	found := madeIn(t, regexp.MustCompile(`http\.Transport\{|cleanhttp\.`), func(line string) bool { return strings.Contains(line, "answer.Over(&http.Transport{") })
	for _, name := range found {
		if bare[name] == "" {
			t.Errorf("%s makes a transport: use answer.Over, or say here why not", name)
		}
	}
	for name := range bare {
		if !slices.Contains(found, name) {
			t.Errorf("%s makes no transport any more", name)
		}
	}
}

// madeIn are the files of the product in which a line makes something, unless it is one that is well.
func madeIn(t *testing.T, makes *regexp.Regexp, well func(line string) bool) []string {
	t.Helper()
	root := filepath.Join("..", "..")
	var found []string
	for _, dir := range []string{"cmd", "remote", "syncer", "capibridge", "inventory", "api", "deploy", "mom", "pivot", "state"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && path == filepath.Join(root, "mom", "controlplane") {
				return filepath.SkipDir // another program, which has the API server
			}
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				line, _, _ = strings.Cut(line, "//")
				if makes.MatchString(line) && !well(line) && !slices.Contains(found, name) {
					found = append(found, name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}
