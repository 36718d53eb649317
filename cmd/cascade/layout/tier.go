package layout

import (
	"fmt"
	"io/fs"
	"path"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Name of the objects that sync a tier.
const Name = Dir

// Sync says where a tier is declared.
type Sync struct {
	// Namespace of the objects.
	Namespace string
	// URL, Branch and Path of the repository.
	URL, Branch, Path string
	// Interval of the Kustomization.
	Interval time.Duration
	// Secret with the login, empty for a repository that asks for none.
	Secret string
	// Account is set where the agent has no rights of its own to apply with.
	Account bool
}

// fetchInterval is the pause between two looks at the repository.
const fetchInterval = time.Minute

// objects that sync a tier.
func (s Sync) objects() []*unstructured.Unstructured {
	git := map[string]any{"interval": fetchInterval.String(), "url": s.URL, "ref": map[string]any{"branch": s.Branch}}
	if s.Secret != "" {
		git["secretRef"] = map[string]any{"name": s.Secret}
	}
	kustomization := map[string]any{
		"interval": s.Interval.String(), "path": "./" + s.Path, "prune": true,
		"sourceRef": map[string]any{"kind": "GitRepository", "name": Name},
	}
	if s.Path == "." {
		kustomization["path"] = "./"
	}
	var objects []*unstructured.Unstructured
	if s.Account {
		kustomization["serviceAccountName"] = v1alpha1.SyncAccount
		objects = append(objects, s.object("v1", "ServiceAccount", v1alpha1.SyncAccount, nil), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": v1alpha1.SyncAccount},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": v1alpha1.SyncAccount, "namespace": s.Namespace}},
		}})
	}
	return append(objects,
		s.object("source.toolkit.fluxcd.io/v1", "GitRepository", Name, git),
		s.object("kustomize.toolkit.fluxcd.io/v1", "Kustomization", Name, kustomization))
}

func (s Sync) object(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name, "namespace": s.Namespace},
	}}
	if spec != nil {
		u.Object["spec"] = spec
	}
	return u
}

// Tier decides what changes so that the repository declares an agent with these objects, and
// what syncs it from there.
func Tier(tree fs.FS, agent []*unstructured.Unstructured, s Sync) (Changes, error) {
	if s.Path != "." {
		if info, err := fs.Stat(tree, s.Path); err == nil && !info.IsDir() {
			return nil, fmt.Errorf("cannot use path %s of the repository: it is a file", s.Path)
		}
	}
	changes := Changes{}
	dir := path.Join(s.Path, Dir)
	for file, objects := range map[string][]*unstructured.Unstructured{agentFile: kept(agent), syncFile: s.objects()} {
		text, err := render(objects)
		if err != nil {
			return nil, err
		}
		if err := changes.set(tree, path.Join(dir, file), text); err != nil {
			return nil, err
		}
	}
	if err := withResources(tree, dir, changes, agentFile, syncFile); err != nil {
		return nil, err
	}
	return changes, included(tree, s.Path, changes)
}

// included has the directory of the agent be a part of the path: where a person wrote a
// kustomization, only what that names is.
func included(tree fs.FS, tier string, changes Changes) error {
	name, _, err := kustomizationIn(tree, tier)
	if err != nil || name == "" {
		return err
	}
	return withResources(tree, tier, changes, Dir)
}
