package fleet

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// handWrittenChild connects a cluster by a kubeconfig instead of through Cluster
// API, pushes a layer without an agent, and then has the kubeconfig lead to
// another cluster, to which nothing may be written.
func (f *fleet) handWrittenChild(t *testing.T) {
	staging, alpha := f.tiers["staging"], f.tiers["alpha"]
	// A cluster that is no Child yet: two Children are never one cluster.
	byHand, err := f.Cluster(t.Context(), "handmade", "--api-only")
	if err != nil {
		t.Fatal(err)
	}
	f.commit(t, "env-staging", "A layer for clusters made by hand", func(dir string) error {
		if err := os.Mkdir(filepath.Join(dir, "layers", "handmade"), 0o755); err != nil {
			return err
		}
		text := strings.NewReplacer("name: note", "name: handmade", "cascade-system", "default").Replace(note)
		return os.WriteFile(filepath.Join(dir, "layers", "handmade", "note.yaml"), []byte(text), 0o644)
	})
	c, err := staging.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := stage.Apply(t.Context(), c, handmade); err != nil {
		t.Fatal(err)
	}
	lead := func(to *stage.Tier) {
		t.Helper()
		kubeconfig, err := os.ReadFile(to.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "handmade"}, Data: map[string][]byte{"value": kubeconfig}}
		if err := c.Create(t.Context(), secret); apierrors.IsAlreadyExists(err) {
			err = c.Update(t.Context(), secret)
			if err != nil {
				t.Fatal(err)
			}
		} else if err != nil {
			t.Fatal(err)
		}
	}
	state := func(reason string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			child := &v1alpha1.Child{}
			if err := scenario.Get(ctx, staging, child, stage.Namespace, "handmade"); err != nil {
				return err
			}
			if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ReadyCondition); c == nil || c.Reason != reason {
				return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
			}
			return nil
		}
	}
	lead(byHand)
	scenario.Eventually(t, scenario.Converge, "the layer is in the cluster", state(v1alpha1.ReasonSucceeded))
	cm := &corev1.ConfigMap{}
	if err := scenario.Get(t.Context(), byHand, cm, "default", "handmade"); err != nil || cm.Data["cluster"] != "handmade" {
		t.Fatalf("the note is %v, %v", cm.Data, err)
	}

	lead(alpha)
	scenario.Eventually(t, scenario.Converge, "the swap is noticed", state(v1alpha1.ReasonIdentityChanged))
	// A new commit for the layer must not reach the wrong cluster either.
	f.commit(t, "env-staging", "Change the layer", func(dir string) error {
		return scenario.ReplaceIn(filepath.Join(dir, "layers", "handmade", "note.yaml"), "cluster: ", "cluster: again-")
	})
	f.greet(t)
	f.greeted(t, scenario.Converge, "alpha")
	if err := state(v1alpha1.ReasonIdentityChanged)(t.Context()); err != nil {
		t.Error(err)
	}
	if err := scenario.Get(t.Context(), alpha, cm, "default", "handmade"); !apierrors.IsNotFound(err) {
		t.Errorf("the wrong cluster was written to: %v", err)
	}
	lead(byHand)
	scenario.Eventually(t, scenario.BringUp, "the right cluster is followed again", func(ctx context.Context) error {
		if err := scenario.Get(ctx, byHand, cm, "default", "handmade"); err != nil {
			return err
		}
		if cm.Data["cluster"] != "again-handmade" {
			return fmt.Errorf("the note is %v", cm.Data)
		}
		return nil
	})

	// No longer selected, and the layer says Delete.
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "handmade"}}
	if err := c.Patch(t.Context(), child, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"made-by":"nobody"}}}`))); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the layer is taken back", func(ctx context.Context) error {
		if err := scenario.Get(ctx, byHand, cm, "default", "handmade"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the note is still there: %v", err)
		}
		if err := scenario.Get(ctx, staging, child, stage.Namespace, "handmade"); err != nil {
			return err
		}
		if len(child.Status.Layers) > 0 {
			return fmt.Errorf("layers are %v", child.Status.Layers)
		}
		return nil
	})

	// Its control plane ends with this part: the tier must not be seen to miss it.
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "handmade"}}
	for _, o := range []client.Object{layer, child} {
		if err := c.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	scenario.Eventually(t, scenario.Converge, "the child and its layer are gone", func(ctx context.Context) error {
		for _, o := range []client.Object{layer, child} {
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%T is still there: %v", o, err)
			}
		}
		return nil
	})
}

const handmade = `apiVersion: cascade.dev/v1alpha1
kind: Child
metadata:
  name: handmade
  namespace: cascade-system
  labels: {made-by: hand}
spec:
  kubeConfig: {secretRef: {name: handmade}}
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata:
  name: handmade
  namespace: cascade-system
spec:
  clusterSelector:
    matchLabels: {made-by: hand}
  sourceRef: {kind: GitRepository, name: environment}
  path: ./layers/handmade
  wait: true
  deletionPolicy: Delete
`

// detached kills the MoM's control plane: the tiers below go on, and when it
// comes back it touches nothing.
func (f *fleet) detached(t *testing.T) {
	below := []string{"production", "staging", "alpha", "beta", "gamma", "delta"}
	before := map[string]map[string]string{}
	offsets := map[string]int64{}
	for _, name := range below {
		var err error
		before[name] = uids(t, f.tiers[name])
		if _, offsets[name], err = f.tiers[name].Audit(0); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.MoM.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.greet(t)
	f.greeted(t, scenario.Converge, "alpha", "beta", "gamma", "delta")
	f.commit(t, "env-production", "Note for the services", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "services", "note.yaml"), []byte(strings.ReplaceAll(note, "cascade-system", "services")), 0o644)
	})
	scenario.Eventually(t, scenario.Converge, "the environment is synced without the MoM", func(ctx context.Context) error {
		return scenario.Get(ctx, f.tiers["production"], &corev1.ConfigMap{}, "services", "note")
	})
	if err := f.MoM.StartControlPlane(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Ask for a reconcile of each child and wait for the answer: then the MoM has
	// looked at everything below and done what it would do.
	token := time.Now().Format(time.RFC3339Nano)
	for master := range declared {
		scenario.Eventually(t, scenario.BringUp, "the MoM reconciles "+master+" again", func(ctx context.Context) error {
			child := &v1alpha1.Child{}
			if err := scenario.Get(ctx, f.MoM, child, stage.Namespace, master); err != nil {
				return err
			}
			if child.Annotations[fluxmeta.ReconcileRequestAnnotation] != token {
				return annotate(ctx, f.MoM, child, fluxmeta.ReconcileRequestAnnotation, token)
			}
			if child.Status.LastHandledReconcileAt != token || !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
				return fmt.Errorf("handled %q, conditions are %s", child.Status.LastHandledReconcileAt, scenario.Summary(child.Status.Conditions))
			}
			return nil
		})
	}
	for _, name := range below {
		after := uids(t, f.tiers[name])
		for object, uid := range before[name] {
			if after[object] != uid {
				t.Errorf("%s: %s had UID %s, has %q", name, object, uid, after[object])
			}
		}
		f.noDeletes(t, f.tiers[name], offsets[name])
	}
}

// annotate sets an annotation. It is an error in any case, so that the caller
// looks again.
func annotate(ctx context.Context, tier *stage.Tier, o client.Object, key, value string) error {
	c, err := tier.Client()
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	if err := c.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return err
	}
	return fmt.Errorf("just annotated")
}

// uids of every object of a cluster, without those that come and go by nature.
func uids(t *testing.T, tier *stage.Tier) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, o := range objects(t, tier) {
		switch o.GetKind() {
		case "Event", "Lease", "Pod", "EndpointSlice", "Endpoints":
			continue
		}
		found[o.GetKind()+"/"+o.GetNamespace()+"/"+o.GetName()] = string(o.GetUID())
	}
	return found
}

// objects reads every object of a cluster.
func objects(t *testing.T, tier *stage.Tier) []unstructured.Unstructured {
	t.Helper()
	config, err := tier.Config()
	if err != nil {
		t.Fatal(err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := disco.ServerPreferredResources()
	if err != nil {
		t.Fatalf("cannot discover the resources of %s: %v", tier.Name, err)
	}
	var all []unstructured.Unstructured
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Verbs.String(), "list") {
				continue
			}
			found, err := dyn.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				t.Fatalf("cannot list %s in %s: %v", r.Name, tier.Name, err)
			}
			all = append(all, found.Items...)
		}
	}
	return all
}

// noCredentialForAParent reads every object of every child and looks for
// anything that opens a tier above it: addresses, keys, certificates, tokens.
func (f *fleet) noCredentialForAParent(t *testing.T) {
	above := map[string][]string{"production": {"mom"}, "staging": {"mom"}}
	for master, tenants := range declared {
		for _, tenant := range tenants {
			above[tenant] = []string{"mom", master}
		}
	}
	for child, parents := range above {
		all := objects(t, f.tiers[child])
		if len(all) < 50 {
			t.Fatalf("%s has only %d objects; the test does not see all", child, len(all))
		}
		for _, parent := range parents {
			for what, secret := range f.credentials(t, f.tiers[parent]) {
				for i := range all {
					text, err := plainText(&all[i])
					if err != nil {
						t.Fatal(err)
					}
					if strings.Contains(text, secret) {
						t.Errorf("%s/%s in %s has the %s of %s", all[i].GetKind(), all[i].GetName(), child, what, parent)
					}
				}
			}
		}
		t.Logf("%s: %d objects have nothing of %s", child, len(all), strings.Join(parents, ", "))
	}
}

// credentials is what opens a cluster, in the forms in which it could lie
// about.
func (f *fleet) credentials(t *testing.T, tier *stage.Tier) map[string]string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(tier.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, c := range config.Clusters {
		found["address"] = strings.TrimPrefix(c.Server, "https://")
		found["CA"] = strings.TrimSpace(string(c.CertificateAuthorityData))
	}
	for _, u := range config.AuthInfos {
		found["client certificate"] = strings.TrimSpace(string(u.ClientCertificateData))
		found["client key"] = strings.TrimSpace(string(u.ClientKeyData))
	}
	for what, v := range found {
		if len(v) < 10 {
			t.Fatalf("the %s of %s is %q; the test looks for nothing", what, tier.Name, v)
		}
	}
	return found
}

// plainText is an object's JSON with everything in base64 decoded besides.
func plainText(u *unstructured.Unstructured) (string, error) {
	data, err := json.Marshal(u.Object)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.Write(data)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			b.WriteString("\n" + v)
			if plain, err := base64.StdEncoding.DecodeString(v); err == nil {
				b.WriteString("\n" + string(plain))
				// A kubeconfig has base64 in it once more.
				for _, word := range strings.Fields(string(plain)) {
					if inner, err := base64.StdEncoding.DecodeString(word); err == nil {
						b.WriteString("\n" + string(inner))
					}
				}
			}
		case map[string]any:
			for _, item := range v {
				walk(item)
			}
		case []any:
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(u.Object)
	return b.String(), nil
}
