package apply

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/ssa"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
)

func parsed(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = u.UnmarshalJSON(data) // whole numbers stay whole, as they come from an API server
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestUserOf(t *testing.T) {
	static := inventory.Entry{Name: "keys", Group: clusterapi.InfrastructureGroup, Kind: "AWSClusterStaticIdentity", Version: "v1beta2"}
	assumed := func(name, source string) unstructured.Unstructured {
		return *parsed(t, "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSClusterRoleIdentity\nmetadata: {name: "+name+"}\nspec: {sourceIdentityRef: "+source+"}")
	}
	role := assumed("role", "{kind: AWSClusterStaticIdentity, name: keys}")
	others := []unstructured.Unstructured{assumed("first", "{kind: AWSClusterStaticIdentity, name: keys}"), role, assumed("third", "{kind: AWSClusterRoleIdentity, name: role}")}
	circle := []unstructured.Unstructured{role, assumed("other", "{kind: AWSClusterRoleIdentity, name: role}"), assumed("role", "{kind: AWSClusterRoleIdentity, name: other}")}
	itself := *parsed(t, "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSClusterStaticIdentity\nmetadata: {name: keys}\nspec: {sourceIdentityRef: {kind: AWSClusterStaticIdentity, name: keys}}")
	user := func(ref string) unstructured.Unstructured {
		return *parsed(t, "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSCluster\nmetadata: {name: prod-x, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: prod}}\nspec: {identityRef: "+ref+"}")
	}
	for name, tc := range map[string]struct {
		reason string
		found  lookups
		want   string
	}{
		"Used":    {"by the name of the Cluster", lookups{users: []unstructured.Unstructured{user("{kind: AWSClusterStaticIdentity, name: keys}")}}, "prod"},
		"Unused":  {"by nobody", lookups{users: []unstructured.Unstructured{user("{kind: AWSClusterStaticIdentity, name: others}")}}, ""},
		"Chained": {"by way of a role, which is assumed with the keys", lookups{users: []unstructured.Unstructured{user("{kind: AWSClusterRoleIdentity, name: role}")}, identities: []unstructured.Unstructured{role}}, "prod"},
		"Unended": {"a chain that nobody uses", lookups{identities: []unstructured.Unstructured{role}}, ""},
		"Second":  {"by way of one of several roles", lookups{users: []unstructured.Unstructured{user("{kind: AWSClusterRoleIdentity, name: role}")}, identities: others}, "prod"},
		"Third":   {"or of a role that this one assumes", lookups{users: []unstructured.Unstructured{user("{kind: AWSClusterRoleIdentity, name: third}")}, identities: others}, "prod"},
		"Itself":  {"a chain that ends nowhere must not hang", lookups{identities: []unstructured.Unstructured{itself}}, ""},
		"Circle":  {"whatever its length", lookups{identities: circle}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := userOf(static, &tc.found, func(*unstructured.Unstructured) (bool, error) { return true, nil })
			if err != nil || got != tc.want {
				t.Errorf("%s: userOf() = %q, %v, want %q", tc.reason, got, err, tc.want)
			}
		})
	}
}

func TestLeaves(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, spec string
		want         bool
	}{
		"Prunes":       {"prune: true deletes what was applied", "{prune: true}", false},
		"DoesNotPrune": {"MirrorPrune is the default", "{prune: false}", true},
		"Orphan":       {"whatever prune says", "{prune: true, deletionPolicy: Orphan}", true},
		"Delete":       {"whatever prune says", "{prune: false, deletionPolicy: Delete}", false},
		"Waits":        {"it deletes, too", "{prune: false, deletionPolicy: WaitForTermination}", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := leaves(parsed(t, "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nspec: "+tc.spec)); got != tc.want {
				t.Errorf("%s: leaves() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
	if leaves(parsed(t, "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec: {suspend: true}")) {
		t.Error("a suspended HelmRelease may be resumed to be deleted")
	}
}

// TestAlong: what a Layer takes along from its children counts, whichever version wrote
// its status (C36).
func TestAlong(t *testing.T) {
	const layer = "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata: {namespace: fleet, name: app}\n"
	for name, tc := range map[string]struct {
		reason, rest string
		holds        bool
		objects      int
	}{
		"Deletes":   {"many children would be emptied", "spec: {deletionPolicy: Delete}\nstatus: {onRecord: {children: 12, objects: 144}}", true, 144},
		"Two":       {"two go by themselves; their objects count", "spec: {deletionPolicy: Delete}\nstatus: {onRecord: {children: 2, objects: 24}}", false, 24},
		"Orphans":   {"everything stays", "spec: {deletionPolicy: Orphan}\nstatus: {onRecord: {children: 12, objects: 144}}", false, 0},
		"Suspended": {"a suspended Layer leaves everything", "spec: {deletionPolicy: Delete, suspend: true}\nstatus: {onRecord: {children: 12, objects: 144}}", false, 0},
		"Older":     {"an earlier version counted no objects", "spec: {deletionPolicy: Delete}\nstatus: {children: {total: 12}}", true, 12},
		"None":      {"no child has anything of it", "spec: {deletionPolicy: Delete}\nstatus: {onRecord: {children: 0, objects: 0}, children: {total: 12}}", false, 0},
		"New":       {"it was never looked at", "spec: {deletionPolicy: Delete}", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			u := parsed(t, layer+tc.rest)
			holds, objects, text := along(inventory.Of(u), u)
			if (len(holds) > 0) != tc.holds || objects != tc.objects || (text != "") != (tc.objects > 0) {
				t.Errorf("%s: along() = %q, %d, %q", tc.reason, holds, objects, text)
			}
		})
	}
	held := parsed(t, layer+"status: {removal: {held: true, waiting: 12}}")
	if got := holding(held); !strings.Contains(got, "cascade approve removal app -n fleet") || !strings.Contains(got, "12 children") {
		t.Errorf("a Layer that holds says %q", got)
	}
	if got := holding(parsed(t, layer+"status: {removal: {waiting: 1}}")); got != "" {
		t.Errorf("a Layer that holds nothing says %q", got)
	}
}

// TestKeysBeside: a confirmed Namespace waits for what is in it and Clusters need, as long as they do: for what is
// still declared (read 469), and for what nobody declares here any more, or never did (read 530).
func TestKeysBeside(t *testing.T) {
	const keys = "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}"
	const identity = "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: AzureClusterIdentity\nmetadata: {name: i}\nspec: {clientSecret: {namespace: x, name: keys}}"
	const user = "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: AzureCluster\nmetadata: {namespace: other, name: a, labels: {cluster.x-k8s.io/cluster-name: c}}\n" +
		"spec: {identityRef: {kind: AzureClusterIdentity, namespace: x, name: i}}"
	const cluster = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {namespace: other, name: c}"
	const exempt = "apiVersion: v1\nkind: Secret\nmetadata: {name: keys, annotations: {" + directive.Group + "/prune: disabled}}"
	const taken = "apiVersion: v1\nkind: Secret\nmetadata: {name: keys, labels: {" + group + "/name: other, " + group + "/namespace: x}}"
	const another = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: free}"
	for name, tc := range map[string]struct {
		reason, declared string
		others           []string
		waits            bool
		// gone: it is not declared any more.
		gone bool
	}{
		"Keys":     {"an identity beside them is used in another namespace", keys, []string{identity, user, cluster}, true, false},
		"Exempt":   {"also if they ask not to be pruned", exempt, []string{identity, user, cluster}, true, false},
		"Identity": {"so is the identity itself", identity, []string{user, cluster}, true, false},
		"Free":     {"nothing reads the Secret", keys, nil, false, false},
		"Left":     {"a commit took out keys that ask not to be pruned", exempt, []string{identity, user, cluster}, true, true},
		"Taken":    {"another owner has taken over what a commit took out", taken, []string{identity, user, cluster}, true, true},
		"Made":     {"another object made them", another, []string{keys, identity, user, cluster}, true, false},
		"Unused":   {"no Cluster uses what asks not to be pruned", exempt, []string{identity}, false, true},
		"Ended":    {"the Cluster has ended", exempt, []string{identity, user}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			put := func(u *unstructured.Unstructured) inventory.Entry {
				apps.label(u)
				u.SetManagedFields(managedBy(apps.FieldManager))
				s.put(u, nil)
				return inventory.Of(u)
			}
			namespace := put(parsed(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: x, annotations: {cascade.dev/deletion: confirmed}}"))
			object := inX(parsed(t, tc.declared))
			theirs := object.GetLabels()
			declared := put(object)
			if theirs != nil {
				s.put(object, func(u *unstructured.Unstructured) { u.SetLabels(theirs) })
			}
			for _, text := range tc.others {
				s.put(inX(parsed(t, text)), nil)
			}
			facts := inventory.Facts{Owned: []inventory.Entry{namespace, declared}, Rendered: []inventory.Entry{declared}}
			if tc.gone {
				facts.Rendered = nil
			}
			for turn := range 2 {
				res := Result{Changes: ssa.NewChangeSet()}
				if err := s.applier(t).prune(t.Context(), facts, Options{}, nil, &res); err != nil {
					t.Fatal(err)
				}
				if waits := slices.Contains(res.Plan.OfCluster, namespace); waits != tc.waits || slices.Contains(res.Deleted, namespace) == tc.waits {
					t.Fatalf("%s: it waits in turn %d: %t; deleted is %v", tc.reason, turn, waits, res.Deleted)
				}
				if !tc.waits {
					break
				}
				facts.Owned = res.Inventory
			}
		})
	}
}

// TestKeys: the keys of a cloud stay as long as a Cluster needs them, whoever names them and
// whatever writes them (read 229, 230, 285, 286, 296, 340, 362, 363, 402, 404, 405).
func TestKeys(t *testing.T) {
	const infra = "apiVersion: infrastructure.cluster.x-k8s.io/"
	static := infra + "v1beta2\nkind: AWSClusterStaticIdentity\nmetadata: {name: i}\nspec: {secretRef: keys}"
	const userOfI = infra + "v1beta2\nkind: AWSCluster\nmetadata: {name: a}"
	const ofIdentity = "{identityRef: {kind: AWSClusterStaticIdentity, name: i}}"
	const ofI = "\nspec: " + ofIdentity
	const user = userOfI + ofI
	role := func(name string) string {
		return infra + "v1beta2\nkind: AWSClusterRoleIdentity\nmetadata: {name: " + name + "}\nspec: {sourceIdentityRef: {kind: AWSClusterStaticIdentity, name: i}}"
	}
	const roleUser = infra + "v1beta2\nkind: AWSCluster\nmetadata: {namespace: other, name: a, labels: {cluster.x-k8s.io/cluster-name: c}}\nspec: {identityRef: {kind: AWSClusterRoleIdentity, name: second}}"
	const credential = "apiVersion: cascade.dev/v1alpha1\nkind: Credential\nmetadata: {name: c}\nspec: "
	const controllers = "apiVersion: v1\nkind: Secret\nmetadata: {name: capa-manager-bootstrap-credentials}"
	const cluster = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: c}"
	const awsCluster = infra + "v1beta2\nkind: AWSCluster\nmetadata: {name: a, labels: {cluster.x-k8s.io/cluster-name: c}}"
	const keys = "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}"
	const rosa = "apiVersion: controlplane.cluster.x-k8s.io/v1beta2\nkind: ROSAControlPlane\nmetadata: {name: a}\nspec: "
	const rosaKeys = "apiVersion: v1\nkind: Secret\nmetadata: {name: rosa-creds-secret}"
	named := func(kind, spec string) string {
		return infra + "v1beta1\nkind: " + kind + "\nmetadata: {name: a}\nspec: " + spec
	}
	alone := func(kind, spec string) string {
		return strings.TrimSuffix(infra+"v1beta2\nkind: "+kind+"\nmetadata: {name: a}\nspec: "+spec, "\nspec: ")
	}
	labelled := func(object string) string {
		return strings.Replace(object, "{name: a}", "{name: a, labels: {cluster.x-k8s.io/cluster-name: c}}", 1)
	}
	confirmed := func(object string) string {
		return strings.TrimSuffix(object, "}") + ", annotations: {cascade.dev/deletion: confirmed}}"
	}
	// What the providers make an owner of the Secret beside their controllers.
	owned := func(object string) string {
		return strings.TrimSuffix(object, "}") + ", ownerReferences: [{apiVersion: " + "infrastructure.cluster.x-k8s.io/v1beta2, kind: AWSClusterStaticIdentity, name: i, uid: u}]}"
	}
	// What a Kustomization or a HelmRelease has.
	of := func(kind, name, object string) string {
		group := map[string]string{"Kustomization": group, "HelmRelease": releaseGroup}[kind]
		return strings.Replace(object, "{name: c", "{labels: {"+group+"/namespace: x, "+group+"/name: "+name+"}, name: c", 1)
	}
	const release = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: r}"
	releaseOf := func(namespace, name string) string {
		return strings.Replace(release, "{", "{labels: {"+group+"/namespace: "+namespace+", "+group+"/name: "+name+"}, ", 1)
	}
	const kustomization = "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: k}"
	deletedAt := func(at time.Time, object string) string {
		return strings.TrimSuffix(object, "}") + ", deletionTimestamp: '" + at.UTC().Format(time.RFC3339) + "', finalizers: [x/y]}"
	}
	long := time.Now().AddDate(0, 0, -1)
	lately := time.Now().Add(-time.Minute)
	deleted := func(object string) string { return deletedAt(long, object) }
	keptByHelm := func(object string) string {
		return strings.TrimSuffix(object, "}") + ", annotations: {helm.sh/resource-policy: keep}}"
	}
	inOther := func(object string) string { return strings.Replace(object, "{name: ", "{namespace: other, name: ", 1) }
	// What an owner says in the labels of an object, or somebody else does.
	marked := func(group, namespace, name, object string) string {
		return strings.Replace(object, "metadata: {", "metadata: {labels: {"+group+"/namespace: "+namespace+", "+group+"/name: "+name+"}, ", 1)
	}
	ours := func(object string) string { return marked(group, apps.Namespace, apps.Name, object) }
	const names = "\nspec: {credentialsRef: {namespace: x, name: keys}}"
	const gcp = infra + "v1beta1\nkind: GCPCluster\nmetadata: {namespace: other, name: a}"
	const gcpOfC = infra + "v1beta1\nkind: GCPCluster\nmetadata: {namespace: other, name: a, labels: {cluster.x-k8s.io/cluster-name: c}}" + names
	azure := func(namespace string) string {
		return infra + "v1beta1\nkind: AzureClusterIdentity\nmetadata: {namespace: " + namespace + ", name: i}\nspec: {clientSecret: {namespace: x, name: keys}}"
	}
	azureUser := func(namespace string) string {
		return infra + "v1beta1\nkind: AzureCluster\nmetadata: {namespace: other, name: a, labels: {cluster.x-k8s.io/cluster-name: c}}\nspec: {identityRef: {kind: AzureClusterIdentity, namespace: " + namespace + ", name: i}}"
	}
	// What is in the tier that applies to the cluster from elsewhere.
	const atHub = "hub: "
	hub := func(object string) string { return atHub + object + "\nspec: {kubeConfig: {secretRef: {name: way}}}" }
	carrier := func(id, version string) string {
		return "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: k}\nspec: {prune: true}\nstatus: {inventory: {entries: [{id: " + id + ", v: " + version + "}]}}"
	}
	for name, tc := range map[string]struct {
		reason string
		object string
		// others are in the cluster as well.
		others []string
		// keeps: it waits for a Cluster; asks: a person has to confirm.
		keeps, asks bool
	}{
		"Identity":          {"an identity that is used reads it", owned(keys), []string{static, user}, true, false},
		"TwoRoles":          {"or one of the roles that are assumed with it is used", owned(confirmed(keys)), []string{static, role("first"), role("second"), roleUser, inOther(cluster)}, true, false},
		"TwoRolesIdentity":  {"the identity behind them as well", confirmed(strings.Split(static, "\nspec")[0]), []string{role("first"), role("second"), roleUser, inOther(cluster)}, true, false},
		"Idle":              {"an identity that nobody uses reads it", keys, []string{static}, false, true},
		"SameName":          {"it reads one of that name beside its controllers, which may be another", keys, []string{static, user}, false, true},
		"SameNameConfirmed": {"whose owners know", confirmed(keys), []string{static, user}, false, false},
		"SameNameGoing":     {"unless a Cluster is taken down with it, perhaps", confirmed(keys), []string{static, labelled(user), confirmed(cluster)}, true, false},
		"Shared":            {"an identity beside it is used in another namespace", confirmed(keys), []string{azure("x"), azureUser("x"), inOther(cluster)}, true, false},
		"SharedIdentity":    {"the identity itself as well", confirmed(strings.Split(azure("x"), "\nspec")[0]), []string{azureUser("x"), inOther(cluster)}, true, false},
		"SharedPart":        {"a Cluster refers to what has no label yet", confirmed(keys), []string{azure("x"), strings.Replace(azureUser("x"), ", labels: {cluster.x-k8s.io/cluster-name: c}", "", 1), inOther(cluster) + "\nspec: {infrastructureRef: {kind: AzureCluster, name: a}}"}, true, false},
		"NoRealCluster":     {"whoever may write there has none", keys, []string{azure("x"), azureUser("x")}, false, true},
		"Stranger":          {"others say so, in an identity of theirs", keys, []string{azure("other"), azureUser("other"), inOther(cluster)}, false, true},
		"StrangerConfirmed": {"whose owners know that it is for something else", confirmed(keys), []string{azure("other"), azureUser("other"), inOther(cluster)}, false, false},
		"SameNameWaits":     {"which no tenant wrote, and whose Clusters of another namespace wait for their turn", confirmed(keys), []string{static, inOther(labelled(user)), marked(group, "x", "k", inOther(cluster)), deleted(kustomization) + "\nspec: {prune: true}"}, true, false},
		"SameNameElsewhere": {"whose provider has made the one of another namespace its own", confirmed(keys), []string{static, owned(inOther(keys)), inOther(labelled(user)), inOther(confirmed(cluster)), marked(group, "x", "k", inOther(cluster)), deleted(kustomization) + "\nspec: {prune: true}"}, false, false},
		"SameNameAsks":      {"which may be a mistake", keys, []string{static, owned(inOther(keys)), inOther(labelled(user)), inOther(cluster)}, false, true},
		"SameNameOthers":    {"a Secret of another name is none of those", confirmed(keys), []string{static, owned(inOther(strings.Replace(keys, "keys", "others", 1))), inOther(labelled(user)), deletedAt(lately, inOther(cluster))}, true, false},
		"SameNameStuck":     {"a tenant has what uses it, and never ends that", confirmed(keys), []string{static, deletedAt(long, inOther(userOfI)) + ofI}, false, false},
		"SameNameSaid":      {"or only says that theirs is to go, for good", confirmed(keys), []string{static, inOther(labelled(user)), inOther(confirmed(cluster))}, false, false},
		"SameNameTakenDown": {"or deletes it", confirmed(keys), []string{static, inOther(labelled(user)), deletedAt(lately, inOther(cluster))}, true, false},
		"SameNameOurs":      {"the Cluster waits for its turn in the same plan", confirmed(keys), []string{static, inOther(labelled(user)), ours(inOther(confirmed(cluster)))}, true, false},
		"StrangerWaits":     {"or who only say that theirs is to go, for good", confirmed(keys), []string{azure("other"), azureUser("other"), inOther(confirmed(cluster))}, false, false},
		"StrangerGoing":     {"or for theirs: what needs it is taken down", confirmed(keys), []string{azure("other"), azureUser("other"), deletedAt(lately, inOther(cluster))}, true, false},
		"StrangerStuck":     {"which does not end", confirmed(keys), []string{azure("other"), azureUser("other"), deletedAt(long, inOther(cluster))}, false, false},
		"StrangerPart":      {"nobody knows of which Cluster what is being taken down is", confirmed(keys), []string{deletedAt(lately, gcp) + names}, true, false},
		"StrangerPartStuck": {"which does not end", confirmed(keys), []string{deletedAt(long, gcp) + names}, false, false},
		"StrangerKeys":      {"and nobody can choose the keys of controllers", confirmed(controllers), []string{inOther(awsCluster), inOther(confirmed(cluster))}, true, false},
		"OursGoing":         {"the Cluster waits for its turn in the same plan", confirmed(keys), []string{gcpOfC, ours(inOther(confirmed(cluster)))}, true, false},
		"OursStays":         {"a Cluster of the same plan stays", confirmed(keys), []string{gcpOfC, ours(inOther(cluster))}, false, false},
		"OursGoingRelease":  {"or goes with a release of the plan", confirmed(keys), []string{gcpOfC, marked(releaseGroup, "x", "r", inOther(cluster)), ours(confirmed(release))}, true, false},
		"OursOnlyLabelled":  {"others say that theirs is of a release that goes, and that has none of it", confirmed(keys), []string{gcpOfC, marked(releaseGroup, "x", "r", inOther(cluster)), ours(deleted(release)) + "\nstatus: {inventory: {entries: [{id: x_other__ConfigMap, v: v1}]}}"}, false, false},
		"OursOnlySaid":      {"others say that theirs is of that release, which stays", confirmed(keys), []string{gcpOfC, marked(releaseGroup, "x", "r", inOther(confirmed(cluster))), ours(release)}, false, false},
		"OursOnlyMarked":    {"or of another plan", confirmed(keys), []string{gcpOfC, marked(releaseGroup, "x", "r", inOther(confirmed(cluster))), confirmed(release)}, false, false},
		"StrangerNames":     {"others name it in a cluster of theirs", keys, []string{inOther(named("GCPCluster", "{credentialsRef: {namespace: x, name: keys}}"))}, false, true},
		"StrangerIdentity":  {"others use an identity in something that is of no Cluster", confirmed(strings.Split(azure("x"), "\nspec")[0]), []string{azureUser("x")}, false, false},
		"Nobody":            {"nothing reads it", "apiVersion: v1\nkind: Secret\nmetadata: {name: other}", []string{static}, false, false},
		"OpenStack":         {"the cluster names them itself, without a kind", keys, []string{named("OpenStackCluster", "{identityRef: {name: keys, cloudName: c}}")}, true, false},
		"OpenStackIdentity": {"or an identity, by its type", keys, []string{named("OpenStackCluster", "{identityRef: {type: ClusterIdentity, name: i, cloudName: c}}"), infra + "v1alpha1\nkind: OpenStackClusterIdentity\nmetadata: {name: i}\nspec: {secretRef: {name: keys, namespace: x}}"}, true, false},
		"IdentityOfName":    {"which is none of them", keys, []string{named("OpenStackCluster", "{identityRef: {type: ClusterIdentity, name: keys, cloudName: c}}")}, false, false},
		"VSphere":           {"or with the kind of a Secret", keys, []string{named("VSphereCluster", "{identityRef: {kind: Secret, name: keys}}")}, true, false},
		"VSphereOther":      {"an identity has that name", keys, []string{named("VSphereCluster", "{identityRef: {kind: VSphereClusterIdentity, name: keys}}")}, false, false},
		"GCP":               {"or in a field of another name", keys, []string{named("GCPCluster", "{credentialsRef: {namespace: x, name: keys}}")}, true, false},
		"CloudStack":        {"or in one whose name does not say so", keys, []string{strings.Replace(named("CloudStackCluster", "{failureDomains: [{acsEndpoint: {namespace: x, name: keys}}]}"), "v1beta1", "v1beta3", 1)}, true, false},
		"ROSA":              {"or its control plane does", keys, []string{rosa + "{credentialsSecretRef: {name: keys}}"}, true, false},
		"ROSALogin":         {"which names what users log in with as well", keys, []string{rosa + "{externalAuthProviders: [{oidcClients: [{clientSecret: {name: keys}}]}]}"}, false, false},
		"ROSAController":    {"its controllers may have it", rosaKeys, []string{rosa + "{}"}, false, true},
		"ROSAGoing":         {"and take a Cluster down with it", confirmed(rosaKeys), []string{labelled(rosa + "{}"), confirmed(cluster)}, true, false},
		"ROSAGoingAWS":      {"and with their keys of AWS", confirmed(controllers), []string{labelled(rosa + "{credentialsSecretRef: {name: keys}}"), confirmed(cluster)}, true, false},
		"ROSARoles":         {"or its roles, which are no part of a Cluster", confirmed(keys), []string{alone("ROSARoleConfig", "{credentialsSecretRef: {name: keys}}")}, true, false},
		"ROSARolesOfAll":    {"in whatever namespace they have them", confirmed(keys), []string{alone("ROSAOCMRoleConfig", "{credentialsSecretRef: {namespace: x, name: keys}}")}, true, false},
		"ROSANetwork":       {"a network is made with those of an identity", owned(confirmed(keys)), []string{static, inOther(alone("ROSANetwork", ofIdentity))}, true, false},
		"ROSANetworkOwn":    {"which stays as well", confirmed(strings.Split(static, "\nspec")[0]), []string{alone("ROSANetwork", ofIdentity)}, true, false},
		"ROSANetworkGoing":  {"it is to go", confirmed(controllers), []string{confirmed(alone("ROSANetwork", "")) + "\nspec: {}"}, true, false},
		"ROSANetworkStays":  {"the controllers may have a role", confirmed(controllers), []string{alone("ROSANetwork", "{}")}, false, false},
		"OfMachines":        {"files of machines are no keys", keys, []string{"apiVersion: controlplane.cluster.x-k8s.io/v1beta2\nkind: KubeadmControlPlane\nmetadata: {name: a}\nspec: {kubeadmConfigSpec: {files: [{contentFrom: {secret: {name: keys}}}]}}"}, false, false},
		"VSphereController": {"its controllers may have it", strings.ReplaceAll(controllers, "capa", "capv"), []string{named("VSphereCluster", "{}")}, false, true},
		"GCPController":     {"its controllers may have it", strings.ReplaceAll(controllers, "capa", "capg"), nil, false, true},
		"GCPGoing":          {"one that names keys is none of theirs", confirmed(strings.ReplaceAll(controllers, "capa", "capg")), []string{labelled(named("GCPCluster", "{credentialsRef: {namespace: x, name: keys}}")), confirmed(cluster)}, false, false},
		"NamedKeeper":       {"a Credential revokes them as it goes", credential + "{target: {name: keys}}", []string{named("OpenStackCluster", "{identityRef: {name: keys, cloudName: c}}")}, true, false},
		"Operator":          {"AKS is made with it by Azure Service Operator", keys, []string{aks("{serviceoperator.azure.com/credential-from: keys}")}, true, false},
		"Namespace":         {"or with that of the namespace, where none is named", "apiVersion: v1\nkind: Secret\nmetadata: {name: aso-credential}", []string{aks("{}")}, true, false},
		"Another":           {"it names another one", "apiVersion: v1\nkind: Secret\nmetadata: {name: aso-credential}", []string{aks("{serviceoperator.azure.com/credential-from: keys}")}, false, false},
		"Controller":        {"the controllers of AWS may have it, or a role by now: a person knows", controllers, []string{awsCluster, cluster}, false, true},
		"Confirmed":         {"that person says that they have a role", confirmed(controllers), []string{awsCluster, cluster}, false, false},
		"Going":             {"a Cluster is deleted, or waits for its turn, and they take it down", confirmed(controllers), []string{awsCluster, confirmed(cluster)}, true, false},
		"GoingPart":         {"nobody knows of which Cluster what is being taken down is", controllers, []string{infra + "v1beta2\nkind: AWSCluster\nmetadata: {name: a, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [x/y]}"}, true, false},
		"GoingOther":        {"one that has an identity is none of theirs", confirmed(controllers), []string{static, user, confirmed(cluster)}, false, false},
		"GoingRelease":      {"a Cluster goes with its release, of which a person confirmed the deletion", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), confirmed(release)}, true, false},
		"DroppedRelease":    {"which its Kustomization declares no more, and deletes in the same pass", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), confirmed(releaseOf("x", "k")), kustomization}, true, false},
		"OwnRelease":        {"as may the one that has the Secret", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), confirmed(releaseOf(apps.Namespace, apps.Name))}, true, false},
		"MovedOwner":        {"a release that had it is being deleted, and its label stays", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), deleted(release) + "\nstatus: {inventory: {entries: [{id: x_other__ConfigMap, v: v1}]}}"}, false, false},
		"RecordedOwner":     {"the release that has it is", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), deleted(release) + "\nstatus: {inventory: {entries: [{id: x_c_cluster.x-k8s.io_Cluster, v: v1beta2}]}}"}, true, false},
		"DeletedRelease":    {"or it is being deleted, and its Cluster waits for another one", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), deleted(release)}, true, false},
		"KeptByRelease":     {"and leaves the Cluster", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", keptByHelm(cluster)), deleted(release)}, false, false},
		"ReleaseTakenBack":  {"the release stays", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), release}, false, false},
		"NoRelease":         {"it left the Cluster", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster)}, false, false},
		"HiddenRelease":     {"nobody knows whether it goes", confirmed(controllers), []string{awsCluster, of("HelmRelease", "hidden", cluster)}, true, false},
		"DeletedOwner":      {"a Kustomization is being deleted", confirmed(controllers), []string{awsCluster, of("Kustomization", "k", cluster), deleted(kustomization) + "\nspec: {prune: true}"}, true, false},
		"OrphaningOwner":    {"and leaves the Cluster", confirmed(controllers), []string{awsCluster, of("Kustomization", "k", cluster), deleted(kustomization) + "\nspec: {prune: false}"}, false, false},
		"DeletedAbove":      {"or the one that has the release is", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), releaseOf("x", "k"), deleted(kustomization) + "\nspec: {prune: true}"}, true, false},
		"Undeclared":        {"its Kustomization has not come to delete it", confirmed(controllers), []string{awsCluster, of("Kustomization", "k", confirmed(cluster)), kustomization}, true, false},
		"Keeper":            {"a Credential revokes them as it goes", credential + "{target: {name: keys}}", []string{static, user, owned(keys)}, true, false},
		"OwnName":           {"whose Secret has its name", strings.ReplaceAll(credential, "c}", "keys}") + "{}", []string{static, user, owned(keys)}, true, false},
		"IdleKeeper":        {"nobody uses the identity for now", credential + "{target: {name: keys}}", []string{static}, false, true},
		"NoKeeper":          {"it keeps other keys", credential + "{}", []string{static, user}, false, false},
		"Carried":           {"the Credential goes with the Kustomization that declares it", carrier("x_c_cascade.dev_Credential", "v1alpha1"), []string{static, user, credential + "{target: {name: keys}}"}, false, true},
		"CarriedToo":        {"and so does the Secret itself", carrier("x_keys__Secret", "v1"), []string{static, user}, false, true},
		"Carries":           {"a Kustomization of other keys", carrier("x_other__Secret", "v1"), []string{static, user}, false, false},
		"NoCluster":         {"the controllers of AWS have it, and nothing to do", controllers, nil, false, true},
		"HubRelease":        {"a Cluster goes with its release, which is in the tier that applies to its cluster", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), hub(confirmed(release))}, true, false},
		"HubReleaseStays":   {"nobody wants it gone", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), hub(release)}, false, false},
		"HubReleaseOfHub":   {"it applies to its own tier, and is not that of the Cluster", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), atHub + confirmed(release)}, false, false},
		"HubRoot":           {"what has the release there goes", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), hub(releaseOf("x", "k")), atHub + deleted(kustomization) + "\nspec: {prune: true}"}, true, false},
		"HubBeside":         {"both have a release of that name", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), hub(release), confirmed(release)}, true, false},
		"HubUnknown":        {"whether it goes is not known", confirmed(controllers), []string{awsCluster, of("HelmRelease", "r", cluster), atHub + "refuses"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, home := newServer(), newServer()
			s.refuses["GET hidden"] = apierrors.NewForbidden(schema.GroupResource{}, "hidden", nil)
			u := inX(parsed(t, tc.object))
			apps.label(u)
			u.SetManagedFields(managedBy(apps.FieldManager))
			s.put(u, nil)
			e := inventory.Of(u)
			owned := []inventory.Entry{e}
			for _, text := range tc.others {
				at := s
				if there, isHub := strings.CutPrefix(text, atHub); isHub {
					at, text = home, there
				}
				if text == "refuses" {
					at.refuses["GET r"] = apierrors.NewForbidden(schema.GroupResource{}, "r", nil)
					continue
				}
				other := inX(parsed(t, text))
				at.put(other, nil)
				if apps.owns(other.GetLabels()) {
					owned = append(owned, inventory.Of(other))
				}
			}
			res := Result{Changes: ssa.NewChangeSet()}
			applier := s.applier(t)
			if strings.HasPrefix(name, "Hub") {
				applier.facts.Obey(home.applier(t).client)
			}
			err := applier.prune(t.Context(), inventory.Facts{Owned: owned, Asked: true}, Options{}, nil, &res)
			if err != nil {
				t.Fatal(err)
			}
			if got := [3]bool{slices.Contains(res.Plan.OfCluster, e), slices.Contains(res.Plan.Protected, e), slices.Contains(res.Deleted, e)}; got != [3]bool{tc.keeps, tc.asks, !tc.keeps && !tc.asks} {
				t.Errorf("%s: waits, asks, deletes: %v", tc.reason, got)
			}
			if told := res.Plan.Credential; strings.Contains(told, "other/") || tc.keeps && told == "" && isSecret(e) {
				t.Errorf("%s: it is kept for %q, told to those who may not see other namespaces", tc.reason, told)
			}
		})
	}
}

// TestKeysOfNobody: Clusters are asked for where something has to do with a Secret. A list of them costs
// much in a large tier, and may fail, as while the webhook of Cluster API is down (read 361).
func TestKeysOfNobody(t *testing.T) {
	const infra = "apiVersion: infrastructure.cluster.x-k8s.io/"
	const user = infra + "v1beta2\nkind: AWSCluster\nmetadata: {namespace: other, name: a}\nspec: {identityRef: {kind: AWSClusterStaticIdentity, name: i}}"
	for name, tc := range map[string]struct {
		reason, object string
		others         []string
		unknown        bool
	}{
		"Secret":   {"nothing reads it", "apiVersion: v1\nkind: Secret\nmetadata: {name: password}", []string{user}, false},
		"Identity": {"nothing uses it", infra + "v1beta2\nkind: AWSClusterStaticIdentity\nmetadata: {name: idle}", []string{user}, false},
		"Idle":     {"nothing uses the identity that reads it", "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}", []string{infra + "v1beta2\nkind: AWSClusterStaticIdentity\nmetadata: {name: idle}\nspec: {secretRef: keys}", user}, false},
		"Used":     {"whether its Cluster exists is not known", "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}", []string{infra + "v1beta2\nkind: AWSClusterStaticIdentity\nmetadata: {name: i}\nspec: {secretRef: keys}", user}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			s.refuses["GET clusters"] = apierrors.NewInternalError(errors.New("conversion webhook failed"))
			for _, text := range tc.others {
				s.put(inX(parsed(t, text)), nil)
			}
			e := inventory.Of(inX(parsed(t, tc.object)))
			s.put(inX(parsed(t, tc.object)), apps.label)
			live := s.applier(t).read(t.Context(), []inventory.Entry{e}, nil, &lookups{})[e]
			if got := live.State == inventory.Unknown; got != tc.unknown {
				t.Errorf("%s: unknown = %t: %s", tc.reason, got, live.Problem)
			}
		})
	}
}

// TestGoesTogether: a HelmRelease that goes with a Kustomization of its own chart, which waits for it, does not wait for
// that in turn (read 928). The Kustomization waits.
func TestGoesTogether(t *testing.T) {
	release := Owner{FieldManager: "helm-controller", LabelGroup: releaseGroup, Name: "r", Namespace: "x"}
	for name, tc := range map[string]struct {
		reason string
		of     Owner
		kind   string
		has    string
		going  bool
		self   bool
	}{
		"Above":     {"that one declares it", release, "Kustomization", "x_r_helm.toolkit.fluxcd.io_HelmRelease", true, true},
		"Below":     {"that one waits for nobody", release, "Kustomization", "x_c__ConfigMap", true, false},
		"Other":     {"it is another one's", release, "Kustomization", "y_r_helm.toolkit.fluxcd.io_HelmRelease", true, false},
		"Stays":     {"it is to go first", release, "Kustomization", "x_r_helm.toolkit.fluxcd.io_HelmRelease", false, false},
		"Unread":    {"nobody knows", release, "Kustomization", "r", true, false},
		"Release":   {"its Kustomization waits for it", apps, "HelmRelease", "flux-system_apps_kustomize.toolkit.fluxcd.io_Kustomization", true, false},
		"Otherwise": {"so does one of another", apps, "Kustomization", "flux-system_apps_kustomize.toolkit.fluxcd.io_Kustomization", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			a.owner = tc.of
			u := anObject(tc.kind, "sync", &tc.of)
			s.put(u, func(u *unstructured.Unstructured) {
				if tc.going {
					u.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
				}
				u.Object["status"] = map[string]any{"inventory": map[string]any{"entries": []any{map[string]any{"id": tc.has, "v": "v1"}}}}
			})
			live, _, _ := a.Looks(nil, false)(t.Context(), inventory.Of(u))
			if live.State != inventory.Present || live.Deleting != tc.going || live.Self != tc.self || live.TakesDown(inventory.Of(u), time.Now()) == tc.self {
				t.Errorf("%s: %+v", tc.reason, live)
			}
		})
	}
}

// TestKeysTogether: what is judged together costs one list of each kind, and what a person is asked about anyway
// no look at the owners of Clusters (read 410).
func TestKeysTogether(t *testing.T) {
	const infra = "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSCluster\nmetadata: {namespace: x, labels: {cluster.x-k8s.io/cluster-name: c}, name: "
	const cluster = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {namespace: x, name: c, labels: {helm.toolkit.fluxcd.io/namespace: x, helm.toolkit.fluxcd.io/name: r}}"
	secret := func(name, annotations string) *unstructured.Unstructured {
		return parsed(t, "apiVersion: v1\nkind: Secret\nmetadata: {namespace: x, name: "+name+", annotations: "+annotations+"}")
	}
	for name, tc := range map[string]struct {
		reason, annotations string
		confirmed           bool
		releases            int
	}{
		"Unconfirmed": {"whether the Cluster goes with its HelmRelease does not matter", "{}", false, 0},
		"Confirmed":   {"it does", "{cascade.dev/deletion: confirmed}", false, 1},
		"WithOwner":   {"all of the owner is confirmed", "{}", true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			for _, u := range []*unstructured.Unstructured{parsed(t, infra+"a}"), parsed(t, infra+"b}"), parsed(t, cluster)} {
				s.put(u, nil)
			}
			keys, other := secret(clusterapi.AWSControllerSecret, tc.annotations), secret("password", tc.annotations)
			look := s.applier(t).Looks(nil, tc.confirmed)
			for _, u := range []*unstructured.Unstructured{keys, other} {
				s.put(u, apps.label)
				live, _, _ := look(t.Context(), inventory.Of(u))
				if live.State != inventory.Present || live.OfCluster != "" || (live.Credential != "") != (u == keys) {
					t.Errorf("%s: %s is %+v", tc.reason, u.GetName(), live)
				}
			}
			if got := [3]int{s.readOf["awsclusters"], s.readOf["clusters"], s.readOf["r"]}; got != [3]int{1, 1, tc.releases} {
				t.Errorf("%s: lists of AWSClusters and Clusters, reads of the HelmRelease: %v", tc.reason, got)
			}
		})
	}
}

// TestKeysOfNamespaces: with rights for some namespaces only, what is in each of them counts, whichever
// is looked at first (read 407).
func TestKeysOfNamespaces(t *testing.T) {
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: "
	const user = "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: OpenStackCluster\nmetadata: {namespace: other, name: a}\nspec: {identityRef: {name: cloud-config}}"
	s := newServer()
	for gvk := range serverKinds {
		if clusterapi.IsGroup(gvk.Group) {
			s.refuses["GET "+s.path(gvk, "", "")] = apierrors.NewForbidden(schema.GroupResource{}, "", nil)
		}
	}
	s.put(parsed(t, user), nil)
	var entries []inventory.Entry
	for _, text := range []string{secret + "{namespace: x, name: password}", secret + "{namespace: other, name: cloud-config}", secret + "{namespace: other, name: password}"} {
		s.put(parsed(t, text), apps.label)
		entries = append(entries, inventory.Of(parsed(t, text)))
	}
	a, k := s.applier(t), &lookups{}
	for i, want := range []string{"", "a", ""} {
		if live, _ := a.examine(t.Context(), entries[i], entries, k); live.State != inventory.Present || live.OfCluster != want {
			t.Errorf("%s is of Cluster %q, %s, want %q", entries[i], live.OfCluster, live.Problem, want)
		}
	}
	if len(k.users) != 1 {
		t.Errorf("%d users were found, want each once", len(k.users))
	}
}

// inX is an object in the namespace of anObject, if its kind has namespaces and it says none.
func inX(u *unstructured.Unstructured) *unstructured.Unstructured {
	if u.GetNamespace() == "" && serverKinds[u.GroupVersionKind()].Name() == meta.RESTScopeNameNamespace {
		u.SetNamespace("x")
	}
	return u
}

// aks is a control plane of AKS, of a ManagedCluster with such annotations.
func aks(annotations string) string {
	return "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: AzureASOManagedControlPlane\nmetadata: {name: a}\n" +
		"spec: {resources: [{apiVersion: containerservice.azure.com/v1api20240901, kind: ManagedCluster, metadata: {name: a, annotations: " + annotations + "}}]}"
}
