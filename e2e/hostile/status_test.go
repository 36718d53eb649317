package hostile

import (
	"fmt"
	"strings"
)

// telling is an object that tells always the same of itself, whatever its status is.
type telling struct {
	kind, manifest string
	tells          []string
}

func tellings() map[string]telling {
	return map[string]telling{
		"kustomization":  {"Kustomization", kustomizationOf("kubeConfig: {secretRef: {name: none}}"), []string{"ReconciliationFailed"}},
		"helmrelease":    {"HelmRelease", strings.Replace(chartOf("", "", nil, "valuesFrom: [{kind: Secret, name: none}]").objects, "./charts/app", "./charts/good", 1), []string{"ValuesError"}},
		"gitrepository":  {"GitRepository", source("GitRepository", "url: 'http://127.0.0.1:1/x.git', interval: 1m, timeout: 5s"), []string{"GitOperationFailed"}},
		"ocirepository":  {"OCIRepository", source("OCIRepository", "url: 'oci://127.0.0.1:1/app', insecure: true, interval: 1m, timeout: 5s"), []string{"OCIArtifactPullFailed"}},
		"helmrepository": {"HelmRepository", source("HelmRepository", "url: 'http://127.0.0.1:1', interval: 1m, timeout: 5s"), []string{"IndexationFailed", "Failed"}},
		"helmchart":      {"HelmChart", source("HelmChart", "chart: none, version: '1.0.0', interval: 1m, sourceRef: {kind: GitRepository, name: git}"), []string{"InvalidChartReference", "ChartPullError"}},
		"bucket":         {"Bucket", source("Bucket", "bucketName: bucket, endpoint: '127.0.0.1:1', insecure: true, interval: 1m, timeout: 5s"), []string{"BucketOperationFailed"}},
		"layer":          {"Layer", "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata: {name: bad, namespace: $ns}\nspec: {sourceRef: {kind: GitRepository, name: git}, path: ./app, clusterSelector: {matchLabels: {a: b}}, suspend: true}\n", []string{"Suspended"}},
	}
}

// statuses are what somebody who may write the status of an object writes there. The
// definitions admit it; the types of Go do not, or somebody believes it.
func statuses(*outside) []fixture {
	conditions := func(more string) string {
		return `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"x","message":"","lastTransitionTime":` + more + `}]}}`
	}
	history := func(more string) string {
		return `{"status":{"history":[{"digest":"sha256:x","firstReconciled":"2026-01-01T00:00:00Z","lastReconciled":"2026-01-01T00:00:00Z","lastReconciledStatus":"x","totalReconciliations":1,` + more + `}]}}`
	}
	const any = "kustomization helmrelease gitrepository ocirepository helmrepository helmchart bucket layer"
	const sources = "gitrepository ocirepository helmrepository helmchart bucket"
	artifact := func(more string) string {
		return `{"status":{"artifact":{"digest":"sha256:x","lastUpdateTime":"2026-01-01T00:00:00Z","path":"x","revision":"main@sha1:1","url":"http://169.254.169.254/x"` + more + `}}}`
	}
	var all []fixture
	for _, p := range []struct{ name, kinds, reason, patch string }{
		{"time-lower", any, "a time that the API server takes and Go does not", conditions(`"2026-01-01t00:00:00z"`)},
		{"observed", any, "a generation that is to come, so that nothing seems left to do", `{"status":{"observedGeneration":9223372036854775807,"conditions":[{"type":"Ready","status":"True","reason":"Succeeded","message":"all is well","lastTransitionTime":"2026-01-01T00:00:00Z","observedGeneration":9223372036854775807}]}}`},
		{"conditions-many", any, "a thousand conditions, of 1 KiB each", manyConditions(1000)},
		{"artifact", sources, "an artifact of another server", artifact("")},
		{"artifact-time", sources, "an artifact of a time that Go does not take", strings.Replace(artifact(""), "2026-01-01T00:00:00Z", "2026-01-01t00:00:00z", 1)},
		{"artifact-path", sources, "an artifact whose path leads up", strings.Replace(artifact(`,"size":-1`), `"path":"x"`, `"path":"../../../../../../etc/passwd"`, 1)},
		{"artifact-metadata", sources, "a megabyte of metadata", artifact(`,"metadata":{"a":"` + strings.Repeat("x", 1<<20) + `"}`)},
		{"history-duration", "kustomization", "a duration that is none", history(`"lastReconciledDuration":"x"`)},
		{"history-long", "kustomization", "a duration that Go cannot hold", history(`"lastReconciledDuration":"9999999h"`)},
		{"history-count", "kustomization", "a count that is about to turn negative", history(`"lastReconciledDuration":"1s","totalReconciliations":9223372036854775807`)},
		{"inventory", "kustomization helmrelease", "an inventory with an object of somebody else's, which would be pruned", `{"status":{"inventory":{"entries":[{"id":"vault_kept__ConfigMap","v":"v1"},{"id":"vault_canary__Secret","v":"v1"}]}}}`},
		{"inventory-noise", "kustomization helmrelease", "an inventory of no objects", `{"status":{"inventory":{"entries":[{"id":"","v":""},{"id":"____","v":"/"},{"id":"` + strings.Repeat("_", 10_000) + `","v":"v1"},{"id":"a_b_c_d_e_f","v":"\u0000"}]}}}`},
		{"inventory-large", "kustomization helmrelease", "an inventory of ten thousand objects", manyEntries(10_000)},
		{"release-duration", "helmrelease", "a duration that is none", `{"status":{"lastAttemptedReleaseActionDuration":"x"}}`},
		{"release-history", "helmrelease", "a history of another release's, of times that Go does not take", `{"status":{"storageNamespace":"vault","history":[{"digest":"x","chartName":"x","chartVersion":"x","configDigest":"x","firstDeployed":"2026-01-01t00:00:00z","lastDeployed":"2026-01-01t00:00:00z","name":"x","namespace":"vault","status":"deployed","version":-1}]}}`},
		{"release-failures", "helmrelease", "counts that are about to turn negative", `{"status":{"failures":9223372036854775807,"installFailures":9223372036854775807,"upgradeFailures":-1,"lastAttemptedGeneration":-1}}`},
		{"release-chart", "helmrelease", "a chart of another namespace, which would be deleted", `{"status":{"helmChart":"vault/kept"}}`},
		{"included", "gitrepository", "included artifacts that nobody included", `{"status":{"includedArtifacts":[{"digest":"sha256:x","lastUpdateTime":"2026-01-01t00:00:00z","path":"","revision":"","url":""}],"observedInclude":[{"repository":{"name":"../x"},"fromPath":"..","toPath":"/"}]}}`},
		{"layer-counts", "layer", "counts that are negative, and names of no children", `{"status":{"children":{"failing":-2147483648,"seeded":2147483647,"total":-1},"failing":[{"name":"","reason":"","message":"` + strings.Repeat("x", 100_000) + `"}]}}`},
	} {
		for kind := range strings.FieldsSeq(p.kinds) {
			of := tellings()[kind]
			all = append(all, fixture{
				name: p.name + "-" + kind, reason: p.reason + ", in the status of a " + of.kind, files: tree{"app/a.yaml": configMap("a"), "charts/good/Chart.yaml": "apiVersion: v2\nname: good\nversion: 1.0.0\n", "charts/good/templates/a.yaml": configMap("a")},
				objects: of.manifest, status: p.patch, kind: of.kind, tells: of.tells,
			})
		}
	}
	return all
}

func manyConditions(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"type":"T%d","status":"True","reason":"x","message":%q,"lastTransitionTime":"2026-01-01T00:00:00Z"}`, i, strings.Repeat("x", 700)))
	}
	return `{"status":{"conditions":[` + strings.Join(all, ",") + `]}}`
}

func manyEntries(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"id":"vault_none%d__ConfigMap","v":"v1"}`, i))
	}
	return `{"status":{"inventory":{"entries":[` + strings.Join(all, ",") + `]}}}`
}
