package cause

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/reasons"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Explain tells why objects are not as they should be. now is the time of the facts.
func Explain(f *Facts, now time.Time) *Explanation {
	// Where many say the same, the first one's words are shown.
	sorted := *f
	sorted.Children = slices.SortedFunc(slices.Values(f.Children), func(a, b v1alpha1.Child) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	f = &sorted
	b := builder{
		graph: newGraph(), facts: f, now: now, parts: map[Object]bool{}, byLayer: map[Object]*v1alpha1.Layer{}, said: map[[2]string][2]string{},
		keeps: map[Object][]Object{}, void: map[Object]bool{},
	}
	b.keepers()
	b.agent()
	b.credentials()
	b.backups()
	b.providers()
	b.sources()
	b.others()
	b.kustomizations()
	b.releases()
	b.layers()
	b.children()
	b.rollouts()
	b.clusters()
	for _, o := range b.wanted {
		b.missing(o)
	}
	b.finish()
	e := &Explanation{Known: len(b.known), Unread: map[string]string{}, graph: b.graph}
	for kind, why := range f.Unread {
		e.Unread[kind] = plain(why)
	}
	bad := map[Object]bool{}
	for _, k := range b.order {
		if !b.nodes[k].quiet {
			bad[k.Object] = true
		}
	}
	e.Objects = len(bad)
	e.Groups = b.groups()
	return e
}

// Of returns why one object is not as it should be: a chain for each root, at most ten.
// Without a chain it is as it should be. known is false if there is no such object among
// the facts.
func (e *Explanation) Of(o Object) (chains []Chain, known bool) {
	g := e.graph
	for _, from := range g.order {
		if from.Object != o {
			continue
		}
		order, by := walk(from, func(k key) []key { return g.causes[k] })
		for _, root := range order {
			if !g.root(root) || len(chains) == mostChains {
				continue
			}
			// by leads from the root to the object.
			var keys []key
			for k := root; ; k = by[k] {
				keys = append(keys, k)
				if k == from {
					break
				}
			}
			c := g.links(keys)
			if !slices.ContainsFunc(chains, func(other Chain) bool {
				return slices.EqualFunc(c, other, func(a, b Link) bool {
					return a.Object == b.Object && a.Layer == b.Layer && a.Reason == b.Reason
				})
			}) {
				chains = append(chains, c)
			}
		}
	}
	slices.SortStableFunc(chains, func(a, b Chain) int { return cmp.Compare(a.Root().State.rank(), b.Root().State.rank()) })
	return chains, len(chains) > 0 || g.known[o]
}

// Findings are what is said of each object that is not as it should be.
func (e *Explanation) Findings() map[Object][]Link {
	all := make(map[Object][]Link, len(e.graph.nodes))
	for _, k := range e.graph.order {
		all[k.Object] = append(all[k.Object], e.graph.nodes[k].link)
	}
	return all
}

// Named returns the objects of a kind and name that were looked at; an empty namespace
// stands for all. Objects of tiers below count only if tier names theirs.
func (e *Explanation) Named(tier, kind, namespace, name string) []Object {
	var found []Object
	for o := range e.graph.known {
		if o.Tier == tier && o.Kind == kind && o.Name == name && (namespace == "" || o.Namespace == namespace) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, Object.compare)
	return found
}

// Paths returns the clusters that a path names: the whole path from this tier down, or the
// end of it, with or without namespaces.
func (e *Explanation) Paths(path string) []Object {
	want := strings.FieldsFunc(path, func(r rune) bool { return r == '>' })
	for i := range want {
		want[i] = strings.TrimSpace(want[i])
	}
	if len(want) == 0 {
		return nil
	}
	var found []Object
	for o := range e.graph.known {
		if o.Kind != childKind {
			continue
		}
		has := strings.Split(o.Path(), ">")
		if len(has) < len(want) {
			continue
		}
		if o.Path() == path {
			return []Object{o}
		}
		if slices.EqualFunc(has[len(has)-len(want):], want, func(has, want string) bool {
			_, name, _ := strings.Cut(has, "/")
			return has == want || name == want
		}) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, Object.compare)
	return found
}

// groups collects what each root causes, and roots that are alike.
func (b *builder) groups() []Group {
	effects := b.effects()
	var all []*gathered
	byLike := map[like]*gathered{}
	for _, k := range b.order {
		if !b.root(k) {
			continue
		}
		order, by := walk(k, func(k key) []key { return effects[k] })
		// Nobody waits for what is on its way by itself.
		if !slices.ContainsFunc(order, func(k key) bool { return !b.nodes[k].quiet }) {
			continue
		}
		link := b.links([]key{k})[0]
		at := b.likeOf(link)
		g := byLike[at]
		if g == nil {
			g = &gathered{objects: map[Object]bool{}, revision: link.Revision}
			g.Root = link
			byLike[at] = g
			all = append(all, g)
		} else if len(g.Others) < mostNamed {
			g.Others = append(g.Others, link.Object)
		}
		g.Roots++
		if g.revision != link.Revision {
			g.revision = ""
		}
		for _, reached := range order {
			g.take(b.nodes[reached])
		}
		if c := b.chain(k, order[len(order)-1], by); len(c) > len(g.Chain) {
			g.Chain = c
		}
	}
	groups := make([]Group, 0, len(all))
	for _, g := range all {
		groups = append(groups, g.group())
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(
			cmp.Compare(a.Root.State.rank(), b.Root.State.rank()), boolean(a.Root.Reason == ReasonAgentSilent, b.Root.Reason == ReasonAgentSilent),
			cmp.Compare(b.Clusters, a.Clusters), cmp.Compare(b.Objects, a.Objects), a.Root.compare(b.Root.Object), strings.Compare(a.Root.Reason, b.Root.Reason))
	})
	return groups
}

// boolean orders true before false.
func boolean(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// like is what roots of one group have in common.
type like struct {
	state                                State
	kind, namespace, name, layer, reason string
	below                                bool
}

// likeOf tells which group a root is in. An object of this tier is one of its own. An
// object in a cluster below is like that of the same name in another one. Clusters are alike
// if their reason is the same, whatever their names are.
func (b *builder) likeOf(l Link) like {
	at := like{state: l.State, kind: l.Kind, reason: l.Reason, layer: l.Layer, below: l.Tier != ""}
	if !isCluster(l.Object) && !b.parts[l.Object] {
		at.namespace, at.name = l.Namespace, l.Name
	}
	return at
}

// gathered is a Group on the way.
type gathered struct {
	Group
	objects  map[Object]bool
	revision string
	counted  int
}

func (g *gathered) take(n *node) {
	if n.quiet || g.objects[n.Object] {
		return
	}
	g.objects[n.Object] = true
	if n.Kind == childKind {
		g.counted += 1 + n.uncounted
	}
}

func (g *gathered) group() Group {
	out := g.Group
	out.Objects, out.Clusters, out.Revision = len(g.objects), g.counted, g.revision
	out.Affected = slices.SortedFunc(maps.Keys(g.objects), Object.compare)
	out.Affected = slices.DeleteFunc(out.Affected, func(o Object) bool { return o == out.Root.Object || slices.Contains(out.Others, o) })
	out.Affected = out.Affected[:min(len(out.Affected), mostNamed)]
	return out
}

// Kinds of ours.
const (
	childKind, layerKind, rolloutKind, clusterKind = "Child", "Layer", "Rollout", "Cluster"
)

// Reasons that nothing but an Explanation gives.
const (
	reasonDependencyCycle = "DependencyCycle"
	reasonObjectMissing   = "ObjectMissing"
)

func isCluster(o Object) bool { return o.Kind == childKind || o.Kind == clusterKind }

// builder makes the graph of the facts.
type builder struct {
	*graph
	facts *Facts
	now   time.Time
	// parts are the objects of providers that Clusters refer to.
	parts map[Object]bool
	// byLayer are the Layers by their names.
	byLayer map[Object]*v1alpha1.Layer
	// said is what the table of reasons has for a kind and a reason: what is next, and where
	// the page says so.
	said map[[2]string][2]string
	// wanted are objects that others refer to.
	wanted []Object
	// keeps are the Credentials that keep a Secret, void those whose Secret has nothing that
	// is valid.
	keeps map[Object][]Object
	void  map[Object]bool
}

// node of an object, with the bounds of a link.
func (b *builder) node(o Object, part string, state State, reason, message string, since metav1.Time) *node {
	kind := o.Kind
	if b.parts[o] {
		kind = clusterKind
	}
	of := [2]string{kind, reason}
	said, ok := b.said[of]
	if !ok {
		said = [2]string{reasons.Next(kind, reason), reasons.Anchor(kind, reason)}
		b.said[of] = said
	}
	n := &node{key: key{o, part}, link: Link{Object: o, State: state, Reason: reason, Message: plain(message), Next: said[0], Page: said[1]}}
	if !since.IsZero() && since.Unix() > 0 {
		n.link.Since = &since
	}
	return n
}

// missing adds an object that another one refers to and that does not exist, as far as its
// kind could be listed.
func (b *builder) missing(o Object) {
	if !listed(o.Kind) || b.known[o] || b.facts.Unread[o.Kind] != "" || b.facts.Namespace != "" && b.facts.Namespace != o.Namespace || b.nodes[key{o, ""}] != nil {
		return
	}
	b.known[o] = true
	b.add(b.node(o, "", Failing, reasonObjectMissing, o.String()+" does not exist", metav1.Time{}))
}

// listed reports whether all objects of a kind are among the facts, unless it is Unread.
func listed(kind string) bool {
	switch kind {
	case sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.HelmRepositoryKind, sourcev1.HelmChartKind, kustomizationKind, releaseKind:
		return true
	}
	return false
}

// cycleLink stands for a cycle.
func (g *graph) cycleLink(part []key) Link {
	link := g.nodes[part[0]].link
	link.State, link.Reason = Failing, reasonDependencyCycle
	link.Message = plain(g.circle(part) + " wait for each other")
	link.Next, link.Page, link.Command = reasons.Next(link.Kind, reasonDependencyCycle), reasons.Anchor(link.Kind, reasonDependencyCycle), ""
	return link
}

// circle names the shortest way from the first of a cycle back to it.
func (g *graph) circle(part []key) string {
	first := part[0]
	members := make(map[key]bool, len(part))
	for _, k := range part {
		members[k] = true
	}
	inside := func(k key) []key {
		var next []key
		for _, c := range g.causes[k] {
			if members[c] {
				next = append(next, c)
			}
		}
		return next
	}
	order, by := walk(first, inside)
	for _, last := range order {
		if !slices.Contains(g.causes[last], first) {
			continue
		}
		names := []string{first.Object.String()}
		for k := last; ; k = by[k] {
			names = append(names, k.Object.String())
			if k == first {
				break
			}
		}
		slices.Reverse(names)
		return strings.Join(names, " → ")
	}
	return first.Object.String()
}

// agent tells whether there is one that keeps the facts up to date.
func (b *builder) agent() {
	h := b.facts.Heartbeat
	if h == nil || h.Absent && !b.facts.reconciled() {
		return
	}
	o := Object{Kind: "Lease", Namespace: h.Namespace, Name: h.Name}
	b.known[o] = true
	if !h.Silent(b.now) {
		return
	}
	n := b.node(o, "", Failing, ReasonAgentSilent, h.Message(), metav1.NewTime(h.Renewed))
	n.link.Command = "cascade check -n " + h.Namespace
	b.add(n)
}

// ready returns the condition Ready as it is about the present spec, nil if there is none.
func ready(conditions []metav1.Condition, observed bool) *metav1.Condition {
	for i := range conditions {
		if c := &conditions[i]; c.Type == v1alpha1.ReadyCondition {
			if c.Status == metav1.ConditionTrue && !observed {
				return nil // a success of an earlier spec
			}
			return c
		}
	}
	return nil
}
