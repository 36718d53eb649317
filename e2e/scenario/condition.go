package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reporter is an object with conditions.
type Reporter interface {
	client.Object
	GetConditions() []metav1.Condition
}

// Tells waits until a condition of an object has a status, a reason ("" is any),
// and a message that begins or, with a leading "...", goes on like this. It must be
// about the generation that is there. The object is read into o.
func (r *Row) Tells(t *testing.T, o Reporter, name, kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	t.Helper()
	var found metav1.Condition
	Eventually(t, Converge, fmt.Sprintf("%T %s says %s=%s, %s: %s", o, name, kind, status, reason, message), func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(o.GetConditions(), kind)
		if c == nil || c.Status != status || reason != "" && c.Reason != reason || c.ObservedGeneration != o.GetGeneration() {
			return fmt.Errorf("conditions are %s", Summary(o.GetConditions()))
		}
		rest, anywhere := strings.CutPrefix(message, "...")
		if anywhere && !strings.Contains(c.Message, rest) || !anywhere && !strings.HasPrefix(c.Message, message) {
			return fmt.Errorf("conditions are %s", Summary(o.GetConditions()))
		}
		found = *c
		return nil
	})
	return found
}

// Says is Tells of a Kustomization.
func (r *Row) Says(t *testing.T, name, kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	t.Helper()
	return r.Tells(t, &kustomizev1.Kustomization{}, name, kind, status, reason, message)
}

// Answered asks an object to reconcile, and waits until the agent has answered.
func (r *Row) Answered(t *testing.T, o Reporter, name string) {
	t.Helper()
	at := r.Ask(t, o, name)
	Eventually(t, Converge, fmt.Sprintf("the request of %T %s is handled", o, name), func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, name); err != nil {
			return err
		}
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), fmt.Sprintf(`"lastHandledReconcileAt":%q`, at)) {
			return fmt.Errorf("it is %s", text)
		}
		return nil
	})
}

// Event waits until an event with a reason is about an object, whose message
// has a part.
func (r *Row) Event(t *testing.T, kind, name, reason, part string) {
	t.Helper()
	Eventually(t, Converge, fmt.Sprintf("an event of %s %s says %s: %s", kind, name, reason, part), func(ctx context.Context) error {
		list := &corev1.EventList{}
		if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
			return err
		}
		var all []string
		for _, e := range list.Items {
			if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name {
				continue
			}
			if e.Reason == reason && strings.Contains(e.Message, part) {
				return nil
			}
			all = append(all, e.Type+" "+e.Reason+" "+e.Message)
		}
		return fmt.Errorf("events are %q", all)
	})
}

// Absent fails if an object is there.
func (r *Row) Absent(t *testing.T, o client.Object, namespace, name string) {
	t.Helper()
	if err := r.Load(t.Context(), o, namespace, name); !apierrors.IsNotFound(err) {
		t.Errorf("%T %s/%s is there: %v", o, namespace, name, err)
	}
}
