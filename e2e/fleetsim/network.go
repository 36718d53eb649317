package fleetsim

import (
	"crypto/x509"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// network is the way to one cluster: its open connections, and a gate that lets
// nothing pass while it is a black hole.
type network struct {
	mu    sync.Mutex
	conns map[*conn]struct{}
	// hole is nil while bytes pass; it is closed when they do again.
	hole chan struct{}
}

// set makes the way a black hole or opens it, also for connections that are
// open, and resets those if it is told to.
func (n *network) set(hole, reset bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case hole && n.hole == nil:
		n.hole = make(chan struct{})
	case !hole && n.hole != nil:
		close(n.hole)
		n.hole = nil
	}
	if reset {
		for c := range n.conns {
			c.reset()
		}
	}
}

// gate is what to wait for before bytes pass; nil is nothing.
func (n *network) gate() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hole
}

func (n *network) join(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns == nil {
		n.conns = map[*conn]struct{}{}
	}
	n.conns[c] = struct{}{}
}

func (n *network) leave(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
}

func (n *network) open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

// conn is a connection that belongs to a cluster from the moment that the client
// has said to which.
type conn struct {
	*net.TCPConn
	network atomic.Pointer[network]
	// signed is the client's certificate, once its signature was found good.
	signed  atomic.Pointer[x509.Certificate]
	closing sync.Once
	closed  chan struct{}
	// reading is held by who reads; stash has what arrived while the way was a
	// black hole.
	reading sync.Mutex
	stash   []byte
	// deadline of reads, which waiting in a hole must not lose.
	mu       sync.Mutex
	deadline time.Time
}

// bind says to which cluster the connection belongs.
func (c *conn) bind(n *network) {
	if c.network.CompareAndSwap(nil, n) {
		n.join(c)
	}
}

func (c *conn) gate() <-chan struct{} {
	n := c.network.Load()
	if n == nil {
		return nil
	}
	return n.gate()
}

func (c *conn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(c.stash) == 0 {
		n, err := c.TCPConn.Read(b)
		gate := c.gate()
		if gate == nil {
			return n, err
		}
		c.stash = append(c.stash, b[:n]...)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
	}
	if gate := c.gate(); gate != nil {
		if err := c.hold(gate); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.stash)
	c.stash = c.stash[n:]
	if len(c.stash) == 0 {
		c.stash = nil
	}
	if n == 0 && len(b) > 0 {
		return c.TCPConn.Read(b)
	}
	return n, nil
}

// Numbers of a black hole.
const (
	// holdPoll is how often it is seen whether the client has gone.
	holdPoll = time.Second
	// maxStash is how much a client may send into it.
	maxStash = 1 << 20
)

// hold keeps what arrives until the gate opens, and ends when the client goes.
func (c *conn) hold(gate <-chan struct{}) error {
	for {
		select {
		case <-gate:
			return nil
		case <-c.closed:
			return net.ErrClosed
		default:
		}
		if err := c.keep(holdPoll); err != nil {
			return err
		}
	}
}

// keep reads for a while into the stash. It fails when the client has gone.
func (c *conn) keep(d time.Duration) error {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = c.TCPConn.SetReadDeadline(c.deadline)
	}()
	if err := c.TCPConn.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	buffer := make([]byte, 4096)
	n, err := c.TCPConn.Read(buffer)
	c.stash = append(c.stash, buffer[:n]...)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if len(c.stash) > maxStash {
		return net.ErrClosed
	}
	return nil
}

func (c *conn) Write(b []byte) (int, error) {
	gate := c.gate()
	if gate == nil {
		return c.TCPConn.Write(b)
	}
	tick := time.NewTicker(holdPoll)
	defer tick.Stop()
	for {
		select {
		case <-gate:
			return c.TCPConn.Write(b)
		case <-c.closed:
			return 0, net.ErrClosed
		case <-tick.C:
		}
		// Unless somebody reads, nobody else sees the client go.
		if !c.reading.TryLock() {
			continue
		}
		err := c.keep(time.Millisecond)
		c.reading.Unlock()
		if err != nil {
			return 0, err
		}
	}
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.TCPConn.SetReadDeadline(t)
}

func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.TCPConn.SetDeadline(t)
}

// reset makes the client see a TCP reset.
func (c *conn) reset() {
	_ = c.SetLinger(0)
	c.shut()
	_ = c.TCPConn.Close()
}

func (c *conn) shut() { c.closing.Do(func() { close(c.closed) }) }

func (c *conn) Close() error {
	c.shut()
	if n := c.network.Load(); n != nil {
		n.leave(c)
	}
	return c.TCPConn.Close()
}

// listener wraps connections.
type listener struct{ *net.TCPListener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return &conn{TCPConn: c, closed: make(chan struct{})}, nil
}
