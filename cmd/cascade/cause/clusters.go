package cause

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

// clusters adds those of Cluster API that are not there, with the object of the provider
// that says why.
func (b *builder) clusters() {
	for i := range b.facts.Clusters {
		u, provider := b.facts.Clusters[i].Object, b.facts.Clusters[i].Provider
		if u == nil {
			continue
		}
		o := of(clusterKind, u)
		b.known[o] = true
		cluster := capibridge.FromObject(u)
		is, detail := cluster.State(provider)
		state, reason := Progressing, is
		switch is {
		case capibridge.StateFailed, capibridge.StateStopped, capibridge.StateUnavailable:
			state = Failing
		case capibridge.StatePaused:
			state = Suspended
		case capibridge.StateDeleting:
			reason = v1alpha1.ReasonClusterDeleting
		case capibridge.StateProvisioning, capibridge.StateStarting, capibridge.StateMoved:
		default:
			continue // it works, as far as the tier depends on it
		}
		n := b.node(o, "", state, reason, detail, sinceOf(u))
		if part := b.partOf(cluster, provider, is); part != nil {
			n.because = []key{part.key}
		}
		b.add(n)
	}
}

// partOf adds the object of the provider that keeps a Cluster from being there; nil if it
// is the Cluster itself, or nothing is known of its parts.
func (b *builder) partOf(c capibridge.Cluster, f capibridge.Facts, is string) *node {
	order := []struct {
		ref clusterapi.Reference
		is  capibridge.Health
	}{{c.Infrastructure, f.Infrastructure}, {c.ControlPlane, f.ControlPlane}}
	switch is {
	case capibridge.StateStarting, capibridge.StateUnavailable:
		order[0], order[1] = order[1], order[0]
	case capibridge.StateFailed, capibridge.StateStopped, capibridge.StateProvisioning:
	default:
		return nil
	}
	for _, part := range order {
		switch part.is.Reason {
		case "", capibridge.HealthReady, capibridge.HealthUpdating, capibridge.HealthDegraded, capibridge.HealthNotReferenced, capibridge.HealthForbidden:
			continue
		}
		if (is == capibridge.StateFailed || is == capibridge.StateStopped) && part.is.Reason != is {
			continue
		}
		if part.ref.IsZero() {
			continue
		}
		o := Object{Kind: part.ref.Kind, Namespace: part.ref.Namespace, Name: part.ref.Name}
		k := key{o, ""}
		if n := b.nodes[k]; n != nil {
			return n // two Clusters refer to one object
		}
		b.parts[o] = true
		b.known[o] = true
		state := Failing
		if part.is.Reason == capibridge.HealthProvisioning || part.is.Reason == capibridge.HealthDeleting {
			state = Progressing
		}
		n := b.node(o, "", state, part.is.Reason, part.is.Message, metav1.Time{})
		b.ofProvider(n)
		b.add(n)
		return n
	}
	return nil
}

// sinceOf is when the first condition of a Cluster became False that keeps it from being
// there, in the conditions of either version; else when it was created, if it was never
// there.
func sinceOf(u *unstructured.Unstructured) metav1.Time {
	for _, at := range [][]string{{"status", "v1beta2", "conditions"}, {"status", "conditions"}} {
		list, _, _ := unstructured.NestedFieldNoCopy(u.Object, at...)
		items, _ := list.([]any)
		for _, want := range []string{"InfrastructureReady", "ControlPlaneInitialized", "ControlPlaneAvailable", "ControlPlaneReady", "Paused", "Deleting", "Ready"} {
			for _, item := range items {
				c, _ := item.(map[string]any)
				good := "False"
				if want == "Paused" || want == "Deleting" {
					good = "True"
				}
				if c["type"] != want || c["status"] != good {
					continue
				}
				text, _ := c["lastTransitionTime"].(string)
				if t, err := time.Parse(time.RFC3339, text); err == nil {
					return metav1.NewTime(t)
				}
			}
		}
	}
	if c := capibridge.FromObject(u); c.ControlPlaneInitialized || c.Paused {
		return metav1.Time{}
	}
	return u.GetCreationTimestamp()
}
