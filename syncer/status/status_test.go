package status

import (
	"errors"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// states are the conditions as type=status/reason.
func states(conditions []metav1.Condition) map[string]string {
	out := map[string]string{}
	for _, c := range conditions {
		out[c.Type] = string(c.Status) + "/" + c.Reason
	}
	return out
}

func TestConditions(t *testing.T) {
	err := errors.New("no such file")
	steps := []struct {
		reason string
		do     func(*kustomizev1.Kustomization)
		want   map[string]string
	}{
		{"work that goes on", func(k *kustomizev1.Kustomization) { MarkProgressing(k, "Applying") }, map[string]string{"Ready": "Unknown/Progressing", "Reconciling": "True/Progressing"}},
		{"a failure that is tried again", func(k *kustomizev1.Kustomization) { MarkFailing(k, "BuildFailed", err) }, map[string]string{"Ready": "False/BuildFailed", "Reconciling": "True/ProgressingWithRetry"}},
		{"a failure that only a person can end is not reconciling", func(k *kustomizev1.Kustomization) { MarkStalled(k, "PruneBlocked", err) }, map[string]string{"Ready": "False/PruneBlocked", "Stalled": "True/PruneBlocked"}},
		{"work again: not stalled any more", func(k *kustomizev1.Kustomization) { MarkProgressing(k, "Applying") }, map[string]string{"Ready": "Unknown/Progressing", "Reconciling": "True/Progressing"}},
		{"success leaves no abnormal condition", func(k *kustomizev1.Kustomization) { MarkReady(k, "ReconciliationSucceeded", "Applied") }, map[string]string{"Ready": "True/ReconciliationSucceeded"}},
	}
	k := &kustomizev1.Kustomization{}
	k.Generation = 7
	for _, step := range steps {
		step.do(k)
		if diff := cmp.Diff(step.want, states(k.Status.Conditions)); diff != "" {
			t.Errorf("%s: -want, +got:\n%s", step.reason, diff)
		}
		for _, c := range k.Status.Conditions {
			if c.ObservedGeneration != 7 {
				t.Errorf("%s: %s is of generation %d", step.reason, c.Type, c.ObservedGeneration)
			}
		}
	}
	MarkFailing(k, "BuildFailed", errors.New(strings.Repeat("x", 100_000)))
	if n := len(k.Status.Conditions[0].Message); n > 32768 {
		t.Errorf("a message of %d bytes: the API server would refuse the status", n)
	}
}
