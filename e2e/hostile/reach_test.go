package hostile

import (
	"fmt"
	"strings"
)

// pathField is a field of a kustomization file that kustomize reads files, or anything
// that has a URL, by.
type pathField struct {
	name string
	// text of the kustomization file around the path.
	text string
	// dir is whether the path is a directory's.
	dir bool
}

var pathFields = []pathField{
	{"resources", "resources: ['%s']\n", false},
	{"bases", "bases: ['%s']\n", true},
	{"components", "resources: [a.yaml]\ncomponents: ['%s']\n", true},
	{"patches", "resources: [a.yaml]\npatches: [{path: '%s', target: {kind: ConfigMap}}]\n", false},
	{"patches-strategic-merge", "resources: [a.yaml]\npatchesStrategicMerge: ['%s']\n", false},
	{"patches-json6902", "resources: [a.yaml]\npatchesJson6902: [{path: '%s', target: {version: v1, kind: ConfigMap, name: a}}]\n", false},
	{"configmap-files", "configMapGenerator: [{name: g, files: ['k=%s']}]\n", false},
	{"configmap-envs", "configMapGenerator: [{name: g, envs: ['%s']}]\n", false},
	{"secret-files", "secretGenerator: [{name: g, files: ['k=%s']}]\n", false},
	{"secret-envs", "secretGenerator: [{name: g, envs: ['%s']}]\n", false},
	{"openapi", "resources: [a.yaml]\nopenapi: {path: '%s'}\n", false},
	{"crds", "resources: [a.yaml]\ncrds: ['%s']\n", false},
	{"configurations", "resources: [a.yaml]\nconfigurations: ['%s']\n", false},
	{"transformers", "resources: [a.yaml]\ntransformers: ['%s']\n", false},
	{"generators", "generators: ['%s']\n", false},
	{"validators", "resources: [a.yaml]\nvalidators: ['%s']\n", false},
	{"replacements", "resources: [a.yaml]\nreplacements: [{path: '%s'}]\n", false},
}

// reaches are kustomization files that reach for what is not in the repository, by each
// field that has a path, in each way that a path can be written.
func reaches(o *outside) []fixture {
	var all []fixture
	for _, f := range pathFields {
		target := o.file()
		if f.dir {
			target = o.dir
		}
		with := func(path string) tree {
			return tree{"kustomization.yaml": fmt.Sprintf(f.text, path), "a.yaml": configMap("a")}
		}
		all = append(all,
			builds(f.name+"-http", f.name+" has a URL of a server inside of the network, whose answer would be an object", with(o.inside.URL+"/latest/meta-data.yaml")),
			builds(f.name+"-above", f.name+" leads out of the repository by dots", with(o.above(target))),
			builds(f.name+"-absolute", f.name+" names a file of the agent's machine", with(target)),
			builds(f.name+"-link", f.name+" names a symbolic link of the repository that leads out of it", with("out").with(tree{"out": link + target})),
		)
	}
	host := strings.TrimPrefix(o.inside.URL, "http://")
	for name, url := range inOrder(map[string]string{
		"git-prefix":  "git::http://" + host + "/x.git//base?ref=main",
		"git-ssh":     "git@" + strings.ReplaceAll(host, ":", "") + ":x/y.git",
		"git-ref":     "http://" + host + "/x.git//base?ref=main&timeout=600s",
		"git-file":    "file://" + o.dir,
		"git-github":  "github.com/example/example//base?ref=v1",
		"scheme-less": "//" + host + "/x.yaml",
		"upper-case":  "HTTP://" + host + "/x.yaml",
		"ext":         "ext::sh -c 'touch " + o.dir + "/was-here'",
		"upload-pack": "--upload-pack=touch " + o.dir + "/was-here",
	}) {
		all = append(all, builds("base-"+name, "a base is another repository, as "+name+" writes it", tree{"kustomization.yaml": "resources: [\"" + url + "\"]\n"}))
	}
	return append(all,
		builds("keys-of-any-case", "kustomize takes field names in any case, so a guard must, too", tree{"kustomization.yaml": "ReSoUrCeS: ['" + o.inside.URL + "/a.yaml']\n"}),
		builds("helm-charts", "kustomize would run helm, which fetches", tree{"kustomization.yaml": "helmCharts: [{name: x, repo: '" + o.inside.URL + "', version: 1.0.0}]\n"}),
		builds("helm-home", "the directory of charts is elsewhere", tree{"kustomization.yaml": "helmGlobals: {chartHome: '" + o.dir + "'}\nhelmCharts: [{name: x}]\n"}),
		builds("exec-plugin", "a generator that is a program", tree{"kustomization.yaml": "generators: [g.yaml]\n",
			"g.yaml": "apiVersion: v1\nkind: G\nmetadata: {name: g, annotations: {config.kubernetes.io/function: \"exec: {path: /bin/sh}\"}}\n"}),
		builds("container-plugin", "a transformer that is an image with a network", tree{"kustomization.yaml": "resources: [a.yaml]\ntransformers: [t.yaml]\n", "a.yaml": configMap("a"),
			"t.yaml": "apiVersion: v1\nkind: T\nmetadata: {name: t, annotations: {config.kubernetes.io/function: \"container: {image: example.com/x, network: true}\"}}\n"}),
		builds("inline-transformer", "a URL in a file that is written into a field", tree{"kustomization.yaml": "resources: [a.yaml]\ntransformers:\n- |\n  apiVersion: builtin\n  kind: PatchTransformer\n  metadata: {name: p}\n  path: " + o.inside.URL + "/p.yaml\n  target: {kind: ConfigMap}\n", "a.yaml": configMap("a")}),
		builds("inline-generator", "a file of the machine, in a generator in a field", tree{"kustomization.yaml": "generators:\n- |\n  apiVersion: builtin\n  kind: ConfigMapGenerator\n  metadata: {name: g}\n  name: g\n  files: [k=" + o.file() + "]\n"}),
		builds("link-to-directory", "a directory of the repository is a link to one of the machine", tree{"kustomization.yaml": "resources: [out]\n", "out": link + o.dir}),
		builds("link-chain", "a link to a link that leads out", tree{"kustomization.yaml": "resources: [one]\n", "one": link + "two", "two": link + o.file()}),
		builds("link-loop", "links that lead to each other", tree{"kustomization.yaml": "resources: [one]\n", "one": link + "two", "two": link + "one"}),
		builds("link-kustomization", "the kustomization file itself is a link out", tree{"kustomization.yaml": link + o.dir + "/kustomization.yaml"}),
		builds("link-proc", "the environment of the agent", tree{"kustomization.yaml": "configMapGenerator: [{name: g, files: [k=env]}]\n", "env": link + "/proc/self/environ"}),
		builds("token", "the token of the agent's account", tree{"kustomization.yaml": "secretGenerator: [{name: g, files: [k=/var/run/secrets/kubernetes.io/serviceaccount/token]}]\n"}),
	)
}
