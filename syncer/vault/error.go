package vault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"unicode"

	vaultapi "github.com/hashicorp/vault/api"
)

// Kind of an error.
type Kind int

// Kinds.
const (
	// Unreachable: the server did not answer, is sealed, or fails by itself.
	Unreachable Kind = iota
	// Refused: the server answered that it will not.
	Refused
	// Invalid: the server answered what cannot be used, or the request cannot be made.
	Invalid
)

// Error is a call that failed. Its text may be shown to anybody.
type Error struct {
	Kind Kind
	// Status is that of the answer, 0 without one.
	Status int
	text   string
}

// Error implements error.
func (e *Error) Error() string { return e.text }

// Is reports whether an error is of a kind.
func Is(err error, kind Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}

// mostText bounds what is told of a server's own words.
const mostText = 200

// wrong makes an error out of what the library returned. secrets were sent, and their owners'
// servers may send them back.
func wrong(doing string, err error, secrets ...string) *Error {
	var response *vaultapi.ResponseError
	if errors.As(err, &response) {
		e := &Error{Kind: Refused, Status: response.StatusCode}
		if response.StatusCode >= 500 || response.StatusCode == 412 || response.StatusCode == 429 {
			e.Kind = Unreachable
		}
		if response.StatusCode < 400 {
			e.text = fmt.Sprintf("cannot %s: the server leads to another one (status %d), which a login does not follow", doing, response.StatusCode)
			return e
		}
		e.text = fmt.Sprintf("cannot %s: the server answers with status %d%s", doing, response.StatusCode, said(response, secrets))
		return e
	}
	var tooLarge *tooLargeError
	if errors.As(err, &tooLarge) {
		return &Error{Kind: Invalid, text: fmt.Sprintf("cannot %s: the answer has more than %d bytes", doing, mostAnswer)}
	}
	var network *url.Error
	var refused net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &Error{Kind: Unreachable, text: fmt.Sprintf("cannot %s: the server does not answer in time", doing)}
	case errors.As(err, &network):
		// Of the URL the path is enough, which the caller knows.
		return &Error{Kind: Unreachable, text: fmt.Sprintf("cannot %s: %s", doing, clean(network.Err.Error(), secrets))}
	case errors.As(err, &refused):
		return &Error{Kind: Unreachable, text: fmt.Sprintf("cannot %s: %s", doing, clean(err.Error(), secrets))}
	}
	// What the library could not read it may quote.
	return &Error{Kind: Invalid, text: fmt.Sprintf("cannot %s: the answer is none of Vault's", doing)}
}

// said are the words of a server, as far as they are told.
func said(response *vaultapi.ResponseError, secrets []string) string {
	if response.RawError || len(response.Errors) == 0 {
		return ""
	}
	text := clean(strings.Join(response.Errors, "; "), secrets)
	if text == "" {
		return ""
	}
	return ": " + text
}

// clean makes one bounded line of a text, empty if a secret is in it.
func clean(text string, secrets []string) string {
	for _, secret := range secrets {
		if len(secret) >= 4 && strings.Contains(text, secret) {
			return ""
		}
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > mostText {
		text = string(runes[:mostText]) + "..."
	}
	return text
}
