package link

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"time"
)

const (
	// mostHeader bounds the header of an answer, in bytes. Kubernetes sends a few hundred.
	mostHeader = 64 << 10
	// eventBuffer is read at once of a watch: an event of the heartbeat has some hundred bytes.
	eventBuffer = 1 << 10
)

// single is a transport for watches. Each request has a connection of its own, and who reads
// the answer drives it: no goroutine is left beside. http.Transport has two of them for each
// connection, and larger buffers, which would be most of what a child takes at rest. It knows
// no proxy, follows no redirect and inflates nothing.
//
// A request fails if its answer has not begun after callTimeout. From then on it lasts until
// the body is closed or the context of the request ends, either of which ends the connection.
// It is safe for concurrent use.
type single struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// tls is for https. It is not changed.
	tls *tls.Config
}

// RoundTrip implements http.RoundTripper.
func (s *single) RoundTrip(r *http.Request) (*http.Response, error) {
	begin, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	c, err := s.connect(begin, r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	// Closing is what wakes a reader. It is that of the connection below TLS, which waits for
	// nobody.
	line := &line{ctx: r.Context(), conn: c}
	line.stop = context.AfterFunc(line.ctx, func() { _ = c.Close() })
	response, err := line.ask(r)
	if err != nil {
		err = line.cause(err)
		_ = line.Close()
		return nil, err
	}
	return response, nil
}

// connect opens the connection, with TLS if the request wants it. The context bounds it.
func (s *single) connect(ctx context.Context, r *http.Request) (net.Conn, error) {
	host, port := r.URL.Hostname(), r.URL.Port()
	secure := r.URL.Scheme == "https"
	switch {
	case port != "":
	case secure:
		port = "443"
	default:
		port = "80"
	}
	raw, err := s.dial(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil || !secure {
		return raw, err
	}
	config := &tls.Config{}
	if s.tls != nil {
		config = s.tls.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = host
	}
	c := tls.Client(raw, config)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return &secured{c, raw}, nil
}

// secured is a connection with TLS that ends without a farewell: nothing is lost with a watch,
// and a peer that is gone would be waited for.
type secured struct {
	*tls.Conn
	raw net.Conn
}

func (s *secured) Close() error { return s.raw.Close() }

// line is the connection of one answer, and its body.
type line struct {
	ctx  context.Context
	conn net.Conn
	stop func() bool
	body io.Reader
}

// ask sends the request and reads how the answer begins.
func (l *line) ask(r *http.Request) (*http.Response, error) {
	if err := l.conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return nil, err
	}
	if err := r.Write(l.conn); err != nil {
		return nil, err
	}
	header := &io.LimitedReader{R: l.conn, N: mostHeader}
	buffer := bufio.NewReaderSize(header, eventBuffer)
	for {
		response, err := http.ReadResponse(buffer, r)
		switch {
		case err != nil && header.N <= 0:
			return nil, fmt.Errorf("the header of the answer has more than %d bytes", mostHeader)
		case err != nil:
			return nil, err
		case response.StatusCode < http.StatusOK && response.StatusCode != http.StatusSwitchingProtocols:
			continue // it says that there will be an answer
		}
		header.N = math.MaxInt64
		l.body, response.Body = response.Body, l
		return response, l.conn.SetDeadline(time.Time{})
	}
}

// cause is why a call failed: that its context ended, if that is why the connection did.
func (l *line) cause(err error) error {
	if ended := l.ctx.Err(); ended != nil && !errors.Is(err, io.EOF) {
		return ended
	}
	return err
}

// Read implements io.Reader.
func (l *line) Read(p []byte) (int, error) {
	n, err := l.body.Read(p)
	if err != nil {
		err = l.cause(err)
	}
	return n, err
}

// Close ends the connection. The body below would read to its end, which a watch does not have.
func (l *line) Close() error {
	l.stop()
	return l.conn.Close()
}
