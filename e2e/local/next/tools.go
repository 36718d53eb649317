//go:build tools

// Package next pins, in a go.mod of its own, the minor version of Cluster API after the one of the local provider: what
// a management cluster is upgraded to in a test. It is never compiled.
package next

import (
	_ "sigs.k8s.io/cluster-api/core"
)
