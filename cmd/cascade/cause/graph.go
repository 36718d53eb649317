package cause

import (
	"slices"
	"strings"
)

// key of a node: an object, or one Layer on a Child, or what a Layer brings.
type key struct {
	Object
	part string
}

// Parts of objects that have findings of their own.
const (
	// content of a Layer: what is wrong on every child in the same way.
	content = "content"
	// onChild is followed by the name of a Layer.
	onChild = "layer "
)

func (k key) compare(l key) int {
	if c := k.Object.compare(l.Object); c != 0 {
		return c
	}
	return strings.Compare(k.part, l.part)
}

// node is an object that is not as it should be.
type node struct {
	key
	link Link
	// because are nodes that may be the cause. Those that are not in the graph are well, or
	// unknown.
	because []key
	// quiet: it is no problem by itself, but may be the cause of one.
	quiet bool
	// uncounted clusters below are as this one is.
	uncounted int
}

// graph of what is not as it should be. An edge leads from a node to its cause.
type graph struct {
	nodes map[key]*node
	// order of the nodes, the same for the same facts.
	order []key
	// known are all objects that were looked at.
	known map[Object]bool
	// causes of each node that are in the graph.
	causes map[key][]key
	// cycle that a node is in, by the least of its nodes.
	cycle map[key][]key
}

func newGraph() *graph {
	return &graph{nodes: map[key]*node{}, known: map[Object]bool{}}
}

// add puts a node into the graph. A second finding of the same object has a part of its own.
func (g *graph) add(n *node) {
	for g.nodes[n.key] != nil {
		n.part += "+"
	}
	g.nodes[n.key] = n
}

// finish resolves the causes.
func (g *graph) finish() {
	for k := range g.nodes {
		g.order = append(g.order, k)
	}
	slices.SortFunc(g.order, key.compare)
	g.causes = make(map[key][]key, len(g.nodes))
	for _, k := range g.order {
		seen := map[key]bool{}
		for _, c := range g.nodes[k].because {
			if g.nodes[c] != nil && !seen[c] {
				seen[c] = true
				g.causes[k] = append(g.causes[k], c)
			}
		}
	}
	g.findCycles()
}

// findCycles finds the strongly connected parts of the graph, by Tarjan's algorithm with a
// stack of its own: a chain of facts may be as long as a fleet.
func (g *graph) findCycles() {
	type frame struct {
		at   key
		next int
	}
	index, low, on := map[key]int{}, map[key]int{}, map[key]bool{}
	g.cycle = map[key][]key{}
	var stack []key
	for _, start := range g.order {
		if _, seen := index[start]; seen {
			continue
		}
		calls := []frame{{at: start}}
		for len(calls) > 0 {
			f := &calls[len(calls)-1]
			if f.next == 0 {
				index[f.at], low[f.at], on[f.at] = len(index), len(index), true
				stack = append(stack, f.at)
			}
			if f.next < len(g.causes[f.at]) {
				to := g.causes[f.at][f.next]
				f.next++
				if _, seen := index[to]; !seen {
					calls = append(calls, frame{at: to})
				} else if on[to] {
					low[f.at] = min(low[f.at], index[to])
				}
				continue
			}
			at := f.at
			calls = calls[:len(calls)-1]
			if len(calls) > 0 {
				up := calls[len(calls)-1].at
				low[up] = min(low[up], low[at])
			}
			if low[at] == index[at] {
				from := len(stack) - 1
				for stack[from] != at {
					from--
				}
				part := slices.Clone(stack[from:])
				stack = stack[:from]
				for _, k := range part {
					on[k] = false
				}
				if len(part) > 1 || slices.Contains(g.causes[at], at) {
					slices.SortFunc(part, key.compare)
					for _, k := range part {
						g.cycle[k] = part
					}
				}
			}
		}
	}
}

// root reports whether a node is one: nothing in the graph causes it, or it is the least of
// a cycle, for which it stands.
func (g *graph) root(k key) bool {
	if part := g.cycle[k]; part != nil {
		return part[0] == k
	}
	return len(g.causes[k]) == 0
}

// effects of each node.
func (g *graph) effects() map[key][]key {
	of := make(map[key][]key, len(g.nodes))
	for _, k := range g.order {
		for _, c := range g.causes[k] {
			of[c] = append(of[c], k)
		}
	}
	return of
}

// walk goes from a node over the next ones, the nearest first, and returns the order and
// from where each was reached first.
func walk(from key, next func(key) []key) (order []key, by map[key]key) {
	by = map[key]key{from: from}
	order = []key{from}
	for i := 0; i < len(order); i++ {
		for _, to := range next(order[i]) {
			if _, seen := by[to]; !seen {
				by[to] = order[i]
				order = append(order, to)
			}
		}
	}
	return order, by
}

// chain from a root to a node, by where each was reached from on a walk that began at the
// root.
func (g *graph) chain(root, to key, by map[key]key) Chain {
	var keys []key
	for k := to; ; k = by[k] {
		keys = append(keys, k)
		if k == root {
			break
		}
	}
	slices.Reverse(keys)
	return g.links(keys)
}

// links of the nodes, in their order. Of what is said several times about one object the
// first stays, which is nearest to the root. Of a Credential both is told: why it is not
// renewed, and that it has lapsed for that.
func (g *graph) links(keys []key) Chain {
	var c Chain
	for i, k := range keys {
		link := g.nodes[k].link
		if i == 0 {
			if part := g.cycle[k]; part != nil {
				link = g.cycleLink(part)
			}
		}
		if n := len(c); n > 0 && c[n-1].Object == link.Object && link.Kind != credentialKind && (c[n-1].Layer == link.Layer || link.Layer == "") {
			continue
		}
		c = append(c, link)
	}
	return c
}
