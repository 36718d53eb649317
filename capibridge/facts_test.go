package capibridge

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKeeping(t *testing.T) {
	before := Facts{Region: "eu-west-1", Variables: map[string]string{"cluster_account": "1", "cluster_vpc": "v1"}}
	unread := unknown(HealthForbidden, "no right")
	for name, tc := range map[string]struct {
		reason    string
		facts     Facts
		region    string
		variables map[string]string
	}{
		"Read": {
			"all was read: what is not there any more is gone",
			Facts{Region: "eu-west-2", Variables: map[string]string{"cluster_vpc": "v2"}}, "eu-west-2", map[string]string{"cluster_vpc": "v2"},
		},
		"Unread": {"nothing was read", Facts{Unread: unread}, "eu-west-1", before.Variables},
		"Partly": {
			"what is derived from less than before is not better known",
			Facts{Unread: unread, Region: "eu", Variables: map[string]string{"cluster_vpc": "guess", "cluster_tenant": "t"}},
			"eu-west-1", map[string]string{"cluster_account": "1", "cluster_vpc": "v1", "cluster_tenant": "t"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.facts.Keeping(before)
			if got.Region != tc.region {
				t.Errorf("%s: the region is %q", tc.reason, got.Region)
			}
			if diff := cmp.Diff(tc.variables, got.Variables); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
