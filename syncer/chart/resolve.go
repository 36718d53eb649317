package chart

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	fluxversion "github.com/cascade-gitops/cascade/syncer/version"
)

// chartName is what Flux takes as the name of a chart in a repository.
var chartName = regexp.MustCompile(`^([-a-z0-9]+/?\.?)+$`)

// maxName bounds a name and a version.
const maxName = 512

func checkName(name, version string) error {
	switch {
	case name == "":
		return failf(ReasonReference, "no name set for remote chart reference")
	case len(name) > maxName || len(version) > maxName:
		return failf(ReasonReference, "the name or version of the chart has more than %d characters", maxName)
	case !chartName.MatchString(name):
		return failf(ReasonReference, "invalid chart name '%s': a valid name must be lower case letters and numbers and MAY be separated with dashes (-), slashes (/) or periods (.)", name)
	}
	return nil
}

// noMatch is an error of pick: a version that matches may come.
type noMatch struct {
	versions  int
	reference string
}

func (e *noMatch) Error() string {
	return fmt.Sprintf("none of %d versions matches '%s'", e.versions, e.reference)
}

// pick returns the position of the version that a reference means: the very same
// string, or else the newest one that the range allows; without a range the newest
// that is no prerelease. Of versions that are equal but for their metadata, newer
// tells which is.
func pick(versions []string, reference string, newer func(a, b int) bool) (int, error) {
	if i := slices.Index(versions, reference); reference != "" && i >= 0 {
		return i, nil
	}
	allowed := "*"
	if reference != "" {
		allowed = reference
	}
	constraint, err := semver.NewConstraint(allowed)
	if err != nil {
		return -1, fmt.Errorf("cannot read version '%s': %w", reference, err)
	}
	found := -1
	var best *semver.Version
	for i, text := range versions {
		v, err := fluxversion.Parse(text)
		if err != nil || !constraint.Check(v) {
			continue
		}
		if found < 0 || v.GreaterThan(best) || v.Equal(best) && newer(i, found) {
			found, best = i, v
		}
	}
	if found < 0 {
		return -1, &noMatch{len(versions), reference}
	}
	return found, nil
}

// resolve finds a version in an index.
func resolve(name string, entries []entry, reference string) (entry, error) {
	versions := make([]string, len(entries))
	for i, e := range entries {
		versions[i] = e.version
	}
	i, err := pick(versions, reference, func(a, b int) bool { return !entries[a].created.Before(entries[b].created) })
	if err != nil {
		return entry{}, failf(ReasonReference, "no '%s' chart with version matching '%s' found: %w", name, reference, err)
	}
	return entries[i], nil
}

// resolveTag finds a version among tags, in which an underscore stands for the plus
// that a tag cannot have. That none matches may end at any time, and unlike an index, tags
// tell nobody when it does.
func resolveTag(name string, tags []string, reference string) (string, error) {
	versions := make([]string, len(tags))
	for i, tag := range tags {
		versions[i] = strings.ReplaceAll(tag, "_", "+")
	}
	i, err := pick(versions, reference, func(a, b int) bool { return versions[a] > versions[b] })
	if err != nil {
		reason := ReasonReference
		if errors.As(err, new(*noMatch)) {
			reason = ReasonPull
		}
		return "", failf(reason, "no '%s' chart with version matching '%s' found: %w", name, reference, err)
	}
	return versions[i], nil
}

func tagOf(version string) string { return strings.ReplaceAll(version, "+", "_") }
