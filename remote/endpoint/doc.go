// Package endpoint serves what an environment's Prometheus needs to scrape the children of a
// tier: where they are (HTTP service discovery), and a way to their metrics that leads over
// the connections which the agent has to them.
//
// A child is scraped through the proxy of its API server, as the parent's own account: the
// metrics of its agent, and those of Services that the agent's flags name. Nobody who asks
// chooses an address, a path, a query, a method or a header.
//
// Invariants:
//
//   - a path has three words, the namespace and the name of a Child and the name of an
//     endpoint of the configuration; everything else is refused before the child is asked;
//   - nothing of the request but its deadline reaches the child, and nothing of the child's
//     answer but its body and one of three content types reaches the one who asked;
//   - an answer that is cut ends the connection, so that no part of it counts as whole;
//   - who may ask at all is decided before: see package scrape.
//
// Failure model: a child that did not answer its last probe is not asked. An endpoint that
// fails twice in a row is left alone for half a minute, and has few places with others that
// failed; what works never waits for those. A replica that cannot tell which replica drives
// a child answers discovery with an error, on which Prometheus keeps the targets that it has.
package endpoint
