package origins

import (
	"fmt"
	"io"
	"log"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types of what is pushed.
const (
	ChartConfig  = types.MediaType("application/vnd.cncf.helm.config.v1+json")
	ChartContent = types.MediaType("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
	FluxConfig   = types.MediaType("application/vnd.cncf.flux.config.v1+json")
	FluxContent  = types.MediaType("application/vnd.cncf.flux.content.v1.tar+gzip")
)

// Registry is an OCI registry by HTTP.
type Registry struct {
	server
	login Login
}

// StartRegistry starts one that wants a login. It must be closed.
func StartRegistry(login Login) *Registry {
	r := &Registry{login: login}
	r.listen(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)), login.deny)
	return r
}

// URL of a repository, as sources name it.
func (r *Registry) URL(repository string) string { return "oci://" + r.Address() + "/" + repository }

// PushChart pushes a chart as Helm does, under its name below a repository and
// tagged with its version, and returns the digest of its manifest.
func (r *Registry) PushChart(repository string, c Chart) (string, error) {
	return r.push(repository+"/"+c.Name, c.Version, ChartConfig, nil, static.NewLayer(c.Pack(), ChartContent))
}

// PushFiles pushes files as Flux does, and returns the digest of the manifest.
func (r *Registry) PushFiles(repository, tag string, files, annotations map[string]string) (string, error) {
	return r.push(repository, tag, FluxConfig, annotations, static.NewLayer(Tarball(files), FluxContent))
}

// Layer is one of an image.
type Layer struct {
	MediaType types.MediaType
	Content   []byte
}

// PushLayers pushes layers as they are, and returns the digest of the manifest.
func (r *Registry) PushLayers(repository, tag string, layers ...Layer) (string, error) {
	var all []v1.Layer
	for _, l := range layers {
		all = append(all, static.NewLayer(l.Content, l.MediaType))
	}
	return r.push(repository, tag, FluxConfig, nil, all...)
}

func (r *Registry) push(repository, tag string, config types.MediaType, annotations map[string]string, layers ...v1.Layer) (string, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), config)
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		return "", fmt.Errorf("cannot make image %s: %w", repository, err)
	}
	if annotations != nil {
		image = mutate.Annotations(image, annotations).(v1.Image)
	}
	return r.Push(repository, tag, image)
}

// Push pushes an image and returns the digest of its manifest.
func (r *Registry) Push(repository, tag string, image v1.Image) (string, error) {
	ref, err := name.ParseReference(r.Address()+"/"+repository+":"+tag, name.Insecure)
	if err != nil {
		return "", fmt.Errorf("cannot parse reference of %s: %w", repository, err)
	}
	if err := remote.Write(ref, image, remote.WithAuth(r.Auth())); err != nil {
		return "", fmt.Errorf("cannot push %s: %w", ref, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return "", err
	}
	return digest.String(), nil
}

// Auth is the login, for the libraries that clients use.
func (r *Registry) Auth() authn.Authenticator {
	if r.login == (Login{}) {
		return authn.Anonymous
	}
	return &authn.Basic{Username: r.login.Username, Password: r.login.Password}
}
