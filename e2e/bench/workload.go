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
}

func app(i int) string { return fmt.Sprintf("app-%04d", i) }

// write puts the directories below dir. Each has its first ConfigMap, which
// commits change, in a file of its own, and a hundred objects to a file besides.
func (w workload) write(dir string) error {
	for i := range w.kustomizations {
		at := filepath.Join(dir, app(i))
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := settings(dir, i, "begin"); err != nil {
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

func settings(dir string, i int, value string) error {
	text := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s-settings, namespace: %s}\ndata:\n  revision: %q\n  log-level: info\n", app(i), namespace, value)
	return os.WriteFile(filepath.Join(dir, app(i), "settings.yaml"), []byte(text), 0o644)
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
