package subtests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const source = `package p

import "testing"

const constant = "Constant"

type fixture struct{}

type row struct {
	name string
	run  func(*fixture, *testing.T)
}

var table = []row{{"OfThePackage", (*fixture).method}}

func TestParts(t *testing.T) {
	f := &fixture{}
	t.Run("Literal", func(t *testing.T) { t.Run(constant, func(t *testing.T) {}) })
	t.Run("Method", f.lockdown)
	for _, part := range []struct {
		name string
		run  func(*fixture, *testing.T)
	}{
		{"First", (*fixture).method},
		{name: "Keyed", run: (*fixture).none},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(f, t) }) {
			return
		}
	}
	for _, r := range table {
		t.Run("Table"+r.name, func(t *testing.T) { r.run(f, t) })
	}
	for name := range map[string]int{"Key": 1} {
		t.Run(name, none)
	}
	local := []struct{ name string }{{"Local"}}
	for _, r := range local {
		for _, s := range local {
			t.Run(r.name+s.name, none)
		}
	}
	helper(t)
	steps(t, step{"Step", func(t *testing.T) {}})
	_ = "NotAPart"
	t.Run(computed(), none)
	other("Other", none)
}

type step struct {
	name string
	run  func(*testing.T)
}

func steps(t *testing.T, all ...step) {
	for _, s := range all {
		t.Run(s.name, s.run)
	}
}

func helper(t *testing.T) { t.Run("OfAHelper", none) }

func none(t *testing.T) {}

func computed() string { return "Computed" }

func other(name string, f func(*testing.T)) {}

func (f *fixture) method(t *testing.T) { t.Run("Below", func(t *testing.T) {}) }

func (f *fixture) none(t *testing.T) {}

func (f *fixture) lockdown(t *testing.T) { t.Run("Refused", func(t *testing.T) {}) }
`

func TestNames(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p_test.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := Parse(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"TestParts", "TestParts/First", "TestParts/First/Below", "TestParts/Key", "TestParts/Keyed", "TestParts/Literal", "TestParts/Literal/Constant",
		"TestParts/LocalLocal", "TestParts/Method", "TestParts/Method/Refused", "TestParts/OfAHelper",
		"TestParts/TableOfThePackage", "TestParts/TableOfThePackage/Below",
	}
	if diff := cmp.Diff(want, p.Names("TestParts")); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"TestParts"}, p.Tests()); diff != "" {
		t.Errorf("tests: -want, +got:\n%s", diff)
	}
	if got := p.Names("TestNobody"); got != nil {
		t.Errorf("a test that is not there has %q", got)
	}
}
