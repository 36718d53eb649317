// Package archive packs the files of a release. The same files at the same time make the
// same bytes: names are in the order given, owners are root, and no clock is asked.
package archive

import (
	"archive/tar"
	"archive/zip"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
)

// File of an archive.
type File struct {
	Name string
	Mode fs.FileMode
	// Content, unless it is that of the file From.
	Content []byte
	From    string
	// Link is the name of the file in the archive that this one is another name of.
	Link string
}

// Write packs files into a new archive: a zip if its name says so, else a compressed tar.
func Write(file string, files []File, at time.Time) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("cannot create archive: %w", err)
	}
	defer func() {
		err = errors.Join(err, out.Close())
		if err != nil {
			err = fmt.Errorf("cannot write archive %s: %w", file, err)
		}
	}()
	if strings.HasSuffix(file, ".zip") {
		return writeZip(out, files, at)
	}
	return writeTar(out, files, at)
}

func writeTar(out io.Writer, files []File, at time.Time) error {
	compressed, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{Name: f.Name, Mode: int64(f.Mode.Perm()), ModTime: at.UTC(), Format: tar.FormatUSTAR, Typeflag: tar.TypeReg}
		if f.Link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, f.Link
			if err := w.WriteHeader(header); err != nil {
				return err
			}
			continue
		}
		content, err := f.read()
		if err != nil {
			return err
		}
		header.Size = int64(len(content))
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), compressed.Close())
}

func writeZip(out io.Writer, files []File, at time.Time) error {
	w := zip.NewWriter(out)
	w.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) { return flate.NewWriter(out, flate.BestCompression) })
	for _, f := range files {
		if f.Link != "" {
			return fmt.Errorf("cannot pack %s: a zip for Windows has no links", f.Name)
		}
		content, err := f.read()
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: f.Name, Method: zip.Deflate, Modified: at.UTC()}
		header.SetMode(f.Mode)
		part, err := w.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := part.Write(content); err != nil {
			return err
		}
	}
	return w.Close()
}

func (f File) read() ([]byte, error) {
	if f.From == "" {
		return f.Content, nil
	}
	return os.ReadFile(f.From)
}
