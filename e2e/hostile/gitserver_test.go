package hostile

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"golang.org/x/crypto/ssh"
)

// pkt is one line of the pack protocol.
func pkt(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }

const someCommit = "1111111111111111111111111111111111111111"

// capabilities of a server that has much to offer.
const capabilities = "shallow side-band-64k ofs-delta symref=HEAD:refs/heads/main"

// advertised lists one branch at a commit.
func advertised(commit string) string {
	return pkt("# service=git-upload-pack\n") + "0000" + pkt(commit+" HEAD\x00"+capabilities+"\n") + pkt(commit+" refs/heads/main\n") + "0000"
}

// gitOf answers the list of references and the request for a pack.
func gitOf(references, pack http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/info/refs") {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			references(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		pack(w, r)
	}
}

// text answers with a text and no type of its own.
func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

var login = secret("login", map[string]string{"username": "u", "password": password})

// gitServer is a GitRepository whose server gets a login.
func gitServer(name, reason string, h http.HandlerFunc, tells ...string) fixture {
	if len(tells) == 0 {
		tells = []string{"GitOperationFailed", "LimitExceeded"}
	}
	return fixture{
		name: name, reason: reason, serve: h, kind: "GitRepository", tells: tells,
		objects: manifests(login, source("GitRepository", "url: 'http://$server/x.git', ref: {branch: main}, secretRef: {name: login}, interval: 1m, timeout: 15s")),
	}
}

// gitServers are those that do not keep to the protocol.
func gitServers(o *outside) []fixture {
	usual := text(advertised(someCommit))
	never := statusOf(http.StatusNotFound, "")
	nak := pkt("shallow "+someCommit) + "0000" + pkt("NAK\n")
	all := []fixture{
		gitServer("references", "a list of references without an end", gitOf(endless(pkt("# service=git-upload-pack\n")+"0000"+pkt(someCommit+" HEAD\x00shallow\n"), pkt(someCommit+" refs/heads/main\n")), never)),
		gitServer("references-many", "half a million references", gitOf(text(strings.TrimSuffix(advertised(someCommit), "0000")+manyReferences(400_000)+"0000"), never)),
		gitServer("pack", "a pack without an end", gitOf(usual, endless(nak, pkt("\x01"+strings.Repeat("x", 60_000))))),
		gitServer("progress", "an endless story beside the pack", gitOf(usual, endless(nak, pkt("\x02working\n")))),
		gitServer("errors", "an error without an end", gitOf(usual, endless(nak, pkt("\x03no\n")))),
		gitServer("shallow", "an endless list of what is shallow", gitOf(usual, endless("", pkt("shallow "+someCommit)))),
		gitServer("acknowledged", "an endless list of what both have", gitOf(usual, endless(pkt("shallow "+someCommit)+"0000", pkt("ACK "+someCommit+" common\n")))),
		gitServer("error-body", "an error whose body has no end", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			endless("", "x")(w, r)
		}),
		gitServer("refusal-body", "a refusal whose body has no end", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			endless("", "x")(w, r)
		}, "AuthenticationFailed"),
		gitServer("bomb", "a list of references that inflates to gigabytes", bombing(pkt("# service=git-upload-pack\n")+"0000")),
		gitServer("bomb-pack", "a pack that the transport inflates to gigabytes", gitOf(usual, bombing(nak))),
		gitServer("nothing", "no list", gitOf(text(""), never)),
		gitServer("nothing-packed", "no pack", gitOf(usual, text(""))),
		gitServer("html", "the page of a portal", says("text/html", "<html>sign in</html>")),
		gitServer("dumb", "the list as static servers have it", gitOf(says("text/plain", someCommit+"\trefs/heads/main\n"), never)),
		gitServer("length", "a line that is shorter than it says", gitOf(text("ffff# service"), never)),
		gitServer("length-negative", "a line of length 3", gitOf(text("0003"), never)),
		gitServer("length-noise", "a length that is no number", gitOf(text("zzzz# service=git-upload-pack\n"), never)),
		gitServer("no-capabilities", "a first line without capabilities", gitOf(text(pkt("# service=git-upload-pack\n")+"0000"+pkt(someCommit+" refs/heads/main\n")+"0000"), never)),
		gitServer("capabilities", "capabilities that name other things", gitOf(text(pkt("# service=git-upload-pack\n")+"0000"+pkt(someCommit+" HEAD\x00object-format=sha256 agent="+strings.Repeat("x", 60_000)+"\n")+pkt(someCommit+" refs/heads/main\n")+"0000"), never)),
		gitServer("hash", "a commit whose name is no hash", gitOf(text(advertised(strings.Repeat("z", 40))), never)),
		gitServer("name-above", "a branch that leads out of the directory of branches", gitOf(text(strings.ReplaceAll(advertised(someCommit), pkt(someCommit+" refs/heads/main\n"), pkt(someCommit+" refs/heads/../../../../config\n"))), never)),
		gitServer("name-control", "a branch whose name commands a terminal", gitOf(text(strings.ReplaceAll(advertised(someCommit), pkt(someCommit+" refs/heads/main\n"), pkt(someCommit+" refs/heads/\x1b[2Jmain\n"))), never)),
		gitServer("told-error", "an error in the words of the server, with its control codes", gitOf(text(pkt("# service=git-upload-pack\n")+"0000"+pkt("ERR \x1b[2J"+strings.Repeat("no ", 10_000)+"\n")), never)),
		gitServer("unauthorized", "401, over and over, with a realm that has the password", func(w http.ResponseWriter, r *http.Request) {
			_, sent, _ := r.BasicAuth()
			w.Header().Set("WWW-Authenticate", `Basic realm="`+sent+`"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, "no "+sent)
		}, "AuthenticationFailed"),
		gitServer("forbidden", "403 that shows the password", func(w http.ResponseWriter, r *http.Request) {
			_, sent, _ := r.BasicAuth()
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, sent)
		}, "AuthenticationFailed", "GitOperationFailed"),
		gitServer("not-found", "404 with a page of a megabyte", statusOf(http.StatusNotFound, strings.Repeat("x", 1<<20))),
		gitServer("retry-after", "503, to come again in thirty years", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "999999999")
			w.WriteHeader(http.StatusServiceUnavailable)
		}),
		gitServer("redirect", "to another host, which would get the login", leads(http.StatusFound, o.other.url())),
		gitServer("redirect-permanent", "the same, for the request of a pack", gitOf(usual, leads(http.StatusTemporaryRedirect, o.other.url()))),
		gitServer("redirect-inside", "to a server inside, of another scheme", leads(http.StatusFound, "https://"+strings.TrimPrefix(o.other.url(), "http://"))),
		gitServer("redirect-file", "to a file of the machine", leads(http.StatusFound, "file://"+o.dir)),
		gitServer("redirect-secret", "to an address that has the password in it, which an error would show", func(w http.ResponseWriter, r *http.Request) {
			_, sent, _ := r.BasicAuth()
			http.Redirect(w, r, "gopher://x/"+sent, http.StatusFound)
		}),
		gitServer("redirect-circle", "redirects without an end", circles),
		gitServer("hang", "no answer", hangs),
		gitServer("hang-after-headers", "headers, and then nothing", begins("001e#")),
		gitServer("hang-in-pack", "half of a pack, and then nothing", gitOf(usual, begins(nak+pkt("\x01PACK\x00\x00\x00\x02\x00\x00\x00\x01")))),
		gitServer("switch", "another protocol, which nobody asked for, and nothing", switches("")),
		gitServer("drip", "a byte each 100 ms", drips(advertised(someCommit))),
		gitServer("drip-pack", "a pack of a byte each 100 ms", gitOf(usual, drips("0005\x02"))),
		gitServer("headers", "a hundred thousand headers", headers),
		gitServer("chunks", "a list that is a gigabyte shorter than it says", lies(advertised(someCommit))),
	}
	return append(all, sshServers()...)
}

func manyReferences(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(pkt(fmt.Sprintf("%s refs/heads/b%d\n", someCommit, i)))
	}
	return b.String()
}

// sshServer is a GitRepository by SSH.
func sshServer(name, reason string, serve func(net.Conn), known, identity string) fixture {
	return fixture{
		name: "ssh-" + name, reason: reason, listen: serve, kind: "GitRepository", tells: []string{"GitOperationFailed", "AuthenticationFailed", "LimitExceeded"},
		objects: manifests(secret("keys", map[string]string{"identity": identity, "known_hosts": known}),
			source("GitRepository", "url: 'ssh://git@$server/x.git', ref: {branch: main}, secretRef: {name: keys}, interval: 1m, timeout: 15s")),
	}
}

// sshServers do not keep to SSH, or to what follows.
func sshServers() []fixture {
	_, hostKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil
	}
	host, err := ssh.NewSignerFromKey(hostKey)
	if err != nil {
		return nil
	}
	block, err := ssh.MarshalPrivateKey(hostKey, "")
	if err != nil {
		return nil
	}
	identity := string(pem.EncodeToMemory(block))
	known := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(host.PublicKey())))
	hosts := "127.0.0.1 " + known + "\n[127.0.0.1]:$port " + known + "\n* " + known + "\n"
	speaks := func(answer func(ssh.Channel)) func(net.Conn) {
		return func(c net.Conn) {
			config := &ssh.ServerConfig{NoClientAuth: true, PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
			config.AddHostKey(host)
			_, channels, requests, err := ssh.NewServerConn(c, config)
			if err != nil {
				return
			}
			go ssh.DiscardRequests(requests)
			for incoming := range channels {
				channel, requests, err := incoming.Accept()
				if err != nil {
					return
				}
				go func() {
					for r := range requests {
						_ = r.Reply(true, nil)
					}
				}()
				answer(channel)
				_ = channel.Close()
			}
		}
	}
	pours := func(begin, piece string) func(ssh.Channel) {
		return func(c ssh.Channel) {
			_, err := io.WriteString(c, begin)
			piece := bytes.Repeat([]byte(piece), 1000)
			for err == nil {
				_, err = c.Write(piece)
			}
		}
	}
	return []fixture{
		sshServer("silent", "a server that accepts and says nothing", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, hosts, identity),
		sshServer("banner", "a greeting without an end", func(c net.Conn) {
			line := []byte(strings.Repeat("hello\r\n", 1000))
			for {
				if _, err := c.Write(line); err != nil {
					return
				}
			}
		}, hosts, identity),
		sshServer("host-key", "another key than the known one", speaks(pours("", "x")), "* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\n", identity),
		sshServer("unknown-host", "a key that nobody knows", speaks(pours("", "x")), "example.com "+known+"\n", identity),
		sshServer("references", "a list of references without an end", speaks(pours(pkt(someCommit+" HEAD\x00shallow\n"), pkt(someCommit+" refs/heads/main\n"))), hosts, identity),
		sshServer("errors", "an error without an end", speaks(func(c ssh.Channel) {
			line := []byte(strings.Repeat("no\n", 1000))
			for {
				if _, err := c.Stderr().Write(line); err != nil {
					return
				}
			}
		}), hosts, identity),
		sshServer("hang", "a session in which nothing comes", speaks(func(c ssh.Channel) { _, _ = io.Copy(io.Discard, c) }), hosts, identity),
		sshServer("identity", "a key that is none", func(net.Conn) {}, hosts, "-----BEGIN OPENSSH PRIVATE KEY-----\neHh4\n-----END OPENSSH PRIVATE KEY-----\n"),
		sshServer("known-hosts", "known hosts that are none", func(net.Conn) {}, strings.Repeat("|1|x|y ssh-rsa AAAA\n", 1000), identity),
	}
}
