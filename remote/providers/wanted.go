package providers

import (
	"path"

	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// certManager is the label and directory of what comes before all providers.
const certManager = "cert-manager"

// coreName is what clusterctl calls Cluster API itself.
const coreName = "cluster-api"

// Wanted is one set of components that a Layer names.
type Wanted struct {
	// Label is what clusterctl calls the provider, e.g. infrastructure-aws: the
	// name of its directory, and the value of the label on all its objects.
	Label string
	v1alpha1.Release
	// Name and Type in clusterctl's inventory; empty for cert-manager.
	Name string
	Type clusterctlv1.ProviderType
	// Annotations of the ServiceAccounts.
	Annotations map[string]string
	Credentials []v1alpha1.CredentialReference

	file string
}

// String names the set to people.
func (w Wanted) String() string { return w.Label + " " + w.Version }

// dir is the directory of the version, below the root of the repository.
func (w Wanted) dir(root string) string { return path.Join(root, w.Label, w.Version) }

// Paths are those of the files that what a Layer names is made of. The source may have links there.
func Paths(spec *v1alpha1.ProvidersSpec) []string {
	var all []string
	for _, w := range List(spec) {
		dir := w.dir(spec.Path)
		all = append(all, path.Join(dir, w.file), path.Join(dir, metadataFile))
	}
	return all
}

// List returns what a Layer names, in the order of installation.
func List(spec *v1alpha1.ProvidersSpec) []Wanted {
	if spec == nil {
		return nil
	}
	var all []Wanted
	if r := spec.CertManager; r != nil {
		all = append(all, Wanted{Label: certManager, Release: *r, file: "cert-manager.yaml"})
	}
	all = append(all, Wanted{
		Label: coreName, Release: spec.Core,
		Name: coreName, Type: clusterctlv1.CoreProviderType, file: "core-components.yaml",
	})
	for _, kind := range []struct {
		of     clusterctlv1.ProviderType
		file   string
		wanted []v1alpha1.Provider
	}{
		{clusterctlv1.BootstrapProviderType, "bootstrap-components.yaml", spec.Bootstrap},
		{clusterctlv1.ControlPlaneProviderType, "control-plane-components.yaml", spec.ControlPlane},
		{clusterctlv1.InfrastructureProviderType, "infrastructure-components.yaml", spec.Infrastructure},
		{clusterctlv1.IPAMProviderType, "ipam-components.yaml", spec.IPAM},
		{clusterctlv1.RuntimeExtensionProviderType, "runtime-extension-components.yaml", spec.RuntimeExtension},
		{clusterctlv1.AddonProviderType, "addon-components.yaml", spec.Addon},
	} {
		for _, p := range kind.wanted {
			all = append(all, Wanted{
				Label: clusterctlv1.ManifestLabel(p.Name, kind.of), Release: p.Release, Name: p.Name, Type: kind.of,
				Annotations: p.ServiceAccountAnnotations, Credentials: p.Credentials, file: kind.file,
			})
		}
	}
	return all
}
