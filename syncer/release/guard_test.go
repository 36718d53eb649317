package release

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/kube"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

func TestJudge(t *testing.T) {
	entry := func(group, kind string) inventory.Entry {
		return inventory.Entry{Namespace: "fleet", Name: "prod", Group: group, Kind: kind, Version: "v1"}
	}
	cluster, machines := entry(clusterapi.Group, "Cluster"), entry(clusterapi.Group, "MachineDeployment")
	template := entry("infrastructure.cluster.x-k8s.io", "AWSMachineTemplate")
	configMap, secret, claim, crd := entry("", "ConfigMap"), entry("", "Secret"), entry("", "PersistentVolumeClaim"), entry("apiextensions.k8s.io", "CustomResourceDefinition")
	namespace := inventory.Entry{Name: "apps", Kind: "Namespace", Version: "v1"}
	agent := func(group, kind, name string) inventory.Entry {
		e := inventory.Entry{Name: name, Group: group, Kind: kind, Version: "v1"}
		if kind == "Deployment" {
			e.Namespace = v1alpha1.AgentNamespace
		}
		return e
	}
	present := inventory.Live{State: inventory.Present, Owned: true}
	with := func(change func(*inventory.Live)) inventory.Live {
		l := present
		change(&l)
		return l
	}
	confirmed := with(func(l *inventory.Live) { l.Confirmed = true })
	ofCluster := with(func(l *inventory.Live) { l.OfCluster = "prod" })
	inUse := with(func(l *inventory.Live) { l.OfCluster, l.Confirmed = "prod", true })
	identity := entry("infrastructure.cluster.x-k8s.io", "AWSClusterStaticIdentity")
	for name, tc := range map[string]struct {
		reason    string
		candidate Candidate
		want      Verdict
	}{
		"Ordinary":        {"the chart brings it back", Candidate{Entry: configMap, Live: present, Ours: true}, Deletable},
		"Unknown":         {"unknown is not absent, and not harmless", Candidate{Entry: configMap}, Held},
		"Gone":            {"there is nothing to delete", Candidate{Entry: cluster, Live: inventory.Live{State: inventory.Absent}}, Gone},
		"Foreign":         {"another release took it over", Candidate{Entry: configMap, Live: present, Others: true}, Foreign},
		"ForeignCluster":  {"that somebody confirmed its end is no business of ours", Candidate{Entry: cluster, Live: confirmed, Others: true}, Foreign},
		"Unlabelled":      {"the helm CLI installed it, and it is in the manifest", Candidate{Entry: configMap, Live: inventory.Live{State: inventory.Present}, Marked: true}, Deletable},
		"Unmarked":        {"that a manifest has its name makes nothing the release's", Candidate{Entry: configMap, Live: inventory.Live{State: inventory.Present}}, Foreign},
		"Kept":            {"the chart asked to leave it behind, whenever it is looked at", Candidate{Entry: configMap, Live: present, Ours: true, Kept: true}, Foreign},
		"UnmarkedHook":    {"nor does a hook of its name", Candidate{Entry: secret, Live: inventory.Live{State: inventory.Present}}, Foreign},
		"Cluster":         {"a real cluster is at its other end", Candidate{Entry: cluster, Live: present, Ours: true}, Held},
		"ClusterOther":    {"also where nobody labelled it", Candidate{Entry: cluster, Live: inventory.Live{State: inventory.Present}, Marked: true}, Held},
		"ClusterUnmarked": {"a confirmation was not for whoever has its name in a manifest", Candidate{Entry: cluster, Live: inventory.Live{State: inventory.Present, Confirmed: true}}, Foreign},
		"Confirmed":       {"a person confirmed it", Candidate{Entry: cluster, Live: confirmed, Ours: true}, Deletable},
		"WithRelease":     {"a person confirmed all of the release", Candidate{Entry: cluster, Live: present, Ours: true, WithRelease: true}, Deletable},
		"WithUnknown":     {"nobody knows what that is about", Candidate{Entry: cluster, Ours: true, WithRelease: true}, Held},
		"WithQueued":      {"it waits as one that was confirmed", Candidate{Entry: cluster, Live: present, Ours: true, WithRelease: true, InFlight: "Cluster/x/y"}, Queued},
		"WithIdentity":    {"and for what needs it", Candidate{Entry: identity, Live: ofCluster, Ours: true, WithRelease: true}, WithCluster},
		"WithTemplate":    {"what does not ask needs no confirmation", Candidate{Entry: template, Live: ofCluster, Ours: true, WithRelease: true}, WithCluster},
		"Queued":          {"another Cluster is being torn down", Candidate{Entry: cluster, Live: confirmed, Ours: true, InFlight: "Cluster/x/y"}, Queued},
		"Deleting":        {"it is being deleted already", Candidate{Entry: cluster, Live: with(func(l *inventory.Live) { l.Deleting = true }), Ours: true}, Deletable},
		"Definition":      {"all objects of its kind go with it", Candidate{Entry: crd, Live: present, Ours: true}, Held},
		"Data":            {"nobody brings it back", Candidate{Entry: claim, Live: present, Ours: true}, Held},
		"Kubeconfig":      {"the way to a cluster", Candidate{Entry: secret, Live: with(func(l *inventory.Live) { l.ClusterSecret = true }), Ours: true}, Held},
		"Secret":          {"another Secret is not", Candidate{Entry: secret, Live: present, Ours: true}, Deletable},
		"Namespace":       {"it is empty but for the release", Candidate{Entry: namespace, Live: present, Ours: true}, Deletable},
		"NamespaceHolds":  {"what others have in it would go", Candidate{Entry: namespace, Live: with(func(l *inventory.Live) { l.Holds = []string{"ConfigMap/apps/x"} }), Ours: true}, Held},
		"NamespaceOther":  {"nobody looked into it", Candidate{Entry: namespace, Live: inventory.Live{State: inventory.Present}, Marked: true}, Held},
		"NamespaceExempt": {"nor into one that asks to be left alone", Candidate{Entry: namespace, Live: with(func(l *inventory.Live) { l.Exempt = true }), Ours: true},
			Held},
		"OldTemplate":       {"each change of a template leaves one behind: no reason to ask anybody", Candidate{Entry: template, Live: ofCluster, Ours: true, OwnCluster: true}, WithCluster},
		"OldTemplateOk":     {"the Cluster needs it as long as it is there, whatever anybody confirmed", Candidate{Entry: template, Live: with(func(l *inventory.Live) { l.OfCluster, l.Confirmed = "prod", true }), Ours: true, OwnCluster: true}, WithCluster},
		"PoolTemplate":      {"a release of one pool has to be able to go", Candidate{Entry: template, Live: with(func(l *inventory.Live) { l.OfCluster, l.Confirmed = "prod", true }), Ours: true}, Deletable},
		"LastTemplate":      {"without its Cluster it asks like all of them", Candidate{Entry: template, Live: present, Ours: true}, Held},
		"Machines":          {"machines that run are no leftover", Candidate{Entry: machines, Live: ofCluster, Ours: true, OwnCluster: true}, Held},
		"MachinesOk":        {"a person wants them gone", Candidate{Entry: machines, Live: with(func(l *inventory.Live) { l.OfCluster, l.Confirmed = "prod", true }), Ours: true, OwnCluster: true}, Deletable},
		"IdentityInUse":     {"a Cluster could neither be repaired nor be taken down", Candidate{Entry: identity, Live: inUse, Ours: true}, WithCluster},
		"IdentityOwn":       {"nor one of the same release, which may stay in it", Candidate{Entry: identity, Live: inUse, Ours: true, OwnCluster: true}, WithCluster},
		"IdentityHeld":      {"who did not confirm it is asked", Candidate{Entry: identity, Live: ofCluster, Ours: true}, Held},
		"IdentityFree":      {"nothing uses it any more", Candidate{Entry: identity, Live: confirmed, Ours: true}, Deletable},
		"KeysInUse":         {"an identity is nothing without its keys", Candidate{Entry: secret, Live: with(func(l *inventory.Live) { l.OfCluster, l.Credential, l.Confirmed = "prod", "x", true }), Ours: true}, WithCluster},
		"CertificatesInUse": {"nor a cluster without its certificates", Candidate{Entry: secret, Live: with(func(l *inventory.Live) { l.OfCluster, l.ClusterSecret, l.Confirmed = "prod", true, true }), Ours: true}, WithCluster},
		"ClassInUse":        {"a Cluster is built by it", Candidate{Entry: entry(clusterapi.Group, clusterapi.ClusterClass), Live: inUse, Ours: true}, WithCluster},
		"ControlPlaneInUse": {"a Cluster is at its other end", Candidate{Entry: entry(clusterapi.ControlPlaneGroup, "KubeadmControlPlane"), Live: inUse, Ours: true}, WithCluster},
		"ClassTemplate":     {"and a class has it", Candidate{Entry: entry("infrastructure.cluster.x-k8s.io", "AWSClusterTemplate"), Live: inUse, Ours: true}, WithCluster},
		"Hook":              {"the chart itself declares it as passing", Candidate{Entry: claim, Live: present, Ours: true, Hook: true}, Deletable},
		"HookTurned":        {"the chart declares it as passing now; it was made to stay", Candidate{Entry: claim, Live: present, Ours: true}, Held},
		"HookNamespace": {"all that is in it would go before each upgrade", Candidate{Entry: namespace, Live: with(func(l *inventory.Live) { l.Holds = []string{"Cluster/apps/prod"} }), Ours: true, Hook: true},
			Held},
		"HookNamespaceOther": {"nobody looked into it", Candidate{Entry: namespace, Live: inventory.Live{State: inventory.Present}, Marked: true, Hook: true}, Held},
		"HookRelease":        {"the clusters of the release would go with it", Candidate{Entry: entry("helm.toolkit.fluxcd.io", "HelmRelease"), Live: with(func(l *inventory.Live) { l.Holds = []string{"Cluster/apps/prod"} }), Ours: true, Hook: true}, Held},
		"LowerTier":          {"a whole tier follows it", Candidate{Entry: entry("kustomize.toolkit.fluxcd.io", "Kustomization"), Live: present, Ours: true, LowerTier: true}, Held},
		"Agent":              {"nobody is left to bring it back", Candidate{Entry: agent("apps", "Deployment", "cascade"), Live: present, Ours: true}, Held},
		"AgentHook":          {"a hook is no way to delete it", Candidate{Entry: agent("apps", "Deployment", "cascade"), Live: present, Ours: true, Hook: true}, Held},
		"AgentOk":            {"a person wants it gone", Candidate{Entry: agent("apps", "Deployment", "cascade"), Live: present, Ours: true, WithRelease: true}, Deletable},
		"AgentRights":        {"nor can it bring back its rights", Candidate{Entry: agent(rbacv1.GroupName, "ClusterRoleBinding", "cascade"), Live: present, Ours: true}, Held},
		"AgentWall":          {"it stands in the way of deletes", Candidate{Entry: agent(admissionv1.GroupName, "ValidatingAdmissionPolicy", "cascade-clusters"), Live: present, Ours: true}, Held},
		"Lockdown": {"nor these", Candidate{Entry: agent(rbacv1.GroupName, "ClusterRole", "cascade-accounts"), Live: with(func(l *inventory.Live) { l.LockedDown = true }), Ours: true},
			Held},
		"LockdownEnds":     {"it has all rights by now", Candidate{Entry: agent(rbacv1.GroupName, "ClusterRole", "cascade-accounts"), Live: present, Ours: true}, Deletable},
		"SameTier":         {"it asks for itself", Candidate{Entry: entry("kustomize.toolkit.fluxcd.io", "Kustomization"), Live: present, Ours: true}, Deletable},
		"Taken":            {"another owner has it and applied it", Candidate{Entry: configMap, Live: present, Ours: true, Taken: true}, Foreign},
		"Awaited":          {"another owner is to apply it", Candidate{Entry: configMap, Live: present, Ours: true, NewOwner: "Kustomization/x/y"}, Awaited},
		"AwaitedConfirmed": {"a confirmation is of a deletion, not of a hand-over", Candidate{Entry: cluster, Live: confirmed, Ours: true, NewOwner: "Kustomization/x/y"}, Awaited},
		"AwaitedGoing":     {"it is being deleted already", Candidate{Entry: configMap, Live: with(func(l *inventory.Live) { l.Deleting = true }), Ours: true, NewOwner: "Kustomization/x/y"}, Deletable},
		"HookKept":         {"Helm makes it anew, and waits for its end", Candidate{Entry: secret, Live: present, Ours: true, Hook: true, Kept: true}, Deletable},
		"HookKeptData":     {"the chart wants it left behind", Candidate{Entry: claim, Live: present, Ours: true, Hook: true, Kept: true}, Foreign},
		"HookKeptNamespace": {"with all that is in it", Candidate{Entry: namespace, Live: with(func(l *inventory.Live) { l.Holds = []string{"Cluster/apps/prod"} }), Ours: true, Hook: true, Kept: true},
			Foreign},
		"HookKeptOther": {"it is another owner's", Candidate{Entry: secret, Live: present, Others: true, Marked: true, Hook: true, Kept: true}, Foreign},
		"HookCluster":   {"a hook is no way to delete a cluster", Candidate{Entry: cluster, Live: present, Ours: true, Hook: true}, Held},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Judge(tc.candidate); got != tc.want {
				t.Errorf("%s\nJudge(%+v) = %d, want %d", tc.reason, tc.candidate, got, tc.want)
			}
		})
	}
}

// TestJudgedTogether: what the objects of a release have in common is read once for all (read 410).
func TestJudgedTogether(t *testing.T) {
	w := &fakeWorld{live: map[string]inventory.Live{"a": {State: inventory.Present, Owned: true}, "b": {State: inventory.Present, Owned: true}}}
	g := &guard{facts: inMemory{w}, obj: &v2.HelmRelease{}}
	s := g.judgeAll(t.Context(), []inventory.Entry{{Name: "a", Kind: "Secret"}, {Name: "b", Kind: "Secret"}}, nil)
	if len(s.deletable) != 2 || w.passes != 1 {
		t.Errorf("%d of 2 objects may be deleted, as of %d looks", len(s.deletable), w.passes)
	}
}

// TestHandOverOfRelease: what is kept for others is kept until they had the time.
func TestHandOverOfRelease(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	present := inventory.Live{State: inventory.Present, Owned: true}
	config := Candidate{Entry: inventory.Entry{Name: "a", Kind: "ConfigMap"}, Live: present, Ours: true, NewOwner: "Kustomization/x/y"}
	data := Candidate{Entry: inventory.Entry{Name: "d", Kind: "PersistentVolumeClaim"}, Live: present, Ours: true, NewOwner: "Kustomization/x/y"}
	g := &guard{}
	judge := func() *verdicts {
		s := newVerdicts()
		s.add(config)
		s.add(data)
		return s
	}
	s := judge()
	first := g.handOver(s, nil, noon)
	if first == nil || len(s.kept()) != 2 || len(s.deletable) != 0 {
		t.Fatalf("at first both are kept: %v, %+v", first, s)
	}
	s = judge()
	if record := g.handOver(s, first, noon.Add(inventory.HandOverBound-time.Second)); record == nil || *record != *first || len(s.deletable) != 0 {
		t.Errorf("they are kept since then: %v, %+v", record, s)
	}
	s = judge()
	record := g.handOver(s, first, noon.Add(inventory.HandOverBound))
	if record == nil || len(s.deletable) != 1 || s.deletable[0].Entry != config.Entry || len(s.awaited) != 1 || s.awaited[0] != data.Entry {
		t.Errorf("then what is not protected may go: %v, %+v", record, s)
	}
	if !g.overdue[config.Entry.ID()] || g.overdue[data.Entry.ID()] {
		t.Errorf("Helm is asked to delete what may go, and nobody else is: %v", g.overdue)
	}
}

// TestHandOverAhead: what another owner gets once a Rollout lets it is kept for as long as that takes.
func TestHandOverAhead(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	claim := apply.Claim{Owner: "Kustomization/x/y", Kind: apply.Declared, Ahead: true}
	g := &guard{claimed: func(context.Context, inventory.Entry, inventory.Entry) (apply.Claim, error) { return claim, nil }}
	d := Candidate{Entry: inventory.Entry{Name: "a", Kind: "ConfigMap"}, Live: inventory.Live{State: inventory.Present, Owned: true}, Ours: true}
	g.claim(t.Context(), &d, nil)
	s := newVerdicts()
	s.add(d)
	record := g.handOver(s, inventory.HandingOver(s.awaited, nil, noon.Add(-24*time.Hour)), noon)
	if record == nil || len(s.awaited) != 1 || len(s.deletable) != 0 || len(g.overdue) != 0 {
		t.Errorf("after a day: %v, %+v", record, s)
	}
}

// TestHandOverUnsure: what another owner may declare, which nobody can find out, is kept until that
// one had the time. Then it is judged alone, protected or not, and stays judged alone.
func TestHandOverUnsure(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	late := noon.Add(inventory.HandOverBound)
	candidate := func(name, kind string, confirmed bool) Candidate {
		return Candidate{Entry: inventory.Entry{Name: name, Kind: kind}, Live: inventory.Live{State: inventory.Present, Owned: true, Confirmed: confirmed},
			Ours: true, NewOwner: "HelmRelease/x/y", Unsure: true}
	}
	config, data, confirmed := candidate("a", "ConfigMap", false), candidate("d", "PersistentVolumeClaim", false), candidate("e", "PersistentVolumeClaim", true)
	g := &guard{}
	judge := func(of ...Candidate) *verdicts {
		s := newVerdicts()
		for _, d := range of {
			s.add(d)
		}
		return s
	}
	s := judge(config, data, confirmed)
	record := g.handOver(s, nil, noon)
	if record == nil || len(s.awaited) != 3 {
		t.Fatalf("at first all are kept: %v, %+v", record, s)
	}
	s = judge(config, data, confirmed)
	record = g.handOver(s, record, late)
	if len(s.deletable) != 2 || len(s.held) != 1 || s.held[0] != data.Entry || len(s.awaited) != 0 || record == nil {
		t.Fatalf("then what is protected asks a person, and the rest goes: %v, %+v", record, s)
	}
	// An uninstall deletes nothing while something is held.
	s = judge(config, data, confirmed)
	if record = g.handOver(s, record, late.Add(time.Second)); len(s.held) != 1 || len(s.awaited) != 0 {
		t.Errorf("the question is not taken back for another time of waiting: %v, %+v", record, s)
	}
	// What an upgrade dropped goes at once.
	record = g.handsOverStill([]inventory.Entry{config.Entry, confirmed.Entry})
	s = judge(data)
	if record = g.handOver(s, record, late.Add(3*time.Second)); len(s.held) != 1 || len(s.awaited) != 0 {
		t.Errorf("what is left has waited as long: %v, %+v", record, s)
	}
	data.Live.Confirmed = true
	s = judge(data)
	if record = g.handOver(s, record, late.Add(4*time.Second)); len(s.deletable) != 1 || !g.overdue[data.Entry.ID()] {
		t.Errorf("a person confirmed it: %v, %+v", record, s)
	}
	if record = g.handsOverStill([]inventory.Entry{data.Entry}); record != nil {
		t.Errorf("nothing is left: %v", record)
	}
}

// TestClaimProven: what another owner may have in a cluster is its own once its labels are on it, and is
// kept for a while before.
func TestClaimProven(t *testing.T) {
	by := func(name string) map[string]string {
		return map[string]string{"kustomize.toolkit.fluxcd.io/name": name, "kustomize.toolkit.fluxcd.io/namespace": "others"}
	}
	claimed := apply.Claim{Owner: "Kustomization/others/new", Kind: apply.Declared, Unsure: true, Perhaps: []string{"Kustomization/others/new"}}
	for name, tc := range map[string]struct {
		reason string
		labels map[string]string
		want   Candidate
	}{
		"Labelled":   {"it applied the object", by("new"), Candidate{Taken: true}},
		"Unlabelled": {"anybody can say so", nil, Candidate{NewOwner: "Kustomization/others/new", Unsure: true}},
		"Another":    {"a third one applied it once", by("gone"), Candidate{NewOwner: "Kustomization/others/new", Unsure: true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := &guard{claimed: func(context.Context, inventory.Entry, inventory.Entry) (apply.Claim, error) { return claimed, nil }}
			d := Candidate{Live: inventory.Live{State: inventory.Present}}
			if g.claim(t.Context(), &d, tc.labels); d.Taken != tc.want.Taken || d.NewOwner != tc.want.NewOwner || d.Unsure != tc.want.Unsure {
				t.Errorf("%s: %+v, want %+v", tc.reason, d, tc.want)
			}
		})
	}
}

// seenWith is a cluster whose objects have annotations.
type seenWith struct {
	inMemory
	annotations map[string]string
}

func (s seenWith) Looks([]inventory.Entry, bool) apply.Look {
	return func(context.Context, inventory.Entry) (inventory.Live, map[string]string, map[string]string) {
		return owned(nil), nil, s.annotations
	}
}

// TestLookAtDefinition: Helm deletes a definition that is of a template. One that came beside those it leaves behind.
func TestLookAtDefinition(t *testing.T) {
	e := inventory.Entry{Name: "widgets.shop.io", Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Version: "v1"}
	for name, tc := range map[string]struct {
		reason      string
		annotations map[string]string
		confirmed   bool
		want        Verdict
	}{
		"Beside":          {"it has no mark of Helm's", nil, false, Foreign},
		"BesideConfirmed": {"also where all of the release is to go", nil, true, Foreign},
		"Template":        {"a person is asked about that of a template", map[string]string{releaseName: "web"}, false, Held},
		"TemplateOk":      {"who confirmed it", map[string]string{releaseName: "web"}, true, Deletable},
	} {
		t.Run(name, func(t *testing.T) {
			g := &guard{facts: seenWith{annotations: tc.annotations}, obj: &v2.HelmRelease{}, confirmed: tc.confirmed}
			if got := Judge(g.look(t.Context(), g.looks(), e, false)); got != tc.want {
				t.Errorf("%s: it is judged %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// TestHandOverOneByOne: a release that goes deletes its Clusters one by one. Those that are left have
// waited for another owner as long as the first one.
func TestHandOverOneByOne(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	late := noon.Add(inventory.HandOverBound)
	cluster := func(name string) Candidate {
		return Candidate{Entry: inventory.Entry{Namespace: "fleet", Name: name, Group: clusterapi.Group, Kind: "Cluster"},
			Live: inventory.Live{State: inventory.Present, Owned: true, Confirmed: true}, Ours: true, NewOwner: "HelmRelease/x/y", Unsure: true}
	}
	first, second := cluster("a"), cluster("b")
	g := &guard{}
	judge := func() *verdicts {
		s := newVerdicts()
		s.add(first)
		s.add(second)
		return s
	}
	record := g.handOver(judge(), nil, noon)
	s := judge()
	if record = g.handOver(s, record, late); len(s.deletable) != 2 {
		t.Fatalf("both may go: %v, %+v", record, s)
	}
	first.Live.Deleting = true
	s = judge()
	if record = g.handOver(s, record, late.Add(time.Minute)); len(s.deletable) != 2 || len(s.awaited) != 0 {
		t.Errorf("the first one is going: %v, %+v", record, s)
	}
	first.Live = inventory.Live{State: inventory.Absent}
	s = judge()
	if g.handOver(s, record, late.Add(2*time.Minute)); len(s.deletable) != 1 || len(s.awaited) != 0 {
		t.Errorf("the first one is gone: %+v", s)
	}
}

func TestHeldMessage(t *testing.T) {
	s := newVerdicts()
	if s.message() != "" {
		t.Errorf("message() of nothing is %q", s.message())
	}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		s.add(Candidate{Entry: inventory.Entry{Namespace: "fleet", Name: name, Group: clusterapi.Group, Kind: "Cluster"}, Live: inventory.Live{State: inventory.Present}, Ours: true})
	}
	for _, want := range []string{"Cluster/fleet/a", "and 2 more", "cascade.dev/deletion: confirmed"} {
		if !strings.Contains(s.message(), want) {
			t.Errorf("message() = %q, want %q in it", s.message(), want)
		}
	}
}

// TestNamespaceOfRelease: a Namespace that an upgrade drops waits for the Clusters in it, and what they need,
// whichever revision had these. Nobody loses what is to stay, for whatever reason, by one that was not confirmed.
func TestNamespaceOfRelease(t *testing.T) {
	namespace, cluster, keys, data := inventory.Entry{Name: "apps", Kind: "Namespace", Version: "v1"}, named("Cluster", "prod"), named("Secret", "keys"), named("PersistentVolumeClaim", "data")
	child := named("HelmRelease", "child")
	confirmed := owned(func(l *inventory.Live) { l.Confirmed = true })
	needed := owned(func(l *inventory.Live) {
		l.OfCluster, l.Credential, l.Confirmed = "prod", "AWSClusterStaticIdentity/prod", true
	})
	list := func(of ...inventory.Entry) (infos kube.ResourceList) {
		for _, e := range of {
			scope := meta.RESTScopeNamespace
			if e.Namespace == "" {
				scope = meta.RESTScopeRoot
			}
			mapping := &meta.RESTMapping{GroupVersionKind: schema.GroupVersionKind{Group: e.Group, Version: e.Version, Kind: e.Kind}, Scope: scope}
			infos = append(infos, &resource.Info{Name: e.Name, Namespace: e.Namespace, Mapping: mapping, Object: e.Object()})
		}
		return infos
	}
	inUse := owned(func(l *inventory.Live) { l.Credential = "AWSClusterStaticIdentity/prod" })
	identity := inventory.Entry{Namespace: "apps", Name: "i", Group: "infrastructure.cluster.x-k8s.io", Kind: "AzureClusterIdentity", Version: "v1beta1"}
	both := []inventory.Entry{namespace, keys}
	unconfirmed := map[string]inventory.Live{"apps": owned(nil), "keys": owned(nil)}
	taken := map[string]inventory.Live{"apps": owned(nil), "keys": {State: inventory.Present}}
	claim := apply.Claim{Owner: "Kustomization/x/y", Kind: apply.Declared}
	for name, tc := range map[string]struct {
		reason           string
		release, targets []inventory.Entry
		live             map[string]inventory.Live
		want             Verdict
		// dropped with the Namespace. claim is another owner's on what is in it, keep the chart's policy for
		// that, and kept the one in the cluster. whole: a person confirmed that all of the release goes.
		dropped           []inventory.Entry
		claim             apply.Claim
		keep, kept, whole bool
	}{
		"Leftover":     {reason: "a Cluster of an earlier revision is queued", release: []inventory.Entry{namespace, cluster}, live: map[string]inventory.Live{"apps": confirmed, "prod": confirmed}, want: WithCluster},
		"Keys":         {reason: "keys of an earlier revision wait for another owner's Cluster", release: both, live: map[string]inventory.Live{"apps": confirmed, "keys": needed}, want: WithCluster},
		"Unknown":      {reason: "it may be what a Cluster needs", release: both, live: map[string]inventory.Live{"apps": confirmed, "keys": {Problem: "no route to host"}}, want: WithCluster},
		"Gone":         {reason: "the Cluster has ended", release: []inventory.Entry{namespace, cluster}, live: map[string]inventory.Live{"apps": confirmed, "prod": {State: inventory.Absent}}},
		"Foreign":      {reason: "another owner has it by now, whose Namespace this is not", release: []inventory.Entry{namespace, cluster}, live: map[string]inventory.Live{"apps": confirmed, "prod": {State: inventory.Present}}},
		"Declared":     {reason: "the chart still has a Cluster in it", release: []inventory.Entry{namespace, cluster}, targets: []inventory.Entry{cluster}, live: map[string]inventory.Live{"apps": confirmed, "prod": owned(nil)}, want: WithCluster},
		"New":          {reason: "the upgrade itself created one in it", release: []inventory.Entry{namespace}, targets: []inventory.Entry{cluster}, live: map[string]inventory.Live{"apps": confirmed, "prod": owned(nil)}, want: WithCluster},
		"Data":         {reason: "nobody confirmed that it takes along what the chart still has in it", release: []inventory.Entry{namespace, data}, targets: []inventory.Entry{data}, live: map[string]inventory.Live{"apps": owned(nil), "data": owned(nil)}, want: Held},
		"DataOk":       {reason: "a person did", release: []inventory.Entry{namespace, data}, targets: []inventory.Entry{data}, live: map[string]inventory.Live{"apps": confirmed, "data": owned(nil)}},
		"All":          {reason: "all that is in it goes", release: both, dropped: []inventory.Entry{keys}, live: unconfirmed},
		"HandedOver":   {reason: "another owner is to have what is in it", release: both, dropped: []inventory.Entry{keys}, claim: claim, live: unconfirmed, want: Held},
		"Taken":        {reason: "another owner has it already", release: both, dropped: []inventory.Entry{keys}, live: taken, want: Held},
		"TakenOk":      {reason: "a person confirmed the Namespace", release: both, dropped: []inventory.Entry{keys}, live: map[string]inventory.Live{"apps": confirmed, "keys": {State: inventory.Present}}},
		"TakenWhole":   {reason: "or all of the release", release: both, dropped: []inventory.Entry{keys}, live: taken, whole: true},
		"Keep":         {reason: "the chart leaves it behind", release: both, dropped: []inventory.Entry{keys}, live: unconfirmed, keep: true, want: Held},
		"Kept":         {reason: "so does the object itself", release: both, dropped: []inventory.Entry{keys}, live: unconfirmed, kept: true, want: Held},
		"Child":        {reason: "a person is asked about it first", release: []inventory.Entry{namespace, child}, dropped: []inventory.Entry{child}, live: map[string]inventory.Live{"apps": owned(nil), "child": owned(func(l *inventory.Live) { l.Holds = []string{"Cluster/apps/prod"} })}, want: Held},
		"LateHandOver": {reason: "also of what an earlier upgrade dropped", release: both, claim: claim, live: unconfirmed, want: Held},
		"LateTaken":    {reason: "also of that", release: both, live: taken, want: Held},
		"DeclaredKeys": {reason: "the chart still has keys in it that a Cluster elsewhere uses", release: both, targets: []inventory.Entry{keys}, live: map[string]inventory.Live{"apps": confirmed, "keys": inUse}, want: WithCluster},
		"DeclaredFree": {reason: "no Cluster uses what it still has", release: both, targets: []inventory.Entry{keys}, live: map[string]inventory.Live{"apps": confirmed, "keys": owned(nil)}},
		"HandedKeys":   {reason: "another owner is to have them", release: both, dropped: []inventory.Entry{keys}, claim: claim, live: map[string]inventory.Live{"apps": confirmed, "keys": inUse}, want: WithCluster},
		"Identity":     {reason: "a person is asked about it, and a Cluster uses it", release: []inventory.Entry{namespace, identity}, dropped: []inventory.Entry{identity}, live: map[string]inventory.Live{"apps": confirmed, "i": owned(func(l *inventory.Live) { l.OfCluster = "prod" })}, want: WithCluster},
		"KeptKeys":     {reason: "the object itself asks to be kept", release: both, targets: []inventory.Entry{keys}, kept: true, live: map[string]inventory.Live{"apps": confirmed, "keys": inUse}, want: WithCluster},
		"DroppedKept":  {reason: "also where the chart has it no more", release: both, dropped: []inventory.Entry{keys}, kept: true, live: map[string]inventory.Live{"apps": confirmed, "keys": inUse}, want: WithCluster},
		"LeftKeys":     {reason: "the chart leaves them behind", release: both, dropped: []inventory.Entry{keys}, keep: true, live: map[string]inventory.Live{"apps": confirmed, "keys": inUse}, want: WithCluster},
		"KeptFree":     {reason: "a person confirmed all of the release, and no Cluster uses the keys", release: both, kept: true, whole: true, live: map[string]inventory.Live{"apps": owned(nil), "keys": inUse}},
		"OthersKeys":   {reason: "a Cluster elsewhere needs what others have in it", release: []inventory.Entry{namespace}, live: map[string]inventory.Live{"apps": owned(func(l *inventory.Live) { l.Confirmed, l.OfCluster = true, "prod" })}, want: WithCluster},
		"OthersWhole":  {reason: "also where a person confirmed that all of the release goes", release: []inventory.Entry{namespace}, whole: true, live: map[string]inventory.Live{"apps": owned(func(l *inventory.Live) { l.OfCluster, l.Holds = "prod", []string{"Secret/apps/keys"} })}, want: WithCluster},
		"Late":         {reason: "it goes too", release: both, live: unconfirmed},
	} {
		t.Run(name, func(t *testing.T) {
			g := &guard{facts: inMemory{&fakeWorld{live: tc.live, kept: map[string]bool{"keys": tc.kept}}}, obj: &v2.HelmRelease{}, release: tc.release, confirmed: tc.whole}
			g.claimed = func(_ context.Context, e, _ inventory.Entry) (apply.Claim, error) {
				if e == namespace {
					return apply.Claim{}, nil
				}
				return tc.claim, nil
			}
			dropped := list(append(tc.dropped, namespace)...)
			if tc.keep {
				dropped[0].Object.(*unstructured.Unstructured).SetAnnotations(map[string]string{kube.ResourcePolicyAnno: kube.KeepPolicy})
			}
			s := g.sift(t.Context(), dropped, list(tc.targets...))
			got := map[Verdict][]inventory.Entry{Deletable: s.going(), WithCluster: s.withCluster, Held: s.held}
			if !slices.Contains(got[tc.want], namespace) {
				t.Errorf("%s: the verdicts are %v, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// TestNamespaceAfterHandOver: a Namespace is kept for what is in it no longer than that is.
func TestNamespaceAfterHandOver(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	present := inventory.Live{State: inventory.Present, Owned: true}
	namespace := Candidate{Entry: inventory.Entry{Name: "apps", Kind: "Namespace"}, Live: present, Ours: true}
	for name, tc := range map[string]struct {
		reason, kind string
		want         Verdict
	}{
		"Config": {"nobody took it over", "ConfigMap", Deletable},
		"Data":   {"it is kept as long as the other one declares it", "PersistentVolumeClaim", Held},
	} {
		t.Run(name, func(t *testing.T) {
			within := Candidate{Entry: named(tc.kind, "a"), Live: present, Ours: true, NewOwner: "Kustomization/x/y"}
			judge := func() *verdicts {
				s := newVerdicts()
				s.add(namespace)
				s.add(within)
				s.settle()
				return s
			}
			g := &guard{}
			s := judge()
			record := g.handOver(s, nil, noon)
			if !slices.Contains(s.held, namespace.Entry) {
				t.Errorf("%s: at first a person is asked about the Namespace: %+v", tc.reason, s)
			}
			s = judge()
			g.handOver(s, record, noon.Add(inventory.HandOverBound))
			if got := map[Verdict][]inventory.Entry{Deletable: s.going(), Held: s.held}; !slices.Contains(got[tc.want], namespace.Entry) {
				t.Errorf("%s: the verdicts are %v, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// TestClaimOfHook: what nobody knows whether another owner will have keeps no hook from being made anew, which would
// not run, or could not be changed.
func TestClaimOfHook(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		hook   bool
		claim  apply.Claim
		want   string
	}{
		"Unsure":  {"a Layer of the same commit is not applied yet", true, apply.Claim{Owner: "Layer/fleet/base", Kind: apply.Declared, Unsure: true}, ""},
		"Certain": {"another owner declares it", true, apply.Claim{Owner: "Kustomization/apps/x", Kind: apply.Declared}, "Kustomization/apps/x"},
		"Again":   {"the HelmRelease is to have another chart in a moment, which may have it as well", true, apply.Claim{Owner: "HelmRelease/fleet/app", Kind: apply.Again}, ""},
		"Object":  {"it is none", false, apply.Claim{Owner: "Layer/fleet/base", Kind: apply.Declared, Unsure: true}, "Layer/fleet/base"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &guard{claimed: func(context.Context, inventory.Entry, inventory.Entry) (apply.Claim, error) { return tc.claim, nil }}
			d := Candidate{Entry: named("Job", "migrate"), Live: owned(nil), Ours: true, Hook: tc.hook}
			if g.claim(t.Context(), &d, nil); d.NewOwner != tc.want {
				t.Errorf("%s: it is to be of %q, want %q", tc.reason, d.NewOwner, tc.want)
			}
		})
	}
}
