// It says which version is built; what that needs, its own go.mod says.
module github.com/cascade-gitops/cascade/mom/providers/aws

go 1.26

require sigs.k8s.io/cluster-api-provider-aws/v2 v2.13.0
