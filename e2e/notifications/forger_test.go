package notifications

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// forgedRate is how many forged requests come in a second, and forgedMost how many there
	// are at least in the long form.
	forgedRate = 1000
	forgedMost = 10_000
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

// forger sends forged requests from a process of its own, as it stands for another machine.
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
	f := &forger{program: exec.CommandContext(t.Context(), self)}
	f.program.Env = append(os.Environ(), forgedURL+"="+url)
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
func forge(url string) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	begun := time.Now()
	of := send(ctx, url)
	of.Seconds = time.Since(begun).Seconds()
	return json.NewEncoder(os.Stdout).Encode(of)
}

// send sends requests that are forged, of no Receiver, or too large, at a rate, until the
// context ends.
func send(ctx context.Context, url string) forgeries {
	client := &http.Client{
		// They come from another address: what one sender forges does not count against others.
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}}).DialContext,
			MaxIdleConnsPerHost: 64,
		},
		Timeout: 30 * time.Second,
	}
	defer client.CloseIdleConnections()
	large := bytes.Repeat([]byte("a"), 2<<20)
	forgedSignature := "sha256=" + signature(sha256.New, "other")
	var senders sync.WaitGroup
	var sent, accepted atomic.Int64
	places, tick := make(chan struct{}, 64), time.NewTicker(time.Second/forgedRate)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		<-tick.C
		places <- struct{}{}
		senders.Go(func() {
			defer func() { <-places }()
			at, content := url, []byte("{}")
			switch {
			case i%100 == 0:
				content = large
			case i%2 == 0:
				at = fmt.Sprintf("%s%064x", url[:len(url)-64], i)
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, at, bytes.NewReader(content))
			if err != nil {
				return
			}
			request.Header.Set("X-Hub-Signature-256", forgedSignature)
			request.Header.Set("X-GitHub-Event", "push")
			sent.Add(1)
			response, err := client.Do(request)
			if err != nil {
				return // a connection that was closed before all of it was sent
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if response.StatusCode < 400 {
				accepted.Add(1)
			}
		})
	}
	senders.Wait()
	return forgeries{Sent: sent.Load(), Accepted: accepted.Load()}
}
