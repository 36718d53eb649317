// Package web serves the pages of package page over HTTP: read-only, to whoever may read
// what they show.
//
// Invariants:
//
//   - only GET and HEAD are answered, and no request changes anything;
//   - a page is made of what its reader may read, which the API server decides: with the
//     reader's own rights in `cascade web`, by a SubjectAccessReview of each kind in the
//     agent. What is refused names nothing of the tier;
//   - the browser is told to run and to load nothing but the files of this program, and to
//     keep nothing;
//   - on loopback, only requests for the name of the loopback and with the key of this
//     process are answered: neither another site's name that leads here, nor another user of
//     the machine sees anything;
//   - streams of changes are bounded in number and in time;
//   - what is read is shared with other pages and with the agent, and never changed.
//
// Failure model: an API server that does not answer gives a page that says so, with the
// status 503: a list that is followed is there while its watch is open only, and each page asks
// for the report or the heartbeat of the tier besides. A page that is open is told so, and that it is
// read again. Nothing old is shown as if it were new.
package web
