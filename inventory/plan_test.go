package inventory

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var (
	configMap  = Entry{Namespace: "apps", Name: "settings", Kind: "ConfigMap", Version: "v1"}
	other      = Entry{Namespace: "apps", Name: "other", Kind: "ConfigMap", Version: "v1"}
	secret     = Entry{Namespace: "fleet", Name: "prod-ca", Kind: "Secret", Version: "v1"}
	namespace  = Entry{Name: "apps", Kind: "Namespace", Version: "v1"}
	cluster    = Entry{Namespace: "fleet", Name: "prod", Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta2"}
	machines   = Entry{Namespace: "fleet", Name: "workers", Group: "infrastructure.cluster.x-k8s.io", Kind: "AWSMachineTemplate", Version: "v1beta2"}
	crd        = Entry{Name: "things.example.com", Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Version: "v1"}
	claim      = Entry{Namespace: "apps", Name: "data", Kind: "PersistentVolumeClaim", Version: "v1"}
	volume     = Entry{Name: "disk", Kind: "PersistentVolume", Version: "v1"}
	sync       = Entry{Namespace: "cascade-system", Name: "apps", Group: "kustomize.toolkit.fluxcd.io", Kind: "Kustomization", Version: "v1"}
	layer      = Entry{Namespace: "cascade-system", Name: "base", Group: "cascade.dev", Kind: "Layer", Version: "v1alpha1"}
	cluster2   = Entry{Namespace: "fleet", Name: "test", Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta2"}
	fleet      = Entry{Name: "fleet", Kind: "Namespace", Version: "v1"}
	namespace2 = Entry{Name: "more", Kind: "Namespace", Version: "v1"}
	agent      = Entry{Namespace: "cascade-system", Name: "cascade", Group: "apps", Kind: "Deployment", Version: "v1"}
	agent2     = Entry{Namespace: "gitops", Name: "cascade", Group: "apps", Kind: "Deployment", Version: "v1"}
	accounts   = Entry{Name: "cascade-accounts", Group: rbac, Kind: "ClusterRoleBinding", Version: "v1"}
	account    = Entry{Namespace: "gitops", Name: "cascade-sync", Kind: "ServiceAccount", Version: "v1"}
	images     = Entry{Name: "cascade-images", Group: rbac, Kind: "ClusterRoleBinding", Version: "v1"}
	wall       = Entry{Name: "cascade-clusters", Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy", Version: "v1"}
	deployer   = Entry{Namespace: "team", Name: "deployer", Kind: "ServiceAccount", Version: "v1"}
	rights     = Entry{Namespace: "apps", Name: "deployer", Group: rbac, Kind: "RoleBinding", Version: "v1"}
	keys       = Entry{Namespace: "team", Name: "kubeconfig", Kind: "Secret", Version: "v1"}
	child      = Entry{Namespace: "team", Name: "apps", Group: "kustomize.toolkit.fluxcd.io", Kind: "Kustomization", Version: "v1"}
	home       = Entry{Name: "team", Kind: "Namespace", Version: "v1"}
	issued     = Entry{Namespace: "team", Name: "remote", Group: "cascade.dev", Kind: "Credential", Version: "v1alpha1"}
	fetched    = Entry{Namespace: "team", Name: "remote", Group: "external-secrets.io", Kind: "ExternalSecret", Version: "v1"}
	sealed     = Entry{Namespace: "apps", Name: "remote", Group: "bitnami.com", Kind: "SealedSecret", Version: "v1alpha1"}
	release    = Entry{Namespace: "team", Name: "web", Group: "helm.toolkit.fluxcd.io", Kind: "HelmRelease", Version: "v2"}
	deploy     = Entry{Namespace: "apps", Name: "web", Group: "apps", Kind: "Deployment", Version: "v1"}
)

// ours is an object as it usually is: there, owned, nothing special.
var ours = Live{State: Present, UID: "1", Owned: true}

func with(change func(*Live)) Live {
	l := ours
	change(&l)
	return l
}

// configMaps makes n entries, and their live records.
func configMaps(n int) ([]Entry, map[Entry]Live) {
	entries, live := make([]Entry, 0, n), map[Entry]Live{}
	for i := range n {
		e := Entry{Namespace: "many", Name: fmt.Sprintf("c%03d", i), Kind: "ConfigMap", Version: "v1"}
		entries = append(entries, e)
		live[e] = with(func(l *Live) { l.UID = fmt.Sprintf("u%d", i) })
	}
	return entries, live
}

// outcome is a Plan without its texts, with deletes by name.
type outcome struct {
	Deletes   []string
	Held      bool
	Protected []Entry
	Waiting   []Entry
	OfCluster []Entry
	Queued    []Entry
	Last      []Entry
	Claimed   []Entry
	Unknown   []Entry
	Keep      []Entry
}

func outcomeOf(p Plan) outcome {
	o := outcome{
		Held: p.Held, Protected: p.Protected, Waiting: p.Waiting, OfCluster: p.OfCluster,
		Queued: p.Queued, Last: p.Last, Claimed: p.Claimed, Unknown: p.Unknown, Keep: p.Keep,
	}
	for _, d := range p.Deletes {
		o.Deletes = append(o.Deletes, d.Entry.String())
	}
	return o
}

func TestPlanPrune(t *testing.T) {
	confirmed := with(func(l *Live) { l.Confirmed = true })
	lockedDown := with(func(l *Live) { l.LockedDown = true })
	carrying := with(func(l *Live) { l.Carries = 3 })
	team := []Entry{child, deployer, rights, keys, home}
	ofTeam := func(at Live) map[Entry]Live {
		return map[Entry]Live{child: at, deployer: ours, rights: ours, keys: ours, home: ours, configMap: ours}
	}
	for name, tc := range map[string]struct {
		reason string
		facts  Facts
		want   outcome
	}{
		"NothingRemoved": {
			reason: "what is declared is never a candidate",
			facts:  Facts{Owned: []Entry{configMap}, Rendered: []Entry{configMap}},
		},
		"AnotherVersion": {
			reason: "an object that moves to another API version is the same object; to delete it would delete what Git declares",
			facts: Facts{
				Owned:    []Entry{{Namespace: "a", Name: "b", Group: "apps", Kind: "Deployment", Version: "v1beta1"}},
				Rendered: []Entry{{Namespace: "a", Name: "b", Group: "apps", Kind: "Deployment", Version: "v1"}},
			},
		},
		"Removed": {
			reason: "the ordinary case must work, or every other case passes for nothing",
			facts:  Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other}, Live: map[Entry]Live{configMap: ours}},
			want:   outcome{Deletes: []string{"ConfigMap/apps/settings"}, Keep: []Entry{configMap}},
		},
		"Unknown": {
			reason: "INV5: an error is not an absence; the entry stays on record",
			facts:  Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other}, Live: map[Entry]Live{configMap: {Problem: "timeout"}}},
			want:   outcome{Unknown: []Entry{configMap}, Keep: []Entry{configMap}},
		},
		"NoRecord": {
			reason: "a candidate that nobody asked the cluster about is unknown, not absent",
			facts:  Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other}},
			want:   outcome{Unknown: []Entry{configMap}, Keep: []Entry{configMap}},
		},
		"Absent": {
			reason: "what is confirmed gone leaves the inventory without a request",
			facts:  Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other}, Live: map[Entry]Live{configMap: {State: Absent}}},
		},
		"ForeignOwner": {
			reason: "INV3: another owner took the object over; it is his now",
			facts: Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{configMap: with(func(l *Live) { l.Owned = false })}},
		},
		"Exempt": {
			reason: "prune: disabled on the live object keeps its meaning from Flux",
			facts: Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{configMap: with(func(l *Live) { l.Exempt = true })}},
		},
		"Deleting": {
			reason: "a second request changes nothing, but the entry stays until the object is gone",
			facts: Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{configMap: with(func(l *Live) { l.Deleting = true })}},
			want: outcome{Waiting: []Entry{configMap}, Keep: []Entry{configMap}},
		},
		"ClusterUnconfirmed": {
			reason: "deleting a Cluster object destroys a real cluster",
			facts:  Facts{Owned: []Entry{cluster, other}, Rendered: []Entry{other}, Live: map[Entry]Live{cluster: ours}},
			want:   outcome{Protected: []Entry{cluster}, Keep: []Entry{cluster}},
		},
		"ClusterConfirmed": {
			reason: "two commits of a person are the one way to delete a Cluster",
			facts:  Facts{Owned: []Entry{cluster, other}, Rendered: []Entry{other}, Live: map[Entry]Live{cluster: confirmed}},
			want:   outcome{Deletes: []string{"Cluster/fleet/prod"}, Keep: []Entry{cluster}},
		},
		"ClusterOfRemovedOwner": {
			reason: "deleting the Kustomization does not confirm the deletion of its Clusters, and what stands beside one is needed as long",
			facts:  Facts{Owned: []Entry{cluster, configMap}, Asked: true, Live: map[Entry]Live{cluster: ours, configMap: ours}},
			want:   outcome{Deletes: []string{"ConfigMap/apps/settings"}, Held: true, Protected: []Entry{cluster}, Keep: []Entry{configMap, cluster}},
		},
		"BesideProtected": {
			reason: "a lost directory would delete the workloads and keep the cluster",
			facts:  Facts{Owned: []Entry{cluster, configMap, other}, Rendered: []Entry{other}, Live: map[Entry]Live{cluster: ours, configMap: ours}},
			want:   outcome{Deletes: []string{"ConfigMap/apps/settings"}, Held: true, Protected: []Entry{cluster}, Keep: []Entry{configMap, cluster}},
		},
		"BesideProtectedApproved": {
			reason: "a person may release the rest, and only that",
			facts: Facts{Owned: []Entry{cluster, configMap, other}, Rendered: []Entry{other}, Live: map[Entry]Live{cluster: ours, configMap: ours},
				Approved: hash("", []Delete{{Entry: configMap, UID: "1"}})},
			want: outcome{Deletes: []string{"ConfigMap/apps/settings"}, Protected: []Entry{cluster}, Keep: []Entry{configMap, cluster}},
		},
		"ConfirmedBesideProtected": {
			reason: "who confirmed one has confirmed that one, whatever becomes of the other",
			facts:  Facts{Owned: []Entry{cluster, claim, other}, Rendered: []Entry{other}, Live: map[Entry]Live{cluster: confirmed, claim: ours}},
			want:   outcome{Deletes: []string{"Cluster/fleet/prod"}, Protected: []Entry{claim}, Keep: []Entry{claim, cluster}},
		},
		"ClustersOneByOne": {
			reason: "a confirmation on all of them, by a common annotation say, leaves time to see the mistake after the first",
			facts: Facts{
				Owned: []Entry{cluster, cluster2, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{cluster: confirmed, cluster2: confirmed},
			},
			want: outcome{Deletes: []string{"Cluster/fleet/test"}, Queued: []Entry{cluster}, Keep: []Entry{cluster, cluster2}},
		},
		"ClusterInFlight": {
			reason: "also where another owner has begun to delete one",
			facts: Facts{Owned: []Entry{cluster, configMap, other}, Rendered: []Entry{other}, InFlight: "Cluster/fleet/test",
				Live: map[Entry]Live{cluster: confirmed, configMap: ours}},
			want: outcome{Deletes: []string{"ConfigMap/apps/settings"}, Queued: []Entry{cluster}, Keep: []Entry{configMap, cluster}},
		},
		"Account": {
			reason: "INV2: a Kustomization takes down what it applied after the API server marked it, as its account and by its kubeconfig (read 831)",
			facts:  Facts{Owned: append(team, configMap, other), Rendered: []Entry{other}, Live: ofTeam(carrying)},
			want: outcome{Deletes: []string{"Kustomization/team/apps", "ConfigMap/apps/settings"},
				Last: []Entry{keys, rights, deployer, home}, Keep: []Entry{rights, configMap, child, deployer, keys, home}},
		},
		"AccountGoing": {
			reason: "it may take long, or wait for a person",
			facts:  Facts{Owned: append(team, other), Rendered: []Entry{other}, Live: ofTeam(with(func(l *Live) { l.Deleting = true }))},
			want:   outcome{Waiting: []Entry{child}, Last: []Entry{keys, rights, deployer, home}, Keep: []Entry{rights, child, deployer, keys, home}},
		},
		"AccountLate": {
			reason: "somebody may have revoked them, whatever becomes of it",
			facts: Facts{Owned: []Entry{child, deployer, other}, Rendered: []Entry{other}, Now: time.Unix(0, 0).Add(LastBound),
				Live: ofTeam(with(func(l *Live) { l.Deleting, l.Since = true, time.Unix(0, 0) }))},
			want: outcome{Deletes: []string{"ServiceAccount/team/deployer"}, Waiting: []Entry{child}, Keep: []Entry{child, deployer}},
		},
		"AccountOfClusters": {
			reason: "its Clusters go one after the other, or it waits for a person: without the account they would run on, with nobody who answers for them (read 874)",
			facts: Facts{Owned: []Entry{child, deployer, other}, Rendered: []Entry{other}, Now: time.Unix(0, 0).Add(2 * LastBound),
				Live: ofTeam(with(func(l *Live) {
					l.Deleting, l.Since, l.Holds = true, time.Unix(0, 0), []string{"Cluster/fleet/prod"}
				}))},
			want: outcome{Waiting: []Entry{child}, Last: []Entry{deployer}, Keep: []Entry{child, deployer}},
		},
		"AccountGone": {
			reason: "nobody needs them any more",
			facts:  Facts{Owned: append(team, other), Rendered: []Entry{other}, Live: ofTeam(Live{State: Absent})},
			want: outcome{Deletes: []string{"Secret/team/kubeconfig", "RoleBinding/apps/deployer", "ServiceAccount/team/deployer", "Namespace/team"},
				Keep: []Entry{rights, deployer, keys, home}},
		},
		"AccountOfNothing": {
			reason: "a Kustomization that applied nothing needs nothing",
			facts:  Facts{Owned: []Entry{child, deployer, other}, Rendered: []Entry{other}, Live: ofTeam(ours)},
			want:   outcome{Deletes: []string{"Kustomization/team/apps", "ServiceAccount/team/deployer"}, Keep: []Entry{child, deployer}},
		},
		"AccountOfRelease": {
			reason: "the inventory of a HelmRelease that Flux wrote may not say what it installed",
			facts:  Facts{Owned: []Entry{release, deployer, other}, Rendered: []Entry{other}, Live: map[Entry]Live{release: ours, deployer: ours}},
			want:   outcome{Deletes: []string{"HelmRelease/team/web"}, Last: []Entry{deployer}, Keep: []Entry{deployer, release}},
		},
		"AccountOfCredential": {
			reason: "the kubeconfig goes with what made it, and is in no inventory; one of another namespace is not its (read 873)",
			facts: Facts{Owned: []Entry{child, issued, fetched, sealed, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{child: carrying, issued: ours, fetched: ours, sealed: ours}},
			want: outcome{Deletes: []string{"Kustomization/team/apps", "SealedSecret/apps/remote"}, Last: []Entry{fetched, issued}, Keep: []Entry{sealed, child, issued, fetched}},
		},
		"AccountAsked": {
			reason: "a person deleted the owner of all of it",
			facts:  Facts{Owned: []Entry{child, deployer}, Asked: true, Live: ofTeam(carrying)},
			want:   outcome{Deletes: []string{"Kustomization/team/apps"}, Last: []Entry{deployer}, Keep: []Entry{child, deployer}},
		},
		"AccountApproved": {
			reason: "an approval of all that there is asks for no orphans (read 876)",
			facts: Facts{Owned: []Entry{child, deployer}, Live: ofTeam(carrying),
				Approved: hash("", []Delete{{Entry: child, UID: "1"}, {Entry: deployer, UID: "1"}})},
			want: outcome{Deletes: []string{"Kustomization/team/apps"}, Last: []Entry{deployer}, Keep: []Entry{child, deployer}},
		},
		"AccountApprovedProtected": {
			reason: "a team that has anything in its Namespace: that is held, and whoever approves the rest asks for no orphans (read 876)",
			facts: Facts{Owned: []Entry{child, deployer, rights, home, other}, Rendered: []Entry{other},
				Live:     map[Entry]Live{child: carrying, deployer: ours, rights: ours, home: with(func(l *Live) { l.Holds = []string{"Deployment/team/web"} })},
				Approved: hash("", []Delete{{Entry: child, UID: "1"}, {Entry: deployer, UID: "1"}, {Entry: rights, UID: "1"}})},
			want: outcome{Deletes: []string{"Kustomization/team/apps"}, Protected: []Entry{home}, Last: []Entry{rights, deployer}, Keep: []Entry{rights, child, deployer, home}},
		},
		"AccountElsewhere": {
			reason: "the agent of another cluster may go with what it would take down",
			facts: Facts{Owned: []Entry{child, deployer, other}, Rendered: []Entry{other}, LowerTier: true,
				Live: map[Entry]Live{child: with(func(l *Live) { l.Carries, l.Confirmed = 3, true }), deployer: ours}},
			want: outcome{Deletes: []string{"Kustomization/team/apps", "ServiceAccount/team/deployer"}, Keep: []Entry{child, deployer}},
		},
		"Claimed": {
			reason: "INV1: another Kustomization declares it, and all share one field manager; it stays on record until that one takes it or lets go",
			facts: Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{configMap: with(func(l *Live) { l.Claimed = "Kustomization/a/b" })}},
			want: outcome{Claimed: []Entry{configMap}, Keep: []Entry{configMap}},
		},
		"Recreated": {
			reason: "INV3: a backup brings the owner labels back, and with them what a person wants to have",
			facts: Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{configMap: with(func(l *Live) { l.Recreated = true })}},
		},
		"Credential": {
			reason: "the keys of a cloud are needed to take down what was built with them",
			facts: Facts{Owned: []Entry{secret, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{secret: with(func(l *Live) { l.Credential = "AWSClusterStaticIdentity/prod" })}},
			want: outcome{Protected: []Entry{secret}, Keep: []Entry{secret}},
		},
		"Marked": {
			reason: "a Namespace with the label, or a Kustomization that declares itself",
			facts: Facts{Owned: []Entry{namespace, sync, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{namespace: with(func(l *Live) { l.Guarded = true }), sync: with(func(l *Live) { l.Guarded = true })}},
			want: outcome{Protected: []Entry{sync, namespace}, Keep: []Entry{sync, namespace}},
		},
		"Agent": {
			reason: "without its agent a cluster gets no later commit, not even the one that brings the agent back",
			facts:  Facts{Owned: []Entry{agent, wall, other}, Rendered: []Entry{other}, Live: map[Entry]Live{agent: ours, wall: ours}},
			want:   outcome{Protected: []Entry{wall, agent}, Keep: []Entry{wall, agent}},
		},
		"AgentElsewhere": {
			reason: "cascade bootstrap -n gitops: the labels tell whose it is",
			facts: Facts{Owned: []Entry{agent2, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{agent2: with(func(l *Live) { l.OfAgent = true })}},
			want: outcome{Protected: []Entry{agent2}, Keep: []Entry{agent2}},
		},
		"NoAgent": {
			reason: "another program of the name is none",
			facts:  Facts{Owned: []Entry{agent2, other}, Rendered: []Entry{other}, Live: map[Entry]Live{agent2: ours}},
			want:   outcome{Deletes: []string{"Deployment/gitops/cascade"}, Keep: []Entry{agent2}},
		},
		"LockdownRights": {
			reason: "without these an agent with a lockdown applies nothing more, not even them; what they are lost with may be needed as well",
			facts: Facts{Owned: []Entry{accounts, account, configMap, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{accounts: lockedDown, account: lockedDown, configMap: ours}},
			want: outcome{Deletes: []string{"ConfigMap/apps/settings"}, Held: true, Protected: []Entry{accounts, account}, Keep: []Entry{accounts, configMap, account}},
		},
		"LockdownEnds": {
			reason: "the agent has all rights again, and needs these no more",
			facts:  Facts{Owned: []Entry{accounts, other}, Rendered: []Entry{other}, Live: map[Entry]Live{accounts: ours}},
			want:   outcome{Deletes: []string{"ClusterRoleBinding/cascade-accounts"}, Keep: []Entry{accounts}},
		},
		"LockdownControllers": {
			reason: "a kind that the agent reconciles no more needs no rights; a commit brings them back",
			facts:  Facts{Owned: []Entry{images, other}, Rendered: []Entry{other}, Live: map[Entry]Live{images: lockedDown}},
			want:   outcome{Deletes: []string{"ClusterRoleBinding/cascade-images"}, Keep: []Entry{images}},
		},
		"KustomizationOfMany": {
			reason: "one line in a list of Kustomizations is all that an application is made of; it counts as what goes with it",
			facts: Facts{Owned: []Entry{sync, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{sync: with(func(l *Live) { l.Carries = 30 })}},
			want: outcome{Deletes: []string{"Kustomization/cascade-system/apps"}, Held: true, Keep: []Entry{sync}},
		},
		"KustomizationOfFew": {
			reason: "small ones go as with Flux",
			facts: Facts{Owned: []Entry{sync, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{sync: with(func(l *Live) { l.Carries = 9 })}},
			want: outcome{Deletes: []string{"Kustomization/cascade-system/apps"}, Keep: []Entry{sync}},
		},
		"KustomizationOfManyConfirmed": {
			reason: "with its confirmation it is no surprise",
			facts: Facts{Owned: []Entry{sync, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{sync: with(func(l *Live) { l.Carries, l.Confirmed = 30, true })}},
			want: outcome{Deletes: []string{"Kustomization/cascade-system/apps"}, Keep: []Entry{sync}},
		},
		"AllNamespaces": {
			reason: "when every Namespace goes at once, a base was lost and not an application",
			facts: Facts{
				Owned: []Entry{namespace, namespace2, layer}, Rendered: []Entry{layer},
				Live: map[Entry]Live{namespace: ours, namespace2: ours},
			},
			want: outcome{Deletes: []string{"Namespace/more", "Namespace/apps"}, Held: true, Keep: []Entry{namespace, namespace2}},
		},
		"OneOfTheNamespaces": {
			reason: "an application that goes takes its Namespace along",
			facts:  Facts{Owned: []Entry{namespace, namespace2, layer}, Rendered: []Entry{namespace2, layer}, Live: map[Entry]Live{namespace: ours}},
			want:   outcome{Deletes: []string{"Namespace/apps"}, Keep: []Entry{namespace}},
		},
		"ClusterApproved": {
			reason: "an approval releases the guards, never the protection",
			facts: Facts{Owned: []Entry{cluster, other}, Rendered: []Entry{other}, Live: map[Entry]Live{cluster: ours},
				Approved: hash("", []Delete{{Entry: cluster, UID: "1"}})},
			want: outcome{Protected: []Entry{cluster}, Keep: []Entry{cluster}},
		},
		"ProviderKind": {
			reason: "every group below cluster.x-k8s.io is protected, whichever provider it is of",
			facts:  Facts{Owned: []Entry{machines, other}, Rendered: []Entry{other}, Live: map[Entry]Live{machines: ours}},
			want:   outcome{Protected: []Entry{machines}, Keep: []Entry{machines}},
		},
		"Descendant": {
			reason: "machines and templates are not pruned while their Cluster lives, not even confirmed ones",
			facts: Facts{Owned: []Entry{machines, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{machines: with(func(l *Live) { l.OfCluster, l.Confirmed = "prod", true })}},
			want: outcome{OfCluster: []Entry{machines}, Keep: []Entry{machines}},
		},
		"ClusterSecret": {
			reason: "without its CA nobody reaches the cluster ever again",
			facts: Facts{Owned: []Entry{secret, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{secret: with(func(l *Live) { l.ClusterSecret = true })}},
			want: outcome{Protected: []Entry{secret}, Keep: []Entry{secret}},
		},
		"Definition": {
			reason: "a CRD takes all objects of its kind along",
			facts:  Facts{Owned: []Entry{crd, other}, Rendered: []Entry{other}, Live: map[Entry]Live{crd: ours}},
			want:   outcome{Protected: []Entry{crd}, Keep: []Entry{crd}},
		},
		"Data": {
			reason: "Git cannot bring back what a volume holds",
			facts:  Facts{Owned: []Entry{claim, volume, other}, Rendered: []Entry{other}, Live: map[Entry]Live{claim: ours, volume: ours}},
			want:   outcome{Protected: []Entry{volume, claim}, Keep: []Entry{volume, claim}},
		},
		"NamespaceAlone": {
			reason: "a Namespace with nothing but what goes too is an ordinary object",
			facts: Facts{
				Owned: []Entry{namespace, configMap, layer}, Rendered: []Entry{layer},
				Live: map[Entry]Live{namespace: ours, configMap: ours},
			},
			want: outcome{Deletes: []string{"ConfigMap/apps/settings", "Namespace/apps"}, Keep: []Entry{configMap, namespace}},
		},
		"NamespaceHolds": {
			reason: "a Namespace takes along what it holds, also what is not ours",
			facts: Facts{Owned: []Entry{namespace, layer}, Rendered: []Entry{layer},
				Live: map[Entry]Live{namespace: with(func(l *Live) { l.Holds = []string{"ConfigMap/apps/foreign"} })}},
			want: outcome{Protected: []Entry{namespace}, Keep: []Entry{namespace}},
		},
		"NamespaceOfKeys": {
			reason: "its end would take the keys that the Cluster needs to be taken down, and the next Cluster, along at once",
			facts: Facts{Owned: []Entry{cluster, cluster2, secret, fleet, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				cluster: confirmed, cluster2: confirmed, fleet: with(func(l *Live) { l.Holds, l.Confirmed = []string{"Cluster/fleet/prod"}, true }),
				secret: with(func(l *Live) { l.OfCluster, l.Confirmed = "prod", true })}},
			want: outcome{Deletes: []string{"Cluster/fleet/test"}, Queued: []Entry{cluster}, OfCluster: []Entry{secret, fleet}, Keep: []Entry{secret, cluster, cluster2, fleet}},
		},
		"NamespaceOfGoing": {
			reason: "the Cluster is there until Cluster API has taken it down",
			facts: Facts{Owned: []Entry{cluster, fleet, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				cluster: with(func(l *Live) { l.Deleting, l.Confirmed = true, true }), fleet: confirmed}},
			want: outcome{Waiting: []Entry{cluster}, OfCluster: []Entry{fleet}, Keep: []Entry{cluster, fleet}},
		},
		"NamespaceConfirmedOfUnknown": {
			reason: "INV5: it may be what a Cluster needs",
			facts: Facts{Owned: []Entry{secret, fleet, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				secret: {Problem: "timeout"}, fleet: confirmed}},
			want: outcome{Unknown: []Entry{secret}, OfCluster: []Entry{fleet}, Keep: []Entry{secret, fleet}},
		},
		"NamespaceConfirmedOfDeclared": {
			reason: "nobody confirmed the Cluster, which stays, and would stay without its keys",
			facts:  Facts{Owned: []Entry{cluster, fleet}, Rendered: []Entry{cluster}, Live: map[Entry]Live{fleet: confirmed}},
			want:   outcome{OfCluster: []Entry{fleet}, Keep: []Entry{fleet}},
		},
		"NamespaceAfterAll": {
			reason: "its Clusters are gone, and a person wants what else is in it gone",
			facts: Facts{Owned: []Entry{cluster, secret, fleet, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				cluster: {State: Absent}, secret: confirmed, fleet: confirmed}},
			want: outcome{Deletes: []string{"Secret/fleet/prod-ca", "Namespace/fleet"}, Keep: []Entry{secret, fleet}},
		},
		"NamespaceHoldsConfirmed": {
			reason: "a person may confirm the end of a Namespace as well",
			facts: Facts{Owned: []Entry{namespace, layer}, Rendered: []Entry{layer},
				Live: map[Entry]Live{namespace: with(func(l *Live) { l.Holds, l.Confirmed = []string{"ConfigMap/apps/foreign"}, true })}},
			want: outcome{Deletes: []string{"Namespace/apps"}, Keep: []Entry{namespace}},
		},
		"NamespaceOfDeclared": {
			reason: "INV1: the Namespace is gone from Git, an object in it is not; it must not die with it",
			facts:  Facts{Owned: []Entry{namespace, configMap}, Rendered: []Entry{configMap}, Live: map[Entry]Live{namespace: ours}},
			want:   outcome{Protected: []Entry{namespace}, Keep: []Entry{namespace}},
		},
		"NamespaceOfExempt": {
			reason: "an object that asks not to be pruned must not be pruned by way of its Namespace",
			facts: Facts{Owned: []Entry{namespace, configMap, layer}, Rendered: []Entry{layer},
				Live: map[Entry]Live{namespace: ours, configMap: with(func(l *Live) { l.Exempt = true })}},
			want: outcome{Protected: []Entry{namespace}, Keep: []Entry{namespace}},
		},
		"NamespaceOfUnknown": {
			reason: "INV5 holds by way of the Namespace too",
			facts: Facts{Owned: []Entry{namespace, configMap, layer}, Rendered: []Entry{layer},
				Live: map[Entry]Live{namespace: ours, configMap: {Problem: "timeout"}}},
			want: outcome{Unknown: []Entry{configMap}, Protected: []Entry{namespace}, Keep: []Entry{configMap, namespace}},
		},
		"NamespaceOfUnconfirmedKeys": {
			reason: "a person is asked about the keys, and its end would take them along before",
			facts: Facts{Owned: []Entry{secret, fleet, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				fleet: with(func(l *Live) { l.Confirmed = true }), secret: with(func(l *Live) { l.Credential = "controllers of AWSCluster/fleet/prod" })}},
			want: outcome{Protected: []Entry{secret}, OfCluster: []Entry{fleet}, Keep: []Entry{secret, fleet}},
		},
		"NamespaceOfDeclaredKeys": {
			reason: "they stay, and its end would take them along",
			facts: Facts{Owned: []Entry{secret, fleet, other}, Rendered: []Entry{secret, other}, Live: map[Entry]Live{
				fleet: confirmed, secret: with(func(l *Live) { l.Credential = "AWSClusterStaticIdentity/prod" })}},
			want: outcome{OfCluster: []Entry{fleet}, Keep: []Entry{fleet}},
		},
		"NamespaceOfDeclaredPart": {
			reason: "as may an identity, or a class, of Clusters of other namespaces",
			facts: Facts{Owned: []Entry{machines, fleet, other}, Rendered: []Entry{machines, other}, Live: map[Entry]Live{
				fleet: confirmed, machines: with(func(l *Live) { l.OfCluster = "prod" })}},
			want: outcome{OfCluster: []Entry{fleet}, Keep: []Entry{fleet}},
		},
		"NamespaceOfDeclaredUnknown": {
			reason: "INV5: nobody knows what the Secret is",
			facts:  Facts{Owned: []Entry{secret, fleet, other}, Rendered: []Entry{secret, other}, Live: map[Entry]Live{fleet: confirmed}},
			want:   outcome{OfCluster: []Entry{fleet}, Keep: []Entry{fleet}},
		},
		"NamespaceOfDeclaredSecret": {
			reason: "no Cluster needs that one, and a person confirmed the Namespace",
			facts: Facts{Owned: []Entry{secret, fleet, other}, Rendered: []Entry{secret, other}, Live: map[Entry]Live{
				fleet: confirmed, secret: ours}},
			want: outcome{Deletes: []string{"Namespace/fleet"}, Keep: []Entry{fleet}},
		},
		"NamespaceOfClaimedKeys": {
			reason: "another owner has them",
			facts: Facts{Owned: []Entry{secret, fleet, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				fleet: confirmed, secret: with(func(l *Live) { l.Credential, l.Claimed = "AWSClusterStaticIdentity/prod", "Kustomization/a/b" })}},
			want: outcome{Claimed: []Entry{secret}, OfCluster: []Entry{fleet}, Keep: []Entry{secret, fleet}},
		},
		"NamespaceOfHandedOverKeys": {
			reason: "or is to have them",
			facts: Facts{Owned: []Entry{secret, fleet, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				fleet: confirmed, secret: with(func(l *Live) { l.Credential, l.HandOver = "AWSClusterStaticIdentity/prod", "Kustomization/a/b" })}},
			want: outcome{OfCluster: []Entry{fleet}, Keep: []Entry{secret, fleet}},
		},
		"NamespaceOfProtected": {
			reason: "a Secret is protected by its type, which a listing of metadata does not show",
			facts: Facts{Owned: []Entry{{Name: "fleet", Kind: "Namespace", Version: "v1"}, secret, other}, Rendered: []Entry{other},
				Live: map[Entry]Live{{Name: "fleet", Kind: "Namespace", Version: "v1"}: ours, secret: with(func(l *Live) { l.ClusterSecret = true })}},
			want: outcome{Protected: []Entry{secret, {Name: "fleet", Kind: "Namespace", Version: "v1"}},
				Keep: []Entry{secret, {Name: "fleet", Kind: "Namespace", Version: "v1"}}},
		},
		"LowerTier": {
			reason: "the sync objects of a child decide about everything below it",
			facts: Facts{
				Owned: []Entry{sync, layer, other}, Rendered: []Entry{other}, LowerTier: true,
				Live: map[Entry]Live{sync: ours, layer: ours},
			},
			want: outcome{Protected: []Entry{sync, layer}, Keep: []Entry{sync, layer}},
		},
		"OwnTier": {
			reason: "in one's own tier a Kustomization is removed like any object, as Flux does",
			facts:  Facts{Owned: []Entry{sync, other}, Rendered: []Entry{other}, Live: map[Entry]Live{sync: ours}},
			want:   outcome{Deletes: []string{"Kustomization/cascade-system/apps"}, Keep: []Entry{sync}},
		},
		"EmptyRendering": {
			reason: "an empty directory is far more often an accident than an intention",
			facts:  Facts{Owned: []Entry{configMap}, Live: map[Entry]Live{configMap: ours}},
			want:   outcome{Deletes: []string{"ConfigMap/apps/settings"}, Held: true, Keep: []Entry{configMap}},
		},
		"EmptyRenderingConfirmed": {
			reason: "each object carries a person's confirmation: there is nothing left to ask",
			facts:  Facts{Owned: []Entry{configMap}, Live: map[Entry]Live{configMap: confirmed}},
			want:   outcome{Deletes: []string{"ConfigMap/apps/settings"}, Keep: []Entry{configMap}},
		},
		"EmptyRenderingAsked": {
			reason: "the owner itself was deleted by a person",
			facts:  Facts{Owned: []Entry{configMap}, Asked: true, Live: map[Entry]Live{configMap: ours}},
			want:   outcome{Deletes: []string{"ConfigMap/apps/settings"}, Keep: []Entry{configMap}},
		},
		"EmptyRenderingApproved": {
			reason: "the hash of the exact list releases it",
			facts: Facts{Owned: []Entry{configMap}, Live: map[Entry]Live{configMap: ours}, Target: "here",
				Approved: hash("here", []Delete{{Entry: configMap, UID: "1"}})},
			want: outcome{Deletes: []string{"ConfigMap/apps/settings"}, Keep: []Entry{configMap}},
		},
		"EmptyRenderingApprovedElsewhere": {
			reason: "an approval for one cluster does not count in another, where the same names may be something else",
			facts: Facts{Owned: []Entry{configMap}, Live: map[Entry]Live{configMap: ours}, Target: "here",
				Approved: hash("there", []Delete{{Entry: configMap, UID: "1"}})},
			want: outcome{Deletes: []string{"ConfigMap/apps/settings"}, Held: true, Keep: []Entry{configMap}},
		},
		"EmptyRenderingStaleApproval": {
			reason: "re-created objects are others than those that were approved",
			facts: Facts{Owned: []Entry{configMap}, Live: map[Entry]Live{configMap: ours},
				Approved: hash("", []Delete{{Entry: configMap, UID: "0"}})},
			want: outcome{Deletes: []string{"ConfigMap/apps/settings"}, Held: true, Keep: []Entry{configMap}},
		},
		"IgnoredAreHeld": {
			reason: "two of three are still in files: an edit of what is ignored hid them",
			facts: Facts{Owned: []Entry{configMap, secret, other}, Rendered: []Entry{other}, Live: map[Entry]Live{configMap: ours, secret: with(func(l *Live) { l.UID = "2" })},
				Ignored: map[Entry]string{configMap: "apps/settings.yaml", secret: "apps/secret.yaml"}},
			want: outcome{Deletes: []string{"Secret/fleet/prod-ca", "ConfigMap/apps/settings"}, Held: true, Keep: []Entry{configMap, secret}},
		},
		"IgnoredApproved": {
			reason: "a decision is a decision",
			facts: Facts{Owned: []Entry{configMap, secret, other}, Rendered: []Entry{other}, Live: map[Entry]Live{configMap: ours, secret: with(func(l *Live) { l.UID = "2" })},
				Ignored:  map[Entry]string{configMap: "apps/settings.yaml", secret: "apps/secret.yaml"},
				Approved: hash("", []Delete{{Entry: configMap, UID: "1"}, {Entry: secret, UID: "2"}})},
			want: outcome{Deletes: []string{"Secret/fleet/prod-ca", "ConfigMap/apps/settings"}, Keep: []Entry{configMap, secret}},
		},
		"IgnoredOne": {
			reason: "one object that is ignored from now on is an ordinary removal",
			facts: Facts{Owned: []Entry{configMap, secret, other}, Rendered: []Entry{other}, Live: map[Entry]Live{configMap: ours, secret: with(func(l *Live) { l.UID = "2" })},
				Ignored: map[Entry]string{configMap: "apps/settings.yaml"}},
			want: outcome{Deletes: []string{"Secret/fleet/prod-ca", "ConfigMap/apps/settings"}, Keep: []Entry{configMap, secret}},
		},
		"LayerOnChildren": {
			reason: "one file less, and a dozen children would be emptied (C36)",
			facts: Facts{Owned: []Entry{layer, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				layer: with(func(l *Live) {
					l.Holds, l.Carries, l.Along = []string{"12 children"}, 144, "144 objects on 12 children"
				}),
			}},
			want: outcome{Protected: []Entry{layer}, Keep: []Entry{layer}},
		},
		"LayerConfirmed": {
			reason: "two commits are the decision",
			facts: Facts{Owned: []Entry{layer, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				layer: with(func(l *Live) { l.Holds, l.Carries, l.Confirmed = []string{"12 children"}, 144, true }),
			}},
			want: outcome{Deletes: []string{"Layer/cascade-system/base"}, Keep: []Entry{layer}},
		},
		"LayerOnTwoChildren": {
			reason: "what is on the children counts as what would go (C36)",
			facts: Facts{Owned: []Entry{layer, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				layer: with(func(l *Live) { l.Carries, l.Along = 24, "24 objects on 2 children" }),
			}},
			want: outcome{Deletes: []string{"Layer/cascade-system/base"}, Held: true, Keep: []Entry{layer}},
		},
		"LayerHolds": {
			reason: "a Layer that is being deleted waits for an approval of its own; its owner is not ready behind it",
			facts: Facts{Owned: []Entry{layer, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
				layer: with(func(l *Live) { l.Deleting, l.Holding = true, "its removal is held" }),
			}},
			want: outcome{Waiting: []Entry{layer}, Keep: []Entry{layer}},
		},
		"UndecidedStaysHeld": {
			reason: "what was applied meanwhile made the inventory larger; the removal that was held must not pass by itself on the next run",
			facts:  Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other}, Undecided: true, Live: map[Entry]Live{configMap: ours}},
			want:   outcome{Deletes: []string{"ConfigMap/apps/settings"}, Held: true, Keep: []Entry{configMap}},
		},
		"UndecidedApproved": {
			reason: "a decision is a decision",
			facts: Facts{Owned: []Entry{configMap, other}, Rendered: []Entry{other}, Undecided: true, Live: map[Entry]Live{configMap: ours},
				Approved: hash("", []Delete{{Entry: configMap, UID: "1"}})},
			want: outcome{Deletes: []string{"ConfigMap/apps/settings"}, Keep: []Entry{configMap}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := PlanPrune(tc.facts)
			if diff := cmp.Diff(tc.want, outcomeOf(got), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s\nPlanPrune(): -want, +got:\n%s", tc.reason, diff)
			}
			if got.Blocked() != (got.Held || len(got.Protected) > 0 || len(got.Holding) > 0) || (got.Message("o") != "") != got.Blocked() {
				t.Errorf("%s\nBlocked() = %t, Message() = %q, want a message exactly if it is blocked", tc.reason, got.Blocked(), got.Message("o"))
			}
			hold := got.Hold(nil)
			if (hold != nil) != got.Blocked() || hold != nil && ((hold.Hash != "") != got.Held) {
				t.Errorf("%s\nHold() = %v, want a hash exactly if the plan is held", tc.reason, hold)
			}
			if got.Settles() && (got.Blocked() || got.Superseded) {
				t.Errorf("%s\nSettles() of a plan that holds something, or is not made", tc.reason)
			}
			if Undecided(got.Blocked(), hold) != got.Held {
				t.Errorf("%s\nUndecided(%t, %v) = %t, want %t", tc.reason, got.Blocked(), hold, !got.Held, got.Held)
			}
		})
	}
}

// TestKept: the record of what goes later is the same for the same objects, and bounded.
func TestKept(t *testing.T) {
	if got := (Plan{Protected: []Entry{configMap}, Waiting: []Entry{configMap}}).Kept(); got != nil {
		t.Errorf("nothing goes later, and %v is on record", got)
	}
	entries, _ := configMaps(mostKept + 5)
	queued, parts := entries[:1], entries[1:]
	if got := (Plan{Last: queued}).Kept(); got == nil || !slices.Equal(got.Objects, []string{queued[0].String()}) {
		t.Errorf("an account goes after a Kustomization, and %v is on record (read 916)", got)
	}
	first := Plan{OfCluster: parts, Queued: queued}.Kept()
	parts = slices.Clone(parts)
	slices.Reverse(parts)
	if again := (Plan{OfCluster: parts, Queued: queued}).Kept(); len(first.Objects) != mostKept || !slices.Equal(first.Objects, again.Objects) || !slices.IsSorted(first.Objects) {
		t.Errorf("on record is %v, and in another order %v", first, again)
	}
}

func TestShrinkGuard(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		inventory int
		remove    int
		absent    int
		confirmed int
		add       int
		want      bool
	}{
		"TenOfTwelve":        {"up to ten objects pass whatever their share", 12, 10, 0, 0, 0, false},
		"ElevenOfTwelve":     {"eleven are more than ten, and more than 25 % of twelve", 12, 11, 0, 0, 0, true},
		"TenOfForty":         {"the larger of both numbers counts: 25 % of forty is ten", 40, 10, 0, 0, 0, false},
		"ElevenOfForty":      {"one more than both limits", 40, 11, 0, 0, 0, true},
		"ElevenOfFortyFour":  {"25 % of 44 is eleven: exactly the limit passes", 44, 11, 0, 0, 0, false},
		"TwelveOfFortyFour":  {"one more than 25 %", 44, 12, 0, 0, 0, true},
		"QuarterOfAll":       {"exactly 25 % passes", 200, 50, 0, 0, 0, false},
		"MoreThanAQuarter":   {"one more than 25 % is held", 200, 51, 0, 0, 0, true},
		"ConfirmedDontCount": {"what a person confirmed on the object is no surprise", 40, 20, 0, 10, 0, false},
		"AbsentDontCount":    {"objects that are gone already are not deleted", 40, 20, 10, 0, 0, false},
		"AbsentDontEnlarge":  {"objects that are gone already do not make the inventory larger: twelve of 44, not of 60", 60, 28, 16, 0, 0, true},
		"AdditionsDontHelp":  {"a wrong path brings other objects in large numbers; they do not make up for those that are lost", 40, 40, 0, 0, 400, true},
	} {
		t.Run(name, func(t *testing.T) {
			entries, live := configMaps(tc.inventory)
			for i, e := range entries[:tc.remove] {
				l := live[e]
				switch {
				case i < tc.absent:
					l = Live{State: Absent}
				case i < tc.absent+tc.confirmed:
					l.Confirmed = true
				}
				live[e] = l
			}
			rendered := slices.Clone(entries[tc.remove:])
			for i := range tc.add {
				rendered = append(rendered, Entry{Namespace: "new", Name: fmt.Sprint("n", i), Kind: "ConfigMap", Version: "v1"})
			}
			got := PlanPrune(Facts{Owned: entries, Rendered: rendered, Live: live})
			if got.Held != tc.want {
				t.Errorf("%s\nremove %d of %d: Held = %t (%s), want %t", tc.reason, tc.remove, tc.inventory, got.Held, got.Guard, tc.want)
			}
		})
	}
}

func TestDeleteOrder(t *testing.T) {
	entries := []Entry{crd, namespace, configMap, deploy, machines, cluster, {Name: "reader", Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Version: "v1"}}
	live := map[Entry]Live{}
	for _, e := range entries {
		live[e] = with(func(l *Live) { l.Confirmed = true })
	}
	var got []string
	for _, d := range PlanPrune(Facts{Owned: entries, Live: live}).Deletes {
		got = append(got, d.Entry.Kind)
	}
	// The Cluster first, so that Cluster API tears down its parts in its own
	// order; what others live in and are made of last.
	want := []string{"Cluster", "AWSMachineTemplate", "Deployment", "ConfigMap", "ClusterRole", "Namespace", "CustomResourceDefinition"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of deletes: -want, +got:\n%s", diff)
	}
}

// anyFacts draws facts from everything that can be said about objects.
func anyFacts(r *rand.Rand) Facts {
	pool := []Entry{configMap, other, secret, namespace, namespace2, cluster2, agent, {Name: "fleet", Kind: "Namespace", Version: "v1"}, cluster, machines, crd, claim, volume, sync, layer, deploy, child, deployer, rights, home}
	more, _ := configMaps(r.IntN(60))
	pool = append(pool, more...)
	f := Facts{Live: map[Entry]Live{}, Asked: r.IntN(4) == 0, LowerTier: r.IntN(2) == 0, Undecided: r.IntN(4) == 0, Target: "here"}
	coin := func() bool { return r.IntN(3) == 0 }
	if coin() {
		f.InFlight = "Cluster/fleet/another"
	}
	for _, e := range pool {
		switch r.IntN(4) {
		case 0:
			f.Rendered = append(f.Rendered, e)
		case 1:
			f.Rendered, f.Owned = append(f.Rendered, e), append(f.Owned, e)
		default:
			f.Owned = append(f.Owned, e)
		}
		if r.IntN(10) == 0 {
			continue // nobody asked
		}
		f.Live[e] = Live{
			State: State(r.IntN(3)), UID: fmt.Sprint(r.IntN(1000)), Owned: !coin(), Exempt: coin(), Confirmed: coin(), Deleting: coin(),
			ClusterSecret: e.Kind == "Secret" && coin(), Recreated: r.IntN(10) == 0, Guarded: r.IntN(10) == 0,
		}
		if l := f.Live[e]; r.IntN(10) == 0 {
			l.Claimed = "Kustomization/a/b"
			f.Live[e] = l
		}
		if l := f.Live[e]; isSyncKind(e) {
			l.Carries = r.IntN(40)
			f.Live[e] = l
		}
		if l := f.Live[e]; coin() && !isCluster(e) {
			l.OfCluster = "prod"
			f.Live[e] = l
		}
		if l := f.Live[e]; e.Kind == "Namespace" && coin() {
			l.Holds = []string{"x"}
			f.Live[e] = l
		}
	}
	return f
}

func isSyncKind(e Entry) bool { return e.Kind == "Kustomization" }

func TestPlanPruneProperties(t *testing.T) {
	const seed = 20260901
	r := rand.New(rand.NewPCG(seed, 1))
	deletes, held, last := 0, 0, 0
	for i := range 1500 {
		f := anyFacts(r)
		p := PlanPrune(f)
		if i%2 == 0 {
			// Whatever the plan is, its approval changes nothing but Held.
			f.Approved = p.Hash
			if approved := PlanPrune(f); approved.Held || approved.Hash != p.Hash ||
				len(approved.Deletes)+len(approved.Queued)+len(approved.Last) != len(p.Deletes)+len(p.Queued)+len(p.Last) {
				t.Fatalf("seed %d, round %d: approved plan is held (%t) or has other deletes", seed, i, approved.Held)
			}
		}
		rendered, kept := map[Entry]bool{}, map[Entry]bool{}
		for _, e := range f.Rendered {
			rendered[e] = true
		}
		for _, e := range p.Keep {
			kept[e] = true
		}
		ends, dies := map[string]bool{}, map[string]bool{} // confirmed or not, and not
		for _, d := range p.Deletes {
			deletes++
			live := f.Live[d.Entry]
			switch {
			case live.State != Present:
				t.Fatalf("seed %d, round %d: deletes %s, whose state is %d", seed, i, d.Entry, live.State)
			case rendered[d.Entry]:
				t.Fatalf("seed %d, round %d: deletes %s, which is declared", seed, i, d.Entry)
			case !kept[d.Entry]:
				t.Fatalf("seed %d, round %d: forgets %s before it is gone", seed, i, d.Entry)
			case !live.Owned, live.Exempt, live.Deleting, live.Recreated, live.Claimed != "", live.OfCluster != "":
				t.Fatalf("seed %d, round %d: deletes %s in spite of %+v", seed, i, d.Entry, live)
			case Protected(d.Entry, live, f.LowerTier) && !live.Confirmed:
				t.Fatalf("seed %d, round %d: deletes %s, which is protected and not confirmed", seed, i, d.Entry)
			case d.UID != live.UID:
				t.Fatalf("seed %d, round %d: delete of %s has UID %s, want %s", seed, i, d.Entry, d.UID, live.UID)
			}
			if d.Entry.Kind == "Namespace" {
				ends[d.Entry.Name], dies[d.Entry.Name] = true, !live.Confirmed
			}
		}
		for _, e := range f.Rendered {
			if dies[e.Namespace] || ends[e.Namespace] && isCluster(e) {
				t.Fatalf("seed %d, round %d: deletes the Namespace of %s, which is declared", seed, i, e)
			}
		}
		for _, e := range Candidates(f.Owned, f.Rendered) {
			live := f.Live[e]
			if live.State == Unknown && !kept[e] {
				t.Fatalf("seed %d, round %d: forgets %s, whose state is unknown", seed, i, e)
			}
			if live.State == Present && live.Owned && !live.Exempt && !live.Recreated && !kept[e] {
				t.Fatalf("seed %d, round %d: forgets %s, which is there and ours", seed, i, e)
			}
			if live.State == Unknown && ends[e.Namespace] {
				t.Fatalf("seed %d, round %d: deletes the Namespace of %s, whose state is unknown", seed, i, e)
			}
			if ends[e.Namespace] && (isCluster(e) && kept[e] || slices.Contains(p.OfCluster, e)) {
				t.Fatalf("seed %d, round %d: deletes the Namespace of %s, which has to go before", seed, i, e)
			}
		}
		if f.Asked && p.Held && len(p.Protected) == 0 {
			t.Fatalf("seed %d, round %d: holds what a person asked for", seed, i)
		}
		for _, e := range p.Last {
			if !kept[e] || slices.ContainsFunc(p.Deletes, func(d Delete) bool { return d.Entry == e }) {
				t.Fatalf("seed %d, round %d: %s is to go last and is deleted, or forgotten", seed, i, e)
			}
			last++
		}
		clusters := 0
		for _, d := range p.Deletes {
			if live := f.Live[d.Entry]; isCluster(d.Entry) {
				clusters++
			} else if !p.Held && len(p.Protected) > 0 && !live.Confirmed && f.Approved != p.Hash {
				t.Fatalf("seed %d, round %d: deletes %s beside what is protected", seed, i, d.Entry)
			}
		}
		if !p.Held && (clusters > 1 || clusters > 0 && f.InFlight != "") {
			t.Fatalf("seed %d, round %d: deletes %d Clusters at once", seed, i, clusters)
		}
		if p.Held {
			held++
		}
		// Order of the facts is no fact.
		shuffled := f
		shuffled.Owned = slices.Clone(f.Owned)
		r.Shuffle(len(shuffled.Owned), func(a, b int) {
			shuffled.Owned[a], shuffled.Owned[b] = shuffled.Owned[b], shuffled.Owned[a]
		})
		if again, same := PlanPrune(shuffled), PlanPrune(f); again.Hash != p.Hash || !cmp.Equal(again.Deletes, same.Deletes) {
			t.Fatalf("seed %d, round %d: another order of the inventory makes another plan", seed, i)
		}
		if len(p.Deletes) > 0 {
			d := p.Deletes[r.IntN(len(p.Deletes))].Entry
			live := f.Live[d]
			live.UID += "x"
			f.Live[d] = live
			if PlanPrune(f).Hash == p.Hash {
				t.Fatalf("seed %d, round %d: the hash is the same for another UID of %s", seed, i, d)
			}
		}
	}
	if deletes == 0 || held == 0 || last == 0 {
		t.Fatalf("%d deletes, %d of them last, and %d held plans: the properties were not tested", deletes, last, held)
	}
}

// TestGoing: who deletes Kustomizations and HelmReleases waits for those that still take something down (read 875).
func TestGoing(t *testing.T) {
	at := func(since time.Duration, change func(*Live)) Live {
		return with(func(l *Live) {
			l.Deleting, l.Since = true, time.Unix(0, 0).Add(LastBound-since)
			change(l)
		})
	}
	nothing := func(*Live) {}
	for name, tc := range map[string]struct {
		reason string
		facts  Facts
		want   []Entry
	}{
		"Begins":    {"it is deleted by this plan", Facts{Owned: []Entry{child}, Live: map[Entry]Live{child: with(func(l *Live) { l.Carries = 3 })}}, []Entry{child}},
		"Nothing":   {"it applied nothing", Facts{Owned: []Entry{child}, Live: map[Entry]Live{child: ours}}, nil},
		"Goes":      {"it is at work", Facts{Owned: []Entry{child}, Live: map[Entry]Live{child: at(time.Minute, nothing)}}, []Entry{child}},
		"Late":      {"it does not get done", Facts{Owned: []Entry{child}, Live: map[Entry]Live{child: at(LastBound, nothing)}}, nil},
		"Clusters":  {"it waits for its Clusters", Facts{Owned: []Entry{child}, Live: map[Entry]Live{child: at(LastBound, func(l *Live) { l.Holds = []string{"Cluster/fleet/prod"} })}}, []Entry{child}},
		"Self":      {"nobody waits for himself, as flux-system would", Facts{Owned: []Entry{child, deployer}, Live: map[Entry]Live{child: at(time.Minute, func(l *Live) { l.Self = true }), deployer: ours}}, nil},
		"Elsewhere": {"the agent of another cluster may be gone", Facts{Owned: []Entry{child}, LowerTier: true, Live: map[Entry]Live{child: at(time.Minute, nothing)}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tc.facts.Asked, tc.facts.Now = true, time.Unix(0, 0).Add(LastBound)
			p := PlanPrune(tc.facts)
			if diff := cmp.Diff(tc.want, p.Going); diff != "" || len(p.Last) > 0 {
				t.Errorf("%s\n%d are put last, going: -want, +got:\n%s", tc.reason, len(p.Last), diff)
			}
		})
	}
}

// TestDecisions: nobody is asked again about what an approved plan put last, unless it is not the same removal any
// more (read 876).
func TestDecisions(t *testing.T) {
	at := func(e Entry, l Live) func(*Facts) { return func(f *Facts) { f.Live[e] = l } }
	going, gone := with(func(l *Live) { l.Deleting = true }), at(child, Live{State: Absent})
	more, live := configMaps(11)
	for name, tc := range map[string]struct {
		reason  string
		between func(*Facts)
		then    []func(*Facts)
		deletes []string
		held    bool
		last    []Entry
	}{
		"Going":  {"they are needed still", nil, nil, nil, false, []Entry{rights, deployer}},
		"Gone":   {"nobody needs them any more", nil, []func(*Facts){gone}, []string{"RoleBinding/apps/deployer", "ServiceAccount/team/deployer"}, false, nil},
		"Unread": {"the API server did not answer for a while", func(f *Facts) { f.Live = nil }, []func(*Facts){gone}, []string{"RoleBinding/apps/deployer", "ServiceAccount/team/deployer"}, false, nil},
		"Anew":   {"another object has the name", nil, []func(*Facts){gone, at(deployer, with(func(l *Live) { l.UID = "2" }))}, []string{"RoleBinding/apps/deployer", "ServiceAccount/team/deployer"}, true, nil},
		"Restored": {"Git had it again", func(f *Facts) { f.Rendered = []Entry{other, deployer} }, []func(*Facts){gone},
			[]string{"RoleBinding/apps/deployer", "ServiceAccount/team/deployer"}, true, nil},
		"Taken": {"another owner declared it", at(deployer, with(func(l *Live) { l.HandOver = "Kustomization/x/y" })), []func(*Facts){gone},
			[]string{"RoleBinding/apps/deployer", "ServiceAccount/team/deployer"}, true, nil},
		"Beside": {"something else is removed beside what is protected", nil, []func(*Facts){func(f *Facts) { f.Rendered = nil }},
			[]string{"ConfigMap/apps/other", "RoleBinding/apps/deployer", "ServiceAccount/team/deployer"}, true, nil},
		"BesideThen": {"and is declared again", func(f *Facts) { f.Rendered = nil }, []func(*Facts){gone}, []string{"RoleBinding/apps/deployer", "ServiceAccount/team/deployer"}, false, nil},
		"Many": {"they do not count for the removal of others", nil, []func(*Facts){at(home, Live{State: Absent}), func(f *Facts) {
			f.Owned = append(f.Owned, more[:9]...)
		}}, []string{"ConfigMap/many/c000", "ConfigMap/many/c001", "ConfigMap/many/c002", "ConfigMap/many/c003", "ConfigMap/many/c004", "ConfigMap/many/c005",
			"ConfigMap/many/c006", "ConfigMap/many/c007", "ConfigMap/many/c008"}, false, []Entry{rights, deployer}},
	} {
		t.Run(name, func(t *testing.T) {
			f := Facts{Owned: []Entry{child, deployer, rights, home, other}, Rendered: []Entry{other}, Live: maps.Clone(live)}
			f.Live[child], f.Live[deployer], f.Live[rights], f.Live[other] = with(func(l *Live) { l.Carries = 3 }), ours, ours, ours
			f.Live[home] = with(func(l *Live) { l.Holds = []string{"Deployment/team/web"} })
			f.Approved = PlanPrune(f).Hash
			p := PlanPrune(f)
			f.Decided, f.Live[child] = f.Decisions(p, p.Keep), going
			if tc.between != nil {
				between := f
				between.Live = maps.Clone(f.Live)
				tc.between(&between)
				p = PlanPrune(between)
				f.Decided = between.Decisions(p, p.Keep)
			}
			for _, change := range tc.then {
				change(&f)
			}
			p = PlanPrune(f)
			got := outcomeOf(p)
			slices.Sort(got.Deletes)
			if !slices.Equal(got.Deletes, tc.deletes) || got.Held != tc.held || !slices.Equal(got.Last, tc.last) {
				t.Errorf("%s: deletes %q, held: %t (%s), last %v", tc.reason, got.Deletes, got.Held, p.Guard, got.Last)
			}
			if next := f.Decisions(p, nil); next != "" {
				t.Errorf("%s: all is gone, and on record is %q", tc.reason, next)
			}
		})
	}
}

// TestDecisionsFailed: nobody is asked again about what is left of an approved removal that failed halfway, unless it is
// not the same removal any more (read 931).
func TestDecisionsFailed(t *testing.T) {
	entries, objects := configMaps(3)
	left, more := entries[1], entries[2]
	at := func(change func(*Live)) func(*Facts) {
		return func(f *Facts) {
			l := f.Live[left]
			change(&l)
			f.Live[left] = l
		}
	}
	for name, tc := range map[string]struct {
		reason               string
		first, between, then func(*Facts)
		deletes              int
		held                 bool
	}{
		"Rest":      {reason: "it is what was approved", deletes: 1},
		"FailsAnew": {reason: "it cannot be deleted the next time either", between: func(*Facts) {}, deletes: 1},
		"Unread":    {reason: "the API server did not answer for a while", between: at(func(l *Live) { l.State = Unknown }), deletes: 1},
		"Anew":      {reason: "another object has the name", then: at(func(l *Live) { l.UID = "2" }), deletes: 1, held: true},
		"Restored":  {reason: "Git had it again", between: func(f *Facts) { f.Rendered = []Entry{left} }, deletes: 1, held: true},
		"Taken":     {reason: "another owner declared it", between: at(func(l *Live) { l.HandOver = "Kustomization/x/y" }), deletes: 1, held: true},
		"More":      {reason: "nobody was asked about another one", then: func(f *Facts) { f.Owned = []Entry{left, more} }, deletes: 2, held: true},
		"Withdrawn": {reason: "its own confirmation was taken back, which may be why it is left", first: at(func(l *Live) { l.Confirmed = true }),
			then: at(func(l *Live) { l.Confirmed = false }), deletes: 1, held: true},
		"Unasked": {reason: "that removal was small, and nobody was asked", first: func(f *Facts) { f.Rendered = []Entry{more} }, then: func(f *Facts) { f.Rendered = nil },
			deletes: 1, held: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := Facts{Owned: entries[:2], Live: maps.Clone(objects)}
			if tc.first != nil {
				tc.first(&f)
			}
			p := PlanPrune(f)
			if p.Held {
				f.Approved = p.Hash
				p = PlanPrune(f)
			}
			// The first object is gone, and the delete of the other one failed.
			f.Decided = f.Decisions(p, []Entry{left})
			f.Owned = []Entry{left}
			if tc.between != nil {
				between := f
				between.Live = maps.Clone(f.Live)
				tc.between(&between)
				p = PlanPrune(between)
				f.Decided = between.Decisions(p, p.Keep)
			}
			if tc.then != nil {
				tc.then(&f)
			}
			if p = PlanPrune(f); len(p.Deletes) != tc.deletes || p.Held != tc.held {
				t.Errorf("%s: deletes %d, held: %t (%s)", tc.reason, len(p.Deletes), p.Held, p.Guard)
			}
		})
	}
}

// TestDecisionsBound: the record has an end, and is the same for the same objects.
func TestDecisionsBound(t *testing.T) {
	entries, live := configMaps(mostDecided + 5)
	f := Facts{Live: live}
	record := f.Decisions(Plan{Last: entries}, entries)
	slices.Reverse(entries)
	if again := f.Decisions(Plan{Last: entries}, entries); len(record) != mostDecided*2*shortLength || record != again {
		t.Errorf("the record has %d digits, and in another order %t the same", len(record), record == again)
	}
}

// TestLastMessage: what is kept for a removal that takes its time is told, and not for one that began just now.
func TestLastMessage(t *testing.T) {
	p := Plan{Deletes: []Delete{{Entry: child}}, Last: []Entry{deployer}, LastFor: child}
	if got := p.LastMessage(); got != "" {
		t.Errorf("at once it is told %q", got)
	}
	p.Deletes, p.Waiting = nil, []Entry{child}
	if got, want := p.LastMessage(), "1 objects that are no longer declared are kept until Kustomization/team/apps is gone, which may need them: ServiceAccount/team/deployer"; got != want {
		t.Errorf("it is told %q, want %q", got, want)
	}
}

// TestAwaits: who removed keys is told that they wait for a Cluster, and what has them. Old templates
// wait for years.
func TestAwaits(t *testing.T) {
	facts := Facts{Owned: []Entry{machines, secret, other}, Rendered: []Entry{other}, Live: map[Entry]Live{
		machines: with(func(l *Live) { l.OfCluster = "prod" }),
		secret:   with(func(l *Live) { l.OfCluster, l.Credential = "prod", "AWSCluster/fleet/prod" }),
	}}
	for range 2 {
		p := PlanPrune(facts)
		if got, want := AwaitsMessage(p.OfCluster, p.Credential), "1 objects that are no longer declared wait for Clusters to be gone: Secret/fleet/prod-ca, with keys of AWSCluster/fleet/prod"; got != want {
			t.Errorf("AwaitsMessage() = %q, want %q", got, want)
		}
		slices.Reverse(facts.Owned)
	}
	if got := AwaitsMessage([]Entry{machines}, ""); got != "" {
		t.Errorf("AwaitsMessage() of a template = %q", got)
	}
}

// TestNeeded: what works on objects that exist is not deleted, whatever a person
// confirmed or approved, and is a reason to look.
func TestNeeded(t *testing.T) {
	needed := func(confirmed bool) Live {
		return with(func(l *Live) {
			l.Provider, l.NeededBy, l.Confirmed = "infrastructure-aws", "AWSCluster/fleet/prod", confirmed
		})
	}
	for name, tc := range map[string]struct {
		reason string
		live   Live
		want   []Entry
	}{
		"Needed":    {"a controller of objects that exist", needed(false), []Entry{deploy}},
		"Confirmed": {"the confirmation was about the provider, not about what it holds", needed(true), []Entry{deploy}},
		"Free":      {"nothing of its kinds is left", with(func(l *Live) { l.Provider = "infrastructure-aws" }), nil},
		"Foreign":   {"another owner has taken it over", with(func(l *Live) { l.NeededBy, l.Owned = "AWSCluster/fleet/prod", false }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			facts := Facts{Owned: []Entry{deploy, configMap}, Rendered: []Entry{configMap}, Live: map[Entry]Live{deploy: tc.live}}
			if tc.want != nil {
				facts.Owned, facts.Live[namespace] = append(facts.Owned, namespace), with(func(l *Live) { l.Confirmed = true })
			}
			facts.Approved = PlanPrune(facts).Hash
			p := PlanPrune(facts)
			if diff := cmp.Diff(tc.want, p.Needed); diff != "" {
				t.Errorf("%s\nPlanPrune(): needed: -want, +got:\n%s", tc.reason, diff)
			}
			if kept := slices.Contains(p.Keep, deploy); tc.want != nil && (len(p.Deletes) > 0 || !kept || !p.Blocked()) {
				t.Errorf("%s\nPlanPrune() deletes %v, keeps it: %v, is blocked: %v", tc.reason, p.Deletes, kept, p.Blocked())
			}
			if said := strings.Contains(p.Message("x"), "AWSCluster/fleet/prod"); said != (tc.want != nil) {
				t.Errorf("%s\nMessage() = %q", tc.reason, p.Message("x"))
			}
		})
	}
}

// TestPlanSettles: what was held is decided about by a plan that deletes or no longer finds it, not by
// one that puts it off.
func TestPlanSettles(t *testing.T) {
	one, other := Entry{Kind: "ConfigMap", Name: "a"}, Entry{Kind: "ConfigMap", Name: "b"}
	removed, confirmed := []Delete{{Entry: one}}, []Delete{{Entry: one, Confirmed: true}}
	last := Facts{
		Owned: []Entry{child, deployer, configMap, secret}, Rendered: []Entry{secret}, Undecided: true,
		Live: map[Entry]Live{
			child: with(func(l *Live) { l.Confirmed, l.Carries = true, 3 }), deployer: ours,
			configMap: with(func(l *Live) { l.HandOver = "Kustomization/x/y" }),
		},
	}
	last.Approved = PlanPrune(last).Hash
	for name, tc := range map[string]struct {
		reason string
		plan   Plan
		want   bool
	}{
		"None":       {"no plan was made", Plan{}, false},
		"Superseded": {"the next one is made of another declaration", Plan{Superseded: true}, false},
		"Nothing":    {"all of it is declared again, or gone", Plan{Hash: "ab"}, true},
		"Taken":      {"another owner has it", Plan{Hash: "ab", Claimed: []Entry{one}}, true},
		"Held":       {"a person is asked", Plan{Hash: "ab", Held: true, Deletes: removed}, false},
		"Approved":   {"a person decided about what the plan deletes; the rest was not on the list", Plan{Hash: "ab", Deletes: removed, Unasked: true, HandOver: []Entry{other}, Unknown: []Entry{other}}, true},
		"Last":       {"the same where that goes after a Kustomization which may need it (read 872)", PlanPrune(last), true},
		"Confirmed":  {"a confirmation of one object says nothing of the others", Plan{Hash: "ab", Deletes: confirmed, HandOver: []Entry{other}}, false},
		"HandOver":   {"another owner may declare it", Plan{Hash: "ab", HandOver: []Entry{other}}, false},
		"Unknown":    {"it could not be read", Plan{Hash: "ab", Unknown: []Entry{other}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.plan.Settles(); got != tc.want {
				t.Errorf("%s\nSettles() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

// TestPlanHold: a plan that is blocked by something else, and puts off what an earlier one held, does not decide about
// it (read 915).
func TestPlanHold(t *testing.T) {
	before := &v1alpha1.HeldPrune{Hash: "cd", Deletes: 2}
	one, other := []Entry{{Kind: "ConfigMap", Name: "a"}}, []Entry{{Kind: "PersistentVolumeClaim", Name: "b"}}
	removed := []Delete{{Entry: one[0]}}
	for name, tc := range map[string]struct {
		reason string
		before *v1alpha1.HeldPrune
		plan   Plan
		want   *v1alpha1.HeldPrune
	}{
		"HandOver":  {"another owner may declare it", before, Plan{Hash: "ab", Protected: other, HandOver: one}, &v1alpha1.HeldPrune{Hash: "cd", Deletes: 2, Protected: 1}},
		"Unknown":   {"it could not be read", before, Plan{Hash: "ab", Needed: other, Unknown: one}, &v1alpha1.HeldPrune{Hash: "cd", Deletes: 2, Protected: 1}},
		"Held":      {"what is held now can be approved", before, Plan{Hash: "ab", Held: true, Deletes: removed, HandOver: one}, &v1alpha1.HeldPrune{Hash: "ab", Deletes: 1}},
		"Approved":  {"a person decided", before, Plan{Hash: "ab", Unasked: true, Deletes: removed, Protected: other, HandOver: one}, &v1alpha1.HeldPrune{Protected: 1}},
		"Restored":  {"it is declared again", before, Plan{Hash: "ab", Protected: other}, &v1alpha1.HeldPrune{Protected: 1}},
		"Protected": {"nothing else was held before", &v1alpha1.HeldPrune{Protected: 1}, Plan{Hash: "ab", Protected: other, HandOver: one}, &v1alpha1.HeldPrune{Protected: 1}},
		"First":     {"nothing was", nil, Plan{Hash: "ab", Protected: other, HandOver: one}, &v1alpha1.HeldPrune{Protected: 1}},
		"Nothing":   {"nothing is blocked", before, Plan{Hash: "ab", HandOver: one}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.plan.Hold(tc.before)); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestUndecided: what is not known of a blocked owner was not decided about.
func TestUndecided(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		blocked bool
		hold    *v1alpha1.HeldPrune
		want    bool
	}{
		"Free":      {"nothing is held", false, nil, false},
		"Stale":     {"the record stayed after the condition went", false, &v1alpha1.HeldPrune{Hash: "ab"}, false},
		"Held":      {"a plan waits for its approval", true, &v1alpha1.HeldPrune{Hash: "ab", Deletes: 3}, true},
		"Protected": {"nothing waits for an approval, only for confirmations", true, &v1alpha1.HeldPrune{Protected: 1}, false},
		"Unknown":   {"an agent of a version without this record held something, or somebody took the record away", true, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Undecided(tc.blocked, tc.hold); got != tc.want {
				t.Errorf("%s\nUndecided() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}
