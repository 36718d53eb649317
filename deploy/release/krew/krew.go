// Package krew writes the manifest by which krew, the package manager of kubectl's plugins,
// installs the plugin. Krew unpacks archives that have files and directories only.
package krew

import (
	"encoding/hex"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// Archive of the plugin for one platform.
type Archive struct {
	System       string
	Architecture string
	URL          string
	// SHA256 of the archive, in hexadecimal.
	SHA256 string
	// Program is the name of the plugin's program in the archive.
	Program string
}

// Plugin is what krew is told.
type Plugin struct {
	Name        string
	Version     string
	Homepage    string
	Summary     string
	Description string
	Archives    []Archive
}

// The manifest's form, krew.googlecontainertools.github.com/v1alpha2. Krew's own types
// would bring a client-go of another numbering, which no other module can be used with.
type manifest struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       spec              `json:"spec"`
}

type spec struct {
	Version          string     `json:"version"`
	Homepage         string     `json:"homepage"`
	ShortDescription string     `json:"shortDescription"`
	Description      string     `json:"description"`
	Platforms        []platform `json:"platforms"`
}

type platform struct {
	Selector selector `json:"selector"`
	URI      string   `json:"uri"`
	SHA256   string   `json:"sha256"`
	Bin      string   `json:"bin"`
}

type selector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// Manifest of the plugin, in YAML.
func (p Plugin) Manifest() ([]byte, error) {
	if p.Summary == "" || strings.ContainsAny(p.Summary, "\r\n") || len(p.Archives) == 0 {
		return nil, fmt.Errorf("cannot describe plugin %s: it needs a summary of one line, and an archive", p.Name)
	}
	m := manifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: map[string]string{"name": p.Name},
		Spec: spec{Version: p.Version, Homepage: p.Homepage, ShortDescription: p.Summary, Description: p.Description},
	}
	for _, a := range p.Archives {
		if sum, err := hex.DecodeString(a.SHA256); err != nil || len(sum) != 32 {
			return nil, fmt.Errorf("cannot describe plugin %s: %q is no SHA-256 of %s", p.Name, a.SHA256, a.URL)
		}
		m.Spec.Platforms = append(m.Spec.Platforms, platform{
			Selector: selector{map[string]string{"os": a.System, "arch": a.Architecture}}, URI: a.URL, SHA256: a.SHA256, Bin: a.Program,
		})
	}
	text, err := yaml.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("cannot write the manifest of plugin %s: %w", p.Name, err)
	}
	return text, nil
}
