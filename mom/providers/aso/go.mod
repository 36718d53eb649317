// It says which version is built; what that needs, its own go.mod says.
module github.com/cascade-gitops/cascade/mom/providers/aso

go 1.26

require github.com/Azure/azure-service-operator/v2 v2.13.0
