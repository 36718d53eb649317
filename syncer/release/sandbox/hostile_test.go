package sandbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// TestHostileChartsEnd: a chart that doubles, or never ends, is refused by what its
// templates may do, or by the end of its worker; the next chart is rendered.
func TestHostileChartsEnd(t *testing.T) {
	pool := worker.New(worker.Options{Limits: worker.Limits{Workers: 1, Memory: 160 << 20, Time: worker.DefaultLimits().Time}})
	defer pool.Close()
	render := func(text string) (got string, err error) {
		err = Render(t.Context(), Request{Chart: chartOf(map[string]string{"x": text}), Version: "1.0.0", Workers: pool}, func(r Rendering) error {
			return asHelm(t, &got)(r)
		})
		return got, err
	}
	for name, tt := range map[string]struct{ reason, text string }{
		"Doubling": {"a string that is doubled with each line", "{{ $s := \"xx\" }}" + strings.Repeat("{{ $s = print $s $s }}", 40) + "{{ $s }}"},
		"Endless":  {"2^63 turns", "{{ range 9000000000000000000 }}{{ end }}"},
		"Itself":   {"a value that contains itself", "{{ $d := dict }}{{ $_ := set $d \"d\" $d }}{{ $d | toYaml }}"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(tt.text)
			var budget *Exceeded
			var limit *worker.Exceeded
			if !errors.As(err, &budget) && !errors.As(err, &limit) {
				t.Errorf("%s: %v, want a limit that is exceeded", tt.reason, err)
			}
			if got, err := render("{{ .Chart.Name }}"); err != nil || got != "web" {
				t.Errorf("a good chart after it: %q, %v", got, err)
			}
		})
	}
}
