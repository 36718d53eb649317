package sbom

import (
	"bytes"
	"fmt"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sumProperty has the checksum of a module in go.sum.
const sumProperty = "go:sum"

// CycloneDX describes the image as CycloneDX 1.6 in JSON.
func (i Image) CycloneDX() ([]byte, error) {
	if err := i.check(); err != nil {
		return nil, err
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = i.serial()
	image, program := i.cdxImage(), i.cdxProgram()
	bom.Metadata = &cdx.Metadata{
		Timestamp: i.time(),
		Tools:     &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: tool}}},
		Component: &image,
		Supplier:  &cdx.OrganizationalEntity{Name: vendor},
	}
	components := []cdx.Component{program}
	inImage, inProgram := []string{program.BOMRef}, []string{}
	for _, m := range i.Data {
		c := cdxModule(m, cdx.ComponentTypeData)
		components = append(components, c)
		inImage = append(inImage, c.BOMRef)
	}
	for _, m := range i.libraries() {
		c := cdxModule(m, cdx.ComponentTypeLibrary)
		components = append(components, c)
		inProgram = append(inProgram, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: image.BOMRef, Dependencies: &inImage}, {Ref: program.BOMRef, Dependencies: &inProgram}}
	var out bytes.Buffer
	encoder := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false)
	if err := encoder.EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return nil, fmt.Errorf("cannot write CycloneDX: %w", err)
	}
	return out.Bytes(), nil
}

func (i Image) cdxImage() cdx.Component {
	return cdx.Component{
		BOMRef: i.purl(), Type: cdx.ComponentTypeContainer, Name: i.Name, Version: i.Version, PackageURL: i.purl(),
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: strings.TrimPrefix(i.Digest, "sha256:")}},
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: license}}},
		ExternalReferences: &[]cdx.ExternalReference{
			{Type: cdx.ERTypeVCS, URL: i.Source, Comment: "commit " + i.Revision},
		},
	}
}

func (i Image) cdxProgram() cdx.Component {
	m := i.application()
	return cdx.Component{
		BOMRef: m.purl(), Type: cdx.ComponentTypeApplication, Name: m.Path, Version: m.Version, PackageURL: m.purl(),
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: i.Program.SHA256}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: license}}},
		Properties: &[]cdx.Property{{Name: "path", Value: i.Path}},
	}
}

func cdxModule(m Module, kind cdx.ComponentType) cdx.Component {
	c := cdx.Component{BOMRef: m.purl(), Type: kind, Name: m.Path, Version: m.Version, PackageURL: m.purl()}
	if m.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: sumProperty, Value: m.Sum}}
	}
	return c
}
