// It says which version is built; what that needs, its own go.mod says.
module github.com/cascade-gitops/cascade/mom/providers/azure

go 1.26

require sigs.k8s.io/cluster-api-provider-azure v1.23.0
