package capibridge_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/e2e/shapes"
)

var update = flag.Bool("update", false, "write what is there into the golden files")

// memory is a Reader of objects that it has.
type memory struct {
	objects []*unstructured.Unstructured
	// fail is asked before each read.
	fail  func(kind, name string) error
	mapAs func(gk schema.GroupKind) (*meta.RESTMapping, error)
	reads int
}

func (m *memory) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	m.reads++
	u := obj.(*unstructured.Unstructured)
	gvk := u.GroupVersionKind()
	if m.fail != nil {
		if err := m.fail(gvk.Kind, key.Name); err != nil {
			return err
		}
	}
	for _, o := range m.objects {
		if o.GroupVersionKind().GroupKind() == gvk.GroupKind() && o.GetNamespace() == key.Namespace && o.GetName() == key.Name {
			u.Object = o.DeepCopy().Object
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: strings.ToLower(gvk.Kind)}, key.Name)
}

func (m *memory) RESTMapper() meta.RESTMapper { return mapper{m: m} }

// mapper has a scope for all kinds, and refuses those that m.mapAs does.
type mapper struct {
	meta.RESTMapper
	m *memory
}

func (r mapper) RESTMapping(gk schema.GroupKind, _ ...string) (*meta.RESTMapping, error) {
	if r.m.mapAs != nil {
		if mapping, err := r.m.mapAs(gk); mapping != nil || err != nil {
			return mapping, err
		}
	}
	scope := meta.RESTScopeNamespace
	if strings.HasPrefix(gk.Kind, "AWSCluster") && strings.HasSuffix(gk.Kind, "Identity") {
		scope = meta.RESTScopeRoot
	}
	return &meta.RESTMapping{GroupVersionKind: gk.WithVersion("v1beta2"), Scope: scope}, nil
}

// TestShapes compares what is said about clusters at each stage of their lives
// with what was. TestProviders of package e2e does so with objects that come from
// a real API server.
func TestShapes(t *testing.T) {
	lives, err := shapes.Lives()
	if err != nil {
		t.Fatal(err)
	}
	for _, life := range lives {
		answers := map[string]string{}
		for _, stage := range life.Stages {
			t.Run(life.Name+"/"+stage.Name, func(t *testing.T) {
				c := capibridge.FromObject(stage.Cluster())
				f, err := new(capibridge.Providers).Describe(t.Context(), &memory{objects: stage.Objects}, c)
				if err != nil {
					t.Fatal(err)
				}
				answers[stage.Name] = shapes.Answers(c, f)
				if diff := cmp.Diff(stage.Want, answers[stage.Name]); diff != "" && !*update {
					t.Errorf("answers: -want, +got (-update writes them):\n%s", diff)
				}
			})
		}
		if *update {
			if err := os.WriteFile(filepath.Join("..", "e2e", "shapes", life.Name+".golden"), life.Golden(answers), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}
