package source

import (
	"path"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/sourceignore"
)

// FuzzIgnore: what is ignored when it is asked for by its path is what a walk
// from the root does not come to, whatever the rules are.
func FuzzIgnore(f *testing.F) {
	for _, rules := range []string{
		"*.yaml\n!/a.yaml\n", "/docs\n", "docs/\n!docs/x\n", "**/x/**\n", "a/**/b\n", "[a-z]*\n", "[\n", "\\\n", "!\n", "#\n\\#x\n", " \n", "*\n!*/\n!*.go\n", "/*\n!/dir\n", "a//b\n", "**\n", "?\n", "é*\n", "[!a]b\n", "{a,b}\n",
	} {
		f.Add(rules, "*.txt\n", "dir", "dir/sub/a.yaml\ndocs/x/y\na.yaml\nx/b.yaml")
	}
	f.Fuzz(func(t *testing.T, rules, below, domain, names string) {
		if len(rules)+len(below)+len(names) > 1<<12 || strings.Count(rules, "*")+strings.Count(below, "*") > 40 {
			return
		}
		patterns := sourceignore.ReadPatterns(strings.NewReader(rules), nil)
		if domain = clean(domain); domain != "" {
			patterns = append(patterns, sourceignore.ReadPatterns(strings.NewReader(below), strings.Split(domain, "/"))...)
		}
		s := &Snapshot{matcher: sourceignore.NewMatcher(patterns)}
		// A tree of the names: what has something below it is a directory.
		dirs, files := map[string]bool{"": true}, map[string]bool{}
		for name := range strings.SplitSeq(names, "\n") {
			if name = clean(name); name == "" || strings.Count(name, "/") > 20 {
				continue
			}
			files[name] = true
			for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
				dirs[dir] = true
			}
		}
		reached := map[string]bool{}
		var walk func(dir string)
		walk = func(dir string) {
			for _, set := range []map[string]bool{dirs, files} {
				for at := range set {
					if at == "" || clean(path.Dir(at)) != dir || reached[at] || files[at] && dirs[at] {
						continue
					}
					if s.matcher.Match(strings.Split(at, "/"), dirs[at]) {
						continue
					}
					reached[at] = true
					if dirs[at] {
						walk(at)
					}
				}
			}
		}
		walk("")
		for _, set := range []map[string]bool{dirs, files} {
			for at := range set {
				if at == "" || files[at] && dirs[at] || under(at, files, dirs) {
					continue
				}
				if got := s.ignored(at, dirs[at]); got == reached[at] {
					t.Errorf("ignored(%q) = %t, and a walk comes to it: %t\nrules: %q, in %q: %q", at, got, reached[at], rules, domain, below)
				}
			}
		}
	})
}

// under tells whether a path goes through a name that is a file as well.
func under(at string, files, dirs map[string]bool) bool {
	for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
		if files[dir] && dirs[dir] {
			return true
		}
	}
	return false
}
