package compose

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// Pin is the revision that a Cluster may have.
type Pin struct {
	Revision string
	// Run of the Rollout in which the Cluster got it. A lower one is further behind. It is zero of
	// a Cluster that had the revision before any run gave it one, and below that of one that got it past the Rollout.
	Run int64
	// Rollout that counts the runs: those of another one say nothing of them.
	Rollout string
}

// PinOf is what is on record of a Rollout. What a Cluster got past the Rollout came to all at once, with what
// they share: that stays as it is until the last of them has left it.
func PinOf(on *v1alpha1.ChildRollout) Pin {
	if on.Past {
		return Pin{on.Revision, -1, on.Name}
	}
	return Pin{on.Revision, on.Run, on.Name}
}

// Facts is the input of a composition.
type Facts struct {
	Newest *Rendering
	// Older are renderings by their revisions.
	Older map[string]*Rendering
	// Pins of the Clusters that a Rollout governs. A Cluster that has none and is not held
	// has the newest revision.
	Pins map[types.NamespacedName]Pin
	// Held Clusters keep what is in place.
	Held map[types.NamespacedName]bool
	// Waiting are objects, by id, that stay as they are although their Clusters are not
	// held.
	Waiting map[string]bool
	// Good is the revision that passed all waves of each Rollout last. Among pins of one run it is
	// the one that stays.
	Good map[string]string
	// declared are the Clusters of the newest revision and of those that runs brought, once somebody asked.
	declared map[string]map[types.NamespacedName]bool
	// Owned is the inventory.
	Owned []inventory.Entry
	// Roots are the kinds in it whose objects have no namespaces. That an entry has none does not tell: one
	// of an object that lacks its namespace is written down before it is refused.
	Roots map[schema.GroupKind]bool
}

// At is the rendering that a Cluster may have, and the run of its pin; nil if it is held, or
// if its revision was not rendered.
func (f *Facts) At(cluster types.NamespacedName) (*Rendering, int64) {
	if f.Held[cluster] {
		return nil, 0
	}
	pin, pinned := f.Pins[cluster]
	switch {
	case !pinned, pin.Revision == f.Newest.Revision && pin.Run == 0:
		// A Cluster that was created from the newest revision is not behind those that a run has not
		// reached yet: what it shares with them stays as they have it.
		return f.Newest, math.MaxInt64
	case pin.Revision == f.Newest.Revision:
		return f.Newest, pin.Run
	case pin.Run == 0 && f.cameLater(cluster):
		return f.Older[pin.Revision], math.MaxInt64 // nor is it once there is a newer one
	}
	return f.Older[pin.Revision], pin.Run
}

// cameLater reports whether a Cluster is declared that an older revision lacks which a run brought to others.
func (f *Facts) cameLater(cluster types.NamespacedName) bool {
	if f.declared == nil {
		f.declared = map[string]map[types.NamespacedName]bool{f.Newest.Revision: setOf(f.Newest.Clusters())}
		for _, pin := range f.Pins {
			if from := f.Older[pin.Revision]; pin.Run > 0 && from != nil && f.declared[pin.Revision] == nil {
				f.declared[pin.Revision] = setOf(from.Clusters())
			}
		}
	}
	if !f.declared[f.Newest.Revision][cluster] {
		return false // it is to go
	}
	for _, of := range f.declared {
		if !of[cluster] {
			return true
		}
	}
	return false
}

func setOf(clusters []types.NamespacedName) map[types.NamespacedName]bool {
	set := make(map[types.NamespacedName]bool, len(clusters))
	for _, c := range clusters {
		set[c] = true
	}
	return set
}

// Composition is what is to be applied.
type Composition struct {
	// Objects to apply. Those of older renderings are copies, those of the newest are its
	// own.
	Objects []*unstructured.Unstructured
	// Former are those of them that the newest rendering lacks, at their end.
	Former []*unstructured.Unstructured
	// Kept are entries of the inventory that are neither applied nor pruned.
	Kept []inventory.Entry
	// Ahead are objects of the newest rendering that are neither applied nor kept: they come as soon as their
	// Clusters may have that. They are not copies.
	Ahead []*unstructured.Unstructured
}

// choice is a rendering that has a say in what an object is, and where it has that.
type choice struct {
	from *Rendering
	run  int64
	at   int
	// rollout that counts the run; empty for what no run gave.
	rollout string
}

// object that was chosen.
func (c choice) object() *unstructured.Unstructured { return c.from.objects[c.at] }

// say is that of one Rollout in what an object is.
type say struct{ id, rollout string }

// Compose decides what of the renderings is applied.
func Compose(f Facts) Composition {
	c := composer{Facts: f, chosen: map[string]choice{}, kept: map[string]bool{}, known: map[string]bool{}, owned: map[string]bool{}}
	for _, e := range f.Owned {
		c.owned[e.ID()] = true
	}
	if several(f.Pins) {
		c.says = map[say]choice{}
	}
	c.holds = len(f.Held) > 0
	for cluster := range f.Pins {
		if from, _ := c.At(cluster); from == nil {
			c.holds = true
		}
	}
	renderings := c.renderings()
	for _, r := range renderings {
		c.choose(r)
	}
	c.disagree()
	c.unneeded()
	c.namespaces(renderings)
	var out Composition
	out.Objects, out.Former = c.inOrder(renderings)
	out.Kept = c.keep(out.Objects)
	out.Ahead = c.ahead(out)
	return out
}

// several reports whether pins are of more than one Rollout.
func several(pins map[types.NamespacedName]Pin) bool {
	one := ""
	for _, pin := range pins {
		if one == "" {
			one = pin.Rollout
		}
		if pin.Rollout != one {
			return true
		}
	}
	return false
}

type composer struct {
	Facts
	// chosen has the rendering of each object that one was found for.
	chosen map[string]choice
	// says has the one that is furthest behind of each Rollout; nil if there is but one.
	says map[say]choice
	// kept are objects that stay as they are, if they are there; known are those that any
	// rendering has, as it has them, owned those of the inventory.
	kept, known, owned map[string]bool
	// holds: some Cluster is held.
	holds bool
}

// renderings are all that count, the newest first, and then by their revisions.
func (c *composer) renderings() []*Rendering {
	list := []*Rendering{c.Newest}
	for revision, r := range c.Older {
		if revision != c.Newest.Revision {
			list = append(list, r)
		}
	}
	slices.SortFunc(list[1:], func(a, b *Rendering) int { return strings.Compare(a.Revision, b.Revision) })
	return list
}

// idOf is the id that an object of a rendering has in the inventory. Where kustomize sets a namespace,
// each custom resource has it in the rendering, also those whose kind has none, as identities.
func (c *composer) idOf(u *unstructured.Unstructured) string {
	e := inventory.Of(u)
	if c.Roots[e.GroupKind()] {
		e.Namespace = ""
	}
	return e.ID()
}

// choose takes in what one rendering says.
func (c *composer) choose(r *Rendering) {
	for i, u := range r.objects {
		id := c.idOf(u)
		c.known[inventory.Of(u).ID()] = true
		if c.Waiting[inventory.Of(u).ID()] {
			c.kept[id] = true
			continue
		}
		if len(r.of[i]) == 0 && r == c.Newest {
			c.offer(id, choice{from: r, run: math.MaxInt64, at: i})
		}
		for _, cluster := range r.of[i] {
			from, run := c.At(cluster)
			switch from {
			case nil:
				c.kept[id] = true
			case r:
				offered := choice{from: r, run: run, at: i}
				if run != math.MaxInt64 {
					offered.rollout = c.Pins[cluster].Rollout
				}
				c.offer(id, offered)
			}
		}
	}
}

// offer chooses a rendering for an object, if it is further behind than the one that was
// chosen.
func (c *composer) offer(id string, offered choice) {
	chosen, ok := c.chosen[id]
	if !ok || c.behind(offered, chosen) < 0 {
		c.chosen[id] = offered
	}
	if c.says == nil || offered.rollout == "" {
		return
	}
	of := say{id, offered.rollout}
	if said, ok := c.says[of]; !ok || c.behind(offered, said) < 0 {
		c.says[of] = offered
	}
}

func (c *composer) behind(a, b choice) int {
	good := func(of choice) int {
		if of.from.Revision == c.Good[of.rollout] {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(good(a), good(b)), strings.Compare(a.from.Revision, b.from.Revision), strings.Compare(a.rollout, b.rollout))
}

// disagree keeps what Clusters of several Rollouts need, unless these agree on it: which of them is further behind, the
// numbers of their runs do not say. What came past a Rollout came to all.
func (c *composer) disagree() {
	for of, said := range c.says {
		chosen := c.chosen[of.id]
		if chosen.rollout != of.rollout && chosen.run >= 0 && !reflect.DeepEqual(chosen.object(), said.object()) {
			c.kept[of.id] = true
		}
	}
}

// unneeded keeps what no Cluster needed at the older revisions that they may have, and some do at the newest one: it is
// there for others, and Git has it all along. It stays as those have it that are furthest behind.
func (c *composer) unneeded() {
	lowest := map[*Rendering]choice{}
	for cluster, pin := range c.Pins {
		from, run := c.At(cluster)
		if from == nil || from == c.Newest {
			continue
		}
		if l, ok := lowest[from]; !ok || run < l.run {
			lowest[from] = choice{from: from, run: run, rollout: pin.Rollout}
		}
	}
	if len(lowest) == 0 {
		return
	}
	newest, added := map[string]bool{}, map[string]bool{}
	for _, u := range c.Newest.objects {
		newest[c.idOf(u)] = true
	}
	for from, l := range lowest {
		for i, u := range from.objects {
			id := c.idOf(u)
			_, chosen := c.chosen[id]
			if len(from.of[i]) > 0 || !newest[id] || c.kept[id] || chosen && !added[id] {
				continue
			}
			added[id], l.at = true, i
			c.offer(id, l)
		}
	}
}

// namespaces adds Namespaces that the newest rendering lacks and that chosen objects of an
// older one are in.
func (c *composer) namespaces(renderings []*Rendering) {
	for _, r := range renderings[1:] {
		inhabited := map[string]bool{}
		for _, u := range r.objects {
			if c.chosen[c.idOf(u)].from == r {
				inhabited[u.GetNamespace()] = true
			}
		}
		for i, u := range r.objects {
			e := inventory.Of(u)
			if _, declared := c.chosen[e.ID()]; isNamespace(e) && inhabited[e.Name] && !declared {
				c.chosen[e.ID()] = choice{from: r, at: i}
			}
		}
	}
}

func isNamespace(e inventory.Entry) bool { return e.Group == "" && e.Kind == "Namespace" }

// inOrder are the chosen objects in the order of the newest rendering. What that lacks
// comes after, in the order of its own.
func (c *composer) inOrder(renderings []*Rendering) (objects, former []*unstructured.Unstructured) {
	objects = make([]*unstructured.Unstructured, 0, len(c.chosen))
	newest := 0
	placed := make(map[string]bool, len(c.chosen))
	for _, r := range renderings {
		for _, u := range r.objects {
			id := c.idOf(u)
			chosen, ok := c.chosen[id]
			if !ok || placed[id] || c.kept[id] && c.owned[id] || r != c.Newest && chosen.from != r {
				continue
			}
			placed[id] = true
			if chosen.from != c.Newest {
				u = chosen.object().DeepCopy()
			}
			objects = append(objects, u)
		}
		if r == c.Newest {
			newest = len(objects)
		}
	}
	return objects, objects[newest:]
}

// keep are the entries of the inventory that stay as they are.
func (c *composer) keep(applied []*unstructured.Unstructured) []inventory.Entry {
	is := make(map[string]bool, len(applied))
	for _, u := range applied {
		is[c.idOf(u)] = true
	}
	var kept []inventory.Entry
	inhabited := map[string]bool{}
	for _, e := range c.Owned {
		id := e.ID()
		if !is[id] && (c.kept[id] || c.holds && !c.known[id] && !c.released(e)) {
			kept = append(kept, e)
			inhabited[e.Namespace] = true
		}
	}
	for _, e := range c.Owned {
		if id := e.ID(); isNamespace(e) && inhabited[e.Name] && !is[id] && !slices.Contains(kept, e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// ahead are the objects of the newest rendering that a composition has no part in.
func (c *composer) ahead(of Composition) []*unstructured.Unstructured {
	is := make(map[string]bool, len(of.Objects)+len(of.Kept))
	for _, u := range of.Objects {
		is[c.idOf(u)] = true
	}
	for _, e := range of.Kept {
		is[e.ID()] = true
	}
	var ahead []*unstructured.Unstructured
	for _, u := range c.Newest.objects {
		if !is[c.idOf(u)] {
			ahead = append(ahead, u)
		}
	}
	return ahead
}

// released reports whether an entry that no rendering has is known to be of no Cluster that
// is held: another Cluster is.
func (c *composer) released(e inventory.Entry) bool {
	name := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
	if !clusterapi.IsCluster(e.GroupKind()) {
		return false
	}
	from, _ := c.At(name)
	return from != nil
}
