package message

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/image/setter"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Default is the message of an automation without a template, as in Flux.
const Default = "Update from image update automation"

// Bounds of a template and of what it makes.
const (
	mostTemplate = 64 << 10
	mostMessage  = 64 << 10
)

// ErrRemoved is wrapped where a template uses the field Updated, which Flux removed.
var ErrRemoved = errors.New("the field .Updated was removed; use .Changed")

// Invalid is an error of a template: it stays until that is changed.
type Invalid struct{ Text string }

func (e *Invalid) Error() string { return e.Text }

// Change is a change of one value in a file.
type Change struct {
	File string
	setter.Change
}

// Facts are what a template is about.
type Facts struct {
	Automation types.NamespacedName
	Changes    []Change
	Values     map[string]string
}

const task = "image/message"

// Tasks are what a worker has to be able to do for this package.
func Tasks() worker.Tasks { return worker.Tasks{task: execute} }

type question struct {
	Template string
	Facts    Facts
}

// answer has one of its fields.
type answer struct {
	Message, Invalid string
	Removed          bool
}

// Of returns the message of a commit. An empty template stands for Default.
func Of(ctx context.Context, workers worker.Runner, text string, facts Facts) (string, error) {
	if text == "" {
		return Default, nil
	}
	if len(text) > mostTemplate {
		return "", &Invalid{fmt.Sprintf("it has more than %d bytes", mostTemplate)}
	}
	request, err := json.Marshal(question{text, facts})
	if err != nil {
		return "", err
	}
	out, err := workers.Run(ctx, worker.Job{Task: task, Request: request})
	if err != nil {
		return "", err
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil {
		return "", fmt.Errorf("cannot read the worker's answer: %w", err)
	}
	switch {
	case a.Removed:
		return "", ErrRemoved
	case a.Invalid != "":
		return "", &Invalid{a.Invalid}
	}
	return a.Message, nil
}

// data is what a template sees. Its names are Flux's.
type data struct {
	AutomationObject types.NamespacedName
	Changed          Result
	Values           map[string]string
}

// Updated is what Flux removed.
func (data) Updated() (string, error) { return "", ErrRemoved }

// ObjectChanges are the changes of each object.
type ObjectChanges map[setter.Object][]setter.Change

// Result has all changes, by file and object.
type Result struct{ FileChanges map[string]ObjectChanges }

// Changes returns each change once, whatever objects have it.
func (r Result) Changes() []setter.Change {
	var all []setter.Change
	seen := map[setter.Change]bool{}
	for _, file := range slices.Sorted(maps.Keys(r.FileChanges)) {
		objects := slices.SortedFunc(maps.Keys(r.FileChanges[file]), func(a, b setter.Object) int {
			return cmp.Or(cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
		})
		for _, object := range objects {
			for _, change := range r.FileChanges[file][object] {
				change.Object = setter.Object{}
				if !seen[change] {
					seen[change] = true
					all = append(all, change)
				}
			}
		}
	}
	return all
}

// Objects returns the changes of each object, whatever file it is in.
func (r Result) Objects() ObjectChanges {
	all := ObjectChanges{}
	for _, file := range slices.Sorted(maps.Keys(r.FileChanges)) {
		for object, changes := range r.FileChanges[file] {
			all[object] = append(all[object], changes...)
		}
	}
	return all
}

// functions that a template has.
func functions() template.FuncMap {
	all := sprig.HermeticTxtFuncMap()
	for _, name := range []string{"env", "expandenv", "getHostByName"} {
		delete(all, name)
	}
	return all
}

func execute(request []byte, _ worker.Ask) ([]byte, error) {
	var q question
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, err
	}
	var a answer
	text, err := made(q)
	switch {
	case errors.Is(err, ErrRemoved):
		a.Removed = true
	case err != nil:
		a.Invalid = err.Error()
	default:
		a.Message = text
	}
	return json.Marshal(a)
}

func made(q question) (string, error) {
	t, err := template.New("messageTemplate").Funcs(functions()).Parse(q.Template)
	if err != nil {
		return "", err
	}
	d := data{AutomationObject: q.Facts.Automation, Changed: Result{map[string]ObjectChanges{}}, Values: q.Facts.Values}
	for _, c := range q.Facts.Changes {
		if d.Changed.FileChanges[c.File] == nil {
			d.Changed.FileChanges[c.File] = ObjectChanges{}
		}
		d.Changed.FileChanges[c.File][c.Object] = append(d.Changed.FileChanges[c.File][c.Object], c.Change)
	}
	out := &bounded{}
	if err := t.Execute(out, d); err != nil {
		return "", err
	}
	return out.String(), nil
}

// bounded is the message as far as it may grow.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > mostMessage {
		return 0, fmt.Errorf("the message has more than %d bytes", mostMessage)
	}
	return b.Buffer.Write(p)
}
