package source

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"golang.org/x/crypto/ssh"
	"golang.org/x/net/proxy"
)

// wire speaks the pack protocol with a server.
type wire interface {
	references(ctx context.Context) (*packp.AdvRefs, error)
	// pack asks for objects; the answer has to be closed.
	pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error)
	Close() error
}

// connect opens a wire that ends, at the latest, with the context.
func (d *dialer) connect(ctx context.Context) (wire, error) {
	if d.ssh != nil {
		w, err := d.runSSH(ctx, transport.UploadPackServiceName)
		if err != nil {
			return nil, err
		}
		return w, nil
	}
	session, err := d.http.NewUploadPackSession(d.endpoint, d.auth)
	if err != nil {
		return nil, err
	}
	return httpWire{session}, nil
}

type httpWire struct{ transport.UploadPackSession }

func (w httpWire) references(ctx context.Context) (*packp.AdvRefs, error) {
	return w.AdvertisedReferencesContext(ctx)
}

func (w httpWire) pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error) {
	head := &preamble{left: maxPreambleBytes}
	res, err := w.UploadPack(context.WithValue(ctx, preambleKey{}, head), req)
	if err := head.end(err); err != nil {
		return nil, err
	}
	return res, nil
}

// maxPreambleBytes bounds what a server sends before the pack: a line for each commit
// that is shallow, and one for each that both have. There are as many as a mirror has
// packs.
const maxPreambleBytes = 1 << 20

// preambleKey finds the preamble of a request in its context.
type preambleKey struct{}

// preamble reads an answer, and fails where what precedes the pack does not end. The
// library collects it in memory. It is used by one goroutine at a time.
type preamble struct {
	r    io.Reader
	left int64
	// ended: what is read now is the pack, whose reader has a bound of its own.
	ended bool
	err   error
}

func (p *preamble) Read(b []byte) (int, error) {
	if p.ended {
		return p.r.Read(b)
	}
	if p.left <= 0 {
		p.err = failf(ReasonLimitExceeded, "cannot fetch: the server sent more than %d bytes before the pack", maxPreambleBytes)
		return 0, p.err
	}
	n, err := p.r.Read(b[:min(int64(len(b)), p.left)])
	p.left -= int64(n)
	return n, err
}

// end begins with the pack. It returns err, or what came of the preamble: the library
// forgets the kind of an error.
func (p *preamble) end(err error) error {
	p.ended = true
	if p.err != nil {
		return p.err
	}
	return err
}

// sshWire is one run of git-upload-pack or git-receive-pack at the other end. The library's own
// SSH transport has no deadline for the handshake, reads the configuration of
// whoever runs the process, and does not limit what it reads.
type sshWire struct {
	client *ssh.Client
	stdin  io.WriteCloser
	stdout io.Reader
	stderr *complaint
	stop   func() bool
}

// runSSH runs a program of git at the other end.
func (d *dialer) runSSH(ctx context.Context, program string) (_ *sshWire, err error) {
	dialing, cancel := context.WithTimeout(ctx, sshTimeout)
	defer cancel()
	var conn net.Conn
	if d.proxy != nil {
		through, err := proxy.FromURL(d.proxy, &net.Dialer{})
		if err != nil {
			return nil, errors.New("cannot use the proxy: its address cannot be read")
		}
		contextual, ok := through.(proxy.ContextDialer)
		if !ok {
			return nil, errors.New("cannot use the proxy: it has no deadline")
		}
		conn, err = contextual.DialContext(dialing, "tcp", d.endpoint.Host)
		if err != nil {
			return nil, fmt.Errorf("cannot connect through the proxy: %w", err)
		}
	} else if conn, err = (&net.Dialer{}).DialContext(dialing, "tcp", d.endpoint.Host); err != nil {
		return nil, err
	}
	w := &sshWire{stderr: &complaint{}}
	// The deadline of the handshake is taken back after it; that of the fetch
	// closes the connection, whatever waits for it.
	if at, ok := dialing.Deadline(); ok {
		_ = conn.SetDeadline(at)
	}
	w.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if err != nil {
			w.stop()
			_ = conn.Close()
			if ctx.Err() != nil {
				err = ctx.Err()
			}
		}
	}()
	c, channels, requests, err := ssh.NewClientConn(conn, d.endpoint.Host, d.ssh)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	w.client = ssh.NewClient(c, channels, requests)
	session, err := w.client.NewSession()
	if err != nil {
		return nil, err
	}
	if w.stdin, err = session.StdinPipe(); err != nil {
		return nil, err
	}
	if w.stdout, err = session.StdoutPipe(); err != nil {
		return nil, err
	}
	session.Stderr = w.stderr
	if err := session.Start(program + " " + quote(d.endpoint.Path)); err != nil {
		return nil, err
	}
	return w, nil
}

// sshTimeout bounds the time from the first packet to the end of the handshake.
const sshTimeout = 20 * time.Second

// quote is what git writes around a path that a shell may read.
func quote(s string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(s) + "'"
}

func (w *sshWire) references(ctx context.Context) (*packp.AdvRefs, error) {
	adv := packp.NewAdvRefs()
	err := adv.Decode(referencesOf(contextReader{ctx, w.stdout}))
	switch {
	case errors.Is(err, packp.ErrEmptyAdvRefs), err == nil && adv.IsEmpty():
		return nil, transport.ErrEmptyRemoteRepository
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		// The server explains itself beside, not in, the protocol.
		if said := w.stderr.String(); said != "" {
			return nil, fmt.Errorf("the server said: %q", said)
		}
		return nil, err
	}
	transport.FilterUnsupportedCapabilities(adv.Capabilities)
	return adv, nil
}

func (w *sshWire) pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error) {
	if req.IsEmpty() {
		return nil, transport.ErrEmptyUploadPackRequest
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if err := req.UploadRequest.Encode(w.stdin); err != nil {
		return nil, err
	}
	if err := req.UploadHaves.Encode(w.stdin, false); err != nil {
		return nil, err
	}
	if err := pktline.NewEncoder(w.stdin).EncodeString("done\n"); err != nil {
		return nil, err
	}
	if err := w.stdin.Close(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	res := packp.NewUploadPackResponse(req)
	head := &preamble{r: contextReader{ctx, w.stdout}, left: maxPreambleBytes}
	if err := head.end(res.Decode(io.NopCloser(bufio.NewReader(head)))); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("cannot read the server's answer: %w", err)
	}
	return res, nil
}

// Close hangs up. A server that waits for a request gets to know that none
// comes.
func (w *sshWire) Close() error {
	_, _ = w.stdin.Write(pktline.FlushPkt)
	w.stop()
	return w.client.Close()
}

// complaint keeps the beginning of what a server writes to standard error.
type complaint struct {
	mu   sync.Mutex
	data []byte
}

func (c *complaint) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data = append(c.data, p[:min(len(p), 200-len(c.data))]...)
	return len(p), nil
}

func (c *complaint) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(c.data), "?"))
}
