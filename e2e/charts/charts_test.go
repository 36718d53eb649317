package charts

import (
	"path/filepath"
	"testing"
)

func dir(name string) string { return filepath.Join("..", "..", "deploy", "charts", name) }

func TestRender(t *testing.T) {
	for _, name := range Names() {
		sets, err := Sets(dir(name))
		if err != nil {
			t.Fatal(err)
		}
		c, err := Load(dir(name))
		if err != nil {
			t.Fatal(err)
		}
		for set, values := range sets {
			r, err := Render(c, "demo", "fleet", values)
			if err != nil {
				t.Errorf("%s %s: %v", name, set, err)
			}
			_ = r
		}
	}
}
