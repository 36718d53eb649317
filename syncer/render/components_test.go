package render

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// oneFile is a source with one file.
type oneFile string

func (f oneFile) ReadFile(name string) ([]byte, error) {
	if name != "components.yaml" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return []byte(f), nil
}

const values = `apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: b}
data:
  value: '`

func TestComponents(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, text string
		variables    map[string]string
		want         string
		uses         []string
		missing      []string
	}{
		"Set":            {"a value is put into the text", "${A}", map[string]string{"A": "x"}, "x", []string{"A"}, nil},
		"Spaces":         {"clusterctl takes blanks around a name", "${ A }${A }${ A}", map[string]string{"A": "x"}, "xxx", []string{"A"}, nil},
		"Unset":          {"a variable without a default is needed", "${A}${B}${A}", map[string]string{"B": ""}, "", []string{"A", "B"}, []string{"A"}},
		"Empty":          {"set to nothing is set", "${A}", map[string]string{"A": ""}, "", []string{"A"}, nil},
		"Default":        {"a default need not be overridden", "${A:=y}-${B:=y}", map[string]string{"B": "x"}, "y-x", []string{"A", "B"}, nil},
		"EmptyDefault":   {"a default of nothing is written with quotes", `${A:=""}`, nil, `""`, []string{"A"}, nil},
		"NoDefault":      {"and without them is none, as for clusterctl", "${A:=}", nil, "", []string{"A"}, []string{"A"}},
		"InADefault":     {"what is inside of a default is not needed", "${A:=${B}}", nil, "", []string{"A", "B"}, nil},
		"Prefix":         {"an operator on a value that is not set makes nothing of it", "${ROLE/#arn/role: arn}", nil, "", []string{"ROLE"}, nil},
		"PrefixReplaced": {"as the provider for AWS does", "${ROLE/#arn/role: arn}", map[string]string{"ROLE": "arn:aws"}, "role: arn:aws", []string{"ROLE"}, nil},
		"NotOurs":        {"what is for a shell or for Kubernetes stays", "^[a-z]+$ $(POD) $HOME", nil, "^[a-z]+$ $(POD) $HOME", nil, nil},
		"OtherNames":     {"a value with a name that no variable has harms nobody", "x", map[string]string{"label_a.b/c": "y"}, "x", nil, nil},
		"Newline":        {"a value is one line, as in a Kustomization", "${A}", map[string]string{"A": "x\ny"}, "xy", []string{"A"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := LoadComponents(oneFile(values+tc.text+"'\n"), "components.yaml")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Join(tc.uses, " "), strings.Join(c.Uses(), " ")); diff != "" {
				t.Errorf("%s\nUses(): -want, +got:\n%s", tc.reason, diff)
			}
			objects, err := c.Objects(tc.variables)
			if len(tc.missing) > 0 {
				if err == nil || !strings.HasSuffix(err.Error(), ": "+strings.Join(tc.missing, ", ")) {
					t.Errorf("%s\nObjects() = %v, want an error about %v", tc.reason, err, tc.missing)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s\nObjects(): %v", tc.reason, err)
			}
			got, _, _ := unstructured.NestedString(objects[0].Object, "data", "value")
			if got != tc.want {
				t.Errorf("%s\nObjects() has %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestComponentsFail(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, file, text, want string
		lasting                  bool
	}{
		"Absent":   {"a file that is not there will not be there the next time", "other.yaml", "", "no file", true},
		"Large":    {"a file of this size is none of a provider's", "components.yaml", strings.Repeat("#", MaxComponents+1), "limit", true},
		"Nested":   {"recursion of the parser ends somewhere", "components.yaml", strings.Repeat("${A:=", 200), "nested", true},
		"Dangling": {"a variable without an end", "components.yaml", "${A", "cannot find the variables", true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := LoadComponents(oneFile(tc.text), tc.file)
			var again *Error
			if err == nil || !strings.Contains(err.Error(), tc.want) || errors.As(err, &again) != tc.lasting {
				t.Errorf("%s\nLoadComponents() = %v, want %q, lasting %v", tc.reason, err, tc.want, tc.lasting)
			}
		})
	}
}

// FuzzComponents: no text and no value of a variable ends the process.
func FuzzComponents(f *testing.F) {
	f.Add(values+"${A}'\n", "x")
	f.Add("${A/#arn/role: arn}", "arn:x")
	f.Add("${A:=${B}}", "a: &a [*a]")
	f.Add("data: {${ A }: 1}", "{")
	f.Fuzz(func(t *testing.T, text, value string) {
		c, err := LoadComponents(oneFile(text), "components.yaml")
		if err != nil {
			return
		}
		if _, err := c.Objects(map[string]string{"A": value}); err != nil && len(err.Error()) > 2*maxError {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
