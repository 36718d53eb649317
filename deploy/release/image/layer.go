package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layer packs files. Equal files with an equal time make an equal layer, on every
// machine.
func layer(files []File, at time.Time) (v1.Layer, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, f := range files {
		if err := f.pack(w, at); err != nil {
			return nil, fmt.Errorf("cannot pack /%s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("cannot pack layer: %w", err)
	}
	content := packed.Bytes()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("cannot compress layer: %w", err)
	}
	return l, nil
}

func (f File) pack(w *tar.Writer, at time.Time) error {
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: f.Path, Mode: int64(f.Mode.Perm()), Uid: f.Owner, Gid: f.Owner,
		ModTime: at, Format: tar.FormatUSTAR,
	}
	if f.Mode&os.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	if f.Mode.IsDir() {
		header.Typeflag, header.Name = tar.TypeDir, f.Path+"/"
		return w.WriteHeader(header)
	}
	content, err := f.read()
	if err != nil {
		return err
	}
	header.Size = int64(len(content))
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}
