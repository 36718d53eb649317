package children

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// upgrade is a fleet that an earlier version seeded: one child to which the parent pushes
// several layers, and two with agents, of the earlier version and of this one.
type upgrade struct {
	*fleet
	earlier             scenario.Release
	plain, older, newer *plane
}

// TestUpgrade has a fleet that was seeded by the program of an earlier commit, which is
// taken over by this one, goes back for a while, and forth again.
func TestUpgrade(t *testing.T) {
	scenario.Alongside(t)
	u := startUpgrade(t)
	steps(t,
		step{"SeededByTheEarlierVersion", u.seeded},
		step{"NothingIsWrittenAtTheStart", u.started},
		step{"RecordsAreMigrated", u.migrated},
		step{"AgentsOfBothVersionsReport", u.reports},
		step{"AgentsAreUpgraded", u.agents},
		step{"CommitGoesThrough", u.commits},
		step{"ObjectsMoveBetweenLayers", u.moves},
		step{"LayerIsReleased", u.released},
		step{"BackAndForth", u.backAndForth},
	)
}

func startUpgrade(t *testing.T) *upgrade {
	t.Helper()
	u := &upgrade{earlier: scenario.Earlier(t, scenario.BeforeRecords)}
	h := openHub(t, "--observe-interval", observeInterval.String())
	h.program = u.earlier.Dir + "/cascade"
	h.install(t, u.earlier.CRDs, "v1beta2")
	h.startAgent(t)
	files := map[string]string{
		"gone/note.yaml": noteNamed("gone-0") + "---\n" + noteNamed("gone-1"),
		"left/note.yaml": noteNamed("stays") + "---\n" + noteNamed("moves-0") + "---\n" + noteNamed("moves-1"),
		"own/note.yaml":  noteNamed("own", "version", "1"), "right/note.yaml": noteNamed("other"),
		"older/sync.yaml": fmt.Sprintf(armed, h.Git.HTTPURL("upgrade")), "newer/sync.yaml": fmt.Sprintf(armed, h.Git.HTTPURL("upgrade")),
	}
	for i := range 12 {
		files[fmt.Sprintf("app/%02d.yaml", i)] = noteNamed(fmt.Sprintf("app-%02d", i), "version", "1")
	}
	u.fleet = h.fleet(t, "upgrade", files)
	username, password := h.Git.Login()
	u.define(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: for-child}, stringData: {username: %q, password: %q}}", username, password))
	u.plain = h.plane(t, "plain")
	u.older, u.newer = h.plane(t, "older", "--audit-reads", "--token-cache=0s"), h.plane(t, "newer", "--audit-reads", "--token-cache=0s")
	if err := u.older.StartNode(t.Context(), u.earlier.Dir); err != nil {
		t.Fatal(err)
	}
	if err := u.newer.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *upgrade) planes() map[string]*plane {
	return map[string]*plane{"plain": u.plain, "older": u.older, "newer": u.newer}
}

// restart ends the agent of the hub and starts that of a program.
func (u *upgrade) restart(t *testing.T, program string) {
	t.Helper()
	u.agent.Kill()
	u.program = program
	u.startAgent(t)
}

// layers of the child without an agent.
var plainLayers = []string{"app", "gone", "left", "right"}

func (u *upgrade) seeded(t *testing.T) {
	for _, name := range plainLayers {
		policy := "Orphan"
		if name == "gone" {
			policy = "Delete"
		}
		u.layer(t, name, "plain", "deletionPolicy: "+policy)
	}
	for _, name := range []string{"older", "newer"} {
		u.layer(t, name, name, "agent: {args: [--observe-interval=1s]}", "credentials: [{name: git-auth, secretRef: {name: for-child}}]", "wait: true")
	}
	for _, name := range slices.Sorted(maps.Keys(u.planes())) {
		u.declare(t, name)
		u.fleet.report(t, name, initialized)
		u.handOver(t, name, u.planes()[name].issue(t).kubeconfig)
	}
	for name, p := range u.planes() {
		child := u.ready(t, name, "")
		if len(child.Status.Layers[0].Inventory) == 0 {
			t.Fatalf("Child %s has no inventory: this is not the version that the test is about", name)
		}
		if earlier := p.earlierRecords(t); len(earlier) != len(child.Status.Layers) {
			t.Fatalf("%s has the records %v", name, earlier)
		}
	}
	// Also by the agent of this version, to a parent of the earlier one.
	u.synced(t, "1")
}

// synced waits until the children's own agents have a version of what they sync, and the
// parent knows it from their reports.
func (u *upgrade) synced(t *testing.T, version string) {
	t.Helper()
	u.reported(t, version, u.older, u.newer)
}

// reported waits until the agents of children have a version of what they sync, and the
// parent knows it from their reports.
func (f *fleet) reported(t *testing.T, version string, children ...*plane) {
	t.Helper()
	for _, p := range children {
		p.has(t, "own", "version", version)
		scenario.Eventually(t, scenario.Converge, p.Name+" reports", func(ctx context.Context) error {
			child, err := f.child(ctx, p.Name)
			if err != nil {
				return err
			}
			source := object("source.toolkit.fluxcd.io/v1", "GitRepository", v1alpha1.AgentNamespace, "fleet")
			if err := p.client.Get(ctx, client.ObjectKeyFromObject(source), source); err != nil {
				return err
			}
			revision, _, _ := unstructured.NestedString(source.Object, "status", "artifact", "revision")
			if r := child.Status.Report; r == nil || !r.Ready || r.Objects != 1 || r.Revision != revision {
				return fmt.Errorf("the report is %+v, the revision %s", r, revision)
			}
			return nil
		})
	}
}

// started: a start of this version, with its definitions, writes nothing to any child.
func (u *upgrade) started(t *testing.T) {
	// What an agent is made of belongs to the version of the parent; here it is told to
	// wait.
	for _, name := range []string{"older", "newer"} {
		u.patch(t, layerNamed(u.fleet, name), map[string]any{"spec": map[string]any{"suspend": true}})
	}
	u.agent.Kill()
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		u.apply(t, crd)
	}
	from := map[string]int64{}
	for name, p := range u.planes() {
		from[name] = p.now(t)
	}
	u.program = ""
	u.startAgent(t)
	for name, p := range u.planes() {
		u.reconciled(t, name)
		p.parentWrote(t, from[name])
	}
	u.ready(t, "plain", "")
}

// migrated: when layers are compared, their records move, and nothing else changes. A
// comparison, of any version, applies each object as it is declared, which changes
// nothing if that is how it stands.
func (u *upgrade) migrated(t *testing.T) {
	before, from := u.plain.notes(t), u.plain.now(t)
	u.compare(t)
	if after := u.plain.notes(t); !maps.Equal(before, after) {
		t.Errorf("there were %v, there are %v", before, after)
	}
	if earlier := u.plain.earlierRecords(t); len(earlier) > 0 {
		t.Errorf("the records of the earlier version are there: %v", earlier)
	}
	child := u.child1(t, "plain")
	for _, l := range child.Status.Layers {
		r, err := u.plain.record(t.Context(), u.name, l.Name)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Inventory) == 0 || !r.InPlace(l.Digest) || r.Parent.Holder == "" || r.Cluster.Name != "plain" {
			t.Errorf("the record of layer %s is %+v", l.Name, r)
		}
	}
	var other []string
	for _, e := range u.plain.byParent(t, from) {
		of := e.ObjectRef
		switch {
		case !e.Writes() || strings.Contains(e.RequestURI, "dryRun=All"):
		case of.Resource == "configmaps" && before[of.Name] != version{} && e.Verb == "patch" && strings.Contains(e.RequestURI, "fieldManager=cascade-seed&"):
		case of.Resource == "configmaps" && of.Namespace == v1alpha1.AgentNamespace && (of.Name == v1alpha1.SeedConfigMap || strings.HasPrefix(of.Name, v1alpha1.RecordPrefix)):
		case strings.HasPrefix(of.Name, v1alpha1.ParentServiceAccount): // its account, and the right to write records
		case of.Resource == "namespaces" && of.Name == v1alpha1.AgentNamespace: // that of the account
		default:
			other = append(other, e.Verb+" "+e.RequestURI)
		}
	}
	if len(other) > 0 {
		t.Errorf("besides records and rights there was written: %v", other)
	}
}

// compare has the layers of the child without an agent compared with it, and waits until
// their records are in the child alone.
func (u *upgrade) compare(t *testing.T) {
	t.Helper()
	child := u.child1(t, "plain")
	requested := map[string]string{}
	for _, l := range child.Status.Layers {
		requested[l.Name] = u.request(t, layerNamed(u.fleet, l.Name))
	}
	scenario.Eventually(t, scenario.Converge, "layers are compared", func(ctx context.Context) error {
		child, err := u.child(ctx, "plain")
		if err != nil {
			return err
		}
		for _, l := range child.Status.Layers {
			if len(l.Inventory) > 0 || !l.Ready || l.LastHandledReconcileAt != requested[l.Name] {
				return fmt.Errorf("layer %s has %d objects in the Child, is ready %t (%s) and handled %q", l.Name, len(l.Inventory), l.Ready, l.Reason, l.LastHandledReconcileAt)
			}
		}
		return nil
	})
	u.ready(t, "plain", "")
}

// reports: agents of both versions work below a parent of this one.
func (u *upgrade) reports(t *testing.T) {
	u.commit(t, map[string]string{"own/note.yaml": noteNamed("own", "version", "2")})
	for _, p := range []*plane{u.older, u.newer} {
		u.fetchBelow(t, p)
	}
	u.synced(t, "2")
}

// fetchBelow has the source of a child fetched.
func (f *fleet) fetchBelow(t *testing.T, p *plane) {
	t.Helper()
	source := object("source.toolkit.fluxcd.io/v1", "GitRepository", v1alpha1.AgentNamespace, "fleet")
	below := &fleet{hub: &hub{client: watching(t, p)}}
	below.request(t, source)
}

func watching(t *testing.T, p *plane) client.WithWatch {
	t.Helper()
	c, err := p.Watcher()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// syncs are the source and the Kustomization of a child, with what changes when somebody
// writes their spec or creates them again.
func (p *plane) syncs(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, u := range []*unstructured.Unstructured{
		object("source.toolkit.fluxcd.io/v1", "GitRepository", v1alpha1.AgentNamespace, "fleet"), object("kustomize.toolkit.fluxcd.io/v1", "Kustomization", v1alpha1.AgentNamespace, "own"),
	} {
		if err := p.client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
			t.Fatal(err)
		}
		found = append(found, fmt.Sprintf("%s %s of generation %d", u.GetKind(), u.GetUID(), u.GetGeneration()))
	}
	return found
}

// agents: a layer with an agent brings what this version's agent is made of, and leaves
// alone what Git declares for the child.
func (u *upgrade) agents(t *testing.T) {
	from := map[string]int64{"older": u.older.now(t), "newer": u.newer.now(t)}
	before := map[string][]string{"older": u.older.syncs(t), "newer": u.newer.syncs(t)}
	for name, p := range map[string]*plane{"older": u.older, "newer": u.newer} {
		u.patch(t, layerNamed(u.fleet, name), map[string]any{"spec": map[string]any{"suspend": nil}})
		u.request(t, layerNamed(u.fleet, name))
		scenario.Eventually(t, scenario.BringUp, name+" has the agent of this version", func(ctx context.Context) error {
			child, err := u.child(ctx, name)
			if err != nil {
				return err
			}
			if l := child.Status.Layers[0]; len(l.Inventory) > 0 || !l.Ready || !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
				return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
			}
			return nil
		})
		for _, e := range p.byParent(t, from[name]) {
			if e.Verb == "delete" && e.ObjectRef.Name != v1alpha1.SeedConfigMap {
				t.Errorf("in %s there was deleted %s", name, e.RequestURI)
			}
		}
		if after := p.syncs(t); !slices.Equal(before[name], after) {
			t.Errorf("%s had %v, it has %v", name, before[name], after)
		}
		if earlier := p.earlierRecords(t); len(earlier) > 0 {
			t.Errorf("the records of the earlier version are in %s: %v", name, earlier)
		}
	}
	u.synced(t, "2")
}

func (u *upgrade) commits(t *testing.T) {
	before := u.plain.notes(t)
	sha := u.commit(t, map[string]string{"app/03.yaml": noteNamed("app-03", "version", "2")})
	u.plain.has(t, "app-03", "version", "2")
	u.ready(t, "plain", sha)
	after := u.plain.notes(t)
	for name := range before {
		if (name == "app-03") != (before[name].version != after[name].version) || before[name].uid != after[name].uid {
			t.Errorf("%s was %+v and is %+v", name, before[name], after[name])
		}
	}
}

// moves: two objects go from one layer to another in one commit.
func (u *upgrade) moves(t *testing.T) {
	before, from := u.plain.notes(t), u.plain.now(t)
	sha := u.commit(t, map[string]string{
		"left/note.yaml":  noteNamed("stays"),
		"right/note.yaml": noteNamed("other") + "---\n" + noteNamed("moves-0") + "---\n" + noteNamed("moves-1"),
	})
	u.ready(t, "plain", sha)
	if left, right := len(u.plain.inventory(t, u.name, "left")), len(u.plain.inventory(t, u.name, "right")); left != 1 || right != 3 {
		t.Errorf("the layers have %d and %d objects on record", left, right)
	}
	after := u.plain.notes(t)
	for name := range before {
		if before[name].uid != after[name].uid {
			t.Errorf("%s was %+v and is %+v", name, before[name], after[name])
		}
	}
	for _, e := range u.plain.byParent(t, from) {
		if e.Verb == "delete" {
			t.Errorf("the parent deleted %s", e.RequestURI)
		}
	}
}

// released: what an earlier version applied is deleted as its layer says.
func (u *upgrade) released(t *testing.T) {
	if err := u.client.Delete(t.Context(), layerNamed(u.fleet, "gone")); err != nil {
		t.Fatal(err)
	}
	u.forgets(t, "plain", "gone")
	for name := range u.plain.notes(t) {
		if strings.HasPrefix(name, "gone") {
			t.Errorf("%s is there", name)
		}
	}
	if r, err := u.plain.record(t.Context(), u.name, "gone"); err != nil || r.Exists() {
		t.Errorf("its record is %+v: %v", r, err)
	}
}

// backAndForth: the earlier version applies a commit and leaves what that removes, as it
// knows nothing of the records in the child. This version finds both.
func (u *upgrade) backAndForth(t *testing.T) {
	u.restart(t, u.earlier.Dir+"/cascade")
	from := u.plain.now(t)
	u.commit(t, map[string]string{"app/00.yaml": "", "app/back.yaml": noteNamed("back", "version", "1"), "app/03.yaml": noteNamed("app-03", "version", "3")})
	u.plain.has(t, "back", "version", "1")
	u.plain.has(t, "app-03", "version", "3")
	scenario.Eventually(t, scenario.Converge, "the earlier version has written its records", func(context.Context) error {
		if earlier := u.plain.earlierRecords(t); len(earlier) == 0 {
			return fmt.Errorf("there are none")
		}
		return nil
	})
	for _, e := range u.plain.byParent(t, from) {
		if e.Verb == "delete" {
			t.Errorf("the earlier version deleted %s", e.RequestURI)
		}
	}
	u.agent.Kill()
	// What only the earlier version knows of is removed while nobody works.
	sha := u.push(t, map[string]string{"app/back.yaml": ""})
	u.program = ""
	u.startAgent(t)
	u.fleet.request(t, object("source.toolkit.fluxcd.io/v1", "GitRepository", u.name, "fleet"))
	u.fetched(t, sha)
	u.ready(t, "plain", sha)
	u.compare(t)
	there := u.plain.notes(t)
	for _, name := range []string{"app-00", "back"} {
		if _, ok := there[name]; ok {
			t.Errorf("%s is there, and nobody declares it", name)
		}
	}
	if len(there) != 15 {
		t.Errorf("there are %v", there)
	}
	if earlier := u.plain.earlierRecords(t); len(earlier) > 0 {
		t.Errorf("the records of the earlier version are there: %v", earlier)
	}
}

// version of an object.
type version struct{ uid, version string }

// notes are the ConfigMaps of namespace default that layers brought.
func (p *plane) notes(t *testing.T) map[string]version {
	t.Helper()
	list := &corev1.ConfigMapList{}
	if err := p.client.List(t.Context(), list, client.InNamespace(metav1.NamespaceDefault), client.HasLabels{v1alpha1.LayerLabelGroup + "/name"}); err != nil {
		t.Fatal(err)
	}
	found := map[string]version{}
	for _, cm := range list.Items {
		found[cm.Name] = version{string(cm.UID), cm.ResourceVersion}
	}
	return found
}

// earlierRecords are the keys of the records that earlier versions keep in a child.
func (p *plane) earlierRecords(t *testing.T) []string {
	t.Helper()
	cm := &corev1.ConfigMap{}
	err := p.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.SeedConfigMap}, cm)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(cm.Data))
}
