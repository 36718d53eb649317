package remote

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// TestSplitLayer: what one commit takes out of a layer is not deleted before it is known that no Layer
// has it which the same commit brought, or changed, since the push began.
func TestSplitLayer(t *testing.T) {
	moved := inventory.Entry{Namespace: "x", Name: "moved", Kind: "Service", Version: "v1"}
	selecting := func(name string, generation int64) *v1alpha1.Layer {
		l := layerOn(name)
		l.UID, l.Generation, l.Spec.ClusterSelector.MatchLabels = types.UID(name), generation, map[string]string{"tier": "tenant"}
		return l
	}
	for name, tc := range map[string]struct {
		reason string
		// live are the Layers that the API server has by now.
		live  []*v1alpha1.Layer
		fails error
		want  apply.Claim
	}{
		"Alone":   {"nobody else can have it", []*v1alpha1.Layer{selecting("a", 1), selecting("b", 1)}, nil, apply.Claim{}},
		"New":     {"the commit moves it to a new layer", []*v1alpha1.Layer{selecting("a", 1), selecting("b", 1), selecting("c", 1)}, nil, apply.Claim{Owner: "Layer/fleet/c", Kind: apply.Declared}},
		"Changed": {"the commit moves it to a layer that gets another path", []*v1alpha1.Layer{selecting("a", 1), selecting("b", 2)}, nil, apply.Claim{Owner: "Layer/fleet/b", Kind: apply.Declared}},
		"Own":     {"the layer itself gets another path", []*v1alpha1.Layer{selecting("a", 2), selecting("b", 1)}, nil, apply.Claim{Owner: "Layer/fleet/a", Kind: apply.Declared}},
		"Others":  {"the new layer is for others", []*v1alpha1.Layer{selecting("a", 1), selecting("b", 1), layerOn("c")}, nil, apply.Claim{}},
		"Unread":  {"nobody knows which Layers there are", nil, errors.New("the API server is away"), apply.Claim{}},
	} {
		t.Run(name, func(t *testing.T) {
			child := childNamed("a", nil)
			child.Labels = map[string]string{"tier": "tenant"}
			objects := []client.Object{&child}
			for _, l := range tc.live {
				objects = append(objects, l)
			}
			c := fake.NewClientBuilder().WithScheme(removalScheme(t)).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					return errors.Join(tc.fails, c.List(ctx, list, opts...))
				},
			}).Build()
			p := bringing(t, newPaced(time.Minute)).push
			p.Cluster, p.labels, p.layers = &apply.Cluster{Client: c}, child.Labels, nil
			for _, l := range []*v1alpha1.Layer{selecting("a", 1), selecting("b", 1)} {
				p.layers = append(p.layers, &seeding{push: p, layer: l, rendered: &rendered{}})
			}
			declared, err := p.declared(t.Context())
			if (err != nil) != (tc.fails != nil) {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			got, err := plan.Claims(declared, "fleet/a")(t.Context(), moved, inventory.Entry{})
			if err != nil || got.Owner != tc.want.Owner || got.Kind != tc.want.Kind {
				t.Errorf("%s: the claim is %+v, want %+v (%v)", tc.reason, got, tc.want, err)
			}
		})
	}
}

// TestUnusableSelector: while the selector of another layer cannot be used, what a layer drops stays for that one, which may be
// for the child, as long as for any other owner that may declare it.
func TestUnusableSelector(t *testing.T) {
	dropped := inventory.Entry{Namespace: "x", Name: "dropped", Kind: "Service", Version: "v1"}
	another := inventory.Entry{Namespace: "x", Name: "another", Kind: "Service", Version: "v1"}
	lost := layerOn("lost")
	lost.Spec.ClusterSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "in", Values: []string{"tenant"}}}
	for name, tc := range map[string]struct {
		reason string
		change func(p *push)
		// after are those of the objects that stay once the wait is over.
		after []inventory.Entry
	}{
		"Lost": {"the child has nothing of it", func(*push) {}, []inventory.Entry{another}},
		"Has":  {"the child has it: it is one of its layers", func(p *push) { p.entry("lost").Digest = "sha256:1" }, []inventory.Entry{dropped, another}},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := bringing(t, newPaced(time.Minute)), start.Time
			c := fake.NewClientBuilder().WithScheme(removalScheme(t)).WithObjects(s.child.DeepCopy(), lost.DeepCopy()).Build()
			s.Cluster, s.layers = &apply.Cluster{Client: c}, nil
			tc.change(s.push)
			stay := func(left ...inventory.Entry) (stay []inventory.Entry) {
				t.Helper()
				declared, err := s.declared(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				claims := s.notes.claims(declared, s.key().String(), left, now)
				for _, e := range left {
					if claim, err := claims(t.Context(), e, inventory.Entry{}); err != nil || claim.Owner == "Layer/fleet/lost" {
						stay = append(stay, e)
					}
				}
				return stay
			}
			if got := stay(dropped); len(got) != 1 {
				t.Errorf("%s: at first %v stays", tc.reason, got)
			}
			now = now.Add(inventory.HandOverBound - time.Second)
			if got := stay(dropped, another); len(got) != 2 {
				t.Errorf("%s: before the wait is over %v stay", tc.reason, got)
			}
			now = now.Add(time.Second)
			if got := stay(dropped, another); !slices.Equal(got, tc.after) {
				t.Errorf("%s: then %v stay, want %v", tc.reason, got, tc.after)
			}
			if err := c.Delete(t.Context(), lost.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			if got := stay(dropped, another); len(got) > 0 || s.notes.unsure != nil {
				t.Errorf("%s: without the layer %v stay", tc.reason, got)
			}
		})
	}
}

// TestRelabelled: a commit may have another Layer select a cluster while it is pushed to. What goes to that one is not deleted
// by a run that selected its layers before.
func TestRelabelled(t *testing.T) {
	tenant, monitored := map[string]string{"tier": "tenant"}, map[string]string{"tier": "tenant", "monitoring": "true"}
	for name, tc := range map[string]struct {
		reason string
		// child and cluster are the labels of both by now; without any there is no Cluster.
		child, cluster map[string]string
		want           string
	}{
		"Same":    {"nothing has changed", tenant, tenant, ""},
		"Behind":  {"the Child gets the labels of its Cluster later", nil, tenant, ""},
		"Cluster": {"the commit labels the Cluster", tenant, monitored, v1alpha1.ReasonProgressing},
		"Alone":   {"a Child without a Cluster has its own", tenant, nil, ""},
		"Child":   {"the commit labels the Child", monitored, nil, v1alpha1.ReasonProgressing},
	} {
		t.Run(name, func(t *testing.T) {
			p := bringing(t, newPaced(time.Minute)).push
			p.labels, p.layers = tenant, nil
			child := p.child.DeepCopy()
			child.Labels = tc.child
			c := fake.NewClientBuilder().WithScheme(removalScheme(t)).Build()
			if tc.cluster != nil {
				child.Spec.ClusterRef = &v1alpha1.LocalReference{Name: child.Name}
				p.object = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}}
				p.object.SetNamespace(child.Namespace)
				p.object.SetName(child.Name)
				live := p.object.DeepCopy()
				live.SetLabels(tc.cluster)
				if err := c.Create(t.Context(), live); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Create(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			p.Cluster = &apply.Cluster{Client: c}
			if _, err := p.declared(t.Context()); (err != nil) != (tc.want != "") || err != nil && reason.Of(err) != tc.want {
				t.Errorf("%s: %v, want %s", tc.reason, err, tc.want)
			}
		})
	}
}

// TestDeclaredAhead: a newest revision that cannot be rendered is nothing to the prune of a layer that its Rollout holds at an
// older one; another layer may be about to lose something to it.
func TestDeclaredAhead(t *testing.T) {
	gone := inventory.Entry{Namespace: "x", Name: "gone", Kind: "Service", Version: "v1"}
	p := bringing(t, newPaced(time.Minute)).push
	c := fake.NewClientBuilder().WithScheme(removalScheme(t)).WithObjects(p.child.DeepCopy()).Build()
	p.Cluster, p.layers, p.Snapshots = &apply.Cluster{Client: c}, nil, source.NewSnapshots()
	p.undescribed = "the provider is away" // one of many reasons for which nothing new is rendered
	for _, name := range []string{"a", "b"} {
		p.layers = append(p.layers, &seeding{push: p, layer: layerOn(name), rendered: &rendered{}})
	}
	held := p.layers[0]
	held.layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Namespace: "fleet", Name: "fleet"}
	held.pin, held.snapshot = &v1alpha1.RolloutRevision{Revision: "r5"}, &source.Snapshot{Revision: "r5"}
	p.Snapshots.Put(layerSource(held.layer), &source.Snapshot{Revision: "r6"})
	declared, err := p.declared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for layer, want := range map[string]apply.Claim{"fleet/a": {}, "fleet/b": {Owner: "Layer/fleet/a", Kind: apply.Declared}} {
		if got, err := plan.Claims(declared, layer)(t.Context(), gone, inventory.Entry{}); err != nil || got.Owner != want.Owner || got.Kind != want.Kind {
			t.Errorf("to %s the claim is %+v, want %+v (%v)", layer, got, want, err)
		}
	}
}

// TestDeclarerBehind: children see a commit before the Kustomization that declares their Layers has applied
// it, and with it the Layer which is to have what another one no longer declares.
func TestDeclarerBehind(t *testing.T) {
	fleet := kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet", Namespace: "flux-system"}
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	dropped := inventory.Entry{Namespace: "x", Name: "dropped", Kind: "Service", Version: "v1"}
	another := inventory.Entry{Namespace: "x", Name: "another", Kind: "Service", Version: "v1"}
	for name, tc := range map[string]struct {
		reason string
		source kustomizev1.CrossNamespaceSourceReference
		status kustomizev1.KustomizationStatus
		after  time.Duration
		waits  bool
	}{
		"Behind":   {"it has the commit before", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r1", LastAttemptedRevision: "r1", Conditions: []metav1.Condition{condition(meta.ReadyCondition, metav1.ConditionTrue, meta.ReconciliationSucceededReason, "")}}, 0, true},
		"Applied":  {"it has this one", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r2", LastAttemptedRevision: "r2"}, 0, false},
		"Newer":    {"it has one that came since", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r3", LastAttemptedRevision: "r3"}, 0, false},
		"Other":    {"it is of another source", kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet"}, kustomizev1.KustomizationStatus{LastAppliedRevision: "r1"}, 0, false},
		"Applying": {"a part of it is applied, while the health of the commit before was waited for", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r1", LastAttemptedRevision: "r2", Conditions: []metav1.Condition{condition(meta.ReadyCondition, metav1.ConditionUnknown, meta.ProgressingReason, "Applying revision r2"), condition(meta.HealthyCondition, metav1.ConditionUnknown, meta.ProgressingReason, "Running health checks for revision r1")}}, 0, true},
		"Health":   {"it waits until this very layer is ready", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r1", LastAttemptedRevision: "r2", Conditions: []metav1.Condition{condition(meta.ReadyCondition, metav1.ConditionUnknown, meta.ProgressingReason, "Running health checks for revision r2"), condition(meta.HealthyCondition, metav1.ConditionUnknown, meta.ProgressingReason, "Running health checks for revision r2")}}, 0, false},
		"Unwell":   {"what it applied is not well", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r1", LastAttemptedRevision: "r2", Conditions: []metav1.Condition{condition(meta.ReadyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, "")}}, 0, false},
		"Rollout":  {"its Clusters wait for their Rollout", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r1", LastAttemptedRevision: "r2", Conditions: []metav1.Condition{condition(meta.ReadyCondition, metav1.ConditionTrue, meta.ReconciliationSucceededReason, "")}}, 0, false},
		"Held":     {"a person decides about what it would delete", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r1", LastAttemptedRevision: "r2", History: meta.History{{LastReconciledStatus: v1alpha1.ReasonPruneBlocked, Metadata: map[string]string{"revision": "r2"}}}, Conditions: []metav1.Condition{condition(meta.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonPruneBlocked, "")}}, 0, false},
		"Fails":    {"the Layer may be what is refused of it", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r1", LastAttemptedRevision: "r2", History: meta.History{{LastReconciledStatus: meta.ReconciliationFailedReason, Metadata: map[string]string{"revision": "r2"}}}, Conditions: []metav1.Condition{condition(meta.ReadyCondition, metav1.ConditionFalse, meta.ReconciliationFailedReason, "")}}, 0, true},
		"Overdue":  {"one that does not get so far holds nothing up for good", fleet, kustomizev1.KustomizationStatus{LastAppliedRevision: "r1"}, inventory.HandOverBound, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "tier", Name: "fleet"}, Status: tc.status}
			k.Spec.SourceRef = tc.source
			scheme := removalScheme(t)
			if err := kustomizev1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			p := newPaced(time.Minute)
			s := bringing(t, p)
			now := start.Time
			s.Client, s.Now = fake.NewClientBuilder().WithScheme(scheme).WithObjects(k).Build(), func() time.Time { return now }
			s.layer.Labels = map[string]string{kustomizev1.GroupVersion.Group + "/namespace": "tier", kustomizev1.GroupVersion.Group + "/name": "fleet"}
			s.layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: fleet.Kind, Namespace: fleet.Namespace, Name: fleet.Name}
			s.session = link.NewPool(t.Context(), scheme, s.Now, s.Rand).Of(s.run.key()).Begin(link.Request{Read: func(context.Context) (*rest.Config, error) {
				return nil, errors.New("the child is to be asked what goes")
			}})
			s.Snapshots = source.NewSnapshots()
			s.Snapshots.Put(layerSource(s.layer), &source.Snapshot{Revision: "r3"})
			s.snapshot, s.layers, s.leftover, s.complete = &source.Snapshot{Revision: "r2"}, []*seeding{s}, true, true
			s.notes.left = []inventory.Entry{dropped}
			entry := s.entry(s.layer.Name)
			if s.pruneLayers(t.Context()); tc.after > 0 {
				if entry.Reason != v1alpha1.ReasonHandOverPending {
					t.Errorf("%s: at first it is %s: %s", tc.reason, entry.Reason, entry.Message)
				}
				now = now.Add(tc.after)
				s.pruneLayers(t.Context())
			}
			if waits := entry.Reason == v1alpha1.ReasonHandOverPending; waits != tc.waits {
				t.Errorf("%s: it is %s: %s", tc.reason, entry.Reason, entry.Message)
			}
			if tc.after > 0 {
				s.rendered = &rendered{digest: "sha256:2"} // of a Secret that was renewed
				if s.pruneLayers(t.Context()); entry.Reason == v1alpha1.ReasonHandOverPending {
					t.Errorf("%s: it waits anew for the same, as something else changed", tc.reason)
				}
				s.notes.left, s.leftover = []inventory.Entry{dropped, another}, true
				if s.pruneLayers(t.Context()); entry.Reason == v1alpha1.ReasonHandOverPending {
					t.Errorf("%s: it waits anew, as the next commit drops something too: %s", tc.reason, entry.Message)
				}
				for e, want := range map[inventory.Entry]string{dropped: "", another: "Kustomization/tier/fleet"} {
					if claim, err := s.awaiting.claims(plan.Claims(nil, ""))(t.Context(), e, inventory.Entry{}); err != nil || claim.Owner != want {
						t.Errorf("%s: %s stays for %q, want %q (%v)", tc.reason, e.Name, claim.Owner, want, err)
					}
				}
				s.notes.left, s.leftover = []inventory.Entry{another}, true
				if s.pruneLayers(t.Context()); entry.Reason != v1alpha1.ReasonHandOverPending {
					t.Errorf("%s: what the next commit drops is not waited for: it is %s: %s", tc.reason, entry.Reason, entry.Message)
				}
			}
		})
	}
}

// TestApplierBehind: what one commit moves from a layer to a Kustomization that applies to the child is not deleted before
// that one has it.
func TestApplierBehind(t *testing.T) {
	named := func(name string, changes ...func(*kustomizev1.Kustomization)) *kustomizev1.Kustomization {
		k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
		k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet"}
		k.Status.LastAppliedRevision = "r1"
		for _, change := range changes {
			change(k)
		}
		return k
	}
	applied := func(k *kustomizev1.Kustomization) { k.Status.LastAppliedRevision = "r2" }
	leads := func(secret, cluster string) func(*kustomizev1.Kustomization) {
		return func(k *kustomizev1.Kustomization) {
			k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: secret}}
			if cluster != "" {
				k.Annotations = map[string]string{target.Annotation: target.Ref{Kind: "Secret", Name: secret, Cluster: cluster}.Encode()}
			}
		}
	}
	after := func(name string) func(*kustomizev1.Kustomization) {
		return func(k *kustomizev1.Kustomization) { k.Spec.DependsOn = []kustomizev1.DependencyReference{{Name: name}} }
	}
	waiting := func(k *kustomizev1.Kustomization) { k.Spec.Wait = true }
	for name, tc := range map[string]struct {
		reason string
		own    string
		tier   []*kustomizev1.Kustomization
		waits  bool
	}{
		"Behind":    {"it applies to the child, and has the commit before", "near", []*kustomizev1.Kustomization{named("apps", leads("any", "far"))}, true},
		"New":       {"it came with the commit, and names the kubeconfig of the child", "near", []*kustomizev1.Kustomization{named("apps", leads("a-kubeconfig", ""))}, true},
		"Own":       {"the child is this tier's own cluster", "far", []*kustomizev1.Kustomization{named("apps")}, true},
		"Applied":   {"it has this commit", "near", []*kustomizev1.Kustomization{named("apps", leads("any", "far"), applied)}, false},
		"Elsewhere": {"it applies to another cluster", "near", []*kustomizev1.Kustomization{named("apps", leads("a-kubeconfig", "other"))}, false},
		"Local":     {"it applies to the tier, which is not the child", "near", []*kustomizev1.Kustomization{named("apps")}, false},
		"Suspended": {"nobody knows when it goes on", "near", []*kustomizev1.Kustomization{named("apps", leads("any", "far"), func(k *kustomizev1.Kustomization) { k.Spec.Suspend = true })}, false},
		"HeldUp":    {"it waits until this very layer is ready", "near", []*kustomizev1.Kustomization{named("root", applied, waiting), named("apps", leads("any", "far"), after("root"))}, false},
		"Chain":     {"it waits for one that does", "near", []*kustomizev1.Kustomization{named("root", applied, waiting), named("base", applied, after("root")), named("apps", leads("any", "far"), after("base"))}, false},
		"Later":     {"it waits for what does not wait for health", "near", []*kustomizev1.Kustomization{named("root", applied), named("apps", leads("any", "far"), after("root"))}, true},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := removalScheme(t)
			if err := kustomizev1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(scheme)
			for _, k := range tc.tier {
				c.WithObjects(k)
			}
			s := bringing(t, newPaced(time.Minute))
			s.Client, s.own, s.cluster.Name = c.Build(), tc.own, "a"
			s.child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "far"}
			s.layer.Labels = map[string]string{kustomizev1.GroupVersion.Group + "/namespace": "fleet", kustomizev1.GroupVersion.Group + "/name": "root"}
			s.layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet"}
			s.Snapshots, s.snapshot = source.NewSnapshots(), &source.Snapshot{Revision: "r2"}
			if err := s.awaitsDeclarer(t.Context()); (reason.Of(err) == v1alpha1.ReasonHandOverPending) != tc.waits {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}
