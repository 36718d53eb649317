package credential

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

const (
	// mostContent bounds what is written into a Secret: what the API server takes.
	mostContent = 1 << 20
	// mostFields bounds the fields of an answer that are copied.
	mostFields = 256
)

// Fill makes the data of a Secret out of the fields of an answer. Errors name fields, and
// nothing that is in them.
func Fill(values map[string]v1alpha1.CredentialValue, fields map[string]any) (map[string][]byte, error) {
	fields = unwrapped(fields)
	data := map[string][]byte{}
	if len(values) == 0 {
		if len(fields) > mostFields {
			return nil, fmt.Errorf("cannot copy the answer: it has %d fields, and %d at most are copied; name them in target.data", len(fields), mostFields)
		}
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			if fields[key] == nil || len(validation.IsConfigMapKey(key)) > 0 {
				continue // a Secret cannot have it
			}
			text, err := textOf(fields[key])
			if err != nil {
				return nil, fmt.Errorf("cannot copy field %s of the answer: %w", key, err)
			}
			data[key] = []byte(text)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if faults := validation.IsConfigMapKey(key); len(faults) > 0 {
			return nil, fmt.Errorf("cannot use %q as a key of a Secret: %s", key, faults[0])
		}
		text, err := valueOf(values[key], fields)
		if err != nil {
			return nil, fmt.Errorf("cannot make key %s of the Secret: %w", key, err)
		}
		data[key] = []byte(text)
	}
	size := 0
	for key, value := range data {
		size += len(key) + len(value)
	}
	switch {
	case len(data) == 0:
		return nil, errors.New("cannot use the answer: it has no field that a Secret could have")
	case size > mostContent:
		return nil, fmt.Errorf("cannot use the answer: a Secret has %d bytes at most", mostContent)
	}
	return data, nil
}

// unwrapped are the fields of a secret that has versions, which are a field of the answer
// beside one about the version.
func unwrapped(fields map[string]any) map[string]any {
	inner, data := fields["data"].(map[string]any)
	_, metadata := fields["metadata"].(map[string]any)
	if len(fields) == 2 && data && metadata {
		return inner
	}
	return fields
}

func valueOf(v v1alpha1.CredentialValue, fields map[string]any) (string, error) {
	if v.From != "" {
		return fieldOf(v.From, fields)
	}
	var out strings.Builder
	for rest := v.Value; ; {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			out.WriteString(rest)
			break
		}
		if escaped, ok := strings.CutSuffix(before, "$"); ok {
			out.WriteString(escaped + "${")
			rest = after
			continue
		}
		out.WriteString(before)
		name, more, closed := strings.Cut(after, "}")
		if !closed {
			return "", errors.New("a ${ has no } behind it; write $${ for a ${ that stays")
		}
		text, err := fieldOf(name, fields)
		if err != nil {
			return "", err
		}
		out.WriteString(text)
		if rest = more; out.Len() > mostContent {
			return "", errors.New("it is too long")
		}
	}
	return out.String(), nil
}

// fieldOf is a field, or one within a field.
func fieldOf(name string, fields map[string]any) (string, error) {
	value, found := fields[name]
	if !found {
		within := fields
		parts := strings.Split(name, ".")
		for i, part := range parts {
			if value, found = within[part]; !found {
				break
			}
			if i < len(parts)-1 {
				if within, found = value.(map[string]any); !found {
					break
				}
			}
		}
	}
	if !found || value == nil {
		return "", fmt.Errorf("the answer has no field %q", name)
	}
	text, err := textOf(value)
	if err != nil {
		return "", fmt.Errorf("cannot read field %q of the answer: %w", name, err)
	}
	return text, nil
}

// textOf is a value as it is written into a Secret: texts are themselves, lists of texts lines,
// as in a chain of certificates, and all else is JSON.
func textOf(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case []any:
		lines := make([]string, 0, len(v))
		for _, one := range v {
			line, ok := one.(string)
			if !ok {
				lines = nil
				break
			}
			lines = append(lines, line)
		}
		if lines != nil || len(v) == 0 {
			return strings.Join(lines, "\n"), nil
		}
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return "", errors.New("it is no JSON")
	}
	return string(encoded), nil
}

// digestOf identifies what a Secret has. The UID of the Credential is in it, so that equal
// contents of two have nothing in common.
func digestOf(uid string, kind string, data map[string][]byte) string {
	h := sha256.New()
	e := json.NewEncoder(h)
	_ = e.Encode([]string{uid, kind})
	for _, key := range slices.Sorted(maps.Keys(data)) {
		_ = e.Encode([]any{key, data[key]})
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// declaredOf identifies what a Credential asks for: another one is asked for anew.
func declaredOf(spec *v1alpha1.CredentialSpec) string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode([]any{spec.Vault, spec.ServiceAccountToken, spec.File, spec.Target.Data, spec.Target.Type})
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
