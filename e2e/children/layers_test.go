package children

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// inhabited is a cluster that has some of what a layer brings. That is found out by
// one list, and what a person exempted is left alone.
func inhabited(h *hub, t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"a", "b", "c", "d"} {
		files["app/"+name+".yaml"] = noteNamed(name, "by", "git")
	}
	f := h.fleet(t, "inhabited", files)
	p := h.plane(t, "inhabited", "--audit-reads")
	for name, annotations := range map[string]map[string]string{"a": {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}, "b": nil} {
		if err := p.client.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations}, Data: map[string]string{"by": "hand"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	f.layer(t, "app", "inhabited")
	from := p.now(t)
	f.declare(t, "inhabited")
	f.report(t, "inhabited", initialized)
	f.handOver(t, "inhabited", p.issue(t).kubeconfig)
	f.ready(t, "inhabited", "")
	for name, want := range map[string]string{"a": "hand", "b": "git", "c": "git", "d": "git"} {
		p.has(t, name, "by", want)
	}
	lists := 0
	for _, e := range p.requests(t, from) {
		switch {
		case e.ObjectRef.Resource != "configmaps" || e.ObjectRef.Namespace != "default":
		case e.Verb == "list":
			lists++
		case e.Verb == "get":
			t.Errorf("%s was asked for, although there was a list", e.ObjectRef.Name)
		}
	}
	if lists != 1 {
		t.Errorf("ConfigMaps were listed %d times", lists)
	}
}

func layerNamed(f *fleet, name string) *v1alpha1.Layer {
	return &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: name}}
}

// layers are several on one child, that depend on each other.
func layers(h *hub, t *testing.T) {
	f := h.fleet(t, "layers", map[string]string{
		// Named so that its CRD comes last in any alphabetic order.
		"base/a-widget.yaml": "apiVersion: example.com/v1\nkind: Widget\nmetadata:\n  name: first\n  namespace: default\nspec: {cluster: \"${cluster_name}\"}\n",
		"base/z-crd.yaml":    widgets,
		"app/note.yaml":      noteNamed("app", "cluster", "${cluster_name}", "uid", "${cluster_uid}", "label", "${label_environment}", "own", "${git_url}", "pods", "${pod_cidr}", "word", "${word}"),
		"broken/note.yaml":   noteNamed("broken", "cluster", "${cluster_name}") + "  data: [\n",
		"top/note.yaml":      noteNamed("top", "cluster", "${cluster_name}"),
	})
	p := h.plane(t, "layers")
	f.layer(t, "app", "c", "dependsOn: [{name: base}]", `postBuild: {substitute: {word: "of the layer"}}`)
	// More Secrets than are looked at one by one.
	more := make([]string, 9)
	for n := range more {
		more[n] = fmt.Sprintf("{kind: Secret, name: \"more-%d-${cluster_name}\", optional: true}", n)
	}
	f.layer(t, "base", "c", "wait: true", "credentials: [{name: handed, secretRef: {name: \"original-${label_environment}\"}}]",
		"postBuild: {substituteFrom: ["+strings.Join(more, ", ")+"]}")
	f.layer(t, "top", "c", "dependsOn: [{name: broken}]")
	f.layer(t, "broken", "c")
	f.define(t, `{apiVersion: v1, kind: Secret, metadata: {name: original-blue}, stringData: {word: one}}`)
	f.declare(t, "c", `clusterNetwork: {pods: {cidrBlocks: [10.1.0.0/16]}}`)
	f.patch(t, f.cluster(t, "c"), map[string]any{"metadata": map[string]any{
		"labels": map[string]any{"environment": "blue"}, "annotations": map[string]any{"vars.cascade.dev/git_url": "https://example.com/apps"},
	}})
	f.report(t, "c", initialized)
	f.handOver(t, "c", p.issue(t).kubeconfig)
	handed := func(want string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			s := &corev1.Secret{}
			if err := p.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: "handed"}, s); err != nil {
				return err
			}
			if string(s.Data["word"]) != want {
				return fmt.Errorf("the word is %q", s.Data["word"])
			}
			return nil
		}
	}
	steps(t,
		step{"DependencyWaits", func(t *testing.T) {
			f.says(t, "c", v1alpha1.SeededCondition, v1alpha1.ReasonBuildFailed, "broken")
			scenario.Eventually(t, scenario.Converge, "layer top waits", func(ctx context.Context) error {
				child, err := f.child(ctx, "c")
				if err != nil {
					return err
				}
				for _, l := range child.Status.Layers {
					if l.Name == "top" && l.Reason == v1alpha1.ReasonDependencyNotReady {
						return nil
					}
				}
				return fmt.Errorf("layers are %v", child.Status.Layers)
			})
			p.hasNot(t, "top")
			// One that fails does not hold up those that do not depend on it.
			p.has(t, "app", "cluster", "c")
			sha := f.commit(t, map[string]string{"broken/note.yaml": noteNamed("broken", "cluster", "${cluster_name}")})
			p.has(t, "top", "cluster", "c")
			f.ready(t, "c", sha)
		}},
		check{"Order", func(t *testing.T) {
			inOrder(t, p.writes(t, 0), "secrets/handed", "customresourcedefinitions/widgets.example.com", "widgets/first", "configmaps/app")
		}},
		check{"Variables", func(t *testing.T) {
			for key, want := range map[string]string{
				"uid": string(f.cluster(t, "c").GetUID()), "label": "blue", "own": "https://example.com/apps", "pods": "10.1.0.0/16", "word": "of the layer",
			} {
				p.has(t, "app", key, want)
			}
		}},
		step{"Credentials", func(t *testing.T) {
			scenario.Eventually(t, scenario.Converge, "the Secret is handed over", handed("one"))
			f.define(t, `{apiVersion: v1, kind: Secret, metadata: {name: original-blue}, stringData: {word: two}}`)
			scenario.Eventually(t, 2*scenario.Converge, "the new content is handed over", handed("two"))
			if got := f.child1(t, "c").Status.Credentials; len(got) != 1 || got[0].Name != "handed" || got[0].ExpiresAt != nil {
				t.Errorf("recorded are %v", got)
			}
		}},
		step{"ReferenceInvalid", func(t *testing.T) {
			label := func(value any) {
				t.Helper()
				f.patch(t, f.cluster(t, "c"), map[string]any{"metadata": map[string]any{"labels": map[string]any{"environment": value}}})
			}
			label(nil)
			f.says(t, "c", v1alpha1.SeededCondition, v1alpha1.ReasonReferenceInvalid, "original-${label_environment}", "label_environment")
			label("blue")
			f.ready(t, "c", "")
		}},
		step{"CredentialsThatLapse", func(t *testing.T) {
			secret := &corev1.Secret{}
			if err := f.client.Get(t.Context(), client.ObjectKey{Namespace: f.name, Name: "original-blue"}, secret); err != nil {
				t.Fatal(err)
			}
			expires := func(at time.Time) {
				t.Helper()
				written := time.Now()
				f.annotate(t, secret, v1alpha1.ExpiresAnnotation, at.UTC().Format(time.RFC3339))
				within := time.Since(written) + 2*time.Second
				f.reconciled(t, "c")
				scenario.Eventually(t, scenario.Converge, "the end of its life is known", func(ctx context.Context) error {
					child, err := f.child(ctx, "c")
					if err != nil {
						return err
					}
					got := child.Status.Credentials
					if len(got) != 1 || got[0].ExpiresAt == nil || got[0].RenewAt == nil || got[0].ExpiresAt.Unix() != at.Unix() {
						return fmt.Errorf("recorded are %v", got)
					}
					// It is as old as what says when it ends: the same Secret is renewed again and again.
					due := written.Add(at.Sub(written) * 2 / 3)
					if off := got[0].RenewAt.Sub(due).Abs(); off > within {
						return fmt.Errorf("it is to be renewed at %s, two thirds of its life are over at %s", got[0].RenewAt, due)
					}
					return nil
				})
			}
			expires(time.Now().Add(time.Hour))
			if c := meta.FindStatusCondition(f.child1(t, "c").Status.Conditions, v1alpha1.CredentialsExpiringCondition); c != nil {
				t.Errorf("there is a warning too early: %s", c.Message)
			}
			expires(time.Now())
			scenario.Eventually(t, scenario.Converge, "there is a warning", func(ctx context.Context) error {
				child, err := f.child(ctx, "c")
				if err != nil {
					return err
				}
				c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.CredentialsExpiringCondition)
				if c == nil || c.Reason != v1alpha1.ReasonCredentialsLapsed || !strings.Contains(c.Message, "handed") {
					return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
				}
				return nil
			})
			// Renewed.
			expires(time.Now().Add(time.Hour))
			scenario.Eventually(t, scenario.Converge, "the warning goes", func(ctx context.Context) error {
				child, err := f.child(ctx, "c")
				if err == nil && meta.FindStatusCondition(child.Status.Conditions, v1alpha1.CredentialsExpiringCondition) != nil {
					err = fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
				}
				return err
			})
		}},
		check{"InventoriesInTheChild", func(t *testing.T) {
			child := f.child1(t, "c")
			if len(child.Status.Layers) != 4 {
				t.Fatalf("layers are %v", child.Status.Layers)
			}
			for _, l := range child.Status.Layers {
				r, err := p.record(t.Context(), f.name, l.Name)
				if err != nil {
					t.Fatal(err)
				}
				if len(r.Inventory) == 0 || len(l.Inventory) != 0 {
					t.Errorf("layer %s has %d objects on record in the child, %d in the hub", l.Name, len(r.Inventory), len(l.Inventory))
				}
				if !r.InPlace(l.Digest) || l.LastAttemptedDigest != l.Digest || r.Cluster.Name != "c" || r.Parent.Holder == "" {
					t.Errorf("the record of layer %s is %+v, the hub has %+v", l.Name, r, l)
				}
			}
			if text, err := json.Marshal(child.Status.Layers); err != nil || len(text) > 4*600 {
				t.Errorf("the hub has %d bytes of 4 layers: %v", len(text), err)
			}
		}},
		step{"LostChildIsAdopted", func(t *testing.T) {
			f.ready(t, "c", "")
			before := f.child1(t, "c")
			from := p.now(t)
			if err := f.client.Delete(t.Context(), before); err != nil {
				t.Fatal(err)
			}
			scenario.Eventually(t, scenario.Converge, "the Child is there again", func(ctx context.Context) error {
				child, err := f.child(ctx, "c")
				if err != nil {
					return err
				}
				if child.UID == before.UID || !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) || len(child.Status.Layers) != 4 {
					return fmt.Errorf("UID %s, conditions are %s", child.UID, scenario.Summary(child.Status.Conditions))
				}
				return nil
			})
			p.untouched(t, from)
		}},
	)
}

const widgets = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.com
spec:
  group: example.com
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// byHand is a cluster that Cluster API did not make: the same treatment.
func byHand(h *hub, t *testing.T) {
	f := h.fleet(t, "byhand", map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "1")})
	right, wrong := h.plane(t, "by-hand"), h.plane(t, "by-hand-wrong")
	f.layer(t, "app", "mine")
	handOver := func(kubeconfig []byte) {
		t.Helper()
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: "mine"}, Data: map[string][]byte{"config": kubeconfig}}
		err := f.client.Create(t.Context(), secret)
		if apierrors.IsAlreadyExists(err) {
			err = f.client.Update(t.Context(), secret)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f.define(t, "{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: mine, labels: {cluster: mine}}, spec: {kubeConfig: {secretRef: {name: mine, key: config}}}}")
	steps(t,
		step{"KubeconfigMissing", func(t *testing.T) {
			f.says(t, "mine", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigMissing, "mine")
			scenario.Eventually(t, scenario.Converge, "an event says so", func(ctx context.Context) error {
				list := &corev1.EventList{}
				if err := f.client.List(ctx, list, client.InNamespace(f.name)); err != nil {
					return err
				}
				if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == v1alpha1.ReasonKubeconfigMissing }) {
					return fmt.Errorf("there are %d events", len(list.Items))
				}
				return nil
			})
		}},
		step{"Seeded", func(t *testing.T) {
			handOver(right.issue(t).kubeconfig)
			f.reconciled(t, "mine")
			right.has(t, "note", "cluster", "mine")
			child := f.ready(t, "mine", "")
			if child.Status.Identity.ClusterUID != "" || child.Status.Identity.KubeSystemUID == "" {
				t.Errorf("the identity is %v", child.Status.Identity)
			}
			right.minted(t, 0)
		}},
		step{"RevokedIsMintedAnew", func(t *testing.T) {
			said := f.keep(t)
			right.dismiss(t)
			sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "2")})
			right.has(t, "note", "version", "2")
			f.ready(t, "mine", sha)
			for _, c := range said.complaints() {
				t.Error(c)
			}
		}},
		step{"IdentityChanged", func(t *testing.T) {
			handOver(wrong.issue(t).kubeconfig)
			f.reconciled(t, "mine")
			f.says(t, "mine", v1alpha1.ConnectedCondition, v1alpha1.ReasonIdentityChanged)
			sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "3")})
			f.fetched(t, sha)
			f.reconciled(t, "mine")
			handOver(right.issue(t).kubeconfig)
			f.reconciled(t, "mine")
			right.has(t, "note", "version", "3")
			f.ready(t, "mine", sha)
			wrong.untouched(t, 0)
		}},
		step{"RemovedByHand", func(t *testing.T) {
			from := right.now(t)
			if err := f.client.Delete(t.Context(), f.child1(t, "mine")); err != nil {
				t.Fatal(err)
			}
			sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "4")})
			f.fetched(t, sha)
			right.untouched(t, from)
			right.has(t, "note", "version", "3")
			if _, err := f.child(t.Context(), "mine"); !apierrors.IsNotFound(err) {
				t.Errorf("the Child is there again, or cannot be read: %v", err)
			}
		}},
	)
}
