package sbom

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// unknown is what SPDX wants where nothing is claimed.
const unknown = "NOASSERTION"

// SPDX describes the image as SPDX 2.3 in JSON.
func (i Image) SPDX() ([]byte, error) {
	if err := i.check(); err != nil {
		return nil, err
	}
	image, program := i.spdxImage(), i.spdxProgram()
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: fmt.Sprintf("%s %s for linux/%s", i.Name, i.Version, i.Architecture), DocumentNamespace: i.namespace(),
		CreationInfo: &spdx.CreationInfo{
			Created:  i.time(),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: vendor}, {CreatorType: "Tool", Creator: tool}},
		},
		Packages: []*spdx.Package{image, program},
	}
	relate := func(from common.ElementID, how string, to common.ElementID) {
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", string(from)), Relationship: how, RefB: common.MakeDocElementID("", string(to)),
		})
	}
	relate("DOCUMENT", common.TypeRelationshipDescribe, image.PackageSPDXIdentifier)
	relate(image.PackageSPDXIdentifier, common.TypeRelationshipContains, program.PackageSPDXIdentifier)
	for _, m := range i.Data {
		p := spdxModule(m)
		doc.Packages = append(doc.Packages, p)
		relate(image.PackageSPDXIdentifier, common.TypeRelationshipContains, p.PackageSPDXIdentifier)
	}
	for _, m := range i.libraries() {
		p := spdxModule(m)
		doc.Packages = append(doc.Packages, p)
		relate(program.PackageSPDXIdentifier, common.TypeRelationshipDependsOn, p.PackageSPDXIdentifier)
	}
	var out bytes.Buffer
	if err := json.Write(doc, &out, json.Indent(" "), json.EscapeHTML(false)); err != nil {
		return nil, fmt.Errorf("cannot write SPDX: %w", err)
	}
	return out.Bytes(), nil
}

func (i Image) spdxImage() *spdx.Package {
	return &spdx.Package{
		PackageName: i.Name, PackageSPDXIdentifier: "Image", PackageVersion: i.Version, PrimaryPackagePurpose: "CONTAINER",
		PackageSupplier:           &common.Supplier{SupplierType: "Organization", Supplier: vendor},
		PackageDownloadLocation:   unknown,
		PackageChecksums:          []common.Checksum{{Algorithm: common.SHA256, Value: strings.TrimPrefix(i.Digest, "sha256:")}},
		PackageHomePage:           i.Source,
		PackageSourceInfo:         "commit " + i.Revision,
		PackageLicenseConcluded:   unknown,
		PackageLicenseDeclared:    license,
		PackageCopyrightText:      unknown,
		BuiltDate:                 i.time(),
		PackageExternalReferences: purlReference(i.purl()),
	}
}

func (i Image) spdxProgram() *spdx.Package {
	m := i.application()
	return &spdx.Package{
		PackageName: m.Path, PackageSPDXIdentifier: "Program", PackageVersion: m.Version, PackageFileName: i.Path,
		PrimaryPackagePurpose:     "APPLICATION",
		PackageSupplier:           &common.Supplier{SupplierType: "Organization", Supplier: vendor},
		PackageDownloadLocation:   "git+" + i.Source + "@" + i.Revision,
		PackageChecksums:          []common.Checksum{{Algorithm: common.SHA256, Value: i.Program.SHA256}},
		PackageLicenseConcluded:   unknown,
		PackageLicenseDeclared:    license,
		PackageCopyrightText:      unknown,
		PackageExternalReferences: purlReference(m.purl()),
	}
}

func spdxModule(m Module) *spdx.Package {
	p := &spdx.Package{
		PackageName: m.Path, PackageSPDXIdentifier: identifier(m), PackageVersion: m.Version, PrimaryPackagePurpose: "LIBRARY",
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
		PackageExternalReferences: purlReference(m.purl()),
	}
	if m.Sum != "" {
		p.PackageSourceInfo = "checksum of the module in go.sum: " + m.Sum
	}
	return p
}

func purlReference(purl string) []*spdx.PackageExternalReference {
	return []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl}}
}

var notInIdentifiers = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// identifier of a module in a document. Two paths that are alike but for characters
// that an identifier must not have differ by the hash.
func identifier(m Module) common.ElementID {
	sum := sha256.Sum256([]byte(m.Path + "@" + m.Version))
	return common.ElementID("Module-" + notInIdentifiers.ReplaceAllString(m.Path, "-") + "-" + hex.EncodeToString(sum[:4]))
}
