package render

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// tree is Files in memory: content by path, without a leading slash. A content
// that begins with "-> " is a symbolic link, which is all a snapshot says of it
// when it is listed.
type tree map[string]string

func (t tree) at(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func (t tree) Stat(name string) (dir bool, hash string, err error) {
	at := t.at(name)
	if content, ok := t[at]; ok {
		return false, content, nil
	}
	if at == "" {
		return true, "", nil
	}
	for file := range t {
		if strings.HasPrefix(file, at+"/") {
			return true, "", nil
		}
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
