package render

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// Limits of the guard. They are far above what people write, and far below what harms the
// process.
const (
	// MaxNodes bounds a document after its aliases are expanded.
	MaxNodes = 1_000_000
	// MaxBytes bounds the files that one rendering reads, and what it builds.
	MaxBytes = 32 << 20
	// MaxTotalNodes bounds the nodes of all of these.
	MaxTotalNodes = 2_000_000
	// MaxAdded bounds the nodes that aliases add to all that one rendering reads.
	MaxAdded = 100_000
	// MaxEntered bounds how often kustomize enters directories in one rendering. It does so each
	// time that one names another as a resource, a base or a component, so that forty levels, each
	// of which takes the one below twice, are a trillion.
	MaxEntered = 5000
	// MaxDepth bounds the nesting of a document.
	MaxDepth = 1000
	// MaxKeys bounds the fields of one mapping, and MaxTwice those that are
	// there more than once: YAML libraries compare each with each, and report
	// each pair.
	MaxKeys  = 10_000
	MaxTwice = 500
)

// ErrHostile is wrapped by the errors of Check.
var ErrHostile = errors.New("refused YAML")

// separator is how kyaml splits a stream into documents, which is not how a
// YAML parser does: both readings are checked.
var separator = regexp.MustCompile(`(?m)^---`)

// Check refuses YAML whose aliases form a cycle or expand to more than MaxNodes, nesting
// beyond MaxDepth, and mappings of too many fields. It ignores syntax errors: the library
// that parses the document reports them better.
func Check(data []byte) error {
	_, err := Added(data)
	return err
}

// Added is Check, and counts the nodes that aliases add.
func Added(data []byte) (added int, err error) {
	if !suspect(data) && !crowded(data) {
		return 0, nil
	}
	return dissect(data)
}

// crowded is false for data that cannot hold a mapping of too many fields.
func crowded(data []byte) bool {
	keys := bytes.Count(data, []byte(":")) + bytes.Count(data, []byte("?"))
	if bytes.IndexByte(data, '{') >= 0 {
		keys += bytes.Count(data, []byte(",")) // in braces a text without a colon is a key
	}
	return keys > MaxTwice
}

// dissect is Added for data that has to be parsed.
func dissect(data []byte) (added int, err error) {
	if added, err = measureStream(data); err != nil {
		return 0, err
	}
	parts := separator.Split(string(data), -1)
	if len(parts) == 1 {
		return added, nil
	}
	apart := 0
	for _, part := range parts {
		n, err := measureStream([]byte(part))
		if err != nil {
			return 0, err
		}
		apart += n
	}
	return max(added, apart), nil
}

// nodes is how many nodes the YAML in data has at most, without aliases. A node takes
// a hundred times the memory of its shortest text. Lines end as a parser has it, which knows
// more ends than the usual one.
func nodes(data []byte) int {
	n := 1
	for i, c := range data {
		var next byte
		if i+1 < len(data) {
			next = data[i+1]
		}
		switch c {
		case '\n', ',', ':', '?', '[', '{':
			n++
		case '\r':
			if next != '\n' {
				n++
			}
		case 0x85: // U+0085
			if next == 0 || i > 0 && data[i-1] == 0xC2 {
				n++
			}
		case 0xA8, 0xA9: // U+2028, U+2029
			if i > 1 && data[i-2] == 0xE2 && data[i-1] == 0x80 {
				n++
			}
		case '-':
			// What follows is a zero in UTF-16.
			if next == ' ' || next == '\t' || next == '\r' || next == 0 || next == 0xC2 || next == 0xE2 {
				n++
			}
		}
	}
	return n
}

// Nodes is a bound for what is kept in this process, after what reads it: how many nodes the YAML in
// data has at most, without aliases. In braces a text without a colon is a key, and an empty value as well; a
// document is a node itself.
func Nodes(data []byte) int {
	return nodes(data) + bytes.Count(data, []byte(",")) + bytes.Count(data, []byte("\n---"))
}

// suspect is false for data that cannot do harm: aliases need an anchor, depth
// needs brackets, or indentation and indicators at the beginning of a line.
func suspect(data []byte) bool {
	if bytes.IndexByte(data, '&') >= 0 {
		return true
	}
	brackets := bytes.Count(data, []byte("[")) + bytes.Count(data, []byte("{"))
	longest, run := 0, 0
	for _, c := range data {
		switch c {
		// A zero is every other byte of a space in UTF-16.
		case ' ', '\t', '-', '?', ':', 0:
			run++
			longest = max(longest, run)
		default:
			run = 0
		}
	}
	// A column opens one level, and a list may begin in the column of its key.
	return brackets+longest+2 > MaxDepth
}

func measureStream(data []byte) (added int, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := decoder.Decode(&doc); err != nil {
			return added, nil // end of the stream, or a syntax error
		}
		w := walk{sizes: map[*yaml.Node]int{}, open: map[*yaml.Node]bool{}}
		size, err := w.size(&doc, 0)
		if err != nil {
			return 0, err
		}
		added += size - len(w.sizes)
	}
}

// walk measures a document as it is after expansion, visiting each node once.
type walk struct {
	sizes map[*yaml.Node]int
	open  map[*yaml.Node]bool
}

func (w *walk) size(n *yaml.Node, depth int) (int, error) {
	if depth > MaxDepth {
		return 0, fmt.Errorf("%w: line %d: nested deeper than %d", ErrHostile, n.Line, MaxDepth)
	}
	if w.open[n] {
		return 0, fmt.Errorf("%w: line %d: anchor %q contains itself", ErrHostile, n.Line, n.Anchor)
	}
	if size, ok := w.sizes[n]; ok {
		return size, nil
	}
	w.open[n] = true
	defer delete(w.open, n)
	total := 1
	add := func(child *yaml.Node) error {
		size, err := w.size(child, depth+1)
		if err != nil {
			return err
		}
		if total += size; total > MaxNodes {
			return fmt.Errorf("%w: line %d: expands to more than %d nodes", ErrHostile, n.Line, MaxNodes)
		}
		return nil
	}
	if n.Kind == yaml.MappingNode {
		if err := fields(n); err != nil {
			return 0, err
		}
	}
	if n.Kind == yaml.AliasNode {
		if err := add(n.Alias); err != nil {
			return 0, err
		}
	}
	for _, child := range n.Content {
		if err := add(child); err != nil {
			return 0, err
		}
	}
	w.sizes[n] = total
	return total, nil
}

// fields refuses a mapping of too many fields.
func fields(n *yaml.Node) error {
	keys := len(n.Content) / 2
	if keys > MaxKeys {
		return fmt.Errorf("%w: line %d: a mapping of more than %d fields", ErrHostile, n.Line, MaxKeys)
	}
	if keys <= MaxTwice {
		return nil
	}
	seen := make(map[string]bool, keys)
	for i := 0; i+1 < len(n.Content); i += 2 {
		seen[n.Content[i].Value] = true
	}
	if keys-len(seen) > MaxTwice {
		return fmt.Errorf("%w: line %d: a mapping with more than %d fields that are there already", ErrHostile, n.Line, MaxTwice)
	}
	return nil
}

// CheckManifests is Check for what is going to be parsed in this process: it also bounds
// the nodes of all of its documents together, with those that aliases add. It returns how many
// there may be (Nodes).
func CheckManifests(data []byte) (most int, err error) {
	n, added := nodes(data), 0
	if n <= MaxNodes {
		if added, err = Added(data); err != nil {
			return 0, err
		}
	}
	if n+added > MaxNodes {
		return 0, fmt.Errorf("%w: it may have %d nodes, the limit is %d", ErrHostile, n+added, MaxNodes)
	}
	return Nodes(data) + added, nil
}

// CheckWithin is Check for what is parsed in this process beside much else: it also refuses what
// may have more than so many nodes, with those that aliases add.
func CheckWithin(data []byte, most int) error {
	n := Nodes(data)
	if n <= most {
		added, err := Added(data)
		if err != nil {
			return err
		}
		n += added
	}
	if n > most {
		return fmt.Errorf("%w: it may have %d nodes, the limit is %d", ErrHostile, n, most)
	}
	return nil
}
