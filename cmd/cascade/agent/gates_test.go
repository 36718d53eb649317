package agent

import (
	"strings"
	"testing"
)

func TestSetGates(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		text   string
		want   features
		err    string
	}{
		"None":     {"Flux's defaults", "", features{watchConfigs: true}, ""},
		"Several":  {"as Flux writes them", "ExternalArtifact=true, StrictPostBuildSubstitutions=false,AdditiveCELDependencyCheck=true", features{watchConfigs: true, externalArtifact: true, lenientSubstitution: true, additiveDependencies: true}, ""},
		"Configs":  {"a gate that is not about Kustomizations alone", "DisableConfigWatchers=true", features{}, ""},
		"Accepted": {"what has no meaning here does no harm", "GroupChangeLog=true", features{watchConfigs: true}, ""},
		"Unknown":  {"a typing mistake must not go unnoticed", "ExternalArtefact=true", features{}, `"ExternalArtefact"`},
		"Identity": {"a promise that cannot be kept", "ObjectLevelWorkloadIdentity=false", features{}, "ObjectLevelWorkloadIdentity"},
		"Always":   {"what is always on may be switched on", "ObjectLevelWorkloadIdentity=true", features{watchConfigs: true}, ""},
		"No value": {"nor must this", "ExternalArtifact", features{}, "ExternalArtifact=true or ExternalArtifact=false"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := (&gates{text: tc.text}).build(true)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%s: error %v, want one about %q", tc.reason, err, tc.err)
			}
			if got != tc.want {
				t.Errorf("%s: got %+v, want %+v", tc.reason, got, tc.want)
			}
		})
	}
}
