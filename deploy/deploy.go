// Package deploy has the manifests that put an agent into a cluster: the CRDs of
// the kinds that it reconciles, and its namespace, rights and Deployment.
//
// They are embedded, so that the binary that seeds a child is all that is
// needed, and versions cannot drift apart.
package deploy

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

//go:embed crds/*.yaml agent/*.yaml
var manifests embed.FS

// CRDs of the kinds that an agent reconciles.
func CRDs() ([]*unstructured.Unstructured, error) { return read("crds") }

// Agent returns the objects of an agent, split where the first must exist
// before the second makes sense: namespace and rights, and the Deployment.
func Agent(image string, args []string) (rights, workload []*unstructured.Unstructured, err error) {
	objects, err := read("agent")
	if err != nil {
		return nil, nil, err
	}
	for _, u := range objects {
		if u.GetKind() != "Deployment" {
			rights = append(rights, u)
			continue
		}
		if err := configure(u, image, args); err != nil {
			return nil, nil, err
		}
		workload = append(workload, u)
	}
	return rights, workload, nil
}

func configure(deployment *unstructured.Unstructured, image string, args []string) error {
	path := []string{"spec", "template", "spec", "containers"}
	containers, _, err := unstructured.NestedSlice(deployment.Object, path...)
	if err != nil || len(containers) != 1 {
		return fmt.Errorf("cannot configure agent: its Deployment must have one container")
	}
	container := containers[0].(map[string]any)
	container["image"] = image
	for _, arg := range args {
		container["args"] = append(container["args"].([]any), arg)
	}
	for _, item := range container["env"].([]any) {
		if env := item.(map[string]any); env["name"] == "CASCADE_IMAGE" {
			env["value"] = image
		}
	}
	return unstructured.SetNestedSlice(deployment.Object, containers, path...)
}

func read(dir string) ([]*unstructured.Unstructured, error) {
	files, err := fs.Glob(manifests, dir+"/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("cannot list manifests: %w", err)
	}
	var objects []*unstructured.Unstructured
	for _, name := range files {
		data, err := manifests.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read manifest %s: %w", name, err)
		}
		found, err := ssautil.ReadObjects(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("cannot parse manifest %s: %w", name, err)
		}
		objects = append(objects, found...)
	}
	return objects, nil
}
