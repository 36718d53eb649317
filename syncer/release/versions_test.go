package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"syscall"
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/release/sandbox"
)

// kubernetesOf declares a Cluster of a version of Kubernetes, and what its control plane reports.
func kubernetesOf(class bool, version, reported string) string {
	topology := ""
	if class {
		topology = "topology: {classRef: {name: big}, version: " + version + "}, "
	}
	return fmt.Sprintf(`---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: prod, namespace: apps}
spec: {%scontrolPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: KubeadmControlPlane, name: prod}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlane
metadata: {name: prod, namespace: apps}
spec: {version: %s}
status: {version: %q}
`, topology, version, reported)
}

// runs has the world run a Cluster.
func (m *fakeWorld) runs(t *testing.T, class bool, version, reported string) {
	t.Helper()
	for _, text := range strings.Split(kubernetesOf(class, version, reported), "---\n")[1:] {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		m.objects = append(m.objects, u)
	}
}

// TestHoldVersionsUnreadable: a control plane that cannot be read, or what a chart looks up, is no failure of what is to be
// released: nothing is tried.
func TestHoldVersionsUnreadable(t *testing.T) {
	down := apierrors.NewInternalError(errors.New("conversion webhook is down"))
	lookup := func(err error) error {
		return fmt.Errorf("cannot render: %w", &sandbox.LookupError{Text: "error calling lookup: conversion webhook is down", Err: err})
	}
	for name, tc := range map[string]struct {
		reason     string
		unread     map[string]error
		unrendered error
		held       bool
	}{
		"ControlPlane": {"nobody can tell which version runs", map[string]error{"KubeadmControlPlane": down}, nil, true},
		"Lookup":       {"nor which one is declared", nil, fmt.Errorf("error calling lookup: %w", down), true},
		"Hangs":        {"its webhook never answers (read 930)", nil, lookup(fmt.Errorf("a lookup is not answered within 30s: %w", context.DeadlineExceeded)), true},
		"Connection":   {"the API server starts anew (read 930)", nil, lookup(&url.Error{Op: "Get", URL: "https://x", Err: syscall.ECONNREFUSED}), true},
		"CutOff":       {"its answer ends halfway (read 930)", nil, lookup(io.ErrUnexpectedEOF), true},
		"Kind":         {"there is no such kind, and the action says so", nil, lookup(errors.New("no matches for kind")), false},
		"CutChart":     {"it is the chart that ends halfway", nil, fmt.Errorf("cannot load chart: %w", io.ErrUnexpectedEOF), false},
		"Chart":        {"the chart is wrong, and the action says so", nil, errors.New("error calling include"), false},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Annotations = map[string]string{v1alpha1.RolloutRevisionAnnotation: "main@sha1:2"}
			m.runs(t, false, "v1.36.2", "v1.36.2")
			m.unread, m.unrendered = tc.unread, tc.unrendered
			m.manifest = kubernetesOf(false, "v1.37.0", "")
			out, err := m.newRun(obj, wanted).holdVersions(t.Context(), Upgrade, nil)
			ready := conditions.Get(obj, fluxmeta.ReadyCondition)
			held := ready.Reason == v1alpha1.ReasonControlPlaneUnreadable && ready.Status == "False" && strings.Contains(ready.Message, "conversion webhook is down")
			if out != nil || (err != nil) != tc.held || held != tc.held {
				t.Errorf("%s: holdVersions() = %+v, %v, Ready is %+v", tc.reason, out, err, ready)
			}
			if len(m.taken) > 0 || obj.Status.UpgradeFailures > 0 {
				t.Errorf("%s: it took %v, with %d failures", tc.reason, m.taken, obj.Status.UpgradeFailures)
			}
		})
	}
}

// TestHoldVersions: a release that a Rollout moves takes no step that skips a minor version,
// from what runs, whatever was declared.
func TestHoldVersions(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		release  func(*v2.HelmRelease)
		next     Action
		runs     string // declared and reported
		class    bool
		declared string
		held     string
	}{
		"Skipped":  {reason: "1.37 comes first", next: Upgrade, runs: "v1.36.2 v1.36.2", declared: "v1.38.0", held: "from v1.36.2 to v1.38.0"},
		"Next":     {reason: "the next minor version is a step", next: Upgrade, runs: "v1.36.2 v1.36.2", declared: "v1.37.0"},
		"Reported": {reason: "1.37 is declared, and does not run yet", next: Upgrade, runs: "v1.37.0 v1.36.2", declared: "v1.38.0", held: "from v1.36.2 to v1.38.0"},
		"Back":     {reason: "a remediation would go back", next: Rollback, runs: "v1.38.0 v1.38.0", declared: "v1.37.0", held: "from v1.38.0 to v1.37.0"},
		"New":      {reason: "there is no Cluster yet", next: Install, declared: "v1.38.0"},
		"Unmoved": {reason: "without a Rollout it is as with Flux", next: Upgrade, runs: "v1.36.2 v1.36.2", declared: "v1.38.0",
			release: func(h *v2.HelmRelease) { h.Annotations = nil }},
		"Child": {reason: "the Clusters of another cluster are its own agent's", next: Upgrade, runs: "v1.36.2 v1.36.2", declared: "v1.38.0",
			release: func(h *v2.HelmRelease) { h.Spec.KubeConfig = &fluxmeta.KubeConfigReference{} }},
		"Topology": {reason: "Cluster API lets no topology go back, to an earlier patch neither", next: Rollback, class: true, runs: "v1.38.4 v1.38.4", declared: "v1.38.2", held: "from v1.38.4 to v1.38.2"},
		"Unlock":   {reason: "nothing is applied", next: Unlock, runs: "v1.36.2 v1.36.2", declared: "v1.38.0"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Annotations = map[string]string{v1alpha1.RolloutRevisionAnnotation: "main@sha1:2"}
			if tc.release != nil {
				tc.release(obj)
			}
			if version, reported, there := strings.Cut(tc.runs, " "); there {
				m.runs(t, tc.class, version, reported)
			}
			m.manifest = kubernetesOf(tc.class, tc.declared, "")
			if tc.next == Rollback {
				m.stored[0].Manifest = m.manifest
				obj.Status.History = append(v2.Snapshots{obj.Status.History[0].DeepCopy()}, obj.Status.History...)
				obj.Status.History[0].Version++
				obj.Status.History[0].Status = "failed"
			}
			events(m.newRun(obj, wanted))
			n := m.newRun(obj, wanted)
			out, err := n.holdVersions(t.Context(), tc.next, nil)
			if err != nil || (out != nil) != (tc.held != "") || out != nil && !out.Refused {
				t.Fatalf("%s: holdVersions() = %+v, %v", tc.reason, out, err)
			}
			ready, told := conditions.Get(obj, fluxmeta.ReadyCondition), events(n)
			if tc.held == "" {
				if told != "" || ready.Reason == v1alpha1.ReasonUnsupportedVersionStep {
					t.Errorf("%s: told %q, Ready is %+v", tc.reason, told, ready)
				}
				return
			}
			if told != v1alpha1.ReasonUnsupportedVersionStep || ready.Reason != told || ready.Status != "False" || !strings.Contains(ready.Message, "Cluster apps/prod "+tc.held) || ready.ObservedGeneration != obj.Generation {
				t.Errorf("%s: told %q, Ready is %+v", tc.reason, told, ready)
			}
			if _, err := n.holdVersions(t.Context(), tc.next, nil); err != nil || events(n) != "" {
				t.Errorf("%s: it is told again: %v", tc.reason, err)
			}
		})
	}
}
