package pivot

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/graph"
)

// Facts are what both sides have, as read for one look at a step.
type Facts struct {
	// Source has what belongs to the Clusters. It is read for all steps but Release, in which
	// the graph falls apart: there Left has what is left.
	Source *graph.Graph
	// Left are the objects of the journal that the source has, Copies those of the target
	// that have the name of one.
	Left, Copies map[key]*unstructured.Unstructured
	// Foreign are kinds of objects that are not of Cluster API or a provider in the target.
	Foreign []schema.GroupKind
	// Ours: the source is the tier of who acts in the name of others, and trusted.
	Ours bool
	// Namespaces of objects that the target has.
	Namespaces map[string]bool
	// Held are the Clusters of which the source's record says that this pivot manages them
	// elsewhere. Recorded: the source has a record at all.
	Held     map[types.NamespacedName]bool
	Recorded bool
	// Away are the Clusters of which the target's record says that another tier manages
	// them.
	Away map[types.NamespacedName]bool
	// Here and There are the records of the source and of the target, empty where there is none.
	// A change of one is held to what was read: nobody takes back what came after it.
	Here, There *corev1.ConfigMap
	// Receipt is the step that the target's journal has; empty if it has none.
	Receipt Step
	// Resting: the source has changed a moment ago.
	Resting bool
	// Rounds is how often the objects of the target were corrected in this step.
	Rounds int
}

// Verb of an action.
type Verb string

// Verbs. Each action can be done again.
const (
	Hold      Verb = "hold"      // the source's record: managed elsewhere
	Unhold    Verb = "unhold"    // the opposite
	Pause     Verb = "pause"     // a Cluster of the source, or what pauses alone
	Resume    Verb = "resume"    // a Cluster of the source
	Namespace Verb = "namespace" // made in the target
	Note      Verb = "note"      // the target's journal
	Forget    Verb = "forget"    // the target's journal is deleted
	Make      Verb = "make"      // an object of the target
	Mend      Verb = "mend"      // an object of the target that is not as that of the source
	Use       Verb = "use"       // an object of the target as it is
	Take      Verb = "take"      // the target's record: managed here
	Settle    Verb = "settle"    // an object of the target gets its field owners, and is let go
	Leave     Verb = "leave"     // an object of the source without owners
	Remove    Verb = "remove"    // an object of the source
	Discard   Verb = "discard"   // an object of the target
)

// Action is one thing to do.
type Action struct {
	Verb Verb
	// Object that it is done to, by its record in the journal.
	Object Object
	// Live is the object as it was read; nil where there is none.
	Live *unstructured.Unstructured
	// Body is what it is to be, with the owners of the source.
	Body *unstructured.Unstructured
	// Step for Note.
	Step Step
	// Name of the namespace.
	Name string
	// Clusters for Hold, Unhold and Take, and the Record that is changed.
	Clusters []types.NamespacedName
	Record   *corev1.ConfigMap
}

// String tells the action to people.
func (a Action) String() string {
	switch a.Verb {
	case Hold, Unhold, Take:
		names := make([]string, 0, len(a.Clusters))
		for _, n := range a.Clusters {
			names = append(names, n.String())
		}
		return string(a.Verb) + " " + strings.Join(names, ", ")
	case Namespace:
		return string(a.Verb) + " " + a.Name
	case Note:
		return string(a.Verb) + " step " + string(a.Step)
	case Forget:
		return string(a.Verb)
	}
	return string(a.Verb) + " " + a.Object.String()
}

// Next is what to do about a step.
type Next struct {
	// Actions to be done, in order. When there are none, and nothing to wait for, the journal
	// goes on to Step.
	Actions []Action
	Step    Step
	// Objects are what the journal is to have; nil leaves them.
	Objects []Object
	// Waits says what has to happen by itself first; empty if nothing has to.
	Waits string
	// Rests: the step is over at once, whatever is to be done: the journal goes on to Step,
	// which does it.
	Rests bool
	// Problems keep the pivot from going on.
	Problems []Problem
	// Why the pivot is turned back, which nobody asked for; Step is Undo then.
	Why []Problem
}

// Bounds of a pivot.
const (
	// restMost is how long controllers may take to say that they have stopped.
	restMost = 2 * time.Minute
	// mostRounds is how often a copy is corrected before the target is said to change it.
	mostRounds = 3
)

// plan says what is left to do of the step that a journal has, and which comes then.
func plan(j Journal, f Facts, now time.Time) Next {
	var next Next
	if j.Step.Revocable() && j.Step != Undo {
		if why := deleting(f.Source); len(why) > 0 {
			return Next{Step: Undo, Rests: true, Objects: recorded(j, f.Source), Why: why[:min(len(why), mostTold)]}
		}
	}
	switch j.Step {
	case Freeze:
		next = planFreeze(j, f, now)
	case Copy:
		next = planCopy(j, f)
	case Verify:
		next = planVerify(j, f)
	case Switch:
		next = planSwitch(j, f)
	case Unpause:
		next = planUnpause(j, f)
	case Release:
		next = planRelease(j, f)
	case Undo:
		next = planUndo(j, f)
	case Done, Aborted:
	}
	if next.Problems = without(next.Problems, j.Tolerated); len(next.Problems) > 0 {
		next.Actions, next.Rests = nil, false
	}
	return next
}

// deleting says what of the source is being deleted. Its controller takes nothing down while the
// Cluster is paused: to wait for that would be to wait for ever, and to move it would be to undo
// the deletion. What it says keeps a pivot from beginning as well, so that one that was turned back
// is not tried again before the deletion is over.
func deleting(g *graph.Graph) []Problem {
	var problems []Problem
	for _, group := range g.InOrder() {
		for _, n := range group {
			if !n.Shared && !n.Global && n.Object.GetDeletionTimestamp() != nil {
				problems = append(problems, problem(ReasonClusterDeleting, "%s is being deleted", n.Name()))
			}
		}
	}
	return problems
}

// clusterOf finds the Cluster of the source; nil if it is not there.
func clusterOf(f Facts, c Cluster) *unstructured.Unstructured {
	if f.Source != nil {
		if n := f.Source.Node(c.UID); n != nil {
			return n.Object
		}
		return nil
	}
	u := f.Left[key{clusterapi.ClusterKind, c.Key()}]
	if u != nil && u.GetUID() != c.UID {
		return nil
	}
	return u
}

// frozen reports whether this pivot keeps a Cluster of the source paused.
func frozen(j Journal, u *unstructured.Unstructured) bool {
	return clusterapi.IsPausedBySpec(u) && u.GetAnnotations()[v1alpha1.PivotAnnotation] == j.ID
}

// alsoPaused are the Clusters of a journal with those that somebody paused since it was
// written, before the pivot did: these stay so.
func alsoPaused(j Journal, f Facts) (clusters []Cluster, changed bool) {
	clusters = slices.Clone(j.Clusters)
	for i, c := range clusters {
		u := clusterOf(f, c)
		if j.Step == Freeze && !c.Paused && u != nil && clusterapi.IsPausedBySpec(u) && u.GetAnnotations()[v1alpha1.PivotAnnotation] == "" {
			clusters[i].Paused, changed = true, true
		}
	}
	return clusters, changed
}

// freezes plans what keeps the source from acting: its record, and the pause of each
// Cluster. Later steps begin with it as well, should anybody have undone it.
func freezes(j Journal, f Facts) (actions []Action, problems []Problem) {
	var unheld []types.NamespacedName
	for _, c := range j.Clusters {
		if f.Recorded && !f.Held[c.Key()] {
			unheld = append(unheld, c.Key())
		}
	}
	if len(unheld) > 0 {
		actions = append(actions, Action{Verb: Hold, Clusters: unheld, Record: f.Here})
	}
	for _, c := range j.Clusters {
		u := clusterOf(f, c)
		if u == nil {
			problems = append(problems, problem(ReasonClusterMissing, "Cluster %s is not in the source any more", c.Key()))
			continue
		}
		if other := u.GetAnnotations()[v1alpha1.PivotAnnotation]; other != "" && other != j.ID {
			problems = append(problems, problem(ReasonPivotConflict, "pivot %s has Cluster %s", other, c.Key()))
			continue
		}
		if !frozen(j, u) {
			actions = append(actions, Action{Verb: Pause, Object: objectOf(u), Live: u})
		}
	}
	return actions, problems
}

func planFreeze(j Journal, f Facts, now time.Time) Next {
	next := Next{Step: Copy}
	next.Actions, next.Problems = freezes(j, f)
	if len(next.Actions)+len(next.Problems) > 0 {
		return next
	}
	for _, group := range f.Source.InOrder() {
		for _, n := range group {
			switch {
			case n.Shared || n.Global:
			case clusterapi.IsMoveBlocked(n.Object):
				next.Waits = n.Name() + " asks to wait before it is moved"
				if now.Sub(j.Stepped) > restMost {
					next.Problems = append(next.Problems, problem(ReasonMoveBlocked, "%s has annotation %s: see what its controller waits for", n.Name(), clusterapi.BlockMoveAnnotation))
				}
			case n.Common || pausesAlone(n.Object):
				// Its controller does not go by the pause of a Cluster, and would never say so.
			case pausedCondition(n.Object) == "False" && !slices.Contains(j.Tolerated, ReasonNotPaused):
				next.Waits = "the controller of " + n.Name() + " to say that it has stopped"
				if now.Sub(j.Stepped) > restMost {
					next.Problems = append(next.Problems, problem(ReasonNotPaused, "the controller of %s does not say that it has stopped: see whether it runs", n.Name()))
				}
			}
		}
	}
	if next.Waits == "" && f.Resting {
		next.Waits = "the source to rest"
	}
	next.Objects = recorded(j, f.Source)
	return next
}

// pausesAlone reports whether the controller of an object goes by its annotation, and not by the
// pause of Clusters. In the source it goes on until the object is taken away: what it does there is
// its own to do until then, and is copied.
func pausesAlone(u *unstructured.Unstructured) bool {
	switch u.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Group: clusterapi.Group, Kind: clusterapi.ClusterClass}, schema.GroupKind{Group: clusterapi.AddonsGroup, Kind: clusterapi.ClusterResourceSet}:
		return true
	}
	return false
}

// unpaused takes away the annotation by which this pivot paused an object, which has the pivot as
// its value.
func unpaused(j Journal, annotations map[string]string) {
	if annotations[clusterapi.PausedAnnotation] == j.ID {
		delete(annotations, clusterapi.PausedAnnotation)
	}
}

// pausedCondition is the status of an object's condition Paused; empty if it has none, as
// those of contract v1beta1 have not.
func pausedCondition(u *unstructured.Unstructured) string {
	for _, at := range [][]string{{"status", "conditions"}, {"status", "v1beta2", "conditions"}} {
		list, _, _ := unstructured.NestedFieldNoCopy(u.Object, at...)
		conditions, _ := list.([]any)
		for _, item := range conditions {
			c, _ := item.(map[string]any)
			if c["type"] == "Paused" {
				status, _ := c["status"].(string)
				return status
			}
		}
	}
	return ""
}

// recorded are the objects of a graph as the journal is to have them, in order, with what it
// knows of those that it has. Those that are gone from the source and were copied stay, until
// the copy is discarded.
func recorded(j Journal, g *graph.Graph) []Object {
	known := map[types.UID]Object{}
	for _, o := range j.Objects {
		known[o.UID] = o
	}
	out := make([]Object, 0, g.Len())
	for _, group := range g.InOrder() {
		for _, n := range group {
			o := objectOf(n.Object)
			if before, ok := known[o.UID]; ok {
				o.Copy, o.Made, o.Before = before.Copy, before.Made, before.Before
				delete(known, o.UID)
			}
			o.Stays = n.Shared || n.Global || isOthers(j, o) || j.Keep && isKubeconfig(n.Object)
			out = append(out, o)
		}
	}
	for _, o := range j.Objects {
		if _, gone := known[o.UID]; gone && o.Copy != "" && o.Made {
			out = append(out, o)
		}
	}
	return out
}

func isKubeconfig(u *unstructured.Unstructured) bool {
	if u.GroupVersionKind().Group != "" || u.GetKind() != "Secret" {
		return false
	}
	_, ok := clusterapi.ClusterOfKubeconfig(u)
	return ok
}

func isCluster(o Object) bool { return clusterapi.IsCluster(o.GroupVersionKind().GroupKind()) }

// desired is a copy as it is to be in the target while the pivot is on its way, with the
// owners of the source.
func desired(j Journal, n *graph.Node) *unstructured.Unstructured {
	u := n.Portable()
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	delete(annotations, v1alpha1.PivotKeptAnnotation)
	delete(annotations, clusterapi.DeleteForMoveAnnotation)
	annotations[v1alpha1.PivotAnnotation] = j.ID
	annotations[v1alpha1.PivotOfAnnotation] = string(n.Object.GetUID())
	if pausesAlone(u) && (!clusterapi.IsPaused(u) || isID(annotations[clusterapi.PausedAnnotation])) {
		// A ClusterResourceSet would be applied again before its binding is there. What another
		// pivot paused, as one that an older version ended, no person wants to stay so.
		annotations[clusterapi.PausedAnnotation] = j.ID
	}
	u.SetAnnotations(annotations)
	if isCluster(objectOf(u)) {
		// As the source is by now; that a copy is paused is not left to what was read.
		spec, _ := u.Object["spec"].(map[string]any)
		if spec == nil {
			spec = map[string]any{}
		}
		spec["paused"] = true
		u.Object["spec"] = spec
	}
	return u
}

// isCopy reports whether this pivot made an object of the target for one of the source.
func isCopy(j Journal, o Object, u *unstructured.Unstructured) bool {
	a := u.GetAnnotations()
	return a[v1alpha1.PivotAnnotation] == j.ID && a[v1alpha1.PivotOfAnnotation] == string(o.UID)
}

// isOthers reports whether an object may be of somebody else than whoever the pivot is for: a Cluster can refer to what it
// likes. It is never taken away, and what the target has of its name is used as it is.
func isOthers(j Journal, o Object) bool {
	return j.Own && !slices.ContainsFunc(j.Clusters, func(c Cluster) bool { return c.Namespace == o.Namespace })
}

// withholds reports whether an object is not made in the target, as it may be of somebody else. Of the tier of who acts, where
// Cluster API lets any Cluster use it, a class with its templates, an identity and what has no namespace is.
func withholds(j Journal, o Object, g *graph.Graph, ours bool) bool {
	if !isOthers(j, o) {
		return false
	}
	return !ours || o.Namespace != "" && !clusterapi.IsClass(o.Kind) && !clusterapi.IsIdentity(o.Kind) && !isOfClass(g, o)
}

// isOfClass reports whether an object is a template that a class of its namespace owns.
func isOfClass(g *graph.Graph, o Object) bool {
	n := g.Node(o.UID)
	return n != nil && clusterapi.IsTemplate(o.Kind) && slices.ContainsFunc(n.Owners, func(uid types.UID) bool {
		owner := g.Node(uid)
		return owner != nil && owner.Object.GetNamespace() == o.Namespace && clusterapi.IsClass(owner.Object.GetKind())
	})
}

func others(o Object) Problem {
	return problem(ReasonSecretElsewhere, "%s is not of the namespace of the Cluster, and a pivot that is declared does not copy it: have it in the target before, or use the command", o)
}

// foreign says of kinds that no object of them is made in the target.
func foreign(kinds []schema.GroupKind) []Problem {
	var problems []Problem
	for _, kind := range kinds {
		problems = append(problems, problem(ReasonKindForeign, "%s is no kind of Cluster API or of a provider in the target: its definition there has no label %s", kind, clusterapi.ClusterctlLabel))
	}
	return problems
}

// circular says of what is moved that it cannot be made with its owners.
func circular(g *graph.Graph) []Problem {
	var problems []Problem
	for _, group := range g.InOrder() {
		for _, n := range group {
			if n.Circular && !n.Shared && !n.Global {
				problems = append(problems, problem(ReasonCircularOwners, "%s and others own each other: take the owner %s %s away from it", n.Name(), n.Foreign[0].Kind, n.Foreign[0].Name))
			}
		}
	}
	return problems
}

// isKept reports whether a former pivot left an object, of which nobody has made anything
// since: what clusters are made after, and what has owners, is others' as well.
func isKept(live *unstructured.Unstructured) bool {
	return live.GetAnnotations()[v1alpha1.PivotKeptAnnotation] != "" && !shapesMachines(live.GetKind()) && len(live.GetOwnerReferences()) == 0
}

// isForOthers reports whether an object of the target that no pivot makes is used as it is.
func isForOthers(o Object, n *graph.Node, live *unstructured.Unstructured) bool {
	return o.Stays || n.Common || live.GetAnnotations()[v1alpha1.PivotKeptAnnotation] != ""
}

func planCopy(j Journal, f Facts) Next {
	next := Next{Step: Verify, Objects: recorded(j, f.Source)}
	if next.Actions, next.Problems = freezes(j, f); len(next.Actions)+len(next.Problems) > 0 {
		// What was unpaused may have changed: it comes to rest first.
		next.Step, next.Rests = Freeze, true
		return next
	}
	if next.Problems = append(foreign(f.Foreign), circular(f.Source)...); len(next.Problems) > 0 {
		return next
	}
	if f.Receipt == "" {
		next.Actions = append(next.Actions, Action{Verb: Note, Step: Copy})
	}
	asked := map[string]bool{}
	for i, o := range next.Objects {
		if o.Namespace != "" && !f.Namespaces[o.Namespace] && !asked[o.Namespace] {
			asked[o.Namespace] = true
			next.Actions = append(next.Actions, Action{Verb: Namespace, Name: o.Namespace})
		}
		n, live := f.Source.Node(o.UID), f.Copies[o.key()]
		if n == nil {
			// It is gone from the source since it was copied.
			if live != nil && isCopy(j, o, live) {
				next.Actions = append(next.Actions, Action{Verb: Discard, Object: o, Live: live})
			} else {
				next.Objects[i].Copy = ""
			}
			continue
		}
		body := desired(j, n)
		switch {
		case live == nil && withholds(j, o, f.Source, f.Ours):
			next.Problems = append(next.Problems, others(o))
		case live == nil:
			next.Objects[i].Copy, next.Objects[i].Made = "", false
			next.Actions = append(next.Actions, Action{Verb: Make, Object: o, Body: body})
		case live.GetDeletionTimestamp() != nil:
			// Let go, it would be taken down with all that it stands for.
			next.Problems = append(next.Problems, problem(ReasonClusterDeleting, "%s is being deleted in the target", o))
		case isCopy(j, o, live):
			next.Objects[i].Copy, next.Objects[i].Made = live.GetUID(), true
			if field := differs(rebased(body, j.copiesWith(next.Objects)), ownEntries(o, body, live)); field != "" {
				if f.Rounds >= mostRounds {
					next.Problems = append(next.Problems, problem(ReasonCopyDiffers, "the target does not keep %s of %s as it is in the source", field, o))
				}
				next.Actions = append(next.Actions, Action{Verb: Mend, Object: o, Live: live, Body: body})
			}
		case isEmptyBinding(o, live) && f.copied(j, n) && !isOthers(j, o):
			// The controller of a ClusterResourceSet of the target made it, as there is a copy of the Cluster.
			next.Actions = append(next.Actions, Action{Verb: Mend, Object: o, Live: live, Body: body})
		case isKept(live) && !isOthers(j, o):
			// A former pivot took its owners away, and left it.
			next.Objects[i].Before = live.GetAnnotations()[v1alpha1.PivotKeptAnnotation]
			next.Actions = append(next.Actions, Action{Verb: Mend, Object: next.Objects[i], Live: live, Body: body})
		case isForOthers(o, n, live):
			// It is there for others.
			if field := differs(comparable(n), comparableCopy(live)); field != "" && shapesMachines(n.Object.GetKind()) {
				next.Problems = append(next.Problems, problem(ReasonSharedDiffers, "%s is in the target with another %s", o, field))
			}
			if o.Copy != live.GetUID() {
				next.Actions = append(next.Actions, Action{Verb: Use, Object: o, Live: live})
			}
		default:
			next.Problems = append(next.Problems, problem(ReasonObjectExists, "%s is in the target, and no pivot made it", o))
		}
	}
	next.Objects = slices.DeleteFunc(next.Objects, func(o Object) bool { return f.Source.Node(o.UID) == nil && o.Copy == "" })
	return next
}

// isEmptyBinding reports whether an object tells which ClusterResourceSets are to be applied to a Cluster, and that
// none was: the controller writes that as soon as there is a Cluster, also one that is paused.
func isEmptyBinding(o Object, live *unstructured.Unstructured) bool {
	return isBinding(o) && !slices.ContainsFunc(entries(live), func(entry map[string]any) bool {
		resources, _, _ := unstructured.NestedSlice(entry, "resources")
		return slices.ContainsFunc(resources, func(r any) bool { m, _ := r.(map[string]any); return m["applied"] == true })
	})
}

func isBinding(o Object) bool {
	return o.GroupVersionKind().GroupKind() == schema.GroupKind{Group: clusterapi.AddonsGroup, Kind: clusterapi.ClusterResourceSetBinding}
}

// entries of such an object, one for each ClusterResourceSet.
func entries(u *unstructured.Unstructured) (out []map[string]any) {
	list, _, _ := unstructured.NestedSlice(u.Object, "spec", "bindings")
	for _, entry := range list {
		if m, ok := entry.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// ownEntries is a live object without the entries that the target has for ClusterResourceSets of its own, and with
// the others in the order of the source.
func ownEntries(o Object, body, live *unstructured.Unstructured) *unstructured.Unstructured {
	if !isBinding(o) || len(entries(live)) == 0 {
		return live
	}
	var own []any
	for _, want := range entries(body) {
		for _, is := range entries(live) {
			if is["clusterResourceSetName"] == want["clusterResourceSetName"] {
				own = append(own, is)
			}
		}
	}
	live = live.DeepCopy()
	_ = unstructured.SetNestedSlice(live.Object, own, "spec", "bindings")
	return live
}

// copied reports whether this pivot made the Clusters of an object in the target.
func (f Facts) copied(j Journal, n *graph.Node) bool {
	return len(n.Clusters) > 0 && !slices.ContainsFunc(n.Clusters, func(name types.NamespacedName) bool {
		return !slices.ContainsFunc(j.Objects, func(o Object) bool {
			live := f.Copies[o.key()]
			return isCluster(o) && o.key().name == name && live != nil && isCopy(j, o, live)
		})
	})
}

// copiesWith are the UIDs in the target with those of newer records.
func (j Journal) copiesWith(objects []Object) map[types.UID]types.UID {
	j.Objects = objects
	return j.copies()
}

// rebased has the owners of the target; where one is not there yet, those of the source,
// which are not equal to anything.
func rebased(body *unstructured.Unstructured, uids map[types.UID]types.UID) *unstructured.Unstructured {
	out := body.DeepCopy()
	if err := graph.Rebase(out, uids); err != nil {
		return body
	}
	return out
}

// shapesMachines reports whether clusters are made after objects of a kind, so that another
// one of the same name would change them.
func shapesMachines(kind string) bool { return clusterapi.IsClass(kind) || clusterapi.IsTemplate(kind) }

// comparable is what of an object counts where the target has one of the same name.
func comparable(n *graph.Node) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"spec": n.Object.Object["spec"]}}
}

func comparableCopy(u *unstructured.Unstructured) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"spec": u.Object["spec"]}}
}

func planVerify(j Journal, f Facts) Next {
	again := planCopy(j, f)
	again.Problems = without(again.Problems, j.Tolerated) // what was waved through is no reason to go back
	if len(again.Actions)+len(again.Problems) > 0 {
		// Something changed since: the copy is made right first.
		return Next{Step: again.stepBack(), Problems: again.Problems}
	}
	next := Next{Step: Switch, Objects: again.Objects}
	for _, o := range again.Objects {
		if o.Copy == "" {
			return Next{Step: Copy}
		}
	}
	return next
}

// stepBack is the step that makes right what verify found.
func (n Next) stepBack() Step {
	if n.Rests {
		return Freeze
	}
	return Copy
}

func planSwitch(j Journal, f Facts) Next {
	next := Next{Step: Unpause}
	next.Actions, next.Problems = refreezes(j, f)
	next.Problems = append(next.Problems, missing(j, f)...)
	if f.Receipt != Switch && !f.Receipt.Over() {
		next.Actions = append(next.Actions, Action{Verb: Note, Step: Switch})
	}
	var away []types.NamespacedName
	for _, c := range j.Clusters {
		if f.Away[c.Key()] {
			away = append(away, c.Key())
		}
	}
	if len(away) > 0 {
		next.Actions = append(next.Actions, Action{Verb: Take, Clusters: away, Record: f.There})
	}
	return next
}

// refreezes is freezes once nothing can be taken back: a Cluster that is gone from the source
// acts no more.
func refreezes(j Journal, f Facts) (actions []Action, problems []Problem) {
	actions, problems = freezes(j, f)
	return actions, without(problems, []string{ReasonClusterMissing})
}

// missing are the Clusters that the target does not have as they were copied.
func missing(j Journal, f Facts) []Problem {
	var problems []Problem
	for _, c := range j.Clusters {
		there := slices.ContainsFunc(j.Objects, func(o Object) bool {
			live := f.Copies[o.key()]
			return isCluster(o) && o.key().name == c.Key() && live != nil && live.GetUID() == o.Copy
		})
		if !there {
			problems = append(problems, problem(ReasonCopyMissing, "Cluster %s is not in the target any more as it was copied", c.Key()))
		}
	}
	return problems
}

// planUnpause lets go of the copies, Clusters last: what they consist of is complete by then.
// The Clusters of the source are looked at in the same read.
func planUnpause(j Journal, f Facts) Next {
	next := Next{Step: Release}
	next.Actions, next.Problems = refreezes(j, f)
	next.Problems = append(next.Problems, missing(j, f)...)
	if len(next.Actions) > 0 {
		return next // read again after that
	}
	next.Actions = planLetGo(j, f)
	return next
}

// planLetGo lets go of what the target has of the copies: first of all but the Clusters.
func planLetGo(j Journal, f Facts) []Action {
	var clusters, rest []Action
	for _, o := range j.Objects {
		live := f.Copies[o.key()]
		if !o.Made || live == nil || live.GetUID() != o.Copy {
			continue // taken down by the target's controllers
		}
		source := f.Left[o.key()]
		if live.GetAnnotations()[v1alpha1.PivotAnnotation] != j.ID {
			if !pausesAlone(live) || live.GetAnnotations()[clusterapi.PausedAnnotation] != j.ID {
				continue // let go already
			}
			// An older version let it go, and left it paused. Its field owners are the target's by now.
			source = nil
		}
		a := Action{Verb: Settle, Object: o, Live: live, Body: letGo(j, o, live, source)}
		if isCluster(o) {
			clusters = append(clusters, a)
			continue
		}
		rest = append(rest, a)
	}
	if len(rest) > 0 {
		return rest
	}
	return clusters
}

// letGo is a copy as the target's controllers are to have it: without marks of the pivot,
// with the field owners of the source, and not paused if it was not.
func letGo(j Journal, o Object, live, source *unstructured.Unstructured) *unstructured.Unstructured {
	u := live.DeepCopy()
	annotations := u.GetAnnotations()
	delete(annotations, v1alpha1.PivotAnnotation)
	delete(annotations, v1alpha1.PivotOfAnnotation)
	unpaused(j, annotations)
	u.SetAnnotations(annotations)
	if source != nil && source.GetUID() == o.UID {
		// Who applies a Cluster of a class, or what Git declares, can only take fields away
		// that are on record as its own.
		fields := slices.Clone(source.GetManagedFields())
		kept := fields[:0]
		for _, e := range fields {
			if e.Subresource == "" {
				kept = append(kept, e)
			}
		}
		if len(kept) > 0 {
			u.SetManagedFields(kept)
		}
	}
	if !isCluster(o) {
		return u
	}
	for _, c := range j.Clusters {
		if c.UID == o.UID && !c.Paused {
			unstructured.RemoveNestedField(u.Object, "spec", "paused")
		}
	}
	return u
}

func planRelease(j Journal, f Facts) Next {
	next := Next{Step: Done}
	next.Problems = missing(j, f)
	// What is to stay loses its owners before these are deleted.
	for _, o := range j.Objects {
		live := f.Left[o.key()]
		if live != nil && live.GetUID() == o.UID && o.Stays && ownedByMoved(j, live) {
			next.Actions = append(next.Actions, Action{Verb: Leave, Object: o, Live: live, Body: left(j, live)})
		}
	}
	for _, o := range slices.Backward(j.Objects) {
		live := f.Left[o.key()]
		if live == nil || live.GetUID() != o.UID || o.Stays {
			continue // of the same name and another UID is another object
		}
		if isCluster(o) && !frozen(j, live) {
			next.Actions = append([]Action{{Verb: Pause, Object: o, Live: live}}, next.Actions...)
			return next // it is looked at again then
		}
		if pausesAlone(live) && !clusterapi.IsPaused(live) {
			// It would be applied again once its binding is gone.
			next.Actions = append([]Action{{Verb: Pause, Object: o, Live: live}}, next.Actions...)
			continue
		}
		next.Actions = append(next.Actions, Action{Verb: Remove, Object: o, Live: live})
	}
	if len(next.Actions) == 0 && f.Receipt != Done {
		next.Actions = append(next.Actions, Action{Verb: Note, Step: Done})
	}
	return next
}

// moved are the UIDs in the source of what is taken away.
func (j Journal) moved() map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, o := range j.Objects {
		if !o.Stays {
			out[o.UID] = true
		}
	}
	return out
}

func ownedByMoved(j Journal, u *unstructured.Unstructured) bool {
	moved := j.moved()
	for _, ref := range u.GetOwnerReferences() {
		if moved[ref.UID] {
			return true
		}
	}
	return false
}

// left is an object of the source that stays, without the owners that go.
func left(j Journal, live *unstructured.Unstructured) *unstructured.Unstructured {
	u, moved := live.DeepCopy(), j.moved()
	refs := u.GetOwnerReferences()
	kept := refs[:0]
	for _, ref := range refs {
		if !moved[ref.UID] {
			kept = append(kept, ref)
		}
	}
	u.SetOwnerReferences(kept)
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.PivotKeptAnnotation] = j.ID
	u.SetAnnotations(annotations)
	return u
}

// planUndo discards the copies, and lets the source go on when there are none.
func planUndo(j Journal, f Facts) Next {
	next := Next{Step: Aborted}
	for _, o := range slices.Backward(recorded(j, f.Source)) {
		live := f.Copies[o.key()]
		if live == nil || !isCopy(j, o, live) {
			continue
		}
		a := Action{Verb: Discard, Object: o, Live: live}
		if o.Before != "" {
			a.Verb, a.Body = Mend, givenBack(j, o, live)
		}
		next.Actions = append(next.Actions, a)
	}
	if len(next.Actions) > 0 {
		return next
	}
	if f.Receipt != "" {
		next.Actions = append(next.Actions, Action{Verb: Forget})
	}
	var held []types.NamespacedName
	for _, c := range j.Clusters {
		u := clusterOf(f, c)
		if u != nil && u.GetAnnotations()[v1alpha1.PivotAnnotation] == j.ID {
			next.Actions = append(next.Actions, Action{Verb: Resume, Object: objectOf(u), Live: u, Body: resumed(c, u)})
		}
		if f.Held[c.Key()] {
			held = append(held, c.Key())
		}
	}
	if len(held) > 0 {
		next.Actions = append(next.Actions, Action{Verb: Unhold, Clusters: held, Record: f.Here})
	}
	return next
}

// givenBack is what a former pivot had left in the target, as it had left it.
func givenBack(j Journal, o Object, live *unstructured.Unstructured) *unstructured.Unstructured {
	u := live.DeepCopy()
	annotations := u.GetAnnotations()
	delete(annotations, v1alpha1.PivotAnnotation)
	delete(annotations, v1alpha1.PivotOfAnnotation)
	annotations[v1alpha1.PivotKeptAnnotation] = o.Before
	unpaused(j, annotations)
	u.SetAnnotations(annotations)
	u.SetOwnerReferences(nil)
	return u
}

// paused is a Cluster of the source, or what pauses alone, as this pivot has it.
func paused(j Journal, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	u := live.DeepCopy()
	if pausesAlone(u) {
		annotations := u.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[clusterapi.PausedAnnotation] = j.ID
		u.SetAnnotations(annotations)
		return u, nil
	}
	if err := unstructured.SetNestedField(u.Object, true, "spec", "paused"); err != nil {
		return nil, fmt.Errorf("cannot pause %s: %w", objectOf(live), err)
	}
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.PivotAnnotation] = j.ID
	u.SetAnnotations(annotations)
	return u, nil
}

// resumed is a Cluster of the source as it was before.
func resumed(c Cluster, live *unstructured.Unstructured) *unstructured.Unstructured {
	u := live.DeepCopy()
	if !c.Paused {
		unstructured.RemoveNestedField(u.Object, "spec", "paused")
	}
	annotations := u.GetAnnotations()
	delete(annotations, v1alpha1.PivotAnnotation)
	u.SetAnnotations(annotations)
	return u
}
