package providers

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// ErrContract is wrapped by the error of a provider that core does not work with.
var ErrContract = errors.New("contract of Cluster API")

// metadataFile says which contract each series of releases implements.
const metadataFile = "metadata.yaml"

// contractOf reads the contract that a set implements in its version.
func contractOf(files Files, root string, w Wanted) (string, error) {
	name := path.Join(w.dir(root), metadataFile)
	data, err := files.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", lasting(fmt.Errorf("%w: the source has no file %q", render.ErrPathNotFound, name))
	}
	if err != nil {
		return "", fmt.Errorf("cannot read %s: %w", name, err)
	}
	if err := render.Check(data); err != nil {
		return "", lasting(fmt.Errorf("cannot read %s: %w", name, err))
	}
	var metadata clusterctlv1.Metadata
	if err := yaml.Unmarshal(data, &metadata); err != nil {
		return "", lasting(fmt.Errorf("cannot parse %s: %w", name, err))
	}
	v, err := version.ParseSemantic(w.Version)
	if err != nil {
		return "", lasting(fmt.Errorf("cannot parse version %q of %s: %w", w.Version, w.Label, err))
	}
	series := metadata.GetReleaseSeriesForVersion(v)
	if series == nil || series.Contract == "" {
		return "", lasting(fmt.Errorf("%w: %s does not say which one %d.%d implements; take the file of the release itself", ErrContract, name, v.Major(), v.Minor()))
	}
	return series.Contract, nil
}

// compatible are the contracts that core works with: its own, and v1beta1 if its own is
// v1beta2, until Cluster API ends that.
func compatible(core string) []string {
	if core == "v1beta2" {
		return []string{"v1beta1", "v1beta2"}
	}
	return []string{core}
}

// agree refuses providers whose contract core does not work with.
func agree(files Files, root string, wanted []Wanted) error {
	core := ""
	for _, w := range wanted {
		if w.Type == "" {
			continue
		}
		contract, err := contractOf(files, root, w)
		if err != nil {
			return err
		}
		if w.Type == clusterctlv1.CoreProviderType {
			core = contract // comes before all others
			continue
		}
		if works := compatible(core); !slices.Contains(works, contract) {
			return lasting(fmt.Errorf("%w: %s implements %s, core in the version named works with %s; name versions that go together", ErrContract, w, contract, strings.Join(works, " and ")))
		}
	}
	return nil
}
