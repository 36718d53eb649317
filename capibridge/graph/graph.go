package graph

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Node is an object with its place in the graph. Nobody may change it.
type Node struct {
	Object *unstructured.Unstructured
	// Owners are the UIDs of what is made before it: the owners of the graph, and what it
	// cannot be admitted without, such as the class of a Cluster.
	Owners []types.UID
	// Clusters that it belongs to, sorted; none if it goes along for its label only.
	Clusters []types.NamespacedName
	// Global: it has no namespace, as identities have, or something without a namespace
	// owns it. Clusters that nobody knows of may need it, so it stays where it is.
	Global bool
	// Shared: something besides the Clusters that were asked for needs it or may need it: it
	// belongs to other Clusters as well, to none, or is a Secret or ConfigMap that is only
	// referred to. It stays where it is.
	Shared bool
	// Foreign are its owners that are not in the graph, or that it owns itself, by way of others
	// or not. An object cannot take them along: where they are not, it would be collected as
	// garbage, and of those that own each other none can be made first.
	Foreign []metav1.OwnerReference
	// Circular: it and others own each other. Whoever may write in a namespace can bring that
	// about: it holds up nobody but the Clusters that it belongs to.
	Circular bool

	// Common: nothing but references, a class or a ClusterResourceSet ties it to its Clusters.
	// It is such as many Clusters may use, in another management cluster as well.
	Common bool

	// moves: a label says that it goes along.
	moves bool
	// first are Owners that it cannot be admitted without.
	first []types.UID
}

// Name of the object, as <kind>/<namespace>/<name>.
func (n *Node) Name() string { return nameOf(n.Object) }

func nameOf(u *unstructured.Unstructured) string {
	if u.GetNamespace() == "" {
		return u.GetKind() + "/" + u.GetName()
	}
	return u.GetKind() + "/" + u.GetNamespace() + "/" + u.GetName()
}

// Graph of objects.
type Graph struct {
	nodes map[types.UID]*Node
	order [][]*Node
}

// Of makes the graph of objects, each of which has a UID. What belongs to no Cluster is left
// out, unless it is of Cluster API or a label says that it goes along.
func Of(objects []*unstructured.Unstructured, kinds []Kind) (*Graph, error) {
	b := builder{kinds: kinds, nodes: map[types.UID]*Node{}, byName: map[clusterapi.Reference][]types.UID{}, of: map[types.UID]map[types.NamespacedName]bool{}}
	for _, u := range objects {
		if err := b.add(u); err != nil {
			return nil, err
		}
	}
	b.connect()
	b.belong()
	b.global()
	return b.graph(), nil
}

// builder of a graph. Maps are by UID.
type builder struct {
	kinds Kinds
	nodes map[types.UID]*Node
	uids  []types.UID
	// byName has the objects of a name, whatever their group.
	byName map[clusterapi.Reference][]types.UID
	// owned and refers are the edges along which objects belong to Clusters.
	owned, refers map[types.UID][]types.UID
	// first are further objects that are made before one.
	first map[types.UID][]types.UID
	// of are the Clusters of each object; own those that name themselves.
	of  map[types.UID]map[types.NamespacedName]bool
	own map[types.UID]bool
}

func (b *builder) add(u *unstructured.Unstructured) error {
	uid := u.GetUID()
	if uid == "" {
		return fmt.Errorf("cannot place %s: it has no UID", nameOf(u))
	}
	if b.nodes[uid] != nil {
		return nil // listed twice, as a list of pages may while objects change
	}
	n := &Node{Object: u, Global: u.GetNamespace() == ""}
	kind, _ := b.kinds.of(u.GroupVersionKind().GroupKind())
	n.moves = kind.Move
	for _, label := range []string{clusterapi.MoveLabel, clusterapi.MoveHierarchyLabel} {
		if _, ok := u.GetLabels()[label]; ok {
			n.moves = true
		}
	}
	b.nodes[uid] = n
	b.uids = append(b.uids, uid)
	name := clusterapi.Named(u.GetNamespace(), u.GetKind(), u.GetName())
	b.byName[name] = append(b.byName[name], uid)
	return nil
}

// find the objects that a reference may mean: in its namespace, or in none.
func (b *builder) find(r clusterapi.Reference) []types.UID {
	found := b.byName[clusterapi.Named(r.Namespace, r.Kind, r.Name)]
	if r.Namespace != "" {
		found = append(slices.Clone(found), b.byName[clusterapi.Named("", r.Kind, r.Name)]...)
	}
	return found
}

// connect finds the edges.
func (b *builder) connect() {
	b.owned, b.refers, b.first = map[types.UID][]types.UID{}, map[types.UID][]types.UID{}, map[types.UID][]types.UID{}
	for _, uid := range b.uids {
		n := b.nodes[uid]
		for _, ref := range n.Object.GetOwnerReferences() {
			if b.nodes[ref.UID] == nil {
				continue
			}
			n.Owners = append(n.Owners, ref.UID)
			b.owned[ref.UID] = append(b.owned[ref.UID], uid)
		}
		for _, ref := range referencesOf(n.Object) {
			for _, to := range b.find(ref) {
				if to == uid {
					continue
				}
				b.refers[uid] = append(b.refers[uid], to)
				if isCredential(b.nodes[to].Object) || isCluster(n.Object) && clusterapi.IsClass(ref.Kind) {
					b.first[uid] = append(b.first[uid], to)
				}
			}
		}
	}
}

// isCredential reports whether an object is an identity of a provider, without which webhooks do
// not admit what refers to it. Those of clouds, as Azure's, are parts of what is made with them.
func isCredential(u *unstructured.Unstructured) bool {
	return clusterapi.IsIdentity(u.GetKind()) && clusterapi.IsGroup(u.GroupVersionKind().Group)
}

func isCluster(u *unstructured.Unstructured) bool {
	return clusterapi.IsCluster(u.GroupVersionKind().GroupKind())
}

// belong finds out which Clusters each object belongs to: those that it names, and else
// those of its owners; and in any case those of what refers to it.
func (b *builder) belong() {
	clusters := map[types.NamespacedName]bool{}
	for _, uid := range b.uids {
		if u := b.nodes[uid].Object; isCluster(u) {
			clusters[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}] = true
		}
	}
	b.own = map[types.UID]bool{}
	for _, uid := range b.uids {
		b.of[uid] = map[types.NamespacedName]bool{}
		for _, name := range namedBy(b.nodes[uid].Object) {
			if clusters[name] {
				b.of[uid][name] = true
				b.own[uid] = true
			}
		}
	}
	owned := edges{b.owned, func(to types.UID) bool { return !b.own[to] }}
	b.spread(owned)
	tied := map[types.UID]bool{}
	for _, uid := range b.uids {
		tied[uid] = len(b.of[uid]) > 0
	}
	b.bindings()
	// References lead to what owns, and owners to what is referred to, in any order.
	b.spread(owned, edges{b.refers, func(to types.UID) bool { return !isCluster(b.nodes[to].Object) }})
	for _, uid := range b.uids {
		b.nodes[uid].Common = !tied[uid]
	}
}

// bindings ties a ClusterResourceSet to the Clusters that it was applied to.
func (b *builder) bindings() {
	for _, uid := range b.uids {
		n := b.nodes[uid]
		if n.Object.GetKind() != clusterapi.ClusterResourceSetBinding {
			continue
		}
		for _, owner := range n.Owners {
			if b.nodes[owner].Object.GetKind() == clusterapi.ClusterResourceSet {
				maps.Copy(b.of[owner], b.of[uid])
			}
		}
	}
}

// edges of one kind, and to which objects they count.
type edges struct {
	from map[types.UID][]types.UID
	may  func(to types.UID) bool
}

// spread hands the Clusters of each object on along edges, until nothing changes. It ends:
// sets only grow.
func (b *builder) spread(along ...edges) {
	todo := slices.Clone(b.uids)
	for len(todo) > 0 {
		uid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, e := range along {
			for _, to := range e.from[uid] {
				if !e.may(to) {
					continue
				}
				before := len(b.of[to])
				maps.Copy(b.of[to], b.of[uid])
				if len(b.of[to]) > before {
					todo = append(todo, to)
				}
			}
		}
	}
}

// namedBy are the Clusters that an object itself names.
func namedBy(u *unstructured.Unstructured) []types.NamespacedName {
	names := clusterapi.ClustersOf(u)
	if len(names) == 0 && u.GroupVersionKind().GroupKind() == secrets.GroupKind() && len(u.GetOwnerReferences()) == 0 {
		if cluster, ok := clusterapi.ClusterOfSecret(u.GetName()); ok {
			names = []string{cluster}
		}
	}
	out := make([]types.NamespacedName, 0, len(names))
	for _, name := range names {
		out = append(out, types.NamespacedName{Namespace: u.GetNamespace(), Name: name})
	}
	return out
}

// global marks what something without a namespace owns.
func (b *builder) global() {
	var todo []types.UID
	for _, uid := range b.uids {
		if b.nodes[uid].Global {
			todo = append(todo, uid)
		}
	}
	for len(todo) > 0 {
		uid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, to := range b.owned[uid] {
			if n := b.nodes[to]; !n.Global && !b.own[to] {
				n.Global = true
				todo = append(todo, to)
			}
		}
	}
}

// graph has what is kept, in order.
func (b *builder) graph() *Graph {
	moving := map[types.UID]bool{}
	var todo []types.UID
	for _, uid := range b.uids {
		if b.nodes[uid].moves {
			moving[uid] = true
			todo = append(todo, uid)
		}
	}
	for len(todo) > 0 {
		uid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !b.carries(b.nodes[uid].Object) {
			continue
		}
		for _, to := range b.owned[uid] {
			if !moving[to] {
				moving[to] = true
				b.nodes[to].moves = true
				todo = append(todo, to)
			}
		}
	}
	kept := map[types.UID]*Node{}
	for _, uid := range b.uids {
		n := b.nodes[uid]
		group := n.Object.GroupVersionKind().Group
		if len(b.of[uid]) == 0 && !moving[uid] && (isData(n.Object) || !clusterapi.IsGroup(group)) {
			continue
		}
		n.Clusters = slices.SortedFunc(maps.Keys(b.of[uid]), compareNames)
		n.first = b.first[uid]
		n.Owners = append(n.Owners, n.first...)
		n.Shared = n.Common && isData(n.Object)
		kept[uid] = n
	}
	for _, n := range kept {
		n.settle(kept)
	}
	return arrange(kept)
}

// carries reports whether what an object owns goes along with it.
func (b *builder) carries(u *unstructured.Unstructured) bool {
	kind, _ := b.kinds.of(u.GroupVersionKind().GroupKind())
	_, labelled := u.GetLabels()[clusterapi.MoveHierarchyLabel]
	return kind.MoveHierarchy || labelled
}

// settle makes Owners those that are kept, sorted, each once.
func (n *Node) settle(kept map[types.UID]*Node) {
	owners := slices.DeleteFunc(slices.Clone(n.Owners), func(uid types.UID) bool { return kept[uid] == nil || uid == n.Object.GetUID() })
	slices.Sort(owners)
	n.ownedBy(slices.Compact(owners))
}

// ownedBy sets Owners, which are sorted, and makes Foreign the others that the object itself
// names.
func (n *Node) ownedBy(owners []types.UID) {
	n.Owners = owners
	n.Foreign = slices.DeleteFunc(n.Object.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
		_, found := slices.BinarySearch(owners, ref.UID)
		return found
	})
}

// Portable is the object as it can be made elsewhere, without its Foreign owners.
func (n *Node) Portable() *unstructured.Unstructured {
	u := Portable(n.Object)
	if len(n.Foreign) > 0 {
		u.SetOwnerReferences(slices.DeleteFunc(u.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
			return slices.ContainsFunc(n.Foreign, func(f metav1.OwnerReference) bool { return f.UID == ref.UID })
		}))
	}
	return u
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// arrange puts nodes in order: each group has what is left with no owners but those of
// former groups.
func arrange(nodes map[types.UID]*Node) *Graph {
	g := &Graph{nodes: nodes}
	done := map[types.UID]bool{}
	for len(done) < len(nodes) {
		var group []*Node
		for uid, n := range nodes {
			if !done[uid] && !slices.ContainsFunc(n.Owners, func(owner types.UID) bool { return nodes[owner] != nil && !done[owner] }) {
				group = append(group, n)
			}
		}
		if len(group) == 0 {
			openCircles(nodes, done)
			continue
		}
		slices.SortFunc(group, compareNodes)
		for _, n := range group {
			done[n.Object.GetUID()] = true
		}
		g.order = append(g.order, group)
	}
	return g
}

// openCircles takes owners from nodes that are not done and own each other. What a node cannot
// be admitted without stays before it, unless that alone makes the circle.
func openCircles(nodes map[types.UID]*Node, done map[types.UID]bool) {
	circles := circlesOf(nodes, done)
	for _, all := range []bool{false, true} {
		opened := false
		for uid, circle := range circles {
			n := nodes[uid]
			owners := slices.DeleteFunc(slices.Clone(n.Owners), func(owner types.UID) bool {
				return circles[owner] == circle && (all || !slices.Contains(n.first, owner))
			})
			if len(owners) == len(n.Owners) {
				continue
			}
			foreign := len(n.Foreign)
			n.ownedBy(owners)
			n.Circular = n.Circular || len(n.Foreign) > foreign
			opened = true
		}
		if opened {
			return
		}
	}
}

// circlesOf finds the nodes that are not done and are in a circle, as Tarjan does. Those of one
// number lead to each other.
func circlesOf(nodes map[types.UID]*Node, done map[types.UID]bool) map[types.UID]int {
	circles, seen, low, open := map[types.UID]int{}, map[types.UID]int{}, map[types.UID]int{}, map[types.UID]bool{}
	var path []types.UID
	var visit func(uid types.UID)
	visit = func(uid types.UID) {
		seen[uid] = len(seen) + 1
		low[uid], open[uid] = seen[uid], true
		path = append(path, uid)
		for _, owner := range nodes[uid].Owners {
			switch {
			case nodes[owner] == nil || done[owner]:
			case seen[owner] == 0:
				visit(owner)
				low[uid] = min(low[uid], low[owner])
			case open[owner]:
				low[uid] = min(low[uid], seen[owner])
			}
		}
		if low[uid] != seen[uid] {
			return
		}
		at := slices.Index(path, uid)
		for _, member := range path[at:] {
			open[member] = false
			if len(path)-at > 1 {
				circles[member] = seen[uid]
			}
		}
		path = path[:at]
	}
	for uid := range nodes {
		if !done[uid] && seen[uid] == 0 {
			visit(uid)
		}
	}
	return circles
}

func compareNodes(a, b *Node) int {
	return cmp.Or(
		strings.Compare(a.Object.GetNamespace(), b.Object.GetNamespace()),
		strings.Compare(a.Object.GroupVersionKind().Group, b.Object.GroupVersionKind().Group),
		strings.Compare(a.Object.GetKind(), b.Object.GetKind()),
		strings.Compare(a.Object.GetName(), b.Object.GetName()),
	)
}

// Clusters of the graph, sorted.
func (g *Graph) Clusters() []types.NamespacedName {
	var names []types.NamespacedName
	for _, n := range g.nodes {
		if isCluster(n.Object) {
			names = append(names, types.NamespacedName{Namespace: n.Object.GetNamespace(), Name: n.Object.GetName()})
		}
	}
	slices.SortFunc(names, compareNames)
	return names
}

// Node of a UID; nil if it is not in the graph.
func (g *Graph) Node(uid types.UID) *Node { return g.nodes[uid] }

// Len is how many objects the graph has.
func (g *Graph) Len() int { return len(g.nodes) }

// InOrder has all nodes in groups: what owns another object is in a group before it.
func (g *Graph) InOrder() [][]*Node {
	out := make([][]*Node, 0, len(g.order))
	for _, group := range g.order {
		out = append(out, slices.Clone(group))
	}
	return out
}

// Only has what belongs to some Clusters, with what they share with others, and what goes
// along for its label from their namespaces. What else needs it or may need it is Shared.
func (g *Graph) Only(clusters ...types.NamespacedName) *Graph {
	wanted, namespaces := map[types.NamespacedName]bool{}, map[string]bool{}
	for _, name := range clusters {
		wanted[name], namespaces[name.Namespace] = true, true
	}
	kept := map[types.UID]*Node{}
	var keep func(uid types.UID)
	keep = func(uid types.UID) {
		n := g.nodes[uid]
		if n == nil || kept[uid] != nil {
			return
		}
		is := *n
		is.Shared = n.Shared || len(n.Clusters) == 0 || slices.ContainsFunc(n.Clusters, func(name types.NamespacedName) bool { return !wanted[name] })
		kept[uid] = &is
		// An object cannot be made without its owners.
		for _, owner := range n.Owners {
			if !isCluster(g.nodes[owner].Object) {
				keep(owner)
			}
		}
	}
	for uid, n := range g.nodes {
		along := len(n.Clusters) == 0 && n.moves && namespaces[n.Object.GetNamespace()]
		if along || slices.ContainsFunc(n.Clusters, func(name types.NamespacedName) bool { return wanted[name] }) {
			keep(uid)
		}
	}
	for _, n := range kept {
		n.settle(kept)
	}
	return arrange(kept)
}
