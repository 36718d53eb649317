package clusterapi

import "testing"

func TestVersionOf(t *testing.T) {
	for name, tc := range map[string]struct{ reason, versions, want string }{
		"Former":  {"Cluster API before 1.11", `[{name: v1beta1, served: true}]`, "v1beta1"},
		"Both":    {"the one that the others are made from", `[{name: v1beta1, served: true}, {name: v1beta2, served: true}]`, "v1beta2"},
		"Dropped": {"it is still in the definition, because objects were stored in it", `[{name: v1beta1, served: false}, {name: v1beta2, served: true}]`, "v1beta2"},
		"Known":   {"one that nobody here can read is not preferred because its name is newer", `[{name: v1beta2, served: true}, {name: v1, served: true}]`, "v1beta2"},
		"Coming":  {"there is no other", `[{name: v1alpha4, served: true}, {name: v2, served: false}, {name: v1, served: true}, {name: v1beta3, served: true}]`, "v1"},
		"None":    {"a definition may have all of its versions switched off", `[{name: v1beta2, served: false}]`, ""},
		"Broken":  {"a field of another type counts as not set", `[{name: 1, served: true}, {name: v1, served: "true"}, v1]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := VersionOf(object(t, `{spec: {versions: `+tc.versions+`}}`)); got != tc.want {
				t.Errorf("%s\nVersionOf = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
