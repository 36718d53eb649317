package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cascade-gitops/cascade/syncer"
)

// releaseGates are those of Flux's helm-controller alone.
type releaseGates struct{ helm3Defaults, retryOnFailure, dnsLookups, noDigestTracking bool }

// gates are the feature gates of Flux's controllers. Each sets what it changes
// here; nil is accepted and changes nothing, for the reason that stands beside
// it in docs/flux-compatibility.md.
func gates(rules *syncer.Rules, releases *releaseGates, watchConfigs *bool) map[string]func(on bool) {
	return map[string]func(bool){
		"AdditiveCELDependencyCheck":     func(on bool) { rules.Dependencies.Additive = on },
		"UseHelm3Defaults":               func(on bool) { releases.helm3Defaults = on },
		"DefaultToRetryOnFailure":        func(on bool) { releases.retryOnFailure = on },
		"AllowDNSLookups":                func(on bool) { releases.dnsLookups = on },
		"DisableChartDigestTracking":     func(on bool) { releases.noDigestTracking = on },
		"ExternalArtifact":               func(on bool) { rules.ExternalArtifact = on },
		"StrictPostBuildSubstitutions":   func(on bool) { rules.LenientSubstitution = !on },
		"DisableFailFastBehavior":        func(on bool) { rules.NoFailFast = on },
		"MigrateAPIVersion":              func(on bool) { rules.MigrateAPIVersion = on },
		"DisableCommitStatusEvent":       func(on bool) { rules.NoCommitStatusEvent = on },
		"DisableConfigWatchers":          func(on bool) { *watchConfigs = !on },
		"CacheSecretsAndConfigMaps":      nil,
		"DisableStatusPollerCache":       nil,
		"GroupChangeLog":                 nil,
		"CancelHealthCheckOnNewRevision": nil,
		"DirectSourceFetch":              nil,
		"ObjectLevelWorkloadIdentity":    nil,
		"OOMWatch":                       nil,
		"AdoptLegacyReleases":            nil,
		"DetectDrift":                    nil,
		"CorrectDrift":                   nil,
	}
}

// setGates reads --feature-gates.
func setGates(text string, known map[string]func(bool)) error {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, value, _ := strings.Cut(item, "=")
		set, ok := known[name]
		if !ok {
			return fmt.Errorf("cannot use --feature-gates %q: the gates are %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("cannot use --feature-gates %q: write %s=true or %s=false", item, name, name)
		}
		if set != nil {
			set(on)
		}
	}
	return nil
}
