package cause

import (
	"cmp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Object is exactly one object.
type Object struct {
	// Tier that has the object: the path of clusters from this tier down, `<namespace>/<name>`
	// each, joined by `>`. Empty is this tier.
	Tier      string `json:"tier,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String is [tier>]Kind/namespace/name.
func (o Object) String() string {
	text := o.Kind + "/"
	if o.Namespace != "" {
		text += o.Namespace + "/"
	}
	return text + o.Name
}

func (o Object) compare(p Object) int {
	return cmp.Or(strings.Compare(o.Tier, p.Tier), strings.Compare(o.Kind, p.Kind), strings.Compare(o.Namespace, p.Namespace), strings.Compare(o.Name, p.Name))
}

// Path of a Child: that of its cluster, from this tier down.
func (o Object) Path() string {
	segment := o.Namespace + "/" + o.Name
	if o.Tier == "" {
		return segment
	}
	return o.Tier + ">" + segment
}

// State is how a link stands.
type State string

// States, the worst first. Held waits for a person, Suspended is as a person wants it, and
// Progressing is on its way.
const (
	Failing     State = "Failing"
	Held        State = "Held"
	Suspended   State = "Suspended"
	Progressing State = "Progressing"
)

func (s State) rank() int {
	switch s {
	case Failing:
		return 0
	case Held:
		return 1
	case Suspended:
		return 2
	case Progressing:
	}
	return 3
}

// Link is one object of a chain, and what is said of it.
type Link struct {
	Object
	// Layer is the name of the Layer that a Child is not ready for, if it is one.
	Layer string `json:"layer,omitempty"`
	State State  `json:"state"`
	// Reason is stable; api/reasons has it, unless a newer or another program gave it.
	Reason string `json:"reason"`
	// Message is for people: one line, bounded.
	Message string `json:"message,omitempty"`
	// Since is when it began, as far as that is known.
	Since *metav1.Time `json:"since,omitempty"`
	// Heard is when a cluster below was last heard of, if that is too long ago.
	Heard *metav1.Time `json:"heard,omitempty"`
	// Revision that was tried, where there is one.
	Revision string `json:"revision,omitempty"`
	// Next is what a person does about it, in words.
	Next string `json:"next,omitempty"`
	// Command is what a person runs, if there is one command that decides or shows more. It
	// is for this tier, unless the object is in a tier below.
	Command string `json:"command,omitempty"`
	// Page is the part of docs/reasons.md that explains the reason: an anchor.
	Page string `json:"page,omitempty"`
}

// Chain is why an object is not as it should be: the root first, the object last. A chain
// of one link is an object that is its own cause.
type Chain []Link

// Root is what is to be repaired.
func (c Chain) Root() Link { return c[0] }

// objects is how many there are in the chain: of some two things are said.
func (c Chain) objects() int {
	seen := map[Object]bool{}
	for i := range c {
		seen[c[i].Object] = true
	}
	return len(seen)
}

// Group is what one root causes, or several roots that are alike: the same object in many
// clusters, or the same reason of many clusters.
type Group struct {
	// Root is the first of them.
	Root Link `json:"root"`
	// Roots is how many there are. Others are further ones, at most mostNamed.
	Roots  int      `json:"roots"`
	Others []Object `json:"others,omitempty"`
	// Objects is how many are not as they should be for it, roots included, and Clusters
	// how many of these are clusters, with clusters that are only counted.
	Objects  int `json:"objects"`
	Clusters int `json:"clusters,omitempty"`
	// Chain leads to one of those that are furthest from the root.
	Chain Chain `json:"chain"`
	// Affected are the objects, at most mostNamed: those of this tier first.
	Affected []Object `json:"affected,omitempty"`
	// Revision that all roots tried, empty if they tried several or none.
	Revision string `json:"revision,omitempty"`
}

// Explanation is why objects of a tier are not as they should be.
type Explanation struct {
	// Groups by root cause, the worst first, and the one with most clusters first among these.
	Groups []Group `json:"groups"`
	// Objects is how many are not as they should be, and Known how many were looked at.
	Objects int `json:"objects"`
	Known   int `json:"known"`
	// Unread kinds, with why.
	Unread map[string]string `json:"unread,omitempty"`

	graph *graph
}

// Bounds of an Explanation.
const (
	// mostNamed bounds the objects that a group names, mostChains the chains of an object.
	mostNamed, mostChains = 20, 10
	// mostMessage bounds a message, in bytes.
	mostMessage = 1024
)
