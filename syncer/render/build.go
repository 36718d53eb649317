package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// buildTask builds a directory with kustomize. It runs in a worker.
func buildTask(request []byte, ask worker.Ask) ([]byte, error) {
	resources, err := run(asked{ask}, string(request))
	if err != nil {
		return nil, err
	}
	texts := make([][]byte, 0, resources.Size())
	size, most := 0, 0
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return nil, fmt.Errorf("cannot write the build: %w", err)
		}
		size += len(text)
		most += nodes(text)
		if size > MaxBytes || most > MaxTotalNodes {
			return nil, errBuilt
		}
		texts = append(texts, text)
	}
	return encode(texts), nil
}

var errBuilt = fmt.Errorf("the build makes more than %d MiB or %d YAML nodes; split it into several Kustomizations", MaxBytes>>20, MaxTotalNodes)

func run(fsys filesys.FileSystem, dir string) (resources resmap.ResMap, err error) {
	options := &krusty.Options{
		LoadRestrictions: kustypes.LoadRestrictionsNone, // the file system is the restriction
		PluginConfig:     kustypes.DisabledPluginConfig(),
	}
	err = guarded(func() (err error) {
		resources, err = krusty.MakeKustomizer(options).Run(fsys, path.Join(mountPoint, dir))
		return err
	})
	return resources, err
}

// asked is the source as a worker sees it: it asks for what it wants to know.
type asked struct{ ask worker.Ask }

var _ filesys.FileSystem = asked{}

// absent is the answer that there is no such file.
type absent struct{ error }

func (absent) Unwrap() error { return fs.ErrNotExist }

func (a asked) text(question, name string) ([]byte, error) {
	answer, err := a.ask(question, []byte(name))
	if err != nil && strings.HasSuffix(err.Error(), fs.ErrNotExist.Error()) {
		return nil, absent{err}
	}
	return answer, err
}

func (a asked) value(question, name string, into any) error {
	answer, err := a.text(question, name)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

func (a asked) stat(name string) string {
	answer, err := a.text(askStat, name)
	if err != nil {
		return isAbsent
	}
	return string(answer)
}

func (a asked) ReadFile(name string) ([]byte, error) { return a.text(askRead, name) }
func (a asked) Exists(name string) bool              { return a.stat(name) != isAbsent }
func (a asked) IsDir(name string) bool               { return a.stat(name) == isDir }

func (a asked) ReadDir(name string) (names []string, err error) {
	return names, a.value(askList, name, &names)
}

func (a asked) CleanedAbs(name string) (filesys.ConfirmedDir, string, error) {
	var parts [2]string
	if err := a.value(askClean, name, &parts); err != nil {
		return "", "", err
	}
	return filesys.ConfirmedDir(parts[0]), parts[1], nil
}

func (a asked) Glob(pattern string) ([]string, error) {
	pattern = rooted(pattern)
	var found []string
	err := a.Walk(mountPoint, func(at string, _ fs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		ok, err := path.Match(pattern, at)
		if ok {
			found = append(found, at)
		}
		return err
	})
	return found, err
}

func (a asked) Walk(root string, visit filepath.WalkFunc) error {
	var all []walked
	if err := a.value(askWalk, root, &all); err != nil {
		return visit(root, nil, err)
	}
	skip := ""
	for _, w := range all {
		if skip != "" && strings.HasPrefix(w.Path, skip) {
			continue
		}
		switch err := visit(w.Path, fileInfo{name: path.Base(w.Path), dir: w.Dir}, nil); {
		case errors.Is(err, filepath.SkipAll):
			return nil
		case errors.Is(err, filepath.SkipDir):
			skip = w.Path + "/"
			if !w.Dir {
				skip = path.Dir(w.Path) + "/"
			}
		case err != nil:
			return err
		}
	}
	return nil
}

func (a asked) Open(name string) (filesys.File, error) {
	data, err := a.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return opened(name, data), nil
}

func (asked) Create(string) (filesys.File, error) { return nil, errReadOnly }
func (asked) Mkdir(string) error                  { return errReadOnly }
func (asked) MkdirAll(string) error               { return errReadOnly }
func (asked) RemoveAll(string) error              { return errReadOnly }
func (asked) WriteFile(string, []byte) error      { return errReadOnly }

var _ os.FileInfo = fileInfo{}
