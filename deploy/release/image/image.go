// Package image makes the container image of the agent, as an OCI layout on disk, and
// pushes it. No container engine takes part.
//
// It keeps true: the same programs, the same description and the same version of this
// package make the same bytes, and so the same digests, wherever and whenever it runs.
// Nothing that a clock, a machine, a path or the order of a map says is in the result.
//
// What is pushed is what lies on disk: Push never makes anything. It can be repeated;
// what the registry has is not sent again. A push that fails half-way leaves content
// without a name behind, and the tag where it was: the index, which alone is named, goes
// last.
package image

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Description says what an image is of.
type Description struct {
	Version  string
	Revision string
	// Source is the address of the repository.
	Source string
	// Created is the time of the commit.
	Created time.Time
}

// labels of the image, and annotations of its manifests.
func (d Description) labels() map[string]string {
	return map[string]string{
		ocispec.AnnotationTitle:         "cascade",
		ocispec.AnnotationDescription:   "Runs a fleet of Kubernetes clusters from Git, tier by tier",
		ocispec.AnnotationURL:           d.Source,
		ocispec.AnnotationSource:        d.Source,
		ocispec.AnnotationDocumentation: d.Source + "/blob/" + d.Revision + "/README.md",
		ocispec.AnnotationVersion:       d.Version,
		ocispec.AnnotationRevision:      d.Revision,
		ocispec.AnnotationLicenses:      "Apache-2.0",
		ocispec.AnnotationVendor:        "The Cascade authors",
		ocispec.AnnotationCreated:       d.Created.UTC().Format(time.RFC3339),
	}
}

// Annotations of a document about an image.
func (d Description) Annotations(description string) map[string]string {
	return map[string]string{
		ocispec.AnnotationDescription: description,
		ocispec.AnnotationVersion:     d.Version,
		ocispec.AnnotationCreated:     d.Created.UTC().Format(time.RFC3339),
	}
}

// config of the image for one architecture.
func (d Description) config(architecture string) *v1.ConfigFile {
	created := v1.Time{Time: d.Created.UTC()}
	return &v1.ConfigFile{
		Architecture: architecture, OS: "linux", Created: created,
		Config: v1.Config{
			User:       User,
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: []string{Program},
			WorkingDir: "/",
			Labels:     d.labels(),
		},
		RootFS: v1.RootFS{Type: "layers"},
	}
}

// Platform is the image for one architecture, and what refers to it.
type Platform struct {
	Architecture string
	Image        v1.Image
	Documents    []Document
}

// Build makes the image for one architecture from its program.
func (d Description) Build(architecture, binary string) (Platform, error) {
	// The base has no time of its own: it is the same layer in each release.
	base, err1 := layer(Base(), time.Unix(0, 0).UTC())
	program, err2 := layer([]File{agent(binary)}, d.Created.UTC())
	if err := errors.Join(err1, err2); err != nil {
		return Platform{}, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, d.config(architecture))
	if err != nil {
		return Platform{}, fmt.Errorf("cannot configure the image for %s: %w", architecture, err)
	}
	created := v1.Time{Time: d.Created.UTC()}
	img, err = mutate.Append(img,
		mutate.Addendum{Layer: base, History: v1.History{Created: created, CreatedBy: "accounts, roots of trust, /tmp"}},
		mutate.Addendum{Layer: program, History: v1.History{Created: created, CreatedBy: "cascade " + d.Version}})
	if err != nil {
		return Platform{}, fmt.Errorf("cannot assemble the image for %s: %w", architecture, err)
	}
	img = mutate.Annotations(img, d.labels()).(v1.Image)
	return Platform{Architecture: architecture, Image: plain{img}}, nil
}

// Index joins the images of all architectures.
func (d Description) Index(platforms []Platform) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range sorted(platforms) {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: p.Image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.Architecture}},
		})
	}
	return mutate.Annotations(index, maps.Clone(d.labels())).(v1.ImageIndex)
}

func sorted(platforms []Platform) []Platform {
	return slices.SortedFunc(slices.Values(platforms), func(a, b Platform) int { return strings.Compare(a.Architecture, b.Architecture) })
}

// plain is an image that is no artifact of another type: the library would call it one
// of the type of its configuration, and some registries show that.
type plain struct{ v1.Image }

// ArtifactType is asked for by the library.
func (plain) ArtifactType() (string, error) { return "", nil }
