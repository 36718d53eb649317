package render

import (
	"strings"
	"testing"
)

// TestRenderMasksSensitiveValues: a value that breaks the YAML it is put into is
// quoted by the parser.
func TestRenderMasksSensitiveValues(t *testing.T) {
	files := tree{"set/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: '${secret}'}\n"}
	value := "hunter22': [broken"
	_, err := rendered(t.Context(), files, Build{Path: "set", Variables: map[string]string{"secret": value}, Sensitive: []string{value}})
	if err == nil {
		t.Fatal("the value did not break anything; the test shows nothing")
	}
	if strings.Contains(err.Error(), "hunter22") {
		t.Errorf("the error quotes the value: %v", err)
	}
}
