package sbom

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"
)

// built is a program of another system, and its modules as the go command lists them.
func built(t *testing.T) (file string, modules []Module) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "program")
	run(t, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file, "./testdata/program")
	for line := range strings.Lines(run(t, "go", "version", "-m", file)) {
		if cells := strings.Split(strings.TrimSpace(line), "\t"); cells[0] == "dep" {
			modules = append(modules, Module{Path: cells[1], Version: cells[2], Sum: cells[3]})
		}
	}
	if len(modules) < 3 {
		t.Fatalf("the go command lists %d modules", len(modules))
	}
	return file, modules
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, failure.String())
	}
	return string(out)
}

// about is an image with a program.
func about(p Program) Image {
	return Image{
		Name: "cascade", Version: "v1.2.0", Source: "https://example.org/cascade", Revision: "0123456789abcdef0123456789abcdef01234567",
		Architecture: "arm64", Digest: "sha256:" + strings.Repeat("ab", 32), Created: time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC),
		Path: "/usr/local/bin/cascade", Program: p, Data: []Module{{Path: "example.org/roots", Version: "v0.1.0"}},
	}
}

// TestEveryModule: both documents list the modules that the go command lists, with their
// versions and checksums; the program, Go's own library and the data of the image; and
// nothing else.
func TestEveryModule(t *testing.T) {
	file, modules := built(t)
	p, err := ReadProgram(file)
	if err != nil {
		t.Fatal(err)
	}
	i := about(p)
	want := map[string]string{
		"example.org/roots v0.1.0":                                "",
		"stdlib " + strings.TrimPrefix(runtime.Version(), "go"):   "",
		"github.com/cascade-gitops/cascade/deploy/release v1.2.0": "",
		"cascade v1.2.0": "",
	}
	for _, m := range modules {
		want[m.Path+" "+m.Version] = m.Sum
	}
	for format, list := range map[string]func(*testing.T, Image) map[string]string{"SPDX": spdxModules, "CycloneDX": cdxModules} {
		t.Run(format, func(t *testing.T) {
			if diff := cmp.Diff(want, list(t, i)); diff != "" {
				t.Errorf("what is listed: -want, +got:\n%s", diff)
			}
		})
	}
}

// spdxModules reads the document with the library that others read it with, and checks
// it.
func spdxModules(t *testing.T, i Image) map[string]string {
	t.Helper()
	text, err := i.SPDX()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := spdxjson.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("the document cannot be read: %v", err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Errorf("the document is not valid: %v", err)
	}
	related := map[common.ElementID]bool{}
	for _, r := range doc.Relationships {
		related[r.RefB.ElementRefID] = true
	}
	found := map[string]string{}
	for _, p := range doc.Packages {
		if !related[p.PackageSPDXIdentifier] {
			t.Errorf("nothing leads to %s", p.PackageName)
		}
		if !regexp.MustCompile(`^[A-Za-z0-9.-]+$`).MatchString(string(p.PackageSPDXIdentifier)) {
			t.Errorf("%q is no identifier", p.PackageSPDXIdentifier)
		}
		if e := p.PackageExternalReferences; len(e) != 1 || e[0].RefType != "purl" || !strings.HasPrefix(e[0].Locator, "pkg:") {
			t.Errorf("%s has no purl", p.PackageName)
		}
		_, sum, _ := strings.Cut(p.PackageSourceInfo, "go.sum: ")
		found[p.PackageName+" "+p.PackageVersion] = sum
	}
	return found
}

func cdxModules(t *testing.T, i Image) map[string]string {
	t.Helper()
	text, err := i.CycloneDX()
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatalf("the document cannot be read: %v", err)
	}
	related := map[string]bool{bom.Metadata.Component.BOMRef: true}
	for _, d := range *bom.Dependencies {
		for _, ref := range *d.Dependencies {
			related[ref] = true
		}
	}
	found := map[string]string{}
	for _, c := range append([]cdx.Component{*bom.Metadata.Component}, *bom.Components...) {
		if !related[c.BOMRef] || !strings.HasPrefix(c.PackageURL, "pkg:") {
			t.Errorf("%s has purl %q, and something leads to it: %t", c.Name, c.PackageURL, related[c.BOMRef])
		}
		sum := ""
		if c.Properties != nil {
			for _, p := range *c.Properties {
				if p.Name == "go:sum" {
					sum = p.Value
				}
			}
		}
		found[c.Name+" "+c.Version] = sum
	}
	return found
}

// TestSameDocuments: what is made twice is equal, and of another image it is another.
func TestSameDocuments(t *testing.T) {
	p := Program{Main: Module{Path: "example.org/a"}, Go: "1.26.8", SHA256: strings.Repeat("cd", 32), Modules: []Module{{"example.org/b", "v1.0.0", "h1:x="}}}
	other := about(p)
	other.Digest = "sha256:" + strings.Repeat("ef", 32)
	for format, write := range map[string]func(Image) ([]byte, error){"SPDX": Image.SPDX, "CycloneDX": Image.CycloneDX} {
		one, err1 := write(about(p))
		two, err2 := write(about(p))
		three, err3 := write(other)
		if err1 != nil || err2 != nil || err3 != nil || !bytes.Equal(one, two) || bytes.Equal(one, three) {
			t.Errorf("%s: equal of one image: %t, of two: %t; %v %v %v", format, bytes.Equal(one, two), bytes.Equal(one, three), err1, err2, err3)
		}
	}
}

// TestIdentity: what names a document is its own.
func TestIdentity(t *testing.T) {
	p := Program{Main: Module{Path: "example.org/a"}, Go: "1.26.8", SHA256: strings.Repeat("cd", 32), Modules: []Module{{"example.org/b", "v1.0.0", "h1:x="}}}
	i := about(p)
	text, err := i.CycloneDX()
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		SpecVersion, SerialNumber string
		Metadata                  struct {
			Timestamp string
			Component struct{ Purl, Type string }
		}
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	if bom.SpecVersion != "1.6" || !regexp.MustCompile(`^urn:uuid:[0-9a-f-]{36}$`).MatchString(bom.SerialNumber) || bom.Metadata.Timestamp != "2026-09-01T12:00:00Z" {
		t.Errorf("CycloneDX %q %q of %q", bom.SpecVersion, bom.SerialNumber, bom.Metadata.Timestamp)
	}
	if c := bom.Metadata.Component; c.Type != "container" || c.Purl != "pkg:oci/cascade@sha256:"+strings.Repeat("ab", 32)+"?arch=arm64" {
		t.Errorf("it is about %+v", c)
	}
}

func TestLinked(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		module debug.Module
		want   Module
	}{
		"Plain": {"most modules", debug.Module{Path: "a", Version: "v1", Sum: "h1:a"}, Module{"a", "v1", "h1:a"}},
		"Replaced": {
			"the code is that of the replacement", debug.Module{Path: "a", Version: "v1", Replace: &debug.Module{Path: "b", Version: "v2", Sum: "h1:b"}},
			Module{"b", "v2", "h1:b"},
		},
		"Directory": {
			"a directory has neither version nor checksum", debug.Module{Path: "a", Version: "v1", Replace: &debug.Module{Path: "../a"}},
			Module{"a", "v1", ""},
		},
	} {
		if got := linked(&tc.module); got != tc.want {
			t.Errorf("%s (%s): %+v, want %+v", name, tc.reason, got, tc.want)
		}
	}
}

func TestPurl(t *testing.T) {
	for _, tc := range []struct {
		reason string
		module Module
		want   string
	}{
		{"a path with parts", Module{Path: "k8s.io/api", Version: "v0.37.1"}, "pkg:golang/k8s.io/api@v0.37.1"},
		{"a module of an old kind", Module{Path: "github.com/a/b", Version: "v2.0.0+incompatible"}, "pkg:golang/github.com/a/b@v2.0.0%2Bincompatible"},
		{"Go's own library", Module{Path: "stdlib", Version: "1.26.8"}, "pkg:golang/stdlib@1.26.8"},
	} {
		if got := tc.module.purl(); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
		}
	}
}

func TestRefused(t *testing.T) {
	good := Program{SHA256: "x", Modules: []Module{{Path: "a"}}}
	for name, tc := range map[string]struct {
		reason string
		change func(*Image)
	}{
		"NoDigest":  {"a document about no image in particular", func(i *Image) { i.Digest = "" }},
		"NoVersion": {"a document that no scanner can match", func(i *Image) { i.Version = "" }},
		"NoModules": {"a program of which nothing is known", func(i *Image) { i.Program.Modules = nil }},
	} {
		i := about(good)
		tc.change(&i)
		_, err1 := i.SPDX()
		_, err2 := i.CycloneDX()
		if err1 == nil || err2 == nil {
			t.Errorf("%s: %s is written: %v, %v", name, tc.reason, err1, err2)
		}
	}
	if _, err := ReadProgram("sbom_test.go"); err == nil {
		t.Error("a text was read as a program")
	}
	if ids := []string{string(identifier(Module{Path: "a/b"})), string(identifier(Module{Path: "a-b"}))}; slices.Equal(ids[:1], ids[1:]) {
		t.Errorf("two modules have one identifier: %q", ids)
	}
}
