// Package clusterdns resolves names of Services for a process that has the name servers of
// its node only. An agent on the host's network has these, because it must find its
// repositories before the cluster has a DNS of its own; once there is one, its names are
// asked there.
//
// A query for a name of the cluster goes to the cluster's DNS, every other one to the name
// server that the system chose, over the same protocol. Nothing is cached here, and nothing is
// rewritten: who asks for a short name needs search domains. Invariant: a query for a name outside of
// the cluster never waits for the cluster. While the cluster's DNS is not known, a query for
// one of its names fails with the reason.
package clusterdns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Server tells the address of the cluster's DNS, host and port.
type Server func(ctx context.Context) (string, error)

// Resolver resolves names below the domain of a cluster, as cluster.local, by its server. It
// is safe for concurrent use, if server is.
func Resolver(domain string, server Server) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c := &routed{ctx: ctx, network: network, address: address, domain: strings.ToLower(domain), server: server}
		if strings.HasPrefix(network, "udp") {
			return packets{c}, nil
		}
		return c, nil
	}}
}

// routed is a connection to a name server, which is chosen by the first query. The resolver
// makes one for each query, and uses it within the context.
type routed struct {
	ctx                      context.Context
	network, address, domain string
	server                   Server
	deadline                 time.Time
	to                       net.Conn
}

// packets is a routed connection whose messages have no length before them. That it is
// a net.PacketConn tells the resolver so.
type packets struct{ *routed }

var (
	_ net.Conn       = &routed{}
	_ net.PacketConn = packets{}
)

// Write implements net.Conn.
func (p packets) Write(query []byte) (int, error) { return p.send(query, query) }

// ReadFrom implements net.PacketConn. The resolver reads.
func (packets) ReadFrom([]byte) (int, net.Addr, error) { return 0, nil, errors.ErrUnsupported }

// WriteTo implements net.PacketConn. The resolver writes.
func (packets) WriteTo([]byte, net.Addr) (int, error) { return 0, errors.ErrUnsupported }

// lengthBytes are before a message in a stream.
const lengthBytes = 2

// Write implements net.Conn.
func (c *routed) Write(query []byte) (int, error) {
	return c.send(query, query[min(lengthBytes, len(query)):])
}

// send writes a query, whose message tells where it goes.
func (c *routed) send(query, message []byte) (int, error) {
	if c.to == nil {
		if err := c.dial(message); err != nil {
			return 0, err
		}
	}
	return c.to.Write(query)
}

func (c *routed) dial(message []byte) error {
	name, err := questionOf(message)
	if err != nil {
		return err
	}
	address := c.address
	if c.ofCluster(name) {
		if address, err = c.server(c.ctx); err != nil {
			return fmt.Errorf("cannot ask the cluster's DNS for %s: %w", name, err)
		}
	}
	var dialer net.Dialer
	if c.to, err = dialer.DialContext(c.ctx, c.network, address); err != nil {
		return err
	}
	return c.to.SetDeadline(c.deadline)
}

func (c *routed) ofCluster(name string) bool {
	name = strings.ToLower(name)
	return strings.HasSuffix(name, ".svc.") || strings.HasSuffix(name, "."+c.domain+".")
}

// questionOf is the name that a query asks for.
func questionOf(message []byte) (string, error) {
	var p dnsmessage.Parser
	if _, err := p.Start(message); err != nil {
		return "", fmt.Errorf("cannot read a DNS query: %w", err)
	}
	q, err := p.Question()
	if err != nil {
		return "", fmt.Errorf("cannot read the question of a DNS query: %w", err)
	}
	return q.Name.String(), nil
}

// Read implements net.Conn.
func (c *routed) Read(answer []byte) (int, error) {
	if c.to == nil {
		return 0, net.ErrClosed
	}
	return c.to.Read(answer)
}

// Close implements net.Conn.
func (c *routed) Close() error {
	if c.to == nil {
		return nil
	}
	return c.to.Close()
}

// SetDeadline implements net.Conn.
func (c *routed) SetDeadline(t time.Time) error {
	c.deadline = t
	if c.to == nil {
		return nil
	}
	return c.to.SetDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *routed) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *routed) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }

// LocalAddr implements net.Conn.
func (c *routed) LocalAddr() net.Addr { return &net.UDPAddr{} }

// RemoteAddr implements net.Conn.
func (c *routed) RemoteAddr() net.Addr { return &net.UDPAddr{} }
