package source

import (
	"path"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/sourceignore"
)

// FuzzIgnore: whatever the rules are, they can be asked, and if none of them
// takes back, a file in an excluded directory is excluded, so that the directory
// need not be walked.
func FuzzIgnore(f *testing.F) {
	for _, text := range []string{
		"*.yaml\n!/a.yaml\n", "/docs\n", "docs/\n!docs/x\n", "**/x/**\n", "a/**/b\n", "[a-z]*\n", "[\n", "\\\n", "!\n", "#\n\\#x\n", " \n", "*\n!*/\n!*.go\n", "/*\n!/dir\n", "a//b\n", "**\n", "?\n", "é*\n", "[!a]b\n", "{a,b}\n",
	} {
		f.Add(text, "*.txt\n", "dir", "dir/sub/a.yaml\ndocs/x/y\na.yaml\nx/b.yaml")
	}
	f.Fuzz(func(t *testing.T, text, below, domain, names string) {
		if len(text)+len(below)+len(names) > 1<<12 || strings.Count(text, "*")+strings.Count(below, "*") > 40 {
			return
		}
		patterns := sourceignore.ReadPatterns(strings.NewReader(text), nil)
		if domain = strings.Trim(path.Clean("/"+domain), "/"); domain != "" {
			patterns = append(patterns, sourceignore.ReadPatterns(strings.NewReader(below), strings.Split(domain, "/"))...)
		}
		r := &rules{matcher: sourceignore.NewMatcher(patterns), takesBack: strings.Contains("\n"+text+"\n"+below, "\n!")}
		for name := range strings.SplitSeq(names, "\n") {
			if name = strings.Trim(path.Clean("/"+name), "/"); name == "" || strings.Count(name, "/") > 20 {
				continue
			}
			excluded := r.excludes(name, false)
			for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
				if r.excludes(dir, true) && !excluded && !r.takesBack {
					t.Errorf("%q is excluded, and %q in it is not\nrules: %q, in %q: %q", dir, name, text, domain, below)
				}
			}
		}
	})
}
