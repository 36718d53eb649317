package render

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Task is the name of the task that builds with kustomize. Tasks has it.
const Task = "kustomize"

// Tasks are what a worker has to be able to do for renderings.
func Tasks() worker.Tasks { return worker.Tasks{Task: buildTask} }

// errNoWorkers is a mistake of ours.
var errNoWorkers = errors.New("it needs kustomize, and there is no worker to run it")

// Questions of a build.
const (
	askRead  = "read"
	askStat  = "stat"
	askList  = "list"
	askClean = "clean"
	askWalk  = "walk"
)

// Answers to askStat.
const (
	isAbsent = "-"
	isFile   = "f"
	isDir    = "d"
)

// kustomize builds dir in a worker. The worker asks for files; what it asks for
// passes the guards and is recorded here, and is decrypted here.
func kustomize(fsys *fileSystem, dir string, begin *start, workers worker.Runner) ([]*item, error) {
	if workers == nil {
		return nil, errNoWorkers
	}
	fsys.overlay[begin.file] = begin.manifest
	out, err := workers.Run(fsys.ctx, worker.Job{
		Task: Task, Request: []byte(dir), Answer: answers{mounted{fsys}}.answer,
		// kyaml keeps the schema that a build brings in a variable of the process.
		Spent: func() bool { return fsys.bringsSchema },
	})
	if fsys.failed != nil {
		return nil, fsys.failed
	}
	if err != nil {
		fsys.passing = !worker.Lasting(err)
		return nil, err
	}
	return builtItems(out)
}

// answers are what a build may know.
type answers struct{ mounted }

func (a answers) answer(ctx context.Context, question string, body []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	at := string(body)
	switch question {
	case askRead:
		return a.ReadFile(at)
	case askStat:
		switch {
		case a.IsDir(at):
			return []byte(isDir), nil
		case a.Exists(at):
			return []byte(isFile), nil
		}
		return []byte(isAbsent), nil
	case askList:
		names, err := a.ReadDir(at)
		if err != nil {
			return nil, err
		}
		return json.Marshal(names)
	case askClean:
		dir, file, err := a.CleanedAbs(at)
		if err != nil {
			return nil, err
		}
		return json.Marshal([]string{string(dir), file})
	case askWalk:
		found := []walked{}
		err := a.Walk(at, func(at string, info fs.FileInfo, err error) error {
			if err != nil {
				return err
			}
			found = append(found, walked{at, info.IsDir()})
			return nil
		})
		if err != nil {
			return nil, err
		}
		return json.Marshal(found)
	}
	return nil, fmt.Errorf("unknown question %q", question)
}

type walked struct {
	Path string
	Dir  bool
}

// encode is the wire form of what was built: each object as YAML, with its length.
func encode(texts [][]byte) []byte {
	var out []byte
	for _, text := range texts {
		out = binary.AppendUvarint(out, uint64(len(text)))
		out = append(out, text...)
	}
	return out
}

// builtItems reads what a worker built.
func builtItems(out []byte) ([]*item, error) {
	var built []*item
	for len(out) > 0 {
		size, n := binary.Uvarint(out)
		if n <= 0 || size > uint64(len(out)-n) {
			return nil, errors.New("cannot read what the worker built")
		}
		i, err := readItem(out[n : n+int(size)]) //nolint:gosec // it is at most the length
		if err != nil {
			return nil, fmt.Errorf("cannot read the build: %w", err)
		}
		built, out = append(built, i), out[n+int(size):] //nolint:gosec // it is at most the length
	}
	return built, nil
}

// readItem is the item that kustomize wrote as text.
func readItem(text []byte) (*item, error) {
	objects, err := ssautil.ReadObjects(bytes.NewReader(text))
	if err == nil && len(objects) == 1 && identified(objects[0]) {
		return &item{text: text, read: objects}, nil
	}
	r := &resource.Resource{}
	err = guarded(func() error {
		data, err := yaml.YAMLToJSON(text)
		if err != nil {
			return err
		}
		return r.UnmarshalJSON(data)
	})
	return &item{resource: r, text: text}, err
}

// identified tells whether kustomize sees the same identity, labels and
// annotations in an object as we do.
func identified(u *unstructured.Unstructured) bool {
	return !strings.HasSuffix(u.GetKind(), "List") && ordinaryObject(u.Object)
}
