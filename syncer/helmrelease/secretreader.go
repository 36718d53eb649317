package helmrelease

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/mask"
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
				s.secret = append(s.secret, mask.Scalars(values)...)
			}
		}
	}
	return nil
}
