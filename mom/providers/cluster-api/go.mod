// It says which version is built; what that needs, its own go.mod says.
module github.com/cascade-gitops/cascade/mom/providers/cluster-api

go 1.26

require sigs.k8s.io/cluster-api v1.13.4
