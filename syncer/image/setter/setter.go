package setter

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// Token is in each marker; a file without it has none.
const Token = "$imagepolicy"

const (
	// mostMarker bounds the comment of a marker.
	mostMarker = 1 << 10
	// mostNodes bounds the nodes of a file. It is parsed in the agent's own process, where each takes some 200 bytes, and
	// is there twice at the end. Definitions have some 170 000 in 4 MiB.
	mostNodes = 250_000
)

// Image is what a policy chose. Digest may be empty.
type Image struct{ Name, Tag, Digest string }

// Policies are chosen images by namespace:name of the policy.
type Policies map[string]Image

// Object identifies an object of a file. It may have no name, as a kustomization has none.
type Object struct{ APIVersion, Kind, Name, Namespace string }

// Change of one value. Setter is what the marker names.
type Change struct {
	Object                     Object
	OldValue, NewValue, Setter string
}

// edit is bytes of the file and what takes their place.
type edit struct {
	start, end int
	text       string
	// node is the index of the scalar among all nodes, value what it has after the edit.
	node  int
	value string
}

// Set returns the file with the images of the policies, and what that changed, in the order of the file.
// Where nothing changes, it returns the file itself.
func Set(file []byte, policies Policies) (_ []byte, _ []Change, err error) {
	// The library has panicked on YAML that nobody would write.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot read the YAML: %v", p)
		}
	}()
	if !bytes.Contains(file, []byte(Token)) {
		return file, nil, nil
	}
	documents, err := parse(file)
	if err != nil {
		return nil, nil, err
	}
	s := &search{file: file, starts: lineStarts(file), policies: policies}
	for _, document := range documents {
		if err := s.document(document); err != nil {
			return nil, nil, err
		}
	}
	if len(s.edits) == 0 {
		return file, nil, nil
	}
	out, err := s.apply()
	if err != nil {
		return nil, nil, err
	}
	if err := s.check(documents, out); err != nil {
		return nil, nil, err
	}
	return out, s.changes, nil
}

// parse reads all documents of a file that nobody vouches for.
func parse(file []byte) ([]*yaml.Node, error) {
	if !utf8.Valid(file) {
		return nil, errors.New("cannot read the YAML: it is not UTF-8")
	}
	if n := render.Nodes(file); n > mostNodes {
		return nil, fmt.Errorf("%w: it may have %d nodes, and a file with markers has %d at most: split it", render.ErrHostile, n, mostNodes)
	}
	if err := render.Check(file); err != nil {
		return nil, err
	}
	var documents []*yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(file))
	for {
		document := &yaml.Node{}
		err := decoder.Decode(document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the YAML: %w", err)
		}
		documents = append(documents, document)
	}
}

// lineStarts are the offsets of lines, as the parser counts them.
func lineStarts(file []byte) []int {
	at := 0
	if bytes.HasPrefix(file, []byte("\ufeff")) {
		at = 3 // the parser does not count the mark
	}
	starts := []int{at}
	for at < len(file) {
		r, size := utf8.DecodeRune(file[at:])
		at += size
		switch r {
		case '\r':
			if at < len(file) && file[at] == '\n' {
				at++
			}
		case '\n', '\u0085', '\u2028', '\u2029':
		default:
			continue
		}
		starts = append(starts, at)
	}
	return starts
}

// search finds the marked scalars of a file.
type search struct {
	file     []byte
	starts   []int
	policies Policies

	// nodes counts those that were seen.
	nodes   int
	object  Object
	edits   []edit
	changes []Change
}

func (s *search) document(document *yaml.Node) error {
	s.object = Object{}
	if len(document.Content) > 0 {
		s.object = identify(document.Content[0])
	}
	return s.walk(document, false)
}

// identify reads who an object is.
func identify(root *yaml.Node) Object {
	text := func(in *yaml.Node, name string) string {
		if n := field(in, name); n != nil && n.Kind == yaml.ScalarNode {
			return n.Value
		}
		return ""
	}
	metadata := field(root, "metadata")
	return Object{APIVersion: text(root, "apiVersion"), Kind: text(root, "kind"), Name: text(metadata, "name"), Namespace: text(metadata, "namespace")}
}

func field(in *yaml.Node, name string) *yaml.Node {
	if in == nil || in.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(in.Content); i += 2 {
		if in.Content[i].Value == name {
			return in.Content[i+1]
		}
	}
	return nil
}

// walk looks at a node and those below it, in the order that check has as well. A key is never changed.
func (s *search) walk(n *yaml.Node, key bool) error {
	index := s.nodes
	s.nodes++
	if n.Kind == yaml.ScalarNode || n.Kind == yaml.AliasNode {
		if key {
			return nil
		}
		return s.scalar(n, index)
	}
	for i, child := range n.Content {
		if err := s.walk(child, n.Kind == yaml.MappingNode && i%2 == 0); err != nil {
			return err
		}
	}
	return nil
}

// scalar changes a value that a marker behind it names.
func (s *search) scalar(n *yaml.Node, index int) error {
	line, ok := s.line(n.Line)
	if !ok || !bytes.Contains(line, []byte(Token)) {
		return nil
	}
	at, end, span := s.span(n)
	if !span {
		// It may be of several lines, and then another value is on the line of the marker.
		return s.blocked(n, line)
	}
	setter, ok := marker(s.file[end : s.starts[n.Line-1]+len(line)])
	if !ok {
		return nil
	}
	value, ok := s.wanted(setter)
	if !ok || value == n.Value {
		return nil
	}
	text, err := written(s.file[at:end], value)
	if err != nil {
		return fmt.Errorf("cannot set %s in line %d: %w", setter, n.Line, err)
	}
	s.edits = append(s.edits, edit{start: at, end: end, text: text, node: index, value: value})
	s.changes = append(s.changes, Change{Object: s.object, OldValue: n.Value, NewValue: value, Setter: setter})
	return nil
}

// blocked is an error where the marker of a policy that is given follows what begins a value of
// several lines, or an alias: neither can be changed in place.
func (s *search) blocked(n *yaml.Node, line []byte) error {
	for i, c := range line {
		if c != '#' || i == 0 || line[i-1] != ' ' && line[i-1] != '\t' {
			continue
		}
		setter, ok := marker(line[i-1:])
		if !ok {
			continue
		}
		if _, ok := s.wanted(setter); ok {
			return fmt.Errorf("cannot set %s in line %d: a marker stands behind a value of one line, plain or in quotes", setter, n.Line)
		}
	}
	return nil
}

// line returns the text of a line of the parser.
func (s *search) line(number int) ([]byte, bool) {
	if number < 1 || number > len(s.starts) {
		return nil, false
	}
	line := s.file[s.starts[number-1]:]
	if number < len(s.starts) {
		line = s.file[s.starts[number-1]:s.starts[number]]
	}
	return bytes.TrimRight(line, "\r\n\u0085\u2028\u2029"), true
}

// properties of a node: a tag and an anchor, which stay.
var properties = regexp.MustCompile(`^(?:[!&][^\s]*[ \t]+)*`)

// span returns where a scalar is in the file. It is false for one that is not on one line.
func (s *search) span(n *yaml.Node) (start, end int, ok bool) {
	if n.Kind != yaml.ScalarNode {
		return 0, 0, false
	}
	line, _ := s.line(n.Line)
	at := 0
	for range n.Column - 1 { // the parser counts characters
		_, size := utf8.DecodeRune(line[at:])
		if size == 0 {
			return 0, 0, false
		}
		at += size
	}
	if n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		at += len(properties.Find(line[at:]))
	}
	length, ok := lengthOf(line[at:], n)
	start = s.starts[n.Line-1] + at
	return start, start + length, ok
}

// lengthOf measures a scalar at the beginning of a text, and makes sure that it is the one of the node.
func lengthOf(text []byte, n *yaml.Node) (int, bool) {
	switch {
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 || len(text) == 0:
		return 0, false
	case n.Style&yaml.SingleQuotedStyle != 0:
		for i := 1; text[0] == '\'' && i < len(text); i++ {
			if text[i] != '\'' {
				continue
			}
			if i+1 < len(text) && text[i+1] == '\'' {
				i++
				continue
			}
			return i + 1, strings.ReplaceAll(string(text[1:i]), "''", "'") == n.Value
		}
		return 0, false
	case n.Style&yaml.DoubleQuotedStyle != 0:
		for i := 1; text[0] == '"' && i < len(text); i++ {
			switch text[i] {
			case '\\':
				i++
			case '"':
				var value string
				err := yaml.Unmarshal(text[:i+1], &value)
				return i + 1, err == nil && value == n.Value
			}
		}
		return 0, false
	}
	// What is plain is written as it is. What follows is not of it.
	if n.Value == "" || !bytes.HasPrefix(text, []byte(n.Value)) {
		return 0, false
	}
	rest := text[len(n.Value):]
	return len(n.Value), len(rest) == 0 || strings.ContainsRune(" \t,]}", rune(rest[0]))
}

// behind is a comment behind a value; a comma may be between them in a list of one line each.
var behind = regexp.MustCompile(`^,?[ \t]+#[ \t]*(\{.*\})[ \t]*$`)

// marker reads which policy a text behind a value names.
func marker(text []byte) (string, bool) {
	if len(text) > mostMarker {
		return "", false
	}
	found := behind.FindSubmatch(text)
	if found == nil {
		return "", false
	}
	var fields map[string]any
	if err := json.Unmarshal(found[1], &fields); err != nil {
		return "", false
	}
	setter, ok := fields[Token].(string)
	return setter, ok
}

// wanted is the value that a setter stands for, false if that is not known.
func (s *search) wanted(setter string) (string, bool) {
	parts := strings.Split(setter, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return "", false
	}
	image, ok := s.policies[parts[0]+":"+parts[1]]
	if !ok || image.Name == "" || image.Tag == "" {
		return "", false
	}
	if len(parts) == 2 {
		value := image.Name + ":" + image.Tag
		if image.Digest != "" {
			value += "@" + image.Digest
		}
		return value, true
	}
	switch parts[2] {
	case "name":
		return image.Name, true
	case "tag":
		return image.Tag, true
	case "digest":
		return image.Digest, image.Digest != ""
	}
	return "", false
}

// allowed are the characters of names, tags and digests. A registry is not trusted with others.
var allowed = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@-]*$`)

// ambiguous are plain texts that some readers of YAML take for something else than a string.
var ambiguous = regexp.MustCompile(`(?i)^(?:y|n|yes|no|on|off|true|false|null|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?|[0-9_]+(?:\.[0-9_]*)?(?:e[+-]?[0-9]+)?|0[xob][0-9a-f_]+|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*)$`)

// written is how a value stands in the place of another: in the same quotes, or in double ones where it would
// not be a string without.
func written(old []byte, value string) (string, error) {
	if !allowed.MatchString(value) {
		return "", fmt.Errorf("%q is not the name, tag or digest of an image", value)
	}
	switch {
	case old[0] == '\'', old[0] == '"':
		return string(old[:1]) + value + string(old[:1]), nil
	case ambiguous.MatchString(value) || !plainString(value):
		return `"` + value + `"`, nil
	}
	return value, nil
}

// plainString reports whether a plain text is read as itself.
func plainString(text string) bool {
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil || len(n.Content) != 1 {
		return false
	}
	scalar := n.Content[0]
	return scalar.Kind == yaml.ScalarNode && scalar.Tag == "!!str" && scalar.Value == text
}

// apply makes the edits.
func (s *search) apply() ([]byte, error) {
	slices.SortFunc(s.edits, func(a, b edit) int { return cmp.Compare(a.start, b.start) })
	var out bytes.Buffer
	last := 0
	for _, e := range s.edits {
		if e.start < last {
			return nil, errors.New("cannot set images: two values are in the same place")
		}
		out.Write(s.file[last:e.start])
		out.WriteString(e.text)
		last = e.end
	}
	out.Write(s.file[last:])
	return out.Bytes(), nil
}

// check makes sure that a changed file has the documents that it had, but for what was set.
func (s *search) check(before []*yaml.Node, file []byte) error {
	after, err := parse(file)
	if err != nil {
		return fmt.Errorf("cannot set images: the file would not be read as before: %w", err)
	}
	set := make(map[int]string, len(s.edits))
	for _, e := range s.edits {
		set[e.node] = e.value
	}
	c := comparison{set: set}
	same := len(before) == len(after)
	for i := 0; same && i < len(before); i++ {
		same = c.same(before[i], after[i])
	}
	if !same {
		return errors.New("cannot set images: the file would not be read as before")
	}
	return nil
}

// comparison of two trees, whose nodes are counted as walk does.
type comparison struct {
	set   map[int]string
	nodes int
}

func (c *comparison) same(a, b *yaml.Node) bool {
	index := c.nodes
	c.nodes++
	if value, ok := c.set[index]; ok {
		return a.Kind == b.Kind && a.Anchor == b.Anchor && b.Value == value && (b.Tag == "!!str" || a.Style&yaml.TaggedStyle != 0 && a.Tag == b.Tag)
	}
	if a.Kind != b.Kind || a.Tag != b.Tag || a.Value != b.Value || a.Anchor != b.Anchor || len(a.Content) != len(b.Content) ||
		a.HeadComment != b.HeadComment || a.LineComment != b.LineComment || a.FootComment != b.FootComment {
		return false
	}
	for i := range a.Content {
		if !c.same(a.Content[i], b.Content[i]) {
			return false
		}
	}
	return true
}
