package syncer

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
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
		{"work that goes on", func(k *kustomizev1.Kustomization) { progressing(k, "Applying") }, map[string]string{"Ready": "Unknown/Progressing", "Reconciling": "True/Progressing"}},
		{"a failure that is tried again", func(k *kustomizev1.Kustomization) { failing(k, "BuildFailed", err) }, map[string]string{"Ready": "False/BuildFailed", "Reconciling": "True/ProgressingWithRetry"}},
		{"a failure that only a person can end is not reconciling", func(k *kustomizev1.Kustomization) { stalled(k, "PruneBlocked", err) }, map[string]string{"Ready": "False/PruneBlocked", "Stalled": "True/PruneBlocked"}},
		{"work again: not stalled any more", func(k *kustomizev1.Kustomization) { progressing(k, "Applying") }, map[string]string{"Ready": "Unknown/Progressing", "Reconciling": "True/Progressing"}},
		{"success leaves no abnormal condition", func(k *kustomizev1.Kustomization) { ready(k, "ReconciliationSucceeded", "Applied") }, map[string]string{"Ready": "True/ReconciliationSucceeded"}},
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
	failing(k, "BuildFailed", errors.New(strings.Repeat("x", 100_000)))
	if n := len(k.Status.Conditions[0].Message); n > 32768 {
		t.Errorf("a message of %d bytes: the API server would refuse the status", n)
	}
}

func TestChanged(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*kustomizev1.Kustomization)
		want   bool
	}{
		"Spec": {"a new generation", func(k *kustomizev1.Kustomization) { k.Generation++ }, true},
		"Request": {"flux reconcile", func(k *kustomizev1.Kustomization) {
			k.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
		}, true},
		"Approval": {"an annotation that was asked for", func(k *kustomizev1.Kustomization) { k.Annotations = map[string]string{"approve": "x"} }, true},
		"Deletion": {"a deletion has to be answered", func(k *kustomizev1.Kustomization) { k.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true},
		"Status":   {"our own write must not wake us", func(k *kustomizev1.Kustomization) { k.Status.LastAppliedRevision = "x"; k.ResourceVersion = "2" }, false},
		"Other":    {"nor somebody's note", func(k *kustomizev1.Kustomization) { k.Annotations = map[string]string{"note": "x"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := &kustomizev1.Kustomization{}
			after := before.DeepCopy()
			tc.change(after)
			if got := changed("approve").Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tc.want {
				t.Errorf("%s\nchanged() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestBecameReady(t *testing.T) {
	made := func(change func(*kustomizev1.Kustomization)) *kustomizev1.Kustomization {
		k := &kustomizev1.Kustomization{}
		ready(k, "ReconciliationSucceeded", "")
		k.Status.LastAppliedRevision, k.Status.ObservedGeneration = "1", 1
		change(k)
		return k
	}
	same := func(*kustomizev1.Kustomization) {}
	unready := func(k *kustomizev1.Kustomization) { failing(k, "BuildFailed", errors.New("x")) }
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

// TestEveryFieldIsFollowed: a field that is not known here would be ignored,
// which may apply with more rights, or to another cluster.
func TestEveryFieldIsFollowed(t *testing.T) {
	supported := map[string]bool{
		"CommonMetadata": true, "DependsOn": true, "Interval": true, "RetryInterval": true, "Path": true, "PostBuild": true, "Prune": true, "DeletionPolicy": true,
		"NamePrefix": true, "NameSuffix": true, "Patches": true, "Images": true, "SourceRef": true, "Suspend": true, "TargetNamespace": true, "Timeout": true,
		"Force": true, "Wait": true, "Components": true, "IgnoreMissingComponents": true, "BuildMetadata": true,
		"KubeConfig": true, "ServiceAccountName": true, "Decryption": true, "HealthChecks": true, "HealthCheckExprs": true, "Ignore": true,
	}
	spec := reflect.TypeFor[kustomizev1.KustomizationSpec]()
	for i := range spec.NumField() {
		if name := spec.Field(i).Name; !supported[name] {
			t.Errorf("spec.%s of Flux's Kustomization is not followed", name)
		}
	}
}

// TestEveryGitFieldIsFollowed: a field that came with a new version of Flux and
// that nobody reads would be ignored.
func TestEveryGitFieldIsFollowed(t *testing.T) {
	followed := map[string]bool{
		"URL": true, "SecretRef": true, "Interval": true, "Timeout": true, "Reference": true, "Ignore": true, "Suspend": true, "Provider": true,
		"ServiceAccountName": true, "Verification": true, "ProxySecretRef": true, "RecurseSubmodules": true, "Include": true, "SparseCheckout": true,
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[sourcev1.GitRepositorySpec](), reflect.TypeFor[sourcev1.GitRepositoryRef]()} {
		for i := range kind.NumField() {
			name := kind.Field(i).Name
			if kind == reflect.TypeFor[sourcev1.GitRepositoryRef]() {
				if !reflect.ValueOf(reference(&sourcev1.GitRepository{})).FieldByName(name).IsValid() {
					t.Errorf("spec.ref.%s of Flux's GitRepository is not followed", name)
				}
			} else if !followed[name] {
				t.Errorf("spec.%s of Flux's GitRepository is not followed", name)
			}
		}
	}
}

func TestJittered(t *testing.T) {
	for range 1000 {
		if got := jittered(time.Minute); got < 57*time.Second || got > 63*time.Second {
			t.Fatalf("jittered(1m) = %s, want within 5 %%", got)
		}
	}
}
