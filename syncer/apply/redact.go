package apply

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Redact takes the values of Secrets among objects out of an error of the API
// server, which quotes what it refuses. The error stays what it is otherwise.
func Redact(err error, objects []*unstructured.Unstructured) error {
	text := err.Error()
	clean := text
	for _, u := range objects {
		if !ssautil.IsSecret(u) {
			continue
		}
		for _, field := range []string{"data", "stringData"} {
			scalars(u.Object[field], func(s string) {
				if len(s) < 4 {
					return
				}
				clean = without(clean, s)
				if plain, decodeErr := base64.StdEncoding.DecodeString(s); decodeErr == nil && len(plain) >= 4 {
					clean = without(clean, string(plain))
				}
			})
		}
	}
	if clean == text {
		return err
	}
	return &redacted{text: clean, err: err}
}

// without replaces a value in a text, also where it is quoted.
func without(text, value string) string {
	quoted := strconv.Quote(value)
	text = strings.ReplaceAll(text, value, "*****")
	return strings.ReplaceAll(text, quoted[1:len(quoted)-1], "*****")
}

// redacted is an error without the values that its text had.
type redacted struct {
	text string
	err  error
}

func (r *redacted) Error() string { return r.text }
func (r *redacted) Unwrap() error { return r.err }

// scalars calls visit with every value in a tree, as it is written. What was declared
// wrongly, as a number or a map, is as secret as what was declared rightly.
func scalars(v any, visit func(string)) {
	switch v := v.(type) {
	case nil:
	case map[string]any:
		for _, item := range v {
			scalars(item, visit)
		}
	case []any:
		for _, item := range v {
			scalars(item, visit)
		}
	default:
		visit(fmt.Sprint(v))
	}
}
