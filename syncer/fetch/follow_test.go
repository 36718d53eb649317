package fetch

import (
	"slices"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestNamedSources: a process that drives children follows the sources that Layers name,
// those of other namespaces as well.
func TestNamedSources(t *testing.T) {
	layer := &v1alpha1.Layer{}
	layer.Namespace = "team"
	layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: sourcev1.GitRepositoryKind, Name: "fleet", Namespace: "platform"}
	layer.Spec.Providers = &v1alpha1.ProvidersSpec{SourceRef: &v1alpha1.SourceReference{Kind: sourcev1.GitRepositoryKind, Name: "components"}}
	var got []string
	for _, request := range sourcesOf(sourcev1.GitRepositoryKind)(t.Context(), layer) {
		got = append(got, request.String())
	}
	if want := []string{"platform/fleet", "team/components"}; !slices.Equal(got, want) {
		t.Errorf("followed are %v, want %v", got, want)
	}
	if got := sourcesOf(sourcev1.BucketKind)(t.Context(), layer); len(got) > 0 {
		t.Errorf("of another kind %v", got)
	}
}
