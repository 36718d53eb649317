// Package answer bounds what API servers answer, and whom we ask.
//
// An API server of a child, or of a kubeconfig that somebody wrote, may be hostile,
// broken, or no API server at all. client-go reads whatever it sends into memory,
// inflates it first, follows its redirects and quotes its errors. This package stands
// between client-go and the network, in one place that every connection goes through.
// For clients of other servers it has a transport whose answers end.
//
// Invariants:
//
//   - bytes are counted after they were inflated, and an answer of more than its kind
//     may have fails before the rest of it is read;
//   - no call waits without end: one that comes without a deadline gets one. A watch
//     has none; each of its events has a bound instead;
//   - no server changes the protocol: what would follow has no deadline and no bound;
//   - no redirect is followed, so that a credential goes to the address that it was
//     given for and nowhere else;
//   - what an address that a stranger named answers does not come back in words of its
//     own, unless it is an answer of Kubernetes, and then cut.
//
// Failure model: a refused answer is an Error with a stable reason, of that one call.
package answer

// Reasons of Error.
const (
	// ReasonTooLarge: the answer has more bytes than its kind may have.
	ReasonTooLarge = "AnswerTooLarge"
	// ReasonRedirect: the server sent the request elsewhere.
	ReasonRedirect = "RedirectRefused"
	// ReasonNotKubernetes: what answers is no API server of Kubernetes.
	ReasonNotKubernetes = "NotKubernetes"
	// ReasonAddress: the address is one that a kubeconfig may not name.
	ReasonAddress = "AddressRefused"
)

// Error is an answer, or an address, that is refused. Its text has nothing that the
// server said.
type Error struct {
	Reason string
	text   string
}

func (e *Error) Error() string { return e.Reason + ": " + e.text }
