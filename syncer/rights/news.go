package rights

import "time"

// News waits until things are quiet, so that a binding that is replaced does not count as
// one that is gone, and all that a commit changes is one reason to ask.
const (
	quiet    = 2 * time.Second
	patience = 10 * time.Second
	// rest is how many times as long as a check took the next one is put off, mostRest the
	// longest: with ClusterRoles that change all the time, the API server must not be
	// asked all the time.
	rest     = 4
	mostRest = 25 * time.Second
	// mostPlaces are told apart. More are everywhere.
	mostPlaces = 1000
)

// news is what the watch has shown since it was last acted upon. The zero value is none.
type news struct {
	first, last time.Time
	// all: rights may have changed anywhere. places are namespaces in which they may.
	all    bool
	places map[string]struct{}
}

// add takes in a change at a time. namespace is empty if it is about all; rights is false
// if only accounts came or went, which changes no rights.
func (n *news) add(now time.Time, rights bool, namespace string) {
	if n.first.IsZero() {
		n.first = now
	}
	n.last = now
	switch {
	case !rights || n.all:
	case namespace == "", len(n.places) >= mostPlaces:
		n.all, n.places = true, nil
	default:
		if n.places == nil {
			n.places = map[string]struct{}{}
		}
		n.places[namespace] = struct{}{}
	}
}

// due is when the news is to be acted upon; zero if there is none.
func (n *news) due() time.Time {
	if n.first.IsZero() {
		return time.Time{}
	}
	due, latest := n.last.Add(quiet), n.first.Add(patience)
	if due.After(latest) {
		return latest
	}
	return due
}

// ofRights reports whether rights may have changed.
func (n *news) ofRights() bool { return n.all || len(n.places) > 0 }

// concern reports whether rights may have changed in a namespace; the empty one stands
// for what has none, to which the roles of no namespace apply.
func (n *news) concern(namespace string) bool {
	_, ok := n.places[namespace]
	return n.all || ok
}

// restAfter is when news is acted upon again after a check.
func restAfter(begun, ended time.Time) time.Time {
	return ended.Add(min(rest*ended.Sub(begun), mostRest))
}
