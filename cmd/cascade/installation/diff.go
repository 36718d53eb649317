package installation

import (
	"fmt"
	"io"
	"regexp"

	"github.com/pmezard/go-difflib/difflib"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/inventory"
)

// Differs writes the differences of a plan as unified diffs, and reports whether there are
// any. Values of Secrets, and passwords in URLs, are not shown.
func Differs(out io.Writer, steps []Step) (bool, error) {
	some := false
	for _, s := range steps {
		if s.Action == Leave || s.Action == Keep {
			continue
		}
		before, err := text(s.Live)
		if err != nil {
			return some, err
		}
		after, err := text(s.Then)
		if err != nil {
			return some, err
		}
		if s.Live != nil && s.Then != nil && before == after {
			before, after = before+"# as it is\n", after+"# other values, which are not shown\n"
		}
		some = true
		name := inventory.Of(s.Object()).String()
		diff := difflib.UnifiedDiff{A: lines(before), B: lines(after), FromFile: "live " + name, ToFile: "installed " + name, Context: 3}
		if s.Live == nil {
			diff.FromFile = "/dev/null"
		}
		if s.Then == nil {
			diff.ToFile = "/dev/null"
		}
		if err := difflib.WriteUnifiedDiff(out, diff); err != nil {
			return some, fmt.Errorf("cannot write differences: %w", err)
		}
	}
	return some, nil
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	split := difflib.SplitLines(text)
	return split[:len(split)-1] // behind the last line feed is nothing
}

// password is what stands before a host in a URL.
var password = regexp.MustCompile(`(://[^/\s:@]*:)[^/\s@]+@`)

// text is an object as a person reads it.
func text(u *unstructured.Unstructured) (string, error) {
	if u == nil {
		return "", nil
	}
	u = stripped(u)
	if u.GetKind() == "Secret" {
		for _, field := range []string{"data", "stringData"} {
			values, _, _ := unstructured.NestedMap(u.Object, field)
			for key := range values {
				values[key] = "***"
			}
			if values != nil {
				u.Object[field] = values
			}
		}
	}
	data, err := yaml.Marshal(u.Object)
	if err != nil {
		return "", fmt.Errorf("cannot print %s: %w", inventory.Of(u), err)
	}
	return password.ReplaceAllString(string(data), "$1***@"), nil
}
