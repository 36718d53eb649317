package capibridge

import (
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// genericAdapter reads what Cluster API's contract, v1beta1 or v1beta2, asks of
// every provider.
type genericAdapter struct{}

func (genericAdapter) wants(c Cluster, _ objects) []clusterapi.Reference {
	return []clusterapi.Reference{c.Infrastructure, c.ControlPlane}
}

func (genericAdapter) facts(c Cluster, have objects) Facts {
	name := c.Provider
	if name == "" {
		name = "generic"
	}
	return Facts{
		Provider:       name,
		Infrastructure: infrastructureHealth(c, have),
		ControlPlane:   controlPlaneHealth(c, have),
		Identity:       Identity{Form: IdentityNone},
	}
}

// infrastructureHealth by the contract.
func infrastructureHealth(c Cluster, have objects) Health {
	ref := c.Infrastructure
	u, why := have.get(ref)
	if u == nil {
		return why
	}
	s := standingOf(u, "provisioned")
	switch {
	case u.GetDeletionTimestamp() != nil:
		return no(HealthDeleting, "%s is being deleted", ref)
	case s.there && s.failed():
		return yes(HealthDegraded, "%s", s.says(ref))
	case s.there && s.current.status("Ready") == metav1.ConditionFalse:
		return yes(HealthDegraded, "%s", s.saysOf(ref, s.current, "Ready"))
	case s.there:
		return yes(HealthReady, "")
	case s.failed():
		return no(HealthFailed, "%s", s.says(ref))
	}
	return no(HealthProvisioning, "%s", s.says(ref))
}

// controlPlaneHealth by the contract. Without an object for the control plane it
// is machines, and the Cluster itself says whether they have come up.
func controlPlaneHealth(c Cluster, have objects) Health {
	ref := c.ControlPlane
	if ref.IsZero() {
		if c.ControlPlaneInitialized {
			return yes(HealthReady, "")
		}
		return no(HealthProvisioning, "control plane is not initialized yet")
	}
	u, why := have.get(ref)
	if u == nil {
		return why
	}
	s := standingOf(u, "controlPlaneInitialized")
	available, says := s.current.find("Available")
	switch {
	case u.GetDeletionTimestamp() != nil:
		return no(HealthDeleting, "%s is being deleted", ref)
	case !s.there && !c.ControlPlaneInitialized && s.failed():
		return no(HealthFailed, "%s", s.says(ref))
	case !s.there && !c.ControlPlaneInitialized:
		return no(HealthProvisioning, "%s", s.says(ref))
	case available.status == metav1.ConditionFalse:
		return no(HealthNotAvailable, "%s", s.saysOf(ref, s.current, "Available"))
	// A provider of contract v1beta1 has no Available, and that of the Cluster
	// stays true whatever happens; the two fields are all there is.
	case !says && s.notReady && s.failed():
		return no(HealthFailed, "%s", s.says(ref))
	case !says && s.notReady:
		return no(HealthNotAvailable, "%s", s.says(ref))
	case s.updating():
		return yes(HealthUpdating, "%s is being changed", ref)
	case s.failed():
		return yes(HealthDegraded, "%s", s.says(ref))
	}
	return yes(HealthReady, "")
}

// standing of an object of a provider.
type standing struct {
	// there: what the object stands for has come into being. It never goes back.
	there bool
	// notReady: status.ready of contract v1beta1 says no.
	notReady   bool
	failure    Failure
	current    conditions
	deprecated conditions
}

// standingOf reads the fields of both contracts; initialization is the one of
// v1beta2.
func standingOf(u *unstructured.Unstructured, initialization string) standing {
	ready, has, _ := unstructured.NestedBool(u.Object, "status", "ready")
	s := standing{
		there:    boolAt(u, "status", "initialization", initialization),
		notReady: has && !ready,
	}
	if initialization == "provisioned" {
		s.there = s.there || ready
	} else {
		s.there = s.there || boolAt(u, "status", "initialized")
	}
	s.current, s.deprecated = conditionsOf(u)
	s.failure = failureOf(u, s.deprecated, "Ready")
	return s
}

func (s standing) failed() bool { return !s.failure.IsZero() }

func (s standing) updating() bool {
	if s.current.is("RollingOut") || s.deprecated.is("EKSControlPlaneUpdating") {
		return true
	}
	for _, c := range s.deprecated {
		if c.status == metav1.ConditionFalse && c.severity == "Info" && c.reason == "Updating" {
			return true
		}
	}
	return false
}

// says names the failure, or else the first condition that is not met.
func (s standing) says(ref clusterapi.Reference) string {
	if s.failed() {
		return say(ref, s.failure.Reason, s.failure.Message)
	}
	for _, of := range []conditions{s.deprecated, s.current} {
		for _, c := range of {
			if c.status == metav1.ConditionFalse && c.kind != "Ready" && (c.severity == "" || c.reason != "") && goesOn(c) {
				return say(ref, c.reason, c.message)
			}
		}
	}
	return ref.String() + " is not ready yet"
}

// goesOn tells conditions that wait for something from those whose False is the
// good news, of which contract v1beta2 has several.
func goesOn(c condition) bool {
	switch c.kind {
	case "Paused", "Deleting", "RollingOut", "ScalingUp", "ScalingDown", "Remediating", "EKSControlPlaneCreating", "EKSControlPlaneUpdating":
		return false
	}
	return true
}

func (s standing) saysOf(ref clusterapi.Reference, of conditions, kind string) string {
	c, _ := of.find(kind)
	return say(ref, c.reason, c.message)
}

// requestID is what clouds put into each of their errors; the same error would
// be another one at every try.
var requestID = regexp.MustCompile(`(?i)\b(request|correlation)[ _-]?id: ?[0-9a-z-]+,? ?`)

// maxMessage bounds what is taken over from a provider.
const maxMessage = 512

// plainly is a provider's message in one line that is the same as long as it says
// the same.
func plainly(message string) string {
	message = strings.Join(strings.Fields(requestID.ReplaceAllString(message, "")), " ")
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "..."
	}
	return message
}

func say(ref clusterapi.Reference, reason, message string) string {
	message = plainly(message)
	switch {
	case reason == "" && message == "":
		return ref.String() + " is not ready"
	case message == "":
		return ref.String() + ": " + reason
	case reason == "":
		return ref.String() + ": " + message
	}
	return ref.String() + ": " + reason + ": " + message
}
