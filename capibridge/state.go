package capibridge

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Words for the state of a cluster, for people.
const (
	StateMoved        = "Moved"
	StateDeleting     = "Deleting"
	StatePaused       = "Paused"
	StateFailed       = "Failed"
	StateProvisioning = "Provisioning"
	StateStarting     = "Starting"
	StateStopped      = "Stopped"
	StateUnreachable  = "Unreachable"
	StateRemediating  = "Remediating"
	StateRollingOut   = "RollingOut"
	StateDegraded     = "Degraded"
	StateUnavailable  = "Unavailable"
	StateInitialized  = "Initialized"
	StateAvailable    = "Available"
)

// State returns one word for the state of a cluster, and a sentence if a person needs
// more. f has the facts of the providers; its zero value has none. State is for display
// only: it may be as stale as the facts, and no program decides by it.
func (c Cluster) State(f Facts) (word, detail string) {
	switch {
	case c.Moved:
		return StateMoved, "the Cluster was moved to another management cluster"
	case c.Deleting:
		return StateDeleting, ""
	case c.Paused && c.MoveBlocked:
		return StatePaused, "a move waits for the provider to let go of it"
	case c.Paused:
		return StatePaused, ""
	}
	for _, h := range []Health{f.ControlPlane, f.Infrastructure} {
		switch h.Reason {
		case HealthFailed:
			return StateFailed, h.Message
		case HealthStopped:
			return StateStopped, h.Message
		}
	}
	switch {
	// A failure from before the cluster was up keeps it from coming up. A cluster may
	// work in spite of a later one.
	case !c.Failure.IsZero() && !c.ControlPlaneInitialized:
		return StateFailed, say(clusterapi.Reference{Kind: "Cluster", Name: c.Name}, c.Failure.Reason, c.Failure.Message)
	case !c.InfrastructureProvisioned:
		return StateProvisioning, detailOf(f.Infrastructure, f.ControlPlane)
	case !c.ControlPlaneInitialized:
		return StateStarting, detailOf(f.ControlPlane, f.Infrastructure)
	case f.ControlPlane.Status == metav1.ConditionFalse:
		return StateUnavailable, f.ControlPlane.Message
	case c.RemoteConnection == metav1.ConditionFalse:
		return StateUnreachable, "Cluster API does not reach the API server"
	case c.Remediating:
		return StateRemediating, ""
	case c.RollingOut, f.ControlPlane.Reason == HealthUpdating:
		return StateRollingOut, f.ControlPlane.Message
	case f.ControlPlane.Reason == HealthDegraded, f.Infrastructure.Reason == HealthDegraded:
		return StateDegraded, detailOf(f.ControlPlane, f.Infrastructure)
	case !c.Failure.IsZero():
		return StateDegraded, say(clusterapi.Reference{Kind: "Cluster", Name: c.Name}, c.Failure.Reason, c.Failure.Message)
	case !c.Available:
		return StateInitialized, "Cluster API does not say yet that the Cluster is Available"
	}
	return StateAvailable, ""
}

func detailOf(healths ...Health) string {
	for _, h := range healths {
		if h.Message != "" {
			return h.Message
		}
	}
	return ""
}
