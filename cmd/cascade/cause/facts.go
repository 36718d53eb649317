package cause

import (
	"slices"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

// Facts of one tier, as its API server has them.
type Facts struct {
	// Namespace that the facts are of; empty for all. Objects of other namespaces are neither
	// there nor missing.
	Namespace string
	// Sources of any kind of Flux.
	Sources []client.Object
	// Others are of Flux's kinds that neither apply nor are applied: ArtifactGenerators,
	// Receivers, and those of image updates.
	Others         []client.Object
	Kustomizations []kustomizev1.Kustomization
	Releases       []helmv2.HelmRelease
	Layers         []v1alpha1.Layer
	// Children with the reports of their agents, by which the tiers below are known.
	Children    []v1alpha1.Child
	Rollouts    []v1alpha1.Rollout
	Credentials []v1alpha1.Credential
	Backups     []v1alpha1.StateBackup
	// Providers are the Deployments of Cluster API and its providers. They need not be there
	// while all Credentials are well.
	Providers []appsv1.Deployment
	// Clusters of Cluster API.
	Clusters []Cluster
	// Heartbeat is when the agent of this tier renewed its Lease, nil if there is none.
	Heartbeat *Heartbeat
	// Unread is why a kind could not be listed, by its name. Objects of such a kind are
	// neither there nor missing.
	Unread map[string]string
}

// reconciled reports whether there is anything that nobody but an agent reconciles.
func (f *Facts) reconciled() bool {
	return len(f.Layers)+len(f.Children)+len(f.Rollouts)+len(f.Credentials)+len(f.Backups) > 0
}

// Cluster is one of Cluster API, with what its provider says.
type Cluster struct {
	// Object is the Cluster in any version of v1beta1 and v1beta2.
	Object *unstructured.Unstructured
	// Provider has the facts of its infrastructure and its control plane. Its zero value
	// has none.
	Provider capibridge.Facts
}

// Heartbeat of an agent.
type Heartbeat struct {
	Namespace, Name string
	// Renewed is when it was renewed last, or, of one that is absent, when its report was written last, as far as is known.
	Renewed time.Time
	// Holds is how long a renewal holds.
	Holds time.Duration
	// Absent: there is no Lease, and the report of an agent that has been here.
	Absent bool
}

// What is told of an agent that does not renew its Lease.
const (
	ReasonAgentSilent  = "AgentSilent"
	messageAgentSilent = "the agent of this tier does not renew its Lease: what is shown is as of then"
	messageAgentAbsent = "the agent of this tier has no Lease: nobody keeps its report, and what is shown is as of then"
)

// Message is what is told of an agent that is silent.
func (h *Heartbeat) Message() string {
	if h.Absent {
		return messageAgentAbsent
	}
	return messageAgentSilent
}

// Silent reports whether the agent has not renewed its Lease for too long; of one without a
// heartbeat that is not known.
func (h *Heartbeat) Silent(now time.Time) bool {
	// Clocks of two machines may differ.
	const margin = 30 * time.Second
	return h != nil && (h.Absent || now.Sub(h.Renewed) > h.Holds+margin)
}

// Dated are Children as they are known now. Only an agent tells of a child that it was not heard of for
// long: while that of the tier is silent, all of them were heard of when it last renewed its Lease.
func (h *Heartbeat) Dated(children []v1alpha1.Child, now time.Time) []v1alpha1.Child {
	if !h.Silent(now) {
		return children
	}
	heard := metav1.NewTime(h.Renewed)
	children = slices.Clone(children) // others have the same ones
	for i := range children {
		if s := &children[i].Status; s.HeardAt == nil {
			s.HeardAt = &heard
		}
	}
	return children
}
