package page

import (
	"slices"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
)

// whyPage is what is not as it should be, by root cause; or the chains of one object.
type whyPage struct {
	Title string
	// Asked for one object; Found is false if there is none of that name.
	Asked, Found bool
	About        linkView
	// All is the link to everything.
	All    string
	Chains [][]causeView
	// Groups are of everything, or of what is in and below a cluster that was asked for.
	Groups         []groupView
	Objects, Known int
	Paging         paging
}

// causeView is one link of a chain.
type causeView struct {
	Name, Layer, State, Class, Sign string
	Reason, Message, Next           string
	Command, Revision, Link         string
	Since                           moment
	Heard                           *moment
	// Between is how many links are left out before this one.
	Between int
}

// groupView is what one root cause, or several that are alike, leads to.
type groupView struct {
	causeView
	// Others are as many roots like it.
	Others, Objects, Clusters int
	// Effects are the rest of a chain that is as long as any.
	Effects  []causeView
	Examples []linkView
	More     int
}

const (
	maxLinks      = 8 // of a chain
	maxGroupLinks = 5
)

// explain is why objects of the tier are not as they should be.
func explain(f Facts, now time.Time) *cause.Explanation {
	return cause.Explain(&cause.Facts{
		Namespace: f.Namespace, Sources: f.Sources, Others: f.Others, Credentials: f.Credentials, Backups: f.Backups, Kustomizations: f.Kustomizations, Releases: f.HelmReleases, Layers: f.Layers, Children: f.Children,
		Rollouts: f.Rollouts, Clusters: f.Clusters, Heartbeat: f.Heartbeat, Unread: f.Unread,
	}, now)
}

func whyOf(f Facts, q Query, now time.Time) *whyPage {
	e := explain(f, now)
	v := &whyPage{Title: "Why", All: link(Why, Query{Namespace: q.Namespace}), Objects: e.Objects, Known: e.Known}
	groups := e.Groups
	if q.Cluster != "" || q.Object != "" {
		v.Asked, v.Title = true, "No such object"
		o, ok := cause.ClusterAt(q.Cluster), true
		if q.Object != "" {
			o, ok = cause.ObjectOf(q.Cluster, q.Object)
		}
		answer, known := e.About(o)
		if !ok || !known {
			return v
		}
		v.Found, v.Title = true, "Why "+objectText(o)
		if q.Object == "" {
			v.About = linkView{pathText(q.Cluster), link(Cluster, Query{Namespace: q.Namespace, Cluster: q.Cluster})}
		}
		for _, c := range answer.Chains {
			v.Chains = append(v.Chains, linksOf(c, maxLinks, q, now))
		}
		groups = answer.Below
	}
	shown, p := part(groups, q.Page, maxGroups, q.at(Why))
	v.Paging = p
	for i := range shown {
		v.Groups = append(v.Groups, groupOf(&shown[i], q, now))
	}
	return v
}

// causes are the first of what is not ready. What a person suspended is as wanted, and on
// page Why only.
func (v *fleet) causes(f Facts, q Query, now time.Time) {
	groups := explain(f, now).Groups
	v.WhyLink = link(Why, Query{Namespace: q.Namespace})
	for i := range groups {
		switch {
		case groups[i].Root.State == cause.Suspended:
		case len(v.NotReady) == maxGroups:
			v.OtherGroups++
		default:
			v.NotReady = append(v.NotReady, groupOf(&groups[i], q, now))
		}
	}
}

func groupOf(g *cause.Group, q Query, now time.Time) groupView {
	v := groupView{causeView: causeOf(&g.Root, q, now), Others: g.Roots - 1, Objects: g.Objects, Clusters: g.Clusters}
	if g.Roots > 1 {
		v.Revision = revision(g.Revision)
	}
	v.Effects = linksOf(g.Chain, maxGroupLinks, q, now)[1:]
	var named []cause.Object
	for _, o := range append(slices.Clone(g.Others), g.Affected...) {
		if len(named) < maxExamples && !slices.ContainsFunc(g.Chain, func(l cause.Link) bool { return l.Object == o }) {
			named = append(named, o)
		}
	}
	for _, o := range named {
		v.Examples = append(v.Examples, linkView{objectText(o), whyLink(o, q)})
	}
	told := map[cause.Object]bool{}
	for _, l := range g.Chain {
		told[l.Object] = true
	}
	v.More = max(0, g.Objects-len(told)-len(named))
	return v
}

// linksOf are the links of a chain, at most so many: the root, and those next to the object.
func linksOf(c cause.Chain, most int, q Query, now time.Time) []causeView {
	var all []causeView
	between := max(0, len(c)-most)
	for i := range c {
		if i > 0 && i <= between {
			continue
		}
		v := causeOf(&c[i], q, now)
		if i == between+1 {
			v.Between = between
		}
		all = append(all, v)
	}
	return all
}

func causeOf(l *cause.Link, q Query, now time.Time) causeView {
	v := causeView{
		Name: objectText(l.Object), Layer: name(l.Layer), State: string(l.State), Reason: name(l.Reason), Message: message(l.Message), Next: message(l.Next),
		Command: exact(l.Command, ""), Revision: revision(l.Revision), Link: whyLink(l.Object, q), Since: moment{Age: "–"},
	}
	if v.Command == "" && l.Tier == "" && l.Namespace != "" {
		kind := strings.ToLower(l.Kind)
		if kind == "cluster" {
			kind = "cluster.cluster.x-k8s.io"
		}
		v.Command = describe(kind, l.Namespace, l.Name)
	}
	v.Class, v.Sign = marked(l.State)
	if l.Since != nil {
		v.Since = momentOf(*l.Since, now)
	}
	if l.Heard != nil {
		m := momentOf(*l.Heard, now)
		v.Heard = &m
	}
	return v
}

// marked is what the style sheet calls a state, and its sign.
func marked(s cause.State) (class, sign string) {
	switch s {
	case cause.Failing:
		return stateNotReady.Class(), stateNotReady.Sign()
	case cause.Held:
		return stateStale.Class(), "⚠"
	case cause.Suspended:
		return stateSuspended.Class(), stateSuspended.Sign()
	case cause.Progressing:
		return stateStale.Class(), "►"
	}
	return "", ""
}

// objectText is an object with the tier that has it.
func objectText(o cause.Object) string {
	if o.Tier == "" {
		return name(o.String())
	}
	return name(o.String()) + " in " + pathText(o.Tier)
}

// whyLink is the page about one object.
func whyLink(o cause.Object, q Query) string {
	if o.Kind == "Child" {
		return link(Why, Query{Namespace: q.Namespace, Cluster: o.Path()})
	}
	return link(Why, Query{Namespace: q.Namespace, Cluster: o.Tier, Object: o.Kind + "/" + o.Namespace + "/" + o.Name})
}

// whyObject is the same of an object that is named Kind/namespace/name; none for what is no
// such name.
func whyObject(tier, text string, q Query) linkView {
	o, ok := cause.ObjectOf(tier, text)
	if !ok {
		return linkView{}
	}
	return linkView{name(text), whyLink(o, q)}
}
