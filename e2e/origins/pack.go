package origins

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"path"
	"slices"
)

// Chart is a chart's source: its name, its version, and its files besides
// Chart.yaml by their path in it.
type Chart struct {
	Name    string
	Version string
	// AppVersion is in Chart.yaml if it is not empty.
	AppVersion string
	// More are further lines of Chart.yaml.
	More  string
	Files map[string]string
}

// Metadata is the chart's Chart.yaml.
func (c Chart) Metadata() string {
	text := fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\n", c.Name, c.Version)
	if c.AppVersion != "" {
		text += fmt.Sprintf("appVersion: %q\n", c.AppVersion)
	}
	return text + c.More
}

// Tree are the chart's files, Chart.yaml among them.
func (c Chart) Tree() map[string]string {
	files := maps.Clone(c.Files)
	if files == nil {
		files = map[string]string{}
	}
	files["Chart.yaml"] = c.Metadata()
	return files
}

// Pack makes the archive that a repository serves. The file names are not
// checked, so that an archive may be hostile.
func (c Chart) Pack() []byte {
	files := map[string]string{}
	for name, text := range c.Tree() {
		files[path.Join(c.Name, name)] = text
	}
	return Tarball(files)
}

// Tarball packs files as a .tar.gz.
func Tarball(files map[string]string) []byte {
	var headers []Entry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		headers = append(headers, Entry{Header: tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}, Content: []byte(files[name])})
	}
	return TarballOf(headers...)
}

// Entry is one of an archive. The size is filled in where it is 0.
type Entry struct {
	tar.Header
	Content []byte
}

// TarballOf packs entries as they are, in their order.
func TarballOf(entries ...Entry) []byte {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	for _, e := range entries {
		if e.Size == 0 {
			e.Size = int64(len(e.Content))
		}
		// To memory neither fails; an entry that is shorter than its header says
		// is what a hostile archive has.
		_ = w.WriteHeader(&e.Header)
		_, _ = w.Write(e.Content)
	}
	_ = w.Close()
	_ = zipped.Close()
	return out.Bytes()
}
