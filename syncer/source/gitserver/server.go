package gitserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Options say where and for whom a server serves.
type Options struct {
	// Root is the folder of the repositories. It is created if it is missing.
	Root string
	// Username and Password are one accepted login of HTTP, BearerToken is
	// another. Without either, HTTP needs no credentials.
	Username, Password string
	BearerToken        string
	// AuthorizedKeys are accepted by SSH, in the format of the file of that
	// name, beside the server's own client key.
	AuthorizedKeys []byte
	// HostKey and ClientKey are private keys in PEM, usually those of an
	// earlier server. They are generated if empty.
	HostKey, ClientKey []byte
	// HTTPAddress and SSHAddress are where to listen; a free port of 127.0.0.1
	// if empty.
	HTTPAddress, SSHAddress string
	// TLS serves HTTPS with a certificate that CA verifies.
	TLS bool
	// Log receives what the servers complain about; nothing if nil.
	Log io.Writer
}

// Server serves the repositories below one folder until it is closed.
type Server struct {
	options   Options
	git       string
	backend   string
	root      string
	web       net.Listener
	shell     net.Listener
	http      *http.Server
	ssh       *ssh.ServerConfig
	ca        []byte
	host      ssh.Signer
	hostPEM   []byte
	client    ssh.Signer
	clientPEM []byte
	accepted  []ssh.PublicKey

	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	// committing makes commits one after another: two at once on one branch
	// would make the second push fail.
	committing sync.Mutex

	mu      sync.Mutex
	closed  bool
	shells  map[net.Conn]struct{}
	traffic map[string]Traffic
	// deploy has the repository that each deploy key opens, by the key as it is sent.
	deploy map[string]string
	// readOnly are those of them that write nothing.
	readOnly map[string]bool
}

// headerTimeout bounds how long a connection may say nothing.
const headerTimeout = 10 * time.Second

// idleTimeout ends SSH connections whose client hangs.
const idleTimeout = 2 * time.Minute

// Start serves in the background until Close, or until ctx ends.
func Start(ctx context.Context, options Options) (*Server, error) {
	s := &Server{
		options: options,
		shells:  map[net.Conn]struct{}{},
		traffic: map[string]Traffic{},
	}
	if s.options.Log == nil {
		s.options.Log = io.Discard
	}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.tasks.Go(func() { s.serveHTTP() })
	s.tasks.Go(func() { s.serveSSH() })
	s.tasks.Go(func() {
		<-s.ctx.Done()
		s.hangUp()
	})
	return s, nil
}

// prepare does everything that can fail; it leaves no listener open if it does.
func (s *Server) prepare(ctx context.Context) (err error) {
	if s.options.Root == "" {
		return errors.New("cannot start git server: Root is empty")
	}
	if err := os.MkdirAll(s.options.Root, 0o755); err != nil {
		return fmt.Errorf("cannot start git server: %w", err)
	}
	// Confinement compares paths after following links, so the root must have
	// none itself.
	s.root, err = filepath.Abs(s.options.Root)
	if err == nil {
		s.root, err = filepath.EvalSymlinks(s.root)
	}
	if err != nil {
		return fmt.Errorf("cannot start git server: %w", err)
	}
	if err := s.findGit(ctx); err != nil {
		return err
	}
	if err := s.prepareKeys(); err != nil {
		return err
	}
	s.web, err = listen(s.options.HTTPAddress)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = s.web.Close()
		}
	}()
	if s.options.TLS {
		certificate, ca, err := newCertificate(time.Now())
		if err != nil {
			return err
		}
		s.ca = ca
		s.web = tls.NewListener(s.web, &tls.Config{
			Certificates: []tls.Certificate{certificate},
			MinVersion:   tls.VersionTLS12,
		})
	}
	s.shell, err = listen(s.options.SSHAddress)
	if err != nil {
		return err
	}
	s.http = s.newHTTP()
	s.ssh = s.newSSH()
	return nil
}

func listen(address string) (net.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	return listener, nil
}

// hangUp stops listening and cuts every connection.
func (s *Server) hangUp() {
	_ = s.http.Close()
	_ = s.shell.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for connection := range s.shells {
		_ = connection.Close()
	}
}

// Close cuts all connections and returns once every goroutine and process of
// the server has ended. It may be called more than once.
func (s *Server) Close() error {
	s.cancel()
	s.tasks.Wait()
	return nil
}

// HTTPAddress is where the server listens for HTTP.
func (s *Server) HTTPAddress() string { return s.web.Addr().String() }

// SSHAddress is where the server listens for SSH.
func (s *Server) SSHAddress() string { return s.shell.Addr().String() }

// HTTPURL is the address of a repository by HTTP, without credentials.
func (s *Server) HTTPURL(repository string) string {
	scheme := "http"
	if s.options.TLS {
		scheme = "https"
	}
	return scheme + "://" + s.HTTPAddress() + "/" + withSuffix(repository)
}

// SSHURL is the address of a repository by SSH.
func (s *Server) SSHURL(repository string) string {
	return "ssh://" + sshUser + "@" + s.SSHAddress() + "/" + withSuffix(repository)
}

// CA is the certificate, in PEM, that verifies the server; empty without TLS.
func (s *Server) CA() []byte { return s.ca }

// HostKey is the private host key in PEM, to give to a later Start.
func (s *Server) HostKey() []byte { return s.hostPEM }

// ClientKey is a private key in PEM that SSH accepts.
func (s *Server) ClientKey() []byte { return s.clientPEM }

// Login returns the user name and password that HTTP accepts.
func (s *Server) Login() (username, password string) {
	return s.options.Username, s.options.Password
}
