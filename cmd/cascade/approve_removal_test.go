package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func heldLayer(name string, held bool) *v1alpha1.Layer {
	l := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
	l.Status.OnRecord = &v1alpha1.OnRecord{Children: 14, Objects: 168}
	l.Status.Removal = &v1alpha1.Removal{Held: held, Waiting: 12, Names: []string{"a", "b"}, Hash: "0123456789abcdef"}
	return l
}

func TestApproveRemoval(t *testing.T) {
	for _, c := range []struct {
		reason, layer, hash string
		err, out, approved  string
	}{
		{"without a hash it shows what is held", "app", "", errNotReady.Error(), "Layer fleet/app would be removed from 12 of 14 children: a, b and 10 more; hash 0123456789abcdef", ""},
		{"the hash that is held", "app", "0123456789abcdef", "", "✔ approved removal 0123456789abcdef of layer fleet/app from 12 children", "0123456789abcdef"},
		{"another hash", "app", "1111111111111111", "is another", "", ""},
		{"a layer that holds nothing", "calm", "0123456789abcdef", "holds no removal", "", ""},
		{"no such layer", "none", "", "cannot read Layer fleet/none", "", ""},
	} {
		t.Run(c.reason, func(t *testing.T) {
			streams, _, out, _ := genericiooptions.NewTestIOStreams()
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(heldLayer("app", true), heldLayer("calm", false)).Build()
			err := (&cli{streams: streams}).approveRemoval(t.Context(), cl, client.ObjectKey{Namespace: "fleet", Name: c.layer}, c.hash)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error is %v", err)
			}
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("it says %s", out)
			}
			layer := &v1alpha1.Layer{}
			if err := cl.Get(t.Context(), client.ObjectKey{Namespace: "fleet", Name: "app"}, layer); err != nil {
				t.Fatal(err)
			}
			if got := layer.Annotations[v1alpha1.ApproveRemovalAnnotation]; got != c.approved {
				t.Errorf("approved is %q", got)
			}
		})
	}
}

// TestTreeShowsHeldRemovals: who looks at the fleet sees what waits for a decision.
func TestTreeShowsHeldRemovals(t *testing.T) {
	asleep := heldLayer("asleep", true)
	asleep.Spec.Suspend = true
	cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(heldLayer("app", true), heldLayer("calm", false), asleep).Build()
	root, err := loadTree(t.Context(), cl, v1alpha1.AgentNamespace, noon)
	if err != nil {
		t.Fatal(err)
	}
	if len(root.Held) != 1 || !strings.HasPrefix(root.Held[0], "Layer fleet/app would be removed from 12 of 14 children") {
		t.Errorf("held are %q", root.Held)
	}
}
