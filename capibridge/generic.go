package capibridge

import (
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// genericAdapter reads the fields that Cluster API's contract, v1beta1 or v1beta2,
// requires of every provider.
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

// infrastructureHealth reads the fields of the contract.
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

// controlPlaneHealth reads the fields of the contract. A Cluster without an object for
// its control plane has machines in its place, and its own status says whether they are
// up.
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
	// A provider of contract v1beta1 has no condition Available, and that of the Cluster
	// stays true whatever happens: only these two fields tell.
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

// standing is the state of an object of a provider.
type standing struct {
	// there: what the object stands for was provisioned once. It never becomes false.
	there bool
	// notReady: status.ready of contract v1beta1 is false.
	notReady   bool
	failure    Failure
	current    conditions
	deprecated conditions
}

// standingOf reads the fields of both contracts. initialization is the field of v1beta2.
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

// says returns the failure, or the first condition that is not met if there is none.
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

// goesOn tells conditions that wait for something from those whose good state is False.
// Contract v1beta2 has several of these.
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

// requestID matches what clouds put into each of their errors. With it, the same error
// would have another text at each attempt.
var requestID = regexp.MustCompile(`(?i)\b(request|correlation)[ _-]?id: ?[0-9a-z-]+,? ?`)

// maxMessage bounds the text that is taken from a provider.
const maxMessage = 512

// plainly returns a provider's message in one line, without what changes from attempt to
// attempt.
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
