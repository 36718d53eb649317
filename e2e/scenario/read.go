package scenario

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// Get reads an object of a tier with a new client, as kinds may have come since.
func Get(ctx context.Context, tier *stage.Tier, o client.Object, namespace, name string) error {
	c, err := tier.Client()
	if err != nil {
		return err
	}
	return c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
}

// Summary is conditions in one line, for messages of tests.
func Summary(conditions []metav1.Condition) string {
	parts := make([]string, 0, len(conditions))
	for _, c := range conditions {
		parts = append(parts, fmt.Sprintf("%s=%s (%s: %s)", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(parts, ", ")
}
