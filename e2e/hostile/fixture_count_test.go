package hostile

import (
	"testing"
	"time"
)

func TestCount(t *testing.T) {
	o := startOutside(t)
	for _, c := range []string{"reach", "yaml", "edit", "variable", "spec", "kubeconfig", "apiserver", "gitserver", "pack", "archive", "registry", "helmrepo", "chart", "expression", "sops", "status", "bucket", "artifact"} {
		b := time.Now()
		all := fixtures(o, false, func(x string) bool { return x == c })
		t.Logf("%s %d %s", c, len(all), time.Since(b))
		seen := map[string]bool{}
		for _, f := range all {
			if seen[f.namespace()] {
				t.Errorf("dup %s", f.namespace())
			}
			if len(f.namespace()) > 63 {
				t.Errorf("long %s", f.namespace())
			}
			seen[f.namespace()] = true
		}
	}
}
