package layout

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Dir is the directory of the agent below the path of a tier.
const Dir = "cascade-system"

// Files of a layout.
const (
	agentFile         = "agent.yaml"
	syncFile          = "sync.yaml"
	kustomizationFile = "kustomization.yaml"
	componentsFile    = "gotk-components.yaml"
	fluxSyncFile      = "gotk-sync.yaml"
)

const crdKind = "CustomResourceDefinition"

// Changes are the files that change, by their path in the repository. Nil: the file goes.
type Changes map[string][]byte

// set notes a file, unless it is there already with this content.
func (c Changes) set(tree fs.FS, name string, content []byte) error {
	old, err := read(tree, name)
	if err != nil {
		return err
	}
	if old == nil || !bytes.Equal(old, content) {
		c[name] = content
	}
	return nil
}

// Names of the files that change, in order.
func (c Changes) Names() []string { return slices.Sorted(maps.Keys(c)) }

// read returns a file, nil if there is none.
func read(tree fs.FS, name string) ([]byte, error) {
	text, err := fs.ReadFile(tree, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s of the repository: %w", name, err)
	}
	if text == nil {
		text = []byte{}
	}
	return text, nil
}

// Clean is the path of a tier as a tree of files has it, "." for the whole repository.
func Clean(tier string) (string, error) {
	clean := path.Clean(strings.TrimLeft(strings.TrimPrefix(tier, "./"), "/"))
	if clean == "" {
		clean = "."
	}
	if !fs.ValidPath(clean) {
		return "", fmt.Errorf("cannot use path %q: it must be below the root of the repository", tier)
	}
	return clean, nil
}

// SamePlace reports whether two URLs lead to one repository, by whatever protocol and login. By one
// protocol another port is another server.
func SamePlace(a, b string) bool {
	one, err := url.Parse(a)
	other, errOther := url.Parse(b)
	if err != nil || errOther != nil {
		return a == b
	}
	path := func(u *url.URL) string { return strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git") }
	port := func(u *url.URL) string {
		return cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443", "ssh": "22"}[u.Scheme])
	}
	return strings.EqualFold(one.Hostname(), other.Hostname()) && path(one) == path(other) && (one.Scheme != other.Scheme || port(one) == port(other))
}

// objectsOf reads the objects of a file.
func objectsOf(tree fs.FS, name string) ([]*unstructured.Unstructured, error) {
	text, err := read(tree, name)
	if err != nil || text == nil {
		return nil, err
	}
	objects, err := ssautil.ReadObjects(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("cannot parse %s of the repository: %w", name, err)
	}
	return objects, nil
}

// Objects are those of a file of a tier's agent, none if there is no such file.
func Objects(tree fs.FS, tier string) ([]*unstructured.Unstructured, error) {
	return objectsOf(tree, path.Join(tier, Dir, agentFile))
}

// hint tells a person who opens the file where changes belong.
const hint = "# Written by cascade bootstrap, which replaces it. Changes belong into patches of kustomization.yaml,\n" +
	"# or into the flags of cascade bootstrap.\n"

// render is the text of objects in a file.
func render(objects []*unstructured.Unstructured) ([]byte, error) {
	text, err := ssautil.ObjectsToYAML(objects)
	if err != nil {
		return nil, fmt.Errorf("cannot write manifests: %w", err)
	}
	return []byte(hint + "---\n" + strings.TrimSuffix(text, "---\n")), nil
}

// keptAnnotation keeps Flux's controllers and the agent from deleting an object that Git does
// not declare any more.
const keptAnnotation = "kustomize.toolkit.fluxcd.io/prune"

// kept marks what must not go with the files of the agent: with the Namespace its records
// would go, and with a definition all objects of the kind, Children of living clusters among it.
func kept(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	var marked []*unstructured.Unstructured
	for _, u := range objects {
		if kind := u.GetKind(); kind == "Namespace" || kind == crdKind {
			u = u.DeepCopy()
			annotations := u.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[keptAnnotation] = "disabled"
			u.SetAnnotations(annotations)
		}
		marked = append(marked, u)
	}
	return marked
}
