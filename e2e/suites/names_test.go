package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNames(t *testing.T) {
	for name, text := range map[string]string{
		"List":    "TestA\nTestB\nExampleC\nok  \texample.com/p\t0.1s\n",
		"Verbose": "=== RUN   TestA\n=== RUN   TestB\n    x_test.go:1: TestX\n--- PASS: TestB (0.1s)\n=== RUN   ExampleC\nok  \texample.com/p\t0.1s\n",
		"JSON": `{"Action":"run","Package":"example.com/p","Test":"TestA"}
{"Action":"output","Package":"example.com/p","Test":"TestX"}
{"Action":"run","Package":"example.com/p","Test":"TestB"}
{"Action":"run","Package":"example.com/p","Test":"ExampleC"}
`,
		"Written": "example.com/p TestA pass 0.1\nexample.com/p TestB fail 10.0\nexample.com/p ExampleC skip 0.0\n",
	} {
		want := map[test]bool{{"example.com/p", "TestA"}: true, {"example.com/p", "TestB"}: true, {"example.com/p", "ExampleC"}: true}
		if diff := cmp.Diff(want, names(text), cmp.AllowUnexported(test{})); diff != "" {
			t.Errorf("%s: -want, +got:\n%s", name, diff)
		}
	}
}

func TestCompare(t *testing.T) {
	old := map[string]int{"TestA": 2, "TestB": 1, "TestB/Part": 1, "TestGone": 1}
	now := map[string]int{"TestA": 1, "TestC": 1, "TestC/Part": 1, "TestNew": 1}
	missing, added := compare(old, now, map[string]string{"TestB": "TestC"})
	if diff := cmp.Diff([]string{"TestA", "TestGone"}, missing); diff != "" {
		t.Errorf("missing: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"TestNew"}, added); diff != "" {
		t.Errorf("added: -want, +got:\n%s", diff)
	}
}
