package source

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// pkt is one line of the pack protocol.
func pkt(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }

const someCommit = "1111111111111111111111111111111111111111"

// advertise lists one branch, as a server does that has much to offer.
func advertise(w io.Writer) {
	_, _ = io.WriteString(w, pkt("# service=git-upload-pack\n")+"0000"+
		pkt(someCommit+" HEAD\x00shallow side-band-64k ofs-delta symref=HEAD:refs/heads/main\n")+pkt(someCommit+" refs/heads/main\n")+"0000")
}

// hostile answers the list of references and the request for a pack.
func hostile(t *testing.T, references, pack http.HandlerFunc) (Origin, *atomic.Int32) {
	t.Helper()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if strings.HasSuffix(r.URL.Path, "/info/refs") {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			references(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		pack(w, r)
	}))
	t.Cleanup(server.Close)
	return Origin{URL: server.URL + "/x.git", Secret: map[string][]byte{"username": []byte("u"), "password": []byte("hidden-word")}}, &requests
}

func TestHostileServers(t *testing.T) {
	usual := func(w http.ResponseWriter, _ *http.Request) { advertise(w) }
	never := func(http.ResponseWriter, *http.Request) { t.Error("a pack was asked for") }
	sideband := func(data []byte) string { return pkt("\x01" + string(data)) }
	answer := func(data string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, data) }
	}
	nak := pkt("shallow "+someCommit) + "0000" + pkt("NAK\n")
	for name, tc := range map[string]struct {
		reason           string
		references, pack http.HandlerFunc
		fails            string
		requests         int32
	}{
		"References": {"a list without an end", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, pkt("# service=git-upload-pack\n")+"0000"+pkt(someCommit+" HEAD\x00shallow\n"))
			line := strings.Repeat(pkt(someCommit+" refs/heads/main\n"), 1000)
			for {
				if _, err := io.WriteString(w, line); err != nil {
					return
				}
			}
		}, never, ReasonLimitExceeded, 1},
		"EndlessPack": {"a pack without an end", usual, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, nak)
			line := sideband(make([]byte, 60_000))
			for {
				if _, err := io.WriteString(w, line); err != nil {
					return
				}
			}
		}, ReasonLimitExceeded, 2},
		"Progress": {"an endless story beside the pack", usual, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, nak)
			line := strings.Repeat(pkt("\x02working\n"), 1000)
			for {
				if _, err := io.WriteString(w, line); err != nil {
					return
				}
			}
		}, ReasonLimitExceeded, 2},
		"Count":     {"four billion objects in 32 bytes", usual, answer(nak + sideband(packOf(1<<32-1)) + "0000"), ReasonLimitExceeded, 2},
		"Garbage":   {"no pack at all", usual, answer(nak + sideband([]byte("garbage and more of it, and more")) + "0000"), ReasonGitOperationFailed, 2},
		"Nothing":   {"nothing", usual, answer(""), ReasonGitOperationFailed, 2},
		"NotAsked":  {"a pack of something else", usual, answer(nak + sideband(packOf(0)) + "0000"), ReasonGitOperationFailed, 2},
		"HTML":      {"a page of a portal", answer("<html>sign in</html>"), never, ReasonGitOperationFailed, 1},
		"BadLength": {"a line that is shorter than it says", answer("ffff# service"), never, ReasonGitOperationFailed, 1},
		"NoCaps":    {"a first line without capabilities", answer(pkt("# service=git-upload-pack\n") + "0000" + pkt(someCommit+" refs/heads/main\n") + "0000"), never, ReasonGitOperationFailed, 1},
		"Unauthorized": {"asking again would not help", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="hidden-word"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, never, ReasonAuthenticationFailed, 1},
		"Redirects": {"a chain without an end", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/x"+r.URL.RequestURI(), http.StatusFound)
		}, never, ReasonGitOperationFailed, 5},
	} {
		t.Run(name, func(t *testing.T) {
			from, requests := hostile(t, tc.references, tc.pack)
			m := NewMirrors(t.TempDir(), 1<<20)
			_, err := m.Fetch(t.Context(), from, onMain, Options{}, nil)
			if err == nil || ReasonOf(err) != tc.fails {
				t.Fatalf("%s\nFetch() = %v, want reason %s", tc.reason, err, tc.fails)
			}
			if requests.Load() != tc.requests {
				t.Errorf("%s\n%d requests, want %d", tc.reason, requests.Load(), tc.requests)
			}
			if strings.Contains(err.Error(), "hidden-word") {
				t.Errorf("%s\nthe error shows the password: %v", tc.reason, err)
			}
		})
	}
}

// packOf is a pack that says how many objects it has, and has those.
func packOf(count uint32, objects ...[]byte) []byte {
	out := append([]byte("PACK\x00\x00\x00\x02"), binary.BigEndian.AppendUint32(nil, count)...)
	for _, o := range objects {
		out = append(out, o...)
	}
	return append(out, make([]byte, 20)...)
}

// packed is one object: its type, the size that it says, and its content.
func packedObject(kind byte, size uint64, base, content []byte) []byte {
	var out []byte
	b := kind<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		out = append(out, b|0x80)
		b = byte(size & 0x7f)
	}
	out = append(append(out, b), base...)
	var deflated bytes.Buffer
	w := zlib.NewWriter(&deflated)
	_, _ = w.Write(content)
	_ = w.Close()
	return append(out, deflated.Bytes()...)
}

func TestInspect(t *testing.T) {
	const blob, refDelta = 3, 7
	base := make([]byte, 20)
	delta := func(target uint64) []byte {
		return append(binary.AppendUvarint(binary.AppendUvarint(nil, 10), target), 0x90, 10)
	}
	text := []byte("content")
	for name, tc := range map[string]struct {
		reason string
		pack   []byte
		fails  string
	}{
		"Blob":      {"the ordinary case", packOf(1, packedObject(blob, 7, nil, text)), ""},
		"Delta":     {"the other one", packOf(1, packedObject(refDelta, uint64(len(delta(10))), base, delta(10))), ""},
		"Empty":     {"no object", packOf(0), ""},
		"Count":     {"more objects than may be", packOf(11), ReasonLimitExceeded},
		"Large":     {"one that says it is large", packOf(1, packedObject(blob, MaxObjectBytes+1, nil, text)), ReasonLimitExceeded},
		"Swollen":   {"one that is larger than it says", packOf(1, packedObject(blob, 7, nil, make([]byte, 100_000))), ReasonGitOperationFailed},
		"Sum":       {"several that are too large together", packOf(2, packedObject(blob, 600, nil, make([]byte, 600)), packedObject(blob, 600, nil, make([]byte, 600))), ReasonLimitExceeded},
		"Amplified": {"a delta of some bytes that makes a terabyte", packOf(1, packedObject(refDelta, uint64(len(delta(1<<40))), base, delta(1<<40))), ReasonLimitExceeded},
		"Overflow":  {"a size that turns negative", packOf(1, packedObject(refDelta, uint64(len(delta(1<<63))), base, delta(1<<63))), ReasonGitOperationFailed},
		"CutOff":    {"a delta without its sizes", packOf(1, packedObject(refDelta, 1, base, []byte{0x80})), ReasonGitOperationFailed},
		"Short":     {"fewer objects than it says", packOf(2, packedObject(blob, 7, nil, text)), ReasonGitOperationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			err := inspect(t.Context(), bytes.NewReader(tc.pack), 10, 1000)
			if (err == nil) != (tc.fails == "") || (err != nil && ReasonOf(err) != tc.fails) {
				t.Errorf("%s\ninspect() = %v, want reason %q", tc.reason, err, tc.fails)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := inspect(ctx, bytes.NewReader(packOf(1, packedObject(blob, 7, nil, text))), 10, 1000); !errors.Is(err, context.Canceled) {
		t.Errorf("inspect() after its deadline = %v", err)
	}
}

// TestInflation: what is little to send may be much to keep.
func TestInflation(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"zeros": strings.Repeat("\x00", 5_000_000), "more": strings.Repeat("\x01", 5_000_000)})
	m := NewMirrors(t.TempDir(), 100_000)
	m.limits.inflatedBytes = 9_000_000
	_, err := m.Fetch(t.Context(), o.url(), onMain, Options{}, nil)
	if ReasonOf(err) != ReasonLimitExceeded || !strings.Contains(err.Error(), "9000000") {
		t.Errorf("Fetch() = %v, want reason %s and the number", err, ReasonLimitExceeded)
	}
	m.limits.inflatedBytes = 11_000_000
	if _, err := m.Fetch(t.Context(), o.url(), onMain, Options{}, nil); err != nil {
		t.Errorf("Fetch() within the limit: %v", err)
	}
}

func TestPatterns(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{".sourceignore": strings.Repeat("x\n", maxPatterns+1), "a.yaml": "1"})
	if _, err := mirrors(t).Fetch(t.Context(), o.url(), onMain, Options{}, nil); ReasonOf(err) != ReasonLimitExceeded {
		t.Errorf("Fetch() = %v, want reason %s", err, ReasonLimitExceeded)
	}
}

// TestDeadlineOfSSH: a server that accepts and says nothing holds a worker no
// longer than the fetch may take.
func TestDeadlineOfSSH(t *testing.T) {
	o := serve(t, gitserver.Options{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := listener.Accept(); err == nil {
			defer conn.Close()
			_, _ = conn.Read(make([]byte, 1)) // the client's greeting: it waits for ours
			cancel()
			_, _ = io.Copy(io.Discard, conn)
		}
	}()
	hosts := strings.Replace(o.KnownHosts(), o.SSHAddress(), listener.Addr().String(), 1)
	secret := map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(hosts)}
	if _, err := mirrors(t).Fetch(ctx, Origin{URL: "ssh://git@" + listener.Addr().String() + "/x", Secret: secret}, onMain, Options{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Fetch() = %v, want it to end with its context", err)
	}
}

// TestTurn: one who waits for another's slow fetch of the same origin waits no
// longer than its own deadline.
func TestTurn(t *testing.T) {
	entered, done := make(chan struct{}), make(chan struct{})
	from, _ := hostile(t, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}, nil)
	m := mirrors(t)
	slow, stop := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		_, _ = m.Fetch(slow, from, onMain, Options{}, nil)
	}()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Fetch(ctx, from, onMain, Options{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Fetch() = %v, want it to end with its context", err)
	}
	stop()
	<-done
}

func TestMissingRepositoryBySSH(t *testing.T) {
	o := serve(t, gitserver.Options{})
	secret := map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(o.KnownHosts())}
	if _, err := mirrors(t).Fetch(t.Context(), Origin{URL: o.SSHURL("team/none"), Secret: secret}, onMain, Options{}, nil); ReasonOf(err) != ReasonGitOperationFailed {
		t.Errorf("Fetch() = %v, want reason %s", err, ReasonGitOperationFailed)
	}
	if _, err := mirrors(t).Fetch(t.Context(), Origin{URL: o.SSHURL(repository), Secret: secret}, onMain, Options{}, nil); ReasonOf(err) != ReasonEmptyRepository {
		t.Errorf("Fetch() of an empty repository = %v, want reason %s", err, ReasonEmptyRepository)
	}
}

// proxied counts what it lets through: requests, and connections by CONNECT.
func proxied(t *testing.T, wantLogin string) (*url.URL, *atomic.Int32) {
	t.Helper()
	var passed atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Proxy-Authorization"); got != wantLogin {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		passed.Add(1)
		if r.Method != http.MethodConnect {
			r.RequestURI = ""
			r.Header.Del("Proxy-Authorization")
			res, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			defer res.Body.Close()
			w.WriteHeader(res.StatusCode)
			_, _ = io.Copy(w, res.Body)
			return
		}
		there, err := net.Dial("tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		here, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { defer there.Close(); _, _ = io.Copy(there, buffered) }()
		defer here.Close()
		_, _ = io.Copy(here, there)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u, &passed
}

func TestProxy(t *testing.T) {
	login := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:pass-word"))
	for name, secure := range map[string]bool{"HTTP": false, "HTTPS": true} {
		t.Run(name, func(t *testing.T) {
			o := serve(t, gitserver.Options{TLS: secure})
			o.commit("main", map[string]string{"a.yaml": "1"})
			address, passed := proxied(t, login)
			secret := map[string][]byte{"address": []byte(address.String() + "\n"), "username": []byte("user"), "password": []byte("pass-word")}
			through, err := ProxyOf(secret)
			if err != nil {
				t.Fatal(err)
			}
			from := Origin{URL: o.HTTPURL(repository), Secret: map[string][]byte{"ca.crt": o.CA()}, Proxy: through}
			if !secure {
				from.Secret = nil
			}
			if _, err := mirrors(t).Fetch(t.Context(), from, onMain, Options{}, nil); err != nil || passed.Load() == 0 {
				t.Errorf("Fetch() = %v with %d requests through the proxy", err, passed.Load())
			}
			through.User = url.UserPassword("user", "hidden-word")
			if _, err := mirrors(t).Fetch(t.Context(), from, onMain, Options{}, nil); err == nil || strings.Contains(err.Error(), "hidden-word") {
				t.Errorf("Fetch() with a wrong login = %v, want an error without it", err)
			}
		})
	}
	t.Run("SSH", func(t *testing.T) {
		o := serve(t, gitserver.Options{})
		o.commit("main", map[string]string{"a.yaml": "1"})
		address, passed := socks(t)
		from := Origin{URL: o.SSHURL(repository), Secret: map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(o.KnownHosts())}, Proxy: address}
		if _, err := mirrors(t).Fetch(t.Context(), from, onMain, Options{}, nil); err != nil || passed.Load() != 1 {
			t.Errorf("Fetch() = %v with %d connections through the proxy", err, passed.Load())
		}
		from.Proxy = &url.URL{Scheme: "http", Host: address.Host}
		if _, err := mirrors(t).Fetch(t.Context(), from, onMain, Options{}, nil); ReasonOf(err) != ReasonAuthenticationFailed {
			t.Errorf("Fetch() by ssh through an http proxy = %v, want reason %s", err, ReasonAuthenticationFailed)
		}
	})
	for name, secret := range map[string]map[string][]byte{
		"None": nil, "Empty": {"address": nil}, "NoScheme": {"address": []byte("proxy:3128")}, "NoHost": {"address": []byte("http://")},
		"Scheme": {"address": []byte("ftp://proxy")}, "Unparsable": {"address": []byte("http://%zz")},
	} {
		if _, err := ProxyOf(secret); ReasonOf(err) != ReasonAuthenticationFailed {
			t.Errorf("%s: ProxyOf() = %v, want reason %s", name, err, ReasonAuthenticationFailed)
		}
	}
}

// socks is a proxy of version 5 that lets everybody through.
func socks(t *testing.T) (*url.URL, *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var passed atomic.Int32
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				head := make([]byte, 2)
				if _, err := io.ReadFull(conn, head); err != nil {
					return
				}
				_, _ = io.CopyN(io.Discard, conn, int64(head[1]))
				_, _ = conn.Write([]byte{5, 0})
				request := make([]byte, 10) // an IPv4 address
				if _, err := io.ReadFull(conn, request); err != nil || request[3] != 1 {
					return
				}
				there, err := net.Dial("tcp", net.JoinHostPort(net.IP(request[4:8]).String(), fmt.Sprint(binary.BigEndian.Uint16(request[8:]))))
				if err != nil {
					return
				}
				defer there.Close()
				passed.Add(1)
				_, _ = conn.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
				go func() { _, _ = io.Copy(there, conn) }()
				_, _ = io.Copy(conn, there)
			}()
		}
	}()
	return &url.URL{Scheme: "socks5", Host: listener.Addr().String()}, &passed
}
