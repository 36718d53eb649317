package artifact

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// mostNodes bounds the nodes of a file that is merged, or merged into. It is parsed in the agent's own process, where a
// node takes a hundred times its text. The values of large charts have some ten thousand.
const mostNodes = 250_000

// merging is held while two files are read and merged: the process has one memory, whichever generators merge.
var merging sync.Mutex

// mergeInto merges a file into the one at a path. It is false if nothing is there.
func mergeInto(c *source.Composition, effort *source.Effort, to string, p source.Piece) (bool, error) {
	merging.Lock()
	defer merging.Unlock()
	there, ok, err := c.Read(to)
	if err != nil || !ok {
		return false, err
	}
	with, err := p.Read()
	if err != nil {
		return false, err
	}
	// Parsing takes a microsecond for a few bytes.
	if err := effort.Spend(1 + (len(there)+len(with))>>2); err != nil {
		return false, err
	}
	merged, err := merge(there, with)
	if err != nil {
		return false, err
	}
	return true, c.Write(to, merged)
}

// merge puts the values of one YAML file over those of another, as Helm does with several
// files of values: mappings are merged, and everything else is replaced.
func merge(there, with []byte) ([]byte, error) {
	under, err := values(there)
	if err != nil {
		return nil, buildf("cannot merge into the file that is there: %w", err)
	}
	over, err := values(with)
	if err != nil {
		return nil, buildf("cannot merge: %w", err)
	}
	merged, err := yaml.Marshal(mergeMaps(under, over))
	if err != nil {
		return nil, buildf("cannot write what was merged: %w", err)
	}
	return merged, nil
}

// values reads a file that is one mapping, or empty.
func values(data []byte) (map[string]any, error) {
	if err := render.CheckWithin(data, mostNodes); err != nil {
		return nil, err
	}
	decoder := yamlv3.NewDecoder(bytes.NewReader(data))
	var doc, more yamlv3.Node
	if err := decoder.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New("it is not valid YAML")
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has several documents, of which one file of values is not made")
	}
	read := map[string]any{}
	// Numbers stay as they are written.
	err := yaml.Unmarshal(data, &read, func(d *json.Decoder) *json.Decoder { d.UseNumber(); return d })
	if err != nil {
		return nil, errors.New("it is not a mapping in YAML")
	}
	if read == nil { // the document is null
		read = map[string]any{}
	}
	return read, nil
}

// mergeMaps returns the first with the second over it. Neither is used afterwards.
func mergeMaps(under, over map[string]any) map[string]any {
	for key, value := range over {
		above, ok1 := value.(map[string]any)
		below, ok2 := under[key].(map[string]any)
		if ok1 && ok2 {
			value = mergeMaps(below, above)
		}
		under[key] = value
	}
	return under
}
