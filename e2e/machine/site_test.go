package machine

import (
	"slices"
	"strings"
	"testing"
)

// TestRoles: a process that is nothing of a site, or nothing that is known, ends with an error,
// and runs neither the program nor another site.
func TestRoles(t *testing.T) {
	for _, c := range []struct {
		reason, role string
		onSite       bool
		want         string
	}{
		{"the program starts itself on a site, without a role", "", true, "started by one that runs on a site"},
		{"the role was left in the environment of a person", roleInside, false, "without a site"},
		{"the role is unknown", "guest", true, "no such role"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			code, err := play(c.role, c.onSite, func() int { t.Error("the program is run"); return 0 })
			if code == 0 || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it ends with %d: %v; want %q", code, err, c.want)
			}
		})
	}
}

// TestMainTakesRole: what the program starts has no role.
func TestMainTakesRole(t *testing.T) {
	t.Setenv(roleVariable, roleInside)
	t.Setenv(siteVariable, "1")
	code := Main(func() int {
		// A second program by mistake, which inherits what this one has.
		return Main(func() int { t.Error("the program is run again"); return 0 })
	})
	if code != 1 {
		t.Errorf("it ends with %d", code)
	}
}

// TestEnvironment: each variable is there once. Go's programs see the first of two, so a role
// that is only appended would not be the one that is played.
func TestEnvironment(t *testing.T) {
	got := environment([]string{"A=1", roleVariable + "=" + roleSite, "AB=2"}, "A=3", roleVariable+"="+roleInside)
	if want := []string{"AB=2", "A=3", roleVariable + "=" + roleInside}; !slices.Equal(got, want) {
		t.Errorf("the environment is %q, want %q", got, want)
	}
}
