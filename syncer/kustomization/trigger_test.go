package kustomization

import (
	"errors"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"

	"github.com/cascade-gitops/cascade/syncer/status"
)

func TestBecameReady(t *testing.T) {
	made := func(change func(*kustomizev1.Kustomization)) *kustomizev1.Kustomization {
		k := &kustomizev1.Kustomization{}
		status.MarkReady(k, "ReconciliationSucceeded", "")
		k.Status.LastAppliedRevision, k.Status.ObservedGeneration = "1", 1
		change(k)
		return k
	}
	same := func(*kustomizev1.Kustomization) {}
	unready := func(k *kustomizev1.Kustomization) { status.MarkFailing(k, "BuildFailed", errors.New("x")) }
	for name, tc := range map[string]struct {
		reason        string
		before, after func(*kustomizev1.Kustomization)
		want          bool
	}{
		"Ready":    {"dependants may go on", unready, same, true},
		"Revision": {"ready all the time, but now of the new revision", same, func(k *kustomizev1.Kustomization) { k.Status.LastAppliedRevision = "2" }, true},
		"Observed": {"ready all the time, but now of the new generation", same, func(k *kustomizev1.Kustomization) { k.Status.ObservedGeneration = 2 }, true},
		"Same":     {"nothing new", same, same, false},
		"Broken":   {"nobody can go on because of a failure", same, unready, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := becameReady(made(tc.before), made(tc.after)); got != tc.want {
				t.Errorf("%s\nbecameReady() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}
