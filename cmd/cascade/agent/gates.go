package agent

import (
	"errors"
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
func (f *features) gates() map[string]func(on bool) error {
	return map[string]func(bool) error{
		"AdditiveCELDependencyCheck":     func(on bool) error { f.additiveDependencies = on; return nil },
		"UseHelm3Defaults":               func(on bool) error { f.helm3Defaults = on; return nil },
		"DefaultToRetryOnFailure":        func(on bool) error { f.retryOnFailure = on; return nil },
		"AllowDNSLookups":                func(on bool) error { f.dnsLookups = on; return nil },
		"DisableChartDigestTracking":     func(on bool) error { f.noDigestTracking = on; return nil },
		"ExternalArtifact":               func(on bool) error { f.externalArtifact = on; return nil },
		"StrictPostBuildSubstitutions":   func(on bool) error { f.lenientSubstitution = !on; return nil },
		"DisableFailFastBehavior":        func(on bool) error { f.noFailFast = on; return nil },
		"MigrateAPIVersion":              func(on bool) error { f.migrateAPIVersion = on; return nil },
		"DisableCommitStatusEvent":       func(on bool) error { f.noCommitStatusEvent = on; return nil },
		"DisableConfigWatchers":          func(on bool) error { f.watchConfigs = !on; return nil },
		"CacheSecretsAndConfigMaps":      nil,
		"DisableStatusPollerCache":       nil,
		"GroupChangeLog":                 nil,
		"CancelHealthCheckOnNewRevision": nil,
		"DirectSourceFetch":              nil,
		"ObjectLevelWorkloadIdentity":    objectIdentity,
		"OOMWatch":                       nil,
		"AdoptLegacyReleases":            nil,
		"DetectDrift":                    nil,
		"CorrectDrift":                   nil,
		"FluxStorage":                    nil,
		"GitAllBranchReferences":         nil,
		"GitForcePushBranch":             nil,
		"GitShallowClone":                nil,
		"GitSparseCheckout":              nil,
	}
}

// objectIdentity refuses what cannot be switched off.
func objectIdentity(on bool) error {
	if !on {
		return errors.New("an object that names a service account always acts as that account at a cloud; leave the gate out, and the field where it is not wanted")
	}
	return nil
}

// setGates reads a list of gates and sets those that are known.
func setGates(text string, known map[string]func(bool) error) error {
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
		if set == nil {
			continue
		}
		if err := set(on); err != nil {
			return fmt.Errorf("cannot use --feature-gates %q: %w", item, err)
		}
	}
	return nil
}
