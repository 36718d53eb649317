package image

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/flight"
	"github.com/cascade-gitops/cascade/syncer/image/policy"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Registries list tags. room is told how much more memory a list takes while it is read, and may refuse that.
type Registries interface {
	List(ctx context.Context, origin source.ImageOrigin, room func(bytes int) error) (source.TagList, error)
}

// Scans has the tags of images that ImageRepositories name. It is safe for concurrent use.
type Scans struct {
	registries Registries
	// dir keeps lists; empty keeps none.
	dir   string
	now   func() time.Time
	lists *prometheus.CounterVec
	// most bounds the memory of all lists, but for what room says.
	most int

	asking flight.Group[*tagList]

	mu sync.Mutex // guards what follows; never held over a call
	// known are lists by the identity of their origin, and users how many objects have them: without any, they go.
	known map[string]*tagList
	users map[string]int
	// objects are what each ImageRepository has.
	objects map[types.NamespacedName]scan
	// reading are the lists that registries send at the moment, by what they take so far.
	reading map[*tagList]bool
	watch   []func(types.NamespacedName)
}

// tagList are the tags of an image, sorted, and when the registry said so. These are never changed.
type tagList struct {
	tags []string
	at   time.Time
	// size is the memory that the tags take, and namespace that of the ImageRepository for which they were listed.
	size      int
	namespace string
	// kept are the tags that are not excluded, by what excludes them. The lock of Scans guards it.
	kept map[string]subset
}

// subset has a bit for each tag of a list: a list of its own would take as much as the tags do, for each exclusion of each
// ImageRepository.
type subset []uint64

// subsetOf is where some tags of a list are in it. Both are sorted.
func subsetOf(tags, some []string) subset {
	s := make(subset, (len(tags)+63)/64)
	for i, tag := range tags {
		if len(some) > 0 && some[0] == tag {
			s[i/64] |= 1 << (i % 64)
			some = some[1:]
		}
	}
	return s
}

// of are the tags of a list that are in the subset.
func (s subset) of(tags []string) []string {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	if n == len(tags) {
		return tags
	}
	some := make([]string, 0, n)
	for i, tag := range tags {
		if s[i/64]&(1<<(i%64)) != 0 {
			some = append(some, tag)
		}
	}
	return some
}

// mostListed is the memory that the tags of all images may take: a thousand images with some thousand tags each.
const mostListed = 128 << 20

// listOf is a list as it is remembered.
func listOf(tags []string, at time.Time, namespace string) *tagList {
	list := &tagList{tags: compact(tags), at: at, namespace: namespace}
	for _, tag := range list.tags {
		list.size += source.TagBytes(tag)
	}
	return list
}

// mostExclusions bounds the lists of exclusions for which tags of one image are remembered.
const mostExclusions = 20

// mostMatching bounds the time in which the tags of an image are matched with the expressions of one object: it takes a
// processor, whatever the timeout of an answer is.
const mostMatching = time.Minute

// scan is what an ImageRepository has.
type scan struct {
	uid types.UID
	// image is the URL of the origin, and identity what is read there and with what.
	image, identity string
	list            *tagList
	// kept are the tags of the list that are not excluded.
	kept subset
}

// tags of the list that are not excluded. Nobody may change them.
func (of scan) tags() []string { return of.kept.of(of.list.tags) }

// NewScans keeps lists in a directory that outlives the process; an empty one keeps none.
func NewScans(registries Registries, dir string, now func() time.Time, registry prometheus.Registerer) *Scans {
	s := &Scans{
		registries: registries, dir: dir, now: now, most: mostListed, known: map[string]*tagList{}, users: map[string]int{}, objects: map[types.NamespacedName]scan{},
		reading: map[*tagList]bool{},
		lists: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_image_tag_lists_total",
			Help: "Lists of tags that ImageRepositories needed, by outcome: sent by a registry, unchanged since, shared with another ImageRepository, kept over a restart, or failed.",
		}, []string{"outcome"}),
	}
	registry.MustRegister(s.lists)
	return s
}

// onChange calls f with each ImageRepository that has other tags.
func (s *Scans) onChange(f func(types.NamespacedName)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch = append(s.watch, f)
}

// Scan returns the tags of an image that the registry listed at a time or after it, without those that are excluded, and
// makes them those of an ImageRepository.
func (s *Scans) Scan(ctx context.Context, name types.NamespacedName, uid types.UID, origin source.ImageOrigin, exclusions []string, since time.Time) (scan, error) {
	identity := origin.Identity()
	list, err := s.list(ctx, name.Namespace, identity, origin, since)
	if err != nil {
		return scan{}, err
	}
	return s.take(ctx, name, scan{uid: uid, image: origin.URL, identity: identity, list: list}, exclusions)
}

// Recall is Scan of what is known, without a request. It is false where nothing is.
func (s *Scans) Recall(ctx context.Context, name types.NamespacedName, uid types.UID, origin source.ImageOrigin, exclusions []string) (scan, bool) {
	identity := origin.Identity()
	list, ok := s.young(name.Namespace, identity, time.Time{})
	if !ok {
		return scan{}, false
	}
	of, err := s.take(ctx, name, scan{uid: uid, image: origin.URL, identity: identity, list: list}, exclusions)
	return of, err == nil
}

// list returns a list that is not older than a time.
func (s *Scans) list(ctx context.Context, namespace, identity string, origin source.ImageOrigin, since time.Time) (*tagList, error) {
	asked := false
	list, err := s.asking.Do(ctx, identity, func() (*tagList, bool) { return s.remembered(identity, since) }, func() (*tagList, error) {
		asked = true
		if kept, ok := s.young(namespace, identity, since); ok {
			s.lists.WithLabelValues("kept").Inc()
			return kept, nil
		}
		at := s.now()
		reading := &tagList{namespace: namespace}
		defer s.ended(reading)
		got, err := s.registries.List(ctx, origin, func(bytes int) error { return s.grow(reading, bytes) })
		if err != nil {
			s.lists.WithLabelValues("failed").Inc()
			return nil, err
		}
		if got.Unchanged {
			s.lists.WithLabelValues("unchanged").Inc()
		} else {
			s.lists.WithLabelValues("sent").Inc()
		}
		list := listOf(got.Tags, at, namespace)
		s.mu.Lock()
		before := s.known[identity]
		if before != nil && slices.Equal(before.tags, list.tags) {
			list.tags, list.namespace, list.kept = before.tags, before.namespace, before.kept
		} else if err := s.room(identity, list); err != nil {
			s.mu.Unlock()
			s.lists.WithLabelValues("failed").Inc()
			return nil, err
		}
		s.known[identity] = list
		s.mu.Unlock()
		s.keep(identity, list)
		return list, nil
	})
	if err == nil && !asked {
		s.lists.WithLabelValues("shared").Inc()
	}
	return list, err
}

// remembered is a list in memory that is not older than a time. One of a clock that was ahead is older than anybody knows.
func (s *Scans) remembered(identity string, since time.Time) (*tagList, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.known[identity]
	return list, list != nil && !list.at.Before(since) && !list.at.Round(0).After(s.now().Round(0))
}

// young is a list in memory or in the directory that is not older than a time.
func (s *Scans) young(namespace, identity string, since time.Time) (*tagList, bool) {
	if list, ok := s.remembered(identity, time.Time{}); ok {
		return list, !list.at.Before(since)
	}
	list, err := s.read(namespace, identity)
	if err != nil || list == nil || list.at.After(s.now()) {
		return nil, false // the registry knows
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[identity] == nil {
		if s.room(identity, list) != nil {
			return nil, false
		}
		s.known[identity] = list
	}
	list = s.known[identity]
	return list, !list.at.Before(since)
}

// grow counts what is being read of a list. Together these have as much room as those that are known: a registry may leave
// each of them open for as long as the timeout of its ImageRepository.
func (s *Scans) grow(list *tagList, bytes int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	list.size += bytes
	s.reading[list] = true
	if bytes <= 0 {
		return nil
	}
	of := shares{namespace: list.namespace}
	for l := range s.reading {
		of.count(l)
	}
	return of.refuse(s.most)
}

// ended forgets what was being read of a list.
func (s *Scans) ended(list *tagList) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reading, list)
}

// room is an error if the tags of an image, in the place of what is known of it, would be too much with those of all others. It is
// called with the lock held.
func (s *Scans) room(identity string, list *tagList) error {
	of := shares{namespace: list.namespace}
	of.count(list)
	counted := map[*string]bool{} // by the first tag: lists that were the same at several times have one memory
	if before := s.known[identity]; before != nil && before.size > 0 {
		counted[&before.tags[0]] = true
	}
	count := func(l *tagList) {
		if l.size > 0 && !counted[&l.tags[0]] {
			counted[&l.tags[0]] = true
			of.count(l)
		}
	}
	for _, l := range s.known {
		count(l)
	}
	for _, o := range s.objects {
		count(o.list)
	}
	return of.refuse(s.most)
}

// shares are the memory of lists: of all, and of those of one namespace.
type shares struct {
	namespace  string
	all, own   int
	namespaces map[string]bool
}

func (s *shares) count(list *tagList) {
	if s.namespaces == nil {
		s.namespaces = map[string]bool{}
	}
	s.namespaces[list.namespace] = true
	if s.all += list.size; list.namespace == s.namespace {
		s.own += list.size
	}
}

// refuse is an error if that is too much. A namespace has its part of what there is, whatever others have: where all is taken, those go on
// that have less.
func (s *shares) refuse(most int) error {
	if part := most / len(s.namespaces); s.all > most && s.own > part {
		return &source.Error{Reason: source.ReasonLimitExceeded, Err: fmt.Errorf(
			"the tags of all images take more than %d MiB, and those that namespace %s names more than %d: remove old ones, or ImageRepositories", most>>20, s.namespace, part>>20)}
	}
	return nil
}

// take makes a list that of an ImageRepository.
func (s *Scans) take(ctx context.Context, name types.NamespacedName, of scan, exclusions []string) (scan, error) {
	list := of.list
	excludes := strings.Join(exclusions, "\n")
	s.mu.Lock()
	kept, ok := list.kept[excludes]
	s.mu.Unlock()
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, mostMatching)
		defer cancel()
		tags, err := policy.Kept(ctx, exclusions, list.tags)
		if err != nil {
			s.unused(of.identity)
			return scan{}, err
		}
		kept = subsetOf(list.tags, tags)
	}
	of.kept = kept
	s.mu.Lock()
	if list.kept == nil || len(list.kept) >= mostExclusions {
		list.kept = map[string]subset{}
	}
	list.kept[excludes] = kept
	before, had := s.objects[name]
	s.objects[name] = of
	s.users[of.identity]++
	if had {
		s.leave(before.identity)
	}
	watch := s.watch
	s.mu.Unlock()
	if !had || before.uid != of.uid || before.identity != of.identity || !slices.Equal(before.tags(), of.tags()) {
		for _, f := range watch {
			f(name)
		}
	}
	return of, nil
}

// unused drops a list that no ImageRepository has.
func (s *Scans) unused(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[identity] == 0 {
		delete(s.known, identity)
	}
}

// Of returns the tags of an ImageRepository, false if it has none here of the image that it names by now. Nobody may change
// them.
func (s *Scans) Of(obj *imagev1.ImageRepository) ([]string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.objects[client.ObjectKeyFromObject(obj)]
	if !ok || of.uid != obj.UID || of.image != imageURL(obj) {
		return nil, false
	}
	return of.tags(), true
}

// Forget drops what an ImageRepository has. What nobody else uses is not kept, either.
func (s *Scans) Forget(name types.NamespacedName) {
	s.mu.Lock()
	of, ok := s.objects[name]
	delete(s.objects, name)
	gone := ok && s.leave(of.identity)
	s.mu.Unlock()
	if gone && s.dir != "" {
		_ = os.Remove(s.file(of.identity))
	}
}

// leave counts one user less of a list, which goes with the last. It is called with the lock held.
func (s *Scans) leave(identity string) (gone bool) {
	if s.users[identity]--; s.users[identity] > 0 {
		return false
	}
	delete(s.users, identity)
	delete(s.known, identity)
	return true
}

// compact sorts tags, each once, and puts them into one piece of memory.
func compact(tags []string) []string {
	tags = slices.Compact(slices.Sorted(slices.Values(tags)))
	all := strings.Join(tags, "")
	for i, tag := range tags {
		tags[i], all = all[:len(tag)], all[len(tag):]
	}
	return slices.Clip(tags)
}

// revision identifies tags.
func (of scan) revision() string {
	h := sha256.New()
	for _, tag := range of.tags() {
		_, _ = io.WriteString(h, tag+"\n")
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)[:16])
}

// keptVersion is the form of the files. Others are taken to be absent.
const keptVersion = "cascade.dev/kept-tags-1"

// Bounds of the directory.
const (
	mostKeptFiles = 2000
	mostKeptBytes = 256 << 20
)

type keptAs struct {
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	Tags    int       `json:"tags"`
}

// file of a list. An identity is a digest.
func (s *Scans) file(identity string) string { return filepath.Join(s.dir, identity+".gz") }

// keep writes a list. One that cannot be written is asked for again after a restart.
func (s *Scans) keep(identity string, list *tagList) {
	if s.dir == "" {
		return
	}
	s.bound()
	if err := s.write(s.file(identity), list); err != nil {
		_ = os.Remove(s.file(identity))
	}
}

// write writes a file and gives it its name when all of it is there.
func (s *Scans) write(name string, list *tagList) (err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, "next-*")
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	gz, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(gz).Encode(keptAs{keptVersion, list.at, len(list.tags)}); err != nil {
		return err
	}
	for _, tag := range list.tags {
		if _, err := io.WriteString(gz, tag+"\n"); err != nil {
			return err
		}
	}
	if err := errors.Join(gz.Close(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// mostLine bounds a line of a file, mostKeptList what one inflates to.
const (
	mostLine     = 4 << 10
	mostKeptList = 64 << 20
)

// read reads a list, nil if there is none.
func (s *Scans) read(namespace, identity string) (*tagList, error) {
	if s.dir == "" {
		return nil, nil
	}
	f, err := os.Open(s.file(identity))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what is kept: %w", err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("cannot read what is kept: %w", err)
	}
	lines := bufio.NewScanner(io.LimitReader(gz, mostKeptList))
	lines.Buffer(nil, mostLine)
	var as keptAs
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &as) != nil || as.Version != keptVersion {
		return nil, errors.New("cannot read what is kept: it does not begin as it was written")
	}
	var tags []string
	for lines.Scan() && len(tags) < source.MaxTags {
		tags = append(tags, lines.Text())
	}
	if lines.Err() != nil || len(tags) != as.Tags {
		return nil, errors.New("cannot read what is kept: it is not whole")
	}
	return listOf(tags, as.At, namespace), nil
}

// bound removes the oldest lists where there are too many: of objects that went while no process ran.
func (s *Scans) bound() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	type file struct {
		name string
		at   time.Time
		size int64
	}
	var files []file
	var total int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, file{e.Name(), info.ModTime(), info.Size()})
			total += info.Size()
		}
	}
	slices.SortFunc(files, func(a, b file) int { return a.at.Compare(b.at) })
	for i := 0; len(files)-i >= mostKeptFiles || total > mostKeptBytes && i < len(files); i++ {
		_ = os.Remove(filepath.Join(s.dir, files[i].name))
		total -= files[i].size
	}
}
