package remote

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// phases renders the layer in the order in which it is pushed: CRDs; namespace,
// rights, credentials and variables; the agent; the providers; what Git declares for
// the child, its sources before the rest. The agent comes before the providers, so
// that it reports their progress. They come before the objects of Git, which may need
// them.
func (s *seeding) phases(ctx context.Context) ([]apply.Phase, error) {
	var phases []apply.Phase
	var own []*unstructured.Unstructured
	var workload apply.Phase
	if s.layer.Spec.Agent != nil {
		m, err := s.manifest.of(ctx, s.layer, s.image)
		if err != nil {
			return nil, reason.Because(v1alpha1.ReasonBuildFailed, err)
		}
		phases, workload = append(phases, m.definitions, m.ground), m.workload
		own = append(own, variablesObject(s.push.vars))
	}
	own = append(own, accountsOf(v1alpha1.AgentNamespace, s.credentials)...)
	for _, c := range s.credentials {
		u, err := c.object(v1alpha1.AgentNamespace, nil)
		if err != nil {
			return nil, err
		}
		own = append(own, u)
	}
	phases = append(phases, apply.Phase{Objects: own}, workload)
	providers, err := s.providerPhases(ctx)
	if err != nil {
		return nil, err
	}
	phases = append(phases, providers...)
	if s.snapshot == nil {
		return phases, nil
	}
	git, err := s.fromGit(ctx)
	return append(phases, git...), err
}

func variablesObject(vars map[string]string) *unstructured.Unstructured {
	data := make(map[string]any, len(vars))
	for k, v := range vars {
		data[k] = v
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": v1alpha1.VariablesConfigMap, "namespace": v1alpha1.AgentNamespace},
		"data":     data,
	}}
}

func credentialObject(name string, from *corev1.Secret) *unstructured.Unstructured {
	data := make(map[string]any, len(from.Data))
	for k, v := range from.Data {
		data[k] = base64.StdEncoding.EncodeToString(v)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": name, "namespace": v1alpha1.AgentNamespace},
		"type":     string(from.Type),
		"data":     data,
	}}
}

// digestOf identifies a rendering. It is recorded in the children.
func digestOf(phases []apply.Phase) (string, error) {
	h := sha256.New()
	for _, p := range phases {
		if err := p.Declared(h); err != nil {
			return "", err
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// declared are the entries of all phases.
func declared(phases []apply.Phase) []inventory.Entry {
	var entries []inventory.Entry
	for _, p := range phases {
		entries = append(entries, p.Entries()...)
	}
	return entries
}

// still reports whether an object is healthy because it exists: it has no status, or
// a status that the apply waited for.
func still(e inventory.Entry) bool {
	switch e.Group {
	case "rbac.authorization.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io":
		return true
	case "":
		return e.Kind == "ConfigMap" || e.Kind == "Secret" || e.Kind == "ServiceAccount" || e.Kind == "Namespace"
	}
	return false
}
