package render

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/kyaml/resid"
)

// item is one object between the build and the rendering. It is held as
// kustomize's resource, as text, or as both; text is nil until it is wanted and
// after the resource changed.
type item struct {
	resource *resource.Resource
	text     []byte
	// read is what text says, nil until it is wanted. Usually it is one object;
	// substitution can make a list or nothing of it.
	read []*unstructured.Unstructured
	// plain: read is known without parsing text, and writing and reading text
	// any number of times changes nothing.
	plain bool
}

// yaml is the object as kustomize writes it.
func (i *item) yaml() ([]byte, error) {
	if i.text == nil {
		text, err := i.resource.AsYAML()
		if err != nil {
			return nil, fmt.Errorf("cannot write the build: %w", err)
		}
		i.text = text
	}
	return i.text, nil
}

func (i *item) objects() ([]*unstructured.Unstructured, error) {
	if i.read == nil {
		text, err := i.yaml()
		if err != nil {
			return nil, err
		}
		if i.read, err = ssautil.ReadObjects(bytes.NewReader(text)); err != nil {
			return nil, err
		}
	}
	return i.read, nil
}

// changed forgets what followed from the resource.
func (i *item) changed(r *resource.Resource) {
	*i = item{resource: r}
}

func (i *item) kind() string {
	if i.resource != nil {
		return i.resource.GetKind()
	}
	return i.read[0].GetKind()
}

func (i *item) apiVersion() string {
	if i.resource != nil {
		return i.resource.GetApiVersion()
	}
	return i.read[0].GetAPIVersion()
}

func (i *item) name() string {
	if i.resource != nil {
		return i.resource.GetName()
	}
	return i.read[0].GetName()
}

func (i *item) namespace() string {
	if i.resource != nil {
		return i.resource.GetNamespace()
	}
	return i.read[0].GetNamespace()
}

// marked tells whether a label or an annotation has a value.
func (i *item) marked(key, value string) bool {
	if i.resource != nil {
		return i.resource.GetLabels()[key] == value || i.resource.GetAnnotations()[key] == value
	}
	return i.read[0].GetLabels()[key] == value || i.read[0].GetAnnotations()[key] == value
}

// identity is what kustomize takes for the same object: two items of a build
// must not share it.
type identity struct {
	group, version, kind, namespace, name string
}

// identity asks kyaml which kinds are cluster-scoped. It knows the built-in ones
// without a schema.
func (i *item) identity() identity {
	return identityOf(i.apiVersion(), i.kind(), i.namespace(), i.name())
}

func identityOf(apiVersion, kind, namespace, name string) identity {
	group, version := resid.ParseGroupVersion(apiVersion)
	id := resid.NewResIdWithNamespace(resid.NewGvk(group, version, kind), name, namespace)
	return identity{group, version, kind, id.EffectiveNamespace(), name}
}

// digestOfYAML is the digest of all that was built, written as one stream.
func digestOfYAML(built []*item) (string, error) {
	h := sha256.New()
	for n, i := range built {
		if n > 0 {
			h.Write([]byte("---\n"))
		}
		text, err := i.yaml()
		if err != nil {
			return "", err
		}
		h.Write(text)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// quiet tells whether text cannot hold a variable.
func quiet(text []byte) bool { return bytes.IndexByte(text, '$') < 0 }

func isList(kind string) bool { return strings.HasSuffix(kind, "List") }
