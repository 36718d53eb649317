// Package lease tells whether somebody holds the Lease of a leader election, and which
// Leases are those of Flux's controllers. It is pure.
//
// Failure model: a Lease that lacks what an election writes is held by nobody. The clocks of
// two machines may differ; who must not be wrong waits longer than a Lease holds.
package lease

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// Leases of the controllers of Flux whose work an agent does, which are in Flux's namespace.
const (
	SourceController    = "source-controller-leader-election"
	KustomizeController = "kustomize-controller-leader-election"
	HelmController      = "helm-controller-leader-election"
)

// Leases of those controllers of Flux that an agent may leave at their work: it does it where
// they do not run.
const (
	NotificationController    = "notification-controller-leader-election"
	ImageReflectorController  = "image-reflector-controller-leader-election"
	ImageAutomationController = "image-automation-controller-leader-election"
	SourceWatcher             = "source-watcher-leader-election"
)

// OfFlux are those that keep an agent waiting.
func OfFlux() []string { return []string{SourceController, KustomizeController, HelmController} }

// BesideAgents are those of controllers that may work beside an agent.
func BesideAgents() []string {
	return []string{NotificationController, ImageReflectorController, ImageAutomationController, SourceWatcher}
}

// Of reports whether a Lease is that of one of some controllers. Of a part of the objects, as
// --watch-label-selector makes it, the Lease is named after the controller and a digest.
func Of(name string, controllers ...string) bool {
	return slices.ContainsFunc(controllers, func(controller string) bool {
		rest, ok := strings.CutPrefix(name, controller)
		if !ok || rest == "" {
			return ok
		}
		digest, ok := strings.CutPrefix(rest, "-")
		sum, err := hex.DecodeString(digest)
		return ok && err == nil && len(sum) == digestBytes
	})
}

// digestBytes of a selector are in the name of a Lease.
const digestBytes = 4

// Held reports whether somebody holds a Lease now.
func Held(l *coordinationv1.Lease, now time.Time) bool {
	s := l.Spec
	if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || s.LeaseDurationSeconds == nil {
		return false
	}
	return now.Before(s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds) * time.Second))
}
