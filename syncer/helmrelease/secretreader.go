package helmrelease

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// secretReader is a client that asks the API server, and remembers what it read
// of Secrets: a message that quotes it must not show it. It is for one
// reconciliation and not safe for concurrent use.
type secretReader struct {
	client.Client
	reader client.Reader
	secret []string
}

func (s *secretReader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if err := s.reader.Get(ctx, key, obj, opts...); err != nil {
		return err
	}
	if secret, ok := obj.(*corev1.Secret); ok {
		for _, value := range secret.Data {
			s.secret = append(s.secret, string(value))
			// Numbers as they are written: an API server quotes them so.
			var values map[string]any
			if yaml.Unmarshal(value, &values, func(d *json.Decoder) *json.Decoder { d.UseNumber(); return d }) == nil {
				s.remember(values)
			}
		}
	}
	return nil
}

func (s *secretReader) remember(value any) {
	switch value := value.(type) {
	case string:
		s.secret = append(s.secret, value)
	case json.Number:
		s.secret = append(s.secret, value.String())
		if f, err := value.Float64(); err == nil {
			s.secret = append(s.secret, fmt.Sprint(f)) // as a template writes it
		}
	case map[string]any:
		for _, v := range value {
			s.remember(v)
		}
	case []any:
		for _, v := range value {
			s.remember(v)
		}
	}
}
