// Package clusters follows the Clusters of a tier, in the API version that the API server
// serves.
//
// A management cluster changes the version of its Clusters while the agent runs: Cluster
// API is installed, is upgraded to one that serves another version besides, and to one
// that serves the former version no more. A watch of a version that is not served does not
// end, it fails for ever, and what it has seen goes stale. So the watch moves: the one of
// the new version begins beside the former, and takes its place when it has listed all
// Clusters. Until then the former one goes on.
//
// Live and ControlPlane read past the watch, for who has to see what was written a moment ago.
//
// Invariants: those who listen get one stream of events. A move shows them each Cluster in
// its new version, and as deleted those alone that the new list has not. There is no
// moment at which a Cluster that exists is missing.
//
// Failure model: a version that cannot be read, as while the webhook that converts it does
// not answer, is tried until it can be, or until the definition prefers another one. The
// former watch stays meanwhile. If no version is served any more, what was seen last
// stays: that a kind is not served says nothing of its objects. Whoever acts on the absence
// of a Cluster asks the API server.
package clusters
