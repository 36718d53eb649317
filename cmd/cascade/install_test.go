package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// TestInstallValues: flags say the same as a file, and count more.
func TestInstallValues(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		file   string
		flags  []string
		want   string
	}{
		"Flags": {
			"everything that a file can say", "",
			[]string{
				"--image=x:1", "--image-pull-policy=Always", "--image-pull-secret=a,b", "--arg=--log-level=debug", "--env=HTTPS_PROXY=http://p=1", "--requests=cpu=1", "--limits=memory=2Gi",
				"--replicas=2", "--node-selector=a=b", "--toleration=dedicated=infra:NoSchedule", "--toleration=slow", "--priority-class=p", "--host-network=false",
				"--storage-size-limit=4Gi", "--labels=team=x", "--lockdown", "--lockdown-service-account=tenant", "--lockdown-impersonates=platform",
				"--lockdown-cluster-deleter", "--controllers=GitRepository,Kustomization", "--events-address=http://n/", "--network-policy=false", "--metrics-auth=kubernetes", "--first-sync=create",
			},
			`
image: x:1
imagePullPolicy: Always
imagePullSecrets: [{name: a}, {name: b}]
args: [--log-level=debug]
env: [{name: HTTPS_PROXY, value: "http://p=1"}]
resources: {requests: {cpu: "1"}, limits: {memory: 2Gi}}
replicas: 2
nodeSelector: {a: b}
tolerations: [{key: dedicated, operator: Equal, value: infra, effect: NoSchedule}, {key: slow, operator: Exists}]
priorityClassName: p
hostNetwork: false
storage: {sizeLimit: 4Gi}
labels: {team: x}
lockdown: {serviceAccount: tenant, impersonates: [platform], clusterDeleter: true}
controllers: [GitRepository, Kustomization]
eventsAddress: http://n/
networkPolicy: false
metricsAuth: kubernetes
firstSync: Create
`,
		},
		"Claim":  {"a volume that is made", "image: x:1", []string{"--storage-claim=data", "--storage-size=1Gi", "--storage-class=fast"}, "{image: 'x:1', storage: {claim: {name: data, size: 1Gi, storageClassName: fast}}}"},
		"Nobody": {"flags that nobody gave change nothing", "{image: 'x:1', replicas: 3, firstSync: Create, hostNetwork: true, networkPolicy: false, lockdown: {}}", nil, "{image: 'x:1', replicas: 3, firstSync: Create, hostNetwork: true, networkPolicy: false, lockdown: {}}"},
		"Over":   {"those that were given count more", "{image: 'x:1', replicas: 3, firstSync: Create, hostNetwork: true, lockdown: {}, args: [--a]}", []string{"--image=y:1", "--replicas=1", "--first-sync=adopt", "--host-network=auto", "--lockdown=false", "--arg=--b"}, "{image: 'y:1', replicas: 1, firstSync: Adopt, args: [--a, --b]}"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := optionsOf(t, tc.file, tc.flags...)
			if err != nil {
				t.Fatal(err)
			}
			want, err := deploy.Parse([]byte(tc.want))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(text(t, want), text(t, got)); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func text(t *testing.T, o deploy.Options) string {
	t.Helper()
	data, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func optionsOf(t *testing.T, file string, flags ...string) (deploy.Options, error) {
	t.Helper()
	v, f := &valueFlags{}, pflag.NewFlagSet("install", pflag.ContinueOnError)
	v.bind(f)
	t.Setenv("CASCADE_IMAGE", "registry.example/cascade:v1")
	if file != "" {
		name := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--values="+name)
	}
	if err := f.Parse(flags); err != nil {
		t.Fatal(err)
	}
	return v.options(f, strings.NewReader(""))
}

func TestImage(t *testing.T) {
	for _, tc := range []struct{ reason, given, version, want, err string }{
		{"what is said counts", "registry.example/cascade@sha256:1", "v1.2.0", "registry.example/cascade@sha256:1", ""},
		{"a release has its own", "", "v1.2.0", "ghcr.io/cascade-gitops/cascade:v1.2.0", ""},
		{"so has a candidate", "", "v1.2.0-rc.1", "ghcr.io/cascade-gitops/cascade:v1.2.0-rc.1", ""},
		{"a build between releases has none", "", "v1.2.0-12-gabcdef012345", "", "say --image"},
		{"nor has one without a version", "", "devel", "", "no release (devel)"},
	} {
		got, err := imageOf(tc.given, tc.version)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %q, %v", tc.reason, got, err)
		}
	}
}

func TestInstallRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		file   string
		flags  []string
		err    string
	}{
		"Env":      {"a variable without a value", "", []string{"--env=HTTPS_PROXY"}, "NAME=VALUE"},
		"Host":     {"a word that there is not", "", []string{"--host-network=maybe"}, "auto, true or false"},
		"Replicas": {"none is no installation", "", []string{"--replicas=0"}, "from 1 to"},
		"Quantity": {"no quantity", "", []string{"--limits=memory=much"}, "memory=much"},
		"Size":     {"no size", "", []string{"--storage-size=big"}, "--storage-size big"},
		"Lockdown": {"half of a lockdown is none", "", []string{"--lockdown-service-account=x"}, "without --lockdown"},
		"First":    {"the word of the flag", "", []string{"--first-sync=Create"}, "adopt or create"},
		"File":     {"a typo in the file", "imgae: x", nil, "imgae"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := optionsOf(t, tc.file, tc.flags...); err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want an error with %q", tc.reason, err, tc.err)
			}
		})
	}
}

// TestInstallTellsStrays: a record of the first sync that another agent left, or keeps, is none of the agent's: a person
// would take what is in it for approved or held.
func TestInstallTellsStrays(t *testing.T) {
	const usual = v1alpha1.AgentNamespace
	agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "gitops", Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}}}
	for name, tc := range map[string]struct {
		reason string
		is     []client.Object
		tells  bool
		advice bool
	}{
		"New":     {"an agent was in the usual namespace before", []client.Object{firstsync.NewRecord(usual)}, true, true},
		"Upgrade": {"it is where it is", []client.Object{firstsync.NewRecord(usual), firstsync.NewRecord("gitops"), agent}, true, false},
		"Own":     {"it goes on with its record", []client.Object{firstsync.NewRecord("gitops")}, false, false},
		"None":    {"there is none yet", nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, out := newCLI(t)
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(tc.is...).Build()
			b := &bootstrap{install: install{cli: c}, namespace: "gitops"}
			b.options.HostNetwork = new(true)
			if err := b.look(t.Context(), cl); err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if strings.Contains(out.String(), "ConfigMap cascade-system/cascade-first-sync is the record of another agent than the one in namespace gitops") != tc.tells ||
				strings.Contains(out.String(), "install the agent there, with -n cascade-system") != tc.advice {
				t.Errorf("%s: it says %q", tc.reason, out)
			}
		})
	}
}

// TestUninstallBesideFlux: definitions on whose objects Flux works are known to stay before
// anything goes.
func TestUninstallBesideFlux(t *testing.T) {
	key := client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName}
	const held = "flux-system/notification-controller-leader-election"
	for name, tc := range map[string]struct {
		reason string
		dryRun bool
		err    string
	}{
		"Yes":    {"the tier would have no agent, and its definitions", false, held},
		"DryRun": {"a person reads what stands in the way", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{
				"app.kubernetes.io/name": v1alpha1.AgentName, "app.kubernetes.io/part-of": "flux",
			}}}
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "notification-controller-leader-election"}, Spec: coordinationv1.LeaseSpec{
				HolderIdentity: new("x"), RenewTime: new(metav1.NewMicroTime(noon)), LeaseDurationSeconds: new(int32(35)),
			}}
			cluster := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(agent, lease).Build()
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := (&uninstall{cli: c, crds: true, dryRun: tc.dryRun, yes: true}).run(ctx, cluster)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want an error with %q", tc.reason, err, tc.err)
			}
			if !strings.Contains(out.String(), held) {
				t.Errorf("%s: it does not name %s:\n%s", tc.reason, held, out)
			}
			if err := cluster.Get(ctx, key, agent); err != nil {
				t.Errorf("%s: the agent is gone: %v", tc.reason, err)
			}
		})
	}
}

// TestUninstallAgain: what a call that did not end left is found where the agent was.
func TestUninstallAgain(t *testing.T) {
	part := func(namespace string, more map[string]string) client.Object {
		labels := map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName, "app.kubernetes.io/part-of": "flux"}
		maps.Copy(labels, more)
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentName, Labels: labels}}
	}
	for name, tc := range map[string]struct {
		reason string
		left   []client.Object
		said   string
		want   string // in what is said
		err    string
	}{
		"Nothing":   {"it is uninstalled", nil, "", "Namespace cascade-system with its records", ""},
		"Elsewhere": {"the agent was in a namespace of its own", []client.Object{part("mgmt", nil)}, "", "ServiceAccount/mgmt/cascade", ""},
		"Said":      {"a person says which", []client.Object{part("mgmt", nil), part("other", nil)}, "mgmt", "ServiceAccount/mgmt/cascade", ""},
		"Two":       {"nobody says which", []client.Object{part("mgmt", nil), part("other", nil)}, "", "", "mgmt and other"},
		"Wrong":     {"nothing of it is where a person says", []client.Object{part("mgmt", nil)}, "other", "", "left in namespace mgmt"},
		"Layer":     {"the parent would push it again", []client.Object{part("mgmt", map[string]string{"layer.cascade.dev/name": "base", "layer.cascade.dev/namespace": "fleet"})}, "", "", "Layer fleet/base"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(tc.left...).Build()
			c, out := newCLI(t)
			c.now, c.flags.Namespace = func() time.Time { return noon }, &tc.said
			err := (&uninstall{cli: c, yes: true}).run(t.Context(), cluster)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%s: %v, want an error with %q", tc.reason, err, tc.err)
			}
			if !strings.Contains(out.String(), tc.want) {
				t.Errorf("%s: it does not say %s:\n%s", tc.reason, tc.want, out)
			}
			for _, o := range tc.left {
				goes := tc.err == "" && (tc.said == "" || tc.said == o.GetNamespace())
				if gone := apierrors.IsNotFound(cluster.Get(t.Context(), client.ObjectKeyFromObject(o), &corev1.ServiceAccount{})); gone != goes {
					t.Errorf("%s: the account in %s is gone: %t", tc.reason, o.GetNamespace(), gone)
				}
			}
		})
	}
}

// TestUninstallBesideAnother: of several agents the one goes that a person says, and with it nothing that another one
// needs.
func TestUninstallBesideAnother(t *testing.T) {
	labels := map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName, "app.kubernetes.io/part-of": "flux"}
	of := func(namespace string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentName, Labels: labels}
	}
	account := func(namespace string) client.Object { return &corev1.ServiceAccount{ObjectMeta: of(namespace)} }
	agent := func(namespace string) client.Object { return &appsv1.Deployment{ObjectMeta: of(namespace)} }
	bound := func(namespace string) client.Object {
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: of("")}
		b.Name, b.Subjects = namespace+"-cascade", []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: v1alpha1.AgentName}}
		return b
	}
	role := &rbacv1.ClusterRole{ObjectMeta: of("")}
	wall := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: of("")}
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "apps", Finalizers: []string{kustomizev1.KustomizationFinalizer}}}
	kinds := meta.NewDefaultRESTMapper([]schema.GroupVersion{kustomizev1.GroupVersion})
	kinds.Add(kustomizev1.GroupVersion.WithKind(kustomizev1.KustomizationKind), meta.RESTScopeNamespace)
	const usual = v1alpha1.AgentNamespace
	for name, tc := range map[string]struct {
		reason string
		is     []client.Object
		said   string
		mom    bool // an agent works in the usual namespace that is no Deployment
		crds   bool
		// goes are those that are gone after it, of the above.
		goes []client.Object
		err  string
	}{
		"Rest":    {"the Deployment was deleted before", []client.Object{agent(usual), account(usual), account("team-a")}, "team-a", false, false, []client.Object{account("team-a")}, ""},
		"Nowhere": {"its installation failed", []client.Object{agent(usual), account(usual)}, "team-a", false, false, nil, "the agent of this cluster is in namespace " + usual},
		"Two":     {"a tenant leaves", []client.Object{agent(usual), agent("team-a"), account("team-a")}, "team-a", false, false, []client.Object{agent("team-a"), account("team-a")}, ""},
		"Usual":   {"or the tenant stays", []client.Object{agent(usual), agent("team-a")}, usual, false, false, []client.Object{agent(usual)}, ""},
		"Unsaid":  {"nobody says which", []client.Object{agent(usual), agent("team-a")}, "", false, false, nil, "say which with -n"},
		"Bound":   {"who makes such an account must not get its rights", []client.Object{agent(usual), agent("team-a"), bound(usual), bound("team-a")}, "team-a", false, false, []client.Object{agent("team-a"), bound("team-a")}, ""},
		"CRDs":    {"the other one works on these objects", []client.Object{agent(usual), agent("team-a")}, "team-a", false, true, nil, "an agent in namespace " + usual},
		"Mom":     {"the other one is no Deployment", []client.Object{agent("team-a")}, "", true, false, []client.Object{agent("team-a")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := append([]client.Object{role.DeepCopy(), wall.DeepCopy(), k.DeepCopy()}, tc.is...)
				if tc.mom {
					objects = append(objects, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: usual, Name: v1alpha1.HeartbeatLease}})
				}
				cluster := fake.NewClientBuilder().WithScheme(newScheme()).WithRESTMapper(kinds).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
					Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, o client.Object, more ...client.GetOption) error {
						err := cl.Get(ctx, key, o, more...)
						if l, ok := o.(*coordinationv1.Lease); ok && tc.mom { // it is renewed
							l.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("mom"), RenewTime: new(metav1.NewMicroTime(time.Now())), LeaseDurationSeconds: new(int32(45))}
						}
						return err
					},
				}).Build()
				c, out := newCLI(t)
				c.flags.Namespace = &tc.said
				err := (&uninstall{cli: c, yes: true, crds: tc.crds}).run(t.Context(), cluster)
				if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("%s: %v, want an error with %q\n%s", tc.reason, err, tc.err, out)
				}
				for _, o := range objects {
					id := func(o client.Object) string { return fmt.Sprintf("%T %s", o, client.ObjectKeyFromObject(o)) }
					want := slices.ContainsFunc(tc.goes, func(g client.Object) bool { return id(g) == id(o) })
					is := o.DeepCopyObject().(client.Object)
					if err := cluster.Get(t.Context(), client.ObjectKeyFromObject(o), is); apierrors.IsNotFound(err) != want {
						t.Errorf("%s: %s: %v, want it gone: %t\n%s", tc.reason, id(o), err, want, out)
					} else if len(is.GetFinalizers()) != len(o.GetFinalizers()) {
						t.Errorf("%s: %s has lost its finalizer", tc.reason, id(o))
					}
				}
			})
		})
	}
}

// TestMom: where an agent works that is no Deployment, as that of a mom, nothing is taken from under it, and none is
// put beside it.
func TestMom(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		run    func(context.Context, *cli, client.Client) error
	}{
		"Uninstall": {"it would work on without its rights", func(ctx context.Context, c *cli, cl client.Client) error {
			return (&uninstall{cli: c, yes: true}).run(ctx, cl)
		}},
		"CRDs": {"it would take the end of each object for a wish", func(ctx context.Context, c *cli, cl client.Client) error {
			return (&uninstall{cli: c, yes: true, crds: true}).run(ctx, cl)
		}},
		"Bootstrap": {"it would apply the other one", func(ctx context.Context, c *cli, cl client.Client) error {
			b, _ := newBootstrapOf(func(b *bootstrap) { b.cli, b.timeout = c, time.Minute })
			_, err := b.prepare(ctx, cl)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				labels := map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName, "app.kubernetes.io/part-of": "flux"}
				account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName, Labels: labels}}
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.HeartbeatLease}}
				now := noon
				c, _ := newCLI(t)
				c.now = func() time.Time { return now }
				cluster := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(account, lease).WithInterceptorFuncs(interceptor.Funcs{
					Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, o client.Object, more ...client.GetOption) error {
						err := cl.Get(ctx, key, o, more...)
						if l, ok := o.(*coordinationv1.Lease); ok && key.Name == v1alpha1.HeartbeatLease {
							now = now.Add(time.Second) // it is renewed
							l.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("mom"), RenewTime: new(metav1.NewMicroTime(now)), LeaseDurationSeconds: new(int32(45))}
						}
						return err
					},
					Delete: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.DeleteOption) error {
						t.Errorf("%s: %s is deleted", tc.reason, o.GetName())
						return nil
					},
					Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
						t.Errorf("%s: %s is created", tc.reason, o.GetName())
						return nil
					},
				}).Build()
				if err := tc.run(t.Context(), c, cluster); err == nil || !strings.Contains(err.Error(), "no Deployment, as that of cascade mom") {
					t.Errorf("%s: %v", tc.reason, err)
				}
			})
		})
	}
}

// TestUninstallTellsHeld: what the agent holds back is said before it goes, as nobody else holds it.
func TestUninstallTellsHeld(t *testing.T) {
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "clusters"}}
	v1alpha1.SetHeld(k, v1alpha1.Held{Create: &v1alpha1.HeldCreate{ManagedElsewhere: []string{"fleet/master-1"}}})
	k.Spec.Prune = true
	k.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "fleet_pool_cluster.x-k8s.io_MachineDeployment", Version: "v1beta2"}}}
	agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}}}
	clusters := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "clusters.cluster.x-k8s.io"}}
	clusters.Spec.Group, clusters.Spec.Names.Kind = "cluster.x-k8s.io", "Cluster"
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "kustomizations." + kustomizev1.GroupVersion.Group}}
	crd.Spec.Group, crd.Spec.Names.Kind = kustomizev1.GroupVersion.Group, kustomizev1.KustomizationKind
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: kustomizev1.GroupVersion.Version, Served: true, Storage: true}}
	c, out := newCLI(t)
	c.now = func() time.Time { return noon }
	cluster := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(k, crd, clusters, agent).Build()
	if err := (&uninstall{cli: c, dryRun: true}).run(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Kustomization fleet/clusters does not create Cluster fleet/master-1, which another management cluster manages",
		"the agent may be of an earlier version than this program, which does not say what it keeps for Clusters, and 1 Kustomizations",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

// asked is called when a person is asked something.
type asked func()

func (f asked) Write(p []byte) (int, error) { f(); return len(p), nil }

// TestConsent: without a clear yes nothing is uninstalled.
func TestConsent(t *testing.T) {
	for in, want := range map[string]string{"y\n": "", "YES\n": "", "n\n": "not wanted", "\n": "not wanted", "": "without consent", "y": ""} {
		c := &cli{}
		c.streams.In, c.streams.Out, c.streams.ErrOut = strings.NewReader(in), &bytes.Buffer{}, &bytes.Buffer{}
		err := c.consent(t.Context(), "Uninstall?", false)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
	if err := (&cli{}).consent(t.Context(), "Uninstall?", true); err != nil {
		t.Error(err)
	}
	// Nobody answers, and the command is ended.
	in, keyboard := io.Pipe()
	defer keyboard.Close()
	ctx, end := context.WithCancel(t.Context())
	c := &cli{}
	c.streams.In, c.streams.ErrOut = in, asked(end)
	if err := c.consent(ctx, "Uninstall?", false); err == nil || err.Error() != "interrupted" {
		t.Errorf("interrupted: %v", err)
	}
}
