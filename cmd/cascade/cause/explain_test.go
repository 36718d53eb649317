package cause

import (
	"bytes"
	"slices"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func not(reason, message string) []metav1.Condition {
	return []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))}}
}

func TestChain(t *testing.T) {
	g := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "fleet"}}
	g.Status.Conditions = not("AuthenticationFailed", "no")
	k := kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "apps"}}
	k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet"}
	k.Status.Conditions = not("ArtifactFailed", "not there")
	e := Explain(&Facts{Sources: []client.Object{g}, Kustomizations: []kustomizev1.Kustomization{k}}, noon)
	if len(e.Groups) != 1 || e.Groups[0].Root.Kind != "GitRepository" || e.Groups[0].Objects != 2 {
		t.Errorf("groups are %+v", e.Groups)
	}
	chains, known := e.Of(Object{Kind: "Kustomization", Namespace: "a", Name: "apps"})
	if !known || len(chains) != 1 || len(chains[0]) != 2 || chains[0].Root().Reason != "AuthenticationFailed" {
		t.Errorf("chains are %+v, %t", chains, known)
	}
	var out bytes.Buffer
	if err := e.All().Text(&out, noon); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
}

// TestHeldBeside: a plan that a layer holds in a child is told, whatever else the layer waits for there.
func TestHeldBeside(t *testing.T) {
	c := v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "shop"}}
	c.Status.Conditions = not("LayersNotReady", "base is not well")
	c.Status.Layers = []v1alpha1.ChildLayer{{
		Name: "base", Reason: v1alpha1.ReasonHealthCheckFailed, Message: "not well", Since: metav1.NewTime(noon.Add(-time.Hour)),
		Held: &v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "h", Deletes: 14}},
	}}
	e := Explain(&Facts{Children: []v1alpha1.Child{c}}, noon)
	chains, known := e.Of(Object{Kind: "Child", Namespace: "a", Name: "shop"})
	var commands []string
	for _, chain := range chains {
		if root := chain.Root(); root.Reason == v1alpha1.ReasonPruneBlocked && root.State == Held {
			commands = append(commands, root.Command)
		}
	}
	if want := []string{"cascade approve prune shop -n a --kind Child --hash h"}; !known || !slices.Equal(commands, want) {
		t.Errorf("chains are %+v", chains)
	}
}
