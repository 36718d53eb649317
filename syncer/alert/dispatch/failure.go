package dispatch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"

	"github.com/cascade-gitops/cascade/syncer/alert/payload"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

// Reasons of events about Providers and Alerts, besides those of package payload.
const (
	// ReasonAddressRefused: the address is one that no Provider may have.
	ReasonAddressRefused = answer.ReasonAddress
	// ReasonRedirectRefused: the server sent the message elsewhere.
	ReasonRedirectRefused = answer.ReasonRedirect
	// ReasonCertificateRefused: the server did not prove who it is.
	ReasonCertificateRefused = "CertificateRefused"
	// ReasonTimeout: the server did not answer within spec.timeout.
	ReasonTimeout = "ProviderTimeout"
	// ReasonUnreachable: no connection could be made, or it broke.
	ReasonUnreachable = "ProviderUnreachable"
	// ReasonRefused: the server refused the message.
	ReasonRefused = "ProviderRefused"
	// ReasonFailing: the server failed, or has had too many messages.
	ReasonFailing = "ProviderFailing"
	// ReasonDropped: messages were dropped, as too many waited.
	ReasonDropped = "NotificationsDropped"
	// ReasonRecovered: messages arrive again.
	ReasonRecovered = "ProviderRecovered"
	// ReasonNotFound: the Provider of an Alert does not exist.
	ReasonNotFound = "ProviderNotFound"
	// ReasonInvalidAlert: an expression of an Alert is none.
	ReasonInvalidAlert = "InvalidAlert"
	// ReasonConflict: metadata of an Alert, an object or a controller have one key.
	ReasonConflict = "MetadataConflict"
)

// failure is why a message did not arrive. Its text has nothing of a Secret, and nothing
// that a server said but a word that Slack documents.
type failure struct {
	reason, text string
	// again tells that another attempt may do better.
	again bool
	// final tells that none ever does, whatever somebody mends: it is about the message.
	final bool
	// own tells that it may be about the message alone, as others are of other commits.
	own bool
}

func (f *failure) Error() string { return f.text }

func failuref(reason string, again bool, format string, args ...any) *failure {
	return &failure{reason: reason, text: fmt.Sprintf(format, args...), again: again}
}

// failed makes a failure of any error. What it does not know it calls unreachable, and
// quotes nothing of it: the error of a transport may quote the address with its secrets,
// or what some service answered that does not speak HTTP.
func failed(err error) *failure {
	var known *failure
	var invalid *payload.Error
	var refused *answer.Error
	var unknownCA x509.UnknownAuthorityError
	var wrongHost x509.HostnameError
	var wrongCertificate x509.CertificateInvalidError
	var unverified *tls.CertificateVerificationError
	var alerted tls.AlertError
	var noTLS tls.RecordHeaderError
	var dns *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &invalid):
		return &failure{reason: invalid.Reason, text: invalid.Text}
	case errors.As(err, &refused) && refused.Reason == answer.ReasonAddress:
		return failuref(ReasonAddressRefused, false,
			"the address is link-local, a metadata service, or one of --deny-provider-addresses; name another one")
	case errors.As(err, &unknownCA):
		return failuref(ReasonCertificateRefused, false,
			"the server's certificate is of an unknown authority; name a Secret with its ca.crt in spec.certSecretRef")
	case errors.As(err, &wrongHost):
		return failuref(ReasonCertificateRefused, false, "the server's certificate is for another name; correct the address or the certificate")
	case errors.As(err, &wrongCertificate), errors.As(err, &unverified), errors.As(err, &alerted), errors.As(err, &noTLS):
		return failuref(ReasonCertificateRefused, false, "no connection with TLS could be made; check the certificates of the server and of spec.certSecretRef")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return failuref(ReasonTimeout, true, "the server did not answer in time; check that it works, or raise spec.timeout")
	case errors.As(err, &dns):
		return failuref(ReasonUnreachable, true, "the name of the server is not known; correct the address")
	case errors.Is(err, syscall.ECONNREFUSED):
		return failuref(ReasonUnreachable, true, "the server refuses connections; check the address, and that it works")
	}
	return failuref(ReasonUnreachable, true, "the connection broke, or what answers speaks no HTTP; check the address and the proxy")
}

// refusal judges the code of an answer; nil if the message was taken.
func refusal(code int) *failure {
	what := fmt.Sprintf("the server answered %d %s", code, http.StatusText(code))
	switch {
	case code < http.StatusOK: // the transport deals with these
		return failuref(ReasonFailing, true, "%s", what)
	case code < http.StatusMultipleChoices:
		return nil
	case code < http.StatusBadRequest:
		// Where to is not told: it may have a secret in it.
		return failuref(ReasonRedirectRefused, false, "%s, and sends the message elsewhere; name the address where it ends", what)
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= http.StatusInternalServerError && code != http.StatusNotImplemented:
		return failuref(ReasonFailing, true, "%s", what)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return failuref(ReasonRefused, false, "%s; check the Secret of spec.secretRef", what)
	}
	f := failuref(ReasonRefused, false, "%s; check the address, spec.channel and spec.type", what)
	f.own = code == http.StatusNotFound || code == http.StatusGone
	f.final = !f.own
	return f
}
