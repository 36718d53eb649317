package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
)

// Kinds of values between the program and its workers. JSON would not do: templates
// see the difference between an integer and a number that is one.
const (
	wireNil   = 'n'
	wireTrue  = 't'
	wireFalse = 'f'
	wireInt   = 'i'
	wireInt64 = 'I'
	wireFloat = 'd'
	wireText  = 's'
	wireJSON  = 'j'
	wireMap   = 'm'
	wireList  = 'l'
)

// encode appends a value that values of charts may have.
func encode(out []byte, v any) ([]byte, error) {
	text := func(kind byte, s string) []byte {
		return append(binary.AppendUvarint(append(out, kind), uint64(len(s))), s...)
	}
	switch v := v.(type) {
	case nil:
		return append(out, wireNil), nil
	case bool:
		if v {
			return append(out, wireTrue), nil
		}
		return append(out, wireFalse), nil
	case int:
		return binary.AppendVarint(append(out, wireInt), int64(v)), nil
	case int64:
		return binary.AppendVarint(append(out, wireInt64), v), nil
	case float64:
		return binary.BigEndian.AppendUint64(append(out, wireFloat), math.Float64bits(v)), nil
	case string:
		return text(wireText, v), nil
	case []byte:
		return text(wireText, string(v)), nil
	case json.Number:
		return text(wireJSON, v.String()), nil
	case common.Values:
		return encode(out, map[string]any(v))
	case map[string]any:
		out = binary.AppendUvarint(append(out, wireMap), uint64(len(v)))
		for k, item := range v {
			var err error
			out = append(binary.AppendUvarint(out, uint64(len(k))), k...)
			if out, err = encode(out, item); err != nil {
				return nil, err
			}
		}
		return out, nil
	case []any:
		out = binary.AppendUvarint(append(out, wireList), uint64(len(v)))
		for _, item := range v {
			var err error
			if out, err = encode(out, item); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, fmt.Errorf("cannot give a worker a value of type %T", v)
}

var errWire = errors.New("cannot read a message of the worker")

// decode reads one value, and returns what is left.
func decode(in []byte) (v any, rest []byte, err error) {
	if len(in) == 0 {
		return nil, nil, errWire
	}
	kind, in := in[0], in[1:]
	switch kind {
	case wireNil:
		return nil, in, nil
	case wireTrue, wireFalse:
		return kind == wireTrue, in, nil
	case wireInt, wireInt64:
		n, size := binary.Varint(in)
		if size <= 0 {
			return nil, nil, errWire
		}
		if kind == wireInt {
			return int(n), in[size:], nil
		}
		return n, in[size:], nil
	case wireFloat:
		if len(in) < 8 {
			return nil, nil, errWire
		}
		return math.Float64frombits(binary.BigEndian.Uint64(in)), in[8:], nil
	case wireText, wireJSON:
		s, rest, err := decodeText(in)
		if kind == wireJSON {
			return json.Number(s), rest, err
		}
		return s, rest, err
	case wireMap, wireList:
		return decodeMany(kind, in)
	}
	return nil, nil, errWire
}

func decodeText(in []byte) (string, []byte, error) {
	length, size := binary.Uvarint(in)
	if size <= 0 || length > uint64(len(in)-size) {
		return "", nil, errWire
	}
	in = in[size:]
	return string(in[:length]), in[length:], nil
}

func decodeMany(kind byte, in []byte) (any, []byte, error) {
	count, size := binary.Uvarint(in)
	if size <= 0 || count > uint64(len(in)) {
		return nil, nil, errWire
	}
	in = in[size:]
	m, list := map[string]any{}, []any{}
	for range count {
		var key string
		var item any
		var err error
		if kind == wireMap {
			if key, in, err = decodeText(in); err != nil {
				return nil, nil, err
			}
		}
		if item, in, err = decode(in); err != nil {
			return nil, nil, err
		}
		if kind == wireMap {
			m[key] = item
		} else {
			list = append(list, item)
		}
	}
	if kind == wireMap {
		return m, in, nil
	}
	return list, in, nil
}

// decodeMap reads a message that is one map.
func decodeMap(in []byte) (map[string]any, error) {
	v, rest, err := decode(in)
	m, ok := v.(map[string]any)
	if err != nil || !ok || len(rest) > 0 {
		return nil, errWire
	}
	return m, nil
}

// wireChart is what rendering needs of a chart. original is the text of templates.
func wireChart(c *chart.Chart, original func(*common.File) []byte) (map[string]any, error) {
	metadata, err := json.Marshal(c.Metadata)
	if err != nil {
		return nil, err
	}
	templates, files, subs := []any{}, []any{}, []any{}
	for _, t := range c.Templates {
		if text := original(t); text != nil {
			templates = append(templates, t.Name, text)
		}
	}
	for _, f := range c.Files {
		files = append(files, f.Name, f.Data)
	}
	for _, d := range c.Dependencies() {
		sub, err := wireChart(d, original)
		if err != nil {
			return nil, err
		}
		subs = append(subs, sub)
	}
	return map[string]any{"metadata": string(metadata), "templates": templates, "files": files, "charts": subs}, nil
}

func chartFromWire(v any) (*chart.Chart, error) {
	m, _ := v.(map[string]any)
	metadata, ok := m["metadata"].(string)
	if !ok {
		return nil, errWire
	}
	c := &chart.Chart{}
	if err := json.Unmarshal([]byte(metadata), &c.Metadata); err != nil {
		return nil, err
	}
	c.Templates, c.Files = filesFromWire(m["templates"]), filesFromWire(m["files"])
	subs, _ := m["charts"].([]any)
	for _, s := range subs {
		sub, err := chartFromWire(s)
		if err != nil {
			return nil, err
		}
		c.AddDependency(sub)
	}
	return c, nil
}

func filesFromWire(v any) []*common.File {
	list, _ := v.([]any)
	var files []*common.File
	for i := 0; i+1 < len(list); i += 2 {
		name, _ := list[i].(string)
		data, _ := list[i+1].(string)
		files = append(files, &common.File{Name: name, Data: []byte(data)})
	}
	return files
}

func wireCapabilities(c *common.Capabilities) map[string]any {
	apis := make([]any, 0, len(c.APIVersions))
	for _, v := range c.APIVersions {
		apis = append(apis, v)
	}
	return map[string]any{
		"version": c.KubeVersion.Version, "normalized": c.KubeVersion.String(), "major": c.KubeVersion.Major, "minor": c.KubeVersion.Minor, "apis": apis,
	}
}

// capabilitiesFromWire are of this program's version of Helm.
func capabilitiesFromWire(v any) *common.Capabilities {
	m, _ := v.(map[string]any)
	text := func(field string) string { s, _ := m[field].(string); return s }
	version := common.KubeVersion{Version: text("version")}
	if text("normalized") != version.Version {
		// It was parsed, which alone keeps both forms.
		if parsed, err := common.ParseKubeVersion(version.Version); err == nil {
			version = *parsed
		}
	}
	version.Major, version.Minor = text("major"), text("minor")
	c := &common.Capabilities{KubeVersion: version, HelmVersion: common.DefaultCapabilities.HelmVersion}
	apis, _ := m["apis"].([]any)
	for _, a := range apis {
		s, _ := a.(string)
		c.APIVersions = append(c.APIVersions, s)
	}
	return c
}
