package inventory

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		id     string
		want   Entry
		err    bool
	}{
		"Core":          {"the core group is empty in Flux's format", "default_podinfo__Service", Entry{"default", "podinfo", "", "Service", "v1"}, false},
		"Group":         {"a group with dots", "apps_web_apps_Deployment", Entry{"apps", "web", "apps", "Deployment", "v1"}, false},
		"ClusterScoped": {"no namespace", "_things.example.com_apiextensions.k8s.io_CustomResourceDefinition", Entry{"", "things.example.com", "apiextensions.k8s.io", "CustomResourceDefinition", "v1"}, false},
		"Colon": {
			"names of RBAC objects may have a colon, which no id may have", "_system__node_rbac.authorization.k8s.io_ClusterRole",
			Entry{"", "system:node", "rbac.authorization.k8s.io", "ClusterRole", "v1"}, false,
		},
		"Empty":      {"an id that says nothing", "", Entry{}, true},
		"TooFew":     {"a lost part must not shift the others: it would name another object", "default_podinfo_Service", Entry{}, true},
		"NoName":     {"a name is what a request is made of", "default___Service", Entry{}, true},
		"NotFlux":    {"a kubectl name is no id", "deployment/web", Entry{}, true},
		"EmptyKinds": {"an object without kind cannot be read back", "default_x__", Entry{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.id, "v1")
			if (err != nil) != tc.err {
				t.Fatalf("%s\nParse(%q): error %v, want error: %t", tc.reason, tc.id, err, tc.err)
			}
			if err != nil {
				return
			}
			if got != tc.want {
				t.Errorf("%s\nParse(%q) = %+v, want %+v", tc.reason, tc.id, got, tc.want)
			}
			if got.ID() != tc.id {
				t.Errorf("%s\nID() = %q, want %q", tc.reason, got.ID(), tc.id)
			}
		})
	}
}

// FuzzParse: ids come from the status of objects, which anybody with the right
// to write status may have written.
func FuzzParse(f *testing.F) {
	for _, id := range []string{"default_podinfo__Service", "_system__node_rbac.authorization.k8s.io_ClusterRole", "____", "_a__b__C", "a_b_c_d_e", ":_:_:_:"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		e, err := Parse(id, "v1")
		if err != nil {
			return
		}
		again, err := Parse(e.ID(), "v1")
		if err != nil {
			t.Fatalf("Parse(%q) is %+v, whose id %q does not parse: %v", id, e, e.ID(), err)
		}
		if again != e {
			t.Fatalf("Parse(%q) is %+v, and by its id %q %+v: an entry must not become another object", id, e, e.ID(), again)
		}
		if Of(e.Object()) != e {
			t.Fatalf("the object of %+v has entry %+v", e, Of(e.Object()))
		}
	})
}

func TestSets(t *testing.T) {
	older := deploy
	older.Version = "v1beta1"
	for name, tc := range map[string]struct {
		reason     string
		a, b       []Entry
		union      []Entry
		difference []Entry
		equal      bool
	}{
		"Empty":     {"nothing at all", nil, nil, []Entry{}, []Entry{}, true},
		"Disjoint":  {"both are kept, sorted by id", []Entry{deploy}, []Entry{configMap}, []Entry{configMap, deploy}, []Entry{deploy}, false},
		"Version":   {"the newer version of one object wins, and it is no difference; but the record has to change", []Entry{older}, []Entry{deploy}, []Entry{deploy}, []Entry{}, false},
		"Duplicate": {"a list that names an object twice names one object", []Entry{deploy, deploy}, []Entry{deploy}, []Entry{deploy}, []Entry{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.union, Union(tc.a, tc.b)); diff != "" {
				t.Errorf("%s\nUnion(): -want, +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.difference, Difference(tc.a, tc.b)); diff != "" {
				t.Errorf("%s\nDifference(): -want, +got:\n%s", tc.reason, diff)
			}
			if got := Equal(tc.a, tc.b); got != tc.equal {
				t.Errorf("%s\nEqual() = %t, want %t", tc.reason, got, tc.equal)
			}
		})
	}
}

func TestMessageNamesFew(t *testing.T) {
	entries, live := configMaps(40)
	p := PlanPrune(Facts{Owned: entries, Live: live})
	message := p.Message("apps -n cascade-system")
	for _, want := range []string{"ConfigMap/many/c039", "and 35 more", "cascade approve prune apps -n cascade-system --hash " + p.Hash} {
		if !strings.Contains(message, want) {
			t.Errorf("Message() = %q, want it to have %q", message, want)
		}
	}
	if strings.Contains(message, "c034") {
		t.Errorf("Message() = %q, want at most five names", message)
	}
}
