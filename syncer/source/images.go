package source

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cascade-gitops/cascade/syncer/pattern"
	"github.com/cascade-gitops/cascade/syncer/version"
)

// maxMetadataBytes bounds the annotations of a manifest, which end in the status of an
// object.
const maxMetadataBytes = 64 << 10

// ChartMediaType is Helm's media type for the layer that is a packaged chart.
const ChartMediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"

// ImageReference names an image by the first of Digest, SemVer and Tag that is set. The
// zero value stands for the tag latest.
type ImageReference struct {
	Tag string
	// SemVer is a range of versions and names the tag of the highest version in it. A
	// SemVerFilter is a regular expression, and tags that do not match it are ignored.
	SemVer, SemVerFilter string
	Digest               string
}

// Image is an image at one digest.
type Image struct {
	// Revision in Flux's form: <tag>@sha256:<hex>, or sha256:<hex>.
	Revision string
	// Digest of the manifest to which the tag pointed when Resolve asked.
	Digest string
}

// ImageOptions say which part of an image becomes the snapshot.
type ImageOptions struct {
	// MediaType chooses the first layer of this type, or the first layer if it is empty.
	MediaType string
	// Copy keeps the layer as a file and does not unpack it.
	Copy bool
	// Ignore has rules besides those in the layer, or is nil. No rules apply to a layer
	// that is kept as a file.
	Ignore *string
	// MaxBytes bounds the layer. 0 stands for the bound of Images.
	MaxBytes int64
}

// content identifies what is fetched.
func (o ImageOptions) content() string {
	return fmt.Sprintf("%q %t %d", o.MediaType, o.Copy, o.MaxBytes)
}

func (o ImageOptions) key() string {
	h := sha256.New()
	fmt.Fprintln(h, o.content())
	if o.Ignore != nil {
		fmt.Fprintf(h, "ignore %q\n", *o.Ignore)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Images makes snapshots of images in registries. It fetches an image that several
// objects name at the same origin once, and drops it with its last user. It is safe for
// concurrent use.
//
// A registry may be hostile: everything that it sends is bounded, nothing is unpacked
// whose digest is not the one in the request, and no other site gets the credential.
type Images struct {
	dir    string
	limits limits

	registries pool[registry]
	pulls      pool[pull]
	sigstore   sigstore
	// lists are answers with tags, by what they are asked for with their entity tag.
	lists *recent[string, listed]
}

// NewImages keeps unnamed files in dir. It refuses a layer of more than maxBytes. now is
// the clock by which roots of trust grow old.
func NewImages(dir string, maxBytes int64, now func() time.Time) *Images {
	return &Images{
		dir: dir, limits: limits{packBytes: maxBytes, inflatedBytes: MaxInflatedBytes, entriesMost: MaxEntries},
		sigstore: sigstore{now: now, fetch: fetchRoots}, lists: newRecent[string, listed](rememberLists),
	}
}

// pull is a layer that was fetched, with the annotations of its manifest.
type pull struct {
	annotations map[string]string
	root        node
	digest      string
	packed      *spool
	// registry keeps its connections open for the next request of the image's user.
	registry *registry
}

// do runs an operation at a registry. The library reads what a registry sends: if it
// panics, only this image has an error.
func (i *Images) do(ctx context.Context, origin ImageOrigin, reason string, f func(ctx context.Context, r *registry) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = failf(reason, "cannot read what the registry sent: %v", p)
		}
		if err != nil {
			// The library keeps failures to log in.
			i.registries.forget(origin.key())
		}
	}()
	r, err := i.registry(ctx, origin)
	if err != nil {
		return err
	}
	return f(boundedAnswers(ctx, false), r)
}

// imageError takes the reason of its cause if that has one.
func imageError(reason, what string, err error) error {
	err = said(err)
	var known *Error
	if errors.As(err, &known) {
		switch known.Reason {
		case ReasonLimitExceeded, ReasonAuthenticationFailed, ReasonURLInvalid:
			reason = known.Reason
		}
	}
	return failf(reason, "%s: %w", what, err)
}

// Resolve finds the image that a reference names. It asks by HEAD, and by GET only a
// registry that does not respond to HEAD. mediaType is that of the layer that Fetch will
// use: the tag of a chart has an underscore for the plus sign of its version.
func (i *Images) Resolve(ctx context.Context, origin ImageOrigin, ref ImageReference, mediaType string) (Image, error) {
	if ref.Digest != "" {
		repo, err := origin.repository()
		if err != nil {
			return Image{}, err
		}
		if _, err := v1.NewHash(ref.Digest); err != nil {
			return Image{}, failf(ReasonImagePullFailed, "cannot follow digest %q of %s: it is not of the form sha256:<hex>", ref.Digest, repo)
		}
		return Image{Revision: ref.Digest, Digest: ref.Digest}, nil
	}
	var found Image
	err := i.do(ctx, origin, ReasonImagePullFailed, func(ctx context.Context, r *registry) error {
		tag := cmp.Or(ref.Tag, name.DefaultTag)
		if ref.SemVer != "" {
			best, err := newestOf(ref, mediaType)
			if err != nil {
				return err
			}
			if err := i.visit(ctx, r, origin, func(tag string) error { return best.look(ctx, tag) }); err != nil {
				return err
			}
			if tag, err = best.found(ref); err != nil {
				return err
			}
		}
		// A text that is not a tag would let the registry choose the path of a request.
		at, err := name.NewTag(r.repo.Name()+":"+tag, name.StrictValidation)
		if err != nil {
			return failf(ReasonImagePullFailed, "cannot follow tag %q of %s: it is not allowed", short(tag, 200), r.repo)
		}
		at.Repository = r.repo
		var digest v1.Hash
		if head, err := r.puller.Head(ctx, at); err == nil {
			digest = head.Digest
		} else {
			if ctx.Err() != nil || After(err) > 0 {
				return imageError(ReasonImagePullFailed, fmt.Sprintf("cannot find image %s", at), err)
			}
			// Some registries respond only to GET.
			got, err := r.puller.Get(ctx, at)
			if err != nil {
				return imageError(ReasonImagePullFailed, fmt.Sprintf("cannot find image %s", at), err)
			}
			digest = got.Digest
		}
		found = Image{Revision: tag + "@" + digest.String(), Digest: digest.String()}
		return nil
	})
	return found, err
}

// newest is the tag of the highest version in a range, of those that were looked at.
type newest struct {
	constraint *semver.Constraints
	filter     *regexp.Regexp
	chart      bool
	version    *semver.Version
	tag        string
}

// newestOf begins to look for what a reference with a range names.
func newestOf(ref ImageReference, mediaType string) (*newest, error) {
	constraint, err := semver.NewConstraint(ref.SemVer)
	if err != nil {
		return nil, failf(ReasonReadFailed, "cannot read the version range %q in spec.ref.semver: %w", ref.SemVer, err)
	}
	filter, _, err := pattern.Compile(ref.SemVerFilter)
	if err != nil {
		return nil, failf(ReasonReadFailed, "cannot read spec.ref.semverFilter: %w", err)
	}
	return &newest{constraint: constraint, filter: filter, chart: mediaType == ChartMediaType}, nil
}

// look looks at one tag.
func (n *newest) look(ctx context.Context, tag string) error {
	if err := ctx.Err(); err != nil {
		return imageError(ReasonReadFailed, "cannot match tags with spec.ref.semverFilter", err)
	}
	if !n.filter.MatchString(tag) {
		return nil
	}
	written := tag
	if n.chart {
		written = strings.ReplaceAll(tag, "_", "+")
	}
	v, err := version.Parse(written)
	if err != nil || !n.constraint.Check(v) {
		return nil
	}
	// Build metadata has no order: of equal versions, the order of their tags
	// decides, so that it is the same one each time.
	if n.version == nil || v.GreaterThan(n.version) || (v.Equal(n.version) && tag > n.tag) {
		n.version, n.tag = v, tag
	}
	return nil
}

// found is the tag, or an error if none was in the range.
func (n *newest) found(ref ImageReference) (string, error) {
	if n.version == nil {
		return "", failf(ReasonReadFailed, "cannot find a tag in the version range %q", ref.SemVer)
	}
	return n.tag, nil
}

// Tags lists the tags of a repository in the order of the registry. It refuses more than MaxTags.
func (i *Images) Tags(ctx context.Context, origin ImageOrigin) ([]string, error) {
	var tags []string
	err := i.do(ctx, origin, ReasonReadFailed, func(ctx context.Context, r *registry) error {
		return i.visit(ctx, r, origin, func(tag string) error {
			if tags = append(tags, tag); len(tags) > MaxTags {
				return tooManyTags()
			}
			return nil
		})
	})
	return tags, err
}

// Fetch returns the snapshot of a layer. It returns last without a request if that is of
// the same image with the same options.
func (i *Images) Fetch(ctx context.Context, origin ImageOrigin, image Image, options ImageOptions, last *Snapshot) (*Snapshot, error) {
	asked := "image " + options.key()
	if last != nil && last.Revision == image.Revision && last.asked == asked {
		return last, nil
	}
	var got *pull
	err := i.do(ctx, origin, ReasonImagePullFailed, func(ctx context.Context, r *registry) (err error) {
		got, err = i.pulls.obtain(ctx, origin.key()+" "+image.Digest+" "+options.content(), func() (*pull, error) {
			return i.pull(ctx, r, image, options)
		})
		if err != nil {
			return imageError(ReasonOf(err), fmt.Sprintf("cannot fetch image %s@%s", r.repo, image.Digest), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s := &Snapshot{
		Revision: image.Revision, OriginRevision: got.annotations[originRevision], Digest: got.digest,
		File: image.Digest + ".tar.gz", Metadata: got.annotations,
		root: got.root, rules: &rules{id: "none"}, packed: got.packed, asked: asked, image: got,
	}
	if created, err := time.Parse(time.RFC3339, got.annotations["org.opencontainers.image.created"]); err == nil {
		s.Time = created
	}
	if options.Copy {
		return s, nil
	}
	s.Digest = treeDigest(s.root, options.Ignore)
	if last != nil && last.rules == nil {
		last = nil
	}
	if s.rules, err = newRules(s, options.Ignore, i.limits.entriesMost, last); err != nil {
		return nil, imageError(ReasonImageLayerFailed, fmt.Sprintf("cannot use image %s", image.Digest), err)
	}
	return s, nil
}

func (i *Images) pull(ctx context.Context, r *registry, image Image, options ImageOptions) (*pull, error) {
	descriptor, err := r.puller.Get(ctx, r.repo.Digest(image.Digest))
	if err != nil {
		return nil, failf(ReasonImagePullFailed, "cannot fetch manifest: %w", said(err))
	}
	img, err := descriptor.Image()
	if err != nil {
		return nil, failf(ReasonImagePullFailed, "cannot read manifest: %w", said(err))
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, failf(ReasonImageLayerFailed, "cannot read manifest: %w", said(err))
	}
	size := 0
	for k, v := range manifest.Annotations {
		if size += len(k) + len(v); size > maxMetadataBytes {
			return nil, failf(ReasonLimitExceeded, "the annotations of the manifest have more than %d bytes", maxMetadataBytes)
		}
	}
	layer, err := choose(manifest, options.MediaType)
	if err != nil {
		return nil, err
	}
	most := i.limits.packBytes
	if options.MaxBytes > 0 {
		most = min(most, options.MaxBytes)
	}
	if layer.Size > most {
		return nil, failf(ReasonLimitExceeded, "the layer has %d bytes, more than the limit of %d", layer.Size, most)
	}
	content, err := img.LayerByDigest(layer.Digest)
	if err != nil {
		return nil, failf(ReasonImageLayerFailed, "cannot find layer %s: %w", layer.Digest, said(err))
	}
	body, err := content.Compressed()
	if err != nil {
		return nil, failf(ReasonImageLayerFailed, "cannot fetch layer %s: %w", layer.Digest, said(err))
	}
	defer body.Close()
	// At the end of the layer, the library compares its size and digest.
	file, err := newSpool(ctx, i.dir, &limited{r: body, left: most, max: most, what: "the layer has", flag: "shrink it"})
	if err != nil {
		return nil, layerError(layer.Digest, err)
	}
	got := &pull{annotations: manifest.Annotations, registry: r}
	unpacked, err := file.unpack(ctx, i.limits)
	switch {
	case err == nil:
		got.root = unpacked.root
	case options.Copy && ctx.Err() == nil && ReasonOf(err) != ReasonLimitExceeded:
		// A layer that is kept as a file need not be a tarball.
		got.root = node{mode: filemode.Dir, in: opaque{failf(ReasonImageLayerFailed, "cannot unpack layer %s: %w", layer.Digest, err)}}
	default:
		file.close()
		return nil, layerError(layer.Digest, err)
	}
	if options.Copy {
		got.packed, got.digest = file, file.digest
	} else {
		unpacked.packed = nil
		file.close()
	}
	return got, nil
}

// choose finds the layer in a manifest.
func choose(manifest *v1.Manifest, mediaType string) (v1.Descriptor, error) {
	if len(manifest.Layers) == 0 {
		return v1.Descriptor{}, failf(ReasonImageLayerFailed, "the image has no layers")
	}
	if mediaType == "" {
		return manifest.Layers[0], nil
	}
	for _, layer := range manifest.Layers {
		if string(layer.MediaType) == mediaType {
			return layer, nil
		}
	}
	return v1.Descriptor{}, failf(ReasonImageLayerFailed, "the image has no layer with media type '%s'", mediaType)
}

func layerError(digest v1.Hash, err error) error {
	reason := ReasonImageLayerFailed
	if ReasonOf(err) == ReasonLimitExceeded {
		reason = ReasonLimitExceeded
	}
	return failf(reason, "cannot use layer %s: %w", digest, said(err))
}

// opaque is a directory that cannot be read. It stands for the content of a layer that
// is kept as a file.
type opaque struct{ err error }

func (o opaque) list(node) (listing, error) { return nil, o.err }

func (o opaque) open(node) (io.ReadCloser, int64, error) { return nil, 0, o.err }
