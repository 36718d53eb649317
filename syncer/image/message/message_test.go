package message

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/image/setter"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// inside does tasks in this process.
type inside struct{}

func (inside) Run(_ context.Context, job worker.Job) ([]byte, error) {
	return Tasks()[job.Task](job.Request, nil)
}

func TestOf(t *testing.T) {
	web := setter.Object{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", Namespace: "shop"}
	job := setter.Object{APIVersion: "batch/v1", Kind: "Job", Name: "job", Namespace: "shop"}
	change := func(file string, object setter.Object, old, new, by string) Change {
		return Change{File: file, Change: setter.Change{Object: object, OldValue: old, NewValue: new, Setter: by}}
	}
	facts := Facts{
		Automation: types.NamespacedName{Namespace: "flux-system", Name: "images"},
		Values:     map[string]string{"cluster": "prod"},
		Changes: []Change{
			change("b/job.yaml", job, "x:1", "x:2", "apps:x"),
			change("a/web.yaml", web, "w:1", "w:2", "apps:w"),
			change("a/web.yaml", web, "x:1", "x:2", "apps:x"),
		},
	}
	for name, tt := range map[string]struct {
		reason, template, want, fails string
		removed                       bool
	}{
		"Default":    {reason: "no template, Flux's words", want: Default},
		"Automation": {reason: "who made it", template: "by {{ .AutomationObject }}, {{ .AutomationObject.Name }} of {{ .AutomationObject.Namespace }}", want: "by flux-system/images, images of flux-system"},
		"Values":     {reason: "messageTemplateValues", template: "for {{ .Values.cluster }}", want: "for prod"},
		"Files":      {reason: "files, sorted", template: "{{ range $file, $_ := .Changed.FileChanges }}{{ $file }};{{ end }}", want: "a/web.yaml;b/job.yaml;"},
		"Objects": {reason: "objects with their changes, as Flux documents it",
			template: "{{ range $r, $changes := .Changed.Objects }}{{ $r.Kind | lower }} {{ $r.Name }}:{{ range $_, $c := $changes }} {{ $c.OldValue }} -> {{ $c.NewValue }} by {{ $c.Setter }};{{ end }}\n{{ end }}",
			want:     "deployment web: w:1 -> w:2 by apps:w; x:1 -> x:2 by apps:x;\njob job: x:1 -> x:2 by apps:x;\n"},
		"Changes":       {reason: "each change once", template: "{{ range .Changed.Changes }}{{ .OldValue }} -> {{ println .NewValue }}{{ end }}", want: "w:1 -> w:2\nx:1 -> x:2\n"},
		"Sprig":         {reason: "functions of Sprig", template: `{{ sha256sum "x" | trunc 8 }} {{ .Changed.Changes | toString | len | gt 0 }}`, want: "2d711642 false"},
		"Removed":       {reason: "what Flux removed is told by its own reason", template: "{{ range .Updated.Images }}{{ end }}", removed: true},
		"Unknown":       {reason: "no such field", template: "{{ .Nothing }}", fails: "Nothing"},
		"Syntax":        {reason: "not a template", template: "{{ range }", fails: "messageTemplate"},
		"NoEnvironment": {reason: "the agent's environment is not a template's", template: `{{ env "HOME" }}`, fails: "env"},
		"NoClock":       {reason: "the same change has the same message", template: `{{ now }}`, fails: "now"},
		"NoNetwork":     {reason: "nobody is asked", template: `{{ getHostByName "localhost" }}`, fails: "getHostByName"},
		"LongMessage":   {reason: "a message is bounded", template: `{{ range until 10000 }}aaaaaaaaaaaaaaaaaaaa{{ end }}`, fails: "more than"},
		"LongTemplate":  {reason: "a template is bounded", template: strings.Repeat("a", 70<<10), fails: "more than"},
		"Recursion":     {reason: "a template of itself ends", template: `{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}`, fails: "exceeded maximum template depth"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Of(t.Context(), inside{}, tt.template, facts)
			switch {
			case tt.removed:
				if !errors.Is(err, ErrRemoved) {
					t.Errorf("%s: got %q, %v", tt.reason, got, err)
				}
			case tt.fails != "":
				if !errors.As(err, new(*Invalid)) || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%s: got %q, %v; want an error with %q", tt.reason, got, err, tt.fails)
				}
			case err != nil || got != tt.want:
				t.Errorf("%s: got %q, %v; want %q", tt.reason, got, err, tt.want)
			}
		})
	}
}
