package layout

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/kio"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// kustomizationNames are the names that kustomize knows, the first is the one that is written.
func kustomizationNames() []string {
	return []string{kustomizationFile, "kustomization.yml", "Kustomization"}
}

// kustomizationIn names the kustomization of a directory, and is empty if it has none.
func kustomizationIn(tree fs.FS, dir string) (name string, text []byte, err error) {
	for _, file := range kustomizationNames() {
		name := path.Join(dir, file)
		text, err := read(tree, name)
		if err != nil || text != nil {
			return name, text, err
		}
	}
	return "", nil, nil
}

// withResources is a kustomization that has these resources. It is made if there is none.
func withResources(tree fs.FS, dir string, changes Changes, resources ...string) error {
	name, text, err := kustomizationIn(tree, dir)
	if err != nil {
		return err
	}
	if name == "" {
		name = path.Join(dir, kustomizationFile)
		text = []byte("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
		for _, resource := range resources {
			text = fmt.Appendf(text, "- %s\n", resource)
		}
		return changes.set(tree, name, text)
	}
	return edit(tree, name, text, changes, func(k *yaml.RNode) (bool, error) {
		list, err := k.Pipe(yaml.LookupCreate(yaml.SequenceNode, "resources"))
		if err != nil {
			return false, err
		}
		there, err := elements(list)
		if err != nil {
			return false, err
		}
		added := false
		for _, resource := range resources {
			if slices.ContainsFunc(there, func(r string) bool { return path.Clean(r) == resource }) {
				continue
			}
			added = true
			if err := list.PipeE(yaml.Append(yaml.NewStringRNode(resource).YNode())); err != nil {
				return false, err
			}
		}
		return added, nil
	})
}

// withoutResource is a kustomization that does not have a resource. What was made for it
// alone stays, as an empty list.
func withoutResource(tree fs.FS, dir string, changes Changes, resource string) error {
	name, text, err := kustomizationIn(tree, dir)
	if err != nil || name == "" {
		return err
	}
	return edit(tree, name, text, changes, func(k *yaml.RNode) (bool, error) {
		return removeElements(k.Field("resources"), func(e *yaml.RNode) bool { return path.Clean(yaml.GetValue(e)) == resource })
	})
}

func elements(list *yaml.RNode) ([]string, error) {
	nodes, err := list.Elements()
	if err != nil {
		return nil, err
	}
	var values []string
	for _, n := range nodes {
		values = append(values, yaml.GetValue(n))
	}
	return values, nil
}

func removeElements(field *yaml.MapNode, which func(*yaml.RNode) bool) (bool, error) {
	if field.IsNilOrEmpty() {
		return false, nil
	}
	nodes, err := field.Value.Elements()
	if err != nil {
		return false, err
	}
	content := field.Value.YNode()
	before := len(content.Content)
	content.Content = nil
	for _, n := range nodes {
		if !which(n) {
			content.Content = append(content.Content, n.YNode())
		}
	}
	return len(content.Content) != before, nil
}

const (
	replicasField = "replicas"
	countField    = "count"
)

// wasComment remembers a count that a person set.
var wasComment = regexp.MustCompile(`cascade: was (\d+)`)

// stop has a kustomization run none of some Deployments, in kustomize's own terms: its field
// replicas counts after all patches. A count that a person set is kept in a comment.
func stop(k *yaml.RNode, deployments []string) (bool, error) {
	list, err := k.Pipe(yaml.LookupCreate(yaml.SequenceNode, replicasField))
	if err != nil {
		return false, err
	}
	changed := false
	for _, name := range deployments {
		entry, err := list.Pipe(yaml.MatchElement("name", name))
		if err != nil {
			return false, err
		}
		if entry == nil {
			changed = true
			entry = yaml.MustParse("name: " + name + "\n" + countField + ": 0\n")
			if err := list.PipeE(yaml.Append(entry.YNode())); err != nil {
				return false, err
			}
			continue
		}
		count := entry.Field(countField)
		if count.IsNilOrEmpty() {
			return false, fmt.Errorf("replicas of %s has no count", name)
		}
		if was := yaml.GetValue(count.Value); was != "0" {
			changed = true
			count.Value.YNode().Value, count.Value.YNode().LineComment = "0", "# cascade: was "+was
		}
	}
	return changed, nil
}

// start undoes stop.
func start(k *yaml.RNode, deployments []string) (bool, error) {
	field := k.Field(replicasField)
	restored := false
	changed, err := removeElements(field, func(e *yaml.RNode) bool {
		count := e.Field(countField)
		if !slices.Contains(deployments, yaml.GetValue(e.Field("name").Value)) || count.IsNilOrEmpty() || yaml.GetValue(count.Value) != "0" {
			return false
		}
		if was := wasComment.FindStringSubmatch(count.Value.YNode().LineComment); was != nil {
			count.Value.YNode().Value, count.Value.YNode().LineComment = was[1], ""
			restored = true
			return false
		}
		return true
	})
	if err != nil {
		return false, err
	}
	if changed && len(field.Value.Content()) == 0 {
		if err := k.PipeE(yaml.Clear(replicasField)); err != nil {
			return false, err
		}
	}
	return changed || restored, nil
}

// edit changes a kustomization, and leaves its text as it is where nothing is to change.
func edit(tree fs.FS, name string, text []byte, changes Changes, change func(*yaml.RNode) (bool, error)) error {
	if pending, ok := changes[name]; ok {
		text = pending
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
	}
	var out bytes.Buffer
	rw := &kio.ByteReadWriter{
		Reader: bytes.NewReader(text), Writer: &out, PreserveSeqIndent: true,
	}
	nodes, err := rw.Read()
	if err != nil {
		return fmt.Errorf("cannot parse %s of the repository: %w", name, err)
	}
	if len(nodes) != 1 {
		return fmt.Errorf("cannot change %s of the repository: it must have one document", name)
	}
	changed, err := change(nodes[0])
	if err != nil {
		return fmt.Errorf("cannot change %s of the repository: %w", name, err)
	}
	if !changed {
		return nil
	}
	if err := rw.Write(nodes); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	return changes.set(tree, name, withDocumentStart(text, out.Bytes()))
}

// withDocumentStart keeps the line that separates documents, which the writer leaves out.
func withDocumentStart(before, after []byte) []byte {
	if strings.HasPrefix(string(before), "---\n") && !strings.HasPrefix(string(after), "---\n") {
		return append([]byte("---\n"), after...)
	}
	return after
}
