package check

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Subject is what a check is about. Findings are shown in this order.
type Subject string

// Subjects.
const (
	Server      Subject = "API server"
	Rights      Subject = "rights"
	Definitions Subject = "definitions"
	Controllers Subject = "other controllers"
	Agent       Subject = "agent"
	Walls       Subject = "admission policies"
	Providers   Subject = "Cluster API"
	Sources     Subject = "sources"
	Objects     Subject = "what is synced"
	Children    Subject = "children"
)

// subject is how a Subject is judged. before: it can be, before anything is installed.
type subject struct {
	of     Subject
	before bool
	judge  func(*Facts, time.Time) []Finding
}

// subjects in the order in which they are shown.
func subjects() []subject {
	return []subject{
		{Server, true, judgeServer},
		{Rights, true, judgeRights},
		{Definitions, true, judgeDefinitions},
		{Controllers, true, judgeControllers},
		{Agent, false, judgeAgent},
		{Walls, false, judgeWalls},
		{Providers, true, judgeProviders},
		{Sources, false, judgeSources},
		{Objects, false, judgeObjects},
		{Children, false, judgeChildren},
	}
}

// Facts of a cluster, as they were read.
type Facts struct {
	// Program is the version of the program that checks.
	Program string
	// Before: the cluster is checked before an installation, which may be the first.
	Before bool
	// Kubernetes is the version of the API server.
	Kubernetes string
	// Denied is what an installation does and the user may not.
	Denied []string
	// Definitions that there are of our kinds, Flux's and Cluster API's, and Needed the
	// versions of the kinds that this version of the agent reconciles, by the name of their
	// definition.
	Definitions []Definition
	Needed      map[string]string
	// FluxVersion is the release of Flux whose definitions this program brings.
	FluxVersion string
	// Leases of controllers that do the agent's work.
	FluxLeases []Lease
	// Workload is the agent's Deployment, nil if there is none.
	Workload *Workload
	// Leader, Heartbeat and Shards are the Leases of the agent, those of shards by number.
	Leader, Heartbeat *Lease
	Shards            map[int]Lease
	// Reported is the version that the agent's own report tells, empty if there is none.
	Reported string
	// Policies are the admission policies that an installation has, as they are in the
	// cluster.
	Policies []Policy
	// Providers of Cluster API: the Deployments of core and of providers.
	Providers []Provider
	// Synced are sources, what is applied, Layers, Rollouts, Credentials, StateBackups, Receivers,
	// the kinds of image updates and ArtifactGenerators.
	Synced []Object
	// Alerts that tell somebody, and Notifiers: the Leases of Flux's notification-controller,
	// which serves types of Provider that an agent does not.
	Alerts    []Alert
	Notifiers []Lease
	// Known are the Children.
	Known []Child
	// Unread is why a subject could not be read.
	Unread map[Subject]error
}

// Definition is a CustomResourceDefinition.
type Definition struct {
	Name, Group string
	// Served are the versions that the API server serves, Stored those that objects may be
	// stored in.
	Served, Stored []string
	Established    bool
	// Flux is the release of Flux that it is of, empty if it does not say.
	Flux string
	// Contracts of Cluster API that it says it follows.
	Contracts []string
}

// Lease of a controller.
type Lease struct {
	Namespace, Name, Holder string
	Renewed                 time.Time
	// Holds is how long a renewal holds.
	Holds time.Duration
}

// held reports whether somebody holds the Lease. The clocks of two machines may differ, so
// that a Lease counts as held for a while after it expired.
func (l *Lease) held(now time.Time) bool {
	const margin = 30 * time.Second
	return l != nil && l.Holder != "" && now.Sub(l.Renewed) <= l.Holds+margin
}

// Workload is the agent's Deployment, with why its pods do not run.
type Workload struct {
	Namespace, Name, Image string
	Wanted, Available      int32
	// Sharding is the number of shards that its arguments ask for; 1 without any.
	Sharding int
	// Lease is the name of the one that its replicas compete for by its arguments; empty for none,
	// or if that is not known.
	Lease string
	Pods  []Pod
}

// Pod of the agent that does not run.
type Pod struct {
	Name, Reason, Message string
}

// Policy is an admission policy that an installation has.
type Policy struct {
	Name string
	// Exists, and Fails: what it cannot decide is refused. Denies: a binding refuses what it
	// says.
	Exists, Fails, Denies bool
}

// Provider is a Deployment of Cluster API's core or of a provider.
type Provider struct {
	Label, Namespace, Name string
	Available              bool
	Message                string
	// Account is its service account, and Roles are the annotations of that by which a cloud
	// gives it a role.
	Account string
	Roles   []string
	// Secrets that its pods are given, by name, with whether they are there.
	Secrets []GivenSecret
}

// GivenSecret is a Secret that pods of a provider mount, or have as variables.
type GivenSecret struct {
	Name string
	// Needed: the pods do not begin without it.
	Needed bool
	// Exists, unless it is not known.
	Exists, Unknown bool
}

// Object that the agent reconciles.
type Object struct {
	Kind, Namespace, Name string
	Source                bool
	Suspended             bool
	// Ready is the condition of that type, nil if there is none yet, since Created.
	Ready   *metav1.Condition
	Created time.Time
	// Held are the conditions that say that it waits for a person.
	Held []metav1.Condition
	// SourceFailing is that condition of a Credential, while there is one.
	SourceFailing *metav1.Condition
}

// Alert with the Provider that it tells.
type Alert struct {
	Namespace, Name, Provider string
	// Missing: there is no such Provider. Type is of the Provider that there is, if an agent
	// does not serve that.
	Missing bool
	Type    string
}

// Child is a cluster below.
type Child struct {
	Namespace, Name string
	// Connected is the condition of that type, nil if there is none yet.
	Connected *metav1.Condition
	// Heard is when it was last heard of, if that is too long ago.
	Heard *metav1.Time
	// Agent is the version of its agent, empty if it has none.
	Agent string
	// Expiring is the condition that says that a credential is about to lapse, Static the one
	// that says that some have no end.
	Expiring, Static *metav1.Condition
	// Faults are what its agent counts as wrong in its tier, and in those below it, beside
	// what these sync.
	Faults, FaultsBelow *v1alpha1.ReportFaults
}
