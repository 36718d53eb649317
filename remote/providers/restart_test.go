package providers

import "testing"

func TestReadsAtStart(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, label, secret string
		want                  bool
	}{
		"AWS":       {"it mounts its keys", "infrastructure-aws", "capa-manager-bootstrap-credentials", true},
		"Identity":  {"it follows the identities of its clusters", "infrastructure-azure", "cluster-identity-secret", false},
		"Operator":  {"variables of a process are read once", "infrastructure-azure", "aso-controller-settings", true},
		"Unknown":   {"a restart too many costs little", "infrastructure-somewhere", "keys", true},
		"OpenStack": {"it reads the cloud of each cluster", "infrastructure-openstack", "clouds", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (Wanted{Label: tc.label}).ReadsAtStart(tc.secret); got != tc.want {
				t.Errorf("%s: %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}
