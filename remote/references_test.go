package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// TestRefersTo: which Secret of the layer's namespace a child gets is up to its Cluster in
// this tier, and to nothing else.
func TestRefersTo(t *testing.T) {
	cluster := capibridge.Cluster{
		Namespace: "fleet", Name: "alpha", UID: "own", Labels: map[string]string{"environment": "staging", "path": "../production/git"},
		Annotations: map[string]string{"vars.cascade.dev/team": "red", "vars.cascade.dev/upper": "Red"},
	}
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "l"}}
	layer.Spec.PostBuild = &v1alpha1.PostBuild{Substitute: map[string]string{"site": "here"}}
	for _, c := range []struct{ reason, name, want string }{
		{"a plain name", "git-auth", "git-auth"},
		{"a label", "git-${label_environment}", "git-staging"},
		{"the name", "${cluster_name}.key", "alpha.key"},
		{"an annotation", "git-${team}", "git-red"},
		{"an inline value", "git-${site}", "git-here"},
		{"a default", "git-${none:=all}", "git-all"},
		{"a variable that nobody set", "git-${none}", ""},
		{"a value of a Secret", "git-${secret}", ""},
		{"another namespace", "${label_path}", ""},
		{"letters that no name has", "git-${upper}", ""},
		{"a version that only the child states", "git-${cluster_version}", ""},
		{"the UID is that of the Cluster here, whatever the record in the child says", "git-${cluster_uid}", "git-own"},
		{"no substitution at all", "git-${", ""},
	} {
		t.Run(c.reason, func(t *testing.T) {
			s := &seeding{push: &push{cluster: cluster}, layer: layer, vars: map[string]string{"secret": "s3cr3t", "cluster_uid": "other", "cluster_version": "v1"}}
			got, err := s.refersTo("Secret", c.name)
			if c.want == "" {
				if reason.Of(err) != v1alpha1.ReasonReferenceInvalid || !strings.Contains(err.Error(), c.name) || len(s.refers) > 0 {
					t.Errorf("it is %s, %v, refers to %v", got, err, s.refers)
				}
				return
			}
			if want := (types.NamespacedName{Namespace: "fleet", Name: c.want}); got != want || err != nil || !slices.Equal(s.refers, []use{{reference: reference{"Secret", c.want}}}) {
				t.Errorf("it is %s, %v, refers to %v", got, err, s.refers)
			}
		})
	}
}

// TestLookAtReferences: a child is woken when a Secret changes that a layer refers to for
// it, or is another one than it was rendered from, and for no other one; a thousand Secrets are one request.
func TestLookAtReferences(t *testing.T) {
	for _, children := range []int{3, 1000} {
		var objects []client.Object
		layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "l"}}
		key := client.ObjectKeyFromObject(layer)
		used := &inUse{}
		for n := range children {
			objects = append(objects, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: fmt.Sprintf("git-c%d", n)}})
		}
		requests := 0
		reader := fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				requests++
				return c.Get(ctx, k, o, opts...)
			},
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
				requests++
				return c.List(ctx, l, opts...)
			},
		}).Build()
		secretOf := func(child string) (secret *corev1.Secret, version string) {
			t.Helper()
			secret = &corev1.Secret{}
			if err := reader.Get(t.Context(), types.NamespacedName{Namespace: "fleet", Name: "git-" + child}, secret); apierrors.IsNotFound(err) {
				return secret, ""
			} else if err != nil {
				t.Fatal(err)
			}
			return secret, versionOf(secret)
		}
		// runs has a child rendered from a version of its Secret.
		runs := func(child, version string) {
			used.set(types.NamespacedName{Namespace: "fleet", Name: child}, map[types.NamespacedName][]use{key: {
				{reference: reference{"ConfigMap", "none"}, read: true}, {reference: reference{"Secret", "git-" + child}, version: version, read: true},
				{reference: reference{"Secret", "git-c2"}}, // which its account may not read
			}})
		}
		for n := range children {
			_, version := secretOf(fmt.Sprintf("c%d", n))
			runs(fmt.Sprintf("c%d", n), version)
		}
		var woken []string
		cache := &referenceCache{read: map[referenceKey]cachedReference{}}
		r := &Layers{
			Reader: reader, inUse: used, references: cache, seen: map[types.NamespacedName]layerSeen{},
			Wake: func(child types.NamespacedName) { woken = append(woken, child.Name) },
		}
		look := func(why string, want ...string) {
			t.Helper()
			woken = nil
			if result, err := r.look(t.Context(), layer); err != nil || result.RequeueAfter != referencePause {
				t.Fatal(result, err)
			}
			if !slices.Equal(woken, want) {
				t.Errorf("%d children: %s: woken are %v, want %v", children, why, woken, want)
			}
		}
		requests = 0
		look("all have what there is")
		want := 2 // a list of Secrets, and the ConfigMap
		if children <= mostGets {
			want = children + 1
		}
		if requests != want {
			t.Errorf("%d children took %d requests, want %d", children, requests, want)
		}
		secret, earlier := secretOf("c1")
		secret.Data = map[string][]byte{"key": []byte("new")}
		if err := reader.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		cached := referenceKey{name: client.ObjectKeyFromObject(secret), secret: true}
		cache.read[cached] = cachedReference{object: secret, version: earlier}
		look("a Secret changed", "c1")
		if _, there := cache.read[cached]; there {
			t.Error("who is woken reads what there was before")
		}
		look("it had no run since")
		runs("c1", earlier)
		look("it read what another child had read before", "c1")
		runs("c1", versionOf(secret))
		look("it has what there is")
		if err := reader.Delete(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		look("a Secret is gone", "c1")
		used.set(types.NamespacedName{Namespace: "fleet", Name: "c1"}, nil)
		secret.ResourceVersion = ""
		if err := reader.Create(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		look("the layer does not select it any more")
		runs("c1", earlier)
		clear(r.seen)
		look("the first look after a start finds another one than the run before it", "c1")
	}
}

// TestLookBeforeChildren: after a restart a layer is looked at again, though no child had a
// run yet and nothing else calls for it.
func TestLookBeforeChildren(t *testing.T) {
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "l"}}
	r := &Layers{inUse: &inUse{}}
	if result, err := r.look(t.Context(), layer); err != nil || result.RequeueAfter != 0 {
		t.Errorf("a layer that refers to nothing: %v, %v", result, err)
	}
	layer.Spec.Credentials = []v1alpha1.CredentialReference{{Name: "git", SecretRef: &v1alpha1.LocalReference{Name: "git"}}}
	if result, err := r.look(t.Context(), layer); err != nil || result.RequeueAfter != referencePause {
		t.Errorf("no child had a run since the start: %v, %v", result, err)
	}
}
