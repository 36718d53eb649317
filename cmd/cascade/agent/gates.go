package agent

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// gates are the feature gates of Flux's controllers.
//
// fluxcd/pkg/runtime/features reads such a flag, too. It keeps the gates in variables
// of the package, says only of an unknown gate that it is not supported, where ours
// lists those that there are, and stops the program with the usage of all flags when
// a value is missing.
type gates struct{ text string }

func (g *gates) bind(f *pflag.FlagSet) {
	f.StringVar(&g.text, "feature-gates", "", "Flux's feature gates, as Name=true,Other=false")
}

func (*gates) check() error { return nil }

// build reads --feature-gates. watchConfigs is whether ConfigMaps and Secrets are
// watched if no gate says otherwise.
func (g *gates) build(watchConfigs bool) (features, error) {
	f := features{watchConfigs: watchConfigs}
	if err := setGates(g.text, f.gates()); err != nil {
		return features{}, err
	}
	return f, nil
}

// features are what the gates change here. But for watchConfigs, zero values are
// Flux's defaults.
type features struct {
	// Of Kustomizations and HelmReleases.
	watchConfigs, additiveDependencies, externalArtifact bool
	// Of Kustomizations.
	lenientSubstitution, noFailFast, migrateAPIVersion, noCommitStatusEvent bool
	// Of HelmReleases.
	helm3Defaults, retryOnFailure, dnsLookups, noDigestTracking bool
}

// gates that are known. Each sets what it changes here; nil is accepted and changes
// nothing, for the reason that stands beside it in docs/flux-compatibility.md.
func (f *features) gates() map[string]func(on bool) {
	return map[string]func(bool){
		"AdditiveCELDependencyCheck":     func(on bool) { f.additiveDependencies = on },
		"UseHelm3Defaults":               func(on bool) { f.helm3Defaults = on },
		"DefaultToRetryOnFailure":        func(on bool) { f.retryOnFailure = on },
		"AllowDNSLookups":                func(on bool) { f.dnsLookups = on },
		"DisableChartDigestTracking":     func(on bool) { f.noDigestTracking = on },
		"ExternalArtifact":               func(on bool) { f.externalArtifact = on },
		"StrictPostBuildSubstitutions":   func(on bool) { f.lenientSubstitution = !on },
		"DisableFailFastBehavior":        func(on bool) { f.noFailFast = on },
		"MigrateAPIVersion":              func(on bool) { f.migrateAPIVersion = on },
		"DisableCommitStatusEvent":       func(on bool) { f.noCommitStatusEvent = on },
		"DisableConfigWatchers":          func(on bool) { f.watchConfigs = !on },
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

// setGates reads a list of gates and sets those that are known.
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
