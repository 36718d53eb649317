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
	"slices"
	"strconv"
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

// Options of an agent's Deployment.
type Options struct {
	Image string
	// Args are added to the agent's command line.
	Args []string
	// Replicas share the tier's Children out; 0 and 1 are one, which drives all.
	Replicas int32
}

// MostReplicas bounds Options.Replicas: an agent takes no more than twice as many shards.
const MostReplicas = 32

// shardsFlag says how many shards the replicas share out.
const shardsFlag = "--shards="

// arguments of the agent. Twice as many shards as replicas spread those of one that dies
// over all others.
func (o Options) arguments() []string {
	named := func(arg string) bool {
		return arg == strings.TrimSuffix(shardsFlag, "=") || strings.HasPrefix(arg, shardsFlag)
	}
	if o.Replicas <= 1 || slices.ContainsFunc(o.Args, named) {
		return o.Args
	}
	return append(slices.Clone(o.Args), shardsFlag+strconv.Itoa(2*int(o.Replicas)))
}

// Agent returns the objects of an agent, split where the first must exist
// before the second makes sense: namespace and rights, and the Deployment.
func Agent(o Options) (rights, workload []*unstructured.Unstructured, err error) {
	if o.Replicas < 0 || o.Replicas > MostReplicas {
		return nil, nil, fmt.Errorf("cannot run %d replicas of an agent: it must be from 1 to %d", o.Replicas, MostReplicas)
	}
	objects, err := read("agent")
	if err != nil {
		return nil, nil, err
	}
	for _, u := range objects {
		if u.GetKind() != "Deployment" {
			rights = append(rights, u)
			continue
		}
		if err := configure(u, o); err != nil {
			return nil, nil, err
		}
		workload = append(workload, u)
	}
	return rights, workload, nil
}

func configure(deployment *unstructured.Unstructured, o Options) error {
	path := []string{"spec", "template", "spec", "containers"}
	containers, _, err := unstructured.NestedSlice(deployment.Object, path...)
	if err != nil || len(containers) != 1 {
		return fmt.Errorf("cannot configure agent: its Deployment must have one container")
	}
	container := containers[0].(map[string]any)
	container["image"] = o.Image
	for _, arg := range o.arguments() {
		container["args"] = append(container["args"].([]any), arg)
	}
	for _, item := range container["env"].([]any) {
		if env := item.(map[string]any); env["name"] == "CASCADE_IMAGE" {
			env["value"] = o.Image
		}
	}
	if o.Replicas > 1 {
		if err := unstructured.SetNestedField(deployment.Object, int64(o.Replicas), "spec", "replicas"); err != nil {
			return fmt.Errorf("cannot configure agent: %w", err)
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
