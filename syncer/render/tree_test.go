package render

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// tree is Files in memory: content by path, without a leading slash. A content
// that begins with "-> " is a symbolic link, which is all a snapshot says of it
// when it is listed.
type tree map[string]string

func (t tree) at(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func (t tree) Rules() string { return "" }

func (t tree) Stat(name string) (dir bool, hash string, err error) {
	at := t.at(name)
	if content, ok := t[at]; ok {
		return false, content, nil
	}
	// The hash of a directory is the text of all that is in it.
	for _, file := range slices.Sorted(maps.Keys(t)) {
		if at == "" || strings.HasPrefix(file, at+"/") {
			dir, hash = true, hash+file+"\x00"+t[file]+"\x00"
		}
	}
	if dir || at == "" {
		return true, hash, nil
	}
	return false, "", &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

func (t tree) ReadDir(name string) ([]source.Entry, error) {
	at := t.at(name)
	found := map[string]source.Entry{}
	for file, content := range t {
		rest := file
		if at != "" {
			var ok bool
			if rest, ok = strings.CutPrefix(file, at+"/"); !ok {
				continue
			}
		}
		first, _, dir := strings.Cut(rest, "/")
		found[first] = source.Entry{Name: first, Dir: dir, Link: !dir && strings.HasPrefix(content, "-> ")}
	}
	var entries []source.Entry
	for _, e := range found {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b source.Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

func (t tree) ReadFile(name string) ([]byte, error) {
	if content, ok := t[t.at(name)]; ok {
		return []byte(content), nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// manifest is a ConfigMap in YAML.
func manifest(name string, data ...string) string {
	out := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n"
	if len(data) > 0 {
		out += "data:\n"
		for i := 0; i+1 < len(data); i += 2 {
			out += "  " + data[i] + ": " + data[i+1] + "\n"
		}
	}
	return out
}

// objectsOf are the objects of a rendering, if there is one.
func objectsOf(r *Rendering, err error) ([]*unstructured.Unstructured, error) {
	if err != nil {
		return nil, err
	}
	return r.Objects, nil
}
