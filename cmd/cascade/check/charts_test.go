package check

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/Masterminds/semver/v3"
	"sigs.k8s.io/yaml"
)

// TestCharts: our charts are for the versions of Kubernetes that a management cluster may have, and no others: what is
// checked as good is not refused when the agent, or the first cluster, is installed.
func TestCharts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "deploy", "charts", "*", "Chart.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("there are %d charts: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var chart struct{ KubeVersion string }
		if err := yaml.Unmarshal(text, &chart); err != nil {
			t.Fatal(err)
		}
		versions, err := semver.NewConstraint(chart.KubeVersion)
		if err != nil {
			t.Fatalf("%s: kubeVersion %q: %v", file, chart.KubeVersion, err)
		}
		for version, want := range map[string]bool{LeastKubernetes: true, LeastKubernetes + "-eks-1": true, "1.29.9": false, "1.36.3": true} {
			if versions.Check(semver.MustParse(version)) != want {
				t.Errorf("%s: kubeVersion %s admits %s: %t", file, chart.KubeVersion, version, !want)
			}
		}
	}
}
