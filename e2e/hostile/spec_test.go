package hostile

import (
	"fmt"
	"strings"

	"github.com/cascade-gitops/cascade/e2e/origins"
)

// specs are objects whose own fields are hostile: references, addresses, names.
func specs(o *outside) []fixture {
	git := func(name, reason, fields string, tells ...string) fixture {
		return fixture{name: "git-" + name, reason: reason, objects: manifests(login, source("GitRepository", fields+", interval: 1m, timeout: 5s")), kind: "GitRepository", tells: append(tells, "URLInvalid", "GitOperationFailed", "AuthenticationFailed")}
	}
	real := func(name, reason, fields string, tells ...string) fixture {
		f := git(name, reason, "url: '$git', secretRef: {name: git-auth}, "+fields, tells...)
		f.files = tree{"app/a.yaml": configMap("a"), ".sourceignore": strings.Repeat("x\n", 10)}
		return f
	}
	twice := kustomizationOf("dependsOn: [{name: other}]") + "---\n" + strings.ReplaceAll(kustomizationOf("dependsOn: [{name: bad}]"), "name: bad, namespace", "name: other, namespace")
	ring := builds("kustomization-ring", "two that depend on each other", tree{"a.yaml": configMap("a")})
	ring.objects, ring.tells = twice, []string{"DependencyNotReady"}
	include := real("include-ring", "two that include each other", "include: [{repository: {name: other}}]", "IncludeCycle", "IncludeUnavailable")
	include.objects = manifests(include.objects, strings.ReplaceAll(source("GitRepository", "url: '$git', secretRef: {name: git-auth}, interval: 1m, include: [{repository: {name: bad}}]"), "metadata: {name: bad", "metadata: {name: other"))
	patterns := real("ignore", "two hundred thousand patterns of what is ignored", "ref: {branch: main}", "LimitExceeded")
	patterns.files = tree{"app/a.yaml": configMap("a"), ".sourceignore": strings.Repeat("**/x*y*z*\n", 200_000)}
	big := real("file-large", "a file of 150 MiB, in some KB", "ref: {branch: main}", "LimitExceeded")
	big.files = tree{"app/a.yaml": configMap("a"), "zeros": strings.Repeat("\x00", 150<<20)}
	return append([]fixture{
		git("file", "a directory of the machine", "url: 'http://localhost:1/../../x', secretRef: {name: none}"),
		git("password", "a password in the URL, which messages would show", "url: 'http://u:"+password+"@127.0.0.1:1/x.git'"),
		git("option", "a URL that is an option of a program", "url: 'ssh://-oProxyCommand=touch%20"+o.dir+"%2Fwas-here/x.git', secretRef: {name: login}"),
		git("port", "a port that there is none of", "url: 'http://127.0.0.1:99999/x.git'"),
		git("host", "a host that is none", "url: 'http://a b/x.git'"),
		git("metadata", "the metadata service", "url: 'http://169.254.169.254/x.git', secretRef: {name: login}"),
		git("proxy", "a proxy that is a file", "url: 'http://127.0.0.1:1/x.git', proxySecretRef: {name: login}"),
		git("secret-elsewhere", "a Secret whose name has a path", "url: 'http://127.0.0.1:1/x.git', secretRef: {name: '../vault/canary'}"),
		real("branch", "a branch that is a path", "ref: {branch: '../../../../etc/passwd'}"),
		real("branch-option", "a branch that is an option", "ref: {branch: '--upload-pack=touch'}"),
		real("branch-lines", "a branch with lines", `ref: {branch: "main\n0000"}`),
		real("ref-name", "a name that is no reference", "ref: {name: 'refs/../../config'}"),
		real("commit", "a commit that is none", "ref: {commit: '../../../etc'}"),
		real("semver", "a range that is none", "ref: {semver: '>>>1'}"),
		real("semver-long", "a range of a hundred thousand ranges", "ref: {semver: '"+strings.Repeat(">=1.0.0 || ", 50_000)+"1.0.0'}"),
		real("include-above", "a place above the directory", "include: [{repository: {name: git}, fromPath: '../../..', toPath: '../../../x'}]", "CopyFailure", "IncludeUnavailable"),
		real("include-self", "one that includes itself", "include: [{repository: {name: bad}}]", "IncludeCycle", "IncludeUnavailable"),
		real("include-missing", "one that is not there", "include: [{repository: {name: none}}]", "IncludeUnavailable", "NotFound"),
		real("verify", "a signature that nobody made", "ref: {branch: main}, verify: {mode: HEAD, secretRef: {name: login}}", "VerificationError", "InvalidCommitSignature", "InvalidVerificationMode"),
		include, patterns, big, ring,
	}, append(appliers(o), policies()...)...)
}

// appliers are Kustomizations, HelmReleases and HelmCharts whose fields are hostile.
func appliers(o *outside) []fixture {
	kustomization := func(name, reason, more string, tells ...string) fixture {
		f := builds("kustomization-"+name, reason, tree{"a.yaml": configMap("a")})
		f.objects = kustomizationOf(more)
		f.tells = append(tells, "BuildFailed", "ReconciliationFailed")
		return f
	}
	over := func(f fixture, before, after string) fixture {
		f.objects = strings.Replace(f.objects, before, after, 1)
		return f
	}
	release := func(name, reason, more string, tells ...string) fixture {
		f := chartOf("release-"+name, reason, map[string]string{"templates/a.yaml": configMap("a")}, more)
		f.tells = append(tells, "InstallFailed", "ValuesError", "StateError")
		return f
	}
	chart := func(name, reason, fields string, files tree) fixture {
		all := tree{"charts/app/Chart.yaml": origins.Chart{Name: "app", Version: "1.0.0"}.Metadata()}.with(files)
		return fixture{name: "chart-" + name, reason: reason, files: all, objects: source("HelmChart", fields+", interval: 1m, sourceRef: {kind: GitRepository, name: git}"), kind: "HelmChart",
			tells: []string{"InvalidChartReference", "ChartPullError", "ValuesFilesError", "DependencyBuildError", "ChartPackageError", "MetadataPatchError", "LimitExceeded"}}
	}
	links := chart("link", "a chart whose values are a link that leads out", "chart: ./charts/app, valuesFiles: [charts/app/out.yaml]", tree{"charts/app/out.yaml": link + o.file()})
	lists := release("values-lists", "assignments that make gigabytes of lists", "valuesFrom: [{kind: ConfigMap, name: values, valuesKey: lists, targetPath: x}]")
	assigned := "1"
	for i := range 1500 {
		assigned += fmt.Sprintf(",a%d[65535]=1", i)
	}
	lists.objects = manifests("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: values, namespace: $ns}\ndata: {lists: '"+assigned+"'}\n", lists.objects)
	return []fixture{
		kustomization("self", "one that depends on itself", "dependsOn: [{name: bad}]", "DependencyNotReady"),
		kustomization("other-tenant", "one of another namespace that is not there", "dependsOn: [{name: none, namespace: vault}]", "DependencyNotReady"),
		over(kustomization("path", "a path above the repository", "", "ArtifactFailed"), "path: ./app", "path: ../../../../../.."+o.dir),
		over(kustomization("path-absolute", "a path of the machine", "", "ArtifactFailed"), "path: ./app", "path: "+o.dir),
		over(kustomization("source-elsewhere", "a source of another namespace", "", "ArtifactFailed"), "name: git}", "name: none, namespace: vault}"),
		over(kustomization("namespace", "a namespace that is no name", ""), "targetNamespace: $ns", "targetNamespace: 'x-$ns'"),
		kustomization("account", "an account that is not there", "serviceAccountName: none"),
		kustomization("account-system", "an account whose name is another user's", "serviceAccountName: 'x:system:masters'"),
		kustomization("secret-elsewhere", "a kubeconfig whose name has a path", "kubeConfig: {secretRef: {name: '../vault/canary'}}"),
		kustomization("decryption", "a Secret whose name has a path", "decryption: {provider: sops, secretRef: {name: '../vault/canary'}}"),
		kustomization("prefix", "a prefix of a name that is no name", "namePrefix: '../../'"),
		kustomization("annotations", "annotations of half a megabyte", "commonMetadata: {annotations: {a: '"+strings.Repeat("x", 400_000)+"'}}"),
		kustomization("labels", "a label that is none", "commonMetadata: {labels: {'../a': '"+strings.Repeat("x", 100)+"'}}"),
		kustomization("health-elsewhere", "health of an object of nobody's, of a kind that is none", "wait: false, healthChecks: [{apiVersion: 'x/y/z', kind: '../x', name: canary, namespace: vault}]", "HealthCheckFailed"),
		release("values-elsewhere", "values of a Secret whose name has a path", "valuesFrom: [{kind: Secret, name: '../vault/canary'}]"),
		release("values-path", "a place in the values that is a list of a hundred thousand", "valuesFrom: [{kind: Secret, name: git-auth, valuesKey: username, targetPath: 'a[99999].b'}]"),
		release("values-deep", "a place in the values of a thousand levels", "valuesFrom: [{kind: Secret, name: git-auth, valuesKey: username, targetPath: '"+strings.Repeat("a.", 120)+"'}]"),
		lists,
		release("account", "an account that is not there", "serviceAccountName: none", "RESTClientError"),
		release("storage", "a storage in a namespace that is not there", "storageNamespace: none-$ns"),
		release("target", "a target in a namespace that is not there", "targetNamespace: none-$ns"),
		release("depend-self", "one that depends on itself", "dependsOn: [{name: bad}]", "DependencyNotReady"),
		release("depend-missing", "one of another namespace that is not there", "dependsOn: [{name: none, namespace: vault}]", "DependencyNotReady"),
		chart("above", "a chart above the repository", "chart: ../../../../../../../../etc", nil),
		chart("absolute", "a chart of the machine", "chart: "+o.dir, nil),
		chart("values-above", "values above the repository", "chart: ./charts/app, valuesFiles: ['"+o.above(o.file())+"']", nil),
		chart("values-absolute", "values of the machine", "chart: ./charts/app, valuesFiles: ["+o.file()+"]", nil),
		links,
		chart("values-many", "values of a thousand files", "chart: ./charts/app, valuesFiles: ["+strings.TrimSuffix(strings.Repeat("charts/app/none.yaml, ", 1000), ", ")+"]", nil),
		chart("version", "a range that is none", "chart: ./charts/none, version: '>>>'", nil),
	}
}

// policies are objects that many fields of make each other's work.
func policies() []fixture {
	var all []fixture
	for name, tt := range inOrder(map[string]struct{ reason, object string }{
		"kind":        {"an object of a kind that is not served", "apiVersion: none.example.com/v1\nkind: None\nmetadata: {name: a}\n"},
		"name":        {"a name that is a path", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ../../vault/kept}\n"},
		"namespace":   {"an object in a namespace that is not there", "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: none}\ntype: 5\n"},
		"size":        {"an object that is larger than the API server takes", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: " + strings.Repeat("x", 4<<20) + "}\n"},
		"annotations": {"annotations of a megabyte", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, annotations: {a: " + strings.Repeat("x", 1<<20) + "}}\n"},
		"secret":      {"a Secret whose value an error would show", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {k: '" + password + "!'}\n"},
		"null":        {"null where a map is wanted", "apiVersion: v1\nkind: ConfigMap\nmetadata: null\n"},
		"api-version": {"a version that is a path", "apiVersion: ../../api/v1\nkind: ConfigMap\nmetadata: {name: a}\n"},
		"many":        {"three hundred thousand objects, in one file", strings.Repeat("---\n{apiVersion: v1, kind: ConfigMap}\n", 250_000)},
		"finalizers":  {"a finalizer that is none", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, finalizers: ['" + strings.Repeat("x", 300) + "']}\n"},
		"owner":       {"an owner that is none", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, ownerReferences: [{apiVersion: v1, kind: '', name: '', uid: ''}]}\n"},
		"definition":  {"a definition whose schema is a thousand levels deep", deepDefinition()},
	}) {
		f := builds("object-"+name, tt.reason, tree{"a.yaml": tt.object})
		f.tells = []string{"BuildFailed", "ReconciliationFailed"}
		if name == "namespace" || name == "size" {
			f.objects = strings.Replace(f.objects, "targetNamespace: $ns, ", "", 1)
		}
		all = append(all, f)
	}
	return all
}

func deepDefinition() string {
	return fmt.Sprintf("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a.example.com}\nspec: {group: example.com, names: {kind: A, plural: a}, scope: Namespaced, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: %s}}]}\n",
		strings.Repeat("{type: object, properties: {a: ", 900)+"{type: nothing}"+strings.Repeat("}}", 900))
}
