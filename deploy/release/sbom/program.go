// Package sbom says what a container image of the agent is made of: the program, the
// modules that are linked into it, and the data beside it, as SPDX 2.3 and CycloneDX 1.6.
//
// What is linked is read from the program itself, where Go's linker wrote it. So nothing
// is listed that only tests or other systems need, and nothing is left out. The same
// program and the same description make the same bytes: times and identifiers come from
// the commit and from digests.
//
// A checksum h1 of a module is one of a list of files, not of a file. Neither format has
// a word for it that would not say something else, so it is there as text.
package sbom

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/package-url/packageurl-go"
)

// Module is one that a program is linked from, or that data comes from.
type Module struct {
	Path    string
	Version string
	// Sum is the checksum of go.sum.
	Sum string
}

// purl is the module's name in the form that scanners read.
func (m Module) purl() string {
	namespace, name := path.Split(m.Path)
	return packageurl.NewPackageURL(packageurl.TypeGolang, strings.TrimSuffix(namespace, "/"), name, m.Version, nil, "").ToString()
}

// Program is what is read from a binary.
type Program struct {
	// Main is the module of the program. Its version is not in the binary.
	Main Module
	// Go is the version of the toolchain, without "go". Vulnerabilities of the standard
	// library are known by it.
	Go string
	// Modules are those linked, by path.
	Modules []Module
	// SHA256 of the file, in hexadecimal.
	SHA256 string
}

// ReadProgram reads what a binary says of itself, whatever system it is for.
func ReadProgram(file string) (Program, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return Program{}, fmt.Errorf("cannot read the build information of %s: %w", file, err)
	}
	if info.Main.Path == "" {
		return Program{}, fmt.Errorf("cannot read the build information of %s: it was built without modules", file)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return Program{}, fmt.Errorf("cannot read program: %w", err)
	}
	sum := sha256.Sum256(content)
	p := Program{
		Main: Module{Path: info.Main.Path}, Go: strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go"), SHA256: hex.EncodeToString(sum[:]),
	}
	for _, d := range info.Deps {
		p.Modules = append(p.Modules, linked(d))
	}
	slices.SortFunc(p.Modules, func(a, b Module) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Version, b.Version))
	})
	return p, nil
}

// linked is the module whose code is there: the replacement, if there is one. A directory
// that replaces a module has no version, so that the module keeps its name.
func linked(d *debug.Module) Module {
	if r := d.Replace; r != nil && r.Version != "" {
		d = r
	}
	if d.Replace != nil {
		return Module{Path: d.Path, Version: d.Version}
	}
	return Module{Path: d.Path, Version: d.Version, Sum: d.Sum}
}

// check refuses what would make a document that says too little.
func (i Image) check() error {
	switch {
	case i.Digest == "" || !strings.HasPrefix(i.Digest, "sha256:"):
		return errors.New("cannot describe image: it has no digest")
	case i.Version == "" || i.Source == "" || i.Architecture == "":
		return errors.New("cannot describe image: version, source and architecture must be known")
	case i.Program.SHA256 == "" || len(i.Program.Modules) == 0:
		return errors.New("cannot describe image: its program lists no modules")
	}
	return nil
}
