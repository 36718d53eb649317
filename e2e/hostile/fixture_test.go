package hostile

import (
	"fmt"
	"iter"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// fixture is one hostile tenant: what somebody who means harm puts into a namespace of
// his own and serves from a server of his own, and the object that must tell.
type fixture struct {
	// class is what kind of thing is hostile, name the fixture among those of its class.
	class, name string
	// reason is what it attacks.
	reason string
	// files are those of his Git repository, in namespaces as the source git. A value
	// that begins with link is a symbolic link. nil is no repository.
	files tree
	// serve answers at $server, by HTTP; secure by HTTPS. listen does by TCP.
	serve  http.HandlerFunc
	secure bool
	listen func(net.Conn)
	// objects are manifests in which $ns is the namespace, $server the address of the
	// server, $ca its certificate in base64.
	objects string
	// status is a merge patch of the status of the object that must tell, in the moment
	// after it was made. The object is asked to reconcile then.
	status string
	// external is a merge patch of the status of an ExternalArtifact of that name, which
	// is made for it. $server is the address of the server in it, too.
	external string
	// kind of the object that must tell, whose name is bad, and the reasons that it may
	// tell.
	kind  string
	tells []string
	// within is how long it may take; 0 is half a minute.
	within time.Duration
}

// tree are files by their path.
type tree map[string]string

// link begins the content of a symbolic link.
const link = "-> "

// with is a tree with more files.
func (t tree) with(more tree) tree {
	all := maps.Clone(t)
	maps.Copy(all, more)
	return all
}

// object is the name of the object that must tell, in each namespace.
const object = "bad"

// namespace of the fixture.
func (f fixture) namespace() string { return f.class + "-" + f.name }

// fixtures are those of the classes that may have one that is chosen: some of each class
// if short is set, or else all.
func fixtures(o *outside, short bool, mayHave func(class string) bool) []fixture {
	var all []fixture
	for _, class := range []struct {
		name string
		of   func(*outside) []fixture
		// each is how many of them stand for one in the short form.
		each int
	}{
		{"reach", reaches, 20},
		{"yaml", bombs, 15},
		{"edit", edits, 9},
		{"variable", variables, 8},
		{"spec", specs, 13},
		{"kubeconfig", kubeconfigs, 15},
		{"apiserver", apiServers, 12},
		{"gitserver", gitServers, 12},
		{"pack", packs, 12},
		{"archive", archives, 12},
		{"registry", registries, 12},
		{"helmrepo", helmRepositories, 9},
		{"chart", charts, 12},
		{"expression", expressions, 10},
		{"sops", sopsFiles, 13},
		{"status", statuses, 15},
		{"bucket", buckets, 11},
		{"artifact", externalArtifacts, 10},
		{"generator", generators, 12},
		{"image", scans, 16},
		{"marker", markers, 12},
		{"template", templates, 10},
		{"receiver", receivers, 10},
	} {
		if !mayHave(class.name) {
			continue
		}
		for i, f := range class.of(o) {
			if f.class = class.name; !short || i%class.each == 1 {
				all = append(all, f)
			}
		}
	}
	return all
}

// kustomizationOf is the Kustomization that must tell, of the Git repository, with more
// of its spec in YAML flow style.
func kustomizationOf(more string) string {
	spec := "sourceRef: {kind: GitRepository, name: git}, path: ./app, targetNamespace: $ns, prune: true, interval: 10m, retryInterval: 1m, timeout: 20s"
	if more != "" {
		spec += ", " + more
	}
	return "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: bad, namespace: $ns}\nspec: {" + spec + "}\n"
}

// builds is a directory that must not be built.
func builds(name, reason string, files tree) fixture {
	return fixture{name: name, reason: reason, files: below("app", files), objects: kustomizationOf(""), kind: "Kustomization", tells: []string{"BuildFailed"}}
}

// below puts files into a directory.
func below(dir string, files tree) tree {
	out := tree{}
	for name, text := range files {
		out[dir+"/"+name] = text
	}
	return out
}

// source is a manifest of a source that must tell.
func source(kind, spec string) string {
	return "apiVersion: source.toolkit.fluxcd.io/v1\nkind: " + kind + "\nmetadata: {name: bad, namespace: $ns}\nspec: {" + spec + "}\n"
}

// secret is a manifest of one, whose values are quoted.
func secret(name string, values map[string]string) string {
	text := "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + ", namespace: $ns}\nstringData:\n"
	for _, key := range slices.Sorted(maps.Keys(values)) {
		text += fmt.Sprintf("  %q: %q\n", key, values[key])
	}
	return text
}

// manifests joins some to a stream.
func manifests(texts ...string) string { return strings.Join(texts, "---\n") }

// configMap is the manifest of one that is harmless.
func configMap(name string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {k: v}\n"
}

// indented puts a margin before each line.
func indented(text string, by int) string {
	margin := strings.Repeat(" ", by)
	return margin + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+margin) + "\n"
}

// inOrder are the entries of a map by their keys.
func inOrder[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
