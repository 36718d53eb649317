package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Limits of values.schema.json. Validation follows references as often as they are
// there, and once more for each value.
const (
	maxSchemaDepth = 200
	maxSchemaNodes = 200_000
	// maxSchemaPaths bounds the ways through a schema after its references are
	// followed.
	maxSchemaPaths = 1_000_000
)

// errRemoteSchema is wrapped where a schema refers to what is not in it.
var errRemoteSchema = errors.New("references to other files or hosts are not followed; copy the schema in, or set disableSchemaValidation")

// checkSchema refuses a schema that would make validation read files or the network
// (CVE-2025-32387), or take for ever. That it is a correct schema is not its business:
// validation reports that better.
func checkSchema(data []byte) error {
	if err := measureJSON(data); err != nil {
		return err
	}
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("it is no JSON: %w", err)
	}
	// The compiler knows best what a reference is, and asks for what is not there.
	asked := &denied{}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(asked)
	if err := compiler.AddResource(schemaURL, schema); err != nil {
		return nil
	}
	if err := checkWays(schema); err != nil {
		return err
	}
	if err := compile(compiler); err != nil {
		return err
	}
	if asked.url != "" {
		return fmt.Errorf("it refers to %s: %w", asked.url, errRemoteSchema)
	}
	return nil
}

// schemaURL is what Helm calls a schema.
const schemaURL = "file:///values.schema.json"

// compile turns the library's panics into errors.
func compile(compiler *jsonschema.Compiler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it cannot be read: %v", r)
		}
	}()
	_, _ = compiler.Compile(schemaURL)
	return nil
}

// denied is a loader that remembers what was asked for.
type denied struct{ url string }

func (d *denied) Load(u string) (any, error) {
	if strings.HasPrefix(u, "urn:") {
		return true, nil // as in Helm
	}
	if d.url == "" {
		d.url = u
		if parsed, err := url.Parse(u); err == nil {
			d.url = shown(parsed)
		}
	}
	return nil, errRemoteSchema
}

// measureJSON refuses what nests too deep or has too many nodes, before anything is
// made of it.
func measureJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	depth, nodes := 0, 0
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("it is no JSON: %w", err)
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth > maxSchemaDepth {
			return limitf("it nests deeper than %d", maxSchemaDepth)
		}
		if nodes++; nodes > maxSchemaNodes {
			return limitf("it has more than %d nodes", maxSchemaNodes)
		}
	}
}

// maxReferences bounds a chain of references: validation looks at all that it is in
// at each step.
const maxReferences = 500

// ways counts the ways through a schema. A reference to something that contains it
// is followed once: how often it counts depends on the values.
type ways struct {
	root any
	// named has what references can name.
	named map[string]any
	// done has what was counted below a reference, open those that are being
	// counted.
	done map[string]int
	open map[string]bool
}

func checkWays(root any) error {
	w := &ways{root: root, named: map[string]any{}, done: map[string]int{}, open: map[string]bool{}}
	w.name(root)
	_, err := w.of(root, 0)
	return err
}

func (w *ways) name(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range []string{"$id", "id", "$anchor", "$dynamicAnchor"} {
			if s, ok := v[key].(string); ok {
				w.named[s] = v
				w.named["#"+s] = v
			}
		}
		for _, child := range v {
			w.name(child)
		}
	case []any:
		for _, child := range v {
			w.name(child)
		}
	}
}

func (w *ways) of(v any, depth int) (int, error) {
	total := 1
	add := func(n int, err error) error {
		if total += n; err == nil && total > maxSchemaPaths {
			err = limitf("its references expand to more than %d", maxSchemaPaths)
		}
		return err
	}
	switch v := v.(type) {
	case map[string]any:
		for key, child := range v {
			if target, ok := child.(string); ok && (key == "$ref" || key == "$dynamicRef" || key == "$recursiveRef") {
				if err := add(w.follow(target, depth)); err != nil {
					return 0, err
				}
				continue
			}
			if key == "enum" || key == "const" || key == "default" || key == "examples" || key == "$defs" || key == "definitions" {
				continue // no part of the way: definitions count where they are referred to
			}
			if err := add(w.of(child, depth)); err != nil {
				return 0, err
			}
		}
	case []any:
		for _, child := range v {
			if err := add(w.of(child, depth)); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

func (w *ways) follow(reference string, depth int) (int, error) {
	if depth > maxReferences {
		return 0, limitf("its references lead to references more than %d times", maxReferences)
	}
	if n, ok := w.done[reference]; ok {
		return n, nil
	}
	if w.open[reference] {
		return 1, nil
	}
	target, ok := w.find(reference)
	if !ok {
		return 1, nil
	}
	w.open[reference] = true
	defer delete(w.open, reference)
	n, err := w.of(target, depth+1)
	if err == nil {
		w.done[reference] = n
	}
	return n, err
}

// find returns what a reference inside of the schema leads to.
func (w *ways) find(reference string) (any, bool) {
	if v, ok := w.named[reference]; ok {
		return v, true
	}
	base, fragment, _ := strings.Cut(reference, "#")
	at := w.root
	if v, ok := w.named[base]; ok && base != "" {
		at = v
	}
	fragment, err := url.PathUnescape(fragment)
	if err != nil {
		return nil, false
	}
	if fragment == "" {
		return at, true
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(fragment, "/"), "/") {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		switch v := at.(type) {
		case map[string]any:
			at = v[part]
		case []any:
			i := 0
			if _, err := fmt.Sscanf(part, "%d", &i); err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			at = v[i]
		default:
			return nil, false
		}
	}
	return at, at != nil
}
