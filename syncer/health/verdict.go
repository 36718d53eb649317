package health

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
)

// Verdict on a set of objects.
type Verdict int

const (
	// Waiting: something may still become Current.
	Waiting Verdict = iota
	// Healthy: everything is Current.
	Healthy
	// Stalled: something failed, and waiting is not worth it.
	Stalled
)

// Judge tells whether to go on waiting. With failFast the first Failed object
// decides; without, the objects in progress are waited for.
func Judge(results []Result, failFast bool) Verdict {
	failed, open := false, false
	for _, r := range results {
		switch {
		case r.Current():
		case r.Status == status.FailedStatus:
			failed = true
		default:
			open = true
		}
	}
	switch {
	case failed && (failFast || !open):
		return Stalled
	case open || failed:
		return Waiting
	}
	return Healthy
}

// StalledError is the text for a verdict of Stalled. It names what failed.
func StalledError(results []Result) error {
	return list("failed early due to stalled resources", results, func(r Result) bool { return r.Status == status.FailedStatus })
}

// TimeoutError is the text for a wait that is over. It names everything that
// is not Current.
func TimeoutError(results []Result) error {
	return list("timeout waiting for", results, func(r Result) bool { return !r.Current() })
}

// longest text in bytes. A condition's message may have 32 768 characters. The
// API server would refuse a status with a longer one.
const longest = 16 << 10

func list(what string, results []Result, named func(Result) bool) error {
	var b strings.Builder
	left := 0
	for _, r := range results {
		if !named(r) {
			continue
		}
		line := fmt.Sprintf("%s status: '%s'", r.Entry, r.Status)
		if r.Status == "" {
			line = fmt.Sprintf("can't determine status for %s", r.Entry)
		} else if r.Err != nil {
			line += fmt.Sprintf(": %s", r.Err)
		}
		if left > 0 || b.Len()+len(line) > longest && b.Len() > 0 {
			left++
			continue
		}
		if len(line) > longest {
			line = line[:longest] + "..."
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(line)
	}
	if b.Len() == 0 {
		return nil
	}
	if left > 0 {
		fmt.Fprintf(&b, ", and %d more", left)
	}
	return errors.New(what + ": [" + b.String() + "]")
}

// Referenced resolves spec.healthChecks. Version is as written; readers of the
// entries look the served one up.
func Referenced(refs []meta.NamespacedObjectKindReference) ([]inventory.Entry, error) {
	var entries []inventory.Entry
	for i, ref := range refs {
		apiVersion := ref.APIVersion
		if apiVersion == "" {
			apiVersion = "apps/v1"
		}
		gv, err := schema.ParseGroupVersion(apiVersion)
		if err != nil {
			return nil, fmt.Errorf("cannot use spec.healthChecks[%d]: %w", i, err)
		}
		entries = append(entries, inventory.Entry{
			Namespace: ref.Namespace, Name: ref.Name, Group: gv.Group, Version: gv.Version, Kind: ref.Kind,
		})
	}
	return entries, nil
}

// Without drops the Kustomization itself from what it waits for: it would wait
// for ever.
func Without(entries []inventory.Entry, self types.NamespacedName) []inventory.Entry {
	var others []inventory.Entry
	for _, e := range entries {
		if e.Kind != kustomizev1.KustomizationKind || e.Name != self.Name || e.Namespace != self.Namespace {
			others = append(others, e)
		}
	}
	return others
}

func convert(from map[string]any, to any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from, to); err != nil {
		return fmt.Errorf("cannot read selector: %w", err)
	}
	return nil
}
