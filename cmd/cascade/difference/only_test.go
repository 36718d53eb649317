package difference

import (
	"slices"
	"testing"
)

func TestOnly(t *testing.T) {
	change := []Change{{Action: Changed, APIVersion: "v1", Kind: "ConfigMap", Namespace: "a", Name: "b"}}
	r := &Report{Schema: Schema, Owners: []Owner{
		{Kind: "Kustomization", Namespace: "fleet", Name: "apps", Groups: []Group{{Changes: change}}},
		{Kind: "Layer", Namespace: "fleet", Name: "base", Groups: []Group{{Clusters: []string{"bank", "shop"}, Changes: change}, {Clusters: []string{"toys"}, Changes: change}}},
		{Kind: "Layer", Namespace: "other", Name: "base", Groups: []Group{{Clusters: []string{"shop"}, Changes: change}}},
	}, Problems: []Problem{{Owner: "Layer/fleet/base", Message: "x"}, {Owner: "Kustomization/fleet/apps", Message: "y"}}}
	for name, tc := range map[string]struct {
		reason         string
		owner, cluster string
		owners         []string
		changed        int
		problems       int
	}{
		"Everything": {"nothing narrows it", "", "", []string{"Kustomization/fleet/apps", "Layer/fleet/base", "Layer/other/base"}, 5, 2},
		"Owner":      {"of an owner, in all of its clusters", "Layer/fleet/base", "", []string{"Layer/fleet/base"}, 3, 1},
		"Cluster":    {"a cluster of that name in another namespace is another one", "", "fleet/shop", []string{"Layer/fleet/base"}, 1, 2},
		"Both":       {"an owner that changes nothing there is not named", "Layer/fleet/base", "other/shop", nil, 0, 1},
		"Nobody":     {"one that does not exist changes nothing", "Layer/fleet/none", "", nil, 0, 0},
	} {
		only := r.Only(tc.owner, tc.cluster)
		var owners []string
		for _, o := range only.Owners {
			owners = append(owners, o.String())
		}
		if !slices.Equal(owners, tc.owners) || only.Summary.Changed != tc.changed || len(only.Problems) != tc.problems {
			t.Errorf("%s: %s\ngot %v, %d changed, %d problems; want %v, %d, %d", name, tc.reason, owners, only.Summary.Changed, len(only.Problems), tc.owners, tc.changed, tc.problems)
		}
	}
	if len(r.Owners[1].Groups[0].Clusters) != 2 {
		t.Error("the report itself was changed")
	}
}
