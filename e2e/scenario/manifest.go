package scenario

import "fmt"

// Kustomization is one in the agent's namespace that applies to namespace default, with
// more lines of its spec.
func Kustomization(name, repo, path, more string) string {
	return fmt.Sprintf(`apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: %s, namespace: cascade-system}
spec:
  sourceRef: {kind: GitRepository, name: %s}
  path: %s
  targetNamespace: default
  prune: true
  interval: 10m
  retryInterval: 1s
%s`, name, repo, path, more)
}

// ConfigMap has one value.
func ConfigMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {value: %q}\n", name, value)
}

// ConfigMapWith is a ConfigMap with more metadata, which begins with a comma, and with
// data, both in YAML flow style.
func ConfigMapWith(name, metadata, data string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s%s}\ndata: %s\n", name, metadata, data)
}

// ThingCRD defines a namespaced kind Thing in a group of the row's own.
const ThingCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.$ns.example.com}
spec:
  group: $ns.example.com
  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
