package v1alpha1

// ProvidersSpec says which Cluster API a child gets: core and the providers
// that its environment needs, each in the version named, and nothing else. The
// fields have the words of `clusterctl init`; they are installed in the order
// in which they are written here, each when the one before it works.
type ProvidersSpec struct {
	// SourceRef is the source that holds the component manifests; by default the
	// layer's own.
	// +optional
	SourceRef *SourceReference `json:"sourceRef,omitempty"`

	// Path of the directory in the source that is laid out like a local
	// repository of clusterctl: <provider>/<version>/<components>.yaml with
	// metadata.yaml beside it, e.g. infrastructure-aws/v2.13.0/infrastructure-components.yaml.
	// +optional
	Path string `json:"path,omitempty"`

	// CertManager is installed before everything else, from
	// cert-manager/<version>/cert-manager.yaml. Omit it where the child has it
	// from elsewhere.
	// +optional
	CertManager *Release `json:"certManager,omitempty"`

	// Core is Cluster API itself: cluster-api/<version>/core-components.yaml.
	// +required
	Core Release `json:"core"`

	// Bootstrap providers: bootstrap-<name>/<version>/bootstrap-components.yaml.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Bootstrap []Provider `json:"bootstrap,omitempty"`

	// ControlPlane providers: control-plane-<name>/<version>/control-plane-components.yaml.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	ControlPlane []Provider `json:"controlPlane,omitempty"`

	// Infrastructure providers: infrastructure-<name>/<version>/infrastructure-components.yaml.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Infrastructure []Provider `json:"infrastructure,omitempty"`

	// IPAM providers: ipam-<name>/<version>/ipam-components.yaml.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	IPAM []Provider `json:"ipam,omitempty"`

	// RuntimeExtension providers: runtime-extension-<name>/<version>/runtime-extension-components.yaml.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	RuntimeExtension []Provider `json:"runtimeExtension,omitempty"`

	// Addon providers: addon-<name>/<version>/addon-components.yaml.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Addon []Provider `json:"addon,omitempty"`
}

// Release is one version of something whose components are installed.
type Release struct {
	// Version is the name of the directory, e.g. v1.13.4.
	// +kubebuilder:validation:Pattern=`^v[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?$`
	// +kubebuilder:validation:MaxLength=128
	// +required
	Version string `json:"version"`

	// Deletion: confirmed marks everything that is installed with the
	// annotation cascade.dev/deletion: confirmed, so that a later commit that
	// takes the entry out removes it, definitions and namespace included. Until
	// no object of its kinds is left it is not removed in any case.
	// +kubebuilder:validation:Enum=confirmed
	// +optional
	Deletion string `json:"deletion,omitempty"`
}

// Provider is one provider in one version.
type Provider struct {
	// Name without the kind of provider, e.g. aws or kubeadm.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`

	Release `json:",inline"`

	// ServiceAccountAnnotations are set on the provider's ServiceAccounts, so
	// that it works in a role of its cloud and no key is handed over, e.g.
	// eks.amazonaws.com/role-arn or azure.workload.identity/client-id. Variables
	// are substituted in the values.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	ServiceAccountAnnotations map[string]string `json:"serviceAccountAnnotations,omitempty"`

	// Credentials that the provider needs, in its own namespace: Secrets of this
	// namespace, or what the child's agent asks a Vault server for.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Credentials []CredentialReference `json:"credentials,omitempty"`
}
