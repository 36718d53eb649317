package claim

import (
	"context"
	"errors"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/target"
)

func self() client.Object { return kustomization("old", "x_other__ConfigMap", nil) }

func kustomization(name, id string, change func(*kustomizev1.Kustomization)) client.Object {
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}}
	k.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: id, Version: "v1"}}}
	if change != nil {
		change(k)
	}
	return k
}

func release(id string, change func(*helmv2.HelmRelease)) client.Object {
	h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web"}}
	h.Status.Inventory = &helmv2.ResourceInventory{Entries: []helmv2.ResourceRef{{ID: id, Version: "v1"}}}
	if change != nil {
		change(h)
	}
	return h
}

// leads gives a Kustomization a kubeconfig.
func leads(secret string) func(*kustomizev1.Kustomization) {
	return func(k *kustomizev1.Kustomization) {
		k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: secret}}
	}
}

// identify tells which cluster each Secret leads to: own leads back home.
func identify(_ context.Context, namespace string, ref target.Ref) (target.Ref, error) {
	switch {
	case ref.Name == "broken":
		return ref, errors.New("no answer")
	case ref.Name == "tenant" && namespace == "others":
		ref.Cluster = "another"
		return ref, nil
	}
	ref.Cluster = map[string]string{"": "home", "own": "home", "tenant": "uid", "other": "uid", "way": "uid"}[ref.Name]
	return ref, nil
}

// TestIdentifies: clusters are asked which they are only where that may matter, and once.
func TestIdentifies(t *testing.T) {
	config := inventory.Entry{Namespace: "x", Name: "a", Kind: "ConfigMap", Version: "v1"}
	release := func(name, secret string, change ...func(*helmv2.HelmRelease)) client.Object {
		h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}}
		h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: secret}}
		for _, c := range change {
			c(h)
		}
		return h
	}
	stranger := func(h *helmv2.HelmRelease) {
		h.Namespace = "others"
		h.Spec.ChartRef = &helmv2.CrossNamespaceSourceReference{Kind: "OCIRepository", Name: "chart"}
	}
	for name, tc := range map[string]struct {
		reason string
		owners []client.Object
		silent bool
		asked  int
	}{
		"Local": {reason: "nobody has a kubeconfig", owners: []client.Object{kustomization("new", config.ID(), nil)}},
		"Recorded": {reason: "where it applies is on record, so only home is asked", owners: []client.Object{kustomization("new", "x_b__ConfigMap", func(k *kustomizev1.Kustomization) {
			leads("tenant")(k)
			k.Annotations = map[string]string{target.Annotation: target.Ref{Kind: "Secret", Name: "tenant", Cluster: "uid"}.Encode()}
		})}, asked: 1},
		"Shared":   {reason: "two releases of one Secret, and home", owners: []client.Object{release("a", "tenant"), release("b", "tenant")}, asked: 2},
		"Stranger": {reason: "a release of another team that has nothing to do with it", owners: []client.Object{release("a", "tenant", stranger)}},
		"Silent":   {reason: "clusters that do not answer are not waited for one by one", owners: []client.Object{release("a", "a"), release("b", "b"), release("c", "c"), release("d", "d")}, silent: true, asked: 1 + mostSilent},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			asked := 0
			claims := &Claims{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.owners...).Build(), Now: func() time.Time { return noon }}
			claims.Kustomizations, claims.HelmReleases = sources{}, sources{}
			claims.Identify = func(ctx context.Context, namespace string, ref target.Ref) (target.Ref, error) {
				asked++
				if tc.silent && !ref.Local() {
					return ref, context.DeadlineExceeded
				}
				return identify(ctx, namespace, ref)
			}
			for range 2 {
				if _, err := claims.Except(self(), target.Ref{}, Applied{})(t.Context(), config, inventory.Entry{}); err != nil {
					t.Fatal(err)
				}
				if asked != tc.asked {
					t.Errorf("%s: asked %d times, want %d", tc.reason, asked, tc.asked)
				}
				if tc.silent {
					break
				}
			}
		})
	}
}

// TestClaims: who answers for an object besides the one that asks.
func TestClaims(t *testing.T) {
	config := inventory.Entry{Namespace: "x", Name: "a", Kind: "ConfigMap", Version: "v1"}
	role := inventory.Entry{Name: "a", Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Version: "v1"}
	other := func(ref *meta.KubeConfigReference, ns string) func(*helmv2.HelmRelease) {
		return func(h *helmv2.HelmRelease) { h.Spec.KubeConfig, h.Namespace = ref, ns }
	}
	secret := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "tenant"}}
	own := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "own"}}
	mute := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "mute"}}
	at := func(h *helmv2.HelmRelease, ago time.Duration) { h.CreationTimestamp = metav1.NewTime(noon.Add(-ago)) }
	// revisions of a release, the newest first, up to the one that was installed.
	revisions := func(statuses ...string) func(*helmv2.HelmRelease) {
		return func(h *helmv2.HelmRelease) {
			for i, is := range statuses {
				h.Status.History = append(h.Status.History, &helmv2.Snapshot{Version: len(statuses) - i, Status: is, Action: helmv2.ReleaseActionUpgrade})
			}
			h.Status.History[len(statuses)-1].Action = helmv2.ReleaseActionInstall
		}
	}
	broken := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "broken"}}
	there := target.Ref{Kind: "Secret", Name: "tenant", Cluster: "uid"}
	back := func(name, cluster string) func(*kustomizev1.Kustomization) {
		return func(k *kustomizev1.Kustomization) {
			k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: name}}
			k.Annotations = map[string]string{target.Annotation: target.Ref{Kind: "Secret", Name: name, Cluster: cluster}.Encode()}
		}
	}
	for name, tc := range map[string]struct {
		reason string
		owner  client.Object
		entry  inventory.Entry
		at     target.Ref
		want   string
	}{
		"Other":           {"another inventory has it", kustomization("new", config.ID(), nil), config, target.Ref{}, "Kustomization/apps/new"},
		"Self":            {"one's own inventory is no claim of another", kustomization("old", config.ID(), nil), config, target.Ref{}, ""},
		"Elsewhere":       {"an object of another namespace", kustomization("new", "y_a__ConfigMap", nil), config, target.Ref{}, ""},
		"Going":           {"who is deleted claims nothing", kustomization("new", config.ID(), deleting), config, target.Ref{}, ""},
		"Cluster":         {"a cluster-scoped object, recorded with the namespace of its manifest", kustomization("new", "x_a_rbac.authorization.k8s.io_ClusterRole", nil), role, target.Ref{}, "Kustomization/apps/new"},
		"Release":         {"a release has it", release(config.ID(), nil), config, target.Ref{}, "HelmRelease/apps/web"},
		"RemoteSame":      {"a release on the cluster of a Kustomization whose cluster is known", release(config.ID(), other(secret, "apps")), config, there, "HelmRelease/apps/web"},
		"RemoteOther":     {"a Secret of that name in another namespace", release(config.ID(), other(secret, "others")), config, there, ""},
		"Local":           {"the same object in the agent's own cluster", release(config.ID(), nil), config, there, ""},
		"OwnKubeconfig":   {"a kubeconfig that leads back to the agent's own cluster", kustomization("new", config.ID(), back("own", "home")), config, target.Ref{}, "Kustomization/apps/new"},
		"ToOwnKubeconfig": {"and the other way round", kustomization("new", config.ID(), nil), config, target.Ref{Kind: "Secret", Name: "own", Cluster: "home"}, "Kustomization/apps/new"},
		"OtherKubeconfig": {"a kubeconfig of another cluster", kustomization("new", config.ID(), back("other", "uid")), config, target.Ref{}, ""},
		"NotOnRecord":     {"a kubeconfig that leads back, which is not on record yet", kustomization("new", config.ID(), leads("own")), config, target.Ref{}, "Kustomization/apps/new"},
		"ReleaseBack":     {"the same of a release, which never has it on record", release(config.ID(), other(own, "apps")), config, target.Ref{}, "HelmRelease/apps/web"},
		"BackFromRelease": {"and the other way round", kustomization("new", config.ID(), nil), config, target.Ref{Kind: "Secret", Name: "own"}, "Kustomization/apps/new"},
		"TwoSecrets":      {"two Secrets lead to one cluster", release(config.ID(), other(secret, "apps")), config, target.Ref{Kind: "Secret", Name: "other"}, "HelmRelease/apps/web"},
		"Stranger":        {"the cluster of another team says that it is the one that is asked about", release(config.ID(), other(own, "others")), config, target.Ref{}, "HelmRelease/others/web?"},
		"StrangerRecord":  {"the same, on record", kustomization("new", config.ID(), func(k *kustomizev1.Kustomization) { back("own", "home")(k); k.Namespace = "others" }), config, target.Ref{Cluster: "home"}, "Kustomization/others/new?"},
		"StrangerAtHome":  {"another team has it here without a kubeconfig", release(config.ID(), other(nil, "others")), config, target.Ref{Kind: "Secret", Name: "own"}, "HelmRelease/others/web"},
		"MuteLongAgo":     {"a release whose cluster does not tell which it is, and that nothing happened to lately", release(config.ID(), func(h *helmv2.HelmRelease) { other(mute, "apps")(h); at(h, time.Hour) }), config, target.Ref{}, ""},
		"MuteLately":      {"one that may be a part of the change", release(config.ID(), func(h *helmv2.HelmRelease) { other(mute, "apps")(h); at(h, time.Minute) }), config, target.Ref{}, "HelmRelease/apps/web?"},
		"MuteStranger": {"one of another team, which has nothing to do with it", release(config.ID(), func(h *helmv2.HelmRelease) {
			other(mute, "others")(h)
			at(h, time.Minute)
			h.Spec.ChartRef = &helmv2.CrossNamespaceSourceReference{Kind: "OCIRepository", Name: "chart"}
		}), config, target.Ref{}, ""},
		"Installing":     {"a release that is about to create it", release(config.ID(), revisions("pending-install")), config, target.Ref{}, "HelmRelease/apps/web declares it"},
		"InstallFailed":  {"one that did not come so far", release(config.ID(), revisions("failed", "failed")), config, target.Ref{}, "HelmRelease/apps/web declares it"},
		"Installed":      {"one that was installed", release(config.ID(), revisions("deployed")), config, target.Ref{}, "HelmRelease/apps/web"},
		"UpgradeFailed":  {"one that was installed once", release(config.ID(), revisions("failed", "superseded")), config, target.Ref{}, "HelmRelease/apps/web"},
		"HistoryEnds":    {"one that may have been", release(config.ID(), func(h *helmv2.HelmRelease) { revisions("failed", "failed")(h); h.Status.History = h.Status.History[:1] }), config, target.Ref{}, "HelmRelease/apps/web"},
		"UnknownCluster": {"a kubeconfig of a cluster that does not tell which it is", kustomization("new", config.ID(), leads("mute")), config, target.Ref{}, "Kustomization/apps/new?"},
		"Unreachable":    {"a kubeconfig of a cluster that does not answer", release(config.ID(), other(broken, "apps")), config, target.Ref{}, "HelmRelease/apps/web?"},
		"UnknownOther":   {"such a kubeconfig, and another object", kustomization("new", "x_b__ConfigMap", leads("mute")), config, target.Ref{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.owner).Build()
			got, err := (&Claims{Client: c, Identify: identify, Now: func() time.Time { return noon }}).Except(self(), tc.at, Applied{})(t.Context(), tc.entry, inventory.Entry{})
			by := got.Owner
			switch {
			case got.Unsure:
				by += "?"
			case got.Kind == apply.Declared:
				by += " declares it"
			}
			if err != nil || by != tc.want {
				t.Errorf("%s: claimed by %v, %v; want %q", tc.reason, got, err, tc.want)
			}
		})
	}
}

func deleting(k *kustomizev1.Kustomization) {
	k.DeletionTimestamp, k.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{kustomizev1.KustomizationFinalizer}
}
