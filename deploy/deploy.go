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
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

//go:embed crds/*.yaml agent/*.yaml
var manifests embed.FS

// FluxVersion is the release of Flux whose kinds, as they are in crds, the agent
// serves. Flux's command line prints it and decides by it what it may use.
const FluxVersion = "v2.9.5"

// partOf is the label by which Flux's command line finds what belongs to an
// installation.
const partOf = "app.kubernetes.io/part-of"

// CRDs of the kinds that an agent reconciles. Flux's own carry the labels that
// flux check and flux version look for, and by which flux uninstall removes them;
// ours do not: what Flux's command line removes is Flux's.
func CRDs() ([]*unstructured.Unstructured, error) {
	crds, err := read("crds")
	if err != nil {
		return nil, err
	}
	for _, u := range crds {
		group, _, err := unstructured.NestedString(u.Object, "spec", "group")
		if err != nil {
			return nil, fmt.Errorf("cannot label CRD %s: %w", u.GetName(), err)
		}
		if !strings.HasSuffix(group, ".toolkit.fluxcd.io") {
			continue
		}
		labels := u.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[partOf] = "flux"
		labels["app.kubernetes.io/instance"] = v1alpha1.AgentNamespace
		labels["app.kubernetes.io/version"] = FluxVersion
		u.SetLabels(labels)
	}
	return crds, nil
}

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
