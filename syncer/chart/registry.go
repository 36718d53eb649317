package chart

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// images is a Registry.
type images struct {
	images *source.Images
	origin source.ImageOrigin
	most   int64
}

// NewRegistry reads charts from a registry with the credential of an origin.
// The URL of the origin is not used. A chart of more than maxBytes is refused.
func NewRegistry(from *source.Images, origin source.ImageOrigin, maxBytes int64) Registry {
	return &images{images: from, origin: origin, most: maxBytes}
}

func (i *images) Identity() string {
	o := i.origin
	var login, proxy string
	if o.Login != nil {
		login = o.Login.Identity
	}
	if o.Proxy != nil {
		proxy = o.Proxy.String()
	}
	return digest.Of(fmt.Sprintf("%q", o.Secrets), fmt.Sprintf("%q", o.Certificates), login, proxy, fmt.Sprint(o.Insecure)).Hex()
}

func (i *images) at(repository string) source.ImageOrigin {
	o := i.origin
	o.URL = OCI + "://" + repository
	return o
}

func (i *images) Tags(ctx context.Context, repository string) ([]string, error) {
	return i.images.Tags(ctx, i.at(repository))
}

func (i *images) Resolve(ctx context.Context, repository, tag string) (string, error) {
	image, err := i.images.Resolve(ctx, i.at(repository), source.ImageReference{Tag: tag}, source.ChartMediaType)
	return image.Digest, err
}

func (i *images) Pull(ctx context.Context, repository, digest string) (io.ReadCloser, error) {
	s, err := i.images.Fetch(ctx, i.at(repository), source.Image{Revision: digest, Digest: digest},
		source.ImageOptions{MediaType: source.ChartMediaType, Copy: true, MaxBytes: i.most}, nil)
	if err != nil {
		return nil, err
	}
	file, ok := s.Packed()
	if !ok {
		return nil, errors.New("the image has no file")
	}
	return io.NopCloser(file), nil
}
