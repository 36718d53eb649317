package proxy

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Hooks decide what becomes of requests. They are called by many requests at the
// same time, both with the same Request.
type Hooks interface {
	// Before is called before a request goes to the API server. If it returns a
	// handler, the request does not go there, and the handler answers it.
	Before(r *Request) http.Handler
	// After is called when the API server has answered, before any of the answer
	// goes back. It may change the answer. With an error the client gets none: its
	// connection is cut.
	After(r *Request, answer *http.Response) error
}

// Proxy in front of one API server.
type Proxy struct {
	server *httptest.Server
	config *clientcmdapi.Config
	hooks  atomic.Pointer[Hooks]
}

// Start begins to serve, in front of the API server of a kubeconfig's current
// context. The caller closes it.
func Start(kubeconfig []byte) (*Proxy, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	p := &Proxy{}
	if p.config, err = clientcmd.Load(kubeconfig); err != nil {
		return nil, fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("cannot parse address of the API server: %w", err)
	}
	// The client sends its token itself.
	config.BearerToken, config.BearerTokenFile = "", ""
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the API server: %w", err)
	}
	quiet := log.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      transport,
		FlushInterval:  -1, // a watch is told of an object at once
		ErrorLog:       quiet,
		ModifyResponse: func(answer *http.Response) error { return p.after(answer) },
		ErrorHandler:   func(_ http.ResponseWriter, r *http.Request, _ error) { cut(r) },
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(forward, w, r) }))
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = quiet
	p.server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connection{}, c)
	}
	p.server.StartTLS()
	return p, nil
}

// connection is the key of a request's connection in its context, requested that of
// its Request.
type (
	connection struct{}
	requested  struct{}
)

func (p *Proxy) serve(forward http.Handler, w http.ResponseWriter, r *http.Request) {
	request := parse(r)
	if hooks := p.hooks.Load(); hooks != nil {
		if instead := (*hooks).Before(request); instead != nil {
			instead.ServeHTTP(w, r)
			return
		}
		// The hooks of this moment see the answer, too.
		r = r.WithContext(context.WithValue(r.Context(), requested{}, seen{*hooks, request}))
	}
	forward.ServeHTTP(w, r)
}

type seen struct {
	hooks   Hooks
	request *Request
}

func (p *Proxy) after(answer *http.Response) error {
	if s, ok := answer.Request.Context().Value(requested{}).(seen); ok {
		return s.hooks.After(s.request, answer)
	}
	return nil
}

// errCut is what After returns to cut a connection.
var errCut = errors.New("cut")

// cut closes the connection of a request, with all other requests on it.
func cut(r *http.Request) {
	if c, ok := r.Context().Value(connection{}).(net.Conn); ok {
		_ = c.Close() // it may be closed already
	}
	panic(http.ErrAbortHandler)
}

// Cut is a handler that closes the connection.
var Cut = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { cut(r) })

// Use replaces the hooks; nil lets everything pass. Requests that are on their way
// keep those that they met.
func (p *Proxy) Use(h Hooks) {
	if h == nil {
		p.hooks.Store(nil)
		return
	}
	p.hooks.Store(&h)
}

// Kubeconfig leads clients to the proxy. It has the tokens of the one that the proxy
// was made from, and none of its certificates.
func (p *Proxy) Kubeconfig() ([]byte, error) {
	config := p.config.DeepCopy()
	at := config.Contexts[config.CurrentContext]
	cluster, user := config.Clusters[at.Cluster], config.AuthInfos[at.AuthInfo]
	cluster.Server, cluster.TLSServerName, cluster.CertificateAuthority = p.server.URL, "", ""
	cluster.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	user.ClientCertificate, user.ClientCertificateData, user.ClientKey, user.ClientKeyData = "", nil, "", nil
	text, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("cannot write kubeconfig of the proxy: %w", err)
	}
	return text, nil
}

// Close cuts all connections and stops serving.
func (p *Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}
