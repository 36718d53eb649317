package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/envsubst/parse"
	"sigs.k8s.io/yaml"
)

// fuzzFields are what FuzzDifferential puts into the kustomization file of a
// directory, one bit each.
var fuzzFields = []string{
	"namePrefix: p-\n", "nameSuffix: -s\n", "namespace: ns\n", "commonLabels: {l: \"1\"}\n", "commonAnnotations: {a: \"1\"}\n",
	"images: [{name: i, newTag: \"2\"}]\n", "replicas: [{name: d, count: 2}]\n", "buildMetadata: [originAnnotations]\n", "patches: [{path: p.txt}]\n",
	"configMapGenerator: [{name: g, files: [p.txt]}]\n", "secretGenerator: [{name: h, envs: [p.txt]}]\n", "sortOptions: {order: legacy}\n",
	"patches: [{path: p.txt, target: {kind: ConfigMap}}]\n", "labels: [{pairs: {m: \"1\"}, includeTemplates: true}]\n",
}

// fuzzSpecs are Kustomizations, by number.
var fuzzSpecs = []string{
	"", "", "", "postBuild: {substitute: {a: b, n: \"5\"}}\n", "postBuild: {substituteStrategy: Always}\n", "targetNamespace: there\n", "commonMetadata: {labels: {x: y}}\n",
	"namePrefix: p-\npostBuild: {substitute: {a: \"1\"}}\n",
}

// FuzzDifferential renders a directory of two files by us and by Flux: with how
// = 0 a plain one, otherwise one with the kustomization fields that are its
// bits.
func FuzzDifferential(f *testing.F) {
	cases := readCases(f, "testdata/differential/*.txtar")
	for n, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		if len(c.files) > 2 {
			continue
		}
		var both []string
		for _, file := range slices.Sorted(maps.Keys(c.files)) {
			both = append(both, c.files[file])
		}
		both = append(both, manifest("z", "k", "${a}"))
		f.Add([]byte(both[0]), []byte(both[1]), uint16(0), uint8(n))
		f.Add([]byte(both[0]), []byte(both[1]), uint16(1<<(n%len(fuzzFields))), uint8(0))
	}
	f.Fuzz(func(t *testing.T, a, p []byte, how uint16, spec uint8) {
		if len(a)+len(p) > 1<<13 || hurts(a) || hurts(p) {
			return
		}
		c := &fluxCase{files: tree{"a.yaml": string(a), "p.txt": string(p)}, spec: fuzzSpecs[int(spec)%len(fuzzSpecs)]}
		if how == 0 {
			delete(c.files, "p.txt")
			c.files["b.yml"] = string(p)
		} else {
			k := "resources: [a.yaml]\n"
			seen := map[string]bool{}
			for bit, field := range fuzzFields {
				name, _, _ := strings.Cut(field, ":")
				if how&(1<<bit) != 0 && !seen[name] {
					seen[name] = true
					k += field
				}
			}
			c.files["kustomization.yaml"] = k
		}
		// Flux reads its schema anew for each build, which takes a tenth of a
		// second; these builds cannot bring one of their own.
		compareWith(t, c, inMemory)
	})
}

// hurts tells whether YAML would stop the oracle, or take it over.
func hurts(data []byte) bool {
	added, err := Added(data)
	return err != nil || added > 10_000
}

// FuzzSubstitution: what a substitution makes of an object is what Flux's library
// makes of it, in bounded space.
func FuzzSubstitution(f *testing.F) {
	for _, s := range []string{"${a}", "$${a}", "${a:=b}", "${a:-${b}}", "${a:1:2}", "${a/x/y}", "${#a}", "${a^^}", "${", "$", "${a//a/${a}}", "a\\b", "x: ${a}\ny: {${b}}"} {
		f.Add(s, "value", "x: y")
	}
	f.Fuzz(func(t *testing.T, text, a, b string) {
		if len(text)+len(a)+len(b) > 1<<12 {
			return
		}
		vars := newVariables(Build{Variables: map[string]string{"a": a, "b": b}})
		out, err := vars.put(text)
		if err != nil {
			return
		}
		parsed, err := parse.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if len(out) > vars.bound(parsed.Root) {
			t.Errorf("put(%q) made %d bytes, more than the bound of %d", text, len(out), vars.bound(parsed.Root))
		}
		// A zero ends the text for Flux's library; YAML has none.
		if quiet([]byte(text)) && out != text && tame(text) {
			t.Errorf("Eval(%q) = %q, without a variable in it", text, out)
		}
		_ = guarded(func() error {
			_, err := yaml.YAMLToJSON([]byte(out))
			return err
		})
		files := tree{"a.yaml": manifest("x", "k", fmt.Sprintf("%q", text))}
		_, _ = rendered(t.Context(), files, Build{Variables: vars.values})
	})
}
