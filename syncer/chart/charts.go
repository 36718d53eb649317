package chart

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"weak"

	helmchart "helm.sh/helm/v4/pkg/chart/v2"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/flight"
	"github.com/cascade-gitops/cascade/syncer/source"
	fluxversion "github.com/cascade-gitops/cascade/syncer/version"
)

// Charts packages charts. Objects that ask for the same chart share one
// snapshot, which is freed when the last of them drops it. It is safe for
// concurrent use.
type Charts struct {
	indexes *Indexes
	// archives keeps what was downloaded and what was packaged.
	archives *source.Archives
	dir      string
	limits   Limits

	making flight.Group[*Build]

	mu     sync.Mutex
	builds map[string]weakBuild
	counts ChartCounts
}

// Limits of a packaged chart and of a file in it, in bytes.
type Limits struct {
	Chart, File int64
}

// ChartCounts tells what was done since the start.
type ChartCounts struct {
	// Downloads of charts from repositories and registries.
	Downloads int64
	// Packaged is how many were packaged here.
	Packaged int64
}

// weakBuild is a build that lasts as long as something holds its snapshot.
type weakBuild struct {
	build    Build
	snapshot weak.Pointer[source.Snapshot]
	parts    []weak.Pointer[source.Snapshot]
}

func remember(b *Build) weakBuild {
	m := weakBuild{build: *b, snapshot: weak.Make(b.Snapshot)}
	m.build.Snapshot, m.build.parts = nil, nil
	for _, p := range b.parts {
		m.parts = append(m.parts, weak.Make(p))
	}
	return m
}

// recall returns the build, without its snapshot if that was freed.
func (m weakBuild) recall() *Build {
	b := m.build
	b.Snapshot = m.snapshot.Value()
	for _, p := range m.parts {
		if part := p.Value(); part != nil {
			b.parts = append(b.parts, part)
		}
	}
	return &b
}

// NewCharts finds charts in indexes, and keeps files in dir. A file has no name
// there once it is complete.
func NewCharts(indexes *Indexes, dir string, limits Limits) *Charts {
	return &Charts{
		indexes: indexes, dir: dir, limits: limits,
		// What is packaged here may be a little larger than what was fetched.
		archives: source.NewArchives(dir, limits.Chart+limits.File, maxInflated+limits.File+maxFiles*2048),
		builds:   map[string]weakBuild{},
	}
}

// Counts returns what was done so far.
func (c *Charts) Counts() ChartCounts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// Forget drops what is kept for a source that is gone.
func (c *Charts) Forget(user source.Key) { c.indexes.Forget(user) }

// Spec is what a HelmChart says of its chart.
type Spec struct {
	// User is the HelmChart.
	User source.Key
	// Chart is the name of the chart in a repository, or its path in a source.
	Chart string
	// Version or range of versions in a repository; empty for the newest.
	Version string
	// ValuesFiles are merged into the default values, the later over the earlier. They
	// are in the chart from a repository, and in the source otherwise.
	ValuesFiles         []string
	IgnoreMissingValues bool
	// Generation of the HelmChart: it is in the version if there are values files.
	Generation int64
	// Changed: the spec is not the one that Last was built by.
	Changed bool
	// Last is the last build; nil if there was none. Without its snapshot it has
	// what the status of the HelmChart records: Name, Version and Inputs.
	Last *Build
}

// Build is a packaged chart. It is immutable.
type Build struct {
	// Name and Version of the chart. The version is the revision of the artifact.
	Name, Version string
	// Snapshot is the packaged chart; its Revision is the version.
	Snapshot *source.Snapshot
	// ValuesFiles are those that were found and merged.
	ValuesFiles []string
	// Dependencies is how many were fetched or copied from elsewhere.
	Dependencies int
	// Packaged: the chart is not the file that was fetched.
	Packaged bool
	// Inputs identifies the content that a chart from another source was built
	// from, whatever the revision. It is empty for a chart from a repository. The
	// metadata of the artifact has it as v1alpha1.InputsAnnotation.
	Inputs string

	// manifest is the digest of the one in a registry that the chart is of. A tag may stand
	// for another one by now.
	manifest string
	// parts are downloads that went into the chart. Another build from the same
	// downloads finds them as long as this build is held.
	parts []*source.Snapshot
}

// Summary says what was done, in Flux's words.
func (b *Build) Summary() string {
	did := "pulled"
	if b.Packaged {
		did = "packaged"
	}
	s := fmt.Sprintf("%s '%s' chart with version '%s'", did, b.Name, b.Version)
	if len(b.ValuesFiles) > 0 {
		s += fmt.Sprintf(" and merged values files %v", b.ValuesFiles)
	}
	return s
}

// Reason is that of the condition and event for the build.
func (b *Build) Reason() string {
	if b.Packaged {
		return "ChartPackageSucceeded"
	}
	return "ChartPullSucceeded"
}

// is reports whether the last build is of a chart of this name and version. As
// in Flux, such a chart is not built again.
func (s Spec) is(name, version string) bool {
	return s.Last != nil && !s.Changed && s.Last.Snapshot != nil && s.Last.Name == name && s.Last.Version == version
}

// found is a chart in a repository, before it is downloaded.
type found struct {
	name, version string
	// key identifies the file for all that may read it.
	key string
	get func(ctx context.Context) (io.ReadCloser, error)
	// digest of the file, empty if it is not known.
	digest string
	// manifest is the digest of the one in a registry that has the chart.
	manifest string
	// resolve, if there is one, takes the place of get: it finds the manifest that a tag
	// stands for now. The key is that of the tag.
	resolve func(ctx context.Context) (found, error)
}

// Verify checks the signature of what is in a registry; an error fails the chart. The
// repository is without a scheme.
type Verify func(ctx context.Context, repository, digest string) error

// FromRepository finds a chart in a repository, and downloads it unless a
// snapshot of it is held. verify checks the very manifest that is downloaded;
// it is nil where no signature is asked for.
func (c *Charts) FromRepository(ctx context.Context, r Repository, spec Spec, verify Verify) (*Build, error) {
	if err := checkName(spec.Chart, spec.Version); err != nil {
		return nil, err
	}
	at, err := c.find(ctx, spec.User, r, spec.Chart, spec.Version, verify)
	if r.Registry == nil {
		c.indexes.retain(spec.User, map[string]bool{r.key(): true})
	} else {
		c.indexes.retain(spec.User, nil)
	}
	if err != nil {
		return nil, authentication(err)
	}
	files, suffix := wanted(spec.ValuesFiles), ""
	if len(files) > 0 {
		suffix = strconv.FormatInt(spec.Generation, 10)
	}
	version, err := withMetadata(at.version, suffix)
	if err != nil {
		return nil, err
	}
	// What was verified is what is used: the tag may stand for other content than that of
	// the last build.
	if spec.is(at.name, version) && (verify == nil || at.manifest == spec.Last.manifest) {
		return spec.Last, nil
	}
	plain, err := c.pull(ctx, at, spec.Changed)
	if err != nil || len(files) == 0 {
		return plain, authentication(err)
	}
	key := digest.Of("values", plain.Snapshot.Digest, plain.manifest, version, fmt.Sprintf("%t %q", spec.IgnoreMissingValues, files)).Hex()
	return c.make(ctx, key, func() (*Build, error) {
		chart, err := c.load(ctx, plain.Snapshot)
		if err != nil {
			return nil, err
		}
		b := newBudget(c.limits.File)
		merged, merging, err := mergeValues(files, spec.IgnoreMissingValues, func(name string) (map[string]any, error) {
			if path.Clean(name) == valuesFile {
				return chart.Values, nil
			}
			for _, f := range chart.Files {
				if f.Name == path.Clean(name) {
					return b.values(f.Data)
				}
			}
			return nil, fs.ErrNotExist
		})
		if err != nil {
			return nil, err
		}
		if err := setValues(chart, merged); err != nil {
			return nil, err
		}
		chart.Metadata.Version = version
		return c.finish(ctx, chart, &Build{ValuesFiles: merging, manifest: plain.manifest, parts: []*source.Snapshot{plain.Snapshot}})
	})
}

// load returns a chart that is only packaged again.
func (c *Charts) load(ctx context.Context, s *source.Snapshot) (*helmchart.Chart, error) {
	b := newBudget(c.limits.File)
	files, err := packaged(ctx, s, b, nil)
	if err == nil {
		var chart *helmchart.Chart
		if chart, err = assemble(ctx, files, b, kept); err == nil {
			return chart, nil
		}
	}
	return nil, wrap(ReasonPackage, "failed to load downloaded chart", err)
}

// authentication tells a failure because of the credential or a certificate from
// others, as Flux does.
func authentication(err error) error {
	if err == nil || source.ReasonOf(err) == source.ReasonLimitExceeded {
		return err
	}
	var answer *statusError
	if errors.As(err, &answer) && answer.code != http.StatusUnauthorized {
		return err
	}
	text := strings.ToLower(err.Error())
	for _, mark := range []string{"unauthorized", "authentication required", "tls: ", "x509: "} {
		if strings.Contains(text, mark) {
			return failf(source.ReasonAuthenticationFailed, "failed to authenticate with the Helm repository: %s", err)
		}
	}
	return err
}

// find resolves a version.
func (c *Charts) find(ctx context.Context, user source.Key, r Repository, name, version string, verify Verify) (found, error) {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return found{}, failf(ReasonReference, "the chart name '%s' leads elsewhere", name)
	}
	u, err := r.parse()
	if err != nil {
		return found{}, err
	}
	if r.Registry != nil {
		return c.findTag(ctx, r, u, name, version, verify)
	}
	if verify != nil {
		return found{}, failf(ReasonVerification, "signatures of charts are verified in registries only")
	}
	s, err := c.indexes.use(user, r)
	if err != nil {
		return found{}, err
	}
	entries, err := c.indexes.versions(ctx, s, r, name)
	if err != nil {
		if reason := source.ReasonOf(err); reason == ReasonFailed || reason == ReasonIndexation {
			err = failf(ReasonPull, "%w", err)
		}
		return found{}, err
	}
	e, err := resolve(name, entries, version)
	if err != nil {
		return found{}, err
	}
	if e.url == "" {
		return found{}, failf(ReasonPull, "chart '%s' of version %s has no downloadable URLs", name, e.version)
	}
	from, err := chartURL(s.url, e.url)
	if err != nil {
		return found{}, err
	}
	return found{
		name: name, version: e.version, digest: sha256Of(e.digest),
		key: digest.Of("http", s.key, from.String(), e.version, e.digest).Hex(),
		get: func(ctx context.Context) (io.ReadCloser, error) {
			res, err := get(ctx, s.client, from, http.Header{"Accept-Encoding": {"identity"}})
			if err != nil {
				return nil, err
			}
			return res.Body, nil
		},
	}, nil
}

func (c *Charts) findTag(ctx context.Context, r Repository, u *url.URL, name, version string, verify Verify) (found, error) {
	repository := u.Host + path.Join("/", u.Path, name)
	// A registry may have very many tags: they are not listed if the version is
	// exact.
	if _, err := fluxversion.Parse(version); err != nil {
		tags, err := r.Registry.Tags(ctx, repository)
		if err != nil {
			return found{}, wrap(ReasonPull, fmt.Sprintf("cannot list versions of chart '%s'", name), err)
		}
		if version, err = resolveTag(name, tags, version); err != nil {
			return found{}, err
		}
	}
	tag := tagOf(version)
	// The version is in the key, as several tags may stand for one manifest.
	at := func(reference string) found {
		return found{name: path.Base(name), version: version, key: digest.Of("oci", r.key(), repository, reference, version).Hex()}
	}
	resolve := func(ctx context.Context) (found, error) {
		manifest, err := r.Registry.Resolve(ctx, repository, tag)
		if err != nil {
			return found{}, err
		}
		f := at(manifest)
		f.manifest = manifest
		f.get = func(ctx context.Context) (io.ReadCloser, error) { return r.Registry.Pull(ctx, repository, manifest) }
		return f, nil
	}
	if verify == nil {
		f := at(tag)
		f.resolve = resolve
		return f, nil
	}
	f, err := resolve(ctx)
	if err == nil {
		err = verify(ctx, repository, f.manifest)
	}
	if err != nil {
		return found{}, wrap(ReasonVerification, fmt.Sprintf("failed to verify %s:%s", repository, tag), err)
	}
	return f, nil
}

// sha256Of returns the digest of an index in the form of snapshots, empty if it is of
// another kind.
func sha256Of(digest string) string {
	hexes := strings.ToLower(strings.TrimPrefix(digest, "sha256:"))
	if sum, err := hex.DecodeString(hexes); err != nil || len(sum) != sha256.Size {
		return ""
	}
	return "sha256:" + hexes
}

// pull downloads a chart, unless it is held, and checks that it is one. anew asks what a tag
// stands for now, even if what it stood for is held: who changes a spec wants the chart that
// there is, and those after him get the same.
func (c *Charts) pull(ctx context.Context, at found, anew bool) (build *Build, err error) {
	if anew && at.resolve != nil {
		if build, err = c.get(ctx, at); err == nil {
			c.hold(at.key, build)
		}
	} else {
		build, err = c.make(ctx, at.key, func() (*Build, error) { return c.get(ctx, at) })
	}
	if err != nil {
		return nil, wrap(ReasonPull, fmt.Sprintf("cannot fetch chart '%s' of version '%s'", at.name, at.version), err)
	}
	return build, nil
}

func (c *Charts) get(ctx context.Context, at found) (*Build, error) {
	if at.resolve != nil {
		now, err := at.resolve(ctx)
		if err != nil {
			return nil, err
		}
		return c.make(ctx, now.key, func() (*Build, error) { return c.get(ctx, now) })
	}
	data, err := c.download(ctx, at)
	if err != nil {
		return nil, err
	}
	build, err := c.fetched(ctx, data, at.version)
	if err != nil {
		return nil, err
	}
	build.manifest = at.manifest
	return build, nil
}

func (c *Charts) download(ctx context.Context, at found) ([]byte, error) {
	body, err := at.get(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := readAll(body, c.limits.Chart, limitf("it has more than %d bytes; raise --helm-chart-max-size or shrink it", c.limits.Chart))
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.counts.Downloads++
	c.mu.Unlock()
	sum := sha256.Sum256(data)
	if got := "sha256:" + hex.EncodeToString(sum[:]); at.digest != "" && got != at.digest {
		return nil, fmt.Errorf("its digest is %s, and %s in the index", got, at.digest)
	}
	return data, nil
}

// fetched makes a snapshot of a packaged chart as it is.
func (c *Charts) fetched(ctx context.Context, data []byte, version string) (*Build, error) {
	_, files, err := untar(ctx, bytes.NewReader(data), newBudget(c.limits.File), identity)
	if err != nil {
		return nil, err
	}
	m, err := metadataOf(func(name string) ([]byte, error) { return find(files, name) })
	if err != nil {
		return nil, err
	}
	if version == "" {
		version = m.Version
	}
	return c.open(ctx, data, &Build{Name: m.Name, Version: version})
}

// finish packages a chart.
func (c *Charts) finish(ctx context.Context, chart *helmchart.Chart, build *Build) (*Build, error) {
	data, err := pack(chart, c.dir)
	if err != nil {
		return nil, failf(ReasonPackage, "cannot package chart: %w", err)
	}
	c.mu.Lock()
	c.counts.Packaged++
	c.mu.Unlock()
	build.Name, build.Version, build.Packaged = chart.Name(), chart.Metadata.Version, true
	if build, err = c.open(ctx, data, build); err != nil {
		return nil, wrap(ReasonPackage, "cannot package chart", err)
	}
	return build, nil
}

func (c *Charts) open(ctx context.Context, data []byte, build *Build) (*Build, error) {
	about := source.About{Revision: build.Version, File: build.Name + "-" + build.Version + ".tgz"}
	if build.Inputs != "" {
		about.Metadata = map[string]string{v1alpha1.InputsAnnotation: build.Inputs}
	}
	var err error
	build.Snapshot, err = c.archives.Open(ctx, bytes.NewReader(data), about)
	return build, err
}

// make returns the build of this key if it is held, or builds it.
func (c *Charts) make(ctx context.Context, key string, get func() (*Build, error)) (*Build, error) {
	return c.making.Do(ctx, key, func() (*Build, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		build := c.builds[key].recall()
		return build, build.Snapshot != nil
	}, func() (*Build, error) {
		build, err := get()
		if err != nil {
			return nil, err
		}
		c.hold(key, build)
		return build, nil
	})
}

// hold lets others find a build, as long as somebody holds its snapshot.
func (c *Charts) hold(key string, build *Build) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, m := range c.builds {
		if m.snapshot.Value() == nil {
			delete(c.builds, key)
		}
	}
	c.builds[key] = remember(build)
}
