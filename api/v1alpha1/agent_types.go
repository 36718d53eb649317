package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// AgentValues are what can be said of an agent, in the same words everywhere: in
// spec.agent of a Layer, in the file of `cascade install --values`, and in the values of
// the Helm chart. What is left out is as the manifest has it.
type AgentValues struct {
	// Image of the agent, with a tag or a digest. In a Layer, it is by default the one that
	// the parent's own agent had when the parent first saw the Layer: status.agentImage.
	// +optional
	Image string `json:"image,omitempty"`
	// ImagePullPolicy says when a node fetches the image.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePullSecrets are Secrets in the agent's namespace. A Layer can deliver them:
	// spec.credentials.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	ImagePullSecrets []LocalReference `json:"imagePullSecrets,omitempty"`
	// Args are added to the agent's command line.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
	// Env is added to the agent's environment, HTTPS_PROXY and NO_PROXY for instance.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// Resources of the agent. Requests and limits that are left out stay as the manifest
	// has them.
	// +optional
	Resources *AgentResources `json:"resources,omitempty"`
	// Replicas of the agent, which share its Children out: as many shards as --shards in
	// args says, or two for each replica. On the host's network, each needs a node of its own.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// NodeSelector has labels of the nodes that the agent may run on.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations are added to those of the taints that a new node has.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// PriorityClassName of the agent's pods, by default system-cluster-critical.
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// HostNetwork: true runs the agent in the network of its node, which works before a
	// CNI is there and needs a privileged Namespace; false runs it in the network of pods, by
	// the restricted pod security standard. Left out, `cascade install` looks whether a node
	// is ready, and a Layer has true.
	// +optional
	HostNetwork *bool `json:"hostNetwork,omitempty"`
	// Storage is where the agent keeps what it fetches.
	// +optional
	Storage *AgentStorage `json:"storage,omitempty"`
	// Labels are added to all objects of the agent and to its pods.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Lockdown takes the agent's own rights to write away, for a tier of several tenants.
	// +optional
	Lockdown *AgentLockdown `json:"lockdown,omitempty"`
	// Controllers are the kinds that the agent reconciles, all by default.
	// +kubebuilder:validation:MaxItems=17
	// +kubebuilder:validation:items:Enum=GitRepository;OCIRepository;Bucket;HelmRepository;HelmChart;Kustomization;HelmRelease;Layer;Receiver;Alert;Provider;ImageRepository;ImagePolicy;ImageUpdateAutomation;ArtifactGenerator;Credential;StateBackup
	// +listType=set
	// +optional
	Controllers []string `json:"controllers,omitempty"`
	// EventsAddress is the URL of Flux's notification-controller, which events are posted to.
	// +kubebuilder:validation:Pattern="^https?://"
	// +optional
	EventsAddress string `json:"eventsAddress,omitempty"`
	// NetworkPolicy lets nothing in but to the ports of metrics and health, and to those of
	// Receivers and pages where they are served. It is true by default; on the host's network no
	// policy has an effect, and there is none.
	// +optional
	NetworkPolicy *bool `json:"networkPolicy,omitempty"`
	// Receiver serves Flux's Receivers at port 9292 of the agent's pods, and brings the
	// Service webhook-receiver, for an Ingress or a load balancer to lead to. It is false by
	// default.
	// +optional
	Receiver bool `json:"receiver,omitempty"`
	// Pages serves pages about the tier at port 8443 of the agent's pods, over HTTPS and for
	// bearer tokens of the cluster, and brings the Service cascade-pages. Left out, none are
	// served.
	// +optional
	Pages *AgentPages `json:"pages,omitempty"`
	// Files are Secrets of the agent's namespace that flags read as files: each key is a file of
	// /etc/cascade/files/<name>. A Secret that is not there yet leaves its directory empty.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Files []AgentFiles `json:"files,omitempty"`
	// ServiceAccountAnnotations are those by which a cloud gives the agent's account an
	// identity, such as eks.amazonaws.com/role-arn.
	// +optional
	ServiceAccountAnnotations map[string]string `json:"serviceAccountAnnotations,omitempty"`
	// MetricsAuth says who may read the metrics: none asks nobody, kubernetes those who may
	// get the non-resource URL /metrics.
	// +optional
	MetricsAuth MetricsAuth `json:"metricsAuth,omitempty"`
	// FirstSync says whether the agent of a new tier creates the Clusters that its Git
	// declares without approval: Adopt or Create. A child is new if its Cluster was made in
	// this tier, and no agent was ever pushed to a cluster of its name. In any other child
	// a person approves, with cascade approve create.
	// +kubebuilder:default=Adopt
	// +optional
	FirstSync FirstSyncPolicy `json:"firstSync,omitempty"`
}

// AgentResources are what the agent requests and may use.
type AgentResources struct {
	// Requests by the name of the resource.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// Limits by the name of the resource.
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// AgentFiles are the files of a Secret.
type AgentFiles struct {
	// Name of the directory below /etc/cascade/files.
	// +kubebuilder:validation:MaxLength=56
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
	// +required
	Name string `json:"name"`
	// SecretRef is the Secret. A Layer can deliver it: spec.credentials.
	// +required
	SecretRef LocalReference `json:"secretRef"`
}

// AgentPages are the pages about a tier.
type AgentPages struct {
	// CertificateSecretRef names a Secret of the agent's namespace with tls.crt and tls.key, as
	// cert-manager makes them, which are read again when they change. Without it, the
	// certificate is made by the agent and signed by nobody.
	// +optional
	CertificateSecretRef *LocalReference `json:"certificateSecretRef,omitempty"`
}

// AgentStorage is where the agent keeps what it fetches.
type AgentStorage struct {
	// SizeLimit of the directory that goes with the pod, by default 16Gi. Beyond it the pod is
	// evicted.
	// +optional
	SizeLimit *resource.Quantity `json:"sizeLimit,omitempty"`
	// Claim keeps what was fetched on a volume that outlives the pod. An agent with a volume
	// has one replica.
	// +optional
	Claim *AgentClaim `json:"claim,omitempty"`
}

// AgentClaim is a PersistentVolumeClaim in the agent's namespace.
// +kubebuilder:validation:XValidation:rule="has(self.size) || !has(self.storageClassName)",message="a claim that is there already has a class: give the size of one that is to be made, or leave the class out"
type AgentClaim struct {
	// Name of the claim, by default cascade.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// Size of the claim, which is made. Without a size the claim has to be there.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// StorageClassName of the claim that is made; without it, the cluster's default.
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// AgentLockdown bounds an agent that works for several tenants. The agent acts as service
// accounts only, and has rights of its own to read, and to write its own kinds.
type AgentLockdown struct {
	// ServiceAccount that Kustomizations, HelmReleases and Layers without one act as, by
	// default `default`.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// Impersonates are the names of the service accounts, of any namespace, that the agent
	// may act as, besides ServiceAccount. Without them it may act as any.
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	// +optional
	Impersonates []string `json:"impersonates,omitempty"`
	// ClusterDeleter brings the ClusterRole cascade-cluster-deleter, with the right to delete
	// objects of Cluster API. It is bound to nobody: bind it in the namespace of Clusters, to the
	// service account that may delete them.
	// +optional
	ClusterDeleter bool `json:"clusterDeleter,omitempty"`
}

// MetricsAuth says who may read the metrics of an agent.
// +kubebuilder:validation:Enum=none;kubernetes
type MetricsAuth string

const (
	// MetricsAuthNone asks nobody.
	MetricsAuthNone MetricsAuth = "none"
	// MetricsAuthKubernetes asks the API server.
	MetricsAuthKubernetes MetricsAuth = "kubernetes"
)

// AgentSpec describes the agent that is installed in a child.
type AgentSpec struct {
	AgentValues `json:",inline"`
	// Decryption hands the child the keys of what its repositories hold
	// encrypted.
	// +optional
	Decryption *AgentDecryption `json:"decryption,omitempty"`
}

// FirstSyncPolicy says what a new tier does about Clusters that do not exist.
// +kubebuilder:validation:Enum=Adopt;Create
type FirstSyncPolicy string

const (
	// FirstSyncPolicyAdopt holds them until a person says that they are new.
	FirstSyncPolicyAdopt FirstSyncPolicy = "Adopt"
	// FirstSyncPolicyCreate creates them.
	FirstSyncPolicyCreate FirstSyncPolicy = "Create"
)

// AgentDecryption is the first secret of a child, with which it reads all others.
type AgentDecryption struct {
	// SecretRef is a Secret in the Layer's namespace with age keys, each under a
	// key that ends in .agekey, as for a Kustomization. It is copied to the child,
	// where the agent uses it for every Kustomization that names none. Its name may have
	// variables in it, as that of a credential.
	// +required
	SecretRef LocalReference `json:"secretRef"`
}
