package fetch

import (
	"context"
	"fmt"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// Tags reads annotated tags of a repository, with its credential and within its deadline;
// see source.Mirrors.
func (r *GitRepositories) Tags(ctx context.Context, repository types.NamespacedName, pick func(commits map[string]string) []string) ([]source.Tag, error) {
	var tags []source.Tag
	err := r.at(ctx, repository, func(ctx context.Context, origin source.Origin) (err error) {
		tags, err = r.Mirrors.Tags(ctx, origin, pick)
		return err
	})
	return tags, err
}

// Contains reports whether a commit is in the history of another one of a repository; see
// source.Mirrors.
func (r *GitRepositories) Contains(ctx context.Context, repository types.NamespacedName, tip, commit, tag string) (bool, error) {
	var contains bool
	err := r.at(ctx, repository, func(ctx context.Context, origin source.Origin) (err error) {
		contains, err = r.Mirrors.Contains(ctx, origin, tip, commit, tag)
		return err
	})
	return contains, err
}

// Push writes an annotated tag into a repository, with the credential of a Secret rather
// than with its own, and signs it if the Secret has a key for that.
func (r *GitRepositories) Push(ctx context.Context, repository, secret types.NamespacedName, tag source.NewTag) (string, error) {
	var hash string
	err := r.at(ctx, repository, func(ctx context.Context, origin source.Origin) (err error) {
		if origin.Secret, err = r.secret(ctx, secret.Namespace, secret.Name, source.ReasonAuthenticationFailed); err != nil {
			return err
		}
		origin.Login = nil
		tag.SigningKey, tag.Passphrase = origin.Secret[signingKey], origin.Secret[signingPassphrase]
		hash, err = r.Mirrors.Push(ctx, origin, tag)
		return err
	})
	return hash, err
}

// Keys of the Secret that Push writes with.
const (
	signingKey        = "signingKey"
	signingPassphrase = "signingPassphrase"
)

// SigningKeys verify what Push signs with a Secret; none if it signs nothing.
func (r *GitRepositories) SigningKeys(ctx context.Context, secret types.NamespacedName) (source.Verification, error) {
	data, err := r.secret(ctx, secret.Namespace, secret.Name, source.ReasonAuthenticationFailed)
	if err != nil {
		return source.Verification{}, err
	}
	return source.SigningKeys(data[signingKey], data[signingPassphrase])
}

// Write makes a commit in a repository with the credential of its GitRepository, and within its deadline; see
// source.Mirrors.
func (r *GitRepositories) Write(ctx context.Context, repository types.NamespacedName, draft source.Draft) (source.Written, error) {
	var written source.Written
	err := r.at(ctx, repository, func(ctx context.Context, origin source.Origin) (err error) {
		written, err = r.Mirrors.Write(ctx, origin, draft)
		return err
	})
	return written, err
}

// ReferenceOf is what a GitRepository follows, or what another reference in its place would.
func ReferenceOf(ref *sourcev1.GitRepositoryRef) source.Reference {
	return reference(&sourcev1.GitRepository{Spec: sourcev1.GitRepositorySpec{Reference: ref}})
}

// Registry is what an object says of the way to a repository of images.
type Registry struct {
	// Image without a scheme and without a tag.
	Image, Provider             string
	Secret, Certificates, Proxy *meta.LocalObjectReference
	Account                     string
	Insecure                    bool
}

// Registry gathers what a repository of images is read with, as for an OCIRepository.
func (s *Sources) Registry(ctx context.Context, key source.Key, r Registry) (source.ImageOrigin, error) {
	return s.imageOrigin(ctx, key, registryAccess{
		url: sourcev1.OCIRepositoryPrefix + r.Image, provider: r.Provider, secret: r.Secret, account: r.Account,
		certificates: r.Certificates, proxy: r.Proxy, insecure: r.Insecure,
	})
}

// Keys are the public keys in a Secret, as spec.verify of a GitRepository has them.
func (r *GitRepositories) Keys(ctx context.Context, secret types.NamespacedName) (source.Verification, error) {
	data, err := r.secret(ctx, secret.Namespace, secret.Name, sourcev1.VerificationError)
	return keysOf(data), err
}

// keysOf sorts the keys of a Secret by their kind.
func keysOf(data map[string][]byte) source.Verification {
	var v source.Verification
	for name, value := range data {
		if strings.HasSuffix(name, sshKeys) {
			v.AuthorizedKeys = append(v.AuthorizedKeys, string(value))
		} else {
			// Of any name, though they should end with .asc: so does Flux.
			v.KeyRings = append(v.KeyRings, string(value))
		}
	}
	return v
}

// at calls f with where a repository is, and with the deadline that it has.
func (r *GitRepositories) at(ctx context.Context, repository types.NamespacedName, f func(context.Context, source.Origin) error) error {
	obj := &sourcev1.GitRepository{}
	if err := r.Client.Get(ctx, repository, obj); err != nil {
		return fmt.Errorf("cannot read GitRepository %s: %w", repository, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeoutOf(obj.Spec.Timeout))
	defer cancel()
	origin, err := r.origin(ctx, source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: repository}, obj)
	if err != nil {
		return err
	}
	return f(ctx, origin)
}
