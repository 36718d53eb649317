package remote

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// TestChildMadeAgain: nothing that is known of a Child counts for another one of its name, which may be of another cluster. That
// it was gone for a moment no run may have seen.
func TestChildMadeAgain(t *testing.T) {
	m := newMet(t)
	made := func(uid types.UID) {
		t.Helper()
		if err := m.client.Delete(t.Context(), &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: m.key.Namespace, Name: m.key.Name}}); err != nil {
			t.Fatal(err)
		}
		child := childNamed(m.key.Name, nil)
		child.UID, child.Labels, child.Spec.InCluster = uid, map[string]string{"site": "here"}, true
		if err := m.client.Create(t.Context(), &child); err != nil {
			t.Fatal(err)
		}
	}
	made("first")
	m.contact(t)
	m.children.notesOf(m.key).of("app").sent = make(apply.Sent, 1)
	for _, tc := range []struct {
		reason string
		as     types.UID
		kept   bool
	}{{"it is the same Child", "first", true}, {"it is another Child", "second", false}} {
		if !tc.kept {
			made(tc.as)
		}
		if _, err := m.children.Reconcile(t.Context(), ctrl.Request{NamespacedName: m.key}); err != nil {
			t.Logf("reconciled: %v", err)
		}
		if kept := len(m.children.notesOf(m.key).of("app").sent) > 0; kept != tc.kept {
			t.Errorf("%s: what was sent is known: %t", tc.reason, kept)
		}
	}
}

// TestKnown: of a layer of which the child has nothing on record, nothing is known to be there, whatever was sent before.
func TestKnown(t *testing.T) {
	s := bringing(t, newPaced(time.Minute))
	s.notes.sent = make(apply.Sent, 1)
	if sent, _, err := s.known(t.Context(), []inventory.Entry{{Kind: "ConfigMap", Name: "a", Version: "v1"}}, false, false); len(sent) != 1 || err != nil {
		t.Errorf("of what is on record is known %v (%v)", sent, err)
	}
	if sent, _, err := s.known(t.Context(), nil, false, false); sent != nil || err != nil {
		t.Errorf("with nothing on record is known %v (%v)", sent, err)
	}
}
