package helmrelease

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/chartutil"
	"helm.sh/helm/v4/pkg/strvals"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// mostNodes bounds the values that a HelmRelease takes from ConfigMaps and Secrets. They are made in this
// process, where a node takes a hundred times its shortest text, and copied more than once.
const mostNodes = 600_000

// mostText bounds the text of these values: each reference to it is parsed, with nobody to end that.
const mostText = 32 << 20

// mostReferences bounds the references: with each of them all values so far are merged.
const mostReferences = 1000

var errTooMuchText = fmt.Errorf("with it the texts of valuesFrom have more than %d bytes, each counted as often as it is named", mostText)

var errTooManyNodes = fmt.Errorf("with it the values of valuesFrom may have more than %d nodes", mostNodes)

// secretReader is a client that asks the API server, and remembers what it read
// of Secrets: a message that quotes it must not show it. It refuses what would make too many
// values. It is for one reconciliation and not safe for concurrent use.
type secretReader struct {
	client.Client
	reader client.Reader
	// refs are what is read for.
	refs   []meta.ValuesReference
	nodes  int
	text   int
	memory *release.Share
	secret []string
}

func (s *secretReader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if err := s.reader.Get(ctx, key, obj, opts...); err != nil {
		return err
	}
	kind, texts := "ConfigMap", map[string][]byte{}
	switch obj := obj.(type) {
	case *corev1.ConfigMap:
		for name, text := range obj.Data {
			texts[name] = []byte(text)
		}
	case *corev1.Secret:
		kind, texts = "Secret", obj.Data
		for _, text := range texts {
			s.secret = append(s.secret, string(text))
		}
	}
	seen := map[string]bool{}
	for _, ref := range s.refs {
		text, ok := texts[ref.GetValuesKey()]
		if !ok || ref.Kind != kind || ref.Name != key.Name {
			continue
		}
		if s.text += len(text); s.text > mostText {
			return chartutil.NewErrValuesReference(key, ref, errTooMuchText, nil)
		}
		n, err := nodesOf(ref, text)
		if err != nil {
			return chartutil.NewErrValuesReference(key, ref, chartutil.ErrValuesDataRead, err)
		}
		if s.nodes += n; s.nodes > mostNodes {
			return chartutil.NewErrValuesReference(key, ref, errTooManyNodes, nil)
		}
		if err := s.memory.Take(release.Bytes(s.text, s.nodes)); err != nil {
			return fmt.Errorf("cannot read %s %s: %w", kind, key, err)
		}
		if kind == "Secret" && !seen[ref.GetValuesKey()] {
			seen[ref.GetValuesKey()] = true
			s.hide(text)
		}
	}
	return nil
}

// hide remembers the values in a Secret one by one.
func (s *secretReader) hide(text []byte) {
	// Numbers as they are written: an API server quotes them so.
	var values map[string]any
	if yaml.Unmarshal(text, &values, func(d *json.Decoder) *json.Decoder { d.UseNumber(); return d }) == nil {
		s.secret = append(s.secret, mask.Scalars(values)...)
	}
}

// nodesOf is how many values a text makes at most. A Secret is read as YAML in any case, to hide
// what is in it.
func nodesOf(ref meta.ValuesReference, text []byte) (int, error) {
	n := 0
	switch {
	case ref.Literal && ref.TargetPath != "":
		n = assigned(ref.TargetPath)
	case ref.TargetPath != "":
		n = assigned(ref.TargetPath + "=" + string(text))
	}
	if ref.TargetPath != "" && ref.Kind != "Secret" {
		return n, nil
	}
	n += render.Nodes(text)
	if n > mostNodes || bytes.IndexByte(text, '&') < 0 || bytes.IndexByte(text, '*') < 0 {
		return n, nil
	}
	added, err := render.Added(text)
	return n + added, err
}

// assigned is how many values assignments in the syntax of helm's --set make at most. An index makes
// a list as long as that, and each name before a point a map, which is as large as three of others.
// What is in a value may count as a name, and no name as a value.
func assigned(text string) int {
	n, name := 1, true
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == ',', c == '}':
			n, name = n+1, true
		case c == '=':
			name = false
		case c == '.' && name:
			n += 3
		case c == '[' && name:
			end := i + 1
			for end < len(text) && strings.IndexByte(`0123456789+\`, text[end]) >= 0 {
				end++
			}
			if index, err := strconv.Atoi(strings.ReplaceAll(text[i+1:end], `\`, "")); err == nil && index <= strvals.MaxIndex {
				n += index + 1
			}
		}
	}
	return n
}
