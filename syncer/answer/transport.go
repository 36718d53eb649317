package answer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	// callTimeout bounds a call that comes without a deadline.
	callTimeout = 30 * time.Second
	// mostRefusal bounds the body of an answer that is an error. Longer ones are cut.
	mostRefusal = 64 << 10
	// mostMessage bounds the message in an error of another's API server, and
	// mostCauses how many causes it lists.
	mostMessage = 2 << 10
	mostCauses  = 16
)

// Guard bounds all that is sent with a configuration of the agent's own cluster, by
// whatever client is made of it. A configuration that Addresses guarded keeps its
// tighter bounds.
func Guard(config *rest.Config) { wrap(config, Own()) }

func wrap(config *rest.Config, limits Limits) {
	prefix := ""
	if u, err := url.Parse(config.Host); err == nil {
		prefix = u.Path
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return Bound(next, limits, prefix) })
}

// Bound returns a transport whose answers have bounds. prefix is the path of the
// server's URL. next inflates what it receives, as http.Transport does.
func Bound(next http.RoundTripper, limits Limits, prefix string) http.RoundTripper {
	if known, ok := next.(*bounded); ok {
		return known
	}
	return &bounded{next: next, limits: limits, prefix: prefix}
}

// Transport is an http.Transport whose answers end with their requests. Every client of a server
// that may be hostile has one, unless Bound does the same. It is safe for concurrent use.
type Transport struct{ *http.Transport }

// Over returns a transport that uses t.
func Over(t *http.Transport) Transport { return Transport{t} }

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := switched(response); err != nil {
		return nil, err
	}
	return response, nil
}

// switched is an error, and ends the connection, if the server changed the protocol. net/http hands
// the bare connection over as the body then, whether the request asked for that or not: it has no
// end, and neither the context of the request nor the time limit of a client reaches it.
func switched(response *http.Response) error {
	if response.StatusCode != http.StatusSwitchingProtocols {
		return nil
	}
	_ = response.Body.Close()
	return errors.New("the server answers 101 and changes the protocol, which nobody asked for; name another server, or correct it")
}

// bounded is safe for concurrent use.
type bounded struct {
	next   http.RoundTripper
	limits Limits
	prefix string
}

// CloseIdleConnections of the transport below, if it has any.
func (b *bounded) CloseIdleConnections() {
	if next, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := classify(r, b.prefix)
	cancel := func() {}
	if _, bounded := r.Context().Deadline(); !bounded && asked != watch {
		var ctx context.Context
		ctx, cancel = context.WithTimeout(r.Context(), callTimeout)
		r = r.WithContext(ctx)
	}
	response, err := b.next.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	if response.Body == nil {
		response.Body = http.NoBody
	}
	response.Body = &ending{response.Body, cancel}
	if err := switched(response); err != nil {
		return nil, &Error{ReasonNotKubernetes, err.Error()}
	}
	switch code := response.StatusCode; {
	case code == http.StatusNotModified:
		return response, nil
	case code == http.StatusMovedPermanently, code == http.StatusFound, code == http.StatusSeeOther,
		code == http.StatusTemporaryRedirect, code == http.StatusPermanentRedirect:
		_ = response.Body.Close()
		// Where to is not told: it may have a secret in it.
		return nil, &Error{ReasonRedirect, fmt.Sprintf("the server answers %d and sends the request elsewhere; name the address of the API server itself", code)}
	case code >= http.StatusMultipleChoices:
		return b.refusal(response, r.Header.Get("Authorization"))
	}
	most := b.limits.of(asked)
	if asked == watch {
		if !strings.Contains(response.Header.Get("Content-Type"), "protobuf") {
			response.Body = &events{body: response.Body, most: most}
		}
		return response, nil
	}
	response.Body = &counted{body: response.Body, left: most, most: most}
	if b.limits.stranger && (asked == object || asked == list || asked == discovery) {
		return ofKubernetes(response)
	}
	return response, nil
}

// refusal bounds an answer that is an error. That of another's server is passed on if
// it is a Status of Kubernetes, with its words cut. Whatever else it is could be the
// secret of a service that the address leads to.
//
// Whoever was sent a credential may send it back. It is not told to who reads errors.
func (b *bounded) refusal(response *http.Response, sent string) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, mostRefusal))
	_ = response.Body.Close()
	if err != nil {
		return nil, err
	}
	if b.limits.stranger && !bytes.HasPrefix(body, protobuf) {
		if _, credential, ok := strings.Cut(sent, " "); ok && credential != "" {
			body = bytes.ReplaceAll(body, []byte(credential), []byte("***"))
		}
		body = statusOf(body, response.StatusCode)
		response.Header.Set("Content-Type", "application/json")
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	response.ContentLength = int64(len(body))
	response.Header.Del("Content-Length")
	return response, nil
}

// statusOf returns the Status in a body, cut, or another one for its code.
func statusOf(body []byte, code int) []byte {
	var s metav1.Status
	if json.Unmarshal(body, &s) != nil || s.Kind != "Status" || s.APIVersion != "v1" {
		s = metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code),
			Message: fmt.Sprintf("the server answered %d %s", code, http.StatusText(code)),
		}
	}
	s.Message = cut(s.Message)
	if s.Details != nil {
		s.Details.Causes = s.Details.Causes[:min(len(s.Details.Causes), mostCauses)]
		for i := range s.Details.Causes {
			s.Details.Causes[i].Message = cut(s.Details.Causes[i].Message)
		}
	}
	short, err := json.Marshal(&s)
	if err != nil {
		return nil
	}
	return short
}

func cut(text string) string {
	if len(text) > mostMessage {
		return text[:mostMessage] + " ..."
	}
	return text
}

// protobuf begins each object in that encoding.
var protobuf = []byte("k8s\x00")

// ofKubernetes passes an answer on that begins as every object of Kubernetes does.
// client-go quotes an answer without a kind in its error, all of it.
func ofKubernetes(response *http.Response) (*http.Response, error) {
	r := bufio.NewReaderSize(response.Body, 256)
	begin, err := r.Peek(64)
	if err != nil && err != io.EOF {
		_ = response.Body.Close()
		return nil, err
	}
	if len(begin) > 0 && !bytes.HasPrefix(begin, protobuf) {
		first, object := bytes.CutPrefix(bytes.TrimSpace(begin), []byte("{"))
		first = bytes.TrimSpace(first)
		if !object || !bytes.HasPrefix(first, []byte(`"kind"`)) && !bytes.HasPrefix(first, []byte(`"apiVersion"`)) {
			_ = response.Body.Close()
			return nil, &Error{ReasonNotKubernetes, "what answers is no API server of Kubernetes; check the address in the kubeconfig"}
		}
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{r, response.Body}
	return response, nil
}

// ending ends the deadline of a call with its body.
type ending struct {
	io.ReadCloser
	end func()
}

func (e *ending) Close() error {
	defer e.end()
	return e.ReadCloser.Close()
}

// counted fails when more is read than an answer may have.
type counted struct {
	body       io.ReadCloser
	left, most int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.body.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return 0, tooLarge(c.most)
	}
	return n, err
}

func (c *counted) Close() error { return c.body.Close() }

func tooLarge(most int64) error {
	return &Error{ReasonTooLarge, fmt.Sprintf("the API server's answer has more than %d bytes", most)}
}

// events fails when one event of a watch is larger than it may be, with what is before
// it. Events are objects of JSON, one after the other, and the decoder of client-go
// collects one of any size. Those of protobuf it bounds by itself.
type events struct {
	body    io.ReadCloser
	most    int64
	size    int64
	depth   int
	quoted  bool
	escaped bool
}

func (e *events) Read(p []byte) (int, error) {
	n, err := e.body.Read(p)
	for _, c := range p[:n] {
		e.size++
		e.step(c)
		if e.depth == 0 && !e.quoted && (c == '}' || c == ']') {
			e.size = 0
		}
		if e.size > e.most {
			return 0, tooLarge(e.most)
		}
	}
	return n, err
}

func (e *events) step(c byte) {
	switch {
	case e.escaped:
		e.escaped = false
	case e.quoted:
		e.escaped = c == '\\'
		e.quoted = c != '"'
	case c == '"':
		e.quoted = true
	case c == '{' || c == '[':
		e.depth++
	case c == '}' || c == ']':
		e.depth = max(e.depth-1, 0)
	}
}

func (e *events) Close() error { return e.body.Close() }
