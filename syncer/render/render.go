package render

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/ssa/normalize"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/resource"
	kustypes "sigs.k8s.io/kustomize/api/types"

	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// decryptKey on an object says that it is to stay encrypted.
const decryptKey = "kustomize.toolkit.fluxcd.io/decrypt"

// ErrPathNotFound: the source has no such directory.
var ErrPathNotFound = errors.New("path not found")

// Build has the fields of a Kustomization that shape its rendering.
type Build struct {
	// Path of the directory in the source; empty is the root.
	Path                    string
	TargetNamespace         string
	NamePrefix              string
	NameSuffix              string
	Patches                 []kustypes.Patch
	Images                  []kustypes.Image
	Components              []string
	IgnoreMissingComponents bool
	BuildMetadata           []string
	CommonLabels            map[string]string
	CommonAnnotations       map[string]string
	// Variables are substituted after the build. With none, and Always unset,
	// nothing is.
	Variables map[string]string
	Always    bool
	// Sensitive are values among the variables that no error of Render contains.
	Sensitive []string
	// Lenient puts an empty string for a variable that is neither set nor has
	// a default, which is an error otherwise.
	Lenient bool
	// NoDigest leaves the digest of the rendering empty: it takes the text of every
	// object, which nothing else may need.
	NoDigest bool
	// Decrypter decrypts what SOPS encrypted; nil is none.
	Decrypter Decrypter
	// Keys identifies what Decrypter decrypts with, for Key. Renderings are not
	// reused across keys.
	Keys string
	// Workers run kustomize, with Tasks. What plain directories need not is refused
	// without them.
	Workers worker.Runner
}

// Decrypter decrypts for one build, which calls it from one goroutine.
type Decrypter interface {
	// File decrypts a file that a kustomization file names as a source of a
	// Secret, and returns other files as they are. The ending of
	// name tells the format; it is not always the file's own: the key of a
	// Secret decides, and what is read for its variables is dotenv if nothing
	// else is said.
	File(ctx context.Context, name string, data []byte) ([]byte, error)
	// Patch is File for a patch, the values of which get into objects of any kind.
	Patch(ctx context.Context, name string, data []byte) ([]byte, error)
	// Resource decrypts an object in place and returns it, or returns nil when
	// there is nothing to decrypt. It is called for objects with a `sops` field
	// and for Secrets.
	Resource(ctx context.Context, r *resource.Resource) (*resource.Resource, error)
	// Plain are the values that it decrypted so far, which no error of Render contains.
	Plain() []string
}

// secrets are the values that no error contains.
func (b Build) secrets() []string {
	if b.Decrypter == nil {
		return b.Sensitive
	}
	return slices.Concat(b.Sensitive, b.Decrypter.Plain())
}

// Key identifies the inputs of the build other than files: with the same key and
// an unchanged ReadSet, Render returns the same again. It holds no values, only
// a digest of them.
func (b Build) Key() string {
	fields := []string{
		b.Path, b.TargetNamespace, b.NamePrefix, b.NameSuffix, fmt.Sprint(b.IgnoreMissingComponents, b.Always, b.Lenient, b.Decrypter != nil, b.NoDigest), b.Keys,
		"components", fmt.Sprint(len(b.Components)),
	}
	fields = append(fields, b.Components...)
	fields = append(fields, "metadata", fmt.Sprint(len(b.BuildMetadata)))
	fields = append(fields, b.BuildMetadata...)
	// Patches and images came as JSON, and go to kustomize as YAML.
	rest, err := json.Marshal(struct {
		Patches []kustypes.Patch
		Images  []kustypes.Image
	}{b.Patches, b.Images})
	fields = append(fields, string(rest), fmt.Sprint(err))
	for _, m := range []map[string]string{b.CommonLabels, b.CommonAnnotations, b.Variables} {
		fields = append(fields, "map", fmt.Sprint(len(m)))
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fields = append(fields, k, m[k])
		}
	}
	return digest.Of(fields...).String()
}

// Rendering is what a build produced.
type Rendering struct {
	// Objects in kustomize's order, normalised. The caller owns them.
	Objects []*unstructured.Unstructured
	// Digest of the built YAML, sha256:<hex>, as Flux keeps it in
	// status.history: after substitution, before commonMetadata and
	// normalisation.
	Digest string
	// Reads tells what the build depends on.
	Reads *ReadSet
}

// Error is a permanent failure: it comes again while Reads is unchanged and the Build is
// the same. A failure that can pass by itself, such as an unreadable source or a key that
// could not be fetched, is an error of another type.
type Error struct {
	Reads *ReadSet
	err   error
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Render builds the objects that files and b declare.
func Render(ctx context.Context, files Files, b Build) (*Rendering, error) {
	var r *Rendering
	reads, err := readingFrom(ctx, files, b, func(fsys *fileSystem, dir string) error {
		built, err := assemble(ctx, fsys, dir, b)
		if err != nil {
			return err
		}
		r, err = finish(ctx, fsys, built, b)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.Reads = reads
	return r, nil
}

// readingFrom has do build from files, and returns what was read meanwhile.
func readingFrom(ctx context.Context, files Files, b Build, do func(fsys *fileSystem, dir string) error) (*ReadSet, error) {
	fsys := newFileSystem(ctx, files)
	fsys.decrypter = b.Decrypter
	dir := rooted(b.Path)
	err := do(fsys, dir)
	if err == nil {
		// Without this error the rendering would lack objects.
		err = fsys.failed
	}
	if err != nil {
		err = shorten(mask.Error(err, b.secrets()))
		if passing := fsys.failed != nil && !fsys.refused; passing || fsys.passing || fsys.keys != nil || ctx.Err() != nil {
			return nil, err
		}
		return nil, &Error{Reads: fsys.reads.set(dir), err: err}
	}
	return fsys.reads.set(dir), nil
}

// maxError bounds the text of an error: YAML libraries report every pair of
// fields with the same name, and kustomize every directory on the way.
const maxError = 4 << 10

func shorten(err error) error {
	text := err.Error()
	if len(text) <= maxError {
		return err
	}
	return mask.Reword(err, strings.ToValidUTF8(text[:maxError], "")+"...")
}

// assemble builds what does not depend on variables.
func assemble(ctx context.Context, fsys *fileSystem, dir string, b Build) ([]*item, error) {
	isDir, _, err := fsys.stat(dir)
	if fsys.note(err) != nil && fsys.failed != nil {
		return nil, fmt.Errorf("cannot find %s: %w", dir, err)
	}
	if err != nil || !isDir {
		return nil, fmt.Errorf("%w: the source has no directory %q", ErrPathNotFound, strings.TrimPrefix(dir, "/"))
	}
	begin, err := kustomization(fsys, dir, b)
	if fsys.failed != nil {
		err = fsys.failed
	}
	if err != nil {
		return nil, fmt.Errorf("cannot generate kustomization: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	built, err := plain(fsys, dir, begin)
	if fsys.failed == nil && errors.Is(err, errDoubt) {
		built, err = kustomize(fsys, dir, begin, b.Workers)
	}
	var exceeded *worker.Exceeded
	if err != nil && fsys.failed == nil && !fsys.passing && !errors.As(err, &exceeded) {
		if blame := begin.blame(fsys); blame != nil {
			err = blame
		}
	}
	if fsys.failed != nil {
		err = fsys.failed
	}
	if err != nil {
		return nil, fmt.Errorf("cannot build: %w", err)
	}
	return built, nil
}

// finish decrypts, substitutes variables, and turns what was built into objects.
func finish(ctx context.Context, fsys *fileSystem, built []*item, b Build) (*Rendering, error) {
	if err := edit(ctx, fsys, built, b); err != nil {
		return nil, err
	}
	r := &Rendering{Objects: make([]*unstructured.Unstructured, 0, len(built))}
	if !b.NoDigest {
		var err error
		if r.Digest, err = digestOfYAML(built); err != nil {
			return nil, err
		}
	}
	for _, i := range built {
		objects, err := i.objects()
		if err != nil {
			return nil, fmt.Errorf("cannot read the build: %w", err)
		}
		r.Objects = append(r.Objects, objects...)
	}
	if err := unsealed(r.Objects); err != nil {
		return nil, err
	}
	if err := normalized(r.Objects); err != nil {
		return nil, err
	}
	mark(r.Objects, b)
	return r, nil
}

// unsealed refuses Secrets that are still encrypted. It looks before they are normalised,
// which drops fields that the kind has not.
func unsealed(objects []*unstructured.Unstructured) error {
	for _, u := range objects {
		if ssautil.IsSecret(u) && u.Object["sops"] != nil && !strings.EqualFold(u.GetAnnotations()[decryptKey], "disabled") {
			return fmt.Errorf("cannot apply Secret %s/%s: it is SOPS encrypted and decryption is not configured", u.GetNamespace(), u.GetName())
		}
	}
	return nil
}

func normalized(objects []*unstructured.Unstructured) error {
	if err := normalize.UnstructuredList(objects); err != nil {
		return fmt.Errorf("cannot normalise the build: %w", err)
	}
	return nil
}

// mark gives objects the metadata that all of the build have.
func mark(objects []*unstructured.Unstructured, b Build) {
	if len(b.CommonLabels) > 0 || len(b.CommonAnnotations) > 0 {
		ssautil.SetCommonMetadata(objects, b.CommonLabels, b.CommonAnnotations)
	}
}
