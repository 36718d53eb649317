// Package config holds the manifests that put this module's programs into a management cluster: crd has the definitions of
// the local provider, capi and provider have what runs the programs as pods. Git carries the same files.
package config

import "embed"

// CRDs are the definitions of the local provider, one file each.
//
//go:embed crd/*.yaml
var CRDs embed.FS
