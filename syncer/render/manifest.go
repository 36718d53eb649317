package render

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// errDoubt says that the shortcut may not give what kustomize gives. The caller then
// builds with kustomize.
var errDoubt = errors.New("not plain")

// readManifest reads the documents of a YAML file as kustomize reads, writes,
// and reads them again, in one step. It knows the part of YAML that nearly all
// manifests are written in, in which that makes no difference, and returns
// errDoubt for everything else. Data must have passed all of Check but for its
// mappings, which are looked at here.
func readManifest(data []byte) ([]map[string]any, error) {
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	documents, err := split(text)
	if err != nil {
		return nil, err
	}
	var out []map[string]any
	for _, document := range documents {
		var node yaml.Node
		if err := yaml.NewDecoder(strings.NewReader(document)).Decode(&node); err != nil {
			if errors.Is(err, io.EOF) {
				continue
			}
			return nil, errDoubt
		}
		if node.Kind != yaml.DocumentNode || len(node.Content) != 1 {
			return nil, errDoubt
		}
		root := node.Content[0]
		if root.Kind == yaml.ScalarNode && root.Tag == "!!null" && root.Value == "" {
			continue
		}
		v, err := plainValue(root, false, false)
		if err != nil {
			return nil, err
		}
		object, ok := v.(map[string]any)
		if !ok {
			return nil, errDoubt
		}
		out = append(out, object)
	}
	return out, nil
}

// split cuts a stream at its separators, the way kyaml does, which is not the
// way of a YAML parser.
func split(text string) ([]string, error) {
	var documents []string
	for {
		i := strings.Index(text, "\n---")
		if i < 0 {
			return append(documents, text), nil
		}
		line, rest, ok := strings.Cut(text[i+4:], "\n")
		if line = strings.TrimSpace(line); !ok || line != "" && line[0] != '#' {
			return nil, errDoubt
		}
		documents = append(documents, text[:i]+"\n")
		text = rest
	}
}

// plainValue is what a node stands for; flow says that it is inside of brackets,
// and field that it is the value of a field.
func plainValue(n *yaml.Node, flow, field bool) (any, error) {
	if n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		return nil, errDoubt
	}
	flow = flow || n.Style&yaml.FlowStyle != 0
	if n.HeadComment != "" || n.LineComment != "" || n.FootComment != "" {
		// Comments are written back, and not everywhere can they be.
		if flow || n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 || !tame(n.HeadComment) || !tame(n.LineComment) || !tame(n.FootComment) {
			return nil, errDoubt
		}
	}
	switch n.Kind {
	case yaml.ScalarNode:
		return plainScalar(n, field && !flow)
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			v, err := plainValue(item, flow, false)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case yaml.MappingNode:
		if err := fields(n); err != nil {
			return nil, err
		}
		m := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, err := plainValue(n.Content[i], flow, false)
			if err != nil {
				return nil, err
			}
			name, ok := key.(string)
			if !ok || strings.Contains(name, "\n") || len(name) > 128 || name == "<<" {
				return nil, errDoubt
			}
			if _, twice := m[name]; twice {
				return nil, errDoubt
			}
			if m[name], err = plainValue(n.Content[i+1], flow, true); err != nil {
				return nil, err
			}
		}
		return m, nil
	}
	return nil, errDoubt
}

// plainScalar is what a scalar stands for; block says that it is the value of a
// field that stands in a line of its own.
func plainScalar(n *yaml.Node, block bool) (any, error) {
	switch n.Tag {
	case "!!str":
		switch n.Style {
		case 0, yaml.SingleQuotedStyle:
			if strings.Contains(n.Value, "\n") {
				return nil, errDoubt
			}
		case yaml.DoubleQuotedStyle, yaml.LiteralStyle:
		default:
			return nil, errDoubt
		}
		if !tame(n.Value) {
			return nil, errDoubt
		}
		return n.Value, nil
	case "!!int":
		return plainInt(n.Value)
	case "!!bool":
		switch n.Value {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
	case "!!null":
		switch n.Value {
		case "~", "null":
			return nil, nil
		case "":
			if block {
				return nil, nil
			}
		}
	}
	return nil, errDoubt
}

// plainInt reads an integer that is written as it is counted, and exact as a
// floating-point number, which substitution makes of it in between.
func plainInt(s string) (any, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(v, 10) != s || !exact(v) {
		return nil, errDoubt
	}
	return v, nil
}

func exact(v int64) bool { return v < 1<<53 && v > -1<<53 }

// tame tells whether any style of YAML can write a string and read it again. It
// says no to some that could.
func tame(s string) bool {
	if s == "" {
		return true
	}
	lines := false
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '\n':
			// No empty or indented line before the first, and no spaces or empty
			// lines at the end.
			if i == 0 || s[i-1] == ' ' || s[i-1] == '\t' || i == len(s)-1 && s[i-1] == '\n' {
				return false
			}
			lines = true
			i++
		case c >= ' ' && c < 0x7f, c == '\t':
			i++
		case c < 0x80:
			return false
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			if !ordinary(r) {
				return false
			}
			i += size
		}
	}
	if lines {
		return s[0] != ' ' && s[0] != '\t'
	}
	return s[0] != '\t' && s[len(s)-1] != '\t'
}

// ordinary tells whether every YAML library writes a character as itself.
func ordinary(r rune) bool {
	return r >= 0xa0 && r <= 0xd7ff && r != 0x2028 && r != 0x2029 || r >= 0xe000 && r < 0xfeff || r > 0xfeff && r < 0xfffd
}

// tameTree tells whether all of a decoded object is of the kind that
// readManifest knows.
func tameTree(v any) bool {
	switch v := v.(type) {
	case nil, bool:
		return true
	case string:
		return tame(v)
	case int64:
		return exact(v)
	case []any:
		for _, item := range v {
			if !tameTree(item) {
				return false
			}
		}
		return true
	case map[string]any:
		for k, item := range v {
			if !tame(k) || strings.Contains(k, "\n") || len(k) > 128 || !tameTree(item) {
				return false
			}
		}
		return true
	}
	return false
}
