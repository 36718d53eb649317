package helmrelease

import (
	"context"
	"slices"
	"strings"

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
			s.remember(string(value))
			var values map[string]any
			if yaml.Unmarshal(value, &values) == nil {
				s.rememberAll(values)
			}
		}
	}
	return nil
}

// shortestSecret that is taken out: one of a few letters stands in every message.
const shortestSecret = 4

func (s *secretReader) remember(value string) {
	if value = strings.TrimSpace(value); len(value) >= shortestSecret {
		s.secret = append(s.secret, value)
	}
}

func (s *secretReader) rememberAll(value any) {
	switch value := value.(type) {
	case string:
		s.remember(value)
	case map[string]any:
		for _, v := range value {
			s.rememberAll(v)
		}
	case []any:
		for _, v := range value {
			s.rememberAll(v)
		}
	}
}

// redact takes what Secrets had out of a text. The longest go first: one may be
// a part of another.
func (s *secretReader) redact(text string) string {
	slices.SortFunc(s.secret, func(a, b string) int { return len(b) - len(a) })
	for _, value := range s.secret {
		text = strings.ReplaceAll(text, value, "*****")
	}
	return text
}
