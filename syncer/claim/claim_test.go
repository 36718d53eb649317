package claim

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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
	many := func(n int) []client.Object {
		var owners []client.Object
		for i := range n {
			owners = append(owners, release(fmt.Sprint("r", i), fmt.Sprint("s", i)))
		}
		return owners
	}
	for name, tc := range map[string]struct {
		reason string
		owners []client.Object
		at     target.Ref
		// takes is how long a cluster takes to tell nothing; fails: it is an error. 0: it tells.
		takes time.Duration
		fails error
		// asked in each of two surveys, one right after the other.
		asked, then int
	}{
		"Local": {reason: "nobody has a kubeconfig", owners: []client.Object{kustomization("new", config.ID(), nil)}},
		"Recorded": {reason: "where it applies is on record, so only home is asked", owners: []client.Object{kustomization("new", "x_b__ConfigMap", func(k *kustomizev1.Kustomization) {
			leads("tenant")(k)
			k.Annotations = map[string]string{target.Annotation: target.Ref{Kind: "Secret", Name: "tenant", Cluster: "uid"}.Encode()}
		})}, asked: 1, then: 1},
		"Shared":   {reason: "two releases of one Secret, and home, which is asked anew", owners: []client.Object{release("a", "tenant"), release("b", "tenant")}, asked: 2, then: 1},
		"Stranger": {reason: "a release of another team that has nothing to do with it", owners: []client.Object{release("a", "tenant", stranger)}},
		"Silent":   {reason: "clusters that do not answer are waited for so long only, and not again and again", owners: many(5), takes: identifyTimeout, fails: context.DeadlineExceeded, asked: 1 + 2, then: 1 + 2},
		"Slow":     {reason: "nor are those that answer late and tell nothing", owners: many(5), takes: 9 * time.Second, asked: 1 + 2, then: 1 + 2},
		"Failing":  {reason: "those that answer at once are all asked", owners: many(5), takes: time.Millisecond, fails: errors.New("denied"), asked: 1 + 5, then: 1},
		"SlowSelf": {reason: "the cluster that is asked about is another matter", owners: many(5), at: target.Ref{Kind: "Secret", Name: "own"}, takes: 9 * time.Second, asked: 2 + 2, then: 1 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			asked, now, times := 0, noon, map[string]int{}
			claims := &Claims{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.owners...).Build(), Now: func() time.Time { return now }}
			claims.Kustomizations, claims.HelmReleases = sources{}, sources{}
			claims.Identify = func(ctx context.Context, namespace string, ref target.Ref) (target.Ref, error) {
				asked++
				if times[ref.Name]++; tc.takes > 0 && !ref.Local() && ref.Name != tc.at.Name {
					now = now.Add(tc.takes)
					return ref, tc.fails
				}
				return identify(ctx, namespace, ref)
			}
			for _, want := range []int{tc.asked, tc.then} {
				asked = 0
				if _, err := claims.Except(self(), tc.at, Applied{})(t.Context(), config, inventory.Entry{}); err != nil {
					t.Fatal(err)
				}
				if asked != want {
					t.Errorf("%s: asked %d times, want %d", tc.reason, asked, want)
				}
			}
			for secret, n := range times {
				if n > 1 && secret != tc.at.Name {
					t.Errorf("%s: the cluster of %s is asked %d times", tc.reason, secret, n)
				}
			}
		})
	}
}

// TestIdentifiesAnew: a Secret has another cluster in it than when it was asked about before,
// and there another owner declares what is about to be deleted.
func TestIdentifiesAnew(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kustomizev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := helmv2.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	web, moving := of("web", "web", leads("prod")), of("new", "two", leads("next"))
	is, now := map[string]string{"prod": "blue", "next": "green"}, noon
	claims := &Claims{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(web, moving).Build(), Now: func() time.Time { return now }}
	claims.Kustomizations = sources{"two": has("a")}
	claims.Identify = func(_ context.Context, _ string, ref target.Ref) (target.Ref, error) {
		ref.Cluster = is[ref.Name]
		return ref, nil
	}
	claimed := func() string {
		claim, err := claims.Except(web, target.Ref{Kind: "Secret", Name: "prod"}, Applied{})(t.Context(), has("a").Entries[0], inventory.Entry{})
		if err != nil {
			t.Fatal(err)
		}
		return claim.Owner
	}
	if by := claimed(); by != "" {
		t.Errorf("two clusters: %s", by)
	}
	is["prod"] = "green"
	if by := claimed(); by != "Kustomization/apps/new" {
		t.Errorf("the Secret of the one that asks leads there now: claimed by %q", by)
	}
	is["prod"], is["next"] = "red", "red"
	now = now.Add(time.Minute)
	if by := claimed(); by != "Kustomization/apps/new" {
		t.Errorf("both were changed a while ago: claimed by %q", by)
	}
}

// TestIdentifiesLater: what a survey had no time to ask about counts until another one had.
func TestIdentifiesLater(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kustomizev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := helmv2.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	now := noon
	var owners []client.Object
	for i := range 5 {
		owners = append(owners, release("x_a__ConfigMap", func(h *helmv2.HelmRelease) {
			h.Name, h.CreationTimestamp = fmt.Sprint("r", i), metav1.NewTime(noon.Add(-time.Hour))
			h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: fmt.Sprint("s", i)}}
		}))
	}
	claims := &Claims{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(owners...).Build(), Now: func() time.Time { return now }}
	claims.Identify = func(_ context.Context, _ string, ref target.Ref) (target.Ref, error) {
		switch {
		case ref.Local():
			ref.Cluster = "home"
		case ref.Name == "s4":
			ref.Cluster = "another"
		default:
			now = now.Add(9 * time.Second)
		}
		return ref, nil
	}
	for i, want := range []apply.Claim{
		{Owner: "HelmRelease/apps/r2", Unsure: true, Perhaps: []string{"HelmRelease/apps/r0", "HelmRelease/apps/r1", "HelmRelease/apps/r2", "HelmRelease/apps/r3", "HelmRelease/apps/r4"}},
		{Owner: "HelmRelease/apps/r4", Unsure: true, Perhaps: []string{"HelmRelease/apps/r0", "HelmRelease/apps/r1", "HelmRelease/apps/r2", "HelmRelease/apps/r3", "HelmRelease/apps/r4"}},
		{Perhaps: []string{"HelmRelease/apps/r0", "HelmRelease/apps/r1", "HelmRelease/apps/r2", "HelmRelease/apps/r3"}},
	} {
		got, err := claims.Except(self(), target.Ref{}, Applied{})(t.Context(), has("a").Entries[0], inventory.Entry{})
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("survey %d: %+v, %v; want %+v", i+1, got, err, want)
		}
	}
}

// TestClaims: who answers for an object besides the one that asks.
func TestClaims(t *testing.T) {
	config := inventory.Entry{Namespace: "x", Name: "a", Kind: "ConfigMap", Version: "v1"}
	definition := inventory.Entry{Name: "widgets.shop.io", Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Version: "v1"}
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
		"ReleaseBack":     {"the same of a release, which has it on record no more than that", release(config.ID(), other(own, "apps")), config, target.Ref{}, "HelmRelease/apps/web"},
		"ReleaseMoves": {"a release that was given another cluster, and has not left this one", release(config.ID(), func(h *helmv2.HelmRelease) {
			other(secret, "apps")(h)
			target.SetRecorded(h, target.Ref{Kind: "Secret", Name: "own", Cluster: "home"}.Encode())
		}), config, target.Ref{}, "HelmRelease/apps/web"},
		"BackFromRelease": {"and the other way round", kustomization("new", config.ID(), nil), config, target.Ref{Kind: "Secret", Name: "own"}, "Kustomization/apps/new"},
		"TwoSecrets":      {"two Secrets lead to one cluster", release(config.ID(), other(secret, "apps")), config, target.Ref{Kind: "Secret", Name: "other"}, "HelmRelease/apps/web"},
		"Stranger":        {"the cluster of another team says that it is the one that is asked about", release(config.ID(), other(own, "others")), config, target.Ref{}, "HelmRelease/others/web?"},
		"StrangerRecord":  {"the same, on record", kustomization("new", config.ID(), func(k *kustomizev1.Kustomization) { back("own", "home")(k); k.Namespace = "others" }), config, target.Ref{Cluster: "home"}, "Kustomization/others/new?"},
		"TwoTeamsBelow":   {"another team has a kubeconfig that says to lead to the cluster below, and only labels of the object prove that it does", kustomization("new", config.ID(), func(k *kustomizev1.Kustomization) { back("other", "uid")(k); k.Namespace = "others" }), config, there, "Kustomization/others/new?"},
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
		"Definition":     {"a release, whose chart has it, and which may have left it to others", release(definition.ID(), nil), definition, target.Ref{}, "HelmRelease/apps/web?"},
		"DefinitionSoon": {"one that is being installed", release(definition.ID(), revisions("pending-install")), definition, target.Ref{}, "HelmRelease/apps/web?"},
		"DefinitionHere": {"a Kustomization has applied what it has on record", kustomization("new", definition.ID(), nil), definition, target.Ref{}, "Kustomization/apps/new"},
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

// TestClaimOfDefinition: who is known to have applied a definition comes before a release that may have it of its chart
// alone. Labels tell whether that one did.
func TestClaimOfDefinition(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	e := inventory.Entry{Name: "widgets.shop.io", Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Version: "v1"}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(release(e.ID(), nil), kustomization("new", e.ID(), nil)).Build()
	got, err := (&Claims{Client: c, Now: func() time.Time { return noon }}).Except(self(), target.Ref{}, Applied{})(t.Context(), e, inventory.Entry{})
	want := apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Recorded, Perhaps: []string{"HelmRelease/apps/web"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("claimed by %+v, %v; want %+v", got, err, want)
	}
}

func deleting(k *kustomizev1.Kustomization) {
	k.DeletionTimestamp, k.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{kustomizev1.KustomizationFinalizer}
}
