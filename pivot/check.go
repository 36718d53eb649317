package pivot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/capibridge/graph"
)

// CheckFacts are what is looked at before anything is changed.
type CheckFacts struct {
	Journal Journal
	// Source has what belongs to the Clusters, Copies what of the target has the names.
	Source *graph.Graph
	Copies map[key]*unstructured.Unstructured
	// Unserved are kinds that the target does not serve in the version of the source.
	Unserved []schema.GroupVersionKind
	// Foreign are kinds that are not of Cluster API or a provider in the target.
	Foreign []schema.GroupKind
	// Ours: the source is the tier of who acts in the name of others, and trusted.
	Ours bool
	// Providers are those that the kinds belong to, and whether the target has a controller
	// of each that is ready.
	Providers map[string]bool
	// Others are pivots that are not over, of both sides.
	Others []Journal
	// Recorded: the source has a record of its first sync, that is, an agent keeps it.
	Recorded bool
}

// check says what speaks against a pivot.
func check(f CheckFacts) []Problem {
	var problems []Problem
	say := func(reason, format string, args ...any) {
		problems = append(problems, problem(reason, format, args...))
	}
	j := f.Journal
	if j.From.UID == j.To.UID {
		say(ReasonSameCluster, "source and target are the same cluster")
		return problems
	}
	for _, o := range f.Others {
		for _, name := range j.names() {
			if o.ID != j.ID && o.Concerns(name) {
				say(ReasonPivotConflict, "pivot %s, which is at step %s, has Cluster %s", o.ID, o.Step, name)
			}
		}
	}
	for _, c := range j.Clusters {
		n := f.Source.Node(c.UID)
		if c.UID == "" || n == nil {
			say(ReasonClusterMissing, "Cluster %s is not in the source", c.Key())
			continue
		}
		u, facts := n.Object, capibridge.FromObject(n.Object)
		switch {
		case facts.Paused && u.GetAnnotations()[v1alpha1.PivotAnnotation] == "":
			say(ReasonClusterPaused, "Cluster %s is paused, and would stay so", c.Key())
		case !facts.InfrastructureProvisioned || !facts.ControlPlaneInitialized:
			say(ReasonHalfProvisioned, "Cluster %s is still being built", c.Key())
		}
		if other := u.GetAnnotations()[v1alpha1.PivotAnnotation]; other != "" && other != j.ID {
			say(ReasonPivotConflict, "pivot %s has Cluster %s; if no journal of it is left, as after a restore, take annotation %s off the Cluster", other, c.Key(), v1alpha1.PivotAnnotation)
		}
		if by := ownerOf(u); by != "" && !f.Recorded {
			say(ReasonOwnerNotHeld, "%s declares Cluster %s, and no agent of Cascade has a record here: suspend what applies it", by, c.Key())
		}
	}
	problems = append(problems, deleting(f.Source)...)
	for _, group := range f.Source.InOrder() {
		for _, n := range group {
			if !n.Shared && !n.Global && isMachine(n.Object) && !hasNode(n.Object) {
				say(ReasonHalfProvisioned, "%s has no node yet", n.Name())
			}
		}
	}
	for _, kind := range f.Unserved {
		say(ReasonKindMissing, "the target does not serve %s in version %s", kind.GroupKind(), kind.Version)
	}
	problems = append(problems, circular(f.Source)...)
	problems = append(problems, foreign(f.Foreign)...)
	for _, p := range slices.Sorted(maps.Keys(f.Providers)) {
		if !f.Providers[p] {
			say(ReasonProviderNotRunning, "the target has no controller of %s that is ready", p)
		}
	}
	for _, o := range recorded(j, f.Source) {
		n, live := f.Source.Node(o.UID), f.Copies[o.key()]
		if live == nil && withholds(j, o, f.Source, f.Ours) {
			problems = append(problems, others(o))
		}
		if live == nil || isCopy(j, o, live) {
			continue
		}
		switch {
		case isKept(live):
		case !isForOthers(o, n, live):
			say(ReasonObjectExists, "%s is in the target, and no pivot made it", o)
		case shapesMachines(o.Kind):
			if field := differs(comparable(n), comparableCopy(live)); field != "" {
				say(ReasonSharedDiffers, "%s is in the target with another %s", o, field)
			}
		}
	}
	return without(problems, j.Tolerated)
}

func isClusterNode(n *graph.Node) bool {
	return clusterapi.IsCluster(n.Object.GroupVersionKind().GroupKind())
}

func isMachine(u *unstructured.Unstructured) bool {
	return u.GroupVersionKind().Group == clusterapi.Group && u.GetKind() == "Machine"
}

func hasNode(machine *unstructured.Unstructured) bool {
	name, _, _ := unstructured.NestedString(machine.Object, "status", "nodeRef", "name")
	return name != ""
}

// ownerOf says what Git's objects declare an object, by the labels that its owner left; empty
// if it has none.
func ownerOf(u *unstructured.Unstructured) string {
	labels := u.GetLabels()
	for _, o := range []struct{ kind, group string }{
		{"Kustomization", "kustomize.toolkit.fluxcd.io"}, {"HelmRelease", "helm.toolkit.fluxcd.io"}, {"Layer", v1alpha1.LayerLabelGroup},
	} {
		if name := labels[o.group+"/name"]; name != "" {
			return fmt.Sprintf("%s %s/%s", o.kind, labels[o.group+"/namespace"], name)
		}
	}
	return ""
}

// Line of a preview.
type Line struct {
	Step Step
	Text string
}

// Preview is what a pivot would do.
type Preview struct {
	// Journal of a pivot that is under way; its Step is empty if there is none.
	Journal  Journal
	Problems []Problem
	Lines    []Line
}

// preview says, step by step, what is done to which object.
func preview(j Journal, f CheckFacts) []Line {
	var lines []Line
	say := func(s Step, format string, args ...any) { lines = append(lines, Line{s, fmt.Sprintf(format, args...)}) }
	names := make([]string, 0, len(j.Clusters))
	for _, c := range j.Clusters {
		names = append(names, c.Key().String())
	}
	if f.Recorded {
		say(Freeze, "write into the source's record that %s is managed elsewhere", strings.Join(names, ", "))
	}
	for _, c := range j.Clusters {
		if n := f.Source.Node(c.UID); n != nil {
			if by := ownerOf(n.Object); by != "" {
				say(Freeze, "%s declares Cluster/%s and leaves it alone from then on", by, c.Key())
			}
		}
		say(Freeze, "pause Cluster/%s in the source", c.Key())
	}
	objects := recorded(j, f.Source)
	for _, o := range objects {
		foreign := ""
		if n := f.Source.Node(o.UID); len(n.Foreign) > 0 {
			var without []string
			for _, ref := range n.Foreign {
				without = append(without, ref.Kind+"/"+ref.Name)
			}
			foreign = ", without its owner " + strings.Join(without, ", ")
		}
		switch live := f.Copies[o.key()]; {
		case live == nil:
			say(Copy, "make %s in the target%s", o, foreign)
		case isCopy(j, o, live):
			say(Copy, "%s is in the target", o)
		case !isKept(live) || isOthers(j, o):
			say(Copy, "use %s as it is in the target", o)
		default:
			say(Copy, "take over %s in the target%s", o, foreign)
		}
	}
	say(Verify, "compare %d objects field by field", len(objects))
	say(Switch, "record in both tiers that the target manages %s", strings.Join(names, ", "))
	for _, c := range j.Clusters {
		if !c.Paused {
			say(Unpause, "let Cluster/%s go in the target", c.Key())
		}
	}
	for _, o := range slices.Backward(objects) {
		if o.Stays {
			say(Release, "leave %s in the source", o)
			continue
		}
		say(Release, "remove %s from the source: finalizers, then the object with UID %s", o, o.UID)
	}
	return lines
}

// clustersOf are the Clusters of a graph that are named, with their UIDs; one that is not
// there has none.
func clustersOf(g *graph.Graph, names []types.NamespacedName) []Cluster {
	out := make([]Cluster, 0, len(names))
	byName := map[types.NamespacedName]*unstructured.Unstructured{}
	for _, group := range g.InOrder() {
		for _, n := range group {
			if isClusterNode(n) {
				byName[types.NamespacedName{Namespace: n.Object.GetNamespace(), Name: n.Object.GetName()}] = n.Object
			}
		}
	}
	for _, name := range names {
		c := Cluster{Namespace: name.Namespace, Name: name.Name}
		if u := byName[name]; u != nil {
			c.UID = u.GetUID()
			// What is paused by annotation takes that along.
			c.Paused = clusterapi.IsPausedBySpec(u) && u.GetAnnotations()[v1alpha1.PivotAnnotation] == ""
		}
		out = append(out, c)
	}
	return out
}
