// Command components writes the component manifests of Cluster API and its
// providers, as their projects publish them with each release, in the layout of a
// local repository of clusterctl: <provider>/<version>/<components>.yaml.
//
// published are those of Cluster API, AWS and Azure, built from what is in their
// modules; Azure's without the service operator, which is no part of its module.
// nodes are cert-manager and Cluster API's core, for the tests on real nodes.
// local are those of the example fleet: the definitions of Cluster API, and
// Deployments of the programs of this machine.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

func main() {
	var d directories
	flag.StringVar(&d.out, "out", "", "directory that is written")
	flag.StringVar(&d.capi, "cluster-api", "", "module of Cluster API")
	flag.StringVar(&d.aws, "aws", "", "module of the provider for AWS; empty: only what is local")
	flag.StringVar(&d.azure, "azure", "", "module of the provider for Azure")
	flag.StringVar(&d.certs, "cert-manager", "", "module of cert-manager; with it, nodes is written and nothing else")
	flag.StringVar(&d.local, "local", "", "manifests of the local provider")
	flag.Parse()
	if err := d.write(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// certManager is the name of what is no provider, and comes before all of them.
const certManager = "cert-manager"

type directories struct{ out, capi, aws, azure, certs, local string }

// set is one file of components with the metadata beside it.
type set struct {
	provider, file string
	// module has the version in its name, and metadata.yaml if it is a provider of Cluster API.
	module string
	make   func() ([]byte, error)
}

func (d directories) write() error {
	overlay := func(dir ...string) func() ([]byte, error) {
		return func() ([]byte, error) { return build(filepath.Join(dir...)) }
	}
	core := set{"cluster-api", "core-components.yaml", d.capi, overlay(d.capi, "config", "default")}
	if d.certs != "" {
		return d.tree("nodes", []set{{certManager, "cert-manager.yaml", d.certs, d.certManager}, core})
	}
	local := []set{
		{"cluster-api", "core-components.yaml", d.capi, d.localCore},
		{"infrastructure-local", "infrastructure-components.yaml", d.local, d.localProvider},
	}
	if err := d.tree("local", local); err != nil {
		return err
	}
	if d.aws == "" {
		return nil
	}
	return d.tree("published", []set{
		core,
		{"bootstrap-kubeadm", "bootstrap-components.yaml", d.capi, overlay(d.capi, "bootstrap", "kubeadm", "config", "default")},
		{"control-plane-kubeadm", "control-plane-components.yaml", d.capi, overlay(d.capi, "controlplane", "kubeadm", "config", "default")},
		{"infrastructure-aws", "infrastructure-components.yaml", d.aws, overlay(d.aws, "config", "default")},
		{"infrastructure-azure", "infrastructure-components.yaml", d.azure, overlay(d.azure, "config", "capz")},
	})
}

func (d directories) tree(name string, sets []set) error {
	for _, s := range sets {
		data, err := s.make()
		if err != nil {
			return fmt.Errorf("cannot make components of %s: %w", s.provider, err)
		}
		files := map[string][]byte{s.file: data}
		if s.provider != certManager {
			if files["metadata.yaml"], err = os.ReadFile(filepath.Join(s.module, "metadata.yaml")); err != nil {
				return fmt.Errorf("cannot read metadata of %s: %w", s.provider, err)
			}
		}
		dir := filepath.Join(d.out, name, s.provider, version(s.module))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("cannot make directory: %w", err)
		}
		for file, content := range files {
			if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
				return fmt.Errorf("cannot write components of %s: %w", s.provider, err)
			}
		}
	}
	return nil
}

// version of a module, by the name of its directory in the module cache; v0.1.0 of
// what is in this repository.
func version(module string) string {
	if base := filepath.Base(module); strings.Contains(base, "@") {
		return base[strings.LastIndex(base, "@")+1:]
	}
	return "v0.1.0"
}

// build is what the projects' own release does: kustomize, nothing else.
func build(dir string) ([]byte, error) {
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = kustypes.LoadRestrictionsNone
	built, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("cannot build %s: %w", dir, err)
	}
	return built.AsYaml()
}

// localCore has the definitions of Cluster API, without a webhook: the program
// adds one with the address on which it listens.
func (d directories) localCore() ([]byte, error) {
	definitions, err := filepath.Glob(filepath.Join(d.capi, "config", "crd", "bases", "*.yaml"))
	if err != nil || len(definitions) == 0 {
		return nil, errors.Join(err, fmt.Errorf("cannot find definitions in %s: %w", d.capi, os.ErrNotExist))
	}
	out, err := joined(definitions, map[string]string{"cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2"})
	if err != nil {
		return nil, err
	}
	program, err := joined([]string{filepath.Join(d.local, "capi", "capi.yaml")}, nil)
	return append(out, program...), err
}

func (d directories) localProvider() ([]byte, error) {
	definitions, err := filepath.Glob(filepath.Join(d.local, "crd", "*.yaml"))
	if err != nil || len(definitions) == 0 {
		return nil, errors.Join(err, fmt.Errorf("cannot find definitions in %s: %w", d.local, os.ErrNotExist))
	}
	return joined(append(definitions, filepath.Join(d.local, "provider", "provider.yaml")), nil)
}

// joined makes one stream of files, with labels on the objects.
func joined(files []string, labels map[string]string) ([]byte, error) {
	var out bytes.Buffer
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read manifest: %w", err)
		}
		if len(labels) > 0 {
			node, err := yaml.Parse(string(data))
			if err != nil {
				return nil, fmt.Errorf("cannot parse %s: %w", file, err)
			}
			for name, value := range labels {
				if err := node.PipeE(yaml.SetLabel(name, value)); err != nil {
					return nil, fmt.Errorf("cannot label %s: %w", file, err)
				}
			}
			text, err := node.String()
			if err != nil {
				return nil, fmt.Errorf("cannot write %s: %w", file, err)
			}
			data = []byte(text)
		}
		out.WriteString("---\n")
		out.Write(bytes.TrimPrefix(data, []byte("---\n")))
	}
	return out.Bytes(), nil
}
