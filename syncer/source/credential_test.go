package source

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// TestClientCertificate: a server that wants one, by today's keys of the Secret
// and by those that Flux took before.
func TestClientCertificate(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a.yaml": "1"})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "c"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	target, _ := url.Parse("http://" + o.HTTPAddress())
	front := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(target))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	front.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	front.StartTLS()
	defer front.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	for name, tc := range map[string]struct {
		reason string
		secret map[string][]byte
		fails  bool
	}{
		"Today":  {"the keys of a Secret of type kubernetes.io/tls", map[string][]byte{"ca.crt": ca, "tls.crt": certPEM, "tls.key": keyPEM}, false},
		"Legacy": {"Flux's older names", map[string][]byte{"caFile": ca, "certFile": certPEM, "keyFile": keyPEM}, false},
		"None":   {"the server sends everybody else away", map[string][]byte{"ca.crt": ca}, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mirrors(t).Fetch(t.Context(), Origin{URL: front.URL + "/" + repository + ".git", Secret: tc.secret}, onMain, Options{}, nil)
			if (err != nil) != tc.fails {
				t.Errorf("%s\nFetch() = %v, want failure: %t", tc.reason, err, tc.fails)
			}
		})
	}
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, front.URL+r.URL.RequestURI(), http.StatusFound)
	}))
	defer away.Close()
	secret := map[string][]byte{"ca.crt": ca, "tls.crt": certPEM, "tls.key": keyPEM}
	if _, err := mirrors(t).Fetch(t.Context(), Origin{URL: away.URL + "/" + repository + ".git", Secret: secret}, onMain, Options{}, nil); err == nil || !strings.Contains(err.Error(), "another host") {
		t.Errorf("Fetch() = %v, want that the certificate does not follow a redirect", err)
	}
}

// TestSystemCertificates: with ca.crt the authorities of the system vouch as before, as in Flux. The
// library reads these once in a process.
func TestSystemCertificates(t *testing.T) {
	const at, other = "SOURCE_TEST_URL", "SOURCE_TEST_CA"
	if from := os.Getenv(at); from != "" {
		secret := map[string][]byte{"ca.crt": []byte(os.Getenv(other))}
		if _, err := mirrors(t).Fetch(t.Context(), Origin{URL: from, Secret: secret}, onMain, Options{}, nil); err != nil {
			t.Errorf("Fetch() of a server that the system trusts, with the authority of another one in the Secret: %v", err)
		}
		return
	}
	o := serve(t, gitserver.Options{TLS: true})
	o.commit("main", map[string]string{"a.yaml": "1"})
	file := filepath.Join(t.TempDir(), "system.pem")
	if err := os.WriteFile(file, o.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	itself := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSystemCertificates$")
	itself.Env = append(os.Environ(), "SSL_CERT_FILE="+file, at+"="+o.HTTPURL(repository), other+"="+string(serve(t, gitserver.Options{TLS: true}).CA()))
	if out, err := itself.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestPassphrase(t *testing.T) {
	_, key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	o := serve(t, gitserver.Options{AuthorizedKeys: ssh.MarshalAuthorizedKey(signer.PublicKey())})
	o.commit("main", map[string]string{"a.yaml": "1"})
	block, err := ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte("pass-phrase"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason, password, says string
	}{
		"Right": {"the key password of the Secret opens the key", "pass-phrase", ""},
		"Wrong": {"another does not", "hidden-word", "identity"},
		"None":  {"without it the error says what is missing", "", "password"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := map[string][]byte{"identity": pem.EncodeToMemory(block), "known_hosts": []byte(o.KnownHosts()), "password": []byte(tc.password)}
			_, err := mirrors(t).Fetch(t.Context(), Origin{URL: o.SSHURL(repository), Secret: secret}, onMain, Options{}, nil)
			if (err == nil) != (tc.says == "") {
				t.Fatalf("%s\nFetch() = %v", tc.reason, err)
			}
			if err != nil && (ReasonOf(err) != ReasonAuthenticationFailed || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "hidden-word")) {
				t.Errorf("%s\nFetch() = %v", tc.reason, err)
			}
		})
	}
}

func newKey() (*ecdsa.PublicKey, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	return &key.PublicKey, key, nil
}

// TestLoginRotates: a token that a provider renews each hour must not make a
// new mirror each hour.
func TestLoginRotates(t *testing.T) {
	a := Origin{URL: "https://h/x", Login: &Login{BearerToken: "one", Identity: "app"}}
	b := Origin{URL: "https://h/x", Login: &Login{BearerToken: "two", Identity: "app"}}
	c := Origin{URL: "https://h/x", Login: &Login{BearerToken: "one", Identity: "other"}}
	d := Origin{URL: "https://h/x", Proxy: &url.URL{Scheme: "http", Host: "p"}}
	if a.key() != b.key() {
		t.Error("a renewed token is another origin")
	}
	if a.key() == c.key() || (Origin{URL: a.URL}).key() == d.key() {
		t.Error("another identity or another proxy is the same origin")
	}
}

// TestPatience: who gives up after the usual time waits for nobody who has longer.
func TestPatience(t *testing.T) {
	usual, short, long := Origin{URL: "https://h/x"}, Origin{URL: "https://h/x", Timeout: 20 * time.Second}, Origin{URL: "https://h/x", Timeout: time.Hour}
	if usual.key() != short.key() {
		t.Error("a shorter timeout is another origin")
	}
	if usual.key() == long.key() {
		t.Error("a fetch of a minute waits for one of an hour")
	}
}

// TestSameMessage: a failure that happens again has the same words, or each
// retry would write a new status.
func TestSameMessage(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.(*net.TCPConn).SetLinger(0) // a reset, whose error names both ends
			_ = conn.Close()
		}
	}()
	seen := map[string]bool{}
	for range 3 {
		_, err := mirrors(t).Fetch(t.Context(), Origin{URL: "http://" + listener.Addr().String() + "/x"}, onMain, Options{}, nil)
		var inner *net.OpError
		if err == nil || (!errors.As(err, &inner) && !errors.Is(err, io.EOF)) {
			t.Fatalf("Fetch() = %v, want the error of the connection in it", err)
		}
		seen[err.Error()] = true
	}
	if len(seen) != 1 {
		t.Errorf("one failure has the words %v", seen)
	}
}
