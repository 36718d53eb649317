package render

import (
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resource"
	kustypes "sigs.k8s.io/kustomize/api/types"
)

// plainBuild builds directories of manifests, which most directories are, and
// kustomization files that only list resources, without kustomize. kustomize takes time
// in the square of the number of objects and needs an OpenAPI schema; plainBuild reads
// each file and each object once. The result is the same. What is in doubt, or fails, is
// left to kustomize.
type plainBuild struct {
	fsys  *fileSystem
	built []*item
	ids   map[identity]bool
}

// plain builds what begin says, or returns errDoubt.
func plain(fsys *fileSystem, dir string, begin *start) ([]*item, error) {
	if !onlyResources(begin.k) {
		return nil, errDoubt
	}
	p := &plainBuild{fsys: fsys, ids: map[identity]bool{}}
	if !begin.generated {
		if err := p.alone(dir, path.Base(begin.file)); err != nil {
			return nil, err
		}
		err := p.resources(dir, begin.k.Resources, nil)
		return p.built, err
	}
	for _, f := range begin.found {
		if !plainPath.MatchString(f.path) {
			return nil, errDoubt
		}
		var err error
		if f.dir {
			err = p.directory(f.path, []string{dir})
		} else {
			err = p.file(f.path)
		}
		if err != nil {
			return nil, err
		}
	}
	return p.built, nil
}

// plainPath is a path that no reading of it takes for a URL.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// onlyResources tells whether a kustomization lists resources and does nothing
// else.
func onlyResources(k *kustypes.Kustomization) bool {
	rest := *k
	rest.Resources = nil
	return len(k.Resources) > 0 && reflect.DeepEqual(rest, kustypes.Kustomization{
		TypeMeta: kustypes.TypeMeta{APIVersion: kustypes.KustomizationVersion, Kind: kustypes.KustomizationKind},
	})
}

// alone makes sure that name is the only kustomization file of dir.
func (p *plainBuild) alone(dir, name string) error {
	for _, other := range konfig.RecognizedKustomizationFileNames() {
		if other != name && p.fsys.Exists(path.Join(dir, other)) {
			return errDoubt
		}
	}
	return nil
}

// resources adds what a kustomization file of dir lists. Above are the
// directories that led to it.
func (p *plainBuild) resources(dir string, resources, above []string) error {
	above = append(slices.Clip(above), dir)
	for _, r := range resources {
		if !plainPath.MatchString(r) || path.IsAbs(r) || strings.Contains(r, "git") && isRemote(r) {
			return errDoubt
		}
		at, err := mounted{p.fsys}.at(path.Join(mountPoint, dir, r))
		if err != nil {
			return errDoubt
		}
		isDir, _, err := p.fsys.stat(at)
		if err != nil {
			return errDoubt
		}
		if isDir {
			err = p.directory(at, above)
		} else {
			err = p.file(at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *plainBuild) directory(dir string, above []string) error {
	for _, root := range above {
		if inside(root, dir) {
			return errDoubt // a cycle
		}
	}
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		file := path.Join(dir, name)
		if !p.fsys.Exists(file) {
			continue
		}
		if err := p.alone(dir, name); err != nil {
			return err
		}
		data, err := p.fsys.ReadFile(file)
		if err != nil {
			return errDoubt
		}
		var k kustypes.Kustomization
		if err := k.Unmarshal(data); err != nil {
			return errDoubt
		}
		k.FixKustomization()
		if !onlyResources(&k) {
			return errDoubt
		}
		return p.resources(dir, k.Resources, above)
	}
	return errDoubt
}

func (p *plainBuild) file(at string) error {
	if err := p.fsys.ctx.Err(); err != nil {
		return errDoubt
	}
	data, err := p.fsys.readFile(at)
	if err != nil {
		return errDoubt
	}
	objects, err := readManifest(data)
	if err == nil {
		delete(p.fsys.partly, at)
	}
	if err != nil || slices.ContainsFunc(objects, listed) {
		if err := p.fsys.whole(at, data); err != nil {
			return errDoubt
		}
		return p.unusual(data)
	}
	for _, o := range objects {
		metadata, _ := o["metadata"].(map[string]any)
		if annotations, ok := metadata["annotations"]; ok {
			if m, ok := annotations.(map[string]any); annotations == nil || ok && len(m) == 0 {
				delete(metadata, "annotations") // kustomize writes them anew
			}
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			return errDoubt
		}
		if err := p.add(&item{text: text, read: []*unstructured.Unstructured{{Object: o}}, plain: true}); err != nil {
			return err
		}
	}
	return nil
}

func listed(o map[string]any) bool {
	kind, _ := o["kind"].(string)
	return isList(kind)
}

// unusual adds the objects of a file by kustomize's own reading of it.
func (p *plainBuild) unusual(data []byte) error {
	var resources []*resource.Resource
	if err := guarded(func() (err error) {
		resources, err = provider.NewDefaultDepProvider().GetResourceFactory().SliceFromBytes(data)
		return err
	}); err != nil {
		return errDoubt
	}
	for _, r := range resources {
		i := &item{resource: r}
		if err := guarded(func() error {
			// What kustomize does to each resource at the end of a build.
			r.RemoveBuildAnnotations()
			if err := r.SetOrigin(nil); err != nil {
				return err
			}
			if err := r.ClearTransformations(); err != nil {
				return err
			}
			_, err := i.objects()
			return err
		}); err != nil || len(i.read) != 1 || isList(r.GetKind()) {
			return errDoubt
		}
		if err := p.add(i); err != nil {
			return err
		}
	}
	return nil
}

// add adds an object if kustomize would leave it unchanged.
func (p *plainBuild) add(i *item) error {
	o := i.read[0]
	if !ordinaryObject(o.Object) {
		return errDoubt
	}
	id := identityOf(o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName())
	if p.ids[id] {
		return errDoubt
	}
	p.ids[id] = true
	p.built = append(p.built, i)
	return nil
}

var (
	plainVersion = regexp.MustCompile(`^([a-z0-9.-]+/)?[a-z0-9]+$`)
	plainKind    = regexp.MustCompile(`^[A-Za-z0-9]+$`)
)

// ordinaryObject tells whether kustomize, listing an object as a resource, would
// give it back as it is.
func ordinaryObject(o map[string]any) bool {
	version, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	metadata, _ := o["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if !plainVersion.MatchString(version) || !plainKind.MatchString(kind) || name == "" || strings.EqualFold(kind, "Kustomization") && strings.HasPrefix(version, "kustomize.config.k8s.io/") {
		return false
	}
	if namespace, ok := metadata["namespace"]; ok {
		if s, _ := namespace.(string); s == "" {
			return false
		}
	}
	for _, field := range []string{"labels", "annotations"} {
		value, ok := metadata[field]
		if !ok || value == nil {
			continue
		}
		m, ok := value.(map[string]any)
		if !ok {
			return false
		}
		for k, v := range m {
			if _, ok := v.(string); !ok || field == "annotations" && internal(k) {
				return false
			}
		}
	}
	return !referrers[kind] || shaped(o, kind)
}

// internal tells whether an annotation is one that kustomize has a meaning for.
func internal(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return strings.HasSuffix(domain, "config.kubernetes.io") || strings.HasSuffix(domain, "config.k8s.io") || strings.Contains(strings.ToLower(domain), "kustomize") && domain != "kustomize.toolkit.fluxcd.io" ||
		slices.Contains(resource.BuildAnnotations, key)
}

// referrers are the kinds in which kustomize looks for names of other objects,
// of whatever group. No name changes in a plain build, so that it writes
// nothing, but it fails where the way to a name is not shaped as it expects.
var referrers = map[string]bool{
	"APIService": true, "ClusterRole": true, "ClusterRoleBinding": true, "CronJob": true, "DaemonSet": true, "Deployment": true, "HorizontalPodAutoscaler": true,
	"Ingress": true, "Job": true, "MutatingWebhookConfiguration": true, "Node": true, "PersistentVolume": true, "PersistentVolumeClaim": true, "Pod": true,
	"PodTemplate": true, "ReplicaSet": true, "ReplicationController": true, "Role": true, "RoleBinding": true, "Service": true, "ServiceAccount": true,
	"StatefulSet": true, "StorageClass": true, "ValidatingAdmissionPolicyBinding": true, "ValidatingWebhookConfiguration": true,
}

// ways are the fields that lead to names, and hold maps or lists of maps.
var ways = map[string]bool{
	"azureFile": true, "backend": true, "clientConfig": true, "configMapKeyRef": true, "configMapRef": true, "configSource": true, "containers": true, "defaultBackend": true,
	"env": true, "envFrom": true, "http": true, "imagePullSecrets": true, "initContainers": true, "jobTemplate": true, "paths": true, "persistentVolumeClaim": true,
	"projected": true, "roleRef": true, "rules": true, "scaleTargetRef": true, "secret": true, "secretKeyRef": true, "secretRef": true, "sources": true, "spec": true,
	"template": true, "tls": true, "valueFrom": true, "volumeClaimTemplates": true, "volumes": true, "webhooks": true, "parameters": true, "configMap": true,
}

// ends are the fields that hold a name.
var ends = map[string]bool{
	"name": true, "secretName": true, "claimName": true, "serviceAccountName": true, "serviceName": true, "priorityClassName": true, "storageClassName": true,
	"volumeName": true, "ingressClassName": true, "policyName": true, "adminSecretName": true, "userSecretName": true,
}

// shaped tells whether all fields of an object that may be on the way to a name
// are as they should be.
func shaped(v any, kind string) bool {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if !shaped(item, kind) {
				return false
			}
		}
	case map[string]any:
		for k, field := range v {
			switch {
			case k == "labels" || k == "annotations" || k == "matchLabels" || k == "nodeSelector" || k == "selector":
				continue
			case kind == "StorageClass" && k == "parameters", kind == "Node" && k == "configSource":
				return false
			case k == "resourceNames" && !scalars(field), k == "subjects" && !named(field), k == "service" && !named([]any{field}), ways[k] && !mappings(field), ends[k] && !scalar(field):
				return false
			}
			if !shaped(field, kind) {
				return false
			}
		}
	}
	return true
}

func scalar(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}

func scalars(v any) bool {
	list, ok := v.([]any)
	if !ok {
		return v == nil
	}
	return !slices.ContainsFunc(list, func(v any) bool { return !scalar(v) })
}

// mappings tells whether a field is a map, a list of maps, or nothing.
func mappings(v any) bool {
	switch v := v.(type) {
	case nil, map[string]any:
		return true
	case []any:
		return !slices.ContainsFunc(v, func(v any) bool { _, ok := v.(map[string]any); return !ok })
	}
	return false
}

// named tells whether a field is a list of maps that have names, and if they
// have kinds and namespaces, then as strings.
func named(v any) bool {
	list, ok := v.([]any)
	if !ok {
		return v == nil
	}
	for _, item := range list {
		m, ok := item.(map[string]any)
		if name, _ := m["name"].(string); !ok || name == "" {
			return false
		}
		for _, field := range []string{"kind", "namespace"} {
			if s, ok := m[field]; ok {
				if _, ok := s.(string); !ok {
					return false
				}
			}
		}
	}
	return true
}
