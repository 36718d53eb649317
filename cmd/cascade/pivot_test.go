package main

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/pivot"
)

// TestPivotOf: the journal and the record of each side are where its agent is, whichever of both is the
// source, and nothing is written before that is known.
func TestPivotOf(t *testing.T) {
	const usual = v1alpha1.AgentNamespace
	cluster := types.NamespacedName{Namespace: "fleet", Name: "master-1"}
	for name, tc := range map[string]struct {
		reason         string
		flags          pivotFlags
		here, there    string // namespaces of Deployments of agents, with blanks between them
		source, target string
		refused        []string
	}{
		"Self":        {"a MoM elsewhere than usual", pivotFlags{to: toSelf}, "gitops", usual, "gitops", usual, nil},
		"Parent":      {"the way back", pivotFlags{to: toParent}, "gitops", usual, usual, "gitops", nil},
		"File":        {"from one MoM to another one", pivotFlags{to: "new-mom.yaml"}, "gitops", "flux", "gitops", "flux", nil},
		"None":        {"no agent is a Deployment", pivotFlags{to: toSelf}, "", "", usual, usual, nil},
		"Said":        {"an agent that is a process", pivotFlags{to: toSelf, agents: "gitops"}, "", usual, "gitops", usual, nil},
		"ToSaid":      {"such an agent on the other side", pivotFlags{to: "new-mom.yaml", toAgents: "gitops"}, usual, "", usual, "gitops", nil},
		"SaidParent":  {"flags are of clusters, not of source and target", pivotFlags{to: toParent, agents: "gitops", toAgents: "flux"}, "", "", "flux", "gitops", nil},
		"Elsewhere":   {"nobody would see the journal", pivotFlags{to: toSelf, agents: "gitops"}, usual, usual, "", "", []string{"--agent-namespace gitops", usual, "this cluster"}},
		"ToElsewhere": {"nobody would end the pivot", pivotFlags{to: toParent, toAgents: "gitops"}, "", usual, "", "", []string{"--to-agent-namespace gitops", usual, "Cluster fleet/master-1"}},
		"Two":         {"which one is meant nobody knows", pivotFlags{to: toSelf}, "gitops flux", "", "", "", []string{"agent of this cluster", "gitops", "flux", "say which with --agent-namespace"}},
		"TwoSaid":     {"tenants have an agent of their own", pivotFlags{to: toSelf, agents: "gitops"}, "gitops flux", "", "gitops", usual, nil},
		"ToTwoSaid":   {"the same on the other side", pivotFlags{to: "new-mom.yaml", toAgents: "flux"}, usual, "gitops flux", usual, "flux", nil},
		"TwoOthers":   {"nobody would see the journal", pivotFlags{to: toSelf, agents: "other"}, "gitops flux", "", "", "", []string{"--agent-namespace other", "gitops", "flux"}},
	} {
		t.Run(name, func(t *testing.T) {
			with := func(namespaces string) client.Client {
				objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}}
				for _, namespace := range strings.Fields(namespaces) {
					objects = append(objects, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
						Namespace: namespace, Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName},
					}})
				}
				return fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
					Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
						t.Errorf("%s: %T %s is written", tc.reason, o, o.GetName())
						return nil
					},
				}).Build()
			}
			source, target, err := sidesOf(t.Context(), tc.flags, cluster, with(tc.here), pivot.Side{Name: "the cluster of --to", Client: with(tc.there)})
			if (err != nil) != (tc.refused != nil) {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			for _, text := range tc.refused {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: it does not name %s: %v", tc.reason, text, err)
				}
			}
			if err == nil && (source.Namespace != tc.source || target.Namespace != tc.target) {
				t.Errorf("%s: the agents are in %s and %s, want %s and %s", tc.reason, source.Namespace, target.Namespace, tc.source, tc.target)
			}
		})
	}
}
