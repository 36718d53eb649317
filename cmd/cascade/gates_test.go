package main

import (
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/syncer"
)

func TestSetGates(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		text   string
		want   syncer.Rules
		watch  bool
		err    string
	}{
		"None":     {"Flux's defaults", "", syncer.Rules{}, true, ""},
		"Several":  {"as Flux writes them", "ExternalArtifact=true, StrictPostBuildSubstitutions=false,AdditiveCELDependencyCheck=true", syncer.Rules{ExternalArtifact: true, LenientSubstitution: true, Dependencies: syncer.DependencyRules{Additive: true}}, true, ""},
		"Configs":  {"a gate that is not about Kustomizations alone", "DisableConfigWatchers=true", syncer.Rules{}, false, ""},
		"Accepted": {"what has no meaning here does no harm", "GroupChangeLog=true", syncer.Rules{}, true, ""},
		"Unknown":  {"a typing mistake must not go unnoticed", "ExternalArtefact=true", syncer.Rules{}, true, `"ExternalArtefact"`},
		"No value": {"nor must this", "ExternalArtifact", syncer.Rules{}, true, "ExternalArtifact=true or ExternalArtifact=false"},
	} {
		t.Run(name, func(t *testing.T) {
			rules, watch := syncer.Rules{}, true
			err := setGates(tc.text, gates(&rules, &releaseGates{}, &watch))
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%s: error %v, want one about %q", tc.reason, err, tc.err)
			}
			if rules.ExternalArtifact != tc.want.ExternalArtifact || rules.LenientSubstitution != tc.want.LenientSubstitution ||
				rules.Dependencies != tc.want.Dependencies || watch != tc.watch {
				t.Errorf("%s: rules %+v, configs watched %t", tc.reason, rules, watch)
			}
		})
	}
}
