package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cascade-gitops/cascade/api/v1alpha1"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Standing is what a tier has on record about one Cluster.
type Standing string

// Standings. They are written down as they are here.
const (
	// Approved: a person said that it is new, or to be built again.
	Approved Standing = "approved"
	// Adopted: it was there, with everything that it refers to, when it was
	// looked at first.
	Adopted Standing = "adopted"
	// LastPaused and LastMoving: so it was when it was last seen. clusterctl pauses
	// what it moves to another management cluster, and marks it before it deletes it.
	LastPaused Standing = "paused"
	LastMoving Standing = "moving"
	// ManagedElsewhere: another tier manages it, or is about to. A pivot says so, with a key
	// of its own in the record.
	ManagedElsewhere Standing = "elsewhere"
)

// FirstSync is what a tier knows about its Clusters, besides what is there. A
// management cluster that lost its state looks like a new one, and Git declares
// the Clusters of both: whoever creates them there builds every cluster a second
// time. So a tier creates none before somebody said for each of those that are
// missing whether it is new.
type FirstSync struct {
	// Settled: all Clusters that Git declared were there once, or a person said
	// that none of them ever existed. From then on Clusters are created without asking.
	Settled bool
	// Insisted: a person said that Clusters which are missing may run elsewhere. Nothing
	// but what the person says of a Cluster overrules that.
	Insisted bool
	// Clusters that something is on record about.
	Clusters map[types.NamespacedName]Standing
	// Seen are those that the watch of Clusters shows. It was looked at before the
	// cluster is asked: one that is seen and is not found has just gone, and how it
	// went is not known yet.
	Seen map[types.NamespacedName]bool
	// Elsewhere: it is about another tier than the one that applies, in which a person
	// has to decide.
	Elsewhere bool
}

// departed reports whether the standing is one in which a Cluster that is gone
// is probably run from elsewhere.
func (s Standing) departed() bool { return s == LastPaused || s == LastMoving }

// isElsewhere reports whether another tier manages the Cluster.
func (s Standing) isElsewhere() bool { return s == ManagedElsewhere }

// Open reports whether a Cluster may be created whatever the cluster says, so that
// it need not be asked.
func (f *FirstSync) Open(name types.NamespacedName) bool {
	return f.Settled && !f.Seen[name] && !f.Clusters[name].departed() && !f.Clusters[name].isElsewhere()
}

// ClusterLive is what was read about one Cluster.
type ClusterLive struct {
	State State
	// Problem explains Unknown.
	Problem string
	Paused  bool
	// Missing are objects that it refers to and that are confirmed absent.
	Missing []string
}

// Why a Cluster is held.
type Why int

// Reasons for a hold.
const (
	// NotAsked: it does not exist, and nobody said that it is new.
	NotAsked Why = iota
	// Restoring: it exists and is paused, as it is while its saved state is being
	// restored.
	Restoring
	// Incomplete: it exists, and something that it refers to does not.
	Incomplete
	// Departed: it is gone and was paused or being moved when it was last seen.
	Departed
	// Vanished: it is gone since a moment ago, and how is not known yet.
	Vanished
	// Pivoting: a pivot moves it to another management cluster, and what is left of it here
	// is the pivot's.
	Pivoting
)

// HeldCluster is one that is not created, nor what belongs to it.
type HeldCluster struct {
	Name types.NamespacedName
	Why  Why
	// Missing, for Incomplete.
	Missing []string
}

// Creation is what of a rendering may not be applied now, because it would build
// a cluster that may exist already.
type Creation struct {
	Held []HeldCluster
	// Loose objects are held as well: they may be a part of a Cluster, and none that
	// is there refers to them.
	Loose []Entry
	// Adopted are Clusters that are found complete and are not on record yet.
	Adopted []types.NamespacedName
	// ManagedElsewhere are Clusters that another tier manages. They are not applied, and that is as
	// it should be.
	ManagedElsewhere []types.NamespacedName

	elsewhere bool
	withheld  map[string]bool
	// create has the Clusters that may be created.
	create map[types.NamespacedName]bool
}

// Blocked reports whether anything is held.
func (c *Creation) Blocked() bool { return c != nil && (len(c.Held) > 0 || len(c.Loose) > 0) }

// Withholding reports whether some objects may not be applied.
func (c *Creation) Withholding() bool { return c != nil && len(c.withheld) > 0 }

// Withholds reports whether an object may not be applied.
func (c *Creation) Withholds(e Entry) bool { return c != nil && c.withheld[e.ID()] }

// MayCreate reports whether an object may be created, should it not exist.
// Everything but a Cluster may.
func (c *Creation) MayCreate(e Entry) bool {
	return c == nil || !isCluster(e) || c.create[types.NamespacedName{Namespace: e.Namespace, Name: e.Name}]
}

// Elsewhere reports whether it is about the Clusters of another tier.
func (c *Creation) Elsewhere() bool { return c != nil && c.elsewhere }

// Names of the held Clusters.
func (c *Creation) Names() []types.NamespacedName {
	if c == nil {
		return nil
	}
	names := make([]types.NamespacedName, 0, len(c.Held))
	for _, h := range c.Held {
		names = append(names, h.Name)
	}
	return names
}

// Fleet has the objects of Cluster API in a rendering, and which Cluster each belongs
// to.
type Fleet struct {
	// Clusters that are declared, or that something declared belongs to.
	Clusters []types.NamespacedName
	// Loose objects could be a part of a Cluster, but nothing names the Cluster.
	Loose []Entry

	members []member
}

// Empty reports whether nothing of it could build a cluster.
func (f Fleet) Empty() bool { return len(f.Clusters)+len(f.Loose) == 0 }

type member struct {
	entry Entry
	// of are the Clusters that it belongs to.
	of map[types.NamespacedName]bool
}

// inert kinds build nothing by themselves.
func inert(e Entry) bool {
	return e.Namespace == "" || clusterapi.IsTemplate(e.Kind) || clusterapi.IsClass(e.Kind) || clusterapi.IsIdentity(e.Kind)
}

// FleetOf finds what belongs to which Cluster: by label, by spec.clusterName, by
// owner, and by what a Cluster and its parts refer to.
func FleetOf(objects []*unstructured.Unstructured) Fleet {
	var f Fleet
	byRef := map[clusterapi.Reference]int{}
	refs := map[int][]clusterapi.Reference{}
	for _, u := range objects {
		e := Of(u)
		if !clusterapi.BuildsClusters(e.Group) {
			continue
		}
		i := len(f.members)
		f.members = append(f.members, member{entry: e, of: namedBy(u)})
		byRef[clusterapi.Named(e.Namespace, e.Kind, e.Name)] = i
		refs[i] = clusterapi.ReferencesOf(u)
	}
	// An object belongs to the Cluster of what refers to it. The loop ends after as many
	// rounds as the longest chain has links.
	for changed := true; changed; {
		changed = false
		for i, list := range refs {
			for _, ref := range list {
				j, ok := byRef[ref]
				if !ok || isCluster(f.members[j].entry) {
					continue
				}
				for name := range f.members[i].of {
					if !f.members[j].of[name] {
						f.members[j].of[name] = true
						changed = true
					}
				}
			}
		}
	}
	all := map[types.NamespacedName]bool{}
	for _, m := range f.members {
		for name := range m.of {
			all[name] = true
		}
		if len(m.of) == 0 && !inert(m.entry) {
			f.Loose = append(f.Loose, m.entry)
		}
	}
	for name := range all {
		f.Clusters = append(f.Clusters, name)
	}
	slices.SortFunc(f.Clusters, compareNames)
	return f
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// namedBy are the Clusters that an object itself names.
func namedBy(u *unstructured.Unstructured) map[types.NamespacedName]bool {
	of := map[types.NamespacedName]bool{}
	for _, name := range clusterapi.ClustersOf(u) {
		of[types.NamespacedName{Namespace: u.GetNamespace(), Name: name}] = true
	}
	return of
}

// LooseLive is what was read about a loose object.
type LooseLive struct {
	State State
	// Of is the Cluster that is there and refers to it, if any.
	Of *types.NamespacedName
}

// PlanCreation decides what of a rendering may be applied. live has every Cluster of
// the fleet for which the record is not open, and loose has every loose object if the
// tier is not settled. A missing entry counts as unknown. PlanCreation fails if it is
// unknown whether a Cluster exists: neither to hold nor to create it would be right.
func PlanCreation(f Fleet, record *FirstSync, live map[types.NamespacedName]ClusterLive, loose map[Entry]LooseLive) (*Creation, error) {
	c := &Creation{elsewhere: record.Elsewhere, withheld: map[string]bool{}, create: map[types.NamespacedName]bool{}}
	held := map[types.NamespacedName]bool{}
	for _, name := range f.Clusters {
		if record.Open(name) {
			c.create[name] = true
			continue
		}
		is := live[name]
		why, hold := judgeCreation(record, name, is)
		switch {
		case record.Clusters[name].isElsewhere() && is.State == Absent:
			held[name] = true
			c.ManagedElsewhere = append(c.ManagedElsewhere, name)
		case is.State == Unknown:
			return nil, fmt.Errorf("cannot tell whether Cluster %s exists: %s", name, cmp.Or(is.Problem, "it was not asked for"))
		case hold:
			held[name] = true
			c.Held = append(c.Held, HeldCluster{Name: name, Why: why, Missing: is.Missing})
		case is.State == Absent:
			c.create[name] = true
		case !record.Settled && record.Clusters[name] != Adopted && len(is.Missing) == 0 && !is.Paused:
			c.Adopted = append(c.Adopted, name)
		}
	}
	for _, m := range f.members {
		if len(m.of) == 0 {
			continue
		}
		all := true
		for name := range m.of {
			all = all && held[name]
		}
		if all {
			c.withheld[m.entry.ID()] = true
		}
	}
	if record.Settled {
		return c, nil
	}
	for _, e := range f.Loose {
		is := loose[e]
		switch {
		case is.State == Unknown:
			return nil, fmt.Errorf("cannot tell whether %s exists", e)
		case is.State == Present, is.Of != nil && mayBuild(record, *is.Of):
			continue
		}
		c.withheld[e.ID()] = true
		c.Loose = append(c.Loose, e)
	}
	return c, nil
}

func mayBuild(record *FirstSync, name types.NamespacedName) bool {
	return record.Clusters[name] == Approved || record.Clusters[name] == Adopted
}

// judgeCreation decides about one Cluster whose state is known.
func judgeCreation(record *FirstSync, name types.NamespacedName, is ClusterLive) (why Why, hold bool) {
	standing := record.Clusters[name]
	switch {
	case standing == Approved:
		return 0, false
	case standing.isElsewhere():
		return Pivoting, true
	case is.State == Absent && !record.Settled:
		return NotAsked, true
	case is.State == Absent && standing.departed(), record.Settled && standing == LastMoving:
		return Departed, true
	case is.State == Absent && record.Seen[name]:
		return Vanished, true
	case is.State == Absent, record.Settled, standing == Adopted:
		return 0, false
	case is.Paused:
		return Restoring, true
	case len(is.Missing) > 0:
		return Incomplete, true
	}
	return 0, false
}

// mostNamed bounds the list of Clusters in a message. The message names the next
// Clusters when a person has decided about these.
const mostNamed = 200

// Hold lists what a person has to decide about; nil if nothing is held.
func (c *Creation) Hold() *v1alpha1.HeldCreate {
	if !c.Blocked() && (c == nil || len(c.ManagedElsewhere) == 0) {
		return nil
	}
	hold := &v1alpha1.HeldCreate{Clusters: c.askable(), Elsewhere: c.elsewhere}
	for _, name := range c.ManagedElsewhere[:min(len(c.ManagedElsewhere), mostNamed)] {
		hold.ManagedElsewhere = append(hold.ManagedElsewhere, name.String())
	}
	return hold
}

// askable are the Clusters that a person can decide about, as far as they are
// named, in the order of the reasons for which they are held.
func (c *Creation) askable() []string {
	var names []string
	for _, why := range []Why{NotAsked, Restoring, Incomplete, Departed} {
		for _, h := range c.Held[:min(len(c.Held), mostNamed)] {
			if h.Why == why {
				names = append(names, h.Name.String())
			}
		}
	}
	return names
}

// ElsewhereMessage says which Clusters another tier manages; empty if none.
func (c *Creation) ElsewhereMessage() string {
	if c == nil || len(c.ManagedElsewhere) == 0 {
		return ""
	}
	var list []string
	for _, name := range c.ManagedElsewhere[:min(len(c.ManagedElsewhere), mostNamed)] {
		list = append(list, "Cluster/"+name.String())
	}
	return fmt.Sprintf("managed elsewhere: %s: it was moved to another management cluster, and is declared there", strings.Join(list, ", "))
}

// Message says what is held and what to do next; empty if nothing is.
func (c *Creation) Message() string {
	if !c.Withholding() && !c.Blocked() {
		return ""
	}
	by := map[Why][]HeldCluster{}
	named := c.Held[:min(len(c.Held), mostNamed)]
	for _, h := range named {
		by[h.Why] = append(by[h.Why], h)
	}
	var parts []string
	say := func(why Why, format string) {
		var list []string
		for _, h := range by[why] {
			text := "Cluster/" + h.Name.String()
			if len(h.Missing) > 0 {
				text += " (it lacks " + strings.Join(h.Missing, ", ") + ")"
			}
			list = append(list, text)
		}
		if len(list) > 0 {
			parts = append(parts, fmt.Sprintf(format, strings.Join(list, ", ")))
		}
	}
	say(NotAsked, "not created: %s: it does not exist here, and nobody has said whether it is new or runs already")
	say(Restoring, "not touched: %s: it is paused, as it is while its saved state is being restored")
	say(Incomplete, "not touched: %s: its saved state is not restored completely")
	say(Departed, "not created again: %s: it was paused or being moved to another management cluster when it was last seen")
	say(Pivoting, "not touched: %s: a pivot moves it to another management cluster: cascade pivot with its name tells how far it is")
	say(Vanished, "not created again: %s: it has just gone, and how is being found out")
	if more := len(c.Held) - len(named); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more Clusters", more))
	}
	if text := c.ElsewhereMessage(); text != "" {
		parts = append(parts, text)
	}
	if len(c.Loose) > 0 {
		parts = append(parts, fmt.Sprintf("not created: %s: no Cluster that is there refers to it", Names(c.Loose)))
	}
	if len(c.Held)+len(c.Loose) == 0 {
		return strings.Join(parts, "; ")
	}
	commands := c.askable()
	how, command := "run: ", "cascade approve create "
	if c.elsewhere { // a person decides where the record is
		how, command = "run, with the kubeconfig of the cluster that they are applied to: ", command+"--pushed "
	}
	if len(commands) > 0 {
		parts = append(parts, "restore the saved state of what runs already (docs/rebuild.md); for what is to be built, "+
			how+command+strings.Join(commands, " "))
	} else if len(c.Loose) > 0 {
		parts = append(parts, "when all Clusters are there, "+how+"cascade approve first-sync")
	}
	return strings.Join(parts, "; ")
}

// Owner has the facts about a Kustomization or HelmRelease on which the end of the
// first sync depends.
type Owner struct {
	Entry Entry
	// Ready: everything that it declares is applied.
	Ready bool
	// Inventory is what it applied. Elsewhere: it applies to another cluster.
	Inventory []Entry
	Elsewhere bool
}

// Settles reports whether the first sync of a tier is over: everything that Git
// declares is applied, it includes Clusters, and all of these exist.
// An owner that is not ready, is suspended, or was declared a moment ago and is not
// among the owners yet, may still declare Clusters.
func Settles(owners []Owner, exists func(types.NamespacedName) bool) bool {
	known := map[string]bool{}
	kinds := map[string]bool{}
	for _, o := range owners {
		known[o.Entry.ID()] = true
		kinds[o.Entry.Kind] = true
	}
	clusters := 0
	for _, o := range owners {
		if !o.Ready {
			return false
		}
		if o.Elsewhere {
			continue
		}
		for _, e := range o.Inventory {
			if kinds[e.Kind] && v1alpha1.IsFluxGroup(e.Group) && !known[e.ID()] {
				return false
			}
		}
		for _, name := range ClustersAmong(o.Inventory) {
			if !exists(name) {
				return false
			}
			clusters++
		}
	}
	return clusters > 0
}

// ClustersAmong are the names of the Clusters in an inventory.
func ClustersAmong(entries []Entry) []types.NamespacedName {
	var found []types.NamespacedName
	for _, e := range entries {
		if isCluster(e) {
			found = append(found, types.NamespacedName{Namespace: e.Namespace, Name: e.Name})
		}
	}
	return found
}
