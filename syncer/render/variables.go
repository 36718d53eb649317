package render

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// LoadVariables reads the data of a ConfigMap or Secret as variables. Newlines
// are taken out of values when they are substituted, as Flux does.
func LoadVariables(ctx context.Context, reader client.Reader, namespace, kind, name string, optional bool) (map[string]string, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	vars := map[string]string{}
	var err error
	switch kind {
	case "ConfigMap":
		o := &corev1.ConfigMap{}
		err = reader.Get(ctx, key, o)
		for k, v := range o.Data {
			vars[k] = v
		}
	case "Secret":
		o := &corev1.Secret{}
		err = reader.Get(ctx, key, o)
		for k, v := range o.Data {
			vars[k] = string(v)
		}
	default:
		return nil, fmt.Errorf("cannot substitute from kind %q: use ConfigMap or Secret", kind)
	}
	if apierrors.IsNotFound(err) && optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("substitute from '%s/%s' error: %w", kind, name, err)
	}
	return vars, nil
}

// Text puts variables into a text, as into a file of a rendering. A variable without a
// value and without a default is an error.
func Text(text string, values map[string]string) (string, error) {
	v := newVariables(Build{Variables: values})
	if v.invalid != nil {
		return "", v.invalid
	}
	return v.put(text)
}

// Mask takes sensitive values, which variables brought into a rendering, out of
// the text of an error that may quote it: as they are, and as libraries write them. The
// error stays what it is otherwise.
func Mask(err error, sensitive []string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	var all []string
	for _, v := range sensitive {
		all = append(all, forms(v)...)
	}
	// The longest first: one may be a part of another.
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for _, form := range slices.Compact(all) {
		text = strings.ReplaceAll(text, form, "*****")
	}
	if text == err.Error() {
		return err
	}
	return &masked{text: text, err: err}
}

const (
	// leastSecret letters are masked: a value of fewer is no secret, and stands in every
	// message.
	leastSecret = 4
	// leastLine letters of one line of a value are masked by themselves. Parsers quote
	// single lines.
	leastLine = 8
)

// forms are how a value may stand in a message: without its newlines, as substitution
// puts it in; line by line; quoted and escaped for Go, JSON and YAML, once and twice; and
// in base64, as a Secret has it.
func forms(value string) []string {
	plain := []string{value, strings.ReplaceAll(value, "\n", ""), strings.TrimSpace(strings.ReplaceAll(value, "\n", " ")), strings.TrimSpace(value)}
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= leastLine {
			plain = append(plain, line)
		}
	}
	var all []string
	for _, v := range plain {
		if len(v) < leastSecret {
			continue
		}
		inner := func(quoted string) string { return quoted[1 : len(quoted)-1] }
		once := inner(strconv.Quote(v))
		all = append(all, v, once, inner(strconv.Quote(once)), inner(strconv.QuoteToASCII(v)),
			strings.ReplaceAll(v, "'", "''"), base64.StdEncoding.EncodeToString([]byte(v)), url.QueryEscape(v))
		if escaped, err := json.Marshal(v); err == nil {
			all = append(all, inner(string(escaped)), inner(strconv.Quote(inner(string(escaped)))))
		}
	}
	return all
}

type masked struct {
	text string
	err  error
}

func (m *masked) Error() string { return m.text }
func (m *masked) Unwrap() error { return m.err }

// Sensitive returns the values of variables that came from a Secret.
func Sensitive(kind string, vars map[string]string) []string {
	if kind != "Secret" {
		return nil
	}
	return slices.Collect(maps.Values(vars))
}
