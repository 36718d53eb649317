package installation

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	automationv1 "github.com/fluxcd/image-automation-controller/api/v1"
	reflectorv1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestAdmit(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		found     *Found
		version   string
		downgrade bool
		err       string
	}{
		"Nothing":   {"a new installation", nil, "v1.0.0", false, ""},
		"Same":      {"again", &Found{Namespace: "n", Version: "v1.0.0"}, "v1.0.0", false, ""},
		"Upgrade":   {"the usual case", &Found{Namespace: "n", Version: "v1.0.0"}, "v1.1.0", false, ""},
		"Downgrade": {"records may be of a form that the earlier one does not read", &Found{Namespace: "n", Version: "v1.1.0"}, "v1.0.0", false, "--allow-downgrade"},
		"Wanted":    {"a person insists", &Found{Namespace: "n", Version: "v1.1.0"}, "v1.0.0", true, ""},
		"Candidate": {"a release comes after its candidates", &Found{Namespace: "n", Version: "v1.1.0"}, "v1.1.0-rc.1", false, "--allow-downgrade"},
		"Unknown":   {"what installed it said nothing", &Found{Namespace: "n"}, "v1.0.0", false, ""},
		"Commit":    {"a build between releases is neither before nor after", &Found{Namespace: "n", Version: "v1.1.0"}, "v1.0.0-12-gabcdef0", false, ""},
		"Pseudo":    {"nor is one that Go named", &Found{Namespace: "n", Version: "v1.1.0"}, "v0.0.0-20260901120000-abcdef012345", false, ""},
		"PseudoRC":  {"also after a candidate", &Found{Namespace: "n", Version: "v1.1.0"}, "v1.0.1-rc.1.0.20260901120000-abcdef012345", false, ""},
		"Elsewhere": {"two agents of one tier would share cluster-wide objects", &Found{Namespace: "other"}, "v1.0.0", false, "there is one in other"},
		"Layer":     {"the parent would undo it", &Found{Namespace: "n", Layer: "fleet/base"}, "v1.0.0", false, "Layer fleet/base"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.found.Admit("n", tc.version, tc.downgrade)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want an error with %q", tc.reason, err, tc.err)
			}
		})
	}
}

func TestHostNetwork(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		asked  *bool
		found  *Found
		ready  int
		want   bool
	}{
		"New":      {"there may be no CNI", nil, nil, 0, true},
		"NewReady": {"a node that is ready has a network for pods", nil, nil, 1, false},
		"Asked":    {"a person knows better", new(true), nil, 3, true},
		"AskedOff": {"also where nothing is ready", new(false), &Found{HostNetwork: true}, 0, false},
		"OnHost":   {"it may have installed the CNI, and is to repair it", nil, &Found{HostNetwork: true}, 3, true},
		"InPods":   {"no node is ready at the moment", nil, &Found{}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, why := HostNetwork(tc.asked, tc.found, tc.ready); got != tc.want || why == "" {
				t.Errorf("%s: %t, %s", tc.reason, got, why)
			}
		})
	}
}

func objectOf(kind, name string, fields map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name, "namespace": "n"}}}
	for key, value := range fields {
		u.Object[key] = value
	}
	return u
}

func TestDiffers(t *testing.T) {
	live, then := objectOf("ConfigMap", "a", map[string]any{"data": map[string]any{"k": "1", "proxy": "http://user:hunter2@proxy:1"}}), objectOf("ConfigMap", "a", map[string]any{"data": map[string]any{"k": "2", "proxy": "http://user:hunter2@proxy:1"}})
	live.SetResourceVersion("7")
	for name, tc := range map[string]struct {
		reason string
		steps  []Step
		differ bool
		has    []string
		hasNot []string
	}{
		"Same":   {"nothing to say", []Step{{Action: Leave, Live: live, Then: live}, {Action: Keep, Live: live, Then: live}}, false, nil, []string{"ConfigMap"}},
		"Change": {"what changes, and neither versions nor passwords", []Step{{Action: Change, Live: live, Then: then}}, true, []string{"--- live ConfigMap/n/a\n+++ installed ConfigMap/n/a\n", "-  k: \"1\"\n+  k: \"2\"\n", "user:***@proxy"}, []string{"resourceVersion", "hunter2"}},
		"Create": {"all of it", []Step{{Action: Create, Then: then}}, true, []string{"--- /dev/null\n", "+kind: ConfigMap\n"}, []string{"\n-", "hunter2"}},
		"Delete": {"all of it", []Step{{Action: Delete, Live: live}}, true, []string{"+++ /dev/null\n", "-kind: ConfigMap\n"}, nil},
		"Secret": {"that its values differ, and not which", []Step{{
			Action: Change, Live: objectOf("Secret", "s", map[string]any{"data": map[string]any{"k": "aHVudGVyMg=="}}), Then: objectOf("Secret", "s", map[string]any{"data": map[string]any{"k": "aHVudGVyMw=="}}),
		}}, true, []string{"not shown"}, []string{"aHVudGVy"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			differ, err := Differs(&out, tc.steps)
			if err != nil || differ != tc.differ {
				t.Fatalf("%s: %t, %v", tc.reason, differ, err)
			}
			for _, part := range tc.has {
				if !strings.Contains(out.String(), part) {
					t.Errorf("%s: there is no %q in\n%s", tc.reason, part, out.String())
				}
			}
			for _, part := range tc.hasNot {
				if strings.Contains(out.String(), part) {
					t.Errorf("%s: there is %q in\n%s", tc.reason, part, out.String())
				}
			}
		})
	}
}

// TestOutdated: only what an installation of this namespace applied is deleted, and only
// kinds that hold nothing of others.
func TestOutdated(t *testing.T) {
	labelled := func(o client.Object, namespace string) client.Object {
		o.SetLabels(map[string]string{"install.cascade.dev/name": "cascade", "install.cascade.dev/namespace": namespace})
		return o
	}
	account := func(name string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}}
	}
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(
		labelled(account("stays"), "n"), labelled(account("gone"), "n"), labelled(account("of-another"), "m"), account("of-nobody"),
		labelled(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "secret"}}, "n"),
		labelled(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, "n"),
		labelled(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "data"}}, "n"),
	).Build()
	gone, err := Outdated(t.Context(), c, "n", []*unstructured.Unstructured{objectOf("ServiceAccount", "stays", nil)})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, u := range gone {
		names = append(names, u.GetKind()+"/"+u.GetName())
	}
	if !slices.Equal(names, []string{"ServiceAccount/gone"}) {
		t.Errorf("to be deleted: %v", names)
	}
}

// TestHolder: who holds a lease acts on the end of every object.
func TestHolder(t *testing.T) {
	now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	lease := func(name, holder string, ago time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: name}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, RenewTime: new(metav1.NewMicroTime(now.Add(-ago))), LeaseDurationSeconds: new(int32(35)),
		}}
	}
	for name, tc := range map[string]struct {
		reason string
		lease  *coordinationv1.Lease
		want   string
		beside bool // it works beside an agent
	}{
		"Shard":  {"it prunes the part of the objects that it selects", lease("kustomize-controller-leader-election-0a1b2c3d", "x", time.Second), "flux-system/kustomize-controller-leader-election-0a1b2c3d", false},
		"Flux":   {"it would prune what a Kustomization applied", lease("kustomize-controller-leader-election", "x", time.Second), "flux-system/kustomize-controller-leader-election", false},
		"Agent":  {"another agent, of another selection", lease("cascade-leader-0a1b2c3d", "x", time.Second), "flux-system/cascade-leader-0a1b2c3d", false},
		"Lapsed": {"it died", lease("kustomize-controller-leader-election", "x", time.Minute), "", false},
		"Given":  {"it ended well", lease("helm-controller-leader-election", "", time.Second), "", false},
		"Beside": {"an agent leaves Receivers to it", lease("notification-controller-leader-election", "x", time.Second), "flux-system/notification-controller-leader-election", true},
		"Images": {"and images", lease("image-automation-controller-leader-election", "x", time.Second), "flux-system/image-automation-controller-leader-election", true},
		"Other":  {"who works on other kinds", lease("somebody-leader-election", "x", time.Second), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(tc.lease).Build()
				if got, err := Holder(t.Context(), c, now); got != tc.want || err != nil {
					t.Errorf("%s: %q, %v", tc.reason, got, err)
				}
				want := tc.want
				if tc.beside {
					want = ""
				}
				if got, err := SyncHolder(t.Context(), c, now); got != want || err != nil {
					t.Errorf("%s: who syncs holds %q, %v", tc.reason, got, err)
				}
			})
		})
	}
}

// TestHolderOfFastClock: a Lease that is renewed is held, however far ahead the clock is that
// it is compared with.
func TestHolderOfFastClock(t *testing.T) {
	const held = "flux-system/kustomize-controller-leader-election"
	for name, tc := range map[string]struct {
		reason string
		change func(*coordinationv1.LeaseSpec)
		want   string
	}{
		"Renewed": {"Flux works, and the clock of the caller is ahead", func(s *coordinationv1.LeaseSpec) {
			s.RenewTime = new(metav1.NewMicroTime(s.RenewTime.Add(5 * time.Second)))
		}, held},
		"Released": {"it ends between both looks", func(s *coordinationv1.LeaseSpec) {
			s.RenewTime, s.HolderIdentity = new(metav1.NewMicroTime(s.RenewTime.Add(5*time.Second))), new("")
		}, ""},
		"Silent": {"it died", func(*coordinationv1.LeaseSpec) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				l := &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "kustomize-controller-leader-election"},
					Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("x"), RenewTime: new(metav1.NewMicroTime(begin)), LeaseDurationSeconds: new(int32(35))},
				}
				looks := 0
				c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(l).Build(), interceptor.Funcs{
					List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
						if looks++; looks == 2 {
							tc.change(&l.Spec)
							if err := c.Update(ctx, l); err != nil {
								return err
							}
						}
						return c.List(ctx, list, opts...)
					},
				})
				got, err := FluxHolder(t.Context(), c, begin.Add(time.Minute))
				if got != tc.want || err != nil || looks != 2 {
					t.Errorf("%s: %q, %v, after %d looks", tc.reason, got, err, looks)
				}
				if took := time.Since(begin); took != 35*time.Second {
					t.Errorf("%s: looked again after %s", tc.reason, took)
				}
			})
		})
	}
}

// TestUndeployed: an agent that renews its Lease works, also where no Deployment runs it.
func TestUndeployed(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		ago    time.Duration // since it was renewed; negative: there is no Lease
		renews bool
		want   bool
		took   time.Duration
	}{
		"Mom":     {"its agent is a process beside the cluster", 5 * time.Second, true, true, 2 * time.Second},
		"Deleted": {"its Deployment was deleted a moment ago", 5 * time.Second, false, false, 40 * time.Second},
		"Lapsed":  {"it was deleted long ago", time.Hour, false, false, 0},
		"New":     {"there never was one", -1, false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				l := &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: "cascade-heartbeat"},
					Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("x"), RenewTime: new(metav1.NewMicroTime(begin.Add(-tc.ago))), LeaseDurationSeconds: new(int32(45))},
				}
				build := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme)
				if tc.ago >= 0 {
					build = build.WithObjects(l)
				}
				looks := 0
				c := interceptor.NewClient(build.Build(), interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
						if looks++; looks == 2 && tc.renews {
							l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now()))
							if err := c.Update(ctx, l); err != nil {
								return err
							}
						}
						return c.Get(ctx, key, o, opts...)
					},
				})
				got, err := Undeployed(t.Context(), c, "cascade-system", time.Now)
				if took := time.Since(begin); got != tc.want || err != nil || took != tc.took {
					t.Errorf("%s: %t, %v, after %s", tc.reason, got, err, took)
				}
			})
		})
	}
}

// TestReleaseBesideFlux: what Flux works on keeps its finalizer, and what only an agent worked
// on loses it, lest nobody takes it off.
func TestReleaseBesideFlux(t *testing.T) {
	now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	const kustomize, helm = "kustomize-controller-leader-election-0a1b2c3d", "helm-controller-leader-election"
	lease := func(name string) client.Object {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "gitops", Name: name}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("x"), RenewTime: new(metav1.NewMicroTime(now)), LeaseDurationSeconds: new(int32(35)),
		}}
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kustomizev1.AddToScheme(scheme), helmv2.AddToScheme(scheme), notificationv1.AddToScheme(scheme),
		reflectorv1.AddToScheme(scheme), automationv1.AddToScheme(scheme), generatorv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(scheme.PrioritizedVersionsAllGroups())
	for version, kind := range map[schema.GroupVersion]string{
		kustomizev1.GroupVersion: kustomizev1.KustomizationKind, helmv2.GroupVersion: helmv2.HelmReleaseKind, notificationv1.GroupVersion: notificationv1.ReceiverKind,
		generatorv1.GroupVersion: generatorv1.ArtifactGeneratorKind,
	} {
		mapper.Add(version.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(reflectorv1.GroupVersion.WithKind(reflectorv1.ImagePolicyKind), meta.RESTScopeNamespace)
	mapper.Add(automationv1.GroupVersion.WithKind(automationv1.ImageUpdateAutomationKind), meta.RESTScopeNamespace)
	for name, tc := range map[string]struct {
		reason string
		leases []client.Object
		want   []string
	}{
		"Alone":  {"no controller of Flux is there", nil, nil},
		"Beside": {"both work", []client.Object{lease(kustomize), lease(helm)}, []string{"Kustomization", "HelmRelease"}},
		"Part":   {"the agent worked on HelmReleases, beside Flux's Kustomizations", []client.Object{lease(kustomize)}, []string{"Kustomization"}},
		"Others": {"the agent left these to Flux", []client.Object{lease("notification-controller-leader-election"), lease("source-watcher-leader-election")}, []string{"Receiver", "ArtifactGenerator"}},
		"Images": {"two controllers share an API group", []client.Object{lease("image-reflector-controller-leader-election")}, []string{"ImagePolicy"}},
	} {
		t.Run(name, func(t *testing.T) {
			named := func(finalizer string) metav1.ObjectMeta {
				return metav1.ObjectMeta{Namespace: "team", Name: "apps", Finalizers: []string{finalizer}}
			}
			objects := map[string]client.Object{
				"Kustomization":         &kustomizev1.Kustomization{ObjectMeta: named(kustomizev1.KustomizationFinalizer)},
				"HelmRelease":           &helmv2.HelmRelease{ObjectMeta: named(helmv2.HelmReleaseFinalizer)},
				"Receiver":              &notificationv1.Receiver{ObjectMeta: named(notificationv1.NotificationFinalizer)},
				"ArtifactGenerator":     &generatorv1.ArtifactGenerator{ObjectMeta: named(generatorv1.Finalizer)},
				"ImagePolicy":           &reflectorv1.ImagePolicy{ObjectMeta: named(reflectorv1.ImageFinalizer)},
				"ImageUpdateAutomation": &automationv1.ImageUpdateAutomation{ObjectMeta: named(automationv1.ImageUpdateAutomationFinalizer)},
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(slices.Collect(maps.Values(objects))...).WithObjects(tc.leases...).Build()
			works, err := FluxWorks(t.Context(), c, now)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Release(t.Context(), c, false, func(kind schema.GroupKind) bool { return works[kind].Name != "" }); err != nil {
				t.Fatal(err)
			}
			for kind, o := range objects {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
					t.Fatal(err)
				}
				if keeps := len(o.GetFinalizers()) > 0; keeps != slices.Contains(tc.want, kind) {
					t.Errorf("%s: %s keeps its finalizer: %t", tc.reason, kind, keeps)
				}
			}
		})
	}
}

// TestDisown: what a Credential wrote outlives the definition of Credentials.
func TestDisown(t *testing.T) {
	ref := func(apiVersion, kind, uid string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "cloud", UID: types.UID(uid), Controller: new(true)}
	}
	for name, tc := range map[string]struct {
		reason string
		labels map[string]string
		owners []metav1.OwnerReference
		dryRun bool
		want   []metav1.OwnerReference
		counts int
	}{
		"Target":   {"it would be collected with its Credential", nil, []metav1.OwnerReference{ref("cascade.dev/v1alpha1", "Credential", "1")}, false, nil, 1},
		"DryRun":   {"it is only told", nil, []metav1.OwnerReference{ref("cascade.dev/v1alpha1", "Credential", "1")}, true, []metav1.OwnerReference{ref("cascade.dev/v1alpha1", "Credential", "1")}, 1},
		"Shared":   {"other owners stay", nil, []metav1.OwnerReference{ref("cascade.dev/v1beta1", "Credential", "1"), ref("v1", "ConfigMap", "2")}, false, []metav1.OwnerReference{ref("v1", "ConfigMap", "2")}, 1},
		"Journal":  {"nobody but the Credential reads it, and one of the same name would not take it over", map[string]string{"cascade.dev/leases": "true"}, []metav1.OwnerReference{ref("cascade.dev/v1alpha1", "Credential", "1")}, false, []metav1.OwnerReference{ref("cascade.dev/v1alpha1", "Credential", "1")}, 0},
		"Other":    {"a kind of somebody else has the same name", nil, []metav1.OwnerReference{ref("example.com/v1", "Credential", "1")}, false, []metav1.OwnerReference{ref("example.com/v1", "Credential", "1")}, 0},
		"Unowned":  {"nothing is to be done", nil, nil, false, nil, 0},
		"OfObject": {"it belongs to another kind", nil, []metav1.OwnerReference{ref("cert-manager.io/v1", "Certificate", "1")}, false, []metav1.OwnerReference{ref("cert-manager.io/v1", "Certificate", "1")}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "capa-system", Name: "cloud", Labels: tc.labels, OwnerReferences: tc.owners}, Data: map[string][]byte{"k": []byte("v")}}
			c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(secret).Build()
			counts, err := Disown(t.Context(), c, tc.dryRun)
			if err != nil || counts != tc.counts {
				t.Fatalf("%s: %d Secrets, %v", tc.reason, counts, err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(secret.OwnerReferences, tc.want) || string(secret.Data["k"]) != "v" {
				t.Errorf("%s: owners %v, data %v", tc.reason, secret.OwnerReferences, secret.Data)
			}
		})
	}
}

func TestFind(t *testing.T) {
	deployment := func(namespace, name string, labels map[string]string, args ...string) *appsv1.Deployment {
		labels["app.kubernetes.io/name"] = "cascade"
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, Annotations: map[string]string{VersionAnnotation: "v1.2.3"}}}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Args: append([]string{"agent", "--log-level", "debug"}, args...)}}
		return d
	}
	seeded := map[string]string{"layer.cascade.dev/name": "base", "layer.cascade.dev/namespace": "fleet"}
	for name, tc := range map[string]struct {
		reason  string
		objects []client.Object
		want    *Found
		err     string
	}{
		"None":   {"nothing is there", nil, nil, ""},
		"One":    {"the agent", []client.Object{deployment("n", "cascade", map[string]string{}), deployment("n", "other", map[string]string{})}, &Found{Namespace: "n", Version: "v1.2.3"}, ""},
		"Seeded": {"a parent pushed it", []client.Object{deployment("n", "cascade", seeded)}, &Found{Namespace: "n", Version: "v1.2.3", Layer: "fleet/base"}, ""},
		"Two":    {"nobody knows which", []client.Object{deployment("n", "cascade", map[string]string{}), deployment("m", "cascade", map[string]string{})}, nil, "in namespace m and n; if one of them is for nobody any more, look at what goes with it, cascade uninstall --dry-run -n"},
		"Labels": {"tenants have another one", []client.Object{deployment("n", "cascade", map[string]string{}, "--shards=1", "--watch-label-selector", "team=a,stage!=b")}, &Found{Namespace: "n", Version: "v1.2.3", Selector: "team=a,stage!=b"}, ""},
		"Own":    {"it reconciles its namespace alone", []client.Object{deployment("n", "cascade", map[string]string{}, "--watch-all-namespaces=false")}, &Found{Namespace: "n", Version: "v1.2.3", OwnNamespace: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(tc.objects...).Build()
			got, err := Find(t.Context(), c)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
				t.Errorf("%s: %+v, want %+v", tc.reason, got, tc.want)
			}
		})
	}
}

// TestBehind: an agent of the same version, or of a later release, says all that a program reads.
func TestBehind(t *testing.T) {
	for _, tc := range []struct {
		reason, agent, program string
		want                   bool
	}{
		{"it is the same", "v0.1.0-3-gabcdef", "v0.1.0-3-gabcdef", false},
		{"it is later", "v0.2.0", "v0.1.0", false},
		{"it is earlier", "v0.1.0", "v0.2.0", true},
		{"nobody knows", "v0.1.0-3-gabcdef", "v0.1.0-4-gabcdee", true},
		{"none is on record", "", "v0.2.0", true},
	} {
		if got := (&Found{Version: tc.agent}).Behind(tc.program); got != tc.want {
			t.Errorf("%s: agent %q, program %q: %t", tc.reason, tc.agent, tc.program, got)
		}
	}
	if (*Found)(nil).Behind("v0.1.0") {
		t.Error("there is no agent, which is behind")
	}
}

// TestStop: the object of an agent goes after its pods. An agent that syncs itself from Git
// would make it anew otherwise.
func TestStop(t *testing.T) {
	d := &unstructured.Unstructured{}
	d.SetAPIVersion("apps/v1")
	d.SetKind("Deployment")
	d.SetNamespace("n")
	d.SetName("cascade")
	d.SetUID("1")
	var asked client.DeleteOptions
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(d.DeepCopy()).Build(), interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, options ...client.DeleteOption) error {
			asked.ApplyOptions(options)
			return nil
		},
	})
	if err := Stop(t.Context(), c, d); err != nil {
		t.Fatal(err)
	}
	if asked.PropagationPolicy == nil || *asked.PropagationPolicy != metav1.DeletePropagationForeground || asked.Preconditions == nil || *asked.Preconditions.UID != "1" {
		t.Errorf("it is deleted with %+v", asked)
	}
}
