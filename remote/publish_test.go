package remote

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestPublish: the condition is written where a Cluster has a place for it and does not have it yet,
// and a run does not end where that is refused.
func TestPublish(t *testing.T) {
	const seeded = "{type: " + v1alpha1.ClusterSeededCondition + `, status: "True", reason: Succeeded, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}`
	for name, tc := range map[string]struct {
		reason, cluster string
		refused         error
		writes          int
		published       bool
	}{
		"Current":  {"the contract of now", "{apiVersion: cluster.x-k8s.io/v1beta2, status: {conditions: []}}", nil, 1, true},
		"New":      {"nothing is on record of the Cluster yet", "{apiVersion: cluster.x-k8s.io/v1beta2}", nil, 1, true},
		"There":    {"it is there", "{apiVersion: cluster.x-k8s.io/v1beta2, status: {conditions: [" + seeded + "]}}", nil, 0, true},
		"Beside":   {"a Cluster of v1beta1 has it beside what it had before", "{apiVersion: cluster.x-k8s.io/v1beta1, status: {v1beta2: {}}}", nil, 1, true},
		"NoPlace":  {"before Cluster API 1.9 the API server refuses what it does not know", "{apiVersion: cluster.x-k8s.io/v1beta1, status: {conditions: []}}", nil, 0, true},
		"Refused":  {"it is tried again with the next run", "{apiVersion: cluster.x-k8s.io/v1beta2}", errors.New("forbidden"), 1, false},
		"NoStatus": {"nor before Cluster API had a look", "{apiVersion: cluster.x-k8s.io/v1beta1}", nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			writes := 0
			c := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithInterceptorFuncs(interceptor.Funcs{
				SubResourceApply: func(context.Context, client.Client, string, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
					writes++
					return tc.refused
				},
			}).Build()
			child := childNamed("c", []metav1.Condition{{Type: v1alpha1.SeededCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded}})
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(tc.cluster), &u.Object); err != nil {
				t.Fatal(err)
			}
			u.SetKind("Cluster")
			r := &run{Children: &Children{Client: c}, child: &child, object: u}
			if published := r.publish(t.Context()); published != tc.published || writes != tc.writes {
				t.Errorf("%s: published %t with %d writes, want %t with %d", tc.reason, published, writes, tc.published, tc.writes)
			}
		})
	}
}
