package apply

import (
	"encoding/base64"
	"fmt"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/syncer/mask"
)

// Redact takes the values of Secrets among objects out of an error of the API
// server, which quotes what it refuses. The error stays what it is otherwise.
func Redact(err error, objects []*unstructured.Unstructured) error {
	var values []string
	for _, u := range objects {
		if !ssautil.IsSecret(u) {
			continue
		}
		for _, field := range []string{"data", "stringData"} {
			scalars(u.Object[field], func(s string) {
				values = append(values, s)
				if plain, decodeErr := base64.StdEncoding.DecodeString(s); decodeErr == nil {
					values = append(values, string(plain))
				}
			})
		}
	}
	return mask.Error(err, values)
}

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
