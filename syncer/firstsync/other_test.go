package firstsync

import (
	"context"
	"errors"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// TestOther: what the record of another tier comes to here.
func TestOther(t *testing.T) {
	record := func(data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}, Data: data}
	}
	for _, c := range []struct {
		reason string
		record *corev1.ConfigMap
		err    error
		// known: something is on record. quiet: nothing could be held. open: Cluster
		// n/a may be created without asking.
		known, quiet, open, fails bool
	}{
		{reason: "Flux's targets have no record, and nothing is held there", quiet: true},
		{reason: "nor where it may not be read", err: apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "x", nil), quiet: true},
		{reason: "to not know is an error", err: errors.New("connection refused"), fails: true},
		{reason: "a new tier holds", record: record(map[string]string{stateKey: v1alpha1.FirstSyncAdopt}), known: true},
		{reason: "a record that nobody understands holds", record: record(nil), known: true},
		{reason: "a settled one does not", record: record(map[string]string{stateKey: v1alpha1.FirstSyncSettled}), known: true, quiet: true, open: true},
		{reason: "but for what was moved away", record: record(map[string]string{stateKey: v1alpha1.FirstSyncSettled, "n_a": string(inventory.LastMoving)}), known: true},
	} {
		t.Run(c.reason, func(t *testing.T) {
			b := fake.NewClientBuilder()
			if c.record != nil {
				b = b.WithObjects(c.record)
			}
			if c.err != nil {
				b = b.WithInterceptorFuncs(interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return c.err
				}})
			}
			o := Other{Reader: b.Build()}
			got, err := o.For(t.Context(), []*unstructured.Unstructured{cluster("a", false)})
			if (err != nil) != c.fails || (got != nil) != c.known {
				t.Fatalf("it is %v, %v", got, err)
			}
			if got != nil && (!got.Elsewhere || got.Open(key("a")) != c.open) {
				t.Errorf("it is %+v", got)
			}
			if quiet, err := o.Quiet(t.Context()); (err != nil) != c.fails || quiet != c.quiet {
				t.Errorf("quiet is %v, %v", quiet, err)
			}
			if got, err := o.For(t.Context(), nil); got != nil || err != nil {
				t.Errorf("without Clusters it is %v, %v", got, err)
			}
		})
	}
}

// TestOtherNamespace: the agent of a first tier may be in any namespace, and its record counts as in the usual one.
func TestOtherNamespace(t *testing.T) {
	record := func(namespace, state string, data ...string) *corev1.ConfigMap {
		cm := NewRecord(namespace)
		cm.Data[stateKey] = state
		for i := 0; i < len(data); i += 2 {
			cm.Data[data[i]] = data[i+1]
		}
		return cm
	}
	const settled, open, adopt = v1alpha1.FirstSyncSettled, v1alpha1.FirstSyncOpen, v1alpha1.FirstSyncAdopt
	const usual = v1alpha1.AgentNamespace
	gone := elsewhereKey(key("a"))
	for name, c := range map[string]struct {
		reason  string
		records []client.Object
		want    *inventory.FirstSync
	}{
		"None":   {"what is of the agent is no record", []client.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gitops", Name: "x", Labels: record("", "").Labels}}}, nil},
		"Open":   {"a tier that was made anew", []client.Object{record("gitops", open)}, &inventory.FirstSync{}},
		"Adopt":  {"a person says that all may run elsewhere", []client.Object{record("gitops", adopt)}, &inventory.FirstSync{Insisted: true}},
		"Moved":  {"a pivot gave one to another", []client.Object{record("gitops", settled, gone, "p")}, &inventory.FirstSync{Settled: true, Clusters: standing(inventory.ManagedElsewhere)}},
		"Usual":  {"what is in the usual place counts, as before", []client.Object{record("gitops", adopt), record(usual, settled)}, &inventory.FirstSync{Settled: true}},
		"Left":   {"one that is left where an agent was hides no pivot either: what is not here is held (read 801)", []client.Object{record("gitops", settled, gone, "p"), record(usual, settled)}, &inventory.FirstSync{Settled: true, Clusters: standing(inventory.LastPaused)}},
		"Went":   {"nor that a Cluster went while it was moved", []client.Object{record("gitops", settled, "n_a", "moving"), record(usual, settled)}, &inventory.FirstSync{Settled: true, Clusters: standing(inventory.LastPaused)}},
		"Back":   {"an approval that is left there may be of before the pivot (read 866)", []client.Object{record("gitops", settled, gone, "p"), record(usual, settled, "n_a", "approved")}, &inventory.FirstSync{Settled: true, Clusters: standing(inventory.LastPaused)}},
		"Beside": {"one that only a person made hides no pivot (read 737)", []client.Object{record("gitops", settled, gone, "p"), record(usual, open)}, &inventory.FirstSync{Clusters: standing(inventory.ManagedElsewhere)}},
		"Paused": {"nor that a Cluster went while it was paused", []client.Object{record("gitops", settled, "n_a", "paused"), record(usual, open)}, &inventory.FirstSync{Clusters: standing(inventory.LastPaused)}},
		"Before": {"an approval there may be of before the pivot, which nobody took back (read 850)", []client.Object{record("gitops", settled, gone, "p"), record(usual, open, "n_a", "approved")}, &inventory.FirstSync{Clusters: standing(inventory.ManagedElsewhere)}},
		"Moving": {"or of before it was moved", []client.Object{record("gitops", settled, "n_a", "moving"), record(usual, open, "n_a", "approved")}, &inventory.FirstSync{Clusters: standing(inventory.LastMoving)}},
		"Lifted": {"what a person said of a Cluster in both counts", []client.Object{record("gitops", settled, "n_a", "approved"), record(usual, open, "n_a", "approved")}, &inventory.FirstSync{Clusters: standing(inventory.Approved)}},
		"Found":  {"what was found counts, as before", []client.Object{record("gitops", settled, gone, "p"), record(usual, open, "n_a", "adopted")}, &inventory.FirstSync{Clusters: standing(inventory.Adopted)}},
		"Others": {"nothing else of another one counts then", []client.Object{record("gitops", adopt, "n_a", "approved"), record(usual, open)}, &inventory.FirstSync{}},
		"Two":    {"the stricter of two counts", []client.Object{record("a", settled, gone, "p"), record("b", open, "n_a", "paused")}, &inventory.FirstSync{Clusters: standing(inventory.ManagedElsewhere)}},
		"Forged": {"an approval in another one lifts no hold", []client.Object{record("a", settled, "n_a", "approved"), record("b", open)}, &inventory.FirstSync{}},
		"Given":  {"but one where it is held does", []client.Object{record("a", settled), record("b", open, "n_a", "approved")}, &inventory.FirstSync{Clusters: standing(inventory.Approved)}},
	} {
		t.Run(name, func(t *testing.T) {
			o := Other{Reader: fake.NewClientBuilder().WithObjects(c.records...).Build()}
			got, err := o.For(t.Context(), []*unstructured.Unstructured{cluster("a", false)})
			if err != nil || (got == nil) != (c.want == nil) {
				t.Fatalf("%s: it is %+v, %v", c.reason, got, err)
			}
			if got != nil && (got.Settled != c.want.Settled || got.Insisted != c.want.Insisted || !maps.Equal(got.Clusters, c.want.Clusters) || !got.Elsewhere) {
				t.Errorf("%s: it is %+v, want %+v", c.reason, got, c.want)
			}
			free := c.want == nil || c.want.Settled && len(c.want.Clusters) == 0
			if quiet, err := o.Quiet(t.Context()); err != nil || quiet != free {
				t.Errorf("%s: quiet is %t, %v", c.reason, quiet, err)
			}
		})
	}
	refused := interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", nil)
	}}
	o := Other{Reader: fake.NewClientBuilder().WithObjects(record("gitops", open)).WithInterceptorFuncs(refused).Build()}
	if got, err := o.For(t.Context(), []*unstructured.Unstructured{cluster("a", false)}); got != nil || err != nil {
		t.Errorf("where no list is allowed it is %v, %v", got, err)
	}
	o.Reader = fake.NewClientBuilder().WithObjects(record("gitops", settled, gone, "p"), record(usual, open)).WithInterceptorFuncs(refused).Build()
	if got, err := o.For(t.Context(), []*unstructured.Unstructured{cluster("a", false)}); err != nil || got == nil || len(got.Clusters) > 0 {
		t.Errorf("where no list is allowed beside the usual one it is %+v, %v", got, err)
	}
}

func standing(s inventory.Standing) map[types.NamespacedName]inventory.Standing {
	return map[types.NamespacedName]inventory.Standing{key("a"): s}
}

// TestNoteOfAnotherTier: what is found or held elsewhere leaves no trace in the
// record of this tier, and wakes nobody here.
func TestNoteOfAnotherTier(t *testing.T) {
	tier := newTier(t)
	for name, is := range map[string]inventory.ClusterLive{"there": {State: inventory.Present}, "absent": {State: inventory.Absent}} {
		for _, elsewhere := range []bool{false, true} {
			c, err := inventory.PlanCreation(inventory.FleetOf([]*unstructured.Unstructured{cluster(name, false)}),
				&inventory.FirstSync{Elsewhere: elsewhere}, map[types.NamespacedName]inventory.ClusterLive{key(name): is}, nil)
			if err != nil {
				t.Fatal(err)
			}
			clear(tier.pending)
			tier.Note("Kustomization", key("owner"), c)
			if traces := len(tier.pending) + len(tier.holders); (traces == 0) != elsewhere {
				t.Errorf("%s, elsewhere %t: pending is %v, holders are %v", name, elsewhere, tier.pending, tier.holders)
			}
		}
	}
}
