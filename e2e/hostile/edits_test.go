package hostile

import (
	"fmt"
	"strings"
)

// edits are kustomizations whose patches, generators and levels make more than they are.
func edits(*outside) []fixture {
	base := tree{"a.yaml": configMap("a")}
	with := func(text string) tree { return base.with(tree{"kustomization.yaml": text}) }
	keys, many := "configMapGenerator:\n- name: g\n  files:\n", tree{"kustomization.yaml": "configMapGenerator:\n- name: g\n  files:\n"}
	large := strings.Repeat("x", 4<<20)
	for i := range 200 {
		keys += fmt.Sprintf("  - k%d=big.txt\n", i)
		many["kustomization.yaml"] += fmt.Sprintf("  - f%d.txt\n", i)
		many[fmt.Sprintf("f%d.txt", i)] = strings.Repeat("x", 200<<10)
	}
	replacements := "resources: [a.yaml]\nreplacements:\n"
	for i := range 40 {
		replacements += fmt.Sprintf("- source: {kind: ConfigMap, fieldPath: data}\n  targets: [{select: {kind: ConfigMap}, fieldPaths: [data.c%d], options: {create: true}}]\n", i)
	}
	inSpec := builds("copies-spec", "a JSON patch of the spec copies a map into itself forty times", base)
	inSpec.objects = kustomizationOf(fmt.Sprintf("patches: [{target: {kind: ConfigMap}, patch: %q}]", copies(40)))
	post := chartOf("copies-release", "a post-renderer copies a map into itself forty times", map[string]string{"templates/a.yaml": configMap("a")},
		fmt.Sprintf("postRenderers: [{kustomize: {patches: [{target: {kind: ConfigMap}, patch: %q}]}}]", copies(40)))
	ignore := builds("ignored-selector", "a selector of spec.patches that is a hard expression", base)
	ignore.objects = kustomizationOf(`patches: [{target: {kind: ConfigMap, name: "(((((((a{1,100}){1,100}){1,100}){1,100}){1,100}){1,100}){1,100})"}, patch: "- {op: add, path: /data/x, value: y}"}]`)
	images := builds("image-of-the-spec", "a name of an image that is no name", tree{"a.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: a}]}\n"})
	images.objects = kustomizationOf(`images: [{name: "[", newName: x}]`)
	component := builds("component-above", "a component of the spec is outside", base)
	component.objects = kustomizationOf("components: ['../../../../../../../../etc']")
	components := builds("components-many", "a hundred components, each of which doubles what there is", doublingComponents(100))
	return []fixture{
		builds("copies", "a JSON patch copies a map into itself forty times", base.with(tree{"kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap}}]\n", "p.yaml": copies(40)})),
		inSpec, post, ignore, images, component, components,
		builds("diamond", "forty levels, each of which takes the one below twice", diamond(40)),
		builds("self", "a base that is the directory itself", with("resources: [a.yaml, ../app]\n")),
		builds("ring", "two directories that are each other's bases", with("resources: [b]\n").with(tree{"b/kustomization.yaml": "resources: [../../app]\n"})),
		builds("replacements", "replacements put a map into itself forty times", with(replacements)),
		builds("keys", "one file of 4 MiB under two hundred keys", base.with(tree{"kustomization.yaml": keys, "big.txt": large})),
		builds("files", "two hundred files that add up", many),
		builds("prefix", "a prefix of a megabyte for ten thousand objects", tree{"kustomization.yaml": "namePrefix: " + strings.Repeat("x", 1<<20) + "\nresources: [a.yaml]\n", "a.yaml": manyObjects(10_000)}),
		builds("labels", "a megabyte of labels for ten thousand objects", tree{"kustomization.yaml": "labels: [{pairs: {a: " + strings.Repeat("x", 1<<20) + "}}]\nresources: [a.yaml]\n", "a.yaml": manyObjects(10_000)}),
		builds("selector", "a selector that takes long to match", with("resources: [a.yaml]\npatches: [{target: {name: \"(a{0,999}){0,999}\"}, patch: \"- {op: add, path: /data/x, value: y}\"}]\n")),
		builds("patch-path", "a JSON patch of index 4294967295, which grows a list", tree{"kustomization.yaml": "resources: [a.yaml]\npatches: [{target: {kind: ConfigMap}, patch: '[{\"op\": \"add\", \"path\": \"/x/4294967295\", \"value\": 1}]'}]\n", "a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nx: [1]\n"}),
		builds("patch-null", "a JSON patch that takes away what an object is", with("resources: [a.yaml]\npatches: [{target: {kind: ConfigMap}, patch: '[{\"op\": \"remove\", \"path\": \"/kind\"}]'}]\n")),
		builds("patch-deep", "a JSON pointer of a hundred thousand levels", with("resources: [a.yaml]\npatches: [{target: {kind: ConfigMap}, patch: '[{\"op\": \"replace\", \"path\": \""+strings.Repeat("/a", 100_000)+"\", \"value\": 1}]'}]\n")),
		builds("replicas", "a number of replicas that is none", with("resources: [a.yaml]\nreplicas: [{name: a, count: 99999999999999999999999}]\n")),
		builds("vars", "variables that refer to each other", with("resources: [a.yaml]\nvars: [{name: A, objref: {kind: ConfigMap, name: a, apiVersion: v1}, fieldref: {fieldpath: 'data[0].k.k.k'}}, {name: A, objref: {kind: ConfigMap, name: none, apiVersion: v1}}]\n")),
		builds("two-files", "two kustomization files in a directory", with("resources: [a.yaml]\n").with(tree{"kustomization.yml": "resources: []\n"})),
		builds("generator-behaviour", "a generator that merges with what is not there", with("configMapGenerator: [{name: g, behavior: merge, literals: [k=v]}]\n")),
		builds("conflict", "an object twice", tree{"kustomization.yaml": "resources: [a.yaml, b.yaml]\n", "a.yaml": configMap("a"), "b.yaml": configMap("a")}),
		builds("namespace-name", "a name with dots and slashes", tree{"kustomization.yaml": "resources: [a.yaml]\nnamePrefix: ../../\nnameSuffix: \"\\u0000\"\n", "a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ''}\n"}),
	}
}

// copies is a JSON patch that doubles what is in a field, over and over.
func copies(times int) string {
	text := "- {op: add, path: /data, value: {a: {b: \"" + strings.Repeat("x", 100) + "\"}}}\n"
	for i := range times {
		text += fmt.Sprintf("- {op: copy, from: /data, path: /data/a/c%d}\n", i)
	}
	return text
}

// diamond is a directory in which each level takes the one below twice.
func diamond(levels int) tree {
	files := tree{"l0/kustomization.yaml": "resources: [a.yaml]\n", "l0/a.yaml": configMap("a")}
	for i := 1; i <= levels; i++ {
		for _, side := range []string{"a", "b"} {
			files[fmt.Sprintf("l%d%s/kustomization.yaml", i, side)] = fmt.Sprintf("namePrefix: %s-\nresources: [../l%d]\n", side, i-1)
		}
		files[fmt.Sprintf("l%d/kustomization.yaml", i)] = fmt.Sprintf("resources: [../l%da, ../l%db]\n", i, i)
	}
	files["kustomization.yaml"] = fmt.Sprintf("resources: [l%d]\n", levels)
	return files
}

func doublingComponents(n int) tree {
	files := tree{"a.yaml": configMap("a"), "kustomization.yaml": "resources: [a.yaml]\ncomponents:\n"}
	for i := range n {
		files["kustomization.yaml"] += fmt.Sprintf("- c%d\n", i)
		files[fmt.Sprintf("c%d/kustomization.yaml", i)] = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nreplacements: [{source: {kind: ConfigMap, name: a, fieldPath: data}, targets: [{select: {kind: ConfigMap}, fieldPaths: [data.d" + fmt.Sprint(i) + "], options: {create: true}}]}]\n"
	}
	return files
}

func manyObjects(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a%d}\n", i)
	}
	return b.String()
}

// variables are substitutions of spec.postBuild that are more than they look.
func variables(*outside) []fixture {
	substitutes := func(name, reason, text, post string) fixture {
		f := builds(name, reason, tree{"a.yaml": text})
		f.objects = kustomizationOf("postBuild: {" + post + "}")
		return f
	}
	value := func(text string) string { return anyConfigMap + "data: {k: \"" + text + "\"}\n" }
	from := func(f fixture, values string) fixture {
		f.objects = manifests("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: $ns}\ndata: "+values+"\n", f.objects)
		return f
	}
	long := strings.Repeat("x", 500_000)
	return []fixture{
		from(substitutes("large", "a variable of half a megabyte, a thousand times", anyConfigMap+"data:\n"+strings.Repeat("  k$$: \"${V}\"\n", 1)+manyUses("V", 1000), "substituteFrom: [{kind: ConfigMap, name: vars}]"), "{V: "+long+"}"),
		from(substitutes("alias", "a variable that is an anchor and its alias", anyConfigMap+"data: ${V}\n", "substituteFrom: [{kind: ConfigMap, name: vars}]"), `{V: "&a {k: *a}"}`),
		from(substitutes("laughs", "a variable that is a chain of anchors", anyConfigMap+"data: ${V}\n", "substituteFrom: [{kind: ConfigMap, name: vars}]"), fmt.Sprintf("{V: %q}", flowLaughs(9))),
		from(substitutes("documents", "a variable that ends the document and begins another", value("${V}"), "substituteFrom: [{kind: ConfigMap, name: vars}]"), `{V: "\"}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: other, namespace: vault}\nx: {\"a\": \""}`),
		substitutes("nested", "ten thousand defaults in each other", value(strings.Repeat("${a:=", 10_000)+"x"+strings.Repeat("}", 10_000)), "substitute: {X: z}"),
		substitutes("unclosed", "a reference that does not end", value("${a:=${b"), "substitute: {X: z}"),
		substitutes("missing-from", "variables of a Secret of another namespace", value("${V}"), "substituteFrom: [{kind: Secret, name: ../vault/canary}]"),
		substitutes("name", "a name of a variable that is none", value("${V}"), `substitute: {"a-b c": z}`),
	}
}

func manyUses(name string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  k%d: \"${%s}\"\n", i, name)
	}
	return b.String()
}

// flowLaughs is the chain of laughs in one flow mapping.
func flowLaughs(levels int) string {
	text := "{l0: &l0 [x, x, x, x, x, x, x, x, x, x]"
	for i := 1; i <= levels; i++ {
		text += fmt.Sprintf(", l%[1]d: &l%[1]d [%[2]s]", i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d, ", i-1), 10), ", "))
	}
	return text + "}"
}
