package kustomization

import (
	"errors"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/depend"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDependencyRules(t *testing.T) {
	const revision = "main@sha1:2"
	ready := func(change func(*kustomizev1.Kustomization)) *kustomizev1.Kustomization {
		dep := &kustomizev1.Kustomization{
			ObjectMeta: metav1.ObjectMeta{Name: "base", Namespace: "flux-system", Generation: 3, Labels: map[string]string{"version": "2"}},
			Spec: kustomizev1.KustomizationSpec{
				SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet", Namespace: "sources"},
			},
			Status: kustomizev1.KustomizationStatus{
				ObservedGeneration: 3, LastAppliedRevision: revision,
				Conditions: []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue}},
			},
		}
		if change != nil {
			change(dep)
		}
		return dep
	}
	self := &kustomizev1.Kustomization{
		ObjectMeta: metav1.ObjectMeta{Name: "apps", Namespace: "flux-system", Labels: map[string]string{"version": "2"}},
		Spec:       kustomizev1.KustomizationSpec{SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet", Namespace: "sources"}},
	}
	for name, tt := range map[string]struct {
		reason   string
		expr     string
		additive bool
		dep      *kustomizev1.Kustomization
		want     string
		final    bool
	}{
		"Ready": {reason: "ready at the same revision", dep: ready(nil)},
		"NoStatus": {reason: "never reconciled", want: "dependency 'flux-system/base' is not ready",
			dep: ready(func(k *kustomizev1.Kustomization) { k.Status = kustomizev1.KustomizationStatus{} })},
		"NotReady": {reason: "its Ready is False", want: "dependency 'flux-system/base' is not ready",
			dep: ready(func(k *kustomizev1.Kustomization) { k.Status.Conditions[0].Status = metav1.ConditionFalse })},
		"Changed": {reason: "its Ready is about an older spec", want: "dependency 'flux-system/base' is not ready",
			dep: ready(func(k *kustomizev1.Kustomization) { k.Generation = 4 })},
		"OldRevision": {reason: "ready, but for the commit before", want: "dependency 'flux-system/base' revision is not up to date",
			dep: ready(func(k *kustomizev1.Kustomization) { k.Status.LastAppliedRevision = "main@sha1:1" })},
		"OtherSource": {reason: "revisions of different sources do not compare",
			dep: ready(func(k *kustomizev1.Kustomization) {
				k.Status.LastAppliedRevision, k.Spec.SourceRef.Name = "main@sha1:1", "other"
			})},
		"DefaultNamespace": {reason: "a source without a namespace is in the Kustomization's own",
			dep: ready(func(k *kustomizev1.Kustomization) {
				k.Status.LastAppliedRevision, k.Spec.SourceRef.Namespace = "main@sha1:1", ""
			})},
		"Expression": {reason: "the expression replaces the built-in rules", expr: "dep.metadata.labels['version'] == self.metadata.labels['version']",
			dep: ready(func(k *kustomizev1.Kustomization) { k.Status = kustomizev1.KustomizationStatus{} })},
		"ExpressionFalse": {reason: "it decides", expr: "dep.metadata.labels['version'] == '3'", dep: ready(nil),
			want: "dependency 'flux-system/base' is not ready according to readyExpr eval"},
		"Additive": {reason: "with the gate the built-in rules hold as well", expr: "true", additive: true,
			dep:  ready(func(k *kustomizev1.Kustomization) { k.Status.Conditions[0].Status = metav1.ConditionFalse }),
			want: "dependency 'flux-system/base' is not ready"},
		"AdditiveReady": {reason: "both agree", expr: "true", additive: true, dep: ready(nil)},
		"Syntax":        {reason: "only a change of the object helps", expr: "dep.", dep: ready(nil), want: "failed to evaluate dependency base", final: true},
		"Type":          {reason: "it must be a boolean", expr: "'yes'", dep: ready(nil), want: "output type mismatch", final: true},
		"Variable":      {reason: "there are self and dep", expr: "other.ready", dep: ready(nil), want: "undeclared reference", final: true},
		"Missing":       {reason: "the field may appear later", expr: "dep.status.nothing == 'x'", dep: ready(nil), want: "no such key: nothing"},
		"Doubling": {reason: "and one of memory, or of what it takes to live within that", expr: "'aa'" + strings.Repeat(".replace('a', 'aa')", 40) + " == 'x'", dep: ready(nil),
			want: "cannot evaluate readyExpr of dependency base: it needs more than"},
		"Endless": {reason: "a tenant's expression has a time limit", expr: endlessExpression, dep: ready(nil), want: "cannot evaluate readyExpr of dependency base within 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			d := kustomizev1.DependencyReference{Name: "base", ReadyExpr: tt.expr}
			with := self.DeepCopy()
			with.Spec.DependsOn = []kustomizev1.DependencyReference{{Name: "first"}, d}
			rules := Rules{Dependencies: depend.Rules{Additive: tt.additive, Workers: workers}}
			err := rules.dependency(t.Context(), self, dependencies(with)[1], tt.dep, revision)
			switch {
			case err == nil && tt.want != "", err != nil && tt.want == "", err != nil && !strings.Contains(err.Error(), tt.want):
				t.Errorf("%s: got %v, want %q", tt.reason, err, tt.want)
			}
			var final *depend.ExpressionError
			if errors.As(err, &final) != tt.final {
				t.Errorf("%s: error is final: %t, want %t", tt.reason, !tt.final, tt.final)
			}
			if err := depend.Compile(dependencies(with)); (err != nil) != tt.final {
				t.Errorf("%s: expressions alone give %v", tt.reason, err)
			}
		})
	}
}

// endlessExpression takes 100^5 steps.
var endlessExpression = func() string {
	many := "[" + strings.TrimSuffix(strings.Repeat("1,", 100), ",") + "]"
	expr := "true"
	for _, v := range []string{"a", "b", "c", "d", "e"} {
		expr = many + ".all(" + v + ", " + expr + ")"
	}
	return expr
}()
