package layout

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// controllers of Flux whose work an agent does, in the order in which they end: who reads ends
// before whom it reads.
func controllers() []string {
	return []string{"kustomize-controller", "helm-controller", "source-watcher", "source-controller"}
}

// notifier is the controller of Flux that hands events on. An agent does not replace it.
const notifier = "notification-controller"

// Flux is what `flux bootstrap` left in a repository.
type Flux struct {
	// Dir of its files; empty if an operator declares the controllers, and not the repository.
	Dir string
	// Namespace of its controllers.
	Namespace string
	// Controllers are those that it declares and an agent replaces, in the order in which they end.
	Controllers []string
	// Others are the controllers that go on.
	Others []string
	// Definitions are the names of those that it declares.
	Definitions []string
	// GitRepository and Kustomization sync the repository, as the patches beside them make them. Secret is that of the first.
	GitRepository, Kustomization *unstructured.Unstructured
	Secret                       string
}

// FindFlux looks for what `flux bootstrap` left in the path of a tier; nil if there is none.
func FindFlux(tree fs.FS, tier string) (*Flux, error) {
	found, err := componentsIn(tree, tier)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if len(found) > 1 {
		return nil, fmt.Errorf("cannot tell which installation of Flux is meant: there are %s; say --path", strings.Join(found, " and "))
	}
	f := &Flux{Dir: path.Dir(found[0])}
	components, err := objectsOf(tree, found[0])
	if err != nil {
		return nil, err
	}
	deployed := map[string]bool{}
	for _, u := range components {
		switch u.GetKind() {
		case "Deployment":
			deployed[u.GetName()] = true
			f.Namespace = u.GetNamespace()
			if !slices.Contains(controllers(), u.GetName()) {
				f.Others = append(f.Others, u.GetName())
			}
		case crdKind:
			f.Definitions = append(f.Definitions, u.GetName())
		}
	}
	for _, name := range controllers() {
		if deployed[name] {
			f.Controllers = append(f.Controllers, name)
		}
	}
	if f.Namespace == "" {
		return nil, fmt.Errorf("cannot use %s of the repository: it has no Deployment of Flux; bootstrap into another path", found[0])
	}
	return f, f.findSync(tree)
}

// componentsIn are the files with Flux's components in the directories of a path.
func componentsIn(tree fs.FS, tier string) ([]string, error) {
	if info, err := fs.Stat(tree, tier); err != nil || !info.IsDir() {
		return nil, nil
	}
	entries, err := fs.ReadDir(tree, tier)
	if err != nil {
		return nil, fmt.Errorf("cannot list %s of the repository: %w", tier, err)
	}
	var found []string
	for _, e := range entries {
		name := path.Join(tier, e.Name(), componentsFile)
		if !e.IsDir() {
			continue
		}
		if _, err := fs.Stat(tree, name); err == nil {
			found = append(found, name)
		}
	}
	return found, nil
}

func (f *Flux) findSync(tree fs.FS) error {
	name := path.Join(f.Dir, fluxSyncFile)
	objects, err := objectsOf(tree, name)
	if err != nil {
		return err
	}
	for _, u := range objects {
		switch u.GetKind() {
		case "GitRepository":
			f.GitRepository = u
		case "Kustomization":
			f.Kustomization = u
		}
	}
	if f.GitRepository == nil || f.Kustomization == nil {
		return fmt.Errorf("cannot use %s of the repository: it must have a GitRepository and a Kustomization, which it has after flux bootstrap git, github or gitlab", name)
	}
	// That file is generated, and people change it by patches. Where they cannot be built, Flux applies none.
	if built, err := f.Build(tree); err == nil {
		f.GitRepository, f.Kustomization = asBuilt(built, f.GitRepository), asBuilt(built, f.Kustomization)
	}
	f.Secret, _, _ = unstructured.NestedString(f.GitRepository.Object, "spec", "secretRef", "name")
	return nil
}

// asBuilt is what a directory makes of an object in it.
func asBuilt(built []*unstructured.Unstructured, u *unstructured.Unstructured) *unstructured.Unstructured {
	i := slices.IndexFunc(built, func(b *unstructured.Unstructured) bool {
		return b.GroupVersionKind().GroupKind() == u.GroupVersionKind().GroupKind() && b.GetNamespace() == u.GetNamespace() && b.GetName() == u.GetName()
	})
	if i < 0 {
		return u
	}
	return built[i]
}

// EventsAddress is where the agent posts events for Flux's notification-controller, empty if
// there is none.
func (f *Flux) EventsAddress() string {
	if !slices.Contains(f.Others, notifier) {
		return ""
	}
	return "http://" + notifier + "." + f.Namespace + ".svc.cluster.local./"
}

// Agent are those of an agent's objects that Flux does not declare already. Definitions that
// it has stay its own, of its version.
func (f *Flux) Agent(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(u *unstructured.Unstructured) bool {
		return u.GetKind() == crdKind && slices.Contains(f.Definitions, u.GetName())
	})
}

// Take decides what changes so that an agent takes the place of Flux's controllers. What
// syncs the repository stays, and so does what else Flux has there.
func (f *Flux) Take(tree fs.FS, tier string, agent []*unstructured.Unstructured) (Changes, error) {
	changes := Changes{}
	dir := path.Join(tier, Dir)
	text, err := render(kept(f.Agent(agent)))
	if err != nil {
		return nil, err
	}
	if err := changes.set(tree, path.Join(dir, agentFile), text); err != nil {
		return nil, err
	}
	if err := withResources(tree, dir, changes, agentFile); err != nil {
		return nil, err
	}
	if err := included(tree, tier, changes); err != nil {
		return nil, err
	}
	return changes, f.edit(tree, changes, stop)
}

// Leave decides what changes so that Flux's controllers take the place of the agent.
func (f *Flux) Leave(tree fs.FS, tier string) (Changes, error) {
	changes := Changes{}
	dir := path.Join(tier, Dir)
	err := fs.WalkDir(tree, dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			changes[name] = nil
		}
		return err
	})
	if _, stat := fs.Stat(tree, dir); stat == nil && err != nil {
		return nil, fmt.Errorf("cannot list %s of the repository: %w", dir, err)
	}
	if err := withoutResource(tree, tier, changes, Dir); err != nil {
		return nil, err
	}
	return changes, f.edit(tree, changes, start)
}

func (f *Flux) edit(tree fs.FS, changes Changes, change func(*yaml.RNode, []string) (bool, error)) error {
	if f.Dir == "" {
		return nil
	}
	name, text, err := kustomizationIn(tree, f.Dir)
	if err != nil {
		return err
	}
	if name == "" {
		return fmt.Errorf("cannot stop Flux's controllers: %s has no kustomization.yaml, which flux bootstrap writes", f.Dir)
	}
	return edit(tree, name, text, changes, func(k *yaml.RNode) (bool, error) { return change(k, f.Controllers) })
}
