package page

import (
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cascade-gitops/cascade/cmd/cascade/wording"
)

// Name of a page, which is its path below the root as well. The first has an empty path.
type Name string

// The pages.
const (
	Fleet    Name = "fleet"
	Why      Name = "why"
	Objects  Name = "objects"
	Commits  Name = "commits"
	Cluster  Name = "cluster"
	Held     Name = "held"
	Rollouts Name = "rollouts"
)

// Path of a page, relative to the root, so that it works below any prefix.
func (n Name) Path() string {
	if n == Fleet {
		return "./"
	}
	return string(n)
}

// Query is what a page is asked for.
type Query struct {
	// Namespace bounds what is read, for those who may read one only.
	Namespace string
	// Search is in the path, owner, reason or message of a cluster. State, Owner,
	// Provider, Region, Environment and Reason are exact; empty for any.
	Search, State, Owner, Provider, Region, Environment, Reason string
	// Revision that a cluster reports, as a part of it.
	Revision string
	// Cluster is the path of one: <namespace>/<name>, and those below behind ">".
	Cluster string
	// Kind of objects.
	Kind string
	// Object is one of this tier, or of the tier of Cluster: Kind/namespace/name.
	Object string
	// Page of a list, from 1.
	Page int
}

const maxWord = 700 // bytes of a word of a query; paths of clusters are as long

// fields are the parameters of a query.
func (q *Query) fields() map[string]*string {
	return map[string]*string{
		"namespace": &q.Namespace, "search": &q.Search, "state": &q.State, "owner": &q.Owner, "provider": &q.Provider, "region": &q.Region,
		"environment": &q.Environment, "reason": &q.Reason, "revision": &q.Revision, "path": &q.Cluster, "kind": &q.Kind, "object": &q.Object,
	}
}

// ParseQuery reads the parameters of a request. What is not known is ignored, what is too
// long, or no text, is left out.
func ParseQuery(values url.Values) Query {
	q := Query{}
	for key, field := range q.fields() {
		if v := values.Get(key); len(v) <= maxWord && utf8.ValidString(v) && !strings.ContainsFunc(v, wording.Commands) {
			*field = v
		}
	}
	if n, err := strconv.Atoi(values.Get("page")); err == nil && n > 0 && n < 1_000_000 {
		q.Page = n
	}
	return q
}

// Encode is the query as it stands in a URL, without what is empty.
func (q Query) Encode() string {
	values := url.Values{}
	for key, field := range q.fields() {
		if *field != "" {
			values.Set(key, *field)
		}
	}
	if q.Page > 1 {
		values.Set("page", strconv.Itoa(q.Page))
	}
	return values.Encode()
}

// link is a page with a query.
func link(n Name, q Query) string {
	if text := q.Encode(); text != "" {
		return n.Path() + "?" + text
	}
	return n.Path()
}

// at is the same list on another page.
func (q Query) at(n Name) func(page int) string {
	return func(page int) string {
		q.Page = page
		return link(n, q)
	}
}
