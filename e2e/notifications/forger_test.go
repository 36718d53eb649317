package notifications

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// forgedRate is how many forged requests come in a second, those of forgedEach at a time, and
	// forgedMost how many there are at least in the long form.
	forgedRate = 1000
	forgedEach = 10 * time.Millisecond
	forgedMost = 10_000
	// forgers are the connections that they come on, and forgedTimeout bounds each request.
	forgers       = 32
	forgedTimeout = 30 * time.Second
	// forgedURL is the variable that makes this program a forger, and runs no test: the URL of
	// the Receiver that requests are forged to.
	forgedURL = "CASCADE_FORGED_URL"
)

// forgeries is what became of the forged requests.
type forgeries struct {
	// Sent is how many there were.
	Sent int64
	// Accepted is how many the agent took for those of a forge.
	Accepted int64
	// Seconds that it took.
	Seconds float64
}

func (of *forgeries) add(more forgeries) {
	of.Sent += more.Sent
	of.Accepted += more.Accepted
	of.Seconds += more.Seconds
}

// forger sends forged requests from a process of its own. It stands for another machine, and
// leaves the processors to the others.
type forger struct {
	program *exec.Cmd
	input   io.Closer
	output  bytes.Buffer
}

// startForger begins to send to a Receiver's URL.
func startForger(t *testing.T, url string) *forger {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &forger{program: exec.CommandContext(t.Context(), "nice", self)}
	// With one thread it does not look for work on the other processor each time that an answer comes.
	f.program.Env = append(os.Environ(), forgedURL+"="+url, "GOMAXPROCS=1")
	f.program.Stdout, f.program.Stderr = &f.output, os.Stderr
	if f.input, err = f.program.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := f.program.Start(); err != nil {
		t.Fatal(err)
	}
	return f
}

// end ends it, and tells what became of its requests.
func (f *forger) end(t *testing.T) forgeries {
	t.Helper()
	if err := f.input.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.program.Wait(); err != nil {
		t.Fatalf("cannot forge requests: %v", err)
	}
	var of forgeries
	if err := json.Unmarshal(f.output.Bytes(), &of); err != nil {
		t.Fatalf("the forger says %q: %v", f.output.Bytes(), err)
	}
	t.Logf("%d forged requests in %.1f s", of.Sent, of.Seconds)
	return of
}

// forge is what the forger's process does: it sends requests until its input ends.
func forge(receiver string) error {
	at, err := url.Parse(receiver)
	if err != nil {
		return fmt.Errorf("cannot parse the URL of a Receiver: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	begun := time.Now()
	of := send(ctx, at)
	of.Seconds = time.Since(begun).Seconds()
	return json.NewEncoder(os.Stdout).Encode(of)
}

// send sends requests that are forged, of no Receiver, or too large, at a rate, until the
// context ends. It writes them as they go over the wire: what the forger itself costs is
// taken from the processors of those that are measured.
func send(ctx context.Context, at *url.URL) forgeries {
	var senders sync.WaitGroup
	var sent, accepted atomic.Int64
	turns, large := make(chan int), bytes.Repeat([]byte("a"), 2<<20)
	signed := fmt.Sprintf("Host: %s\r\nX-Hub-Signature-256: sha256=%s\r\nX-GitHub-Event: push\r\n", at.Host, signature(sha256.New, "other"))
	for range forgers {
		senders.Go(func() {
			c := forging{at: at, large: large, signed: signed, dialer: net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}, Timeout: forgedTimeout}}
			defer c.close()
			for i := range turns {
				sent.Add(1)
				if status, err := c.send(ctx, i); err == nil && status < 400 {
					accepted.Add(1)
				}
			}
		})
	}
	tick := time.NewTicker(forgedEach)
	defer tick.Stop()
	// Who is short of processor time does not send less for it.
	for i, begun := 0, time.Now(); ctx.Err() == nil; {
		for due := int(time.Since(begun).Seconds() * forgedRate); i < due; i++ {
			turns <- i
		}
		<-tick.C
	}
	close(turns)
	senders.Wait()
	return forgeries{Sent: sent.Load(), Accepted: accepted.Load()}
}

// forging is a connection on which forged requests are sent, one after the other. They come
// from another address than others: what one sender forges does not count against others.
type forging struct {
	at     *url.URL
	dialer net.Dialer
	// large is a body that is too large, and signed the headers of each request.
	large  []byte
	signed string
	conn   net.Conn
	reader *bufio.Reader
}

func (c *forging) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// send sends the request of a number, and returns the status it is answered with. An error is
// that of a connection that was closed before all of it was sent.
func (c *forging) send(ctx context.Context, i int) (status int, err error) {
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.conn == nil {
		if c.conn, err = c.dialer.DialContext(ctx, "tcp", c.at.Host); err != nil {
			return 0, err
		}
		c.reader = bufio.NewReader(c.conn)
	}
	path, content := c.at.Path, []byte("{}")
	switch {
	case i%100 == 0:
		content = c.large
	case i%2 == 0:
		path = fmt.Sprintf("%s%064x", path[:len(path)-64], i)
	}
	request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n", path, c.signed, len(content))
	if err := c.conn.SetDeadline(time.Now().Add(forgedTimeout)); err != nil {
		return 0, err
	}
	if _, err := (&net.Buffers{request, content}).WriteTo(c.conn); err != nil {
		return 0, err
	}
	status, closes, err := c.answer()
	if closes {
		c.close()
	}
	return status, err
}

// answer reads the status of an answer, and passes over the rest of it.
func (c *forging) answer() (status int, closes bool, err error) {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return 0, false, err
	}
	if _, err := fmt.Sscanf(string(line), "HTTP/1.1 %d", &status); err != nil {
		return 0, false, fmt.Errorf("cannot read %q: %w", line, err)
	}
	left := 0
	for {
		if line, err = c.reader.ReadSlice('\n'); err != nil {
			return 0, false, err
		}
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
		switch {
		case len(name) == 0:
			_, err = c.reader.Discard(left)
			return status, closes, err
		case bytes.EqualFold(name, []byte("Content-Length")):
			if left, err = strconv.Atoi(string(value)); err != nil {
				return 0, false, fmt.Errorf("cannot read %q: %w", line, err)
			}
		case bytes.EqualFold(name, []byte("Connection")):
			closes = bytes.EqualFold(value, []byte("close"))
		}
	}
}
