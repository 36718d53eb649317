package chart

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/loader/archive"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// Limits of a chart, with all that is packed in it. The sizes are Helm's.
const (
	// DefaultChartMaxBytes bounds a packaged chart.
	DefaultChartMaxBytes = 10 << 20
	// DefaultFileMaxBytes bounds one file of a chart.
	DefaultFileMaxBytes = 5 << 20
	// maxInflated bounds all files of a chart.
	maxInflated = 100 << 20
	// maxFiles bounds how many there are.
	maxFiles = 20_000
	// maxNames bounds what the names of all files add up to, and maxDepth how deep their
	// directories nest.
	maxNames = 8 << 20
	maxDepth = 100
	// maxNesting bounds how deep charts are in charts.
	maxNesting = 10
	// maxNodes bounds the YAML of a chart and the charts in it that is parsed in this process, where
	// a node takes a hundred times its text. The values of large charts have some ten thousand.
	maxNodes = 300_000
)

// budget is what a chart may still take.
type budget struct {
	file, bytes  int64
	files, names int
	nodes        int
}

func newBudget(file int64) *budget {
	return &budget{file: file, bytes: maxInflated, files: maxFiles, names: maxNames, nodes: maxNodes}
}

// name counts the name of a header before it is looked at: one may have a megabyte, and
// takes a few bytes in a compressed archive.
func (b *budget) name(name string) error {
	if b.names -= len(name); b.names < 0 {
		return limitf("the names of the chart's files have more than %d bytes", maxNames)
	}
	if strings.Count(name, "/") > maxDepth {
		return limitf("directories of the chart nest more than %d deep", maxDepth)
	}
	return nil
}

// take counts a file before it is read.
func (b *budget) take(name string, size int64) error {
	if b.files--; b.files < 0 {
		return limitf("the chart has more than %d files", maxFiles)
	}
	if size > b.file {
		return limitf("file %s of the chart has %d bytes, more than %d; raise --helm-chart-file-max-size or shrink it", name, size, b.file)
	}
	if b.bytes -= size; b.bytes < 0 {
		return limitf("the files of the chart have more than %d bytes", maxInflated)
	}
	return nil
}

// parse counts YAML and checks it before it is parsed.
func (b *budget) parse(data []byte) error {
	if b.nodes -= render.Nodes(data); b.nodes < 0 {
		return limitf("with it the metadata and the values of the chart have more than %d nodes", maxNodes)
	}
	return render.Check(data)
}

var (
	drive = regexp.MustCompile(`^[a-zA-Z]:`)
	bom   = []byte("\xEF\xBB\xBF")
)

// inside checks the name of a file in a chart and returns it without what does not
// change where it is.
func inside(name string) (string, error) {
	if strings.HasPrefix(name, "/") || strings.ContainsAny(name, "\\\x00") || drive.MatchString(name) || slices.Contains(strings.Split(name, "/"), "..") {
		return "", fmt.Errorf("the archive has a file with the name %q, which leads elsewhere", name)
	}
	return path.Clean(name), nil
}

// untar returns the files of a packaged chart, without the name of the directory
// that they are in, sorted by name. As in a snapshot, links are left out. Without a
// function that says which files to keep, all are.
func untar(ctx context.Context, packed io.Reader, b *budget, keep func(name string) bool) (folder string, files []*archive.BufferedFile, err error) {
	gz, err := gzip.NewReader(packed)
	if err != nil {
		return "", nil, fmt.Errorf("it is no gzipped archive: %w", err)
	}
	// Headers and padding come to the bytes of files.
	stream := &capped{r: gz, left: b.bytes + int64(b.files)*2048, err: limitf("the chart inflates to more than %d bytes", maxInflated)}
	r := tar.NewReader(stream)
	seen := map[string]bool{}
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", nil, fmt.Errorf("cannot read archive: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return "", nil, err
		}
		if err := b.name(header.Name); err != nil {
			return "", nil, err
		}
		switch {
		case header.FileInfo().IsDir(), header.Typeflag == tar.TypeXGlobalHeader, header.Typeflag == tar.TypeXHeader,
			header.Typeflag == tar.TypeSymlink, header.Typeflag == tar.TypeLink:
			if b.files--; b.files < 0 {
				return "", nil, limitf("the chart has more than %d files", maxFiles)
			}
			continue
		case header.Typeflag != tar.TypeReg:
			return "", nil, fmt.Errorf("the archive has %q, which is no file", header.Name)
		}
		full, err := inside(header.Name)
		if err != nil {
			return "", nil, err
		}
		top, name, below := strings.Cut(full, "/")
		switch {
		case !below:
			return "", nil, fmt.Errorf("the archive has the file %q beside the directory of the chart", full)
		case folder == "":
			folder = top
		case folder != top:
			return "", nil, fmt.Errorf("the archive has the directories %q and %q, and a chart is one", folder, top)
		}
		if seen[name] {
			return "", nil, fmt.Errorf("the archive has the file %q twice", full)
		}
		seen[name] = true
		if err := b.take(name, header.Size); err != nil {
			return "", nil, err
		}
		if keep != nil && !keep(name) {
			continue
		}
		data := make([]byte, header.Size)
		if _, err := io.ReadFull(r, data); err != nil {
			return "", nil, fmt.Errorf("cannot read %s of archive: %w", name, err)
		}
		files = append(files, &archive.BufferedFile{Name: name, Data: bytes.TrimPrefix(data, bom)})
	}
	// What follows the end has to be a whole stream too.
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return "", nil, fmt.Errorf("cannot read archive: %w", err)
	}
	if len(seen) == 0 {
		return "", nil, errors.New("the archive has no files")
	}
	for name := range seen {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return "", nil, fmt.Errorf("the archive has %q as a file and as a directory", dir)
			}
		}
	}
	sortFiles(files)
	return folder, files, nil
}

// identity is true for the files that say who a chart is.
func identity(name string) bool { return name == chartFile || name == requirementsFile }

func sortFiles(files []*archive.BufferedFile) {
	slices.SortFunc(files, func(a, b *archive.BufferedFile) int { return strings.Compare(a.Name, b.Name) })
}
