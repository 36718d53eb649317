package capibridge

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Reasons of a Health. People and alerts match on them.
const (
	// HealthReady is with True: nothing is wrong.
	HealthReady = "Ready"
	// HealthUpdating is with True: it is being changed and answers meanwhile.
	HealthUpdating = "Updating"
	// HealthDegraded is with True: it works, and the provider wants a person to
	// look.
	HealthDegraded = "Degraded"
	// HealthProvisioning is with False: it is not there yet.
	HealthProvisioning = "Provisioning"
	// HealthFailed is with False: the provider gave up, or cannot go on.
	HealthFailed = "Failed"
	// HealthNotAvailable is with False: it was there, and the provider says that
	// it does not answer now.
	HealthNotAvailable = "NotAvailable"
	// HealthStopped is with False: it was switched off.
	HealthStopped = "Stopped"
	// HealthDeleting is with False.
	HealthDeleting = "Deleting"
	// HealthNotReferenced is with Unknown: the Cluster names no such object.
	HealthNotReferenced = "NotReferenced"
	// HealthNotServed is with Unknown: the API server does not know the kind.
	HealthNotServed = "NotServed"
	// HealthNotFound is with Unknown: there is no such object. That does not say
	// that what it stood for is gone.
	HealthNotFound = "NotFound"
	// HealthForbidden is with Unknown: the agent may not read it.
	HealthForbidden = "Forbidden"
	// HealthUnreadable is with Unknown: it is not as its kind was when the agent
	// was built.
	HealthUnreadable = "Unreadable"
)

// Health of something, in the words of its provider. False explains why an API
// server does not answer; it is no reason to leave one alone that does, and none
// of the three is a reason to delete anything.
type Health struct {
	Status metav1.ConditionStatus
	// Reason is one of those above.
	Reason string
	// Message names the object and what it says, for people; empty if all is well.
	Message string
}

// KubeconfigSource is where the kubeconfig of a cluster is.
type KubeconfigSource struct {
	// Secret in the namespace of the Cluster, and the key in it.
	Secret string
	Key    string
	// Life of the credential if the provider says how long it gives one, else
	// zero: CredentialOf knows of the one that is there.
	Life time.Duration
}

// IdentityForm is how a provider's controllers prove to the cloud who they are.
type IdentityForm string

// Forms of an identity.
const (
	// IdentityUnknown is there if nobody can tell.
	IdentityUnknown IdentityForm = "Unknown"
	// IdentityNone is that of providers that know of none.
	IdentityNone IdentityForm = "None"
	// IdentityStatic is a key in a Secret that is valid until somebody replaces it.
	IdentityStatic IdentityForm = "Static"
	// IdentityCertificate is a certificate, in a Secret or in a file of the
	// controller.
	IdentityCertificate IdentityForm = "Certificate"
	// IdentityRole is a role that another identity assumes.
	IdentityRole IdentityForm = "Role"
	// IdentityController is whatever the controller itself was given: keys, or
	// those of the machine it runs on.
	IdentityController IdentityForm = "Controller"
	// IdentityInstanceProfile is that of the machine that the controller runs on.
	IdentityInstanceProfile IdentityForm = "InstanceProfile"
	// IdentityWorkload is a token of the controller's service account, exchanged
	// for one of the cloud.
	IdentityWorkload IdentityForm = "WorkloadIdentity"
	// IdentityManaged is assigned by the cloud to the machine or the workload.
	IdentityManaged IdentityForm = "ManagedIdentity"
)

// Identity is what a provider's controllers act as for a cluster.
type Identity struct {
	// Object that says so; zero if it is the controller's own without one.
	Object clusterapi.Reference
	Form   IdentityForm
	// Principal is the ARN of the role, or the ID of the client.
	Principal string
	// Tenant of the principal on Azure.
	Tenant string
	// Secret that has the credentials; zero if there is none, as roles need none.
	SecretNamespace string
	SecretName      string
	// Source is what a role is assumed by.
	Source *Identity
	// Refused says that the identity, or one of its sources, may not be used from
	// the namespace of the Cluster.
	Refused bool
	// Message says why the form is unknown, or who refuses.
	Message string
}

// Secretless reports whether nothing that is valid for long has to be handed
// over for the identity to work. It is false if that is not known.
func (i Identity) Secretless() bool {
	if i.Refused {
		return false
	}
	switch i.Form {
	case IdentityRole:
		return i.Source == nil || i.Source.Secretless()
	case IdentityNone, IdentityInstanceProfile, IdentityWorkload, IdentityManaged:
		return true
	case IdentityUnknown, IdentityStatic, IdentityCertificate, IdentityController:
	}
	return false
}

// Facts are what the objects of a provider say about a cluster.
type Facts struct {
	// Provider whose adapter spoke: aws, azure, or generic.
	Provider       string
	Infrastructure Health
	// ControlPlane is whether there is an API server that can be used.
	ControlPlane Health
	Kubeconfig   KubeconfigSource
	Identity     Identity
	// Region, or location.
	Region string
	// Variables besides those of the Cluster, by their whole names. One is only
	// there if it is known.
	Variables map[string]string
	// Unread says why an object that tells the region or variables could not be read, or may not be
	// used, though the Cluster refers to it; zero if all were read.
	Unread Health
	// Unfinished: the provider may tell another variable later, and nothing of the Cluster changes by
	// that, as where an OIDC issuer is enabled.
	Unfinished bool
}

// Keeping returns the facts with what was known before in the place of what could not be read
// now: a provider that is being replaced, or a right that is missing, changes nothing of the
// cluster.
func (f Facts) Keeping(before Facts) Facts {
	if f.Unread == (Health{}) {
		return f
	}
	f.Region = cmp.Or(before.Region, f.Region)
	f.Variables = maps.Clone(f.Variables)
	if f.Variables == nil {
		f.Variables = map[string]string{}
	}
	maps.Copy(f.Variables, before.Variables)
	return f
}

// Into returns the Cluster with what the provider adds to it.
func (f Facts) Into(c Cluster) Cluster {
	if f.Region != "" {
		c.Region = f.Region
	}
	c.Provided = f.Variables
	return c
}

// blockedBy is the health of what cannot come into being because its provider may
// not act. Providers say so in a status only where they got far enough to write
// one.
func (h Health) blockedBy(i Identity) Health {
	if i.Refused && (h.Reason == HealthProvisioning || h.Reason == HealthFailed) {
		return no(HealthFailed, "%s", i.Message)
	}
	return h
}

// withheldBy is why nobody can tell what an identity alone tells: it is not there for who may not use it either, and the
// cluster is what it was before it was refused.
func (h Health) withheldBy(i Identity) Health {
	if h == (Health{}) && i.Refused {
		return unknown(HealthForbidden, "%s", i.Message)
	}
	return h
}

// unknown is a Health that nobody can tell.
func unknown(reason, format string, args ...any) Health {
	return Health{Status: metav1.ConditionUnknown, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func no(reason, format string, args ...any) Health {
	return Health{Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func yes(reason, format string, args ...any) Health {
	return Health{Status: metav1.ConditionTrue, Reason: reason, Message: fmt.Sprintf(format, args...)}
}
