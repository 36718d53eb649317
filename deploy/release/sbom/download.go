package sbom

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
	"github.com/package-url/packageurl-go"
	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// Download is a program that is published as a file, with other programs packed within it.
type Download struct {
	// Name and Version of the program.
	Name    string
	Version string
	// Source is the address of its repository.
	Source       string
	Revision     string
	Architecture string
	Created      time.Time
	// Package of the program, below its module.
	Package string
	Program Program
	// Within are the programs that are packed.
	Within []Within
}

// Within is a program within another one, of any module.
type Within struct {
	Name string
	// Version of its main module, which is not in the binary.
	Version string
	Program Program
}

// purl of the program: that of its module, with the package in it.
func (d Download) purl() string {
	namespace, name := splitPath(d.Program.Main.Path)
	return packageurl.NewPackageURL(packageurl.TypeGolang, namespace, name, d.Version, nil, d.Package).ToString()
}

// purl of a program within: two of one module differ by their names.
func (w Within) purl() string {
	namespace, name := splitPath(w.Program.Main.Path)
	return packageurl.NewPackageURL(packageurl.TypeGolang, namespace, name, w.Version, packageurl.Qualifiers{{Key: "file_name", Value: w.Name}}, "").ToString()
}

func splitPath(modulePath string) (namespace, name string) {
	at := strings.LastIndexByte(modulePath, '/')
	if at < 0 {
		return "", modulePath
	}
	return modulePath[:at], modulePath[at+1:]
}

// namespace of the documents about this file, and of no other.
func (d Download) namespace() string {
	return d.Source + "/sbom/" + d.Version + "/sha256:" + d.Program.SHA256
}

func (d Download) time() string { return d.Created.UTC().Format(time.RFC3339) }

// check refuses what would make a document that says too little.
func (d Download) check() error {
	if d.Name == "" || d.Version == "" || d.Source == "" || d.Architecture == "" {
		return errors.New("cannot describe download: name, version, source and architecture must be known")
	}
	if len(d.Within) == 0 {
		return fmt.Errorf("cannot describe %s: it has no programs within", d.Name)
	}
	for _, w := range append(slices.Clone(d.Within), Within{d.Name, d.Version, d.Program}) {
		if w.Version == "" || w.Program.SHA256 == "" || len(w.Program.Modules) == 0 {
			return fmt.Errorf("cannot describe %s: it has no version, or lists no modules", w.Name)
		}
	}
	return nil
}

// libraries are all that is linked into a program.
func libraries(p Program) []Module {
	return append([]Module{{Path: "stdlib", Version: p.Go}}, p.Modules...)
}

// SPDX describes the file as SPDX 2.3 in JSON.
func (d Download) SPDX() ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: fmt.Sprintf("%s %s for linux/%s", d.Name, d.Version, d.Architecture), DocumentNamespace: d.namespace(),
		CreationInfo: &spdx.CreationInfo{
			Created:  d.time(),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: vendor}, {CreatorType: "Tool", Creator: tool}},
		},
	}
	listed := map[common.ElementID]bool{}
	list := func(p *spdx.Package) common.ElementID {
		if !listed[p.PackageSPDXIdentifier] {
			listed[p.PackageSPDXIdentifier] = true
			doc.Packages = append(doc.Packages, p)
		}
		return p.PackageSPDXIdentifier
	}
	relate := func(from common.ElementID, how string, to common.ElementID) {
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", string(from)), Relationship: how, RefB: common.MakeDocElementID("", string(to)),
		})
	}
	program := list(&spdx.Package{
		PackageName: d.Name, PackageSPDXIdentifier: "Program", PackageVersion: d.Version, PackageFileName: d.Name,
		PrimaryPackagePurpose:     "APPLICATION",
		PackageSupplier:           &common.Supplier{SupplierType: "Organization", Supplier: vendor},
		PackageDownloadLocation:   "git+" + d.Source + "@" + d.Revision,
		PackageChecksums:          []common.Checksum{{Algorithm: common.SHA256, Value: d.Program.SHA256}},
		PackageHomePage:           d.Source,
		PackageSourceInfo:         "commit " + d.Revision,
		PackageLicenseConcluded:   unknown,
		PackageLicenseDeclared:    license,
		PackageCopyrightText:      unknown,
		BuiltDate:                 d.time(),
		PackageExternalReferences: purlReference(d.purl()),
	})
	relate("DOCUMENT", common.TypeRelationshipDescribe, program)
	depend := func(on common.ElementID, p Program) {
		for _, m := range libraries(p) {
			relate(on, common.TypeRelationshipDependsOn, list(spdxModule(m)))
		}
	}
	depend(program, d.Program)
	for _, w := range d.Within {
		within := list(&spdx.Package{
			PackageName: w.Program.Main.Path, PackageSPDXIdentifier: common.ElementID("Within-" + notInIdentifiers.ReplaceAllString(w.Name, "-")), PackageVersion: w.Version,
			PackageFileName: w.Name, PrimaryPackagePurpose: "APPLICATION", PackageDownloadLocation: unknown,
			PackageChecksums:        []common.Checksum{{Algorithm: common.SHA256, Value: w.Program.SHA256}},
			PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
			PackageExternalReferences: purlReference(w.purl()),
		})
		relate(program, common.TypeRelationshipContains, within)
		depend(within, w.Program)
	}
	var out bytes.Buffer
	if err := json.Write(doc, &out, json.Indent(" "), json.EscapeHTML(false)); err != nil {
		return nil, fmt.Errorf("cannot write SPDX: %w", err)
	}
	return out.Bytes(), nil
}

// CycloneDX describes the file as CycloneDX 1.6 in JSON.
func (d Download) CycloneDX() ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, []byte(d.namespace())).URN()
	program := cdx.Component{
		BOMRef: d.purl(), Type: cdx.ComponentTypeApplication, Name: d.Name, Version: d.Version, PackageURL: d.purl(),
		Hashes:             &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: d.Program.SHA256}},
		Licenses:           &cdx.Licenses{{License: &cdx.License{ID: license}}},
		ExternalReferences: &[]cdx.ExternalReference{{Type: cdx.ERTypeVCS, URL: d.Source, Comment: "commit " + d.Revision}},
	}
	bom.Metadata = &cdx.Metadata{
		Timestamp: d.time(),
		Tools:     &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: tool}}},
		Component: &program,
		Supplier:  &cdx.OrganizationalEntity{Name: vendor},
	}
	components, dependencies, listed := []cdx.Component{}, []cdx.Dependency{}, map[string]bool{}
	list := func(c cdx.Component) string {
		if !listed[c.BOMRef] {
			listed[c.BOMRef] = true
			components = append(components, c)
		}
		return c.BOMRef
	}
	modules := func(p Program) []string {
		var refs []string
		for _, m := range libraries(p) {
			refs = append(refs, list(cdxModule(m, cdx.ComponentTypeLibrary)))
		}
		return refs
	}
	in := modules(d.Program)
	for _, w := range d.Within {
		within := list(cdx.Component{
			BOMRef: w.purl(), Type: cdx.ComponentTypeApplication, Name: w.Program.Main.Path, Version: w.Version, PackageURL: w.purl(),
			Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: w.Program.SHA256}},
			Properties: &[]cdx.Property{{Name: "file", Value: w.Name}},
		})
		in = append(in, within)
		refs := modules(w.Program)
		dependencies = append(dependencies, cdx.Dependency{Ref: within, Dependencies: &refs})
	}
	dependencies = append([]cdx.Dependency{{Ref: program.BOMRef, Dependencies: &in}}, dependencies...)
	bom.Components, bom.Dependencies = &components, &dependencies
	var out bytes.Buffer
	encoder := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false)
	if err := encoder.EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return nil, fmt.Errorf("cannot write CycloneDX: %w", err)
	}
	return out.Bytes(), nil
}
