package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// namespace of everything that a workload declares.
const namespace = "bench"

// workload is a repository with a directory for each Kustomization.
type workload struct {
	name           string
	kustomizations int
	objects        int
	// bases is how many bases the Kustomizations are overlays of, by turns; 0: each
	// has a plain directory.
	bases int
}

func app(i int) string { return fmt.Sprintf("app-%04d", i) }

// write puts the directories below dir. Each has its first ConfigMap, which
// commits change, in a file of its own, and a hundred objects to a file besides.
func (w workload) write(dir string) error {
	if w.bases > 0 {
		return w.writeOverlays(dir)
	}
	for i := range w.kustomizations {
		at := filepath.Join(dir, app(i))
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := w.settings(dir, i, "begin"); err != nil {
			return err
		}
		files := map[string][]string{}
		for n := 1; n < w.objects; n++ {
			file := fmt.Sprintf("app-%02d.yaml", n/100)
			files[file] = append(files[file], object(app(i), n))
		}
		for file, objects := range files {
			if err := os.WriteFile(filepath.Join(at, file), []byte(strings.Join(objects, "---\n")), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// settings writes the file of an app's first ConfigMap; of an overlay, the patch of it.
func (w workload) settings(dir string, i int, value string) error {
	name := app(i) + "-settings"
	if w.bases > 0 {
		name = "settings"
	}
	text := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata:\n  revision: %q\n  log-level: info\n", name, namespace, value)
	return os.WriteFile(filepath.Join(dir, app(i), "settings.yaml"), []byte(text), 0o644)
}

func base(i int) string { return fmt.Sprint("base-", i) }

// changed is a file of a base of which commits change one line.
const changed = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: changed, namespace: " + namespace + "}\ndata: {key: \"VALUE\"}\n"

// writeOverlays puts the bases below dir, and an overlay for each Kustomization: a prefix
// of the names, a label, and a patch.
func (w workload) writeOverlays(dir string) error {
	files := map[string]string{}
	for i := range w.bases {
		objects := []string{fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: %s}\ndata: {revision: base, log-level: info}\n", namespace)}
		for n := 1; n < w.objects-1; n++ {
			objects = append(objects, object("app", n))
		}
		files[base(i)+"/kustomization.yaml"] = "resources: [objects.yaml, changed.yaml]\n"
		files[base(i)+"/objects.yaml"] = strings.Join(objects, "---\n")
		files[base(i)+"/changed.yaml"] = changed
	}
	for i := range w.kustomizations {
		files[app(i)+"/kustomization.yaml"] = fmt.Sprintf("resources: [../%s]\nnamePrefix: %s-\nlabels: [{pairs: {app: %[2]s}}]\npatches: [{path: settings.yaml}]\n", base(i%w.bases), app(i))
	}
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			return err
		}
	}
	for i := range w.kustomizations {
		if err := w.settings(dir, i, "begin"); err != nil {
			return err
		}
	}
	return nil
}

// object is the n-th of an app: an ordinary mix of kinds.
func object(name string, n int) string {
	kinds := []string{
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: %[1]s, namespace: %[2]s, labels: {app.kubernetes.io/name: %[1]s}}\n" +
			"spec:\n  replicas: 0\n  selector: {matchLabels: {app.kubernetes.io/name: %[1]s}}\n  template:\n    metadata: {labels: {app.kubernetes.io/name: %[1]s}}\n" +
			"    spec:\n      serviceAccountName: %[1]s\n      containers:\n      - name: app\n        image: registry.example.com/app:1.0\n        ports: [{name: http, containerPort: 8080}]\n" +
			"        env: [{name: LOG_LEVEL, valueFrom: {configMapKeyRef: {name: %[1]s, key: log-level}}}]\n        resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 64Mi}}\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: %[1]s, namespace: %[2]s}\nspec:\n  selector: {app.kubernetes.io/name: %[1]s}\n  ports: [{name: http, port: 80, targetPort: http}]\n",
		"apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %[1]s, namespace: %[2]s}\n",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: %[1]s, namespace: %[2]s}\nrules:\n- {apiGroups: [\"\"], resources: [configmaps], verbs: [get, list, watch]}\n",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: %[1]s, namespace: %[2]s}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}\n" +
			"subjects: [{kind: ServiceAccount, name: %[1]s, namespace: %[2]s}]\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %[1]s, namespace: %[2]s}\ndata: {key: \"value of %[1]s\"}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %[1]s-more, namespace: %[2]s}\ndata: {key: \"value of %[1]s\"}\n",
	}
	i, round := (n-1)%len(kinds), (n-1)/len(kinds)
	if round > 0 {
		name = fmt.Sprintf("%s-%d", name, round)
	}
	return fmt.Sprintf(kinds[i], name, namespace)
}
