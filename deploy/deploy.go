// Package deploy has the manifests that put an agent into a cluster: the CRDs of
// the kinds that it reconciles, and its namespace, rights and Deployment.
//
// They are embedded, so that the binary that seeds a child is all that is
// needed, and versions cannot drift apart. Agent turns values into objects: what
// `cascade install` applies, what a layer pushes, and what the chart and the base of this
// directory render come from it.
//
// Invariants: the same options give the same objects, which nobody else has; values that
// cannot be are an error that names the field. It is pure.
package deploy

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

//go:embed crds/*.yaml agent/*.yaml options/*.yaml
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
		if !v1alpha1.IsFluxGroup(group) {
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

func read(dir string) ([]*unstructured.Unstructured, error) {
	files, err := fs.Glob(manifests, dir+"/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("cannot list manifests: %w", err)
	}
	var objects []*unstructured.Unstructured
	for _, name := range files {
		found, err := readIn(v1alpha1.AgentNamespace, name)
		if err != nil {
			return nil, err
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// readIn reads a file of manifests that name the agent's namespace, also in policies.
func readIn(namespace, file string) ([]*unstructured.Unstructured, error) {
	data, err := manifests.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read manifest %s: %w", file, err)
	}
	data = bytes.ReplaceAll(data, []byte(v1alpha1.AgentNamespace), []byte(namespace))
	objects, err := ssautil.ReadObjects(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("cannot parse manifest %s: %w", file, err)
	}
	return objects, nil
}
