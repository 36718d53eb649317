package hostile

import (
	"fmt"
	"strings"

	"github.com/cascade-gitops/cascade/e2e/origins"
)

// bomb is YAML that is more than it looks, as the value of a key.
type bomb struct {
	name, reason string
	// value is in flow style on one line; before has lines that it needs ahead of it, at
	// the outermost level.
	value, before string
}

// laughs is a chain of levels of anchors, each ten times the one before.
func laughs(levels int) string {
	text := "l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i <= levels; i++ {
		text += fmt.Sprintf("l%[1]d: &l%[1]d [%[2]s]\n", i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d, ", i-1), 10), ", "))
	}
	return text
}

func yamlBombs() []bomb {
	return []bomb{
		{"cycle", "an anchor that contains itself, which recursion never leaves", "&a {k: *a}", ""},
		{"laughs", "ten levels of anchors, each ten times the one before", "*l9", laughs(9)},
		{"deep", "more levels than a stack has room for", strings.Repeat("[", 20000) + strings.Repeat("]", 20000), ""},
		{"merge", "merge keys that double what is merged", "{<<: [*m9, *m9]}", mergeBomb()},
	}
}

// mergeBomb is a chain of maps, each of which merges the one before under ten keys.
func mergeBomb() string {
	text := "m0: &m0 {a: x, b: x, c: x, d: x, e: x, f: x, g: x, h: x, i: x, j: x}\n"
	for i := 1; i <= 9; i++ {
		text += fmt.Sprintf("m%[1]d: &m%[1]d {<<: *m%[2]d, a: *m%[2]d, b: *m%[2]d, c: *m%[2]d, d: *m%[2]d, e: *m%[2]d, f: *m%[2]d, g: *m%[2]d, h: *m%[2]d, i: *m%[2]d, j: *m%[2]d}\n", i, i-1)
	}
	return text
}

const anyConfigMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"

// bombs are each of these at each place at which somebody reads YAML.
func bombs(*outside) []fixture {
	var all []fixture
	for _, b := range yamlBombs() {
		object := b.before + anyConfigMap + "data: " + b.value + "\n"
		for _, p := range yamlPlaces(b, object) {
			p.name, p.reason = b.name+"-"+p.name, b.reason+", "+p.reason
			all = append(all, p)
		}
	}
	return append(all,
		builds("documents", "a million documents in one file", tree{"a.yaml": strings.Repeat("---\n{}\n", 1<<20)}),
		builds("dense", "eight million nodes, which take more than their text", tree{"a.yaml": anyConfigMap + "x: [" + strings.Repeat("1,", 4<<20) + "1]\n"}),
		builds("large", "a file beyond the limit", tree{"a.yaml": anyConfigMap + "data: {k: " + strings.Repeat("x", 11<<20) + "}\n"}),
		builds("comment", "a file of comments", tree{"a.yaml": strings.Repeat("# "+strings.Repeat("x", 100)+"\n", 100<<10) + "a: [\n"}),
		builds("anchors", "a hundred thousand anchors, each of which is used", tree{"a.yaml": anyConfigMap + "data:\n" + manyAnchors(100_000)}),
		builds("binary", "a value that is no text", tree{"a.yaml": anyConfigMap + "data: {k: \"\x00\xff\"}\n"}),
		builds("tags", "a tag that names a type of a language", tree{"a.yaml": anyConfigMap + "data: !!python/object/apply:os.system [id]\nspec: *none\n"}),
		builds("duplicate", "a key twice, of which readers take different ones", tree{"a.yaml": anyConfigMap + "data: {k: a}\ndata: {k: b}\n"}),
		builds("json-deep", "JSON, deeper than a stack", tree{"a.json": "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"},\"data\":" + strings.Repeat("{\"k\":", 200_000) + "1" + strings.Repeat("}", 200_000) + "}", "kustomization.yaml": "resources: [a.json]\n"}),
		builds("no-kind", "an object without a kind", tree{"a.yaml": "apiVersion: v1\nmetadata: {name: a}\n"}),
		builds("list-of-lists", "a List that has itself in its items, a thousand times", tree{"a.yaml": strings.Repeat("{apiVersion: v1, kind: List, items: [", 1500) + strings.Repeat("]}", 1500) + "\n"}),
		refused("number", "a number of a million digits as a name", tree{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + strings.Repeat("9", 1<<20) + "}\n"}),
	)
}

// refused is a directory that is built, and that the API server refuses.
func refused(name, reason string, files tree) fixture {
	f := builds(name, reason, files)
	f.tells = []string{"ReconciliationFailed"}
	return f
}

func manyAnchors(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  k%[1]d: &k%[1]d x\n  r%[1]d: *k%[1]d\n", i)
	}
	return b.String()
}

// yamlPlaces are fixtures that have a bomb where it is read.
func yamlPlaces(b bomb, object string) []fixture {
	line := b.before + "x: " + b.value + "\n"
	plugin := "apiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: p}\ntarget: {kind: ConfigMap}\npatch: |\n" + indented(object, 2)
	plain := tree{"a.yaml": configMap("a")}
	withFile := func(field, text string) tree {
		return plain.with(tree{"kustomization.yaml": "resources: [a.yaml]\n" + field + "\n", "p.yaml": text})
	}
	places := []fixture{
		builds("manifest", "in a manifest", tree{"a.yaml": object}),
		builds("kustomization", "in a kustomization file", plain.with(tree{"kustomization.yaml": b.before + "resources: [a.yaml]\ncommonAnnotations: " + b.value + "\n"})),
		builds("patch", "in the file of a patch", withFile("patches: [{path: p.yaml}]", object)),
		builds("patch-json", "in the file of a JSON patch", withFile("patches: [{path: p.yaml, target: {kind: ConfigMap}}]", b.before+"- {op: add, path: /data/x, value: "+b.value+"}\n")),
		builds("plugin", "in a string of a plugin, which is YAML", withFile("transformers: [p.yaml]", plugin)),
		builds("replacement", "in the file of a replacement", withFile("replacements: [{path: p.yaml}]", line)),
		builds("configuration", "in the configuration of transformers", withFile("configurations: [p.yaml]", line)),
		builds("crd", "in what crds names", withFile("crds: [p.yaml]", object)),
	}
	if len(object) < 10_000 {
		spec := builds("spec-patches", "in spec.patches", plain)
		spec.objects = kustomizationOf(fmt.Sprintf("patches: [{target: {kind: ConfigMap}, patch: %q}]", object))
		places = append(places, spec)
	}
	places = append(places,
		builds("component", "in the kustomization file of a component", plain.with(tree{"kustomization.yaml": "resources: [a.yaml]\ncomponents: [c]\n",
			"c/kustomization.yaml": b.before + "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\ncommonAnnotations: " + b.value + "\n"})),
		encrypted("sops", "in a file that says that SOPS encrypted it", "a.yaml", b.before+anyConfigMap+"data: "+b.value+"\nsops: {mac: x, version: 3.9.0, lastmodified: '2026-01-01T00:00:00Z', age: []}\n"),
		kubeconfigOf("kubeconfig", "in a kubeconfig", b.before+"apiVersion: v1\nkind: Config\nclusters: "+b.value+"\n"),
		chartOf("chart-values", "in values.yaml of a chart", map[string]string{"values.yaml": b.before + "a: " + b.value + "\n", "templates/a.yaml": "a: {{ .Values.a }}\n"}, ""),
		chartOf("chart-template", "in what a template makes", map[string]string{"templates/a.yaml": object}, ""),
		chartOf("chart-crd", "in a definition of a chart", map[string]string{"crds/a.yaml": object, "templates/b.yaml": configMap("b")}, ""),
		chartOf("chart-metadata", "in Chart.yaml", map[string]string{"Chart.yaml": b.before + "apiVersion: v2\nname: app\nversion: 1.0.0\nannotations: " + b.value + "\n"}, ""),
		indexOf("index", "in the index of a Helm repository", b.before+"apiVersion: v1\nentries: "+b.value+"\n"),
	)
	if len(line) < 10_000 {
		places = append(places, valuesOf("values-from", "in the values of a ConfigMap", line))
	}
	return places
}

// valuesOf is a HelmRelease that takes values from a ConfigMap.
func valuesOf(name, reason, text string) fixture {
	f := chartOf(name, reason, map[string]string{"templates/a.yaml": configMap("a")}, "valuesFrom: [{kind: ConfigMap, name: values}]")
	f.objects = manifests(fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: values, namespace: $ns}\ndata: {values.yaml: %q}\n", text), f.objects)
	f.tells = []string{"ValuesError"}
	return f
}

// chartOf is a HelmRelease of a chart in the repository, with more of its spec.
func chartOf(name, reason string, files map[string]string, more string) fixture {
	c := origins.Chart{Name: "app", Version: "1.0.0", Files: files}
	all := tree{}
	for file, text := range c.Tree() {
		all["charts/app/"+file] = text
	}
	if own, ok := files["Chart.yaml"]; ok {
		all["charts/app/Chart.yaml"] = own
	}
	if more != "" {
		more = ", " + more
	}
	return fixture{
		name: name, reason: reason, files: all, kind: "HelmRelease", tells: []string{"InstallFailed", "ArtifactFailed", "SourceNotReady"},
		objects: "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: bad, namespace: $ns}\n" +
			"spec: {interval: 10m, timeout: 20s, install: {remediation: {retries: 0}}, chart: {spec: {chart: ./charts/app, interval: 1m, sourceRef: {kind: GitRepository, name: git}}}" + more + "}\n",
	}
}

// encrypted is a Kustomization with decryption.
func encrypted(name, reason, file, text string) fixture {
	f := builds(name, reason, tree{file: text})
	f.objects = kustomizationOf("decryption: {provider: sops}")
	return f
}

// kubeconfigOf is a Kustomization that is applied by a kubeconfig.
func kubeconfigOf(name, reason, kubeconfig string) fixture {
	f := builds(name, reason, tree{"a.yaml": configMap("a")})
	f.objects = manifests(secret("kubeconfig", map[string]string{"value": kubeconfig}), kustomizationOf("kubeConfig: {secretRef: {name: kubeconfig}}"))
	f.tells = []string{"ReconciliationFailed"}
	return f
}

// indexOf is a HelmRepository whose index is a text.
func indexOf(name, reason, text string) fixture {
	return fixture{
		name: name, reason: reason, serve: says("application/yaml", text), kind: "HelmRepository", tells: []string{"IndexationFailed", "Failed", "LimitExceeded"},
		objects: source("HelmRepository", "url: 'http://$server', interval: 1m, timeout: 15s"),
	}
}
