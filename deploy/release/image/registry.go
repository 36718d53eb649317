package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// userAgent of requests.
const userAgent = "cascade-release"

// Options of all requests to a registry: the credentials of docker's configuration, and
// of the programs that it names. A registry on loopback is asked without TLS.
func Options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent(userAgent),
	}
}

// Push sends a layout to a repository: the images, the documents that refer to them, and
// at last the index under a tag. It returns the reference by digest.
func Push(ctx context.Context, l Layout, repository name.Repository, tag string) (name.Digest, error) {
	pusher, err := remote.NewPusher(Options(ctx)...)
	if err != nil {
		return name.Digest{}, fmt.Errorf("cannot prepare a push to %s: %w", repository, err)
	}
	digest, err := l.Index.Digest()
	if err != nil {
		return name.Digest{}, fmt.Errorf("cannot read index: %w", err)
	}
	reference := repository.Digest(digest.String())
	if err := pusher.Push(ctx, reference, l.Index); err != nil {
		return name.Digest{}, fmt.Errorf("cannot push the images to %s: %w", repository, err)
	}
	for _, r := range l.Referrers {
		d, err := r.Digest()
		if err != nil {
			return name.Digest{}, fmt.Errorf("cannot read what refers to an image: %w", err)
		}
		if err := pusher.Push(ctx, repository.Digest(d.String()), r); err != nil {
			return name.Digest{}, fmt.Errorf("cannot push %s to %s: %w", d, repository, err)
		}
	}
	if err := pusher.Push(ctx, repository.Tag(tag), l.Index); err != nil {
		return name.Digest{}, fmt.Errorf("cannot push tag %s to %s: %w", tag, repository, err)
	}
	return reference, nil
}

// Pushed tells whether a registry has the manifests of a layout, and names the first that
// it lacks.
func Pushed(ctx context.Context, l Layout, repository name.Repository) error {
	digests, err := l.Digests()
	if err != nil {
		return err
	}
	for _, d := range digests {
		if err := present(ctx, repository, d); err != nil {
			return err
		}
	}
	return nil
}

func present(ctx context.Context, repository name.Repository, digest v1.Hash) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := remote.Head(repository.Digest(digest.String()), Options(ctx)...)
	var refused *transport.Error
	if errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound {
		return fmt.Errorf("cannot find %s in %s: push it first", digest, repository)
	}
	if err != nil {
		return fmt.Errorf("cannot ask %s for %s: %w", repository, digest, err)
	}
	return nil
}
