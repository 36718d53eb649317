package safety

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestHandOver: an object that some owner of the tier declares is not deleted by the one
// that had it before, whatever the new owner waits for.
func TestHandOver(t *testing.T) {
	scenario.Alongside(t)
	h := scenario.StartHelmTier(t)
	parts := scenario.PartsOf(t)
	defer parts.Wait()
	for _, tc := range handOvers {
		parts.Run(tc.name, func(t *testing.T) { tc.run(t, &handOver{HelmRow: h.GitRow(t, tc.files)}) })
	}
}

// handOver is a row whose Kustomization "root" declares the others.
type handOver struct {
	*scenario.HelmRow
	uids map[string]types.UID
}

// owner is the manifest of a Kustomization of path.
func owner(name, path, more string) string {
	return fmt.Sprintf(`apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: %s, namespace: $ns}
spec: {sourceRef: {kind: GitRepository, name: git}, path: ./%s, targetNamespace: $ns, prune: true, interval: 10m, retryInterval: 1s%s}
`, name, path, more)
}

// content is a ConfigMap without a namespace.
func content(name string) string { return scenario.ConfigMapWith(name, "", "{k: v}") }

// begin applies the first commit and remembers who the objects are.
func (h *handOver) begin(t *testing.T, owners ...string) {
	t.Helper()
	h.Kustomization(t, "root", "path: ./root")
	for _, name := range append(owners, "root") {
		h.Ready(t, name)
	}
	var err error
	if h.uids, err = h.objects(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// objects are the UIDs of the ConfigMaps.
func (h *handOver) objects(ctx context.Context) (map[string]types.UID, error) {
	list := &corev1.ConfigMapList{}
	if err := h.Client.List(ctx, list, client.InNamespace(h.Namespace)); err != nil {
		return nil, err
	}
	uids := map[string]types.UID{}
	for _, cm := range list.Items {
		if cm.Name != "kube-root-ca.crt" {
			uids[cm.Name] = cm.UID
		}
	}
	return uids, nil
}

// owned waits until the labels of an object name an owner, and its UID is the first.
func (h *handOver) owned(t *testing.T, name, owner string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("ConfigMap %s belongs to %s", name, owner), func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := h.Load(ctx, cm, h.Namespace, name); err != nil {
			return err
		}
		if by := cm.Labels["kustomize.toolkit.fluxcd.io/name"]; by != owner {
			return fmt.Errorf("it belongs to %q", by)
		}
		return nil
	})
	h.same(t, name)
}

// same checks that objects are those of the first commit.
func (h *handOver) same(t *testing.T, names ...string) {
	t.Helper()
	now, err := h.objects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if now[name] != h.uids[name] || now[name] == "" {
			t.Errorf("ConfigMap %s was %q and is %q", name, h.uids[name], now[name])
		}
	}
}

// awaits waits until an owner says that it keeps objects for another one.
func (h *handOver) awaits(t *testing.T, name, newOwner string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("Kustomization %s keeps something for %s", name, newOwner), func(ctx context.Context) error {
		k, err := h.Read(ctx, name)
		if err != nil {
			return err
		}
		c := apimeta.FindStatusCondition(k.Status.Conditions, v1alpha1.HandOverPendingCondition)
		if c == nil || c.Reason != v1alpha1.ReasonHandOverPending || !strings.Contains(c.Message, newOwner) {
			return fmt.Errorf("its conditions are: %s", scenario.Summary(k.Status.Conditions))
		}
		if held, known := v1alpha1.HeldOf(k); !known || held.HandOver == nil {
			return errors.New("no record of what it keeps")
		}
		return nil
	})
}

// settled waits until an owner keeps nothing for others.
func (h *handOver) settled(t *testing.T, name string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "Kustomization "+name+" keeps nothing for others", func(ctx context.Context) error {
		k, err := h.Read(ctx, name)
		if err != nil {
			return err
		}
		if _, held := v1alpha1.HeldOf(k); held || apimeta.FindStatusCondition(k.Status.Conditions, v1alpha1.HandOverPendingCondition) != nil {
			return fmt.Errorf("its conditions are: %s", scenario.Summary(k.Status.Conditions))
		}
		return nil
	})
}

// handOvers are rows. All of them begin with a Kustomization old that has object a.
var handOvers = []struct {
	name, reason string
	files        map[string]string
	run          func(*testing.T, *handOver)
}{
	{
		"Renamed", "a parent renames a Kustomization: same path, other name",
		map[string]string{"root/owners.yaml": owner("old", "app", ""), "app/a.yaml": content("a")},
		func(t *testing.T, h *handOver) {
			h.begin(t, "old")
			h.Commit(t, map[string]string{"root/owners.yaml": owner("new", "app", "")})
			h.Gone(t, &kustomizev1.Kustomization{}, "old")
			h.owned(t, "a", "new")
		},
	},
	{
		"RenamedSuspended", "the new one is suspended: the old one stays until it is resumed",
		map[string]string{"root/owners.yaml": owner("old", "app", ""), "app/a.yaml": content("a")},
		func(t *testing.T, h *handOver) {
			h.begin(t, "old")
			h.Commit(t, map[string]string{"root/owners.yaml": owner("new", "app", ", suspend: true")})
			h.awaits(t, "old", "Kustomization/"+h.Namespace+"/new")
			h.same(t, "a")
			h.Commit(t, map[string]string{"root/owners.yaml": owner("new", "app", ", suspend: false")})
			h.Gone(t, &kustomizev1.Kustomization{}, "old")
			h.owned(t, "a", "new")
		},
	},
	{
		"RenamedWaiting", "the new one waits for what never gets ready",
		map[string]string{"root/owners.yaml": owner("old", "app", ""), "app/a.yaml": content("a")},
		func(t *testing.T, h *handOver) {
			h.begin(t, "old")
			h.Commit(t, map[string]string{"root/owners.yaml": owner("new", "app", ", dependsOn: [{name: nowhere}]")})
			h.awaits(t, "old", "Kustomization/"+h.Namespace+"/new")
			h.same(t, "a")
			h.Commit(t, map[string]string{"root/owners.yaml": owner("new", "app", "")})
			h.Gone(t, &kustomizev1.Kustomization{}, "old")
			h.owned(t, "a", "new")
		},
	},
	{
		"RenamedNoSource", "the source of the new one comes later",
		map[string]string{"root/owners.yaml": owner("old", "app", ""), "app/a.yaml": content("a")},
		func(t *testing.T, h *handOver) {
			h.begin(t, "old")
			h.Commit(t, map[string]string{"root/owners.yaml": strings.Replace(owner("new", "app", ""), "name: git", "name: later", 1)})
			// It may declare the Kustomization old as well, for all that is known.
			h.awaits(t, "root", "Kustomization/"+h.Namespace+"/new")
			h.same(t, "a")
			h.Apply(t, h.GitRepository("later", h.Git.HTTPURL(h.Namespace)))
			h.Gone(t, &kustomizev1.Kustomization{}, "old")
			h.owned(t, "a", "new")
		},
	},
	{
		"MovedToDependant", "an object moves to one that waits for the owner it leaves",
		map[string]string{
			"root/owners.yaml": owner("old", "one", "") + "---\n" + owner("new", "two", ", dependsOn: [{name: old}]"),
			"one/a.yaml":       content("a"), "one/stays.yaml": content("stays"), "two/other.yaml": content("other"),
		},
		func(t *testing.T, h *handOver) {
			h.begin(t, "old", "new")
			h.Commit(t, map[string]string{"one/a.yaml": "", "two/a.yaml": content("a")})
			h.owned(t, "a", "new")
			h.settled(t, "old")
			h.same(t, "a", "stays", "other")
		},
	},
	{
		"MovedWithOwner", "a commit moves a directory's object and its Kustomization to another parent",
		map[string]string{
			"root/parents.yaml": owner("left", "left", "") + "---\n" + owner("right", "right", ", dependsOn: [{name: left}]"),
			"left/owner.yaml":   owner("old", "app", ""), "left/l.yaml": content("l"), "right/r.yaml": content("r"), "app/a.yaml": content("a"),
		},
		func(t *testing.T, h *handOver) {
			h.begin(t, "left", "right", "old")
			h.Commit(t, map[string]string{"left/owner.yaml": "", "right/owner.yaml": owner("new", "app", "")})
			h.Gone(t, &kustomizev1.Kustomization{}, "old")
			h.owned(t, "a", "new")
			h.same(t, "l", "r")
		},
	},
	{
		"SameNameOtherParent", "a Kustomization keeps its name and gets another parent",
		map[string]string{
			"root/parents.yaml": owner("left", "left", "") + "---\n" + owner("right", "right", ", dependsOn: [{name: left}]"),
			"left/owner.yaml":   owner("old", "app", ""), "left/l.yaml": content("l"), "right/r.yaml": content("r"), "app/a.yaml": content("a"),
		},
		func(t *testing.T, h *handOver) {
			h.begin(t, "left", "right", "old")
			before, err := h.Read(t.Context(), "old")
			if err != nil {
				t.Fatal(err)
			}
			h.Commit(t, map[string]string{"left/owner.yaml": "", "right/owner.yaml": owner("old", "app", "")})
			h.Ready(t, "right")
			h.settled(t, "left")
			after, err := h.Read(t.Context(), "old")
			if err != nil || after.UID != before.UID {
				t.Errorf("Kustomization old was %s and is %s, %v", before.UID, after.UID, err)
			}
			h.same(t, "a")
		},
	},
	{
		"Split", "one directory becomes three, of other owners",
		map[string]string{
			"root/owners.yaml": owner("old", "app", ""),
			"app/a.yaml":       content("a"), "app/b.yaml": content("b"), "app/c.yaml": content("c"),
		},
		func(t *testing.T, h *handOver) {
			h.begin(t, "old")
			h.Commit(t, map[string]string{
				"root/owners.yaml": owner("x", "x", "") + "---\n" + owner("y", "y", ", dependsOn: [{name: x}]") + "---\n" + owner("z", "z", ", dependsOn: [{name: y}]"),
				"app/a.yaml":       "", "app/b.yaml": "", "app/c.yaml": "", "x/a.yaml": content("a"), "y/b.yaml": content("b"), "z/c.yaml": content("c"),
			})
			h.Gone(t, &kustomizev1.Kustomization{}, "old")
			for object, by := range map[string]string{"a": "x", "b": "y", "c": "z"} {
				h.owned(t, object, by)
			}
		},
	},
	{
		"RevertedHalfway", "a rename is reverted while the old one waits to go",
		map[string]string{"root/owners.yaml": owner("old", "app", ""), "app/a.yaml": content("a")},
		func(t *testing.T, h *handOver) {
			h.begin(t, "old")
			h.Commit(t, map[string]string{"root/owners.yaml": owner("new", "app", ", suspend: true")})
			h.awaits(t, "old", "Kustomization/"+h.Namespace+"/new")
			h.Commit(t, map[string]string{"root/owners.yaml": owner("old", "app", "")})
			h.Gone(t, &kustomizev1.Kustomization{}, "new")
			h.Ready(t, "old")
			h.settled(t, "old")
			h.owned(t, "a", "old")
		},
	},
	{
		"Dropped", "what nobody declares goes at once, beside one that is kept",
		map[string]string{
			"root/owners.yaml": owner("old", "one", "") + "---\n" + owner("new", "two", ", suspend: true"),
			"one/a.yaml":       content("a"), "one/gone.yaml": content("gone"), "one/stays.yaml": content("stays"),
		},
		func(t *testing.T, h *handOver) {
			h.begin(t, "old")
			h.Commit(t, map[string]string{"one/a.yaml": "", "one/gone.yaml": "", "two/a.yaml": content("a")})
			h.awaits(t, "old", "Kustomization/"+h.Namespace+"/new")
			h.Gone(t, &corev1.ConfigMap{}, "gone")
			h.same(t, "a", "stays")
			h.Commit(t, map[string]string{"two/a.yaml": "", "two/b.yaml": content("b")})
			h.Gone(t, &corev1.ConfigMap{}, "a")
			h.settled(t, "old")
		},
	},
	{
		"ToRelease", "a chart takes over from a Kustomization, which may go first", map[string]string{"one/a.yaml": content("a"), "one/stays.yaml": content("stays")},
		func(t *testing.T, h *handOver) {
			h.chart(t)
			h.Commit(t, map[string]string{"root/owners.yaml": owner("old", "one", "")})
			h.begin(t, "old")
			h.Commit(t, map[string]string{"one/a.yaml": "", "root/release.yaml": release("")})
			h.Released(t, "web", 1)
			h.Ready(t, "old")
			h.settled(t, "old")
			h.same(t, "a", "stays")
		},
	},
	{
		"ChartAndBack", "one commit moves an object into the chart of a release, the next one moves it back",
		map[string]string{"one/stays.yaml": content("stays"), "one/a.yaml": content("a")},
		func(t *testing.T, h *handOver) {
			h.Commit(t, map[string]string{
				"chart/Chart.yaml":          "apiVersion: v2\nname: web\nversion: 1.0.0\n",
				"chart/templates/rest.yaml": content("rest"),
				"root/owners.yaml":          owner("old", "one", ""),
				"root/release.yaml":         strings.Replace(release(""), "{spec: {", "{spec: {reconcileStrategy: Revision, ", 1),
			})
			h.begin(t, "old")
			h.Released(t, "web", 1)
			for range 6 {
				h.Commit(t, map[string]string{"one/a.yaml": "", "chart/templates/a.yaml": content("a")})
				h.Ready(t, "old")
				h.settled(t, "old")
				h.same(t, "a")
				h.Commit(t, map[string]string{"one/a.yaml": content("a"), "chart/templates/a.yaml": ""})
				h.owned(t, "a", "old")
			}
		},
	},
	{
		"FromRelease", "a Kustomization takes over from a chart, which may go first", map[string]string{"two/other.yaml": content("other")},
		func(t *testing.T, h *handOver) {
			h.chart(t)
			h.Commit(t, map[string]string{"root/owners.yaml": owner("new", "two", ", suspend: true"), "root/release.yaml": release("")})
			h.Kustomization(t, "root", "path: ./root")
			h.Released(t, "web", 1)
			var err error
			if h.uids, err = h.objects(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.Commit(t, map[string]string{"two/a.yaml": content("a"), "root/release.yaml": release("{without: true}")})
			scenario.Eventually(t, scenario.Converge, "the release keeps the object for the Kustomization", func(ctx context.Context) error {
				o := &helmv2.HelmRelease{}
				if err := h.Load(ctx, o, h.Namespace, "web"); err != nil {
					return err
				}
				if c := apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.HandOverPendingCondition); c == nil || !strings.Contains(c.Message, "/new") {
					return fmt.Errorf("its conditions are: %s", scenario.Summary(o.Status.Conditions))
				}
				return nil
			})
			h.same(t, "a")
			h.Commit(t, map[string]string{"root/owners.yaml": owner("new", "two", ", suspend: false")})
			h.owned(t, "a", "new")
			scenario.Eventually(t, scenario.Converge, "the release has let go of the object", func(ctx context.Context) error {
				o := &helmv2.HelmRelease{}
				if err := h.Load(ctx, o, h.Namespace, "web"); err != nil {
					return err
				}
				if ids := scenario.ReleaseInventory(o); slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(id, "_a_") }) {
					return fmt.Errorf("its inventory is %v", ids)
				}
				return nil
			})
			h.same(t, "a")
		},
	},
}

// chart publishes a chart that has object a unless the values leave it out.
func (h *handOver) chart(t *testing.T) {
	t.Helper()
	h.Commit(t, map[string]string{
		"chart/Chart.yaml":       "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"chart/templates/a.yaml": "{{- if not .Values.without }}\n" + content("a") + "{{- end }}\n---\n" + content("rest"),
	})
}

// release is a HelmRelease of that chart.
func release(values string) string {
	if values == "" {
		values = "{}"
	}
	return fmt.Sprintf(`apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: web, namespace: $ns}
spec: {interval: 10m, chart: {spec: {chart: ./chart, sourceRef: {kind: GitRepository, name: git}}}, values: %s}
`, values)
}
