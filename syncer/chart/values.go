package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/fluxcd/pkg/runtime/transform"
	"helm.sh/helm/v4/pkg/chart/common"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	"sigs.k8s.io/yaml"
)

// wanted are the values files that make a difference: the default one alone does
// not.
func wanted(files []string) []string {
	if len(files) == 1 && path.Clean(files[0]) == valuesFile {
		return nil
	}
	return files
}

// mergeValues merges values files into one, the later over the earlier, and returns
// which ones it found. The error of read for a file that is not there is
// fs.ErrNotExist.
func mergeValues(files []string, ignoreMissing bool, read func(name string) (map[string]any, error)) (merged map[string]any, found []string, err error) {
	merged, found = map[string]any{}, []string{}
	for _, name := range files {
		values, err := read(name)
		if errors.Is(err, fs.ErrNotExist) {
			if ignoreMissing {
				continue
			}
			return nil, nil, failf(ReasonValues, "no values file found at path '%s'", name)
		}
		if err != nil {
			return nil, nil, wrap(ReasonValues, fmt.Sprintf("cannot read values file '%s'", name), err)
		}
		merged = transform.MergeMaps(merged, values)
		found = append(found, name)
	}
	return merged, found, nil
}

func (b *budget) values(data []byte) (map[string]any, error) {
	if err := b.parse(data); err != nil {
		return nil, err
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(data, &values); err != nil {
		return nil, err
	}
	return values, nil
}

// setValues makes these the default values of a chart, which must have a file for
// them.
func setValues(c *helmchart.Chart, values map[string]any) error {
	var data bytes.Buffer
	if len(values) > 0 {
		if err := common.Values(values).Encode(&data); err != nil {
			return failf(ReasonValues, "cannot write values: %w", err)
		}
	}
	for _, f := range c.Raw {
		if f.Name == valuesFile {
			f.Data, c.Values = data.Bytes(), values
			return nil
		}
	}
	return failf(ReasonValues, "failed to locate values file: %s", valuesFile)
}
