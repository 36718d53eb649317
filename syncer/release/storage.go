package release

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	chartcommon "helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helmreleaser "helm.sh/helm/v4/pkg/release"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Bounds of what a release's Secret may expand to. Helm compresses it, so that anybody who may
// write Secrets of the namespace can write one that expands without end.
const (
	largestRelease = 64 << 20
	// mostNodes are values of JSON, of which one takes a hundred times its shortest text. Large
	// charts have some ten thousand.
	mostNodes = 1_000_000
	// atOnce is how many as large as that are read at once, where Helm needs all of several revisions.
	atOnce = 2
	// readTimeout bounds the requests for these, as many as a server says that are deployed.
	readTimeout = time.Minute
)

// secretName is where Helm's storage keeps a revision, as any client of Helm
// finds it.
func secretName(name string, version int) string {
	return fmt.Sprintf("%s.%s.v%d", storage.HelmStorageType, name, version)
}

// revision of a release in the storage, by its metadata.
type revision struct {
	version int
	stamp   string
}

// revisions lists what there is of a release without reading it, the newest
// first: one request of a few hundred bytes for each revision.
func revisions(ctx context.Context, c client.Reader, namespace, name string) ([]revision, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := c.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{"owner": "helm", "name": name}); err != nil {
		return nil, err
	}
	var found []revision
	for i := range list.Items {
		o := &list.Items[i]
		version, ok := versionOf(o)
		if !ok {
			continue // not a revision that Helm would find by its key
		}
		found = append(found, revision{version: version, stamp: o.Name + "/" + string(o.UID) + "/" + o.ResourceVersion})
	}
	slices.SortFunc(found, func(a, b revision) int { return b.version - a.version })
	return found, nil
}

// versionOf is which revision of a release a Secret has, by its labels.
func versionOf(o metav1.Object) (version int, ok bool) {
	labels := o.GetLabels()
	version, err := strconv.Atoi(labels["version"])
	return version, err == nil && o.GetName() == secretName(labels["name"], version)
}

// stampOf identifies the state of all revisions.
func stampOf(found []revision) string {
	stamps := make([]string, 0, len(found))
	for _, r := range found {
		stamps = append(stamps, r.stamp)
	}
	return strings.Join(stamps, " ")
}

// helmStore is Helm's storage in the Secrets of a cluster.
type helmStore struct {
	*session
	// memory is that of the reconcile for which it is read.
	memory *Share
}

var _ store = helmStore{}

func (s helmStore) revisions(ctx context.Context, namespace, name string) ([]revision, error) {
	return revisions(ctx, s.cluster, namespace, name)
}

func (s helmStore) read(ctx context.Context, namespace, name string, version int) (*helmrelease.Release, error) {
	return typed(s.driver(ctx, namespace).Get(secretName(name, version)))
}

// driver is the storage in the form that Helm's actions take. What it reads ends with the context.
func (s helmStore) driver(ctx context.Context, namespace string) driver.Driver {
	d := driver.NewSecrets(boundedSecrets{
		ctx:             ctx,
		SecretInterface: s.clientset.CoreV1().Secrets(namespace),
		metadata:        s.metadata.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(namespace),
		memory:          s.memory,
	})
	d.SetLogger(nil)
	return soundReleases{d}
}

// soundReleases are releases of a storage with all that Helm takes for granted, some of it
// in goroutines where nothing catches a panic. Anybody who may write Secrets of the
// namespace can write a release.
type soundReleases struct{ driver.Driver }

func (s soundReleases) Get(key string) (helmreleaser.Releaser, error) {
	rel, err := s.Driver.Get(key)
	return sound(rel), err
}

func (s soundReleases) List(filter func(helmreleaser.Releaser) bool) ([]helmreleaser.Releaser, error) {
	return s.Driver.List(func(rel helmreleaser.Releaser) bool { return filter(sound(rel)) })
}

func (s soundReleases) Query(labels map[string]string) ([]helmreleaser.Releaser, error) {
	found, err := s.Driver.Query(labels)
	for _, rel := range found {
		sound(rel)
	}
	return found, err
}

func (s soundReleases) Delete(key string) (helmreleaser.Releaser, error) {
	rel, err := s.Driver.Delete(key)
	return sound(rel), err
}

// sound gives a release the state that it does not have, and takes out of it what is
// nothing. It returns the release.
func sound(rel helmreleaser.Releaser) helmreleaser.Releaser {
	r, ok := rel.(*helmrelease.Release)
	if !ok || r == nil {
		return rel
	}
	if r.Info == nil {
		r.Info = &helmrelease.Info{Status: common.StatusUnknown}
	}
	r.Hooks = slices.DeleteFunc(r.Hooks, func(h *helmrelease.Hook) bool { return h == nil })
	if r.Chart != nil {
		nothing := func(f *chartcommon.File) bool { return f == nil }
		r.Chart.Templates, r.Chart.Files = slices.DeleteFunc(r.Chart.Templates, nothing), slices.DeleteFunc(r.Chart.Files, nothing)
	}
	return r
}

// boundedSecrets refuses Secrets that expand to more than a release can be, or than there is room for.
type boundedSecrets struct {
	typedcorev1.SecretInterface
	// ctx ends what is read: Helm asks with none.
	ctx context.Context
	// metadata of the same Secrets.
	metadata metadata.ResourceInterface
	memory   *Share
}

func (b boundedSecrets) Get(_ context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(b.ctx, readTimeout)
	defer cancel()
	s, err := b.SecretInterface.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	e, err := expansionOf(s)
	if err == nil {
		err = b.room(s, e)
	}
	return s, err
}

// room makes sure that there is room for what a Secret, and those before it, expand to.
func (b boundedSecrets) room(s *corev1.Secret, e expansion) error {
	if err := b.memory.Take(Bytes(e.bytes, e.nodes)); err != nil {
		return fmt.Errorf("cannot read release from Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// List reads what Helm needs of those that are listed, the newest of a release and those that are deployed, one by one:
// all together may be more than an answer may have. Of the others it needs what their labels say, to prune and to purge them.
func (b boundedSecrets) List(_ context.Context, o metav1.ListOptions) (*corev1.SecretList, error) {
	ctx, cancel := context.WithTimeout(b.ctx, readTimeout)
	defer cancel()
	found, err := b.metadata.List(ctx, o)
	if err != nil {
		return nil, err
	}
	newest := map[string]int{}
	for i := range found.Items {
		about := &found.Items[i]
		if version, ok := versionOf(about); ok {
			newest[about.Labels["name"]] = max(version, newest[about.Labels["name"]])
		}
	}
	list := &corev1.SecretList{ListMeta: found.ListMeta}
	var all expansion
	for i := range found.Items {
		about := &found.Items[i]
		version, ok := versionOf(about)
		if !ok {
			continue // not a revision that Helm would find by its key
		}
		old := version < newest[about.Labels["name"]]
		if old && about.Labels["status"] != common.StatusDeployed.String() {
			s, err := bare(about, version)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, *s)
			continue
		}
		s, err := b.SecretInterface.Get(ctx, about.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && old:
			continue
		case apierrors.IsNotFound(err):
			// The newest by now was taken for an old one. Helm must not believe that there is none.
			return nil, fmt.Errorf("cannot read release from Secret %s/%s: it was deleted meanwhile", about.Namespace, about.Name)
		case err != nil:
			return nil, err
		}
		e, err := expansionOf(s)
		if err != nil {
			return nil, err
		}
		s.Data = map[string][]byte{"release": s.Data["release"]}
		all.bytes, all.nodes = all.bytes+len(s.Data["release"])+e.bytes, all.nodes+e.nodes
		if all.bytes > atOnce*largestRelease || all.nodes > atOnce*mostNodes {
			return nil, fmt.Errorf("cannot read releases from Secrets of namespace %s: the newest and those that are deployed expand to more than %d MiB or %d nodes",
				s.Namespace, atOnce*largestRelease>>20, atOnce*mostNodes)
		}
		if err := b.room(s, all); err != nil {
			return nil, err
		}
		list.Items = append(list.Items, *s)
	}
	return list, nil
}

// bare is what the labels of a revision say.
func bare(about *metav1.PartialObjectMetadata, version int) (*corev1.Secret, error) {
	rel, err := json.Marshal(&helmrelease.Release{
		Name: about.Labels["name"], Version: version, Info: &helmrelease.Info{Status: common.Status(about.Labels["status"])},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read release from Secret %s/%s: %w", about.Namespace, about.Name, err)
	}
	return &corev1.Secret{ObjectMeta: about.ObjectMeta, Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(rel))}}, nil
}

// expansion is what a release takes once it is read. It counts what is written to it.
type expansion struct {
	bytes, nodes int
	// quoted: it is in a string; escaped: the next byte does not end it.
	quoted, escaped bool
}

// expansionOf reads through what Helm would read into memory, and is an error if that is too much.
// Helm reports data that is not a release at all.
func expansionOf(s *corev1.Secret) (expansion, error) {
	var e expansion
	data, err := base64.StdEncoding.DecodeString(string(s.Data["release"]))
	if err != nil {
		return e, nil
	}
	var text io.Reader = bytes.NewReader(data)
	if z, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
		text = z
	} // else Helm takes it as it is
	_, _ = io.Copy(&e, text) // what cannot be inflated is no release
	switch {
	case e.bytes > largestRelease:
		return e, fmt.Errorf("cannot read release from Secret %s/%s: it expands to more than %d MiB", s.Namespace, s.Name, largestRelease>>20)
	case e.nodes > mostNodes:
		return e, fmt.Errorf("cannot read release from Secret %s/%s: it expands to more than %d nodes", s.Namespace, s.Name, mostNodes)
	}
	return e, nil
}

// Write counts, and fails once it is too much.
func (e *expansion) Write(text []byte) (int, error) {
	e.bytes += len(text)
	for _, c := range text {
		switch {
		case e.escaped:
			e.escaped = false
		case e.quoted && c == '\\':
			e.escaped = true
		case c == '"':
			e.quoted = !e.quoted
		case !e.quoted && (c == '{' || c == '[' || c == ',' || c == ':'):
			e.nodes++
		}
	}
	if e.bytes > largestRelease || e.nodes > mostNodes {
		return 0, io.ErrShortWrite
	}
	return len(text), nil
}

// observer is Helm's storage that reports what was really written: the actions
// of Helm may return something else. It also stores the original of a chart
// that was rendered in the sandbox.
type observer struct {
	driver.Driver
	// original is what the storage is to hold instead of the chart that was
	// rendered, but for its values; nil if nothing was rendered.
	rendered, original *chart.Chart
	wrote              func(*helmrelease.Release)
}

func (o *observer) Create(key string, rel helmreleaser.Releaser) error {
	return o.write(rel, func(rel helmreleaser.Releaser) error { return o.Driver.Create(key, rel) })
}

func (o *observer) Update(key string, rel helmreleaser.Releaser) error {
	return o.write(rel, func(rel helmreleaser.Releaser) error { return o.Driver.Update(key, rel) })
}

func (o *observer) Delete(key string) (rel helmreleaser.Releaser, err error) {
	defer recovered(&err)
	rel, err = o.Driver.Delete(key)
	if err != nil {
		return nil, err
	}
	if r, ok := rel.(*helmrelease.Release); ok && o.wrote != nil {
		o.wrote(r)
	}
	return rel, nil
}

// write is called in goroutines of Helm, too.
func (o *observer) write(rel helmreleaser.Releaser, write func(helmreleaser.Releaser) error) (err error) {
	defer recovered(&err)
	r, ok := rel.(*helmrelease.Release)
	if !ok {
		return fmt.Errorf("cannot store release: it is a %T", rel)
	}
	kept := r
	if o.rendered != nil && r.Chart == o.rendered {
		// Its values are those that Helm gave it, with what subcharts say by default, and with those of the revision before
		// where they are preserved: an upgrade that preserves values takes them from here.
		plain, c := *r, *o.original
		c.Values = o.rendered.Values
		plain.Chart = &c
		kept = &plain
	}
	if err := write(kept); err != nil {
		return err
	}
	if o.wrote != nil {
		o.wrote(kept)
	}
	return nil
}

// typed is a release of the storage in the only form that there is today.
func typed(rel helmreleaser.Releaser, err error) (*helmrelease.Release, error) {
	if err != nil {
		return nil, err
	}
	r, ok := rel.(*helmrelease.Release)
	if !ok {
		return nil, fmt.Errorf("only the Chart API v2 is supported, this is a %T", rel)
	}
	return r, nil
}
