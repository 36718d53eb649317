// Package changelog cuts the notes of a release out of CHANGELOG.md, which is in the form
// of keepachangelog.com: a heading of second rank for each version, the newest first, and
// one for what is not released yet.
package changelog

import (
	"fmt"
	"regexp"
	"strings"
)

// unreleased is the heading of what the next release will have.
const unreleased = "Unreleased"

var (
	heading = regexp.MustCompile(`^## \[([^\]]+)\]`)
	// links are definitions at the end of the file: [1.0.0]: https://...
	link = regexp.MustCompile(`^\[[^\]]+\]: `)
)

// Notes of a version such as v1.2.0. A version before a release, such as v1.2.0-rc.1, that
// has no notes of its own has those of what is not released yet.
func Notes(changelog, version string) (string, error) {
	found := sections(changelog)
	name := strings.TrimPrefix(version, "v")
	notes, ok := found[name]
	if _, _, early := strings.Cut(name, "-"); !ok && early {
		name = unreleased
		notes, ok = found[name]
	}
	switch {
	case !ok:
		return "", fmt.Errorf("cannot find notes of %s in CHANGELOG.md: give what is below [%s] the heading [%s] and a date",
			version, unreleased, name)
	case notes == "":
		return "", fmt.Errorf("cannot use the notes of %s in CHANGELOG.md: there are none below [%s]", version, name)
	}
	return notes + "\n", nil
}

// sections by the names in their headings.
func sections(changelog string) map[string]string {
	found := map[string]string{}
	var name string
	var lines []string
	end := func() {
		if name != "" {
			found[name] = strings.TrimSpace(strings.Join(lines, "\n"))
		}
		lines = nil
	}
	for line := range strings.Lines(changelog) {
		line = strings.TrimRight(line, "\r\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			end()
			name = m[1]
			continue
		}
		if !link.MatchString(line) {
			lines = append(lines, line)
		}
	}
	end()
	return found
}
