package image

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Document is about an image, and is found by asking what refers to it.
type Document struct {
	// Type is the media type of the content, and the type of the artifact.
	Type        string
	Content     []byte
	Annotations map[string]string
}

// referrer is an artifact of one document: the guidance of the OCI image specification
// for content without a configuration.
type referrer struct {
	manifest []byte
	content  map[v1.Hash]blob
}

// refer makes an artifact that refers to an image.
func refer(to v1.Image, d Document) (v1.Image, error) {
	subject, err := partial.Descriptor(to)
	if err != nil {
		return nil, fmt.Errorf("cannot describe the image: %w", err)
	}
	config := blobOf(types.MediaType(ocispec.DescriptorEmptyJSON.MediaType), ocispec.DescriptorEmptyJSON.Data)
	document := blobOf(types.MediaType(d.Type), d.Content)
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: d.Type,
		Config: config.describe(), Layers: []v1.Descriptor{document.describe()},
		Subject:     &v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		Annotations: d.Annotations,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot write manifest: %w", err)
	}
	return partial.CompressedToImage(referrer{manifest, map[v1.Hash]blob{config.digest: config, document.digest: document}})
}

func (r referrer) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (r referrer) RawManifest() ([]byte, error)        { return r.manifest, nil }
func (r referrer) RawConfigFile() ([]byte, error)      { return ocispec.DescriptorEmptyJSON.Data, nil }

func (r referrer) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	b, ok := r.content[h]
	if !ok {
		return nil, fmt.Errorf("cannot find %s: the artifact does not have it", h)
	}
	return b, nil
}

// blob is content that is kept as it is.
type blob struct {
	digest    v1.Hash
	mediaType types.MediaType
	content   []byte
}

func blobOf(mediaType types.MediaType, content []byte) blob {
	digest, _, _ := v1.SHA256(bytes.NewReader(content)) // a slice is always read
	return blob{digest, mediaType, content}
}

func (b blob) describe() v1.Descriptor {
	return v1.Descriptor{MediaType: b.mediaType, Digest: b.digest, Size: int64(len(b.content))}
}

func (b blob) Digest() (v1.Hash, error)            { return b.digest, nil }
func (b blob) Size() (int64, error)                { return int64(len(b.content)), nil }
func (b blob) MediaType() (types.MediaType, error) { return b.mediaType, nil }
func (b blob) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(b.content)), nil
}
func (b blob) Uncompressed() (io.ReadCloser, error) { return b.Compressed() }
