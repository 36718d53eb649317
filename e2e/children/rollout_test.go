package children

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// pins is a fleet of two clusters with one layer each of which a test says, as the
// reconciler of Rollouts does, at which revision they may have it.
type pins struct {
	*fleet
	planes map[string]*plane
	// commits that the source had, as revisions.
	commits []string
}

// TestRolloutPins: a child has the revision that it may have of a layer, and of an object
// that a layer brings, and nothing newer, whatever the source has and whoever restarts.
func TestRolloutPins(t *testing.T) {
	scenario.Alongside(t)
	h := startHub(t, "v1beta2", "--observe-interval", observeInterval.String())
	x := &pins{fleet: h.fleet(t, "pins", map[string]string{"app/note.yaml": noteNamed("note", "at", "one")}), planes: map[string]*plane{}}
	x.commits = append(x.commits, x.head(t))
	for _, name := range []string{"a", "b"} {
		x.planes[name] = h.plane(t, "pins-"+name)
	}
	x.served(t)
	x.define(t, "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata: {name: app}\nspec:\n  clusterSelector: {matchExpressions: [{key: cluster, operator: Exists}]}\n"+
		"  sourceRef: {kind: GitRepository, name: fleet}\n  path: ./app\n  interval: 24h\n")
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"NothingBeforeAPin", x.nothingBeforeAPin},
		{"EachHasItsOwn", x.eachHasItsOwn},
		{"ACommitMovesNobody", x.aCommitMovesNobody},
		{"ARestartMovesNobody", x.aRestartMovesNobody},
		{"ARebuiltParentKnows", x.aRebuiltParentKnows},
		{"LayerCountsThem", x.layerCountsThem},
		{"ACommitThatIsNowhere", x.aCommitThatIsNowhere},
		{"TwoRollouts", x.twoRollouts},
		{"MovedObjectStays", x.movedObjectStays},
		{"ObjectInOneChild", x.objectInOneChild},
		{"DigestInOneChild", x.digestInOneChild},
		{"ChartVersionInOneChild", x.chartVersionInOneChild},
		{"WithoutRolloutAllFollow", x.withoutRolloutAllFollow},
	} {
		if !t.Run(part.name, part.run) {
			return
		}
	}
}

// head is the revision that the source has.
func (x *pins) head(t *testing.T) string {
	t.Helper()
	revision := ""
	scenario.Eventually(t, scenario.Converge, "the source is fetched", func(ctx context.Context) error {
		repository := &sourcev1.GitRepository{}
		if err := x.client.Get(ctx, client.ObjectKey{Namespace: x.name, Name: "fleet"}, repository); err != nil {
			return err
		}
		if repository.Status.Artifact == nil {
			return fmt.Errorf("it has no artifact")
		}
		revision = repository.Status.Artifact.Revision
		return nil
	})
	return revision
}

// next commits a value of the note, with other files, and waits until the source has it.
func (x *pins) next(t *testing.T, at string, more ...string) {
	t.Helper()
	files := map[string]string{"app/note.yaml": noteNamed("note", "at", at)}
	for i := 0; i < len(more); i += 2 {
		files[more[i]] = more[i+1]
	}
	sha := x.commit(t, files)
	scenario.Eventually(t, scenario.Converge, "the source has "+at, func(ctx context.Context) error {
		if head := x.head(t); !strings.HasSuffix(head, sha) {
			return fmt.Errorf("it has %s", head)
		}
		return nil
	})
	x.commits = append(x.commits, "main@sha1:"+sha)
}

// served waits until Rollouts are.
func (x *pins) served(t *testing.T) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "Rollouts are served", func(ctx context.Context) error {
		return x.client.List(ctx, &v1alpha1.RolloutList{})
	})
}

// rollout defines one that moves something, and whose window never opens: nobody but the test
// decides about it.
func (x *pins) rollout(t *testing.T, name, moves string) {
	t.Helper()
	x.define(t, "apiVersion: cascade.dev/v1alpha1\nkind: Rollout\nmetadata: {name: "+name+"}\nspec:\n  moves: "+moves+"\n  window: {cron: \"not a time\", duration: 1h}\n  waves: [{name: all}]\n")
}

// pin lets a child have revisions of Rollouts, in place of all that it might have: a name and
// a revision after the other.
func (x *pins) pin(t *testing.T, child string, pins ...string) {
	t.Helper()
	var list []any
	for i := 0; i < len(pins); i += 2 {
		list = append(list, map[string]any{"name": pins[i], "revision": pins[i+1], "run": 1, "result": "Updating", "since": metav1.Now().UTC().Format("2006-01-02T15:04:05Z")})
	}
	c := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: x.name, Name: child}}
	u := object("cascade.dev/v1alpha1", "Child", c.Namespace, c.Name)
	if err := x.client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
		t.Fatal(err)
	}
	x.patchStatus(t, u, map[string]any{"rollouts": list})
}

// at waits until a child has a layer at a revision, ready or not.
func (x *pins) at(t *testing.T, child, revision string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, child+" is at "+revision, func(ctx context.Context) error {
		c, err := x.child(ctx, child)
		if err != nil {
			return err
		}
		for _, l := range c.Status.Layers {
			if l.Name == "app" && l.Ready && l.Revision == revision {
				return nil
			}
		}
		return fmt.Errorf("layers are %+v", c.Status.Layers)
	})
}

func (x *pins) nothingBeforeAPin(t *testing.T) {
	x.rollout(t, "app", `{layerRef: {name: app}}`)
	for name, p := range x.planes {
		x.declare(t, name)
		x.report(t, name, initialized)
		x.handOver(t, name, p.issue(t).kubeconfig)
		x.says(t, name, v1alpha1.SeededCondition, v1alpha1.ReasonRolloutPending, "Rollout app")
		x.reconciled(t, name)
		p.hasNot(t, "note")
	}
}

func (x *pins) eachHasItsOwn(t *testing.T) {
	x.next(t, "two")
	x.pin(t, "a", "app", x.commits[0])
	x.pin(t, "b", "app", x.commits[1])
	for name, want := range map[string]string{"a": "one", "b": "two"} {
		x.planes[name].has(t, "note", "at", want)
	}
	x.at(t, "a", x.commits[0])
	x.at(t, "b", x.commits[1])
}

// still fails the test unless both children keep what they have, by the audit log.
func (x *pins) still(t *testing.T, meanwhile func()) {
	t.Helper()
	from := map[string]int64{}
	for name, p := range x.planes {
		x.reconciled(t, name)
		from[name] = p.now(t)
	}
	meanwhile()
	for name, p := range x.planes {
		x.reconciled(t, name)
		p.parentWrote(t, from[name])
	}
	for name, want := range map[string]string{"a": "one", "b": "two"} {
		x.planes[name].has(t, "note", "at", want)
	}
}

func (x *pins) aCommitMovesNobody(t *testing.T) {
	x.still(t, func() { x.next(t, "three") })
}

func (x *pins) aRestartMovesNobody(t *testing.T) {
	x.still(t, func() {
		x.agent.Kill()
		x.startAgent(t)
	})
	x.at(t, "a", x.commits[0])
	x.at(t, "b", x.commits[1])
	// It has the older revisions again, and goes from the one to the other.
	x.pin(t, "a", "app", x.commits[1])
	x.planes["a"].has(t, "note", "at", "two")
	x.pin(t, "a", "app", x.commits[0])
	x.planes["a"].has(t, "note", "at", "one")
	x.at(t, "a", x.commits[0])
}

// aRebuiltParentKnows: what a child has is in the child, so that a parent whose Children say
// nothing finds it there, and writes nothing while it may not.
func (x *pins) aRebuiltParentKnows(t *testing.T) {
	x.still(t, func() {
		x.agent.Kill()
		for name := range x.planes {
			x.patchStatus(t, object("cascade.dev/v1alpha1", "Child", x.name, name), map[string]any{"layers": nil, "rollouts": nil, "conditions": nil})
		}
		x.startAgent(t)
		for name, n := range map[string]int{"a": 0, "b": 1} {
			child := x.says(t, name, v1alpha1.SeededCondition, v1alpha1.ReasonRolloutPending)
			if l := child.Status.Layers[0]; l.Revision != x.commits[n] || l.LastAttemptedRevision != x.commits[n] || l.Digest == "" {
				t.Errorf("%s has %+v, want revision %s", name, l, x.commits[n])
			}
			x.pin(t, name, "app", x.commits[n])
			x.at(t, name, x.commits[n])
		}
	})
}

// movedObjectStays: a commit moves an object to a layer that does not have the commit yet,
// from one that has. It is never gone.
func (x *pins) movedObjectStays(t *testing.T) {
	x.next(t, "three", "free/moves.yaml", noteNamed("moves", "by", "free"), "free/stays.yaml", noteNamed("stays", "by", "free"))
	x.layer(t, "free", "b", "prune: true", "interval: 24h")
	b := x.planes["b"]
	b.has(t, "moves", "by", "free")
	x.next(t, "three", "free/moves.yaml", "", "app/moves.yaml", noteNamed("moves", "by", "app"))
	from := b.now(t)
	x.says(t, "b", v1alpha1.SeededCondition, v1alpha1.ReasonHandOverPending, "moves")
	b.has(t, "moves", "by", "free")
	x.pin(t, "b", "app", x.newest())
	b.has(t, "moves", "by", "app")
	x.ready(t, "b", "")
	for _, e := range b.byParent(t, from) {
		if e.Verb == "delete" && e.ObjectRef.Name == "moves" {
			t.Errorf("it was deleted: %s", e.RequestURI)
		}
	}
	x.patch(t, layerNamed(x.fleet, "free"), map[string]any{"spec": map[string]any{"suspend": true}})
	if err := x.client.Delete(t.Context(), layerNamed(x.fleet, "free")); err != nil {
		t.Fatal(err)
	}
}

func (x *pins) newest() string { return x.commits[len(x.commits)-1] }

func (x *pins) layerCountsThem(t *testing.T) {
	r := object("cascade.dev/v1alpha1", "Rollout", x.name, "app")
	x.patchStatus(t, r, map[string]any{"candidate": map[string]any{"revision": x.commits[1]}})
	scenario.Eventually(t, scenario.Converge, "the Layer says who waits", func(ctx context.Context) error {
		layer := layerNamed(x.fleet, "app")
		if err := x.client.Get(ctx, client.ObjectKeyFromObject(layer), layer); err != nil {
			return err
		}
		c := meta.FindStatusCondition(layer.Status.Conditions, v1alpha1.ReadyCondition)
		if c == nil || c.Reason != v1alpha1.ReasonRolloutPending || c.Message != "1 of 2 clusters wait for Rollout app" ||
			layer.Status.Revision != x.commits[1] || layer.Status.Children.Current != 1 || layer.Status.Children.Waiting != 1 {
			return fmt.Errorf("it is at %s, %+v: %s", layer.Status.Revision, layer.Status.Children, scenario.Summary(layer.Status.Conditions))
		}
		return nil
	})
}

// aCommitThatIsNowhere: a child stays as it is, and says why, until it may have another one.
func (x *pins) aCommitThatIsNowhere(t *testing.T) {
	x.still(t, func() {
		x.pin(t, "a", "app", "main@sha1:"+strings.Repeat("0", 39)+"1")
		x.tells(t, "a", "cannot fetch revision")
	})
	x.pin(t, "a", "app", x.commits[0])
	x.tells(t, "a", "")
}

// tells waits until a child is ready, and its layer has a message with these words, or none.
func (x *pins) tells(t *testing.T, child, words string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, child+" says "+words, func(ctx context.Context) error {
		c, err := x.child(ctx, child)
		if err != nil {
			return err
		}
		l := c.Status.Layers[0]
		if !l.Ready || !strings.Contains(l.Message, words) || (words == "") != (l.Message == "") {
			return fmt.Errorf("it is ready %t: %q", l.Ready, l.Message)
		}
		return nil
	})
}

func (x *pins) twoRollouts(t *testing.T) {
	x.still(t, func() {
		x.rollout(t, "also", `{layerRef: {name: app}}`)
		x.pin(t, "a", "app", x.commits[2], "also", x.commits[2])
		x.tells(t, "a", "Rollouts also and app")
	})
	x.pin(t, "a", "app", x.commits[0])
	if err := x.client.Delete(t.Context(), object("cascade.dev/v1alpha1", "Rollout", x.name, "also")); err != nil {
		t.Fatal(err)
	}
	x.tells(t, "a", "")
}

// objectInOneChild: a source that the layer brings is pinned in the children, and the pin of
// one moves in that one only.
func (x *pins) objectInOneChild(t *testing.T) {
	x.kind(t, "gitrepositories.source.toolkit.fluxcd.io")
	x.next(t, "four", "app/source.yaml",
		"apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: services, namespace: default}\nspec: {url: \"https://example.com/services\", ref: {branch: main, tag: v1}, interval: 1h}\n")
	x.rollout(t, "services", `{source: {kind: GitRepository, name: services, namespace: default}}
  sourceRef: {kind: GitRepository, name: fleet}`)
	four, commit := x.newest(), func(n int) string { return strings.Repeat(fmt.Sprint(n), 40) }
	x.pin(t, "a", "app", four)
	x.tells(t, "a", "Rollout services")
	x.planes["a"].has(t, "note", "at", "one")
	x.pin(t, "a", "app", four, "services", "main@sha1:"+commit(1))
	x.pin(t, "b", "app", four, "services", "main@sha1:"+commit(1))
	for name := range x.planes {
		x.services(t, name, commit(1))
		x.at(t, name, four)
	}
	x.reconciled(t, "b")
	from := x.planes["b"].now(t)
	x.pin(t, "a", "app", four, "services", "main@sha1:"+commit(2))
	x.services(t, "a", commit(2))
	x.reconciled(t, "b")
	x.planes["b"].parentWrote(t, from)
	x.services(t, "b", commit(1))
}

// kind installs a definition in the clusters.
func (x *pins) kind(t *testing.T, name string) {
	t.Helper()
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		if crd.GetName() != name {
			continue
		}
		for _, p := range x.planes {
			if err := p.client.Create(t.Context(), crd.DeepCopy()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// pinnedObject is an object that a layer brings, of a kind that has its revision in a field.
type pinnedObject struct {
	*unstructured.Unstructured
	// definition of its kind, and the kind of a source that tells revisions for it.
	definition, source string
	// field has the revision; at is what it has in Git.
	field []string
	at    any
	// revisions, and what the field has at each.
	revisions [2]string
	pinned    [2]any
}

// image is an OCIRepository that follows a range of versions.
func image() pinnedObject {
	digest := func(n int) string { return "sha256:" + strings.Repeat(strconv.Itoa(n), 64) }
	o := pinnedObject{
		Unstructured: object("source.toolkit.fluxcd.io/v1", "OCIRepository", "default", "image"), definition: "ocirepositories.source.toolkit.fluxcd.io", source: "OCIRepository",
		field: []string{"spec", "ref"}, at: map[string]any{"semver": "1.x"},
		revisions: [2]string{"1.2.0@" + digest(1), "1.3.0@" + digest(2)}, pinned: [2]any{map[string]any{"digest": digest(1)}, map[string]any{"digest": digest(2)}},
	}
	o.Object["spec"] = map[string]any{"url": "oci://registry.example.com/image", "interval": "1h", "ref": o.at}
	return o
}

// release is a HelmRelease that follows a range of versions.
func release() pinnedObject {
	o := pinnedObject{
		Unstructured: object("helm.toolkit.fluxcd.io/v2", "HelmRelease", "default", "release"), definition: "helmreleases.helm.toolkit.fluxcd.io", source: "HelmChart",
		field: []string{"spec", "chart", "spec", "version"}, at: "1.x", revisions: [2]string{"1.2.0", "1.3.0"}, pinned: [2]any{"1.2.0", "1.3.0"},
	}
	o.Object["spec"] = map[string]any{"interval": "1h", "chart": map[string]any{"spec": map[string]any{
		"chart": "app", "version": o.at, "sourceRef": map[string]any{"kind": "HelmRepository", "name": "charts"},
	}}}
	return o
}

// digestInOneChild: an OCIRepository is pinned by digest.
func (x *pins) digestInOneChild(t *testing.T) { x.inOneChild(t, image()) }

// chartVersionInOneChild: a HelmRelease is pinned to a version of its chart.
func (x *pins) chartVersionInOneChild(t *testing.T) { x.inOneChild(t, release()) }

// inOneChild: no child has the object before it has a pin, each has it at its own, and the pin
// of one moves in that one only.
func (x *pins) inOneChild(t *testing.T, o pinnedObject) {
	text, err := yaml.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	x.kind(t, o.definition)
	name := o.GetName()
	x.next(t, name, "app/"+name+".yaml", string(text))
	commit := x.newest()
	x.rollout(t, name, fmt.Sprintf("{source: {kind: %s, name: %s, namespace: default}}\n  sourceRef: {kind: %s, name: %s}", o.GetKind(), name, o.source, name))
	x.also(t, "a", "app", commit)
	x.tells(t, "a", "Rollout "+name)
	if err := x.planes["a"].client.Get(t.Context(), client.ObjectKeyFromObject(o.Unstructured), o.DeepCopy()); !apierrors.IsNotFound(err) {
		t.Errorf("%s is there before it has a pin: %v", name, err)
	}
	x.also(t, "a", name, o.revisions[0])
	x.also(t, "b", "app", commit)
	x.also(t, "b", name, o.revisions[0])
	for child := range x.planes {
		x.fieldOf(t, child, o, o.pinned[0])
		x.at(t, child, commit)
	}
	x.reconciled(t, "b")
	from := x.planes["b"].now(t)
	x.also(t, "a", name, o.revisions[1])
	x.fieldOf(t, "a", o, o.pinned[1])
	x.reconciled(t, "b")
	x.planes["b"].parentWrote(t, from)
	x.fieldOf(t, "b", o, o.pinned[0])
}

// also lets a child have a revision of one more Rollout, or another one of it.
func (x *pins) also(t *testing.T, child, name, revision string) {
	t.Helper()
	c, err := x.child(t.Context(), child)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{name, revision}
	for _, r := range c.Status.Rollouts {
		if r.Name != name {
			list = append(list, r.Name, r.Revision)
		}
	}
	x.pin(t, child, list...)
}

// fieldOf waits until the field of an object in a child has a value.
func (x *pins) fieldOf(t *testing.T, child string, o pinnedObject, want any) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s of %s is at %v", o.GetName(), child, want), func(ctx context.Context) error {
		u := object(o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName())
		if err := x.planes[child].client.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
			return err
		}
		if got, _, err := unstructured.NestedFieldNoCopy(u.Object, o.field...); err != nil || !reflect.DeepEqual(got, want) {
			return fmt.Errorf("it is at %v, %v", got, err)
		}
		return nil
	})
}

// services waits until the source in a child is pinned to a commit, of no tag; to none if it
// is empty.
func (x *pins) services(t *testing.T, child, commit string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "services of "+child+" is at "+commit, func(ctx context.Context) error {
		repository := &sourcev1.GitRepository{}
		if err := x.planes[child].client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "services"}, repository); err != nil {
			return err
		}
		want := sourcev1.GitRepositoryRef{Branch: "main", Commit: commit}
		if commit == "" {
			want.Tag = "v1"
		}
		if *repository.Spec.Reference != want {
			return fmt.Errorf("it is %+v", *repository.Spec.Reference)
		}
		return nil
	})
}

func (x *pins) withoutRolloutAllFollow(t *testing.T) {
	if child, err := x.child(t.Context(), "a"); err != nil || len(child.Status.Rollouts) != 4 {
		t.Errorf("the pushes took away what others write: %v, %v", child.Status.Rollouts, err)
	}
	x.next(t, "five")
	for _, name := range []string{"app", "services", "image", "release"} {
		if err := x.client.Delete(t.Context(), object("cascade.dev/v1alpha1", "Rollout", x.name, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, p := range x.planes {
		p.has(t, "note", "at", "five")
		x.services(t, name, "")
		for _, o := range []pinnedObject{image(), release()} {
			x.fieldOf(t, name, o, o.at)
		}
		x.at(t, name, x.newest())
	}
}

func (x *pins) patchStatus(t *testing.T, o client.Object, status map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.client.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, text)); err != nil {
		t.Fatalf("cannot write status of %s: %v", o.GetName(), err)
	}
}
