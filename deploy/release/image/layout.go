package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Layout is an image on disk: its index and the tag of it, and what refers to the images
// in it.
type Layout struct {
	Tag       string
	Index     v1.ImageIndex
	Referrers []v1.Image
}

// Write writes an OCI layout anew: the index of the images, with its tag as the reference
// name, and beside it the documents about them. It returns the digest of the index.
func Write(dir, tag string, index v1.ImageIndex, platforms []Platform) (v1.Hash, error) {
	if err := os.RemoveAll(dir); err != nil {
		return v1.Hash{}, fmt.Errorf("cannot remove the old layout %s: %w", dir, err)
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("cannot write layout %s: %w", dir, err)
	}
	named := layout.WithAnnotations(map[string]string{ocispec.AnnotationRefName: tag})
	if err := path.AppendIndex(index, named); err != nil {
		return v1.Hash{}, fmt.Errorf("cannot write index to layout %s: %w", dir, err)
	}
	for _, p := range sorted(platforms) {
		for _, d := range p.Documents {
			artifact, err := refer(p.Image, d)
			if err != nil {
				return v1.Hash{}, fmt.Errorf("cannot make the %s document of the image for %s: %w", d.Type, p.Architecture, err)
			}
			if err := path.AppendImage(artifact); err != nil {
				return v1.Hash{}, fmt.Errorf("cannot write the %s document of the image for %s: %w", d.Type, p.Architecture, err)
			}
		}
	}
	return index.Digest()
}

// Read reads what Write has written.
func Read(dir string) (Layout, error) {
	var l Layout
	path, err := layout.FromPath(dir)
	if err != nil {
		return l, fmt.Errorf("cannot read layout %s: %w; make image writes it", dir, err)
	}
	root, err := path.ImageIndex()
	if err != nil {
		return l, fmt.Errorf("cannot read layout %s: %w", dir, err)
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		return l, fmt.Errorf("cannot read layout %s: %w", dir, err)
	}
	for _, m := range manifest.Manifests {
		var err error
		if m.MediaType.IsIndex() {
			l.Tag = m.Annotations[ocispec.AnnotationRefName]
			l.Index, err = root.ImageIndex(m.Digest)
		} else {
			var img v1.Image
			img, err = root.Image(m.Digest)
			l.Referrers = append(l.Referrers, img)
		}
		if err != nil {
			return l, fmt.Errorf("cannot read %s of layout %s: %w", m.Digest, dir, err)
		}
	}
	if l.Index == nil {
		return l, fmt.Errorf("cannot read layout %s: it has no index; make image writes it", dir)
	}
	return l, nil
}

// Digests of all manifests: of the index first, then of the images in it, then of what
// refers to them.
func (l Layout) Digests() ([]v1.Hash, error) {
	index, err := l.Index.Digest()
	if err != nil {
		return nil, fmt.Errorf("cannot read index: %w", err)
	}
	digests := []v1.Hash{index}
	manifest, err := l.Index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("cannot read index %s: %w", index, err)
	}
	for _, m := range manifest.Manifests {
		digests = append(digests, m.Digest)
	}
	for _, r := range l.Referrers {
		d, err := r.Digest()
		if err != nil {
			return nil, fmt.Errorf("cannot read what refers to an image of index %s: %w", index, err)
		}
		digests = append(digests, d)
	}
	return digests, nil
}

// Documents are what refers to the images, by architecture.
func (l Layout) Documents() (map[string][]Document, error) {
	manifest, err := l.Index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("cannot read index: %w", err)
	}
	architectures := map[v1.Hash]string{}
	for _, m := range manifest.Manifests {
		architectures[m.Digest] = m.Platform.Architecture
	}
	documents := map[string][]Document{}
	for _, r := range l.Referrers {
		m, err1 := r.Manifest()
		d, err2 := document(r)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		if m.Subject == nil || architectures[m.Subject.Digest] == "" {
			return nil, errors.New("cannot read layout: it has a document about nothing in it")
		}
		architecture := architectures[m.Subject.Digest]
		documents[architecture] = append(documents[architecture], d)
	}
	return documents, nil
}

func document(artifact v1.Image) (Document, error) {
	raw, err := artifact.RawManifest()
	if err != nil {
		return Document{}, fmt.Errorf("cannot read document: %w", err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(raw, &m); err != nil || len(m.Layers) != 1 {
		return Document{}, errors.New("cannot read document: its manifest does not have one layer")
	}
	l, err := artifact.LayerByDigest(m.Layers[0].Digest)
	if err != nil {
		return Document{}, fmt.Errorf("cannot read document: %w", err)
	}
	body, err := l.Compressed()
	if err != nil {
		return Document{}, fmt.Errorf("cannot read document: %w", err)
	}
	defer body.Close()
	content, err := io.ReadAll(body)
	if err != nil {
		return Document{}, fmt.Errorf("cannot read document: %w", err)
	}
	return Document{Type: m.ArtifactType, Content: content, Annotations: m.Annotations}, nil
}
