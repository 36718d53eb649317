package kustomization

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"

	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// oneFile is a source with one manifest in it.
type oneFile string

func (f oneFile) Stat(name string) (dir bool, hash string, err error) {
	switch name {
	case "/":
		return true, string(f), nil
	case "/a.yaml":
		return false, string(f), nil
	}
	return false, "", fs.ErrNotExist
}

func (f oneFile) ReadDir(string) ([]source.Entry, error) {
	return []source.Entry{{Name: "a.yaml"}}, nil
}
func (f oneFile) ReadFile(string) ([]byte, error) { return []byte(f), nil }
func (f oneFile) Rules() string                   { return "" }

// TestRefusalIsRemembered: a rendering that failed for its inputs is not tried again
// until one of them changes, or a person asks.
func TestRefusalIsRemembered(t *testing.T) {
	const broken = oneFile("a: [")
	_, failed := render.Render(t.Context(), broken, render.Build{Workers: workers})
	if failed == nil {
		t.Fatal("it is rendered")
	}
	for name, tt := range map[string]struct {
		reason string
		failed error
		key    string
		asked  string
		files  oneFile
		want   bool
	}{
		"Same":    {"nothing changed", failed, "k", "", broken, true},
		"Files":   {"somebody mended the file", failed, "k", "", "a: 1", false},
		"Spec":    {"or the spec", failed, "l", "", broken, false},
		"Asked":   {"or asks for another try", failed, "k", "now", broken, false},
		"Passing": {"what may pass by itself is tried again", errors.New("no worker"), "k", "", broken, false},
		"None":    {"it did not fail", nil, "k", "", broken, false},
	} {
		t.Run(name, func(t *testing.T) {
			obj := shop(nil)
			p := &progress{}
			p.refuse(&run{Record: recordOf(obj), key: "k"}, tt.failed)
			if tt.asked != "" {
				obj.Annotations = map[string]string{meta.ReconcileRequestAnnotation: tt.asked}
			}
			err := p.refusal(&run{Record: recordOf(obj), key: tt.key}, tt.files)
			if (err != nil) != tt.want || err != nil && err.Error() != failed.Error() {
				t.Errorf("%s: %v, want it remembered: %t", tt.reason, err, tt.want)
			}
		})
	}
}
