package render

import (
	"fmt"
	"strings"
	"testing"
)

// workload is n objects of the usual kinds in as many files.
func workload(objects, files int) tree {
	out := tree{}
	for i := range objects {
		file := fmt.Sprintf("f%03d.yaml", i%files)
		o := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: cm-%d\n  namespace: ns\n  labels:\n    app: web\ndata:\n  url: http://example.com/%d\n  text: |\n    one\n    two\n", i, i)
		if i%4 == 1 {
			o = fmt.Sprintf("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web-%d\n  namespace: ns\n  labels:\n    app: web\nspec:\n  replicas: 2\n  selector:\n    matchLabels:\n      app: web-%d\n  template:\n    metadata:\n      labels:\n        app: web-%d\n    spec:\n      containers:\n      - name: web\n        image: example.com/web:1\n        ports:\n        - containerPort: 80\n        env:\n        - name: A\n          value: \"1\"\n", i, i, i)
		}
		if out[file] != "" {
			o = "---\n" + o
		}
		out[file] += o
	}
	return out
}

func BenchmarkRender(b *testing.B) {
	overlay := tree{"over/kustomization.yaml": "resources: [../base]\npatches:\n- patch: |\n    apiVersion: apps/v1\n    kind: Deployment\n    metadata: {name: web-1, namespace: ns}\n    spec: {replicas: 3}\n"}
	var list strings.Builder
	for name, content := range workload(8, 2) {
		overlay["base/"+name] = content
		list.WriteString("- " + name + "\n")
	}
	overlay["base/kustomization.yaml"] = "resources:\n" + list.String()
	listed := tree{}
	for name, content := range overlay {
		listed[name] = content
	}
	listed["over/kustomization.yaml"] = "resources: [../base]\n"
	for _, bc := range []struct {
		name  string
		files tree
		build Build
	}{
		{"Plain8", workload(8, 2), Build{}},
		{"Plain8Substituted", workload(8, 2), Build{Variables: map[string]string{"a": "b"}}},
		{"Listed8", listed, Build{Path: "over"}},
		{"Overlay8", overlay, Build{Path: "over"}},
		{"Namespace8", workload(8, 2), Build{TargetNamespace: "there"}},
		{"Plain5000", workload(5000, 50), Build{}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := rendered(b.Context(), bc.files, bc.build); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
