package chart

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Masterminds/semver/v3"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	repo "helm.sh/helm/v4/pkg/repo/v1"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// Index is what a repository has, at one revision. It is immutable and safe for
// concurrent use. Only what it takes to find a chart is in memory.
type Index struct {
	// Revision is the digest of the index as the server has it, e.g. sha256:<hex>.
	Revision string
	// Digest and Size are those of the artifact.
	Digest string
	Size   int64

	// file is the artifact. It has no name, and goes with the index.
	file *os.File

	// charts is nil while there is no room for it.
	charts  atomic.Pointer[map[string][]entry]
	weight  int64
	reading sync.Mutex
}

// entry is a version of a chart.
type entry struct {
	version string
	// url as it is in the index, empty if there is none.
	url     string
	digest  string
	created time.Time
}

// File is the name of the artifact, as Flux has it.
func (i *Index) File() string { return "index-" + strings.TrimPrefix(i.Revision, "sha256:") + ".yaml" }

// Artifact returns the index in JSON, as Flux stores it: each call another reader of
// the same bytes, which is not closed.
func (i *Index) Artifact() *io.SectionReader { return io.NewSectionReader(i.file, 0, i.Size) }

// versions of a chart, the newest first; false if the index does not have it.
func (i *Index) versions(ctx context.Context, name string) ([]entry, bool, error) {
	charts := i.charts.Load()
	if charts == nil {
		i.reading.Lock()
		defer i.reading.Unlock()
		if charts = i.charts.Load(); charts == nil {
			b := &builder{ctx: ctx, charts: map[string]*listed{}}
			if _, err := readJSON(i.Artifact(), b); err != nil {
				return nil, false, fmt.Errorf("cannot read index %s again: %w", i.Revision, err)
			}
			read, _ := b.compact()
			charts = &read
			i.charts.Store(charts)
		}
	}
	versions, ok := (*charts)[name]
	return versions, ok, nil
}

// resident is how much of the index is in memory, in bytes.
func (i *Index) resident() int64 {
	if i.charts.Load() == nil {
		return 0
	}
	return i.weight
}

// builder puts an index together from its pieces.
type builder struct {
	ctx    context.Context
	charts map[string]*listed
	now    *listed
	count  int
	// spooled has each version as it will be in the artifact; nil if no artifact is
	// written.
	spooled *bufio.Writer
	at      int64
}

// listed are the versions of one chart.
type listed struct {
	null     bool
	versions []version
}

type version struct {
	entry
	parsed *semver.Version
	// at and size are where the version is in the spool.
	at, size int64
}

func (b *builder) begin(name string, null bool) error {
	b.now = &listed{null: null}
	b.charts[name] = b.now
	return b.counted()
}

func (b *builder) counted() error {
	if b.count++; b.count > maxVersions {
		return limitf("the index has more than %d versions of charts", maxVersions)
	}
	return b.ctx.Err()
}

// version takes what Helm takes: an entry that is not valid is as if it were not
// there.
func (b *builder) version(v *repo.ChartVersion) error {
	if err := b.counted(); err != nil || v == nil {
		return err
	}
	if v.Metadata == nil {
		v.Metadata = &helmchart.Metadata{}
	}
	if v.APIVersion == "" {
		v.APIVersion = helmchart.APIVersionV1
	}
	if err := v.Validate(); err != nil && !skippable(err) {
		return nil
	}
	parsed, err := semver.NewVersion(v.Version)
	if err != nil {
		return nil
	}
	added := version{entry: entry{version: v.Version, digest: v.Digest, created: v.Created}, parsed: parsed}
	if len(v.URLs) > 0 {
		added.url = v.URLs[0]
	}
	if b.spooled != nil {
		data, err := json.MarshalIndent(v, "      ", "  ")
		if err != nil {
			return err
		}
		// It has to be read again in pieces.
		if len(data) > 2*maxPiece {
			return limitf("version %q of chart %q has more than %d bytes in the index", v.Version, v.Name, 2*maxPiece)
		}
		if _, err := b.spooled.Write(data); err != nil {
			return fmt.Errorf("cannot write file: %w", err)
		}
		added.at, added.size = b.at, int64(len(data))
		b.at += added.size
	}
	b.now.versions = append(b.now.versions, added)
	return nil
}

// skippable tells of what is wrong in a chart and not in an index: some servers
// leave the aliases of dependencies out.
func skippable(err error) bool {
	var invalid helmchart.ValidationError
	return errors.As(err, &invalid) && strings.HasPrefix(invalid.Error(), "validation: more than one dependency with name or alias")
}

// newestFirst sorts as Helm does, which is not stable: the order of versions that
// are equal is in the artifact.
type newestFirst []version

func (v newestFirst) Len() int           { return len(v) }
func (v newestFirst) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v newestFirst) Less(i, j int) bool { return v[j].parsed.LessThan(v[i].parsed) }

// compact returns what is kept in memory, and about how much that is.
func (b *builder) compact() (charts map[string][]entry, weight int64) {
	const perChart, perVersion = 128, 128
	charts = make(map[string][]entry, len(b.charts))
	for name, l := range b.charts {
		if b.spooled != nil {
			sort.Sort(newestFirst(l.versions))
		}
		entries := make([]entry, 0, len(l.versions))
		for _, v := range l.versions {
			entries = append(entries, v.entry)
			weight += int64(perVersion + len(v.version) + len(v.url) + len(v.digest))
		}
		charts[name] = entries
		weight += int64(perChart + len(name))
	}
	return charts, weight
}

// parse reads an index of so many bytes and writes its artifact into a file in
// dir.
func parse(ctx context.Context, raw io.ReaderAt, size int64, revision, dir string) (_ *Index, err error) {
	spool, err := unnamed(dir)
	if err != nil {
		return nil, err
	}
	defer spool.Close()
	b := &builder{ctx: ctx, charts: map[string]*listed{}, spooled: bufio.NewWriterSize(spool, 64<<10)}
	head, err := b.read(raw, size, spool)
	if err != nil {
		return nil, err
	}
	if head.APIVersion == "" {
		return nil, repo.ErrNoAPIVersion
	}
	if err := b.spooled.Flush(); err != nil {
		return nil, fmt.Errorf("cannot write file: %w", err)
	}
	i := &Index{Revision: revision}
	charts, weight := b.compact()
	i.charts.Store(&charts)
	i.weight = weight
	if i.file, err = unnamed(dir); err != nil {
		return nil, err
	}
	h := sha256.New()
	w := &artifactWriter{w: bufio.NewWriterSize(i.file, 64<<10), h: h}
	w.write(head, b.charts, spool)
	if w.err == nil {
		w.err = w.w.Flush()
	}
	if w.err != nil {
		_ = i.file.Close()
		return nil, fmt.Errorf("cannot write index: %w", w.err)
	}
	i.Size, i.Digest = w.size, "sha256:"+hex.EncodeToString(h.Sum(nil))
	return i, nil
}

// read finds out in what form an index is.
func (b *builder) read(raw io.ReaderAt, size int64, spool *os.File) (head *repo.IndexFile, err error) {
	whole := func() *io.SectionReader { return io.NewSectionReader(raw, 0, size) }
	if size == 0 {
		return nil, repo.ErrEmptyIndexYaml
	}
	if startsObject(whole()) {
		head, err = readJSON(whole(), b)
	} else {
		head, err = readYAML(whole(), b)
	}
	if err == nil || b.ctx.Err() != nil {
		return head, err
	}
	if size > maxWhole {
		if errors.Is(err, errOdd) {
			err = limitf("the index has %d bytes and cannot be read in pieces: %w; write it with `helm repo index`, or in JSON", size, err)
		}
		return nil, err
	}
	// Helm itself parses an index of usual size, so that the result is Helm's.
	var data bytes.Buffer
	if _, err := io.Copy(&data, whole()); err != nil {
		return nil, err
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	b.spooled.Reset(spool)
	b.at, b.count, b.charts = 0, 0, map[string]*listed{}
	if json.Valid(data.Bytes()) {
		head = &repo.IndexFile{}
		if err := json.Unmarshal(data.Bytes(), head); err != nil {
			return nil, err
		}
		return head, spill(head, b)
	}
	return readWhole(data.Bytes(), b)
}

func startsObject(r io.Reader) bool {
	buffered := bufio.NewReader(r)
	for {
		c, err := buffered.ReadByte()
		if err != nil || !strings.ContainsRune(" \t\r\n", rune(c)) {
			return c == '{'
		}
	}
}

// artifactWriter writes what json.MarshalIndent makes of the whole index.
type artifactWriter struct {
	w    *bufio.Writer
	h    hash.Hash
	size int64
	err  error
}

func (a *artifactWriter) text(parts ...string) {
	for _, s := range parts {
		a.copy(strings.NewReader(s))
	}
}

func (a *artifactWriter) copy(r io.Reader) {
	if a.err == nil {
		var n int64
		n, a.err = io.Copy(io.MultiWriter(a.w, a.h), r)
		a.size += n
	}
}

func (a *artifactWriter) json(v any, prefix string) {
	if a.err != nil {
		return
	}
	data, err := json.MarshalIndent(v, prefix, "  ")
	if err != nil {
		a.err = err
		return
	}
	a.copy(bytes.NewReader(data))
}

func (a *artifactWriter) write(head *repo.IndexFile, charts map[string]*listed, spool io.ReaderAt) {
	a.text("{\n")
	if len(head.ServerInfo) > 0 {
		a.text(`  "serverInfo": `)
		a.json(head.ServerInfo, "  ")
		a.text(",\n")
	}
	a.text(`  "apiVersion": `)
	a.json(head.APIVersion, "")
	a.text(",\n", `  "generated": `)
	a.json(head.Generated, "")
	a.text(",\n", `  "entries": `)
	switch {
	case head.Entries == nil:
		a.text("null")
	case len(charts) == 0:
		a.text("{}")
	default:
		a.entries(charts, spool)
	}
	if len(head.PublicKeys) > 0 {
		a.text(",\n", `  "publicKeys": `)
		a.json(head.PublicKeys, "  ")
	}
	if len(head.Annotations) > 0 {
		a.text(",\n", `  "annotations": `)
		a.json(head.Annotations, "  ")
	}
	a.text("\n}")
}

func (a *artifactWriter) entries(charts map[string]*listed, spool io.ReaderAt) {
	a.text("{")
	separator := "\n    "
	for _, name := range slices.SortedFunc(maps.Keys(charts), cmp.Compare[string]) {
		l := charts[name]
		a.text(separator)
		separator = ",\n    "
		a.json(name, "")
		a.text(": ")
		switch {
		case l.null:
			a.text("null")
		case len(l.versions) == 0:
			a.text("[]")
		default:
			between := "[\n      "
			for _, v := range l.versions {
				a.text(between)
				between = ",\n      "
				a.copy(io.NewSectionReader(spool, v.at, v.size))
			}
			a.text("\n    ]")
		}
	}
	a.text("\n  }")
}

// unnamed returns a new file that has no name in any directory.
func unnamed(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create directory: %w", err)
	}
	f, err := os.CreateTemp(dir, "index")
	if err != nil {
		return nil, fmt.Errorf("cannot create file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot remove name of file: %w", err)
	}
	return f, nil
}

// wrapIndex names the index in the errors of parse. Those of files have nothing to do with
// what is in it.
func wrapIndex(err error) error {
	reason := ReasonIndexation
	var known *source.Error
	switch {
	case errors.As(err, &known):
		reason = known.Reason
	case errors.As(err, new(*fs.PathError)):
		reason = ReasonFailed
	}
	return failf(reason, "cannot read index of Helm repository: %w", err)
}
