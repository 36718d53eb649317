// Package momclouds has the test of cascade-mom with the managers for AWS and Azure, which are
// real and think that they talk to their clouds. All of that goes to a recorder on loopback.
//
// The recorder is an HTTPS proxy with an authority of its own, which the managers are told to
// believe. It writes down what is asked of which host, answers logins at Azure so that what
// comes after them is seen, and refuses everything else as the clouds refuse who may nothing.
//
// Failure model: a host that nothing is said about is answered with 403. Nothing is passed on.
package momclouds

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// mostBody bounds what is kept of a request.
const mostBody = 64 << 10

// Asked is one request of a manager.
type Asked struct {
	Host, Method, Path string
	// Query and Form of the request.
	Query, Form url.Values
	// Authorization header.
	Authorization string
	Body          string
}

// Recorder writes down what is asked.
type Recorder struct {
	authority    *x509.Certificate
	authorityKey *ecdsa.PrivateKey
	key          *ecdsa.PrivateKey
	listener     net.Listener

	mu           sync.Mutex
	asked        []Asked
	certificates map[string]*tls.Certificate
	connections  sync.WaitGroup
}

// NewRecorder listens on loopback until Close.
func NewRecorder() (*Recorder, error) {
	r := &Recorder{certificates: map[string]*tls.Certificate{}}
	var err error
	if r.authorityKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("cannot make key: %w", err)
	}
	if r.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("cannot make key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "recorder"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, r.authorityKey.Public(), r.authorityKey)
	if err != nil {
		return nil, fmt.Errorf("cannot make certificate: %w", err)
	}
	if r.authority, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("cannot make certificate: %w", err)
	}
	if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	r.connections.Go(r.accept)
	return r, nil
}

// URL is that of the proxy.
func (r *Recorder) URL() string { return "http://" + r.listener.Addr().String() }

// CA is what its clients are to believe, in PEM.
func (r *Recorder) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.authority.Raw})
}

// Close ends it. Connections end with their clients.
func (r *Recorder) Close() error { return r.listener.Close() }

// Asked returns what was asked of hosts whose names end so.
func (r *Recorder) Asked(suffix string) []Asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	var asked []Asked
	for _, a := range r.asked {
		if strings.HasSuffix(a.Host, suffix) {
			asked = append(asked, a)
		}
	}
	return asked
}

// Hosts that were asked anything.
func (r *Recorder) Hosts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var hosts []string
	for _, a := range r.asked {
		if !slices.Contains(hosts, a.Host) {
			hosts = append(hosts, a.Host)
		}
	}
	slices.Sort(hosts)
	return hosts
}

func (r *Recorder) accept() {
	for {
		connection, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.serve(connection)
	}
}

// serve is one tunnel: what comes through it is answered here.
func (r *Recorder) serve(connection net.Conn) {
	defer connection.Close()
	reader := bufio.NewReader(connection)
	connect, err := http.ReadRequest(reader)
	if err != nil || connect.Method != http.MethodConnect {
		_, _ = io.WriteString(connection, "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
		return
	}
	host, _, err := net.SplitHostPort(connect.Host)
	if err != nil {
		return
	}
	if _, err := io.WriteString(connection, "HTTP/1.1 200 Connection Established\r\n\r\n"); err != nil {
		return
	}
	certificate, err := r.certificate(host)
	if err != nil {
		return
	}
	secured := tls.Server(connection, &tls.Config{Certificates: []tls.Certificate{*certificate}})
	defer secured.Close()
	requests := bufio.NewReader(secured)
	for {
		request, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		status, kind, body := r.answer(host, request)
		response := &http.Response{
			StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: request, ContentLength: int64(len(body)),
			Header: http.Header{"Content-Type": {kind}, "Date": {time.Now().UTC().Format(http.TimeFormat)}},
			Body:   io.NopCloser(strings.NewReader(body)),
		}
		if err := response.Write(secured); err != nil {
			return
		}
	}
}

func (r *Recorder) certificate(host string) (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if made := r.certificates[host]; made != nil {
		return made, nil
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(r.certificates) + 2)), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: r.authority.NotBefore, NotAfter: r.authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, r.authority, r.key.Public(), r.authorityKey)
	if err != nil {
		return nil, fmt.Errorf("cannot make certificate: %w", err)
	}
	made := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: r.key}
	r.certificates[host] = made
	return made, nil
}

// answer writes a request down and says what is answered.
func (r *Recorder) answer(host string, request *http.Request) (status int, kind, body string) {
	text, err := io.ReadAll(io.LimitReader(request.Body, mostBody))
	if err != nil {
		text = nil
	}
	_, _ = io.Copy(io.Discard, request.Body) // what is longer is of no interest
	asked := Asked{
		Host: host, Method: request.Method, Path: request.URL.Path, Query: request.URL.Query(),
		Authorization: request.Header.Get("Authorization"), Body: string(text),
	}
	if strings.HasPrefix(request.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		if form, err := url.ParseQuery(string(text)); err == nil {
			asked.Form = form
		}
	}
	r.mu.Lock()
	r.asked = append(r.asked, asked)
	r.mu.Unlock()
	switch {
	case host == azureLogin:
		return http.StatusOK, "application/json", login(request.URL.Path)
	case strings.HasSuffix(host, ".amazonaws.com"):
		return http.StatusForbidden, "text/xml", `<?xml version="1.0"?><Response><Errors><Error><Code>UnauthorizedOperation</Code>` +
			`<Message>You are not authorized to perform this operation.</Message></Error></Errors><RequestID>1</RequestID></Response>`
	}
	return http.StatusForbidden, "application/json", `{"error": {"code": "AuthorizationFailed", "message": "The client does not have authorization."}}`
}

// azureLogin is where tokens of Azure's public cloud come from.
const azureLogin = "login.microsoftonline.com"

// token is what a login gives; what is asked with it, is asked by who logged in.
const token = "token-of-the-recorder"

func login(path string) string {
	tenant := strings.Split(strings.Trim(path, "/"), "/")[0]
	at := "https://" + azureLogin + "/" + tenant
	var answer any
	switch {
	case strings.Contains(path, "/discovery/instance"):
		answer = map[string]any{
			"tenant_discovery_endpoint": at + "/v2.0/.well-known/openid-configuration", "api-version": "1.1",
			"metadata": []any{map[string]any{"preferred_network": azureLogin, "preferred_cache": "login.windows.net", "aliases": []string{azureLogin, "login.windows.net"}}},
		}
	case strings.HasSuffix(path, "/openid-configuration"):
		answer = map[string]any{
			"issuer": at + "/v2.0", "token_endpoint": at + "/oauth2/v2.0/token", "authorization_endpoint": at + "/oauth2/v2.0/authorize",
		}
	default:
		answer = map[string]any{"token_type": "Bearer", "expires_in": 3600, "ext_expires_in": 3600, "access_token": token}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return "{}"
	}
	return string(text)
}
