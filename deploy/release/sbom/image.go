package sbom

import (
	"time"

	"github.com/google/uuid"
	"github.com/package-url/packageurl-go"
)

// Media types of the documents.
const (
	SPDXType      = "application/spdx+json"
	CycloneDXType = "application/vnd.cyclonedx+json"
)

// Image is what the documents are about.
type Image struct {
	// Name and Version of the product.
	Name    string
	Version string
	// Source is the address of its repository.
	Source       string
	Revision     string
	Architecture string
	// Digest of the image's manifest.
	Digest  string
	Created time.Time
	// Path of the program in the image.
	Path    string
	Program Program
	// Data are modules of which files were taken, and nothing was linked.
	Data []Module
}

// tool is who made the documents.
const tool = "cascade-release"

// vendor publishes the image.
const vendor = "The Cascade authors"

// license of the product, by its SPDX name.
const license = "Apache-2.0"

func (i Image) purl() string {
	return packageurl.NewPackageURL(packageurl.TypeOCI, "", i.Name, i.Digest,
		packageurl.Qualifiers{{Key: "arch", Value: i.Architecture}}, "").ToString()
}

// application is the program as a module of the version that is released.
func (i Image) application() Module {
	return Module{Path: i.Program.Main.Path, Version: i.Version}
}

// standardLibrary is Go's, under the name by which scanners know it.
func (i Image) standardLibrary() Module {
	return Module{Path: "stdlib", Version: i.Program.Go}
}

// libraries are all that is linked.
func (i Image) libraries() []Module {
	return append([]Module{i.standardLibrary()}, i.Program.Modules...)
}

// namespace of the documents about this image, and of no other.
func (i Image) namespace() string {
	return i.Source + "/sbom/" + i.Version + "/" + i.Digest
}

// serial is a number that only these documents have.
func (i Image) serial() string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(i.namespace())).URN()
}

func (i Image) time() string { return i.Created.UTC().Format(time.RFC3339) }
