package chart

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"
)

const (
	// maxSteps bounds how many schemas validation compares with how many values: a
	// recursive schema of a few lines can double that with each level of the values.
	// It is some seconds.
	maxSteps = 5_000_000
	// maxPairs bounds the different ones of them.
	maxPairs = 500_000
)

// CheckValidation refuses values whose validation against the schemas of a
// chart, and of the charts in it, would hardly end: nothing stops a validation
// once it runs. The values are the merged ones that are validated. The error
// has the reason LimitExceeded.
func CheckValidation(c *helmchart.Chart, values map[string]any) error {
	if len(c.Schema) > 0 {
		schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.Schema))
		if err != nil {
			return nil // validation reports it better
		}
		p := &price{ways: &ways{root: schema, named: map[string]any{}}, known: map[pair]int{}}
		p.name(schema)
		if _, err := p.of(schema, values, ""); err != nil {
			return wrap(ReasonPackage, fmt.Sprintf("cannot validate values of chart %s", c.Name()), err)
		}
	}
	for _, sub := range c.Dependencies() {
		below, ok := values[sub.Name()].(map[string]any)
		if !ok {
			continue
		}
		if err := CheckValidation(sub, below); err != nil {
			return err
		}
	}
	return nil
}

// price counts the steps of a validation, each different one once.
type price struct {
	*ways
	known map[pair]int
}

// pair is a schema and the place of a value.
type pair struct {
	schema uintptr
	at     string
}

// Keywords with schemas: for the same value, for the items of a list, and for all fields
// of an object.
var (
	inPlace = []string{"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
	toItems = []string{"items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"}
	toAll   = []string{"patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}
)

func (p *price) of(schema, value any, at string) (int, error) {
	object, ok := schema.(map[string]any)
	if !ok {
		return 1, nil
	}
	key := pair{reflect.ValueOf(object).Pointer(), at}
	if n, ok := p.known[key]; ok {
		return n, nil
	}
	if len(p.known) > maxPairs {
		return 0, limitf("it takes more than %d different steps", maxPairs)
	}
	p.known[key] = 0 // what leads back here at the same value is refused by the validation
	total := 1
	add := func(sub, value any, at string) error {
		n, err := p.of(sub, value, at)
		if total += n; err == nil && total > maxSteps {
			err = limitf("it takes more than %d steps", maxSteps)
		}
		return err
	}
	for _, word := range []string{"$ref", "$dynamicRef", "$recursiveRef"} {
		if reference, ok := object[word].(string); ok {
			if target, ok := p.find(reference); ok {
				if err := add(target, value, at); err != nil {
					return 0, err
				}
			}
		}
	}
	for _, word := range inPlace {
		for _, sub := range subschemas(object[word], word) {
			if err := add(sub, value, at); err != nil {
				return 0, err
			}
		}
	}
	switch value := value.(type) {
	case map[string]any:
		named, _ := object["properties"].(map[string]any)
		for name, below := range value {
			place := at + "/" + strings.ReplaceAll(name, "/", "~1")
			if sub, ok := named[name]; ok {
				if err := add(sub, below, place); err != nil {
					return 0, err
				}
			}
			for _, word := range toAll {
				for _, sub := range subschemas(object[word], word) {
					if err := add(sub, below, place); err != nil {
						return 0, err
					}
				}
			}
		}
	case []any:
		for i, below := range value {
			for _, word := range toItems {
				for _, sub := range subschemas(object[word], word) {
					if err := add(sub, below, fmt.Sprintf("%s/%d", at, i)); err != nil {
						return 0, err
					}
				}
			}
		}
	}
	p.known[key] = total
	return total, nil
}

// subschemas are the schemas that a keyword has.
func subschemas(v any, word string) []any {
	switch v := v.(type) {
	case []any:
		return v
	case map[string]any:
		if word != "patternProperties" && word != "dependentSchemas" && word != "dependencies" {
			return []any{v}
		}
		all := make([]any, 0, len(v))
		for _, sub := range v {
			all = append(all, sub)
		}
		return all
	}
	return nil
}
