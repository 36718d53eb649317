package faults

import (
	"context"
	"errors"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/cascade-gitops/cascade/e2e/origins"
)

// hookedChart has ConfigMaps, one of which only the first version has, and hooks of
// each kind of action.
func hookedChart(version string) origins.Chart {
	files := map[string]string{
		"templates/objects.yaml": `{{- range $i := until 20 }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ printf "o-%02d" $i }}}
data: {value: {{ $.Chart.Version | quote }}}
{{- end }}
`,
		"templates/hooks.yaml": hook("before-install", "pre-install", "before-hook-creation") + hook("after-install", "post-install", "before-hook-creation,hook-succeeded") +
			hook("before-upgrade", "pre-upgrade", "before-hook-creation") + hook("after-upgrade", "post-upgrade", "before-hook-creation,hook-succeeded") +
			hook("before-delete", "pre-delete", "before-hook-creation,hook-succeeded"),
	}
	if version == "1.0.0" {
		files["templates/first.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first}\ndata: {value: \"1.0.0\"}\n"
	}
	return origins.Chart{Name: "hooked", Version: version, AppVersion: "1", Files: files}
}

func hook(name, event, policy string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: hook-%s, annotations: {helm.sh/hook: %s, helm.sh/hook-delete-policy: %q}}\ndata: {value: hook}\n", name, event, policy)
}

// release declares a HelmRelease of a version.
func (p *place) release(ctx context.Context, version string) error {
	return p.apply(ctx, fmt.Sprintf(`apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: charts, namespace: %[1]s, labels: {worker: %[2]s}}
spec: {url: %[3]q, interval: 10m}
---
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: web, namespace: %[1]s, labels: {worker: %[2]s}}
spec:
  interval: 10m
  timeout: 1m
  chart:
    metadata: {labels: {worker: %[2]s}}
    spec: {chart: hooked, version: %[4]s, sourceRef: {kind: HelmRepository, name: charts}}
`, p.ns, p.name, p.charts.URL(), version))
}

func release(version string) func(*place, context.Context) error {
	return func(p *place, ctx context.Context) error { return p.release(ctx, version) }
}

func released(version string) func(*place, context.Context) error {
	return func(p *place, ctx context.Context) error { return p.released(ctx, "web", version) }
}

// helmsOwn is what Helm keeps for itself: its records, and objects of hooks.
var helmsOwn = []string{"secrets/sh.helm.release.v1.web.", "configmaps/hook-"}

// expectRelease expects the objects of a release, and others that may go.
func expectRelease(there map[string]string, goes ...string) func(*place) expectation {
	return func(p *place) expectation {
		return expectation{there: union(there, map[string]string{"helmcharts/" + p.ns + "-web": ""}), may: helmsOwn, goes: goes}
	}
}

// releaseKills are the scenarios of HelmReleases.
var releaseKills = []killing{
	{
		name: "Install", files: app("one"), begun: fetched, change: release("1.0.0"), done: released("1.0.0"),
		expect: expectRelease(union(ids("o", 0, 20, "1.0.0"), map[string]string{"configmaps/first": "1.0.0"})),
	},
	{
		name: "Upgrade", files: app("one"), begin: release("1.0.0"), begun: released("1.0.0"), change: release("1.1.0"), done: released("1.1.0"),
		expect: expectRelease(ids("o", 0, 20, "1.1.0"), "configmaps/first"),
	},
	{
		name: "Uninstall", files: app("one"), begin: release("1.0.0"), begun: released("1.0.0"),
		change: uninstall, done: uninstalled, expect: noRelease,
	},
	{
		name: "InstallThenUninstall", files: app("one"), begun: fetched, change: release("1.0.0"), through: released("1.0.0"),
		meanwhile: uninstall, done: uninstalled, expect: noRelease,
	},
}

func uninstall(p *place, ctx context.Context) error {
	o := &helmv2.HelmRelease{}
	o.Namespace, o.Name = p.ns, "web"
	return p.client.Delete(ctx, o)
}

// uninstalled: the HelmRelease is gone and so is its HelmChart, which is told to go before
// and has a finalizer of its own.
func uninstalled(p *place, ctx context.Context) error {
	return errors.Join(p.gone(ctx, &helmv2.HelmRelease{}, "web"), p.gone(ctx, &sourcev1.HelmChart{}, p.ns+"-web"))
}

// noRelease is there any more, but objects of hooks, which Helm leaves.
func noRelease(p *place) expectation {
	return expectation{
		may:  []string{"configmaps/hook-"},
		goes: append(names(ids("o", 0, 20, "")), "configmaps/first", "helmcharts/"+p.ns+"-web", "helmreleases/web", "secrets/sh.helm.release.v1.web.v1"),
	}
}
