//go:build tools

// Package tools pins, in this module's go.mod, the program that the Makefile builds but that no package of this module
// imports: the Cluster API core manager. It is never compiled.
package tools

import (
	_ "sigs.k8s.io/cluster-api"
)
