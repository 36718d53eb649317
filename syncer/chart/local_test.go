package chart

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"

	helmchart "helm.sh/helm/v4/pkg/chart/v2"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// gitRepository makes snapshots of commits.
type gitRepository struct {
	t       testing.TB
	server  *gitserver.Server
	mirrors *source.Mirrors
}

func startGit(t testing.TB) *gitRepository {
	t.Helper()
	server, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	if err := server.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	return &gitRepository{t, server, source.NewMirrors(t.TempDir(), 64<<20)}
}

// commit writes files, of which "-> x" is a link to x and "" is none.
func (g *gitRepository) commit(files map[string]string) *source.Snapshot {
	g.t.Helper()
	if _, err := g.server.Commit(g.t.Context(), "fleet", "main", "all", func(folder string) error {
		for name, content := range files {
			at := filepath.Join(folder, name)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return err
			}
			_ = os.Remove(at)
			var err error
			if to, ok := strings.CutPrefix(content, "-> "); ok {
				err = os.Symlink(to, at)
			} else if content != "" {
				err = os.WriteFile(at, []byte(content), 0o644)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		g.t.Fatal(err)
	}
	s, err := g.mirrors.Fetch(g.t.Context(), source.Origin{URL: g.server.HTTPURL("fleet")}, source.Reference{Branch: "main"}, source.Options{}, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	return s
}

// merged is a file tree of several.
func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, files := range all {
		maps.Copy(out, files)
	}
	return out
}

func noRepositories(context.Context, string) (Repository, error) {
	return Repository{}, errors.New("no repository was expected")
}

// outline of a chart: its files, and those of the charts in it.
func outline(c *helmchart.Chart) []string {
	var out []string
	for _, f := range slices.Concat(c.Templates, c.Files) {
		out = append(out, f.Name)
	}
	for _, sub := range c.Dependencies() {
		for _, name := range outline(sub) {
			out = append(out, sub.Name()+"@"+sub.Metadata.Version+"/"+name)
		}
	}
	slices.Sort(out)
	return out
}

// TestFromSnapshot: charts in Git, with their versions, files and reasons.
func TestFromSnapshot(t *testing.T) {
	git := startGit(t)
	server := startRepository(t)
	server.add(t, chartFiles("redis", "redis", "1.2.3"), chartFiles("redis", "redis", "1.9.0"))
	remote := func(name, repository, more string) string {
		return "apiVersion: v2\nname: " + name + "\nversion: 0.1.0\ndependencies:\n- name: redis\n  version: 1.x\n  repository: " + repository + "\n" + more
	}
	small := func(dir, chartYAML string, more ...string) map[string]string {
		files := map[string]string{dir + "/Chart.yaml": chartYAML, dir + "/values.yaml": "a: 1\n", dir + "/templates/a.yaml": "kind: A\n"}
		for i := 0; i+1 < len(more); i += 2 {
			files[dir+"/"+more[i]] = more[i+1]
		}
		return files
	}
	plain := func(name string) string { return "apiVersion: v2\nname: " + name + "\nversion: 0.1.0\n" }
	local := func(name, repository string) string {
		return plain(name) + "dependencies:\n- name: lib\n  version: \">=0.1.0\"\n  repository: \"" + repository + "\"\n  alias: other\n  condition: lib.enabled\n"
	}
	packedChart := string(tgz(t, chartFiles("packed", "packed", "3.0.0")))
	snapshot := git.commit(merged(
		small("charts/plain", plain("plain"), ".helmignore", "*.md\n/secret/\n", "README.md", "x", "secret/key", "x", "templates/.hidden", "x", "files/b.txt", "\xEF\xBB\xBFb"),
		small("charts/lib", plain("lib")),
		small("charts/local", local("local", "file://../lib")),
		small("charts/up", local("up", "file://../../../../../../charts/lib")),
		small("charts/nolocal", local("nolocal", "file://../nobody")),
		small("charts/self", local("self", "file://../self")),
		small("charts/around", local("around", "file://..")),
		small("charts/wrong", strings.Replace(local("wrong", "file://../lib"), ">=0.1.0", ">=2", 1)),
		small("charts/vendored", remote("vendored", "https://unreachable.invalid/", ""), "charts/redis/Chart.yaml", "apiVersion: v2\nname: redis\nversion: 1.0.0\n"),
		small("charts/denied", remote("denied", "https://denied.invalid/", "")),
		small("charts/tgz", remote("tgz", "https://denied.invalid/", ""), "charts/redis-1.0.0.tgz", string(tgz(t, chartFiles("redis", "redis", "1.0.0")))),
		small("charts/remote", remote("remote", server.URL, "")),
		small("charts/locked", remote("locked", server.URL, ""), "Chart.lock", "dependencies:\n- name: redis\n  version: 1.2.3\n  repository: "+server.URL+"\ndigest: x\ngenerated: \"2020-01-01T00:00:00Z\"\n"),
		small("charts/v1", "name: v1\nversion: 0.1.0\n", "requirements.yaml", "dependencies:\n- {name: redis, version: 1.9.0, repository: "+server.URL+"}\n"),
		small("charts/twice", remote("twice", server.URL, "  alias: one\n- name: redis\n  version: 1.x\n  repository: "+server.URL+"\n  alias: two\n")),
		small("charts/versions", remote("versions", server.URL, "  alias: one\n- name: redis\n  version: 1.2.3\n  repository: "+server.URL+"\n  alias: two\n")),
		small("charts/same", plain("same"), "charts/a/Chart.yaml", plain("lib"), "charts/b/Chart.yaml", plain("lib")),
		small("charts/aliased", remote("aliased", "\"@redis\"", "")),
		small("charts/ftp", remote("ftp", "ftp://example.com/", "")),
		small("charts/norepo", remote("norepo", server.URL+"/nowhere", "")),
		small("charts/nulllock", plain("nulllock"), "Chart.lock", "dependencies: [null]\n"),
		small("charts/nulldep", plain("nulldep")+"dependencies: [null]\n"),
		small("charts/linked", plain("linked"), "files/b.txt", "-> ../../../shared/b.txt", "dir", "-> ../../shared"),
		small("charts/escaping", plain("escaping"), "files/b.txt", "-> ../../../../../etc/passwd"),
		small("charts/circle", plain("circle"), "again", "-> ."),
		small("charts/badname", plain("../../x")),
		small("charts/dots", plain("..")),
		small("charts/novalues", plain("novalues"), "values.yaml", ""),
		small("charts/stars", plain("stars"), ".helmignore", "**/x\n"),
		small("charts/badschema", plain("badschema"), "values.schema.json", `{"$ref":"https://example.com/x.json"}`),
		map[string]string{
			"shared/b.txt": "shared", "values/prod.yaml": "a: 2\nb: {c: 3}\n", "values/list.yaml": "- a\n", "values/bomb.yaml": "a: &a {k: *a}\n", "values/link.yaml": "-> prod.yaml", "values/out.yaml": "-> ../../etc/passwd",
			"packed.tgz": packedChart, "no.tgz": "no archive", "big/Chart.yaml": plain("big"), "big/file": strings.Repeat("x", DefaultFileMaxBytes+1), "nochart/values.yaml": "a: 1\n",
		},
	))
	charts := newCharts(t)
	repositories := func(_ context.Context, at string) (Repository, error) {
		if strings.Contains(at, "denied.invalid") {
			return Repository{}, errors.New("the Secret is not there")
		}
		return Repository{URL: at}, nil
	}
	hash := snapshot.Commit[:12]
	for name, c := range map[string]struct {
		reason     string
		chart      string
		byRevision bool
		values     []string
		ignore     bool
		want       string // version, or the reason of the error
		has        string // in the outline, values and summary, or in the error
		hasNot     string
	}{
		"plain":           {"what .helmignore and Helm ignore is left out", "charts/plain", false, nil, false, "0.1.0", "[.helmignore files/b.txt templates/a.yaml] a:1 packaged 'plain' chart with version '0.1.0'", "hidden"},
		"slashes":         {"a path may be written in many ways", "./charts//plain/", false, nil, false, "0.1.0", "packaged", ""},
		"clamped":         {"a path does not leave the source", "../../charts/plain", false, nil, false, "0.1.0", "packaged", ""},
		"revision":        {"the revision may be in the version", "charts/plain", true, nil, false, "0.1.0+" + hash, "", ""},
		"values":          {"values files are in the source", "charts/plain", false, []string{"charts/plain/values.yaml", "values/prod.yaml"}, false, "0.1.0+7", "a:2 b:map[c:3]", ""},
		"both":            {"revision and generation", "charts/plain", true, []string{"/values/prod.yaml"}, false, "0.1.0+" + hash + ".7", "merged values files [/values/prod.yaml]", ""},
		"linked values":   {"a link inside of the source", "charts/plain", false, []string{"values/link.yaml"}, false, "0.1.0+7", "a:2", ""},
		"values outside":  {"a link that leaves the source", "charts/plain", false, []string{"values/out.yaml"}, false, ReasonValues, "values/out.yaml", "root:"},
		"values missing":  {"a file has to be there", "charts/plain", false, []string{"values/no.yaml"}, false, ReasonValues, "no values file found at path 'values/no.yaml'", ""},
		"values ignored":  {"or not", "charts/plain", false, []string{"values/no.yaml"}, true, "0.1.0+7", "packaged", ""},
		"values list":     {"values are a mapping", "charts/plain", false, []string{"values/list.yaml"}, false, ReasonValues, "values/list.yaml", ""},
		"values bomb":     {"an alias that contains itself kills a process", "charts/plain", false, []string{"values/bomb.yaml"}, false, ReasonValues, "contains itself", ""},
		"values folder":   {"a directory is no values file", "charts/plain", false, []string{"values"}, false, ReasonValues, "no values file found", ""},
		"no values.yaml":  {"Flux wants a file to write the values to", "charts/novalues", false, []string{"values/prod.yaml"}, false, ReasonValues, "failed to locate values file: values.yaml", ""},
		"packed":          {"a packed chart is taken as it is", "packed.tgz", false, nil, false, "3.0.0", "pulled 'packed' chart with version '3.0.0'", ""},
		"packed revision": {"or packed again", "packed.tgz", true, nil, false, "3.0.0+" + hash, "packaged 'packed' chart", ""},
		"packed values":   {"with the values of the source", "packed.tgz", false, []string{"values/prod.yaml"}, false, "3.0.0+7", "a:2", ""},
		"no archive":      {"what is no archive", "no.tgz", false, nil, false, ReasonReference, "no gzipped archive", ""},
		"nowhere":         {"a path that is not there", "charts/nowhere", false, nil, false, ReasonReference, "no chart found at path 'charts/nowhere'", ""},
		"no chart":        {"a directory that is no chart", "nochart", false, nil, false, ReasonReference, "no Chart.yaml found", ""},
		"name leads out":  {"a chart's name is part of paths (CVE-2026-35206)", "charts/badname", false, nil, false, ReasonReference, "is invalid", ""},
		"name is dots":    {"a chart's name is part of paths (CVE-2024-25620)", "charts/dots", false, nil, false, ReasonReference, "is not allowed", ""},
		"local":           {"a dependency in the source; alias and condition count later", "charts/local", false, nil, false, "0.1.0", "lib@0.1.0/templates/a.yaml", "other@"},
		"local clamped":   {"it does not leave the source", "charts/up", false, nil, false, "0.1.0", "lib@0.1.0/templates/a.yaml", ""},
		"local nowhere":   {"a dependency that is not there", "charts/nolocal", false, nil, false, ReasonDependency, "no chart found at '/charts/nobody' (reference 'file://../nobody')", ""},
		"local self":      {"a chart that depends on itself", "charts/self", false, nil, false, ReasonDependency, "in it", ""},
		"local around":    {"a chart that depends on what it is in", "charts/around", false, nil, false, ReasonDependency, "in it", ""},
		"local version":   {"the version has to be in the range", "charts/wrong", false, nil, false, ReasonDependency, "can't get a valid version for constraint '>=2'", ""},
		"vendored":        {"what is there is not fetched", "charts/vendored", false, nil, false, "0.1.0", "0.1.0", ""},
		"denied":          {"a repository without its credential", "charts/denied", false, nil, false, ReasonDependency, "the Secret is not there", ""},
		"vendored tgz":    {"packed as well", "charts/tgz", false, nil, false, "0.1.0", "redis@1.0.0/crds/crd.yaml", ""},
		"remote":          {"a dependency in a repository", "charts/remote", false, nil, false, "0.1.0", "redis@1.9.0/templates/a.yaml", ""},
		"locked":          {"the lock file says which", "charts/locked", false, nil, false, "0.1.0", "redis@1.2.3/templates/a.yaml", ""},
		"v1":              {"a chart of Helm 2", "charts/v1", false, nil, false, "0.1.0", "redis@1.9.0/templates/a.yaml", ""},
		"twice":           {"one dependency under two names is there once", "charts/twice", false, nil, false, "0.1.0", "redis@1.9.0/templates/a.yaml", ""},
		"two versions":    {"two versions of one chart are in two places", "charts/versions", false, nil, false, "0.1.0", "one@1.9.0/templates/a.yaml one@1.9.0/values-prod.yaml templates/a.yaml two@1.2.3/crds/crd.yaml", ""},
		"same name":       {"two charts in one place are none", "charts/same", false, nil, false, ReasonPackage, "two charts with the name 'lib'", ""},
		"alias":           {"aliases of repositories are in files of the host", "charts/aliased", false, nil, false, ReasonDependency, "aliased repository dependency is not supported", ""},
		"scheme":          {"a scheme that is none of a repository", "charts/ftp", false, nil, false, ReasonDependency, "invalid dependency repository URL", ""},
		"no repository":   {"a repository that does not answer", "charts/norepo", false, nil, false, ReasonDependency, "404 Not Found", ""},
		"null lock":       {"empty nodes are no panic", "charts/nulllock", false, nil, false, ReasonPackage, "empty dependency", ""},
		"null dependency": {"empty nodes are no panic", "charts/nulldep", false, nil, false, ReasonReference, "null nodes", ""},
		"linked":          {"links inside of the source are followed", "charts/linked", false, nil, false, "0.1.0", "dir/b.txt files/b.txt", ""},
		"escaping":        {"links that leave it are not", "charts/escaping", false, nil, false, ReasonPackage, "leaves the repository", "root:"},
		"circle":          {"nor those that lead back for ever", "charts/circle", false, nil, false, ReasonPackage, "more than 10 symbolic links", ""},
		"large":           {"a file of a chart is limited", "big", false, nil, false, source.ReasonLimitExceeded, "--helm-chart-file-max-size", ""},
		"stars":           {"what Helm does not take in .helmignore", "charts/stars", false, nil, false, ReasonPackage, "double-star", ""},
		"schema":          {"schemas are looked at when they are used", "charts/badschema", false, nil, false, "0.1.0", "packaged", ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := Spec{User: user(name), Chart: c.chart, ValuesFiles: c.values, IgnoreMissingValues: c.ignore, Generation: 7}
			build, err := charts.FromSnapshot(t.Context(), snapshot, spec, c.byRevision, repositories)
			got, text := "", ""
			if err != nil {
				got, text = source.ReasonOf(err), err.Error()
			} else {
				chart, err := Load(t.Context(), build.Snapshot, WithoutSchemas())
				if err != nil {
					t.Fatal(err)
				}
				got, text = build.Version, fmt.Sprint(outline(chart), " ", strings.TrimPrefix(fmt.Sprint(chart.Values), "map["), " ", build.Summary())
				if chart.Metadata.Version != build.Version {
					t.Errorf("%s: the chart has version %s", c.reason, chart.Metadata.Version)
				}
			}
			if has := strings.Replace(c.has, "] a:1 ", "] a:1] ", 1); got != c.want || !strings.Contains(text, has) {
				t.Errorf("%s: got %q, want %q with %q in %q", c.reason, got, c.want, has, text)
			}
			if c.hasNot != "" && strings.Contains(text, c.hasNot) {
				t.Errorf("%s: %q is in %q", c.reason, c.hasNot, text)
			}
		})
	}
}

// TestOnlyOwnChanges: a chart in Git counts as changed only when something that it is
// made of did.
func TestOnlyOwnChanges(t *testing.T) {
	git := startGit(t)
	plain := func(name, version string) string {
		return "apiVersion: v2\nname: " + name + "\nversion: " + version + "\n"
	}
	files := map[string]string{
		"chart/Chart.yaml": plain("chart", "1.0.0") + "dependencies: [{name: lib, version: \"*\", repository: \"file://../lib\"}]\n", "chart/values.yaml": "a: 1\n", "chart/templates/a.yaml": "kind: A\n",
		"chart/files/l": "-> ../../linked/x", "lib/Chart.yaml": plain("lib", "1.0.0"), "linked/x": "x", "env.yaml": "a: 2\n", "other": "o",
	}
	spec := Spec{User: user("a"), Chart: "chart", ValuesFiles: []string{"env.yaml"}, Generation: 1}
	charts := newCharts(t)
	snapshot := git.commit(files)
	first, err := charts.FromSnapshot(t.Context(), snapshot, spec, true, noRepositories)
	if err != nil {
		t.Fatal(err)
	}
	last, packaged := first, charts.Counts().Packaged
	for _, step := range []struct {
		reason  string
		files   map[string]string
		changed bool
	}{
		{"a file that has nothing to do with it", map[string]string{"other": "p"}, false},
		{"a template", map[string]string{"chart/templates/a.yaml": "kind: B\n"}, true},
		{"another chart", map[string]string{"more/Chart.yaml": plain("more", "1.0.0")}, false},
		{"a values file", map[string]string{"env.yaml": "a: 3\n"}, true},
		{"a dependency", map[string]string{"lib/templates/a.yaml": "kind: L\n"}, true},
		{"what a link leads to", map[string]string{"linked/x": "y"}, true},
		{"a file beside that", map[string]string{"linked/y": "y"}, false},
	} {
		snapshot = git.commit(step.files)
		spec.Last = last
		now, err := charts.FromSnapshot(t.Context(), snapshot, spec, true, noRepositories)
		if err != nil {
			t.Fatal(err)
		}
		if changed := now != last; changed != step.changed {
			t.Errorf("%s: changed is %t, want %t", step.reason, changed, step.changed)
		}
		if step.changed {
			packaged++
			if want := "1.0.0+" + snapshot.Commit[:12] + ".1"; now.Version != want {
				t.Errorf("%s: version %s, want %s", step.reason, now.Version, want)
			}
		}
		if got := charts.Counts().Packaged; got != packaged {
			t.Errorf("%s: %d were packaged, want %d", step.reason, got, packaged)
		}
		last = now
	}

	// After a restart what the status tells of the last build is enough.
	spec.Last = &Build{Name: last.Name, Version: last.Version, Inputs: last.Snapshot.Metadata[v1alpha1.InputsAnnotation]}
	again, err := newCharts(t).FromSnapshot(t.Context(), git.commit(map[string]string{"other": "q"}), spec, true, noRepositories)
	if err != nil || again.Version != last.Version || again.Snapshot.Digest != last.Snapshot.Digest {
		t.Errorf("after a restart: %+v, %v, want version %s", again, err, last.Version)
	}

	// By version, a chart is the same until that changes, as in Flux.
	spec = Spec{User: user("b"), Chart: "chart"}
	if spec.Last, err = charts.FromSnapshot(t.Context(), snapshot, spec, false, noRepositories); err != nil {
		t.Fatal(err)
	}
	snapshot = git.commit(map[string]string{"chart/templates/a.yaml": "kind: C\n"})
	if now, err := charts.FromSnapshot(t.Context(), snapshot, spec, false, noRepositories); err != nil || now != spec.Last {
		t.Errorf("with the same version: %+v, %v", now, err)
	}
	changed := spec
	changed.Changed = true
	if now, err := charts.FromSnapshot(t.Context(), snapshot, changed, false, noRepositories); err != nil || now.Snapshot.Digest == spec.Last.Snapshot.Digest {
		t.Errorf("after a change of the spec: %+v, %v", now, err)
	}
	snapshot = git.commit(map[string]string{"chart/Chart.yaml": plain("chart", "1.1.0")})
	if now, err := charts.FromSnapshot(t.Context(), snapshot, spec, false, noRepositories); err != nil || now.Version != "1.1.0" {
		t.Errorf("with another version: %+v, %v", now, err)
	}
}

// TestDependencyTimeout: a repository that does not answer has its own timeout, and not what is
// left of that of the whole chart.
func TestDependencyTimeout(t *testing.T) {
	tarpit := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	defer tarpit.Close()
	git := startGit(t)
	s := git.commit(map[string]string{
		"chart/Chart.yaml": "apiVersion: v2\nname: chart\nversion: 1.0.0\ndependencies: [{name: redis, version: \"*\", repository: \"" + tarpit.URL + "\"}]\n",
	})
	_, err := newCharts(t).FromSnapshot(t.Context(), s, Spec{User: user("a"), Chart: "chart"}, false, func(_ context.Context, url string) (Repository, error) {
		return Repository{URL: url, Timeout: time.Millisecond}, nil
	})
	if source.ReasonOf(err) != ReasonDependency || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("FromSnapshot() = %v, want that the repository did not answer in time", err)
	}
}

// TestDependencyComes: a dependency that its repository does not have yet is found when it has, also where others use
// the index of before.
func TestDependencyComes(t *testing.T) {
	for name, used := range map[string]bool{"Alone": false, "Used": true} {
		t.Run(name, func(t *testing.T) {
			git, server, charts := startGit(t), startRepository(t), newCharts(t)
			server.add(t, chartFiles("redis", "redis", "1.2.3"))
			snapshot := git.commit(map[string]string{"chart/Chart.yaml": "apiVersion: v2\nname: chart\nversion: 1.0.0\ndependencies: [{name: redis, version: 1.9.0, repository: \"" + server.URL + "\"}]\n"})
			build := func() error {
				_, err := charts.FromSnapshot(t.Context(), snapshot, Spec{User: user("a"), Chart: "chart"}, false, func(_ context.Context, at string) (Repository, error) {
					return Repository{URL: at}, nil
				})
				return err
			}
			if used {
				if _, err := charts.FromRepository(t.Context(), Repository{URL: server.URL}, Spec{User: user("b"), Chart: "redis"}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := build(); source.ReasonOf(err) != ReasonDependency || !strings.Contains(err.Error(), "matching '1.9.0'") {
				t.Errorf("FromSnapshot() = %v, want that it is not there", err)
			}
			server.add(t, chartFiles("redis", "redis", "1.9.0"))
			if err := build(); err != nil {
				t.Errorf("it is there now, and FromSnapshot() = %v", err)
			}
		})
	}
}

// TestDependencyCredentials: what was made with a credential is not for those who have
// another one.
func TestDependencyCredentials(t *testing.T) {
	git, server := startGit(t), startRepository(t)
	server.add(t, chartFiles("redis", "redis", "1.2.3"))
	index := server.URL
	snapshot := git.commit(map[string]string{"chart/Chart.yaml": "apiVersion: v2\nname: chart\nversion: 1.0.0\ndependencies: [{name: redis, version: 1.2.3, repository: \"" + index + "\"}]\n"})
	charts := newCharts(t)
	with := func(password string) Repositories {
		return func(_ context.Context, at string) (Repository, error) {
			if want, _ := NormalizeURL(index); at != want {
				t.Errorf("asked for %s, want %s", at, want)
			}
			return Repository{URL: at, Secret: map[string][]byte{"username": []byte("u"), "password": []byte(password)}}, nil
		}
	}
	var keep []*Build
	for i, password := range []string{"a", "b", "a"} {
		build, err := charts.FromSnapshot(t.Context(), snapshot, Spec{User: user(fmt.Sprint(i)), Chart: "chart"}, false, with(password))
		if err != nil {
			t.Fatal(err)
		}
		keep = append(keep, build)
		if build.Dependencies != 1 {
			t.Errorf("%d dependencies, want 1", build.Dependencies)
		}
	}
	if got := charts.Counts(); got.Downloads != 2 || got.Packaged != 2 {
		t.Errorf("charts did %+v, want two of each for two credentials", got)
	}
	if keep[0].Snapshot != keep[2].Snapshot {
		t.Error("the same credential has another snapshot")
	}
}
