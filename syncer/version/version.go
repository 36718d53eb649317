// Package version reads versions as Flux reads them, wherever one of several is chosen: tags of Git
// and of images, and versions of charts.
//
// The package is pure. A text that is no version is an error, and is passed over where one is chosen.
package version

import (
	"strings"

	"github.com/Masterminds/semver/v3"
)

// Parse reads a version: three parts, with a v before them if there is one. Numbers may begin with
// zeros, so that the date 2026.01.05 is a version: without it, one with fewer zeros would be the
// highest.
func Parse(text string) (*semver.Version, error) {
	if strings.Count(text, ".") < 2 {
		return nil, semver.ErrInvalidSemVer
	}
	return semver.NewVersion(text)
}
